//! Receiving, sending and connecting, as entries of the ring and as system calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use socket2::{SockAddr, SockRef};

use crate::fiber::why::At;
use crate::rt::io::{Call, Descriptor, Direction, count, perform, perform_until};
use crate::rt::wait::{enter_cancel_point, sleep};

/// Bytes of a stream, into a buffer that is the kernel's until the call returns (law E2).
struct Receive<'a> {
    buf: &'a mut [u8],
}

impl<S: AsFd> Call<S> for Receive<'_> {
    type Output = usize;

    fn direction(&self) -> Direction {
        Direction::Read
    }

    fn why(&self) -> At {
        At::Readable
    }

    fn call(&mut self, socket: &S) -> io::Result<usize> {
        // SAFETY: the kernel writes into the buffer, as long as it is.
        count(unsafe { libc::recv(socket.as_fd().as_raw_fd(), self.buf.as_mut_ptr().cast(), self.buf.len(), 0) })
    }

    fn entry(&mut self, fd: Fd) -> Option<Entry> {
        let length = u32::try_from(self.buf.len()).unwrap_or(u32::MAX);
        Some(opcode::Recv::new(fd, self.buf.as_mut_ptr(), length).build())
    }

    fn answer(&mut self, answer: usize) -> io::Result<usize> {
        Ok(answer)
    }

    /// A stream that gives less than there is room for has no more.
    fn drains(&self, received: &usize) -> bool {
        (1..self.buf.len()).contains(received)
    }
}

/// Reads from a stream.
#[track_caller]
pub(super) fn receive<S: AsFd>(descriptor: &Descriptor<S>, buf: &mut [u8]) -> io::Result<usize> {
    if buf.is_empty() {
        // As a read: `recv` would wait.
        return Ok(0);
    }
    perform(descriptor, Receive { buf })
}

/// Bytes to a stream.
///
/// The ring only tries it (MSG_DONTWAIT), and then tells when to try again. If it waited itself, a write to a peer that has half-closed would be left to a thread of the kernel (the ring's poll says
/// at once that there is something to do, so it gives up polling) and block there, and a wish to give it up that comes on the way there is not heard.
struct Send<'a> {
    buf: &'a [u8],
}

impl<S: AsFd> Call<S> for Send<'_> {
    type Output = usize;

    fn direction(&self) -> Direction {
        Direction::Write
    }

    fn why(&self) -> At {
        At::Writable
    }

    fn call(&mut self, socket: &S) -> io::Result<usize> {
        // SAFETY: the kernel reads the buffer, as long as it is.
        count(unsafe { libc::send(socket.as_fd().as_raw_fd(), self.buf.as_ptr().cast(), self.buf.len(), libc::MSG_NOSIGNAL) })
    }

    fn entry(&mut self, fd: Fd) -> Option<Entry> {
        let length = u32::try_from(self.buf.len()).unwrap_or(u32::MAX);
        Some(opcode::Send::new(fd, self.buf.as_ptr(), length).flags(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT).build())
    }

    fn prefers_ring(&self) -> bool {
        true
    }

    fn answer(&mut self, answer: usize) -> io::Result<usize> {
        Ok(answer)
    }
}

/// Writes to a stream.
#[track_caller]
pub(super) fn send<S: AsFd>(descriptor: &Descriptor<S>, buf: &[u8]) -> io::Result<usize> {
    perform(descriptor, Send { buf })
}

/// A connection: begun once, and then waited for.
struct Connect<'a> {
    addr: &'a SockAddr,
    begun: bool,
}

impl<S: AsFd> Call<S> for Connect<'_> {
    type Output = ();

    fn direction(&self) -> Direction {
        Direction::Write
    }

    fn why(&self) -> At {
        At::Connect
    }

    fn call(&mut self, socket: &S) -> io::Result<()> {
        let socket = SockRef::from(socket);
        if self.begun {
            return match socket.take_error()? {
                Some(error) => Err(error),
                // Without an error it is connected, or not yet; who has a peer is.
                None => socket.peer_addr().map(drop).map_err(|_| io::ErrorKind::WouldBlock.into()),
            };
        }
        match socket.connect(self.addr) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => {
                self.begun = true;
                Err(io::ErrorKind::WouldBlock.into())
            }
            done => done,
        }
    }
}

/// Connects, at most until `deadline_ns`.
///
/// # Errors
/// What the system says; `TimedOut` at the deadline; and as every cancel point.
#[track_caller]
pub(super) fn connect<S: AsFd>(descriptor: &Descriptor<S>, addr: &SockAddr, deadline_ns: u64) -> io::Result<()> {
    perform_until(descriptor, Connect { addr, begun: false }, deadline_ns).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock if deadline_ns != u64::MAX => io::Error::new(io::ErrorKind::TimedOut, "connection timed out"),
        _ => error,
    })
}

/// Connects to a Unix socket. Its connections are made at once or not at all: EAGAIN says that the listener's queue is full, and nothing tells when it no longer is.
#[track_caller]
pub(super) fn connect_unix<S: AsFd>(descriptor: &Descriptor<S>, addr: &SockAddr) -> io::Result<()> {
    enter_cancel_point()?;
    let mut wait = QUEUE_FULL_WAIT;
    loop {
        match SockRef::from(descriptor.socket()).connect(addr) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sleep(wait);
                enter_cancel_point()?;
                wait = (wait * 2).min(QUEUE_FULL_WAIT_MAX);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// How long one waits for room in a Unix listener's queue. Arbitrary.
const QUEUE_FULL_WAIT: Duration = Duration::from_micros(100);
const QUEUE_FULL_WAIT_MAX: Duration = Duration::from_millis(20);
