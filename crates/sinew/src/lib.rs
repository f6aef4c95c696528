//! Sinew: an M:N stackful fiber runtime. Write plain blocking code, run a million of it.
#![doc = include_str!("../../../README.md")]

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
