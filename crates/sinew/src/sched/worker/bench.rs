//! A worker that sits out, and the sentry: who stands in for workers that are held (`sched/duty.rs`).

use std::ptr;

use super::{Worker, passed};
use crate::base::atomic::{Acquire, Relaxed};
use crate::base::list::List;
use crate::base::mask::WORKERS_MAX;
use crate::fiber::Control;
use crate::os::{clock, futex};
use crate::sched::counters::add;
use crate::sched::duty::Call;
use crate::sched::seat::{Rest, Seat, steal_one};
use crate::sched::slot::ASLEEP;

/// Between two looks of the sentry: who has neither switched nor ended a fiber in that time is held. A look is a sleep and a wake of a thread (12 to 20 us of CPU time on a virtual machine, see `rest.rs`), and there are none while anybody is idle.
/// Arbitrary: as long as a fiber that was woken last may wait for a worker that runs another (`WATCH_NS`).
const LOOK_NS: u64 = 1_000_000;
/// Looks at which somebody was idle before it dozes: to be roused from that is a system call of who leaves the idle ones. Arbitrary: 60 a second at most.
const CALM_LOOKS: u32 = 16;

/// Rounds of the loop after which a worker looks whether there is a sentry. Arbitrary.
const CALL_ROUNDS: u32 = 128;

/// What the sentry knows.
pub(super) struct Sentry {
    /// When it looks next; never, while it dozes.
    due_ns: u64,
    /// Looks in a row at which somebody was idle.
    calm: u32,
    /// How far each worker had come at the last look, if it was on duty and nobody was idle then.
    seen: [Option<u64>; WORKERS_MAX],
}

impl Sentry {
    pub(super) fn new() -> Self {
        Self { due_ns: u64::MAX, calm: 0, seen: [None; WORKERS_MAX] }
    }
}

impl Worker {
    /// In the loop: sits out if need be, and sees to it from time to time that there is a sentry, if one could not be started before; whether it sat out.
    #[inline]
    pub(super) fn sees_to_duty(&self) -> bool {
        if self.turn.get() % CALL_ROUNDS == CALL_ROUNDS - 1 {
            self.call_sentry();
        }
        self.group().has_surplus() && self.sits_out()
    }

    /// Sits out if this worker is one too many on duty, and has nothing that only it can do; whether it did.
    fn sits_out(&self) -> bool {
        let group = self.group();
        let sits = self.may_sit_out() && group.duty.sit_out(self.index, group.seats().len(), group.wanted());
        if sits {
            self.give_all_away();
            // One that is idle does not look by itself.
            if group.has_surplus() && !group.idle.sleeping().is_empty() {
                group.call_one();
            }
            self.sit_out();
        }
        sits
    }

    /// Whether others can do all that there is for this worker.
    fn may_sit_out(&self) -> bool {
        // SAFETY: I1, I2.
        let armed = || unsafe { (*self.timers.get()).armed() };
        self.urgent.get().is_null() && self.settled.get() == 0 && self.source_waits.get() == 0 && !self.is_called_back() && armed() == 0
    }

    /// Whether there is something for this worker alone. (Ready is one that it is to end for want of a stack.)
    fn is_called_back(&self) -> bool {
        !self.ready.is_empty() || self.seat.has_mail() || self.owes_stacks() || self.group().is_stopping()
    }

    /// Leaves what waits at this worker to the others, and what it was counted on for.
    fn give_all_away(&self) {
        let fibers = List::new();
        // Acquire: meets the Release in `take_in`; though that was this thread, a thief may have had it meanwhile.
        let next = self.seat.next.swap(ptr::null_mut(), Acquire);
        let give = |control: *mut Control| {
            let is_one = !control.is_null();
            if is_one {
                // SAFETY: F1 - taken out, so it is ours and in no list.
                unsafe { fibers.push(control) };
            }
            is_one
        };
        give(next);
        while give(self.seat.moving.pop_oldest()) {}
        while give(steal_one(&self.seat.children)) {}
        if !fibers.is_empty() {
            let queued = self.group().push_all(&fibers, false);
            assert!(queued, "this worker is there");
        }
        [&self.must_take, &self.deferred, &self.unannounced, &self.requeued].into_iter().for_each(|flag| flag.set(false));
        self.pass_rest_on();
        // SAFETY: I1, I2.
        if unsafe { (*self.stacks.get()).share(0) } {
            self.untold.set(true);
        }
    }

    /// Sits out, on the bench already, until it stands in for another, or there is something for it alone.
    pub(super) fn sit_out(&self) {
        let duty = &self.group().duty;
        let mut sentry = None;
        while !self.is_called_back() {
            if sentry.is_none() && duty.take_post() {
                sentry = Some(Sentry::new());
            }
            self.sleep_on_bench(sentry.as_mut());
            if sentry.as_mut().is_some_and(|sentry| passed(sentry.due_ns) && self.is_needed(sentry)) {
                break;
            }
        }
        duty.stand_in(self.index);
        let was_sentry = sentry.is_some();
        match if was_sentry { duty.leave_post() } else { duty.heir() } {
            Some(another) => self.group().seat(another).wake(),
            // It was needed, and others will be; else it is back soon.
            None if was_sentry && !self.is_called_back() => self.group().start_spare(),
            None => {}
        }
        self.rested.set(true);
        self.roam_ns.set(0);
        // What has come for fibers that may move waits for somebody who looks.
        self.roam_due.set(true);
    }

    /// Sleeps until it is woken; the sentry until its next look, unless it dozes.
    fn sleep_on_bench(&self, sentry: Option<&mut Sentry>) {
        let (group, begun_ns) = (self.group(), clock::now_ns());
        self.seat.set_rest(Rest { for_good: true, at_source: false });
        self.seat.slot.lie_down();
        let (mut until_ns, mut is_lost) = (u64::MAX, false);
        match sentry {
            Some(sentry) => {
                let dozes = sentry.calm >= CALM_LOOKS;
                if dozes {
                    sentry.calm = 0;
                    group.duty.doze(self.index);
                }
                if !dozes || !group.idle.is_anybody() {
                    group.duty.rouse();
                    // A wake for something else does not put a look off.
                    until_ns = if begun_ns < sentry.due_ns && sentry.due_ns != u64::MAX { sentry.due_ns } else { begun_ns + LOOK_NS };
                }
                sentry.due_ns = until_ns;
            }
            // The sentry may have left its post while this one was awake, and told it so in vain. After the fence in `lie_down`.
            None => is_lost = group.duty.is_vacant(),
        }
        // As every worker that lies down: who is the last ends those that starve.
        if !is_lost && !self.is_called_back() && !self.must_refuse() {
            add(&self.seat.counters.sleeps, 1);
            self.seat.counters.begin_idle(begun_ns);
            futex::wait(self.seat.slot.word(), ASLEEP, until_ns);
            let now_ns = clock::now_ns();
            self.seat.counters.end_idle(now_ns);
            add(&self.seat.counters.slept_ns, now_ns - begun_ns);
        }
        self.seat.slot.get_up();
    }

    /// Notes who is held; whether too few are left on duty for what there is to do. By the sentry.
    pub(super) fn is_needed(&self, sentry: &mut Sentry) -> bool {
        let group = self.group();
        if group.idle.is_anybody() {
            sentry.calm += 1;
            sentry.seen = [None; WORKERS_MAX];
            return false;
        }
        sentry.calm = 0;
        let off = group.duty.bench().bits() | group.duty.held().bits();
        for (worker, seat) in group.seats().iter().enumerate() {
            let progress = (off & 1 << worker == 0).then(|| seat.counters.progress());
            if progress.is_some() && progress == sentry.seen[worker] {
                group.duty.note_held(worker);
            }
            sentry.seen[worker] = progress;
        }
        let waits_at = |seat: &&'static Seat| !seat.next.load(Relaxed).is_null();
        group.duty.on(group.seats().len()) < group.wanted()
            && (group.has_work() || group.roam.has_waits() || group.seats().iter().any(waits_at))
    }

    /// This worker was idle, and is about to run something: if it was the last, the sentry is to look.
    pub(super) fn call_sentry(&self) {
        let group = self.group();
        match group.duty.call(|| group.idle.is_anybody()) {
            Call::Looks => {}
            Call::Wake(sentry) => group.seat(sentry).wake(),
            Call::Nobody => match group.duty.bench().iter().next() {
                // It is about to be, or was not told.
                Some(worker) => group.seat(worker).wake(),
                None => group.start_spare(),
            },
        }
    }
}
