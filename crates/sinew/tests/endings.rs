//! How waits are cut short and how things end: cancellation, time-outs, shutdown, fork, exit, deadlock.

mod common;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{in_child, is_child};
use sinew::sync::{Condvar, Event, Futex, FutexWait, Latch, Mutex};
use sinew::{JoinHandle, NeverRan, Runtime, cancelled, current, park, scope, shield, sleep, spawn, timeout, yield_now};

const HOUR: Duration = Duration::from_secs(3600);
const MILLI: Duration = Duration::from_millis(1);

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

/// Lets others run until `condition` holds.
fn until(condition: impl Fn() -> bool) {
    while !condition() {
        yield_now();
    }
}

// Cancellation

#[test]
fn a_cancel_cuts_a_sleep_and_a_park_short_and_stays() {
    for wait in [|| sleep(HOUR), park, || sinew::park_timeout(HOUR), || sinew::sleep_until(Instant::now() + HOUR)] {
        let fiber = spawn(move || {
            wait();
            assert!(cancelled());
            // It stays: these return at once, in any order.
            wait();
            sleep(HOUR);
            park();
            cancelled()
        });
        fiber.cancel();
        fiber.cancel();
        assert!(fiber.join().unwrap());
    }
}

#[test]
fn a_cancelled_fiber_that_has_not_started_still_runs() {
    let runtime = runtime(1);
    runtime.run(|| {
        let fiber = spawn(|| (cancelled(), 7));
        fiber.cancel();
        assert_eq!(fiber.join().unwrap(), (true, 7));
    });
}

#[test]
fn a_loop_that_ignores_its_cancel_does_not_hog_the_worker() {
    let runtime = runtime(1);
    runtime.run(|| {
        let done = Arc::new(AtomicBool::new(false));
        let deaf = {
            let done = done.clone();
            spawn(move || {
                let mut rounds = 0u64;
                while !done.load(SeqCst) {
                    sleep(HOUR);
                    park();
                    rounds += 1;
                }
                rounds
            })
        };
        deaf.cancel();
        // A hundred turns of the one worker for others, between the deaf one's failing waits.
        (0..100).for_each(|_| yield_now());
        done.store(true, SeqCst);
        assert!(deaf.join().unwrap() > 0);
    });
}

#[test]
fn joins_scopes_and_yields_are_no_cancel_points() {
    let gate = Arc::new(AtomicBool::new(false));
    let fiber = {
        let gate = gate.clone();
        spawn(move || {
            current().cancel();
            let child = {
                let gate = gate.clone();
                spawn(move || {
                    until(|| gate.load(SeqCst));
                    assert!(!cancelled(), "a detached child is not cancelled with its parent");
                    1
                })
            };
            yield_now();
            gate.store(true, SeqCst);
            let joined = child.join().unwrap();
            let mut scoped = 0;
            scope(|s| {
                s.spawn(|| {
                    (0..10).for_each(|_| yield_now());
                    scoped = 1;
                });
            });
            let ran = sinew::run(|| {
                (0..10).for_each(|_| yield_now());
                1
            });
            joined + scoped + ran
        })
    };
    assert_eq!(fiber.join().unwrap(), 3);
}

#[test]
fn a_cancelled_park_leaves_the_unpark_for_later() {
    let fiber = spawn(|| {
        current().unpark();
        current().cancel();
        park();
        park();
        // Still there: else this waits for ever.
        shield(park);
        // And used up now.
        shield(|| timeout(MILLI, park)).is_err()
    });
    assert!(fiber.join().unwrap());
}

#[test]
fn a_shield_defers_a_cancel_and_deadlines_from_outside_but_not_its_own() {
    let fiber = spawn(|| {
        let me = current();
        let slept = timeout(Duration::ZERO, || {
            shield(|| {
                me.cancel();
                assert!(!cancelled());
                let before = Instant::now();
                sleep(3 * MILLI);
                assert!(before.elapsed() >= 3 * MILLI, "a shielded sleep was cut short");
                assert!(timeout(MILLI, || sleep(HOUR)).is_err(), "a deadline inside a shield counts");
                // Nested shields; a shield in a time-out in a shield.
                shield(|| timeout(HOUR, || shield(|| sleep(MILLI)))).unwrap();
                scope(|s| {
                    s.spawn(|| assert!(!cancelled(), "fibers of a shielded scope are shielded"));
                });
                before.elapsed()
            })
        });
        assert!(slept.is_ok(), "the shield kept the deadline off, so it cut nothing short");
        assert!(cancelled(), "the cancel was only deferred");
        // A panic out of a shield leaves it.
        let _ = catch_unwind(|| shield(|| std::panic::resume_unwind(Box::new(()))));
        cancelled()
    });
    assert!(fiber.join().unwrap());
}

#[test]
fn a_cancel_reaches_the_whole_tree_of_scopes_and_runs_and_nothing_else() {
    let (waiting, cut) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let leaf = {
        let (waiting, cut) = (waiting.clone(), cut.clone());
        move || {
            waiting.fetch_add(1, SeqCst);
            park();
            assert!(cancelled());
            cut.fetch_add(1, SeqCst);
        }
    };
    let gate = Arc::new(AtomicBool::new(false));
    let tree = {
        let (leaf, gate) = (leaf.clone(), gate.clone());
        spawn(move || {
            let stranger = spawn({
                let gate = gate.clone();
                move || {
                    until(|| gate.load(SeqCst));
                    cancelled()
                }
            });
            scope(|s| {
                for _ in 0..10 {
                    s.spawn(|| {
                        scope(|s| {
                            (0..10).for_each(|_| drop(s.spawn(&leaf)));
                            sinew::run(&leaf);
                        });
                    });
                }
            });
            // Scopes that are opened after the cancel: their fibers begin cancelled.
            scope(|s| {
                s.spawn(|| assert!(cancelled()));
                s.spawn(|| scope(|s| s.spawn(cancelled).join().unwrap())).join().unwrap()
            })
            .then_some(stranger)
            .expect("a grandchild of a cancelled fiber is cancelled")
        })
    };
    sinew::run(|| until(|| waiting.load(SeqCst) == 110));
    tree.cancel();
    let stranger = tree.join().unwrap();
    gate.store(true, SeqCst);
    assert!(!stranger.join().unwrap(), "a detached fiber was cancelled");
    assert_eq!(cut.load(SeqCst), 110);
}

#[test]
fn one_child_of_a_scope_can_be_cancelled_alone() {
    sinew::run(|| {
        scope(|s| {
            let one = s.spawn(|| {
                park();
                cancelled()
            });
            let other = s.spawn(|| {
                park();
                cancelled()
            });
            one.cancel();
            assert!(one.join().unwrap());
            other.fiber().unpark();
            assert!(!other.join().unwrap());
            assert!(!cancelled());
        });
    });
}

#[test]
fn a_cancel_of_an_ended_fiber_never_hits_the_next_one_in_its_place() {
    // Handles of ended fibers are cancelled, their blocks are used again at once; and an owner is cancelled whose list names many ended children.
    for _ in 0..200 {
        let owner = spawn(|| {
            scope(|s| {
                (0..50).for_each(|_| drop(s.spawn(|| ())));
                (0..3).for_each(|_| yield_now());
                let strangers: Vec<_> = (0..50).map(|_| spawn(cancelled)).collect();
                current().cancel();
                assert!(strangers.into_iter().all(|stranger| !stranger.join().unwrap()), "a stranger was cancelled");
            });
        });
        let ended = spawn(|| ());
        until(|| ended.is_finished());
        let fiber = ended.fiber().clone();
        ended.join().unwrap();
        fiber.cancel();
        drop(fiber);
        assert!(!spawn(cancelled).join().unwrap());
        owner.join().unwrap();
    }
}

#[test]
fn a_plain_thread_can_be_cancelled_timed_out_and_shielded() {
    std::thread::spawn(|| {
        assert!(timeout(MILLI, || sleep(HOUR)).is_err());
        assert!(timeout(MILLI, park).is_err());
        assert_eq!(timeout(HOUR, || 1), Ok(1));
        let me = current();
        std::thread::scope(|s| {
            s.spawn(|| me.cancel());
            park();
        });
        sleep(HOUR);
        assert!(cancelled());
        shield(|| sleep(MILLI));
        assert!(sinew::run(cancelled), "a fiber that the thread runs is cancelled with it");
        assert!(!spawn(cancelled).join().unwrap());
    })
    .join()
    .unwrap();
}

// Time-outs

#[test]
fn a_timeout_says_elapsed_if_and_only_if_it_cut_a_wait_short() {
    sinew::run(|| {
        assert_eq!(timeout(HOUR, || 7), Ok(7));
        assert_eq!(timeout(Duration::MAX, || 7), Ok(7));
        assert!(timeout(MILLI, || sleep(HOUR)).is_err());
        assert!(timeout(MILLI, park).is_err());
        // Late, but nothing was cut short.
        let late = timeout(MILLI, || {
            let end = Instant::now() + 3 * MILLI;
            while Instant::now() < end {
                yield_now();
            }
            cancelled()
        });
        assert_eq!(late, Ok(true));
        // Already late: fails at entry.
        assert!(timeout(Duration::ZERO, || sleep(MILLI)).is_err());
        assert!(timeout(Duration::ZERO, park).is_err());
        assert_eq!(timeout(Duration::ZERO, || 7), Ok(7));
        // A wait that ends by itself in time.
        assert_eq!(timeout(HOUR, || sleep(MILLI)), Ok(()));
        // After it nothing is left.
        assert!(!cancelled());
        sleep(MILLI);
    });
}

#[test]
fn nested_timeouts_tell_only_the_one_that_cut() {
    // For each order of three deadlines, the wait in the middle of all is cut by the earliest, which alone says so.
    sinew::run(|| {
        let spans = [2 * MILLI, 100 * HOUR, 200 * HOUR];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let [outer, middle, inner] = order.map(|i| spans[i]);
            let mut seen = Vec::new();
            let outermost = timeout(outer, || {
                let second = timeout(middle, || {
                    let third = timeout(inner, || sleep(HOUR));
                    seen.push(third.is_err());
                });
                seen.push(second.is_err());
            });
            seen.push(outermost.is_err());
            let expected: Vec<bool> = [inner, middle, outer].iter().map(|&span| span == spans[0]).collect();
            assert_eq!(seen, expected, "deadlines {order:?}, innermost first");
        }
        // Both past: the earlier one cuts, again and again.
        let mut inner_elapsed = false;
        let outer = timeout(MILLI, || {
            inner_elapsed = timeout(2 * MILLI, || (0..3).for_each(|_| sleep(HOUR))).is_err();
        });
        assert!(outer.is_err() && !inner_elapsed);
        // The inner one is past and gone: the outer one goes on.
        let outer = timeout(HOUR, || {
            assert!(timeout(MILLI, || sleep(HOUR)).is_err());
            sleep(MILLI);
            5
        });
        assert_eq!(outer, Ok(5));
    });
}

#[test]
fn a_panic_out_of_a_timeout_leaves_it() {
    sinew::run(|| {
        let panicked = catch_unwind(AssertUnwindSafe(|| timeout(Duration::ZERO, || std::panic::resume_unwind(Box::new(1)))));
        assert!(panicked.is_err());
        let before = Instant::now();
        sleep(2 * MILLI);
        assert!(before.elapsed() >= 2 * MILLI);
    });
}

#[test]
fn fibers_of_a_scope_are_under_their_owners_deadline_and_detached_ones_are_not() {
    sinew::run(|| {
        let mut detached = None;
        let outcome = timeout(2 * MILLI, || {
            scope(|s| {
                s.spawn(|| sleep(HOUR));
                s.spawn(|| scope(|s| drop(s.spawn(park))));
                s.spawn(|| sinew::run(|| sleep(HOUR)));
            });
            assert!(cancelled());
            detached = Some(spawn(|| {
                sleep(MILLI);
                cancelled()
            }));
        });
        assert!(outcome.is_err(), "the deadline cut the waits of the scope's fibers short");
        assert!(!detached.unwrap().join().unwrap());
        // A deadline around the spawn but inside the scope is not the child's: it may outlive it.
        scope(|s| {
            let child = timeout(Duration::ZERO, || {
                s.spawn(|| {
                    sleep(MILLI);
                    cancelled()
                })
            });
            assert!(!child.unwrap().join().unwrap());
        });
        // A child's own deadline within its owner's.
        let outcome = timeout(HOUR, || scope(|s| s.spawn(|| timeout(MILLI, || sleep(HOUR))).join().unwrap()));
        assert!(matches!(outcome, Ok(Err(_))));
    });
}

/// Wake against deadline against cancel, with exact accounting: whoever ends the park, the one unpark is used once, by that park or by the next.
///
/// The waiter is alone on its worker, so whether its second park suspends is certain: if the unpark is still there, it does not, and the rescuer, which is ready, does not run.
#[test]
fn a_wake_a_deadline_and_a_cancel_race_and_one_wins() {
    let rounds = rounds("SINEW_TEST_RACES", 100_000, 1_000_000);
    let (waiters, drivers) = (runtime(1), runtime(1));
    let handle = waiters.handle();
    let (mut woken, mut elapsed, mut cut) = (0u64, 0u64, 0u64);
    drivers.run(|| {
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..rounds {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (dice, cancels) = (random, random >> 40 & 1 == 0);
            let sent = Arc::new(AtomicBool::new(false));
            let waiter = {
                let sent = sent.clone();
                handle.spawn(move || {
                    let outcome = timeout(Duration::from_nanos(dice % 16_000), park);
                    until(|| sent.load(SeqCst));
                    (outcome.is_err(), second_park_suspends())
                })
            };
            (0..dice >> 20 & 63).for_each(|_| std::hint::spin_loop());
            if cancels {
                waiter.cancel();
                (0..dice >> 28 & 63).for_each(|_| std::hint::spin_loop());
            }
            waiter.fiber().unpark();
            sent.store(true, SeqCst);
            match waiter.join().unwrap() {
                (true, used) => {
                    assert!(!used, "the deadline ended the park, and the unpark was used by it");
                    elapsed += 1;
                }
                (false, true) => woken += 1,
                (false, false) => {
                    assert!(cancels, "neither deadline, nor cancel, nor the unpark ended the park");
                    cut += 1;
                }
            }
        }
    });
    assert_eq!(woken + elapsed + cut, rounds);
    assert!(woken > 0 && elapsed > 0 && cut > 0, "woken {woken}, elapsed {elapsed}, cut {cut}: not all of them were seen");
}

/// Whether a park of the caller, alone on its worker, finds no unpark.
fn second_park_suspends() -> bool {
    let (waits, rescued) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let (me, waits_still, rescues) = (current(), waits.clone(), rescued.clone());
    drop(spawn(move || {
        if waits_still.load(SeqCst) {
            rescues.store(true, SeqCst);
            me.unpark();
        }
    }));
    shield(park);
    waits.store(false, SeqCst);
    rescued.load(SeqCst)
}

/// How often a random test is tried: as the environment says, else fewer times without optimisation.
fn rounds(variable: &str, debug: u64, release: u64) -> u64 {
    let asked = std::env::var(variable).ok().map(|text| text.parse().expect("a number of rounds"));
    asked.unwrap_or(if cfg!(debug_assertions) { debug } else { release })
}

// Shutdown

#[test]
fn a_shutdown_cancels_what_waits_drops_what_has_not_started_and_returns_when_all_have_ended() {
    for workers in [1, 2, 8] {
        let runtime = runtime(workers);
        let ended = Arc::new(AtomicUsize::new(0));
        let waiting = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..100)
            .map(|i| {
                let (ended, waiting) = (ended.clone(), waiting.clone());
                runtime.spawn(move || {
                    waiting.fetch_add(1, SeqCst);
                    if i % 2 == 0 {
                        park()
                    } else {
                        sleep(HOUR)
                    }
                    assert!(cancelled());
                    // Cleaning up may take time, and waits.
                    shield(|| sleep(MILLI));
                    ended.fetch_add(1, SeqCst);
                })
            })
            .collect();
        sinew::run(|| until(|| waiting.load(SeqCst) == 100));
        let dropped = Arc::new(AtomicUsize::new(0));
        let unstarted: Vec<_> = {
            // All workers are kept busy, so that these do not start.
            let (busy, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
            for _ in 0..workers {
                let (busy, gate) = (busy.clone(), gate.clone());
                runtime.spawn(move || {
                    busy.fetch_add(1, SeqCst);
                    while !gate.load(SeqCst) {
                        std::thread::yield_now();
                    }
                });
            }
            while busy.load(SeqCst) < workers {
                std::thread::yield_now();
            }
            let unstarted = (0..10)
                .map(|_| {
                    let count = Counted(dropped.clone());
                    runtime.spawn(move || drop(count))
                })
                .collect();
            let handle = runtime.handle();
            std::thread::spawn(move || {
                // Lets the workers go once the runtime refuses new fibers.
                while catch_unwind(AssertUnwindSafe(|| handle.spawn(|| ()))).is_ok() {
                    std::thread::yield_now();
                }
                gate.store(true, SeqCst);
            });
            unstarted
        };
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(ended.load(SeqCst), 100);
        assert_eq!(dropped.load(SeqCst), 10);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        for fiber in unstarted {
            assert!(fiber.join().unwrap_err().is::<NeverRan>());
        }
    }
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Claim: where a loop around `sleep` spins after its cancel, what is said of it tells why, and what to do.
#[test]
fn a_shutdown_tells_of_a_loop_that_does_not_heed_its_cancel() {
    let runtime = runtime(1);
    let done = Arc::new(AtomicBool::new(false));
    let deaf = {
        let done = done.clone();
        runtime.spawn(move || {
            while !done.load(SeqCst) {
                sleep(MILLI);
            }
        })
    };
    until(|| runtime.metrics().workers[0].settled == 1);
    let text = runtime.shutdown_timeout(20 * MILLI).unwrap_err().to_string();
    assert!(text.contains("was cancelled, and goes on: a loop around `sleep` or `park` must ask `sinew::cancelled()`"), "{text}");
    done.store(true, SeqCst);
    deaf.join().unwrap();
}

#[test]
fn a_shutdown_names_what_did_not_end_and_leaves_it_as_it_is() {
    let runtime = runtime(2);
    let (stubborn, joiner) = runtime.run(|| {
        let stubborn = sinew::Builder::new().name("stubborn").spawn(|| shield(park)).unwrap();
        let fiber = stubborn.fiber().clone();
        let joiner = sinew::Builder::new().name("joiner").spawn(|| stubborn.join().unwrap()).unwrap();
        // Both wait now: one worker or the other has run them when these have had their turns.
        (fiber, joiner)
    });
    let handle = runtime.handle();
    until(|| handle.metrics().workers.iter().map(|w| w.settled).sum::<usize>() == 2 && handle.metrics().workers.iter().all(|w| w.sleeping));
    let unfinished = runtime.shutdown_timeout(20 * MILLI).unwrap_err();
    let text = format!("{unfinished:?}");
    assert_eq!(unfinished.fibers().len(), 2, "{text}");
    assert!(text.contains("2 fibers had not ended"), "{text}");
    assert!(text.contains("'stubborn', spawned at crates") && text.contains("is parked"), "{text}");
    assert!(text.contains("'joiner'") && text.contains(&format!("waits for the end of fiber {} 'stubborn'", stubborn.id())), "{text}");
    // They are as they were: an unpark ends them still.
    stubborn.unpark();
    joiner.join().unwrap();
    let refused = catch_unwind(AssertUnwindSafe(|| handle.spawn(|| ()))).unwrap_err();
    assert!(refused.downcast_ref::<String>().unwrap().contains("shut down"));
}

#[test]
fn run_and_scope_do_not_return_before_their_fibers_have_ended_even_at_shutdown() {
    let runtime = runtime(2);
    let handle = runtime.handle();
    let inside = AtomicUsize::new(0);
    let mut borrowed = [0; 4];
    std::thread::scope(|s| {
        s.spawn(|| {
            handle.run(|| {
                scope(|s| {
                    for place in &mut borrowed {
                        s.spawn(|| {
                            inside.fetch_add(1, SeqCst);
                            park();
                            // Cut short; goes on to write to what it borrows.
                            shield(|| sleep(5 * MILLI));
                            *place = 7;
                        });
                    }
                });
            });
            assert_eq!(borrowed, [7; 4]);
        });
        while inside.load(SeqCst) < 4 {
            std::thread::yield_now();
        }
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
    });
}

#[test]
fn a_runtime_can_be_dropped_in_a_fiber_of_another_without_blocking_its_worker() {
    let outer = runtime(1);
    let turns = Arc::new(AtomicUsize::new(0));
    outer.run(|| {
        let inner = runtime(2);
        let started = Arc::new(AtomicBool::new(false));
        let slow = {
            let (turns, started) = (turns.clone(), started.clone());
            // Ends only when the outer runtime's worker has run others meanwhile.
            inner.spawn(move || {
                started.store(true, SeqCst);
                while turns.load(SeqCst) < 100 {
                    yield_now();
                }
            })
        };
        let ticker = {
            let turns = turns.clone();
            spawn(move || {
                while turns.fetch_add(1, SeqCst) < 100 {
                    yield_now();
                }
            })
        };
        while !started.load(SeqCst) {
            std::thread::yield_now();
        }
        inner.shutdown_timeout(Duration::from_secs(60)).unwrap();
        ticker.join().unwrap();
        slow.join().unwrap();
    });
}

#[test]
fn a_runtime_that_is_shut_down_by_its_own_fiber_says_so() {
    let runtime = runtime(1);
    let handle = runtime.handle();
    let outcome = handle.spawn(move || drop(runtime)).join();
    assert!(outcome.unwrap_err().downcast_ref::<&str>().unwrap().contains("its own fibers"));
}

/// Has a fiber of `runtime` do `f` once that is being shut down, and gives what it came to when the shutdown has ended.
fn during_shutdown<T: Send + 'static>(runtime: Runtime, f: impl FnOnce() -> T + Send + 'static) -> std::thread::Result<T> {
    let inside = Arc::new(AtomicBool::new(false));
    let fiber = {
        let inside = inside.clone();
        runtime.spawn(move || {
            inside.store(true, SeqCst);
            park();
            assert!(cancelled());
            f()
        })
    };
    while !inside.load(SeqCst) {
        std::thread::yield_now();
    }
    runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
    fiber.join()
}

fn text<T>(outcome: std::thread::Result<T>) -> String {
    let payload = outcome.map(drop).unwrap_err();
    let said = || payload.downcast_ref::<&str>().map(|text| text.to_string()).or(payload.downcast_ref::<String>().cloned());
    payload.downcast_ref::<NeverRan>().map(|why| format!("NeverRan: {why}")).or_else(said).unwrap()
}

const SHUT_DOWN_FIRST: &str = "NeverRan: the fiber never ran: its runtime was shut down first";

/// Claim: no fiber has to know that its runtime is being shut down. Whatever it spawns then is dropped, before the call returns, and is to who joins it like one that was spawned before.
#[test]
fn what_fibers_spawn_while_their_runtime_is_shut_down_ends_unrun() {
    let runtime = runtime(2);
    let handle = runtime.handle();
    let fiber = during_shutdown(runtime, move || {
        let dropped = Arc::new(AtomicUsize::new(0));
        let one = || {
            let guard = Counted(dropped.clone());
            move || {
                drop(guard);
                panic!("a fiber was run");
            }
        };
        let counted = handle.metrics().spawned;
        let mut spawned: Vec<sinew::JoinHandle<()>> = Vec::new();
        spawned.push(spawn(one()));
        spawned.extend(sinew::spawn_batch([one(), one(), one()]));
        spawned.push(sinew::spawn_future({
            let guard = one();
            async move { guard() }
        }));
        spawned.push(handle.spawn(one()));
        spawned.extend(sinew::blocking(|| [spawn(one()), handle.spawn(one())]));
        sinew::hop(one());
        drop(spawn(one()));
        assert_eq!(dropped.load(SeqCst), 10, "a closure was not dropped, or twice");
        assert_eq!(handle.metrics().spawned, counted, "one that was never there counts as alive");
        assert!(spawned.iter().all(|fiber| fiber.is_finished()));
        spawned[0].cancel();
        spawned[0].fiber().unpark();
        spawned.into_iter().for_each(|fiber| assert_eq!(text(fiber.join()), SHUT_DOWN_FIRST));
        // Also by the handle as a future.
        assert_eq!(text(sinew::block_on(spawn(one()))), SHUT_DOWN_FIRST);
        let left = scope(|s| (text(s.spawn(one()).join()), 7));
        assert_eq!(left, (SHUT_DOWN_FIRST.to_owned(), 7), "a scope whose fibers were all joined ends well");
        assert_eq!(dropped.load(SeqCst), 12);
    });
    fiber.unwrap();
}

/// Claim: one that starts anew whatever has failed, and does not ask why, keeps nobody from ending. By one that does so until another of its worker has ended.
#[test]
fn who_starts_anew_what_a_shutdown_dropped_lets_others_run() {
    let runtime = runtime(1);
    let ended = Arc::new(AtomicBool::new(false));
    let (other, waits) = (ended.clone(), Arc::new(AtomicBool::new(false)));
    let tells = waits.clone();
    runtime.spawn(move || {
        tells.store(true, SeqCst);
        park();
        other.store(true, SeqCst);
    });
    while !waits.load(SeqCst) {
        std::thread::yield_now();
    }
    let restarts = during_shutdown(runtime, move || {
        let begun = Instant::now();
        while !ended.load(SeqCst) {
            assert!(spawn(|| ()).join().is_err());
            assert!(begun.elapsed() < Duration::from_secs(50), "the other one was kept from its worker");
        }
    });
    restarts.unwrap();
}

#[test]
fn in_a_runtime_that_is_being_shut_down_builders_and_others_are_refused_without_loss() {
    let runtime = runtime(2);
    let handle = runtime.handle();
    let fiber = during_shutdown(runtime, move || {
        let dropped = Arc::new(AtomicUsize::new(0));
        let one = || {
            let guard = Counted(dropped.clone());
            move || drop(guard)
        };
        let new = sinew::Builder::new;
        let refusals = [
            new().spawn(one()).unwrap_err(),
            new().launch(sinew::Launch::Dispatch).spawn(one()).unwrap_err(),
            new().spawn_batch([one(), one()]).unwrap_err(),
            scope(|s| new().spawn_scoped(s, one()).unwrap_err()),
        ];
        assert!(refusals.iter().all(|error| error.to_string() == "no new fibers: the runtime is being shut down"), "{refusals:?}");
        // Who is not of it is told that it is over; and what must give a value cannot.
        let outside = std::thread::scope(|s| s.spawn(|| drop(handle.spawn(one()))).join());
        assert_eq!(text(outside), "Handle::spawn: no new fibers: the runtime is being shut down");
        let ran = catch_unwind(AssertUnwindSafe(|| sinew::run(one())));
        assert_eq!(text(ran), "sinew: no new fibers: the runtime is being shut down");
        assert_eq!(dropped.load(SeqCst), 7);
    });
    fiber.unwrap();
}

/// What a closure's destructor does is its own matter: it may panic, suspend, and spawn in turn.
#[test]
fn a_destructor_of_what_is_dropped_at_a_spawn_may_panic_suspend_and_spawn() {
    struct OnDrop<F: FnMut()>(F);
    impl<F: FnMut()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    fn dropping(f: impl FnMut() + Send + 'static) -> impl FnOnce() + Send {
        let guard = OnDrop(f);
        move || drop(guard)
    }
    for moves in [false, true] {
        let builder = Runtime::builder().workers(2);
        // SAFETY: what these fibers keep over a suspension is `Send`, and they use no thread-locals.
        let runtime = if moves { unsafe { builder.migrate_started_fibers() } } else { builder }.build().unwrap();
        let fiber = during_shutdown(runtime, || {
            let panics = spawn(dropping(|| panic!("a destructor's panic")));
            let suspends = spawn(dropping(|| (0..10).for_each(|_| yield_now())));
            let inner = Arc::new(std::sync::Mutex::new(None));
            let spawns = {
                let inner = inner.clone();
                spawn(dropping(move || *inner.lock().unwrap() = Some(spawn(|| ()))))
            };
            let inner = inner.lock().unwrap().take().expect("the destructor has run");
            [panics, suspends, spawns, inner].map(|fiber| text(fiber.join()))
        });
        assert_eq!(fiber.unwrap(), [SHUT_DOWN_FIRST; 4]);
    }
}

/// Servers that are shut down as connections come in: what the acceptor spawns in the last moment is dropped, and it ends by the error of its next accept.
#[test]
fn an_acceptor_that_is_shut_down_under_load_does_not_panic() {
    for round in 0..rounds("SINEW_TEST_ACCEPTORS", 100, 400) {
        let runtime = runtime(2);
        let listener = sinew::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let acceptor = {
            let accepted = accepted.clone();
            runtime.spawn(move || {
                loop {
                    match listener.accept() {
                        Ok((stream, _)) => {
                            accepted.fetch_add(1, SeqCst);
                            spawn(move || drop(stream));
                        }
                        Err(_) => break assert!(cancelled()),
                    }
                }
            })
        };
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| while std::net::TcpStream::connect(addr).is_ok() {});
            }
            while accepted.load(SeqCst) < 20 + round as usize % 10 {
                std::thread::yield_now();
            }
            runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
        });
        acceptor.join().unwrap_or_else(|panic| panic!("round {round}: {}", text::<()>(Err(panic))));
    }
}

/// Claim: a scope says that children were not run, and not that they panicked, unless one did; and what was joined it leaves to who did.
#[test]
fn a_scope_tells_children_that_were_not_run_from_those_that_panicked() {
    const NOT_RUN: &str = "a scoped fiber was not run: the runtime is being shut down";
    // The one worker is held until the shutdown has begun, so that no child has started.
    let unstarted = |joins: bool| {
        let runtime = runtime(1);
        let inside = Arc::new(AtomicBool::new(false));
        let owner = {
            let inside = inside.clone();
            runtime.spawn(move || {
                let borrowed = AtomicUsize::new(0);
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    scope(|s| {
                        let children: Vec<_> = (0..5).map(|_| s.spawn(|| borrowed.fetch_add(1, SeqCst))).collect();
                        inside.store(true, SeqCst);
                        while !cancelled() {
                            std::hint::spin_loop();
                        }
                        if joins {
                            children.into_iter().for_each(|child| assert_eq!(text(child.join()), SHUT_DOWN_FIRST));
                        }
                    });
                }));
                assert_eq!(borrowed.load(SeqCst), 0, "a child was run");
                outcome
            })
        };
        while !inside.load(SeqCst) {
            std::thread::yield_now();
        }
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
        owner.join().unwrap()
    };
    assert_eq!(text(unstarted(false)), NOT_RUN);
    unstarted(true).expect("all children were joined");
    let ended = during_shutdown(runtime(1), || {
        let late = catch_unwind(|| scope(|s| drop(s.spawn(|| ()))));
        let again = NeverRan::clone(spawn(|| ()).join().unwrap_err().downcast_ref().unwrap());
        (text(late), again)
    });
    let (late, never_ran) = ended.unwrap();
    assert_eq!(late, NOT_RUN);
    // A child that passes on what befell another has panicked.
    let passed_on = |join: bool| {
        let never_ran = never_ran.clone();
        catch_unwind(AssertUnwindSafe(|| {
            scope(|s| {
                let child = s.spawn(|| std::panic::resume_unwind(Box::new(never_ran)));
                if join {
                    assert_eq!(text::<()>(child.join()), SHUT_DOWN_FIRST);
                }
            });
        }))
    };
    assert_eq!(text(passed_on(false)), "a scoped fiber panicked");
    passed_on(true).expect("it was joined");
}

/// Runtimes that are shut down at random moments of a storm of spawns, parks, sleeps, scopes and cancels: all end, none of the handles hangs.
#[test]
fn shutdowns_at_random_points_under_load_lose_nothing() {
    for round in 0..rounds("SINEW_TEST_SHUTDOWNS", 1_000, 10_000) {
        let runtime = runtime(1 + (round % 3) as usize);
        let handle = runtime.handle();
        let count = Arc::new(AtomicUsize::new(0));
        let made = Arc::new(AtomicUsize::new(0));
        let storm = {
            let (count, made) = (count.clone(), made.clone());
            let spawner = move || {
                for i in 0..(round % 40) {
                    made.fetch_add(1, SeqCst);
                    let guard = Counted(count.clone());
                    let spawned = sinew::Builder::new().spawn(move || {
                        let _guard = guard;
                        match i % 5 {
                            0 => yield_now(),
                            1 => park(),
                            2 => sleep(HOUR),
                            3 => timeout(MILLI / 10, park).unwrap_or(()),
                            _ => scope(|s| drop(sinew::Builder::new().spawn_scoped(s, park))),
                        }
                    });
                    match spawned {
                        Ok(fiber) if i % 3 == 0 => fiber.cancel(),
                        Ok(fiber) if i % 7 == 0 => fiber.fiber().unpark(),
                        Ok(_) => {}
                        Err(_) => break,
                    }
                    if i % 4 == 0 {
                        yield_now();
                    }
                }
            };
            handle.spawn(spawner)
        };
        (0..round % 50).for_each(|_| std::thread::yield_now());
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
        // It ran, or was refused; it never hangs.
        let _ = storm.join();
        assert_eq!(count.load(SeqCst), made.load(SeqCst), "round {round}: a closure was lost or dropped twice");
    }
}

/// Claim: a call that is refused panics at its caller's line, and at none of ours. By a default runtime that cannot be started, by one that has ended, and where no block for a fiber is left.
#[test]
fn who_is_refused_panics_at_its_own_line() {
    const SELF: &str = "who_is_refused_panics_at_its_own_line";
    if !is_child(SELF) {
        let output = in_child(SELF, &[("SINEW_WORKERS", "0")]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        return;
    }
    static PLACE: std::sync::Mutex<Option<(String, u32)>> = std::sync::Mutex::new(None);
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        *PLACE.lock().unwrap() = info.location().map(|place| (place.file().to_owned(), place.line()));
    }));
    macro_rules! refused {
        ($call:expr) => {
            catch_unwind(AssertUnwindSafe(|| _ = $call)).expect_err(stringify!($call));
            // Unlocked before the assertion, which calls the hook if it fails.
            let place = PLACE.lock().unwrap().take();
            assert_eq!(place, Some((file!().to_owned(), line!())), "{}", stringify!($call));
        };
    }
    refused!(spawn(|| ()));
    refused!(sinew::spawn_batch([|| ()]));
    refused!(sinew::spawn_future(async {}));
    refused!(sinew::run(|| ()));
    refused!(scope(|_| ()));
    refused!(sinew::hop(|| ()));
    refused!(sinew::time::Timer::after(HOUR, || ()));

    let ended = runtime(1);
    let handle = ended.handle();
    ended.shutdown_timeout(HOUR).unwrap();
    refused!(handle.spawn(|| ()));
    refused!(handle.run(|| ()));

    let runtime = runtime(1);
    runtime.run(|| {
        sinew::hidden::limit_blocks(0);
        // None of them runs meanwhile, so none gives its block back.
        let _all: Vec<_> = std::iter::from_fn(|| sinew::Builder::new().spawn(|| ()).ok()).collect();
        refused!(spawn(|| ()));
        refused!(runtime.spawn(|| ()));
        refused!(runtime.run(|| ()));
        scope(|s| {
            refused!(s.spawn(|| ()));
        });
    });
}

// Fork, exec, exit

#[test]
fn in_a_forked_child_every_use_panics_with_a_clear_text() {
    if !is_child("in_a_forked_child_every_use_panics_with_a_clear_text") {
        let output = in_child("in_a_forked_child_every_use_panics_with_a_clear_text", &[]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        return;
    }
    std::panic::set_hook(Box::new(|_| ()));
    let ended = spawn(|| 7);
    let running = spawn(park);
    let parked = running.fiber().clone();
    let runtime = Arc::new(runtime(1));
    let (of_metrics, of_handle) = (runtime.clone(), runtime.clone());
    let timer = sinew::time::Timer::after(HOUR, || ());
    let (sender, receiver) = sinew::chan::unbounded();
    let try_sender = sender.clone();
    let (locked, permits) = (sinew::sync::Mutex::new(()), sinew::sync::Semaphore::new(0));
    std::mem::forget(locked.lock());
    let queue = sinew::sync::ExecutionQueue::new(|tasks: &mut sinew::sync::Tasks<'_, u8>| tasks.for_each(drop));
    let (of_stop, of_join) = (queue.clone(), queue.clone());
    let task = queue.push(0).unwrap();
    let (waited, waiter) = Waited::new();
    let [of_event, of_latch, of_one, of_all, of_wake, of_requeue] = std::array::from_fn(|_| waited.clone());
    sinew::fiber_local!(static LOCAL: u32 = 7);
    let uses: Vec<Use> = vec![
        ("spawn", Box::new(|| drop(spawn(|| ())))),
        ("spawn_batch", Box::new(|| drop(sinew::spawn_batch([|| ()])))),
        ("run", Box::new(|| sinew::run(|| ()))),
        ("scope", Box::new(|| scope(|s| drop(s.spawn(|| ()))))),
        ("yield_now", Box::new(yield_now)),
        ("park", Box::new(park)),
        ("sleep", Box::new(|| sleep(MILLI))),
        ("current", Box::new(|| drop(current()))),
        ("cancelled", Box::new(|| assert!(!cancelled()))),
        ("timeout", Box::new(|| timeout(MILLI, || ()).unwrap())),
        ("shield", Box::new(|| shield(|| ()))),
        ("metrics", Box::new(|| drop(sinew::metrics()))),
        ("no_suspend", Box::new(|| sinew::no_suspend(|| ()))),
        ("on_suspend", Box::new(|| sinew::on_suspend(|| ()))),
        ("a fiber-local", Box::new(|| LOCAL.with(|value| assert_eq!(*value, 7)))),
        ("blocking", Box::new(|| sinew::blocking(|| ()))),
        ("block_on", Box::new(|| sinew::block_on(async {}))),
        ("try_block_on", Box::new(|| sinew::try_block_on(async {}).unwrap())),
        ("spawn_future", Box::new(|| drop(sinew::spawn_future(async {})))),
        ("interval", Box::new(|| _ = sinew::time::interval(MILLI).tick())),
        ("a timer", Box::new(|| sinew::time::Timer::after(MILLI, || ()).detach())),
        ("a timer's cancel", Box::new(move || _ = timer.cancel())),
        ("send", Box::new(move || sender.send(1).unwrap())),
        ("recv", Box::new(move || _ = receiver.recv().unwrap())),
        ("try_send", Box::new(move || try_sender.try_send(1).unwrap())),
        ("select!", Box::new(|| sinew::select! { recv(sinew::chan::never::<u8>()) -> _ => (), default => () })),
        ("a lock that is taken", Box::new(move || drop(locked.lock()))),
        ("a permit that is not there", Box::new(move || drop(permits.acquire_timeout(MILLI)))),
        ("push", Box::new(move || drop(queue.push(1)))),
        ("a queue's stop", Box::new(move || of_stop.stop())),
        ("a queue's join", Box::new(move || _ = of_join.join_timeout(MILLI))),
        ("a task's cancel", Box::new(move || _ = task.cancel())),
        ("an event's set", Box::new(move || of_event.event.set())),
        ("a latch's last count", Box::new(move || of_latch.latch.count_down())),
        ("notify_one", Box::new(move || _ = of_one.changed.notify_one())),
        ("notify_all", Box::new(move || _ = of_all.changed.notify_all())),
        ("a futex's wake", Box::new(move || _ = of_wake.futex.wake_all())),
        ("requeue", Box::new(move || _ = of_requeue.futex.requeue(&Futex::new(0), 0))),
        ("unpark", Box::new(move || parked.unpark())),
        ("builder", Box::new(|| drop(Runtime::builder().build()))),
        ("a runtime's metrics", Box::new(move || drop(of_metrics.metrics()))),
        ("a runtime's handle", Box::new(move || drop(of_handle.handle()))),
        ("a runtime", Box::new(move || drop(runtime.spawn(|| ())))),
    ];
    let uses = Arc::new(uses);
    // From the main thread, which has waited before; from a thread that has not; and from a fiber.
    sleep(MILLI);
    check_child(&uses);
    let of_thread = uses.clone();
    std::thread::spawn(move || check_child(&of_thread)).join().unwrap();
    let of_fiber = uses.clone();
    spawn(move || check_child(&of_fiber)).join().unwrap();
    // The parent goes on as ever.
    assert_eq!(ended.join().unwrap(), 7);
    running.cancel();
    running.join().unwrap();
    *waited.ready.lock() = true;
    waited.changed.notify_all();
    waiter.join().unwrap();
}

/// What others wait for, whom a forked child cannot wake.
struct Waited {
    event: Event,
    latch: Latch,
    futex: Futex,
    ready: Mutex<bool>,
    changed: Condvar,
}

impl Waited {
    /// With a fiber that waits until it is ready, and a futex at which somebody has waited.
    fn new() -> (Arc<Self>, JoinHandle<()>) {
        let all =
            Self { event: Event::new(), latch: Latch::new(1), futex: Futex::new(0), ready: Mutex::new(false), changed: Condvar::new() };
        assert_eq!(all.futex.wait_timeout(0, Duration::ZERO), FutexWait::TimedOut);
        let (all, comes) = (Arc::new(all), Arc::new(Event::new()));
        let waiter = spawn({
            let (all, comes) = (all.clone(), comes.clone());
            move || {
                let mut ready = all.ready.lock();
                comes.set();
                all.changed.wait_while(&mut ready, |ready| !*ready);
            }
        });
        comes.wait();
        // It is queued before it lets the mutex go.
        drop(all.ready.lock());
        (all, waiter)
    }
}

#[test]
fn in_a_forked_child_what_is_dropped_is_dropped_quietly() {
    let timer = sinew::time::Timer::after(HOUR, || ());
    let (sender, receiver) = sinew::chan::unbounded::<u8>();
    let queue = sinew::sync::ExecutionQueue::new(|tasks: &mut sinew::sync::Tasks<'_, u8>| tasks.for_each(drop));
    let group = sinew::sync::WaitGroup::new();
    // SAFETY: the child only drops, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let dropped = catch_unwind(AssertUnwindSafe(|| drop((timer, sender, receiver, queue, group))));
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(dropped.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
}

/// One way to use the library, and its name.
type Use = (&'static str, Box<dyn Fn() + Send + Sync>);

/// Forks; in the child every use must panic with the text. Fails with the name of the one that does not.
fn check_child(uses: &[Use]) {
    // SAFETY: the child only calls what this test is about, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let fails = |used: &Use| {
            let text = catch_unwind(AssertUnwindSafe(|| (used.1)())).err().map(|payload| match payload.downcast::<String>() {
                Ok(text) => *text,
                Err(payload) => payload.downcast_ref::<&str>().map_or(String::new(), |text| (*text).to_owned()),
            });
            let fails = !text.as_deref().is_some_and(|text| text.contains("forked child"));
            if fails {
                let _ = writeln!(std::io::stderr(), "{} in a forked child: {text:?}", used.0);
            }
            fails
        };
        let failed = uses.iter().filter(|used| fails(used)).count();
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(failed != 0)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
}

#[test]
fn a_fiber_that_forks_and_ends_in_the_child_aborts_that_child_with_a_clear_text() {
    if !is_child("a_fiber_that_forks_and_ends_in_the_child_aborts_that_child_with_a_clear_text") {
        let output = in_child("a_fiber_that_forks_and_ends_in_the_child_aborts_that_child_with_a_clear_text", &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("a fiber ended or suspended in a forked child"), "{text}");
        return;
    }
    let status = spawn(|| {
        // SAFETY: the child returns from this closure at once.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            return 0;
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        status
    });
    let status = status.join().unwrap();
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT, "status {status:#x}");
}

#[test]
fn a_scope_in_which_a_fork_was_made_does_not_come_to_its_end_in_the_child() {
    const NAME: &str = "a_scope_in_which_a_fork_was_made_does_not_come_to_its_end_in_the_child";
    if !is_child("a_scope_in_which_a_fork_was_made_does_not_come_to_its_end_in_the_child") {
        let output = in_child(NAME, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("a scope came to its end in a forked child").count(), 2, "{text}");
        return;
    }
    fn fork_in_scope() {
        let parent = std::process::id();
        let mut pid = 0;
        scope(|s| {
            s.spawn(move || assert_eq!(std::process::id(), parent, "a fiber runs in the child"));
            // Also through the frames that close on the way.
            // SAFETY: the child returns at once, into the end of the scope.
            pid = timeout(HOUR, || shield(|| unsafe { libc::fork() })).unwrap();
        });
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT, "status {status:#x}");
    }
    fork_in_scope();
    spawn(fork_in_scope).join().unwrap();
}

#[test]
fn commands_run_from_fibers_under_load() {
    sinew::run(|| {
        let done = AtomicBool::new(false);
        scope(|s| {
            for _ in 0..4 {
                s.spawn(|| until(|| done.load(SeqCst)));
            }
            let commands: Vec<_> = (0..8)
                .map(|i| {
                    s.spawn(move || {
                        for _ in 0..5 {
                            let output = Command::new("echo").arg(format!("{i}")).output().unwrap();
                            assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), i.to_string());
                            // With a hook of its own the library forks and execs by hand.
                            let mut command = Command::new("true");
                            // SAFETY: the hook does nothing.
                            unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, || Ok(())) };
                            assert!(command.status().unwrap().success());
                            yield_now();
                        }
                    })
                })
                .collect();
            commands.into_iter().for_each(|command| command.join().unwrap());
            done.store(true, SeqCst);
        });
    });
}

#[test]
fn a_process_may_exit_with_fibers_alive() {
    const NAME: &str = "a_process_may_exit_with_fibers_alive";
    if !is_child("a_process_may_exit_with_fibers_alive") {
        for _ in 0..20 {
            let output = in_child(NAME, &[]);
            assert_eq!(output.status.code(), Some(17), "{}", String::from_utf8_lossy(&output.stderr));
        }
        return;
    }
    let flag = Arc::new(AtomicBool::new(false));
    for i in 0..200 {
        let flag = flag.clone();
        spawn(move || match i % 4 {
            0 => park(),
            1 => sleep(HOUR),
            2 => until(|| flag.load(SeqCst)),
            _ => scope(|s| drop(s.spawn(park))),
        });
    }
    // From a fiber, while others run on another worker.
    spawn(|| std::process::exit(17)).join().unwrap();
}

#[test]
fn a_main_that_returns_ends_the_process_with_fibers_alive() {
    // The test harness's own main returns in the child while these live.
    const NAME: &str = "a_main_that_returns_ends_the_process_with_fibers_alive";
    if !is_child("a_main_that_returns_ends_the_process_with_fibers_alive") {
        for _ in 0..20 {
            assert_eq!(in_child(NAME, &[]).status.code(), Some(0));
        }
        return;
    }
    for i in 0..200 {
        spawn(move || if i % 2 == 0 { park() } else { until(|| false) });
    }
    std::mem::forget(Runtime::builder().workers(2).build().unwrap().spawn(park));
}

// Deadlock

#[test]
fn a_standstill_is_reported_with_who_waits_for_whom_and_nothing_is_ended() {
    const NAME: &str = "a_standstill_is_reported_with_who_waits_for_whom_and_nothing_is_ended";
    if !is_child("a_standstill_is_reported_with_who_waits_for_whom_and_nothing_is_ended") {
        let output = in_child(NAME, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("probable deadlock").count(), 1, "{text}");
        assert!(text.contains("3 fibers had not ended"), "{text}");
        assert!(text.contains("'first', spawned at crates/sinew/tests/endings.rs") && text.contains("is parked"), "{text}");
        assert!(text.contains("'second'") && text.contains("waits for the end of fiber"), "{text}");
        assert!(text.contains("waits for the fibers of its scope"), "{text}");
        return;
    }
    let runtime = Runtime::builder().workers(2).deadlock_watch(50 * MILLI).build().unwrap();
    // Not while a deadline will wake somebody.
    runtime.run(|| sleep(300 * MILLI));
    let first = runtime.run(|| sinew::Builder::new().name("first").spawn(park).unwrap());
    let parked = first.fiber().clone();
    let third = runtime.spawn(|| {
        scope(|s| {
            sinew::Builder::new().name("second").spawn_scoped(s, || first.join().unwrap()).unwrap();
        });
    });
    // Long enough for a second report, were there one.
    std::thread::sleep(500 * MILLI);
    parked.unpark();
    third.join().unwrap();
}

#[test]
fn a_deadlock_watch_of_no_time_is_refused() {
    let error = Runtime::builder().deadlock_watch(Duration::ZERO).build().unwrap_err();
    assert!(error.to_string().contains("deadlock_watch(0)"), "{error}");
}

/// A canceller that holds a fiber's handle beyond its end must not follow what the fiber began with: its owner's frame is gone. Under a sanitizer this
/// reports it; here it crashes sooner or later.
#[test]
fn a_cancel_that_comes_as_a_scoped_fiber_ends_touches_nothing_of_its_owner() {
    let rounds = if cfg!(debug_assertions) { 2_000 } else { 20_000 };
    let runtime = runtime(2);
    for round in 0..rounds {
        let (send, receive) = std::sync::mpsc::channel();
        let owner = runtime.spawn(move || {
            let fiber = scope(|s| s.spawn(move || send.send(current()).unwrap()).fiber().clone());
            sinew::run(|| (0..round % 3).for_each(|_| yield_now()));
            drop(fiber);
        });
        receive.recv().unwrap().cancel();
        owner.join().unwrap();
    }
}

#[test]
fn a_shutdown_reaches_a_fiber_that_computes() {
    let runtime = runtime(2);
    let runs = Arc::new(AtomicBool::new(false));
    let fiber = {
        let runs = runs.clone();
        runtime.spawn(move || {
            runs.store(true, SeqCst);
            while !cancelled() {
                std::hint::spin_loop();
            }
        })
    };
    while !runs.load(SeqCst) {
        std::thread::yield_now();
    }
    runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
    fiber.join().unwrap();
}

/// Workers that have just run out of work when the stop comes: spinning, lying down, asleep.
#[test]
fn a_shutdown_of_a_runtime_that_has_just_gone_quiet_cancels_what_sleeps_there() {
    for round in 0..rounds("SINEW_TEST_SHUTDOWNS", 300, 1_000) {
        let runtime = runtime(2);
        let asleep = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let asleep = asleep.clone();
            runtime.spawn(move || {
                asleep.fetch_add(1, SeqCst);
                sleep(HOUR);
            });
        }
        while asleep.load(SeqCst) < 2 {
            std::hint::spin_loop();
        }
        (0..round % 100).for_each(|_| std::hint::spin_loop());
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
    }
}

#[test]
fn fibers_of_a_shielded_scope_clean_up_through_a_shutdown_but_can_be_cancelled_themselves() {
    let runtime = runtime(2);
    let stage = Arc::new(AtomicUsize::new(0));
    let cleaner = {
        let stage = stage.clone();
        runtime.spawn(move || {
            shield(|| {
                scope(|s| {
                    let long = s.spawn(|| {
                        stage.fetch_add(1, SeqCst);
                        // Until the runtime is being shut down: then nothing new may be spawned.
                        while sinew::Builder::new().spawn(|| ()).is_ok() {
                            sleep(MILLI);
                        }
                        let before = Instant::now();
                        scope(|_| sleep(3 * MILLI));
                        assert!(before.elapsed() >= 3 * MILLI && !cancelled(), "the shutdown cut a sheltered sleep short");
                    });
                    let own = s.spawn(|| {
                        stage.fetch_add(1, SeqCst);
                        park();
                        assert!(cancelled());
                    });
                    long.join().unwrap();
                    own.cancel();
                    own.join().unwrap();
                });
            });
            assert!(cancelled());
        })
    };
    while stage.load(SeqCst) < 2 {
        std::thread::yield_now();
    }
    runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
    cleaner.join().unwrap();
}

#[test]
fn fibers_of_a_scope_around_a_shield_are_cancelled_with_their_owner() {
    let waiting = Arc::new(AtomicBool::new(false));
    let owner = {
        let waiting = waiting.clone();
        spawn(move || {
            scope(|s| {
                let child = s.spawn(|| {
                    waiting.store(true, SeqCst);
                    park();
                    cancelled()
                });
                shield(|| child.join().unwrap())
            })
        })
    };
    sinew::run(|| until(|| waiting.load(SeqCst)));
    owner.cancel();
    assert!(owner.join().unwrap());
}

#[test]
fn a_shutdown_counts_what_has_not_begun_to_run() {
    let runtime = runtime(1);
    let (busy, gate) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let hog = {
        let (busy, gate) = (busy.clone(), gate.clone());
        runtime.spawn(move || {
            busy.store(true, SeqCst);
            while !gate.load(SeqCst) {
                std::thread::yield_now();
            }
        })
    };
    while !busy.load(SeqCst) {
        std::thread::yield_now();
    }
    let queued: Vec<_> = (0..5).map(|_| runtime.spawn(|| ())).collect();
    let unfinished = runtime.shutdown_timeout(MILLI).unwrap_err().to_string();
    assert!(unfinished.contains("1 fiber had not ended") && unfinished.contains("and 5 that had not begun to run"), "{unfinished}");
    gate.store(true, SeqCst);
    hog.join().unwrap();
    for fiber in queued {
        assert!(fiber.join().unwrap_err().is::<NeverRan>());
    }
}

#[test]
fn a_runtime_dropped_by_its_own_fiber_where_that_must_not_suspend_says_so_at_once() {
    let runtime = runtime(1);
    let handle = runtime.handle();
    let outcome = handle.spawn(move || sinew::no_suspend(|| drop(runtime))).join();
    assert!(outcome.unwrap_err().downcast_ref::<&str>().unwrap().contains("its own fibers"));
}

/// The owner is cancelled as its scope ends by itself, and handles of the children are kept: what they began with is gone then.
#[test]
fn a_cancel_that_comes_as_a_scope_ends_touches_nothing_of_it() {
    let runtime = runtime(2);
    for round in 0..rounds("SINEW_TEST_SHUTDOWNS", 500, 5_000) {
        let (kept, open) = (Arc::new(std::sync::Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let owner = {
            let (kept, open) = (kept.clone(), open.clone());
            runtime.spawn(move || {
                scope(|s| {
                    (0..32).for_each(|_| kept.lock().unwrap().push(s.spawn(yield_now).fiber().clone()));
                    open.store(true, SeqCst);
                });
                // Writes over the frames that were there.
                std::hint::black_box([0x41u8; 8192]);
            })
        };
        while !open.load(SeqCst) {
            std::hint::spin_loop();
        }
        (0..round % 300).for_each(|_| std::hint::spin_loop());
        owner.cancel();
        kept.lock().unwrap().iter().for_each(sinew::Fiber::cancel);
        owner.join().unwrap();
    }
}
