//! The deadlines of one worker's fibers.
//!
//! A wait with a deadline keeps its entry in its own frame: arming allocates nothing, and cancelling leaves nothing behind. A settled fiber
//! arms, fires and cancels on its own worker, so there is no lock and no timer thread.

use crate::base::list::List;
use crate::base::wheel::{Entry, Wheel};
use crate::fiber::Control;
use crate::fiber::state::Cause;
use crate::os::clock;

/// The armed deadlines of one worker.
pub(crate) struct Timers {
    wheel: Wheel,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { wheel: Wheel::new(clock::now_ns()) }
    }

    pub(crate) fn armed(&self) -> usize {
        self.wheel.armed()
    }

    /// The moment to look again; `u64::MAX` if nothing is armed.
    pub(crate) fn next_ns(&self) -> u64 {
        self.wheel.next_deadline_ns()
    }

    /// Ends, at `deadline_ns`, the wait of the fiber that `entry` was made for.
    ///
    /// # Safety
    /// `entry` was made for a fiber of this worker, is not armed, and stays in place until it is disarmed or fired.
    pub(crate) unsafe fn arm(&mut self, entry: &Entry, deadline_ns: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.wheel.arm(entry, deadline_ns) };
    }

    /// # Safety
    /// If `entry` is armed, it is armed here.
    pub(crate) unsafe fn disarm(&mut self, entry: &Entry) {
        // SAFETY: the caller's promise.
        unsafe { self.wheel.disarm(entry) };
    }

    /// Appends to `ready` the fibers whose deadline ended their wait. One that was woken first is somebody else's.
    pub(crate) fn expire(&mut self, ready: &List<Control>) {
        self.wheel.advance(clock::now_ns(), |entry| {
            let control = entry.owner().cast::<Control>();
            // SAFETY: an armed entry lies in the frame of a suspended fiber of this worker, so its block is alive; who claims its
            // wait is the one to queue it (`state.rs`, I2).
            unsafe {
                if let Some(claimed) = (*control).claim(Cause::TimedOut) {
                    (*control).note_ready();
                    ready.push(claimed.control.cast_mut());
                }
            }
        });
    }
}
