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

/// Stands in for the pool: loom's locks cannot be in statics, so queues are not used again.
pub mod queues {
    use super::futex::Queue;
    use crate::fiber::waiters::Waiters;
    use crate::os::lock::Lock;

    pub fn take() -> &'static Queue {
        Box::leak(Box::new(Queue(Lock::new(Waiters::new()))))
    }

    pub fn give_back(queue: &'static Queue) {
        assert!(queue.0.lock().is_empty(), "somebody waits in a queue that was given back");
    }
}
