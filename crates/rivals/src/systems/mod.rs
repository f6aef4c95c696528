//! The systems that are compared: one file each, and here the list.
//!
//! A new one implements `Blocking` or `Futures` and gets a line in `ALL`.

mod corosensei;
mod go;
mod limit;
mod may;
mod sinew;
mod smol;
mod threads;
mod tokio;

use crate::deeds::{blocking, futures, raw};
use crate::job::{Deed, Job, Kind, Reading};

/// Tasks of which each is a kernel thread are not made in larger numbers: all processes of the machine share the ids.
const THREADS_MAX: usize = 2000;

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
    System {
        name: "sinew",
        about: "settled fibers; for switches, the library's switch file alone",
        takes: |job| match job.deed.kind() {
            Kind::Lock if job.deed == Deed::RwLock => Takes::Refuses("not offered: still being built"),
            Kind::Channel => Takes::Refuses("not offered: still being built"),
            _ => Takes::Yes,
        },
        perform: |job| match job.deed.kind() {
            Kind::Switch => raw::perform::<sinew::Switch>(job),
            Kind::Lock => blocking::locks::perform::<sinew::Sinew, sinew::Sinew>(job),
            _ => blocking::perform_tasks::<sinew::Sinew>(job),
        },
        version: || locked("sinew"),
        side: Side::Ours,
    },
    System {
        name: "sinew-yield",
        about: "two real fibers of a runtime that call `yield_now`, beside the bare switch",
        takes: |job| if job.deed == Deed::SwitchNested { Takes::Yes } else { Takes::No },
        perform: blocking::perform_tasks::<sinew::Sinew>,
        version: || locked("sinew"),
        side: Side::Ours,
    },
    System {
        name: "tokio-ct",
        about: "tokio, current-thread runtime (jobs of one worker)",
        takes: |job| if job.workers == 1 { schedules(job) } else { Takes::No },
        perform: futures::perform::<tokio::CurrentThread>,
        version: || locked("tokio"),
        side: Side::Runtime,
    },
    System {
        name: "tokio-mt",
        about: "tokio, multi-thread runtime",
        takes: schedules,
        perform: futures::perform::<tokio::MultiThread>,
        version: || locked("tokio"),
        side: Side::Runtime,
    },
    System {
        name: "may",
        about: "stackful coroutines, default stack of 32 KiB",
        takes: schedules,
        perform: blocking::perform::<may::May>,
        version: || locked("may"),
        side: Side::Runtime,
    },
    System {
        name: "smol",
        about: "one executor that every worker thread runs",
        takes: schedules,
        perform: futures::perform::<smol::Smol>,
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
        perform: blocking::perform::<threads::Threads>,
        version: || Ok(env!("RIVALS_RUSTC").into()),
        side: Side::Rival,
    },
    System {
        name: "tokio-std",
        about: "tokio-mt with the standard library's locks, as its documentation advises where nothing is awaited under them",
        takes: |job| only(job, Kind::Lock),
        perform: futures::locks::perform::<tokio::MultiThread, futures::locks::Plain<threads::Threads>>,
        version: || locked("tokio"),
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
];

/// The system called `name`, or an error that lists what there is.
pub(crate) fn named(name: &str) -> Result<&'static System, String> {
    let known = || ALL.iter().map(|system| system.name).collect::<Vec<_>>().join(", ");
    ALL.iter().find(|system| system.name == name).ok_or_else(|| format!("there is no system {name:?}; there are: {}", known()))
}

fn is_switch(job: &Job) -> bool {
    job.deed.kind() == Kind::Switch
}

fn only(job: &Job, kind: Kind) -> Takes {
    if job.deed.kind() == kind { Takes::Yes } else { Takes::No }
}

/// Every schedulable job with the system's own stacks, if it has any.
fn schedules(job: &Job) -> Takes {
    if is_switch(job) || job.stack_kib > 0 { Takes::No } else { Takes::Yes }
}

fn threads_take(job: &Job) -> Takes {
    match schedules(job) {
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
