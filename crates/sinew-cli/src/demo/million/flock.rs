//! The fibers of the demo: flocks that wait for orders, and a shepherd on each worker.
//!
//! A shepherd is a fiber too, and a fiber stays on the worker that first ran it. So the shepherd spawns its flock there, in batches small enough for its
//! worker's own queue, and later wakes it from there: most wakes stay on one worker. One waker for all was rejected: half of its wakes or more would go
//! to other workers. What others stole is woken just the same.
//!
//! # Picture
//! ```text
//!  shepherd:  spawn a batch -> park .. -> (all parked) -> order, unpark all -> park .. -> (all parked again) -> ... -> end, join
//!                  |            ^                               |               ^
//!  a fiber:        arrive, park |  (the last to arrive) --------+-> obey, arrive, park
//! ```
//!
//! # Invariants
//! I1. A fiber that waits has touched one page of its stack: what it does before its first park needs few and small frames. What comes later may need
//!     more, and stands in functions of its own.
//! I2. `done` counts a fiber once per order: when it arrives, or, if it ends, when it is dropped, run or not.
//!
//! # Memory order
//! `goal` and `done` are the two sides of one meeting: the shepherd writes `goal` and reads `done`, a fiber counts itself in `done` and reads
//! `goal`. One of them must see the other, so all four are SeqCst; with less both may read the old value, and the shepherd sleeps for ever.
//! `order` is written before the unpark that lets a fiber read it, and the unpark carries it.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::time::Instant;

use sinew::{Builder, Fiber, JoinHandle};

/// Fibers spawned before the shepherd lets them run: a quarter of what a worker keeps in its own queue, so that none goes to the shared one.
const SPAWN_BATCH: usize = 64;

/// Fibers woken before the shepherd lets them run. Measured with a million on two cores: from 64 to all at once the rate is the same, 8 to 9 million a
/// second; but all at once makes the time from ready to running that of the queue: half of them wait 60 ms, with bursts of 64 it is 7 us.
pub(super) const WAKE_BURST: usize = 64;

/// The order to end; all others are a number of yields.
const END: u32 = u32::MAX;

/// What a stamp holds before its fiber was woken. Not zero, so that the array is in memory before anything is measured.
const NEVER: u64 = u64::MAX;

/// Fibers that one shepherd drives.
#[repr(align(128))]
pub(super) struct Flock {
    /// Fibers that have carried the current order out (I2).
    done: AtomicUsize,
    /// The value of `done` for which the shepherd waits.
    goal: AtomicUsize,
    order: AtomicU32,
    /// Fibers that are no more.
    ended: AtomicUsize,
    shepherd: OnceLock<Fiber>,
    /// Per fiber: when it was made ready, and once it ran, after how many ns it did.
    stamps: Box<[AtomicU64]>,
    clock: Instant,
    few: usize,
}

/// Fibers that failed, as far as somebody joined them.
#[derive(Default)]
pub(super) struct Losses {
    pub(super) fibers: usize,
    /// What the first of them said.
    pub(super) first: Option<String>,
}

impl Losses {
    pub(super) fn add(&mut self, more: Losses) {
        self.fibers += more.fibers;
        self.first = self.first.take().or(more.first);
    }
}

impl Flock {
    /// A flock of `fibers`, of which `few` at most are taken where few are wanted.
    pub(super) fn new(fibers: usize, few: usize) -> Self {
        Self {
            done: AtomicUsize::new(0),
            goal: AtomicUsize::new(0),
            order: AtomicU32::new(0),
            ended: AtomicUsize::new(0),
            shepherd: OnceLock::new(),
            stamps: (0..fibers).map(|_| AtomicU64::new(NEVER)).collect(),
            clock: Instant::now(),
            few: few.min(fibers),
        }
    }

    /// Fibers that it is to have.
    pub(super) fn fibers(&self) -> usize {
        self.stamps.len()
    }

    /// How many to take where few are wanted.
    pub(super) fn few(&self) -> usize {
        self.few
    }

    /// Fibers that have carried the current order out.
    pub(super) fn done(&self) -> usize {
        self.done.load(Relaxed)
    }

    /// Fibers that have ended.
    pub(super) fn ended(&self) -> usize {
        self.ended.load(Relaxed)
    }

    /// How long each fiber was ready before it ran, in ns. After [`Flock::wake`].
    pub(super) fn latencies_ns(&self) -> impl Iterator<Item = u64> {
        self.stamps.iter().map(|stamp| stamp.load(Relaxed))
    }

    /// Makes all fibers, and returns when all are parked. By the shepherd, as all that follows.
    pub(super) fn spawn(&'static self, handles: &mut Vec<JoinHandle<()>>) -> io::Result<Losses> {
        self.shepherd.get_or_init(sinew::current);
        while handles.len() < self.fibers() {
            let spawned = self.spawn_batch(handles);
            self.wait_for(handles.len());
            spawned?;
        }
        Ok(Losses::default())
    }

    fn spawn_batch(&'static self, handles: &mut Vec<JoinHandle<()>>) -> io::Result<()> {
        for index in handles.len()..self.fibers().min(handles.len() + SPAWN_BATCH) {
            let member = Member { flock: self, index };
            let handle = Builder::new().spawn(move || member.live());
            handles.push(handle.map_err(|error| io::Error::new(error.kind(), format!("fiber {index} could not be spawned: {error}")))?);
        }
        Ok(())
    }

    /// Wakes all, and returns when all have run and are parked again.
    pub(super) fn wake(&self, handles: &[JoinHandle<()>]) -> io::Result<Losses> {
        self.give(0);
        for (handles, stamps) in handles.chunks(WAKE_BURST).zip(self.stamps.chunks(WAKE_BURST)) {
            for (handle, stamp) in handles.iter().zip(stamps) {
                stamp.store(self.now_ns(), Relaxed);
                handle.fiber().unpark();
            }
            sinew::yield_now();
        }
        self.wait_for(handles.len());
        Ok(Losses::default())
    }

    /// Lets `handles` yield in turn, `yields` times each, and returns when they are parked again. Each is resumed once more than that: by the wake.
    pub(super) fn switch(&self, handles: &[JoinHandle<()>], yields: u32) -> io::Result<Losses> {
        self.give(yields);
        handles.iter().for_each(|handle| handle.fiber().unpark());
        self.wait_for(handles.len());
        Ok(Losses::default())
    }

    /// Ends and joins all, newest first.
    pub(super) fn end(&self, mut handles: Vec<JoinHandle<()>>) -> io::Result<Losses> {
        self.give(END);
        let mut losses = Losses::default();
        while !handles.is_empty() {
            let burst = handles.len().saturating_sub(WAKE_BURST)..;
            handles[burst.clone()].iter().for_each(|handle| handle.fiber().unpark());
            // The first join suspends until the whole burst has run; the others find their fibers done.
            for outcome in handles.drain(burst).map(JoinHandle::join) {
                if let Err(payload) = outcome {
                    losses.add(Losses { fibers: 1, first: Some(super::payload_text(&*payload)) });
                }
            }
        }
        Ok(losses)
    }

    fn give(&self, order: u32) {
        self.done.store(0, Relaxed);
        self.order.store(order, Relaxed);
    }

    /// Waits until `goal` fibers have carried the order out. By the shepherd.
    fn wait_for(&self, goal: usize) {
        // SeqCst: see the head of the file.
        self.goal.store(goal, SeqCst);
        while self.done.load(SeqCst) < goal {
            sinew::park();
        }
    }

    /// Counts a fiber, and wakes the shepherd if it was the last.
    fn arrive(&self) {
        // SeqCst: see the head of the file.
        if self.done.fetch_add(1, SeqCst) + 1 == self.goal.load(SeqCst) {
            self.shepherd.get().expect("a shepherd enters before it spawns").unpark();
        }
    }

    fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }
}

/// What one fiber is.
struct Member {
    flock: &'static Flock,
    index: usize,
}

impl Member {
    /// The life of a fiber: it waits, says when it was woken, and obeys until it is told to end.
    fn live(self) {
        self.flock.arrive();
        sinew::park();
        self.note_wake();
        while self.obey() {
            self.flock.arrive();
            sinew::park();
        }
    }

    /// Turns the stamp of its making ready into the time since. Not inlined: I1.
    #[inline(never)]
    fn note_wake(&self) {
        let now = self.flock.now_ns();
        let stamp = &self.flock.stamps[self.index];
        stamp.store(now.saturating_sub(stamp.load(Relaxed)), Relaxed);
    }

    /// Carries the order out; `false` if that was to end. Not inlined: I1.
    #[inline(never)]
    fn obey(&self) -> bool {
        match self.flock.order.load(Relaxed) {
            END => false,
            yields => {
                (0..yields).for_each(|_| sinew::yield_now());
                true
            }
        }
    }
}

/// Also where a fiber that never ran, or panicked, is counted, so that nobody waits for it.
impl Drop for Member {
    fn drop(&mut self) {
        self.flock.ended.fetch_add(1, Relaxed);
        self.flock.arrive();
    }
}
