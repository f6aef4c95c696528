//! What a worker counts, and how much of its life it is busy.
//!
//! Always on, so counting is a plain load and store: the worker alone writes. What it costs is measured by `examples/counting.rs`.

use std::sync::atomic as plain;

use crate::base::atomic::Relaxed;
use crate::base::histogram::Histogram;
use crate::event::source::Io;
use crate::fiber::COUNTS;

/// In `Counters::busy`: it polls or sleeps. No clock of ours counts so far.
const IDLE: u64 = 1 << 63;

/// What a worker counts. Written by it alone, so a plain load and store will do; read by anybody. It orders nothing, so it is std's, which models do not look at: a step less of theirs for each count.
#[repr(align(64))]
pub(crate) struct Counters {
    /// Started fibers that have not ended.
    pub(crate) settled: plain::AtomicUsize,
    /// Ready fibers, at the last look.
    pub(crate) ready: plain::AtomicUsize,
    pub(crate) spawned: plain::AtomicU64,
    pub(crate) ended: plain::AtomicU64,
    pub(crate) switches: plain::AtomicU64,
    pub(crate) sleeps: plain::AtomicU64,
    pub(crate) steals: plain::AtomicU64,
    /// Searches for something to steal in its group.
    pub(crate) thefts: plain::AtomicU64,
    /// Workers of its group that it claimed while they polled, and that it woke; announcements for which nobody was idle.
    pub(crate) spinner_wakes: plain::AtomicU64,
    pub(crate) sleeper_wakes: plain::AtomicU64,
    pub(crate) unserved: plain::AtomicU64,
    /// Fibers that it moved to its group's queue, because its own was full.
    pub(crate) overflowed: plain::AtomicU64,
    /// Waits begun while their thread was unwinding.
    pub(crate) unwinding_waits: plain::AtomicU64,
    /// How its fibers wait for I/O: an [`Io`] as a number, `Auto` before the first has.
    pub(crate) io: plain::AtomicU8,
    /// From ready to running, one wake in 64 of each fiber.
    pub(crate) latency: Histogram,
    /// From spawned to running, one in 64.
    pub(crate) start_latency: Histogram,
    /// From the system call that wakes it to its getting up.
    pub(crate) wake_cost: Histogram,
    /// Nanoseconds that it polled, and that it slept.
    pub(crate) spun_ns: plain::AtomicU64,
    pub(crate) slept_ns: plain::AtomicU64,
    /// How long it has done neither, in one word, so that no reader sees an idle time that is neither under way nor counted: with [`IDLE`] set, nanoseconds; without it, the moment at which it would have begun, had it
    /// been busy ever since. See [`Counters::begin_idle`].
    busy: plain::AtomicU64,
    /// When it came.
    pub(crate) born_ns: plain::AtomicU64,
}

/// Adds to a counter that the caller alone writes.
#[inline]
pub(crate) fn add(counter: &plain::AtomicU64, n: u64) {
    if COUNTS {
        counter.store(counter.load(Relaxed) + n, Relaxed);
    }
}

impl Counters {
    pub(crate) fn new() -> Self {
        let zero = || plain::AtomicU64::new(0);
        Self {
            settled: plain::AtomicUsize::new(0),
            ready: plain::AtomicUsize::new(0),
            spawned: zero(),
            ended: zero(),
            switches: zero(),
            sleeps: zero(),
            steals: zero(),
            thefts: zero(),
            spinner_wakes: zero(),
            sleeper_wakes: zero(),
            unserved: zero(),
            overflowed: zero(),
            unwinding_waits: zero(),
            io: plain::AtomicU8::new(Io::Auto as u8),
            latency: Histogram::new(),
            start_latency: Histogram::new(),
            wake_cost: Histogram::new(),
            spun_ns: zero(),
            slept_ns: zero(),
            busy: zero(),
            born_ns: zero(),
        }
    }

    pub(crate) fn reset(&self) {
        let Self { settled, ready, spawned, ended, switches, sleeps, steals, thefts, unwinding_waits, .. } = self;
        let Self { spinner_wakes, sleeper_wakes, unserved, overflowed, .. } = self;
        let Self { spun_ns, slept_ns, busy, born_ns, latency, start_latency, wake_cost, .. } = self;
        [settled, ready].into_iter().for_each(|counter| counter.store(0, Relaxed));
        self.io.store(Io::Auto as u8, Relaxed);
        let counts = [spawned, ended, switches, sleeps, steals, thefts, unwinding_waits, spun_ns, slept_ns, busy, born_ns];
        let wakes = [spinner_wakes, sleeper_wakes, unserved, overflowed];
        counts.into_iter().chain(wakes).for_each(|counter| counter.store(0, Relaxed));
        [latency, start_latency, wake_cost].into_iter().for_each(Histogram::reset);
    }

    /// What changes whenever its worker goes from fiber to fiber by way of its loop, or ends one. Both only grow, so two sums are equal if nothing has changed.
    #[inline]
    pub(crate) fn progress(&self) -> u64 {
        self.switches.load(Relaxed).wrapping_add(self.ended.load(Relaxed))
    }

    /// The worker comes, and is busy.
    pub(crate) fn begin(&self, now_ns: u64) {
        self.busy.store(now_ns, Relaxed);
        self.born_ns.store(now_ns, Relaxed);
    }

    /// It begins to poll or to sleep.
    pub(crate) fn begin_idle(&self, now_ns: u64) {
        let busy_ns = now_ns.saturating_sub(self.busy.load(Relaxed));
        self.busy.store(busy_ns | IDLE, Relaxed);
    }

    /// It goes on.
    pub(crate) fn end_idle(&self, now_ns: u64) {
        let busy_ns = self.busy.load(Relaxed) & !IDLE;
        self.busy.store(now_ns.saturating_sub(busy_ns), Relaxed);
    }

    /// It has polled for so long, too briefly to be said before.
    pub(crate) fn count_idle(&self, idle_ns: u64) {
        self.busy.store(self.busy.load(Relaxed) + idle_ns, Relaxed);
    }

    /// The share of its life in which it neither polled nor slept, from 0 to 1.
    pub(crate) fn busy_share(&self, now_ns: u64) -> f64 {
        let (born_ns, busy) = (self.born_ns.load(Relaxed), self.busy.load(Relaxed));
        let life_ns = if born_ns == 0 { 0 } else { now_ns.saturating_sub(born_ns) };
        let busy_ns = if busy & IDLE == 0 { now_ns.saturating_sub(busy) } else { busy & !IDLE };
        // It may have gone on since the caller read the clock.
        if life_ns == 0 { 0.0 } else { busy_ns.min(life_ns) as f64 / life_ns as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::atomic::AS_IN_MEMORY;

    /// Claim: who looks while a worker gets up sees its sleep, once. By one that slept for a second and then gets up and lies down for a nanosecond each, and one that looks all the while.
    #[test]
    fn an_idle_worker_reads_as_idle_at_every_moment() {
        const SLEEP_NS: u64 = 1_000_000_000;
        const TURNS: u64 = 1_000_000;
        let counters = Counters::new();
        assert_eq!(counters.busy_share(SLEEP_NS).to_bits(), 0.0f64.to_bits(), "it has not come yet");
        counters.begin(1);
        counters.begin_idle(1);
        std::thread::scope(|s| {
            let turns = s.spawn(|| {
                for turn in 0..TURNS {
                    let now_ns = SLEEP_NS + 2 * turn;
                    counters.end_idle(now_ns);
                    counters.begin_idle(now_ns + 1);
                }
            });
            while !turns.is_finished() {
                let share = counters.busy_share(SLEEP_NS);
                assert!(share <= 2.0 * TURNS as f64 / SLEEP_NS as f64, "{share} of its life");
            }
        });
        assert_eq!(counters.busy.load(Relaxed), TURNS | IDLE);
    }

    /// Empty in a model: the histograms, which are reset, have its atomics.
    #[test]
    fn what_is_neither_polled_nor_slept_is_busy() {
        if !AS_IN_MEMORY {
            return;
        }
        let counters = Counters::new();
        counters.begin(1_000);
        counters.begin_idle(1_100);
        assert_eq!(counters.busy_share(2_000), 0.1);
        counters.end_idle(2_000);
        assert_eq!(counters.busy_share(2_000), 0.1);
        assert_eq!(counters.busy_share(3_000), 0.55);
        counters.count_idle(1_000);
        assert_eq!(counters.busy_share(3_000), 0.05);
        counters.reset();
        assert_eq!(counters.busy_share(3_000), 0.0);
    }
}
