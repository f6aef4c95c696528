//! `Mutex`: one at a time, fibers and threads alike; nobody is lost, nobody is overtaken for long.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::held::{LONG, behind_a_held_worker};
use common::{Mortal, On, poll_until};
use sinew::sync::{Mutex, MutexGuard};

const FOREVER: Duration = Duration::from_secs(3600);

fn runtime(workers: usize) -> sinew::Runtime {
    sinew::Runtime::builder().workers(workers).build().unwrap()
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        sinew::yield_now();
    }
}

/// Fibers that each wait for the lock, which the caller has, to write their number into it.
fn spawn_waiters(lock: &Arc<Mutex<Vec<usize>>>, count: usize) -> Vec<sinew::JoinHandle<()>> {
    (0..count)
        .map(|i| {
            let lock = lock.clone();
            let waiter = sinew::spawn(move || lock.lock().push(i));
            // On one worker: a yield lets it run until it waits.
            sinew::yield_now();
            waiter
        })
        .collect()
}

/// A counter that is not atomic is never torn, whoever adds to it: fibers of two runtimes and plain threads.
#[test]
fn fibers_and_threads_share_one_mutex() {
    const EACH: usize = 2_000;
    let (one, two) = (runtime(2), runtime(1));
    let sum = Arc::new(Mutex::new(0usize));
    let add = |sum: Arc<Mutex<usize>>| {
        move || {
            for i in 0..EACH {
                let mut held = sum.lock();
                let before = *held;
                if i % 16 == 0 {
                    sinew::yield_now();
                }
                *held = before + 1;
            }
        }
    };
    let fibers: Vec<_> = (0..8).map(|i| if i % 2 == 0 { one.spawn(add(sum.clone())) } else { two.spawn(add(sum.clone())) }).collect();
    let threads: Vec<_> = (0..3).map(|_| std::thread::spawn(add(sum.clone()))).collect();
    fibers.into_iter().for_each(|f| f.join().unwrap());
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*sum.lock(), 11 * EACH);
    assert!(!sum.is_locked());
}

/// On one worker waiters get it in the order in which they came.
#[test]
fn waiters_of_one_worker_get_it_in_order() {
    runtime(1).run(|| {
        let lock = Arc::new(Mutex::new(Vec::new()));
        let held = lock.lock();
        let waiters = spawn_waiters(&lock, 10);
        drop(held);
        waiters.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(*lock.lock(), (0..10).collect::<Vec<_>>());
    });
}

/// A fair unlock gives it away: the one that unlocked does not get it back before the waiter had it.
#[test]
fn a_fair_unlock_hands_it_over() {
    runtime(1).run(|| {
        let lock = Arc::new(Mutex::new(Vec::new()));
        let held = lock.lock();
        let waiters = spawn_waiters(&lock, 1);
        MutexGuard::unlock_fair(held);
        assert!(lock.try_lock().is_none(), "it is the waiter's, though that has not run yet");
        lock.lock().push(99);
        waiters.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(*lock.lock(), [0, 99]);
    });
}

/// A fiber that locks and unlocks in a loop, and never yields, does not keep others of its worker from the lock: it queues behind them.
#[test]
fn a_busy_fiber_lets_a_waiter_of_its_worker_have_its_turn() {
    runtime(1).run(|| {
        let lock = Arc::new(Mutex::new(Vec::new()));
        let held = lock.lock();
        let waiters = spawn_waiters(&lock, 3);
        drop(held);
        while lock.lock().len() < 3 {}
        waiters.into_iter().for_each(|w| w.join().unwrap());
    });
}

/// So does one that computes under the lock for longer than one that was woken is waited for elsewhere: it is its own worker that this one waits for.
#[test]
fn a_fiber_that_computes_under_the_lock_lets_a_waiter_of_its_worker_have_its_turn() {
    const ROUNDS_MAX: usize = 200;
    let by_each: [fn(&Mutex<Vec<usize>>); 3] = [
        |lock| compute_holding(lock.lock()),
        |lock| compute_holding(lock.lock_timeout(FOREVER).unwrap()),
        // Who only tries lets nobody run, but forgets nobody either.
        |lock| {
            compute_holding(lock.try_lock().unwrap());
            compute_holding(lock.lock());
        },
    ];
    for locks in by_each {
        runtime(1).run(move || {
            let lock = Arc::new(Mutex::new(Vec::new()));
            let held = lock.lock();
            let waiters = spawn_waiters(&lock, 1);
            drop(held);
            let rounds = (0..ROUNDS_MAX).take_while(|_| {
                locks(&lock);
                !waiters[0].is_finished()
            });
            assert!(rounds.count() < ROUNDS_MAX, "it is kept from the lock");
            waiters.into_iter().for_each(|w| w.join().unwrap());
        });
    }
}

/// Claim: a fiber that computes under the lock lets a woken one of its worker have its turn also if another has given that one up, and has left. Method: as above; the visits, each of a new thread, are over before the fiber
/// goes on, and the woken one was late by then.
#[test]
fn a_fiber_that_computes_under_the_lock_lets_one_come_that_a_visitor_gave_up() {
    const ROUNDS_MAX: usize = 300;
    for (waiters, visits) in [(1, 1), (1, 3), (2, 1), (3, 3)] {
        runtime(1).run(move || {
            let lock = Arc::new(Mutex::new(Vec::new()));
            let held = lock.lock();
            let waiters = spawn_waiters(&lock, waiters);
            drop(held);
            // The first one overtakes it, so that the time is looked at.
            compute_holding(lock.lock());
            for _ in 0..visits {
                let visited = lock.clone();
                std::thread::spawn(move || drop(visited.lock())).join().unwrap();
            }
            let rounds = (0..ROUNDS_MAX).take_while(|_| {
                compute_holding(lock.lock());
                !waiters.iter().all(|waiter| waiter.is_finished())
            });
            assert!(rounds.count() < ROUNDS_MAX, "it is kept from the lock");
            waiters.into_iter().for_each(|w| w.join().unwrap());
        });
    }
}

/// Computes for longer than one that was woken is waited for elsewhere, and lets go.
fn compute_holding(held: MutexGuard<'_, Vec<usize>>) {
    let end = Instant::now() + Duration::from_micros(400);
    while Instant::now() < end {}
    drop(held);
}

/// The same from another worker.
#[test]
fn a_busy_fiber_lets_waiters_of_other_workers_have_their_turn() {
    runtime(2).run(|| {
        let turns = Arc::new(Mutex::new(0usize));
        let others: Vec<_> = (0..8)
            .map(|_| {
                let turns = turns.clone();
                sinew::spawn(move || (0..50).for_each(|_| *turns.lock() += 1))
            })
            .collect();
        while *turns.lock() < 400 {}
        others.into_iter().for_each(|o| o.join().unwrap());
    });
}

/// One that was woken cannot run, since its worker computes: the lock is free, and others have it meanwhile, however often they let it go.
#[test]
fn a_worker_that_computes_does_not_keep_others_from_a_free_lock() {
    enum Role {
        Wait,
        Compute,
        Lock,
        Rest,
    }
    let (lock, computes, done) = (Arc::new(Mutex::new(0u32)), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let runtime = runtime(2);
    let mut by_thread = std::collections::HashMap::<_, Vec<_>>::new();
    // Until one worker has two of them, the other one.
    while by_thread.len() < 2 || by_thread.values().all(|cast| cast.len() < 2) {
        let (place, role) = (sinew::chan::oneshot(), sinew::chan::oneshot());
        let (lock, computes, done) = (lock.clone(), computes.clone(), done.clone());
        let fiber = runtime.spawn(move || {
            place.0.send(std::thread::current().id()).unwrap();
            match role.1.recv().unwrap() {
                Role::Wait => *lock.lock() += 1,
                Role::Compute => {
                    computes.store(true, SeqCst);
                    while !done.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                }
                Role::Lock => (0..10_000).for_each(|_| *lock.lock() += 1),
                Role::Rest => {}
            }
        });
        by_thread.entry(place.1.recv().unwrap()).or_default().push((role.0, fiber));
    }
    let mut casts: Vec<_> = by_thread.into_values().collect();
    casts.sort_by_key(Vec::len);
    let held = lock.lock();
    let mut join = Vec::new();
    let mut play = |(role, fiber): (sinew::chan::oneshot::Sender<Role>, _), part| {
        role.send(part).ok().unwrap();
        join.push(fiber);
    };
    play(casts[1].pop().unwrap(), Role::Wait);
    // Of the same worker, and told after it: when this one computes, the other has queued.
    play(casts[1].pop().unwrap(), Role::Compute);
    wait_until(|| computes.load(SeqCst));
    drop(held);
    play(casts[0].pop().unwrap(), Role::Lock);
    join.pop().unwrap().join().unwrap();
    done.store(true, SeqCst);
    casts.into_iter().flatten().for_each(|cast| cast.0.send(Role::Rest).ok().unwrap());
    join.into_iter().for_each(|fiber: sinew::JoinHandle<()>| fiber.join().unwrap());
    assert_eq!(*lock.lock(), 10_001);
}

/// Claim: those who queued behind one that was woken and cannot run, since its worker computes, have the lock all the same, though nobody else locks it. Method: the worker computes until they had it. They
/// queue while nobody was woken, so the unlock has to call one that looks.
#[test]
fn who_queued_behind_one_of_a_held_worker_has_a_free_mutex() {
    for on in On::BOTH {
        for (times, taken_for) in [(1, Duration::ZERO), (8, Duration::ZERO), (1, LONG), (8, LONG)] {
            let lock = Arc::new(Mutex::new(0u32));
            let (held, first, second) = (lock.clone(), lock.clone(), lock.clone());
            let take = || held.lock();
            assert!(behind_a_held_worker(on, times, taken_for, take, move || *first.lock() += 1, move || *second.lock() += 1, || false));
            assert_eq!(*lock.lock() as usize, 3 + times);
        }
    }
}

/// As above, where those who look after the lock give up, one after another.
#[test]
fn who_queued_behind_those_that_gave_up_has_a_free_mutex() {
    let lock = Arc::new(Mutex::new(()));
    let (held, first, second, turn) = (lock.clone(), lock.clone(), lock.clone(), AtomicUsize::new(0));
    let turn = Arc::new(turn);
    let wait = move || {
        // The last one waits for as long as it takes.
        let patience = if turn.fetch_add(1, SeqCst) == 7 { FOREVER } else { 2 * LONG };
        drop(second.lock_timeout(patience));
    };
    assert!(behind_a_held_worker(On::Fiber, 8, LONG, || held.lock(), move || drop(first.lock()), wait, || false));
}

/// Sets its flag in a fiber of a runtime with one worker: which runs when all that were spawned before it wait.
fn all_wait(runtime: &sinew::Runtime) {
    let wait = Arc::new(AtomicBool::new(false));
    let tells = wait.clone();
    runtime.spawn(move || tells.store(true, SeqCst));
    poll_until("those before it to wait", || wait.load(SeqCst));
}

/// As above, where the one behind may move, which an alarm binds to its worker, and queues while the lock is taken by one who has overtaken the woken one.
#[test]
fn one_that_may_move_and_queues_behind_one_of_a_held_worker_has_a_free_mutex() {
    // SAFETY: its fibers hold nothing that is a thread's.
    let moving = unsafe { sinew::Runtime::builder().workers(1).migrate_started_fibers() }.build().unwrap();
    let (busy, lock) = (runtime(1), Arc::new(Mutex::new(0)));
    let (served, goes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let held = lock.lock();
    let first = lock.clone();
    let first = busy.spawn(move || *first.lock() += 1);
    all_wait(&busy);
    let (until, computes) = (served.clone(), Arc::new(AtomicBool::new(false)));
    let tells = computes.clone();
    let hog = busy.spawn(move || {
        tells.store(true, SeqCst);
        poll_until("the other one", || until.load(SeqCst));
    });
    poll_until("the worker to be held", || computes.load(SeqCst));
    let (second, go, had) = (lock.clone(), goes.clone(), served.clone());
    let second = moving.spawn(move || {
        poll_until("its turn to queue", || go.load(SeqCst));
        *second.lock() += 1;
        had.store(true, SeqCst);
    });
    drop(held);
    let again = lock.lock();
    goes.store(true, SeqCst);
    all_wait(&moving);
    drop(again);
    [first, second, hog].into_iter().for_each(|fiber| fiber.join().unwrap());
    assert_eq!(*lock.lock(), 2);
}

/// As above, where at first so many of one worker wait that nobody else is found among them, and later few.
#[test]
fn one_behind_many_of_a_worker_that_is_held_later_has_a_free_mutex() {
    const MANY: usize = 70;
    let (busy, other, lock) = (runtime(1), runtime(1), Arc::new(Mutex::new(0)));
    let served = Arc::new(AtomicBool::new(false));
    let held = lock.lock();
    let wait = |lock: Arc<Mutex<usize>>, until: Arc<AtomicBool>| {
        move || {
            let mut count = lock.lock();
            *count += 1;
            let holds = *count == MANY - 5;
            drop(count);
            if holds {
                poll_until("the other one", || until.load(SeqCst));
            }
        }
    };
    let many: Vec<_> = (0..MANY).map(|_| busy.spawn(wait(lock.clone(), served.clone()))).collect();
    all_wait(&busy);
    let (last, had) = (lock.clone(), served.clone());
    let last = other.spawn(move || {
        drop(last.lock());
        had.store(true, SeqCst);
    });
    all_wait(&other);
    drop(held);
    many.into_iter().chain([last]).for_each(|fiber| fiber.join().unwrap());
    assert_eq!(*lock.lock(), MANY);
}

#[test]
fn a_timed_lock_gives_up_and_takes_nothing_with_it() {
    runtime(2).run(|| {
        let lock = Arc::new(Mutex::new(0));
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.lock_timeout(Duration::ZERO).is_none());
        assert!(lock.lock_timeout(Duration::from_millis(1)).is_none());
        let elsewhere = lock.clone();
        let thread = std::thread::spawn(move || elsewhere.lock_timeout(Duration::from_millis(1)).is_none());
        assert!(thread.join().unwrap());
        drop(held);
        assert!(lock.lock_timeout(FOREVER).is_some());
        assert!(lock.lock_timeout(Duration::ZERO).is_some(), "it is free: no time is needed");
    });
}

/// Time-outs race unlocks, over and over: whoever says it has it has it alone, and in the end it is free.
#[test]
fn time_outs_that_race_unlocks_lose_nothing() {
    let rounds = if cfg!(debug_assertions) { 2_000 } else { 100_000 };
    let runtime = runtime(2);
    let (lock, inside, got) = (Arc::new(Mutex::new(0usize)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let fibers: Vec<_> = (0..4u64)
        .map(|i| {
            let (lock, inside, got) = (lock.clone(), inside.clone(), got.clone());
            runtime.spawn(move || {
                for round in 0..rounds {
                    let Some(mut held) = lock.lock_timeout(Duration::from_nanos((i * 7919 + round * 104_729) % 20_000)) else { continue };
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two are inside");
                    *held += 1;
                    got.fetch_add(1, SeqCst);
                    if round % 5 == 0 {
                        sinew::yield_now();
                    }
                    inside.fetch_sub(1, SeqCst);
                }
            })
        })
        .collect();
    fibers.into_iter().for_each(|f| f.join().unwrap());
    assert_eq!(*lock.try_lock().expect("nobody has it any more"), got.load(SeqCst));
}

/// The last one out ends it at once, while the unlock of the one before may still be under way.
#[test]
fn a_mutex_may_be_freed_by_its_next_owner() {
    fn leave(mutex: Mortal<Mutex<usize>>) {
        // SAFETY: the count says who is the last; nobody touches it after that.
        unsafe {
            let left = {
                let mut held = mutex.get().lock();
                *held -= 1;
                *held
            };
            if left == 0 {
                mutex.end();
            }
        }
    }
    let rounds = if cfg!(debug_assertions) { 500 } else { 20_000 };
    let runtime = runtime(2);
    for _ in 0..rounds {
        let mutex = Mortal::new(Mutex::new(4));
        let fibers: Vec<_> = (0..3).map(|_| runtime.spawn(move || leave(mutex))).collect();
        leave(mutex);
        fibers.into_iter().for_each(|f| f.join().unwrap());
        // SAFETY: all have left.
        unsafe { mutex.check() };
    }
}

#[test]
fn a_panic_unlocks_and_does_not_poison() {
    static LOCK: Mutex<u32> = Mutex::new(7);
    let panicked = sinew::spawn(|| {
        let _held = LOCK.lock();
        panic!("inside");
    });
    assert!(panicked.join().is_err());
    assert_eq!(*LOCK.lock(), 7);
}

/// Not a cancel point: a cancelled fiber waits as any other, and gets it.
#[test]
fn a_cancelled_fiber_still_locks() {
    runtime(1).run(|| {
        let lock = Arc::new(Mutex::new(Vec::new()));
        let held = lock.lock();
        let waiters = spawn_waiters(&lock, 1);
        waiters[0].cancel();
        sinew::yield_now();
        assert!(!waiters[0].is_finished());
        drop(held);
        waiters.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(lock.lock().len(), 1);
    });
}

/// Where nothing may suspend, a lock that is free is taken and one that is taken is refused; and the mutex is as it was.
#[test]
fn a_lock_that_would_wait_is_refused_in_no_suspend() {
    runtime(1).run(|| {
        let lock = Arc::new(Mutex::new(Vec::new()));
        sinew::no_suspend(|| lock.lock().push(1));
        let held = lock.lock();
        let inside = std::panic::catch_unwind(|| sinew::no_suspend(|| drop(lock.lock())));
        assert!(inside.is_err());
        drop(held);
        assert_eq!(lock.lock().len(), 1);
    });
}

#[test]
fn guards_map_and_values_come_out() {
    let mut lock = Mutex::new((1, String::from("a")));
    MutexGuard::map(lock.lock(), |pair| &mut pair.1).push('b');
    lock.get_mut().0 = 2;
    assert_eq!(format!("{lock:?}"), "Mutex { data: (2, \"ab\") }");
    assert_eq!(lock.into_inner(), (2, "ab".into()));
    assert_eq!(*Mutex::<u8>::default().lock(), 0);
    assert_eq!(*Mutex::from(3).lock(), 3);
    let whole: Arc<Mutex<[u8]>> = Arc::new(Mutex::new([1, 2, 3]));
    whole.lock()[0] = 9;
    assert_eq!(whole.lock().len(), 3);
}

/// What waits says so, when its runtime is asked to end.
#[test]
fn a_report_says_that_a_fiber_waits_for_a_mutex() {
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock();
    let runtime = runtime(1);
    let (elsewhere, waits) = (lock.clone(), Arc::new(AtomicBool::new(false)));
    let says = waits.clone();
    runtime.spawn(move || {
        says.store(true, SeqCst);
        drop(elsewhere.lock());
    });
    wait_until(|| waits.load(SeqCst));
    let unfinished = runtime.shutdown_timeout(Duration::from_millis(100)).unwrap_err();
    assert!(format!("{unfinished}").contains("waits for a Mutex"), "{unfinished}");
    drop(held);
}

const fn sync<T: Send + Sync>() {}
const _: () = sync::<Mutex<std::cell::Cell<u8>>>();

/// Claim: a thread that was woken and is not run, here for a signal's handler, does not keep other threads from a free lock.
#[test]
fn a_woken_thread_that_is_not_run_does_not_keep_others_from_a_free_lock() {
    use std::os::unix::thread::JoinHandleExt;
    static HANDLES: AtomicBool = AtomicBool::new(false);
    static DONE: AtomicBool = AtomicBool::new(false);
    extern "C" fn hold(_: i32) {
        HANDLES.store(true, SeqCst);
        while !DONE.load(SeqCst) {
            std::hint::spin_loop();
        }
    }
    // SAFETY: the handler touches atomics alone.
    unsafe { libc::signal(libc::SIGUSR2, hold as *const () as usize) };
    let lock = Arc::new(Mutex::new(0u32));
    let held = lock.lock();
    let (waits, id) = (lock.clone(), Arc::new(std::sync::atomic::AtomicI32::new(0)));
    let told = id.clone();
    let woken = std::thread::spawn(move || {
        // SAFETY: it asks for a number.
        told.store(unsafe { libc::gettid() }, SeqCst);
        *waits.lock() += 1;
    });
    let sleeps = |id: i32| std::fs::read_to_string(format!("/proc/self/task/{id}/stat")).is_ok_and(|stat| stat.contains(") S "));
    wait_until(|| id.load(SeqCst) != 0 && sleeps(id.load(SeqCst)));
    // SAFETY: the thread waits, and has not been joined.
    assert_eq!(unsafe { libc::pthread_kill(woken.as_pthread_t(), libc::SIGUSR2) }, 0);
    wait_until(|| HANDLES.load(SeqCst));
    drop(held);
    (0..10_000).for_each(|_| *lock.lock() += 1);
    DONE.store(true, SeqCst);
    woken.join().unwrap();
    assert_eq!(*lock.lock(), 10_001);
}
