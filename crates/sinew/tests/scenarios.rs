//! Own versions of what flare's and bthread's tests check of this layer, and of what bit their users (`research/flare-bthread.md` 3, 4).
//!
//! What must not be mixed with other tests of this process is tried in a child: this test binary again, with one test selected.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::collections::HashSet;
use std::future::Future;
use std::hint::{black_box, spin_loop};
use std::os::unix::thread::JoinHandleExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use sinew::{Builder, JoinHandle, NeverRan, Runtime};

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
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
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

/// Xorshift: the same numbers in every run.
struct Random(u64);

impl Random {
    fn new(seed: usize) -> Self {
        Self((seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % limit
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        (1..items.len()).for_each(|i| items.swap(i, self.below(i + 1)));
    }
}

const CHILD: &str = "SINEW_TEST_CHILD";

/// Runs `body` in a child process, in which it does not return; asserts that the child ends with `code`.
fn in_child<F: FnOnce()>(code: i32, body: F) {
    if std::env::var_os(CHILD).is_some() {
        body();
        std::process::exit(0);
    }
    // `scenarios::name_of_the_test::{{closure}}`
    let test = std::any::type_name::<F>().split("::").nth(1).expect("a closure in a test function");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, "1").env("RUST_BACKTRACE", "0");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || std::io::read_to_string(&mut pipe).unwrap());
    let end = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > end => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("the child did not end: {}", reader.join().unwrap());
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    assert_eq!(status.code(), Some(code), "the child ended with {status}: {}", reader.join().unwrap());
}

// ---- starting and joining

#[test]
fn a_hundred_thousand_small_fibers_get_unique_ids() {
    let rt = runtime(2);
    let (ids, inside): (HashSet<_>, HashSet<_>) = rt.run(|| {
        let handles: Vec<_> = (0..100_000).map(|_| sinew::spawn(|| sinew::current().id())).collect();
        let ids = handles.iter().map(|h| h.fiber().id()).collect();
        (ids, handles.into_iter().map(|h| h.join().unwrap()).collect())
    });
    assert_eq!(ids.len(), 100_000);
    assert_eq!(ids, inside, "a fiber has another id inside than outside");
}

#[test]
fn fibers_are_joined_in_any_order_by_a_thread_and_by_a_fiber() {
    fn round(rt: &Runtime, seed: usize) {
        let mut handles: Vec<_> = (0..1024usize)
            .map(|i| {
                rt.spawn(move || {
                    if i % 3 == 0 {
                        sinew::yield_now();
                    }
                    i
                })
            })
            .enumerate()
            .collect();
        Random::new(seed).shuffle(&mut handles);
        handles.into_iter().for_each(|(i, handle)| assert_eq!(handle.join().unwrap(), i));
    }
    in_time(|| {
        for workers in [1, 2, 4] {
            let rt = runtime(workers);
            (0..17).for_each(|seed| round(&rt, seed));
            rt.run(|| (17..34).for_each(|seed| round(&rt, seed)));
        }
    });
}

#[test]
fn every_kind_of_caller_joins_before_while_and_after_a_fiber_runs() {
    in_time(|| {
        let (rt, other) = (Arc::new(runtime(2)), Arc::new(runtime(1)));
        let make = {
            let rt = rt.clone();
            move |stage: usize| -> JoinHandle<usize> {
                let (gate, begun) = (Arc::new(AtomicBool::new(stage == 0)), Arc::new(AtomicBool::new(false)));
                let (wait, say) = (gate.clone(), begun.clone());
                let handle = rt.spawn(move || {
                    say.store(true, SeqCst);
                    while !wait.load(SeqCst) {
                        sinew::yield_now();
                    }
                    stage
                });
                match stage {
                    0 => {}
                    1 => {
                        poll_until("the fiber's start", || begun.load(SeqCst));
                        // Opened by another fiber, while the caller joins.
                        rt.spawn(move || gate.store(true, SeqCst));
                    }
                    _ => {
                        gate.store(true, SeqCst);
                        poll_until("the fiber's end", || handle.is_finished());
                    }
                }
                handle
            }
        };
        for round in 0..60 {
            let (stage, handle) = (round % 3, make(round % 3));
            let value = match round % 5 {
                0 => handle.join(),
                1 => std::thread::spawn(move || handle.join()).join().unwrap(),
                2 => rt.run(move || handle.join()),
                3 => other.run(move || handle.join()),
                _ => rt.run(move || other_worker_joins(handle)),
            };
            assert_eq!(value.unwrap(), stage);
        }
    });

    fn other_worker_joins(handle: JoinHandle<usize>) -> std::thread::Result<usize> {
        sinew::spawn(move || handle.join()).join().unwrap()
    }
}

#[test]
fn many_plain_threads_start_fibers_at_once() {
    in_time(|| {
        let rt = runtime(3);
        let begin = Barrier::new(16);
        let sum = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for thread in 0..16usize {
                let (rt, begin, sum) = (&rt, &begin, &sum);
                s.spawn(move || {
                    begin.wait();
                    // Half of them into the default runtime, which the first of them starts.
                    let spawn = |i: usize| if thread % 2 == 0 { rt.spawn(move || i) } else { sinew::spawn(move || i) };
                    let handles: Vec<_> = (0..1_000).map(spawn).collect();
                    sum.fetch_add(handles.into_iter().map(|h| h.join().unwrap()).sum(), SeqCst);
                });
            }
        });
        assert_eq!(sum.load(SeqCst), 16 * 499_500);
    });
}

#[test]
fn a_tree_of_a_hundred_thousand_leaves_sums_up() {
    fn skynet(first: usize, leaves: usize) -> usize {
        if leaves == 1 {
            return first;
        }
        let part = leaves / 10;
        let children: Vec<_> = (0..10).map(|i| sinew::spawn(move || skynet(first + i * part, part))).collect();
        children.into_iter().map(|c| c.join().unwrap()).sum()
    }
    in_time(|| {
        for workers in [1, 2, 4] {
            assert_eq!(runtime(workers).run(|| skynet(0, 100_000)), 100_000 * 99_999 / 2, "{workers} workers");
        }
    });
}

#[test]
fn a_chain_in_which_each_fiber_starts_the_next_and_ends() {
    fn link(left: usize, end: Arc<AtomicBool>) {
        match left {
            0 => end.store(true, SeqCst),
            _ => drop(sinew::spawn(move || link(left - 1, end))),
        }
    }
    in_time(|| {
        for workers in [1, 2] {
            let (rt, end) = (runtime(workers), Arc::new(AtomicBool::new(false)));
            let last = end.clone();
            rt.run(move || link(100_000, last));
            poll_until("the last link", || end.load(SeqCst));
        }
    });
}

#[test]
fn more_children_than_any_queue_holds_all_run() {
    // Nobody suspends while spawning, on any worker: so nobody can make room for the others.
    in_time(|| {
        let ran = Arc::new(AtomicUsize::new(0));
        for workers in [1, 2, 8] {
            ran.store(0, SeqCst);
            runtime(workers).run(|| {
                sinew::scope(|s| {
                    for _ in 0..16 {
                        s.spawn(|| {
                            for _ in 0..1_500 {
                                let ran = ran.clone();
                                s.spawn(move || ran.fetch_add(1, SeqCst));
                            }
                        });
                    }
                })
            });
            assert_eq!(ran.load(SeqCst), 16 * 1_500);
        }
    });
}

#[test]
fn what_a_fiber_wrote_is_seen_after_its_join() {
    in_time(|| {
        let rt = runtime(4);
        for round in 0..rounds(3_000, 30_000) as u64 {
            let mut words = [0u64; 16];
            sinew::scope(|_| {
                rt.run(|| words.iter_mut().enumerate().for_each(|(i, word)| *word = round + i as u64));
            });
            assert!(words.iter().enumerate().all(|(i, &word)| word == round + i as u64));
        }
    });
}

#[test]
fn a_thread_that_ends_right_after_its_join_is_not_touched_any_more() {
    // The thread's place to wait is used again by the next thread at once; a late wake must not end that one's wait.
    in_time(|| {
        let rt = runtime(2);
        for _ in 0..rounds(150, 1_500) {
            std::thread::scope(|s| {
                for _ in 0..8 {
                    s.spawn(|| {
                        assert_eq!(rt.spawn(|| 1).join().unwrap(), 1);
                        let begun = Instant::now();
                        sinew::park_timeout(Duration::from_micros(50));
                        assert!(begun.elapsed() >= Duration::from_micros(50), "a wake for somebody else ended this park");
                    });
                }
            });
        }
    });
}

#[test]
fn destructors_of_a_fiber_may_wait() {
    struct Waits(Arc<AtomicUsize>);
    impl Drop for Waits {
        fn drop(&mut self) {
            sinew::sleep(Duration::from_micros(50));
            sinew::spawn(sinew::yield_now).join().unwrap();
            self.0.fetch_add(1, SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let rt = runtime(2);
    rt.run(|| {
        let handles: Vec<_> = (0..100)
            .map(|_| {
                let (captured, outcome) = (Waits(dropped.clone()), Waits(dropped.clone()));
                sinew::spawn(move || {
                    let _captured = captured;
                    outcome
                })
            })
            .collect();
        // Half are joined, half detached: then the fiber itself drops its outcome, or the handle does.
        handles.into_iter().enumerate().for_each(|(i, h)| {
            if i % 2 == 0 {
                drop(h.join().unwrap())
            }
        });
    });
    poll_until("the last drop", || dropped.load(SeqCst) == 200);
}

// ---- sizes

/// A value of `N` bytes that knows whether it was dropped once.
struct Sized<const N: usize>([u8; N], Arc<AtomicUsize>);

#[repr(align(128))]
struct Aligned<const N: usize>([u8; N], Arc<AtomicUsize>);

/// No bytes at all.
struct Empty;
static EMPTY_DROPS: AtomicUsize = AtomicUsize::new(0);

impl Drop for Empty {
    fn drop(&mut self) {
        EMPTY_DROPS.fetch_add(1, SeqCst);
    }
}

trait Value: Send + 'static {
    fn make(drops: &Arc<AtomicUsize>) -> Self;
    fn is_whole(&self) -> bool;
}

fn is_aligned<T>(value: &T) -> bool {
    (black_box(value as *const T) as usize).is_multiple_of(align_of::<T>())
}

macro_rules! value {
    ($($kind:ident),*) => {$(
        impl<const N: usize> Value for $kind<N> {
            fn make(drops: &Arc<AtomicUsize>) -> Self {
                Self(std::array::from_fn(|i| i as u8 ^ 0x5a), drops.clone())
            }
            fn is_whole(&self) -> bool {
                is_aligned(self) && black_box(&self.0).iter().enumerate().all(|(i, &byte)| byte == i as u8 ^ 0x5a)
            }
        }
        impl<const N: usize> Drop for $kind<N> {
            fn drop(&mut self) {
                assert!(self.is_whole(), "dropped broken");
                self.1.fetch_add(1, SeqCst);
            }
        }
    )*};
}
value!(Sized, Aligned);

/// Sends a `C` in and gets an `R` out in every way; each must be whole, and dropped exactly once.
fn carry<C: Value, R: Value>(rt: &Runtime) {
    let (drops, mut made) = (Arc::new(AtomicUsize::new(0)), 0);
    let mut closure = |drops: &Arc<AtomicUsize>| {
        made += 2;
        let (captured, outcome) = (C::make(drops), R::make(drops));
        move || {
            assert!(captured.is_whole() && outcome.is_whole());
            let captured = captured;
            sinew::yield_now();
            assert!(captured.is_whole());
            outcome
        }
    };
    assert!(rt.spawn(closure(&drops)).join().unwrap().is_whole());
    assert!(rt.run(closure(&drops)).is_whole());
    rt.run(|| assert!(sinew::scope(|s| s.spawn(closure(&drops)).join().unwrap().is_whole())));
    let mut handle = rt.spawn(closure(&drops));
    poll_until("the fiber's end", || handle.is_finished());
    match Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => assert!(outcome.unwrap().is_whole()),
        Poll::Pending => panic!("pending after the end"),
    }
    drop(handle);
    drop(rt.spawn(closure(&drops)));
    let handle = rt.spawn(closure(&drops));
    poll_until("the fiber's end", || handle.is_finished());
    drop(handle);
    poll_until("every drop", || drops.load(SeqCst) >= made);
    assert_eq!(drops.load(SeqCst), made, "dropped more than once");
}

#[test]
fn closures_and_results_of_all_sizes_arrive_whole_and_are_dropped_once() {
    // An `Arc` is 8 bytes; so these are 8, 64, 65 and more, 4096; the limit for a place in the block is 64.
    let rt = runtime(2);
    carry::<Sized<0>, Sized<0>>(&rt);
    carry::<Sized<56>, Sized<56>>(&rt);
    carry::<Sized<57>, Sized<57>>(&rt);
    carry::<Sized<4088>, Sized<0>>(&rt);
    carry::<Sized<0>, Sized<4088>>(&rt);
    carry::<Aligned<0>, Sized<56>>(&rt);
    carry::<Sized<57>, Aligned<1>>(&rt);
    carry::<Aligned<300>, Aligned<4000>>(&rt);
}

#[test]
fn closures_and_results_of_no_size_and_of_the_very_limit_work() {
    let rt = runtime(1);
    for _ in 0..100 {
        rt.spawn(|| ()).join().unwrap();
        assert!(is_aligned(&rt.spawn(|| Empty).join().unwrap()));
        drop(rt.spawn(|| Empty));
        let (exactly, above) = ([7u8; 64], [8u8; 65]);
        assert_eq!(rt.spawn(move || exactly.map(|b| b + 1)).join().unwrap(), [8; 64]);
        assert_eq!(rt.spawn(move || above.map(|b| b + 1)).join().unwrap(), [9; 65]);
        assert_eq!(rt.spawn(|| [1u8; 4096]).join().unwrap(), [1; 4096]);
        let large = [2u8; 4096];
        assert_eq!(rt.spawn(move || large.iter().map(|&b| b as usize).sum::<usize>()).join().unwrap(), 8192);
    }
    drop(rt);
    assert_eq!(EMPTY_DROPS.load(SeqCst), 200);
}

// ---- waking and sleeping

#[test]
fn an_unpark_before_at_and_after_the_park_is_never_lost() {
    in_time(|| {
        let rt = runtime(2);
        for round in 0..rounds(3_000, 30_000) {
            let parks = rt.spawn(sinew::park);
            // Before its first run, around it, and well after it.
            (0..round % 300).for_each(|_| spin_loop());
            if round % 50 == 0 {
                std::thread::yield_now();
            }
            parks.fiber().unpark();
            parks.join().unwrap();
        }
    });
}

#[test]
fn an_unpark_does_not_shorten_a_sleep_nor_a_join_and_is_kept_for_the_next_park() {
    in_time(|| {
        let rt = runtime(2);
        let asleep = Arc::new(AtomicBool::new(false));
        let say = asleep.clone();
        let sleeper = rt.spawn(move || {
            let begun = Instant::now();
            say.store(true, SeqCst);
            sinew::sleep(Duration::from_millis(30));
            assert!(begun.elapsed() >= Duration::from_millis(30), "an unpark shortened a sleep");
            sinew::park();
            let gate = sinew::current();
            let child = sinew::spawn(move || {
                (0..100).for_each(|_| gate.unpark());
                sinew::sleep(Duration::from_millis(5));
                7
            });
            assert_eq!(child.join().unwrap(), 7, "an unpark shortened a join");
            sinew::park();
        });
        poll_until("the sleep", || asleep.load(SeqCst));
        for _ in 0..20 {
            sleeper.fiber().unpark();
            std::thread::sleep(Duration::from_millis(1));
        }
        sleeper.join().unwrap();
    });
}

#[test]
fn thirty_thousand_sleeps_all_end_and_none_too_early() {
    in_time(|| {
        let rt = runtime(2);
        rt.run(|| {
            sinew::scope(|s| {
                for i in 0..30_000 {
                    s.spawn(move || {
                        let length = Duration::from_micros(Random::new(i).below(200_000) as u64);
                        let begun = Instant::now();
                        if i % 2 == 0 {
                            sinew::sleep(length)
                        } else {
                            sinew::park_timeout(length)
                        }
                        assert!(begun.elapsed() >= length, "slept for {:?} of {length:?}", begun.elapsed());
                    });
                }
            })
        });
    });
}

#[test]
fn a_short_sleep_that_begins_after_a_long_one_ends_first() {
    in_time(|| {
        runtime(1).run(|| {
            let long = [Duration::from_secs(1), Duration::from_secs(3600), Duration::from_secs(1 << 40), Duration::MAX]
                .map(|length| sinew::spawn(move || sinew::park_timeout(length)));
            sinew::yield_now();
            for micros in [5_000, 500, 50, 5, 0] {
                sinew::spawn(move || sinew::sleep(Duration::from_micros(micros))).join().unwrap();
            }
            sinew::sleep_until(Instant::now());
            sinew::sleep_until(Instant::now() + Duration::from_micros(100));
            assert!(long[1..].iter().all(|h| !h.is_finished()));
            long.iter().for_each(|h| h.fiber().unpark());
            long.into_iter().for_each(|h| h.join().unwrap());
        });
    });
}

#[test]
fn a_time_out_that_is_not_needed_costs_nothing_afterwards() {
    // A hundred thousand deadlines in an hour, each cancelled by an unpark: nothing is left of them.
    in_child(0, || {
        let rt = runtime(1);
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        rt.run(|| {
            let mut before = 0;
            for round in 0..rounds(100_000, 1_000_000) {
                if round == 1_000 {
                    before = resident();
                }
                let me = sinew::current();
                let waker = sinew::spawn(move || me.unpark());
                sinew::park_timeout(Duration::from_secs(3600));
                drop(waker);
            }
            let grown = resident().saturating_sub(before);
            assert!(grown < 1 << 20, "grown by {grown} bytes");
        });
    });
}

#[test]
fn an_unpark_at_the_moment_of_the_time_out_ends_the_park_of_a_plain_thread_once() {
    // The plain thread's side of what `laws.rs` checks for fibers: it sleeps on a futex, not in a worker's wheel.
    in_time(|| {
        let rt = runtime(1);
        let done = Arc::new(AtomicUsize::new(0));
        let (sleeper, rounds) = (sinew::current(), rounds(20_000, 60_000));
        let waker = rt.spawn({
            let done = done.clone();
            move || {
                let mut random = Random::new(5);
                for round in 1..=rounds {
                    sinew::park();
                    (0..random.below(2_000)).for_each(|_| spin_loop());
                    sleeper.unpark();
                    done.store(round, SeqCst);
                }
            }
        });
        let mut random = Random::new(6);
        for round in 1..=rounds {
            waker.fiber().unpark();
            sinew::park_timeout(Duration::from_micros(random.below(30) as u64));
            poll_until("the unpark", || done.load(SeqCst) == round);
            // It ended the wait, or left a token, which this uses up. Nothing may be left after it.
            sinew::park_timeout(Duration::ZERO);
            if round % 16 == 0 {
                let begun = Instant::now();
                sinew::park_timeout(Duration::from_micros(5));
                assert!(begun.elapsed() >= Duration::from_micros(5), "an unpark ended two parks");
            }
        }
        waker.join().unwrap();
    });
}

#[test]
fn two_fibers_wake_each_other_on_any_workers() {
    in_time(|| {
        for workers in [1, 2, 4] {
            let rt = runtime(workers);
            let turns = rounds(10_000, 100_000);
            let pong = rt.spawn(move || {
                sinew::park();
                let ping: sinew::Fiber = PING.lock().unwrap().take().unwrap();
                for _ in 0..turns {
                    ping.unpark();
                    sinew::park();
                }
                ping.unpark();
            });
            let other = pong.fiber().clone();
            rt.run(move || {
                *PING.lock().unwrap() = Some(sinew::current());
                for _ in 0..=turns {
                    other.unpark();
                    sinew::park();
                }
            });
            pong.join().unwrap();
        }
    });
    static PING: Mutex<Option<sinew::Fiber>> = Mutex::new(None);
}

#[test]
fn one_fiber_pushed_to_an_idle_runtime_always_finds_a_worker() {
    // The sleep/push race: at each push all workers are asleep or just lying down.
    in_time(|| {
        for workers in [1, 2, 8] {
            let rt = runtime(workers);
            for round in 0..rounds(8_000, 40_000) {
                (0..round % 700).for_each(|_| spin_loop());
                assert_eq!(rt.spawn(move || round).join().unwrap(), round);
            }
        }
    });
}

#[test]
fn as_many_fibers_as_workers_run_at_the_same_time() {
    // Each blocks its thread until all are there: every single worker must have been woken.
    in_time(|| {
        for workers in [2, 3, 8, 31, 32, 33, 63, 64] {
            let rt = runtime(workers);
            for _ in 0..3 {
                let all = Arc::new(Barrier::new(workers));
                let wait = |all: &Arc<Barrier>| {
                    let all = all.clone();
                    move || {
                        all.wait();
                    }
                };
                // Started from outside, one by one.
                let handles: Vec<_> = (0..workers).map(|_| rt.spawn(wait(&all))).collect();
                handles.into_iter().for_each(|h| h.join().unwrap());
                // Started by a fiber, which takes part without having suspended.
                rt.run(|| {
                    let handles: Vec<_> = (1..workers).map(|_| sinew::spawn(wait(&all))).collect();
                    all.wait();
                    handles.into_iter().for_each(|h| h.join().unwrap());
                });
            }
        }
    });
}

#[test]
fn yield_storms_starve_neither_timers_nor_unstarted_fibers_nor_wakes_from_outside() {
    in_time(|| {
        for workers in [1, 2, 4] {
            let rt = runtime(workers);
            let calm = Arc::new(AtomicBool::new(false));
            let storm: Vec<_> = (0..2 * workers)
                .map(|_| {
                    let calm = calm.clone();
                    rt.spawn(move || {
                        while !calm.load(SeqCst) {
                            sinew::yield_now();
                        }
                    })
                })
                .collect();
            // A sleeper, a parent of new fibers, one that plain threads wake, and fibers started from outside all get on.
            let sleeper = rt.spawn(|| (0..50).for_each(|_| sinew::sleep(Duration::from_millis(1))));
            let parent = rt.spawn(|| (0..200).for_each(|_| sinew::spawn(|| sinew::spawn(|| ()).join().unwrap()).join().unwrap()));
            let parked = rt.spawn(|| (0..200).for_each(|_| sinew::park()));
            while !parked.is_finished() {
                parked.fiber().unpark();
                std::thread::yield_now();
            }
            (0..50).for_each(|_| rt.spawn(|| ()).join().unwrap());
            sleeper.join().unwrap();
            parent.join().unwrap();
            parked.join().unwrap();
            assert!(storm.iter().all(|h| !h.is_finished()), "the storm was over too soon");
            calm.store(true, SeqCst);
            storm.into_iter().for_each(|h| h.join().unwrap());
        }
    });
}

#[test]
fn errno_is_not_confused_between_fibers() {
    fn fail_with(errno: i32) {
        // SAFETY: neither call touches memory of ours: a bad descriptor, and a path that is not there.
        let failed = unsafe {
            match errno {
                libc::EBADF => libc::close(-1),
                _ => libc::unlink(c"/nowhere/at/all".as_ptr()),
            }
        };
        assert_eq!(failed, -1);
        // Read before anything suspends, as std does.
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(errno));
    }
    for workers in [1, 2] {
        runtime(workers).run(|| {
            sinew::scope(|s| {
                for i in 0..20 {
                    s.spawn(move || {
                        let errno = if i % 2 == 0 { libc::EBADF } else { libc::ENOENT };
                        for round in 0..200 {
                            fail_with(errno);
                            if round % 10 == 0 { sinew::sleep(Duration::from_micros(1)) } else { sinew::yield_now() }
                        }
                    });
                }
            })
        });
    }
}

// ---- threads without a runtime

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn threads_wait_without_any_runtime_being_started() {
    in_child(0, || {
        let before = threads();
        let me = sinew::current();
        assert_eq!(me.id(), sinew::current().id());
        assert_eq!(me.stack_size(), 0);
        assert_eq!(me.stack_high_water(), 0);
        me.unpark();
        sinew::park();
        sinew::park_timeout(Duration::from_micros(10));
        sinew::yield_now();
        sinew::sleep(Duration::ZERO);
        sinew::sleep(Duration::from_micros(10));
        sinew::sleep_until(Instant::now() + Duration::from_micros(10));
        let waker = std::thread::Builder::new().name("waker".into()).spawn(move || {
            assert_eq!(sinew::current().name(), Some("waker"));
            assert_ne!(sinew::current().id(), me.id());
            me.unpark();
        });
        sinew::park();
        waker.unwrap().join().unwrap();
        assert_eq!(threads(), before, "waiting started a runtime");
        assert_eq!(sinew::spawn(|| 1).join().unwrap(), 1);
        assert!(threads() >= before + 2, "the default runtime has two workers at least");
    });
}

#[test]
fn the_first_calls_of_many_threads_start_one_runtime() {
    in_child(0, || {
        let begin = Barrier::new(12);
        std::thread::scope(|s| {
            for i in 0..12 {
                let begin = &begin;
                s.spawn(move || {
                    begin.wait();
                    match i % 3 {
                        0 => assert_eq!(sinew::spawn(|| 1).join().unwrap(), 1),
                        1 => assert_eq!(sinew::run(|| 2), 2),
                        _ => sinew::scope(|s| drop(s.spawn(|| ()))),
                    }
                });
            }
        });
        // The runtimes that others started in vain have gone.
        let workers = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
            names.filter(|name| name.starts_with("sinew-0.0")).count()
        };
        poll_until("one runtime being left", || workers() == 1);
    });
}

#[test]
fn everything_can_be_used_from_a_plain_thread() {
    in_time(|| {
        let handle = Builder::new().name("from a thread").stack_size(32 * 1024).spawn(|| sinew::current().stack_size()).unwrap();
        assert_eq!(handle.fiber().name(), Some("from a thread"));
        assert_eq!(handle.fiber().spawned_at().file(), file!());
        assert_eq!(handle.join().unwrap(), 32 * 1024);
        let mut borrowed = vec![1];
        sinew::run(|| borrowed.push(2));
        sinew::scope(|s| {
            s.spawn(|| borrowed.push(3));
        });
        assert_eq!(borrowed, [1, 2, 3]);
        let sum = sinew::scope(|s| {
            let named = Builder::new().name("scoped").spawn_scoped(s, || borrowed.iter().sum::<i32>()).unwrap();
            assert_eq!(named.fiber().name(), Some("scoped"));
            poll_until("the end of the scoped fiber", || named.is_finished());
            named.join().unwrap()
        });
        assert_eq!(sum, 6);
        let rt = Runtime::builder().workers(1).stack_size(64 * 1024).build().unwrap();
        assert_eq!(rt.run(|| sinew::current().stack_size()), 64 * 1024);
        assert!(format!("{rt:?}{:?}{:?}", sinew::current(), rt.spawn(|| ())).contains("Fiber"));
        let mut handle = sinew::spawn(|| 9);
        let waker = Waker::from(Arc::new(Counts::default()));
        while Pin::new(&mut handle).poll(&mut Context::from_waker(&waker)).is_pending() {
            std::thread::yield_now();
        }
    });
}

#[test]
fn names_may_be_empty_long_and_in_any_script() {
    for name in ["", "ein Name", "名前", "a\0b\n", &"long ".repeat(1_000)] {
        let handle = Builder::new().name(name).spawn(|| sinew::current().name().map(str::to_owned)).unwrap();
        assert_eq!(handle.fiber().name(), Some(name));
        assert!(format!("{handle:?}").contains(&format!("{name:?}")));
        assert_eq!(handle.join().unwrap().as_deref(), Some(name));
    }
    assert!(sinew::spawn(|| sinew::current().name().is_none()).join().unwrap());
}

/// Runs something when its thread ends.
struct AtExit(Option<Box<dyn FnOnce()>>);

impl Drop for AtExit {
    fn drop(&mut self) {
        if let Some(last) = self.0.take() {
            last();
        }
    }
}

thread_local!(static AT_EXIT: RefCell<AtExit> = const { RefCell::new(AtExit(None)) });

/// Whether a thread has used sinew before its thread-locals go, and if so, which of the two goes first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Used {
    Never,
    Before,
    After,
}

/// Runs `last` in the destructor of a thread-local; gives what it says. A panic there would end the process.
fn at_thread_exit<T: Send + 'static>(used: Used, last: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        if used == Used::Before {
            sinew::park_timeout(Duration::ZERO);
        }
        AT_EXIT.with(|at_exit| at_exit.borrow_mut().0 = Some(Box::new(move || drop(sender.send(last())))));
        if used == Used::After {
            sinew::park_timeout(Duration::ZERO);
        }
    });
    let value =
        receiver.recv_timeout(LIMIT / 4).unwrap_or_else(|error| panic!("{used:?}: {error}: a wait in a thread's last moments never ended"));
    thread.join().unwrap();
    value
}

#[test]
fn a_thread_spawns_joins_sleeps_and_scopes_while_its_thread_locals_are_destroyed() {
    for used in [Used::Never, Used::Before, Used::After] {
        assert_eq!(at_thread_exit(used, || sinew::spawn(|| 5).join().unwrap()), 5);
        assert_eq!(at_thread_exit(used, || sinew::run(|| 6)), 6);
        let slow = || {
            sinew::sleep(Duration::from_millis(2));
            7
        };
        assert_eq!(at_thread_exit(used, move || sinew::spawn(slow).join().unwrap()), 7);
        let scoped = at_thread_exit(used, move || {
            let mut values = [0; 3];
            sinew::scope(|s| values.iter_mut().for_each(|value| drop(s.spawn(move || *value = slow()))));
            values
        });
        assert_eq!(scoped, [7; 3]);
        let slept = at_thread_exit(used, || {
            let begun = Instant::now();
            sinew::sleep(Duration::from_millis(1));
            sinew::park_timeout(Duration::from_millis(1));
            sinew::yield_now();
            begun.elapsed()
        });
        assert!(slept >= Duration::from_millis(2));
    }
}

#[test]
fn a_thread_parks_and_is_unparked_while_its_thread_locals_are_destroyed() {
    for used in [Used::Never, Used::Before, Used::After] {
        at_thread_exit(used, || {
            let me = sinew::current();
            let waker = sinew::spawn(move || me.unpark());
            sinew::park();
            waker.join().unwrap();
        });
    }
}

// ---- runtimes

#[test]
fn handles_outlive_their_runtime() {
    let rt = runtime(2);
    let named = Builder::new().name("outlives");
    let value = rt.run(|| named.spawn(|| 31).unwrap());
    let parked = rt.spawn(|| {
        sinew::park_timeout(Duration::from_millis(20));
        32
    });
    let mut polled = rt.spawn(|| {
        sinew::sleep(Duration::from_millis(20));
        33
    });
    // Unstarted ones would be refused: both are suspended when a fiber behind them has run on each worker.
    let all = Arc::new(Barrier::new(2));
    let behind = [all.clone(), all].map(|all| {
        rt.spawn(move || {
            all.wait();
        })
    });
    behind.into_iter().for_each(|h| h.join().unwrap());
    poll_until("the first value", || value.is_finished());
    let fiber = value.fiber().clone();
    let (waker, counts) = counting_waker();
    let ready = poll(&mut polled, &waker).is_ready();
    drop(rt);
    assert!(value.is_finished() && parked.is_finished());
    assert_eq!(fiber.name(), Some("outlives"));
    assert_eq!(fiber.id(), value.fiber().id());
    assert_eq!(fiber.spawned_at().file(), file!());
    assert_eq!(fiber.stack_size(), 256 * 1024);
    fiber.unpark();
    fiber.clone().unpark();
    parked.fiber().unpark();
    let _ = fiber.stack_high_water();
    assert_eq!(value.join().unwrap(), 31);
    assert_eq!(parked.join().unwrap(), 32);
    if !ready {
        assert_eq!(counts.wakes(), 1);
        assert_eq!(polled.join().unwrap(), 33);
    }
    fiber.unpark();
    // Its place may be used again now, but not while the handle lives.
    assert!((0..100).all(|_| sinew::spawn(|| sinew::current().id()).join().unwrap() != fiber.id()));
}

#[test]
fn many_runtimes_live_side_by_side_and_wake_each_others_fibers() {
    in_time(|| {
        let runtimes: Vec<_> = (0..20).map(|i| runtime(1 + i % 3)).collect();
        for round in 0..20 {
            // A ring of parked fibers, each in another runtime, each waking the next.
            let ring: Vec<_> = runtimes.iter().map(|rt| rt.spawn(sinew::park)).collect();
            let fibers: Vec<_> = ring.iter().map(|h| h.fiber().clone()).collect();
            let wakers: Vec<_> = (0..ring.len())
                .map(|i| {
                    let next = fibers[(i * 7 + round) % fibers.len()].clone();
                    runtimes[i].spawn(move || next.unpark())
                })
                .collect();
            wakers.into_iter().for_each(|w| w.join().unwrap());
            ring.into_iter().for_each(|h| h.join().unwrap());
        }
        // Each runs a fiber that waits for one of the next, down to the last.
        fn descend(runtimes: &[Runtime]) -> usize {
            match runtimes.split_first() {
                None => 0,
                Some((first, rest)) => 1 + first.run(|| descend(rest)),
            }
        }
        assert_eq!(descend(&runtimes), 20);
    });
}

#[test]
fn a_dropped_runtime_waits_for_fibers_that_sleep() {
    for workers in [1, 3] {
        let rt = runtime(workers);
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let handles: Vec<_> = (0..100)
            .map(|i| {
                let (begun, ended) = (begun.clone(), ended.clone());
                rt.spawn(move || {
                    begun.fetch_add(1, SeqCst);
                    sinew::sleep(Duration::from_millis(20 + i % 30));
                    ended.fetch_add(1, SeqCst);
                })
            })
            .collect();
        poll_until("the start of all", || begun.load(SeqCst) == 100);
        drop(rt);
        assert_eq!(ended.load(SeqCst), 100, "the runtime's drop came back before its fibers had ended");
        handles.into_iter().for_each(|h| h.join().unwrap());
    }
}

#[test]
fn a_runtime_that_is_being_dropped_refuses_new_fibers_with_an_error() {
    in_time(|| {
        let rt = runtime(2);
        let begun = Arc::new(Barrier::new(2));
        let inside = begun.clone();
        let old = rt.spawn(move || {
            inside.wait();
            let mut accepted = Vec::new();
            let error = loop {
                match Builder::new().spawn(|| ()) {
                    Ok(handle) => accepted.push(handle),
                    Err(error) => break error,
                }
                sinew::sleep(Duration::from_millis(1));
            };
            assert!(error.to_string().contains("shut down"), "{error}");
            assert!(sinew::spawn(|| ()).join().unwrap_err().is::<sinew::NeverRan>());
            // It still waits, and scopes without new fibers still end.
            sinew::yield_now();
            sinew::sleep(Duration::from_millis(1));
            sinew::scope(|s| assert!(Builder::new().spawn_scoped(s, || ()).is_err()));
            accepted.into_iter().for_each(|h| drop(h.join()));
            17
        });
        begun.wait();
        drop(rt);
        assert_eq!(old.join().unwrap(), 17);
    });
}

#[test]
fn a_runtime_dropped_by_its_own_fiber_says_so_and_ends_all_the_same() {
    in_time(|| {
        let rt = runtime(1);
        let (send, receive) = mpsc::channel::<Runtime>();
        let dropper = rt.spawn(move || {
            let own = receive.recv().unwrap();
            catch_unwind(AssertUnwindSafe(|| drop(own))).unwrap_err().downcast_ref::<&str>().map(|text| text.to_string())
        });
        send.send(rt).unwrap();
        assert!(dropper.join().unwrap().unwrap().contains("shut down by one of its own fibers"));
        // By a fiber of another runtime it can be dropped.
        let (rt, other) = (runtime(1), runtime(1));
        let sleeper = rt.spawn(|| sinew::sleep(Duration::from_millis(10)));
        other.run(move || drop(rt));
        let _ = sleeper.join();
    });
}

#[test]
fn fibers_that_outlast_the_grace_of_their_runtime_can_still_be_woken_and_joined() {
    in_time(|| {
        let rt = runtime(2);
        let parked: Vec<_> = (0..1_000).map(|_| rt.spawn(|| sinew::shield(sinew::park))).collect();
        let begun = Instant::now();
        // All have started when a later one has run on every worker.
        let all = Arc::new(Barrier::new(2));
        let last = [all.clone(), all].map(|all| {
            rt.spawn(move || {
                all.wait();
            })
        });
        last.into_iter().for_each(|h| h.join().unwrap());
        drop(rt);
        assert!(begun.elapsed() >= Duration::from_secs(5), "the grace was cut short");
        parked.iter().for_each(|h| h.fiber().unpark());
        parked.into_iter().for_each(|h| drop(h.join()));
    });
}

/// The system's allocator; when told to, memory as that of a worker's seat becomes inaccessible for ever as it is freed.
struct Guarding;

static GUARD_SEATS: AtomicBool = AtomicBool::new(false);

/// Whether this is the kind of memory that other threads reach a worker through: aligned to two cache lines, and large.
fn is_guarded(layout: Layout) -> bool {
    layout.align() == 128 && layout.size() >= 2048 && GUARD_SEATS.load(SeqCst)
}

// SAFETY: passes everything on to the system's allocator, or maps pages of its own and never gives them out again.
unsafe impl GlobalAlloc for Guarding {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_guarded(layout) {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a fresh mapping touches no memory of ours.
            return unsafe { libc::mmap(std::ptr::null_mut(), layout.size(), access, kind, -1, 0) }.cast();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if is_guarded(layout) {
            // SAFETY: `alloc` mapped it; nobody may use it any more.
            unsafe { libc::mprotect(memory.cast(), layout.size(), libc::PROT_NONE) };
            return;
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Guarding = Guarding;

#[test]
fn a_wake_that_is_under_way_while_its_runtime_ends_touches_nothing_that_is_gone() {
    // A thread that unparks without pause is stopped by a signal, anywhere. All fibers end, and so does their runtime; then the thread
    // goes on.
    static STOPPED: AtomicBool = AtomicBool::new(false);
    extern "C" fn stop_for_a_while(_: i32) {
        STOPPED.store(true, SeqCst);
        let for_10_ms = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        // SAFETY: sleeps, which a signal handler may.
        unsafe { libc::nanosleep(&for_10_ms, std::ptr::null_mut()) };
    }
    in_child(0, || {
        GUARD_SEATS.store(true, SeqCst);
        // SAFETY: the handler is of the right type and does only what a handler may.
        unsafe { libc::signal(libc::SIGUSR1, stop_for_a_while as extern "C" fn(i32) as libc::sighandler_t) };
        let mut random = Random::new(1);
        for _ in 0..300 {
            let (rt, end) = (runtime(1), Arc::new(AtomicBool::new(false)));
            let until_the_end = |wait: fn()| {
                let end = end.clone();
                move || {
                    while !end.load(SeqCst) {
                        wait();
                    }
                }
            };
            // One that yields keeps the worker awake, so that it takes at once what was woken.
            let waits = [sinew::yield_now, sinew::park, sinew::park, sinew::park, sinew::park];
            let fibers = waits.map(|wait| rt.spawn(until_the_end(wait)));
            let parked: Vec<_> = fibers[1..].iter().map(|h| h.fiber().clone()).collect();
            let begun = Arc::new(AtomicBool::new(false));
            let waker = std::thread::spawn({
                let (begun, end) = (begun.clone(), end.clone());
                move || {
                    while !end.load(SeqCst) {
                        parked.iter().for_each(sinew::Fiber::unpark);
                        begun.store(true, SeqCst);
                    }
                }
            });
            poll_until("the first wake", || begun.load(SeqCst));
            (0..random.below(2_000)).for_each(|_| spin_loop());
            STOPPED.store(false, SeqCst);
            // SAFETY: the thread was not joined yet, so its id is valid.
            unsafe { libc::pthread_kill(waker.as_pthread_t(), libc::SIGUSR1) };
            poll_until("the signal", || STOPPED.load(SeqCst));
            end.store(true, SeqCst);
            fibers.iter().for_each(|h| h.fiber().unpark());
            fibers.into_iter().for_each(|h| h.join().unwrap());
            drop(rt);
            waker.join().unwrap();
        }
    });
}

#[test]
fn runtimes_that_come_and_go_leave_no_stacks_behind() {
    in_child(0, || {
        runtime(2).run(|| ());
        let before = sinew::hidden::stacks();
        for _ in 0..100 {
            runtime(2).run(|| sinew::spawn(|| ()).join().unwrap());
        }
        let grown = sinew::hidden::stacks() - before;
        assert!(grown <= 100, "{grown} stacks for 200 workers that have all gone");
    });
}

#[test]
fn fibers_that_found_no_stack_are_all_refused_when_their_runtime_is_dropped() {
    in_child(0, || {
        let rt = runtime(1);
        // Two idle stacks: one for the fiber that keeps the worker awake, one for `run`.
        rt.run(|| sinew::spawn(|| ()).join().unwrap());
        let begun = Arc::new(Barrier::new(2));
        let inside = begun.clone();
        let keeps_awake = rt.spawn(move || {
            inside.wait();
            while Builder::new().stack_size(1).spawn(|| ()).map(std::mem::forget).is_ok() {
                sinew::sleep(Duration::from_millis(1));
            }
        });
        begun.wait();
        // A size of which there is no idle stack, so that it needs new memory.
        sinew::hidden::fail_memory_after(0);
        let large = || Builder::new().stack_size(4 << 20).spawn(|| ()).unwrap();
        let starving: Vec<_> = rt.run(|| (0..5).map(|_| large()).collect());
        drop(rt);
        keeps_awake.join().unwrap();
        for handle in starving {
            poll_until("the refusal of a fiber without a stack", || handle.is_finished());
            let payload = handle.join().unwrap_err();
            assert!(payload.is::<NeverRan>());
        }
    });
}

#[test]
fn a_fiber_is_not_refused_for_want_of_a_stack_while_idle_ones_lie_with_another_worker() {
    in_child(0, || {
        let rt = runtime(2);
        // Stacks of a size of their own come to lie with one worker while the other is busy; then the other way round.
        for _ in 0..2 {
            let meet = Arc::new(Barrier::new(2));
            let busy = [0, 1].map(|i| {
                let meet = meet.clone();
                rt.spawn(move || {
                    // Both are here, so each has a worker of its own.
                    meet.wait();
                    if i == 0 {
                        let large = || Builder::new().stack_size(2 << 20).spawn(sinew::yield_now).unwrap();
                        (0..4).map(|_| large()).collect::<Vec<_>>().into_iter().for_each(|h| h.join().unwrap());
                    }
                    meet.wait();
                })
            });
            busy.into_iter().for_each(|h| h.join().unwrap());
            sinew::hidden::fail_memory_after(0);
            for _ in 0..20 {
                rt.run(|| Builder::new().stack_size(2 << 20).spawn(|| ()).unwrap().join()).expect("refused although stacks are idle");
                std::thread::sleep(Duration::from_micros(200));
            }
            sinew::hidden::fail_memory_after(u64::MAX);
        }
    });
}

#[test]
fn a_fiber_without_a_stack_is_refused_although_the_other_workers_are_just_lying_down() {
    // A worker that polls or lies down at the moment at which the fiber starves must still see to its part.
    in_child(0, || {
        for workers in [2, 3] {
            let rt = runtime(workers);
            // Idle stacks of the default size with every worker.
            let all = Arc::new(Barrier::new(workers));
            let warm: Vec<_> = (0..workers)
                .map(|_| {
                    let all = all.clone();
                    rt.spawn(move || {
                        all.wait();
                        (0..4).map(|_| sinew::spawn(sinew::yield_now)).collect::<Vec<_>>().into_iter().for_each(|h| h.join().unwrap());
                        all.wait();
                    })
                })
                .collect();
            warm.into_iter().for_each(|h| h.join().unwrap());
            sinew::hidden::fail_memory_after(0);
            for round in 0..rounds(5_000, 20_000) {
                let large = || Builder::new().stack_size(8 << 20).spawn(|| ()).unwrap();
                let starving = rt.run(|| [large(), large()]);
                (0..round % 100).for_each(|_| spin_loop());
                for handle in starving {
                    let end = Instant::now() + LIMIT / 4;
                    while !handle.is_finished() {
                        assert!(Instant::now() < end, "a fiber without a stack was forgotten in round {round} with {workers} workers");
                        std::thread::yield_now();
                    }
                    assert!(handle.join().unwrap_err().is::<NeverRan>());
                }
            }
            sinew::hidden::fail_memory_after(u64::MAX);
        }
    });
}

// ---- the process

#[test]
fn a_fiber_may_end_the_process() {
    in_child(7, || {
        let rt = runtime(2);
        let busy: Vec<_> = (0..20).map(|_| rt.spawn(|| sinew::sleep(Duration::from_secs(3600)))).collect();
        rt.spawn(|| std::process::exit(7));
        busy.into_iter().for_each(|h| h.join().unwrap());
    });
}

#[test]
fn processes_and_threads_started_by_a_fiber_have_no_signals_blocked() {
    // As started by a plain thread. Else a child of a fiber could not be ended by SIGTERM or Ctrl-C.
    fn blocked(file: &str) -> String {
        let output = Command::new("grep").args(["SigBlk", file]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
    let by_thread = std::thread::spawn(|| blocked("/proc/self/status")).join().unwrap();
    assert_eq!(sinew::run(|| blocked("/proc/self/status")), by_thread);
    let mask =
        || std::fs::read_to_string("/proc/thread-self/status").unwrap().lines().find(|l| l.starts_with("SigBlk")).unwrap().to_owned();
    let by_thread = std::thread::spawn(mask).join().unwrap();
    assert_eq!(sinew::run(|| std::thread::spawn(mask).join().unwrap()), by_thread);
}

// ---- handles as futures

/// Counts its wakes.
#[derive(Default)]
struct Counts(AtomicUsize);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Counts {
    fn wakes(&self) -> usize {
        self.0.load(SeqCst)
    }
}

fn counting_waker() -> (Waker, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    (Waker::from(counts.clone()), counts)
}

fn poll<T>(handle: &mut JoinHandle<T>, waker: &Waker) -> Poll<std::thread::Result<T>> {
    Pin::new(handle).poll(&mut Context::from_waker(waker))
}

#[test]
fn only_the_last_waker_is_woken_and_once() {
    let rt = runtime(1);
    for _ in 0..500 {
        let mut handle = rt.spawn(|| {
            sinew::park();
            3
        });
        let ((first, first_counts), (second, second_counts)) = (counting_waker(), counting_waker());
        assert!(poll(&mut handle, &first).is_pending());
        assert!(poll(&mut handle, &second).is_pending());
        assert!(poll(&mut handle, &first).is_pending());
        assert!(poll(&mut handle, &second).is_pending());
        drop(first);
        assert_eq!(Arc::strong_count(&first_counts), 1, "a waker that was replaced is still held");
        handle.fiber().unpark();
        poll_until("the wake", || second_counts.wakes() == 1);
        assert!(matches!(poll(&mut handle, &second), Poll::Ready(Ok(3))));
        assert_eq!((first_counts.wakes(), second_counts.wakes()), (0, 1));
        drop((handle, second));
        poll_until("the waker's drop", || Arc::strong_count(&second_counts) == 1);
    }
}

#[test]
fn a_handle_dropped_or_joined_while_polled_lets_go_of_its_waker() {
    let rt = runtime(1);
    for round in 0..500 {
        let mut handle = rt.spawn(sinew::park);
        let fiber = handle.fiber().clone();
        let (waker, counts) = counting_waker();
        assert!(poll(&mut handle, &waker).is_pending());
        drop(waker);
        if round % 2 == 0 {
            drop(handle);
            assert_eq!(Arc::strong_count(&counts), 1, "a dropped handle still holds its waker");
            fiber.unpark();
        } else {
            fiber.unpark();
            handle.join().unwrap();
            poll_until("the waker's drop", || Arc::strong_count(&counts) == 1);
        }
    }
}

#[test]
fn a_handle_moves_between_tasks_and_threads_while_its_fiber_ends() {
    /// Unparks a thread.
    struct Unparks(std::thread::Thread);
    impl Wake for Unparks {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    in_time(|| {
        let rt = runtime(2);
        for round in 0..rounds(2_000, 20_000) {
            let mut handle = rt.spawn(move || {
                (0..round % 3).for_each(|_| sinew::yield_now());
                (0..round % 200).for_each(|_| spin_loop());
                round
            });
            let (first, _) = counting_waker();
            let value = match poll(&mut handle, &first) {
                Poll::Ready(value) => value,
                Poll::Pending => std::thread::scope(|s| {
                    let wait = move || {
                        let waker = Waker::from(Arc::new(Unparks(std::thread::current())));
                        loop {
                            match poll(&mut handle, &waker) {
                                Poll::Ready(value) => return value,
                                Poll::Pending => std::thread::park(),
                            }
                        }
                    };
                    s.spawn(wait).join().unwrap()
                }),
            };
            assert_eq!(value.unwrap(), round);
        }
    });
}

#[test]
fn an_outcome_is_given_out_once() {
    // A copy would be a second owner of the same memory. A plain number, so that a broken library does no harm here.
    let finished = || {
        let mut handle = sinew::spawn(|| 11u64);
        poll_until("the end of the fiber", || handle.is_finished());
        assert!(matches!(poll(&mut handle, Waker::noop()), Poll::Ready(Ok(11))));
        handle
    };
    let mut again = finished();
    assert!(catch_unwind(AssertUnwindSafe(|| poll(&mut again, Waker::noop()))).is_err(), "polled twice");
    drop(again);
    let again = finished();
    assert!(catch_unwind(AssertUnwindSafe(|| again.join())).is_err(), "polled, then joined");
    drop(finished());
}
