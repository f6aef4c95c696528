#[path = "../../../src/sync/barrier.rs"]
pub mod barrier;
#[path = "../../../src/sync/event.rs"]
pub mod event;
#[path = "../../../src/sync/futex.rs"]
pub mod futex;
#[path = "../../../src/sync/latch.rs"]
pub mod latch;
#[path = "../../../src/sync/monitor.rs"]
pub mod monitor;
#[path = "../../../src/sync/once.rs"]
pub mod once;
#[path = "../../../src/sync/raw_mutex.rs"]
pub mod raw_mutex;
#[path = "../../../src/sync/raw_rwlock.rs"]
pub mod raw_rwlock;
#[path = "../../../src/sync/semaphore.rs"]
pub mod semaphore;

mod futex_model;
mod model;
mod monitor_model;
mod rwlock_model;

/// Stands in for the pool: loom's locks cannot be in statics, so queues are not used again. They lie in one array, since two are locked in the order of their addresses, which must be
/// the same each time loom runs the same schedule.
pub mod queues {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::futex::Queue;
    use crate::fiber::waiters::Waiters;
    use crate::os::lock::Lock;

    /// More than any model takes.
    const QUEUES: usize = 8;

    loom::lazy_static! {
        static ref ARRAY: (Vec<Queue>, AtomicUsize) =
            ((0..QUEUES).map(|_| Queue(Lock::new(Waiters::new()))).collect(), AtomicUsize::new(0));
    }

    pub fn take() -> &'static Queue {
        let (queues, taken): &'static (Vec<Queue>, AtomicUsize) = &ARRAY;
        &queues[taken.fetch_add(1, Relaxed)]
    }

    pub fn give_back(queue: &'static Queue) {
        assert!(queue.0.lock().is_empty(), "somebody waits in a queue that was given back");
    }
}
