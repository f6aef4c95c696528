//! A channel whose every message reaches every receiver.
//!
//! The channel keeps the last `n` messages, numbered; a receiver knows the number it wants next. A sender never waits: it drops the oldest, and a receiver that wanted
//! it is told how many it has missed. Messages are kept in an `Arc` each, since no user code may run under a lock of ours (law R2): neither the
//! `clone` that a receiver makes nor the drop of what is pushed out. The price is an allocation per message. Rejected: a lock per
//! message under which it is cloned (tokio): a `clone` that suspends would block whoever comes next, with its worker.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::buffer::refuse_capacity;
use super::channel::Until;
use super::error::{Cause, SendError};
use super::line::{call, wait_while};
use crate::fiber::waiters::Waiters;
use crate::fiber::why::At;
use crate::os::fork;
use crate::os::lock::Lock;
use crate::rt::cancel::Cancelled;
use crate::rt::wait::{Cut, enter_counted_cancel_point};

/// Makes a channel that keeps the last `capacity` messages, whose every message reaches every receiver.
///
/// Each is cloned for each receiver, where it lies: so messages are `Send` and `Sync`, and are kept until they are pushed out, whether or not all have received them.
///
/// It cannot be an arm of a [`select!`](crate::select): let a fiber receive, and forward to a channel that can.
///
/// # Panics
/// If `capacity` is 0, or there is no memory for so many messages: room for them is taken at once.
///
/// # Examples
/// ```
/// let (sender, mut first) = sinew::chan::broadcast(8);
/// let mut second = sender.subscribe();
/// sender.send("news").unwrap();
/// assert_eq!((first.recv(), second.recv()), (Ok("news"), Ok("news")));
/// ```
#[track_caller]
pub fn broadcast<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a broadcast channel keeps one message at least");
    let mut kept = VecDeque::new();
    if kept.try_reserve_exact(capacity).is_err() {
        refuse_capacity(capacity);
    }
    let inside = Inside { kept, next: 0, senders: 1, receivers: 1, line: Waiters::new() };
    let channel = Arc::new(Channel { inside: Lock::new(inside), capacity });
    (Sender { channel: channel.clone() }, Receiver { channel, next: 0 })
}

struct Channel<T> {
    inside: Lock<Inside<T>>,
    capacity: usize,
}

struct Inside<T> {
    kept: VecDeque<Arc<T>>,
    /// The number of the next message; those before it are kept, as many as there are.
    next: u64,
    senders: usize,
    receivers: usize,
    /// They wait for the next message.
    line: Waiters,
}

impl<T> Inside<T> {
    fn oldest(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    /// The message with the number `wanted`, which goes on to the next one there is.
    fn look(&self, wanted: &mut u64) -> Result<Arc<T>, TryRecvError> {
        let oldest = self.oldest();
        if *wanted < oldest {
            return Err(TryRecvError::Lagged(oldest - std::mem::replace(wanted, oldest)));
        }
        match self.kept.get((*wanted - oldest) as usize) {
            Some(message) => {
                *wanted += 1;
                Ok(message.clone())
            }
            None if self.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }
}

/// The sending side of a [`broadcast`](super::broadcast()) channel.
///
/// It can be cloned; when the last one is dropped, receivers get what is kept for them and then [`RecvError::Disconnected`].
pub struct Sender<T> {
    channel: Arc<Channel<T>>,
}

/// A receiver of a [`broadcast`](super::broadcast()) channel: it gets every message that is sent after it was made.
pub struct Receiver<T> {
    channel: Arc<Channel<T>>,
    next: u64,
}

// A panic leaves messages whole; but one that can be changed through a reference is cloned by others.
impl<T: RefUnwindSafe> UnwindSafe for Sender<T> {}
impl<T: RefUnwindSafe> RefUnwindSafe for Sender<T> {}
impl<T: RefUnwindSafe> UnwindSafe for Receiver<T> {}
impl<T: RefUnwindSafe> RefUnwindSafe for Receiver<T> {}

impl<T> Sender<T> {
    /// Sends `value` to every receiver there is now; gives their number. If as many messages as may be are kept, the oldest is dropped.
    ///
    /// # Suspends
    /// No; so it is no cancel point either.
    ///
    /// # Errors
    /// If there is no receiver; `value` is in the error. There may be one later: [`subscribe`](Self::subscribe).
    #[track_caller]
    pub fn send(&self, value: T) -> Result<usize, SendError<T>> {
        fork::refuse();
        let message = Arc::new(value);
        let mut inside = self.channel.inside.lock();
        let receivers = inside.receivers;
        if receivers == 0 {
            drop(inside);
            let value = Arc::into_inner(message).expect("nobody else has seen it");
            return Err(SendError::new(value, Cause::Disconnected));
        }
        let oldest = if inside.kept.len() == self.channel.capacity { inside.kept.pop_front() } else { None };
        inside.kept.push_back(message);
        inside.next += 1;
        let wakes = call(&mut inside.line);
        drop(inside);
        wakes.pay();
        drop(oldest);
        Ok(receivers)
    }

    /// Makes a receiver of all messages that are sent from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        subscribe(&self.channel)
    }

    /// How many receivers there are.
    pub fn receiver_count(&self) -> usize {
        self.channel.inside.lock().receivers
    }
}

fn subscribe<T>(channel: &Arc<Channel<T>>) -> Receiver<T> {
    let mut inside = channel.inside.lock();
    inside.receivers += 1;
    Receiver { channel: channel.clone(), next: inside.next }
}

impl<T> Receiver<T> {
    /// Makes a receiver of all messages that are sent from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        subscribe(&self.channel)
    }

    /// How many messages are kept for it. Those it has missed do not count.
    pub fn len(&self) -> usize {
        let inside = self.channel.inside.lock();
        (inside.next - self.next.max(inside.oldest())) as usize
    }

    /// Whether no message is kept for it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Clone> Receiver<T> {
    /// Receives a copy of the next message, and waits for it.
    ///
    /// # Suspends
    /// While there is none, and for a [turn](super#turns) of others after very many calls. A [cancel point](crate::cancelled): one that is cut short has received nothing, and misses nothing.
    ///
    /// # Errors
    /// [`RecvError::Lagged`], once, if messages for it had to be dropped: the next call gives the oldest that is kept. If there is no sender any more and nothing is kept for
    /// it, or the wait was cut short.
    ///
    /// # Examples
    /// ```
    /// use sinew::chan::broadcast::{RecvError, broadcast};
    /// let (sender, mut receiver) = broadcast(2);
    /// (1..=5).for_each(|n| drop(sender.send(n)));
    /// assert_eq!(receiver.recv(), Err(RecvError::Lagged(3)));
    /// assert_eq!((receiver.recv(), receiver.recv()), (Ok(4), Ok(5)));
    /// ```
    #[track_caller]
    pub fn recv(&mut self) -> Result<T, RecvError> {
        self.recv_until(Until::Forever)
    }

    /// As [`recv`](Self::recv), for at most `timeout`.
    ///
    /// # Suspends
    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`is_timeout`](RecvError::is_timeout) if none came in time.
    #[track_caller]
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<T, RecvError> {
        self.recv_until(Until::After(timeout))
    }

    /// As [`recv`](Self::recv), until `deadline`.
    ///
    /// # Suspends
    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv_timeout`](Self::recv_timeout).
    #[track_caller]
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<T, RecvError> {
        self.recv_until(Until::At(deadline))
    }

    #[track_caller]
    fn recv_until(&mut self, until: Until) -> Result<T, RecvError> {
        enter_counted_cancel_point()?;
        loop {
            match self.try_recv() {
                Ok(value) => return Ok(value),
                Err(TryRecvError::Lagged(missed)) => return Err(RecvError::Lagged(missed)),
                Err(TryRecvError::Disconnected) => return Err(RecvError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            // Woken, it finds something at the next look: only its own call goes on in its numbers.
            let next = self.next;
            let must_wait = |inside: &mut Inside<T>| inside.next == next && inside.senders > 0;
            wait_while(&self.channel.inside, |inside| &mut inside.line, must_wait, At::Receive, until)?;
        }
    }

    /// Receives a copy of the next message if it is there.
    ///
    /// # Suspends
    /// No. It does not fail for a cancel.
    ///
    /// # Errors
    /// If it is not there, or messages were missed, as with [`recv`](Self::recv).
    #[track_caller]
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        fork::refuse();
        let found = self.channel.inside.lock().look(&mut self.next);
        // The copy is made here, outside; or the message itself is taken, if it has been pushed out meanwhile.
        found.map(Arc::unwrap_or_clone)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.channel.inside.lock().senders += 1;
        Self { channel: self.channel.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever.
        if fork::is_child() {
            return;
        }
        let mut inside = self.channel.inside.lock();
        inside.senders -= 1;
        if inside.senders == 0 {
            let wakes = call(&mut inside.line);
            drop(inside);
            wakes.pay();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // As in a sender's.
        if fork::is_child() {
            return;
        }
        let mut inside = self.channel.inside.lock();
        inside.receivers -= 1;
        if inside.receivers > 0 || inside.kept.is_empty() {
            return;
        }
        // What is kept is for those who are there: a later one does not get it.
        let mut unread = std::mem::take(&mut inside.kept);
        drop(inside);
        unread.clear();
        // Its room is the channel's, so that no send takes memory under the lock; but for what was sent meanwhile, to a new receiver.
        let mut inside = self.channel.inside.lock();
        if inside.kept.capacity() < unread.capacity() {
            unread.extend(inside.kept.drain(..));
            std::mem::swap(&mut inside.kept, &mut unread);
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

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecvError {
    /// So many messages have been dropped before it received them.
    Lagged(u64),
    /// Nothing is kept for it, and there is no sender any more.
    Disconnected,
    /// The caller was [cancelled](crate::cancelled).
    Cancelled,
    /// The call's own time-out, or a deadline [around](crate::timeout) the caller, came first.
    TimedOut,
}

impl RecvError {
    /// Whether messages have been missed; the next receive goes on with the oldest that is kept.
    pub fn is_lagged(&self) -> bool {
        matches!(self, RecvError::Lagged(_))
    }

    /// Whether there is no sender any more.
    pub fn is_disconnected(&self) -> bool {
        *self == RecvError::Disconnected
    }

    /// Whether the caller was cancelled.
    pub fn is_cancelled(&self) -> bool {
        *self == RecvError::Cancelled
    }

    /// Whether a deadline came first.
    pub fn is_timeout(&self) -> bool {
        *self == RecvError::TimedOut
    }
}

impl From<Cut> for RecvError {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Cancelled => RecvError::Cancelled,
            Cut::TimedOut => RecvError::TimedOut,
        }
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecvError::Lagged(missed) => write!(f, "nothing received: the receiver lagged behind and missed {missed} messages"),
            RecvError::Disconnected => f.write_str("nothing received: the channel is empty and has no sender any more"),
            RecvError::Cancelled => f.write_str("nothing received: the receiver was cancelled"),
            RecvError::TimedOut => f.write_str("nothing received: the time-out elapsed"),
        }
    }
}

impl Error for RecvError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.is_cancelled().then_some(&Cancelled as _)
    }
}

/// Why nothing could be received at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TryRecvError {
    /// Nothing is kept for it.
    Empty,
    /// So many messages have been dropped before it received them.
    Lagged(u64),
    /// Nothing is kept for it, and there is no sender any more.
    Disconnected,
}

impl TryRecvError {
    /// Whether nothing is kept for it, but there is a sender.
    pub fn is_empty(&self) -> bool {
        *self == TryRecvError::Empty
    }

    /// Whether messages have been missed.
    pub fn is_lagged(&self) -> bool {
        matches!(self, TryRecvError::Lagged(_))
    }

    /// Whether there is no sender any more.
    pub fn is_disconnected(&self) -> bool {
        *self == TryRecvError::Disconnected
    }
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TryRecvError::Empty => f.write_str("nothing received: the channel is empty"),
            TryRecvError::Lagged(missed) => RecvError::Lagged(*missed).fmt(f),
            TryRecvError::Disconnected => RecvError::Disconnected.fmt(f),
        }
    }
}

impl Error for TryRecvError {}

impl From<RecvError> for TryRecvError {
    /// A receive that was cut short is one that found nothing.
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::Lagged(missed) => TryRecvError::Lagged(missed),
            RecvError::Disconnected => TryRecvError::Disconnected,
            RecvError::Cancelled | RecvError::TimedOut => TryRecvError::Empty,
        }
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
        let (sender, receiver) = broadcast::<u8>(1);
        let channel = sender.channel.clone();
        let held = channel.inside.lock();
        assert!(fork::child_does(|| drop((sender, receiver))));
        forget(held);
    }

    /// As it is dropped it sends another message, to a receiver of its own.
    struct Last(Option<Sender<Last>>);

    impl Drop for Last {
        fn drop(&mut self) {
            if let Some(sender) = self.0.take() {
                forget(sender.subscribe());
                assert!(sender.send(Last(None)).is_ok());
            }
        }
    }

    // What is kept is dropped outside the lock, and others may send meanwhile.
    #[test]
    fn the_room_stays_though_others_send_while_messages_are_dropped() {
        if !AS_IN_MEMORY {
            return;
        }
        let (sender, receiver) = broadcast(1000);
        assert!(sender.send(Last(Some(sender.clone()))).is_ok());
        drop(receiver);
        let inside = sender.channel.inside.lock();
        assert_eq!(inside.kept.len(), 1);
        assert!(inside.kept.capacity() >= 1000, "room for {} of 1000", inside.kept.capacity());
    }
}
