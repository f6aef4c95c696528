//! Spares: workers that stand in for others which a fiber holds, and fibers that wait on them with a deadline.
//!
//! Such a deadline is kept at the group's roam (`Worker::suspend_on_spare`), and the spare may sit out meanwhile. Not here: the post of the sentry (`tests/loom/sched/duty_model.rs`).

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use shuttle::Runner;
use shuttle::scheduler::RandomScheduler;

use crate::base::atomic::set_mutant;
use crate::fiber::state::{Cause, Ends};
use crate::fiber::why::Why;
use crate::movers::{begin, moving};
use crate::one_place::Alone;
use crate::os::clock::{deadline_ns, now_ns};
use crate::rt::context::pin;
use crate::rt::runtime::with_groups;
use crate::rt::spawn::Builder;
use crate::rt::wait::{Cut, Me};
use crate::scenarios::{config, explore_one_of, fails_in_a_child, in_own_process};
use crate::sched::groups::Groups;
use crate::sched::settings::{Queue, Settings};
use crate::sched::worker::{Worker, here};
use crate::{JoinHandle, cancelled, sleep, yield_now};

const MICRO: Duration = Duration::from_micros(1);
/// A deadline that never comes: time goes on by looks.
const FAR: Duration = Duration::from_secs(100_000);
/// Turns that a fiber gives others to bring it to a spare.
const TRIES: usize = 40;
/// More than any stage that a fiber holds its thread for.
const LET_GO: usize = 1_000;

/// Claim: fibers that hold all workers hold nobody else: a spare stands in for each, and all sit out or leave in the end. By fibers that keep their threads until another has run, which waits behind them.
#[test]
fn spares_stand_in_for_workers_that_are_held() {
    in_own_process!();
    for (workers, hogs, queue) in [(1, 1, Queue::Stealing), (1, 2, Queue::Shared), (2, 2, Queue::Stealing)] {
        let settings = move || Settings { spares: 2, ..moving(workers, queue, false) };
        explore_one_of(3, move || {
            with_groups(vec![settings()], |groups| {
                let ran = Arc::new(AtomicUsize::new(0));
                let holds = |ran: &Arc<AtomicUsize>| {
                    let ran = ran.clone();
                    move || {
                        yield_now();
                        while ran.load(SeqCst) == 0 {
                            shuttle::thread::yield_now();
                        }
                    }
                };
                let held: Vec<_> = (0..hogs).map(|_| begin(groups, holds(&ran))).collect();
                let other = {
                    let ran = ran.clone();
                    begin(groups, move || {
                        yield_now();
                        ran.fetch_add(1, SeqCst);
                    })
                };
                held.into_iter().chain([other]).for_each(|fiber| fiber.join().unwrap());
            });
        });
    }
}

/// What a scenario is about, counted over all of its schedules: each must have been met.
#[derive(Default)]
struct Met {
    /// Waits on a spare that each cause ended.
    woken: AtomicUsize,
    timed_out: AtomicUsize,
    cancelled: AtomicUsize,
    /// The fiber went on at another worker.
    moved: AtomicUsize,
    /// The spare sat out when the fiber went on.
    sat_out: AtomicUsize,
}

impl Met {
    fn assert_all(&self) {
        let Self { woken, timed_out, cancelled, moved, sat_out } = self;
        let each = [woken, timed_out, cancelled, moved, sat_out].map(|count| count.load(SeqCst));
        assert!(!each.contains(&0), "woken, timed out, cancelled, moved, sat out: {each:?}");
    }
}

fn worker_now() -> &'static Worker {
    here().expect("on a worker")
}

/// The place of a worker in its group.
fn place(worker: &Worker) -> usize {
    worker.group().seats().iter().position(|seat| ptr::eq(*seat, worker.seat())).unwrap()
}

fn is_on_spare() -> bool {
    let worker = worker_now();
    worker.group().is_spare(place(worker))
}

/// Lets others run until the caller is on a spare, if it comes to one.
fn go_to_spare(alone: &Alone) {
    (0..TRIES).take_while(|_| !is_on_spare()).for_each(|_| {
        alone.out(yield_now);
        shuttle::thread::yield_now();
    });
}

/// Keeps the caller's thread until `word` is at least `value`.
fn hold_until(word: &AtomicUsize, value: usize) {
    while word.load(SeqCst) < value {
        shuttle::thread::yield_now();
    }
}

/// Has all go on that hold their threads until `word`, if the caller is not on a spare: it is about to wait with a deadline, and one of the workers that were asked for, which keeps that, may be held as well.
fn let_go_unless_on_spare(word: &AtomicUsize) {
    if !is_on_spare() {
        word.fetch_max(LET_GO, SeqCst);
    }
}

/// A park with a deadline that tells what ended it.
fn park_until_ns(deadline_ns: u64) -> Result<Cause, Cut> {
    let me = Me::to_wait();
    let point = me.cancel_point()?;
    if !point.begin(Why::Park, Ends::BY_UNPARK)? {
        return Ok(Cause::Woken);
    }
    // SAFETY: the park was begun above; an unpark, a cancel or the deadline ends it.
    unsafe { point.wait(deadline_ns) }
}

/// The same, checked: a deadline ends no wait before its time, and nothing but a cancel gives a cut.
fn park_checked(alone: &Alone, timeout: Duration, met: &Met) -> Result<Cause, Cut> {
    let (before, until_ns) = (worker_now(), deadline_ns(timeout));
    let (spare, group) = (place(before), before.group());
    let on_spare = is_on_spare();
    let ended = alone.out(|| park_until_ns(until_ns));
    let count = match ended {
        Ok(Cause::TimedOut) => {
            let now_ns = now_ns();
            assert!(now_ns >= until_ns, "a deadline at {until_ns} ended a wait at {now_ns}");
            &met.timed_out
        }
        Ok(Cause::Woken) => &met.woken,
        Err(Cut::Cancelled) => {
            assert!(cancelled(), "nobody has cancelled it");
            &met.cancelled
        }
        other => unreachable!("{other:?}"),
    };
    if on_spare {
        count.fetch_add(1, SeqCst);
        met.moved.fetch_add(usize::from(!ptr::eq(before, worker_now())), SeqCst);
        met.sat_out.fetch_add(usize::from(group.duty.bench().contains(spare)), SeqCst);
    }
    ended
}

/// A fiber holds a worker, lets go of it, and holds it again, each time until another has come so far: so spares stand in, sit out, and are recalled, while that one waits on them. Wakes, deadlines and a cancel race for its
/// waits: one of them ends each, and once. Where only a deadline does it comes, whoever looks then.
fn causes_race_on_a_spare(groups: &Arc<Groups>, met: &Arc<Met>) {
    let rounds = Arc::new(AtomicUsize::new(0));
    let hog = {
        let rounds = rounds.clone();
        begin(groups, move || {
            for round in 1..=3 {
                yield_now();
                hold_until(&rounds, round);
            }
        })
    };
    let (unparks, alone, met) = (Arc::new(AtomicUsize::new(0)), Alone::default(), met.clone());
    let limit = unparks.clone();
    let sleeper = begin(groups, move || {
        alone.begin();
        let mut woken = 0;
        let mut park = |timeout| {
            let ended = park_checked(&alone, timeout, &met);
            woken += usize::from(ended == Ok(Cause::Woken));
            assert!(woken <= limit.load(SeqCst), "more wakes than there were unparks");
            ended
        };
        for _ in 0..3 {
            go_to_spare(&alone);
            // The hog is on its way back while this waits.
            rounds.fetch_add(1, SeqCst);
            let_go_unless_on_spare(&rounds);
            _ = park(MICRO * 30);
        }
        while park(FAR) != Err(Cut::Cancelled) {}
    });
    for _ in 0..3 {
        unparks.fetch_add(1, SeqCst);
        sleeper.fiber().unpark();
        (0..40).for_each(|_| shuttle::thread::yield_now());
    }
    hog.join().unwrap();
    sleeper.fiber().cancel();
    sleeper.join().unwrap();
    assert!(!groups.all[0].roam.has_waits(), "a wait that is over is still counted");
}

/// A group with spares. Nobody is shaken in it: a fiber that is waits for the very worker that it was given to, be that held or not.
fn with_spares(workers: usize, spares: usize, queue: Queue) -> Vec<Settings> {
    vec![Settings { spares, ..moving(workers, queue, false) }]
}

#[test]
fn a_wake_a_deadline_and_a_cancel_race_on_a_spare() {
    in_own_process!();
    let met = Arc::new(Met::default());
    for (workers, queue) in [(1, Queue::Stealing), (1, Queue::Shared), (2, Queue::Stealing)] {
        let met = met.clone();
        explore_one_of(3, move || {
            with_groups(with_spares(workers, 2, queue), |groups| causes_race_on_a_spare(groups, &met));
        });
    }
    met.assert_all();
}

/// A fiber sleeps on a spare on which another then holds the thread until the sleep is over. Of those that held the workers before, one does so until then, too; the others have come back, and most often sleep, without a post: one
/// of them must be called to look for the deadline; or, if there is none, a spare more stands in.
fn a_sleeper_behind_one_that_holds(groups: &Arc<Groups>, met: &Met) {
    // 1 when the sleeper is on a spare, or has tried to come there; 2 when its sleep is over.
    let stage = Arc::new(AtomicUsize::new(0));
    let hold = |until| {
        let stage = stage.clone();
        move || {
            yield_now();
            hold_until(&stage, until);
        }
    };
    let hogs: Vec<_> = (0..groups.all[0].settings.workers).map(|hog| begin(groups, hold(if hog == 0 { 2 } else { 1 }))).collect();
    let (second, stage) = (hold(2), stage.clone());
    let sleeper = begin(groups, move || {
        let alone = Alone::default();
        alone.begin();
        go_to_spare(&alone);
        let on_spare = is_on_spare();
        stage.store(1, SeqCst);
        let idle = &worker_now().group().idle;
        (0..TRIES).take_while(|_| idle.sleeping().is_empty()).for_each(|_| shuttle::thread::yield_now());
        // Nobody is told of it: this worker comes to it when the sleep has begun.
        let second = on_spare.then(|| Builder::new().quiet().spawn(second).unwrap());
        let_go_unless_on_spare(&stage);
        alone.out(|| sleep(MICRO * 30));
        stage.fetch_max(2, SeqCst);
        second.map(JoinHandle::join).transpose().unwrap();
        on_spare
    });
    hogs.into_iter().for_each(|hog| hog.join().unwrap());
    let on_spare = sleeper.join().unwrap();
    met.timed_out.fetch_add(usize::from(on_spare), SeqCst);
    assert!(!groups.all[0].roam.has_waits(), "a wait that is over is still counted");
}

#[test]
fn a_deadline_comes_though_its_spare_is_held() {
    in_own_process!();
    let met = Arc::new(Met::default());
    for (workers, spares, queue) in [(2, 1, Queue::Stealing), (2, 2, Queue::Shared), (1, 2, Queue::Stealing)] {
        let met = met.clone();
        explore_one_of(3, move || {
            with_groups(with_spares(workers, spares, queue), |groups| a_sleeper_behind_one_that_holds(groups, &met));
        });
    }
    assert_ne!(met.timed_out.load(SeqCst), 0, "nobody has slept on a spare");
}

/// Deadlines of several fibers on spares, armed in any order, one of which never comes: each of the others does, though nothing else happens.
#[test]
fn deadlines_on_spares_come_in_any_order() {
    in_own_process!();
    let met = Arc::new(Met::default());
    for (spares, queue) in [(1, Queue::Stealing), (2, Queue::Shared)] {
        let met = met.clone();
        explore_one_of(2, move || {
            with_groups(with_spares(1, spares, queue), |groups| {
                let over = Arc::new(AtomicUsize::new(0));
                let hog = {
                    let over = over.clone();
                    begin(groups, move || {
                        yield_now();
                        hold_until(&over, 2);
                    })
                };
                let [far, late, early] = [FAR, MICRO * 2_000, MICRO * 30].map(|timeout| {
                    let (over, met) = (over.clone(), met.clone());
                    begin(groups, move || {
                        let alone = Alone::default();
                        alone.begin();
                        go_to_spare(&alone);
                        let_go_unless_on_spare(&over);
                        let ended = park_checked(&alone, timeout, &met);
                        over.fetch_add(1, SeqCst);
                        ended
                    })
                });
                assert_eq!(late.join().unwrap(), Ok(Cause::TimedOut));
                assert_eq!(early.join().unwrap(), Ok(Cause::TimedOut));
                far.fiber().unpark();
                hog.join().unwrap();
                _ = far.join().unwrap();
                assert!(!groups.all[0].roam.has_waits(), "a wait that is over is still counted");
            });
        });
    }
    assert_ne!(met.timed_out.load(SeqCst), 0, "no deadline has come on a spare");
}

/// One that is pinned goes on at the spare on which it waits, which is recalled for it.
#[test]
fn who_is_pinned_to_a_spare_goes_on_there() {
    in_own_process!();
    let met = Arc::new(Met::default());
    let told = met.clone();
    explore_one_of(2, move || {
        with_groups(with_spares(1, 1, Queue::Stealing), |groups| {
            let is_over = Arc::new(AtomicUsize::new(0));
            let hog = {
                let is_over = is_over.clone();
                begin(groups, move || {
                    yield_now();
                    hold_until(&is_over, 1);
                })
            };
            let met = told.clone();
            let pinned = begin(groups, move || {
                let alone = Alone::default();
                alone.begin();
                go_to_spare(&alone);
                let home = shuttle::thread::current().id();
                let stays = pin();
                is_over.store(1, SeqCst);
                for timeout in [MICRO * 5, MICRO * 3_000] {
                    _ = park_checked(&alone, timeout, &met);
                    assert_eq!(shuttle::thread::current().id(), home, "a pinned fiber has left its worker");
                }
                drop(stays);
            });
            hog.join().unwrap();
            let bench = || groups.all[0].duty.bench();
            (0..2_000).take_while(|_| !bench().contains(1) && !pinned.is_finished()).for_each(|_| shuttle::thread::yield_now());
            told.sat_out.fetch_add(usize::from(bench().contains(1) && !pinned.is_finished()), SeqCst);
            pinned.fiber().unpark();
            pinned.join().unwrap();
            assert!(!groups.all[0].roam.has_waits(), "a wait that is over is still counted");
        });
    });
    let (timed_out, sat_out) = (met.timed_out.load(SeqCst), met.sat_out.load(SeqCst));
    assert!(timed_out != 0 && sat_out != 0, "{timed_out} deadlines came, {sat_out} spares sat out");
}

/// A stop at any moment while fibers wait on spares, with deadlines that are near and far, ends all of them.
#[test]
fn a_runtime_that_is_stopped_ends_those_that_sleep_on_spares() {
    in_own_process!();
    let met = Arc::new(Met::default());
    for (workers, queue) in [(1, Queue::Stealing), (2, Queue::Shared)] {
        let met = met.clone();
        explore_one_of(2, move || {
            with_groups(with_spares(workers, 2, queue), |groups| {
                let (slept, is_there) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
                let holds = slept.clone();
                drop(begin(groups, move || {
                    yield_now();
                    while holds.load(SeqCst) < 2 && !cancelled() {
                        shuttle::thread::yield_now();
                    }
                }));
                for timeout in [MICRO * 100, FAR] {
                    let (slept, is_there, met) = (slept.clone(), is_there.clone(), met.clone());
                    drop(begin(groups, move || {
                        let alone = Alone::default();
                        alone.begin();
                        go_to_spare(&alone);
                        is_there.fetch_add(1, SeqCst);
                        while park_checked(&alone, timeout, &met) != Err(Cut::Cancelled) {
                            slept.fetch_add(1, SeqCst);
                        }
                    }));
                }
                (0..2_000).take_while(|_| is_there.load(SeqCst) < 2).for_each(|_| shuttle::thread::yield_now());
            });
        });
    }
    let (cancelled, timed_out) = (met.cancelled.load(SeqCst), met.timed_out.load(SeqCst));
    assert!(cancelled != 0 && timed_out != 0, "{cancelled} were cancelled, {timed_out} timed out");
}

/// The harness notices an alarm that is not set for a fiber on a spare.
#[test]
fn an_alarm_that_is_not_set_for_a_spare_is_noticed() {
    const CHILD: &str = "SINEW_SHUTTLE_LOSE_ALARM";
    if std::env::var_os(CHILD).is_some() {
        set_mutant("no alarm");
        let scenario =
            || with_groups(with_spares(2, 1, Queue::Stealing), |groups| a_sleeper_behind_one_that_holds(groups, &Met::default()));
        Runner::new(RandomScheduler::new(600), config()).run(scenario);
        return;
    }
    fails_in_a_child("spares::an_alarm_that_is_not_set_for_a_spare_is_noticed", CHILD);
}
