//! The systems that are compared: one file each, and here the list.
//!
//! A new one implements `Blocking` or `Futures` and gets a line in `ALL`.

mod compio;
mod corosensei;
mod go;
mod limit;
mod limit_clock;
mod limit_epoll;
mod limit_spin;
mod limit_uring;
mod may;
mod monoio;
mod sinew;
mod smol;
mod threads;
mod tokio;

use crate::deeds::{blocking, futures, raw};
use crate::job::{Deed, Job, Kind, Reading};

/// Tasks of which each is a kernel thread are not made in larger numbers: all processes of the machine share the ids.
const THREADS_MAX: usize = 2000;

/// Connections with a thread for each.
const CONNECTIONS_MAX: usize = 64;

/// Whether a system does a job.
pub(crate) enum Takes {
    Yes,
    /// It is not in the comparison: the job has no meaning for it.
    No,
    /// It is in the comparison, and fails without being tried.
    Refuses(&'static str),
}

/// One of the compared.
pub(crate) struct System {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) takes: fn(&Job) -> Takes,
    /// Does the job in this process.
    pub(crate) perform: fn(&Job) -> Vec<Reading>,
    /// Makes the system ready, and says which version it is; or why it cannot be had.
    pub(crate) version: fn() -> Result<String, String>,
    pub(crate) side: Side,
}

/// On whose side a system is when targets are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    /// A rival that schedules tasks of its own.
    Runtime,
    /// Another rival: what threads use.
    Rival,
    /// A yardstick that no runtime can beat: no rival.
    Limit,
}

/// All systems, ours first.
pub(crate) const ALL: &[System] = &[
    ours(
        "sinew",
        "settled fibers; for switches, the library's switch file alone",
        |job| if is_io(job) { Takes::No } else { Takes::Yes },
        |job| if is_switch(job) { raw::perform::<sinew::Switch>(job) } else { blocking::perform::<sinew::Sinew>(job) },
    ),
    ours(
        "sinew-shared",
        "settled fibers, one queue per group: flare's kind",
        is_scheduling,
        blocking::perform::<sinew::Sinew<sinew::Shared>>,
    ),
    ours(
        "sinew-migratable",
        "fibers that move, a queue per worker: bthread's kind",
        |job| if job.deed.has_hogs() { Takes::Yes } else { is_scheduling_anywhere(job) },
        |job| {
            if is_io(job) {
                blocking::perform_io::<sinew::Sinew<sinew::Migratable>>(job)
            } else {
                blocking::perform::<sinew::Sinew<sinew::Migratable>>(job)
            }
        },
    ),
    ours(
        "sinew-shared-migratable",
        "fibers that move, one queue per group: flare's kind",
        is_scheduling_anywhere,
        blocking::perform::<sinew::Sinew<sinew::SharedMigratable>>,
    ),
    ours(
        "sinew-like-bthread",
        "sinew-migratable that never polls, without spares",
        is_of_schedulers,
        blocking::perform::<sinew::Sinew<sinew::LikeBthread>>,
    ),
    ours(
        "sinew-like-flare",
        "sinew-shared-migratable that polls for 5 us, without spares",
        is_of_schedulers,
        blocking::perform::<sinew::Sinew<sinew::LikeFlare>>,
    ),
    ours(
        "sinew-yield",
        "two real fibers of a runtime that call `yield_now`, beside the bare switch",
        |job| if job.deed == Deed::SwitchNested { Takes::Yes } else { Takes::No },
        blocking::perform::<sinew::Sinew>,
    ),
    ours(
        "sinew-uring",
        "a settled fiber per connection, sockets and files by io_uring; HTTP by hand",
        |job| if is_io(job) { Takes::Yes } else { Takes::No },
        sinew::perform_uring,
    ),
    ours(
        "sinew-epoll",
        "the same by epoll, files by threads for what blocks",
        |job| if is_io(job) { Takes::Yes } else { Takes::No },
        sinew::perform_epoll,
    ),
    System {
        name: "tokio-ct",
        about: "tokio, current-thread runtime (jobs of one worker)",
        takes: |job| if job.workers == 1 { schedules(job) } else { Takes::No },
        perform: |job| if is_io(job) { tokio::perform_io::<false>(job) } else { futures::perform::<tokio::CurrentThread>(job) },
        version: tokio_version,
        side: Side::Runtime,
    },
    System {
        name: "tokio-mt",
        about: "tokio, multi-thread runtime",
        takes: schedules,
        perform: |job| if is_io(job) { tokio::perform_io::<true>(job) } else { futures::perform::<tokio::MultiThread>(job) },
        version: tokio_version,
        side: Side::Runtime,
    },
    System {
        name: "may",
        about: "stackful coroutines, default stack of 32 KiB",
        takes: may_takes,
        perform: |job| if is_io(job) { may::serve(job) } else { blocking::perform::<may::May>(job) },
        version: || Ok(format!("{} (may_minihttp {})", locked("may")?, locked("may_minihttp")?)),
        side: Side::Runtime,
    },
    System {
        name: "smol",
        about: "one executor that every worker thread runs",
        takes: |job| if job.deed.is_http() { Takes::No } else { schedules(job) },
        perform: |job| if is_io(job) { futures::perform_io::<smol::Smol>(job) } else { futures::perform::<smol::Smol>(job) },
        version: || {
            let parts = ["async-executor", "async-lock", "async-channel"].map(|part| Ok::<_, String>(format!("{part} {}", locked(part)?)));
            Ok(format!("{} ({})", locked("smol")?, parts.into_iter().collect::<Result<Vec<_>, _>>()?.join(", ")))
        },
        side: Side::Runtime,
    },
    System {
        name: "go",
        about: "goroutines, GOMAXPROCS = workers",
        takes: schedules,
        perform: go::perform,
        version: go::version,
        side: Side::Runtime,
    },
    System {
        name: "threads",
        about: "std::thread, its locks and channels; with one worker, all on one CPU",
        takes: threads_take,
        perform: |job| {
            if is_io(job) { blocking::perform_io::<threads::Threads>(job) } else { blocking::perform::<threads::Threads>(job) }
        },
        version: || Ok(env!("RIVALS_RUSTC").into()),
        side: Side::Rival,
    },
    System {
        name: "tokio-std",
        about: "tokio-mt with the standard library's locks, as its documentation advises where nothing is awaited under them",
        takes: |job| only(job, Kind::Lock),
        perform: futures::locks::perform::<tokio::MultiThread, futures::locks::Plain<threads::Threads>>,
        version: tokio_version,
        side: Side::Runtime,
    },
    System {
        name: "parking_lot",
        about: "threads with its locks",
        takes: |job| only(job, Kind::Lock),
        perform: blocking::locks::perform::<threads::Threads, threads::ParkingLot>,
        version: || locked("parking_lot"),
        side: Side::Rival,
    },
    System {
        name: "crossbeam",
        about: "threads with the channels of crossbeam-channel",
        takes: |job| only(job, Kind::Channel),
        perform: blocking::channels::perform::<threads::Threads, threads::Crossbeam>,
        version: || locked("crossbeam-channel"),
        side: Side::Rival,
    },
    System {
        name: "flume",
        about: "threads with its channels",
        takes: |job| only(job, Kind::Channel),
        perform: blocking::channels::perform::<threads::Threads, threads::Flume>,
        version: || locked("flume"),
        side: Side::Rival,
    },
    System {
        name: "monoio",
        about: "one thread with a ring of its own, buffers lent to it",
        takes: echoes_on_one_cpu,
        perform: monoio::serve,
        version: || locked("monoio"),
        side: Side::Runtime,
    },
    System {
        name: "compio",
        about: "one thread with a ring of its own, buffers lent to it",
        takes: echoes_on_one_cpu,
        perform: compio::serve,
        version: || locked("compio"),
        side: Side::Runtime,
    },
    System {
        name: "corosensei",
        about: "its switch, bare",
        takes: |job| only(job, Kind::Switch),
        perform: corosensei::perform,
        version: || locked("corosensei"),
        side: Side::Rival,
    },
    System {
        name: "limit-asm",
        about: "a hand-written switch: the limit of `switch`",
        takes: |job| if job.deed == Deed::Switch { Takes::Yes } else { Takes::No },
        perform: raw::perform::<limit::Assembly>,
        version: || Ok("in this crate".into()),
        side: Side::Limit,
    },
    System {
        name: "spike",
        about: "the same in the smallest possible scheduler: the limit of `switch-nested`",
        takes: |job| if job.deed == Deed::SwitchNested { Takes::Yes } else { Takes::No },
        perform: raw::perform::<limit::Assembly>,
        version: || Ok("in this crate".into()),
        side: Side::Limit,
    },
    System {
        name: "limit-spin",
        about: "two threads on two CPUs, which never sleep, hand over a number in one word: the limit of `ping-pong-2/apart`",
        takes: |job| if job.deed == Deed::PingPongApart { Takes::Yes } else { Takes::No },
        perform: limit_spin::perform,
        version: || Ok("in this crate".into()),
        side: Side::Limit,
    },
    System {
        name: "limit-clock",
        about: "threads that only read the clock, and how long the system stopped one of them: what no wait for a lock can be sure to be below",
        takes: |job| if matches!(job.deed, Deed::MutexWait | Deed::RwLockWait) { Takes::Yes } else { Takes::No },
        perform: limit_clock::perform,
        version: || Ok("in this crate".into()),
        side: Side::Limit,
    },
    System {
        name: "limit-epoll",
        about: "a hand-written loop on epoll: the limit of servers that wait for readiness",
        takes: echoes_on_one_cpu,
        perform: limit_epoll::serve,
        version: || Ok("in this crate".into()),
        side: Side::Limit,
    },
    System {
        name: "limit-uring",
        about: "a hand-written loop on io_uring that receives by multishot operations into provided buffers",
        takes: echoes_on_one_cpu,
        perform: limit_uring::serve_multishot,
        version: || Ok("in this crate".into()),
        side: Side::Limit,
    },
    System {
        name: "limit-uring-1",
        about: "the same with one receive for each message into a buffer of the connection: the limit of reads into borrowed buffers",
        takes: echoes_on_one_cpu,
        perform: limit_uring::serve_single,
        version: || Ok("in this crate".into()),
        side: Side::Limit,
    },
];

/// Whom a first answer compares: one of each kind.
pub(crate) const FIRST: &[&str] = &["sinew", "tokio-ct", "tokio-mt", "may", "smol", "go", "threads", "corosensei", "limit-asm"];

/// A variant of Sinew.
const fn ours(name: &'static str, about: &'static str, takes: fn(&Job) -> Takes, perform: fn(&Job) -> Vec<Reading>) -> System {
    System { name, about, takes, perform, version: || locked("sinew"), side: Side::Ours }
}

/// The system called `name`, or an error that lists what there is.
pub(crate) fn named(name: &str) -> Result<&'static System, String> {
    let known = || ALL.iter().map(|system| system.name).collect::<Vec<_>>().join(", ");
    ALL.iter().find(|system| system.name == name).ok_or_else(|| format!("there is no system {name:?}; there are: {}", known()))
}

fn is_switch(job: &Job) -> bool {
    job.deed.kind() == Kind::Switch
}

/// What depends on how a system does I/O.
fn is_io(job: &Job) -> bool {
    matches!(job.deed.kind(), Kind::Server | Kind::File)
}

/// What shows how fibers are queued and moved.
fn is_scheduling(job: &Job) -> Takes {
    use Deed::{FanOut, PingPong, PingPongApart, Skynet, SpawnAll, SpawnJoin, Storm, Unbalanced, Wake, Yield};
    let is_it = matches!(job.deed, FanOut | PingPong | PingPongApart | Skynet | SpawnAll | SpawnJoin | Storm | Unbalanced | Wake | Yield);
    if is_it { Takes::Yes } else { Takes::No }
}

/// The same, for systems whose fibers cannot be kept apart.
fn is_scheduling_anywhere(job: &Job) -> Takes {
    if job.deed == Deed::PingPongApart { Takes::No } else { is_scheduling(job) }
}

/// What shows how a whole scheduler behaves: pairs, fans, work that is unbalanced, timers beside those that yield.
fn is_of_schedulers(job: &Job) -> Takes {
    if matches!(job.deed, Deed::FanOut | Deed::PingPong | Deed::Storm | Deed::Unbalanced) { Takes::Yes } else { Takes::No }
}

fn is_server(job: &Job) -> bool {
    job.deed.kind() == Kind::Server
}

/// Systems of one thread.
fn echoes_on_one_cpu(job: &Job) -> Takes {
    if matches!(job.deed, Deed::Echo | Deed::EchoShared) { Takes::Yes } else { Takes::No }
}

fn tokio_version() -> Result<String, String> {
    Ok(format!("{} (hyper {})", locked("tokio")?, locked("hyper")?))
}

fn only(job: &Job, kind: Kind) -> Takes {
    if job.deed.kind() == kind { Takes::Yes } else { Takes::No }
}

/// Every schedulable job with the system's own stacks, if it has any.
fn schedules(job: &Job) -> Takes {
    if is_switch(job) || job.stack_kib > 0 { Takes::No } else { Takes::Yes }
}

fn may_takes(job: &Job) -> Takes {
    match job.deed {
        // It has no way to keep a task where it is.
        Deed::FileRead | Deed::PingPongApart => Takes::No,
        Deed::Storm => Takes::Refuses("not offered: while tasks yield, it wakes no other"),
        _ => schedules(job),
    }
}

fn threads_take(job: &Job) -> Takes {
    match schedules(job) {
        Takes::Yes if is_server(job) && job.tasks > CONNECTIONS_MAX => Takes::Refuses("not tried: so many threads are no way to serve"),
        Takes::Yes if job.tasks > THREADS_MAX => Takes::Refuses("not tried: so many kernel threads would take the machine's process ids"),
        Takes::Yes if job.deed == Deed::Select => Takes::Refuses("not offered: the standard library has no select"),
        takes => takes,
    }
}

/// The version that the lock file of this build has of a crate.
fn locked(name: &str) -> Result<String, String> {
    const LOCK: &str = include_str!("../../../../Cargo.lock");
    let entry = format!("name = \"{name}\"\nversion = \"");
    let rest = LOCK.split_once(&entry).map(|(_, rest)| rest);
    let version = rest.and_then(|rest| rest.split_once('"')).map(|(version, _)| version.to_owned());
    version.ok_or_else(|| format!("{name} is not in Cargo.lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_system_is_refused_with_the_list() {
        let error = named("erlang").err().expect("there is no such system");
        assert!(error.contains("erlang") && error.contains("tokio-mt") && error.contains("limit-asm"), "{error}");
    }

    #[test]
    fn versions_come_from_the_lock_file() {
        for system in ALL.iter().filter(|system| system.name != "go") {
            assert!(!(system.version)().unwrap().is_empty(), "{}", system.name);
        }
        assert!(locked("no-such-crate").is_err());
    }
}
