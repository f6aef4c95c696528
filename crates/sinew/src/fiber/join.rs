//! The word between a fiber that ends and the one handle that may ask for its outcome.
//!
//! # Picture
//! ```text
//!            watch                 finish
//!   OPEN <---------> WATCHED ---------------> DONE      the finisher wakes the watcher
//!    |     unwatch                              ^
//!    |---------------- finish ------------------+       the outcome waits for the handle
//!    |
//!    +--- detach ---> DETACHED ----- finish ---> DONE   the finisher drops the outcome
//! ```
//!
//! # Invariants
//! I1. The watcher field belongs to the handle in OPEN, to the finisher from the moment it took WATCHED away.
//! I2. The outcome belongs to the fiber before DONE; after it, to the handle, or to the fiber itself if it was DETACHED.
//!
//! # Memory order
//! `finish` (Release) to `watch`, `detach`, `is_done` (Acquire): carries the outcome. `watch` (Release) to `finish` (Acquire): carries the watcher.

use crate::base::atomic::{AcqRel, Acquire, AtomicU32, Relaxed, Release};

const OPEN: u32 = 0;
const WATCHED: u32 = 1;
const DONE: u32 = 2;
const DETACHED: u32 = 3;

/// What a fiber that has ended does next.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Finish {
    /// Nothing: the handle will come for the outcome, or drop it.
    Kept,
    /// Wake the watcher; its field is the finisher's now.
    WakeWatcher,
    /// Drop the outcome: nobody will ask.
    DropOutcome,
}

/// What a dropped handle does next.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Detach {
    /// Nothing: the fiber will drop its outcome.
    Left,
    /// Drop the outcome: the fiber is done with it.
    DropOutcome,
}

/// The join word.
pub(crate) struct Join(AtomicU32);

impl Join {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(OPEN))
    }

    /// Publishes the watcher; `false` if the fiber is done already. By the handle.
    #[must_use]
    pub(crate) fn watch(&self) -> bool {
        // Release: meets the Acquire in `finish`; carries the watcher. Acquire on failure: meets its Release; carries the outcome.
        self.0.compare_exchange(OPEN, WATCHED, Release, Acquire).is_ok()
    }

    /// Takes the watcher back; `false` if the fiber is done already and has it. By the handle.
    #[must_use]
    pub(crate) fn unwatch(&self) -> bool {
        // Acquire on failure: meets the Release in `finish`; carries the outcome.
        self.0.compare_exchange(WATCHED, OPEN, Relaxed, Acquire).is_ok()
    }

    /// Whether the outcome is there.
    pub(crate) fn is_done(&self) -> bool {
        // Acquire: meets the Release in `finish`; carries the outcome.
        self.0.load(Acquire) == DONE
    }

    /// Whether nobody will ask for the outcome; it need not be stored then.
    pub(crate) fn is_detached(&self) -> bool {
        self.0.load(Relaxed) == DETACHED
    }

    /// Gives up the claim to the outcome. By the handle, with no watcher set.
    pub(crate) fn detach(&self) -> Detach {
        // Acquire on failure: meets the Release in `finish`; carries the outcome.
        match self.0.compare_exchange(OPEN, DETACHED, Relaxed, Acquire) {
            Ok(_) => Detach::Left,
            Err(now) => {
                debug_assert_eq!(now, DONE, "detached while watched");
                Detach::DropOutcome
            }
        }
    }

    /// Says that the outcome is stored. By the fiber.
    pub(crate) fn finish(&self) -> Finish {
        // AcqRel: Release carries the outcome to the handle; Acquire meets the Release in `watch` and brings the watcher.
        match self.0.swap(DONE, AcqRel) {
            OPEN => Finish::Kept,
            WATCHED => Finish::WakeWatcher,
            _ => Finish::DropOutcome,
        }
    }

    /// Forgets everything, for the next fiber in this place.
    pub(crate) fn reset(&self) {
        self.0.store(OPEN, Relaxed);
    }
}
