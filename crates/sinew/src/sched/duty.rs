//! Who of a group is on duty, who is held, who sits out; and who watches for workers that are held.
//!
//! Where started fibers may move, a worker that one of them holds, by computing or by blocking the thread, need not hold the others: a *spare* stands in for it. So a group is to have as many workers on duty as
//! it has been given, or as are held, whatever holds the rest (`Group::wanted`). Who is too many when a held one comes back sits out: it sleeps, and is none of the idle ones, whom new work wakes.
//! Of those that sit out one is the *sentry* (`worker/bench.rs`): while nobody is idle it looks, a thousand times a second, who has not switched since its last look, and stands in itself if too few are left; another
//! is the sentry then. While somebody is idle it dozes; who leaves the idle ones, and leaves none there, rouses it.
//!
//! Rejected: as many workers more from the start (hogs fill these too, and all others are then woken in vain); a thread that only watches, and wakes a spare (one wake more in each case, and a second kind of thread); to have the one
//! that is held say so itself by a signal of the kernel (a timer that is set and unset at every switch).
//!
//! # Invariants
//! I1. `on` is as many as there are workers, without those in `held` and in `bench`; less by one for a moment, never more: it is counted down before, and up after.
//! I2. A worker sits out only if more than are wanted are on duty, and of several that see one too many one does.
//! I3. With somebody on the bench there is a sentry, or one on its way to be: who comes to the bench tries to be it, and who leaves the post wakes another (`successor`).
//!
//! # Memory order
//! - The sentry dozes: says so, `fence(SeqCst)`, looks whether anybody is idle. A worker leaves the idle ones, `fence(SeqCst)`, looks whether the sentry dozes: one of them sees the other.
//! - The sentry leaves its post: says so, `fence(SeqCst)`, looks at the bench. Another comes to the bench, `fence(SeqCst)`, looks at the post: the same.

use crate::base::atomic::{AtomicU32, AtomicUsize, Relaxed, SeqCst, fence};
use crate::base::mask::{Mask, Set};

const NOBODY: u32 = 0;
const LOOKS: u32 = 1;
/// From here on: the worker so far above it is the sentry, and dozes.
const DOZES: u32 = 2;

/// What one finds who calls the sentry.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Call {
    /// It looks anyway.
    Looks,
    /// The caller wakes this one.
    Wake(usize),
    /// There is none.
    Nobody,
}

/// The duties of a group's workers.
pub(crate) struct Duty {
    on: AtomicUsize,
    held: Mask,
    bench: Mask,
    sentry: AtomicU32,
}

impl Duty {
    pub(crate) fn new() -> Self {
        Self { on: AtomicUsize::new(0), held: Mask::new(), bench: Mask::new(), sentry: AtomicU32::new(NOBODY) }
    }

    /// So many more workers are there, and on duty.
    pub(crate) fn join(&self, workers: usize) {
        self.on.fetch_add(workers, Relaxed);
    }

    /// Workers that are held, as the sentry last saw them.
    pub(crate) fn held(&self) -> Set {
        self.held.get()
    }

    pub(crate) fn bench(&self) -> Set {
        self.bench.get()
    }

    /// Whether more than are `wanted` are on duty.
    #[inline]
    pub(crate) fn has_surplus(&self, wanted: usize) -> bool {
        self.on.load(Relaxed) > wanted
    }

    /// Whether fewer than are `wanted` are on duty.
    pub(crate) fn is_short(&self, wanted: usize) -> bool {
        self.on.load(Relaxed) < wanted
    }

    /// A worker that was on duty is held. By the sentry.
    pub(crate) fn note_held(&self, worker: usize) {
        self.on.fetch_sub(1, Relaxed);
        self.held.insert(worker);
    }

    /// A worker is in its loop; if it was held, it no longer is. By itself.
    #[inline]
    pub(crate) fn come_back(&self, worker: usize) {
        if self.held.get().contains(worker) && self.held.remove(worker) {
            self.on.fetch_add(1, Relaxed);
        }
    }

    /// Has a worker that is on duty sit out, if more than are `wanted` are. It then tries to be the sentry.
    #[must_use]
    pub(crate) fn sit_out(&self, worker: usize, wanted: usize) -> bool {
        let one_less = |on: usize| (on > wanted).then(|| on - 1);
        let sits = self.on.fetch_update(Relaxed, Relaxed, one_less).is_ok();
        if sits {
            self.come_to_bench(worker);
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
        self.on.fetch_add(1, Relaxed);
    }

    /// Makes a worker on the bench the sentry, if there is none.
    #[must_use]
    pub(crate) fn take_post(&self) -> bool {
        self.sentry.load(Relaxed) == NOBODY && self.sentry.compare_exchange(NOBODY, LOOKS, Relaxed, Relaxed).is_ok()
    }

    /// The sentry stops to be that; it is still on the bench, or has left it. Gives another one there, whom it wakes: that takes the post.
    pub(crate) fn leave_post(&self, worker: usize) -> Option<usize> {
        self.sentry.store(NOBODY, Relaxed);
        // SeqCst: meets the fence in `come_to_bench`.
        fence(SeqCst);
        self.bench.get().without(worker).iter().next()
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
