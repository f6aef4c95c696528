//! Work on threads where blocking harms nobody: `sinew::blocking`.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use common::{in_child, is_child};
use sinew::time::{Cancel, Timer};
use sinew::{Builder, NeverRan, Runtime, blocking, cancelled, current, no_suspend, scope, shield, spawn, timeout, yield_now};

const HOUR: Duration = Duration::from_secs(3600);
const MILLI: Duration = Duration::from_millis(1);

fn runtime(workers: usize, threads: usize) -> Runtime {
    Runtime::builder().workers(workers).blocking_threads(threads).build().unwrap()
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        yield_now();
    }
}

#[test]
fn a_job_runs_on_a_thread_of_its_own_and_may_borrow() {
    let runtime = runtime(1, 4);
    let words = ["plain".to_string(), "blocking".to_string()];
    let (letters, fiber, job, name) = runtime.run(|| {
        let mut names = Vec::new();
        let letters: usize = blocking(|| {
            names.push(std::thread::current().name().map(str::to_owned));
            words.iter().map(String::len).sum()
        });
        (letters, std::thread::current().id(), blocking(|| std::thread::current().id()), names.remove(0))
    });
    assert_eq!(letters, 13);
    assert_ne!(fiber, job);
    assert_eq!(name.as_deref(), Some("sinew-blocking-1"));
}

#[test]
fn on_a_plain_thread_it_runs_in_place() {
    let here = std::thread::current().id();
    assert_eq!(blocking(|| std::thread::current().id()), here);
    // Also within a job: the thread is there to be blocked.
    let (outer, inner) = sinew::run(|| blocking(|| (std::thread::current().id(), blocking(|| std::thread::current().id()))));
    assert_eq!(outer, inner);
    assert!(catch_unwind(|| blocking(|| panic!("passed on"))).is_err());
}

/// The name of the thread that this is called on.
fn thread_name() -> String {
    std::thread::current().name().unwrap_or("nameless").to_owned()
}

#[test]
fn what_a_job_starts_belongs_to_the_runtime_that_asked() {
    const NAME: &str = "what_a_job_starts_belongs_to_the_runtime_that_asked";
    if !is_child(NAME) {
        // A process of its own: there is no default runtime, and none comes.
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    thread_local!(static MINE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    let builder = Runtime::builder().workers(2).blocking_threads(2);
    let mine = builder.on_worker_start(|| MINE.set(true)).build().unwrap();
    let job = || {
        assert!(!MINE.get(), "a job is on no worker");
        assert!(spawn(|| MINE.get()).join().unwrap());
        assert!(Builder::new().spawn(|| MINE.get()).unwrap().join().unwrap());
        assert!(sinew::spawn_batch([|| MINE.get(), || MINE.get()]).into_iter().all(|fiber| fiber.join().unwrap()));
        assert!(sinew::run(|| MINE.get()));
        assert!(scope(|s| s.spawn(|| MINE.get()).join().unwrap()));
        assert!(blocking(|| spawn(|| MINE.get()).join().unwrap()), "a job within a job");
        let (sender, receiver) = channel();
        let _timer = Timer::after(MILLI, move || sender.send(MINE.get()).unwrap());
        assert!(receiver.recv().unwrap(), "a timer's callback");
        let quiet = Builder::new().quiet().spawn(|| MINE.get()).unwrap();
        sinew::flush();
        assert!(quiet.join().unwrap());
        assert_eq!(sinew::metrics().workers.len(), 2);
        // Also while it unwinds.
        struct AtEnd;
        impl Drop for AtEnd {
            fn drop(&mut self) {
                assert!(spawn(|| MINE.get()).join().unwrap());
            }
        }
        let _at_end = AtEnd;
        panic!("the end of the job");
    };
    mine.run(|| assert!(catch_unwind(|| blocking(job)).is_err()));
    assert_eq!(sinew::metrics().workers.len(), 0, "a default runtime was started");
    // On a plain thread it changes nothing.
    assert!(blocking(|| spawn(|| !MINE.get() && thread_name().starts_with("sinew-0.")).join().unwrap()));
    assert_ne!(sinew::metrics().workers.len(), 0);
}

#[test]
fn a_thread_of_a_pool_forgets_for_whom_it_worked() {
    let runtime = runtime(1, 1);
    let handle = runtime.handle();
    // What runs on the thread after its last job: the destructor of a thread-local, which knows of no runtime but the default one.
    struct AtExit(std::sync::mpsc::Sender<usize>);
    impl Drop for AtExit {
        fn drop(&mut self) {
            let _ = self.0.send(sinew::metrics().workers.len());
        }
    }
    thread_local!(static AT_EXIT: std::cell::RefCell<Option<AtExit>> = const { std::cell::RefCell::new(None) });
    let (sender, receiver) = channel();
    runtime.run(|| blocking(move || AT_EXIT.set(Some(AtExit(sender)))));
    runtime.shutdown_timeout(HOUR).unwrap();
    assert_ne!(receiver.recv().unwrap(), handle.metrics().workers.len());
}

#[test]
fn what_a_job_of_a_runtime_that_is_shut_down_spawns_ends_unrun() {
    let runtime = runtime(1, 1);
    let handle = runtime.handle();
    let (begun, has_begun) = channel();
    let (go, gate) = channel::<()>();
    let fiber = runtime.spawn(move || {
        blocking(move || {
            begun.send(()).unwrap();
            gate.recv().unwrap();
            let spawned = Builder::new().spawn(|| ()).map(drop).map_err(|error| error.to_string());
            let timer = Timer::after(MILLI, || ()).cancel();
            (spawned, timer, spawn(|| ()).join())
        })
    });
    has_begun.recv().unwrap();
    let shutdown = std::thread::spawn(move || runtime.shutdown_timeout(HOUR));
    until(|| catch_unwind(AssertUnwindSafe(|| handle.spawn(|| ()))).is_err());
    go.send(()).unwrap();
    let (built, timer, spawned) = fiber.join().unwrap();
    assert!(built.is_err_and(|text| text.contains("shut down")));
    assert_eq!(timer, Cancel::Done);
    assert!(spawned.unwrap_err().is::<NeverRan>());
    shutdown.join().unwrap().unwrap();
}

#[test]
fn a_blocked_job_does_not_keep_its_worker_from_other_fibers() {
    // One worker: the job ends only if another fiber of it runs meanwhile.
    let runtime = runtime(1, 1);
    runtime.run(|| {
        let (sender, receiver) = channel();
        let blocked = spawn(move || blocking(move || receiver.recv().unwrap()));
        let other = spawn(move || sender.send(7).unwrap());
        other.join().unwrap();
        assert_eq!(blocked.join().unwrap(), 7);
    });
}

#[test]
fn a_panic_travels_to_the_caller_and_the_thread_goes_on() {
    let runtime = runtime(1, 1);
    runtime.run(|| {
        let first = blocking(|| std::thread::current().id());
        let payload = catch_unwind(|| blocking(|| std::panic::panic_any(42u32))).unwrap_err();
        assert_eq!(payload.downcast_ref::<u32>(), Some(&42));
        assert_eq!(blocking(|| std::thread::current().id()), first, "the thread that the panic was on is gone");
        assert_eq!(sinew::metrics().blocking_threads, 1);
    });
    let outcome = runtime.spawn(|| blocking(|| -> u32 { panic!("to the one that joins") })).join();
    assert_eq!(outcome.unwrap_err().downcast_ref::<&str>(), Some(&"to the one that joins"));
}

#[test]
fn the_pool_grows_to_what_is_asked_of_it_and_no_further() {
    const THREADS: usize = 6;
    let runtime = runtime(2, THREADS);
    // They meet: so there are as many threads as jobs.
    let barrier = Barrier::new(THREADS);
    runtime.run(|| {
        scope(|s| {
            for _ in 0..THREADS {
                s.spawn(|| blocking(|| barrier.wait()));
            }
        });
    });
    assert_eq!(runtime.metrics().blocking_threads, THREADS);
    let (now, most, names) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(HashSet::new()));
    let job = || {
        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
        names.lock().unwrap().insert(std::thread::current().name().unwrap().to_owned());
        std::thread::yield_now();
        now.fetch_sub(1, SeqCst);
    };
    runtime.run(|| {
        scope(|s| {
            for _ in 0..500 {
                s.spawn(|| blocking(job));
            }
        });
    });
    assert!(most.load(SeqCst) <= THREADS, "{} jobs at once", most.load(SeqCst));
    let names = names.into_inner().unwrap();
    assert!(names.len() <= THREADS && names.iter().all(|name| name.starts_with("sinew-blocking-")), "{names:?}");
}

#[test]
fn jobs_beyond_the_bound_are_done_in_the_order_in_which_they_came() {
    let runtime = runtime(1, 1);
    let order = Arc::new(Mutex::new(Vec::new()));
    let (go, gate) = channel::<()>();
    runtime.run(move || {
        let first = spawn(move || blocking(move || gate.recv().unwrap()));
        until(|| sinew::metrics().blocking_threads == 1 && sinew::metrics().blocking_queued == 0);
        let mut others = Vec::new();
        for i in 0..50 {
            let order = order.clone();
            others.push(spawn(move || blocking(|| order.lock().unwrap().push(i))));
            // Each is queued before the next: so the order is known.
            until(|| sinew::metrics().blocking_queued == i + 1);
        }
        go.send(()).unwrap();
        first.join().unwrap();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(*order.lock().unwrap(), (0..50).collect::<Vec<_>>());
    });
}

#[test]
fn idle_threads_leave_and_others_come_again() {
    let runtime = Runtime::builder().workers(1).blocking_idle(MILLI).build().unwrap();
    for _ in 0..3 {
        assert_eq!(runtime.run(|| blocking(|| 7)), 7);
        while runtime.metrics().blocking_threads != 0 {
            std::thread::yield_now();
        }
    }
    // As they leave, jobs come.
    let brief = Runtime::builder().workers(2).blocking_threads(3).blocking_idle(Duration::ZERO).build().unwrap();
    let sum = AtomicUsize::new(0);
    brief.run(|| {
        scope(|s| {
            for i in 0..8 {
                let sum = &sum;
                s.spawn(move || (0..200).for_each(|n| _ = blocking(|| sum.fetch_add(i * n, SeqCst))));
            }
        });
    });
    assert_eq!(sum.load(SeqCst), 28 * 19_900);
}

#[test]
fn the_threads_leave_with_their_runtime() {
    let runtime = runtime(1, 4);
    runtime.run(|| blocking(|| ()));
    let handle = runtime.handle();
    assert_eq!(handle.metrics().blocking_threads, 1);
    runtime.shutdown_timeout(HOUR).unwrap();
    // Idle for ten seconds else.
    while handle.metrics().blocking_threads != 0 {
        std::thread::yield_now();
    }
}

#[test]
fn it_is_no_cancel_point() {
    let runtime = runtime(1, 2);
    runtime.run(|| {
        let fiber = spawn(|| {
            current().cancel();
            let value = blocking(|| (7, cancelled()));
            (value, cancelled())
        });
        assert_eq!(fiber.join().unwrap(), ((7, false), true), "a job has no cancel of its caller");
        // A deadline passes while the job runs: it cuts nothing short.
        assert_eq!(timeout(MILLI, || blocking(|| std::thread::sleep(5 * MILLI))), Ok(()));
        // Cancelled while it waits.
        let (go, gate) = channel();
        let fiber = spawn(move || blocking(move || gate.recv().unwrap()));
        until(|| sinew::metrics().blocking_threads > 0);
        fiber.cancel();
        (0..100).for_each(|_| yield_now());
        assert!(!fiber.is_finished());
        go.send(9).unwrap();
        assert_eq!(fiber.join().unwrap(), 9);
    });
}

#[test]
fn inside_no_suspend_it_panics_before_the_job_is_begun() {
    let refuses = || {
        let begun = AtomicBool::new(false);
        let panic = catch_unwind(AssertUnwindSafe(|| no_suspend(|| blocking(|| begun.store(true, SeqCst))))).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("would suspend"));
        assert!(!begun.load(SeqCst));
    };
    refuses();
    sinew::run(refuses);
}

#[test]
fn a_shutdown_waits_for_a_job_or_names_the_fiber_that_waits_for_it() {
    let quick = runtime(1, 1);
    let (begun, has_begun) = channel();
    let fiber = quick.spawn(move || {
        blocking(move || {
            begun.send(()).unwrap();
            std::thread::sleep(20 * MILLI);
            "done"
        })
    });
    has_begun.recv().unwrap();
    quick.shutdown_timeout(HOUR).unwrap();
    assert!(fiber.is_finished());
    assert_eq!(fiber.join().unwrap(), "done");

    let slow = runtime(1, 1);
    let (begun, has_begun) = channel();
    let (go, gate) = channel::<()>();
    let stuck = slow.run(move || {
        let job = move || {
            begun.send(()).unwrap();
            gate.recv().unwrap();
        };
        Builder::new().name("stuck").spawn(move || blocking(job)).unwrap()
    });
    has_begun.recv().unwrap();
    let unfinished = slow.shutdown_timeout(MILLI).unwrap_err().to_string();
    assert!(unfinished.contains("'stuck'") && unfinished.contains("waits for its blocking job to end"), "{unfinished}");
    // It goes on as if nothing had happened.
    go.send(()).unwrap();
    stuck.join().unwrap();
}

#[test]
fn a_job_that_is_queued_when_its_runtime_is_shut_down_is_done() {
    let runtime = runtime(1, 1);
    let (go, gate) = channel::<()>();
    let done = Arc::new(AtomicUsize::new(0));
    let fibers: Vec<_> = runtime.run(|| {
        let mut fibers = vec![spawn(move || blocking(move || gate.recv().unwrap()))];
        until(|| sinew::metrics().blocking_threads == 1 && sinew::metrics().blocking_queued == 0);
        for _ in 0..5 {
            let done = done.clone();
            fibers.push(spawn(move || blocking(move || _ = done.fetch_add(1, SeqCst))));
        }
        until(|| sinew::metrics().blocking_queued == 5);
        fibers
    });
    let shutdown = std::thread::spawn(move || runtime.shutdown_timeout(HOUR));
    go.send(()).unwrap();
    shutdown.join().unwrap().unwrap();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    assert_eq!(done.load(SeqCst), 5);
}

#[test]
fn what_a_job_leaves_at_its_thread_does_not_reach_the_next() {
    let runtime = runtime(1, 1);
    runtime.run(|| {
        // A cancel, an unpark, and a handle by which either may come later.
        blocking(|| current().cancel());
        assert!(!blocking(cancelled));
        blocking(|| current().unpark());
        assert_eq!(timeout(MILLI, || ()), Ok(()));
        assert!(blocking(|| timeout(MILLI, sinew::park).is_err()), "an unpark of an earlier job ended a later one's park");
        let kept = blocking(current);
        let cancelled_late = blocking(|| {
            kept.cancel();
            cancelled()
        });
        assert!(!cancelled_late);
    });
    assert_eq!(runtime.metrics().blocking_threads, 1);
}

sinew::fiber_local! {
    #[inherit]
    static USER: RefCell<String> = RefCell::new("nobody".into());
    static OWN: Cell<u32> = Cell::new(0);
}

/// Claim: a job has what a child of its fiber would have, and hands that down; what it makes of it, and its own, is gone when it has ended, however it ends. One thread does all.
#[test]
fn fiber_locals_of_a_job_are_those_of_a_child_and_end_with_it() {
    let runtime = runtime(2, 1);
    let seen = || (USER.with_borrow(String::clone), sinew::spawn(|| USER.take()).join().unwrap(), OWN.get());
    let of = |who: &str, twice: bool| {
        let who = String::from(who);
        runtime.spawn(move || {
            USER.set(who);
            OWN.set(7);
            let job = move || {
                let first = seen();
                USER.with_borrow_mut(|user| user.push('!'));
                OWN.set(9);
                assert!(!twice, "as planned");
                (first, seen())
            };
            let done = std::panic::catch_unwind(|| blocking(job));
            (done.ok(), USER.take(), OWN.get())
        })
    };
    let named = |name: &str, own| (String::from(name), String::from(name), own);
    for who in ["alice", "bob"] {
        assert_eq!(of(who, false).join().unwrap(), (Some((named(who, 0), named(&format!("{who}!"), 9))), who.into(), 7));
        assert_eq!(of("carol", true).join().unwrap(), (None, "carol".into(), 7));
    }
    assert_eq!(runtime.spawn(move || blocking(seen)).join().unwrap(), named("nobody", 0));
    assert_eq!(runtime.metrics().blocking_threads, 1);
}

/// Claim: they are dropped before the call returns.
#[test]
fn fiber_locals_of_a_job_are_dropped_before_its_fiber_goes_on() {
    sinew::fiber_local! {
        static KEPT: RefCell<Option<Arc<()>>> = RefCell::new(None);
    }
    let shared = Arc::new(());
    let held = shared.clone();
    runtime(1, 1).run(|| blocking(|| KEPT.set(Some(held))));
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn a_shield_and_a_scope_hold_around_a_job() {
    let values: Vec<u32> = sinew::run(|| {
        let mut values = vec![0; 20];
        scope(|s| {
            for (i, value) in values.iter_mut().enumerate() {
                s.spawn(move || shield(|| blocking(|| *value = i as u32 * 2)));
            }
        });
        values
    });
    assert_eq!(values, (0..20).map(|i| i * 2).collect::<Vec<_>>());
}

#[test]
fn bad_numbers_are_refused() {
    for bad in [0, 32_769, usize::MAX] {
        let error = Runtime::builder().blocking_threads(bad).build().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        let text = error.to_string();
        assert!(text.contains(&format!("blocking_threads({bad})")) && text.contains("1 to 32768"), "{text}");
    }
}

#[test]
fn the_environment_sets_the_bound_and_bad_values_are_refused() {
    const NAME: &str = "the_environment_sets_the_bound_and_bad_values_are_refused";
    if !is_child(NAME) {
        for value in ["0", "32769", "many", "", "-1", "2"] {
            let output = in_child(NAME, &[("SINEW_BLOCKING_THREADS", value)]);
            assert!(output.status.success(), "SINEW_BLOCKING_THREADS={value}: {}", String::from_utf8_lossy(&output.stderr));
        }
        return;
    }
    if std::env::var("SINEW_BLOCKING_THREADS").as_deref() != Ok("2") {
        let text = Runtime::builder().build().unwrap_err().to_string();
        assert!(text.contains("SINEW_BLOCKING_THREADS=") && text.contains("1 to 32768"), "{text}");
        return;
    }
    let runtime = Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        let (go, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        scope(|s| {
            for _ in 0..3 {
                s.spawn(|| blocking(|| gate.lock().unwrap().recv().unwrap()));
            }
            until(|| sinew::metrics().blocking_queued == 1 && sinew::metrics().blocking_threads == 2);
            (0..3).for_each(|_| go.send(()).unwrap());
        });
    });
    assert_eq!(runtime.metrics().blocking_threads, 2);
}

#[test]
fn without_a_single_thread_it_panics_with_the_cause_and_with_one_it_queues() {
    const NAME: &str = "without_a_single_thread_it_panics_with_the_cause_and_with_one_it_queues";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let runtime = runtime(2, 4);
    sinew::hidden::fail_blocking_threads(true);
    runtime.run(|| {
        scope(|s| {
            for _ in 0..50 {
                s.spawn(|| {
                    let panic = catch_unwind(|| blocking(|| panic!("there is no thread to run this"))).unwrap_err();
                    let text = panic.downcast_ref::<String>().unwrap();
                    assert!(text.contains("no thread could be started") && text.contains("ulimit -u"), "{text}");
                });
            }
        });
    });
    assert_eq!((runtime.metrics().blocking_threads, runtime.metrics().blocking_queued), (0, 0));
    sinew::hidden::fail_blocking_threads(false);
    let (go, gate) = channel::<()>();
    runtime.run(|| {
        let first = spawn(move || blocking(move || gate.recv().unwrap()));
        until(|| sinew::metrics().blocking_threads == 1);
        sinew::hidden::fail_blocking_threads(true);
        let second = spawn(|| blocking(|| 2));
        until(|| sinew::metrics().blocking_queued == 1);
        go.send(()).unwrap();
        first.join().unwrap();
        assert_eq!(second.join().unwrap(), 2);
    });
}

#[test]
fn a_running_job_is_no_standstill() {
    const NAME: &str = "a_running_job_is_no_standstill";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !text.contains("deadlock"), "{text}");
        return;
    }
    let runtime = Runtime::builder().workers(2).deadlock_watch(20 * MILLI).build().unwrap();
    // Long enough for many a report, were there one.
    runtime.run(|| blocking(|| std::thread::sleep(300 * MILLI)));
}

#[test]
fn many_fibers_share_few_threads() {
    let runtime = runtime(2, 3);
    let sum: u64 = runtime.run(|| {
        let fibers: Vec<_> = (0..5_000u64).map(|i| spawn(move || blocking(move || i))).collect();
        fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum()
    });
    assert_eq!(sum, 5_000 * 4_999 / 2);
}
