//! Accepting, also when there are no descriptors left.
//!
//! `accept` fails with EMFILE while the connection stays in the queue, so a loop that tries again at once spins, and one that gives up takes no connection any more. Here it waits a little
//! longer each time and tries again; and says so, once per shortage: a server that is at its limit for long accepts one now and then, and does not say so each time.
//!
//! A ring is only asked when to try, by its poll, and not to accept. Its `ACCEPT` waits exclusively: of all rings and fibers it tells one, which may not know of it before its worker has computed to an end, or may be cancelled
//! where it has no descriptor; and the connection would stay in the queue, though others wait for it.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use crate::event::source;
use crate::fiber::why::At;
use crate::rt::cancel::cancelled;
use crate::rt::io::{Call, Descriptor, Direction, perform};
use crate::rt::pauses::{Pauses, Shortage};

/// The waits between tries. Arbitrary: soon enough to go unnoticed when it was a peak, and 10 tries a second while it lasts.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Of all listeners.
static SHORTAGE: Shortage = Shortage::new();

/// Accepts by `take`, which does not block, and waits where there is no connection, or it fails for want of descriptors or memory. A connection that was aborted before it was accepted is no error of the listener.
///
/// # Errors
/// All others; and as every cancel point.
#[track_caller]
pub(super) fn accept_by<S: AsFd, T>(listener: &Descriptor<S>, take: fn(&S) -> io::Result<T>) -> io::Result<T> {
    let mut pauses = Pauses::between(FIRST_WAIT, LONGEST_WAIT);
    loop {
        match perform(listener, Accept(take)) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EPROTO)) => {}
            Err(error) if !listener.is_nonblocking() && is_shortage(&error) => {
                if SHORTAGE.is_news() {
                    eprintln!("sinew: accept waits: {error}; connections stay in the queue until there is room (ulimit -n, or close some)");
                }
                pauses.pause()?;
            }
            done => return done,
        }
    }
}

/// How far an iterator over connections has come. std's are endless; but a loop that passes over errors, as its documentation has one, would then never end in a fiber that is cancelled.
#[derive(Debug, Default)]
pub(super) enum Incoming {
    #[default]
    Open,
    /// A cancel or a deadline has made the last one fail.
    Cut,
    Ended,
}

impl Incoming {
    /// The next connection; none where the caller has been told before that it is cancelled, or past its deadline, and still is.
    #[track_caller]
    pub(super) fn next<T>(&mut self, accept: impl FnOnce() -> io::Result<T>) -> Option<io::Result<T>> {
        match self {
            Incoming::Open => {}
            Incoming::Cut if !cancelled() => {}
            Incoming::Cut | Incoming::Ended => {
                *self = Incoming::Ended;
                return None;
            }
        }
        let accepted = accept();
        *self = if accepted.is_err() && cancelled() { Incoming::Cut } else { Incoming::Open };
        Some(accepted)
    }
}

/// One connection, by a call that takes it.
struct Accept<S, T>(fn(&S) -> io::Result<T>);

impl<S, T> Call<S> for Accept<S, T> {
    type Output = T;

    fn direction(&self) -> Direction {
        Direction::Read
    }

    fn why(&self) -> At {
        At::Accept
    }

    fn call(&mut self, listener: &S) -> io::Result<T> {
        (self.0)(listener)
    }

    fn is_for_one(&self) -> bool {
        true
    }

    fn at_end(&self) -> Option<io::Result<T>> {
        Some(Err(io::Error::from_raw_os_error(libc::EINVAL)))
    }
}

fn is_shortage(error: &io::Error) -> bool {
    source::is_shortage(error) || matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}
