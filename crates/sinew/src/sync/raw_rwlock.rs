//! The lock under `RwLock`: one word, and two queues for those who find it taken.
//!
//! As with `raw_mutex.rs`, who unlocks lets go, tells some that wait to try, and runs on; others may overtake these for a turn, and queue behind them then (`turns.rs`). After a writer it is the readers that have waited for longer than any other writer, and one at
//! least, after readers the first writer. Until all of them have come the lock is known to be wanted, and each of them has a turn. (It was known until the first had come: whoever ran on the worker of the others, and never had to wait, knew
//! of nobody who does, and kept them from it for 100 ms and more.)
//!
//! If one has waited for `HAND_OVER_NS` all the same, who comes queues, unless it is a reader and no writer waits, and who unlocks hands the lock over, once in `HANDED_NS`: after a writer to all readers that wait, as one batch, else to the next writer; after readers to
//! the writer that has waited longest. A reader that would join others, before a writer that waits, looks at the time at once, since all of them may have the lock for long; who overtakes at a free lock looks once in 32 times. So
//! a writer waits for its patience, those before it, and one batch of readers between each two of them; a reader for its patience, the batch under way and one writer.
//!
//! Those who were told to try and do not come are given up after `STALE_NS`, but by nobody whose own worker they are of: that one keeps them from coming, and lets them run. (It gave them up too: a fiber with sections of 10 us, which nobody else
//! wanted, was alone with the lock from then on, until it waited for something else.) Those who were given up by others are gone, and the lock knows that until they have come: whoever comes to it from a worker of theirs yields, once in 32 times if nobody
//! waits. (It forgot them: after one visit of a thread that fiber was alone with the lock again.)
//!
//! Measured (100 fibers, 2 workers, nine reads to a write): 456 ns per lock if it is always handed over, each of which then costs a switch or a wake of another worker; 9.5 ns, with waits of 50 to 300 ms, where the lock is known to be wanted until the first has come, and nobody queues for another's turn;
//! 13 ns now, with waits of 0.3 ms, 1 to 2 at p99, and 5 at most; std's on 100 threads 23 ns, with waits of 500 ms. If readers are told one by one, each by the one before, 12 ns; but one whose worker is held then keeps all that are behind it from a free lock. Rejected: one queue, with batches of readers that are neighbours in it, and hand-overs: under mixed load
//! the batches are of one.
//!
//! Known limit, which a mutex has no more (`watch.rs`): while the worker of one that was told to try is held, and nobody locks any more, those who queued before it was told wait, though the lock is free. Readers of other workers were told, too; so these are writers, and readers behind
//! them.
//!
//! # Picture of the state
//! ```text
//!   bit 0    WRITER      a writer has it
//!   bit 1    WAITED      a queue is not empty
//!   bit 2    WOKEN       some were told to try; until all have, or were given up, unlocks wake nobody else
//!   3..7     OVERTAKEN   how often those who wait were overtaken since somebody looked at the time
//!   bit 8    GONE        some that were told to try were given up, and have not come yet
//!   9..29    readers that have it
//! ```
//! # Invariants (when nobody is inside)
//! I1. WAITED says whether a queue is not empty; then somebody has the lock, who will look at it when he leaves, or one that was woken is on its way.
//! I2. Who was told to try counts as come in the same step in which it enters, or queues again because another has the lock; the last one takes WOKEN away. So does a hand-over, and who gives them up: they are gone then, with GONE set, and each counts as come in the step in which it enters or queues after all; the last one takes GONE away. So WOKEN says whether
//!     `coming` is not 0, GONE whether `gone` is not 0; and each of those knows by its round which of them it is counted by.

use std::cell::Cell;

use super::monitor::await_wake;
use crate::base::atomic::{AS_IN_MEMORY, in_statics, spin_loop};
use crate::fiber::Claimed;
use crate::fiber::state::Cause;
use crate::fiber::waiters::{Waiter, Waiters};
use crate::fiber::why::{At, Why};
use crate::os::state_lock::{Inside, STATE_MAX, StateLock};
use crate::os::{clock, fork};
use crate::rt::wait::{Me, Wakes, home, may_wait, yield_now};
use crate::sched::worker::passed;
use crate::sync::turns::{COMES_NS, HAND_OVER_NS, NEAR_LOOKS, POLITE_NS, STALE_NS, STAY_NS, TURN_NS};

const WRITER: u32 = 1 << 0;
const WAITED: u32 = 1 << 1;
const WOKEN: u32 = 1 << 2;
const OVERTAKEN: u32 = 1 << 3;
const OVERTAKEN_MAX: u32 = 31 * OVERTAKEN;
const GONE: u32 = 1 << 8;
const READER: u32 = 1 << 9;
const READERS_MAX: u32 = STATE_MAX / READER;
/// Who has the lock.
const OWNERS: u32 = !(WAITED | WOKEN | OVERTAKEN_MAX | GONE);

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
    /// Those who were told to try, and have not come; from when on it counts that they are overtaken; and their home, 0 if they have several.
    coming: usize,
    woken_ns: u64,
    woken_home: usize,
    /// A bit for each of their homes, if they have several (`bit_of`).
    woken_bits: u64,
    /// How often some were given up: those who are told to try from then on are of that round.
    round: u64,
    /// Those who were given up and have not come; and the bits of all homes that they may be of.
    gone: usize,
    gone_bits: u64,
    /// When one of another worker than the unlocker's was last told to.
    moved_ns: u64,
}

/// What is known of a waiter.
struct Note {
    since_ns: u64,
    /// Told by its waker: it has the lock; else it is to try.
    handed: Cell<bool>,
    /// In which round it was told to try.
    round: Cell<u64>,
}

/// Which queue one waits in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
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
    /// It was told to try, and given up since.
    Late,
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
    /// It may have the lock, but keeps one from coming that was given up; or that was told to try, where it would join others and may read already: it is to yield, not to queue.
    LetsThemCome,
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
            Self { lock: StateLock::new(0, Queues { readers: Waiters::new(), writers: Waiters::new(), handed_ns: 0, coming: 0, woken_ns: 0, woken_home: 0, woken_bits: 0, round: 0, gone: 0, gone_bits: 0, moved_ns: 0 }) }
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
    pub(super) fn try_fast(&self, side: Side) -> bool {
        let taken = |state: u32| {
            let overtakes = if state & (WAITED | WOKEN | GONE) == 0 { 0 } else { OVERTAKEN };
            let joins = state & OWNERS != 0 && state & WAITED != 0;
            let may = overtakes == 0 || (!joins && state & OVERTAKEN_MAX < OVERTAKEN_MAX);
            (may && is_free(state, side)).then(|| with(state, side) + overtakes)
        };
        self.lock.change(taken).is_some()
    }

    /// Takes it if it is free, before those who were told to try; if the patience of one who waits is at its end, that one has it first.
    fn try_slowly(&self, side: Side) -> bool {
        while is_free(self.lock.state(), side) {
            let mut inside = self.lock.lock();
            match inside.enter(side, Comes::Passing) {
                Enter::Entered => return true,
                // Nobody has it: after that somebody does, or nobody waits.
                Enter::Due if inside.state & OWNERS == 0 => inside.go_on([Side::Writer, Side::Reader], Hand::Over),
                Enter::Due | Enter::Taken | Enter::NotItsTurn | Enter::LetsThemCome => return false,
            }
        }
        false
    }

    #[cold]
    #[track_caller]
    fn take_slowly(&self, side: Side, deadline_ns: u64) -> bool {
        if self.spin(side) || (!may_wait() && self.try_slowly(side)) {
            return true;
        }
        // In a forked child those who wait, or were told to try, are not there.
        if fork::is_child() && self.lock.change(|state| is_free(state, side).then(|| with(state, side))).is_some() {
            return true;
        }
        let (mut comes, mut has_yielded) = (Comes::Newly, false);
        let me = Me::to_wait();
        let waiter = Waiter::new(me.control(), Note { since_ns: clock::now_ns(), handed: Cell::new(false), round: Cell::new(0) });
        loop {
            let mut inside = self.lock.lock();
            if comes == Comes::Woken && waiter.note.round.get() != inside.round {
                comes = Comes::Late;
            }
            // Who has yielded has let others come, but has not queued before: it gets no place in front.
            match inside.enter(side, if has_yielded && comes == Comes::Newly { Comes::Again } else { comes }) {
                Enter::Entered => return true,
                Enter::Due if inside.state & OWNERS == 0 => {
                    // Whoever was told to try does not come, and others behind it have lost their patience: they have it, and this one looks again.
                    inside.go_on([Side::Writer, Side::Reader], Hand::Over);
                    continue;
                }
                Enter::LetsThemCome => {
                    // If nobody has it, and those who were told to try were given up just now, one that waits is told before this one is away.
                    inside.go_on([Side::Writer, Side::Reader], Hand::Try);
                    yield_now();
                    has_yielded = true;
                    continue;
                }
                Enter::Taken | Enter::NotItsTurn | Enter::Due => {}
            }
            // While one is on its way unlocks wake nobody. If that is not a fiber of this worker, which comes next, it may not come for long.
            let looks_again = inside.state & WOKEN != 0 && !inside.woken_is_of(home());
            inside.queue_up(&me, &waiter, side, comes);
            drop(inside);
            let until_ns = if looks_again { deadline_ns.min(clock::now_ns() + POLITE_NS) } else { deadline_ns };
            let gives_up = Cell::new(false);
            // SAFETY: queued and begun just now, inside, where it is claimed; it is removed from the queue that it was pushed to.
            let cause = unsafe {
                await_wake(&me, &self.lock, until_ns, |mut inside| {
                    inside.queue(side).remove(&waiter);
                    gives_up.set(passed(deadline_ns));
                    if gives_up.get() { inside.leave_queue() } else { inside.leave(Wakes::none()) }
                })
            };
            comes = match cause {
                Cause::Woken if waiter.note.handed.get() => return true,
                Cause::Woken => Comes::Woken,
                _ if gives_up.get() => return false,
                _ => Comes::Again,
            };
        }
    }

    /// Tries for a moment, unless others wait already.
    fn spin(&self, side: Side) -> bool {
        for _ in 0..SPINS {
            if self.lock.state() & (WAITED | WOKEN | GONE) != 0 {
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
        // In a forked child somebody may be inside for ever, and nobody who waits is there.
        if fork::is_child() {
            self.lock.change(|state| Some(state - share));
            return;
        }
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

/// One bit of 64 for each home, and none for a thread, which has no home. If two workers have the same, one of them suspends once in vain.
fn bit_of(home: usize) -> u64 {
    /// Of 2^64 by the golden ratio: neighbours get bits far apart.
    const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;
    if home == 0 { 0 } else { 1 << ((home as u64).wrapping_mul(SCATTER) >> (u64::BITS - u64::BITS.ilog2())) }
}

/// What is done inside.
trait Turns {
    fn queue(&mut self, side: Side) -> &mut Waiters<Note>;
    fn waits_since(&self, side: Side) -> u64;
    fn is_due(&self, side: Side, now_ns: u64) -> bool;
    fn woken_is_of(&self, home: *const ()) -> bool;
    fn keeps_back(&self, comes: Comes) -> bool;
    fn gone_may_be_of(&self, home: *const ()) -> bool;
    fn enter(&mut self, side: Side, comes: Comes) -> Enter;
    fn queue_up(&mut self, me: &Me, waiter: &Waiter<Note>, side: Side, comes: Comes);
    fn hand_over(&mut self, side: Side, wakes: &Wakes) -> bool;
    fn tell(&mut self, side: Side, wakes: &Wakes) -> bool;
    fn note_told(&mut self, claimed: Claimed, wakes: &Wakes);
    fn go_on(self, turns: [Side; 2], hand: Hand);
    fn give_up_told(&mut self);
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

    /// Whether one that waits has done so for long enough, and the last hand-over was a while ago. A reader stands in nobody's way but a writer's.
    fn is_due(&self, side: Side, now_ns: u64) -> bool {
        let (reader_ns, writer_ns) = (self.waits_since(Side::Reader), self.waits_since(Side::Writer));
        let since_ns = if side == Side::Reader && self.writers.is_empty() { u64::MAX } else { reader_ns.min(writer_ns) };
        now_ns.saturating_sub(since_ns) >= HAND_OVER_NS && now_ns.saturating_sub(self.handed_ns) >= HANDED_NS
    }

    /// Whether all who were told to try are fibers of the worker at `home`, where they come next. Threads have no home.
    fn woken_is_of(&self, home: *const ()) -> bool {
        !home.is_null() && self.woken_home == home.addr()
    }

    /// Whether one that was told to try cannot come because the caller's worker is its own. If others were told too, one who comes again has suspended since, and so has let it come.
    fn keeps_back(&self, comes: Comes) -> bool {
        let home = home();
        let is_near = self.woken_is_of(home) || (comes != Comes::Again && self.woken_bits & bit_of(home.addr()) != 0);
        self.state & WOKEN != 0 && is_near
    }

    /// Whether one that was given up may be a fiber of the worker at `home`, and so come when the caller lets it.
    fn gone_may_be_of(&self, home: *const ()) -> bool {
        self.state & GONE != 0 && self.gone_bits & bit_of(home.addr()) != 0
    }

    /// Takes the lock for one who comes, if that is free for him, nobody's patience is at its end, and it is not the turn of one that was told to try.
    fn enter(&mut self, side: Side, comes: Comes) -> Enter {
        debug_assert_eq!((self.state & WOKEN != 0, self.state & GONE != 0), (self.coming > 0, self.gone > 0), "I2");
        if comes == Comes::Woken {
            self.coming -= 1;
            if self.coming == 0 {
                self.state &= !WOKEN;
            } else {
                // Its own turn, before that of the others.
                self.woken_ns = clock::now_ns();
            }
        } else if comes == Comes::Late {
            self.gone -= 1;
            if self.gone == 0 {
                self.state &= !GONE;
            }
        } else if self.state & (WAITED | WOKEN | GONE) != 0 {
            let now_ns = clock::now_ns();
            let overtaken_ns = now_ns.saturating_sub(self.woken_ns);
            let keeps_back = overtaken_ns >= STALE_NS && self.keeps_back(comes);
            // They do not come: the next unlock wakes others. Who only tries lets nobody come, so others that wait are not to wait for that.
            if overtaken_ns >= STALE_NS && !(keeps_back && (comes != Comes::Passing || self.state & WAITED == 0)) {
                self.give_up_told();
            }
            if self.is_due(side, now_ns) {
                return Enter::Due;
            }
            // It may read already, and is not to wait for itself where nobody waits but one that was told to try. (Behind a writer that has queued, who reads already and reads again may wait for ever.)
            let joins = side == Side::Reader && self.state & OWNERS != 0 && self.writers.is_empty();
            if self.state & WOKEN != 0 && overtaken_ns >= TURN_NS && comes != Comes::Passing && !joins {
                return Enter::NotItsTurn;
            }
            let lets_come = (keeps_back && joins) || self.gone_may_be_of(home());
            // Who unwinds is not switched away for the sake of others: std counts panics by thread.
            if lets_come && comes == Comes::Newly && is_free(self.state, side) && !std::thread::panicking() {
                return Enter::LetsThemCome;
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
                Comes::Again | Comes::Woken | Comes::Late => self.queue(side).push_first(waiter),
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

    /// Tells the next writer to try: of the caller's own worker for a while, which costs nothing, then the one that has waited longest. Or readers: all who have waited for longer than any writer, and one at least. `false` if there is
    /// nobody.
    fn tell(&mut self, side: Side, wakes: &Wakes) -> bool {
        let (home, now_ns) = (home(), clock::now_ns());
        debug_assert_eq!(self.coming, 0, "others were told to try, and are expected");
        let round = self.round;
        let tell = |note: &Note| {
            note.handed.set(false);
            note.round.set(round);
        };
        match side {
            Side::Writer => {
                let stays = !home.is_null() && now_ns.saturating_sub(self.moved_ns) < STAY_NS;
                let claimed = if stays { self.writers.claim_near(home, NEAR_LOOKS, tell) } else { self.writers.claim_first(tell) };
                if let Some(claimed) = claimed {
                    self.note_told(claimed, wakes);
                }
            }
            Side::Reader => {
                let writer_ns = self.waits_since(Side::Writer);
                while (self.coming == 0 || self.waits_since(Side::Reader) < writer_ns)
                    && let Some(claimed) = self.readers.claim_first(tell)
                {
                    self.note_told(claimed, wakes);
                }
            }
        }
        if self.coming == 0 {
            return false;
        }
        let near = self.woken_is_of(home);
        if !near {
            self.moved_ns = now_ns;
        }
        self.woken_ns = now_ns + if near { 0 } else { COMES_NS };
        true
    }

    /// One was told to try.
    fn note_told(&mut self, claimed: Claimed, wakes: &Wakes) {
        // SAFETY: blocks are never unmapped, and a home is an atomic.
        let home = unsafe { (*claimed.control).home() }.addr();
        self.woken_bits = bit_of(home) | if self.coming == 0 { 0 } else { self.woken_bits };
        self.woken_home = if self.coming == 0 || self.woken_home == home { home } else { 0 };
        self.coming += 1;
        self.state |= WOKEN;
        wakes.add(claimed);
    }

    /// Those who were told to try and have not come are waited for no more.
    fn give_up_told(&mut self) {
        if self.coming == 0 {
            return;
        }
        self.gone_bits = self.woken_bits | if self.gone == 0 { 0 } else { self.gone_bits };
        self.gone += std::mem::take(&mut self.coming);
        self.round += 1;
        self.state = (self.state & !WOKEN) | GONE;
    }

    /// Somebody has left: sees to those whose turn it is, then, if there are none, to the others. They have it, also if they were to try, if one has waited for long.
    fn go_on(mut self, turns: [Side; 2], hand: Hand) {
        let wakes = Wakes::none();
        // While readers are left, they see to it.
        if self.state & OWNERS == 0 {
            if hand == Hand::Over || self.is_due(Side::Writer, clock::now_ns()) {
                if self.hand_over(turns[0], &wakes) || self.hand_over(turns[1], &wakes) {
                    self.handed_ns = clock::now_ns();
                    // Those who were told to try before, and do not come, are waited for no more: the next unlock wakes others.
                    self.give_up_told();
                }
            } else if self.state & WOKEN == 0 {
                let _told = self.tell(turns[0], &wakes) || self.tell(turns[1], &wakes);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    // The lock is held where the fork is made, as by a thread that is not in the child.
    #[test]
    fn a_forked_child_unlocks_though_the_lock_is_held() {
        if !AS_IN_MEMORY {
            return;
        }
        type Deed = fn(&RawRwLock);
        let ways: [(Deed, Deed); 4] = [
            (RawRwLock::read, RawRwLock::release_read),
            (RawRwLock::write, RawRwLock::release_write),
            (RawRwLock::read, RawRwLock::release_read_fairly),
            (RawRwLock::write, RawRwLock::release_write_fairly),
        ];
        for (take, release) in ways {
            let lock = RawRwLock::unlocked();
            take(&lock);
            let inside = lock.lock.lock();
            assert!(fork::child_does(|| release(&lock)));
            drop(inside);
        }
    }

    // Others wait, which a child does not care for.
    #[test]
    fn a_forked_child_finds_free_what_it_unlocked() {
        if !AS_IN_MEMORY {
            return;
        }
        let lock = RawRwLock::unlocked();
        lock.write();
        lock.lock.change(|state| Some(state | WAITED));
        assert!(fork::child_does(|| {
            lock.release_write();
            assert!(!lock.is_taken());
        }));
    }

    // One that was given up is not there, and never comes.
    #[test]
    fn a_forked_child_locks_what_is_free_again_and_again() {
        if !AS_IN_MEMORY {
            return;
        }
        let lock = RawRwLock::unlocked();
        lock.lock.change(|state| Some(state | GONE));
        assert!(fork::child_does(|| {
            for _ in 0..100 {
                lock.write();
                lock.release_write();
                lock.read();
                lock.release_read();
            }
        }));
    }
}
