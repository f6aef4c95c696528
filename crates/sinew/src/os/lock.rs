//! A small lock for the runtime's own cold paths.
//!
//! Why not `std::sync::Mutex`: std is not instrumented, so a contended one makes ThreadSanitizer report races that are not there
//! and our sanitizer runs allow no suppressions; and it poisons from `thread::panicking()`, which here may speak of another fiber.
//! It blocks the thread, so it is held for a few dozen instructions and never while user code runs (law R2).
//!
//! # Memory order
//! Taking it is Acquire and meets the Release of the unlock: the next holder sees all that the last one wrote.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use super::futex;
use crate::base::atomic::{AS_IN_MEMORY, Acquire, AtomicU32, Relaxed, Release, in_statics, spin_loop};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep on the word.
const CONTENDED: u32 = 2;

/// Looks before sleeping, and the pauses before the first; twice as many before each that follows, so that who has the lock, and soon wants it again, keeps its cache line for a while. Holders leave within some tens of nanoseconds; a futex
/// sleep costs microseconds. None in the models, so that they sleep.
const LOOKS: u32 = if AS_IN_MEMORY { 6 } else { 0 };
const FIRST_PAUSES: u32 = 4;

/// A value that one thread at a time may touch. In this order: the first that is touched of the value lies beside the word.
#[repr(C)]
pub(crate) struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the word lets one thread at a time reach the value, so sharing the lock only moves `T` between threads.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    in_statics! {
        pub(crate) const fn new(value: T) -> Self {
            Self { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Held<'_, T> {
        // Acquire: meets the Release in `Held::drop`.
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.lock_contended();
        }
        Held { lock: self }
    }

    #[cold]
    fn lock_contended(&self) {
        for look in 0..LOOKS {
            (0..FIRST_PAUSES << look).for_each(|_| spin_loop());
            // Acquire: meets the Release in `Held::drop`.
            if self.word.load(Relaxed) == FREE && self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
                return;
            }
        }
        // Acquire: meets the Release in `Held::drop`. CONTENDED even when it was free: others may sleep behind us.
        while self.word.swap(CONTENDED, Acquire) != FREE {
            futex::wait(&self.word, CONTENDED, u64::MAX);
        }
    }
}

/// Proof that the lock is held; dropping it lets go.
pub(crate) struct Held<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: meets the Acquire of the next `lock`; carries what this holder wrote.
        if self.lock.word.swap(FREE, Release) == CONTENDED {
            futex::wake_one(&self.lock.word);
        }
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: `Held` exists only while its thread owns the word, so nobody else has a reference.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` keeps this the only borrow.
        unsafe { &mut *self.lock.value.get() }
    }
}
