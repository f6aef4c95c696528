use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner};

use crate::base::atomic::{AtomicU32, set_mutant};
use crate::event::source::{Question, answer};
use crate::fiber::pool::blocks;
use crate::os::lock::at_once;
use crate::rt::blocking::blocking;
use crate::rt::runtime::{plain, with_groups, with_pool, with_workers};
use crate::rt::spawn::{Builder, Group};
use crate::rt::wait::Cut;
use crate::sched::settings::{Queue, Settings};
use crate::sched::worker::here;
use crate::time::{Cancel, Timer};
use crate::{JoinHandle, block_on, cancelled, current, park, park_timeout, scope, shield, sleep, spawn, timeout, try_block_on, yield_now};

/// Schedules of each scenario in CI; half random, half by priorities (PCT).
const SCHEDULES: usize = 600;

/// A lost wake-up spins in the futex for ever: far fewer steps than this are needed otherwise.
const STEPS_MAX: usize = 200_000;
/// Steps more for each block that the process has ever used: who stops a runtime looks at all of them, and so does each of its workers that still has fibers which may move, beside others that go on meanwhile. Each schedule loses that of
/// its main thread, as shuttle ends the thread-local that names it before the one that gives it up.
const WALKS_MAX: usize = 16;

pub fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 256 * 1024;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX + WALKS_MAX * at_once(|| blocks().count()));
    config.silence_warnings = true;
    config
}

/// Runs the rest of a test in a process of its own. The library's statics (pools of blocks, seats, stacks) are the process's: shuttle's atomics in them are for one thread, and whatever an exploration leaves in them, all later ones look at
/// again. (One after the other in one process took 312 s, so they take 48 s, on two cores.)
macro_rules! in_own_process {
    () => {
        fn here() {}
        if crate::scenarios::passed_in_own_process(std::any::type_name_of_val(&here)) {
            return;
        }
    };
}
pub(crate) use in_own_process;

/// Set in a child that a test has started.
const OWN_PROCESS: &str = "SINEW_SHUTTLE_OWN_PROCESS";

/// Whether this is the harness, and the test has passed in a child; `here` is the path of a function within it.
pub fn passed_in_own_process(here: &str) -> bool {
    if std::env::var_os(OWN_PROCESS).is_some() {
        return false;
    }
    let test = here.strip_suffix("::here").and_then(|path| Some(path.split_once("::")?.1)).unwrap();
    let child = in_a_child(test, OWN_PROCESS);
    let [out, err] = [&child.stdout, &child.stderr].map(|said| String::from_utf8_lossy(said));
    assert!(child.status.success() && out.contains("1 passed"), "{out}{err}");
    true
}

pub fn explore(scenario: impl Fn() + Send + Sync + Clone + 'static) {
    explore_one_of(1, scenario);
}

/// As `explore`, one of `variants` of a scenario, which share its schedules.
pub fn explore_one_of(variants: usize, scenario: impl Fn() + Send + Sync + Clone + 'static) {
    assert!(std::env::var_os(OWN_PROCESS).is_some(), "a test that explores begins with `in_own_process!()`");
    let schedules = std::env::var("SINEW_SHUTTLE").ok().map_or(SCHEDULES, |n| n.parse().expect("SINEW_SHUTTLE is a number of schedules"));
    let half = schedules / variants / 2;
    Runner::new(RandomScheduler::new(half), config()).run(scenario.clone());
    Runner::new(PctScheduler::new(3, half), config()).run(scenario);
}

/// Wakes a fiber that parks some number of times until it has ended.
pub fn unpark_until_ended(sleeper: JoinHandle<()>) {
    while !sleeper.is_finished() {
        sleeper.fiber().unpark();
        shuttle::thread::yield_now();
    }
    sleeper.join().unwrap();
}

#[test]
fn fibers_spawned_from_outside_and_from_fibers_all_end() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let ended = Arc::new(AtomicUsize::new(0));
            let handles: Vec<_> = (0..3)
                .map(|_| {
                    let ended = ended.clone();
                    let body = move || {
                        let child = spawn({
                            let ended = ended.clone();
                            move || ended.fetch_add(1, SeqCst)
                        });
                        yield_now();
                        child.join().unwrap();
                        ended.fetch_add(1, SeqCst)
                    };
                    Builder::new().spawn_in(group, body).unwrap()
                })
                .collect();
            for handle in handles {
                handle.join().unwrap();
            }
            assert_eq!(ended.load(SeqCst), 6);
        });
    });
}

/// Claim: a batch is queued by one claim of the queue: nothing comes between two of its fibers, though another batch is made at the same moment.
#[test]
fn batches_that_are_made_at_once_do_not_mix() {
    in_own_process!();
    const FIBERS: usize = 8;
    explore(|| {
        // One worker begins what fibers of two others make, in the order of its queue.
        let shared = Settings { queue: Queue::Shared, ..plain(1) };
        with_groups(vec![shared, plain(1), plain(1)], |groups| {
            let order = Arc::new(Mutex::new(Vec::new()));
            let makers = [1, 2].map(|maker| {
                let order = order.clone();
                let makes = move || {
                    let note = move || order.lock().unwrap().push(maker);
                    let batch = Builder::new().group(Group::foreground(0)).spawn_batch(vec![note; FIBERS]).unwrap();
                    batch.into_iter().for_each(|fiber| fiber.join().unwrap());
                };
                Builder::new().group(Group::foreground(maker)).pinned().spawn_in(groups, makes).unwrap()
            });
            makers.into_iter().for_each(|maker| maker.join().unwrap());
            let order = order.lock().unwrap();
            assert_eq!(order.len(), 2 * FIBERS);
            assert!(order.chunks(FIBERS).all(|batch| batch == [batch[0]; FIBERS]), "{order:?}");
        });
    });
}

#[test]
fn an_unpark_from_a_thread_or_a_fiber_is_never_lost() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let sleepers: Vec<_> = (0..2)
                .map(|_| {
                    Builder::new()
                        .spawn_in(group, || {
                            park();
                            park();
                        })
                        .unwrap()
                })
                .collect();
            let fibers: Vec<_> = sleepers.iter().map(|s| s.fiber().clone()).collect();
            // A token each by a fiber; the second, once the first was used or merged, by this thread until all have ended.
            let waker = {
                let fibers = fibers.clone();
                Builder::new().spawn_in(group, move || fibers.iter().for_each(|f| f.unpark())).unwrap()
            };
            waker.join().unwrap();
            sleepers.into_iter().for_each(unpark_until_ended);
        });
    });
}

#[test]
fn a_fiber_runs_on_one_worker_at_a_time_and_always_on_the_same() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let handles: Vec<_> = (0..3)
                .map(|_| {
                    let body = || {
                        let home = shuttle::thread::current().id();
                        for _ in 0..3 {
                            let me = current();
                            spawn(move || me.unpark());
                            park();
                            assert_eq!(shuttle::thread::current().id(), home, "F5");
                        }
                    };
                    Builder::new().spawn_in(group, body).unwrap()
                })
                .collect();
            handles.into_iter().for_each(|h| h.join().unwrap());
        });
    });
}

#[test]
fn a_scope_outlives_its_children_under_every_schedule() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let body = || {
                let mut counts = [0u32; 3];
                scope(|s| {
                    for count in &mut counts {
                        s.spawn(move || {
                            yield_now();
                            *count += 1;
                        });
                    }
                });
                counts
            };
            assert_eq!(Builder::new().spawn_in(group, body).unwrap().join().unwrap(), [1, 1, 1]);
        });
    });
}

#[test]
fn a_wake_against_its_timeout_has_one_winner() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let sleeper = Builder::new()
                .spawn_in(group, || {
                    // A token that came too late for this park is there for the next.
                    park_timeout(Duration::from_micros(30));
                    park_timeout(Duration::from_micros(30));
                    sleep(Duration::from_micros(5));
                })
                .unwrap();
            let fiber = sleeper.fiber().clone();
            let waker = Builder::new().spawn_in(group, move || fiber.unpark()).unwrap();
            waker.join().unwrap();
            sleeper.join().unwrap();
        });
    });
}

#[test]
fn a_group_stopped_at_any_moment_runs_or_refuses_every_fiber() {
    in_own_process!();
    explore(|| {
        let handles = Arc::new(std::sync::Mutex::new(Vec::new()));
        with_workers(2, |group| {
            for i in 0..3usize {
                if let Ok(handle) = Builder::new().spawn_in(group, move || i) {
                    handles.lock().unwrap().push(handle);
                }
            }
            // The group is stopped when this returns, with fibers still on their way.
        });
        let handles = std::mem::take(&mut *handles.lock().unwrap());
        for (i, handle) in handles.into_iter().enumerate() {
            match handle.join() {
                Ok(value) => assert_eq!(value, i),
                Err(payload) => assert!(payload.is::<crate::NeverRan>()),
            }
        }
    });
}

/// Two fibers of one worker and a third elsewhere that each wait for the other two: no order of wakes leaves one behind.
#[test]
fn fibers_that_wait_for_each_other_meet() {
    in_own_process!();
    explore(|| {
        with_workers(3, |group| {
            let arrived = Arc::new(AtomicUsize::new(0));
            let fibers: Arc<std::sync::Mutex<Vec<crate::Fiber>>> = Arc::default();
            let handles: Vec<_> = (0..3)
                .map(|_| {
                    let (arrived, fibers) = (arrived.clone(), fibers.clone());
                    let body = move || {
                        // Nothing of shuttle's under std's lock: it would block the one thread that all run on.
                        let me = current();
                        fibers.lock().unwrap().push(me);
                        if arrived.fetch_add(1, SeqCst) == 2 {
                            let all = std::mem::take(&mut *fibers.lock().unwrap());
                            all.iter().for_each(|f| f.unpark());
                        }
                        park();
                    };
                    Builder::new().spawn_in(group, body).unwrap()
                })
                .collect();
            handles.into_iter().for_each(|h| h.join().unwrap());
        });
    });
}

#[test]
fn the_lock_lets_one_in_and_leaves_nobody_asleep() {
    in_own_process!();
    explore(|| {
        let lock = Arc::new(crate::os::real_lock::Lock::new((0u32, false)));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let lock = lock.clone();
                shuttle::thread::spawn(move || {
                    for _ in 0..2 {
                        let mut held = lock.lock();
                        assert!(!std::mem::replace(&mut held.1, true), "two hold the lock");
                        shuttle::thread::yield_now();
                        held.0 += 1;
                        held.1 = false;
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(lock.lock().0, 6);
    });
}

/// The harness notices what it is there for: a kernel wake that is not sent. In a process of its own: shuttle cannot clean up after a deadlock.
#[test]
fn a_lost_wake_is_noticed() {
    const CHILD: &str = "SINEW_SHUTTLE_LOSE_WAKES";
    if std::env::var_os(CHILD).is_some() {
        set_mutant("no kernel wake");
        let scenario = || with_workers(2, |group| assert_eq!(Builder::new().spawn_in(group, || 1).unwrap().join().unwrap(), 1));
        Runner::new(RandomScheduler::new(200), config()).run(scenario);
        return;
    }
    fails_in_a_child("scenarios::a_lost_wake_is_noticed", CHILD);
}

/// The same for a bell that is not rung.
#[test]
fn a_lost_ring_is_noticed() {
    const CHILD: &str = "SINEW_SHUTTLE_LOSE_RINGS";
    if std::env::var_os(CHILD).is_some() {
        set_mutant("no bell");
        Runner::new(RandomScheduler::new(600), config()).run(answers_and_mail);
        return;
    }
    fails_in_a_child("scenarios::a_lost_ring_is_noticed", CHILD);
}

/// Runs one test of this binary in a child, which knows by `variable` that it is one.
pub fn in_a_child(test: &str, variable: &str) -> std::process::Output {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .envs([(OWN_PROCESS, "1"), (variable, "1")])
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap()
}

pub fn fails_in_a_child(test: &str, variable: &str) {
    let child = in_a_child(test, variable);
    let said = String::from_utf8_lossy(&child.stderr);
    // The second: where one that runs waits for them.
    let hangs = said.contains("deadlock!") || said.contains("exceeded max_steps bound");
    assert!(!child.status.success() && hangs, "workers that are never woken went unnoticed: {said}");
}

/// Two fibers wait at their workers' sources, for answers that come at any time; a third is unparked by a thread meanwhile, perhaps while its worker sleeps there. Nobody is left asleep.
fn answers_and_mail() {
    with_workers(2, |group| {
        let questions: Vec<Arc<Asked>> = (0..2).map(|_| Arc::default()).collect();
        // One answer comes at any time, the other after all else: its worker is to be woken by its bell alone. The thread is started first: seats have been in scenarios with more threads, and
        // shuttle cannot start one by a thread that has learned of those.
        let kernel = shuttle::thread::spawn({
            let first = questions[0].clone();
            move || first.answer()
        });
        let askers: Vec<_> = questions
            .iter()
            .map(|asked| {
                let asked = asked.clone();
                Builder::new().spawn_in(group, move || asked.ask()).unwrap()
            })
            .collect();
        let sleeper = Builder::new().spawn_in(group, park).unwrap();
        kernel.join().unwrap();
        while questions[1].place.load(SeqCst).is_null() {
            shuttle::thread::yield_now();
        }
        // By then many schedules have put the workers to sleep.
        (0..300).for_each(|_| shuttle::thread::yield_now());
        sleeper.fiber().unpark();
        sleeper.join().unwrap();
        questions[1].answer();
        askers.into_iter().for_each(|asker| asker.join().unwrap());
    });
}

/// A question, which is asked when `place` is not null.
#[derive(Default)]
struct Asked {
    place: std::sync::atomic::AtomicPtr<Question>,
}

impl Asked {
    fn ask(&self) {
        let worker = here().expect("on a worker");
        let me = worker.current().expect("in a fiber");
        let mut question = Question { answered: AtomicU32::new(0), bell: std::ptr::null() };
        me.state.begin_wait();
        worker.with_source(|source| source.ask(&mut question, me)).unwrap();
        worker.begin_source_wait(me);
        self.place.store(&mut question, SeqCst);
        // SAFETY: the wait was begun; the answer ends it.
        unsafe { worker.suspend(me) };
        worker.end_source_wait(me);
    }

    fn answer(&self) {
        loop {
            // SAFETY: the frame waits for the answer.
            match unsafe { self.place.load(SeqCst).as_ref() } {
                Some(question) => return answer(question),
                None => shuttle::thread::yield_now(),
            }
        }
    }
}

#[test]
fn answers_and_mail_reach_a_worker_that_sleeps_at_its_source() {
    in_own_process!();
    explore(answers_and_mail);
}

/// A cancel of the owner races its scope as it opens, fills with children that park, and closes: all children end.
#[test]
fn a_cancel_reaches_every_fiber_of_a_scope_whenever_it_comes() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let owner = Builder::new()
                .spawn_in(group, || {
                    scope(|s| {
                        for _ in 0..2 {
                            s.spawn(|| {
                                scope(|inner| {
                                    inner.spawn(park);
                                });
                                park();
                                assert!(cancelled());
                            });
                        }
                        yield_now();
                    });
                })
                .unwrap();
            owner.cancel();
            owner.join().unwrap();
        });
    });
}

/// A deadline, an unpark and a cancel race one park in a time-out: the park ends, once, and `Elapsed` is told if and only if the deadline ended it.
#[test]
fn a_timeout_tells_the_truth_whoever_wins() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let fiber = Builder::new()
                .spawn_in(group, || {
                    if timeout(Duration::from_micros(30), park).is_err() {
                        // The deadline ended it, so the unpark is still to be used: else this waits for ever.
                        shield(park);
                    }
                })
                .unwrap();
            let handle = fiber.fiber().clone();
            let waker = Builder::new().spawn_in(group, move || handle.unpark()).unwrap();
            fiber.cancel();
            fiber.join().unwrap();
            waker.join().unwrap();
        });
    });
}

/// A thread's wake through a waker, a deadline and a cancel race a wait for a future: it ends, what it says is true, and a wait for the same future that is neither
/// cancelled nor late comes to its end too.
#[test]
fn a_wait_for_a_future_ends_whoever_wins() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let signal: Arc<(AtomicUsize, std::sync::Mutex<Option<Waker>>)> = Arc::default();
            let theirs = signal.clone();
            // First, as in `answers_and_mail`.
            let waker = shuttle::thread::spawn(move || {
                signal.0.store(1, SeqCst);
                let waker = signal.1.lock().unwrap().take();
                waker.into_iter().for_each(Waker::wake);
            });
            let fiber = Builder::new()
                .spawn_in(group, move || {
                    let happens = || {
                        let happened = |context: &mut Context<'_>| {
                            let before = theirs.1.lock().unwrap().replace(context.waker().clone());
                            drop(before);
                            if theirs.0.load(SeqCst) == 1 { Poll::Ready(7) } else { Poll::Pending }
                        };
                        poll_fn(happened)
                    };
                    let cut = timeout(Duration::from_micros(30), || try_block_on(happens()));
                    if let Ok(Err(why)) = &cut {
                        assert_eq!(*why, Cut::Cancelled);
                    }
                    assert_eq!(block_on(happens()), 7);
                    // What is left of the wake ends no sleep and no park.
                    shield(|| assert!(timeout(Duration::from_micros(5), park).is_err()));
                })
                .unwrap();
            fiber.cancel();
            fiber.join().unwrap();
            waker.join().unwrap();
        });
    });
}

/// Timers are armed, fire, are cancelled by another fiber and are dropped by the end of their group: each callback runs once or was stopped, and is dropped once.
#[test]
fn a_timer_runs_once_or_is_stopped_whenever_it_is_cancelled() {
    in_own_process!();
    struct Gone(Arc<AtomicUsize>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    explore(|| {
        let (ran, gone) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (their_ran, their_gone) = (ran.clone(), gone.clone());
        let not_stopped = Arc::new(AtomicUsize::new(0));
        let theirs = not_stopped.clone();
        with_workers(2, |group| {
            let body = move || {
                let (ran, inside) = (their_ran.clone(), Gone(their_gone.clone()));
                let timer = Timer::after(Duration::from_micros(20), move || {
                    ran.fetch_add(1, SeqCst);
                    drop(inside);
                });
                let inside = Gone(their_gone.clone());
                let often = Timer::every(Duration::from_micros(10), move || _ = &inside);
                let canceller = spawn(move || timer.cancel());
                sleep(Duration::from_micros(10));
                theirs.fetch_add(usize::from(canceller.join().unwrap() != Cancel::Stopped), SeqCst);
                often.cancel();
                // One that the end of the group drops.
                let inside = Gone(their_gone);
                Timer::after(Duration::from_secs(3600), move || drop(inside)).detach();
            };
            Builder::new().spawn_in(group, body).unwrap().join().unwrap();
        });
        assert_eq!(ran.load(SeqCst), not_stopped.load(SeqCst));
        assert_eq!(gone.load(SeqCst), 3);
    });
}

/// Jobs come as idle threads time out and leave, and as the group is stopped: each is done once, and no thread stays.
#[test]
fn every_blocking_job_is_done_and_every_thread_leaves() {
    in_own_process!();
    explore(|| {
        with_pool(2, 2, 20_000, |group| {
            let done = Arc::new(AtomicUsize::new(0));
            let fibers: Vec<_> = (0..3)
                .map(|_| {
                    let done = done.clone();
                    let body = move || {
                        for _ in 0..2 {
                            assert!(blocking(|| done.fetch_add(1, SeqCst) < 6));
                            sleep(Duration::from_micros(15));
                        }
                    };
                    Builder::new().spawn_in(group, body).unwrap()
                })
                .collect();
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            assert_eq!(done.load(SeqCst), 6);
        });
    });
}

/// Fibers that wait for nothing but a cancel, as the group is stopped: by workers that run them, lie down, or sleep. All end.
#[test]
fn a_stop_reaches_every_worker_and_every_fiber() {
    in_own_process!();
    explore(|| {
        with_workers(1, |group| {
            let parks = Arc::new(AtomicUsize::new(0));
            let waits = {
                let parks = parks.clone();
                move || {
                    parks.store(1, SeqCst);
                    park();
                    assert!(cancelled());
                }
            };
            drop(Builder::new().spawn_in(group, waits).unwrap());
            // The stop comes as the worker goes to rest.
            while parks.load(SeqCst) == 0 {
                shuttle::thread::yield_now();
            }
        });
    });
}
