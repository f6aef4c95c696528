//! Timers that nobody waits for: they are set ahead, so that a thread that gets up again and again need not program its CPU's timer each time it lies down.
//!
//! A sleep with a limit starts a timer of the kernel's. If that is the first of its CPU to end, the CPU's own timer is programmed at once, by the thread that is about to sleep; on a virtual machine that is
//! a call of the host, 4 to 5 us of CPU time of the 10 to 17 that a sleep costs. If another ends no later, nothing is programmed: the interrupt of the first programs what comes next. So while one moment is slept towards,
//! a timer for the one after it is set, which is never the first. Both end in one interrupt, so no core gets up once more. If the thread has been moved to another CPU meanwhile, its sleep costs what it did, once.
//!
//! Rejected: a periodic timer. Those of the kernel are set again by the thread that reads them (timerfd), or takes their signal.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::clock;

/// Two timers, set by turns: one is under way while the other is set.
#[derive(Debug)]
pub(crate) struct Ahead {
    timers: [OwnedFd; 2],
    /// Which is set next.
    next: Cell<usize>,
    /// What was set last.
    last_ns: Cell<u64>,
}

impl Ahead {
    /// # Errors
    /// If there is no descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { timers: [timer()?, timer()?], next: Cell::new(0), last_ns: Cell::new(0) })
    }

    /// Sets the next timer to `at_ns` of the monotonic clock, once: one who was woken before his time sleeps towards the same moment again.
    pub(crate) fn set(&self, at_ns: u64) {
        if self.last_ns.replace(at_ns) == at_ns {
            return;
        }
        let next = self.next.get();
        self.next.set(next ^ 1);
        let once = libc::itimerspec { it_interval: clock::timespec(0), it_value: clock::timespec(at_ns) };
        // SAFETY: `once` is read, and nothing is written. Where it is refused, a sleep costs more.
        unsafe { libc::timerfd_settime(self.timers[next].as_raw_fd(), libc::TFD_TIMER_ABSTIME, &once, std::ptr::null_mut()) };
    }
}

fn timer() -> io::Result<OwnedFd> {
    // SAFETY: no memory of ours is involved.
    match unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: a new descriptor, which nobody else owns.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_does_not_end_what_was_set_before() {
        let ahead = Ahead::new().expect("two descriptors");
        let is_set = |timer: &OwnedFd| {
            let mut left = libc::itimerspec { it_interval: clock::timespec(0), it_value: clock::timespec(0) };
            // SAFETY: `left` is a valid place for the call to write.
            assert_eq!(unsafe { libc::timerfd_gettime(timer.as_raw_fd(), &mut left) }, 0);
            left.it_value.tv_sec != 0
        };
        const HOUR_NS: u64 = 3_600_000_000_000;
        let far_ns = clock::now_ns() + HOUR_NS;
        assert_eq!([0, 1].map(|i| is_set(&ahead.timers[i])), [false, false]);
        ahead.set(far_ns);
        ahead.set(far_ns);
        assert_eq!([0, 1].map(|i| is_set(&ahead.timers[i])), [true, false]);
        ahead.set(far_ns + HOUR_NS);
        assert_eq!([0, 1].map(|i| is_set(&ahead.timers[i])), [true, true]);
    }
}
