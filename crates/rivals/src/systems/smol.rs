//! smol: one executor that the asked number of threads run, as `smol::spawn` itself sets it up.

use std::future::pending;
use std::thread;
use std::time::Duration;

use smol::lock::Semaphore;
use smol::{Executor, Task, Timer};

use crate::deeds::futures::Futures;
use crate::job::Job;

static EXECUTOR: Executor<'static> = Executor::new();

pub(crate) struct Smol;

impl Futures for Smol {
    type Handle<T: Send + 'static> = Task<T>;
    type Bell = Semaphore;

    fn run<T: Send + 'static>(job: &Job, root: impl Future<Output = T> + Send + 'static) -> T {
        for _ in 0..job.workers {
            thread::spawn(|| smol::block_on(EXECUTOR.run(pending::<()>())));
        }
        smol::block_on(EXECUTOR.spawn(root))
    }
    fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> Task<T> {
        EXECUTOR.spawn(task)
    }
    fn join<T: Send + 'static>(handle: Task<T>) -> impl Future<Output = T> + Send {
        handle
    }
    fn yield_now() -> impl Future<Output = ()> + Send {
        smol::future::yield_now()
    }
    async fn sleep(span: Duration) {
        Timer::after(span).await;
    }
    fn bell() -> Semaphore {
        Semaphore::new(0)
    }
    fn ring(bell: &Semaphore) {
        bell.add_permits(1);
    }
    async fn wait(bell: &Semaphore) {
        bell.acquire().await.forget();
    }
}
