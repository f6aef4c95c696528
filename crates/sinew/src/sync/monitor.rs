//! A state and those who wait for it to change: what most objects here are made of.
//!
//! Who waits goes inside, looks, queues, and leaves by the same door; who wakes goes inside, changes the state, takes waiters out, and leaves. The state's bits are each object's own.
//!
//! # Why the object may be freed by a woken one
//! The state changes as its changer leaves (`os/state_lock.rs`). A woken fiber is made ready after that; a woken thread passes through the lock, so that its waker has left by then.

use crate::fiber::state::Cause;
use crate::fiber::waiters::{Waiter, Waiters};
use crate::fiber::why::{At, Why};
use crate::os::state_lock::{Inside, StateLock};
use crate::rt::wait::{Me, Wakes};

/// A state, and a queue.
pub(super) type Monitor<N = ()> = StateLock<Waiters<N>>;

/// How to wait, for whoever is inside a monitor.
pub(super) trait Wait<'a, N: 'a>: Sized {
    /// Leaves, and waits behind all others until somebody wakes the caller, or until `deadline_ns`: then `withdrawn` is called, inside again, with whether the caller was still queued.
    fn wait(self, me: &Me, at: At, deadline_ns: u64, note: N, withdrawn: impl FnOnce(Inside<'a, Waiters<N>>, bool)) -> Cause;

    /// Leaves, and wakes all that wait; says how many.
    fn wake_all(self) -> usize;
}

impl<'a, N: 'a> Wait<'a, N> for Inside<'a, Waiters<N>> {
    fn wait(mut self, me: &Me, at: At, deadline_ns: u64, note: N, withdrawn: impl FnOnce(Inside<'a, Waiters<N>>, bool)) -> Cause {
        let waiter = Waiter::new(me.control(), note);
        // SAFETY: it is new, and stays here until `await_wake` returns.
        unsafe { self.push(&waiter) };
        me.begin_wait(Why::At(at));
        let monitor = self.of();
        drop(self);
        // SAFETY: queued and begun just now, inside, where it is claimed; it is removed from the queue that it was pushed to.
        unsafe {
            await_wake(me, monitor, deadline_ns, |mut inside| {
                let queued = inside.remove(&waiter);
                withdrawn(inside, queued);
            })
        }
    }

    fn wake_all(mut self) -> usize {
        let (wakes, mut woken) = (Wakes::none(), 0);
        while let Some(claimed) = self.claim_first(|_| ()) {
            wakes.add(claimed);
            woken += 1;
        }
        drop(self);
        wakes.pay();
        woken
    }
}

/// As `Me::wait_at`, at a monitor or the like: `withdraw` takes the waiter out when the wait was not ended by a claim.
///
/// # Safety
/// As `Me::wait_at`.
pub(super) unsafe fn await_wake<'a, Q>(me: &Me, lock: &'a StateLock<Q>, deadline_ns: u64, withdraw: impl FnOnce(Inside<'a, Q>)) -> Cause {
    // SAFETY: the caller's promise.
    let cause = unsafe { me.wait(deadline_ns) };
    match cause {
        Cause::Woken if me.may_be_early() => drop(lock.lock()),
        Cause::Woken => {}
        _ => withdraw(lock.lock()),
    }
    cause
}
