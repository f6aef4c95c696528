//! Pauses between tries, where nothing tells when the next one is worth it; and what is short meanwhile.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::wait::sleep_until_ns;
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
        self.pause_until(u64::MAX)
    }

    /// Waits a little, at most until `deadline_ns`.
    ///
    /// # Errors
    /// As every cancel point.
    #[track_caller]
    pub(crate) fn pause_until(&mut self, deadline_ns: u64) -> io::Result<()> {
        sleep_until_ns(clock::deadline_ns(self.next).min(deadline_ns))?;
        self.next = (self.next * 2).min(self.longest);
        Ok(())
    }
}

/// Something that is short for a while, and of which its users are told once.
pub(crate) struct Shortage {
    /// When it was last met; zero before the first time.
    met_ns: AtomicU64,
}

/// One that nobody has met for so long is over. Arbitrary.
const OVER_NS: u64 = 10_000_000_000;

impl Shortage {
    pub(crate) const fn new() -> Self {
        Self { met_ns: AtomicU64::new(0) }
    }

    /// Notes that it was met; whether it is a new one, to be told of.
    #[must_use]
    pub(crate) fn is_news(&self) -> bool {
        let now_ns = clock::now_ns();
        let met_ns = self.met_ns.swap(now_ns, Relaxed);
        met_ns == 0 || now_ns.saturating_sub(met_ns) >= OVER_NS
    }
}
