//! `Barrier`: a number of fibers or threads wait for each other.

use std::fmt;
use std::time::Duration;

use super::monitor::{Monitor, Wait};
use crate::base::atomic::in_statics;
use crate::fiber::state::Cause;
use crate::fiber::waiters::Waiters;
use crate::fiber::why::At;
use crate::os::clock;
use crate::os::state_lock::STATE_MAX;
use crate::rt::wait::Me;

/// Lets a number of fibers, or plain threads, wait until all of them have come; then it begins anew. As [`std::sync::Barrier`].
///
/// When the waits of all but the leader have returned it may be freed, even if the leader's has not.
///
/// # Suspends
/// `wait` and `wait_timeout` do, until all have come. They are no [cancel points](crate::cancelled).
///
/// # Examples
/// ```
/// static TOGETHER: sinew::sync::Barrier = sinew::sync::Barrier::new(3);
/// let fibers: Vec<_> = (0..3).map(|_| sinew::spawn(|| TOGETHER.wait().is_leader())).collect();
/// let leaders = fibers.into_iter().map(|f| f.join().unwrap()).filter(|&leads| leads).count();
/// assert_eq!(leaders, 1);
/// ```
pub struct Barrier {
    /// The state is how many have come.
    monitor: Monitor,
    size: u32,
}

impl Barrier {
    in_statics! {
        /// A barrier for so many; for one, if `size` is zero.
        ///
        /// # Panics
        /// If `size` is a billion or more (2^30).
        pub const fn new(size: usize) -> Self {
            assert!(size <= STATE_MAX as usize, "a Barrier is for 2^30 - 1 at most");
            Self { monitor: Monitor::new(0, Waiters::new()), size: size as u32 }
        }
    }

    /// Waits until all have come. The last one is the leader, and does not wait.
    ///
    /// # Suspends
    /// Yes, unless the caller is the last. No cancel point.
    ///
    /// # Panics
    /// Inside [`no_suspend`](crate::no_suspend).
    #[track_caller]
    pub fn wait(&self) -> BarrierWaitResult {
        self.wait_until(u64::MAX).expect("there is no deadline")
    }

    /// As [`wait`](Self::wait), at most for `timeout`; `None` if the time was up first: then it is as if the caller had not come.
    ///
    /// # Suspends
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> Option<BarrierWaitResult> {
        self.wait_until(clock::deadline_ns(timeout))
    }

    #[track_caller]
    fn wait_until(&self, deadline_ns: u64) -> Option<BarrierWaitResult> {
        let me = Me::to_wait();
        let mut inside = self.monitor.lock();
        if inside.state + 1 >= self.size {
            inside.state = 0;
            inside.wake_all();
            return Some(BarrierWaitResult { leader: true });
        }
        inside.state += 1;
        let mut counted = true;
        let cause = inside.wait(&me, At::Barrier, deadline_ns, (), |mut inside, queued| {
            // The last comer may have counted the caller, too late to end its wait: then all have come.
            counted = !queued;
            inside.state -= u32::from(queued);
        });
        (cause == Cause::Woken || counted).then_some(BarrierWaitResult { leader: false })
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier").field("size", &self.size).field("waiting", &self.monitor.state()).finish_non_exhaustive()
    }
}

/// What [`Barrier::wait`] says.
#[derive(Clone, Copy)]
pub struct BarrierWaitResult {
    leader: bool,
}

impl BarrierWaitResult {
    /// Whether the caller was the last to come: one of all is.
    pub fn is_leader(&self) -> bool {
        self.leader
    }
}

impl fmt::Debug for BarrierWaitResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BarrierWaitResult").field("is_leader", &self.leader).finish()
    }
}
