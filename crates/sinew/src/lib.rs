//! Sinew: an M:N stackful fiber runtime. Write plain blocking code, run a million of it.
//!
//! ```
//! use std::time::Duration;
//! sinew::run(|| {
//!     // Ten thousand fibers, each an ordinary closure that blocks whenever it likes.
//!     let sleepers: Vec<_> = (0..10_000u64)
//!         .map(|i| {
//!             sinew::spawn(move || {
//!                 sinew::sleep(Duration::from_millis(10));
//!                 i
//!             })
//!         })
//!         .collect();
//!     let sum: u64 = sleepers.into_iter().map(|fiber| fiber.join().unwrap()).sum();
//!     assert_eq!(sum, 49_995_000);
//! });
//! ```
//!
//! A fiber is a closure with a stack of its own. Worker threads, as many as there are CPUs, run the fibers: one that waits makes room for the next, at the price of a function call or two. The first fiber starts the
//! runtime; [`Runtime::builder`] makes others.
//!
//! # Where things are
//! | for | see |
//! |---|---|
//! | fibers: start, wait for, name, size | [`spawn()`], [`scope()`], [`run`], [`Builder`], [`JoinHandle`], [`spawn_batch`] |
//! | waiting and letting others run | [`sleep`], [`park`], [`yield_now`] |
//! | cutting waits short | [`JoinHandle::cancel`], [`timeout`], [`shield`], [`cancelled`] |
//! | locks and the like | [`sync`] |
//! | channels and `select!` | [`chan`] |
//! | intervals, timers with callbacks | [`time`] |
//! | sockets, files, children, signals, pipes | [`net`], [`fs`], [`process`], [`signal`], [`io`] |
//! | futures | [`block_on`], [`spawn_future`]; a [`JoinHandle`] is a future |
//! | calls that block a thread | [`blocking()`] |
//! | values that belong to a fiber | [`fiber_local!`] |
//! | runtimes, groups of workers, queues, policies | [`Runtime`], [`RuntimeBuilder`], [`Group`] |
//! | what the scheduler does | [`metrics`], and `SINEW_SCHEDTRACE=1000` for a line per second |
//!
//! # What `spawn` promises
//! A fiber is *settled*: from its first run on it stays on one worker's thread. So [`spawn()`] asks for what [`std::thread::spawn`] asks for, and an `Rc`, a guard or a thread-local that a fiber holds never changes thread.
//! Three rules remain, as fibers take turns on a thread. Do not suspend inside a `thread_local!` initialiser, inside a scoped-thread-local closure, or inside a panic hook. [`no_suspend`] marks code like this: suspending in
//! it panics. With these rules kept, safe code that uses Sinew is sound. A fiber may move between workers only where its maker has promised, by `unsafe`, what that asks for ([`RuntimeBuilder::migrate_started_fibers`]).
//!
//! # Nothing preempts a fiber
//! One that computes, or blocks its thread, keeps every fiber that is settled on its worker waiting until it suspends. Give long work to [`blocking()`], a [background group](RuntimeBuilder::background) or [`hop`], or call [`yield_now`] in it.
//!
//! # Which calls can be cut short
//! A cancel and a deadline are errors, and nothing is unwound by force. I/O, channels, `select!`, [`sleep`] and [`park`] are *cancel points*: they fail, or return at once, in a fiber that is cancelled or past its deadline ([`Cancelled::is_in`] knows the `io::Error`). Locks,
//! `join`, the end of a [`scope()`], [`blocking()`] and [`block_on`] are none; locks have timed forms, and [`try_block_on`] is one. [`cancelled`] has [the whole table](cancelled#which-calls-wait-and-which-are-cancel-points). A loop around
//! [`sleep`] or [`park`], which return nothing, asks [`cancelled`].
//!
//! # Coming from threads
//! `use sinew as thread`, and `sinew::net`, `fs`, `process`, `sync` for std's. What differs:
//! - Locks do not poison: `lock()` gives the guard, and [`Condvar::wait`](sync::Condvar::wait) takes `&mut guard`. `try_lock_for` is [`lock_timeout`](sync::Mutex::lock_timeout).
//! - `mpsc::channel` is [`chan::unbounded`], `sync_channel` is [`chan::bounded`]; both have many receivers. `handle.thread()` is [`JoinHandle::fiber`], and `Thread` and `ThreadId` are [`Fiber`] and [`Id`]. [`std::thread::Result`] stays std's: `sinew::Result` would stand in for the prelude's after a `use sinew::*`.
//! - **Hold no guard of `std::sync` over a call that waits**: the next fiber of the worker that wants the lock blocks the thread, and the holder never goes on. Those of [`sync`] may be held over anything.
//! - So the initialiser of a std [`LazyLock`](std::sync::LazyLock), [`OnceLock`](std::sync::OnceLock) or [`Once`](std::sync::Once) must not wait; that of one of [`sync`]'s may.
//! - What blocks the thread blocks a worker: `std::thread::sleep`, a call of C, and what waits in std (`mpsc`, `Condvar`, `Barrier`, `net`, `process`). There is one of ours for each of std's; [`blocking()`] is for the others.
//! - [`net`] and [`fs`] say at their heads where they differ from std's.

// The README's examples run as tests, too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod base;
pub mod chan;
mod event;
mod fiber;
pub mod fs;
mod future;
pub mod io;
pub mod local;
pub mod net;
mod os;
pub mod process;
mod rt;
mod sched;
pub mod signal;
pub mod sync;
pub mod time;

pub use std::thread::available_parallelism;
/// It speaks of the thread: where a fiber has suspended in a `Drop` as it unwound, others that run there meanwhile are told `true` as well.
///
/// ---
#[doc(inline)]
pub use std::thread::panicking;

pub use event::source::Io;
pub use fiber::Id;
pub use fiber::task::NeverRan;
pub use future::{block_on, spawn_future, try_block_on};
pub use rt::blocking::blocking;
pub use rt::builder::RuntimeBuilder;
pub use rt::cancel::{Cancelled, Elapsed, cancelled, shield, timeout};
pub use rt::context::{Pin, hop, no_suspend, on_resume, on_suspend, pin};
pub use rt::fiber::Fiber;
pub use rt::metrics::{GroupMetrics, Latencies, Metrics, Theft, WorkerMetrics, metrics};
pub use rt::report::Unfinished;
pub use rt::runtime::{Handle, Runtime};
pub use rt::scope::{Scope, ScopedJoinHandle, scope};
pub use rt::spawn::{Builder, Group, JoinHandle, Launch, flush, run, spawn, spawn_batch};
pub use rt::wait::{Cut, current, park, park_timeout, sleep, sleep_until, yield_now};
pub use sched::profile::Profile;
pub use sched::settings::{Policy, Queue, Spin};

/// Doors for this project's own tests and benchmarks. No promise is made about anything in here.
#[doc(hidden)]
pub mod hidden {
    /// Makes stack guards by `mprotect` from now on, as on an old kernel.
    pub fn guard_by_mprotect() {
        crate::os::memory::guard_by_protection();
    }

    /// Makes memory calls for stacks fail with ENOMEM after `calls` more successes; `u64::MAX` ends that.
    pub fn fail_memory_after(calls: u64) {
        crate::os::memory::fail_after(calls);
    }

    /// Lets there be no more control blocks than `blocks` at once.
    pub fn limit_blocks(blocks: usize) {
        crate::fiber::pool::limit(blocks);
    }

    /// Makes every start of a thread for `blocking` fail, or no longer.
    pub fn fail_blocking_threads(now: bool) {
        crate::os::thread::fail(now);
    }

    /// Stacks of all sizes that exist in this process.
    pub fn stacks() -> usize {
        crate::fiber::stack::depot().carved()
    }

    /// Names the worker that the caller is at; 0 on a plain thread. Inlined on purpose: whatever the optimiser makes of its caller, it must be the worker that the caller is at now (law R1).
    #[inline(always)]
    pub fn worker() -> usize {
        crate::sched::worker::here().map_or(0, |worker| std::ptr::from_ref(worker.seat()) as usize)
    }

    /// The raw switch between stacks, for benchmarks: two functions, no runtime.
    pub mod switch {
        use crate::fiber::switch;

        /// Makes a fresh stack that calls `root(arg)`, which never returns, when first switched to.
        ///
        /// # Safety
        /// `bottom..top` is writable, used by nobody, and has a guard below it; `top` is 16-byte aligned.
        pub unsafe fn prepare(bottom: usize, top: usize, root: unsafe extern "C" fn(*mut u8) -> !, arg: *mut u8) -> *mut u8 {
            // SAFETY: the caller's promise.
            unsafe { switch::prepare(bottom, top, root, arg) }
        }

        /// Stores this stack's place in `*save` and goes on at `to`; returns when somebody switches back.
        ///
        /// # Safety
        /// `to` came from `prepare` or was saved by `switch` on this thread, nobody has gone on there since, and its stack is alive.
        #[inline(always)]
        pub unsafe fn switch(save: *mut *mut u8, to: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { switch::switch(save, to) }
        }
    }
}
