//! Who owns a control block, and whose it is.
//!
//! Blocks are used again and again and never unmapped, so one who owns nothing of a block may still look at it, and pin it: take a reference if there is any. Whether the fiber is
//! still the one he knew, the version tells.
//!
//! # Invariants
//! I1. The version changes while the count is zero, and only then; so it stays while somebody holds a reference.
//! I2. Whoever takes the count to zero gives the block back, once.
//!
//! # Memory order
//! `release` is AcqRel and meets itself: the last owner has seen all that the others did. `occupy` (Release) to `pin` (Acquire): carries the new version, so that one who
//! pins another fiber than he knew sees that it is another.

use crate::base::atomic::{AcqRel, Acquire, AtomicU32, Relaxed, Release};

/// Reference count and version of a block.
pub(crate) struct References {
    count: AtomicU32,
    version: AtomicU32,
}

impl References {
    pub(crate) fn new() -> Self {
        Self { count: AtomicU32::new(0), version: AtomicU32::new(0) }
    }

    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Relaxed)
    }

    /// The block has `owners` now. By the one who has it from the pool, when all else in it is written.
    #[inline]
    pub(crate) fn occupy(&self, owners: u32) {
        // Release: meets the Acquire in `pin`.
        self.count.store(owners, Release);
    }

    /// The next fiber here is another. By the one whose `release` was the last.
    pub(crate) fn vacate(&self) {
        self.version.store(self.version().wrapping_add(1), Relaxed);
    }

    /// Owners, as a look sees them.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// One owner more, by an owner; how many there were.
    #[inline]
    pub(crate) fn retain(&self) -> u32 {
        self.count.fetch_add(1, Relaxed)
    }

    /// One owner less; `true` if that was the last, and the caller gives the block back.
    #[inline]
    #[must_use]
    pub(crate) fn release(&self) -> bool {
        // AcqRel: meets itself.
        self.count.fetch_sub(1, AcqRel) == 1
    }

    /// One owner more, by one who owns nothing; `false` if there is none at all.
    #[must_use]
    pub(crate) fn pin(&self) -> bool {
        let mut count = self.count.load(Relaxed);
        while count != 0 {
            // Acquire: meets the Release in `occupy`.
            match self.count.compare_exchange_weak(count, count + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => count = now,
            }
        }
        false
    }
}
