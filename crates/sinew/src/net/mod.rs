//! Sockets, with std's names and behaviour: what waits suspends the fiber, and not its thread.
//!
//! A program moves from threads to fibers by writing `sinew::net` where it had `std::net`. Every type works on plain threads too, where it blocks the thread.
//!
//! # What differs from std
//! - Calls that wait are [cancel points](crate::cancelled): they fail when the caller is cancelled ([`Cancelled::is_in`](crate::Cancelled::is_in)), or late. Nothing is lost then. (On a plain thread a deadline cuts them short, and a cancel makes
//!   them fail at their entry, but does not end one that has begun.)
//! - Names are looked up off the workers ([`ToSocketAddrs`] is our own trait for that, for the same types).
//! - Time-outs ([`TcpStream::set_read_timeout`]) belong to the handle, and are copied by `try_clone`; std's belong to the socket.
//! - [`TcpListener::accept`] waits, and tries again, while there are no descriptors to be had. So do calls of a fiber that would wait, if its worker needs one to wait with, which it opens at its first wait: they do
//!   not fail for that, and it is said once, on stderr.
//! - Sockets are non-blocking in the kernel; so are all duplicates of one that is taken from std or from an `OwnedFd`, and they stay so when it is dropped. `set_nonblocking` makes calls fail where they would wait, as in std, but belongs to the handle, too, and is copied by `try_clone`: clones that are there already keep their own.
//! - A conversion into std's type, or into an `OwnedFd`, makes the socket blocking again, and with it its clones. Those go on as before, but for `accept`, which may then block the worker's thread.
//! - A conversion from std's type, or into it, keeps time-outs, and whether calls wait. One from an `OwnedFd` or a number keeps the time-outs, but its calls wait, non-blocking or not: it may be a duplicate of
//!   a socket of ours, which are all non-blocking.
//!
//! # Examples
//! ```
//! use std::io::{Read, Write};
//! use sinew::net::{TcpListener, TcpStream};
//! sinew::run(|| {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let addr = listener.local_addr()?;
//!     let server = sinew::spawn(move || listener.accept()?.0.write_all(b"hello"));
//!     let mut text = String::new();
//!     TcpStream::connect(addr)?.read_to_string(&mut text)?;
//!     assert_eq!(text, "hello");
//!     server.join().unwrap()
//! })?;
//! # std::io::Result::Ok(())
//! ```

mod accept;
mod addr;
#[cfg(any(feature = "futures-io", feature = "tokio-io"))]
mod asynchronous;
mod calls;
mod tcp;
mod udp;
pub mod unix;

pub use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6};

pub use addr::ToSocketAddrs;
#[cfg(any(feature = "futures-io", feature = "tokio-io"))]
pub use asynchronous::Async;
pub use tcp::{Incoming, TcpListener, TcpStream};
pub use udp::UdpSocket;

/// What every socket type has: conversions, and what does not wait and is the same for all.
macro_rules! socket {
    ($socket:ident, $std:ty) => {
        impl $socket {
            fn of(descriptor: Descriptor<$std>) -> Self {
                Self { descriptor }
            }

            /// Another handle to the same socket.
            ///
            /// # Errors
            /// If there are too many descriptors.
            pub fn try_clone(&self) -> std::io::Result<Self> {
                Ok(Self::of(self.descriptor.clone_as(self.std().try_clone()?)))
            }

            /// Takes the error that is pending at the socket, if there is one.
            ///
            /// # Errors
            /// What the system says.
            pub fn take_error(&self) -> std::io::Result<Option<std::io::Error>> {
                self.std().take_error()
            }

            /// Makes calls that would wait fail with `WouldBlock` instead, or no longer. For this handle alone, and clones made of it later; std's is the socket's.
            ///
            /// # Errors
            /// None.
            pub fn set_nonblocking(&self, nonblocking: bool) -> std::io::Result<()> {
                self.descriptor.set_nonblocking(nonblocking);
                Ok(())
            }

            fn std(&self) -> &$std {
                self.descriptor.socket()
            }
        }

        impl std::fmt::Debug for $socket {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.std().fmt(f)
            }
        }

        impl From<$std> for $socket {
            /// # Panics
            /// If it is not what its type says: every socket can be made non-blocking.
            fn from(socket: $std) -> Self {
                let nonblocking = socket2::SockRef::from(&socket).nonblocking().unwrap_or(false);
                let socket = Self::from(std::os::fd::OwnedFd::from(socket));
                socket.descriptor.set_nonblocking(nonblocking);
                socket
            }
        }

        impl From<$socket> for $std {
            fn from(socket: $socket) -> Self {
                calls::give(socket.descriptor)
            }
        }

        impl From<std::os::fd::OwnedFd> for $socket {
            /// # Panics
            /// As that from std's type.
            fn from(fd: std::os::fd::OwnedFd) -> Self {
                Self::of(calls::take(<$std>::from(fd)).expect("a socket can be made non-blocking"))
            }
        }

        impl From<$socket> for std::os::fd::OwnedFd {
            fn from(socket: $socket) -> Self {
                <$std>::from(socket).into()
            }
        }

        impl std::os::fd::AsFd for $socket {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.descriptor.lend()
            }
        }

        impl std::os::fd::AsRawFd for $socket {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                self.descriptor.lend().as_raw_fd()
            }
        }

        impl std::os::fd::IntoRawFd for $socket {
            fn into_raw_fd(self) -> std::os::fd::RawFd {
                <$std>::from(self).into_raw_fd()
            }
        }

        impl std::os::fd::FromRawFd for $socket {
            unsafe fn from_raw_fd(fd: std::os::fd::RawFd) -> Self {
                // SAFETY: the caller's promise.
                unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }.into()
            }
        }
    };
}

/// Time-outs of sockets that read and write.
macro_rules! timeouts {
    ($socket:ident) => {
        impl $socket {
            /// How long a read waits, at most; `None`, the default, for ever. A read that has waited so long fails with `WouldBlock`, as std's.
            ///
            /// # Errors
            /// For a time-out of zero.
            pub fn set_read_timeout(&self, timeout: Option<std::time::Duration>) -> std::io::Result<()> {
                self.descriptor.set_timeout(Direction::Read, timeout)
            }

            /// How long a write waits, at most; `None`, the default, for ever. A write that has waited so long fails with `WouldBlock`, as std's.
            ///
            /// # Errors
            /// For a time-out of zero.
            pub fn set_write_timeout(&self, timeout: Option<std::time::Duration>) -> std::io::Result<()> {
                self.descriptor.set_timeout(Direction::Write, timeout)
            }

            /// What [`set_read_timeout`](Self::set_read_timeout) set.
            ///
            /// # Errors
            /// None.
            pub fn read_timeout(&self) -> std::io::Result<Option<std::time::Duration>> {
                Ok(self.descriptor.timeout(Direction::Read))
            }

            /// What [`set_write_timeout`](Self::set_write_timeout) set.
            ///
            /// # Errors
            /// None.
            pub fn write_timeout(&self) -> std::io::Result<Option<std::time::Duration>> {
                Ok(self.descriptor.timeout(Direction::Write))
            }
        }
    };
}

/// `Read` and `Write` for a stream socket and for its reference.
macro_rules! stream {
    ($socket:ident, $short:ident) => {
        impl std::io::Read for &$socket {
            #[track_caller]
            fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
                calls::receive(&self.descriptor, buf, calls::Short::$short)
            }

            #[track_caller]
            fn read_vectored(&mut self, bufs: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                calls::receive_vectored(&self.descriptor, bufs)
            }
        }

        impl std::io::Write for &$socket {
            #[track_caller]
            fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
                calls::send(&self.descriptor, buf)
            }

            #[track_caller]
            fn write_vectored(&mut self, bufs: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                calls::send_vectored(&self.descriptor, bufs)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        impl std::io::Read for $socket {
            #[track_caller]
            fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
                (&*self).read(buf)
            }

            #[track_caller]
            fn read_vectored(&mut self, bufs: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                (&*self).read_vectored(bufs)
            }
        }

        impl std::io::Write for $socket {
            #[track_caller]
            fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
                (&*self).write(buf)
            }

            #[track_caller]
            fn write_vectored(&mut self, bufs: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                (&*self).write_vectored(bufs)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
    };
}

use {socket, stream, timeouts};
