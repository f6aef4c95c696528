//! Fibers inside tokio: async tasks hand plain, blocking-style work to fibers and await them.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

/// Plain recursive code that waits in the middle: no async, no boxing of futures.
fn count_leaves(depth: u32) -> u64 {
    if depth == 0 {
        sinew::sleep(Duration::from_micros(100));
        return 1;
    }
    let left = sinew::spawn(move || count_leaves(depth - 1));
    count_leaves(depth - 1) + left.join().unwrap()
}

fn main() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("threads");
    let handle = tokio.handle().clone();

    let total = tokio.block_on(async move {
        let tasks: Vec<_> = (1..=6)
            .map(|depth| {
                tokio::spawn(async move {
                    // A JoinHandle is a future: the task waits without blocking its thread.
                    let leaves = sinew::spawn(move || count_leaves(depth)).await.expect("the fiber does not panic");
                    println!("depth {depth}: {leaves} leaves");
                    leaves
                })
            })
            .collect();
        let mut total = 0;
        for task in tasks {
            total += task.await.expect("the task does not panic");
        }
        total
    });
    assert_eq!(total, 2 + 4 + 8 + 16 + 32 + 64);

    // And back: two fibers use tokio's timers.
    sinew::run(|| {
        let fibers = [2, 1].map(|millis| {
            let handle = handle.clone();
            sinew::spawn(move || block_on_tokio(&handle, async { tokio::time::sleep(Duration::from_millis(millis)).await }))
        });
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        println!("slept on tokio's clock in fibers; {total} leaves in all");
    });
}

/// Polls the future with tokio's context, which is the thread's: entered around `block_on` instead, other fibers would find it while this one waits.
fn block_on_tokio<F: Future>(tokio: &tokio::runtime::Handle, future: F) -> F::Output {
    let mut future = pin!(future);
    sinew::block_on(poll_fn(|context| {
        let _entered = tokio.enter();
        future.as_mut().poll(context)
    }))
}
