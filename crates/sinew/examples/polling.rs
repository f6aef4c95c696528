//! What polling before sleep is worth: a pair of fibers, each settled on a worker of its own, that talk through channels, by each kind of [`Spin`].
//!
//! ```text
//! cargo run --release -p sinew --example polling             the table of docs/tuning.md, in some ten seconds
//! cargo run --release -p sinew --example polling -- --quick  the same from shorter runs
//! ```
//!
//! The kinds take turns; of the rounds the medians are told.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use sinew::chan::{Receiver, Sender, bounded};
use sinew::{Runtime, Spin};

const ROUNDS: usize = 5;
/// Round trips between two looks at the clock, and before the first.
const BATCH: u64 = 1_000;
const SPAN: Duration = Duration::from_millis(300);
const SPAN_QUICK: Duration = Duration::from_millis(5);

/// One run.
#[derive(Clone, Copy)]
struct Run {
    /// Nanoseconds of a round trip.
    trip_ns: f64,
    /// Sleeps of the workers in 1,000 of them.
    sleeps: f64,
}

fn main() {
    let span = if std::env::args().any(|argument| argument == "--quick") { SPAN_QUICK } else { SPAN };
    let micros = |micros| Spin::Fixed(Duration::from_micros(micros));
    let kinds = [("adaptive", Spin::Adaptive), ("50", micros(50)), ("5", micros(5)), ("never", Spin::Never)];
    let mut runs = kinds.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for ((_, spin), runs) in kinds.iter().zip(&mut runs) {
            runs.push(run(*spin, span));
        }
    }
    println!("{:<12}{:>14}{:>32}", "SINEW_SPIN", "round trip", "sleeps in 1,000 round trips");
    for ((name, _), runs) in kinds.iter().zip(&runs) {
        let (trip_ns, sleeps) = (median(runs, |run| run.trip_ns), median(runs, |run| run.sleeps));
        println!("{name:<12}{trip_ns:>11.0} ns{sleeps:>32.2}");
    }
}

fn median(runs: &[Run], figure: impl Fn(&Run) -> f64) -> f64 {
    let mut figures: Vec<f64> = runs.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn run(spin: Spin, span: Duration) -> Run {
    let runtime = Runtime::builder().workers(2).spin(spin).build().expect("two threads");
    let sleeps = || runtime.metrics().workers.iter().map(|worker| worker.sleeps).sum::<u64>();
    runtime.run(|| {
        let (to, from) = echo_elsewhere();
        batch(&to, &from);
        let (before, start) = (sleeps(), Instant::now());
        let mut trips = 0;
        while start.elapsed() < span {
            batch(&to, &from);
            trips += BATCH;
        }
        let (trips, taken, slept) = (trips as f64, start.elapsed(), sleeps() - before);
        Run { trip_ns: taken.as_nanos() as f64 / trips, sleeps: slept as f64 * 1_000.0 / trips }
    })
}

/// A fiber that answers what it is sent, on the other worker: the caller keeps its own until that has begun, and a fiber stays where it began.
fn echo_elsewhere() -> (Sender<u64>, Receiver<u64>) {
    let ((to, questions), (answers, from)) = (bounded::<u64>(1), bounded(1));
    let has_begun = Arc::new(AtomicBool::new(false));
    let theirs = has_begun.clone();
    drop(sinew::spawn(move || {
        theirs.store(true, SeqCst);
        questions.iter().for_each(|n| answers.send(n + 1).expect("the asker waits"));
    }));
    while !has_begun.load(SeqCst) {
        spin_loop();
    }
    (to, from)
}

fn batch(to: &Sender<u64>, from: &Receiver<u64>) {
    for n in 0..BATCH {
        to.send(n).expect("the other one waits");
        assert_eq!(from.recv(), Ok(n + 1));
    }
}
