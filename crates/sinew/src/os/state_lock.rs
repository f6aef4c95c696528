//! A small lock whose word carries the state of what it protects.
//!
//! [`Lock`](super::lock::Lock) with one thing more: 30 bits of state, which anybody reads, and changes while nobody is inside, in one atomic step. From inside they
//! change with the unlock, in the same step. So whoever sees a change, and frees the object for it, knows that the one who made it has left: no waker touches an
//! object that somebody else was let into.
//!
//! Rejected: a word beside a `Lock`. An object whose word is changed under the lock may be freed, by one who needs only the word, before the unlock; and a word that is
//! changed after the unlock is changed too late for the threads that were woken under it.
//!
//! # Picture
//! ```text
//!   bit 0  HELD        somebody is inside: the state stays as it is
//!   bit 1  CONTENDED   somebody may sleep on the word; only beside HELD
//!   2..31  the state
//! ```
//!
//! # Memory order
//! Taking the lock, `state` and `change` are Acquire and meet the Release of the unlock and of `change`: who sees a state sees all that was written before it was made.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};

use super::futex;
use crate::base::atomic::{AS_IN_MEMORY, AcqRel, Acquire, AtomicU32, Relaxed, Release, in_statics, spin_loop};

const HELD: u32 = 1 << 0;
const CONTENDED: u32 = 1 << 1;
const STATE_SHIFT: u32 = 2;

/// The largest state.
pub(crate) const STATE_MAX: u32 = u32::MAX >> STATE_SHIFT;

/// As in `lock.rs`.
const SPINS: u32 = if AS_IN_MEMORY { 100 } else { 0 };

/// A state, and a value that one thread at a time may touch.
pub(crate) struct StateLock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the word lets one thread at a time reach the value, so sharing the lock only moves `T` between threads.
unsafe impl<T: Send> Sync for StateLock<T> {}

// No user code runs inside, so no panic leaves what is there half done.
impl<T> UnwindSafe for StateLock<T> {}
impl<T> RefUnwindSafe for StateLock<T> {}

impl<T> StateLock<T> {
    in_statics! {
        pub(crate) const fn new(state: u32, value: T) -> Self {
            assert!(state <= STATE_MAX);
            Self { word: AtomicU32::new(state << STATE_SHIFT), value: UnsafeCell::new(value) }
        }
    }

    /// The state; while somebody is inside, the one that he found.
    #[inline]
    pub(crate) fn state(&self) -> u32 {
        // Acquire: meets the Release in `change` and in `Inside::drop`.
        self.word.load(Acquire) >> STATE_SHIFT
    }

    /// Makes the state what `next` makes of it, in one step, and says what it was; `None` if `next` refuses, or somebody is inside.
    #[inline]
    pub(crate) fn change(&self, next: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let mut now = self.word.load(Relaxed);
        while now & HELD == 0 {
            let state = next(now >> STATE_SHIFT)?;
            debug_assert!(state <= STATE_MAX, "{state} does not fit");
            // AcqRel: Acquire meets the Release of whoever made the state, Release the Acquire of whoever sees the new one.
            match self.word.compare_exchange_weak(now, state << STATE_SHIFT, AcqRel, Relaxed) {
                Ok(_) => return Some(now >> STATE_SHIFT),
                Err(other) => now = other,
            }
        }
        None
    }

    #[inline]
    pub(crate) fn lock(&self) -> Inside<'_, T> {
        let now = self.word.load(Relaxed);
        // Acquire: meets the Release in `change` and in `Inside::drop`.
        if now & HELD == 0 && self.word.compare_exchange(now, now | HELD, Acquire, Relaxed).is_ok() {
            return Inside { lock: self, state: now >> STATE_SHIFT };
        }
        self.lock_contended()
    }

    #[cold]
    fn lock_contended(&self) -> Inside<'_, T> {
        let mut spins = SPINS;
        loop {
            let now = self.word.load(Relaxed);
            if now & HELD == 0 {
                // Who has slept takes it as CONTENDED: others may sleep behind.
                let taken = now | HELD | if spins == 0 { CONTENDED } else { 0 };
                // Acquire: as in `lock`.
                if self.word.compare_exchange(now, taken, Acquire, Relaxed).is_ok() {
                    return Inside { lock: self, state: now >> STATE_SHIFT };
                }
            } else if spins > 0 {
                spins -= 1;
                spin_loop();
            } else if now & CONTENDED != 0 || self.word.compare_exchange(now, now | CONTENDED, Relaxed, Relaxed).is_ok() {
                futex::wait(&self.word, now | CONTENDED, u64::MAX);
            }
        }
    }
}

/// Proof that the lock is held; dropping it lets go, and makes the state what it is here.
pub(crate) struct Inside<'a, T> {
    lock: &'a StateLock<T>,
    pub(crate) state: u32,
}

impl<'a, T> Inside<'a, T> {
    /// The lock it is inside.
    pub(crate) fn of(&self) -> &'a StateLock<T> {
        self.lock
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        debug_assert!(self.state <= STATE_MAX, "{} does not fit", self.state);
        // Release: meets the Acquire of the next `lock`, and of who sees the state; carries what this holder wrote. The last touch: a wake needs the address alone.
        if self.lock.word.swap(self.state << STATE_SHIFT, Release) & CONTENDED != 0 {
            futex::wake_one(&self.lock.word);
        }
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: `Inside` exists only while its thread owns the word, so nobody else has a reference.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Inside<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` keeps this the only borrow.
        unsafe { &mut *self.lock.value.get() }
    }
}
