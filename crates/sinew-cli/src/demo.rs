//! `sinew demo`: a million fibers at once, and what they cost.
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
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use indicatif::HumanCount;
use sinew::{JoinHandle, NeverRan, Runtime};

use crate::proc::{self, Memory};
use flock::{Flock, Losses};
use table::{Report, Switches};

/// Fibers that yield in the step `SwitchFew`, while all others wait: so few that their stacks stay in the caches.
const FEW_FIBERS: usize = 1_000;
/// How often each of them yields: about a quarter of a second on two cores.
const FEW_YIELDS: u32 = 40_000;
/// How often each fiber yields in the step `SwitchAll`: a second or so for a million.
const ALL_YIELDS: u32 = 8;

/// What the histogram counts apart at most; longer times count as this one.
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;
/// Significant digits of the histogram.
const LATENCY_DIGITS: u8 = 3;

/// Workers if nobody says otherwise, at least; the library's own rule.
const WORKERS_MIN_DEFAULT: usize = 2;

/// Exit code of a failure, and of a request that is refused.
const FAILED: u8 = 1;
const REFUSED: u8 = 2;

/// A million fibers with a progress bar: what they cost, how fast they are made, woken and switched
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Fibers that are alive at once
    #[arg(long, value_name = "N", default_value = "1_000_000", value_parser = crate::fiber_count, allow_negative_numbers = true)]
    fibers: u32,

    /// Stack of each fiber, as in 65536, 64K or 1M [default: the library's, 256K]
    #[arg(long, value_name = "BYTES", env = "SINEW_STACK", value_parser = crate::stack_bytes, allow_negative_numbers = true)]
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
        Err(failure) => {
            eprintln!("error: {}", failure.text);
            ExitCode::from(failure.code)
        }
    }
}

/// Why there is no table.
struct Failure {
    text: String,
    code: u8,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let code = if error.kind() == io::ErrorKind::InvalidInput { REFUSED } else { FAILED };
        Self { text: error.to_string(), code }
    }
}

fn perform(arguments: &Arguments) -> Result<Report, Failure> {
    let begun = Instant::now();
    let fibers = arguments.fibers as usize;
    let mut latencies_ns =
        Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS).expect("bounds and number of digits are valid ones");
    let troupe = Troupe::assemble(arguments)?;

    let before = Memory::now()?;
    let spawn = troupe.play(Step::Spawn, fibers)?;
    let after = Memory::now()?;
    let mappings = proc::mappings()?;
    troupe.check_all_wait()?;
    let memory_bytes = after.total_bytes().saturating_sub(before.total_bytes());
    eprintln!("{:<8} {:.2} KiB per waiting fiber, {mappings} mappings", "memory", memory_bytes as f64 / fibers as f64 / 1024.0);

    let wake = troupe.play(Step::Wake, fibers)?;
    troupe.flocks.iter().flat_map(Flock::latencies_ns).for_each(|ns| latencies_ns.saturating_record(ns));
    let few = fibers.min(FEW_FIBERS);
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
        switch_few: switches(few, FEW_YIELDS, switch_few),
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
    stack_bytes: usize,
    /// Last: its drop waits for the fibers.
    _runtime: Runtime,
}

impl Troupe {
    /// Starts the runtime, and a shepherd on each worker.
    fn assemble(arguments: &Arguments) -> io::Result<Self> {
        let workers = arguments.workers.unwrap_or_else(default_workers);
        let builder = Runtime::builder().workers(workers);
        let runtime = arguments.stack.into_iter().fold(builder, |b, bytes| b.stack_size(bytes)).build()?;

        let share = |total: usize, i: usize| total * (i + 1) / workers - total * i / workers;
        // Leaked: fibers borrow them for as long as they like, and the process ends after the demo.
        let flocks: &'static [Flock] = Box::leak((0..workers).map(|i| Flock::new(share(arguments.fibers as usize, i))).collect());
        let stage: &'static Stage = Box::leak(Box::new(Stage(AtomicUsize::new(0))));
        let all_here: &'static Barrier = Box::leak(Box::new(Barrier::new(workers + 1)));
        let (sender, reports) = channel();
        let shepherd = |(i, flock): (usize, &'static Flock)| {
            let (few, sender) = (share(FEW_FIBERS, i), sender.clone());
            runtime.spawn(move || {
                // A barrier of std blocks the thread: a worker with a shepherd takes no second one.
                all_here.wait();
                tend(flock, few, stage, &sender);
            })
        };
        let shepherds: Vec<_> = flocks.iter().enumerate().map(shepherd).collect();
        all_here.wait();
        let stack_bytes = shepherds.first().map_or(0, |shepherd| shepherd.fiber().stack_size());
        Ok(Self { flocks, stage, shepherds, reports, stack_bytes, _runtime: runtime })
    }

    /// Lets the shepherds do `step`, shows how far they are, and returns how long it took.
    fn play(&self, step: Step, fibers: usize) -> Result<Duration, Failure> {
        let phase = progress::Phase::begin(step.name(), fibers as u64);
        self.stage.open(step);
        self.shepherds.iter().for_each(|shepherd| shepherd.fiber().unpark());
        let mut losses = Losses::default();
        let mut refused = None;
        for _ in 0..self.flocks.len() {
            match self.await_report(&phase)? {
                Ok(more) => {
                    losses.fibers += more.fibers;
                    losses.first = losses.first.or(more.first);
                }
                Err(error) => refused = Some(error),
            }
        }
        phase.show(fibers);
        let took = phase.end();
        match (refused, losses.first) {
            (None, None) => Ok(took),
            (Some(error), _) => Err(Failure { text: format!("fibers could not be spawned: {error}"), code: FAILED }),
            (None, Some(first)) => {
                let text =
                    format!("{} of {} fibers failed; one says: {first}", HumanCount(losses.fibers as u64), HumanCount(fibers as u64));
                Err(Failure { text, code: FAILED })
            }
        }
    }

    /// The next report of a shepherd; until it comes, the bar is drawn.
    fn await_report(&self, phase: &progress::Phase) -> Result<io::Result<Losses>, Failure> {
        loop {
            match self.reports.recv_timeout(progress::DRAW_PERIOD) {
                Ok(report) => return Ok(report),
                Err(RecvTimeoutError::Timeout) => phase.show(self.flocks.iter().map(Flock::done).sum()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure { text: "a shepherd of the demo has ended too soon".into(), code: FAILED });
                }
            }
        }
    }

    /// Fails if a fiber has ended that should wait; ends the others first, and asks it why.
    fn check_all_wait(&self) -> Result<(), Failure> {
        let ended: usize = self.flocks.iter().map(Flock::ended).sum();
        if ended == 0 {
            return Ok(());
        }
        let fibers = self.flocks.iter().map(Flock::fibers).sum();
        self.play(Step::End, fibers)?;
        Err(Failure { text: format!("{ended} fibers ended before they were told to"), code: FAILED })
    }
}

/// What a shepherd does: one step after the other, with a report of each.
fn tend(flock: &'static Flock, few: usize, stage: &Stage, reports: &Sender<io::Result<Losses>>) {
    let mut handles = Vec::with_capacity(flock.fibers());
    let mut last = None;
    while last != Some(Step::End) {
        let step = stage.next(last);
        let report = match step {
            Step::Spawn => flock.spawn(&mut handles),
            Step::Wake => Ok(flock.wake(&handles)),
            Step::SwitchFew => Ok(flock.switch(&handles[..few.min(handles.len())], FEW_YIELDS)),
            Step::SwitchAll => Ok(flock.switch(&handles, ALL_YIELDS)),
            Step::End => {
                let _ = reports.send(Ok(flock.end(std::mem::take(&mut handles))));
                return;
            }
        };
        // The main thread receives until the last report, or has given up and does not care.
        let _ = reports.send(report.map(|()| Losses::default()));
        last = Some(step);
    }
}

/// One per CPU that this process may use, as the library's own default.
fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(WORKERS_MIN_DEFAULT, crate::WORKERS_MAX)
}

/// What a fiber that failed has to say.
fn payload_text(payload: &(dyn Any + Send)) -> String {
    if let Some(why) = payload.downcast_ref::<NeverRan>() {
        return why.to_string();
    }
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("(a payload that is no text)"))
}
