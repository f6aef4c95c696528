//! Why a send or a receive failed.

use std::error::Error;
use std::fmt;

use crate::rt::cancel::Cancelled;
use crate::rt::wait::Cut;

/// A message that was not sent, and why.
///
/// The message is not lost: it is in `value`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SendError<T> {
    /// The message.
    pub value: T,
    /// Why it was not sent.
    pub cause: Cause,
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// There is no receiver any more.
    Disconnected,
    /// The caller was [cancelled](crate::cancelled).
    Cancelled,
    /// The call's own time-out, or a deadline [around](crate::timeout) the caller, came first.
    TimedOut,
}

impl<T> SendError<T> {
    pub(super) fn new(value: T, cause: impl Into<Cause>) -> Self {
        Self { value, cause: cause.into() }
    }

    /// Gives the message back.
    pub fn into_inner(self) -> T {
        self.value
    }

    /// Whether there is no receiver any more.
    pub fn is_disconnected(&self) -> bool {
        self.cause == Cause::Disconnected
    }

    /// Whether the caller was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cause == Cause::Cancelled
    }

    /// Whether a deadline came first.
    pub fn is_timeout(&self) -> bool {
        self.cause == Cause::TimedOut
    }
}

impl From<Cut> for Cause {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Cancelled => Cause::Cancelled,
            Cut::TimedOut => Cause::TimedOut,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Disconnected => "the channel has no receiver any more",
            Cause::Cancelled => "the sender was cancelled",
            Cause::TimedOut => "the time-out elapsed",
        })
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").field("cause", &self.cause).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not sent: {}", self.cause)
    }
}

impl<T> Error for SendError<T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.is_cancelled().then_some(&Cancelled as _)
    }
}

/// A message that could not be sent at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TrySendError<T> {
    /// The channel is full; if it holds none, no receiver waits.
    Full(T),
    /// There is no receiver any more.
    Disconnected(T),
}

impl<T> TrySendError<T> {
    /// Gives the message back.
    pub fn into_inner(self) -> T {
        match self {
            TrySendError::Full(value) | TrySendError::Disconnected(value) => value,
        }
    }

    /// Whether the channel is full.
    pub fn is_full(&self) -> bool {
        matches!(self, TrySendError::Full(_))
    }

    /// Whether there is no receiver any more.
    pub fn is_disconnected(&self) -> bool {
        matches!(self, TrySendError::Disconnected(_))
    }
}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_full() { "Full(..)" } else { "Disconnected(..)" })
    }
}

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_full() { "not sent: the channel is full" } else { "not sent: the channel has no receiver any more" })
    }
}

impl<T> Error for TrySendError<T> {}

impl<T> From<SendError<T>> for TrySendError<T> {
    /// A send that was cut short is one that found no room.
    fn from(error: SendError<T>) -> Self {
        if error.is_disconnected() { TrySendError::Disconnected(error.value) } else { TrySendError::Full(error.value) }
    }
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecvError {
    /// The channel is empty, and there is no sender any more.
    Disconnected,
    /// The caller was [cancelled](crate::cancelled).
    Cancelled,
    /// The call's own time-out, or a deadline [around](crate::timeout) the caller, came first.
    TimedOut,
}

impl RecvError {
    /// Whether the channel is empty, and there is no sender any more.
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
        f.write_str(match self {
            RecvError::Disconnected => "nothing received: the channel is empty and has no sender any more",
            RecvError::Cancelled => "nothing received: the receiver was cancelled",
            RecvError::TimedOut => "nothing received: the time-out elapsed",
        })
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
    /// The channel is empty.
    Empty,
    /// The channel is empty, and there is no sender any more.
    Disconnected,
}

impl TryRecvError {
    /// Whether the channel is empty, but not disconnected.
    pub fn is_empty(&self) -> bool {
        *self == TryRecvError::Empty
    }

    /// Whether the channel is empty, and there is no sender any more.
    pub fn is_disconnected(&self) -> bool {
        *self == TryRecvError::Disconnected
    }
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryRecvError::Empty => "nothing received: the channel is empty",
            TryRecvError::Disconnected => "nothing received: the channel is empty and has no sender any more",
        })
    }
}

impl Error for TryRecvError {}

impl From<RecvError> for TryRecvError {
    /// A receive that was cut short is one that found nothing.
    fn from(error: RecvError) -> Self {
        if error.is_disconnected() { TryRecvError::Disconnected } else { TryRecvError::Empty }
    }
}
