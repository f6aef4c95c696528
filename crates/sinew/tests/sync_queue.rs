//! ExecutionQueue: bthread's scenarios; from fibers and threads.

mod common;
#[path = "common/counting.rs"]
mod counting;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::{On, alone, in_child, is_child, poll_until, rounds, until};
use counting::bytes;
use sinew::sync::{Event, ExecutionQueue, Mutex, OnceLock, TaskHandle, TooLate};
use sinew::{Runtime, spawn, yield_now};

const MILLI: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);

sinew::fiber_local! {
    #[inherit]
    static USER: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// The fiber serves all who push: it has nothing from the one that happened to start it.
#[test]
fn the_handler_has_no_locals_of_those_who_push() {
    for on in On::BOTH {
        let seen = on.start(|| {
            USER.set(7);
            let seen = Arc::new(AtomicUsize::new(99));
            let queue = {
                let seen = seen.clone();
                ExecutionQueue::new(move |tasks| {
                    if tasks.by_ref().count() > 0 {
                        seen.store(USER.get() as usize, SeqCst);
                    }
                })
            };
            drop(queue.push(()).unwrap());
            queue.stop();
            queue.join().unwrap();
            seen.load(SeqCst)
        })();
        assert_eq!(seen, 0);
    }
}

/// Tasks in the order of their execution, and how often the handler was told of the stop.
type Notes = Arc<Mutex<(Vec<usize>, usize)>>;

/// A queue that notes its tasks, and whether it was told of the stop.
fn noting() -> (ExecutionQueue<usize>, Notes) {
    let notes = Notes::default();
    let queue = {
        let notes = notes.clone();
        ExecutionQueue::new(move |tasks| {
            for task in tasks.by_ref() {
                assert_eq!(notes.lock().1, 0, "a task after the stop");
                notes.lock().0.push(task);
            }
            notes.lock().1 += usize::from(tasks.is_stopped());
        })
    };
    (queue, notes)
}

/// A queue whose handler notes tasks, once it has been let through the gate with the first in hand.
fn gated() -> (ExecutionQueue<usize>, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let queue = {
        let gate = gate.clone();
        ExecutionQueue::new(move |tasks| {
            for task in tasks {
                gate.begun.set();
                gate.open.wait();
                gate.notes.lock().push(task);
            }
        })
    };
    (queue, gate)
}

#[derive(Default)]
struct Gate {
    begun: Event,
    open: Event,
    notes: Mutex<Vec<usize>>,
}

#[test]
fn its_types_may_be_shared_and_sent() {
    fn both<T: Send + Sync>() {}
    both::<ExecutionQueue<std::cell::Cell<u8>>>();
    both::<TaskHandle<std::cell::Cell<u8>>>();
}

#[test]
fn tasks_are_executed_in_order_and_the_stop_comes_last_and_once() {
    for on in On::BOTH {
        let (queue, notes) = noting();
        let pusher = queue.clone();
        on.start(move || (0..1_000).for_each(|task| drop(pusher.push(task).unwrap())))();
        assert!(!queue.is_stopped());
        assert!(queue.join_timeout(MILLI).is_none() && !queue.is_ended(), "it was not stopped");
        queue.stop();
        queue.stop();
        assert!(queue.is_stopped());
        queue.join().unwrap();
        queue.join().unwrap();
        assert!(queue.join_timeout(Duration::ZERO).is_some() && queue.is_ended());
        assert_eq!(*notes.lock(), ((0..1_000).collect(), 1));
        let refused = queue.push(7).unwrap_err();
        assert_eq!((refused.to_string().as_str(), refused.into_inner()), ("the execution queue was stopped", 7));
        assert_eq!(queue.push_urgent(8).unwrap_err().0, 8);
    }
}

/// Each producer's tasks come in its order, one at a time, none twice.
#[test]
fn many_producers_keep_their_order() {
    const PRODUCERS: usize = 12;
    let each = rounds(100_000);
    let (queue, notes) = noting();
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|index| {
            let queue = queue.clone();
            On::by_turns(index).start(move || (0..each).for_each(|task| drop(queue.push(task * PRODUCERS + index).unwrap())))
        })
        .collect();
    producers.into_iter().for_each(|producer| producer());
    queue.stop();
    queue.join().unwrap();
    let notes = notes.lock();
    assert_eq!(notes.0.len(), PRODUCERS * each);
    let mut next = [0; PRODUCERS];
    for task in &notes.0 {
        assert_eq!(task / PRODUCERS, next[task % PRODUCERS]);
        next[task % PRODUCERS] += 1;
    }
}

/// The fiber is there while there are tasks, and a queue at rest has none.
#[test]
fn the_fiber_ends_when_nothing_is_left_and_the_next_task_starts_another() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        let (queue, notes) = noting();
        let alive = || {
            let metrics = sinew::metrics();
            metrics.spawned - metrics.ended
        };
        let before = alive();
        for task in 0..10 {
            queue.push(task).unwrap();
            assert_eq!(alive(), before + 1);
            until(|| notes.lock().0.len() == task + 1 && alive() == before);
        }
    });
}

#[test]
fn urgent_tasks_go_first_in_their_own_order() {
    let (queue, gate) = gated();
    queue.push(0).unwrap();
    gate.begun.wait();
    for task in 1..4 {
        queue.push(task).unwrap();
        queue.push_urgent(task + 10).unwrap();
    }
    assert_eq!((queue.len(), queue.is_empty()), (6, false));
    gate.open.set();
    queue.stop();
    queue.join().unwrap();
    assert_eq!(*gate.notes.lock(), [0, 11, 12, 13, 1, 2, 3]);
    assert!(queue.is_empty());
}

#[test]
fn a_task_is_cancelled_until_its_turn_comes() {
    let (queue, gate) = gated();
    let first = queue.push(0).unwrap();
    gate.begun.wait();
    let (normal, urgent, kept) = (queue.push(1).unwrap(), queue.push_urgent(2).unwrap(), queue.push(3).unwrap());
    assert_eq!(first.cancel(), Err(TooLate::Executing));
    assert_eq!((normal.cancel(), urgent.cancel()), (Ok(1), Ok(2)));
    assert_eq!((normal.cancel(), urgent.cancel()), (Err(TooLate::Gone), Err(TooLate::Gone)));
    assert_eq!(queue.len(), 1);
    gate.open.set();
    queue.stop();
    queue.join().unwrap();
    assert_eq!((first.cancel(), kept.cancel()), (Err(TooLate::Gone), Err(TooLate::Gone)));
    assert_eq!(*gate.notes.lock(), [0, 3]);
}

/// Cancels against executions: each task is had by exactly one side.
#[test]
fn a_task_is_executed_or_cancelled_and_never_both() {
    let (queue, notes) = noting();
    let count = rounds(100_000);
    let cancelled: Vec<_> = (0..2)
        .map(|index| {
            let queue = queue.clone();
            On::by_turns(index).start(move || {
                let mut cancelled = Vec::new();
                let mut handles = Vec::new();
                for task in 0..count {
                    let task = task * 2 + index;
                    handles.push(if task % 5 == 0 { queue.push_urgent(task) } else { queue.push(task) }.unwrap());
                    if handles.len() == 8 {
                        cancelled.extend(handles.drain(..).rev().filter_map(|handle| handle.cancel().ok()));
                    }
                }
                cancelled
            })
        })
        .collect();
    let mut all: Vec<usize> = cancelled.into_iter().flat_map(|part| part()).collect();
    queue.stop();
    queue.join().unwrap();
    all.append(&mut notes.lock().0);
    all.sort_unstable();
    assert_eq!(all, (0..2 * count).collect::<Vec<_>>());
}

#[test]
fn what_a_handler_leaves_is_there_for_its_next_call() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let queue = {
        let calls = calls.clone();
        let mut lazy = 0;
        ExecutionQueue::new(move |tasks| {
            // It does nothing at its first call, and takes two at each other.
            let taken: Vec<usize> = tasks.take(lazy).collect();
            lazy = 2;
            calls.lock().push(taken);
        })
    };
    let runtime = Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        (0..5).for_each(|task| drop(queue.push(task).unwrap()));
        queue.stop();
        queue.join().unwrap();
    });
    assert_eq!(*calls.lock(), [vec![], vec![0, 1], vec![2, 3], vec![4], vec![]]);
}

#[test]
fn a_panic_of_the_handler_costs_the_task_in_hand_alone() {
    let executed = Arc::new(Mutex::new(Vec::new()));
    let queue = {
        let executed = executed.clone();
        ExecutionQueue::new(move |tasks| {
            for task in tasks {
                assert!(task % 3 != 1, "expected by the test: {task}");
                executed.lock().push(task);
            }
        })
    };
    (0..9).for_each(|task| drop(queue.push(task).unwrap()));
    queue.stop();
    let first = queue.join().unwrap_err();
    assert_eq!(*first.downcast::<String>().unwrap(), "expected by the test: 1");
    assert!(queue.join().is_ok(), "a panic is given once");
    assert_eq!(*executed.lock(), [0, 2, 3, 5, 6, 8]);
}

#[test]
fn a_handler_that_panics_before_it_takes_a_task_comes_to_an_end() {
    let calls = Arc::new(AtomicUsize::new(0));
    let queue = {
        let calls = calls.clone();
        ExecutionQueue::new(move |_: &mut sinew::sync::Tasks<'_, usize>| {
            calls.fetch_add(1, SeqCst);
            panic!("expected by the test");
        })
    };
    (0..5).for_each(|task| drop(queue.push(task).unwrap()));
    queue.stop();
    assert!(queue.join().is_err());
    assert_eq!((calls.load(SeqCst), queue.len()), (6, 0), "once for each task, and once for the stop");
}

#[test]
fn the_last_handle_stops_the_queue() {
    let (queue, notes) = noting();
    let other = queue.clone();
    (0..10).for_each(|task| drop(queue.push(task).unwrap()));
    drop(queue);
    other.push(10).unwrap();
    assert_eq!(notes.lock().1, 0);
    drop(other);
    until(|| notes.lock().1 == 1);
    assert_eq!(notes.lock().0.len(), 11);
    // One that never had a task is told too.
    let (queue, notes) = noting();
    drop(queue);
    until(|| notes.lock().1 == 1);
}

#[test]
fn handler_and_tasks_are_dropped_and_without_a_lock() {
    struct Pushes(Option<ExecutionQueue<Pushes>>, Arc<AtomicUsize>);
    impl Drop for Pushes {
        fn drop(&mut self) {
            self.1.fetch_add(1, SeqCst);
            if let Some(queue) = self.0.take() {
                // It would dead-lock under the queue's lock.
                assert!(queue.len() < 100);
            }
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let state = Pushes(None, dropped.clone());
    let queue = ExecutionQueue::new(move |tasks| {
        let _ = &state;
        tasks.for_each(drop);
    });
    for _ in 0..10 {
        drop(queue.push(Pushes(Some(queue.clone()), dropped.clone())).unwrap());
        // A cancelled one is the caller's.
        let handle = queue.push_urgent(Pushes(Some(queue.clone()), dropped.clone())).unwrap();
        drop(handle.cancel());
    }
    queue.stop();
    queue.join().unwrap();
    assert_eq!(dropped.load(SeqCst), 21);
    drop(queue.push(Pushes(None, dropped.clone())));
    assert_eq!(dropped.load(SeqCst), 22);
}

#[test]
fn a_handler_may_push_and_stop_but_not_join_itself() {
    let slot: Arc<Mutex<Option<ExecutionQueue<usize>>>> = Arc::default();
    let (sum, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let queue = {
        let (slot, sum, refused) = (slot.clone(), sum.clone(), refused.clone());
        ExecutionQueue::new(move |tasks| {
            for task in tasks {
                sum.fetch_add(task, SeqCst);
                let queue = slot.lock().clone().unwrap();
                if task > 0 {
                    queue.push(task - 1).unwrap();
                } else {
                    refused.store(catch_unwind(AssertUnwindSafe(|| queue.join())).is_err(), SeqCst);
                    queue.stop();
                }
            }
        })
    };
    *slot.lock() = Some(queue.clone());
    queue.push(10).unwrap();
    queue.join().unwrap();
    assert_eq!((sum.load(SeqCst), refused.load(SeqCst)), (55, true));
    slot.lock().take();
}

/// The handler of a runtime that is being shut down is told so, and has the tasks that are left.
#[test]
fn a_shutdown_cancels_the_handler_and_leaves_it_its_tasks() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (done, begun) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let queue = {
        let (done, begun) = (done.clone(), begun.clone());
        ExecutionQueue::new(move |tasks| {
            for () in tasks {
                begun.store(true, SeqCst);
                until(sinew::cancelled);
                done.fetch_add(1, SeqCst);
            }
        })
    };
    runtime.run(|| {
        drop(queue.push(()).unwrap());
        until(|| begun.load(SeqCst));
        drop(queue.push(()).unwrap());
    });
    runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(done.load(SeqCst), 2);
}

/// Pushes while the runtime is being shut down are executed all the same: by the fiber that is there, or by one of the default runtime.
#[test]
fn a_shutdown_loses_no_task() {
    for _ in 0..rounds(2_000) {
        let (queue, notes) = noting();
        let begun = Arc::new(Event::new());
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let pusher = {
            let (queue, begun) = (queue.clone(), begun.clone());
            runtime.spawn(move || {
                let mut pushed = 0;
                begun.set();
                while !sinew::cancelled() {
                    queue.push(pushed).unwrap();
                    pushed += 1;
                    yield_now();
                }
                // The runtime takes no new fiber now.
                queue.push(pushed).unwrap();
                pushed + 1
            })
        };
        begun.wait();
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
        let pushed = pusher.join().unwrap();
        queue.stop();
        queue.join().unwrap();
        assert_eq!(*notes.lock(), ((0..pushed).collect(), 1));
    }
}

/// The fiber that is to execute has not begun when its runtime is shut down, and is dropped: another one executes, whether somebody waits for that, or could ask for it, or nobody can any more.
#[test]
fn what_a_shutdown_has_kept_from_being_executed_is_executed_elsewhere() {
    for (joins, keeps_handle) in [(true, true), (false, true), (false, false)] {
        let (queue, notes) = noting();
        let begun = Arc::new(Event::new());
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let pusher = {
            let (queue, begun) = (queue.clone(), begun.clone());
            runtime.spawn(move || {
                queue.push(7).unwrap();
                queue.stop();
                drop(queue);
                begun.set();
                // The only worker is not free before the shutdown has begun.
                while !sinew::cancelled() {
                    std::hint::spin_loop();
                }
            })
        };
        begun.wait();
        let handle = keeps_handle.then_some(queue);
        let joiner = joins.then(|| {
            let queue = handle.clone().unwrap();
            std::thread::spawn(move || queue.join_timeout(Duration::from_secs(60)).expect("somebody executes").unwrap())
        });
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
        pusher.join().unwrap();
        until(|| notes.lock().1 == 1);
        assert_eq!(*notes.lock(), (vec![7], 1));
        joiner.into_iter().for_each(|joiner| joiner.join().unwrap());
    }
}

/// Runs `f` in a fiber of a runtime that is being shut down, so takes no new fibers; gives what it gave, and whether the shutdown was over in time.
fn at_a_shutdown<T: Send + 'static>(grace: Duration, f: impl FnOnce() -> T + Send + 'static) -> (std::thread::Result<T>, bool) {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let begun = Arc::new(Event::new());
    let fiber = {
        let begun = begun.clone();
        runtime.spawn(move || {
            begun.set();
            until(sinew::cancelled);
            f()
        })
    };
    begun.wait();
    let ended = runtime.shutdown_timeout(grace).is_ok();
    (if ended { fiber.join() } else { Err(Box::new("it has not ended")) }, ended)
}

/// The handler waits for a lock that the caller of `push`, `stop` or the last drop holds: he goes on all the same, as nobody executes in his own place.
#[test]
fn at_a_shutdown_who_pushes_or_stops_does_not_wait_for_the_handler() {
    type End = fn(ExecutionQueue<usize>);
    let ends: [End; 3] = [|queue| drop(queue.push(1).unwrap()), |queue| queue.stop(), drop];
    for (which, end) in ends.into_iter().enumerate() {
        let notes = Notes::default();
        let queue = {
            let notes = notes.clone();
            ExecutionQueue::new(move |tasks| {
                for task in tasks.by_ref() {
                    notes.lock().0.push(task);
                }
                notes.lock().1 += usize::from(tasks.is_stopped());
            })
        };
        let theirs = notes.clone();
        let (_, ended) = at_a_shutdown(Duration::from_secs(10), move || {
            let mut held = theirs.lock();
            held.0.push(100);
            end(queue);
        });
        assert!(ended, "it waits for what it holds itself ({which})");
        // The closure had the last handle.
        poll_until("the stop", || notes.lock().1 == 1);
        let executed: &[usize] = if which == 0 { &[100, 1] } else { &[100] };
        assert_eq!(notes.lock().0, executed);
    }
}

/// The caller must not suspend, the handler does: all tasks are executed.
#[test]
fn at_a_shutdown_what_is_pushed_inside_no_suspend_is_executed() {
    let done = Arc::new(AtomicUsize::new(0));
    let queue = {
        let done = done.clone();
        ExecutionQueue::new(move |tasks| {
            for _ in tasks {
                sinew::shield(|| sinew::sleep(MILLI));
                done.fetch_add(1, SeqCst);
            }
        })
    };
    let theirs = queue.clone();
    let push = move || sinew::no_suspend(|| (0..3).for_each(|task| drop(theirs.push(task).unwrap())));
    let (outcome, ended) = at_a_shutdown(MINUTE, push);
    assert!(outcome.is_ok() && ended);
    queue.stop();
    queue.join().unwrap();
    assert_eq!(done.load(SeqCst), 3);
}

/// There is a new task whenever one is executed, until the push has returned.
#[test]
fn at_a_shutdown_a_push_returns_although_others_go_on() {
    let (returned, in_time) = (Arc::new(Event::new()), Arc::new(AtomicBool::new(false)));
    let slot: Arc<Mutex<Option<ExecutionQueue<()>>>> = Arc::default();
    let queue = {
        let (returned, in_time, slot) = (returned.clone(), in_time.clone(), slot.clone());
        let end = std::time::Instant::now() + Duration::from_secs(10);
        ExecutionQueue::new(move |tasks| {
            for () in tasks {
                match returned.is_set() {
                    true => in_time.store(true, SeqCst),
                    false if std::time::Instant::now() > end => {}
                    false => drop(slot.lock().as_ref().unwrap().push(()).unwrap()),
                }
            }
        })
    };
    *slot.lock() = Some(queue.clone());
    let theirs = queue.clone();
    let (outcome, ended) = at_a_shutdown(MINUTE, move || {
        drop(theirs.push(()).unwrap());
        returned.set();
    });
    assert!(outcome.is_ok() && ended);
    slot.lock().take();
    queue.stop();
    queue.join().unwrap();
    assert!(in_time.load(SeqCst), "the push executed");
}

/// With neither a fiber nor a thread to be had nothing is executed; then the next call sees to it, or a join that waits already.
#[test]
fn what_nobody_could_be_had_for_is_executed_later() {
    const NAME: &str = "what_nobody_could_be_had_for_is_executed_later";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let (queue, notes) = noting();
    let theirs = queue.clone();
    sinew::hidden::fail_blocking_threads(true);
    let (outcome, _) = at_a_shutdown(MINUTE, move || drop(theirs.push(1).unwrap()));
    outcome.unwrap();
    assert_eq!((queue.len(), notes.lock().0.len()), (1, 0));
    queue.push(2).unwrap();
    poll_until("both", || notes.lock().0 == [1, 2]);
    // A fiber of the runtime that ends joins; threads are to be had when it waits.
    let theirs = queue.clone();
    let waits = Arc::new(AtomicBool::new(false));
    let mends = {
        let waits = waits.clone();
        std::thread::spawn(move || {
            poll_until("the join", || waits.load(SeqCst));
            std::thread::sleep(20 * MILLI);
            sinew::hidden::fail_blocking_threads(false);
        })
    };
    let (outcome, _) = at_a_shutdown(MINUTE, move || {
        theirs.push(3).unwrap();
        theirs.stop();
        assert!(theirs.join_timeout(MILLI).is_none());
        waits.store(true, SeqCst);
        theirs.join().unwrap();
    });
    outcome.unwrap();
    mends.join().unwrap();
    assert_eq!(*notes.lock(), (vec![1, 2, 3], 1));
}

/// There is no control block for a fiber: the caller does not execute, and the tasks are executed when there is one.
#[test]
fn tasks_wait_while_there_is_no_memory_for_a_fiber() {
    const NAME: &str = "tasks_wait_while_there_is_no_memory_for_a_fiber";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("an ExecutionQueue waits").count(), 1, "{text}");
        return;
    }
    let (queue, notes) = noting();
    alone(|| {
        sinew::hidden::limit_blocks(0);
        let mut parked = Vec::new();
        while let Ok(handle) = sinew::Builder::new().spawn(sinew::park) {
            parked.push(handle);
        }
        (0..3).for_each(|task| drop(queue.push(task).unwrap()));
        assert_eq!(notes.lock().0.len(), 0);
        sinew::sleep(20 * MILLI);
        assert_eq!((queue.len(), notes.lock().0.len()), (3, 0));
        sinew::hidden::limit_blocks(usize::MAX >> 8);
        until(|| notes.lock().0 == [0, 1, 2]);
        for handle in parked {
            handle.fiber().unpark();
            handle.join().unwrap();
        }
    });
    queue.stop();
    queue.join().unwrap();
}

/// While tasks keep coming a handler has no end; other fibers of its worker run all the same.
#[test]
fn a_handler_that_takes_task_after_task_lets_others_run() {
    const TASKS_MAX: usize = 100_000;
    const TURNS: usize = 10;
    alone(|| {
        let (turns, own) = (Arc::new(AtomicUsize::new(0)), Arc::new(OnceLock::<ExecutionQueue<usize>>::new()));
        let (ends, executed) = sinew::chan::oneshot();
        let queue = {
            let (turns, own, mut ends) = (turns.clone(), own.clone(), Some(ends));
            ExecutionQueue::new(move |tasks| {
                for task in tasks {
                    if task < TASKS_MAX && turns.load(SeqCst) < TURNS {
                        drop(own.get().unwrap().push(task + 1).unwrap());
                    } else if let Some(ends) = ends.take() {
                        ends.send(task).unwrap();
                    }
                }
            })
        };
        assert!(own.set(queue.clone()).is_ok());
        drop(queue.push(0).unwrap());
        let other = spawn(move || {
            for _ in 0..TURNS {
                turns.fetch_add(1, SeqCst);
                yield_now();
            }
        });
        let executed = executed.recv().unwrap();
        assert!(executed < TASKS_MAX, "others had to wait for {executed} tasks");
        queue.stop();
        queue.join().unwrap();
        other.join().unwrap();
    });
}

/// Where it must not suspend, it takes all there is.
#[test]
fn a_handler_takes_many_tasks_where_it_must_not_suspend() {
    const TASKS: usize = 2_000;
    alone(|| {
        let taken = Arc::new(AtomicUsize::new(0));
        let queue = {
            let taken = taken.clone();
            ExecutionQueue::new(move |tasks| {
                sinew::no_suspend(|| taken.fetch_add(tasks.count(), SeqCst));
            })
        };
        (0..TASKS).for_each(|task| drop(queue.push(task).unwrap()));
        queue.stop();
        queue.join().unwrap();
        assert_eq!(taken.load(SeqCst), TASKS);
    });
}

/// Those that were cancelled cost nothing, though the handler has been waiting since before they came.
#[test]
fn cancelled_tasks_leave_no_room_behind() {
    const NAME: &str = "cancelled_tasks_leave_no_room_behind";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    type Large = (usize, [u8; 56]);
    let gate = Arc::new(Gate::default());
    let queue = {
        let gate = gate.clone();
        ExecutionQueue::new(move |tasks| {
            for task in tasks {
                let (task, _): Large = task;
                gate.begun.set();
                gate.open.wait();
                gate.notes.lock().push(task);
            }
        })
    };
    let push = |task| queue.push((task, [0; 56])).unwrap();
    drop(push(0));
    gate.begun.wait();
    let (before, early) = (bytes(), [push(1), push(2)]);
    let room = || bytes().saturating_sub(before);
    // A tenth of what the cancelled ones would take, and more than a worker takes that starts meanwhile.
    const LITTLE: usize = 640_000;
    for task in 0..100_000 {
        assert!(push(task).cancel().is_ok());
        assert!(room() < LITTLE, "{} bytes for {} tasks", room(), queue.len());
    }
    // Many at once, most of them cancelled after that.
    let many: Vec<_> = (0..100_000).map(push).collect();
    let kept = |task: &usize| task % 1_000 == 999;
    for (task, handle) in many.iter().enumerate().filter(|(task, _)| !kept(task)) {
        assert_eq!(handle.cancel().map(|(task, _)| task), Ok(task));
    }
    assert_eq!(queue.len(), 102);
    let handles = many.capacity() * size_of::<TaskHandle<Large>>();
    assert!(room() < handles + LITTLE, "{} bytes for 102 tasks", room() - handles);
    // All handles are still right, whatever was moved.
    assert_eq!(early[0].cancel().map(|(task, _)| task), Ok(1));
    assert!(early[0].cancel().is_err());
    assert_eq!(many[999].cancel().map(|(task, _)| task), Ok(999));
    assert!(many.iter().enumerate().all(|(task, handle)| kept(&task) || handle.cancel() == Err(TooLate::Gone)));
    gate.open.set();
    queue.stop();
    queue.join().unwrap();
    let left: Vec<usize> = (0..100_000).filter(kept).skip(1).collect();
    assert_eq!(*gate.notes.lock(), [vec![0, 2], left].concat());
}

/// Pushes, cancels and executions by chance, against a set: each cancel finds its task or finds it gone, and the others come in order.
#[test]
fn handles_name_their_tasks_whatever_was_cancelled() {
    let (allowed, taken) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Vec::new())));
    let queue = {
        let (allowed, taken) = (allowed.clone(), taken.clone());
        ExecutionQueue::new(move |tasks| {
            // As many as the test allows, one at a time.
            while *allowed.lock() > 0 {
                let Some(task) = tasks.next() else { return };
                *allowed.lock() -= 1;
                taken.lock().push(task);
            }
        })
    };
    let mut chance = 7u64;
    let mut below = |limit: usize| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (chance >> 33) as usize % limit
    };
    let (mut handles, mut model) = (Vec::new(), std::collections::BTreeSet::new());
    alone(|| {
        for round in 0..20_000 {
            // Waves of pushes and of cancels.
            if below(100) < if round / 1_000 % 2 == 0 { 80 } else { 20 } {
                model.insert(handles.len());
                handles.push(queue.push(handles.len()).unwrap());
            } else if !handles.is_empty() {
                let task = below(handles.len());
                assert_eq!(handles[task].cancel().ok(), model.remove(&task).then_some(task), "task {task}");
            }
            if round % 50 == 49 && !model.is_empty() {
                let count = below(5).min(model.len());
                *allowed.lock() = count;
                until(|| *allowed.lock() == 0);
                let executed = std::mem::take(&mut *taken.lock());
                let first: Vec<usize> = model.iter().copied().take(count).collect();
                model.retain(|task| !first.contains(task));
                assert_eq!(executed, first);
            }
            assert_eq!(queue.len(), model.len());
        }
        *allowed.lock() = usize::MAX;
        queue.stop();
        queue.join().unwrap();
    });
    assert_eq!(*taken.lock(), model.into_iter().collect::<Vec<_>>());
}

/// One worker, and a handler that takes one task at each call: another fiber has its turn between two calls.
#[test]
fn others_have_their_turn_between_two_calls() {
    alone(|| {
        let (turns, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let queue = {
            let (turns, seen) = (turns.clone(), seen.clone());
            ExecutionQueue::new(move |tasks| {
                if tasks.next().is_some() {
                    seen.lock().push(turns.load(SeqCst));
                }
            })
        };
        let other = {
            let (turns, seen) = (turns.clone(), seen.clone());
            spawn(move || {
                while seen.lock().len() < 5 {
                    turns.fetch_add(1, SeqCst);
                    yield_now();
                }
            })
        };
        until(|| turns.load(SeqCst) > 0);
        (0..5).for_each(|task| drop(queue.push(task).unwrap()));
        other.join().unwrap();
        assert!(seen.lock().is_sorted_by(|earlier, later| earlier < later), "{:?}", seen.lock());
    });
}

/// Room for many tasks is given back when they were executed, though the queue lives on.
#[test]
fn a_queue_at_rest_keeps_little_room() {
    const NAME: &str = "a_queue_at_rest_keeps_little_room";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let done = Arc::new(AtomicUsize::new(0));
    let queue = {
        let done = done.clone();
        ExecutionQueue::new(move |tasks| {
            for task in tasks {
                let _: [u8; 64] = task;
                done.fetch_add(1, SeqCst);
            }
        })
    };
    alone(|| {
        // One worker: all are there before the first is executed.
        let before = bytes();
        for _ in 0..2 {
            (0..10_000).for_each(|_| drop(queue.push([0u8; 64]).unwrap()));
            (0..10_000).for_each(|_| drop(queue.push_urgent([0u8; 64]).unwrap()));
            assert!(bytes() - before >= 20_000 * 64);
            until(|| queue.is_empty());
            let end = std::time::Instant::now() + Duration::from_secs(10);
            until(|| bytes().saturating_sub(before) < 128 * 1024 || std::time::Instant::now() > end);
            assert!(bytes().saturating_sub(before) < 128 * 1024, "{} bytes are kept", bytes() - before);
        }
    });
    assert_eq!(done.load(SeqCst), 40_000);
}

#[test]
fn two_queues_push_to_each_other() {
    let rounds = rounds(50_000);
    let slot: Arc<Mutex<Option<ExecutionQueue<usize>>>> = Arc::default();
    let done = Arc::new(Event::new());
    let there = {
        let (slot, done) = (slot.clone(), done.clone());
        ExecutionQueue::new(move |tasks| {
            for task in tasks {
                match task {
                    0 => done.set(),
                    _ => drop(slot.lock().as_ref().unwrap().push(task - 1).unwrap()),
                }
            }
        })
    };
    let back = {
        let there = there.clone();
        ExecutionQueue::new(move |tasks| tasks.for_each(|task| drop(there.push(task).unwrap())))
    };
    *slot.lock() = Some(back);
    spawn(move || there.push(rounds).unwrap()).join().unwrap();
    done.wait();
    drop(slot.lock().take());
}
