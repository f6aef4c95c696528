//! Fibers inside tokio: async tasks hand plain, blocking-style work to fibers and await them.

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

    // And back: a fiber uses tokio's timers, with its handle entered.
    sinew::run(|| {
        let sleep = {
            let _entered = handle.enter();
            tokio::time::sleep(Duration::from_millis(2))
        };
        sinew::block_on(sleep);
        println!("slept on tokio's clock in a fiber; {total} leaves in all");
    });
}
