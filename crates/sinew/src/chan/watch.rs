//! A value that others see change.
//!
//! There is one value, with a version; receivers see the last one, and wait for another. The value is in an `Arc`: to borrow it is to keep a snapshot, so that a reader never
//! keeps a sender waiting, nor the other way round, and no user code runs under a lock of ours (law R2). Rejected: a guard that locks the value (tokio): two fibers of
//! a thread that hold one each could wait for each other for ever.
//!
//! # Invariants
//! I1. While `writing`, one sender runs a user's closure on a copy of the value; nobody else changes the value meanwhile. No value is dropped in that turn. It hands its turn on, to one that waits, or to nobody.

use std::fmt;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::{Until, wake};
use super::error::{Cause, RecvError, SendError};
use super::line::{Line, call, wait_while};
use crate::fiber::waiters::{Waiter, Waiters};
use crate::fiber::why::{At, Why};
use crate::os::fork;
use crate::os::lock::{Held, Lock};
use crate::rt::wait::{Me, enter_cancel_point};

/// Makes a channel that holds one value, whose receivers see the last one that was sent.
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

impl<T> Line for Inside<T> {
    fn line(&mut self) -> &mut Waiters {
        &mut self.line
    }
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
    /// Only while another sender's [`send_modify`](Self::send_modify) runs its closure. No cancel point.
    ///
    /// # Errors
    /// If there is no receiver; `value` is in the error, and the old one stays.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        fork::refuse();
        let value = Arc::new(value);
        let mut inside = self.channel.lock();
        let mut turn = None;
        if inside.writing {
            drop(inside);
            turn = Some(self.take_turn());
            inside = self.channel.lock();
        }
        if inside.receivers == 0 {
            drop(inside);
            drop(turn);
            let value = Arc::into_inner(value).expect("nobody else has seen it");
            return Err(SendError::new(value, Cause::Disconnected));
        }
        let old = publish(inside, value);
        // A value's destructor may send to this channel.
        drop(turn);
        drop(old);
        Ok(())
    }

    /// Has `modify` change a copy of the value, which then replaces it; wakes those who wait for a change. Senders take turns, so that no change is lost; receivers see the old
    /// value meanwhile. It is done also if there is no receiver.
    ///
    /// `modify` must not send to this very channel: it would wait for itself.
    ///
    /// # Suspends
    /// While another sender modifies the value, and where `modify` does. No cancel point.
    ///
    /// # Panics
    /// If `modify` does; the value stays as it was.
    #[track_caller]
    pub fn send_modify(&self, modify: impl FnOnce(&mut T))
    where
        T: Clone,
    {
        // Declared before the turn: if `modify` panics, it is dropped after the turn was handed on, and may send to this channel.
        let mut value;
        let turn = self.take_turn();
        value = Arc::new(T::clone(&self.borrow()));
        modify(Arc::get_mut(&mut value).expect("nobody else has seen it"));
        let old = publish(self.channel.lock(), value);
        drop(turn);
        drop(old);
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

    /// Waits until nobody else is writing (I1). Not a cancel point, as no lock is.
    #[track_caller]
    fn take_turn(&self) -> Turn<'_, T> {
        fork::refuse();
        let mut inside = self.channel.lock();
        if inside.writing {
            drop(inside);
            self.wait_for_turn();
        } else {
            inside.writing = true;
        }
        Turn(self)
    }

    #[cold]
    #[track_caller]
    fn wait_for_turn(&self) {
        let me = Me::to_wait();
        let waiter = Waiter::new(me.control(), ());
        let mut inside = self.channel.lock();
        if !std::mem::replace(&mut inside.writing, true) {
            return;
        }
        // SAFETY: it is new, and stays in this frame until it was claimed: nothing else ends this wait.
        unsafe { inside.writers.push(&waiter) };
        me.begin_wait(Why::At(At::Watch));
        drop(inside);
        // SAFETY: the wait was begun above; whoever has the turn ends it.
        unsafe { me.wait(u64::MAX) };
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
    /// Until then. A [cancel point](crate::cancelled): one that is cut short misses nothing.
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
        enter_cancel_point()?;
        if !self.has_changed()? {
            let seen = self.seen;
            let must_wait = |inside: &Inside<T>| inside.version == seen && inside.senders > 0;
            wait_while(&self.channel, must_wait, At::Watch, until)?;
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
    pub fn wait_for(&mut self, mut condition: impl FnMut(&T) -> bool) -> Result<Ref<T>, RecvError> {
        enter_cancel_point()?;
        loop {
            let value = self.borrow_and_update();
            if condition(&value) {
                return Ok(value);
            }
            // Not kept while it waits: it may be large.
            drop(value);
            self.changed_until(Until::Forever)?;
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
        self.channel.lock().receivers -= 1;
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
