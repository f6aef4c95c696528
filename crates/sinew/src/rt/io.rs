//! How a fiber, or a plain thread, does I/O on a descriptor: the one way that sockets, pipes and files go.
//!
//! A [`Call`] is one operation, said in two ways: as an entry of the ring, and as a system call that does not block. [`perform`] does it: where the call would block, a fiber waits at its worker's
//! source, for the ring's answer or for epoll's word that it is worth another try; one that may move waits at its group's epoll instance (`event/roam.rs`), as does one whom the ring would wake in vain
//! again and again; a thread waits in `poll`. Where there are no descriptors for a source of its own, which is opened by who waits first, it pauses and tries.
//!
//! # Try first, or ask the ring first?
//! A read is tried unless the last one took all there was: then the ring is asked at once, which saves a system call that would be in vain. A write to a stream goes to the ring at once if
//! many others of this turn do, or may: one system call for all of them. Everything else is tried. The measurements are in docs/decisions.md ("Input and output").
//!
//! # Invariants
//! I1. (law E2) What the ring was given, the caller's buffer and the `Completion` in its block, stays there until the ring has answered, also when the wait was cut short: then the operation is
//!     given up, and its answer waited for, whatever it is. An answer that brings data is returned, late or not.
//! I2. Nothing is lost: a call that fails because its caller was cancelled, or late, has done nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::Fd;

use super::context::fiber;
use super::pauses::{Pauses, Shortage};
use super::wait::{CancelPoint, Cut, Me, enter_cancel_point};
use crate::base::bomb::Bomb;
use crate::event::epoll::Edges;
pub(crate) use crate::event::readiness::Direction;
use crate::event::readiness::{Duplicates, Readiness, Seen, Waiting, Watch, register};
use crate::event::source::{Source, is_shortage};
use crate::event::uring::Completion;
use crate::fiber::Control;
use crate::fiber::state::{Begin, Cause, Ends};
use crate::fiber::waiters::Waiter;
use crate::fiber::why::{At, Why};
use crate::os::clock;
use crate::sched::group::Group;
use crate::sched::worker::{Worker, here, make_ready, passed};

/// One operation on a descriptor that holds an `S`.
pub(crate) trait Call<S> {
    type Output;

    fn direction(&self) -> Direction;

    /// What its wait is called.
    fn why(&self) -> At;

    /// As a system call. It does not block: the descriptor is non-blocking.
    fn call(&mut self, socket: &S) -> io::Result<Self::Output>;

    /// As an entry of the ring; `None` if the ring is only to tell when to try. What it points to is borrowed by the call.
    fn entry(&mut self, _fd: Fd) -> Option<Entry> {
        None
    }

    /// Whether many may wait for it, of whom one gets what comes. If so, one fiber of each worker asks its ring, and the others stand behind it.
    fn is_for_one(&self) -> bool {
        false
    }

    /// Whether the ring is asked before anything is tried.
    fn prefers_ring(&self) -> bool {
        false
    }

    /// What the ring's answer to the entry, a success, comes to.
    fn answer(&mut self, _answer: usize) -> io::Result<Self::Output> {
        unreachable!("it has no entry")
    }

    /// What it comes to where nothing can come any more and nothing is there: what it would have given if it had blocked. `None` if the call itself says so; those on datagrams, and `accept` at a
    /// Unix socket, say for ever that they would block.
    fn at_end(&self) -> Option<io::Result<Self::Output>> {
        None
    }

    /// Whether this outcome makes it likely that the next call of its kind would block.
    fn drains(&self, _output: &Self::Output) -> bool {
        false
    }

    /// Whether it makes it certain, until epoll tells of something new.
    fn empties(&self, _output: &Self::Output) -> bool {
        false
    }
}

/// The bytes of a buffer that the ring is given at once: it counts in 32 bits, and kernels differ in whether those have a sign. What a read or write leaves is for the next.
pub(crate) fn ring_length(length: usize) -> u32 {
    length.min(1 << 30) as u32
}

/// A call that the ring does not know, or need not.
pub(crate) struct Try<F>(pub(crate) Direction, pub(crate) F);

impl<S, T, F: FnMut(&S) -> io::Result<T>> Call<S> for Try<F> {
    type Output = T;

    fn direction(&self) -> Direction {
        self.0
    }

    fn why(&self) -> At {
        why(self.0)
    }

    fn call(&mut self, socket: &S) -> io::Result<T> {
        (self.1)(socket)
    }
}

/// A call that takes what has come, and what it comes to [at the end](Call::at_end).
pub(crate) struct Take<F, E>(pub(crate) F, pub(crate) E);

impl<S, T, F: FnMut(&S) -> io::Result<T>, E: Fn() -> io::Result<T>> Call<S> for Take<F, E> {
    type Output = T;

    fn direction(&self) -> Direction {
        Direction::Read
    }

    fn why(&self) -> At {
        why(Direction::Read)
    }

    fn call(&mut self, socket: &S) -> io::Result<T> {
        (self.0)(socket)
    }

    fn at_end(&self) -> Option<io::Result<T>> {
        Some((self.1)())
    }
}

fn why(direction: Direction) -> At {
    match direction {
        Direction::Read => At::Readable,
        Direction::Write => At::Writable,
    }
}

/// A socket, pipe or other descriptor that fibers wait at. It is non-blocking in the kernel; whether it blocks its users is `nonblocking`.
pub(crate) struct Descriptor<S> {
    /// Above the socket, to be dropped before that is closed.
    watch: Watch,
    socket: S,
    /// By direction; `0`: none.
    timeouts_ns: [AtomicU64; 2],
    /// Whether calls fail where they would wait.
    nonblocking: AtomicBool,
    /// Whether the last read took all there was.
    drained: AtomicBool,
}

impl<S: AsFd> Descriptor<S> {
    /// Takes a descriptor, blocking or not, and makes it non-blocking.
    ///
    /// # Errors
    /// What the kernel says; it does not refuse a socket, a pipe or a terminal.
    pub(crate) fn new(socket: S) -> io::Result<Self> {
        set_nonblocking(socket.as_fd(), true)?;
        Ok(Self::of_nonblocking(socket))
    }

    /// Takes one that is non-blocking already.
    pub(crate) fn of_nonblocking(socket: S) -> Self {
        Self {
            watch: Watch::new(Duplicates::No),
            socket,
            timeouts_ns: [AtomicU64::new(0), AtomicU64::new(0)],
            nonblocking: AtomicBool::new(false),
            drained: AtomicBool::new(false),
        }
    }

    /// One for `socket`, a duplicate of this one's, with the same time-outs.
    pub(crate) fn clone_as(&self, socket: S) -> Self {
        let clone = Self::of_nonblocking(socket);
        clone.note_duplicate();
        self.note_duplicate();
        for (to, from) in clone.timeouts_ns.iter().zip(&self.timeouts_ns) {
            to.store(from.load(Relaxed), Relaxed);
        }
        clone.nonblocking.store(self.nonblocking.load(Relaxed), Relaxed);
        clone
    }

    /// Gives it up, blocking unless its users asked for the contrary: as std would have it.
    pub(crate) fn into_inner(self) -> S {
        let Self { watch, socket, nonblocking, .. } = self;
        // No worker is to be told of it any more.
        watch.note_duplicate();
        drop(watch);
        if !nonblocking.into_inner() {
            // It cannot fail on a valid descriptor.
            let _ = set_nonblocking(socket.as_fd(), false);
        }
        socket
    }

    /// There may be another descriptor of the same socket from now on, and to close this one may not be the end of it.
    pub(crate) fn note_duplicate(&self) {
        self.watch.note_duplicate();
    }

    #[cfg(any(feature = "futures-io", feature = "tokio-io"))]
    pub(crate) fn may_have_duplicates(&self) -> bool {
        self.watch.is_duplicated()
    }

    /// The descriptor, for one who may duplicate it.
    pub(crate) fn lend(&self) -> BorrowedFd<'_> {
        self.note_duplicate();
        self.socket.as_fd()
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Relaxed);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed)
    }

    pub(crate) fn timeout(&self, direction: Direction) -> Option<Duration> {
        match self.timeouts_ns[direction as usize].load(Relaxed) {
            0 => None,
            ns => Some(Duration::from_nanos(ns)),
        }
    }

    /// # Errors
    /// For a time-out of zero, as std.
    pub(crate) fn set_timeout(&self, direction: Direction, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "cannot set a 0 duration timeout"));
        }
        let ns = timeout.map_or(0, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        self.timeouts_ns[direction as usize].store(ns, Relaxed);
        Ok(())
    }

    /// When a call in this direction that begins now has waited for too long.
    pub(crate) fn deadline_ns(&self, direction: Direction) -> u64 {
        self.timeout(direction).map_or(u64::MAX, clock::deadline_ns)
    }

    pub(crate) fn socket(&self) -> &S {
        &self.socket
    }

    fn raw_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }
}

fn set_nonblocking(fd: BorrowedFd<'_>, nonblocking: bool) -> io::Result<()> {
    let mut on = libc::c_int::from(nonblocking);
    // SAFETY: the number outlives the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONBIO, &mut on) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// What a system call that gives a count, or -1, came to.
pub(crate) fn count(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Does one operation, and waits where it would block: at most for the descriptor's own time-out.
///
/// # Errors
/// What the system says; `WouldBlock` when the descriptor's own time-out is over, as std; and as every cancel point: an error that contains [`Cancelled`](crate::Cancelled), or `TimedOut`.
#[track_caller]
pub(crate) fn perform<S: AsFd, C: Call<S>>(descriptor: &Descriptor<S>, call: C) -> io::Result<C::Output> {
    let deadline_ns = descriptor.deadline_ns(call.direction());
    perform_until(descriptor, call, deadline_ns)
}

/// As [`perform`], at most until `deadline_ns`.
#[track_caller]
pub(crate) fn perform_until<S: AsFd, C: Call<S>>(descriptor: &Descriptor<S>, mut call: C, deadline_ns: u64) -> io::Result<C::Output> {
    enter_cancel_point()?;
    let fiber = fiber();
    let is_drained = call.direction() == Direction::Read && descriptor.drained.load(Relaxed);
    let asks = |(worker, me): (&Worker, &Control)| (is_drained || (call.prefers_ring() && worker.shares_ring())) && !me.must_not_suspend();
    let asks_first = fiber.is_some_and(asks) && !descriptor.is_nonblocking();
    let seen = descriptor.watch.get().map(|readiness| readiness.seen(call.direction()));
    if !asks_first && let Some(done) = attempt(descriptor, &mut call) {
        count_gift();
        return done;
    }
    if descriptor.is_nonblocking() {
        // Who tries again and again waits for a fiber that may be of this worker.
        count_gift();
        return Err(would_block());
    }
    let mut tried = seen.filter(|_| !asks_first);
    let mut pauses = Pauses::new();
    loop {
        // After each pause anew, though that binds the fiber to its worker as all sleeps do.
        let me = Me::to_wait();
        let Me::Fiber(worker, control) = me else {
            return wait_as_thread(&me, descriptor, &mut call, deadline_ns);
        };
        let point = me.cancel_point()?;
        let fiber = Caller { point: &point, worker, control };
        match poller_of(worker, control) {
            Ok(None) => return wait_at_ring(&fiber, descriptor, &mut call, deadline_ns),
            Ok(Some(poller)) => return wait_at_epoll(&fiber, &poller, tried, descriptor, &mut call, deadline_ns),
            Err(error) => {
                // Who has not tried yet finds what is there, though its time-out is over.
                if passed(deadline_ns)
                    && let Some(done) = attempt(descriptor, &mut call)
                {
                    count_gift();
                    return done;
                }
                pause_for_room(error, &mut pauses, deadline_ns)?;
            }
        }
        tried = None;
        if let Some(done) = attempt(descriptor, &mut call).or_else(|| attempt_end(descriptor, &mut call)) {
            return done;
        }
    }
}

/// Whether a call is of those that a busy server makes most, and whose way is [`ask_at_once`]: one that asks the ring before anything is tried, and whose wait nothing but a cancel could cut short. `prefers_ring`: the call's.
#[inline]
pub(crate) fn asks_at_once<S>(descriptor: &Descriptor<S>, direction: Direction, prefers_ring: bool) -> bool {
    let Some((worker, control)) = fiber() else { return false };
    let is_drained = direction == Direction::Read && descriptor.drained.load(Relaxed);
    let asks = worker.has_ring() && (is_drained || (prefers_ring && worker.shares_ring()));
    let waits = !descriptor.nonblocking.load(Relaxed) && descriptor.timeouts_ns[direction as usize].load(Relaxed) == 0;
    let stays = !control.may_move() && !control.must_not_suspend() && !control.join.is_done();
    let bounds = control.bounds();
    asks && waits && stays && bounds.limit.is_none() && !bounds.shielded
}

/// As [`perform`], by a caller that [`asks_at_once`]; `None` if a cancel was first, or the ring has not done it: then `perform` does it, or says why not.
///
/// Small, and apart from the other ways: where a server's many fibers take turns, each line of the frames between a wait and the caller's own code is cold.
#[inline(always)]
pub(crate) fn ask_at_once<S: AsFd, C: Call<S>>(descriptor: &Descriptor<S>, call: &mut C) -> Option<io::Result<C::Output>> {
    let (worker, control) = fiber()?;
    let mut entry = call.entry(Fd(descriptor.raw_fd()))?;
    control.note_why(Why::At(call.why()));
    if control.state.begin(Ends::BY_CLAIM.or_cancel()) != Begin::Wait {
        return None;
    }
    // SAFETY: the wait has begun, and the ring's answer or a cancel ends it. A fiber that waits is in user code and has no outcome yet, so the place in its block is free until the wait is over; what the entry points to is borrowed by
    // `call`, which outlives it.
    let (_, answer) = unsafe {
        let completion = Completion::new_in_block(control);
        exchange(worker, control, &mut entry, completion, call.why(), || worker.suspend(control))
    };
    match answer {
        Ok(answer) => {
            let done = call.answer(answer);
            note_drained(descriptor, call, &done);
            Some(done)
        }
        // Cancelled, or nothing that the ring waits at.
        Err(error) if is_undone(&error) || error.raw_os_error() == Some(libc::EAGAIN) => None,
        Err(error) => Some(Err(error)),
    }
}

/// As [`perform`], where nothing tells when another try is worth it: gives `None` in place of a wait.
#[track_caller]
pub(crate) fn perform_at_once<S: AsFd, C: Call<S>>(descriptor: &Descriptor<S>, call: &mut C) -> io::Result<Option<C::Output>> {
    enter_cancel_point()?;
    let done = attempt(descriptor, call).transpose()?;
    if done.is_some() {
        count_gift();
    }
    Ok(done)
}

/// As [`count_gift`], for a caller about to do I/O that must not suspend here: whether it is to let others run first.
#[cfg(any(feature = "futures-io", feature = "tokio-io"))]
pub(crate) fn owes_a_turn() -> bool {
    fiber().is_some_and(|(worker, _)| worker.owes_a_turn())
}

/// The caller has done I/O without having had to wait.
#[inline]
pub(crate) fn count_gift() {
    if let Some((worker, me)) = fiber() {
        worker.count_gift(me);
    }
}

/// A fiber that is about to wait.
struct Caller<'a> {
    point: &'a CancelPoint<'a>,
    worker: &'static Worker,
    control: &'a Control,
}

/// Tries once; `None` if it would block.
#[inline]
fn attempt<S: AsFd, C: Call<S>>(descriptor: &Descriptor<S>, call: &mut C) -> Option<io::Result<C::Output>> {
    loop {
        match call.call(&descriptor.socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => {
                note_drained(descriptor, call, &done);
                return Some(done);
            }
        }
    }
}

/// Tries once, after a poll has told of this; `None` if it would block.
fn attempt_told<S: AsFd, C: Call<S>>(descriptor: &Descriptor<S>, call: &mut C, told: libc::c_short) -> Option<io::Result<C::Output>> {
    // The end was told of before the try, so what is not there now does not come.
    attempt(descriptor, call).or_else(|| if told & libc::POLLRDHUP != 0 { call.at_end() } else { None })
}

/// Asks, and tries once more; `None` if it would block.
#[cold]
fn attempt_end<S: AsFd, C: Call<S>>(descriptor: &Descriptor<S>, call: &mut C) -> Option<io::Result<C::Output>> {
    let _has_one = call.at_end()?;
    match poll_until(descriptor.raw_fd(), call.direction(), 0) {
        Err(error) => Some(Err(error)),
        Ok(told) => attempt_told(descriptor, call, told),
    }
}

/// Remembers whether the next read would be in vain.
#[inline]
fn note_drained<S, C: Call<S>>(descriptor: &Descriptor<S>, call: &C, done: &io::Result<C::Output>) {
    if call.direction() == Direction::Read {
        let drained = matches!(done, Ok(output) if call.drains(output));
        if descriptor.drained.load(Relaxed) != drained {
            descriptor.drained.store(drained, Relaxed);
        }
    }
}

/// What a time-out of a descriptor's own gives.
fn would_block() -> io::Error {
    io::Error::from_raw_os_error(libc::EAGAIN)
}

/// Waits a little in place of a wait that could not begin, with this error, for want of what it needs: that is no fault of the call, so its caller tries again.
///
/// # Errors
/// What it was given, if that is something else; `WouldBlock` if it is `deadline_ns`; and as every cancel point.
#[cold]
#[track_caller]
fn pause_for_room(error: io::Error, pauses: &mut Pauses, deadline_ns: u64) -> io::Result<()> {
    let Some(what) = what_is_short(&error) else { return Err(error) };
    if passed(deadline_ns) {
        // As where the wait could begin: who tries again and again waits for a fiber that may be of this worker.
        count_gift();
        return Err(would_block());
    }
    if SHORTAGE.is_news() {
        eprintln!("sinew: I/O is tried from time to time: {error}; there is no {what}");
    }
    pauses.pause_until(deadline_ns)
}

/// What a wait could not begin for, if that may be had later, and what to do about it.
fn what_is_short(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error() {
        _ if is_shortage(error) => Some("descriptor to wait with (ulimit -n, or close some)"),
        // By `epoll_ctl`.
        Some(libc::ENOSPC) => Some("room for one more descriptor in epoll (/proc/sys/fs/epoll/max_user_watches)"),
        _ => None,
    }
}

static SHORTAGE: Shortage = Shortage::new();

/// An epoll instance where a fiber waits.
struct Poller {
    epoll: RawFd,
    /// Which one it is.
    instance: u64,
    /// The group whose roam it is, if it is that and not the worker's own. The fiber may be in another group by now.
    group: Option<&'static Group>,
}

/// Where a fiber of `worker` waits for a descriptor: at the instance of its group if it may move, else at that of the worker; `None` if that has a ring.
fn poller_of(worker: &'static Worker, me: &Control) -> io::Result<Option<Poller>> {
    if me.may_move() && !me.is_bound() {
        return roam_of(worker).map(Some);
    }
    worker.with_source(|source| match source {
        Source::Uring(_) => None,
        Source::Epoll(epoll) => Some(Poller { epoll: epoll.fd(), instance: epoll.instance(), group: None }),
    })
}

/// The instance of the worker's group. One that stays may wait there too: whoever looks sends it home.
fn roam_of(worker: &'static Worker) -> io::Result<Poller> {
    let group = worker.group();
    let (epoll, instance) = group.roam.instance()?;
    Ok(Poller { epoll, instance, group: Some(group) })
}

fn wait_at_ring<S: AsFd, C: Call<S>>(
    fiber: &Caller<'_>,
    descriptor: &Descriptor<S>,
    call: &mut C,
    deadline_ns: u64,
) -> io::Result<C::Output> {
    let fd = Fd(descriptor.raw_fd());
    if let Some(mut entry) = call.entry(fd) {
        // SAFETY: what the entry points to is borrowed by `call`, which outlives this frame.
        match unsafe { ask_ring(fiber, &mut entry, call.why(), deadline_ns) } {
            // The ring does not wait at such descriptors, or was interrupted, or the time-out is over.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {}
            Err(error) => return Err(error),
            Ok(answer) => {
                let done = call.answer(answer);
                note_drained(descriptor, call, &done);
                return done;
            }
        }
    }
    let _lead = if call.is_for_one() { lead(fiber, descriptor.watch.get_or_make(), call.why(), deadline_ns)? } else { None };
    let mut pauses = Pauses::new();
    while !passed(deadline_ns) {
        let told = match poll_at_ring(fiber, descriptor.raw_fd(), call.direction(), call.why(), deadline_ns) {
            // The time-out is over.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => 0,
            told => told?,
        };
        if let Some(done) = attempt_told(descriptor, call, told) {
            return done;
        }
        // A poll that has an answer at once hears of no deadline around the caller, and one that is told in vain may have one each time.
        enter_cancel_point()?;
        if told != 0 && told & poll_bits(call.direction()) == 0 {
            match roam_of(fiber.worker) {
                Ok(roam) => return wait_at_epoll(fiber, &roam, None, descriptor, call, deadline_ns),
                Err(error) => pause_for_room(error, &mut pauses, deadline_ns)?,
            }
        }
    }
    // A time-out may be over before anything was tried: what is there is found all the same.
    let done = attempt(descriptor, call);
    count_gift();
    done.unwrap_or_else(|| Err(would_block()))
}

/// The place of the one fiber, of all of a worker that wait for the same thing, that asks the ring. Dropped, it is the next one's.
struct Lead {
    readiness: &'static Readiness,
    ring: usize,
}

impl Drop for Lead {
    fn drop(&mut self) {
        let next = self.readiness.lock().pass_on(self.ring);
        // After the unlock (`fiber/waiters.rs`, I4).
        next.into_iter().for_each(make_ready);
    }
}

/// Waits until no other fiber of the worker asks the ring for the same thing; `None` if it is `deadline_ns` first.
fn lead(fiber: &Caller<'_>, readiness: &'static Readiness, why: At, deadline_ns: u64) -> io::Result<Option<Lead>> {
    let Caller { point, worker, control } = *fiber;
    // A worker is there while one of its fibers waits, so its address is nobody else's.
    let ring = std::ptr::from_ref(worker).addr();
    let waiter = Waiter::new(control, ());
    {
        let mut waiting = readiness.lock();
        if waiting.try_lead(ring) {
            return Ok(Some(Lead { readiness, ring }));
        }
        if !point.begin_held(Why::At(why)) {
            drop(waiting);
            return Err(point.fail().into());
        }
        // SAFETY: it is new, and stays in this frame until its wait is over.
        unsafe { waiting.follow(ring, &waiter) };
    }
    worker.begin_source_wait(control);
    // SAFETY: the waiter was queued there.
    let withdraw = |waiting: &mut Waiting| unsafe { waiting.unfollow(ring, &waiter) };
    // SAFETY: the wait was begun above, with a waiter under the lock; who leads, a cancel or the deadline ends it.
    let ended = unsafe { point.wait_at(readiness.waiting(), deadline_ns, withdraw) };
    worker.end_source_wait(control);
    Ok(match ended? {
        Cause::Woken => Some(Lead { readiness, ring }),
        _ => None,
    })
}

/// Waits for what the ring's poll tells of a descriptor.
///
/// It also tells, and at once, what it was not asked for: that the peer has half-closed, to one who waits to write. He would ask again and again; so who was told in vain waits at epoll, which tells
/// of each thing once.
fn poll_at_ring(fiber: &Caller<'_>, fd: RawFd, direction: Direction, why: At, deadline_ns: u64) -> io::Result<libc::c_short> {
    let mut entry = opcode::PollAdd::new(Fd(fd), poll_bits(direction) as u32).build();
    // SAFETY: nothing is lent.
    unsafe { ask_ring(fiber, &mut entry, why, deadline_ns) }.map(|told| told as libc::c_short)
}

/// Hands an operation to the ring and waits for its answer (I1); one that was cut short, and not done, gives what cut it.
///
/// # Safety
/// What `entry` points to outlives the call, and is the kernel's until it returns.
unsafe fn ask_ring(fiber: &Caller<'_>, entry: &mut Entry, why: At, deadline_ns: u64) -> io::Result<usize> {
    // SAFETY: the caller's promise. A fiber that waits is in user code and has no outcome yet, so the place in its block is free until the wait is over.
    unsafe {
        if fiber.control.join.is_done() {
            return ask_ring_after_end(fiber, entry, why, deadline_ns);
        }
        ask_ring_for(fiber, entry, Completion::new_in_block(fiber.control), why, deadline_ns)
    }
}

/// As [`ask_ring`], by a fiber whose outcome is in its block: the foreign waker that is told of its end does I/O.
#[cold]
#[inline(never)]
unsafe fn ask_ring_after_end(fiber: &Caller<'_>, entry: &mut Entry, why: At, deadline_ns: u64) -> io::Result<usize> {
    // SAFETY: the caller's promise; the completion stays in this frame.
    unsafe { ask_ring_for(fiber, entry, &Completion::new(fiber.control), why, deadline_ns) }
}

/// What is said if a panic of ours would give back what the kernel has until it answers, a buffer or the place for the answer (law E2).
const LENT: &str = "a bug of sinew while the kernel has a buffer of the caller's";

/// # Safety
/// As [`ask_ring`]; and `completion` is a new one, which stays in place until this returns.
#[inline(always)]
unsafe fn ask_ring_for(fiber: &Caller<'_>, entry: &mut Entry, completion: &Completion, why: At, deadline_ns: u64) -> io::Result<usize> {
    let Caller { point, worker, control } = fiber;
    point.begin(Why::At(why), Ends::BY_CLAIM)?;
    // SAFETY: the caller's promise; the wait was begun above; the ring's answer, a cancel or the deadline ends it.
    let (ended, answer) = unsafe { exchange(worker, control, entry, completion, why, || point.wait_unnoted(deadline_ns)) };
    let is_undone = matches!(&answer, Err(error) if is_undone(error));
    match ended {
        Err(cut) if is_undone => Err(point.note(cut).into()),
        Ok(Cause::TimedOut) if is_undone => Err(would_block()),
        _ => answer,
    }
}

/// Gives an operation to the ring, has the caller wait, and gives what the wait has come to and what the ring answered: what it has not done by the end of the wait is given up, and waited for all the same (I1).
///
/// # Safety
/// As [`ask_ring_for`]; and the caller, the fiber `control` of `worker`, has begun a wait, which `wait` waits for and the ring's answer may end.
#[inline(always)]
unsafe fn exchange<T>(
    worker: &Worker,
    control: &Control,
    entry: &mut Entry,
    completion: &Completion,
    why: At,
    wait: impl FnOnce() -> T,
) -> (T, io::Result<usize>) {
    let lent = Bomb(LENT);
    // SAFETY: the caller's promise; the wait has begun.
    with_ring(worker, |ring| unsafe { ring.submit(entry, completion) });
    worker.begin_source_wait(control);
    let ended = wait();
    if completion.result().is_none() {
        give_up(worker, control, completion, why);
    }
    worker.end_source_wait(control);
    let answer = completion.result().expect("its wait is over");
    lent.defuse();
    (ended, answer)
}

/// Whether the ring has not done an operation, because it was asked to give it up or for no reason of ours. What it had handed to a thread of the kernel is interrupted there.
fn is_undone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECANCELED | libc::EINTR))
}

/// Has the ring of the caller's worker do an operation, to its end, whatever happens meanwhile; `None` if the caller is no fiber, its worker has no ring, or it may move: a ring is one worker's, and one that computes
/// would keep the answer from a fiber that others could run. The caller may suspend.
///
/// # Safety
/// What the entry points to outlives the call, and is the kernel's until it returns.
pub(crate) unsafe fn complete(why: At, entry: impl FnOnce() -> Entry) -> Option<io::Result<usize>> {
    let (worker, control) = fiber()?;
    let stays = !control.may_move() || control.is_bound();
    if !stays || !worker.with_source(|source| source.is_ring()).unwrap_or(false) {
        return None;
    }
    let completion = Completion::new(control);
    let lent = Bomb(LENT);
    // SAFETY: the caller's promise, and the completion stays in this frame until it has a result; the wait begins before the worker looks.
    with_ring(worker, |ring| unsafe { ring.submit(&mut entry(), &completion) });
    worker.begin_source_wait(control);
    await_answer(worker, control, &completion, why);
    lent.defuse();
    worker.end_source_wait(control);
    completion.result()
}

/// Waits for the ring's answer, and for nothing else.
fn await_answer(worker: &Worker, control: &Control, completion: &Completion, why: At) {
    while completion.result().is_none() {
        control.note_why(Why::At(why));
        control.state.begin_wait();
        // SAFETY: F2 - `control` is the fiber that runs here; the ring's answer ends the wait.
        unsafe { worker.suspend(control) };
    }
}

/// Asks the ring to give an operation up, and waits for its answer all the same. Asks again from time to time: an operation that the kernel is just about to try once more is not found by the first.
#[cold]
fn give_up(worker: &Worker, control: &Control, completion: &Completion, why: At) {
    let mut pause_ns = GIVE_UP_PAUSE_NS;
    while completion.result().is_none() {
        with_ring(worker, |ring| ring.cancel(completion));
        // Where the ring was full, it was entered on the way, and may have answered.
        if completion.result().is_some() {
            break;
        }
        control.note_why(Why::At(why));
        control.state.begin_wait();
        // SAFETY: F2 - `control` is the fiber that runs here; the ring's answer or the deadline ends the wait.
        unsafe { worker.suspend_until(control, clock::now_ns() + pause_ns) };
        pause_ns = (pause_ns * 2).min(GIVE_UP_PAUSE_NS_MAX);
    }
}

/// Between two wishes to give an operation up. Arbitrary: the first is enough but for a rare race.
const GIVE_UP_PAUSE_NS: u64 = 1_000_000;
const GIVE_UP_PAUSE_NS_MAX: u64 = 100_000_000;

fn with_ring<T>(worker: &Worker, f: impl FnOnce(&mut crate::event::uring::Uring) -> T) -> T {
    let used = worker.with_source(|source| match source {
        Source::Uring(ring) => f(ring),
        Source::Epoll(_) => unreachable!("a worker's source does not change"),
    });
    used.expect("it is open")
}

/// Tries, and waits for epoll's word before each further try. `tried`: it has tried already, after it had seen this.
fn wait_at_epoll<S: AsFd, C: Call<S>>(
    fiber: &Caller<'_>,
    poller: &Poller,
    mut tried: Option<Seen>,
    descriptor: &Descriptor<S>,
    call: &mut C,
    deadline_ns: u64,
) -> io::Result<C::Output> {
    let (readiness, direction) = (descriptor.watch.get_or_make(), call.direction());
    let Poller { epoll, instance, .. } = *poller;
    let is_new = readiness.lock().must_register(instance);
    if is_new {
        // Whatever is there already is told of too: there is nothing to be tried before that.
        tried = Some(readiness.seen(direction));
        let mut pauses = Pauses::new();
        while let Err(error) = register(readiness, descriptor.raw_fd(), epoll, instance) {
            pause_for_room(error, &mut pauses, deadline_ns)?;
            if let Some(done) = attempt(descriptor, call).or_else(|| attempt_end(descriptor, call)) {
                return done;
            }
        }
    }
    let mut was_woken = false;
    loop {
        let (seen, tries) = match tried.take() {
            Some(seen) => (seen, false),
            None => (readiness.seen(direction), true),
        };
        let tries = tries && !readiness.is_drained(direction, seen);
        let mut done = if tries { attempt(descriptor, call) } else { None };
        if done.is_none() && readiness.may_have_ended(direction) {
            done = attempt_end(descriptor, call);
        }
        if let Some(done) = done {
            if matches!(&done, Ok(output) if call.empties(output)) {
                readiness.note_drained(direction, seen);
            }
            if !was_woken {
                count_gift();
            } else if let Some(next) = readiness.claim_next(instance, direction) {
                poller.group.into_iter().for_each(|group| group.roam.end_wait());
                make_ready(next);
            }
            return done;
        }
        let waits = Waits { readiness, poller, direction, seen, why: call.why() };
        if wait_for_edge(fiber, &waits, deadline_ns)? == Cause::TimedOut {
            return attempt(descriptor, call).unwrap_or_else(|| Err(would_block()));
        }
        was_woken = true;
    }
}

/// What a fiber waits for at epoll.
struct Waits<'a> {
    readiness: &'static Readiness,
    poller: &'a Poller,
    direction: Direction,
    seen: Seen,
    why: At,
}

/// Waits until epoll has told of something that came after what was seen.
#[inline]
fn wait_for_edge(fiber: &Caller<'_>, waits: &Waits<'_>, deadline_ns: u64) -> io::Result<Cause> {
    if fiber.control.join.is_done() {
        return wait_for_edge_after_end(fiber, waits, deadline_ns);
    }
    // In its block, where the claim looks anyway. The frame would be a cold line more for each event, and a page that is not in the TLB.
    // SAFETY: a fiber that waits is in user code and has no outcome yet, so the place in its block is free until the wait is over.
    unsafe {
        let place = fiber.control.beside_deadline::<Waiter>();
        place.write(Waiter::new(fiber.control, ()));
        wait_for_edge_as(fiber, &*place, waits, deadline_ns)
    }
}

/// As [`wait_for_edge`], by a fiber whose outcome is in its block: the foreign waker that is told of its end does I/O.
#[cold]
#[inline(never)]
fn wait_for_edge_after_end(fiber: &Caller<'_>, waits: &Waits<'_>, deadline_ns: u64) -> io::Result<Cause> {
    // SAFETY: the waiter stays in this frame.
    unsafe { wait_for_edge_as(fiber, &Waiter::new(fiber.control, ()), waits, deadline_ns) }
}

/// # Safety
/// `waiter` is a new one of the fiber, which stays in place until this returns.
#[inline(always)]
unsafe fn wait_for_edge_as(fiber: &Caller<'_>, waiter: &Waiter, waits: &Waits<'_>, deadline_ns: u64) -> io::Result<Cause> {
    let Caller { point, worker, control } = fiber;
    let Waits { readiness, poller: &Poller { instance, group, .. }, direction, seen, why } = *waits;
    let is_first = {
        let mut waiting = readiness.lock();
        if !readiness.is_still(direction, seen) {
            return Ok(Cause::Woken);
        }
        if !point.begin_held(Why::At(why)) {
            drop(waiting);
            return Err(point.fail().into());
        }
        let is_first = group.is_some_and(|group| group.roam.begin_wait());
        // SAFETY: it is new, and stays in place until its wait is over.
        unsafe { readiness.push(&mut waiting, instance, direction, waiter) };
        is_first
    };
    match group {
        None => worker.begin_epoll_wait(control),
        Some(group) if is_first => {
            group.call_lookout();
            if here().is_none_or(|worker| !std::ptr::eq(worker.group(), group)) {
                // It is in another group by now. That one's workers see to it as they go on; this one's may all be held.
                group.hire_lookout();
            }
        }
        Some(_) => {}
    }
    // SAFETY: the waiter was queued there.
    let withdraw = |waiting: &mut Waiting| unsafe { waiting.remove(instance, direction, waiter) };
    // SAFETY: the wait was begun above, with a waiter under the lock; an edge, a cancel or the deadline ends it. All groups are there while the fiber is, wherever it goes on.
    let ended = unsafe {
        match group {
            None => point.wait_at(readiness.waiting(), deadline_ns, withdraw),
            Some(group) => point.wait_at_roam(&group.roam, readiness.waiting(), deadline_ns, withdraw),
        }
    };
    match group {
        None => worker.end_source_wait(control),
        Some(group) if ended == Err(Cut::Cancelled) => group.roam.end_wait(),
        // Who claimed it has counted it out.
        Some(_) => {}
    }
    Ok(ended?)
}

/// Not `POLLPRI`: no call of ours takes urgent data, so it would stay, and one that waits for the rest would never sleep.
fn poll_bits(direction: Direction) -> libc::c_short {
    match direction {
        Direction::Read => libc::POLLIN | libc::POLLRDHUP,
        Direction::Write => libc::POLLOUT,
    }
}

fn wait_as_thread<S: AsFd, C: Call<S>>(me: &Me, descriptor: &Descriptor<S>, call: &mut C, deadline_ns: u64) -> io::Result<C::Output> {
    let point = me.cancel_point()?;
    let (fd, direction) = (descriptor.raw_fd(), call.direction());
    let (mut told, mut edges, mut pauses) = (0, None, Pauses::new());
    loop {
        if let Some(done) = attempt_told(descriptor, call, told) {
            return done;
        }
        if passed(deadline_ns) {
            return Err(would_block());
        }
        me.cancel_point_at_entry()?;
        if told != 0 && told & poll_bits(direction) == 0 && edges.is_none() {
            // What it was not asked for, in vain, and will be again: an error queue that nobody reads, say.
            match Edges::of(fd, poll_bits(direction)) {
                Ok(opened) => edges = Some(opened),
                Err(error) => pause_for_room(error, &mut pauses, deadline_ns)?,
            }
        }
        let until_ns = point.until_ns(deadline_ns);
        told = match &edges {
            None => poll_until(fd, direction, until_ns)?,
            Some(edges) => match poll_until(edges.fd(), Direction::Read, until_ns)? {
                0 => 0,
                _ => edges.take()?,
            },
        };
    }
}

/// Blocks this thread until `fd` is ready, or it is `deadline_ns`; gives what `poll` tells of it, 0 if it is not ready.
pub(super) fn poll_until(fd: RawFd, direction: Direction, deadline_ns: u64) -> io::Result<libc::c_short> {
    loop {
        let mut asked = libc::pollfd { fd, events: poll_bits(direction), revents: 0 };
        let limit = (deadline_ns != u64::MAX).then(|| clock::timespec(deadline_ns.saturating_sub(clock::now_ns())));
        // SAFETY: one entry, and the limit, outlive the call.
        let found = unsafe { libc::ppoll(&mut asked, 1, limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref), std::ptr::null()) };
        match found {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            _ if asked.revents & libc::POLLNVAL != 0 => return Err(io::Error::from_raw_os_error(libc::EBADF)),
            _ => return Ok(asked.revents),
        }
    }
}

/// What [`poll`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// That there is something to read, or the end, or an error.
    Readable,
    /// That there is room to write, or an error.
    Writable,
}

/// Waits until a descriptor of any kind is ready: one of a C library, say, that is then used by calls that do not block.
///
/// It says what was the case when it looked: what is to be read may be taken by another before the caller comes to it. So use it with a descriptor that is non-blocking. What
/// cannot be waited for, such as a plain file, is ready at once.
///
/// # Suspends
/// Yes, until it is ready. A [cancel point](crate::cancelled). While there is no descriptor to wait with, it looks from time to time.
///
/// # Errors
/// If it is no descriptor; and as every cancel point.
///
/// # Examples
/// ```
/// use std::io::Write;
/// let (mut near, far) = std::os::unix::net::UnixStream::pair()?;
/// sinew::run(|| {
///     near.write_all(b"x")?;
///     sinew::io::poll(&far, sinew::io::Interest::Readable)
/// })?;
/// # std::io::Result::Ok(())
/// ```
#[track_caller]
pub fn poll(fd: impl AsFd, interest: Interest) -> io::Result<()> {
    let fd = fd.as_fd();
    let direction = match interest {
        Interest::Readable => Direction::Read,
        Interest::Writable => Direction::Write,
    };
    enter_cancel_point()?;
    if poll_until(fd.as_raw_fd(), direction, 0)? != 0 {
        count_gift();
        return Ok(());
    }
    let mut pauses = Pauses::new();
    loop {
        // After each pause anew, as in `perform_until`.
        let me = Me::to_wait();
        let point = me.cancel_point()?;
        let Me::Fiber(worker, control) = me else {
            while poll_until(fd.as_raw_fd(), direction, point.until_ns(u64::MAX))? == 0 {
                me.cancel_point_at_entry()?;
            }
            return Ok(());
        };
        match poll_as_fiber(&Caller { point: &point, worker, control }, fd, direction) {
            Err(error) if what_is_short(&error).is_some() => pause_for_room(error, &mut pauses, u64::MAX)?,
            done => return done,
        }
        if poll_until(fd.as_raw_fd(), direction, 0)? != 0 {
            return Ok(());
        }
    }
}

fn poll_as_fiber(fiber: &Caller<'_>, fd: BorrowedFd<'_>, direction: Direction) -> io::Result<()> {
    match poller_of(fiber.worker, fiber.control)? {
        Some(poller) => poll_by_epoll(fiber, &poller, fd, direction),
        None => match poll_at_ring(fiber, fd.as_raw_fd(), direction, why(direction), u64::MAX)? {
            told if told & (poll_bits(direction) | libc::POLLERR | libc::POLLHUP) != 0 => Ok(()),
            _ => poll_by_epoll(fiber, &roam_of(fiber.worker)?, fd, direction),
        },
    }
}

/// By a duplicate: the number itself may be in this instance already.
fn poll_by_epoll(fiber: &Caller<'_>, poller: &Poller, fd: BorrowedFd<'_>, direction: Direction) -> io::Result<()> {
    let own = fd.try_clone_to_owned()?;
    let watch = Watch::new(Duplicates::Possible);
    let readiness = watch.get_or_make();
    let mut seen = readiness.seen(direction);
    register(readiness, own.as_raw_fd(), poller.epoll, poller.instance)?;
    loop {
        let waits = Waits { readiness, poller, direction, seen, why: why(direction) };
        wait_for_edge(fiber, &waits, u64::MAX)?;
        seen = readiness.seen(direction);
        if poll_until(own.as_raw_fd(), direction, 0)? != 0 {
            return Ok(());
        }
    }
}
