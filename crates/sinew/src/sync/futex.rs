//! `Futex`: a 32-bit word that can be waited at; bthread's butex.
//!
//! # How a waiter is found in the queue it is in now
//! `requeue` moves waiters from one futex to another, and one whose time is up must take itself out of the queue that it is in by then. That queue's futex need not be one that the waiter borrows:
//! it may be moved or dropped at any time. So a queue is no part of its futex: it is taken from a pool at the first wait and given back when the futex is dropped, and its memory is a queue's for
//! ever (`queues.rs`). A late waiter reads where it is, locks that queue, and looks again: if it has been moved meanwhile, it tries the next. At worst it locks for a moment a queue
//! that has become another futex's.
//!
//! Rejected: the queue's head in the futex, under locks shared by address: a futex that waiters were moved to could not be moved itself. One table of queues by address, as the kernel's: `waiters.rs`
//! says why.
//!
//! # Invariants
//! I1. `Place::at` of a queued waiter is the queue it is in. It changes under the locks of both queues. So one who holds a queue's lock and reads that queue there knows that it stays.
//! I2. A waiter looks at the word under the lock of its futex's queue, after it has queued nowhere: a change of the word, followed by a `wake`, is seen or wakes it.
//! I3. Two queues are locked in the order of their addresses.
//!
//! # Memory order
//! - The word against the pointer to the queue: a waker changes the word and then looks whether there is a queue; a waiter makes one and then looks at the word. Each has a SeqCst fence between
//!   the two, so that one of them sees what the other did (store buffering; Release and Acquire would allow both to miss).
//! - Where a waiter is moved to is a Release, and a late waiter reads it by an Acquire, before it has that queue's lock: it must see the queue as made.
//! - With a queue there, its lock orders the rest.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr;
use std::time::Duration;

use super::queues;
use crate::base::atomic::{AcqRel, Acquire, AtomicPtr, AtomicU32, Relaxed, Release, SeqCst, fence, in_statics};
use crate::fiber::state::Cause;
use crate::fiber::waiters::{Waiter, Waiters};
use crate::fiber::why::{At, Why};
use crate::os::lock::{Held, Lock};
use crate::os::{clock, fork};
use crate::rt::wait::{Me, Wakes};

/// Those who wait at one futex. Its memory is a queue's for ever.
pub(crate) struct Queue(pub(crate) Lock<Waiters<Place>>);

/// Where a waiter is: in this queue, or in none.
pub(crate) struct Place {
    at: AtomicPtr<Queue>,
}

/// A 32-bit word, and a queue of fibers and plain threads that wait until it is changed: what other primitives can be built of.
///
/// As Linux's futex and bthread's butex: [`wait`](Self::wait) waits only if the word is what the caller expects, and the look and the queueing are one step for every [`wake`](Self::wake). Who
/// changes the word wakes; who was woken looks at the word again. It can be a `static`.
///
/// A futex may be freed by one who was woken, although the `wake` has not returned yet. One who was not woken, and merely finds the word changed, does not know that: the waker may be about to
/// come.
///
/// # Suspends
/// `wait` and `wait_timeout` do, while the word is as expected and nobody wakes them. They are no [cancel points](crate::cancelled).
///
/// # Examples
/// ```
/// static DOOR: sinew::sync::Futex = sinew::sync::Futex::new(0);
/// sinew::spawn(|| {
///     DOOR.store(1);
///     DOOR.wake_all();
/// });
/// while DOOR.load() == 0 {
///     DOOR.wait(0);
/// }
/// ```
pub struct Futex {
    word: AtomicU32,
    /// Null until the first wait; then it stays the same.
    queue: AtomicPtr<Queue>,
}

/// How a wait at a [`Futex`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum FutexWait {
    /// By a wake.
    Woken,
    /// At once: the word was not what the caller expected.
    Changed,
    /// The time was up.
    TimedOut,
}

/// What [`Futex::requeue`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requeued {
    /// So many were woken.
    pub woken: usize,
    /// So many wait at the other futex now.
    pub moved: usize,
}

impl Futex {
    in_statics! {
        /// A futex with this value.
        pub const fn new(value: u32) -> Self {
            Self { word: AtomicU32::new(value), queue: AtomicPtr::new(ptr::null_mut()) }
        }
    }

    /// The word's value. Acquire: sees what was written before the value was stored.
    #[inline]
    pub fn load(&self) -> u32 {
        // Acquire: meets the Release of whoever changed the word.
        self.word.load(Acquire)
    }

    /// Sets the word. Release: whoever loads the value sees what was written before. It wakes nobody.
    #[inline]
    pub fn store(&self, value: u32) {
        // Release: meets the Acquire of whoever loads the word.
        self.word.store(value, Release);
    }

    /// Sets the word and gives what it was; as `load` and `store`.
    #[inline]
    pub fn swap(&self, value: u32) -> u32 {
        // AcqRel: as `load` and `store`; so are the others below.
        self.word.swap(value, AcqRel)
    }

    /// Sets the word to `new` if it is `current`; gives what it was.
    ///
    /// # Errors
    /// What it is, if that is another.
    #[inline]
    pub fn compare_exchange(&self, current: u32, new: u32) -> Result<u32, u32> {
        self.word.compare_exchange(current, new, AcqRel, Acquire)
    }

    /// Adds to the word, wrapping around; gives what it was.
    #[inline]
    pub fn fetch_add(&self, value: u32) -> u32 {
        self.word.fetch_add(value, AcqRel)
    }

    /// Subtracts from the word, wrapping around; gives what it was.
    #[inline]
    pub fn fetch_sub(&self, value: u32) -> u32 {
        self.word.fetch_sub(value, AcqRel)
    }

    /// Sets bits of the word; gives what it was.
    #[inline]
    pub fn fetch_or(&self, value: u32) -> u32 {
        self.word.fetch_or(value, AcqRel)
    }

    /// Keeps bits of the word; gives what it was.
    #[inline]
    pub fn fetch_and(&self, value: u32) -> u32 {
        self.word.fetch_and(value, AcqRel)
    }

    /// Waits for a wake, if the word is `expected`; `false` if it is not, at once.
    ///
    /// It does not wake spuriously.
    ///
    /// # Suspends
    /// Yes, if the word is `expected`. No cancel point.
    ///
    /// # Panics
    /// If it has to wait inside [`no_suspend`](crate::no_suspend).
    #[track_caller]
    pub fn wait(&self, expected: u32) -> bool {
        self.wait_until(expected, u64::MAX) == FutexWait::Woken
    }

    /// As [`wait`](Self::wait), at most for `timeout`.
    ///
    /// # Suspends
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_timeout(&self, expected: u32, timeout: Duration) -> FutexWait {
        self.wait_until(expected, clock::deadline_ns(timeout))
    }

    /// Wakes at most `count` of those who wait, the longest first; says how many.
    ///
    /// # Suspends
    /// No.
    #[track_caller]
    pub fn wake(&self, count: usize) -> usize {
        let Some(queue) = self.queue_if_any() else { return 0 };
        fork::refuse();
        let wakes = Wakes::none();
        let mut held = queue.0.lock();
        let woken = claim(&mut held, &wakes, count);
        drop(held);
        wakes.pay();
        woken
    }

    /// Wakes all who wait; says how many.
    ///
    /// # Suspends
    /// No.
    #[track_caller]
    pub fn wake_all(&self) -> usize {
        self.wake(usize::MAX)
    }

    /// Wakes at most `wake` of those who wait, and lets the rest wait at `other`, behind those who are there.
    ///
    /// A moved one is woken by wakes of `other`, or at its own deadline; it does not look at the word of `other`. If `other` is dropped, those who were moved to it are woken.
    ///
    /// # Suspends
    /// No.
    #[track_caller]
    pub fn requeue(&self, other: &Futex, wake: usize) -> Requeued {
        let Some(from) = self.queue_if_any() else { return Requeued { woken: 0, moved: 0 } };
        fork::refuse();
        let to = other.queue();
        if ptr::eq(from, to) {
            return Requeued { woken: self.wake(wake), moved: 0 };
        }
        let wakes = Wakes::none();
        let (mut held_from, mut held_to) = lock_both(from, to);
        let woken = claim(&mut held_from, &wakes, wake);
        let moved = move_all(&mut held_from, &mut held_to, to);
        drop((held_from, held_to));
        wakes.pay();
        Requeued { woken, moved }
    }

    #[track_caller]
    pub(crate) fn wait_until(&self, expected: u32, deadline_ns: u64) -> FutexWait {
        if self.load() != expected {
            return FutexWait::Changed;
        }
        let me = Me::to_wait();
        let queue = self.queue();
        // Pairs with the fence in `queue_if_any`: see the head of the file.
        fence(SeqCst);
        let waiter = Waiter::new(me.control(), Place { at: AtomicPtr::new(ptr::from_ref(queue).cast_mut()) });
        let mut held = queue.0.lock();
        if self.load() != expected {
            return FutexWait::Changed;
        }
        // SAFETY: it is new, and stays here until it was claimed or withdrawn.
        unsafe { held.push(&waiter) };
        me.begin_wait(Why::At(At::Futex));
        drop(held);
        // SAFETY: queued and begun just now, under the lock of its queue, under which it is claimed. Nobody has to leave before the caller goes on: a waker touches the queue alone, which stays.
        match unsafe { me.wait(deadline_ns) } {
            Cause::Woken => FutexWait::Woken,
            _ => {
                withdraw(&waiter);
                FutexWait::TimedOut
            }
        }
    }

    /// The queue, which is taken from the pool if there is none.
    fn queue(&self) -> &'static Queue {
        // Acquire: meets the Release below; carries how the queue was made.
        let now = self.queue.load(Acquire);
        // SAFETY: a queue's memory is one for ever.
        unsafe { now.as_ref() }.unwrap_or_else(|| self.make_queue())
    }

    #[cold]
    fn make_queue(&self) -> &'static Queue {
        let new = queues::take();
        // AcqRel: Release meets the Acquire of who finds it; Acquire meets that Release if another was faster.
        match self.queue.compare_exchange(ptr::null_mut(), ptr::from_ref(new).cast_mut(), AcqRel, Acquire) {
            Ok(_) => new,
            Err(other) => {
                queues::give_back(new);
                // SAFETY: a queue's memory is one for ever.
                unsafe { &*other }
            }
        }
    }

    /// The queue, if anybody has ever waited. By one who has changed the word before.
    fn queue_if_any(&self) -> Option<&'static Queue> {
        // Pairs with the fence in `wait_until`: see the head of the file.
        fence(SeqCst);
        // Acquire: meets the Release in `make_queue`.
        // SAFETY: a queue's memory is one for ever.
        unsafe { self.queue.load(Acquire).as_ref() }
    }
}

/// Claims at most `count` waiters; says how many.
fn claim(queue: &mut Waiters<Place>, wakes: &Wakes, count: usize) -> usize {
    let mut claimed = 0;
    while claimed < count
        && let Some(waiter) = queue.claim_first(|_| ())
    {
        wakes.add(waiter);
        claimed += 1;
    }
    claimed
}

/// Locks two queues, in the order of their addresses (I3).
fn lock_both<'a>(a: &'a Queue, b: &'a Queue) -> (Held<'a, Waiters<Place>>, Held<'a, Waiters<Place>>) {
    if ptr::from_ref(a) < ptr::from_ref(b) {
        let held_a = a.0.lock();
        (held_a, b.0.lock())
    } else {
        let held_b = b.0.lock();
        (a.0.lock(), held_b)
    }
}

/// Moves all waiters behind those at `to`; says how many. Under both locks.
fn move_all(from: &mut Waiters<Place>, into: &mut Waiters<Place>, to: &'static Queue) -> usize {
    let mut moved = 0;
    while let Some(waiter) = from.first().map(ptr::from_ref) {
        // SAFETY: what is in a queue is valid while its lock is held, and is taken out of one before it is put into the other.
        unsafe {
            from.remove(&*waiter);
            // Release: meets the Acquire in `withdraw`; carries how the queue was made.
            (*waiter).note.at.store(ptr::from_ref(to).cast_mut(), Release);
            into.push(&*waiter);
        }
        moved += 1;
    }
    moved
}

/// Takes a waiter whose time is up out of the queue that it is in by now.
fn withdraw(waiter: &Waiter<Place>) {
    loop {
        // Acquire: meets the Release in `move_all`.
        let at = waiter.note.at.load(Acquire);
        // SAFETY: a queue's memory is one for ever, whosever it is by now.
        let mut held = unsafe { &*at }.0.lock();
        // I1: if it is still so under the lock, it stays so.
        if ptr::eq(waiter.note.at.load(Relaxed), at) {
            // SAFETY: I1 - it is in this queue or in none.
            unsafe { held.remove(waiter) };
            return;
        }
    }
}

impl Drop for Futex {
    fn drop(&mut self) {
        // In a forked child it may be locked for ever, as may be the spare ones.
        // SAFETY: a queue's memory is one for ever.
        if let Some(queue) = unsafe { self.queue.load(Relaxed).as_ref() }
            && !fork::is_child()
        {
            // Whoever waits here was moved here.
            self.wake_all();
            queues::give_back(queue);
        }
    }
}

// No user code runs under its lock, so no panic leaves what is there half done.
impl UnwindSafe for Futex {}
impl RefUnwindSafe for Futex {}

impl Default for Futex {
    fn default() -> Self {
        Self::new(0)
    }
}

impl fmt::Debug for Futex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Futex").field("value", &self.load()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::atomic::AS_IN_MEMORY;

    // The lock is held where the fork is made, as by a thread that is not in the child.
    #[test]
    fn a_forked_child_drops_a_futex_though_its_queue_is_held() {
        if !AS_IN_MEMORY {
            return;
        }
        let futex = Futex::new(0);
        let held = futex.queue().0.lock();
        assert!(fork::child_does(|| drop(futex)));
        drop(held);
    }
}
