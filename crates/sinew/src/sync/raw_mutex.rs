//! The lock under `Mutex`: one word, and a queue for those who find it taken.
//!
//! Who unlocks lets go, wakes the one that has waited longest, and runs on; the woken one tries like any other. So a fiber that locks again and again pays nothing for those who
//! wait while they are on their way, and the lock is never held by somebody who sleeps. That alone would let a busy fiber overtake a waiter for ever. Hence the second rule: one that has waited
//! for `HAND_OVER_NS` is given the lock by whoever unlocks next, and others who come meanwhile go behind it.
//!
//! Rejected: to hand over always (bthread's FIFO butex mutex, tokio): each lock of a contended mutex then costs a switch, or a wake of another worker. To let the kernel's rule do (std):
//! nothing bounds how long one waits.
//!
//! # Picture
//! ```text
//!   LOCKED    somebody has it
//!   WAITERS   the queue is not empty
//!   WOKEN     one was taken out of the queue and told to try; until it has decided, unlocks wake nobody else
//!   HAND      the first in the queue has waited long enough: the next unlock gives it the lock
//! ```
//!
//! # Invariants
//! I1. WAITERS and HAND change under the queue's lock only. When that is free, WAITERS says whether the queue is empty, and HAND is not set without it.
//! I2. HAND implies LOCKED: it is set beside LOCKED, and an unlock that finds it does not take LOCKED away unless it takes HAND away.
//! I3. Who was told to try takes WOKEN away, in the same step in which it locks, finds LOCKED (whose owner will look at WAITERS), or queues again. So with WAITERS there is always
//!     somebody to come: an owner who will unlock, or one who was woken.
//! I4. The last step of an unlock on this object is the one that lets others in; the woken fiber is made ready after it. So the mutex may be freed by the next owner.
//!
//! # Memory order
//! Taking LOCKED is Acquire and meets the Release that took it away: the next owner sees what the last one wrote. A hand-over goes through the waiter's state word (`state.rs`).

use std::cell::Cell;

use crate::base::atomic::{AS_IN_MEMORY, Acquire, AtomicU32, Relaxed, Release, in_statics, spin_loop};
use crate::fiber::state::Cause;
use crate::fiber::waiters::{Waiter, Waiters};
use crate::fiber::why::{At, Why};
use crate::os::clock;
use crate::os::lock::Lock;
use crate::rt::wait::Me;
use crate::sched::worker::make_ready;

const LOCKED: u32 = 1 << 0;
const WAITERS: u32 = 1 << 1;
const WOKEN: u32 = 1 << 2;
const HAND: u32 = 1 << 3;

/// A waiter is overtaken for no longer than this, and the time until somebody unlocks. parking_lot's number; Go's is 1 ms.
const HAND_OVER_NS: u64 = 500_000;

/// Looks at a taken lock before queueing: longer than a short critical section, shorter than a suspension. None in the models, so that they queue.
const SPINS: u32 = if AS_IN_MEMORY { 20 } else { 0 };

/// What a waiter is told by its waker.
pub(crate) struct Note {
    since_ns: u64,
    /// It owns the lock; else it is to try.
    handed: Cell<bool>,
}

/// The lock under [`Mutex`](super::Mutex), for use with the types of the `lock_api` crate.
pub struct RawMutex {
    word: AtomicU32,
    queue: Lock<Waiters<Note>>,
}

/// What became of one that wanted to queue.
enum Queue {
    Queued,
    /// The lock was free after all.
    Locked,
}

impl RawMutex {
    in_statics! {
        pub(crate) const fn unlocked() -> Self {
            Self { word: AtomicU32::new(0), queue: Lock::new(Waiters::new()) }
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn take(&self) {
        if !self.try_take() {
            self.take_slowly(u64::MAX);
        }
    }

    /// As `take`, but gives up at `deadline_ns`.
    #[track_caller]
    pub(crate) fn take_until(&self, deadline_ns: u64) -> bool {
        self.try_take() || self.take_slowly(deadline_ns)
    }

    #[inline]
    pub(crate) fn try_take(&self) -> bool {
        // Acquire: meets the Release of an unlock.
        let mut now = match self.word.compare_exchange(0, LOCKED, Acquire, Relaxed) {
            Ok(_) => return true,
            Err(now) => now,
        };
        while now & LOCKED == 0 {
            // Acquire: as above.
            match self.word.compare_exchange_weak(now, now | LOCKED, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.word.load(Relaxed) & LOCKED != 0
    }

    /// Lets go. By the owner.
    #[inline]
    pub(crate) fn release(&self) {
        // Release: meets the Acquire of who locks next.
        if self.word.compare_exchange(LOCKED, 0, Release, Relaxed).is_err() {
            self.release_slowly();
        }
    }

    /// Lets go in favour of the one that has waited longest. By the owner.
    pub(crate) fn release_fair(&self) {
        // Acquire would be needed by nobody: the queue is read under its lock.
        if self.word.load(Relaxed) & WAITERS == 0 || !self.wake_first(Hand::Over) {
            self.release();
        }
    }

    #[cold]
    #[track_caller]
    fn take_slowly(&self, deadline_ns: u64) -> bool {
        if self.spin() {
            return true;
        }
        let me = Me::to_wait();
        let waiter = Waiter::new(me.control(), Note { since_ns: clock::now_ns(), handed: Cell::new(false) });
        let mut woken = false;
        loop {
            if let Queue::Locked = self.queue_up(&me, &waiter, woken) {
                return true;
            }
            // SAFETY: queued and begun just now, under the queue's lock, under which it is claimed.
            let cause = unsafe { me.wait_at(&self.queue, deadline_ns, |queue| self.withdraw(queue, &waiter)) };
            match cause {
                Cause::Woken if waiter.note.handed.get() => return true,
                Cause::Woken => woken = true,
                _ => return false,
            }
            if self.try_as_woken() {
                return true;
            }
            if deadline_ns != u64::MAX && clock::now_ns() >= deadline_ns {
                return self.leave_as_woken();
            }
        }
    }

    /// Tries for a moment, unless others wait already.
    fn spin(&self) -> bool {
        for _ in 0..SPINS {
            let now = self.word.load(Relaxed);
            if now & LOCKED == 0 && self.try_take() {
                return true;
            }
            if now & WAITERS != 0 {
                return false;
            }
            spin_loop();
        }
        false
    }

    /// Queues the caller, which waits from then on; or takes the lock, if it is free by now. One that was woken goes to the front, and asks for the lock if it has waited long enough.
    fn queue_up(&self, me: &Me, waiter: &Waiter<Note>, woken: bool) -> Queue {
        let mut queue = self.queue.lock();
        let (owed, mut asks) = (if woken { WOKEN } else { 0 }, WAITERS);
        if woken && has_waited_long(&waiter.note) {
            asks |= HAND;
        }
        let mut now = self.word.load(Relaxed);
        loop {
            let free = now & LOCKED == 0;
            let next = if free { now | LOCKED } else { now | asks } & !owed;
            // Acquire: as in `try_take`, if it was free.
            match self.word.compare_exchange_weak(now, next, Acquire, Relaxed) {
                Ok(_) if free => return Queue::Locked,
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        // SAFETY: it is in no queue: new, or claimed and so taken out; it stays in place until it was claimed or withdrawn.
        unsafe { if woken { queue.push_first(waiter) } else { queue.push(waiter) } };
        me.begin_wait(Why::At(At::Mutex));
        Queue::Queued
    }

    /// The wait was cut short: takes the waiter out, if nobody has.
    fn withdraw(&self, queue: &mut Waiters<Note>, waiter: &Waiter<Note>) {
        // SAFETY: it was pushed to this queue.
        unsafe { queue.remove(waiter) };
        if queue.is_empty() {
            self.word.fetch_and(!(WAITERS | HAND), Relaxed);
        }
    }

    /// Takes the lock, and WOKEN away, if it is free. By the one that was told to try.
    fn try_as_woken(&self) -> bool {
        for _ in 0..SPINS + 1 {
            let now = self.word.load(Relaxed);
            // Acquire: meets the Release of an unlock.
            if now & LOCKED == 0 && self.word.compare_exchange(now, (now | LOCKED) & !WOKEN, Acquire, Relaxed).is_ok() {
                return true;
            }
            spin_loop();
        }
        false
    }

    /// Out of time: takes WOKEN away, or the lock, if it is free at last. By the one that was told to try.
    fn leave_as_woken(&self) -> bool {
        let mut now = self.word.load(Relaxed);
        loop {
            let free = now & LOCKED == 0;
            let next = if free { now | LOCKED } else { now } & !WOKEN;
            // Acquire: as in `try_as_woken`.
            match self.word.compare_exchange_weak(now, next, Acquire, Relaxed) {
                Ok(_) => return free,
                Err(other) => now = other,
            }
        }
    }

    #[cold]
    fn release_slowly(&self) {
        let mut now = self.word.load(Relaxed);
        loop {
            debug_assert!(now & LOCKED != 0, "a Mutex was unlocked that was not locked");
            if now & WAITERS == 0 || now & (WOKEN | HAND) == WOKEN {
                // Release: meets the Acquire of who locks next.
                match self.word.compare_exchange_weak(now, now & !LOCKED, Release, Relaxed) {
                    Ok(_) => return,
                    Err(other) => now = other,
                }
            } else if self.wake_first(Hand::IfLong) {
                return;
            } else {
                now = self.word.load(Relaxed);
            }
        }
    }

    /// Unlocks for the first waiter that can be woken; `false` if there was none, and the lock is still the caller's.
    fn wake_first(&self, hand: Hand) -> bool {
        let mut queue = self.queue.lock();
        let over = match hand {
            Hand::Over => true,
            // HAND may have been asked for by one that has left since: then its successor is in luck.
            Hand::IfLong => self.word.load(Relaxed) & HAND != 0 || queue.first().is_some_and(|first| has_waited_long(&first.note)),
        };
        let claimed = queue.claim_first(|note| note.handed.set(over));
        let gone = if queue.is_empty() { WAITERS } else { 0 };
        let Some(claimed) = claimed else {
            self.word.fetch_and(!(WAITERS | HAND), Relaxed);
            return false;
        };
        if over {
            self.word.fetch_and(!(HAND | gone), Relaxed);
            drop(queue);
        } else {
            self.word.fetch_update(Relaxed, Relaxed, |now| Some((now | WOKEN) & !gone)).expect("it always updates");
            drop(queue);
            // Release: meets the Acquire of who locks next. The last touch (I4).
            self.word.fetch_and(!LOCKED, Release);
        }
        make_ready(claimed);
        true
    }
}

fn has_waited_long(note: &Note) -> bool {
    clock::now_ns().saturating_sub(note.since_ns) >= HAND_OVER_NS
}

/// Who gets the lock when it is let go.
#[derive(Clone, Copy)]
enum Hand {
    /// The first waiter.
    Over,
    /// The first waiter, if it has waited long enough; else whoever comes first.
    IfLong,
}
