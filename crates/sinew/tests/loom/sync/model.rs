use std::sync::Arc;

use loom::cell::UnsafeCell;

use super::raw_mutex::RawMutex;
use crate::os::clock;
use crate::rt::wait::SOON;
use crate::{check, check_notices};

/// A lock and what it guards; freed by the last one that has it.
struct Guarded {
    lock: RawMutex,
    sum: UnsafeCell<usize>,
}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Self { lock: RawMutex::unlocked(), sum: UnsafeCell::new(0) })
    }

    /// Adds one, if `take` gets the lock.
    fn add(&self, take: impl FnOnce(&RawMutex) -> bool) -> usize {
        if !take(&self.lock) {
            return 0;
        }
        // SAFETY: loom checks that nobody else is here.
        self.sum.with_mut(|sum| unsafe { *sum += 1 });
        self.lock.release();
        1
    }
}

fn patient(lock: &RawMutex) -> bool {
    lock.take();
    true
}

fn impatient(lock: &RawMutex) -> bool {
    lock.take_until(SOON)
}

/// One try for the lock.
type Take = fn(&RawMutex) -> bool;

/// One after another in each thread; all that got in are counted, and at the end the lock is free.
fn crowd(threads: &'static [&'static [Take]]) -> impl Fn() + Sync + Send + 'static {
    move || {
        let guarded = Guarded::new();
        let others: Vec<_> = threads[1..]
            .iter()
            .map(|takes| {
                let guarded = guarded.clone();
                loom::thread::spawn(move || takes.iter().map(|take| guarded.add(take)).sum::<usize>())
            })
            .collect();
        let mut got: usize = threads[0].iter().map(|take| guarded.add(take)).sum();
        got += others.into_iter().map(|other| other.join().unwrap()).sum::<usize>();
        assert!(guarded.lock.try_take(), "the lock is left locked");
        // SAFETY: as above.
        guarded.sum.with(|sum| assert_eq!(unsafe { *sum }, got));
    }
}

#[test]
fn a_mutex_lets_one_in_at_a_time_and_leaves_nobody_asleep() {
    check(3, crowd(&[&[patient], &[patient]]));
    check(2, crowd(&[&[patient, patient], &[patient, patient]]));
    check(2, crowd(&[&[patient], &[patient], &[patient]]));
}

#[test]
fn a_time_out_of_a_mutex_loses_neither_the_lock_nor_a_wake() {
    check(3, crowd(&[&[patient], &[impatient]]));
    check(2, crowd(&[&[patient], &[impatient], &[patient]]));
}

/// Each look at the clock takes so long that whoever has queued is handed the lock.
#[test]
fn a_mutex_that_is_handed_over_is_neither_lost_nor_doubled() {
    clock::set_look_ns(1_000_000);
    check(3, crowd(&[&[patient], &[patient]]));
    check(2, crowd(&[&[patient, patient], &[patient]]));
    check(2, crowd(&[&[patient], &[impatient], &[patient]]));
    clock::set_look_ns(0);
}

#[test]
fn without_its_orderings_or_its_wake_a_mutex_is_none() {
    check_notices("relaxed", 3, crowd(&[&[patient], &[patient]]));
    check_notices("no kernel wake", 4, crowd(&[&[patient, patient], &[patient, patient]]));
}
