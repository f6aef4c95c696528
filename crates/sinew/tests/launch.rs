//! How fibers begin: at once in their maker's place, quietly, or many at a time.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use common::{Gate, alone, group, in_child, is_child, panics, poll_until};
use sinew::{Builder, Group, JoinHandle, Launch, Queue, Runtime};

fn dispatch<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().launch(Launch::Dispatch).spawn(f).unwrap()
}

fn thread() -> ThreadId {
    std::thread::current().id()
}

/// Both kinds of queue, with two workers in one group.
fn both_kinds() -> [Runtime; 2] {
    [Queue::Shared, Queue::Stealing].map(|queue| Runtime::builder().workers(2).group_size(2).queue(queue).build().unwrap())
}

fn join_all<T>(handles: Vec<JoinHandle<T>>) -> Vec<T> {
    handles.into_iter().map(|h| h.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

#[test]
fn a_dispatched_fiber_runs_at_once_on_its_makers_thread() {
    // flare's test: ten fibers, 10,000 times each.
    for rt in both_kinds() {
        rt.run(|| {
            sinew::scope(|s| {
                for _ in 0..10 {
                    s.spawn(|| {
                        for _ in 0..10_000 {
                            let ran = Arc::new(AtomicUsize::new(0));
                            let child = ran.clone();
                            let at = dispatch(move || {
                                child.store(1, SeqCst);
                                thread()
                            });
                            assert_eq!(ran.load(SeqCst), 1, "the maker went on first");
                            assert_eq!(at.join().unwrap(), thread());
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn the_maker_of_a_dispatched_fiber_goes_on_when_that_waits_and_behind_what_was_ready() {
    alone(|| {
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |what: &'static str| {
            let order = order.clone();
            move || order.lock().unwrap().push(what)
        };
        let (first, second, third, maker) = (note("child"), note("child again"), note("other"), note("maker"));
        let parked = sinew::spawn(move || {
            sinew::park();
            third();
        });
        // It has started and parked.
        sinew::yield_now();
        parked.fiber().unpark();
        let child = dispatch(move || {
            first();
            sinew::yield_now();
            second();
        });
        maker();
        parked.join().unwrap();
        child.join().unwrap();
        assert_eq!(*order.lock().unwrap(), ["child", "other", "maker", "child again"]);
    });
}

#[test]
fn dispatches_nest_a_thousand_deep() {
    fn go(depth: usize, thread: ThreadId) -> usize {
        assert_eq!(std::thread::current().id(), thread);
        if depth == 0 { 0 } else { 1 + dispatch(move || go(depth - 1, thread)).join().unwrap() }
    }
    for rt in both_kinds() {
        assert_eq!(rt.run(|| go(1_000, thread())), 1_000);
    }
    // The same without a join: the innermost has ended before any maker goes on.
    fn dive(depth: usize, reached: Arc<AtomicUsize>) {
        if depth == 0 {
            reached.store(1, SeqCst);
            return;
        }
        let deeper = reached.clone();
        drop(dispatch(move || dive(depth - 1, deeper)));
        assert_eq!(reached.load(SeqCst), 1);
    }
    alone(|| dive(1_000, Arc::default()));
}

/// flare's chain of switches, as deep as its own: each fiber dispatches the next, and waits for it. Here every thousandth or so is queued behind the others, so that no chain keeps these waiting for ever.
#[test]
fn a_chain_of_16384_dispatches_ends() {
    fn go(depth: usize) -> usize {
        let deeper = || Builder::new().launch(Launch::Dispatch).stack_size(16 * 1024).spawn(move || go(depth - 1)).unwrap();
        if depth == 0 { 0 } else { 1 + deeper().join().unwrap() }
    }
    for rt in both_kinds() {
        assert_eq!(rt.run(|| go(16_384)), 16_384);
    }
}

#[test]
fn a_dispatch_from_a_plain_thread_or_into_another_group_is_queued() {
    const TEST: &str = "a_dispatch_from_a_plain_thread_or_into_another_group_is_queued";
    if !is_child(TEST) {
        let child = in_child(TEST, &[("SINEW_WORKERS", "2"), ("SINEW_GROUP_SIZE", "1"), ("SINEW_BACKGROUND", "1")]);
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let to = |place| Builder::new().group(place).pinned().launch(Launch::Dispatch);
    assert_eq!(to(Group::foreground(1)).spawn(group).unwrap().join().unwrap(), "1");
    let ran = to(Group::background(0)).spawn(move || {
        let gate = Gate::default();
        let inside = gate.clone();
        let held = to(Group::foreground(1)).spawn(move || inside.hold()).unwrap();
        poll_until("the other group", || gate.held() == 1);
        // That group is held, and this fiber goes on all the same.
        let queued = to(Group::foreground(1)).spawn(group).unwrap();
        assert!(!queued.is_finished());
        // Its own group, named, is its own.
        let own = to(Group::background(0)).spawn(thread).unwrap();
        assert!(own.is_finished() && own.join().unwrap() == thread());
        gate.open();
        held.join().unwrap();
        queued.join().unwrap()
    });
    assert_eq!(ran.unwrap().join().unwrap(), "1");
}

#[test]
fn a_dispatch_inside_no_suspend_panics_before_anything_is_made() {
    let rt = Runtime::builder().workers(1).build().unwrap();
    rt.run(|| {
        let kept = Arc::new(());
        let moved = kept.clone();
        let before = sinew::metrics().spawned;
        assert!(panics(|| sinew::no_suspend(|| drop(dispatch(move || drop(moved))))));
        assert_eq!(Arc::strong_count(&kept), 1, "the closure was dropped");
        assert_eq!(sinew::metrics().spawned, before);
        // What does not suspend is allowed there.
        let posted = sinew::no_suspend(|| sinew::spawn(|| 7));
        assert_eq!(posted.join().unwrap(), 7);
        assert_eq!(dispatch(|| 8).join().unwrap(), 8);
    });
    rt.shutdown_timeout(std::time::Duration::from_secs(60)).unwrap();
}

#[test]
fn a_dispatched_fiber_that_panics_is_its_handles_affair() {
    for rt in both_kinds() {
        rt.run(|| {
            for i in 0..1_000 {
                let child = dispatch(move || if i % 2 == 0 { std::panic::resume_unwind(Box::new(i)) } else { i });
                assert!(!std::thread::panicking());
                match child.join() {
                    Ok(value) => assert!(value == i && i % 2 == 1),
                    Err(payload) => assert!(*payload.downcast::<i32>().unwrap() == i && i % 2 == 0),
                }
            }
        });
    }
}

#[test]
fn a_dispatch_runs_the_hooks_of_its_maker() {
    thread_local!(static USER: std::cell::Cell<&'static str> = const { std::cell::Cell::new("nobody") });
    for rt in both_kinds() {
        rt.run(|| {
            let (suspends, resumes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let (s, r) = (suspends.clone(), resumes.clone());
            sinew::on_suspend(move || {
                USER.set("nobody");
                s.fetch_add(1, SeqCst);
                // User code of any kind that does not suspend: it makes others ready in the middle of the dispatch.
                drop(sinew::spawn(|| ()));
            });
            sinew::on_resume(move || {
                USER.set("alice");
                r.fetch_add(1, SeqCst);
            });
            USER.set("alice");
            for i in 1..=1_000 {
                let ran = Arc::new(AtomicUsize::new(0));
                let child = ran.clone();
                let seen = dispatch(move || {
                    child.store(1, SeqCst);
                    (USER.get(), thread())
                });
                assert_eq!(USER.get(), "alice");
                assert_eq!(ran.load(SeqCst), 1, "it did not run at once");
                assert_eq!((suspends.load(SeqCst), resumes.load(SeqCst)), (i, i));
                assert_eq!(seen.join().unwrap(), ("nobody", thread()));
            }
            USER.set("nobody");
        });
    }
}

#[test]
fn a_dispatch_in_a_hook_is_refused_and_the_fiber_goes_on() {
    let rt = Runtime::builder().workers(1).build().unwrap();
    let payload = rt.spawn(|| {
        sinew::on_suspend(|| drop(dispatch(|| ())));
        sinew::yield_now();
        sinew::yield_now();
        7
    });
    let payload = payload.join().expect_err("the hook's panic is the outcome");
    let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied()).unwrap_or_default();
    assert!(text.contains("suspend"), "{text}");
    assert_eq!(rt.run(|| dispatch(|| 8).join().unwrap()), 8);
}

#[test]
fn dispatch_while_the_runtime_ends_is_refused_or_run_never_lost() {
    for _ in 0..200 {
        let rt = Runtime::builder().workers(2).group_size(1).build().unwrap();
        let (made, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..4 {
            let (made, ended) = (made.clone(), ended.clone());
            rt.spawn(move || {
                loop {
                    let ended = ended.clone();
                    let builder = Builder::new().launch(Launch::Dispatch);
                    match builder.spawn(move || ended.fetch_add(1, SeqCst)) {
                        Ok(child) => {
                            made.fetch_add(1, SeqCst);
                            drop(child.join());
                        }
                        Err(_) => return,
                    }
                }
            });
        }
        poll_until("some to be made", || made.load(SeqCst) > 10);
        rt.shutdown_timeout(std::time::Duration::from_secs(60)).unwrap();
        assert!(ended.load(SeqCst) <= made.load(SeqCst));
        assert_eq!((Arc::strong_count(&made), Arc::strong_count(&ended)), (1, 1));
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn rounding_mode_does_not_leak_into_a_dispatched_fiber_nor_back() {
    use common::rounding::{DEFAULT, mode, set, words};
    for hooked in [false, true] {
        alone(|| {
            if hooked {
                sinew::on_suspend(|| ());
            }
            for i in 0..200 {
                set(mode(i));
                let child = dispatch(move || {
                    assert_eq!(words(), DEFAULT, "a fresh fiber does not have the default words");
                    set(mode(i + 1));
                    sinew::yield_now();
                    assert_eq!(words(), mode(i + 1));
                });
                assert_eq!(words(), mode(i));
                child.join().unwrap();
                assert_eq!(words(), mode(i));
            }
            set(DEFAULT);
        });
    }
}

#[test]
fn quiet_fibers_wake_nobody_until_they_are_flushed() {
    const TEST: &str = "quiet_fibers_wake_nobody_until_they_are_flushed";
    if !is_child(TEST) {
        for (size, queue) in [("2", "stealing"), ("2", "shared"), ("1", "stealing")] {
            let child = in_child(TEST, &[("SINEW_WORKERS", "2"), ("SINEW_GROUP_SIZE", size), ("SINEW_QUEUE", queue)]);
            assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        }
        return;
    }
    let ran = Arc::new(AtomicUsize::new(0));
    let quiet = || {
        let ran = ran.clone();
        drop(Builder::new().quiet().spawn(move || ran.fetch_add(1, SeqCst)).unwrap());
    };
    sinew::run(|| ());
    for round in 1..=3 {
        poll_until("all to sleep", || sinew::metrics().workers.iter().all(|w| w.sleeping));
        let woken = || (sinew::metrics().wakes_by_sleeper, sinew::metrics().wakes_by_spinner);
        let before = woken();
        // bthread's test of too many of them: 100,000.
        (0..100_000).for_each(|_| quiet());
        assert_eq!(woken(), before, "somebody was woken");
        sinew::flush();
        poll_until("all to run", || ran.load(SeqCst) == round * 100_000);
        // A second one has nothing to say.
        poll_until("all to sleep", || sinew::metrics().workers.iter().all(|w| w.sleeping));
        let before = woken();
        sinew::flush();
        assert_eq!(woken(), before);
    }
}

#[test]
fn a_fibers_quiet_children_are_run_by_its_own_worker_without_a_flush() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = Runtime::builder().workers(2).group_size(2).background(1).queue(queue).build().unwrap();
        for count in [1, 10, 1_000, 20_000] {
            let ran = Arc::new(AtomicUsize::new(0));
            let inside = ran.clone();
            rt.run(move || {
                let children: Vec<_> = (0..count)
                    .map(|_| {
                        let ran = inside.clone();
                        Builder::new().quiet().spawn(move || ran.fetch_add(1, SeqCst)).unwrap()
                    })
                    .collect();
                join_all(children);
            });
            assert_eq!(ran.load(SeqCst), count);
        }
    }
}

#[test]
fn a_fiber_that_spawns_quietly_wakes_nobody() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = Runtime::builder().workers(2).group_size(2).queue(queue).spin(sinew::Spin::Never).build().unwrap();
        rt.run(|| {
            // This fiber holds its worker from here on, and the other one sleeps.
            poll_until("the other worker to sleep", || sinew::metrics().groups[0].sleeping.count_ones() == 1);
            let before = sinew::metrics().wakes_by_sleeper;
            // More than a worker keeps for itself: the group's queue takes some.
            let children: Vec<_> = (0..2_000).map(|_| Builder::new().quiet().spawn(|| ()).unwrap()).collect();
            assert_eq!(sinew::metrics().wakes_by_sleeper, before, "{queue:?}: the other worker was woken");
            sinew::flush();
            poll_until("the other worker to run all", || children.iter().all(JoinHandle::is_finished));
        });
    }
}

#[test]
fn what_was_never_flushed_is_dropped_when_the_runtime_ends() {
    let kept = Arc::new(());
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = Runtime::builder().workers(2).group_size(1).queue(queue).build().unwrap();
        let moved = kept.clone();
        rt.run(move || {
            for i in 0..1_000 {
                let kept = moved.clone();
                drop(Builder::new().group(Group::foreground(i % 2)).quiet().spawn(move || drop(kept)).unwrap());
            }
        });
        rt.shutdown_timeout(std::time::Duration::from_secs(60)).unwrap();
    }
    assert_eq!(Arc::strong_count(&kept), 1);
}

#[test]
fn a_batch_of_any_size_runs_in_full_in_groups_of_any_size() {
    for queue in [Queue::Shared, Queue::Stealing] {
        for (workers, size) in [(1, 1), (2, 1), (3, 2), (4, 4), (5, 2)] {
            let rt = Runtime::builder().workers(workers).group_size(size).background(1).queue(queue).build().unwrap();
            for place in [Group::foreground(0), Group::background(0), Group::any()] {
                for n in [0usize, 1, 2, 63, 64, 65, 255, 256, 257, 3_000] {
                    let batch = move || join_all(sinew::spawn_batch((0..n).map(|i| move || i)));
                    let made = rt.run(|| Builder::new().group(place).spawn(batch).unwrap().join().unwrap());
                    assert!(made.into_iter().eq(0..n), "{n} in {place:?} of {workers} in groups of {size}");
                }
            }
        }
    }
}

/// Claim: a batch is one wake call, whatever its size and that of its group. All workers are held, so each call is in vain, and counted.
#[test]
fn a_batch_is_one_wake_call() {
    for queue in [Queue::Shared, Queue::Stealing] {
        for workers in [1, 2, 5, 64] {
            let rt = Runtime::builder().workers(workers).group_size(workers).queue(queue).build().unwrap();
            rt.run(|| {
                let gate = Gate::default();
                let hold = |_| {
                    let gate = gate.clone();
                    sinew::spawn(move || gate.hold())
                };
                let holders: Vec<_> = (1..workers).map(hold).collect();
                // This fiber holds the last one.
                poll_until("the others to be held", || gate.held() == workers - 1);
                let calls = || {
                    let metrics = sinew::metrics();
                    metrics.wakes_by_spinner + metrics.wakes_by_sleeper + metrics.wakes_by_nobody
                };
                let mut fibers = Vec::new();
                for count in [0usize, 1, 2, 64, 65, 255, 256, 257, 3_000] {
                    let before = calls();
                    fibers.extend(sinew::spawn_batch((0..count).map(|_| || ())));
                    assert_eq!(calls() - before, count.min(1) as u64, "{queue:?}: {count} fibers, {workers} workers");
                }
                gate.open();
                join_all(holders);
                join_all(fibers);
            });
        }
    }
}

#[test]
fn a_thousand_batches_of_ten_thousand() {
    // flare's test, a fiftieth of it without optimisation.
    let rt = Runtime::builder().workers(2).group_size(1).build().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let batches = if cfg!(debug_assertions) { 20 } else { 1_000 };
    for _ in 0..batches {
        let ran = ran.clone();
        rt.run(move || {
            drop(sinew::spawn_batch((0..10_000).map(|_| {
                let ran = ran.clone();
                move || _ = ran.fetch_add(1, SeqCst)
            })))
        });
    }
    poll_until("all to run", || ran.load(SeqCst) == batches * 10_000);
}

/// A chain of dispatches without end, each by the one before: whoever else is ready has its turn all the same.
#[test]
fn an_endless_chain_of_dispatches_starves_nobody() {
    fn link(end: Arc<AtomicBool>) {
        if !end.load(SeqCst) {
            drop(Builder::new().launch(Launch::Dispatch).stack_size(16 << 10).spawn(move || link(end)).unwrap());
        }
    }
    let rt = Runtime::builder().workers(1).build().unwrap();
    let end = Arc::new(AtomicBool::new(false));
    let ender = end.clone();
    rt.run(move || {
        let other = sinew::spawn(move || {
            sinew::yield_now();
            ender.store(true, SeqCst);
        });
        sinew::yield_now();
        link(end);
        other.join().unwrap();
    });
}
