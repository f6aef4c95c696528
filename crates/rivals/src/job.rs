//! What one child process is asked to do, and what it answers.
//!
//! A job is flat, so that a program in another language can read it from its command line (`go/main.go` does):
//! `DEED --workers W --tasks N --turns T --budget-ms B --stack-kib S`. The answer is one line per reading on standard output: `METRIC UNIT VALUE`,
//! where a deed with a single reading calls it `-`.

use std::fmt;

use clap::{Args, ValueEnum};

/// A kind of work. The comments are the definition that every system follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Deed {
    /// From the main stack to a fiber's and back, `turns` times: two switches each.
    Switch,
    /// Two fibers hand over to each other four calls deep, `turns` times each: one switch each.
    SwitchNested,
    /// `tasks` tasks, all started, yield `turns` times each.
    Yield,
    /// One task spawns an empty task and joins it, `turns` times.
    SpawnJoin,
    /// One task spawns `tasks` empty tasks, then joins them all; `turns` times.
    SpawnAll,
    /// One task spawns `tasks` tasks that compute for about 100 ns, then joins them all; `turns` times.
    FanOut,
    /// The same with tasks that share 40 ms of computing, held against what so much computing takes if all workers have an equal share.
    Unbalanced,
    /// A tree of tasks, ten children each, with `tasks` leaves; each inner one sums what its children return.
    Skynet,
    /// An OS thread sleeps 1 ms, notes the time and wakes a waiting task, `turns` times; `tasks` others wait for ever.
    Wake,
    /// `tasks` tasks each sleep once, 1 to `turns` milliseconds, evenly spread; then as many do so again in the same, warm process.
    Timers,
    /// `tasks` tasks wait for ever: what do they occupy?
    Parked,
    /// `tasks` tasks wait for ever, one sleeps long: CPU time used in `turns` milliseconds.
    Idle,
    /// Tasks, all started: two per worker yield all the time, `tasks` sleep for 1 ms, `turns` times each, and one is woken by an OS thread as in `Wake`: how
    /// late are sleepers and the woken?
    Storm,
    /// `tasks` tasks, all started, take one lock, add one and let go, `turns` times each.
    Mutex,
    /// The same: the longest time that a task needed for one turn, and for how long at most others were let in before one that waited: their turns by what each takes.
    MutexWait,
    /// `tasks` tasks, all started, take one lock for reading nine times of ten and for writing once, `turns` times each.
    RwLock,
    /// The same: the longest time that a task needed for one turn, be it to read or to write.
    RwLockWait,
    /// Two tasks send a message to and fro through two channels of one place, `turns` times.
    PingPong,
    /// The same, each task on a worker of its own, where it stays.
    PingPongApart,
    /// Two tasks send `turns` messages each through a channel of 1024 places to one task, which receives them and a last one.
    TwoToOne,
    /// The same with two tasks that receive.
    TwoToTwo,
    /// Eight tasks send `turns` messages each through channels of one place of their own; one task receives whatever is there first.
    Select,
    /// A task makes a channel for one message, sends it and receives it, `turns` times.
    Oneshot,
    /// A server on one CPU echoes 64-byte messages of `tasks` connections, one at a time on each, for `turns` milliseconds; the load is on another CPU.
    Echo,
    /// The same, but a process that spins shares the server's CPU, so that the load has time to spare.
    EchoShared,
    /// The same on all CPUs; every 100th request makes the server compute for 10 ms, and latencies are those of the others.
    Hog,
    /// The same, but 2000 requests per second, whether answered or not.
    HogPaced,
    /// As `Echo`, but requests are for an HTTP page of one line.
    Http,
    /// The same, and the server's CPU is shared as in `EchoShared`.
    HttpShared,
    /// `tasks` tasks, all started, read 4 KiB each at random places of a file that is in memory, `turns` times.
    FileRead,
}

/// What a deed is about: not every system has all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Switch,
    Task,
    Lock,
    Channel,
    File,
    /// The job is done by the load; the system serves in another process.
    Server,
}

impl Deed {
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Self::Switch | Self::SwitchNested => Kind::Switch,
            Self::Yield | Self::SpawnJoin | Self::SpawnAll | Self::FanOut | Self::Unbalanced | Self::Skynet => Kind::Task,
            Self::Wake | Self::Timers | Self::Parked | Self::Idle | Self::Storm => Kind::Task,
            Self::Mutex | Self::MutexWait | Self::RwLock | Self::RwLockWait => Kind::Lock,
            Self::PingPong | Self::PingPongApart | Self::TwoToOne | Self::TwoToTwo | Self::Select | Self::Oneshot => Kind::Channel,
            Self::Echo | Self::EchoShared | Self::Hog | Self::HogPaced | Self::Http | Self::HttpShared => Kind::Server,
            Self::FileRead => Kind::File,
        }
    }

    /// Whether server and load each have a CPU of their own.
    pub(crate) fn is_pinned(self) -> bool {
        matches!(self, Self::Echo | Self::EchoShared | Self::Http | Self::HttpShared)
    }

    /// Whether a process that spins shares the server's CPU.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::EchoShared | Self::HttpShared)
    }

    /// Whether requests and answers are HTTP.
    pub(crate) fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::HttpShared)
    }

    /// Whether some requests make the server compute.
    pub(crate) fn has_hogs(self) -> bool {
        matches!(self, Self::Hog | Self::HogPaced)
    }
}

/// One measurement, as its child process is told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub(crate) struct Job {
    /// What to do.
    pub(crate) deed: Deed,
    /// Threads that run tasks.
    #[arg(long, default_value_t = 1)]
    pub(crate) workers: usize,
    /// Tasks at once.
    #[arg(long, default_value_t = 1)]
    pub(crate) tasks: usize,
    /// How often.
    #[arg(long, default_value_t = 1)]
    pub(crate) turns: usize,
    /// `turns` grow until the work takes this long; 0 keeps them as they are.
    #[arg(long, default_value_t = 0)]
    pub(crate) budget_ms: u64,
    /// Stack of a task, for systems that have stacks; 0 is the system's default.
    #[arg(long, default_value_t = 0)]
    pub(crate) stack_kib: usize,
}

impl Job {
    /// A job of one worker, one task, one turn.
    pub(crate) const fn new(deed: Deed) -> Self {
        Self { deed, workers: 1, tasks: 1, turns: 1, budget_ms: 0, stack_kib: 0 }
    }

    pub(crate) const fn workers(self, workers: usize) -> Self {
        Self { workers, ..self }
    }

    pub(crate) const fn tasks(self, tasks: usize) -> Self {
        Self { tasks, ..self }
    }

    pub(crate) const fn turns(self, turns: usize) -> Self {
        Self { turns, ..self }
    }

    pub(crate) const fn budget_ms(self, budget_ms: u64) -> Self {
        Self { budget_ms, ..self }
    }

    pub(crate) const fn stack_kib(self, stack_kib: usize) -> Self {
        Self { stack_kib, ..self }
    }

    /// The command line that says it.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let deed = self.deed.to_possible_value().expect("every deed has a name").get_name().to_owned();
        let mut arguments = vec![deed];
        for (flag, value) in [
            ("--workers", self.workers as u64),
            ("--tasks", self.tasks as u64),
            ("--turns", self.turns as u64),
            ("--budget-ms", self.budget_ms),
            ("--stack-kib", self.stack_kib as u64),
        ] {
            arguments.extend([flag.to_owned(), value.to_string()]);
        }
        arguments
    }
}

/// One figure that a child found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reading {
    /// Which of the deed's figures; empty if there is one only.
    pub(crate) metric: String,
    pub(crate) unit: String,
    pub(crate) value: f64,
}

impl Reading {
    pub(crate) fn new(metric: &str, unit: &str, value: f64) -> Self {
        Self { metric: metric.into(), unit: unit.into(), value }
    }

    /// Reads a line of a child; `None` if it is none.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (metric, unit, value) = (words.next()?, words.next()?, words.next()?);
        let value: f64 = value.parse().ok().filter(|value: &f64| value.is_finite())?;
        words.next().is_none().then(|| Self::new(if metric == "-" { "" } else { metric }, unit, value))
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metric = if self.metric.is_empty() { "-" } else { &self.metric };
        write!(f, "{metric} {} {}", self.unit, self.value)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        job: Job,
    }

    #[test]
    fn a_job_survives_its_command_line() {
        for &deed in Deed::value_variants() {
            let job = Job::new(deed).workers(2).tasks(1000).turns(7).budget_ms(300).stack_kib(64);
            let line = std::iter::once("child".to_owned()).chain(job.arguments());
            assert_eq!(Line::try_parse_from(line).unwrap().job, job);
        }
    }

    #[test]
    fn a_reading_survives_its_line() {
        for reading in [Reading::new("", "ns", 12.5), Reading::new("p50", "us", 7.0)] {
            assert_eq!(Reading::parse(&reading.to_string()), Some(reading));
        }
        for bad in ["", "ns 5", "- ns five", "- ns NaN", "- ns 5 6"] {
            assert_eq!(Reading::parse(bad), None, "{bad:?} was taken for a reading");
        }
    }
}
