//! Addresses from names, off the workers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs as Std};

use crate::rt::ask::ask;
use crate::rt::cancel::{Cancelled, Elapsed};

/// What names one address or several: as std's trait of this name, for the same types.
///
/// Our own, since a name is looked up by a call that blocks (`getaddrinfo`): that is done on a thread of the [blocking pool](crate::blocking()), and not at all where the text is an address.
pub trait ToSocketAddrs {
    /// The addresses.
    ///
    /// # Suspends
    /// Yes, if a name has to be looked up. That is a [cancel point](crate::cancelled) at its entry; once begun it runs to its end.
    ///
    /// # Errors
    /// If the text is malformed, or the name is unknown, or there is no thread to look it up; and as every cancel point.
    fn to_socket_addrs(&self) -> io::Result<std::vec::IntoIter<SocketAddr>>;
}

fn known(addr: impl Into<SocketAddr>) -> io::Result<std::vec::IntoIter<SocketAddr>> {
    Ok(vec![addr.into()].into_iter())
}

fn look_up<A: Std + Sync + ?Sized>(names: &A) -> io::Result<std::vec::IntoIter<SocketAddr>> {
    let found: Vec<SocketAddr> = ask(|| names.to_socket_addrs().map(Iterator::collect))?;
    Ok(found.into_iter())
}

macro_rules! known {
    ($($addr:ty),*) => {
        $(impl ToSocketAddrs for $addr {
            fn to_socket_addrs(&self) -> io::Result<std::vec::IntoIter<SocketAddr>> {
                known(*self)
            }
        })*
    };
}

known!(SocketAddr, SocketAddrV4, SocketAddrV6, (IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

impl ToSocketAddrs for (&str, u16) {
    fn to_socket_addrs(&self) -> io::Result<std::vec::IntoIter<SocketAddr>> {
        match self.0.parse::<IpAddr>() {
            Ok(ip) => known((ip, self.1)),
            Err(_) => look_up(self),
        }
    }
}

impl ToSocketAddrs for (String, u16) {
    fn to_socket_addrs(&self) -> io::Result<std::vec::IntoIter<SocketAddr>> {
        ToSocketAddrs::to_socket_addrs(&(&*self.0, self.1))
    }
}

impl ToSocketAddrs for str {
    fn to_socket_addrs(&self) -> io::Result<std::vec::IntoIter<SocketAddr>> {
        match self.parse::<SocketAddr>() {
            Ok(addr) => known(addr),
            Err(_) => look_up(self),
        }
    }
}

impl ToSocketAddrs for String {
    fn to_socket_addrs(&self) -> io::Result<std::vec::IntoIter<SocketAddr>> {
        ToSocketAddrs::to_socket_addrs(&**self)
    }
}

impl ToSocketAddrs for [SocketAddr] {
    fn to_socket_addrs(&self) -> io::Result<std::vec::IntoIter<SocketAddr>> {
        Ok(Vec::from(self).into_iter())
    }
}

impl<T: ToSocketAddrs + ?Sized> ToSocketAddrs for &T {
    fn to_socket_addrs(&self) -> io::Result<std::vec::IntoIter<SocketAddr>> {
        (**self).to_socket_addrs()
    }
}

/// Tries `f` with one address after the other.
///
/// # Errors
/// The last one's, or that there is none; what cuts one short, at once.
pub(super) fn each<T>(addrs: impl ToSocketAddrs, mut f: impl FnMut(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    let mut last = None;
    for addr in addrs.to_socket_addrs()? {
        match f(addr) {
            Err(error) if !is_cut(&error) => last = Some(error),
            done => return done,
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "could not resolve to any addresses")))
}

/// Whether the caller was cancelled, or a deadline around it has passed.
fn is_cut(error: &io::Error) -> bool {
    Cancelled::is_in(error) || error.get_ref().is_some_and(|cause| cause.is::<Elapsed>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::wait::Cut;

    #[test]
    fn a_cut_is_not_hidden_by_the_next_address() {
        let addrs = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        for cut in [Cut::Cancelled, Cut::TimedOut] {
            let fail = |addr: SocketAddr| match addr.port() {
                1 => Err::<(), _>(cut.into()),
                _ => Err(io::Error::from_raw_os_error(libc::EMFILE)),
            };
            let (failed, cut) = (each(&addrs[..], fail).unwrap_err(), io::Error::from(cut));
            assert!(failed.kind() == cut.kind() && failed.to_string() == cut.to_string(), "{failed}");
        }
        let refused = each(&addrs[..], |addr| Err::<(), _>(io::Error::other(addr.to_string()))).unwrap_err();
        assert_eq!(refused.to_string(), "127.0.0.1:2");
    }
}
