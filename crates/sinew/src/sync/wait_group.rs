//! `WaitGroup`: all that have a part of it have dropped it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::monitor::{Monitor, Wait};
use crate::fiber::waiters::Waiters;
use crate::fiber::why::At;
use crate::os::state_lock::STATE_MAX;
use crate::os::{clock, fork};
use crate::rt::wait::Me;

/// Waits until all other clones of it were dropped, as crossbeam's.
///
/// Who has a part to do has a clone; [`wait`](Self::wait) gives up the caller's own. Where the number of parts is known before, a [`Latch`](super::Latch) allocates nothing.
///
/// # Suspends
/// `wait` and `wait_timeout` do, until the other clones are gone. They are no [cancel points](crate::cancelled).
///
/// # Examples
/// ```
/// let group = sinew::sync::WaitGroup::new();
/// for _ in 0..3 {
///     let part = group.clone();
///     sinew::spawn(move || drop(part));
/// }
/// group.wait();
/// ```
pub struct WaitGroup {
    /// The state is the number of clones.
    monitor: Arc<Monitor>,
}

impl WaitGroup {
    /// A group of one: the caller.
    pub fn new() -> Self {
        Self { monitor: Arc::new(Monitor::new(1, Waiters::new())) }
    }

    /// Gives up this clone, and waits until there is none.
    ///
    /// # Suspends
    /// Yes, unless this was the last. No cancel point.
    ///
    /// # Panics
    /// If it has to wait inside [`no_suspend`](crate::no_suspend).
    #[track_caller]
    pub fn wait(self) {
        if self.monitor.state() > 1 {
            let me = Me::to_wait();
            self.wait_until(&me, u64::MAX);
        }
    }

    /// Gives up this clone if it is the last one, but for those that wait.
    ///
    /// # Suspends
    /// No.
    ///
    /// # Errors
    /// This clone, if there are others.
    pub fn try_wait(self) -> Result<(), WaitGroup> {
        if self.monitor.state() > 1 { Err(self) } else { Ok(()) }
    }

    /// As [`wait`](Self::wait), at most for `timeout`.
    ///
    /// # Suspends
    /// As [`wait`](Self::wait).
    ///
    /// # Errors
    /// This clone, as if it had never been given up, if the time was up first.
    #[track_caller]
    pub fn wait_timeout(self, timeout: Duration) -> Result<(), WaitGroup> {
        if self.monitor.state() <= 1 {
            return Ok(());
        }
        let me = Me::to_wait();
        if self.wait_until(&me, clock::deadline_ns(timeout)) { Ok(()) } else { Err(self) }
    }

    /// Waits until no clone but this one counts. Whoever waits does not count; one whose time is up does again.
    fn wait_until(&self, me: &Me, deadline_ns: u64) -> bool {
        let mut inside = self.monitor.lock();
        inside.state -= 1;
        if inside.state == 0 {
            inside.wake_all();
        } else {
            let mut gave_up = false;
            inside.wait(me, At::WaitGroup, deadline_ns, (), |mut inside, queued| {
                // The last part may have been dropped, too late to end this wait: then others have been told that all are gone. Else it counts before they can be.
                gave_up = queued;
                inside.state += u32::from(queued);
            });
            if gave_up {
                return false;
            }
        }
        // It counts again, for its drop.
        self.monitor.lock().state += 1;
        true
    }
}

impl Clone for WaitGroup {
    fn clone(&self) -> Self {
        let mut inside = self.monitor.lock();
        assert!(inside.state < STATE_MAX, "too many clones of a WaitGroup");
        inside.state += 1;
        drop(inside);
        Self { monitor: self.monitor.clone() }
    }
}

impl Drop for WaitGroup {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever.
        if fork::is_child() {
            return;
        }
        let mut inside = self.monitor.lock();
        inside.state -= 1;
        if inside.state == 0 {
            inside.wake_all();
        }
    }
}

impl Default for WaitGroup {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for WaitGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitGroup").field("clones", &self.monitor.state()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::atomic::AS_IN_MEMORY;

    // The lock is held where the fork is made, as by a thread that is not in the child.
    #[test]
    fn a_forked_child_drops_its_part_though_the_lock_is_held() {
        if !AS_IN_MEMORY {
            return;
        }
        let (group, part) = (WaitGroup::new(), WaitGroup::new());
        let inside = group.monitor.lock();
        let clone = WaitGroup { monitor: group.monitor.clone() };
        assert!(fork::child_does(|| drop((clone, part))));
        std::mem::forget(inside);
        std::mem::forget(group);
    }
}
