//! `oneshot`, `broadcast` and `watch`.

mod common;
#[path = "common/counting.rs"]
mod counting;

use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{in_child, is_child};
use counting::bytes;
use sinew::chan::{Cause, RecvError, Select, SendError, TryRecvError, broadcast, never, oneshot, watch};
use sinew::{JoinHandle, Runtime, no_suspend, scope, select, shield, spawn, timeout, yield_now};

const MICRO: Duration = Duration::from_micros(1);
const MILLI: Duration = Duration::from_millis(1);
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

fn rounds(count: usize) -> usize {
    count * std::env::var("SINEW_ROUNDS").map_or(1, |n| n.parse::<usize>().expect("SINEW_ROUNDS is a number"))
}

fn workers(count: usize) -> Runtime {
    Runtime::builder().workers(count).build().unwrap()
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        yield_now();
    }
}

/// Runs `f` in a fiber of a runtime with one worker, in one with two, and on a plain thread.
fn everywhere(f: impl Fn() + Send + Sync + Copy + 'static) {
    workers(1).run(f);
    workers(2).run(f);
    std::thread::spawn(f).join().unwrap();
}

/// Counts its drops.
#[derive(Debug, Clone)]
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn handles_are_send_and_sync_as_far_as_messages_are() {
    fn shared<T: Send + Sync + UnwindSafe + RefUnwindSafe>() {}
    shared::<oneshot::Sender<std::cell::Cell<u32>>>();
    shared::<oneshot::Receiver<std::cell::Cell<u32>>>();
    shared::<broadcast::Sender<String>>();
    shared::<broadcast::Receiver<String>>();
    shared::<watch::Sender<String>>();
    shared::<watch::Receiver<String>>();
    shared::<watch::Ref<String>>();
    fn error<T: std::error::Error>() {}
    error::<broadcast::RecvError>();
    error::<broadcast::TryRecvError>();
}

#[test]
fn a_oneshot_gives_its_message_once() {
    everywhere(|| {
        let (sender, receiver) = oneshot();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert!(receiver.recv_timeout(MICRO).unwrap_err().is_timeout());
        assert!(receiver.recv_deadline(Instant::now()).unwrap_err().is_timeout());
        let peer = spawn(move || sender.send(String::from("answer")));
        assert_eq!(receiver.recv().as_deref(), Ok("answer"));
        assert_eq!(peer.join().unwrap(), Ok(()));
        assert_eq!((receiver.recv(), receiver.try_recv()), (Err(RecvError::Disconnected), Err(TryRecvError::Disconnected)));
        // The message is there before the receiver asks.
        let (sender, receiver) = oneshot();
        assert_eq!((sender.send(1), receiver.recv()), (Ok(()), Ok(1)));
        // One side goes.
        let (sender, receiver) = oneshot::<u8>();
        let peer = spawn(move || drop(sender));
        assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
        peer.join().unwrap();
        let (sender, receiver) = oneshot();
        assert!(!sender.is_disconnected());
        drop(receiver);
        assert!(sender.is_disconnected());
        assert_eq!(sender.send(2), Err(SendError { value: 2, cause: Cause::Disconnected }));
    });
}

#[test]
fn a_oneshot_can_be_selected_and_its_send_is_not_cut_short() {
    everywhere(|| {
        let (sender, answer) = oneshot();
        let worker = spawn(move || {
            sinew::current().cancel();
            sender.send(7)
        });
        let got = select! {
            recv(answer) -> message => message,
            recv(never::<u8>()) -> _ => unreachable!(),
        };
        assert_eq!((got, worker.join().unwrap()), (Ok(7), Ok(())));
    });
}

/// One send ends all waits: one with the message, the others with the end of the sender.
#[test]
fn who_shares_a_oneshot_receiver_learns_of_its_end() {
    everywhere(|| {
        for by_send in [true, false] {
            let (sender, receiver) = oneshot();
            let waiting = AtomicUsize::new(0);
            let (mut messages, mut ends) = (0, 0);
            scope(|s| {
                let waits = [(); 3].map(|()| {
                    s.spawn(|| {
                        waiting.fetch_add(1, SeqCst);
                        receiver.recv()
                    })
                });
                until(|| waiting.load(SeqCst) == 3);
                if by_send {
                    sender.send(7).unwrap();
                } else {
                    drop(sender);
                }
                for wait in waits {
                    match wait.join().unwrap() {
                        Ok(message) => messages += message,
                        Err(error) => ends += usize::from(error == RecvError::Disconnected),
                    }
                }
            });
            assert_eq!((messages, ends), if by_send { (7, 2) } else { (0, 3) });
        }
    });
}

#[test]
fn a_list_takes_oneshots_too() {
    everywhere(|| {
        let answers: Vec<_> = (0..5).map(|i| (i, oneshot())).collect();
        let (senders, receivers): (Vec<_>, Vec<_>) = answers.into_iter().map(|(i, (sender, receiver))| ((i, sender), receiver)).unzip();
        let sends = spawn(move || senders.into_iter().rev().for_each(|(i, sender)| sender.send(i).unwrap()));
        let mut select = Select::new();
        receivers.iter().for_each(|receiver| _ = select.recv(receiver));
        for _ in 0..receivers.len() {
            let operation = select.select();
            let index = operation.index();
            assert_eq!(operation.recv(&receivers[index]), Ok(index));
            select.remove(index);
        }
        sends.join().unwrap();
    });
}

#[test]
fn a_cancelled_wait_for_a_value_fails_at_entry() {
    let fiber = spawn(|| {
        let (_sender, mut receiver) = watch(7);
        sinew::current().cancel();
        assert_eq!(receiver.wait_for(|value| *value == 7).map(|value| *value), Err(RecvError::Cancelled));
        shield(|| assert_eq!(receiver.wait_for(|value| *value == 7).map(|value| *value), Ok(7)));
    });
    fiber.join().unwrap();
}

#[test]
fn what_nobody_receives_of_a_oneshot_is_dropped() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = oneshot();
    sender.send(Counted(dropped.clone())).unwrap();
    drop(receiver);
    assert_eq!(dropped.load(SeqCst), 1);
}

#[test]
fn every_subscriber_gets_every_message_sent_after_it_came() {
    everywhere(|| {
        let (sender, mut first) = broadcast(10);
        assert_eq!(sender.send(1), Ok(1));
        let mut second = sender.subscribe();
        let mut third = first.subscribe();
        assert_eq!((sender.receiver_count(), sender.send(2)), (3, Ok(3)));
        assert_eq!((first.len(), second.len(), second.is_empty()), (2, 1, false));
        assert_eq!((first.recv(), first.recv(), second.recv(), third.try_recv()), (Ok(1), Ok(2), Ok(2), Ok(2)));
        assert_eq!(first.try_recv(), Err(broadcast::TryRecvError::Empty));
        drop(sender);
        assert_eq!(first.try_recv(), Err(broadcast::TryRecvError::Disconnected));
        assert_eq!(third.recv(), Err(broadcast::RecvError::Disconnected));
    });
}

#[test]
fn a_slow_subscriber_is_told_once_what_it_missed_and_goes_on_with_the_oldest() {
    everywhere(|| {
        let (sender, mut slow) = broadcast(3);
        let mut fast = sender.subscribe();
        for i in 0..10u32 {
            sender.send(i).unwrap();
            assert_eq!(fast.recv(), Ok(i));
        }
        assert_eq!(slow.len(), 3);
        let error = slow.recv().unwrap_err();
        assert!(error.is_lagged() && error == broadcast::RecvError::Lagged(7));
        assert_eq!(error.to_string(), "nothing received: the receiver lagged behind and missed 7 messages");
        assert_eq!((slow.recv(), slow.recv()), (Ok(7), Ok(8)));
        (10..14).for_each(|i| _ = sender.send(i).unwrap());
        assert_eq!(slow.try_recv(), Err(broadcast::TryRecvError::Lagged(2)));
        assert_eq!([slow.try_recv(), slow.try_recv(), slow.try_recv()], [Ok(11), Ok(12), Ok(13)]);
        drop(sender);
        assert_eq!((fast.recv(), fast.recv()), (Err(broadcast::RecvError::Lagged(1)), Ok(11)));
    });
}

#[test]
fn a_broadcast_without_receivers_is_given_back() {
    let (sender, receiver) = broadcast(2);
    drop(receiver);
    assert_eq!(sender.send("lost"), Err(SendError { value: "lost", cause: Cause::Disconnected }));
    let mut late = sender.subscribe();
    assert_eq!((sender.send("kept"), late.recv()), (Ok(1), Ok("kept")));
    assert!(catch_unwind(|| broadcast::<u8>(0)).is_err());
}

#[test]
fn a_broadcast_receive_can_be_cut_short_and_misses_nothing() {
    everywhere(|| {
        let (sender, mut receiver) = broadcast(4);
        assert!(receiver.recv_timeout(MICRO).unwrap_err().is_timeout());
        assert!(receiver.recv_deadline(Instant::now()).unwrap_err().is_timeout());
        assert!(timeout(MILLI, || assert!(receiver.recv().unwrap_err().is_timeout())).is_err());
        let mut other = sender.subscribe();
        let fiber = spawn(move || (other.recv(), other));
        fiber.cancel();
        let (cut, mut other) = fiber.join().unwrap();
        assert!(cut.unwrap_err().is_cancelled());
        assert!(catch_unwind(AssertUnwindSafe(|| no_suspend(|| receiver.recv()))).is_err());
        assert_eq!(sender.send(5), Ok(2));
        assert_eq!((other.recv(), no_suspend(|| receiver.recv()), receiver.recv_timeout(MICRO).is_err()), (Ok(5), Ok(5), true));
    });
}

#[test]
fn broadcast_messages_are_dropped_once_and_outside_of_locks() {
    struct Sends(Option<broadcast::Sender<Arc<Sends>>>, Arc<AtomicUsize>);
    impl Drop for Sends {
        fn drop(&mut self) {
            self.1.fetch_add(1, SeqCst);
            if let Some(sender) = self.0.take() {
                let count = sender.receiver_count();
                assert!(count < 3);
            }
        }
    }
    everywhere(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (sender, mut receiver) = broadcast(4);
        for i in 0..20 {
            assert!(sender.send(Arc::new(Sends(Some(sender.clone()), dropped.clone()))).is_ok());
            if i % 3 == 0 {
                drop(receiver.recv());
            }
        }
        drop(receiver);
        assert_eq!(dropped.load(SeqCst), 20);
    });
}

/// Claims that subscribers that come, lag and go, from fibers and threads, each see a growing sequence with gaps as large as they were told.
#[test]
fn subscribers_see_a_sequence_with_the_gaps_they_are_told_of() {
    let total = rounds(if cfg!(debug_assertions) { 10_000 } else { 100_000 }) as u64;
    let runtime = workers(2);
    let (sender, receiver) = broadcast(16);
    let follow = move |mut receiver: broadcast::Receiver<u64>| {
        let (mut next, mut got) = (0, 0);
        loop {
            match receiver.recv_timeout(LONG) {
                Ok(value) => {
                    assert_eq!(value, next);
                    (next, got) = (next + 1, got + 1);
                }
                Err(broadcast::RecvError::Lagged(missed)) => next += missed,
                Err(error) => {
                    assert_eq!((error, next), (broadcast::RecvError::Disconnected, total));
                    return got;
                }
            }
        }
    };
    let fibers: Vec<_> = (0..4).map(|_| sender.subscribe()).map(|r| runtime.spawn(move || follow(r))).collect();
    let threads: Vec<_> = (0..2).map(|_| sender.subscribe()).map(|r| std::thread::spawn(move || follow(r))).collect();
    drop(receiver);
    runtime.run(move || {
        for i in 0..total {
            sender.send(i).unwrap();
            if i % 8 == 0 {
                yield_now();
            }
        }
    });
    let got: u64 = fibers.into_iter().map(|f| f.join().unwrap()).chain(threads.into_iter().map(|t| t.join().unwrap())).sum();
    assert!(got > 0);
}

#[test]
fn a_watched_value_is_the_last_one_sent() {
    everywhere(|| {
        let (sender, mut receiver) = watch(1);
        assert_eq!((*receiver.borrow(), receiver.has_changed()), (1, Ok(false)));
        sender.send(2).unwrap();
        sender.send(3).unwrap();
        assert_eq!((*receiver.borrow(), receiver.has_changed()), (3, Ok(true)));
        assert_eq!((receiver.changed(), *receiver.borrow(), receiver.has_changed()), (Ok(()), 3, Ok(false)));
        sender.send_modify(|value| *value *= 10).unwrap();
        let mut other = receiver.clone();
        assert_eq!((*receiver.borrow_and_update(), receiver.has_changed(), other.has_changed()), (30, Ok(false), Ok(true)));
        assert_eq!(other.changed(), Ok(()));
        let fresh = sender.subscribe();
        assert_eq!((fresh.has_changed(), sender.receiver_count(), *sender.borrow()), (Ok(false), 3, 30));
        // A snapshot does not change, and keeps nobody waiting.
        let seen = receiver.borrow();
        sender.send(4).unwrap();
        assert_eq!((*seen, format!("{seen:?}")), (30, String::from("30")));
        // The last value is told before the end.
        drop(sender);
        assert_eq!((receiver.has_changed(), receiver.changed()), (Ok(true), Ok(())));
        assert_eq!((receiver.has_changed(), receiver.changed()), (Err(RecvError::Disconnected), Err(RecvError::Disconnected)));
        assert_eq!(*receiver.borrow(), 4);
    });
}

#[test]
fn watchers_are_woken_by_changes_and_by_the_end() {
    everywhere(|| {
        let (sender, receiver) = watch(0);
        let watchers: Vec<_> = (0..3)
            .map(|_| {
                let mut receiver = receiver.clone();
                spawn(move || {
                    let five = *receiver.wait_for(|value| *value >= 5).unwrap();
                    (five, receiver.wait_for(|value| *value > 100).unwrap_err())
                })
            })
            .collect();
        (1..=5).for_each(|value| {
            sender.send(value).unwrap();
            yield_now();
        });
        drop(sender);
        watchers.into_iter().for_each(|w| assert_eq!(w.join().unwrap(), (5, RecvError::Disconnected)));
    });
}

#[test]
fn a_watch_without_receivers_gives_the_value_back() {
    let (sender, receiver) = watch(String::from("old"));
    assert!(!sender.is_disconnected());
    drop(receiver);
    let error = sender.send(String::from("new")).unwrap_err();
    assert!(sender.is_disconnected());
    assert_eq!((error.into_inner().as_str(), sender.borrow().as_str()), ("new", "old"));
    sender.send_modify(|value| value.push('!')).unwrap();
    assert_eq!(*sender.subscribe().borrow(), "old!");
}

#[test]
fn a_wait_for_a_change_can_be_cut_short_and_misses_nothing() {
    everywhere(|| {
        let (sender, mut receiver) = watch(0);
        assert!(receiver.changed_timeout(MICRO).unwrap_err().is_timeout());
        assert!(receiver.changed_deadline(Instant::now()).unwrap_err().is_timeout());
        assert!(timeout(MILLI, || receiver.changed()).is_err());
        let mut other = receiver.clone();
        let fiber = spawn(move || (other.changed(), other));
        fiber.cancel();
        let (cut, mut other) = fiber.join().unwrap();
        assert_eq!(cut, Err(RecvError::Cancelled));
        assert!(catch_unwind(AssertUnwindSafe(|| no_suspend(|| receiver.changed()))).is_err());
        sender.send(1).unwrap();
        assert_eq!((other.changed(), no_suspend(|| receiver.changed())), (Ok(()), Ok(())));
    });
}

/// Claims that no change is lost: senders modify at once, with closures that suspend, while others send and readers read.
#[test]
fn modifications_take_turns() {
    everywhere(|| {
        let (sender, receiver) = watch((0u64, 0u64));
        let reading = AtomicBool::new(true);
        scope(|s| {
            let reader = s.spawn(|| {
                let mut last = 0;
                while reading.load(SeqCst) {
                    let now = receiver.borrow();
                    assert!(now.0 >= last && now.0 == now.1, "half a change was seen");
                    last = now.0;
                    yield_now();
                }
            });
            let writers: Vec<_> = (0..4)
                .map(|_| {
                    s.spawn(|| {
                        for _ in 0..100 {
                            let both = |value: &mut (u64, u64)| {
                                value.0 += 1;
                                yield_now();
                                value.1 += 1;
                            };
                            sender.send_modify(both).unwrap();
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|w| w.join().unwrap());
            reading.store(false, SeqCst);
            reader.join().unwrap();
        });
        assert_eq!(*receiver.borrow(), (400, 400));
        // A closure that panics changes nothing, and its turn is not lost.
        let panic = catch_unwind(AssertUnwindSafe(|| {
            sender.send_modify(|value| {
                value.0 = 9;
                panic!("as planned");
            })
        }));
        assert!(panic.is_err() && *receiver.borrow() == (400, 400));
        sender.send((1, 1)).unwrap();
        assert_eq!(*receiver.borrow(), (1, 1));
    });
}

/// A fiber that modifies the value, and does not end before it is told to.
fn modifies_slowly(runtime: &Runtime, sender: &watch::Sender<u64>) -> (JoinHandle<()>, Arc<AtomicBool>) {
    let (begun, go_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let fiber = {
        let (sender, begun, go_on) = (sender.clone(), begun.clone(), go_on.clone());
        runtime.spawn(move || {
            let slowly = |value: &mut u64| {
                begun.store(true, SeqCst);
                until(|| go_on.load(SeqCst));
                *value += 1;
            };
            sender.send_modify(slowly).unwrap();
        })
    };
    until(|| begun.load(SeqCst));
    (fiber, go_on)
}

#[test]
fn a_send_does_not_wait_for_a_modification_and_is_the_later_of_both() {
    let runtime = workers(2);
    let (sender, mut receiver) = watch(0);
    let (modifier, go_on) = modifies_slowly(&runtime, &sender);
    // Where it would have to wait, it panics.
    no_suspend(|| sender.send(100)).unwrap();
    assert_eq!((receiver.changed(), *receiver.borrow()), (Ok(()), 100));
    go_on.store(true, SeqCst);
    modifier.join().unwrap();
    assert_eq!((*receiver.borrow(), receiver.has_changed()), (100, Ok(false)));
    // The next one modifies what was sent, and one that sends itself gives way to it.
    sender.send_modify(|value| *value += 1).unwrap();
    assert_eq!(*receiver.borrow(), 101);
    let sends = |value: &mut u64| {
        sender.send(7).unwrap();
        *value = 8;
    };
    sender.send_modify(sends).unwrap();
    assert_eq!(*receiver.borrow(), 7);
}

#[test]
fn a_wait_to_modify_can_be_cut_short_and_loses_neither_turn_nor_closure() {
    everywhere(|| {
        let runtime = workers(1);
        let (sender, receiver) = watch(0);
        let (modifier, go_on) = modifies_slowly(&runtime, &sender);
        assert!(catch_unwind(AssertUnwindSafe(|| no_suspend(|| sender.send_modify(|value| *value += 1000)))).is_err());
        // A deadline.
        let mut cause = None;
        let late = timeout(MILLI, || cause = sender.send_modify(|value| *value += 1000).err().map(|error| error.cause));
        assert!(late.is_err() && cause == Some(Cause::TimedOut));
        // A cancel: before it waits, or while it does.
        let cancelled: Vec<_> = (0..3)
            .map(|_| {
                let sender = sender.clone();
                spawn(move || sender.send_modify(|value| *value += 1000).unwrap_err())
            })
            .collect();
        let patient = {
            let sender = sender.clone();
            spawn(move || sender.send_modify(|value| *value += 10).unwrap())
        };
        yield_now();
        for fiber in cancelled {
            fiber.cancel();
            let error = fiber.join().unwrap();
            assert!(error.is_cancelled());
            let mut number = 0;
            error.into_inner()(&mut number);
            assert_eq!(number, 1000, "the closure is given back");
        }
        go_on.store(true, SeqCst);
        modifier.join().unwrap();
        patient.join().unwrap();
        assert_eq!(*receiver.borrow(), 11);
        // Also where there is no need to wait; a send is no cancel point.
        let fiber = spawn(move || {
            sinew::current().cancel();
            (sender.send_modify(|_| ()).is_err_and(|error| error.is_cancelled()), sender.send(5))
        });
        assert_eq!(fiber.join().unwrap(), (true, Ok(())));
        assert_eq!(*receiver.borrow(), 5);
    });
}

/// Claims that a turn is neither lost nor had by two: cancels and deadlines race the hand-over, and what is counted outside is what was counted inside.
#[test]
fn cancels_and_deadlines_against_turns_lose_none() {
    let runtime = workers(2);
    runtime.run(|| {
        let (sender, receiver) = watch(0usize);
        let done = AtomicUsize::new(0);
        scope(|s| {
            for who in 0..6usize {
                let (sender, done) = (&sender, &done);
                s.spawn(move || {
                    for round in 0..rounds(300) {
                        let add = |value: &mut usize| {
                            *value += 1;
                            yield_now();
                        };
                        let patience = if who % 2 == 0 { LONG } else { MICRO * (round % 20) as u32 };
                        // One that was cut short and one that came in time say so truly.
                        let _ = timeout(patience, || sender.send_modify(add).map(|()| done.fetch_add(1, SeqCst)).is_ok());
                    }
                });
            }
            for _ in 0..rounds(300) {
                let sender = sender.clone();
                let fiber = s.spawn(move || sender.send_modify(|value| *value += 1).is_ok());
                yield_now();
                fiber.cancel();
                if fiber.join().unwrap() {
                    done.fetch_add(1, SeqCst);
                }
            }
        });
        assert!(done.load(SeqCst) >= rounds(300) * 3);
        assert_eq!(*receiver.borrow(), done.load(SeqCst));
    });
}

/// The condition sends: there is another value whenever it is about to wait, so it never does. It gives up by itself if nothing else ends it.
#[test]
fn a_wait_for_a_value_ends_in_time_though_there_is_always_another() {
    everywhere(|| {
        let (sender, mut receiver) = watch(0);
        let (begun, mut looks) = (Instant::now(), 0);
        let looked = receiver.wait_for_timeout(
            |_| {
                looks += 1;
                sender.send(looks).unwrap();
                begun.elapsed() > 1_000 * MILLI
            },
            5 * MILLI,
        );
        assert!(looked.unwrap_err().is_timeout());
        assert!(begun.elapsed() >= 5 * MILLI);
        // What is there when the time is up is looked at, and a time-out of none looks once.
        assert_eq!(*receiver.wait_for_timeout(|value| *value == looks, Duration::ZERO).unwrap(), looks);
    });
}

#[test]
fn a_wait_for_a_value_has_timed_forms() {
    everywhere(|| {
        let (sender, mut receiver) = watch(1);
        assert_eq!(*receiver.wait_for_timeout(|value| *value == 1, Duration::ZERO).unwrap(), 1);
        assert!(receiver.wait_for_timeout(|value| *value == 2, MICRO).unwrap_err().is_timeout());
        assert!(receiver.wait_for_deadline(|value| *value == 2, Instant::now()).unwrap_err().is_timeout());
        // Changes that do not do do not put the end off.
        let (ended, theirs) = (Arc::new(AtomicBool::new(false)), sender.clone());
        let restless = {
            let ended = ended.clone();
            spawn(move || {
                let mut value = 10;
                while !ended.load(SeqCst) {
                    value += 1;
                    theirs.send(value).unwrap();
                    yield_now();
                }
            })
        };
        assert!(receiver.wait_for_timeout(|value| *value == 2, 5 * MILLI).unwrap_err().is_timeout());
        ended.store(true, SeqCst);
        restless.join().unwrap();
        sender.send(3).unwrap();
        assert_eq!(*receiver.wait_for_timeout(|value| *value == 3, Duration::MAX).unwrap(), 3);
        let sends = spawn(move || sender.send(4).map(|()| sender));
        assert_eq!(*receiver.wait_for_deadline(|value| *value == 4, Instant::now() + LONG).unwrap(), 4);
        drop(sends.join().unwrap());
        assert_eq!(receiver.wait_for_timeout(|value| *value == 5, LONG).unwrap_err(), RecvError::Disconnected);
    });
}

#[test]
fn watched_values_are_dropped_once() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = watch(Counted(dropped.clone()));
    let kept = receiver.borrow();
    (0..5).for_each(|_| sender.send(Counted(dropped.clone())).unwrap());
    assert_eq!(dropped.load(SeqCst), 4);
    drop(kept);
    assert_eq!(dropped.load(SeqCst), 5);
    sender.send_modify(|_| ()).unwrap();
    assert_eq!(dropped.load(SeqCst), 6);
    drop((sender, receiver));
    assert_eq!((dropped.load(SeqCst), Arc::strong_count(&dropped)), (7, 1));
}

/// Whoever drops a value has no turn to write any more: a destructor that sends to its own channel does not wait for itself.
#[test]
fn a_watched_value_may_send_when_it_is_dropped() {
    #[derive(Clone)]
    struct Sends(&'static str, Option<watch::Sender<Sends>>);
    impl Drop for Sends {
        fn drop(&mut self) {
            if let Some(sender) = self.1.take() {
                let _ = sender.send_modify(|value| *value = Sends("from a destructor", None));
            }
        }
    }
    everywhere(|| {
        let (sender, receiver) = watch(Sends("first", None));
        let armed = |name| Sends(name, Some(sender.clone()));
        // Where a send would have to wait, it panics.
        no_suspend(|| {
            sender.send(armed("old")).unwrap();
            sender.send_modify(|value| value.1 = None).unwrap();
            assert_eq!(receiver.borrow().0, "from a destructor");
            sender.send(Sends("first", None)).unwrap();
            let panics = AssertUnwindSafe(|| {
                sender.send_modify(|value| {
                    *value = armed("copy");
                    panic!("as planned");
                })
            });
            assert!(catch_unwind(panics).is_err());
            assert_eq!(receiver.borrow().0, "from a destructor");
            // Sent to by its own closure: the modifier is the last to have the old value.
            sender.send(armed("old")).unwrap();
            sender.send_modify(|_| sender.send(Sends("sent", None)).unwrap()).unwrap();
            assert_eq!(receiver.borrow().0, "from a destructor");
            sender.send(armed("old")).unwrap();
            let sends_and_panics = AssertUnwindSafe(|| {
                sender.send_modify(|_| {
                    sender.send(Sends("sent", None)).unwrap();
                    panic!("as planned");
                })
            });
            assert!(catch_unwind(sends_and_panics).is_err());
            assert_eq!(receiver.borrow().0, "from a destructor");
        });
    });
}

/// The room that was taken at the start is there as long as the channel: who receives later finds it.
#[test]
fn a_broadcast_channel_keeps_its_room_when_the_last_receiver_goes() {
    const NAME: &str = "a_broadcast_channel_keeps_its_room_when_the_last_receiver_goes";
    const ROOM: usize = 10_000;
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let (sender, receiver) = broadcast::<u64>(ROOM);
    let send_all = || (0..ROOM as u64).for_each(|value| assert!(sender.send(value).is_ok()));
    let before = bytes();
    // Whatever else the process takes meanwhile is less than half of the room.
    let is_there = || bytes() + ROOM * size_of::<usize>() / 2 > before;
    send_all();
    drop(receiver);
    assert!(is_there(), "its room is gone: {} of {before} bytes", bytes());
    let mut later = sender.subscribe();
    send_all();
    assert_eq!(later.recv(), Ok(0));
}
