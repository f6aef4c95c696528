//! What other threads touch of one worker: where they leave fibers for it, how they wake it, and what they may steal.
//!
//! A seat outlives its worker, and its runtime: it is never freed, and goes to a later worker (`VACANT`).

use std::io;
use std::mem::offset_of;
use std::sync::OnceLock;
use std::sync::atomic as plain;

use crate::base::atomic::{AS_IN_MEMORY, Acquire, AtomicPtr, AtomicU32, AtomicU64, Relaxed, Release, fence};
use crate::base::deque::{Deque, Stolen};
use crate::base::inbox::{Inbox, Pushed};
use crate::base::list::List;
use crate::fiber::Control;
use crate::os::bell::Bell;
use crate::os::lock::Lock;
use crate::os::{clock, futex};
use crate::sched::counters::Counters;
use crate::sched::group::Group;
use crate::sched::slot::Slot;

/// Unstarted children a worker keeps; if they become more, the group's queue takes the oldest half. As tokio's and Go's local queues.
pub(crate) const CHILDREN_MAX: usize = 256;

/// Ready fibers that may move a worker keeps; who comes when there are so many queues up in the group. More than its children may be: those run newest first and seldom become many, these go round, and the way through the group's queue costs a
/// lock and a miss. 1,000 of them that yield: 67 -> 31 ns on one worker, 95 -> 17 on two (from 256; tokio 40 and 25; Zen 4). 8 KiB for each worker; 4,096 would be 32, and a seat keeps them for life.
pub(crate) const MOVING_MAX: usize = 1024;

/// How a worker rests.
#[derive(Clone, Copy)]
pub(crate) struct Rest {
    /// No deadline ends it, and nothing that fibers wait for at its source.
    pub(crate) for_good: bool,
    /// It sleeps in its source, where the bell wakes it, and not on its slot's word.
    pub(crate) at_source: bool,
}

const FOR_GOOD: u32 = 1;
const AT_SOURCE: u32 = 2;

/// What other threads touch of one worker. In this order: all that a wake by another thread touches, on both sides, is in the first cache line.
#[repr(C, align(128))]
pub(crate) struct Seat {
    /// Settled fibers that other threads woke.
    inbox: Inbox<Control>,
    /// The group whose worker sits here. Alive while any of its fibers is.
    group: AtomicPtr<Group>,
    pub(crate) slot: Slot,
    /// How it lies down, by the bits below.
    rest: AtomicU32,
    /// When somebody last made the system call that wakes it.
    woken_ns: AtomicU64,
    /// Times that others woke it, because a fiber of its own became ready. Written by those others, beside a system call.
    pub(crate) mail_wakes: plain::AtomicU64,
    /// What wakes it when it sleeps in its source. It stays, as the seat does: a late ring must not go to a stranger.
    bell: OnceLock<Bell>,
    pub(crate) counters: Counters,
    /// Unstarted fibers that this worker's fibers spawned.
    pub(crate) children: Deque<Control, CHILDREN_MAX>,
    /// Started fibers that may move, and are ready; the oldest goes first.
    pub(crate) moving: Deque<Control, MOVING_MAX>,
    /// The one that was woken here last: it runs next, here, unless a thief that finds nothing else takes it.
    pub(crate) next: AtomicPtr<Control>,
}

const _: () = assert!(!AS_IN_MEMORY || offset_of!(Seat, counters) == 64, "what a wake touches is one cache line");

/// Seats without a worker. They are never freed: who delivers to a seat touches it once more after the fiber is in its inbox, and by then the fiber may have
/// ended and its runtime be gone. A wake too many, of the seat's next worker, is harmless.
static VACANT: Lock<Vec<&'static Seat>> = Lock::new(Vec::new());

impl Seat {
    pub(crate) fn take() -> &'static Seat {
        let vacant = VACANT.lock().pop();
        vacant.unwrap_or_else(|| Box::leak(Box::new(Seat::new())))
    }

    /// Is for the next group that takes it. Its worker has left, or was never there: nothing is in it.
    pub(crate) fn leave(&'static self) {
        debug_assert!(!self.has_mail() && self.children.len() == 0, "a seat was left with fibers in it");
        debug_assert!(self.moving.len() == 0 && self.next.load(Relaxed).is_null(), "a seat was left with fibers that may move");
        self.group.store(std::ptr::null_mut(), Relaxed);
        self.slot.get_up();
        self.mail_wakes.store(0, Relaxed);
        self.counters.reset();
        VACANT.lock().push(self);
    }

    /// The group whose worker will sit here, once that has its place in memory.
    pub(crate) fn belong_to(&self, group: &Group) {
        self.group.store(std::ptr::from_ref(group).cast_mut(), Relaxed);
    }

    fn new() -> Self {
        Self {
            inbox: Inbox::new(),
            group: AtomicPtr::new(std::ptr::null_mut()),
            slot: Slot::new(),
            rest: AtomicU32::new(0),
            woken_ns: AtomicU64::new(0),
            mail_wakes: plain::AtomicU64::new(0),
            bell: OnceLock::new(),
            counters: Counters::new(),
            children: Deque::new(),
            moving: Deque::new(),
            next: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The group whose worker sits here, as a name: it may be gone.
    pub(crate) fn group(&self) -> *const Group {
        self.group.load(Relaxed)
    }

    /// Says how the worker's next rest is. By the worker, before it lies down.
    pub(crate) fn set_rest(&self, rest: Rest) {
        let bits = if rest.for_good { FOR_GOOD } else { 0 } | if rest.at_source { AT_SOURCE } else { 0 };
        self.rest.store(bits, Relaxed);
        // Release: meets the Acquire in `rest_is`, through the slot's word, which is written next.
        fence(Release);
    }

    /// Whether the rest that the caller has just seen in the slot, or a later one, is such.
    fn rest_is(&self, bit: u32) -> bool {
        // Acquire: meets the Release in `set_rest`.
        fence(Acquire);
        self.rest.load(Relaxed) & bit != 0
    }

    pub(crate) fn rests_for_good(&self) -> bool {
        self.slot.is_asleep() && self.rest_is(FOR_GOOD)
    }

    /// What wakes this worker from its source.
    pub(crate) fn bell(&self) -> io::Result<&Bell> {
        if let Some(bell) = self.bell.get() {
            return Ok(bell);
        }
        // Of a seat's workers one lives at a time: nobody else makes it.
        let bell = Bell::new()?;
        Ok(self.bell.get_or_init(|| bell))
    }

    /// Leaves a ready settled fiber for this worker, and wakes it if it sleeps.
    ///
    /// # Safety
    /// The caller ended the fiber's wait and owes it this (`state.rs`, I2); the fiber's home is this seat.
    pub(crate) unsafe fn deliver(&self, control: *const Control) {
        // SAFETY: the caller's promise: nobody else has the fiber.
        if unsafe { self.inbox.push(control.cast_mut()) } == Pushed::First && self.slot.notify() {
            self.mail_wakes.fetch_add(1, Relaxed);
            self.get_up();
        }
    }

    /// Makes the worker look at its inbox and the group's queues, asleep or not.
    pub(crate) fn wake(&self) {
        if self.slot.notify() {
            self.get_up();
        }
    }

    /// Wakes it: it sleeps, and was notified.
    fn get_up(&self) {
        self.woken_ns.store(clock::now_ns(), Relaxed);
        // If it has got up by itself since, and lies elsewhere now, it needs no wake, and one in vain is harmless.
        match self.bell.get() {
            Some(bell) if self.rest_is(AT_SOURCE) => bell.ring(),
            _ => futex::wake_one(self.slot.word()),
        }
    }

    /// What its last wake took, if it was woken since it lay down at `since_ns`. By this seat's worker, as it gets up.
    pub(crate) fn wake_cost_ns(&self, since_ns: u64, now_ns: u64) -> Option<u64> {
        let woken_ns = self.woken_ns.load(Relaxed);
        (woken_ns >= since_ns).then(|| now_ns.saturating_sub(woken_ns))
    }

    /// Started fibers of this worker: what placement weighs.
    pub(crate) fn settled(&self) -> usize {
        self.counters.settled.load(Relaxed)
    }

    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Moves what others left to `ready`. By this seat's worker.
    #[inline]
    pub(crate) fn take_mail(&self, ready: &List<Control>) {
        self.inbox.take(ready);
    }
}

/// One fiber; if there is none, another.
pub(crate) fn or_else(control: *mut Control, another: impl FnOnce() -> *mut Control) -> *mut Control {
    if control.is_null() { another() } else { control }
}

/// Steals the oldest item; null if there is none.
pub(crate) fn steal_one<const N: usize>(deque: &Deque<Control, N>) -> *mut Control {
    loop {
        match deque.steal() {
            Stolen::Item(control) => return control,
            Stolen::Empty => return std::ptr::null_mut(),
            Stolen::Retry => std::hint::spin_loop(),
        }
    }
}
