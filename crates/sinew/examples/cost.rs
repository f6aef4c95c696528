//! What one operation costs in instructions, cache misses and system calls: the table of ARCHITECTURE.md.
//!
//! ```text
//! cargo run --release -p sinew --example cost             counts, by valgrind and strace, which must be installed; half a minute
//! cargo run --release -p sinew --example cost -- --quick  does every operation a few times, and counts nothing
//! ```
//!
//! It starts itself under callgrind (with its model of the data caches, 32 KiB and 32 MiB, which knows no prefetch) and under strace, as `cost OPERATION TIMES`, with few and with more times: what a process costs beside them is in both, and goes out by
//! subtraction.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{env, fs, thread};

use sinew::sync::Latch;
use sinew::{Runtime, park, spawn, yield_now};

/// An operation by name: what to do so many times, and how many times are enough to see one.
type Operation = (&'static str, fn(u64), u64);

const OPERATIONS: [Operation; 7] = [
    ("yield, one fiber", |times| (0..times).for_each(|_| yield_now()), 100_000),
    ("yield, 1,000 fibers", yield_among::<1_000>, 200_000),
    ("yield, 10,000 fibers", yield_among::<10_000>, 200_000),
    ("yield, 100,000 fibers", yield_among::<100_000>, 1_000_000),
    ("spawn and join", |times| (0..times).for_each(|_| spawn(|| ()).join().expect("an empty fiber")), 20_000),
    ("park, unpark by a fiber of the worker, yield", unpark_by_fiber, 20_000),
    ("park, unpark by a thread, worker asleep", unpark_by_thread, 1_000),
];

/// All of them are there before the first yields: else one would have ended before the next begins.
fn yield_among<const FIBERS: u64>(times: u64) {
    let all = Arc::new(Latch::new(FIBERS as usize));
    let yields = |all: Arc<Latch>| {
        move || {
            all.count_down();
            all.wait();
            (0..times / FIBERS).for_each(|_| yield_now());
        }
    };
    let fibers: Vec<_> = (0..FIBERS).map(|_| spawn(yields(all.clone()))).collect();
    fibers.into_iter().for_each(|fiber| fiber.join().expect("it only yields"));
}

fn unpark_by_fiber(times: u64) {
    let parked = spawn(move || (0..times).for_each(|_| park()));
    while !parked.is_finished() {
        parked.fiber().unpark();
        yield_now();
    }
}

/// The thread sleeps for so long that the worker does, too. The fiber counts, since two unparks in a row may be one.
fn unpark_by_thread(times: u64) {
    let (parked, rounds) = (sinew::current(), Arc::new(AtomicU64::new(0)));
    let seen = Arc::clone(&rounds);
    let waker = thread::spawn(move || {
        while seen.load(Relaxed) < times {
            thread::sleep(Duration::from_millis(1));
            parked.unpark();
        }
    });
    for _ in 0..times {
        park();
        rounds.fetch_add(1, Relaxed);
    }
    waker.join().expect("it only sleeps and wakes");
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => count_all(),
        ["--quick"] => OPERATIONS.iter().for_each(|operation| perform(operation, 2_000.min(operation.2))),
        [name, times] => {
            let operation = OPERATIONS.iter().find(|operation| operation.0 == name).expect("an operation by its name");
            perform(operation, times.parse().expect("a number of times"));
        }
        _ => panic!("cost [--quick]"),
    }
}

fn perform(operation: &Operation, times: u64) {
    let run = operation.1;
    Runtime::builder().workers(1).build().expect("one thread").run(move || run(times));
}

fn count_all() {
    println!("| operation | instructions | misses, first level | misses, last level | system calls |\n|---|--:|--:|--:|--:|");
    for operation in OPERATIONS {
        let [instructions, first, last] = per_operation(operation, callgrind);
        let [calls] = per_operation(operation, strace);
        println!("| {} | {instructions:.0} | {first:.1} | {last:.1} | {calls:.1} |", operation.0);
    }
}

/// What `count` finds for many times of an operation less for few, by the difference.
fn per_operation<const N: usize>((name, _, times): Operation, count: fn(&[&str], &str) -> [f64; N]) -> [f64; N] {
    let us = env::current_exe().expect("this program");
    let file = env::temp_dir().join(format!("sinew-cost-{}", std::process::id()));
    let (us, file) = (us.to_str().expect("a plain path"), file.to_str().expect("a plain path"));
    let [few, many] = [times, 2 * times].map(|times| count(&[us, name, &times.to_string()], file));
    fs::remove_file(file).expect("the counts of the last run");
    std::array::from_fn(|i| ((many[i] - few[i]) / times as f64).max(0.0))
}

fn callgrind(child: &[&str], file: &str) -> [f64; 3] {
    let out = format!("--callgrind-out-file={file}");
    let text = output_of("valgrind", &["--tool=callgrind", "--cache-sim=yes", "--D1=32768,8,64", "--LL=33554432,16,64", &out], child, file);
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).expect("callgrind's output has events and totals");
    let (events, totals) = (line("events:"), line("totals:"));
    let total = |wanted: &[&str]| {
        let pairs = events.split_whitespace().zip(totals.split_whitespace());
        pairs.filter(|(event, _)| wanted.contains(event)).map(|(_, count)| count.parse::<f64>().expect("a count")).sum()
    };
    [total(&["Ir"]), total(&["D1mr", "D1mw"]), total(&["DLmr", "DLmw"])]
}

/// All calls but the sleeps of the thread that wakes.
fn strace(child: &[&str], file: &str) -> [f64; 1] {
    let text = output_of("strace", &["-f", "-c", "-U", "calls,name", "-e", "trace=!clock_nanosleep", "-o", file], child, file);
    let total = text.lines().find_map(|line| line.trim().strip_suffix("total")).expect("strace's output has a total");
    [total.trim().parse().expect("a number of calls")]
}

/// Runs `child` under a tool, and reads what that has written to `file`.
fn output_of(tool: &str, options: &[&str], child: &[&str], file: &str) -> String {
    let status = Command::new(tool).args(options).args(child).stderr(Stdio::null()).status();
    let status = status.unwrap_or_else(|error| panic!("{tool} cannot be started: {error}"));
    assert!(status.success(), "{tool} {child:?}: {status}");
    fs::read_to_string(file).expect("the tool's output")
}
