//! Who sits out, who is the sentry, and who calls it.

use std::sync::Arc;

use super::duty::{Call, Duty};
use super::model::Bed;
use crate::base::atomic::{AtomicUsize, Relaxed};
use crate::{check, check_notices};

const WANTED: usize = 1;
const SENTRY: usize = 2;

/// Two workers are one too many, and both find that: one of them sits out, and is the sentry, as nobody else is.
fn surplus_model() {
    let duty = Arc::new(Duty::new());
    let there = WANTED + 1;
    let sit_out = |worker: usize| {
        let duty = duty.clone();
        move || duty.sit_out(worker, there, WANTED) && duty.take_post()
    };
    let other = loom::thread::spawn(sit_out(1));
    let sits = [sit_out(0)(), other.join().unwrap()];
    assert_ne!(sits[0], sits[1], "one of two sits out");
    assert_eq!(duty.bench().bits(), if sits[0] { 1 } else { 2 });
    assert_eq!(duty.on(there), WANTED);
}

#[test]
fn of_two_that_see_one_too_many_one_sits_out() {
    check(3, surplus_model);
}

/// A worker comes back, and sits out if it may, while the sentry, which has seen it neither held nor on the bench, notes that it is held: it counts once, whatever it is, and is on duty when it has stood in and looked at itself.
fn come_back_model(there: usize) {
    let duty = Arc::new(Duty::new());
    let other = {
        let duty = duty.clone();
        loom::thread::spawn(move || {
            duty.come_back(0);
            let sits = duty.sit_out(0, there, WANTED);
            assert!(!sits || there > WANTED, "nobody is too many");
            sits
        })
    };
    duty.note_held(0);
    let sits = other.join().unwrap();
    assert_eq!(duty.on(there), there - usize::from(sits || duty.held().contains(0)));
    duty.stand_in(0);
    duty.come_back(0);
    assert_eq!((duty.held().is_empty(), duty.on(there)), (true, there));
}

#[test]
fn a_worker_that_is_noted_as_it_comes_back_or_sits_out_counts_once() {
    check(3, || come_back_model(WANTED));
    check(3, || come_back_model(WANTED + 1));
}

/// The last idle worker leaves the idle ones, and calls, while the sentry is about to doze: it looks, or is woken.
fn doze_model() {
    let group = Arc::new((Duty::new(), AtomicUsize::new(1), Bed::new()));
    assert!(group.0.take_post());
    let worker = {
        let group = group.clone();
        loom::thread::spawn(move || {
            let (duty, idle, bed) = &*group;
            idle.store(0, Relaxed);
            match duty.call(|| idle.load(Relaxed) != 0) {
                Call::Wake(sentry) => {
                    assert_eq!(sentry, SENTRY);
                    bed.wake();
                }
                Call::Looks => {}
                Call::Nobody => panic!("there is a sentry"),
            }
        })
    };
    let (duty, idle, bed) = &*group;
    bed.slot.lie_down();
    duty.doze(SENTRY);
    if idle.load(Relaxed) == 0 {
        duty.rouse();
    } else {
        // loom reports a deadlock if nobody wakes it.
        bed.futex_wait();
    }
    bed.slot.get_up();
    worker.join().unwrap();
}

#[test]
fn who_leaves_the_idle_ones_last_is_seen_by_the_sentry_or_wakes_it() {
    check(3, doze_model);
}

#[test]
fn dozing_needs_its_fences() {
    check_notices("no fence", 3, doze_model);
}

/// The sentry leaves its post as another worker comes to the bench, or lies down there: that one takes the post, by itself or since it is woken. loom reports a deadlock if it sleeps for ever.
fn relief_model() {
    let group = Arc::new((Duty::new(), Bed::new()));
    group.0.come_to_bench(SENTRY);
    assert!(group.0.take_post());
    let other = {
        let group = group.clone();
        loom::thread::spawn(move || {
            let (duty, bed) = &*group;
            duty.come_to_bench(0);
            // As `Worker::sit_out`.
            while !duty.take_post() {
                bed.slot.lie_down();
                if !duty.is_vacant() {
                    bed.futex_wait();
                }
                bed.slot.get_up();
            }
        })
    };
    let (duty, bed) = &*group;
    duty.stand_in(SENTRY);
    if let Some(another) = duty.leave_post() {
        assert_eq!(another, 0);
        bed.wake();
    }
    other.join().unwrap();
}

/// The sentry leaves its post as another leaves the bench, for something of its own, and a third sleeps there: that one is told by one of them, whomever the sentry chose.
fn heir_model() {
    let group = Arc::new((Duty::new(), Bed::new()));
    group.0.come_to_bench(SENTRY);
    assert!(group.0.take_post());
    group.0.come_to_bench(0);
    group.0.come_to_bench(1);
    // The third, which the two others know of by its bed.
    group.1.slot.lie_down();
    let tell = |group: &(Duty, Bed), heir: Option<usize>| {
        if heir == Some(1) {
            group.1.wake();
        }
    };
    let other = {
        let group = group.clone();
        loom::thread::spawn(move || {
            group.0.stand_in(0);
            tell(&group, group.0.heir());
        })
    };
    group.0.stand_in(SENTRY);
    tell(&group, group.0.leave_post());
    other.join().unwrap();
    assert!(!group.1.slot.is_asleep(), "nobody is the sentry, and who could be sleeps");
}

#[test]
fn a_post_is_not_lost_with_one_that_leaves_the_bench() {
    check(3, heir_model);
}

#[test]
fn to_leave_the_bench_needs_its_fences() {
    check_notices("no fence", 3, heir_model);
}

#[test]
fn a_post_that_is_left_is_taken_by_whoever_is_on_the_bench() {
    check(3, relief_model);
}

#[test]
fn to_leave_a_post_needs_its_fences() {
    check_notices("no fence", 3, relief_model);
}
