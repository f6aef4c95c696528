//! A panic stays in its fiber, whatever panics, wherever, and whoever waits meanwhile.
//!
//! What ends or silences a process is tried in a child: this test binary again, with one test selected.

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::pin::Pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread::panicking;
use std::time::{Duration, Instant};

use sinew::{NeverRan, Runtime};

/// A hang fails after this long. Generous: the machine may be busy with other things.
const LIMIT: Duration = Duration::from_secs(60);

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

/// How often: debug builds are some ten times slower.
fn rounds(debug: usize, release: usize) -> usize {
    if cfg!(debug_assertions) { debug } else { release }
}

/// Runs the body of a test; fails if it does not come back.
fn in_time<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(body()));
    match receiver.recv_timeout(LIMIT) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Disconnected) => resume_unwind(thread.join().unwrap_err()),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not done after {LIMIT:?}: a fiber or a wake-up was lost"),
    }
}

fn poll_until(what: &str, reached: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !reached() {
        assert!(Instant::now() < end, "not after {LIMIT:?}: {what}");
        std::thread::yield_now();
    }
}

fn text(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast::<&str>().expect("a panic message is a &str or a String")).to_owned(),
    }
}

/// How a child ended.
#[derive(Debug)]
struct Ended {
    status: ExitStatus,
    err: String,
}

const CHILD: &str = "SINEW_TEST_CHILD";

/// Runs `body` in a child process: this binary again, with the one test that calls this. In the child it does not return.
fn in_child<F: FnOnce()>(body: F) -> Ended {
    finish_child(start_child(body))
}

fn start_child<F: FnOnce()>(body: F) -> Child {
    if std::env::var_os(CHILD).is_some() {
        body();
        std::process::exit(0);
    }
    // `panics::name_of_the_test::{{closure}}`
    let test = std::any::type_name::<F>().split("::").nth(1).expect("a closure in a test function");
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish_child(mut child: Child) -> Ended {
    let reader = child.stderr.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    });
    let end = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the child did not end: {}", reader.map_or(String::new(), |r| r.join().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Ended { status, err: reader.map_or(String::new(), |r| r.join().unwrap()) }
}

#[track_caller]
fn assert_success(ended: &Ended) {
    assert!(ended.status.success(), "the child ended with {}: {}", ended.status, ended.err);
}

/// Panics when dropped, unless its thread is panicking already.
struct Bomb(&'static str);

impl Drop for Bomb {
    fn drop(&mut self) {
        if !panicking() {
            panic_any(self.0);
        }
    }
}

// ---- payloads

#[test]
fn payloads_of_all_kinds_reach_join_as_they_were_thrown() {
    #[derive(PartialEq, Debug)]
    struct Nothing;
    #[derive(PartialEq, Debug)]
    #[repr(align(128))]
    struct Wide([u8; 300]);

    fn thrown<T: Any + Send>(by: impl FnOnce() + Send + 'static) -> T {
        *sinew::spawn(by).join().unwrap_err().downcast::<T>().expect("the payload has another type")
    }
    assert_eq!(thrown::<&str>(|| panic!("literal")), "literal");
    assert_eq!(thrown::<String>(|| panic!("number {}", black_box(7))), "number 7");
    assert_eq!(thrown::<u8>(|| panic_any(17u8)), 17);
    assert_eq!(thrown::<Nothing>(|| panic_any(Nothing)), Nothing);
    assert_eq!(thrown::<Wide>(|| panic_any(Wide([9; 300]))), Wide([9; 300]));
    assert_eq!(thrown::<[u64; 512]>(|| panic_any([3u64; 512])), [3; 512]);
    assert_eq!(thrown::<Nothing>(|| resume_unwind(Box::new(Nothing))), Nothing);
    let nested = thrown::<Box<dyn Any + Send>>(|| panic_any(Box::new(5i32) as Box<dyn Any + Send>));
    assert_eq!(*nested.downcast::<i32>().unwrap(), 5);
    let shared = Arc::new(1);
    let inside = shared.clone();
    assert!(Arc::ptr_eq(&thrown::<Arc<i32>>(move || panic_any(inside)), &shared));
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn panics_that_the_language_and_std_raise_are_caught_too() {
    let raised: [(&str, fn()); 7] = [
        ("index out of bounds", || assert!(black_box([true; 3])[black_box(3)])),
        ("divide by zero", || assert!(1 / black_box(0) == 0)),
        ("called `Option::unwrap()`", || black_box(None::<()>).unwrap()),
        ("already borrowed", || {
            let cell = RefCell::new(0);
            let _first = cell.borrow_mut();
            drop(cell.borrow_mut());
        }),
        ("assertion `left == right` failed", || assert_eq!(black_box(1), 2)),
        ("entered unreachable code", || unreachable!()),
        ("of the scope", || sinew::scope(|_| panic!("of the scope"))),
    ];
    for (part, raise) in raised {
        let message = text(sinew::spawn(raise).join().unwrap_err());
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

#[test]
fn a_resumed_payload_passes_through_nested_runs_untouched() {
    let other = runtime(1);
    let shared = Arc::new(41);
    let inside = shared.clone();
    let payload = catch_unwind(AssertUnwindSafe(|| {
        sinew::run(|| other.run(|| sinew::run(|| sinew::scope(|_| sinew::run(move || resume_unwind(Box::new(inside)))))))
    }));
    let payload = payload.unwrap_err().downcast::<Arc<i32>>().expect("the payload changed on its way");
    assert!(Arc::ptr_eq(&payload, &shared));
    drop(payload);
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn a_panic_reaches_whoever_joins() {
    let panics = || sinew::spawn(|| panic!("for the joiner"));
    let check = |outcome: std::thread::Result<()>| assert_eq!(text(outcome.unwrap_err()), "for the joiner");
    check(panics().join());
    sinew::run(|| check(panics().join()));
    let handle = panics();
    std::thread::spawn(move || check(handle.join())).join().unwrap();
    let (handle, other) = (panics(), runtime(1));
    other.run(move || check(handle.join()));
    // After the end as well as before it.
    let handle = panics();
    poll_until("the end of the fiber", || handle.is_finished());
    check(handle.join());
}

#[test]
fn a_thread_and_a_fiber_that_unwind_may_join_and_scope() {
    struct JoinsInDrop(Arc<AtomicUsize>);
    impl Drop for JoinsInDrop {
        fn drop(&mut self) {
            assert!(panicking());
            assert_eq!(text(sinew::spawn(|| panic!("inner")).join().unwrap_err()), "inner");
            sinew::scope(|s| s.spawn(|| self.0.fetch_add(1, SeqCst)).join().unwrap());
            sinew::run(|| self.0.fetch_add(1, SeqCst));
        }
    }
    let count = Arc::new(AtomicUsize::new(0));
    let panics = |count: &Arc<AtomicUsize>| {
        let joins = JoinsInDrop(count.clone());
        move || {
            let _joins = joins;
            panic!("outer");
        }
    };
    assert_eq!(text(std::thread::spawn(panics(&count)).join().unwrap_err()), "outer");
    assert_eq!(text(sinew::spawn(panics(&count)).join().unwrap_err()), "outer");
    assert_eq!(count.load(SeqCst), 4);
}

#[test]
fn catch_unwind_in_a_fiber_may_span_suspensions() {
    let rt = runtime(1);
    rt.run(|| {
        sinew::scope(|s| {
            for i in 0..100 {
                s.spawn(move || {
                    for round in 0..10 {
                        let payload = catch_unwind(|| {
                            sinew::yield_now();
                            panic_any(i * 10 + round)
                        });
                        sinew::yield_now();
                        assert_eq!(*payload.unwrap_err().downcast::<i32>().unwrap(), i * 10 + round);
                        assert!(!panicking());
                    }
                });
            }
        })
    });
}

// ---- destructors that panic

#[test]
fn a_captured_value_that_panics_in_its_drop_is_the_fibers_panic() {
    let bomb = Bomb("captured");
    let payload = sinew::spawn(move || {
        let _hold = &bomb;
    });
    assert_eq!(text(payload.join().unwrap_err()), "captured");
    // Dropped in the middle, and by a caller that goes on.
    let bomb = Bomb("caught");
    let value = sinew::spawn(move || text(catch_unwind(AssertUnwindSafe(|| drop(bomb))).unwrap_err()));
    assert_eq!(value.join().unwrap(), "caught");
}

#[test]
fn a_second_panic_in_a_drop_while_unwinding_aborts_as_in_a_thread() {
    struct Always;
    impl Drop for Always {
        fn drop(&mut self) {
            panic!("second");
        }
    }
    let ended = in_child(|| {
        let always = Always;
        let _ = sinew::spawn(move || {
            let _always = always;
            panic!("first");
        })
        .join();
    });
    assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{ended:?}");
    assert!(ended.err.contains("first") && ended.err.contains("second"), "{ended:?}");
}

#[test]
fn an_outcome_that_panics_in_its_drop_harms_only_who_drops_it() {
    // The joiner, who has it.
    let outcome = sinew::spawn(|| Bomb("joined")).join().unwrap();
    assert_eq!(text(catch_unwind(AssertUnwindSafe(|| drop(outcome))).unwrap_err()), "joined");
    // The handle, if it is dropped after the end.
    let handle = sinew::spawn(|| Bomb("dropped after the end"));
    poll_until("the end of the fiber", || handle.is_finished());
    assert_eq!(text(catch_unwind(AssertUnwindSafe(|| drop(handle))).unwrap_err()), "dropped after the end");
    // The fiber, if the handle was dropped before: it has ended, nobody else is concerned.
    let rt = runtime(1);
    let gone = Arc::new(AtomicUsize::new(0));
    struct CountsAndPanics(Arc<AtomicUsize>);
    impl Drop for CountsAndPanics {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
            panic_any("detached before the end");
        }
    }
    rt.run(|| {
        for _ in 0..100 {
            let outcome = CountsAndPanics(gone.clone());
            drop(sinew::spawn(move || {
                sinew::yield_now();
                outcome
            }));
        }
        while gone.load(SeqCst) < 100 {
            sinew::yield_now();
        }
        assert!(!panicking());
        assert_eq!(sinew::spawn(|| 3).join().unwrap(), 3);
    });
}

#[test]
fn a_panic_payload_that_panics_in_its_drop_harms_only_who_drops_it() {
    let payload = sinew::spawn(|| panic_any(Bomb("of the payload"))).join().unwrap_err();
    assert_eq!(text(catch_unwind(AssertUnwindSafe(|| drop(payload))).unwrap_err()), "of the payload");
    let handle = sinew::spawn(|| panic_any(Bomb("of the payload")));
    poll_until("the end of the fiber", || handle.is_finished());
    assert_eq!(text(catch_unwind(AssertUnwindSafe(|| drop(handle))).unwrap_err()), "of the payload");
    // Detached: nobody is left to be harmed. The runtime's end waits for all of it.
    let (rt, detached) = (runtime(1), Arc::new(AtomicBool::new(false)));
    let wait = detached.clone();
    drop(rt.spawn(move || {
        poll_until("the drop of the handle", || wait.load(SeqCst));
        panic_any(Bomb("of a lost payload"))
    }));
    detached.store(true, SeqCst);
    assert_eq!(rt.run(|| 1), 1);
}

/// A runtime whose one worker is busy until the runtime is being dropped, so that what is spawned stays unstarted.
fn busy_runtime() -> Runtime {
    let (rt, begun) = (runtime(1), Arc::new(Barrier::new(2)));
    let inside = begun.clone();
    drop(rt.spawn(move || {
        inside.wait();
        // Kept, so that nothing is said of them.
        let mut kept = Vec::new();
        while let Ok(handle) = sinew::Builder::new().spawn(|| ()) {
            kept.push(handle);
            std::thread::sleep(Duration::from_millis(1));
        }
        std::mem::forget(kept);
    }));
    begun.wait();
    rt
}

#[test]
fn an_unstarted_closure_that_panics_in_its_drop_at_shutdown_is_refused_like_any_other() {
    let ended = in_child(|| {
        struct ThrowsBomb;
        impl Drop for ThrowsBomb {
            fn drop(&mut self) {
                panic_any(Bomb("a payload that panics in turn"));
            }
        }
        let rt = busy_runtime();
        let (plain, throws) = (Bomb("in the closure"), ThrowsBomb);
        let handles = [rt.spawn(move || drop(plain)), rt.spawn(move || drop(throws)), rt.spawn(|| ())];
        drop(rt);
        for handle in handles {
            let payload = handle.join().unwrap_err();
            assert!(payload.is::<NeverRan>(), "{payload:?}");
        }
    });
    assert_success(&ended);
}

#[test]
fn a_waker_that_panics_harms_nobody() {
    let ended = in_child(|| {
        struct Throws(AtomicBool);
        impl Wake for Throws {
            fn wake(self: Arc<Self>) {
                self.0.store(true, SeqCst);
                panic_any(Bomb("a payload that panics in turn"));
            }
        }
        let rt = runtime(1);
        let throws = Arc::new(Throws(AtomicBool::new(false)));
        let waker = Waker::from(throws.clone());
        let mut handle = rt.spawn(|| {
            sinew::park();
            7
        });
        assert!(Pin::new(&mut handle).poll(&mut Context::from_waker(&waker)).is_pending());
        handle.fiber().unpark();
        poll_until("the wake", || throws.0.load(SeqCst));
        assert_eq!(handle.join().unwrap(), 7);
        rt.run(|| assert!(!panicking()));
    });
    assert_success(&ended);
}

// ---- waiting while unwinding (DESIGN 8)

/// Parks in its drop, while its fiber unwinds, until told to go on.
struct ParksInDrop {
    unwinding: Arc<AtomicUsize>,
    go_on: Arc<AtomicBool>,
}

impl Drop for ParksInDrop {
    fn drop(&mut self) {
        assert!(panicking());
        self.unwinding.fetch_add(1, SeqCst);
        while !self.go_on.load(SeqCst) {
            sinew::park();
        }
        assert!(panicking(), "its own panic was forgotten while it was suspended");
    }
}

/// A fiber that is suspended in the middle of its unwinding.
struct Unwinder {
    handle: sinew::JoinHandle<()>,
    go_on: Arc<AtomicBool>,
}

impl Unwinder {
    /// Spawns it; in a fiber, on the one worker of its runtime.
    fn suspended(payload: usize) -> Self {
        let (unwinding, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let parks = ParksInDrop { unwinding: unwinding.clone(), go_on: go_on.clone() };
        let handle = sinew::spawn(move || {
            let _parks = parks;
            resume_unwind(Box::new(payload));
        });
        while unwinding.load(SeqCst) == 0 {
            sinew::yield_now();
        }
        Self { handle, go_on }
    }

    fn finish(self) -> usize {
        self.go_on.store(true, SeqCst);
        self.handle.fiber().unpark();
        *self.handle.join().unwrap_err().downcast().unwrap()
    }
}

#[test]
fn other_fibers_of_the_worker_do_everything_while_one_unwinds() {
    in_time(|| {
        runtime(1).run(|| {
            assert!(!panicking());
            let unwinder = Unwinder::suspended(5);
            // The count is the thread's: this innocent fiber sees it too (documented). Nothing of ours minds.
            assert!(panicking());
            assert_eq!(sinew::spawn(|| 1).join().unwrap(), 1);
            sinew::sleep(Duration::from_micros(10));
            sinew::yield_now();
            let mut borrowed = 0;
            sinew::scope(|s| drop(s.spawn(|| borrowed += 1)));
            assert_eq!(borrowed, 1);
            sinew::run(|| borrowed += 1);
            assert_eq!(borrowed, 2);
            let me = sinew::current();
            sinew::spawn(move || me.unpark());
            sinew::park();
            sinew::park_timeout(Duration::from_micros(10));
            // A panic of another fiber meanwhile is no second panic of the first one.
            assert_eq!(text(sinew::spawn(|| panic!("innocent")).join().unwrap_err()), "innocent");
            assert_eq!(text(catch_unwind(|| panic!("caught here")).unwrap_err()), "caught here");
            let panic = catch_unwind(|| sinew::scope(|s| drop(s.spawn(|| panic!("in a scope")))));
            assert_eq!(text(panic.unwrap_err()), "a scoped fiber panicked");
            assert_eq!(unwinder.finish(), 5);
            assert!(!panicking(), "the count of panics did not come back to zero");
        });
    });
}

/// Makes a call in its drop, as often as calls that need not wait let others run many times over.
struct CallsInDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for CallsInDrop<F> {
    fn drop(&mut self) {
        (0..1000).for_each(|_| (self.0)());
    }
}

/// Claim: a fiber that unwinds is not switched away by calls that need not wait, for the sake of others: those would see its panic, by the thread's count.
#[test]
fn calls_that_need_not_wait_switch_nobody_away_who_unwinds() {
    type Call<'a> = (&'static str, Box<dyn FnMut() + Send + 'a>);
    in_time(|| {
        runtime(1).run(|| {
            let (near, _far) = sinew::net::unix::UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            // It ends with its input, and so with this process.
            let mut child = sinew::process::Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let input = child.stdin.take();
            let signals = sinew::signal::Signals::new([sinew::signal::Signal::USR2]).unwrap();
            let mut calls: [Call<'_>; 3] = [
                ("a socket's read", Box::new(move || drop((&near).read(&mut [0; 4]).unwrap_err()))),
                ("a child's", Box::new(|| assert!(child.try_wait().unwrap().is_none()))),
                ("a signal's", Box::new(|| assert!(signals.try_wait().is_none()))),
            ];
            for (name, call) in &mut calls {
                let (done, mut seen) = (AtomicBool::new(false), false);
                sinew::scope(|s| {
                    s.spawn(|| {
                        while !done.load(SeqCst) {
                            seen |= panicking();
                            sinew::yield_now();
                        }
                    });
                    let unwinds = s.spawn(|| {
                        let _calls = CallsInDrop(call);
                        // The other has begun.
                        sinew::yield_now();
                        resume_unwind(Box::new(()));
                    });
                    assert!(unwinds.join().is_err());
                    done.store(true, SeqCst);
                });
                assert!(!seen, "{name}");
            }
            drop(calls);
            drop(input);
            assert!(child.wait().unwrap().success());
        });
    });
}

#[test]
fn many_fibers_unwind_at_once_and_end_in_any_order() {
    in_time(|| {
        runtime(1).run(|| {
            let mut unwinders: Vec<_> = (0..60).map(|i| (i, Unwinder::suspended(i))).collect();
            let mut at = 7;
            while !unwinders.is_empty() {
                at = (at * 31 + 11) % unwinders.len();
                assert!(panicking());
                let (i, unwinder) = unwinders.swap_remove(at);
                assert_eq!(unwinder.finish(), i, "the payload of another fiber");
            }
            assert!(!panicking(), "the count of panics did not come back to zero");
        });
    });
}

#[test]
fn a_fiber_unwinds_while_others_of_its_worker_panic_by_the_hundred() {
    in_time(|| {
        runtime(1).run(|| {
            let unwinder = Unwinder::suspended(1);
            let handles: Vec<_> = (0..300usize)
                .map(|i| {
                    sinew::spawn(move || {
                        sinew::yield_now();
                        resume_unwind(Box::new(i))
                    })
                })
                .collect();
            for (i, handle) in handles.into_iter().enumerate() {
                let outcome: std::thread::Result<()> = handle.join();
                assert_eq!(*outcome.unwrap_err().downcast::<usize>().unwrap(), i);
            }
            assert_eq!(unwinder.finish(), 1);
            assert!(!panicking());
        });
    });
}

#[test]
fn a_std_mutex_that_an_innocent_fiber_takes_and_gives_back_meanwhile_is_not_poisoned() {
    in_time(|| {
        runtime(1).run(|| {
            let mutex = Arc::new(Mutex::new(0));
            let unwinder = Unwinder::suspended(2);
            let inside = mutex.clone();
            sinew::spawn(move || *inside.lock().unwrap() += 1).join().unwrap();
            *mutex.lock().unwrap() += 1;
            assert!(!mutex.is_poisoned());
            assert_eq!(unwinder.finish(), 2);
            assert_eq!(*mutex.lock().unwrap(), 2);
            // One that the panicking fiber itself held is, as ever.
            let inside = mutex.clone();
            let panics = sinew::spawn(move || {
                let _guard = inside.lock().unwrap();
                resume_unwind(Box::new(0));
            });
            panics.join().unwrap_err();
            assert!(mutex.is_poisoned());
        });
    });
}

#[test]
fn a_fiber_that_unwinds_is_woken_by_threads_timers_and_other_workers() {
    struct WaitsInEveryWay(std::thread::ThreadId);
    impl Drop for WaitsInEveryWay {
        fn drop(&mut self) {
            for round in 0..20 {
                let me = sinew::current();
                let waker = std::thread::spawn(move || me.unpark());
                sinew::park();
                waker.join().unwrap();
                sinew::sleep(Duration::from_micros(round));
                sinew::park_timeout(Duration::from_micros(round));
                sinew::spawn(sinew::yield_now).join().unwrap();
                assert!(panicking());
                assert_eq!(std::thread::current().id(), self.0);
            }
        }
    }
    in_time(|| {
        for workers in [1, 2, 4, 8] {
            runtime(workers).run(|| {
                let handles: Vec<_> = (0..16usize)
                    .map(|i| {
                        sinew::spawn(move || {
                            let _waits = WaitsInEveryWay(std::thread::current().id());
                            resume_unwind(Box::new(i));
                        })
                    })
                    .collect();
                for (i, handle) in handles.into_iter().enumerate() {
                    assert_eq!(*handle.join().unwrap_err().downcast::<usize>().unwrap(), i);
                }
            });
        }
    });
}

// ---- scopes

#[test]
fn a_scope_waits_for_all_its_fibers_although_many_of_them_panic() {
    let ended = AtomicUsize::new(0);
    struct Counts<'a>(&'a AtomicUsize);
    impl Drop for Counts<'_> {
        fn drop(&mut self) {
            sinew::yield_now();
            self.0.fetch_add(1, SeqCst);
        }
    }
    let panic = catch_unwind(AssertUnwindSafe(|| {
        sinew::scope(|s| {
            for i in 0..200 {
                let counts = Counts(&ended);
                s.spawn(move || {
                    let _counts = counts;
                    (0..i % 5).for_each(|_| sinew::yield_now());
                    if i % 3 == 0 {
                        resume_unwind(Box::new(i));
                    }
                });
            }
        })
    }));
    assert_eq!(text(panic.unwrap_err()), "a scoped fiber panicked");
    assert_eq!(ended.load(SeqCst), 200);
}

#[test]
fn a_scope_is_content_if_every_panic_was_joined_by_whomever() {
    let value = sinew::scope(|s| {
        // By the body, by a sibling, by a plain thread.
        assert!(s.spawn(|| resume_unwind(Box::new(1))).join().is_err());
        let first = s.spawn(|| resume_unwind(Box::new(2)));
        let sibling = s.spawn(move || first.join().is_err());
        let second = s.spawn(|| resume_unwind(Box::new(3)));
        std::thread::scope(|t| assert!(t.spawn(move || second.join().is_err()).join().unwrap()));
        sibling.join().unwrap()
    });
    assert!(value);
}

#[test]
fn panics_travel_out_of_nested_scopes_one_by_one() {
    let ended = AtomicUsize::new(0);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        sinew::scope(|outer| {
            let child = outer.spawn(|| {
                sinew::scope(|inner| {
                    inner.spawn(|| {
                        sinew::scope(|innermost| {
                            innermost.spawn(|| resume_unwind(Box::new("deep")));
                            innermost.spawn(|| ended.fetch_add(1, SeqCst));
                        });
                    });
                    // A child of the outer scope, spawned from the inner one.
                    outer.spawn(|| ended.fetch_add(1, SeqCst));
                    inner.spawn(|| ended.fetch_add(1, SeqCst));
                });
            });
            assert_eq!(text(child.join().unwrap_err()), "a scoped fiber panicked");
            outer.spawn(|| ended.fetch_add(1, SeqCst));
            "content"
        })
    }));
    assert_eq!(outcome.unwrap(), "content");
    assert_eq!(ended.load(SeqCst), 4);
}

#[test]
fn the_panic_of_a_scopes_body_wins_over_those_of_its_fibers() {
    for _ in 0..100 {
        let ended = AtomicUsize::new(0);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            sinew::scope(|s| {
                s.spawn(|| resume_unwind(Box::new("of a child")));
                s.spawn(|| {
                    sinew::yield_now();
                    ended.fetch_add(1, SeqCst);
                });
                resume_unwind(Box::new("of the body"));
            })
        }));
        assert_eq!(text(panic.unwrap_err()), "of the body");
        assert_eq!(ended.load(SeqCst), 1);
    }
}

#[test]
fn a_scope_in_a_drop_while_unwinding_collects_panics_too() {
    struct Scopes<'a>(&'a AtomicUsize);
    impl Drop for Scopes<'_> {
        fn drop(&mut self) {
            let panic = catch_unwind(AssertUnwindSafe(|| {
                sinew::scope(|s| {
                    s.spawn(|| resume_unwind(Box::new("child")));
                    s.spawn(|| self.0.fetch_add(1, SeqCst));
                })
            }));
            assert_eq!(text(panic.unwrap_err()), "a scoped fiber panicked");
        }
    }
    in_time(|| {
        for workers in [1, 3] {
            let ended = AtomicUsize::new(0);
            let panic = runtime(workers).run(|| {
                sinew::scope(|s| {
                    let ended = &ended;
                    let handle = s.spawn(move || {
                        let _scopes = Scopes(ended);
                        resume_unwind(Box::new("outer"));
                    });
                    handle.join()
                })
            });
            assert_eq!(text(panic.unwrap_err()), "outer");
            assert_eq!(ended.load(SeqCst), 1);
        }
    });
}

// ---- what is said of panics that nobody will see

#[test]
fn a_panic_whose_handle_was_dropped_is_reported_with_name_and_site() {
    let ended = in_child(|| {
        let (rt, detached, started) = (runtime(2), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (wait, begun) = (detached.clone(), started.clone());
        rt.run(|| {
            eprintln!("site={}:{}", file!(), line!() + 1);
            let handle = sinew::Builder::new().name("early bird").spawn(move || {
                begun.store(true, SeqCst);
                while !wait.load(SeqCst) {
                    sinew::yield_now();
                }
                panic!("alone");
            });
            drop(handle.unwrap());
        });
        // Unstarted it would be dropped unrun.
        poll_until("the fiber to begin", || started.load(SeqCst));
        detached.store(true, SeqCst);
        // The runtime's end waits for the fiber and its report.
        drop(rt);
    });
    assert_success(&ended);
    let site = ended.err.lines().find_map(|line| line.strip_prefix("site=")).unwrap();
    let report: Vec<_> = ended.err.lines().filter(|line| line.starts_with("sinew:")).collect();
    assert_eq!(report.len(), 1, "{ended:?}");
    assert!(report[0].contains("'early bird'") && report[0].contains(site), "{ended:?}");
    assert!(ended.err.contains("alone"), "the panic hook was not asked: {ended:?}");
}

#[test]
fn a_panic_whose_handle_is_dropped_after_the_end_is_reported_too() {
    let ended = in_child(|| {
        let handle = sinew::Builder::new().name("late bird").spawn(|| panic!("unseen")).unwrap();
        poll_until("the end of the fiber", || handle.is_finished());
        drop(handle);
    });
    assert_success(&ended);
    let report: Vec<_> = ended.err.lines().filter(|line| line.starts_with("sinew:")).collect();
    assert_eq!(report.len(), 1, "{ended:?}");
    assert!(report[0].contains("'late bird'") && report[0].contains(file!()), "{ended:?}");
}

#[test]
fn panics_that_somebody_took_and_fibers_that_did_not_panic_are_not_reported() {
    let ended = in_child(|| {
        sinew::spawn(|| panic!("joined")).join().unwrap_err();
        catch_unwind(|| sinew::run(|| panic!("run"))).unwrap_err();
        assert!(sinew::scope(|s| s.spawn(|| panic!("scoped")).join()).is_err());
        drop(sinew::spawn(|| ()));
        let handle = sinew::spawn(|| 1);
        poll_until("the end of the fiber", || handle.is_finished());
        drop(handle);
    });
    assert_success(&ended);
    assert!(!ended.err.contains("sinew: "), "{ended:?}");
}

#[test]
fn a_lost_panic_does_not_end_a_process_whose_stderr_is_gone() {
    let mut child = start_child(|| {
        let mut byte = [0];
        std::io::stdin().read_exact(&mut byte).unwrap();
        let (rt, detached) = (runtime(1), Arc::new(AtomicBool::new(false)));
        let wait = detached.clone();
        let begun = Arc::new(AtomicBool::new(false));
        let inside = begun.clone();
        drop(rt.spawn(move || {
            inside.store(true, SeqCst);
            poll_until("the handle's drop", || wait.load(SeqCst));
            panic!("into the void");
        }));
        // Unstarted it would be dropped unrun.
        poll_until("the fiber to begin", || begun.load(SeqCst));
        detached.store(true, SeqCst);
        // The runtime's end waits for the fiber and its report.
        drop(rt);
    });
    drop(child.stderr.take());
    child.stdin.take().unwrap().write_all(b"!").unwrap();
    let ended = finish_child(child);
    assert!(ended.status.success(), "a report that could not be written ended the process: {}", ended.status);
}

// ---- endurance

/// Bytes of this process that are in memory.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_million_panicking_fibers_leave_everything_usable_and_memory_flat() {
    // A tenth of that in debug builds. In a child, whose hook is silent.
    let ended = in_child(|| {
        std::panic::set_hook(Box::new(|_| {}));
        let rt = runtime(2);
        let batches = rounds(100, 1_000);
        let mut early = 0;
        for batch in 0..batches {
            if batch == batches / 10 {
                early = resident_bytes();
            }
            rt.run(|| {
                let handles: Vec<_> = (0..1_000usize)
                    .map(|i| {
                        sinew::spawn(move || {
                            if i % 10 == 0 {
                                sinew::yield_now();
                            }
                            panic_any(i)
                        })
                    })
                    .collect();
                for (i, handle) in handles.into_iter().enumerate() {
                    let outcome: std::thread::Result<()> = handle.join();
                    assert_eq!(*outcome.unwrap_err().downcast::<usize>().unwrap(), i);
                }
            });
        }
        let grown = resident_bytes().saturating_sub(early);
        assert!(grown < 8 << 20, "memory grew by {grown} bytes");
        rt.run(|| {
            assert!(!panicking());
            sinew::sleep(Duration::from_micros(100));
            sinew::scope(|s| (0..100).for_each(|_| drop(s.spawn(|| assert!(!panicking())))));
        });
        drop(rt);
    });
    assert_success(&ended);
}

// ---- `run` and `scope` end after their fibers, whatever happens

#[test]
fn run_does_not_come_back_before_its_fiber_ended_even_when_blocks_run_out() {
    // A plain thread that never waited before has no control block. If the fiber of its `run` takes the last one, the thread must
    // not give up waiting: the fiber borrows from it.
    let ended = in_child(|| {
        sinew::run(|| ());
        // More than a worker keeps for itself.
        sinew::hidden::limit_blocks(2_000);
        let mut parked = Vec::new();
        while let Ok(handle) = sinew::Builder::new().stack_size(16 * 1024).spawn(sinew::park) {
            parked.push(handle);
        }
        let mut tried = 0;
        for handle in parked {
            // Frees one block, for us or for the worker.
            handle.fiber().unpark();
            handle.join().unwrap();
            let (gate, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let (wait, said) = (gate.clone(), ran.clone());
            let fiber = move || {
                poll_until("the gate", || wait.load(SeqCst));
                said.store(true, SeqCst);
            };
            let early = std::thread::scope(|s| {
                let runner = s.spawn(|| catch_unwind(AssertUnwindSafe(|| sinew::run(fiber))));
                let end = Instant::now() + Duration::from_millis(20);
                while !runner.is_finished() && Instant::now() < end {
                    std::thread::yield_now();
                }
                let early = runner.is_finished();
                gate.store(true, SeqCst);
                let refused = runner.join().unwrap().is_err();
                // Refused at once is right if the fiber was never made, as the next lines find out.
                early && refused
            });
            if early {
                let until = Instant::now() + Duration::from_millis(20);
                while Instant::now() < until {
                    assert!(!ran.load(SeqCst), "run came back while its fiber was alive");
                }
            }
            tried += 1;
            if tried == 50 {
                break;
            }
        }
        std::process::exit(0);
    });
    assert_success(&ended);
}

#[test]
fn a_panic_that_a_scope_tells_of_is_not_reported_as_lost() {
    let ended = in_child(|| {
        let panic = catch_unwind(|| sinew::scope(|s| drop(s.spawn(|| panic!("unjoined")))));
        assert_eq!(text(panic.unwrap_err()), "a scoped fiber panicked");
    });
    assert_success(&ended);
    assert!(!ended.err.contains("sinew: "), "{ended:?}");
}
