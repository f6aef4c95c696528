//! What fibers and plain threads wait at: locks and the like, under std's and parking_lot's names.
//!
//! None of them poisons, and none is a [cancel point](crate::cancelled).

mod barrier;
mod condvar;
mod event;
mod execution_queue;
mod futex;
mod latch;
mod monitor;
mod mutex;
mod once;
mod once_lock;
mod queues;
mod raw_mutex;
mod raw_rwlock;
mod rwlock;
mod semaphore;
mod wait_group;

pub use barrier::{Barrier, BarrierWaitResult};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use event::Event;
pub use execution_queue::{ExecutionQueue, QueueStopped, TaskHandle, Tasks, TooLate};
pub use futex::{Futex, FutexWait, Requeued};
pub use latch::Latch;
pub use mutex::{MappedMutexGuard, Mutex, MutexGuard};
pub use once::Once;
pub use once_lock::{LazyLock, OnceLock};
pub use raw_mutex::RawMutex;
pub use raw_rwlock::RawRwLock;
pub use rwlock::{MappedRwLockReadGuard, MappedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{Semaphore, SemaphorePermit};
pub use wait_group::WaitGroup;

/// Locks on behalf of lock_api, which takes it for granted that the lock is had then: a guard that unlocked for a while would, when this panics, unlock what another has. So where a lock must not be
/// waited for (`no_suspend`), that ends the process; `Mutex::lock` and its like, which have given no guard yet, panic.
#[inline]
#[track_caller]
fn or_abort<T>(lock: impl FnOnce() -> T) -> T {
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            eprintln!(
                "sinew: a guard that was unlocked for a while could not be locked again, since nothing may be waited for here (see the panic above): the process ends"
            );
            std::process::abort();
        }
    }

    let bomb = Bomb;
    let locked = lock();
    std::mem::forget(bomb);
    locked
}
