//! A worker and the outside world: when its source and its group's roam are looked at, and what fibers that never wait owe to the others.

use std::io;
use std::ptr;

use super::{Worker, passed, ready_all};
use crate::base::atomic::Relaxed;
use crate::base::list::{Linked, List};
use crate::base::prefetch::prefetch;
use crate::event::source::{SOURCE_GAP_NS, SOURCE_TURNS, Source};
use crate::fiber::Control;
use crate::os::clock;

/// I/O calls of one worker's fibers that are done at once before the others, timers and other descriptors get their turn: else a fiber whose peer is always ahead of it would hold the worker for ever. Arbitrary:
/// some 50 us of system calls.
const GIFTS: u32 = 32;

/// Calls of one worker's fibers that may wait before it looks whether one fiber has made them all, and did not wait: that one then lets others run. Else a loop over a channel that is never empty would hold the worker for ever. Some 1.3 us of
/// sends and receives; a look and a yield in vain are 30 ns.
pub(super) const CALLS: u32 = 256;

/// Fibers that are ready, or have asked the ring for something in this turn, from which on the ring is asked for what could be tried. A suspension costs more than a system call's share: one stream of 4 KiB writes between two fibers of
/// one worker had 0.24 GB/s by the ring, 0.86 by plain calls.
const RING_SHARERS: usize = 4;

/// Lines of a stack from where a fiber waits for a socket up to its own code, and of a control block. An echo by epoll uses 17 and 3 of these, by steps of a debugger.
const IO_STACK_LINES: usize = 16;
const BLOCK_LINES: usize = size_of::<Control>() / 64;

/// A worker that has reason to look at the roam, and has not for so long, was held by one of its fibers. Arbitrary: a hundred short ones.
const HELD_NS: u64 = 1_000_000;

impl Worker {
    /// Tells the kernel what this worker's fibers ask of it, and readies those that it has answered. A worker with nothing else to do leaves that to its sleep, which is the same system call; but one whose epoll instance [is due](Source::is_due) asks before that, by a call of its own.
    pub(super) fn look_at_source(&self) {
        let woken = List::new();
        let turns = self.turn.get().wrapping_sub(self.asked_turn.get());
        // SAFETY: I1, I2 - the borrow ends with the block, and no user code runs in it.
        let asked = unsafe {
            let Some(source) = &mut *self.source.get() else { return };
            // Each call of the ring is a burst of answers, which wakes who waits for them: of whole turns every second one is enough. By measurement: with a call after each an HTTP answer cost some 2 % more
            // (docs/decisions.md).
            if source.is_ring() && self.was_full.replace(false) && !self.skipped.replace(true) {
                return;
            }
            self.skipped.set(false);
            if !source.has_found() && !self.has_own() && !self.has_work() && !source.is_due() {
                return;
            }
            source.look(turns, self.backlog.get() != 0, self.ready.len(), &woken)
        };
        ready_all(&woken);
        if asked {
            self.asked_turn.set(self.turn.get());
            self.backlog.set(u32::try_from(self.ready.len()).unwrap_or(u32::MAX));
        }
    }

    /// Readies fibers that may move and whose I/O has come, as often as a worker that is never idle polls epoll.
    pub(super) fn look_at_roam(&self) {
        let turns = self.turn.get().wrapping_sub(self.roam_turn.get());
        if !self.roam_due.replace(false) && turns < SOURCE_TURNS && !passed(self.roam_ns.get() + SOURCE_GAP_NS) {
            return;
        }
        self.roam_turn.set(self.turn.get());
        let now_ns = clock::now_ns();
        let before_ns = self.roam_ns.replace(now_ns);
        if before_ns != 0 && now_ns - before_ns >= HELD_NS {
            self.relieve();
        }
        let (roam, woken) = (&self.group().roam, List::new());
        let alone = roam.looks() == self.roam_looks.get();
        let looks = roam.look(&woken);
        if alone {
            self.roam_looks.set(looks);
        }
        ready_all(&woken);
    }

    /// Has the kernel say what has come, if this worker's fibers wait at epoll: a ring tells by memory, which is polled anyway.
    pub(super) fn ask_epoll(&self) {
        // SAFETY: I1, I2 - it runs no user code.
        let source = unsafe { (*self.source.get()).as_mut() };
        if let Some(source) = source.filter(|source| self.source_waits.get() != 0 && !source.is_ring()) {
            source.sleep(0);
        }
    }

    /// Uses the source of this worker, which is opened if it is not there.
    ///
    /// # Errors
    /// If it could not be opened.
    pub(crate) fn with_source<T>(&self, f: impl FnOnce(&mut Source) -> T) -> io::Result<T> {
        // SAFETY: I1, I2 - `f` is of the runtime, and does not suspend.
        let source = unsafe { &mut *self.source.get() };
        if source.is_none() {
            let opened = source.insert(Source::open(self.groups.io, self.seat().bell()?)?);
            self.seat().counters.io.store(opened.io() as u8, Relaxed);
        }
        Ok(f(source.as_mut().expect("it was opened just now")))
    }

    /// Whether an operation that could be done at once is better given to the ring: there is one, and many are going to use it in this turn, with one system call for all. Few are faster without.
    #[inline]
    pub(crate) fn shares_ring(&self) -> bool {
        // SAFETY: I1, I2.
        let source = unsafe { (*self.source.get()).as_ref() };
        source.is_some_and(|source| source.is_ring() && self.ready.len() + source.unsent() >= RING_SHARERS)
    }

    /// Whether its source is open, and a ring.
    #[inline]
    pub(crate) fn has_ring(&self) -> bool {
        // SAFETY: I1, I2.
        unsafe { (*self.source.get()).as_ref() }.is_some_and(Source::is_ring)
    }

    /// The running fiber `me` begins a wait at this worker's source.
    pub(crate) fn begin_source_wait(&self, me: &Control) {
        self.source_waits.set(self.source_waits.get() + 1);
        me.set_bound(true);
    }

    /// The same, by epoll, where fibers do their system calls themselves: there is a while in which the cache can get what the one after the next will need, all frames of a call that waits.
    pub(crate) fn begin_epoll_wait(&self, me: &Control) {
        self.begin_source_wait(me);
        // SAFETY: fibers in the list are alive.
        unsafe {
            if let Some(next) = self.ready.first().as_ref()
                && let Some(after) = Linked::link(next).load(Relaxed).as_ref()
            {
                let sp = after.sp();
                (0..IO_STACK_LINES).for_each(|line| prefetch(sp.wrapping_add(64 * line)));
                (1..BLOCK_LINES).for_each(|line| prefetch(ptr::from_ref(after).cast::<u8>().wrapping_add(64 * line)));
            }
        }
    }

    /// It is over.
    pub(crate) fn end_source_wait(&self, me: &Control) {
        self.source_waits.set(self.source_waits.get() - 1);
        me.set_bound(false);
    }

    /// The running fiber `me` has done I/O without having had to wait; from time to time it lets others run for that, if it may suspend and does not unwind (as in [`look_at_calls`](Self::look_at_calls)).
    #[inline]
    pub(crate) fn count_gift(&self, me: &Control) {
        let gifts = self.gifts.get() + 1;
        self.gifts.set(gifts);
        if gifts >= GIFTS && !me.must_not_suspend() && !std::thread::panicking() {
            self.pay_for_gifts();
            self.yield_now(me);
        }
    }

    /// As `count_gift`, for a fiber that lets others run by itself if this is `true`.
    #[cfg(any(feature = "futures-io", feature = "tokio-io"))]
    pub(crate) fn owes_a_turn(&self) -> bool {
        self.gifts.set(self.gifts.get() + 1);
        let owes = self.gifts.get() >= GIFTS && !std::thread::panicking();
        if owes {
            self.pay_for_gifts();
        }
        owes
    }

    #[inline]
    fn pay_for_gifts(&self) {
        self.gifts.set(0);
        if self.backlog.get() == 0 {
            // To the source these calls were many turns.
            self.turn.set(self.turn.get().wrapping_add(SOURCE_TURNS));
        }
    }

    /// The running fiber begins a call that may wait, or find at once what it would wait for. Whether it is to [look](Self::look_at_calls) at who makes so many.
    #[inline]
    #[must_use]
    pub(crate) fn count_call(&self) -> bool {
        // A subtraction in memory and a look at its carry.
        let (left, was_last) = self.calls_left.get().overflowing_sub(1);
        self.calls_left.set(left);
        was_last
    }

    /// Whether the running fiber `me` has made all calls since the last look itself, and so is to let others run, and may.
    pub(crate) fn look_at_calls(&self, me: &Control) -> bool {
        let before = self.calls_seen.get();
        self.begin_calls();
        // Who unwinds is not switched away for the sake of others: std counts panics by thread.
        self.calls_seen.get() == before && !me.must_not_suspend() && !std::thread::panicking()
    }

    /// Counts calls from here on.
    pub(crate) fn begin_calls(&self) {
        self.calls_left.set(CALLS);
        self.calls_seen.set((self.turn.get(), self.budget.get()));
    }
}
