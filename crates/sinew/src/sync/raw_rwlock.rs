//! The lock under `RwLock`: a turn, which who finds it taken waits for, and the count of readers.
//!
//! A writer takes the turn, a `RawMutex`, and keeps it while it writes; it stops readers that come, and waits for those that are there. A reader that finds a writer takes the turn for the moment in which it
//! becomes a reader. So whoever waits, waits at that one mutex, with its rules of who comes when (`raw_mutex.rs`), by which neither readers nor writers starve; and a writer waits for one batch of readers besides.
//!
//! Measured (`rivals run --workload rwlock-9010`: 100 fibers, 2 workers, one write in ten): 8-10 ns. Rejected: two queues, out of which a writer that unlocks hands the lock to all readers that wait, and the last reader to the next
//! writer: 150-3,700 ns in the same run, since once somebody waits each turn is a hand-over, most often to another worker.
//!
//! # Picture of the state
//! ```text
//!   bit 0   WRITER    a writer has it, or has the turn and waits for the readers to leave
//!   1..29   readers that have it
//! ```
//!
//! # Invariants
//! I1. WRITER is set, and taken away, by who has the turn.
//! I2. The writer that waits for readers is the only one in the queue; the last reader wakes it.
//! I3. The last touch of an unlock by a writer is that of the turn: one who waited for that may free the lock. A reader that merely comes by may not: it gets in while the writer still has the turn. Safe
//!     code cannot: guards borrow the lock.

use crate::base::atomic::{in_statics, spin_loop};
use crate::fiber::state::Cause;
use crate::fiber::waiters::Waiters;
use crate::fiber::why::At;
use crate::os::state_lock::{STATE_MAX, StateLock};
use crate::rt::wait::{Me, may_wait};
use crate::sched::worker::make_ready;

use super::monitor::{Monitor, Wait};
use super::raw_mutex::RawMutex;

const WRITER: u32 = 1 << 0;
const READER: u32 = 1 << 1;
const READERS_MAX: u32 = STATE_MAX / READER;

/// The lock under [`RwLock`](super::RwLock), for use with the types of the `lock_api` crate.
pub struct RawRwLock {
    turn: RawMutex,
    readers: Monitor,
}

impl RawRwLock {
    in_statics! {
        pub(crate) const fn unlocked() -> Self {
            Self { turn: RawMutex::unlocked(), readers: StateLock::new(0, Waiters::new()) }
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn read(&self) {
        if !self.try_read() {
            self.read_slowly(u64::MAX);
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn write(&self) {
        self.turn.take();
        if !self.try_stop_readers() {
            self.await_readers(u64::MAX);
        }
    }

    #[track_caller]
    pub(crate) fn read_until(&self, deadline_ns: u64) -> bool {
        self.try_read() || self.read_slowly(deadline_ns)
    }

    #[track_caller]
    pub(crate) fn write_until(&self, deadline_ns: u64) -> bool {
        self.turn.take_until(deadline_ns) && (self.try_stop_readers() || self.await_readers(deadline_ns))
    }

    #[inline]
    pub(crate) fn try_read(&self) -> bool {
        loop {
            if self.readers.change(|state| (state & WRITER == 0).then(|| with_reader(state))).is_some() {
                return true;
            }
            if self.is_written() {
                return false;
            }
            // Somebody is inside, and leaves at once.
            spin_loop();
        }
    }

    #[inline]
    pub(crate) fn try_write(&self) -> bool {
        if !self.turn.try_take() {
            return false;
        }
        let stopped = self.try_stop_readers();
        if !stopped {
            self.turn.release();
        }
        stopped
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.readers.state() != 0
    }

    pub(crate) fn is_written(&self) -> bool {
        self.readers.state() & WRITER != 0
    }

    /// One reader less. By that.
    #[inline]
    pub(crate) fn release_read(&self) {
        if self.readers.change(|state| (state != WRITER | READER).then(|| state - READER)).is_none() {
            self.release_last_read();
        }
    }

    /// No writer any more. By that.
    #[inline]
    pub(crate) fn release_write(&self) {
        self.allow_readers(0);
        // The last touch: who waits, waits for this (I3).
        self.turn.release();
    }

    /// The writer is a reader from now on.
    pub(crate) fn downgrade(&self) {
        self.allow_readers(READER);
        self.turn.release();
    }

    /// Waits for the turn: then no writer is there, and none comes.
    #[cold]
    #[track_caller]
    fn read_slowly(&self, deadline_ns: u64) -> bool {
        if !self.turn.take_until(deadline_ns) {
            return false;
        }
        let entered = self.try_read();
        debug_assert!(entered, "a writer without the turn");
        self.turn.release();
        true
    }

    /// Stops readers that come, if none is there. By who has the turn.
    #[inline]
    fn try_stop_readers(&self) -> bool {
        self.readers.change(|state| (state == 0).then_some(WRITER)).is_some()
    }

    /// Stops readers that come, and waits for those that are there. By who has the turn, which is given up if time runs out.
    #[cold]
    #[track_caller]
    fn await_readers(&self, deadline_ns: u64) -> bool {
        if !may_wait() {
            self.turn.release();
        }
        let me = Me::to_wait();
        let mut inside = self.readers.lock();
        inside.state |= WRITER;
        if inside.state == WRITER {
            return true;
        }
        let cause = inside.wait(&me, At::RwLockWrite, deadline_ns, (), |mut inside, _| inside.state &= !WRITER);
        let woken = cause == Cause::Woken;
        if !woken {
            self.turn.release();
        }
        woken
    }

    /// The last reader, and a writer that waits for it.
    #[cold]
    fn release_last_read(&self) {
        let mut inside = self.readers.lock();
        inside.state -= READER;
        let writer = if inside.state == WRITER { inside.claim_first(|()| ()) } else { None };
        drop(inside);
        if let Some(writer) = writer {
            make_ready(writer);
        }
    }

    /// Lets readers in again; `left` is the share that the writer keeps.
    #[inline]
    fn allow_readers(&self, left: u32) {
        if self.readers.change(|state| (state == WRITER).then_some(left)).is_none() {
            let mut inside = self.readers.lock();
            debug_assert_eq!(inside.state, WRITER, "a RwLock was unlocked that was not written");
            inside.state = left;
        }
    }
}

#[inline]
fn with_reader(state: u32) -> u32 {
    assert!(state / READER < READERS_MAX, "too many readers of a RwLock");
    state + READER
}
