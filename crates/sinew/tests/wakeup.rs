//! Waking and sleeping as a user sees them: batches, placement, idleness, metrics, settings by environment.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use common::{forbid, in_child, is_child};
use sinew::{Fiber, Runtime, Spin};

/// A runtime of one group.
fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).profile(sinew::Profile::ComputeHeavy).build().unwrap()
}

/// Waits for a condition, not for a time; fails loudly if it does not come.
fn poll_until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_batch_wakes_as_many_workers_as_it_has_fibers() {
    // Every fiber blocks its thread until all of its batch are there: the batch ends only if each got a worker of its own.
    for workers in [1, 2, 3, 31, 32, 33, 63, 64] {
        let rt = runtime(workers);
        for n in 1..=workers {
            poll_until("all workers to sleep", || rt.metrics().workers.iter().all(|w| w.sleeping));
            let here = Arc::new(AtomicUsize::new(0));
            let fibers = (0..n).map(|_| {
                let here = here.clone();
                move || {
                    here.fetch_add(1, SeqCst);
                    poll_until("the whole batch", || here.load(SeqCst) == n);
                }
            });
            let fibers: Vec<_> = fibers.collect();
            let handles = rt.run(|| {
                // The caller's worker is freed for the batch when this returns.
                sinew::spawn_batch(fibers)
            });
            handles.into_iter().for_each(|h| h.join().unwrap());
        }
    }
}

#[test]
fn a_batch_of_any_size_runs_in_full() {
    let rt = runtime(3);
    for n in [0usize, 1, 2, 255, 256, 257, 5_000] {
        let sum: usize = rt.run(|| sinew::spawn_batch((0..n).map(|i| move || i)).into_iter().map(|h| h.join().unwrap()).sum());
        assert_eq!(sum, n * n.saturating_sub(1) / 2);
    }
    poll_until("the last end to be counted", || rt.metrics().spawned == rt.metrics().ended);
}

#[test]
fn more_children_than_a_worker_keeps_overflow_and_all_run() {
    let rt = runtime(2);
    let handles: Vec<_> = rt.run(|| (0..20_000).map(|i| sinew::spawn(move || i)).collect());
    assert!(handles.into_iter().enumerate().all(|(i, h)| h.join().unwrap() == i));
    let metrics = rt.metrics();
    assert!(metrics.overflowed > 0, "20,000 children fitted into one worker's queue");
    assert_eq!(metrics.spawned, 20_001);
}

#[test]
fn two_fibers_spawned_in_a_row_run_at_the_same_time() {
    // Each blocks its thread until the other runs: one wake for two items would leave one behind (`idle.rs`, I4).
    let rt = runtime(2);
    for _ in 0..2_000 {
        let meet = Arc::new(AtomicUsize::new(0));
        let pair = [0, 1].map(|_| {
            let meet = meet.clone();
            rt.spawn(move || {
                meet.fetch_add(1, SeqCst);
                poll_until("the other", || meet.load(SeqCst) == 2);
            })
        });
        pair.into_iter().for_each(|h| h.join().unwrap());
    }
}

#[test]
fn a_push_to_an_idle_group_is_never_lost() {
    // The Dekker race of push and sleep, from a plain thread, with all workers idle most of the time.
    for workers in [1, 2, 4] {
        let rt = runtime(workers);
        for i in 0..10_000 {
            assert_eq!(rt.spawn(move || i).join().unwrap(), i);
        }
    }
}

fn settled(metrics: &sinew::Metrics) -> usize {
    metrics.workers.iter().map(|w| w.settled).sum()
}

/// Fibers that stay, spawned one by one at 100 a second on an almost idle runtime, are spread evenly: their worker is theirs for life. Each is
/// spawned when the one before it has started, so that the runtime is almost idle also on a machine that is not.
fn assert_spreads(workers: usize, fibers: usize, spawn_from_a_fiber: bool) {
    let rt = runtime(workers);
    let pace = Duration::from_millis(10);
    let handles: Vec<_> = if spawn_from_a_fiber {
        let spawn = |before| {
            sinew::sleep(pace);
            while settled(&sinew::metrics()) < before + 1 {
                sinew::sleep(pace);
            }
            sinew::spawn(sinew::park)
        };
        rt.run(|| (0..fibers).map(spawn).collect())
    } else {
        let spawn = |before| {
            std::thread::sleep(pace);
            poll_until("the last one to start", || settled(&rt.metrics()) == before);
            rt.spawn(sinew::park)
        };
        (0..fibers).map(spawn).collect()
    };
    poll_until("all fibers to have started", || settled(&rt.metrics()) == fibers);
    let settled: Vec<usize> = rt.metrics().workers.iter().map(|w| w.settled).collect();
    let (max, mean) = (*settled.iter().max().unwrap() as f64, fibers as f64 / workers as f64);
    assert!(max / mean <= 1.2, "max/mean {:.2}: {settled:?}", max / mean);
    handles.iter().for_each(|h| h.fiber().unpark());
    handles.into_iter().for_each(|h| h.join().unwrap());
}

#[test]
fn long_lived_fibers_spread_evenly_over_an_almost_idle_runtime() {
    std::thread::scope(|s| {
        s.spawn(|| assert_spreads(2, 1000, true));
        s.spawn(|| assert_spreads(2, 1000, false));
        s.spawn(|| assert_spreads(8, 1000, true));
        s.spawn(|| assert_spreads(8, 1000, false));
        s.spawn(|| assert_spreads(64, 1000, true));
        s.spawn(|| assert_spreads(64, 1000, false));
    });
}

/// CPU time and voluntary context switches of all threads of this process.
fn activity() -> (u64, u64) {
    let mut total = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let name = std::fs::read_to_string(path.join("comm")).unwrap();
        if !name.starts_with("sinew") {
            continue;
        }
        let schedstat = std::fs::read_to_string(path.join("schedstat")).unwrap();
        total.0 += schedstat.split_whitespace().next().unwrap().parse::<u64>().unwrap();
        let status = std::fs::read_to_string(path.join("status")).unwrap();
        let line = status.lines().find(|l| l.starts_with("voluntary_ctxt_switches")).unwrap();
        total.1 += line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    }
    total
}

#[test]
fn an_idle_runtime_uses_no_cpu_and_never_wakes_up() {
    const TEST: &str = "an_idle_runtime_uses_no_cpu_and_never_wakes_up";
    if !is_child(TEST) {
        let child = in_child(TEST, &[]);
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let rt = runtime(4);
    // Work of all kinds before, and fibers that stay: parked, and in a sleep of an hour.
    rt.run(|| sinew::scope(|s| (0..1_000).for_each(|_| drop(s.spawn(|| sinew::sleep(Duration::from_millis(1)))))));
    let _parked: Vec<_> = (0..100).map(|_| rt.spawn(sinew::park)).collect();
    let _asleep: Vec<_> = (0..100).map(|_| rt.spawn(|| sinew::sleep(Duration::from_secs(3600)))).collect();
    // The last that idle workers do is to give stacks back, once, a second later: wait until nothing has happened for two seconds.
    let end = Instant::now() + Duration::from_secs(60);
    let mut before = activity();
    loop {
        std::thread::sleep(Duration::from_secs(2));
        let now = activity();
        if now == before {
            break;
        }
        assert!(Instant::now() < end, "still active: {before:?} then {now:?} (CPU ns, switches)");
        before = now;
    }
    // Leave without waiting for them.
    std::process::exit(0);
}

#[test]
fn metrics_count_what_happened() {
    let rt = runtime(2);
    let before = rt.metrics();
    assert_eq!((before.spawned, before.ended, before.workers.len()), (0, 0, 2));
    // Asleep, so that the first spawn has to wake one.
    poll_until("all workers to sleep", || rt.metrics().workers.iter().all(|w| w.sleeping));
    rt.run(|| {
        let sleepers: Vec<_> = (0..500).map(|_| sinew::spawn(|| (0..10).for_each(|_| sinew::sleep(Duration::from_micros(50))))).collect();
        assert!(sinew::metrics().spawned >= 501);
        sleepers.into_iter().for_each(|h| h.join().unwrap());
    });
    let after = rt.metrics();
    assert_eq!((after.spawned, after.queued), (501, 0));
    poll_until("the last end to be counted", || rt.metrics().ended == 501);
    poll_until("the switches to be counted", || rt.metrics().workers.iter().map(|w| w.switches).sum::<u64>() >= 5_501);
    let (p50, p99) = (after.latencies.ready_to_running_p50.unwrap(), after.latencies.ready_to_running_p99.unwrap());
    assert!(p50 <= p99 && p99 > Duration::ZERO && p99 < Duration::from_secs(60), "{p50:?} {p99:?}");
    assert!(after.wakes_by_spinner + after.wakes_by_sleeper > 0);
    assert!(after.workers.iter().map(|w| w.sleeps).sum::<u64>() > 0);
}

#[test]
fn waits_in_a_drop_while_unwinding_are_counted() {
    struct Waits;
    impl Drop for Waits {
        fn drop(&mut self) {
            sinew::sleep(Duration::from_micros(100));
            sinew::spawn(|| ()).join().unwrap();
        }
    }
    let rt = runtime(1);
    let panics = rt.spawn(|| {
        let _waits = Waits;
        std::panic::resume_unwind(Box::new("planned"));
    });
    assert!(panics.join().is_err());
    // `resume_unwind` counts as a panic under way as any other does.
    assert_eq!(rt.metrics().suspended_while_unwinding, 2);
}

#[test]
fn the_environment_sets_workers_and_stacks_and_the_builder_wins() {
    const TEST: &str = "the_environment_sets_workers_and_stacks_and_the_builder_wins";
    if is_child(TEST) {
        assert_eq!(Runtime::builder().build().unwrap().metrics().workers.len(), 3);
        assert_eq!(runtime(5).metrics().workers.len(), 5);
        assert_eq!(sinew::spawn(|| sinew::current().stack_size()).join().unwrap(), 64 << 10);
        let own = Runtime::builder().stack_size(1 << 20).build().unwrap();
        assert_eq!(own.run(|| sinew::current().stack_size()), 1 << 20);
        return;
    }
    let child = in_child(TEST, &[("SINEW_WORKERS", "3"), ("SINEW_STACK_SIZE", "64K")]);
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

#[test]
fn a_bad_value_in_the_environment_is_refused_with_its_name_and_what_is_allowed() {
    const TEST: &str = "a_bad_value_in_the_environment_is_refused_with_its_name_and_what_is_allowed";
    if is_child(TEST) {
        let error = Runtime::builder().build().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        let spawned = sinew::Builder::new().spawn(|| ()).unwrap_err();
        assert_eq!(spawned.to_string(), error.to_string());
        eprintln!("refused: {error}");
        return;
    }
    for (name, value, allowed) in [
        ("SINEW_WORKERS", "0", "1 to 4096"),
        ("SINEW_WORKERS", "4097", "1 to 4096"),
        ("SINEW_WORKERS", "many", "1 to 4096"),
        ("SINEW_WORKERS", "", "1 to 4096"),
        ("SINEW_STACK_SIZE", "0", "64K"),
        ("SINEW_STACK_SIZE", "2G", "64K"),
        ("SINEW_STACK_SIZE", "-1", "64K"),
        ("SINEW_STACK_SIZE", "64KB", "64K"),
        ("SINEW_SCHEDTRACE", "0", "milliseconds"),
        ("SINEW_SCHEDTRACE", "often", "milliseconds"),
    ] {
        let child = in_child(TEST, &[(name, value)]);
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{name}={value}: {said}");
        let line = said.lines().find(|l| l.starts_with("refused: ")).unwrap_or_else(|| panic!("{name}={value}: {said}"));
        assert!(line.contains(name) && line.contains(&format!("{value:?}")) && line.contains(allowed), "{line}");
    }
}

#[test]
fn schedtrace_writes_a_line_per_period() {
    const TEST: &str = "schedtrace_writes_a_line_per_period";
    if is_child(TEST) {
        let rt = runtime(2);
        rt.run(|| (0..20).for_each(|_| sinew::spawn(|| sinew::sleep(Duration::from_millis(5))).join().unwrap()));
        return;
    }
    let child = in_child(TEST, &[("SINEW_SCHEDTRACE", "10")]);
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().filter(|l| l.starts_with("sinew ") && l.contains("ms queue=")).collect();
    assert!(lines.len() >= 5, "{said}");
    for part in [
        "ready=[",
        "settled=[",
        "spinning=[",
        "sleeping=[",
        "switches=+",
        "overflowed=+",
        "spinner=+",
        "sleeper=+",
        "nobody=+",
        "by=[",
        "p50=",
        "p99=",
        " io=",
    ] {
        assert!(lines.iter().all(|line| line.contains(part)), "{part} is missing: {said}");
    }
    assert!(lines.iter().any(|line| !line.contains("switches=+0 ")), "nothing moved: {said}");
}

#[test]
fn on_one_cpu_nobody_spins() {
    const TEST: &str = "on_one_cpu_nobody_spins";
    if is_child(TEST) {
        let rt = Runtime::builder().build().unwrap();
        assert_eq!(rt.metrics().workers.len(), 2, "at least two workers, also on one CPU");
        (0..500).for_each(|i| assert_eq!(rt.spawn(move || i).join().unwrap(), i));
        assert_eq!(rt.metrics().wakes_by_spinner, 0);
        return;
    }
    // SAFETY: all-zero is an empty CPU set; the child inherits the affinity of this thread alone, which ends with the test.
    let child = std::thread::spawn(|| unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut one);
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one), 0);
        in_child(TEST, &[])
    });
    let child = child.join().unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

#[test]
fn a_join_runs_its_unstarted_child_at_once() {
    // One worker, a crowd of ready fibers: the child that is joined runs before they do.
    let rt = runtime(1);
    rt.run(|| {
        sinew::scope(|s| {
            let turns = Arc::new(AtomicUsize::new(0));
            for _ in 0..10 {
                let turns = turns.clone();
                s.spawn(move || {
                    for _ in 0..100 {
                        turns.fetch_add(1, SeqCst);
                        sinew::yield_now();
                    }
                });
            }
            // They have started and are ready.
            while turns.load(SeqCst) < 20 {
                sinew::yield_now();
            }
            for _ in 0..20 {
                let before = turns.load(SeqCst);
                let seen = sinew::spawn({
                    let turns = turns.clone();
                    move || turns.load(SeqCst)
                });
                assert_eq!(seen.join().unwrap(), before, "others ran between the join and its child");
                sinew::yield_now();
            }
        });
    });
}

/// Holds the one worker of `rt` until the returned gate is opened.
fn hold(rt: &Runtime) -> Arc<AtomicUsize> {
    let gate = Arc::new(AtomicUsize::new(0));
    let inside = gate.clone();
    rt.spawn(move || {
        inside.store(1, SeqCst);
        poll_until("the gate", || inside.load(SeqCst) == 2);
    });
    poll_until("the worker to be held", || gate.load(SeqCst) == 1);
    gate
}

#[test]
fn the_group_queue_keeps_order_however_long_it_gets() {
    let rt = runtime(1);
    let gate = hold(&rt);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let handles: Vec<_> = (0..70_000)
        .map(|i| {
            let order = order.clone();
            rt.spawn(move || order.lock().unwrap().push(i))
        })
        .collect();
    assert_eq!(rt.metrics().queued, 70_000);
    gate.store(2, SeqCst);
    handles.into_iter().for_each(|h| h.join().unwrap());
    assert!(order.lock().unwrap().iter().copied().eq(0..70_000), "fibers from outside did not start in the order they came");
}

#[test]
fn own_children_run_newest_first_and_the_oldest_does_not_starve() {
    let rt = runtime(1);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    rt.run(|| {
        sinew::scope(|s| {
            for i in 0..200 {
                let order = order.clone();
                s.spawn(move || order.lock().unwrap().push(i));
            }
        });
    });
    let order = order.lock().unwrap();
    let newest_first = order.windows(2).filter(|pair| pair[0] == pair[1] + 1).count();
    assert!(newest_first > 150, "{order:?}");
    let oldest = order.iter().position(|&i| i == 0).unwrap();
    assert!(oldest < 199, "the oldest child came last of 200");
}

#[test]
fn an_own_child_starts_although_the_group_queue_is_never_empty_and_a_fiber_yields() {
    let rt = runtime(1);
    let done = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|s| {
        // Keeps at least a hundred fibers in the group's queue.
        let (feed, fed) = (done.clone(), &rt);
        s.spawn(move || {
            while feed.load(SeqCst) == 0 {
                if fed.metrics().queued < 100 {
                    (0..100).for_each(|_| drop(fed.spawn(|| ())));
                }
            }
        });
        poll_until("a full queue", || rt.metrics().queued >= 100);
        rt.run(|| {
            let child = sinew::spawn(|| ());
            for _ in 0..100_000 {
                if child.is_finished() {
                    break;
                }
                sinew::yield_now();
            }
            let started = child.is_finished();
            done.store(1, SeqCst);
            assert!(started, "the child had not run after 100,000 yields");
        });
    });
}

#[test]
fn a_parked_fiber_tells_how_deep_it_stands() {
    fn park_at(depth: usize) -> usize {
        let frame = std::hint::black_box([depth; 128]);
        if depth == 0 {
            sinew::park();
            return 0;
        }
        park_at(depth - 1) + frame[0] - depth
    }
    let rt = runtime(1);
    let fiber = rt.spawn(|| park_at(32));
    poll_until("the fiber to park deep", || fiber.fiber().stack_high_water() >= 32 * 1024);
    fiber.fiber().unpark();
    fiber.join().unwrap();
}

/// Claim: a worker that sleeps and is woken for a settled fiber of its own is counted, as is one that is woken for what all may take.
#[test]
fn wakes_of_settled_fibers_are_counted() {
    let rt = runtime(1);
    let before = rt.metrics();
    let turns = Arc::new(AtomicUsize::new(0));
    let counts = turns.clone();
    let fiber = rt.spawn(move || {
        for turn in 1..=10 {
            counts.store(turn, SeqCst);
            sinew::park();
        }
    });
    for turn in 1..=10 {
        poll_until("the fiber to wait and the worker to sleep", || turns.load(SeqCst) == turn && rt.metrics().workers[0].sleeping);
        fiber.fiber().unpark();
    }
    fiber.join().unwrap();
    let after = rt.metrics();
    let woken = after.workers[0].woken_for_its_own;
    // It may be up by itself, now and then, when the wake comes. The spawn may have woken it too.
    assert!((1..=10).contains(&woken), "{woken}");
    assert!((woken..=woken + 1).contains(&(after.wakes_by_sleeper - before.wakes_by_sleeper)), "{after:?}");
}

/// Two settled fibers, each on a worker of its own, that wake each other by turns; before each of its words a fiber asks `goes_on`, with how many it has had.
fn talk(runtime: &Runtime, goes_on: impl Fn(usize) -> bool + Send + Sync + 'static) {
    let shared = Arc::new(([OnceLock::<Fiber>::new(), OnceLock::new()], AtomicUsize::new(0), goes_on));
    let fibers = [0, 1].map(|me| {
        let shared = shared.clone();
        runtime.spawn(move || {
            let (pair, words, goes_on) = &*shared;
            pair[me].set(sinew::current()).unwrap();
            poll_until("the other, on another worker", || pair[1 - me].get().is_some());
            loop {
                let word = words.load(SeqCst);
                if word % 2 != me {
                    sinew::park();
                    continue;
                }
                let goes_on = goes_on(word / 2);
                words.store(word + 1, SeqCst);
                pair[1 - me].get().unwrap().unpark();
                if !goes_on {
                    break;
                }
            }
        })
    });
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
}

/// Claim: by the polls that workers have by default, such a pair sleeps in few of its turns; how few goes by how often each has a core. Without a poll each turn is a sleep.
#[test]
fn a_pair_on_two_workers_hardly_sleeps_by_default() {
    const WORDS: usize = 10_000;
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return;
    }
    let rt = Runtime::builder().workers(2).group_size(2).build().unwrap();
    let sleeps = || rt.metrics().workers.iter().map(|worker| worker.sleeps).sum::<u64>();
    poll_until("a talk with a sleep in twenty words at most", || {
        let before = sleeps();
        talk(&rt, |words| words < WORDS);
        sleeps() - before < 2 * WORDS as u64 / 20
    });
}

/// Claim: two fibers on two workers that wake each other make no futex call while they are at it, as long as the workers poll. If these sleep at once, they do: so a call would be seen.
#[test]
fn a_pair_on_two_workers_that_poll_makes_no_futex_call() {
    const TEST: &str = "a_pair_on_two_workers_that_poll_makes_no_futex_call";
    const SLEEPS: &str = "SINEW_TEST_SLEEPS";
    // After some words a futex call of either's thread ends the process; the last word ends it well.
    const FREE: usize = 1_000;
    const ALL: usize = 50_000;
    if !is_child(TEST) {
        let polls = in_child(TEST, &[]);
        assert!(polls.status.success(), "{}: {}", polls.status, String::from_utf8_lossy(&polls.stderr));
        let sleeps = in_child(TEST, &[(SLEEPS, "1")]);
        assert_eq!(sleeps.status.signal(), Some(libc::SIGSYS), "{}: {}", sleeps.status, String::from_utf8_lossy(&sleeps.stderr));
        return;
    }
    // As long as one of them may have to wait for a core.
    let spin = if std::env::var_os(SLEEPS).is_some() { Spin::Never } else { Spin::Fixed(Duration::from_secs(60)) };
    let rt = Runtime::builder().workers(2).group_size(2).spin(spin).build().unwrap();
    talk(&rt, |words| {
        if words == FREE {
            forbid(libc::SYS_futex);
        }
        if words == ALL {
            // SAFETY: it does not return.
            unsafe { libc::_exit(0) };
        }
        true
    });
}

/// S2, by who sleeps: a worker that polls and is called for what another has taken polls on only as one of the two.
#[test]
fn all_workers_but_two_sleep_once_there_is_nothing_to_do() {
    let runtime = Runtime::builder().workers(6).group_size(6).spin(Spin::Fixed(Duration::from_secs(3600))).build().unwrap();
    runtime.run(|| (0..2000).for_each(|_| sinew::spawn(|| ()).join().unwrap()));
    poll_until("two to poll and four to sleep", || {
        let group = &runtime.metrics().groups[0];
        (group.spinning.count_ones(), group.sleeping.count_ones()) == (2, 4)
    });
}
