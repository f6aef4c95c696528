//! What a handler of signals can do: set a bit, and ring.
//!
//! # Invariants
//! I1. A bit is set before the bell rings for it, and a bell is hushed before bits are looked at: so a bit that a look has missed has a ring that is yet to be heard.
//! I2. Who takes one bit and leaves others rings for them: another may have hushed the bell for all.
//!
//! A forked child shares the bell but not the bits: what rings for nothing is waited for again.

use std::io;

use crate::base::atomic::{AcqRel, AtomicU64, Relaxed};
use crate::os::bell::Bell;

/// Signals that have come, and a bell that rings when some do.
#[derive(Debug)]
pub(super) struct Come {
    /// Bit n: the signal of number n + 1.
    signals: AtomicU64,
    pub(super) bell: Bell,
}

impl Come {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { signals: AtomicU64::new(0), bell: Bell::new()? })
    }

    /// Notes a signal and rings. Fit for a handler.
    pub(super) fn note(&self, number: i32) {
        // AcqRel: meets `take`, of which it must not be taken to be later than the ring (I1).
        self.signals.fetch_or(1 << (number - 1), AcqRel);
        self.bell.ring();
    }

    /// Takes the lowest signal that has come.
    pub(super) fn take(&self) -> Option<i32> {
        let mut come = self.signals.load(Relaxed);
        while come != 0 {
            let rest = come & (come - 1);
            // AcqRel: meets `note`.
            match self.signals.compare_exchange_weak(come, rest, AcqRel, Relaxed) {
                Err(now) => come = now,
                Ok(_) => {
                    if rest != 0 {
                        self.bell.ring();
                    }
                    return Some(come.trailing_zeros() as i32 + 1);
                }
            }
        }
        None
    }
}
