//! Threads that do nothing but read the clock: how long the system stops whoever runs, for its own work or another's.
//!
//! As many as a lock's tasks have workers, for as long as those run. Nobody who waits for a worker, or for what one holds, can be sure of less.

use std::thread;
use std::time::{Duration, Instant};

use crate::deeds::wait_reading;
use crate::job::{Job, Reading};

/// Gives the longest time between two looks.
pub(crate) fn perform(job: &Job) -> Vec<Reading> {
    let span = Duration::from_millis(job.budget_ms);
    let longest = thread::scope(|scope| {
        let threads: Vec<_> = (0..job.workers).map(|_| scope.spawn(|| longest_stop(span))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it only reads the clock")).max()
    });
    wait_reading(longest.unwrap_or_default().as_nanos() as u64)
}

fn longest_stop(span: Duration) -> Duration {
    let begun = Instant::now();
    let (mut before, mut longest) = (begun, Duration::ZERO);
    while before - begun < span {
        let now = Instant::now();
        longest = longest.max(now - before);
        before = now;
    }
    longest
}
