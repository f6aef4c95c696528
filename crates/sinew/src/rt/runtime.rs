//! Runtimes: the default one, which starts by itself, and those that programs build.

use std::fmt;
use std::io::{self, Write};
use std::panic::Location;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::blocking::asker;
use super::builder::RuntimeBuilder;
use super::context::region;
use super::metrics::Metrics;
use super::report::Unfinished;
use super::spawn::{JoinHandle, or_panic, run_in, spawn_in};
use super::wait::Me;
use crate::event::source::{Driver, Io};
use crate::fiber::stack;
use crate::fiber::task::quietly;
use crate::fiber::why::Why;
use crate::os::{clock, fault, fork, thread};
use crate::sched::cancel::cancel_all;
use crate::sched::groups::{AwaitExit, Groups};
use crate::sched::worker::{Worker, here, make_ready};

/// How long a dropped runtime waits for its fibers.
const DROP_GRACE: Duration = Duration::from_secs(5);

/// Threads that run fibers.
///
/// Most programs need none: the first [`spawn`](crate::spawn()) starts a default runtime. Build one to have a number of workers of one's own,
/// or to keep parts of a program apart.
///
/// Its fibers are those that are begun by its [`run`](Self::run) and [`spawn`](Self::spawn) (or those of its [`Handle`], or by [`Builder::runtime`](crate::Builder::runtime)), and those that these spawn in turn. A [`sinew::spawn`](crate::spawn()) on a plain
/// thread is of the default runtime, whatever others there are; `SINEW_*` in the environment configures that one, and all options that a builder was not told.
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
    groups: Arc<Groups>,
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
        run_in(&self.groups, Location::caller(), f)
    }

    /// What this runtime has counted.
    pub fn metrics(&self) -> Metrics {
        fork::refuse();
        Metrics::of(&self.groups)
    }

    /// How its fibers do I/O, [`Io::Uring`] or [`Io::Epoll`]: for the one line that a program may want in its log. Where [`Io::Auto`] was asked for, and nobody has waited for I/O yet, the ring is tried now, once in the
    /// process. (A worker that is refused a ring later, for want of memory, says so; what each has is in [`WorkerMetrics::io`](crate::WorkerMetrics::io).)
    ///
    /// # Errors
    /// If there are no descriptors to try it with.
    ///
    /// # Examples
    /// ```
    /// let runtime = sinew::Runtime::builder().workers(1).io(sinew::Io::Epoll).build()?;
    /// assert_eq!(runtime.io()?, sinew::Io::Epoll);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn io(&self) -> io::Result<Io> {
        fork::refuse();
        Driver::choose(self.groups.io).map(Driver::io)
    }

    /// A way to spawn into this runtime that can be cloned and kept, also beyond its end.
    pub fn handle(&self) -> Handle {
        fork::refuse();
        Handle { groups: self.groups.clone() }
    }

    /// Ends the runtime: refuses new fibers, [cancels](crate::JoinHandle::cancel) all that have started, drops the others unrun (their `join` gives a
    /// [`NeverRan`](crate::NeverRan)), and waits until all have ended. What its fibers spawn meanwhile is dropped unrun too.
    ///
    /// Nothing is torn down by force: what a [`shield`](crate::shield) keeps cancels off goes on, and so do the fibers of scopes opened in it. From its beginning on, `spawn` into it from
    /// elsewhere panics, and [`run`](Self::run) anywhere. When it returns `Ok`, all fibers have ended; the workers' threads may still be running the destructors of their thread-locals.
    ///
    /// # Suspends
    /// Yes, until all fibers have ended or `grace` is over. No cancel point.
    ///
    /// # Errors
    /// [`Unfinished`], which names the fibers that had not ended when `grace` was over; they go on with their workers as if nothing had happened, and what they
    /// use is never freed. Also if none is left, and a [worker hook](crate::RuntimeBuilder::on_worker_stop) has not returned: then it says that.
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
            self.groups.stop();
            panic!("a runtime was shut down by one of its own fibers, which it would have to wait for: do it elsewhere");
        }
        let me = Me::to_wait();
        self.groups.stop();
        // Here, and once more by each worker for what it has started meanwhile: a fiber that computes keeps its worker from it.
        cancel_all(&self.groups, None);
        me.control().note_why(Why::Shutdown);
        me.control().state.begin_wait();
        let left = match self.groups.await_exit(me.control()) {
            AwaitExit::Done => {
                me.abandon_wait();
                true
            }
            AwaitExit::Wait => {
                // SAFETY: the wait was begun above; the last worker to leave, or the deadline, ends it.
                unsafe { me.wait(deadline_ns) };
                self.groups.forget_waiter()
            }
        };
        if !left {
            return Err(Unfinished::of(&self.groups));
        }
        // Its workers have left their stacks to others, who may be asleep: give the pages back here.
        stack::depot().trim();
        Ok(())
    }

    pub(crate) fn groups(&self) -> &Arc<Groups> {
        &self.groups
    }

    fn is_mine(&self) -> bool {
        here().is_some_and(|worker| Arc::ptr_eq(worker.groups(), &self.groups))
    }

    /// Starts a fiber of this runtime, as [`spawn`](crate::spawn()).
    ///
    /// # Panics
    /// If it is out of memory, or is being shut down and the caller is none of its own fibers; [`Builder::runtime`](crate::Builder::runtime) gives errors instead.
    #[track_caller]
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        or_panic(spawn_in(&self.groups, Location::caller(), f), "Runtime::spawn")
    }

    /// Wakes workers for the fibers that were spawned [quietly](crate::Builder::quiet) into this runtime, as [`flush`](crate::flush) in the current one.
    ///
    /// # Suspends
    /// No.
    pub fn flush(&self) {
        fork::refuse();
        self.groups.flush();
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.groups.is_stopping() || fork::is_child() {
            // It was shut down, or is not there.
            return;
        }
        if self.is_mine() && std::thread::panicking() {
            self.groups.stop();
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
        f.debug_struct("Runtime").field("workers", &self.groups.seats().count()).finish_non_exhaustive()
    }
}

/// A way to spawn into a runtime. It does not keep it: once that is shut down, [`spawn`](Self::spawn) panics.
#[derive(Clone)]
pub struct Handle {
    groups: Arc<Groups>,
}

impl Handle {
    /// Starts a fiber of the runtime, as [`spawn`](crate::spawn()).
    ///
    /// # Panics
    /// If it is out of memory; also if it is being shut down, or has been, unless one of its own fibers calls: then the fiber is dropped unrun, as by [`spawn`](crate::spawn()).
    /// [`Builder::runtime`](crate::Builder::runtime) gives errors instead.
    #[track_caller]
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        or_panic(spawn_in(&self.groups, Location::caller(), f), "Handle::spawn")
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
        run_in(&self.groups, Location::caller(), f)
    }

    /// What the runtime has counted.
    pub fn metrics(&self) -> Metrics {
        Metrics::of(&self.groups)
    }

    /// Wakes workers for the fibers that were spawned [quietly](crate::Builder::quiet) into the runtime, as [`flush`](crate::flush) in the current one.
    ///
    /// # Suspends
    /// No.
    ///
    /// # Examples
    /// ```
    /// let runtime = sinew::Runtime::builder().workers(2).build()?;
    /// let handle = runtime.handle();
    /// let quiet = |i: u32| sinew::Builder::new().runtime(&handle).quiet().spawn(move || i * i).unwrap();
    /// let squares: Vec<_> = (0..10).map(quiet).collect();
    /// handle.flush();
    /// assert_eq!(squares.into_iter().map(|s| s.join().unwrap()).sum::<u32>(), 285);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn flush(&self) {
        fork::refuse();
        self.groups.flush();
    }

    pub(crate) fn groups(&self) -> &Arc<Groups> {
        &self.groups
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("workers", &self.groups.seats().count()).finish_non_exhaustive()
    }
}

/// Starts the first workers of `groups`. If a thread cannot be had, those that are there leave.
pub(crate) fn start(groups: Arc<Groups>) -> io::Result<Runtime> {
    groups.all.iter().for_each(|group| group.begin());
    let mut result = Ok(());
    for group in &groups.all {
        for seat in 0..group.settings.workers_min {
            result = result.and_then(|()| groups.start_worker(group.index, seat));
            if result.is_err() {
                // This seat and those after it stay empty.
                assert!(group.retire(), "the queue of a runtime that is being started is empty");
            }
        }
    }
    let runtime = Runtime { groups };
    result.map(|()| runtime)
}

/// Starts the thread of one worker. Its name says which it is: `sinew-0.3` is worker 3 of group 0, `sinew-b0.3` one of background group 0.
pub(crate) fn start_worker(groups: &Arc<Groups>, group: usize, seat: usize) -> io::Result<()> {
    let groups = groups.clone();
    let kind = if group < groups.foreground { "" } else { "b" };
    let number = if group < groups.foreground { group } else { group - groups.foreground };
    std::thread::Builder::new().name(format!("sinew-{kind}{number}.{seat}")).spawn(move || work(&groups, group, seat)).map(drop)
}

/// A worker's thread.
fn work(groups: &Arc<Groups>, group: usize, seat: usize) {
    fault::ensure_alternate_stack();
    clock::sleep_precisely();
    let settings = &groups.all[group].settings;
    thread::take_short_turns(if settings.spares == 0 { thread::SHORT_TURN_NS } else { thread::SHORTEST_TURN_NS });
    let is_late = seat >= settings.workers_min;
    // A thread may run where the one may that starts it: a late one is started by anybody.
    let cpus = groups.cpus_of(group, seat).or_else(|| is_late.then(|| groups.cpus_of_process()));
    if let Some(cpus) = cpus {
        // It was possible when the runtime was built, or a profile alone wants it; if it is not, the worker runs where it may.
        let _ = thread::bind(cpus);
    }
    let in_time = !is_late || groups.all[group].join_late(seat);
    if in_time {
        groups.hooks.start.iter().for_each(|hook| quietly(|| hook()));
        Worker::new(groups.clone(), group, seat).run();
        groups.hooks.stop.iter().for_each(|hook| quietly(|| hook()));
    }
    if let Some(waiter) = groups.thread_left() {
        make_ready(waiter);
    }
}

static DEFAULT: OnceLock<Runtime> = OnceLock::new();

/// The runtime to which a fiber spawned here belongs: the current fiber's; that of the fiber for which this thread does a blocking job; else the default one.
pub(crate) fn current_groups() -> io::Result<Arc<Groups>> {
    if let Some(worker) = here() {
        return Ok(worker.groups().clone());
    }
    if fork::is_child() {
        return Err(io::Error::other(fork::REFUSAL));
    }
    if let Some(groups) = groups_of_thread() {
        return Ok(groups);
    }
    let runtime = Runtime::builder().build()?;
    // Of two first callers one starts a runtime in vain; it has no fibers, so it ends at once.
    Ok(DEFAULT.get_or_init(|| runtime).groups.clone())
}

/// As `current_groups`, for a thread that is no worker; `None` if that is the default runtime, and it has not started.
pub(crate) fn groups_of_thread() -> Option<Arc<Groups>> {
    asker().or_else(|| DEFAULT.get().map(|runtime| runtime.groups.clone()))
}
