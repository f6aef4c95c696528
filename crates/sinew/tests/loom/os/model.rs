use std::sync::Arc;

use loom::cell::UnsafeCell;

use super::lock::Lock;
use super::state_lock::StateLock;
use crate::{check, check_notices};

/// Two or three threads add to a plain value under the lock: loom reports it if nothing orders them, or if one sleeps for ever.
fn additions(threads: usize) -> impl Fn() + Sync + Send + 'static {
    move || {
        let sum = Arc::new(Lock::new(UnsafeCell::new(0)));
        let add = |sum: &Lock<UnsafeCell<usize>>| {
            // SAFETY: loom checks that nobody else is here.
            sum.lock().with_mut(|place| unsafe { *place += 1 });
        };
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let sum = sum.clone();
                loom::thread::spawn(move || add(&sum))
            })
            .collect();
        add(&sum);
        others.into_iter().for_each(|other| other.join().unwrap());
        // SAFETY: as above.
        sum.lock().with(|place| assert_eq!(unsafe { *place }, threads));
    }
}

#[test]
fn the_lock_lets_one_in_at_a_time_and_leaves_nobody_asleep() {
    check(3, additions(2));
    check(2, additions(3));
}

#[test]
fn without_its_orderings_or_its_wake_the_lock_is_none() {
    check_notices("relaxed", 3, additions(2));
    check_notices("no kernel wake", 3, additions(2));
}

/// One thread adds inside, one from outside, in one step, to the state; who sees both has what both wrote. A plain value is added to inside, and by who saw the sum.
fn changes(threads: usize) -> impl Fn() + Sync + Send + 'static {
    move || {
        let sum = Arc::new((StateLock::new(0, UnsafeCell::new(0)), UnsafeCell::new(0)));
        let inside = |sum: &(StateLock<UnsafeCell<u32>>, UnsafeCell<u32>)| {
            let mut inside = sum.0.lock();
            // SAFETY: loom checks that nobody else is here.
            inside.with_mut(|place| unsafe { *place += 1 });
            inside.state += 1;
        };
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let sum = sum.clone();
                loom::thread::spawn(move || inside(&sum))
            })
            .collect();
        // SAFETY: as above; whoever sees the state that follows sees this.
        sum.1.with_mut(|place| unsafe { *place = 1 });
        if sum.0.change(|state| Some(state + 10)).is_none() {
            sum.0.lock().state += 10;
        }
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(sum.0.state(), 9 + threads as u32, "a change was lost");
    }
}

/// One writes and sets the state, from inside or outside; the other sees the state, and reads.
fn seen(from_inside: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Arc::new((StateLock::new(0, ()), UnsafeCell::new(0)));
        let setter = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                // SAFETY: loom checks that nobody else is here.
                shared.1.with_mut(|place| unsafe { *place = 7 });
                if from_inside {
                    shared.0.lock().state = 1;
                } else {
                    shared.0.change(|_| Some(1)).expect("nobody is inside");
                }
            })
        };
        while shared.0.state() != 1 {
            loom::thread::yield_now();
        }
        // SAFETY: as above.
        shared.1.with(|place| assert_eq!(unsafe { *place }, 7));
        setter.join().unwrap();
    }
}

#[test]
fn a_lock_with_a_state_loses_no_change_and_leaves_nobody_asleep() {
    check(3, changes(2));
    check(2, changes(3));
}

#[test]
fn who_sees_a_state_sees_what_was_written_before() {
    check(3, seen(true));
    check(3, seen(false));
}

#[test]
fn without_its_orderings_or_its_wake_a_lock_with_a_state_is_none() {
    check_notices("relaxed", 3, changes(3));
    check_notices("no kernel wake", 3, changes(3));
    check_notices("relaxed", 3, seen(false));
    check_notices("relaxed", 3, seen(true));
}
