//! Objects that count and that happen: Event, Latch, WaitGroup, Semaphore, Barrier, Once, OnceLock, LazyLock; in fibers, on threads, and both mixed.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{Mortal, On, alone, panics, rounds, until};
use sinew::sync::{Barrier, Event, Latch, LazyLock, Once, OnceLock, Semaphore, WaitGroup};
use sinew::{current, no_suspend, spawn, yield_now};

const HOUR: Duration = Duration::from_secs(3600);
const MILLI: Duration = Duration::from_millis(1);

// All of them

#[test]
fn they_may_be_shared_and_sent_as_std_s_may() {
    fn both<T: Send + Sync + std::panic::UnwindSafe>() {}
    both::<Event>();
    both::<Latch>();
    both::<WaitGroup>();
    both::<Semaphore>();
    both::<sinew::sync::SemaphorePermit<'static>>();
    both::<sinew::sync::ArcSemaphorePermit>();
    both::<Barrier>();
    both::<Once>();
    both::<OnceLock<String>>();
    both::<LazyLock<String>>();
    // A cell of what may be sent but not shared may be sent; the other way round, neither.
    fn send<T: Send>() {}
    send::<OnceLock<std::cell::Cell<u8>>>();
}

#[test]
fn they_can_be_statics() {
    static EVENT: Event = Event::new();
    static LATCH: Latch = Latch::new(1);
    static SEMAPHORE: Semaphore = Semaphore::new(1);
    static BARRIER: Barrier = Barrier::new(2);
    static ONCE: Once = Once::new();
    static CELL: OnceLock<usize> = OnceLock::new();
    static LAZY: LazyLock<usize> = LazyLock::new(|| 4);
    let fiber = spawn(|| {
        EVENT.wait();
        LATCH.wait();
        let _permit = SEMAPHORE.acquire();
        BARRIER.wait();
        ONCE.wait();
        *CELL.wait() + *LAZY
    });
    EVENT.set();
    LATCH.count_down();
    BARRIER.wait();
    ONCE.call_once(|| ());
    CELL.set(3).unwrap();
    assert_eq!(fiber.join().unwrap(), 7);
}

/// A cancel, and a deadline around the caller, leave these waits alone.
#[test]
fn none_of_them_is_a_cancel_point() {
    let event = Arc::new(Event::new());
    let latch = Arc::new(Latch::new(1));
    let semaphore = Arc::new(Semaphore::new(0));
    let barrier = Arc::new(Barrier::new(2));
    let cell = Arc::new(OnceLock::new());
    let step = Arc::new(AtomicUsize::new(0));
    let fiber = {
        let (event, latch, semaphore, barrier, cell, step) =
            (event.clone(), latch.clone(), semaphore.clone(), barrier.clone(), cell.clone(), step.clone());
        spawn(move || {
            current().cancel();
            let in_time = sinew::timeout(Duration::ZERO, || {
                event.wait();
                step.fetch_add(1, SeqCst);
                latch.wait();
                step.fetch_add(1, SeqCst);
                semaphore.acquire().forget();
                step.fetch_add(1, SeqCst);
                barrier.wait();
                step.fetch_add(1, SeqCst);
                *cell.wait()
            });
            assert_eq!(in_time, Ok(7), "no wait was cut short");
        })
    };
    event.set();
    until(|| step.load(SeqCst) == 1);
    latch.count_down();
    until(|| step.load(SeqCst) == 2);
    semaphore.add_permits(1);
    until(|| step.load(SeqCst) == 3);
    barrier.wait();
    until(|| step.load(SeqCst) == 4);
    cell.set(7).unwrap();
    fiber.join().unwrap();
}

#[test]
fn where_it_must_not_suspend_a_wait_panics_and_what_can_go_on_does() {
    for on in On::BOTH {
        let part = on.start(|| {
            let (event, latch, semaphore) = (Event::new(), Latch::new(1), Semaphore::new(0));
            let (barrier, once, cell) = (Barrier::new(2), Once::new(), OnceLock::<u8>::new());
            no_suspend(|| {
                assert!(panics(|| event.wait()));
                assert!(panics(|| assert!(event.wait_timeout(HOUR))));
                assert!(panics(|| latch.wait()));
                assert!(panics(|| drop(semaphore.acquire())));
                assert!(panics(|| assert!(barrier.wait().is_leader())));
                assert!(panics(|| once.wait()));
                assert!(panics(|| assert_eq!(cell.wait(), &0)));
                event.set();
                event.wait();
                latch.count_down();
                latch.wait();
                semaphore.add_permits(1);
                drop(semaphore.acquire());
                once.call_once(|| ());
                once.wait();
                assert_eq!(cell.get_or_init(|| 1), &1);
            });
            // The refused waits left nothing behind.
            assert_eq!(semaphore.available(), 1);
            assert_eq!(barrier.wait_timeout(MILLI).map(|r| r.is_leader()), None);
        });
        part();
    }
}

/// The waiter ends the object as soon as its wait has returned, while the waker may still be in its call: that touches it no more.
fn freed_at_once<O: Send + Sync + 'static>(make: impl Fn() -> O, wake: fn(&O), wait: fn(&O)) {
    for round in 0..rounds(40_000) {
        let object = Mortal::new(make());
        // One in eight on threads, which are slow to start.
        let on = |part: usize| if round % 8 == part { On::Thread } else { On::Fiber };
        let free = on(0).start(move || {
            // SAFETY: it is alive until it is ended here.
            unsafe {
                wait(object.get());
                object.end();
            }
        });
        let set = on(if round % 16 == 0 { 0 } else { 1 }).start(move || {
            // SAFETY: the waiter does not end it before this wakes it.
            wake(unsafe { object.get() });
        });
        free();
        set();
        // SAFETY: both have returned.
        unsafe { object.check() };
    }
}

#[test]
fn an_event_may_be_freed_by_the_woken_one() {
    freed_at_once(Event::new, Event::set, Event::wait);
}

#[test]
fn a_latch_may_be_freed_by_the_woken_one() {
    freed_at_once(|| Latch::new(1), Latch::count_down, Latch::wait);
}

/// A permit that keeps its semaphore goes to another fiber, which gives it back by its end: by a panic, too. The last one outlives all other handles.
#[test]
fn a_permit_goes_to_another_fiber_with_its_semaphore() {
    let slots = Arc::new(Semaphore::new(1));
    for turn in 0..100 {
        let slot = slots.acquire_arc();
        assert!(slots.try_acquire_arc().is_none() && slots.acquire_arc_timeout(Duration::ZERO).is_none());
        let ends = sinew::spawn(move || {
            let _slot = slot;
            if turn % 2 == 1 {
                std::panic::resume_unwind(Box::new(turn));
            }
        });
        assert_eq!(ends.join().is_err(), turn % 2 == 1);
        assert_eq!(slots.available(), 1);
    }
    let weak = Arc::downgrade(&slots);
    let last = slots.try_acquire_arc().expect("it is free");
    assert!(Arc::ptr_eq(last.semaphore(), &slots));
    drop(slots);
    assert_eq!(weak.upgrade().expect("the permit keeps it").available(), 0);
    drop(last);
    assert!(weak.upgrade().is_none());
    let slots = Arc::new(Semaphore::new(1));
    slots.acquire_arc_timeout(Duration::from_secs(60)).expect("it is free").forget();
    assert_eq!(slots.available(), 0);
}

#[test]
fn a_semaphore_may_be_freed_by_the_one_that_got_the_permit() {
    freed_at_once(|| Semaphore::new(0), |s| s.add_permits(1), |s| s.acquire().forget());
}

#[test]
fn a_once_may_be_freed_by_one_that_waited_for_it() {
    freed_at_once(OnceLock::new, |cell| cell.set(1).unwrap(), |cell| assert_eq!(cell.wait(), &1));
}

/// The last to return of those who do not lead ends it, while the leader may still be in its call.
#[test]
fn a_barrier_may_be_freed_by_the_woken_ones() {
    for round in 0..rounds(40_000) {
        let size = 2 + round % 2;
        let object = Mortal::new((Barrier::new(size), AtomicUsize::new(1)));
        let parts: Vec<_> = (0..size)
            .map(|part| {
                let on = if round % 8 == part { On::Thread } else { On::Fiber };
                on.start(move || {
                    // SAFETY: it is alive until the last of those who do not lead ends it here.
                    unsafe {
                        let leads = object.get().0.wait().is_leader();
                        if !leads && object.get().1.fetch_add(1, SeqCst) + 1 == size {
                            object.end();
                        }
                        leads
                    }
                })
            })
            .collect();
        assert_eq!(parts.into_iter().filter_map(|part| part().then_some(())).count(), 1);
        // SAFETY: all have returned.
        unsafe { object.check() };
    }
}

/// A wake that comes at about the time of the deadline: each wait has one outcome, and a woken one was woken by somebody.
fn wake_against_timeout<O: Send + Sync + 'static>(
    full: usize,
    make: impl Fn() -> O,
    wake: impl Fn(&O) -> usize + Send + Sync + Copy + 'static,
    wait: impl Fn(&O, Duration) -> bool + Send + Sync + Copy + 'static,
) {
    const WAITERS: usize = 8;
    let object = Arc::new(make());
    let left = Arc::new(AtomicUsize::new(WAITERS));
    let waiters: Vec<_> = (0..WAITERS)
        .map(|index| {
            let (object, left) = (object.clone(), left.clone());
            // One of them a thread.
            let on = if index == 0 { On::Thread } else { On::Fiber };
            on.start(move || {
                let mut woken = 0;
                for round in 0..rounds(full) / WAITERS {
                    woken += usize::from(wait(&object, Duration::from_micros((round * 7 + index) as u64 % 50)));
                }
                left.fetch_sub(1, SeqCst);
                woken
            })
        })
        .collect();
    let mut wakes = 0;
    while left.load(SeqCst) > 0 {
        wakes += wake(&object);
        yield_now();
    }
    let woken: usize = waiters.into_iter().map(|waiter| waiter()).sum();
    // What was given and not taken is still there.
    while wait(&object, Duration::ZERO) {
        wakes -= 1;
    }
    assert_eq!(woken, wakes, "wakes were lost or doubled");
    assert!(woken > 0, "nobody was ever woken");
}

#[test]
fn a_permit_against_a_timeout_is_had_or_left_a_million_times() {
    let give = |semaphore: &Semaphore| {
        // No more than one at a time, or nobody would wait.
        let give = semaphore.available() == 0;
        semaphore.add_permits(usize::from(give));
        usize::from(give)
    };
    let take = |semaphore: &Semaphore, timeout: Duration| semaphore.acquire_timeout(timeout).map(|permit| permit.forget()).is_some();
    wake_against_timeout(1_000_000, || Semaphore::new(0), give, take);
}

// Event

#[test]
fn an_event_wakes_all_that_wait_and_stays_set() {
    for on in On::BOTH {
        let event = Arc::new(Event::new());
        assert!(!event.is_set());
        assert!(!event.wait_timeout(MILLI));
        let waiters: Vec<_> = (0..20)
            .map(|index| {
                let event = event.clone();
                On::by_turns(index).start(move || event.wait())
            })
            .collect();
        let setter = event.clone();
        on.start(move || setter.set())();
        waiters.into_iter().for_each(|waiter| waiter());
        assert!(event.is_set());
        event.wait();
        assert!(event.wait_timeout(Duration::ZERO));
        event.set();
        event.reset();
        assert!(!event.is_set());
    }
}

/// flare's "torture": fibers that wait with deadlines around the moment at which it is set see no other outcome than the two.
#[test]
fn an_event_that_is_set_at_the_deadline_is_seen_or_not_but_never_lost() {
    for round in 0..rounds(20_000) {
        let event = Arc::new(Event::new());
        let waiter = {
            let event = event.clone();
            spawn(move || {
                let woken = event.wait_timeout(Duration::from_micros(round as u64 % 40));
                event.wait();
                woken
            })
        };
        event.set();
        waiter.join().unwrap();
        assert!(event.is_set());
    }
}

// Latch

#[test]
fn a_latch_opens_at_the_last_count_and_not_before() {
    let latch = Arc::new(Latch::new(10));
    let passed = Arc::new(AtomicUsize::new(0));
    let waiters: Vec<_> = (0..6)
        .map(|index| {
            let (latch, passed) = (latch.clone(), passed.clone());
            On::by_turns(index).start(move || {
                latch.wait();
                passed.fetch_add(1, SeqCst);
            })
        })
        .collect();
    for index in 0..9 {
        let latch = latch.clone();
        On::by_turns(index).start(move || latch.count_down())();
    }
    assert_eq!((latch.count(), latch.is_open(), passed.load(SeqCst)), (1, false, 0));
    assert!(!latch.wait_timeout(MILLI));
    latch.arrive_and_wait();
    waiters.into_iter().for_each(|waiter| waiter());
    assert!(latch.is_open() && latch.wait_timeout(Duration::ZERO));
    // An open one stays open.
    latch.count_down();
    assert_eq!(latch.count(), 0);
}

#[test]
fn a_latch_counts_by_more_than_one_and_not_below_zero() {
    let latch = Latch::new(5);
    latch.count_down_by(2);
    assert_eq!(latch.count(), 3);
    latch.count_down_by(100);
    latch.wait();
    Latch::new(0).wait();
}

#[test]
fn a_latch_is_counted_down_by_many_at_once() {
    for _ in 0..rounds(2_000) {
        let latch = Arc::new(Latch::new(8));
        let fibers: Vec<_> = (0..8)
            .map(|_| {
                let latch = latch.clone();
                spawn(move || latch.arrive_and_wait())
            })
            .collect();
        latch.wait();
        fibers.into_iter().for_each(|f| f.join().unwrap());
    }
}

// WaitGroup

#[test]
fn a_wait_group_waits_for_all_its_clones() {
    let group = WaitGroup::new();
    let done = Arc::new(AtomicUsize::new(0));
    for index in 0..10 {
        let (part, done) = (group.clone(), done.clone());
        let _detached = On::by_turns(index).start(move || {
            yield_now();
            done.fetch_add(1, SeqCst);
            drop(part);
        });
    }
    group.wait();
    assert_eq!(done.load(SeqCst), 10);
}

#[test]
fn all_that_wait_for_a_group_go_on_together() {
    let group = WaitGroup::new();
    let waiters: Vec<_> = (0..6)
        .map(|index| {
            let group = group.clone();
            On::by_turns(index).start(move || group.wait())
        })
        .collect();
    group.wait();
    waiters.into_iter().for_each(|waiter| waiter());
}

#[test]
fn a_wait_group_whose_time_is_up_is_given_back_and_counts() {
    let group = WaitGroup::new();
    let other = group.clone();
    let group = group.wait_timeout(MILLI).unwrap_err();
    let waiter = spawn(move || other.wait_timeout(HOUR).is_ok());
    // The other waits for this one again.
    drop(group);
    assert!(waiter.join().unwrap());
    WaitGroup::new().wait();
    WaitGroup::new().try_wait().unwrap();
    assert!(WaitGroup::new().wait_timeout(Duration::ZERO).is_ok());
}

/// The last part is dropped at about the moment at which one of those who wait gives up: whoever is given its clone back has it before the other goes on, or both go on. On one worker, which comes to look
/// at its timers after so many yields, and runs the one that gave up some turns later.
#[test]
fn one_that_gives_up_at_a_wait_group_counts_before_the_others_go_on() {
    let impatience = Duration::from_micros(50);
    let runtime = sinew::Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        for yields in (0..64).cycle().take(rounds(16_000)) {
            let group = WaitGroup::new();
            let (impatient, patient) = (group.clone(), group.clone());
            let is_over = Arc::new(AtomicBool::new(false));
            let gives_up = spawn({
                let is_over = is_over.clone();
                move || {
                    let Err(mine) = impatient.wait_timeout(impatience) else { return };
                    (0..4).for_each(|_| yield_now());
                    assert!(!is_over.load(SeqCst), "all but one were gone, but there is this one");
                    drop(mine);
                }
            });
            let waits = spawn(move || {
                patient.wait();
                is_over.store(true, SeqCst);
            });
            yield_now();
            let late = Instant::now() + impatience;
            while Instant::now() < late {
                std::hint::spin_loop();
            }
            (0..yields).for_each(|_| yield_now());
            drop(group);
            gives_up.join().unwrap();
            waits.join().unwrap();
        }
    });
}

// Semaphore

#[test]
fn a_semaphore_lets_so_many_in_and_no_more() {
    const PERMITS: usize = 100;
    let fibers = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
    let semaphore = Arc::new(Semaphore::new(PERMITS));
    let inside = Arc::new(AtomicUsize::new(0));
    let parts: Vec<_> = (0..fibers)
        .map(|index| {
            let (semaphore, inside) = (semaphore.clone(), inside.clone());
            let on = if index % 500 == 0 { On::Thread } else { On::Fiber };
            on.start(move || {
                let permit = semaphore.acquire();
                assert!(inside.fetch_add(1, SeqCst) < PERMITS);
                yield_now();
                inside.fetch_sub(1, SeqCst);
                assert_eq!(permit.count(), 1);
            })
        })
        .collect();
    parts.into_iter().for_each(|part| part());
    assert_eq!(semaphore.available(), PERMITS);
}

/// One worker, so that a fiber that has said that it comes is queued when another runs.
#[test]
fn permits_are_had_in_order_of_arrival_also_by_those_who_want_many() {
    alone(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let (arrived, order) = (Arc::new(AtomicUsize::new(0)), Arc::new(sinew::sync::Mutex::new(Vec::new())));
        let wishes = [1, 3, 1, 2, 1];
        let fibers: Vec<_> = wishes
            .into_iter()
            .enumerate()
            .map(|(index, wish)| {
                let (semaphore, arrived, order) = (semaphore.clone(), arrived.clone(), order.clone());
                let fiber = spawn({
                    let arrived = arrived.clone();
                    move || {
                        arrived.fetch_add(1, SeqCst);
                        semaphore.acquire_many(wish).forget();
                        order.lock().push(index);
                    }
                });
                until(|| arrived.load(SeqCst) == index + 1);
                fiber
            })
            .collect();
        semaphore.add_permits(1);
        until(|| order.lock().len() == 1);
        // Two are there, but the first in the queue wants three: nobody overtakes it, also not one that comes.
        semaphore.add_permits(2);
        (0..10).for_each(|_| yield_now());
        assert_eq!((order.lock().len(), semaphore.available()), (1, 2));
        assert!(semaphore.try_acquire().is_none());
        assert!(semaphore.acquire_timeout(MILLI).is_none());
        semaphore.add_permits(5);
        fibers.into_iter().for_each(|f| f.join().unwrap());
        assert_eq!(*order.lock(), [0, 1, 2, 3, 4]);
        assert_eq!(semaphore.available(), 0);
    });
}

#[test]
fn one_that_gives_up_lets_smaller_wishes_behind_it_pass() {
    alone(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let arrived = Arc::new(AtomicUsize::new(0));
        let (greedy, modest) = (
            {
                let (semaphore, arrived) = (semaphore.clone(), arrived.clone());
                spawn(move || {
                    arrived.fetch_add(1, SeqCst);
                    semaphore.acquire_many_timeout(5, 20 * MILLI).is_none()
                })
            },
            {
                let (semaphore, arrived) = (semaphore.clone(), arrived.clone());
                spawn(move || {
                    until(|| arrived.load(SeqCst) == 1);
                    semaphore.acquire().forget();
                })
            },
        );
        assert!(greedy.join().unwrap());
        modest.join().unwrap();
        assert_eq!(semaphore.available(), 0);
    });
}

#[test]
fn permits_can_be_forgotten_and_added_up_to_a_limit() {
    let semaphore = Semaphore::new(3);
    let many = semaphore.try_acquire_many(2).unwrap();
    assert!(semaphore.try_acquire_many(2).is_none());
    assert_eq!(semaphore.available(), 1);
    many.forget();
    drop(semaphore.try_acquire().unwrap());
    assert_eq!(semaphore.available(), 1);
    assert!(panics(|| semaphore.add_permits(Semaphore::MAX_PERMITS)));
    assert!(panics(|| semaphore.add_permits(usize::MAX)));
    semaphore.add_permits(Semaphore::MAX_PERMITS - 1);
    assert_eq!(semaphore.available(), Semaphore::MAX_PERMITS);
    drop(semaphore.acquire_many(0));
}

#[test]
fn a_permit_is_given_back_by_a_panic() {
    let semaphore = Arc::new(Semaphore::new(1));
    let fiber = {
        let semaphore = semaphore.clone();
        spawn(move || {
            let _permit = semaphore.acquire();
            panic!("expected by the test");
        })
    };
    assert!(fiber.join().is_err());
    assert_eq!(semaphore.available(), 1);
}

/// Where nobody may suspend, permits that are there are had, whoever looks at the semaphore at that moment.
#[test]
fn permits_that_are_there_are_had_where_nobody_may_suspend() {
    /// Many for what they are: it is to meet the other inside.
    const ROUNDS: usize = 300_000;
    let slots = Arc::new(Semaphore::new(2));
    let (begun, done) = (Arc::new(Event::new()), Arc::new(AtomicBool::new(false)));
    let asks_for_too_many = {
        let (slots, begun, done) = (slots.clone(), begun.clone(), done.clone());
        std::thread::spawn(move || {
            begun.set();
            while !done.load(SeqCst) {
                assert!(slots.try_acquire_many(3).is_none());
            }
        })
    };
    begun.wait();
    let outcome = std::panic::catch_unwind(|| {
        for round in 0..ROUNDS {
            no_suspend(|| match round % 3 {
                0 => drop(slots.acquire()),
                1 => drop(slots.acquire_many_timeout(2, HOUR).expect("they are there")),
                _ => drop(slots.acquire_arc()),
            });
        }
    });
    done.store(true, SeqCst);
    asks_for_too_many.join().unwrap();
    assert!(outcome.is_ok(), "it had to wait");
}

// Barrier

#[test]
fn a_barrier_has_one_leader_each_time_and_nobody_is_ahead_by_more_than_one() {
    const SIZE: usize = 6;
    let barrier = Arc::new(Barrier::new(SIZE));
    let phase = Arc::new(AtomicUsize::new(0));
    let times = rounds(10_000);
    let parts: Vec<_> = (0..SIZE)
        .map(|index| {
            let (barrier, phase) = (barrier.clone(), phase.clone());
            On::by_turns(index).start(move || {
                let mut led = 0;
                for time in 0..times {
                    assert_eq!(phase.load(SeqCst), time);
                    if barrier.wait().is_leader() {
                        led += 1;
                        phase.fetch_add(1, SeqCst);
                    }
                    barrier.wait();
                }
                led
            })
        })
        .collect();
    assert_eq!(parts.into_iter().map(|part| part()).sum::<usize>(), times);
    assert!(Barrier::new(0).wait().is_leader() && Barrier::new(1).wait().is_leader());
}

#[test]
fn one_that_gives_up_at_a_barrier_does_not_count() {
    let barrier = Arc::new(Barrier::new(3));
    assert!(barrier.wait_timeout(MILLI).is_none());
    let others: Vec<_> = (0..2)
        .map(|index| {
            let barrier = barrier.clone();
            On::by_turns(index).start(move || barrier.wait().is_leader())
        })
        .collect();
    let leads = barrier.wait_timeout(HOUR).unwrap().is_leader();
    assert_eq!(others.into_iter().map(|other| usize::from(other())).sum::<usize>() + usize::from(leads), 1);
}

/// Two come again and again, one of them gives up at once: whenever the patient one gets through, so does the other.
#[test]
fn a_barrier_against_a_timeout_lets_both_through_or_none() {
    let barrier = Arc::new(Barrier::new(2));
    let over = Arc::new(AtomicBool::new(false));
    let patient = {
        let (barrier, over) = (barrier.clone(), over.clone());
        spawn(move || {
            let mut through = 0;
            while !over.load(SeqCst) {
                through += usize::from(barrier.wait_timeout(Duration::from_micros(200)).is_some());
            }
            through
        })
    };
    let mut through = 0;
    for round in 0..rounds(20_000) {
        through += usize::from(barrier.wait_timeout(Duration::from_micros(round as u64 % 30)).is_some());
    }
    over.store(true, SeqCst);
    assert_eq!(patient.join().unwrap(), through);
}

// Once, OnceLock, LazyLock

#[test]
fn an_initialiser_that_suspends_is_called_once_by_many() {
    for _ in 0..rounds(1_000) {
        let once = Arc::new(Once::new());
        let calls = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..20)
            .map(|index| {
                let (once, calls) = (once.clone(), calls.clone());
                let on = if index == 0 { On::Thread } else { On::Fiber };
                on.start(move || {
                    once.call_once(|| {
                        yield_now();
                        calls.fetch_add(1, SeqCst);
                    });
                    assert_eq!(calls.load(SeqCst), 1, "it has been done when call_once returns");
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller());
        assert!(once.is_completed());
    }
}

#[test]
fn after_a_panicking_initialiser_the_next_one_tries() {
    let cell = Arc::new(OnceLock::new());
    let began = Arc::new(Event::new());
    let first = {
        let (cell, began) = (cell.clone(), began.clone());
        spawn(move || {
            let _ = cell.get_or_init(|| {
                began.set();
                yield_now();
                panic!("expected by the test")
            });
        })
    };
    began.wait();
    let others: Vec<_> = (0..4)
        .map(|index| {
            let cell = cell.clone();
            On::by_turns(index).start(move || *cell.get_or_init(|| 5))
        })
        .collect();
    assert!(others.into_iter().all(|other| other() == 5));
    assert!(first.join().is_err());
    let once = Once::new();
    assert!(panics(|| once.call_once(|| panic!("expected by the test"))));
    assert!(!once.is_completed());
    assert!(!once.wait_timeout(MILLI));
    once.call_once(|| ());
    assert!(once.wait_timeout(Duration::ZERO));
}

#[test]
fn a_once_lock_has_std_s_methods() {
    let mut cell = OnceLock::new();
    assert_eq!(cell.get(), None);
    assert_eq!(cell.wait_timeout(MILLI), None);
    assert_eq!(cell.get_or_try_init(|| Err("no")), Err("no"));
    assert_eq!(cell.set(1), Ok(()));
    assert_eq!(cell.set(2), Err(2));
    assert_eq!(cell.get_or_try_init(|| Err::<i32, _>("no")), Ok(&1));
    *cell.get_mut().unwrap() = 3;
    assert_eq!(cell.clone(), OnceLock::from(3));
    assert_eq!(format!("{cell:?}"), "OnceLock(Some(3))");
    assert_eq!(cell.take(), Some(3));
    assert_eq!(cell.take(), None);
    assert_eq!(cell.get_or_init(|| 4), &4);
    assert_eq!(cell.into_inner(), Some(4));
    assert_eq!(OnceLock::<u8>::default().into_inner(), None);
}

#[test]
fn a_value_is_dropped_once_and_none_if_there_was_none() {
    let value = Arc::new(());
    let cell = OnceLock::new();
    cell.set(value.clone()).unwrap();
    cell.set(value.clone()).unwrap_err();
    assert_eq!(Arc::strong_count(&value), 2);
    drop(cell);
    assert_eq!(Arc::strong_count(&value), 1);
    let cell = OnceLock::from(value.clone());
    assert_eq!(Arc::strong_count(&cell.into_inner().unwrap()), 2);
    assert_eq!(Arc::strong_count(&value), 1);
    let lazy = LazyLock::new({
        let value = value.clone();
        move || value
    });
    assert!(LazyLock::get(&lazy).is_none());
    drop(lazy);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn a_lazy_value_is_made_by_its_first_user_and_seen_by_all() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    static LAZY: LazyLock<Vec<usize>> = LazyLock::new(|| {
        yield_now();
        MADE.fetch_add(1, SeqCst);
        vec![1, 2, 3]
    });
    assert!(LazyLock::get(&LAZY).is_none());
    let users: Vec<_> = (0..20).map(|index| On::by_turns(index).start(|| LAZY.iter().sum::<usize>())).collect();
    assert!(users.into_iter().all(|user| user() == 6));
    assert_eq!((MADE.load(SeqCst), LazyLock::force(&LAZY).len()), (1, 3));
    let broken = LazyLock::new(|| -> u8 { panic!("expected by the test") });
    assert!(panics(|| assert_eq!(*broken, 0)) && panics(|| assert_eq!(*broken, 0)));
}
