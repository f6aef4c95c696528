//! An intrusive first-in-first-out list: queues that never allocate and never fill up.
//!
//! # Invariants
//! I1. A node is in at most one list (law F1); the list owns it from `push` to `pop`.
//! I2. `head` is null exactly when `tail` is; the link of the tail is null.

use std::cell::Cell;
use std::ptr;

use super::atomic::{AtomicPtr, Relaxed};

/// A thing that carries the link of the list it is in.
///
/// # Safety
/// `link` always gives the same place, and nothing but the list that holds the node uses it.
pub(crate) unsafe trait Linked: Sized {
    /// Where the next node is written. Atomic so that an inbox can hand nodes between threads; all uses are relaxed.
    fn link(&self) -> &AtomicPtr<Self>;
}

/// A list used by one thread at a time.
pub(crate) struct List<T: Linked> {
    head: Cell<*mut T>,
    tail: Cell<*mut T>,
    len: Cell<usize>,
}

impl<T: Linked> List<T> {
    pub(crate) const fn new() -> Self {
        Self { head: Cell::new(ptr::null_mut()), tail: Cell::new(ptr::null_mut()), len: Cell::new(0) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.get().is_null()
    }

    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    /// The oldest node, which stays in the list; null if there is none.
    #[inline]
    pub(crate) fn first(&self) -> *mut T {
        self.head.get()
    }

    /// Appends `node`.
    ///
    /// # Safety
    /// `node` is valid until it is popped, and in no other list (I1).
    #[inline]
    pub(crate) unsafe fn push(&self, node: *mut T) {
        let tail = self.tail.replace(node);
        self.len.set(self.len.get() + 1);
        // SAFETY: I1 - both are valid nodes that this list owns.
        unsafe {
            (*node).link().store(ptr::null_mut(), Relaxed);
            if tail.is_null() {
                self.head.set(node);
            } else {
                (*tail).link().store(node, Relaxed);
            }
        }
    }

    /// Removes the oldest node; null if there is none.
    #[inline]
    pub(crate) fn pop(&self) -> *mut T {
        let node = self.head.get();
        if !node.is_null() {
            // SAFETY: I1 - a node in the list is valid.
            let next = unsafe { (*node).link().load(Relaxed) };
            self.head.set(next);
            self.len.set(self.len.get() - 1);
            if next.is_null() {
                self.tail.set(ptr::null_mut());
            }
        }
        node
    }

    /// Moves all of `other` behind what is here, in order.
    pub(crate) fn append(&self, other: &List<T>) {
        let (head, tail) = (other.head.replace(ptr::null_mut()), other.tail.replace(ptr::null_mut()));
        if head.is_null() {
            return;
        }
        self.len.set(self.len.get() + other.len.replace(0));
        let before = self.tail.replace(tail);
        if before.is_null() {
            self.head.set(head);
        } else {
            // SAFETY: I1 - `before` is the valid tail of this list.
            unsafe { (*before).link().store(head, Relaxed) };
        }
    }
}
