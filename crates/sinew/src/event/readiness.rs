//! Whether it is worth trying again: what epoll tells of one descriptor, and who waits for it.
//!
//! Edge-triggered: the kernel tells once that something has come, not that it is there. So nothing is remembered but how often it told (`edges`), and the rule is: read the number, try; if the
//! try would block and the number is still the same, wait for it to change. An edge between try and wait is seen, whoever's epoll instance it came by.
//!
//! After a short read a TCP socket is known to be empty: the next read need not try before it waits (`drained`), unless the peer has closed, or there was an error: that edge may have come
//! together with the data, and no other follows. Nor if there was urgent data: a read stops before it, with more behind. (Of other sockets a short read says nothing: that of a Unix socket stops
//! where a descriptor was passed.)
//!
//! # Which instance holds a descriptor
//! That of each worker whose fibers have waited for it, and that of each group whose fibers that may move have (`roam.rs`). An edge then comes by each of them, to those who wait there; so a worker that
//! computes for long delays no other's fibers.
//!
//! # Who is woken
//! The first of the fibers at that instance. If its try succeeds there may be more, and it wakes the next; if not, nobody's would. So of a thousand fibers that accept at one listener two run per
//! connection, and not a thousand. (All calls in one direction succeed or block alike.)
//!
//! # By a ring
//! A ring's poll tells all who ask, each of what is there and not of what comes. So of the fibers of one worker who accept at one listener one asks its ring, and the others stand in a line behind it; whoever leaves, with
//! a connection or without, has the next one ask, which is told of what is left. Nothing is in the ring but for a fiber that waits and borrows the descriptor, so nothing outlives that.
//!
//! # Invariants
//! I1. A `Readiness` is never freed: an event that was fetched before its descriptor was closed may still name it. To its next owner such an event is one try in vain. (So there is no need for a
//!     version in the event.)
//! I2. A descriptor leaves all instances before its owner closes it or gives it away, if there may be a duplicate (`instance.rs`); if not, closing it is enough, and saves the system calls.
//! I3. `edges` is changed under the lock, and so are the waiters' queues.
//!
//! # Memory order
//! `edges` and the flags are looked at without the lock before a try (Acquire, meets the Release in `edge`): a stale look costs a try in vain, since the wait looks again under the lock.

use std::io;
use std::mem::offset_of;
use std::os::fd::RawFd;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

use super::instance::forget;
use crate::base::atomic::AS_IN_MEMORY;
use crate::fiber::Claimed;
use crate::fiber::waiters::{Waiter, Waiters};
use crate::os::fork;
use crate::os::lock::{Held, Lock};

/// What one waits for at a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read = 0,
    Write = 1,
}

const BOTH: [Direction; 2] = [Direction::Read, Direction::Write];

/// What is known of one direction.
struct Side {
    /// How often the kernel has told.
    edges: AtomicU32,
    /// The number of edges at which a try is known to be in vain, plus one.
    drained: AtomicU32,
    /// Two have waited at once, some time.
    crowded: AtomicBool,
    /// The peer has closed, or there was an error, or urgent data: every try may succeed.
    never_drained: AtomicBool,
}

impl Side {
    /// Under the lock (I3), so there is no need for an exchange.
    #[inline]
    fn count_edge(&self) {
        // Release: meets the Acquire in `seen`.
        self.edges.store(self.edges.load(Relaxed).wrapping_add(1), Release);
    }
}

/// What epoll has told of one descriptor. In this order: what an event touches is the first cache line, and each is cold when there are many. (So is what that leads to: who waits is in its control block, and not in the frame that waits.)
#[repr(C, align(64))]
pub(crate) struct Readiness {
    sides: [Side; 2],
    waiting: Lock<Waiting>,
}

const _: () = assert!(
    !AS_IN_MEMORY || (offset_of!(Readiness, waiting) == 24 && size_of::<Option<Instance>>() == 40),
    "what an event touches is one cache line"
);

#[repr(C)]
pub(crate) struct Waiting {
    /// Nearly always the only one.
    first: Option<Instance>,
    more: Vec<Instance>,
    lines: Vec<Line>,
}

/// An instance that holds the descriptor, and the fibers that wait there. (Two that come first at once may both note a group's; the first entry is the one that is used.)
#[repr(C)]
struct Instance {
    number: u64,
    waiters: [Waiters; 2],
    /// The descriptor, as it holds it.
    fd: RawFd,
}

/// The fibers of one worker of whom one asks its ring for all: it is there while that one is.
struct Line {
    /// Which ring, of all that are open.
    ring: usize,
    /// Those behind.
    waiters: Waiters,
}

impl Waiting {
    /// Whether the caller is to ask this ring: nobody else does. If so it [passes that on](Self::pass_on) in the end.
    #[must_use]
    pub(crate) fn try_lead(&mut self, ring: usize) -> bool {
        let is_led = self.lines.iter().any(|line| line.ring == ring);
        if !is_led {
            self.lines.push(Line { ring, waiters: Waiters::new() });
        }
        !is_led
    }

    /// Queues a fiber behind the one that asks this ring. When it is claimed, it is to ask itself, as if it had been told to by `try_lead`.
    ///
    /// # Safety
    /// As [`Waiters::push`].
    pub(crate) unsafe fn follow(&mut self, ring: usize, waiter: &Waiter) {
        let line = self.lines.iter_mut().find(|line| line.ring == ring).expect("one asks it, by `try_lead` under the same lock");
        // SAFETY: the caller's promise.
        unsafe { line.waiters.push(waiter) };
    }

    /// Takes one out whose wait was cut short.
    ///
    /// # Safety
    /// It was queued by `follow`, for this ring.
    pub(crate) unsafe fn unfollow(&mut self, ring: usize, waiter: &Waiter) {
        // If the line is gone, who led it has taken all out.
        if let Some(line) = self.lines.iter_mut().find(|line| line.ring == ring) {
            // SAFETY: the caller's promise; one that was taken out is in no line.
            unsafe { line.waiters.remove(waiter) };
        }
    }

    /// Who asks this ring does so no more: claims the next.
    pub(crate) fn pass_on(&mut self, ring: usize) -> Option<Claimed> {
        let at = self.lines.iter().position(|line| line.ring == ring).expect("the caller leads it");
        let next = self.lines[at].waiters.claim_first(|()| ());
        if next.is_none() {
            self.lines.swap_remove(at);
        }
        next
    }

    fn waiters(&mut self, instance: u64, direction: Direction) -> Option<&mut Waiters> {
        // The first by itself: what tells that there are others is on another line.
        let held = match &mut self.first {
            Some(first) if first.number == instance => first,
            _ => self.more.iter_mut().find(|held| held.number == instance)?,
        };
        Some(&mut held.waiters[direction as usize])
    }

    /// # Safety
    /// As [`Waiters::remove`].
    pub(crate) unsafe fn remove(&mut self, instance: u64, direction: Direction, waiter: &Waiter) {
        let waiters = self.waiters(instance, direction).expect("it was registered before it was waited at");
        // SAFETY: the caller's promise.
        unsafe { waiters.remove(waiter) };
    }

    fn claim(&mut self, instance: u64, direction: Direction) -> Option<Claimed> {
        self.waiters(instance, direction)?.claim_first(|()| ())
    }

    /// Whether the instance with this number has yet to be told of the descriptor.
    pub(crate) fn must_register(&self, instance: u64) -> bool {
        // The first by itself: what tells that there are others is on another line.
        let is_at = |held: &Instance| held.number == instance;
        !self.first.as_ref().is_some_and(is_at) && !self.more.iter().any(is_at)
    }

    fn note_registered(&mut self, number: u64, fd: RawFd) {
        let new = Instance { number, waiters: [Waiters::new(), Waiters::new()], fd };
        match &mut self.first {
            first @ None => *first = Some(new),
            Some(_) => self.more.push(new),
        }
    }
}

/// What is known of a direction before a try.
#[derive(Clone, Copy)]
pub(crate) struct Seen(u32);

impl Readiness {
    fn new() -> Self {
        let (zero, no) = (|| AtomicU32::new(0), || AtomicBool::new(false));
        let side = || Side { edges: zero(), drained: zero(), crowded: no(), never_drained: no() };
        Self { sides: [side(), side()], waiting: Lock::new(Waiting { first: None, more: Vec::new(), lines: Vec::new() }) }
    }

    /// To be read before a try.
    pub(crate) fn seen(&self, direction: Direction) -> Seen {
        // Acquire: meets the Release in `edge`; the try comes after the look.
        Seen(self.sides[direction as usize].edges.load(Acquire))
    }

    /// Whether a try is known to be in vain.
    pub(crate) fn is_drained(&self, direction: Direction, seen: Seen) -> bool {
        let side = &self.sides[direction as usize];
        side.drained.load(Relaxed) == seen.0.wrapping_add(1) && !side.never_drained.load(Relaxed)
    }

    /// Whether the kernel has told of the end, or of something else after which nothing is certain.
    #[inline]
    pub(crate) fn may_have_ended(&self, direction: Direction) -> bool {
        // Who has seen the edge sees this too: it is stored before that.
        self.sides[direction as usize].never_drained.load(Relaxed)
    }

    /// A try after `seen` took all that there was.
    pub(crate) fn note_drained(&self, direction: Direction, seen: Seen) {
        self.sides[direction as usize].drained.store(seen.0.wrapping_add(1), Relaxed);
    }

    pub(crate) fn lock(&self) -> Held<'_, Waiting> {
        self.waiting.lock()
    }

    pub(crate) fn waiting(&self) -> &Lock<Waiting> {
        &self.waiting
    }

    /// Whether nothing has come since `seen`. Under the lock.
    pub(crate) fn is_still(&self, direction: Direction, seen: Seen) -> bool {
        self.sides[direction as usize].edges.load(Relaxed) == seen.0
    }

    /// Queues a fiber at `instance`, under the lock, which `waiting` is.
    ///
    /// # Safety
    /// As [`Waiters::push`].
    pub(crate) unsafe fn push(&self, waiting: &mut Waiting, instance: u64, direction: Direction, waiter: &Waiter) {
        let waiters = waiting.waiters(instance, direction).expect("it was registered before it is waited at");
        if !waiters.is_empty() {
            self.sides[direction as usize].crowded.store(true, Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { waiters.push(waiter) };
    }

    /// One that was woken has succeeded: claims the next at its instance. (It was claimed under the lock, so its relaxed look sees who was queued beside it then; who came later has tried since that edge.)
    #[inline]
    pub(crate) fn claim_next(&self, instance: u64, direction: Direction) -> Option<Claimed> {
        if !self.sides[direction as usize].crowded.load(Relaxed) {
            return None;
        }
        self.waiting.lock().claim(instance, direction)
    }

    /// The instance with this number has told; hands whom that wakes to `woken`, who makes them ready after this.
    pub(crate) fn edge(&self, instance: u64, told: Told, mut woken: impl FnMut(Claimed)) {
        let mut waiting = self.waiting.lock();
        for direction in BOTH {
            let side = &self.sides[direction as usize];
            if told.never_drained {
                side.never_drained.store(true, Relaxed);
            }
            if told.directions[direction as usize] {
                side.count_edge();
                if let Some(claimed) = waiting.claim(instance, direction) {
                    woken(claimed);
                }
            }
        }
    }

    /// Makes it fit for another descriptor.
    fn vacate(&self, duplicates: Duplicates) {
        let mut waiting = self.waiting.lock();
        let nobody = |held: &Instance| held.waiters.iter().all(Waiters::is_empty);
        let is_left = waiting.lines.is_empty() && waiting.first.iter().chain(&waiting.more).all(nobody);
        debug_assert!(is_left, "a descriptor was closed by its owner while somebody waits at it");
        let Waiting { first, more, .. } = &mut *waiting;
        for held in first.take().into_iter().chain(more.drain(..)) {
            if duplicates == Duplicates::Possible {
                forget(held.number, held.fd);
            }
        }
        for side in &self.sides {
            side.drained.store(0, Relaxed);
            side.crowded.store(false, Relaxed);
            side.never_drained.store(false, Relaxed);
            // What a late event says of the last owner is not said of the next at the same number.
            side.count_edge();
        }
    }
}

/// What one event says.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    pub(crate) directions: [bool; 2],
    pub(crate) never_drained: bool,
}

/// Those without a descriptor (I1).
static VACANT: Lock<Vec<&'static Readiness>> = Lock::new(Vec::new());

/// Whether anybody else may have the file that a descriptor is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duplicates {
    No,
    Possible,
}

/// A descriptor's readiness: none until one of its users has to wait at an epoll instance. Dropped before the descriptor is closed (I2).
pub(crate) struct Watch {
    readiness: AtomicPtr<Readiness>,
    is_duplicated: AtomicBool,
}

// No code of users runs while any of it is being changed, so a panic of theirs leaves it whole. (Their sockets, pipes and children are then as std's.)
impl UnwindSafe for Watch {}
impl RefUnwindSafe for Watch {}

impl Watch {
    pub(crate) const fn new(duplicates: Duplicates) -> Self {
        let is_duplicated = AtomicBool::new(matches!(duplicates, Duplicates::Possible));
        Self { readiness: AtomicPtr::new(ptr::null_mut()), is_duplicated }
    }

    /// There may be a duplicate from now on.
    pub(crate) fn note_duplicate(&self) {
        // Relaxed: whoever drops it comes after all who had it.
        if !self.is_duplicated.load(Relaxed) {
            self.is_duplicated.store(true, Relaxed);
        }
    }

    #[cfg(any(feature = "futures-io", feature = "tokio-io"))]
    pub(crate) fn is_duplicated(&self) -> bool {
        self.is_duplicated.load(Relaxed)
    }

    /// What is known, if anything is.
    #[inline]
    pub(crate) fn get(&self) -> Option<&'static Readiness> {
        // Acquire: meets the AcqRel in `get_or_make`. SAFETY: never freed (I1).
        unsafe { self.readiness.load(Acquire).as_ref() }
    }

    pub(crate) fn get_or_make(&self) -> &'static Readiness {
        if let Some(readiness) = self.get() {
            return readiness;
        }
        let vacant = VACANT.lock().pop();
        let new = vacant.unwrap_or_else(|| Box::leak(Box::new(Readiness::new())));
        // AcqRel: meets the Acquire in `get`, and its own of another thread that was first.
        match self.readiness.compare_exchange(ptr::null_mut(), ptr::from_ref(new).cast_mut(), AcqRel, Acquire) {
            Ok(_) => new,
            Err(first) => {
                VACANT.lock().push(new);
                // SAFETY: never freed (I1).
                unsafe { &*first }
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: never freed (I1). In a forked child its lock, or that of the vacant ones, may be held for ever by a thread that is not there.
        if let Some(readiness) = unsafe { self.readiness.get_mut().as_ref() }
            && !fork::is_child()
        {
            readiness.vacate(if *self.is_duplicated.get_mut() { Duplicates::Possible } else { Duplicates::No });
            VACANT.lock().push(readiness);
        }
    }
}

/// Makes sure that the instance `epoll`, with this number, tells of `fd`.
///
/// # Errors
/// What the kernel says; `EPERM` for what epoll does not take, such as plain files.
pub(crate) fn register(readiness: &'static Readiness, fd: RawFd, epoll: RawFd, instance: u64) -> io::Result<()> {
    let events = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET) as u32;
    let mut event = libc::epoll_event { events, u64: ptr::from_ref(readiness) as u64 };
    let mut ask = |what| {
        // SAFETY: the event outlives the call.
        match unsafe { libc::epoll_ctl(epoll, what, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    match ask(libc::EPOLL_CTL_ADD) {
        // A duplicate of a descriptor that had this number, and was closed: its place is taken over.
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => ask(libc::EPOLL_CTL_MOD)?,
        added => added?,
    }
    readiness.lock().note_registered(instance, fd);
    Ok(())
}
