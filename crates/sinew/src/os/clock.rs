//! Monotonic time in nanoseconds, as one number.
//!
//! `Instant` is two words and cannot be compared with a wheel's tick; everything below `rt` counts in `u64` nanoseconds of
//! `CLOCK_MONOTONIC` (584 years), which wall-clock jumps do not move.

use std::time::Duration;

/// Nanoseconds of the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for the call to write; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The moment `after` from now; `u64::MAX`, which means never, where that cannot be counted.
pub(crate) fn deadline_ns(after: Duration) -> u64 {
    u64::try_from(after.as_nanos()).map_or(u64::MAX, |ns| now_ns().saturating_add(ns))
}

/// So many nanoseconds, as the system counts them.
pub(crate) fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ }
}

/// Has the kernel end this thread's sleeps when they are due, and not up to 50 us later, as it does to save power.
pub(crate) fn sleep_precisely() {
    // SAFETY: sets a number of this thread. Where it is refused, sleeps end later.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}
