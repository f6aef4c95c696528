//! One worker: a thread that runs fibers, until none is left and it may leave.
//!
//! Its loop stands on the thread's own stack. A fiber that suspends goes straight to the next ready one, if there is one and the turn's budget
//! lasts, else back to the loop, which looks at everything else: inbox, timers, the group, idle stacks, sleep. So a hop costs one switch,
//! and no amount of ready fibers hides the rest of the world for more than `TURN` switches.
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
mod moving;
mod rest;
mod search;
#[cfg(test)]
mod tests;

use std::cell::{Cell, OnceCell, UnsafeCell};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use self::moving::{Beat, Suspect, find_place};
use self::rest::WAKE_COST_NS;
use crate::base::atomic::{Relaxed, SeqCst, fence, thread_local};
use crate::base::list::{Linked, List};
use crate::base::mask::WORKERS_MAX;
use crate::base::prefetch::prefetch;
use crate::base::wheel::Entry;
use crate::event::source::{SOURCE_GAP_NS, SOURCE_TURNS, Source};
use crate::event::timers::Timers;
use crate::fiber::hooks::{Region, When};
use crate::fiber::stack::{self, Stack};
use crate::fiber::state::Cause;
use crate::fiber::switch::{FloatControl, Root, leave_for_good, prepare, switch_keeping_float};
use crate::fiber::task::{Ended, NeverRan, quietly};
use crate::fiber::{COUNTS, Claimed, Control, Kind, Verdict, Watcher, pool};
use crate::os::alarm::Ahead;
use crate::os::{audit, clock, fork, futex};
use crate::sched::cancel::cancel_all;
use crate::sched::counters::add;
use crate::sched::group::Group;
use crate::sched::groups::Groups;
use crate::sched::seat::Seat;
use crate::sched::settings::Policy;

/// Switches from fiber to fiber before the loop looks at everything else: half a microsecond of yields. A look costs about 10 ns.
const TURN: u32 = 32;

/// I/O calls of one worker's fibers that are done at once before the others, timers and other descriptors get their turn: else a fiber whose peer is always ahead of it would hold the worker for ever. Arbitrary:
/// some 50 us of system calls.
const GIFTS: u32 = 32;

/// Calls of one worker's fibers that may wait before it looks whether one fiber has made them all, and did not wait: that one then lets others run. Else a loop over a channel that is never empty would hold the worker for ever. Some 1.3 us of
/// sends and receives; a look and a yield in vain are 30 ns.
const CALLS: u32 = 256;

/// Fibers that are ready, or have asked the ring for something in this turn, from which on the ring is asked for what could be tried. A suspension costs more than a system call's share: one stream of 4 KiB writes between two fibers of
/// one worker had 0.24 GB/s by the ring, 0.86 by plain calls.
const RING_SHARERS: usize = 4;

/// Lines of a stack from where a fiber waits for a socket up to its own code, and of a control block. An echo by epoll uses 17 and 3 of these, by steps of a debugger.
const IO_STACK_LINES: usize = 16;
const BLOCK_LINES: usize = size_of::<Control>() / 64;

/// A worker that has reason to look at the roam, and has not for so long, was held by one of its fibers. Arbitrary: a hundred short ones.
const HELD_NS: u64 = 1_000_000;

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
            others_due: Cell::new(false),
            others_had: Cell::new(false),
            child_next: Cell::new(false),
            moving_next: Cell::new(false),
            spills: Cell::new(false),
            ticks: Cell::new(0),
            next_runs: Cell::new(0),
            has_loud: Cell::new(false),
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

    /// Tells the kernel what this worker's fibers ask of it, and readies those that it has answered. A worker with nothing else to do leaves that to its sleep, which is the same system call.
    fn look_at_source(&self) {
        let woken = List::new();
        let turns = self.turn.get().wrapping_sub(self.asked_turn.get());
        // SAFETY: I1, I2 - the borrow ends with the block, and no user code runs in it.
        let asked = unsafe {
            let Some(source) = &mut *self.source.get() else { return };
            if !source.has_found() && !self.has_own() && !self.has_work() {
                return;
            }
            source.look(turns, self.backlog.get() != 0, self.ready.len(), &woken)
        };
        ready_all(&woken);
        if asked {
            self.asked_turn.set(self.turn.get());
            self.backlog.set(u32::try_from(self.ready.len()).unwrap_or(u32::MAX));
        }
    }

    /// Readies fibers that may move and whose I/O has come, as often as a worker that is never idle polls epoll.
    fn look_at_roam(&self) {
        let turns = self.turn.get().wrapping_sub(self.roam_turn.get());
        if !self.roam_due.replace(false) && turns < SOURCE_TURNS && !passed(self.roam_ns.get() + SOURCE_GAP_NS) {
            return;
        }
        self.roam_turn.set(self.turn.get());
        let now_ns = clock::now_ns();
        let before_ns = self.roam_ns.replace(now_ns);
        if before_ns != 0 && now_ns - before_ns >= HELD_NS {
            self.relieve();
        }
        let (roam, woken) = (&self.group().roam, List::new());
        let alone = roam.looks() == self.roam_looks.get();
        let looks = roam.look(&woken);
        if alone {
            self.roam_looks.set(looks);
        }
        ready_all(&woken);
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
            let opened = source.insert(Source::open(self.groups.io, self.seat().bell()?)?);
            self.seat().counters.io.store(opened.io() as u8, Relaxed);
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

    /// The same, by epoll, where fibers do their system calls themselves: there is a while in which the cache can get what the one after the next will need, all frames of a call that waits.
    pub(crate) fn begin_epoll_wait(&self, me: &Control) {
        self.begin_source_wait(me);
        // SAFETY: fibers in the list are alive.
        unsafe {
            if let Some(next) = self.ready.first().as_ref()
                && let Some(after) = Linked::link(next).load(Relaxed).as_ref()
            {
                let sp = after.sp();
                (0..IO_STACK_LINES).for_each(|line| prefetch(sp.wrapping_add(64 * line)));
                (1..BLOCK_LINES).for_each(|line| prefetch(ptr::from_ref(after).cast::<u8>().wrapping_add(64 * line)));
            }
        }
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
            self.pay_for_gifts();
            self.yield_now(me);
        }
    }

    /// As `count_gift`, for a fiber that lets others run by itself if this is `true`.
    #[cfg(any(feature = "futures-io", feature = "tokio-io"))]
    pub(crate) fn owes_a_turn(&self) -> bool {
        self.gifts.set(self.gifts.get() + 1);
        let owes = self.gifts.get() >= GIFTS;
        if owes {
            self.pay_for_gifts();
        }
        owes
    }

    #[inline]
    fn pay_for_gifts(&self) {
        self.gifts.set(0);
        if self.backlog.get() == 0 {
            // To the source these calls were many turns.
            self.turn.set(self.turn.get().wrapping_add(SOURCE_TURNS));
        }
    }

    /// The running fiber begins a call that may wait, or find at once what it would wait for. Whether it is to [look](Self::look_at_calls) at who makes so many.
    #[inline]
    #[must_use]
    pub(crate) fn count_call(&self) -> bool {
        // A subtraction in memory and a look at its carry.
        let (left, was_last) = self.calls_left.get().overflowing_sub(1);
        self.calls_left.set(left);
        was_last
    }

    /// Whether the running fiber `me` has made all calls since the last look itself, and so is to let others run, and may.
    pub(crate) fn look_at_calls(&self, me: &Control) -> bool {
        let before = self.calls_seen.get();
        self.begin_calls();
        // Who unwinds is not switched away for the sake of others: std counts panics by thread.
        self.calls_seen.get() == before && !me.must_not_suspend() && !std::thread::panicking()
    }

    /// Counts calls from here on.
    pub(crate) fn begin_calls(&self) {
        self.calls_left.set(CALLS);
        self.calls_seen.set((self.turn.get(), self.budget.get()));
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
        // Not yet where it has dispatched one: it is queued when that one has begun (`root_of_dispatched`).
        if !self.left.get().is_null() && self.urgent.get().is_null() {
            self.see_to_left();
        }
    }

    /// Switches from fiber to fiber that this turn may have: none where others go first and wait.
    fn turn_length(&self) -> u32 {
        if self.group().settings.policy == Policy::Balance && self.group().queued() != 0 { 0 } else { TURN }
    }

    /// Gives an unstarted fiber a stack and settles it here; `false` if there is none and it was put aside.
    fn start(&self, control: &Control, root: Root) -> bool {
        debug_assert!(!control.is_started(), "F1: fiber {control} is started twice");
        self.judge(control);
        self.note_start(control);
        // SAFETY: I1, I2.
        let taken = unsafe { (*self.stacks.get()).take(control.class()) };
        match taken {
            Ok(stack) => {
                self.settle(control, stack, root);
                true
            }
            Err(why) => {
                // SAFETY: the fiber is unstarted and ours.
                unsafe { self.groups.starve(self.group(), control, &why) };
                false
            }
        }
    }

    /// Counts how long it was ready before its first run, if that is timed.
    #[inline]
    fn note_start(&self, control: &Control) {
        if control.is_timed() {
            self.seat.counters.start_latency.record(control.take_ready_time());
        }
    }

    /// Nothing begins to run in a runtime that is being shut down.
    fn judge(&self, control: &Control) {
        if self.group().is_stopping() && !control.is_condemned() {
            control.condemn(Verdict::ShutDown);
        }
    }

    fn settle(&self, control: &Control, stack: Stack, root: Root) {
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

    fn may_retire(&self) -> bool {
        self.group().is_stopping()
            && self.settled.get() == 0
            && !self.seat().has_mail()
            && self.groups.has_no_movers()
            && self.group().retire()
    }

    /// Has the kernel say what has come, if this worker's fibers wait at epoll: a ring tells by memory, which is polled anyway.
    fn ask_epoll(&self) {
        // SAFETY: I1, I2 - it runs no user code.
        let source = unsafe { (*self.source.get()).as_mut() };
        if let Some(source) = source.filter(|source| self.source_waits.get() != 0 && !source.is_ring()) {
            source.sleep(0);
        }
    }

    /// Runs an unstarted fiber at once, in the place of `me`, which is queued.
    ///
    /// # Safety
    /// The child is unstarted and the caller's alone, `me` is the running fiber and may suspend.
    pub(crate) unsafe fn dispatch(&self, me: &Control, child: &'static Control) {
        add(&self.seat().counters.spawned, 1);
        let by_the_loop = me.is_marked() || self.budget.get() == 0;
        if !self.start(child, if by_the_loop { root_of_dispatched } else { root }) {
            return;
        }
        // SAFETY: F1 - a running fiber is in no list; the child is started, in no list, and gone to or left to the loop.
        unsafe {
            if by_the_loop {
                self.urgent.set(child);
                self.make_way(me);
                // It has had its turn again, and all before it: this is no chain that keeps others waiting.
                here().into_iter().for_each(|worker| worker.urgent_runs.set(0));
                return;
            }
            self.ready.push(ptr::from_ref(me).cast_mut());
            self.budget.set(self.budget.get() - 1);
            self.current.set(child);
            self.go(me, child.sp());
        }
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
        if !me.is_held() && !self.group().settings.shakes && self.ready.is_empty() && self.may_skip_yield() {
            return;
        }
        if !self.has_movers() && self.ready.is_empty() {
            // Those not yet started are whom this yield is for.
            self.others_due.set(true);
        }
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

    /// Whether a started fiber that may move is ready here.
    #[inline]
    fn has_movers(&self) -> bool {
        !self.seat.next.load(Relaxed).is_null() || !self.seat.moving.has_none()
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
        self.seat().children.has_none() && !self.has_movers() && self.group().queued() == 0 && self.source_waits.get() == 0
    }

    /// Suspends `me` until whoever ends its wait has made it ready.
    ///
    /// Not inlined, but all that it does is: one frame between a waiting call and the switch.
    ///
    /// # Safety
    /// `me` is the running fiber, may suspend (`region`) and has begun a wait that somebody will end.
    #[inline(never)]
    pub(crate) unsafe fn suspend(&self, me: &Control) -> Cause {
        if me.is_marked() {
            // SAFETY: the caller's promise.
            return unsafe { self.suspend_marked(me) };
        }
        self.count_unwinding();
        // SAFETY: the caller's promise.
        unsafe { self.leave(me) };
        end_wait(me)
    }

    #[cold]
    #[inline(never)]
    unsafe fn suspend_marked(&self, me: &Control) -> Cause {
        self.count_unwinding();
        if !me.is_held() {
            // SAFETY: the caller's promise.
            unsafe { self.leave_moving(me, false) };
            if me.is_timed() {
                note_latency(me);
            }
            return me.state.end_wait_of_mover();
        }
        // SAFETY: the caller's promise.
        unsafe { self.leave_marked(me, || ()) };
        let cause = end_wait(me);
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
    #[inline]
    pub(crate) unsafe fn suspend_until(&self, me: &Control, deadline_ns: u64) -> Cause {
        // SAFETY: the caller's promise.
        unsafe { if deadline_ns == u64::MAX { self.suspend(me) } else { self.suspend_timed(me, deadline_ns) } }
    }

    /// As `suspend_until`, with a deadline.
    ///
    /// # Safety
    /// As `suspend`.
    #[inline(never)]
    unsafe fn suspend_timed(&self, me: &Control, deadline_ns: u64) -> Cause {
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
        if me.may_move() && self.group().is_spare(self.index) && self.group().roam.instance().is_ok() {
            // SAFETY: the caller's promise.
            return unsafe { self.suspend_on_spare(me, entry, deadline_ns) };
        }
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

    /// As `suspend_with`, by one that may move and is on a spare: its deadline is kept at the group's roam, which is open, so that the spare may sit out meanwhile.
    ///
    /// # Safety
    /// As `suspend_with`.
    #[inline(never)]
    unsafe fn suspend_on_spare(&self, me: &Control, entry: &Entry, deadline_ns: u64) -> Cause {
        let group = self.group();
        if group.roam.begin_wait() {
            group.call_lookout();
        }
        // SAFETY: the caller's promise. The fiber counts as one that waits there, and takes the deadline out before it goes on, unless that has ended the wait (`roam.rs`, I2). A group is there while any fiber of its runtime is,
        // wherever that goes on.
        unsafe {
            group.roam.arm(entry, deadline_ns);
            let cause = self.suspend(me);
            if cause != Cause::TimedOut {
                group.roam.disarm(entry);
                // Who finds its deadline counts it out; nobody else does.
                group.roam.end_wait();
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
            // Not where fibers wait for stacks: what is not needed of those that were taken for one is handed out by the loop alone (`stack.rs`, I2).
            let may_go = self.budget.get() != 0 && !me.is_marked() && !self.groups.has_starved();
            if may_go && self.seat().children.pop_if_newest(wanted) && self.start(child, root) {
                self.budget.set(self.budget.get() - 1);
                self.current.set(child);
                self.count_unwinding();
                self.go(me, child.sp());
                return end_wait(me);
            }
            self.suspend(me)
        }
    }

    /// Goes from `me` to the next ready fiber, or to the loop.
    #[inline(always)]
    unsafe fn leave(&self, me: &Control) {
        let to = self.hand_over();
        // SAFETY: the caller's promise; `hand_over` gave a place that nobody else goes on at.
        unsafe { self.go(me, to) };
    }

    #[inline(always)]
    unsafe fn go(&self, me: &Control, to: *mut u8) {
        let frame = MaybeUninit::<u8>::uninit();
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
        let condemned = control.is_condemned();
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
        // Whoever is ready goes first; most often it is who has waited for this one.
        let may_stay = self.ready.is_empty() && !self.has_movers() && self.budget.get() != 0 && !self.group().is_stopping();
        if let Some(next) = may_stay.then(|| self.child_for(&stack)).flatten() {
            self.budget.set(self.budget.get() - 1);
            // Not `prepare`: it would write over the frame we stand on. The place to begin at is never gone to.
            let top = stack.top() as *mut u8;
            self.settle_at(next, stack, top);
            self.current.set(next);
            self.note_start(next);
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
        // Whoever was woken for it has perhaps looked meanwhile (S1). A quiet one is told of early, which does no harm.
        self.announce(1);
        None
    }
}

enum AfterEnd {
    /// Run this fiber on the stack we stand on.
    RunHere(&'static Control),
    /// Leave for this place.
    Leave(*mut u8),
}

/// Ends the wait of `me`, which goes on, and counts how long it was ready if its wake is timed. Here and not where it is switched to: most switches of a busy worker are those of yields, which are never timed, and would look in vain.
#[inline]
fn end_wait(me: &Control) -> Cause {
    if me.is_timed() {
        note_latency(me);
    }
    me.state.end_wait()
}

/// Not inlined: what it keeps over its calls would lie in the frame of every wait, and be one more cold line of most stacks.
#[cold]
#[inline(never)]
fn note_latency(me: &Control) {
    if let Some(worker) = here() {
        worker.seat().counters.latency.record(me.take_ready_time());
    }
}

/// Runs the hooks of a fiber that goes on, wherever that is.
fn resume_hooks(me: &Control) {
    if let Some(worker) = here() {
        worker.run_hooks(me, When::Resume);
    }
}

/// What that of a dispatched fiber begins with whose maker may move: others may have the maker from now on, and not before.
unsafe extern "C" fn root_of_dispatched(arg: *mut u8) -> ! {
    here().into_iter().for_each(Worker::see_to_left);
    // SAFETY: as there.
    unsafe { root(arg) }
}

/// What every other fiber's stack begins with.
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
    let ended = unsafe { if control.is_condemned() { refuse(control) } else { (table.run)(control) } };
    match ended {
        Ended::Unseen => {}
        // SAFETY: `join` made the watcher field the fiber's (`join.rs`, I1).
        Ended::Watched => match unsafe { control.take_watcher() } {
            // SAFETY: a watcher waits until it is claimed, so its block is alive.
            Watcher::Waiter(waiter) => make_ready(unsafe { (*waiter).claim(Cause::Woken) }.expect("only the end wakes a joiner")),
            Watcher::Task(waker) => quietly(|| waker.wake()),
        },
        Ended::InLostPanic => control.report_lost(),
    }
    if let Some(tally) = tally {
        let owner = tally.owner();
        if tally.leave() {
            // SAFETY: the owner waits until the last child, this one, has claimed it, so its block is alive.
            make_ready(unsafe { (*owner).claim(Cause::Woken) }.expect("only the last child wakes a scope"));
        }
    }
}

/// Ends a condemned fiber without having run it.
///
/// # Safety
/// The fiber is running, and was neither run nor refused.
#[cold]
#[inline(never)]
unsafe fn refuse(control: &Control) -> Ended {
    let why = match control.verdict() {
        Verdict::NoStack => here().expect("a fiber runs on a worker").group().starved_why(),
        Verdict::Run | Verdict::ShutDown | Verdict::ShutDownInReserve => NeverRan::shut_down(),
    };
    // SAFETY: the caller's promise.
    unsafe { (control.table().refuse)(control, why) }
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
