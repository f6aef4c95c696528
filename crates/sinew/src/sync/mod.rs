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
mod turns;
mod wait_group;
mod watch;

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
pub use semaphore::{ArcSemaphorePermit, Semaphore, SemaphorePermit};
pub use wait_group::WaitGroup;
