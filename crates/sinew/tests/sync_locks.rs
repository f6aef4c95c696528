//! Condvar and RwLock, in fibers, on threads, and both mixed: bthread's cond and rwlock scenarios, flare's, and the rules of who goes first.

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{Gate, Mortal, On, alone, panics, poll_until, rounds, until};
use sinew::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use sinew::{current, no_suspend, park, spawn, yield_now};

const HOUR: Duration = Duration::from_secs(3600);
const MILLI: Duration = Duration::from_millis(1);

#[test]
fn they_may_be_shared_and_sent_as_std_s_may() {
    fn both<T: Send + Sync + std::panic::UnwindSafe>() {}
    both::<Condvar>();
    both::<RwLock<Vec<u8>>>();
    fn send<T: Send>() {}
    send::<RwLock<std::cell::Cell<u8>>>();
    fn sync<T: Sync>() {}
    sync::<RwLockReadGuard<'static, u8>>();
    sync::<RwLockWriteGuard<'static, u8>>();
}

// Condvar

type Channel<T> = (Mutex<VecDeque<T>>, Condvar, Condvar);

/// Producers and consumers over a buffer of two: nothing is lost, doubled, or out of order.
#[test]
fn producers_and_consumers_meet_at_two_condvars() {
    const PARTS: usize = 4;
    let each = rounds(40_000);
    let channel: Arc<Channel<usize>> = Arc::default();
    let producers: Vec<_> = (0..PARTS)
        .map(|index| {
            let channel = channel.clone();
            On::by_turns(index).start(move || {
                for value in 0..each {
                    let mut buffer = channel.0.lock();
                    channel.1.wait_while(&mut buffer, |buffer| buffer.len() >= 2);
                    buffer.push_back(value * PARTS + index);
                    drop(buffer);
                    channel.2.notify_one();
                }
            })
        })
        .collect();
    let consumers: Vec<_> = (0..PARTS)
        .map(|index| {
            let channel = channel.clone();
            On::by_turns(index + 1).start(move || {
                let mut got = Vec::new();
                for _ in 0..each {
                    let mut buffer = channel.0.lock();
                    channel.2.wait_while(&mut buffer, |buffer| buffer.is_empty());
                    got.push(buffer.pop_front().unwrap());
                    channel.1.notify_one();
                }
                got
            })
        })
        .collect();
    producers.into_iter().for_each(|producer| producer());
    let mut all: Vec<usize> = consumers.into_iter().flat_map(|consumer| consumer()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..each * PARTS).collect::<Vec<_>>());
}

#[test]
fn one_notification_wakes_one_and_all_wakes_all() {
    for on in On::BOTH {
        let shared: Arc<(Mutex<usize>, Condvar)> = Arc::default();
        let woken = Arc::new(AtomicUsize::new(0));
        let waiters: Vec<_> = (0..10)
            .map(|_| {
                let (shared, woken) = (shared.clone(), woken.clone());
                on.start(move || {
                    let mut arrived = shared.0.lock();
                    *arrived += 1;
                    shared.1.wait(&mut arrived);
                    woken.fetch_add(1, SeqCst);
                })
            })
            .collect();
        // Who has counted himself under the mutex is queued when another has that.
        until(|| *shared.0.lock() == 10);
        assert!(shared.1.notify_one());
        until(|| woken.load(SeqCst) == 1);
        let held = shared.0.lock();
        assert_eq!(shared.1.notify_all(), 9);
        assert_eq!((shared.1.notify_all(), shared.1.notify_one()), (0, false));
        assert_eq!(woken.load(SeqCst), 1, "they need the mutex");
        drop(held);
        waiters.into_iter().for_each(|waiter| waiter());
        assert_eq!(woken.load(SeqCst), 10, "no wake-up came for no reason");
    }
}

#[test]
fn notifications_go_to_those_who_waited_longest() {
    alone(|| {
        let shared: Arc<(Mutex<Vec<usize>>, Condvar)> = Arc::default();
        let arrived = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..5)
            .map(|index| {
                let (shared, arrived) = (shared.clone(), arrived.clone());
                let fiber = spawn({
                    let arrived = arrived.clone();
                    move || {
                        let mut order = shared.0.lock();
                        arrived.fetch_add(1, SeqCst);
                        shared.1.wait(&mut order);
                        order.push(index);
                    }
                });
                until(|| arrived.load(SeqCst) == index + 1);
                fiber
            })
            .collect();
        for count in 1..=5 {
            assert!(shared.1.notify_one());
            until(|| shared.0.lock().len() == count);
        }
        fibers.into_iter().for_each(|f| f.join().unwrap());
        assert_eq!(*shared.0.lock(), [0, 1, 2, 3, 4]);
    });
}

#[test]
fn a_timed_wait_says_whether_its_time_was_up_and_has_the_mutex() {
    for on in On::BOTH {
        on.start(|| {
            let (mutex, condvar) = (Mutex::new(0), Condvar::new());
            let mut guard = mutex.lock();
            assert!(condvar.wait_timeout(&mut guard, MILLI).timed_out());
            assert!(condvar.wait_timeout(&mut guard, Duration::ZERO).timed_out());
            assert!(condvar.wait_until(&mut guard, Instant::now()).timed_out());
            assert!(condvar.wait_timeout_while(&mut guard, MILLI, |_| true).timed_out());
            assert!(!condvar.wait_timeout_while(&mut guard, Duration::ZERO, |_| false).timed_out());
            let mut looks = 0;
            let came = condvar.wait_timeout_while(&mut guard, MILLI, |_| {
                looks += 1;
                looks == 1
            });
            assert!(!came.timed_out() && looks == 2, "at the end of its time it looks once more");
            assert!(mutex.is_locked() && mutex.try_lock().is_none());
            *guard += 1;
            assert!(!condvar.notify_one(), "nobody is left in the queue");
        })();
    }
}

/// bthread's `cond_bug`: five producers, and a consumer whose waits last 5 us.
#[test]
fn short_timed_waits_make_progress() {
    const PRODUCERS: usize = 5;
    let each = rounds(20_000);
    let shared: Arc<(Mutex<usize>, Condvar)> = Arc::default();
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|index| {
            let shared = shared.clone();
            On::by_turns(index).start(move || {
                for _ in 0..each {
                    *shared.0.lock() += 1;
                    shared.1.notify_one();
                }
            })
        })
        .collect();
    let (mut taken, mut guard) = (0, shared.0.lock());
    while taken < PRODUCERS * each {
        shared.1.wait_timeout_while(&mut guard, Duration::from_micros(5), |count| *count == 0);
        taken += std::mem::take(&mut *guard);
    }
    drop(guard);
    producers.into_iter().for_each(|producer| producer());
}

/// flare's `notify_all` raced with time-outs: every notified one, and no other, says that it was not its time.
#[test]
fn notifications_against_timeouts_are_counted_once() {
    const WAITERS: usize = 6;
    let shared: Arc<(Mutex<()>, Condvar)> = Arc::default();
    let left = Arc::new(AtomicUsize::new(WAITERS));
    let waiters: Vec<_> = (0..WAITERS)
        .map(|index| {
            let (shared, left) = (shared.clone(), left.clone());
            let on = if index == 0 { On::Thread } else { On::Fiber };
            on.start(move || {
                let mut notified = 0;
                for round in 0..rounds(300_000) / WAITERS {
                    let mut guard = shared.0.lock();
                    let timeout = Duration::from_micros((round * 7 + index) as u64 % 50);
                    notified += usize::from(!shared.1.wait_timeout(&mut guard, timeout).timed_out());
                }
                left.fetch_sub(1, SeqCst);
                notified
            })
        })
        .collect();
    let (mut notified, mut turn) = (0, 0);
    while left.load(SeqCst) > 0 {
        turn += 1;
        notified += if turn % 3 == 0 { shared.1.notify_all() } else { usize::from(shared.1.notify_one()) };
        yield_now();
    }
    assert_eq!(waiters.into_iter().map(|waiter| waiter()).sum::<usize>(), notified);
}

#[test]
fn fibers_and_a_thread_play_ping_pong() {
    static TURN: Mutex<usize> = Mutex::new(0);
    static CHANGED: Condvar = Condvar::new();
    let players: Vec<_> = (0..3)
        .map(|index| {
            let on = if index == 2 { On::Thread } else { On::Fiber };
            on.start(move || {
                for _ in 0..rounds(10_000) {
                    let mut turn = TURN.lock();
                    CHANGED.wait_while(&mut turn, |turn| *turn % 3 != index);
                    *turn += 1;
                    CHANGED.notify_all();
                }
            })
        })
        .collect();
    players.into_iter().for_each(|player| player());
    assert_eq!(*TURN.lock(), 3 * rounds(10_000));
}

#[test]
fn many_fibers_wait_at_one_condvar() {
    let fibers = if cfg!(debug_assertions) { 2_000 } else { 32_768 };
    let shared: Arc<(Mutex<(usize, bool)>, Condvar)> = Arc::default();
    let handles: Vec<_> = (0..fibers)
        .map(|_| {
            let shared = shared.clone();
            spawn(move || {
                let mut state = shared.0.lock();
                state.0 += 1;
                shared.1.wait_while(&mut state, |state| !state.1);
                state.0 -= 1;
            })
        })
        .collect();
    until(|| shared.0.lock().0 == fibers);
    shared.0.lock().1 = true;
    assert_eq!(shared.1.notify_all(), fibers);
    handles.into_iter().for_each(|h| h.join().unwrap());
    assert_eq!(shared.0.lock().0, 0);
}

#[test]
fn locks_and_condvars_are_no_cancel_points() {
    let shared: Arc<(Mutex<()>, Condvar, RwLock<()>)> = Arc::default();
    let write = shared.2.write();
    let fiber = {
        let shared = shared.clone();
        spawn(move || {
            current().cancel();
            sinew::timeout(Duration::ZERO, || {
                shared.1.wait(&mut shared.0.lock());
                drop(shared.2.read());
                drop(shared.2.write());
            })
        })
    };
    until(|| shared.1.notify_one());
    drop(write);
    assert_eq!(fiber.join().unwrap(), Ok(()));
}

#[test]
fn where_it_must_not_suspend_a_wait_panics_and_leaves_the_mutex_locked() {
    for on in On::BOTH {
        on.start(|| {
            let (mutex, condvar, lock) = (Mutex::new(0), Condvar::new(), RwLock::new(0));
            let mut guard = mutex.lock();
            no_suspend(|| {
                assert!(panics(|| condvar.wait(&mut guard)));
                assert!(mutex.is_locked());
                let read = lock.read();
                assert!(panics(|| drop(lock.write())));
                drop(read);
                let write = lock.write();
                assert!(panics(|| drop(lock.read())));
                assert!(panics(|| drop(lock.read_timeout(HOUR))));
                drop(write);
            });
            assert!(!condvar.notify_one(), "the refused wait left nothing behind");
            assert!(!lock.is_locked());
        })();
    }
}

/// The waiter ends mutex and condvar as soon as it has been notified and has let go of the mutex, while the notifier may still be in its call.
#[test]
fn a_condvar_may_be_freed_by_the_woken_one() {
    for round in 0..rounds(40_000) {
        let both = Mortal::new(<(Mutex<bool>, Condvar)>::default());
        let on = |part: usize| if round % 8 == part { On::Thread } else { On::Fiber };
        let waiter = on(0).start(move || {
            // SAFETY: it is alive until it is ended here.
            unsafe {
                let (mutex, condvar) = both.get();
                let mut ready = mutex.lock();
                condvar.wait_while(&mut ready, |ready| !*ready);
                drop(ready);
                both.end();
            }
        });
        let notifier = on(if round % 16 == 0 { 0 } else { 1 }).start(move || {
            // SAFETY: the waiter needs the mutex, which is held until it was notified, before it ends both.
            let (mutex, condvar) = unsafe { both.get() };
            let mut ready = mutex.lock();
            *ready = true;
            condvar.notify_one();
        });
        waiter();
        notifier();
        // SAFETY: both have returned.
        unsafe { both.check() };
    }
}

// RwLock

#[test]
fn many_read_at_once_and_one_writes_alone() {
    let lock = Arc::new(RwLock::new(0));
    let inside = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let parts: Vec<_> = (0..16)
        .map(|index| {
            let (lock, inside) = (lock.clone(), inside.clone());
            let on = if index % 8 == 0 { On::Thread } else { On::Fiber };
            on.start(move || {
                let mut writes = 0;
                for round in 0..rounds(20_000) {
                    if (round + index) % 5 == 0 {
                        let mut value = lock.write();
                        assert_eq!((inside.0.fetch_add(1, SeqCst), inside.1.load(SeqCst)), (0, 0));
                        if round % 16 == 0 {
                            yield_now();
                        }
                        *value += 1;
                        writes += 1;
                        inside.0.fetch_sub(1, SeqCst);
                    } else {
                        let value = lock.read();
                        inside.1.fetch_add(1, SeqCst);
                        assert_eq!(inside.0.load(SeqCst), 0);
                        if round % 16 == 0 {
                            yield_now();
                        }
                        let _ = *value;
                        inside.1.fetch_sub(1, SeqCst);
                    }
                }
                writes
            })
        })
        .collect();
    let writes: usize = parts.into_iter().map(|part| part()).sum();
    assert_eq!(*lock.read(), writes);
    assert!(!lock.is_locked());
}

/// flare's mix: most read, some write, some try, some give up; what is written is whole.
#[test]
fn a_mix_of_all_ways_to_lock_keeps_the_value_whole() {
    let lock = Arc::new(RwLock::new((0usize, 0usize)));
    let parts: Vec<_> = (0..20)
        .map(|index| {
            let lock = lock.clone();
            let on = if index % 10 == 0 { On::Thread } else { On::Fiber };
            on.start(move || {
                let (mut writes, soon) = (0, Duration::from_micros(20));
                let write = |mut value: RwLockWriteGuard<'_, (usize, usize)>| {
                    value.0 += 1;
                    if value.0.is_multiple_of(8) {
                        yield_now();
                    }
                    value.1 += 1;
                    1
                };
                for round in 0..rounds(20_000) {
                    match (round * 13 + index) % 100 {
                        0..5 => writes += write(lock.write()),
                        5..9 => writes += lock.write_timeout(soon).map_or(0, write),
                        9..10 => writes += lock.try_write().map_or(0, write),
                        10..30 => drop(lock.read_timeout(soon).map(|value| assert_eq!(value.0, value.1))),
                        30..40 => drop(lock.try_read().map(|value| assert_eq!(value.0, value.1))),
                        _ => {
                            let value = lock.read();
                            if round % 64 == 0 {
                                yield_now();
                            }
                            assert_eq!(value.0, value.1);
                        }
                    }
                }
                writes
            })
        })
        .collect();
    let writes: usize = parts.into_iter().map(|part| part()).sum();
    assert_eq!(*lock.write(), (writes, writes));
}

/// Lets time pass until nobody overtakes those who wait any more, and sees that nobody does. Somebody waits, and readers have the lock.
fn exhaust_patience(lock: &RwLock<()>) {
    let end = Instant::now() + MILLI;
    until(|| Instant::now() >= end);
    assert!(lock.try_read().is_none(), "a reader joined others before a writer that has waited for long");
}

/// Readers that come all the time, each of which has the lock for longer than a writer's patience: the first that comes after that queues, also after a few that came before.
#[test]
fn no_reader_joins_others_before_a_writer_that_has_waited_for_long() {
    for before in [0, 1, 7, 30, 40] {
        alone(move || {
            let (lock, arrived) = (Arc::new(RwLock::new(())), Arc::new(AtomicUsize::new(0)));
            let first = lock.read();
            let start = |write: bool| {
                let (lock, arrived) = (lock.clone(), arrived.clone());
                spawn(move || {
                    arrived.fetch_add(1, SeqCst);
                    if write { drop(lock.write()) } else { drop(lock.read()) }
                })
            };
            let writer = start(true);
            until(|| arrived.load(SeqCst) == 1);
            // Few, if the clock has run on.
            let joined: Vec<_> = (0..before).map_while(|_| lock.try_read()).collect();
            exhaust_patience(&lock);
            let reader = start(false);
            until(|| arrived.load(SeqCst) == 2);
            assert!(!reader.is_finished() && !writer.is_finished(), "a reader joined others before a writer that has waited for long");
            drop((first, joined));
            writer.join().unwrap();
            reader.join().unwrap();
        });
    }
}

/// One worker, so that a fiber that has said that it comes is queued when another runs. Two readers have it; then come a writer, two readers, a writer, a reader.
/// Readers that come while a writer waits may overtake it at first: so the writer comes, and they come when its patience is at its end. Each writer keeps the lock for a while, so that it hands it over.
#[test]
fn readers_and_writers_take_turns() {
    alone(|| {
        let lock = Arc::new(RwLock::new(()));
        let (arrived, order) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let first = (lock.read(), lock.read());
        let fibers: Vec<_> = ["w1", "r1", "r2", "w2", "r3"]
            .into_iter()
            .enumerate()
            .map(|(index, name)| {
                let fiber = spawn({
                    let (lock, arrived, order) = (lock.clone(), arrived.clone(), order.clone());
                    move || {
                        arrived.fetch_add(1, SeqCst);
                        if name.starts_with('w') {
                            let _guard = lock.write();
                            order.lock().push(name);
                            let end = Instant::now() + MILLI;
                            until(|| Instant::now() >= end);
                            order.lock().push("out");
                        } else {
                            let _guard = lock.read();
                            order.lock().push(name);
                            yield_now();
                        }
                    }
                });
                until(|| arrived.load(SeqCst) == index + 1);
                exhaust_patience(&lock);
                fiber
            })
            .collect();
        assert!(lock.try_read().is_none(), "a writer that has waited stops readers");
        assert!(lock.read_timeout(MILLI).is_none() && lock.write_timeout(MILLI).is_none());
        assert!(order.lock().is_empty());
        drop(first);
        fibers.into_iter().for_each(|f| f.join().unwrap());
        assert_eq!(*order.lock(), ["w1", "out", "r1", "r2", "r3", "w2", "out"]);
    });
}

/// The first that waits is on a worker that then does something else, so that it does not come when it is told to try. Another, which comes later and waits for long, is given the lock by those who
/// overtake it.
#[test]
fn one_that_was_woken_and_does_not_come_keeps_nobody_from_a_free_lock() {
    let one_worker = || sinew::Runtime::builder().workers(1).build().unwrap();
    let (busy, other) = (one_worker(), one_worker());
    let lock = Arc::new(RwLock::new(0));
    let (gate, absent) = loop {
        let held = lock.write();
        let gate = Gate::default();
        let absent = {
            let (lock, gate) = (lock.clone(), gate.clone());
            busy.spawn(move || {
                spawn(move || gate.hold());
                *lock.write() += 1;
            })
        };
        poll_until("the worker to be busy", || gate.held() == 1);
        drop(held);
        if !lock.is_locked() {
            break (gate, absent);
        }
        // It had waited for so long that it was handed over.
        gate.open();
        absent.join().unwrap();
    };
    let (held, arrived) = (lock.write(), Arc::new(AtomicBool::new(false)));
    let before = *held;
    let waits = {
        let (lock, arrived) = (lock.clone(), arrived.clone());
        other.spawn(move || {
            arrived.store(true, SeqCst);
            *lock.write() += 1;
        })
    };
    poll_until("the other", || arrived.load(SeqCst));
    // Its one worker runs this when it waits.
    other.run(|| ());
    let end = Instant::now() + MILLI;
    poll_until("its patience to end", || Instant::now() >= end);
    drop(held);
    for _ in 0..40 {
        drop(lock.write_timeout(Duration::from_secs(60)).expect("the lock is free"));
    }
    assert_eq!(*lock.read(), before + 1);
    waits.join().unwrap();
    gate.open();
    absent.join().unwrap();
    assert_eq!(*lock.read(), before + 2);
}

/// One worker, and one fiber on it that never has to wait: those who wait for the lock have their turn all the same, readers, writers, and both. (Readers were woken all at once, and that fiber then knew of nobody who waits.)
#[test]
fn who_never_has_to_wait_lets_those_on_its_worker_have_their_turn() {
    /// Far more than fit into a turn, or into the patience of one who waits.
    const LOCKS_MAX: usize = 20_000_000;
    for writes in [|_| false, |index| index % 5 == 0, |_| true] {
        alone(move || {
            let lock = Arc::new(RwLock::new(0));
            let held = lock.write();
            let (arrived, had) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let others: Vec<_> = (0..10)
                .map(|index| {
                    let (lock, arrived, had) = (lock.clone(), arrived.clone(), had.clone());
                    spawn(move || {
                        arrived.fetch_add(1, SeqCst);
                        if writes(index) {
                            drop(lock.write())
                        } else {
                            drop(lock.read())
                        }
                        had.fetch_add(1, SeqCst);
                    })
                })
                .collect();
            until(|| arrived.load(SeqCst) == others.len());
            drop(held);
            let locks = (0..LOCKS_MAX).take_while(|_| {
                *lock.write() += 1;
                had.load(SeqCst) < others.len()
            });
            assert!(locks.count() < LOCKS_MAX, "{} of {} had their turn", had.load(SeqCst), others.len());
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }
}

/// Computes, and does not let others run.
fn compute_for(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {}
}

/// The same of one that computes under the lock, so that whoever was woken seems to have been on its way for long: it is its own worker that this one waits for.
#[test]
fn who_computes_under_a_rwlock_lets_those_on_its_worker_have_their_turn() {
    const LOCKS_MAX: usize = 20_000;
    const SHORT: Duration = Duration::from_micros(10);
    const LONG: Duration = Duration::from_micros(400);
    let ways: [fn(&RwLock<()>, Duration); 4] = [
        |lock, time| {
            let _held = lock.write();
            compute_for(time);
        },
        |lock, time| {
            let _held = lock.read();
            compute_for(time);
        },
        |lock, time| {
            let _held = lock.write_timeout(HOUR).unwrap();
            compute_for(time);
        },
        // Who only tries lets nobody run, but forgets nobody either.
        |lock, time| {
            let held = lock.try_write().unwrap();
            compute_for(time);
            drop(held);
            drop(lock.write());
        },
    ];
    for ((way, writes), time) in ways.into_iter().zip([true, true, false, true]).flat_map(|case| [(case, SHORT), (case, LONG)]) {
        alone(move || {
            let lock = Arc::new(RwLock::new(()));
            let held = lock.write();
            let waits = lock.clone();
            let other = spawn(move || if writes { drop(waits.write()) } else { drop(waits.read()) });
            // It queues.
            yield_now();
            drop(held);
            let locks = (0..LOCKS_MAX).take_while(|_| {
                way(&lock, time);
                !other.is_finished()
            });
            assert!(locks.count() < LOCKS_MAX, "it is kept from the lock");
            other.join().unwrap();
        });
    }
}

/// Claim: so it does if another has given that one up, and has left. Method: as above; a thread's visits are over before the fiber goes on, and who was told to try was late by then.
#[test]
fn who_computes_under_a_rwlock_lets_one_come_that_a_visitor_gave_up() {
    const LOCKS_MAX: usize = 20_000;
    type Deed = fn(&RwLock<()>);
    fn write(lock: &RwLock<()>) {
        let _held = lock.write();
        compute_for(Duration::from_micros(10));
    }
    fn read(lock: &RwLock<()>) {
        let _held = lock.read();
        compute_for(Duration::from_micros(10));
    }
    let deeds: [Deed; 2] = [write, read];
    for (waits, locks) in deeds.into_iter().flat_map(|waits| deeds.map(|locks| (waits, locks))) {
        alone(move || {
            let lock = Arc::new(RwLock::new(()));
            let held = lock.write();
            let waiting = lock.clone();
            let other = spawn(move || waits(&waiting));
            // It queues.
            yield_now();
            drop(held);
            // Longer than it is waited for elsewhere.
            compute_for(Duration::from_micros(400));
            let visited = lock.clone();
            std::thread::spawn(move || (0..READS).for_each(|_| drop(visited.write()))).join().unwrap();
            let locks = (0..LOCKS_MAX).take_while(|_| {
                locks(&lock);
                !other.is_finished()
            });
            assert!(locks.count() < LOCKS_MAX, "it is kept from the lock");
            other.join().unwrap();
        });
    }
}

/// The same where readers of two workers were told to try: one is of the worker that computes, the other one's is held, so that it does not come.
#[test]
fn who_computes_under_a_rwlock_lets_one_of_several_readers_come() {
    const LOCKS_MAX: usize = 20_000;
    let busy = sinew::Runtime::builder().workers(1).build().unwrap();
    // Held for too long the lock is handed over to both, which is no test of this; so there are several.
    for _ in 0..20 {
        let (lock, gate) = (Arc::new(RwLock::new(())), Gate::default());
        let absent = alone(|| {
            let held = lock.write();
            let beside = lock.clone();
            let reader = spawn(move || drop(beside.read()));
            // It queues.
            yield_now();
            let (beside, holds) = (lock.clone(), gate.clone());
            let absent = busy.spawn(move || {
                // It runs when this one waits.
                spawn(move || holds.hold());
                drop(beside.read());
            });
            poll_until("the worker to be held", || gate.held() == 1);
            drop(held);
            let locks = (0..LOCKS_MAX).take_while(|_| {
                // If it was handed over, the absent one has it.
                if let Some(_held) = lock.write_timeout(MILLI) {
                    compute_for(Duration::from_micros(10));
                }
                !reader.is_finished()
            });
            assert!(locks.count() < LOCKS_MAX, "it is kept from the lock");
            reader.join().unwrap();
            absent
        });
        gate.open();
        absent.join().unwrap();
    }
}

/// A thread reads for long, and a fiber reads beside it again and again, and keeps a writer of its worker, which was told to try, from coming: it lets that come, which is not forgotten then.
#[test]
fn who_reads_beside_others_lets_a_writer_of_its_worker_come() {
    const READS_MAX: usize = 100_000;
    alone(|| {
        let lock = Arc::new(RwLock::new(()));
        let held = lock.write();
        let waits = lock.clone();
        let writer = spawn(move || drop(waits.write()));
        // It queues.
        yield_now();
        drop(held);
        let (reads, enough) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let reader = {
            let (lock, reads, enough) = (lock.clone(), reads.clone(), enough.clone());
            std::thread::spawn(move || {
                let _held = lock.try_read().unwrap();
                reads.store(true, SeqCst);
                poll_until("it to be enough", || enough.load(SeqCst));
            })
        };
        poll_until("the thread to read", || reads.load(SeqCst));
        // Runs when the writer has come, and found the thread reading.
        let tells = enough.clone();
        spawn(move || tells.store(true, SeqCst));
        let beside = (0..READS_MAX).take_while(|_| {
            let _held = lock.read();
            compute_for(Duration::from_micros(10));
            !writer.is_finished()
        });
        assert!(beside.count() < READS_MAX, "it is kept from coming");
        writer.join().unwrap();
        reader.join().unwrap();
    });
}

/// A thread reads, and a writer of the caller's worker was told to try, for so long that another worker's would be given up, and has lost its patience. `f` is called with the lock, and with what is set by a fiber that runs `next`, as soon as
/// the caller suspends and the writer has come. Then the thread leaves.
fn beside_a_reader(next: impl FnOnce(&RwLock<()>) + Send + 'static, f: impl FnOnce(&RwLock<()>, &AtomicBool) + Send) {
    alone(move || {
        let (lock, [parks, ran, reads]) = (Arc::new(RwLock::new(())), [0; 3].map(|_| Arc::new(AtomicBool::new(false))));
        let follower = {
            let (lock, parks, ran) = (lock.clone(), parks.clone(), ran.clone());
            spawn(move || {
                parks.store(true, SeqCst);
                park();
                ran.store(true, SeqCst);
                next(&lock);
            })
        };
        until(|| parks.load(SeqCst));
        let held = lock.write();
        let waits = lock.clone();
        let writer = spawn(move || drop(waits.write()));
        // It queues.
        yield_now();
        drop(held);
        follower.fiber().unpark();
        let reader = {
            let (lock, reads, ran) = (lock.clone(), reads.clone(), ran.clone());
            std::thread::spawn(move || {
                let _held = lock.try_read().unwrap();
                reads.store(true, SeqCst);
                poll_until("the other to have run", || ran.load(SeqCst));
            })
        };
        poll_until("the thread to read", || reads.load(SeqCst));
        compute_for(MILLI);
        assert!(!ran.load(SeqCst), "nobody has let it run");
        f(&lock, &ran);
        writer.join().unwrap();
        follower.join().unwrap();
        reader.join().unwrap();
    });
}

/// More than may overtake one before the clock is looked at.
const READS: usize = 100;

/// std counts panics by thread: who unwinds lets nobody come, though it keeps one from that.
#[test]
fn who_unwinds_and_reads_beside_others_is_not_switched_away() {
    struct Reads<'a>(&'a RwLock<()>);
    impl Drop for Reads<'_> {
        fn drop(&mut self) {
            (0..READS).for_each(|_| drop(self.0.read()));
        }
    }
    let next = |_: &RwLock<()>| ();
    beside_a_reader(next, |lock, ran| {
        let unwinds = || {
            let _reads = Reads(lock);
            panic!("it reads as it unwinds");
        };
        assert!(panics(unwinds));
        assert!(!ran.load(SeqCst), "it was switched away");
        // One that does not unwind is.
        drop(Reads(lock));
        assert!(ran.load(SeqCst), "it keeps the writer from coming");
    });
}

/// One that has let others come, and then has to queue, has not queued before: another reader has, in the meantime, and is served first.
#[test]
fn who_lets_others_come_gets_no_place_before_those_that_queue() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let by_next = order.clone();
    let next = move |lock: &RwLock<()>| {
        let _held = lock.read();
        by_next.lock().push("who queued first");
    };
    beside_a_reader(next, |lock, ran| {
        let mut held = lock.read();
        for _ in 0..READS {
            if ran.load(SeqCst) {
                break;
            }
            drop(held);
            held = lock.read();
        }
        order.lock().push("who let it come");
        drop(held);
        assert!(ran.load(SeqCst), "it keeps the writer from coming");
        assert_eq!(*order.lock(), ["who queued first", "who let it come"]);
    });
}

/// Two readers wait for a writer, one on a worker that then does something else, one on an idle one: the latter reads as soon as the writer has left, though nobody else comes to the lock.
#[test]
fn a_reader_does_not_wait_for_another_whose_worker_is_held() {
    let one_worker = || sinew::Runtime::builder().workers(1).build().unwrap();
    let (busy, idle) = (one_worker(), one_worker());
    let lock = Arc::new(RwLock::new(()));
    // Held for too long it is handed over to both, which is no test of this. So those who are to queue are started before it is locked.
    for _ in 0..100 {
        let (gate, arrived, queues) = (Gate::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let reader = |runtime: &sinew::Runtime, turn: usize, beside: Box<dyn FnOnce() + Send>| {
            let (lock, arrived, queues) = (lock.clone(), arrived.clone(), queues.clone());
            runtime.spawn(move || {
                arrived.fetch_add(1, SeqCst);
                while queues.load(SeqCst) < turn {
                    std::hint::spin_loop();
                }
                // It runs when this one waits.
                spawn(beside);
                drop(lock.read());
            })
        };
        let held_by = gate.clone();
        let held = reader(&busy, 1, Box::new(move || held_by.hold()));
        let waits = Arc::new(AtomicBool::new(false));
        let tells = waits.clone();
        let free = reader(&idle, 2, Box::new(move || tells.store(true, SeqCst)));
        poll_until("both", || arrived.load(SeqCst) == 2);
        let writer = lock.write();
        queues.store(1, SeqCst);
        poll_until("the worker to be held", || gate.held() == 1);
        queues.store(2, SeqCst);
        poll_until("the other to wait", || waits.load(SeqCst));
        drop(writer);
        poll_until("the other to read", || free.is_finished());
        free.join().unwrap();
        gate.open();
        held.join().unwrap();
    }
}

/// One that reads may read again while no writer waits, also if another reader has been on its way for longer than a turn: it would wait for itself.
#[test]
fn who_reads_already_waits_for_no_other_reader() {
    alone(|| {
        // Nobody else runs. Longer than a turn; and so long that one of another worker would be given up.
        for time in [20, 400].map(Duration::from_micros) {
            let lock = Arc::new(RwLock::new(()));
            let held = lock.write();
            let (arrived, other) = (Arc::new(AtomicBool::new(false)), lock.clone());
            let reader = {
                let arrived = arrived.clone();
                spawn(move || {
                    arrived.store(true, SeqCst);
                    drop(other.read());
                })
            };
            until(|| arrived.load(SeqCst));
            drop(held);
            let first = lock.read();
            compute_for(time);
            // More than may overtake one before the clock is looked at.
            let again: Vec<_> = (0..100).map(|_| lock.read()).collect();
            drop((first, again));
            reader.join().unwrap();
        }
    });
}

/// One that was woken has the lock in the end though another fiber of its worker locks and unlocks all the while, and never waits: by forms that would give up after a time, too.
#[test]
fn timed_forms_do_not_keep_others_from_a_lock() {
    const LONG: Duration = Duration::from_secs(60);
    fn waiter_comes(locks: impl Fn() -> bool, waits: impl FnOnce() + Send + 'static, lets_go: impl FnOnce()) {
        let had = Arc::new(AtomicBool::new(false));
        let tells = had.clone();
        let waiter = spawn(move || {
            waits();
            tells.store(true, SeqCst);
        });
        // It queues.
        sinew::yield_now();
        lets_go();
        let begun = Instant::now();
        while !had.load(SeqCst) {
            assert!(locks(), "it is free, or soon will be");
            assert!(begun.elapsed() < LONG, "kept from it for {LONG:?}");
        }
        waiter.join().unwrap();
    }
    sinew::Runtime::builder().workers(1).build().unwrap().run(|| {
        let mutex = Arc::new(sinew::sync::Mutex::new(()));
        let (held, waits) = (mutex.lock(), mutex.clone());
        waiter_comes(|| mutex.lock_timeout(LONG).is_some(), move || drop(waits.lock()), || drop(held));
        let lock = Arc::new(RwLock::new(()));
        let by_each: [&dyn Fn() -> bool; 2] = [&|| lock.write_timeout(LONG).is_some(), &|| lock.read_timeout(LONG).is_some()];
        for locks in by_each {
            let (held, waits) = (lock.write(), lock.clone());
            waiter_comes(locks, move || drop(waits.write()), || drop(held));
        }
    });
}

/// A reader waits and has lost its patience, but no writer has the lock or waits for it: nobody who tries to read is refused for the waiting one's sake, which can read as well.
///
/// It waits behind a writer that was told to try, and whose worker is held. So it comes to that: a writer leaves, for which another writer and two readers wait; the first reader is told to try, reads, and tells the other writer.
#[test]
fn who_tries_to_read_is_not_refused_because_readers_wait() {
    const TIMES: usize = 10;
    let one_worker = || sinew::Runtime::builder().workers(1).build().unwrap();
    let (busy, idle) = (one_worker(), one_worker());
    let lock = Arc::new(RwLock::new(()));
    let mut seen = 0;
    // Where the system is slow, one of them loses its patience too early and is handed the lock: which is no test of this, and tried again.
    for _ in 0..1_000 {
        let (gate, arrived, queues) = (Gate::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let arrive = |turn: usize| {
            let (arrived, queues) = (arrived.clone(), queues.clone());
            move || {
                arrived.fetch_add(1, SeqCst);
                while queues.load(SeqCst) < turn {
                    std::hint::spin_loop();
                }
            }
        };
        let (arrive_first, arrive_second) = (arrive(1), arrive(2));
        let (written, held_by) = (lock.clone(), gate.clone());
        let writer = busy.spawn(move || {
            arrive_first();
            // What is spawned runs when its parent waits.
            spawn(move || held_by.hold());
            drop(written.write());
        });
        let (read, waits) = (lock.clone(), Arc::new(AtomicBool::new(false)));
        let tells = waits.clone();
        let readers = idle.spawn(move || {
            arrive_second();
            let again = read.clone();
            let second = spawn(move || {
                spawn(move || tells.store(true, SeqCst));
                drop(again.read());
            });
            drop(read.read());
            second
        });
        poll_until("both", || arrived.load(SeqCst) == 2);
        let held = lock.write();
        queues.store(1, SeqCst);
        poll_until("the worker to be held", || gate.held() == 1);
        queues.store(2, SeqCst);
        poll_until("the readers to wait", || waits.load(SeqCst));
        drop(held);
        poll_until("the first reader, or the writer", || readers.is_finished() || lock.is_locked_exclusive());
        if !lock.is_locked_exclusive() {
            let second = readers.join().unwrap();
            // On a busy machine the writer's patience may be at its end by now: then it is given the lock, and this is tried again.
            if let Some(first_guard) = lock.try_read() {
                let end = Instant::now() + MILLI;
                poll_until("the end of the other's patience", || Instant::now() >= end);
                if !second.is_finished() && !lock.is_locked_exclusive() {
                    seen += 1;
                    assert!(lock.try_read().is_some(), "refused, though no writer has it or waits");
                }
                drop(first_guard);
                poll_until("the other, once it is free, or the writer", || second.is_finished() || lock.is_locked_exclusive());
            }
            gate.open();
            second.join().unwrap();
        } else {
            gate.open();
            readers.join().unwrap().join().unwrap();
        }
        writer.join().unwrap();
        if seen == TIMES {
            return;
        }
    }
    panic!("it came to that {seen} times of {TIMES}");
}

/// Readers that overlap so that the lock is never free of them: a writer gets in all the same.
#[test]
fn a_writer_is_not_starved_by_readers() {
    let lock = Arc::new(RwLock::new(false));
    let begun = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let (lock, begun) = (lock.clone(), begun.clone());
            spawn(move || {
                let mut guard = lock.read();
                begun.fetch_add(1, SeqCst);
                while !*guard {
                    // The next reader is let in before this one leaves, unless a writer waits.
                    yield_now();
                    let next = lock.try_read();
                    drop(guard);
                    guard = next.unwrap_or_else(|| lock.read());
                }
            })
        })
        .collect();
    until(|| begun.load(SeqCst) == 4);
    *lock.write() = true;
    readers.into_iter().for_each(|r| r.join().unwrap());
}

/// Writers that hand the lock to one another: a reader gets in all the same.
#[test]
fn a_reader_is_not_starved_by_writers() {
    let lock = Arc::new(RwLock::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let (lock, over) = (lock.clone(), over.clone());
            spawn(move || {
                while !over.load(SeqCst) {
                    let mut value = lock.write();
                    *value += 1;
                    yield_now();
                }
            })
        })
        .collect();
    for on in On::BOTH {
        let lock = lock.clone();
        on.start(move || (0..rounds(1_000)).for_each(|_| drop(lock.read())))();
    }
    over.store(true, SeqCst);
    writers.into_iter().for_each(|w| w.join().unwrap());
}

/// bthread's "failed write does not leak": a writer that gives up lets the readers behind it in, and leaves the lock as it was.
#[test]
fn a_writer_that_gives_up_lets_the_readers_behind_it_in() {
    alone(|| {
        let lock = Arc::new(RwLock::new(()));
        let read = lock.read();
        let arrived = Arc::new(AtomicUsize::new(0));
        let writer = {
            let (lock, arrived) = (lock.clone(), arrived.clone());
            spawn(move || {
                arrived.fetch_add(1, SeqCst);
                lock.write_timeout(20 * MILLI).is_none()
            })
        };
        until(|| arrived.load(SeqCst) == 1);
        exhaust_patience(&lock);
        let reader = {
            let lock = lock.clone();
            spawn(move || drop(lock.read()))
        };
        reader.join().unwrap();
        assert!(writer.join().unwrap());
        assert!(lock.try_read().is_some() && lock.try_write().is_none());
        drop(read);
        assert!(lock.try_write().is_some());
    });
}

#[test]
fn a_writer_becomes_a_reader_and_lets_others_in() {
    alone(|| {
        let lock = Arc::new(RwLock::new(1));
        let mut write = lock.write();
        let arrived = Arc::new(AtomicUsize::new(0));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (lock, arrived) = (lock.clone(), arrived.clone());
                spawn(move || {
                    arrived.fetch_add(1, SeqCst);
                    *lock.read()
                })
            })
            .collect();
        until(|| arrived.load(SeqCst) == 3);
        *write = 2;
        let read = RwLockWriteGuard::downgrade(write);
        assert!(readers.into_iter().all(|r| r.join().unwrap() == 2));
        assert!(lock.is_locked() && !lock.is_locked_exclusive());
        assert_eq!(*read, 2);
    });
}

#[test]
fn a_rwlock_has_parking_lot_s_guards_and_is_not_poisoned() {
    static STATIC: RwLock<(u8, u8)> = RwLock::new((1, 2));
    let part = RwLockReadGuard::map(STATIC.read(), |pair| &pair.1);
    assert_eq!(*part, 2);
    assert!(STATIC.try_write().is_none());
    drop(part);
    *RwLockWriteGuard::map(STATIC.write(), |pair| &mut pair.0) = 7;
    let fiber = spawn(|| {
        let mut guard = STATIC.write();
        guard.1 = 8;
        panic!("expected by the test");
    });
    assert!(fiber.join().is_err());
    assert_eq!(*STATIC.read(), (7, 8));
    let mut lock = RwLock::from(Arc::new(3));
    *Arc::get_mut(lock.get_mut()).unwrap() += 1;
    assert_eq!(format!("{lock:?}"), "RwLock { data: 4 }");
    let value = lock.read().clone();
    assert_eq!((Arc::strong_count(&value), *lock.into_inner()), (2, 4));
    assert_eq!(Arc::strong_count(&value), 1);
}

/// An unlock that is fair hands the lock over at once: so it is locked when that returns, by one that runs later.
#[test]
fn a_fair_unlock_of_a_rwlock_hands_it_over() {
    alone(|| {
        let (lock, arrived) = (Arc::new(RwLock::new(0)), Arc::new(AtomicUsize::new(0)));
        let queue = |write: bool| {
            let before = arrived.load(SeqCst);
            let fiber = spawn({
                let (lock, arrived) = (lock.clone(), arrived.clone());
                move || {
                    arrived.fetch_add(1, SeqCst);
                    if write { *lock.write() += 1 } else { drop(lock.read()) }
                }
            });
            until(|| arrived.load(SeqCst) > before);
            fiber
        };
        let held = lock.read();
        let writer = queue(true);
        RwLockReadGuard::unlock_fair(held);
        assert!(lock.is_locked_exclusive(), "the writer has it");
        writer.join().unwrap();
        let held = lock.write();
        let readers = [queue(false), queue(false)];
        RwLockWriteGuard::unlock_fair(held);
        assert!(lock.is_locked() && !lock.is_locked_exclusive(), "the readers have it");
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        let mut held = lock.write();
        RwLockWriteGuard::bump(&mut held);
        let writer = queue(true);
        RwLockWriteGuard::bump(&mut held);
        assert_eq!(*held, 2, "the writer had its turn");
        writer.join().unwrap();
        drop(held);
        let mut held = lock.read();
        RwLockReadGuard::bump(&mut held);
        let writer = queue(true);
        RwLockReadGuard::bump(&mut held);
        assert_eq!(*held, 3);
        writer.join().unwrap();
    });
}

/// A bump that must not wait panics before it has unlocked: else the guard, which is dropped by the panic, would unlock what another has.
#[test]
fn a_bump_where_it_must_not_suspend_leaves_the_lock_locked() {
    alone(|| {
        let locks: Arc<(Mutex<()>, RwLock<()>)> = Arc::default();
        let arrived = Arc::new(AtomicUsize::new(0));
        let (mut one, mut two) = (locks.0.lock(), locks.1.write());
        let waiters = [true, false].map(|first| {
            let (locks, arrived) = (locks.clone(), arrived.clone());
            spawn(move || {
                arrived.fetch_add(1, SeqCst);
                if first { drop(locks.0.lock()) } else { drop(locks.1.write()) }
            })
        });
        until(|| arrived.load(SeqCst) == 2);
        no_suspend(|| {
            assert!(panics(|| MutexGuard::bump(&mut one)) && locks.0.is_locked());
            assert!(panics(|| RwLockWriteGuard::bump(&mut two)) && locks.1.is_locked_exclusive());
        });
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        drop((one, two));
        let mut shared = locks.1.read();
        no_suspend(|| RwLockReadGuard::bump(&mut shared));
        drop(shared);
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

/// The raw locks serve lock_api's own types, timed forms included.
#[test]
fn the_raw_locks_are_lock_api_s() {
    type Foreign<T> = (lock_api::Mutex<sinew::sync::RawMutex, T>, lock_api::RwLock<sinew::sync::RawRwLock, T>);
    let locks: Foreign<u32> = Default::default();
    let (past, soon) = (std::time::Instant::now(), || std::time::Instant::now() + MILLI);
    let held = (locks.0.try_lock_for(Duration::MAX).unwrap(), locks.1.try_write_until(past).unwrap());
    assert!(locks.0.try_lock_until(soon()).is_none() && locks.0.try_lock_for(Duration::ZERO).is_none());
    assert!(locks.1.try_read_until(soon()).is_none() && locks.1.try_write_for(MILLI).is_none());
    drop(held);
    let _both = (locks.1.try_read_for(MILLI).unwrap(), locks.1.try_read_until(past).unwrap());
    assert!(locks.1.try_write_until(past).is_none());
}

/// One unlocks, the next has the lock and ends it at once, while the first may still be in its call.
#[test]
fn a_rwlock_may_be_freed_by_its_next_owner() {
    for round in 0..rounds(40_000) {
        let lock = Mortal::new(RwLock::new(0));
        let parts: Vec<_> = (0..2)
            .map(|part| {
                let on = if round % 8 == part { On::Thread } else { On::Fiber };
                on.start(move || {
                    // SAFETY: the second one that has had the lock ends it, when the first is done with it.
                    unsafe {
                        let mut count = lock.get().write();
                        *count += 1;
                        let last = *count == 2;
                        if round % 3 == 0 {
                            drop(RwLockWriteGuard::downgrade(count));
                        } else {
                            drop(count);
                        }
                        if last {
                            lock.end();
                        }
                    }
                })
            })
            .collect();
        parts.into_iter().for_each(|part| part());
        // SAFETY: both have returned.
        unsafe { lock.check() };
    }
}

/// A writer unlocks, a reader that comes finds what was written and ends the lock at once, while the writer may still be in its call.
#[test]
fn a_rwlock_may_be_freed_by_a_reader() {
    for _ in 0..rounds(200_000) {
        let lock = Mortal::new(RwLock::new(false));
        let writer = On::Fiber.start(move || {
            // SAFETY: the reader does not end it before this has unlocked it.
            *unsafe { lock.get() }.write() = true;
        });
        // SAFETY: it is alive until it is ended here, when the writer has unlocked it.
        unsafe {
            while !*lock.get().read() {
                std::hint::spin_loop();
            }
            lock.end();
        }
        writer();
        // SAFETY: both have returned.
        unsafe { lock.check() };
    }
}
