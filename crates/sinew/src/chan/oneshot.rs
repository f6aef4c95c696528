//! A channel for one message.
//!
//! It is a channel of capacity 1, whose buffer is in the channel itself if the message is small (one allocation), with handles that cannot be cloned; so it can be an arm of a `select!`.

use std::fmt;
use std::time::{Duration, Instant};

use super::error::{Cause, RecvError, SendError, TryRecvError, TrySendError};
use super::select::Receives;
use crate::os::fork;

/// Makes a channel for one message: the answer to a request, the end of a job.
///
/// # Examples
/// ```
/// let (sender, receiver) = sinew::chan::oneshot();
/// sinew::spawn(move || sender.send(42));
/// assert_eq!(receiver.recv(), Ok(42));
/// ```
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = super::bounded(1);
    (Sender(sender), Receiver(receiver))
}

/// The sending side of a [`oneshot`](super::oneshot()) channel.
///
/// If it is dropped, the receiver gets [`RecvError::Disconnected`].
pub struct Sender<T>(super::Sender<T>);

/// The receiving side of a [`oneshot`](super::oneshot()) channel.
///
/// Once the message was received there is no other: [`RecvError::Disconnected`].
pub struct Receiver<T>(super::Receiver<T>);

impl<T> Sender<T> {
    /// Sends the message.
    ///
    /// # Suspends
    /// No; so it is no cancel point either: one who is cancelled can still say how it went.
    ///
    /// # Errors
    /// If there is no receiver any more; the message is in the error.
    #[track_caller]
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        fork::refuse();
        match self.0.into_channel().send_last(value) {
            Ok(()) => Ok(()),
            Err(TrySendError::Disconnected(value)) => Err(SendError::new(value, Cause::Disconnected)),
            Err(TrySendError::Full(_)) => unreachable!("there is one message, and room for it"),
        }
    }

    /// Whether the receiver is gone, so that nobody waits for the message.
    pub fn is_disconnected(&self) -> bool {
        !self.0.channel.has_receivers()
    }
}

impl<T> Receiver<T> {
    /// Receives the message, and waits for it.
    ///
    /// # Suspends
    /// Until the message or the end of the sender comes. A [cancel point](crate::cancelled): one that is cut short can be called again.
    ///
    /// # Errors
    /// If the sender is gone, or the wait was cut short.
    #[track_caller]
    pub fn recv(&self) -> Result<T, RecvError> {
        self.0.recv()
    }

    /// Receives the message, and waits for it for at most `timeout`.
    ///
    /// # Suspends
    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`is_timeout`](RecvError::is_timeout) if it did not come in time.
    #[track_caller]
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvError> {
        self.0.recv_timeout(timeout)
    }

    /// Receives the message, and waits for it until `deadline`.
    ///
    /// # Suspends
    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv_timeout`](Self::recv_timeout).
    #[track_caller]
    pub fn recv_deadline(&self, deadline: Instant) -> Result<T, RecvError> {
        self.0.recv_deadline(deadline)
    }

    /// Receives the message if it is there.
    ///
    /// # Suspends
    /// No.
    ///
    /// # Errors
    /// If it is not there yet, or never will be.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.0.try_recv()
    }
}

impl<T> Receives for Receiver<T> {
    type Message = T;
    fn receiver(&self) -> &super::Receiver<T> {
        &self.0
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
