//! What counting costs, with all counters and timed latencies, as always, and in a build without any: a yield among 1,000 fibers of one worker (the rivals' `yield-1000x1`), which is counted, and
//! a wake of one fiber by another there, of which one in 64 is timed besides.
//!
//! ```text
//! cargo run --release -p sinew --example counting             builds the other one, and runs both by turns: the figures of docs/tuning.md, in a minute and a build
//! cargo run --release -p sinew --example counting -- --quick  does both for a moment, and compares nothing
//! ```
//!
//! The other build is of the same files with `--cfg sinew_counters="off"`, which nobody else sets. Each run is a process of its own, `counting WORK`; in each round both builds run, and which is first changes. A round's ratio is
//! that of its two runs, which a slow minute of the machine meets alike; what counts is the median of the rounds, and the middle half of them says how far to believe it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, iter};

use sinew::{Runtime, park, spawn, yield_now};

const ROUNDS: usize = 41;
/// Operations of one run, of the warm one before it, and of all that `--quick` does: 15,000,000 yields take about 200 ms.
const TIMES: usize = 15_000_000;
const TIMES_WARM: usize = 1_000_000;
const TIMES_QUICK: usize = 20_000;

const COUNTS: bool = !cfg!(sinew_counters = "off");

/// What is done by its name: so many times, in how long.
type Work = (&'static str, fn(usize) -> Duration);

const WORKS: [Work; 2] = [("yield-1000x1", yields), ("park-unpark", wakes)];

fn main() {
    match env::args().nth(1).as_deref() {
        None => compare(),
        Some("--quick") => WORKS.iter().for_each(|work| println!("{}: {:.2} ns", work.0, once_ns(work, TIMES_QUICK))),
        Some(name) => {
            let work = WORKS.iter().find(|work| work.0 == name).expect("counting [--quick]");
            println!("{}", once_ns(work, TIMES));
        }
    }
}

/// Nanoseconds of one operation.
fn once_ns((name, work): &Work, times: usize) -> f64 {
    let runtime = Runtime::builder().workers(1).build().expect("one thread");
    let taken = runtime.run(|| {
        work(TIMES_WARM.min(times));
        work(times)
    });
    let switches = runtime.metrics().workers[0].switches;
    assert_eq!(switches > times as u64 / 2, COUNTS, "{name}: {switches} switches were counted");
    taken.as_nanos() as f64 / times as f64
}

/// Yields of 1,000 fibers, which have all begun before the clock does.
fn yields(times: usize) -> Duration {
    const FIBERS: usize = 1_000;
    let has_begun = Arc::new(AtomicUsize::new(0));
    let fiber = || {
        let has_begun = has_begun.clone();
        spawn(move || {
            has_begun.fetch_add(1, Relaxed);
            park();
            (0..times / FIBERS).for_each(|_| yield_now());
        })
    };
    let fibers: Vec<_> = iter::repeat_with(fiber).take(FIBERS).collect();
    while has_begun.load(Relaxed) < FIBERS {
        yield_now();
    }
    let start = Instant::now();
    fibers.iter().for_each(|fiber| fiber.fiber().unpark());
    fibers.into_iter().for_each(|fiber| fiber.join().expect("it only yields"));
    start.elapsed()
}

/// Wakes, by each other, of this fiber and another.
fn wakes(times: usize) -> Duration {
    let me = sinew::current();
    let other = spawn(move || {
        for _ in 0..times / 2 {
            park();
            me.unpark();
        }
    });
    let start = Instant::now();
    for _ in 0..times / 2 {
        other.fiber().unpark();
        park();
    }
    let taken = start.elapsed();
    other.join().expect("it only wakes");
    taken
}

fn compare() {
    if !COUNTS {
        panic!("this is the build that is compared with");
    }
    let counting = env::current_exe().expect("this program");
    let silent = build_silent(&counting);
    for (name, _) in WORKS {
        let rounds: Vec<[f64; 2]> = (0..ROUNDS).map(|round| both(name, &counting, &silent, round % 2 == 0)).collect();
        println!("{name:<22}{:>10}{:>20}{:>20}", "median", "middle half", "all");
        tell("counting, ns", rounds.iter().map(|[with, _]| *with));
        tell("not counting, ns", rounds.iter().map(|[_, without]| *without));
        tell("ratio, round by round", rounds.iter().map(|[with, without]| with / without));
    }
}

fn tell(name: &str, figures: impl Iterator<Item = f64>) {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let at = |quarter: usize| figures[quarter * (figures.len() - 1) / 4];
    println!("{name:<22}{:>10.3}{:>10.3} ..{:>7.3}{:>10.3} ..{:>7.3}", at(2), at(1), at(3), at(0), at(4));
}

/// One run of each, with and without counting.
fn both(work: &str, counting: &Path, silent: &Path, counting_first: bool) -> [f64; 2] {
    if counting_first {
        return [run(counting, work), run(silent, work)];
    }
    let without = run(silent, work);
    [run(counting, work), without]
}

fn run(program: &Path, work: &str) -> f64 {
    let output = Command::new(program).arg(work).output().expect("the program was built");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| panic!("{}: {text}{}", program.display(), String::from_utf8_lossy(&output.stderr)))
}

/// Builds this program without counters, in a folder of its own beside the other builds.
fn build_silent(us: &Path) -> PathBuf {
    let target = us.ancestors().nth(3).expect("TARGET/release/examples").join("uncounted");
    let flags = env::var("RUSTFLAGS").unwrap_or_default() + " --cfg sinew_counters=\"off\"";
    let status = Command::new(env::var("CARGO").unwrap_or("cargo".into()))
        .args(["build", "--release", "-p", "sinew", "--example", "counting"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .envs([("RUSTFLAGS", flags.as_str()), ("CARGO_TARGET_DIR", target.to_str().expect("a plain path"))])
        .status();
    assert!(status.expect("cargo can be started").success(), "the other program could not be built");
    target.join("release/examples/counting")
}
