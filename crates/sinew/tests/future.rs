//! Futures in fibers, fibers as futures, and both beside the executors of others.

mod common;

use std::future::{Future, pending, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use sinew::{
    Cancelled, Cut, Runtime, block_on, cancelled, current, no_suspend, park, run, shield, sleep, spawn, spawn_future, timeout,
    try_block_on, yield_now,
};

const HOUR: Duration = Duration::from_secs(3600);
const MILLI: Duration = Duration::from_millis(1);

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        yield_now();
    }
}

/// Something that happens once, and the waker of whoever waits for it.
#[derive(Default)]
struct Signal {
    happened: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Signal {
    fn fire(&self) {
        self.happened.store(true, SeqCst);
        let waker = self.waker.lock().unwrap().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let before = self.waker.lock().unwrap().replace(context.waker().clone());
        drop(before);
        if self.happened.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }

    fn wait(&self) -> impl Future<Output = ()> {
        poll_fn(|context| self.poll(context))
    }
}

/// In a fiber, and on a plain thread.
fn everywhere(f: impl Fn() + Send + Sync) {
    run(&f);
    f();
}

#[test]
fn a_future_is_run_to_its_end_in_fibers_and_on_threads() {
    everywhere(|| {
        assert_eq!(block_on(ready(7)), 7);
        assert_eq!(try_block_on(ready(7)), Ok(7));
        // It need not be `Send`, and may borrow.
        let (rc, local) = (Rc::new(5), String::from("borrowed"));
        assert_eq!(block_on(async { *rc + local.len() }), 13);
        let signal = Arc::new(Signal::default());
        let waker = {
            let signal = signal.clone();
            spawn(move || {
                until(|| signal.waker.lock().unwrap().is_some());
                signal.fire();
            })
        };
        block_on(signal.wait());
        waker.join().unwrap();
    });
}

#[test]
fn a_thread_wakes_a_fiber_and_a_fiber_a_thread_through_a_waker() {
    const ROUNDS: usize = 2_000;
    everywhere(|| {
        let signals: Arc<Vec<Signal>> = Arc::new((0..ROUNDS).map(|_| Signal::default()).collect());
        let theirs = signals.clone();
        let thread = std::thread::spawn(move || theirs.iter().for_each(Signal::fire));
        signals.iter().for_each(|signal| block_on(signal.wait()));
        thread.join().unwrap();
    });
}

#[test]
fn a_future_that_wakes_itself_does_not_keep_others_from_running() {
    let runtime = runtime(1);
    runtime.run(|| {
        let done = Arc::new(AtomicBool::new(false));
        let theirs = done.clone();
        let restless = spawn(move || {
            let mut polls = 0u64;
            block_on(poll_fn(|context| {
                polls += 1;
                context.waker().wake_by_ref();
                if theirs.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }
            }));
            polls
        });
        // A hundred turns of the one worker, between the polls of the other.
        (0..100).for_each(|_| yield_now());
        done.store(true, SeqCst);
        assert!(restless.join().unwrap() > 1);
    });
}

#[test]
fn a_restless_future_is_cut_short_like_any() {
    let restless = || {
        poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        })
    };
    everywhere(|| assert!(timeout(MILLI, || assert_eq!(try_block_on(restless()), Err(Cut::TimedOut))).is_err()));
    let fiber = spawn(move || try_block_on(restless()));
    fiber.cancel();
    assert_eq!(fiber.join().unwrap(), Err(Cut::Cancelled));
}

#[test]
fn try_block_on_is_a_cancel_point_and_block_on_is_none() {
    let runtime = runtime(2);
    runtime.run(|| {
        // Under way.
        let fiber = spawn(|| try_block_on(pending::<()>()));
        fiber.cancel();
        assert_eq!(fiber.join().unwrap(), Err(Cut::Cancelled));
        // At entry: the future is not even polled; and a shield keeps it off.
        let fiber = spawn(|| {
            current().cancel();
            let polled = AtomicBool::new(false);
            let cut = try_block_on(async { polled.store(true, SeqCst) });
            (cut, polled.into_inner(), shield(|| try_block_on(ready(1))), block_on(ready(2)))
        });
        assert_eq!(fiber.join().unwrap(), (Err(Cut::Cancelled), false, Ok(1), 2));
        // A deadline, which says so.
        let late = timeout(MILLI, || {
            assert_eq!(try_block_on(pending::<()>()), Err(Cut::TimedOut));
            assert_eq!(try_block_on(ready(())), Err(Cut::TimedOut));
        });
        assert!(late.is_err());
        // Neither ends a `block_on`.
        let signal = Arc::new(Signal::default());
        let theirs = signal.clone();
        let fiber = spawn(move || timeout(MILLI, || block_on(theirs.wait())));
        fiber.cancel();
        sleep(3 * MILLI);
        assert!(!fiber.is_finished());
        signal.fire();
        assert_eq!(fiber.join().unwrap(), Ok(()));
    });
}

#[test]
fn what_cut_a_future_short_is_in_an_io_error() {
    let cancelled = std::io::Error::from(Cut::Cancelled);
    assert_eq!(cancelled.kind(), std::io::ErrorKind::Other);
    assert!(Cancelled::is_in(&cancelled));
    assert!(!Cancelled::is_in(&std::io::Error::from(Cut::TimedOut)) && !Cancelled::is_in(&std::io::Error::other("another")));
    assert!(!Cancelled::is_in(&std::io::Error::from_raw_os_error(4)), "an error of the system contains nothing");
    assert_eq!(std::io::Error::from(Cut::TimedOut).kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(Cut::Cancelled.to_string(), "the fiber was cancelled");
}

#[test]
fn a_future_that_is_cut_short_is_dropped() {
    struct Dropped(Arc<AtomicUsize>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let dropped = Dropped(drops.clone());
    let fiber = spawn(move || {
        try_block_on(async {
            let _dropped = dropped;
            pending::<()>().await;
        })
    });
    fiber.cancel();
    assert_eq!(fiber.join().unwrap(), Err(Cut::Cancelled));
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn a_panic_of_a_future_passes_on_and_leaves_all_as_it_was() {
    everywhere(|| {
        let panic = catch_unwind(|| block_on(async { panic!("in the future") })).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"in the future"));
        assert_eq!(block_on(ready(1)), 1);
    });
}

#[test]
fn inside_no_suspend_it_panics_before_the_future_is_polled() {
    everywhere(|| {
        let polled = AtomicBool::new(false);
        let tries: [&dyn Fn(); 2] = [&|| block_on(async { polled.store(true, SeqCst) }), &|| {
            let _ = try_block_on(async { polled.store(true, SeqCst) });
        }];
        for attempt in tries {
            let panic = catch_unwind(AssertUnwindSafe(|| no_suspend(attempt))).unwrap_err();
            assert!(panic.downcast_ref::<String>().unwrap().contains("would suspend"));
        }
        assert!(!polled.load(SeqCst));
    });
}

// Wakers and other waits

#[test]
fn a_waker_and_an_unpark_do_not_stand_in_for_each_other() {
    everywhere(|| {
        // An unpark before and during a wait for a future is kept for the park after it.
        let me = current();
        me.unpark();
        let signal = Arc::new(Signal::default());
        let theirs = signal.clone();
        let other = spawn(move || {
            until(|| theirs.waker.lock().unwrap().is_some());
            me.unpark();
            (0..10).for_each(|_| yield_now());
            theirs.fire();
        });
        block_on(signal.wait());
        assert!(signal.happened.load(SeqCst));
        park();
        other.join().unwrap();
        // A wake that comes late ends no park.
        let waker = block_on(poll_fn(|context| Poll::Ready(context.waker().clone())));
        (0..1000).for_each(|_| waker.wake_by_ref());
        assert!(timeout(MILLI, park).is_err(), "a park was ended by a waker");
    });
}

/// A fiber and the wakers of an earlier future of it: they are called all the time while it parks, sleeps, joins and locks.
#[test]
fn a_waker_that_came_too_late_ends_no_other_wait() {
    run(|| {
        let waker = block_on(poll_fn(|context| Poll::Ready(context.waker().clone())));
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = stop.clone();
        let storm = std::thread::spawn(move || {
            while !theirs.load(SeqCst) {
                waker.wake_by_ref();
            }
        });
        let me = current();
        for round in 0..200 {
            let before = Instant::now();
            sleep(Duration::from_micros(50));
            assert!(before.elapsed() >= Duration::from_micros(50), "a sleep was ended by a waker");
            let flag = Arc::new(AtomicBool::new(false));
            let (theirs, parked) = (flag.clone(), me.clone());
            let child = spawn(move || {
                (0..round % 5).for_each(|_| yield_now());
                theirs.store(true, SeqCst);
                parked.unpark();
            });
            park();
            assert!(flag.load(SeqCst), "a park was ended by a waker");
            child.join().unwrap();
            // A later future bears a poll in vain.
            assert_eq!(block_on(async { 7 }), 7);
        }
        stop.store(true, SeqCst);
        storm.join().unwrap();
    });
}

/// The block of a fiber that has ended is used again and again by others, while its wakers are called a thousand times each.
#[test]
fn a_waker_that_outlives_its_fiber_is_harmless() {
    let runtime = runtime(1);
    runtime.run(|| {
        for _ in 0..20 {
            let (waker, id) = spawn(|| (block_on(poll_fn(|c| Poll::Ready(c.waker().clone()))), current().id())).join().unwrap();
            let storm = std::thread::spawn(move || {
                for _ in 0..1000 {
                    let copy = waker.clone();
                    waker.wake_by_ref();
                    copy.wake();
                }
            });
            let mut reused = 0;
            while !storm.is_finished() || reused == 0 {
                let next = spawn(|| {
                    let flag = Arc::new(AtomicBool::new(false));
                    let (theirs, me) = (flag.clone(), current());
                    spawn(move || {
                        theirs.store(true, SeqCst);
                        me.unpark();
                    });
                    park();
                    assert!(flag.load(SeqCst), "a park of another fiber was ended");
                    block_on(async { current().id() })
                });
                reused += usize::from(next.join().unwrap() != id);
            }
            storm.join().unwrap();
        }
    });
}

#[test]
fn a_waker_that_outlives_its_thread_is_harmless() {
    let waker = std::thread::spawn(|| block_on(poll_fn(|context| Poll::Ready(context.waker().clone())))).join().unwrap();
    for _ in 0..1000 {
        waker.wake_by_ref();
    }
    assert!(timeout(MILLI, park).is_err());
}

#[test]
fn wakers_of_one_fiber_are_known_to_be_the_same() {
    let first = run(|| {
        let wakers: Vec<Waker> = (0..2).map(|_| block_on(poll_fn(|context| Poll::Ready(context.waker().clone())))).collect();
        assert!(wakers[0].will_wake(&wakers[1]));
        wakers[0].clone()
    });
    let second = block_on(poll_fn(|context| Poll::Ready(context.waker().clone())));
    assert!(!first.will_wake(&second));
}

/// A wake, a deadline and a cancel race one wait: it ends, once, and says by what.
#[test]
fn a_wake_a_deadline_and_a_cancel_race_and_one_wins() {
    const ROUNDS: u64 = if cfg!(debug_assertions) { 20_000 } else { 200_000 };
    let runtime = runtime(2);
    let (mut woken, mut late) = (0u64, 0u64);
    runtime.run(|| {
        for round in 0..ROUNDS {
            let signal = Arc::new(Signal::default());
            let theirs = signal.clone();
            let waker = spawn(move || {
                (0..round % 7).for_each(|_| std::hint::spin_loop());
                if round % 3 == 0 {
                    sleep(Duration::from_micros(round % 40));
                }
                theirs.fire();
            });
            let outcome = timeout(Duration::from_micros(round % 40), || try_block_on(signal.wait()));
            match outcome {
                Ok(inner) => {
                    assert_eq!(inner, Ok(()));
                    assert!(signal.happened.load(SeqCst), "ready before it happened");
                    woken += 1;
                }
                Err(_) => {
                    late += 1;
                    // What is left of the wake is harmless, and the next wait is whole.
                    block_on(signal.wait());
                }
            }
            waker.join().unwrap();
        }
    });
    assert!(woken > 0 && late > 0, "{woken} woken, {late} late: no race");
    let mut cut = 0;
    runtime.run(|| {
        for round in 0..ROUNDS / 10 {
            let signal = Arc::new(Signal::default());
            let (theirs, fires) = (signal.clone(), signal.clone());
            let fiber = spawn(move || try_block_on(theirs.wait()));
            let waker = spawn(move || fires.fire());
            (0..round % 3).for_each(|_| yield_now());
            fiber.cancel();
            cut += u64::from(fiber.join().unwrap() == Err(Cut::Cancelled));
            waker.join().unwrap();
        }
    });
    assert!(cut > 0, "no cancel came first");
}

// Nesting

#[test]
fn a_call_within_a_poll_works_and_loses_no_wake_of_the_one_around() {
    everywhere(|| {
        let (outer, inner) = (Arc::new(Signal::default()), Arc::new(Signal::default()));
        let (their_outer, their_inner) = (outer.clone(), inner.clone());
        let other = spawn(move || {
            until(|| their_inner.waker.lock().unwrap().is_some());
            // The inner call waits now, or is about to: this wake is the outer's.
            their_outer.fire();
            (0..20).for_each(|_| yield_now());
            their_inner.fire();
        });
        let mut polls = 0;
        block_on(poll_fn(|context| {
            polls += 1;
            let now = outer.poll(context);
            if polls == 1 {
                assert!(now.is_pending(), "it cannot happen before the inner call");
                block_on(inner.wait());
                assert!(inner.happened.load(SeqCst));
                return Poll::Pending;
            }
            now
        }));
        assert!(polls >= 2);
        other.join().unwrap();
    });
}

#[test]
fn a_call_within_a_poll_that_is_ready_at_once_leaves_no_needless_poll() {
    run(|| {
        let mut polls = 0;
        let late = timeout(5 * MILLI, || {
            try_block_on(poll_fn(|_| {
                polls += 1;
                block_on(ready(()));
                Poll::<()>::Pending
            }))
        });
        assert!(late.is_err());
        assert_eq!(polls, 1);
    });
}

#[test]
fn waits_within_a_poll_suspend_the_fiber() {
    let runtime = runtime(1);
    runtime.run(|| {
        let other = spawn(|| 7);
        let value = block_on(async {
            sleep(MILLI);
            yield_now();
            other.join().unwrap()
        });
        assert_eq!(value, 7);
    });
}

// Fibers as futures, and executors of others

#[test]
fn spawned_futures_are_fibers() {
    let runtime = runtime(2);
    runtime.run(|| {
        let handles: Vec<_> = (0..1000u64).map(|i| spawn_future(async move { i })).collect();
        let sum = spawn_future(async {
            let mut sum = 0;
            for handle in handles {
                sum += handle.await.unwrap();
            }
            sum
        });
        assert_eq!(sum.join().unwrap(), 499_500);
        assert!(spawn_future(async { panic!("joined") }).join().is_err());
        let fiber = spawn_future(async {
            while !cancelled() {
                sinew::yield_now();
            }
        });
        fiber.cancel();
        fiber.join().unwrap();
    });
}

#[test]
fn fibers_are_awaited_under_the_futures_crates_executors() {
    use futures::executor::{LocalPool, block_on};
    use futures::future::{Either, join_all, select};
    use futures::task::LocalSpawnExt;

    assert_eq!(block_on(spawn(|| 7)).unwrap(), 7);
    let many = join_all((0..100u64).map(|i| {
        spawn(move || {
            (0..i % 4).for_each(|_| yield_now());
            i
        })
    }));
    assert_eq!(block_on(many).into_iter().map(Result::unwrap).sum::<u64>(), 4950);
    // One that is not waited for to its end.
    let (go, gate) = sinew::chan::unbounded::<()>();
    let slow = spawn(move || gate.recv().unwrap());
    let Either::Left((value, slow)) = block_on(select(spawn(|| 1), slow)) else { panic!("the slow one came first") };
    assert_eq!(value.unwrap(), 1);
    go.send(()).unwrap();
    block_on(slow).unwrap();
    let mut pool = LocalPool::new();
    let sum = Rc::new(std::cell::Cell::new(0));
    for i in 0..10 {
        let sum = sum.clone();
        let task = async move {
            let value = spawn(move || i).await.unwrap();
            sum.set(sum.get() + value);
        };
        pool.spawner().spawn_local(task).unwrap();
    }
    pool.run();
    assert_eq!(sum.get(), 45);
}

fn tokio_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// The recipe in the docs of `block_on`.
fn block_on_tokio<F: Future>(tokio: &tokio::runtime::Handle, future: F) -> F::Output {
    let mut future = pin!(future);
    block_on(poll_fn(|context| {
        let _entered = tokio.enter();
        future.as_mut().poll(context)
    }))
}

#[test]
fn tokios_context_is_there_while_its_futures_are_polled_and_at_no_other_time() {
    let tokio = tokio_runtime();
    let handle = tokio.handle().clone();
    let polled = Arc::new(AtomicUsize::new(0));
    // One worker: what one fiber leaves at the thread the others find. The first to begin is not the last to end.
    runtime(1).run(|| {
        let sleepers = [20, 2, 10].map(|millis| {
            let (handle, polled) = (handle.clone(), polled.clone());
            spawn(move || {
                block_on_tokio(&handle, async {
                    let sleep = tokio::time::sleep(millis * MILLI);
                    polled.fetch_add(1, SeqCst);
                    sleep.await;
                    assert!(tokio::runtime::Handle::try_current().is_ok());
                });
                assert!(tokio::runtime::Handle::try_current().is_err());
            })
        });
        until(|| polled.load(SeqCst) == sleepers.len());
        let other = spawn(|| tokio::runtime::Handle::try_current().is_err());
        assert!(other.join().unwrap(), "a fiber has another one's context");
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    });
}

#[test]
fn fibers_wait_for_tokios_channels_timers_and_tasks() {
    let tokio = tokio_runtime();
    let handle = tokio.handle().clone();
    run(|| {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        handle.spawn(async move { sender.send(7).unwrap() });
        assert_eq!(block_on(receiver).unwrap(), 7);
        let before = Instant::now();
        block_on_tokio(&handle, async { tokio::time::sleep(2 * MILLI).await });
        assert!(before.elapsed() >= 2 * MILLI);
        assert_eq!(block_on(handle.spawn(async { 9 })).unwrap(), 9);
        // A deadline of ours cuts a sleep of theirs.
        let entered = handle.enter();
        let sleep = tokio::time::sleep(HOUR);
        drop(entered);
        assert!(timeout(MILLI, || try_block_on(sleep)).is_err());
    });
}

#[test]
fn tokios_channels_join_fibers_of_many_workers() {
    const MESSAGES: u64 = 5_000;
    let (sender, mut receiver) = tokio::sync::mpsc::channel(4);
    let senders: Vec<_> = (0..4)
        .map(|_| {
            let sender = sender.clone();
            spawn(move || (0..MESSAGES).for_each(|i| block_on(sender.send(i)).unwrap()))
        })
        .collect();
    drop(sender);
    let sum: u64 = block_on(async {
        let mut sum = 0;
        while let Some(i) = receiver.recv().await {
            sum += i;
        }
        sum
    });
    assert_eq!(sum, 4 * MESSAGES * (MESSAGES - 1) / 2);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

#[test]
fn tokios_tasks_wait_for_fibers() {
    let tokio = tokio_runtime();
    let sum = tokio.block_on(async {
        let tasks: Vec<_> = (0..200u64)
            .map(|i| {
                tokio::spawn(async move {
                    let fiber = spawn(move || {
                        sleep(Duration::from_micros(i % 50));
                        i
                    });
                    fiber.await.unwrap()
                })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        // The loser of a race is dropped while it watches its fiber.
        let (go, gate) = sinew::chan::unbounded::<()>();
        let slow = spawn(move || gate.recv().unwrap());
        assert!(tokio::time::timeout(MILLI, slow).await.is_err());
        go.send(()).unwrap();
        sum
    });
    assert_eq!(sum, 19_900);
}

/// A waker that counts its calls.
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_waker_of_a_foreign_task_is_called_once_its_fiber_has_ended() {
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(count.clone());
    let (go, gate) = sinew::chan::unbounded::<()>();
    let mut fiber = spawn(move || gate.recv().unwrap());
    let mut context = Context::from_waker(&waker);
    assert!(std::pin::pin!(&mut fiber).poll(&mut context).is_pending());
    assert_eq!(count.0.load(SeqCst), 0);
    go.send(()).unwrap();
    until(|| count.0.load(SeqCst) == 1);
    assert!(matches!(std::pin::pin!(&mut fiber).poll(&mut context), Poll::Ready(Ok(()))));
}

/// A handle that is polled by another task, joined or dropped gives up the waker that it left; that is not called any more.
#[test]
fn a_handle_takes_back_the_waker_that_it_left() {
    let (first, second) = (Arc::new(Count(AtomicUsize::new(0))), Arc::new(Count(AtomicUsize::new(0))));
    let (of_first, of_second) = (Waker::from(first.clone()), Waker::from(second.clone()));
    let counts = || (Arc::strong_count(&first), Arc::strong_count(&second));
    let polled = || {
        let (go, gate) = sinew::chan::unbounded::<()>();
        let mut fiber = spawn(move || gate.recv().unwrap());
        assert!(pin!(&mut fiber).poll(&mut Context::from_waker(&of_first)).is_pending());
        assert_eq!(counts(), (3, 2));
        assert!(pin!(&mut fiber).poll(&mut Context::from_waker(&of_second)).is_pending());
        assert_eq!(counts(), (2, 3), "another task's is in its place");
        (go, fiber)
    };
    let (go, fiber) = polled();
    drop(fiber);
    assert_eq!(counts(), (2, 2), "of a handle that is dropped");
    go.send(()).unwrap();
    let (go, fiber) = polled();
    go.send(()).unwrap();
    fiber.join().unwrap();
    common::poll_until("the waker of a handle that was joined is gone", || counts() == (2, 2));
    assert_eq!(first.0.load(SeqCst), 0);
}

/// Claim: whoever is first, no waker and no outcome is kept for ever. By handles that are dropped, joined or polled again at the moment at which their fibers end.
#[test]
fn a_handle_that_is_left_while_its_fiber_ends_leaves_nothing() {
    let (count, outcome) = (Arc::new(Count(AtomicUsize::new(0))), Arc::new(()));
    let waker = Waker::from(count.clone());
    let mut context = Context::from_waker(&waker);
    const ROUNDS: usize = if cfg!(debug_assertions) { 5_000 } else { 100_000 };
    for round in 0..ROUNDS {
        let mut fiber = spawn({
            let outcome = outcome.clone();
            move || {
                (0..round % 3).for_each(|_| yield_now());
                outcome
            }
        });
        if pin!(&mut fiber).poll(&mut context).is_ready() {
            continue;
        }
        (0..round % 50).for_each(|_| std::hint::spin_loop());
        match round % 4 {
            0 => drop(fiber),
            1 => drop(fiber.join().unwrap()),
            2 => drop(pin!(&mut fiber).poll(&mut context)),
            _ => until(|| fiber.is_finished()),
        }
    }
    common::poll_until("no waker and no outcome is kept", || (Arc::strong_count(&count), Arc::strong_count(&outcome)) == (2, 1));
}

/// A waker that waits, with a deadline, in the fiber that has ended.
struct Sleepy(AtomicUsize);

impl Wake for Sleepy {
    fn wake(self: Arc<Self>) {
        self.0.store(1, SeqCst);
        sleep(MILLI);
        self.0.store(2, SeqCst);
    }
}

#[test]
fn a_foreign_waker_that_sleeps_leaves_the_outcome_alone() {
    const OUTCOME: [u64; 7] = [7; 7];
    let (go, sleepy) = (Arc::new(AtomicBool::new(false)), Arc::new(Sleepy(AtomicUsize::new(0))));
    let mut fiber = spawn({
        let go = go.clone();
        move || {
            until(|| go.load(SeqCst));
            OUTCOME
        }
    });
    let waker = Waker::from(sleepy.clone());
    assert!(std::pin::Pin::new(&mut fiber).poll(&mut Context::from_waker(&waker)).is_pending());
    go.store(true, SeqCst);
    until(|| sleepy.0.load(SeqCst) == 2);
    assert_eq!(fiber.join().unwrap(), OUTCOME);
}
