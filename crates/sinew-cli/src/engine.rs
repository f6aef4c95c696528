//! The runtime of a command that does I/O: how many workers, which driver, enough descriptors.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sinew::{Io, Runtime};

use crate::failure::Failure;

/// Descriptors that a process needs besides its connections: standard streams, sources of the workers, the listener. Arbitrary, and more than enough.
const SPARE_DESCRIPTORS: usize = 256;

/// Options of all commands that do I/O.
#[derive(clap::Args, Clone)]
pub(crate) struct Engine {
    /// Threads that run fibers [default: one per CPU, at least 2; demo: half of the CPUs for the server, half for the load]
    #[arg(long, value_name = "N", env = "SINEW_WORKERS", value_parser = crate::worker_count, allow_negative_numbers = true)]
    pub(crate) workers: Option<usize>,

    /// How fibers do I/O: uring, epoll, or auto, which is uring where the kernel allows it [default: auto]
    #[arg(long, value_name = "DRIVER", env = "SINEW_IO", value_parser = driver)]
    pub(crate) io: Option<Io>,
}

impl Engine {
    /// The runtime; with `workers` if nobody said otherwise.
    ///
    /// # Errors
    /// If the kernel refuses the driver, or a thread.
    pub(crate) fn start(&self, workers: usize) -> io::Result<Runtime> {
        let builder = Runtime::builder().workers(self.workers.unwrap_or(workers));
        self.io.into_iter().fold(builder, |builder, io| builder.io(io)).build()
    }

    /// The same options, for a child process; with `workers` if nobody said otherwise.
    pub(crate) fn arguments(&self, workers: usize) -> Vec<String> {
        let io = self.io.map(|io| format!("--io={}", name(io)));
        std::iter::once(format!("--workers={}", self.workers.unwrap_or(workers))).chain(io).collect()
    }
}

/// The drivers that the kernel allows, the best one first.
pub(crate) fn drivers() -> Vec<Io> {
    let allowed = |&io: &Io| Runtime::builder().workers(1).io(io).build().is_ok();
    [Io::Uring, Io::Epoll].into_iter().filter(allowed).collect()
}

pub(crate) fn driver(text: &str) -> Result<Io, String> {
    match text {
        "uring" => Ok(Io::Uring),
        "epoll" => Ok(Io::Epoll),
        "auto" => Ok(Io::Auto),
        _ => Err("it must be uring, epoll or auto (--io or SINEW_IO)".into()),
    }
}

/// What a driver is called.
pub(crate) fn name(io: Io) -> &'static str {
    match io {
        Io::Uring => "uring",
        Io::Epoll => "epoll",
        _ => "auto",
    }
}

/// Half of the CPUs, at least one: for a server and a load that share the machine.
pub(crate) fn half_of_the_cpus() -> usize {
    (std::thread::available_parallelism().map_or(1, usize::from) / 2).clamp(1, crate::WORKERS_MAX)
}

/// Connections for which there can be descriptors.
pub(crate) fn connections_max() -> usize {
    let max = getrlimit(Resource::Nofile).maximum.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
    max.saturating_sub(SPARE_DESCRIPTORS)
}

/// Lets this process have as many descriptors as it may.
///
/// # Errors
/// If they are too few for `connections`: a refusal that says what to do.
pub(crate) fn raise_descriptors(connections: usize) -> Result<(), Failure> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If it is refused, the count below tells whether that matters.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    let (need, have) = (connections + SPARE_DESCRIPTORS, getrlimit(Resource::Nofile).current);
    let (who, fewer) = match connections {
        // Of a server, whose clients decide.
        0 => ("the runtime needs".into(), ""),
        // There are no fewer.
        1 => ("the runtime and one connection need".into(), ""),
        _ => (format!("{connections} connections need"), "ask for fewer, or "),
    };
    match have {
        Some(have) if (have as usize) < need => Err(Failure::refusal(format!(
            "{who} {need} descriptors, and this process may have {have}: {fewer}raise the hard limit \
             (ulimit -Hn {need} as root, LimitNOFILE= in systemd, nofile in /etc/security/limits.conf, --ulimit nofile={need} in a container)"
        ))),
        _ => Ok(()),
    }
}
