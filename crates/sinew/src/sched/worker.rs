//! One worker: a thread that runs fibers, until none is left and it may leave.
//!
//! Its loop stands on the thread's own stack. A fiber that suspends goes straight to the next ready one, if there is one and the turn's budget
//! lasts, else back to the loop, which looks at everything else: inbox, timers, the group, idle stacks, sleep. So a hop costs one switch,
//! and no amount of ready fibers hides the rest of the world for more than `TURN` switches, or a ring for more than two turns.
//!
//! # Picture
//! ```text
//!   loop:   mail -> timers -> I/O -> [at times: group, oldest child] -> own: woken last, ready, moving -> newest child -> group -> steal -> spin -> other groups -> sleep
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

mod bench;
mod feed;
mod leave;
mod life;
mod moving;
mod rest;
mod search;
mod source;
#[cfg(test)]
mod tests;

use std::cell::{Cell, OnceCell, UnsafeCell};
use std::ptr;
use std::sync::Arc;

use self::life::{end_of_child, root};
use self::moving::{Beat, Suspect, find_place};
use self::rest::WAKE_COST_NS;
use self::source::CALLS;
use crate::base::atomic::{Relaxed, SeqCst, fence, thread_local};
use crate::base::list::{Linked, List};
use crate::base::mask::WORKERS_MAX;
use crate::base::prefetch::prefetch;
use crate::event::source::Source;
use crate::event::timers::Timers;
use crate::fiber::hooks::Region;
use crate::fiber::stack::{self, Stack};
use crate::fiber::switch::switch_keeping_float;
use crate::fiber::{COUNTS, Claimed, Control, Kind, pool};
use crate::os::alarm::Ahead;
use crate::os::{clock, fork, futex};
use crate::sched::cancel::cancel_all;
use crate::sched::counters::add;
use crate::sched::group::Group;
use crate::sched::groups::Groups;
use crate::sched::seat::Seat;
use crate::sched::settings::Policy;

/// Switches from fiber to fiber before the loop looks at everything else: half a microsecond of yields. A look costs about 10 ns.
const TURN: u32 = 32;

/// Pauses between two looks of one that polls. A pair of fibers on two workers talks in 0.6 us with 2 to 4, in 1.1-2.4 with flare's 16.
const SPIN_PAUSES: u32 = 4;

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

/// Makes fibers ready that a source has claimed.
fn ready_all(woken: &List<Control>) {
    loop {
        let control = woken.pop();
        if control.is_null() {
            break;
        }
        // SAFETY: the source has claimed it.
        make_ready(unsafe { Claimed::again(control) });
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
        let worker = here();
        let home = (*control).home().cast::<Seat>();
        match worker {
            Some(worker) if ptr::eq(worker.seat(), home) => worker.ready.push(control.cast_mut()),
            _ => (*home).deliver(control),
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
    /// It has handed stacks out, and told nobody.
    untold: Cell<bool>,
    /// The stack of a fiber that was ended without having run; the loop finds out whose it is.
    left_stack: Cell<Option<Stack>>,
    /// The innermost region in which the current fiber must not suspend. No other fiber runs before it is left.
    region: Cell<Option<Region>>,
    /// When it last got up for a deadline.
    alarm_ns: Cell<u64>,
    /// Timers that are set ahead while deadlines are dense, once they were; `None` within if there can be none.
    ahead: OnceCell<Option<Ahead>>,
    /// When idle stacks give their pages back; `u64::MAX` if none have to.
    trim_ns: Cell<u64>,
    stacks: UnsafeCell<stack::Cache>,
    blocks: UnsafeCell<pool::Cache>,
    timers: UnsafeCell<Timers>,
    /// Where its fibers wait for I/O, once one has.
    source: UnsafeCell<Option<Source>>,
    /// Its fibers that wait there.
    source_waits: Cell<usize>,
    /// Fibers that were ready when the kernel was last asked what has come, and have not run since. What epoll would say meanwhile is for those behind them; by the time that they run, what was touched
    /// to say it has left the caches: with 10,000 connections that are all asked, a switch then waits for its stack's page-table entry each time.
    backlog: Cell<u32>,
    /// The turn in which it was.
    asked_turn: Cell<u32>,
    /// Whether the turn that has just ended was a whole one, and more were ready.
    was_full: Cell<bool>,
    /// Whether the ring was not asked after the turn before.
    skipped: Cell<bool>,
    /// When it last looked at the group's roam, in turns and by the clock, which is 0 if it had no reason to since, or has rested; and that it must, since it was the lookout.
    roam_turn: Cell<u32>,
    roam_ns: Cell<u64>,
    roam_due: Cell<bool>,
    /// How many looks there had been when nobody but this worker had looked.
    roam_looks: Cell<u64>,
    /// I/O that did not have to wait, since a fiber last let others run for it.
    gifts: Cell<u32>,
    /// Calls that may wait, up to the next look at who makes them; and when they began to be counted, in turns and switches left.
    calls_left: Cell<u32>,
    calls_seen: Cell<(u32, u32)>,
    /// A fiber that may move, has come back to the loop, and has not been seen to yet.
    left: Cell<*const Control>,
    /// That one yielded: it is ready. Else it waits.
    left_ready: Cell<bool>,
    /// A fiber that runs before all others: one that was dispatched by another that had to leave by the loop.
    urgent: Cell<*const Control>,
    /// How many of them did, in a row.
    urgent_runs: Cell<u32>,
    /// A fiber that may move was queued, and nobody was woken for it: this worker was about to take it.
    unannounced: Cell<bool>,
    /// One was queued again, at its own end of the deque. Those before it were told of; but a thief may have taken them, and then nobody looks for this one. So it is told of unless this worker takes the next from there itself: who was called
    /// for that one finds this one in its place.
    requeued: Cell<bool>,
    /// What any worker may take is due before its own fibers.
    others_due: Cell<bool>,
    /// They were the first in the last turn.
    others_had: Cell<bool>,
    /// Whose turn it is among these: the oldest child, before the group's queue. Not by the number of the round: where others are due in every eighth, that is always the same.
    child_next: Cell<bool>,
    /// And among its own: those that may move, before those that stay.
    moving_next: Cell<bool>,
    /// Whether fibers that may move found no room here, and may still wait in the group's queue.
    spills: Cell<bool>,
    /// Fibers run since it last looked there.
    ticks: Cell<u32>,
    /// Times in a row that the one woken last went first.
    next_runs: Cell<u32>,
    /// Among its children there may be some that somebody was woken for. Some were, since it last had none as a quiet one came.
    has_loud: Cell<bool>,
    /// The flushes that there had been then.
    flushes_before: Cell<usize>,
    /// Times it found nothing to do.
    passes: Cell<u32>,
    /// Whom to rob first there.
    next_victim: Cell<usize>,
    /// A worker that may be held, as it was at the last look, and whom to look at next.
    suspect: Cell<Option<Suspect>>,
    suspect_next: Cell<usize>,
    /// The fibers in others' slots that it looks after while it is idle: in its group, and in those that it steals from.
    watched: Beat,
    watched_abroad: Beat,
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
        let place = group * WORKERS_MAX + index;
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
            untold: Cell::new(false),
            left_stack: Cell::new(None),
            region: Cell::new(None),
            alarm_ns: Cell::new(0),
            ahead: OnceCell::new(),
            trim_ns: Cell::new(u64::MAX),
            stacks: UnsafeCell::new(stack::Cache::new()),
            blocks: UnsafeCell::new(pool::Cache::new()),
            timers: UnsafeCell::new(Timers::new()),
            source: UnsafeCell::new(None),
            source_waits: Cell::new(0),
            backlog: Cell::new(0),
            was_full: Cell::new(false),
            skipped: Cell::new(false),
            asked_turn: Cell::new(0),
            roam_turn: Cell::new(0),
            roam_ns: Cell::new(0),
            roam_due: Cell::new(false),
            roam_looks: Cell::new(0),
            gifts: Cell::new(0),
            calls_left: Cell::new(CALLS),
            calls_seen: Cell::new((0, 0)),
            left: Cell::new(ptr::null()),
            left_ready: Cell::new(false),
            urgent: Cell::new(ptr::null()),
            urgent_runs: Cell::new(0),
            unannounced: Cell::new(false),
            requeued: Cell::new(false),
            others_due: Cell::new(false),
            others_had: Cell::new(false),
            child_next: Cell::new(false),
            moving_next: Cell::new(false),
            spills: Cell::new(false),
            ticks: Cell::new(0),
            next_runs: Cell::new(0),
            has_loud: Cell::new(false),
            flushes_before: Cell::new(0),
            passes: Cell::new(0),
            next_victim: Cell::new(0),
            suspect: Cell::new(None),
            suspect_next: Cell::new(index + 1),
            watched: Beat::new(place + 1),
            watched_abroad: Beat::new(place + 1),
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
        self.seat.counters.begin(clock::now_ns());
        let has_spares = self.group().settings.spares != 0;
        if self.group().is_spare(self.index) {
            self.sit_out();
        }
        loop {
            if fork::is_child() {
                end_of_child();
            }
            if has_spares {
                self.group().duty.come_back(self.index);
            }
            self.look_around();
            if has_spares && self.sees_to_duty() {
                continue;
            }
            let next = self.next();
            // SAFETY: `next` took the fiber out of its queue: it is ours (F1).
            match unsafe { next.as_ref() } {
                Some(control) => {
                    self.pass_on();
                    self.announce_left();
                    self.enter(control);
                }
                None if self.may_retire() => break,
                None => self.rest(),
            }
        }
        HERE.with(|here| here.set(ptr::null()));
    }

    /// Sees to it that this worker, which is about to run something, is missed nowhere.
    #[inline]
    fn pass_on(&self) {
        if self.rested.replace(false) {
            self.pass_rest_on();
        }
        self.group().hire_lookout();
    }

    /// A worker that leaves rest with something to do wakes one more for what it does not take (law S1), and for I/O and for held workers that it had looked after, or was called to (`roam.rs`, I1).
    fn pass_rest_on(&self) {
        if self.group().has_work() {
            self.announce(1);
        }
        if self.group().has_errands() && !self.group().call_one() {
            self.pass_errands_on();
        }
        if self.group().roam.has_waits() {
            self.group().call_lookout();
        }
        self.pass_watch_on();
        if self.group().settings.spares != 0 {
            self.call_sentry();
        }
        if self.group().may_grow() {
            // SeqCst: meets the fence in `Roam::must_call`. Either one who waits there as the first sees that this worker is not idle, or this one sees that it waits.
            fence(SeqCst);
        }
    }

    /// Nobody of this group is idle any more: who sent an errand here calls the next group.
    #[cold]
    fn pass_errands_on(&self) {
        let errands = self.group().errands();
        let senders = self.groups.all.iter().filter(|group| errands & 1 << group.index != 0);
        senders.for_each(|group| _ = group.call_thief());
    }

    /// Mail, timers, I/O, surplus stacks, starved fibers: all that does not come by itself.
    fn look_around(&self) {
        self.seat().take_mail(&self.ready);
        // SAFETY: I1, I2 - the borrows end with each call, and none of them runs user code.
        unsafe {
            // Before I/O is looked at, which is left to the sleep of a worker that has nothing else to do: one with fibers that sleep and compute by turns has, each time that it comes here, and never sleeps.
            if (*self.timers.get()).armed() != 0 {
                (*self.timers.get()).expire(&self.ready);
            }
        }
        // What ended the sleep of a lookout is to be read, though none of its own fibers waits.
        if self.source_waits.get() != 0 || self.roam_due.get() {
            self.look_at_source();
        }
        if self.roam_due.get() || self.group().roam.has_waits() {
            self.look_at_roam();
        } else {
            self.roam_ns.set(0);
        }
        // SAFETY: as above.
        unsafe { (*self.stacks.get()).settle() };
        if COUNTS {
            self.seat().counters.ready.store(self.ready.len(), Relaxed);
        }
        if let Some(stack) = self.left_stack.take() {
            self.give_left(stack);
        }
        if self.feed.replace(false) || self.owes_stacks() {
            self.feed_starved();
        }
        if self.group().is_stopping() {
            self.wind_up();
        }
    }

    /// Whether a fiber is ready that this worker runs without looking any further: nothing else tells of these.
    fn has_own(&self) -> bool {
        !self.ready.is_empty() || !self.urgent.get().is_null() || !self.seat.next.load(Relaxed).is_null()
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

    /// As [`Group::tell`], in one call less: each child is announced.
    fn announce(&self, items: usize) {
        if !self.group().announce(items) {
            add(&self.seat.counters.unserved, 1);
        }
    }

    /// Takes the next ready fiber, and fetches what the one after it will need: its control block is known, its stack too.
    #[inline]
    fn pop_ready(&self) -> *mut Control {
        let control = self.ready.pop();
        let next = self.ready.first();
        if !next.is_null() {
            // SAFETY: fibers in the list are alive.
            unsafe { fetch_ahead((*next).sp(), Linked::link(&*next).load(Relaxed)) };
        }
        control
    }

    /// As `pop_ready`, for those that may move.
    #[inline]
    fn pop_moving(&self) -> *mut Control {
        let control = self.seat.moving.pop_oldest();
        if control.is_null() {
            return control;
        }
        self.requeued.set(false);
        let [next, after] = self.seat.moving.oldest_two();
        // SAFETY: blocks are never unmapped, and what is read of one that a thief has taken is an atomic.
        if let Some(next) = unsafe { next.as_ref() } {
            fetch_ahead(next.sp(), after);
        }
        control
    }

    /// Runs `control`, and whatever it hands over to, until one comes back to the loop.
    fn enter(&self, control: &Control) {
        if !control.is_started() {
            if !self.start(control, root) {
                return;
            }
            if self.groups.has_starved() {
                self.spare_rest();
            }
        } else if !ptr::eq(control.home().cast(), self.seat) {
            control.move_to(ptr::from_ref(self.seat).cast());
        }
        let turn = self.turn_length();
        self.budget.set(turn);
        self.current.set(control);
        // SAFETY: F1 - the fiber was taken from a queue; F3 - only this worker resumes it, and it stands in its loop.
        unsafe { switch_keeping_float(self.sp.as_ptr(), control.sp()) };
        self.current.set(ptr::null());
        let counters = &self.seat().counters;
        let switches = turn - self.budget.get() + 1;
        add(&counters.switches, u64::from(switches));
        self.ticks.set(self.ticks.get() + switches);
        self.backlog.set(self.backlog.get().saturating_sub(switches));
        self.was_full.set(switches > TURN && !self.ready.is_empty());
        // Not yet where it has dispatched one: it is queued when that one has begun (`root_of_dispatched`).
        if !self.left.get().is_null() && self.urgent.get().is_null() {
            self.see_to_left();
        }
    }

    /// Switches from fiber to fiber that this turn may have: none where others go first and wait.
    fn turn_length(&self) -> u32 {
        if self.group().settings.policy == Policy::Balance && self.group().queued() != 0 { 0 } else { TURN }
    }

    fn may_retire(&self) -> bool {
        self.group().is_stopping()
            && self.settled.get() == 0
            && !self.seat().has_mail()
            && self.groups.has_no_movers()
            && self.group().retire()
    }
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
