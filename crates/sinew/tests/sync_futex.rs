//! Futex: bthread's butex scenarios, requeueing, and a million wakes against time-outs.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{Mortal, On, in_child, is_child, rounds, until};
use sinew::sync::{Event, Futex, FutexWait, Requeued};
use sinew::{current, no_suspend, spawn, yield_now};

const HOUR: Duration = Duration::from_secs(3600);
const MILLI: Duration = Duration::from_millis(1);

/// Wakes until so many were woken.
fn wake_in_all(futex: &Futex, count: usize) {
    let mut woken = 0;
    while woken < count {
        woken += futex.wake(count - woken);
        yield_now();
    }
}

#[test]
fn a_futex_can_be_shared_and_be_a_static() {
    fn both<T: Send + Sync + std::panic::UnwindSafe>() {}
    both::<Futex>();
    static FUTEX: Futex = Futex::new(3);
    let waiter = spawn(|| FUTEX.wait(3));
    wake_in_all(&FUTEX, 1);
    assert!(waiter.join().unwrap());
}

#[test]
fn the_word_is_an_atomic() {
    let futex = Futex::new(5);
    assert_eq!((futex.load(), futex.swap(6), futex.fetch_add(4), futex.fetch_sub(2)), (5, 5, 6, 10));
    assert_eq!((futex.fetch_or(7), futex.fetch_and(!8), futex.load()), (8, 15, 7));
    assert_eq!((futex.compare_exchange(7, 1), futex.compare_exchange(7, 2)), (Ok(7), Err(1)));
    futex.store(9);
    assert_eq!((futex.load(), Futex::default().load()), (9, 0));
}

#[test]
fn a_wait_for_another_value_returns_at_once() {
    let futex = Futex::new(1);
    assert!(!futex.wait(0));
    assert_eq!(futex.wait_timeout(0, HOUR), FutexWait::Changed);
    assert_eq!((futex.wake(1), futex.wake_all()), (0, 0));
    no_suspend(|| {
        assert!(!futex.wait(0), "it does not have to wait");
        assert!(catch_unwind(AssertUnwindSafe(|| futex.wait(1))).is_err());
    });
    assert_eq!(futex.wake_all(), 0, "the refused wait left nothing behind");
}

#[test]
fn a_wait_whose_time_is_up_says_so_also_if_it_was_up_before() {
    for on in On::BOTH {
        on.start(|| {
            let futex = Futex::new(0);
            assert_eq!(futex.wait_timeout(0, Duration::ZERO), FutexWait::TimedOut);
            assert_eq!(futex.wait_timeout(0, MILLI), FutexWait::TimedOut);
            assert_eq!(futex.wake_all(), 0, "nobody is left in the queue");
        })();
    }
}

/// Twenty waiters, fibers and threads by turns; half of them give up.
#[test]
fn of_mixed_waiters_half_give_up_and_half_are_woken() {
    let futex = Arc::new(Futex::new(7));
    let waiters: Vec<_> = (0..20)
        .map(|index| {
            let futex = futex.clone();
            On::by_turns(index / 2).start(move || match index % 2 {
                0 => futex.wait_timeout(7, MILLI),
                _ => futex.wait_timeout(7, HOUR),
            })
        })
        .collect();
    let mut outcomes: Vec<_> = waiters.into_iter().map(Some).collect();
    for waiter in outcomes.iter_mut().step_by(2) {
        assert_eq!(waiter.take().unwrap()(), FutexWait::TimedOut);
    }
    wake_in_all(&futex, 10);
    assert!(outcomes.into_iter().flatten().all(|waiter| waiter() == FutexWait::Woken));
}

#[test]
fn wakes_go_to_those_who_waited_longest() {
    let runtime = sinew::Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        let (futex, arrived) = (Arc::new(Futex::new(0)), Arc::new(AtomicUsize::new(0)));
        let order = Arc::new(sinew::sync::Mutex::new(Vec::new()));
        let fibers: Vec<_> = (0..10)
            .map(|index| {
                let (futex, arrived, order) = (futex.clone(), arrived.clone(), order.clone());
                let fiber = spawn({
                    let arrived = arrived.clone();
                    move || {
                        arrived.fetch_add(1, SeqCst);
                        futex.wait(0);
                        order.lock().push(index);
                    }
                });
                until(|| arrived.load(SeqCst) == index + 1);
                fiber
            })
            .collect();
        assert_eq!((futex.wake(3), futex.wake(0), futex.wake_all()), (3, 0, 7));
        fibers.into_iter().for_each(|f| f.join().unwrap());
        assert_eq!(*order.lock(), (0..10).collect::<Vec<_>>());
    });
}

/// bthread's "join can't be woken by stop": a cancel, before or during the wait, leaves it alone.
#[test]
fn a_cancel_does_not_end_a_wait() {
    let futex = Arc::new(Futex::new(0));
    let before = {
        let futex = futex.clone();
        spawn(move || {
            current().cancel();
            assert_eq!(Futex::new(0).wait_timeout(0, MILLI), FutexWait::TimedOut);
            futex.wait(0)
        })
    };
    let during = {
        let futex = futex.clone();
        spawn(move || futex.wait(0))
    };
    during.cancel();
    wake_in_all(&futex, 2);
    assert!(before.join().unwrap() && during.join().unwrap());
}

/// A lock of three states, as the classic futex mutex: nobody is lost, and nobody is inside with another.
#[test]
fn a_mutex_can_be_built_of_it() {
    struct Mutex(Futex);
    impl Mutex {
        fn lock(&self) {
            if self.0.compare_exchange(0, 1).is_ok() {
                return;
            }
            while self.0.swap(2) != 0 {
                self.0.wait(2);
            }
        }
        fn unlock(&self) {
            if self.0.swap(0) == 2 {
                self.0.wake(1);
            }
        }
    }
    let shared = Arc::new((Mutex(Futex::new(0)), AtomicUsize::new(0), AtomicUsize::new(0)));
    let parts: Vec<_> = (0..8)
        .map(|index| {
            let shared = shared.clone();
            On::by_turns(index).start(move || {
                for _ in 0..rounds(50_000) {
                    shared.0.lock();
                    assert_eq!(shared.1.fetch_add(1, SeqCst), 0, "two are inside");
                    shared.2.fetch_add(1, SeqCst);
                    if index == 1 {
                        yield_now();
                    }
                    shared.1.fetch_sub(1, SeqCst);
                    shared.0.unlock();
                }
            })
        })
        .collect();
    parts.into_iter().for_each(|part| part());
    assert_eq!(shared.2.load(SeqCst), 8 * rounds(50_000));
}

// Requeue

#[test]
fn moved_waiters_are_woken_at_the_other_futex_and_behind_those_there() {
    let runtime = sinew::Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        let (from, to) = (Arc::new(Futex::new(0)), Arc::new(Futex::new(9)));
        let (arrived, order) = (Arc::new(AtomicUsize::new(0)), Arc::new(sinew::sync::Mutex::new(Vec::new())));
        let fibers: Vec<_> = (0..6)
            .map(|index| {
                let (futex, arrived, order) = (if index < 1 { to.clone() } else { from.clone() }, arrived.clone(), order.clone());
                let fiber = spawn({
                    let arrived = arrived.clone();
                    move || {
                        arrived.fetch_add(1, SeqCst);
                        assert!(futex.wait(if index < 1 { 9 } else { 0 }));
                        order.lock().push(index);
                    }
                });
                until(|| arrived.load(SeqCst) == index + 1);
                fiber
            })
            .collect();
        assert_eq!(from.requeue(&to, 2), Requeued { woken: 2, moved: 3 });
        until(|| order.lock().len() == 2);
        assert_eq!(from.wake_all(), 0, "nobody is left");
        assert_eq!(from.requeue(&to, 1), Requeued { woken: 0, moved: 0 });
        assert_eq!((to.wake(1), to.requeue(&to, 1), to.wake_all()), (1, Requeued { woken: 1, moved: 0 }, 2));
        fibers.into_iter().for_each(|f| f.join().unwrap());
        assert_eq!(*order.lock(), [1, 2, 0, 3, 4, 5]);
    });
}

#[test]
fn a_moved_waiter_whose_time_is_up_leaves_the_queue_it_is_in() {
    for on in On::BOTH {
        let (from, to) = (Arc::new(Futex::new(0)), Futex::new(0));
        let waiter = {
            let from = from.clone();
            on.start(move || from.wait_timeout(0, 50 * MILLI))
        };
        // It may give up before it was moved, on a slow machine: the outcome is the same.
        let mut tries = 0;
        while from.requeue(&to, 0).moved == 0 && tries < 1_000 {
            tries += 1;
            yield_now();
        }
        assert_eq!(waiter(), FutexWait::TimedOut);
        assert_eq!((from.wake_all(), to.wake_all()), (0, 0));
    }
}

/// A futex that waiters were moved to may be moved, and dropped: they are woken then.
#[test]
fn a_futex_that_waiters_were_moved_to_may_be_moved_and_dropped() {
    let from = Arc::new(Futex::new(0));
    let waiters: Vec<_> = (0..4)
        .map(|index| {
            let from = from.clone();
            On::by_turns(index).start(move || from.wait(0))
        })
        .collect();
    let to = Futex::new(0);
    let mut moved = 0;
    while moved < 4 {
        moved += from.requeue(&to, 0).moved;
        yield_now();
    }
    let to = Box::new(to);
    assert_eq!(to.wake(1), 1);
    drop(to);
    assert!(waiters.into_iter().all(|waiter| waiter()));
}

/// Waiters with deadlines are moved round between three futexes, of which one is dropped and made anew, while others wake: each wait has one outcome, and as many are woken as wakes say.
#[test]
fn requeues_wakes_and_timeouts_at_once_lose_and_double_nobody() {
    const WAITERS: usize = 6;
    let home = Arc::new((Futex::new(0), Futex::new(0)));
    let left = Arc::new(AtomicUsize::new(WAITERS));
    let waiters: Vec<_> = (0..WAITERS)
        .map(|index| {
            let (home, left) = (home.clone(), left.clone());
            let on = if index == 0 { On::Thread } else { On::Fiber };
            on.start(move || {
                let mut woken = 0;
                for round in 0..rounds(200_000) / WAITERS {
                    let futex = if round % 2 == 0 { &home.0 } else { &home.1 };
                    let outcome = futex.wait_timeout(0, Duration::from_micros((round * 3 + index) as u64 % 60));
                    assert_ne!(outcome, FutexWait::Changed);
                    woken += usize::from(outcome == FutexWait::Woken);
                }
                left.fetch_sub(1, SeqCst);
                woken
            })
        })
        .collect();
    let over = Arc::new(AtomicBool::new(false));
    let mover = {
        let (home, over) = (home.clone(), over.clone());
        std::thread::spawn(move || {
            while !over.load(SeqCst) {
                home.0.requeue(&home.1, 0);
                home.1.requeue(&home.0, 0);
                std::thread::yield_now();
            }
        })
    };
    let (mut wakes, mut turn) = (0, 0);
    while left.load(SeqCst) > 0 {
        turn += 1;
        wakes += if turn % 2 == 0 { home.0.wake(1) } else { home.1.wake(2) };
        if turn % 16 == 0 {
            let third = Futex::new(1);
            wakes += home.0.requeue(&third, 0).woken;
            // Those that were moved and still wait are moved back, and so counted by wakes alone.
            third.requeue(&home.1, 0);
        }
        yield_now();
    }
    over.store(true, SeqCst);
    mover.join().unwrap();
    let woken: usize = waiters.into_iter().map(|waiter| waiter()).sum();
    assert_eq!((woken, home.0.wake_all(), home.1.wake_all()), (wakes, 0, 0));
}

// Races

/// Waits with deadlines of 0..50 us against wakes: each has one outcome, and as many were woken as the wakes say.
#[test]
fn a_wake_against_a_timeout_has_one_winner_a_million_times() {
    const WAITERS: usize = 8;
    let futex = Arc::new(Futex::new(0));
    let left = Arc::new(AtomicUsize::new(WAITERS));
    let waiters: Vec<_> = (0..WAITERS)
        .map(|index| {
            let (futex, left) = (futex.clone(), left.clone());
            let on = if index < 2 { On::Thread } else { On::Fiber };
            on.start(move || {
                let mut woken = 0;
                for round in 0..rounds(1_000_000) / WAITERS {
                    let timeout = Duration::from_nanos(((round * 7919 + index * 104_729) % 50_000) as u64);
                    woken += usize::from(futex.wait_timeout(0, timeout) == FutexWait::Woken);
                }
                left.fetch_sub(1, SeqCst);
                woken
            })
        })
        .collect();
    let mut wakes = 0;
    while left.load(SeqCst) > 0 {
        wakes += futex.wake(1);
        yield_now();
    }
    let woken: usize = waiters.into_iter().map(|waiter| waiter()).sum();
    assert_eq!((woken, futex.wake_all()), (wakes, 0));
    assert!(woken > 0 && woken < rounds(1_000_000), "both outcomes came");
}

/// The waiter ends the futex as soon as it was woken, while the waker may still be in its call: that touches it no more.
#[test]
fn a_futex_may_be_freed_by_the_woken_one() {
    for round in 0..rounds(40_000) {
        let futex = Mortal::new(Futex::new(0));
        let on = if round % 8 == 0 { On::Thread } else { On::Fiber };
        let waiter = on.start(move || {
            // SAFETY: it is alive until it is ended here.
            unsafe {
                assert!(futex.get().wait(0));
                futex.end();
            }
        });
        // SAFETY: the waiter does not end it before it was woken, and then this does not come again.
        while unsafe { futex.get() }.wake(1) == 0 {
            yield_now();
        }
        waiter();
        // SAFETY: both have returned.
        unsafe { futex.check() };
    }
}

/// A change of the word and a wake, right after the futex was made: the first waiter sees the one or the other, also while its queue is being made.
#[test]
fn the_first_wait_misses_no_wake() {
    for round in 0..rounds(100_000) {
        let futex = Arc::new(Futex::new(0));
        let waiter = {
            let futex = futex.clone();
            let on = if round % 50 == 0 { On::Thread } else { On::Fiber };
            on.start(move || {
                while futex.load() == 0 {
                    futex.wait(0);
                }
            })
        };
        futex.store(1);
        futex.wake_all();
        waiter();
    }
}

/// Signals that interrupt system calls, one each 100 us, while a plain thread waits: no wait ends before its time or its wake, and none sleeps on after it. In a process of its own.
#[test]
fn signals_end_no_wait_of_a_thread() {
    const NAME: &str = "signals_end_no_wait_of_a_thread";
    const EACH: usize = 500;
    if !is_child(NAME) {
        let child = in_child(NAME, &[]);
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    static WAITER: AtomicI32 = AtomicI32::new(0);
    static SIGNALS: AtomicUsize = AtomicUsize::new(0);
    /// Counts those that reach the thread that waits; passes on what reaches another.
    extern "C" fn count(signal: i32) {
        // SAFETY: both calls are allowed in a handler; the thread is there as long as the process.
        unsafe {
            if libc::gettid() == WAITER.load(SeqCst) {
                SIGNALS.fetch_add(1, SeqCst);
            } else {
                libc::syscall(libc::SYS_tgkill, libc::getpid(), WAITER.load(SeqCst), signal);
            }
        }
    }
    // SAFETY: a handler that does only what it may, without SA_RESTART; then a timer that sends its signal every 100 us.
    unsafe {
        WAITER.store(libc::gettid(), SeqCst);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as extern "C" fn(i32) as usize;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
        let often = libc::timeval { tv_sec: 0, tv_usec: 100 };
        let timer = libc::itimerval { it_interval: often, it_value: often };
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()), 0);
    }
    /// Repeats `wait` until so many signals more have come, and at least twice.
    fn interrupted(mut wait: impl FnMut(usize)) {
        let end = SIGNALS.load(SeqCst) + EACH;
        let mut round = 0;
        while round < 2 || SIGNALS.load(SeqCst) < end {
            wait(round);
            round += 1;
        }
    }
    // Nobody wakes it: it waits for its time.
    interrupted(|_| {
        let (futex, event, before) = (Futex::new(0), Event::new(), Instant::now());
        assert_eq!(futex.wait_timeout(0, 5 * MILLI), FutexWait::TimedOut);
        assert!(before.elapsed() >= 5 * MILLI, "the futex: {:?}", before.elapsed());
        assert!(!event.wait_timeout(5 * MILLI));
        assert!(before.elapsed() >= 10 * MILLI, "the event: {:?}", before.elapsed());
    });
    // A fiber or a thread wakes it, some signals later: not before, and it is not lost.
    interrupted(|round| {
        let both = Arc::new((Futex::new(0), AtomicBool::new(false)));
        let theirs = both.clone();
        let waker = On::by_turns(round).start(move || {
            sinew::sleep(2 * MILLI);
            theirs.1.store(true, SeqCst);
            wake_in_all(&theirs.0, 1);
        });
        assert_eq!(both.0.wait_timeout(0, HOUR), FutexWait::Woken);
        assert!(both.1.load(SeqCst), "nobody has woken it");
        waker();
    });
    interrupted(|round| {
        let both = Arc::new((Event::new(), AtomicBool::new(false)));
        let theirs = both.clone();
        let waker = On::by_turns(round).start(move || {
            sinew::sleep(2 * MILLI);
            theirs.1.store(true, SeqCst);
            theirs.0.set();
        });
        both.0.wait();
        assert!(both.1.load(SeqCst), "nobody has set it");
        waker();
    });
}
