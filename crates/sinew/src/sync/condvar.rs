//! `Condvar`: waits for a condition on what a mutex guards.
//!
//! A wait queues before it unlocks the mutex, so that whoever locks it next, and notifies, finds it. A notification ends one wait or leaves none behind; nothing else ends a wait but
//! its deadline, so there are no spurious wake-ups.

use std::fmt;
use std::time::{Duration, Instant};

use super::monitor::{Monitor, Wait, await_wake};
use super::mutex::MutexGuard;
use super::raw_mutex::RawMutex;
use crate::base::atomic::in_statics;
use crate::fiber::state::Cause;
use crate::fiber::waiters::{Waiter, Waiters};
use crate::fiber::why::{At, Why};
use crate::os::{clock, fork};
use crate::rt::wait::Me;
use crate::sched::worker::make_ready;

/// The state: whether somebody is queued.
const NOBODY: u32 = 0;
const SOMEBODY: u32 = 1;

/// Lets others change what a [`Mutex`](super::Mutex) guards, and waits until one of them says that he has.
///
/// As [`std::sync::Condvar`] with parking_lot's signatures. It does not wake spuriously; but who is woken locks the mutex like any other, and may find that a third has been there meanwhile:
/// [`wait_while`](Self::wait_while) looks again. It can be a `static`, and serve several mutexes.
///
/// # Suspends
/// All waits do; to lock the mutex again, also beyond their time-out. They are no [cancel points](crate::cancelled).
///
/// # Examples
/// ```
/// use sinew::sync::{Condvar, Mutex};
/// static READY: Mutex<bool> = Mutex::new(false);
/// static CHANGED: Condvar = Condvar::new();
/// sinew::spawn(|| {
///     *READY.lock() = true;
///     CHANGED.notify_one();
/// });
/// let mut ready = READY.lock();
/// CHANGED.wait_while(&mut ready, |ready| !*ready);
/// assert!(*ready);
/// ```
pub struct Condvar {
    monitor: Monitor,
}

impl Condvar {
    in_statics! {
        /// One that nobody waits at.
        pub const fn new() -> Self {
            Self { monitor: Monitor::new(NOBODY, Waiters::new()) }
        }
    }

    /// Unlocks the mutex, waits for a notification, and locks the mutex again.
    ///
    /// # Suspends
    /// Yes, until it is notified and has the mutex. No cancel point.
    ///
    /// # Panics
    /// Inside [`no_suspend`](crate::no_suspend); the mutex stays locked then.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_until_ns(guard, u64::MAX);
    }

    /// As [`wait`](Self::wait), again and again while `condition` holds.
    ///
    /// # Suspends
    /// As [`wait`](Self::wait), unless the condition does not hold.
    #[track_caller]
    pub fn wait_while<T: ?Sized, F: FnMut(&mut T) -> bool>(&self, guard: &mut MutexGuard<'_, T>, mut condition: F) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// As [`wait`](Self::wait), at most for `timeout`.
    ///
    /// # Suspends
    /// As [`wait`](Self::wait): also one whose time is up waits for the mutex.
    #[track_caller]
    pub fn wait_timeout<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> WaitTimeoutResult {
        self.wait_until_ns(guard, clock::deadline_ns(timeout))
    }

    /// As [`wait`](Self::wait), at most until `deadline`.
    ///
    /// # Suspends
    /// As [`wait_timeout`](Self::wait_timeout).
    #[track_caller]
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> WaitTimeoutResult {
        self.wait_timeout(guard, deadline.saturating_duration_since(Instant::now()))
    }

    /// As [`wait_while`](Self::wait_while), at most for `timeout`: timed out means that the condition still holds. std's order of arguments.
    ///
    /// # Suspends
    /// As [`wait_timeout`](Self::wait_timeout), unless the condition does not hold.
    #[track_caller]
    pub fn wait_timeout_while<T, F>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration, mut condition: F) -> WaitTimeoutResult
    where
        T: ?Sized,
        F: FnMut(&mut T) -> bool,
    {
        let deadline_ns = clock::deadline_ns(timeout);
        let mut result = WaitTimeoutResult { timed_out: false };
        loop {
            if !condition(guard) {
                return WaitTimeoutResult { timed_out: false };
            }
            if result.timed_out {
                return result;
            }
            result = self.wait_until_ns(guard, deadline_ns);
        }
    }

    /// Wakes the one that has waited longest; `false` if nobody waits.
    ///
    /// # Suspends
    /// No.
    #[inline]
    #[track_caller]
    pub fn notify_one(&self) -> bool {
        self.monitor.state() != NOBODY && self.wake_one()
    }

    /// Wakes all that wait; says how many they were.
    ///
    /// # Suspends
    /// No.
    #[inline]
    #[track_caller]
    pub fn notify_all(&self) -> usize {
        if self.monitor.state() == NOBODY {
            return 0;
        }
        fork::refuse();
        let mut inside = self.monitor.lock();
        inside.state = NOBODY;
        inside.wake_all()
    }

    #[cold]
    #[track_caller]
    fn wake_one(&self) -> bool {
        fork::refuse();
        let mut inside = self.monitor.lock();
        let claimed = inside.claim_first(|()| ());
        inside.state = state_of(&inside);
        drop(inside);
        claimed.map(make_ready).is_some()
    }

    #[track_caller]
    fn wait_until_ns<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, deadline_ns: u64) -> WaitTimeoutResult {
        let me = Me::to_wait();
        // SAFETY: the guard says that the caller has the mutex; it is locked again before the guard is used again.
        let mutex = unsafe { MutexGuard::mutex(guard).raw() };
        let cause = self.wait_unlocked(&me, mutex, deadline_ns);
        mutex.take();
        WaitTimeoutResult { timed_out: cause != Cause::Woken }
    }

    fn wait_unlocked(&self, me: &Me, mutex: &RawMutex, deadline_ns: u64) -> Cause {
        let waiter = Waiter::new(me.control(), ());
        let mut inside = self.monitor.lock();
        inside.state = SOMEBODY;
        // SAFETY: it is new, and stays here until `await_wake` returns.
        unsafe { inside.push(&waiter) };
        me.begin_wait(Why::At(At::Condvar));
        drop(inside);
        // From here on whoever locks the mutex and notifies ends this wait; unlocking does not suspend.
        mutex.release();
        // SAFETY: queued and begun above, inside, where it is claimed; it is removed from the queue that it was pushed to.
        unsafe {
            await_wake(me, &self.monitor, deadline_ns, |mut inside| {
                inside.remove(&waiter);
                inside.state = state_of(&inside);
            })
        }
    }
}

fn state_of(queue: &Waiters) -> u32 {
    if queue.is_empty() { NOBODY } else { SOMEBODY }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}

/// What a timed wait of a [`Condvar`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult {
    timed_out: bool,
}

impl WaitTimeoutResult {
    /// Whether the time was up before a notification came.
    pub fn timed_out(&self) -> bool {
        self.timed_out
    }
}
