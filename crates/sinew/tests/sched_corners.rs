//! Corners of the scheduler that a review found: what hides behind a fiber that was woken last, behind a poll, behind another group, behind a bound thread.

mod common;

use std::cell::RefCell;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::{in_child, is_child, pair, poll_until, refuse, rounds, until};
use sinew::{Builder, Group, Io, JoinHandle, Launch, Queue, Runtime, Spin};

const GRACE: Duration = Duration::from_secs(60);

/// Starts a fiber that may move.
fn mover<T: Send + 'static>(launch: Launch, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    // SAFETY: the fibers of these tests keep nothing of a thread across a suspension.
    unsafe { Builder::new().launch(launch).spawn_migratable(f) }.unwrap()
}

/// Runs `test` in a process of its own.
fn alone(name: &str, test: impl FnOnce()) {
    if is_child(name) {
        return test();
    }
    let child = in_child(name, &[]);
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

/// Claim: what comes for a descriptor is seen however busy two fibers are that pass the worker to each other by the place of the one woken last.
#[test]
fn fibers_that_wake_each_other_do_not_hide_input() {
    for io in [Io::Uring, Io::Epoll] {
        let rt = Runtime::builder().workers(1).queue(Queue::Stealing).io(io).build().unwrap();
        let (mut near, mut far) = pair();
        let stop = Arc::new(AtomicBool::new(false));
        let turns = Arc::new(AtomicUsize::new(0));
        let (reads, ping) = rt.run({
            let (stop, turns) = (stop.clone(), turns.clone());
            move || {
                let reads = sinew::spawn(move || {
                    let mut byte = [0];
                    near.read_exact(&mut byte).unwrap();
                    byte[0]
                });
                (reads, sinew::spawn(move || ping_pong(&stop, &turns)))
            }
        });
        poll_until("the pair to talk", || turns.load(SeqCst) > 1_000);
        std::thread::scope(|s| {
            s.spawn(|| far.write_all(&[7]).unwrap());
        });
        poll_until("what was written to be read", || reads.is_finished());
        stop.store(true, SeqCst);
        assert_eq!(reads.join().unwrap(), 7);
        ping.join().unwrap();
        rt.shutdown_timeout(GRACE).unwrap();
    }
}

/// Two fibers that may move pass a token to and fro by `park` and `unpark` alone.
fn ping_pong(stop: &Arc<AtomicBool>, turns: &Arc<AtomicUsize>) {
    let place = Arc::new(std::sync::OnceLock::<sinew::Fiber>::new());
    let side = |stop: Arc<AtomicBool>, turns: Arc<AtomicUsize>, other: Arc<std::sync::OnceLock<sinew::Fiber>>| {
        move || {
            while !stop.load(SeqCst) {
                sinew::park();
                turns.fetch_add(1, SeqCst);
                other.get().unwrap().unpark();
            }
        }
    };
    let back = Arc::new(std::sync::OnceLock::new());
    let first = mover(Launch::Post, side(stop.clone(), turns.clone(), back.clone()));
    place.set(first.fiber().clone()).unwrap();
    let second = mover(Launch::Post, side(stop.clone(), turns.clone(), place));
    back.set(second.fiber().clone()).unwrap();
    first.fiber().unpark();
    first.join().unwrap();
    second.fiber().unpark();
    second.join().unwrap();
}

/// Claim: a worker with many settled fibers that leaves unstarted ones to a lighter worker does not lie down on a fiber that may move and was woken there last. By rounds in
/// which a settled fiber of the heavy worker wakes such a fiber, spawns a child, for which the other worker is called, and waits.
#[test]
fn a_heavy_worker_does_not_lie_down_on_the_fiber_woken_last() {
    let rt = Runtime::builder().workers(2).queue(Queue::Stealing).spin(Spin::Never).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let runs = Arc::new(AtomicUsize::new(0));
    let control = rt.spawn({
        let (stop, runs) = (stop.clone(), runs.clone());
        move || {
            let dispatched = |f: fn()| Builder::new().launch(Launch::Dispatch).spawn(f).unwrap();
            let weights: Vec<_> = (0..100).map(|_| dispatched(sinew::park)).collect();
            let woken = mover(Launch::Dispatch, {
                let stop = stop.clone();
                move || {
                    while !stop.load(SeqCst) {
                        sinew::park();
                        runs.fetch_add(1, SeqCst);
                    }
                }
            });
            loop {
                sinew::park();
                woken.fiber().unpark();
                if stop.load(SeqCst) {
                    break;
                }
                drop(sinew::spawn(|| ()));
            }
            woken.join().unwrap();
            weights.iter().for_each(|weight| weight.fiber().unpark());
            weights.into_iter().for_each(|weight| weight.join().unwrap());
        }
    });
    poll_until("the workers to sleep", || rt.metrics().workers.iter().all(|worker| worker.sleeping));
    for round in 1..=rounds(10_000) {
        control.fiber().unpark();
        poll_until("the fiber that was woken", || runs.load(SeqCst) >= round);
        poll_until("the workers to sleep", || rt.metrics().workers.iter().all(|worker| worker.sleeping));
    }
    stop.store(true, SeqCst);
    control.fiber().unpark();
    control.join().unwrap();
    rt.shutdown_timeout(GRACE).unwrap();
}

/// Claim: a worker that polls for long sees input by epoll all the same.
#[test]
fn a_long_poll_does_not_hide_input() {
    let rt = Runtime::builder().workers(1).io(Io::Epoll).spin(Spin::Fixed(Duration::from_secs(600))).build().unwrap();
    let (mut near, mut far) = pair();
    let reads = rt.spawn(move || {
        let mut byte = [0];
        near.read_exact(&mut byte).unwrap();
        byte[0]
    });
    poll_until("the worker to poll", || rt.metrics().workers[0].spinning && rt.metrics().workers[0].settled == 1);
    far.write_all(&[7]).unwrap();
    poll_until("what was written to be read", || reads.is_finished());
    assert_eq!(reads.join().unwrap(), 7);
    rt.shutdown_timeout(GRACE).unwrap();
}

/// A fiber that may move, waits for one wake, calls `then`, and tells that it did.
fn sleeper(then: impl FnOnce() + Send + 'static) -> (JoinHandle<()>, Arc<AtomicBool>) {
    let (waits, ran) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let (to_wait, to_run) = (waits.clone(), ran.clone());
    // Here: it is not to begin on another worker, and to be woken there.
    let fiber = mover(Launch::Dispatch, move || {
        to_wait.store(true, SeqCst);
        sinew::park();
        then();
        to_run.store(true, SeqCst);
    });
    until(|| waits.load(SeqCst));
    (fiber, ran)
}

/// Claim: a fiber that was woken by one that then holds its worker is taken by another, also if that one gets up for a deadline again and again, or polls for longer than from one to the next. Counted in these
/// deadlines: it watches for a millisecond, in which five of them come at most. (A busy worker finds out by itself, too, but only after 128 rounds, or twice as many.)
#[test]
fn deadlines_and_polls_do_not_put_off_the_rescue_of_a_fiber() {
    for spin in [Spin::Never, Spin::Adaptive, Spin::Fixed(Duration::from_micros(300)), Spin::Fixed(GRACE)] {
        let rt = Runtime::builder().workers(2).spin(spin).build().unwrap();
        rt.run(|| {
            let (ticks, stop) = <(Arc<AtomicUsize>, Arc<AtomicBool>)>::default();
            let ticker = sinew::spawn({
                let (ticks, stop) = (ticks.clone(), stop.clone());
                move || {
                    while !stop.load(SeqCst) {
                        ticks.fetch_add(1, SeqCst);
                        sinew::sleep(Duration::from_micros(200));
                    }
                }
            });
            // This fiber holds its worker: the ticker is the other one's.
            poll_until("the other worker", || ticks.load(SeqCst) > 1);
            for _ in 0..10 {
                // Read where it is taken: this thread may come late to see that.
                let taken = Arc::new(AtomicUsize::new(0));
                let (at, ticked) = (taken.clone(), ticks.clone());
                let (fiber, ran) = sleeper(move || at.store(ticked.load(SeqCst), SeqCst));
                fiber.fiber().unpark();
                let woken = ticks.load(SeqCst);
                poll_until("the other worker to take it", || ran.load(SeqCst));
                let passed = taken.load(SeqCst).saturating_sub(woken);
                assert!(passed < 16, "{spin:?}: {passed} ticks before it was taken");
                fiber.join().unwrap();
            }
            stop.store(true, SeqCst);
            ticker.join().unwrap();
        });
        rt.shutdown_timeout(GRACE).unwrap();
    }
}

/// Claim: nor does a poll that nothing else ends.
#[test]
fn a_long_poll_does_not_hide_a_fiber_woken_last() {
    let rt = Runtime::builder().workers(2).spin(Spin::Fixed(10 * GRACE)).build().unwrap();
    rt.run(|| {
        for _ in 0..10 {
            let (fiber, ran) = sleeper(|| ());
            fiber.fiber().unpark();
            poll_until("the other worker to take it", || ran.load(SeqCst));
            fiber.join().unwrap();
        }
    });
    rt.shutdown_timeout(GRACE).unwrap();
}

/// A fiber that stays, and holds its worker when it is told to.
struct Holder {
    fiber: JoinHandle<()>,
    holds: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
}

impl Holder {
    /// Two of them begin together, and so on two workers.
    fn start(place: Group, begun: &Arc<AtomicUsize>) -> Self {
        let (holds, ends) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (begun, is_held, is_over) = (begun.clone(), holds.clone(), ends.clone());
        let holder = move || {
            begun.fetch_add(1, SeqCst);
            poll_until("the other one", || begun.load(SeqCst) == 2);
            while !is_over.load(SeqCst) {
                sinew::park();
                // Until it is told that it is over, or nobody is left to tell it.
                while is_held.load(SeqCst) && Arc::strong_count(&is_held) > 1 {
                    std::thread::yield_now();
                }
            }
        };
        Self { fiber: Builder::new().group(place).pinned().spawn(holder).unwrap(), holds, ends }
    }

    fn begin(&self) {
        self.holds.store(true, SeqCst);
        self.fiber.fiber().unpark();
    }

    fn end(self) {
        self.ends.store(true, SeqCst);
        self.fiber.fiber().unpark();
        self.fiber.join().unwrap();
    }
}

/// How often the workers have lain down, and how many of them are asleep.
fn sleeps() -> (u64, usize) {
    let workers = sinew::metrics().workers;
    (workers.iter().map(|worker| worker.sleeps).sum(), workers.iter().filter(|worker| worker.sleeping).count())
}

/// Claim: the same if the worker that was called to watch gets something else to run, which holds it too: a third one watches in its place, of the same group or of another. The holder goes on only when the fiber has run.
#[test]
fn a_watch_is_passed_on() {
    for (spin, groups) in [(Spin::Never, 1), (Spin::Fixed(Duration::from_micros(50)), 1), (Spin::Never, 3)] {
        let rt = Runtime::builder().workers(3).group_size(3 / groups).steal_ratio_across_nodes(16).spin(spin).build().unwrap();
        let test = move || {
            let begun = Arc::new(AtomicUsize::new(0));
            let holders = [1, 2].map(|place| Holder::start(Group::foreground(place % groups), &begun));
            // This fiber holds its worker: they are on the two others.
            poll_until("both to begin", || begun.load(SeqCst) == 2);
            for round in 0..40 {
                let (fiber, ran) = sleeper(|| ());
                poll_until("the others to sleep", || sleeps().1 == 2);
                let (before, _) = sleeps();
                fiber.fiber().unpark();
                // While it is on its way, or when it watches.
                if round % 4 < 2 {
                    poll_until("the watcher to lie down again", || ran.load(SeqCst) || sleeps().0 > before);
                }
                // One of both is where the watcher is.
                holders[round % 2].begin();
                poll_until("the third worker to take it", || ran.load(SeqCst));
                holders[round % 2].holds.store(false, SeqCst);
                fiber.join().unwrap();
            }
            holders.into_iter().for_each(Holder::end);
        };
        rt.run(|| Builder::new().group(Group::foreground(0)).pinned().spawn(test).unwrap().join()).unwrap();
        rt.shutdown_timeout(GRACE).unwrap();
    }
}

/// Claim: a fiber that was woken last in a group whose workers all compute is taken by an idle worker of another group that steals there: one that sleeps, one that polls, and one that is idle only later.
#[test]
fn a_group_that_computes_does_not_keep_the_fiber_woken_last() {
    for spin in [Spin::Never, Spin::Adaptive, Spin::Fixed(10 * GRACE)] {
        let rt = Runtime::builder().workers(2).group_size(1).steal_ratio_across_nodes(16).spin(spin).build().unwrap();
        let test = move || {
            let begun = Arc::new(AtomicUsize::new(1));
            let holder = Holder::start(Group::foreground(1), &begun);
            for round in 0..20 {
                let (fiber, ran) = sleeper(|| ());
                let is_idle = || sinew::metrics().workers.iter().any(|worker| worker.sleeping || worker.spinning);
                if round % 2 == 0 {
                    poll_until("the other worker to be idle", is_idle);
                } else {
                    holder.begin();
                    poll_until("the other worker to be held", || !is_idle());
                }
                fiber.fiber().unpark();
                holder.holds.store(false, SeqCst);
                poll_until("the other group to take it", || ran.load(SeqCst));
                fiber.join().unwrap();
            }
            holder.end();
        };
        rt.run(|| Builder::new().group(Group::foreground(0)).pinned().spawn(test).unwrap().join()).unwrap();
        let thefts: u64 = rt.metrics().groups[1].thefts.iter().map(|theft| theft.won).sum();
        assert!(thefts != 0, "nothing was stolen");
        rt.shutdown_timeout(GRACE).unwrap();
    }
}

/// Claim: a stack that one group has no use for goes to a fiber of another that found none, also while the first is never idle.
#[test]
fn a_stack_goes_to_a_starved_fiber_of_another_group() {
    alone("a_stack_goes_to_a_starved_fiber_of_another_group", || {
        let rt = Runtime::builder().workers(2).group_size(1).steal_ratio(0).build().unwrap();
        let (stop, ran, spawned) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        // Three fibers, none of which ends, so that no stack is free: one that keeps the first group busy, one that waits there, one in the other group.
        let busy = rt.spawn({
            let stop = stop.clone();
            move || until(|| stop.load(SeqCst))
        });
        let (to_main, at_main) = std::sync::mpsc::channel();
        let parked = rt.spawn({
            let (stop, ran, spawned) = (stop.clone(), ran.clone(), spawned.clone());
            move || {
                let spawner = Builder::new().group(Group::foreground(1)).spawn(move || {
                    sinew::park();
                    drop(sinew::spawn(move || ran.store(true, SeqCst)));
                    spawned.store(true, SeqCst);
                    while !stop.load(SeqCst) {
                        sinew::park();
                    }
                });
                let waits = Builder::new().group(Group::foreground(0)).spawn(sinew::park);
                to_main.send((spawner.unwrap(), waits.unwrap())).unwrap();
                sinew::park();
            }
        });
        let (spawner, waits) = at_main.recv().unwrap();
        poll_until("all to have their stacks", || rt.metrics().workers.iter().map(|worker| worker.settled).sum::<usize>() == 4);
        sinew::hidden::fail_memory_after(0);
        spawner.fiber().unpark();
        poll_until("the child to starve", || spawned.load(SeqCst) && rt.metrics().workers[1].sleeping);
        assert!(!ran.load(SeqCst), "there was a stack for it");
        // A stack of the first group, whose worker does not rest.
        waits.fiber().unpark();
        poll_until("the starved fiber to run", || ran.load(SeqCst));
        sinew::hidden::fail_memory_after(u64::MAX);
        stop.store(true, SeqCst);
        [&parked, &spawner].into_iter().for_each(|fiber| fiber.fiber().unpark());
        [busy, parked, spawner, waits].into_iter().for_each(|fiber| fiber.join().unwrap());
        rt.shutdown_timeout(GRACE).unwrap();
    });
}

/// Claim: a guard that another fiber of the thread drops frees neither that one nor its maker, and harms nobody.
#[test]
fn a_guard_that_another_fiber_drops_is_not_that_ones() {
    std::thread_local!(static LEFT: RefCell<Option<sinew::Pin>> = const { RefCell::new(None) });
    common::alone(|| {
        let maker = sinew::spawn(|| LEFT.set(Some(sinew::pin())));
        maker.join().unwrap();
        let other = sinew::spawn(|| drop(LEFT.take()));
        other.join().unwrap();
    });
}

/// Claim: a thread of the blocking pool may run where the workers may, not only where the one may that happened to start it.
#[test]
fn a_blocking_thread_is_not_bound_to_its_makers_cpu() {
    alone("a_blocking_thread_is_not_bound_to_its_makers_cpu", || {
        let rt = Runtime::builder().workers(1).one_cpu_per_worker(true).build().unwrap();
        assert_eq!(rt.run(|| sinew::blocking(allowed_cpus)), allowed_cpus());
    });
}

/// Claim: a runtime that is built by a fiber whose worker is bound, or by a blocking job of it, has the CPUs of the process, as one that is built by any other thread.
#[test]
fn a_runtime_that_a_bound_worker_builds_has_the_process_cpus() {
    alone("a_runtime_that_a_bound_worker_builds_has_the_process_cpus", || {
        let described = || {
            let rt = Runtime::builder().build().unwrap();
            (rt.metrics().workers.len(), rt.run(allowed_cpus))
        };
        let outside = described();
        let cpus = allowed_cpus();
        let one = cpus.split([',', '-']).next().unwrap().to_owned();
        for outer in [Runtime::builder().workers(1).one_cpu_per_worker(true), Runtime::builder().workers(1).cpus(one)] {
            let outer = outer.build().unwrap();
            assert_eq!(outer.run(described), outside, "by a fiber");
            assert_eq!(outer.run(|| sinew::blocking(described)), outside, "by a job that blocks");
            outer.run(|| drop(Runtime::builder().workers(1).cpus(cpus.clone()).build().unwrap()));
            assert_eq!(outer.run(|| Runtime::builder().workers(0).build().unwrap_err().kind()), std::io::ErrorKind::InvalidInput);
        }
    });
}

/// Claim: where the system refuses to bind threads, a fiber of a bound worker, or a blocking job of it, builds a runtime all the same, and hears of it where it has asked for CPUs. That worker was bound before.
#[test]
fn a_runtime_that_a_bound_worker_builds_needs_no_leave_to_bind() {
    alone("a_runtime_that_a_bound_worker_builds_needs_no_leave_to_bind", || {
        let described = || {
            let refused = Runtime::builder().workers(1).one_cpu_per_worker(true).build().expect_err("it is refused");
            let rt = Runtime::builder().workers(1).build().expect("it asks for no CPUs");
            (refused.kind(), rt.run(allowed_cpus))
        };
        for error in [libc::EPERM, libc::EINVAL] {
            let outer = Runtime::builder().workers(1).one_cpu_per_worker(true).build().unwrap();
            let expected = (std::io::Error::from_raw_os_error(error).kind(), outer.run(allowed_cpus));
            outer.run(|| {
                refuse(libc::SYS_sched_setaffinity, error);
                assert_eq!(described(), expected, "by a fiber");
                assert_eq!(sinew::blocking(described), expected, "by a job that blocks");
            });
        }
    });
}

/// Claim: a yield counts as one switch, whether the fiber may move or not, is alone, or goes through the worker's loop.
#[test]
fn a_yield_counts_as_one_switch() {
    const YIELDS: u64 = 10_000;
    let switches = || sinew::metrics().workers.iter().map(|worker| worker.switches).sum::<u64>();
    let yields = || (0..YIELDS).for_each(|_| sinew::yield_now());
    // But for the first switch to each fiber, those of the counting one, and those of a turn that is not over.
    let is_so_many = |counted: u64, fibers: u64| assert!(counted.abs_diff(fibers * YIELDS) < 100, "{counted} for {fibers} x {YIELDS}");
    let settled = Runtime::builder().workers(1);
    // SAFETY: fibers of this test keep nothing of a thread.
    let moving = unsafe { Runtime::builder().workers(1).migrate_started_fibers() }.spare_workers(0);
    for rt in [settled, moving].map(|builder| builder.build().unwrap()) {
        for fibers in [1, 2, 10] {
            let counted = rt.run(|| {
                let before = switches();
                let all: Vec<_> = (0..fibers).map(|_| sinew::spawn(yields)).collect();
                all.into_iter().for_each(|fiber| fiber.join().unwrap());
                switches() - before
            });
            is_so_many(counted, fibers);
        }
    }
    // Beside one that waits at a socket a lone fiber goes through the loop, where sockets are looked at.
    let rt = Runtime::builder().workers(1).build().unwrap();
    let counted = rt.run(|| {
        let listener = sinew::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let waits = sinew::spawn(move || drop(listener.accept().unwrap()));
        sinew::yield_now();
        let before = switches();
        yields();
        let counted = switches() - before;
        let _stream = sinew::net::TcpStream::connect(addr).unwrap();
        waits.join().unwrap();
        counted
    });
    is_so_many(counted, 1);
}

/// Where the calling thread may run, as the kernel lists it.
fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
}

/// Workers take short turns where they share a CPU, and threads that they start for work that blocks do not. (A kernel before 6.12 tells of no slice: 0; and a
/// process that is run under another policy than the usual one is left alone.)
#[test]
fn workers_ask_for_short_slices_and_blocking_threads_do_not() {
    fn slice() -> (u32, u64) {
        // SAFETY: all zeroes is valid, and the kernel writes as much as there is room for.
        unsafe {
            let mut attributes: libc::sched_attr = std::mem::zeroed();
            let status = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size_of_val(&attributes), 0);
            assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
            (attributes.sched_policy, attributes.sched_runtime)
        }
    }
    let (policy, usual_ns) = slice();
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let [worker, pool] = runtime.run(|| [slice(), sinew::blocking(slice)]);
    let short_ns = if policy == libc::SCHED_OTHER as u32 { usual_ns.min(500_000) } else { usual_ns };
    assert_eq!((worker, pool), ((policy, short_ns), (policy, usual_ns)));
}
