//! Making fibers, and waiting for their outcome.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::panic::{Location, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::blocking::asker;
use super::cancel::within;
use super::context::{self, refuse_in_region};
use super::fiber::Fiber;
use super::runtime::{self, current_groups, groups_of_thread};
use super::scope::{Scope, ScopedJoinHandle};
use super::wait::Me;
use crate::base::atomic::Relaxed;
use crate::base::list::List;
use crate::fiber::frame::Frame;
use crate::fiber::local::Inherited;
use crate::fiber::stack::Class;
use crate::fiber::tally::Failure;
use crate::fiber::task::NeverRan;
use crate::fiber::why::Why;
use crate::fiber::{Control, Kind, Verdict, Watcher};
use crate::os::fork;
use crate::sched::group as sched;
use crate::sched::groups::Groups;
use crate::sched::worker::{Worker, here, new_block, recycle};

/// What can be said of a fiber before it is spawned.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) name: Option<Box<str>>,
    pub(crate) class: Option<Class>,
    pub(crate) family: Option<Family>,
    pub(crate) place: Group,
    pub(crate) launch: Launch,
    pub(crate) at_shutdown: AtShutdown,
    pub(crate) pinned: bool,
    pub(crate) quiet: bool,
    /// Its maker has promised that it may move.
    pub(crate) moves: bool,
}

/// What becomes of a fiber that is spawned while its runtime is being shut down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AtShutdown {
    /// It ends unrun, as those do that wait to be run then. The default, for what fibers of that runtime spawn: none of them can know that the shutdown has begun before it is told so.
    #[default]
    EndUnrun,
    /// The same, if its spawner is of that runtime; else it is not made.
    RefuseOthers,
    /// It is not made: an error.
    Refuse,
}

impl AtShutdown {
    /// Whether the caller is given an error, if `groups` are being shut down; and always in a forked child, where none is made.
    #[cold]
    fn refuses(self, groups: &Groups) -> bool {
        let is_mine = |mine: &Arc<Groups>| std::ptr::eq(&raw const **mine, groups);
        match (self, here()) {
            _ if fork::is_child() => true,
            (Self::EndUnrun, _) => false,
            (Self::RefuseOthers, Some(worker)) => !is_mine(worker.groups()),
            (Self::RefuseOthers, None) => !asker().as_ref().is_some_and(is_mine),
            (Self::Refuse, _) => true,
        }
    }
}

/// The group that a fiber is spawned into. See [`Builder::group`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group(Place);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Nearest,
    Any,
    Foreground(usize),
    Background(usize),
}

impl Group {
    /// The spawner's own group; from a plain thread, a foreground group of the NUMA node that it runs at, by turns. The default.
    pub fn nearest() -> Self {
        Self(Place::Nearest)
    }

    /// One of the foreground groups, by turns.
    pub fn any() -> Self {
        Self(Place::Any)
    }

    /// The foreground group of this number, from 0.
    pub fn foreground(number: usize) -> Self {
        Self(Place::Foreground(number))
    }

    /// The background group of this number, from 0; see [`RuntimeBuilder::background`](crate::RuntimeBuilder::background).
    pub fn background(number: usize) -> Self {
        Self(Place::Background(number))
    }

    /// The group of a runtime by its index.
    pub(crate) fn numbered(groups: &Groups, index: usize) -> Self {
        Self(index.checked_sub(groups.foreground).map_or(Place::Foreground(index), Place::Background))
    }

    /// The group of this runtime that is meant, by a caller who is at `worker`, if that is of this runtime.
    #[inline]
    fn find<'a>(self, groups: &'a Groups, worker: Option<&'a Worker>) -> io::Result<&'a sched::Group> {
        match (self.0, worker) {
            (Place::Nearest, Some(worker)) => Ok(worker.group()),
            _ => self.find_elsewhere(groups),
        }
    }

    #[cold]
    fn find_elsewhere(self, groups: &Groups) -> io::Result<&sched::Group> {
        let background = groups.all.len() - groups.foreground;
        let refuse = |kind: &str, number: usize, count: usize| {
            let text =
                format!("Group::{kind}({number}) is refused: the runtime has {count} {kind} group{}", if count == 1 { "" } else { "s" });
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        };
        match self.0 {
            Place::Nearest => Ok(groups.nearest()),
            Place::Any => Ok(groups.any()),
            Place::Foreground(number) if number < groups.foreground => Ok(&groups.all[number]),
            Place::Background(number) if number < background => Ok(&groups.all[groups.foreground + number]),
            Place::Foreground(number) => refuse("foreground", number, groups.foreground),
            Place::Background(number) => refuse("background", number, background),
        }
    }
}

/// How a new fiber begins. See [`Builder::launch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// It is queued, and the spawner goes on. The default.
    #[default]
    Post,
    /// It runs at once, on the spawner's worker, and the spawner is queued as it begins: bthread's urgent start. (So a spawner that may move may go on elsewhere meanwhile.) From a plain thread, and into another group, it is queued; so is every thousandth or so of a chain in which each
    /// dispatches the next, every 33rd where they may move or have hooks, behind those that the chain has kept waiting.
    Dispatch,
}

/// What a fiber that is waited for by its maker takes over from it.
#[derive(Clone, Copy)]
pub(crate) struct Family {
    pub(crate) owner: *const Control,
    /// Open among the owner's frames until the fiber has ended.
    pub(crate) frame: *const Frame,
    /// What the fiber begins with; outlives it.
    pub(crate) root: *const Frame,
}

/// Makes a fiber of a runtime and queues it. Inlined, as all on this way that has types: of the settings most are constants, and that is a fifth of the whole.
///
/// # Safety
/// All that `F` and `T` borrow outlives the fiber: it is `'static`, or the caller does not return before the fiber has ended.
#[inline]
pub(crate) unsafe fn launch<F, T>(
    groups: &Arc<Groups>,
    settings: Settings,
    site: &'static Location<'static>,
    closure: F,
) -> io::Result<Handle<T>>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    // User code first: nothing is half made when a `clone` panics.
    let inherited = context::inherit();
    // SAFETY: the caller's promise.
    unsafe { launch_with(groups, settings, inherited, site, closure) }
}

/// As [`launch`], in the current runtime.
#[inline]
fn launch_here<F, T>(settings: Settings, site: &'static Location<'static>, f: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let default;
    let groups = match here() {
        // Without a count of owners: a fiber keeps its runtime.
        Some(worker) => worker.groups(),
        None => {
            default = current_groups()?;
            &default
        }
    };
    // SAFETY: `F` and `T` are `'static`.
    unsafe { launch(groups, settings, site, f) }.map(JoinHandle)
}

/// As [`launch`], in a runtime that the caller need not be of.
#[inline]
pub(crate) fn spawn_in<F, T>(groups: &Arc<Groups>, site: &'static Location<'static>, f: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let settings = Settings { at_shutdown: AtShutdown::RefuseOthers, ..Settings::default() };
    // SAFETY: `F` and `T` are `'static`.
    unsafe { launch(groups, settings, site, f) }.map(JoinHandle)
}

/// As [`launch`], with these locals.
///
/// # Safety
/// As [`launch`].
#[inline]
unsafe fn launch_with<F, T>(
    groups: &Arc<Groups>,
    settings: Settings,
    inherited: Inherited,
    site: &'static Location<'static>,
    closure: F,
) -> io::Result<Handle<T>>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    // SAFETY: the caller's promise; on failure the fiber was never queued and is taken apart again.
    unsafe {
        let this = here();
        let worker = this.filter(|worker| Arc::ptr_eq(worker.groups(), groups));
        let group = settings.place.find(groups, worker)?;
        let is_late = refuses_fibers(group);
        if is_late && settings.at_shutdown.refuses(groups) {
            return Err(refused());
        }
        let (launch, quiet, at_shutdown) = (settings.launch, settings.quiet, settings.at_shutdown);
        let worker = worker.filter(|worker| std::ptr::eq(worker.group(), group));
        let urgent = worker.filter(|_| launch == Launch::Dispatch && !is_late).and_then(|worker| Some((worker, worker.current()?)));
        if urgent.is_some() {
            refuse_in_region();
        }
        let control = make(this, group, settings, inherited, site, closure)?;
        let handle = Handle::new(control);
        let queued = match (urgent, worker) {
            _ if is_late => false,
            (Some((worker, me)), _) => {
                worker.dispatch(me, control);
                true
            }
            (None, Some(worker)) => worker.adopt(control, quiet),
            (None, None) => push(group, control, quiet),
        };
        if queued {
            return Ok(handle);
        }
        if at_shutdown.refuses(groups) {
            unmake::<F>(control);
            return Err(shut_down());
        }
        end_unrun(control);
        Ok(handle)
    }
}

/// Queues a fiber that is spawned from elsewhere; `false` if no worker is left. Counted before it could end.
///
/// # Safety
/// `make` made it, and nobody but its handle knows of it.
#[must_use]
unsafe fn push(group: &sched::Group, control: &Control, quiet: bool) -> bool {
    group.spawned_outside.fetch_add(1, Relaxed);
    // SAFETY: the caller's promise.
    let queued = unsafe { group.push(control, quiet) };
    if !queued {
        group.spawned_outside.fetch_sub(1, Relaxed);
    }
    queued
}

/// Whether nothing that is made for this group would be run.
#[inline]
fn refuses_fibers(group: &sched::Group) -> bool {
    fork::is_child() || group.is_stopping()
}

/// Makes an unstarted fiber that nobody knows of yet, not in a forked child, with a block of `worker`, whose thread this is, if it is one. One reference is the runtime's, one for the handle.
///
/// # Safety
/// As [`launch`].
#[inline]
unsafe fn make<F, T>(
    worker: Option<&Worker>,
    group: &sched::Group,
    settings: Settings,
    inherited: Inherited,
    site: &'static Location<'static>,
    closure: F,
) -> io::Result<&'static Control>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let block = new_block(worker);
    if block.is_null() {
        return Err(no_block());
    }
    let class = settings.class.unwrap_or(group.settings.class);
    let kind = if settings.moves || group.settings.migrates { Kind::Mover } else { Kind::Fiber };
    // SAFETY: the block came from the pool just now, and the caller vouches for what the closure borrows.
    unsafe {
        let control = &*block;
        let root = settings.family.map_or(std::ptr::null(), |family| family.root);
        control.occupy(kind, 2, class, settings.name, site, root);
        control.locals.put(inherited);
        if settings.pinned {
            control.set_pinned();
        }
        if let Some(family) = settings.family {
            if let Some(tally) = control.tally() {
                tally.enter();
            }
            (*family.frame).enroll(&*family.owner, control);
        }
        control.load(closure);
        control.note_ready();
        Ok(control)
    }
}

/// Takes a fiber apart that could not be queued: its closure, and the runtime's reference.
///
/// # Safety
/// `make` made it with a closure of type `F`, and nobody but its handle knows of it.
#[cold]
unsafe fn unmake<F>(control: *const Control) {
    // SAFETY: the caller's promise.
    unsafe {
        // Dropped last: its destructor may panic; those of inherited locals are caught.
        let _closure = (*control).unload::<F>();
        let _inherited = (*control).locals.take();
        if let Some(tally) = (*control).tally() {
            // The owner is the caller, or waits for a child that is: nobody has to be woken.
            let _ = tally.leave();
        }
        if (*control).release() {
            recycle(control);
        }
    }
}

/// Ends a fiber that was not queued, as a worker ends those that it finds in the queues of a runtime that is being shut down: here, and now, so that nobody has to come by for it. User code runs: the
/// closure's destructor; its panic goes nowhere.
///
/// # Safety
/// `make` made it, and nobody but its handle knows of it.
#[cold]
unsafe fn end_unrun(control: &Control) {
    control.condemn(Verdict::ShutDown);
    let tally = control.tally();
    // SAFETY: the caller's promise; a fiber that is never queued is refused once.
    let _silent = unsafe { (control.table().refuse)(control, NeverRan::shut_down()) };
    if let Some(tally) = tally {
        // As in `unmake`.
        let _ = tally.leave();
    }
    if control.release() {
        // SAFETY: that was the last reference.
        unsafe { recycle(control) };
    }
}

/// Who was told by a `join` that a shutdown has begun lets others run first, as at a cancel point that fails: one that starts anew whatever has failed would hold its worker for ever.
#[cold]
fn let_others_run() {
    if let Some((worker, me)) = here().and_then(|worker| Some((worker, worker.current()?)))
        && !me.must_not_suspend()
    {
        worker.yield_now(me);
    }
}

fn shut_down() -> io::Error {
    io::Error::other("no new fibers: the runtime is being shut down")
}

/// Why no fiber is made any more.
#[cold]
fn refused() -> io::Error {
    if fork::is_child() { io::Error::other(fork::REFUSAL) } else { shut_down() }
}

#[cold]
fn no_block() -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, "no control block for a new fiber: out of memory, or 67 million are alive")
}

/// How a handle stands to the outcome.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// It may ask.
    Open,
    /// It has left a waker.
    Watching,
    /// It has had it.
    Taken,
}

/// The right to one fiber's outcome; what `JoinHandle` and `ScopedJoinHandle` are made of.
pub(crate) struct Handle<T> {
    pub(crate) fiber: Fiber,
    claim: Claim,
    outcome: PhantomData<T>,
}

impl<T> Handle<T> {
    /// # Safety
    /// One reference is handed over, and `T` is what the fiber gives.
    unsafe fn new(control: &Control) -> Self {
        // SAFETY: the caller's promise.
        Self { fiber: unsafe { Fiber::from_reference(control) }, claim: Claim::Open, outcome: PhantomData }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.fiber.control().join.is_done()
    }

    #[inline]
    #[track_caller]
    pub(crate) fn join(&mut self) -> Result<T, Box<dyn Any + Send>> {
        fork::refuse();
        self.unwatch();
        if !self.is_finished() {
            wait_here(self.fiber.control());
        }
        let outcome = self.take();
        if outcome.is_err() && self.fiber.control().failure() == Failure::ShutDown {
            let_others_run();
        }
        outcome
    }

    /// As `join`; cannot fail for want of a control block for the caller, nor because it must not suspend.
    pub(crate) fn join_as(mut self, me: &Me) -> Result<T, Box<dyn Any + Send>> {
        self.unwatch();
        wait_for(self.fiber.control(), me);
        self.take()
    }

    #[inline]
    #[track_caller]
    fn take(&mut self) -> Result<T, Box<dyn Any + Send>> {
        assert!(self.claim != Claim::Taken, "a JoinHandle was joined after it had given its outcome to a poll");
        self.claim = Claim::Taken;
        // SAFETY: the fiber is done, the outcome is this handle's and was not taken before.
        unsafe { self.fiber.control().take_outcome() }
    }

    /// Takes a waker back that an earlier poll left.
    #[inline]
    fn unwatch(&mut self) {
        if self.claim == Claim::Watching {
            self.take_waker_back();
        }
    }

    #[cold]
    fn take_waker_back(&mut self) {
        self.claim = Claim::Open;
        let control = self.fiber.control();
        if control.join.unwatch() {
            // SAFETY: the field is this handle's again.
            drop(unsafe { control.take_watcher() });
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T, Box<dyn Any + Send>>> {
        assert!(self.claim != Claim::Taken, "a JoinHandle was polled after it had given its outcome");
        self.unwatch();
        let control = self.fiber.control();
        if !control.join.is_done() {
            // SAFETY: the fiber is not watched, so the field is this handle's.
            unsafe { control.put_watcher(Watcher::Task(context.waker().clone())) };
            if control.join.watch() {
                self.claim = Claim::Watching;
                return Poll::Pending;
            }
            // SAFETY: it was not published, so it is still this handle's.
            drop(unsafe { control.take_watcher() });
        }
        self.claim = Claim::Taken;
        // SAFETY: the fiber is done, the outcome is this handle's and was not taken before.
        Poll::Ready(unsafe { control.take_outcome() })
    }
}

impl<T> Drop for Handle<T> {
    #[inline]
    fn drop(&mut self) {
        self.unwatch();
        if self.claim == Claim::Open {
            // SAFETY: this is the one handle, no watcher is set, and the outcome was not taken.
            unsafe { self.fiber.control().detach::<T>() };
        }
    }
}

/// Waits until a fiber has ended. By its handle, which has left no waker there.
///
/// # Panics
/// If the caller must not suspend.
#[inline(never)]
#[track_caller]
fn wait_here(control: &Control) {
    wait_for(control, &Me::to_wait());
}

/// As [`wait_here`], by who may suspend.
#[inline]
fn wait_for(control: &Control, me: &Me) {
    // SAFETY: the fiber is not watched, so the field is its handle's (`join.rs`, I1).
    unsafe { control.put_watcher(Watcher::Waiter(me.control())) };
    me.begin_wait(Why::join(control));
    if !control.join.watch() {
        me.abandon_wait();
        // SAFETY: it was not published, so it is still the handle's.
        drop(unsafe { control.take_watcher() });
        return;
    }
    // SAFETY: the wait was begun above; the finisher ends it.
    unsafe {
        match me {
            Me::Fiber(worker, waiter) if !waiter.may_move() => worker.suspend_for(waiter, control),
            // It may have moved since it decided to wait: in the `clone` of what a child inherits, say.
            Me::Fiber(..) | Me::Thread(_) => me.wait(u64::MAX),
        };
    }
}

/// The value, or a panic of the caller's, at its line: a closure of [`Result::unwrap_or_else`] would have one of ours.
#[inline]
#[track_caller]
pub(crate) fn or_panic<T>(result: io::Result<T>, who: &str) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{who}: {error}"),
    }
}

/// The outcome of a fiber whose panic is passed on.
#[track_caller]
pub(crate) fn unwrap_outcome<T>(outcome: Result<T, Box<dyn Any + Send>>) -> T {
    match outcome {
        Ok(value) => value,
        Err(payload) => match payload.downcast::<NeverRan>() {
            Ok(why) => panic!("{why}"),
            Err(payload) => resume_unwind(payload),
        },
    }
}

/// The right to wait for a fiber and have its outcome, as [`std::thread::JoinHandle`].
///
/// Dropping it detaches the fiber. It is a [`Future`] too, so that async code can await a fiber; its output is what [`join`](Self::join) returns.
pub struct JoinHandle<T>(Handle<T>);

// SAFETY: a handle gives out the outcome, which the fiber sent from its own thread; `T` is `Send` by `spawn`'s bound.
unsafe impl<T: Send> Send for JoinHandle<T> {}
// SAFETY: through a shared handle nobody reaches the outcome.
unsafe impl<T: Send> Sync for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// Waits for the fiber to end, and returns its value, or the payload of its panic.
    ///
    /// When it returns, the fiber's closure and its fiber-locals have been dropped. A fiber that could not be run at all gives a [`NeverRan`] as payload. Works in
    /// fibers and on plain threads.
    ///
    /// # Suspends
    /// Yes, until the fiber has ended. No cancel point: a cancelled fiber waits here as any other. To wait for a limited time, or until a cancel, use [`try_block_on`](crate::try_block_on) with `&mut handle`, as below.
    ///
    /// # Panics
    /// Never for the fiber's sake; inside [`no_suspend`](crate::no_suspend), if the fiber has not ended. A fiber that joins itself waits for ever.
    ///
    /// # Examples
    /// ```
    /// let sum = sinew::spawn(|| 1 + 1);
    /// assert_eq!(sum.join().unwrap(), 2);
    /// ```
    ///
    /// With a limit. The handle is kept, so a late fiber can be waited for again, cancelled or let go.
    /// ```
    /// use std::time::Duration;
    /// let mut handle = sinew::spawn(|| sinew::park());
    /// match sinew::timeout(Duration::from_millis(1), || sinew::try_block_on(&mut handle)) {
    ///     Ok(Ok(Ok(()))) => unreachable!("nobody unparks it"),
    ///     Ok(Ok(Err(_payload))) => unreachable!("it does not panic"),
    ///     Ok(Err(_cut)) => unreachable!("nobody cancels the caller"),
    ///     Err(_elapsed) => handle.cancel(),
    /// }
    /// handle.join().unwrap();
    /// ```
    #[inline]
    #[track_caller]
    pub fn join(mut self) -> std::thread::Result<T> {
        self.0.join()
    }

    /// Cancels the fiber, and the fibers of its scopes, for good.
    ///
    /// That is an error, not an unwinding: its [cancel points](crate::cancelled) fail from now on, the one under way included. A fiber that has not started
    /// yet still runs. Fibers that it has [spawned](crate::spawn()) are not cancelled with it.
    ///
    /// So a loop of the fiber's has to end by itself: by an error that it passes on (`?`), or, around [`sleep`](crate::sleep) and [`park`](crate::park), which return nothing, by asking [`cancelled`](crate::cancelled).
    ///
    /// # Suspends
    /// No. [`join`](Self::join) waits for the fiber to end.
    ///
    /// # Examples
    /// ```
    /// let sleeper = sinew::spawn(|| {
    ///     while !sinew::cancelled() {
    ///         sinew::park();
    ///     }
    ///     "cleaned up"
    /// });
    /// sleeper.cancel();
    /// assert_eq!(sleeper.join().unwrap(), "cleaned up");
    /// ```
    pub fn cancel(&self) {
        self.0.fiber.cancel();
    }

    /// Whether the fiber has ended, so that `join` would not wait.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// The fiber itself; std's `thread()`.
    #[doc(alias = "thread")]
    pub fn fiber(&self) -> &Fiber {
        &self.0.fiber
    }
}

impl<T> Unpin for JoinHandle<T> {}

impl<T> Future for JoinHandle<T> {
    type Output = std::thread::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context)
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("fiber", self.fiber()).finish_non_exhaustive()
    }
}

/// Starts a fiber of the current runtime; from a plain thread, of the default one, which starts with its first fiber.
///
/// The contract is that of [`std::thread::spawn`]: the closure is `Send`, and from its first run the fiber stays on one thread, so that values
/// which it makes there need not be `Send`.
///
/// In a runtime that is being [shut down](crate::Runtime::shutdown_timeout) nothing begins to run: `f` is dropped unrun, here, and `join` gives a [`NeverRan`], as it does for fibers that were
/// spawned before and had not begun. A loop that starts again what has failed must ask [`cancelled`](crate::cancelled()), or the shutdown never finishes. To get an error in place of a fiber that never runs, use [`Builder::spawn`].
///
/// # At the end of `main`
/// Nobody waits for a fiber that is not joined, as for a thread. When `main` returns the process ends, and the fibers of the default runtime with it, wherever they are and without their destructors. [`run`] waits for its closure
/// alone, [`scope`](crate::scope) for all that is spawned in it. A [`Runtime`](crate::Runtime) of one's own that is dropped is shut down: it cancels its fibers, and waits for them up to 5 seconds.
///
/// # Suspends
/// No.
///
/// # Panics
/// If the runtime cannot be started or is out of memory; [`Builder::spawn`] gives an error instead.
///
/// A panic of `f` stays in the fiber: [`join`](JoinHandle::join) returns its payload, and where the handle is dropped a line on stderr names the fiber. std's own message names the worker's thread; [`Builder::name`] has a panic hook that names the fiber.
///
/// # Examples
/// ```
/// let handles: Vec<_> = (0..1000).map(|i| sinew::spawn(move || i * 2)).collect();
/// let sum: i32 = handles.into_iter().map(|h| h.join().unwrap()).sum();
/// assert_eq!(sum, 999_000);
/// ```
#[track_caller]
pub fn spawn<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    or_panic(launch_here(Settings::default(), Location::caller(), f), "sinew::spawn")
}

/// Starts many fibers at once: one claim of the queue and one wake call for all of them.
///
/// As [`spawn`] for each closure, in order, but cheaper per fiber, and as many idle workers are woken as there is work for. In a runtime that is being shut down all of them are dropped unrun.
///
/// # Suspends
/// No.
///
/// # Panics
/// As [`spawn`].
///
/// # Examples
/// ```
/// let handles = sinew::spawn_batch((0..100).map(|i| move || i + 1));
/// let sum: i32 = handles.into_iter().map(|h| h.join().unwrap()).sum();
/// assert_eq!(sum, 5050);
/// ```
#[track_caller]
pub fn spawn_batch<I, F, T>(closures: I) -> Vec<JoinHandle<T>>
where
    I: IntoIterator<Item = F>,
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let site = Location::caller();
    let handles = current_groups().and_then(|groups| launch_batch(&groups, &Settings::default(), site, closures));
    or_panic(handles, "sinew::spawn_batch")
}

/// Wakes workers for the fibers that were spawned [quietly](Builder::quiet) in the current runtime; on a plain thread, in the default one. [`Handle::flush`](crate::Handle::flush) does so in any.
///
/// # Suspends
/// No.
///
/// # Examples
/// ```
/// let quiet = |i: u32| sinew::Builder::new().quiet().spawn(move || i * i).unwrap();
/// let squares: Vec<_> = (0..10).map(quiet).collect();
/// sinew::flush();
/// assert_eq!(squares.into_iter().map(|s| s.join().unwrap()).sum::<u32>(), 285);
/// ```
pub fn flush() {
    fork::refuse();
    match here() {
        Some(worker) => worker.groups().flush(),
        None => groups_of_thread().iter().for_each(|groups| groups.flush()),
    }
}

/// Makes fibers and queues them at once; all of them, or none.
fn launch_batch<I, F, T>(
    groups: &Arc<Groups>,
    settings: &Settings,
    site: &'static Location<'static>,
    closures: I,
) -> io::Result<Vec<JoinHandle<T>>>
where
    I: IntoIterator<Item = F>,
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    // User code first: the iterator and `clone` may do anything, panic included, and nothing is half made then.
    let closures: Vec<(F, Inherited)> = closures.into_iter().map(|closure| (closure, context::inherit())).collect();
    let worker = here().filter(|worker| Arc::ptr_eq(worker.groups(), groups));
    let group = settings.place.find(groups, worker)?;
    if refuses_fibers(group) && settings.at_shutdown.refuses(groups) {
        return Err(refused());
    }
    let (batch, mut handles) = (List::new(), Vec::with_capacity(closures.len()));
    for (closure, inherited) in closures {
        // SAFETY: `F` and `T` are `'static`; the fiber is ours until the batch is queued, and the handle takes its reference.
        match unsafe { make(here(), group, settings.clone(), inherited, site, closure) } {
            // SAFETY: as above.
            Ok(control) => unsafe {
                batch.push(std::ptr::from_ref(control).cast_mut());
                handles.push(JoinHandle(Handle::new(control)));
            },
            Err(error) => return Err(unmake_batch::<F>(&batch, error)),
        }
    }
    group.spawned_outside.fetch_add(handles.len() as u64, Relaxed);
    if batch.is_empty() || (!group.is_stopping() && group.push_all(&batch, settings.quiet)) {
        return Ok(handles);
    }
    group.spawned_outside.fetch_sub(handles.len() as u64, Relaxed);
    if settings.at_shutdown.refuses(groups) {
        return Err(unmake_batch::<F>(&batch, shut_down()));
    }
    end_batch_unrun(&batch);
    Ok(handles)
}

#[cold]
fn unmake_batch<F>(batch: &List<Control>, error: io::Error) -> io::Error {
    while !batch.is_empty() {
        // SAFETY: the batch was not queued, so its fibers are known to their handles alone.
        unsafe { unmake::<F>(batch.pop()) };
    }
    error
}

#[cold]
fn end_batch_unrun(batch: &List<Control>) {
    while !batch.is_empty() {
        // SAFETY: the batch was not queued, so its fibers are known to their handles alone, and alive.
        unsafe { end_unrun(&*batch.pop()) };
    }
}

/// The caller's own group, if it is of this runtime, else one by turns.
pub(crate) fn nearest(groups: &Groups) -> &sched::Group {
    let index = here().filter(|worker| std::ptr::eq(&raw const **worker.groups(), groups)).map(|worker| worker.group().index);
    index.map_or_else(|| groups.nearest(), |index| &groups.all[index])
}

/// As [`spawn`](crate::spawn()), but the fiber has no locals from its spawner: for those that serve many, whoever is the first.
#[track_caller]
pub(crate) fn spawn_bare<F>(f: F) -> io::Result<JoinHandle<()>>
where
    F: FnOnce() + Send + 'static,
{
    let site = Location::caller();
    let settings = Settings { at_shutdown: AtShutdown::Refuse, ..Settings::default() };
    // SAFETY: `F` is `'static`.
    let launch = |groups: &Arc<Groups>| unsafe { launch_with(groups, settings, Inherited::default(), site, f) };
    // As in `launch_here`.
    match here() {
        Some(worker) => launch(worker.groups()),
        None => launch(&current_groups()?),
    }
    .map(JoinHandle)
}

/// Makes a detached fiber, for its group's queue: whichever worker has room takes it, and those that come first are taken first.
pub(crate) fn launch_detached<F>(
    groups: &Groups,
    settings: Settings,
    inherited: Inherited,
    site: &'static Location<'static>,
    f: F,
) -> io::Result<()>
where
    F: FnOnce() + Send + 'static,
{
    let worker = here().filter(|worker| std::ptr::eq(&raw const **worker.groups(), groups));
    let group = settings.place.find(groups, worker)?;
    let at_shutdown = settings.at_shutdown;
    // SAFETY: `F` is `'static`; a fiber that is not queued is ended, or taken apart again.
    unsafe {
        let is_late = refuses_fibers(group);
        if is_late && at_shutdown.refuses(groups) {
            return Err(refused());
        }
        let control = make(here(), group, settings, inherited, site, f)?;
        drop(Handle::<()>::new(control));
        if !is_late && push(group, control, false) {
            return Ok(());
        }
        if at_shutdown.refuses(groups) {
            unmake::<F>(control);
            return Err(shut_down());
        }
        end_unrun(control);
        Ok(())
    }
}

/// Runs `f` as a fiber and waits for it; `f` may borrow from the caller.
///
/// From a plain thread this is the way into the default runtime. It waits for `f` alone: fibers that `f` has spawned and not joined go on, and [end with the process](crate::spawn()#at-the-end-of-main); a [`scope`](crate::scope) waits for all of its own.
/// Like the fibers of a [`scope`](crate::scope), `f` is cancelled when the caller is, and
/// the deadline that is in force here is its own too.
///
/// # Suspends
/// Yes, until `f` has ended; on a plain thread it blocks the thread. No cancel point.
///
/// # Panics
/// Passes a panic of `f` on. Also if the runtime cannot be started, is being shut down, or has no memory for the fiber; and inside
/// [`no_suspend`](crate::no_suspend), before `f` is called.
///
/// # Examples
/// ```
/// let words = vec!["plain", "blocking", "code"];
/// let letters = sinew::run(|| words.iter().map(|w| w.len()).sum::<usize>());
/// assert_eq!(letters, 17);
/// ```
#[track_caller]
pub fn run<F, T>(f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let groups = or_panic(current_groups(), "sinew::run");
    run_in(&groups, Location::caller(), f)
}

#[track_caller]
pub(crate) fn run_in<F, T>(groups: &Arc<Groups>, site: &'static Location<'static>, f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    // Before the fiber exists, since it may fail: nothing may panic between the launch and the end of the fiber.
    let me = Me::to_wait();
    let around = me.control().bounds();
    let (frame, root) = (Frame::scope(around), Frame::root(around));
    let family = Family { owner: me.control(), frame: &frame, root: &root };
    let settings = Settings { family: Some(family), at_shutdown: AtShutdown::Refuse, ..Settings::default() };
    let outcome = within(&me, &frame, || {
        // SAFETY: this function waits for the fiber's end whatever happens, so what `f` borrows outlives it, and so do the frames.
        unsafe { launch(groups, settings, site, f) }.map(|handle| handle.join_as(&me))
    });
    unwrap_outcome(or_panic(outcome, "sinew"))
}

/// How a fiber is to be made, as [`std::thread::Builder`].
///
/// # Examples
/// ```
/// let reader = sinew::Builder::new().name("reader").stack_size(64 * 1024).spawn(|| sinew::current().name().map(str::to_owned))?;
/// assert_eq!(reader.join().unwrap().as_deref(), Some("reader"));
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until it spawns"]
pub struct Builder {
    name: Option<Box<str>>,
    stack_bytes: Option<usize>,
    runtime: Option<runtime::Handle>,
    group: Group,
    launch: Launch,
    pinned: bool,
    quiet: bool,
}

impl Builder {
    /// A fiber without a name, with the runtime's stack size.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the fiber, for messages about it and for [`Fiber::name`].
    ///
    /// Threads keep their own names, and std's message about a panic has that of the worker: `thread 'sinew-0.1' panicked`. A panic hook can put the fiber's before it.
    ///
    /// # Examples
    /// ```
    /// let usual = std::panic::take_hook();
    /// std::panic::set_hook(Box::new(move |panic| {
    ///     let fiber = sinew::current();
    ///     eprint!("fiber {} {:?}, spawned at {}: ", fiber.id(), fiber.name(), fiber.spawned_at());
    ///     usual(panic);
    /// }));
    /// let parser = sinew::Builder::new().name("parser").spawn(|| panic!("no such word"))?;
    /// assert!(parser.join().is_err());
    /// # std::io::Result::Ok(())
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into().into_boxed_str());
        self
    }

    /// Asks for this many bytes of stack.
    ///
    /// Sizes are rounded up to a power of two, and to 16 KiB; 0 and more than 1 GiB are errors of [`spawn`](Self::spawn). Up to 960 bytes at the top stay
    /// unused, so that the stacks of many fibers do not meet in the same lines of the CPU's cache.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_bytes = Some(bytes);
        self
    }

    /// Chooses the runtime whose fiber it will be, whoever spawns it. The default is the current one; on a plain thread, the default runtime.
    ///
    /// So that plain threads, and fibers of other runtimes, can choose groups there, [pin](Self::pinned), and spawn [batches](Self::spawn_batch); for fibers that are
    /// [`quiet`](Self::quiet), [`Handle::flush`](crate::Handle::flush) comes after the last.
    ///
    /// # Examples
    /// ```
    /// use sinew::{Builder, Group};
    /// let runtime = sinew::Runtime::builder().workers(1).background(1).build()?;
    /// let report = Builder::new().runtime(&runtime.handle()).group(Group::background(0)).spawn(|| std::thread::current().name().map(str::to_owned))?;
    /// assert_eq!(report.join().unwrap().as_deref(), Some("sinew-b0.0"));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn runtime(mut self, runtime: &runtime::Handle) -> Self {
        self.runtime = Some(runtime.clone());
        self
    }

    /// Chooses the group whose workers may run it. The default is [`Group::nearest`].
    ///
    /// Unless it is [pinned](Self::pinned), an idle worker of another group may take it from there before it has started, if it may [steal](crate::RuntimeBuilder::steal_ratio) there.
    pub fn group(mut self, group: Group) -> Self {
        self.group = group;
        self
    }

    /// Keeps it in its group, whatever happens: nobody steals it from there.
    pub fn pinned(mut self) -> Self {
        self.pinned = true;
        self
    }

    /// Chooses how it begins. The default is [`Launch::Post`].
    pub fn launch(mut self, launch: Launch) -> Self {
        self.launch = launch;
        self
    }

    /// Queues it without waking anybody: who spawns many calls [`flush`] ([`Handle::flush`](crate::Handle::flush) for another [runtime](Self::runtime)) once, after the last. It may start earlier, on a worker that is awake; it is sure to start only after that call.
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Starts the fiber, as [`spawn`](crate::spawn()).
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a stack size or a group that is refused; others if the runtime cannot be started, is being
    /// shut down, or is out of memory.
    #[track_caller]
    pub fn spawn<F, T>(self, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (runtime, settings) = self.settings()?;
        match runtime {
            None => launch_here(settings, Location::caller(), f),
            // SAFETY: `F` and `T` are `'static`.
            Some(runtime) => unsafe { launch(runtime.groups(), settings, Location::caller(), f) }.map(JoinHandle),
        }
    }

    /// Starts many fibers at once, all as described here, as [`spawn_batch`].
    ///
    /// # Suspends
    /// No.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn); and for [`Launch::Dispatch`], since one at most could run at once. None of them has been started then.
    ///
    /// # Examples
    /// ```
    /// let squares = sinew::Builder::new().pinned().spawn_batch((0..10).map(|i: u32| move || i * i))?;
    /// assert_eq!(squares.into_iter().map(|s| s.join().unwrap()).sum::<u32>(), 285);
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn spawn_batch<I, F, T>(self, closures: I) -> io::Result<Vec<JoinHandle<T>>>
    where
        I: IntoIterator<Item = F>,
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (runtime, settings) = self.settings()?;
        if settings.launch == Launch::Dispatch {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "Launch::Dispatch is refused: a batch is queued"));
        }
        launch_batch(&groups_for(runtime)?, &settings, Location::caller(), closures)
    }

    /// Starts a fiber that may go on, after a wait or a yield, on another worker.
    ///
    /// # Safety
    /// The caller promises, for all code that this fiber runs, its dependencies and std included, that between any two points at which it may suspend it keeps nothing that belongs to a thread:
    /// - no value that is not `Send` is alive on the fiber's stack across a suspension: no `Rc`, `RefCell` borrow, `std::sync::MutexGuard`, `thread_rng` handle, span guard of a tracing crate;
    /// - no reference or address of a `thread_local!`, of `errno` or of anything else that hangs at the thread is kept across one, also not by the optimiser: a function that uses a
    ///   thread-local on both sides of a suspension must reach it through a call that is not inlined;
    /// - it does not suspend inside the closure of `LocalKey::with`, of a scoped thread-local, or of a lock that must be released by the thread that took it;
    /// - nothing relies on `std::thread::current()`, thread ids or thread names to stay the same;
    /// - fiber-locals ([`fiber_local!`](crate::fiber_local)) hold `Send` values only.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    #[track_caller]
    pub unsafe fn spawn_migratable<F, T>(self, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (runtime, settings) = self.settings()?;
        let settings = Settings { moves: true, ..settings };
        // SAFETY: `F` and `T` are `'static`; the caller has promised the rest.
        unsafe { launch(&groups_for(runtime)?, settings, Location::caller(), f) }.map(JoinHandle)
    }

    /// Starts a fiber of a scope, as [`Scope::spawn`]; of the scope's runtime, if no [other](Self::runtime) was chosen.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    #[track_caller]
    pub fn spawn_scoped<'scope, F, T>(self, scope: &'scope Scope<'scope, '_>, f: F) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let (runtime, settings) = self.settings()?;
        scope.launch(runtime.as_ref().map(runtime::Handle::groups), settings, Location::caller(), f)
    }

    fn settings(self) -> io::Result<(Option<runtime::Handle>, Settings)> {
        let class = self.stack_bytes.map(Class::for_bytes).transpose()?;
        let Self { name, runtime, group: place, launch, pinned, quiet, .. } = self;
        let at_shutdown = AtShutdown::Refuse;
        Ok((runtime, Settings { name, class, family: None, place, launch, at_shutdown, pinned, quiet, moves: false }))
    }
}

/// The groups of a runtime that was chosen, or of the current one.
fn groups_for(runtime: Option<runtime::Handle>) -> io::Result<Arc<Groups>> {
    runtime.map_or_else(current_groups, |runtime| Ok(runtime.groups().clone()))
}
