//! What placement for life costs against free stealing, and which placement rule costs least: a simulator.
//!
//! A fiber settles on the worker that first runs it (DESIGN 5). So a rule places a thousand long-lived fibers before
//! anything is known of their needs, and lives with it. This program plays that out: 1000 fibers with skewed needs
//! on 2, 8 and 64 workers, by every rule that was considered, and prints one table per (workers, utilisation).
//!
//! ```text
//! cargo run --release -p sinew --example placement             every table, under two minutes
//! cargo run --release -p sinew --example placement -- --quick  the same tables from fewer bursts, some seconds
//!     --workers 8   --utilisation 90   --seed 7                only these; another draw
//! ```
//!
//! Found (figures in docs/decisions.md): what settling costs is the price of one queue per worker, and skew adds little to
//! it; rules that spread the fibers evenly differ by little more than noise. What tells rules apart is who gets no
//! fibers, and how long a new fiber waits: the spawner's worker is never idle when it spawns, so a rule that asks idle
//! workers only starves it. Best: the spawner's worker counts as idle, k = 2 (`OwnIfFewest`). `Patient` adds a bound on
//! how long a spawner that does not stop holds up its children, and pays with spread where there are two workers.
//!
//! # Picture
//!
//! ```text
//! acceptor fiber (worker 0) --spawn--> rule --+--> own queue of a worker   (settled when pushed)
//!                                             +--> group queue             (settled by who takes it)
//! fiber:  start (short first burst) -> think -> ready --wait--> burst -> think -> ...
//! worker: idle --claimed, WAKE_NS--> own queue; the group queue if that is empty, and first every 8th round
//! ```
//!
//! Needs are closed loop: a fiber thinks after its burst ends, so a worker asked for more than it has shows up as wait
//! and as work not done, not as an endless queue. Think times and bursts are exponential, so that the limits are
//! known: `check_against_theory` compares one worker and free stealing with the exact solution.
//!
//! # Invariants
//!
//! I1. A fiber is in one place: unspawned, thinking, in one queue, or running; all are found at the end.
//! I2. A worker with its own work is never idle; nor is any worker while free stealing has work.
//! I3. While the group queue holds work, a worker that may take it is awake.
//! I4. CPU time given by the workers is CPU time taken by the fibers, and no worker gives more than the time there was.
//!
//! # Not here
//!
//! What free stealing pays: cold caches, shared queues, and all that may no longer be thread-local. Free stealing is
//! the limit of what waiting can be, not a rival at equal cost.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Long-lived fibers per run; the issue asks for a thousand.
const FIBERS: usize = 1000;
/// Mean CPU burst over all fibers: a small request. All waits scale with it.
const BURST_NS: f64 = 100_000.0;
/// Mean first burst: set up, then wait for the first request. Short, so that it tells nothing of the need.
const START_NS: f64 = 20_000.0;
/// From claiming an idle worker to its first instruction: between a spinner's 1 us and a sleeper's 50 us.
const WAKE_NS: u64 = 5_000;
/// What the acceptor computes per spawn.
const SPAWN_NS: u64 = 1_000;
/// The same in `Arrival::Hog`.
const HOG_SPAWN_NS: u64 = 100_000;
/// No fiber needs more than this share of one worker: above it no placement could help.
const NEED_MAX: f64 = 0.5;
/// Think times are this much longer while fibers trickle in, so that the runtime is almost idle.
const IDLE_STRETCH: f64 = 200.0;
/// Spawn interval of `Arrival::Trickle`: 100 per second.
const TRICKLE_NS: u64 = 10_000_000;
/// Spawn interval of `Arrival::Ramp`: 10000 per second.
const RAMP_NS: u64 = 100_000;
/// Group queue first, every 8th round: DESIGN 5, affinity policy.
const GROUP_ROUNDS: u32 = 8;
/// How long `Rule::Patient` leaves a new fiber to light workers. With 1 ms a burst spreads worse: on 8 workers, count is
/// 1.27 to 1.37 and not 1.12.
const PATIENCE_NS: u64 = 10_000_000;
/// Loads of workers are measured over this time, and halved with the one before. Longer than 100 bursts.
const WINDOW_NS: u64 = 50_000_000;
/// Bursts a fiber runs at a worker before it may hop.
const HOP_AFTER: u32 = 100;

const NOWHERE: u32 = u32::MAX;
const ACCEPTOR: u32 = FIBERS as u32;

/// How a new fiber finds the worker it settles on.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// One queue, every worker runs every fiber: the limit.
    Free,
    /// Any worker.
    Random,
    /// The lowest-numbered idle worker, else the group queue.
    LowestIdle,
    /// The idle worker with the fewest settled fibers, else the group queue.
    FewestIdle,
    /// `FewestIdle`, but a heavy worker takes no group work.
    Light(f64),
    /// The spawner's own worker if no idle one has fewer settled fibers; else as `Light`.
    OwnIfFewest(f64),
    /// `OwnIfFewest`, but its own child waits in the group queue, and what waited `PATIENCE_NS` there goes to any idle worker.
    Patient(f64),
    /// The spawner's own worker unless it is heavy; else as `Light`.
    OwnUnlessHeavy(f64),
    /// The one with fewer settled fibers of two random workers.
    TwoChoices,
    /// The worker with the fewest settled fibers, idle or not.
    Fewest,
    /// `Light`, and a fiber may be spawned anew, later.
    Hop(f64, Hop),
}

/// When a fiber leaves its worker, and for which.
#[derive(Clone, Copy, PartialEq)]
enum Hop {
    /// Once in its life, if its worker's load is above 1.25 of the mean; placed like a new fiber.
    OnceBlind,
    /// If the least loaded worker, with this fiber's share, would still have less load than its own has; to that one.
    /// At most one fiber per worker and window, and again after 100 bursts.
    WhereItFits,
}

/// A worker loaded this much above the mean lets fibers go (`Hop::OnceBlind`).
const HOP_LOAD: f64 = 1.25;
/// Nobody hops while the workers are idler than this: the load of a window is noise then.
const HOP_FLOOR: f64 = 0.1;

const RULES: &[(&str, Rule)] = &[
    ("g free stealing", Rule::Free),
    ("a random", Rule::Random),
    ("b lowest idle", Rule::LowestIdle),
    ("c fewest idle", Rule::FewestIdle),
    ("d c, light, k=2", Rule::Light(2.0)),
    ("d c, light, k=4", Rule::Light(4.0)),
    ("d c, light, k=16", Rule::Light(16.0)),
    ("d' own if fewest, k=2", Rule::OwnIfFewest(2.0)),
    ("d'' d', patient, k=2", Rule::Patient(2.0)),
    ("e two choices", Rule::TwoChoices),
    ("e' fewest of all", Rule::Fewest),
    ("f own, k=2", Rule::OwnUnlessHeavy(2.0)),
    ("f own, k=16", Rule::OwnUnlessHeavy(16.0)),
    ("h d k=2, hop once", Rule::Hop(2.0, Hop::OnceBlind)),
    ("h' d k=2, hop if it fits", Rule::Hop(2.0, Hop::WhereItFits)),
];

impl Rule {
    /// How many settled fibers above the average make a worker heavy; none, if the rule knows no such thing.
    fn heavy_above(self, average: f64) -> Option<f64> {
        match self {
            Rule::Light(k) | Rule::OwnIfFewest(k) | Rule::Patient(k) | Rule::OwnUnlessHeavy(k) | Rule::Hop(k, _) => {
                Some((average / 8.0).max(k))
            }
            _ => None,
        }
    }

    /// The arrival to run it by, if one is enough: order and time do not matter to it, or only what comes after.
    fn only_arrival(self) -> Option<Arrival> {
        matches!(self, Rule::Free | Rule::Random | Rule::Hop(..)).then_some(Arrival::Once)
    }
}

/// How the fibers come.
#[derive(Clone, Copy, PartialEq)]
enum Arrival {
    /// 100/s on an almost idle runtime; the load begins when all are there.
    Trickle,
    /// All by one burst of the acceptor.
    Once,
    /// 10000/s, each at its full need from its start: into the load they make.
    Ramp,
    /// All by one burst, whose spawns are so far apart that it holds its worker for 100 ms.
    Hog,
}

const ARRIVALS: &[(&str, Arrival)] =
    &[("once", Arrival::Once), ("100/s", Arrival::Trickle), ("10000/s", Arrival::Ramp), ("hog", Arrival::Hog)];

/// Whose needs differ, and by how much.
#[derive(Clone, Copy)]
enum Skew {
    /// All alike: what is left is the price of separate queues.
    Even,
    /// Same bursts; the n-th fiber bursts as often as 1/n^s.
    Rates(f64),
    /// Same rates; mean bursts by Pareto's law, cut at 50 times the mean.
    Bursts(f64),
}

const SKEWS: &[(&str, Skew)] =
    &[("even", Skew::Even), ("Zipf 0.8", Skew::Rates(0.8)), ("Zipf 1.2", Skew::Rates(1.2)), ("Pareto 1.5", Skew::Bursts(1.5))];

/// One run.
#[derive(Clone, Copy)]
struct Case {
    workers: usize,
    utilisation: f64,
    rule: Rule,
    arrival: Arrival,
    skew: Skew,
    wake_ns: u64,
    warm_bursts: u64,
    measured_bursts: u64,
    seed: u64,
}

/// What a run, or several runs together, showed. Ratios are sums over `runs`.
#[derive(Clone, Default)]
struct Outcome {
    runs: f64,
    wait: Histogram,
    start: Histogram,
    /// Measured utilisation.
    busy: f64,
    /// Max/mean over the workers: CPU time given, CPU time that would be needed, settled fibers.
    cpu_ratio: f64,
    need_ratio: f64,
    count_ratio: f64,
}

impl Outcome {
    fn add(&mut self, other: &Outcome) {
        self.runs += other.runs;
        self.wait.add(&other.wait);
        self.start.add(&other.start);
        self.busy += other.busy;
        self.cpu_ratio += other.cpu_ratio;
        self.need_ratio += other.need_ratio;
        self.count_ratio += other.count_ratio;
    }
}

/// Mean burst and share of a worker, per fiber, in spawn order; the shares add up to `total`.
fn needs(skew: Skew, total: f64, rng: &mut Rng) -> Vec<(f64, f64)> {
    let mut weights: Vec<(f64, f64)> = (1..=FIBERS)
        .map(|rank| match skew {
            Skew::Even => (BURST_NS, 1.0),
            Skew::Rates(s) => (BURST_NS, (rank as f64).powf(-s)),
            Skew::Bursts(alpha) => {
                let burst = (BURST_NS * (alpha - 1.0) / alpha * rng.unit().powf(-1.0 / alpha)).min(50.0 * BURST_NS);
                (burst, burst)
            }
        })
        .collect();
    for last in (1..FIBERS).rev() {
        weights.swap(last, rng.below(last + 1));
    }
    // The scale that makes the capped shares add up: they grow with it, so halving finds it.
    let (mut low, mut high) = (0.0, 1e9);
    for _ in 0..200 {
        let scale = (low + high) / 2.0;
        let sum: f64 = weights.iter().map(|(_, weight)| (weight * scale).min(NEED_MAX)).sum();
        if sum < total { low = scale } else { high = scale }
    }
    weights.into_iter().map(|(burst, weight)| (burst, (weight * high).min(NEED_MAX))).collect()
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Place {
    Unspawned,
    Thinking,
    Queued,
    Running,
}

struct Fiber {
    burst_ns: f64,
    think_ns: f64,
    need: f64,
    /// The worker it is settled on, or `NOWHERE`.
    home: u32,
    place: Place,
    started: bool,
    ready_at: u64,
    /// Bursts since it settled.
    bursts: u32,
    hops: u32,
    load: Load,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Idle,
    Waking,
    Running { fiber: u32, since: u64 },
}

struct Worker {
    state: State,
    own: VecDeque<u32>,
    settled: usize,
    round: u32,
    load: Load,
    /// A fiber hopped away in this window.
    let_go: bool,
}

/// CPU time given or taken.
#[derive(Clone, Copy, Default)]
struct Load {
    total_ns: u64,
    window_ns: u64,
    /// As a share of one worker, over the last windows.
    recent: f64,
}

impl Load {
    fn add(&mut self, ns: u64) {
        self.total_ns += ns;
        self.window_ns += ns;
    }

    fn end_window(&mut self) {
        self.recent = (self.recent + std::mem::take(&mut self.window_ns) as f64 / WINDOW_NS as f64) / 2.0;
    }
}

/// What happens at a time; ordered by time, then by this, so that a seed is a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Done(u32),
    Woken(u32),
    Ready(u32),
    WindowEnds,
}

struct Sim {
    case: Case,
    rng: Rng,
    now: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    fibers: Vec<Fiber>,
    workers: Vec<Worker>,
    group: VecDeque<u32>,
    settled: usize,
    unspawned: usize,
    unstarted: usize,
    think_stretch: f64,
    bursts: u64,
    mean_load: f64,
    wait: Histogram,
    start: Histogram,
}

impl Sim {
    fn run(case: Case) -> Outcome {
        let mut sim = Sim::new(case);
        while sim.unstarted > 0 {
            sim.step();
        }
        if case.arrival == Arrival::Trickle {
            sim.begin_load();
        }
        sim.run_bursts(case.warm_bursts);
        sim.wait = Histogram::default();
        let (began, cpu_before) = (sim.now, sim.workers.iter().map(|worker| worker.load.total_ns).collect::<Vec<_>>());
        sim.run_bursts(case.measured_bursts);
        sim.check();
        let elapsed = sim.now - began;
        sim.outcome(elapsed, &cpu_before)
    }

    fn new(case: Case) -> Sim {
        let mut rng = Rng(case.seed);
        let total = case.utilisation * case.workers as f64;
        let mut fibers: Vec<Fiber> = needs(case.skew, total, &mut rng)
            .into_iter()
            .map(|(burst_ns, need)| Fiber::unspawned(burst_ns, burst_ns * (1.0 / need - 1.0), need))
            .collect();
        fibers.push(Fiber { home: 0, place: Place::Thinking, started: true, ..Fiber::unspawned(0.0, 0.0, 0.0) });
        let workers = (0..case.workers).map(|_| Worker::idle()).collect();
        let think_stretch = if case.arrival == Arrival::Trickle { IDLE_STRETCH } else { 1.0 };
        let mut sim = Sim {
            case,
            rng,
            now: 0,
            events: BinaryHeap::new(),
            fibers,
            workers,
            group: VecDeque::new(),
            settled: 0,
            unspawned: FIBERS,
            unstarted: FIBERS,
            think_stretch,
            bursts: 0,
            mean_load: 0.0,
            wait: Histogram::default(),
            start: Histogram::default(),
        };
        sim.after(0, Event::Ready(ACCEPTOR));
        sim.after(WINDOW_NS, Event::WindowEnds);
        sim
    }

    fn run_bursts(&mut self, bursts: u64) {
        let end = self.bursts + bursts;
        while self.bursts < end {
            self.step();
        }
    }

    /// Ends the almost idle time. What is left of an exponential time is exponential: it only needs scaling.
    fn begin_load(&mut self) {
        let (now, stretch) = (self.now, std::mem::replace(&mut self.think_stretch, 1.0));
        let shrink = |Reverse((at, event))| match event {
            Event::Ready(_) => Reverse((now + ((at - now) as f64 / stretch) as u64, event)),
            _ => Reverse((at, event)),
        };
        self.events = std::mem::take(&mut self.events).into_iter().map(shrink).collect();
    }

    fn step(&mut self) {
        let Reverse((at, event)) = self.events.pop().expect("the load window always has an end");
        self.now = at;
        match event {
            Event::Ready(fiber) => self.ready(fiber),
            Event::Woken(worker) => {
                assert!(self.workers[worker as usize].state == State::Waking, "worker {worker} was woken but not claimed");
                self.run_next(worker as usize);
            }
            Event::Done(worker) => self.done(worker as usize),
            Event::WindowEnds => self.end_window(),
        }
        self.check_group_is_served();
    }

    fn after(&mut self, ns: u64, event: Event) {
        self.events.push(Reverse((self.now + ns, event)));
    }

    /// A fiber has thought enough.
    fn ready(&mut self, fiber: u32) {
        let home = self.fibers[fiber as usize].home;
        self.fibers[fiber as usize].ready_at = self.now;
        if self.case.rule == Rule::Free {
            self.push_group(fiber);
            if let Some(idle) = self.lowest_idle() {
                self.claim(idle);
            }
        } else {
            self.push_own(home as usize, fiber);
        }
    }

    fn push_group(&mut self, fiber: u32) {
        self.fibers[fiber as usize].place = Place::Queued;
        self.group.push_back(fiber);
    }

    fn push_own(&mut self, worker: usize, fiber: u32) {
        self.fibers[fiber as usize].place = Place::Queued;
        self.workers[worker].own.push_back(fiber);
        if self.workers[worker].state == State::Idle {
            self.claim(worker);
        }
    }

    fn claim(&mut self, worker: usize) {
        self.workers[worker].state = State::Waking;
        self.after(self.case.wake_ns, Event::Woken(worker as u32));
    }

    /// A worker is free: runs its next fiber, or falls idle.
    fn run_next(&mut self, worker: usize) {
        self.workers[worker].round += 1;
        let group_first = self.workers[worker].round.is_multiple_of(GROUP_ROUNDS);
        let next = if group_first {
            self.take_group(worker).or_else(|| self.workers[worker].own.pop_front())
        } else {
            self.workers[worker].own.pop_front().or_else(|| self.take_group(worker))
        };
        match next {
            Some(fiber) => self.begin_burst(worker, fiber),
            None => self.workers[worker].state = State::Idle,
        }
    }

    /// The oldest of the group queue, unless this worker is heavy. Who leaves group work, or has just become heavy by
    /// taking some, wakes another for the rest: the average has grown, and a heavy sleeper may be heavy no more (I3).
    fn take_group(&mut self, worker: usize) -> Option<u32> {
        let taken = if self.is_heavy(worker) && !self.is_overdue() { None } else { self.group.pop_front() };
        if let Some(fiber) = taken.filter(|_| self.case.rule != Rule::Free) {
            self.settle(worker, fiber);
        }
        if !self.group.is_empty() && self.is_heavy(worker) {
            let successor = self.fewest_light_idle();
            successor.into_iter().for_each(|idle| self.claim(idle));
        }
        taken
    }

    fn begin_burst(&mut self, worker: usize, fiber: u32) {
        let (now, known) = (self.now, &mut self.fibers[fiber as usize]);
        assert_eq!(known.place, Place::Queued, "fiber {fiber} is run twice");
        assert!(self.case.rule == Rule::Free || known.home == worker as u32, "fiber {fiber} runs away from home");
        known.place = Place::Running;
        let waited = now - known.ready_at;
        let burst = if fiber == ACCEPTOR {
            self.spawn_ns()
        } else if known.started {
            self.wait.record(waited);
            self.rng.exponential_ns(known.burst_ns)
        } else {
            self.start.record(waited);
            self.rng.exponential_ns(START_NS)
        };
        self.workers[worker].state = State::Running { fiber, since: now };
        self.after(burst, Event::Done(worker as u32));
    }

    /// A burst ends.
    fn done(&mut self, worker: usize) {
        let State::Running { fiber, since } = self.workers[worker].state else { panic!("worker {worker} ends a burst it did not begin") };
        let (now, known) = (self.now, &mut self.fibers[fiber as usize]);
        known.load.add(now - since);
        self.workers[worker].load.add(now - since);
        known.place = Place::Thinking;
        if fiber == ACCEPTOR {
            return self.accept(worker);
        }
        known.bursts += 1;
        self.bursts += 1;
        if !std::mem::replace(&mut known.started, true) {
            self.unstarted -= usize::from(known.hops == 0);
        }
        match self.case.rule {
            Rule::Hop(_, hop) if self.wants_to_hop(worker, fiber, hop) => self.hop(worker, fiber, hop),
            _ => {
                let think = self.rng.exponential_ns(self.fibers[fiber as usize].think_ns * self.think_stretch);
                self.after(think, Event::Ready(fiber));
            }
        }
        self.run_next(worker);
    }

    /// The acceptor spawns one fiber and goes on, or waits for the next connection.
    fn accept(&mut self, worker: usize) {
        self.unspawned -= 1;
        self.spawn(worker, self.unspawned as u32);
        match self.case.arrival {
            _ if self.unspawned == 0 => {}
            Arrival::Trickle => self.after(TRICKLE_NS, Event::Ready(ACCEPTOR)),
            Arrival::Ramp => self.after(RAMP_NS, Event::Ready(ACCEPTOR)),
            Arrival::Once | Arrival::Hog => {
                self.fibers[ACCEPTOR as usize].place = Place::Running;
                self.workers[worker].state = State::Running { fiber: ACCEPTOR, since: self.now };
                return self.after(self.spawn_ns(), Event::Done(worker as u32));
            }
        }
        self.run_next(worker);
    }

    fn spawn_ns(&self) -> u64 {
        if self.case.arrival == Arrival::Hog { HOG_SPAWN_NS } else { SPAWN_NS }
    }

    /// Gives a new fiber to a worker, or to the group queue. The spawner's worker still runs the spawner: it is not idle.
    fn spawn(&mut self, spawner: usize, fiber: u32) {
        self.fibers[fiber as usize].ready_at = self.now;
        let workers = self.case.workers;
        let chosen = match self.case.rule {
            Rule::Free => return self.ready(fiber),
            Rule::Random => Some(self.rng.below(workers)),
            Rule::LowestIdle => self.lowest_idle(),
            Rule::FewestIdle | Rule::Light(_) | Rule::Hop(..) => self.fewest_light_idle(),
            Rule::OwnUnlessHeavy(_) if !self.is_heavy(spawner) => Some(spawner),
            Rule::OwnUnlessHeavy(_) => self.fewest_light_idle(),
            Rule::OwnIfFewest(_) => {
                let own = self.workers[spawner].settled;
                self.fewest_light_idle().map(|idle| if self.workers[idle].settled < own { idle } else { spawner })
            }
            Rule::Patient(_) if self.is_overdue() => {
                self.push_group(fiber);
                return self.fewest_idle().into_iter().for_each(|idle| self.claim(idle));
            }
            Rule::Patient(_) => self.fewest_light_idle().filter(|&idle| self.workers[idle].settled < self.workers[spawner].settled),
            Rule::TwoChoices => {
                let (one, other) = (self.rng.below(workers), self.rng.below(workers));
                Some(if self.workers[other].settled < self.workers[one].settled { other } else { one })
            }
            Rule::Fewest => (0..workers).min_by_key(|&worker| self.workers[worker].settled),
        };
        match chosen {
            Some(worker) => {
                self.settle(worker, fiber);
                self.push_own(worker, fiber);
            }
            None => self.push_group(fiber),
        }
    }

    fn settle(&mut self, worker: usize, fiber: u32) {
        assert_eq!(self.fibers[fiber as usize].home, NOWHERE, "fiber {fiber} settles twice");
        self.fibers[fiber as usize].home = worker as u32;
        self.workers[worker].settled += 1;
        self.settled += 1;
    }

    fn lowest_idle(&self) -> Option<usize> {
        self.workers.iter().position(|worker| worker.state == State::Idle)
    }

    fn fewest_idle(&self) -> Option<usize> {
        let idle = (0..self.case.workers).filter(|&worker| self.workers[worker].state == State::Idle);
        idle.min_by_key(|&worker| self.workers[worker].settled)
    }

    fn fewest_light_idle(&self) -> Option<usize> {
        self.fewest_idle().filter(|&worker| !self.is_heavy(worker))
    }

    /// Whether the group queue waited too long for a light worker.
    fn is_overdue(&self) -> bool {
        let oldest = self.group.front().filter(|_| matches!(self.case.rule, Rule::Patient(_)));
        oldest.is_some_and(|&fiber| self.now - self.fibers[fiber as usize].ready_at > PATIENCE_NS)
    }

    fn is_heavy(&self, worker: usize) -> bool {
        let average = self.settled as f64 / self.case.workers as f64;
        self.case.rule.heavy_above(average).is_some_and(|above| self.workers[worker].settled as f64 > average + above)
    }

    fn wants_to_hop(&self, worker: usize, fiber: u32, hop: Hop) -> bool {
        let (known, worker) = (&self.fibers[fiber as usize], &self.workers[worker]);
        known.bursts >= HOP_AFTER
            && self.mean_load > HOP_FLOOR
            && match hop {
                Hop::OnceBlind => known.hops == 0 && worker.load.recent > HOP_LOAD * self.mean_load,
                Hop::WhereItFits => !worker.let_go && self.workers[self.calmest()].load.recent + known.load.recent < worker.load.recent,
            }
    }

    fn calmest(&self) -> usize {
        let load = |worker: usize| self.workers[worker].load.recent;
        (0..self.case.workers).min_by(|&one, &other| load(one).total_cmp(&load(other))).expect("there is a worker")
    }

    /// The fiber ends here and is spawned anew, with a first burst as any other. What it adds to a load moves along.
    fn hop(&mut self, worker: usize, fiber: u32, hop: Hop) {
        self.workers[worker].let_go = true;
        self.workers[worker].settled -= 1;
        self.settled -= 1;
        let known = &mut self.fibers[fiber as usize];
        (known.home, known.bursts, known.started, known.hops, known.ready_at) = (NOWHERE, 0, false, known.hops + 1, self.now);
        if hop == Hop::OnceBlind {
            return self.spawn(worker, fiber);
        }
        let (share, calmest) = (known.load.recent, self.calmest());
        self.workers[worker].load.recent -= share;
        self.workers[calmest].load.recent += share;
        self.settle(calmest, fiber);
        self.push_own(calmest, fiber);
    }

    fn end_window(&mut self) {
        self.fibers.iter_mut().for_each(|fiber| fiber.load.end_window());
        for worker in &mut self.workers {
            worker.load.end_window();
            worker.let_go = false;
        }
        self.mean_load = self.workers.iter().map(|worker| worker.load.recent).sum::<f64>() / self.case.workers as f64;
        self.after(WINDOW_NS, Event::WindowEnds);
    }

    /// I3, and I2 for free stealing: if a worker sleeps, then somebody was woken for each fiber in the queue.
    fn check_group_is_served(&self) {
        if self.group.is_empty() {
            return;
        }
        let awake = (0..self.case.workers).any(|worker| self.workers[worker].state != State::Idle && !self.is_heavy(worker));
        assert!(awake, "{} fibers in the group queue, and no worker that may take them is awake", self.group.len());
        if self.case.rule == Rule::Free && self.lowest_idle().is_some() {
            let waking = self.workers.iter().filter(|worker| worker.state == State::Waking).count();
            assert!(self.group.len() <= waking, "{} fibers wait, {waking} workers wake, and one sleeps", self.group.len());
        }
    }

    /// I1, I2, I4.
    fn check(&self) {
        let mut seen = vec![0; FIBERS + 1];
        let mut mark = |fiber: u32, place: Place| {
            assert_eq!(self.fibers[fiber as usize].place, place, "fiber {fiber}");
            seen[fiber as usize] += 1;
        };
        for &Reverse((_, event)) in &self.events {
            if let Event::Ready(fiber) = event {
                mark(fiber, Place::Thinking);
            }
        }
        self.group.iter().for_each(|&fiber| mark(fiber, Place::Queued));
        for (number, worker) in self.workers.iter().enumerate() {
            worker.own.iter().for_each(|&fiber| mark(fiber, Place::Queued));
            match worker.state {
                State::Running { fiber, .. } => mark(fiber, Place::Running),
                State::Idle => assert!(worker.own.is_empty(), "worker {number} is idle and has work of its own"),
                State::Waking => {}
            }
            assert!(worker.load.total_ns <= self.now, "worker {number} worked {} ns in {} ns", worker.load.total_ns, self.now);
        }
        assert!(seen[..FIBERS].iter().all(|&times| times == 1), "a fiber is lost, or in two places");
        let given: u64 = self.workers.iter().map(|worker| worker.load.total_ns).sum();
        let taken: u64 = self.fibers.iter().map(|fiber| fiber.load.total_ns).sum();
        assert_eq!(given, taken, "CPU time given and taken");
    }

    fn outcome(self, elapsed: u64, cpu_before: &[u64]) -> Outcome {
        let cpu: Vec<f64> = self.workers.iter().zip(cpu_before).map(|(worker, before)| (worker.load.total_ns - before) as f64).collect();
        let mut need = vec![0.0; self.case.workers];
        let mut count = vec![0.0; self.case.workers];
        for fiber in self.fibers[..FIBERS].iter().filter(|fiber| fiber.home != NOWHERE) {
            need[fiber.home as usize] += fiber.need;
            count[fiber.home as usize] += 1.0;
        }
        Outcome {
            runs: 1.0,
            busy: cpu.iter().sum::<f64>() / (elapsed as f64 * self.case.workers as f64),
            cpu_ratio: max_over_mean(&cpu),
            need_ratio: max_over_mean(&need),
            count_ratio: max_over_mean(&count),
            wait: self.wait,
            start: self.start,
        }
    }
}

impl Fiber {
    fn unspawned(burst_ns: f64, think_ns: f64, need: f64) -> Fiber {
        let place = Place::Unspawned;
        Fiber { burst_ns, think_ns, need, home: NOWHERE, place, started: false, ready_at: 0, bursts: 0, hops: 0, load: Load::default() }
    }
}

impl Worker {
    fn idle() -> Worker {
        Worker { state: State::Idle, own: VecDeque::new(), settled: 0, round: 0, load: Load::default(), let_go: false }
    }
}

/// 1 if all are alike; 1 too if there is nothing, as when free stealing settles no fiber.
fn max_over_mean(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    if mean == 0.0 { 1.0 } else { values.iter().copied().fold(0.0, f64::max) / mean }
}

/// Compares the simulator with what queueing theory knows: M/M/1, M/M/8, and the utilisation asked for.
fn check_against_theory(seed: u64) {
    let case = Case {
        workers: 1,
        utilisation: 0.5,
        rule: Rule::Random,
        arrival: Arrival::Once,
        skew: Skew::Even,
        wake_ns: 0,
        warm_bursts: 20_000,
        measured_bursts: 400_000,
        seed,
    };
    for (workers, utilisation, rule) in [(1, 0.5, Rule::Random), (8, 0.5, Rule::Free), (8, 0.9, Rule::Free)] {
        let outcome = Sim::run(Case { workers, utilisation, rule, ..case });
        let (wait, busy) = shared_queue(workers, utilisation);
        assert_near("utilisation", outcome.busy, busy, 0.01);
        assert_near("mean wait", outcome.wait.mean() / BURST_NS, wait, 0.15);
    }
}

/// Mean wait, in mean bursts, and utilisation where `FIBERS` alike share a queue: M/M/c with a finite source, solved
/// exactly. The number of fibers not thinking is a birth-death chain.
fn shared_queue(workers: usize, utilisation: f64) -> (f64, f64) {
    let need = utilisation * workers as f64 / FIBERS as f64;
    let thought_per_burst = 1.0 / (1.0 / need - 1.0);
    let (mut weight, mut sum, mut queued, mut running) = (1.0, 1.0, 0.0, 0.0);
    for there in 1..=FIBERS {
        let serving = there.min(workers) as f64;
        weight *= (FIBERS - there + 1) as f64 * thought_per_burst / serving;
        sum += weight;
        queued += weight * (there as f64 - serving);
        running += weight * serving;
    }
    (queued / running, running / sum / workers as f64)
}

fn assert_near(what: &str, found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() < tolerance, "{what}: found {found}, theory says {expected}");
}

struct Options {
    workers: Vec<usize>,
    utilisations: Vec<f64>,
    seed: u64,
    seeds: u64,
    bursts: u64,
    /// Bursts until hops have come to rest: some hundred per fiber, and some windows.
    hop_bursts: u64,
}

fn options() -> Options {
    let (workers, utilisations) = (vec![2, 8, 64], vec![0.5, 0.7, 0.9]);
    let mut options = Options { workers, utilisations, seed: 1, seeds: 3, bursts: 30_000, hop_bursts: 200_000 };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|value| value.parse().ok()).unwrap_or_else(|| refuse(&argument));
        match argument.as_str() {
            "--quick" => (options.seeds, options.bursts, options.hop_bursts) = (1, 5_000, 50_000),
            "--workers" => options.workers = vec![number() as usize],
            "--utilisation" => options.utilisations = vec![number() as f64 / 100.0],
            "--seed" => options.seed = number(),
            _ => refuse(&argument),
        }
    }
    options
}

fn refuse(argument: &str) -> ! {
    eprintln!("placement: `{argument}`: allowed are --quick, and --workers, --utilisation (percent) and --seed with a number each");
    std::process::exit(2)
}

/// The same case by all seeds. A seed draws the same fibers for every rule.
fn gather(options: &Options, case: Case) -> Outcome {
    let mut all = Outcome::default();
    for seed in 0..options.seeds {
        all.add(&Sim::run(Case { seed: options.seed * 1000 + seed, ..case }));
    }
    all
}

/// What a rule came to over all tables of one number of workers.
#[derive(Clone, Default)]
struct Verdict {
    cells: f64,
    log_p99: f64,
    need_ratio: f64,
    count_ratio_max: f64,
    lost: f64,
    start_us_max: f64,
}

impl Verdict {
    fn add(&mut self, outcome: &Outcome, free: &Outcome) {
        self.cells += 1.0;
        self.log_p99 += outcome.wait.quantile_us(0.99).ln();
        self.need_ratio += outcome.need_ratio / outcome.runs;
        self.count_ratio_max = self.count_ratio_max.max(outcome.count_ratio / outcome.runs);
        self.lost += lost(outcome, free);
        self.start_us_max = self.start_us_max.max(outcome.start.quantile_us(0.99));
    }
}

/// The share of the work free stealing did that was not done.
fn lost(outcome: &Outcome, free: &Outcome) -> f64 {
    1.0 - outcome.busy / free.busy
}

fn table(options: &Options, workers: usize, utilisation: f64, verdicts: &mut [Verdict]) -> String {
    let mut text = format!("\n## {workers} workers, {:.0} %\n\n| come | rule |", utilisation * 100.0);
    SKEWS.iter().for_each(|(name, _)| text += &format!(" {name}: wait | cpu, need |"));
    text += " count | lost % | start |\n|---|---|";
    text += &"--:|--:|".repeat(SKEWS.len());
    text += "--:|--:|--:|\n";
    let mut free: Vec<Outcome> = Vec::new();
    let rows = ARRIVALS.iter().flat_map(|come| RULES.iter().zip(0..).map(move |(rule, number)| (come, rule, number)));
    for (&(come, arrival), &(name, rule), number) in rows {
        if rule.only_arrival().is_some_and(|only| only != arrival) {
            continue;
        }
        let warm_bursts = if matches!(rule, Rule::Hop(..)) { options.hop_bursts } else { options.bursts / 10 };
        let (wake_ns, measured_bursts, seed) = (WAKE_NS, options.bursts, 0);
        let case = |skew| Case { workers, utilisation, rule, arrival, skew, wake_ns, warm_bursts, measured_bursts, seed };
        let outcomes: Vec<Outcome> = SKEWS.iter().map(|&(_, skew)| gather(options, case(skew))).collect();
        if rule == Rule::Free {
            free = outcomes.clone();
        }
        outcomes.iter().zip(&free).for_each(|(outcome, free)| verdicts[number].add(outcome, free));
        text += &format!("| {come} | {name} |{}\n", cells(&outcomes, &free));
    }
    text
}

/// Per skew the wait and the loads; then the worst of all skews.
fn cells(outcomes: &[Outcome], free: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|q| outcome.wait.quantile_us(q));
        let (cpu, need) = (outcome.cpu_ratio / outcome.runs, outcome.need_ratio / outcome.runs);
        text += &format!(" {p50:.0}/{p99:.0}/{p999:.0} | {cpu:.2}, {need:.2} |");
    }
    let worst = |of: &dyn Fn(&Outcome, &Outcome) -> f64| outcomes.iter().zip(free).map(|(one, free)| of(one, free)).fold(0.0, f64::max);
    let count = worst(&|outcome, _| outcome.count_ratio / outcome.runs);
    let lost = worst(&lost) * 100.0;
    let start = worst(&|outcome, _| outcome.start.quantile_us(0.99));
    text + &format!(" {count:.2} | {lost:.1} | {start:.0} |")
}

/// One row per rule and one column per number of workers.
fn summary(workers: &[usize], verdicts: &[Vec<Verdict>]) -> String {
    let mut text =
        String::from("\n## All tables: p99 us (geometric mean), need (mean), count (worst), lost % (mean), start ms (worst)\n\n| rule |");
    workers.iter().for_each(|workers| text += &format!(" {workers} workers |"));
    text += &format!("\n|---|{}\n", "--:|".repeat(workers.len()));
    for (number, (name, _)) in RULES.iter().enumerate() {
        text += &format!("| {name} |");
        for Verdict { cells, log_p99, need_ratio, count_ratio_max, lost, start_us_max } in verdicts.iter().map(|rules| &rules[number]) {
            let (p99, need, lost) = ((log_p99 / cells).exp(), need_ratio / cells, lost / cells * 100.0);
            text += &format!(" {p99:.0}, {need:.2}, {count_ratio_max:.2}, {lost:.1}, {:.1} |", start_us_max / 1000.0);
        }
        text += "\n";
    }
    text
}

fn main() {
    let options = options();
    check_against_theory(options.seed);
    println!("wait: ready to running, us, p50/p99/p999. cpu, need, count: max/mean over the workers of CPU time given, of CPU");
    println!("time needed by the fibers settled there, and of settled fibers. lost: work free stealing does and this does not.");
    println!("start: spawn to first run, us, p99. count, lost and start: the worst of the skews. Seeds: {}.", options.seeds);
    let mut verdicts = vec![vec![Verdict::default(); RULES.len()]; options.workers.len()];
    for (&workers, verdicts) in options.workers.iter().zip(&mut verdicts) {
        for &utilisation in &options.utilisations {
            print!("{}", table(&options, workers, utilisation, verdicts));
        }
    }
    print!("{}", summary(&options.workers, &verdicts));
}

/// Times in buckets 1/32 apart; quantiles are right to 3 %.
#[derive(Clone)]
struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
}

/// 32 buckets per power of two.
const SUB_BITS: u32 = 5;

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: vec![0; (64 << SUB_BITS) as usize], count: 0, sum: 0.0 }
    }
}

impl Histogram {
    fn record(&mut self, ns: u64) {
        let exponent = ns.max(1 << SUB_BITS).ilog2() - SUB_BITS;
        self.buckets[((exponent as usize) << SUB_BITS) + (ns >> exponent) as usize] += 1;
        self.count += 1;
        self.sum += ns as f64;
    }

    fn add(&mut self, other: &Histogram) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.sum += other.sum;
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    fn quantile_us(&self, q: f64) -> f64 {
        let rank = (q * self.count as f64).ceil() as u64;
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|n| {
            seen += n;
            seen >= rank
        });
        let bucket = bucket.expect("the rank is at most the count");
        // Bucket 32 (e + 1) + r holds the times from (32 + r) << e on; below 64 ns, e is 0.
        let exponent = (bucket >> SUB_BITS).saturating_sub(1);
        (((bucket - (exponent << SUB_BITS)) as u64) << exponent) as f64 / 1000.0
    }
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn exponential_ns(&mut self, mean: f64) -> u64 {
        (-self.unit().ln() * mean) as u64
    }
}
