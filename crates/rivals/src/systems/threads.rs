//! The standard library's threads: what a program does without a runtime.

use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use crate::deeds::blocking::Blocking;
use crate::job::Job;

pub(crate) struct Threads;

impl Blocking for Threads {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Bell = Thread;

    fn run<T: Send + 'static>(job: &Job, root: impl FnOnce() -> T + Send + 'static) -> T {
        if job.workers == 1 {
            stay_on_one_cpu();
        }
        Self::join(Self::spawn(root))
    }
    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        thread::spawn(task)
    }
    fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        handle.join().expect("the task does not panic")
    }
    fn yield_now() {
        thread::yield_now();
    }
    fn sleep(span: Duration) {
        thread::sleep(span);
    }
    fn bell() -> Thread {
        thread::current()
    }
    fn ring(bell: &Thread) {
        bell.unpark();
    }
    fn wait(_: &Thread) {
        thread::park();
    }
}

/// "One worker" of threads is one CPU: that on which we are.
fn stay_on_one_cpu() {
    // SAFETY: the set is plain data that lives through the call.
    let failed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    assert_eq!(failed, 0, "this process cannot be kept on one CPU");
}
