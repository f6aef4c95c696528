//! The lock under `RwLock`: one word, and two queues for those who find it taken.
//!
//! As with `raw_mutex.rs`, who unlocks lets go, tells one that waits to try, and runs on; others may overtake that one for a turn, and queue behind it then (`turns.rs`). After a writer it is the first reader that waits, after readers the first
//! writer; and a reader that was told, and has come, tells the next reader, unless a writer has waited for longer: so readers come together, and yet one by one. (All of them at once would be ready, and in no queue: whoever runs on
//! their worker and never has to wait would not know of them, and kept them from it for 100 ms and more.)
//!
//! If one has waited for `HAND_OVER_NS` all the same, who comes queues, and who unlocks hands the lock over, once in `HANDED_NS`: after a writer to all readers that wait, as one batch, else to the next writer; after readers to
//! the writer that has waited longest. A reader that would join others, before a writer that waits, looks at the time at once, since all of them may have the lock for long; who overtakes at a free lock looks once in 32 times. So
//! a writer waits for its patience, those before it, and one batch of readers between each two of them; a reader for its patience, the batch under way and one writer.
//!
//! Measured (100 fibers, 2 workers, nine reads to a write): 456 ns per lock if it is always handed over, each of which then costs a switch or a wake of another worker; 9.3 ns, with waits of 50 to 300 ms, where readers are woken all at once and nobody queues for another's turn;
//! 11.5 ns now, with waits of 0.3 ms, 1 at p99, and 3 at most; std's on 100 threads 23 ns, with waits of 500 ms. 13 ns, and 4 ms for writers, if all readers that waited when a writer left come before the next one. Rejected: one queue, with batches of readers that are neighbours in it, and hand-overs: under mixed load
//! the batches are of one.
//!
//! # Picture of the state
//! ```text
//!   bit 0    WRITER      a writer has it
//!   bit 1    WAITED      a queue is not empty
//!   bit 2    WOKEN       one was told to try; until it has, or was given up, unlocks wake nobody else
//!   3..7     OVERTAKEN   how often those who wait were overtaken since somebody looked at the time
//!   8..29    readers that have it
//! ```
//! # Invariants (when nobody is inside)
//! I1. WAITED says whether a queue is not empty; then somebody has the lock, who will look at it when he leaves, or one that was woken is on its way.
//! I2. Who was told to try takes WOKEN away, in the same step in which it enters, or queues again because another has the lock; so does a hand-over, and who gives it up. Taken away too early it costs a wake that is in vain.

use std::cell::Cell;

use super::monitor::await_wake;
use crate::base::atomic::{AS_IN_MEMORY, in_statics, spin_loop};
use crate::fiber::state::Cause;
use crate::fiber::waiters::{Waiter, Waiters};
use crate::fiber::why::{At, Why};
use crate::os::clock;
use crate::os::state_lock::{Inside, STATE_MAX, StateLock};
use crate::rt::wait::{Me, Wakes, home, may_wait};
use crate::sched::worker::passed;
use crate::sync::turns::{COMES_NS, HAND_OVER_NS, NEAR_LOOKS, POLITE_NS, STALE_NS, STAY_NS, TURN_NS};

const WRITER: u32 = 1 << 0;
const WAITED: u32 = 1 << 1;
const WOKEN: u32 = 1 << 2;
const OVERTAKEN: u32 = 1 << 3;
const OVERTAKEN_MAX: u32 = 31 * OVERTAKEN;
const READER: u32 = 1 << 8;
const READERS_MAX: u32 = STATE_MAX / READER;
/// Who has the lock.
const OWNERS: u32 = !(WAITED | WOKEN | OVERTAKEN_MAX);

/// How long the lock is anybody's between two hand-overs. Without it a hundred fibers that have all lost their patience would do nothing but hand over, at a wake of another worker each, and
/// never gain it again: 2 us per lock instead of 20 ns.
const HANDED_NS: u64 = 50_000;

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
    /// From when on it counts that the one who was told to try is overtaken, and its home.
    woken_ns: u64,
    woken_home: usize,
    /// When one of another worker than the unlocker's was last told to.
    moved_ns: u64,
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
    /// It does not wait, or must not.
    Passing,
    /// It has waited behind one that was told to try, and that has not come.
    Again,
    /// It was told to try.
    Woken,
}

/// What became of one who comes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use]
enum Enter {
    Entered,
    /// Others have it.
    Taken,
    /// It is the turn of the one that was told to try.
    NotItsTurn,
    /// Somebody's patience is at its end.
    Due,
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
            Self { lock: StateLock::new(0, Queues { readers: Waiters::new(), writers: Waiters::new(), handed_ns: 0, woken_ns: 0, woken_home: 0, moved_ns: 0 }) }
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
        inside.hand_over(Side::Reader, &wakes);
        inside.leave(wakes);
    }

    /// Takes it if it is free; before those who wait, if nobody has it and they were not overtaken often.
    #[inline]
    fn try_fast(&self, side: Side) -> bool {
        let taken = |state: u32| {
            let overtakes = if state & (WAITED | WOKEN) == 0 { 0 } else { OVERTAKEN };
            let joins = state & OWNERS != 0 && state & WAITED != 0;
            let may = overtakes == 0 || (!joins && state & OVERTAKEN_MAX < OVERTAKEN_MAX);
            (may && is_free(state, side)).then(|| with(state, side) + overtakes)
        };
        self.lock.change(taken).is_some()
    }

    /// Takes it if it is free and nobody's patience is at its end, which it looks at the time for.
    fn try_slowly(&self, side: Side) -> bool {
        is_free(self.lock.state(), side) && self.lock.lock().enter(side, Comes::Passing) == Enter::Entered
    }

    #[cold]
    #[track_caller]
    fn take_slowly(&self, side: Side, deadline_ns: u64) -> bool {
        if self.spin(side) || (!may_wait() && self.try_slowly(side)) {
            return true;
        }
        let mut comes = Comes::Newly;
        let me = Me::to_wait();
        let waiter = Waiter::new(me.control(), Note { since_ns: clock::now_ns(), handed: Cell::new(false) });
        loop {
            let mut inside = self.lock.lock();
            let entered = inside.enter(side, comes);
            match entered {
                Enter::Entered => {
                    if comes == Comes::Woken && side == Side::Reader {
                        inside.pass_on();
                    }
                    return true;
                }
                Enter::Due if inside.state & OWNERS == 0 => {
                    // Whoever was told to try does not come, and others behind it have lost their patience: they have it, and this one looks again.
                    inside.go_on([Side::Writer, Side::Reader], Hand::Over);
                    continue;
                }
                Enter::Taken | Enter::NotItsTurn | Enter::Due => {}
            }
            // Another worker may not come for long; a fiber of this one comes next.
            let looks_again = entered == Enter::NotItsTurn && is_free(inside.state, side) && !inside.woken_is_of(home());
            inside.queue_up(&me, &waiter, side, comes);
            drop(inside);
            let until_ns = if looks_again { deadline_ns.min(clock::now_ns() + POLITE_NS) } else { deadline_ns };
            // SAFETY: queued and begun just now, inside, where it is claimed; it is removed from the queue that it was pushed to.
            let cause = unsafe {
                await_wake(&me, &self.lock, until_ns, |mut inside| {
                    inside.queue(side).remove(&waiter);
                    inside.leave_queue();
                })
            };
            comes = match cause {
                Cause::Woken if waiter.note.handed.get() => return true,
                Cause::Woken => Comes::Woken,
                _ if passed(deadline_ns) => return false,
                _ => Comes::Again,
            };
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
    fn waits_since(&self, side: Side) -> u64;
    fn is_due(&self, now_ns: u64) -> bool;
    fn woken_is_of(&self, home: *const ()) -> bool;
    fn enter(&mut self, side: Side, comes: Comes) -> Enter;
    fn queue_up(&mut self, me: &Me, waiter: &Waiter<Note>, side: Side, comes: Comes);
    fn hand_over(&mut self, side: Side, wakes: &Wakes) -> bool;
    fn tell_one(&mut self, side: Side, wakes: &Wakes) -> bool;
    fn go_on(self, turns: [Side; 2], hand: Hand);
    fn pass_on(self);
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

    /// Since when the first of a queue waits; `u64::MAX` if nobody does.
    fn waits_since(&self, side: Side) -> u64 {
        let queue = match side {
            Side::Reader => &self.readers,
            Side::Writer => &self.writers,
        };
        queue.first().map_or(u64::MAX, |first| first.note.since_ns)
    }

    /// Whether one that waits has done so for long enough, and the last hand-over was a while ago.
    fn is_due(&self, now_ns: u64) -> bool {
        let since_ns = self.waits_since(Side::Reader).min(self.waits_since(Side::Writer));
        now_ns.saturating_sub(since_ns) >= HAND_OVER_NS && now_ns.saturating_sub(self.handed_ns) >= HANDED_NS
    }

    /// Whether the one that was last told to try is a fiber of the worker at `home`, where it comes next. Threads have no home.
    fn woken_is_of(&self, home: *const ()) -> bool {
        !home.is_null() && self.woken_home == home.addr()
    }

    /// Takes the lock for one who comes, if that is free for him, nobody's patience is at its end, and it is not the turn of one that was told to try.
    fn enter(&mut self, side: Side, comes: Comes) -> Enter {
        if comes == Comes::Woken {
            self.state &= !WOKEN;
        } else if self.state & (WAITED | WOKEN) != 0 {
            let now_ns = clock::now_ns();
            if self.is_due(now_ns) {
                return Enter::Due;
            }
            let overtaken_ns = now_ns.saturating_sub(self.woken_ns);
            if self.state & WOKEN != 0 && overtaken_ns >= STALE_NS {
                // It does not come: the next unlock wakes another.
                self.state &= !WOKEN;
            } else if self.state & WOKEN != 0 && overtaken_ns >= TURN_NS && comes != Comes::Passing {
                return Enter::NotItsTurn;
            }
            self.state &= !OVERTAKEN_MAX;
        }
        if !is_free(self.state, side) {
            return Enter::Taken;
        }
        self.state = with(self.state, side);
        Enter::Entered
    }

    /// Queues one that has to wait; one that has done so before goes to the front.
    fn queue_up(&mut self, me: &Me, waiter: &Waiter<Note>, side: Side, comes: Comes) {
        // SAFETY: it is in no queue: new, or claimed or removed and so taken out; it stays in place until it was claimed or removed.
        unsafe {
            match comes {
                Comes::Newly | Comes::Passing => self.queue(side).push(waiter),
                Comes::Again | Comes::Woken => self.queue(side).push_first(waiter),
            }
        }
        self.state |= WAITED;
        me.begin_wait(Why::At(match side {
            Side::Reader => At::RwLockRead,
            Side::Writer => At::RwLockWrite,
        }));
    }

    /// Gives the lock to the first writer, or to all readers, if it is free for them; `false` if it was given to none.
    fn hand_over(&mut self, side: Side, wakes: &Wakes) -> bool {
        let mut handed = false;
        while is_free(self.state, side)
            && !(handed && side == Side::Writer)
            && let Some(claimed) = self.queue(side).claim_first(|note| note.handed.set(true))
        {
            self.state = with(self.state, side);
            wakes.add(claimed);
            handed = true;
        }
        handed
    }

    /// Tells one of a queue to try: of the caller's own worker for a while, which costs nothing, then the one that has waited longest; `false` if there is none.
    fn tell_one(&mut self, side: Side, wakes: &Wakes) -> bool {
        let (home, now_ns) = (home(), clock::now_ns());
        let stays = !home.is_null() && now_ns.saturating_sub(self.moved_ns) < STAY_NS;
        let tell = |note: &Note| note.handed.set(false);
        let queue = self.queue(side);
        let claimed = if stays { queue.claim_near(home, NEAR_LOOKS, tell) } else { queue.claim_first(tell) };
        let Some(claimed) = claimed else { return false };
        // SAFETY: blocks are never unmapped, and a home is an atomic.
        self.woken_home = unsafe { (*claimed.control).home() }.addr();
        let near = self.woken_is_of(home);
        if !near {
            self.moved_ns = now_ns;
        }
        self.woken_ns = now_ns + if near { 0 } else { COMES_NS };
        self.state |= WOKEN;
        wakes.add(claimed);
        true
    }

    /// Somebody has left: sees to those whose turn it is, then, if there are none, to the others. They have it, also if they were to try, if one has waited for long.
    fn go_on(mut self, turns: [Side; 2], hand: Hand) {
        let wakes = Wakes::none();
        // While readers are left, they see to it.
        if self.state & OWNERS == 0 {
            if hand == Hand::Over || self.is_due(clock::now_ns()) {
                if self.hand_over(turns[0], &wakes) || self.hand_over(turns[1], &wakes) {
                    self.handed_ns = clock::now_ns();
                    // One that was told to try before, and does not come, is waited for no more: the next unlock wakes others.
                    self.state &= !WOKEN;
                }
            } else if self.state & WOKEN == 0 {
                let _told = self.tell_one(turns[0], &wakes) || self.tell_one(turns[1], &wakes);
            }
        }
        self.leave(wakes);
    }

    /// A reader has come that was told to: so does the next one, unless a writer has waited for longer.
    fn pass_on(mut self) {
        let wakes = Wakes::none();
        if self.state & WOKEN == 0 && self.waits_since(Side::Reader) < self.waits_since(Side::Writer) {
            self.tell_one(Side::Reader, &wakes);
        }
        self.leave(wakes);
    }

    /// One that waited has given up: it may have been the last writer that readers waited for.
    fn leave_queue(mut self) {
        let wakes = Wakes::none();
        if self.writers.is_empty() {
            self.hand_over(Side::Reader, &wakes);
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
