//! Waiting until a descriptor is ready. A stand-in until the drivers do it: a thread of the blocking pool looks, for a short while at a time.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::ask::ask;

/// How long a look takes, at most: so late is a cancel noticed.
const LOOK_MS: i32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Interest {
    Readable,
    Writable,
}

#[track_caller]
pub(crate) fn poll(fd: impl AsFd, interest: Interest) -> io::Result<()> {
    let events = match interest {
        Interest::Readable => libc::POLLIN,
        Interest::Writable => libc::POLLOUT,
    };
    let fd = fd.as_fd().as_raw_fd();
    while ask(|| {
        let mut asked = libc::pollfd { fd, events, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        Ok(unsafe { libc::poll(&mut asked, 1, LOOK_MS) } <= 0)
    })? {}
    Ok(())
}
