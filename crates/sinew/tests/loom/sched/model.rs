use std::sync::Arc;

use loom::sync::{Condvar, Mutex};

use super::idle::{Idle, SPINNERS_MAX};
use super::slot::Slot;
use crate::base::atomic::{AtomicUsize, Relaxed, SeqCst, fence, mutant};
use crate::base::deque::{Deque, Stolen};
use crate::{check, check_notices};

/// One worker with an inbox, seen as a counter of things left in it. Mutex and condition variable are the kernel's part, the futex: loom
/// reports a sleeper that nobody wakes as a deadlock.
pub struct Bed {
    pub slot: Slot,
    left: AtomicUsize,
    kernel: (Mutex<()>, Condvar),
}

impl Bed {
    pub fn new() -> Self {
        Self { slot: Slot::new(), left: AtomicUsize::new(0), kernel: (Mutex::new(()), Condvar::new()) }
    }

    pub fn wake(&self) {
        if self.slot.notify() {
            let _held = self.kernel.0.lock().unwrap();
            self.kernel.1.notify_one();
        }
    }

    pub fn futex_wait(&self) {
        let mut held = self.kernel.0.lock().unwrap();
        while self.slot.is_asleep() {
            held = self.kernel.1.wait(held).unwrap();
        }
    }
}

/// A waker leaves something; the worker must come to see it without being woken by anything else.
fn slot_model() {
    let bed = Arc::new(Bed::new());
    let waker = {
        let bed = bed.clone();
        loom::thread::spawn(move || {
            bed.left.store(1, Relaxed);
            bed.wake();
        })
    };
    bed.slot.lie_down();
    if bed.left.load(Relaxed) == 0 {
        bed.futex_wait();
    }
    bed.slot.get_up();
    waker.join().unwrap();
    assert_eq!(bed.left.load(Relaxed), 1);
}

#[test]
fn a_wake_before_at_or_after_lying_down_is_kept() {
    check(3, slot_model);
}

#[test]
fn the_slot_needs_its_fences() {
    check_notices("no fence", 3, slot_model);
}

/// A group as the protocol sees it: a count of items in a queue that all may take from, and per worker a slot and a count of mail.
struct Group {
    idle: Idle,
    queued: AtomicUsize,
    beds: [Bed; 2],
}

impl Group {
    fn new() -> Self {
        Self { idle: Idle::new(), queued: AtomicUsize::new(0), beds: [Bed::new(), Bed::new()] }
    }

    fn announce(&self, items: usize) {
        let claimed = self.idle.claim(items, |worker| worker);
        for worker in claimed.sleepers.iter() {
            self.beds[worker].wake();
        }
    }

    fn push(&self, items: usize) {
        self.queued.fetch_add(items, Relaxed);
        self.announce(items);
    }

    fn has_work(&self) -> bool {
        self.queued.load(Relaxed) != 0
    }

    fn take(&self) -> bool {
        self.queued.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok()
    }

    /// `Worker::sleep`.
    fn sleep(&self, me: usize) {
        if mutant("bit before slot") {
            self.idle.enter_sleep(me);
        }
        self.beds[me].slot.lie_down();
        if !mutant("bit before slot") {
            self.idle.enter_sleep(me);
        }
        let look_again = !mutant("no last look");
        if !(look_again && (self.has_work() || self.beds[me].left.load(Relaxed) != 0)) {
            self.beds[me].futex_wait();
        }
        self.beds[me].slot.get_up();
        let _ = self.idle.leave_sleep(me);
    }

    /// `Worker::spin`, with a poll of one look; `true` if there may be work.
    fn spin(&self, me: usize) -> bool {
        if !self.idle.begin_spin(me) {
            return false;
        }
        let found = self.has_work();
        let claimed = self.idle.end_spin(me);
        if found && self.idle.spinning().len() < SPINNERS_MAX {
            self.idle.leave_pending();
        }
        found || (claimed && !mutant("no look after a claim"))
    }
}

/// One pusher, one worker that spins and then sleeps: it takes the item, whatever the order.
fn push_against_rest() {
    let group = Arc::new(Group::new());
    let pusher = {
        let group = group.clone();
        loom::thread::spawn(move || group.push(1))
    };
    while !group.take() {
        if !group.spin(0) {
            group.sleep(0);
        }
    }
    pusher.join().unwrap();
}

#[test]
fn a_push_is_taken_by_the_worker_that_spins_or_falls_asleep() {
    check(3, push_against_rest);
}

#[test]
fn the_masks_need_their_fences() {
    check_notices("no fence", 3, push_against_rest);
}

#[test]
fn the_sleeper_needs_its_last_look() {
    check_notices("no last look", 3, push_against_rest);
}

/// Two items pushed at once, each by a pusher of its own; two workers, each of which takes one item and then hogs: both items are taken.
fn two_pushes_two_workers() {
    let group = Arc::new(Group::new());
    let workers: Vec<_> = (0..2)
        .map(|me| {
            let group = group.clone();
            loom::thread::spawn(move || {
                while !group.take() {
                    group.sleep(me);
                }
                // Law S1: it leaves rest with work, and more is there.
                if group.has_work() && !mutant("no pass-on") {
                    group.announce(1);
                }
            })
        })
        .collect();
    group.push(1);
    group.push(1);
    workers.into_iter().for_each(|w| w.join().unwrap());
    assert_eq!(group.queued.load(Relaxed), 0);
}

#[test]
fn two_pushes_reach_two_sleepers() {
    check(3, two_pushes_two_workers);
}

#[test]
fn a_sleeper_is_in_the_mask_only_once_it_can_be_notified() {
    check_notices("bit before slot", 3, two_pushes_two_workers);
}

#[test]
fn a_batch_of_two_wakes_two() {
    check(2, || {
        let group = Arc::new(Group::new());
        let workers: Vec<_> = (0..2)
            .map(|me| {
                let group = group.clone();
                loom::thread::spawn(move || {
                    while !group.take() {
                        group.sleep(me);
                    }
                })
            })
            .collect();
        group.push(2);
        workers.into_iter().for_each(|w| w.join().unwrap());
    });
}

/// Group work and a settled wake reach worker 0 at once; it serves its own fiber and hogs. The group's item must not stay behind: worker 1, asleep
/// from the start, is woken for it.
fn group_push_with_settled_wake() {
    let group = Arc::new(Group::new());
    group.beds[1].slot.lie_down();
    group.idle.enter_sleep(1);
    let pusher = {
        let group = group.clone();
        loom::thread::spawn(move || group.push(1))
    };
    let waker = {
        let group = group.clone();
        loom::thread::spawn(move || {
            group.beds[0].left.store(1, Relaxed);
            group.beds[0].wake();
        })
    };
    group.sleep(0);
    let took = if group.beds[0].left.load(Relaxed) != 0 { false } else { group.take() };
    // Law S1, as `Worker::pass_on`.
    if group.has_work() && !mutant("no pass-on") {
        group.announce(1);
    }
    pusher.join().unwrap();
    waker.join().unwrap();
    let other_comes = !group.beds[1].slot.is_asleep();
    assert!(took || other_comes, "group work is left, and nobody is woken for it");
}

#[test]
fn a_worker_that_gets_up_for_its_own_fiber_passes_group_work_on() {
    check(3, group_push_with_settled_wake);
}

#[test]
fn passing_on_is_needed() {
    check_notices("no pass-on", 3, group_push_with_settled_wake);
}

/// A spinner that is claimed while it gives up: its last look is what the pusher counts on.
fn claim_against_end_of_spin() {
    let group = Arc::new(Group::new());
    let pusher = {
        let group = group.clone();
        loom::thread::spawn(move || {
            group.queued.fetch_add(1, Relaxed);
            group.idle.claim(1, |worker| worker).spinners
        })
    };
    let found = group.spin(0);
    let counted_on = pusher.join().unwrap();
    assert!(found || counted_on == 0, "a pusher counts on a spinner that does not look again");
}

#[test]
fn a_claimed_spinner_looks_again() {
    check(3, claim_against_end_of_spin);
}

#[test]
fn the_look_after_a_claim_is_needed() {
    check_notices("no look after a claim", 3, claim_against_end_of_spin);
}

#[test]
fn no_more_than_two_spin() {
    check(3, || {
        let idle = Arc::new(Idle::new());
        let spinners: Vec<_> = (0..3)
            .map(|me| {
                let idle = idle.clone();
                loom::thread::spawn(move || {
                    let spins = idle.begin_spin(me);
                    assert!(idle.spinning().len() <= SPINNERS_MAX, "S2");
                    spins
                })
            })
            .collect();
        let spinning = spinners.into_iter().map(|s| s.join().unwrap()).filter(|&s| s).count();
        assert_eq!(spinning, SPINNERS_MAX);
    });
}

/// A heavy worker announces a child while another worker, claimed for an earlier one, may be on its way: if it is, the child is left to it.
fn leave_to_a_comer() {
    let group = Arc::new(Group::new());
    let other = {
        let group = group.clone();
        loom::thread::spawn(move || {
            group.sleep(1);
            while group.has_work() && group.take() {}
        })
    };
    group.push(1);
    group.push(1);
    let left = group.idle.is_somebody_coming();
    other.join().unwrap();
    assert!(!left || !group.has_work(), "work was left to a worker that had looked before it came");
}

#[test]
fn work_left_to_a_comer_is_seen_by_it() {
    check(3, leave_to_a_comer);
}

#[test]
fn the_comer_needs_its_fence() {
    check_notices("no fence", 3, leave_to_a_comer);
}

/// A worker that is busy for ever pushes one item; worker 0, heavy, follows `Worker::next` and `rest`: it defers only while somebody is on the
/// way, and nobody is, so it takes the item itself.
fn heavy_worker_alone() {
    let group = Arc::new(Group::new());
    let pusher = {
        let group = group.clone();
        loom::thread::spawn(move || group.push(1))
    };
    loop {
        let deferred = group.has_work() && group.idle.is_somebody_coming();
        if !deferred {
            if group.take() {
                break;
            }
            if group.idle.begin_spin(0) {
                let found = group.has_work();
                if group.idle.end_spin(0) || found {
                    continue;
                }
            }
        }
        group.beds[0].slot.lie_down();
        group.idle.enter_sleep(0);
        if !(group.has_work() && !(deferred && group.idle.is_somebody_coming())) {
            group.beds[0].futex_wait();
        }
        group.beds[0].slot.get_up();
        let _ = group.idle.leave_sleep(0);
    }
    pusher.join().unwrap();
}

#[test]
fn a_heavy_worker_does_not_wait_for_one_that_never_comes() {
    check(3, heavy_worker_alone);
}

#[test]
fn passing_on_is_needed_between_two_sleepers_too() {
    check_notices("wakes one for two", 3, || {
        let group = Arc::new(Group::new());
        let workers: Vec<_> = (0..2)
            .map(|me| {
                let group = group.clone();
                loom::thread::spawn(move || {
                    while !group.take() {
                        group.sleep(me);
                    }
                })
            })
            .collect();
        group.queued.fetch_add(2, Relaxed);
        group.announce(if mutant("wakes one for two") { 1 } else { 2 });
        workers.into_iter().for_each(|w| w.join().unwrap());
    });
}

/// `Group::call_watcher`, by one who has a fence behind it: calls a sleeper, unless one watches, or is coming and will look.
fn call_watcher(group: &Group, watchers: &AtomicUsize) {
    let will_look = watchers.load(Relaxed) != 0 || group.idle.is_somebody_coming();
    if !will_look && !group.idle.sleeping().is_empty() {
        group.announce(1);
    }
}

/// A fiber is woken, and waits in its worker's slot. Worker 0 has watched, gets up, and is about to run something that holds it; worker 1 lies down, and leaves to who watches what that watches. In the end worker 1 sees the
/// fiber: who woke that has called it, or worker 0 has, or it has looked after both. (Of another group worker 1 would ask, besides, whether anybody is idle there: a bit that is cleared before a fence, as the count is here.)
fn watch_against_its_end() {
    let group = Arc::new(Group::new());
    let (watchers, slot) = (Arc::new(AtomicUsize::new(1)), Arc::new(AtomicUsize::new(0)));
    let waker = {
        let (group, watchers, slot) = (group.clone(), watchers.clone(), slot.clone());
        loom::thread::spawn(move || {
            slot.store(1, Relaxed);
            fence(SeqCst);
            call_watcher(&group, &watchers);
        })
    };
    let sleeper = {
        let (group, watchers, slot) = (group.clone(), watchers.clone(), slot.clone());
        loom::thread::spawn(move || {
            // `Worker::sleep`. A watch ends by itself, and is the end here.
            let watches = || watchers.load(Relaxed) == 0 && slot.load(Relaxed) != 0;
            loop {
                group.beds[1].slot.lie_down();
                group.idle.enter_sleep(1);
                let sees = watches();
                if !sees {
                    group.beds[1].futex_wait();
                }
                group.beds[1].slot.get_up();
                let _ = group.idle.leave_sleep(1);
                if sees {
                    break;
                }
            }
        })
    };
    // `Worker::leave_watch`, `Worker::pass_watch_on`.
    watchers.fetch_sub(1, Relaxed);
    if !mutant("no pass-on") {
        fence(SeqCst);
        if slot.load(Relaxed) != 0 {
            call_watcher(&group, &watchers);
        }
    }
    waker.join().unwrap();
    sleeper.join().unwrap();
}

#[test]
fn a_watch_that_ends_is_passed_on_to_one_that_lies_down() {
    check(3, watch_against_its_end);
}

#[test]
fn a_watch_that_ends_needs_its_fences() {
    check_notices("no fence", 3, watch_against_its_end);
}

#[test]
fn a_watch_that_ends_must_be_passed_on() {
    check_notices("no pass-on", 3, watch_against_its_end);
}

/// A worker's ready fibers that may move, by their numbers.
struct Moving(Deque<u32, 4>);

// SAFETY: its items are statics.
unsafe impl Send for Moving {}
// SAFETY: as above; the deque is shared, and the model has one owner.
unsafe impl Sync for Moving {}

/// One that may move is told of; another yields, is queued behind it and not told of (`Worker::queue_again`); then the owner takes the first, and runs it for long. Another worker lies down meanwhile. The one that yielded is not left beside it.
fn requeued_against_sleep() {
    static FIRST: u32 = 1;
    static YIELDS: u32 = 2;
    let name = |fiber: &'static u32| std::ptr::from_ref(fiber).cast_mut();
    let all = Arc::new((Idle::new(), Bed::new(), Moving(Deque::new())));
    let other = {
        let all = all.clone();
        loom::thread::spawn(move || {
            let (idle, bed, moving) = (&all.0, &all.1, &all.2.0);
            // `Worker::sleep`, and what follows if it does not: `Worker::steal`.
            loop {
                bed.slot.lie_down();
                idle.enter_sleep(1);
                if moving.len() == 0 && bed.slot.is_asleep() {
                    return false;
                }
                bed.slot.get_up();
                let _ = idle.leave_sleep(1);
                match moving.steal() {
                    Stolen::Item(_) => return true,
                    Stolen::Empty | Stolen::Retry => loom::thread::yield_now(),
                }
            }
        })
    };
    let (idle, bed, moving) = (&all.0, &all.1, &all.2.0);
    assert!(moving.push(name(&FIRST)));
    for _ in idle.claim(1, |worker| worker).sleepers.iter() {
        bed.wake();
    }
    assert!(moving.push(name(&YIELDS)));
    let runs_first = std::ptr::eq(moving.pop_oldest(), &FIRST);
    let got_one = other.join().unwrap();
    assert!(!runs_first || got_one || !bed.slot.is_asleep(), "one that yielded lies beside a worker that sleeps");
}

#[test]
fn who_lies_down_sees_the_one_that_yielded_behind_another() {
    check(3, requeued_against_sleep);
}

#[test]
fn who_yields_behind_another_needs_the_fences() {
    check_notices("no fence", 3, requeued_against_sleep);
}

#[test]
fn who_yields_behind_another_needs_the_orderings() {
    check_notices("relaxed", 3, requeued_against_sleep);
}
