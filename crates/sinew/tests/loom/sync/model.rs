use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use loom::cell::UnsafeCell;

use super::raw_mutex::RawMutex;
use crate::os::clock;
use crate::rt::wait::{SOON, held};
use crate::{check, check_notices};

/// A lock and what it guards; freed by the last one that has it.
pub(super) struct Guarded {
    pub(super) lock: RawMutex,
    sum: UnsafeCell<usize>,
}

impl Guarded {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { lock: RawMutex::unlocked(), sum: UnsafeCell::new(0) })
    }

    /// Adds one, if the lock is had.
    pub(super) fn add(&self, visit: Visit) -> usize {
        self.visit(visit, || ())
    }

    /// As `add`, and does something more under the lock.
    pub(super) fn visit(&self, visit: Visit, holding: impl FnOnce()) -> usize {
        if !(visit.take)(&self.lock) {
            return 0;
        }
        // SAFETY: loom checks that nobody else is here.
        self.sum.with_mut(|sum| unsafe { *sum += 1 });
        holding();
        (visit.release)(&self.lock);
        1
    }

    /// All that got in were counted, and the lock is free, and expects nobody.
    pub(super) fn check_end(&self, got: usize) {
        assert!(self.lock.try_take_free(), "the lock is left locked, or somebody is expected who has come");
        // SAFETY: loom checks that nobody else is here.
        self.sum.with(|sum| assert_eq!(unsafe { *sum }, got));
    }
}

/// A way to take it, which says whether it did, and one to let go of it.
#[derive(Clone, Copy)]
pub(super) struct Visit {
    take: fn(&RawMutex) -> bool,
    release: fn(&RawMutex),
}

fn take(lock: &RawMutex) -> bool {
    lock.take();
    true
}

fn take_soon(lock: &RawMutex) -> bool {
    lock.take_until(SOON)
}

pub(super) const PATIENT: Visit = Visit { take, release: RawMutex::release };
pub(super) const IMPATIENT: Visit = Visit { take: take_soon, release: RawMutex::release };
pub(super) const HASTY: Visit = Visit { take: RawMutex::try_take, release: RawMutex::release };
pub(super) const FAIR: Visit = Visit { take, release: RawMutex::release_fair };

/// One after another in each thread; all that got in are counted, and at the end the lock is free.
fn crowd(threads: &'static [&'static [Visit]]) -> impl Fn() + Sync + Send + 'static {
    move || {
        let guarded = Guarded::new();
        let others: Vec<_> = threads[1..]
            .iter()
            .map(|visits| {
                let guarded = guarded.clone();
                loom::thread::spawn(move || visits.iter().map(|visit| guarded.add(*visit)).sum::<usize>())
            })
            .collect();
        let mut got: usize = threads[0].iter().map(|visit| guarded.add(*visit)).sum();
        got += others.into_iter().map(|other| other.join().unwrap()).sum::<usize>();
        guarded.check_end(got);
    }
}

#[test]
fn a_mutex_lets_one_in_at_a_time_and_leaves_nobody_asleep() {
    check(3, crowd(&[&[PATIENT], &[PATIENT]]));
    check(2, crowd(&[&[PATIENT, PATIENT], &[PATIENT, PATIENT]]));
    check(2, crowd(&[&[PATIENT], &[PATIENT], &[PATIENT]]));
}

#[test]
fn a_time_out_of_a_mutex_loses_neither_the_lock_nor_a_wake() {
    check(3, crowd(&[&[PATIENT], &[IMPATIENT]]));
    check(2, crowd(&[&[PATIENT], &[IMPATIENT], &[PATIENT]]));
}

/// Each look at the clock takes so long that whoever has queued is handed the lock.
#[test]
fn a_mutex_that_is_handed_over_is_neither_lost_nor_doubled() {
    clock::set_look_ns(1_000_000);
    check(3, crowd(&[&[PATIENT], &[PATIENT]]));
    check(2, crowd(&[&[PATIENT, PATIENT], &[PATIENT]]));
    check(2, crowd(&[&[PATIENT], &[IMPATIENT], &[PATIENT]]));
    clock::set_look_ns(0);
}

/// As `who_queues_behind_another_s_turn_at_a_rwlock_is_not_left_asleep`.
#[test]
fn who_queues_behind_another_s_turn_at_a_mutex_is_not_left_asleep() {
    for look_ns in [20_000, 60_000] {
        clock::set_look_ns(look_ns);
        check(2, crowd(&[&[PATIENT, PATIENT], &[PATIENT]]));
        check(1, crowd(&[&[PATIENT], &[PATIENT], &[PATIENT]]));
        check(1, crowd(&[&[PATIENT], &[IMPATIENT], &[PATIENT]]));
    }
    clock::set_look_ns(0);
}

/// One is of a held worker, which goes on only when all others have had the lock: those who look after it see to that, though nobody locks it any more.
fn behind_a_held_one(others: &'static [Visit]) -> impl Fn() + Sync + Send + 'static {
    move || {
        let (guarded, left) = (Guarded::new(), Arc::new(AtomicUsize::new(others.len())));
        guarded.lock.take();
        let of_held = guarded.clone();
        let mut threads = vec![loom::thread::spawn(move || {
            held::begin();
            of_held.add(PATIENT)
        })];
        threads.extend(others.iter().map(|visit| {
            let (guarded, left) = (guarded.clone(), left.clone());
            loom::thread::spawn(move || {
                let got = guarded.add(*visit);
                if left.fetch_sub(1, SeqCst) == 1 {
                    held::end();
                }
                got
            })
        }));
        guarded.lock.release();
        let got: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        guarded.check_end(got);
    }
}

/// Time goes on by more than one that was told to try is waited for, each time somebody looks.
#[test]
fn who_queued_behind_one_that_does_not_come_is_not_left_asleep() {
    clock::set_look_ns(400_000);
    check(2, behind_a_held_one(&[PATIENT]));
    check(1, behind_a_held_one(&[PATIENT, PATIENT]));
    check(1, behind_a_held_one(&[IMPATIENT, PATIENT]));
    check_notices("no alarms", 2, behind_a_held_one(&[PATIENT]));
    check_notices("all of one place", 2, behind_a_held_one(&[PATIENT]));
    clock::set_look_ns(0);
}

#[test]
fn fair_unlocks_and_those_who_only_try_leave_nobody_asleep() {
    check(3, crowd(&[&[FAIR], &[FAIR]]));
    check(2, crowd(&[&[FAIR, PATIENT], &[PATIENT]]));
    check(2, crowd(&[&[FAIR], &[PATIENT], &[HASTY]]));
    check(2, crowd(&[&[FAIR], &[IMPATIENT], &[PATIENT]]));
}

#[test]
fn without_its_orderings_or_its_wake_a_mutex_is_none() {
    check_notices("relaxed", 3, crowd(&[&[PATIENT], &[PATIENT]]));
    check_notices("fetch_or without acquire", 3, crowd(&[&[PATIENT], &[PATIENT]]));
    check_notices("no kernel wake", 4, crowd(&[&[PATIENT, PATIENT], &[PATIENT, PATIENT]]));
}
