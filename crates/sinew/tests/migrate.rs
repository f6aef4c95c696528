//! Fibers that may move from worker to worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::ThreadId;

use sinew::{Builder, Launch, Queue, Runtime};

/// A runtime whose fibers may move.
fn movers(workers: usize, queue: Queue) -> Runtime {
    // SAFETY: the fibers of these tests keep nothing of a thread across a suspension.
    unsafe { Runtime::builder().workers(workers).queue(queue).migrate_started_fibers() }.build().unwrap()
}

fn thread() -> ThreadId {
    std::thread::current().id()
}

#[test]
fn a_started_fiber_is_taken_over_by_a_free_worker() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let threads = movers(2, queue).run(|| {
            let goes_on = Arc::new(AtomicBool::new(false));
            let blocks = {
                let goes_on = goes_on.clone();
                move || {
                    while !goes_on.load(SeqCst) {
                        std::hint::spin_loop()
                    }
                }
            };
            let before = thread();
            // It blocks this worker's thread until this fiber, which is queued, goes on: elsewhere.
            let blocker = Builder::new().launch(Launch::Dispatch).spawn(blocks).unwrap();
            let after = thread();
            goes_on.store(true, SeqCst);
            blocker.join().unwrap();
            [before, after]
        });
        assert_ne!(threads[0], threads[1], "{queue:?}");
    }
}

#[test]
fn parks_channels_and_sleeps_work_for_fibers_that_move() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let runtime = movers(2, queue);
        runtime.run(|| {
            let (there, here) = sinew::chan::bounded(1);
            let (back, again) = sinew::chan::bounded(1);
            let echo = sinew::spawn(move || here.iter().for_each(|n: u32| back.send(n + 1).unwrap()));
            for n in 0..20_000 {
                there.send(n).unwrap();
                assert_eq!(again.recv().unwrap(), n + 1);
                if n % 1000 == 0 {
                    sinew::sleep(std::time::Duration::from_micros(50));
                }
            }
            drop(there);
            echo.join().unwrap();
        });
    }
}
