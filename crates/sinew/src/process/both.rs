//! What a child writes to two pipes, read by one caller.
//!
//! A child that writes much to the one while the other is waited for would never end. So each is read as it comes; where both are empty, the caller waits at an epoll instance of its own, which is a descriptor
//! itself, and readable when one of the two is: fibers and threads wait for it as for any other. Rejected: a second fiber, which is not to be had during a shutdown, without stacks, or by a thread of a process
//! without a runtime.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::event::source::is_shortage;
use crate::rt::io::{Descriptor, Direction, Interest, Try, perform, perform_at_once, poll};
use crate::rt::pauses::Pauses;

/// Bytes that are read from one before it is the other's turn, at most: what a pipe holds.
const TURN_BYTES: usize = 64 << 10;

/// Reads both to their ends.
///
/// # Errors
/// The system's; and as every cancel point.
#[track_caller]
pub(super) fn read_both(first: OwnedFd, second: OwnedFd) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let (mut first, mut second) = (Stream::new(first)?, Stream::new(second)?);
    let mut either = Either { instance: None, pauses: Pauses::new() };
    loop {
        match (first.take()?, second.take()?) {
            (Taken::ToEnd, _) => return Ok((first.bytes, second.read_to_end()?)),
            (_, Taken::ToEnd) => return Ok((first.read_to_end()?, second.bytes)),
            (Taken::All, Taken::All) => either.wait([&first, &second])?,
            (Taken::Turn, _) | (_, Taken::Turn) => {}
        }
    }
}

/// One of the two, and what came from it so far.
struct Stream {
    end: Descriptor<File>,
    bytes: Vec<u8>,
}

/// What a turn has brought, if anything.
enum Taken {
    /// All there was.
    All,
    /// As much as one turn may; perhaps there is more.
    Turn,
    /// All there will be.
    ToEnd,
}

impl Stream {
    fn new(end: OwnedFd) -> io::Result<Self> {
        Ok(Self { end: Descriptor::new(File::from(end))?, bytes: Vec::new() })
    }

    /// Reads for one turn, and does not wait.
    #[track_caller]
    fn take(&mut self) -> io::Result<Taken> {
        let Self { end, bytes } = self;
        Ok(match perform_at_once(end, &mut Try(Direction::Read, |file: &File| read_turn(file, bytes)))? {
            None => Taken::All,
            Some(TURN_BYTES) => Taken::Turn,
            Some(_) => Taken::ToEnd,
        })
    }

    /// Reads what is left, and waits for it.
    #[track_caller]
    fn read_to_end(self) -> io::Result<Vec<u8>> {
        let Self { end, mut bytes } = self;
        while perform(&end, Try(Direction::Read, |file: &File| read_turn(file, &mut bytes)))? == TURN_BYTES {}
        Ok(bytes)
    }
}

/// Adds what a turn brings. It brings less than it may at the end only: where there is nothing for now, what there was is added, and it is an error.
fn read_turn(file: &File, bytes: &mut Vec<u8>) -> io::Result<usize> {
    file.take(TURN_BYTES as u64).read_to_end(bytes)
}

/// How to wait for one of the two.
struct Either {
    /// An epoll instance with both in it, once it was needed.
    instance: Option<OwnedFd>,
    /// Where there can be none.
    pauses: Pauses,
}

impl Either {
    /// Waits until one of them can be read; for a while, if there is no descriptor to wait with.
    #[track_caller]
    fn wait(&mut self, both: [&Stream; 2]) -> io::Result<()> {
        if self.instance.is_none() {
            match watch(both.map(|stream| stream.end.socket().as_fd())) {
                Ok(instance) => self.instance = Some(instance),
                Err(error) if is_shortage(&error) || error.raw_os_error() == Some(libc::ENOSPC) => return self.pauses.pause(),
                Err(error) => return Err(error),
            }
        }
        self.instance.as_ref().map_or(Ok(()), |instance| poll(instance, Interest::Readable))
    }
}

/// An epoll instance that is readable while one of both is.
fn watch(both: [BorrowedFd<'_>; 2]) -> io::Result<OwnedFd> {
    // SAFETY: a number goes in.
    let instance = match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: it was opened just now, and is nobody's yet.
        instance => unsafe { OwnedFd::from_raw_fd(instance) },
    };
    for end in both {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the event outlives the call.
        if unsafe { libc::epoll_ctl(instance.as_raw_fd(), libc::EPOLL_CTL_ADD, end.as_raw_fd(), &mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(instance)
}
