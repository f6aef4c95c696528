//! `Latch`: opens when it was counted down to zero.

use std::fmt;
use std::time::Duration;

use super::monitor::{Monitor, Wait};
use crate::base::atomic::in_statics;
use crate::fiber::state::Cause;
use crate::fiber::waiters::Waiters;
use crate::fiber::why::At;
use crate::os::state_lock::STATE_MAX;
use crate::os::{clock, fork};
use crate::rt::wait::Me;

/// A gate that opens, for good, once it was counted down to zero.
///
/// As C++'s `std::latch`, bthread's `CountdownEvent`. Where the number of parts is not known before, see [`WaitGroup`](super::WaitGroup). It can be a `static`.
/// Once `wait` has returned it may be freed, even if the last `count_down` has not returned yet.
///
/// # Suspends
/// `wait`, `wait_timeout` and `arrive_and_wait` do, until it is open. They are no [cancel points](crate::cancelled).
///
/// # Examples
/// ```
/// static DONE: sinew::sync::Latch = sinew::sync::Latch::new(3);
/// for _ in 0..3 {
///     sinew::spawn(|| DONE.count_down());
/// }
/// DONE.wait();
/// ```
pub struct Latch {
    /// The state is what is left to count.
    monitor: Monitor,
}

impl Latch {
    in_statics! {
        /// A latch that opens after `count` steps; at once, if that is zero.
        ///
        /// # Panics
        /// If `count` is a billion or more (2^30).
        pub const fn new(count: usize) -> Self {
            assert!(count <= STATE_MAX as usize, "a Latch counts to 2^30 - 1");
            Self { monitor: Monitor::new(count as u32, Waiters::new()) }
        }
    }

    /// One step; the last opens it and wakes all that wait. Does nothing if it is open.
    ///
    /// # Suspends
    /// No.
    #[inline]
    #[track_caller]
    pub fn count_down(&self) {
        self.count_down_by(1);
    }

    /// So many steps at once, as far as any are left.
    ///
    /// # Suspends
    /// No.
    #[inline]
    #[track_caller]
    pub fn count_down_by(&self, steps: usize) {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        // Unless it opens, nobody has to be woken.
        if self.monitor.change(|left| (left > steps).then(|| left - steps)).is_none() {
            self.open_or_count(steps);
        }
    }

    #[cold]
    #[track_caller]
    fn open_or_count(&self, steps: u32) {
        fork::refuse();
        let mut inside = self.monitor.lock();
        inside.state = inside.state.saturating_sub(steps);
        if inside.state == 0 {
            inside.wake_all();
        }
    }

    /// What is left to count.
    pub fn count(&self) -> usize {
        self.monitor.state() as usize
    }

    /// Whether it is open, so that `wait` does not wait.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.monitor.state() == 0
    }

    /// Waits until it is open.
    ///
    /// # Suspends
    /// Yes, unless it is open. No cancel point.
    ///
    /// # Panics
    /// If it has to wait inside [`no_suspend`](crate::no_suspend).
    #[inline]
    #[track_caller]
    pub fn wait(&self) {
        if !self.is_open() {
            self.wait_until(u64::MAX);
        }
    }

    /// Waits until it is open, at most for `timeout`; `false` if the time was up first.
    ///
    /// # Suspends
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.is_open() || self.wait_until(clock::deadline_ns(timeout))
    }

    /// One step, then waits until it is open.
    ///
    /// # Suspends
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn arrive_and_wait(&self) {
        self.count_down();
        self.wait();
    }

    #[cold]
    #[track_caller]
    fn wait_until(&self, deadline_ns: u64) -> bool {
        let me = Me::to_wait();
        let inside = self.monitor.lock();
        if inside.state == 0 {
            return true;
        }
        inside.wait(&me, At::Latch, deadline_ns, (), |_, _| ()) == Cause::Woken
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch").field("count", &self.count()).finish_non_exhaustive()
    }
}
