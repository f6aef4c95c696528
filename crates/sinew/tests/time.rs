//! Intervals and timers: own versions of what flare's and bthread's timer tests check, and more.

mod common;
#[path = "common/counting.rs"]
mod counting;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use common::{in_child, is_child};
use counting::bytes;
use sinew::time::{Cancel, Timer, interval};
use sinew::{Cut, Runtime, cancelled, current, no_suspend, run, sleep, spawn, timeout, yield_now};

const HOUR: Duration = Duration::from_secs(3600);
const MILLI: Duration = Duration::from_millis(1);
const MICRO: Duration = Duration::from_micros(1);

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        yield_now();
    }
}

/// In a fiber, and on a plain thread.
fn everywhere(f: impl Fn() + Send + Sync) {
    run(&f);
    f();
}

/// Counts how many of what it was given to are gone.
struct Gone(Arc<AtomicUsize>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

// Intervals

#[test]
fn ticks_come_in_rhythm_and_never_early() {
    everywhere(|| {
        let begun = Instant::now();
        let mut interval = interval(2 * MILLI);
        assert_eq!(interval.period(), 2 * MILLI);
        let mut last = None;
        for _ in 0..5 {
            let tick = interval.tick().unwrap();
            assert!(tick <= Instant::now(), "a tick that is still to come");
            match last {
                None => assert!(tick >= begun + 2 * MILLI, "the first tick comes after one period"),
                Some(last) => {
                    let since = tick - last;
                    assert_eq!(since, (1 + interval.missed() as u32) * 2 * MILLI, "out of rhythm");
                }
            }
            last = Some(tick);
        }
    });
}

#[test]
fn missed_ticks_are_skipped_counted_and_leave_the_rhythm() {
    everywhere(|| {
        let mut interval = interval(MILLI);
        let first = interval.tick().unwrap();
        sleep(5 * MILLI + MILLI / 2);
        let late = interval.tick().unwrap();
        assert!(interval.missed() >= 4, "{} missed", interval.missed());
        assert_eq!(late - first, (interval.missed() as u32 + 1) * MILLI);
        sleep(2 * MILLI);
        let before = Instant::now();
        interval.reset();
        interval.tick().unwrap();
        assert!(before.elapsed() >= MILLI, "a tick of the rhythm before the reset");
    });
}

#[test]
fn a_tick_is_a_cancel_point_and_is_still_to_come_when_cut() {
    everywhere(|| {
        let mut ticks = interval(HOUR);
        assert!(timeout(MILLI, || assert_eq!(ticks.tick(), Err(Cut::TimedOut))).is_err());
        assert_eq!(ticks.missed(), 0);
    });
    let count = Arc::new(AtomicUsize::new(0));
    let theirs = count.clone();
    let fiber = spawn(move || {
        let mut ticks = interval(MICRO);
        while ticks.tick().is_ok() {
            theirs.fetch_add(1, SeqCst);
        }
        // It stays cancelled, also where a tick is due.
        (ticks.tick(), cancelled())
    });
    until(|| count.load(SeqCst) > 10);
    fiber.cancel();
    assert_eq!(fiber.join().unwrap(), (Err(Cut::Cancelled), true));
    let fiber = spawn(|| interval(HOUR).tick());
    fiber.cancel();
    assert_eq!(fiber.join().unwrap(), Err(Cut::Cancelled));
}

/// One worker: a fiber that has not begun can run only if the tick, which is due, lets it.
#[test]
fn others_run_before_a_tick_that_is_due() {
    let runtime = runtime(1);
    runtime.run(|| {
        let mut ticks = interval(MICRO);
        for _ in 0..10 {
            let other = spawn(|| ());
            std::thread::sleep(10 * MICRO);
            assert!(!other.is_finished());
            ticks.tick().unwrap();
            assert!(other.is_finished(), "a tick that was due let nobody run");
        }
    });
}

#[test]
fn periods_of_zero_are_refused_and_endless_ones_are_not() {
    assert!(catch_unwind(|| interval(Duration::ZERO)).is_err());
    assert!(catch_unwind(|| Timer::every(Duration::ZERO, || ())).is_err());
    assert!(timeout(MILLI, || interval(Duration::MAX).tick()).is_err());
    let timers =
        [Timer::after(Duration::MAX, || panic!("for ever has passed")), Timer::every(Duration::MAX, || panic!("for ever has passed"))];
    timers.iter().for_each(|timer| assert_eq!(timer.cancel(), Cancel::Stopped));
}

#[test]
fn a_tick_inside_no_suspend_panics_and_timers_do_not() {
    everywhere(|| {
        let mut ticks = interval(MILLI);
        let panic = catch_unwind(AssertUnwindSafe(|| no_suspend(|| ticks.tick()))).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("would suspend"));
        no_suspend(|| assert_eq!(Timer::after(HOUR, || ()).cancel(), Cancel::Stopped));
    });
}

// Timers

#[test]
fn a_timer_runs_once_in_a_fiber_and_not_before_its_time() {
    everywhere(|| {
        let (sender, receiver) = channel();
        let begun = Instant::now();
        let timer = Timer::after(3 * MILLI, move || {
            let elapsed = begun.elapsed();
            // A fiber: it may sleep, spawn and join.
            sleep(MILLI);
            let child = spawn(|| 7).join().unwrap();
            sender.send((elapsed, current().stack_size() > 0, child)).unwrap();
        });
        let ((elapsed, in_fiber, child), receiver) = sinew::blocking(move || (receiver.recv().unwrap(), receiver));
        assert!(elapsed >= 3 * MILLI && in_fiber && child == 7);
        until(|| timer.cancel() == Cancel::Done);
        assert!(receiver.recv().is_err(), "it ran twice, or its callback was not dropped");
    });
}

#[test]
fn timers_can_be_made_on_the_smallest_stacks() {
    let runtime = Runtime::builder().workers(1).stack_size(16 * 1024).build().unwrap();
    let (sender, receiver) = channel();
    let timer = runtime.run(|| Timer::after(MILLI, move || sender.send(()).unwrap()));
    receiver.recv().unwrap();
    drop(timer);
}

#[test]
fn a_timer_of_no_delay_runs() {
    let (sender, receiver) = channel();
    let _timer = Timer::after(Duration::ZERO, move || sender.send(()).unwrap());
    receiver.recv().unwrap();
}

#[test]
fn an_early_timer_that_is_armed_after_a_late_one_runs_first() {
    let (sender, receiver) = channel();
    let late = sender.clone();
    let _late = Timer::after(20 * MILLI, move || late.send("late").unwrap());
    // The driver sleeps until the late one by now, or is about to.
    std::thread::sleep(2 * MILLI);
    let _early = Timer::after(MILLI, move || sender.send("early").unwrap());
    assert_eq!(receiver.iter().collect::<Vec<_>>(), ["early", "late"]);
}

#[test]
fn timers_run_in_the_order_of_their_moments() {
    // One worker, kept busy until all are due at once. A timer's moment lies between two that are known.
    let runtime = runtime(1);
    runtime.run(|| {
        let order = Arc::new(Mutex::new(Vec::new()));
        let (mut timers, mut moments) = (Vec::new(), Vec::new());
        for i in 0..100usize {
            let (order, delay) = (order.clone(), 5 * MILLI + (i as u32 * 37 % 100) * 20 * MICRO);
            let earliest = Instant::now() + delay;
            timers.push(Timer::after(delay, move || order.lock().unwrap().push(i)));
            moments.push((earliest, Instant::now() + delay));
        }
        std::thread::sleep(10 * MILLI);
        until(|| order.lock().unwrap().len() == timers.len());
        let order = order.lock().unwrap();
        for (place, &first) in order.iter().enumerate() {
            for &later in &order[place..] {
                // Two ticks of the wheel apart, at most.
                assert!(moments[first].0 <= moments[later].1 + 3 * MICRO, "timer {first} ran before {later}: {order:?}");
            }
        }
        assert_ne!(*order, (0..100).collect::<Vec<_>>(), "the order of arming is not the order of moments");
    });
}

#[test]
fn a_timer_can_be_made_and_cancelled_in_the_callback_of_another() {
    let (sender, receiver) = channel();
    let stopped = Timer::after(HOUR, || panic!("it was cancelled"));
    let _outer = Timer::after(MILLI, move || {
        assert_eq!(stopped.cancel(), Cancel::Stopped);
        assert_eq!(stopped.cancel(), Cancel::Done);
        let inner = sender.clone();
        Timer::after(MILLI, move || inner.send("inner").unwrap()).detach();
        sender.send("outer").unwrap();
    });
    assert_eq!(receiver.iter().collect::<Vec<_>>(), ["outer", "inner"]);
}

#[test]
fn cancel_says_whether_the_callback_still_runs() {
    let (begun, has_begun) = channel();
    let (go, gate) = channel::<()>();
    let timer = Timer::after(MILLI, move || {
        begun.send(()).unwrap();
        sinew::blocking(move || gate.recv().unwrap());
    });
    has_begun.recv().unwrap();
    assert_eq!(timer.cancel(), Cancel::Running);
    assert_eq!(timer.cancel(), Cancel::Running);
    go.send(()).unwrap();
    until(|| timer.cancel() == Cancel::Done);
    assert_eq!(Timer::after(HOUR, || ()).cancel(), Cancel::Stopped);
}

#[test]
fn a_timer_that_is_cancelled_when_it_is_due_and_has_not_begun_does_not_run() {
    // One worker, which this fiber does not leave between the timer's moment and the cancel, but for the driver's turn.
    let runtime = runtime(1);
    runtime.run(|| {
        let ran = Arc::new(AtomicBool::new(false));
        for _ in 0..50 {
            let theirs = ran.clone();
            let timer = Timer::after(MICRO, move || theirs.store(true, SeqCst));
            std::thread::sleep(20 * MICRO);
            yield_now();
            match timer.cancel() {
                Cancel::Stopped => {
                    (0..5).for_each(|_| yield_now());
                    assert!(!ran.load(SeqCst), "it ran although it was stopped");
                }
                said => assert!(ran.load(SeqCst), "{said:?}, and has not run"),
            }
            ran.store(false, SeqCst);
        }
    });
}

#[test]
fn a_callback_can_cancel_and_drop_its_own_timer() {
    let place: Arc<OnceLock<Timer>> = Arc::default();
    let (sender, receiver) = channel();
    let own = place.clone();
    let timer = Timer::every(MILLI, move || {
        until(|| own.get().is_some());
        sender.send(own.get().unwrap().cancel()).unwrap();
    });
    place.set(timer).unwrap();
    // The channel ends with the callback: it ran once and is gone.
    assert_eq!(receiver.iter().collect::<Vec<_>>(), [Cancel::Running]);
    assert_eq!(place.get().unwrap().cancel(), Cancel::Done);

    let place: Arc<Mutex<Option<Timer>>> = Arc::default();
    let (sender, receiver) = channel();
    let own = place.clone();
    *place.lock().unwrap() = Some(Timer::every(MILLI, move || {
        drop(own.lock().unwrap().take());
        sender.send(()).unwrap();
    }));
    assert_eq!(receiver.iter().count(), 1);
}

#[test]
fn a_periodic_timer_keeps_its_rhythm_and_never_overlaps_itself() {
    let runtime = runtime(2);
    let (sender, receiver) = channel();
    let inside = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let timer = runtime.run(|| {
        let mut runs = 0;
        Timer::every(2 * MILLI, move || {
            assert_eq!(inside.fetch_add(1, SeqCst), 0, "it overlaps itself");
            let at = begun.elapsed();
            runs += 1;
            if runs == 2 {
                // Longer than two periods: these are skipped.
                sleep(5 * MILLI);
            }
            inside.fetch_sub(1, SeqCst);
            sender.send((runs, at)).unwrap();
        })
    });
    let runs: Vec<(u32, Duration)> = receiver.iter().take(4).collect();
    timer.cancel();
    assert_eq!(runs.iter().map(|run| run.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    // The third comes when the second has ended, at a moment of the rhythm.
    assert!(runs[2].1 >= runs[1].1 + 5 * MILLI, "{runs:?}");
    assert!(runs.iter().all(|run| run.1 >= run.0 * 2 * MILLI), "one came early: {runs:?}");
    // Cancelled: its callback, and with it the channel, goes.
    assert!(receiver.iter().count() <= 2);
}

#[test]
fn dropping_a_timer_cancels_it_and_detaching_does_not() {
    let gone = Arc::new(AtomicUsize::new(0));
    let inside = Gone(gone.clone());
    drop(Timer::after(HOUR, move || drop(inside)));
    assert_eq!(gone.load(SeqCst), 1, "what a cancelled timer captured is dropped at once");
    let (sender, receiver) = channel();
    Timer::after(MILLI, move || sender.send(()).unwrap()).detach();
    receiver.recv().unwrap();
}

#[test]
fn a_callback_has_nothing_of_the_fiber_that_made_the_timer() {
    sinew::fiber_local! {
        #[inherit]
        static REQUEST: Cell<u32> = Cell::new(0);
    }
    let (sender, receiver) = channel();
    // Made by a fiber that has a value, is cancelled and late; also the first of its runtime, which brings the driver.
    let runtime = runtime(1);
    runtime.run(|| {
        REQUEST.with(|value| value.set(7));
        assert_eq!(spawn(|| REQUEST.with(Cell::get)).join().unwrap(), 7);
        current().cancel();
        let make = || {
            sleep(HOUR);
            let seen = move || (REQUEST.with(Cell::get), cancelled(), timeout(HOUR, || sleep(MILLI)).is_ok());
            Timer::after(MILLI, move || sender.send(seen()).unwrap()).detach();
        };
        assert!(timeout(MICRO, make).is_ok(), "the cancel came first");
    });
    assert_eq!(receiver.recv().unwrap(), (0, false, true));
}

#[test]
fn a_callback_that_panics_is_reported_and_a_periodic_one_stops() {
    const NAME: &str = "a_callback_that_panics_is_reported_and_a_periodic_one_stops";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("panicked, and its handle was dropped").count(), 2, "{text}");
        assert!(text.contains("spawned at crates/sinew/tests/time.rs"), "{text}");
        return;
    }
    let runs = Arc::new(AtomicUsize::new(0));
    let theirs = runs.clone();
    let (once, often) = (
        Timer::after(MILLI, || panic!("once")),
        Timer::every(MILLI, move || {
            theirs.fetch_add(1, SeqCst);
            panic!("again and again");
        }),
    );
    until(|| Arc::strong_count(&runs) == 1);
    assert_eq!(runs.load(SeqCst), 1);
    until(|| once.cancel() == Cancel::Done && often.cancel() == Cancel::Done);
    // Others go on.
    let (sender, receiver) = channel();
    let _timer = Timer::after(MILLI, move || sender.send(()).unwrap());
    receiver.recv().unwrap();
    // The reports come after the timers' ends.
    while sinew::metrics().workers.iter().map(|worker| worker.settled).sum::<usize>() > 1 {
        std::thread::yield_now();
    }
}

#[test]
fn a_shutdown_drops_what_is_armed_and_does_not_wait_for_it() {
    let runtime = runtime(2);
    let gone = Arc::new(AtomicUsize::new(0));
    let timers: Vec<Timer> = runtime.run(|| {
        let make = |i: u32| {
            let inside = Gone(gone.clone());
            match i % 2 {
                0 => Timer::after(HOUR, move || drop(inside)),
                _ => Timer::every(HOUR, move || _ = &inside),
            }
        };
        (0..1000).map(make).collect()
    });
    let handle = runtime.handle();
    runtime.shutdown_timeout(HOUR).unwrap();
    assert_eq!(gone.load(SeqCst), 1000);
    assert!(timers.iter().all(|timer| timer.cancel() == Cancel::Done));
    assert!(catch_unwind(AssertUnwindSafe(|| handle.run(|| ()))).is_err());
}

/// As what is spawned then: the callback is dropped unrun.
#[test]
fn a_timer_that_is_made_while_its_runtime_is_shut_down_has_ended() {
    let runtime = runtime(1);
    let gone = Arc::new(AtomicUsize::new(0));
    let (begun, inside) = channel();
    let fiber = {
        let gone = gone.clone();
        runtime.spawn(move || {
            begun.send(()).unwrap();
            sinew::park();
            let (once, often) = (Gone(gone.clone()), Gone(gone));
            let timers = [Timer::after(MICRO, move || drop(once)), Timer::every(MICRO, move || _ = &often)];
            timers.map(|timer| timer.cancel())
        })
    };
    inside.recv().unwrap();
    runtime.shutdown_timeout(HOUR).unwrap();
    assert_eq!(fiber.join().unwrap(), [Cancel::Done; 2]);
    assert_eq!(gone.load(SeqCst), 2);
}

#[test]
fn shutdowns_beside_timers_that_fire_lose_no_callback() {
    for round in 0..30 {
        let runtime = runtime(2);
        let gone = Arc::new(AtomicUsize::new(0));
        let timers: Vec<Timer> = runtime.run(|| {
            let make = |i: u32| {
                let inside = Gone(gone.clone());
                Timer::every((i % 50 + 1) * 10 * MICRO, move || {
                    yield_now();
                    _ = &inside;
                })
            };
            (0..100).map(make).collect()
        });
        std::thread::sleep(round * 20 * MICRO);
        runtime.shutdown_timeout(HOUR).unwrap();
        assert_eq!(gone.load(SeqCst), 100);
        assert!(timers.iter().all(|timer| timer.cancel() == Cancel::Done));
    }
}

/// Timers that fire at about the moment at which they are cancelled: each callback runs once or was stopped, and is dropped once.
#[test]
fn a_cancel_against_the_firing_has_one_winner() {
    const ROUNDS: u32 = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
    let runtime = runtime(2);
    let (ran, gone) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (mut stopped, mut not) = (0, 0);
    runtime.run(|| {
        for round in 0..ROUNDS {
            let (ran, inside) = (ran.clone(), Gone(gone.clone()));
            let timer = Timer::after(round % 30 * MICRO, move || {
                ran.fetch_add(1, SeqCst);
                drop(inside);
            });
            let canceller = spawn(move || {
                (0..round % 13).for_each(|_| std::hint::spin_loop());
                if round % 3 == 0 {
                    sleep(round % 40 * MICRO);
                }
                timer.cancel()
            });
            match canceller.join().unwrap() {
                Cancel::Stopped => stopped += 1,
                Cancel::Running | Cancel::Done => not += 1,
            }
        }
        until(|| gone.load(SeqCst) == ROUNDS as usize);
    });
    assert_eq!(ran.load(SeqCst), not, "of {ROUNDS} timers {stopped} were stopped");
    assert!(stopped > 0 && not > 0, "{stopped} stopped, {not} not: no race");
}

/// flare's torture: threads that are no workers arm thousands each and cancel half of them as they fire.
#[test]
fn timers_are_armed_and_cancelled_from_many_threads() {
    const THREADS: usize = 8;
    const EACH: usize = 5_000;
    let ran = Arc::new(AtomicUsize::new(0));
    let stopped: usize = std::thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let ran = &ran;
                s.spawn(move || {
                    let mut stopped = 0;
                    let mut kept = Vec::new();
                    for i in 0..EACH {
                        let ran = ran.clone();
                        let timer = Timer::after((i * 7 + thread) as u32 % 3000 * MICRO, move || _ = ran.fetch_add(1, SeqCst));
                        kept.push(timer);
                        if i % 2 == 0 {
                            let victim = kept.swap_remove(i * 31 % kept.len());
                            stopped += usize::from(victim.cancel() == Cancel::Stopped);
                        }
                    }
                    kept.into_iter().for_each(Timer::detach);
                    stopped
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    while ran.load(SeqCst) < THREADS * EACH - stopped {
        std::thread::yield_now();
    }
    assert_eq!(ran.load(SeqCst) + stopped, THREADS * EACH);
    assert!(stopped > 0);
}

#[test]
fn many_periodic_timers_each_go_on() {
    let counts: Arc<Vec<AtomicUsize>> = Arc::new((0..300).map(|_| AtomicUsize::new(0)).collect());
    let timers: Vec<Timer> = (0..counts.len())
        .map(|i| {
            let counts = counts.clone();
            Timer::every((i as u32 % 20 + 1) * 100 * MICRO, move || _ = counts[i].fetch_add(1, SeqCst))
        })
        .collect();
    until(|| counts.iter().all(|count| count.load(SeqCst) >= 10));
    drop(timers);
    until(|| Arc::strong_count(&counts) == 1);
}

/// A million timers of an hour: they cost a few bytes each, no stacks, and when they are cancelled all of it is back, at once.
#[test]
fn a_million_armed_timers_are_cheap_and_leave_nothing() {
    const NAME: &str = "a_million_armed_timers_are_cheap_and_leave_nothing";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    const TIMERS: usize = 1_000_000;
    let gone = Arc::new(AtomicUsize::new(0));
    let arm = |count: usize| -> Vec<Timer> {
        let make = |i: usize| {
            let inside = Gone(gone.clone());
            Timer::after(HOUR + i as u32 * MICRO, move || drop(inside))
        };
        (0..count).map(make).collect()
    };
    // What is made once is there then.
    drop(arm(10));
    let (sender, receiver) = channel();
    Timer::after(MILLI, move || sender.send(()).unwrap()).detach();
    assert_eq!(receiver.iter().count(), 1);
    // A worker that begins late brings its own wheel with it.
    until(|| sinew::metrics().workers.iter().all(|worker| worker.sleeps != 0));
    let stacks = sinew::metrics().stacks;
    let before = bytes();
    let timers = arm(TIMERS);
    let each = (bytes() - before) / TIMERS;
    assert!(each < 256, "{each} bytes per timer");
    assert_eq!(sinew::metrics().stacks, stacks, "a timer took a stack");
    // Cancelled, the callbacks are gone though the values are still here; dropped, all is.
    assert!(timers[..TIMERS / 2].iter().all(|timer| timer.cancel() == Cancel::Stopped));
    assert_eq!(gone.load(SeqCst), 10 + TIMERS / 2);
    drop(timers);
    assert_eq!(gone.load(SeqCst), 10 + TIMERS);
    let left = bytes().saturating_sub(before);
    assert!(left < 64 * 1024, "{left} bytes are left");
    // Armed and cancelled one by one, nothing heaps up either.
    for _ in 0..TIMERS / 10 {
        drop(arm(1));
    }
    let left = bytes().saturating_sub(before);
    assert!(left < 64 * 1024, "{left} bytes are left");
}

/// Room for timers that were due at once is given back when they have run.
#[test]
fn many_timers_that_are_due_at_once_leave_no_room_behind() {
    const NAME: &str = "many_timers_that_are_due_at_once_leave_no_room_behind";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    const TIMERS: usize = 100_000;
    let runtime = runtime(1);
    runtime.run(|| {
        let ran = Arc::new(AtomicUsize::new(0));
        let arm = |count: usize| {
            for _ in 0..count {
                let ran = ran.clone();
                Timer::after(MILLI, move || _ = ran.fetch_add(1, SeqCst)).detach();
            }
        };
        // What is made once is there then.
        arm(10);
        until(|| ran.load(SeqCst) == 10 && Arc::strong_count(&ran) == 1);
        let before = bytes();
        // The only worker does nothing else before all are due.
        arm(TIMERS);
        std::thread::sleep(2 * MILLI);
        until(|| ran.load(SeqCst) == 10 + TIMERS && Arc::strong_count(&ran) == 1);
        let left = bytes().saturating_sub(before);
        assert!(left < TIMERS * size_of::<usize>() / 2, "{left} bytes are left");
    });
}

/// Takes all control blocks that are left, until the guard is dropped.
struct Blocks(Vec<sinew::JoinHandle<()>>);

impl Blocks {
    fn take() -> Self {
        sinew::hidden::limit_blocks(0);
        let mut blocks = Self(Vec::new());
        blocks.take_more();
        blocks
    }

    /// Those too that others have given back meanwhile.
    fn take_more(&mut self) {
        while let Ok(parked) = sinew::Builder::new().spawn(sinew::park) {
            self.0.push(parked);
        }
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        sinew::hidden::limit_blocks(usize::MAX >> 8);
        for parked in self.0.drain(..) {
            parked.fiber().unpark();
            parked.join().unwrap();
        }
    }
}

/// There is no control block for their fibers when they are due: they run when there is one, and it is said once.
#[test]
fn timers_that_lack_memory_are_late_and_do_not_end() {
    const NAME: &str = "timers_that_lack_memory_are_late_and_do_not_end";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("timers wait").count(), 1, "{text}");
        return;
    }
    let runtime = runtime(1);
    runtime.run(|| {
        let [often, once, stopped] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
        let count = |count: &Arc<AtomicUsize>| {
            let count = count.clone();
            move || _ = count.fetch_add(1, SeqCst)
        };
        let timer = Timer::every(MILLI, count(&often));
        until(|| often.load(SeqCst) > 2);
        let (delayed, victim) = (Timer::after(30 * MILLI, count(&once)), Timer::after(30 * MILLI, count(&stopped)));
        let mut blocks = Blocks::take();
        // A callback that had its fiber before gives it back.
        sleep(5 * MILLI);
        blocks.take_more();
        let before = often.load(SeqCst);
        sleep(50 * MILLI);
        assert_eq!((often.load(SeqCst), once.load(SeqCst)), (before, 0), "there was memory");
        assert_eq!(victim.cancel(), Cancel::Stopped);
        drop(blocks);
        let end = Instant::now() + Duration::from_secs(10);
        until(|| (often.load(SeqCst) > before + 2 && once.load(SeqCst) == 1) || Instant::now() > end);
        assert!(often.load(SeqCst) > before + 2, "it ended");
        assert_ne!(timer.cancel(), Cancel::Done);
        assert_eq!((once.load(SeqCst), stopped.load(SeqCst)), (1, 0));
        until(|| delayed.cancel() == Cancel::Done);
    });
    runtime.shutdown_timeout(HOUR).unwrap();
}

/// There is no control block for the driver, neither for a timer that goes on nor for a new one.
#[test]
fn timers_that_lack_memory_for_their_driver_are_late_and_do_not_end() {
    const NAME: &str = "timers_that_lack_memory_for_their_driver_are_late_and_do_not_end";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("timers wait").count(), 1, "{text}");
        return;
    }
    let runtime = runtime(1);
    runtime.run(|| {
        let (runs, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let timer = {
            let (runs, go) = (runs.clone(), go.clone());
            Timer::every(MILLI, move || {
                runs.fetch_add(1, SeqCst);
                until(|| go.load(SeqCst));
            })
        };
        // This fiber and the callback's are left when the driver has gone.
        let settled = || sinew::metrics().workers.iter().map(|worker| worker.settled).sum::<usize>();
        until(|| runs.load(SeqCst) == 1 && settled() == 2);
        let mut blocks = Blocks::take();
        go.store(true, SeqCst);
        sleep(5 * MILLI);
        blocks.take_more();
        let once = Arc::new(AtomicUsize::new(0));
        let theirs = once.clone();
        let new = Timer::after(MILLI, move || _ = theirs.fetch_add(1, SeqCst));
        sleep(20 * MILLI);
        assert_eq!((runs.load(SeqCst), once.load(SeqCst)), (1, 0), "there was memory");
        drop(blocks);
        let end = Instant::now() + Duration::from_secs(10);
        until(|| (runs.load(SeqCst) > 2 && once.load(SeqCst) == 1) || Instant::now() > end);
        assert!(runs.load(SeqCst) > 2 && once.load(SeqCst) == 1, "{} and {} runs", runs.load(SeqCst), once.load(SeqCst));
        assert_ne!(timer.cancel(), Cancel::Done);
        until(|| new.cancel() == Cancel::Done);
    });
    runtime.shutdown_timeout(HOUR).unwrap();
}

/// There are control blocks, but no stacks: a fiber that was started for a callback ends unrun, and another one follows.
#[test]
fn timers_that_lack_stacks_are_late_and_do_not_end() {
    const NAME: &str = "timers_that_lack_stacks_are_late_and_do_not_end";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("never ran for want of a stack"), "{text}");
        return;
    }
    let (runtime, runs) = (runtime(1), Arc::new(AtomicUsize::new(0)));
    let theirs = runs.clone();
    let timer = runtime.run(|| Timer::every(MILLI, move || _ = theirs.fetch_add(1, SeqCst)));
    common::poll_until("the first runs", || runs.load(SeqCst) > 2);
    sinew::hidden::fail_memory_after(0);
    let mut parked = Vec::new();
    let before = loop {
        let begun = Arc::new(AtomicBool::new(false));
        let theirs = begun.clone();
        let fiber = runtime.spawn(move || {
            theirs.store(true, SeqCst);
            sinew::park();
        });
        common::poll_until("a stack, or its refusal", || begun.load(SeqCst) || fiber.is_finished());
        if begun.load(SeqCst) {
            parked.push(fiber);
            continue;
        }
        // Refused; but a callback may have had the last one.
        let before = runs.load(SeqCst);
        std::thread::sleep(50 * MILLI);
        if runs.load(SeqCst) == before {
            break before;
        }
    };
    sinew::hidden::fail_memory_after(u64::MAX);
    common::poll_until("its next runs", || runs.load(SeqCst) > before + 2);
    assert_ne!(timer.cancel(), Cancel::Done);
    parked.iter().for_each(|fiber| fiber.fiber().unpark());
    runtime.shutdown_timeout(HOUR).unwrap();
}

/// A shutdown while timers lack memory ends them, and waits for none.
#[test]
fn a_shutdown_ends_timers_that_lack_memory() {
    const NAME: &str = "a_shutdown_ends_timers_that_lack_memory";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    for has_driver in [true, false] {
        let (runtime, gone) = (runtime(1), Arc::new(AtomicUsize::new(0)));
        let arm = |delay: Duration| {
            let inside = Gone(gone.clone());
            Timer::after(delay, move || drop(inside))
        };
        let (blocks, timers) = runtime.run(|| {
            let early = has_driver.then(|| arm(2 * MILLI));
            yield_now();
            let blocks = Blocks::take();
            let timers = [early.unwrap_or_else(|| arm(2 * MILLI)), arm(MILLI), arm(HOUR)];
            sleep(5 * MILLI);
            (blocks, timers)
        });
        assert_eq!(gone.load(SeqCst), 0, "there was memory");
        std::mem::forget(blocks);
        runtime.shutdown_timeout(HOUR).unwrap();
        common::poll_until("the end of all", || gone.load(SeqCst) == timers.len());
        assert!(timers.iter().all(|timer| timer.cancel() == Cancel::Done));
    }
}

#[test]
fn the_driver_leaves_when_there_are_no_timers_and_comes_again() {
    let runtime = runtime(1);
    let fibers = || runtime.metrics().workers.iter().map(|worker| worker.settled).sum::<usize>();
    for _ in 0..2 {
        let (sender, receiver) = channel();
        runtime.run(|| Timer::after(MILLI, move || sender.send(()).unwrap()).detach());
        receiver.recv().unwrap();
        runtime.run(|| drop(Timer::after(HOUR, || ())));
        while fibers() != 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn an_armed_timer_is_no_standstill() {
    const NAME: &str = "an_armed_timer_is_no_standstill";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !text.contains("deadlock"), "{text}");
        return;
    }
    let runtime = Runtime::builder().workers(2).deadlock_watch(20 * MILLI).build().unwrap();
    runtime.run(|| {
        let me = current();
        let _timer = Timer::after(200 * MILLI, move || me.unpark());
        sinew::park();
    });
}
