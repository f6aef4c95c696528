//! Where other threads leave ready fibers for a worker: many producers, one consumer that takes everything at once.
//!
//! A stack of nodes linked through themselves: no allocation, never full. The consumer swaps it out whole and turns it round, so
//! that fibers leave in the order in which they came. A ring was rejected: it can be full, and this cannot.
//!
//! # Invariants
//! I1. From `push` to `take` a node belongs to the inbox (law F1).
//! I2. A push that finds the inbox empty tells its caller; that caller, and only that one, sees to it that the consumer looks
//!     (`sched::slot`). The others stand behind it: whoever takes the first takes them too.
//!
//! # Memory order
//! The Release of `push` meets the Acquire of `take` and carries the node and all the waker wrote before. Pushes on top of earlier ones
//! continue the same release sequence (each is a read-modify-write), so one Acquire sees them all.

use std::ptr;

use super::atomic::{Acquire, AtomicPtr, Relaxed, Release};
use super::list::{Linked, List};

/// What was there when a node was pushed.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Pushed {
    /// The inbox was empty: the caller must make the consumer look.
    First,
    /// An earlier push, whose caller does so, is still in there.
    Behind,
}

/// Many threads push, one takes.
pub(crate) struct Inbox<T: Linked> {
    newest: AtomicPtr<T>,
}

impl<T: Linked> Inbox<T> {
    pub(crate) fn new() -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Leaves `node` for the consumer.
    ///
    /// # Safety
    /// `node` is valid until it is taken, and in no list (I1).
    pub(crate) unsafe fn push(&self, node: *mut T) -> Pushed {
        let mut newest = self.newest.load(Relaxed);
        loop {
            // SAFETY: I1 - until the exchange succeeds the node is the caller's.
            unsafe { (*node).link().store(newest, Relaxed) };
            // Release: meets the Acquire in `take`; carries the node's content.
            match self.newest.compare_exchange_weak(newest, node, Release, Relaxed) {
                Ok(_) if newest.is_null() => return Pushed::First,
                Ok(_) => return Pushed::Behind,
                Err(now) => newest = now,
            }
        }
    }

    /// Whether something is there. A relaxed look: who must not miss anything puts a fence before it (`sched::slot`).
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.newest.load(Relaxed).is_null()
    }

    /// Moves all there is to the end of `list`, oldest first. Only the consumer may call this.
    pub(crate) fn take(&self, list: &List<T>) {
        if self.is_empty() {
            return;
        }
        // Acquire: meets the Release in `push`.
        let mut newest = self.newest.swap(ptr::null_mut(), Acquire);
        let mut oldest = ptr::null_mut();
        while !newest.is_null() {
            // SAFETY: I1 - the swap made these nodes ours.
            let link = unsafe { (*newest).link() };
            let older = link.load(Relaxed);
            link.store(oldest, Relaxed);
            oldest = newest;
            newest = older;
        }
        while !oldest.is_null() {
            // SAFETY: I1 - still ours; the link is read before `push` rewrites it.
            unsafe {
                let newer = (*oldest).link().load(Relaxed);
                list.push(oldest);
                oldest = newer;
            }
        }
    }
}
