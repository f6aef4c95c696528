//! What a handler of signals can do: set a bit, and ring.
//!
//! # Invariants
//! I1. A bit is set before the bell rings for it, and a bell is hushed before bits are looked at: so a bit that a look has missed has a ring that is yet to be heard.
//! I2. Who takes one bit and leaves others rings for them: another may have hushed the bell for all.
//!
//! A forked child shares the bell but not the bits: what rings for nothing is waited for again.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::base::atomic::{AcqRel, AtomicU64, Relaxed};

/// Signals that have come, and a descriptor that is readable when some have.
#[derive(Debug)]
pub(super) struct Bell {
    /// Bit n: the signal of number n + 1.
    come: AtomicU64,
    descriptor: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: two numbers go in.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was opened just now, and is nobody's yet.
        Ok(Self { come: AtomicU64::new(0), descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }

    /// Notes a signal and rings. Fit for a handler.
    pub(super) fn ring_for(&self, number: i32) {
        // AcqRel: meets `take`, of which it must not be taken to be later than the ring (I1).
        self.come.fetch_or(1 << (number - 1), AcqRel);
        self.ring();
    }

    fn ring(&self) {
        // SAFETY: eight bytes go out. It fails only if the bell has rung 2^64 - 2 times unheard.
        unsafe { libc::write(self.descriptor.as_raw_fd(), std::ptr::from_ref(&1u64).cast(), size_of::<u64>()) };
    }

    /// Takes back all rings so far.
    pub(super) fn hush(&self) {
        let mut rings = 0u64;
        // SAFETY: eight bytes come in. It fails if another was quicker.
        unsafe { libc::read(self.descriptor.as_raw_fd(), std::ptr::from_mut(&mut rings).cast(), size_of::<u64>()) };
    }

    /// Takes the lowest signal that has come.
    pub(super) fn take(&self) -> Option<i32> {
        let mut come = self.come.load(Relaxed);
        while come != 0 {
            let rest = come & (come - 1);
            // AcqRel: meets `ring_for`.
            match self.come.compare_exchange_weak(come, rest, AcqRel, Relaxed) {
                Err(now) => come = now,
                Ok(_) => {
                    if rest != 0 {
                        self.ring();
                    }
                    return Some(come.trailing_zeros() as i32 + 1);
                }
            }
        }
        None
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
