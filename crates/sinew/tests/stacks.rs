//! Where stacks come from, what happens when there are none, and where their memory goes: starvation, limits, trim, reuse.
//!
//! Hooks and limits are of the whole process, so claims about them are tried in a child: this test binary again, with one test selected and
//! `CASE` in its environment. Overflow is in `overflow.rs`.

use std::any::Any;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitStatus, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use sinew::hidden::{fail_memory_after, guard_by_mprotect, stacks};
use sinew::{Builder, JoinHandle, NeverRan, Runtime};

const MS: Duration = Duration::from_millis(1);

// ---- starvation: fibers that find no stack

/// Tells whether, where and how often what it was captured by is dropped.
#[derive(Clone, Default)]
struct Drops {
    count: Arc<AtomicUsize>,
    on_thread_stack: Arc<AtomicBool>,
}

impl Drops {
    fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    fn note(&self) {
        self.on_thread_stack.fetch_or(stands_on_thread_stack(), SeqCst);
        self.count.fetch_add(1, SeqCst);
    }

    /// Asserts `count` drops, all on stacks of fibers.
    fn assert(&self, count: usize) {
        assert_eq!(self.count(), count, "closures dropped");
        assert!(!self.on_thread_stack.load(SeqCst), "a closure was dropped on a worker's own stack");
    }
}

/// Notes its drop, after it did `before`.
struct Dropped<B: Fn()> {
    drops: Drops,
    before: B,
}

impl<B: Fn()> Drop for Dropped<B> {
    fn drop(&mut self) {
        (self.before)();
        self.drops.note();
    }
}

/// A closure that gives 1, must not be called when there is no stack, and notes its drop.
fn one(drops: &Drops, before: impl Fn() + Send + 'static) -> impl FnOnce() -> usize + Send + 'static {
    let dropped = Dropped { drops: drops.clone(), before };
    move || {
        let _dropped = dropped;
        assert!(!stands_on_thread_stack(), "a fiber runs on a worker's own stack");
        1
    }
}

/// What a `Ticker` does next.
const TICK: usize = 0;
const PARK: usize = 1;
const END: usize = 2;

/// A fiber with a stack and a timer, so that there is always something that can run; until it is told to park or to end.
struct Ticker {
    fiber: JoinHandle<()>,
    ticks: Arc<AtomicUsize>,
    next: Arc<AtomicUsize>,
}

impl Ticker {
    fn start(rt: &Runtime) -> Self {
        let (ticks, next) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(TICK)));
        let (its_ticks, its_next) = (ticks.clone(), next.clone());
        let fiber = rt.spawn(move || {
            while its_next.load(SeqCst) != END {
                match its_next.load(SeqCst) {
                    PARK => sinew::park(),
                    _ => sinew::sleep(MS),
                }
                its_ticks.fetch_add(1, SeqCst);
            }
        });
        let ticker = Self { fiber, ticks, next };
        ticker.tick();
        ticker
    }

    /// Waits for ten more ticks: in between, its worker has looked at all there was to do.
    fn tick(&self) {
        let seen = self.ticks.load(SeqCst);
        wait_until("a ticker that ticks", || self.ticks.load(SeqCst) >= seen + 10);
    }

    /// Makes it wait for `end`, so that by itself nothing can run any more, and nothing was released.
    fn park(&self) {
        self.next.store(PARK, SeqCst);
    }

    fn end(self) {
        self.next.store(END, SeqCst);
        self.fiber.fiber().unpark();
        self.fiber.join().unwrap();
    }
}

/// Asserts that `outcome` is the error of a fiber that never got a stack.
fn assert_never_ran<T>(outcome: Result<T, Box<dyn Any + Send>>) {
    let Err(payload) = outcome else { panic!("a fiber ran without a stack") };
    let why = payload.downcast_ref::<NeverRan>().expect("the payload of a starved fiber is a NeverRan").to_string();
    assert!(why.contains("never ran"), "{why}");
    assert!(why.contains("vm.max_map_count"), "the setting is missing: {why}");
    assert!(why.contains(&format!(" {} ", stacks())), "the count {} is missing: {why}", stacks());
}

/// Runs `body` in children with 1, 2 and 4 workers, with either guard.
fn with_workers_and_guards<B: Fn(usize)>(body: B) {
    for workers in [1, 2, 4] {
        for (guard, by_mprotect) in [("marker", false), ("mprotect", true)] {
            let one_body = || {
                if by_mprotect {
                    guard_by_mprotect();
                }
                body(workers);
            };
            in_child_of(test_that_made::<B>(), &format!("{workers} {guard}"), &[], one_body, Ended::assert_ok);
        }
    }
}

#[test]
fn a_starved_fiber_waits_and_starts_when_another_ends() {
    with_workers_and_guards(|workers| {
        let rt = runtime(workers);
        let (ticker, drops) = (Ticker::start(&rt), Drops::default());
        fail_memory_after(0);
        let starved: Vec<_> = (0..5).map(|_| rt.spawn(one(&drops, || ()))).collect();
        ticker.tick();
        assert!(starved.iter().all(|fiber| !fiber.is_finished()), "a fiber ended without a stack, while others could run");
        while rt.metrics().groups[0].starved != starved.len() {
            std::thread::yield_now();
        }
        ticker.end();
        // One stack, handed from each to the next.
        starved.into_iter().for_each(|fiber| assert_eq!(fiber.join().unwrap(), 1));
        drops.assert(5);
    });
}

#[test]
fn a_thousand_fibers_make_do_with_a_few_stacks() {
    with_workers_and_guards(|workers| {
        let rt = runtime(workers);
        for round in 0..5 {
            // Something always can run: so nobody may be refused.
            let ticker = Ticker::start(&rt);
            // And there is a stack that is not the ticker's: what is allowed below may go for memory of which none becomes a stack.
            rt.run(|| ());
            let before = stacks();
            fail_memory_after(3);
            let fibers: Vec<_> = (0..1_000)
                .map(|i| {
                    rt.spawn(move || {
                        match i % 4 {
                            0 => sinew::yield_now(),
                            1 => sinew::sleep(MS / 10),
                            _ => {}
                        }
                        i
                    })
                })
                .collect();
            for (i, fiber) in fibers.into_iter().enumerate() {
                assert_eq!(fiber.join().unwrap_or_else(|why| panic!("round {round}: {:?}", why.downcast_ref::<NeverRan>())), i);
            }
            ticker.end();
            assert!(stacks() <= before + 3, "{} stacks came from nowhere", stacks() - before);
            fail_memory_after(u64::MAX);
        }
        assert_eq!(rt.spawn(|| 2).join().unwrap(), 2);
    });
}

#[test]
fn a_starved_fiber_ends_with_the_reason_when_nothing_else_can_run() {
    with_workers_and_guards(|workers| {
        let rt = runtime(workers);
        let (parked, drops) = (Parked::start(&rt, 0), Drops::default());
        fail_memory_after(0);
        // One by one, then many at once.
        for count in 1..=20 {
            assert_never_ran(rt.spawn(one(&drops, || ())).join());
            drops.assert(count);
        }
        let many: Vec<_> = (0..100).map(|_| rt.spawn(one(&drops, || ()))).collect();
        many.into_iter().for_each(|fiber| assert_never_ran(fiber.join()));
        drops.assert(120);
        // The others go on, and with memory all is as before.
        parked.end();
        fail_memory_after(u64::MAX);
        let after: Vec<_> = (0..100).map(|_| rt.spawn(one(&drops, || ()))).collect();
        after.into_iter().for_each(|fiber| assert_eq!(fiber.join().unwrap(), 1));
        drops.assert(220);
    });
}

#[test]
fn a_fiber_may_join_one_that_starves() {
    with_workers_and_guards(|workers| {
        let rt = runtime(workers);
        let drops = Drops::default();
        rt.run(|| {
            fail_memory_after(0);
            for _ in 0..20 {
                assert_never_ran(sinew::spawn(one(&drops, || ())).join());
            }
        });
        drops.assert(20);
    });
}

#[test]
fn run_panics_with_the_reason_when_its_fiber_starves() {
    with_workers_and_guards(|workers| {
        let rt = runtime(workers);
        fail_memory_after(0);
        let panic = catch_unwind(AssertUnwindSafe(|| rt.run(|| 1))).unwrap_err();
        let text = panic.downcast_ref::<String>().expect("a formatted panic");
        assert!(text.contains("never ran") && text.contains("vm.max_map_count"), "{text}");
        fail_memory_after(u64::MAX);
        assert_eq!(rt.run(|| 1), 1);
    });
}

#[test]
fn a_scope_ends_when_its_children_starve() {
    // In fibers, and on a plain thread, whose fibers are of the default runtime.
    for place in ["fiber", "thread"] {
        let body = || {
            let drops = Drops::default();
            let scopes = || {
                let borrowed = AtomicUsize::new(0);
                let started = Arc::new(AtomicBool::new(false));
                let its_started = started.clone();
                let parked = sinew::spawn(move || {
                    its_started.store(true, SeqCst);
                    sinew::park();
                });
                while !started.load(SeqCst) {
                    sinew::sleep(MS);
                }
                fail_memory_after(0);
                sinew::scope(|s| {
                    let child = |closure: Box<dyn FnOnce() -> usize + Send>| s.spawn(|| closure() + borrowed.fetch_add(1, SeqCst));
                    let children: Vec<_> = (0..10).map(|_| child(Box::new(one(&drops, || ())))).collect();
                    children.into_iter().for_each(|child| assert_never_ran(child.join()));
                });
                drops.assert(10);
                // Of children that nobody joins the scope tells.
                let panic = catch_unwind(AssertUnwindSafe(|| {
                    sinew::scope(|s| drop(s.spawn(|| borrowed.fetch_add(1, SeqCst))));
                }));
                assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "a scoped fiber was not run: there was no stack for it");
                assert_eq!(borrowed.load(SeqCst), 0, "a starved child ran");
                fail_memory_after(u64::MAX);
                sinew::scope(|s| drop(s.spawn(|| borrowed.fetch_add(1, SeqCst))));
                assert_eq!(borrowed.load(SeqCst), 1);
                parked.fiber().unpark();
                parked.join().unwrap();
            };
            match place {
                "fiber" => sinew::run(scopes),
                _ => scopes(),
            }
        };
        in_child_with(place, &[("SINEW_WORKERS", "1")], body, Ended::assert_ok);
    }
}

#[test]
fn a_detached_fiber_that_starves_is_dropped_and_reported() {
    for workers in [1, 2] {
        let body = || {
            let rt = runtime(workers);
            let (ticker, drops) = (Ticker::start(&rt), Drops::default());
            fail_memory_after(0);
            // Detached before it is refused, and before it is even tried.
            let handles: Vec<_> = (0..2).map(|_| rt.spawn(one(&drops, || ()))).collect();
            ticker.tick();
            drop(handles);
            drop(rt.spawn(one(&drops, || ())));
            ticker.tick();
            assert_eq!(drops.count(), 0);
            // The ticker's stack would feed them; parked it feeds nobody, and nothing can run.
            ticker.park();
            wait_until("the starved are dropped", || drops.count() == 3);
            drops.assert(3);
            ticker.end();
            fail_memory_after(u64::MAX);
            assert_eq!(rt.run(|| 5), 5);
        };
        in_child(&workers.to_string(), body, |ended| {
            ended.assert_ok();
            let reports = ended.err.lines().filter(|line| line.contains("never ran") && line.contains("stacks.rs")).count();
            assert_eq!(reports, 3, "each is reported with its spawn site: {ended:?}");
        });
    }
}

#[test]
fn the_closure_of_a_starved_fiber_may_suspend_in_its_drop() {
    with_workers_and_guards(|workers| {
        let rt = runtime(workers);
        let (parked, drops) = (Parked::start(&rt, 0), Drops::default());
        fail_memory_after(0);
        let suspends = || {
            sinew::yield_now();
            sinew::sleep(2 * MS);
            sinew::park_timeout(MS);
            sinew::yield_now();
        };
        let starved: Vec<_> = (0..10).map(|_| rt.spawn(one(&drops, suspends))).collect();
        starved.into_iter().for_each(|fiber| assert_never_ran(fiber.join()));
        drops.assert(10);
        parked.end();
    });
}

#[test]
fn the_closure_of_a_starved_fiber_may_wait_for_a_thread_in_its_drop() {
    with_workers_and_guards(|workers| {
        let rt = runtime(workers);
        let (parked, drops) = (Parked::start(&rt, 0), Drops::default());
        fail_memory_after(0);
        let (tell, told) = mpsc::channel();
        let parks = move || {
            tell.send(sinew::current()).unwrap();
            sinew::park();
        };
        let starved: Vec<_> = (0..10).map(|_| rt.spawn(one(&drops, parks.clone()))).collect();
        drop(parks);
        told.iter().for_each(|fiber| fiber.unpark());
        starved.into_iter().for_each(|fiber| assert_never_ran(fiber.join()));
        drops.assert(10);
        parked.end();
    });
}

#[test]
fn the_closure_of_a_starved_fiber_may_join_another_starved_one_in_its_drop() {
    with_workers_and_guards(|workers| {
        let rt = runtime(workers);
        let (ticker, drops) = (Ticker::start(&rt), Drops::default());
        fail_memory_after(0);
        // The one that joins stands before the one it joins.
        let inner = Arc::new(Mutex::new(None::<JoinHandle<usize>>));
        let joined = inner.clone();
        let joins = move || assert_never_ran(joined.lock().unwrap().take().unwrap().join());
        let outer = rt.spawn(one(&drops, joins));
        ticker.tick();
        *inner.lock().unwrap() = Some(rt.spawn(one(&drops, || ())));
        ticker.tick();
        ticker.park();
        assert_never_ran(outer.join());
        drops.assert(2);
        ticker.end();
    });
}

#[test]
fn a_panic_in_the_drop_of_a_starved_closure_harms_nobody() {
    with_workers_and_guards(|workers| {
        let rt = runtime(workers);
        let drops = Drops::default();
        fail_memory_after(0);
        for _ in 0..20 {
            assert_never_ran(rt.spawn(one(&drops, || panic!("on purpose, in a drop"))).join());
        }
        fail_memory_after(u64::MAX);
        assert_eq!(rt.run(|| 5), 5);
    });
}

#[test]
fn a_starved_fiber_of_another_size_does_not_stand_in_the_way() {
    with_workers_and_guards(|workers| {
        let rt = runtime(workers);
        let ticker = Ticker::start(&rt);
        // Releases a stack of the common size when others starve already: a large one before each of the common size.
        let (large, common): (Vec<_>, Vec<_>) = rt.run(|| {
            fail_memory_after(0);
            let pair = |_| (Builder::new().stack_size(1 << 20).spawn(|| 2).unwrap(), sinew::spawn(|| 1));
            let pairs = (0..3).map(pair).unzip();
            (0..10).for_each(|_| sinew::sleep(MS));
            pairs
        });
        for fiber in common {
            assert_eq!(fiber.join().expect("a fiber was refused although there was a stack of its size"), 1);
        }
        assert!(large.iter().all(|fiber| !fiber.is_finished()), "a fiber ended without a stack, while others could run");
        ticker.park();
        large.into_iter().for_each(|fiber| assert_never_ran(fiber.join()));
        ticker.end();
    });
}

/// Two fibers on two workers: `asks` spawns others, which find no stack on its worker; `owns` has left an idle stack on its own.
#[test]
fn an_idle_stack_of_another_worker_serves_a_starving_fiber() {
    let body = || {
        let rt = runtime(2);
        let (tell, told) = mpsc::channel();
        let (wake_asks, asks_wakes) = mpsc::channel();
        let (wake_owns, owns_wakes) = mpsc::channel();
        let tells = tell.clone();
        let asks = rt.spawn(move || {
            tells.send("asks is here").unwrap();
            asks_wakes.recv().unwrap();
            fail_memory_after(0);
            // Tried here, for the other worker is blocked; decided when that one has nothing to do either.
            let first = sinew::spawn(|| 1);
            sinew::sleep(5 * MS);
            tells.send("a fiber starves").unwrap();
            let mut outcomes = vec![first.join()];
            // Tried here or there.
            outcomes.extend((0..200).map(|_| sinew::spawn(|| 1).join()));
            outcomes.iter().filter(|outcome| outcome.is_err()).count()
        });
        told.recv().unwrap();
        let owns = rt.spawn(move || {
            // Runs on this worker, for the other one is blocked.
            sinew::spawn(|| ()).join().unwrap();
            tell.send("owns is here").unwrap();
            owns_wakes.recv().unwrap();
            sinew::park();
        });
        told.recv().unwrap();
        wake_asks.send(()).unwrap();
        assert_eq!(told.recv().unwrap(), "a fiber starves");
        wake_owns.send(()).unwrap();
        let refused = asks.join().unwrap();
        owns.fiber().unpark();
        owns.join().unwrap();
        assert_eq!(refused, 0, "{refused} of 201 were refused, with an idle stack at the other worker");
    };
    in_child("", body, Ended::assert_ok);
}

/// Two fibers on two workers: `wakes` spawns a third, which starves, then wakes `ends`, whose stack will serve it, and waits itself.
#[test]
fn a_fiber_that_was_just_woken_is_one_that_can_run() {
    const ROUNDS: usize = 500;
    struct Unparks(sinew::Fiber);
    impl Drop for Unparks {
        fn drop(&mut self) {
            self.0.unpark();
        }
    }
    let body = || {
        let rt = runtime(2);
        let (tell, told) = mpsc::channel();
        let (hand, handed) = mpsc::channel::<JoinHandle<()>>();
        let tells = tell.clone();
        let wakes = rt.spawn(move || {
            tells.send(()).unwrap();
            // Blocks the thread until the other fiber is on the other worker.
            let mut ends = handed.recv().unwrap();
            fail_memory_after(0);
            for round in 0..ROUNDS {
                let (ran, me) = (Arc::new(AtomicBool::new(false)), Unparks(sinew::current()));
                let runs = ran.clone();
                let next = sinew::spawn(move || {
                    runs.store(true, SeqCst);
                    drop(me);
                    sinew::park();
                });
                // Longer than it takes to find that there is no stack.
                sinew::sleep(MS / 2);
                ends.fiber().unpark();
                sinew::park();
                assert!(ran.load(SeqCst), "round {round}: a fiber was refused while another was being woken");
                ends.join().unwrap();
                // It is parked on the stack of the one before, for the next round.
                ends = next;
            }
            ends.fiber().unpark();
            ends.join().unwrap();
        });
        told.recv().unwrap();
        let first = rt.spawn(move || {
            tell.send(()).unwrap();
            sinew::park();
        });
        told.recv().unwrap();
        hand.send(first).unwrap();
        wakes.join().unwrap();
    };
    in_child("", body, Ended::assert_ok);
}

#[test]
fn a_runtime_dropped_with_starved_fibers_ends_them() {
    with_workers_and_guards(|workers| {
        let rt = runtime(workers);
        let (ticker, drops) = (Ticker::start(&rt), Drops::default());
        fail_memory_after(0);
        let starved: Vec<_> = (0..20).map(|_| rt.spawn(one(&drops, || ()))).collect();
        ticker.tick();
        // The ticker outlives the shutdown for a while, so that nothing is released in time.
        let next = ticker.next.clone();
        let ender = std::thread::spawn(move || {
            wait_until("the starved are dropped", || drops.count() == 20);
            drops.assert(20);
            next.store(END, SeqCst);
        });
        let before = Instant::now();
        drop(rt);
        assert!(before.elapsed() < Duration::from_secs(4), "the runtime gave up after {:?}", before.elapsed());
        ender.join().unwrap();
        for fiber in starved {
            let payload = fiber.join().expect_err("a starved fiber ran after the shutdown");
            let why = payload.downcast_ref::<NeverRan>().unwrap().to_string();
            assert!(why.contains("shut down"), "{why}");
        }
    });
}

#[test]
fn a_runtime_for_which_there_is_no_memory_is_an_error() {
    for calls in 0..8 {
        let body = || {
            // Chooses the guard first, which is not what is tried here.
            drop(runtime(1));
            fail_memory_after(calls);
            // Each needs a stack of its own in reserve.
            let built: Vec<_> = (0..20).map(|_| Runtime::builder().workers(4).build()).collect();
            let error = built.iter().find_map(|rt| rt.as_ref().err()).expect("twenty runtimes need memory");
            assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory, "{error}");
            fail_memory_after(u64::MAX);
            for rt in built.iter().filter_map(|rt| rt.as_ref().ok()) {
                assert_eq!(rt.run(|| 5), 5);
            }
            assert_eq!(runtime(4).run(|| 5), 5);
        };
        in_child(&calls.to_string(), body, Ended::assert_ok);
    }
}

// ---- limits

#[test]
fn at_the_limit_of_mappings_the_surplus_ends_and_all_else_goes_on() {
    const FIBERS: usize = 40_000;
    let body = || {
        guard_by_mprotect();
        let rt = runtime(2);
        let (parked, drops) = (Arc::new(AtomicUsize::new(0)), Drops::default());
        let fibers: Vec<_> = (0..FIBERS)
            .map(|i| {
                let (parked, closure) = (parked.clone(), one(&drops, || ()));
                rt.spawn(move || {
                    parked.fetch_add(1, SeqCst);
                    sinew::park();
                    i + closure()
                })
            })
            .collect();
        wait_until("all parked or refused", || parked.load(SeqCst) + drops.count() == FIBERS);
        let (started, refused) = (parked.load(SeqCst), drops.count());
        println!("{started} fibers parked, {refused} refused, {} stacks, {} mappings", stacks(), mappings());
        drops.assert(refused);
        let limit: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
        if limit / 2 < FIBERS {
            assert!(started > limit / 2 - 2_000, "only {started} stacks where {limit} mappings are allowed");
            assert!(refused > 0);
        }
        assert_process_is_healthy();
        fibers.iter().for_each(|fiber| fiber.fiber().unpark());
        let mut ended = 0;
        for (i, fiber) in fibers.into_iter().enumerate() {
            match fiber.join() {
                Ok(value) => {
                    assert_eq!(value, i + 1);
                    ended += 1;
                }
                refused => assert_never_ran(refused),
            }
        }
        assert_eq!(ended, started);
        // Their stacks serve the next.
        let again: Vec<_> = (0..1_000).map(|i| rt.spawn(move || i)).collect();
        again.into_iter().enumerate().for_each(|(i, fiber)| assert_eq!(fiber.join().unwrap(), i));
        assert_process_is_healthy();
    };
    in_child("", body, Ended::assert_ok);
}

/// What a process needs mappings for: threads, large allocations.
fn assert_process_is_healthy() {
    let threads: Vec<_> = (0..50)
        .map(|i| {
            std::thread::Builder::new().spawn(move || {
                let large = vec![i as u8; 1 << 20];
                black_box(&large).iter().map(|&b| usize::from(b)).sum::<usize>()
            })
        })
        .collect();
    for (i, thread) in threads.into_iter().enumerate() {
        assert_eq!(thread.expect("no thread at the limit of stacks").join().unwrap(), i << 20);
    }
}

#[test]
fn at_the_limit_of_mappings_idle_stacks_of_one_size_make_room_for_another() {
    let body = || {
        guard_by_mprotect();
        let rt = runtime(2);
        let small = |_| Builder::new().stack_size(16 * 1024).spawn(sinew::park).unwrap();
        let fibers: Vec<_> = rt.run(|| (0..40_000).map(small).collect());
        wait_until("the limit was met", || fibers.iter().any(|fiber| fiber.is_finished()));
        fibers.iter().for_each(|fiber| fiber.fiber().unpark());
        fibers.into_iter().for_each(|fiber| drop(fiber.join()));
        println!("{} small stacks are idle", stacks());
        // Two thirds of the limit, so that most of the small ones must make room.
        const LARGER: usize = 20_000;
        let parked = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..LARGER)
            .map(|_| {
                let parked = parked.clone();
                rt.spawn(move || {
                    parked.fetch_add(1, SeqCst);
                    sinew::park();
                })
            })
            .collect();
        wait_until("all are parked, or one was refused", || {
            parked.load(SeqCst) == LARGER || fibers.iter().any(|fiber| fiber.is_finished())
        });
        assert_eq!(parked.load(SeqCst), LARGER, "refused with {} mappings, {} stacks", mappings(), stacks());
        assert_process_is_healthy();
        fibers.iter().for_each(|fiber| fiber.fiber().unpark());
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    };
    in_child("", body, Ended::assert_ok);
}

#[test]
fn a_hundred_thousand_parked_fibers_take_few_mappings_and_about_a_page_each() {
    const FIBERS: usize = 100_000;
    /// 4.8 is promised for release builds; debug builds have deeper frames.
    const KIB_EACH_MAX: f64 = if cfg!(debug_assertions) { 8.0 } else { 4.8 };
    const MAPPINGS_MAX: usize = 100;
    let body = || {
        let rt = runtime(2);
        rt.run(sinew::yield_now);
        let before = status_kib("VmRSS") + status_kib("VmPTE");
        let parked = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..FIBERS)
            .map(|_| {
                let parked = parked.clone();
                rt.spawn(move || {
                    parked.fetch_add(1, SeqCst);
                    sinew::park();
                })
            })
            .collect();
        wait_until("all are parked", || parked.load(SeqCst) == FIBERS);
        let each = (status_kib("VmRSS") + status_kib("VmPTE") - before) as f64 / FIBERS as f64;
        println!("measured: {each:.2} KiB per fiber, {} mappings", mappings());
        assert!(mappings() < MAPPINGS_MAX, "{} mappings", mappings());
        assert!(each < KIB_EACH_MAX, "{each:.2} KiB per fiber");
        fibers.iter().for_each(|fiber| fiber.fiber().unpark());
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    };
    in_child("", body, |ended| {
        ended.assert_ok();
        println!("{}", ended.said("measured: "));
    });
}

#[test]
fn locked_memory_refuses_markers_and_fibers_work_all_the_same() {
    // Before the first fiber of the process, and after it, when markers are in use.
    for fibers_come_first in [false, true] {
        let body = || {
            let first = fibers_come_first.then(|| runtime(1));
            if let Some(rt) = &first {
                rt.run(sinew::yield_now);
            }
            if !lock_all_memory() {
                println!("skipped: mlockall is not permitted");
                return;
            }
            assert_eq!(marker_refused(), Some(libc::EINVAL), "this kernel has markers in locked memory, so this test tries nothing");
            for rt in first.into_iter().chain([runtime(2)]) {
                let fibers: Vec<_> = (0..200).map(|i| Parked::start(&rt, i)).collect();
                fibers.into_iter().for_each(Parked::end);
            }
            let guards = std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("---p")).count();
            assert!(guards > 150, "{guards} guards by mprotect only");
        };
        in_child(&format!("fibers first: {fibers_come_first}"), body, Ended::assert_ok);
    }
}

// ---- memory goes back

const TOUCHED: usize = 128 * 1024;

/// Makes `fibers` fibers that each touch 128 KiB of their stacks, all at once, and end.
fn touch_many_stacks(rt: &Runtime, fibers: usize) {
    let touched = Arc::new(AtomicUsize::new(0));
    let fibers: Vec<_> = (0..fibers)
        .map(|_| {
            let touched = touched.clone();
            rt.spawn(move || {
                touch_stack();
                touched.fetch_add(1, SeqCst);
                sinew::park();
            })
        })
        .collect();
    wait_until("all have touched their stacks", || touched.load(SeqCst) == fibers.len());
    let resident = status_kib("VmRSS");
    assert!(resident > fibers.len() * TOUCHED / 1024, "{resident} KiB are resident: the stacks were not touched");
    fibers.iter().for_each(|fiber| fiber.fiber().unpark());
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
}

#[inline(never)]
fn touch_stack() {
    let mut frame = [0u8; TOUCHED];
    black_box(&mut frame).fill(1);
    black_box(&frame);
}

/// Asserts that memory falls back to about `base_kib` by itself. What warm stacks a worker may keep is some MiB.
fn assert_memory_goes_back(base_kib: usize) {
    const KEPT_KIB_MAX: usize = 8 * 1024;
    let before = Instant::now();
    wait_until("idle memory goes back", || status_kib("VmRSS") < base_kib + KEPT_KIB_MAX);
    println!("measured: back after {:.1?}, {} KiB above the base", before.elapsed(), status_kib("VmRSS").saturating_sub(base_kib));
}

#[test]
fn idle_stacks_give_their_memory_back_and_serve_again() {
    for workers in [1, 2, 4] {
        let body = || {
            let rt = runtime(workers);
            rt.run(sinew::yield_now);
            for _ in 0..2 {
                let base = status_kib("VmRSS");
                touch_many_stacks(&rt, 2_000);
                assert_memory_goes_back(base);
            }
            assert!(stacks() < 2_200, "{} stacks: trimmed ones were not used again", stacks());
        };
        in_child(&workers.to_string(), body, Ended::assert_ok);
    }
}

/// A server is rarely without any traffic for a whole second.
#[test]
fn idle_stacks_give_their_memory_back_although_a_fiber_ticks() {
    let body = || {
        let rt = runtime(1);
        let ticker = Ticker::start(&rt);
        let base = status_kib("VmRSS");
        touch_many_stacks(&rt, 500);
        assert_memory_goes_back(base);
        ticker.end();
    };
    in_child("", body, Ended::assert_ok);
}

// ---- reuse

/// An address in the caller's stack, the same in each fiber that stands at the same depth of the same stack.
#[inline(never)]
fn place() -> usize {
    let local = 0u8;
    ptr::from_ref(black_box(&local)).addr()
}

#[test]
fn consecutive_fibers_of_a_worker_stand_on_the_same_stack() {
    let rt = runtime(1);
    let first = rt.spawn(place).join().unwrap();
    for _ in 0..1_000 {
        assert_eq!(rt.spawn(place).join().unwrap(), first, "spawned by a thread");
    }
    rt.run(|| {
        let first = sinew::spawn(place).join().unwrap();
        for _ in 0..1_000 {
            assert_eq!(sinew::spawn(place).join().unwrap(), first, "spawned by a fiber");
        }
    });
}

#[test]
fn the_last_stack_given_back_is_the_first_taken() {
    let rt = runtime(1);
    let parked: Vec<_> = (0..10).map(|i| Parked::start(&rt, i)).collect();
    let mut given: Vec<usize> = parked.iter().map(|fiber| fiber.place).collect();
    parked.into_iter().for_each(Parked::end);
    let taken: Vec<_> = (0..10).map(|i| Parked::start(&rt, i)).collect();
    given.reverse();
    assert_eq!(taken.iter().map(|fiber| fiber.place).collect::<Vec<_>>(), given);
    taken.into_iter().for_each(Parked::end);
}

/// Stretches of stack that living fibers hold.
#[derive(Default)]
struct Held {
    stretches: Mutex<BTreeMap<usize, usize>>,
    fibers: AtomicUsize,
    alive: AtomicUsize,
}

impl Held {
    fn take(&self, start: usize, len: usize) {
        let mut stretches = self.stretches.lock().unwrap();
        let below = stretches.range(..start + len).next_back().map(|(&start, &len)| start + len);
        assert!(below.is_none_or(|end| end <= start), "two fibers on one stack, at {start:#x}");
        stretches.insert(start, len);
    }

    fn give(&self, start: usize) {
        self.stretches.lock().unwrap().remove(&start).expect("taken before");
    }
}

/// Lives on its stack: writes all over a large local, suspends in ways chosen by `seed`, has children, and looks whether all is as it left it.
fn live(held: &Arc<Held>, seed: u64, generations: u32) {
    const WORDS: usize = 1024;
    held.fibers.fetch_add(1, SeqCst);
    let mut random = Random(seed);
    let mut canary = [0u64; WORDS];
    black_box(&mut canary).iter_mut().zip(seed..).for_each(|(word, i)| *word = i);
    let start = canary.as_ptr().addr();
    held.take(start, size_of_val(&canary));
    for step in 0..random.below(6) {
        let child_seed = random.next();
        let child = held.clone();
        match random.below(7) {
            0 => sinew::yield_now(),
            1 => sinew::sleep(Duration::from_nanos(random.below(200_000))),
            2 => sinew::park_timeout(Duration::from_nanos(random.below(100_000))),
            3 => std::thread::yield_now(),
            4 if generations > 0 => sinew::spawn(move || live(&child, child_seed, generations - 1)).join().unwrap(),
            5 if generations > 0 => {
                held.alive.fetch_add(1, SeqCst);
                drop(sinew::spawn(move || {
                    live(&child, child_seed, generations - 1);
                    child.alive.fetch_sub(1, SeqCst);
                }));
            }
            6 if generations > 0 => sinew::scope(|s| {
                s.spawn(|| live(&child, child_seed, generations - 1));
                s.spawn(|| live(&child, !child_seed, 0));
            }),
            _ => {}
        }
        let wrong = black_box(&canary).iter().zip(seed..).filter(|&(&word, i)| word != i).count();
        assert_eq!(wrong, 0, "seed {seed}, step {step}: {wrong} words of a suspended fiber's stack were overwritten");
    }
    held.give(start);
}

#[test]
fn a_stack_is_never_with_two_fibers_at_once() {
    // Rounds are bursts beyond what a worker keeps, so that stacks wander between workers; from inside and outside.
    let rounds = if cfg!(debug_assertions) { 6 } else { 100 };
    for workers in [2, 4, 8] {
        let rt = runtime(workers);
        let held = Arc::new(Held::default());
        let mut random = Random(workers as u64);
        for _ in 0..rounds {
            let mut fibers: Vec<_> = (0..300)
                .map(|_| {
                    let (held, seed) = (held.clone(), random.next());
                    rt.spawn(move || live(&held, seed, 2))
                })
                .collect();
            while !fibers.is_empty() {
                let some = random.below(fibers.len() as u64) as usize;
                fibers.swap_remove(some).join().unwrap();
            }
        }
        wait_until("the detached have ended", || held.alive.load(SeqCst) == 0);
        println!("{} fibers on {workers} workers, {} stacks", held.fibers.load(SeqCst), stacks());
        assert!(held.stretches.lock().unwrap().is_empty());
    }
}

/// xorshift64*: the same sequence for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 |= 1 << 63;
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 1
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

// ---- small things

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

/// A fiber that has a stack and is parked, or about to.
struct Parked {
    fiber: JoinHandle<usize>,
    value: usize,
    place: usize,
}

impl Parked {
    fn start(rt: &Runtime, value: usize) -> Self {
        let (tell, told) = mpsc::channel();
        let fiber = rt.spawn(move || {
            tell.send(place()).unwrap();
            sinew::park();
            value
        });
        Self { fiber, value, place: told.recv().expect("a fiber that runs") }
    }

    fn end(self) {
        self.fiber.fiber().unpark();
        assert_eq!(self.fiber.join().unwrap(), self.value);
    }
}

/// Polls; a minute on a busy machine is no failure of what is tried here, but half of one is all that a child has.
#[track_caller]
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    const SECONDS_MAX: u64 = 30;
    let end = Instant::now() + Duration::from_secs(SECONDS_MAX);
    while !condition() {
        assert!(Instant::now() < end, "not after {SECONDS_MAX} s: {what}");
        std::thread::sleep(MS);
    }
}

/// A line of `/proc/self/status`.
fn status_kib(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_else(|| panic!("no {field} in {status}"));
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Whether the caller's frame lies on the stack that its thread was made with.
fn stands_on_thread_stack() -> bool {
    // SAFETY: asks for the attributes of this thread, into a place that is given back.
    let stack = unsafe {
        let mut attributes = std::mem::MaybeUninit::uninit();
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()), 0);
        let (mut base, mut len) = (ptr::null_mut(), 0);
        assert_eq!(libc::pthread_attr_getstack(attributes.as_ptr(), &mut base, &mut len), 0);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        base.addr()..base.addr() + len
    };
    stack.contains(&place())
}

/// Locks what this process has and will have in memory; `false` if it may not.
fn lock_all_memory() -> bool {
    // SAFETY: changes how this process, a child, is paged, and nothing else.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) == 0 }
}

/// Why a guard marker cannot be had; `None` if it can.
fn marker_refused() -> Option<i32> {
    const MADV_GUARD_INSTALL: i32 = 102;
    // SAFETY: a mapping of our own, used for nothing else.
    unsafe {
        let (flags, protection) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        let page = libc::mmap(ptr::null_mut(), 4096, protection, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        (libc::madvise(page, 4096, MADV_GUARD_INSTALL) != 0).then(|| std::io::Error::last_os_error().raw_os_error().unwrap())
    }
}

// ---- children (the same in `overflow.rs`)

/// Names the test and the case that a child runs.
const CASE: &str = "SINEW_TEST_CASE";
/// A child that takes longer hangs.
const CHILD_SECONDS_MAX: u64 = 60;

/// How a child ended.
#[derive(Debug)]
struct Ended {
    status: ExitStatus,
    out: String,
    err: String,
}

impl Ended {
    fn assert_ok(&self) {
        assert!(self.status.success(), "the child failed: {self:?}");
    }

    /// What the child printed after `label`.
    fn said(&self, label: &str) -> &str {
        let found = self.out.lines().find_map(|line| line.split_once(label));
        found.unwrap_or_else(|| panic!("the child did not say {label}: {self:?}")).1
    }
}

/// Runs `body` in a child, and `check` on how that ended. In the child itself, runs `body` if the case is the one asked for.
fn in_child<B: FnOnce()>(case: &str, body: B, check: impl FnOnce(&Ended)) {
    in_child_with(case, &[], body, check);
}

/// As `in_child`, with more in the child's environment.
fn in_child_with<B: FnOnce()>(case: &str, environment: &[(&str, &str)], body: B, check: impl FnOnce(&Ended)) {
    in_child_of(test_that_made::<B>(), case, environment, body, check);
}

/// As `in_child_with`, for a body that was not made in the test itself.
fn in_child_of(test: &str, case: &str, environment: &[(&str, &str)], body: impl FnOnce(), check: impl FnOnce(&Ended)) {
    let case = format!("{test}: {case}");
    match std::env::var(CASE) {
        Err(_) => check(&run_child(test, &case, environment)),
        Ok(wanted) if wanted == case => {
            no_core_dump();
            println!("child of {case}");
            body();
            std::process::exit(0);
        }
        Ok(_) => {}
    }
}

/// `a` of `stacks::a::{{closure}}` or `stacks::a::b`.
fn test_that_made<B>() -> &'static str {
    std::any::type_name::<B>().split("::").nth(1).expect("the body of a child is made in a test")
}

fn run_child(test: &str, case: &str, environment: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CASE, case).env_remove("SINEW_STACK_SIZE").env_remove("SINEW_WORKERS");
    command.envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (out, err) = (read_all(child.stdout.take().unwrap()), read_all(child.stderr.take().unwrap()));
    let end = Instant::now() + Duration::from_secs(CHILD_SECONDS_MAX);
    let mut hung = false;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > end && !hung => {
                hung = true;
                child.kill().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let ended = Ended { status, out: out.join().unwrap(), err: err.join().unwrap() };
    assert!(!hung, "the child of {case} hung: {ended:?}");
    assert!(ended.out.contains(&format!("child of {case}")), "the child of {case} did not get there: {ended:?}");
    ended
}

fn read_all(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Children die on purpose.
fn no_core_dump() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: sets a limit of this process, which is a child.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}
