//! How the caller waits, be it a fiber or a plain thread.

use std::ptr;
use std::time::{Duration, Instant};

use super::context::{fiber, refuse_in_region, region};
use super::fiber::{Fiber, of_this_thread, with_block};
use crate::base::list::List;
use crate::base::wheel::Entry;
use crate::event::roam::Roam;
use crate::fiber::frame::{Bounds, Limit};
use crate::fiber::state::{Begin, Cause, Ends};
use crate::fiber::why::Why;
use crate::fiber::{Claimed, Control, Kind};
use crate::os::lock::Lock;
use crate::os::{clock, fork, futex};
pub(crate) use crate::sched::worker::make_ready;
use crate::sched::worker::{Worker, here};

/// Who calls.
pub(crate) enum Me {
    Fiber(&'static Worker, &'static Control),
    Thread(Fiber),
}

impl Me {
    pub(crate) fn now() -> Me {
        match fiber() {
            Some((worker, control)) => Me::Fiber(worker, control),
            None => Me::Thread(of_this_thread()),
        }
    }

    /// As `now`, for a caller that is about to wait and has begun nothing yet: panics if it must not suspend.
    #[inline]
    #[track_caller]
    pub(crate) fn to_wait() -> Me {
        let me = Me::now();
        if !matches!(me, Me::Fiber(_, control) if !control.is_held()) {
            refuse_in_region();
        }
        me
    }

    /// As `to_wait`, if the caller is a fiber that nothing refuses to suspend and no deadline is around; so nothing but a cancel can keep it from
    /// waiting, and it may make up its mind under an object's lock.
    #[inline]
    pub(crate) fn unbound() -> Option<Unbound> {
        let (worker, control) = fiber()?;
        let bounds = control.bounds();
        (!control.is_held() && bounds.limit.is_none()).then_some(Unbound { me: Me::Fiber(worker, control), shielded: bounds.shielded })
    }

    pub(crate) fn control(&self) -> &Control {
        match self {
            Me::Fiber(_, control) => control,
            Me::Thread(fiber) => fiber.control(),
        }
    }

    /// Waits until somebody ends the wait that was begun, at most until `deadline_ns`.
    ///
    /// # Safety
    /// The caller is this `Me` and has begun a wait on its own state word that somebody, or the deadline, will end.
    #[inline]
    pub(crate) unsafe fn wait(&self, deadline_ns: u64) -> Cause {
        match self {
            // SAFETY: the caller's promise.
            Me::Fiber(_, control) if control.may_move() => unsafe { worker_now().suspend_until(control, deadline_ns) },
            // SAFETY: the caller's promise.
            Me::Fiber(worker, control) => unsafe { worker.suspend_until(control, deadline_ns) },
            Me::Thread(fiber) => wait_on_thread(fiber.control(), deadline_ns),
        }
    }

    /// Begins a wait that a claim alone ends, or a deadline. By who then waits, when it has queued a waiter where somebody will claim it.
    #[inline]
    pub(crate) fn begin_wait(&self, why: Why) {
        self.control().note_why(why);
        self.control().state.begin_wait();
    }

    /// As `wait`, with a waiter in a queue under `lock`: `withdraw` takes it out when the wait was not ended by a claim (`fiber/waiters.rs`).
    ///
    /// # Safety
    /// As [`wait`](Self::wait); and it is a claimer under `lock` who ends this wait.
    pub(crate) unsafe fn wait_at<Q>(&self, lock: &Lock<Q>, deadline_ns: u64, withdraw: impl FnOnce(&mut Q)) -> Cause {
        // SAFETY: the caller's promise.
        let cause = unsafe { self.wait(deadline_ns) };
        match cause {
            Cause::Woken => self.pass_through(lock),
            _ => withdraw(&mut lock.lock()),
        }
        cause
    }

    /// Sees to it that whoever claimed the caller under `lock` has left it. A fiber has been made ready after that; a thread may be early.
    #[inline]
    pub(crate) fn pass_through<Q>(&self, lock: &Lock<Q>) {
        if self.may_be_early() {
            drop(lock.lock());
        }
    }

    /// Whether a deadline costs it no freedom: a fiber that may move is bound to its worker while one is armed.
    #[inline]
    pub(crate) fn stays(&self) -> bool {
        !matches!(self, Me::Fiber(_, control) if control.may_move())
    }

    /// Whether the caller may go on before whoever claimed it has left the lock under which that was done.
    #[inline]
    pub(crate) fn may_be_early(&self) -> bool {
        matches!(self, Me::Thread(_))
    }

    /// The way into a wait that a cancel or a deadline around the caller cuts short.
    ///
    /// # Errors
    /// If it would be cut short at once. Others have had their turn then, so that a loop that ignores this cannot hog the worker.
    #[inline]
    pub(crate) fn cancel_point(&self) -> Result<CancelPoint<'_>, Cut> {
        let point = CancelPoint { me: self, bounds: self.control().bounds() };
        // Without a deadline there is the cancel alone, which `begin` looks at.
        match point.bounds.limit.and_then(|limit| point.cut_now(limit)) {
            Some(cut) => Err(self.fail(cut)),
            None => Ok(point),
        }
    }

    /// As `cancel_point`, for a call that may find at once what it would wait for: a cancel that has come fails it too.
    pub(crate) fn cancel_point_at_entry(&self) -> Result<CancelPoint<'_>, Cut> {
        let point = self.cancel_point()?;
        if !point.bounds.shielded && self.control().state.is_cancelled() {
            return Err(self.fail(Cut::Cancelled));
        }
        Ok(point)
    }

    #[cold]
    fn fail(&self, cut: Cut) -> Cut {
        // A call that need not wait may fail in a region too; to yield there is not allowed.
        if region().is_none() {
            yield_now();
        }
        cut
    }

    /// Takes back a wait that was begun and that nobody knows of yet.
    pub(crate) fn abandon_wait(&self) {
        let claimed = self.control().state.claim(Cause::Woken);
        debug_assert!(claimed, "a wait that nobody knew of was ended by somebody");
        self.control().state.end_wait();
    }
}

/// Fails if a cancel point of the caller is to fail at its entry. For calls that may be done at once, and are cancel points all the same: without a
/// deadline it is a look at two words. The wait that may follow has its own [`Me::cancel_point`].
#[inline]
#[track_caller]
pub(crate) fn enter_cancel_point() -> Result<(), Cut> {
    let free = match fiber() {
        Some((_, control)) => is_free(control),
        None => thread_is_free(),
    };
    if free { Ok(()) } else { fail_at_entry() }
}

/// As `enter_cancel_point`, of a call that others are kept waiting by if it is made over and over and never has to wait: then it lets them run first, from time to time.
#[inline]
#[track_caller]
pub(crate) fn enter_counted_cancel_point() -> Result<(), Cut> {
    let free = match fiber() {
        Some((worker, _)) if worker.count_call() => return enter_after_look(),
        Some((_, control)) => is_free(control),
        None => thread_is_free(),
    };
    if free { Ok(()) } else { fail_at_entry() }
}

/// All of it out of line: so the way without keeps nothing over a call.
#[cold]
#[inline(never)]
#[track_caller]
fn enter_after_look() -> Result<(), Cut> {
    let_others_run();
    enter_cancel_point()
}

/// Counts a call that never has to wait, and is no cancel point; from time to time it lets others run first.
#[inline]
#[track_caller]
pub(crate) fn enter_counted() {
    if fiber().is_some_and(|(worker, _)| worker.count_call()) {
        let_others_run();
    }
}

/// Lets others run, if the caller has made all calls since the last look, and may suspend.
#[cold]
#[inline(never)]
#[track_caller]
fn let_others_run() {
    if let Some((worker, control)) = fiber()
        && worker.look_at_calls(control)
    {
        worker.yield_now(control);
        // One that may move may be elsewhere by now.
        worker_now().begin_calls();
    }
}

#[inline]
#[track_caller]
fn thread_is_free() -> bool {
    fork::refuse();
    with_block(is_free).unwrap_or(true)
}

/// Whether neither a cancel nor a deadline, passed or not, is there to cut the caller's waits short.
#[inline]
fn is_free(control: &Control) -> bool {
    let bounds = control.bounds();
    bounds.limit.is_none() && (bounds.shielded || !control.state.is_cancelled())
}

#[cold]
#[inline(never)]
fn fail_at_entry() -> Result<(), Cut> {
    Me::now().cancel_point_at_entry().map(drop)
}

/// What cut a wait short: what a [cancel point](crate::cancelled) fails with that can fail for nothing else.
///
/// As an [`io::Error`](std::io::Error) it is what I/O that is cut short gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// The caller was [cancelled](crate::JoinHandle::cancel).
    Cancelled,
    /// The deadline of a [`timeout`](crate::timeout) around the caller passed.
    TimedOut,
}

/// A caller whose waits a cancel alone cuts short.
pub(crate) struct Unbound {
    pub(crate) me: Me,
    shielded: bool,
}

impl Unbound {
    /// Its [`cancel_point`](Me::cancel_point), which does not fail.
    #[inline]
    pub(crate) fn cancel_point(&self) -> CancelPoint<'_> {
        CancelPoint { me: &self.me, bounds: Bounds { limit: None, shielded: self.shielded } }
    }
}

/// A wait that may be cut short, before it has begun.
pub(crate) struct CancelPoint<'a> {
    me: &'a Me,
    bounds: Bounds<'a>,
}

impl CancelPoint<'_> {
    /// Whether a wait would be cut short at once. A deadline that does so is told.
    fn cut_now(&self, limit: &Limit) -> Option<Cut> {
        if !self.bounds.shielded && self.me.control().state.is_cancelled() {
            return Some(Cut::Cancelled);
        }
        (clock::now_ns() >= limit.deadline_ns).then(|| {
            limit.note_cut();
            Cut::TimedOut
        })
    }

    /// Begins the wait; `false` if an earlier `unpark` has been used up for it.
    ///
    /// # Errors
    /// As [`Me::cancel_point`]: a cancel has come meanwhile.
    #[inline]
    pub(crate) fn begin(&self, why: Why, ends: Ends) -> Result<bool, Cut> {
        match self.begin_by(why, ends) {
            Begin::Wait => Ok(true),
            Begin::AlreadyUnparked => Ok(false),
            Begin::AlreadyCancelled => Err(self.fail()),
        }
    }

    #[inline]
    fn begin_by(&self, why: Why, ends: Ends) -> Begin {
        self.me.control().note_why(why);
        let ends = if self.bounds.shielded { ends } else { ends.or_cancel() };
        self.me.control().state.begin(ends)
    }

    /// Begins a wait that a claim ends; `false` if a cancel has come meanwhile. It does not yield, so it may be called under the lock of the object where the waiter is
    /// queued. Who gets `false` takes the waiter out, unlocks, and [fails](Self::fail).
    #[inline]
    #[must_use]
    pub(crate) fn begin_held(&self, why: Why) -> bool {
        self.begin_by(why, Ends::BY_CLAIM) == Begin::Wait
    }

    /// Fails for a cancel that has come before the wait; others have had their turn then.
    #[cold]
    pub(crate) fn fail(&self) -> Cut {
        self.me.fail(Cut::Cancelled)
    }

    /// Waits until somebody ends the wait that was begun, at most until `deadline_ns`, the wait's own.
    ///
    /// # Safety
    /// As [`Me::wait`].
    #[inline]
    pub(crate) unsafe fn wait(&self, deadline_ns: u64) -> Result<Cause, Cut> {
        // SAFETY: the caller's promise.
        unsafe { self.wait_unnoted(deadline_ns) }.map_err(|cut| self.note(cut))
    }

    /// As [`wait`](Self::wait), by who may yet find that it was not cut short after all. If it was, it [notes](Self::note) that.
    ///
    /// # Safety
    /// As [`Me::wait`].
    #[inline]
    pub(crate) unsafe fn wait_unnoted(&self, deadline_ns: u64) -> Result<Cause, Cut> {
        let limit = self.bounds.limit.filter(|limit| limit.deadline_ns < deadline_ns);
        let until_ns = limit.map_or(deadline_ns, |limit| limit.deadline_ns);
        // SAFETY: the caller's promise.
        match (unsafe { self.me.wait(until_ns) }, limit) {
            (Cause::Cancelled, _) => Err(Cut::Cancelled),
            (Cause::TimedOut, Some(_)) => Err(Cut::TimedOut),
            (cause, _) => Ok(cause),
        }
    }

    /// Tells the deadline around the caller that it has cut a wait short, if it was that.
    pub(crate) fn note(&self, cut: Cut) -> Cut {
        if let (Cut::TimedOut, Some(limit)) = (cut, self.bounds.limit) {
            limit.note_cut();
        }
        cut
    }

    /// Whether a cancel cuts the wait short.
    pub(crate) fn heeds_cancel(&self) -> bool {
        !self.bounds.shielded
    }

    /// What has cut a wait short that nothing else ended before its time; a deadline that did so is told.
    #[cold]
    pub(crate) fn what_cut(&self) -> Cut {
        if self.heeds_cancel() && self.me.control().state.is_cancelled() { Cut::Cancelled } else { self.note(Cut::TimedOut) }
    }

    /// The earlier of `deadline_ns` and the deadline around the caller.
    pub(crate) fn until_ns(&self, deadline_ns: u64) -> u64 {
        self.bounds.limit.map_or(deadline_ns, |limit| limit.deadline_ns.min(deadline_ns))
    }

    /// As [`wait`](Self::wait), with a waiter in a queue under `lock`, as [`Me::wait_at`].
    ///
    /// # Safety
    /// As [`Me::wait_at`].
    pub(crate) unsafe fn wait_at<Q>(&self, lock: &Lock<Q>, deadline_ns: u64, withdraw: impl FnOnce(&mut Q)) -> Result<Cause, Cut> {
        // SAFETY: the caller's promise.
        let ended = unsafe { self.wait(deadline_ns) };
        match ended {
            Ok(Cause::Woken) => self.me.pass_through(lock),
            _ => withdraw(&mut lock.lock()),
        }
        ended
    }

    /// As [`wait_at`](Self::wait_at), by a fiber that may move and waits at `roam`. That keeps the deadline too, so that no worker's timers bind the fiber.
    ///
    /// # Safety
    /// As [`Me::wait_at`]; and the roam outlives the wait.
    pub(crate) unsafe fn wait_at_roam<Q>(
        &self,
        roam: &Roam,
        lock: &Lock<Q>,
        deadline_ns: u64,
        withdraw: impl FnOnce(&mut Q),
    ) -> Result<Cause, Cut> {
        let (control, until_ns) = (self.me.control(), self.until_ns(deadline_ns));
        if until_ns == u64::MAX {
            // SAFETY: the caller's promise.
            return unsafe { self.wait_at(lock, deadline_ns, withdraw) };
        }
        let in_frame = Entry::new(ptr::from_ref(control).cast());
        // SAFETY: one that waits and has no outcome yet is in user code: the slot is free until the wait is over.
        let entry = if control.join.is_done() { &in_frame } else { unsafe { control.new_deadline() } };
        // SAFETY: the caller's promise; the entry is a new one, and is disarmed before this returns, unless it has fired: then it is in the wheel no more.
        let cause = unsafe {
            roam.arm(entry, until_ns);
            let cause = self.me.wait(u64::MAX);
            if cause != Cause::TimedOut {
                roam.disarm(entry);
            }
            cause
        };
        if cause != Cause::Woken {
            withdraw(&mut lock.lock());
        }
        match cause {
            Cause::Cancelled => Err(Cut::Cancelled),
            Cause::TimedOut if until_ns < deadline_ns => Err(self.note(Cut::TimedOut)),
            cause => Ok(cause),
        }
    }
}

/// Those that one deed wakes: claimed under an object's lock, made ready after it.
#[must_use]
pub(crate) struct Wakes {
    fibers: List<Control>,
}

impl Wakes {
    pub(crate) fn none() -> Self {
        Self { fibers: List::new() }
    }

    /// One more. A thread is woken at once: its block is not ours to link, and it passes through the lock anyway (`fiber/waiters.rs`, I4).
    pub(crate) fn add(&self, claimed: Claimed) {
        match claimed.kind {
            Kind::Thread => make_ready(claimed),
            // SAFETY: F1 - a claimed fiber is ours, and in no list, until it is made ready.
            Kind::Fiber | Kind::Mover => unsafe { self.fibers.push(claimed.control.cast_mut()) },
        }
    }

    /// Makes them ready, in order. Without the lock.
    pub(crate) fn pay(self) {
        loop {
            let control = self.fibers.pop();
            if control.is_null() {
                break;
            }
            // SAFETY: it was claimed when it was added.
            make_ready(unsafe { Claimed::again(control) });
        }
    }
}

/// The worker that the caller, a fiber, is at now: one that may move may have done so since it last asked.
fn worker_now() -> &'static Worker {
    here().expect("a fiber runs on a worker")
}

#[inline(never)]
fn wait_on_thread(me: &Control, deadline_ns: u64) -> Cause {
    while let Some(word) = me.state.waiting() {
        futex::wait(me.state.word(), word, deadline_ns);
        if deadline_ns != u64::MAX && clock::now_ns() >= deadline_ns {
            // Lost or won, the wait is over now.
            let _ = me.state.claim(Cause::TimedOut);
        }
    }
    me.state.end_wait()
}

/// The caller's own handle: the running fiber, or the plain thread.
pub fn current() -> Fiber {
    match Me::now() {
        Me::Thread(fiber) => fiber,
        Me::Fiber(_, control) => {
            control.retain();
            // SAFETY: the reference was taken just now.
            unsafe { Fiber::from_reference(control) }
        }
    }
}

/// Waits until the caller is [unparked](Fiber::unpark); returns at once if it was since its last park.
///
/// Unlike [`std::thread::park`] it does not wake spuriously. On a plain thread it parks the thread.
///
/// # Suspends
/// Yes, until `unpark`. A [cancel point](crate::cancelled): a cancelled park returns at once, and leaves an `unpark` that came before for later. **So a loop around it spins from then on**, unless it asks [`cancelled`](crate::cancelled).
///
/// # Examples
/// ```
/// let sleeper = sinew::spawn(|| sinew::park());
/// sleeper.fiber().unpark();
/// sleeper.join().unwrap();
/// ```
#[track_caller]
pub fn park() {
    park_until(Why::Park, u64::MAX);
}

/// Waits until the caller is [unparked](Fiber::unpark), at most for `timeout`.
///
/// # Suspends
/// Yes, until `unpark` or the time-out. A cancel point, as [`park`].
#[track_caller]
pub fn park_timeout(timeout: Duration) {
    park_until(Why::Park, clock::deadline_ns(timeout));
}

/// Parks, for a reason of one's own, until `deadline_ns`.
#[track_caller]
pub(crate) fn park_until(why: Why, deadline_ns: u64) {
    let me = Me::to_wait();
    let Ok(point) = me.cancel_point() else { return };
    if point.begin(why, Ends::BY_UNPARK) == Ok(true) {
        // SAFETY: the park was begun above; `unpark`, a cancel or the deadline ends it.
        let _ = unsafe { point.wait(deadline_ns) };
    }
}

/// Lets every other ready fiber of this worker run first; on a plain thread, yields the thread.
///
/// It is no cancel point. It is fair: the caller goes to the end of the queue. Also timers, fibers woken by other threads and fibers not yet started get their turn, however
/// many fibers do nothing but yield.
///
/// # Suspends
/// Yes, until its turn comes again.
#[inline]
#[track_caller]
pub fn yield_now() {
    match fiber() {
        Some((worker, me)) => worker.yield_now(me),
        None => yield_thread(),
    }
}

/// Out of line, as all that fibers do not need: a larger frame of `yield_now` is one more line of every waiting stack to fetch.
#[cold]
#[inline(never)]
#[track_caller]
fn yield_thread() {
    fork::refuse();
    refuse_in_region();
    std::thread::yield_now();
}

/// The home of fibers of the caller's worker; null on a plain thread.
pub(crate) fn home() -> *const () {
    here().map_or(ptr::null(), |worker| ptr::from_ref(worker.seat()).cast())
}

/// Whether the caller may wait here: it is in no region that forbids it.
pub(crate) fn may_wait() -> bool {
    region().is_none()
}

/// Waits for `duration`; never less, by the monotonic clock.
///
/// On a plain thread it blocks the thread.
///
/// In a fiber it is late by what its worker does at that moment. And a worker at which more than 64 fibers sleep, or wait with a time limit, gets up for them once in 180 us at most, so that it does for several at once: where their
/// moments are dense, each may be late by up to that, half of it on average. Where one must be met exactly beside so many, a plain thread can sleep.
///
/// # Suspends
/// Yes. A zero duration is a [`yield_now`]. A [cancel point](crate::cancelled): cut short, it returns at once, before its time.
/// **In a fiber that is cancelled, or past its deadline, every `sleep` returns at once: `loop { sleep(d); .. }` spins from then on**, and a shutdown waits for it in vain. Such a loop asks [`cancelled`](crate::cancelled), or is one of
/// `interval(d).tick()?`, which [fails](crate::time::Interval::tick) then.
///
/// # Examples
/// ```
/// use std::time::{Duration, Instant};
/// let before = Instant::now();
/// sinew::run(|| sinew::sleep(Duration::from_millis(2)));
/// assert!(before.elapsed() >= Duration::from_millis(2));
/// ```
#[track_caller]
pub fn sleep(duration: Duration) {
    if duration.is_zero() {
        return yield_now();
    }
    let _ = sleep_until_ns(clock::deadline_ns(duration));
}

/// Waits until `deadline`; a past one is a [`yield_now`]. It may be as late as a [`sleep`].
///
/// # Suspends
/// Yes. A cancel point, as [`sleep`].
#[track_caller]
pub fn sleep_until(deadline: Instant) {
    sleep(deadline.saturating_duration_since(Instant::now()));
}

/// Waits until `deadline_ns`.
///
/// # Errors
/// If it was cut short.
#[track_caller]
pub(crate) fn sleep_until_ns(deadline_ns: u64) -> Result<(), Cut> {
    let me = Me::to_wait();
    let point = me.cancel_point()?;
    if point.begin(Why::Sleep, Ends::BY_CLAIM)? {
        // SAFETY: the wait was begun above; a cancel or the deadline ends it.
        unsafe { point.wait(deadline_ns) }?;
    }
    Ok(())
}
