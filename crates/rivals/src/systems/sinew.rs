//! Sinew: settled fibers, a runtime with the asked number of workers, all else by default.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sinew::sync::Mutex;
use sinew::{Fiber, JoinHandle, Runtime};

use super::threads;
use crate::deeds::blocking::Blocking;
use crate::deeds::blocking::locks::Locks;
use crate::deeds::raw::Raw;
use crate::job::Job;

pub(crate) struct Sinew;

impl Blocking for Sinew {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Bell = Fiber;

    fn run<T: Send + 'static>(job: &Job, root: impl FnOnce() -> T + Send + 'static) -> T {
        let mut builder = Runtime::builder().workers(job.workers);
        if job.stack_kib > 0 {
            builder = builder.stack_size(job.stack_kib << 10);
        }
        let runtime = builder.build().expect("a runtime can be built");
        // Leaked: its drop would wait for fibers that wait for ever.
        Box::leak(Box::new(runtime)).run(root)
    }
    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        sinew::spawn(task)
    }
    fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        handle.join().expect("the task does not panic")
    }
    fn yield_now() {
        sinew::yield_now();
    }
    fn sleep(span: Duration) {
        sinew::sleep(span);
    }
    fn bell() -> Fiber {
        sinew::current()
    }
    fn ring(bell: &Fiber) {
        bell.unpark();
    }
    fn wait(_: &Fiber) {
        sinew::park();
    }
}

/// The library's own switch file, bare.
pub(crate) struct Switch;

impl Raw for Switch {
    unsafe fn prepare(bottom: usize, top: usize, root: unsafe extern "C" fn(*mut u8) -> !, arg: *mut u8) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { sinew::hidden::switch::prepare(bottom, top, root, arg) }
    }
    #[inline(always)]
    unsafe fn switch(save: *mut *mut u8, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { sinew::hidden::switch::switch(save, to) }
    }
}

impl Locks for Sinew {
    type Mutex = Mutex<u64>;
    /// A stand-in that no job uses: Sinew's own is still being built.
    type RwLock = std::sync::RwLock<u64>;

    fn lock(mutex: &Mutex<u64>) -> impl DerefMut<Target = u64> {
        mutex.lock()
    }
    fn read(lock: &std::sync::RwLock<u64>) -> impl Deref<Target = u64> {
        threads::Threads::read(lock)
    }
    fn write(lock: &std::sync::RwLock<u64>) -> impl DerefMut<Target = u64> {
        threads::Threads::write(lock)
    }
}
