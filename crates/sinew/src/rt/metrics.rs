//! What a runtime has counted, and the line per period of `SINEW_SCHEDTRACE`.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::base::atomic::{AtomicU64, Relaxed};
use crate::base::histogram::{Counts, Histogram};
use crate::event::source::Io;
use crate::fiber::stack;
use crate::os::{clock, fork};
use crate::rt::builder::environment;
use crate::rt::runtime::groups_of_thread;
use crate::sched::counters::Counters;
use crate::sched::group::Group;
use crate::sched::groups::Groups;
use crate::sched::seat::Seat;
use crate::sched::worker::here;

/// What a runtime has counted so far. Counters only grow; lengths are those of the moment. See [`metrics`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// Fibers spawned.
    pub spawned: u64,
    /// Fibers that have ended.
    pub ended: u64,
    /// Fibers in the groups' queues: unstarted ones, and ready ones that may move.
    pub queued: usize,
    /// Fibers that were moved to a group's queue because their worker's own was full.
    pub overflowed: u64,
    /// Wakes that a spinning worker served: no system call.
    pub wakes_by_spinner: u64,
    /// Wakes that a sleeping worker was woken for: for what any worker may take, and for settled fibers of its own.
    pub wakes_by_sleeper: u64,
    /// Times that a worker was wanted for what any may take, a fiber or a batch of them, and none was idle: one that is awake comes to it. (A settled fiber waits for its own worker; if that is awake, there is nothing to count.)
    pub wakes_by_nobody: u64,
    /// Waits begun in a `Drop` while their thread was unwinding.
    pub suspended_while_unwinding: u64,
    /// Threads of [`blocking`](crate::blocking()) that there are.
    pub blocking_threads: usize,
    /// Jobs of [`blocking`](crate::blocking()) that wait for a thread.
    pub blocking_queued: usize,
    /// Stacks that exist in this process, used or idle.
    pub stacks: usize,
    /// How long things took, on all workers.
    pub latencies: Latencies,
    /// Each group: foreground groups, then background groups.
    pub groups: Vec<GroupMetrics>,
    /// Each worker, group by group.
    pub workers: Vec<WorkerMetrics>,
}

/// How long things took on one worker, on those of a group, or on all. See [`Metrics::latencies`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Latencies {
    /// Half of the wakes ran within this, from ready to running; one wake in 64 is timed. `None` if none was.
    pub ready_to_running_p50: Option<Duration>,
    /// 99 of 100 wakes ran within this.
    pub ready_to_running_p99: Option<Duration>,
    /// Half of the fibers began to run within this after their spawn; one in 64 is timed.
    pub start_p50: Option<Duration>,
    /// 99 of 100 fibers.
    pub start_p99: Option<Duration>,
    /// Half of the workers that were woken by a system call were up within this.
    pub wake_cost_p50: Option<Duration>,
    /// 99 of 100 of them.
    pub wake_cost_p99: Option<Duration>,
}

/// What one group has counted. See [`Metrics::groups`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupMetrics {
    /// Whether it is a background group.
    pub background: bool,
    /// The NUMA node that its workers are bound to.
    pub node: Option<usize>,
    /// Workers that there are, and may be.
    pub workers: usize,
    /// Workers that there may be, spares apart.
    pub workers_max: usize,
    /// Workers that it may have [to spare](crate::RuntimeBuilder::spare_workers).
    pub spares_max: usize,
    /// Its workers that were seen to be held by one fiber, and have not come back, as bits. Where it has no spares nobody looks.
    pub held: u64,
    /// Its workers that sit out, as bits: there are enough without them.
    pub sitting_out: u64,
    /// Fibers in its queue: unstarted ones, and ready ones that may move.
    pub queued: usize,
    /// Unstarted fibers for which there is no stack yet.
    pub starved: usize,
    /// Fibers that were moved to its queue because their worker's own was full.
    pub overflowed: u64,
    /// Wakes that a spinning worker of it served, whoever woke: no system call.
    pub wakes_by_spinner: u64,
    /// Wakes that a sleeping worker of it was woken for.
    pub wakes_by_sleeper: u64,
    /// Times that a worker was wanted for what any of it may take, a fiber or a batch of them, and none was idle, nor called from another group.
    pub wakes_by_nobody: u64,
    /// Times a fiber was switched to by its workers, or yielded and went on, since nobody else was ready.
    pub switches: u64,
    /// How long its workers have polled for work, in all.
    pub spun: Duration,
    /// The share of their lives in which its workers neither polled nor slept, from 0 to 1: the mean of those that do not [sit out](Self::sitting_out).
    pub busy: f64,
    /// Its workers that poll, as bits.
    pub spinning: u64,
    /// Its workers that sleep and are woken for work, as bits: not those that [sit out](Self::sitting_out).
    pub sleeping: u64,
    /// What its workers stole from other groups, for each that they may steal from.
    pub thefts: Vec<Theft>,
    /// How long things took on its workers.
    pub latencies: Latencies,
}

/// Thefts by workers of one group from another. See [`GroupMetrics::thefts`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Theft {
    /// The group stolen from, as in [`Metrics::groups`].
    pub from: usize,
    /// How often it was tried.
    pub tried: u64,
    /// How often there was something.
    pub won: u64,
}

/// What one worker has counted. See [`Metrics::workers`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerMetrics {
    /// The group it belongs to, as in [`Metrics::groups`].
    pub group: usize,
    /// Started fibers that have not ended: they live here. Those that may move are not counted.
    pub settled: usize,
    /// Of these, ready to run at its last look.
    pub ready: usize,
    /// Unstarted fibers that its own fibers spawned.
    pub children: usize,
    /// Ready fibers that may move, and wait at this worker.
    pub moving: usize,
    /// Times a fiber was switched to, or yielded and went on, since nobody else was ready.
    pub switches: u64,
    /// Times it slept, also while it sat out.
    pub sleeps: u64,
    /// Fibers that it moved to its group's queue because its own was full.
    pub overflowed: u64,
    /// Wakes by this worker, for what its fibers spawned or made ready and any worker may take, that a spinning worker of its group served. Those by threads that are no workers, or workers of other groups, are with the
    /// [group](GroupMetrics::wakes_by_spinner) alone.
    pub wakes_by_spinner: u64,
    /// Wakes by this worker that a sleeping one was woken for.
    pub wakes_by_sleeper: u64,
    /// Times that it slept and was woken because a settled fiber of its own became ready, by whomever.
    pub woken_for_its_own: u64,
    /// Wakes by this worker for which nobody was idle.
    pub wakes_by_nobody: u64,
    /// Searches for something to steal from other workers of its group.
    pub thefts: u64,
    /// How often there was something.
    pub steals: u64,
    /// How long it has polled for work.
    pub spun: Duration,
    /// How long it has slept, also while it sat out.
    pub slept: Duration,
    /// The share of its life in which it did neither, from 0 to 1.
    pub busy: f64,
    /// Whether it polls for work now.
    pub spinning: bool,
    /// Whether it sleeps now, and is woken for work: not if it [sits out](GroupMetrics::sitting_out).
    pub sleeping: bool,
    /// How its fibers wait for I/O, [`Io::Uring`] or [`Io::Epoll`]; `None` before one of them has.
    pub io: Option<Io>,
    /// How long things took here.
    pub latencies: Latencies,
}

/// What the current runtime has counted; on a plain thread, the default one. All zero before that has started.
///
/// # Lines of `SINEW_SCHEDTRACE`
/// With `SINEW_SCHEDTRACE=1000` each runtime writes a line to stderr every 1000 milliseconds. In brackets is a number for each worker, in the order of [`Metrics::workers`]; what has a `+` has come since the line before.
/// - `queue`: fibers in the groups' queues ([`queued`](Metrics::queued)).
/// - `children`, `ready`, `settled`: of each worker, unstarted fibers that its own have spawned, settled ones that are ready, and all that are settled.
/// - `spinning`, `sleeping`: which workers poll for work, and which sleep; the others run fibers.
/// - `spawned`, `ended`, `switches`, `overflowed`: fibers, and times that one was switched to; [`overflowed`](Metrics::overflowed).
/// - `wakes`: those that a `spinner` served, those that a `sleeper` was woken for, and those for which `nobody` was idle; `by`: how many of them were by each worker.
/// - `ready-to-running`: within how long half (`p50`) and 99 of 100 (`p99`) of the wakes ran; one in 64 is timed, and `-` says that none was.
/// - `io`: what workers wait for I/O by, `uring` or `epoll`; nothing before one has.
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
        Some(worker) => Metrics::of(worker.groups()),
        None => groups_of_thread().map_or_else(Metrics::none, |groups| Metrics::of(&groups)),
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
            wakes_by_nobody: 0,
            suspended_while_unwinding: 0,
            blocking_threads: 0,
            blocking_queued: 0,
            stacks: stack::depot().carved(),
            latencies: Latencies::default(),
            groups: Vec::new(),
            workers: Vec::new(),
        }
    }

    pub(crate) fn of(groups: &Groups) -> Self {
        let counters = || groups.seats().map(|seat| &seat.counters);
        // Ended first: so that, but for the CPU's own reordering, no fiber is counted as ended and not as spawned.
        let ended = counters().map(|c| c.ended.load(Relaxed)).sum();
        let outside: u64 = groups.all.iter().map(|group| group.spawned_outside.load(Relaxed)).sum();
        let spawned = counters().map(|c| c.spawned.load(Relaxed)).sum::<u64>() + outside;
        let (blocking_threads, blocking_queued) = groups.pool.counts();
        let each: Vec<GroupMetrics> = groups.all.iter().map(GroupMetrics::of).collect();
        let sum = |field: fn(&GroupMetrics) -> u64| each.iter().map(field).sum();
        Self {
            ended,
            spawned,
            queued: each.iter().map(|group| group.queued).sum(),
            overflowed: sum(|group| group.overflowed),
            wakes_by_spinner: sum(|group| group.wakes_by_spinner),
            wakes_by_sleeper: sum(|group| group.wakes_by_sleeper),
            wakes_by_nobody: sum(|group| group.wakes_by_nobody),
            suspended_while_unwinding: counters().map(|c| c.unwinding_waits.load(Relaxed)).sum(),
            blocking_threads,
            blocking_queued,
            stacks: stack::depot().carved(),
            latencies: Latencies::of(groups.seats()),
            groups: each,
            workers: groups.all.iter().flat_map(WorkerMetrics::of).collect(),
        }
    }
}

impl GroupMetrics {
    fn of(group: &Group) -> Self {
        let sum = |own: fn(&Counters) -> &AtomicU64| group.seats().iter().map(|seat| own(&seat.counters).load(Relaxed)).sum::<u64>();
        let theft = |&(from, _): &(usize, u32)| {
            let (tried, won) = &group.thefts[from];
            // Won first, as `ended` above: none is won that was not tried.
            Theft { from, won: won.load(Relaxed), tried: tried.load(Relaxed) }
        };
        let now_ns = clock::now_ns();
        let bench = group.duty.bench();
        let on_duty = group.seats().iter().enumerate().filter(|(index, _)| !bench.contains(*index));
        let shares: Vec<f64> = on_duty.map(|(_, seat)| seat.counters.busy_share(now_ns)).collect();
        let mail_wakes = group.seats().iter().map(|seat| seat.mail_wakes.load(Relaxed)).sum::<u64>();
        Self {
            background: group.settings.background,
            node: group.settings.node,
            workers: group.seats().len(),
            workers_max: group.settings.workers,
            spares_max: group.settings.spares,
            held: group.duty.held().bits(),
            sitting_out: group.duty.bench().bits(),
            queued: group.queued(),
            starved: group.starved(),
            overflowed: sum(|own| &own.overflowed),
            wakes_by_spinner: group.spinner_wakes.load(Relaxed) + sum(|own| &own.spinner_wakes),
            wakes_by_sleeper: group.sleeper_wakes.load(Relaxed) + sum(|own| &own.sleeper_wakes) + mail_wakes,
            wakes_by_nobody: group.unserved.load(Relaxed) + sum(|own| &own.unserved),
            switches: sum(|own| &own.switches),
            spun: Duration::from_nanos(sum(|own| &own.spun_ns)),
            busy: shares.iter().sum::<f64>() / shares.len().max(1) as f64,
            spinning: group.idle.spinning().bits(),
            sleeping: group.idle.sleeping().bits(),
            thefts: group.settings.victims.iter().map(theft).collect(),
            latencies: Latencies::of(group.seats().iter().copied()),
        }
    }
}

impl WorkerMetrics {
    fn of(group: &Group) -> Vec<Self> {
        let (spinning, sleeping) = (group.idle.spinning(), group.idle.sleeping());
        let now_ns = clock::now_ns();
        let worker = |(index, seat): (usize, &&'static Seat)| Self {
            group: group.index,
            settled: seat.settled(),
            ready: seat.counters.ready.load(Relaxed),
            children: seat.children.len(),
            moving: seat.moving.len() + usize::from(!seat.next.load(Relaxed).is_null()),
            switches: seat.counters.switches.load(Relaxed),
            sleeps: seat.counters.sleeps.load(Relaxed),
            overflowed: seat.counters.overflowed.load(Relaxed),
            wakes_by_spinner: seat.counters.spinner_wakes.load(Relaxed),
            wakes_by_sleeper: seat.counters.sleeper_wakes.load(Relaxed),
            woken_for_its_own: seat.mail_wakes.load(Relaxed),
            wakes_by_nobody: seat.counters.unserved.load(Relaxed),
            // Before `thefts`: none is won that was not tried.
            steals: seat.counters.steals.load(Relaxed),
            thefts: seat.counters.thefts.load(Relaxed),
            spun: Duration::from_nanos(seat.counters.spun_ns.load(Relaxed)),
            slept: Duration::from_nanos(seat.counters.slept_ns.load(Relaxed)),
            busy: seat.counters.busy_share(now_ns),
            spinning: spinning.contains(index),
            sleeping: sleeping.contains(index),
            io: io_of(seat),
            latencies: Latencies::of(std::iter::once(*seat)),
        };
        group.seats().iter().enumerate().map(worker).collect()
    }
}

impl Latencies {
    fn of(seats: impl Iterator<Item = &'static Seat> + Clone) -> Self {
        let sum = |histogram| sum_of(seats.clone(), histogram);
        let (ready_to_running, start, wake_cost) = (sum(|c| &c.latency), sum(|c| &c.start_latency), sum(|c| &c.wake_cost));
        Self {
            ready_to_running_p50: per_mille(&ready_to_running, 500),
            ready_to_running_p99: per_mille(&ready_to_running, 990),
            start_p50: per_mille(&start, 500),
            start_p99: per_mille(&start, 990),
            wake_cost_p50: per_mille(&wake_cost, 500),
            wake_cost_p99: per_mille(&wake_cost, 990),
        }
    }
}

fn io_of(seat: &Seat) -> Option<Io> {
    let io = seat.counters.io.load(Relaxed);
    [Io::Uring, Io::Epoll].into_iter().find(|&driver| driver as u8 == io)
}

fn sum_of(seats: impl Iterator<Item = &'static Seat>, histogram: fn(&Counters) -> &Histogram) -> Counts {
    let mut sum = Counts::new();
    seats.for_each(|seat| histogram(&seat.counters).add_to(&mut sum));
    sum
}

fn per_mille(counts: &Counts, n: u64) -> Option<Duration> {
    counts.per_mille(n).map(Duration::from_nanos)
}

/// One line of `SINEW_SCHEDTRACE`: what happened since `earlier`, and how things stand.
struct TraceLine<'a> {
    now: &'a Metrics,
    earlier: &'a Metrics,
    /// From ready to running, since then.
    waits: &'a Counts,
}

impl fmt::Display for TraceLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { now, earlier, waits } = self;
        let each = |field: fn(&WorkerMetrics) -> usize| now.workers.iter().map(field).collect::<Vec<_>>();
        let who = |field: fn(&WorkerMetrics) -> bool| {
            let workers = now.workers.iter().enumerate().filter(|(_, w)| field(w));
            workers.map(|(index, _)| index).collect::<Vec<_>>()
        };
        let switches = |m: &Metrics| m.workers.iter().map(|w| w.switches).sum::<u64>();
        let micros = |d: Option<Duration>| d.map_or("-".into(), |d| format!("{:.1}us", d.as_secs_f64() * 1e6));
        let drivers: Vec<_> = [(Io::Uring, "uring"), (Io::Epoll, "epoll")]
            .into_iter()
            .filter(|(io, _)| now.workers.iter().any(|w| w.io == Some(*io)))
            .map(|(_, name)| name)
            .collect();
        write!(
            f,
            "queue={} children={:?} ready={:?} settled={:?} spinning={:?} sleeping={:?} spawned=+{} ended=+{} switches=+{} \
             overflowed=+{} wakes: spinner=+{} sleeper=+{} nobody=+{} by={:?} ready-to-running: p50={} p99={} io={}",
            now.queued,
            each(|w| w.children),
            each(|w| w.ready),
            each(|w| w.settled),
            who(|w| w.spinning),
            who(|w| w.sleeping),
            now.spawned - earlier.spawned,
            now.ended - earlier.ended,
            switches(now) - switches(earlier),
            now.overflowed - earlier.overflowed,
            now.wakes_by_spinner - earlier.wakes_by_spinner,
            now.wakes_by_sleeper - earlier.wakes_by_sleeper,
            now.wakes_by_nobody - earlier.wakes_by_nobody,
            wakes_by_worker(now, earlier),
            micros(per_mille(waits, 500)),
            micros(per_mille(waits, 990)),
            drivers.join(","),
        )
    }
}

/// How often each worker woke, or tried to, since `earlier`. They are listed group by group, so one that has come since moves those of later groups.
fn wakes_by_worker(now: &Metrics, earlier: &Metrics) -> Vec<u64> {
    let wakes = |worker: &WorkerMetrics| worker.wakes_by_spinner + worker.wakes_by_sleeper + worker.wakes_by_nobody;
    let of_group =
        |metrics: &Metrics, group| metrics.workers.iter().filter(move |worker| worker.group == group).map(wakes).collect::<Vec<_>>();
    let since = |group| {
        let before = of_group(earlier, group).into_iter().chain(std::iter::repeat(0));
        of_group(now, group).into_iter().zip(before).map(|(now, before)| now - before).collect::<Vec<_>>()
    };
    (0..now.groups.len()).flat_map(since).collect()
}

/// The period that `SINEW_SCHEDTRACE` asks for.
pub(crate) fn trace_period() -> std::io::Result<Option<Duration>> {
    let allowed = "a whole number of milliseconds from 1 to 3600000";
    environment("SINEW_SCHEDTRACE", allowed, |text| text.parse().ok().filter(|ms| (1..=3_600_000).contains(ms)).map(Duration::from_millis))
}

/// Writes a line per period to stderr, until the runtime is gone. On a thread of its own: it must speak when all workers are stuck.
pub(crate) fn start_trace(groups: &Arc<Groups>, period: Duration) -> std::io::Result<()> {
    let groups = Arc::downgrade(groups);
    std::thread::Builder::new().name("sinew-trace".into()).spawn(move || trace(groups, period)).map(drop)
}

fn trace(groups: Weak<Groups>, period: Duration) {
    let started = std::time::Instant::now();
    let mut earlier = Metrics::none();
    let mut waits = Counts::new();
    while let Some(groups) = groups.upgrade().filter(|groups| !groups.is_stopping()) {
        let all = sum_of(groups.seats(), |counters| &counters.latency);
        let now = Metrics::of(&groups);
        let line = TraceLine { now: &now, earlier: &earlier, waits: &all.since(&waits) };
        // By one call: a process that ends meanwhile leaves no half of a line.
        let line = format!("sinew {:>8}ms {line}\n", started.elapsed().as_millis());
        let _ = std::io::stderr().write_all(line.as_bytes());
        (earlier, waits) = (now, all);
        drop(groups);
        std::thread::sleep(period);
    }
}

#[cfg(test)]
mod tests {
    use crate::os::clock;
    use crate::sched::worker::here;
    use crate::{Runtime, metrics};

    /// A worker whose fiber awaits an answer from elsewhere looks for mail before it counts as one who polls; that is no work either. Here no mail can come.
    #[test]
    fn looks_after_mail_count_as_polling() {
        let runtime = Runtime::builder().workers(1).build().expect("one thread");
        runtime.run(|| {
            let spun = || metrics().workers[0].spun;
            let worker = here().expect("a fiber runs on a worker");
            let (spun_before, begun_ns) = (spun(), clock::now_ns());
            assert!(!worker.await_mail());
            let (looked, taken_ns) = (spun() - spun_before, clock::now_ns() - begun_ns);
            assert!(!looked.is_zero() && looked.as_nanos() <= u128::from(taken_ns), "{looked:?} of {taken_ns} ns");
        });
    }
}
