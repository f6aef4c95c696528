//! What the workers of a group share.
//!
//! # Where a ready fiber is
//! - unstarted, spawned by a fiber: among its worker's children (a deque that the others steal from);
//! - unstarted, spawned from elsewhere, or when the children are too many: in the group's queue;
//! - started: in its own worker's list, or in its inbox if another thread woke it.
//!
//! # Invariants
//! I1. (law S1) A non-empty queue has a worker awake or a wake under way: whoever pushes announces, whoever lies down looks again, and
//!     whoever gets up for work of its own passes a claimed wake on.
//! I2. `closed` is set under the queue's lock by the last worker to leave, when the queue is empty; after it every push fails. So a
//!     queued fiber always has a worker to run or refuse it.

use std::any::Any;
use std::io;
use std::sync::{Arc, OnceLock};

use crate::base::atomic::{Acquire, AtomicU32, AtomicU64, AtomicUsize, Relaxed, Release, fence};
use crate::base::deque::{Deque, Stolen};
use crate::base::histogram::Histogram;
use crate::base::inbox::{Inbox, Pushed};
use crate::base::list::List;
use crate::base::mask::{Mask, Set};
use crate::event::source::Io;
use crate::fiber::stack::{self, CLASSES, Class, NoStack, Stack};
use crate::fiber::state::Cause;
use crate::fiber::task::NeverRan;
use crate::fiber::{self, Control};
use crate::os::bell::Bell;
use crate::os::futex;
use crate::os::lock::Lock;
use crate::sched::idle::{Claimed, Idle};
use crate::sched::pool::Pool;
use crate::sched::slot::Slot;
use crate::sched::worker::make_ready;

/// Stacks of the reserve beside one per worker: so many fibers that never got one may wait for each other in their closures' destructors.
const RESERVE_MORE: usize = 8;

/// Unstarted children a worker keeps; if they become more, the group's queue takes the oldest half. As tokio's and Go's local queues.
pub(crate) const CHILDREN_MAX: usize = 256;

/// How a worker rests.
#[derive(Clone, Copy)]
pub(crate) struct Rest {
    /// No deadline ends it, and nothing that its fibers wait for outside.
    pub(crate) for_good: bool,
    /// It sleeps in its source, where the bell wakes it, and not on its slot's word.
    pub(crate) at_source: bool,
}

const FOR_GOOD: u32 = 1;
const AT_SOURCE: u32 = 2;

/// What other threads touch of one worker.
#[repr(align(128))]
pub(crate) struct Seat {
    /// Settled fibers that other threads woke.
    inbox: Inbox<Control>,
    pub(crate) slot: Slot,
    /// How it lies down, by the bits below.
    rest: AtomicU32,
    /// What wakes it when it sleeps in its source. It stays, as the seat does: a late ring must not go to a stranger.
    bell: OnceLock<Bell>,
    /// Unstarted fibers that this worker's fibers spawned.
    pub(crate) children: Deque<Control, CHILDREN_MAX>,
    pub(crate) counters: Counters,
}

/// What a worker counts. Written by it alone, so a plain load and store will do; read by anybody.
pub(crate) struct Counters {
    /// Started fibers that have not ended.
    pub(crate) settled: AtomicUsize,
    /// Ready fibers, at the last look.
    pub(crate) ready: AtomicUsize,
    pub(crate) spawned: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) switches: AtomicU64,
    pub(crate) sleeps: AtomicU64,
    pub(crate) steals: AtomicU64,
    /// Waits begun while their thread was unwinding.
    pub(crate) unwinding_waits: AtomicU64,
    /// From ready to running, one wake in 64 of each fiber.
    pub(crate) latency: Histogram,
}

impl Drop for Group {
    /// Its workers have left, or were never there: nothing is in the seats.
    fn drop(&mut self) {
        for seat in &self.seats {
            debug_assert!(!seat.has_mail() && seat.children.len() == 0, "a seat was left with fibers in it");
            seat.slot.get_up();
            seat.counters.reset();
        }
        VACANT.lock().extend(self.seats.iter());
    }
}

/// Adds to a counter that the caller alone writes.
#[inline]
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}

impl Counters {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            settled: AtomicUsize::new(0),
            ready: AtomicUsize::new(0),
            spawned: zero(),
            ended: zero(),
            switches: zero(),
            sleeps: zero(),
            steals: zero(),
            unwinding_waits: zero(),
            latency: Histogram::new(),
        }
    }

    fn reset(&self) {
        let Self { settled, ready, spawned, ended, switches, sleeps, steals, unwinding_waits, latency } = self;
        [settled, ready].into_iter().for_each(|counter| counter.store(0, Relaxed));
        [spawned, ended, switches, sleeps, steals, unwinding_waits].into_iter().for_each(|counter| counter.store(0, Relaxed));
        latency.reset();
    }
}

/// Seats without a worker. They are never freed: who delivers to a seat touches it once more after the fiber is in its inbox, and by then the fiber may have
/// ended and its runtime be gone. A wake too many, of the seat's next worker, is harmless.
static VACANT: Lock<Vec<&'static Seat>> = Lock::new(Vec::new());

impl Seat {
    fn take() -> &'static Seat {
        let vacant = VACANT.lock().pop();
        vacant.unwrap_or_else(|| Box::leak(Box::new(Seat::new())))
    }

    fn new() -> Self {
        Self {
            inbox: Inbox::new(),
            slot: Slot::new(),
            rest: AtomicU32::new(0),
            bell: OnceLock::new(),
            children: Deque::new(),
            counters: Counters::new(),
        }
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

    fn rests_for_good(&self) -> bool {
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
        if unsafe { self.inbox.push(control.cast_mut()) } == Pushed::First {
            self.wake();
        }
    }

    /// Makes the worker look at its inbox and the group's queues, asleep or not.
    pub(crate) fn wake(&self) {
        if !self.slot.notify() {
            return;
        }
        // If it has got up by itself since, and lies elsewhere now, it needs no wake, and one in vain is harmless.
        match self.bell.get() {
            Some(bell) if self.rest_is(AT_SOURCE) => bell.ring(),
            _ => futex::wake_one(self.slot.word()),
        }
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

struct Queue {
    list: List<Control>,
    live_workers: usize,
    closed: bool,
}

// SAFETY: the fibers in the list are unstarted, so they are `Send` closures; the lock lets one thread at a time in.
unsafe impl Send for Queue {}

struct Starved {
    /// By size of the stack they want: one that must wait longer does not stand in the way of another size.
    lists: [List<Control>; CLASSES],
    why: Option<NeverRan>,
}

// SAFETY: as `Queue`.
unsafe impl Send for Starved {}

/// Stacks that are kept back: on them fibers are ended that never got one, since their closures' destructors may suspend like any user code.
struct Reserve {
    free: Lock<Vec<Stack>>,
    bottoms: Vec<usize>,
}

impl Reserve {
    fn new(stacks: usize) -> io::Result<Self> {
        let mut cache = stack::Cache::new();
        let free: Vec<Stack> = (0..stacks).map(|_| cache.take(stack::RESERVE).map_err(|why| why.error)).collect::<io::Result<_>>()?;
        let bottoms = free.iter().map(Stack::bottom).collect();
        Ok(Self { free: Lock::new(free), bottoms })
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let mut cache = stack::Cache::new();
        self.free.lock().drain(..).for_each(|stack| cache.give(stack));
    }
}

/// Workers that share a queue.
pub(crate) struct Group {
    pub(crate) seats: Box<[&'static Seat]>,
    pub(crate) idle: Idle,
    /// The stack of a fiber that asks for none.
    pub(crate) default_class: Class,
    /// Whether idle workers poll before they sleep.
    pub(crate) spins: bool,
    pub(crate) spinner_wakes: AtomicU64,
    pub(crate) sleeper_wakes: AtomicU64,
    /// Fibers spawned by threads that are no workers, and in batches.
    pub(crate) spawned_outside: AtomicU64,
    /// Children that found their worker's deque full.
    pub(crate) overflowed: AtomicU64,
    /// How its fibers do I/O.
    pub(crate) io: Io,
    /// Threads for what blocks.
    pub(crate) pool: Arc<Pool>,
    /// Fibers that wait for something known to be under way outside: a job of the pool. Written by the fibers themselves.
    pub(crate) outside: AtomicUsize,
    /// What the timers of layers above keep for this group.
    pub(crate) timers: OnceLock<Box<dyn Any + Send + Sync>>,
    queue: Lock<Queue>,
    queued: AtomicUsize,
    starved: Lock<Starved>,
    starved_count: AtomicUsize,
    /// Workers that have handed out what stacks they can spare since the last fiber starved.
    spared: Mask,
    /// For fibers that are ended without a stack of their own.
    reserve: Reserve,
    stopping: AtomicUsize,
    exit: Lock<Exit>,
}

/// Who waits for the workers' threads.
struct Exit {
    threads: usize,
    waiter: *const Control,
}

// SAFETY: the waiter is claimed under the lock only, while it waits.
unsafe impl Send for Exit {}

/// What one that waits for the workers' threads does next.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum AwaitExit {
    /// Wait, then call [`Group::forget_waiter`].
    Wait,
    /// All have left.
    Done,
}

impl Group {
    /// An error if there is no memory for the reserve stacks.
    pub(crate) fn new(workers: usize, default_class: Class, spins: bool) -> io::Result<Self> {
        let reserve = Reserve::new(workers + RESERVE_MORE)?;
        Ok(Self {
            seats: (0..workers).map(|_| Seat::take()).collect(),
            idle: Idle::new(),
            default_class,
            spins,
            spinner_wakes: AtomicU64::new(0),
            sleeper_wakes: AtomicU64::new(0),
            spawned_outside: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
            io: Io::Auto,
            pool: Arc::new(Pool::new(1, 0)),
            outside: AtomicUsize::new(0),
            timers: OnceLock::new(),
            queue: Lock::new(Queue { list: List::new(), live_workers: workers, closed: false }),
            queued: AtomicUsize::new(0),
            starved: Lock::new(Starved { lists: [const { List::new() }; CLASSES], why: None }),
            starved_count: AtomicUsize::new(0),
            spared: Mask::new(),
            reserve,
            stopping: AtomicUsize::new(0),
            exit: Lock::new(Exit { threads: 0, waiter: std::ptr::null() }),
        })
    }

    /// A thread more that will [leave](Self::thread_left).
    pub(crate) fn thread_comes(&self) {
        self.exit.lock().threads += 1;
    }

    /// A worker's thread has left all behind; whom to make ready for it.
    pub(crate) fn thread_left(&self) -> Option<fiber::Claimed> {
        let mut exit = self.exit.lock();
        exit.threads -= 1;
        let waiter = if exit.threads == 0 { std::mem::replace(&mut exit.waiter, std::ptr::null()) } else { std::ptr::null() };
        // SAFETY: a waiter forgets itself under this lock before it goes on, so it still waits, or its deadline has just ended its wait.
        unsafe { waiter.as_ref() }?.claim(Cause::Woken)
    }

    /// Makes `me`, which has begun a wait, the one to be woken when all threads have left. One at a time.
    pub(crate) fn await_exit(&self, me: &Control) -> AwaitExit {
        let mut exit = self.exit.lock();
        if exit.threads == 0 {
            return AwaitExit::Done;
        }
        exit.waiter = me;
        AwaitExit::Wait
    }

    /// Ends what `await_exit` began; whether all threads have left.
    pub(crate) fn forget_waiter(&self) -> bool {
        let mut exit = self.exit.lock();
        exit.waiter = std::ptr::null();
        exit.threads == 0
    }

    /// Queues an unstarted fiber and wakes a worker for it; `false` if no worker is left (I2).
    ///
    /// # Safety
    /// The fiber is unstarted and the caller's alone.
    #[must_use]
    pub(crate) unsafe fn push(&self, control: *const Control) -> bool {
        let one = List::new();
        // SAFETY: the caller's promise.
        unsafe { one.push(control.cast_mut()) };
        self.push_all(&one)
    }

    /// Queues unstarted fibers, in order, by one claim of the queue, and wakes workers for them by one call; `false`, with `fibers` as it was,
    /// if no worker is left (I2).
    #[must_use]
    pub(crate) fn push_all(&self, fibers: &List<Control>) -> bool {
        let count = fibers.len();
        {
            let queue = self.queue.lock();
            if queue.closed {
                return false;
            }
            queue.list.append(fibers);
            self.queued.fetch_add(count, Relaxed);
        }
        self.announce(count);
        true
    }

    /// Wakes as many idle workers as there are items just put where all may take them (I1): spinners first, then the lightest sleepers.
    #[inline]
    pub(crate) fn announce(&self, items: usize) {
        let claimed = self.idle.claim(items, |worker| self.seats[worker].settled());
        self.pay(&claimed);
    }

    /// Counts who was claimed and wakes the sleepers among them; whether there was anybody.
    #[inline]
    fn pay(&self, claimed: &Claimed) -> bool {
        if claimed.spinners != 0 {
            self.spinner_wakes.fetch_add(claimed.spinners as u64, Relaxed);
        }
        if !claimed.sleepers.is_empty() {
            self.wake_sleepers(claimed.sleepers);
        }
        claimed.spinners != 0 || !claimed.sleepers.is_empty()
    }

    /// Wakes a sleeper in place of a spinner that has found work, if one was asked for. By a spinner.
    pub(crate) fn replace_spinner(&self) {
        if let Some(worker) = self.idle.take_pending(|worker| self.seats[worker].settled()) {
            self.wake_sleepers(Set::of(worker));
        }
    }

    #[cold]
    fn wake_sleepers(&self, sleepers: Set) {
        self.sleeper_wakes.fetch_add(sleepers.len() as u64, Relaxed);
        sleepers.iter().for_each(|worker| self.seats[worker].wake());
    }

    /// Sees to it that a lighter worker than `me`, which is idle, comes for the group's work; `false` if there is none.
    #[must_use]
    pub(crate) fn call_lighter(&self, me: usize) -> bool {
        let mine = self.seats[me].settled();
        let lighter = |worker: usize| self.seats[worker].settled() < mine;
        if !self.idle.spinning().iter().any(lighter) && !self.idle.sleeping().iter().any(lighter) {
            return false;
        }
        let claimed = self.idle.claim(1, |worker| self.seats[worker].settled());
        self.pay(&claimed)
    }

    /// Moves the oldest of the group's queue to `taken`, and a worker's share of the rest, `most` in all.
    pub(crate) fn take(&self, most: usize, taken: &List<Control>) {
        let queue = self.queue.lock();
        let share = (queue.list.len() / self.seats.len()).clamp(1, most).min(queue.list.len());
        for _ in 0..share {
            // SAFETY: F1 - popped, so it is ours.
            unsafe { taken.push(queue.list.pop()) };
        }
        self.queued.fetch_sub(share, Relaxed);
    }

    /// Steals the oldest child of another worker, beginning after `thief`; null if there is none.
    pub(crate) fn steal(&self, thief: usize) -> *const Control {
        let workers = self.seats.len();
        for victim in (thief + 1..thief + workers).map(|i| &self.seats[i % workers]) {
            loop {
                match victim.children.steal() {
                    Stolen::Item(control) => return control,
                    Stolen::Empty => break,
                    Stolen::Retry => std::hint::spin_loop(),
                }
            }
        }
        std::ptr::null()
    }

    /// Whether there is work that any worker may take. A relaxed look: the fences of `idle` make it enough.
    pub(crate) fn has_work(&self) -> bool {
        self.queued.load(Relaxed) != 0 || self.seats.iter().any(|seat| seat.children.len() != 0)
    }

    /// Fibers in the group's queue.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Relaxed)
    }

    /// Fibers that have not begun to run, as a look sees them.
    pub(crate) fn unstarted(&self) -> usize {
        self.queued() + self.starved_count.load(Relaxed) + self.seats.iter().map(|seat| seat.children.len()).sum::<usize>()
    }

    /// Puts an unstarted fiber aside for which there is no stack, and has every worker look whether it can spare one.
    ///
    /// # Safety
    /// The fiber is unstarted and the caller's alone.
    #[cold]
    pub(crate) unsafe fn starve(&self, control: *const Control, why: &NoStack) {
        {
            let mut starved = self.starved.lock();
            // SAFETY: the caller's promise.
            unsafe { starved.lists[(*control).class().index()].push(control.cast_mut()) };
            starved.why = Some(NeverRan::no_stack(why));
            self.spared.clear();
            self.starved_count.fetch_add(1, Relaxed);
        }
        self.seats.iter().for_each(|seat| seat.wake());
    }

    /// Puts a fiber that was taken out for a stack that is not there back where it was.
    ///
    /// # Safety
    /// The fiber is unstarted and the caller's alone.
    #[cold]
    pub(crate) unsafe fn starve_again(&self, control: *const Control) {
        let starved = self.starved.lock();
        // SAFETY: the caller's promise.
        unsafe { starved.lists[(*control).class().index()].push_front(control.cast_mut()) };
    }

    #[inline]
    pub(crate) fn has_starved(&self) -> bool {
        self.starved_count.load(Relaxed) != 0
    }

    /// Whether `worker` has yet to see what it can spare for starved fibers.
    #[inline]
    pub(crate) fn owes_stacks(&self, worker: usize) -> bool {
        self.has_starved() && !self.spared.get().contains(worker)
    }

    /// Notes that `worker` has handed out what it can spare.
    pub(crate) fn note_spared(&self, worker: usize) {
        self.spared.insert(worker);
    }

    /// Whether fibers starve although every worker has handed out what it can spare.
    pub(crate) fn starves_for_good(&self) -> bool {
        self.has_starved() && self.spared.get().len() == self.seats.len()
    }

    /// Takes the oldest fiber that waits for a stack of the size numbered `class`; null if there is none. It counts as starved until [`fed`](Self::fed), so that nobody
    /// believes meanwhile that all is well.
    #[cold]
    pub(crate) fn pop_starved(&self, class: usize) -> *const Control {
        self.starved.lock().lists[class].pop()
    }

    /// A fiber that was taken out has got a stack.
    pub(crate) fn fed(&self) {
        self.starved_count.fetch_sub(1, Relaxed);
    }

    /// A stack for a fiber that is to be ended without one of its own; `None` while all are used so.
    #[cold]
    pub(crate) fn take_reserve(&self) -> Option<Stack> {
        self.reserve.free.lock().pop()
    }

    /// Takes a stack back if it is one of the reserve.
    ///
    /// # Errors
    /// Gives it back to the caller if it is not.
    #[cold]
    pub(crate) fn give_reserve(&self, stack: Stack) -> Result<(), Stack> {
        if !self.reserve.bottoms.contains(&stack.bottom()) {
            return Err(stack);
        }
        self.reserve.free.lock().push(stack);
        Ok(())
    }

    /// Why fibers starve.
    pub(crate) fn starved_why(&self) -> NeverRan {
        self.starved.lock().why.clone().expect("a fiber is condemned for want of a stack only after one was refused")
    }

    /// Whether all workers have lain down with no deadline, none is being woken, and no job of the pool will wake one, so that nothing inside can make anything ready. By a
    /// worker that has lain down itself: of the last two at least one sees the other, and what its fibers counted, by the fences of their slots.
    pub(crate) fn all_rest_for_good(&self) -> bool {
        self.seats.iter().all(|seat| !seat.has_mail() && seat.rests_for_good()) && self.outside.load(Relaxed) == 0
    }

    /// Started fibers that have not ended.
    pub(crate) fn settled(&self) -> usize {
        self.seats.iter().map(|seat| seat.settled()).sum()
    }

    /// Whether new fibers are refused and unstarted ones dropped.
    #[inline]
    pub(crate) fn is_stopping(&self) -> bool {
        // Acquire: meets the Release in `stop`.
        self.stopping.load(Acquire) != 0
    }

    /// Refuses new fibers and lets workers leave when theirs have ended.
    pub(crate) fn stop(&self) {
        // Release: meets the Acquire in `is_stopping`.
        self.stopping.store(1, Release);
        self.seats.iter().for_each(|seat| seat.wake());
        self.pool.close().into_iter().for_each(make_ready);
    }

    /// A worker with nothing left wants to end; `false` if the queue holds work after all (I2).
    #[must_use]
    pub(crate) fn retire(&self) -> bool {
        let mut queue = self.queue.lock();
        if !queue.list.is_empty() || self.has_starved() {
            return false;
        }
        queue.live_workers -= 1;
        queue.closed = queue.live_workers == 0;
        true
    }
}
