use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::thread;

use super::futex::{Futex, FutexWait};
use crate::{check, check_notices};

/// A time-out that may come at any moment.
const SOON: Duration = Duration::ZERO;

/// The word is changed and all are woken: who waits for that, at a futex that nobody has waited at before, sees the change or is woken, and sees what was written before.
fn change_against_first_wait() {
    let shared = Arc::new((Futex::new(0), UnsafeCell::new(0)));
    let waker = {
        let shared = shared.clone();
        thread::spawn(move || {
            // SAFETY: loom checks that nobody else is here.
            shared.1.with_mut(|place| unsafe { *place = 7 });
            shared.0.store(1);
            shared.0.wake_all();
        })
    };
    while shared.0.load() == 0 {
        shared.0.wait(0);
    }
    // SAFETY: as above.
    shared.1.with(|place| assert_eq!(unsafe { *place }, 7));
    waker.join().unwrap();
}

#[test]
fn no_wait_misses_a_change_and_its_wake() {
    check(3, change_against_first_wait);
}

#[test]
fn without_its_fences_or_orderings_a_wait_misses_a_change() {
    check_notices("no fence", 3, change_against_first_wait);
    check_notices("relaxed", 3, change_against_first_wait);
    check_notices("no kernel wake", 3, change_against_first_wait);
}

/// One waits for a while, one wakes: as many were woken as the wake says, and nobody is left in the queue.
fn wake_against_timeout() {
    let futex = Arc::new(Futex::new(0));
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let futex = futex.clone();
            thread::spawn(move || usize::from(futex.wait_timeout(0, SOON) == FutexWait::Woken))
        })
        .collect();
    let mut wakes = futex.wake(1);
    let woken: usize = waiters.into_iter().map(|waiter| waiter.join().unwrap()).sum();
    wakes += futex.wake_all();
    assert_eq!(woken, wakes);
}

#[test]
fn a_wake_against_a_timeout_of_a_futex_has_one_winner() {
    check(2, wake_against_timeout);
}

/// One waits for a while at the first futex, is moved to the second, perhaps back, and woken there: it leaves the queue it is in, and has one outcome.
fn requeue_against_timeout(back: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let both = Arc::new((Futex::new(0), Futex::new(0)));
        let waiter = {
            let both = both.clone();
            thread::spawn(move || usize::from(both.0.wait_timeout(0, SOON) == FutexWait::Woken))
        };
        let mover = {
            let both = both.clone();
            thread::spawn(move || {
                let mut woken = both.0.requeue(&both.1, 0).woken;
                if back {
                    woken += both.1.requeue(&both.0, 0).woken;
                }
                woken
            })
        };
        let mut wakes = both.1.wake(1);
        wakes += mover.join().unwrap();
        let woken = waiter.join().unwrap();
        assert_eq!((woken, both.0.wake_all(), both.1.wake_all()), (wakes, 0, 0));
    }
}

#[test]
fn a_moved_waiter_whose_time_is_up_leaves_the_queue_it_is_in() {
    check(3, requeue_against_timeout(false));
    check(2, requeue_against_timeout(true));
    check_notices("relaxed", 3, requeue_against_timeout(false));
}

/// Two waiters wait patiently: one is woken by the requeue, the other at the second futex, or by its end.
fn requeue_then_wake(end: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let first = Arc::new(Futex::new(0));
        let waiter = {
            let first = first.clone();
            thread::spawn(move || first.wait(0))
        };
        let second = Futex::new(0);
        let requeued = first.requeue(&second, 0);
        if requeued.moved == 0 {
            // It has not come yet: it is told by the word.
            first.store(1);
            first.wake_all();
        } else if !end {
            assert_eq!(second.wake(1), 1);
        }
        drop(second);
        let waited = waiter.join().unwrap();
        assert!(waited || requeued.moved == 0);
    }
}

#[test]
fn a_moved_waiter_is_woken_where_it_is_or_by_the_end_of_that() {
    check(3, requeue_then_wake(false));
    check(3, requeue_then_wake(true));
}

/// Two requeues cross: locks are taken in one order, so that nobody waits for ever.
#[test]
fn requeues_that_cross_do_not_lock_each_other_out() {
    check(3, || {
        let both = Arc::new((Futex::new(0), Futex::new(0)));
        // Both have queues.
        assert_eq!((both.0.wait_timeout(0, SOON), both.1.wait_timeout(0, SOON)), (FutexWait::TimedOut, FutexWait::TimedOut));
        let other = {
            let both = both.clone();
            thread::spawn(move || both.0.requeue(&both.1, 0))
        };
        both.1.requeue(&both.0, 0);
        other.join().unwrap();
    });
}
