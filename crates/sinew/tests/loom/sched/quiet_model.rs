//! What was queued quietly, flushes, and a worker that moves it meanwhile: as `Group` and `Worker::spill` have them.

use std::sync::Arc;

use loom::sync::Mutex;

use super::idle::Idle;
use super::model::Bed;
use super::quiet::Quiet;
use crate::base::atomic::{AtomicUsize, Relaxed, SeqCst, fence, mutant};
use crate::{check, check_notices};

/// A worker makes a quiet child, and moves it to the group's queue; a flush comes at any time. Either the worker tells of it, or it is still to be flushed, or the flush has seen it, and so does who was woken by that.
fn flush_against_a_move() {
    struct Group {
        quiet: Quiet,
        children: AtomicUsize,
        queued: AtomicUsize,
    }
    impl Group {
        fn looks(&self) -> bool {
            self.children.load(Relaxed) != 0 || self.queued.load(Relaxed) != 0
        }
    }
    let group = Arc::new(Group { quiet: Quiet::new(), children: AtomicUsize::new(0), queued: AtomicUsize::new(0) });
    let flush = {
        let group = group.clone();
        loom::thread::spawn(move || {
            let takes = group.quiet.take() != 0;
            let tells = takes && group.looks();
            // Who is woken has found nothing else, and looks before it lies down again (`Idle::enter_sleep`).
            fence(SeqCst);
            (takes, tells && group.looks())
        })
    };
    let before = group.quiet.flushes();
    group.children.store(1, Relaxed);
    group.quiet.note(1);
    group.children.store(0, Relaxed);
    group.queued.store(1, Relaxed);
    let tells = if mutant("no look for flushes") { false } else { group.quiet.has_flushed(before) };
    let (was_taken, was_told) = flush.join().unwrap();
    assert!(!was_taken || was_told || tells, "a fiber was flushed, and nobody is told of it");
}

#[test]
fn a_flush_meets_whoever_moves_what_it_tells_of() {
    check(3, flush_against_a_move);
}

#[test]
fn a_flush_needs_its_fences() {
    check_notices("no fence", 3, flush_against_a_move);
}

#[test]
fn who_moves_quiet_ones_must_look_for_flushes() {
    check_notices("no look for flushes", 3, flush_against_a_move);
}

/// One worker that sleeps, and what is queued quietly for it.
struct Queue {
    idle: Idle,
    bed: Bed,
    lock: Mutex<()>,
    queued: AtomicUsize,
    quiet: Quiet,
}

impl Queue {
    /// `Group::queue_all`.
    fn push(&self) {
        let _queue = self.lock.lock().unwrap();
        self.queued.fetch_add(1, Relaxed);
        self.quiet.note(1);
    }

    /// `Group::flush`.
    fn flush(&self) {
        if self.quiet.take() == 0 || self.queued.load(Relaxed) == 0 {
            return;
        }
        for _ in self.idle.claim(1, |worker| worker).sleepers.iter() {
            self.bed.wake();
        }
    }

    fn sleep(&self) {
        self.bed.slot.lie_down();
        self.idle.enter_sleep(0);
        if self.queued.load(Relaxed) == 0 {
            self.bed.futex_wait();
        }
        self.bed.slot.get_up();
        let _ = self.idle.leave_sleep(0);
    }
}

/// One queues quietly and flushes, another flushes beside it, and may be who wakes the worker: that sees the fiber then.
fn flush_by_another() {
    let queue =
        Arc::new(Queue { idle: Idle::new(), bed: Bed::new(), lock: Mutex::new(()), queued: AtomicUsize::new(0), quiet: Quiet::new() });
    let [pusher, other] = [true, false].map(|pushes| {
        let queue = queue.clone();
        loom::thread::spawn(move || {
            if pushes {
                queue.push();
            }
            queue.flush();
        })
    });
    while queue.queued.load(Relaxed) == 0 {
        queue.sleep();
    }
    pusher.join().unwrap();
    other.join().unwrap();
}

#[test]
fn whoever_flushes_wakes_one_who_sees_what_was_queued() {
    check(3, flush_by_another);
}

#[test]
fn a_flush_needs_its_orderings() {
    check_notices("relaxed", 3, flush_by_another);
}
