//! Channels: messages from fiber to fiber, from thread to thread, and between both.
//!
//! | | senders | receivers | a message reaches | holds |
//! |---|---|---|---|---|
//! | [`bounded`] | many | many | one receiver | `n` messages, or none: then both sides meet |
//! | [`unbounded`] | many | many | one receiver | any number |
//! | [`oneshot`](oneshot()) | one | one | the receiver | one message, ever |
//! | [`broadcast`](broadcast()) | many | many | every receiver | the last `n` messages: who is slower misses some, and is told |
//! | [`watch`](watch()) | many | many | every receiver | the last value |
//!
//! [`Sender`] and [`Receiver`] have the names and the behaviour of crossbeam-channel's; [`select!`](crate::select) waits for several at once. Differences: a wait suspends the fiber (on a
//! plain thread it blocks the thread), and sends and receives are [cancel points](crate::cancelled), so their errors have more cases. [`broadcast`](broadcast()) and
//! [`watch`](watch()) channels cannot be arms of a `select!`.
//!
//! No channel is a future. Async code awaits a fiber that receives: `spawn(move || receiver.recv()).await`. To drop that handle, as a `select!` or a time-out of the executor does, detaches the fiber, which takes a message all the same:
//! [`cancel`](crate::JoinHandle::cancel) it and await what it gives, a message or [`RecvError::Cancelled`].
//!
//! # Order
//! Messages are received in the order in which they were sent. Those who wait, on either side, are served in the order in which they came, and nobody overtakes them.
//!
//! # Turns
//! A fiber that loops over channels and never has to wait lets the others of its worker run all the same, after 256 calls or so: at the entry of a call that may suspend, be it a send to an [`unbounded`] channel.
//! It is not a cancel point of its own. It does not happen inside [`no_suspend`](crate::no_suspend), nor in what is said never to suspend: `try_send`, `try_recv`, `try_iter`, a `select!` with `default`, the sends of
//! `oneshot`, `broadcast` and `watch`. A loop of those holds its worker; a [`yield_now`](crate::yield_now) in it helps.
//!
//! # Large messages
//! A message is moved, through the stacks of both sides, and a fiber's stack is small: one of many kilobytes belongs in a `Box`.

pub mod broadcast;
mod buffer;
mod channel;
mod error;
mod iter;
mod line;
pub mod oneshot;
#[doc(hidden)]
pub mod select;
pub mod watch;

use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::os::fork;
use crate::rt::wait::enter_counted_cancel_point;
pub use broadcast::broadcast;
use buffer::Buffer;
use channel::{Channel, Until};
pub use error::{Cause, RecvError, SendError, TryRecvError, TrySendError};
pub use iter::{IntoIter, Iter, TryIter};
pub use oneshot::oneshot;
pub use select::{Receives, Select, SelectTimeoutError, SelectedOperation, Sends};
pub use watch::watch;

#[doc(inline)]
pub use crate::select;

/// Makes a channel that holds at most `capacity` messages: who sends more waits.
///
/// With a capacity of 0 a message is handed over when both sides are there.
///
/// The memory for so many messages is taken at once.
///
/// # Panics
/// If there is no memory for so many messages.
///
/// # Examples
/// ```
/// let (sender, receiver) = sinew::chan::bounded(1);
/// let numbers = sinew::spawn(move || (0..5).try_for_each(|n| sender.send(n)));
/// assert_eq!(receiver.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
/// numbers.join().unwrap().unwrap();
/// ```
#[doc(alias = "sync_channel")]
#[track_caller]
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    new(Buffer::bounded(capacity))
}

/// Makes a channel that holds any number of messages: a send never waits, but it may [let others run](self#turns).
///
/// # Examples
/// ```
/// let (sender, receiver) = sinew::chan::unbounded();
/// sender.send("a").unwrap();
/// sender.send("b").unwrap();
/// assert_eq!((receiver.recv(), receiver.recv()), (Ok("a"), Ok("b")));
/// ```
#[doc(alias = "channel")]
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    new(Buffer::unbounded())
}

/// Makes a receiver to which nothing ever comes: for an arm of a [`select!`](crate::select) that is to rest for now.
///
/// # Examples
/// ```
/// use sinew::chan::{TryRecvError, never};
/// assert_eq!(never::<u8>().try_recv(), Err(TryRecvError::Empty));
/// ```
pub fn never<T>() -> Receiver<T> {
    // Its one sender is nowhere, so it never goes away.
    Receiver { channel: Arc::new(Channel::new(Buffer::bounded(0))) }
}

fn new<T>(buffer: Buffer<T>) -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel::new(buffer));
    (Sender { channel: channel.clone() }, Receiver { channel })
}

/// The sending side of a channel.
///
/// It can be cloned; when the last one is dropped, receivers get what is left and then [`RecvError::Disconnected`].
pub struct Sender<T> {
    channel: Arc<Channel<T>>,
}

/// The receiving side of a channel.
///
/// It can be cloned: each message reaches one of the receivers. When the last one is dropped, messages that are left are dropped too, and sends fail.
pub struct Receiver<T> {
    channel: Arc<Channel<T>>,
}

// A handle gives no access to what a panic may have left half done: messages are moved whole.
impl<T> UnwindSafe for Sender<T> {}
impl<T> RefUnwindSafe for Sender<T> {}
impl<T> UnwindSafe for Receiver<T> {}
impl<T> RefUnwindSafe for Receiver<T> {}

impl<T> Sender<T> {
    /// The channel, without a word to it: the caller tells it that this sender goes.
    fn into_channel(self) -> Arc<Channel<T>> {
        let sender = ManuallyDrop::new(self);
        // SAFETY: the handle is not used any more, and not dropped.
        unsafe { ptr::read(&sender.channel) }
    }

    /// Sends `value`, and waits while the channel is full; if it holds none, until a receiver takes it.
    ///
    /// # Suspends
    /// While there is no room, and for a [turn](super::chan#turns) of others after very many calls. A [cancel point](crate::cancelled): one that is cut short has not sent, and gives the message back. It fails also where it
    /// would not have to wait, if the caller is cancelled or late already.
    ///
    /// # Errors
    /// If there is no receiver any more, or the wait was cut short; `value` is in the error.
    ///
    /// # Examples
    /// ```
    /// let (sender, receiver) = sinew::chan::bounded(1);
    /// assert_eq!(sender.send(1), Ok(()));
    /// drop(receiver);
    /// assert_eq!(sender.send(2).unwrap_err().into_inner(), 2);
    /// ```
    #[inline]
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.send_until(value, Until::Forever)
    }

    /// Sends `value`, and waits for at most `timeout` while the channel is full.
    ///
    /// # Suspends
    /// As [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send); [`is_timeout`](SendError::is_timeout) if there was no room in time.
    #[inline]
    #[track_caller]
    pub fn send_timeout(&self, value: T, timeout: Duration) -> Result<(), SendError<T>> {
        self.send_until(value, Until::After(timeout))
    }

    /// Sends `value`, and waits until `deadline` while the channel is full.
    ///
    /// # Suspends
    /// As [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send_timeout`](Self::send_timeout).
    #[inline]
    #[track_caller]
    pub fn send_deadline(&self, value: T, deadline: Instant) -> Result<(), SendError<T>> {
        self.send_until(value, Until::At(deadline))
    }

    #[inline]
    #[track_caller]
    fn send_until(&self, value: T, until: Until) -> Result<(), SendError<T>> {
        match enter_counted_cancel_point() {
            Ok(()) => self.channel.send(value, until),
            Err(cut) => Err(SendError::new(value, cut)),
        }
    }

    /// Sends `value` if that can be done at once; if the channel holds none, if a receiver waits.
    ///
    /// # Suspends
    /// No. It does not fail for a cancel.
    ///
    /// # Errors
    /// If the channel is full, or there is no receiver any more; `value` is in the error.
    #[inline]
    #[track_caller]
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        fork::refuse();
        self.channel.try_send(value)
    }

    /// How many messages the channel holds.
    pub fn len(&self) -> usize {
        self.channel.len()
    }

    /// Whether the channel holds no message. Always, if its capacity is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is no room. Always, if its capacity is 0.
    pub fn is_full(&self) -> bool {
        self.capacity() == Some(self.len())
    }

    /// How many messages the channel may hold; `None` if any number.
    pub fn capacity(&self) -> Option<usize> {
        self.channel.capacity()
    }

    /// Whether both send to the same channel.
    pub fn same_channel(&self, other: &Sender<T>) -> bool {
        Arc::ptr_eq(&self.channel, &other.channel)
    }
}

impl<T> Receiver<T> {
    /// Receives the oldest message, and waits for one while there is none.
    ///
    /// # Suspends
    /// While the channel is empty, and for a [turn](super::chan#turns) of others after very many calls. A [cancel point](crate::cancelled): one that is cut short has received nothing, and no message is lost. It fails also where it
    /// would not have to wait, if the caller is cancelled or late already.
    ///
    /// # Errors
    /// If the channel is empty and there is no sender any more, or the wait was cut short.
    ///
    /// # Examples
    /// ```
    /// use sinew::chan::{RecvError, unbounded};
    /// let (sender, receiver) = unbounded();
    /// sinew::spawn(move || sender.send(7));
    /// assert_eq!(receiver.recv(), Ok(7));
    /// assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
    /// ```
    #[inline]
    #[track_caller]
    pub fn recv(&self) -> Result<T, RecvError> {
        self.recv_until(Until::Forever)
    }

    /// Receives the oldest message, and waits for one for at most `timeout`.
    ///
    /// # Suspends
    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`is_timeout`](RecvError::is_timeout) if none came in time.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// let (_sender, receiver) = sinew::chan::unbounded::<u32>();
    /// assert!(receiver.recv_timeout(Duration::from_millis(1)).unwrap_err().is_timeout());
    /// ```
    #[inline]
    #[track_caller]
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvError> {
        self.recv_until(Until::After(timeout))
    }

    /// Receives the oldest message, and waits for one until `deadline`.
    ///
    /// # Suspends
    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv_timeout`](Self::recv_timeout).
    #[inline]
    #[track_caller]
    pub fn recv_deadline(&self, deadline: Instant) -> Result<T, RecvError> {
        self.recv_until(Until::At(deadline))
    }

    #[inline]
    #[track_caller]
    fn recv_until(&self, until: Until) -> Result<T, RecvError> {
        enter_counted_cancel_point()?;
        self.channel.receive(until)
    }

    /// Receives the oldest message if there is one; if the channel holds none, if a sender waits.
    ///
    /// # Suspends
    /// No. It does not fail for a cancel.
    ///
    /// # Errors
    /// If the channel is empty.
    #[inline]
    #[track_caller]
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        fork::refuse();
        self.channel.try_receive()
    }

    /// Iterates over messages; waits for each. It ends when [`recv`](Self::recv) fails: for a cancel or a deadline too.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { receiver: self }
    }

    /// Iterates over the messages that are there; waits for none.
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter { receiver: self }
    }

    /// How many messages the channel holds.
    pub fn len(&self) -> usize {
        self.channel.len()
    }

    /// Whether the channel holds no message. Always, if its capacity is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is no room. Always, if its capacity is 0.
    pub fn is_full(&self) -> bool {
        self.capacity() == Some(self.len())
    }

    /// How many messages the channel may hold; `None` if any number.
    pub fn capacity(&self) -> Option<usize> {
        self.channel.capacity()
    }

    /// Whether both receive from the same channel.
    pub fn same_channel(&self, other: &Receiver<T>) -> bool {
        Arc::ptr_eq(&self.channel, &other.channel)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.channel.add_sender();
        Self { channel: self.channel.clone() }
    }
}

impl<T> Drop for Sender<T> {
    #[inline]
    fn drop(&mut self) {
        if has_others(&self.channel) {
            self.channel.remove_sender();
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.channel.add_receiver();
        Self { channel: self.channel.clone() }
    }
}

impl<T> Drop for Receiver<T> {
    #[inline]
    fn drop(&mut self) {
        if has_others(&self.channel) {
            self.channel.remove_receiver();
        }
    }
}

/// Whether there is somebody to tell that the caller's handle goes. If it is the only one left, of both sides, the channel goes with it: who waits has a handle.
/// Nothing is read on the strength of that, so it needs no order; the `Arc` has its own. In a forked child the others are not there, and the lock may be held for ever.
#[inline]
fn has_others<T>(channel: &Arc<Channel<T>>) -> bool {
    Arc::strong_count(channel) != 1 && !fork::is_child()
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
        for (sender, receiver) in [bounded::<u8>(0), bounded(1), bounded(2), unbounded()] {
            let channel = sender.channel.clone();
            let held = channel.enter();
            assert!(fork::child_does(|| drop((sender, receiver))));
            forget(held);
        }
    }
}
