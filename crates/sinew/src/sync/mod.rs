//! What fibers and plain threads wait at: locks and the like, under std's and parking_lot's names.
//!
//! None of them poisons, and none is a [cancel point](crate::cancelled). So, coming from std: `lock()` gives the guard itself, without an `unwrap`, and a `Condvar` takes `&mut guard`. `Arc`, `Weak` and `atomic` are std's own, so that one `use` will do.
//!
//! **Hold no guard of `std::sync` over a call that waits.** The next fiber of the worker that wants the lock blocks the thread, and the one that has it never goes on. A guard of these locks may be held over anything.
//!
//! What may wait has a timed form, and one that does not wait or tells whether it would (`try_lock`, `is_set`, `ExecutionQueue::is_ended`), with these exceptions:
//! - `Once::call_once`, `OnceLock::{set, get_or_init, get_or_try_init}` and `LazyLock::force` have neither, as in std: who must not wait for another's initialiser asks `is_completed` or `get` first, or waits with a time-out (`Once::wait_timeout`).
//! - `Latch::arrive_and_wait` has neither: it is a `count_down` and a wait.
//! - `Condvar::wait` and `Barrier::wait` have timed forms alone: what they wait for happens after they have begun. The mutex that a condvar's wait takes again is waited for also when the time is up.
//! - What lets go of a lock for a while and takes it again (`MutexGuard::bump`, `unlocked` and the like) has neither.
//!
//! Guards that own an `Arc` of their lock are lock_api's: `lock_api::Mutex<RawMutex, T>` and `lock_api::RwLock<RawRwLock, T>`, with its feature `arc_lock`.
//! There are no upgradable and no recursive reads: a reader that may overtake writers keeps them waiting for ever.

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

pub use std::sync::{Arc, Weak, atomic};

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
