//! The work on locks, for tasks that are futures. It follows `blocking::locks` deed by deed.

use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Futures, paced, together};
use crate::deeds::{Met, add, blocking, is_write, wait_reading, writes};
use crate::job::{Deed, Job, Reading};

/// As `blocking::locks::Locks`.
pub(crate) trait Locks: 'static {
    type Mutex: Default + Send + Sync + 'static;
    type RwLock: Default + Send + Sync + 'static;

    fn lock(mutex: &Self::Mutex) -> impl Future<Output = impl DerefMut<Target = u64>> + Send;
    fn read(lock: &Self::RwLock) -> impl Future<Output = impl Deref<Target = u64>> + Send;
    fn write(lock: &Self::RwLock) -> impl Future<Output = impl DerefMut<Target = u64>> + Send;
}

/// Locks that block their thread, in futures.
pub(crate) struct Plain<L>(PhantomData<L>);

impl<L: blocking::locks::Locks> Locks for Plain<L> {
    type Mutex = L::Mutex;
    type RwLock = L::RwLock;

    async fn lock(mutex: &L::Mutex) -> impl DerefMut<Target = u64> {
        L::lock(mutex)
    }
    async fn read(lock: &L::RwLock) -> impl Deref<Target = u64> {
        L::read(lock)
    }
    async fn write(lock: &L::RwLock) -> impl DerefMut<Target = u64> {
        L::write(lock)
    }
}

/// Does `job` with the tasks of `T` and the locks of `L`.
pub(crate) fn perform<T: Futures, L: Locks>(job: &Job) -> Vec<Reading> {
    let job = *job;
    T::run(&job, async move {
        match job.deed {
            Deed::Mutex => paced(&job, job.tasks, |turns| mutex::<T, L>(job.tasks, turns)).await,
            Deed::MutexWait => mutex_wait::<T, L>(&job).await,
            Deed::RwLock => paced(&job, job.tasks, |turns| rwlock::<T, L>(job.tasks, turns)).await,
            Deed::RwLockWait => rwlock_wait::<T, L>(&job).await,
            other => panic!("{other:?} takes no lock"),
        }
    })
}

async fn mutex<T: Futures, L: Locks>(tasks: usize, turns: usize) -> Duration {
    let add_all = move |mutex: Arc<L::Mutex>| async move {
        for _ in 0..turns {
            add(L::lock(&mutex).await);
        }
    };
    contend::<T, L, _>(tasks, turns, add_all).await.0
}

async fn mutex_wait<T: Futures, L: Locks>(job: &Job) -> Vec<Reading> {
    let met = Mutex::new(Met::default());
    let paced = paced(job, job.tasks, async |turns| {
        let meet = move |mutex: Arc<L::Mutex>| async move {
            let mut met = Met::default();
            for _ in 0..turns {
                let start = Instant::now();
                let turn = add(L::lock(&mutex).await);
                met.note(start.elapsed(), turn);
            }
            met
        };
        let (took, each) = contend::<T, L, _>(job.tasks, turns, meet).await;
        *met.lock().expect("nobody panics with it") = Met::worst(&each);
        took
    })
    .await;
    met.into_inner().expect("nobody panics with it").readings(&paced)
}

/// Runs as often as the budget asks for, and gives the longest wait of the last run. `run` gives each task's.
async fn longest_wait<F: Future<Output = (Duration, Vec<Duration>)> + Send>(
    job: &Job,
    run: impl Fn(usize) -> F + Send + Sync,
) -> Vec<Reading> {
    let longest_ns = AtomicU64::new(0);
    paced(job, job.tasks, async |turns| {
        let (took, waits) = run(turns).await;
        longest_ns.store(waits.into_iter().max().unwrap_or_default().as_nanos() as u64, Relaxed);
        took
    })
    .await;
    wait_reading(longest_ns.into_inner())
}

/// Runs `work`, which adds `turns` times, in all tasks at once, and checks the sum.
async fn contend<T: Futures, L: Locks, W: Future<Output: Send> + Send + 'static>(
    tasks: usize,
    turns: usize,
    work: impl Fn(Arc<L::Mutex>) -> W + Send + Sync,
) -> (Duration, Vec<W::Output>) {
    let mutex = Arc::new(L::Mutex::default());
    let done = together::<T, _>(tasks, |_| work(mutex.clone())).await;
    assert_eq!(*L::lock(&mutex).await, (tasks * turns) as u64, "an addition was lost");
    done
}

async fn rwlock<T: Futures, L: Locks>(tasks: usize, turns: usize) -> Duration {
    let take_all = move |lock: Arc<L::RwLock>, index| async move {
        for turn in 0..turns {
            black_box(if is_write(index, turn) { add(L::write(&lock).await) } else { *L::read(&lock).await });
        }
    };
    share::<T, L, _>(tasks, turns, take_all).await.0
}

async fn rwlock_wait<T: Futures, L: Locks>(job: &Job) -> Vec<Reading> {
    longest_wait(job, async |turns| {
        let longest = move |lock: Arc<L::RwLock>, index| async move {
            let mut longest = Duration::ZERO;
            for turn in 0..turns {
                let start = Instant::now();
                black_box(if is_write(index, turn) { add(L::write(&lock).await) } else { *L::read(&lock).await });
                longest = longest.max(start.elapsed());
            }
            longest
        };
        share::<T, L, _>(job.tasks, turns, longest).await
    })
    .await
}

/// Runs `work`, which reads or adds `turns` times, in all tasks at once, and checks the sum.
async fn share<T: Futures, L: Locks, W: Future<Output: Send> + Send + 'static>(
    tasks: usize,
    turns: usize,
    work: impl Fn(Arc<L::RwLock>, usize) -> W + Send + Sync,
) -> (Duration, Vec<W::Output>) {
    let lock = Arc::new(L::RwLock::default());
    let done = together::<T, _>(tasks, |index| work(lock.clone(), index)).await;
    assert_eq!(*L::read(&lock).await, writes(tasks, turns), "an addition was lost");
    done
}
