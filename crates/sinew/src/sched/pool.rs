//! The threads for work that blocks: who takes which job, who lies down, who leaves, and when one more is to be started.
//!
//! A job lies in the frame of the fiber that waits for it, so queueing allocates nothing. Jobs are taken in order. An idle thread waits as any plain thread does, with a
//! deadline after which it leaves; the one that lay down last is woken first, so that the surplus stays idle and goes.
//!
//! Nothing here starts a thread or wakes one: each call says what its caller is to do. So the file runs under a model as it stands.
//!
//! # Invariants
//! I1. A queued job has a thread that will look at the queue: one that runs a job, one that was woken or timed out, or one that is being started.
//! I2. An idle thread is claimed under the lock, and takes itself out under it, before its wait returns to other uses (law W2).
//! I3. `threads` counts those that will look at the queue again, and those being started.

use std::cell::Cell;
use std::ptr;

use crate::fiber::state::Cause;
use crate::fiber::{Claimed, Control};
use crate::os::lock::Lock;

/// One job, in the frame of the fiber that waits for it.
pub(crate) struct Task {
    next: Cell<*const Task>,
    waiter: *const Control,
    run: unsafe fn(*const Task),
    /// The system's error, if there was no thread for it.
    refused: Cell<Option<i32>>,
}

impl Task {
    /// A job that `run` does, for `waiter`.
    pub(crate) fn new(waiter: &Control, run: unsafe fn(*const Task)) -> Self {
        Self { next: Cell::new(ptr::null()), waiter, run, refused: Cell::new(None) }
    }

    /// Does the job and ends the wait for it.
    ///
    /// # Safety
    /// The caller has taken it from a pool's queue: it is done or refused once.
    pub(crate) unsafe fn run(task: *const Task) -> Claimed {
        // SAFETY: the caller's promise; the waiter stays until it is claimed, and the frame of the job with it.
        unsafe {
            ((*task).run)(task);
            Self::end(task)
        }
    }

    /// Ends the wait for a job that nobody can do, for this error of the system.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    pub(crate) unsafe fn refuse(task: *const Task, error: i32) -> Claimed {
        // SAFETY: as in `run`.
        unsafe {
            (*task).refused.set(Some(error));
            Self::end(task)
        }
    }

    unsafe fn end(task: *const Task) -> Claimed {
        // SAFETY: the caller's promise.
        unsafe { (*(*task).waiter).claim(Cause::Woken) }.expect("only its job ends a wait for a blocking job")
    }

    /// Why it was not done, if it was not. By the one that waited.
    pub(crate) fn refusal(&self) -> Option<i32> {
        self.refused.get()
    }
}

/// What one that brings a job does next.
#[must_use]
pub(crate) enum Submit {
    /// Nothing: a thread will take it.
    Queued,
    /// Make this thread ready.
    Wake(Claimed),
    /// Start the thread of this number; if that fails, call [`Pool::not_started`].
    Start(u64),
}

/// What a thread of the pool does next.
#[must_use]
pub(crate) enum Next {
    /// Do this job.
    Run(*const Task),
    /// Wait; if nobody ends that, call [`Pool::timed_out`].
    Wait,
    /// End.
    Leave,
}

struct Inner {
    first: *const Task,
    last: *const Task,
    queued: usize,
    threads: usize,
    started: u64,
    /// Threads that wait, the last to lie down last.
    idle: Vec<*const Control>,
    /// Nobody lies down any more.
    closed: bool,
}

// SAFETY: jobs are `Send` by `blocking`'s bound, waiting threads are claimed under the lock only (I2).
unsafe impl Send for Inner {}

impl Inner {
    fn push(&mut self, task: *const Task) {
        if self.first.is_null() {
            self.first = task;
        } else {
            // SAFETY: a queued job's frame is there until it is done.
            unsafe { (*self.last).next.set(task) };
        }
        self.last = task;
        self.queued += 1;
    }

    fn pop(&mut self) -> Option<*const Task> {
        // SAFETY: as in `push`.
        let task = unsafe { self.first.as_ref() }?;
        self.first = task.next.replace(ptr::null());
        self.queued -= 1;
        Some(task)
    }

    fn forget(&mut self, me: &Control) {
        self.idle.retain(|&idle| !ptr::eq(idle, me));
    }
}

/// The threads of one runtime for work that blocks.
pub(crate) struct Pool {
    inner: Lock<Inner>,
    limit: usize,
    /// How long a thread stays idle.
    pub(crate) idle_ns: u64,
}

impl Pool {
    pub(crate) fn new(limit: usize, idle_ns: u64) -> Self {
        let (first, last) = (ptr::null(), ptr::null());
        let inner = Inner { first, last, queued: 0, threads: 0, started: 0, idle: Vec::new(), closed: false };
        Self { inner: Lock::new(inner), limit, idle_ns }
    }

    /// Queues a job.
    ///
    /// # Safety
    /// Its waiter has begun a wait, and goes on only when that is ended: so the job stays.
    pub(crate) unsafe fn submit(&self, task: *const Task) -> Submit {
        let mut inner = self.inner.lock();
        inner.push(task);
        if let Some(idle) = inner.idle.pop() {
            // SAFETY: I2. One that has timed out is on its way to the lock, and finds the job (I1).
            return unsafe { (*idle).claim(Cause::Woken) }.map_or(Submit::Queued, Submit::Wake);
        }
        if inner.threads == self.limit {
            return Submit::Queued;
        }
        inner.threads += 1;
        inner.started += 1;
        Submit::Start(inner.started)
    }

    /// A thread could not be started, or cannot go on: gives the jobs that nobody is left for, to be refused.
    pub(crate) fn not_started(&self) -> Vec<*const Task> {
        let mut inner = self.inner.lock();
        inner.threads -= 1;
        let mut orphans = Vec::new();
        while inner.threads == 0 {
            let Some(task) = inner.pop() else { break };
            orphans.push(task);
        }
        orphans
    }

    /// The next deed of a thread, whose wait has begun if it is to wait.
    pub(crate) fn next(&self, me: &Control) -> Next {
        let mut inner = self.inner.lock();
        if let Some(task) = inner.pop() {
            return Next::Run(task);
        }
        if inner.closed {
            inner.threads -= 1;
            return Next::Leave;
        }
        me.state.begin_wait();
        inner.idle.push(me);
        Next::Wait
    }

    /// The next deed of a thread that nobody has woken in time.
    pub(crate) fn timed_out(&self, me: &Control) -> Next {
        let mut inner = self.inner.lock();
        inner.forget(me);
        if let Some(task) = inner.pop() {
            return Next::Run(task);
        }
        inner.threads -= 1;
        Next::Leave
    }

    /// The number of a thread that takes the place of one that leaves.
    pub(crate) fn replacement(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.started += 1;
        inner.started
    }

    /// Lets threads leave as soon as they have nothing to do; gives those that are to be woken for it. Jobs are taken as ever.
    #[must_use]
    pub(crate) fn close(&self) -> Vec<Claimed> {
        let mut inner = self.inner.lock();
        inner.closed = true;
        // SAFETY: I2.
        inner.idle.drain(..).filter_map(|idle| unsafe { (*idle).claim(Cause::Woken) }).collect()
    }

    /// Threads that there are, and jobs that wait for one.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.threads, inner.queued)
    }
}
