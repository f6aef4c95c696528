//! The deadlines of one worker's fibers.
//!
//! A wait with a deadline keeps its entry in its fiber's control block: arming allocates nothing, and cancelling leaves nothing behind. A settled fiber, or one that is
//! bound while it waits, arms, fires and cancels on its own worker, so there is no lock and no timer thread.

use crate::base::list::List;
use crate::base::prefetch::prefetch;
use crate::base::wheel::{Entry, Wheel};
use crate::fiber::Control;
use crate::fiber::state::Cause;
use crate::os::clock;

/// The armed deadlines of one worker.
pub(crate) struct Timers {
    /// Boxed: it is large, and most of it is never touched.
    wheel: Box<Wheel>,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { wheel: Wheel::boxed(clock::now_ns()) }
    }

    pub(crate) fn armed(&self) -> usize {
        self.wheel.armed()
    }

    /// The moment to look again; `u64::MAX` if nothing is armed.
    pub(crate) fn next_ns(&self) -> u64 {
        if self.armed() == 0 { u64::MAX } else { self.wheel.next_deadline_ns() }
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
        let mut stacks = Stacks::new();
        self.wheel.advance(clock::now_ns(), |entry| {
            let control = entry.owner().cast::<Control>();
            // What it needs of its block when it goes on; the wheel has asked for the first line.
            prefetch(control.wrapping_byte_add(64));
            // SAFETY: an armed entry lies in the block of a suspended fiber of this worker, so that is alive; who claims its
            // wait is the one to queue it (`state.rs`, I2).
            unsafe {
                if let Some(claimed) = (*control).claim(Cause::TimedOut) {
                    (*control).note_ready();
                    stacks.push((*control).sp());
                    ready.push(claimed.control.cast_mut());
                }
            }
        });
        stacks.fetch();
    }
}

/// Lines of a waiting stack that its fiber needs to go on: what is saved there, and the frames up to the call of `sleep`.
const LINES: usize = 8;
/// Stacks that are asked for in a row.
const STACKS: usize = 16;

/// Stacks that have been waiting for long, and run next. The cache is asked for them in a row, so that their page walks overlap: a claim between two, an atomic exchange, would wait for the walk of the
/// first. 100,000 sleeps, warm: 28 -> 12 ms of CPU time.
struct Stacks {
    places: [*mut u8; STACKS],
    len: usize,
}

impl Stacks {
    fn new() -> Self {
        Self { places: [std::ptr::null_mut(); STACKS], len: 0 }
    }

    fn push(&mut self, sp: *mut u8) {
        if self.len == STACKS {
            self.fetch();
        }
        self.places[self.len] = sp;
        self.len += 1;
    }

    fn fetch(&mut self) {
        let places = &self.places[..self.len];
        places.iter().for_each(|&sp| prefetch(sp));
        places.iter().for_each(|&sp| (1..LINES).for_each(|line| prefetch(sp.wrapping_add(64 * line))));
        self.len = 0;
    }
}
