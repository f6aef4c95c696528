//! Stands in for workers and their ready lists: a fiber is a thread of the model that runs when its worker lets it.
//!
//! One fiber of a worker runs at a time, until it waits, yields or ends; then the next that is ready does, in the order in which they were made so. So a model has the one thing that matters where locks look
//! at homes: who was woken runs when the waker, or whoever else has the worker, lets go of it, and not before. Fibers of several workers, and threads, run at the same time, as loom has it.

use std::cell::Cell;
use std::collections::VecDeque;

use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread::JoinHandle;

/// More than any model has.
const WORKERS: usize = 2;

/// One of a worker's fibers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fiber {
    worker: usize,
    number: usize,
}

#[derive(Default)]
struct Worker {
    made: usize,
    /// Who runs; who is ready runs at once if nobody does.
    runs: Option<Fiber>,
    ready: VecDeque<Fiber>,
}

loom::lazy_static! {
    static ref ALL: Vec<(Mutex<Worker>, Condvar)> = (0..WORKERS).map(|_| Default::default()).collect();
}

loom::thread_local! {
    static ME: Cell<Option<Fiber>> = Cell::new(None);
}

impl Fiber {
    /// What locks know its worker by.
    pub fn home(self) -> *const () {
        /// Far apart, as seats are.
        const APART: usize = 4096;
        std::ptr::without_provenance((self.worker + 1) * APART)
    }
}

/// The fiber that calls; `None` on a thread.
pub fn me() -> Option<Fiber> {
    ME.with(Cell::get)
}

/// A new fiber of this worker, which is ready.
pub fn spawn<T: 'static>(worker: usize, f: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    let fiber = {
        let mut its = of(worker).0.lock().unwrap();
        its.made += 1;
        Fiber { worker, number: its.made }
    };
    make_ready(fiber);
    loom::thread::spawn(move || {
        ME.with(|me| me.set(Some(fiber)));
        await_turn(fiber);
        let result = f();
        pass_on(fiber);
        result
    })
}

/// It runs when its turn comes. By who has ended its wait.
pub fn make_ready(fiber: Fiber) {
    let (worker, changed) = of(fiber.worker);
    let mut worker = worker.lock().unwrap();
    worker.ready.push_back(fiber);
    if worker.runs.is_none() {
        run_next(worker, changed);
    }
}

/// The caller stops, and the next that is ready runs.
pub fn pass_on(me: Fiber) {
    let (worker, changed) = of(me.worker);
    let worker = worker.lock().unwrap();
    assert!(worker.runs == Some(me), "one stops that does not run");
    run_next(worker, changed);
}

/// Until the caller, which was made ready or will be, runs.
pub fn await_turn(me: Fiber) {
    let (worker, changed) = of(me.worker);
    let mut worker = worker.lock().unwrap();
    while worker.runs != Some(me) {
        worker = changed.wait(worker).unwrap();
    }
}

/// All that are ready run before the caller does again.
pub fn yield_now(me: Fiber) {
    make_ready(me);
    pass_on(me);
    await_turn(me);
}

fn run_next(mut worker: MutexGuard<'_, Worker>, changed: &Condvar) {
    worker.runs = worker.ready.pop_front();
    changed.notify_all();
}

fn of(worker: usize) -> &'static (Mutex<Worker>, Condvar) {
    let all: &'static Vec<_> = &ALL;
    &all[worker]
}
