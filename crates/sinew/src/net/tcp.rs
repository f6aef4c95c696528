//! TCP, as `std::net` has it.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::TcpStreamExt;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, SockRef, Socket, Type};

use super::accept::{self, accept_by};
use super::addr::{ToSocketAddrs, each};
use super::{calls, socket, stream, timeouts};
use crate::os::clock;
use crate::rt::io::{Descriptor, Direction, count};

/// Connections that wait to be accepted, at most; the system's limit (`net.core.somaxconn`) if that is less.
const BACKLOG: i32 = 4096;

/// A TCP connection.
///
/// As [`std::net::TcpStream`]; several fibers may read and write at once, by a reference or a [clone](Self::try_clone).
///
/// # Suspends
/// Reading, writing, peeking and connecting do, where std's would block. They are [cancel points](crate::cancelled): one that fails for that has read, or written, nothing.
///
/// # Examples
/// ```no_run
/// use std::io::{Read, Write};
/// let mut stream = sinew::net::TcpStream::connect("example.org:80")?;
/// stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
/// let mut page = String::new();
/// stream.read_to_string(&mut page)?;
/// # std::io::Result::Ok(())
/// ```
pub struct TcpStream {
    pub(super) descriptor: Descriptor<std::net::TcpStream>,
}

socket!(TcpStream, std::net::TcpStream);
timeouts!(TcpStream);
stream!(TcpStream, IsEmpty);

/// A new non-blocking socket for `addr`.
fn open(addr: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))
}

impl TcpStream {
    /// Connects to the first of the addresses that answers.
    ///
    /// # Errors
    /// The last address's; and as every cancel point.
    #[track_caller]
    pub fn connect<A: ToSocketAddrs>(addrs: A) -> io::Result<Self> {
        each(addrs, |addr| Self::connect_until(addr, u64::MAX))
    }

    /// Connects to `addr`, and waits for that no longer than `timeout`.
    ///
    /// # Errors
    /// `TimedOut`; for a time-out of zero; and as [`connect`](Self::connect).
    #[track_caller]
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<Self> {
        if timeout.is_zero() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "cannot set a 0 duration timeout"));
        }
        Self::connect_until(*addr, clock::deadline_ns(timeout))
    }

    fn connect_until(addr: SocketAddr, deadline_ns: u64) -> io::Result<Self> {
        let descriptor = Descriptor::of_nonblocking(std::net::TcpStream::from(open(addr)?));
        calls::connect(&descriptor, &addr.into(), deadline_ns)?;
        Ok(Self { descriptor })
    }

    /// The address of the other side.
    ///
    /// # Errors
    /// What the system says, as for all that follow.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.std().peer_addr()
    }

    /// The address of this side.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.std().local_addr()
    }

    /// Closes one direction, or both. Fibers that wait to read then find the end, those that write an error.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.std().shutdown(how)
    }

    /// Reads what is there, or comes first, and leaves it for the next read.
    #[track_caller]
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        calls::peek(&self.descriptor, buf)
    }

    /// Whether small writes are sent at once (`TCP_NODELAY`).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.std().set_nodelay(nodelay)
    }

    /// What [`set_nodelay`](Self::set_nodelay) set.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.std().nodelay()
    }

    /// Whether what comes is acknowledged at once (`TCP_QUICKACK`), until the system finds that it had better not.
    pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
        self.std().set_quickack(quickack)
    }

    /// What [`set_quickack`](Self::set_quickack) set, or the system found since.
    pub fn quickack(&self) -> io::Result<bool> {
        self.std().quickack()
    }

    /// How long the system keeps a closed socket with unsent data (`SO_LINGER`). To close it never makes a fiber wait, but with this set it may block its worker for so long.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        SockRef::from(self.std()).set_linger(linger)
    }

    /// What [`set_linger`](Self::set_linger) set.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        SockRef::from(self.std()).linger()
    }

    /// Hops that a packet may take (`IP_TTL`).
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.std().set_ttl(ttl)
    }

    /// What [`set_ttl`](Self::set_ttl) set.
    pub fn ttl(&self) -> io::Result<u32> {
        self.std().ttl()
    }
}

/// A socket that takes TCP connections.
///
/// As [`std::net::TcpListener`]; several fibers may accept at once.
///
/// # Examples
/// ```
/// let listener = sinew::net::TcpListener::bind("127.0.0.1:0")?;
/// println!("listens at {}", listener.local_addr()?);
/// # std::io::Result::Ok(())
/// ```
pub struct TcpListener {
    descriptor: Descriptor<std::net::TcpListener>,
}

socket!(TcpListener, std::net::TcpListener);

impl TcpListener {
    /// Listens at the first of the addresses that can be had.
    ///
    /// # Errors
    /// The last address's.
    pub fn bind<A: ToSocketAddrs>(addrs: A) -> io::Result<Self> {
        each(addrs, |addr| listen(addr, Share::Alone))
    }

    /// As [`bind`](Self::bind), at an address that others may listen at in the same way (`SO_REUSEPORT`): the system spreads connections over them.
    ///
    /// # Errors
    /// The last address's.
    ///
    /// # Examples
    /// ```
    /// use sinew::net::TcpListener;
    /// let one = TcpListener::bind_reuse_port("127.0.0.1:0")?;
    /// let two = TcpListener::bind_reuse_port(one.local_addr()?)?;
    /// assert_eq!(one.local_addr()?, two.local_addr()?);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn bind_reuse_port<A: ToSocketAddrs>(addrs: A) -> io::Result<Self> {
        each(addrs, |addr| listen(addr, Share::Port))
    }

    /// Waits for a connection, and gives it with the address of the other side.
    ///
    /// While there are no descriptors to be had (`EMFILE`, `ENFILE`), or no memory, it waits and tries again, and says so on stderr, unless the listener is non-blocking. A
    /// connection that was aborted meanwhile is passed over.
    ///
    /// # Suspends
    /// Yes. A [cancel point](crate::cancelled).
    ///
    /// # Errors
    /// What the system says; and as every cancel point.
    #[track_caller]
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        accept_by(&self.descriptor, take)
    }

    /// The connections, one after the other, for ever; but when the caller is [cancelled](crate::JoinHandle::cancel), or past the deadline of a [`timeout`](crate::timeout), there is one error that says so, and then no more.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self, come: accept::Incoming::default() }
    }

    /// The address it listens at.
    ///
    /// # Errors
    /// What the system says, as for all that follow.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.std().local_addr()
    }

    /// Hops that a packet may take (`IP_TTL`).
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.std().set_ttl(ttl)
    }

    /// What [`set_ttl`](Self::set_ttl) set.
    pub fn ttl(&self) -> io::Result<u32> {
        self.std().ttl()
    }
}

/// Whether others may listen at the same address.
#[derive(PartialEq, Eq)]
enum Share {
    Alone,
    Port,
}

fn listen(addr: SocketAddr, share: Share) -> io::Result<TcpListener> {
    let socket = open(addr)?;
    socket.set_reuse_address(true)?;
    if share == Share::Port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener { descriptor: Descriptor::of_nonblocking(socket.into()) })
}

/// Takes a connection that is there; it is non-blocking.
fn take(listener: &std::net::TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let mut addr = SockAddrStorage::zeroed();
    let mut length = addr.size_of();
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the kernel writes at most `length` bytes, which are there.
    let fd = count(unsafe { libc::accept4(listener.as_raw_fd(), (&raw mut addr).cast(), &raw mut length, flags) } as isize)?;
    // SAFETY: a new descriptor, which nobody else owns.
    let stream = std::net::TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) });
    // SAFETY: the kernel has written an address of that length.
    let addr = unsafe { SockAddr::new(addr, length) }.as_socket();
    let addr = addr.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the peer has no internet address"))?;
    Ok((TcpStream { descriptor: Descriptor::of_nonblocking(stream) }, addr))
}

/// The connections of a listener; see [`TcpListener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
    come: accept::Incoming,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<Self::Item> {
        self.come.next(|| self.listener.accept().map(|(stream, _)| stream))
    }
}

impl std::iter::FusedIterator for Incoming<'_> {}
