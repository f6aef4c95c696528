//! `Once`: something that is done once, while others wait for it.
//!
//! # Picture of the state
//! ```text
//!                begins                    ends
//!   INCOMPLETE ----------> RUNNING -----------------> COMPLETE
//!        ^                    |
//!        +--------------------+  panics, or fails
//! ```
//! Each change of RUNNING wakes all: who waited for the end goes on, or is the next to try.

use std::fmt;
use std::time::Duration;

use super::monitor::{Monitor, Wait};
use crate::base::atomic::in_statics;
use crate::fiber::state::Cause;
use crate::fiber::waiters::Waiters;
use crate::fiber::why::At;
use crate::os::{clock, fork};
use crate::rt::wait::Me;

const INCOMPLETE: u32 = 0;
const RUNNING: u32 = 1;
const COMPLETE: u32 = 2;

/// Something that is done once, as [`std::sync::Once`], without poisoning: if the initialiser panics, the next caller tries.
///
/// Others wait while one initialises, who may suspend. It can be a `static`.
///
/// # Suspends
/// `call_once` does, while another initialises; `wait` and `wait_timeout`, until one has. They are no [cancel points](crate::cancelled).
///
/// # Examples
/// ```
/// static START: sinew::sync::Once = sinew::sync::Once::new();
/// let mut calls = 0;
/// START.call_once(|| calls += 1);
/// START.call_once(|| calls += 1);
/// assert_eq!(calls, 1);
/// ```
pub struct Once {
    monitor: Monitor,
}

impl Once {
    in_statics! {
        /// One that has not been done.
        pub const fn new() -> Self {
            Self { monitor: Monitor::new(INCOMPLETE, Waiters::new()) }
        }
    }

    /// Whether it has been done.
    #[inline]
    pub fn is_completed(&self) -> bool {
        self.monitor.state() == COMPLETE
    }

    /// Calls `f` if it is the first; when it returns, somebody's has been called and has returned.
    ///
    /// An `f` that comes back to the same `Once` waits for ever.
    ///
    /// # Suspends
    /// Yes, while another initialises. No cancel point.
    ///
    /// # Panics
    /// If it has to wait inside [`no_suspend`](crate::no_suspend); and as `f` does: then the next caller tries.
    #[inline]
    #[track_caller]
    pub fn call_once<F: FnOnce()>(&self, f: F) {
        let Ok(()) = self.try_call_once(|| {
            f();
            Ok::<(), std::convert::Infallible>(())
        });
    }

    /// As `call_once`; if `f` fails, nothing has been done, and the next caller tries.
    #[inline]
    #[track_caller]
    pub(super) fn try_call_once<E>(&self, f: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.is_completed() {
            return Ok(());
        }
        self.call(f)
    }

    #[cold]
    #[track_caller]
    fn call<E>(&self, f: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if !self.begin() {
            return Ok(());
        }
        let mut attempt = Attempt { once: self, outcome: INCOMPLETE };
        f()?;
        attempt.outcome = COMPLETE;
        Ok(())
    }

    /// Waits while another initialises; `true` if the caller is the one to do it now.
    #[track_caller]
    fn begin(&self) -> bool {
        loop {
            // Only who has to wait must be allowed to.
            let me = (self.monitor.state() == RUNNING).then(Me::to_wait);
            let mut inside = self.monitor.lock();
            match (inside.state, me) {
                (COMPLETE, _) => return false,
                (INCOMPLETE, _) => {
                    inside.state = RUNNING;
                    return true;
                }
                (_, Some(me)) => {
                    inside.wait(&me, At::Once, u64::MAX, (), |_, _| ());
                }
                (_, None) => {}
            }
        }
    }

    /// Waits until it has been done, by whomever.
    ///
    /// # Suspends
    /// Yes, unless it has. No cancel point.
    ///
    /// # Panics
    /// If it has to wait inside [`no_suspend`](crate::no_suspend).
    #[track_caller]
    pub fn wait(&self) {
        if !self.is_completed() {
            self.wait_until(u64::MAX);
        }
    }

    /// As [`wait`](Self::wait), at most for `timeout`; `false` if the time was up first.
    ///
    /// # Suspends
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.is_completed() || self.wait_until(clock::deadline_ns(timeout))
    }

    #[cold]
    #[track_caller]
    fn wait_until(&self, deadline_ns: u64) -> bool {
        let me = Me::to_wait();
        loop {
            let inside = self.monitor.lock();
            if inside.state == COMPLETE {
                return true;
            }
            if inside.wait(&me, At::Once, deadline_ns, (), |_, _| ()) != Cause::Woken {
                return false;
            }
        }
    }

    /// As if nothing had been done.
    pub(super) fn reset(&mut self) {
        self.monitor.lock().state = INCOMPLETE;
    }
}

/// One call of an initialiser; however it ends, the others learn.
struct Attempt<'a> {
    once: &'a Once,
    outcome: u32,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // In a forked child somebody may be inside for ever, and nobody who waits is there.
        if fork::is_child() {
            self.once.monitor.change(|_| Some(self.outcome));
            return;
        }
        let mut inside = self.once.monitor.lock();
        inside.state = self.outcome;
        inside.wake_all();
    }
}

impl Default for Once {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = ["incomplete", "running", "complete"][self.monitor.state() as usize];
        f.debug_struct("Once").field("state", &state).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::atomic::AS_IN_MEMORY;

    // The lock is held where the fork is made, as by a thread that is not in the child: the initialiser itself forks, and returns there.
    #[test]
    fn a_forked_child_ends_an_attempt_though_the_lock_is_held() {
        if !AS_IN_MEMORY {
            return;
        }
        let once = Once::new();
        assert!(once.begin());
        let attempt = Attempt { once: &once, outcome: COMPLETE };
        let inside = once.monitor.lock();
        assert!(fork::child_does(|| drop(attempt)));
        drop(inside);
        assert!(fork::child_does(|| {
            drop(Attempt { once: &once, outcome: COMPLETE });
            assert!(once.is_completed(), "what it did there counts there");
        }));
    }
}
