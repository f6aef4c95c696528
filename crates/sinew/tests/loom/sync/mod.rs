#[path = "../../../src/sync/barrier.rs"]
pub mod barrier;
#[path = "../../../src/sync/condvar.rs"]
pub mod condvar;
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
#[path = "../../../src/sync/turns.rs"]
pub mod turns;
#[path = "../../../src/sync/wait_group.rs"]
pub mod wait_group;
#[path = "../../../src/sync/watch.rs"]
pub mod watch;

mod condvar_model;
mod futex_model;
mod model;
mod monitor_model;
mod near_model;
mod near_rwlock_model;
mod rwlock_model;

/// Stands in for `src/sync/mutex.rs`: lock_api's types ask for a lock that can be in statics.
pub mod mutex {
    use std::cell::UnsafeCell;
    use std::ops::{Deref, DerefMut};

    use super::raw_mutex::RawMutex;

    pub struct Mutex<T: ?Sized> {
        raw: RawMutex,
        /// loom checks its uses, which are those of the value.
        trace: loom::cell::UnsafeCell<()>,
        value: UnsafeCell<T>,
    }

    // SAFETY: loom checks every access.
    unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self { raw: RawMutex::unlocked(), trace: loom::cell::UnsafeCell::new(()), value: UnsafeCell::new(value) }
        }
    }

    impl<T: ?Sized> Mutex<T> {
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.raw.take();
            MutexGuard(self)
        }

        /// # Safety
        /// As in lock_api.
        pub unsafe fn raw(&self) -> &RawMutex {
            &self.raw
        }
    }

    pub struct MutexGuard<'a, T: ?Sized>(&'a Mutex<T>);

    impl<'a, T: ?Sized> MutexGuard<'a, T> {
        pub fn mutex(guard: &Self) -> &'a Mutex<T> {
            guard.0
        }
    }

    impl<T: ?Sized> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            // SAFETY: loom checks that nobody writes.
            self.0.trace.with(|_| unsafe { &*self.0.value.get() })
        }
    }

    impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: loom checks that nobody else is here.
            self.0.trace.with_mut(|_| unsafe { &mut *self.0.value.get() })
        }
    }

    impl<T: ?Sized> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.0.raw.release();
        }
    }
}

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
