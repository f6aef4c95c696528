//! Who looks after the I/O of fibers that may move (`event/roam.rs`): workers that poll, are held, watch, or sleep; and that nobody does so when nothing is to come.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream as Std;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{in_child, is_child, pair, poll_until};
use sinew::io::Interest;
use sinew::net::unix::UnixStream;
use sinew::{Builder, Group, Io, JoinHandle, Runtime, Spin};

const DRIVERS: [Io; 2] = [Io::Uring, Io::Epoll];
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);
/// How long a shutdown may take on a busy machine.
const GRACE: Duration = Duration::from_secs(60);

fn described(workers: usize, io: Io) -> sinew::RuntimeBuilder {
    // SAFETY: the fibers of these tests keep nothing of a thread across a suspension. One that is shaken goes to a worker that is held.
    // No spares: those who are held are to be relieved by the workers that there are. (Spares: `spares.rs`.)
    unsafe { Runtime::builder().workers(workers).spare_workers(0).io(io).shake(false).migrate_started_fibers() }
}

fn end(runtime: Runtime) {
    runtime.shutdown_timeout(GRACE).unwrap_or_else(|left| panic!("fibers were left: {left:?}"));
}

/// A fiber that reads bytes to the end and counts them, and where they are written.
fn reader(runtime: &Runtime) -> (Std, Arc<AtomicUsize>, JoinHandle<()>) {
    let (near, far) = Std::pair().unwrap();
    let mut far = UnixStream::from(far);
    let got = Arc::new(AtomicUsize::new(0));
    let counts = got.clone();
    let reads = move || {
        while far.read(&mut [0]).unwrap() == 1 {
            counts.fetch_add(1, SeqCst);
        }
    };
    (near, got, runtime.spawn(reads))
}

/// Claim: a worker that polls before it sleeps looks after I/O too, however long it polls.
#[test]
fn a_worker_that_polls_looks_after_io() {
    for io in DRIVERS {
        for workers in [1, 2] {
            let runtime = described(workers, io).spin(Spin::Fixed(LONG)).build().unwrap();
            let (mut near, got, fiber) = reader(&runtime);
            for n in 1..=20 {
                near.write_all(&[1]).unwrap();
                poll_until("a worker that polls to read", || got.load(SeqCst) == n);
            }
            drop(near);
            fiber.join().unwrap();
            end(runtime);
        }
    }
}

/// A fiber that holds its worker until it is told that this is over, and which one that is.
struct Hog {
    over: Arc<AtomicBool>,
    thread: String,
    fiber: JoinHandle<()>,
}

impl Hog {
    fn start(runtime: &Runtime) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (is_over, (tell, held)) = (over.clone(), std::sync::mpsc::channel());
        let holds = move || {
            tell.send(std::thread::current().name().unwrap().to_owned()).unwrap();
            while !is_over.load(SeqCst) {
                std::thread::yield_now();
            }
        };
        let fiber = runtime.spawn(holds);
        Self { over, thread: held.recv().unwrap(), fiber }
    }

    fn end(self) {
        self.over.store(true, SeqCst);
        self.fiber.join().unwrap();
    }
}

/// Claim: of three workers two may be held, whichever and whenever: the third one sees to I/O.
#[test]
fn the_last_worker_that_is_not_held_looks_after_io() {
    for io in DRIVERS {
        let runtime = described(3, io).build().unwrap();
        let (mut near, got, fiber) = reader(&runtime);
        for n in 1..=60 {
            // The one that is released last is the lookout: another one each time.
            let mut hogs: Vec<_> = (0..3).map(|_| Hog::start(&runtime)).collect();
            hogs.sort_by(|a, b| a.thread.cmp(&b.thread));
            hogs.rotate_left(n % 3);
            for (asleep, hog) in (1..).zip(hogs) {
                hog.end();
                poll_until("it to sleep", || runtime.metrics().workers.iter().filter(|worker| worker.sleeping).count() == asleep);
            }
            let first = Hog::start(&runtime);
            (0..n * 100).for_each(|_| std::hint::spin_loop());
            let second = Hog::start(&runtime);
            near.write_all(&[1]).unwrap();
            poll_until("the third worker to read", || got.load(SeqCst) == n);
            first.end();
            second.end();
        }
        drop(near);
        fiber.join().unwrap();
        end(runtime);
    }
}

/// Claim: a group that begins with one worker starts another when that one is held and I/O is waited for, and not before.
#[test]
fn a_worker_comes_for_io_when_the_only_one_is_held() {
    for io in DRIVERS {
        let runtime = described(2, io).workers_min(1).build().unwrap();
        let await_sleep = || poll_until("it to sleep", || runtime.metrics().workers.iter().all(|worker| worker.sleeping));
        await_sleep();
        let (mut near, got, fiber) = reader(&runtime);
        for n in 1..=3 {
            near.write_all(&[1]).unwrap();
            poll_until("the only worker to read", || got.load(SeqCst) == n);
            await_sleep();
        }
        assert_eq!(runtime.metrics().workers.len(), 1, "one that waits alone needs no second worker");
        let hog = Hog::start(&runtime);
        near.write_all(&[1]).unwrap();
        poll_until("another worker to read", || got.load(SeqCst) == 4);
        assert_eq!(runtime.metrics().workers.len(), 2);
        hog.end();
        drop(near);
        fiber.join().unwrap();
        end(runtime);
    }
}

/// Reads in a fiber whose only worker is then held by another one, until the read is over: another worker must have come, and gone on with it.
fn read_behind_a_hog(io: Io, talks: bool, read: impl FnOnce(UnixStream) + Send + 'static) {
    let runtime = described(2, io).workers_min(1).build().unwrap();
    poll_until("it to sleep", || runtime.metrics().workers.iter().all(|worker| worker.sleeping));
    let (mut near, far) = Std::pair().unwrap();
    let (tell, held) = std::sync::mpsc::channel();
    let over = Arc::new(AtomicBool::new(false));
    let (is_over, ends) = (over.clone(), over);
    let hog = move || {
        tell.send(()).unwrap();
        while !is_over.load(SeqCst) {
            std::thread::yield_now();
        }
    };
    let fiber = runtime.spawn(move || {
        // Nobody is woken for it, so that nobody comes for it either.
        let hog = Builder::new().quiet().spawn(hog).unwrap();
        read(UnixStream::from(far));
        ends.store(true, SeqCst);
        hog.join().unwrap();
    });
    held.recv().unwrap();
    if talks {
        near.write_all(&[1]).unwrap();
    }
    fiber.join().unwrap();
    end(runtime);
}

/// Claim: the same if the worker never rests between the wait and the fiber that holds it.
#[test]
fn a_worker_comes_for_io_that_is_waited_for_before_the_only_one_is_held() {
    for io in DRIVERS {
        read_behind_a_hog(io, true, |mut far| assert_eq!(far.read(&mut [0]).unwrap(), 1));
    }
}

/// Claim: a time-out does not bind a fiber to the worker where it waits, be it the descriptor's own or one around it.
#[test]
fn one_that_reads_with_a_time_out_goes_on_elsewhere() {
    for io in DRIVERS {
        read_behind_a_hog(io, true, |mut far| {
            far.set_read_timeout(Some(LONG)).unwrap();
            assert_eq!(far.read(&mut [0]).unwrap(), 1);
        });
        read_behind_a_hog(io, true, |mut far| assert_eq!(sinew::timeout(LONG, || far.read(&mut [0])).unwrap().unwrap(), 1));
        // Both, and whichever is the later is not told of.
        read_behind_a_hog(io, true, |mut far| {
            far.set_read_timeout(Some(LONG / 2)).unwrap();
            assert_eq!(sinew::timeout(LONG, || far.read(&mut [0])).unwrap().unwrap(), 1);
        });
    }
}

/// Claim: nor do the time-outs themselves wait for that worker.
#[test]
fn a_time_out_comes_though_the_worker_is_held() {
    const SHORT: Duration = Duration::from_millis(2);
    for io in DRIVERS {
        read_behind_a_hog(io, false, |mut far| {
            far.set_read_timeout(Some(SHORT)).unwrap();
            assert_eq!(far.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        });
        read_behind_a_hog(io, false, |mut far| assert!(sinew::timeout(SHORT, || far.read(&mut [0])).is_err()));
        read_behind_a_hog(io, false, |mut far| {
            // An alarm that was set for an earlier one, which is not armed any more, and one that is set for a later one.
            far.set_read_timeout(Some(LONG)).unwrap();
            (0..3).for_each(|_| assert!(sinew::timeout(SHORT, || far.read(&mut [0])).is_err()));
        });
    }
}

fn sleeps(runtime: &Runtime) -> u64 {
    runtime.metrics().workers.iter().map(|worker| worker.sleeps).sum()
}

/// Waits until no worker has got up for a while: so long that one that watches would have done so many times.
fn come_to_rest(runtime: &Runtime, what: &str) {
    poll_until(what, || {
        let before = sleeps(runtime);
        std::thread::sleep(Duration::from_millis(30));
        sleeps(runtime) == before
    });
}

/// Claim: where nothing happens nobody gets up, though fibers wait for I/O: neither if all workers sleep nor if one is held.
#[test]
fn nobody_watches_for_ever() {
    for io in DRIVERS {
        for workers in 1..=4 {
            let runtime = described(workers, io).build().unwrap();
            let (mut near, got, fiber) = reader(&runtime);
            near.write_all(&[1]).unwrap();
            poll_until("the byte", || got.load(SeqCst) == 1);
            come_to_rest(&runtime, "all workers to sleep");
            for round in 0..10 {
                // All but one are released, by turns: who lies down in the middle of another's watch has looked meanwhile.
                let mut hogs: Vec<_> = (0..workers).map(|_| Hog::start(&runtime)).collect();
                hogs.rotate_left(round % workers);
                let last = hogs.pop().unwrap();
                for hog in hogs {
                    hog.end();
                    std::thread::sleep(Duration::from_micros(100 * round as u64));
                }
                come_to_rest(&runtime, "all workers but one to sleep");
                last.end();
            }
            drop(near);
            fiber.join().unwrap();
            end(runtime);
        }
    }
}

/// Claim: a worker that slept where I/O would wake it, for fibers that have ended, does not hide a standstill.
#[test]
fn a_standstill_after_io_is_reported() {
    const SELF: &str = "a_standstill_after_io_is_reported";
    const RUNTIMES: usize = 8;
    if !is_child(SELF) {
        for io in ["uring", "epoll"] {
            let output = in_child(SELF, &[("SINEW_IO", io)]);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{text}");
            assert_eq!(text.matches("probable deadlock").count(), RUNTIMES, "{io}: {text}");
        }
        return;
    }
    let runtimes: Vec<_> = (0..RUNTIMES).map(|_| stand_still()).collect();
    // As long as in `endings.rs`: long enough for a second report of each, were there one.
    std::thread::sleep(Duration::from_millis(500));
    for (runtime, parked) in runtimes {
        parked.fiber().unpark();
        parked.join().unwrap();
        end(runtime);
    }
}

/// Waits for I/O that comes and I/O that does not, bound and not: every wait that is begun is ended.
fn wait_in_every_way(i: usize) {
    const SHORT: Duration = Duration::from_micros(60);
    let (mut near, far) = pair();
    let far = Arc::new(far);
    for round in i..i + 24 {
        let mut far = &*far;
        match round % 8 {
            0 => assert!(sinew::timeout(SHORT, || far.read(&mut [0])).is_err()),
            1 => {
                let _here = sinew::pin();
                assert!(sinew::timeout(SHORT, || far.read(&mut [0])).is_err());
            }
            2 => {
                far.set_read_timeout(Some(SHORT)).unwrap();
                assert_eq!(far.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
                far.set_read_timeout(None).unwrap();
            }
            3 => assert!(sinew::timeout(SHORT, || sinew::io::poll(far, Interest::Readable)).is_err()),
            4 => {
                let mut again = far.try_clone().unwrap();
                assert!(sinew::timeout(SHORT, || again.read(&mut [0])).is_err());
            }
            5 => sinew::scope(|s| {
                let reader = s.spawn(|| (&mut &*far).read(&mut [0]).unwrap_err());
                (0..i % 3).for_each(|_| sinew::yield_now());
                reader.cancel();
            }),
            6 => sinew::scope(|s| {
                let reader = s.spawn(|| (&mut &*far).read(&mut [0]).unwrap());
                let _here = i.is_multiple_of(2).then(sinew::pin);
                near.write_all(&[1]).unwrap();
                assert_eq!(reader.join().unwrap(), 1);
            }),
            _ => sinew::scope(|s| {
                let poll = s.spawn(|| sinew::io::poll(far, Interest::Readable).unwrap());
                near.write_all(&[1]).unwrap();
                poll.join().unwrap();
                assert_eq!((&mut &*far).read(&mut [0]).unwrap(), 1);
            }),
        }
    }
}

/// A runtime in which nothing can happen, but has: a fiber that waited for I/O was cancelled, which is not told to who slept for that.
fn stand_still() -> (Runtime, JoinHandle<()>) {
    let runtime = described(3, Io::Auto).deadlock_watch(Duration::from_millis(50)).build().unwrap();
    let (_near, far) = Std::pair().unwrap();
    let mut far = UnixStream::from(far);
    let reads = runtime.spawn(move || far.read(&mut [0]).unwrap_err());
    come_to_rest(&runtime, "a worker to wait for I/O");
    reads.cancel();
    reads.join().unwrap();
    (0..12).map(|i| runtime.spawn(move || wait_in_every_way(i))).collect::<Vec<_>>().into_iter().for_each(|fiber| fiber.join().unwrap());
    let parked = runtime.spawn(sinew::park);
    (runtime, parked)
}

/// Claim: a fiber that waits for I/O once more, after it was woken in vain and taken by another group, is looked after.
#[test]
fn io_of_a_fiber_that_another_group_took_is_seen_to() {
    for io in DRIVERS {
        let runtime = described(2, io).group_size(1).steal_ratio(1).build().unwrap();
        let (near, far) = runtime.run(pair);
        let far = Arc::new(far);
        let got = Arc::new(AtomicUsize::new(0));
        let readers: Vec<_> = (0..6)
            .map(|i| {
                let (far, got) = (far.clone(), got.clone());
                let reads = move || {
                    while (&*far).read(&mut [0]).unwrap() == 1 {
                        got.fetch_add(1, SeqCst);
                        (0..i).for_each(|_| sinew::yield_now());
                    }
                };
                runtime.run(|| Builder::new().group(Group::foreground(i % 2)).spawn(reads).unwrap())
            })
            .collect();
        let near = std::net::TcpStream::from(near);
        for n in 1..=common::rounds(20_000) {
            (&near).write_all(&[1]).unwrap();
            poll_until("somebody to read", || got.load(SeqCst) == n);
        }
        drop(near);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        end(runtime);
    }
}

/// Claim: fibers that stay and fibers that may move wait for one descriptor, each where it waits, and whoever is woken takes what there is.
#[test]
fn one_descriptor_serves_fibers_that_stay_and_fibers_that_may_move() {
    for io in DRIVERS {
        let runtimes = [
            described(2, io).build().unwrap(),
            Runtime::builder().workers(2).io(io).build().unwrap(),
            described(1, Io::Epoll).build().unwrap(),
        ];
        let (near, far) = runtimes[0].run(pair);
        let (far, got) = (Arc::new(far), Arc::new(AtomicUsize::new(0)));
        let readers: Vec<_> = (0..9)
            .map(|i| {
                let (far, got) = (far.clone(), got.clone());
                let reads = move || {
                    let _here = (i % 4 == 3).then(sinew::pin);
                    while (&*far).read(&mut [0]).unwrap() == 1 {
                        got.fetch_add(1, SeqCst);
                    }
                };
                runtimes[i % 3].spawn(reads)
            })
            .collect();
        let near = std::net::TcpStream::from(near);
        let mut sent = 0;
        for n in 1..=300 {
            let some = 1 + n % 3;
            (&near).write_all(&vec![1; some]).unwrap();
            sent += some;
            poll_until("all to be read", || got.load(SeqCst) == sent);
        }
        drop(near);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        runtimes.into_iter().for_each(end);
    }
}

/// Claim: where no descriptor is left for the source of a worker, it looks from time to time; where none is left for the roam, the call waits, and tries from time to time.
#[test]
fn io_goes_on_without_descriptors_for_workers() {
    const SELF: &str = "io_goes_on_without_descriptors_for_workers";
    if !is_child(SELF) {
        for (io, workers) in [("uring", "1"), ("epoll", "1"), ("uring", "2"), ("epoll", "2")] {
            let output = in_child(SELF, &[("SINEW_IO", io), ("SINEW_WORKERS", workers)]);
            assert!(output.status.success(), "{io}, {workers}: {}", String::from_utf8_lossy(&output.stderr));
        }
        return;
    }
    let few = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
    // SAFETY: the limit outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
    let workers = std::env::var("SINEW_WORKERS").unwrap().parse().unwrap();
    let runtime = described(workers, Io::Auto).build().unwrap();
    let ((mut near, far), (mut silent, waits)) = (Std::pair().unwrap(), Std::pair().unwrap());
    let mut far = UnixStream::from(far);
    let taken: Vec<_> = std::iter::from_fn(|| waits.try_clone().ok()).collect();
    let waits = UnixStream::from(waits);
    let late = runtime.run(|| sinew::timeout(Duration::from_millis(5), || (&waits).read(&mut [0]).unwrap_err().kind()));
    assert!(late.is_err(), "it did not wait");
    let tries = runtime.spawn(move || (&waits).read(&mut [0]).unwrap());
    silent.write_all(&[1]).unwrap();
    assert_eq!(tries.join().unwrap(), 1);
    // Enough for the roam, which has two, and no more.
    let mut taken = taken.into_iter();
    taken.by_ref().take(2).for_each(drop);
    let reader = runtime.spawn(move || far.read(&mut [0]).unwrap());
    poll_until("the reader to wait", || runtime.metrics().workers.iter().all(|worker| worker.sleeping));
    near.write_all(&[1]).unwrap();
    assert_eq!(reader.join().unwrap(), 1);
    drop(taken);
    end(runtime);
}

/// Claim: a fiber whose reads never have to wait, though each takes all there is, lets others of its worker run.
#[test]
fn a_peer_that_is_always_ahead_does_not_hold_the_worker() {
    let settled = |io| Runtime::builder().workers(1).io(io).build().unwrap();
    for runtime in DRIVERS.map(|io| described(1, io).build().unwrap()).into_iter().chain(DRIVERS.map(settled)) {
        runtime.run(|| {
            let (mut near, far) = Std::pair().unwrap();
            let (mut far, over) = (UnixStream::from(far), Arc::new(AtomicBool::new(false)));
            let ends = over.clone();
            let other = sinew::spawn(move || ends.store(true, SeqCst));
            let reads = (0..1_000).take_while(|_| {
                near.write_all(&[1]).unwrap();
                assert_eq!(far.read(&mut [0; 2]).unwrap(), 1);
                !over.load(SeqCst)
            });
            assert!(reads.count() < 1_000, "the other fiber did not run");
            other.join().unwrap();
        });
        end(runtime);
    }
}

/// Claim: a worker that was held by one of its fibers runs what waits at another that is held, before it goes on with its own for long. Counted in its turns: of others that are held it finds out by itself
/// only after 128 rounds.
#[test]
fn who_was_held_relieves_another_that_is() {
    for io in DRIVERS {
        let runtime = described(2, io).build().unwrap();
        let (near, _, reads) = reader(&runtime);
        runtime.run(|| {
            let (begun, calls, called, over) = <(Arc<AtomicUsize>, Arc<AtomicBool>, Arc<AtomicBool>, Arc<AtomicBool>)>::default();
            let (waiting, done) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
            let fibers: Vec<_> = (0..4)
                .map(|_| {
                    let (waiting, done) = (waiting.clone(), done.clone());
                    sinew::spawn(move || {
                        waiting.fetch_add(1, SeqCst);
                        sinew::park();
                        done.fetch_add(1, SeqCst);
                    })
                })
                .collect();
            let to_call: Vec<_> = fibers.iter().map(|fiber| fiber.fiber().clone()).collect();
            let hog = sinew::spawn({
                let (begun, calls, called, over) = (begun.clone(), calls.clone(), called.clone(), over.clone());
                move || {
                    begun.fetch_add(1, SeqCst);
                    while !calls.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                    // They wait at this worker from now on, but for the last, which is in its slot.
                    to_call.iter().for_each(sinew::Fiber::unpark);
                    called.store(true, SeqCst);
                    while !over.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                }
            });
            // The hog has one worker, and all others, which wait by then, have been on the other one.
            while begun.load(SeqCst) != 1 || waiting.load(SeqCst) != 4 {
                sinew::yield_now();
            }
            calls.store(true, SeqCst);
            let held = Instant::now();
            while !called.load(SeqCst) || held.elapsed() < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
            let mut turns = 0;
            while done.load(SeqCst) < 3 {
                turns += 1;
                sinew::yield_now();
            }
            over.store(true, SeqCst);
            // A yield that nobody waits for is none, for 32 of them.
            assert!(turns < 128, "{io:?}: {turns} turns before what waited elsewhere");
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            hog.join().unwrap();
        });
        drop(near);
        reads.join().unwrap();
        end(runtime);
    }
}
