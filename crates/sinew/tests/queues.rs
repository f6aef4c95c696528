//! Both kinds of queue and both policies: the same results from all four, and nothing starves in any.

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Gate, poll_until, until};
use sinew::{Builder, JoinHandle, Policy, Queue, Runtime};

/// So many yields, or fibers, of a stream must be enough for what waits beside it.
const ENOUGH: usize = 200_000;

const ALL: [(Queue, Policy); 4] = [
    (Queue::Shared, Policy::Affinity),
    (Queue::Shared, Policy::Balance),
    (Queue::Stealing, Policy::Affinity),
    (Queue::Stealing, Policy::Balance),
];

fn runtime(workers: usize, (queue, policy): (Queue, Policy)) -> Runtime {
    Runtime::builder().workers(workers).group_size(workers).queue(queue).policy(policy).build().unwrap()
}

/// Runs a test with all four, and names the one that fails.
fn with_all(workers: usize, test: impl Fn(&Runtime, (Queue, Policy))) {
    for kind in ALL {
        println!("{kind:?}");
        let rt = runtime(workers, kind);
        test(&rt, kind);
        rt.shutdown_timeout(Duration::from_secs(60)).unwrap_or_else(|left| panic!("{kind:?}: {left:?}"));
    }
}

fn join_all<T>(handles: Vec<JoinHandle<T>>) -> Vec<T> {
    handles.into_iter().map(|h| h.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

fn tree(depth: usize) -> usize {
    if depth == 0 {
        return 1;
    }
    let children: Vec<_> = (0..3).map(|_| sinew::spawn(move || tree(depth - 1))).collect();
    if depth.is_multiple_of(2) {
        sinew::yield_now();
    }
    join_all(children).into_iter().sum::<usize>() + 1
}

#[test]
fn trees_of_fibers_add_up() {
    with_all(2, |rt, _| assert_eq!(rt.run(|| tree(8)), (3usize.pow(9) - 1) / 2));
    with_all(1, |rt, _| assert_eq!(rt.run(|| tree(7)), (3usize.pow(8) - 1) / 2));
}

#[test]
fn rings_of_fibers_pass_a_token_on() {
    with_all(2, |rt, _| {
        let sum = rt.run(|| {
            let (first, mut last) = sinew::chan::bounded::<usize>(1);
            for _ in 0..100 {
                let (next, end) = sinew::chan::bounded(1);
                let from = std::mem::replace(&mut last, end);
                sinew::spawn(move || from.iter().for_each(|n| next.send(n + 1).unwrap()));
            }
            (0..100)
                .map(|i| {
                    first.send(i).unwrap();
                    last.recv().unwrap()
                })
                .sum::<usize>()
        });
        assert_eq!(sum, (0..100).map(|i| i + 100).sum());
    });
}

#[test]
fn fibers_and_threads_wait_for_each_other() {
    with_all(2, |rt, _| {
        let (to_fibers, requests) = sinew::chan::bounded::<usize>(16);
        let (to_threads, answers) = sinew::chan::bounded::<usize>(16);
        let servers: Vec<_> = (0..8)
            .map(|_| {
                let (requests, to_threads) = (requests.clone(), to_threads.clone());
                rt.spawn(move || {
                    for n in requests.iter() {
                        sinew::sleep(Duration::from_micros(n as u64 % 20));
                        to_threads.send(n * 2).unwrap();
                    }
                })
            })
            .collect();
        drop(to_threads);
        std::thread::scope(|s| {
            s.spawn(|| {
                (0..5_000).for_each(|n| to_fibers.send(n).unwrap());
                drop(to_fibers);
            });
            assert_eq!(answers.iter().sum::<usize>(), 4_999 * 5_000);
        });
        join_all(servers);
    });
}

/// flare's torture of its workers: 64 of them, and 128 threads that start 32,768 fibers.
#[test]
fn many_threads_feed_as_many_workers_as_a_group_may_have() {
    const THREADS: usize = 128;
    const EACH: usize = 256;
    with_all(64, |rt, kind| {
        let ran = Arc::new(AtomicUsize::new(0));
        let feed = || {
            let count = |_| {
                let ran = ran.clone();
                rt.spawn(move || {
                    sinew::yield_now();
                    ran.fetch_add(1, SeqCst)
                })
            };
            join_all((0..EACH).map(count).collect());
        };
        std::thread::scope(|s| (0..THREADS).for_each(|_| _ = s.spawn(feed)));
        assert_eq!(ran.load(SeqCst), THREADS * EACH, "{kind:?}");
    });
}

/// Holds the one worker of `rt` until the gate is opened.
fn hold(rt: &Runtime) -> Gate {
    let gate = Gate::default();
    let inside = gate.clone();
    rt.spawn(move || inside.hold());
    poll_until("the worker to be held", || gate.held() == 1);
    gate
}

#[test]
fn a_shared_queue_starts_first_who_came_first() {
    // Also if what it starts yields, waits and has others run between: children and all.
    for policy in [Policy::Affinity, Policy::Balance] {
        let rt = runtime(1, (Queue::Shared, policy));
        for yields in [0, 1, 3] {
            let gate = hold(&rt);
            let order = Arc::new(Mutex::new(Vec::new()));
            let fibers: Vec<_> = (0..1_000)
                .map(|i| {
                    let order = order.clone();
                    rt.spawn(move || {
                        order.lock().unwrap().push(i);
                        (0..yields).for_each(|_| sinew::yield_now());
                    })
                })
                .collect();
            gate.open();
            join_all(fibers);
            assert!(order.lock().unwrap().iter().copied().eq(0..1_000), "{policy:?}, {yields} yields: {:?}", order.lock().unwrap());
        }
        let started = rt.run(|| {
            let order = Arc::new(Mutex::new(Vec::new()));
            let note = |i| {
                let order = order.clone();
                sinew::spawn(move || order.lock().unwrap().push(i))
            };
            join_all((0..1_000).map(note).collect());
            order.lock().unwrap().clone()
        });
        assert!(started.iter().copied().eq(0..1_000), "{policy:?}: a fiber's children: {started:?}");
    }
}

#[test]
fn a_pinned_fiber_and_a_free_one_take_turns() {
    // Both wait in one group; a long line of either sort does not hide the other.
    with_all(1, |rt, kind| {
        let (pinned_first, free_first) = rt.run(|| {
            let spawn = |pinned: bool, f: Box<dyn FnOnce() + Send>| {
                let builder = Builder::new();
                (if pinned { builder.pinned() } else { builder }).spawn(f).unwrap()
            };
            [true, false]
                .map(|many_pinned| {
                    let ran = Arc::new(AtomicUsize::new(0));
                    let mut fibers = Vec::new();
                    for _ in 0..2_000 {
                        let ran = ran.clone();
                        fibers.push(spawn(many_pinned, Box::new(move || _ = ran.fetch_add(1, SeqCst))));
                    }
                    let (before, ran_before) = (ran.clone(), Arc::new(AtomicUsize::new(0)));
                    let seen = ran_before.clone();
                    fibers.push(spawn(!many_pinned, Box::new(move || seen.store(before.load(SeqCst), SeqCst))));
                    join_all(fibers);
                    ran_before.load(SeqCst)
                })
                .into()
        });
        assert!(pinned_first < 2_000 && free_first < 2_000, "{kind:?}: the one came after {pinned_first} pinned, {free_first} free ones");
    });
}

#[test]
fn a_yield_lets_a_child_begin_wherever_it_waits() {
    with_all(1, |rt, kind| {
        rt.run(move || {
            for pinned in [false, true, true, false] {
                let builder = Builder::new();
                let child = (if pinned { builder.pinned() } else { builder }).spawn(|| ()).unwrap();
                sinew::yield_now();
                assert!(child.is_finished(), "{kind:?}, pinned {pinned}");
            }
        });
    });
}

/// Local work without end: how it goes on, step by step, until it is told to stop.
#[derive(Clone, Copy, Debug)]
enum Stream {
    /// Two fibers that yield to each other.
    Yields,
    /// One that yields to nobody.
    YieldsAlone,
    /// Each spawns the next and ends.
    Respawns,
    /// The same, with stacks of two sizes, so that none can go on where the last one stood.
    RespawnsOnOtherStacks,
    /// Each spawns two, of which the one that runs first ends at once.
    Multiplies,
    /// Two that park and unpark each other.
    Wakes,
    /// One that dispatches others, each of which ends at once.
    Dispatches,
    /// Yields of fibers with hooks, which leave by another way.
    YieldsWithHooks,
    /// Some in the group's queue, each of which puts the next one there.
    KeepsQueue,
    /// Two that may move and yield.
    Moves,
    /// Two that may move and wake each other.
    MovesAndWakes,
    /// Several of these at once.
    Mix,
}

const STREAMS: [Stream; 12] = [
    Stream::Yields,
    Stream::YieldsAlone,
    Stream::Respawns,
    Stream::RespawnsOnOtherStacks,
    Stream::Multiplies,
    Stream::Wakes,
    Stream::Dispatches,
    Stream::YieldsWithHooks,
    Stream::KeepsQueue,
    Stream::Moves,
    Stream::MovesAndWakes,
    Stream::Mix,
];

/// What a stream knows: whether it is to stop, and how far it has come since it counts.
#[derive(Clone, Default)]
struct Flow(Arc<State>);

#[derive(Default)]
struct State {
    stopped: AtomicBool,
    counts: AtomicBool,
    steps: AtomicUsize,
    begun: AtomicUsize,
}

impl Flow {
    /// Takes a step; whether there is to be another.
    fn goes_on(&self) -> bool {
        self.0.begun.fetch_add(1, SeqCst);
        let enough = self.counts() && self.0.steps.fetch_add(1, SeqCst) >= ENOUGH;
        !enough && !self.0.stopped.load(SeqCst)
    }

    fn is_over(&self) -> bool {
        self.0.stopped.load(SeqCst) || self.steps() >= ENOUGH
    }

    fn stop(&self) {
        self.0.stopped.store(true, SeqCst);
    }

    /// Counts steps from now on: what is to come beside the stream has been made ready.
    fn count(&self) {
        self.0.counts.store(true, SeqCst);
    }

    fn counts(&self) -> bool {
        self.0.counts.load(SeqCst)
    }

    fn steps(&self) -> usize {
        self.0.steps.load(SeqCst)
    }

    fn await_begin(&self) {
        poll_until("the stream to run", || self.0.begun.load(SeqCst) > 1_000);
    }
}

fn respawn(flow: Flow, stacks: [usize; 2]) {
    if flow.goes_on() {
        let [mine, next] = stacks;
        drop(Builder::new().stack_size(next).spawn(move || respawn(flow, [next, mine])).unwrap());
    }
}

fn multiply(flow: Flow) {
    if flow.goes_on() {
        drop(sinew::spawn(move || multiply(flow)));
        drop(sinew::spawn(|| ()));
    }
}

fn dispatch(flow: Flow) {
    while flow.goes_on() {
        drop(Builder::new().launch(sinew::Launch::Dispatch).spawn(|| ()).unwrap());
    }
}

fn wake_each_other(flow: Flow) {
    let (to, from) = sinew::chan::bounded::<()>(1);
    let (back, again) = sinew::chan::bounded::<()>(1);
    let echo = sinew::spawn(move || from.iter().for_each(|()| back.send(()).unwrap()));
    while flow.goes_on() {
        to.send(()).unwrap();
        again.recv().unwrap();
    }
    drop(to);
    echo.join().unwrap();
}

fn yield_on(flow: &Flow) {
    while flow.goes_on() {
        sinew::yield_now();
    }
}

/// Fibers in the group's queue, each of which puts the next one there: pinned ones always wait in it.
fn keep_queue(flow: Flow) {
    if flow.goes_on() {
        drop(Builder::new().pinned().spawn(move || keep_queue(flow)).unwrap());
    }
}

/// Spawns a fiber that may move.
fn move_on(f: impl FnOnce() + Send + 'static) {
    // SAFETY: the fibers of these tests keep nothing of a thread across a suspension.
    drop(unsafe { Builder::new().spawn_migratable(f) }.unwrap());
}

/// Starts a stream at the worker that runs this.
fn start(stream: Stream, flow: &Flow) {
    let own = || flow.clone();
    let flow = own();
    match stream {
        Stream::Yields => (0..2).for_each(|_| {
            drop(sinew::spawn({
                let flow = own();
                move || yield_on(&flow)
            }))
        }),
        Stream::YieldsAlone => drop(sinew::spawn(move || yield_on(&flow))),
        Stream::Respawns => respawn(flow, [64 << 10, 64 << 10]),
        Stream::RespawnsOnOtherStacks => respawn(flow, [64 << 10, 128 << 10]),
        Stream::Multiplies => multiply(flow),
        Stream::Wakes => drop(sinew::spawn(move || wake_each_other(flow))),
        Stream::Dispatches => drop(sinew::spawn(move || dispatch(flow))),
        Stream::KeepsQueue => (0..4).for_each(|_| keep_queue(own())),
        Stream::Moves => (0..2).for_each(|_| {
            let flow = own();
            move_on(move || yield_on(&flow));
        }),
        Stream::MovesAndWakes => move_on(move || wake_each_other(flow)),
        Stream::Mix => {
            [Stream::Yields, Stream::Respawns, Stream::KeepsQueue, Stream::Moves, Stream::MovesAndWakes, Stream::YieldsWithHooks]
                .into_iter()
                .for_each(|stream| start(stream, &flow))
        }
        Stream::YieldsWithHooks => (0..2).for_each(|_| {
            let flow = own();
            drop(sinew::spawn(move || {
                sinew::on_suspend(|| ());
                yield_on(&flow);
            }));
        }),
    }
}

#[test]
fn local_work_without_end_does_not_hide_the_groups_queue() {
    with_all(1, |rt, kind| {
        for stream in STREAMS {
            let flow = Flow::default();
            let started = flow.clone();
            rt.run(move || start(stream, &started));
            flow.await_begin();
            // From outside, so it is in the group's queue.
            let waiting = {
                let flow = flow.clone();
                rt.spawn(move || flow.stop())
            };
            flow.count();
            waiting.join().unwrap();
            assert!(flow.steps() < ENOUGH, "{kind:?}: {stream:?} hid it for {ENOUGH} steps");
            poll_until("the stream to end", || rt.metrics().ended == rt.metrics().spawned);
        }
    });
}

#[test]
fn local_work_without_end_does_not_hide_a_local_child_nor_a_fiber_that_was_woken() {
    with_all(1, |rt, kind| {
        for stream in STREAMS {
            let steps = rt.run(move || {
                let flow = Flow::default();
                let woken = sinew::spawn({
                    let flow = flow.clone();
                    move || {
                        sinew::park();
                        flow.stop()
                    }
                });
                sinew::yield_now();
                // The oldest child: all that the stream spawns is newer.
                let child = sinew::spawn({
                    let fiber = woken.fiber().clone();
                    move || fiber.unpark()
                });
                start(stream, &flow);
                flow.count();
                child.join().unwrap();
                woken.join().unwrap();
                flow.steps()
            });
            assert!(steps < ENOUGH, "{kind:?}: {stream:?} hid them for {ENOUGH} steps");
            poll_until("the stream to end", || rt.metrics().ended == rt.metrics().spawned);
        }
    });
}

/// Claim: a worker looks at the group's queue after 61 fibers of its own, though its turns are long and every eighth is all that the policy asks for. Counted in switches to others, from any place of a turn.
#[test]
fn the_groups_queue_is_looked_at_after_61_fibers() {
    // And the rest of the turn in which the last of them runs: 33 switches.
    const BUDGET: usize = 61 + 33;
    for queue in [Queue::Shared, Queue::Stealing] {
        runtime(1, (queue, Policy::Affinity)).run(|| {
            let (switches, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
            let yields = |_| {
                let (switches, end) = (switches.clone(), end.clone());
                sinew::spawn(move || {
                    until(|| {
                        switches.fetch_add(1, SeqCst);
                        end.load(SeqCst)
                    });
                })
            };
            let crowd: Vec<_> = (0..100).map(yields).collect();
            until(|| sinew::metrics().workers[0].settled == crowd.len() + 1);
            let waits = |i: usize| {
                (0..i % 7).for_each(|_| sinew::yield_now());
                let begins = switches.clone();
                let queued_at = switches.load(SeqCst);
                // One that is pinned always waits in the group's queue.
                let begun_at = Builder::new().pinned().spawn(move || begins.load(SeqCst)).unwrap().join().unwrap();
                begun_at - queued_at
            };
            let longest = (0..100).map(waits).max().unwrap();
            end.store(true, SeqCst);
            join_all(crowd);
            assert!(longest <= BUDGET, "{queue:?}: it began after {longest} others");
        });
    }
}

/// Keeps some fibers in the group's queue until `flow` ends.
fn feed(rt: &Runtime, flow: &Flow, pinned: bool) {
    while !flow.is_over() {
        if rt.metrics().queued < 20 {
            let flow = flow.clone();
            rt.run(move || {
                for _ in 0..20 {
                    let (flow, builder) = (flow.clone(), Builder::new());
                    let builder = if pinned { builder.pinned() } else { builder };
                    drop(builder.group(sinew::Group::foreground(0)).spawn(move || _ = flow.goes_on()).unwrap());
                }
            });
        }
    }
}

#[test]
fn a_group_queue_without_end_does_not_hide_local_fibers() {
    with_all(1, |rt, kind| {
        for pinned in [false, true] {
            let flow = Flow::default();
            let parked = rt.spawn({
                let flow = flow.clone();
                move || {
                    // A yield, a wake by another fiber, a timer, a child: all of them local.
                    sinew::yield_now();
                    sinew::park();
                    sinew::sleep(Duration::from_micros(10));
                    sinew::spawn(|| ()).join().unwrap();
                    sinew::spawn(sinew::yield_now).join().unwrap();
                    flow.stop();
                }
            });
            std::thread::scope(|s| {
                s.spawn(|| feed(rt, &flow, pinned));
                flow.await_begin();
                parked.fiber().unpark();
                flow.count();
                parked.join().unwrap();
            });
            assert!(flow.steps() < ENOUGH, "{kind:?}, pinned {pinned}: the queue hid them for {ENOUGH} fibers");
            poll_until("the queue to end", || rt.metrics().ended == rt.metrics().spawned);
        }
    });
}

#[test]
fn nothing_hides_a_fiber_that_may_move() {
    // Settled fibers that are always ready, a group queue that is never empty, and one fiber that may move and yields.
    with_all(1, |rt, kind| {
        let flow = Flow::default();
        let started = flow.clone();
        let mover = rt.run(move || {
            start(Stream::Yields, &started);
            (0..4).for_each(|_| keep_queue(started.clone()));
            let yields = move || {
                until(|| started.counts());
                (0..100).for_each(|_| sinew::yield_now());
                started.stop();
            };
            // SAFETY: it keeps nothing of a thread across a suspension.
            unsafe { Builder::new().spawn_migratable(yields) }.unwrap()
        });
        flow.await_begin();
        flow.count();
        mover.join().unwrap();
        assert!(flow.steps() < ENOUGH, "{kind:?}: hidden for {ENOUGH} steps");
        poll_until("the streams to end", || rt.metrics().ended == rt.metrics().spawned);
    });
}

#[test]
fn a_timer_goes_off_beside_streams_without_end() {
    with_all(1, |rt, kind| {
        for stream in STREAMS {
            let steps = rt.run(move || {
                let flow = Flow::default();
                let sleeper = sinew::spawn({
                    let flow = flow.clone();
                    move || {
                        sinew::sleep(Duration::from_micros(1));
                        flow.stop()
                    }
                });
                sinew::yield_now();
                start(stream, &flow);
                flow.count();
                sleeper.join().unwrap();
                flow.steps()
            });
            assert!(steps < ENOUGH, "{kind:?}: {stream:?} hid it for {ENOUGH} steps");
            poll_until("the stream to end", || rt.metrics().ended == rt.metrics().spawned);
        }
    });
}

#[test]
fn wakes_from_plain_threads_reach_a_busy_worker() {
    with_all(1, |rt, kind| {
        for stream in STREAMS {
            let flow = Flow::default();
            let parked = rt.spawn({
                let flow = flow.clone();
                move || {
                    sinew::park();
                    flow.stop()
                }
            });
            let started = flow.clone();
            rt.run(move || start(stream, &started));
            flow.await_begin();
            parked.fiber().unpark();
            flow.count();
            parked.join().unwrap();
            assert!(flow.steps() < ENOUGH, "{kind:?}: {stream:?} hid it for {ENOUGH} steps");
            poll_until("the stream to end", || rt.metrics().ended == rt.metrics().spawned);
        }
    });
}

#[test]
fn work_that_all_starts_on_one_worker_is_shared() {
    // Each half blocks its thread until the other half has begun: both workers must take part.
    with_all(2, |rt, kind| {
        for _ in 0..200 {
            let begun = Arc::new(AtomicUsize::new(0));
            rt.run(|| {
                let half = |_| {
                    let begun = begun.clone();
                    sinew::spawn(move || {
                        begun.fetch_add(1, SeqCst);
                        poll_until("the other half", || begun.load(SeqCst) == 2);
                    })
                };
                join_all((0..2).map(half).collect());
            });
            assert_eq!(begun.load(SeqCst), 2, "{kind:?}");
        }
    });
}

/// Fibers that settle on both workers and are always ready, until `stop` is set: no worker is ever idle.
fn keep_both_busy(stop: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
    let at = Arc::new(Mutex::new(HashSet::new()));
    let mut busy = Vec::new();
    while at.lock().unwrap().len() < 2 {
        let (stop, at) = (stop.clone(), at.clone());
        busy.push(sinew::spawn(move || {
            at.lock().unwrap().insert(std::thread::current().id());
            until(|| stop.load(SeqCst));
        }));
        sinew::yield_now();
    }
    busy
}

#[test]
fn busy_workers_run_what_one_that_is_held_does_not_come_to() {
    with_all(2, |rt, _| {
        rt.run(|| {
            let stop = Arc::new(AtomicBool::new(false));
            let busy = keep_both_busy(&stop);
            let thefts = || sinew::metrics().workers.iter().map(|worker| [worker.thefts, worker.steals]).collect::<Vec<_>>();
            let before = thefts();
            let (parked, went_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let goes_on = || {
                let went_on = went_on.clone();
                move || _ = went_on.fetch_add(1, SeqCst)
            };
            let movers: Vec<_> = (0..2)
                .map(|_| {
                    let (parked, go_on) = (parked.clone(), goes_on());
                    let waits = move || {
                        parked.fetch_add(1, SeqCst);
                        sinew::park();
                        go_on();
                    };
                    // SAFETY: it keeps nothing of a thread across a suspension.
                    unsafe { Builder::new().spawn_migratable(waits) }.unwrap()
                })
                .collect();
            until(|| parked.load(SeqCst) == 2);
            // From here on this fiber holds its worker: one mover is in that one's slot, the other and the children are in its deques, if it has any.
            movers.iter().for_each(|mover| mover.fiber().unpark());
            let children: Vec<_> = (0..3).map(|_| sinew::spawn(goes_on())).collect();
            poll_until("another worker to run them", || went_on.load(SeqCst) == 5);
            for ([tried_before, won_before], [tried, won]) in before.into_iter().zip(thefts()) {
                assert!(
                    won - won_before <= tried - tried_before,
                    "{won} of {tried} thefts were won, before {won_before} of {tried_before}"
                );
            }
            stop.store(true, SeqCst);
            join_all(movers);
            join_all(children);
            join_all(busy);
        });
    });
}
