//! Waiting for moments in time, and having things done at them.
//!
//! All of it goes by the monotonic clock: a change of the wall clock moves nothing. [`sleep`], [`sleep_until`] and [`Interval`] make the caller wait; a [`Timer`] runs a closure in a
//! fiber of its own. A wait with a time limit is a [`timeout`](crate::timeout()) around it.
//! Nothing is early. What may be late, and by how much, is told at [`sleep`]: it holds for all that a fiber waits for with a time limit, the `*_timeout` forms of locks and channels too.

mod timer;

use std::time::{Duration, Instant};

use crate::os::clock;
use crate::rt::wait::{Cut, Me, sleep_until_ns, yield_now};

pub use crate::rt::cancel::{Elapsed, timeout};
pub use crate::rt::wait::{sleep, sleep_until};
pub use timer::{Cancel, Timer};

/// Ticks every `period`, the first time after one period.
///
/// As crossbeam's `tick` and Go's `Ticker`; tokio's interval ticks at once the first time.
///
/// # Panics
/// If `period` is zero.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// let mut interval = sinew::time::interval(Duration::from_millis(1));
/// let first = interval.tick()?;
/// let second = interval.tick()?;
/// assert!(second - first >= Duration::from_millis(1));
/// # Ok::<(), sinew::Cut>(())
/// ```
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    let period_ns = span_ns(period, "sinew::time::interval");
    let (begun, begun_ns) = (Instant::now(), clock::now_ns());
    Interval { period_ns, next_ns: begun_ns.saturating_add(period_ns), begun, begun_ns, missed: 0 }
}

/// A period in nanoseconds; what is too long to be counted is never over.
#[track_caller]
fn span_ns(period: Duration, who: &str) -> u64 {
    assert!(!period.is_zero(), "{who}: a period of zero is refused: it would never let anything else run");
    u64::try_from(period.as_nanos()).unwrap_or(u64::MAX)
}

/// The latest moment of a rhythm that is not after `now_ns`, which is not before `due_ns`, and how many are between the two.
fn catch_up(due_ns: u64, period_ns: u64, now_ns: u64) -> (u64, u64) {
    let missed = (now_ns - due_ns) / period_ns;
    (due_ns + missed * period_ns, missed)
}

/// A rhythm to wait for. See [`interval`].
#[derive(Debug)]
pub struct Interval {
    period_ns: u64,
    next_ns: u64,
    begun: Instant,
    begun_ns: u64,
    missed: u64,
}

impl Interval {
    /// Waits for the next tick, and gives the moment it was due at, which is never in the future.
    ///
    /// One that is due already returns at once. If several are, the latest stands for all of them: the others are skipped, [`missed`](Self::missed) says how many, and the rhythm
    /// stays as it was.
    ///
    /// # Suspends
    /// Yes, until the tick is due; if it is, others run first. A [cancel point](crate::cancelled): cut short, it leaves the tick to the next call.
    ///
    /// # Errors
    /// [`Cut`], if the caller was cancelled, or the deadline of a [`timeout`](crate::timeout()) around it passed.
    #[track_caller]
    pub fn tick(&mut self) -> Result<Instant, Cut> {
        Me::to_wait().cancel_point_at_entry()?;
        if clock::now_ns() < self.next_ns {
            sleep_until_ns(self.next_ns)?;
        } else {
            yield_now();
        }
        let (tick_ns, missed) = catch_up(self.next_ns, self.period_ns, clock::now_ns());
        self.next_ns = tick_ns.saturating_add(self.period_ns);
        self.missed = missed;
        Ok(self.begun + Duration::from_nanos(tick_ns - self.begun_ns))
    }

    /// How many ticks the last one skipped.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// The time between two ticks.
    pub fn period(&self) -> Duration {
        Duration::from_nanos(self.period_ns)
    }

    /// Begins the rhythm anew: the next tick is one period from now.
    pub fn reset(&mut self) {
        self.next_ns = clock::now_ns().saturating_add(self.period_ns);
    }
}
