//! Unix sockets, as `std::os::unix::net` has them.

use std::ffi::OsStr;
use std::io;
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net as std_unix;
use std::path::Path;

pub use std::os::unix::net::SocketAddr;

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::accept::{self, accept_by};
use super::{calls, socket, stream, timeouts};
use crate::rt::io::{Descriptor, Direction, Try, perform};

/// The address of a path, as std takes it.
fn address_of(path: &Path) -> io::Result<SockAddr> {
    // A first zero would make it an abstract name.
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "paths must not contain interior null bytes"));
    }
    SockAddr::unix(path)
}

/// The address that std's is; `None` if it has no name.
fn named(addr: &SocketAddr) -> io::Result<Option<SockAddr>> {
    let name = addr.as_abstract_name().map(|name| [b"\0", name].concat());
    match (addr.as_pathname(), &name) {
        (Some(path), _) => address_of(path).map(Some),
        (_, Some(name)) => SockAddr::unix(OsStr::from_bytes(name)).map(Some),
        _ => Ok(None),
    }
}

/// An address that the kernel has told, as std has it. One with a name that std has no room for is without a name.
fn told(addr: &SockAddr) -> io::Result<SocketAddr> {
    let known = match (addr.as_pathname(), addr.as_abstract_namespace()) {
        (Some(path), _) => SocketAddr::from_pathname(path),
        (_, Some(name)) => SocketAddr::from_abstract_name(name),
        _ => return unnamed(),
    };
    known.or_else(|_| unnamed())
}

fn unnamed() -> io::Result<SocketAddr> {
    SocketAddr::from_pathname("")
}

/// A connection between two processes of this machine, or within one.
///
/// As [`std::os::unix::net::UnixStream`].
///
/// # Suspends
/// As [`TcpStream`](super::TcpStream).
///
/// # Examples
/// ```
/// use std::io::{Read, Write};
/// let (mut near, mut far) = sinew::net::unix::UnixStream::pair()?;
/// near.write_all(b"hello")?;
/// let mut buf = [0; 5];
/// far.read_exact(&mut buf)?;
/// assert_eq!(&buf, b"hello");
/// # std::io::Result::Ok(())
/// ```
pub struct UnixStream {
    pub(super) descriptor: Descriptor<std_unix::UnixStream>,
}

socket!(UnixStream, std_unix::UnixStream);
timeouts!(UnixStream);
stream!(UnixStream, MayHaveMore);

impl UnixStream {
    /// Connects to the socket at `path`.
    ///
    /// # Suspends
    /// Yes, while its queue of connections is full. A cancel point.
    ///
    /// # Errors
    /// What the system says; and as every cancel point.
    #[track_caller]
    pub fn connect<P: AsRef<Path>>(path: P) -> io::Result<Self> {
        Self::connect_at(&address_of(path.as_ref())?)
    }

    #[track_caller]
    fn connect_at(addr: &SockAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        let descriptor = Descriptor::of_nonblocking(std_unix::UnixStream::from(std::os::fd::OwnedFd::from(socket)));
        calls::queue_at_unix(&descriptor, |socket| SockRef::from(socket).connect(addr))?;
        Ok(Self::of(descriptor))
    }

    /// Connects to the socket at `addr`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    #[track_caller]
    pub fn connect_addr(addr: &SocketAddr) -> io::Result<Self> {
        match named(addr)? {
            Some(addr) => Self::connect_at(&addr),
            // The system says what it thinks of that, at once.
            None => Ok(Self::of(Descriptor::new(std_unix::UnixStream::connect_addr(addr)?)?)),
        }
    }

    /// Two that are connected to each other.
    ///
    /// # Errors
    /// What the system says, as for all that follow.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, two) = std_unix::UnixStream::pair()?;
        Ok((Self::of(Descriptor::new(one)?), Self::of(Descriptor::new(two)?)))
    }

    /// The address of this side.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.std().local_addr()
    }

    /// The address of the other side.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.std().peer_addr()
    }

    /// Closes one direction, or both.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.std().shutdown(how)
    }

    /// Reads what is there, or comes first, and leaves it for the next read. (std's is not stable yet.)
    #[track_caller]
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        calls::peek(&self.descriptor, buf)
    }
}

/// A socket that takes connections at a path.
///
/// As [`std::os::unix::net::UnixListener`].
pub struct UnixListener {
    descriptor: Descriptor<std_unix::UnixListener>,
}

socket!(UnixListener, std_unix::UnixListener);

impl UnixListener {
    /// Listens at `path`, which must not exist.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<Self> {
        Ok(Self::of(Descriptor::new(std_unix::UnixListener::bind(path)?)?))
    }

    /// Listens at `addr`.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind_addr(addr: &SocketAddr) -> io::Result<Self> {
        Ok(Self::of(Descriptor::new(std_unix::UnixListener::bind_addr(addr)?)?))
    }

    /// Waits for a connection, as [`TcpListener::accept`](super::TcpListener::accept).
    ///
    /// # Suspends
    /// Yes. A [cancel point](crate::cancelled).
    ///
    /// # Errors
    /// What the system says; and as every cancel point.
    #[track_caller]
    pub fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let (stream, addr) = accept_by(&self.descriptor, std_unix::UnixListener::accept)?;
        Ok((UnixStream::of(Descriptor::new(stream)?), addr))
    }

    /// The connections, one after the other, for ever; but when the caller is [cancelled](crate::JoinHandle::cancel), or past the deadline of a [`timeout`](crate::timeout), there is one error that says so, and then no more.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self, come: accept::Incoming::default() }
    }

    /// The address it listens at.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.std().local_addr()
    }
}

/// The connections of a listener; see [`UnixListener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a UnixListener,
    come: accept::Incoming,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<UnixStream>;

    fn next(&mut self) -> Option<Self::Item> {
        self.come.next(|| self.listener.accept().map(|(stream, _)| stream))
    }
}

impl std::iter::FusedIterator for Incoming<'_> {}

impl<'a> IntoIterator for &'a UnixListener {
    type IntoIter = Incoming<'a>;
    type Item = io::Result<UnixStream>;

    fn into_iter(self) -> Incoming<'a> {
        self.incoming()
    }
}

/// A socket for datagrams within this machine.
///
/// As [`std::os::unix::net::UnixDatagram`].
///
/// # Suspends
/// Sending and receiving do, where std's would block. They are [cancel points](crate::cancelled).
pub struct UnixDatagram {
    descriptor: Descriptor<std_unix::UnixDatagram>,
}

socket!(UnixDatagram, std_unix::UnixDatagram);
timeouts!(UnixDatagram);

impl UnixDatagram {
    /// A socket at `path`, which must not exist.
    ///
    /// # Errors
    /// What the system says, as for all that follow; those that wait also as every cancel point.
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<Self> {
        Ok(Self::of(Descriptor::new(std_unix::UnixDatagram::bind(path)?)?))
    }

    /// A socket at `addr`.
    pub fn bind_addr(addr: &SocketAddr) -> io::Result<Self> {
        Ok(Self::of(Descriptor::new(std_unix::UnixDatagram::bind_addr(addr)?)?))
    }

    /// A socket without an address.
    pub fn unbound() -> io::Result<Self> {
        Ok(Self::of(Descriptor::new(std_unix::UnixDatagram::unbound()?)?))
    }

    /// Two that are connected to each other.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, two) = std_unix::UnixDatagram::pair()?;
        Ok((Self::of(Descriptor::new(one)?), Self::of(Descriptor::new(two)?)))
    }

    /// Makes the socket at `path` the one to send to and receive from.
    pub fn connect<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        self.std().connect(path)
    }

    /// Makes the socket at `addr` the one to send to and receive from.
    pub fn connect_addr(&self, addr: &SocketAddr) -> io::Result<()> {
        self.std().connect_addr(addr)
    }

    /// The address of this side.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.std().local_addr()
    }

    /// The address of the other side, if it is connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.std().peer_addr()
    }

    /// Closes one direction, or both.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.std().shutdown(how)
    }

    /// Receives one datagram, and its sender. What does not fit into `buf` is lost.
    #[track_caller]
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_from(buf, 0)
    }

    /// As [`recv_from`](Self::recv_from), and leaves it for the next to receive. (std's is not stable yet.)
    #[track_caller]
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_from(buf, libc::MSG_PEEK)
    }

    #[track_caller]
    fn receive_from(&self, buf: &mut [u8], flags: libc::c_int) -> io::Result<(usize, SocketAddr)> {
        // The end comes from nobody: as from a socket without a name.
        calls::receive_from(&self.descriptor, buf, flags, told, || Ok((0, unnamed()?)))
    }

    /// Receives one datagram.
    #[track_caller]
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        calls::receive_datagram(&self.descriptor, buf, 0)
    }

    /// As [`recv`](Self::recv), and leaves it for the next to receive. (std's is not stable yet.)
    #[track_caller]
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        calls::receive_datagram(&self.descriptor, buf, libc::MSG_PEEK)
    }

    /// Sends one datagram to the socket at `path`.
    #[track_caller]
    pub fn send_to<P: AsRef<Path>>(&self, buf: &[u8], path: P) -> io::Result<usize> {
        self.send_at(buf, &address_of(path.as_ref())?)
    }

    /// Sends one datagram to the socket at `addr`.
    #[track_caller]
    pub fn send_to_addr(&self, buf: &[u8], addr: &SocketAddr) -> io::Result<usize> {
        match named(addr)? {
            Some(addr) => self.send_at(buf, &addr),
            // The system says what it thinks of that, at once.
            None => calls::queue_at_unix(&self.descriptor, |socket| socket.send_to_addr(buf, addr)),
        }
    }

    #[track_caller]
    fn send_at(&self, buf: &[u8], addr: &SockAddr) -> io::Result<usize> {
        calls::queue_at_unix(&self.descriptor, |socket| calls::try_send_to(socket, buf, addr))
    }

    /// Sends one datagram to the connected socket.
    #[track_caller]
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        perform(&self.descriptor, Try(Direction::Write, |socket: &std_unix::UnixDatagram| calls::try_send(socket, buf)))
    }
}
