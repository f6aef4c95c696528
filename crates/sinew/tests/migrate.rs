//! Fibers that may move from worker to worker: all that fibers wait for, in both queue kinds, on one to four workers; and once more with `SINEW_SHAKE=1`, which moves each of them at every chance.

mod common;

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use common::one_place::Alone;
use common::{Gate, is_child, pair, panics, poll_until, rounds, until};
use sinew::chan::{Receiver, Sender, bounded, unbounded};
use sinew::net::unix::UnixStream;
use sinew::sync::{Condvar, Mutex, RwLock, Semaphore};
use sinew::{Builder, Group, Io, Launch, Queue, Runtime, Spin, select};

const QUEUES: [Queue; 2] = [Queue::Shared, Queue::Stealing];
const MICRO: Duration = Duration::from_micros(1);
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);
/// How long a shutdown may take on a busy machine.
const GRACE: Duration = Duration::from_secs(60);

fn described(workers: usize, queue: Queue) -> sinew::RuntimeBuilder {
    // SAFETY: the fibers of these tests keep nothing of a thread across a suspension; what they ask of it they ask by calls that are not inlined.
    // No spares: those who are held are to be relieved by the workers that there are. (Spares: `everywhere`, and `spares.rs`.)
    unsafe { Runtime::builder().workers(workers).spare_workers(0).queue(queue).migrate_started_fibers() }
}

/// A runtime whose fibers may move.
fn movers(workers: usize, queue: Queue) -> Runtime {
    described(workers, queue).build().unwrap()
}

/// Runs `f` in a fiber that may move: in each queue kind, on one to four workers, with as many spares less one. All must have ended when the runtime does.
fn everywhere(f: impl Fn() + Send + Sync) {
    for queue in QUEUES {
        for workers in 1..=4 {
            let runtime = described(workers, queue).spare_workers(workers - 1).build().unwrap();
            runtime.run(&f);
            end(runtime);
        }
    }
}

fn end(runtime: Runtime) {
    runtime.shutdown_timeout(GRACE).unwrap_or_else(|left| panic!("fibers were left: {left:?}"));
}

/// The thread that runs the caller. Not inlined: one that was asked before a move must not answer after it.
#[inline(never)]
fn thread() -> ThreadId {
    std::hint::black_box(std::thread::current().id())
}

/// Goes on on another worker; there must be two. A fiber that is dispatched holds this one until that is done.
fn move_on() {
    let goes_on = Arc::new(AtomicBool::new(false));
    let holds = {
        let goes_on = goes_on.clone();
        move || {
            while !goes_on.load(SeqCst) {
                std::thread::yield_now();
            }
        }
    };
    let before = thread();
    let holder = Builder::new().launch(Launch::Dispatch).spawn(holds).unwrap();
    let after = thread();
    goes_on.store(true, SeqCst);
    holder.join().unwrap();
    assert_ne!(before, after, "the worker is held, and its fiber went on there");
}

/// A small generator, so that each fiber goes its own way.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Claim: everything here holds with fibers that are moved at every chance, too. By running this program again so.
#[test]
fn all_of_it_holds_for_fibers_that_are_shaken() {
    const SELF: &str = "all_of_it_holds_for_fibers_that_are_shaken";
    if std::env::var_os("SINEW_SHAKE").is_some() {
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--skip", SELF]).env("SINEW_SHAKE", "1").output().unwrap();
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}

/// Claim: a shaken fiber really goes to the next worker at each suspension, a yield too.
#[test]
fn a_shaken_fiber_moves_at_every_suspension() {
    const SELF: &str = "a_shaken_fiber_moves_at_every_suspension";
    if !is_child(SELF) {
        let output = common::in_child(SELF, &[("SINEW_SHAKE", "1")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    for queue in QUEUES {
        movers(3, queue).run(|| {
            for _ in 0..100 {
                let before = thread();
                sinew::yield_now();
                let between = thread();
                assert_ne!(before, between, "{queue:?}: a yield");
                let me = sinew::current();
                let waker = std::thread::spawn(move || me.unpark());
                let (_, waits) = count_waits(sinew::park);
                assert!(waits == 0 || thread() != between, "{queue:?}: a park that a thread ended");
                waker.join().unwrap();
            }
        });
    }
}

/// Calls `f`; how often the fiber was suspended meanwhile, too.
fn count_waits<T>(f: impl FnOnce() -> T) -> (T, usize) {
    WAITS.with(|waits| {
        if waits.get().is_none() {
            sinew::on_suspend(|| WAITS.with(|waits| waits.set(waits.get().map(|n| n + 1))));
        }
        waits.set(Some(0));
    });
    let value = f();
    (value, WAITS.with(|waits| waits.get().unwrap()))
}

sinew::fiber_local! {
    static WAITS: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Claim: also two that wake each other move, on two workers, at each wait; in whatever way they are woken.
#[test]
fn a_shaken_pair_that_talks_moves() {
    for queue in QUEUES {
        let runtime = described(2, queue).shake(true).build().unwrap();
        let (ping, pong) = (bounded::<usize>(0), bounded::<usize>(0));
        // What it does, and how often it waited for that: each wait moves it.
        fn moving<T>(queue: Queue, f: impl FnOnce() -> T) -> (T, usize) {
            let before = thread();
            let (done, waits) = count_waits(f);
            assert!(waits % 2 == 0 || thread() != before, "{queue:?}: {waits} waits");
            (done, waits)
        }
        let send = move |sender: &Sender<usize>, n| moving(queue, || sender.send(n).unwrap()).1;
        let receive = move |receiver: &Receiver<usize>| moving(queue, || receiver.recv().unwrap());
        let echo = runtime.spawn(move || {
            let answer = |_| {
                let (n, waits) = receive(&ping.1);
                waits + send(&pong.0, n)
            };
            (0..100).map(answer).sum::<usize>()
        });
        let asker = runtime.spawn(move || {
            let talk = |n| {
                let sent = send(&ping.0, n);
                let (got, waits) = receive(&pong.1);
                assert_eq!(got, n);
                sent + waits
            };
            (0..100).map(talk).sum::<usize>()
        });
        // Where there is no place for a message one of the two waits for the other.
        let waits = asker.join().unwrap() + echo.join().unwrap();
        assert_ne!(waits, 0, "{queue:?}: no wait at all");
        end(runtime);
    }
}

#[test]
fn a_started_fiber_is_taken_over_by_a_free_worker() {
    for queue in QUEUES {
        movers(2, queue).run(|| (0..100).for_each(|_| move_on()));
    }
}

#[test]
fn parks_channels_and_sleeps_work_for_fibers_that_move() {
    for queue in QUEUES {
        let runtime = movers(2, queue);
        runtime.run(|| {
            let (there, here) = bounded(1);
            let (back, again) = bounded(1);
            let echo = sinew::spawn(move || here.iter().for_each(|n: u32| back.send(n + 1).unwrap()));
            for n in 0..4_000 {
                there.send(n).unwrap();
                assert_eq!(again.recv().unwrap(), n + 1);
                if n % 200 == 0 {
                    sinew::sleep(Duration::from_micros(50));
                }
            }
            drop(there);
            echo.join().unwrap();
        });
    }
}

/// Claim: a fiber that ends does not begin another anew that has started already and waits in a queue: of those that a worker takes from the group's queue some have run, some have not.
#[test]
fn fibers_that_have_run_and_fibers_that_have_not_share_a_queue() {
    everywhere(|| {
        let ended = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..500usize)
            .map(|i| {
                let ended = ended.clone();
                sinew::spawn(move || {
                    let begun = Cell::new(0);
                    begun.set(begun.get() + 1);
                    for _ in 0..i % 5 {
                        sinew::yield_now();
                    }
                    assert_eq!(begun.get(), 1);
                    ended.fetch_add(1, SeqCst);
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert_eq!(ended.load(SeqCst), 500);
    });
}

/// What the fibers of a flock share.
struct Flock {
    mutex: Mutex<u64>,
    changed: Condvar,
    words: RwLock<u64>,
    permits: Semaphore,
    mail: (Sender<u64>, Receiver<u64>),
}

/// Claim: every kind of wait ends, for fibers that are never on two workers at once, and counts add up.
#[test]
fn every_kind_of_wait_ends_and_no_fiber_is_on_two_workers_at_once() {
    const FIBERS: u64 = 40;
    let steps = rounds(500).max(60) as u64;
    everywhere(|| {
        let (sender, receiver) = unbounded();
        let flock = Arc::new(Flock {
            mutex: Mutex::new(0),
            changed: Condvar::new(),
            words: RwLock::new(0),
            permits: Semaphore::new(3),
            mail: (sender, receiver),
        });
        let fibers: Vec<_> = (0..FIBERS)
            .map(|seed| {
                let flock = flock.clone();
                sinew::spawn(move || {
                    let (alone, mut dice) = (Alone::default(), Dice(seed));
                    alone.begin();
                    (0..steps).map(|_| wait_somehow(&flock, &alone, &mut dice)).sum::<u64>()
                })
            })
            .collect();
        let added: u64 = fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum();
        assert_eq!(*flock.mutex.lock(), added, "increments under the mutex were lost");
        assert!(flock.mail.1.try_recv().is_err(), "a message is left");
        assert_eq!(flock.permits.available(), 3, "permits were lost");
    });
}

/// One wait; how much the mutex' count grew by it.
fn wait_somehow(flock: &Arc<Flock>, alone: &Alone, dice: &mut Dice) -> u64 {
    match dice.roll(14) {
        0 | 1 => alone.out(sinew::yield_now),
        2 => {
            let me = sinew::current();
            let waker = alone.out(|| sinew::spawn(move || me.unpark()));
            alone.out(sinew::park);
            alone.out(|| waker.join().unwrap());
        }
        3 => alone.out(|| sinew::sleep(MICRO * dice.roll(30) as u32)),
        4 => alone.out(|| sinew::park_timeout(MICRO * dice.roll(30) as u32)),
        5 => {
            let mut count = alone.out(|| flock.mutex.lock());
            alone.out(sinew::yield_now);
            *count += 1;
            flock.changed.notify_one();
            return 1;
        }
        6 => {
            let mut count = alone.out(|| flock.mutex.lock());
            let before = *count;
            alone.out(|| flock.changed.wait_timeout(&mut count, MICRO * 20));
            assert!(*count >= before);
        }
        7 => alone.out(|| *flock.words.write() += 1),
        8 => {
            let words = alone.out(|| flock.words.read());
            alone.out(sinew::yield_now);
            std::hint::black_box(*words);
        }
        9 => {
            let permit = alone.out(|| flock.permits.acquire());
            alone.out(sinew::yield_now);
            drop(permit);
        }
        10 => {
            flock.mail.0.send(1).unwrap();
            assert_eq!(alone.out(|| flock.mail.1.recv()), Ok(1));
        }
        11 => {
            let (quick, late) = (bounded(0), bounded::<u64>(0));
            let sender = quick.0.clone();
            let other = sinew::spawn(move || sender.send(7).unwrap());
            let got = alone.out(|| {
                select! {
                    recv(quick.1) -> got => got.unwrap(),
                    recv(late.1) -> got => got.unwrap(),
                }
            });
            assert_eq!(got, 7);
            alone.out(|| other.join().unwrap());
        }
        12 => {
            let mut parts = [0u64; 3];
            alone.out(|| {
                sinew::scope(|s| {
                    for part in &mut parts {
                        s.spawn(move || {
                            sinew::yield_now();
                            *part = 1;
                        });
                    }
                })
            });
            assert_eq!(parts, [1; 3]);
        }
        _ => {
            let waits = || sinew::timeout(MICRO * 10, || sinew::park());
            let _ = alone.out(waits);
        }
    }
    0
}

#[test]
fn jobs_of_the_pool_and_futures_bring_fibers_back_that_move() {
    everywhere(|| {
        let fibers: Vec<_> = (0..20u32)
            .map(|i| {
                sinew::spawn(move || {
                    let alone = Alone::default();
                    alone.begin();
                    for round in 0..20 {
                        assert_eq!(alone.out(|| sinew::blocking(move || i + round)), i + round);
                        let other = sinew::spawn(move || i);
                        assert_eq!(alone.out(|| sinew::block_on(other).unwrap()), i);
                        let never = alone.out(|| sinew::timeout(MICRO, || sinew::try_block_on(std::future::pending::<()>())));
                        assert!(never.is_err());
                    }
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        let caught = catch_unwind(|| sinew::blocking(|| panic!("as planned")));
        assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "as planned");
    });
}

sinew::fiber_local! {
    static MINE: RefCell<Vec<u32>> = RefCell::new(Vec::new());
}

#[test]
fn fiber_locals_go_with_their_fiber() {
    for queue in QUEUES {
        movers(2, queue).run(|| {
            for n in 0..50 {
                MINE.with(|mine| mine.borrow_mut().push(n));
                move_on();
                MINE.with(|mine| assert_eq!(mine.borrow().len(), n as usize + 1));
            }
            let others = sinew::spawn(|| MINE.with(|mine| mine.borrow().len()));
            assert_eq!(others.join().unwrap(), 0);
        });
    }
}

#[test]
fn hooks_run_where_the_fiber_was_and_where_it_goes_on() {
    for queue in QUEUES {
        movers(2, queue).run(|| {
            let log: Arc<std::sync::Mutex<Vec<(char, ThreadId)>>> = Arc::default();
            let (first, second) = (log.clone(), log.clone());
            sinew::on_suspend(move || first.lock().unwrap().push(('s', thread())));
            sinew::on_resume(move || second.lock().unwrap().push(('r', thread())));
            for _ in 0..20 {
                log.lock().unwrap().clear();
                let before = thread();
                move_on();
                let seen = log.lock().unwrap().clone();
                assert_eq!(seen[0], ('s', before), "{seen:?}");
                assert_eq!(seen[1].0, 'r');
                assert_ne!(seen[1].1, before, "the hook ran where the fiber was before");
                assert!(seen.chunks(2).all(|pair| pair[0].0 == 's' && pair[1].0 == 'r'), "{seen:?}");
            }
        });
    }
}

#[test]
fn a_region_in_which_nothing_may_suspend_does_not_stay_behind() {
    for queue in QUEUES {
        movers(2, queue).run(|| {
            for _ in 0..20 {
                assert!(panics(|| sinew::no_suspend(sinew::yield_now)), "a yield in a region");
                move_on();
                sinew::no_suspend(|| assert!(panics(sinew::park), "a park in a region"));
                // Others of this worker are in no region.
                sinew::spawn(sinew::yield_now).join().unwrap();
                move_on();
            }
        });
    }
}

/// Suspends in its drop, in as many ways as there are.
struct WaitsInDrop;

impl Drop for WaitsInDrop {
    fn drop(&mut self) {
        let before = thread();
        for _ in 0..20 {
            assert!(std::thread::panicking());
            sinew::yield_now();
            let me = sinew::current();
            let waker = sinew::spawn(move || me.unpark());
            sinew::park();
            waker.join().unwrap();
            sinew::sleep(MICRO);
            assert_eq!(thread(), before, "a fiber that unwinds has moved");
            assert!(std::thread::panicking());
        }
    }
}

#[test]
fn a_fiber_that_unwinds_does_not_move() {
    everywhere(|| {
        let fibers: Vec<_> = (0..4)
            .map(|_| {
                sinew::spawn(|| {
                    sinew::yield_now();
                    let caught = catch_unwind(|| {
                        let _waits = WaitsInDrop;
                        resume_unwind(Box::new("as planned"));
                    });
                    assert!(caught.is_err());
                    // It may move again; on a worker where others unwind it says so.
                    sinew::yield_now();
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert!(!std::thread::panicking(), "all have unwound");
    });
}

#[test]
fn a_panic_is_caught_around_waits_on_several_workers() {
    for queue in QUEUES {
        movers(2, queue).run(|| {
            for n in 0..20u32 {
                let caught = catch_unwind(|| {
                    move_on();
                    resume_unwind(Box::new(n));
                });
                assert_eq!(*caught.unwrap_err().downcast::<u32>().unwrap(), n);
                assert!(!std::thread::panicking());
                move_on();
            }
            let fiber = sinew::spawn(|| {
                move_on();
                resume_unwind(Box::new(7u32));
            });
            assert_eq!(*fiber.join().unwrap_err().downcast::<u32>().unwrap(), 7);
        });
    }
}

#[test]
fn a_guard_keeps_its_fiber_until_the_last_of_several_is_dropped() {
    everywhere(|| {
        let fibers: Vec<_> = (0..10)
            .map(|_| {
                sinew::spawn(|| {
                    let before = thread();
                    let (first, second, third) = (sinew::pin(), sinew::pin(), sinew::pin());
                    let same = || {
                        for _ in 0..10 {
                            sinew::yield_now();
                            sinew::sleep(MICRO);
                            let me = sinew::current();
                            let waker = sinew::spawn(move || me.unpark());
                            sinew::park();
                            waker.join().unwrap();
                            assert_eq!(thread(), before, "a guard is alive, and its fiber has moved");
                        }
                    };
                    same();
                    drop(second);
                    same();
                    drop(first);
                    same();
                    drop(third);
                    sinew::yield_now();
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
}

/// Claim: I/O and a deadline, which use their worker while they last, do not let go of a fiber that a guard keeps.
#[test]
fn a_guard_outlives_the_waits_that_keep_a_fiber_too() {
    for io in [Io::Uring, Io::Epoll] {
        for queue in QUEUES {
            described(3, queue).io(io).build().unwrap().run(|| {
                let (mut near, mut far) = pair();
                let echo = sinew::spawn(move || {
                    let mut byte = [0];
                    while far.read(&mut byte).unwrap() == 1 {
                        far.write_all(&byte).unwrap();
                    }
                });
                let _here = sinew::pin();
                let before = thread();
                for n in 0..50 {
                    near.write_all(&[n]).unwrap();
                    let mut byte = [0];
                    near.read_exact(&mut byte).unwrap();
                    assert_eq!(byte, [n]);
                    sinew::yield_now();
                    sinew::sleep(MICRO);
                    sinew::yield_now();
                    assert_eq!(thread(), before);
                }
                drop(near);
                echo.join().unwrap();
            });
        }
    }
}

#[test]
fn settled_fibers_stay_beside_fibers_that_move() {
    for queue in QUEUES {
        let runtime = Runtime::builder().workers(3).queue(queue).build().unwrap();
        runtime.run(|| {
            let stop = Arc::new(AtomicBool::new(false));
            let (ping, pong) = (bounded::<u64>(1), bounded::<u64>(1));
            // SAFETY: it keeps nothing of a thread across a suspension.
            let mover = unsafe {
                Builder::new().spawn_migratable(move || {
                    let alone = Alone::default();
                    alone.begin();
                    for n in 0..500 {
                        assert_eq!(alone.out(|| ping.1.recv()), Ok(n));
                        alone.out(|| pong.0.send(n)).unwrap();
                        if n % 50 == 0 {
                            move_on();
                        }
                    }
                })
            };
            let settled: Vec<_> = (0..6)
                .map(|_| {
                    let stop = stop.clone();
                    sinew::spawn(move || {
                        let home = thread();
                        while !stop.load(SeqCst) {
                            sinew::yield_now();
                            assert_eq!(thread(), home, "a settled fiber has moved");
                            sinew::sleep(MICRO);
                            assert_eq!(thread(), home, "a settled fiber has moved");
                        }
                    })
                })
                .collect();
            let home = thread();
            for n in 0..500 {
                ping.0.send(n).unwrap();
                assert_eq!(pong.1.recv(), Ok(n));
                assert_eq!(thread(), home, "a settled fiber has moved");
            }
            stop.store(true, SeqCst);
            mover.unwrap().join().unwrap();
            settled.into_iter().for_each(|fiber| fiber.join().unwrap());
        });
        end(runtime);
    }
}

/// The group of the worker that runs the caller, by its thread's name.
#[inline(never)]
fn group_of_thread() -> String {
    let name = std::thread::current().name().unwrap().to_owned();
    name.split('.').next().unwrap().to_owned()
}

#[test]
fn a_pinned_fiber_that_may_move_does_not_leave_its_group() {
    for queue in QUEUES {
        let runtime = described(4, queue).group_size(2).steal_ratio(1).build().unwrap();
        runtime.run(|| {
            let away = Arc::new(AtomicUsize::new(0));
            let fibers: Vec<_> = (0..40)
                .map(|i| {
                    let (pinned, away) = (i % 2 == 0, away.clone());
                    let builder = Builder::new().group(Group::foreground(i % 4 / 2));
                    let body = move || {
                        let home = group_of_thread();
                        for _ in 0..100 {
                            sinew::yield_now();
                            let me = sinew::current();
                            let waker = sinew::spawn(move || me.unpark());
                            sinew::park();
                            waker.join().unwrap();
                            match group_of_thread() == home {
                                true => {}
                                false if pinned => panic!("a pinned fiber has left its group"),
                                false => _ = away.fetch_add(1, SeqCst),
                            }
                        }
                    };
                    (if pinned { builder.pinned() } else { builder }).spawn(body).unwrap()
                })
                .collect();
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        });
        end(runtime);
    }
}

#[test]
fn sockets_and_pipes_serve_fibers_that_move_on_both_drivers() {
    for io in [Io::Uring, Io::Epoll] {
        for queue in QUEUES {
            for workers in [1, 2, 4] {
                let runtime = described(workers, queue).io(io).build().unwrap();
                runtime.run(|| {
                    let clients: Vec<_> = (0..8u8).map(|i| sinew::spawn(move || talk(i))).collect();
                    let (mut reader, mut writer) = sinew::io::pipe().unwrap();
                    let source = sinew::spawn(move || {
                        for n in 0..200u8 {
                            writer.write_all(&[n; 700]).unwrap();
                            sinew::yield_now();
                        }
                    });
                    let mut all = Vec::new();
                    reader.read_to_end(&mut all).unwrap();
                    assert!(all.chunks(700).enumerate().all(|(n, part)| part == [n as u8; 700]) && all.len() == 140_000);
                    source.join().unwrap();
                    clients.into_iter().for_each(|client| client.join().unwrap());
                });
                end(runtime);
            }
        }
    }
}

/// Sends and gets back, with waits of other kinds between, time-outs among them.
fn talk(i: u8) {
    let (mut near, mut far) = pair();
    // Else most of the time is spent waiting for delayed acknowledgements.
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let echo = sinew::spawn(move || {
        let mut buf = [0; 512];
        loop {
            match far.read(&mut buf).unwrap() {
                0 => break,
                n => far.write_all(&buf[..n]).unwrap(),
            }
            sinew::yield_now();
        }
    });
    let alone = Alone::default();
    alone.begin();
    for round in 0..30usize {
        let sent = vec![i; 1 + round * 131 % 3000];
        alone.out(|| near.write_all(&sent)).unwrap();
        let mut got = vec![0; sent.len()];
        alone.out(|| near.read_exact(&mut got)).unwrap();
        assert_eq!(got, sent);
        alone.out(sinew::yield_now);
        if round % 10 == 0 {
            let silent = alone.out(|| sinew::timeout(MICRO * 50, || near.read(&mut [0])));
            assert!(silent.is_err(), "there was nothing to read");
        }
    }
    drop(near);
    alone.out(|| echo.join().unwrap());
}

/// Claim: a wake, a deadline and a cancel that come at once end a wait once, whoever wins, and the cancel stays.
#[test]
fn a_cancel_races_with_wakes_and_deadlines() {
    let races = rounds(1_000).max(200);
    everywhere(|| {
        let mut dice = Dice(7);
        for race in 0..races {
            let begun = Arc::new(AtomicBool::new(false));
            let waits = {
                let (begun, limit) = (begun.clone(), MICRO * dice.roll(20) as u32);
                move || {
                    let alone = Alone::default();
                    alone.begin();
                    begun.store(true, SeqCst);
                    match race % 3 {
                        0 => alone.out(|| sinew::park_timeout(limit)),
                        1 => alone.out(|| sinew::timeout(limit, sinew::park)).unwrap_or(()),
                        _ => alone.out(|| sinew::sleep(limit)),
                    }
                    while !alone.out(sinew::cancelled) {
                        alone.out(sinew::park);
                    }
                }
            };
            let fiber = sinew::spawn(waits);
            if dice.roll(2) == 0 {
                until(|| begun.load(SeqCst));
            }
            let (woken, cancelled) = (fiber.fiber().clone(), fiber.fiber().clone());
            let waker = sinew::spawn(move || woken.unpark());
            let canceller = sinew::spawn(move || cancelled.cancel());
            waker.join().unwrap();
            canceller.join().unwrap();
            fiber.join().unwrap();
        }
    });
}

/// What fibers of a runtime that ends wait for.
struct Ending {
    /// Those that are about to wait.
    begun: AtomicUsize,
    never: Receiver<()>,
    held: Mutex<()>,
}

impl Ending {
    fn wait_for_ever(&self, kind: usize) {
        let begin = || self.begun.fetch_add(1, SeqCst);
        let (never, others) = (&self.never, sinew::chan::never::<()>());
        match kind {
            0 => (begin(), sinew::park()).1,
            1 => (begin(), sinew::sleep(LONG)).1,
            2 => _ = (begin(), never.recv()),
            3 => {
                begin();
                select! {
                    recv(never) -> _ => {},
                    recv(others) -> _ => {},
                }
            }
            4 => _ = (begin(), sinew::timeout(LONG, sinew::park)),
            5 => {
                let (mut near, _far) = pair();
                begin();
                near.read(&mut [0]).unwrap_err();
            }
            6 => _ = (begin(), sinew::try_block_on(std::future::pending::<()>())),
            7 => sinew::scope(|s| {
                s.spawn(|| (begin(), sinew::park()));
                sinew::sleep(LONG);
            }),
            8 => sinew::run(|| (begin(), sinew::sleep(LONG)).1),
            9 => {
                begin();
                // Not cut short: whoever holds it is, and lets go.
                let _held = self.held.lock();
                sinew::park();
            }
            10 => {
                let _here = sinew::pin();
                begin();
                sinew::park();
            }
            _ => {
                begin();
                while !sinew::cancelled() {
                    sinew::yield_now();
                }
            }
        }
        // The child of `run` may be cancelled, and end, before its maker is.
        assert!(kind == 8 || sinew::cancelled(), "a wait of kind {kind} has ended");
    }
}

#[test]
fn a_shutdown_ends_fibers_that_wait_in_every_way() {
    const FIBERS: usize = 1_000;
    for io in [Io::Uring, Io::Epoll] {
        for queue in QUEUES {
            for workers in [1, 3] {
                let runtime = described(workers, queue).io(io).build().unwrap();
                let (_silent, never) = bounded::<()>(1);
                let ending = Arc::new(Ending { begun: AtomicUsize::new(0), never, held: Mutex::new(()) });
                let fibers: Vec<_> = (0..FIBERS)
                    .map(|i| {
                        let ending = ending.clone();
                        // Few that never stop to yield, and few with sockets.
                        let kind = match i % 50 {
                            0 => 11,
                            1 => 5,
                            _ => [0, 1, 2, 3, 4, 6, 7, 8, 9, 10][i % 10],
                        };
                        runtime.spawn(move || ending.wait_for_ever(kind))
                    })
                    .collect();
                until(|| ending.begun.load(SeqCst) == FIBERS);
                end(runtime);
                fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            }
        }
    }
}

/// Claim: who wakes fibers of a runtime that ends at that very moment touches nothing that is gone. The objects are another runtime's, the wakers plain threads.
#[test]
fn wakes_from_outside_race_with_the_end_of_a_runtime() {
    let races = rounds(150).max(40);
    let other = Runtime::builder().workers(1).build().unwrap();
    for race in 0..races {
        let runtime = movers(1 + race % 3, QUEUES[race % 2]);
        let (sender, receiver) = other.run(|| bounded::<u32>(1));
        let lock = Arc::new(Mutex::new(0u32));
        let begun = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..6)
            .map(|i| {
                let (receiver, lock, begun) = (receiver.clone(), lock.clone(), begun.clone());
                runtime.spawn(move || {
                    begun.fetch_add(1, SeqCst);
                    while !sinew::cancelled() {
                        match i % 3 {
                            0 => _ = receiver.recv(),
                            1 => sinew::park(),
                            _ => {
                                *lock.lock() += 1;
                                sinew::yield_now();
                            }
                        }
                    }
                })
            })
            .collect();
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !over.load(SeqCst) {
                    fibers.iter().for_each(|fiber| fiber.fiber().unpark());
                }
            });
            s.spawn(|| {
                while !over.load(SeqCst) {
                    let _ = sender.try_send(1);
                    drop(lock.lock());
                }
            });
            other.run(|| until(|| begun.load(SeqCst) == 6));
            match race % 2 {
                0 => drop(runtime),
                _ => end(runtime),
            }
            over.store(true, SeqCst);
        });
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    }
    end(other);
}

#[test]
fn a_hundred_thousand_fibers_that_may_move_are_woken_and_end() {
    let count = rounds(100_000).max(20_000);
    for queue in QUEUES {
        let runtime = described(2, queue).stack_size(16 * 1024).build().unwrap();
        let sum = runtime.run(|| {
            let waiting = Arc::new(AtomicUsize::new(0));
            let fibers: Vec<_> = (0..count as u64)
                .map(|i| {
                    let waiting = waiting.clone();
                    sinew::spawn(move || {
                        waiting.fetch_add(1, SeqCst);
                        sinew::park();
                        sinew::yield_now();
                        i
                    })
                })
                .collect();
            until(|| waiting.load(SeqCst) == count);
            fibers.iter().for_each(|fiber| fiber.fiber().unpark());
            fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum::<u64>()
        });
        assert_eq!(sum, (count as u64 - 1) * count as u64 / 2);
        end(runtime);
    }
}

/// Its clone, which a spawn calls, moves the spawner, once.
struct MovesInClone(u32, AtomicBool);

impl Clone for MovesInClone {
    fn clone(&self) -> Self {
        if self.1.swap(false, SeqCst) {
            move_on();
        }
        Self(self.0 + 1, AtomicBool::new(false))
    }
}

sinew::fiber_local! {
    #[inherit]
    static HEIRLOOM: RefCell<Option<MovesInClone>> = const { RefCell::new(None) };
}

/// Claim: a caller that has moved between its decision to wait and the wait leaves the worker that it is at, not the one where it decided: `run` clones what the child inherits.
#[test]
fn a_fiber_that_moves_while_it_makes_a_child_waits_where_it_is() {
    for queue in QUEUES {
        movers(2, queue).run(|| {
            for _ in 0..20 {
                HEIRLOOM.with(|heirloom| *heirloom.borrow_mut() = Some(MovesInClone(0, AtomicBool::new(true))));
                let seen = sinew::run(|| HEIRLOOM.with(|heirloom| heirloom.borrow().as_ref().map(|it| it.0)));
                HEIRLOOM.with(|heirloom| *heirloom.borrow_mut() = None);
                assert_eq!(seen, Some(1));
            }
        });
    }
}

/// Claim: fibers that are quietly queued, dispatched or spawned in batches may move too.
#[test]
fn every_launch_gives_fibers_that_move() {
    everywhere(|| {
        let total = Arc::new(AtomicU64::new(0));
        let body = |n: u64| {
            let total = total.clone();
            move || {
                sinew::yield_now();
                total.fetch_add(n, SeqCst);
                sinew::sleep(MICRO);
            }
        };
        for n in 0..20 {
            let quiet = Builder::new().quiet().spawn(body(n)).unwrap();
            let dispatched = Builder::new().launch(Launch::Dispatch).spawn(body(n)).unwrap();
            let batch = sinew::spawn_batch((0..30).map(|_| body(1)));
            sinew::flush();
            [quiet, dispatched].into_iter().chain(batch).for_each(|fiber| fiber.join().unwrap());
        }
        assert_eq!(total.load(SeqCst), 2 * 190 + 20 * 30);
    });
}

/// The fiber that was woken last waits in a slot of its worker, and nobody is woken to take it. If that worker is stuck, one that sleeps comes all the same.
#[test]
fn a_fiber_woken_by_one_that_blocks_its_thread_is_taken_by_a_sleeper() {
    for spin in [sinew::Spin::Never, sinew::Spin::Adaptive] {
        // A fiber that is shaken goes to the worker that is held, and stays there.
        let runtime = described(2, Queue::Stealing).spin(spin).shake(false).build().unwrap();
        for _ in 0..20 {
            runtime.run(|| {
                let ran = Arc::new(AtomicBool::new(false));
                let parked = {
                    let ran = ran.clone();
                    sinew::spawn(move || {
                        sinew::park();
                        ran.store(true, SeqCst);
                    })
                };
                // Until it waits, and the other worker has nothing to do.
                while !sinew::metrics().workers.iter().any(|worker| worker.sleeping) {
                    sinew::yield_now();
                }
                parked.fiber().unpark();
                while !ran.load(SeqCst) {
                    std::hint::spin_loop();
                }
                parked.join().unwrap();
            });
        }
    }
}

/// Claim: I/O of a fiber that may move does not wait for the worker that it waited at: while another fiber holds that one, whatever it does, the other worker goes on with it.
#[test]
fn io_does_not_wait_for_a_worker_that_is_held() {
    for io in [Io::Uring, Io::Epoll] {
        for queue in QUEUES {
            // A fiber that is shaken goes to the worker that is held, and stays there.
            let runtime = described(2, queue).io(io).shake(false).build().unwrap();
            runtime.run(|| {
                let got = Arc::new(AtomicUsize::new(0));
                let (mut nears, readers): (Vec<_>, Vec<_>) = (0..4)
                    .map(|_| {
                        let ((near, mut far), got) = (pair(), got.clone());
                        let reads = move || {
                            let mut byte = [0];
                            while far.read(&mut byte).unwrap() == 1 {
                                got.fetch_add(1, SeqCst);
                            }
                        };
                        (near, sinew::spawn(reads))
                    })
                    .collect();
                for n in 0..50 {
                    // This fiber holds its worker from the write on; those that read wait wherever they were last.
                    let near = n % nears.len();
                    nears[near].write_all(&[1]).unwrap();
                    poll_until("the other worker to read", || got.load(SeqCst) == n + 1);
                    (0..n % 3).for_each(|_| sinew::yield_now());
                }
                drop(nears);
                readers.into_iter().for_each(|reader| reader.join().unwrap());
            });
            end(runtime);
        }
    }
}

#[test]
fn ready_fibers_that_may_move_are_shown_where_they_wait() {
    let runtime = movers(1, Queue::Stealing);
    runtime.run(|| {
        let ready = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..3)
            .map(|_| {
                let ready = ready.clone();
                sinew::spawn(move || {
                    ready.fetch_add(1, SeqCst);
                    sinew::park();
                })
            })
            .collect();
        until(|| ready.load(SeqCst) == 3);
        fibers.iter().for_each(|fiber| fiber.fiber().unpark());
        // One is in the slot of the one woken last, the others in the queue.
        assert_eq!(sinew::metrics().workers[0].moving, 3);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert_eq!(sinew::metrics().workers[0].moving, 0);
    });
    end(runtime);
}

/// Claim: a parent goes on when the child that it joins has ended, and not behind all its other children, which the worker could run one after the other.
#[test]
fn a_woken_parent_does_not_wait_behind_unstarted_children() {
    let runtime = described(1, Queue::Stealing).shake(false).build().unwrap();
    let order = runtime.run(|| {
        let order = Arc::new(Mutex::new(Vec::new()));
        let child = |n| {
            let order = order.clone();
            sinew::spawn(move || order.lock().push(Some(n)))
        };
        let mut children: Vec<_> = (0..10).map(child).collect();
        children.pop().unwrap().join().unwrap();
        order.lock().push(None);
        children.into_iter().for_each(|child| child.join().unwrap());
        order.lock().clone()
    });
    let parent = order.iter().position(Option::is_none).unwrap();
    assert!(parent <= 3, "the parent goes on behind {parent} children: {order:?}");
    end(runtime);
}

/// Claim: a settled fiber that yields lets those run that may move: the one woken last, and one that waits in the queue after it.
#[test]
fn a_settled_fiber_yields_to_those_that_may_move() {
    let rounds = 100;
    let runtime = Runtime::builder().workers(1).shake(false).build().unwrap();
    runtime.run(|| {
        let mover = || {
            let runs = Arc::new(AtomicUsize::new(0));
            let counted = runs.clone();
            let counts = move || {
                for _ in 0..rounds {
                    sinew::park();
                    counted.fetch_add(1, SeqCst);
                }
            };
            // SAFETY: it keeps nothing of a thread.
            (unsafe { Builder::new().spawn_migratable(counts) }.unwrap(), runs)
        };
        let (first, last) = (mover(), mover());
        // Until both wait.
        (0..2).for_each(|_| sinew::yield_now());
        for round in 1..=rounds {
            first.0.fiber().unpark();
            last.0.fiber().unpark();
            sinew::yield_now();
            assert_eq!(last.1.load(SeqCst), round, "the one woken last");
            sinew::yield_now();
            assert_eq!(first.1.load(SeqCst), round, "the one in the queue");
        }
        [first, last].into_iter().for_each(|(fiber, _)| fiber.join().unwrap());
    });
    end(runtime);
}

/// Claim: nobody is woken to steal a fiber that its waker's worker is about to run. (One is, in a millisecond, to see that this does happen.)
#[test]
fn no_thief_is_woken_for_a_fiber_that_runs_next() {
    let rounds = 20_000;
    let runtime = described(2, Queue::Stealing).shake(false).build().unwrap();
    runtime.run(|| {
        let (ping, pong) = (bounded::<usize>(1), bounded::<usize>(1));
        let echo = sinew::spawn(move || ping.1.iter().for_each(|n| pong.0.send(n).unwrap()));
        let wakes = || {
            let metrics = sinew::metrics();
            metrics.wakes_by_sleeper + metrics.wakes_by_spinner + metrics.wakes_by_nobody
        };
        let before = wakes();
        for n in 0..rounds {
            ping.0.send(n).unwrap();
            assert_eq!(pong.1.recv(), Ok(n));
        }
        let after = wakes();
        assert!(after - before < rounds as u64 / 4, "{} wakes in {rounds} round trips", after - before);
        drop(ping.0);
        echo.join().unwrap();
    });
    end(runtime);
}

/// Claim: the same, to the last call. The other worker is held, so nobody is idle, and each call is in vain and counted: a pair that talks calls nobody, nor does one that yields.
#[test]
fn nobody_is_called_for_what_runs_next_where_it_is() {
    let runtime = described(2, Queue::Stealing).shake(false).build().unwrap();
    runtime.run(|| {
        let gate = Gate::default();
        let inside = gate.clone();
        let held = sinew::spawn(move || inside.hold());
        poll_until("the other worker to be held", || gate.held() == 1);
        let (ping, pong) = (bounded::<usize>(1), bounded::<usize>(1));
        let echo = sinew::spawn(move || ping.1.iter().for_each(|n| pong.0.send(n).unwrap()));
        let talk = |n| {
            ping.0.send(n).unwrap();
            assert_eq!(pong.1.recv(), Ok(n));
        };
        // Until the other one has begun.
        talk(0);
        let calls = || {
            let metrics = sinew::metrics();
            metrics.wakes_by_spinner + metrics.wakes_by_sleeper + metrics.wakes_by_nobody
        };
        let before = calls();
        (0..10_000).for_each(talk);
        assert_eq!(calls() - before, 0, "calls by a pair that talks");
        (0..10_000).for_each(|_| sinew::yield_now());
        assert_eq!(calls() - before, 0, "calls by a fiber that yields");
        gate.open();
        drop(ping.0);
        echo.join().unwrap();
        held.join().unwrap();
    });
    end(runtime);
}

/// The claim: a fiber that yields behind what was queued quietly is run by another worker while the first one runs that. The quiet one holds its worker until the other has gone on.
#[test]
fn a_fiber_that_yields_behind_a_quiet_one_is_run_by_an_idle_worker() {
    for (queue, pinned) in [(Queue::Shared, false), (Queue::Shared, true), (Queue::Stealing, false), (Queue::Stealing, true)] {
        let like = move || if pinned { Builder::new().pinned() } else { Builder::new() };
        let runtime = described(2, queue).spin(Spin::Never).build().unwrap();
        let maker = move || {
            poll_until("the other worker to sleep", || sinew::metrics().groups[0].sleeping.count_ones() == 1);
            let went_on = Arc::new(AtomicBool::new(false));
            let sees = went_on.clone();
            let hog = like().quiet().spawn(move || poll_until("the yield to end", || sees.load(SeqCst))).unwrap();
            sinew::yield_now();
            went_on.store(true, SeqCst);
            sinew::flush();
            hog.join().unwrap();
        };
        runtime.run(|| like().spawn(maker).unwrap().join().unwrap());
        end(runtime);
    }
}

/// The claim: who may move and dispatches is queued once the new fiber runs, and not before: behind one whose I/O has come, of which its worker learns when the maker has left its stack.
#[test]
fn a_maker_that_may_move_is_queued_once_its_dispatched_fiber_runs() {
    for queue in QUEUES {
        let runtime = movers(1, queue);
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let note = |what: &'static str| {
            let order = order.clone();
            move || order.lock().unwrap().push(what)
        };
        let (reader, child, maker) = (note("reader"), note("child"), note("maker"));
        runtime.run(move || {
            let makes = move || {
                let (mut writes, reads) = std::os::unix::net::UnixStream::pair().unwrap();
                let begun = Arc::new(AtomicBool::new(false));
                let reader = {
                    let (mut reads, begun) = (UnixStream::from(reads), begun.clone());
                    sinew::spawn(move || {
                        begun.store(true, SeqCst);
                        reads.read_exact(&mut [0]).unwrap();
                        reader();
                    })
                };
                until(|| begun.load(SeqCst));
                // It waits: there is one worker, which is held until it looks for I/O at the next chance.
                writes.write_all(&[1]).unwrap();
                let held = Instant::now();
                poll_until("the next look", || held.elapsed() > 10_000 * MICRO);
                let child = Builder::new().launch(Launch::Dispatch).spawn(child).unwrap();
                maker();
                child.join().unwrap();
                reader.join().unwrap();
            };
            sinew::spawn(makes).join().unwrap();
        });
        end(runtime);
        assert_eq!(*order.lock().unwrap(), ["child", "reader", "maker"], "{queue:?}");
    }
}
