//! Runtimes: the default one, which starts by itself, and those that programs build.

use std::fmt;
use std::io::{self, Write};
use std::panic::Location;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::blocking;
use super::context::region;
use super::fiber::forget_block;
use super::metrics::{self, Metrics};
use super::overflow;
use super::report::{self, Unfinished};
use super::spawn::{Builder, JoinHandle, run_in};
use super::wait::Me;
use crate::base::mask::WORKERS_MAX;
use crate::event::source::{Driver, Io};
use crate::fiber::stack::{self, Class};
use crate::fiber::why::Why;
use crate::os::{audit, clock, cpu, fault, fork};
use crate::sched::cancel::cancel_all;
use crate::sched::group::{AwaitExit, Group};
use crate::sched::pool::Pool;
use crate::sched::worker::{Worker, forget_here, here, make_ready};

/// Workers of a runtime that asks for no number, at least: so that one fiber in a long computation does not stop all others.
const WORKERS_MIN_DEFAULT: usize = 2;

/// How long a dropped runtime waits for its fibers.
const DROP_GRACE: Duration = Duration::from_secs(5);

/// Threads that run fibers.
///
/// Most programs need none: the first [`spawn`](crate::spawn()) starts a default runtime. Build one to have a number of workers of one's own,
/// or to keep parts of a program apart.
///
/// Dropping it is a [shutdown](Self::shutdown_timeout) with a grace of 5 seconds, which writes what it leaves behind to stderr.
///
/// # Examples
/// ```
/// let runtime = sinew::Runtime::builder().workers(2).build()?;
/// assert_eq!(runtime.run(|| sinew::spawn(|| 7).join().unwrap()), 7);
/// # std::io::Result::Ok(())
/// ```
pub struct Runtime {
    group: Arc<Group>,
}

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
        fork::refuse();
        Metrics::of(&self.group)
    }

    /// A way to spawn into this runtime that can be cloned and kept, also beyond its end.
    pub fn handle(&self) -> Handle {
        fork::refuse();
        Handle { group: self.group.clone() }
    }

    /// Ends the runtime: refuses new fibers, [cancels](crate::JoinHandle::cancel) all that have started, drops the others unrun (their `join` gives a
    /// [`NeverRan`](crate::NeverRan)), and waits until all have ended.
    ///
    /// Nothing is torn down by force: what a [`shield`](crate::shield) keeps cancels off goes on, and so do the fibers of scopes opened in it. Afterwards `spawn` into it
    /// panics, and [`run`](Self::run) too. When it returns `Ok`, all fibers have ended; the workers' threads may still be running the destructors of their thread-locals.
    ///
    /// # Suspends
    /// Yes, until all fibers have ended or `grace` is over. No cancel point.
    ///
    /// # Errors
    /// [`Unfinished`], which names the fibers that had not ended when `grace` was over; they go on with their workers as if nothing had happened, and what they
    /// use is never freed.
    ///
    /// # Panics
    /// In a fiber of this runtime: it would wait for itself.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// let runtime = sinew::Runtime::builder().workers(2).build()?;
    /// runtime.spawn(|| sinew::sleep(Duration::from_secs(3600)));
    /// runtime.shutdown_timeout(Duration::from_secs(5)).expect("a sleep is cut short");
    /// # std::io::Result::Ok(())
    /// ```
    pub fn shutdown_timeout(self, grace: Duration) -> Result<(), Unfinished> {
        self.end(grace)
    }

    fn end(&self, grace: Duration) -> Result<(), Unfinished> {
        fork::refuse();
        let deadline_ns = clock::deadline_ns(grace);
        if self.is_mine() {
            self.group.stop();
            panic!("a runtime was shut down by one of its own fibers, which it would have to wait for: do it elsewhere");
        }
        let me = Me::to_wait();
        self.group.stop();
        // Here, and once more by each worker for what it has started meanwhile: a fiber that computes keeps its worker from it.
        cancel_all(&self.group, None);
        me.control().note_why(Why::Shutdown);
        me.control().state.begin_wait();
        let left = match self.group.await_exit(me.control()) {
            AwaitExit::Done => {
                me.abandon_wait();
                true
            }
            AwaitExit::Wait => {
                // SAFETY: the wait was begun above; the last worker to leave, or the deadline, ends it.
                unsafe { me.wait(deadline_ns) };
                self.group.forget_waiter()
            }
        };
        if !left {
            return Err(Unfinished::of(&self.group));
        }
        // Its workers have left their stacks to others, who may be asleep: give the pages back here.
        stack::depot().trim();
        Ok(())
    }

    fn is_mine(&self) -> bool {
        here().is_some_and(|worker| Arc::ptr_eq(worker.group(), &self.group))
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
        if self.group.is_stopping() || fork::is_child() {
            // It was shut down, or is not there.
            return;
        }
        if self.is_mine() && std::thread::panicking() {
            self.group.stop();
            let _ = writeln!(io::stderr(), "sinew: a runtime was dropped by one of its own fibers as that unwound: it ends when they do");
            return;
        }
        // Where the caller must not suspend, its thread waits.
        let ended = match region() {
            Some(_) if !self.is_mine() => {
                std::thread::scope(|s| s.spawn(|| self.end(DROP_GRACE)).join()).expect("a shutdown does not panic on a plain thread")
            }
            _ => self.end(DROP_GRACE),
        };
        if let Err(unfinished) = ended {
            let _ = writeln!(
                io::stderr(),
                "sinew: a runtime was dropped, and after {DROP_GRACE:?} {unfinished}\nthey and their workers are left as they are"
            );
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("workers", &self.group.seats.len()).finish_non_exhaustive()
    }
}

/// A way to spawn into a runtime. It does not keep it: once that is shut down, `spawn` panics.
#[derive(Clone)]
pub struct Handle {
    group: Arc<Group>,
}

impl Handle {
    /// Starts a fiber of the runtime, as [`spawn`](crate::spawn()).
    ///
    /// # Panics
    /// If it is being shut down, has been, or is out of memory.
    #[track_caller]
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        Builder::new().spawn_in(&self.group, f).unwrap_or_else(|error| panic!("Handle::spawn: {error}"))
    }

    /// Runs `f` as a fiber of the runtime and waits for it, as [`run`](crate::run).
    ///
    /// # Panics
    /// Passes a panic of `f` on. Also as [`spawn`](Self::spawn).
    #[track_caller]
    pub fn run<F, T>(&self, f: F) -> T
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        run_in(&self.group, Location::caller(), f)
    }

    /// What the runtime has counted.
    pub fn metrics(&self) -> Metrics {
        Metrics::of(&self.group)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("workers", &self.group.seats.len()).finish_non_exhaustive()
    }
}

/// A description of a runtime. `SINEW_WORKERS`, `SINEW_STACK`, `SINEW_BLOCKING` and `SINEW_IO` fill in what it does not say.
#[derive(Debug, Default, Clone)]
#[must_use = "a builder does nothing until it builds"]
pub struct RuntimeBuilder {
    workers: Option<usize>,
    stack_bytes: Option<usize>,
    deadlock_watch: Option<Duration>,
    blocking_threads: Option<usize>,
    blocking_idle: Option<Duration>,
    io: Option<Io>,
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

    /// Has a thread look from time to time, and write to stderr if for `period` no fiber could run and none was waiting for a moment in time: a probable
    /// deadlock, with the name, spawn site and wait of every fiber. It never ends anything: threads outside may yet wake them.
    ///
    /// Whoever sleeps, or waits with a time-out, however long, counts as waiting for a moment in time: then there is no report. A fiber that waits for another runtime's is
    /// taken for one that waits for ever.
    ///
    /// Off by default. Zero is an error of [`build`](Self::build).
    pub fn deadlock_watch(mut self, period: Duration) -> Self {
        self.deadlock_watch = Some(period);
        self
    }

    /// How many threads [`blocking`](crate::blocking()) uses, at most: 1 to 32,768. The default is 512. They are started as they are needed.
    pub fn blocking_threads(mut self, threads: usize) -> Self {
        self.blocking_threads = Some(threads);
        self
    }

    /// How long a thread of [`blocking`](crate::blocking()) stays when it has nothing to do. The default is 10 seconds.
    pub fn blocking_idle(mut self, duration: Duration) -> Self {
        self.blocking_idle = Some(duration);
        self
    }

    /// How fibers do I/O. The default is [`Io::Auto`]: `io_uring` where the kernel allows it, else `epoll`, which is said on stderr once, when the first fiber waits for I/O.
    pub fn io(mut self, io: Io) -> Self {
        self.io = Some(io);
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// For a number that is refused, here or in the environment (the text names it and what is allowed), and if threads or memory cannot be had.
    pub fn build(self) -> io::Result<Runtime> {
        let workers = self.worker_count()?;
        let class = self.stack_class()?;
        let pool = self.blocking_pool()?;
        let trace = metrics::trace_period()?;
        let io = self.io_asked()?;
        if self.deadlock_watch == Some(Duration::ZERO) {
            return Err(invalid(
                "RuntimeBuilder::deadlock_watch(0) is refused: it must be the time after which a standstill is reported, as in 10 seconds"
                    .into(),
            ));
        }
        let audit = environment("SINEW_AUDIT", "0 or 1", |text| ["0", "1"].iter().position(|known| *known == text))?;
        if audit == Some(1) {
            audit::turn_on();
        }
        fork::refuse();
        fault::install(overflow::describe);
        fork::install(|| {
            forget_here();
            forget_block();
        });
        let mut group = Group::new(workers, class, cpu::usable() > 1)?;
        group.pool = Arc::new(pool);
        group.io = io;
        let runtime = start(Arc::new(group))?;
        if let Some(period) = trace {
            metrics::start_trace(&runtime.group, period)?;
        }
        if let Some(period) = self.deadlock_watch {
            report::watch_for_deadlock(&runtime.group, period)?;
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

    fn blocking_pool(&self) -> io::Result<Pool> {
        let allowed = format!("a whole number from 1 to {}", blocking::THREADS_MAX);
        let is_allowed = |n: &usize| (1..=blocking::THREADS_MAX).contains(n);
        let threads = match self.blocking_threads {
            Some(n) if is_allowed(&n) => n,
            Some(n) => return Err(invalid(format!("RuntimeBuilder::blocking_threads({n}) is refused: it must be {allowed}"))),
            None => {
                let asked = environment("SINEW_BLOCKING", &allowed, |text| text.parse().ok().filter(is_allowed))?;
                asked.unwrap_or(blocking::THREADS_DEFAULT)
            }
        };
        let idle_ns = self.blocking_idle.map_or(blocking::IDLE_NS, |idle| u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX));
        Ok(Pool::new(threads, idle_ns))
    }

    fn io_asked(&self) -> io::Result<Io> {
        let known = [("auto", Io::Auto), ("uring", Io::Uring), ("epoll", Io::Epoll)];
        let named = |text: &str| known.iter().find(|(name, _)| *name == text).map(|(_, io)| *io);
        let io = match self.io {
            Some(io) => io,
            None => environment("SINEW_IO", "uring, epoll or auto", named)?.unwrap_or_default(),
        };
        if io == Io::Uring {
            Driver::choose(io)?;
        }
        Ok(io)
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
    let count = group.seats.len();
    let mut result = Ok(());
    for index in 0..count {
        let worker_group = group.clone();
        group.thread_comes();
        let thread = std::thread::Builder::new().name(format!("sinew-{index}")).spawn(move || work(worker_group, index));
        if let Err(error) = thread {
            let nobody = group.thread_left();
            assert!(nobody.is_none(), "nobody waits for the end of a runtime that is being started");
            // The seats of this worker and those after it stay empty.
            (index..count).for_each(|_| assert!(group.retire(), "the queue of a runtime that is being started is empty"));
            result = Err(error);
            break;
        }
    }
    // Dropped if a thread could not be had: the workers that there are leave.
    let runtime = Runtime { group };
    result.map(|()| runtime)
}

/// A worker's thread.
fn work(group: Arc<Group>, index: usize) {
    fault::ensure_alternate_stack();
    clock::sleep_precisely();
    Worker::new(group.clone(), index).run();
    if let Some(waiter) = group.thread_left() {
        make_ready(waiter);
    }
}

static DEFAULT: OnceLock<Runtime> = OnceLock::new();

/// The group in which a fiber spawned here belongs: the current fiber's, else the default runtime's.
pub(crate) fn current_group() -> io::Result<Arc<Group>> {
    if let Some(worker) = here() {
        return Ok(worker.group().clone());
    }
    if fork::is_child() {
        return Err(io::Error::other(fork::REFUSAL));
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
