//! A descriptor that another thread makes readable: what wakes a worker that sleeps in the kernel's queue of events instead of on its futex.
//!
//! Nobody reads it. Whoever watches it is told of each ring (edge-triggered), and its count would overflow after 2^64 of them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An eventfd. It is never closed while a late ring may be under way: else that would be written to whatever has its number next.
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

    /// Wakes who watches it.
    pub(crate) fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes are read from `one`. It cannot fail but by overflow.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
