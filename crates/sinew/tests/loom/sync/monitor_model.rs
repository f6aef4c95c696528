use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::thread;

use super::barrier::Barrier;
use super::event::Event;
use super::latch::Latch;
use super::once::Once;
use super::semaphore::Semaphore;
use super::wait_group::WaitGroup;
use crate::base::atomic::{AtomicUsize, Relaxed};
use crate::{check, check_notices};

/// A time-out that may come at any moment.
const SOON: Duration = Duration::ZERO;

/// Plain memory; loom reports it if nothing orders its uses.
struct Cargo(UnsafeCell<usize>);

// SAFETY: loom checks every access.
unsafe impl Sync for Cargo {}
// SAFETY: as above.
unsafe impl Send for Cargo {}

impl Cargo {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn add(&self) {
        // SAFETY: loom checks that nobody else is here.
        self.0.with_mut(|place| unsafe { *place += 1 });
    }

    fn get(&self) -> usize {
        // SAFETY: loom checks that nobody writes.
        self.0.with(|place| unsafe { *place })
    }
}

// Event

/// One sets, another waits, patiently or not: if it was woken it sees what was written before; nobody sleeps for ever.
fn event(patient: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Arc::new((Event::new(), Cargo::new()));
        let setter = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.1.add();
                shared.0.set();
            })
        };
        let woken = if patient {
            shared.0.wait();
            true
        } else {
            shared.0.wait_timeout(SOON)
        };
        if woken {
            assert_eq!(shared.1.get(), 1);
        }
        setter.join().unwrap();
        assert!(shared.0.wait_timeout(SOON), "it stays set");
    }
}

/// Two wait for one who sets.
fn event_for_two() {
    let event = Arc::new(Event::new());
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let event = event.clone();
            thread::spawn(move || event.wait())
        })
        .collect();
    event.set();
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
}

#[test]
fn an_event_wakes_all_and_carries_what_was_written_before() {
    check(3, event(true));
    check(2, event(false));
    check(1, event_for_two);
}

// Latch

/// Two count down, one waits: it sees what both wrote.
fn latch() {
    let shared = Arc::new((Latch::new(2), [Cargo::new(), Cargo::new()]));
    let counters: Vec<_> = (0..2)
        .map(|index| {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.1[index].add();
                shared.0.count_down();
            })
        })
        .collect();
    shared.0.wait();
    assert_eq!(shared.1[0].get() + shared.1[1].get(), 2);
    counters.into_iter().for_each(|counter| counter.join().unwrap());
}

#[test]
fn a_latch_opens_when_all_have_counted_and_carries_what_each_wrote() {
    check(2, latch);
}

// WaitGroup

/// Two have a part, one waits, patiently or not, and then once more: it sees what both wrote.
fn wait_group(patient: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let (group, cargo) = (WaitGroup::new(), Arc::new([Cargo::new(), Cargo::new()]));
        let parts: Vec<_> = (0..2)
            .map(|index| {
                let (part, cargo) = (group.clone(), cargo.clone());
                thread::spawn(move || {
                    cargo[index].add();
                    drop(part);
                })
            })
            .collect();
        if patient {
            group.wait();
        } else if let Err(group) = group.wait_timeout(SOON).or_else(WaitGroup::try_wait) {
            group.wait();
        }
        assert_eq!(cargo[0].get() + cargo[1].get(), 2);
        parts.into_iter().for_each(|part| part.join().unwrap());
    }
}

/// Two wait for each other and for a third.
fn waiting_group() {
    let (group, cargo) = (WaitGroup::new(), Arc::new(Cargo::new()));
    let (other, part) = (group.clone(), group.clone());
    let waiter = thread::spawn({
        let cargo = cargo.clone();
        move || {
            other.wait();
            cargo.get()
        }
    });
    let worker = thread::spawn({
        let cargo = cargo.clone();
        move || {
            cargo.add();
            drop(part);
        }
    });
    group.wait();
    assert_eq!(cargo.get() + waiter.join().unwrap(), 2);
    worker.join().unwrap();
}

#[test]
fn a_wait_group_ends_when_all_have_dropped_it_and_carries_what_each_wrote() {
    check(2, wait_group(true));
    check(1, wait_group(false));
    check(1, waiting_group);
}

// Semaphore

/// Each takes a permit, patiently or not, and gives it back: never more are inside than there are permits, and none is lost.
fn permits(count: usize, wishes: &'static [(usize, bool)]) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Arc::new((Semaphore::new(count), AtomicUsize::new(0), Cargo::new()));
        let takers: Vec<_> = wishes
            .iter()
            .map(|&(wish, patient)| {
                let shared = shared.clone();
                move || {
                    let permit = if patient { Some(shared.0.acquire_many(wish)) } else { shared.0.acquire_many_timeout(wish, SOON) };
                    if let Some(permit) = permit {
                        assert!(shared.1.fetch_add(wish, Relaxed) + wish <= count, "too many inside");
                        if count == 1 {
                            shared.2.add();
                        }
                        shared.1.fetch_sub(wish, Relaxed);
                        drop(permit);
                    }
                }
            })
            .collect();
        let mut takers = takers.into_iter();
        let first = takers.next().expect("there is one");
        let others: Vec<_> = takers.map(thread::spawn).collect();
        first();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(shared.0.available(), count, "a permit was lost or doubled");
    }
}

#[test]
fn a_semaphore_lets_in_as_many_as_it_has_and_forgets_nobody() {
    check(3, permits(1, &[(1, true), (1, true)]));
    check(2, permits(1, &[(1, true), (1, false)]));
    // These hold at 2 preemptions too, which takes minutes.
    check(1, permits(1, &[(1, true), (1, false), (1, true)]));
    check(1, permits(2, &[(2, true), (1, true), (1, false)]));
    check(1, permits(2, &[(2, false), (1, true), (2, true)]));
}

// Once

/// Two call, the first attempt fails: the other one's, or the next, succeeds, once; both see what it wrote.
fn once(failures: usize) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Arc::new((Once::new(), Cargo::new(), AtomicUsize::new(0)));
        let call = move |shared: &(Once, Cargo, AtomicUsize)| {
            while shared
                .0
                .try_call_once(|| {
                    if shared.2.fetch_add(1, Relaxed) < failures {
                        return Err(());
                    }
                    shared.1.add();
                    Ok(())
                })
                .is_err()
            {}
            assert_eq!(shared.1.get(), 1);
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || call(&shared))
        };
        call(&shared);
        other.join().unwrap();
    }
}

#[test]
fn a_once_is_done_once_and_seen_by_all() {
    check(3, once(0));
    check(3, once(1));
}

// Barrier

/// Two meet twice, a third comes and may give up: the two get through, with one leader each time, and see what the other wrote before.
fn barrier(guests: usize) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Arc::new((Barrier::new(2), [Cargo::new(), Cargo::new()]));
        let meet = |shared: &(Barrier, [Cargo; 2]), index: usize| {
            shared.1[index].add();
            shared.0.wait().is_leader()
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || meet(&shared, 1))
        };
        let guest = (guests > 0).then(|| {
            let shared = shared.clone();
            thread::spawn(move || shared.0.wait_timeout(SOON).map(|result| result.is_leader()))
        });
        if guests == 0 {
            let leads = meet(&shared, 0);
            assert_eq!(shared.1[0].get() + shared.1[1].get(), 2);
            assert_ne!(leads, other.join().unwrap());
        } else {
            // Two of three get through: if that is the guest and another, the last one meets a second guest.
            let through = guest.unwrap().join().unwrap();
            let first = if through.is_some() { None } else { Some(shared.0.wait().is_leader()) };
            let leaders = [through, first].into_iter().flatten().chain([other.join().unwrap()]).filter(|&leads| leads).count();
            assert_eq!(leaders, 1);
        }
    }
}

#[test]
fn a_barrier_has_one_leader_and_one_that_gives_up_does_not_count() {
    check(3, barrier(0));
    check(2, barrier(1));
}

#[test]
fn without_their_orderings_or_wakes_the_models_of_monitors_fail() {
    check_notices("relaxed", 2, event(true));
    check_notices("relaxed", 2, latch);
    check_notices("relaxed", 2, wait_group(true));
    check_notices("no kernel wake", 2, wait_group(true));
    check_notices("relaxed", 3, permits(1, &[(1, true), (1, true)]));
    check_notices("relaxed", 3, once(0));
    check_notices("relaxed", 3, barrier(0));
    check_notices("no kernel wake", 2, event(true));
    check_notices("no kernel wake", 3, permits(1, &[(1, true), (1, true)]));
}
