//! Channels: no schedule loses, doubles or strands a message, nor leaves two that could meet both waiting (shuttle reports that as a deadlock).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use crate::chan::{Cause, Receiver, RecvError, Sender, bounded, broadcast, oneshot, unbounded, watch};
use crate::os::lock::switching_at_locks;
use crate::rt::runtime::with_workers;
use crate::rt::spawn::Builder;
use crate::scenarios::{explore, in_own_process};
use crate::sched::groups::Groups;
use crate::{JoinHandle, select, timeout, yield_now};

fn start<T: Send + 'static>(group: &Arc<Groups>, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn_in(group, body).unwrap()
}

#[test]
fn every_message_is_received_once_in_order() {
    in_own_process!();
    for capacity in [0, 1, 2, usize::MAX] {
        explore(move || {
            with_workers(2, |group| {
                let (sender, receiver) = if capacity == usize::MAX { unbounded() } else { bounded(capacity) };
                let senders: Vec<_> = (0..2usize)
                    .map(|who| {
                        let sender = sender.clone();
                        start(group, move || (0..2usize).for_each(|i| sender.send((who, i)).unwrap()))
                    })
                    .collect();
                drop(sender);
                let takes = |receiver: Receiver<(usize, usize)>| move || receiver.iter().collect::<Vec<_>>();
                // One receiver is a fiber, the other this thread.
                let fiber = start(group, takes(receiver.clone()));
                let here = takes(receiver)();
                let there = fiber.join().unwrap();
                for got in [&here, &there] {
                    for who in 0..2 {
                        assert!(got.iter().filter(|m| m.0 == who).is_sorted());
                    }
                }
                let mut all = [here, there].concat();
                all.sort_unstable();
                assert_eq!(all, [(0, 0), (0, 1), (1, 0), (1, 1)]);
                senders.into_iter().for_each(|s| s.join().unwrap());
            });
        });
    }
}

/// Two that each either send to or receive from the other, over two channels: they meet, and what one sent the other has.
fn meets(capacity: usize, rounds: usize, on_thread: bool) {
    explore(move || {
        with_workers(2, |group| {
            let ((s1, r1), (s2, r2)) = (bounded(capacity), bounded(capacity));
            let body = move |sender: Sender<usize>, receiver: Receiver<usize>| {
                let (mut sent, mut received) = (0, 0);
                for i in 1..=rounds {
                    select! {
                        send(sender, i) -> result => sent += if result.is_ok() { i } else { 0 },
                        recv(receiver) -> message => received += message.unwrap_or(0),
                    }
                }
                (sent, received, receiver)
            };
            let one = start(group, move || body(s1, r2));
            let two = if on_thread { body(s2, r1) } else { start(group, move || body(s2, r1)).join().unwrap() };
            let one = one.join().unwrap();
            // What is left in the buffers was sent too.
            let left = |receiver: &Receiver<usize>| receiver.try_iter().sum::<usize>();
            assert_eq!((one.0, two.0), (two.1 + left(&two.2), one.1 + left(&one.2)));
        });
    });
}

#[test]
fn two_that_select_in_both_directions_meet() {
    in_own_process!();
    meets(0, 3, false);
    meets(0, 2, true);
    meets(1, 2, false);
}

/// Two that select over the same two channels named in opposite orders, against two plain operations: gates are not taken crosswise.
#[test]
fn selects_with_channels_in_any_order_do_not_block_each_other() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let ((s1, r1), (s2, r2)) = (bounded(0), bounded(0));
            let takers = [(r1.clone(), r2.clone()), (r2, r1)].map(|(a, b)| {
                start(group, move || {
                    select! {
                        recv(a) -> message => message.unwrap(),
                        recv(b) -> message => message.unwrap(),
                        recv(a) -> message => message.unwrap(),
                    }
                })
            });
            // Both channels stay connected: an end would fire an arm.
            let _keep = (s1.clone(), s2.clone());
            let gives = start(group, move || s1.send(1).unwrap());
            s2.send(2).unwrap();
            gives.join().unwrap();
            let got: usize = takers.into_iter().map(|t| t.join().unwrap()).sum();
            assert_eq!(got, 3);
        });
    });
}

/// At every moment one of two channels can be received from: the second gets its message, or its end, before the first loses its own. No schedule takes `default`.
#[test]
fn a_default_is_not_taken_while_some_arm_can_be_done() {
    in_own_process!();
    // In both orders: which arm is tried first is the same in each schedule.
    for (closes, swapped) in [(false, false), (false, true), (true, false), (true, true)] {
        explore(move || {
            with_workers(2, |group| {
                let ((s1, r1), (s2, r2)) = (bounded(1), bounded(1));
                s1.send(1).unwrap();
                let (a, b) = if swapped { (r2.clone(), r1.clone()) } else { (r1.clone(), r2.clone()) };
                let begun = Arc::new(AtomicBool::new(false));
                let begins = begun.clone();
                let looks = start(group, move || {
                    begins.store(true, SeqCst);
                    switching_at_locks(|| {
                        select! {
                            recv(a) -> _ => true,
                            recv(b) -> _ => true,
                            default => false,
                        }
                    })
                });
                while !begun.load(SeqCst) {
                    shuttle::thread::yield_now();
                }
                let kept = if closes {
                    drop(s2);
                    None
                } else {
                    s2.send(2).unwrap();
                    Some(s2)
                };
                let _ = r1.try_recv();
                assert!(looks.join().unwrap(), "it found nothing, although something was always there");
                drop((s1, kept, r2));
            });
        });
    }
}

/// A send, a deadline and a cancel race one receive, plain or in a select: one of them wins, and the message is received or still there.
fn races(selects: bool) {
    explore(move || {
        with_workers(2, |group| {
            let (sender, receiver) = bounded(1);
            let (_idle, other) = bounded::<u32>(0);
            let keep = receiver.clone();
            let waits = start(group, move || {
                let limit = Duration::from_micros(30);
                if selects {
                    select! {
                        recv(receiver) -> message => message,
                        recv(other) -> message => message,
                        default(limit) => Err(RecvError::TimedOut),
                    }
                } else {
                    receiver.recv_timeout(limit)
                }
            });
            let gives = start(group, move || sender.send(7).unwrap());
            waits.cancel();
            gives.join().unwrap();
            match waits.join().unwrap() {
                Ok(message) => assert_eq!((message, keep.len()), (7, 0)),
                Err(error) => {
                    assert!(error.is_timeout() || error.is_cancelled());
                    assert_eq!(keep.recv(), Ok(7));
                }
            }
        });
    });
}

#[test]
fn a_send_a_deadline_and_a_cancel_have_one_winner() {
    in_own_process!();
    races(false);
}

#[test]
fn a_send_a_deadline_and_a_cancel_of_a_select_have_one_winner() {
    in_own_process!();
    races(true);
}

/// As above, for the message of one that waits to send: the receiver has it, or it is given back.
#[test]
fn a_receive_a_deadline_and_a_cancel_have_one_winner() {
    in_own_process!();
    for selects in [false, true] {
        explore(move || {
            with_workers(2, |group| {
                let (sender, receiver) = bounded(0);
                let (other, _keep) = bounded(0);
                let gives = start(group, move || {
                    let value = || String::from("message");
                    let sent = if selects {
                        timeout(Duration::from_micros(30), || {
                            select! {
                                send(sender, value()) -> sent => sent,
                                send(other, value()) -> sent => sent,
                            }
                        })
                        .unwrap_or(Err(crate::chan::SendError { value: value(), cause: Cause::TimedOut }))
                    } else {
                        sender.send_timeout(value(), Duration::from_micros(30))
                    };
                    sent.map_err(|error| {
                        assert!(error.cause != Cause::Disconnected && error.value == value());
                    })
                });
                let takes = start(group, move || receiver.recv());
                gives.cancel();
                match (gives.join().unwrap(), takes.join().unwrap()) {
                    (Ok(()), got) => assert_eq!(got.as_deref(), Ok("message")),
                    (Err(()), got) => assert_eq!(got, Err(RecvError::Disconnected)),
                }
            });
        });
    }
}

/// The last handle of a side goes as others come to wait there, and in selects: all learn of it.
#[test]
fn an_end_reaches_all_who_wait() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let (sender, receiver) = bounded::<u32>(1);
            let (_keep, idle) = bounded::<u32>(0);
            let plain = start(group, {
                let receiver = receiver.clone();
                move || receiver.recv()
            });
            let selects = start(group, move || {
                select! {
                    recv(idle) -> _ => unreachable!(),
                    recv(receiver) -> message => message,
                }
            });
            drop(sender);
            assert_eq!((plain.join().unwrap(), selects.join().unwrap()), (Err(RecvError::Disconnected), Err(RecvError::Disconnected)));
        });
    });
}

/// A oneshot against its receiver's time-out and against the end of either side.
#[test]
fn a_oneshot_is_received_or_given_back() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let (sender, receiver) = oneshot();
            let sends = start(group, move || sender.send(5).is_ok());
            let got = receiver.recv_timeout(Duration::from_micros(20));
            // Once more: it may have come since. If this side goes first, the send fails.
            let late = receiver.try_recv();
            drop(receiver);
            let sent = sends.join().unwrap();
            assert!(sent || (got.is_err() && late.is_err()));
            assert!(!(got.is_ok() && late.is_ok()));
        });
    });
}

/// Two subscribers, one of which waits and one of which is slow, against a sender that goes on: both see all, or are told how much they missed.
#[test]
fn a_broadcast_reaches_every_subscriber() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let (sender, first) = broadcast(2);
            let second = sender.subscribe();
            let follow = |mut receiver: broadcast::Receiver<u64>| {
                move || {
                    let mut next = 0;
                    loop {
                        match receiver.recv() {
                            Ok(value) => {
                                assert_eq!(value, next);
                                next += 1;
                            }
                            Err(broadcast::RecvError::Lagged(missed)) => next += missed,
                            Err(error) => break (next, error),
                        }
                    }
                }
            };
            let fiber = start(group, follow(first));
            let sends = start(group, move || {
                for i in 0..4u64 {
                    assert_eq!(sender.send(i), Ok(2));
                    yield_now();
                }
            });
            let here = follow(second)();
            sends.join().unwrap();
            assert_eq!([here, fiber.join().unwrap()], [(4, broadcast::RecvError::Disconnected); 2]);
        });
    });
}

/// A watcher sees the last value, however its looks and the changes fall; changes by turns are not lost.
#[test]
fn a_watcher_sees_the_last_value() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let (sender, mut receiver) = watch(0);
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    let sender = sender.clone();
                    start(group, move || {
                        let add = |value: &mut i32| {
                            *value += 1;
                            yield_now();
                        };
                        sender.send_modify(add).unwrap();
                    })
                })
                .collect();
            drop(sender);
            let mut seen = 0;
            while receiver.changed().is_ok() {
                let now = *receiver.borrow();
                assert!(now > seen || now == 2);
                seen = now;
            }
            assert_eq!(*receiver.borrow(), 2);
            writers.into_iter().for_each(|w| w.join().unwrap());
        });
    });
}

/// Three take turns to modify while one of them is cancelled and another value is sent: no turn is lost, and what is there in the end is what some order of them makes.
#[test]
fn turns_a_cancel_and_a_send_have_an_order() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let (sender, receiver) = watch(0);
            let add = |amount: i32| {
                let sender = sender.clone();
                let body = move || {
                    let add = |value: &mut i32| {
                        *value += amount;
                        yield_now();
                    };
                    sender.send_modify(add).is_ok()
                };
                start(group, body)
            };
            let (first, second, cut) = (add(1), add(2), add(4));
            cut.cancel();
            // A thread, beside them.
            sender.send(100).unwrap();
            let was_done = cut.join().unwrap();
            assert!(first.join().unwrap() && second.join().unwrap());
            let left = *receiver.borrow() - 100;
            assert!((0..=7).contains(&left) && (was_done || left & 4 == 0), "{left}");
            sender.send_modify(|value| *value = 1).unwrap();
            assert_eq!(*receiver.borrow(), 1);
        });
    });
}
