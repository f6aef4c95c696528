//! The lock under `RwLock`: one word, and two queues for those who find it taken.
//!
//! As with `raw_mutex.rs`, who unlocks lets go, wakes some that wait, and runs on; the woken ones try like any other, and others may overtake them. But nobody is overtaken for long: once one has
//! waited for `PATIENCE_NS`, who comes queues, and who unlocks hands the lock over, once in `STAY_NS`. A reader that would join others, before a writer that waits, looks at the time at once, since all of them may
//! have the lock for long; who finds it free, with one on its way to it, does so once in 32 times. In both cases readers and writers take turns: after a writer come all readers that wait, as one batch, else the
//! next writer; after readers the writer that has waited longest. So a writer waits for its patience, those before it, and one batch of readers between each two of them; a reader for its
//! patience, the batch under way and one writer.
//!
//! Measured (100 fibers, 2 workers, nine reads to a write, a loaded machine): 456 ns per lock if it is always handed over, each of which then costs a switch or a wake of another worker;
//! 10-14 ns now, 11-21 with a yield under one lock in 64; std's on 100 threads 10-15 ns. Of the locks in these runs 20-96 % overtook somebody at a free lock, 0.3 % at most by joining readers. Rejected: one queue, with batches of readers that are neighbours in it: under mixed load the batches are of one.
//!
//! # Picture of the state
//! ```text
//!   bit 0    WRITER      a writer has it
//!   bit 1    WAITED      a queue is not empty
//!   bit 2    WOKEN       some were told to try; until one of them has, unlocks wake nobody else
//!   3..7     OVERTAKEN   how often those who wait were overtaken since somebody looked at the time
//!   8..29    readers that have it
//! ```
//! # Invariants (when nobody is inside)
//! I1. WAITED says whether a queue is not empty; then somebody has the lock, who will look at it when he leaves, or one that was woken is on its way.
//! I2. Who was told to try takes WOKEN away, in the same step in which it enters, or queues again because another has the lock; so does a hand-over. Taken away too early it costs a wake that is in vain.
//! I3. Readers wait only while a writer has the lock, or waits.

use std::cell::Cell;

use super::monitor::await_wake;
use crate::base::atomic::{AS_IN_MEMORY, in_statics, spin_loop};
use crate::fiber::state::Cause;
use crate::fiber::waiters::{Waiter, Waiters};
use crate::fiber::why::{At, Why};
use crate::os::clock;
use crate::os::state_lock::{Inside, STATE_MAX, StateLock};
use crate::rt::wait::{Me, Wakes};

const WRITER: u32 = 1 << 0;
const WAITED: u32 = 1 << 1;
const WOKEN: u32 = 1 << 2;
const OVERTAKEN: u32 = 1 << 3;
const OVERTAKEN_MAX: u32 = 31 * OVERTAKEN;
const READER: u32 = 1 << 8;
const READERS_MAX: u32 = STATE_MAX / READER;
/// Who has the lock.
const OWNERS: u32 = !(WAITED | WOKEN | OVERTAKEN_MAX);

/// How long one that waits is overtaken. As in `raw_mutex.rs`.
const PATIENCE_NS: u64 = 500_000;

/// How long the lock is anybody's between two hand-overs. Without it a hundred fibers that have all lost their patience would do nothing but hand over, at a wake of another worker each, and
/// never gain it again: 2 us per lock instead of 20 ns.
const STAY_NS: u64 = 50_000;

/// Looks at a taken lock before queueing, as in `raw_mutex.rs`.
const SPINS: u32 = if AS_IN_MEMORY { 20 } else { 0 };

/// The lock under [`RwLock`](super::RwLock), for use with the types of the `lock_api` crate.
pub struct RawRwLock {
    lock: StateLock<Queues>,
}

struct Queues {
    readers: Waiters<Note>,
    writers: Waiters<Note>,
    /// When the lock was last handed over.
    handed_ns: u64,
}

/// What is known of a waiter.
struct Note {
    since_ns: u64,
    /// Told by its waker: it has the lock; else it is to try.
    handed: Cell<bool>,
}

/// Which queue one waits in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Reader,
    Writer,
}

/// How one that wants the lock comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comes {
    Newly,
    /// It was told to try.
    Woken,
}

/// How the lock goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hand {
    /// Those whose turn it is are told to try.
    Try,
    /// They have it.
    Over,
}

impl RawRwLock {
    in_statics! {
        pub(crate) const fn unlocked() -> Self {
            Self { lock: StateLock::new(0, Queues { readers: Waiters::new(), writers: Waiters::new(), handed_ns: 0 }) }
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn read(&self) {
        if !self.try_fast(Side::Reader) {
            self.take_slowly(Side::Reader, u64::MAX);
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn write(&self) {
        if !self.try_fast(Side::Writer) {
            self.take_slowly(Side::Writer, u64::MAX);
        }
    }

    #[track_caller]
    pub(crate) fn read_until(&self, deadline_ns: u64) -> bool {
        self.try_fast(Side::Reader) || self.take_slowly(Side::Reader, deadline_ns)
    }

    #[track_caller]
    pub(crate) fn write_until(&self, deadline_ns: u64) -> bool {
        self.try_fast(Side::Writer) || self.take_slowly(Side::Writer, deadline_ns)
    }

    #[inline]
    pub(crate) fn try_read(&self) -> bool {
        self.try_fast(Side::Reader) || self.try_slowly(Side::Reader)
    }

    #[inline]
    pub(crate) fn try_write(&self) -> bool {
        self.try_fast(Side::Writer) || self.try_slowly(Side::Writer)
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.lock.state() & OWNERS != 0
    }

    pub(crate) fn is_written(&self) -> bool {
        self.lock.state() & WRITER != 0
    }

    /// Whether anybody waits for it.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.lock.state() & WAITED != 0
    }

    /// One reader less. By that.
    #[inline]
    pub(crate) fn release_read(&self) {
        // The last one wakes others, if any wait and none is on its way.
        let left = |state: u32| (state & (WAITED | WOKEN) != WAITED || state / READER > 1).then(|| state - READER);
        if self.lock.change(left).is_none() {
            self.leave(READER, Hand::Try);
        }
    }

    /// No writer any more. By that.
    #[inline]
    pub(crate) fn release_write(&self) {
        if self.lock.change(|state| (state & (WAITED | WOKEN) != WAITED).then(|| state - WRITER)).is_none() {
            self.leave(WRITER, Hand::Try);
        }
    }

    /// As `release_read`; the last one hands the lock over to those whose turn it is, however short they have waited.
    pub(crate) fn release_read_fairly(&self) {
        self.leave(READER, Hand::Over);
    }

    /// As `release_write`, with a hand-over.
    pub(crate) fn release_write_fairly(&self) {
        self.leave(WRITER, Hand::Over);
    }

    /// The writer is a reader from now on, with all readers that wait.
    pub(crate) fn downgrade(&self) {
        let mut inside = self.lock.lock();
        debug_assert!(inside.state & WRITER != 0, "a RwLock was downgraded that was not written");
        inside.state = inside.state - WRITER + READER;
        let wakes = Wakes::none();
        inside.admit(Side::Reader, Hand::Over, &wakes);
        inside.leave(wakes);
    }

    /// Takes it if it is free; before those who wait, if nobody has it and they were not overtaken often.
    #[inline]
    fn try_fast(&self, side: Side) -> bool {
        let taken = |state: u32| {
            let overtakes = if state & WAITED == 0 { 0 } else { OVERTAKEN };
            let may = overtakes == 0 || (state & OWNERS == 0 && state & OVERTAKEN_MAX < OVERTAKEN_MAX);
            (may && is_free(state, side)).then(|| with(state, side) + overtakes)
        };
        self.lock.change(taken).is_some()
    }

    /// Takes it if it is free and nobody's patience is at its end, which it looks at the time for.
    fn try_slowly(&self, side: Side) -> bool {
        is_free(self.lock.state(), side) && self.lock.lock().enter(side, Comes::Newly)
    }

    #[cold]
    #[track_caller]
    fn take_slowly(&self, side: Side, deadline_ns: u64) -> bool {
        if self.spin(side) || self.try_slowly(side) {
            return true;
        }
        let me = Me::to_wait();
        let waiter = Waiter::new(me.control(), Note { since_ns: clock::now_ns(), handed: Cell::new(false) });
        let mut comes = Comes::Newly;
        loop {
            let mut inside = self.lock.lock();
            if inside.enter(side, comes) {
                return true;
            }
            if inside.state & OWNERS == 0 {
                // Whoever was told to try does not come, and others behind it have lost their patience: they have it, and this one looks again.
                inside.go_on([Side::Writer, Side::Reader], Hand::Over);
                continue;
            }
            inside.queue_up(&me, &waiter, side, comes);
            drop(inside);
            // SAFETY: queued and begun just now, inside, where it is claimed; it is removed from the queue that it was pushed to.
            let cause = unsafe {
                await_wake(&me, &self.lock, deadline_ns, |mut inside| {
                    inside.queue(side).remove(&waiter);
                    inside.leave_queue();
                })
            };
            match cause {
                Cause::Woken if waiter.note.handed.get() => return true,
                Cause::Woken => comes = Comes::Woken,
                _ => return false,
            }
        }
    }

    /// Tries for a moment, unless others wait already.
    fn spin(&self, side: Side) -> bool {
        for _ in 0..SPINS {
            if self.lock.state() & WAITED != 0 {
                return false;
            }
            spin_loop();
            if self.try_fast(side) {
                return true;
            }
        }
        false
    }

    /// Gives up what the caller has, a reader's share or the writer's, and sees to those whose turn it is.
    #[cold]
    fn leave(&self, share: u32, hand: Hand) {
        let mut inside = self.lock.lock();
        debug_assert!(inside.state & OWNERS >= share, "a RwLock was unlocked that was not locked");
        inside.state -= share;
        let turns = if share == WRITER { [Side::Reader, Side::Writer] } else { [Side::Writer, Side::Reader] };
        inside.go_on(turns, hand);
    }
}

/// Whether one of this side finds it free.
#[inline]
fn is_free(state: u32, side: Side) -> bool {
    match side {
        Side::Reader => state & WRITER == 0,
        Side::Writer => state & OWNERS == 0,
    }
}

/// The state when one more of this side has it.
#[inline]
fn with(state: u32, side: Side) -> u32 {
    match side {
        Side::Reader => {
            assert!(state / READER < READERS_MAX, "too many readers of a RwLock");
            state + READER
        }
        Side::Writer => state | WRITER,
    }
}

/// What is done inside.
trait Turns {
    fn queue(&mut self, side: Side) -> &mut Waiters<Note>;
    fn is_due(&self) -> bool;
    fn enter(&mut self, side: Side, comes: Comes) -> bool;
    fn queue_up(&mut self, me: &Me, waiter: &Waiter<Note>, side: Side, comes: Comes);
    fn admit(&mut self, side: Side, hand: Hand, wakes: &Wakes) -> bool;
    fn go_on(self, turns: [Side; 2], hand: Hand);
    fn leave_queue(self);
    fn leave(self, wakes: Wakes);
}

impl Turns for Inside<'_, Queues> {
    fn queue(&mut self, side: Side) -> &mut Waiters<Note> {
        match side {
            Side::Reader => &mut self.readers,
            Side::Writer => &mut self.writers,
        }
    }

    /// Whether one that waits has done so for long enough, and the last hand-over was a while ago.
    fn is_due(&self) -> bool {
        let first = [self.readers.first(), self.writers.first()].into_iter().flatten().map(|first| first.note.since_ns).min();
        first.is_some_and(|since_ns| {
            let now_ns = clock::now_ns();
            now_ns.saturating_sub(since_ns) >= PATIENCE_NS && now_ns.saturating_sub(self.handed_ns) >= STAY_NS
        })
    }

    /// Takes the lock for one who comes, if that is free for him and nobody's patience is at its end.
    fn enter(&mut self, side: Side, comes: Comes) -> bool {
        if comes == Comes::Woken {
            self.state &= !WOKEN;
        } else if self.state & WAITED != 0 {
            if self.is_due() {
                return false;
            }
            self.state &= !OVERTAKEN_MAX;
        }
        let free = is_free(self.state, side);
        if free {
            self.state = with(self.state, side);
        }
        free
    }

    /// Queues one that has to wait; one that was woken goes to the front.
    fn queue_up(&mut self, me: &Me, waiter: &Waiter<Note>, side: Side, comes: Comes) {
        // SAFETY: it is in no queue: new, or claimed and so taken out; it stays in place until it was claimed or removed.
        unsafe {
            match comes {
                Comes::Newly => self.queue(side).push(waiter),
                Comes::Woken => self.queue(side).push_first(waiter),
            }
        }
        self.state |= WAITED;
        me.begin_wait(Why::At(match side {
            Side::Reader => At::RwLockRead,
            Side::Writer => At::RwLockWrite,
        }));
    }

    /// Wakes the first writer, or all readers, if the lock is free for them; `false` if it woke none.
    fn admit(&mut self, side: Side, hand: Hand, wakes: &Wakes) -> bool {
        let mut woken = false;
        while is_free(self.state, side)
            && !(woken && side == Side::Writer)
            && let Some(claimed) = self.queue(side).claim_first(|note| note.handed.set(hand == Hand::Over))
        {
            self.state = if hand == Hand::Over { with(self.state, side) } else { self.state | WOKEN };
            wakes.add(claimed);
            woken = true;
        }
        woken
    }

    /// Somebody has left: sees to those whose turn it is, then, if there are none, to the others. They have it, also if they were to try, if one has waited for long.
    fn go_on(mut self, turns: [Side; 2], hand: Hand) {
        let wakes = Wakes::none();
        let hand = if hand == Hand::Over || self.is_due() { Hand::Over } else { Hand::Try };
        // One that is on its way is left to try, unless others have waited for long. While readers are left, they see to it.
        if self.state & OWNERS == 0 && (self.state & WOKEN == 0 || hand == Hand::Over) {
            let woken = self.admit(turns[0], hand, &wakes) || self.admit(turns[1], hand, &wakes);
            if woken && hand == Hand::Over {
                self.handed_ns = clock::now_ns();
                // One that was told to try before, and does not come, is waited for no more: the next unlock wakes others.
                self.state &= !WOKEN;
            }
        }
        self.leave(wakes);
    }

    /// One that waited has given up: it may have been the last writer that readers waited for.
    fn leave_queue(mut self) {
        let wakes = Wakes::none();
        if self.writers.is_empty() {
            self.admit(Side::Reader, Hand::Over, &wakes);
        }
        self.leave(wakes);
    }

    /// Leaves, and wakes those who were told.
    fn leave(mut self, wakes: Wakes) {
        if self.readers.is_empty() && self.writers.is_empty() {
            self.state &= !(WAITED | OVERTAKEN_MAX);
        }
        drop(self);
        wakes.pay();
    }
}
