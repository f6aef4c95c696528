//! may: coroutines with its default stack of 32 KiB and pinned workers.

use std::time::Duration;

use may::coroutine::{self, JoinHandle};
use may::sync::Semphore;

use crate::deeds::blocking::Blocking;
use crate::job::Job;

pub(crate) struct May;

impl Blocking for May {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Bell = Semphore;

    fn run<T: Send + 'static>(job: &Job, root: impl FnOnce() -> T + Send + 'static) -> T {
        may::config().set_workers(job.workers);
        Self::join(Self::spawn(root))
    }
    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        // SAFETY: no task of ours uses thread-locals, and none goes deep into its stack.
        unsafe { coroutine::spawn(task) }
    }
    fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        handle.join().expect("the task does not panic")
    }
    fn yield_now() {
        coroutine::yield_now();
    }
    fn sleep(span: Duration) {
        coroutine::sleep(span);
    }
    fn bell() -> Semphore {
        Semphore::new(0)
    }
    fn ring(bell: &Semphore) {
        bell.post();
    }
    fn wait(bell: &Semphore) {
        bell.wait();
    }
}
