//! Who looks after a group's roam: while fibers wait there and a worker sleeps, somebody is its lookout, watches, or is called (`roam.rs`, I1). With whatever they wait for, left out here: I/O, or a deadline of one that is on a spare.

use std::sync::Arc;

use super::roam::Roam;
use crate::base::atomic::mutant;
use crate::sched::idle::Idle;
use crate::sched::model::Bed;
use crate::{check, check_notices};

/// The one that sleeps, or is about to.
const SLEEPER: usize = 0;

struct Group {
    roam: Roam,
    idle: Idle,
    bed: Bed,
}

impl Group {
    fn new() -> Arc<Self> {
        Arc::new(Self { roam: Roam::new(), idle: Idle::new(), bed: Bed::new() })
    }

    /// `Group::call_lookout`.
    fn call_lookout(&self) {
        if self.roam.must_call() && !self.idle.sleeping().is_empty() {
            let claimed = self.idle.claim(1, |worker| worker);
            claimed.sleepers.iter().for_each(|_| self.bed.wake());
        }
    }

    /// A fiber of a worker that runs others after it begins to wait: `Worker::suspend_on_spare`, or I/O.
    fn wait(&self) {
        if self.roam.begin_wait() && !mutant("does not call") {
            self.call_lookout();
        }
    }

    /// What a worker does that was the lookout, or watched, and has something to run: `Worker::leave_post`, `pass_rest_on`.
    fn run_instead(&self, leave: fn(&Roam)) {
        leave(&self.roam);
        if self.roam.has_waits() && !mutant("does not pass on") {
            self.call_lookout();
        }
    }

    /// `Worker::sleep`, until it has become the lookout.
    fn sleep(&self) {
        loop {
            let is_lookout = self.roam.is_unattended() && self.roam.take_post();
            self.bed.slot.lie_down();
            self.idle.enter_sleep(SLEEPER);
            if is_lookout {
                return;
            }
            if mutant("no last look") || !self.roam.is_deserted() {
                self.bed.futex_wait();
            }
            self.bed.slot.get_up();
            let _ = self.idle.leave_sleep(SLEEPER);
        }
    }
}

/// One fiber waits as the first while the only worker that is idle lies down: that is called, or sees it. (Else it sleeps for ever, which loom reports.)
fn first_wait_model() {
    let group = Group::new();
    let waiter = {
        let group = group.clone();
        loom::thread::spawn(move || group.wait())
    };
    group.sleep();
    waiter.join().unwrap();
}

#[test]
fn the_first_that_waits_has_a_lookout_though_that_was_lying_down() {
    check(3, first_wait_model);
}

#[test]
fn a_first_wait_needs_its_fences_its_call_and_the_last_look() {
    for mutant in ["no fence", "does not call", "no last look"] {
        check_notices(mutant, 3, first_wait_model);
    }
}

/// One fiber waits as the first while who looked, or watched, leaves that to run something, and a third worker sleeps without a post: that one is called by either.
fn leave_model(come: fn(&Roam), leave: fn(&Roam)) {
    let group = Group::new();
    come(&group.roam);
    group.bed.slot.lie_down();
    group.idle.enter_sleep(SLEEPER);
    let waiter = {
        let group = group.clone();
        loom::thread::spawn(move || group.wait())
    };
    group.run_instead(leave);
    waiter.join().unwrap();
    assert!(!group.bed.slot.is_asleep(), "nobody looks, and nobody is called");
}

fn lookout_leaves() {
    leave_model(|roam| assert!(roam.take_post()), Roam::leave_post);
}

fn watcher_leaves() {
    leave_model(Roam::begin_watch, Roam::end_watch);
}

#[test]
fn who_leaves_the_roam_or_who_waits_there_calls_another() {
    check(3, lookout_leaves);
    check(3, watcher_leaves);
}

#[test]
fn to_leave_the_roam_needs_its_fences_and_that_it_is_passed_on() {
    for mutant in ["no fence", "does not pass on"] {
        check_notices(mutant, 3, lookout_leaves);
        check_notices(mutant, 3, watcher_leaves);
    }
}
