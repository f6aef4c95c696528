//! The work of systems whose tasks are futures. It follows `blocking` deed by deed.

pub(crate) mod channels;
pub(crate) mod files;
pub(crate) mod locks;
pub(crate) mod servers;

use std::iter;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::storm::{self, Role, Storm};
use super::{
    Arrivals, IDLE_TIMER, LOOK, Latency, Line, Oversleep, PARKED_WARM_UP, Pace, SETTLE, SHORT_STEPS, SKYNET_CHILDREN, WAVES,
    unbalanced_steps,
};
use super::{balance, compute};
use crate::job::{Deed, Job, Kind, Reading};
use crate::proc;
use channels::Channels;
use files::Files;
use locks::Locks;
use servers::Net;

/// What a system must be able to do; as `blocking::Blocking`.
pub(crate) trait Futures: 'static {
    type Handle<T: Send + 'static>: Send;
    type Bell: Send + Sync + 'static;

    fn run<T: Send + 'static>(job: &Job, root: impl Future<Output = T> + Send + 'static) -> T;
    fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> Self::Handle<T>;
    /// Runs a task on a thread of its own.
    fn spawn_apart(task: impl Future<Output = ()> + Send + 'static);
    fn join<T: Send + 'static>(handle: Self::Handle<T>) -> impl Future<Output = T> + Send;
    fn yield_now() -> impl Future<Output = ()> + Send;
    fn sleep(span: Duration) -> impl Future<Output = ()> + Send;
    fn bell() -> Self::Bell;
    fn ring(bell: &Self::Bell);
    fn wait(bell: &Self::Bell) -> impl Future<Output = ()> + Send;
}

/// Does `job` on `S`.
pub(crate) fn perform<S: Futures + Locks + Channels>(job: &Job) -> Vec<Reading> {
    match job.deed.kind() {
        Kind::Lock => locks::perform::<S, S>(job),
        Kind::Channel => channels::perform::<S, S>(job),
        Kind::Switch | Kind::Task => perform_tasks::<S>(job),
        Kind::File | Kind::Server => panic!("that is in `perform_io`"),
    }
}

/// Does `job`, which is about sockets or files, on `S`.
pub(crate) fn perform_io<S: Net + Files>(job: &Job) -> Vec<Reading> {
    if job.deed == Deed::FileRead { files::perform::<S>(job) } else { servers::perform::<S>(job) }
}

fn perform_tasks<S: Futures>(job: &Job) -> Vec<Reading> {
    let job = *job;
    S::run(&job, async move {
        match job.deed {
            Deed::Yield => paced(&job, job.tasks, |turns| yields::<S>(job.tasks, turns)).await,
            Deed::SpawnJoin => paced(&job, 1, spawn_join::<S>).await,
            Deed::SpawnAll => paced(&job, job.tasks, |turns| spawn_all::<S>(job.tasks, turns, || ())).await,
            Deed::FanOut => paced(&job, job.tasks, |turns| spawn_all::<S>(job.tasks, turns, || compute(SHORT_STEPS))).await,
            Deed::Unbalanced => {
                let steps = unbalanced_steps(&job);
                let readings = paced(&job, 1, |turns| spawn_all::<S>(job.tasks, turns, move || compute(steps))).await;
                balance(&job, readings[0].value)
            }
            Deed::Skynet => skynet::<S>(job.tasks).await,
            Deed::Wake => wake::<S>(&job).await,
            Deed::Timers => {
                let mut readings = Vec::new();
                for wave in WAVES {
                    readings.extend(timers::<S>(&job, wave).await);
                }
                readings
            }
            Deed::Parked => parked::<S>(job.tasks).await,
            Deed::Idle => idle::<S>(&job).await,
            Deed::Storm => storm::<S>(&job).await,
            other => panic!("futures cannot do {other:?}, or it is not about tasks"),
        }
    })
}

async fn paced<F: Future<Output = Duration> + Send>(
    job: &Job,
    operations_per_turn: usize,
    run: impl Fn(usize) -> F + Send,
) -> Vec<Reading> {
    let mut pace = Pace::of(job);
    loop {
        let took = run(pace.turns).await;
        if pace.enough(took) {
            break pace.reading(took, operations_per_turn);
        }
    }
}

async fn yields<S: Futures>(tasks: usize, turns: usize) -> Duration {
    let work = |_| async move {
        for _ in 0..turns {
            S::yield_now().await;
        }
    };
    together::<S, _>(tasks, work).await.0
}

/// Runs `work` in so many tasks, which have all started before the clock does; and what they return.
async fn together<S: Futures, W: Future<Output: Send> + Send + 'static>(
    tasks: usize,
    work: impl Fn(usize) -> W + Send,
) -> (Duration, Vec<W::Output>) {
    let line = Line::of(tasks);
    let spawn = |index| {
        let (line, work) = (line.clone(), work(index));
        S::spawn(async move {
            S::wait(line.stand(index, S::bell())).await;
            work.await
        })
    };
    let handles: Vec<_> = (0..tasks).map(spawn).collect();
    while !line.is_full() {
        S::sleep(LOOK).await;
    }
    line.ring(S::ring);
    let start = Instant::now();
    let mut returned = Vec::with_capacity(tasks);
    for handle in handles {
        returned.push(S::join(handle).await);
    }
    (start.elapsed(), returned)
}

async fn spawn_join<S: Futures>(turns: usize) -> Duration {
    let start = Instant::now();
    for _ in 0..turns {
        S::join(S::spawn(async {})).await;
    }
    start.elapsed()
}

async fn spawn_all<S: Futures>(tasks: usize, turns: usize, work: impl Fn() + Copy + Send + 'static) -> Duration {
    let start = Instant::now();
    for _ in 0..turns {
        let handles: Vec<_> = iter::repeat_with(|| S::spawn(async move { work() })).take(tasks).collect();
        for handle in handles {
            S::join(handle).await;
        }
    }
    start.elapsed()
}

async fn skynet<S: Futures>(leaves: usize) -> Vec<Reading> {
    /// Boxed, as a future that contains itself must be.
    fn node<S: Futures>(first: usize, leaves: usize) -> Pin<Box<dyn Future<Output = u64> + Send>> {
        Box::pin(async move {
            if leaves == 1 {
                return first as u64;
            }
            let share = leaves / SKYNET_CHILDREN;
            let children: [_; SKYNET_CHILDREN] = std::array::from_fn(|i| S::spawn(node::<S>(first + i * share, share)));
            let mut sum = 0;
            for child in children {
                sum += S::join(child).await;
            }
            sum
        })
    }
    let start = Instant::now();
    let sum = S::join(S::spawn(node::<S>(0, leaves))).await;
    let took = start.elapsed();
    assert_eq!(sum, super::sum_below(leaves), "the leaves were not all counted once");
    super::whole(Reading::new("", "ms", took.as_secs_f64() * 1e3))
}

/// Starts `tasks` tasks that wait for ever, and comes back when all do.
async fn park<S: Futures>(tasks: usize) -> Vec<S::Handle<()>> {
    let arrivals = Arc::new(Arrivals::default());
    let spawn = || {
        let arrivals = arrivals.clone();
        S::spawn(async move {
            let bell = S::bell();
            arrivals.note();
            S::wait(&bell).await;
        })
    };
    let handles = iter::repeat_with(spawn).take(tasks).collect();
    while arrivals.count() < tasks {
        S::sleep(LOOK).await;
    }
    handles
}

async fn wake<S: Futures>(job: &Job) -> Vec<Reading> {
    let others = park::<S>(job.tasks).await;
    let late_ns = hear::<S>(job.turns).await;
    std::mem::forget(others);
    super::latencies(late_ns)
}

/// Waits `turns` times for a thread that wakes this task: nanoseconds that each wake took.
async fn hear<S: Futures>(turns: usize) -> Vec<u64> {
    let latency = Latency::new();
    let bell = Arc::new(S::bell());
    let ringer = thread::spawn({
        let (latency, bell) = (latency.clone(), bell.clone());
        move || latency.ring(turns, || S::ring(&bell))
    });
    let mut late_ns = Vec::with_capacity(turns);
    for _ in 0..turns {
        S::wait(&bell).await;
        late_ns.push(latency.hear());
    }
    ringer.join().expect("the waking thread does not panic");
    late_ns
}

async fn storm<S: Futures>(job: &Job) -> Vec<Reading> {
    let (storm, turns) = (Arc::new(Storm::of(job)), job.turns);
    let work = |index| {
        let storm = storm.clone();
        async move {
            let mut late_ns = Vec::new();
            match storm.role(index) {
                Role::Yield => {
                    while !storm.is_over() {
                        S::yield_now().await;
                    }
                    return late_ns;
                }
                Role::Sleep => {
                    for _ in 0..turns {
                        late_ns.push(nap::<S>().await);
                    }
                }
                Role::Hear => late_ns = hear::<S>(turns).await,
            }
            storm.leave();
            late_ns
        }
    };
    let (_, late_ns) = together::<S, _>(storm.tasks(), work).await;
    storm.readings(late_ns)
}

/// Sleeps for a moment: nanoseconds that it took too long.
async fn nap<S: Futures>() -> u64 {
    let deadline = Instant::now() + storm::NAP;
    S::sleep(storm::NAP).await;
    storm::late_ns(deadline)
}

async fn timers<S: Futures>(job: &Job, wave: &str) -> Vec<Reading> {
    let oversleep = Oversleep::new(job.tasks);
    let longest_ms = job.turns;
    let cpu = proc::cpu_time();
    let spawn = |index| {
        let oversleep = oversleep.clone();
        S::spawn(async move {
            let span = Oversleep::span(index, longest_ms);
            let deadline = Instant::now() + span;
            S::sleep(span).await;
            oversleep.note(index, deadline);
        })
    };
    let handles: Vec<_> = (0..job.tasks).map(spawn).collect();
    for handle in handles {
        S::join(handle).await;
    }
    oversleep.readings(wave, cpu)
}

async fn parked<S: Futures>(tasks: usize) -> Vec<Reading> {
    std::mem::forget(park::<S>(PARKED_WARM_UP).await);
    let before = proc::memory_bytes();
    let handles = park::<S>(tasks).await;
    S::sleep(SETTLE).await;
    let readings = super::parked(tasks, before);
    std::mem::forget(handles);
    readings
}

async fn idle<S: Futures>(job: &Job) -> Vec<Reading> {
    std::mem::forget(park::<S>(job.tasks).await);
    std::mem::forget(S::spawn(async { S::sleep(IDLE_TIMER).await }));
    let span = Duration::from_millis(job.turns as u64);
    S::sleep(SETTLE).await;
    let cpu = proc::cpu_time();
    S::sleep(span).await;
    super::idle(cpu, span)
}
