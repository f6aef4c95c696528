//! How a runtime is to be: what its builder says, and the environment where that is silent.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use super::blocking::{self, asker};
use super::fiber::forget_block;
use super::metrics;
use super::overflow;
use super::report;
use super::runtime::{Runtime, start, start_worker};
use crate::base::mask::WORKERS_MAX;
use crate::event::source::{Driver, Io};
use crate::fiber::COUNTS;
use crate::fiber::stack::{self, Class};
use crate::os::cpu_list::CpuList;
use crate::os::topology::{Spread, Topology};
use crate::os::{audit, cpu, fault, fork, thread};
use crate::sched::groups::{Binding, GROUPS_MAX, Groups, Hooks};
use crate::sched::pool::Pool;
use crate::sched::profile::{Profile, Shape, plan};
use crate::sched::settings::{Policy, Queue, Settings, Spin};
use crate::sched::worker::{forget_here, here};

/// Workers of a runtime that asks for no number, at least: so that one fiber in a long computation does not stop all others.
const WORKERS_MIN_DEFAULT: usize = 2;
/// Workers of all groups, at most.
const ALL_WORKERS_MAX: usize = GROUPS_MAX * WORKERS_MAX;
/// Idle passes between two thefts from a group of the same node. flare's number.
const STEAL_RATIO: usize = 16;
const STEAL_RATIO_MAX: usize = 1 << 20;
/// A day: the longest time that can be asked for. Arbitrary; what is meant to be for ever has other names.
const DURATION_MAX: Duration = Duration::from_secs(86_400);
const MILLI: Duration = Duration::from_millis(1);
const MICRO: Duration = Duration::from_micros(1);

/// A description of a runtime.
///
/// Whatever it does not say, an environment variable of the same name may: `SINEW_WORKERS`, `SINEW_WORKERS_MIN`, `SINEW_SPARE_WORKERS`, `SINEW_PROFILE`, `SINEW_GROUP_SIZE`, `SINEW_BACKGROUND`, `SINEW_QUEUE`, `SINEW_POLICY`,
/// `SINEW_SPIN`, `SINEW_STEAL_RATIO`, `SINEW_STEAL_RATIO_ACROSS_NODES`, `SINEW_CPUS`, `SINEW_CPUS_FORBIDDEN`, `SINEW_ONE_CPU_PER_WORKER`, `SINEW_STACK_SIZE`, `SINEW_BLOCKING_THREADS`, `SINEW_BLOCKING_IDLE`, `SINEW_DEADLOCK_WATCH`, `SINEW_IO`; `SINEW_SHAKE`, `SINEW_SCHEDTRACE` and `SINEW_AUDIT` look for faults. A
/// value that cannot be used is an error of [`build`](Self::build), which names the variable, the value, and what is allowed.
#[derive(Debug, Default, Clone)]
#[must_use = "a builder does nothing until it builds"]
pub struct RuntimeBuilder {
    workers: Option<usize>,
    workers_min: Option<usize>,
    spare_workers: Option<usize>,
    profile: Option<Profile>,
    group_size: Option<usize>,
    background: Option<usize>,
    queue: Option<Queue>,
    policy: Option<Policy>,
    spin: Option<Spin>,
    steal_ratio: Option<usize>,
    steal_ratio_across_nodes: Option<usize>,
    cpus: Option<String>,
    cpus_forbidden: Option<String>,
    one_cpu_per_worker: Option<bool>,
    migrates: bool,
    shakes: Option<bool>,
    hooks: [Option<Hook>; 2],
    stack_bytes: Option<usize>,
    deadlock_watch: Option<Duration>,
    blocking_threads: Option<usize>,
    blocking_idle: Option<Duration>,
    io: Option<Io>,
}

#[derive(Clone)]
struct Hook(Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a closure")
    }
}

impl RuntimeBuilder {
    /// How many threads run fibers, in all foreground groups together. The default is one per CPU that the process may use (its affinity mask and its cgroup's quota), at least 2, unless each is to
    /// have [a CPU of its own](Self::one_cpu_per_worker).
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// How many threads each group begins with. It starts one more whenever a fiber is ready and no worker is idle, up to all of them; and, where fibers that may move wait for I/O, when no worker is idle to
    /// look for it. The default is all. More than the
    /// [`workers`](Self::workers) or the [`group_size`](Self::group_size) that are asked for is an error; where the machine or a profile makes a group smaller, it begins with all.
    pub fn workers_min(mut self, workers: usize) -> Self {
        self.workers_min = Some(workers);
        self
    }

    /// How many workers more each group may have, to stand in for those that a fiber holds: one that computes, or blocks its thread, for a millisecond and more. For runtimes whose
    /// [started fibers migrate](Self::migrate_started_fibers) only: there a group keeps as many workers free for others as it has [`workers`](Self::workers), or as are held, if these are more, and the system divides the CPUs among all of
    /// them. Their threads are started when they are first needed; one of them watches while all workers are busy. At most 63, and 64 workers in all in a group; the default is as many as that leaves. 0 is none:
    /// then fibers that hold all workers keep all others waiting.
    pub fn spare_workers(mut self, workers: usize) -> Self {
        self.spare_workers = Some(workers);
        self
    }

    /// What the program mostly does, by which workers are divided into groups. The default is [`Profile::Neutral`].
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// How many workers a group has, at most: 1 to 64. It is [`Profile::Custom`] then.
    pub fn group_size(mut self, workers: usize) -> Self {
        self.group_size = Some(workers);
        self
    }

    /// How many groups there are besides, for what must not delay the others: fibers come there by [`Group::background`](crate::Group::background), and what they spawn stays
    /// there. Each has as many workers as a foreground group, begins with one, and neither steals from foreground groups nor is stolen from by them. The default is 0.
    pub fn background(mut self, groups: usize) -> Self {
        self.background = Some(groups);
        self
    }

    /// Where fibers wait that any worker of a group may run. The default is [`Queue::Stealing`].
    pub fn queue(mut self, queue: Queue) -> Self {
        self.queue = Some(queue);
        self
    }

    /// What a worker takes first. The default is [`Policy::Affinity`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// How long an idle worker polls for work before it sleeps. The default is [`Spin::Adaptive`]; where the process may use one CPU only, it is [`Spin::Never`]. A [fixed](Spin::Fixed) time is at least a microsecond and
    /// at most a day.
    pub fn spin(mut self, spin: Spin) -> Self {
        self.spin = Some(spin);
        self
    }

    /// How rarely an idle worker looks into each other group of its NUMA node for something to steal: once in so many idle passes. 0 is never. The default is 16. A group
    /// that has something to do and no idle worker calls one of another group at once.
    pub fn steal_ratio(mut self, passes: usize) -> Self {
        self.steal_ratio = Some(passes);
        self
    }

    /// The same for groups of other NUMA nodes. The default is 0: never.
    pub fn steal_ratio_across_nodes(mut self, passes: usize) -> Self {
        self.steal_ratio_across_nodes = Some(passes);
        self
    }

    /// The CPUs that workers may run on: numbers and ranges, as in `"0-3,8"`; negative ones count from the last CPU, as in `"-4--1"`. The default is what the process may use.
    pub fn cpus(mut self, list: impl Into<String>) -> Self {
        self.cpus = Some(list.into());
        self
    }

    /// CPUs that workers must not run on, written as for [`cpus`](Self::cpus).
    pub fn cpus_forbidden(mut self, list: impl Into<String>) -> Self {
        self.cpus_forbidden = Some(list.into());
        self
    }

    /// Whether each worker of foreground groups has one CPU of its own and never leaves it. It is an error if there are fewer CPUs than such workers.
    pub fn one_cpu_per_worker(mut self, yes: bool) -> Self {
        self.one_cpu_per_worker = Some(yes);
        self
    }

    /// Runs `f` on each worker's thread before its first fiber. A panic is reported and changes nothing.
    pub fn on_worker_start(mut self, f: impl Fn() + Send + Sync + 'static) -> Self {
        self.hooks[0] = Some(Hook(Arc::new(f)));
        self
    }

    /// Runs `f` on each worker's thread after its last fiber, when the runtime ends.
    pub fn on_worker_stop(mut self, f: impl Fn() + Send + Sync + 'static) -> Self {
        self.hooks[1] = Some(Hook(Arc::new(f)));
        self
    }

    /// Lets every fiber of this runtime go on, after a wait or a yield, on whichever worker is free: full M:N scheduling, as flare's and bthread's.
    ///
    /// A fiber does not move while it waits with a deadline (unless for a descriptor, or on a [spare](Self::spare_workers)), unwinds, holds a [`pin`](crate::pin()) guard, or is in a hook. One that is
    /// [`pinned`](crate::Builder::pinned) stays in its group. `SINEW_SHAKE=1` moves each such fiber at every chance, so that a broken promise shows at once.
    ///
    /// # Safety
    /// The caller promises, for all code that fibers of this runtime run, its dependencies and std included, that between any two points at which it may suspend it keeps nothing that belongs to
    /// a thread:
    /// - no value that is not `Send` is alive on the fiber's stack across a suspension: no `Rc`, `RefCell` borrow, `std::sync::MutexGuard`, `thread_rng` handle, span guard of a tracing crate;
    /// - no reference or address of a `thread_local!`, of `errno` or of anything else that hangs at the thread is kept across one, also not by the optimiser: a function that uses a
    ///   thread-local on both sides of a suspension must reach it through a call that is not inlined;
    /// - it does not suspend inside the closure of `LocalKey::with`, of a scoped thread-local, or of a lock that must be released by the thread that took it;
    /// - nothing relies on `std::thread::current()`, thread ids or thread names to stay the same;
    /// - fiber-locals ([`fiber_local!`](crate::fiber_local)) hold `Send` values only.
    pub unsafe fn migrate_started_fibers(mut self) -> Self {
        self.migrates = true;
        self
    }

    /// As `SINEW_SHAKE`, for this project's own tests.
    #[doc(hidden)]
    pub fn shake(mut self, yes: bool) -> Self {
        self.shakes = Some(yes);
        self
    }

    /// Usable bytes of stack of a fiber that does not ask itself; see [`Builder::stack_size`](crate::Builder::stack_size). The default is 256 KiB.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_bytes = Some(bytes);
        self
    }

    /// Has a thread look from time to time, and write to stderr if for `period` no fiber could run and none was waiting for a moment in time: a probable
    /// deadlock, with the name, spawn site and wait of every fiber. It never ends anything: threads outside may yet wake them.
    ///
    /// Whoever sleeps, or waits with a time-out, however long, counts as waiting for a moment in time: then there is no report. A fiber that waits for another runtime's is
    /// taken for one that waits for ever. A worker whose thread is blocked by other means than Sinew's (a lock of std's, `std::thread::sleep`, a call of C) counts as one that computes: that standstill is not seen.
    ///
    /// Off by default. The period is at least a millisecond and at most a day.
    pub fn deadlock_watch(mut self, period: Duration) -> Self {
        self.deadlock_watch = Some(period);
        self
    }

    /// How many threads [`blocking`](crate::blocking()) uses, at most: 1 to 32,768. The default is 512. They are started as they are needed.
    pub fn blocking_threads(mut self, threads: usize) -> Self {
        self.blocking_threads = Some(threads);
        self
    }

    /// How long a thread of [`blocking`](crate::blocking()) stays when it has nothing to do: a day at most. The default is 10 seconds.
    pub fn blocking_idle(mut self, duration: Duration) -> Self {
        self.blocking_idle = Some(duration);
        self
    }

    /// How fibers do I/O. The default is [`Io::Auto`]: `io_uring` where the kernel allows it, else `epoll`, which is said on stderr once.
    ///
    /// A ring that was asked for is tried here: [`build`](Self::build) fails if the kernel refuses it. With `Auto` it is tried, once in the process, when the first fiber waits for I/O: a program without I/O opens
    /// nothing. [`Runtime::io`] says which it is. What each worker has come to is in [`WorkerMetrics::io`](crate::WorkerMetrics::io) and in the lines of `SINEW_SCHEDTRACE`; it is not said without need.
    pub fn io(mut self, io: Io) -> Self {
        self.io = Some(io);
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// For a value that is refused, here or in the environment (the text names it and what is allowed), and if threads or memory cannot be had.
    pub fn build(self) -> io::Result<Runtime> {
        let caller = here().map(|worker| worker.groups().clone()).or_else(asker);
        match caller.as_ref().and_then(|groups| groups.cpus_where_bound()) {
            None => self.build_here(),
            // The caller's thread may run where its runtime has bound it. Workers of this one may run where the process may.
            Some(cpus) => {
                fork::refuse();
                let build = || {
                    // Where the system refuses that, in a container or since the process was moved to other CPUs, the workers may run where the caller may. Who has asked for CPUs hears of it (`try_to_bind`).
                    let _ = thread::bind(cpus);
                    self.build_here()
                };
                std::thread::scope(|scope| {
                    let built = std::thread::Builder::new().spawn_scoped(scope, build)?.join();
                    built.unwrap_or_else(|payload| resume_unwind(payload))
                })
            }
        }
    }

    /// As `build`, for workers that may run where this thread may.
    fn build_here(self) -> io::Result<Runtime> {
        let topology = self.topology()?;
        let groups = self.groups(&topology)?;
        let pool = self.blocking_pool()?;
        let trace = metrics::trace_period()?;
        let io = self.io_asked()?;
        let deadlock_watch = duration(self.deadlock_watch, "deadlock_watch", "SINEW_DEADLOCK_WATCH", MILLI)?;
        if flag(None, "SINEW_AUDIT")? {
            audit::turn_on();
        }
        let cpus = self.assign(&topology, &groups)?;
        fork::refuse();
        self.try_to_bind(&topology)?;
        fault::install(overflow::describe);
        fork::install(|| {
            forget_here();
            forget_block();
        });
        let [start_hook, stop_hook] = self.hooks.map(|hook| hook.map(|hook| hook.0));
        let hooks = Hooks { start: start_hook, stop: stop_hook };
        let runtime = start(Groups::new(groups, io, pool, start_worker, hooks, Binding { cpus, machine: topology })?)?;
        if let Some(period) = trace {
            metrics::start_trace(runtime.groups(), period)?;
        }
        if let Some(period) = deadlock_watch {
            report::watch_for_deadlock(runtime.groups(), period)?;
        }
        Ok(runtime)
    }

    /// The CPUs that workers may use.
    fn topology(&self) -> io::Result<Topology> {
        let list = |said: &Option<String>, option: &str, variable: &str| {
            let whole =
                |value: OsString| value.into_string().map_err(|value| invalid(format!("{variable}={value:?} is refused: it is no text")));
            let text = said.clone().map_or_else(|| std::env::var_os(variable).map(whole).transpose(), |said| Ok(Some(said)))?;
            let name = if said.is_some() { option } else { variable };
            let parse = |text: String| CpuList::parse(&text).map_err(|error| invalid(format!("{name} is refused: {error}")));
            io::Result::Ok(text.map(parse).transpose()?.map(|list| list.named(name)))
        };
        let allowed = list(&self.cpus, "RuntimeBuilder::cpus", "SINEW_CPUS")?;
        let forbidden = list(&self.cpus_forbidden, "RuntimeBuilder::cpus_forbidden", "SINEW_CPUS_FORBIDDEN")?;
        let machine = Topology::read("/".as_ref(), thread::affinity()?)?;
        machine.usable(allowed.as_ref(), forbidden.as_ref())
    }

    /// The CPUs of each worker of each group. Those of background groups share them in any case.
    fn assign(&self, topology: &Topology, groups: &[Settings]) -> io::Result<Vec<Vec<Option<Vec<usize>>>>> {
        let foreground = groups.iter().filter(|group| !group.background).count();
        let assign = |groups: &[Settings], spread| {
            let (nodes, sizes): (Vec<_>, Vec<_>) = groups.iter().map(|group| (group.node, group.workers)).unzip();
            topology.assign(&nodes, &sizes, spread)
        };
        let mut cpus = assign(&groups[..foreground], self.spread()?)?;
        cpus.extend(assign(&groups[foreground..], Spread::Shared)?);
        // Spares run where any of their group may.
        for (workers, group) in cpus.iter_mut().zip(groups) {
            let bound: Option<Vec<&Vec<usize>>> = workers.iter().map(Option::as_ref).collect();
            let all: Option<BTreeSet<usize>> = bound.map(|bound| bound.into_iter().flatten().copied().collect());
            workers.resize(group.workers + group.spares, all.map(|cpus| cpus.into_iter().collect()));
        }
        Ok(cpus)
    }

    /// Fails where workers are to be bound because somebody said so, and the system does not allow it. On a thread of its own, which takes the binding with it. (Nodes that a profile found are no reason to fail: who is
    /// not bound runs anywhere.)
    fn try_to_bind(&self, topology: &Topology) -> io::Result<()> {
        if self.spread()? == Spread::Shared && !topology.is_narrowed() {
            return Ok(());
        }
        let ids: Vec<usize> = topology.cpus.iter().map(|cpu| cpu.id).collect();
        let Ok(trial) = std::thread::Builder::new().spawn(move || thread::bind(&ids)) else { return Ok(()) };
        let bound = trial.join().expect("it does not panic");
        let why = "which is asked for: see cpus, cpus_forbidden and one_cpu_per_worker of RuntimeBuilder, SINEW_CPUS, SINEW_CPUS_FORBIDDEN and SINEW_ONE_CPU_PER_WORKER";
        bound.map_err(|error| io::Error::new(error.kind(), format!("{error}, {why}")))
    }

    fn spread(&self) -> io::Result<Spread> {
        let one_each = flag(self.one_cpu_per_worker, "SINEW_ONE_CPU_PER_WORKER")?;
        Ok(if one_each { Spread::OneCpuPerWorker } else { Spread::Shared })
    }

    fn groups(&self, topology: &Topology) -> io::Result<Vec<Settings>> {
        self.groups_within(cpu::usable(), topology)
    }

    /// As `groups`, where affinity and quota leave `quota` CPUs to the process.
    fn groups_within(&self, quota: usize, topology: &Topology) -> io::Result<Vec<Settings>> {
        let usable = quota.min(topology.cpus.len()).max(1);
        let least = if self.spread()? == Spread::OneCpuPerWorker { 1 } else { WORKERS_MIN_DEFAULT };
        let background = number(self.background, "background", "SINEW_BACKGROUND", 0..=GROUPS_MAX - 1)?.unwrap_or(0);
        let groups_max = GROUPS_MAX - background;
        let workers = self.workers_asked()?.unwrap_or(usable.clamp(least, groups_max * WORKERS_MAX));
        let shape = self.shape(workers, groups_max, topology)?;
        let mut sizes = shape.sizes(workers);
        let mut nodes = shape.nodes(&topology.nodes());
        if sizes.len() + background > GROUPS_MAX {
            return Err(invalid(format!(
                "{workers} workers in groups of at most {} and {background} background groups are {} groups: there may be {GROUPS_MAX}; make the groups larger",
                shape.size,
                sizes.len() + background
            )));
        }
        let foreground = sizes.len();
        sizes.resize(foreground + background, shape.size.min(workers));
        nodes.resize(foreground + background, None);
        let like = self.settings(usable)?;
        let least = self.least()?;
        let spares = self.spares()?;
        let ratios = self.ratios()?;
        let group = |index: usize| {
            let is_background = index >= foreground;
            let least = if is_background { Some(1) } else { least };
            Settings {
                workers: sizes[index],
                workers_min: least.unwrap_or(sizes[index]).min(sizes[index]),
                spares: spares.min(WORKERS_MAX - sizes[index]),
                background: is_background,
                node: nodes[index],
                victims: victims(index, foreground, &nodes, ratios),
                ..like.clone()
            }
        };
        Ok((0..sizes.len()).map(group).collect())
    }

    /// With how many workers a group begins. What the machine or a profile finds may be less; what was asked for must not be.
    fn least(&self) -> io::Result<Option<usize>> {
        let least = number(self.workers_min, "workers_min", "SINEW_WORKERS_MIN", 1..=ALL_WORKERS_MAX)?;
        let most = [
            ("workers", "SINEW_WORKERS", self.workers, self.workers_asked()?),
            ("group_size", "SINEW_GROUP_SIZE", self.group_size, self.group_size_asked()?),
        ];
        for (option, variable, said, most) in most {
            if let Some((least, most)) = least.zip(most).filter(|(least, most)| least > most) {
                let least = shown(self.workers_min, "workers_min", "SINEW_WORKERS_MIN", least);
                return Err(invalid(format!("{least} is refused: it must be at most {}", shown(said, option, variable, most))));
            }
        }
        Ok(least)
    }

    /// Spares of a group, if it has room for them.
    fn spares(&self) -> io::Result<usize> {
        let spares = number(self.spare_workers, "spare_workers", "SINEW_SPARE_WORKERS", 0..=WORKERS_MAX - 1)?;
        // What is not counted cannot be seen to be held.
        if !self.migrates || !COUNTS {
            return match self.spare_workers.unwrap_or(0) {
                0 => Ok(0),
                spares => Err(refused(
                    "spare_workers",
                    &spares.to_string(),
                    "0 where started fibers stay at their workers; see migrate_started_fibers",
                )),
            };
        }
        Ok(spares.unwrap_or(WORKERS_MAX))
    }

    fn workers_asked(&self) -> io::Result<Option<usize>> {
        number(self.workers, "workers", "SINEW_WORKERS", 1..=ALL_WORKERS_MAX)
    }

    /// What the builder says wins: a profile that finds its sizes needs none.
    fn group_size_asked(&self) -> io::Result<Option<usize>> {
        let finds_sizes = self.profile.is_some_and(|profile| profile != Profile::Custom) && self.group_size.is_none();
        if finds_sizes { Ok(None) } else { number(self.group_size, "group_size", "SINEW_GROUP_SIZE", 1..=WORKERS_MAX) }
    }

    fn shape(&self, workers: usize, groups_max: usize, topology: &Topology) -> io::Result<Shape> {
        let known = [
            ("compute-heavy", Profile::ComputeHeavy),
            ("compute", Profile::Compute),
            ("neutral", Profile::Neutral),
            ("io", Profile::Io),
            ("io-heavy", Profile::IoHeavy),
            ("custom", Profile::Custom),
        ];
        let size = self.group_size_asked()?;
        // What the builder says wins: a size of its own is a profile.
        let said = self.profile.or(self.group_size.map(|_| Profile::Custom));
        let profile = named(said, "SINEW_PROFILE", &known)?;
        let profile = profile.unwrap_or(if size.is_some() { Profile::Custom } else { Profile::default() });
        let nodes = topology.nodes();
        let plan = |nodes| plan(profile, workers, [nodes, topology.cpus.len(), groups_max], size);
        let shape = plan(nodes.len()).map_err(|error| match (said, size) {
            (Some(_), _) => error,
            (None, Some(_)) => invalid(format!("SINEW_PROFILE and SINEW_GROUP_SIZE do not go together: {error}")),
            (None, None) => invalid(format!(
                "SINEW_PROFILE=\"custom\" is refused: it needs a group size, SINEW_GROUP_SIZE, from 1 to {WORKERS_MAX}, and none is given"
            )),
        })?;
        let cpus_at = |&node: &usize| topology.cpus.iter().filter(|cpu| cpu.node == node).count();
        let cpus: Vec<usize> = nodes.iter().map(cpus_at).collect();
        let fits = shape.fits(workers, &cpus, self.spread()? == Spread::OneCpuPerWorker);
        if fits { Ok(shape) } else { plan(1) }
    }

    /// What all groups have in common.
    fn settings(&self, usable: usize) -> io::Result<Settings> {
        let queues = [("shared", Queue::Shared), ("stealing", Queue::Stealing)];
        let policies = [("affinity", Policy::Affinity), ("balance", Policy::Balance)];
        let spin = spin(self.spin)?;
        Ok(Settings {
            spin: spin.unwrap_or(if usable > 1 { Spin::Adaptive } else { Spin::Never }),
            queue: named(self.queue, "SINEW_QUEUE", &queues)?.unwrap_or_default(),
            policy: named(self.policy, "SINEW_POLICY", &policies)?.unwrap_or_default(),
            migrates: self.migrates,
            shakes: flag(self.shakes, "SINEW_SHAKE")?,
            ..Settings::plain(1, self.stack_class()?)
        })
    }

    /// The ratios of thefts within a node and across nodes.
    fn ratios(&self) -> io::Result<[u32; 2]> {
        let near = number(self.steal_ratio, "steal_ratio", "SINEW_STEAL_RATIO", 0..=STEAL_RATIO_MAX)?;
        let far = (self.steal_ratio_across_nodes, "steal_ratio_across_nodes", "SINEW_STEAL_RATIO_ACROSS_NODES");
        let far = number(far.0, far.1, far.2, 0..=STEAL_RATIO_MAX)?;
        Ok([near.unwrap_or(STEAL_RATIO) as u32, far.unwrap_or(0) as u32])
    }

    fn blocking_pool(&self) -> io::Result<Pool> {
        let threads = number(self.blocking_threads, "blocking_threads", "SINEW_BLOCKING_THREADS", 1..=blocking::THREADS_MAX)?;
        let idle = duration(self.blocking_idle, "blocking_idle", "SINEW_BLOCKING_IDLE", Duration::ZERO)?;
        let idle_ns = idle.map_or(blocking::IDLE_NS, |idle| idle.as_nanos() as u64);
        Ok(Pool::new(threads.unwrap_or(blocking::THREADS_DEFAULT), idle_ns))
    }

    fn io_asked(&self) -> io::Result<Io> {
        let io = named(self.io, "SINEW_IO", &[("uring", Io::Uring), ("epoll", Io::Epoll), ("auto", Io::Auto)])?.unwrap_or_default();
        if io == Io::Uring {
            Driver::choose(io)?;
        }
        Ok(io)
    }

    fn stack_class(&self) -> io::Result<Class> {
        let allowed = "bytes from 1 to 1G, as in 65536, 64K or 1M";
        match self.stack_bytes {
            Some(bytes) => Class::for_bytes(bytes).map_err(|_| refused("stack_size", &bytes.to_string(), allowed)),
            None => {
                let class = environment("SINEW_STACK_SIZE", allowed, |text| Class::for_bytes(parse_bytes(text)?).ok())?;
                class.map_or_else(|| Class::for_bytes(stack::DEFAULT_BYTES), Ok)
            }
        }
    }
}

/// The groups that one steals from, and how rarely: those of its own sort.
fn victims(thief: usize, foreground: usize, nodes: &[Option<usize>], [near, far]: [u32; 2]) -> Vec<(usize, u32)> {
    let same_sort = |&victim: &usize| victim != thief && (victim < foreground) == (thief < foreground);
    let ratio = |victim: usize| if nodes[victim] == nodes[thief] { near } else { far };
    (0..nodes.len()).filter(same_sort).map(|victim| (victim, ratio(victim))).filter(|&(_, ratio)| ratio != 0).collect()
}

/// How long idle workers poll, as the builder says, or else the environment.
fn spin(said: Option<Spin>) -> io::Result<Option<Spin>> {
    let allowed = MICRO..=DURATION_MAX;
    let text = format!("never, adaptive, or microseconds from 1 to {}", DURATION_MAX.as_micros());
    match said {
        Some(Spin::Fixed(time)) if !allowed.contains(&time) => Err(refused("spin", &counted(time, MICRO), &text)),
        Some(_) => Ok(said),
        None => environment("SINEW_SPIN", &text, |value| match value {
            "never" => Some(Spin::Never),
            "adaptive" => Some(Spin::Adaptive),
            _ => value.parse().ok().map(Duration::from_micros).filter(|time| allowed.contains(time)).map(Spin::Fixed),
        }),
    }
}

pub(crate) fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// A number that the builder says, or else the environment.
fn number(said: Option<usize>, option: &str, variable: &str, allowed: RangeInclusive<usize>) -> io::Result<Option<usize>> {
    let text = format!("a whole number from {} to {}", allowed.start(), allowed.end());
    match said {
        Some(n) if allowed.contains(&n) => Ok(Some(n)),
        Some(n) => Err(refused(option, &n.to_string(), &text)),
        None => environment(variable, &text, |value| value.parse().ok().filter(|n| allowed.contains(n))),
    }
}

/// What the builder says cannot be used.
fn refused(option: &str, value: &str, allowed: &str) -> io::Error {
    invalid(format!("RuntimeBuilder::{option}({value}) is refused: it must be {allowed}"))
}

/// A time as the environment would say it; as it is, if it is no whole number of units.
fn counted(time: Duration, unit: Duration) -> String {
    let (time_ns, unit_ns) = (time.as_nanos(), unit.as_nanos());
    if time_ns.is_multiple_of(unit_ns) { (time_ns / unit_ns).to_string() } else { format!("{time:?}") }
}

/// A number with the name of who said it.
fn shown(said: Option<usize>, option: &str, variable: &str, n: usize) -> String {
    said.map_or_else(|| format!("{variable}=\"{n}\""), |_| format!("RuntimeBuilder::{option}({n})"))
}

/// A time that the builder says, or else the environment in milliseconds. The builder may say fractions of one too.
fn duration(said: Option<Duration>, option: &str, variable: &str, least: Duration) -> io::Result<Option<Duration>> {
    let allowed = least..=DURATION_MAX;
    let text = format!("a whole number of milliseconds from {} to {}", least.as_millis(), DURATION_MAX.as_millis());
    match said {
        Some(time) if allowed.contains(&time) => Ok(said),
        Some(time) => Err(refused(option, &counted(time, MILLI), &text)),
        None => environment(variable, &text, |value| value.parse().ok().map(Duration::from_millis).filter(|time| allowed.contains(time))),
    }
}

/// A choice that the builder makes, or else the environment by one of these names.
fn named<V: Copy>(said: Option<V>, variable: &str, known: &[(&str, V)]) -> io::Result<Option<V>> {
    if said.is_some() {
        return Ok(said);
    }
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let (last, others) = names.split_last().expect("there is a name");
    environment(variable, &format!("{} or {last}", others.join(", ")), |text| {
        known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value)
    })
}

/// A yes or no that the builder says, or else the environment; no if neither does.
fn flag(said: Option<bool>, variable: &str) -> io::Result<bool> {
    Ok(named(said, variable, &[("0", false), ("1", true)])?.unwrap_or(false))
}

/// The value of an environment variable; an error that names it, the value and what is allowed if it cannot be read.
pub(crate) fn environment<V>(name: &str, allowed: &str, parse: impl FnOnce(&str) -> Option<V>) -> io::Result<Option<V>> {
    let Some(value) = std::env::var_os(name) else { return Ok(None) };
    match value.to_str().and_then(|text| parse(text.trim())) {
        Some(parsed) => Ok(Some(parsed)),
        None => Err(invalid(format!("{name}={value:?} is refused: it must be {allowed}"))),
    }
}

/// `64K`, `1M`, `1G` or plain bytes.
fn parse_bytes(text: &str) -> Option<usize> {
    let (digits, unit) = match text.char_indices().last()? {
        (i, 'k' | 'K') => (&text[..i], 1 << 10),
        (i, 'm' | 'M') => (&text[..i], 1 << 20),
        (i, 'g' | 'G') => (&text[..i], 1 << 30),
        _ => (text, 1),
    };
    digits.trim().parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::topology::tests::{many, two_nodes};

    /// Groups of a machine. No worker of them is ever started.
    fn grouped(settings: Vec<Settings>, machine: Topology) -> Arc<Groups> {
        let binding = Binding { cpus: Vec::new(), machine };
        Groups::new(settings, Io::Auto, Pool::new(1, 0), start_worker, Hooks::default(), binding).expect("memory")
    }

    fn planned(builder: RuntimeBuilder, machine: Topology) -> Arc<Groups> {
        grouped(builder.groups(&machine).expect("groups"), machine)
    }

    /// The groups that `count` threads on `cpu` choose, one after the other.
    fn chosen(groups: &Groups, cpu: Option<usize>, count: usize) -> Vec<usize> {
        (0..count).map(|_| groups.nearest_to(cpu).index).collect()
    }

    #[test]
    fn a_thread_finds_the_groups_of_its_node_by_turns() {
        let machine = two_nodes();
        let builder = RuntimeBuilder::default().workers(12).group_size(2).background(1);
        let groups = planned(builder, machine.read("0-15").expect("a machine"));
        let nodes: Vec<_> = groups.all.iter().map(|group| group.settings.node).collect();
        assert_eq!(nodes, [Some(0), Some(1), Some(0), Some(1), Some(0), Some(1), None]);
        assert_eq!(chosen(&groups, Some(6), 7), [0, 2, 4, 0, 2, 4, 0], "CPU 6 is of node 0");
        assert_eq!(chosen(&groups, Some(15), 7), [1, 3, 5, 1, 3, 5, 1], "CPU 15 is of node 1");
        // Two that ask by turns do not spoil it for each other.
        let both: Vec<_> = (0..3).map(|_| [0, 1].map(|cpu| groups.nearest_to(Some(cpu)).index)).collect();
        assert_eq!(both, [[2, 3], [4, 5], [0, 1]]);
        // Nobody knows where it runs: all foreground groups, by turns.
        let mut anywhere = chosen(&groups, None, 6);
        anywhere.sort_unstable();
        assert_eq!(anywhere, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_thread_finds_its_node_on_a_cpu_that_workers_must_not_use() {
        let machine = two_nodes();
        let forbidden = CpuList::parse("0-1").expect("a list");
        let usable = machine.read("0-15").and_then(|all| all.usable(None, Some(&forbidden))).expect("CPUs");
        let groups = planned(RuntimeBuilder::default().workers(8).group_size(2), usable);
        assert_eq!(chosen(&groups, Some(0), 3), [0, 2, 0]);
        assert_eq!(chosen(&groups, Some(1), 3), [1, 3, 1]);
    }

    #[test]
    fn a_thread_at_a_node_without_groups_finds_all_by_turns() {
        let machine = two_nodes().read("0-15").expect("a machine");
        let mut settings = RuntimeBuilder::default().workers(6).group_size(2).groups(&machine).expect("groups");
        settings.iter_mut().for_each(|group| group.node = Some(0));
        let groups = grouped(settings, machine);
        assert_eq!(chosen(&groups, Some(0), 3), [0, 1, 2]);
        // One there and one at a node with groups, who ask by turns, do not spoil it for each other.
        let both: Vec<_> = (0..3).map(|_| [1, 0].map(|cpu| groups.nearest_to(Some(cpu)).index)).collect();
        assert_eq!(both, [[0, 0], [1, 1], [2, 2]]);
        for elsewhere in [Some(1), Some(99), None] {
            assert_eq!(chosen(&groups, elsewhere, 4), [0, 1, 2, 0], "{elsewhere:?}");
            assert_eq!(chosen(&groups, elsewhere, 2), [1, 2], "{elsewhere:?}");
        }
    }

    #[test]
    fn a_group_steals_from_its_own_sort_and_across_nodes_only_if_asked() {
        // Two foreground groups at each of two nodes, and a background group that is bound nowhere.
        let nodes = [Some(0), Some(0), Some(1), Some(1), None];
        assert_eq!(victims(0, 4, &nodes, [16, 0]), [(1, 16)]);
        assert_eq!(victims(3, 4, &nodes, [16, 0]), [(2, 16)]);
        assert_eq!(victims(2, 4, &nodes, [16, 64]), [(0, 64), (1, 64), (3, 16)]);
        assert_eq!(victims(4, 4, &nodes, [16, 64]), []);
        assert_eq!(victims(1, 4, &nodes, [0, 0]), []);
    }

    /// Claim: by default there is a worker for each CPU that affinity and quota leave, whatever the machine has, and two at least; nobody polls where one CPU is left. (How many are left is std's word.)
    #[test]
    fn a_quota_limits_the_workers_that_nobody_asked_for() {
        let machine = two_nodes();
        let machine = machine.read("0-15").expect("a machine");
        let built = |builder: RuntimeBuilder, quota| {
            let groups = builder.groups_within(quota, &machine).expect("groups");
            (groups.iter().map(|group| group.workers).sum::<usize>(), groups[0].spin)
        };
        for (quota, workers, spin) in
            [(1, 2, Spin::Never), (2, 2, Spin::Adaptive), (5, 5, Spin::Adaptive), (16, 16, Spin::Adaptive), (64, 16, Spin::Adaptive)]
        {
            assert_eq!(built(RuntimeBuilder::default(), quota), (workers, spin), "{quota} CPUs are left of 16");
            assert_eq!(built(RuntimeBuilder::default().workers(7), quota), (7, spin));
            assert_eq!(built(RuntimeBuilder::default().one_cpu_per_worker(true), quota).0, quota.min(16));
        }
        assert_eq!(cpu::usable(), std::thread::available_parallelism().expect("CPUs").get());
    }

    /// Claim: where lists leave more of one node's CPUs than of another's, workers are bound to no node: they would be to few CPUs there, or have none of their own.
    #[test]
    fn groups_keep_to_nodes_only_where_these_have_cpus_for_them() {
        let machine = two_nodes();
        let planned = |forbidden: &str, builder: RuntimeBuilder| {
            let forbidden = CpuList::parse(forbidden).expect("a list");
            let machine = machine.read("0-15").and_then(|all| all.usable(None, Some(&forbidden))).expect("CPUs");
            let groups = builder.groups_within(16, &machine).expect("groups");
            let cpus = builder.assign(&machine, &groups).expect("CPUs for all");
            (groups.iter().map(|group| group.node).collect::<Vec<_>>(), cpus)
        };
        let of_seven = || RuntimeBuilder::default().workers(14).group_size(7);
        let both = [Some(0), Some(1)];
        assert_eq!(planned("0,1", of_seven()).0, both);
        assert_eq!(planned("0,1", of_seven().one_cpu_per_worker(true)).0, both);
        // Six CPUs of node 0 are left, and eight of node 1.
        assert_eq!(planned("0,2", of_seven()).0, [None; 2]);
        let (nodes, cpus) = planned("0,2", of_seven().one_cpu_per_worker(true));
        let own: BTreeSet<usize> = cpus.into_iter().flatten().map(|cpus| cpus.expect("one")[0]).collect();
        assert_eq!((nodes, own.len()), (vec![None; 2], 14));
        // Each has a CPU there, however many others could have.
        assert_eq!(planned("0,2,4,6,8,10", RuntimeBuilder::default().workers(4).group_size(2).one_cpu_per_worker(true)).0, both);
        // A tenth too many is no reason to leave the node, unless each is to have a CPU.
        let shape = Shape { groups: 2, size: 31, by_node: true };
        assert_eq!([false, true].map(|one_each| shape.fits(62, &[30, 32], one_each)), [true, false]);
        assert!(!shape.fits(62, &[27, 35], false));
    }

    /// Claim: on a machine of any size each profile finds no more groups than there may be, those in the background included.
    #[test]
    fn large_machines_have_larger_groups() {
        for (cpus, background, profile, workers) in [
            (768, 0, Profile::IoHeavy, 768),
            (2048, 0, Profile::Neutral, 2048),
            (2048, 20, Profile::IoHeavy, 2048),
            (4096, 0, Profile::Io, 4096),
            (4096, 1, Profile::Io, 63 * 64),
        ] {
            let machine = many(cpus).read(&format!("0-{}", cpus - 1)).expect("a machine");
            let groups = RuntimeBuilder::default().profile(profile).background(background).groups_within(cpus, &machine).expect("groups");
            let foreground = groups.iter().filter(|group| !group.background);
            assert_eq!(foreground.map(|group| group.workers).sum::<usize>(), workers, "{profile:?}");
        }
        // What was asked for is not made larger behind anybody's back.
        let machine = many(768).read("0-767").expect("a machine");
        let refused = RuntimeBuilder::default().group_size(8).groups_within(768, &machine).expect_err("96 groups");
        assert!(refused.to_string().contains("are 96 groups: there may be 64; make the groups larger"), "{refused}");
    }

    #[test]
    fn thefts_are_one_look_in_16_within_a_node_and_none_across_by_default() {
        let machine = two_nodes();
        let groups = planned(RuntimeBuilder::default().workers(8).group_size(2), machine.read("0-15").expect("a machine"));
        let victims = groups.all.iter().map(|group| (group.settings.node, group.settings.victims.as_slice()));
        assert!(victims.eq([(Some(0), &[(2, 16)][..]), (Some(1), &[(3, 16)]), (Some(0), &[(0, 16)]), (Some(1), &[(1, 16)])]));
    }

    #[test]
    fn any_and_nearest_take_no_turns_from_each_other() {
        let groups = planned(RuntimeBuilder::default().workers(8).group_size(2), two_nodes().read("0-15").expect("a machine"));
        // One at a node with groups, and one of which nobody knows where it runs.
        for (cpu, near) in [(Some(0), [0, 2, 0, 2]), (None, [0, 1, 2, 3])] {
            let any_beside_nearest = |_| {
                let any = groups.any().index;
                let _ = groups.nearest_to(cpu);
                any
            };
            assert!((0..8).map(any_beside_nearest).eq([0, 1, 2, 3, 0, 1, 2, 3]), "beside {cpu:?}");
            let nearest_beside_any = |_| {
                let nearest = groups.nearest_to(cpu).index;
                let _ = groups.any();
                nearest
            };
            assert!((0..4).map(nearest_beside_any).eq(near), "{cpu:?}");
        }
    }
}
