//! Workers that stand in for those that a fiber holds, in runtimes whose fibers may move.

mod common;

use std::cell::Cell;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{Gate, in_child, is_child, poll_until};
use sinew::net::{TcpListener, TcpStream};
use sinew::{Builder, Io, Queue, Runtime, RuntimeBuilder};

/// Between two looks of the sentry.
const LOOK: Duration = Duration::from_millis(1);

fn described(workers: usize) -> RuntimeBuilder {
    // SAFETY: nothing that the fibers of these tests use belongs to a thread.
    unsafe { Runtime::builder().workers(workers).shake(false).migrate_started_fibers() }
}

/// Fibers that block their threads until the gate opens; all of them do by now.
fn hold(runtime: &Runtime, gate: &Gate, fibers: usize) -> Vec<sinew::JoinHandle<()>> {
    let held = (0..fibers)
        .map(|_| {
            let gate = gate.clone();
            runtime.spawn(move || gate.hold())
        })
        .collect();
    poll_until("all to be held", || gate.held() == fibers);
    held
}

fn compute(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Workers that are neither held nor sit out.
fn on_duty(runtime: &Runtime) -> usize {
    let group = group(runtime);
    group.workers - (group.sitting_out | group.held).count_ones() as usize
}

fn group(runtime: &Runtime) -> sinew::GroupMetrics {
    runtime.metrics().groups.swap_remove(0)
}

/// Claim: a fiber that may move goes on after a call to a file though the worker that it made it on is held: no ring of that worker has it.
#[test]
fn whoever_waits_for_a_file_is_not_held_with_its_worker() {
    for io in [Io::Auto, Io::Epoll] {
        let runtime = described(1).io(io).build().unwrap();
        runtime.run(move || {
            let path = std::env::temp_dir().join(format!("sinew-test-spares-{}-{io:?}", std::process::id()));
            let file = sinew::fs::File::create(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            let is_synced = Arc::new(AtomicBool::new(false));
            let holder = sinew::spawn({
                let is_synced = is_synced.clone();
                // Runs as soon as the other waits, and keeps the one worker.
                move || poll_until("the file", || is_synced.load(SeqCst))
            });
            file.sync_all().unwrap();
            is_synced.store(true, SeqCst);
            holder.join().unwrap();
        });
    }
}

/// Claim: ten fibers that block their threads hold ten workers, and nobody else, where a group has two: others begin, wait, wake each other and end. When they go on there are two on duty again, and the rest sits out.
#[test]
fn whoever_blocks_its_thread_holds_nobody_else() {
    for queue in [Queue::Stealing, Queue::Shared] {
        let runtime = described(2).queue(queue).build().unwrap();
        for round in 0..3 {
            let gate = Gate::default();
            let held = hold(&runtime, &gate, 10);
            let (there, here) = sinew::chan::bounded(0);
            let (back, again) = sinew::chan::bounded(0);
            let echo = runtime.spawn(move || here.iter().for_each(|n: usize| back.send(n + 1).unwrap()));
            let asker = runtime.spawn(move || {
                for n in 0..100 {
                    there.send(n).unwrap();
                    assert_eq!(again.recv(), Ok(n + 1));
                }
            });
            asker.join().unwrap();
            echo.join().unwrap();
            assert_eq!(gate.held(), 10, "round {round}");
            gate.open();
            held.into_iter().for_each(|fiber| fiber.join().unwrap());
            poll_until("two to be on duty", || group(&runtime).held == 0 && on_duty(&runtime) == 2);
        }
        let group = group(&runtime);
        assert_eq!((group.workers_max, group.spares_max), (2, 62));
        assert!((12..=24).contains(&group.workers), "{} workers for ten that were held, two on duty and a sentry", group.workers);
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
    }
}

/// Claim: also those sit out that sleep when they are too many: as many as are held come on duty while there is work for them, and have none when the held ones come back.
#[test]
fn those_that_are_idle_sit_out_too() {
    let runtime = described(2).build().unwrap();
    for _ in 0..3 {
        let gate = Gate::default();
        let held = hold(&runtime, &gate, 10);
        let more: Vec<_> = (0..40).map(|_| runtime.spawn(|| compute(LOOK * 3 / 2))).collect();
        more.into_iter().for_each(|fiber| fiber.join().unwrap());
        poll_until("all others to be idle", || {
            let group = group(&runtime);
            group.workers == 10 + (group.sleeping | group.sitting_out).count_ones() as usize
        });
        gate.open();
        held.into_iter().for_each(|fiber| fiber.join().unwrap());
        poll_until("two to be on duty", || on_duty(&runtime) == 2);
    }
}

/// Claim: fibers for which there is no stack are ended although one that could have spared some sits out.
#[test]
fn fibers_without_a_stack_are_ended_beside_workers_that_sit_out() {
    const TEST: &str = "fibers_without_a_stack_are_ended_beside_workers_that_sit_out";
    // The whole process is without memory then.
    if !is_child(TEST) {
        let child = in_child(TEST, &[]);
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let runtime = described(1).spare_workers(1).build().unwrap();
    let gate = Gate::default();
    let held = hold(&runtime, &gate, 1);
    poll_until("the spare to be there", || group(&runtime).workers == 2);
    gate.open();
    held.into_iter().for_each(|fiber| fiber.join().unwrap());
    sinew::hidden::fail_memory_after(0);
    for round in 0..500 {
        let fiber = Builder::new().runtime(&runtime.handle()).stack_size(8 << 20).spawn(|| ()).unwrap();
        poll_until(&format!("round {round}"), || fiber.is_finished());
        assert!(fiber.join().is_err());
    }
}

/// Claim: the same for I/O, on both drivers: connections are accepted and served although all workers that were asked for are held.
#[test]
fn connections_are_served_while_all_workers_are_held() {
    for io in [Io::Uring, Io::Epoll] {
        let runtime = described(2).io(io).build().unwrap();
        let listener = runtime.run(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let server = runtime.spawn(move || {
            for stream in listener.incoming().take(20) {
                let mut stream = stream.unwrap();
                sinew::spawn(move || {
                    let mut byte = [0];
                    while matches!(stream.read(&mut byte), Ok(1)) {
                        stream.write_all(&byte).unwrap();
                    }
                });
            }
        });
        let gate = Gate::default();
        let held = hold(&runtime, &gate, 5);
        // From this thread, which waits as threads do.
        for n in 0..20 {
            let mut stream = TcpStream::connect(address).unwrap();
            for _ in 0..10 {
                stream.write_all(&[n]).unwrap();
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                assert_eq!(byte, [n]);
            }
        }
        assert_eq!(gate.held(), 5);
        gate.open();
        held.into_iter().chain([server]).for_each(|fiber| fiber.join().unwrap());
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
    }
}

/// Claim: there are as many as were asked for and no more: with one spare and one worker three that block their threads keep the fourth waiting, and with none two do. What waits goes on when one of them has.
#[test]
fn no_more_come_than_may() {
    for spares in [0, 1, 3] {
        let runtime = described(1).spare_workers(spares).build().unwrap();
        assert_eq!(group(&runtime).spares_max, spares);
        let gate = Gate::default();
        let held = hold(&runtime, &gate, 1 + spares);
        let ran = Arc::new(AtomicUsize::new(0));
        let last = {
            let ran = ran.clone();
            runtime.spawn(move || ran.fetch_add(1, SeqCst))
        };
        assert_eq!((ran.load(SeqCst), group(&runtime).workers), (0, 1 + spares));
        gate.open();
        assert_eq!(last.join().unwrap(), 0);
        held.into_iter().for_each(|fiber| fiber.join().unwrap());
    }
}

/// Claim: a shutdown ends those that sit out, and waits for those that are held.
#[test]
fn a_shutdown_ends_those_that_sit_out() {
    let runtime = described(1).build().unwrap();
    let gate = Gate::default();
    let held = hold(&runtime, &gate, 3);
    let (ended, end) = mpsc::channel();
    let shutdown = std::thread::spawn(move || {
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
        ended.send(()).unwrap();
    });
    assert_eq!(end.try_recv(), Err(mpsc::TryRecvError::Empty), "three fibers are there");
    gate.open();
    shutdown.join().unwrap();
    assert_eq!(end.recv(), Ok(()));
    held.into_iter().for_each(|fiber| fiber.join().unwrap());
    // One whose spares have never come.
    drop(described(1).build().unwrap());
}

/// Claim: the end of a runtime wakes a sentry that dozes, and has no next look.
#[test]
fn a_shutdown_wakes_the_sentry() {
    let runtime = described(2).build().unwrap();
    let gate = Gate::default();
    let held = hold(&runtime, &gate, 2);
    // More than one, if one stood in for a worker that the kernel had kept from its CPU.
    poll_until("the sentry to be there", || group(&runtime).workers >= 3);
    gate.open();
    held.into_iter().for_each(|fiber| fiber.join().unwrap());
    poll_until("the sentry to sit out", || group(&runtime).sitting_out != 0 && on_duty(&runtime) == 2);
    // While it looks it lies down a thousand times a second; nobody else does.
    let last = Cell::new((0, Instant::now()));
    poll_until("the sentry to doze", || {
        let sleeps = runtime.metrics().workers.iter().map(|worker| worker.sleeps).sum::<u64>();
        if sleeps != last.get().0 {
            last.set((sleeps, Instant::now()));
        }
        last.get().1.elapsed() >= 30 * LOOK
    });
    drop(runtime);
}

/// Claim: fibers that sleep keep no spare on duty, be it again and again or for long, once those that were held have come back.
#[test]
fn sleepers_keep_no_spare_on_duty() {
    for sleep in [LOOK, Duration::from_secs(600)] {
        let runtime = described(2).build().unwrap();
        let gate = Gate::default();
        let held = hold(&runtime, &gate, 8);
        let begun = Arc::new(AtomicUsize::new(0));
        let sleepers: Vec<_> = (0..40)
            .map(|_| {
                let begun = begun.clone();
                runtime.spawn(move || {
                    // So that they do not all begin on one worker.
                    compute(LOOK * 3 / 2);
                    begun.fetch_add(1, SeqCst);
                    while !sinew::cancelled() {
                        sinew::sleep(sleep);
                    }
                })
            })
            .collect();
        poll_until("all to sleep", || begun.load(SeqCst) == 40);
        gate.open();
        held.into_iter().for_each(|fiber| fiber.join().unwrap());
        poll_until("two to be on duty", || group(&runtime).held == 0 && on_duty(&runtime) == 2);
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
        sleepers.into_iter().for_each(|fiber| fiber.join().unwrap());
    }
}

/// Claim: the environment says how many there are where the builder does not, and only where there can be any.
#[test]
fn the_environment_says_how_many_there_are() {
    const TEST: &str = "the_environment_says_how_many_there_are";
    if is_child(TEST) {
        let of = |builder: RuntimeBuilder| group(&builder.build().unwrap()).spares_max;
        eprintln!("spares: {:?}", [of(described(2)), of(described(2).spare_workers(1)), of(Runtime::builder())]);
        return;
    }
    let child = in_child(TEST, &[("SINEW_SPARE_WORKERS", "5")]);
    let text = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && text.contains("spares: [5, 1, 0]\n"), "{text}");
}

#[test]
fn spares_are_refused_where_fibers_stay() {
    let refusal = |builder: RuntimeBuilder| builder.build().unwrap_err().to_string();
    assert_eq!(
        refusal(Runtime::builder().spare_workers(3)),
        "RuntimeBuilder::spare_workers(3) is refused: it must be 0 where started fibers stay at their workers; see migrate_started_fibers"
    );
    assert_eq!(
        refusal(described(2).spare_workers(64)),
        "RuntimeBuilder::spare_workers(64) is refused: it must be a whole number from 0 to 63"
    );
    let settled = Runtime::builder().spare_workers(0).build().unwrap();
    assert_eq!(group(&settled).spares_max, 0);
    assert_eq!(group(&described(60).group_size(60).build().unwrap()).spares_max, 4, "a group has 64 workers at most");
}
