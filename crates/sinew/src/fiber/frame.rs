//! What encloses a fiber's waits: time-outs, shields, and the scopes to whose children its cancel is passed on.
//!
//! Each is a frame on the stack of the fiber (or thread) that opened it, so a time-out allocates nothing, and a fiber without any pays one look at a null pointer.
//!
//! # Picture
//! ```text
//!   control.frames ──> timeout 2 s ──> scope [children] ──> timeout 5 s ──> the root of the scope it was born in, or null
//!                        limit: 2 s      limit: 5 s           limit: 5 s      limit: its owner's, where the scope was opened
//! ```
//!
//! # Invariants
//! I1. Only the fiber itself opens and closes its frames, and does so under its lock (one of `LOCKS`, by its place). Whoever holds that lock may walk them, and use
//!     the list of children of each.
//! I2. A frame outlives what is opened within it, children of scopes included; so the limit that a frame names is alive while the frame is.
//!     But the root is its owner's, and gone soon after the fiber's end, of which a canceller knows nothing: a pointer to it is marked, and none but the fiber itself follows it.
//! I3. A cancel is never lost to a child: a cancel marks the owner and then takes its lock; a child is enrolled under that lock, and then the mark is looked at.

use std::cell::{Cell, UnsafeCell};
use std::ptr;

use super::tally::Tally;
use super::{Control, Weak};
use crate::base::atomic::{AtomicU32, Relaxed};
use crate::os::fork;
use crate::os::lock::{Held, Lock};

/// Locks of frames, by place of the fiber. Arbitrary: several per worker, so that two workers seldom meet.
const LOCK_COUNT: usize = 64;

#[repr(align(64))]
struct FrameLock(Lock<()>);

static LOCKS: [FrameLock; LOCK_COUNT] = [const { FrameLock(Lock::new(())) }; LOCK_COUNT];

/// Takes the lock of a fiber's frames. Not in a forked child: it may be held for ever by a thread that is not there, and there is no other.
fn lock(control: &Control) -> Option<Held<'static, ()>> {
    (!fork::is_child()).then(|| LOCKS[control.place() as usize % LOCK_COUNT].0.lock())
}

/// Children enrolled before those that have ended are first swept out.
const CHILDREN_UNSWEPT: usize = 16;

/// A deadline for all waits within.
pub(crate) struct Limit {
    pub(crate) deadline_ns: u64,
    /// Whether it has cut a wait short.
    cut: AtomicU32,
}

impl Limit {
    pub(crate) fn new(deadline_ns: u64) -> Self {
        Self { deadline_ns, cut: AtomicU32::new(0) }
    }

    /// Notes that it has cut a wait short; by the fiber that waited, which may be a child of a scope within.
    pub(crate) fn note_cut(&self) {
        self.cut.store(1, Relaxed);
    }

    /// Whether it has cut a wait short. By whoever opened it, when all within have ended, which orders their marks before this look.
    pub(crate) fn has_cut(&self) -> bool {
        self.cut.load(Relaxed) != 0
    }
}

/// In a pointer to a frame: it is the root.
const ROOT: usize = 1;

/// One frame.
pub(crate) struct Frame {
    outer: Cell<*const Frame>,
    /// The earliest deadline in force; null if there is none.
    limit: *const Limit,
    /// Whether cancels wait until this frame, or one around it, is closed.
    shielded: bool,
    /// Of a scope: fibers that are cancelled with the owner.
    children: UnsafeCell<Vec<Weak>>,
    /// Of a scope's root: who counts its fibers.
    tally: Cell<*const Tally>,
}

// SAFETY: limit, shield and tally do not change while the frame is open; the rest is used under the owner's lock (I1).
unsafe impl Sync for Frame {}
// SAFETY: a frame is moved before it is opened only.
unsafe impl Send for Frame {}

impl Frame {
    fn new(limit: *const Limit, shielded: bool) -> Self {
        let (outer, children) = (Cell::new(ptr::null()), UnsafeCell::new(Vec::new()));
        Self { outer, limit, shielded, children, tally: Cell::new(ptr::null()) }
    }

    /// Of a time-out within `around`: the earlier of its own limit and what is in force.
    pub(crate) fn limited(around: Bounds<'_>, limit: &Limit) -> Self {
        let earliest = around.limit.filter(|outer| outer.deadline_ns <= limit.deadline_ns).unwrap_or(limit);
        Self::new(earliest, around.shielded)
    }

    /// Of a shield: neither cancels nor deadlines of what is around it.
    pub(crate) fn shield() -> Self {
        Self::new(ptr::null(), true)
    }

    /// Of a scope within `around`.
    pub(crate) fn scope(around: Bounds<'_>) -> Self {
        Self::new(around.limit.map_or(ptr::null(), ptr::from_ref), around.shielded)
    }

    /// What the fibers of a scope within `around` begin with: its deadline. A shield is the owner's; fibers of a scope that was opened in one are sheltered instead
    /// (`enroll`): nothing from outside the shield reaches them, but a cancel of their own does.
    pub(crate) fn root(around: Bounds<'_>) -> Self {
        Self::new(around.limit.map_or(ptr::null(), ptr::from_ref), false)
    }

    /// A pointer to a root, or null, as a fiber begins with it.
    pub(crate) fn as_root(root: *const Frame) -> *const Frame {
        if root.is_null() { root } else { root.map_addr(|address| address | ROOT) }
    }

    /// The frame itself, root or not. For the fiber whose frame it is.
    #[inline]
    pub(crate) fn unmarked(frame: *const Frame) -> *const Frame {
        frame.map_addr(|address| address & !ROOT)
    }

    fn is_root(frame: *const Frame) -> bool {
        frame.addr() & ROOT != 0
    }

    /// Says who counts the fibers that begin with this root. Before there are any.
    pub(crate) fn count_by(&self, tally: &Tally) {
        self.tally.set(tally);
    }

    pub(crate) fn tally(&self) -> *const Tally {
        self.tally.get()
    }

    fn bounds(&self) -> Bounds<'_> {
        // SAFETY: I2.
        Bounds { limit: unsafe { self.limit.as_ref() }, shielded: self.shielded }
    }

    /// Makes `child` one of those that are cancelled with `owner`; cancels it at once if that has happened already (I3).
    ///
    /// # Safety
    /// This frame is an open scope of `owner`; `child` is unstarted and the caller's alone.
    pub(crate) unsafe fn enroll(&self, owner: &Control, child: &Control) {
        if self.shielded || owner.state.is_sheltered() {
            child.state.shelter();
        }
        if self.shielded {
            return;
        }
        let held = lock(owner);
        // SAFETY: I1 - the lock is held.
        let children = unsafe { &mut *self.children.get() };
        if children.len() == children.capacity() && children.len() >= CHILDREN_UNSWEPT {
            // Those that have ended are swept out as often as the list would grow, so that a scope that lives for ever does not.
            children.retain(Weak::is_alive);
            // Else one that is nearly full of living children would be swept for each new one.
            if children.len() > children.capacity() / 2 {
                children.reserve(children.len());
            }
        }
        children.push(Weak::of(child));
        let cancelled = owner.state.is_cancelled();
        drop(held);
        if cancelled {
            let _ = child.state.cancel();
        }
    }
}

/// What cuts waits short at some place.
#[derive(Clone, Copy)]
pub(crate) struct Bounds<'a> {
    pub(crate) limit: Option<&'a Limit>,
    pub(crate) shielded: bool,
}

impl Control {
    /// What cuts this fiber's waits short now. By the fiber itself.
    #[inline]
    pub(crate) fn bounds(&self) -> Bounds<'_> {
        // SAFETY: I1, I2 - the frames are the caller's own, so the innermost is open.
        unsafe { Frame::unmarked(self.frames()).as_ref() }.map_or(Bounds { limit: None, shielded: false }, Frame::bounds)
    }

    /// Opens `frame` within those that are open. By the fiber itself.
    ///
    /// # Safety
    /// The frame stays in place until it is closed by [`close`](Self::close), which comes before any frame around it is.
    pub(crate) unsafe fn open(&self, frame: &Frame) {
        let _held = lock(self);
        frame.outer.set(self.frames());
        self.set_frames(frame);
    }

    /// Closes the innermost frame, `frame`. By the fiber itself.
    pub(crate) fn close(&self, frame: &Frame) {
        let _held = lock(self);
        debug_assert!(ptr::eq(self.frames(), frame), "frames are closed in the order in which they were opened, last first");
        self.set_frames(frame.outer.get());
    }

    /// Appends to `found` the children that are cancelled with this fiber. By anybody who holds a reference, once it has been marked.
    pub(crate) fn children_into(&self, found: &mut Vec<Weak>) {
        let _held = lock(self);
        let mut next = self.frames();
        while !next.is_null() && !Frame::is_root(next) {
            // SAFETY: I1, I2 - the lock is held, so the fiber's own frames stay open.
            let frame = unsafe { &*next };
            if !frame.shielded {
                // SAFETY: I1.
                found.extend(unsafe { &*frame.children.get() }.iter().filter(|child| child.is_alive()));
            }
            next = frame.outer.get();
        }
    }
}
