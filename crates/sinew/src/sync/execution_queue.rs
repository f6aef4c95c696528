//! `ExecutionQueue`: many give tasks, one fiber at a time executes them; bthread's.
//!
//! The fiber is started by the first task and ends when there is none left, so a queue that rests costs a little memory only. A push is a lock for a few dozen instructions, and starts a
//! fiber only if none is there. Nobody executes in its own place: a handler may wait for what the caller holds, may not wait where he must not, and has no end while others push. So where no fiber is to be had, since the
//! runtime is being shut down or there is no memory, a thread tries again, in the default runtime.
//!
//! # Invariants
//! I1. `executing` is set by the one who starts a fiber, or has a thread start one, under the lock, and taken away by that fiber, under the lock, when nothing is left. While it is set, that fiber alone
//!     uses the handler.
//! I2. If there are tasks, or a stop that the handler was not told of, somebody executes, or is about to: whose fiber was refused, or dropped unrun by a shutdown, has another one started by a thread. (If
//!     there is no thread to be had, the next push, stop or join sees to it, or the drop of the last handle. A join that begins then tries until it is so.)
//! I3. Tasks are dropped, and the handler is called and dropped, without the lock (law R2).

use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::event::Event;
use crate::fiber::Id;
use crate::fiber::task::{discard, quietly};
use crate::os::lock::Lock;
use crate::os::{clock, fork, thread};
use crate::rt::pauses::Shortage;
use crate::rt::spawn::spawn_bare;
use crate::rt::wait::{current, enter_counted, yield_now};

/// Tasks of each kind that a queue that rests keeps room for, and cancelled ones that it bears. Arbitrary.
const ROOM_KEPT: usize = 64;

/// How long a thread that could not start a fiber waits before it tries again, and the longest that it waits: each is twice the one before. Arbitrary.
const PAUSE: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Of memory for the fibers of all queues.
static SHORTAGE: Shortage = Shortage::new();

/// Executes tasks one after another, in a fiber that lives as long as there are some. Clones are handles to the same queue.
///
/// What an actor is made of: the handler has its state, tasks are its messages, and no lock is needed. Any number of fibers and plain threads may push. The handler takes tasks from an
/// iterator, as many as it likes, so that it can write or send what they ask for at once; those that it leaves are there for its next call, which follows when others had their turn.
///
/// Tasks are executed in the order of their pushes, but urgent ones before all others. After [`stop`](Self::stop), or when the last handle is dropped, no more are taken; those that are there
/// are executed, then the handler is called once more with [`Tasks::is_stopped`], and dropped. A handler that has a handle of its own queue keeps that from ending until `stop` is called.
///
/// # Where it runs
/// In the runtime and the group of whoever pushes, or stops, while nobody executes; from plain threads in the default runtime. So it may be another each time the queue was empty. It has no
/// [inherited](crate::fiber_local) locals of those who push. When that runtime is shut down, the fiber is cancelled as all others are: [`cancelled`](crate::cancelled()) is true in the handler, and its cancel points fail; what was pushed is
/// executed all the same. In the place of a fiber that had not begun by then another one begins, in the default runtime; so it does where one was refused, be it for the shutdown or for want of memory, which is tried again until there is some, and said on stderr. The
/// caller never executes, whatever happens. (A queue whose last handle goes when there is neither a fiber nor a thread to be had is dropped with its tasks.)
///
/// # Panics of the handler
/// Only the task in hand is gone with it, or the first one if it has taken none: so there is an end. The handler is called again with the others; [`join`](Self::join) gives the first panic.
///
/// # Examples
/// ```
/// let (mut sum, total) = (0, std::sync::Arc::new(sinew::sync::OnceLock::new()));
/// let queue = sinew::sync::ExecutionQueue::new({
///     let total = total.clone();
///     move |tasks| {
///         sum += tasks.sum::<u32>();
///         if tasks.is_stopped() {
///             total.set(sum).unwrap();
///         }
///     }
/// });
/// (1..=10).for_each(|task| drop(queue.push(task).unwrap()));
/// queue.stop();
/// queue.join().unwrap();
/// assert_eq!(total.get(), Some(&55));
/// ```
pub struct ExecutionQueue<T: Send + 'static> {
    handles: Arc<Handles<T>>,
}

/// Stops the queue when the last handle is gone.
struct Handles<T: Send + 'static> {
    shared: Arc<Shared<T>>,
}

type Handler<T> = Box<dyn FnMut(&mut Tasks<'_, T>) + Send>;

struct Shared<T> {
    state: Lock<State<T>>,
    /// `None` when it was told of the stop. By who executes (I1).
    handler: UnsafeCell<Option<Handler<T>>>,
    /// The handler was told of the stop, and is gone.
    ended: Event,
}

// SAFETY: the handler is `Send`, and used by one at a time (I1); tasks are `Send`, and under the lock.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

// What a handler's panic has left half done, the handler alone sees, and it is called again by contract.
impl<T> UnwindSafe for Shared<T> {}
impl<T> RefUnwindSafe for Shared<T> {}

struct State<T> {
    lines: [Line<T>; 2],
    executing: bool,
    /// Who has set `executing` is about to start a fiber, and looks after it.
    starting: bool,
    stopped: bool,
    /// The task that the handler has in hand.
    in_hand: Option<Number>,
    /// The fiber that executes, for those who would wait for themselves.
    executor: Option<Id>,
    panic: Option<Box<dyn Any + Send>>,
}

/// Which tasks go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    Urgent = 0,
    Normal = 1,
}

/// Names a task of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number {
    urgency: Urgency,
    place: u64,
}

/// Tasks in order; `None` is one that was cancelled.
///
/// When there are more of these than others, the others move together: so the room is of the size of what is left, whatever an old task waits for. That costs two steps per cancel at most. Those that were moved are no longer where their places say, and are
/// searched for by halves; all others are found at once.
struct Line<T> {
    /// Those that were moved together, with their places: all before those in `tasks`.
    moved: VecDeque<(u64, Option<T>)>,
    tasks: VecDeque<Option<T>>,
    /// The place of the first in `tasks`.
    first: u64,
    /// Those that were not cancelled.
    left: usize,
}

impl<T> Line<T> {
    fn new() -> Self {
        Self { moved: VecDeque::new(), tasks: VecDeque::new(), first: 0, left: 0 }
    }

    fn push(&mut self, task: T) -> u64 {
        self.tasks.push_back(Some(task));
        self.left += 1;
        self.first + self.tasks.len() as u64 - 1
    }

    fn pop(&mut self) -> Option<(u64, T)> {
        loop {
            let (place, task) = self.pop_any()?;
            if let Some(task) = task {
                self.left -= 1;
                return Some((place, task));
            }
        }
    }

    /// The next, cancelled or not.
    fn pop_any(&mut self) -> Option<(u64, Option<T>)> {
        if let Some(moved) = self.moved.pop_front() {
            return Some(moved);
        }
        let task = self.tasks.pop_front()?;
        self.first += 1;
        Some((self.first - 1, task))
    }

    fn take(&mut self, place: u64) -> Option<T> {
        let task = self.at(place)?.take()?;
        self.left -= 1;
        let cancelled = self.moved.len() + self.tasks.len() - self.left;
        if self.left == 0 {
            // Nobody would come to take the rest away.
            self.empty();
        } else if cancelled > self.left.max(ROOM_KEPT) {
            self.move_together();
        }
        Some(task)
    }

    fn at(&mut self, place: u64) -> Option<&mut Option<T>> {
        if let Some(index) = place.checked_sub(self.first) {
            return self.tasks.get_mut(usize::try_from(index).ok()?);
        }
        let index = self.moved.binary_search_by_key(&place, |moved| moved.0).ok()?;
        Some(&mut self.moved[index].1)
    }

    /// Forgets what was cancelled.
    #[cold]
    fn move_together(&mut self) {
        self.moved.retain(|moved| moved.1.is_some());
        let places = self.first..;
        self.first += self.tasks.len() as u64;
        self.moved.extend(places.zip(self.tasks.drain(..)).filter(|(_, task)| task.is_some()));
        self.shrink();
    }

    /// Forgets what was cancelled, when nothing else is left.
    fn empty(&mut self) {
        self.first += self.tasks.len() as u64;
        self.moved.clear();
        self.tasks.clear();
        self.shrink();
    }

    /// Gives room back, but for as much as there is in use, or a little.
    fn shrink(&mut self) {
        self.moved.shrink_to(self.left);
        self.tasks.shrink_to(ROOM_KEPT);
    }
}

impl<T> State<T> {
    fn pop(&mut self) -> Option<T> {
        for urgency in [Urgency::Urgent, Urgency::Normal] {
            if let Some((place, task)) = self.lines[urgency as usize].pop() {
                self.in_hand = Some(Number { urgency, place });
                return Some(task);
            }
        }
        self.in_hand = None;
        None
    }

    fn has_tasks(&self) -> bool {
        self.lines.iter().any(|line| line.left > 0)
    }

    /// Room that was needed once is given back.
    fn rest(&mut self) {
        self.lines.iter_mut().filter(|line| line.tasks.capacity() > ROOM_KEPT || line.moved.capacity() > 0).for_each(Line::empty);
    }
}

impl<T: Send + 'static> ExecutionQueue<T> {
    /// A queue that `handler` executes.
    pub fn new<F>(handler: F) -> Self
    where
        F: FnMut(&mut Tasks<'_, T>) + Send + 'static,
    {
        let state = State {
            lines: [Line::new(), Line::new()],
            executing: false,
            starting: false,
            stopped: false,
            in_hand: None,
            executor: None,
            panic: None,
        };
        let shared = Shared { state: Lock::new(state), handler: UnsafeCell::new(Some(Box::new(handler))), ended: Event::new() };
        Self { handles: Arc::new(Handles { shared: Arc::new(shared) }) }
    }

    /// Puts `task` behind all others. Its handle can cancel it; drop that to forget it.
    ///
    /// # Suspends
    /// No; and the handler does not run before it returns, unless another worker runs it.
    ///
    /// # Errors
    /// The task, if the queue was stopped.
    #[track_caller]
    pub fn push(&self, task: T) -> Result<TaskHandle<T>, QueueStopped<T>> {
        self.add(task, Urgency::Normal)
    }

    /// Puts `task` before all that are not urgent.
    ///
    /// # Suspends
    /// As [`push`](Self::push).
    ///
    /// # Errors
    /// As [`push`](Self::push).
    #[track_caller]
    pub fn push_urgent(&self, task: T) -> Result<TaskHandle<T>, QueueStopped<T>> {
        self.add(task, Urgency::Urgent)
    }

    /// Takes no more tasks. Those that are there are executed, then the handler is told. A second stop does nothing.
    ///
    /// # Suspends
    /// As [`push`](Self::push).
    #[track_caller]
    pub fn stop(&self) {
        fork::refuse();
        self.shared().stop();
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.shared().state.lock().stopped
    }

    /// Whether it was stopped, all tasks are executed, and the handler is gone: a [`join`](Self::join) would not wait.
    ///
    /// # Suspends
    /// No.
    pub fn is_ended(&self) -> bool {
        self.shared().ended.is_set()
    }

    /// How many tasks wait to be executed.
    pub fn len(&self) -> usize {
        self.shared().state.lock().lines.iter().map(|line| line.left).sum()
    }

    /// Whether no task waits to be executed; one may be in the handler's hand.
    pub fn is_empty(&self) -> bool {
        self.shared().is_empty()
    }

    /// Waits until the queue was stopped, all tasks are executed, and the handler is gone.
    ///
    /// # Suspends
    /// Yes, until then. No cancel point.
    ///
    /// # Panics
    /// If it is called by the handler itself, or has to wait inside [`no_suspend`](crate::no_suspend).
    ///
    /// # Errors
    /// The first panic of the handler; it is given once.
    #[track_caller]
    pub fn join(&self) -> std::thread::Result<()> {
        self.before_join();
        self.shared().await_end(u64::MAX);
        self.shared().outcome()
    }

    /// As [`join`](Self::join), at most for `timeout`; `None` if the time was up first.
    ///
    /// # Suspends
    /// As [`join`](Self::join).
    ///
    /// # Panics
    /// As [`join`](Self::join).
    #[track_caller]
    pub fn join_timeout(&self, timeout: Duration) -> Option<std::thread::Result<()>> {
        self.before_join();
        self.shared().await_end(clock::deadline_ns(timeout)).then(|| self.shared().outcome())
    }

    #[track_caller]
    fn before_join(&self) {
        fork::refuse();
        let executor = self.shared().state.lock().executor;
        assert!(executor.is_none() || executor != Some(current().id()), "an ExecutionQueue was joined by its own handler");
    }

    #[track_caller]
    fn add(&self, task: T, urgency: Urgency) -> Result<TaskHandle<T>, QueueStopped<T>> {
        fork::refuse();
        let shared = self.shared();
        let mut state = shared.state.lock();
        if state.stopped {
            return Err(QueueStopped(task));
        }
        let place = state.lines[urgency as usize].push(task);
        let idle = !std::mem::replace(&mut state.executing, true);
        drop(state);
        if idle {
            // If there is nobody to be had, I2 says who sees to it.
            let _ = shared.start();
        }
        Ok(TaskHandle { shared: shared.clone(), number: Number { urgency, place } })
    }

    fn shared(&self) -> &Arc<Shared<T>> {
        &self.handles.shared
    }
}

impl<T: Send + 'static> Shared<T> {
    #[track_caller]
    fn stop(self: &Arc<Self>) {
        self.state.lock().stopped = true;
        // If there is nobody to be had, I2 says who sees to it.
        let _ = self.execute_if_forgotten();
    }

    /// Whether there is something to execute, or to tell the handler.
    fn is_due(&self, state: &State<T>) -> bool {
        state.has_tasks() || (state.stopped && !self.ended.is_set())
    }

    /// Sees to it that somebody executes what is there (I2); `false` if there is neither a fiber nor a thread to be had.
    #[track_caller]
    fn execute_if_forgotten(self: &Arc<Self>) -> bool {
        let mut state = self.state.lock();
        let start = self.is_due(&state) && !state.executing;
        state.executing |= start;
        drop(state);
        !start || self.start()
    }

    /// Starts a fiber that executes, or has a thread start one. By the one who has set `executing`; `false` if it had to be taken away again.
    #[track_caller]
    fn start(self: &Arc<Self>) -> bool {
        self.start_fiber().is_ok() || self.start_elsewhere()
    }

    /// Starts a fiber that executes, unless somebody else has, or there is nothing left to execute.
    ///
    /// # Errors
    /// If it is refused. `executing` is the caller's again.
    #[track_caller]
    fn start_fiber(self: &Arc<Self>) -> io::Result<()> {
        loop {
            self.state.lock().starting = true;
            let executor = Executor { shared: Some(self.clone()) };
            let started = spawn_bare(move || executor.execute());
            let mut state = self.state.lock();
            state.starting = false;
            // The executor was dropped unrun, here or, meanwhile, by a shutdown.
            let again = self.is_due(&state) && !state.executing;
            state.executing |= again;
            drop(state);
            if !again {
                return Ok(());
            }
            drop(started?);
        }
    }

    /// Has a thread start a fiber: not of this runtime, or not before there is memory for it. As [`start`](Self::start).
    #[cold]
    fn start_elsewhere(self: &Arc<Self>) -> bool {
        let shared = self.clone();
        let started = thread::start("sinew-queue".into(), move || shared.start_at_last()).is_ok();
        if !started {
            self.state.lock().executing = false;
        }
        started
    }

    /// Starts a fiber, as soon as there is one to be had. On a thread of its own, which may have no block to wait with.
    fn start_at_last(self: &Arc<Self>) {
        let mut pause = PAUSE;
        while let Err(error) = self.start_fiber() {
            if SHORTAGE.is_news() {
                let _ = writeln!(io::stderr(), "sinew: an ExecutionQueue waits: {error}; its tasks are executed when there is room");
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Waits until the handler is gone, at most until `deadline_ns`; whether it is.
    #[track_caller]
    fn await_end(self: &Arc<Self>, deadline_ns: u64) -> bool {
        let left = || Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns()));
        while !self.execute_if_forgotten() {
            if self.ended.wait_timeout(left().min(PAUSE_MAX)) || left().is_zero() {
                return self.ended.is_set();
            }
        }
        if deadline_ns == u64::MAX {
            self.ended.wait();
        }
        self.ended.wait_timeout(left())
    }

    fn outcome(&self) -> std::thread::Result<()> {
        self.state.lock().panic.take().map_or(Ok(()), Err)
    }

    fn is_empty(&self) -> bool {
        !self.state.lock().has_tasks()
    }

    /// What is to be done next. By who executes.
    fn next_deed(&self) -> Deed {
        let mut state = self.state.lock();
        if state.has_tasks() {
            return Deed::Execute;
        }
        if self.is_due(&state) {
            return Deed::TellOfStop;
        }
        state.executing = false;
        state.executor = None;
        state.rest();
        Deed::Leave
    }

    /// Calls the handler; keeps its panic.
    ///
    /// # Safety
    /// The caller executes (I1).
    unsafe fn call(&self, last: bool) {
        // SAFETY: I1.
        let Some(handler) = (unsafe { &mut *self.handler.get() }) else { return };
        let mut tasks = Tasks { state: &self.state, last, taken: false };
        let called = catch_unwind(AssertUnwindSafe(|| handler(&mut tasks)));
        let gone = if called.is_err() && !tasks.taken { tasks.next() } else { None };
        quietly(|| drop(gone));
        self.keep(called);
        self.state.lock().in_hand = None;
    }

    /// Tells the handler of the stop, and drops it.
    ///
    /// # Safety
    /// As [`call`](Self::call).
    unsafe fn call_last(&self) {
        // SAFETY: I1.
        let handler = unsafe {
            self.call(true);
            (*self.handler.get()).take()
        };
        self.keep(catch_unwind(AssertUnwindSafe(|| drop(handler))));
        self.ended.set();
    }

    fn keep(&self, outcome: std::thread::Result<()>) {
        let Err(payload) = outcome else { return };
        let mut state = self.state.lock();
        let surplus = if state.panic.is_some() { Some(payload) } else { state.panic.replace(payload) };
        drop(state);
        surplus.into_iter().for_each(discard);
    }
}

enum Deed {
    Execute,
    TellOfStop,
    Leave,
}

/// The one who executes; dropped unrun, it has another one started (I2).
struct Executor<T: Send + 'static> {
    /// `None` once it runs.
    shared: Option<Arc<Shared<T>>>,
}

impl<T: Send + 'static> Executor<T> {
    fn execute(mut self) {
        // From here on `executing` is taken away by `next_deed`.
        let shared = self.shared.take().expect("it is taken once");
        shared.state.lock().executor = Some(current().id());
        loop {
            match shared.next_deed() {
                // SAFETY: I1 - this one executes until `next_deed` says otherwise.
                Deed::Execute => unsafe { shared.call(false) },
                // SAFETY: as above.
                Deed::TellOfStop => unsafe { shared.call_last() },
                Deed::Leave => return,
            }
            if !shared.is_empty() {
                // What the handler has left: others have their turn between two calls.
                yield_now();
            }
        }
    }
}

impl<T: Send + 'static> Drop for Executor<T> {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let mut state = shared.state.lock();
        let forgotten = shared.is_due(&state) && !state.starting && !fork::is_child();
        state.executing = forgotten;
        drop(state);
        if forgotten {
            shared.start_elsewhere();
        }
    }
}

impl<T: Send + 'static> Drop for Handles<T> {
    fn drop(&mut self) {
        // In a forked child nobody would execute, and the lock may be held for ever.
        if !fork::is_child() {
            self.shared.stop();
        }
    }
}

impl<T: Send + 'static> Clone for ExecutionQueue<T> {
    fn clone(&self) -> Self {
        Self { handles: self.handles.clone() }
    }
}

impl<T: Send + 'static> fmt::Debug for ExecutionQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutionQueue").field("len", &self.len()).field("stopped", &self.is_stopped()).finish_non_exhaustive()
    }
}

/// The tasks that a handler of an [`ExecutionQueue`] may take in one call: all that are there, also those that come meanwhile.
pub struct Tasks<'a, T> {
    state: &'a Lock<State<T>>,
    last: bool,
    /// Whether any was.
    taken: bool,
}

impl<T> Tasks<'_, T> {
    /// Whether this is the last call: the queue was stopped, and all tasks are executed.
    pub fn is_stopped(&self) -> bool {
        self.last
    }
}

impl<T> Iterator for Tasks<'_, T> {
    type Item = T;

    /// Takes the next task in hand; the one before counts as executed.
    ///
    /// # Suspends
    /// For a turn of the other fibers of its worker, after 256 tasks or so without one: while many push, a handler might go on for ever. Not inside [`no_suspend`](crate::no_suspend). No cancel point.
    fn next(&mut self) -> Option<T> {
        enter_counted();
        let task = self.state.lock().pop();
        self.taken |= task.is_some();
        task
    }
}

impl<T> fmt::Debug for Tasks<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("is_stopped", &self.last).finish_non_exhaustive()
    }
}

/// Names a task that was pushed, to cancel it. Dropping it does nothing.
pub struct TaskHandle<T> {
    shared: Arc<Shared<T>>,
    number: Number,
}

impl<T> TaskHandle<T> {
    /// Takes the task out of the queue, if its turn has not come yet.
    ///
    /// # Suspends
    /// No.
    ///
    /// # Errors
    /// Whether the task is being executed, or there is nothing left of it.
    #[track_caller]
    pub fn cancel(&self) -> Result<T, TooLate> {
        fork::refuse();
        let mut state = self.shared.state.lock();
        let task = state.lines[self.number.urgency as usize].take(self.number.place);
        let in_hand = state.in_hand == Some(self.number);
        drop(state);
        task.ok_or(if in_hand { TooLate::Executing } else { TooLate::Gone })
    }
}

impl<T> fmt::Debug for TaskHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskHandle").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A task could not be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLate {
    /// The handler has it in hand.
    Executing,
    /// It was executed, or cancelled before.
    Gone,
}

impl fmt::Display for TooLate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TooLate::Executing => "the task is being executed",
            TooLate::Gone => "the task was executed or cancelled before",
        })
    }
}

impl std::error::Error for TooLate {}

/// A task that came after the stop of its [`ExecutionQueue`].
pub struct QueueStopped<T>(pub T);

impl<T> QueueStopped<T> {
    /// The task.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> fmt::Debug for QueueStopped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueStopped").finish_non_exhaustive()
    }
}

impl<T> fmt::Display for QueueStopped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the execution queue was stopped")
    }
}

impl<T> std::error::Error for QueueStopped<T> {}
