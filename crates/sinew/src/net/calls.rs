//! Receiving, sending and connecting, as entries of the ring and as system calls.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use socket2::{SockAddr, SockRef};

use crate::fiber::why::At;
use crate::os::{clock, socket};
use crate::rt::io::{
    Call, Descriptor, Direction, Take, Try, ask_at_once, asks_at_once, count, count_gift, perform, perform_at_once, perform_until,
    ring_length,
};
use crate::rt::pauses::Pauses;

// `MSG_DONTWAIT`: who has a clone of the socket may have given it to std, which makes it blocking, for all of them.

/// Parts that the kernel takes at once (`UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;

/// Receives what is there, without waiting.
pub(super) fn try_receive(socket: &impl AsFd, buf: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes into the buffer, as long as it is.
    count(unsafe { socket::receive(socket.as_fd().as_raw_fd(), buf.as_mut_ptr(), buf.len(), flags) })
}

/// Receives a datagram that is there, and its sender's address, without waiting.
fn try_receive_from(socket: &impl AsFd, buf: &mut [u8], flags: libc::c_int) -> io::Result<(usize, SockAddr)> {
    // SAFETY: the kernel alone writes to it, and nothing that is no byte.
    let buf = unsafe { &mut *(std::ptr::from_mut(buf) as *mut [MaybeUninit<u8>]) };
    SockRef::from(socket).recv_from_with_flags(buf, flags | libc::MSG_DONTWAIT)
}

/// Sends a datagram to `addr`, without waiting.
pub(super) fn try_send_to(socket: &impl AsFd, buf: &[u8], addr: &SockAddr) -> io::Result<usize> {
    SockRef::from(socket).send_to_with_flags(buf, addr, SEND_FLAGS)
}

/// Sends what there is room for, without waiting.
pub(super) fn try_send(socket: &impl AsFd, buf: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads the buffer, as long as it is.
    count(unsafe { socket::send(socket.as_fd().as_raw_fd(), buf.as_ptr(), buf.len(), SEND_FLAGS) })
}

const SEND_FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// A message of so many parts, which are as `iovec`s are. What it is used for says whether they are read or written.
fn message<T>(parts: *const T, length: usize) -> libc::msghdr {
    // SAFETY: all zeroes is a message without parts.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.cast_mut().cast();
    message.msg_iovlen = length.min(PARTS_MAX) as _;
    message
}

/// Bytes of a stream, into a buffer that is the kernel's until the call returns (law E2).
struct Receive<'a> {
    buf: &'a mut [u8],
    short: Short,
}

/// What a read that gives less than there is room for says of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Short {
    /// That there was no more. (Urgent data apart, and of that epoll tells.)
    IsEmpty,
    /// That there was perhaps no more: a passed descriptor ends a read too.
    MayHaveMore,
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
        try_receive(socket, self.buf, 0)
    }

    fn entry(&mut self, fd: Fd) -> Option<Entry> {
        Some(opcode::Recv::new(fd, self.buf.as_mut_ptr(), ring_length(self.buf.len())).build())
    }

    fn answer(&mut self, answer: usize) -> io::Result<usize> {
        Ok(answer)
    }

    fn drains(&self, received: &usize) -> bool {
        (1..self.buf.len()).contains(received)
    }

    fn empties(&self, received: &usize) -> bool {
        self.short == Short::IsEmpty && (1..self.buf.len()).contains(received)
    }
}

/// Reads from a stream.
#[track_caller]
pub(super) fn receive<S: AsFd>(descriptor: &Descriptor<S>, buf: &mut [u8], short: Short) -> io::Result<usize> {
    if buf.is_empty() {
        // As a read: `recv` would wait.
        return Ok(0);
    }
    match asks_at_once(descriptor, Direction::Read, false) {
        true => receive_at_once(descriptor, buf, short),
        false => receive_slowly(descriptor, buf, short),
    }
}

/// Not inlined, as the next: the frame of each is to be there in its own waits only.
#[inline(never)]
#[track_caller]
fn receive_at_once<S: AsFd>(descriptor: &Descriptor<S>, buf: &mut [u8], short: Short) -> io::Result<usize> {
    match ask_at_once(descriptor, &mut Receive { buf, short }) {
        Some(done) => done,
        None => receive_slowly(descriptor, buf, short),
    }
}

#[inline(never)]
#[track_caller]
fn receive_slowly<S: AsFd>(descriptor: &Descriptor<S>, buf: &mut [u8], short: Short) -> io::Result<usize> {
    perform(descriptor, Receive { buf, short })
}

/// Reads from a stream into several buffers.
#[track_caller]
pub(super) fn receive_vectored<S: AsFd>(descriptor: &Descriptor<S>, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    if bufs.iter().all(|buf| buf.is_empty()) {
        return Ok(0);
    }
    let receive = |socket: &S| {
        let mut message = message(bufs.as_mut_ptr(), bufs.len());
        // SAFETY: the kernel writes into the buffers, as long as they are; an `IoSliceMut` is an `iovec`.
        count(unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
    };
    perform(descriptor, Try(Direction::Read, receive))
}

/// Reads from a stream what the next read finds too.
#[track_caller]
pub(super) fn peek<S: AsFd>(descriptor: &Descriptor<S>, buf: &mut [u8]) -> io::Result<usize> {
    if buf.is_empty() {
        return Ok(0);
    }
    perform(descriptor, Try(Direction::Read, |socket: &S| try_receive(socket, buf, libc::MSG_PEEK)))
}

/// Receives one datagram from the connected address; `flags` as `recv` has them.
#[track_caller]
pub(super) fn receive_datagram<S: AsFd>(descriptor: &Descriptor<S>, buf: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    perform(descriptor, Take(|socket: &S| try_receive(socket, buf, flags), || Ok(0)))
}

/// Receives one datagram, and what `told` makes of its sender's address; `at_end` is what the end comes to, of which there is no sender.
#[track_caller]
pub(super) fn receive_from<S: AsFd, A>(
    descriptor: &Descriptor<S>,
    buf: &mut [u8],
    flags: libc::c_int,
    told: impl Fn(&SockAddr) -> io::Result<A>,
    at_end: impl Fn() -> io::Result<(usize, A)>,
) -> io::Result<(usize, A)> {
    let receive = |socket: &S| {
        let (length, from) = try_receive_from(socket, buf, flags)?;
        Ok((length, told(&from)?))
    };
    perform(descriptor, Take(receive, at_end))
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
        try_send(socket, self.buf)
    }

    fn entry(&mut self, fd: Fd) -> Option<Entry> {
        Some(opcode::Send::new(fd, self.buf.as_ptr(), ring_length(self.buf.len())).flags(SEND_FLAGS).build())
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
    match asks_at_once(descriptor, Direction::Write, true) {
        true => send_at_once(descriptor, buf),
        false => send_slowly(descriptor, buf),
    }
}

/// Not inlined, as `receive_at_once`.
#[inline(never)]
#[track_caller]
fn send_at_once<S: AsFd>(descriptor: &Descriptor<S>, buf: &[u8]) -> io::Result<usize> {
    match ask_at_once(descriptor, &mut Send { buf }) {
        Some(done) => done,
        None => send_when_there_is_room(descriptor, buf),
    }
}

/// There was none for the ring: it is asked to tell when there is, and not to send once more.
#[inline(never)]
#[track_caller]
fn send_when_there_is_room<S: AsFd>(descriptor: &Descriptor<S>, buf: &[u8]) -> io::Result<usize> {
    perform(descriptor, Try(Direction::Write, |socket: &S| try_send(socket, buf)))
}

#[inline(never)]
#[track_caller]
fn send_slowly<S: AsFd>(descriptor: &Descriptor<S>, buf: &[u8]) -> io::Result<usize> {
    perform(descriptor, Send { buf })
}

/// Writes several buffers to a stream.
#[track_caller]
pub(super) fn send_vectored<S: AsFd>(descriptor: &Descriptor<S>, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
    let send = |socket: &S| {
        let message = message(bufs.as_ptr(), bufs.len());
        // SAFETY: the kernel reads the buffers, as long as they are; an `IoSlice` is an `iovec`.
        count(unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, SEND_FLAGS) })
    };
    perform(descriptor, Try(Direction::Write, send))
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

/// Connects to a Unix socket, or sends to one that it is not connected to, by `call`. That is done at once or not at all: EAGAIN says that the other's queue is full, and nothing tells when it no
/// longer is.
#[track_caller]
pub(super) fn queue_at_unix<S: AsFd, T>(descriptor: &Descriptor<S>, call: impl FnMut(&S) -> io::Result<T>) -> io::Result<T> {
    let deadline_ns = descriptor.deadline_ns(Direction::Write);
    let (mut call, mut pauses) = (Try(Direction::Write, call), Pauses::between(QUEUE_FULL_WAIT, QUEUE_FULL_WAIT_MAX));
    loop {
        if let Some(done) = perform_at_once(descriptor, &mut call)? {
            return Ok(done);
        }
        if descriptor.is_nonblocking() || clock::now_ns() >= deadline_ns {
            count_gift();
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        pauses.pause_until(deadline_ns)?;
    }
}

/// How long one waits for room in a Unix socket's queue. Arbitrary.
const QUEUE_FULL_WAIT: Duration = Duration::from_micros(100);
const QUEUE_FULL_WAIT_MAX: Duration = Duration::from_millis(20);

/// Takes a socket from others, with its time-outs.
///
/// # Errors
/// If it is none.
pub(super) fn take<S: AsFd>(socket: S) -> io::Result<Descriptor<S>> {
    let timeouts = {
        let socket = SockRef::from(&socket);
        [(Direction::Read, socket.read_timeout()), (Direction::Write, socket.write_timeout())]
    };
    let descriptor = Descriptor::new(socket)?;
    descriptor.note_duplicate();
    for (direction, timeout) in timeouts {
        // Of what is no socket there are none.
        descriptor.set_timeout(direction, timeout.unwrap_or(None))?;
    }
    Ok(descriptor)
}

/// Gives a socket to others, with its time-outs.
pub(super) fn give<S: AsFd>(descriptor: Descriptor<S>) -> S {
    // As std: the system counts microseconds, and none of them would be no time-out.
    let least = |timeout: Duration| timeout.max(Duration::from_micros(1));
    let timeouts = [Direction::Read, Direction::Write].map(|direction| descriptor.timeout(direction).map(least));
    let socket = descriptor.into_inner();
    let options = SockRef::from(&socket);
    // They cannot fail on a socket: a time-out that the system cannot count to is none.
    let _ = options.set_read_timeout(timeouts[0]);
    let _ = options.set_write_timeout(timeouts[1]);
    socket
}
