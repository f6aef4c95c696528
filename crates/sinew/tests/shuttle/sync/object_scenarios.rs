use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::barrier::Barrier;
use super::condvar::Condvar;
use super::event::Event;
use super::execution_queue::{ExecutionQueue, TooLate};
use super::futex::{Futex, FutexWait};
use super::mutex::Mutex;
use super::raw_rwlock::RawRwLock;
use super::semaphore::Semaphore;
use crate::os::clock;
use crate::rt::runtime::with_workers;
use crate::rt::spawn::{Builder, JoinHandle};
use crate::scenarios::{explore, in_own_process};
use crate::sched::groups::Groups;
use crate::yield_now;

const SOON: Duration = Duration::from_micros(40);

fn fibers<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
    group: &Arc<Groups>,
    count: usize,
    mut body: impl FnMut(usize) -> F,
) -> Vec<JoinHandle<T>> {
    (0..count).map(|index| Builder::new().spawn_in(group, body(index)).unwrap()).collect()
}

/// Fibers of two workers wait, one of them for a while only; a fiber and the thread notify: who was notified, and no other, says so, and has the mutex.
#[test]
fn a_condvar_s_wait_against_notifications_and_a_timeout() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let shared: Arc<(Mutex<usize>, Condvar)> = Arc::default();
            let waiters = fibers(group, 3, |index| {
                let shared = shared.clone();
                move || {
                    let mut arrived = shared.0.lock();
                    *arrived += 1;
                    if index == 0 {
                        return !shared.1.wait_timeout(&mut arrived, SOON).timed_out();
                    }
                    shared.1.wait(&mut arrived);
                    true
                }
            });
            let notifier = fibers(group, 1, |_| {
                let shared = shared.clone();
                move || usize::from(shared.1.notify_one())
            });
            let mut notified = 0;
            while waiters.iter().any(|waiter| !waiter.is_finished()) {
                notified += shared.1.notify_all();
                shuttle::thread::yield_now();
            }
            notified += notifier.into_iter().map(|n| n.join().unwrap()).sum::<usize>();
            let woken = waiters.into_iter().map(|waiter| usize::from(waiter.join().unwrap())).sum::<usize>();
            assert_eq!(woken, notified, "notifications were lost or doubled");
            assert_eq!((*shared.0.lock(), shared.1.notify_all()), (3, 0));
        });
    });
}

/// Three meet again and again: each time one leads, and nobody is a time ahead.
#[test]
fn a_barrier_is_used_again() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let (barrier, leaders) = (Arc::new(Barrier::new(3)), Arc::new(AtomicUsize::new(0)));
            let meet = move |barrier: &Barrier, leaders: &AtomicUsize| {
                for time in 0..3 {
                    assert_eq!(leaders.load(SeqCst), time);
                    if barrier.wait().is_leader() {
                        leaders.fetch_add(1, SeqCst);
                    }
                    barrier.wait();
                }
            };
            let others = fibers(group, 2, |_| {
                let (barrier, leaders) = (barrier.clone(), leaders.clone());
                move || meet(&barrier, &leaders)
            });
            meet(&barrier, &leaders);
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    });
}

/// One of three that meet may give up; then another comes for it. All patient ones get through.
#[test]
fn one_that_gives_up_at_a_barrier_does_not_count() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let barrier = Arc::new(Barrier::new(2));
            let parts = fibers(group, 2, |index| {
                let barrier = barrier.clone();
                move || match index {
                    0 => barrier.wait_timeout(SOON).map(|result| result.is_leader()),
                    _ => Some(barrier.wait().is_leader()),
                }
            });
            let mut parts = parts.into_iter();
            let (impatient, patient) = (parts.next().unwrap(), parts.next().unwrap());
            let first = impatient.join().unwrap();
            let second = first.is_none().then(|| barrier.wait().is_leader());
            assert_ne!(first.or(second), patient.join().unwrap(), "one of the two that met leads");
        });
    });
}

/// Fibers push, urgently or not, one cancels its task, one stops: every task that was taken is executed or was cancelled, one at a time, and the stop is told last.
#[test]
fn an_execution_queue_loses_no_task_and_is_told_of_its_stop_last() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let (executed, inside) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
            let queue = {
                let (executed, inside) = (executed.clone(), inside.clone());
                ExecutionQueue::new(move |tasks| {
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two execute at once");
                    for task in tasks.by_ref() {
                        executed.lock().push(task);
                        yield_now();
                    }
                    if tasks.is_stopped() {
                        executed.lock().push(99);
                    }
                    inside.fetch_sub(1, SeqCst);
                })
            };
            let pushers = fibers(group, 3, |index| {
                let queue = queue.clone();
                move || {
                    let mut mine = 0;
                    for task in 0..2 {
                        let task = index * 2 + task;
                        let Ok(handle) = (if index == 1 { queue.push_urgent(task) } else { queue.push(task) }) else { break };
                        mine += match handle.cancel() {
                            Ok(cancelled) if index == 2 => {
                                assert_eq!(cancelled, task);
                                0
                            }
                            // Only the third cancels; the others push again what they took back.
                            Ok(task) => usize::from(queue.push(task).is_ok()),
                            Err(TooLate::Executing | TooLate::Gone) => 1,
                        };
                    }
                    mine
                }
            });
            let stopper = fibers(group, 1, |_| {
                let queue = queue.clone();
                move || {
                    yield_now();
                    queue.stop();
                    queue.join().unwrap();
                }
            });
            let taken: usize = pushers.into_iter().map(|pusher| pusher.join().unwrap()).sum();
            stopper.into_iter().for_each(|stopper| stopper.join().unwrap());
            let executed = executed.lock();
            assert_eq!((executed.len(), executed.last()), (taken + 1, Some(&99)));
        });
    });
}

/// Waiters of both kinds at one event, one of which gives up and comes again.
#[test]
fn an_event_leaves_nobody_behind() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let event = Arc::new(Event::new());
            let waiters = fibers(group, 3, |index| {
                let event = event.clone();
                move || {
                    if index == 0 {
                        event.wait_timeout(SOON);
                    }
                    event.wait();
                }
            });
            let setter = fibers(group, 1, |_| {
                let event = event.clone();
                move || event.set()
            });
            event.wait();
            waiters.into_iter().chain(setter).for_each(|fiber| fiber.join().unwrap());
        });
    });
}

/// Fibers and a thread want one or two of two permits, one gives up: no more are inside than there are permits, and none is lost.
#[test]
fn a_semaphore_keeps_its_permits() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let (semaphore, inside) = (Arc::new(Semaphore::new(2)), Arc::new(AtomicUsize::new(0)));
            let enter = move |semaphore: &Semaphore, inside: &AtomicUsize, wish: usize, patient: bool| {
                let permit = if patient { Some(semaphore.acquire_many(wish)) } else { semaphore.acquire_many_timeout(wish, SOON) };
                if permit.is_some() {
                    assert!(inside.fetch_add(wish, SeqCst) + wish <= 2, "too many inside");
                    yield_now();
                    inside.fetch_sub(wish, SeqCst);
                }
            };
            let others = fibers(group, 3, |index| {
                let (semaphore, inside) = (semaphore.clone(), inside.clone());
                move || enter(&semaphore, &inside, 1 + index % 2, index != 1)
            });
            enter(&semaphore, &inside, 2, true);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(semaphore.available(), 2);
        });
    });
}

/// Readers and writers of two workers and a thread, some of which give up or become readers.
#[test]
fn a_rwlock_has_readers_or_a_writer_and_forgets_nobody() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let shared = Arc::new((RawRwLock::unlocked(), AtomicUsize::new(0), AtomicUsize::new(0)));
            type Shared = (RawRwLock, AtomicUsize, AtomicUsize);
            let read = |shared: &Shared| {
                shared.2.fetch_add(1, SeqCst);
                assert_eq!(shared.1.load(SeqCst), 0, "a writer is inside");
                yield_now();
                shared.2.fetch_sub(1, SeqCst);
                shared.0.release_read();
            };
            let write = |shared: &Shared| {
                assert_eq!((shared.1.fetch_add(1, SeqCst), shared.2.load(SeqCst)), (0, 0), "others are inside");
                yield_now();
                shared.1.fetch_sub(1, SeqCst);
            };
            let others = fibers(group, 4, |index| {
                let shared = shared.clone();
                move || match index {
                    0 => {
                        shared.0.read();
                        read(&shared);
                    }
                    1 => {
                        shared.0.write();
                        write(&shared);
                        shared.0.downgrade();
                        read(&shared);
                    }
                    2 => {
                        if shared.0.write_until(clock::deadline_ns(SOON)) {
                            write(&shared);
                            shared.0.release_write();
                        }
                    }
                    _ => {
                        if shared.0.read_until(clock::deadline_ns(SOON)) {
                            read(&shared);
                        }
                    }
                }
            });
            shared.0.write();
            write(&shared);
            shared.0.release_write();
            others.into_iter().for_each(|other| other.join().unwrap());
            assert!(shared.0.try_write(), "it is left locked");
        });
    });
}

/// Waits with deadlines against wakes and requeues between two futexes: each wait has one outcome, and as many were woken as the wakes say.
#[test]
fn a_futex_s_wakes_requeues_and_timeouts_are_counted_once() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let both = Arc::new((Futex::new(0), Futex::new(0)));
            let waiters = fibers(group, 3, |index| {
                let both = both.clone();
                move || {
                    let first = both.0.wait_timeout(0, SOON * index as u32);
                    let second = both.1.wait_timeout(0, SOON);
                    [first, second].into_iter().filter(|&outcome| outcome == FutexWait::Woken).count()
                }
            });
            let mover = fibers(group, 1, |_| {
                let both = both.clone();
                move || {
                    let mut woken = both.0.requeue(&both.1, 1).woken;
                    yield_now();
                    woken += both.1.requeue(&both.0, 0).woken;
                    woken
                }
            });
            let mut wakes = both.0.wake(1) + both.1.wake_all();
            wakes += mover.into_iter().map(|mover| mover.join().unwrap()).sum::<usize>();
            let woken: usize = waiters.into_iter().map(|waiter| waiter.join().unwrap()).sum();
            assert_eq!((woken, both.0.wake_all(), both.1.wake_all()), (wakes, 0, 0));
        });
    });
}
