//! The workloads by name, each a list of jobs, at three sizes; and those of a first answer.

use crate::job::{Deed, Job};
use crate::systems::{self, System, Takes};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// For figures that are quoted.
    Full,
    /// Fewer turns and smaller numbers, so that all of it takes minutes.
    Short,
    /// Nothing is learnt from it but that everything runs: for tests.
    Tiny,
}

impl Scale {
    fn pick<T>(self, full: T, short: T, tiny: T) -> T {
        match self {
            Self::Full => full,
            Self::Short => short,
            Self::Tiny => tiny,
        }
    }

    /// Rounds if nobody asks for a number.
    pub(crate) fn rounds(self) -> usize {
        self.pick(5, 3, 1)
    }

    /// After so many seconds a child is ended.
    pub(crate) fn limit_seconds(self) -> u64 {
        self.pick(60, 10, 30)
    }

    /// How long a repeated operation is repeated. Long enough that starting the workers, a tick of the scheduler or a page fault does not show.
    fn budget_ms(self) -> u64 {
        self.pick(300, 50, 1)
    }
}

/// One row of every system's results.
pub(crate) struct Case {
    /// Which case of its workload; empty if there is one only.
    pub(crate) name: &'static str,
    pub(crate) job: Job,
    /// Only these, which are known to end, so they have the time of a long run for it; all if there are none.
    pub(crate) only: &'static [&'static str],
}

impl Case {
    /// For all systems.
    const fn of(name: &'static str, job: Job) -> Self {
        Self { name, job, only: &[] }
    }

    /// Whether `system` does it.
    pub(crate) fn takes(&self, system: &System) -> Takes {
        if self.only.is_empty() || self.only.contains(&system.name) { (system.takes)(&self.job) } else { Takes::No }
    }

    /// After so many seconds its child is ended.
    pub(crate) fn limit_seconds(&self, scale: Scale) -> u64 {
        if self.only.is_empty() { scale } else { Scale::Full }.limit_seconds()
    }
}

/// A named kind of measurement.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) cases: fn(Scale) -> Vec<Case>,
}

impl Workload {
    /// Whether `system` is in the comparison.
    pub(crate) fn concerns(&self, system: &System) -> bool {
        (self.cases)(Scale::Full).iter().any(|case| !matches!(case.takes(system), Takes::No))
    }
}

/// All workloads, in the order of the report.
pub(crate) const ALL: &[Workload] = &[
    Workload {
        name: "switch",
        about: "from the main stack to a fiber and back: two switches",
        cases: |scale| one(repeated(Deed::Switch, scale)),
    },
    Workload {
        name: "switch-nested",
        about: "two fibers hand over to each other four calls deep: one switch",
        cases: |scale| one(repeated(Deed::SwitchNested, scale)),
    },
    Workload { name: "yield-1", about: "one task yields, one worker", cases: |scale| one(repeated(Deed::Yield, scale)) },
    Workload { name: "yield-1000x1", about: "1,000 tasks yield, one worker", cases: |scale| one(repeated(Deed::Yield, scale).tasks(1000)) },
    Workload {
        name: "yield-1000x2",
        about: "1,000 tasks yield, two workers; wall time by all yields",
        cases: |scale| one(repeated(Deed::Yield, scale).tasks(1000).workers(2)),
    },
    Workload {
        name: "spawn-join-1",
        about: "spawn an empty task and join it, one worker",
        cases: |scale| one(repeated(Deed::SpawnJoin, scale)),
    },
    Workload { name: "spawn-join-2", about: "the same, two workers", cases: |scale| one(repeated(Deed::SpawnJoin, scale).workers(2)) },
    Workload {
        name: "spawn-million",
        about: "spawn a million empty tasks, then join them, two workers",
        cases: |scale| one(Job::new(Deed::SpawnAll).workers(2).tasks(scale.pick(1_000_000, 1_000_000, 1000))),
    },
    Workload {
        name: "fan-out",
        about: "one task spawns 100,000 tasks of about 100 ns and joins them, two workers: a task",
        cases: |scale| one(repeated(Deed::FanOut, scale).workers(2).tasks(scale.pick(100_000, 100_000, 1000)).turns(1)),
    },
    Workload {
        name: "unbalanced",
        about: "one task spawns 2,000 tasks that compute for about 20 us, or in `fine` 40,000 that compute for 1 us, and joins them, two workers: all of it, and by what it would be if both always computed",
        cases: |scale| {
            let job = |tasks| repeated(Deed::Unbalanced, scale).workers(2).tasks(tasks).turns(1);
            vec![Case::of("", job(scale.pick(2000, 2000, 20))), Case::of("fine", job(scale.pick(40_000, 40_000, 40)))]
        },
    },
    Workload {
        name: "skynet",
        about: "a tree of tasks with a million leaves, two workers",
        cases: |scale| one(Job::new(Deed::Skynet).workers(2).tasks(scale.pick(1_000_000, 1_000_000, 100))),
    },
    Workload {
        name: "wake-from-thread",
        about: "an OS thread wakes a waiting task 1000 times per second, two workers, 100 others wait",
        cases: |scale| one(Job::new(Deed::Wake).workers(2).tasks(100).turns(scale.pick(2000, 500, 5))),
    },
    Workload {
        name: "timers-100k",
        about: "100,000 tasks sleep 1 to 1000 ms, two workers: CPU time in all, and how late they wake; the first wave of tasks, and a second, warm one",
        cases: |scale| one(Job::new(Deed::Timers).workers(2).tasks(scale.pick(100_000, 100_000, 100)).turns(scale.pick(1000, 1000, 20))),
    },
    Workload { name: "parked-memory", about: "memory (pages and page tables) per task that waits, two workers", cases: parked },
    Workload {
        name: "idle-cpu",
        about: "CPU time of a process with 100 waiting tasks and one long sleep, two workers",
        cases: |scale| one(Job::new(Deed::Idle).workers(2).tasks(100).turns(scale.pick(5000, 3000, 10))),
    },
    Workload {
        name: "yield-storm",
        about: "four tasks yield all the time, two workers; meanwhile eight sleep 1 ms again and again, and an OS thread wakes another 1000 times per second: how late sleepers and the woken are",
        cases: |scale| one(Job::new(Deed::Storm).workers(2).tasks(8).turns(scale.pick(1000, 300, 5))),
    },
    Workload {
        name: "mutex-free",
        about: "take a free lock, add one and let go, one worker",
        cases: |scale| one(repeated(Deed::Mutex, scale)),
    },
    Workload {
        name: "mutex-100",
        about: "100 tasks take one lock, add one and let go, two workers; wall time by all turns, and in a run of its own the longest that a task needed for one turn",
        cases: |scale| contended(scale, Deed::Mutex, Deed::MutexWait),
    },
    Workload {
        name: "rwlock-9010",
        about: "100 tasks take one lock, nine times of ten to read and once to write, two workers; wall time by all turns, and in a run of its own the longest that a task needed for one turn",
        cases: |scale| contended(scale, Deed::RwLock, Deed::RwLockWait),
    },
    Workload {
        name: "ping-pong-1",
        about: "a message goes to and fro between two tasks through channels, one worker: the whole round",
        cases: |scale| one(repeated(Deed::PingPong, scale)),
    },
    Workload {
        name: "ping-pong-2",
        about: "the same with two workers: wherever the tasks are, and in `apart` each kept on a worker of its own",
        cases: |scale| {
            let job = |deed| repeated(deed, scale).workers(2);
            vec![Case::of("", job(Deed::PingPong)), Case::of("apart", job(Deed::PingPongApart))]
        },
    },
    Workload {
        name: "chan-2to1x1",
        about: "two tasks send to a third through a channel of 1024 places, one worker: a message",
        cases: |scale| one(repeated(Deed::TwoToOne, scale)),
    },
    Workload { name: "chan-2to1x2", about: "the same, two workers", cases: |scale| one(repeated(Deed::TwoToOne, scale).workers(2)) },
    Workload {
        name: "chan-mpmc",
        about: "two tasks send to two others through a channel of 1024 places, two workers: a message",
        cases: |scale| one(repeated(Deed::TwoToTwo, scale).workers(2)),
    },
    Workload {
        name: "select-8",
        about: "a task receives from whichever of eight channels has a message, each with a sender of its own, one worker: a message",
        cases: |scale| one(repeated(Deed::Select, scale)),
    },
    Workload {
        name: "oneshot",
        about: "make a channel for one message, send it and receive it, all in one task, one worker",
        cases: |scale| one(repeated(Deed::Oneshot, scale)),
    },
    Workload {
        name: "echo-50",
        about: "a TCP server on one CPU echoes 64-byte messages of 50 connections, one at a time on each; the load has the other CPU, and in `shared` a process that spins shares the server's",
        cases: |scale| echoes(scale, 50),
    },
    Workload { name: "echo-1000", about: "the same with 1,000 connections", cases: |scale| echoes(scale, 1000) },
    Workload {
        name: "echo-10000",
        about: "the same with 10,000 connections; `shared` in long runs only",
        cases: |scale| echoes(scale, 10_000),
    },
    Workload {
        name: "echo-hog",
        about: "a TCP server on two CPUs echoes for 50 connections, and every 100th request makes it compute for 10 ms: latencies of the others; in a closed loop, and in `paced` at 2,000 requests per second",
        cases: |scale| {
            let job = |deed| Job::new(deed).workers(2).tasks(scale.pick(50, 50, 3)).turns(scale.pick(3000, 1000, 50));
            vec![Case::of("", job(Deed::Hog)), Case::of("paced", job(Deed::HogPaced))]
        },
    },
    Workload {
        name: "http-hello",
        about: "an HTTP server on one CPU answers 64 connections with a line of text, and in `shared` a process that spins shares its CPU, so that the load has time to spare; hyper on tokio, may_minihttp on may, net/http on Go, by hand on threads",
        cases: |scale| served(scale, [Deed::Http, Deed::HttpShared], 64),
    },
    Workload {
        name: "file-read",
        about: "32 tasks read 4 KiB each at random places of a file of 64 MiB that is in memory, two workers; tokio and smol by one call of their threads for what blocks",
        cases: |scale| one(repeated(Deed::FileRead, scale).workers(2).tasks(scale.pick(32, 32, 3))),
    },
    Workload {
        name: "curve",
        about: "the cost of a yield (one worker) and of a spawn and join (N spawned, then joined; two workers) as N grows to a million; in short runs the last step is of two systems",
        cases: curve,
    },
];

/// What a first answer measures, in this order: what says most, and what takes long last.
pub(crate) const FIRST: &[&str] = &[
    "switch",
    "yield-1",
    "yield-1000x1",
    "yield-1000x2",
    "spawn-join-1",
    "spawn-join-2",
    "wake-from-thread",
    "spawn-million",
    "skynet",
    "parked-memory",
    "idle-cpu",
    "timers-100k",
];

/// Names by which workloads may be chosen too, each for one or several.
pub(crate) const OTHER_NAMES: &[(&str, &[&str])] = &[("chan-ping-pong", &["ping-pong-1"]), ("chan-2to1", &["chan-2to1x1", "chan-2to1x2"])];

fn one(job: Job) -> Vec<Case> {
    vec![Case::of("", job)]
}

fn repeated(deed: Deed, scale: Scale) -> Job {
    /// Turns of the first, cold run.
    const TURNS_FIRST: usize = 20;
    Job::new(deed).turns(TURNS_FIRST).budget_ms(scale.budget_ms())
}

/// A lock that 100 tasks want: all turns, and in a run of its own the longest. The runs are as long at every size that something is learnt from: a lock that lets one
/// task take it again and again shows that in no shorter time.
fn contended(scale: Scale, all: Deed, longest: Deed) -> Vec<Case> {
    let budget_ms = scale.pick(Scale::Full, Scale::Full, Scale::Tiny).budget_ms();
    let job = |deed| repeated(deed, scale).tasks(100).workers(2).budget_ms(budget_ms);
    vec![Case::of("", job(all)), Case::of("max-wait", job(longest))]
}

fn echoes(scale: Scale, connections: usize) -> Vec<Case> {
    /// A turn of so many takes a tenth of a second, a fifth where two systems share the CPU: in half a second what each connection takes to begin is a fifth of all.
    const SLOW: usize = 10_000;
    let mut cases = served(scale, [Deed::Echo, Deed::EchoShared], connections);
    if connections >= SLOW {
        cases.iter_mut().for_each(|case| case.job.turns *= scale.pick(2, 4, 2));
        // In short runs the spinning process is beside fewer connections only.
        cases.truncate(scale.pick(2, 1, 2));
    }
    cases
}

/// A server that has its CPU to itself, and one that shares it. The second is measured for half as long in short runs: some 40 changes of who has the CPU.
fn served(scale: Scale, [alone, shared]: [Deed; 2], connections: usize) -> Vec<Case> {
    let job = |deed| Job::new(deed).tasks(scale.pick(connections, connections, 3));
    vec![Case::of("", job(alone).turns(scale.pick(2000, 500, 20))), Case::of("shared", job(shared).turns(scale.pick(2000, 250, 20)))]
}

fn parked(scale: Scale) -> Vec<Case> {
    let job = |tasks| Job::new(Deed::Parked).workers(2).tasks(tasks);
    let million = scale.pick(1_000_000, 1_000_000, 200);
    let mut cases = vec![Case::of("100k", job(scale.pick(100_000, 100_000, 100)))];
    if scale != Scale::Short {
        cases.push(Case::of("1M", job(million)));
        cases.push(Case::of("1M-64k-stacks", job(million).stack_kib(64)));
    }
    cases
}

fn curve(scale: Scale) -> Vec<Case> {
    const SIZES: [(&str, &str, usize); 4] = [
        ("yield-1k", "spawn-1k", 1000),
        ("yield-10k", "spawn-10k", 10_000),
        ("yield-100k", "spawn-100k", 100_000),
        ("yield-1M", "spawn-1M", 1_000_000),
    ];
    /// Of a million in short runs. Who has a million stacks, or yields slowly, takes 4 to 12 s for each child; with these two, ours and who yields quickest there, five rounds take a minute.
    const MILLION: usize = 1_000_000;
    const SHORT_MILLION: &[&str] = &["sinew", "tokio-mt"];
    /// Half as often as the first run of fewer: it is long enough to count.
    const SHORT_MILLION_TURNS: usize = 10;
    let sizes = &SIZES[..scale.pick(4, 4, 1)];
    let case = |name, job: Job| match (scale, job.tasks) {
        (Scale::Short, MILLION) => Case { only: SHORT_MILLION, ..Case::of(name, job.turns(job.turns.min(SHORT_MILLION_TURNS))) },
        _ => Case::of(name, job),
    };
    let yields = sizes.iter().map(|&(name, _, tasks)| case(name, repeated(Deed::Yield, scale).tasks(tasks)));
    let spawns = sizes.iter().map(|&(_, name, tasks)| case(name, repeated(Deed::SpawnAll, scale).workers(2).tasks(tasks).turns(1)));
    yields.chain(spawns).collect()
}

/// The workload called `name`, or an error that lists what there is.
pub(crate) fn named(name: &str) -> Result<&'static Workload, String> {
    let others = OTHER_NAMES.iter().map(|(name, _)| *name);
    let known = || ALL.iter().map(|workload| workload.name).chain(others).collect::<Vec<_>>().join(", ");
    ALL.iter().find(|workload| workload.name == name).ok_or_else(|| format!("there is no workload {name:?}; there are: {}", known()))
}

/// What one name on the command line stands for.
#[derive(Clone)]
pub(crate) struct Chosen {
    pub(crate) name: String,
    pub(crate) workloads: Vec<&'static Workload>,
}

/// As `named`, for other names too.
pub(crate) fn chosen(name: &str) -> Result<Chosen, String> {
    let own = [name];
    let names = OTHER_NAMES.iter().find(|(other, _)| *other == name).map_or(&own[..], |(_, names)| names);
    let workloads = names.iter().map(|name| named(name)).collect::<Result<_, _>>()?;
    Ok(Chosen { name: name.into(), workloads })
}

/// Systems in the comparison of `workload`.
pub(crate) fn systems(workload: &Workload) -> impl Iterator<Item = &'static System> {
    systems::ALL.iter().filter(|system| workload.concerns(system))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::Side;

    #[test]
    fn an_unknown_workload_is_refused_with_the_list() {
        let error = named("yield-7").err().expect("there is no such workload");
        assert!(error.contains("yield-7") && error.contains("yield-1000x2") && error.contains("curve"), "{error}");
    }

    #[test]
    fn other_names_stand_for_workloads_and_are_none_themselves() {
        let names = |name| chosen(name).unwrap().workloads.iter().map(|workload| workload.name).collect::<Vec<_>>();
        assert_eq!(names("chan-ping-pong"), ["ping-pong-1"]);
        assert_eq!(names("chan-2to1"), ["chan-2to1x1", "chan-2to1x2"]);
        assert_eq!(names("skynet"), ["skynet"]);
        for (name, _) in OTHER_NAMES {
            assert!(chosen(name).is_ok() && named(name).is_err(), "{name}");
        }
        assert!(chosen("yield-7").err().expect("there is no such workload").contains("chan-2to1"));
    }

    #[test]
    fn every_workload_has_us_and_a_rival_or_limit() {
        for workload in ALL {
            let names: Vec<_> = systems(workload).map(|system| system.name).collect();
            let ours = systems(workload).any(|system| system.side == Side::Ours)
                || workload.name.contains("echo-")
                || workload.name == "http-hello";
            assert!(ours && names.len() > 2, "{}: {names:?}", workload.name);
        }
    }

    #[test]
    fn locks_that_many_want_run_as_long_in_short_runs() {
        for name in ["mutex-100", "rwlock-9010"] {
            let budgets =
                |scale| (named(name).unwrap().cases)(scale).iter().map(|case| (case.name, case.job.budget_ms)).collect::<Vec<_>>();
            assert!(budgets(Scale::Full).iter().all(|(_, budget_ms)| *budget_ms == 300), "{name}");
            assert_eq!(budgets(Scale::Short), budgets(Scale::Full), "{name}");
            assert!(budgets(Scale::Tiny).iter().all(|(_, budget_ms)| *budget_ms == 1), "{name}");
        }
    }

    fn short(name: &str) -> Vec<Case> {
        (named(name).unwrap().cases)(Scale::Short)
    }

    /// The page describes the case `shared`; a short run, which the page is made of, has it.
    #[test]
    fn short_runs_have_the_shared_case_of_servers() {
        for name in ["echo-50", "echo-1000", "http-hello"] {
            let cases = short(name);
            let deeds: Vec<_> = cases.iter().map(|case| (case.name, case.job.deed.is_shared())).collect();
            assert_eq!(deeds, [("", false), ("shared", true)], "{name}");
            assert_eq!((cases[0].job.tasks, cases[0].job.deed.is_http()), (cases[1].job.tasks, cases[1].job.deed.is_http()), "{name}");
        }
        let workload = named("echo-10000").unwrap();
        assert_eq!((short(workload.name).len(), (workload.cases)(Scale::Full).len()), (1, 2));
        assert!(workload.about.contains("`shared` in long runs only"), "{}", workload.about);
    }

    /// The curve goes from a thousand to a million in short runs too, there on few systems, which have time enough.
    #[test]
    fn the_curve_ends_at_a_million_in_short_runs_too() {
        let tasks = |scale| curve(scale).iter().map(|case| case.job.tasks).collect::<Vec<_>>();
        assert_eq!(tasks(Scale::Short), [1000, 10_000, 100_000, 1_000_000].repeat(2));
        assert_eq!(tasks(Scale::Short), tasks(Scale::Full));
        for case in curve(Scale::Short).into_iter().filter(|case| case.job.tasks == 1_000_000) {
            let takes = |name| matches!(case.takes(systems::named(name).unwrap()), Takes::Yes);
            assert_eq!(["sinew", "tokio-mt", "smol", "sinew-shared", "go"].map(takes), [true, true, false, false, false]);
            assert_eq!(case.limit_seconds(Scale::Short), Scale::Full.limit_seconds());
            assert!(case.only.iter().all(|name| systems::named(name).is_ok()), "{:?}", case.only);
        }
        assert!(curve(Scale::Full).iter().all(|case| case.only.is_empty()));
    }

    #[test]
    fn a_first_answer_has_us_and_a_rival_in_every_workload() {
        for name in FIRST {
            let first = |system: &&System| systems::FIRST.contains(&system.name);
            let sides: Vec<_> = systems(named(name).unwrap()).filter(first).map(|system| system.side).collect();
            assert!(sides.contains(&Side::Ours) && sides.iter().any(|side| *side != Side::Ours), "{name}");
        }
    }
}
