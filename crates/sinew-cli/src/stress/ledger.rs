//! Who was spawned, who runs, who waits for what, who has ended: the sequence checks that every fiber of the storms passes through.
//!
//! # Invariants, each checked
//! I1. A fiber runs on one worker at a time: `running` is swapped around each slice.
//! I2. It runs on one thread only, unless fibers may move in this round: each slice compares the thread with that of the first (law F5).
//! I3. It ends once, and every spawned fiber ends: by its return, by a panic, or, when its runtime is dropped, unrun.
//! I4. Parks do not return more often than wakes were sent: none wakes for nothing. (That none is lost is seen by the watchdog.)

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sinew::{Fiber, JoinHandle};

use super::failure::check;

/// Sizes of stacks that the storms ask for: the default, the smallest that has room for a debug build's failure text, and a large one.
pub(super) const STACK_SIZES: [Option<usize>; 3] = [None, Some(32 << 10), Some(1 << 20)];

/// Shards of the register, so that fibers on many workers seldom meet at a lock. Arbitrary.
const SHARDS: usize = 64;

/// The one ledger of this process.
pub(super) static LEDGER: Ledger = Ledger::new();

/// What all fibers have done so far. Plain threads that take part are registered, and counted nowhere.
pub(super) struct Ledger {
    spawned: AtomicU64,
    ended: AtomicU64,
    panicked: AtomicU64,
    unrun: AtomicU64,
    wakes: AtomicU64,
    /// Slices begun: if this stands still, so does everything.
    slices: AtomicU64,
    /// A runtime is being dropped: fibers may be dropped unrun.
    pub(super) closing: AtomicBool,
    /// Fibers of this round may move from thread to thread.
    pub(super) moving: AtomicBool,
    alive: [AtomicU64; STACK_SIZES.len()],
    alive_max: [AtomicU64; STACK_SIZES.len()],
    serials: AtomicU64,
    register: [Mutex<BTreeMap<u64, Arc<Record>>>; SHARDS],
}

/// Sums of the ledger.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    pub(super) spawned: u64,
    pub(super) ended: u64,
    pub(super) panicked: u64,
    pub(super) unrun: u64,
    pub(super) wakes: u64,
}

impl Ledger {
    const fn new() -> Self {
        Self {
            spawned: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
            unrun: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
            slices: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            moving: AtomicBool::new(false),
            alive: [const { AtomicU64::new(0) }; STACK_SIZES.len()],
            alive_max: [const { AtomicU64::new(0) }; STACK_SIZES.len()],
            serials: AtomicU64::new(1),
            register: [const { Mutex::new(BTreeMap::new()) }; SHARDS],
        }
    }

    /// Slices that all fibers and threads have begun.
    pub(super) fn slices(&self) -> u64 {
        self.slices.load(Relaxed)
    }

    pub(super) fn sums(&self) -> Sums {
        // Acquire: meets the Release of those who end; whoever ended was spawned before.
        let (ended, panicked, unrun) = (self.ended.load(Acquire), self.panicked.load(Acquire), self.unrun.load(Acquire));
        Sums { ended, panicked, unrun, spawned: self.spawned.load(Relaxed), wakes: self.wakes.load(Relaxed) }
    }

    /// The largest number of fibers that were alive at once, of each stack size, added up.
    pub(super) fn alive_max(&self) -> u64 {
        self.alive_max.iter().map(|n| n.load(Relaxed)).sum()
    }

    /// Everybody who has not ended; those who never ran come last.
    pub(super) fn present(&self) -> Vec<Arc<Record>> {
        let mut all: Vec<_> = self.register.iter().flat_map(|shard| lock(shard).values().cloned().collect::<Vec<_>>()).collect();
        all.sort_by_key(|record| (record.home.load(Relaxed) == NO_THREAD, record.serial));
        all
    }

    fn shard(&self, serial: u64) -> &Mutex<BTreeMap<u64, Arc<Record>>> {
        &self.register[serial as usize % SHARDS]
    }

    fn enter(&self, what: &'static str, size: Option<usize>) -> Arc<Record> {
        let serial = self.serials.fetch_add(1, Relaxed);
        let record = Arc::new(Record {
            serial,
            what,
            size,
            running: AtomicBool::new(false),
            over: AtomicBool::new(false),
            home: AtomicU64::new(NO_THREAD),
            waits_for: AtomicU8::new(Wait::FirstRun as u8),
            partner: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            returned: AtomicU64::new(0),
        });
        lock(self.shard(serial)).insert(serial, record.clone());
        record
    }

    fn leave(&self, record: &Record) {
        check!(!record.over.swap(true, AcqRel), "{record} ended twice");
        let known = lock(self.shard(record.serial)).remove(&record.serial);
        check!(known.is_some(), "{record} ended, but was not known to be alive");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a fiber waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Wait {
    FirstRun,
    Nothing,
    Yield,
    Park,
    ParkTimeout,
    Sleep,
    Join,
    Scope,
    Lock,
    Mail,
    Io,
}

const WAITS: [(Wait, &str); 11] = [
    (Wait::FirstRun, "its first run"),
    (Wait::Nothing, "nothing: it runs, or blocks its thread"),
    (Wait::Yield, "its turn after a yield"),
    (Wait::Park, "an unpark"),
    (Wait::ParkTimeout, "an unpark or its time-out"),
    (Wait::Sleep, "the end of its sleep"),
    (Wait::Join, "the end of another"),
    (Wait::Scope, "the end of its scope"),
    (Wait::Lock, "a lock or a permit"),
    (Wait::Mail, "a channel"),
    (Wait::Io, "a socket"),
];

const NO_THREAD: u64 = 0;

/// The number of this thread. Never inlined, and its result never known to the compiler: a fiber that did change its thread must see it.
#[inline(never)]
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(NO_THREAD + 1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Relaxed));
    std::hint::black_box(NUMBER.with(|number| *number))
}

/// What is known of a fiber, or of a plain thread that takes part.
pub(super) struct Record {
    serial: u64,
    what: &'static str,
    /// The index of its stack size; none for a plain thread.
    size: Option<usize>,
    running: AtomicBool,
    over: AtomicBool,
    home: AtomicU64,
    waits_for: AtomicU8,
    partner: AtomicU64,
    /// Wakes sent to it.
    sent: AtomicU64,
    /// Its parks that returned, time-outs left out.
    returned: AtomicU64,
}

impl Record {
    fn begin_slice(&self) {
        // AcqRel: two slices of a fiber are one after the other, whoever runs them.
        check!(!self.running.swap(true, AcqRel), "{self} runs on two workers at once");
        check!(!self.over.load(Relaxed), "{self} runs after its end");
        let (here, home) = (thread_number(), self.home.load(Relaxed));
        match home {
            NO_THREAD => self.home.store(here, Relaxed),
            _ if LEDGER.moving.load(Relaxed) && self.size.is_some() => self.home.store(here, Relaxed),
            _ => check!(home == here, "{self} settled on thread {home} and now runs on thread {here}"),
        }
        self.waits_for.store(Wait::Nothing as u8, Relaxed);
        LEDGER.slices.fetch_add(1, Relaxed);
    }

    fn end_slice(&self, wait: Wait) {
        self.waits_for.store(wait as u8, Relaxed);
        check!(self.running.swap(false, AcqRel), "{self} stopped running twice");
    }

    pub(super) fn sent(&self) -> u64 {
        // Acquire: meets the Release in `Target::wake`.
        self.sent.load(Acquire)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.size.is_some() { "fiber" } else { "thread" };
        let (_, waits) = WAITS[self.waits_for.load(Relaxed) as usize];
        write!(f, "{kind} {} of storm '{}' (waits for {waits}", self.serial, self.what)?;
        if self.waits_for.load(Relaxed) == Wait::Join as u8 {
            write!(f, ", number {}", self.partner.load(Relaxed))?;
        }
        let (sent, returned) = (self.sent.load(Relaxed), self.returned.load(Relaxed));
        write!(f, "; wakes sent {sent}, parks returned {returned}; home: thread {})", self.home.load(Relaxed))
    }
}

/// A spawned fiber that has not run yet; moved into its closure.
pub(super) struct Ticket(Option<Arc<Record>>);

impl Ticket {
    /// Enters a fiber that is about to be spawned with a stack of `STACK_SIZES[size]`.
    pub(super) fn new(what: &'static str, size: usize) -> (Self, Arc<Record>) {
        LEDGER.spawned.fetch_add(1, Relaxed);
        let alive = LEDGER.alive[size].fetch_add(1, Relaxed) + 1;
        LEDGER.alive_max[size].fetch_max(alive, Relaxed);
        let record = LEDGER.enter(what, Some(size));
        (Self(Some(record.clone())), record)
    }

    /// The fiber's first slice.
    pub(super) fn begin(mut self) -> Life {
        let record = self.0.take().expect("a ticket is used once");
        Life::begin(record)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(record) = self.0.take() {
            check!(LEDGER.closing.load(Relaxed), "{record} was dropped unrun, and its runtime was not being dropped");
            LEDGER.leave(&record);
            count_end(&record, &LEDGER.unrun);
        }
    }
}

fn count_end(record: &Record, how: &AtomicU64) {
    if let Some(size) = record.size {
        LEDGER.alive[size].fetch_sub(1, Relaxed);
        // Release: meets the Acquire in `sums`.
        how.fetch_add(1, Release);
    }
}

/// A fiber, or a plain thread that takes part, from its first slice to its end; it waits through this.
pub(super) struct Life {
    record: Arc<Record>,
    finished: Cell<bool>,
}

impl Life {
    fn begin(record: Arc<Record>) -> Self {
        record.begin_slice();
        Self { record, finished: Cell::new(false) }
    }

    /// A plain thread takes part.
    pub(super) fn of_thread(what: &'static str) -> Self {
        Self::begin(LEDGER.enter(what, None))
    }

    /// Its end is no panic.
    pub(super) fn finish(&self) {
        self.finished.set(true);
    }

    pub(super) fn serial(&self) -> u64 {
        self.record.serial
    }

    /// Suspends in `f`.
    pub(super) fn away<R>(&self, wait: Wait, f: impl FnOnce() -> R) -> R {
        self.record.end_slice(wait);
        let result = f();
        self.record.begin_slice();
        result
    }

    /// The caller is about to suspend in something that still runs its closure; [`back`](Self::back) follows.
    pub(super) fn leave(&self, wait: Wait) {
        self.record.end_slice(wait);
    }

    pub(super) fn back(&self) {
        self.record.begin_slice();
    }

    pub(super) fn yield_now(&self) {
        self.away(Wait::Yield, sinew::yield_now);
    }

    pub(super) fn sleep(&self, duration: Duration) {
        let before = Instant::now();
        self.away(Wait::Sleep, || sinew::sleep(duration));
        let took = before.elapsed();
        check!(took >= duration || sinew::cancelled(), "{} slept {took:?} instead of {duration:?}", self.record);
    }

    pub(super) fn join<T>(&self, handle: Spawned<T>) -> std::thread::Result<T> {
        self.record.partner.store(handle.record.serial, Relaxed);
        let outcome = self.away(Wait::Join, || handle.handle.join());
        check!(handle.record.over.load(Acquire), "{} was joined before its end", handle.record);
        outcome
    }

    /// Where others wake it.
    pub(super) fn target(&self) -> Target {
        Target { record: self.record.clone(), fiber: sinew::current() }
    }

    /// Wakes sent to it so far.
    pub(super) fn sent(&self) -> u64 {
        self.record.sent()
    }

    /// Parks until `count` wakes were sent to it since its beginning.
    pub(super) fn await_sent(&self, count: u64) {
        while self.sent() < count {
            self.park();
        }
    }

    pub(super) fn park(&self) {
        self.away(Wait::Park, sinew::park);
        self.note_return();
    }

    /// Parks for at most `timeout`.
    pub(super) fn park_timeout(&self, timeout: Duration) {
        let before = Instant::now();
        self.away(Wait::ParkTimeout, || sinew::park_timeout(timeout));
        if before.elapsed() < timeout {
            self.note_return();
        }
    }

    fn note_return(&self) {
        let returned = self.record.returned.fetch_add(1, Relaxed) + 1;
        check!(returned <= self.sent(), "{}: its park returned without a wake", self.record);
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.record.end_slice(Wait::Nothing);
        LEDGER.leave(&self.record);
        count_end(&self.record, if self.finished.get() { &LEDGER.ended } else { &LEDGER.panicked });
    }
}

/// Somebody who can be woken.
#[derive(Clone)]
pub(super) struct Target {
    record: Arc<Record>,
    fiber: Fiber,
}

impl Target {
    /// Sends one wake.
    pub(super) fn wake(&self) {
        LEDGER.wakes.fetch_add(1, Relaxed);
        // Release: meets the Acquire in `Record::sent`. Counted before it is sent, so that a park may count on it.
        self.record.sent.fetch_add(1, Release);
        self.fiber.unpark();
    }
}

/// A spawned fiber, from outside.
pub(super) struct Spawned<T> {
    pub(super) handle: JoinHandle<T>,
    pub(super) record: Arc<Record>,
}

impl<T> Spawned<T> {
    pub(super) fn target(&self) -> Target {
        Target { record: self.record.clone(), fiber: self.handle.fiber().clone() }
    }
}
