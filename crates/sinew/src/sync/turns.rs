//! Whose turn it is at a lock that many want: the times by which `Mutex` and `RwLock` go.
//!
//! Who unlocks tells one that waits to try, and runs on; until that one comes, others may overtake it, which costs them nothing. These times bound what that costs those who wait. With 100 fibers on two
//! workers that do nothing but lock, each waits for the turns of all others: 0.2 to 0.25 ms, and 0.4 at p99 (0.5 and 0.6 with turns of 4 us and stays of 250). Longer turns gain little: the lock
//! itself costs the same, and a turn ends with a switch to another fiber of the worker, some 50 ns.

/// How long one that was told to try is overtaken before others queue behind it: some hundred short critical sections. A mutex counts it in ticks of that length, so there it is up to so long.
pub(super) const TURN_NS: u64 = 2_048;

/// How long one of another worker may take to come before its turn counts: most come 40 to 60 us after a futex wake here. Much longer, and they come while the lock is still fought for.
pub(super) const COMES_NS: u64 = 49_152;

/// How long one that was told to try is waited for. Arbitrary: longer than a wake takes on a machine that is not overloaded.
pub(super) const STALE_NS: u64 = 262_144;

/// How long the lock stays with the fibers of one worker while others wait.
pub(super) const STAY_NS: u64 = 100_000;

/// How long one that queued behind a woken one of another worker, though the lock was free, waits before it looks whether that has come: else a worker that computes for long, or is not run by the
/// system, would keep all from a free lock. Twice what the lock stays with that worker, so that most are woken before.
pub(super) const POLITE_NS: u64 = 2 * STAY_NS;

/// How long one that queues while a woken one is expected waits before it looks whether that has come (`watch.rs`): the bound on what a held worker costs others at a free lock. Longer than most wait where many only lock and unlock, so
/// that there it is armed in vain.
pub(super) const LOOK_NS: u64 = 1_000_000;

/// How long one looks again after, that knows of a woken one: so long that this has been given up then.
pub(super) const LOST_NS: u64 = COMES_NS + STALE_NS + 2 * TURN_NS;

/// How long one has waited before it is given the lock, and no longer told to try. parking_lot's number; Go's is 1 ms.
pub(super) const HAND_OVER_NS: u64 = 500_000;

/// Waiters that are looked at for one of the unlocker's own worker, or of another than the woken one's. Arbitrary: they may be a cache miss each.
pub(super) const NEAR_LOOKS: usize = 64;
