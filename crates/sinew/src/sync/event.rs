//! `Event`: something that has happened, or has not yet.

use std::fmt;
use std::time::Duration;

use super::monitor::{Monitor, Wait};
use crate::base::atomic::in_statics;
use crate::fiber::state::Cause;
use crate::fiber::waiters::Waiters;
use crate::fiber::why::At;
use crate::os::{clock, fork};
use crate::rt::wait::Me;

const UNSET: u32 = 0;
const SET: u32 = 1;

/// Something that happens once, and that any number of fibers and plain threads may wait for.
///
/// Once set it stays set, and whoever waits goes on at once. For one that happens again and again there is [`reset`](Self::reset); to hand over a value, see
/// [`OnceLock`](super::OnceLock). It can be a `static`. Once `wait` has returned it may be freed, even if the call of `set` has not returned yet.
///
/// # Suspends
/// `wait` and `wait_timeout` do, until it is set. They are no [cancel points](crate::cancelled).
///
/// # Examples
/// ```
/// let ready = std::sync::Arc::new(sinew::sync::Event::new());
/// let waiter = sinew::spawn({
///     let ready = ready.clone();
///     move || ready.wait()
/// });
/// ready.set();
/// waiter.join().unwrap();
/// ```
pub struct Event {
    monitor: Monitor,
}

impl Event {
    in_statics! {
        /// An event that has not been set.
        pub const fn new() -> Self {
            Self { monitor: Monitor::new(UNSET, Waiters::new()) }
        }
    }

    /// Sets it, and wakes all that wait. Does nothing if it is set.
    ///
    /// # Suspends
    /// No.
    #[track_caller]
    pub fn set(&self) {
        if self.is_set() {
            return;
        }
        fork::refuse();
        let mut inside = self.monitor.lock();
        inside.state = SET;
        inside.wake_all();
    }

    /// Makes it unset again. Those who were waiting when it was set go on all the same.
    #[track_caller]
    pub fn reset(&self) {
        fork::refuse();
        self.monitor.lock().state = UNSET;
    }

    /// Whether it is set.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.monitor.state() == SET
    }

    /// Waits until it is set.
    ///
    /// # Suspends
    /// Yes, unless it is set. No cancel point.
    ///
    /// # Panics
    /// If it has to wait inside [`no_suspend`](crate::no_suspend).
    #[inline]
    #[track_caller]
    pub fn wait(&self) {
        if !self.is_set() {
            self.wait_until(u64::MAX);
        }
    }

    /// Waits until it is set, at most for `timeout`; `false` if the time was up first.
    ///
    /// # Suspends
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.is_set() || self.wait_until(clock::deadline_ns(timeout))
    }

    #[cold]
    #[track_caller]
    fn wait_until(&self, deadline_ns: u64) -> bool {
        let me = Me::to_wait();
        let inside = self.monitor.lock();
        if inside.state == SET {
            return true;
        }
        inside.wait(&me, At::Event, deadline_ns, (), |_, _| ()) == Cause::Woken
    }
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("set", &self.is_set()).finish_non_exhaustive()
    }
}
