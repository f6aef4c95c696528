//! Pauses between tries, where nothing tells when the next one is worth it.

use std::io;
use std::time::Duration;

use super::wait::sleep_until_ns;
use crate::event::source::is_shortage;
use crate::os::clock;

/// How long the first pause is, and the longest: each is twice the one before. Arbitrary: what takes long may take a little longer, and a hundred tries a second cost next to nothing.
const PAUSE: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// The pauses of one wait.
pub(crate) struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Pauses {
    pub(crate) const fn new() -> Self {
        Self::between(PAUSE, PAUSE_MAX)
    }

    /// Of which the first and the longest are these.
    pub(crate) const fn between(first: Duration, longest: Duration) -> Self {
        Self { next: first, longest }
    }

    /// Waits a little.
    ///
    /// # Errors
    /// As every cancel point.
    #[track_caller]
    pub(crate) fn pause(&mut self) -> io::Result<()> {
        sleep_until_ns(clock::deadline_ns(self.next))?;
        self.next = (self.next * 2).min(self.longest);
        Ok(())
    }

    /// Waits a little where a wait of the caller's could not begin for want of descriptors (`EMFILE`, `ENFILE`): then it is to look for itself. Passes all else on.
    ///
    /// # Errors
    /// As every cancel point; and what it was given.
    #[track_caller]
    pub(crate) fn instead(&mut self, waited: io::Result<()>) -> io::Result<()> {
        match waited {
            Err(error) if is_shortage(&error) => self.pause(),
            waited => waited,
        }
    }
}
