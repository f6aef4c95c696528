//! Sets of up to 64 workers, and the atomic one that several threads change.
//!
//! All bit arithmetic on workers is here, in 64 bits, and tested at the edges: flare's batch wake shifted a 32-bit one over 64 workers, was off by
//! one in one place of three, and lost workers by both.

use std::fmt;

use super::atomic::{AcqRel, AtomicU64, Relaxed, Release};

/// Most workers a set can hold.
pub(crate) const WORKERS_MAX: usize = 64;

/// A set of workers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Set(u64);

impl Set {
    pub(crate) const EMPTY: Set = Set(0);

    /// The set of one worker.
    pub(crate) fn of(worker: usize) -> Set {
        debug_assert!(worker < WORKERS_MAX, "worker {worker} in a set of {WORKERS_MAX}");
        Set(1 << worker)
    }

    /// Its workers as bits.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn contains(self, worker: usize) -> bool {
        self.0 & Set::of(worker).0 != 0
    }

    pub(crate) fn or(self, other: Set) -> Set {
        Set(self.0 | other.0)
    }

    pub(crate) fn with(self, worker: usize) -> Set {
        Set(self.0 | Set::of(worker).0)
    }

    pub(crate) fn without(self, worker: usize) -> Set {
        Set(self.0 & !Set::of(worker).0)
    }

    /// Its workers, lowest first.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(self.0), |left| Some(left & left.wrapping_sub(1)))
            .take_while(|&left| left != 0)
            .map(|left| left.trailing_zeros() as usize)
    }
}

/// `{0, 3}`.
impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A set that several threads change.
///
/// Removing a worker decides who did it: of several, one. That one has seen what the worker did before it was put in, and what is done before a removal the
/// worker sees when it finds itself gone: removals are AcqRel and meet each other and the insertion.
pub(crate) struct Mask(AtomicU64);

impl Mask {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Who is in it. A relaxed look.
    #[inline]
    pub(crate) fn get(&self) -> Set {
        Set(self.0.load(Relaxed))
    }

    /// Puts `worker` in.
    pub(crate) fn insert(&self, worker: usize) {
        // AcqRel: meets `remove`.
        self.0.fetch_or(Set::of(worker).0, AcqRel);
    }

    /// Puts `worker` in if fewer than `limit` are there.
    #[must_use]
    pub(crate) fn insert_below(&self, worker: usize, limit: usize) -> bool {
        self.insert_if(worker, |now| now.len() < limit)
    }

    /// Puts `worker` in if those who are there allow it: of several at a time each sees the others, or is seen by them.
    #[must_use]
    pub(crate) fn insert_if(&self, worker: usize, allow: impl Fn(Set) -> bool) -> bool {
        let mut now = self.get();
        while allow(now) {
            // AcqRel: meets `remove`.
            match self.0.compare_exchange_weak(now.0, now.with(worker).0, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(other) => now = Set(other),
            }
        }
        false
    }

    /// Takes everybody out.
    pub(crate) fn clear(&self) {
        // Release: as a removal of each.
        self.0.store(0, Release);
    }

    /// Takes `worker` out; `true` if it was there, and so this call is the one that did.
    #[must_use]
    pub(crate) fn remove(&self, worker: usize) -> bool {
        // AcqRel: meets `insert`, and the other side's `remove`.
        Set(self.0.fetch_and(!Set::of(worker).0, AcqRel)).contains(worker)
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
