//! What a fiber is: a control block, then, from its first run, a stack.
//!
//! # Picture of a control block
//! ```text
//!  line 0   link, sp, home, stack, deepest, id, state, why, join, references, marks   scheduling: all that a switch or a wake touches
//!  line 1   what to run, name, spawn site, watcher, frames, locals                    touched at spawn and end
//!  line 2   the closure until the first run, then the outcome                         64 bytes, larger ones in a box
//!           between them the deadline of a wait and the ring's answer, or who waits at epoll; a wait after the outcome, of a foreign waker, has them in its frame
//! ```
//! A block is not in its stack: walking a queue would miss the TLB once per fiber, and blocks at the same offset of their stacks would share a handful
//! of cache sets.
//!
//! # Who may touch what
//! - Before it is queued: the spawner, everything.
//! - Queued or waiting: whoever holds it (law F1) its link; anybody `state`, `join`, `references`; everybody the name and id, which stay, and the site; under its
//!   lock anybody the frames (`frame.rs`).
//! - Running: its worker, everything else (law F2).
//! - After the end: the handle, the outcome (`join.rs`, I2).

pub(crate) mod frame;
pub(crate) mod hooks;
pub(crate) mod join;
pub(crate) mod local;
pub(crate) mod pool;
pub(crate) mod references;
pub(crate) mod stack;
pub(crate) mod state;
pub(crate) mod switch;
pub(crate) mod tally;
pub(crate) mod task;
pub(crate) mod waiters;
pub(crate) mod why;

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::Location;
use std::ptr;
use std::sync::atomic as plain;
use std::task::{RawWakerVTable, Waker};

use crate::base::atomic::{AS_IN_MEMORY, AtomicPtr, AtomicU32, AtomicUsize, Relaxed};
use crate::base::list::Linked;
use crate::base::wheel::Entry;
use crate::os::clock;
use frame::Frame;
use join::Join;
use local::{Payload, Place};
use references::References;
use stack::{Class, Stack};
use state::{Cancel, Cause, State, Unpark};
use tally::Tally;
use why::Why;

/// Bytes of a closure or an outcome that fit into the control block.
pub(crate) const INLINE_BYTES: usize = 64;

/// Those of them that the deadline of a wait has, while neither is there; what else others look for has the rest.
const DEADLINE_BYTES: usize = 40;

/// One wake in so many of each fiber is timed: a clock read costs more than a yield.
const SAMPLE_EVERY: u8 = 64;

/// Whether anything is counted and timed. It always is, but in the build that `examples/counting.rs` compares with, which says what it costs. (Switches are how a worker that is held is known: there, each seems to be.)
pub(crate) const COUNTS: bool = !cfg!(sinew_counters = "off");

/// Marks: it is in a region in which it must not suspend.
const NO_SUSPEND: u8 = 1 << 0;
/// It has hooks.
const HOOKED: u8 = 1 << 1;
/// Above these: its verdict, two bits.
const VERDICT_SHIFT: u32 = 2;
const VERDICT: u8 = 0b11;
/// It polls a future.
const POLLING: u8 = 1 << 4;
/// It goes on where it is, whoever wakes it: something of its worker is in use.
const BOUND: u8 = 1 << 5;
/// It must not leave its group. For life.
const PINNED: u8 = 1 << 6;
/// It may move from worker to worker. For life.
const MOVES: u8 = 1 << 7;

/// Where the kind begins in the byte that it shares with the stack's class.
const KIND_SHIFT: u32 = 6;
const _: () = assert!(stack::CLASSES <= 1 << KIND_SHIFT);

/// Names a fiber: unique among those that live, and among the last four billion that used its place. Printed as `#place`, or `#place.n` when the place has been used `n` times before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u64);

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `#place`, with `.version` behind it once the place has been used again.
impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 >> 32 {
            0 => write!(f, "#{}", self.0 as u32),
            version => write!(f, "#{}.{version}", self.0 as u32),
        }
    }
}

/// Who is told when a fiber ends.
pub(crate) enum Watcher {
    /// A fiber or a thread that waits in `join`.
    Waiter(*const Control),
    /// A task that polls the handle as a future.
    Task(Waker),
}

/// A watcher in two words: without a table it is a waiter.
type PackedWatcher = (*const (), Option<&'static RawWakerVTable>);

/// A fiber, or a plain thread that waits as fibers do.
#[repr(C, align(64))]
pub(crate) struct Control {
    link: AtomicPtr<Control>,
    /// Where it goes on; null until the first run. Atomic, since a worker asks the cache for the stack of a fiber that a thief may have taken meanwhile; to that it is a hint. What a switch stores there is one store of a word.
    sp: plain::AtomicPtr<u8>,
    /// The worker it is settled on, as `sched` knows it; null until the first run, and for threads. Atomic, since a shutdown looks at all blocks.
    home: AtomicPtr<()>,
    /// Atomic, as `deepest`, since a handle may ask for them from any thread; written by its worker alone.
    stack_bottom: AtomicUsize,
    index: u32,
    references: References,
    pub(crate) state: State,
    /// What it waits for, while it waits.
    why: AtomicU32,
    pub(crate) join: Join,
    /// The deepest place of its stack at which it suspended: bytes above the stack's bottom.
    deepest: AtomicU32,
    /// What it is and the size of its stack, for life: [`Kind`] above [`KIND_SHIFT`], the class below.
    nature: Cell<u8>,
    /// Guards that keep it at its worker.
    pins: Cell<u8>,
    /// The verdict, and what a suspension has to heed besides; by its worker and the running fiber itself.
    marks: Cell<u8>,
    /// Wakes until one is timed; 0 while one is.
    sample: Cell<u8>,

    task: Cell<Option<&'static task::Table>>,
    /// Where it was spawned, or what it serves was made. Atomic, since reports of others read it.
    site: AtomicPtr<Location<'static>>,
    /// What encloses its waits, innermost first; written by itself, under its lock. The root is marked (`frame.rs`).
    frames: AtomicPtr<Frame>,
    /// Boxed twice, so that it takes one word.
    name: UnsafeCell<Option<Box<Box<str>>>>,
    /// Fiber-locals and hooks. A plain thread's hang at the thread.
    pub(crate) locals: Place,
    watcher: Cell<PackedWatcher>,
    /// When it became ready; of a timed wake only.
    ready_ns: Cell<u64>,

    slot: Slot,
}

/// Room for a closure, then for an outcome.
#[repr(align(64))]
struct Slot(UnsafeCell<MaybeUninit<[u8; INLINE_BYTES]>>);

const _: () = assert!(!AS_IN_MEMORY || size_of::<Control>() == 192, "a control block is three cache lines");

/// What stands behind a control block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A fiber that stays at one worker.
    Fiber,
    /// A fiber that may move.
    Mover,
    Thread,
}

/// What the first run of a fiber does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Run the closure.
    Run,
    /// Drop it: there is no stack, and nothing that could give one back.
    NoStack,
    /// Drop it: the runtime was shut down.
    ShutDown,
    /// The same, on a stack of the reserve.
    ShutDownInReserve,
}

/// A wait that the holder has ended: it owes the fiber or thread its wake (`state.rs`, I2).
#[must_use]
pub(crate) struct Claimed {
    pub(crate) control: *const Control,
    /// Read before the claim: a thread may be gone, and its block another's, as soon as its wait is over.
    pub(crate) kind: Kind,
}

impl Claimed {
    /// What the claimer of this fiber had.
    ///
    /// # Safety
    /// The wait of this fiber was ended by the caller, who has not paid for it yet.
    pub(crate) unsafe fn again(control: *const Control) -> Self {
        // SAFETY: a claimed fiber is the claimer's.
        Self { control, kind: unsafe { &*control }.kind() }
    }
}

/// It was cancelled before.
#[derive(Debug)]
pub(crate) struct AlreadyCancelled;

/// Knows a fiber without keeping its block.
#[derive(Clone, Copy)]
pub(crate) struct Weak {
    control: *const Control,
    version: u32,
}

impl Weak {
    pub(crate) fn of(control: &Control) -> Self {
        Self { control, version: control.references.version() }
    }

    /// All there is to it, in one word: the fiber's id.
    pub(crate) fn pack(self) -> u64 {
        // SAFETY: as in `is_alive`.
        u64::from(self.version) << 32 | u64::from(unsafe { &*self.control }.index)
    }

    /// What [`pack`](Self::pack) packed.
    pub(crate) fn unpack(word: u64) -> Self {
        Self { control: pool::at(word as u32), version: (word >> 32) as u32 }
    }

    /// Whether the fiber has not ended, as far as a look without a reference can tell: `false` is certain.
    pub(crate) fn is_alive(&self) -> bool {
        // SAFETY: blocks are type-stable and never unmapped (`pool`); these fields are atomics.
        let control = unsafe { &*self.control };
        self.is_same() && !control.join.is_done()
    }

    /// Takes a reference to whatever fiber has the block now; `None` if none has. The caller then looks whether it [is the same](Self::is_same), and
    /// gives the reference up by `release`.
    #[must_use]
    pub(crate) fn pin(&self) -> Option<*const Control> {
        // SAFETY: as in `is_alive`.
        unsafe { &*self.control }.references.pin().then_some(self.control)
    }

    /// Whether the block is still this fiber's. For good, if the caller has pinned it.
    pub(crate) fn is_same(&self) -> bool {
        // SAFETY: as in `is_alive`.
        unsafe { &*self.control }.references.version() == self.version
    }
}

// SAFETY: the fields that several threads use at once are atomics; the head of the file says who alone may use each of the others.
unsafe impl Sync for Control {}

// SAFETY: the link is one field, and only the list that holds the block uses it (law F1).
unsafe impl Linked for Control {
    #[inline]
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

impl Control {
    /// A block nobody uses, for the pool.
    fn vacant(index: u32) -> Self {
        Self {
            link: AtomicPtr::new(ptr::null_mut()),
            sp: plain::AtomicPtr::new(ptr::null_mut()),
            home: AtomicPtr::new(ptr::null_mut()),
            stack_bottom: AtomicUsize::new(0),
            index,
            references: References::new(),
            state: State::new(),
            why: AtomicU32::new(0),
            join: Join::new(),
            deepest: AtomicU32::new(u32::MAX),
            nature: Cell::new(0),
            pins: Cell::new(0),
            marks: Cell::new(0),
            sample: Cell::new(SAMPLE_EVERY),
            task: Cell::new(None),
            site: AtomicPtr::new(ptr::null_mut()),
            frames: AtomicPtr::new(ptr::null_mut()),
            name: UnsafeCell::new(None),
            locals: Place::new(),
            watcher: Cell::new((ptr::null(), None)),
            ready_ns: Cell::new(0),
            slot: Slot(UnsafeCell::new(MaybeUninit::uninit())),
        }
    }

    /// Makes a vacant block a fiber-to-be with `references` owners; the closure is put in by `task`, locals by the spawner.
    ///
    /// # Safety
    /// The block came from the pool and is the caller's alone.
    #[inline]
    pub(crate) unsafe fn occupy(
        &self,
        kind: Kind,
        references: u32,
        class: Class,
        name: Option<Box<str>>,
        site: &'static Location<'static>,
        root: *const Frame,
    ) {
        self.sp.store(ptr::null_mut(), Relaxed);
        self.home.store(ptr::null_mut(), Relaxed);
        self.state.reset();
        self.join.reset();
        self.frames.store(Frame::as_root(root).cast_mut(), Relaxed);
        self.nature.set((kind as u8) << KIND_SHIFT | class.index() as u8);
        self.pins.set(0);
        self.set_site(site);
        self.deepest.store(u32::MAX, Relaxed);
        self.marks.set(if kind == Kind::Mover { MOVES } else { 0 });
        // Spread over fibers that live for one wake only: every place gets its turn as it is used again.
        self.sample.set((self.index.wrapping_add(self.references.version()) % u32::from(SAMPLE_EVERY)) as u8 + 1);
        // SAFETY: the block is the caller's alone, and one from the pool has no name.
        unsafe { self.name.get().write(name.map(Box::new)) };
        self.references.occupy(references);
    }

    /// Readies a block for the pool; its id is never seen again (for four billion uses of this place).
    ///
    /// # Safety
    /// The last reference is gone, and the caller gives the block to the pool.
    pub(crate) unsafe fn vacate(&self) {
        self.references.vacate();
        // SAFETY: nobody else has a reference.
        unsafe { *self.name.get() = None };
    }

    pub(crate) fn id(&self) -> Id {
        Id(u64::from(self.references.version()) << 32 | u64::from(self.index))
    }

    /// Its place in the pool.
    pub(crate) fn place(&self) -> u32 {
        self.index
    }

    pub(crate) fn name(&self) -> Option<&str> {
        // SAFETY: written before the block was shared, and not again while a reference lives.
        unsafe { (*self.name.get()).as_ref().map(|name| &***name) }
    }

    pub(crate) fn site(&self) -> &'static Location<'static> {
        // SAFETY: null, or a place that lives for ever.
        unsafe { self.site.load(Relaxed).as_ref() }.unwrap_or(Location::caller())
    }

    /// Changes the place that messages name. By the spawner, or the fiber itself.
    pub(crate) fn set_site(&self, site: &'static Location<'static>) {
        self.site.store(ptr::from_ref(site).cast_mut(), Relaxed);
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        // A table, since it is read at every wake: a `match` is nine instructions.
        const KINDS: [Kind; 4] = [Kind::Fiber, Kind::Mover, Kind::Thread, Kind::Thread];
        KINDS[(self.nature.get() >> KIND_SHIFT) as usize]
    }

    #[inline]
    pub(crate) fn class(&self) -> Class {
        Class::numbered(self.nature.get() & ((1 << KIND_SHIFT) - 1))
    }

    /// Whether its verdict is another than to run: one look, for the many whose it is not.
    #[inline]
    pub(crate) fn is_condemned(&self) -> bool {
        self.marks.get() & VERDICT << VERDICT_SHIFT != 0
    }

    pub(crate) fn verdict(&self) -> Verdict {
        match self.marks.get() >> VERDICT_SHIFT & VERDICT {
            0 => Verdict::Run,
            1 => Verdict::NoStack,
            2 => Verdict::ShutDown,
            _ => Verdict::ShutDownInReserve,
        }
    }

    /// Decides that an unstarted fiber ends without having run.
    pub(crate) fn condemn(&self, verdict: Verdict) {
        self.marks.set(self.marks.get() & (PINNED | MOVES) | (verdict as u8) << VERDICT_SHIFT);
        if verdict != Verdict::NoStack {
            // What its closure's destructors wait for is cut short as all else in the runtime is.
            let _ = self.state.cancel();
        }
    }

    /// The size of the stack it is on: the one it asked for, unless it is ended on one of the reserve.
    #[inline]
    fn stack_class(&self) -> Class {
        let in_reserve = self.is_condemned() && matches!(self.verdict(), Verdict::NoStack | Verdict::ShutDownInReserve);
        if in_reserve { stack::RESERVE } else { self.class() }
    }

    /// Ends the wait under way for `cause`, if this call comes first.
    #[inline]
    pub(crate) fn claim(&self, cause: Cause) -> Option<Claimed> {
        let kind = self.kind();
        self.state.claim(cause).then_some(Claimed { control: self, kind })
    }

    /// Ends a park, or leaves a token for the next.
    #[inline]
    pub(crate) fn unpark(&self) -> Option<Claimed> {
        let kind = self.kind();
        match self.state.unpark() {
            Unpark::MakeReady => Some(Claimed { control: self, kind }),
            Unpark::TokenLeft => None,
        }
    }

    /// Ends a wait for a future, or leaves a token for the next.
    #[inline]
    pub(crate) fn wake_task(&self) -> Option<Claimed> {
        let kind = self.kind();
        match self.state.wake_task() {
            Unpark::MakeReady => Some(Claimed { control: self, kind }),
            Unpark::TokenLeft => None,
        }
    }

    /// Cancels the fiber; whom to make ready for it, or `Err` if it was cancelled before.
    pub(crate) fn cancel(&self) -> Result<Option<Claimed>, AlreadyCancelled> {
        let kind = self.kind();
        match self.state.cancel() {
            Cancel::MakeReady => Ok(Some(Claimed { control: self, kind })),
            Cancel::Noted => Ok(None),
            Cancel::Already => Err(AlreadyCancelled),
        }
    }

    /// Whether nobody has left anything here for its owners, `owners` in number, or can. By itself.
    pub(crate) fn is_pristine(&self, owners: u32) -> bool {
        self.references.count() == owners && self.state.is_pristine()
    }

    /// One owner more.
    #[inline]
    pub(crate) fn retain(&self) {
        let before = self.references.retain();
        assert!(before < u32::MAX / 2, "too many handles to fiber {}", self.id());
    }

    /// One owner less; `true` if that was the last, and the caller gives the block back.
    #[inline]
    #[must_use]
    pub(crate) fn release(&self) -> bool {
        self.references.release()
    }

    /// Whether it has run.
    #[inline]
    pub(crate) fn is_started(&self) -> bool {
        !self.sp().is_null()
    }

    #[inline]
    pub(crate) fn sp(&self) -> *mut u8 {
        self.sp.load(Relaxed)
    }

    /// Where a switch away from this fiber stores its place.
    #[inline]
    pub(crate) fn sp_place(&self) -> *mut *mut u8 {
        self.sp.as_ptr()
    }

    #[inline]
    pub(crate) fn home(&self) -> *const () {
        self.home.load(Relaxed)
    }

    /// Settles the fiber on `home`, with a stack on which it begins at `sp`. By the worker that first runs it.
    pub(crate) fn settle(&self, home: *const (), stack: Stack, sp: *mut u8) {
        debug_assert_eq!(self.stack_class(), stack.class(), "a stack of another size than asked for");
        self.home.store(home.cast_mut(), Relaxed);
        self.sp.store(sp, Relaxed);
        self.stack_bottom.store(stack.bottom(), Relaxed);
    }

    /// Moves it to another worker. By that, or by who gives it to that; it is the caller's, and has left its stack.
    #[inline]
    pub(crate) fn move_to(&self, home: *const ()) {
        debug_assert!(self.may_move(), "F5: fiber {self} taken by another worker than its own");
        self.home.store(home.cast_mut(), Relaxed);
    }

    /// Whether it may move from worker to worker.
    #[inline]
    pub(crate) fn may_move(&self) -> bool {
        self.marks.get() & MOVES != 0
    }

    /// Whether it must not leave its group.
    #[inline]
    pub(crate) fn is_pinned(&self) -> bool {
        self.marks.get() & PINNED != 0
    }

    /// Says that it must not leave its group. By the spawner.
    pub(crate) fn set_pinned(&self) {
        self.marks.set(self.marks.get() | PINNED);
    }

    /// Whether it goes on where it is. By itself, or by who has it.
    pub(crate) fn is_bound(&self) -> bool {
        self.marks.get() & BOUND != 0 || self.pins.get() != 0
    }

    /// One guard more that keeps it at its worker. By the running fiber itself.
    pub(crate) fn pin(&self) {
        let pins = self.pins.get().checked_add(1);
        self.pins.set(pins.expect("a fiber holds 255 guards of sinew::pin at once"));
    }

    /// One of them less.
    pub(crate) fn unpin(&self) {
        self.pins.set(self.pins.get() - 1);
    }

    /// Says whether it goes on where it is; gives what was said before. By the running fiber itself.
    pub(crate) fn set_bound(&self, now: bool) -> bool {
        let marks = self.marks.get();
        self.marks.set(if now { marks | BOUND } else { marks & !BOUND });
        marks & BOUND != 0
    }

    /// Notes that it has left its worker for good. By that.
    pub(crate) fn leave_home(&self) {
        self.home.store(ptr::null_mut(), Relaxed);
    }

    /// Takes the stack away from a fiber that has ended on it.
    ///
    /// # Safety
    /// The fiber has ended, and whoever gets the stack does not let it be used before it has been left (law F4).
    pub(crate) unsafe fn take_stack(&self) -> Stack {
        // SAFETY: the fiber owned the stack and hands it on here, once.
        unsafe { Stack::from_parts(self.stack_bottom(), self.stack_class()) }
    }

    pub(crate) fn stack_bottom(&self) -> usize {
        self.stack_bottom.load(Relaxed)
    }

    /// Notes how deep the fiber stands. By itself, before it suspends.
    #[inline]
    pub(crate) fn note_depth(&self, sp: usize) {
        // A stack is at most 1 GiB.
        let above = sp.wrapping_sub(self.stack_bottom()) as u32;
        if above < self.deepest.load(Relaxed) {
            self.deepest.store(above, Relaxed);
        }
    }

    /// Bytes of stack in use at the deepest suspension noted.
    pub(crate) fn noted_depth(&self) -> usize {
        match self.deepest.load(Relaxed) {
            u32::MAX => 0,
            deepest => stack::top_of(self.stack_bottom(), self.class()).saturating_sub(self.stack_bottom() + deepest as usize),
        }
    }

    /// Notes that it becomes ready. By whoever makes it so.
    #[inline]
    pub(crate) fn note_ready(&self) {
        if !COUNTS {
            return;
        }
        let left = self.sample.get().wrapping_sub(1);
        self.sample.set(left);
        if left == 0 {
            self.note_ready_time();
        }
    }

    #[cold]
    #[inline(never)]
    fn note_ready_time(&self) {
        self.ready_ns.set(clock::now_ns());
    }

    /// Whether the wake that made it ready is timed. By itself, as it goes on, or its worker, as it starts it.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        COUNTS && self.sample.get() == 0
    }

    /// Nanoseconds since it became ready, by a wake that is timed. The next one is not.
    pub(crate) fn take_ready_time(&self) -> u64 {
        self.sample.set(SAMPLE_EVERY);
        clock::now_ns().saturating_sub(self.ready_ns.get())
    }

    /// Notes what it is about to wait for. By itself.
    #[inline]
    pub(crate) fn note_why(&self, why: Why) {
        self.why.store(why.pack(), Relaxed);
    }

    /// What it waits for, if it waits now.
    pub(crate) fn waits_for(&self) -> Option<Why> {
        self.state.waiting().map(|_| Why::unpack(self.why.load(Relaxed)))
    }

    /// The innermost of its frames. By itself, or under its lock.
    #[inline]
    fn frames(&self) -> *const Frame {
        self.frames.load(Relaxed)
    }

    fn set_frames(&self, frame: *const Frame) {
        self.frames.store(frame.cast_mut(), Relaxed);
    }

    /// Whether a suspension has to heed a region or hooks, or that it may move. By the running fiber itself.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.marks.get() & (NO_SUSPEND | HOOKED | MOVES) != 0
    }

    /// Whether a suspension has to heed a region or hooks. By the running fiber itself.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.marks.get() & (NO_SUSPEND | HOOKED) != 0
    }

    pub(crate) fn must_not_suspend(&self) -> bool {
        self.marks.get() & NO_SUSPEND != 0
    }

    pub(crate) fn set_must_not_suspend(&self, now: bool) {
        self.marks.set(if now { self.marks.get() | NO_SUSPEND } else { self.marks.get() & !NO_SUSPEND });
    }

    /// Says whether it polls a future; gives what was said before.
    pub(crate) fn set_polling(&self, now: bool) -> bool {
        let marks = self.marks.get();
        self.marks.set(if now { marks | POLLING } else { marks & !POLLING });
        marks & POLLING != 0
    }

    pub(crate) fn set_hooked(&self) {
        self.marks.set(self.marks.get() | HOOKED);
    }

    /// Drops its fiber-locals and hooks. By itself, when its closure has returned. Gives the first panic that was met.
    #[inline]
    pub(crate) fn end_locals(&self) -> Option<Payload> {
        let panic = self.locals.end();
        self.marks.set(self.marks.get() & !(NO_SUSPEND | HOOKED));
        panic
    }

    /// Who counts it, if it belongs to a scope. Before its first run, or at its end: its root is the innermost frame then.
    pub(crate) fn tally(&self) -> Option<&Tally> {
        // SAFETY: a scope outlives its fibers (`rt::scope`), so a root and a tally that were set are alive until the fiber left them.
        unsafe { Frame::unmarked(self.frames()).as_ref()?.tally().as_ref() }
    }

    /// Whether it belongs to a scope, which tells of a panic that nobody took. Also when that is gone.
    pub(crate) fn is_scoped(&self) -> bool {
        !self.frames().is_null()
    }

    /// Sets who is told at the end.
    ///
    /// # Safety
    /// The caller owns the field at this moment (`join.rs`, I1), and no watcher is in it.
    pub(crate) unsafe fn put_watcher(&self, watcher: Watcher) {
        self.watcher.set(match watcher {
            Watcher::Waiter(control) => (control.cast(), None),
            Watcher::Task(waker) => {
                let waker = ManuallyDrop::new(waker);
                (waker.data(), Some(waker.vtable()))
            }
        });
    }

    /// Takes out who is told at the end.
    ///
    /// # Safety
    /// The caller owns the field at this moment (`join.rs`, I1), and a watcher is in it.
    pub(crate) unsafe fn take_watcher(&self) -> Watcher {
        match self.watcher.get() {
            (control, None) => Watcher::Waiter(control.cast()),
            // SAFETY: `put_watcher` took these parts from a waker, and each watcher is taken once.
            (data, Some(vtable)) => Watcher::Task(unsafe { Waker::new(data, vtable) }),
        }
    }

    /// A place for the deadline of a wait. It is not in the waiting frame: with many waits each would be a miss of the cache and of the TLB, and of the page table's line, at every move of the wheel.
    /// 100,000 sleeps of up to a second, on warm stacks: 580 ms of user time there, 360 here.
    ///
    /// # Safety
    /// By the running fiber itself, in user code, and until that wait is over: its closure is out of the slot, and its outcome not yet in.
    pub(crate) unsafe fn new_deadline(&self) -> &Entry {
        const { assert!(size_of::<Entry>() <= DEADLINE_BYTES && align_of::<Entry>() <= align_of::<Slot>()) };
        let place = self.slot().cast::<Entry>();
        // SAFETY: the caller says that the slot is free; it is large enough.
        unsafe {
            place.write(Entry::new(ptr::from_ref(self).cast()));
            &*place
        }
    }

    /// Where a wait has room for a `T` that others look for, beside its deadline.
    ///
    /// # Safety
    /// As [`new_deadline`](Self::new_deadline).
    pub(crate) unsafe fn beside_deadline<T>(&self) -> *mut T {
        const { assert!(size_of::<T>() <= INLINE_BYTES - DEADLINE_BYTES && align_of::<T>() <= align_of::<u64>()) };
        // SAFETY: within the slot, at a multiple of eight.
        unsafe { self.slot().add(DEADLINE_BYTES).cast() }
    }

    fn slot(&self) -> *mut u8 {
        self.slot.0.get().cast()
    }
}

/// `#7 'reader', spawned at src/main.rs:10:5`: how messages name a fiber.
impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id())?;
        if let Some(name) = self.name() {
            write!(f, " '{name}'")?;
        }
        write!(f, ", spawned at {}", self.site())
    }
}
