//! Fibers that may move, several groups, workers that come later, and launches of every kind.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use shuttle::Runner;
use shuttle::scheduler::RandomScheduler;

use crate::base::atomic::set_mutant;
use crate::chan::bounded;
use crate::event::epoll::{self, Question};
use crate::fiber::state::Cause;
use crate::fiber::why::{At, Why};
use crate::one_place::Alone;
use crate::os::clock::deadline_ns;
use crate::rt::runtime::{plain, with_groups};
use crate::rt::spawn::{Builder, Group, Launch, flush, spawn_batch};
use crate::rt::wait::{Cut, Me};
use crate::scenarios::{config, explore, explore_one_of, fails_in_a_child, in_own_process, unpark_until_ended};
use crate::sched::groups::Groups;
use crate::sched::settings::{Policy, Queue, Settings, Spin};
use crate::sched::worker::here;
use crate::{JoinHandle, cancelled, current, park, park_timeout, scope, sleep, spawn, timeout, yield_now};

const MICRO: Duration = Duration::from_micros(1);

/// A group whose fibers may move.
pub fn moving(workers: usize, queue: Queue, shakes: bool) -> Settings {
    Settings { migrates: true, queue, shakes, ..plain(workers) }
}

/// Explores a scenario on two workers and on three, in both queue kinds, with fibers that are moved at every chance and ones that are not.
fn explore_moving(scenario: impl Fn(&Arc<Groups>) + Send + Sync + Clone + 'static) {
    for (workers, queue, shakes) in
        [(2, Queue::Shared, false), (3, Queue::Stealing, false), (2, Queue::Stealing, true), (3, Queue::Shared, true)]
    {
        let scenario = scenario.clone();
        explore_one_of(4, move || with_groups(vec![moving(workers, queue, shakes)], &scenario));
    }
}

/// A fiber of the first group.
pub fn begin<T: Send + 'static>(groups: &Arc<Groups>, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn_in(groups, f).unwrap()
}

#[test]
fn movers_that_are_unparked_by_fibers_and_threads_go_on_once() {
    in_own_process!();
    explore_moving(|groups| {
        let sleepers: Vec<_> = (0..2)
            .map(|_| {
                begin(groups, || {
                    let alone = Alone::default();
                    alone.begin();
                    for _ in 0..2 {
                        let me = current();
                        let waker = spawn(move || me.unpark());
                        alone.out(park);
                        alone.out(yield_now);
                        alone.out(|| waker.join().unwrap());
                    }
                    alone.out(park);
                })
            })
            .collect();
        sleepers.into_iter().for_each(unpark_until_ended);
    });
}

#[test]
fn movers_talk_by_channels() {
    in_own_process!();
    explore_moving(|groups| {
        let (there, here) = bounded(1);
        let (back, again) = bounded(0);
        let echo = begin(groups, move || here.iter().for_each(|n: u32| back.send(n + 1).unwrap()));
        let asker = begin(groups, move || {
            let alone = Alone::default();
            alone.begin();
            for n in 0..4 {
                alone.out(|| there.send(n)).unwrap();
                assert_eq!(alone.out(|| again.recv()), Ok(n + 1));
            }
        });
        asker.join().unwrap();
        echo.join().unwrap();
    });
}

#[test]
fn a_wake_a_deadline_and_a_cancel_race_for_a_mover() {
    in_own_process!();
    explore_moving(|groups| {
        let sleeper = begin(groups, || {
            let alone = Alone::default();
            alone.begin();
            alone.out(|| park_timeout(MICRO * 20));
            let _ = alone.out(|| timeout(MICRO * 20, park));
            alone.out(|| sleep(MICRO * 5));
            while !cancelled() {
                alone.out(park);
            }
        });
        let (woken, cut) = (sleeper.fiber().clone(), sleeper.fiber().clone());
        let waker = begin(groups, move || woken.unpark());
        cut.cancel();
        waker.join().unwrap();
        sleeper.join().unwrap();
    });
}

#[test]
fn a_runtime_that_is_stopped_at_any_moment_ends_its_movers() {
    in_own_process!();
    explore_moving(|groups| {
        for i in 0..4 {
            let waits = move || match i {
                0 => park(),
                1 => sleep(Duration::from_secs(100)),
                // A panic, also one that is caught, ends a schedule.
                2 => scope(|s| {
                    let child = Builder::new().spawn_scoped(s, park);
                    yield_now();
                    _ = child.map(|child| child.join());
                }),
                _ => {
                    while !cancelled() {
                        yield_now();
                        // Else a schedule by priorities lets nobody else run.
                        shuttle::thread::yield_now();
                    }
                }
            };
            drop(begin(groups, waits));
        }
        (0..20).for_each(|_| shuttle::thread::yield_now());
    });
}

#[test]
fn movers_and_settled_fibers_share_their_workers() {
    in_own_process!();
    for queue in [Queue::Shared, Queue::Stealing] {
        explore_one_of(3, move || {
            with_groups(vec![Settings { queue, ..plain(2) }], |groups| {
                let root = begin(groups, || {
                    let home = shuttle::thread::current().id();
                    let (ping, pong) = (bounded(0), bounded(0));
                    let body = move || {
                        let alone = Alone::default();
                        alone.begin();
                        for n in 0..3u32 {
                            assert_eq!(alone.out(|| ping.1.recv()), Ok(n));
                            alone.out(|| pong.0.send(n)).unwrap();
                        }
                    };
                    // SAFETY: it keeps nothing of a thread across a suspension.
                    let mover = unsafe { Builder::new().spawn_migratable(body) }.unwrap();
                    for n in 0..3 {
                        ping.0.send(n).unwrap();
                        assert_eq!(pong.1.recv(), Ok(n));
                        assert_eq!(shuttle::thread::current().id(), home, "F5");
                    }
                    mover.join().unwrap();
                });
                root.join().unwrap();
            });
        });
    }
}

/// Two groups of one worker, each of which steals from the other. The worker of the first computes until all that may leave has left and ended: behind a pinned head, which stays.
#[test]
fn a_group_that_is_busy_is_stolen_from_behind_a_pinned_head() {
    in_own_process!();
    for (queue, migrates) in [(Queue::Shared, false), (Queue::Stealing, false), (Queue::Shared, true), (Queue::Stealing, true)] {
        explore_one_of(3, move || {
            let group = |other| Settings { queue, migrates, victims: vec![(other, 4)], ..plain(1) };
            with_groups(vec![group(1), group(0)], |groups| {
                let ended = Arc::new(AtomicUsize::new(0));
                let busy = {
                    let (ended, groups) = (ended.clone(), groups.clone());
                    move || {
                        let home = shuttle::thread::current().id();
                        let stays = move || assert_eq!(shuttle::thread::current().id(), home, "a pinned fiber has left its group");
                        let pinned = Builder::new().group(Group::foreground(0)).pinned().spawn_in(&groups, stays).unwrap();
                        for _ in 0..2 {
                            let ended = ended.clone();
                            let leaves = move || ended.fetch_add(1, SeqCst);
                            drop(Builder::new().group(Group::foreground(0)).spawn_in(&groups, leaves).unwrap());
                        }
                        while ended.load(SeqCst) != 2 {
                            shuttle::thread::yield_now();
                        }
                        pinned.join().unwrap();
                    }
                };
                Builder::new().group(Group::foreground(0)).pinned().spawn_in(groups, busy).unwrap().join().unwrap();
            });
        });
    }
}

/// Fibers that hold their worker until all of them run: as many workers must have come.
#[test]
fn workers_come_until_all_that_is_ready_runs() {
    in_own_process!();
    for (queue, migrates) in [(Queue::Shared, false), (Queue::Stealing, false), (Queue::Stealing, true)] {
        explore_one_of(3, move || {
            let settings = Settings { queue, migrates, workers_min: 1, ..plain(3) };
            with_groups(vec![settings], |groups| {
                let here = Arc::new(AtomicUsize::new(0));
                let holds = |here: Arc<AtomicUsize>| {
                    move || {
                        here.fetch_add(1, SeqCst);
                        while here.load(SeqCst) != 3 {
                            shuttle::thread::yield_now();
                        }
                    }
                };
                let root = {
                    let here = here.clone();
                    begin(groups, move || {
                        let children: Vec<_> = (0..2).map(|_| spawn(holds(here.clone()))).collect();
                        holds(here)();
                        children.into_iter().for_each(|child| child.join().unwrap());
                    })
                };
                root.join().unwrap();
            });
        });
    }
}

/// A stop at any moment while workers are being started: each of them leaves, and each fiber runs or is refused.
#[test]
fn a_stop_races_with_workers_that_come() {
    in_own_process!();
    explore(|| {
        with_groups(vec![Settings { workers_min: 1, ..plain(3) }], |groups| {
            for _ in 0..3 {
                drop(Builder::new().spawn_in(groups, || drop(Builder::new().spawn(yield_now))));
            }
        });
    });
}

#[test]
fn a_dispatched_fiber_runs_before_its_maker_goes_on() {
    in_own_process!();
    for (queue, migrates, policy) in
        [(Queue::Shared, false, Policy::Balance), (Queue::Stealing, false, Policy::Affinity), (Queue::Stealing, true, Policy::Affinity)]
    {
        explore_one_of(3, move || {
            with_groups(vec![Settings { queue, migrates, policy, ..plain(2) }], |groups| {
                let root = begin(groups, move || {
                    for n in 0..3 {
                        let began = Arc::new(AtomicUsize::new(0));
                        let theirs = began.clone();
                        let begins = move || {
                            theirs.store(1, SeqCst);
                            yield_now();
                            n
                        };
                        let child = Builder::new().launch(Launch::Dispatch).spawn(begins).unwrap();
                        // One that may move goes on as soon as another worker has it.
                        assert!(migrates || began.load(SeqCst) == 1, "its maker went on first");
                        assert_eq!(child.join().unwrap(), n);
                    }
                });
                root.join().unwrap();
            });
        });
    }
}

/// What is queued quietly by a thread runs after a flush at the latest, also if all workers sleep.
#[test]
fn what_was_queued_quietly_runs_after_a_flush() {
    in_own_process!();
    for queue in [Queue::Shared, Queue::Stealing] {
        explore_one_of(3, move || {
            with_groups(vec![Settings { queue, ..plain(2) }], |groups| {
                let quiet: Vec<_> = (0..3).map(|i| Builder::new().quiet().spawn_in(groups, move || i).unwrap()).collect();
                (0..20).for_each(|_| shuttle::thread::yield_now());
                groups.flush();
                for (i, fiber) in quiet.into_iter().enumerate() {
                    assert_eq!(fiber.join().unwrap(), i);
                }
                let root = begin(groups, || {
                    let quiet: Vec<_> = (0..3).map(|i| Builder::new().quiet().spawn(move || i).unwrap()).collect();
                    flush();
                    let batch = spawn_batch((0..3).map(|i| move || i));
                    quiet.into_iter().chain(batch).map(|fiber| fiber.join().unwrap()).sum::<u32>()
                });
                assert_eq!(root.join().unwrap(), 6);
            });
        });
    }
}

/// A worker with many fibers of its own leaves unstarted ones to a lighter one; a mover that was woken there meanwhile is not forgotten.
#[test]
fn a_mover_woken_at_a_heavy_worker_runs() {
    in_own_process!();
    explore(|| {
        // One that polls would take it over in the end.
        with_groups(vec![Settings { spin: Spin::Never, policy: Policy::Balance, ..plain(2) }], |groups| {
            let root = begin(groups, || {
                let go_on = Arc::new(AtomicUsize::new(0));
                let waits = {
                    let go_on = go_on.clone();
                    move || {
                        while go_on.load(SeqCst) == 0 {
                            park();
                        }
                    }
                };
                // SAFETY: it keeps nothing of a thread across a suspension.
                let mover = unsafe { Builder::new().spawn_migratable(waits) }.unwrap();
                let settled: Vec<_> = (0..5)
                    .map(|i| {
                        let (woken, go_on) = (mover.fiber().clone(), go_on.clone());
                        spawn(move || {
                            yield_now();
                            drop(spawn(|| ()));
                            if i == 4 {
                                go_on.store(1, SeqCst);
                            }
                            woken.unpark();
                            park();
                        })
                    })
                    .collect();
                mover.join().unwrap();
                settled.iter().for_each(|fiber| fiber.fiber().unpark());
                settled.into_iter().for_each(|fiber| fiber.join().unwrap());
            });
            root.join().unwrap();
        });
    });
}

/// A fiber wakes one that may move, and holds its worker until that has run. Two others are settled on the two other workers, and the first of them is woken, too, and holds its worker as long: if it is there that the
/// watch is kept, or somebody is on the way to do so, the third worker must.
fn a_watcher_gets_something_to_run(groups: &Arc<Groups>, places: [usize; 3]) {
    let at = |place: usize| Builder::new().group(Group::foreground(places[place])).pinned();
    let (begun, ran) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let hold_until = |word: &AtomicUsize, value| {
        while word.load(SeqCst) != value {
            shuttle::thread::yield_now();
        }
    };
    let root = at(0).spawn_in(groups, move || {
        let holders = [1, 2].map(|place| {
            let (begun, ran) = (begun.clone(), ran.clone());
            let holds = move || {
                begun.fetch_add(1, SeqCst);
                hold_until(&begun, 2);
                park();
                hold_until(&ran, 1);
            };
            Builder::new().group(Group::foreground(places[place])).pinned().spawn(holds).unwrap()
        });
        hold_until(&begun, 2);
        let runs = ran.clone();
        let waits = move || {
            park();
            runs.store(1, SeqCst);
        };
        // SAFETY: it keeps nothing of a thread across a suspension.
        let mover = unsafe { Builder::new().launch(Launch::Dispatch).spawn_migratable(waits) }.unwrap();
        mover.fiber().unpark();
        holders[0].fiber().unpark();
        hold_until(&ran, 1);
        holders[1].fiber().unpark();
        mover.join().unwrap();
        holders.into_iter().for_each(|holder| holder.join().unwrap());
    });
    root.unwrap().join().unwrap();
}

/// In one group, and in groups that steal from each other.
#[test]
fn a_watch_is_passed_on() {
    in_own_process!();
    for spin in [Spin::Never, Spin::Fixed(MICRO * 5)] {
        explore_one_of(4, move || {
            with_groups(vec![Settings { spin, ..plain(3) }], |groups| a_watcher_gets_something_to_run(groups, [0; 3]));
        });
        explore_one_of(4, move || {
            let group = |victims: [usize; 2]| Settings { spin, victims: victims.map(|victim| (victim, 4)).to_vec(), ..plain(1) };
            with_groups(vec![group([1, 2]), group([0, 2]), group([0, 1])], |groups| a_watcher_gets_something_to_run(groups, [0, 1, 2]));
        });
    }
}

/// A fiber that was woken last on the only worker of its group, which another fiber then holds, is taken by the other group, whatever that does meanwhile.
#[test]
fn a_fiber_woken_last_leaves_a_group_that_is_held() {
    in_own_process!();
    for spin in [Spin::Never, Spin::Fixed(MICRO * 5)] {
        explore_one_of(2, move || {
            let group = |other| Settings { spin, victims: vec![(other, 4)], ..plain(1) };
            with_groups(vec![group(1), group(0)], |groups| {
                let at = |place: usize| Builder::new().group(Group::foreground(place)).pinned();
                let other = at(1).spawn_in(groups, || (0..3).for_each(|_| yield_now())).unwrap();
                let holder = at(0).spawn_in(groups, || {
                    for _ in 0..2 {
                        let ran = Arc::new(AtomicUsize::new(0));
                        let runs = ran.clone();
                        let waits = move || {
                            park();
                            runs.store(1, SeqCst);
                        };
                        // SAFETY: it keeps nothing of a thread across a suspension.
                        let mover = unsafe { Builder::new().launch(Launch::Dispatch).spawn_migratable(waits) }.unwrap();
                        mover.fiber().unpark();
                        while ran.load(SeqCst) == 0 {
                            shuttle::thread::yield_now();
                        }
                        mover.join().unwrap();
                    }
                });
                holder.unwrap().join().unwrap();
                other.join().unwrap();
            });
        });
    }
}

/// A question at the roam of its group, which is asked when `place` is not null.
#[derive(Default)]
struct Roaming {
    place: AtomicPtr<Question>,
}

impl Roaming {
    /// As `rt::io` does it.
    fn ask(&self) {
        let ended = self.ask_until(u64::MAX);
        assert_eq!(ended, Ok(Cause::Woken));
    }

    /// The same, with a time-out and cancels.
    fn ask_until(&self, deadline_ns: u64) -> Result<Cause, Cut> {
        let me = Me::to_wait();
        let point = me.cancel_point()?;
        let group = here().expect("on a worker").group();
        let mut question = Question { answered: Cell::new(false) };
        group.roam.instance().unwrap();
        if !point.begin_held(Why::At(At::Readable)) {
            return Err(point.fail());
        }
        let is_first = group.roam.begin_wait();
        epoll::ask(&question, me.control());
        if is_first {
            group.call_lookout();
        }
        self.place.store(&mut question, SeqCst);
        // SAFETY: the wait was begun; an answer, a cancel or the deadline ends it. The groups outlive it.
        let ended = unsafe { point.wait_at_roam(&group.roam, &epoll::WAITING, deadline_ns, |()| epoll::withdraw(&question)) };
        if ended == Err(Cut::Cancelled) {
            group.roam.end_wait();
        }
        self.place.store(std::ptr::null_mut(), SeqCst);
        ended
    }

    fn answer(&self) {
        while !self.try_answer() {
            shuttle::thread::yield_now();
        }
    }

    /// Answers if it is asked; perhaps too late.
    fn try_answer(&self) -> bool {
        // SAFETY: the frame takes it back before it goes, and no other thread runs between this and the answer.
        let question = unsafe { self.place.swap(std::ptr::null_mut(), SeqCst).as_ref() };
        question.map(epoll::answer).is_some()
    }
}

/// Fibers that may move wait at the roam, for answers that come at any time: while workers run, watch, look out and lie down. Nobody is left asleep.
fn answers_at_the_roam(groups: &Arc<Groups>) {
    let asked: Vec<Arc<Roaming>> = (0..2).map(|_| Arc::default()).collect();
    let askers: Vec<_> = asked
        .iter()
        .map(|asked| {
            let asked = asked.clone();
            begin(groups, move || (0..2).for_each(|_| asked.ask()))
        })
        .collect();
    let other = begin(groups, || (0..3).for_each(|_| yield_now()));
    [0, 1, 0].into_iter().for_each(|asker: usize| asked[asker].answer());
    other.join().unwrap();
    // The last answer comes when all sleep, in most schedules: the lookout alone is woken by it.
    let all_sleep = || groups.all[0].idle.sleeping().len() == groups.all[0].seats().len();
    (0..1000).take_while(|_| !all_sleep()).for_each(|_| shuttle::thread::yield_now());
    asked[1].answer();
    askers.into_iter().for_each(|asker| asker.join().unwrap());
}

#[test]
fn answers_at_the_roam_reach_fibers_that_move() {
    in_own_process!();
    explore_moving(answers_at_the_roam);
}

/// Answers, deadlines and a cancel race for fibers that wait at the roam. Each wait ends once, for one of them; a deadline comes also where nothing else does.
fn deadlines_at_the_roam(groups: &Arc<Groups>) {
    let asked: Vec<Arc<Roaming>> = (0..2).map(|_| Arc::default()).collect();
    let (asks, asks_too) = (asked[0].clone(), asked[1].clone());
    let first = begin(groups, move || {
        let alone = Alone::default();
        alone.begin();
        for _ in 0..3 {
            let ended = alone.out(|| asks.ask_until(deadline_ns(MICRO * 20)));
            assert!(matches!(ended, Ok(Cause::Woken | Cause::TimedOut)), "{ended:?}");
        }
    });
    let second = begin(groups, move || {
        let alone = Alone::default();
        alone.begin();
        let ended = alone.out(|| timeout(MICRO * 20, || asks_too.ask_until(u64::MAX)));
        assert!(matches!(ended, Err(_) | Ok(Ok(Cause::Woken) | Err(Cut::TimedOut | Cut::Cancelled))), "{ended:?}");
        // Only an answer or the cancel ends these.
        while !cancelled() {
            let ended = alone.out(|| asks_too.ask_until(deadline_ns(Duration::from_secs(100))));
            assert!(matches!(ended, Ok(Cause::Woken) | Err(Cut::Cancelled)), "{ended:?}");
        }
    });
    for _ in 0..4 {
        asked.iter().for_each(|asked| _ = asked.try_answer());
        shuttle::thread::yield_now();
    }
    second.fiber().cancel();
    first.join().unwrap();
    second.join().unwrap();
    assert!(!groups.all[0].roam.has_waits(), "a wait that is over is still counted");
}

#[test]
fn a_deadline_at_the_roam_comes_and_ends_one_wait() {
    in_own_process!();
    explore_moving(deadlines_at_the_roam);
}

/// The harness notices an alarm that is not set.
#[test]
fn an_alarm_that_is_not_set_is_noticed() {
    const CHILD: &str = "SINEW_SHUTTLE_LOSE_ALARM";
    if std::env::var_os(CHILD).is_some() {
        set_mutant("no alarm");
        let scenario = || with_groups(vec![moving(2, Queue::Stealing, false)], deadlines_at_the_roam);
        Runner::new(RandomScheduler::new(600), config()).run(scenario);
        return;
    }
    fails_in_a_child("movers::an_alarm_that_is_not_set_is_noticed", CHILD);
}

/// A group begins with one worker, and a fiber holds it until another one has read its answer: a worker more must come to look at the roam. `quiet`: the holder is there before the wait begins, and wakes nobody.
fn answers_behind_one_that_holds(groups: &Arc<Groups>, quiet: bool) {
    let (asked, done) = (Arc::new(Roaming::default()), Arc::new(AtomicUsize::new(0)));
    let holds = {
        let done = done.clone();
        move || {
            while done.load(SeqCst) == 0 {
                shuttle::thread::yield_now();
            }
        }
    };
    let (asks, first) = (asked.clone(), quiet.then(|| holds.clone()));
    let asker = begin(groups, move || {
        let holder = first.map(|holds| Builder::new().quiet().spawn(holds).unwrap());
        asks.ask();
        done.store(1, SeqCst);
        holder.into_iter().for_each(|holder| holder.join().unwrap());
    });
    let holder = (!quiet).then(|| begin(groups, holds));
    asked.answer();
    asker.join().unwrap();
    holder.into_iter().for_each(|holder| holder.join().unwrap());
}

#[test]
fn a_worker_comes_to_look_at_the_roam() {
    in_own_process!();
    for (queue, quiet) in [(Queue::Shared, true), (Queue::Stealing, true), (Queue::Stealing, false)] {
        explore_one_of(3, move || {
            let settings = Settings { workers_min: 1, ..moving(2, queue, false) };
            with_groups(vec![settings], |groups| answers_behind_one_that_holds(groups, quiet));
        });
    }
}

/// The harness notices a lookout that is not woken.
#[test]
fn a_lookout_that_is_not_woken_is_noticed() {
    const CHILD: &str = "SINEW_SHUTTLE_LOSE_LOOKOUT";
    if std::env::var_os(CHILD).is_some() {
        set_mutant("no lookout");
        let scenario = || with_groups(vec![moving(2, Queue::Stealing, false)], answers_at_the_roam);
        Runner::new(RandomScheduler::new(600), config()).run(scenario);
        return;
    }
    fails_in_a_child("movers::a_lookout_that_is_not_woken_is_noticed", CHILD);
}
