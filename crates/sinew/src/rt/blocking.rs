//! Work that blocks its thread, done on threads that have nothing else to do.
//!
//! Each runtime has its own pool, since the bound is the runtime's: one whose jobs all block for long does not stand in the way of another, and the threads go when
//! it does. One pool for the process was rejected: its bound would be whichever runtime's came first.
//!
//! The fiber waits until its job has ended, whatever happens; so the job lies in the waiting frame, and may borrow. What a job leaves behind at its thread through this
//! library (a cancel, an `unpark`, a handle by which either may come later) ends with that thread: it leaves, and another takes its place. Its fiber-locals end with the job.

use std::any::Any;
use std::cell::{RefCell, UnsafeCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::context::with_locals;
use super::wait::Me;
use crate::base::atomic::{Relaxed, thread_local};
use crate::fiber::Control;
use crate::fiber::state::Cause;
use crate::fiber::switch::FloatControl;
use crate::fiber::why::{At, Why};
use crate::os::{clock, thread};
use crate::sched::groups::Groups;
use crate::sched::pool::{Next, Pool, Submit, Task};
use crate::sched::worker::{Worker, make_ready};

/// Threads of a runtime that asks for no number, at most. As tokio's.
pub(crate) const THREADS_DEFAULT: usize = 512;
/// What may be asked for: the number of processes that Linux allows by default.
pub(crate) const THREADS_MAX: usize = 32_768;
/// How long an idle thread stays. As tokio's; arbitrary.
pub(crate) const IDLE_NS: u64 = 10_000_000_000;

/// Owners of the block of a pool's thread while no handle to it is about: the thread, and its loop.
const OWN_REFERENCES: u32 = 2;

/// Runs `f` on a thread where blocking harms nobody, and waits for it; `f` may borrow from the caller.
///
/// For what would keep the worker, and all fibers that live there, from going on: calls into the system or into libraries that block the thread, and long computations. It costs a
/// wake of another thread and a wake back: more than a short computation is worth.
///
/// Each runtime has threads for this, at most [`RuntimeBuilder::blocking_threads`](crate::RuntimeBuilder::blocking_threads); what comes when all are busy waits its turn, first come, first served. A thread
/// is used again by other jobs, and leaves when it was idle for [a while](crate::RuntimeBuilder::blocking_idle). There is no fiber inside `f`: it is on a plain thread, with that
/// thread's thread-locals, and no cancel or deadline of the caller reaches it. But it rounds as the caller does, has clones of the fiber-locals that a child would [inherit](crate::fiber_local) (its own are dropped when it has ended, before this returns), and the current runtime is the caller's: what `f` spawns belongs there, and so do the
/// [timers](crate::time::Timer) that it starts; if that is being shut down meanwhile they are dropped unrun, as those that the fiber itself would spawn. Jobs that wait for other jobs can fill the pool with nothing but waiting.
///
/// Called on a plain thread, which it would block in any case, it runs `f` right there, and changes nothing for it.
///
/// # Suspends
/// Yes, until `f` has ended. No cancel point: `f` cannot be cut short, and a shutdown waits for it, or names the fiber.
///
/// # Panics
/// Passes a panic of `f` on, and one of a `clone` of an inherited fiber-local. If there is no thread at all and none can be started. Inside [`no_suspend`](crate::no_suspend), before `f` is called.
///
/// # Examples
/// ```
/// let text = String::from("127.0.0.1:80");
/// let address = sinew::run(|| {
///     sinew::blocking(|| std::net::ToSocketAddrs::to_socket_addrs(text.as_str()).map(|mut all| all.next()))
/// });
/// assert_eq!(address?, Some(([127, 0, 0, 1], 80).into()));
/// # std::io::Result::Ok(())
/// ```
#[track_caller]
pub fn blocking<F, T>(f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    try_blocking(f).unwrap_or_else(|error| refuse(&error))
}

/// As [`blocking`], but an error if there is no thread at all and none can be started.
#[track_caller]
pub(crate) fn try_blocking<F, T>(f: F) -> io::Result<T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let me = Me::to_wait();
    let Me::Fiber(worker, control) = me else { return Ok(f()) };
    let (groups, float, inherited) = (worker.groups().clone(), FloatControl::now(), control.locals.inherit());
    let f = move || {
        // The thread has those of its last job, or of who started it.
        float.set();
        on_behalf_of(groups, || with_locals(inherited, f))
    };
    let job = Job { task: Task::new(control, run_of(&f)), f: UnsafeCell::new(Some(f)), outcome: UnsafeCell::new(None) };
    let outside = &worker.groups().outside;
    outside.fetch_add(1, Relaxed);
    // SAFETY: the job stays in this frame until its wait has ended.
    let refusal = unsafe { wait_for(&me, worker, control, &job.task) };
    outside.fetch_sub(1, Relaxed);
    match (refusal, job.outcome.into_inner()) {
        (None, Some(Ok(value))) => Ok(value),
        (None, Some(Err(payload))) => resume_unwind(payload),
        (Some(error), _) => Err(io::Error::from_raw_os_error(error)),
        (None, None) => unreachable!("a job was neither done nor refused"),
    }
}

thread_local! {
    /// On a thread of a pool: the runtime of the fiber whose job it does. Fibers never come here: theirs is their worker's.
    static ASKER: RefCell<Option<Arc<Groups>>> = const { RefCell::new(None) };
}

/// The runtime of the fiber for whom this thread, which is no worker, does a blocking job. Not inlined: law R1.
#[inline(never)]
pub(crate) fn asker() -> Option<Arc<Groups>> {
    ASKER.try_with(|asker| asker.borrow().clone()).unwrap_or(None)
}

/// Runs `f`, a job of a fiber of `groups`.
fn on_behalf_of<T>(groups: Arc<Groups>, f: impl FnOnce() -> T) -> T {
    struct Forget;
    impl Drop for Forget {
        fn drop(&mut self) {
            let _groups = ASKER.with(RefCell::take);
        }
    }
    ASKER.with(|asker| asker.replace(Some(groups)));
    let _forget = Forget;
    f()
}

#[cold]
#[track_caller]
fn refuse(error: &io::Error) -> ! {
    panic!(
        "sinew::blocking: no thread could be started to block on ({error}), and there is none: raise the limits on threads (ulimit -u, pids.max of the cgroup, \
         /proc/sys/kernel/threads-max) or on memory, or start fewer elsewhere"
    );
}

/// A job, in the frame of the fiber that waits for it.
#[repr(C)]
struct Job<F, T> {
    /// First: a pointer to it is one to the job.
    task: Task,
    f: UnsafeCell<Option<F>>,
    outcome: UnsafeCell<Option<Result<T, Box<dyn Any + Send>>>>,
}

/// The deed of a job with this closure, whose type has no name.
fn run_of<F: FnOnce() -> T, T>(_: &F) -> unsafe fn(*const Task) {
    do_job::<F, T>
}

/// Does a job on this thread.
unsafe fn do_job<F: FnOnce() -> T, T>(task: *const Task) {
    let job = task.cast::<Job<F, T>>();
    // SAFETY: `blocking` made this task the head of such a job, whose frame waits; until its wait is ended the job is this thread's alone.
    unsafe {
        let f = (*(*job).f.get()).take().expect("a job is done once");
        *(*job).outcome.get() = Some(catch_unwind(AssertUnwindSafe(f)));
    }
}

/// Queues the job and waits for its end; gives the error if there was no thread for it.
///
/// # Safety
/// `task` is the head of a job of `me`, and both stay until this returns.
unsafe fn wait_for(me: &Me, worker: &Worker, control: &Control, task: &Task) -> Option<i32> {
    control.note_why(Why::At(At::Blocking));
    control.state.begin_wait();
    let pool = &worker.groups().pool;
    // SAFETY: the wait has begun, and the caller keeps the job.
    match unsafe { pool.submit(task) } {
        Submit::Queued => {}
        Submit::Wake(idle) => make_ready(idle),
        Submit::Start(number) => {
            if let Err(error) = start(pool, number, worker.groups().cpus_of_helpers()) {
                let error = error.raw_os_error().unwrap_or(libc::EAGAIN);
                if refuse_orphans(pool, error, task) {
                    // It was among them, and nobody knows of its wait any more.
                    me.abandon_wait();
                    return Some(error);
                }
            }
        }
    }
    // SAFETY: the wait was begun above; whoever does or refuses the job ends it.
    unsafe { me.wait(u64::MAX) };
    task.refusal()
}

/// Refuses the jobs that nobody is left for; whether `own` was among them, which is left to the caller.
#[cold]
fn refuse_orphans(pool: &Pool, error: i32, own: *const Task) -> bool {
    let mut mine = false;
    for task in pool.not_started() {
        if std::ptr::eq(task, own) {
            mine = true;
        } else {
            // SAFETY: taken from the queue just now.
            make_ready(unsafe { Task::refuse(task, error) });
        }
    }
    mine
}

/// Starts a thread of the pool, which is bound to `cpus`, or may run where its maker may.
fn start(pool: &Arc<Pool>, number: u64, cpus: Option<Vec<usize>>) -> io::Result<()> {
    let pool = pool.clone();
    thread::start(format!("sinew-blocking-{number}"), move || {
        // If they are no more to be had, it runs where it may.
        let _ = cpus.map(|cpus| thread::bind(&cpus));
        work(&pool);
    })
}

/// What a thread of the pool does.
fn work(pool: &Arc<Pool>) {
    let Ok(me) = catch_unwind(Me::now) else {
        // There is no block for it to wait with.
        refuse_orphans(pool, libc::ENOMEM, std::ptr::null());
        return;
    };
    let mut next = pool.next(me.control());
    loop {
        next = match next {
            Next::Run(task) => {
                // SAFETY: taken from the queue just now.
                make_ready(unsafe { Task::run(task) });
                if !me.control().is_pristine(OWN_REFERENCES) && start(pool, pool.replacement(), None).is_ok() {
                    // The new thread is counted in the place of this one.
                    return;
                }
                pool.next(me.control())
            }
            Next::Wait => {
                let deadline_ns = clock::now_ns().saturating_add(pool.idle_ns);
                // SAFETY: `next` began the wait; a submitter, the close or the deadline ends it.
                match unsafe { me.wait(deadline_ns) } {
                    Cause::TimedOut => pool.timed_out(me.control()),
                    _ => pool.next(me.control()),
                }
            }
            Next::Leave => return,
        };
    }
}
