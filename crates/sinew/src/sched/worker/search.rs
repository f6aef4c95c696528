//! What a worker runs next, and where it finds it: its own fibers, what any worker of its group may take, the deques of others, other groups.

use std::ptr;

use super::{SPIN_PAUSES, Worker};
use crate::base::atomic::{Relaxed, spin_loop};
use crate::base::deque::{Deque, Stolen};
use crate::base::list::List;
use crate::fiber::Control;
use crate::os::clock;
use crate::sched::counters::add;
use crate::sched::seat::{CHILDREN_MAX, or_else, steal_one};
use crate::sched::settings::{Policy, Queue};

/// Rounds of the loop after which the policy is turned round for one. flare's number.
const ROUNDS: u32 = 8;
/// Fibers that a worker runs before it looks at what any worker may take, also if its rounds are long. Go's and tokio's number.
const TICKS: u32 = 61;
/// Fibers of a long group queue that a worker takes at once, at most. Arbitrary: the queue's lock costs as much as a short fiber.
const TAKE_MAX: usize = 16;
/// Fibers that a thief takes at once, at most, beside the one it runs. Arbitrary: half of a full queue is more than it runs in a while.
pub(super) const STEAL_MAX: usize = 32;
/// Rounds between two looks of a busy worker whether another is held by one fiber: a line of another core's cache, in some 50 us of yields. Arbitrary.
const RESCUE_ROUNDS: u32 = 128;
/// Strides of the search for a victim. Primes, so that one that does not divide the number of workers meets all of them.
pub(super) const STRIDES: [usize; 4] = [3, 5, 7, 11];
/// Placement: a worker with this many settled fibers above its group's mean, and an eighth of the mean, leaves unstarted ones to idle lighter workers.
/// Fork-join trees stay below it.
const HEAVY_BUSY: usize = 16;
/// The same, for a worker that has started few fibers since it last slept: an almost idle runtime spreads what comes evenly.
const HEAVY_RESTED: usize = 2;
/// Fibers started since the last sleep from which on a worker counts as busy.
const RESTED_STARTS: u32 = 16;
/// How long a heavy worker waits for others to take what it was woken for: what flare polls.
const SPIN_NS: u64 = 5_000;
/// And how long it sleeps for them after that: the spawner's worker may be busy for a little longer, and where they settle is for life. Of 300 connections to a server that did 100 us of work after each
/// spawn, 249 settled on the worker that does not accept; with a nap of 50 us 153 did, after 200 us of work 226. Arbitrary between these: what nobody takes is begun so much later.
const NAP_NS: u64 = 100_000;
/// Dispatched fibers that run first, in a row, each by the loop. Arbitrary: what a chain of them keeps waiting waits for a thousand of them at most.
const URGENT_RUNS: u32 = 32;

impl Worker {
    /// The next fiber to enter; null if there is nothing to do.
    pub(super) fn next(&self) -> *const Control {
        let urgent = self.urgent.replace(ptr::null());
        if !urgent.is_null() && self.urgent_runs.get() < URGENT_RUNS {
            self.urgent_runs.set(self.urgent_runs.get() + 1);
            return urgent;
        }
        self.urgent_runs.set(0);
        if !urgent.is_null() {
            // SAFETY: F1 - it was started here, and is in no list.
            unsafe { self.ready.push(urgent.cast_mut()) };
            self.see_to_left();
        }
        self.turn.set(self.turn.get().wrapping_add(1));
        if self.turn.get().is_multiple_of(RESCUE_ROUNDS) && self.group().seats().len() > 1 {
            let control = self.rescue();
            if !control.is_null() {
                return control;
            }
        }
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
        let control = self.next_child();
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
            let control = self.pop_moving();
            if !control.is_null() {
                return control;
            }
        }
        or_else(self.pop_ready(), || self.pop_moving())
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

    /// The newest child: its maker has just made it, and may be waiting for it. While another worker is on its way, which takes the oldest, the newest and the oldest by turns: a fiber settles for life, and
    /// neighbours often do the same work. (Four fibers that yield for ever and eight that sleep: all four settled on one worker, and the other one overslept.)
    fn next_child(&self) -> *const Control {
        let spreads = self.group().idle.is_somebody_coming() && !self.group().settings.migrates;
        // Every second start.
        if spreads && self.starts.get() % 2 == 1 { self.oldest_child() } else { self.seat().children.pop() }
    }

    fn oldest_child(&self) -> *const Control {
        if self.seat().children.len() == 0 {
            return ptr::null();
        }
        match self.seat().children.steal() {
            Stolen::Item(control) => control,
            Stolen::Empty | Stolen::Retry => ptr::null(),
        }
    }

    /// Whether unstarted fibers are left to a worker with fewer settled ones, which is idle and has been called, or is on its way already (placement
    /// for life).
    ///
    /// One that was claimed itself may still leave them to another that is on its way, which will see them; the last to arrive finds nobody coming
    /// and takes them.
    fn leaves_to_lighter(&self) -> bool {
        let idle = &self.group().idle;
        if !idle.is_anybody() {
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
            if self.seat().has_mail() {
                return false;
            }
            if !self.group().spins() || clock::now_ns() >= end_ns {
                self.nap(end_ns + NAP_NS);
                return !self.group().has_work();
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

    /// The oldest of the group's queue; of a long queue this worker's share too, as children, which the others may steal. A shared queue gives one at a time: its order is the
    /// order in which they begin.
    #[inline]
    fn take_of_group(&self) -> *const Control {
        if self.group().queued() == 0 { ptr::null() } else { self.take_share() }
    }

    fn take_share(&self) -> *const Control {
        let share = List::new();
        let has_room = self.seat.children.len() == 0 && self.seat.moving.len() < TAKE_MAX;
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
        self.has_loud.set(true);
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

    /// Steals from the others of this group, beginning anywhere: the oldest child of one of them, or half of its fibers that may move.
    fn steal(&self) -> *const Control {
        let seats = self.group().seats();
        if seats.len() < 2 {
            return ptr::null();
        }
        add(&self.seat.counters.thefts, 1);
        for victim in self.victims(seats.len()) {
            let mut control = self.rob_children(&seats[victim].children);
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
    pub(super) fn victims(&self, workers: usize) -> impl Iterator<Item = usize> + use<> {
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

    /// Takes a victim's oldest child, and more where what has begun may still move. A fiber that settles is taken alone: neighbours often do the same work, and half of them in a row would put
    /// that on one worker for life.
    fn rob_children(&self, from: &Deque<Control, CHILDREN_MAX>) -> *const Control {
        if self.group().settings.migrates { self.rob(from, &self.seat.children) } else { steal_one(from) }
    }

    /// Takes the oldest fiber of a victim's deque, and of the rest so many that both have as much; null if it has none.
    pub(super) fn rob<const N: usize>(&self, from: &Deque<Control, N>, into: &Deque<Control, N>) -> *const Control {
        if from.len() == 0 {
            return ptr::null();
        }
        let first = steal_one(from);
        let more = from.len() / 2;
        self.has_loud.set(true);
        let mut taken = 0;
        while taken < more.min(STEAL_MAX) {
            let control = steal_one(from);
            if control.is_null() {
                break;
            }
            let pushed = into.push(control);
            assert!(pushed, "a thief has nothing of its own");
            taken += 1;
        }
        // Whoever lay down meanwhile has seen them in nobody's queue (S1). A thief that has rested tells of them as it passes on.
        if taken != 0 && !self.rested.get() {
            self.announce(1);
        }
        first
    }

    /// Steals from other groups: where this one was sent to, and from each after so many idle passes, by turns. What it gets is this worker's own then; whether it got any.
    pub(super) fn steal_abroad(&self) -> bool {
        let passes = self.passes.get().wrapping_add(1);
        self.passes.set(passes);
        let mut errands = self.group().take_errands();
        let victims = &self.group().settings.victims;
        // The one after the last that was robbed goes first: one that always has something does not hide the others.
        for (at, &(victim, ratio)) in victims.iter().enumerate().cycle().skip(self.next_victim.get()).take(victims.len()) {
            if errands & 1 << victim == 0 && !passes.is_multiple_of(ratio) {
                continue;
            }
            errands &= !(1 << victim);
            let (tried, won) = &self.group().thefts[victim];
            tried.fetch_add(1, Relaxed);
            // SAFETY: F1 - given away, so it is ours; one that has started may move.
            let Some(control) = (unsafe { self.groups.all[victim].give_away().as_ref() }) else { continue };
            won.fetch_add(1, Relaxed);
            self.next_victim.set((at + 1) % victims.len());
            self.groups.all[victim].call_thief();
            self.has_loud.set(true);
            let own = ptr::from_ref(control).cast_mut();
            let has_room = if control.is_started() { self.seat.moving.push(own) } else { self.seat.children.push(own) };
            if !has_room {
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
        if !quiet {
            self.has_loud.set(true);
        } else if self.seat().children.len() == 0 {
            self.has_loud.set(false);
            self.flushes_before.set(self.group().quiet.flushes());
        }
        if !self.seat().children.push(control.cast_mut()) {
            self.spill(quiet);
            let pushed = self.seat().children.push(control.cast_mut());
            debug_assert!(pushed, "no room for a child after half of them were moved");
        }
        match quiet {
            true => self.group().quiet.note(1),
            false => self.announce(1),
        }
        true
    }

    /// Moves the oldest half of the children to the group's queue: one claim and, unless that is to be `quiet`, one wake call for all of them, and their order holds.
    #[cold]
    fn spill(&self, quiet: bool) {
        let oldest = List::new();
        while oldest.len() < CHILDREN_MAX / 2 {
            match self.seat.children.steal() {
                // SAFETY: F1 - taken out, so it is ours and in no list.
                Stolen::Item(control) => unsafe { oldest.push(control) },
                Stolen::Retry => spin_loop(),
                Stolen::Empty => break,
            }
        }
        add(&self.seat.counters.overflowed, oldest.len() as u64);
        let queued = self.group().push_all(&oldest, quiet);
        assert!(queued, "the queue of a group is closed by its last worker, and this one is there");
        // Somebody was woken for those that were not queued quietly, or were flushed, and has perhaps found nothing while they were in nobody's queue (S1).
        if quiet && (self.has_loud.get() || self.group().quiet.has_flushed(self.flushes_before.get())) {
            self.announce(1);
        }
    }
}
