//! Several groups of workers: who runs what where, who never leaves, and who steals from whom.

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::{Gate, await_until, group, in_child, is_child, poll_until};
use sinew::{Builder, Group, JoinHandle, Launch, Queue, Runtime, RuntimeBuilder, Spin};

/// So many groups of so many workers, on whatever machine.
fn groups(count: usize, size: usize) -> RuntimeBuilder {
    Runtime::builder().workers(count * size).group_size(size).steal_ratio_across_nodes(16)
}

/// Runs `f` in a fiber that stays in a group.
fn run_at<T: Send + 'static>(rt: &Runtime, place: Group, f: impl FnOnce() -> T + Send + 'static) -> T {
    rt.run(move || Builder::new().group(place).pinned().spawn(f).unwrap().join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Blocks `workers` threads of a group. By a fiber of another one.
fn hold(place: Group, workers: usize) -> (Gate, Vec<JoinHandle<()>>) {
    let gate = Gate::default();
    let holder = |_| {
        let gate = gate.clone();
        Builder::new().group(place).pinned().spawn(move || gate.hold()).unwrap()
    };
    let holders = (0..workers).map(holder).collect();
    await_until("the workers to be held", || gate.held() == workers);
    (gate, holders)
}

fn join_all<T>(handles: Vec<JoinHandle<T>>) -> Vec<T> {
    handles.into_iter().map(|h| h.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

/// A random number, by Marsaglia's xorshift.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

#[test]
fn a_fiber_runs_in_the_group_it_is_spawned_into() {
    let rt = groups(3, 2).background(2).build().unwrap();
    let ran = rt.run(|| {
        let at = |place| Builder::new().group(place).pinned().spawn(group).unwrap().join().unwrap();
        let foreground: Vec<_> = (0..3).map(|i| at(Group::foreground(i))).collect();
        let background: Vec<_> = (0..2).map(|i| at(Group::background(i))).collect();
        let mut any: Vec<_> = (0..9).map(|_| at(Group::any())).collect();
        any.sort();
        (foreground, background, any, at(Group::nearest()) == group())
    });
    assert_eq!(ran.0, ["0", "1", "2"]);
    assert_eq!(ran.1, ["b0", "b1"]);
    assert_eq!(ran.2, ["0", "0", "0", "1", "1", "1", "2", "2", "2"], "by turns");
    assert!(ran.3, "nearest is the spawner's own");
}

#[test]
fn plain_threads_choose_groups_too() {
    const TEST: &str = "plain_threads_choose_groups_too";
    if !is_child(TEST) {
        let child = in_child(TEST, &[("SINEW_WORKERS", "3"), ("SINEW_GROUP_SIZE", "1"), ("SINEW_BACKGROUND", "1")]);
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let at = |place| Builder::new().group(place).pinned().spawn(group).unwrap().join().unwrap();
    for i in 0..3 {
        assert_eq!(at(Group::foreground(i)), i.to_string());
    }
    assert_eq!(at(Group::background(0)), "b0");
    // By turns, both, so that a thread that spawns many fills all groups.
    for place in [Group::any(), Group::nearest()] {
        let turns: BTreeSet<_> = (0..3).map(|_| at(place)).collect();
        assert_eq!(turns.len(), 3, "{place:?}: {turns:?}");
    }
    // A group that is not there: the text says how many there are.
    for (place, said) in [(Group::foreground(3), "3 foreground groups"), (Group::background(1), "1 background group")] {
        let error = Builder::new().group(place).spawn(|| ()).unwrap_err();
        assert!(error.kind() == std::io::ErrorKind::InvalidInput && error.to_string().ends_with(said), "{error}");
    }
}

/// All that a fiber of a runtime can say of what it spawns there, a thread can that is none of its own; and a fiber of another one.
#[test]
fn whoever_spawns_can_choose_the_runtime() {
    let rt = groups(2, 1).background(1).build().unwrap();
    let handle = rt.handle();
    let new = || Builder::new().runtime(&handle);
    let check = || {
        let places = [Group::foreground(0), Group::foreground(1), Group::background(0)];
        let at = places.map(|place| new().group(place).pinned().spawn(group).unwrap().join().unwrap());
        assert_eq!(at, ["0", "1", "b0"]);
        let refusal = new().group(Group::background(1)).spawn(group).unwrap_err().to_string();
        assert_eq!(refusal, "Group::background(1) is refused: the runtime has 1 background group");
        // The foreground groups, by turns, as nobody here is of one.
        for place in [Group::nearest(), Group::any()] {
            let at: BTreeSet<_> = (0..2).map(|_| new().group(place).pinned().spawn(group).unwrap().join().unwrap()).collect();
            assert_eq!(at.into_iter().collect::<Vec<_>>(), ["0", "1"], "{place:?}");
        }
        let batch = new().group(Group::background(0)).spawn_batch((0..20).map(|_| group)).unwrap();
        assert_eq!(join_all(batch), vec!["b0"; 20]);
        // SAFETY: it holds nothing over the yield.
        let moved = unsafe {
            new().group(Group::foreground(1)).pinned().spawn_migratable(|| {
                sinew::yield_now();
                group()
            })
        };
        assert_eq!(moved.unwrap().join().unwrap(), "1");
        // What it spawns is of that runtime too.
        let child = new().group(Group::background(0)).spawn(|| sinew::spawn(group).join().unwrap());
        assert_eq!(child.unwrap().join().unwrap(), "b0");
        let mut borrowed = String::new();
        sinew::scope(|s| {
            let fill = || borrowed = group();
            new().group(Group::foreground(1)).pinned().spawn_scoped(s, fill).unwrap();
        });
        assert_eq!(borrowed, "1");
    };
    check();
    sinew::run(check);
    // And the default runtime is as it was: none of them has come there.
    drop(rt);
    let refusal = new().spawn(|| ()).unwrap_err().to_string();
    assert_eq!(refusal, "no new fibers: the runtime is being shut down");
    assert!(new().spawn_batch([|| (), || ()]).is_err());
}

/// Nobody is woken for what is spawned quietly before the flush of that runtime.
#[test]
fn a_flush_from_a_plain_thread_wakes_the_runtime_that_is_meant() {
    let rt = Runtime::builder().workers(2).spin(Spin::Never).build().unwrap();
    let handle = rt.handle();
    let woken = || (rt.metrics().wakes_by_sleeper, rt.metrics().wakes_by_spinner);
    for flush in [|rt: &Runtime| rt.flush(), |rt: &Runtime| rt.handle().flush()] {
        poll_until("all to sleep", || rt.metrics().workers.iter().all(|w| w.sleeping));
        let before = woken();
        let ran = Arc::new(AtomicUsize::new(0));
        let quiet = |_| {
            let ran = ran.clone();
            Builder::new().runtime(&handle).quiet().spawn(move || ran.fetch_add(1, SeqCst)).unwrap()
        };
        let fibers: Vec<_> = (0..10).map(quiet).collect();
        // That of the default runtime is another matter.
        sinew::flush();
        assert_eq!(woken(), before, "somebody was woken");
        flush(&rt);
        join_all(fibers);
        assert_eq!(ran.load(SeqCst), 10);
    }
}

#[test]
fn a_group_that_is_not_there_is_an_error_that_says_how_many_there_are() {
    let rt = groups(2, 1).build().unwrap();
    let alive = Arc::new(());
    for (place, said) in [
        (Group::foreground(2), "Group::foreground(2) is refused: the runtime has 2 foreground groups"),
        (Group::foreground(usize::MAX), "the runtime has 2 foreground groups"),
        (Group::background(0), "Group::background(0) is refused: the runtime has 0 background groups"),
    ] {
        let kept = alive.clone();
        let error = rt.run(move || Builder::new().group(place).pinned().spawn(move || drop(kept)).unwrap_err());
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(said), "{error}");
        let kept = alive.clone();
        let error = rt.run(move || sinew::scope(|s| Builder::new().group(place).spawn_scoped(s, move || drop(kept)).unwrap_err()));
        assert!(error.to_string().contains(said), "{error}");
    }
    assert_eq!(Arc::strong_count(&alive), 1, "what was refused was dropped");
    poll_until("the last end", || rt.metrics().ended == rt.metrics().spawned);
    assert_eq!(rt.metrics().spawned, 6, "nothing was made but the fibers that tried");
}

#[test]
fn what_a_fiber_spawns_stays_in_its_group() {
    let rt = groups(3, 1).background(1).steal_ratio(0).steal_ratio_across_nodes(0).build().unwrap();
    for (place, name) in [(Group::foreground(1), "1"), (Group::foreground(2), "2"), (Group::background(0), "b0")] {
        let ran = run_at(&rt, place, || {
            let mut ran = vec![group()];
            ran.extend(join_all((0..20).map(|_| sinew::spawn(|| sinew::spawn(group).join().unwrap())).collect()));
            ran.extend(join_all(sinew::spawn_batch((0..20).map(|_| group))));
            ran.push(sinew::run(group));
            ran.push(sinew::scope(|s| s.spawn(group).join().unwrap()));
            let (tell, told) = sinew::chan::unbounded();
            let hops = tell.clone();
            sinew::hop(move || hops.send(group()).unwrap());
            sinew::time::Timer::after(Duration::from_micros(50), move || tell.send(group()).unwrap()).detach();
            ran.extend([told.recv().unwrap(), told.recv().unwrap()]);
            ran
        });
        assert!(ran.iter().all(|at| at == name), "{name}: {ran:?}");
    }
}

#[test]
fn worker_threads_are_named_by_group_and_index() {
    let rt = groups(2, 2).background(1).build().unwrap();
    let names = rt.run(|| {
        let names = Arc::new(Mutex::new(BTreeSet::new()));
        let all: Vec<_> = [Group::foreground(0), Group::foreground(1), Group::background(0)]
            .into_iter()
            .flat_map(|place| [place, place])
            .map(|place| {
                let names = names.clone();
                let meet = move || {
                    // Each blocks its thread until all threads have been seen, this fiber's own but for one.
                    names.lock().unwrap().insert(std::thread::current().name().unwrap().to_owned());
                    poll_until("all workers", || names.lock().unwrap().len() == 6);
                };
                Builder::new().group(place).pinned().spawn(meet).unwrap()
            })
            .collect();
        join_all(all);
        names.lock().unwrap().clone()
    });
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["sinew-0.0", "sinew-0.1", "sinew-1.0", "sinew-1.1", "sinew-b0.0", "sinew-b0.1"]);
}

#[test]
fn foreground_and_background_groups_never_steal_from_each_other() {
    let rt = groups(2, 1).background(2).build().unwrap();
    for (kept, other) in [(Group::background(0), Group::foreground(0)), (Group::foreground(0), Group::background(0))] {
        // Both groups of a sort are held and get work that nobody is bound to; those of the other sort have nothing but idle passes.
        let ran = run_at(&rt, other, move || {
            let second = if kept == Group::background(0) { Group::background(1) } else { Group::foreground(1) };
            let held = [hold(kept, 1), hold(second, 1)];
            let waiting: Vec<_> =
                (0..200).map(|i| Builder::new().group(if i % 2 == 0 { kept } else { second }).spawn(group).unwrap()).collect();
            let passes: Vec<_> = (0..200)
                .map(|i| {
                    Builder::new().group(other).spawn(move || (0..i % 4).for_each(|_| sinew::sleep(Duration::from_micros(10)))).unwrap()
                })
                .collect();
            join_all(passes);
            assert!(waiting.iter().all(|h| !h.is_finished()), "somebody came");
            held.into_iter().for_each(|(gate, holders)| {
                gate.open();
                join_all(holders);
            });
            join_all(waiting)
        });
        let sort = if kept == Group::background(0) { "b" } else { "" };
        assert!(ran.iter().all(|at| at.starts_with('b') == (sort == "b")), "{ran:?}");
    }
    let metrics = rt.metrics();
    for group in &metrics.groups {
        let victims: Vec<_> = group.thefts.iter().map(|theft| metrics.groups[theft.from].background).collect();
        assert_eq!(victims, [group.background], "one victim, of its own sort");
    }
}

/// Waits once, in one of the ways there are, and says whether it is still where it was. `wake` has somebody elsewhere wake the fiber or answer it.
fn wait_somehow(seed: &mut u64, wake: &mpsc::Sender<Wake>) {
    match next(seed) % 6 {
        0 | 1 => sinew::yield_now(),
        2 => sinew::sleep(Duration::from_micros(next(seed) % 50)),
        3 => {
            let woken = Arc::new(AtomicBool::new(false));
            wake.send(Wake::Park(sinew::current(), woken.clone())).unwrap();
            while !woken.load(SeqCst) {
                sinew::park();
            }
        }
        4 => {
            let (answer, answered) = sinew::chan::oneshot();
            wake.send(Wake::Answer(answer)).unwrap();
            answered.recv().unwrap();
        }
        _ => drop(Builder::new().launch(sinew::Launch::Dispatch).spawn(|| ()).unwrap().join()),
    }
}

enum Wake {
    Park(sinew::Fiber, Arc<AtomicBool>),
    Answer(sinew::chan::oneshot::Sender<()>),
}

fn wake_all(wakes: mpsc::Receiver<Wake>) {
    for wake in wakes {
        match wake {
            Wake::Park(fiber, woken) => {
                woken.store(true, SeqCst);
                fiber.unpark();
            }
            Wake::Answer(answer) => drop(answer.send(())),
        }
    }
}

/// flare's test of group-local fibers: 10,000, each of which waits in all ways. All in one group, so that the others are idle thieves, or in all.
fn assert_pinned_stay(rt: &Runtime, places: usize) {
    let (wake, wakes) = mpsc::channel();
    std::thread::scope(|s| {
        s.spawn(|| wake_all(wakes));
        rt.run(move || {
            let fiber = |i: usize| {
                let (home, wake) = (i % places, wake.clone());
                let body = move || {
                    let mut seed = i as u64 + 1;
                    for _ in 0..8 {
                        assert_eq!(group(), home.to_string());
                        wait_somehow(&mut seed, &wake);
                    }
                    group()
                };
                Builder::new().group(Group::foreground(home)).pinned().spawn(body).unwrap()
            };
            let homes = join_all((0..10_000).map(fiber).collect());
            assert!(homes.iter().enumerate().all(|(i, at)| *at == (i % places).to_string()));
        });
    });
}

#[test]
fn pinned_fibers_never_leave_their_group() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = groups(3, 1).queue(queue).build().unwrap();
        assert_pinned_stay(&rt, 3);
        assert_pinned_stay(&rt, 1);
    }
}

#[test]
fn pinned_fibers_that_may_move_never_leave_their_group() {
    for queue in [Queue::Shared, Queue::Stealing] {
        // SAFETY: the fibers of this test keep nothing of a thread across a suspension.
        let rt = unsafe { groups(2, 2).spare_workers(0).queue(queue).migrate_started_fibers() }.build().unwrap();
        assert_pinned_stay(&rt, 2);
        assert_pinned_stay(&rt, 1);
    }
}

#[test]
fn the_rest_of_a_pinned_fiber_is_pinned() {
    let rt = groups(2, 1).background(1).build().unwrap();
    let at = run_at(&rt, Group::background(0), || {
        let gate = Gate::default();
        let (tell, told) = mpsc::channel();
        let inside = gate.clone();
        // It hops and holds its worker: group 1 is idle, and would take the rest if it might.
        let hops = move || {
            sinew::hop(move || tell.send(group()).unwrap());
            inside.hold();
        };
        let hopper = Builder::new().group(Group::foreground(0)).pinned().spawn(hops).unwrap();
        await_until("the hop", || gate.held() == 1);
        // What is not pinned is stolen meanwhile, from the same place: the thief has been there.
        let free = Builder::new().group(Group::foreground(0)).spawn(group).unwrap();
        assert_eq!(free.join().unwrap(), "1");
        gate.open();
        hopper.join().unwrap();
        told.recv().unwrap()
    });
    assert_eq!(at, "0");
}

#[test]
fn a_pinned_head_does_not_hide_what_is_behind_it() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = groups(2, 2).background(1).queue(queue).build().unwrap();
        let (free, pinned) = run_at(&rt, Group::background(0), || {
            let (gate, holders) = hold(Group::foreground(0), 2);
            let head = Builder::new().group(Group::foreground(0)).pinned().spawn(group).unwrap();
            let free = join_all((0..999).map(|_| Builder::new().group(Group::foreground(0)).spawn(group).unwrap()).collect());
            assert!(!head.is_finished());
            gate.open();
            join_all(holders);
            (free, head.join().unwrap())
        });
        assert!(free.iter().all(|at| at == "1"), "{queue:?}");
        assert_eq!(pinned, "0", "{queue:?}");
    }
}

/// Claim: what no thief may take wakes none, though its own group has no worker to spare.
#[test]
fn pinned_fibers_wake_nobody_of_another_group() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = groups(2, 1).background(1).queue(queue).build().unwrap();
        run_at(&rt, Group::background(0), move || {
            let (gate, holders) = hold(Group::foreground(0), 1);
            await_until("group 1 to sleep", || sinew::metrics().groups[1].sleeping == 1);
            let wakes = || {
                let group = &sinew::metrics().groups[1];
                group.wakes_by_spinner + group.wakes_by_sleeper
            };
            let before = wakes();
            let pinned = (0..10).map(|_| Builder::new().group(Group::foreground(0)).pinned().spawn(group).unwrap()).collect();
            assert_eq!(wakes(), before, "{queue:?}");
            let free = Builder::new().group(Group::foreground(0)).spawn(group).unwrap();
            assert_eq!((wakes(), free.join().unwrap().as_str()), (before + 1, "1"), "{queue:?}");
            gate.open();
            join_all(holders);
            assert!(join_all(pinned).iter().all(|at| at == "0"), "{queue:?}");
        });
    }
}

#[test]
fn a_sleeping_group_is_woken_to_steal() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = groups(2, 1).background(1).queue(queue).build().unwrap();
        run_at(&rt, Group::background(0), || {
            let (gate, holders) = hold(Group::foreground(0), 1);
            for round in 1..=200 {
                await_until("group 1 to sleep", || sinew::metrics().groups[1].sleeping == 1);
                let stolen = Builder::new().group(Group::foreground(0)).spawn(group).unwrap();
                assert_eq!(stolen.join().unwrap(), "1");
                let theft = sinew::metrics().groups[1].thefts[0];
                assert!(theft.from == 0 && theft.won >= round && theft.tried >= theft.won, "{theft:?}");
            }
            gate.open();
            join_all(holders);
        });
        assert_eq!(rt.metrics().groups[0].thefts[0].won, 0);
    }
}

#[test]
fn children_of_a_fiber_that_blocks_its_thread_are_stolen_by_another_group() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = groups(2, 1).queue(queue).build().unwrap();
        let ran = run_at(&rt, Group::foreground(0), || {
            let children: Vec<_> = (0..1000).map(|_| sinew::spawn(group)).collect();
            poll_until("all children, on this blocked thread", || children.iter().all(JoinHandle::is_finished));
            join_all(children)
        });
        assert!(ran.iter().all(|at| at == "1"), "{queue:?}");
        assert!(rt.metrics().groups[1].thefts[0].won >= 1000 - 256);
    }
}

#[test]
fn one_overloaded_group_calls_all_others() {
    // Each fiber of a batch blocks its thread until all are there: group 0 has one worker.
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = groups(4, 1).background(1).queue(queue).build().unwrap();
        for round in 0..100 {
            let at = run_at(&rt, Group::background(0), move || {
                if round % 2 == 0 {
                    await_until("all to sleep", || sinew::metrics().groups[..4].iter().all(|group| group.sleeping == 1));
                }
                let here = Arc::new(AtomicUsize::new(0));
                let meet = move || {
                    here.fetch_add(1, SeqCst);
                    poll_until("the whole batch", || here.load(SeqCst) == 4);
                    group()
                };
                let batch: Vec<_> = (0..4).map(|_| meet.clone()).collect();
                let spawner = Builder::new().group(Group::foreground(0)).pinned().spawn(|| sinew::spawn_batch(batch)).unwrap();
                join_all(spawner.join().unwrap())
            });
            assert_eq!(BTreeSet::from_iter(at).len(), 4);
        }
    }
}

#[test]
fn a_thief_that_was_called_by_two_groups_comes_to_both() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = groups(3, 1).background(1).queue(queue).build().unwrap();
        for _ in 0..50 {
            run_at(&rt, Group::background(0), || {
                let (gate, holders) = hold(Group::foreground(0), 1);
                let (first, firsts) = hold(Group::foreground(1), 1);
                let (second, seconds) = hold(Group::foreground(2), 1);
                // Nobody is idle: both groups leave word at group 0.
                let calls = [1, 2].map(|i| Builder::new().group(Group::foreground(i)).spawn(group).unwrap());
                gate.open();
                join_all(holders);
                assert!(calls.into_iter().all(|call| call.join().unwrap() == "0"));
                first.open();
                second.open();
                join_all(firsts);
                join_all(seconds);
            });
        }
    }
}

#[test]
fn with_a_steal_ratio_of_zero_nobody_steals() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = groups(2, 1).background(1).queue(queue).steal_ratio(0).steal_ratio_across_nodes(0).build().unwrap();
        let ran = run_at(&rt, Group::background(0), || {
            let (gate, holders) = hold(Group::foreground(0), 1);
            let waiting: Vec<_> = (0..200).map(|_| Builder::new().group(Group::foreground(0)).spawn(group).unwrap()).collect();
            // Group 1 has many idle passes.
            for _ in 0..200 {
                Builder::new().group(Group::foreground(1)).spawn(|| ()).unwrap().join().unwrap();
            }
            assert!(waiting.iter().all(|h| !h.is_finished()), "somebody came");
            gate.open();
            join_all(holders);
            join_all(waiting)
        });
        assert!(ran.iter().all(|at| at == "0"), "{queue:?}");
        assert!(rt.metrics().groups.iter().all(|group| group.thefts.is_empty()));
    }
}

/// Claim: an idle worker looks into another group in one of so many idle passes. Each wake of a settled fiber ends in one; what else gets the worker up is rare.
#[test]
fn an_idle_worker_looks_into_another_group_once_in_so_many_passes() {
    const WAKES: u64 = 320;
    for ratio in [1, 4, 16] {
        let rt = groups(2, 1).steal_ratio(ratio).steal_ratio_across_nodes(ratio).spin(Spin::Never).build().unwrap();
        let turns = Arc::new(AtomicU64::new(0));
        let counts = turns.clone();
        let waits = move || {
            for turn in 0..WAKES {
                counts.store(turn, SeqCst);
                sinew::park();
            }
        };
        let parked = rt.run(|| Builder::new().group(Group::foreground(1)).pinned().spawn(waits).unwrap());
        let await_pass = |turn| poll_until("an idle pass", || turns.load(SeqCst) == turn && rt.metrics().groups[1].sleeping == 1);
        let tried = || rt.metrics().groups[1].thefts[0].tried;
        await_pass(0);
        let before = tried();
        for turn in 1..WAKES {
            parked.fiber().unpark();
            await_pass(turn);
        }
        let (looks, expected) = (tried() - before, WAKES / ratio as u64);
        assert!((expected - 1..=expected * 5 / 4).contains(&looks), "1 in {ratio}: {looks} looks in {WAKES} passes");
        parked.fiber().unpark();
        parked.join().unwrap();
    }
}

#[test]
fn a_started_fiber_that_may_not_move_stays_on_its_thread() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = groups(3, 1).queue(queue).build().unwrap();
        let (wake, wakes) = mpsc::channel();
        std::thread::scope(|s| {
            s.spawn(|| wake_all(wakes));
            rt.run(move || {
                // All in one group, which is overloaded; the others are idle and steal what has not begun.
                let fiber = |i: u64| {
                    let wake = wake.clone();
                    let body = move || {
                        let (thread, mut seed) = (std::thread::current().id(), i + 1);
                        for _ in 0..8 {
                            wait_somehow(&mut seed, &wake);
                            assert_eq!(std::thread::current().id(), thread);
                        }
                    };
                    Builder::new().group(Group::foreground(0)).spawn(body).unwrap()
                };
                join_all((0..3_000).map(fiber).collect());
            });
        });
    }
}

#[test]
fn groups_shut_down_with_work_of_all_kinds_in_them() {
    for round in 0..50 {
        let rt = groups(3, 1).background(1).queue(if round % 2 == 0 { Queue::Shared } else { Queue::Stealing }).build().unwrap();
        let alive = Arc::new(());
        let kept = alive.clone();
        rt.run(move || {
            for i in 0..400 {
                let (kept, place) = (kept.clone(), [Group::foreground(i % 3), Group::background(0), Group::any(), Group::nearest()][i % 4]);
                let builder = Builder::new().group(place);
                let builder = if i % 5 == 0 { builder.pinned() } else { builder };
                let builder = if i % 7 == 0 { builder.quiet() } else { builder };
                let body = move || {
                    let _kept = kept;
                    match i % 3 {
                        0 => sinew::yield_now(),
                        1 => sinew::park(),
                        _ => sinew::sleep(Duration::from_secs(3600)),
                    }
                };
                drop(builder.spawn(body).unwrap());
            }
        });
        rt.shutdown_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}

#[test]
fn a_timer_stays_in_the_group_that_made_it() {
    let rt = groups(2, 1).background(1).steal_ratio(0).steal_ratio_across_nodes(0).build().unwrap();
    // The background group makes the first one of the runtime, and is held then: the others' timers do not wait for it.
    let (gate, first) = run_at(&rt, Group::background(0), || {
        let (tell, first) = sinew::chan::unbounded();
        sinew::time::Timer::after(Duration::from_micros(1), move || tell.send(group()).unwrap()).detach();
        let gate = Gate::default();
        let inside = gate.clone();
        drop(sinew::spawn(move || inside.hold()));
        (gate, first)
    });
    poll_until("the background group to be held", || gate.held() == 1);
    for (place, name) in [(Group::foreground(0), "0"), (Group::foreground(1), "1")] {
        let ran = run_at(&rt, place, || {
            let (tell, told) = sinew::chan::unbounded();
            let _timer = sinew::time::Timer::every(Duration::from_micros(20), move || tell.send(group()).unwrap());
            (0..10).map(|_| told.recv().unwrap()).collect::<Vec<_>>()
        });
        assert!(ran.iter().all(|at| at == name), "{name}: {ran:?}");
    }
    gate.open();
    assert_eq!(first.recv().unwrap(), "b0");
}

#[test]
fn latencies_are_those_of_the_group_that_did_the_work() {
    let rt = Runtime::builder().workers(3).group_size(1).steal_ratio(0).build().unwrap();
    // One start in 64 is timed. The root of `run` begins in one of the other groups, so nothing does in the third.
    rt.run(|| {
        let in_group_2 = || Builder::new().group(Group::foreground(2)).spawn(sinew::yield_now).unwrap();
        let fibers: Vec<_> = (0..1000).map(|_| in_group_2()).collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
    let metrics = rt.metrics();
    let busy = metrics.groups[2].latencies;
    assert!(busy.start_p50.is_some() && busy.start_p50 <= busy.start_p99, "{busy:?}");
    assert_eq!(metrics.workers[2].latencies.start_p99, busy.start_p99);
    assert!(metrics.latencies.start_p99.is_some());
    assert!(metrics.groups[..2].iter().any(|group| group.latencies.start_p99.is_none()), "{:?}", metrics.groups);
}

#[test]
fn a_batch_goes_where_its_builder_says_and_a_pinned_one_stays() {
    let rt = Runtime::builder().workers(2).group_size(1).steal_ratio(1).build().unwrap();
    rt.run(|| {
        for number in [0, 1] {
            // Group 0 or 1 is idle, and would steal.
            let batch = Builder::new().name("one of many").group(Group::foreground(number)).pinned();
            let works = || {
                (0..3).for_each(|_| sinew::yield_now());
                (group(), sinew::current().name().map(str::to_owned))
            };
            for (at, name) in join_all(batch.spawn_batch((0..500).map(|_| works)).unwrap()) {
                assert_eq!((at, name.as_deref()), (number.to_string(), Some("one of many")));
            }
        }
    });
}

#[test]
fn a_batch_that_is_refused_starts_nothing() {
    let rt = Runtime::builder().workers(1).build().unwrap();
    let alive = Arc::new(());
    rt.run(|| {
        let batch = || {
            let kept = alive.clone();
            (0..10).map(move |_| {
                let kept = kept.clone();
                move || drop(kept)
            })
        };
        let before = sinew::metrics().spawned;
        let error = Builder::new().group(Group::foreground(7)).spawn_batch(batch()).unwrap_err();
        assert!(error.to_string().contains("foreground(7)"), "{error}");
        let error = Builder::new().launch(Launch::Dispatch).spawn_batch(batch()).unwrap_err();
        assert!(error.to_string().contains("Dispatch"), "{error}");
        assert_eq!((sinew::metrics().spawned, Arc::strong_count(&alive)), (before, 1));
        // Quietly: the one worker is awake, and comes to them.
        assert_eq!(join_all(Builder::new().quiet().spawn_batch(batch()).unwrap()).len(), 10);
    });
}
