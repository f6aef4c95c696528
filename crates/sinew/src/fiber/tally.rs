//! How many fibers of a scope still run, and who waits for the last of them.
//!
//! The count lives in the frame of `scope`, so a child must not touch it once the owner may have gone. The owner says in the same word
//! that it waits; then exactly one child, the last, wakes it, and the owner returns only when woken. A count with a separate wake-up would
//! let the last child wake an owner that had already left (std keeps its count in an `Arc` for this).
//!
//! # Memory order
//! `leave` is AcqRel and `begin_wait` AcqRel on one word: the last child to leave has acquired what all the others released, and hands it on
//! to the owner, by the word itself or by the wake.

use super::Control;
use crate::base::atomic::{AcqRel, AtomicUsize, Relaxed};

const OWNER_WAITS: usize = 1;
const ONE_CHILD: usize = 2;

/// Why a fiber has no value to give, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Panicked,
    /// It never ran: there was no stack for it.
    NoStack,
    /// It never ran: its runtime is being shut down.
    ShutDown,
}

impl Failure {
    const ALL: [Self; 3] = [Self::Panicked, Self::NoStack, Self::ShutDown];
}

/// The count of a scope.
pub(crate) struct Tally {
    word: AtomicUsize,
    /// Those of each sort that no `join` has taken.
    failures: [AtomicUsize; Failure::ALL.len()],
    owner: *const Control,
}

// SAFETY: the counts are atomics; the owner's block is only claimed, by the one child that `leave` tells to.
unsafe impl Send for Tally {}
// SAFETY: as above.
unsafe impl Sync for Tally {}

impl Tally {
    /// The tally of a scope whose owner is `owner`, a fiber or a thread.
    pub(crate) fn new(owner: *const Control) -> Self {
        Self { word: AtomicUsize::new(0), failures: Failure::ALL.map(|_| AtomicUsize::new(0)), owner }
    }

    pub(crate) fn owner(&self) -> *const Control {
        self.owner
    }

    /// One child more. By the owner or a child, so the count cannot be passing zero meanwhile.
    pub(crate) fn enter(&self) {
        let before = self.word.fetch_add(ONE_CHILD, Relaxed);
        assert!(before < usize::MAX / 2, "too many fibers in one scope");
    }

    /// One child less; `true` if the caller must wake the owner. The tally may be gone when this returns.
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        // AcqRel: see the head of the file.
        self.word.fetch_sub(ONE_CHILD, AcqRel) == ONE_CHILD | OWNER_WAITS
    }

    /// Announces that the owner waits; `false` if nobody is left to wake it.
    #[must_use]
    pub(crate) fn begin_wait(&self) -> bool {
        // AcqRel: Acquire meets the Release of every `leave`.
        self.word.fetch_or(OWNER_WAITS, AcqRel) >= ONE_CHILD
    }

    /// A child has no value to give.
    pub(crate) fn failed(&self, failure: Failure) {
        self.failures[failure as usize].fetch_add(1, Relaxed);
    }

    /// Somebody has been told of it.
    pub(crate) fn failure_taken(&self, failure: Failure) {
        self.failures[failure as usize].fetch_sub(1, Relaxed);
    }

    /// The gravest failure of a child that nobody was told of. Exact once all have left.
    pub(crate) fn failure(&self) -> Option<Failure> {
        Failure::ALL.into_iter().find(|&failure| self.failures[failure as usize].load(Relaxed) != 0)
    }
}
