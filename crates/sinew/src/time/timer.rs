//! Closures that run at a moment in time, each in a fiber of its own.
//!
//! A timer that waits is a node of 120 bytes in a wheel, not a fiber: arming and cancelling are a lock and a few links, from any thread, and a cancelled one leaves nothing behind. Each
//! group has one wheel, and while anything is armed there one fiber, the driver, that sleeps until the earliest deadline and starts the fibers of what is due. It comes with
//! the first timer and goes when there have been none for a while.
//!
//! Rejected: a parked fiber per timer (a stack each); the workers' own wheels (armed and cancelled by their own thread alone); a timer thread (one more wake per timer, and the only thread that
//! would be there for nothing else); bthread's marks on cancelled entries (they stay until their time). One lock for all is enough as long as it is held for some dozens of nanoseconds: to be
//! looked at again with many cores. The driver is a fiber like others: one that computes for long on its worker makes timers late, as it does sleeps.
//!
//! # Picture
//! ```text
//!            arm                 driver: due             a runner begins          returns
//!   ARMED ----------> (wheel) ---------------> DUE ----------------------> RUNNING --------> ENDED
//!     ^                  |  cancel: STOPPED     |  cancel: STOPPED           |    |  cancel: RUNNING
//!     |                  +-----> ENDED <--------+                            |    +-> LAST_RUN --> ENDED
//!     +------------------------------------ every: next moment --------------+
//! ```
//!
//! # Invariants
//! I1. Phases, links and `until_ns` are used under the service's lock alone; a moment is changed by the one that runs the callback.
//! I2. The callback belongs to whoever took the phase to RUNNING or ENDED, under the lock; it is called and dropped outside it (law R2).
//! I3. While anything is armed, or a runner is owed, there is a driver, and it looks at the wheel again before the earliest deadline: `until_ns` is when it will by itself; 0 means it is about to. If it could not be started for want of
//!     memory, a thread tries again; if there is no thread to be had, whoever arms the next timer.
//! I4. The wheel holds a reference to each node in it.
//! I5. There is a runner, a fiber, for each node in `due`, but for as many as are `owed`. A runner takes the earliest, whichever it was started for: so
//!     callbacks begin in the order of their moments, however the scheduler takes the fibers. One that was refused, or dropped unrun, is owed again.
//! I6. No timer ends for want of memory: what cannot be started is tried again until it is there, or the runtime is being shut down.

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{catch_up, span_ns};
use crate::base::wheel::{Entry, Wheel};
use crate::fiber::local::Inherited;
use crate::fiber::task::quietly;
use crate::fiber::why::{At, Why};
use crate::os::lock::Lock;
use crate::os::{clock, fork, thread};
use crate::rt::cancel::cancelled;
use crate::rt::fiber::Fiber;
use crate::rt::pauses::{Pauses, Shortage};
use crate::rt::runtime::current_groups;
use crate::rt::spawn::{AtShutdown, Group, Settings, launch_detached, nearest, or_panic};
use crate::rt::wait::{Me, current, park_until, yield_now};
use crate::sched::groups::Groups;

/// How long the driver stays when nothing is armed. Arbitrary: a program that arms and cancels one timer again and again starts it once.
const LINGER_NS: u64 = 1_000_000_000;

/// Room for timers that are due at once that is kept. Arbitrary: 8 KiB.
const DUE_KEPT: usize = 1024;

/// Fibers that the driver starts between two yields. Arbitrary: some tens of microseconds.
const LAUNCHES_PER_TURN: usize = 64;

/// How long it takes until a driver, or a runner that found no stack, is tried again: at first and at most. Arbitrary; the second is long since it is said of each fiber that never ran for want of a stack.
const RETRY: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(100);

/// Of memory for the fibers of all timers.
static SHORTAGE: Shortage = Shortage::new();

/// A closure that runs in a fiber at a moment in time, once or again and again.
///
/// It lives as long as this value: dropping it cancels it. [`detach`](Self::detach) lets it go on by itself. Timers belong to the runtime and the group in which they are made (on a plain
/// thread, the default runtime and one of its groups); its shutdown drops those that are armed. They are cheap: a million can be armed, and a cancelled one gives its memory back at once.
///
/// The callback may block, sleep and spawn like any fiber; it is detached, has nothing of the fiber that made the timer but what it captures (no cancel, no deadline, no
/// inherited fiber-locals), and never runs beside itself. Callbacks of one group begin in the order of their moments (to about a microsecond), none before its own. Where there is no memory for their fibers they are late, until there is, and that is said on stderr.
/// They are late, too, while the worker that keeps the time for a group is held by a fiber that computes or blocks the thread: such work is for [`blocking`](crate::blocking()) or a
/// [background group](crate::RuntimeBuilder::background).
///
/// # Examples
/// ```
/// use std::sync::mpsc::channel;
/// use std::time::Duration;
/// let (sender, receiver) = channel();
/// let mut count = 0;
/// let timer = sinew::time::Timer::every(Duration::from_millis(1), move || {
///     count += 1;
///     let _ = sender.send(count);
/// });
/// assert_eq!(receiver.iter().take(3).collect::<Vec<_>>(), [1, 2, 3]);
/// timer.cancel();
/// ```
#[must_use = "a timer that is dropped is cancelled: keep it, or detach it"]
pub struct Timer {
    node: Arc<Node>,
}

/// What [`Timer::cancel`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cancel {
    /// It was waiting, and will not run any more. One made by [`Timer::after`] has never run.
    Stopped,
    /// Its callback runs at this moment, and goes on to its end; it will not run again.
    Running,
    /// It had ended before: it has run, or panicked, or was cancelled, or its runtime was shut down.
    Done,
}

impl Timer {
    /// Runs `f` once, in a fiber, when `delay` has passed.
    ///
    /// # Suspends
    /// No.
    ///
    /// # Panics
    /// If the runtime cannot be started. In one that is being shut down the timer has ended: `f` is dropped unrun. A panic of `f` is reported like that of any fiber that nobody joins.
    #[track_caller]
    pub fn after<F>(delay: Duration, f: F) -> Timer
    where
        F: FnOnce() + Send + 'static,
    {
        Self::new(clock::deadline_ns(delay), 0, Callback::Once(Box::new(f)), Location::caller())
    }

    /// Runs `f` again and again, in a fiber each time, every `period`, first after one.
    ///
    /// It never overlaps itself: moments that come while it runs are skipped, and the rhythm stays as it was. If it panics it stops, since `f` may be half done.
    ///
    /// # Suspends
    /// No.
    ///
    /// # Panics
    /// If `period` is zero. Else as [`after`](Self::after).
    #[track_caller]
    pub fn every<F>(period: Duration, f: F) -> Timer
    where
        F: FnMut() + Send + 'static,
    {
        let period_ns = span_ns(period, "Timer::every");
        Self::new(clock::now_ns().saturating_add(period_ns), period_ns, Callback::Every(Box::new(f)), Location::caller())
    }

    #[track_caller]
    fn new(due_ns: u64, period_ns: u64, callback: Callback, site: &'static Location<'static>) -> Self {
        let groups = or_panic(current_groups(), "sinew::time::Timer");
        let node = Node::new(Service::of(&groups).clone(), due_ns, period_ns, callback, site);
        // If it cannot be armed the runtime is being shut down, and it has ended: as what fibers spawn then.
        let _ = node.arm();
        Timer { node }
    }

    /// Cancels it, and says whether its callback still runs. Can be called by the callback itself.
    ///
    /// What was [`Stopped`](Cancel::Stopped) has been dropped, with all that it captured, when this returns.
    ///
    /// # Suspends
    /// No. It does not wait for a callback that runs.
    pub fn cancel(&self) -> Cancel {
        fork::refuse();
        self.node.cancel()
    }

    /// Lets it go on by itself, for ever if it is one of [`every`](Self::every).
    pub fn detach(self) {
        let timer = ManuallyDrop::new(self);
        // SAFETY: the node is read out of a value that is not dropped, once.
        drop(unsafe { std::ptr::read(&timer.node) });
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever.
        if !fork::is_child() {
            self.node.cancel();
        }
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").field("made_at", &format_args!("{}", self.node.site)).finish_non_exhaustive()
    }
}

enum Callback {
    Once(Box<dyn FnOnce() + Send>),
    Every(Box<dyn FnMut() + Send>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Armed,
    Due,
    Running,
    LastRun,
    Ended,
}

/// One timer.
struct Node {
    entry: Entry,
    phase: Cell<Phase>,
    /// The moment it is armed for.
    due_ns: Cell<u64>,
    /// 0 if it runs once.
    period_ns: u64,
    callback: UnsafeCell<Option<Callback>>,
    site: &'static Location<'static>,
    service: Arc<Service>,
}

// SAFETY: entry, phase and moment are used under the service's lock (I1), the callback, which is `Send`, by one at a time (I2).
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

impl Node {
    fn new(service: Arc<Service>, due_ns: u64, period_ns: u64, callback: Callback, site: &'static Location<'static>) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| Self {
            entry: Entry::new(me.as_ptr().cast()),
            phase: Cell::new(Phase::Armed),
            due_ns: Cell::new(due_ns),
            period_ns,
            callback: UnsafeCell::new(Some(callback)),
            site,
            service,
        })
    }

    /// Puts it into the wheel, and sees to it that the driver looks in time (I3).
    ///
    /// # Errors
    /// If there is no driver, and the runtime is being shut down; the timer has ended then.
    fn arm(self: &Arc<Self>) -> io::Result<()> {
        let mut inner = self.service.inner.lock();
        if self.phase.get() == Phase::LastRun {
            drop(inner);
            self.end();
            return Ok(());
        }
        let due_ns = self.due_ns.get();
        self.phase.set(Phase::Armed);
        // SAFETY: it is not armed, and the wheel's reference keeps it (I4).
        unsafe { inner.wheel.arm(&(*Arc::into_raw(self.clone())).entry, due_ns) };
        let call = inner.call_driver(due_ns);
        drop(inner);
        self.service.make(call)
    }

    fn cancel(&self) -> Cancel {
        let mut inner = self.service.inner.lock();
        match self.phase.get() {
            Phase::Armed => {
                // SAFETY: I1, I4 - the wheel's reference is the caller's now.
                let of_wheel = unsafe { inner.disarm(self) };
                let call = inner.call_if_empty();
                let callback = self.take(Phase::Ended);
                drop(inner);
                self.service.make(call).expect("a driver that is there need not be started");
                // User code, outside the lock; the caller's own reference keeps the node.
                drop((of_wheel, callback));
                Cancel::Stopped
            }
            Phase::Due => {
                let callback = self.take(Phase::Ended);
                drop(inner);
                drop(callback);
                Cancel::Stopped
            }
            Phase::Running | Phase::LastRun => {
                self.phase.set(Phase::LastRun);
                Cancel::Running
            }
            Phase::Ended => Cancel::Done,
        }
    }

    /// Enters a phase in which the callback is the caller's, and takes it. Under the lock.
    fn take(&self, phase: Phase) -> Option<Callback> {
        self.phase.set(phase);
        // SAFETY: I2 - under the lock, by the one that changes the phase.
        unsafe { (*self.callback.get()).take() }
    }

    /// Ends it, and drops its callback. By the one that runs it, or would have.
    fn end(&self) {
        let inner = self.service.inner.lock();
        let callback = self.take(Phase::Ended);
        drop(inner);
        drop(callback);
    }

    /// Arms it for the next moment of its rhythm.
    fn arm_again(self: &Arc<Self>, callback: Callback) {
        // SAFETY: I2 - this is the one that runs it.
        unsafe { *self.callback.get() = Some(callback) };
        let (latest_ns, _) = catch_up(self.due_ns.get(), self.period_ns, clock::now_ns());
        self.due_ns.set(latest_ns.saturating_add(self.period_ns));
        // If it cannot be armed the runtime is being shut down, and it has ended.
        let _ = self.arm();
    }
}

/// What the fiber of a callback runs: the earliest that is due. If it never runs, another one is owed (I5).
struct Runner(Arc<Service>);

impl Runner {
    fn run(self) {
        let runner = ManuallyDrop::new(self);
        // SAFETY: read out of a value that is not dropped, once.
        let service = unsafe { std::ptr::read(&runner.0) };
        if let Some((node, callback)) = service.begin_next() {
            // It goes by the place where the timer was made.
            Me::now().control().set_site(node.site);
            run(&node, callback);
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        inner.owed += 1;
        let call = inner.call_driver(0);
        drop(inner);
        // In a runtime that is being shut down it is refused, and what is owed has ended.
        let _ = self.0.make(call);
    }
}

/// Runs a callback, and sees to what comes after it.
fn run(node: &Arc<Node>, callback: Callback) {
    match callback {
        Callback::Once(f) => {
            let outcome = catch_unwind(AssertUnwindSafe(f));
            node.end();
            outcome.unwrap_or_else(|payload| resume_unwind(payload));
        }
        Callback::Every(mut f) => match catch_unwind(AssertUnwindSafe(&mut f)) {
            Ok(()) => node.arm_again(Callback::Every(f)),
            Err(payload) => {
                node.end();
                quietly(|| drop(f));
                resume_unwind(payload);
            }
        },
    }
}

/// The timers of one group.
struct Service {
    place: Group,
    groups: Weak<Groups>,
    inner: Lock<Inner>,
}

struct Inner {
    wheel: Box<Wheel>,
    /// What has come out of the wheel and waits for a runner (I5).
    due: VecDeque<Arc<Node>>,
    /// Runners that the driver is to start for them.
    owed: usize,
    /// Whether there is a driver, or one is being started.
    driven: bool,
    /// The driver, once it runs.
    driver: Option<Fiber>,
    /// When the driver looks again by itself (I3).
    until_ns: u64,
    /// When the driver leaves, if nothing is armed; `u64::MAX` while something is.
    leaves_ns: u64,
    /// Whether a thread is there to start a driver.
    retried: bool,
}

// SAFETY: the nodes in the wheel are `Send`, and its references to them kept (I4).
unsafe impl Send for Inner {}

/// The node of an entry that has come out of the wheel; it is due, or will never be.
///
/// # Safety
/// It was in the wheel until now. Under the lock.
unsafe fn out_of_wheel(entry: &Entry) -> Arc<Node> {
    // SAFETY: I4 - the wheel's reference goes over.
    let node: Arc<Node> = unsafe { Arc::from_raw(entry.owner().cast()) };
    node.phase.set(Phase::Due);
    node
}

/// What is to be done once the lock is free.
enum Call {
    Nobody,
    Unpark(Fiber),
    Start,
}

impl Service {
    /// Those of the caller's group.
    fn of(groups: &Arc<Groups>) -> &Arc<Service> {
        let group = nearest(groups);
        let service = group.timers.get_or_init(|| {
            let wheel = Wheel::boxed(clock::now_ns());
            let inner = Inner {
                wheel,
                due: VecDeque::new(),
                owed: 0,
                driven: false,
                driver: None,
                until_ns: 0,
                leaves_ns: u64::MAX,
                retried: false,
            };
            let place = Group::numbered(groups, group.index);
            Box::new(Arc::new(Service { place, groups: Arc::downgrade(groups), inner: Lock::new(inner) }))
        });
        service.downcast_ref().expect("the timers of a group are of this file")
    }

    /// Calls the driver.
    ///
    /// # Errors
    /// If it is to be started, and the runtime is being shut down: what was armed has ended then. For want of memory it is tried again, and that is no error.
    fn make(self: &Arc<Self>, call: Call) -> io::Result<()> {
        match call {
            Call::Nobody => Ok(()),
            Call::Unpark(driver) => {
                driver.unpark();
                Ok(())
            }
            Call::Start => match self.start_driver() {
                Err(error) if is_shortage(&error) => Ok(()),
                started => started,
            },
        }
    }

    /// Starts a driver. By the one who has set `driven`; if it is refused, what is to be done then has been done when this returns.
    fn start_driver(self: &Arc<Self>) -> io::Result<()> {
        let driver = Driver { service: self.clone(), left: false };
        let groups = self.groups.upgrade().ok_or_else(|| io::Error::other("the runtime of a timer is gone"))?;
        let settings = Settings {
            name: Some("sinew-timers".into()),
            place: self.place,
            pinned: true,
            at_shutdown: AtShutdown::Refuse,
            ..Settings::default()
        };
        launch_detached(&groups, settings, Inherited::default(), Location::caller(), move || driver.run()).inspect_err(tell_of_shortage)
    }

    /// Has a thread start a driver, as soon as there is memory for one.
    #[cold]
    fn start_driver_later(self: &Arc<Self>) {
        if fork::is_child() || std::mem::replace(&mut self.inner.lock().retried, true) {
            return;
        }
        let service = self.clone();
        if thread::start("sinew-timers".into(), move || service.start_driver_at_last()).is_err() {
            self.inner.lock().retried = false;
        }
    }

    /// On a thread of its own, which may have no block to wait with.
    fn start_driver_at_last(self: &Arc<Self>) {
        let mut pause = RETRY;
        loop {
            std::thread::sleep(pause);
            pause = (pause * 2).min(RETRY_MAX);
            let mut inner = self.inner.lock();
            if inner.driven || (inner.wheel.armed() == 0 && inner.owed == 0) {
                inner.retried = false;
                return;
            }
            let call = inner.call_driver(0);
            drop(inner);
            // If that fails for good, nothing is armed any more.
            let _ = self.make(call);
        }
    }

    /// Whether its group takes no new fibers.
    fn is_stopping(&self) -> bool {
        self.groups.upgrade().is_none_or(|groups| groups.is_stopping())
    }

    /// Ends what is armed, and what nobody was started for.
    fn end_all(&self) {
        let mut inner = self.inner.lock();
        let mut all = inner.take_all();
        let owed = std::mem::take(&mut inner.owed);
        all.extend(inner.due.drain(..owed));
        drop(inner);
        // User code, outside the lock.
        all.into_iter().for_each(|node| quietly(|| node.end()));
    }

    /// Whether a runner is owed; it is the caller's to start.
    fn take_owed(&self) -> bool {
        let mut inner = self.inner.lock();
        let any = inner.owed > 0;
        inner.owed -= usize::from(any);
        any
    }

    /// Takes the earliest that is due, to run its callback; `None` if that was cancelled meanwhile.
    fn begin_next(&self) -> Option<(Arc<Node>, Callback)> {
        let mut inner = self.inner.lock();
        let node = inner.due.pop_front()?;
        if inner.due.is_empty() && inner.due.capacity() > DUE_KEPT {
            inner.due = VecDeque::new();
        }
        let callback = match node.phase.get() {
            Phase::Due => node.take(Phase::Running),
            _ => None,
        };
        drop(inner);
        callback.map(|callback| (node, callback))
    }
}

impl Inner {
    /// Has the driver look at what is due at `due_ns`.
    fn call_driver(&mut self, due_ns: u64) -> Call {
        if !self.driven {
            self.driven = true;
            self.until_ns = 0;
            return Call::Start;
        }
        if due_ns < self.until_ns { self.unpark() } else { Call::Nobody }
    }

    /// Has the driver look when nothing is armed any more, unless it soon does anyway.
    fn call_if_empty(&mut self) -> Call {
        let sleeps_long = || self.until_ns > clock::now_ns().saturating_add(LINGER_NS);
        if self.wheel.armed() == 0 && sleeps_long() { self.unpark() } else { Call::Nobody }
    }

    fn unpark(&mut self) -> Call {
        self.until_ns = 0;
        self.driver.clone().map_or(Call::Nobody, Call::Unpark)
    }

    /// Takes a node out of the wheel, with the wheel's reference.
    ///
    /// # Safety
    /// It is armed, in this wheel.
    unsafe fn disarm(&mut self, node: &Node) -> Arc<Node> {
        // SAFETY: the caller's promise, I4.
        unsafe {
            self.wheel.disarm(&node.entry);
            Arc::from_raw(node.entry.owner().cast())
        }
    }

    /// Moves what is due at `now_ns` from the wheel to `due`, earliest first, and owes as many runners; how many.
    fn take_due(&mut self, now_ns: u64) -> usize {
        let before = self.due.len();
        // SAFETY: it comes out of the wheel.
        self.wheel.advance(now_ns, |entry| self.due.push_back(unsafe { out_of_wheel(entry) }));
        let fresh = self.due.len() - before;
        self.owed += fresh;
        fresh
    }

    /// Takes all there is out of the wheel.
    fn take_all(&mut self) -> Vec<Arc<Node>> {
        let mut all = Vec::with_capacity(self.wheel.armed());
        // SAFETY: it comes out of the wheel.
        self.wheel.drain(|entry| all.push(unsafe { out_of_wheel(entry) }));
        all
    }

    /// When to look again; `None` if nothing has been armed for a while, and then there is no driver any more.
    fn next_look_ns(&mut self, now_ns: u64) -> Option<u64> {
        if self.wheel.armed() != 0 {
            self.leaves_ns = u64::MAX;
            return Some(self.wheel.next_deadline_ns());
        }
        if self.leaves_ns == u64::MAX {
            self.leaves_ns = now_ns.saturating_add(LINGER_NS);
        }
        if now_ns < self.leaves_ns {
            return Some(self.leaves_ns);
        }
        self.leave();
        None
    }

    fn leave(&mut self) -> Option<Fiber> {
        self.driven = false;
        self.leaves_ns = u64::MAX;
        self.driver.take()
    }
}

/// Whether a fiber was refused for want of memory, so that it may be had later.
fn is_shortage(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory
}

/// Says once that timers are late.
#[cold]
fn tell_of_shortage(error: &io::Error) {
    if is_shortage(error) && SHORTAGE.is_news() {
        let _ = writeln!(io::stderr(), "sinew: timers wait: {error}; they run when there is room");
    }
}

/// The driver. If it ends before its time, or never begins, the runtime is being shut down, and what is armed ends with it; or there is no memory, and another one is started later (I6).
struct Driver {
    service: Arc<Service>,
    left: bool,
}

impl Driver {
    fn run(mut self) {
        self.service.inner.lock().driver = Some(current());
        let mut pauses = Pauses::between(RETRY, RETRY_MAX);
        while !cancelled() {
            let now_ns = clock::now_ns();
            let mut inner = self.service.inner.lock();
            let fresh = inner.take_due(now_ns);
            if inner.owed == 0 {
                let Some(until_ns) = inner.next_look_ns(now_ns) else {
                    self.left = true;
                    return;
                };
                inner.until_ns = until_ns;
                drop(inner);
                park_until(Why::At(At::Timer), until_ns);
                continue;
            }
            inner.until_ns = 0;
            drop(inner);
            if fresh == 0 {
                // A runner has come back unrun, for want of a stack. If the pause is cut short the runtime is being shut down.
                let _ = pauses.pause();
            } else {
                pauses = Pauses::between(RETRY, RETRY_MAX);
            }
            self.launch();
        }
    }

    /// Starts the runners that are owed.
    fn launch(&self) {
        let groups = current_groups().expect("a driver runs on a worker");
        let (mut launched, mut pauses) = (0, Pauses::new());
        while self.service.take_owed() {
            launched += 1;
            if launched % LAUNCHES_PER_TURN == 0 {
                yield_now();
            }
            let runner = Runner(self.service.clone());
            let settings = Settings { at_shutdown: AtShutdown::Refuse, ..Settings::default() };
            let refused = launch_detached(&groups, settings, Inherited::default(), Location::caller(), move || runner.run());
            // It is owed again.
            if let Err(error) = refused {
                tell_of_shortage(&error);
                if pauses.pause().is_err() {
                    return;
                }
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let _me = self.service.inner.lock().leave();
        if self.service.is_stopping() {
            self.service.end_all();
        } else {
            self.service.start_driver_later();
        }
    }
}
