//! Those who wait at one object, in order.
//!
//! The one queue that locks, channels and all other objects stand on. A waiter lies in the frame that waits, or in the block of a fiber that waits for a descriptor (`rt/io.rs`), so nothing is allocated, and one frame may have
//! waiters at many objects (`select!`). The object keeps its queue under a lock of its own, together with whatever decides who has to wait.
//!
//! Rejected: one table of queues for all objects, by address (parking_lot, the kernel's futex). It makes objects a word or two smaller; but a million fibers
//! that wait at a million objects would share its buckets, and a wake would search among strangers.
//!
//! # How to wait, and how to wake
//! ```text
//!   waits:  lock; look; push; note_why; begin_wait; unlock;   wait;   woken: done   cut short: lock; remove; unlock
//!   wakes:  lock; change; claim_first; unlock;                make_ready
//! ```
//! `rt::wait::Me::wait_at` is the right half of the first line.
//!
//! # Invariants
//! I1. A waiter is in the ring of the queue it was pushed to, or in none. Links are used under the object's lock alone.
//! I2. Who claims a waiter has taken it out first, under the same lock. So one that was woken is in no queue, and its owner need not look (law W2); one that was cut short removes
//!     itself, or finds that somebody has: that one lost the claim, and went on to the next.
//! I3. After a claim nothing of the waiter is touched. What it is to be told is written before, and counts only if the claim is won.
//! I4. A claimed fiber does not run before it has been made ready, which is done after the unlock; so the unlock is the last time its waker touches the object. A thread runs at
//!     once: it passes through the lock before it returns, so that its waker has left by then (`Me::wait_at`), unless the waker keeps the object alive.

use std::cell::Cell;
use std::ptr;

use super::state::Cause;
use super::{Claimed, Control};

/// One wait at one object; `N` is what a waker tells it.
pub(crate) struct Waiter<N = ()> {
    /// Both null while it is in no queue.
    next: Cell<*const Waiter<N>>,
    before: Cell<*const Waiter<N>>,
    control: *const Control,
    pub(crate) note: N,
}

impl<N> Waiter<N> {
    /// A waiter of the caller, whose control block this is.
    pub(crate) fn new(control: &Control, note: N) -> Self {
        Self { next: Cell::new(ptr::null()), before: Cell::new(ptr::null()), control, note }
    }

    /// Whether it is in a queue. Under the object's lock.
    pub(crate) fn is_queued(&self) -> bool {
        !self.next.get().is_null()
    }
}

/// A queue of waiters; first come, first claimed.
pub(crate) struct Waiters<N = ()> {
    /// The others follow in a ring.
    first: *const Waiter<N>,
}

// SAFETY: a queue is used under its object's lock; what it links belongs to waits that other threads may end.
unsafe impl<N> Send for Waiters<N> {}

impl<N> Waiters<N> {
    pub(crate) const fn new() -> Self {
        Self { first: ptr::null() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// The one that has waited longest.
    pub(crate) fn first(&self) -> Option<&Waiter<N>> {
        // SAFETY: I1 - what is in the ring belongs to a wait.
        unsafe { self.first.as_ref() }
    }

    /// Puts `waiter` behind all others.
    ///
    /// # Safety
    /// It is in no queue, and stays in place until it was claimed or removed.
    pub(crate) unsafe fn push(&mut self, waiter: &Waiter<N>) {
        debug_assert!(!waiter.is_queued(), "a waiter was queued twice");
        if self.first.is_null() {
            waiter.next.set(waiter);
            waiter.before.set(waiter);
            self.first = waiter;
            return;
        }
        // SAFETY: I1 - what is in the ring is valid.
        unsafe {
            let last = (*self.first).before.get();
            waiter.next.set(self.first);
            waiter.before.set(last);
            (*self.first).before.set(waiter);
            (*last).next.set(waiter);
        }
    }

    /// Puts `waiter` before all others.
    ///
    /// # Safety
    /// As [`push`](Self::push).
    pub(crate) unsafe fn push_first(&mut self, waiter: &Waiter<N>) {
        // SAFETY: the caller's promise. In a ring the last is before the first.
        unsafe { self.push(waiter) };
        self.first = waiter;
    }

    /// Takes `waiter` out; `false` if somebody else has.
    ///
    /// # Safety
    /// If it is in a queue, it is in this one.
    pub(crate) unsafe fn remove(&mut self, waiter: &Waiter<N>) -> bool {
        let (next, before) = (waiter.next.replace(ptr::null()), waiter.before.replace(ptr::null()));
        if next.is_null() {
            return false;
        }
        if ptr::eq(next, waiter) {
            self.first = ptr::null();
            return true;
        }
        // SAFETY: I1 - its neighbours are valid.
        unsafe {
            (*next).before.set(before);
            (*before).next.set(next);
        }
        if ptr::eq(self.first, waiter) {
            self.first = next;
        }
        true
    }

    /// Ends the wait of the first that can still be claimed, once `tell` has told it what there is to know; the others before it are out of the queue too.
    ///
    /// The caller makes it ready when it has unlocked the object (I4). `tell` is called for each that is tried, and does nothing that counts if the claim is lost (I3).
    pub(crate) fn claim_first(&mut self, tell: impl FnMut(&N)) -> Option<Claimed> {
        self.claim_first_or(tell, |_| ())
    }

    /// As [`claim_first`](Self::claim_first); `untell` takes back what was told to one whose claim was lost. So of all waiters that one frame has at several
    /// objects, the one that is told something in the end is the one that was claimed.
    pub(crate) fn claim_first_or(&mut self, mut tell: impl FnMut(&N), mut untell: impl FnMut(&N)) -> Option<Claimed> {
        loop {
            // SAFETY: I1 - what is in the ring is valid; after a claim that was lost its owner still has to pass this object's lock (I2).
            let first = unsafe { self.first.as_ref()? };
            let claimed = self.try_claim(first, &mut tell);
            if claimed.is_some() {
                return claimed;
            }
            untell(&first.note);
        }
    }

    /// As [`claim_first`](Self::claim_first), but prefers the first fiber of the worker that `home` is, if it is among the first `looks`.
    pub(crate) fn claim_near(&mut self, home: *const (), looks: usize, mut tell: impl FnMut(&N)) -> Option<Claimed> {
        let near = self.claim_among(looks, |control| ptr::eq(control.home(), home), &mut tell);
        near.or_else(|| self.claim_first(tell))
    }

    /// As [`claim_first`](Self::claim_first), of those among the first `looks` whose block `admit` admits; the others stay.
    pub(crate) fn claim_among(&mut self, looks: usize, admit: impl Fn(&Control) -> bool, mut tell: impl FnMut(&N)) -> Option<Claimed> {
        let mut next = self.first;
        for _ in 0..looks {
            // SAFETY: I1 - what is in the ring is valid, and the block of who waits alive.
            let (waiter, control) = unsafe {
                let waiter = next.as_ref()?;
                (waiter, &*waiter.control)
            };
            next = waiter.next.get();
            let is_last = ptr::eq(next, self.first);
            if admit(control)
                && let Some(claimed) = self.try_claim(waiter, &mut tell)
            {
                return Some(claimed);
            }
            if is_last {
                break;
            }
        }
        None
    }

    /// As [`claim_first`](Self::claim_first), but one that `admit` does not admit stays the first, and nobody is claimed.
    pub(crate) fn claim_first_if(&mut self, mut admit: impl FnMut(&N) -> bool) -> Option<Claimed> {
        loop {
            // SAFETY: I1 - what is in the ring is valid.
            let first = unsafe { self.first.as_ref()? };
            if !admit(&first.note) {
                return None;
            }
            let claimed = self.try_claim(first, &mut |_| ());
            if claimed.is_some() {
                return claimed;
            }
        }
    }

    fn try_claim(&mut self, waiter: &Waiter<N>, tell: &mut impl FnMut(&N)) -> Option<Claimed> {
        let control = waiter.control;
        // SAFETY: I1 - it is in this queue; it is not touched after the claim (I3). Its block is alive while it waits, and never unmapped.
        unsafe {
            self.remove(waiter);
            tell(&waiter.note);
            (*control).claim(Cause::Woken)
        }
    }
}
