//! epoll, as thin as can be: for the load and for the hand-written loop.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

pub(crate) use libc::{EPOLLET, EPOLLIN};

/// Events taken from the kernel at once.
const EVENTS: usize = 1024;

/// A set of descriptors to wait for.
pub(crate) struct Poll {
    set: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Poll {
    pub(crate) fn new() -> Self {
        // SAFETY: the call takes no pointer, and the descriptor is new and nobody else's.
        let set = unsafe {
            let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            assert!(set >= 0, "epoll_create1: {}", io::Error::last_os_error());
            OwnedFd::from_raw_fd(set)
        };
        Self { set, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS] }
    }

    /// Waits for `interest` of `fd` from now on, and calls it `token`.
    pub(crate) fn add(&self, fd: RawFd, interest: i32, token: u64) {
        let mut event = libc::epoll_event { events: interest as u32, u64: token };
        // SAFETY: the event lives through the call.
        let failed = unsafe { libc::epoll_ctl(self.set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        assert_eq!(failed, 0, "epoll_ctl: {}", io::Error::last_os_error());
    }

    /// Tokens of what is ready, after at most `limit`; none if the time is over or a signal came.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> impl Iterator<Item = u64> {
        let limit = limit.map(|limit| libc::timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) });
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        let no_signals: *const libc::sigset_t = ptr::null();
        // SAFETY: the kernel writes at most `EVENTS` events, for which there is room; the limit lives through the call.
        let ready =
            unsafe { libc::syscall(libc::SYS_epoll_pwait2, self.set.as_raw_fd(), self.events.as_mut_ptr(), EVENTS, limit, no_signals, 0) };
        self.events[..usize::try_from(ready).unwrap_or(0)].iter().map(|event| event.u64)
    }
}

/// Receives what is there into `buffer`, without waiting.
pub(crate) fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes within the buffer.
    let got = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Sends all of `message` at once, without waiting.
///
/// # Errors
/// Also if the socket has no room: what is sent here is small, and the other side has answered all before.
pub(crate) fn send(fd: RawFd, message: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads within the message.
    let sent = unsafe { libc::send(fd, message.as_ptr().cast(), message.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    match usize::try_from(sent) {
        Ok(sent) if sent == message.len() => Ok(()),
        Ok(sent) => Err(io::Error::other(format!("only {sent} of {} bytes were taken", message.len()))),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
