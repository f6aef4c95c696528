//! The word that decides, for one fiber, between waking and waiting.
//!
//! Everything that can end a wait (an object, a timer, `unpark`, a cancel) goes through this one word, so the first cause wins and the others learn that
//! they lost (law W1). A plain thread that waits has such a word too, and sleeps on it as a futex.
//!
//! # Picture
//! ```text
//!              begin, begin_wait         claim, unpark, wake_task, cancel
//!   RUNNING ------------------------> WAITING ------------------> NOTIFIED
//!      ^        (by itself)                     (by whoever wins)     |
//!      +--------------------------------------------------------------+
//!                       end_wait (by itself, once resumed)
//! ```
//! `PARK` beside WAITING says that `unpark` may end this wait, `POLL` that a waker of its task may, `CUT` that `cancel` may. `TOKEN` is an `unpark` that came while nobody
//! waited for one, `WOKEN` a waker's wake. `CANCELLED` stays until the fiber's end.
//!
//! There is no state between "decided to wait" and "registers saved": a settled fiber is resumed by its own worker only, which
//! cannot do so before the fiber has left it (laws F3, F5). So a waker may queue it at once, and nobody has to spin. A fiber that may move is queued by the second of two:
//! its waker (`call`), and the worker that it has left (`leave`).
//!
//! # Invariants
//! I1. Only the fiber itself leaves RUNNING and NOTIFIED; anybody may take it from WAITING to NOTIFIED, and exactly one does.
//! I2. Whoever made it NOTIFIED makes it ready, once.
//! I3. Those who may `claim` a wait are gone from it before its `end_wait` returns to user code (law W2): by unlinking under the
//!     lock under which they claim. `unpark`, `wake_task` and `cancel` need no such care: they look at PARK, POLL and CUT. So a waker that was kept for too long ends
//!     at most another wait for a future, which polls that once in vain, and no other wait.
//! I4. A cancel is never lost: it ends a wait that is open to it, or the next such wait finds CANCELLED and does not begin.
//! I5. Of `call` and `leave` each is done once in a wait of a fiber that may move; the second of them, whichever that is, has the fiber. (But a deadline in a worker's
//!     timers is met by the worker that the fiber has left, and is bound to: that has done `leave`, and needs no `call`.)
//!
//! # Memory order
//! - `claim`/`unpark`/`wake_task`/`cancel` (Release) to `end_wait`/`begin` (Acquire): what the waker did, the woken one sees.
//! - `begin*` (Release) to `claim`/`unpark`/`wake_task`/`cancel` (Acquire): what the fiber wrote before it waited (its home worker) the waker sees.

use std::fmt;

use crate::base::atomic::{AcqRel, Acquire, AtomicU32, Relaxed};

const PHASE: u32 = 0b11;
const RUNNING: u32 = 0;
const WAITING: u32 = 1;
const NOTIFIED: u32 = 2;
/// The wait under way may be ended by `unpark`.
const PARK: u32 = 1 << 2;
/// An `unpark` nobody has used yet.
const TOKEN: u32 = 1 << 3;
/// In NOTIFIED: the wait was cut short by its deadline.
const TIMED_OUT: u32 = 1 << 4;
/// The fiber is cancelled, for good.
const CANCELLED: u32 = 1 << 5;
/// The wait under way may be ended by `cancel`.
const CUT: u32 = 1 << 6;
/// In NOTIFIED: the wait was cut short by a cancel.
const CUT_SHORT: u32 = 1 << 7;
/// It works for one who is shielded: a shutdown does not cancel it.
const SHELTERED: u32 = 1 << 8;
/// The wait under way may be ended by a waker of its task.
const POLL: u32 = 1 << 9;
/// A waker's wake nobody has used yet.
const WOKEN: u32 = 1 << 10;
/// Of a fiber that may move: it has left its stack.
const LEFT: u32 = 1 << 11;
/// Of a fiber that may move: whoever ended its wait wants it made ready.
const CALLED: u32 = 1 << 12;
/// How far a token is above the bit that says that such a one ends the wait.
const TOKEN_SHIFT: u32 = 1;
const _: () = assert!(PARK << TOKEN_SHIFT == TOKEN && POLL << TOKEN_SHIFT == WOKEN);
/// What goes when a wait is ended.
const OF_WAIT: u32 = PHASE | PARK | POLL | CUT;

/// What the end of a wait may have left.
const OF_END: u32 = TIMED_OUT | CUT_SHORT | LEFT | CALLED;

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// What it waited for came.
    Woken,
    /// Its deadline came first.
    TimedOut,
    /// A cancel came first.
    Cancelled,
}

/// Who may end a wait besides a `claim`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends(u32);

impl Ends {
    pub(crate) const BY_CLAIM: Ends = Ends(0);
    pub(crate) const BY_UNPARK: Ends = Ends(PARK);
    pub(crate) const BY_WAKER: Ends = Ends(POLL);

    /// What, left before, makes the wait needless.
    #[inline]
    fn token(self) -> u32 {
        (self.0 & (PARK | POLL)) << TOKEN_SHIFT
    }

    /// A cancel too.
    pub(crate) const fn or_cancel(self) -> Ends {
        Ends(self.0 | CUT)
    }
}

/// What a fiber that wants to wait does next.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Begin {
    /// Switch away: somebody will end this wait.
    Wait,
    /// Go on: an earlier `unpark`, or a waker's wake, has just been used up.
    AlreadyUnparked,
    /// Go on: a cancel would end this wait, and has come already. A token is left where it is.
    AlreadyCancelled,
}

/// What the caller of `unpark` or `wake_task` does next.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Unpark {
    /// Make the fiber ready: this call ended its wait.
    MakeReady,
    /// Nothing: it will find the token at its next park, or wait for a future.
    TokenLeft,
}

/// What the caller of `cancel` does next.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Cancel {
    /// Make the fiber ready: this call ended its wait.
    MakeReady,
    /// Nothing: it will find out at its next cancel point.
    Noted,
    /// Nothing: it was cancelled before.
    Already,
}

/// The state word.
pub(crate) struct State(AtomicU32);

impl State {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(RUNNING))
    }

    /// Begins a wait that only a `claim` ends. By the fiber itself.
    #[inline]
    pub(crate) fn begin_wait(&self) {
        // Release: meets the Acquire in `claim`. Acquire is not needed, but a token may be set meanwhile, so it is an addition.
        let before = self.0.fetch_add(WAITING, AcqRel);
        debug_assert_eq!(before & PHASE, RUNNING, "began to wait in {:?}", Snapshot(before));
    }

    /// Begins a wait that others than a `claim` may end too. By the fiber itself.
    #[inline]
    pub(crate) fn begin(&self, ends: Ends) -> Begin {
        let now = self.0.load(Relaxed);
        // AcqRel: as in `begin_in`.
        if now == RUNNING && self.0.compare_exchange(RUNNING, WAITING | ends.0, AcqRel, Relaxed).is_ok() {
            return Begin::Wait;
        }
        self.begin_in(now, ends)
    }

    /// As `begin`, where others have left something, seen as `now`.
    #[cold]
    fn begin_in(&self, mut now: u32, ends: Ends) -> Begin {
        loop {
            debug_assert_eq!(now & PHASE, RUNNING, "began to wait in {:?}", Snapshot(now));
            let (next, done) = if now & CANCELLED != 0 && ends.0 & CUT != 0 {
                (now, Begin::AlreadyCancelled)
            } else if now & ends.token() != 0 {
                (now & !ends.token(), Begin::AlreadyUnparked)
            } else {
                (now | WAITING | ends.0, Begin::Wait)
            };
            // AcqRel: Acquire meets `wake`'s and `cancel`'s Release when their mark is found; Release meets the Acquire in `claim`, `wake`, `cancel`.
            match self.0.compare_exchange_weak(now, next, AcqRel, Relaxed) {
                Ok(_) => return done,
                Err(other) => now = other,
            }
        }
    }

    /// Ends the wait under way for `cause`; `true` if this call is the one that did, and the caller makes the fiber ready (I2).
    #[inline]
    #[must_use]
    pub(crate) fn claim(&self, cause: Cause) -> bool {
        let mut now = self.0.load(Relaxed);
        while now & PHASE == WAITING {
            let why = match cause {
                Cause::Woken => 0,
                Cause::TimedOut => TIMED_OUT,
                Cause::Cancelled => CUT_SHORT,
            };
            let next = (now & !OF_WAIT) | NOTIFIED | why;
            // AcqRel: Release meets the Acquire in `end_wait`; Acquire meets the Release in `begin_wait`.
            match self.0.compare_exchange_weak(now, next, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Ends a park, or leaves a token for the next one.
    #[inline]
    pub(crate) fn unpark(&self) -> Unpark {
        self.wake(PARK, TOKEN)
    }

    /// Ends a wait for a future, or leaves a token for the next one: by a waker.
    #[inline]
    pub(crate) fn wake_task(&self) -> Unpark {
        self.wake(POLL, WOKEN)
    }

    /// Ends a wait that is `open` to this kind of wake, or leaves `token`.
    #[inline]
    fn wake(&self, open: u32, token: u32) -> Unpark {
        let mut now = self.0.load(Relaxed);
        loop {
            let waits = now & (PHASE | open) == WAITING | open;
            let next = if waits { (now & !OF_WAIT) | NOTIFIED } else { now | token };
            // AcqRel: Release meets the Acquire in `begin` and `end_wait`; Acquire meets the Release in `begin`.
            // Also when the token is there already: this caller's writes must be seen by whoever uses it.
            match self.0.compare_exchange_weak(now, next, AcqRel, Relaxed) {
                Ok(_) if waits => return Unpark::MakeReady,
                Ok(_) => return Unpark::TokenLeft,
                Err(other) => now = other,
            }
        }
    }

    /// Cancels the fiber, and ends the wait under way if that is open to a cancel (I4).
    pub(crate) fn cancel(&self) -> Cancel {
        let mut now = self.0.load(Relaxed);
        loop {
            if now & CANCELLED != 0 {
                return Cancel::Already;
            }
            let cut = now & (PHASE | CUT) == WAITING | CUT;
            let next = CANCELLED | if cut { (now & !OF_WAIT) | NOTIFIED | CUT_SHORT } else { now };
            // AcqRel: Release meets the Acquire in `begin` and `end_wait`; Acquire meets the Release in `begin`.
            match self.0.compare_exchange_weak(now, next, AcqRel, Relaxed) {
                Ok(_) if cut => return Cancel::MakeReady,
                Ok(_) => return Cancel::Noted,
                Err(other) => now = other,
            }
        }
    }

    /// The fiber has left its stack; `true` if its waker was there before, and the caller has the fiber (I5). By the worker that it left.
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        // AcqRel: Release meets the Acquire in `call`, and carries the saved registers; Acquire meets the Release there. An addition, since it is done once in a wait (I5): x86 gives back what was there before, and an
        // `or` whose other bits are looked at is a loop there.
        let before = self.0.fetch_add(LEFT, AcqRel);
        debug_assert_eq!(before & LEFT, 0, "left twice in {:?}", Snapshot(before));
        before & CALLED != 0
    }

    /// The fiber's wait was ended; `true` if it has left its stack, and the caller has the fiber (I5). By who ended it.
    #[must_use]
    pub(crate) fn call(&self) -> bool {
        // AcqRel: meets that in `leave`, both ways. An addition, as there.
        let before = self.0.fetch_add(CALLED, AcqRel);
        debug_assert_eq!(before & CALLED, 0, "called twice in {:?}", Snapshot(before));
        before & LEFT != 0
    }

    /// Leaves a waker's wake to oneself: the next wait for a future does not begin. By the fiber itself.
    pub(crate) fn poll_again(&self) {
        self.0.fetch_or(WOKEN, Relaxed);
    }

    /// Whether it has been cancelled.
    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        // Acquire: meets the Release in `cancel`.
        self.0.load(Acquire) & CANCELLED != 0
    }

    /// Keeps a shutdown's cancel off, for good. Before it is queued.
    pub(crate) fn shelter(&self) {
        self.0.fetch_or(SHELTERED, Relaxed);
    }

    /// Whether a shutdown is not to cancel it.
    pub(crate) fn is_sheltered(&self) -> bool {
        self.0.load(Relaxed) & SHELTERED != 0
    }

    /// Back to running, with the reason. By the fiber itself, once somebody has made it NOTIFIED.
    #[inline]
    pub(crate) fn end_wait(&self) -> Cause {
        // Acquire: meets the Release in `claim`, `wake` and `cancel`. A subtraction, since only the fiber leaves NOTIFIED (I1): x86 gives back what was there
        // before, and an `and` there is a loop.
        let before = self.0.fetch_sub(NOTIFIED - RUNNING, Acquire);
        debug_assert_eq!(before & PHASE, NOTIFIED, "resumed in {:?}", Snapshot(before));
        if before & OF_END == 0 { Cause::Woken } else { self.clear_end(before) }
    }

    /// As `end_wait`, of a fiber that may move: the end of its wait has left marks, most often, and they go in the same step.
    #[inline]
    pub(crate) fn end_wait_of_mover(&self) -> Cause {
        // Nobody else changes these any more: the fiber has been left and called (I5), and its wait has ended (I1).
        let marks = self.0.load(Relaxed) & OF_END;
        // Acquire: as in `end_wait`.
        let before = self.0.fetch_sub(marks + (NOTIFIED - RUNNING), Acquire);
        debug_assert_eq!(before & (PHASE | OF_END), NOTIFIED | marks, "resumed in {:?}", Snapshot(before));
        cause_of(marks)
    }

    /// Takes away what the end of a wait has left, seen as `before`: nobody else looks at it while the fiber runs.
    #[cold]
    fn clear_end(&self, before: u32) -> Cause {
        self.0.fetch_and(!OF_END, Relaxed);
        cause_of(before)
    }

    /// The word's value if a wait is still under way, for a thread to sleep on.
    pub(crate) fn waiting(&self) -> Option<u32> {
        let now = self.0.load(Relaxed);
        (now & PHASE == WAITING).then_some(now)
    }

    /// The word itself, for a thread to sleep on.
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Whether nothing is left in it: no wait, no `unpark`, no cancel. A waker's wake may be: it costs a needless poll at most.
    pub(crate) fn is_pristine(&self) -> bool {
        self.0.load(Relaxed) & !WOKEN == RUNNING
    }

    /// Forgets everything, for the next fiber in this place.
    pub(crate) fn reset(&self) {
        self.0.store(RUNNING, Relaxed);
    }
}

/// What ended a wait, by the marks that were left.
#[inline]
fn cause_of(marks: u32) -> Cause {
    match marks & (TIMED_OUT | CUT_SHORT) {
        0 => Cause::Woken,
        TIMED_OUT => Cause::TimedOut,
        _ => Cause::Cancelled,
    }
}

struct Snapshot(u32);

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.0 & PHASE {
            RUNNING => "running",
            WAITING => "waiting",
            NOTIFIED => "notified",
            _ => "impossible",
        };
        f.write_str(phase)?;
        let bits = [
            (PARK, "+park"),
            (TOKEN, "+token"),
            (TIMED_OUT, "+timed out"),
            (CANCELLED, "+cancelled"),
            (CUT, "+may be cut"),
            (CUT_SHORT, "+cut short"),
            (SHELTERED, "+sheltered"),
            (POLL, "+poll"),
            (WOKEN, "+woken"),
            (LEFT, "+left"),
            (CALLED, "+called"),
        ];
        for (bit, name) in bits {
            if self.0 & bit != 0 {
                f.write_str(name)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Snapshot(self.0.load(Relaxed)).fmt(f)
    }
}
