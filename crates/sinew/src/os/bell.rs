//! A descriptor that another thread makes readable: what wakes a worker that sleeps in the kernel's queue of events instead of on its futex.
//!
//! Also what a handler of signals rings. A worker does not read its bell: it is told of each ring (edge-triggered), and the count would overflow after 2^64 of them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// An eventfd. It is never closed while a late ring may be under way: else that would be written to whatever has its number next.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory of ours is involved.
        match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: a new descriptor, which nobody else owns.
            fd => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    /// Wakes who watches it. Fit for a handler of signals.
    pub(crate) fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes are read from `one`. It cannot fail but by overflow.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    /// Takes back all rings so far.
    pub(crate) fn hush(&self) {
        let mut rings = 0u64;
        // SAFETY: eight bytes are written to `rings`. It fails if there were none, or another was quicker.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut rings).cast(), size_of::<u64>()) };
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
