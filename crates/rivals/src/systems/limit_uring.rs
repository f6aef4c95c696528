//! The limit of a server on io_uring: one hand-written loop, no tasks, all submissions of a turn in one call.
//!
//! `limit-uring` receives by multishot operations into buffers that the kernel chooses. `limit-uring-1` receives once into the connection's own buffer, as a
//! fiber's `read(&mut buffer)` must, and asks for the next message when the echo is sent. The environment variable `RIVALS_RING` changes how: words of
//! `deferred`, `cooperative` (when the kernel finishes operations), `poll-first` (do not try a receive before the socket is ready), `call` (send by a system call at once
//! instead of through the ring). `docs/uring.md` has the figures.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Release;

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::deeds::servers::BUFFER_BYTES;
use crate::job::{Job, Reading};
use crate::poll;
use crate::server::{ANY_PORT, announce};

/// Submissions that fit; more are submitted in between.
const SUBMISSIONS: u32 = 4096;
/// Completions that fit: two for each of ten thousand connections.
const COMPLETIONS: u32 = 32_768;
/// Provided buffers: as many as messages may have come before one is echoed. A power of two.
const PROVIDED: u16 = 4096;
/// `IORING_RECVSEND_POLL_FIRST`, which the crate does not name.
const POLL_FIRST: u16 = 1;
/// The environment variable with other ways.
const WAYS: &str = "RIVALS_RING";

/// How the loop does its work.
#[derive(Clone, Copy)]
struct Ways {
    /// Receive many messages by one operation, into provided buffers.
    multishot: bool,
    /// Finish operations only when the loop waits, not whenever it enters the kernel.
    deferred: bool,
    poll_first: bool,
    /// Send by a system call.
    call: bool,
}

/// Multishot.
pub(crate) fn serve_multishot(_: &Job) -> Vec<Reading> {
    serve(Ways { multishot: true, deferred: true, poll_first: false, call: false }.changed())
}

/// One receive for each message.
pub(crate) fn serve_single(_: &Job) -> Vec<Reading> {
    serve(Ways { multishot: false, deferred: true, poll_first: false, call: false }.changed())
}

impl Ways {
    fn changed(mut self) -> Self {
        for word in std::env::var(WAYS).unwrap_or_default().split(',').filter(|word| !word.is_empty()) {
            match word {
                "deferred" => self.deferred = true,
                "cooperative" => self.deferred = false,
                "poll-first" => self.poll_first = true,
                "call" => self.call = true,
                other => panic!("{WAYS} knows deferred, cooperative, poll-first and call, not {other:?}"),
            }
        }
        self
    }

    fn ring(self) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(COMPLETIONS).setup_clamp().setup_submit_all().setup_single_issuer();
        if self.deferred {
            builder.setup_defer_taskrun();
        } else {
            builder.setup_coop_taskrun();
        }
        builder.build(SUBMISSIONS)
    }
}

/// What a completion is of. With the connection and, for sends of provided buffers, the buffer it makes the operation's name.
#[derive(Clone, Copy)]
enum Operation {
    Accept,
    Receive,
    Send,
}

fn name(operation: Operation, connection: usize, buffer: u16) -> u64 {
    operation as u64 | (connection as u64) << 8 | u64::from(buffer) << 48
}

fn of_name(name: u64) -> (Operation, usize, u16) {
    let operation = match name & 0xff {
        0 => Operation::Accept,
        1 => Operation::Receive,
        _ => Operation::Send,
    };
    (operation, (name >> 8 & 0xff_ffff_ffff) as usize, (name >> 48) as u16)
}

struct Connection {
    fd: OwnedFd,
    /// Written by the kernel while a receive is under way, else read by a send; we never make a reference to it then.
    buffer: *mut u8,
}

struct Loop {
    ways: Ways,
    ring: IoUring,
    listener: TcpListener,
    connections: Vec<Option<Connection>>,
    provided: Option<Provided>,
}

fn serve(ways: Ways) -> Vec<Reading> {
    let listener = TcpListener::bind(ANY_PORT).expect("a port is free");
    announce(listener.local_addr().expect("a listener has an address"));
    let ring = ways.ring().unwrap_or_else(|error| panic!("no ring: {error}"));
    let provided = ways.multishot.then(|| Provided::register(&ring));
    let mut echo = Loop { ways, ring, listener, connections: Vec::new(), provided };
    echo.accept();
    let mut completions = Vec::with_capacity(COMPLETIONS as usize);
    loop {
        echo.ring.submit_and_wait(1).expect("the ring takes submissions");
        completions.extend(echo.ring.completion());
        completions.drain(..).for_each(|completion| echo.complete(&completion));
    }
}

impl Loop {
    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: buffers live for ever, and each is used by one operation at a time.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.ring.submit().expect("the ring takes submissions");
        }
    }

    fn accept(&mut self) {
        let entry = opcode::AcceptMulti::new(Fd(self.listener.as_raw_fd())).build();
        self.push(&entry.user_data(name(Operation::Accept, 0, 0)));
    }

    fn receive(&mut self, index: usize) {
        let Some(connection) = &self.connections[index] else { return };
        let fd = Fd(connection.fd.as_raw_fd());
        let entry = if self.ways.multishot {
            opcode::RecvMulti::new(fd, Provided::GROUP).build()
        } else {
            let first = if self.ways.poll_first { POLL_FIRST } else { 0 };
            opcode::Recv::new(fd, connection.buffer, BUFFER_BYTES as u32).ioprio(first).build()
        };
        self.push(&entry.user_data(name(Operation::Receive, index, 0)));
    }

    fn send(&mut self, index: usize, bytes: *const u8, length: u32, provided: u16) {
        let Some(connection) = &self.connections[index] else { return };
        let fd = connection.fd.as_raw_fd();
        if self.ways.call {
            // SAFETY: the receive that filled so many bytes is over.
            let message = unsafe { std::slice::from_raw_parts(bytes, length as usize) };
            let sent = poll::send(fd, message);
            self.sent(index, provided, sent.is_ok());
            return;
        }
        let entry = opcode::Send::new(Fd(fd), bytes, length).flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL).build();
        self.push(&entry.user_data(name(Operation::Send, index, provided)));
    }

    fn complete(&mut self, completion: &cqueue::Entry) {
        let (operation, index, buffer) = of_name(completion.user_data());
        match operation {
            Operation::Accept => self.accepted(completion),
            Operation::Receive => self.received(index, completion),
            Operation::Send => self.sent(index, buffer, completion.result() > 0),
        }
    }

    fn accepted(&mut self, completion: &cqueue::Entry) {
        let fd: RawFd = completion.result();
        assert!(fd >= 0, "accept: {}", io::Error::from_raw_os_error(-fd));
        // SAFETY: the kernel has just made the descriptor for us.
        let stream = std::net::TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
        stream.set_nodelay(true).expect("a connection takes options");
        let buffer = Box::leak(Box::new([0; BUFFER_BYTES])).as_mut_ptr();
        self.connections.push(Some(Connection { fd: stream.into(), buffer }));
        self.receive(self.connections.len() - 1);
        if !cqueue::more(completion.flags()) {
            self.accept();
        }
    }

    fn received(&mut self, index: usize, completion: &cqueue::Entry) {
        let got = completion.result();
        if got == -libc::ENOBUFS {
            return self.receive(index);
        }
        if got <= 0 {
            self.connections[index] = None;
            return;
        }
        if self.provided.is_some() && !cqueue::more(completion.flags()) {
            self.receive(index);
        }
        match (&self.provided, &self.connections[index]) {
            (Some(provided), _) => {
                let buffer = cqueue::buffer_select(completion.flags()).expect("the kernel says which buffer it took");
                self.send(index, provided.bytes_of(buffer), got as u32, buffer);
            }
            (None, Some(connection)) => self.send(index, connection.buffer, got as u32, 0),
            (None, None) => {}
        }
    }

    fn sent(&mut self, index: usize, buffer: u16, well: bool) {
        match &mut self.provided {
            Some(provided) => provided.give_back(buffer),
            None if well => self.receive(index),
            None => self.connections[index] = None,
        }
    }
}

/// Buffers that the kernel may take for what comes, and the ring by which it gets them.
struct Provided {
    ring: *mut BufRingEntry,
    bytes: *mut u8,
    tail: u16,
}

impl Provided {
    const GROUP: u16 = 0;

    fn register(ring: &IoUring) -> Self {
        let length = PROVIDED as usize * size_of::<BufRingEntry>();
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, which nobody unmaps.
        let entries = unsafe { libc::mmap(ptr::null_mut(), length, access, kind, -1, 0) };
        assert_ne!(entries, libc::MAP_FAILED, "there is memory for a ring of buffers");
        // SAFETY: the mapping is of the size that so many entries need, aligned to a page, and there for ever.
        unsafe { ring.submitter().register_buf_ring_with_flags(entries as u64, PROVIDED, Self::GROUP, 0) }
            .unwrap_or_else(|error| panic!("no ring of buffers: {error}"));
        let bytes = vec![0; PROVIDED as usize * BUFFER_BYTES].leak().as_mut_ptr();
        let mut provided = Self { ring: entries.cast(), bytes, tail: 0 };
        (0..PROVIDED).for_each(|buffer| provided.give_back(buffer));
        provided
    }

    fn bytes_of(&self, buffer: u16) -> *mut u8 {
        self.bytes.wrapping_add(usize::from(buffer) * BUFFER_BYTES)
    }

    fn give_back(&mut self, buffer: u16) {
        // SAFETY: the place is one of the ring's, and the kernel does not read it before the tail is behind it.
        unsafe {
            let entry = &mut *self.ring.add(usize::from(self.tail % PROVIDED));
            entry.set_addr(self.bytes_of(buffer) as u64);
            entry.set_len(BUFFER_BYTES as u32);
            entry.set_bid(buffer);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is a part of the ring that the kernel only reads.
        let tail = unsafe { &*BufRingEntry::tail(self.ring).cast::<AtomicU16>() };
        tail.store(self.tail, Release); // meets the kernel's acquire; carries the entry
    }
}
