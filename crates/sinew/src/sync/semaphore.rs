//! `Semaphore`: a number of permits, and a queue of those who want some.
//!
//! # Picture of the state
//! ```text
//!   bit 0   WAITED    somebody is queued: who comes goes behind him
//!   1..29   permits that nobody has
//! ```
//! # Invariants
//! I1. When nobody is inside, WAITED says whether the queue is empty; then the first in it wants more permits than there are, or is about to leave by its deadline.
//! I2. Permits are taken in order of arrival: by one who comes, only if nobody is queued; for one who is queued, by whoever gives some back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::monitor::{Monitor, Wait};
use crate::base::atomic::in_statics;
use crate::fiber::state::Cause;
use crate::fiber::waiters::Waiters;
use crate::fiber::why::At;
use crate::os::state_lock::{Inside, STATE_MAX};
use crate::os::{clock, fork};
use crate::rt::wait::{Me, Wakes, may_wait};

const WAITED: u32 = 1;
const PERMIT: u32 = 2;
const MAX_PERMITS: u32 = STATE_MAX / PERMIT;

/// A number of permits: who has one goes on, who wants one waits until somebody gives one back.
///
/// First come, first served: nobody overtakes one that waits, also not with a smaller wish. A permit that is given back is that one's at once: if its worker is held by another fiber, which computes or blocks the thread, those behind
/// it wait until it has gone on. It can be a `static`.
/// Once a permit was had it may be freed, even if the call that gave the permit has not returned yet.
///
/// # Suspends
/// `acquire`, `acquire_many` and their timed forms do, while there are too few permits, or others wait. They are no [cancel points](crate::cancelled).
///
/// # Examples
/// ```
/// static SLOTS: sinew::sync::Semaphore = sinew::sync::Semaphore::new(2);
/// sinew::scope(|s| {
///     for _ in 0..100 {
///         s.spawn(|| {
///             let _slot = SLOTS.acquire();
///             // At most two are here at once.
///         });
///     }
/// });
/// assert_eq!(SLOTS.available(), 2);
/// ```
pub struct Semaphore {
    /// A waiter's note is how many permits it wants.
    monitor: Monitor<u32>,
}

impl Semaphore {
    /// The most permits there can be: 2^29 - 1.
    pub const MAX_PERMITS: usize = MAX_PERMITS as usize;

    in_statics! {
        /// A semaphore with `permits`.
        ///
        /// # Panics
        /// If that is more than [`MAX_PERMITS`](Self::MAX_PERMITS).
        pub const fn new(permits: usize) -> Self {
            assert!(permits <= MAX_PERMITS as usize, "more than Semaphore::MAX_PERMITS");
            Self { monitor: Monitor::new(permits as u32 * PERMIT, Waiters::new()) }
        }
    }

    /// Permits that nobody has at this moment.
    pub fn available(&self) -> usize {
        (self.monitor.state() / PERMIT) as usize
    }

    /// Waits for a permit. Dropping that gives it back.
    ///
    /// # Suspends
    /// Yes, while there is none, or others wait. No cancel point.
    ///
    /// # Panics
    /// If it has to wait inside [`no_suspend`](crate::no_suspend).
    #[inline]
    #[track_caller]
    pub fn acquire(&self) -> SemaphorePermit<'_> {
        self.acquire_many(1)
    }

    /// Waits for so many permits, and takes them all at once.
    ///
    /// # Suspends
    /// As [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// As [`acquire`](Self::acquire); and if `permits` is more than [`MAX_PERMITS`](Self::MAX_PERMITS).
    #[inline]
    #[track_caller]
    pub fn acquire_many(&self, permits: usize) -> SemaphorePermit<'_> {
        let permits = checked(permits);
        if !self.try_take(permits) {
            self.take_slowly(permits, u64::MAX);
        }
        SemaphorePermit { semaphore: self, permits }
    }

    /// Takes a permit if there is one, and nobody waits.
    #[inline]
    pub fn try_acquire(&self) -> Option<SemaphorePermit<'_>> {
        self.try_acquire_many(1)
    }

    /// Takes so many permits if they are there, and nobody waits.
    ///
    /// # Panics
    /// If `permits` is more than [`MAX_PERMITS`](Self::MAX_PERMITS).
    #[inline]
    #[track_caller]
    pub fn try_acquire_many(&self, permits: usize) -> Option<SemaphorePermit<'_>> {
        let permits = checked(permits);
        (self.try_take(permits) || self.try_take_inside(permits)).then(|| SemaphorePermit { semaphore: self, permits })
    }

    /// As [`acquire`](Self::acquire), but gives up after `timeout`.
    ///
    /// # Suspends
    /// As [`acquire`](Self::acquire), no longer than `timeout`.
    #[track_caller]
    pub fn acquire_timeout(&self, timeout: Duration) -> Option<SemaphorePermit<'_>> {
        self.acquire_many_timeout(1, timeout)
    }

    /// As [`acquire_many`](Self::acquire_many), but gives up after `timeout`.
    ///
    /// # Suspends
    /// As [`acquire`](Self::acquire), no longer than `timeout`.
    ///
    /// # Panics
    /// As [`acquire_many`](Self::acquire_many).
    #[track_caller]
    pub fn acquire_many_timeout(&self, permits: usize, timeout: Duration) -> Option<SemaphorePermit<'_>> {
        let permits = checked(permits);
        let taken = self.try_take(permits) || self.take_slowly(permits, clock::deadline_ns(timeout));
        taken.then(|| SemaphorePermit { semaphore: self, permits })
    }

    /// As [`acquire`](Self::acquire), with a permit that keeps the semaphore, and so can go to a fiber that is spawned.
    ///
    /// # Suspends
    /// As [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// As [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// let slots = Arc::new(sinew::sync::Semaphore::new(2));
    /// for _ in 0..100 {
    ///     // Not before there is one: no more than two are there at once, waiting to begin or at work.
    ///     let slot = slots.acquire_arc();
    ///     sinew::spawn(move || drop(slot));
    /// }
    /// assert_eq!(slots.acquire_many(2).count(), 2);
    /// ```
    #[track_caller]
    pub fn acquire_arc(self: &Arc<Self>) -> ArcSemaphorePermit {
        self.acquire().into_arc(self)
    }

    /// As [`try_acquire`](Self::try_acquire), with a permit that keeps the semaphore.
    pub fn try_acquire_arc(self: &Arc<Self>) -> Option<ArcSemaphorePermit> {
        self.try_acquire().map(|permit| permit.into_arc(self))
    }

    /// As [`acquire_timeout`](Self::acquire_timeout), with a permit that keeps the semaphore.
    ///
    /// # Suspends
    /// As [`acquire_timeout`](Self::acquire_timeout).
    #[track_caller]
    pub fn acquire_arc_timeout(self: &Arc<Self>, timeout: Duration) -> Option<ArcSemaphorePermit> {
        self.acquire_timeout(timeout).map(|permit| permit.into_arc(self))
    }

    /// Adds so many permits, and wakes those whose turn has come.
    ///
    /// # Suspends
    /// No.
    ///
    /// # Panics
    /// If there were more than [`MAX_PERMITS`](Self::MAX_PERMITS) then. So does the drop of a permit that was had before others were added up to there.
    #[inline]
    #[track_caller]
    pub fn add_permits(&self, permits: usize) {
        let permits = checked(permits);
        let sum = |state: u32| (state & WAITED == 0 && state / PERMIT + permits <= MAX_PERMITS).then(|| state + permits * PERMIT);
        if self.monitor.change(sum).is_none() {
            self.give_slowly(permits);
        }
    }

    #[inline]
    fn try_take(&self, permits: u32) -> bool {
        self.monitor.change(|state| taken(state, permits)).is_some()
    }

    /// As `try_take`, also when somebody is inside for a moment.
    fn try_take_inside(&self, permits: u32) -> bool {
        let mut inside = self.monitor.lock();
        let taken = taken(inside.state, permits);
        inside.state = taken.unwrap_or(inside.state);
        taken.is_some()
    }

    #[cold]
    #[track_caller]
    fn take_slowly(&self, permits: u32, deadline_ns: u64) -> bool {
        // Somebody may just have been inside: only who has to wait must be allowed to.
        if !may_wait() && self.try_take_inside(permits) {
            return true;
        }
        let me = Me::to_wait();
        let mut inside = self.monitor.lock();
        if let Some(taken) = taken(inside.state, permits) {
            inside.state = taken;
            return true;
        }
        inside.state |= WAITED;
        // One that leaves may have been in the way of smaller wishes.
        inside.wait(&me, At::Semaphore, deadline_ns, permits, |inside, _| serve(inside)) == Cause::Woken
    }

    #[cold]
    #[track_caller]
    fn give_slowly(&self, permits: u32) {
        // In a forked child somebody may be inside for ever, and nobody who waits is there.
        if fork::is_child() {
            let given = |state: u32| (state & !WAITED) + permits * PERMIT;
            self.monitor.change(|state| (state / PERMIT + permits <= MAX_PERMITS).then(|| given(state)));
            return;
        }
        let mut inside = self.monitor.lock();
        assert!(inside.state / PERMIT + permits <= MAX_PERMITS, "a Semaphore has at most {MAX_PERMITS} permits");
        inside.state += permits * PERMIT;
        serve(inside);
    }
}

#[track_caller]
fn checked(permits: usize) -> u32 {
    assert!(permits <= Semaphore::MAX_PERMITS, "{permits} permits: a Semaphore has at most {MAX_PERMITS}");
    permits as u32
}

/// The state after one who comes has taken `permits`; `None` if he has to wait.
#[inline]
fn taken(state: u32, permits: u32) -> Option<u32> {
    (state & WAITED == 0 && state / PERMIT >= permits).then(|| state - permits * PERMIT)
}

/// Gives permits to those who wait, in order, as far as they go (I2), and leaves.
fn serve(mut inside: Inside<'_, Waiters<u32>>) {
    let mut left = inside.state / PERMIT;
    let wakes = Wakes::none();
    let mut wanted = 0;
    while let Some(claimed) = inside.claim_first_if(|&wants| {
        wanted = wants;
        wants <= left
    }) {
        left -= wanted;
        wakes.add(claimed);
    }
    inside.state = (left * PERMIT) | if inside.is_empty() { 0 } else { WAITED };
    drop(inside);
    wakes.pay();
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("available", &self.available()).finish_non_exhaustive()
    }
}

/// Permits of a [`Semaphore`]; dropping them gives them back.
#[must_use = "dropping a permit gives it back"]
pub struct SemaphorePermit<'a> {
    semaphore: &'a Semaphore,
    permits: u32,
}

impl SemaphorePermit<'_> {
    /// How many they are.
    pub fn count(&self) -> usize {
        self.permits as usize
    }

    /// Does not give them back: the semaphore has so many fewer from now on.
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// The same permits, kept with their semaphore.
    fn into_arc(self, semaphore: &Arc<Semaphore>) -> ArcSemaphorePermit {
        let permits = self.permits;
        self.forget();
        ArcSemaphorePermit { semaphore: semaphore.clone(), permits }
    }
}

impl Drop for SemaphorePermit<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.permits != 0 {
            self.semaphore.add_permits(self.permits as usize);
        }
    }
}

impl fmt::Debug for SemaphorePermit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphorePermit").field("count", &self.permits).finish_non_exhaustive()
    }
}

/// A permit of a [`Semaphore`] that it keeps alive; dropping it gives it back. See [`Semaphore::acquire_arc`].
#[must_use = "dropping a permit gives it back"]
pub struct ArcSemaphorePermit {
    semaphore: Arc<Semaphore>,
    permits: u32,
}

impl ArcSemaphorePermit {
    /// Does not give it back: the semaphore has one fewer from now on.
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// The semaphore that it is of.
    pub fn semaphore(&self) -> &Arc<Semaphore> {
        &self.semaphore
    }
}

impl Drop for ArcSemaphorePermit {
    fn drop(&mut self) {
        if self.permits != 0 {
            self.semaphore.add_permits(self.permits as usize);
        }
    }
}

impl fmt::Debug for ArcSemaphorePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArcSemaphorePermit").field("semaphore", &self.semaphore).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::atomic::AS_IN_MEMORY;

    // The lock is held where the fork is made, as by a thread that is not in the child.
    #[test]
    fn a_forked_child_drops_its_permits_though_the_lock_is_held() {
        if !AS_IN_MEMORY {
            return;
        }
        let semaphore = Arc::new(Semaphore::new(2));
        let (permit, kept) = (semaphore.acquire(), semaphore.acquire_arc());
        let inside = semaphore.monitor.lock();
        assert!(fork::child_does(|| drop((permit, kept))));
        drop(inside);
    }

    // Others wait, which a child does not care for.
    #[test]
    fn a_forked_child_has_the_permits_that_it_gave_back() {
        if !AS_IN_MEMORY {
            return;
        }
        let semaphore = Semaphore::new(1);
        let permit = semaphore.acquire();
        semaphore.monitor.change(|state| Some(state | WAITED));
        assert!(fork::child_does(|| {
            drop(permit);
            assert!(semaphore.try_acquire().is_some());
        }));
    }
}
