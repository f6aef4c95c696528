//! One worker: a thread that runs fibers, until none is left and it may leave.
//!
//! Its loop stands on the thread's own stack. A fiber that suspends goes straight to the next ready one, if there is one and the turn's budget
//! lasts, else back to the loop, which looks at everything else: inbox, timers, the group, idle stacks, sleep. So a hop costs one switch,
//! and no amount of ready fibers hides the rest of the world for more than `TURN` switches.
//!
//! # Picture
//! ```text
//!   loop:   mail -> I/O -> timers -> [every other turn: group, oldest child] -> ready -> newest child -> group -> steal -> spin -> sleep
//!             |                                                            |
//!             |  enter                                                     v
//!             +------------------------------------------------------->  fiber -> fiber -> fiber
//!                                                    (TURN at most)        |                 |
//!             ^------------------------------------------------------------+-----------------+
//! ```
//!
//! # Invariants
//! I1. Everything here is used by one thread. Fibers reach it through [`here`]: a settled one has the same for life (laws F5, R1), one that may move asks again after each suspension.
//! I2. No reference into a `UnsafeCell` of this file is alive when user code runs or a stack is switched.
//! I3. `current` is the fiber whose stack this thread stands on; null in the loop.

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::ptr;
use std::sync::Arc;

use crate::base::atomic::{AcqRel, Acquire, Relaxed, spin_loop, thread_local};
use crate::base::deque::{Deque, Stolen};
use crate::base::list::List;
use crate::base::prefetch::prefetch;
use crate::base::wheel::Entry;
use crate::event::source::{SOURCE_GAP_NS, SOURCE_TURNS, Source};
use crate::event::timers::Timers;
use crate::fiber::hooks::{Region, When};
use crate::fiber::stack::{self, CLASSES, Stack};
use crate::fiber::state::Cause;
use crate::fiber::switch::{FloatControl, leave_for_good, prepare, switch_keeping_float};
use crate::fiber::task::{NeverRan, quietly};
use crate::fiber::{Claimed, Control, Kind, Verdict, Watcher, pool};
use crate::os::{audit, clock, fork, futex};
use crate::sched::cancel::cancel_all;
use crate::sched::group::{CHILDREN_MAX, Group, Rest, Seat, add, steal_one};
use crate::sched::groups::Groups;
use crate::sched::settings::{Policy, Queue, Spin};
use crate::sched::slot::ASLEEP;

/// Switches from fiber to fiber before the loop looks at everything else: half a microsecond of yields. A look costs about 10 ns.
const TURN: u32 = 32;

/// I/O calls of one worker's fibers that are done at once before the others, timers and other descriptors get their turn: else a fiber whose peer is always ahead of it would hold the worker for ever. Arbitrary:
/// some 50 us of system calls.
const GIFTS: u32 = 32;

/// Fibers that are ready, or have asked the ring for something in this turn, from which on the ring is asked for what could be tried. A suspension costs more than a system call's share: one stream of 4 KiB writes between two fibers of
/// one worker had 0.24 GB/s by the ring, 0.86 by plain calls.
const RING_SHARERS: usize = 4;

/// How long a heavy worker waits for others to take what it was woken for: what flare polls.
const SPIN_NS: u64 = 5_000;
/// Pauses between two looks of one that polls. A pair of fibers on two workers talks in 0.6 us with 2 to 4, in 1.1-2.4 with flare's 16.
const SPIN_PAUSES: u32 = 4;
/// What it costs to wake a sleeper, until that was measured, and the bounds of what is believed: about what a futex wake takes on a quiet machine, and what it took here on a busy one.
/// A poll in vain is not free: a core that polled before it slept is woken later. An unpark by a thread, 1,000 a second, took 12.0 us with a poll before each sleep and 7.5 without (2
/// virtual cores, medians of 1,500).
const WAKE_COST_NS: u64 = 10_000;
const WAKE_COST_MIN_NS: u64 = 5_000;
const WAKE_COST_MAX_NS: u64 = 50_000;
/// Looks of a worker that expects mail, and pauses before each: about a microsecond.
const MAIL_LOOKS: u32 = 24;
const MAIL_PAUSES: u32 = 2;
/// How long it polls without a system call.
const SPIN_ALONE_NS: u64 = 2_000;
/// A poll shorter than this is none.
const SPIN_LEAST_NS: u64 = 2_000;

/// Fibers of a long group queue that a worker takes at once, at most. Arbitrary: the queue's lock costs as much as a short fiber.
const TAKE_MAX: usize = 16;

/// Rounds of the loop after which the policy is turned round for one. flare's number.
const ROUNDS: u32 = 8;
/// Fibers that a worker runs before it looks at what any worker may take, also if its rounds are long. Go's and tokio's number.
const TICKS: u32 = 61;
/// Fibers woken last that run first, in a row. Arbitrary: a pair that talks stays together, and others wait for a few microseconds at most.
const NEXT_RUNS: u32 = 32;
/// Fibers that a thief takes at once, at most, beside the one it runs. Arbitrary: half of a full queue is more than it runs in a while.
const STEAL_MAX: usize = 32;
/// Strides of the search for a victim. Primes, so that one that does not divide the number of workers meets all of them.
const STRIDES: [usize; 4] = [3, 5, 7, 11];

/// Placement: a worker with this many settled fibers above its group's mean, and an eighth of the mean, leaves unstarted ones to idle lighter workers.
/// Fork-join trees stay below it.
const HEAVY_BUSY: usize = 16;
/// The same, for a worker that has started few fibers since it last slept: an almost idle runtime spreads what comes evenly.
const HEAVY_RESTED: usize = 2;
/// Fibers started since the last sleep from which on a worker counts as busy.
const RESTED_STARTS: u32 = 16;

/// A worker with many deadlines gets up for them at most once in so long: where they are dense, several are due by then. 100,000 sleeps of up to a second on 2 workers: some
/// 100,000 futex waits without, 16,000 with.
const ALARM_GAP_NS: u64 = 120_000;
/// Deadlines up to which each is met exactly. Arbitrary: with so few, a fiber that sleeps again and again for less than the gap is the rule, and sleeps that happen to be dense are rare.
const ALARM_FEW: usize = 64;

/// Stacks that nobody has used for so long give their pages back.
const TRIM_PERIOD_NS: u64 = 1_000_000_000;
/// Warm stacks per size that an idle worker keeps.
const STACKS_KEPT: usize = 8;

thread_local! {
    static HERE: Cell<*const Worker> = const { Cell::new(ptr::null()) };
}

/// The worker whose thread this is.
///
/// The one door to the runtime's thread-locals (law R1). Not inlined, and opaque by the empty assembly: else the compiler may keep the
/// thread-local's address over a switch (`inline(never)` alone does not stop it at -O3).
#[inline(never)]
pub(crate) fn here() -> Option<&'static Worker> {
    // Never an error with std: what has no destructor is not destroyed. shuttle's thread-locals end with their thread.
    let mut worker = HERE.try_with(Cell::get).unwrap_or(ptr::null());
    // SAFETY: no instruction at all; `worker` becomes a value the compiler knows nothing of.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) worker, options(nostack, preserves_flags)) };
    // SAFETY: set while `Worker::run` runs on this thread, which is longer than any of its fibers; the reference does not leave the thread.
    unsafe { worker.as_ref() }
}

/// In a forked child: its one thread is no worker, whatever it was in the parent.
pub(crate) fn forget_here() {
    let _ = HERE.try_with(|here| here.set(ptr::null()));
}

/// Gives back a control block whose last owner has gone.
///
/// # Safety
/// `Control::release` said so.
pub(crate) unsafe fn recycle(control: *const Control) {
    // SAFETY: the caller's promise; the borrow of the cache ends here (I2).
    unsafe {
        (*control).vacate();
        match here() {
            Some(worker) => (*worker.blocks.get()).give(control.cast_mut()),
            // Its lock may be held for ever by a thread that is not there.
            None if fork::is_child() => {}
            None => pool::give_shared(control.cast_mut()),
        }
    }
}

/// A free control block, on the thread of `worker` if it is one; null when there can be no more.
#[inline]
pub(crate) fn new_block(worker: Option<&Worker>) -> *mut Control {
    match worker {
        // SAFETY: I1, and the borrow ends here (I2).
        Some(worker) => unsafe { (*worker.blocks.get()).take() },
        None => pool::take_shared(),
    }
}

/// Pays what a claim owes: the fiber becomes ready on its worker, the thread wakes.
#[inline]
pub(crate) fn make_ready(claimed: Claimed) {
    let Claimed { control, kind } = claimed;
    // SAFETY: a claimed fiber is ours until it is queued, so its block is alive and settled; a claimed thread's block is a
    // valid one for ever (`pool`), and a wake too many is harmless.
    unsafe {
        if kind == Kind::Thread {
            futex::wake_one((*control).state.word());
            return;
        }
        (*control).note_ready();
        if kind == Kind::Mover {
            if (*control).state.call() {
                find_place(control);
            }
            return;
        }
        let home = (*control).home().cast::<Seat>();
        match here() {
            Some(worker) if ptr::eq(worker.seat(), home) => worker.ready.push(control.cast_mut()),
            _ => (*home).deliver(control),
        }
    }
}

/// Puts a ready fiber that may move where a worker finds it.
///
/// # Safety
/// The fiber is the caller's, and has left its stack.
unsafe fn find_place(control: *const Control) {
    // SAFETY: the caller's promise; seats are never freed, and a group lives while any of its fibers does.
    unsafe {
        let home = (*control).home().cast::<Seat>();
        let group = &*(*home).group();
        match here() {
            Some(worker) if (*control).is_bound() && ptr::eq(worker.seat(), home) => worker.ready.push(control.cast_mut()),
            _ if (*control).is_bound() => (*home).deliver(control),
            Some(worker) if ptr::eq(worker.group(), group) => worker.take_in(control),
            _ => {
                // Until the push is over: the fiber may have ended by then, and its runtime with it.
                let _kept = group.groups();
                let queued = group.push(control, false);
                assert!(queued, "no worker leaves before the last fiber that may move");
            }
        }
    }
}

/// One worker.
pub(crate) struct Worker {
    current: Cell<*const Control>,
    /// Where the loop goes on.
    sp: Cell<*mut u8>,
    ready: List<Control>,
    /// Switches left in this turn.
    budget: Cell<u32>,
    turn: Cell<u32>,
    /// Started fibers that have not ended.
    settled: Cell<usize>,
    /// Fibers started since it last slept.
    starts: Cell<u32>,
    /// It has just spun, slept, or come: who does so with work wakes another if there is more (law S1). What was announced while this one was being started started nobody else.
    rested: Cell<bool>,
    /// Its last poll was ended by mail.
    mail_pays: Cell<bool>,
    /// How long it polls before it sleeps: as long as a wake costs, while that pays; half as long after each poll in vain, until a sleep was so short that a poll would have been better.
    spin_ns: Cell<u64>,
    /// What a wake of this worker costs, by its last ones.
    wake_cost_ns: Cell<u64>,
    /// A pusher claimed it while it was idle, and counts on it to take unstarted fibers.
    must_take: Cell<bool>,
    /// It leaves the group's work to a lighter worker and goes to sleep: it does not look at that work while somebody is on the way.
    deferred: Cell<bool>,
    /// It has cancelled its fibers, since the runtime is being shut down.
    wound_up: Cell<bool>,
    /// A stack was given back while fibers waited for one.
    feed: Cell<bool>,
    /// The stack of a fiber that was ended without having run; the loop finds out whose it is.
    left_stack: Cell<Option<Stack>>,
    /// The innermost region in which the current fiber must not suspend. No other fiber runs before it is left.
    region: Cell<Option<Region>>,
    /// When it last got up for a deadline.
    alarm_ns: Cell<u64>,
    /// When idle stacks give their pages back; `u64::MAX` if none have to.
    trim_ns: Cell<u64>,
    stacks: UnsafeCell<stack::Cache>,
    blocks: UnsafeCell<pool::Cache>,
    timers: UnsafeCell<Timers>,
    /// Where its fibers wait for I/O, once one has.
    source: UnsafeCell<Option<Source>>,
    /// Its fibers that wait there.
    source_waits: Cell<usize>,
    /// I/O that did not have to wait, since a fiber last let others run for it.
    gifts: Cell<u32>,
    /// A fiber that may move, has come back to the loop, and has not been seen to yet.
    left: Cell<*const Control>,
    /// That one yielded: it is ready. Else it waits.
    left_ready: Cell<bool>,
    /// A fiber that runs before all others: one that was dispatched by another that had to leave by the loop.
    urgent: Cell<*const Control>,
    /// What any worker may take is due before its own fibers.
    others_due: Cell<bool>,
    /// They were the first in the last turn.
    others_had: Cell<bool>,
    /// Whose turn it is among these: the oldest child, before the group's queue. Not by the number of the round: where others are due in every eighth, that is always the same.
    child_next: Cell<bool>,
    /// And among its own: those that may move, before those that stay.
    moving_next: Cell<bool>,
    /// Fibers run since it last looked there.
    ticks: Cell<u32>,
    /// Times in a row that the one woken last went first.
    next_runs: Cell<u32>,
    /// Times it found nothing to do.
    passes: Cell<u32>,
    /// Where its next search for a victim begins.
    dice: Cell<u32>,
    groups: Arc<Groups>,
    /// Of `groups`.
    group: *const Group,
    seat: &'static Seat,
    index: usize,
}

impl Worker {
    /// The worker of seat `index` of a group.
    pub(crate) fn new(groups: Arc<Groups>, group: usize, index: usize) -> Self {
        let group = ptr::from_ref(&groups.all[group]);
        Self {
            current: Cell::new(ptr::null()),
            sp: Cell::new(ptr::null_mut()),
            ready: List::new(),
            budget: Cell::new(0),
            turn: Cell::new(0),
            settled: Cell::new(0),
            starts: Cell::new(0),
            rested: Cell::new(true),
            mail_pays: Cell::new(false),
            spin_ns: Cell::new(WAKE_COST_NS),
            wake_cost_ns: Cell::new(WAKE_COST_NS),
            must_take: Cell::new(false),
            deferred: Cell::new(false),
            wound_up: Cell::new(false),
            feed: Cell::new(false),
            left_stack: Cell::new(None),
            region: Cell::new(None),
            alarm_ns: Cell::new(0),
            trim_ns: Cell::new(u64::MAX),
            stacks: UnsafeCell::new(stack::Cache::new()),
            blocks: UnsafeCell::new(pool::Cache::new()),
            timers: UnsafeCell::new(Timers::new()),
            source: UnsafeCell::new(None),
            source_waits: Cell::new(0),
            gifts: Cell::new(0),
            left: Cell::new(ptr::null()),
            left_ready: Cell::new(false),
            urgent: Cell::new(ptr::null()),
            others_due: Cell::new(false),
            others_had: Cell::new(false),
            child_next: Cell::new(false),
            moving_next: Cell::new(false),
            ticks: Cell::new(0),
            next_runs: Cell::new(0),
            passes: Cell::new(0),
            dice: Cell::new(index as u32),
            // SAFETY: it was taken from these groups.
            seat: unsafe { &*group }.seat(index),
            groups,
            group,
            index,
        }
    }

    pub(crate) fn groups(&self) -> &Arc<Groups> {
        &self.groups
    }

    #[inline]
    pub(crate) fn group(&self) -> &Group {
        // SAFETY: `groups` keeps it.
        unsafe { &*self.group }
    }

    #[inline]
    pub(crate) fn seat(&self) -> &'static Seat {
        self.seat
    }

    /// The fiber that runs; `None` in the worker's own loop.
    #[inline]
    pub(crate) fn current(&self) -> Option<&Control> {
        // SAFETY: I3 - a running fiber's block is alive.
        unsafe { self.current.get().as_ref() }
    }

    /// Runs fibers until the group stops and all of this worker's have ended.
    pub(crate) fn run(&self) {
        HERE.with(|here| here.set(self));
        self.seat.counters.born_ns.store(clock::now_ns(), Relaxed);
        loop {
            if fork::is_child() {
                end_of_child();
            }
            self.look_around();
            let next = self.next();
            // SAFETY: `next` took the fiber out of its queue: it is ours (F1).
            match unsafe { next.as_ref() } {
                Some(control) => {
                    self.pass_on();
                    self.enter(control);
                }
                None if self.may_retire() => break,
                None => self.rest(),
            }
        }
        HERE.with(|here| here.set(ptr::null()));
    }

    /// A worker that leaves rest with something to do wakes one more for what it does not take (law S1).
    #[inline]
    fn pass_on(&self) {
        if !self.rested.replace(false) {
            return;
        }
        if self.group().has_work() {
            self.announce(1);
        }
        if self.group().has_errands() && !self.group().pass_errand() {
            self.pass_errands_on();
        }
    }

    /// Nobody of this group is idle any more: who sent an errand here calls the next group.
    #[cold]
    fn pass_errands_on(&self) {
        let errands = self.group().errands();
        let senders = self.groups.all.iter().filter(|group| errands & 1 << group.index != 0 && group.has_work());
        senders.for_each(|group| _ = group.call_thief());
    }

    /// Mail, I/O, timers, surplus stacks, starved fibers: all that does not come by itself.
    fn look_around(&self) {
        self.seat().take_mail(&self.ready);
        if self.source_waits.get() != 0 {
            self.look_at_source();
        }
        // SAFETY: I1, I2 - the borrows end with each call, and none of them runs user code.
        unsafe {
            if (*self.timers.get()).armed() != 0 {
                (*self.timers.get()).expire(&self.ready);
            }
            (*self.stacks.get()).settle();
        }
        self.seat().counters.ready.store(self.ready.len(), Relaxed);
        if let Some(stack) = self.left_stack.take() {
            self.give_left(stack);
        }
        let has_stack = self.feed.replace(false);
        if has_stack || self.owes_stacks() {
            self.feed_starved();
        }
        if has_stack {
            self.groups.ask_for_starved(self.group());
        }
        if self.group().is_stopping() {
            self.wind_up();
        }
    }

    /// Tells the kernel what this worker's fibers ask of it, and readies those that it has answered. A worker with nothing else to do leaves that to its sleep, which is the same system call.
    fn look_at_source(&self) {
        let woken = List::new();
        // SAFETY: I1, I2 - the borrow ends with the block, and no user code runs in it.
        unsafe {
            let Some(source) = &mut *self.source.get() else { return };
            if source.has_found() || self.has_own() || self.has_work() {
                source.look(self.turn.get(), &woken);
            }
        }
        loop {
            let control = woken.pop();
            if control.is_null() {
                break;
            }
            // SAFETY: the source has claimed it.
            make_ready(unsafe { Claimed::again(control) });
        }
    }

    /// Whether a fiber is ready that this worker runs without looking any further: nothing else tells of these.
    fn has_own(&self) -> bool {
        !self.ready.is_empty() || !self.urgent.get().is_null() || !self.seat.next.load(Relaxed).is_null()
    }

    /// Uses the source of this worker, which is opened if it is not there.
    ///
    /// # Errors
    /// If it could not be opened.
    pub(crate) fn with_source<T>(&self, f: impl FnOnce(&mut Source) -> T) -> io::Result<T> {
        // SAFETY: I1, I2 - `f` is of the runtime, and does not suspend.
        let source = unsafe { &mut *self.source.get() };
        if source.is_none() {
            *source = Some(Source::open(self.groups.io, self.seat().bell()?)?);
        }
        Ok(f(source.as_mut().expect("it was opened just now")))
    }

    /// Whether an operation that could be done at once is better given to the ring: there is one, and many are going to use it in this turn, with one system call for all. Few are faster without.
    #[inline]
    pub(crate) fn shares_ring(&self) -> bool {
        // SAFETY: I1, I2.
        let source = unsafe { (*self.source.get()).as_ref() };
        source.is_some_and(|source| source.is_ring() && self.ready.len() + source.unsent() >= RING_SHARERS)
    }

    /// The running fiber `me` begins a wait at this worker's source.
    pub(crate) fn begin_source_wait(&self, me: &Control) {
        self.source_waits.set(self.source_waits.get() + 1);
        me.set_bound(true);
    }

    /// It is over.
    pub(crate) fn end_source_wait(&self, me: &Control) {
        self.source_waits.set(self.source_waits.get() - 1);
        me.set_bound(false);
    }

    /// The running fiber `me` has done I/O without having had to wait; from time to time it lets others run for that, if it may suspend.
    #[inline]
    pub(crate) fn count_gift(&self, me: &Control) {
        let gifts = self.gifts.get() + 1;
        self.gifts.set(gifts);
        if gifts >= GIFTS && !me.must_not_suspend() {
            self.gifts.set(0);
            // To the source these calls were many turns.
            self.turn.set(self.turn.get().wrapping_add(SOURCE_TURNS));
            self.yield_now(me);
        }
    }

    /// Whether its fibers have asked for what the kernel does not know of yet, or has done already.
    fn source_calls(&self) -> bool {
        // SAFETY: I1, I2.
        self.source_waits.get() != 0
            && unsafe { (*self.source.get()).as_ref().is_some_and(|source| source.unsent() != 0 || source.has_found()) }
    }

    /// The runtime is being shut down: cancels what lives here, once, and ends what found no stack. Who shuts it down has done so already, also where a
    /// fiber computes; but what was started meanwhile is found here. Nothing is started any more but to be refused, so none is missed.
    #[cold]
    fn wind_up(&self) {
        if !self.wound_up.replace(true) {
            if self.groups.movers() != 0 {
                // Wherever they are: one that goes from worker to worker might meet none before that has looked.
                cancel_all(&self.groups, None);
            } else if self.settled.get() != 0 {
                cancel_all(&self.groups, Some(self.seat));
            }
        }
        if self.group().has_starved() {
            self.refuse_starved();
        }
    }

    #[cold]
    fn give_left(&self, stack: Stack) {
        if let Err(own) = self.group().give_reserve(stack) {
            // SAFETY: I1, I2.
            unsafe { (*self.stacks.get()).give(own) };
        }
    }

    /// The next fiber to enter; null if there is nothing to do.
    fn next(&self) -> *const Control {
        let urgent = self.urgent.replace(ptr::null());
        if !urgent.is_null() {
            return urgent;
        }
        self.turn.set(self.turn.get().wrapping_add(1));
        let others_first = self.others_first();
        if !others_first {
            let control = self.next_own();
            if !control.is_null() {
                return control;
            }
        }
        if self.leaves_to_lighter() {
            // Also what may move: a fiber in the slot is seen by nobody that this worker is left to.
            let control = self.next_own();
            self.deferred.set(control.is_null());
            return control;
        }
        if self.must_take.replace(false) && !self.has_own() && self.is_heavy() && self.others_take() {
            return ptr::null();
        }
        if others_first {
            let control = self.next_of_others();
            if !control.is_null() {
                return control;
            }
        }
        let control = self.next_own();
        if !control.is_null() {
            return control;
        }
        let control = self.seat().children.pop();
        if !control.is_null() {
            return control;
        }
        let control = self.take_of_group();
        if !control.is_null() {
            return control;
        }
        self.steal()
    }

    /// Whether what any worker may take goes before this worker's own fibers in this turn. Neither starves the other.
    fn others_first(&self) -> bool {
        let eighth = self.turn.get().is_multiple_of(ROUNDS);
        let due = match self.group().settings.policy {
            Policy::Affinity => eighth || self.ticks.get() >= TICKS,
            Policy::Balance => !eighth,
        };
        // A fiber that yields may ask for it each time: only if its own had their turn meanwhile.
        let due = due || (self.others_due.replace(false) && !self.others_had.get());
        self.others_had.set(due);
        if due {
            self.ticks.set(0);
        }
        due
    }

    /// The next of this worker's own started fibers: the one woken last, if it may move and others have had their turn, then those that stay and those that may move, by turns.
    fn next_own(&self) -> *const Control {
        let control = self.take_woken_last();
        if !control.is_null() {
            return control;
        }
        self.moving_next.set(!self.moving_next.get());
        if self.moving_next.get() {
            let control = steal_one(&self.seat.moving);
            if !control.is_null() {
                return control;
            }
        }
        let control = self.pop_ready();
        if control.is_null() && self.seat.moving.len() != 0 { steal_one(&self.seat.moving) } else { control }
    }

    /// The fiber that was woken last on this worker and may move: its data is warm here. After some of them in a row the next one queues up like all others.
    fn take_woken_last(&self) -> *const Control {
        if self.seat.next.load(Relaxed).is_null() {
            self.next_runs.set(0);
            return ptr::null();
        }
        // Acquire: meets the Release in `take_in`; though that was this thread, a thief may have had it meanwhile.
        let control = self.seat.next.swap(ptr::null_mut(), Acquire);
        let runs = self.next_runs.get() + 1;
        if control.is_null() || runs <= NEXT_RUNS {
            self.next_runs.set(runs);
            return control;
        }
        self.next_runs.set(0);
        // SAFETY: F1 - taken out, so it is ours.
        unsafe { self.push_moving(control) };
        ptr::null()
    }

    /// Takes a ready fiber of this group in that may move. By a fiber of this worker, or its loop.
    ///
    /// # Safety
    /// The fiber is the caller's, has left its stack, and is of this group.
    unsafe fn take_in(&self, control: *const Control) {
        let settings = &self.group().settings;
        // SAFETY: the caller's promise.
        unsafe {
            if settings.shakes && self.shake(control) {
                return;
            }
            if settings.queue == Queue::Shared || (*control).is_pinned() {
                let queued = self.group().push(control, false);
                assert!(queued, "this worker is there");
            } else if self.current.get().is_null() {
                self.push_moving(control);
            } else {
                // Release: meets the Acquire of who takes it. Nobody is woken for it: this worker is about to take it.
                let before = self.seat.next.swap(control.cast_mut(), AcqRel);
                if !before.is_null() {
                    self.push_moving(before);
                }
            }
        }
    }

    /// Queues a ready fiber that may move at this worker, and wakes another one for it if this one has others to run.
    ///
    /// # Safety
    /// The fiber is the caller's, has left its stack, and is of this group.
    unsafe fn push_moving(&self, control: *const Control) {
        let has_others = self.seat.moving.len() != 0 || self.runs_another_first();
        // SAFETY: the caller's promise.
        unsafe { self.put_moving(control) };
        if has_others {
            self.announce(1);
        }
    }

    /// As `push_moving`, and wakes nobody.
    ///
    /// # Safety
    /// As `push_moving`.
    unsafe fn put_moving(&self, control: *const Control) {
        if !self.seat.moving.push(control.cast_mut()) {
            self.spill(&self.seat.moving, false);
            let pushed = self.seat.moving.push(control.cast_mut());
            debug_assert!(pushed, "no room after half of them were moved");
        }
    }

    /// Whether this worker runs another fiber before it comes to one that is queued now.
    fn runs_another_first(&self) -> bool {
        !self.current.get().is_null() || !self.urgent.get().is_null() || !self.ready.is_empty()
    }

    /// Gives a fiber that may move to the next worker, if there is one: it is to show at once whether it bears that.
    ///
    /// # Safety
    /// The fiber is the caller's, has left its stack, is of this group and not bound.
    unsafe fn shake(&self, control: *const Control) -> bool {
        let seats = self.group().seats();
        if seats.len() < 2 || self.group().is_stopping() {
            return false;
        }
        let to = seats[(self.index + 1) % seats.len()];
        // SAFETY: the caller's promise; its new home is where it is delivered to.
        unsafe {
            (*control).move_to(ptr::from_ref(to).cast());
            to.deliver(control);
        }
        true
    }

    fn announce(&self, items: usize) {
        if !self.group().announce(items) {
            add(&self.seat.counters.unserved, 1);
        }
    }

    /// Steals from the others of this group, beginning anywhere: half of what one of them has.
    fn steal(&self) -> *const Control {
        let seats = self.group().seats();
        if seats.len() < 2 {
            return ptr::null();
        }
        add(&self.seat.counters.thefts, 1);
        for victim in self.victims(seats.len()) {
            let mut control = self.rob(&seats[victim].children, &self.seat.children);
            if control.is_null() {
                control = self.rob(&seats[victim].moving, &self.seat.moving);
            }
            if !control.is_null() {
                add(&self.seat.counters.steals, 1);
                return control;
            }
        }
        ptr::null()
    }

    /// The other workers of this group, each once, from a random one on by a stride that meets all of them.
    fn victims(&self, workers: usize) -> impl Iterator<Item = usize> + use<> {
        let (me, start) = (self.index, self.roll() as usize);
        let stride = STRIDES[start % STRIDES.len()];
        let stride = if workers.is_multiple_of(stride) { 1 } else { stride };
        (0..workers).map(move |i| (start.wrapping_add(i * stride)) % workers).filter(move |&victim| victim != me)
    }

    fn roll(&self) -> u32 {
        // Marsaglia's xorshift; it must not stand at zero.
        let mut dice = self.dice.get() | 1 << 31;
        dice ^= dice << 13;
        dice ^= dice >> 17;
        dice ^= dice << 5;
        self.dice.set(dice);
        dice
    }

    /// Takes the oldest fiber of a victim's deque, and of the rest so many that both have as much; null if it has none.
    fn rob(&self, from: &Deque<Control, CHILDREN_MAX>, into: &Deque<Control, CHILDREN_MAX>) -> *const Control {
        if from.len() == 0 {
            return ptr::null();
        }
        let first = steal_one(from);
        let more = from.len() / 2;
        for _ in 0..more.min(STEAL_MAX) {
            let control = steal_one(from);
            if control.is_null() {
                break;
            }
            let pushed = into.push(control);
            assert!(pushed, "a thief has nothing of its own");
        }
        first
    }

    /// Steals from other groups: where this one was sent to, and from each after so many idle passes. What it gets is this worker's own then; whether it got any.
    fn steal_abroad(&self) -> bool {
        let passes = self.passes.get().wrapping_add(1);
        self.passes.set(passes);
        let mut errands = self.group().take_errands();
        for &(victim, ratio) in &self.group().settings.victims {
            if errands & 1 << victim == 0 && !passes.is_multiple_of(ratio) {
                continue;
            }
            errands &= !(1 << victim);
            let (tried, won) = &self.group().thefts[victim];
            tried.fetch_add(1, Relaxed);
            // SAFETY: F1 - given away, so it is ours; one that has started may move.
            let Some(control) = (unsafe { self.groups.all[victim].give_away().as_ref() }) else { continue };
            won.fetch_add(1, Relaxed);
            if self.groups.all[victim].has_work() {
                self.groups.all[victim].call_thief();
            }
            let place = if control.is_started() { &self.seat.moving } else { &self.seat.children };
            if !place.push(ptr::from_ref(control).cast_mut()) {
                // It leaves a full deque of its own to a lighter worker.
                // SAFETY: F1, as above.
                let queued = unsafe { self.group().push(control, false) };
                assert!(queued, "this worker is there");
            }
            // For the next one, who is called before this worker runs what it got.
            self.group().leave_errands(errands);
            return true;
        }
        false
    }

    /// A fiber that may move, was woken last on a worker of this group and has not been run there: that is stuck in another one. The worker, the fiber, and how many switches
    /// that worker had counted.
    fn stuck(&self) -> Option<(&'static Seat, *mut Control, u64)> {
        let others = self.group().seats().iter().filter(|seat| !ptr::eq(**seat, self.seat));
        others.map(|&seat| (seat, seat.next.load(Relaxed), seat.counters.switches.load(Relaxed))).find(|(_, control, _)| !control.is_null())
    }

    /// Takes the fiber that was found stuck before, if it still is: the last that a thief takes.
    fn take_stuck(&self, (seat, control, switches): (&'static Seat, *mut Control, u64)) -> bool {
        // Acquire: meets the Release in `take_in`.
        if seat.counters.switches.load(Relaxed) != switches
            || seat.next.compare_exchange(control, ptr::null_mut(), Acquire, Relaxed).is_err()
        {
            return false;
        }
        add(&self.seat.counters.steals, 1);
        let pushed = self.seat.moving.push(control);
        assert!(pushed, "an idle worker has nothing of its own");
        true
    }

    /// Whether unstarted fibers are left to a worker with fewer settled ones, which is idle and has been called, or is on its way already (placement
    /// for life).
    ///
    /// One that was claimed itself may still leave them to another that is on its way, which will see them; the last to arrive finds nobody coming
    /// and takes them.
    fn leaves_to_lighter(&self) -> bool {
        let idle = &self.group().idle;
        if idle.sleeping().is_empty() && idle.spinning().is_empty() && !idle.is_somebody_coming() {
            return false;
        }
        let calls = || !self.must_take.get() && self.group().call_lighter(self.index);
        self.group().has_work() && self.is_heavy() && (idle.is_somebody_coming() || calls())
    }

    /// Gives the others a moment to take what this heavy worker was woken for: most often the spawner's own worker does, as its fiber suspends. If it does
    /// not, this one takes it.
    fn others_take(&self) -> bool {
        let end_ns = clock::now_ns() + SPIN_NS;
        while self.group().has_work() {
            if !self.group().spins() || self.seat().has_mail() || clock::now_ns() >= end_ns {
                return false;
            }
            // Where there are more threads than cores, the one that is to take it may have been pushed off this very core by our wake.
            std::thread::yield_now();
            (0..SPIN_PAUSES).for_each(|_| spin_loop());
        }
        true
    }

    fn is_heavy(&self) -> bool {
        let mean = self.group().settled() / self.group().seats().len();
        let slack = if self.starts.get() < RESTED_STARTS { HEAVY_RESTED } else { (mean / 8).max(HEAVY_BUSY) };
        self.settled.get() > mean + slack
    }

    /// What would starve if ready fibers and the newest children always came first: the oldest of the group's queue and the oldest child, by turns.
    fn next_of_others(&self) -> *const Control {
        let child_first = !self.child_next.get();
        self.child_next.set(child_first);
        let control = if child_first { self.oldest_child() } else { self.take_of_group() };
        if !control.is_null() {
            return control;
        }
        if child_first { self.take_of_group() } else { self.oldest_child() }
    }

    fn oldest_child(&self) -> *const Control {
        match self.seat().children.steal() {
            Stolen::Item(control) => control,
            Stolen::Empty | Stolen::Retry => ptr::null(),
        }
    }

    /// Takes the next ready fiber, and fetches what the one after it will need: its control block is known, its stack too.
    #[inline]
    fn pop_ready(&self) -> *mut Control {
        let control = self.ready.pop();
        let next = self.ready.first();
        if !next.is_null() {
            // SAFETY: fibers in the list are alive.
            unsafe { fetch_ahead((*next).sp(), crate::base::list::Linked::link(&*next).load(Relaxed)) };
        }
        control
    }

    /// Runs `control`, and whatever it hands over to, until one comes back to the loop.
    fn enter(&self, control: &Control) {
        if !control.is_started() {
            if !self.start(control) {
                return;
            }
        } else if !ptr::eq(control.home().cast(), self.seat) {
            control.move_to(ptr::from_ref(self.seat).cast());
        }
        let turn = self.turn_length();
        self.budget.set(turn);
        self.current.set(control);
        self.note_running(control);
        // SAFETY: F1 - the fiber was taken from a queue; F3 - only this worker resumes it, and it stands in its loop.
        unsafe { switch_keeping_float(self.sp.as_ptr(), control.sp()) };
        self.current.set(ptr::null());
        let counters = &self.seat().counters;
        let switches = turn - self.budget.get() + 1;
        add(&counters.switches, u64::from(switches));
        self.ticks.set(self.ticks.get() + switches);
        if !self.left.get().is_null() {
            self.see_to_left();
        }
    }

    /// A fiber that may move has come back to the loop, and left its stack: if it is ready, or has been called, others may have it from now on.
    fn see_to_left(&self) {
        let control = self.left.replace(ptr::null());
        // SAFETY: F1 - a fiber that has just left is its worker's, until `leave` says that its waker has it.
        unsafe {
            if self.left_ready.replace(false) {
                self.queue_again(control);
            } else if (*control).state.leave() {
                find_place(control);
            }
        }
    }

    /// Queues a fiber that may move and has yielded, behind all others.
    ///
    /// # Safety
    /// The fiber is the caller's, and has left its stack.
    unsafe fn queue_again(&self, control: *const Control) {
        let settings = &self.group().settings;
        // SAFETY: the caller's promise.
        unsafe {
            if (*control).is_bound() {
                self.ready.push(control.cast_mut());
            } else if settings.shakes && self.shake(control) {
                // It is another worker's now.
            } else if settings.queue == Queue::Stealing && !(*control).is_pinned() {
                self.put_moving(control);
                // There is not more to do than before, but for a fiber that runs first and was not there.
                if self.runs_another_first() {
                    self.announce(1);
                }
            } else {
                // Nobody is woken for it if this worker looks there next.
                self.others_due.set(true);
                let queued = self.group().put(control);
                assert!(queued, "this worker is there");
                if self.runs_another_first() {
                    self.announce(1);
                }
            }
        }
    }

    /// Switches from fiber to fiber that this turn may have: none where others go first and wait.
    fn turn_length(&self) -> u32 {
        if self.group().settings.policy == Policy::Balance && self.group().queued() != 0 { 0 } else { TURN }
    }

    /// Counts how long it was ready, if this wake is timed.
    #[inline]
    fn note_running(&self, control: &Control) {
        if let Some(waited_ns) = control.take_ready_time() {
            self.seat().counters.latency.record(waited_ns);
        }
    }

    /// Gives an unstarted fiber a stack and settles it here; `false` if there is none and it was put aside.
    fn start(&self, control: &Control) -> bool {
        debug_assert!(!control.is_started(), "F1: fiber {control} is started twice");
        self.judge(control);
        if let Some(waited_ns) = control.take_ready_time() {
            self.seat.counters.start_latency.record(waited_ns);
        }
        // SAFETY: I1, I2.
        let taken = unsafe { (*self.stacks.get()).take(control.class()) };
        match taken {
            Ok(stack) => {
                self.settle(control, stack);
                true
            }
            Err(why) => {
                // SAFETY: the fiber is unstarted and ours.
                unsafe { self.groups.starve(self.group(), control, &why) };
                false
            }
        }
    }

    /// Nothing begins to run in a runtime that is being shut down.
    fn judge(&self, control: &Control) {
        if self.group().is_stopping() && control.verdict() == Verdict::Run {
            control.condemn(Verdict::ShutDown);
        }
    }

    fn settle(&self, control: &Control, stack: Stack) {
        let arg = ptr::from_ref(control).cast_mut().cast();
        // SAFETY: the stack is ours and unused.
        let sp = unsafe { prepare(stack.bottom(), stack.top(), root, arg) };
        self.settle_at(control, stack, sp);
    }

    fn settle_at(&self, control: &Control, stack: Stack, sp: *mut u8) {
        control.settle(ptr::from_ref(self.seat()).cast(), stack, sp);
        self.starts.set(self.starts.get().saturating_add(1));
        if control.may_move() {
            self.groups.mover_comes();
            if self.group().is_stopping() && !control.state.is_sheltered() {
                // A shutdown looks for what has started; it may have looked before.
                let _ = control.state.cancel();
            }
        } else {
            self.count_settled(1);
        }
    }

    fn count_settled(&self, change: isize) {
        self.settled.set(self.settled.get().wrapping_add_signed(change));
        self.seat().counters.settled.store(self.settled.get(), Relaxed);
    }

    /// Tries again for those that found no stack, with what this worker can spare for others.
    #[cold]
    fn feed_starved(&self) {
        // SAFETY: I1, I2.
        unsafe { (*self.stacks.get()).share(0) };
        self.group().note_spared(self.index);
        (0..CLASSES).for_each(|class| while self.group().has_starved() && self.feed_one(class) {});
        self.groups.pass_stacks_on(self.group());
    }

    /// Whether this worker has yet to see what it can spare for starved fibers.
    #[inline]
    fn owes_stacks(&self) -> bool {
        self.groups.has_starved() && self.group().owes_stacks(self.index)
    }

    /// Starts a fiber that found no stack of this size; `false` if there is none, or still no stack.
    fn feed_one(&self, class: usize) -> bool {
        // SAFETY: popped, so it is ours.
        let Some(control) = (unsafe { self.group().pop_starved(class).as_ref() }) else { return false };
        // SAFETY: I1, I2; and the fiber is in no list.
        unsafe {
            let Ok(stack) = (*self.stacks.get()).take(control.class()) else {
                self.group().starve_again(control);
                return false;
            };
            self.groups.fed(self.group());
            self.judge(control);
            self.settle(control, stack);
            self.ready.push(ptr::from_ref(control).cast_mut());
        }
        true
    }

    /// Ends the oldest fiber that found no stack, on a stack of the reserve; `false` if there is no such fiber, or no such stack.
    #[cold]
    fn refuse_starved(&self) -> bool {
        let Some(stack) = self.group().take_reserve() else { return false };
        // SAFETY: popped, so it is ours.
        let Some(control) = (0..CLASSES).find_map(|class| unsafe { self.group().pop_starved(class).as_ref() }) else {
            self.group().give_reserve(stack).expect("a stack of the reserve");
            return false;
        };
        control.condemn(if self.group().is_stopping() { Verdict::ShutDownInReserve } else { Verdict::NoStack });
        // Its stack is this group's, and must come back here.
        control.set_pinned();
        self.groups.fed(self.group());
        self.settle(control, stack);
        // SAFETY: it is started now, and in no list.
        unsafe { self.ready.push(ptr::from_ref(control).cast_mut()) };
        true
    }

    fn may_retire(&self) -> bool {
        self.group().is_stopping()
            && self.settled.get() == 0
            && !self.seat().has_mail()
            && self.groups.has_no_movers()
            && self.group().retire()
    }

    /// Has nothing to do: polls for a while, if few others do, then sleeps.
    fn rest(&self) {
        self.seat().counters.ready.store(0, Relaxed);
        self.rested.set(true);
        // Not with an errand to do: a poll would end at once, and nobody would do it.
        let may_spin = self.spin_limit_ns() != 0 && !self.deferred.get() && !self.source_calls() && !self.group().has_errands();
        if may_spin && self.mail_pays.get() && self.await_mail() {
            return;
        }
        if may_spin {
            let stuck = self.stuck();
            if self.spin() || stuck.is_some_and(|stuck| self.take_stuck(stuck)) {
                return;
            }
        }
        if !self.group().settings.victims.is_empty() && self.steal_abroad() {
            return;
        }
        self.sleep();
    }

    /// Polls for a moment before it counts as one who polls: a fiber here and one elsewhere that talk would else fight for the group's masks with every word.
    fn await_mail(&self) -> bool {
        let came = (0..MAIL_LOOKS).any(|_| {
            (0..MAIL_PAUSES).for_each(|_| spin_loop());
            self.has_work()
        });
        self.mail_pays.set(came);
        came
    }

    /// Polls; `true` if there is something to do.
    fn spin(&self) -> bool {
        let idle = &self.group().idle;
        if !idle.begin_spin(self.index) {
            return false;
        }
        let found = self.poll();
        self.mail_pays.set(self.seat.has_mail());
        let claimed = idle.end_spin(self.index);
        self.must_take.set(claimed);
        if found && !idle.spinning().is_empty() {
            idle.leave_pending();
        }
        let pays = found || claimed;
        self.spin_ns.set(if pays { self.wake_cost_ns.get() } else { less_spin_ns(self.spin_ns.get()) });
        pays
    }

    /// How long it may poll now; 0 is not at all.
    fn spin_limit_ns(&self) -> u64 {
        match self.group().settings.spin {
            Spin::Never => 0,
            Spin::Fixed(duration) => u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
            Spin::Adaptive => self.spin_ns.get(),
        }
    }

    fn poll(&self) -> bool {
        // SAFETY: I1, I2.
        let wake_ns = unsafe { (*self.timers.get()).next_ns() };
        let begun_ns = clock::now_ns();
        let end_ns = begun_ns.saturating_add(self.spin_limit_ns());
        self.seat.counters.idle_since_ns.store(begun_ns, Relaxed);
        let (mut now_ns, mut look_ns) = (begun_ns, begun_ns + SOURCE_GAP_NS);
        let found = loop {
            if self.has_work() || self.source_calls() {
                break true;
            }
            self.group().replace_spinner();
            now_ns = clock::now_ns();
            if now_ns >= look_ns {
                self.ask_epoll();
                look_ns = now_ns + SOURCE_GAP_NS;
            }
            if now_ns >= wake_ns || now_ns >= end_ns {
                break now_ns >= wake_ns;
            }
            if now_ns - begun_ns < SPIN_ALONE_NS {
                (0..SPIN_PAUSES).for_each(|_| spin_loop());
            } else {
                // Whoever is to make something ready may be waiting for this very core.
                std::thread::yield_now();
            }
        };
        self.seat.counters.idle_since_ns.store(0, Relaxed);
        add(&self.seat.counters.spun_ns, now_ns - begun_ns);
        found
    }

    /// Has the kernel say what has come, if this worker's fibers wait at epoll: a ring tells by memory, which is polled anyway.
    fn ask_epoll(&self) {
        // SAFETY: I1, I2 - it runs no user code.
        let source = unsafe { (*self.source.get()).as_mut() };
        if let Some(source) = source.filter(|source| self.source_waits.get() != 0 && !source.is_ring()) {
            source.sleep(0);
        }
    }

    /// Sleeps until there is something to do; or finds that there is, and does not.
    fn sleep(&self) {
        // SAFETY: I1, I2.
        let (wake_ns, armed) = unsafe { ((*self.timers.get()).next_ns(), (*self.timers.get()).armed()) };
        let at_source = self.source_waits.get() != 0;
        let for_good = wake_ns == u64::MAX && !at_source;
        let sleep_ns = alarm_at(wake_ns, armed, self.alarm_ns.get()).min(self.trim_when_due());
        self.seat().set_rest(Rest { for_good, at_source });
        self.seat().slot.lie_down();
        self.group().idle.enter_sleep(self.index);
        if !self.has_work() && !self.must_refuse() {
            add(&self.seat().counters.sleeps, 1);
            let begun_ns = clock::now_ns();
            self.seat.counters.idle_since_ns.store(begun_ns, Relaxed);
            if at_source {
                self.sleep_at_source(sleep_ns);
            } else {
                while self.seat().slot.is_asleep() && !passed(sleep_ns) {
                    futex::wait(self.seat().slot.word(), ASLEEP, sleep_ns);
                }
            }
            let now_ns = clock::now_ns();
            self.seat.counters.idle_since_ns.store(0, Relaxed);
            add(&self.seat.counters.slept_ns, now_ns - begun_ns);
            self.learn_from_sleep(begun_ns, now_ns, at_source);
            if now_ns >= wake_ns {
                self.alarm_ns.set(now_ns);
            }
        }
        self.seat().slot.get_up();
        self.must_take.set(self.group().idle.leave_sleep(self.index));
        self.deferred.set(false);
        self.starts.set(0);
    }

    /// Sees what the wake from a sleep cost, and whether to poll would have been better.
    fn learn_from_sleep(&self, begun_ns: u64, now_ns: u64, at_source: bool) {
        if let Some(cost_ns) = self.seat.wake_cost_ns(begun_ns, now_ns) {
            self.seat.counters.wake_cost.record(cost_ns);
            // By an eighth each time: one wake that met a busy machine says little.
            let before_ns = self.wake_cost_ns.get();
            self.wake_cost_ns.set(((before_ns * 7 + cost_ns) / 8).clamp(WAKE_COST_MIN_NS, WAKE_COST_MAX_NS));
        }
        // To poll memory brings no I/O.
        let brought_io = at_source && self.seat.slot.is_asleep();
        if !brought_io && now_ns - begun_ns < 2 * self.wake_cost_ns.get() {
            self.spin_ns.set(self.wake_cost_ns.get());
        }
    }

    /// Sleeps where I/O ends the sleep too. For whatever reason it ends: the loop looks at everything.
    fn sleep_at_source(&self, sleep_ns: u64) {
        // SAFETY: I1, I2 - it runs no user code.
        unsafe { (*self.source.get()).as_mut().expect("fibers wait at it").sleep(sleep_ns) };
    }

    /// Whether fibers starve and nothing that could give them a stack can run: then the oldest has been readied to be ended.
    fn must_refuse(&self) -> bool {
        if !self.groups.starves_for_good() || !self.groups.all_rest_for_good() {
            return false;
        }
        if !self.group().has_starved() {
            self.groups.pass_stacks_on(self.group());
            return false;
        }
        // Once more: a stack may have been handed out while another worker held the fiber that it would have served.
        self.feed_starved();
        !self.ready.is_empty() || self.refuse_starved()
    }

    /// What an idle worker must not oversleep. The fences in `lie_down` and `enter_sleep` make these relaxed looks enough.
    fn has_work(&self) -> bool {
        let group = self.group();
        self.seat().has_mail()
            || (group.has_work() && !(self.deferred.get() && group.idle.is_somebody_coming()))
            || group.has_errands()
            || self.owes_stacks()
            || (group.is_stopping() && (!self.wound_up.get() || (self.settled.get() == 0 && self.groups.movers() == 0)))
    }

    /// Gives idle stacks' pages back if it is time; says when to come again. By a worker with nothing to do.
    fn trim_when_due(&self) -> u64 {
        // SAFETY: I1, I2.
        let stacks = unsafe { &mut *self.stacks.get() };
        if stack::depot().dirty() == 0 && stacks.idle() <= STACKS_KEPT {
            self.trim_ns.set(u64::MAX);
        } else if self.trim_ns.get() == u64::MAX {
            self.trim_ns.set(clock::now_ns() + TRIM_PERIOD_NS);
        } else if passed(self.trim_ns.get()) {
            stacks.share(STACKS_KEPT);
            self.trim_ns.set(stack::depot().trim_unused(clock::now_ns(), TRIM_PERIOD_NS));
        }
        self.trim_ns.get()
    }

    /// Makes an unstarted child known, and unless that is to be `quiet`, wakes a worker for it; `false` if it could not be, and the group refused it.
    ///
    /// # Safety
    /// The fiber is unstarted and the caller's alone.
    #[must_use]
    pub(crate) unsafe fn adopt(&self, control: &Control, quiet: bool) -> bool {
        add(&self.seat().counters.spawned, 1);
        if self.group().settings.queue == Queue::Shared || control.is_pinned() {
            // SAFETY: the caller's promise.
            return unsafe { self.group().push(control, quiet) };
        }
        let control = ptr::from_ref(control);
        if !self.seat().children.push(control.cast_mut()) {
            self.spill(&self.seat.children, quiet);
            let pushed = self.seat().children.push(control.cast_mut());
            debug_assert!(pushed, "no room for a child after half of them were moved");
        }
        match quiet {
            true => self.group().note_quiet(1),
            false => self.announce(1),
        }
        true
    }

    /// Runs an unstarted fiber at once, in the place of `me`, which is queued.
    ///
    /// # Safety
    /// The child is unstarted and the caller's alone, `me` is the running fiber and may suspend.
    pub(crate) unsafe fn dispatch(&self, me: &Control, child: &'static Control) {
        add(&self.seat().counters.spawned, 1);
        if !self.start(child) {
            return;
        }
        // SAFETY: F1 - a running fiber is in no list; the child is started, in no list, and gone to or left to the loop.
        unsafe {
            if me.is_marked() || self.budget.get() == 0 {
                self.urgent.set(child);
                return self.make_way(me);
            }
            self.ready.push(ptr::from_ref(me).cast_mut());
            self.budget.set(self.budget.get() - 1);
            self.current.set(child);
            self.note_running(child);
            self.go(me, child.sp());
        }
    }

    /// Moves the oldest half of the children to the group's queue: one claim and, unless that is to be `quiet`, one wake call for all of them, and their order holds.
    #[cold]
    fn spill(&self, deque: &Deque<Control, CHILDREN_MAX>, quiet: bool) {
        let oldest = List::new();
        while oldest.len() < CHILDREN_MAX / 2 {
            match deque.steal() {
                // SAFETY: F1 - taken out, so it is ours and in no list.
                Stolen::Item(control) => unsafe { oldest.push(control) },
                Stolen::Retry => spin_loop(),
                Stolen::Empty => break,
            }
        }
        self.group().overflowed.fetch_add(oldest.len() as u64, Relaxed);
        let queued = if quiet { self.group().push_quietly(&oldest) } else { self.group().push_all(&oldest) };
        assert!(queued, "the queue of a group is closed by its last worker, and this one is there");
    }

    /// The oldest of the group's queue; of a long queue this worker's share too, as children, which the others may steal. A shared queue gives one at a time: its order is the
    /// order in which they begin.
    fn take_of_group(&self) -> *const Control {
        if self.group().queued() == 0 {
            return ptr::null();
        }
        let share = List::new();
        let has_room = self.seat.children.len() == 0 && self.seat.moving.len() <= CHILDREN_MAX - TAKE_MAX;
        let takes_more = self.group().settings.queue == Queue::Stealing && has_room;
        self.group().take(if takes_more { TAKE_MAX } else { 1 }, &share);
        let first = share.pop();
        if !share.is_empty() {
            self.keep(&share);
        }
        first
    }

    /// Makes fibers of the group's queue this worker's, so that the oldest is the next: unstarted ones its children, others with those that may move.
    #[cold]
    fn keep(&self, share: &List<Control>) {
        let count = share.len();
        let mut unstarted = [ptr::null_mut(); TAKE_MAX];
        let mut children = 0;
        for _ in 0..count {
            let control = share.pop();
            // SAFETY: F1 - popped, so it is ours.
            if unsafe { (*control).is_started() } {
                let pushed = self.seat.moving.push(control);
                assert!(pushed, "no room for {count} fibers that may move");
            } else {
                unstarted[children] = control;
                children += 1;
            }
        }
        for &control in unstarted[..children].iter().rev() {
            let pushed = self.seat().children.push(control);
            assert!(pushed, "no room for {count} children where there were none");
        }
        // Whoever was woken for them has perhaps found nothing while they were in nobody's queue (S1).
        self.announce(count);
    }

    /// The region that the running fiber `me` is in, if there is one.
    #[inline]
    pub(crate) fn region(&self, me: &Control) -> Option<Region> {
        if me.must_not_suspend() { self.region.get() } else { None }
    }

    /// Changes the region that the running fiber `me` is in; gives the one before.
    pub(crate) fn set_region(&self, me: &Control, region: Option<Region>) -> Option<Region> {
        me.set_must_not_suspend(region.is_some());
        self.region.replace(region)
    }

    /// Leaves `me`, which has marks, with its hooks before and after. By the loop: a hook may have ended the wait that was begun, and then `me` is in
    /// the ready list, where `leave` would find it before its registers are saved (F3).
    ///
    /// # Safety
    /// As `leave`; and `me` is in no region, but through the fault of a wait that was begun without asking, and cannot be undone.
    #[cold]
    #[inline(never)]
    unsafe fn leave_marked(&self, me: &Control, begin: impl FnOnce()) {
        if let Some(region) = self.region(me) {
            eprintln!("sinew: bug: fiber {me} began to wait inside {region}");
            std::process::abort();
        }
        self.run_hooks(me, When::Suspend);
        begin();
        // SAFETY: the caller's promise; hooks cannot suspend, so all is as it was.
        unsafe {
            match me.may_move() {
                true => self.leave_moving(me, false),
                false => self.go(me, self.back_to_loop()),
            }
        }
    }

    /// Leaves `me`, which may move, for the loop: only once it has left its stack may another worker have it (F3). `ready` if it yields.
    ///
    /// # Safety
    /// As `leave`.
    unsafe fn leave_moving(&self, me: &Control, ready: bool) {
        self.left.set(me);
        self.left_ready.set(ready);
        // A fiber that unwinds stays: std counts panics by thread.
        let was_bound = std::thread::panicking().then(|| me.set_bound(true));
        // SAFETY: the caller's promise.
        unsafe { self.go(me, self.back_to_loop()) };
        if let Some(was_bound) = was_bound {
            me.set_bound(was_bound);
        }
    }

    fn run_hooks(&self, me: &Control, when: When) {
        if let Some(locals) = me.locals.get() {
            locals.run_hooks(when, |region| _ = self.set_region(me, Some(region)));
            self.set_region(me, None);
        }
    }

    /// Lets every ready fiber run before `me` goes on.
    ///
    /// # Panics
    /// If `me` must not suspend.
    #[inline]
    #[track_caller]
    pub(crate) fn yield_now(&self, me: &Control) {
        if me.is_marked() {
            return self.yield_marked(me);
        }
        if self.ready.is_empty() && self.may_skip_yield() {
            return;
        }
        // SAFETY: F1 - a running fiber is in no list.
        unsafe {
            self.ready.push(ptr::from_ref(me).cast_mut());
            if ptr::eq(self.ready.first(), me) {
                // No other fiber is ready: those not yet started are whom this yield is for.
                self.others_due.set(true);
                if self.seat.moving.len() == 0 {
                    // It is all that is this worker's own, and has had its turn.
                    self.others_had.set(false);
                }
                self.go(me, self.back_to_loop());
            } else {
                self.leave(me);
            }
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn yield_marked(&self, me: &Control) {
        if let Some(region) = self.region(me) {
            region.refuse();
        }
        if !me.is_held() && !self.group().settings.shakes && !self.has_others() && self.may_skip_yield() {
            return;
        }
        self.others_due.set(true);
        // SAFETY: F1 - a running fiber is in no list.
        unsafe { self.make_way(me) };
    }

    /// Queues `me`, which is ready, behind all others, and goes to the loop; with its hooks before and after.
    ///
    /// # Safety
    /// `me` is the running fiber, and may suspend.
    unsafe fn make_way(&self, me: &Control) {
        let held = me.is_held();
        if held {
            self.run_hooks(me, When::Suspend);
        }
        // SAFETY: the caller's promise; in this state (`RUNNING`) no hook can have put it into a list.
        unsafe {
            if me.may_move() {
                self.leave_moving(me, true);
            } else {
                self.ready.push(ptr::from_ref(me).cast_mut());
                self.go(me, self.back_to_loop());
            }
        }
        if held {
            resume_hooks(me);
        }
    }

    /// Whether another started fiber is ready here, or any that may move elsewhere in the group's queue.
    fn has_others(&self) -> bool {
        !self.ready.is_empty() || self.seat.moving.len() != 0 || !self.seat.next.load(Relaxed).is_null() || self.group().queued() != 0
    }

    /// Whether nobody else wants this thread. Looked at from time to time only: timers and the group are the loop's.
    #[inline]
    fn may_skip_yield(&self) -> bool {
        let budget = self.budget.get();
        if budget == 0 {
            return false;
        }
        self.budget.set(budget - 1);
        if self.seat().has_mail() {
            self.seat().take_mail(&self.ready);
            return false;
        }
        self.seat().children.len() == 0 && self.group().queued() == 0 && self.source_waits.get() == 0
    }

    /// Suspends `me` until whoever ends its wait has made it ready.
    ///
    /// # Safety
    /// `me` is the running fiber, may suspend (`region`) and has begun a wait that somebody will end.
    #[inline]
    pub(crate) unsafe fn suspend(&self, me: &Control) -> Cause {
        if me.is_marked() {
            // SAFETY: the caller's promise.
            return unsafe { self.suspend_marked(me) };
        }
        self.count_unwinding();
        // SAFETY: the caller's promise.
        unsafe { self.leave(me) };
        me.state.end_wait()
    }

    #[cold]
    #[inline(never)]
    unsafe fn suspend_marked(&self, me: &Control) -> Cause {
        self.count_unwinding();
        if !me.is_held() {
            // SAFETY: the caller's promise.
            unsafe { self.leave_moving(me, false) };
            return me.state.end_wait();
        }
        // SAFETY: the caller's promise.
        unsafe { self.leave_marked(me, || ()) };
        let cause = me.state.end_wait();
        resume_hooks(me);
        cause
    }

    #[inline]
    fn count_unwinding(&self) {
        if std::thread::panicking() {
            add(&self.seat().counters.unwinding_waits, 1);
        }
    }

    /// As `suspend`, but at `deadline_ns` the wait ends by itself.
    ///
    /// # Safety
    /// As `suspend`.
    pub(crate) unsafe fn suspend_until(&self, me: &Control, deadline_ns: u64) -> Cause {
        if deadline_ns == u64::MAX {
            // SAFETY: the caller's promise.
            return unsafe { self.suspend(me) };
        }
        if me.join.is_done() {
            // SAFETY: the caller's promise.
            return unsafe { self.suspend_ended_until(me, deadline_ns) };
        }
        // SAFETY: a fiber that waits is in user code, and has no outcome yet: the slot is free until the wait is over.
        unsafe { self.suspend_with(me, me.new_deadline(), deadline_ns) }
    }

    /// As `suspend_until`, by a fiber whose outcome is in its slot: the foreign waker that is told of its end waits.
    #[cold]
    #[inline(never)]
    unsafe fn suspend_ended_until(&self, me: &Control, deadline_ns: u64) -> Cause {
        let entry = Entry::new(ptr::from_ref(me).cast());
        // SAFETY: the caller's promise; the entry outlives the call.
        unsafe { self.suspend_with(me, &entry, deadline_ns) }
    }

    /// # Safety
    /// As `suspend`; and `entry` is a new one for `me`, which stays in place until this returns.
    #[inline(always)]
    unsafe fn suspend_with(&self, me: &Control, entry: &Entry, deadline_ns: u64) -> Cause {
        let was_bound = me.may_move() && me.set_bound(true);
        // SAFETY: the caller's promise; I1, I2. One that may move is bound meanwhile, so the timers are the same.
        unsafe {
            (*self.timers.get()).arm(entry, deadline_ns);
            let cause = self.suspend(me);
            (*self.timers.get()).disarm(entry);
            if me.may_move() {
                me.set_bound(was_bound);
            }
            cause
        }
    }

    /// Suspends `me`, which waits for `child`: if that is the newest unstarted child, it runs at once, unless there are hooks to run first.
    ///
    /// # Safety
    /// As `suspend`.
    pub(crate) unsafe fn suspend_for(&self, me: &Control, child: &Control) -> Cause {
        let wanted = ptr::from_ref(child).cast_mut();
        // SAFETY: the caller's promise; a child taken from the deque is ours, and started before it is gone to.
        unsafe {
            if self.budget.get() != 0 && !me.is_marked() && self.seat().children.pop_if_newest(wanted) && self.start(child) {
                self.budget.set(self.budget.get() - 1);
                self.current.set(child);
                self.note_running(child);
                self.count_unwinding();
                self.go(me, child.sp());
                return me.state.end_wait();
            }
            self.suspend(me)
        }
    }

    /// Goes from `me` to the next ready fiber, or to the loop.
    #[inline]
    unsafe fn leave(&self, me: &Control) {
        let to = self.hand_over();
        // SAFETY: the caller's promise; `hand_over` gave a place that nobody else goes on at.
        unsafe { self.go(me, to) };
    }

    #[inline(always)]
    unsafe fn go(&self, me: &Control, to: *mut u8) {
        let frame = 0u8;
        me.note_depth(ptr::from_ref(&frame) as usize);
        if cfg!(debug_assertions) {
            audit::suspends(me, (ptr::from_ref(&frame) as usize).wrapping_sub(me.stack_bottom()));
        }
        // SAFETY: F1, F3 - `to` is the loop, or a fiber just taken from this worker's list.
        unsafe { switch_keeping_float(me.sp_place(), to) };
        if cfg!(debug_assertions) {
            let current = here().map_or(ptr::null(), |worker| worker.current.get());
            assert!(fork::is_child() || ptr::eq(current, me), "F2: another fiber stands where {me} goes on");
        }
    }

    /// Chooses who runs next: a ready fiber while the turn lasts, else the loop. Gives the place to go on at.
    #[inline]
    fn hand_over(&self) -> *mut u8 {
        let budget = self.budget.get();
        if budget == 0 || self.ready.is_empty() {
            return self.back_to_loop();
        }
        self.budget.set(budget - 1);
        let next = self.pop_ready();
        self.current.set(next);
        // SAFETY: the list was not empty; F1 - the fiber is ours now, and started.
        unsafe {
            self.note_running(&*next);
            debug_assert!(ptr::eq((*next).home().cast(), self.seat()), "F5: fiber {} in another worker's list", *next);
            (*next).sp()
        }
    }

    fn back_to_loop(&self) -> *mut u8 {
        self.current.set(ptr::null());
        self.sp.get()
    }

    /// The fiber has ended on the stack we stand on: finds the next one for this stack, or the place to leave it for.
    fn after_end(&self, control: &Control) -> AfterEnd {
        let moved = control.may_move();
        if !moved {
            self.count_settled(-1);
        }
        add(&self.seat().counters.ended, 1);
        // SAFETY: F4 - the stack goes to the next fiber in place, or to caches of this worker, which nobody else can take from
        // before this stack has been left (`stack.rs`, I2).
        let stack = unsafe { control.take_stack() };
        let condemned = control.verdict() != Verdict::Run;
        control.leave_home();
        if control.release() {
            // SAFETY: the last reference is gone.
            unsafe { recycle(control) };
        }
        self.feed.set(self.groups.has_starved());
        if moved {
            self.groups.mover_goes();
        }
        if condemned {
            // It may be one of the group's reserve, which others could take at once (F4): the loop gives it back.
            self.left_stack.set(Some(stack));
            return AfterEnd::Leave(self.back_to_loop());
        }
        let may_stay = self.ready.is_empty() && self.budget.get() != 0 && !self.group().is_stopping();
        if let Some(next) = may_stay.then(|| self.child_for(&stack)).flatten() {
            self.budget.set(self.budget.get() - 1);
            // Not `prepare`: it would write over the frame we stand on. The place to begin at is never gone to.
            let top = stack.top() as *mut u8;
            self.settle_at(next, stack, top);
            self.current.set(next);
            self.note_running(next);
            return AfterEnd::RunHere(next);
        }
        // SAFETY: I1, I2.
        unsafe { (*self.stacks.get()).give(stack) };
        AfterEnd::Leave(self.hand_over())
    }

    /// The newest child, if it can use `stack` as it is.
    fn child_for(&self, stack: &Stack) -> Option<&'static Control> {
        // SAFETY: popped, so it is ours; a block outlives its fiber's end.
        let child: &'static Control = unsafe { self.seat().children.pop().as_ref()? };
        debug_assert!(!child.is_started(), "F1: fiber {child}, which has started, among the children");
        if child.class() == stack.class() {
            return Some(child);
        }
        // It was the newest a moment ago and there is room where it was.
        let pushed = self.seat().children.push(ptr::from_ref(child).cast_mut());
        debug_assert!(pushed, "no room for a child that was just taken out");
        None
    }
}

enum AfterEnd {
    /// Run this fiber on the stack we stand on.
    RunHere(&'static Control),
    /// Leave for this place.
    Leave(*mut u8),
}

/// Runs the hooks of a fiber that goes on, wherever that is.
fn resume_hooks(me: &Control) {
    if let Some(worker) = here() {
        worker.run_hooks(me, When::Resume);
    }
}

/// What every fiber's stack begins with.
unsafe extern "C" fn root(arg: *mut u8) -> ! {
    // SAFETY: `settle` gave the control block of the fiber whose stack this is.
    let mut control: &Control = unsafe { &*arg.cast() };
    loop {
        FloatControl::DEFAULT.set();
        run_to_end(control);
        let Some(worker) = here() else { end_of_child() };
        match worker.after_end(control) {
            AfterEnd::RunHere(next) => control = next,
            // SAFETY: F4 - nothing on this stack is used any more; `to` is the loop or a fiber taken from this worker's list.
            AfterEnd::Leave(to) => unsafe { leave_for_good(to) },
        }
    }
}

/// A fiber that forked has ended in the child too, and there is nothing to go on with.
#[cold]
fn end_of_child() -> ! {
    fork::abort("a fiber ended or suspended in a forked child");
}

/// Runs user code to its end and pays what the end owes.
#[inline(never)]
fn run_to_end(control: &Control) {
    let table = control.table();
    // Now: who joins it may be gone, and with it the root that names the tally, as soon as the outcome is stored.
    let tally = control.tally();
    // SAFETY: F2 - the fiber is running; it is run or refused once.
    let ended = unsafe {
        match control.verdict() {
            Verdict::Run => (table.run)(control),
            Verdict::NoStack => (table.refuse)(control, here().expect("a fiber runs on a worker").group().starved_why()),
            Verdict::ShutDown | Verdict::ShutDownInReserve => (table.refuse)(control, NeverRan::shut_down()),
        }
    };
    if ended.lost_panic {
        control.report_lost();
    }
    match ended.watcher {
        // SAFETY: a watcher waits until it is claimed, so its block is alive.
        Some(Watcher::Waiter(waiter)) => make_ready(unsafe { (*waiter).claim(Cause::Woken) }.expect("only the end wakes a joiner")),
        Some(Watcher::Task(waker)) => quietly(|| waker.wake()),
        None => {}
    }
    if let Some(tally) = tally {
        let owner = tally.owner();
        if tally.leave() {
            // SAFETY: the owner waits until the last child, this one, has claimed it, so its block is alive.
            make_ready(unsafe { (*owner).claim(Cause::Woken) }.expect("only the last child wakes a scope"));
        }
    }
}

/// When a worker gets up for the next of its `armed` deadlines, having done so `before_ns`.
fn alarm_at(wake_ns: u64, armed: usize, before_ns: u64) -> u64 {
    if armed <= ALARM_FEW { wake_ns } else { wake_ns.max(before_ns + ALARM_GAP_NS) }
}

/// How long to poll after a poll of `spin_ns` was in vain.
fn less_spin_ns(spin_ns: u64) -> u64 {
    let half_ns = spin_ns / 2;
    if half_ns < SPIN_LEAST_NS { 0 } else { half_ns }
}

/// Whether it is `deadline_ns`; `u64::MAX` is never.
pub(crate) fn passed(deadline_ns: u64) -> bool {
    deadline_ns != u64::MAX && clock::now_ns() >= deadline_ns
}

/// Asks the cache for the stack that will run next and the block after it; twice as fast with a thousand fibers (`spikes`).
#[inline(always)]
fn fetch_ahead(sp: *mut u8, block: *mut Control) {
    prefetch(sp);
    prefetch(sp.wrapping_add(64));
    prefetch(block);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_deadlines_are_met_exactly_and_dense_ones_together() {
        let (wake_ns, before_ns) = (1_000_020_000, 1_000_000_000);
        assert_eq!(alarm_at(wake_ns, 1, before_ns), wake_ns);
        assert_eq!(alarm_at(wake_ns, ALARM_FEW, before_ns), wake_ns);
        assert_eq!(alarm_at(wake_ns, ALARM_FEW + 1, before_ns), before_ns + ALARM_GAP_NS);
        assert_eq!(alarm_at(wake_ns + ALARM_GAP_NS, 100_000, before_ns), wake_ns + ALARM_GAP_NS);
        assert_eq!(alarm_at(u64::MAX, 0, before_ns), u64::MAX);
    }
}
