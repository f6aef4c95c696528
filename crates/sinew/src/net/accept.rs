//! Accepting, also when there are no descriptors left.
//!
//! `accept` fails with EMFILE while the connection stays in the queue, so a loop that tries again at once spins, and one that gives up takes no connection any more. Here it waits a little
//! longer each time and tries again; and says so, once per shortage: a server that is at its limit for long accepts one now and then, and does not say so each time.

use std::io;
use std::time::Duration;

use crate::event::source;
use crate::rt::pauses::{Pauses, Shortage};

/// The waits between tries. Arbitrary: soon enough to go unnoticed when it was a peak, and 10 tries a second while it lasts.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Of all listeners.
static SHORTAGE: Shortage = Shortage::new();

/// Accepts by `accept`, and waits where it fails for want of descriptors or memory. A connection that was aborted before it was accepted is no error of the listener.
///
/// # Errors
/// All others; and as every cancel point.
pub(super) fn until_accepted<T>(waits: bool, mut accept: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut pauses = Pauses::between(FIRST_WAIT, LONGEST_WAIT);
    loop {
        match accept() {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EPROTO)) => {}
            Err(error) if waits && is_shortage(&error) => {
                if SHORTAGE.is_news() {
                    eprintln!("sinew: accept waits: {error}; connections stay in the queue until there is room (ulimit -n, or close some)");
                }
                pauses.pause()?;
            }
            done => return done,
        }
    }
}

fn is_shortage(error: &io::Error) -> bool {
    source::is_shortage(error) || matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}
