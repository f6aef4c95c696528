//! UDP, as `std::net` has it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as Std};

use super::addr::{ToSocketAddrs, each};
use super::{calls, socket, timeouts};
use crate::rt::io::{Descriptor, Direction, Try, perform};

/// A UDP socket.
///
/// As [`std::net::UdpSocket`]; several fibers may send and receive at once.
///
/// # Suspends
/// Sending and receiving do, where std's would block. They are [cancel points](crate::cancelled).
///
/// # Examples
/// ```
/// use sinew::net::UdpSocket;
/// let (one, two) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
/// one.send_to(b"hello", two.local_addr()?)?;
/// let mut buf = [0; 16];
/// let (length, from) = two.recv_from(&mut buf)?;
/// assert_eq!((&buf[..length], from), (&b"hello"[..], one.local_addr()?));
/// # std::io::Result::Ok(())
/// ```
pub struct UdpSocket {
    descriptor: Descriptor<Std>,
}

socket!(UdpSocket, std::net::UdpSocket);
timeouts!(UdpSocket);

impl UdpSocket {
    /// A socket at the first of the addresses that can be had.
    ///
    /// # Errors
    /// The last address's.
    pub fn bind<A: ToSocketAddrs>(addrs: A) -> io::Result<Self> {
        each(addrs, |addr| Ok(Self::of(Descriptor::new(Std::bind(addr)?)?)))
    }

    /// Makes `addrs`, the first that can be had, the one address to send to and receive from.
    ///
    /// # Errors
    /// The last address's.
    pub fn connect<A: ToSocketAddrs>(&self, addrs: A) -> io::Result<()> {
        each(addrs, |addr| self.std().connect(addr))
    }

    /// Receives one datagram, and its sender. What does not fit into `buf` is lost.
    ///
    /// # Errors
    /// What the system says; and as every cancel point. So for all that wait.
    #[track_caller]
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_from(buf, 0)
    }

    /// As [`recv_from`](Self::recv_from), and leaves it for the next to receive.
    #[track_caller]
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_from(buf, libc::MSG_PEEK)
    }

    #[track_caller]
    fn receive_from(&self, buf: &mut [u8], flags: libc::c_int) -> io::Result<(usize, SocketAddr)> {
        calls::receive_from(&self.descriptor, buf, flags, |from| from.as_socket().map_or_else(from_nobody, Ok), from_nobody)
    }

    /// Receives one datagram from the [connected](Self::connect) address.
    #[track_caller]
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        calls::receive_datagram(&self.descriptor, buf, 0)
    }

    /// As [`recv`](Self::recv), and leaves it for the next to receive.
    #[track_caller]
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        calls::receive_datagram(&self.descriptor, buf, libc::MSG_PEEK)
    }

    /// Sends one datagram to the first of the addresses.
    #[track_caller]
    pub fn send_to<A: ToSocketAddrs>(&self, buf: &[u8], addrs: A) -> io::Result<usize> {
        let Some(addr) = addrs.to_socket_addrs()?.next() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no addresses to send data to"));
        };
        let addr = addr.into();
        perform(&self.descriptor, Try(Direction::Write, |socket: &Std| calls::try_send_to(socket, buf, &addr)))
    }

    /// Sends one datagram to the [connected](Self::connect) address.
    #[track_caller]
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        perform(&self.descriptor, Try(Direction::Write, |socket: &Std| calls::try_send(socket, buf)))
    }
}

/// What std makes of the end, of which there is no sender: an error.
fn from_nobody<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket's receiving side is shut down"))
}

/// What std's socket does without waiting.
macro_rules! as_std {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $output:ty;)*) => {
        impl UdpSocket {
            $($(#[$doc])* pub fn $name(&self, $($arg: $type),*) -> io::Result<$output> {
                self.std().$name($($arg),*)
            })*
        }
    };
}

as_std! {
    /// The address of the other side, if it is [connected](Self::connect).
    peer_addr() -> SocketAddr;
    /// The address of this side.
    local_addr() -> SocketAddr;
    /// Whether it may send to broadcast addresses.
    set_broadcast(broadcast: bool) -> ();
    /// What [`set_broadcast`](Self::set_broadcast) set.
    broadcast() -> bool;
    /// Whether multicast packets come back to this machine.
    set_multicast_loop_v4(on: bool) -> ();
    /// What [`set_multicast_loop_v4`](Self::set_multicast_loop_v4) set.
    multicast_loop_v4() -> bool;
    /// Hops that a multicast packet may take.
    set_multicast_ttl_v4(ttl: u32) -> ();
    /// What [`set_multicast_ttl_v4`](Self::set_multicast_ttl_v4) set.
    multicast_ttl_v4() -> u32;
    /// Whether multicast packets come back to this machine.
    set_multicast_loop_v6(on: bool) -> ();
    /// What [`set_multicast_loop_v6`](Self::set_multicast_loop_v6) set.
    multicast_loop_v6() -> bool;
    /// Hops that a packet may take (`IP_TTL`).
    set_ttl(ttl: u32) -> ();
    /// What [`set_ttl`](Self::set_ttl) set.
    ttl() -> u32;
    /// Joins a multicast group.
    join_multicast_v4(group: &Ipv4Addr, interface: &Ipv4Addr) -> ();
    /// Joins a multicast group.
    join_multicast_v6(group: &Ipv6Addr, interface: u32) -> ();
    /// Leaves a multicast group.
    leave_multicast_v4(group: &Ipv4Addr, interface: &Ipv4Addr) -> ();
    /// Leaves a multicast group.
    leave_multicast_v6(group: &Ipv6Addr, interface: u32) -> ();
}
