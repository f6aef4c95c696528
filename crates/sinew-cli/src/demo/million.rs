//! `sinew demo million`: a million fibers at once, and what they cost.
//!
//! The main thread conducts: it opens one step after the other, draws how far it is, and reads the clock and `/proc`. The work is done by shepherds, one
//! fiber per worker, each with its part of the fibers (`flock.rs`).
//!
//! Nothing is in the table that was not measured in this run. What the demo itself needs, the stamps of each fiber foremost, is in memory before the
//! first measurement; everything that comes with a fiber counts, the handles too.

mod flock;
mod progress;
mod table;

use std::any::Any;
use std::cell::Cell;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use indicatif::HumanCount;
use sinew::sync::Event;
use sinew::{JoinHandle, NeverRan, Runtime};

use crate::failure::Failure;
use crate::interrupt;
use crate::proc::{self, Memory};
use flock::{Flock, Losses};
use table::{Report, Switches};

/// Fibers that yield in the step `SwitchFew`, while all others wait: so few that their stacks stay in the caches.
const FEW_FIBERS: usize = 1_000;
/// How often each of them yields at most: about a quarter of a second on two cores.
const FEW_YIELDS_MAX: usize = 40_000;
/// Switches of that step per fiber of the demo, so that a small demo stays a short one.
const FEW_SWITCHES_EACH: usize = 40;
/// How often each fiber yields in the step `SwitchAll`: a second or so for a million.
const ALL_YIELDS: u32 = 8;

/// How long the shepherds wait for each other to have a worker each. Arbitrary: threads start in less than a millisecond.
const GATHER_MAX: Duration = Duration::from_secs(2);

/// What the histogram counts apart at most; longer times count as this one.
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;
/// Significant digits of the histogram.
const LATENCY_DIGITS: u8 = 3;

/// A million fibers with a progress bar: what they cost, how fast they are made, woken and switched
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Fibers that are alive at once
    #[arg(long, value_name = "N", default_value = "1_000_000", value_parser = crate::fiber_count, allow_negative_numbers = true)]
    fibers: u32,

    /// Stack of each fiber, as in 65536, 64K or 1M [default: the library's, 256K]
    #[arg(long, value_name = "BYTES", env = "SINEW_STACK_SIZE", value_parser = crate::stack_bytes, allow_negative_numbers = true)]
    stack: Option<usize>,

    /// Threads that run fibers [default: one per CPU, at least 2]
    #[arg(long, value_name = "N", env = "SINEW_WORKERS", value_parser = crate::worker_count, allow_negative_numbers = true)]
    workers: Option<usize>,
}

/// Runs the demo.
pub(crate) fn main(arguments: &Arguments) -> ExitCode {
    match perform(arguments) {
        Ok(report) => {
            // Whoever closes our output early does not want the rest.
            let _ = write!(io::stdout(), "{report}");
            ExitCode::SUCCESS
        }
        Err(failure) => failure.tell(),
    }
}

fn perform(arguments: &Arguments) -> Result<Report, Failure> {
    let begun = Instant::now();
    let fibers = arguments.fibers as usize;
    let mut latencies_ns =
        Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS).expect("bounds and number of digits are valid ones");
    let troupe = Troupe::assemble(arguments)?;

    let before = Memory::now()?;
    let spawn = troupe.spawn(fibers)?;
    let (after, mappings) = (Memory::now()?, proc::mappings()?);
    let memory_bytes = after.total_bytes().saturating_sub(before.total_bytes());
    eprintln!("{:<8} {:.2} KiB per parked fiber, {mappings} mappings", "memory", memory_bytes as f64 / fibers as f64 / 1024.0);

    let wake = troupe.play(Step::Wake, fibers)?;
    troupe.flocks.iter().flat_map(Flock::latencies_ns).for_each(|ns| latencies_ns.saturating_record(ns));
    let few = troupe.few();
    let switch_few = troupe.play(Step::SwitchFew, few)?;
    let switch_all = troupe.play(Step::SwitchAll, fibers)?;
    let join = troupe.play(Step::End, fibers)?;
    let (workers, stack_bytes) = (troupe.flocks.len(), troupe.stack_bytes);
    drop(troupe);

    let switches = |fibers, yields, took| Switches { fibers, yields, took };
    Ok(Report {
        fibers,
        workers,
        stack_bytes,
        memory_bytes,
        mappings,
        spawn,
        wake,
        latencies_ns,
        switch_few: switches(few, few_yields(fibers), switch_few),
        switch_all: switches(fibers, ALL_YIELDS, switch_all),
        join,
        total: begun.elapsed(),
    })
}

/// What the shepherds do next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Spawn,
    Wake,
    SwitchFew,
    SwitchAll,
    End,
}

impl Step {
    const ALL: [Step; 5] = [Step::Spawn, Step::Wake, Step::SwitchFew, Step::SwitchAll, Step::End];

    fn name(self) -> &'static str {
        match self {
            Step::Spawn => "spawn",
            Step::Wake => "wake",
            Step::SwitchFew => "switch",
            Step::SwitchAll => "switch",
            Step::End => "join",
        }
    }
}

/// The step that is open; 0 before the first, else its place in [`Step::ALL`] plus one.
struct Stage(AtomicUsize);

impl Stage {
    fn open(&self, step: Step) {
        let place = Step::ALL.iter().position(|&s| s == step).expect("every step is in the list");
        // Release: meets the Acquire in `next`.
        self.0.store(place + 1, Release);
    }

    /// Waits, as a fiber, for another step than `last`.
    fn next(&self, last: Option<Step>) -> Step {
        loop {
            // Acquire: meets the Release in `open`.
            match self.0.load(Acquire).checked_sub(1).map(|place| Step::ALL[place]) {
                Some(step) if Some(step) != last => return step,
                _ => sinew::park(),
            }
        }
    }
}

/// All fibers, seen from the main thread.
struct Troupe {
    flocks: &'static [Flock],
    stage: &'static Stage,
    shepherds: Vec<JoinHandle<()>>,
    reports: Receiver<io::Result<Losses>>,
    /// Ctrl-C has come.
    interrupt: Arc<Event>,
    stack_bytes: usize,
    /// Last: its drop waits for the fibers.
    _runtime: Runtime,
}

impl Troupe {
    /// Starts the runtime, and a shepherd on each worker.
    fn assemble(arguments: &Arguments) -> io::Result<Self> {
        let interrupt = interrupt::listen()?;
        let workers = arguments.workers.unwrap_or_else(crate::default_workers);
        let builder = Runtime::builder().workers(workers);
        let runtime = arguments.stack.into_iter().fold(builder, |b, bytes| b.stack_size(bytes)).build()?;

        let share = |total: usize, i: usize| total * (i + 1) / workers - total * i / workers;
        let flock = |i| Flock::new(share(arguments.fibers as usize, i), share(FEW_FIBERS, i));
        // Leaked: fibers borrow them for as long as they like, and the process ends after the demo.
        let flocks: &'static [Flock] = Box::leak((0..workers).map(flock).collect());
        let stage: &'static Stage = Box::leak(Box::new(Stage(AtomicUsize::new(0))));
        let gathered: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
        let (sender, reports) = channel();
        let few_yields = few_yields(arguments.fibers as usize);
        let shepherd = |flock: &'static Flock| {
            let reporter = Reporter { sender: sender.clone(), over: Cell::new(false) };
            runtime.spawn(move || {
                gather(gathered, workers + 1);
                tend(flock, few_yields, stage, &reporter);
            })
        };
        let shepherds: Vec<_> = flocks.iter().map(shepherd).collect();
        gather(gathered, workers + 1);
        let stack_bytes = shepherds.first().map_or(0, |shepherd| shepherd.fiber().stack_size());
        Ok(Self { flocks, stage, shepherds, reports, interrupt, stack_bytes, _runtime: runtime })
    }

    /// Fibers that yield in the step `SwitchFew`.
    fn few(&self) -> usize {
        self.flocks.iter().map(Flock::few).sum()
    }

    /// Makes all fibers. If some fail, the others are ended before it is told.
    fn spawn(&self, fibers: usize) -> Result<Duration, Failure> {
        let spawned = self.play(Step::Spawn, fibers);
        let ended: usize = self.flocks.iter().map(Flock::ended).sum();
        if spawned.is_ok() && ended == 0 {
            return spawned;
        }
        let end = self.play(Step::End, fibers);
        let why = spawned.err().or(end.err());
        Err(why.unwrap_or_else(|| Failure::new(format!("{ended} fibers ended before they were told to"))))
    }

    /// Lets the shepherds do `step`, shows how far they are, and returns how long it took.
    fn play(&self, step: Step, fibers: usize) -> Result<Duration, Failure> {
        let phase = progress::Phase::begin(step.name(), fibers as u64);
        self.stage.open(step);
        self.shepherds.iter().for_each(|shepherd| shepherd.fiber().unpark());
        let reports: Vec<_> = self.shepherds.iter().map(|_| self.await_report(&phase)).collect();
        phase.show(self.flocks.iter().map(Flock::done).sum());
        let took = phase.end();

        let mut losses = Losses::default();
        for report in reports {
            losses.add(report?);
        }
        match losses.first {
            None => Ok(took),
            Some(first) => {
                let (lost, all) = (HumanCount(losses.fibers as u64), HumanCount(fibers as u64));
                Err(Failure::new(format!("{lost} of {all} fibers failed; one of them: {first}")))
            }
        }
    }

    /// The next report of a shepherd; until it comes, the bar is drawn. Ctrl-C ends the process.
    fn await_report(&self, phase: &progress::Phase) -> io::Result<Losses> {
        loop {
            let report = self.reports.recv_timeout(progress::DRAW_PERIOD);
            let done = || self.flocks.iter().map(Flock::done).sum();
            if self.interrupt.is_set() {
                phase.cut_short(done());
            }
            match report {
                Ok(report) => return report,
                Err(RecvTimeoutError::Timeout) => phase.show(done()),
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the shepherds of the demo have ended too soon")),
            }
        }
    }
}

/// Keeps this thread, not only this fiber, until `all` are here: a worker with a shepherd takes no second one.
///
/// For a while only: shepherds that must share a worker, because one found no stack, are slower and do the same.
fn gather(gathered: &AtomicUsize, all: usize) {
    gathered.fetch_add(1, Relaxed);
    let begun = Instant::now();
    while gathered.load(Relaxed) < all && begun.elapsed() < GATHER_MAX {
        std::thread::yield_now();
    }
}

/// Where a shepherd reports to. The main thread counts on a report of each step, so an end before the last is one too.
struct Reporter {
    sender: Sender<io::Result<Losses>>,
    /// The last step was reported.
    over: Cell<bool>,
}

impl Reporter {
    fn report(&self, step: Step, result: io::Result<Losses>) {
        self.over.set(step == Step::End);
        // A main thread that has given up does not care.
        let _ = self.sender.send(result);
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if !self.over.get() {
            self.report(Step::End, Err(io::Error::other("a shepherd of the demo panicked, or found no memory for its stack")));
        }
    }
}

/// How often each of the few yields in a demo of `fibers`.
fn few_yields(fibers: usize) -> u32 {
    (fibers * FEW_SWITCHES_EACH / fibers.min(FEW_FIBERS)).min(FEW_YIELDS_MAX) as u32
}

/// What a shepherd does: one step after the other, with a report of each.
fn tend(flock: &'static Flock, few_yields: u32, stage: &Stage, reporter: &Reporter) {
    let mut handles = Vec::with_capacity(flock.fibers());
    let mut last = None;
    while last != Some(Step::End) {
        let step = stage.next(last);
        let result = match step {
            Step::Spawn => flock.spawn(&mut handles),
            Step::Wake => flock.wake(&handles),
            Step::SwitchFew => flock.switch(&handles[..flock.few()], few_yields),
            Step::SwitchAll => flock.switch(&handles, ALL_YIELDS),
            Step::End => flock.end(std::mem::take(&mut handles)),
        };
        reporter.report(step, result);
        last = Some(step);
    }
}

/// What a fiber that failed has to say.
fn payload_text(payload: &(dyn Any + Send)) -> String {
    if let Some(why) = payload.downcast_ref::<NeverRan>() {
        return why.to_string();
    }
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("(a payload that is no text)"))
}
