//! The work of systems whose tasks are plain closures that block: fibers, coroutines, threads.

pub(crate) mod channels;
pub(crate) mod files;
pub(crate) mod locks;
pub(crate) mod servers;

use std::iter;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::storm::{self, Role, Storm};
use super::{
    Arrivals, IDLE_TIMER, LOOK, Latency, Line, Oversleep, PARKED_WARM_UP, SETTLE, SHORT_STEPS, SKYNET_CHILDREN, WAVES, unbalanced_steps,
};
use super::{balance, compute, four_deep, paced};
use crate::job::{Deed, Job, Kind, Reading};
use crate::proc;
use channels::Channels;
use files::Files;
use locks::Locks;
use servers::Net;

/// What a system must be able to do.
pub(crate) trait Blocking: 'static {
    /// Gives what the task returned to whoever joins it.
    type Handle<T: Send + 'static>: Send;
    /// Wakes the task that made it. A ring before the wait is kept.
    type Bell: Send + Sync + 'static;

    /// Starts the system as `job` wants it, runs `root` as a task, and returns when it has ended. What else is there stays: the process ends soon.
    fn run<T: Send + 'static>(job: &Job, root: impl FnOnce() -> T + Send + 'static) -> T;
    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> Self::Handle<T>;
    /// Spawns a task that runs on another worker than the caller's, and stays there. By default as any other: right where each task is a thread.
    fn spawn_apart(task: impl FnOnce() + Send + 'static) {
        drop(Self::spawn(task));
    }
    fn join<T: Send + 'static>(handle: Self::Handle<T>) -> T;
    fn yield_now();
    fn sleep(span: Duration);
    fn bell() -> Self::Bell;
    fn ring(bell: &Self::Bell);
    fn wait(bell: &Self::Bell);
}

/// Does `job` on `S`.
pub(crate) fn perform<S: Blocking + Locks + Channels>(job: &Job) -> Vec<Reading> {
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

fn perform_tasks<S: Blocking>(job: &Job) -> Vec<Reading> {
    let job = *job;
    S::run(&job, move || match job.deed {
        Deed::Yield => paced(&job, job.tasks, |turns| yields::<S>(job.tasks, turns, S::yield_now)),
        Deed::SwitchNested => paced(&job, 2, |turns| yields::<S>(2, turns, || four_deep(S::yield_now))),
        Deed::SpawnJoin => paced(&job, 1, spawn_join::<S>),
        Deed::SpawnAll => paced(&job, job.tasks, |turns| spawn_all::<S>(job.tasks, turns, || ())),
        Deed::FanOut => paced(&job, job.tasks, |turns| spawn_all::<S>(job.tasks, turns, || compute(SHORT_STEPS))),
        Deed::Unbalanced => {
            let steps = unbalanced_steps(&job);
            let readings = paced(&job, 1, |turns| spawn_all::<S>(job.tasks, turns, move || compute(steps)));
            balance(&job, readings[0].value)
        }
        Deed::Skynet => skynet::<S>(job.tasks),
        Deed::Wake => wake::<S>(&job),
        Deed::Timers => WAVES.iter().flat_map(|wave| timers::<S>(&job, wave)).collect(),
        Deed::Parked => parked::<S>(job.tasks),
        Deed::Idle => idle::<S>(&job),
        Deed::Storm => storm::<S>(&job),
        other => panic!("{other:?} is not about tasks"),
    })
}

fn yields<S: Blocking>(tasks: usize, turns: usize, yield_now: impl Fn() + Copy + Send + 'static) -> Duration {
    let work = move |_| {
        for _ in 0..turns {
            yield_now();
        }
    };
    together::<S, _>(tasks, work).0
}

/// Runs `work` in so many tasks, which have all started before the clock does; and what they return.
fn together<S: Blocking, T: Send + 'static>(tasks: usize, work: impl Fn(usize) -> T + Clone + Send + 'static) -> (Duration, Vec<T>) {
    let line = Line::of(tasks);
    let spawn = |index| {
        let (line, work) = (line.clone(), work.clone());
        S::spawn(move || {
            S::wait(line.stand(index, S::bell()));
            work(index)
        })
    };
    let handles: Vec<_> = (0..tasks).map(spawn).collect();
    while !line.is_full() {
        S::sleep(LOOK);
    }
    line.ring(S::ring);
    let start = Instant::now();
    let returned = handles.into_iter().map(S::join).collect();
    (start.elapsed(), returned)
}

fn spawn_join<S: Blocking>(turns: usize) -> Duration {
    let start = Instant::now();
    for _ in 0..turns {
        S::join(S::spawn(|| ()));
    }
    start.elapsed()
}

fn spawn_all<S: Blocking>(tasks: usize, turns: usize, work: impl Fn() + Copy + Send + 'static) -> Duration {
    let start = Instant::now();
    for _ in 0..turns {
        let handles: Vec<_> = iter::repeat_with(|| S::spawn(work)).take(tasks).collect();
        handles.into_iter().for_each(S::join);
    }
    start.elapsed()
}

fn skynet<S: Blocking>(leaves: usize) -> Vec<Reading> {
    fn node<S: Blocking>(first: usize, leaves: usize) -> u64 {
        if leaves == 1 {
            return first as u64;
        }
        let share = leaves / SKYNET_CHILDREN;
        let child = |i| S::spawn(move || node::<S>(first + i * share, share));
        let children: [_; SKYNET_CHILDREN] = std::array::from_fn(child);
        children.into_iter().map(S::join).sum()
    }
    let start = Instant::now();
    let sum = S::join(S::spawn(move || node::<S>(0, leaves)));
    let took = start.elapsed();
    assert_eq!(sum, super::sum_below(leaves), "the leaves were not all counted once");
    super::whole(Reading::new("", "ms", took.as_secs_f64() * 1e3))
}

/// Starts `tasks` tasks that wait for ever, and comes back when all do.
fn park<S: Blocking>(tasks: usize) -> Vec<S::Handle<()>> {
    let arrivals = Arc::new(Arrivals::default());
    let spawn = || {
        let arrivals = arrivals.clone();
        S::spawn(move || {
            let bell = S::bell();
            arrivals.note();
            S::wait(&bell);
        })
    };
    let handles = iter::repeat_with(spawn).take(tasks).collect();
    while arrivals.count() < tasks {
        S::sleep(LOOK);
    }
    handles
}

fn wake<S: Blocking>(job: &Job) -> Vec<Reading> {
    let others = park::<S>(job.tasks);
    let late_ns = hear::<S>(job.turns);
    std::mem::forget(others);
    super::latencies(late_ns)
}

/// Waits `turns` times for a thread that wakes this task: nanoseconds that each wake took.
fn hear<S: Blocking>(turns: usize) -> Vec<u64> {
    let latency = Latency::new();
    let bell = Arc::new(S::bell());
    let ringer = thread::spawn({
        let (latency, bell) = (latency.clone(), bell.clone());
        move || latency.ring(turns, || S::ring(&bell))
    });
    let wait = || {
        S::wait(&bell);
        latency.hear()
    };
    let late_ns = iter::repeat_with(wait).take(turns).collect();
    ringer.join().expect("the waking thread does not panic");
    late_ns
}

fn storm<S: Blocking>(job: &Job) -> Vec<Reading> {
    let (storm, turns) = (Arc::new(Storm::of(job)), job.turns);
    let work = {
        let storm = storm.clone();
        move |index| match storm.role(index) {
            Role::Yield => {
                while !storm.is_over() {
                    S::yield_now();
                }
                Vec::new()
            }
            Role::Sleep => leave_after(&storm, || iter::repeat_with(nap::<S>).take(turns).collect()),
            Role::Hear => leave_after(&storm, || hear::<S>(turns)),
        }
    };
    let (_, late_ns) = together::<S, _>(storm.tasks(), work);
    storm.readings(late_ns)
}

/// Sleeps for a moment: nanoseconds that it took too long.
fn nap<S: Blocking>() -> u64 {
    let deadline = Instant::now() + storm::NAP;
    S::sleep(storm::NAP);
    storm::late_ns(deadline)
}

fn leave_after<T>(storm: &Storm, work: impl FnOnce() -> T) -> T {
    let done = work();
    storm.leave();
    done
}

fn timers<S: Blocking>(job: &Job, wave: &str) -> Vec<Reading> {
    let oversleep = Oversleep::new(job.tasks);
    let longest_ms = job.turns;
    let cpu = proc::cpu_time();
    let spawn = |index| {
        let oversleep = oversleep.clone();
        S::spawn(move || {
            let span = Oversleep::span(index, longest_ms);
            let deadline = Instant::now() + span;
            S::sleep(span);
            oversleep.note(index, deadline);
        })
    };
    let handles: Vec<_> = (0..job.tasks).map(spawn).collect();
    handles.into_iter().for_each(S::join);
    oversleep.readings(wave, cpu)
}

fn parked<S: Blocking>(tasks: usize) -> Vec<Reading> {
    std::mem::forget(park::<S>(PARKED_WARM_UP));
    let before = proc::memory_bytes();
    let handles = park::<S>(tasks);
    S::sleep(SETTLE);
    let readings = super::parked(tasks, before);
    std::mem::forget(handles);
    readings
}

fn idle<S: Blocking>(job: &Job) -> Vec<Reading> {
    std::mem::forget(park::<S>(job.tasks));
    std::mem::forget(S::spawn(|| S::sleep(IDLE_TIMER)));
    let span = Duration::from_millis(job.turns as u64);
    S::sleep(SETTLE);
    let cpu = proc::cpu_time();
    S::sleep(span);
    super::idle(cpu, span)
}
