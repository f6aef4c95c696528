//! Which workers of a group spin, which sleep, and whom new work wakes.
//!
//! flare's algorithm. Work that any worker may take wakes a spinner by clearing its bit, which costs no system call; only if nobody spins a
//! sleeper is woken. At most two workers spin (law S2): one takes the work, the other is there for the next. A spinner that has found work leaves word
//! for the other one, which then wakes a sleeper to spin in its place.
//!
//! Rejected: a counter of sleepers under a lock (each push takes it); waking all (thundering herd); no spinning (a futex wake costs
//! microseconds on both sides, and short tasks arrive in trains).
//!
//! # Picture
//! ```text
//!                 begin_spin                       Slot::lie_down, enter_sleep, look
//!   at work ---------------------> spinning -----------------------------------------> asleep
//!      ^                              |  bit cleared: claimed                             |  bit cleared: claimed, slot woken
//!      +------------------------------+--------------------------------------------------+
//! ```
//!
//! # Invariants
//! I1. (S2) At most [`SPINNERS_MAX`] bits are set in `spinning`.
//! I2. A worker's bit is cleared by one: by a pusher, which has claimed it, or by itself.
//! I3. A worker is in `sleeping` only after its slot says ASLEEP, so that whoever claims it can notify it. (The other way round a claim
//!     between the two would leave it asleep with no bit, and no later push would find it: loom found that.)
//! I4. A worker that finds its bit claimed looks at the group's queues after that, before it sleeps; and one that leaves here with
//!     work of its own, or one of several items, wakes another if it still sees group work (law S1, `Worker::run`).
//!
//! # Memory order
//! Pusher: puts work into a queue, `fence(SeqCst)`, reads the masks. Sleeper: sets its bit, `fence(SeqCst)`, looks at the
//! queues. Either the sleeper sees the work or the pusher sees the bit: store-then-load on both sides, which needs the fence on both
//! (flare has relaxed operations here, and bthread lost wake-ups by it).
//! A spinner needs no fence of its own: it sleeps after it spins, and the sleep has one. If a pusher counted on its bit, the
//! removal of the bit (AcqRel both) tells it of the work.

use crate::base::atomic::{AtomicU32, Relaxed, SeqCst, fence};
use crate::base::mask::{Mask, Set};

/// Workers of a group that poll at the same time. flare's number: one to take the next item, one to be there after it.
pub(crate) const SPINNERS_MAX: usize = 2;

/// Who spins and who sleeps.
pub(crate) struct Idle {
    spinning: Mask,
    sleeping: Mask,
    /// A spinner found work and left: the other one is to wake a sleeper in its place.
    pending: AtomicU32,
    /// Workers that were claimed and have not looked at the group's queues since.
    coming: AtomicU32,
}

/// Who was claimed for new work.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Claimed {
    /// Spinners: they will look by themselves.
    pub(crate) spinners: usize,
    /// Sleepers: the caller wakes each of them.
    pub(crate) sleepers: Set,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self { spinning: Mask::new(), sleeping: Mask::new(), pending: AtomicU32::new(0), coming: AtomicU32::new(0) }
    }

    /// Who spins, by a relaxed look.
    pub(crate) fn spinning(&self) -> Set {
        self.spinning.get()
    }

    /// Who sleeps, by a relaxed look.
    pub(crate) fn sleeping(&self) -> Set {
        self.sleeping.get()
    }

    /// Whether somebody spins, sleeps, or has been claimed and has not looked at the queues since, by a relaxed look.
    pub(crate) fn is_anybody(&self) -> bool {
        !self.sleeping().is_empty() || !self.spinning().is_empty() || self.is_somebody_coming()
    }

    /// Claims up to `wanted` workers for that many items just queued: spinners first, then the sleepers of the least `weight`. Most often nobody is idle, and that is all there is to it.
    #[inline]
    pub(crate) fn claim(&self, wanted: usize, weight: impl Fn(usize) -> usize) -> Claimed {
        // SeqCst: meets the fence in `enter_sleep`.
        fence(SeqCst);
        if self.spinning.get().is_empty() && self.sleeping.get().is_empty() {
            return Claimed { spinners: 0, sleepers: Set::EMPTY };
        }
        self.claim_idle(wanted, weight)
    }

    /// As `claim`, after its fence.
    #[cold]
    fn claim_idle(&self, wanted: usize, weight: impl Fn(usize) -> usize) -> Claimed {
        let mut claimed = Claimed { spinners: 0, sleepers: Set::EMPTY };
        for worker in self.spinning.get().iter() {
            if claimed.spinners == wanted {
                return claimed;
            }
            claimed.spinners += usize::from(self.claim_from(&self.spinning, worker));
        }
        let mut seen = self.sleeping.get();
        while claimed.spinners + claimed.sleepers.len() < wanted {
            let Some(worker) = seen.iter().min_by_key(|&worker| weight(worker)) else { break };
            seen = seen.without(worker);
            if self.claim_from(&self.sleeping, worker) {
                claimed.sleepers = claimed.sleepers.with(worker);
            }
        }
        claimed
    }

    /// Lets `worker` poll if few do; `false` if it must not.
    #[must_use]
    pub(crate) fn begin_spin(&self, worker: usize) -> bool {
        self.spinning.insert_below(worker, SPINNERS_MAX)
    }

    /// Ends the polling of `worker`; `true` if a pusher had claimed it.
    #[must_use]
    pub(crate) fn end_spin(&self, worker: usize) -> bool {
        let claimed = !self.spinning.remove(worker);
        if claimed {
            self.arrive();
        }
        claimed
    }

    /// A spinner found work: asks the other one to see that somebody spins in its place.
    pub(crate) fn leave_pending(&self) {
        self.pending.store(1, Relaxed);
    }

    /// The sleeper to wake in place of a spinner that left, if one was asked for. By a spinner; the caller wakes it.
    pub(crate) fn take_pending(&self, weight: impl Fn(usize) -> usize) -> Option<usize> {
        if self.pending.load(Relaxed) == 0 || self.pending.swap(0, Relaxed) == 0 {
            return None;
        }
        let worker = self.sleeping.get().iter().min_by_key(|&worker| weight(worker))?;
        self.claim_from(&self.sleeping, worker).then_some(worker)
    }

    /// Takes `worker` out of `mask` for new work. Counted as coming only once that is sure: who defers to a comer must not defer to none. (The
    /// comer may have arrived before it is counted: then the count passes below zero for a moment, which reads as nobody.)
    fn claim_from(&self, mask: &Mask, worker: usize) -> bool {
        let claimed = mask.remove(worker);
        if claimed {
            self.coming.fetch_add(1, Relaxed);
        }
        claimed
    }

    /// A claimed worker is there: it looks at the queues next.
    fn arrive(&self) {
        self.coming.fetch_sub(1, Relaxed);
        // SeqCst: meets the fence in `claim`, see `is_somebody_coming`.
        fence(SeqCst);
    }

    /// Whether a claimed worker has yet to look at the queues: then it will see all that was announced before this call. The announcer's fence in
    /// `claim` stands between its push and this look, the comer's fence between its arrival and its look at the queues. It takes one item and
    /// passes the rest on; who counts on it for more looks once more after `enter_sleep`.
    pub(crate) fn is_somebody_coming(&self) -> bool {
        self.coming.load(Relaxed) as i32 > 0
    }

    /// Puts `worker` among the sleepers. After `Slot::lie_down` (I3); a last look must follow.
    pub(crate) fn enter_sleep(&self, worker: usize) {
        self.sleeping.insert(worker);
        // SeqCst: meets the fence in `claim`.
        fence(SeqCst);
    }

    /// Takes `worker` from the sleepers; `true` if a pusher had claimed it.
    #[must_use]
    pub(crate) fn leave_sleep(&self, worker: usize) -> bool {
        let claimed = !self.sleeping.remove(worker);
        if claimed {
            self.arrive();
        }
        claimed
    }
}
