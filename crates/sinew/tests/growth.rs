//! Groups that begin with few workers and start more when they need them; and what is done on their threads.

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Gate, cpus_of_workers, in_child, is_child, poll_until};
use sinew::{Builder, Group, JoinHandle, Profile, Queue, Runtime, RuntimeBuilder};

fn growing(least: usize, most: usize) -> RuntimeBuilder {
    Runtime::builder().workers(most).group_size(most).workers_min(least)
}

fn workers(rt: &Runtime) -> Vec<usize> {
    rt.metrics().groups.iter().map(|group| group.workers).collect()
}

fn join_all<T>(handles: Vec<JoinHandle<T>>) -> Vec<T> {
    handles.into_iter().map(|h| h.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

#[test]
fn a_group_begins_with_few_workers_and_has_at_most_all() {
    let rt = growing(2, 5).background(1).build().unwrap();
    let metrics = rt.metrics();
    assert_eq!(workers(&rt), [2, 1], "a background group begins with one");
    assert_eq!(metrics.groups.iter().map(|group| group.workers_max).collect::<Vec<_>>(), [5, 5]);
    assert_eq!(metrics.workers.len(), 3);
    assert_eq!(workers(&growing(3, 3).build().unwrap()), [3]);
    // None is refused, and more than all. Where the machine or a profile says how many there are, all is the most.
    for (least, said) in [(0, "it must be a whole number from 1 to 4096"), (4, "it must be at most RuntimeBuilder::workers(3)")] {
        let error = growing(least, 3).build().unwrap_err();
        assert_eq!(error.to_string(), format!("RuntimeBuilder::workers_min({least}) is refused: {said}"));
    }
    let all = Runtime::builder().workers_min(4096).build().unwrap().metrics();
    assert!(all.groups.iter().all(|group| group.workers == group.workers_max), "{all:?}");
    let shared_out = Runtime::builder().workers(45).profile(Profile::IoHeavy).workers_min(45).build().unwrap().metrics();
    assert!(shared_out.groups.len() > 1 && shared_out.workers.len() == 45, "{shared_out:?}");
}

#[test]
fn an_idle_worker_is_enough() {
    let rt = growing(1, 4).build().unwrap();
    for i in 0..200 {
        poll_until("the worker to be idle", || rt.metrics().groups[0].sleeping == 1);
        assert_eq!(rt.spawn(move || i).join().unwrap(), i);
    }
    assert_eq!(workers(&rt), [1], "one that slept was there for each");
}

/// The one worker runs a fiber that wakes another, which may move, and keeps the thread until that has run: one more worker comes.
#[test]
fn a_worker_comes_for_who_was_woken_by_one_that_computes() {
    for queue in [Queue::Stealing, Queue::Shared] {
        // SAFETY: nothing that these fibers use belongs to a thread.
        let rt = unsafe { growing(1, 2).spare_workers(0).queue(queue).migrate_started_fibers() }.build().unwrap();
        let idle = || poll_until("the worker to be idle", || rt.metrics().groups[0].sleeping == 1);
        let ran = Arc::new(AtomicUsize::new(0));
        idle();
        let woken = rt.spawn({
            let ran = ran.clone();
            move || {
                sinew::park();
                ran.store(1, SeqCst);
            }
        });
        poll_until("it to begin", || rt.metrics().groups[0].sleeping == 0 || rt.metrics().workers[0].switches > 0);
        idle();
        assert_eq!(workers(&rt), [1], "nobody was needed yet");
        let fiber = woken.fiber().clone();
        let computes = rt.spawn(move || {
            fiber.unpark();
            poll_until("the other to run", || ran.load(SeqCst) == 1);
        });
        join_all(vec![woken, computes]);
        assert_eq!(workers(&rt), [2]);
    }
}

/// All of `count` fibers block their threads until all are there.
fn meet(count: usize) -> Vec<impl FnOnce() + Send + Clone + 'static> {
    let here = Arc::new(AtomicUsize::new(0));
    let body = move || {
        here.fetch_add(1, SeqCst);
        poll_until("all others", || here.load(SeqCst) == count);
    };
    vec![body; count]
}

#[test]
fn workers_come_until_each_blocked_one_is_replaced() {
    for queue in [Queue::Shared, Queue::Stealing] {
        for least in [1, 2] {
            for round in 0..30 {
                let rt = growing(least, 8).queue(queue).build().unwrap();
                if round % 2 == 0 {
                    poll_until("all to sleep", || rt.metrics().workers.iter().all(|w| w.sleeping));
                }
                // From a plain thread, by a fiber one by one, as a batch.
                let fibers = match round % 3 {
                    0 => meet(8).into_iter().map(|f| rt.spawn(f)).collect(),
                    1 => rt.run(|| meet(8).into_iter().map(sinew::spawn).collect()),
                    _ => rt.run(|| sinew::spawn_batch(meet(8))),
                };
                join_all(fibers);
                assert_eq!(workers(&rt), [8], "{queue:?}, {least} at first");
            }
        }
    }
}

#[test]
fn there_are_never_more_workers_than_were_asked_for() {
    let rt = growing(1, 3).build().unwrap();
    let handle = rt.handle();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                (0..2_000).for_each(|i| {
                    drop(handle.spawn(move || {
                        if i % 50 == 0 {
                            std::thread::yield_now()
                        }
                    }))
                })
            });
        }
        while rt.metrics().ended < 8_000 {
            assert!(rt.metrics().groups[0].workers <= 3 && rt.metrics().workers.len() <= 3);
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_background_group_grows_too_and_foreground_groups_each() {
    let rt = Runtime::builder().workers(4).group_size(2).workers_min(1).background(1).build().unwrap();
    assert_eq!(workers(&rt), [1, 1, 1]);
    let (gate, inside) = (Gate::default(), Arc::new(()));
    let hold = |place: Group| {
        let (gate, inside) = (gate.clone(), inside.clone());
        let hold = move || {
            let _inside = inside;
            gate.hold();
        };
        rt.run(move || [hold.clone(), hold].map(|hold| Builder::new().group(place).pinned().spawn(hold).unwrap()))
    };
    // The last one first: the fibers that spawn begin in foreground groups.
    let mut held: Vec<_> = hold(Group::background(0)).into();
    poll_until("the background group", || gate.held() == 2);
    assert_eq!(workers(&rt)[2], 2);
    held.extend(hold(Group::foreground(1)));
    poll_until("the second group", || gate.held() == 4);
    assert_eq!(workers(&rt)[1], 2);
    gate.open();
    join_all(held);
}

#[test]
fn a_fiber_with_the_smallest_stack_can_make_its_group_grow() {
    // A thread is started on its stack.
    for round in 0..20 {
        let rt = growing(1, 4).stack_size(1).build().unwrap();
        rt.run(move || {
            let grows = move || {
                assert!(sinew::current().stack_size() <= 16 << 10);
                join_all(if round % 2 == 0 { meet(4).into_iter().map(sinew::spawn).collect() } else { sinew::spawn_batch(meet(4)) });
            };
            Builder::new().stack_size(1).spawn(grows).unwrap().join().unwrap();
        });
        assert_eq!(workers(&rt), [4]);
    }
}

#[test]
fn a_runtime_that_grows_can_be_shut_down() {
    for round in 0..200 {
        let (started, stopped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (starts, stops) = (started.clone(), stopped.clone());
        let rt = growing(1, 8)
            .queue(if round % 2 == 0 { Queue::Shared } else { Queue::Stealing })
            .on_worker_start(move || _ = starts.fetch_add(1, SeqCst))
            .on_worker_stop(move || _ = stops.fetch_add(1, SeqCst))
            .build()
            .unwrap();
        // Each makes the group grow, and nobody waits for the threads.
        let fibers: Vec<_> = (0..round % 20).map(|_| rt.spawn(std::thread::yield_now)).collect();
        if round % 3 == 0 {
            join_all(fibers);
        }
        rt.shutdown_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(started.load(SeqCst), stopped.load(SeqCst), "each worker that there was has begun and ended");
        assert!((1..=8).contains(&started.load(SeqCst)));
    }
}

#[test]
fn hooks_run_once_on_each_workers_thread() {
    let (started, stopped) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let note = |names: &Arc<Mutex<Vec<String>>>| {
        let names = names.clone();
        move || names.lock().unwrap().push(std::thread::current().name().unwrap().to_owned())
    };
    let rt = Runtime::builder()
        .workers(4)
        .group_size(2)
        .background(1)
        .on_worker_start(note(&started))
        .on_worker_stop(note(&stopped))
        .build()
        .unwrap();
    rt.run(|| join_all((0..100).map(|_| sinew::spawn(sinew::yield_now)).collect()));
    assert!(stopped.lock().unwrap().is_empty());
    rt.shutdown_timeout(Duration::from_secs(60)).unwrap();
    let expected = ["sinew-0.0", "sinew-0.1", "sinew-1.0", "sinew-1.1", "sinew-b0.0"];
    for names in [started, stopped] {
        let mut names = names.lock().unwrap().clone();
        names.sort();
        assert_eq!(names, expected, "the second worker of the background group was never needed");
    }
}

#[test]
fn a_start_hook_has_run_before_the_first_fiber_of_its_worker() {
    thread_local!(static READY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    for least in [1, 4] {
        let rt = growing(least, 4).on_worker_start(|| READY.set(true)).build().unwrap();
        let seen = join_all((0..1_000).map(|_| rt.spawn(|| READY.get())).collect());
        assert!(seen.into_iter().all(|ready| ready));
    }
}

#[test]
fn a_hook_that_panics_harms_nobody() {
    const TEST: &str = "a_hook_that_panics_harms_nobody";
    if !is_child(TEST) {
        let child = in_child(TEST, &[]);
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{said}");
        assert!(said.contains("planned at the start") && said.contains("planned at the stop"), "it is not reported: {said}");
        return;
    }
    for least in [1, 3] {
        let stopped = Arc::new(AtomicUsize::new(0));
        let stops = stopped.clone();
        let rt = growing(least, 3)
            .on_worker_start(|| panic!("planned at the start"))
            .on_worker_stop(move || {
                stops.fetch_add(1, SeqCst);
                panic!("planned at the stop");
            })
            .build()
            .unwrap();
        join_all(meet(3).into_iter().map(|f| rt.spawn(f)).collect());
        assert!(!rt.run(std::thread::panicking));
        rt.shutdown_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(stopped.load(SeqCst), 3);
    }
}

#[test]
fn a_worker_that_comes_late_may_run_where_the_others_may() {
    // Not only where the thread may that happened to start it.
    const TEST: &str = "a_worker_that_comes_late_may_run_where_the_others_may";
    if !is_child(TEST) {
        let child = in_child(TEST, &[]);
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let rt = growing(1, 4).build().unwrap();
    let handle = rt.handle();
    let bound = std::thread::spawn(move || {
        // SAFETY: all-zero is an empty CPU set; the affinity is of this thread alone.
        unsafe {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut one);
            assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one), 0);
        }
        join_all(meet(4).into_iter().map(|f| handle.spawn(f)).collect());
    });
    bound.join().unwrap();
    let cpus = cpus_of_workers();
    assert_eq!(cpus.len(), 4, "{cpus:?}");
    assert_eq!(BTreeSet::from_iter(cpus.iter().map(|(_, list)| list)).len(), 1, "{cpus:?}");
}

/// Fibers have all ended, and a worker's hook has not: the shutdown says so, and names no fiber.
#[test]
fn a_hook_that_takes_longer_than_the_grace_is_named() {
    let (lets_go, waits) = std::sync::mpsc::channel::<()>();
    let waits = std::sync::Mutex::new(waits);
    let hook = move || _ = waits.lock().unwrap().recv();
    let runtime = Runtime::builder().workers(1).on_worker_stop(hook).build().unwrap();
    runtime.run(|| ());
    let left = runtime.shutdown_timeout(Duration::from_millis(10)).unwrap_err();
    assert!(left.fibers().is_empty());
    assert_eq!(left.to_string(), "all fibers had ended, but 1 of the workers' threads had not: a worker hook takes its time");
    drop(lets_go);
}
