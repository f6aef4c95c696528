//! Which workers of a group sleep, and whom new group work wakes.
//!
//! # Memory order
//! Pusher: puts work into a queue that all may take from, `fence(SeqCst)`, reads the mask. Sleeper: sets its bit, `fence(SeqCst)`
//! (in `Slot::lie_down`, which comes after), looks at those queues. Either the sleeper sees the work or the pusher sees the bit.
//! Clearing a bit claims that worker: of two pushers one gets it, and the other looks for the next.

use crate::base::atomic::{AtomicU64, Relaxed, SeqCst, fence};

/// Most workers of one group: the bits of the mask.
pub(crate) const WORKERS_MAX: usize = 64;

/// The set of sleeping workers.
pub(crate) struct Idle {
    sleeping: AtomicU64,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self { sleeping: AtomicU64::new(0) }
    }

    /// Puts `worker` among the sleepers. `Slot::lie_down` must follow, then a last look for work.
    pub(crate) fn enter(&self, worker: usize) {
        self.sleeping.fetch_or(1 << worker, Relaxed);
    }

    /// Takes `worker` out; `false` if a pusher has claimed it meanwhile and counts on it.
    #[must_use]
    pub(crate) fn leave(&self, worker: usize) -> bool {
        self.sleeping.fetch_and(!(1 << worker), Relaxed) & (1 << worker) != 0
    }

    /// Claims a sleeper for work that was just queued; the caller wakes it.
    pub(crate) fn claim(&self) -> Option<usize> {
        // SeqCst: meets the fence in `Slot::lie_down`.
        fence(SeqCst);
        let mut sleeping = self.sleeping.load(Relaxed);
        while sleeping != 0 {
            let worker = sleeping.trailing_zeros();
            let before = self.sleeping.fetch_and(!(1 << worker), Relaxed);
            if before & (1 << worker) != 0 {
                return Some(worker as usize);
            }
            sleeping = before & !(1 << worker);
        }
        None
    }
}
