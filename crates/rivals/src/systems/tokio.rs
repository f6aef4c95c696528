//! tokio: the multi-thread runtime and the current-thread one, both with all drivers on, as `#[tokio::main]` sets them up.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::deeds::futures::Futures;
use crate::job::Job;

/// Which of the two runtimes.
pub(crate) struct Tokio<const WORKERS: bool>;
/// Workers that steal from each other.
pub(crate) type MultiThread = Tokio<true>;
/// Everything on the thread that blocks on it.
pub(crate) type CurrentThread = Tokio<false>;

impl<const WORKERS: bool> Tokio<WORKERS> {
    fn runtime(job: &Job) -> &'static Runtime {
        let mut builder = if WORKERS { Builder::new_multi_thread() } else { Builder::new_current_thread() };
        if WORKERS {
            builder.worker_threads(job.workers);
        }
        Box::leak(Box::new(builder.enable_all().build().expect("a runtime can be built")))
    }
}

impl<const WORKERS: bool> Futures for Tokio<WORKERS> {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Bell = Notify;

    fn run<T: Send + 'static>(job: &Job, root: impl Future<Output = T> + Send + 'static) -> T {
        // Spawned: what is blocked on directly would not run on a worker.
        let runtime = Self::runtime(job);
        runtime.block_on(runtime.spawn(root)).expect("the root task does not panic")
    }
    fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        tokio::spawn(task)
    }
    async fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        handle.await.expect("the task does not panic")
    }
    fn yield_now() -> impl Future<Output = ()> + Send {
        tokio::task::yield_now()
    }
    fn sleep(span: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(span)
    }
    fn bell() -> Notify {
        Notify::new()
    }
    fn ring(bell: &Notify) {
        bell.notify_one();
    }
    fn wait(bell: &Notify) -> impl Future<Output = ()> + Send {
        bell.notified()
    }
}
