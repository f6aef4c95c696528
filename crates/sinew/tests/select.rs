//! `select!` and `Select`: syntax, choice, hand-over in both directions, ends, time-outs, cancels.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{On, await_until, in_child, is_child, poll_until};
use sinew::chan::{Cause, Receiver, RecvError, Select, SendError, Sender, TryRecvError, bounded, never, unbounded};
use sinew::{Runtime, no_suspend, select, shield, spawn, timeout, yield_now};

const MICRO: Duration = Duration::from_micros(1);
const MILLI: Duration = Duration::from_millis(1);
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

/// `SINEW_ROUNDS=<factor>` asks for so many times as many rounds as CI runs.
fn rounds(count: usize) -> usize {
    count * std::env::var("SINEW_ROUNDS").map_or(1, |n| n.parse::<usize>().expect("SINEW_ROUNDS is a number"))
}

fn workers(count: usize) -> Runtime {
    Runtime::builder().workers(count).build().unwrap()
}

/// Runs `f` in a fiber of a runtime with one worker, in one with two, and on a plain thread.
fn everywhere(f: impl Fn() + Send + Sync + Copy + 'static) {
    workers(1).run(f);
    workers(2).run(f);
    std::thread::spawn(f).join().unwrap();
}

/// Counts its drops.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Counts the bytes in use.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn an_arm_that_can_be_done_fires() {
    everywhere(|| {
        let (s1, r1) = bounded(1);
        let (s2, r2) = unbounded();
        select! {
            recv(r1) -> _ => unreachable!(),
            recv(r2) -> _ => unreachable!(),
            default => {}
        }
        s1.send(1).unwrap();
        select! {
            recv(r1) -> message => assert_eq!(message, Ok(1)),
            recv(r2) -> _ => unreachable!(),
        }
        s2.send("two").unwrap();
        let got = select! {
            recv(r1) -> message => message.map(|n| n.to_string()),
            recv(r2) -> message => message.map(String::from)
        };
        assert_eq!(got.as_deref(), Ok("two"));
        s1.send(3).unwrap();
        // A send that has to wait, and one that need not.
        select! {
            send(s1, 4) -> _ => unreachable!(),
            send(s2, "four") -> sent => assert_eq!(sent, Ok(())),
        }
        assert_eq!((r1.recv(), r1.try_recv(), r2.recv()), (Ok(3), Err(TryRecvError::Empty), Ok("four")));
    });
}

/// All that the grammar allows, with types and control flow that a closure could not have.
#[test]
fn the_syntax_is_crossbeams() {
    fn passes_errors_on(receiver: &Receiver<u32>) -> Result<u32, RecvError> {
        loop {
            select! {
                recv(receiver) -> message => {
                    let message = message?;
                    if message == 1 { continue }
                    if message == 2 { break Ok(20) }
                    return Ok(message);
                }
                default(LONG) => unreachable!()
            }
        }
    }
    let (sender, receiver) = unbounded();
    [1, 2, 1, 3].into_iter().for_each(|n| sender.send(n).unwrap());
    assert_eq!((passes_errors_on(&receiver), passes_errors_on(&receiver)), (Ok(20), Ok(3)));
    drop(sender);
    assert_eq!(passes_errors_on(&receiver), Err(RecvError::Disconnected));

    // Pointers of all kinds, temporaries, patterns, commas where they may be, and where they need not.
    let (sender, receiver) = bounded(9);
    let (boxed, shared, counted) = (Box::new(receiver.clone()), Arc::new(sender.clone()), Rc::new(&receiver));
    let mut pairs = vec![(sender.clone(), receiver.clone())];
    select! { send(shared, (1, "a")) -> sent => { sent.unwrap() } }
    select! { send(&&*shared, (2, "b"),) -> (Ok(()) | Err(_)) => (), }
    select!(send(pairs[0].0, (3, "c")) -> sent => sent.unwrap());
    select! { send(pairs.first().unwrap().0.clone(), (4, "d")) -> _sent => {}, default() => {} }
    let (mut numbers, mut letters) = (0, String::new());
    loop {
        let (number, letter) = select! {
            recv(boxed,) -> message => message.unwrap(),
            recv(counted) -> message => { message.unwrap() }
            recv(pairs[0].1) -> message => match message {
                Ok(message) => message,
                Err(_) => unreachable!(),
            },
            recv(receiver.clone()) -> message => message.unwrap(),
            default => break,
        };
        numbers += number;
        letters += letter;
    }
    assert_eq!((numbers, letters.as_str()), (10, "abcd"));
    // The channels are the body's own again: it may move them.
    select! {
        recv(pairs[0].1) -> _ => unreachable!(),
        default => pairs.clear(),
    }
    select! { default => {} }
    let zero = select! { default(MICRO) => 0 };
    assert_eq!(zero, 0);
    assert_eq!(sinew::chan::select! { recv(never::<u8>()) -> _ => 1, default => 2 }, 2);
}

#[test]
fn more_arms_than_anyone_needs() {
    let (sender, receiver) = unbounded();
    let idle = never::<u32>();
    sender.send(7).unwrap();
    let got = select! {
        recv(idle) -> _ => 1, recv(idle) -> _ => 2, recv(idle) -> _ => 3, recv(idle) -> _ => 4, recv(idle) -> _ => 5, recv(idle) -> _ => 6,
        recv(idle) -> _ => 1, recv(idle) -> _ => 2, recv(idle) -> _ => 3, recv(idle) -> _ => 4, recv(idle) -> _ => 5, recv(idle) -> _ => 6,
        recv(idle) -> _ => 1, recv(idle) -> _ => 2, recv(idle) -> _ => 3, recv(idle) -> _ => 4, recv(idle) -> _ => 5, recv(idle) -> _ => 6,
        recv(idle) -> _ => 1, recv(idle) -> _ => 2, recv(idle) -> _ => 3, recv(idle) -> _ => 4, recv(idle) -> _ => 5, recv(idle) -> _ => 6,
        recv(idle) -> _ => 1, recv(idle) -> _ => 2, recv(idle) -> _ => 3, recv(idle) -> _ => 4, recv(idle) -> _ => 5, recv(idle) -> _ => 6,
        recv(idle) -> _ => 1, recv(idle) -> _ => 2, recv(idle) -> _ => 3, recv(idle) -> _ => 4, recv(idle) -> _ => 5, recv(idle) -> _ => 6,
        recv(receiver) -> message => message.unwrap(),
        recv(idle) -> _ => 1, recv(idle) -> _ => 2, recv(idle) -> _ => 3, recv(idle) -> _ => 4, recv(idle) -> _ => 5, recv(idle) -> _ => 6,
    };
    assert_eq!(got, 7);
}

#[test]
fn values_are_evaluated_once_and_dropped_once() {
    everywhere(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let made = AtomicUsize::new(0);
        let make = || {
            made.fetch_add(1, SeqCst);
            Counted(dropped.clone())
        };
        let (full, keep) = bounded(0);
        let (open, receiver) = bounded(1);
        for _ in 0..10 {
            select! {
                send(full, make()) -> _ => unreachable!(),
                send(open, make()) -> sent => sent.unwrap(),
            }
            // The one that was not sent is dropped before the body runs, or at the latest now.
            assert_eq!(made.load(SeqCst) - dropped.load(SeqCst), 1);
            drop(receiver.recv().unwrap());
            assert_eq!(made.load(SeqCst), dropped.load(SeqCst));
        }
        // After a wait: by a time-out, and by the end of the other side, which gives it back.
        select! {
            send(full, make()) -> _ => unreachable!(),
            send(full, make()) -> _ => unreachable!(),
            default(MILLI) => {}
        }
        assert_eq!(made.load(SeqCst), dropped.load(SeqCst));
        let ends = spawn(move || drop(keep));
        let back = select! {
            send(full, make()) -> sent => sent.unwrap_err(),
            recv(never::<u8>()) -> _ => unreachable!(),
        };
        assert_eq!((back.cause, made.load(SeqCst) - dropped.load(SeqCst)), (Cause::Disconnected, 1));
        drop(back);
        ends.join().unwrap();
        assert_eq!(made.load(SeqCst), dropped.load(SeqCst));
    });
}

#[test]
fn a_disconnected_channel_can_be_done() {
    everywhere(|| {
        let (sender, receiver) = bounded::<u8>(1);
        let (other, gone) = bounded::<u8>(1);
        drop((sender, gone));
        select! {
            recv(receiver) -> message => assert_eq!(message, Err(RecvError::Disconnected)),
            recv(never::<u8>()) -> _ => unreachable!(),
        }
        select! {
            send(other, 7) -> sent => assert_eq!(sent, Err(SendError { value: 7, cause: Cause::Disconnected })),
            default => unreachable!(),
        }
        // As it happens.
        let (sender, receiver) = bounded::<u8>(1);
        let ends = spawn(move || drop(sender));
        select! {
            recv(receiver) -> message => assert_eq!(message, Err(RecvError::Disconnected)),
            recv(never::<u8>()) -> _ => unreachable!(),
        }
        ends.join().unwrap();
    });
}

#[test]
fn a_wait_ends_by_whichever_comes() {
    everywhere(|| {
        for which in 0..4 {
            let (s1, r1) = bounded(0);
            let (s2, r2) = bounded(1);
            let (s3, r3) = bounded(0);
            let (s4, r4) = bounded(1);
            s4.send(0).unwrap();
            let peer = spawn(move || {
                match which {
                    0 => s1.send(10).unwrap(),
                    1 => s2.send(11).unwrap(),
                    2 => assert_eq!(r3.recv(), Ok(12)),
                    _ => assert_eq!((r4.recv(), r4.recv()), (Ok(0), Ok(13))),
                }
                (s1, s2, r3, r4)
            });
            let fired = select! {
                recv(r1) -> message => message.unwrap(),
                recv(r2) -> message => message.unwrap(),
                send(s3, 12) -> sent => sent.map(|()| 12).unwrap(),
                send(s4, 13) -> sent => sent.map(|()| 13).unwrap(),
            };
            assert_eq!(fired, 10 + which);
            let (s1, s2, r3, r4) = peer.join().unwrap();
            // Nothing is left in line: a waiter that stayed would take or give.
            assert!(s1.try_send(1).is_err() && r3.try_recv().is_err());
            s2.send(1).unwrap();
            let left = if which == 3 { vec![] } else { vec![0] };
            assert_eq!((r2.recv(), r4.try_iter().collect::<Vec<_>>(), r1.try_recv().is_err()), (Ok(1), left, true));
        }
    });
}

/// Claims: of arms that can all be done, each fires about as often as the others; also those that wait.
#[test]
fn the_choice_is_fair() {
    const ROUNDS: usize = 10_000;
    let channels: Vec<_> = (0..4).map(|_| unbounded()).collect();
    channels.iter().for_each(|(sender, _)| (0..ROUNDS).for_each(|i| sender.send(i).unwrap()));
    let mut hits = [0; 6];
    let idle = never::<usize>();
    let (sink, drain) = unbounded();
    for _ in 0..ROUNDS {
        select! {
            recv(channels[0].1) -> _ => hits[0] += 1,
            recv(channels[1].1) -> _ => hits[1] += 1,
            // One that is never ready does not give its share to its neighbour.
            recv(idle) -> _ => unreachable!(),
            recv(channels[2].1) -> _ => hits[2] += 1,
            recv(channels[3].1) -> _ => hits[3] += 1,
            send(sink, 1) -> _ => hits[4] += 1,
            send(sink, 2) -> _ => hits[5] += 1,
        }
    }
    hits.iter().for_each(|&n| assert!((ROUNDS / 6 * 8 / 10..ROUNDS / 6 * 12 / 10).contains(&n), "{hits:?}"));
    assert_eq!(drain.len(), hits[4] + hits[5]);

    // A select that waits is served by its channels in turn, as any waiter is. All on one worker: else it is the quicker of two workers to wake that serves it.
    let hits = sinew::Runtime::builder().workers(1).build().unwrap().run(|| {
        let (a, b) = (bounded(0), bounded(0));
        let peers = [a.0, b.0].map(|sender: Sender<usize>| spawn(move || (0..ROUNDS).take_while(|i| sender.send(*i).is_ok()).count()));
        let mut hits = [0; 2];
        for _ in 0..ROUNDS {
            select! {
                recv(a.1) -> _ => hits[0] += 1,
                recv(b.1) -> _ => hits[1] += 1,
            }
        }
        drop((a.1, b.1));
        peers.into_iter().for_each(|p| _ = p.join().unwrap());
        hits
    });
    assert!(hits.iter().all(|&n| n > ROUNDS / 10), "{hits:?}");
}

#[test]
fn defaults_run_when_nothing_can_be_done() {
    everywhere(|| {
        let (sender, receiver) = bounded(0);
        let before = Instant::now();
        let which = select! {
            recv(receiver) -> _ => 1,
            send(sender, 5) -> _ => 2,
            default(2 * MILLI) => 3,
        };
        assert!(which == 3 && before.elapsed() >= 2 * MILLI, "it met itself, or did not wait");
        let peer = spawn(move || sender.send(6));
        let which = select! {
            recv(receiver) -> message => message.unwrap(),
            default(LONG) => 0,
        };
        assert_eq!(which, 6);
        peer.join().unwrap().unwrap();
    });
}

#[test]
fn the_first_arm_fires_with_what_cuts_it_short() {
    let fiber = spawn(|| {
        let (sender, receiver) = bounded(1);
        sender.send(1).unwrap();
        sinew::current().cancel();
        // At entry, though another could be done.
        select! {
            send(sender, 2) -> sent => assert_eq!(sent, Err(SendError { value: 2, cause: Cause::Cancelled })),
            recv(receiver) -> _ => unreachable!(),
        }
        select! {
            recv(never::<u8>()) -> message => assert_eq!(message, Err(RecvError::Cancelled)),
            recv(receiver) -> _ => unreachable!(),
            default(LONG) => unreachable!(),
        }
        select! { default(LONG) => {} }
        // One that never waits does not fail.
        select! {
            recv(never::<u8>()) -> _ => unreachable!(),
            recv(receiver) -> message => assert_eq!(message, Ok(1)),
            default => unreachable!(),
        }
        shield(|| select! { send(sender, 3) -> sent => assert_eq!(sent, Ok(())) });
    });
    fiber.join().unwrap();
    everywhere(|| {
        // Under way.
        let waits = spawn(|| {
            let idle = never::<u8>();
            select! {
                recv(idle) -> message => message,
                recv(never::<u8>()) -> _ => unreachable!(),
            }
        });
        waits.cancel();
        assert_eq!(waits.join().unwrap(), Err(RecvError::Cancelled));
        let (full, keep) = bounded(0);
        let cut = timeout(MILLI, || {
            select! {
                send(full, String::from("back")) -> sent => assert_eq!(sent, Err(SendError { value: String::from("back"), cause: Cause::TimedOut })),
                recv(never::<u8>()) -> _ => unreachable!(),
                default(LONG) => unreachable!(),
            }
        });
        assert!(cut.is_err() && keep.try_recv().is_err());
        // The default's own time is not the deadline's.
        let own = timeout(LONG, || select! { recv(keep) -> _ => 1, default(MICRO) => 2 });
        assert_eq!(own, Ok(2));
    });
}

#[test]
fn a_wait_is_refused_where_suspending_is() {
    everywhere(|| {
        let (sender, receiver) = bounded(0);
        let waits = || no_suspend(|| select! { recv(receiver) -> _ => (), send(sender, 1) -> _ => () });
        let panic = catch_unwind(AssertUnwindSafe(waits)).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("would suspend"));
        assert!(sender.try_send(1).is_err() && receiver.try_recv().is_err(), "a waiter was left behind");
        no_suspend(|| select! { recv(receiver) -> _ => unreachable!(), default => () });
    });
}

/// Go's `chan/select3`-like: every pair of a select and a plain operation, or of two selects, in both directions, over channels of every kind.
#[test]
fn messages_move_between_all_kinds_of_ends() {
    fn give(selects: bool, sender: &Sender<usize>, other: &Sender<usize>, value: usize) {
        if selects {
            select! {
                send(sender, value) -> sent => sent.unwrap(),
                send(other, value) -> sent => sent.unwrap(),
            }
        } else {
            sender.send(value).unwrap();
        }
    }
    fn take(selects: bool, receiver: &Receiver<usize>, other: &Receiver<usize>) -> Option<usize> {
        let from = if selects {
            select! {
                recv(receiver) -> message => (message, other),
                recv(other) -> message => (message, receiver),
            }
        } else {
            (receiver.recv(), other)
        };
        match from {
            (Ok(value), _) => Some(value),
            (Err(_), left) => left.recv().ok(),
        }
    }
    let total = rounds(if cfg!(debug_assertions) { 2_000 } else { 50_000 });
    let runtime = workers(2);
    for capacity in [0, 1, 10] {
        for (gives, takes) in [(false, true), (true, false), (true, true)] {
            let ((s1, r1), (s2, r2)) = (bounded(capacity), bounded(capacity));
            let givers: Vec<_> = (0..3)
                .map(|who| {
                    let (s1, s2) = (s1.clone(), s2.clone());
                    let body = move || {
                        for i in 0..total {
                            // By turns first to one, then to the other.
                            let (first, second) = if i % 2 == 0 || !takes { (&s1, &s2) } else { (&s2, &s1) };
                            give(gives, first, second, who * total + i);
                        }
                    };
                    runtime.spawn(body)
                })
                .collect();
            drop((s1, s2));
            let takers: Vec<_> = (0..3)
                .map(|_| {
                    let (r1, r2) = (r1.clone(), r2.clone());
                    let body = move || {
                        let mut got = Vec::new();
                        while let Some(value) = take(takes, &r1, &r2) {
                            got.push(value);
                        }
                        got
                    };
                    runtime.spawn(body)
                })
                .collect();
            drop((r1, r2));
            givers.into_iter().for_each(|g| g.join().unwrap());
            let mut all: Vec<_> = takers.into_iter().flat_map(|t| t.join().unwrap()).collect();
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..3 * total), "capacity {capacity}, {} of {}", all.len(), 3 * total);
        }
    }
}

/// Two fibers that each either send to or receive from the other, over two channels without room: they always meet.
#[test]
fn two_that_select_in_both_directions_meet() {
    let total = rounds(if cfg!(debug_assertions) { 20_000 } else { 200_000 });
    for threads in [false, true] {
        let ((s1, r1), (s2, r2)) = (bounded(0), bounded(0));
        let body = move |sender: Sender<usize>, receiver: Receiver<usize>| {
            let (mut sent, mut received) = (0, 0);
            for i in 0..total {
                select! {
                    send(sender, i) -> result => match result {
                        Ok(()) => sent += i,
                        Err(_) => break,
                    },
                    recv(receiver) -> message => match message {
                        Ok(message) => received += message,
                        Err(_) => break,
                    },
                }
            }
            (sent, received)
        };
        let runtime = workers(2);
        let one = runtime.spawn(move || body(s1, r2));
        let (a, b) = if threads {
            let two = std::thread::spawn(move || body(s2, r1));
            (one.join().unwrap(), two.join().unwrap())
        } else {
            let two = runtime.spawn(move || body(s2, r1));
            (one.join().unwrap(), two.join().unwrap())
        };
        assert_eq!(a.0, b.1, "what one sent the other received");
        assert_eq!(a.1, b.0);
    }
}

/// Go's `chan/doubleselect`: a select with a second channel that is never ready neither loses nor repeats a message.
#[test]
fn a_select_fires_one_arm_at_a_time() {
    let total = rounds(if cfg!(debug_assertions) { 20_000 } else { 100_000 });
    let runtime = workers(2);
    let channels: Vec<_> = (0..4).map(|_| bounded(0)).collect();
    let senders: Vec<Sender<usize>> = channels.iter().map(|c| c.0.clone()).collect();
    let (done, ended) = bounded(0);
    let sender = runtime.spawn(move || {
        for i in 0..total {
            select! {
                send(senders[0], i) -> sent => sent.unwrap(),
                send(senders[1], i) -> sent => sent.unwrap(),
                send(senders[2], i) -> sent => sent.unwrap(),
                send(senders[3], i) -> sent => sent.unwrap(),
            }
        }
        drop(done);
    });
    let (merge, merged) = unbounded();
    let receivers: Vec<_> = channels
        .into_iter()
        .map(|(_, receiver)| {
            let (merge, ended): (Sender<usize>, Receiver<()>) = (merge.clone(), ended.clone());
            runtime.spawn(move || {
                loop {
                    select! {
                        recv(receiver) -> message => match message {
                            Ok(message) => merge.send(message).unwrap(),
                            Err(_) => return,
                        },
                        recv(ended) -> _ => return,
                    }
                }
            })
        })
        .collect();
    drop(merge);
    // In order, since each send ends before the next begins.
    let mut all: Vec<_> = merged.iter().collect();
    sender.join().unwrap();
    receivers.into_iter().for_each(|r| r.join().unwrap());
    all.sort_unstable();
    assert!(all.into_iter().eq(0..total));
}

/// Selects that give up, are cancelled, and are met, all at once: what was sent is what was received.
#[test]
fn timeouts_and_cancels_against_selects_lose_and_double_nothing() {
    let total = rounds(if cfg!(debug_assertions) { 60_000 } else { 200_000 });
    for capacity in [0, 1] {
        let runtime = workers(2);
        let ((s1, r1), (s2, r2)) = (bounded::<usize>(capacity), bounded::<usize>(capacity));
        let gave_up = Arc::new(AtomicUsize::new(0));
        let givers: Vec<_> = (0..2usize)
            .map(|who| {
                let (s1, s2, gave_up) = (s1.clone(), s2.clone(), gave_up.clone());
                runtime.spawn(move || {
                    let mut sent = 0;
                    for i in 1..=total / 2 {
                        let attempt = {
                            let (s1, s2) = (s1.clone(), s2.clone());
                            move || {
                                select! {
                                    send(s1, i) -> sent => sent.is_ok(),
                                    send(s2, i) -> sent => sent.is_ok(),
                                    default(MICRO * (i as u32 % 3)) => false,
                                }
                            }
                        };
                        let ok = if (i + who).is_multiple_of(20) {
                            let fiber = spawn(attempt);
                            if i.is_multiple_of(40) {
                                yield_now();
                            }
                            fiber.cancel();
                            fiber.join().unwrap()
                        } else {
                            attempt()
                        };
                        if ok {
                            sent += i;
                        } else {
                            gave_up.fetch_add(1, SeqCst);
                        }
                    }
                    sent
                })
            })
            .collect();
        drop((s1, s2));
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let (mut r1, mut r2) = (r1.clone(), r2.clone());
                runtime.spawn(move || {
                    let (mut received, mut ends) = (0, 0);
                    while ends < 2 {
                        select! {
                            recv(r1) -> message => match message {
                                Ok(value) => received += value,
                                Err(_) => {
                                    ends += 1;
                                    r1 = never();
                                }
                            },
                            recv(r2) -> message => match message {
                                Ok(value) => received += value,
                                Err(_) => {
                                    ends += 1;
                                    r2 = never();
                                }
                            },
                            default(MICRO) => {}
                        }
                    }
                    received
                })
            })
            .collect();
        drop((r1, r2));
        let sent: usize = givers.into_iter().map(|g| g.join().unwrap()).sum();
        let received: usize = takers.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(sent, received, "capacity {capacity}");
        assert!(gave_up.load(SeqCst) > 0);
    }
}

/// A million messages over many channels, merged by a list made at run time, once by fibers, once by a thread.
#[test]
fn a_list_of_channels_gives_every_message_once() {
    let each = rounds(if cfg!(debug_assertions) { 500 } else { 20_000 });
    let runtime = workers(2);
    for on_thread in [false, true] {
        let channels: Vec<(Sender<usize>, Receiver<usize>)> = (0..50).map(|i| bounded(i % 3)).collect();
        let (senders, receivers): (Vec<_>, Vec<_>) = channels.into_iter().unzip();
        let producers: Vec<_> = senders
            .into_iter()
            .enumerate()
            .map(|(who, sender)| runtime.spawn(move || (0..each).for_each(|i| sender.send(who * each + i).unwrap())))
            .collect();
        let merge = move || {
            let mut select = Select::new();
            receivers.iter().for_each(|receiver| _ = select.recv(receiver));
            let (mut sum, mut count, mut left) = (0, 0, receivers.len());
            while left > 0 {
                let operation = select.select();
                let index = operation.index();
                match operation.recv(&receivers[index]) {
                    Ok(value) => (sum, count) = (sum + value, count + 1),
                    Err(_) => {
                        select.remove(index);
                        left -= 1;
                    }
                }
            }
            (sum, count)
        };
        let merged = if on_thread { std::thread::spawn(merge).join().unwrap() } else { runtime.run(merge) };
        assert_eq!(merged, (50 * each * (50 * each - 1) / 2, 50 * each));
        producers.into_iter().for_each(|p| p.join().unwrap());
    }
}

#[test]
fn a_list_is_used_again_and_sends_too() {
    everywhere(|| {
        let (s1, r1) = bounded(1);
        let (s2, r2) = bounded::<String>(0);
        let mut select = Select::new();
        assert_eq!((select.send(&s1, 1), select.recv(&r1), select.recv(&r2)), (0, 1, 2));
        let operation = select.select();
        assert_eq!(operation.index(), 0);
        assert_eq!(operation.send(&s1), Ok(()));
        // It has sent: that arm is gone, and the other receives what was sent.
        let operation = select.select_timeout(LONG).unwrap();
        assert_eq!((operation.index(), operation.recv(&r1)), (1, Ok(1)));
        assert!(select.try_select().is_err());
        assert_eq!(select.select_timeout(MICRO).unwrap_err().to_string(), "nothing could be sent or received in time");
        assert!(select.select_deadline(Instant::now()).is_err());
        let peer = spawn(move || s2.send(String::from("met")));
        let operation = select.select();
        assert_eq!((operation.index(), operation.recv(&r2).as_deref()), (2, Ok("met")));
        peer.join().unwrap().unwrap();
        // One that is dropped drops what it received.
        s1.send(5).unwrap();
        select.remove(2);
        drop(select.select());
        assert!(r1.is_empty() && catch_unwind(AssertUnwindSafe(|| select.remove(2))).is_err());
        // The wrong channel is refused, even of the right type.
        let (_, other) = bounded::<i32>(1);
        s1.send(6).unwrap();
        let wrong = catch_unwind(AssertUnwindSafe(|| select.select().recv(&other).is_ok()));
        assert!(wrong.is_err() && catch_unwind(|| Select::new().select().index()).is_err());
    });
}

/// A message that nobody asks for goes with the operation; a list whose last arm has sent is empty, and does not wait for ever.
#[test]
fn an_operation_that_is_dropped_leaves_nothing() {
    everywhere(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = bounded(1);
        sender.send(Counted(dropped.clone())).unwrap();
        let mut select = Select::new();
        select.recv(&receiver);
        drop(select.select());
        assert_eq!(dropped.load(SeqCst), 1);
        select.remove(0);
        let index = select.send(&sender, Counted(dropped.clone()));
        select.select().send(&sender).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| select.remove(index))).is_err());
        let panic = catch_unwind(AssertUnwindSafe(|| no_suspend(|| select.select().index()))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"nothing to select from"));
        // One that gives its message back is gone with it.
        drop(receiver.recv());
        let (sender, _) = bounded(1);
        let mut select = Select::new();
        let index = select.send(&sender, Counted(dropped.clone()));
        drop(select.select());
        assert_eq!((dropped.load(SeqCst), Arc::strong_count(&dropped)), (3, 1));
        assert!(catch_unwind(AssertUnwindSafe(|| select.remove(index))).is_err());
    });
}

/// It needs nothing from the place where it is used, and takes nothing that has another meaning there.
mod bare {
    #![no_implicit_prelude]

    #[allow(unused_macros)]
    macro_rules! unreachable {
        ($($tokens:tt)*) => {
            ::core::compile_error!("this is not the macro that is meant")
        };
    }

    pub(crate) fn forwards(receiver: &::sinew::chan::Receiver<u8>, sender: &::sinew::chan::Sender<u8>, outcome: u8) -> u8 {
        let arm = 1;
        ::sinew::select! {
            recv(receiver) -> message => message.map_or(0, |message| message + arm),
            send(sender, outcome) -> _ => outcome,
        }
    }
}

#[test]
fn the_macro_stands_on_its_own() {
    let (sender, receiver) = bounded(1);
    assert_eq!((bare::forwards(&receiver, &sender, 6), bare::forwards(&receiver, &sender, 6)), (6, 7));
}

/// Fibers and threads do everything there is with the same three channels, and give up all the time: what was sent was received or is left, no channel holds more than it
/// may, and no message is dropped twice or never.
#[test]
fn a_storm_of_fibers_and_threads_loses_and_doubles_nothing() {
    struct Message(Arc<AtomicUsize>, Box<usize>);
    impl Drop for Message {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }
    #[derive(Default)]
    struct Count {
        alive: Arc<AtomicUsize>,
        sent: AtomicUsize,
        received: AtomicUsize,
    }
    impl Count {
        fn make(&self, value: usize) -> Message {
            self.alive.fetch_add(1, SeqCst);
            Message(self.alive.clone(), Box::new(value))
        }
        fn sent(&self, value: usize, sent: Result<(), SendError<Message>>) {
            match sent {
                Ok(()) => _ = self.sent.fetch_add(value, SeqCst),
                Err(error) => assert_eq!(*error.into_inner().1, value),
            }
        }
        fn received(&self, message: Result<Message, RecvError>) {
            message.into_iter().for_each(|message| _ = self.received.fetch_add(*message.1, SeqCst));
        }
    }
    fn act(channels: &[(Sender<Message>, Receiver<Message>); 3], count: &Count, chance: usize) {
        let (value, limit) = (chance % 1000, Duration::from_nanos((chance >> 10) as u64 % 40_000));
        let ((s1, r1), (s2, r2)) = (&channels[(chance >> 30) % 3], &channels[(chance >> 36) % 3]);
        match (chance >> 42) % 6 {
            0 => count.sent(value, s1.send_timeout(count.make(value), limit)),
            1 => count.received(r1.recv_timeout(limit)),
            2 => _ = timeout(limit, || count.sent(value, s1.send(count.make(value)))),
            3 => _ = timeout(limit, || count.received(r1.recv())),
            4 => select! {
                send(s1, count.make(value)) -> sent => count.sent(value, sent),
                recv(r2) -> message => count.received(message),
                default(limit) => {}
            },
            _ => {
                _ = timeout(limit, || {
                    select! {
                        recv(r1) -> message => count.received(message),
                        send(s2, count.make(value)) -> sent => count.sent(value, sent),
                        recv(r2) -> message => count.received(message),
                        send(s2, count.make(value)) -> sent => count.sent(value, sent),
                    }
                })
            }
        }
        channels.iter().for_each(|(sender, _)| assert!(sender.len() <= sender.capacity().unwrap()));
    }
    let total = rounds(if cfg!(debug_assertions) { 3_000 } else { 20_000 });
    let runtime = workers(2);
    for capacities in [[0, 0, 0], [0, 1, 2]] {
        let channels = Arc::new(capacities.map(bounded));
        let count = Arc::new(Count::default());
        let body = |who: usize| {
            let (channels, count) = (channels.clone(), count.clone());
            move || (0..total).for_each(|i| act(&channels, &count, (who * total + i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)))
        };
        let fibers: Vec<_> = (0..4).map(|who| runtime.spawn(body(who))).collect();
        let threads: Vec<_> = (4..6).map(|who| std::thread::spawn(body(who))).collect();
        // Those that are cancelled; each is one act.
        for i in 0..total / 10 {
            let (channels, count) = (channels.clone(), count.clone());
            let fiber = runtime.spawn(move || act(&channels, &count, (i + 1).wrapping_mul(0xD134_2543_DE82_EF95)));
            if i % 2 == 0 {
                yield_now();
            }
            fiber.cancel();
            fiber.join().unwrap();
        }
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        channels.iter().for_each(|(_, receiver)| receiver.try_iter().for_each(|message| count.received(Ok(message))));
        assert_eq!(count.sent.load(SeqCst), count.received.load(SeqCst), "{capacities:?}");
        assert!(count.sent.load(SeqCst) > 0 && count.alive.load(SeqCst) == 0, "{capacities:?}");
    }
}

// What Go's own tests claim of channels and `select`, in our own words; the name of theirs is in brackets.

/// (fifo) A buffer is a queue; and of receivers that come one after the other each gets the next message.
#[test]
fn first_in_first_out() {
    const COUNT: usize = 30;
    everywhere(|| {
        let (sender, receiver) = bounded(COUNT);
        (0..COUNT).for_each(|i| sender.send(i).unwrap());
        drop(sender);
        assert!(receiver.iter().eq(0..COUNT));

        let (sender, receiver) = bounded(0);
        let (first, mut turn) = bounded(1);
        let takers: Vec<_> = (0..COUNT)
            .map(|i| {
                let (next, next_turn) = bounded(1);
                let (turn, receiver) = (std::mem::replace(&mut turn, next_turn), receiver.clone());
                spawn(move || {
                    turn.recv().unwrap();
                    assert_eq!(receiver.recv(), Ok(i));
                    next.send(()).unwrap();
                })
            })
            .collect();
        first.send(()).unwrap();
        (0..COUNT).for_each(|i| sender.send(i).unwrap());
        assert_eq!(turn.recv(), Ok(()), "the last one hands its turn on");
        takers.into_iter().for_each(|taker| taker.join().unwrap());
    });
}

/// (nonblock) With `default` a send and a receive do what can be done at once, and nothing else.
#[test]
fn a_default_is_taken_if_and_only_if_nobody_is_there() {
    fn give<T: Clone>(sender: &Sender<T>, value: &T) -> bool {
        select! { send(sender, value.clone()) -> sent => sent.is_ok(), default => false }
    }
    fn take<T>(receiver: &Receiver<T>) -> Option<T> {
        select! { recv(receiver) -> message => message.ok(), default => None }
    }
    fn all<T: Clone + PartialEq + std::fmt::Debug + Send + 'static>(value: T) {
        for capacity in 0..3 {
            let (sender, receiver) = bounded(capacity);
            assert_eq!(take(&receiver), None);
            (0..capacity).for_each(|_| assert!(give(&sender, &value)));
            assert!(!give(&sender, &value), "there is no room");
            (0..capacity).for_each(|_| assert_eq!(take(&receiver).as_ref(), Some(&value)));
            assert_eq!(take(&receiver), None);
        }
        // Nothing is held, but somebody comes.
        let (sender, receiver) = bounded(0);
        let (theirs, other) = (receiver.clone(), value.clone());
        let taker = spawn(move || assert_eq!(theirs.recv(), Ok(other)));
        while !give(&sender, &value) {
            yield_now();
        }
        taker.join().unwrap();
        let other = value.clone();
        let giver = spawn(move || sender.send(other).unwrap());
        let mut taken = None;
        while taken.is_none() {
            yield_now();
            taken = take(&receiver);
        }
        assert_eq!(taken, Some(value));
        giver.join().unwrap();
    }
    everywhere(|| {
        all(7i32);
        all(i64::MIN);
        all(true);
        all(String::from("seven"));
    });
}

/// (goroutines) A number goes through many fibers, each of which adds one.
#[test]
fn a_chain_of_many_fibers_adds_up() {
    const LINKS: usize = 5_000;
    workers(2).run(|| {
        let (first, mut last) = bounded::<usize>(0);
        for _ in 0..LINKS {
            let (sender, receiver) = bounded(0);
            let before = std::mem::replace(&mut last, receiver);
            spawn(move || sender.send(before.recv().unwrap() + 1).unwrap());
        }
        first.send(0).unwrap();
        assert_eq!(last.recv(), Ok(LINKS));
    });
}

/// (select4) Of an arm that does not fire neither pattern nor body is evaluated.
#[test]
fn only_the_body_of_the_arm_that_fired_is_run() {
    everywhere(|| {
        let (sender, receiver) = bounded(1);
        let (_silent, never_ready) = bounded::<u32>(0);
        sender.send(42).unwrap();
        let (mut place, called) = (0, AtomicUsize::new(0));
        let elsewhere = || called.fetch_add(1, SeqCst);
        select! {
            recv(never_ready) -> _ => _ = elsewhere(),
            recv(receiver) -> message => place = message.unwrap(),
        }
        assert_eq!((place, called.load(SeqCst)), (42, 0));
    });
}

/// (select5) All channels and values are evaluated once, in order, whichever arm fires; also where an evaluation is a `select!` itself.
#[test]
fn arms_are_evaluated_in_order_whichever_fires() {
    everywhere(|| {
        for fires in 0..4 {
            let channels: Vec<_> = (0..4).map(|_| bounded::<usize>(1)).collect();
            let (senders, receivers): (Vec<_>, Vec<_>) = channels.into_iter().unzip();
            let log = std::cell::RefCell::new(Vec::new());
            let noted = |what: &'static str| log.borrow_mut().push(what);
            // Arms 0 and 1 receive, 2 and 3 send: all but one can do nothing.
            if fires < 2 {
                senders[fires].send(fires).unwrap();
            }
            for i in (2..4).filter(|&i| i != fires) {
                senders[i].send(0).unwrap();
            }
            let (inner_sender, inner) = bounded(1);
            let chosen = select! {
                recv({ noted("receiver 0"); &receivers[0] }) -> message => message.unwrap(),
                recv({
                    inner_sender.send(1).unwrap();
                    let index = select! { recv(inner) -> index => index.unwrap(), default => 9 };
                    noted("receiver 1");
                    &receivers[index]
                }) -> message => message.unwrap(),
                send({ noted("sender 2"); &senders[2] }, { noted("value 2"); 2 }) -> sent => sent.map(|()| 2).unwrap(),
                send({ noted("sender 3"); &senders[3] }, { noted("value 3"); 3 }) -> sent => sent.map(|()| 3).unwrap(),
            };
            assert_eq!(chosen, fires);
            assert_eq!(*log.borrow(), ["receiver 0", "receiver 1", "sender 2", "value 2", "sender 3", "value 3"]);
        }
    });
}

/// (select6) A select that waits behind another at one channel is fired by a second channel: it leaves the line of the first as it should be, which serves those who wait and those who come.
#[test]
fn a_select_that_leaves_a_line_leaves_the_others_there() {
    for count in [1, 2] {
        workers(count).run(|| {
            for _ in 0..rounds(100) {
                // Receivers.
                let ((sender, receiver), (other_sender, other), (done, is_done)) = (bounded(0), bounded(0), unbounded());
                let (ahead, r) = (receiver.clone(), receiver.clone());
                let ahead = spawn(move || ahead.recv());
                let selects = spawn(move || {
                    select! {
                        recv(r) -> _ => panic!("nothing was sent there yet"),
                        recv(other) -> message => done.send(message).unwrap(),
                    }
                    r.recv()
                });
                let gives = spawn(move || other_sender.send(1));
                assert_eq!(is_done.recv(), Ok(Ok(1)));
                let both = [sender.send(2), sender.send(3)];
                let mut got = [ahead.join().unwrap().unwrap(), selects.join().unwrap().unwrap()];
                got.sort_unstable();
                assert_eq!((both, got, gives.join().unwrap()), ([Ok(()), Ok(())], [2, 3], Ok(())));

                // Senders.
                let ((sender, receiver), (other_sender, other), (done, is_done)) = (bounded(0), bounded(0), unbounded());
                let (ahead, s) = (sender.clone(), sender.clone());
                let ahead = spawn(move || ahead.send(4));
                let selects = spawn(move || {
                    select! {
                        send(s, 5) -> _ => panic!("nobody receives there yet"),
                        recv(other) -> message => done.send(message).unwrap(),
                    }
                    s.send(6)
                });
                let gives = spawn(move || other_sender.send(1));
                assert_eq!(is_done.recv(), Ok(Ok(1)));
                let mut got = [receiver.recv().unwrap(), receiver.recv().unwrap()];
                got.sort_unstable();
                assert_eq!(got, [4, 6]);
                assert_eq!((ahead.join().unwrap(), selects.join().unwrap(), gives.join().unwrap()), (Ok(()), Ok(()), Ok(())));
            }
        });
    }
}

/// (select7) Every way to receive meets every way to send over a channel that holds nothing, whichever of them is there first: also two that select.
#[test]
fn every_way_to_give_meets_every_way_to_take() {
    const WAYS: usize = 4;
    fn give(way: usize, sender: &Sender<u32>, other: &Receiver<u32>) {
        let sent = match way {
            0 => sender.send(7),
            1 => select! { send(sender, 7) -> sent => sent },
            2 => select! { send(sender, 7) -> sent => sent, recv(other) -> _ => panic!("nothing comes there") },
            _ => loop {
                select! { send(sender, 7) -> sent => break sent, default => yield_now() }
            },
        };
        sent.unwrap();
    }
    fn take(way: usize, receiver: &Receiver<u32>, other: &Receiver<u32>) -> u32 {
        let received = match way {
            0 => receiver.recv(),
            1 => select! { recv(receiver) -> message => message },
            2 => select! { recv(other) -> _ => panic!("nothing comes there"), recv(receiver) -> message => message },
            _ => loop {
                select! { recv(receiver) -> message => break message, default => yield_now() }
            },
        };
        received.unwrap()
    }
    everywhere(|| {
        // Two that only look, and never wait, need not meet.
        for (giver, taker) in (0..WAYS * WAYS - 1).map(|i| (i / WAYS, i % WAYS)) {
            let ((sender, receiver), (_silent, other)) = (bounded(0), bounded(0));
            let (theirs, quiet) = (receiver.clone(), other.clone());
            // The taker may be there first.
            let takes = spawn(move || take(taker, &theirs, &quiet));
            yield_now();
            give(giver, &sender, &other);
            assert_eq!(takes.join().unwrap(), 7);
            // The giver may be there first.
            let quiet = other.clone();
            let gives = spawn(move || give(giver, &sender, &quiet));
            yield_now();
            assert_eq!(take(taker, &receiver, &other), 7);
            gives.join().unwrap();
        }
    });
}

/// (TestSelectDuplicateChannel) A channel may be there twice: a message goes to one of the arms, and no wait is left behind by the other.
#[test]
fn a_channel_may_be_in_two_arms() {
    workers(2).run(|| {
        let (sender, receiver) = bounded(0);
        let taker = spawn(move || {
            let (mut sum, mut fired) = (0, [0usize; 2]);
            while let Ok((arm, value)) = select! {
                recv(receiver) -> message => message.map(|value| (0, value)),
                recv(receiver) -> message => message.map(|value| (1, value)),
            } {
                fired[arm] += 1;
                sum += value;
            }
            (sum, fired)
        });
        (1..=200usize).for_each(|value| sender.send(value).unwrap());
        drop(sender);
        let (sum, fired) = taker.join().unwrap();
        assert_eq!((sum, fired[0] + fired[1]), (200 * 201 / 2, 200));
        // Where a message is there already, the choice is at random.
        let (sender, receiver) = unbounded();
        (0..200).for_each(|i| sender.send(i).unwrap());
        let first = (0..200).filter(|&i| select! { recv(receiver) -> m => m == Ok(i), recv(receiver) -> m => m != Ok(i) }).count();
        assert!((1..200).contains(&first), "one arm always fired");
        // The same, in a list.
        sender.send(9).unwrap();
        let mut list = Select::new();
        let arms = [list.recv(&receiver), list.recv(&receiver)];
        let operation = list.select();
        assert!(arms.contains(&operation.index()));
        assert_eq!((operation.recv(&receiver), receiver.try_recv()), (Ok(9), Err(TryRecvError::Empty)));
    });
}

/// (TestSelfSelect) Who sends to and receives from one channel in one `select!` never meets itself, and two of them meet each other.
#[test]
fn a_select_does_not_meet_itself() {
    for capacity in [0, 1] {
        workers(2).run(move || {
            let (sender, receiver) = bounded::<usize>(capacity);
            if capacity == 0 {
                let met = select! { send(sender, 1) -> _ => true, recv(receiver) -> _ => true, default(MILLI) => false };
                assert!(!met);
            }
            let fibers: Vec<_> = (0..2)
                .map(|me| {
                    let (sender, receiver) = (sender.clone(), receiver.clone());
                    spawn(move || {
                        let (mut given, mut taken) = (0, 0);
                        while given + taken < rounds(500) {
                            select! {
                                send(sender, me) -> sent => {
                                    sent.unwrap();
                                    given += 1;
                                }
                                recv(receiver) -> message => {
                                    assert!(capacity > 0 || message != Ok(me), "it has its own message");
                                    message.unwrap();
                                    taken += 1;
                                }
                            }
                        }
                        (given, taken)
                    })
                })
                .collect();
            let counts: Vec<_> = fibers.into_iter().map(|fiber| fiber.join().unwrap()).collect();
            let (given, taken) = (counts[0].0 + counts[1].0, counts[0].1 + counts[1].1);
            assert_eq!(given - taken, receiver.len());
        });
    }
}

/// (zerosize) Messages without size are counted, handed over and dropped like any.
#[test]
fn messages_without_size_are_messages() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    #[derive(Debug)]
    struct Empty;
    impl Drop for Empty {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, SeqCst);
        }
    }
    for (sender, receiver) in [bounded(0), bounded(1), bounded(3), unbounded()] {
        let before = DROPPED.load(SeqCst);
        let gives = spawn(move || (0..100).for_each(|_| sender.send(Empty).unwrap()));
        let taken = (0..100).filter(|_| select! { recv(receiver) -> message => message.is_ok(), default(LONG) => false }).count();
        gives.join().unwrap();
        assert_eq!((taken, receiver.recv().unwrap_err()), (100, RecvError::Disconnected));
        assert_eq!(DROPPED.load(SeqCst) - before, 100);
    }
    // What is left is dropped with the channel, and what was not sent is given back.
    let (sender, receiver) = bounded(3);
    let before = DROPPED.load(SeqCst);
    (0..3).for_each(|_| sender.send(Empty).unwrap());
    let refused = select! { send(sender, Empty) -> _ => panic!("there is no room"), default => true };
    assert!(refused && sender.is_full() && sender.len() == 3);
    drop(receiver);
    assert_eq!(DROPPED.load(SeqCst) - before, 4);
    let given_back = select! { send(sender, Empty) -> sent => sent.unwrap_err() };
    assert!(given_back.is_disconnected());
    drop(given_back);
    assert_eq!(DROPPED.load(SeqCst) - before, 5);
    // A channel of arrays without elements.
    let (sender, receiver) = unbounded::<[u64; 0]>();
    (0..1000).for_each(|_| sender.send([]).unwrap());
    assert_eq!((receiver.len(), receiver.try_iter().count()), (1000, 1000));
}

/// The end of a channel fires every select that waits there, on either side, while the other arms rest; each has the error once, and its message back.
#[test]
fn an_end_fires_all_selects_that_wait() {
    const COUNT: usize = 20;
    for count in [1, 2] {
        workers(count).run(|| {
            for _ in 0..rounds(10) {
                let ((_data, inbox), (stop, stopped)) = (bounded::<u32>(0), bounded::<u32>(0));
                let (outbox, nobody) = bounded::<usize>(0);
                let begun = Arc::new(AtomicUsize::new(0));
                let takers: Vec<_> = (0..COUNT)
                    .map(|_| {
                        let (inbox, stopped, begun) = (inbox.clone(), stopped.clone(), begun.clone());
                        spawn(move || {
                            begun.fetch_add(1, SeqCst);
                            select! {
                                recv(inbox) -> _ => panic!("nothing comes there"),
                                recv(stopped) -> message => message.unwrap_err(),
                            }
                        })
                    })
                    .collect();
                let givers: Vec<_> = (0..COUNT)
                    .map(|i| {
                        let (outbox, inbox, begun) = (outbox.clone(), inbox.clone(), begun.clone());
                        spawn(move || {
                            begun.fetch_add(1, SeqCst);
                            select! {
                                recv(inbox) -> _ => panic!("nothing comes there"),
                                send(outbox, i) -> sent => sent.unwrap_err(),
                            }
                        })
                    })
                    .collect();
                while begun.load(SeqCst) < 2 * COUNT {
                    yield_now();
                }
                drop((stop, nobody));
                takers.into_iter().for_each(|taker| assert_eq!(taker.join().unwrap(), RecvError::Disconnected));
                for (i, giver) in givers.into_iter().enumerate() {
                    let error = giver.join().unwrap();
                    assert_eq!((error.value, error.cause), (i, Cause::Disconnected));
                }
            }
        });
    }
}

/// Two parties that do each round at about the same time; in which order, and how far apart, changes from round to round.
struct Race {
    total: usize,
    arrived: AtomicUsize,
}

impl Race {
    /// Runs both sides of each round, here and there, on fibers of two workers and on threads.
    fn run<R: Send + Sync + 'static>(total: usize, make: impl Fn() -> R, one: fn(&R), other: fn(&R)) {
        for on in On::BOTH {
            let race = Arc::new(Race { total, arrived: AtomicUsize::new(0) });
            let objects: Arc<Vec<R>> = Arc::new((0..total).map(|_| make()).collect());
            workers(2).run(move || {
                let sides = [one, other].map(|side| {
                    let (race, objects) = (race.clone(), objects.clone());
                    on.start(move || race.rounds(&objects, side))
                });
                sides.into_iter().for_each(|side| side());
            });
        }
    }

    fn rounds<R>(&self, objects: &[R], side: fn(&R)) {
        // Who fails lets the other go on alone.
        struct Leaves<'a>(&'a Race);
        impl Drop for Leaves<'_> {
            fn drop(&mut self) {
                self.0.arrived.fetch_add(2 * self.0.total, SeqCst);
            }
        }
        let _leaves = Leaves(self);
        for (round, object) in objects.iter().enumerate().take(self.total) {
            let place = self.arrived.fetch_add(1, SeqCst);
            let mut looks = 0;
            while self.arrived.load(SeqCst) < 2 * (round + 1) {
                looks += 1;
                // The other is not running: another fiber of this worker, or a thread without a core.
                if looks % 1_000 == 0 {
                    yield_now();
                    std::thread::yield_now();
                }
            }
            (0..if place.is_multiple_of(2) { round % 64 } else { round / 64 % 64 }).for_each(|_| std::hint::spin_loop());
            side(object);
        }
    }
}

/// (nonblocking receive race) What somebody has sent, and says so, a receive with `default` finds. And a channel that holds a message, or has ended, has something at every moment.
#[test]
fn a_receive_that_does_not_wait_finds_what_was_sent_before() {
    let total = rounds(if cfg!(debug_assertions) { 3_000 } else { 100_000 });
    Race::run(
        total,
        || (bounded(1), AtomicUsize::new(0)),
        |((sender, _), said)| {
            sender.send(1).unwrap();
            said.store(1, SeqCst);
        },
        |((_, receiver), said)| {
            loop {
                let was_said = said.load(SeqCst) == 1;
                select! {
                    recv(receiver) -> message => break assert_eq!(message, Ok(1)),
                    default => assert!(!was_said, "the message was there"),
                }
                yield_now();
            }
        },
    );
    Race::run(
        total,
        || {
            let (sender, receiver) = bounded(1);
            sender.send(1).unwrap();
            (std::sync::Mutex::new(Some(sender)), receiver)
        },
        |(sender, receiver)| {
            drop(sender.lock().unwrap().take());
            let _ = receiver.recv();
        },
        |(_, receiver)| {
            select! {
                recv(receiver) -> _ => {}
                default => panic!("it had a message, or had ended"),
            }
        },
    );
}

/// (nonblocking select race) Of two channels one can always be received from: the second gets a message, or its end, before the first loses its own. `default` is not taken; also not if arms that are never ready make the way from one to
/// the other long.
#[test]
fn a_default_is_not_taken_while_some_arm_can_be_done() {
    struct Two {
        one: (Sender<u32>, Receiver<u32>),
        other: (std::sync::Mutex<Option<Sender<u32>>>, Receiver<u32>),
        idle: Receiver<u32>,
    }
    fn make() -> Two {
        let (one, (sender, receiver)) = (bounded(1), bounded(1));
        one.0.send(1).unwrap();
        Two { one, other: (std::sync::Mutex::new(Some(sender)), receiver), idle: never() }
    }
    fn sends(two: &Two) {
        two.other.0.lock().unwrap().as_ref().unwrap().send(2).unwrap();
        let _ = two.one.1.try_recv();
    }
    fn closes(two: &Two) {
        drop(two.other.0.lock().unwrap().take());
        let _ = two.one.1.try_recv();
    }
    fn looks(two: &Two) {
        select! {
            recv(two.one.1) -> message => assert_eq!(message, Ok(1)),
            recv(two.other.1) -> _ => {}
            default => panic!("one of both was always there"),
        }
    }
    fn looks_long(two: &Two) {
        select! {
            recv(two.idle) -> _ => unreachable!(),
            recv(two.one.1) -> message => assert_eq!(message, Ok(1)),
            recv(two.idle) -> _ => unreachable!(),
            recv(two.idle) -> _ => unreachable!(),
            recv(two.other.1) -> _ => {}
            recv(two.idle) -> _ => unreachable!(),
            default => panic!("one of both was always there"),
        }
    }
    fn looks_through_a_list(two: &Two) {
        let mut list = Select::new();
        list.recv(&two.one.1);
        list.recv(&two.idle);
        list.recv(&two.idle);
        list.recv(&two.other.1);
        assert!(list.try_select().is_ok(), "one of both was always there");
    }
    let total = rounds(if cfg!(debug_assertions) { 3_000 } else { 50_000 });
    for changes in [sends, closes] {
        for looks in [looks, looks_long, looks_through_a_list] {
            Race::run(total, make, changes, looks);
        }
    }
}

/// (pseudo-random send) Two arms send to one channel: each fires often, whether it has to wait for the receiver or not.
#[test]
fn two_arms_that_send_to_one_channel_both_fire_often() {
    const COUNT: usize = 1_000;
    everywhere(|| {
        for capacity in [0, 1, 10] {
            let (sender, receiver) = bounded(capacity);
            let taker = spawn(move || {
                let mut hits = [0; 2];
                receiver.iter().for_each(|which: usize| hits[which] += 1);
                hits
            });
            for _ in 0..COUNT {
                select! {
                    send(sender, 0) -> sent => sent.unwrap(),
                    send(sender, 1) -> sent => sent.unwrap(),
                }
            }
            drop(sender);
            let hits = taker.join().unwrap();
            assert_eq!(hits[0] + hits[1], COUNT);
            assert!(hits.iter().all(|&n| n > COUNT / 10), "capacity {capacity}: {hits:?}");
        }
    });
}

/// (select memory) Selects that wait, that need not, and that take `default`, over and over: in the end as many bytes are in use as after the first of them. In a process of its own, where nothing else allocates.
#[test]
fn selects_in_a_loop_use_no_more_memory() {
    const NAME: &str = "selects_in_a_loop_use_no_more_memory";
    /// What buffers of the runtime may grow by, once.
    const SLACK: usize = 32 << 10;
    if !is_child(NAME) {
        let child = in_child(NAME, &[]);
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    fn both_ways(count: usize, sender: &Sender<Box<usize>>, receiver: &Receiver<Box<usize>>, idle: &Receiver<Box<usize>>) {
        let theirs = receiver.clone();
        let rests = idle.clone();
        let taker = spawn(move || {
            for _ in 0..count {
                select! {
                    recv(rests) -> _ => unreachable!(),
                    recv(theirs) -> message => drop(message.unwrap()),
                }
            }
        });
        for i in 0..count {
            select! {
                recv(idle) -> _ => unreachable!(),
                send(sender, Box::new(i)) -> sent => sent.unwrap(),
            }
            select! {
                recv(idle) -> _ => unreachable!(),
                recv(idle) -> _ => unreachable!(),
                default => {}
            }
        }
        taker.join().unwrap();
    }
    let count = rounds(if cfg!(debug_assertions) { 20_000 } else { 200_000 });
    let runtime = workers(2);
    // What a worker has of its own it makes when it starts.
    poll_until("both workers to have started", || runtime.metrics().workers.iter().all(|worker| worker.sleeping));
    runtime.run(move || {
        for capacity in [0, 1] {
            let ((sender, receiver), (_keep, idle)) = (bounded(capacity), bounded(0));
            both_ways(1_000, &sender, &receiver, &idle);
            let before = BYTES.load(Relaxed);
            both_ways(count, &sender, &receiver, &idle);
            let grown = BYTES.load(Relaxed).saturating_sub(before);
            assert!(grown <= SLACK, "capacity {capacity}: {grown} bytes more after {count} rounds");
        }
    });
}

/// Of several arms of one channel that all wait, each is served at times, in both directions. The peer does not wait itself, so it succeeds only when they are queued: it is the order in which they were that decides.
#[test]
fn waiting_arms_of_one_channel_are_served_in_random_order() {
    const ROUNDS: usize = 300;
    /// Of a hundred that are expected. Arbitrary.
    const SERVED_MIN: usize = 30;
    workers(1).run(|| {
        let (sender, receiver) = bounded::<usize>(0);
        let (to_peer, of_peer) = (sender.clone(), receiver.clone());
        let taker = spawn(move || {
            let mut served = [0; 3];
            for _ in 0..ROUNDS {
                let arm = select! {
                    recv(receiver) -> got => got.map(|_| 0),
                    recv(receiver) -> got => got.map(|_| 1),
                    recv(receiver) -> got => got.map(|_| 2),
                };
                served[arm.unwrap()] += 1;
            }
            served
        });
        (0..ROUNDS).for_each(|i| await_until("arms that receive", || to_peer.try_send(i).is_ok()));
        let served = taker.join().unwrap();
        assert!(served.iter().all(|&times| times >= SERVED_MIN), "{served:?}");
        let giver = spawn(move || {
            for _ in 0..ROUNDS {
                let sent = select! {
                    send(sender, 0) -> sent => sent,
                    send(sender, 1) -> sent => sent,
                    send(sender, 2) -> sent => sent,
                };
                sent.unwrap();
            }
        });
        let served: [_; 3] = std::array::from_fn(|_| AtomicUsize::new(0));
        for _ in 0..ROUNDS {
            await_until("arms that send", || of_peer.try_recv().map(|arm: usize| served[arm].fetch_add(1, Relaxed)).is_ok());
        }
        giver.join().unwrap();
        assert!(served.iter().all(|times| times.load(Relaxed) >= SERVED_MIN), "{served:?}");
    });
}
