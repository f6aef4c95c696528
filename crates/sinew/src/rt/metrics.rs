//! What a runtime has counted, and the line per period of `SINEW_SCHEDTRACE`.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::base::atomic::Relaxed;
use crate::base::histogram::Counts;
use crate::fiber::stack;
use crate::os::fork;
use crate::rt::runtime::{default_group, environment};
use crate::sched::group::Group;
use crate::sched::worker::here;

/// What a runtime has counted so far. Counters only grow; lengths are those of the moment. See [`metrics`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// Fibers spawned.
    pub spawned: u64,
    /// Fibers that have ended.
    pub ended: u64,
    /// Unstarted fibers in the group's queue.
    pub queued: usize,
    /// Unstarted fibers that were moved to the group's queue because their worker's own was full.
    pub overflowed: u64,
    /// Wakes that a spinning worker served: no system call.
    pub wakes_by_spinner: u64,
    /// Wakes that a sleeping worker was woken for.
    pub wakes_by_sleeper: u64,
    /// Waits begun in a `Drop` while their thread was unwinding.
    pub suspended_while_unwinding: u64,
    /// Threads of [`blocking`](crate::blocking()) that there are.
    pub blocking_threads: usize,
    /// Jobs of [`blocking`](crate::blocking()) that wait for a thread.
    pub blocking_queued: usize,
    /// Stacks that exist in this process, used or idle.
    pub stacks: usize,
    /// Half of the wakes ran within this, from ready to running; one wake in 64 is timed. `None` if none was.
    pub ready_to_running_p50: Option<Duration>,
    /// 99 of 100 wakes ran within this.
    pub ready_to_running_p99: Option<Duration>,
    /// Each worker.
    pub workers: Vec<WorkerMetrics>,
}

/// What one worker has counted. See [`Metrics::workers`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerMetrics {
    /// Started fibers that have not ended: they live here.
    pub settled: usize,
    /// Of these, ready to run at its last look.
    pub ready: usize,
    /// Unstarted fibers that its own fibers spawned.
    pub children: usize,
    /// Times a fiber was switched to.
    pub switches: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Unstarted fibers it took from other workers.
    pub steals: u64,
    /// Whether it polls for work now.
    pub spinning: bool,
    /// Whether it sleeps now.
    pub sleeping: bool,
}

/// What the current runtime has counted; on a plain thread, the default one. All zero before that has started.
///
/// # Examples
/// ```
/// sinew::run(|| sinew::yield_now());
/// let metrics = sinew::metrics();
/// assert!(metrics.spawned >= 1 && metrics.workers.len() >= 2);
/// ```
pub fn metrics() -> Metrics {
    fork::refuse();
    match here() {
        Some(worker) => Metrics::of(worker.group()),
        None => default_group().map_or_else(Metrics::none, |group| Metrics::of(&group)),
    }
}

impl Metrics {
    fn none() -> Self {
        Self {
            spawned: 0,
            ended: 0,
            queued: 0,
            overflowed: 0,
            wakes_by_spinner: 0,
            wakes_by_sleeper: 0,
            suspended_while_unwinding: 0,
            blocking_threads: 0,
            blocking_queued: 0,
            stacks: stack::depot().carved(),
            ready_to_running_p50: None,
            ready_to_running_p99: None,
            workers: Vec::new(),
        }
    }

    pub(crate) fn of(group: &Group) -> Self {
        Self::with_latencies(group, &latencies(group))
    }

    fn with_latencies(group: &Group, latencies: &Counts) -> Self {
        let counters = || group.seats.iter().map(|seat| &seat.counters);
        // Ended first: so that, but for the CPU's own reordering, no fiber is counted as ended and not as spawned.
        let ended = counters().map(|c| c.ended.load(Relaxed)).sum();
        let (blocking_threads, blocking_queued) = group.pool.counts();
        let (spinning, sleeping) = (group.idle.spinning(), group.idle.sleeping());
        let worker = |(index, seat): (usize, &&'static crate::sched::group::Seat)| WorkerMetrics {
            settled: seat.settled(),
            ready: seat.counters.ready.load(Relaxed),
            children: seat.children.len(),
            switches: seat.counters.switches.load(Relaxed),
            sleeps: seat.counters.sleeps.load(Relaxed),
            steals: seat.counters.steals.load(Relaxed),
            spinning: spinning.contains(index),
            sleeping: sleeping.contains(index),
        };
        Self {
            ended,
            spawned: counters().map(|c| c.spawned.load(Relaxed)).sum::<u64>() + group.spawned_outside.load(Relaxed),
            queued: group.queued(),
            overflowed: group.overflowed.load(Relaxed),
            wakes_by_spinner: group.spinner_wakes.load(Relaxed),
            wakes_by_sleeper: group.sleeper_wakes.load(Relaxed),
            suspended_while_unwinding: counters().map(|c| c.unwinding_waits.load(Relaxed)).sum(),
            blocking_threads,
            blocking_queued,
            ready_to_running_p50: latencies.per_mille(500).map(Duration::from_nanos),
            ready_to_running_p99: latencies.per_mille(990).map(Duration::from_nanos),
            workers: group.seats.iter().enumerate().map(worker).collect(),
            ..Self::none()
        }
    }
}

fn latencies(group: &Group) -> Counts {
    let mut sum = Counts::new();
    group.seats.iter().for_each(|seat| seat.counters.latency.add_to(&mut sum));
    sum
}

/// One line of `SINEW_SCHEDTRACE`: what happened since `earlier`, and how things stand.
struct TraceLine<'a> {
    now: &'a Metrics,
    earlier: &'a Metrics,
}

impl fmt::Display for TraceLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { now, earlier } = self;
        let each = |field: fn(&WorkerMetrics) -> usize| now.workers.iter().map(field).collect::<Vec<_>>();
        let who = |field: fn(&WorkerMetrics) -> bool| {
            let workers = now.workers.iter().enumerate().filter(|(_, w)| field(w));
            workers.map(|(index, _)| index).collect::<Vec<_>>()
        };
        let switches = |m: &Metrics| m.workers.iter().map(|w| w.switches).sum::<u64>();
        let micros = |d: Option<Duration>| d.map_or("-".into(), |d| format!("{:.1}us", d.as_secs_f64() * 1e6));
        write!(
            f,
            "queue={} children={:?} ready={:?} settled={:?} spinning={:?} sleeping={:?} spawned=+{} ended=+{} switches=+{} \
             wakes: spinner=+{} sleeper=+{} ready-to-running: p50={} p99={}",
            now.queued,
            each(|w| w.children),
            each(|w| w.ready),
            each(|w| w.settled),
            who(|w| w.spinning),
            who(|w| w.sleeping),
            now.spawned - earlier.spawned,
            now.ended - earlier.ended,
            switches(now) - switches(earlier),
            now.wakes_by_spinner - earlier.wakes_by_spinner,
            now.wakes_by_sleeper - earlier.wakes_by_sleeper,
            micros(now.ready_to_running_p50),
            micros(now.ready_to_running_p99),
        )
    }
}

/// The period that `SINEW_SCHEDTRACE` asks for.
pub(crate) fn trace_period() -> std::io::Result<Option<Duration>> {
    let allowed = "a whole number of milliseconds from 1 to 3600000";
    environment("SINEW_SCHEDTRACE", allowed, |text| text.parse().ok().filter(|ms| (1..=3_600_000).contains(ms)).map(Duration::from_millis))
}

/// Writes a line per period to stderr, until the runtime is gone. On a thread of its own: it must speak when all workers are stuck.
pub(crate) fn start_trace(group: &Arc<Group>, period: Duration) -> std::io::Result<()> {
    let group = Arc::downgrade(group);
    std::thread::Builder::new().name("sinew-trace".into()).spawn(move || trace(group, period)).map(drop)
}

fn trace(group: Weak<Group>, period: Duration) {
    let started = std::time::Instant::now();
    let mut earlier = Metrics::none();
    let mut waits = Counts::new();
    while let Some(group) = group.upgrade().filter(|group| !group.is_stopping()) {
        let all = latencies(&group);
        let now = Metrics::with_latencies(&group, &all.since(&waits));
        let line = TraceLine { now: &now, earlier: &earlier };
        let _ = writeln!(std::io::stderr(), "sinew {:>8}ms {line}", started.elapsed().as_millis());
        (earlier, waits) = (now, all);
        drop(group);
        std::thread::sleep(period);
    }
}
