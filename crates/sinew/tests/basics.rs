//! The first promises: spawn, join, run, scope, park, sleep, yield, names, panics; from fibers and from plain threads.

mod common;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use sinew::Runtime;

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

#[test]
fn a_fiber_gives_its_value_to_join() {
    assert_eq!(sinew::spawn(|| 6 * 7).join().unwrap(), 42);
    let long = sinew::spawn(|| [7u8; 4096]).join().unwrap();
    assert!(long.iter().all(|&b| b == 7));
    let captured = [3u64; 100];
    assert_eq!(sinew::spawn(move || captured.iter().sum::<u64>()).join().unwrap(), 300);
}

#[test]
fn run_may_borrow_and_passes_a_panic_on() {
    let mut words = vec!["a"];
    sinew::run(|| words.push("b"));
    assert_eq!(words, ["a", "b"]);
    let panic = catch_unwind(|| sinew::run(|| panic!("through run"))).unwrap_err();
    assert_eq!(*panic.downcast::<&str>().unwrap(), "through run");
}

#[test]
fn many_fibers_on_many_workers_all_end() {
    for workers in [1, 2, 3, 8, 64] {
        let rt = runtime(workers);
        let sum: usize = rt.run(|| {
            let handles: Vec<_> = (0..5_000)
                .map(|i| {
                    sinew::spawn(move || {
                        sinew::yield_now();
                        i
                    })
                })
                .collect();
            handles.into_iter().map(|h| h.join().unwrap()).sum()
        });
        assert_eq!(sum, 5_000 * 4_999 / 2, "{workers} workers");
    }
}

#[test]
fn a_scope_waits_for_fibers_that_nobody_joined() {
    let done = AtomicUsize::new(0);
    sinew::run(|| {
        sinew::scope(|s| {
            for _ in 0..100 {
                s.spawn(|| {
                    sinew::sleep(Duration::from_millis(1));
                    s.spawn(|| done.fetch_add(1, SeqCst));
                });
            }
        })
    });
    assert_eq!(done.load(SeqCst), 100);
}

#[test]
fn a_scope_works_on_a_plain_thread() {
    let mut squares = [0usize; 50];
    sinew::scope(|s| {
        for (i, square) in squares.iter_mut().enumerate() {
            s.spawn(move || *square = i * i);
        }
    });
    assert!(squares.iter().enumerate().all(|(i, &square)| square == i * i));
}

#[test]
fn a_scope_passes_its_own_panic_on_after_its_fibers_ended() {
    let done = AtomicUsize::new(0);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        sinew::scope(|s| {
            s.spawn(|| {
                sinew::sleep(Duration::from_millis(5));
                done.fetch_add(1, SeqCst);
            });
            panic!("of the scope");
        })
    }));
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "of the scope");
    assert_eq!(done.load(SeqCst), 1);
}

#[test]
fn a_scope_panics_for_a_child_that_nobody_joined_and_only_then() {
    let joined = sinew::scope(|s| s.spawn(|| panic!("taken")).join().is_err());
    assert!(joined);
    let panic = catch_unwind(|| sinew::scope(|s| drop(s.spawn(|| panic!("lost")))));
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "a scoped fiber panicked");
}

#[test]
fn unpark_before_park_is_kept_and_counts_once() {
    sinew::run(|| {
        let me = sinew::current();
        me.unpark();
        me.unpark();
        sinew::park();
        let before = Instant::now();
        sinew::park_timeout(Duration::from_millis(10));
        assert!(before.elapsed() >= Duration::from_millis(10), "a second token was left");
    });
}

#[test]
fn a_plain_thread_parks_sleeps_joins_and_has_a_handle() {
    let main = sinew::current();
    assert_eq!(main.name(), std::thread::current().name());
    let waker = sinew::spawn({
        let main = main.clone();
        move || main.unpark()
    });
    sinew::park();
    waker.join().unwrap();
    let before = Instant::now();
    sinew::park_timeout(Duration::from_millis(3));
    sinew::sleep(Duration::from_millis(3));
    assert!(before.elapsed() >= Duration::from_millis(6));
    sinew::yield_now();
    assert_eq!(sinew::current().id(), main.id());
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines() {
    let rt = runtime(1);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    rt.run(|| {
        sinew::scope(|s| {
            for ms in [30u64, 10, 20, 1] {
                let order = order.clone();
                s.spawn(move || {
                    sinew::sleep(Duration::from_millis(ms));
                    order.lock().unwrap().push(ms);
                });
            }
        });
    });
    assert_eq!(*order.lock().unwrap(), [1, 10, 20, 30]);
}

#[test]
fn yields_are_fair_on_one_worker() {
    // Two fibers take turns: after each round their counts differ by at most one.
    let rt = runtime(1);
    rt.run(|| {
        let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
        sinew::scope(|s| {
            for i in 0..2 {
                let counts = &counts;
                s.spawn(move || {
                    for round in 1..=1000 {
                        counts[i].store(round, SeqCst);
                        let other = counts[1 - i].load(SeqCst);
                        assert!(other == 0 || other + 1 >= round && other <= round + 1, "{other} against {round}");
                        sinew::yield_now();
                    }
                });
            }
        });
    });
}

#[test]
fn what_a_fiber_holds_never_changes_thread() {
    // F5: identity, thread-locals, Rc and RefCell guards across thousands of suspensions, woken from other threads and timers.
    thread_local!(static MARK: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) });
    let rt = runtime(4);
    rt.run(|| {
        sinew::scope(|s| {
            for n in 0..64u32 {
                s.spawn(move || {
                    let thread = std::thread::current().id();
                    let shared = Rc::new(RefCell::new(0));
                    let guard = shared.borrow_mut();
                    MARK.with(|mark| mark.borrow_mut().push(n));
                    for i in 0..500 {
                        match i % 3 {
                            0 => sinew::yield_now(),
                            1 => {
                                let me = sinew::current();
                                sinew::spawn(move || me.unpark());
                                sinew::park();
                            }
                            _ => sinew::sleep(Duration::from_micros(u64::from(n))),
                        }
                        assert_eq!(std::thread::current().id(), thread);
                        assert!(shared.try_borrow().is_err());
                        MARK.with(|mark| assert!(mark.borrow().contains(&n)));
                    }
                    drop(guard);
                });
            }
        });
    });
}

#[test]
fn names_sites_and_ids_tell_fibers_apart() {
    let named = sinew::Builder::new().name("reader").spawn(|| sinew::current().name().map(str::to_owned)).unwrap();
    let line = line!() - 1;
    let fiber = named.fiber().clone();
    assert_eq!(fiber.spawned_at().line(), line);
    assert_eq!(fiber.spawned_at().file(), file!());
    assert_eq!(named.join().unwrap().as_deref(), Some("reader"));
    // The handle keeps name and id although the fiber has ended and its place may be used again.
    let others: Vec<_> = (0..2_000).map(|_| sinew::spawn(|| sinew::current().id()).join().unwrap()).collect();
    assert!(!others.contains(&fiber.id()));
    assert_eq!(fiber.name(), Some("reader"));
}

#[test]
fn ids_are_never_reused_even_when_places_are() {
    let mut seen = std::collections::HashSet::new();
    for _ in 0..20_000 {
        assert!(seen.insert(sinew::spawn(|| sinew::current().id()).join().unwrap()));
    }
}

#[test]
fn a_panic_stays_in_its_fiber_and_join_gives_its_payload() {
    let payload = sinew::spawn(|| std::panic::panic_any(17u8)).join().unwrap_err();
    assert_eq!(*payload.downcast::<u8>().unwrap(), 17);
    assert_eq!(sinew::spawn(|| 1).join().unwrap(), 1);
}

#[test]
fn the_closure_is_dropped_before_join_returns_and_the_outcome_with_its_handle() {
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let captured = Count(drops.clone());
    sinew::spawn(move || drop(captured)).join().unwrap();
    assert_eq!(drops.load(SeqCst), 1);
    // An outcome nobody asks for is dropped: by the handle if the fiber ended first, else by the fiber.
    for _ in 0..1000 {
        let inside = Count(drops.clone());
        let handle = sinew::spawn(move || inside);
        if drops.load(SeqCst).is_multiple_of(2) {
            while !handle.is_finished() {
                std::thread::yield_now();
            }
        }
        drop(handle);
    }
    let end = Instant::now() + Duration::from_secs(30);
    while drops.load(SeqCst) != 1001 {
        assert!(Instant::now() < end, "{} of 1001 dropped", drops.load(SeqCst));
        std::thread::yield_now();
    }
}

#[test]
fn a_fiber_may_wait_in_a_drop_while_it_unwinds() {
    struct Waits(Arc<AtomicUsize>);
    impl Drop for Waits {
        fn drop(&mut self) {
            assert!(std::thread::panicking());
            sinew::yield_now();
            sinew::sleep(Duration::from_millis(1));
            sinew::scope(|s| {
                s.spawn(|| sinew::sleep(Duration::from_millis(1)));
            });
            self.0.fetch_add(1, SeqCst);
        }
    }
    let rt = runtime(1);
    let dropped = Arc::new(AtomicUsize::new(0));
    rt.run(|| {
        let handles: Vec<_> = (0..100)
            .map(|i| {
                let waits = Waits(dropped.clone());
                sinew::spawn(move || {
                    let _waits = waits;
                    panic!("number {i}");
                })
            })
            .collect();
        for (i, handle) in handles.into_iter().enumerate() {
            assert_eq!(*handle.join().unwrap_err().downcast::<String>().unwrap(), format!("number {i}"));
        }
        // The panic count of the thread is back to zero.
        assert!(!std::thread::panicking());
        assert_eq!(sinew::spawn(|| 5).join().unwrap(), 5);
    });
    assert_eq!(dropped.load(SeqCst), 100);
}

#[test]
fn a_handle_can_be_awaited() {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Wake, Waker};

    struct Unparks(std::thread::Thread);
    impl Wake for Unparks {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unparks(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut handle = sinew::spawn(|| {
        sinew::sleep(Duration::from_millis(5));
        11
    });
    let value = loop {
        match Pin::new(&mut handle).poll(&mut context) {
            Poll::Ready(value) => break value.unwrap(),
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(value, 11);
    // Polled, then joined; polled, then dropped.
    let mut handle = sinew::spawn(sinew::park);
    assert!(Pin::new(&mut handle).poll(&mut context).is_pending());
    handle.fiber().unpark();
    handle.join().unwrap();
    let mut handle = sinew::spawn(sinew::park);
    assert!(Pin::new(&mut handle).poll(&mut context).is_pending());
    let fiber = handle.fiber().clone();
    drop(handle);
    fiber.unpark();
}

#[test]
fn runtimes_are_apart_and_a_fiber_of_one_may_wait_for_another() {
    let (a, b) = (runtime(1), runtime(2));
    let from_a = a.run(|| {
        let here = std::thread::current().id();
        let there = b.run(|| {
            let there = std::thread::current().id();
            assert_eq!(sinew::spawn(|| 1).join().unwrap(), 1);
            there
        });
        assert_ne!(here, there);
        assert_eq!(std::thread::current().id(), here);
        sinew::spawn(|| std::thread::current().id()).join().unwrap()
    });
    assert_eq!(from_a, a.run(|| std::thread::current().id()));
}

#[test]
fn runtimes_come_and_go() {
    for round in 0..200 {
        let rt = runtime(1 + round % 4);
        let handle = rt.spawn(|| sinew::spawn(|| 1).join().unwrap());
        if round % 2 == 0 {
            assert_eq!(handle.join().unwrap(), 1);
        }
    }
}

#[test]
fn a_dropped_runtime_refuses_unstarted_fibers_and_says_so_to_join() {
    let rt = runtime(1);
    let gate = Arc::new(AtomicUsize::new(0));
    let hog = rt.spawn({
        let gate = gate.clone();
        move || {
            gate.store(1, SeqCst);
            while gate.load(SeqCst) != 2 {
                std::hint::spin_loop();
            }
        }
    });
    while gate.load(SeqCst) != 1 {
        std::thread::yield_now();
    }
    let late: Vec<_> = (0..100).map(|_| rt.spawn(|| unreachable!("an unstarted fiber was run after shutdown"))).collect();
    std::thread::scope(|s| {
        s.spawn(|| drop(rt));
        // The drop waits for the hog; give it the word once new fibers are refused.
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end && gate.load(SeqCst) == 1 {
            std::thread::sleep(Duration::from_millis(20));
            gate.store(2, SeqCst);
        }
    });
    hog.join().unwrap();
    for handle in late {
        let payload = handle.join().unwrap_err();
        let text = payload.downcast_ref::<sinew::NeverRan>().unwrap().to_string();
        assert!(text.contains("shut down"), "{text}");
    }
}

#[test]
fn rounding_mode_does_not_leak_between_fibers() {
    // F2 for the floating-point control words. Rust must not compute under another mode, so only the words are compared.
    #[cfg(target_arch = "x86_64")]
    {
        use common::rounding::{DEFAULT, mode, set, words};
        let rt = runtime(1);
        rt.run(|| {
            sinew::scope(|s| {
                for i in 0..4 {
                    s.spawn(move || {
                        assert_eq!(words(), DEFAULT, "a fresh fiber does not have the default words");
                        set(mode(i));
                        for _ in 0..100 {
                            sinew::yield_now();
                            assert_eq!(words(), mode(i));
                            sinew::sleep(Duration::from_micros(10));
                            assert_eq!(words(), mode(i));
                        }
                    });
                }
            });
            assert_eq!(words(), DEFAULT);
        });
    }
}

/// A job of `blocking` rounds as the fiber does whose job it is, whatever its thread did before.
#[cfg(target_arch = "x86_64")]
#[test]
fn rounding_mode_does_not_leak_through_threads_that_block() {
    use common::rounding::{DEFAULT, mode, set, words};
    let rt = Runtime::builder().workers(1).blocking_threads(1).build().unwrap();
    rt.run(|| {
        for i in 0..8 {
            let fiber = sinew::spawn(move || {
                set(mode(i));
                let found = sinew::blocking(move || {
                    let found = words();
                    set(mode(i + 1));
                    found
                });
                assert_eq!((found, words()), (mode(i), mode(i)));
            });
            fiber.join().unwrap();
            assert_eq!(sinew::blocking(words), DEFAULT);
        }
    });
}

#[test]
fn deep_recursion_fits_the_stack_that_was_asked_for() {
    fn depth(left: usize) -> usize {
        let frame = std::hint::black_box([left; 100]);
        if left == 0 { 0 } else { 1 + depth(left - 1) + frame[99] - left }
    }
    let deep = sinew::Builder::new().stack_size(64 << 20).spawn(|| {
        let reached = depth(30_000);
        (reached, sinew::current().stack_high_water())
    });
    let (reached, high_water) = deep.unwrap().join().unwrap();
    assert_eq!(reached, 30_000);
    assert!(high_water >= 30_000 * 800, "high-water mark of only {high_water} bytes");
}

#[test]
fn the_high_water_mark_grows_with_the_deepest_suspension() {
    fn suspend_at(depth: usize) -> usize {
        let frame = std::hint::black_box([depth; 64]);
        if depth == 0 {
            sinew::yield_now();
            return 0;
        }
        suspend_at(depth - 1) + frame[0] - depth
    }
    let rt = runtime(1);
    rt.run(|| {
        let marks: Vec<usize> = [1, 20, 100]
            .into_iter()
            .map(|depth| {
                // Something to yield to, so that the fiber really leaves its stack.
                let other = sinew::spawn(|| (0..10).for_each(|_| sinew::yield_now()));
                let fiber = sinew::spawn(move || suspend_at(depth));
                let handle = fiber.fiber().clone();
                fiber.join().unwrap();
                other.join().unwrap();
                handle.stack_high_water()
            })
            .collect();
        if cfg!(sinew_switch = "corosensei") {
            return;
        }
        assert!(marks[0] > 0 && marks[0] + 15 * 512 < marks[1] && marks[1] + 60 * 512 < marks[2], "{marks:?}");
    });
}

#[test]
fn stack_sizes_are_checked() {
    for absurd in [0, usize::MAX, (1 << 30) + 1] {
        let error = sinew::Builder::new().stack_size(absurd).spawn(|| ()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
    for (asked, given) in [(1, 16 << 10), (100 << 10, 128 << 10)] {
        let handle = sinew::Builder::new().stack_size(asked).spawn(|| sinew::current().stack_size()).unwrap();
        assert_eq!(handle.join().unwrap(), given);
    }
    for workers in [0, 4097, usize::MAX] {
        let error = Runtime::builder().workers(workers).build().unwrap_err();
        assert!(error.to_string().contains("1 to 4096"), "{error}");
    }
}

#[test]
fn a_backtrace_in_a_fiber_ends_at_its_root() {
    let text = sinew::spawn(|| std::backtrace::Backtrace::force_capture().to_string()).join().unwrap();
    assert!(text.contains("a_backtrace_in_a_fiber"), "{text}");
    // An optimised build names inlined frames without their module.
    let root = |line: &str| line.ends_with("life::root") || line.ends_with(": root");
    assert!(text.lines().any(root), "{text}");
    // corosensei links a coroutine's stack to its resumer's on purpose.
    let linked = cfg!(any(sinew_switch = "corosensei", not(target_arch = "x86_64")));
    assert!(linked || !text.contains("Worker::run"), "the walk left the fiber's stack: {text}");
}
