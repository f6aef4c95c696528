use std::sync::Arc;

use loom::cell::UnsafeCell;

use super::join::{Detach, Finish, Join};
use super::references::References;
use super::state::{Begin, Cancel, Cause, Ends, State, Unpark};
use super::tally::Tally;
use crate::base::atomic::{AtomicUsize, Relaxed};
use crate::{check, check_notices};

/// Plain memory that one side writes and the other reads; loom reports it if nothing orders them.
pub struct Cargo(UnsafeCell<u32>);

impl Cargo {
    pub fn new() -> Self {
        Self(UnsafeCell::new(0))
    }
    pub fn put(&self, value: u32) {
        // SAFETY: loom checks that nobody else is here.
        self.0.with_mut(|place| unsafe { *place = value });
    }
    pub fn get(&self) -> u32 {
        // SAFETY: loom checks that nobody writes.
        self.0.with(|place| unsafe { *place })
    }
}

// SAFETY: loom checks every access.
unsafe impl Sync for Cargo {}
// SAFETY: as above.
unsafe impl Send for Cargo {}

/// The queue a waker puts the fiber into: counts how often it was made ready, and carries nothing, so that the state word must.
struct Ready(AtomicUsize);

impl Ready {
    fn wait_for_one(&self) {
        while self.0.load(Relaxed) == 0 {
            loom::thread::yield_now();
        }
        assert_eq!(self.0.load(Relaxed), 1, "made ready twice");
        self.0.store(0, Relaxed);
    }
}

fn two_claims() {
    let fiber = Arc::new((State::new(), Ready(AtomicUsize::new(0)), Cargo::new(), Cargo::new(), Cargo::new()));
    // What the fiber wrote before it waited, the waker sees.
    fiber.4.put(9);
    fiber.0.begin_wait();
    let claimers: Vec<_> = [Cause::Woken, Cause::TimedOut]
        .into_iter()
        .map(|cause| {
            let fiber = fiber.clone();
            loom::thread::spawn(move || {
                let cargo = if cause == Cause::Woken { &fiber.2 } else { &fiber.3 };
                cargo.put(1);
                let won = fiber.0.claim(cause);
                if won {
                    assert_eq!(fiber.4.get(), 9);
                    fiber.1.0.fetch_add(1, Relaxed);
                }
                won
            })
        })
        .collect();
    fiber.1.wait_for_one();
    match fiber.0.end_wait() {
        Cause::Woken => assert_eq!(fiber.2.get(), 1),
        Cause::TimedOut => assert_eq!(fiber.3.get(), 1),
        Cause::Cancelled => unreachable!("nobody cancels here"),
    }
    let winners = claimers.into_iter().map(|c| c.join().unwrap()).filter(|&won| won).count();
    assert_eq!(winners, 1);
}

#[test]
fn a_wait_has_one_winner_and_the_fiber_sees_what_the_winner_did() {
    check(3, two_claims);
}

/// A waker, a deadline and a cancel against one wait: one of them ends it, the fiber learns which and sees what that one did, and the cancel is kept whoever wins.
fn wake_deadline_cancel() {
    let fiber = Arc::new((State::new(), Ready(AtomicUsize::new(0)), [Cargo::new(), Cargo::new(), Cargo::new()]));
    assert_eq!(fiber.0.begin(Ends::BY_CLAIM.or_cancel()), Begin::Wait);
    let rivals: Vec<_> = [Cause::Woken, Cause::TimedOut, Cause::Cancelled]
        .into_iter()
        .enumerate()
        .map(|(index, cause)| {
            let fiber = fiber.clone();
            let rival = move || {
                fiber.2[index].put(1);
                let won = match cause {
                    Cause::Cancelled => fiber.0.cancel() == Cancel::MakeReady,
                    _ => fiber.0.claim(cause),
                };
                if won {
                    fiber.1.0.fetch_add(1, Relaxed);
                }
                won
            };
            loom::thread::spawn(rival)
        })
        .collect();
    fiber.1.wait_for_one();
    let cause = fiber.0.end_wait();
    let index = [Cause::Woken, Cause::TimedOut, Cause::Cancelled].iter().position(|&c| c == cause).unwrap();
    assert_eq!(fiber.2[index].get(), 1);
    let winners: Vec<bool> = rivals.into_iter().map(|r| r.join().unwrap()).collect();
    assert_eq!(winners.iter().filter(|&&won| won).count(), 1);
    assert!(winners[index], "the fiber was told another cause than the one that won");
    assert!(fiber.0.is_cancelled());
    assert_eq!(fiber.0.begin(Ends::BY_CLAIM.or_cancel()), Begin::AlreadyCancelled, "the cancel was lost");
    assert_eq!(fiber.1.0.load(Relaxed), 0, "made ready twice");
}

#[test]
fn a_wake_a_deadline_and_a_cancel_have_one_winner_and_the_cancel_is_kept() {
    check(3, wake_deadline_cancel);
}

#[test]
fn without_orderings_the_model_of_wake_deadline_and_cancel_fails() {
    check_notices("relaxed", 3, wake_deadline_cancel);
}

/// A cancel before, at or after a park, beside an `unpark`: the park ends, a token that was not used is kept, and what the canceller wrote is seen.
#[test]
fn a_cancel_is_never_lost_whether_it_comes_before_at_or_after_the_wait() {
    check(3, || {
        let fiber = Arc::new((State::new(), Ready(AtomicUsize::new(0)), Cargo::new()));
        let canceller = {
            let fiber = fiber.clone();
            loom::thread::spawn(move || {
                fiber.2.put(5);
                if fiber.0.cancel() == Cancel::MakeReady {
                    fiber.1.0.fetch_add(1, Relaxed);
                }
            })
        };
        let waker = {
            let fiber = fiber.clone();
            loom::thread::spawn(move || {
                if fiber.0.unpark() == Unpark::MakeReady {
                    fiber.1.0.fetch_add(1, Relaxed);
                }
            })
        };
        let cancelled = match fiber.0.begin(Ends::BY_UNPARK.or_cancel()) {
            Begin::AlreadyUnparked => false,
            Begin::AlreadyCancelled => true,
            Begin::Wait => {
                fiber.1.wait_for_one();
                fiber.0.end_wait() == Cause::Cancelled
            }
        };
        if cancelled {
            assert_eq!(fiber.2.get(), 5, "cancelled without what the canceller wrote");
        }
        canceller.join().unwrap();
        waker.join().unwrap();
        assert!(fiber.0.is_cancelled());
        assert_eq!(fiber.1.0.load(Relaxed), 0, "made ready twice");
        let token_left = fiber.0.begin(Ends::BY_UNPARK) == Begin::AlreadyUnparked;
        assert_eq!(token_left, cancelled, "the unpark was lost or counted twice");
    });
}

/// A wait that a shield keeps cancels off is not ended by one.
#[test]
fn a_wait_that_is_not_open_to_cancels_is_not_ended_by_one() {
    check(3, || {
        let fiber = Arc::new(State::new());
        fiber.begin_wait();
        let canceller = {
            let fiber = fiber.clone();
            loom::thread::spawn(move || assert_eq!(fiber.cancel(), Cancel::Noted))
        };
        let waker = {
            let fiber = fiber.clone();
            loom::thread::spawn(move || assert!(fiber.claim(Cause::Woken)))
        };
        canceller.join().unwrap();
        waker.join().unwrap();
        assert_eq!(fiber.end_wait(), Cause::Woken);
        assert!(fiber.is_cancelled());
    });
}

#[test]
fn an_unpark_is_never_lost_nor_doubled_whether_it_comes_before_at_or_after_the_park() {
    check(3, || {
        let fiber = Arc::new((State::new(), Ready(AtomicUsize::new(0)), Cargo::new()));
        let waker = {
            let fiber = fiber.clone();
            loom::thread::spawn(move || {
                fiber.2.put(5);
                if fiber.0.unpark() == Unpark::MakeReady {
                    fiber.1.0.fetch_add(1, Relaxed);
                }
            })
        };
        match fiber.0.begin(Ends::BY_UNPARK) {
            Begin::AlreadyUnparked => {}
            Begin::AlreadyCancelled => unreachable!("nobody cancels here"),
            Begin::Wait => {
                fiber.1.wait_for_one();
                assert_eq!(fiber.0.end_wait(), Cause::Woken);
            }
        }
        assert_eq!(fiber.2.get(), 5, "the park returned without what the waker wrote");
        waker.join().unwrap();
        // Nothing is left over.
        assert_eq!(fiber.1.0.load(Relaxed), 0);
        assert_eq!(fiber.0.begin(Ends::BY_UNPARK), Begin::Wait);
    });
}

#[test]
fn an_unpark_against_a_timeout_is_used_once_now_or_at_the_next_park() {
    check(3, || {
        let fiber = Arc::new((State::new(), Ready(AtomicUsize::new(0))));
        assert_eq!(fiber.0.begin(Ends::BY_UNPARK), Begin::Wait);
        let waker = {
            let fiber = fiber.clone();
            loom::thread::spawn(move || {
                let ready = fiber.0.unpark() == Unpark::MakeReady;
                if ready {
                    fiber.1.0.fetch_add(1, Relaxed);
                }
            })
        };
        let timer = {
            let fiber = fiber.clone();
            loom::thread::spawn(move || {
                if fiber.0.claim(Cause::TimedOut) {
                    fiber.1.0.fetch_add(1, Relaxed);
                }
            })
        };
        fiber.1.wait_for_one();
        let cause = fiber.0.end_wait();
        timer.join().unwrap();
        waker.join().unwrap();
        let token_left = fiber.0.begin(Ends::BY_UNPARK) == Begin::AlreadyUnparked;
        assert_eq!(token_left, cause == Cause::TimedOut, "the unpark was lost or counted twice");
        assert_eq!(fiber.1.0.load(Relaxed), 0, "made ready twice");
    });
}

#[test]
fn an_unpark_leaves_other_waits_alone() {
    check(3, || {
        let fiber = Arc::new(State::new());
        fiber.begin_wait();
        let waker = {
            let fiber = fiber.clone();
            loom::thread::spawn(move || assert_eq!(fiber.unpark(), Unpark::TokenLeft))
        };
        assert!(fiber.claim(Cause::Woken), "an unpark ended a wait that was no park");
        assert_eq!(fiber.end_wait(), Cause::Woken);
        waker.join().unwrap();
        assert_eq!(fiber.begin(Ends::BY_UNPARK), Begin::AlreadyUnparked);
    });
}

/// A waker's wake before, at or after a wait for a future, beside a deadline and a cancel: one of them ends it, the fiber sees what that one did, and a wake that did not is
/// kept for the next such wait.
fn waker_deadline_cancel() {
    let fiber = Arc::new((State::new(), Ready(AtomicUsize::new(0)), [Cargo::new(), Cargo::new()]));
    let waker = {
        let fiber = fiber.clone();
        loom::thread::spawn(move || {
            fiber.2[0].put(1);
            if fiber.0.wake_task() == Unpark::MakeReady {
                fiber.1.0.fetch_add(1, Relaxed);
            }
        })
    };
    let canceller = {
        let fiber = fiber.clone();
        loom::thread::spawn(move || {
            fiber.2[1].put(1);
            if fiber.0.cancel() == Cancel::MakeReady {
                fiber.1.0.fetch_add(1, Relaxed);
            }
        })
    };
    let cause = match fiber.0.begin(Ends::BY_WAKER.or_cancel()) {
        Begin::AlreadyUnparked => Cause::Woken,
        Begin::AlreadyCancelled => Cause::Cancelled,
        Begin::Wait => {
            if fiber.0.claim(Cause::TimedOut) {
                fiber.1.0.fetch_add(1, Relaxed);
            }
            fiber.1.wait_for_one();
            fiber.0.end_wait()
        }
    };
    match cause {
        Cause::Woken => assert_eq!(fiber.2[0].get(), 1, "polled without what the waker wrote"),
        Cause::Cancelled => assert_eq!(fiber.2[1].get(), 1, "cancelled without what the canceller wrote"),
        Cause::TimedOut => {}
    }
    waker.join().unwrap();
    canceller.join().unwrap();
    assert_eq!(fiber.1.0.load(Relaxed), 0, "made ready twice");
    let token_left = fiber.0.begin(Ends::BY_WAKER) == Begin::AlreadyUnparked;
    assert_eq!(token_left, cause != Cause::Woken, "the wake was lost or counted twice");
}

#[test]
fn a_wakers_wake_is_used_once_by_this_wait_for_a_future_or_the_next() {
    check(3, waker_deadline_cancel);
}

#[test]
fn without_orderings_the_model_of_wakers_fails() {
    check_notices("relaxed", 3, waker_deadline_cancel);
}

/// A waker and an `unpark` each find their own kind of wait, or leave their own token.
#[test]
fn a_waker_leaves_parks_alone_and_an_unpark_waits_for_futures() {
    check(3, || {
        type Wakes = [(fn(&State) -> Unpark, Ends); 2];
        let wakes: Wakes = [(State::wake_task, Ends::BY_WAKER), (State::unpark, Ends::BY_UNPARK)];
        for (ends, (wake, own)) in [(Ends::BY_UNPARK, wakes[0]), (Ends::BY_WAKER, wakes[1]), (Ends::BY_CLAIM, wakes[0])] {
            let fiber = Arc::new(State::new());
            assert_eq!(fiber.begin(ends), Begin::Wait);
            let waker = {
                let fiber = fiber.clone();
                loom::thread::spawn(move || assert_eq!(wake(&fiber), Unpark::TokenLeft, "another kind of wait was ended"))
            };
            assert!(fiber.claim(Cause::Woken));
            assert_eq!(fiber.end_wait(), Cause::Woken);
            waker.join().unwrap();
            assert_eq!(fiber.begin(own), Begin::AlreadyUnparked);
            assert_eq!(fiber.begin(own), Begin::Wait);
        }
    });
}

fn join_against_end() {
    let fiber = Arc::new((Join::new(), Cargo::new(), Cargo::new()));
    let finisher = {
        let fiber = fiber.clone();
        loom::thread::spawn(move || {
            fiber.1.put(42);
            match fiber.0.finish() {
                Finish::WakeWatcher => {
                    assert_eq!(fiber.2.get(), 7, "the watcher was not published");
                    true
                }
                Finish::Kept => false,
                Finish::DropOutcome => panic!("nobody detached"),
            }
        })
    };
    fiber.2.put(7);
    let watched = fiber.0.watch();
    if !watched {
        assert_eq!(fiber.1.get(), 42);
    }
    let woken = finisher.join().unwrap();
    assert_eq!(watched, woken);
    assert!(fiber.0.is_done());
    assert_eq!(fiber.1.get(), 42);
}

#[test]
fn a_joiner_gets_the_outcome_or_is_woken_exactly_once() {
    check(3, join_against_end);
}

#[test]
fn a_watcher_can_be_replaced_while_the_fiber_ends() {
    check(3, || {
        let fiber = Arc::new((Join::new(), Cargo::new(), Cargo::new()));
        let finisher = {
            let fiber = fiber.clone();
            loom::thread::spawn(move || {
                fiber.1.put(42);
                (fiber.0.finish() == Finish::WakeWatcher).then(|| fiber.2.get())
            })
        };
        fiber.2.put(1);
        let mut expected = None;
        if fiber.0.watch() {
            expected = Some(1);
            if fiber.0.unwatch() {
                fiber.2.put(2);
                expected = fiber.0.watch().then_some(2);
            }
        }
        if expected.is_none() {
            assert_eq!(fiber.1.get(), 42);
        }
        assert_eq!(finisher.join().unwrap(), expected);
    });
}

#[test]
fn the_outcome_of_a_detached_fiber_is_dropped_by_exactly_one_side() {
    check(3, || {
        let fiber = Arc::new((Join::new(), Cargo::new()));
        let finisher = {
            let fiber = fiber.clone();
            loom::thread::spawn(move || {
                fiber.1.put(42);
                match fiber.0.finish() {
                    Finish::DropOutcome => {
                        fiber.1.put(0);
                        1
                    }
                    Finish::Kept => 0,
                    Finish::WakeWatcher => panic!("nobody watched"),
                }
            })
        };
        let dropped = match fiber.0.detach() {
            Detach::Left => 0,
            Detach::DropOutcome => {
                fiber.1.put(0);
                1
            }
        };
        assert_eq!(dropped + finisher.join().unwrap(), 1);
    });
}

fn scope_against_children() {
    // The tally is plain memory that the owner frees when it leaves; children reach it by address only.
    let cargo: Arc<[Cargo; 2]> = Arc::new([Cargo::new(), Cargo::new()]);
    let alive = Arc::new(Cargo::new());
    let tally = Arc::new(Tally::new(std::ptr::null()));
    let ready = Arc::new(Ready(AtomicUsize::new(0)));
    let owner = Arc::new(State::new());
    tally.enter();
    tally.enter();
    let children: Vec<_> = (0..2)
        .map(|i| {
            let (tally, ready, cargo, owner, alive) = (tally.clone(), ready.clone(), cargo.clone(), owner.clone(), alive.clone());
            loom::thread::spawn(move || {
                cargo[i].put(1);
                // A read that the owner's write below must come after.
                alive.get();
                if tally.leave() {
                    assert!(owner.claim(Cause::Woken), "two children woke the owner");
                    ready.0.fetch_add(1, Relaxed);
                }
            })
        })
        .collect();
    owner.begin_wait();
    if tally.begin_wait() {
        ready.wait_for_one();
        owner.end_wait();
    } else {
        assert!(owner.claim(Cause::Woken), "woken although it did not wait");
        owner.end_wait();
    }
    alive.put(1);
    assert!(cargo.iter().all(|c| c.get() == 1), "the scope ended before its children");
    children.into_iter().for_each(|c| c.join().unwrap());
    assert_eq!(ready.0.load(Relaxed), 0);
}

#[test]
fn the_last_child_of_a_scope_wakes_its_owner_once_and_nobody_touches_the_tally_after() {
    check(3, scope_against_children);
}

#[test]
fn state_join_and_tally_need_their_orderings() {
    check_notices("relaxed", 3, two_claims);
    check_notices("relaxed", 3, join_against_end);
    check_notices("relaxed", 3, scope_against_children);
}

/// A block goes from one fiber to the next while one who knows the first pins it: he gets the first, whole, or learns that it is gone; and the block is given
/// back once per fiber.
fn pin_against_reuse() {
    let block = Arc::new((References::new(), Cargo::new(), AtomicUsize::new(0)));
    block.1.put(1);
    block.0.occupy(1);
    let known = block.0.version();
    let stranger = {
        let block = block.clone();
        loom::thread::spawn(move || {
            if !block.0.pin() {
                return false;
            }
            let same = block.0.version() == known;
            if same {
                assert_eq!(block.1.get(), 1, "another fiber's content under the first one's version");
            }
            let last = block.0.release();
            if last {
                block.2.fetch_add(1, Relaxed);
            }
            last && same
        })
    };
    // The first fiber's last owner lets go; if nobody else holds it, the block becomes the second's.
    let reused = block.0.release();
    if reused {
        block.2.fetch_add(1, Relaxed);
        block.0.vacate();
        block.1.put(2);
        block.0.occupy(1);
    }
    let given_back_by_stranger = stranger.join().unwrap();
    assert_ne!(reused, given_back_by_stranger, "a block is given back by exactly one");
    if reused {
        assert!(block.0.release(), "the second fiber's only owner");
    }
}

#[test]
fn a_pinned_block_is_the_fiber_it_was_known_as_or_known_to_be_another() {
    check(3, pin_against_reuse);
}

#[test]
fn without_orderings_a_pin_may_take_one_fiber_for_another() {
    check_notices("relaxed", 3, pin_against_reuse);
}
