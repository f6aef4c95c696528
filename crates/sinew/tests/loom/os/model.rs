use std::sync::Arc;

use loom::cell::UnsafeCell;

use super::lock::Lock;
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
