//! Streams under check: both ends of a connection, a writer whose every byte says where it belongs, and a reader that looks.
//!
//! A byte that is lost, doubled or swapped is seen at once, whoever reads it (`Pattern`). Buffers have margins, and are filled with a canary before each read: what the
//! kernel writes beyond its due, or after the call has returned, is seen too. Calls are cut short at random, by time-outs of the socket and by deadlines around the call
//! (`Patience`); one that failed for that has done nothing.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use indicatif::HumanCount;
use rustix::net::sockopt::set_socket_send_buffer_size;
use sinew::Cancelled;
use sinew::net::unix::UnixStream;
use sinew::net::{Shutdown, TcpListener, TcpStream};

use super::failure::{check, fail};
use super::ledger::Wait;
use super::random::Random;
use super::storms::Stage;

/// Time-outs that race with data, at most.
pub(super) const RACE_US_MAX: usize = 150;
/// Lengths of single reads and writes.
const LENGTHS: [usize; 6] = [1, 7, 64, 1_000, 5_000, BUFFER_BYTES];
pub(super) const BUFFER_BYTES: usize = 16 << 10;
/// What stands on both sides of a buffer, and in it, before a read.
const MARGIN_BYTES: usize = 16;
pub(super) const CANARY: u8 = 0xA5;
/// Buffers of the system, where they are to be small: less than it allows, which it makes the least.
const SMALL_BUFFER_BYTES: usize = 1;
const SMALL_TCP_BUFFER_BYTES: usize = 8 << 10;

/// What has happened in all storms.
pub(super) static TALLY: Tally = Tally {
    connections: AtomicU64::new(0),
    bytes: AtomicU64::new(0),
    packets: AtomicU64::new(0),
    timeouts: AtomicU64::new(0),
    cancels: AtomicU64::new(0),
    resets: AtomicU64::new(0),
};

pub(super) struct Tally {
    pub(super) connections: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) packets: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) cancels: AtomicU64,
    pub(super) resets: AtomicU64,
}

impl Tally {
    pub(super) fn text(&self) -> String {
        let Self { connections, bytes, packets, timeouts, cancels, resets } = self;
        let [connections, bytes, packets, timeouts, cancels, resets] =
            [connections, bytes, packets, timeouts, cancels, resets].map(|counter| HumanCount(counter.load(Relaxed)));
        format!(
            "{connections} connections, {bytes} bytes and {packets} packets read\n{timeouts} time-outs, {cancels} cancels, {resets} resets"
        )
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// One end of a connection.
#[derive(Debug)]
pub(super) enum End {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Does the same with either kind.
macro_rules! either {
    ($end:expr, $stream:ident => $do:expr) => {
        match $end {
            $crate::stress::streams::End::Tcp($stream) => $do,
            $crate::stress::streams::End::Unix($stream) => $do,
        }
    };
}
pub(super) use either;

impl End {
    pub(super) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        either!(self, stream => stream.shutdown(how))
    }

    fn set_read_timeout(&self, timeout: Option<Duration>) {
        expected(either!(self, stream => stream.set_read_timeout(timeout)), "a time-out could not be set");
    }

    fn set_write_timeout(&self, timeout: Option<Duration>) {
        expected(either!(self, stream => stream.set_write_timeout(timeout)), "a time-out could not be set");
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, stream => stream.as_fd())
    }

    /// Lets its end be a reset, if it is a kind that can.
    pub(super) fn end_by_reset(&self) {
        if let End::Tcp(stream) = self {
            expected(stream.set_linger(Some(Duration::ZERO)), "a linger could not be set");
        }
    }
}

/// A connection, by TCP or a Unix socket, sometimes with the smallest buffers.
pub(super) fn pair(stage: &Stage<'_>, random: &mut Random) -> (Arc<End>, Arc<End>) {
    count(&TALLY.connections);
    let (one, other) = if random.once_in(2) {
        let (one, other) = expected(UnixStream::pair(), "no pair of sockets");
        (End::Unix(one), End::Unix(other))
    } else {
        let listener = expected(TcpListener::bind("127.0.0.1:0"), "no listener");
        let addr = expected(listener.local_addr(), "a listener has no address");
        let one = expected(stage.me.away(Wait::Io, || TcpStream::connect(addr)), "a connect failed");
        let (other, peer) = expected(stage.me.away(Wait::Io, || listener.accept()), "an accept failed");
        check!(one.local_addr().ok() == Some(peer), "accepted {peer}, connected {one:?}");
        (End::Tcp(one), End::Tcp(other))
    };
    if random.once_in(3) {
        [&one, &other].into_iter().for_each(make_small);
    }
    (Arc::new(one), Arc::new(other))
}

/// Gives an end the smallest buffer to send from. What TCP receives into is left alone: with a window of a few bytes it waits for timers of its own.
fn make_small(end: &End) {
    let bytes = match end {
        End::Tcp(_) => SMALL_TCP_BUFFER_BYTES,
        End::Unix(_) => SMALL_BUFFER_BYTES,
    };
    expected(set_socket_send_buffer_size(end.as_fd(), bytes).map_err(io::Error::from), "a buffer could not be set");
}

pub(super) fn expected<T>(result: io::Result<T>, what: &str) -> T {
    result.unwrap_or_else(|error| fail(format_args!("{what}: {error}")))
}

/// What a call came to.
pub(super) enum Got {
    Bytes(usize),
    /// Nothing, and the stream goes on: a time-out or a deadline.
    Late,
    /// Nothing, because the caller is cancelled.
    Cancelled,
    Broken(io::Error),
}

impl Got {
    /// Of a call that may be cut short; a deadline of ours may have `cut` it.
    fn of(result: io::Result<usize>, cut: Cut) -> Self {
        match (result, cut) {
            (Ok(bytes), Cut::ByDeadline) => fail(format_args!("a deadline cut a call short that did its work: {bytes} bytes")),
            (Ok(bytes), _) => Got::Bytes(bytes),
            (Err(error), _) if Cancelled::is_in(&error) => {
                check!(sinew::cancelled(), "a call said that its fiber is cancelled, and it is not");
                count(&TALLY.cancels);
                Got::Cancelled
            }
            (Err(error), Cut::ByDeadline) if error.kind() == ErrorKind::TimedOut => Self::late(),
            (Err(error), Cut::MayBeLate) if error.kind() == ErrorKind::WouldBlock => Self::late(),
            (Err(error), _) => Got::Broken(error),
        }
    }

    fn late() -> Self {
        count(&TALLY.timeouts);
        Got::Late
    }
}

/// What may cut a call short, besides a cancel.
#[derive(Clone, Copy)]
pub(super) enum Cut {
    Nothing,
    /// The socket's own time-out.
    MayBeLate,
    /// A deadline around the call has.
    ByDeadline,
}

/// How a call is made.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    Endless,
    Socket(Duration),
    Deadline(Duration),
}

impl Patience {
    fn random(random: &mut Random) -> Self {
        let race = Duration::from_micros(random.between(1, RACE_US_MAX) as u64);
        match random.between(0, 5) {
            0 => Patience::Socket(race),
            1 => Patience::Deadline(race),
            _ => Patience::Endless,
        }
    }

    fn of_socket(self) -> Option<Duration> {
        match self {
            Patience::Socket(timeout) => Some(timeout),
            _ => None,
        }
    }

    /// Makes the call, which has the socket's time-out already.
    pub(super) fn call(self, stage: &Stage<'_>, mut call: impl FnMut() -> io::Result<usize>) -> Got {
        let Patience::Deadline(limit) = self else {
            let cut = if self.of_socket().is_some() { Cut::MayBeLate } else { Cut::Nothing };
            return Got::of(stage.me.away(Wait::Io, call), cut);
        };
        let mut result = None;
        let outcome = stage.me.away(Wait::Io, || sinew::timeout(limit, || result = Some(call())));
        let result = result.expect("a time-out runs what it is given");
        Got::of(result, if outcome.is_err() { Cut::ByDeadline } else { Cut::Nothing })
    }
}

/// The bytes of one stream.
#[derive(Clone, Copy)]
pub(super) struct Pattern {
    pub(super) key: u64,
}

impl Pattern {
    fn byte(self, offset: u64) -> u8 {
        (self.key ^ offset ^ (offset >> 8) ^ (offset >> 16)) as u8
    }

    fn fill(self, buffer: &mut [u8], offset: u64) {
        buffer.iter_mut().zip(offset..).for_each(|(byte, offset)| *byte = self.byte(offset));
    }
}

/// Reads a stream, and checks all that comes.
pub(super) struct Reader<'a> {
    end: &'a End,
    pattern: Pattern,
    pub(super) offset: u64,
    buffer: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(end: &'a End, pattern: Pattern, offset: u64) -> Self {
        Self { end, pattern, offset, buffer: vec![CANARY; BUFFER_BYTES + 2 * MARGIN_BYTES] }
    }

    /// One read, in any of the ways there are.
    pub(super) fn read(&mut self, stage: &Stage<'_>, random: &mut Random) -> Got {
        let patience = Patience::random(random);
        self.read_with(stage, random, patience)
    }

    pub(super) fn read_with(&mut self, stage: &Stage<'_>, random: &mut Random, patience: Patience) -> Got {
        let length = random.pick(&LENGTHS);
        let in_two = length > 1 && random.once_in(4);
        self.end.set_read_timeout(patience.of_socket());
        let (buffer, _) = self.buffer.split_at_mut(length + 2 * MARGIN_BYTES);
        buffer.fill(CANARY);
        let place = &mut buffer[MARGIN_BYTES..MARGIN_BYTES + length];
        let got = patience.call(stage, || {
            if in_two {
                let (first, second) = place.split_at_mut(length / 2);
                let bufs = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
                either!(self.end, stream => { stream }.read_vectored(bufs))
            } else {
                either!(self.end, stream => { stream }.read(place))
            }
        });
        let read = if let Got::Bytes(read) = got { read } else { 0 };
        check!(read <= length, "a read of {length} gave {read} bytes");
        if read == 0 && random.once_in(2) {
            // So that what is written after the return is seen.
            stage.dawdle(random);
        }
        self.check(read, length);
        self.offset += read as u64;
        TALLY.bytes.fetch_add(read as u64, Relaxed);
        got
    }

    /// The bytes are those of the stream, and what is around them is as it was.
    fn check(&self, read: usize, length: usize) {
        let (front, rest) = self.buffer[..length + 2 * MARGIN_BYTES].split_at(MARGIN_BYTES);
        let (bytes, behind) = rest.split_at(read);
        for (&byte, offset) in bytes.iter().zip(self.offset..) {
            let due = self.pattern.byte(offset);
            check!(byte == due, "byte {offset} of a stream is {byte} instead of {due}");
        }
        check!(front.iter().chain(behind).all(|&byte| byte == CANARY), "a read of {read} bytes wrote beyond them, or after its return");
    }

    /// Reads until the end, a break, or a cancel.
    pub(super) fn read_on(&mut self, stage: &Stage<'_>, random: &mut Random) -> Got {
        loop {
            match self.read(stage, random) {
                Got::Late => {}
                Got::Bytes(bytes) if bytes > 0 => stage.dawdle(random),
                other => return other,
            }
        }
    }

    /// Reads to the end, which must be at `total`.
    pub(super) fn read_to_end(&mut self, stage: &Stage<'_>, random: &mut Random, total: u64) {
        match self.read_on(stage, random) {
            Got::Bytes(0) => {}
            Got::Broken(error) => fail(format_args!("a read failed at {} of {total} bytes: {error} ({:?})", self.offset, self.end)),
            _ => fail(format_args!("a fiber that nobody cancelled is cancelled")),
        }
        check!(self.offset == total, "{} bytes were read, {total} were written", self.offset);
    }
}

/// Writes a stream.
pub(super) struct Writer<'a> {
    end: &'a End,
    pattern: Pattern,
    pub(super) offset: u64,
    buffer: Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(end: &'a End, pattern: Pattern, offset: u64) -> Self {
        Self { end, pattern, offset, buffer: vec![0; BUFFER_BYTES] }
    }

    /// One write, of `most` bytes at most, in any of the ways there are.
    pub(super) fn write(&mut self, stage: &Stage<'_>, random: &mut Random, most: u64, patience: Patience) -> Got {
        let length = random.pick(&LENGTHS).min(usize::try_from(most).unwrap_or(usize::MAX));
        let in_two = random.once_in(4);
        self.end.set_write_timeout(patience.of_socket());
        let place = &mut self.buffer[..length];
        self.pattern.fill(place, self.offset);
        let got = patience.call(stage, || {
            if in_two {
                let (first, second) = place.split_at(length / 2);
                either!(self.end, stream => { stream }.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]))
            } else {
                either!(self.end, stream => { stream }.write(place))
            }
        });
        if let Got::Bytes(written) = got {
            check!((1..=length).contains(&written), "a write of {length} wrote {written} bytes");
            self.offset += written as u64;
        }
        got
    }

    /// Writes until `total`, a break, or a cancel.
    pub(super) fn write_on(&mut self, stage: &Stage<'_>, random: &mut Random, total: u64) -> Got {
        while self.offset < total {
            let patience = Patience::random(random);
            match self.write(stage, random, total - self.offset, patience) {
                Got::Bytes(_) => stage.dawdle(random),
                Got::Late => {}
                other => return other,
            }
        }
        Got::Bytes(0)
    }

    /// Writes up to `total`, and then the end.
    pub(super) fn finish(&mut self, stage: &Stage<'_>, random: &mut Random, total: u64) {
        match self.write_on(stage, random, total) {
            Got::Bytes(_) | Got::Late => {}
            Got::Broken(error) => fail(format_args!("a write failed at {} of {total} bytes: {error} ({:?})", self.offset, self.end)),
            Got::Cancelled => fail(format_args!("a fiber that nobody cancelled is cancelled")),
        }
        expected(self.end.shutdown(Shutdown::Write), "a half-close failed");
    }
}
