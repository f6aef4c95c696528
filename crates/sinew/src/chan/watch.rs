//! A value that others see change.
//!
//! There is one value, with a version; receivers see the last one, and wait for another. The value is in an `Arc`: to borrow it is to keep a snapshot, so that a reader never
//! keeps a sender waiting, nor the other way round, and no user code runs under a lock of ours (law R2). Rejected: a guard that locks the value (tokio): two fibers of
//! a thread that hold one each could wait for each other for ever.
//!
//! A `send` waits for nobody, not even for a `send_modify` whose closure runs: it replaces the value at once, and what that closure made is dropped when it ends. This is as if
//! the modification had come just before the send: nobody need have seen it, since receivers see the last value. Rejected: to have both take turns; a sender whose every call may wait for another's
//! closure would have to be a cancel point, and could not say that it ends.
//!
//! # Invariants
//! I1. While `writing`, one sender runs a user's closure on a copy of the value; nobody else does meanwhile. No value is dropped in that turn. It hands its turn on, to one that waits, or to nobody.
//! I2. Each change of the value has a version of its own; only a `send` changes it in another's turn.

use std::fmt;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::{Until, wake};
use super::error::{Cause, RecvError, SendError};
use super::line::{call, wait_while};
use crate::fiber::waiters::Waiters;
use crate::fiber::why::At;
use crate::os::fork;
use crate::os::lock::{Held, Lock};
use crate::rt::wait::{Cut, enter_counted_cancel_point};

/// Makes a channel that holds one value, whose receivers see the last one that was sent.
///
/// It cannot be an arm of a [`select!`](crate::select): let a fiber wait for changes, and forward them to a channel that can.
///
/// # Examples
/// ```
/// let (sender, mut receiver) = sinew::chan::watch("starting");
/// let watcher = sinew::spawn(move || {
///     while *receiver.borrow() != "ready" {
///         receiver.changed().unwrap();
///     }
/// });
/// sender.send("ready").unwrap();
/// watcher.join().unwrap();
/// ```
pub fn watch<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let (line, writers) = (Waiters::new(), Waiters::new());
    let inside = Inside { value: Arc::new(value), version: 0, senders: 1, receivers: 1, line, writing: false, writers };
    let channel = Arc::new(Lock::new(inside));
    (Sender { channel: channel.clone() }, Receiver { channel, seen: 0 })
}

struct Inside<T> {
    value: Arc<T>,
    version: u64,
    senders: usize,
    receivers: usize,
    /// They wait for a change.
    line: Waiters,
    writing: bool,
    /// They wait for their turn to change the value.
    writers: Waiters,
}

/// The sending side of a [`watch`](super::watch()) channel. It can be cloned.
pub struct Sender<T> {
    channel: Arc<Lock<Inside<T>>>,
}

/// A receiver of a [`watch`](super::watch()) channel.
///
/// It can be cloned; a clone has seen what this one has.
pub struct Receiver<T> {
    channel: Arc<Lock<Inside<T>>>,
    seen: u64,
}

// A panic leaves a value as it was or as it is to be; but a value that can be changed through a reference is seen by others.
impl<T: RefUnwindSafe> UnwindSafe for Sender<T> {}
impl<T: RefUnwindSafe> RefUnwindSafe for Sender<T> {}
impl<T: RefUnwindSafe> UnwindSafe for Receiver<T> {}
impl<T: RefUnwindSafe> RefUnwindSafe for Receiver<T> {}

/// The value at one moment, as [`borrow`](Receiver::borrow) saw it: later changes do not reach it, and it may be kept.
pub struct Ref<T> {
    value: Arc<T>,
}

impl<T> Deref for Ref<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Ref<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T> Sender<T> {
    /// Replaces the value, and wakes those who wait for a change.
    ///
    /// # Suspends
    /// No; so it is no cancel point either: one who is cancelled can still say how it went.
    ///
    /// # Errors
    /// If there is no receiver; `value` is in the error, and the old one stays.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        fork::refuse();
        let value = Arc::new(value);
        let inside = self.channel.lock();
        if inside.receivers == 0 {
            drop(inside);
            let value = Arc::into_inner(value).expect("nobody else has seen it");
            return Err(SendError::new(value, Cause::Disconnected));
        }
        drop(publish(inside, value));
        Ok(())
    }

    /// Has `modify` change a copy of the value, which then replaces it; wakes those who wait for a change. It is done also if there is no receiver.
    ///
    /// Those who modify take turns, so that no change is lost; receivers see the old value meanwhile. A [`send`](Self::send) that comes while `modify` runs, be it from there, counts as the later
    /// of both: its value stays. `modify` must not modify this very channel: it would wait for itself.
    ///
    /// # Suspends
    /// While another modifies the value, where `modify` does, and for a [turn](super#turns) of others after very many calls. A [cancel point](crate::cancelled): one that is cut short has not called `modify`. It fails also where it would not have to wait,
    /// if the caller is cancelled or late already.
    ///
    /// # Errors
    /// If the wait was cut short; `modify` is in the error.
    ///
    /// # Panics
    /// If `modify` does; the value stays as it was.
    ///
    /// # Examples
    /// ```
    /// let (sender, receiver) = sinew::chan::watch(vec![1]);
    /// sender.send_modify(|list| list.push(2)).unwrap();
    /// assert_eq!(*receiver.borrow(), [1, 2]);
    /// ```
    #[track_caller]
    pub fn send_modify<F>(&self, modify: F) -> Result<(), SendError<F>>
    where
        F: FnOnce(&mut T),
        T: Clone,
    {
        // Declared before the turn, and so dropped after it whatever happens: a value's destructor may modify this channel's.
        let (old, version);
        let mut new;
        let turn = match self.take_turn() {
            Ok(turn) => turn,
            Err(cut) => return Err(SendError::new(modify, cut)),
        };
        (old, version) = self.snapshot();
        new = Arc::new(T::clone(&old));
        modify(Arc::get_mut(&mut new).expect("nobody else has seen it"));
        let inside = self.channel.lock();
        let surplus = if inside.version == version {
            publish(inside, new)
        } else {
            // Somebody has sent (I2).
            drop(inside);
            new
        };
        drop(turn);
        drop(surplus);
        Ok(())
    }

    /// The value as it is now.
    pub fn borrow(&self) -> Ref<T> {
        Ref { value: self.channel.lock().value.clone() }
    }

    /// Makes a receiver that has seen the value as it is now.
    pub fn subscribe(&self) -> Receiver<T> {
        let mut inside = self.channel.lock();
        inside.receivers += 1;
        Receiver { channel: self.channel.clone(), seen: inside.version }
    }

    /// Whether there is no receiver.
    pub fn is_disconnected(&self) -> bool {
        self.receiver_count() == 0
    }

    /// How many receivers there are.
    pub fn receiver_count(&self) -> usize {
        self.channel.lock().receivers
    }

    /// The value and its version.
    fn snapshot(&self) -> (Arc<T>, u64) {
        let inside = self.channel.lock();
        (inside.value.clone(), inside.version)
    }

    /// Waits until nobody else is writing (I1). A cancel point.
    #[track_caller]
    fn take_turn(&self) -> Result<Turn<'_, T>, Cut> {
        fork::refuse();
        enter_counted_cancel_point()?;
        let is_anothers = |inside: &mut Inside<T>| std::mem::replace(&mut inside.writing, true);
        if is_anothers(&mut self.channel.lock()) {
            // Who claims this one leaves it the turn.
            wait_while(&self.channel, |inside| &mut inside.writers, is_anothers, At::Watch, Until::Forever)?;
        }
        Ok(Turn(self))
    }
}

/// Makes `value` the value, and wakes those who wait for it. Gives the old one, which is dropped without the turn (I1).
#[must_use]
fn publish<T>(mut inside: Held<'_, Inside<T>>, value: Arc<T>) -> Arc<T> {
    let old = std::mem::replace(&mut inside.value, value);
    inside.version += 1;
    let wakes = call(&mut inside.line);
    drop(inside);
    wakes.pay();
    old
}

/// The turn to write; handed on when it is dropped.
struct Turn<'a, T>(&'a Sender<T>);

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        // As in a sender's, where it was `modify` that forked.
        if fork::is_child() {
            return;
        }
        let mut inside = self.0.channel.lock();
        let next = inside.writers.claim_first(|()| ());
        inside.writing = next.is_some();
        drop(inside);
        wake(next);
    }
}

impl<T> Receiver<T> {
    /// The value as it is now. It does not count as seen.
    pub fn borrow(&self) -> Ref<T> {
        Ref { value: self.channel.lock().value.clone() }
    }

    /// The value as it is now; the next [`changed`](Self::changed) waits for another.
    pub fn borrow_and_update(&mut self) -> Ref<T> {
        let inside = self.channel.lock();
        self.seen = inside.version;
        Ref { value: inside.value.clone() }
    }

    /// Whether there is a value that was not seen.
    ///
    /// # Errors
    /// [`RecvError::Disconnected`] if there is none, and no sender any more.
    pub fn has_changed(&self) -> Result<bool, RecvError> {
        let inside = self.channel.lock();
        match inside.version != self.seen {
            false if inside.senders == 0 => Err(RecvError::Disconnected),
            changed => Ok(changed),
        }
    }

    /// Waits until there is a value that was not seen; then it counts as seen. Of several changes since, it is the last.
    ///
    /// # Suspends
    /// Until then, and for a [turn](super#turns) of others after very many calls. A [cancel point](crate::cancelled): one that is cut short misses nothing.
    ///
    /// # Errors
    /// If there is no sender any more and the last value was seen, or the wait was cut short.
    #[track_caller]
    pub fn changed(&mut self) -> Result<(), RecvError> {
        self.changed_until(Until::Forever)
    }

    /// As [`changed`](Self::changed), for at most `timeout`.
    ///
    /// # Suspends
    /// As [`changed`](Self::changed).
    ///
    /// # Errors
    /// As [`changed`](Self::changed); [`is_timeout`](RecvError::is_timeout) if nothing changed in time.
    #[track_caller]
    pub fn changed_timeout(&mut self, timeout: Duration) -> Result<(), RecvError> {
        self.changed_until(Until::After(timeout))
    }

    /// As [`changed`](Self::changed), until `deadline`.
    ///
    /// # Suspends
    /// As [`changed`](Self::changed).
    ///
    /// # Errors
    /// As [`changed_timeout`](Self::changed_timeout).
    #[track_caller]
    pub fn changed_deadline(&mut self, deadline: Instant) -> Result<(), RecvError> {
        self.changed_until(Until::At(deadline))
    }

    #[track_caller]
    fn changed_until(&mut self, until: Until) -> Result<(), RecvError> {
        enter_counted_cancel_point()?;
        if !self.has_changed()? {
            let seen = self.seen;
            let must_wait = |inside: &mut Inside<T>| inside.version == seen && inside.senders > 0;
            wait_while(&self.channel, |inside| &mut inside.line, must_wait, At::Watch, until)?;
            // Woken by a change, or by the end of the last sender.
            self.has_changed()?;
        }
        self.borrow_and_update();
        Ok(())
    }

    /// Waits until the value, which may be the one that was seen last, is such that `condition` holds; gives it.
    ///
    /// # Suspends
    /// As [`changed`](Self::changed), as often as need be.
    ///
    /// # Errors
    /// As [`changed`](Self::changed).
    #[track_caller]
    pub fn wait_for(&mut self, condition: impl FnMut(&T) -> bool) -> Result<Ref<T>, RecvError> {
        self.wait_for_until(condition, Until::Forever)
    }

    /// As [`wait_for`](Self::wait_for), for at most `timeout`.
    ///
    /// # Suspends
    /// As [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    /// As [`wait_for`](Self::wait_for); [`is_timeout`](RecvError::is_timeout) if there was no such value in time.
    ///
    /// # Examples
    /// ```
    /// let (sender, mut receiver) = sinew::chan::watch(1);
    /// let hour = std::time::Duration::from_secs(3600);
    /// sinew::spawn(move || (2..5).try_for_each(|value| sender.send(value)));
    /// assert_eq!(*receiver.wait_for_timeout(|value| *value > 3, hour).unwrap(), 4);
    /// ```
    #[track_caller]
    pub fn wait_for_timeout(&mut self, condition: impl FnMut(&T) -> bool, timeout: Duration) -> Result<Ref<T>, RecvError> {
        self.wait_for_until(condition, Until::After(timeout))
    }

    /// As [`wait_for`](Self::wait_for), until `deadline`.
    ///
    /// # Suspends
    /// As [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    /// As [`wait_for_timeout`](Self::wait_for_timeout).
    #[track_caller]
    pub fn wait_for_deadline(&mut self, condition: impl FnMut(&T) -> bool, deadline: Instant) -> Result<Ref<T>, RecvError> {
        self.wait_for_until(condition, Until::At(deadline))
    }

    #[track_caller]
    fn wait_for_until(&mut self, mut condition: impl FnMut(&T) -> bool, until: Until) -> Result<Ref<T>, RecvError> {
        enter_counted_cancel_point()?;
        let until = until.fixed();
        loop {
            // Asked before the look, so that a value that came in time counts; and for each, since it need not wait while there is always another.
            let is_over = until.is_over();
            let value = self.borrow_and_update();
            if condition(&value) {
                return Ok(value);
            }
            if is_over {
                return Err(RecvError::TimedOut);
            }
            // Not kept while it waits: it may be large.
            drop(value);
            self.changed_until(until)?;
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.channel.lock().senders += 1;
        Self { channel: self.channel.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever.
        if fork::is_child() {
            return;
        }
        let mut inside = self.channel.lock();
        inside.senders -= 1;
        if inside.senders == 0 {
            let wakes = call(&mut inside.line);
            drop(inside);
            wakes.pay();
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.channel.lock().receivers += 1;
        Self { channel: self.channel.clone(), seen: self.seen }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // As in a sender's.
        if !fork::is_child() {
            self.channel.lock().receivers -= 1;
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("Sender { .. }")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("Receiver { .. }")
    }
}

#[cfg(test)]
mod tests {
    use std::mem::forget;

    use super::*;
    use crate::base::atomic::AS_IN_MEMORY;

    // The lock is held where the fork is made, as by a thread that is not in the child.
    #[test]
    fn a_forked_child_drops_handles_though_the_lock_is_held() {
        if !AS_IN_MEMORY {
            return;
        }
        let (sender, receiver) = watch(0);
        let channel = sender.channel.clone();
        let held = channel.lock();
        assert!(fork::child_does(|| drop((sender, receiver))));
        forget(held);
    }
}
