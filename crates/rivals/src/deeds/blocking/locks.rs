//! The work on locks, for tasks that block.

use std::cell::Cell;
use std::hint::black_box;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::{Blocking, together};
use crate::deeds::{Met, add, is_write, paced, wait_reading, writes};
use crate::job::{Deed, Job, Reading};

/// Locks around a number. Those of one system may be held by tasks of another.
pub(crate) trait Locks: 'static {
    type Mutex: Default + Send + Sync + 'static;
    type RwLock: Default + Send + Sync + 'static;

    fn lock(mutex: &Self::Mutex) -> impl DerefMut<Target = u64>;
    fn read(lock: &Self::RwLock) -> impl Deref<Target = u64>;
    fn write(lock: &Self::RwLock) -> impl DerefMut<Target = u64>;
}

/// Does `job` with the tasks of `T` and the locks of `L`.
pub(crate) fn perform<T: Blocking, L: Locks>(job: &Job) -> Vec<Reading> {
    let job = *job;
    T::run(&job, move || match job.deed {
        Deed::Mutex => paced(&job, job.tasks, |turns| mutex::<T, L>(job.tasks, turns)),
        Deed::MutexWait => mutex_wait::<T, L>(&job),
        Deed::RwLock => paced(&job, job.tasks, |turns| rwlock::<T, L>(job.tasks, turns)),
        Deed::RwLockWait => rwlock_wait::<T, L>(&job),
        other => panic!("{other:?} takes no lock"),
    })
}

fn mutex<T: Blocking, L: Locks>(tasks: usize, turns: usize) -> Duration {
    let add_all = move |mutex: &L::Mutex| {
        for _ in 0..turns {
            add(L::lock(mutex));
        }
    };
    contend::<T, L, _>(tasks, turns, add_all).0
}

fn mutex_wait<T: Blocking, L: Locks>(job: &Job) -> Vec<Reading> {
    let met = Cell::new(Met::default());
    let paced = paced(job, job.tasks, |turns| {
        let meet = move |mutex: &L::Mutex| {
            let mut met = Met::default();
            for _ in 0..turns {
                let start = Instant::now();
                let turn = add(L::lock(mutex));
                met.note(start.elapsed(), turn);
            }
            met
        };
        let (took, each) = contend::<T, L, _>(job.tasks, turns, meet);
        met.set(Met::worst(&each));
        took
    });
    met.get().readings(&paced)
}

/// Runs as often as the budget asks for, and gives the longest wait of the last run. `run` gives each task's.
fn longest_wait(job: &Job, run: impl Fn(usize) -> (Duration, Vec<Duration>)) -> Vec<Reading> {
    let longest_ns = AtomicU64::new(0);
    paced(job, job.tasks, |turns| {
        let (took, waits) = run(turns);
        longest_ns.store(waits.into_iter().max().unwrap_or_default().as_nanos() as u64, Relaxed);
        took
    });
    wait_reading(longest_ns.into_inner())
}

/// The longest of so many turns of one task.
fn longest_of(turns: usize, turn: impl Fn(usize) -> u64) -> Duration {
    let time = |index| {
        let start = Instant::now();
        black_box(turn(index));
        start.elapsed()
    };
    (0..turns).map(time).max().unwrap_or_default()
}

/// Runs `work`, which adds `turns` times, in all tasks at once, and checks the sum.
fn contend<T: Blocking, L: Locks, R: Send + 'static>(
    tasks: usize,
    turns: usize,
    work: impl Fn(&L::Mutex) -> R + Clone + Send + 'static,
) -> (Duration, Vec<R>) {
    let mutex = Arc::new(L::Mutex::default());
    let shared = mutex.clone();
    let done = together::<T, _>(tasks, move |_| work(&shared));
    assert_eq!(*L::lock(&mutex), (tasks * turns) as u64, "an addition was lost");
    done
}

fn rwlock<T: Blocking, L: Locks>(tasks: usize, turns: usize) -> Duration {
    let take_all = move |lock: &L::RwLock, index| {
        for turn in 0..turns {
            black_box(take::<L>(lock, index, turn));
        }
    };
    share::<T, L, _>(tasks, turns, take_all).0
}

fn rwlock_wait<T: Blocking, L: Locks>(job: &Job) -> Vec<Reading> {
    longest_wait(job, |turns| {
        let longest = move |lock: &L::RwLock, index| longest_of(turns, |turn| take::<L>(lock, index, turn));
        share::<T, L, _>(job.tasks, turns, longest)
    })
}

/// Turn `turn` of task `index`.
#[inline(always)]
fn take<L: Locks>(lock: &L::RwLock, index: usize, turn: usize) -> u64 {
    if is_write(index, turn) { add(L::write(lock)) } else { *L::read(lock) }
}

/// Runs `work`, which reads or adds `turns` times, in all tasks at once, and checks the sum.
fn share<T: Blocking, L: Locks, R: Send + 'static>(
    tasks: usize,
    turns: usize,
    work: impl Fn(&L::RwLock, usize) -> R + Clone + Send + 'static,
) -> (Duration, Vec<R>) {
    let lock = Arc::new(L::RwLock::default());
    let shared = lock.clone();
    let done = together::<T, _>(tasks, move |index| work(&shared, index));
    assert_eq!(*L::read(&lock), writes(tasks, turns), "an addition was lost");
    done
}
