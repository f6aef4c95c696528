//! What counting costs, with all counters and timed latencies, as always, and in a build without any: a yield among 1,000 fibers of one worker (the rivals' `yield-1000x1`), which is counted, and
//! a wake of one fiber by another there, of which one in 64 is timed besides.
//!
//! ```text
//! cargo run --release -p sinew --example counting             builds the others, and runs all by turns: the figures of docs/tuning.md, in a minute and six builds
//! cargo run --release -p sinew --example counting -- --build  builds the others, and leaves them for the next call
//! cargo run --release -p sinew --example counting -- --quick  does both for a moment, and compares nothing
//! ```
//!
//! The build without is of the same files with `--cfg sinew_counters="off"`, which nobody else sets. Each is built in three layouts: where code lies changes a yield by as much as is to be measured, and luck that is in one layout is not in all. Each run is a process
//! of its own, `counting WORK`; in each round both builds run, and which is first changes. A round's ratio is that of its two runs, which a slow minute of the machine meets alike; what counts is the median of the rounds, and the middle half of them says how
//! far to believe it. Instructions and misses of the first-level cache are counted by callgrind, if it is there: they know neither luck nor load.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, fs, iter};

use sinew::{Runtime, park, spawn, yield_now};

/// Of each layout.
const ROUNDS: usize = 15;
/// Operations of one run, of the warm one before it, and of all that `--quick` does: 15,000,000 yields take about 200 ms.
const TIMES: usize = 15_000_000;
const TIMES_WARM: usize = 1_000_000;
const TIMES_QUICK: usize = 20_000;

/// More operations of one run under callgrind than of the other: what a process does besides is in both.
const TIMES_COUNTED: usize = 200_000;

/// Where the code lies: its name, and what the compiler is told.
type Layout = (&'static str, &'static [&'static str]);

const LAYOUTS: [Layout; 3] = [
    ("as it comes", &[]),
    ("functions at 64 bytes", &["-Cllvm-args=-align-all-functions=6"]),
    ("blocks at 32 bytes", &["-Cllvm-args=-align-all-nofallthru-blocks=5"]),
];

const COUNTS: bool = !cfg!(sinew_counters = "off");

/// What is done by its name: so many times, in how long.
type Work = (&'static str, fn(usize) -> Duration);

const WORKS: [Work; 2] = [("yield-1000x1", yields), ("park-unpark", wakes)];

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => compare(&build_all()),
        ["--build"] => _ = build_all(),
        ["--quick"] => WORKS.iter().for_each(|work| println!("{}: {:.2} ns", work.0, once_ns(work, TIMES_QUICK, TIMES_QUICK))),
        [name] => println!("{}", once_ns(work_named(name), TIMES_WARM, TIMES)),
        [name, times] => _ = once_ns(work_named(name), TIMES_QUICK, times.parse().expect("a number of times")),
        _ => panic!("counting [--build | --quick]"),
    }
}

fn work_named(name: &str) -> &'static Work {
    WORKS.iter().find(|work| work.0 == name).expect("a work by its name")
}

/// Nanoseconds of one operation of `times`, after some that warm up.
fn once_ns((name, work): &Work, times_warm: usize, times: usize) -> f64 {
    let runtime = Runtime::builder().workers(1).build().expect("one thread");
    let taken = runtime.run(|| {
        work(times_warm);
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

/// One program that counts, and one that does not, of the same layout.
struct Pair {
    counting: PathBuf,
    silent: PathBuf,
}

fn compare(pairs: &[Pair]) {
    for (name, _) in WORKS {
        // By turns, so that a slow minute meets all layouts.
        let rounds: Vec<Vec<[f64; 2]>> =
            (0..ROUNDS).map(|round| pairs.iter().map(|pair| pair.run(name, round % 2 == 0)).collect()).collect();
        println!("{name:<26}{:>10}{:>20}{:>20}", "median", "middle half", "all");
        for (i, (layout, _)) in LAYOUTS.iter().enumerate() {
            println!("{layout}");
            tell("  counting, ns", rounds.iter().map(|round| round[i][0]));
            tell("  not counting, ns", rounds.iter().map(|round| round[i][1]));
            tell("  ratio, round by round", rounds.iter().map(|round| round[i][0] / round[i][1]));
        }
        tell("all ratios", rounds.iter().flatten().map(|[with, without]| with / without));
        pairs[0].tell_counts(name);
    }
}

fn tell(name: &str, figures: impl Iterator<Item = f64>) {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let at = |quarter: usize| figures[quarter * (figures.len() - 1) / 4];
    println!("{name:<26}{:>10.3}{:>10.3} ..{:>7.3}{:>10.3} ..{:>7.3}", at(2), at(1), at(3), at(0), at(4));
}

impl Pair {
    /// One run of each, with and without counting.
    fn run(&self, work: &str, counting_first: bool) -> [f64; 2] {
        if counting_first {
            return [run(&self.counting, work), run(&self.silent, work)];
        }
        let without = run(&self.silent, work);
        [run(&self.counting, work), without]
    }

    fn tell_counts(&self, work: &str) {
        let programs = [("counting", &self.counting), ("not counting", &self.silent)];
        for (name, program) in programs {
            let [Some(few), Some(many)] = [1, 2].map(|times| callgrind(program, work, times * TIMES_COUNTED)) else {
                return println!("instructions and misses are not counted: there is no valgrind");
            };
            let [instructions, misses] = [0, 1].map(|i| (many[i] - few[i]) / TIMES_COUNTED as f64);
            println!("{name}: {instructions:.1} instructions, {misses:.2} misses");
        }
    }
}

fn run(program: &Path, work: &str) -> f64 {
    let output = Command::new(program).arg(work).output().expect("the program was built");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| panic!("{}: {text}{}", program.display(), String::from_utf8_lossy(&output.stderr)))
}

/// Instructions, and misses of a first-level cache of 32 KiB, of one run; `None` if valgrind cannot be started.
fn callgrind(program: &Path, work: &str, times: usize) -> Option<[f64; 2]> {
    let tool = ["--tool=callgrind", "--callgrind-out-file=/dev/null", "--cache-sim=yes", "--D1=32768,8,64", "--LL=33554432,16,64"];
    let output = Command::new("valgrind").args(tool).arg(program).args([work, &times.to_string()]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    // "==pid== Collected : Ir Dr Dw I1mr D1mr D1mw .."
    let collected = text.lines().find_map(|line| line.split("Collected :").nth(1)).unwrap_or_else(|| panic!("valgrind: {text}"));
    let counts: Vec<f64> = collected.split_whitespace().map(|count| count.parse().expect("a count")).collect();
    Some([counts[0], counts[4] + counts[5]])
}

/// The programs of all layouts, built anew unless they are younger than this one.
fn build_all() -> Vec<Pair> {
    if !COUNTS {
        panic!("this is a build that is compared with");
    }
    let us = env::current_exe().expect("this program");
    let target = us.ancestors().nth(3).expect("TARGET/release/examples");
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    let build = |folder: &str, flags: &str| -> Vec<PathBuf> {
        LAYOUTS.iter().map(|layout| build(&us, &target.join(folder), flags, layout)).collect()
    };
    let (counting, silent) = (build("counted", &flags), build("uncounted", &(flags.clone() + " --cfg sinew_counters=\"off\"")));
    counting.into_iter().zip(silent).map(|(counting, silent)| Pair { counting, silent }).collect()
}

/// Builds this program, with these flags, in a folder of its own beside the other builds.
fn build(us: &Path, target: &Path, flags: &str, (name, options): &Layout) -> PathBuf {
    let program = target.join(format!("counting, {name}"));
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    if changed(&program).is_ok_and(|built| built > changed(us).expect("this program")) {
        return program;
    }
    // All code is compiled with the last crate (`lto`), so its options say where all of it lies.
    let status = Command::new(env::var("CARGO").unwrap_or("cargo".into()))
        .args(["rustc", "--release", "-p", "sinew", "--example", "counting", "--"])
        .args(*options)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .envs([("RUSTFLAGS", flags), ("CARGO_TARGET_DIR", target.to_str().expect("a plain path"))])
        .status();
    assert!(status.expect("cargo can be started").success(), "{} could not be built", program.display());
    fs::copy(target.join("release/examples/counting"), &program).expect("what was built");
    program
}
