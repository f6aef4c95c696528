use std::sync::Arc;

use loom::cell::UnsafeCell;

use super::raw_rwlock::RawRwLock;
use crate::os::clock;
use crate::rt::wait::SOON;
use crate::{check, check_notices};

/// A lock and what it guards.
pub(super) struct Guarded {
    pub(super) lock: RawRwLock,
    sum: UnsafeCell<usize>,
}

impl Guarded {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { lock: RawRwLock::unlocked(), sum: UnsafeCell::new(0) })
    }

    /// All that were added are there, and the lock is free.
    pub(super) fn check_end(&self, added: usize) {
        assert!(self.lock.try_write(), "the lock is left locked");
        // SAFETY: loom checks that nobody else is here.
        self.sum.with(|sum| assert_eq!(unsafe { *sum }, added));
    }
}

/// One use of the lock; gives how often it has added.
pub(super) type Use = fn(&Guarded) -> usize;

pub(super) fn read(guarded: &Guarded) -> usize {
    guarded.lock.read();
    look(guarded)
}

pub(super) fn read_soon(guarded: &Guarded) -> usize {
    if guarded.lock.read_until(SOON) { look(guarded) } else { 0 }
}

pub(super) fn write(guarded: &Guarded) -> usize {
    guarded.lock.write();
    add(guarded);
    guarded.lock.release_write();
    1
}

fn read_fairly(guarded: &Guarded) -> usize {
    guarded.lock.read();
    // SAFETY: loom checks that nobody writes.
    guarded.sum.with(|sum| assert!(unsafe { *sum } < 99));
    guarded.lock.release_read_fairly();
    0
}

fn write_fairly(guarded: &Guarded) -> usize {
    guarded.lock.write();
    add(guarded);
    guarded.lock.release_write_fairly();
    1
}

pub(super) fn write_soon(guarded: &Guarded) -> usize {
    if !guarded.lock.write_until(SOON) {
        return 0;
    }
    add(guarded);
    guarded.lock.release_write();
    1
}

fn write_then_read(guarded: &Guarded) -> usize {
    guarded.lock.write();
    add(guarded);
    guarded.lock.downgrade();
    look(guarded);
    1
}

fn look(guarded: &Guarded) -> usize {
    // SAFETY: loom checks that nobody writes.
    guarded.sum.with(|sum| assert!(unsafe { *sum } < 99));
    guarded.lock.release_read();
    0
}

fn add(guarded: &Guarded) {
    // SAFETY: loom checks that nobody else is here.
    guarded.sum.with_mut(|sum| unsafe { *sum += 1 });
}

fn crowd(threads: &'static [&'static [Use]]) -> impl Fn() + Sync + Send + 'static {
    move || {
        let guarded = Guarded::new();
        let others: Vec<_> = threads[1..]
            .iter()
            .map(|uses| {
                let guarded = guarded.clone();
                loom::thread::spawn(move || uses.iter().map(|one| one(&guarded)).sum::<usize>())
            })
            .collect();
        let mut added: usize = threads[0].iter().map(|one| one(&guarded)).sum();
        added += others.into_iter().map(|other| other.join().unwrap()).sum::<usize>();
        guarded.check_end(added);
    }
}

#[test]
fn a_rwlock_lets_in_readers_or_one_writer_and_leaves_nobody_asleep() {
    check(3, crowd(&[&[write], &[read]]));
    check(3, crowd(&[&[write], &[write]]));
    // Those of three threads hold at 2 preemptions too, which takes a minute.
    check(1, crowd(&[&[write], &[read], &[read]]));
    check(1, crowd(&[&[write], &[read], &[write]]));
    check(2, crowd(&[&[write, read], &[read, write]]));
}

/// Each look at the clock takes so long that whoever has queued is handed the lock.
#[test]
fn a_rwlock_that_is_handed_over_is_neither_lost_nor_doubled() {
    clock::set_look_ns(1_000_000);
    check(3, crowd(&[&[write], &[read]]));
    check(3, crowd(&[&[write], &[write_soon]]));
    check(1, crowd(&[&[write], &[read], &[read]]));
    check(1, crowd(&[&[write_then_read], &[read_soon], &[write]]));
    clock::set_look_ns(0);
}

/// Each look at the clock takes so long that after one or two of them the turn of the one that was told to try has come, and others queue behind it, though the lock may be free.
#[test]
fn who_queues_behind_another_s_turn_at_a_rwlock_is_not_left_asleep() {
    for look_ns in [20_000, 60_000] {
        clock::set_look_ns(look_ns);
        check(2, crowd(&[&[write, write], &[write]]));
        check(2, crowd(&[&[write, read], &[read]]));
        check(1, crowd(&[&[write], &[read], &[write]]));
        check(1, crowd(&[&[write], &[read], &[read]]));
        check(1, crowd(&[&[read], &[write_soon], &[write]]));
    }
    clock::set_look_ns(0);
}

#[test]
fn a_rwlock_that_is_unlocked_fairly_is_neither_lost_nor_doubled() {
    check(3, crowd(&[&[write_fairly], &[write_fairly]]));
    check(3, crowd(&[&[read_fairly], &[write_soon]]));
    check(1, crowd(&[&[write_fairly], &[read_fairly], &[write]]));
}

#[test]
fn a_time_out_of_a_rwlock_loses_neither_the_lock_nor_a_wake() {
    check(3, crowd(&[&[write], &[write_soon]]));
    check(1, crowd(&[&[read], &[write_soon], &[read]]));
    check(1, crowd(&[&[write], &[read_soon], &[write]]));
}

#[test]
fn a_writer_that_becomes_a_reader_lets_others_in() {
    check(3, crowd(&[&[write_then_read], &[read]]));
    // Holds at 2 preemptions too, which takes a minute and a half.
    check(1, crowd(&[&[write_then_read], &[read], &[write]]));
}

#[test]
fn without_its_orderings_or_its_wake_a_rwlock_is_none() {
    check_notices("relaxed", 3, crowd(&[&[write], &[read]]));
    check_notices("relaxed", 3, crowd(&[&[write], &[write]]));
    check_notices("no kernel wake", 3, crowd(&[&[write], &[write]]));
}
