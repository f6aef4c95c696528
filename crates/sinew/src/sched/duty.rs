//! Who of a group is on duty, who is held, who sits out; and who watches for workers that are held.
//!
//! Where started fibers may move, a worker that one of them holds, by computing or by blocking the thread, need not hold the others: a *spare* stands in for it. So a group is to have as many workers on duty as
//! it has been given, or as are held, whatever holds the rest (`Group::wanted`). Who is too many when a held one comes back sits out: it sleeps, and is none of the idle ones, whom new work wakes.
//! Of those that sit out one is the *sentry* (`worker/bench.rs`): while nobody is idle it looks, a thousand times a second, who has neither switched nor ended a fiber since its last look, and stands in itself if too few are left; another
//! is the sentry then. While somebody is idle it dozes; who leaves the idle ones, and leaves none there, rouses it.
//!
//! Rejected: as many workers more from the start (hogs fill these too, and all others are then woken in vain); a thread that only watches, and wakes a spare (one wake more in each case, and a second kind of thread); to have the one
//! that is held say so itself by a signal of the kernel (a timer that is set and unset at every switch).
//!
//! # Invariants
//! I1. Who is on duty is not counted, but told by who is not: those in `held` and in `bench`, of all that there are. So nobody counts twice, and one that is noted as held just as it comes back, or sits out, is put right when
//!     it is next in its loop; until then one more may stand in.
//! I2. Of several workers that see one too many on duty one sits out: the bench is changed in one step, by who has seen all that are on it.
//! I3. With somebody on the bench there is a sentry, or one who is about to be: who lies down there without being it looks whether anybody is, and who leaves the post wakes another.
//!
//! # Memory order
//! - The sentry dozes: says so, `fence(SeqCst)`, looks whether anybody is idle. A worker leaves the idle ones, `fence(SeqCst)`, looks whether the sentry dozes: one of them sees the other.
//! - The sentry leaves its post: says so, `fence(SeqCst)`, looks at the bench. Another comes to the bench, `fence(SeqCst)`, looks at the post: the same.
//! - The sentry leaves its post, and another the bench, whom it would have told: each says so, `fence(SeqCst)`, and looks at what the other has said (`heir`): the one, or both, tell a third.
//! - Another lies down on the bench (`Slot::lie_down`, with its fence), and looks at the post; who has left that wakes it (`Slot::notify`, with its fence): the same.

use crate::base::atomic::{AtomicU32, Relaxed, SeqCst, fence};
use crate::base::mask::{Mask, Set};

const NOBODY: u32 = 0;
const LOOKS: u32 = 1;
/// From here on: the worker so far above it is the sentry, and dozes.
const DOZES: u32 = 2;

/// What one finds who calls the sentry.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Call {
    /// It looks anyway, or need not.
    Looks,
    /// The caller wakes this one.
    Wake(usize),
    /// There is none.
    Nobody,
}

/// The duties of a group's workers.
pub(crate) struct Duty {
    held: Mask,
    bench: Mask,
    sentry: AtomicU32,
}

impl Duty {
    pub(crate) fn new() -> Self {
        Self { held: Mask::new(), bench: Mask::new(), sentry: AtomicU32::new(NOBODY) }
    }

    /// Workers that are held, as the sentry last saw them.
    pub(crate) fn held(&self) -> Set {
        self.held.get()
    }

    pub(crate) fn bench(&self) -> Set {
        self.bench.get()
    }

    /// How many of so many workers are on duty.
    pub(crate) fn on(&self, there: usize) -> usize {
        there.saturating_sub(self.bench().or(self.held()).len())
    }

    /// A worker that was on duty is held. By the sentry.
    pub(crate) fn note_held(&self, worker: usize) {
        self.held.insert(worker);
    }

    /// A worker is in its loop; if it was held, it no longer is. By itself.
    #[inline]
    pub(crate) fn come_back(&self, worker: usize) {
        if self.held.get().contains(worker) {
            let _ = self.held.remove(worker);
        }
    }

    /// Has a worker that is on duty sit out, if more than are `wanted` are, of those that are `there`. It then tries to be the sentry.
    #[must_use]
    pub(crate) fn sit_out(&self, worker: usize, there: usize, wanted: usize) -> bool {
        let is_surplus = |bench: Set| there.saturating_sub(bench.or(self.held()).len()) > wanted;
        let sits = self.bench.insert_if(worker, is_surplus);
        if sits {
            // SeqCst: meets the fence in `leave_post`.
            fence(SeqCst);
        }
        sits
    }

    /// A worker sits out that was not on duty: a new spare.
    pub(crate) fn come_to_bench(&self, worker: usize) {
        self.bench.insert(worker);
        // SeqCst: meets the fence in `leave_post`.
        fence(SeqCst);
    }

    /// A worker that sat out is on duty.
    pub(crate) fn stand_in(&self, worker: usize) {
        let _ = self.bench.remove(worker);
    }

    /// Makes a worker on the bench the sentry, if there is none.
    #[must_use]
    pub(crate) fn take_post(&self) -> bool {
        self.is_vacant() && self.sentry.compare_exchange(NOBODY, LOOKS, Relaxed, Relaxed).is_ok()
    }

    /// Whether nobody is the sentry.
    pub(crate) fn is_vacant(&self) -> bool {
        self.sentry.load(Relaxed) == NOBODY
    }

    /// The sentry stops to be that; it has left the bench. Gives another one there, whom it wakes: that takes the post.
    pub(crate) fn leave_post(&self) -> Option<usize> {
        self.sentry.store(NOBODY, Relaxed);
        self.heir()
    }

    /// One that is to take the post, if it is vacant and somebody is there who can: the caller, who has left the bench and was not the sentry, wakes it. It may have been told itself, as it left.
    pub(crate) fn heir(&self) -> Option<usize> {
        // SeqCst: meets the fence in `come_to_bench` and `sit_out`, and itself.
        fence(SeqCst);
        if self.is_vacant() { self.bench.get().iter().next() } else { None }
    }

    /// The sentry looks no more until it is called. It then looks whether somebody is idle: else nobody would.
    pub(crate) fn doze(&self, worker: usize) {
        self.sentry.store(DOZES + worker as u32, Relaxed);
        // SeqCst: meets the fence in `call`.
        fence(SeqCst);
    }

    /// The sentry looks again.
    pub(crate) fn rouse(&self) {
        self.sentry.store(LOOKS, Relaxed);
    }

    /// Has the sentry look from now on. By a worker that has left the idle ones; it then looks whether any are left, and calls only if none is.
    pub(crate) fn call(&self, is_anybody_idle: impl FnOnce() -> bool) -> Call {
        // SeqCst: meets the fence in `doze`.
        fence(SeqCst);
        let now = self.sentry.load(Relaxed);
        if now == LOOKS || is_anybody_idle() {
            return Call::Looks;
        }
        match now.checked_sub(DOZES) {
            None => Call::Nobody,
            Some(worker) if self.sentry.compare_exchange(now, LOOKS, Relaxed, Relaxed).is_ok() => Call::Wake(worker as usize),
            Some(_) => Call::Looks,
        }
    }
}
