//! Errands between groups, workers that come later, and the last fiber that may move: as `Group`, `Groups` and `Worker` have them.

use std::sync::Arc;

use loom::sync::Mutex;

use super::idle::Idle;
use super::model::Bed;
use crate::base::atomic::{AcqRel, Acquire, AtomicU64, AtomicUsize, Relaxed, Release, SeqCst, fence, mutant};
use crate::{check, check_notices};

/// Thieves of one worker, and their victim: what it has queued.
struct Thieves {
    idle: Idle,
    bed: Bed,
    errands: AtomicU64,
    queued: AtomicUsize,
}

impl Thieves {
    fn new() -> Self {
        Self { idle: Idle::new(), bed: Bed::new(), errands: AtomicU64::new(0), queued: AtomicUsize::new(0) }
    }

    /// The victim's push, with nobody idle there: the fence is that of its own `Idle::claim`.
    fn push(&self) {
        self.queued.fetch_add(1, Relaxed);
        if !mutant("no fence behind the push") {
            fence(SeqCst);
        }
        self.go_to();
    }

    /// `Group::go_to`.
    fn go_to(&self) {
        if self.errands.load(Relaxed) & 1 != 0 || self.errands.fetch_or(1, Relaxed) & 1 != 0 {
            return;
        }
        for _ in self.idle.claim(1, |worker| worker).sleepers.iter() {
            self.bed.wake();
        }
    }

    /// `Group::take_errands`.
    fn take_errands(&self) -> bool {
        if self.errands.load(Relaxed) == 0 || self.errands.swap(0, Relaxed) == 0 {
            return false;
        }
        if !mutant("no fence behind the errand") {
            fence(SeqCst);
        }
        true
    }

    /// `Group::give_away`; `Worker::steal_abroad` calls the next thief for the rest.
    fn steal(&self) -> bool {
        let stolen = self.queued.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok();
        if stolen && self.queued.load(Relaxed) != 0 {
            self.go_to();
        }
        stolen
    }

    /// A look at the victim's queue as it is in `give_away`: before its lock.
    fn sees_work(&self) -> bool {
        self.queued.load(Relaxed) != 0
    }

    fn sleep(&self) {
        self.bed.slot.lie_down();
        self.idle.enter_sleep(0);
        if self.errands.load(Relaxed) == 0 {
            self.bed.futex_wait();
        }
        self.bed.slot.get_up();
        let _ = self.idle.leave_sleep(0);
    }
}

/// A busy group pushes twice; the worker of the other one steals both, whatever it does meanwhile.
fn errands() {
    let thieves = Arc::new(Thieves::new());
    let pusher = {
        let thieves = thieves.clone();
        loom::thread::spawn(move || {
            thieves.push();
            thieves.push();
        })
    };
    let mut stolen = 0;
    while stolen < 2 {
        if thieves.take_errands() && thieves.sees_work() && thieves.steal() {
            stolen += 1;
        } else {
            thieves.sleep();
        }
    }
    pusher.join().unwrap();
}

#[test]
fn a_worker_of_another_group_comes_for_every_push() {
    check(3, errands);
}

#[test]
fn errands_need_their_fences() {
    for fence in ["no fence", "no fence behind the errand", "no fence behind the push"] {
        check_notices(fence, 3, errands);
    }
}

/// A group that begins with one worker, which is busy for ever, and may have two more.
struct Growing {
    queued: AtomicUsize,
    born: AtomicUsize,
    growing: AtomicUsize,
    seats: [AtomicUsize; 3],
    live: Mutex<usize>,
    threads: std::sync::Mutex<Vec<loom::thread::JoinHandle<()>>>,
}

impl Growing {
    fn new() -> Arc<Self> {
        let zero = || AtomicUsize::new(0);
        Arc::new(Self {
            queued: zero(),
            born: AtomicUsize::new(1),
            growing: zero(),
            seats: [AtomicUsize::new(1), zero(), zero()],
            live: Mutex::new(1),
            threads: std::sync::Mutex::default(),
        })
    }

    fn push(self: &Arc<Self>) {
        self.queued.fetch_add(1, Relaxed);
        self.grow();
    }

    /// `Group::grow`, for what was announced when nobody is idle.
    fn grow(self: &Arc<Self>) {
        if self.growing.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            return;
        }
        let next = self.born.load(Relaxed);
        if next < self.seats.len() {
            let group = self.clone();
            let thread = loom::thread::spawn(move || group.work(next));
            self.threads.lock().unwrap().push(thread);
        } else {
            self.growing.store(0, Release);
        }
    }

    /// The thread of a late worker: `Group::join_late`, then it takes one fiber, which is busy for ever.
    fn work(self: &Arc<Self>, seat: usize) {
        assert_eq!(self.seats[seat].fetch_add(1, Relaxed), 0, "a seat is given to two workers");
        {
            let mut live = self.live.lock().unwrap();
            *live += 1;
            self.born.store(seat + 1, Relaxed);
            self.growing.store(0, Release);
        }
        fence(SeqCst);
        let took = self.queued.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok();
        // `Worker::pass_on`.
        if took && self.queued.load(Relaxed) != 0 && !mutant("a late worker does not pass on") {
            self.grow();
        }
    }
}

/// Two fibers become ready at once: two workers come.
fn growth() {
    let group = Growing::new();
    let other = {
        let group = group.clone();
        loom::thread::spawn(move || group.push())
    };
    group.push();
    other.join().unwrap();
    loop {
        let thread = group.threads.lock().unwrap().pop();
        match thread {
            Some(thread) => thread.join().unwrap(),
            None => break,
        }
    }
    assert_eq!(group.queued.load(Relaxed), 0, "there is room for one more worker, and nobody comes");
}

#[test]
fn as_many_workers_come_as_are_needed_each_to_a_seat_of_its_own() {
    check(3, growth);
}

#[test]
fn growth_needs_its_orderings_and_that_a_late_worker_passes_on() {
    for fault in ["relaxed", "a late worker does not pass on"] {
        check_notices(fault, 3, growth);
    }
}

/// A late worker takes what it was started for, while another fiber is queued and nobody is idle: `Group::push`, `Idle::claim` and `grow` beside `Group::join_late` and `Worker::pass_rest_on`, whose look is a relaxed load, and
/// not a change of the count as in `Growing`.
fn growth_beside_a_push() {
    let [queued, growing] = [0, 1].map(|n| Arc::new(AtomicUsize::new(n)));
    let worker = {
        let (queued, growing) = (queued.clone(), growing.clone());
        loom::thread::spawn(move || {
            growing.store(0, Release);
            if !mutant("no fence as it joins") {
                fence(SeqCst);
            }
            queued.load(Relaxed) != 0
        })
    };
    queued.fetch_add(1, Relaxed);
    if !mutant("no fence behind the push") {
        fence(SeqCst);
    }
    let grows = growing.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
    let passes_on = worker.join().unwrap();
    assert!(grows || passes_on, "nobody starts a worker for what was pushed");
}

#[test]
fn one_more_worker_comes_for_what_is_pushed_as_one_arrives() {
    check(3, growth_beside_a_push);
}

#[test]
fn a_late_worker_needs_its_fence() {
    for fence in ["no fence as it joins", "no fence behind the push"] {
        check_notices(fence, 3, growth_beside_a_push);
    }
}

/// A runtime that is being stopped, with one fiber left that may move; one worker runs that to its end, the other sleeps or is about to.
struct Stopping {
    stopping: AtomicUsize,
    movers: AtomicUsize,
    bed: Bed,
}

impl Stopping {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire) != 0
    }

    /// `Groups::mover_goes`.
    fn mover_goes(&self) {
        if self.movers.fetch_sub(1, AcqRel) == 1 && self.is_stopping() {
            self.bed.wake();
        }
    }

    /// `Groups::stop`. The wake is left out: who has not seen the stop when it looks is woken by it, and looks again.
    fn stop(&self) {
        self.stopping.store(1, Release);
        fence(SeqCst);
    }

    /// `Worker::run` of one with nothing to do, which has seen the stop.
    fn rest_until_all_have_gone(&self) {
        if !self.is_stopping() || self.has_no_movers() {
            return;
        }
        self.bed.slot.lie_down();
        // `Worker::has_work`.
        if self.movers.load(Relaxed) != 0 {
            self.bed.futex_wait();
        }
        self.bed.slot.get_up();
        assert!(self.has_no_movers(), "the last one has woken it, and is not the last");
    }

    /// `Groups::has_no_movers`.
    fn has_no_movers(&self) -> bool {
        self.movers.fetch_add(0, AcqRel) == 0
    }

    /// `Groups::mover_comes`, and the look behind it (`Worker::settle_at`).
    fn mover_comes(&self) -> bool {
        self.movers.fetch_add(1, Acquire);
        if !mutant("no fence where one comes") {
            fence(SeqCst);
        }
        self.is_stopping()
    }
}

/// A fiber that may move begins as its runtime is stopped: its worker cancels it, or the shutdown, which looks for those that have begun, does.
fn mover_beside_a_stop() {
    let groups = Arc::new(Stopping { stopping: AtomicUsize::new(0), movers: AtomicUsize::new(0), bed: Bed::new() });
    let worker = {
        let groups = groups.clone();
        loom::thread::spawn(move || groups.mover_comes())
    };
    groups.stop();
    let sees_it = groups.movers.load(Relaxed) != 0;
    assert!(worker.join().unwrap() || sees_it, "nobody cancels it");
}

#[test]
fn a_fiber_that_begins_beside_a_stop_is_cancelled() {
    check(3, mover_beside_a_stop);
}

#[test]
fn a_fiber_that_begins_beside_a_stop_needs_both_fences() {
    for fence in ["no fence", "no fence where one comes"] {
        check_notices(fence, 3, mover_beside_a_stop);
    }
}

fn last_mover() {
    let groups = Arc::new(Stopping { stopping: AtomicUsize::new(0), movers: AtomicUsize::new(1), bed: Bed::new() });
    let worker = {
        let groups = groups.clone();
        loom::thread::spawn(move || groups.mover_goes())
    };
    let stopper = {
        let groups = groups.clone();
        loom::thread::spawn(move || groups.stop())
    };
    groups.rest_until_all_have_gone();
    worker.join().unwrap();
    stopper.join().unwrap();
}

#[test]
fn the_end_of_the_last_mover_lets_every_worker_leave() {
    check(3, last_mover);
}

#[test]
fn the_end_of_the_last_mover_needs_its_orderings() {
    for fault in ["relaxed", "no fence"] {
        check_notices(fault, 3, last_mover);
    }
}
