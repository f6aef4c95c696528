//! The lock under `RwLock`: one word, and two queues for those who find it taken.
//!
//! Readers and writers take turns, so that neither starves: a waiting writer stops readers that come; a writer that unlocks lets in all readers that wait, as one batch, else the next writer; the
//! last reader of a batch lets in the writer that has waited longest. So a writer waits for those before it and one batch of readers between each two of them, a reader for the batch under
//! way and one writer. Who waits is handed the lock: nobody overtakes.
//!
//! Rejected: one queue, with batches of readers that are neighbours in it: under mixed load the batches are of one. Whoever comes first (parking_lot's default): it has to bound the overtaking by
//! time, as `raw_mutex.rs` does; with batches a hand-over is paid once for many.
//!
//! # Picture of the state
//! ```text
//!   bit 0   WRITER    a writer has it
//!   bit 1   WAITED    a queue is not empty: who comes, and the last who leaves, goes inside
//!   2..29   readers that have it
//! ```
//! # Invariants (when nobody is inside)
//! I1. WAITED says whether a queue is not empty; then somebody has the lock, who will let others in.
//! I2. Readers wait only while a writer has the lock, or waits.

use crate::base::atomic::{AS_IN_MEMORY, in_statics, spin_loop};
use crate::fiber::state::Cause;
use crate::fiber::waiters::{Waiter, Waiters};
use crate::fiber::why::{At, Why};
use crate::os::state_lock::{Inside, STATE_MAX, StateLock};
use crate::rt::wait::{Me, Wakes};

use super::monitor::await_wake;

const WRITER: u32 = 1 << 0;
const WAITED: u32 = 1 << 1;
const READER: u32 = 1 << 2;
const READERS_MAX: u32 = STATE_MAX / READER;

/// Looks at a taken lock before queueing, as in `raw_mutex.rs`.
const SPINS: u32 = if AS_IN_MEMORY { 20 } else { 0 };

/// The lock under [`RwLock`](super::RwLock), for use with the types of the `lock_api` crate.
pub struct RawRwLock {
    lock: StateLock<Queues>,
}

struct Queues {
    readers: Waiters,
    writers: Waiters,
}

/// Which queue one waits in.
#[derive(Clone, Copy)]
enum Side {
    Reader,
    Writer,
}

type InQueues<'a> = Inside<'a, Queues>;

impl RawRwLock {
    in_statics! {
        pub(crate) const fn unlocked() -> Self {
            Self { lock: StateLock::new(0, Queues { readers: Waiters::new(), writers: Waiters::new() }) }
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn read(&self) {
        if !self.try_read_fast() {
            self.take_slowly(Side::Reader, u64::MAX);
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn write(&self) {
        if !self.try_write_fast() {
            self.take_slowly(Side::Writer, u64::MAX);
        }
    }

    #[track_caller]
    pub(crate) fn read_until(&self, deadline_ns: u64) -> bool {
        self.try_read_fast() || self.take_slowly(Side::Reader, deadline_ns)
    }

    #[track_caller]
    pub(crate) fn write_until(&self, deadline_ns: u64) -> bool {
        self.try_write_fast() || self.take_slowly(Side::Writer, deadline_ns)
    }

    pub(crate) fn try_read(&self) -> bool {
        self.try_read_fast() || self.lock.lock().enter(Side::Reader)
    }

    pub(crate) fn try_write(&self) -> bool {
        self.try_write_fast() || self.lock.lock().enter(Side::Writer)
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.lock.state() & !WAITED != 0
    }

    pub(crate) fn is_written(&self) -> bool {
        self.lock.state() & WRITER != 0
    }

    /// One reader less. By that.
    #[inline]
    pub(crate) fn release_read(&self) {
        // The last one lets others in, if any wait.
        let left = |state: u32| (state & WAITED == 0 || state / READER > 1).then(|| state - READER);
        if self.lock.change(left).is_none() {
            self.leave(READER);
        }
    }

    /// No writer any more. By that.
    #[inline]
    pub(crate) fn release_write(&self) {
        if self.lock.change(|state| (state == WRITER).then_some(0)).is_none() {
            self.leave(WRITER);
        }
    }

    /// The writer is a reader from now on, with all readers that wait.
    pub(crate) fn downgrade(&self) {
        let mut inside = self.lock.lock();
        debug_assert!(inside.state & WRITER != 0, "a RwLock was downgraded that was not written");
        inside.state = inside.state - WRITER + READER;
        let wakes = Wakes::none();
        inside.admit_readers(&wakes);
        inside.leave(wakes);
    }

    #[inline]
    fn try_read_fast(&self) -> bool {
        self.lock.change(|state| (state & (WRITER | WAITED) == 0).then(|| with_reader(state))).is_some()
    }

    #[inline]
    fn try_write_fast(&self) -> bool {
        self.lock.change(|state| (state == 0).then_some(WRITER)).is_some()
    }

    #[cold]
    #[track_caller]
    fn take_slowly(&self, side: Side, deadline_ns: u64) -> bool {
        if self.spin(side) {
            return true;
        }
        let me = Me::to_wait();
        let mut inside = self.lock.lock();
        if inside.enter(side) {
            return true;
        }
        let waiter = Waiter::new(me.control(), ());
        // SAFETY: it is new, and stays here until `await_wake` returns.
        unsafe { inside.queue(side).push(&waiter) };
        inside.state |= WAITED;
        me.begin_wait(Why::At(match side {
            Side::Reader => At::RwLockRead,
            Side::Writer => At::RwLockWrite,
        }));
        drop(inside);
        // SAFETY: queued and begun just now, inside, where it is claimed; it is removed from the queue that it was pushed to.
        let cause = unsafe {
            await_wake(&me, &self.lock, deadline_ns, |mut inside| {
                inside.queue(side).remove(&waiter);
                inside.go_on();
            })
        };
        cause == Cause::Woken
    }

    /// Tries for a moment, unless others wait already.
    fn spin(&self, side: Side) -> bool {
        for _ in 0..SPINS {
            if self.lock.state() & WAITED != 0 {
                return false;
            }
            spin_loop();
            let entered = match side {
                Side::Reader => self.try_read_fast(),
                Side::Writer => self.try_write_fast(),
            };
            if entered {
                return true;
            }
        }
        false
    }

    /// Gives up what the caller has, a reader's share or the writer's, and lets in those whose turn it is.
    #[cold]
    fn leave(&self, share: u32) {
        let mut inside = self.lock.lock();
        debug_assert!(inside.state & !WAITED >= share, "a RwLock was unlocked that was not locked");
        inside.state -= share;
        if share == WRITER {
            let wakes = Wakes::none();
            inside.admit_readers(&wakes);
            inside.admit_writer(&wakes);
            inside.leave(wakes);
        } else {
            inside.go_on();
        }
    }
}

#[inline]
fn with_reader(state: u32) -> u32 {
    assert!(state / READER < READERS_MAX, "too many readers of a RwLock");
    state + READER
}

/// What is done inside.
trait Turns {
    fn queue(&mut self, side: Side) -> &mut Waiters;
    fn enter(&mut self, side: Side) -> bool;
    fn admit_readers(&mut self, wakes: &Wakes);
    fn admit_writer(&mut self, wakes: &Wakes);
    fn go_on(self);
    fn leave(self, wakes: Wakes);
}

impl Turns for InQueues<'_> {
    fn queue(&mut self, side: Side) -> &mut Waiters {
        match side {
            Side::Reader => &mut self.readers,
            Side::Writer => &mut self.writers,
        }
    }

    /// Takes the lock for one who comes, if that is free for him and no writer waits.
    fn enter(&mut self, side: Side) -> bool {
        let free = match side {
            Side::Reader => self.state & WRITER == 0,
            Side::Writer => self.state & !WAITED == 0,
        };
        if !free || !self.writers.is_empty() {
            return false;
        }
        self.state = match side {
            Side::Reader => with_reader(self.state),
            Side::Writer => self.state | WRITER,
        };
        true
    }

    /// Lets in all readers that wait, if there is no writer.
    fn admit_readers(&mut self, wakes: &Wakes) {
        while self.state & WRITER == 0
            && let Some(claimed) = self.readers.claim_first(|()| ())
        {
            self.state = with_reader(self.state);
            wakes.add(claimed);
        }
    }

    /// Lets in the writer that has waited longest, if nobody else has the lock.
    fn admit_writer(&mut self, wakes: &Wakes) {
        if self.state & !WAITED == 0
            && let Some(claimed) = self.writers.claim_first(|()| ())
        {
            self.state |= WRITER;
            wakes.add(claimed);
        }
    }

    /// Somebody has left, a reader or one that waited: lets in a writer, else, if none waits, the readers.
    fn go_on(mut self) {
        let wakes = Wakes::none();
        self.admit_writer(&wakes);
        if self.writers.is_empty() {
            self.admit_readers(&wakes);
        }
        self.leave(wakes);
    }

    /// Leaves, and wakes those who were let in.
    fn leave(mut self, wakes: Wakes) {
        let waited = if self.readers.is_empty() && self.writers.is_empty() { 0 } else { WAITED };
        self.state = (self.state & !WAITED) | waited;
        drop(self);
        wakes.pay();
    }
}
