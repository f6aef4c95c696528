//! A fiber that may move: whoever comes second of its waker and the worker that it leaves has it, with its registers and with what the waker noted.

use std::sync::Arc;

use super::model::Cargo;
use super::state::{Begin, Cancel, Cause, Ends, State, Unpark};
use crate::base::atomic::{AtomicUsize, Relaxed, mutant};
use crate::{check, check_notices};

struct Mover {
    state: State,
    /// Written as it leaves its stack: by the worker that it leaves.
    registers: Cargo,
    /// Written by whoever ended its wait, before it calls.
    note: Cargo,
    /// Times that somebody had it.
    had: AtomicUsize,
}

impl Mover {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: State::new(), registers: Cargo::new(), note: Cargo::new(), had: AtomicUsize::new(0) })
    }

    /// `Worker::see_to_left`.
    fn leave(&self) {
        self.registers.put(1);
        if self.state.leave() {
            self.go_on();
        }
    }

    /// `make_ready`: by who ended its wait.
    fn call(&self) {
        self.note.put(1);
        if self.state.call() || mutant("has it whether it has left or not") {
            self.go_on();
        }
    }

    /// Whoever has it runs it.
    fn go_on(&self) {
        assert_eq!(self.had.fetch_add(1, Relaxed), 0, "a fiber is had by two");
        assert_eq!((self.registers.get(), self.note.get()), (1, 1));
        self.state.end_wait_of_mover();
    }
}

/// A wait that is ended by a waker, a deadline or a cancel as the fiber leaves.
fn leave_against(rivals: &'static [Cause]) {
    let mover = Mover::new();
    assert_eq!(mover.state.begin(Ends::BY_CLAIM.or_cancel()), Begin::Wait);
    let rivals: Vec<_> = rivals
        .iter()
        .map(|&cause| {
            let mover = mover.clone();
            loom::thread::spawn(move || {
                let won = match cause {
                    Cause::Cancelled => mover.state.cancel() == Cancel::MakeReady,
                    _ => mover.state.claim(cause),
                };
                if won {
                    mover.call();
                }
            })
        })
        .collect();
    mover.leave();
    rivals.into_iter().for_each(|rival| rival.join().unwrap());
    assert_eq!(mover.had.load(Relaxed), 1, "a fiber is had by nobody");
}

fn leave_against_a_waker() {
    leave_against(&[Cause::Woken]);
}

#[test]
fn a_mover_that_is_woken_as_it_leaves_is_had_once() {
    check(5, leave_against_a_waker);
}

#[test]
fn a_mover_is_had_once_whether_a_wake_a_deadline_or_a_cancel_ends_its_wait() {
    check(2, || leave_against(&[Cause::Woken, Cause::TimedOut, Cause::Cancelled]));
}

#[test]
fn leaving_and_calling_need_their_orderings() {
    for ordering in ["relaxed", "fetch_add without acquire", "fetch_add without release", "has it whether it has left or not"] {
        check_notices(ordering, 5, leave_against_a_waker);
    }
}

/// Two parks, each with a waker of its own: the marks of the first do not reach the second.
#[test]
fn the_marks_of_a_wait_end_with_it() {
    check(3, || {
        let mover = Mover::new();
        for _ in 0..2 {
            let waker = {
                let mover = mover.clone();
                loom::thread::spawn(move || {
                    if mover.state.unpark() == Unpark::MakeReady {
                        mover.call();
                    }
                })
            };
            let waits = mover.state.begin(Ends::BY_UNPARK) == Begin::Wait;
            if waits {
                mover.leave();
            }
            waker.join().unwrap();
            assert_eq!(mover.had.load(Relaxed), usize::from(waits));
            mover.had.store(0, Relaxed);
        }
    });
}
