//! Runtimes: the default one, which starts by itself, and those that programs build.

use std::fmt;
use std::io::{self, Write};
use std::panic::Location;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::metrics::{self, Metrics};
use super::overflow;
use super::spawn::{Builder, JoinHandle, run_in};
use crate::base::mask::WORKERS_MAX;
use crate::fiber::stack::{self, Class};
use crate::os::{cpu, fault};
use crate::sched::group::Group;
use crate::sched::worker::{Worker, here};

/// Workers of a runtime that asks for no number, at least: so that one fiber in a long computation does not stop all others.
const WORKERS_MIN_DEFAULT: usize = 2;

/// How long a dropped runtime waits for its fibers.
const DROP_GRACE: Duration = Duration::from_secs(5);

/// Threads that run fibers.
///
/// Most programs need none: the first [`spawn`](crate::spawn()) starts a default runtime. Build one to have a number of workers of one's own,
/// or to keep parts of a program apart.
///
/// Dropping it refuses new fibers, drops unstarted ones unrun, and waits for the started ones to end, 5 seconds at most; what is still there then is
/// reported and left as it is, with its workers. The drop blocks the thread it is on, also if that is another runtime's worker; in a fiber of the
/// runtime itself it panics, since it would wait for itself.
///
/// # Examples
/// ```
/// let runtime = sinew::Runtime::builder().workers(2).build()?;
/// assert_eq!(runtime.run(|| sinew::spawn(|| 7).join().unwrap()), 7);
/// # std::io::Result::Ok(())
/// ```
pub struct Runtime {
    group: Arc<Group>,
    /// Each worker holds the other end until it has left.
    workers: Receiver<()>,
}

// SAFETY: the receiver is used by `drop` alone, which has the runtime for itself.
unsafe impl Sync for Runtime {}

impl Runtime {
    /// Begins to describe a runtime.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Runs `f` as a fiber of this runtime and waits for it, as [`run`](crate::run).
    ///
    /// # Panics
    /// Passes a panic of `f` on.
    #[track_caller]
    pub fn run<F, T>(&self, f: F) -> T
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        run_in(&self.group, Location::caller(), f)
    }

    /// What this runtime has counted.
    pub fn metrics(&self) -> Metrics {
        Metrics::of(&self.group)
    }

    /// Starts a fiber of this runtime, as [`spawn`](crate::spawn()).
    ///
    /// # Panics
    /// If it is being shut down or out of memory.
    #[track_caller]
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        Builder::new().spawn_in(&self.group, f).unwrap_or_else(|error| panic!("Runtime::spawn: {error}"))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if here().is_some_and(|worker| Arc::ptr_eq(worker.group(), &self.group)) {
            self.group.stop();
            panic!("a runtime was dropped by one of its own fibers, which it would have to wait for: drop it elsewhere");
        }
        self.group.stop();
        match self.workers.recv_timeout(DROP_GRACE) {
            // Its workers have left their stacks to others, who may be asleep: give the pages back here.
            Err(RecvTimeoutError::Disconnected) => stack::depot().trim(),
            _ => {
                let left: usize = self.group.settled();
                let _ = writeln!(
                    io::stderr(),
                    "sinew: a runtime was dropped, and after {DROP_GRACE:?} {left} of its fibers had not ended: they and their workers are left as they are"
                );
            }
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("workers", &self.group.seats.len()).finish_non_exhaustive()
    }
}

/// A description of a runtime. `SINEW_WORKERS` and `SINEW_STACK` fill in what it does not say.
#[derive(Debug, Default, Clone)]
#[must_use = "a builder does nothing until it builds"]
pub struct RuntimeBuilder {
    workers: Option<usize>,
    stack_bytes: Option<usize>,
}

impl RuntimeBuilder {
    /// How many threads run fibers: 1 to 64. The default is one per CPU that the process may use, at least 2.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Usable bytes of stack of a fiber that does not ask itself; see [`Builder::stack_size`]. The default is 256 KiB.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_bytes = Some(bytes);
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// For a number that is refused, here or in the environment (the text names it and what is allowed), and if threads or memory cannot be had.
    pub fn build(self) -> io::Result<Runtime> {
        let workers = self.worker_count()?;
        let class = self.stack_class()?;
        let trace = metrics::trace_period()?;
        fault::install(overflow::describe);
        let runtime = start(Arc::new(Group::new(workers, class, cpu::usable() > 1)?))?;
        if let Some(period) = trace {
            metrics::start_trace(&runtime.group, period)?;
        }
        Ok(runtime)
    }

    fn worker_count(&self) -> io::Result<usize> {
        let allowed = format!("a whole number from 1 to {WORKERS_MAX}");
        match self.workers {
            Some(n) if (1..=WORKERS_MAX).contains(&n) => Ok(n),
            Some(n) => Err(invalid(format!("RuntimeBuilder::workers({n}) is refused: it must be {allowed}"))),
            None => match environment("SINEW_WORKERS", &allowed, |text| text.parse().ok().filter(|n| (1..=WORKERS_MAX).contains(n)))? {
                Some(n) => Ok(n),
                None => Ok(cpu::usable().clamp(WORKERS_MIN_DEFAULT, WORKERS_MAX)),
            },
        }
    }

    fn stack_class(&self) -> io::Result<Class> {
        let allowed = "bytes from 1 to 1G, as in 65536, 64K or 1M";
        match self.stack_bytes {
            Some(bytes) => Class::for_bytes(bytes),
            None => {
                let class = environment("SINEW_STACK", allowed, |text| Class::for_bytes(parse_bytes(text)?).ok())?;
                class.map_or_else(|| Class::for_bytes(stack::DEFAULT_BYTES), Ok)
            }
        }
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
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

fn start(group: Arc<Group>) -> io::Result<Runtime> {
    let (alive, workers) = channel::<()>();
    let count = group.seats.len();
    let mut result = Ok(());
    for index in 0..count {
        let (worker_group, worker_alive) = (group.clone(), alive.clone());
        let thread = std::thread::Builder::new().name(format!("sinew-{index}")).spawn(move || work(worker_group, index, worker_alive));
        if let Err(error) = thread {
            // The seats of this worker and those after it stay empty.
            (index..count).for_each(|_| assert!(group.retire(), "the queue of a runtime that is being started is empty"));
            result = Err(error);
            break;
        }
    }
    drop(alive);
    // Dropped if a thread could not be had: the workers that there are leave.
    let runtime = Runtime { group, workers };
    result.map(|()| runtime)
}

/// A worker's thread. It holds `alive` until it has left.
fn work(group: Arc<Group>, index: usize, alive: Sender<()>) {
    fault::ensure_alternate_stack();
    Worker::new(group, index).run();
    drop(alive);
}

static DEFAULT: OnceLock<Runtime> = OnceLock::new();

/// The group in which a fiber spawned here belongs: the current fiber's, else the default runtime's.
pub(crate) fn current_group() -> io::Result<Arc<Group>> {
    if let Some(worker) = here() {
        return Ok(worker.group().clone());
    }
    if let Some(group) = default_group() {
        return Ok(group);
    }
    let runtime = Runtime::builder().build()?;
    // Of two first callers one starts a runtime in vain; it has no fibers, so it ends at once.
    Ok(DEFAULT.get_or_init(|| runtime).group.clone())
}

/// The default runtime's group, if it has started.
pub(crate) fn default_group() -> Option<Arc<Group>> {
    DEFAULT.get().map(|runtime| runtime.group.clone())
}
