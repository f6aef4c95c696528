//! `sinew stress`: storms over runtimes of every size, with sequence checks, until the time is over or a check fails.
//!
//! Every choice comes from the seed (`random.rs`): the sizes of the runtimes, the storms (`storms.rs`, `sockets.rs`), who wakes whom. What the kernel makes of
//! it does not, so a failure may need several runs to come again. The checks are in `ledger.rs`, and who looks after lost wakes is in
//! `watchdog.rs`.
//!
//! A round is one runtime: it is built, storms rage over it in waves for half a second, and it is dropped, sometimes with fibers in it. After it
//! every fiber must have ended, and every socket be closed. After the last, memory must be back where it was after the first.

mod failure;
mod leaks;
mod ledger;
mod random;
mod sched;
mod sockets;
mod storms;
mod streams;
mod watchdog;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use sinew::{Io, Runtime};

use crate::engine;
use crate::failure::Failure;
use crate::interrupt;
use crate::proc::{self, Memory};
use failure::{Recipe, check, fail};
use ledger::{LEDGER, Life, STACK_SIZES, Sums};
use random::Random;
use sched::{Plan, Tally};
use storms::{Stage, Storm, rage};

/// Exit code of a failure.
const FAILED: u8 = 1;

/// Waves begin for this long in each round; the last one is ended.
const ROUND_TIME: Duration = Duration::from_millis(500);
/// Sizes that every run of eight rounds has, besides one that the seed chooses: the smallest, the usual, and both sides of 32 and the end of the masks.
const SIZES: [usize; 7] = [1, 2, 3, 8, 31, 33, 64];

/// Storm roots of a wave in the runtime, and plain threads, at most.
const ROOTS_MAX: usize = 6;
const THREADS_MAX: usize = 3;
/// Storms of each, at most.
const STORMS_EACH_MAX: usize = 3;

/// How far memory may be above its base when all is over. Under a sanitizer nothing is checked: what it keeps for itself is more than all of ours.
const GROWTH_BYTES_MAX: u64 = if SANITIZED { u64::MAX / 2 } else { 64 << 20 };
const SANITIZED: bool = cfg!(any(sinew_sanitize = "thread", sinew_sanitize = "address"));
/// And the heap, which is counted to the byte: it grows with the most fibers there ever were at once, and with what the first workers had not yet counted. By 1.8 MiB at most in runs of 20 and 45 s of each kind, and twice that is allowed.
const HEAP_GROWTH_BYTES_MAX: u64 = 4 << 20;
/// And for each worker more than the first round's runtime had room for: the library keeps its place for the next, with queues and histograms (22.6 KiB).
const HEAP_PLACE_BYTES_MAX: u64 = 24 << 10;
/// How long it may take to return. Idle workers give pages back after a second.
const RETURN_TIME_MAX: Duration = Duration::from_secs(15);
/// Memory is at rest if it has not fallen for this long: longer than workers wait before they give pages back.
const REST: Duration = Duration::from_millis(1_500);
/// Falls that count.
const FALL_BYTES_MIN: u64 = 1 << 20;
const MEMORY_PERIOD: Duration = Duration::from_millis(50);

/// Stacks that a worker may keep of each size, and take at once: `CACHE_MAX` and `BATCH` of the library.
const STACKS_PER_WORKER: u64 = 64 + 32;

/// The library waits 5 s for the fibers of a dropped runtime. A fiber that should have ended is noticed by this.
const DROP_TIME_MAX: Duration = Duration::from_millis(4_500);

/// Fibers that are alone with their runtime end within this, or the watchdog speaks; how often the main thread looks.
const DRAIN_PERIOD: Duration = Duration::from_micros(200);

/// No bar: what there is to say of a round leaves no room for one on common terminals, and is cut to their width.
const LINE: &str = "stress {pos:>3} / {len} s  {wide_msg}";

/// Connections that may be open at once in storms of sockets.
const CONNECTIONS_MAX: usize = 3_500;
/// Descriptors that the default runtime, which plain threads spawn into, keeps: for each worker a driver's and that of a timer set ahead; for each group those of its epoll instance and of the alarm there. Bells, which are event counters, are not
/// looked at: those of runtimes that have ended stay for those that come, and where the threads of one are slow to end the next has new ones.
const DESCRIPTORS_PER_WORKER: usize = 2;
const DESCRIPTORS_PER_GROUP: usize = 2;
/// Most workers of a storm: those of a group. More would storm no harder on any machine that this is run on.
const WORKERS_MAX: usize = 64;

/// Storms over 1 to 64 workers, with every law checked: fibers that spawn, park, wake, sleep and panic, sockets that stall, break and are closed, or schedulers of every kind
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What the storms are made of
    #[arg(default_value = "fibers")]
    kind: Kind,

    /// How long the storms last
    #[arg(long, value_name = "N", default_value = "10", value_parser = seconds, allow_negative_numbers = true)]
    seconds: u64,

    /// Where all random choices come from [default: the clock]
    #[arg(long, value_name = "S", value_parser = whole, allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Workers of every round's runtime [default: another number each round]
    #[arg(long, value_name = "W", value_parser = worker_count, allow_negative_numbers = true)]
    workers: Option<usize>,

    /// Runs this round only, over and over
    #[arg(long, value_name = "R", value_parser = whole, allow_negative_numbers = true)]
    round: Option<u64>,

    /// The driver of every round's runtime: uring or epoll [default: both in turn; only for io]
    #[arg(long, value_name = "DRIVER", value_parser = engine::driver)]
    io: Option<Io>,
}

/// What storms are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Fibers, and all that they wait for in the process
    Fibers,
    /// Sockets, by both drivers
    Io,
    /// Fibers, over schedulers of every kind: groups, queues, policies, fibers that move, workers that come later
    Sched,
}

/// What a run is made of.
struct Weather {
    storms: &'static [Storm],
    /// Of each round's runtime, in turn; none for the library's choice.
    drivers: Vec<Io>,
    wait_for_ever: fn(&Stage<'_>),
    /// Whether each round has a scheduler of its own kind.
    plans: bool,
}

/// Whether started fibers of a round of sockets move. Those that do wait at another place for them, whatever the driver, and on a spare among other workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moves {
    Never,
    Alone,
    WithSpares,
}

impl Moves {
    /// In turn.
    const ALL: [Self; 3] = [Self::Never, Self::Alone, Self::WithSpares];

    fn spares(self) -> usize {
        if self == Self::WithSpares { sched::SPARES_MAX } else { 0 }
    }

    /// As a round's line has it.
    fn text(self) -> &'static str {
        match self {
            Self::Never => "",
            Self::Alone => "  moving",
            Self::WithSpares => "  spares",
        }
    }
}

impl Weather {
    fn of(kind: Kind, io: Option<Io>) -> Self {
        match kind {
            Kind::Fibers => Self { storms: &storms::STORMS, drivers: Vec::new(), wait_for_ever: storms::park_for_ever, plans: false },
            Kind::Sched => Self { storms: &sched::STORMS, drivers: Vec::new(), wait_for_ever: storms::park_for_ever, plans: true },
            Kind::Io => {
                let drivers = io.map_or_else(engine::drivers, |io| vec![io]);
                Self { storms: &sockets::STORMS, drivers, wait_for_ever: sockets::read_for_ever, plans: false }
            }
        }
    }

    fn driver(&self, round: u64) -> Option<Io> {
        self.drivers.get(round as usize % self.drivers.len().max(1)).copied()
    }

    /// Whether fibers of a round move, if that is not for its scheduler to say: each driver has all of it in turn.
    fn moves(&self, round: u64) -> Moves {
        let turn = (round as usize).checked_div(self.drivers.len());
        turn.map_or(Moves::Never, |turn| Moves::ALL[turn % Moves::ALL.len()])
    }

    /// The scheduler of a round, if each has its own.
    fn plan(&self, seed: u64, round: u64, workers: usize) -> Option<Plan> {
        self.plans.then(|| Plan::of(round, workers, &mut stream(seed, round, u64::MAX)))
    }

    fn runtime(&self, round: u64, workers: usize) -> Runtime {
        let (builder, moves) = (Runtime::builder().workers(workers), self.moves(round));
        LEDGER.moving.store(moves != Moves::Never, Relaxed);
        let builder = match moves {
            Moves::Never => builder,
            // SAFETY: the storms keep nothing of a thread across a suspension (`stress/sched.rs`).
            Moves::Alone | Moves::WithSpares => unsafe { builder.spare_workers(moves.spares()).migrate_started_fibers() },
        };
        let runtime = self.driver(round).into_iter().fold(builder, |builder, io| builder.io(io)).build();
        runtime.unwrap_or_else(|error| fail(format_args!("no runtime of {workers} workers: {error}")))
    }
}

fn seconds(text: &str) -> Result<u64, String> {
    let allowed = 1..=86_400;
    text.parse().ok().filter(|n| allowed.contains(n)).ok_or_else(|| "it must be a whole number of seconds from 1 to 86400".into())
}

fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("it must be a whole number from 0 to {}", u64::MAX))
}

/// Runs the storms.
pub(crate) fn main(arguments: &Arguments) -> ExitCode {
    let seed = arguments.seed.unwrap_or_else(clock_seed);
    if arguments.kind != Kind::Io && arguments.io.is_some() {
        return Failure::refusal("--io is for storms of sockets: sinew stress io".into()).tell();
    }
    if let Some(failure) = (arguments.kind == Kind::Io).then(|| engine::raise_descriptors(CONNECTIONS_MAX).err()).flatten() {
        return failure.tell();
    }
    // The default runtime, which storms spawn into, is made of the environment: what is wrong there is no fault of a fiber.
    if let Err(error) = Runtime::builder().build() {
        return Failure::from(error).tell();
    }
    let weather = Weather::of(arguments.kind, arguments.io);
    failure::prepare(Recipe { seed, arguments: arguments.text() });
    say(format_args!("stress: seed {seed}, {} s", arguments.seconds));
    if let Err(error) = watchdog::start() {
        fail(format_args!("no thread for the watchdog: {error}"));
    }
    let begun = Instant::now();
    let line = Line::new(arguments.seconds);
    if let Err(error) = end_at_interrupt(begun, line.clone()) {
        return Failure::from(error).tell();
    }
    let rounds = run_rounds(arguments, seed, &weather, &line);
    // The heap first: what is counted to the byte says more.
    check_heap(rounds.heap_bytes, rounds.places_more);
    let memory = check_memory(rounds.base_bytes);
    line.clear();
    if arguments.kind == Kind::Io {
        say(format_args!("{}", streams::TALLY.text()));
    }
    rounds.schedulers.lines().for_each(|line| say(format_args!("{line}")));
    let Sums { spawned, ended, panicked, unrun, wakes } = LEDGER.sums();
    let [spawned, ended, panicked, unrun, wakes] = [spawned, ended, panicked, unrun, wakes].map(HumanCount);
    say(format_args!("fibers: {ended} ended, {panicked} panicked as planned, {unrun} dropped unrun"));
    let (stacks, base) = (HumanCount(sinew::metrics().stacks as u64), rounds.base_bytes >> 20);
    say(format_args!("{wakes} wakes, {stacks} stacks, memory {} MiB (base {base} MiB)", memory >> 20));
    say(format_args!("ok: {} rounds, {spawned} fibers, {:.1} s", rounds.count, begun.elapsed().as_secs_f64()));
    ExitCode::SUCCESS
}

/// Ctrl-C ends the process, with a line.
fn end_at_interrupt(begun: Instant, line: Line) -> io::Result<()> {
    let interrupt = interrupt::listen()?;
    interrupt::in_thread(move || {
        interrupt.wait();
        line.clear();
        let ((_, round), fibers) = (failure::seed_and_round(), HumanCount(LEDGER.sums().spawned));
        let took = begun.elapsed().as_secs_f64();
        interrupt::end(format_args!("after {took:.1} s, in round {round}, {fibers} fibers; no check has failed"));
    })
}

impl Arguments {
    /// As they were given, without the seed and the round.
    fn text(&self) -> String {
        let kind = match self.kind {
            Kind::Fibers => "",
            Kind::Io => " io",
            Kind::Sched => " sched",
        };
        let workers = self.workers.map_or(String::new(), |n| format!(" --workers {n}"));
        let io = self.io.map_or(String::new(), |io| format!(" --io {}", engine::name(io)));
        format!("{kind} --seconds {}{workers}{io}", self.seconds)
    }
}

fn clock_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Whoever closes our output early does not want it, which is no failure.
fn say(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// How far the run is: a line that changes on a terminal, a line per round elsewhere.
#[derive(Clone)]
struct Line(ProgressBar);

impl Line {
    fn new(seconds: u64) -> Self {
        let line = ProgressBar::new(seconds);
        line.set_style(ProgressStyle::with_template(LINE).expect("the template is a valid one"));
        Self(line)
    }

    fn show(&self, line: &str, stormed: Duration) {
        if self.0.is_hidden() {
            say(format_args!("{line}"));
        } else {
            self.0.set_position(stormed.as_secs());
            self.0.set_message(line.to_owned());
        }
    }

    fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// What the rounds leave behind.
struct Rounds {
    count: u64,
    /// Memory after the first, and the part of it that is on the heap.
    base_bytes: u64,
    heap_bytes: u64,
    /// By how many workers a later runtime had more room than the first.
    places_more: usize,
    /// What was done over schedulers of each combination.
    schedulers: Tally,
}

fn run_rounds(arguments: &Arguments, seed: u64, weather: &Weather, line: &Line) -> Rounds {
    let (mut count, mut base_bytes, mut heap_bytes, mut workers_max) = (0, 0, 0, 0);
    let (mut places_first, mut places_max) = (0, 0);
    let mut stormed = Duration::ZERO;
    let mut schedulers = Tally::default();
    let descriptors = descriptors();
    while stormed < Duration::from_secs(arguments.seconds) {
        let round = arguments.round.unwrap_or(count + 1);
        let workers = arguments.workers.unwrap_or_else(|| workers_of(seed, round));
        workers_max = workers_max.max(workers);
        let before = LEDGER.sums();
        let begun = Instant::now();
        places_max = places_max.max(run_round(seed, round, workers, weather));
        check_stacks(workers_max);
        check_descriptors(descriptors);
        stormed += begun.elapsed();
        count += 1;

        let now = LEDGER.sums();
        let (fibers, wakes) = (now.spawned - before.spawned, now.wakes - before.wakes);
        let took = begun.elapsed();
        let io = weather.driver(round).map_or(String::new(), |io| format!("  {}", engine::name(io)));
        let plan = weather.plan(seed, round, workers);
        plan.iter().for_each(|plan| schedulers.count(plan, fibers, wakes, took));
        let plan = plan.map_or(String::new(), |plan| format!("  {plan}"));
        let took = took.as_secs_f64();
        let moves = weather.moves(round).text();
        let (of, done) = (format!("workers {workers:>2}{io}"), format!("fibers {fibers:>7}  wakes {wakes:>7}  {took:.2} s"));
        line.show(&format!("round {round:>4}  {of}  {done}{moves}{plan}"), stormed);
        if count == 1 {
            base_bytes = memory_at_rest();
            heap_bytes = proc::heap_bytes();
            places_first = places_max;
        }
    }
    Rounds { count, base_bytes, heap_bytes, places_more: places_max - places_first, schedulers }
}

/// The stream of a round, or of a part of it.
fn stream(seed: u64, round: u64, part: u64) -> Random {
    let mut random = Random::new(seed);
    let mut random = Random::new(random.next() ^ round);
    Random::new(random.next() ^ part)
}

/// A number of workers for storms.
fn worker_count(text: &str) -> Result<usize, String> {
    let count = crate::worker_count(text).ok().filter(|&n| n <= WORKERS_MAX);
    count.ok_or_else(|| format!("it must be a whole number from 1 to {WORKERS_MAX}"))
}

/// Workers of a round: each run of eight has all of `SIZES` and one more, in an order of its own.
fn workers_of(seed: u64, round: u64) -> usize {
    let (index, deck_size) = (round.saturating_sub(1), SIZES.len() as u64 + 1);
    let (deck, place) = (index / deck_size, (index % deck_size) as usize);
    let mut random = stream(seed, deck, u64::MAX);
    let mut sizes = SIZES.to_vec();
    sizes.push(random.between(1, WORKERS_MAX));
    random.shuffle(&mut sizes);
    sizes[place]
}

/// Returns how many workers its runtime had room for.
fn run_round(seed: u64, round: u64, workers: usize, weather: &Weather) -> usize {
    failure::enter_round(round);
    watchdog::watch_round(true);
    let begun = Instant::now();
    let plan = weather.plan(seed, round, workers);
    let runtime = plan.as_ref().map_or_else(|| weather.runtime(round, workers), Plan::build);
    let mut waves = 0;
    while waves == 0 || begun.elapsed() < ROUND_TIME {
        waves += 1;
        run_wave(&runtime, &mut stream(seed, round, waves), weather.storms);
    }
    await_strays();
    let metrics = runtime.metrics();
    match plan {
        Some(plan) => plan.check(&runtime),
        None => {
            // Each group has its own.
            let spares = weather.moves(round).spares() * metrics.groups.len();
            let found = metrics.workers.len();
            check!((workers..=workers + spares).contains(&found), "a runtime of {workers} workers, and {spares} to spare, has {found}");
        }
    }

    let dropping = Instant::now();
    storms::last_ones(runtime, &mut stream(seed, round, 0), weather.wait_for_ever);
    let took = dropping.elapsed();
    check!(took < DROP_TIME_MAX, "dropping a runtime of {workers} workers took {took:?}");
    await_strays();
    watchdog::watch_round(false);
    metrics.groups.iter().map(|group| group.workers_max + group.spares_max).sum()
}

/// Storms in fibers of the runtime and on plain threads, all at once.
fn run_wave(runtime: &Runtime, random: &mut Random, storms: &'static [Storm]) {
    std::thread::scope(|s| {
        for _ in 0..random.between(0, THREADS_MAX) {
            let (mut random, count) = (random.fork(), random.between(1, STORMS_EACH_MAX));
            s.spawn(move || {
                let me = Life::of_thread("plain thread");
                rage(&Stage { me: &me, runtime: Some(runtime) }, &mut random, storms, count);
                me.finish();
            });
        }
        let me = Life::of_thread("main thread");
        let stage = Stage { me: &me, runtime: Some(runtime) };
        let mut roots = Vec::new();
        for _ in 0..random.between(1, ROOTS_MAX) {
            let count = random.between(1, STORMS_EACH_MAX);
            roots.push(stage.spawn("root", random, move |stage, random| rage(stage, random, storms, count)));
        }
        random.shuffle(&mut roots);
        roots.into_iter().for_each(|root| stage.join(root));
        me.finish();
    });
}

/// Waits for detached fibers; then everybody must have ended, once.
fn await_strays() {
    loop {
        let sums = LEDGER.sums();
        let over = sums.ended + sums.panicked + sums.unrun;
        check!(over <= sums.spawned, "{over} fibers ended and {} were spawned", sums.spawned);
        if over == sums.spawned {
            break;
        }
        std::thread::sleep(DRAIN_PERIOD);
    }
    if let Some(record) = LEDGER.present().first() {
        fail(format_args!("all spawned fibers have ended, but there is {record}"));
    }
}

/// There are no more stacks than were needed at once, but for those that workers keep.
fn check_stacks(workers_max: usize) {
    // As many again in each of the background groups; and spares in every group, which has a worker at least.
    let workers_max = workers_max * (1 + sched::BACKGROUND_MAX) * (1 + sched::SPARES_MAX);
    let default_workers = std::thread::available_parallelism().map_or(1, usize::from).max(2);
    let kept = (workers_max + default_workers) as u64 * STACKS_PER_WORKER * STACK_SIZES.len() as u64;
    let (stacks, alive) = (sinew::metrics().stacks as u64, LEDGER.alive_max());
    check!(stacks <= alive + kept, "{stacks} stacks exist; at most {alive} fibers were alive at once, and workers may keep {kept}");
}

fn descriptors() -> usize {
    proc::descriptors().unwrap_or_else(|error| fail(format_args!("open descriptors cannot be counted: {error}")))
}

/// There are no more descriptors than at first, but for those that are kept. Threads that have just ended may close theirs a little later.
fn check_descriptors(base: usize) {
    let (begun, default) = (Instant::now(), sinew::metrics());
    let kept = DESCRIPTORS_PER_WORKER * default.workers.len() + DESCRIPTORS_PER_GROUP * default.groups.len();
    while descriptors() > base + kept {
        check!(
            begun.elapsed() < RETURN_TIME_MAX,
            "{} descriptors are open after a round; {base} were before the first, and {kept} may be kept",
            descriptors()
        );
        std::thread::sleep(MEMORY_PERIOD);
    }
}

fn resident_bytes() -> u64 {
    Memory::now().unwrap_or_else(|error| fail(format_args!("memory cannot be measured: {error}"))).resident_bytes
}

/// Waits until memory falls no more.
fn memory_at_rest() -> u64 {
    let (mut lowest, mut since) = (resident_bytes(), Instant::now());
    while since.elapsed() < REST {
        std::thread::sleep(MEMORY_PERIOD);
        let now = resident_bytes();
        if now + FALL_BYTES_MIN <= lowest {
            (lowest, since) = (now, Instant::now());
        }
    }
    lowest
}

/// Waits until the heap is back at its base, but for the places of so many workers. A leak is seen here long before it is in memory, most of which is pages of stacks.
fn check_heap(base_bytes: u64, places_more: usize) {
    let begun = Instant::now();
    let bytes_max = base_bytes + HEAP_GROWTH_BYTES_MAX + places_more as u64 * HEAP_PLACE_BYTES_MAX;
    while proc::heap_bytes() > bytes_max {
        check!(
            begun.elapsed() < RETURN_TIME_MAX,
            "the heap does not return: {} KiB after {RETURN_TIME_MAX:?} of rest, {} KiB after the first round, and {} KiB may be kept",
            proc::heap_bytes() >> 10,
            base_bytes >> 10,
            bytes_max >> 10
        );
        std::thread::sleep(MEMORY_PERIOD);
    }
}

/// Waits until memory is back at its base, and returns it.
fn check_memory(base_bytes: u64) -> u64 {
    let begun = Instant::now();
    loop {
        let now = resident_bytes();
        if now <= base_bytes + GROWTH_BYTES_MAX {
            return now;
        }
        check!(
            begun.elapsed() < RETURN_TIME_MAX,
            "memory does not return: {} MiB after {RETURN_TIME_MAX:?} of rest, {} MiB after the first round",
            now >> 20,
            base_bytes >> 20
        );
        std::thread::sleep(MEMORY_PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_eight_rounds_have_all_sizes() {
        for deck in 0..20 {
            let sizes: Vec<_> = (deck * 8 + 1..=deck * 8 + 8).map(|round| workers_of(7, round)).collect();
            assert!(SIZES.iter().all(|size| sizes.contains(size)), "{sizes:?}");
        }
    }
}
