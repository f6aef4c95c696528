//! The lock under `Mutex`: one word, and a queue for those who find it taken.
//!
//! Who unlocks lets go, wakes one that waits, and runs on; the woken one tries like any other. So a fiber that locks again and again pays nothing for those who wait while they are on their
//! way, and the lock is not held by somebody who sleeps. That alone would let a busy fiber overtake a waiter for ever. Hence three rules more:
//!
//! - Who would lock although one was woken `TURN_NS` ago and still has not had its turn, queues behind all others. The woken one may be a fiber of the same worker, and cannot run before.
//!   But if it has not come after `STALE_NS`, its worker is busy with something else: others go on, and the unlock of who took it then wakes another; and who queued behind it, though the lock was free, tries again.
//!   Only one of the caller's own worker is never given up: nothing else holds that worker but the caller, who queues behind it, however long ago it was woken. (It was given up too: a fiber that computed for 0.3 ms under the lock was alone with it from
//!   then on, until it waited for something else.) Others may give it up; then the word says that one is gone and has not come yet (GONE), and who comes to the lock from its worker yields once before it goes on, so that it
//!   comes. (The word forgot it: one visit of a thread, and the fiber that computes was alone with the lock again.)
//! - Who was woken and finds the lock taken, after it has waited for `HAND_OVER_NS`, is given it by the next unlock.
//! - Of the waiters the first of the unlocker's own worker is woken, which costs nothing, for `STAY_NS`; then the one that has waited longest, which most often is another worker's.
//!
//! Measured (100 fibers, 2 workers, an increment under the lock, as `rivals run --workload mutex-100`), while the rules were found: the first two sentences alone 17-21 ns per lock, waits of up to 39 ms; with the first rule 35-60 ns
//! (each turn wakes another worker, which takes 25 us), with all of them 7-25 ns; 8-10 since lock and unlock are one exchange each where others wait, 7-7.7 since the word is guessed and not looked at before it (a free lock 5.0 -> 4.9; std 4.48), 7.0-7.2 since a lock that seems free is taken by its bit alone (4.90 -> 4.47).
//! A wait is that for the turns of those who came before (`turns.rs`), as long as the system lets both workers run; one that it stops for some ms makes it that long.
//! On threads: std's mutex 16-20 ns, parking_lot's 7-8, with waits of some hundred ms. (All of AMD machines.)
//! Rejected: to hand over always (bthread's and tokio's way): each lock of a contended mutex then costs a switch, or a wake of another worker.
//!
//! If the worker of the woken one is held, and nobody locks any more, those who queued look themselves: while one is expected, a waiter of another worker, or thread, has an alarm (`watch.rs`), and gives the woken one up. What a held
//! worker costs others at a free lock is so `LOOK_NS` at most, most often `LOST_NS`, for each of its waiters that is woken; longer if the one that looks is of a worker that is held too, or if the first `NEAR_LOOKS` in the queue are all of the held one.
//! One that was given the lock (`HAND`) and whose worker is held has it: that is not free.
//!
//! # Picture
//! ```text
//!   LOCKED    somebody has it
//!   WAITERS   the queue is not empty
//!   WOKEN     one was taken out of the queue and told to try; until it has decided, or was given up, unlocks wake nobody else
//!   HAND      the first in the queue has waited long enough: the next unlock gives it the lock
//!   GONE      some that were told to try were given up, and have not come yet
//! ```
//!
//! # Invariants
//! I1. WAITERS and HAND change under the queue's lock only. When that is free, WAITERS says whether the queue is empty, and HAND is not set without it.
//! I2. HAND implies LOCKED: it is set beside LOCKED, and an unlock that finds it does not take LOCKED away unless it takes HAND away.
//! I3. Who was told to try takes WOKEN away, in the same step in which it locks, finds LOCKED (whose owner will look at WAITERS), or queues again; or another does for it, that has given it up and locks, or queues again beside LOCKED,
//!     and sets GONE for it. One that was given up and comes after all leaves the WOKEN of its successor alone (I7). So with WAITERS there is always
//!     somebody to come: an owner who will unlock, or one who was woken. A woken thread may come before the unlock that woke it is done; hence that takes LOCKED away only beside a WOKEN that is still there.
//!     Who is called to look (`Told::Watch`) is out of the queue as the woken one is, but WOKEN is not its: it queues again, or takes a lock that is free and expects nobody.
//! I4. The last step of an unlock on this object is the one that lets others in; the woken fiber is made ready after it. So the mutex may be freed by the next owner.
//! I5. `left` has neither LOCKED nor HAND, and is 0, or GONE alone, or has WOKEN: so whenever the word is the same beside LOCKED, the owner may let go by taking LOCKED away.
//! I6. When LOCKED is taken away, `left` is what the word is then; and while it is free nobody adds WOKEN or GONE. So who finds `left` 0 and then the lock free, though one was told to try, or is gone, has looked before the last unlock: it overtakes once
//!     at most before its own unlock sets that right.
//! I7. WOKEN is set, turns into GONE, and is taken away beside GONE, under the queue's lock only. When that is free, GONE says whether `gone` counts anybody: those whose ticket is not the queue's any more, until each has come, by locking, queueing or
//!     leaving. So without GONE a WOKEN is that of whoever was told to try, and with it that one's whose ticket is the queue's; and nobody is told while another is expected.
//!
//! # Memory order
//! Taking LOCKED is Acquire and meets the Release that took it away: the next owner sees what the last one wrote. A hand-over goes through the waiter's state word (`state.rs`).

use std::cell::Cell;
use std::sync::atomic as plain;

use crate::base::atomic::{AS_IN_MEMORY, Acquire, AtomicU32, Relaxed, Release, in_statics, spin_loop};
use crate::fiber::Claimed;
use crate::fiber::state::{Begin, Cause, Ends};
use crate::fiber::waiters::{Waiter, Waiters};
use crate::fiber::why::{At, Why};
use crate::os::lock::Lock;
use crate::os::{clock, fork};
use crate::rt::wait::{Me, home, may_wait, yield_now};
use crate::sched::worker::{make_ready, passed};
use crate::sync::turns::{COMES_NS, HAND_OVER_NS, LOOK_NS, LOST_NS, NEAR_LOOKS, POLITE_NS, STALE_NS, STAY_NS, TURN_NS};
use crate::sync::watch::{Place, Watch};

const LOCKED: u32 = 1 << 0;
const WAITERS: u32 = 1 << 1;
const WOKEN: u32 = 1 << 2;
const HAND: u32 = 1 << 3;
const GONE: u32 = 1 << 4;
const FLAGS: u32 = LOCKED | WAITERS | WOKEN | HAND | GONE;
/// Beside WOKEN: how often the woken one was overtaken, and from when on that counts: 19 bits of ticks of 2 us, which come round after 1 s.
const OVERTAKEN: u32 = 1 << 5;
const OVERTAKEN_MASK: u32 = 0xff << 5;
/// Too often to count further: back to half of it, at which the clock is looked at.
const MANY_TIMES: u32 = WOKEN | OVERTAKEN_MASK;
const SINCE_SHIFT: u32 = 13;
const TICK_NS_LOG2: u32 = 11;

/// Looks at a taken lock before queueing: longer than a short critical section, shorter than a suspension. None in the models, so that they queue.
const SPINS: u32 = if AS_IN_MEMORY { 20 } else { 0 };

/// What a waiter is told by its waker.
pub(crate) struct Note {
    since_ns: u64,
    told: Cell<Told>,
    /// The queue's when it was told to try.
    ticket: Cell<u64>,
    /// Where it has queued.
    place: Cell<Place>,
    /// Whether it has a place in `Queue::watch`. Written under the queue's lock by whoever waits; who claims it takes the place away, and does not touch this.
    watches: Cell<bool>,
}

/// What one is told that is woken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// To try.
    Try,
    /// It owns the lock.
    Has,
    /// To look after another that was told to try: it has a place in `Queue::watch`.
    Watch,
}

/// The lock under [`Mutex`](super::Mutex), for use with the types of the `lock_api` crate: guards that own an `Arc` of their mutex, say, by its feature `arc_lock`.
pub struct RawMutex {
    word: AtomicU32,
    /// What the word is most likely to be while nobody has the lock: 0, or that of a lock which others were told to try and are overtaken at (I5). Written by the owner. It orders nothing and a wrong guess is
    /// harmless, so it is std's, which models do not look at.
    left: plain::AtomicU32,
    queue: Lock<Queue>,
}

/// Those who wait.
pub(crate) struct Queue {
    waiters: Waiters<Note>,
    /// When one of another worker than the unlocker's was last woken.
    moved_ns: u64,
    /// The place of the one that was last woken.
    woken: Place,
    /// That of the one that was last woken, until it is given up (I7).
    ticket: u64,
    gone: Gone,
    watch: Watch,
}

/// Those who were given up and have not come yet.
struct Gone {
    count: u32,
    /// Where they are; `Place::NO` if in several places, which is near to everybody: until all have come, that costs a yield.
    place: Place,
}

impl Queue {
    /// Whether the one that was last woken is a fiber of the worker at `home`, where it comes next. Threads have no home.
    fn woken_is_of(&self, home: *const ()) -> bool {
        !home.is_null() && self.woken == Place::at(home)
    }

    /// Whether one was woken and does not come, by what the word is, `word`; and is not of the caller's own worker.
    fn has_lost_the_woken(&self, word: u32) -> bool {
        word & WOKEN != 0 && is_too_long(ticks_since(word)) && !self.woken_is_of(home())
    }

    /// Whether some who were given up are, or may be, fibers of the worker at `home`.
    fn gone_are_of(&self, home: *const ()) -> bool {
        self.gone.count > 0 && [Place::NO, Place::at(home)].contains(&self.gone.place)
    }

    /// The one that was last woken is given up. The word says GONE, not WOKEN.
    fn note_given_up(&mut self) {
        self.ticket += 1;
        self.gone.place = if self.gone.count == 0 || self.gone.place == self.woken { self.woken } else { Place::NO };
        self.gone.count += 1;
    }

    /// What `waiter`, which was told to try and has come, leaves of the word: WOKEN is not there any more; if it was given up, GONE, unless others are gone too.
    fn left_by_woken(&self, waiter: &Waiter<Note>) -> u32 {
        match self.gone.count {
            _ if !self.has_given_up(waiter) => FLAGS & !WOKEN,
            1 => !GONE,
            _ => !0,
        }
    }

    /// Whether `waiter`, which was told to try, was given up, and has not come since.
    fn has_given_up(&self, waiter: &Waiter<Note>) -> bool {
        waiter.note.ticket.get() != self.ticket
    }

    /// `waiter`, which was told to try, has come.
    fn note_come(&mut self, waiter: &Waiter<Note>) {
        if self.has_given_up(waiter) {
            self.gone.count -= 1;
        }
    }

    /// Calls one that is to look whether the one that was last woken comes, if nobody does who could. Its waker makes it ready without the lock.
    fn call_watch(&mut self) -> Option<Claimed> {
        self.watch.call(self.woken, [&mut self.waiters], |note| note.told.set(Told::Watch))
    }

    /// Notes where `waiter` queues, the caller's, and whether it is to look after a while: behind a woken one, so that nobody looks after a lock that is rightly taken. The word is `word`.
    fn note_queued(&mut self, me: &Me, waiter: &Waiter<Note>, turn: Turn, word: u32) {
        self.stop_watching(waiter);
        let (place, alone) = (Place::of(me.control()), self.waiters.is_empty());
        waiter.note.place.set(place);
        self.watch.note_queued(place, alone);
        let looks = word & WOKEN != 0
            && match turn {
                // One that may move is bound by an alarm: only if nobody else would look.
                Turn::Any | Turn::AfterTheWoken => me.stays() || self.watch.wants(self.woken),
                // A woken one was given up, if another is expected.
                Turn::Again | Turn::Woken => true,
            };
        waiter.note.watches.set(looks && self.watch.take(place));
    }

    /// `waiter`, the caller's, does not look any more.
    fn stop_watching(&mut self, waiter: &Waiter<Note>) {
        if waiter.note.watches.replace(false) {
            self.watch.leave(waiter.note.place.get());
        }
    }
}

/// Whose turn it is to have the lock, in the eyes of one that wants it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Who comes first.
    Any,
    /// That of another, which was woken and has been overtaken for a while; the caller queues, though the lock may be free.
    AfterTheWoken,
    /// As `AfterTheWoken`, but the caller has waited already, and goes before all but one that is to be given the lock.
    Again,
    /// The caller's, who was told to try.
    Woken,
}

/// What ends a wait for the lock but a turn, or its time.
#[derive(Clone, Copy)]
enum Heeds {
    Nothing,
    Cancel,
}

/// What became of one that wanted to queue.
enum QueueUp {
    Queued,
    /// It was free, but it is the turn of a fiber of another worker, or of a thread.
    QueuedThoughFree,
    /// The caller heeds a cancel, which has come.
    QueuedInVain,
    /// The lock was free after all.
    Locked,
}

impl RawMutex {
    in_statics! {
        pub(crate) const fn unlocked() -> Self {
            Self { word: AtomicU32::new(0), left: plain::AtomicU32::new(0), queue: Lock::new(Queue { waiters: Waiters::new(), moved_ns: 0, woken: Place::NO, ticket: 0, gone: Gone { count: 0, place: Place::NO }, watch: Watch::new() }) }
        }
    }

    /// Takes it by one exchange, free or overtaking those who wait, if that needs no thought. The word is guessed, not looked at: a load behind an exchange of the same word waits for it.
    #[inline]
    #[track_caller]
    pub(crate) fn take(&self) {
        let guess = self.left.load(Relaxed);
        if guess != 0 {
            return self.take_as_guessed(guess);
        }
        // LOCKED alone is set and looked at, which is less than to compare the word (`bts`). Beside WOKEN, if the guess was old, that overtakes once without a count (I6). Acquire: meets the Release of an unlock.
        if self.word.fetch_or(LOCKED, Acquire) & LOCKED != 0 {
            self.take_slowly(u64::MAX, Heeds::Nothing);
        }
    }

    /// As `take`, where others were told to try.
    #[inline]
    #[track_caller]
    fn take_as_guessed(&self, guess: u32) {
        let Some(taken) = taken_at_once(guess) else { return self.take_contended(guess) };
        // Acquire: meets the Release of an unlock.
        match self.word.compare_exchange(guess, taken, Acquire, Relaxed) {
            Ok(_) => self.left.store(taken & !LOCKED, Relaxed),
            Err(seen) => self.take_contended(seen),
        }
    }

    /// As `take`, with what the word was found to be.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn take_contended(&self, seen: u32) {
        if let Some(taken) = taken_at_once(seen)
            // Acquire: meets the Release of an unlock.
            && self.word.compare_exchange(seen, taken, Acquire, Relaxed).is_ok()
        {
            self.guess(taken);
        } else {
            self.take_slowly(u64::MAX, Heeds::Nothing);
        }
    }

    /// Notes what the word will be when nobody has the lock, if it is `word` now (I5). By the owner.
    #[inline]
    fn guess(&self, word: u32) {
        let left = match word & (WAITERS | WOKEN | HAND) {
            0 => word & GONE,
            flags if flags & (WOKEN | HAND) == WOKEN => word & !LOCKED,
            _ => 0,
        };
        self.left.store(left, Relaxed);
    }

    /// As `take`, but gives up at `deadline_ns`.
    #[track_caller]
    pub(crate) fn take_until(&self, deadline_ns: u64) -> bool {
        self.try_take_free() || self.take_slowly(deadline_ns, Heeds::Nothing)
    }

    /// As `take_until`, but gives up for a cancel too.
    #[track_caller]
    pub(super) fn take_unless_cancelled(&self, deadline_ns: u64) -> bool {
        self.try_take_free() || self.take_slowly(deadline_ns, Heeds::Cancel)
    }

    #[inline]
    pub(crate) fn try_take(&self) -> bool {
        self.try_take_free()
            || (overtaken_ticks(self.word.load(Relaxed)).is_some_and(is_too_long) && self.take_from_the_lost())
            || self.overtake()
    }

    /// Takes it if nobody has it or waits for it.
    #[inline]
    pub(super) fn try_take_free(&self) -> bool {
        // The look spares those who wait for each other an exchange that is in vain. Acquire: meets the Release of an unlock.
        self.word.load(Relaxed) == 0 && self.word.compare_exchange(0, LOCKED, Acquire, Relaxed).is_ok()
    }

    /// Takes it, if nobody has it, before those who wait.
    #[cold]
    fn overtake(&self) -> bool {
        let counted = |now: u32| match now & (WOKEN | OVERTAKEN_MASK) {
            count if count & WOKEN == 0 => now,
            MANY_TIMES => now ^ (OVERTAKEN_MASK & (OVERTAKEN_MASK >> 1)),
            _ => now + OVERTAKEN,
        };
        self.take_with(counted).is_some()
    }

    /// Takes it, if nobody has it, though one was woken, which does not come: that counts as woken no more, so this owner's unlock wakes another.
    #[cold]
    fn take_from_the_lost(&self) -> bool {
        // In a forked child the queue may be locked for ever.
        if self.word.load(Relaxed) & (LOCKED | WOKEN) != WOKEN || fork::is_child() {
            return false;
        }
        // While it is held nobody else is woken: so the one that is given up is the one that was looked at (I7).
        let mut queue = self.queue.lock();
        if !queue.has_lost_the_woken(self.word.load(Relaxed)) {
            return false;
        }
        // It may have come meanwhile.
        let found = self.take_with(|now| if now & WOKEN == 0 { now } else { given_up(now) });
        if found.is_some_and(|found| found & WOKEN != 0) {
            queue.note_given_up();
        }
        found.is_some()
    }

    /// Takes it, if nobody has it, and makes the word what `next` makes of it, beside LOCKED; gives what it was.
    #[inline]
    fn take_with(&self, next: impl Fn(u32) -> u32) -> Option<u32> {
        let mut now = self.word.load(Relaxed);
        while now & LOCKED == 0 {
            // Acquire: meets the Release of an unlock.
            match self.word.compare_exchange_weak(now, next(now) | LOCKED, Acquire, Relaxed) {
                Ok(_) => return Some(now),
                Err(other) => now = other,
            }
        }
        None
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.word.load(Relaxed) & LOCKED != 0
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        self.word.load(Relaxed) & WAITERS != 0
    }

    /// Lets go. By the owner.
    #[inline]
    pub(crate) fn release(&self) {
        let free = self.left.load(Relaxed);
        // Release: meets the Acquire of who locks next. The last touch (I4).
        if let Err(seen) = self.word.compare_exchange(free | LOCKED, free, Release, Relaxed) {
            self.release_contended(seen);
        }
    }

    /// As `release`, with what the word was found to be.
    #[cold]
    #[inline(never)]
    fn release_contended(&self, seen: u32) {
        self.guess(seen);
        // Release: meets the Acquire of who locks next. The last touch (I4).
        let done = (seen & !GONE == LOCKED || seen & (WOKEN | HAND) == WOKEN)
            && self.word.compare_exchange(seen, seen & !LOCKED, Release, Relaxed).is_ok();
        if !done {
            self.release_slowly();
        }
    }

    /// Lets go in favour of the one that has waited longest. By the owner.
    pub(crate) fn release_fair(&self) {
        // Acquire would be needed by nobody: the queue is read under its lock.
        if self.word.load(Relaxed) & WAITERS == 0 || fork::is_child() || !self.wake_first(Hand::Over) {
            self.release();
        }
    }

    #[cold]
    #[track_caller]
    fn take_slowly(&self, mut deadline_ns: u64, heeds: Heeds) -> bool {
        if self.keeps_back_the_gone() {
            yield_now();
        }
        let overtaken_for = overtaken_ticks(self.word.load(Relaxed));
        let late = overtaken_for.is_some_and(is_too_long);
        let near = late && self.woken_is_near();
        let unfair = near || overtaken_for.is_some_and(is_unfair);
        // In a forked child nobody comes.
        let mut turn = if unfair && may_wait() && !fork::is_child() { Turn::AfterTheWoken } else { Turn::Any };
        if turn == Turn::Any && ((late && self.take_from_the_lost()) || self.spin()) {
            return true;
        }
        let me = Me::to_wait();
        let waiter = Waiter::new(
            me.control(),
            Note {
                since_ns: clock::now_ns(),
                told: Cell::new(Told::Try),
                ticket: Cell::new(0),
                place: Cell::new(Place::NO),
                watches: Cell::new(false),
            },
        );
        loop {
            let until_ns = match self.queue_up(&me, &waiter, turn, heeds) {
                QueueUp::Locked => return true,
                QueueUp::Queued if !waiter.note.watches.get() => deadline_ns,
                QueueUp::Queued if turn == Turn::Again => deadline_ns.min(clock::now_ns() + LOST_NS),
                QueueUp::Queued => deadline_ns.min(clock::now_ns() + LOOK_NS),
                QueueUp::QueuedThoughFree => deadline_ns.min(clock::now_ns() + POLITE_NS),
                // As if its time were up: so it leaves as any other, whatever it was told before.
                QueueUp::QueuedInVain => {
                    deadline_ns = 0;
                    deadline_ns
                }
            };
            // SAFETY: queued and begun just now, under the queue's lock, under which it is claimed.
            let cause = unsafe { me.wait_at(&self.queue, until_ns, |queue| self.withdraw(queue, &waiter)) };
            turn = match (cause, waiter.note.told.get()) {
                (Cause::Woken, Told::Has) => return true,
                (Cause::Woken, Told::Try) => Turn::Woken,
                (Cause::Woken, Told::Watch) => Turn::Again,
                _ if self.take_from_the_lost() => {
                    self.stay_here(&waiter);
                    return true;
                }
                _ if cause == Cause::Cancelled || passed(deadline_ns) => {
                    self.leave_the_watch(&waiter);
                    return false;
                }
                _ => Turn::Again,
            };
            // A claim has taken its place away, or given it one.
            if cause == Cause::Woken {
                waiter.note.watches.set(turn == Turn::Again);
            }
            if turn == Turn::Again {
                continue;
            }
            if self.try_as_woken() {
                return true;
            }
            if passed(deadline_ns) {
                return self.leave_as_woken(&waiter);
            }
        }
    }

    /// The caller has the lock, since the one that was woken does not come. Its worker is not held, and others of it are preferred for a while.
    fn stay_here(&self, waiter: &Waiter<Note>) {
        let mut queue = self.queue.lock();
        queue.stop_watching(waiter);
        queue.moved_ns = clock::now_ns();
    }

    /// The caller has waited for long enough, and is in no queue any more; if it was the one that looked, and another is expected still, the next does.
    fn leave_the_watch(&self, waiter: &Waiter<Note>) {
        if !waiter.note.watches.get() {
            return;
        }
        let mut queue = self.queue.lock();
        queue.stop_watching(waiter);
        // Without WOKEN somebody has the lock, and sees to it when he unlocks; as with HAND.
        let called = if self.word.load(Relaxed) & (WOKEN | HAND) == WOKEN { queue.call_watch() } else { None };
        self.note_empty(&queue);
        drop(queue);
        if let Some(called) = called {
            make_ready(called);
        }
    }

    /// Whether one that was given up cannot come because the caller's worker is its own, and the caller may let it. Who unwinds is not switched away for the sake of others: std counts panics by thread.
    #[cold]
    fn keeps_back_the_gone(&self) -> bool {
        // In a forked child the queue may be locked for ever, and nobody comes.
        if self.word.load(Relaxed) & GONE == 0 || !may_wait() || std::thread::panicking() || fork::is_child() {
            return false;
        }
        let home = home();
        !home.is_null() && self.queue.lock().gone_are_of(home)
    }

    /// Whether the one that was woken is a fiber of the caller's own worker: it comes as soon as the caller suspends, and not before.
    #[cold]
    fn woken_is_near(&self) -> bool {
        let home = home();
        !home.is_null() && self.queue.lock().woken_is_of(home)
    }

    /// Tries at least once, and for a moment if nobody waits yet.
    fn spin(&self) -> bool {
        for look in 0..=SPINS {
            if look > 0 {
                spin_loop();
            }
            if self.overtake() {
                return true;
            }
            if self.word.load(Relaxed) & WAITERS != 0 {
                return false;
            }
        }
        false
    }

    /// Queues the caller, which waits from then on; or takes the lock, if it is free by now. One that was woken goes to the front, and asks for the lock if it has waited long enough.
    fn queue_up(&self, me: &Me, waiter: &Waiter<Note>, turn: Turn, heeds: Heeds) -> QueueUp {
        let mut queue = self.queue.lock();
        let mut asks = WAITERS;
        if turn == Turn::Woken && has_waited_long(&waiter.note) {
            asks |= HAND;
        }
        let mut now = self.word.load(Relaxed);
        let (queued, word) = loop {
            let free = now & LOCKED == 0 && !(matches!(turn, Turn::AfterTheWoken | Turn::Again) && now & WOKEN != 0);
            // One that is lost while the lock is rightly taken is given up too: its owner sees to the rest when he unlocks, and nobody need look any more.
            let gives_up = turn == Turn::Again && now & LOCKED != 0 && queue.has_lost_the_woken(now);
            let taken = if free { now | LOCKED } else { now | asks };
            let next = match turn {
                Turn::Woken => taken & queue.left_by_woken(waiter),
                _ if gives_up => given_up(taken),
                _ => taken,
            };
            // Acquire: as in `try_take`, if it was free.
            if let Err(other) = self.word.compare_exchange_weak(now, next, Acquire, Relaxed) {
                now = other;
                continue;
            }
            if turn == Turn::Woken {
                queue.note_come(waiter);
            } else if gives_up {
                queue.note_given_up();
            }
            if free {
                queue.stop_watching(waiter);
                return QueueUp::Locked;
            }
            let rightly = now & LOCKED != 0 || queue.woken_is_of(home());
            break (if rightly { QueueUp::Queued } else { QueueUp::QueuedThoughFree }, next);
        };
        queue.note_queued(me, waiter, turn, word);
        // SAFETY: it is in no queue: new, or claimed and so taken out; it stays in place until it was claimed or withdrawn.
        unsafe {
            if turn == Turn::Woken || (turn == Turn::Again && word & HAND == 0) {
                queue.waiters.push_first(waiter)
            } else {
                queue.waiters.push(waiter)
            }
        };
        if matches!(heeds, Heeds::Cancel) {
            me.control().note_why(Why::At(At::Mutex));
            if me.control().state.begin(Ends::BY_CLAIM.or_cancel()) == Begin::Wait {
                return queued;
            }
        }
        me.begin_wait(Why::At(At::Mutex));
        if matches!(heeds, Heeds::Cancel) { QueueUp::QueuedInVain } else { queued }
    }

    /// The wait was cut short: takes the waiter out, if nobody has.
    fn withdraw(&self, queue: &mut Queue, waiter: &Waiter<Note>) {
        // SAFETY: it was pushed to this queue.
        unsafe { queue.waiters.remove(waiter) };
        self.note_empty(queue);
    }

    /// Takes WAITERS away, and HAND, if nobody is left in the queue (I1).
    fn note_empty(&self, queue: &Queue) {
        if queue.waiters.is_empty() {
            self.word.fetch_and(!(WAITERS | HAND), Relaxed);
        }
    }

    /// Takes the lock, and WOKEN away, if it is free. By one that was told to try; if any are gone, it may be of them, and finds out as it queues (I7).
    fn try_as_woken(&self) -> bool {
        for look in 0..=SPINS {
            if look > 0 {
                spin_loop();
            }
            let now = self.word.load(Relaxed);
            if now & GONE != 0 {
                return false;
            }
            // Acquire: meets the Release of an unlock.
            if now & LOCKED == 0 && self.word.compare_exchange(now, (now | LOCKED) & FLAGS & !WOKEN, Acquire, Relaxed).is_ok() {
                return true;
            }
        }
        false
    }

    /// Out of time: takes WOKEN away, or GONE, and the lock, if it is free at last. By one that was told to try.
    fn leave_as_woken(&self, waiter: &Waiter<Note>) -> bool {
        let mut queue = self.queue.lock();
        let left = queue.left_by_woken(waiter);
        // Acquire: as in `try_as_woken`, if it was free.
        let found = self.word.fetch_update(Acquire, Relaxed, |now| Some((now | LOCKED) & left)).expect("it always updates");
        queue.note_come(waiter);
        found & LOCKED == 0
    }

    fn release_slowly(&self) {
        debug_assert!(self.is_taken(), "a Mutex was unlocked that was not locked");
        // In a forked child the queue may be locked for ever, and nobody who waits is there.
        if fork::is_child() {
            // Release: meets the Acquire of who locks next.
            self.word.fetch_and(!(LOCKED | HAND), Release);
            return;
        }
        while !self.let_go() && !self.wake_first(Hand::IfAsked) {}
    }

    /// Takes LOCKED away, unless one has to be woken, or given it, before.
    fn let_go(&self) -> bool {
        let mut now = self.word.load(Relaxed);
        while now & WAITERS == 0 || now & (WOKEN | HAND) == WOKEN {
            self.guess(now);
            // Release: meets the Acquire of who locks next. The last touch (I4).
            match self.word.compare_exchange_weak(now, now & !LOCKED, Release, Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Unlocks for the first waiter that can be woken; `false` if the lock is still the caller's: there was none, or it was a thread that came at once, found LOCKED, and has queued again or left (I3).
    fn wake_first(&self, hand: Hand) -> bool {
        let mut queue = self.queue.lock();
        let over = match hand {
            Hand::Over => true,
            // HAND may have been asked for by one that has left since: then its successor is in luck.
            Hand::IfAsked => self.word.load(Relaxed) & HAND != 0,
        };
        // Who asked for it has left, and another is expected: it is enough to let go.
        if !over && self.word.load(Relaxed) & WOKEN != 0 {
            return false;
        }
        // Who is told last is the one that is claimed.
        let watched = Cell::new(false);
        let ticket = queue.ticket + 1;
        let tell = |note: &Note| {
            note.told.set(if over { Told::Has } else { Told::Try });
            note.ticket.set(ticket);
            watched.set(note.watches.get());
        };
        let (home, now_ns) = (home(), clock::now_ns());
        let stays = !over && !home.is_null() && now_ns.saturating_sub(queue.moved_ns) < STAY_NS;
        let claimed = if stays { queue.waiters.claim_near(home, NEAR_LOOKS, tell) } else { queue.waiters.claim_first(tell) };
        let Some(claimed) = claimed else {
            self.note_empty(&queue);
            return false;
        };
        // SAFETY: blocks are never unmapped, and a home is an atomic.
        let place = Place::of(unsafe { &*claimed.control });
        if watched.get() {
            queue.watch.leave(place);
        }
        let mut called = None;
        if over {
            let gone = if queue.waiters.is_empty() { WAITERS } else { 0 };
            self.word.fetch_and(!(HAND | gone), Relaxed);
        } else {
            (queue.woken, queue.ticket) = (place, ticket);
            called = queue.call_watch();
            let gone = if queue.waiters.is_empty() { WAITERS } else { 0 };
            let near = queue.woken_is_of(home);
            if !near {
                queue.moved_ns = now_ns;
            }
            let since = ticks(now_ns + if near { 0 } else { COMES_NS });
            self.word.fetch_update(Relaxed, Relaxed, |now| Some((now & FLAGS & !gone) | WOKEN | since)).expect("it always updates");
        }
        drop(queue);
        let done = over || self.let_go();
        make_ready(claimed);
        if let Some(called) = called {
            make_ready(called);
        }
        done
    }
}

/// What a word at which nobody has the lock becomes for one who takes it, if that needs no thought.
#[inline]
fn taken_at_once(free: u32) -> Option<u32> {
    if free == 0 {
        return Some(LOCKED);
    }
    let overtakes = free & (LOCKED | WOKEN | GONE) == WOKEN && !needs_clock(free) && free & MANY_TIMES != MANY_TIMES;
    overtakes.then_some((free + OVERTAKEN) | LOCKED)
}

/// What a word becomes for one who gives the woken one up.
fn given_up(word: u32) -> u32 {
    (word & FLAGS & !WOKEN) | GONE
}

fn has_waited_long(note: &Note) -> bool {
    clock::now_ns().saturating_sub(note.since_ns) >= HAND_OVER_NS
}

/// A moment as it stands in the word.
fn ticks(ns: u64) -> u32 {
    (ns >> TICK_NS_LOG2 << SINCE_SHIFT) as u32
}

/// For how long the one that was woken has been overtaken, in ticks; below zero while it may be on its way.
fn ticks_since(word: u32) -> i32 {
    ticks(clock::now_ns()).wrapping_sub(word & !(FLAGS | OVERTAKEN_MASK)) as i32
}

/// Whether at this count the clock is to be looked at: when it has doubled, and each 64 times. So one that locks at a steady pace finds out before twice a time has passed, and seldom looks.
#[inline]
fn needs_clock(word: u32) -> bool {
    let count = (word & OVERTAKEN_MASK) / OVERTAKEN;
    count & count.wrapping_sub(1) == 0 || count.is_multiple_of(64)
}

/// As `ticks_since`, if one was woken and it is time to look.
fn overtaken_ticks(word: u32) -> Option<i32> {
    (word & OVERTAKEN_MASK != 0 && needs_clock(word)).then(|| ticks_since(word))
}

/// Whether to overtake the one that was woken once more is unfair.
fn is_unfair(ticks_since: i32) -> bool {
    (ticks(TURN_NS) as i32..ticks(STALE_NS) as i32).contains(&ticks_since)
}

/// Whether the one that was woken does not come. One that seems to be expected later than anybody is, was woken more than half a round of the ticks ago.
fn is_too_long(ticks_since: i32) -> bool {
    ticks_since >= ticks(STALE_NS) as i32 || ticks_since < -(ticks(2 * COMES_NS) as i32)
}

/// Who gets the lock when it is let go.
#[derive(Clone, Copy)]
enum Hand {
    /// The first waiter.
    Over,
    /// The first waiter, if it has asked for it; else whoever comes first.
    IfAsked,
}

#[cfg(test)]
mod tests {
    use super::*;

    // Others wait, or are gone, and the queue's lock is held where the fork is made, as by a thread that is not in the child.
    #[test]
    fn a_forked_child_unlocks_and_locks_though_the_queue_is_held() {
        if !AS_IN_MEMORY {
            return;
        }
        let releases: [fn(&RawMutex); 2] = [RawMutex::release, RawMutex::release_fair];
        for (release, flags) in
            releases.into_iter().flat_map(|release| [WAITERS, GONE, WAITERS | GONE, WOKEN | OVERTAKEN].map(|flags| (release, flags)))
        {
            let mutex = RawMutex::unlocked();
            mutex.take();
            mutex.word.fetch_or(flags, Relaxed);
            let held = mutex.queue.lock();
            assert!(fork::child_does(|| {
                release(&mutex);
                assert!(mutex.try_take(), "it is free there");
                release(&mutex);
                mutex.take();
                release(&mutex);
            }));
            drop(held);
        }
    }
}
