//! Channels: order, hand-over, errors, ends, time-outs, cancels, from fibers and from plain threads.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use sinew::chan::{
    Cause, Receiver, RecvError, SendError, Sender, TryRecvError, TrySendError, bounded, broadcast, never, oneshot, unbounded,
};
use sinew::{Runtime, cancelled, no_suspend, scope, shield, spawn, timeout, yield_now};

const MICRO: Duration = Duration::from_micros(1);
const MILLI: Duration = Duration::from_millis(1);
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

/// `SINEW_ROUNDS=<factor>` asks for so many times as many rounds as CI runs.
fn rounds(count: usize) -> usize {
    count * std::env::var("SINEW_ROUNDS").map_or(1, |n| n.parse::<usize>().expect("SINEW_ROUNDS is a number"))
}

fn one_worker() -> Runtime {
    Runtime::builder().workers(1).build().unwrap()
}

/// Yields until `condition` holds.
fn until(condition: impl Fn() -> bool) {
    while !condition() {
        yield_now();
    }
}

/// Runs `f` in a fiber of a runtime with one worker, in one with two, and on a plain thread.
fn everywhere(f: impl Fn() + Send + Sync + Copy + 'static) {
    one_worker().run(f);
    Runtime::builder().workers(2).build().unwrap().run(f);
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

#[test]
fn both_halves_are_send_and_sync_if_the_messages_are_send() {
    fn shared<T: Send + Sync + UnwindSafe + RefUnwindSafe>() {}
    shared::<Sender<Cell<u32>>>();
    shared::<Receiver<Cell<u32>>>();
    fn error<T: std::error::Error>() {}
    error::<SendError<*const ()>>();
    error::<TrySendError<*const ()>>();
    error::<RecvError>();
    error::<TryRecvError>();

    // And only then.
    struct Asked<T>(std::marker::PhantomData<T>);
    trait Otherwise {
        const IS_SEND: bool = false;
        const IS_SYNC: bool = false;
    }
    impl<T> Otherwise for Asked<T> {}
    impl<T: Send> Asked<T> {
        const IS_SEND: bool = true;
    }
    impl<T: Sync> Asked<T> {
        const IS_SYNC: bool = true;
    }
    type NotSend = std::rc::Rc<()>;
    const { assert!(Asked::<Sender<u8>>::IS_SEND && Asked::<Receiver<u8>>::IS_SYNC) };
    const { assert!(!Asked::<Sender<NotSend>>::IS_SEND && !Asked::<Sender<NotSend>>::IS_SYNC) };
    const { assert!(!Asked::<Receiver<NotSend>>::IS_SEND && !Asked::<Receiver<NotSend>>::IS_SYNC) };
    // These show one message to many at once, so it must be `Sync` too.
    const { assert!(!Asked::<sinew::chan::broadcast::Sender<Cell<u8>>>::IS_SEND && !Asked::<sinew::chan::watch::Receiver<Cell<u8>>>::IS_SEND) };
}

#[test]
fn a_channel_holds_what_it_may_and_gives_it_back_in_order() {
    everywhere(|| {
        for capacity in [1, 2, 3, 10, 1000] {
            let (sender, receiver) = bounded(capacity);
            assert_eq!((sender.capacity(), receiver.capacity()), (Some(capacity), Some(capacity)));
            for round in 0..3 {
                assert!(sender.is_empty() && !receiver.is_full());
                (0..capacity).for_each(|i| sender.send((round, i)).unwrap());
                assert_eq!((sender.len(), receiver.len()), (capacity, capacity));
                assert!(sender.is_full() && receiver.is_full() && !receiver.is_empty());
                let full = sender.try_send((9, 9)).unwrap_err();
                assert!(full.is_full() && !full.is_disconnected());
                assert_eq!(full.into_inner(), (9, 9));
                (0..capacity).for_each(|i| assert_eq!(receiver.recv(), Ok((round, i))));
                assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            }
        }
        let (sender, receiver) = unbounded();
        assert_eq!((sender.capacity(), sender.is_full()), (None, false));
        (0..1000).for_each(|i| sender.send(i).unwrap());
        assert_eq!(receiver.len(), 1000);
        assert!(receiver.try_iter().eq(0..1000));
    });
}

#[test]
fn a_channel_without_room_hands_over_when_both_are_there() {
    everywhere(|| {
        let (sender, receiver) = bounded(0);
        assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert!(sender.is_empty() && sender.is_full());
        let sent = Arc::new(AtomicBool::new(false));
        let peer = spawn({
            let sent = sent.clone();
            move || {
                sender.send(2).unwrap();
                sent.store(true, SeqCst);
                sender.send(3).unwrap();
            }
        });
        assert!(!sent.load(SeqCst), "a send ended before its message was received");
        assert_eq!(receiver.recv(), Ok(2));
        // Now by `try_recv`, once the sender waits.
        until(|| receiver.try_recv().map(|value| assert_eq!(value, 3)).is_ok());
        assert!(sent.load(SeqCst));
        peer.join().unwrap();
        assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
    });
}

#[test]
fn a_try_send_reaches_a_receiver_that_waits() {
    everywhere(|| {
        let (sender, receiver) = bounded(0);
        let peer = spawn(move || receiver.recv());
        until(|| sender.try_send(5).is_ok());
        assert_eq!(peer.join().unwrap(), Ok(5));
    });
}

#[test]
fn every_failure_says_why() {
    let lost = SendError { value: 1, cause: Cause::Disconnected };
    assert!(lost.is_disconnected() && !lost.is_timeout() && !lost.is_cancelled());
    assert_eq!(lost.to_string(), "not sent: the channel has no receiver any more");
    assert_eq!(format!("{lost:?}"), "SendError { cause: Disconnected, .. }");
    assert_eq!(lost.into_inner(), 1);
    let cut = SendError { value: (), cause: Cause::Cancelled };
    assert!(cut.is_cancelled() && std::error::Error::source(&cut).unwrap().is::<sinew::Cancelled>());
    assert!(std::error::Error::source(&RecvError::Cancelled).unwrap().is::<sinew::Cancelled>());
    assert!(std::error::Error::source(&RecvError::TimedOut).is_none());
    for error in [RecvError::Disconnected, RecvError::Cancelled, RecvError::TimedOut] {
        assert_eq!(
            (error.is_disconnected(), error.is_cancelled(), error.is_timeout()),
            match error {
                RecvError::Disconnected => (true, false, false),
                RecvError::Cancelled => (false, true, false),
                RecvError::TimedOut => (false, false, true),
            }
        );
        assert!(error.to_string().starts_with("nothing received: "));
    }
    assert!(TryRecvError::Empty.is_empty() && TryRecvError::Disconnected.is_disconnected());
    assert_eq!(TrySendError::from(SendError { value: 3, cause: Cause::TimedOut }), TrySendError::Full(3));
    assert_eq!(format!("{:?} {:?}", TrySendError::Full(1), TrySendError::Disconnected(1)), "Full(..) Disconnected(..)");
}

#[test]
fn without_receivers_sends_fail_and_give_the_message_back() {
    everywhere(|| {
        for (sender, receiver) in [bounded(0), bounded(1), bounded(7), unbounded()] {
            let other = receiver.clone();
            drop(receiver);
            assert_ne!(sender.try_send(String::from("a")), Err(TrySendError::Disconnected(String::from("a"))));
            drop(other);
            let again = || String::from("b");
            assert_eq!(sender.send(again()), Err(SendError { value: again(), cause: Cause::Disconnected }));
            assert_eq!(sender.send_timeout(again(), LONG).unwrap_err().into_inner(), again());
            assert_eq!(sender.send_deadline(again(), Instant::now()).unwrap_err().cause, Cause::Disconnected);
            assert_eq!(sender.try_send(again()), Err(TrySendError::Disconnected(again())));
            assert_eq!(sender.len(), 0);
        }
    });
}

#[test]
fn without_senders_receivers_get_what_is_left_and_then_an_error() {
    everywhere(|| {
        let (sender, receiver) = bounded(3);
        let other = sender.clone();
        sender.send(1).unwrap();
        drop(sender);
        other.send(2).unwrap();
        assert_eq!(receiver.try_recv(), Ok(1));
        drop(other);
        assert_eq!(receiver.recv(), Ok(2));
        assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        assert_eq!(receiver.recv_timeout(LONG), Err(RecvError::Disconnected));
        assert_eq!(receiver.recv_deadline(Instant::now()), Err(RecvError::Disconnected));
    });
}

#[test]
fn the_last_sender_wakes_all_receivers_and_the_last_receiver_all_senders() {
    everywhere(|| {
        let (sender, receiver) = bounded::<u32>(2);
        let waiting: Vec<_> = (0..4).map(|_| receiver.clone()).map(|r| spawn(move || r.recv())).collect();
        yield_now();
        drop(sender);
        waiting.into_iter().for_each(|w| assert_eq!(w.join().unwrap(), Err(RecvError::Disconnected)));

        let (sender, receiver) = bounded(2);
        sender.send(7).unwrap();
        sender.send(8).unwrap();
        let waiting: Vec<_> = (0..4).map(|i| (i, sender.clone())).map(|(i, s)| spawn(move || s.send(i))).collect();
        yield_now();
        drop(receiver);
        for (i, wait) in waiting.into_iter().enumerate() {
            assert_eq!(wait.join().unwrap(), Err(SendError { value: i, cause: Cause::Disconnected }));
        }
    });
}

/// Claims: who waits longest is served first, on both sides, and a newcomer does not overtake. One worker, so that the order of events is known.
#[test]
fn those_who_wait_are_served_in_order() {
    one_worker().run(|| {
        let (sender, receiver) = bounded(1);
        sender.send(0).unwrap();
        let order = Arc::new(AtomicUsize::new(1));
        let givers: Vec<_> = (0..4)
            .map(|_| {
                let (sender, order) = (sender.clone(), order.clone());
                spawn(move || sender.send(order.fetch_add(1, SeqCst)))
            })
            .collect();
        until(|| order.load(SeqCst) == 5);
        assert_eq!(receiver.recv(), Ok(0));
        assert!(sender.try_send(99).unwrap_err().is_full(), "a newcomer took the place of one that waits");
        (1..5).for_each(|i| assert_eq!(receiver.recv(), Ok(i)));
        givers.into_iter().for_each(|g| g.join().unwrap().unwrap());

        let (sender, receiver) = bounded(3);
        let order = Arc::new(AtomicUsize::new(0));
        let takers: Vec<_> = (0..4)
            .map(|_| {
                let (receiver, order) = (receiver.clone(), order.clone());
                spawn(move || {
                    let place = order.fetch_add(1, SeqCst);
                    (place, receiver.recv().unwrap())
                })
            })
            .collect();
        until(|| order.load(SeqCst) == 4);
        (0..4).for_each(|i| sender.send(i).unwrap());
        assert_eq!(sender.len(), 0, "messages went into the buffer though receivers waited");
        takers.into_iter().map(|t| t.join().unwrap()).for_each(|(place, message)| assert_eq!(place, message));
    });
}

#[test]
fn iterators_end_with_the_channel() {
    everywhere(|| {
        let (sender, receiver) = bounded(2);
        let peer = spawn(move || (0..100).for_each(|i| sender.send(i).unwrap()));
        assert!(receiver.iter().take(10).eq(0..10));
        let mut sum = 0;
        for i in &receiver {
            sum += i;
            if i == 50 {
                break;
            }
        }
        assert_eq!(sum, (10..=50).sum());
        assert!(receiver.into_iter().eq(51..100));
        peer.join().unwrap();
    });
}

/// So they are not fused.
#[test]
fn an_iterator_that_was_cut_short_goes_on_afterwards() {
    everywhere(|| {
        let (sender, receiver) = unbounded();
        let mut messages = receiver.iter();
        assert!(timeout(MILLI, || messages.next()).is_err());
        sender.send(7).unwrap();
        assert_eq!(messages.next(), Some(7));
    });
}

#[test]
fn handles_know_their_channel() {
    let ((s1, r1), (s2, r2)) = (unbounded::<u8>(), unbounded::<u8>());
    assert!(s1.same_channel(&s1.clone()) && !s1.same_channel(&s2));
    assert!(r1.same_channel(&r1.clone()) && !r1.same_channel(&r2));
    assert_eq!(format!("{s1:?} {r1:?} {:?} {:?}", r1.iter(), r1.try_iter()), "Sender { .. } Receiver { .. } Iter { .. } TryIter { .. }");
}

#[test]
fn timed_forms_give_up_in_time_and_leave_nothing_behind() {
    everywhere(|| {
        let (sender, receiver) = bounded(1);
        let before = Instant::now();
        assert!(receiver.recv_timeout(2 * MILLI).unwrap_err().is_timeout());
        assert!(before.elapsed() >= 2 * MILLI);
        assert_eq!(receiver.recv_timeout(Duration::ZERO), Err(RecvError::TimedOut));
        assert_eq!(receiver.recv_deadline(Instant::now() + MILLI), Err(RecvError::TimedOut));
        // No receiver waits any more: these go into the buffer, and the second does not.
        sender.send(1).unwrap();
        let late = sender.send_timeout(2, MILLI).unwrap_err();
        assert!(late.is_timeout());
        assert_eq!((late.value, late.cause), (2, Cause::TimedOut));
        assert!(sender.send_deadline(3, Instant::now() + MILLI).unwrap_err().is_timeout());
        assert_eq!((receiver.recv_timeout(LONG), receiver.len()), (Ok(1), 0));
        // In time.
        assert_eq!(sender.send_timeout(4, LONG), Ok(()));
        let peer = spawn(move || receiver.recv_timeout(LONG).and_then(|_| receiver.recv_deadline(Instant::now() + LONG)));
        assert_eq!(sender.send_timeout(5, LONG), Ok(()));
        assert_eq!(peer.join().unwrap(), Ok(5));
    });
}

#[test]
fn a_cancelled_caller_fails_at_entry_even_where_it_need_not_wait() {
    let fiber = spawn(|| {
        let (sender, receiver) = bounded(4);
        sender.send(1).unwrap();
        sinew::current().cancel();
        assert_eq!(sender.send(2), Err(SendError { value: 2, cause: Cause::Cancelled }));
        assert_eq!(sender.send_timeout(2, LONG).unwrap_err().cause, Cause::Cancelled);
        assert_eq!(receiver.recv(), Err(RecvError::Cancelled));
        assert_eq!(receiver.iter().count(), 0);
        // These never wait, and never fail for it.
        assert_eq!((sender.try_send(2), receiver.try_recv()), (Ok(()), Ok(1)));
        shield(|| assert_eq!((sender.send(3), receiver.recv()), (Ok(()), Ok(2))));
        // A failure does not yield where that is forbidden.
        no_suspend(|| assert_eq!(receiver.recv(), Err(RecvError::Cancelled)));
    });
    fiber.join().unwrap();
}

#[test]
fn a_plain_thread_can_be_cancelled_too() {
    let thread = std::thread::spawn(|| {
        let (sender, receiver) = unbounded();
        sender.send(1).unwrap();
        sinew::current().cancel();
        (sender.send(2).unwrap_err().cause, receiver.recv(), receiver.try_recv())
    });
    assert_eq!(thread.join().unwrap(), (Cause::Cancelled, Err(RecvError::Cancelled), Ok(1)));
}

#[test]
fn a_deadline_around_a_caller_cuts_waits_and_is_told_of_it() {
    everywhere(|| {
        let (sender, receiver) = bounded(1);
        sender.send(1).unwrap();
        let cut = timeout(MILLI, || {
            let late = sender.send(2).unwrap_err();
            assert_eq!((late.value, late.cause), (2, Cause::TimedOut));
            // Late already: fails at entry, though there is a message.
            assert_eq!(receiver.recv(), Err(RecvError::TimedOut));
        });
        assert!(cut.is_err());
        assert_eq!(timeout(LONG, || receiver.recv()), Ok(Ok(1)));
        // A time-out of the call's own is not the deadline's.
        assert_eq!(timeout(LONG, || receiver.recv_timeout(MICRO)), Ok(Err(RecvError::TimedOut)));
    });
}

#[test]
fn a_cancel_cuts_a_wait_short_and_loses_nothing() {
    everywhere(|| {
        let (sender, receiver) = bounded(1);
        sender.send(String::from("kept")).unwrap();
        let gives = spawn({
            let sender = sender.clone();
            move || sender.send(String::from("back")).unwrap_err()
        });
        gives.cancel();
        assert_eq!(gives.join().unwrap(), SendError { value: String::from("back"), cause: Cause::Cancelled });
        assert_eq!(receiver.recv().unwrap(), "kept");
        let takes = spawn({
            let receiver = receiver.clone();
            move || (receiver.recv(), cancelled())
        });
        takes.cancel();
        assert_eq!(takes.join().unwrap(), (Err(RecvError::Cancelled), true));
        sender.send(String::from("here")).unwrap();
        assert_eq!(receiver.recv().unwrap(), "here");
    });
}

#[test]
fn every_value_is_dropped_once() {
    everywhere(|| {
        for capacity in [0, 1, 5, 100] {
            let dropped = Arc::new(AtomicUsize::new(0));
            let (sender, receiver) = if capacity == 100 { unbounded() } else { bounded(capacity) };
            let made = Arc::new(AtomicUsize::new(0));
            let producers: Vec<_> = (0..3)
                .map(|_| {
                    let (sender, dropped, made) = (sender.clone(), dropped.clone(), made.clone());
                    spawn(move || {
                        loop {
                            made.fetch_add(1, SeqCst);
                            if sender.send(Counted(dropped.clone())).is_err() {
                                break;
                            }
                            yield_now();
                        }
                    })
                })
                .collect();
            drop(sender);
            receiver.iter().take(50).for_each(drop);
            drop(receiver);
            producers.into_iter().for_each(|p| p.join().unwrap());
            assert_eq!(dropped.load(SeqCst), made.load(SeqCst));
            assert_eq!(Arc::strong_count(&dropped), 1);
        }
    });
}

#[test]
fn a_destructor_that_panics_drops_the_others_all_the_same() {
    struct Panics(Counted, bool);
    impl Drop for Panics {
        fn drop(&mut self) {
            assert!(!self.1, "as planned");
            let _ = &self.0;
        }
    }
    everywhere(|| {
        for (sender, receiver) in [bounded(100), unbounded()] {
            let dropped = Arc::new(AtomicUsize::new(0));
            (0..100).for_each(|i| assert!(sender.send(Panics(Counted(dropped.clone()), i == 30)).is_ok()));
            let panic = catch_unwind(AssertUnwindSafe(|| drop(receiver)));
            assert!(panic.is_err());
            assert_eq!(dropped.load(SeqCst), 100);
            assert!(sender.send(Panics(Counted(dropped.clone()), false)).is_err(), "the receiver is gone all the same");
        }
    });
}

/// Claims R2: a message whose destructor uses the very channel it was in does not find it locked.
#[test]
fn a_message_may_use_its_channel_when_it_is_dropped() {
    struct Uses(Option<Sender<Uses>>);
    impl Drop for Uses {
        fn drop(&mut self) {
            if let Some(sender) = self.0.take() {
                assert!(sender.try_send(Uses(None)).is_err());
            }
        }
    }
    everywhere(|| {
        let (sender, receiver) = unbounded();
        (0..40).for_each(|_| assert!(sender.send(Uses(Some(sender.clone()))).is_ok()));
        drop(receiver);
        assert!(sender.is_empty());
    });
}

#[test]
fn messages_of_any_size_arrive_whole() {
    fn all<T: Send + PartialEq + std::fmt::Debug + 'static>(make: fn(u8) -> T) {
        for capacity in [0, 1, 4, 1000] {
            let (sender, receiver) = if capacity == 1000 { unbounded() } else { bounded(capacity) };
            let peer = spawn(move || (0..200).for_each(|i| sender.send(make(i)).unwrap()));
            (0..200).for_each(|i| assert_eq!(receiver.recv().unwrap(), make(i)));
            peer.join().unwrap();
        }
    }
    everywhere(|| {
        all(|_| ());
        all(|i| i);
        all(|i| [i; 1024]);
        all(|i| vec![Box::new(i); 3]);
        all(Cell::new);
    });
}

/// Every pair of kinds of callers, over every kind of channel, both with many senders and receivers: each message arrives once.
#[test]
fn many_senders_and_receivers_move_every_message_once() {
    let total = rounds(if cfg!(debug_assertions) { 20_000 } else { 250_000 });
    let runtime = Arc::new(Runtime::builder().workers(2).build().unwrap());
    for (capacity, threads) in [(0, 0), (1, 1), (16, 2), (1024, 3), (usize::MAX, 4)] {
        let (sender, receiver) = if capacity == usize::MAX { unbounded() } else { bounded(capacity) };
        let (sum, count) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut waits: Vec<Box<dyn FnOnce()>> = Vec::new();
        let mut start = |index: usize, body: Box<dyn FnOnce() + Send>| {
            waits.push(if index < threads {
                let handle = std::thread::spawn(body);
                Box::new(move || handle.join().unwrap())
            } else {
                let handle = runtime.spawn(body);
                Box::new(move || handle.join().unwrap())
            });
        };
        for index in 0..4 {
            let sender = sender.clone();
            start(index, Box::new(move || (0..total / 4).for_each(|i| sender.send(index * (total / 4) + i).unwrap())));
            let (receiver, sum, count) = (receiver.clone(), sum.clone(), count.clone());
            start(
                index,
                Box::new(move || {
                    for value in receiver {
                        sum.fetch_add(value, SeqCst);
                        count.fetch_add(1, SeqCst);
                    }
                }),
            );
        }
        drop((sender, receiver));
        waits.into_iter().for_each(|wait| wait());
        assert_eq!((count.load(SeqCst), sum.load(SeqCst)), (total, total * (total - 1) / 2), "capacity {capacity}, {threads} threads");
    }
}

/// Claims that one sender's messages reach one receiver in order while others send too.
#[test]
fn each_senders_messages_stay_in_order() {
    everywhere(|| {
        for capacity in [0, 1, 3, 64] {
            let (sender, receiver) = bounded(capacity);
            let senders: Vec<_> = (0..4usize)
                .map(|who| {
                    let sender = sender.clone();
                    spawn(move || (0..500usize).for_each(|i| sender.send((who, i)).unwrap()))
                })
                .collect();
            drop(sender);
            let mut next = [0; 4];
            for (who, i) in receiver {
                assert_eq!(i, next[who]);
                next[who] += 1;
            }
            assert_eq!(next, [500; 4]);
            senders.into_iter().for_each(|s| s.join().unwrap());
        }
    });
}

/// Sends and receives that give up after a microsecond or two, and are cancelled at random, against each other: what was sent is what was received.
#[test]
fn timeouts_and_cancels_against_hand_overs_lose_and_double_nothing() {
    let total = rounds(if cfg!(debug_assertions) { 100_000 } else { 300_000 });
    for capacity in [0, 1, 2] {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        let (sender, receiver) = bounded::<usize>(capacity);
        let (received, failures) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let consumer = {
            let (received, failures) = (received.clone(), failures.clone());
            runtime.spawn(move || {
                loop {
                    match receiver.recv_timeout(MICRO) {
                        Ok(value) => _ = received.fetch_add(value, SeqCst),
                        Err(RecvError::TimedOut) => _ = failures.fetch_add(1, SeqCst),
                        Err(RecvError::Disconnected) => return,
                        Err(RecvError::Cancelled) => unreachable!("nobody cancels it"),
                    }
                }
            })
        };
        let producers: Vec<_> = (0..2)
            .map(|who| {
                let (sender, failures) = (sender.clone(), failures.clone());
                runtime.spawn(move || {
                    let mut sent = 0;
                    for i in 1..=total / 6 {
                        if (i + who) % 16 == 0 {
                            // A fiber of its own, cancelled as it sends.
                            let gives = spawn({
                                let sender = sender.clone();
                                move || sender.send(i)
                            });
                            if i % 32 < 16 {
                                yield_now();
                            }
                            gives.cancel();
                            match gives.join().unwrap() {
                                Ok(()) => sent += i,
                                Err(error) => assert_eq!((error.value, error.cause), (i, Cause::Cancelled)),
                            }
                            continue;
                        }
                        match sender.send_timeout(i, MICRO * (i as u32 % 3)) {
                            Ok(()) => sent += i,
                            Err(error) => {
                                assert_eq!((error.value, error.cause), (i, Cause::TimedOut));
                                failures.fetch_add(1, SeqCst);
                            }
                        }
                    }
                    sent
                })
            })
            .collect();
        drop(sender);
        let sent: usize = producers.into_iter().map(|p| p.join().unwrap()).sum();
        consumer.join().unwrap();
        assert_eq!(received.load(SeqCst), sent, "capacity {capacity}, {} gave up", failures.load(SeqCst));
        assert!(failures.load(SeqCst) > 0);
    }
}

#[test]
fn a_shutdown_ends_fibers_that_wait_in_channels() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let (full, keep) = bounded(1);
    full.send(0).unwrap();
    let (keep_too, empty) = bounded::<u8>(1);
    let waiting = Arc::new(AtomicUsize::new(0));
    let handles: Vec<_> = (0..20)
        .map(|i| {
            let (full, empty, waiting) = (full.clone(), empty.clone(), waiting.clone());
            runtime.spawn(move || {
                waiting.fetch_add(1, SeqCst);
                if i % 2 == 0 { full.send(i).unwrap_err().cause == Cause::Cancelled } else { empty.recv() == Err(RecvError::Cancelled) }
            })
        })
        .collect();
    until(|| waiting.load(SeqCst) == 20);
    runtime.shutdown_timeout(LONG).unwrap();
    handles.into_iter().for_each(|h| assert!(h.join().unwrap()));
    // Nobody is left in line.
    assert_eq!((keep.recv(), keep.try_recv(), keep_too.try_send(1), empty.recv()), (Ok(0), Err(TryRecvError::Empty), Ok(()), Ok(1)));
}

fn text(payload: Box<dyn Any + Send>) -> String {
    *payload.downcast::<String>().expect("a formatted message")
}

#[test]
fn a_wait_is_refused_where_suspending_is_and_nothing_is_left_behind() {
    everywhere(|| {
        let (sender, receiver) = bounded(1);
        let refused = |f: &dyn Fn()| {
            let message = text(catch_unwind(AssertUnwindSafe(|| no_suspend(f))).expect_err("the call was not refused"));
            assert!(message.contains("would suspend") && message.contains("chan.rs"), "{message}");
        };
        refused(&|| _ = receiver.recv());
        refused(&|| _ = receiver.recv_timeout(MILLI));
        // What need not wait is allowed.
        no_suspend(|| sender.send(1).unwrap());
        refused(&|| _ = sender.send(2));
        refused(&|| _ = sender.send_timeout(2, MILLI));
        assert_eq!(no_suspend(|| receiver.recv()), Ok(1));
        assert_eq!((sender.try_send(3), receiver.try_recv(), receiver.try_recv()), (Ok(()), Ok(3), Err(TryRecvError::Empty)));
    });
}

#[test]
fn channels_go_through_channels() {
    everywhere(|| {
        let (requests, inbox) = unbounded::<(u64, Sender<u64>)>();
        let server = spawn(move || inbox.iter().for_each(|(n, reply)| reply.send(n * n).unwrap()));
        let total: u64 = scope(|s| {
            let clients: Vec<_> = (0..10u64)
                .map(|n| {
                    let requests = requests.clone();
                    s.spawn(move || {
                        let (reply, answer) = bounded(0);
                        requests.send((n, reply)).unwrap();
                        answer.recv().unwrap()
                    })
                })
                .collect();
            clients.into_iter().map(|c| c.join().unwrap()).sum()
        });
        assert_eq!(total, (0..10).map(|n| n * n).sum());
        drop(requests);
        server.join().unwrap();
    });
}

/// The sieve of Go's tests: a chain of fibers, each of which lets through what its prime does not divide.
#[test]
fn a_chain_of_filters_finds_primes() {
    for capacity in [0, 1, 8] {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        let primes = runtime.run(move || {
            let (numbers, mut source) = bounded(capacity);
            spawn(move || (2..).take_while(|n| numbers.send(*n).is_ok()).count());
            let mut primes = Vec::new();
            for _ in 0..60 {
                let prime: u32 = source.recv().unwrap();
                primes.push(prime);
                let (filtered, next) = bounded(capacity);
                let from = std::mem::replace(&mut source, next);
                spawn(move || from.iter().filter(|n| n % prime != 0).take_while(|n| filtered.send(*n).is_ok()).count());
            }
            primes
        });
        assert_eq!(primes[..8], [2, 3, 5, 7, 11, 13, 17, 19]);
        assert_eq!(primes[59], 281);
    }
}

/// A handle dropped while others come and wait: nobody waits for ever.
#[test]
fn an_end_that_races_waits_reaches_them_all() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    for round in 0..rounds(300) {
        let (sender, receiver) = bounded::<usize>(round % 3);
        let takers: Vec<_> = (0..3).map(|_| receiver.clone()).map(|r| runtime.spawn(move || r.iter().count())).collect();
        let givers: Vec<_> =
            (0..3).map(|_| sender.clone()).map(|s| runtime.spawn(move || (0..5).filter(|i| s.send(*i).is_ok()).count())).collect();
        drop((sender, receiver));
        let sent: usize = givers.into_iter().map(|g| g.join().unwrap()).sum();
        let received: usize = takers.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!((sent, received), (15, 15));
        // And the other way round: receivers leave early.
        let (sender, receiver) = bounded::<usize>(round % 3);
        let givers: Vec<_> =
            (0..3).map(|_| sender.clone()).map(|s| runtime.spawn(move || (0..).take_while(|i| s.send(*i).is_ok()).count())).collect();
        let taker = runtime.spawn(move || receiver.iter().take(3).count());
        assert_eq!(taker.join().unwrap(), 3);
        drop(sender);
        assert!(givers.into_iter().map(|g| g.join().unwrap()).sum::<usize>() >= 3);
    }
}

/// To make a channel takes no room on the stack, however large its messages are.
#[test]
fn channels_of_large_messages_are_made_on_small_stacks() {
    type Large = [u8; 1 << 20];
    spawn(|| {
        drop((bounded::<Large>(1), bounded::<Large>(2), unbounded::<Large>(), never::<Large>(), oneshot::<Large>()));
        drop((broadcast::<Large>(2), bounded::<Large>(0)));
    })
    .join()
    .unwrap();
}

/// How many turns another fiber of the same worker gets while `hog` runs.
fn turns_beside(hog: impl FnOnce() + Send) -> usize {
    let (turns, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    one_worker().run(|| {
        scope(|s| {
            let other = s.spawn(|| {
                until(|| {
                    turns.fetch_add(1, SeqCst);
                    done.load(SeqCst)
                });
            });
            until(|| turns.load(SeqCst) != 0);
            turns.store(0, SeqCst);
            let ended = catch_unwind(AssertUnwindSafe(hog));
            let had = turns.load(SeqCst);
            done.store(true, SeqCst);
            other.join().unwrap();
            ended.map(|()| had).unwrap_or_else(|panic| resume_unwind(panic))
        })
    })
}

/// Operations that need not wait for one turn of the others, at most: the bound is 256, and the first time what was counted before is in vain.
const OPERATIONS_PER_TURN: usize = 512;

/// A loop over channels that are never empty, or never full, lets others of its worker run: whatever the form of its calls.
#[test]
fn a_loop_over_a_channel_that_never_waits_lets_others_run() {
    const ROUNDS: usize = 5_000;
    let check = |what: &str, operations: usize, hog: &mut (dyn FnMut() + Send)| {
        let turns = turns_beside(hog);
        assert!(turns >= operations / OPERATIONS_PER_TURN, "{what}: {turns} turns in {operations} operations");
    };
    for (sender, receiver) in [bounded(1), bounded(7), unbounded()] {
        check("send and receive", 2 * ROUNDS, &mut || {
            for i in 0..ROUNDS {
                sender.send(i).unwrap();
                assert_eq!(receiver.recv(), Ok(i));
            }
        });
        check("timed send and receive", 2 * ROUNDS, &mut || {
            for i in 0..ROUNDS {
                sender.send_timeout(i, LONG).unwrap();
                assert_eq!(receiver.recv_deadline(Instant::now() + LONG), Ok(i));
            }
        });
        check("select!", 2 * ROUNDS, &mut || {
            for i in 0..ROUNDS {
                sinew::select! { send(sender, i) -> sent => sent.unwrap() }
                sinew::select! { recv(receiver) -> got => assert_eq!(got, Ok(i)), recv(never::<u8>()) -> _ => unreachable!() }
            }
        });
        check("select! with a time-out", 2 * ROUNDS, &mut || {
            for i in 0..ROUNDS {
                sender.send(i).unwrap();
                sinew::select! { recv(receiver) -> got => assert_eq!(got, Ok(i)), default(LONG) => unreachable!() }
            }
        });
    }
    let (sender, receiver) = unbounded();
    check("send", ROUNDS, &mut || (0..ROUNDS).for_each(|i| sender.send(i).unwrap()));
    check("iter", ROUNDS / 2, &mut || assert_eq!(receiver.iter().take(ROUNDS / 2).count(), ROUNDS / 2));
    check("into_iter", ROUNDS / 2, &mut || assert_eq!(receiver.clone().into_iter().take(ROUNDS / 2).count(), ROUNDS / 2));
    let (sender, mut receiver) = broadcast(2);
    check("broadcast", ROUNDS, &mut || {
        for i in 0..ROUNDS {
            sender.send(i).unwrap();
            assert_eq!(receiver.recv(), Ok(i));
        }
    });
    let (sender, mut receiver) = sinew::chan::watch(0);
    check("watch", ROUNDS, &mut || {
        for i in 0..ROUNDS {
            sender.send(i).unwrap();
            receiver.changed().unwrap();
        }
    });
    check("a channel for each message", ROUNDS, &mut || {
        for i in 0..ROUNDS {
            let (sender, receiver) = oneshot();
            sender.send(i).unwrap();
            assert_eq!(receiver.recv(), Ok(i));
        }
    });
    let many: Vec<_> = (0..ROUNDS).map(|_| unbounded()).collect();
    check("many channels", ROUNDS, &mut || many.iter().for_each(|(sender, _)| sender.send(0).unwrap()));
}

/// What is said never to suspend does not do so for others either, nor does anything where it must not.
#[test]
fn what_must_not_suspend_does_not_let_others_run() {
    const ROUNDS: usize = 5_000;
    let (sender, receiver) = bounded(1);
    let turns = turns_beside(|| {
        for i in 0..ROUNDS {
            sender.try_send(i).unwrap();
            assert_eq!(receiver.try_recv(), Ok(i));
            sinew::select! { send(sender, i) -> sent => sent.unwrap(), default => unreachable!() }
            assert_eq!(receiver.try_iter().count(), 1);
        }
    });
    assert_eq!(turns, 0);
    let turns = turns_beside(|| {
        no_suspend(|| {
            for i in 0..ROUNDS {
                sender.send(i).unwrap();
                assert_eq!(receiver.recv(), Ok(i));
            }
        });
    });
    assert_eq!(turns, 0);
}

/// Who lets others run now and then anyway is not made to do so by channels.
#[test]
fn one_that_yields_by_itself_lets_others_run_no_more_often() {
    const ROUNDS: usize = 1_000;
    let (sender, receiver) = unbounded();
    let turns = turns_beside(|| {
        for i in 0..ROUNDS {
            for _ in 0..10 {
                sender.send(i).unwrap();
                assert_eq!(receiver.recv(), Ok(i));
            }
            yield_now();
        }
    });
    assert!(turns <= ROUNDS, "{turns} turns for {ROUNDS} yields");
}

/// A timer comes, and the cancel that it brings is met at the next call: nothing is lost by it.
#[test]
fn a_cancel_that_comes_while_others_run_loses_no_message() {
    one_worker().run(|| {
        let (sender, receiver) = unbounded();
        let (to_hog, of_hog) = (sender.clone(), receiver.clone());
        let hog = spawn(move || {
            let (mut sent, mut received) = (0, 0);
            let end = Instant::now() + LONG / 10;
            while Instant::now() < end {
                match to_hog.send(sent) {
                    Ok(()) => sent += 1,
                    Err(error) => {
                        assert_eq!((error.value, error.cause), (sent, Cause::Cancelled));
                        return (sent, received);
                    }
                }
                match of_hog.recv() {
                    Ok(value) => {
                        assert_eq!(value, received);
                        received += 1;
                    }
                    Err(error) => {
                        assert_eq!(error, RecvError::Cancelled);
                        return (sent, received);
                    }
                }
            }
            panic!("nobody else came to run");
        });
        sinew::sleep(MILLI);
        hog.cancel();
        let (sent, received) = hog.join().unwrap();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), (received..sent).collect::<Vec<_>>());
        drop(sender);
    });
}

/// Larger than the address space, but not than what an allocation may ask for.
#[test]
fn a_channel_for_which_there_is_no_memory_panics() {
    const TOO_MANY: usize = 1 << 44;
    for make in [|| drop(bounded::<u64>(TOO_MANY)), || drop(broadcast::<u64>(TOO_MANY)), || drop(bounded::<u64>(usize::MAX))] {
        let panic = catch_unwind(make).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("no memory for a channel of"), "{panic:?}");
    }
}

#[test]
fn a_receive_that_was_cut_short_has_found_nothing() {
    assert_eq!(TryRecvError::from(RecvError::Disconnected), TryRecvError::Disconnected);
    for error in [RecvError::Cancelled, RecvError::TimedOut] {
        assert_eq!(TryRecvError::from(error), TryRecvError::Empty);
    }
    use broadcast::{RecvError, TryRecvError};
    assert_eq!(TryRecvError::from(RecvError::Lagged(3)), TryRecvError::Lagged(3));
    assert_eq!(TryRecvError::from(RecvError::Disconnected), TryRecvError::Disconnected);
    assert_eq!(TryRecvError::from(RecvError::TimedOut), TryRecvError::Empty);
}
