//! The work itself, written once for each shape of system, so that all do the same.
//!
//! `blocking` is for systems whose tasks are plain closures, `futures` for those whose tasks are futures, `raw` for bare switches. Here is what the
//! shapes share. A system only says how it spawns, joins, yields, sleeps and waits.

pub(crate) mod blocking;
pub(crate) mod files;
pub(crate) mod futures;
pub(crate) mod raw;
pub(crate) mod servers;
pub(crate) mod storm;

use std::arch::asm;
use std::hint::black_box;
use std::ops::DerefMut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::job::{Job, Reading};
use crate::proc;
use crate::stats::quantile;

/// Children of an inner task of `Skynet`, as in every other program of that name.
pub(crate) const SKYNET_CHILDREN: usize = 10;
/// Steps of `compute` in a task of `FanOut`: about 100 ns at 3 GHz. A number and not a time, so that all systems do the same work.
pub(crate) const SHORT_STEPS: usize = 50;
/// And in all tasks of `Unbalanced` together: about 40 ms.
const UNBALANCED_STEPS: usize = 20_000_000;
/// Runs of which the shortest is what so many steps take.
const LONG_TRIES: usize = 100;
/// Time between two wakes from a thread: 1000 per second.
const WAKE_GAP: Duration = Duration::from_millis(1);
/// Sleep of the one timer of `Idle`: longer than any measurement.
pub(crate) const IDLE_TIMER: Duration = Duration::from_secs(100);
/// How long parked tasks are left alone before their memory is read: allocators and schedulers may still tidy up.
pub(crate) const SETTLE: Duration = Duration::from_millis(300);
/// How often a root task looks whether all others have started.
pub(crate) const LOOK: Duration = Duration::from_millis(5);
/// Tasks that run before memory is read first, so that the workers themselves are not counted.
pub(crate) const PARKED_WARM_UP: usize = 16;
/// Of so many turns at a lock of `RwLock` one is a write.
const TURNS_PER_WRITE: usize = 10;
/// Tasks that send in `TwoToOne` and `TwoToTwo`.
pub(crate) const PRODUCERS: usize = 2;
/// Places of their channel.
pub(crate) const CHANNEL_PLACES: usize = 1024;
/// Ends a consumer of theirs. Why not the end of the senders: with several consumers, may's channel sometimes forgets to tell one.
pub(crate) const LAST_MESSAGE: u64 = u64::MAX;
/// Channels of `Select`, one producer each.
pub(crate) const SELECT_CHANNELS: usize = 8;
/// Places of each: few, so that the receiver often finds all empty and has to wait at all of them.
pub(crate) const SELECT_PLACES: usize = 1;
/// Why an operation cannot fail: no task panics under a lock,
pub(crate) const UNPOISONED: &str = "no task panics under the lock";
/// a receiver outlives what is sent,
pub(crate) const RECEIVED: &str = "the receiver is there until all is sent";
/// and a sender what is received.
pub(crate) const SENT: &str = "a sender is there until all is received";

/// Finds how many turns fill the budget, as Go's benchmarks do; the runs before the last warm up.
pub(crate) struct Pace {
    pub(crate) turns: usize,
    budget: Duration,
    warm: bool,
}

impl Pace {
    /// Each step aims a little past the budget, so that one step mostly suffices.
    const AIM: f64 = 1.2;
    /// At most this many times more turns in a step: the first, short run is cold and guesses badly.
    const STEP_MAX: f64 = 100.0;
    /// A first run of so many budgets counts though it is cold: what is cold at its start does not show.
    const COLD_BUDGETS: u32 = 4;

    pub(crate) fn of(job: &Job) -> Self {
        Self { turns: job.turns, budget: Duration::from_millis(job.budget_ms), warm: false }
    }

    /// Whether a run of `turns` that took so long is the one to report; else `turns` may have grown.
    #[must_use]
    pub(crate) fn enough(&mut self, took: Duration) -> bool {
        let wanted = if self.warm { self.budget } else { self.budget * Self::COLD_BUDGETS };
        self.warm = true;
        if took >= wanted {
            return true;
        }
        let missing = self.budget.as_secs_f64() / took.as_secs_f64().max(1e-9) * Self::AIM;
        self.turns = (self.turns as f64 * missing.clamp(1.0, Self::STEP_MAX)).ceil() as usize;
        false
    }

    /// The last run, as nanoseconds per operation; of a single long run also its memory.
    pub(crate) fn reading(&self, took: Duration, operations_per_turn: usize) -> Vec<Reading> {
        let operations = self.turns as f64 * operations_per_turn as f64;
        let cost = Reading::new("", "ns", took.as_nanos() as f64 / operations);
        if self.budget.is_zero() { whole(cost) } else { vec![cost] }
    }
}

/// Runs ever more turns until the budget is used, and reports the last run.
pub(crate) fn paced(job: &Job, operations_per_turn: usize, run: impl Fn(usize) -> Duration) -> Vec<Reading> {
    let mut pace = Pace::of(job);
    loop {
        let took = run(pace.turns);
        if pace.enough(took) {
            break pace.reading(took, operations_per_turn);
        }
    }
}

/// Calls `deed` four calls deep, as a server's handler calls a read.
pub(crate) fn four_deep(deed: impl Fn() + Copy) {
    #[inline(never)]
    fn first(deed: impl Fn() + Copy) {
        second(deed);
        stay_a_call();
    }
    #[inline(never)]
    fn second(deed: impl Fn() + Copy) {
        third(deed);
        stay_a_call();
    }
    #[inline(never)]
    fn third(deed: impl Fn() + Copy) {
        fourth(deed);
        stay_a_call();
    }
    #[inline(never)]
    fn fourth(deed: impl Fn() + Copy) {
        deed();
        stay_a_call();
    }
    first(deed);
}

/// Keeps the call before it from becoming a jump.
#[inline(always)]
fn stay_a_call() {
    // SAFETY: one instruction that does nothing.
    unsafe { asm!("nop", options(nomem, nostack, preserves_flags)) };
}

/// Computes so many steps that wait for each other. Go's program has the same; a compiler cannot join two of them into one.
#[inline(never)]
pub(crate) fn compute(steps: usize) {
    let mut value = black_box(steps as u64);
    for _ in 0..steps {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    black_box(value);
}

/// Steps in each task of `Unbalanced`.
pub(crate) fn unbalanced_steps(job: &Job) -> usize {
    UNBALANCED_STEPS / job.tasks
}

/// Time of a turn of `Unbalanced`, and how many times as long it is as it would be if all workers, or all CPUs if these are fewer, always computed.
pub(crate) fn balance(job: &Job, turn_ns: f64) -> Vec<Reading> {
    let time = |_| {
        let start = Instant::now();
        compute(unbalanced_steps(job));
        start.elapsed()
    };
    let least = (0..LONG_TRIES).map(time).min().expect("it was tried");
    let at_once = thread::available_parallelism().map_or(job.workers, |cpus| job.workers.min(cpus.get()));
    let ideal_ns = least.as_nanos() as f64 * job.tasks as f64 / at_once as f64;
    vec![Reading::new("", "ms", turn_ns / 1e6), Reading::new("ratio", "x", turn_ns / ideal_ns)]
}

/// Counts tasks that have started.
#[derive(Default)]
pub(crate) struct Arrivals(AtomicUsize);

impl Arrivals {
    pub(crate) fn note(&self) {
        self.0.fetch_add(1, Release); // meets `count`
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Acquire) // meets `note`; what a task wrote before it arrived is seen
    }
}

/// Tasks that have started and wait for their bells: what is timed is their work, not their birth.
///
/// Why not a flag that they look at between yields: may never starts a task while others yield.
pub(crate) struct Line<B> {
    bells: Box<[OnceLock<B>]>,
    arrivals: Arrivals,
}

impl<B> Line<B> {
    pub(crate) fn of(tasks: usize) -> Arc<Self> {
        Arc::new(Self { bells: (0..tasks).map(|_| OnceLock::new()).collect(), arrivals: Arrivals::default() })
    }

    /// Puts a task's bell in its place, where the task waits for it.
    pub(crate) fn stand(&self, index: usize, bell: B) -> &B {
        let bell = self.bells[index].get_or_init(|| bell);
        self.arrivals.note();
        bell
    }

    pub(crate) fn is_full(&self) -> bool {
        self.arrivals.count() == self.bells.len()
    }

    /// Rings every bell. With one worker nobody runs before the ringer waits.
    pub(crate) fn ring(&self, ring: impl Fn(&B)) {
        self.bells.iter().for_each(|bell| ring(bell.get().expect("the line is full")));
    }
}

/// When the thread rang last, and what the woken task makes of it.
pub(crate) struct Latency {
    base: Instant,
    rung_ns: AtomicU64,
    heard: AtomicUsize,
}

impl Latency {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { base: Instant::now(), rung_ns: AtomicU64::new(0), heard: AtomicUsize::new(0) })
    }

    /// The waking thread's whole life: `turns` wakes, each only when the one before was heard.
    pub(crate) fn ring(&self, turns: usize, bell: impl Fn()) {
        for rung in 0..turns {
            thread::sleep(WAKE_GAP);
            while self.heard.load(Acquire) < rung {
                thread::sleep(WAKE_GAP);
            }
            self.rung_ns.store(self.now_ns(), Release); // meets `hear`
            bell();
        }
    }

    /// Nanoseconds since the bell that woke the caller.
    pub(crate) fn hear(&self) -> u64 {
        let late = self.now_ns().saturating_sub(self.rung_ns.load(Acquire)); // meets `ring`
        self.heard.fetch_add(1, Release); // meets `ring`
        late
    }

    fn now_ns(&self) -> u64 {
        self.base.elapsed().as_nanos() as u64
    }
}

/// `p50`, `p99` and `p999` of nanoseconds, in microseconds.
pub(crate) fn latencies(mut late_ns: Vec<u64>) -> Vec<Reading> {
    late_ns.sort_unstable();
    [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)]
        .map(|(name, share)| Reading::new(name, "us", quantile(&late_ns, share) as f64 / 1e3))
        .into()
}

/// The waves of `Timers`, and what their figures' names begin with.
pub(crate) const WAVES: [&str; 2] = ["", "warm-"];

/// Nanoseconds that each of many sleepers overslept.
pub(crate) struct Oversleep(Box<[AtomicU64]>);

impl Oversleep {
    pub(crate) fn new(sleepers: usize) -> Arc<Self> {
        Arc::new(Self((0..sleepers).map(|_| AtomicU64::new(0)).collect()))
    }

    /// How long sleeper `index` sleeps: evenly spread up to `longest_ms`, and the same in every system.
    pub(crate) fn span(index: usize, longest_ms: usize) -> Duration {
        // Knuth's multiplicative hash: neighbours sleep for quite different times.
        let hash = (index as u64).wrapping_mul(2_654_435_761) & 0xffff_ffff;
        Duration::from_micros(1000 + hash * (longest_ms as u64 - 1) * 1000 / 0xffff_ffff)
    }

    pub(crate) fn note(&self, index: usize, deadline: Instant) {
        self.0[index].store(Instant::now().saturating_duration_since(deadline).as_nanos() as u64, Relaxed);
    }

    /// CPU time since `cpu` and lateness, as figures of `wave`.
    pub(crate) fn readings(&self, wave: &str, cpu: Duration) -> Vec<Reading> {
        let used = proc::cpu_time() - cpu;
        let mut readings = latencies(self.0.iter().map(|late| late.load(Relaxed)).collect());
        readings.truncate(2);
        readings.insert(0, Reading::new("cpu", "ms", used.as_secs_f64() * 1e3));
        readings.iter_mut().for_each(|reading| reading.metric.insert_str(0, wave));
        readings
    }
}

/// Memory and mappings per task, given the memory before they came.
pub(crate) fn parked(tasks: usize, before_bytes: u64) -> Vec<Reading> {
    let bytes = proc::memory_bytes().saturating_sub(before_bytes);
    vec![Reading::new("", "B", bytes as f64 / tasks as f64), Reading::new("vmas", "vmas", proc::mappings() as f64)]
}

/// CPU time used since `cpu` as a percentage of one CPU over `span`.
pub(crate) fn idle(cpu: Duration, span: Duration) -> Vec<Reading> {
    let used = proc::cpu_time() - cpu;
    vec![Reading::new("", "%", used.as_secs_f64() / span.as_secs_f64() * 100.0)]
}

/// Time of one long run and the memory it took at most.
pub(crate) fn whole(time: Reading) -> Vec<Reading> {
    vec![time, Reading::new("peak", "MB", proc::peak_bytes() as f64 / 1e6)]
}

/// What the numbers below `end` add up to.
pub(crate) fn sum_below(end: usize) -> u64 {
    (0..end as u64).sum()
}

/// Adds one to what a lock guards, and says what it is then.
pub(crate) fn add(mut sum: impl DerefMut<Target = u64>) -> u64 {
    *sum += 1;
    *sum
}

/// Whether turn `turn` of task `index` writes: tasks write at different turns.
pub(crate) fn is_write(index: usize, turn: usize) -> bool {
    (index + turn).is_multiple_of(TURNS_PER_WRITE)
}

/// All writes of `tasks` tasks of `turns` turns each.
pub(crate) fn writes(tasks: usize, turns: usize) -> u64 {
    (0..tasks).map(|index| ((index + turns).div_ceil(TURNS_PER_WRITE) - index.div_ceil(TURNS_PER_WRITE)) as u64).sum()
}

/// What one task, or all, met at a lock that counts its turns.
#[derive(Clone, Copy, Default)]
pub(crate) struct Met {
    longest: Duration,
    /// The most turns that others had between two of its own.
    overtaken: u64,
    last: u64,
}

impl Met {
    /// A turn took so long, and was the lock's turn number `turn`, from 1 on.
    pub(crate) fn note(&mut self, took: Duration, turn: u64) {
        self.longest = self.longest.max(took);
        if self.last != 0 {
            self.overtaken = self.overtaken.max(turn - self.last - 1);
        }
        self.last = turn;
    }

    /// The worst of each.
    pub(crate) fn worst(tasks: &[Self]) -> Self {
        let worst = |one: Self, other: &Self| Self {
            longest: one.longest.max(other.longest),
            overtaken: one.overtaken.max(other.overtaken),
            last: 0,
        };
        tasks.iter().fold(Self::default(), worst)
    }

    /// The longest wait, and for how long others were let in meanwhile: so many turns, of which each takes what `paced` found. While the system stops the one that has the lock, nobody is let in, and all wait.
    pub(crate) fn readings(&self, paced: &[Reading]) -> Vec<Reading> {
        let mut readings = wait_reading(self.longest.as_nanos() as u64);
        readings.push(Reading::new("overtaken", "us", self.overtaken as f64 * paced[0].value / 1e3));
        readings
    }
}

/// The longest time that a task needed for one turn at a lock.
pub(crate) fn wait_reading(longest_ns: u64) -> Vec<Reading> {
    vec![Reading::new("", "us", longest_ns as f64 / 1e3)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Deed;

    #[test]
    fn turns_of_others_between_two_of_ones_own_are_counted() {
        let (mut one, mut other) = (Met::default(), Met::default());
        for turn in [900, 901, 905] {
            one.note(Duration::from_micros(turn - 890), turn);
        }
        other.note(Duration::from_micros(700), 902);
        other.note(Duration::ZERO, 904);
        let readings = Met::worst(&[one, other]).readings(&[Reading::new("", "ns", 500.0)]);
        assert_eq!(readings, [Reading::new("", "us", 700.0), Reading::new("overtaken", "us", 1.5)]);
    }

    #[test]
    fn turns_grow_until_the_budget_is_used() {
        let mut pace = Pace::of(&Job::new(Deed::Yield).turns(10).budget_ms(100));
        assert!(!pace.enough(Duration::from_millis(50)));
        assert_eq!(pace.turns, 24);
        assert!(pace.enough(Duration::from_millis(100)), "a warm run that fills the budget counts");
        assert_eq!(pace.reading(Duration::from_millis(24), 1000), [Reading::new("", "ns", 1000.0)]);
        let mut cold = Pace::of(&Job::new(Deed::Yield).turns(10).budget_ms(100));
        assert!(!cold.enough(Duration::from_millis(200)), "a cold run does not count");
        assert_eq!(cold.turns, 10);
        let mut long = Pace::of(&Job::new(Deed::Yield).turns(10).budget_ms(100));
        assert!(long.enough(Duration::from_millis(400)), "a long cold run does");
        let mut once = Pace::of(&Job::new(Deed::Yield).turns(10));
        assert!(once.enough(Duration::ZERO));
    }

    #[test]
    fn one_turn_of_ten_writes() {
        let counted =
            (0..7).flat_map(|index| (0..93).map(move |turn| (index, turn))).filter(|&(index, turn)| is_write(index, turn)).count();
        assert_eq!(writes(7, 93), counted as u64);
        assert_eq!(writes(100, 10), 100);
    }

    #[test]
    fn sleeps_are_spread_over_the_second() {
        let spans: Vec<_> = (0..1000).map(|index| Oversleep::span(index, 1000)).collect();
        assert!(spans.iter().all(|span| (1..=1000).contains(&span.as_millis())));
        let early = spans.iter().filter(|span| span.as_millis() < 500).count();
        assert!((450..550).contains(&early), "{early} of 1000 are in the first half");
    }
}
