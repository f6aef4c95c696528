//! A worker's unstarted children: it takes the newest, other workers steal the oldest. Also its ready fibers that may move: there it takes the oldest itself.
//!
//! Newest first keeps fork-join trees small (depth, not breadth, is alive at once); stealing the oldest takes the largest subtrees away. The
//! algorithm is Chase and Lev's with the fences of Lê, Pop, Cohen and Zappa Nardelli (PPoPP 2013). The ring is fixed: a push that finds it full gives
//! the item back, and the caller uses the group's queue, so nothing grows and nothing has to be reclaimed under thieves. All
//! slots are atomics, so that no tool needs a suppression. crossbeam-deque was rejected: it grows by epoch reclamation, which the
//! models cannot see into.
//!
//! # Invariants
//! I1. Items are at `oldest..newest`; only the owner moves `newest`, `oldest` only grows.
//! I2. Whoever moves `oldest` from i to i+1 owns item i. The owner takes the last item that way too.
//! I3. A slot is rewritten only when `oldest` has passed it, so a thief that read an old value fails its exchange.
//!
//! # Memory order
//! The owner's "lower `newest`, look at `oldest`" against the thief's "look at `oldest`, look at `newest`" is store-then-load on
//! both sides: the two SeqCst fences make at least one of them see the other, so the last item goes to one of them.

use std::ptr;

use super::atomic::{AcqRel, Acquire, AtomicPtr, AtomicUsize, FENCED, Relaxed, Release, SeqCst, fence};

/// What a thief got.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Stolen<T> {
    /// The oldest item.
    Item(*mut T),
    /// Nothing is there.
    Empty,
    /// Another thief, or the owner, was faster; there may be more.
    Retry,
}

/// A ring of at most `N` pointers, `N` a power of two.
pub(crate) struct Deque<T, const N: usize> {
    newest: AtomicUsize,
    oldest: AtomicUsize,
    /// Not in place: it may be large, and is made on stacks that are small.
    slots: Box<[AtomicPtr<T>; N]>,
}

impl<T, const N: usize> Deque<T, N> {
    pub(crate) fn new() -> Self {
        const { assert!(N.is_power_of_two()) };
        let slots: Box<[AtomicPtr<T>]> = (0..N).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        let slots = slots.try_into().unwrap_or_else(|_| unreachable!("there are N slots"));
        Self { newest: AtomicUsize::new(0), oldest: AtomicUsize::new(0), slots }
    }

    /// Adds the newest item; `false` if there is no room. Owner only.
    #[inline]
    #[must_use]
    pub(crate) fn push(&self, item: *mut T) -> bool {
        let newest = self.newest.load(Relaxed);
        // Acquire: meets the AcqRel exchange in `steal`; a slot is reused only after its thief has read it (I3).
        if newest.wrapping_sub(self.oldest.load(Acquire)) >= N {
            return false;
        }
        self.slots[newest % N].store(item, Relaxed);
        // Release: meets the Acquire of `newest` in `steal`; carries the slot and the item's content. A fence, not a store: the thief may read
        // a value of `newest` that `pop` has written since, and a fence covers those stores too.
        fence(Release);
        self.newest.store(newest.wrapping_add(1), FENCED);
        true
    }

    /// Takes the newest item; null if there is none. Owner only.
    #[inline]
    pub(crate) fn pop(&self) -> *mut T {
        let newest = self.newest.load(Relaxed);
        let last = newest.wrapping_sub(1);
        match newest.wrapping_sub(self.oldest.load(Relaxed)) {
            // `oldest` only grows: seen empty, it is empty.
            0 => return ptr::null_mut(),
            // The last one is taken as a thief would, from the other end: the exchange alone decides, so nothing has to be fenced.
            1 => {
                let won = self.oldest.compare_exchange(last, newest, AcqRel, Relaxed).is_ok();
                return if won { self.slots[last % N].load(Relaxed) } else { ptr::null_mut() };
            }
            _ => {}
        }
        // FENCED, here and below: by the fence in `push`.
        self.newest.store(last, FENCED);
        // SeqCst: meets the fence in `steal`, see the head of the file.
        fence(SeqCst);
        let oldest = self.oldest.load(Relaxed);
        let left = last.wrapping_sub(oldest) as isize;
        if left > 0 {
            return self.slots[last % N].load(Relaxed);
        }
        let item = if left == 0 && self.oldest.compare_exchange(oldest, newest, AcqRel, Relaxed).is_ok() {
            self.slots[last % N].load(Relaxed)
        } else {
            ptr::null_mut()
        };
        self.newest.store(newest, FENCED);
        item
    }

    /// Takes the newest item if it is `wanted`. Owner only.
    #[must_use]
    pub(crate) fn pop_if_newest(&self, wanted: *mut T) -> bool {
        let newest = self.newest.load(Relaxed);
        // A thief may have it already: then the slot still tells its name, and `pop` that it is gone.
        self.slots[newest.wrapping_sub(1) % N].load(Relaxed) == wanted && self.pop() == wanted
    }

    /// Takes the oldest item; null if there is none. Owner only: it has moved `newest` itself, so nothing has to be fenced, and has written the slot.
    #[inline]
    pub(crate) fn pop_oldest(&self) -> *mut T {
        let newest = self.newest.load(Relaxed);
        let mut oldest = self.oldest.load(Relaxed);
        while oldest != newest {
            // Release: meets the Acquire in `steal` and `len`. Who finds this one gone sees what was pushed before that (`Worker::requeued`).
            match self.oldest.compare_exchange_weak(oldest, oldest.wrapping_add(1), Release, Relaxed) {
                Ok(_) => return self.slots[oldest % N].load(Relaxed),
                Err(now) => oldest = now,
            }
        }
        ptr::null_mut()
    }

    /// The oldest item and the one after it, or null. Owner only; thieves may have both by the time it looks at them.
    #[inline]
    pub(crate) fn oldest_two(&self) -> [*mut T; 2] {
        let oldest = self.oldest.load(Relaxed);
        let items = self.newest.load(Relaxed).wrapping_sub(oldest);
        let item = |at: usize| if at < items { self.slots[oldest.wrapping_add(at) % N].load(Relaxed) } else { ptr::null_mut() };
        [item(0), item(1)]
    }

    /// Takes the oldest item. Any thread.
    pub(crate) fn steal(&self) -> Stolen<T> {
        // Acquire: orders this look before the one at `newest` in the owner's eyes.
        let oldest = self.oldest.load(Acquire);
        // SeqCst: meets the fence in `pop`, see the head of the file.
        fence(SeqCst);
        // Acquire: meets the Release fence in `push`; carries the slot and the item's content.
        let newest = self.newest.load(Acquire);
        if newest.wrapping_sub(oldest) as isize <= 0 {
            return Stolen::Empty;
        }
        let item = self.slots[oldest % N].load(Relaxed);
        // AcqRel: its release meets the Acquire in `push`, so that the slot is not rewritten before it was read (I3).
        match self.oldest.compare_exchange(oldest, oldest.wrapping_add(1), AcqRel, Relaxed) {
            Ok(_) => Stolen::Item(item),
            Err(_) => Stolen::Retry,
        }
    }

    /// How many items a look sees, `N` at most: at least one where the owner pushes each before it takes the one before. A thief that takes that one may have seen no other, and then a look after it sees none; but the owner takes
    /// the other itself, or tells of it (`Worker::requeued`).
    #[inline]
    pub(crate) fn len(&self) -> usize {
        // Acquire: meets the Release in `pop_oldest` and `steal`, and comes before the look at `newest`: what its taker had pushed, or seen, before one was taken is seen by who sees that it was. A worker that lies down counts on this where
        // the taker is the owner: it is not called for what that has pushed behind one that was told of.
        let oldest = self.oldest.load(Acquire);
        let items = self.newest.load(Relaxed).wrapping_sub(oldest) as isize;
        // Any number may have come and gone between the two loads, if this thread was kept from its CPU there.
        items.clamp(0, N as isize) as usize
    }

    /// Whether there are none. By the owner, to whom no item is under way; others look at `len`.
    #[inline]
    pub(crate) fn has_none(&self) -> bool {
        self.newest.load(Relaxed) == self.oldest.load(Relaxed)
    }
}
