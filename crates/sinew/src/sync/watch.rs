//! Who looks after a lock whose woken one does not come.
//!
//! One that was told to try may be a fiber of a worker that computes, or is blocked. The lock is free then, unlocks wake nobody else, and if nobody locks any more, no event would ever tell those who wait. So while one is expected,
//! a waiter of another place has an alarm, and looks. A place is a worker, or a plain thread: what can be held as a whole; a waiter of the same place as the woken one could not help.
//!
//! Two places at most are watched from at a time, however many wait: so a thousand waiters are no herd, and of two different places one is not that of the woken one. Who queues while one is expected takes a vacant one by itself,
//! which costs an entry in its worker's timers; only if an unlock finds none that would do (all queued before, or have been served) it calls one that waits, at the price of a wake. While the lock is rightly taken nobody has
//! an alarm: fibers in a deadlock, or at ten thousand locks, arm nothing.
//!
//! Rejected: an alarm for each that waits (a herd; and the deadlock watch, which asks whether any timer is armed, would never bark); a call at each unlock (a wake of another worker per turn); a look by the unlocker's worker (the
//! lock may be freed by then; who waits keeps it alive).
//!
//! # Invariants (under the lock of the queue)
//! I1. A place stands in `from` for one waiter, whose note says so: in the queue with an alarm, or called and on its way, or cut short and about to look. It leaves in the step in which that one is told to try, is given the lock, or leaves the queue for good.
//! I2. `sole`, if it is set, is the place of all who wait. It is not set where that is unknown; it is wrong only if the first `NEAR_LOOKS` in the queue were of one place, and others behind them, and that for
//!     `BELIEVED` calls at most.

use super::turns::NEAR_LOOKS;
use crate::fiber::waiters::Waiters;
use crate::fiber::{Claimed, Control};

/// Where one waits: a worker or a plain thread, by a part of an address. That two have the same is possible, and costs the alarm of one of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u32);

/// Bits of an address that are always clear.
const ALIGNED_LOG2: u32 = 4;

impl Place {
    /// None; or several.
    pub(super) const NO: Place = Place(0);

    /// That of a fiber is its worker; a thread has no home, and is one by itself.
    pub(super) fn of(control: &Control) -> Place {
        let home = control.home();
        Place::at(if home.is_null() { std::ptr::from_ref(control).cast() } else { home })
    }

    /// That of the worker at `home`.
    pub(super) fn at(home: *const ()) -> Place {
        Place((home.addr() >> ALIGNED_LOG2) as u32)
    }
}

/// The places from which a lock is watched.
pub(super) struct Watch {
    from: [Place; 2],
    sole: Place,
    /// For how many calls `sole` counts yet, if it was found by a look at the first in the queue; 0 if it is sure.
    believed: u32,
}

/// So many calls go by before the first in the queue are looked at once more: those who were before one of another place may be gone by then.
const BELIEVED: u32 = 16;

impl Watch {
    pub(super) const fn new() -> Self {
        Self { from: [Place::NO; 2], sole: Place::NO, believed: 0 }
    }

    /// One of `place` queues, beside others unless `alone`.
    pub(super) fn note_queued(&mut self, place: Place, alone: bool) {
        if alone {
            (self.sole, self.believed) = (place, 0);
        } else if self.sole != place {
            (self.sole, self.believed) = (Place::NO, 0);
        }
    }

    /// Takes a vacant place for one that can look; `false` if there is none, or another of its place looks.
    pub(super) fn take(&mut self, place: Place) -> bool {
        if self.from.contains(&place) {
            return false;
        }
        let vacant = self.from.iter_mut().find(|from| **from == Place::NO);
        vacant.map(|from| *from = place).is_some()
    }

    /// The one of `place` does not look any more.
    pub(super) fn leave(&mut self, place: Place) {
        if let Some(from) = self.from.iter_mut().find(|from| **from == place) {
            *from = Place::NO;
        }
    }

    /// Whether one more is to look, while one of the place `woken` is expected; several of different places, if that is `NO`.
    pub(super) fn wants(&self, woken: Place) -> bool {
        let others = self.from.iter().filter(|&&from| from != Place::NO && from != woken).count();
        let wanted = if woken == Place::NO { self.from.len() } else { 1 };
        let known = self.sole != Place::NO && (self.sole == woken || self.from.contains(&self.sole));
        others < wanted && !known
    }

    /// Ends the wait of one that is to look, if that is wanted and one of another place is among the first in `queues`, once `tell` has told it so. It has a place here then. The caller makes it ready, when it has let go of the lock.
    pub(super) fn call<N, const QUEUES: usize>(
        &mut self,
        woken: Place,
        queues: [&mut Waiters<N>; QUEUES],
        mut tell: impl FnMut(&N),
    ) -> Option<Claimed> {
        if self.believed > 0 {
            self.believed -= 1;
            if self.believed == 0 {
                self.sole = Place::NO;
            }
        }
        if !self.wants(woken) || queues.iter().all(|queue| queue.is_empty()) {
            return None;
        }
        let from = self.from;
        let is_other = |control: &Control| Place::of(control) != woken && !from.contains(&Place::of(control));
        let claimed = queues.into_iter().find_map(|queue| queue.claim_among(NEAR_LOOKS, is_other, &mut tell));
        match &claimed {
            // SAFETY: blocks are never unmapped, and a home is an atomic.
            Some(claimed) => drop(self.take(Place::of(unsafe { &*claimed.control }))),
            // All are of the place of the woken one, or, if those are several, of the one that is watched from.
            None => {
                self.believed = BELIEVED;
                self.sole =
                    if woken == Place::NO { self.from.into_iter().find(|from| *from != Place::NO).unwrap_or(Place::NO) } else { woken }
            }
        }
        claimed
    }
}
