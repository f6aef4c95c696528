//! Children that nobody is woken for, since their maker is about to join them.
//!
//! A fiber that spawns and joins at once, again and again, runs its children itself (`Worker::suspend_for`). If each were announced, another worker would come for each of them in vain, and every step of that
//! takes a cache line from the maker's core. So a worker counts: after [`JOINED_MIN`] children in a row that were alone in its deque and joined at once, it *withholds* what is alone there. Such a child lies in the deque as
//! ever, but it is no work of the group, and thieves pass it by. (`spawn-join-2`: 94 ns, by the run 75 to 121, and since 46, 46 to 52; medians of 9, interleaved. `spawn-join-1`: 46 and 46.)
//!
//! Rejected: a flag for each child, with a fence and a look for sleepers at each spawn: 59 ns, and 2 more with one worker. One that says "from now on" needs them once.
//!
//! # Invariants
//! I1. `Seat::withheld` is written by its worker alone, and set only while none or one is among its children. So it is taken back before a second is pushed, and before the worker rests.
//! I2. (law S1) A withheld child is joined; or announced, when a second one comes, or another one is joined, or the loop runs something else first; or, if its worker does not switch, taken by an idle one. For while one withholds, somebody
//!     of those who are idle polls, or sleeps for a millisecond at most, and looks (`Worker::stuck`), as for the fiber that was woken last. All but the first have the worker announce again what comes, and so has a child
//!     that was joined late: one in 64 is timed.
//!
//! # Memory order
//! Who begins to withhold: sets the word, `fence(SeqCst)`, looks who sleeps, polls and watches. Who goes to sleep, or ceases to poll or watch: says so, `fence(SeqCst)`, looks at the word. One of them sees the other; and the word stays, so the spawns that follow need neither.
//!
//! # Not here
//! A group that may grow, or whose workers steal from other groups, withholds nothing: to announce is more than to wake there, and nobody may be there to look. Nor does one whose workers poll for long, as they were told to.

use std::time::Duration;

use super::Worker;
use super::rest::WATCH_NS;
use crate::base::atomic::AS_IN_MEMORY;
use crate::fiber::Control;
use crate::sched::settings::Spin;

/// Children in a row, joined at once, after which others are withheld. Arbitrary: those of a whole turn. In models, whose schedules seldom leave many in a row alone, two.
const JOINED_MIN: u32 = if AS_IN_MEMORY { 16 } else { 2 };
/// A child that waited for longer than this was not joined at once. A worker that polls would have had it by then.
const AT_ONCE_NS: u64 = 1_000;

impl Worker {
    /// Takes `child`, which `me` joins, if it is the newest of the children and may run at once.
    #[inline]
    pub(super) fn take_joined(&self, me: &Control, child: *mut Control) -> bool {
        if self.budget.get() == 0 || me.is_marked() {
            self.joining.set(true);
            return false;
        }
        let taken = self.seat.children.pop_if_newest(child);
        if taken && self.seat.children.len() == 0 {
            self.joined.set(self.joined.get().saturating_add(1));
        } else {
            self.share_children();
        }
        taken
    }

    /// Whether the next child is withheld.
    #[inline]
    pub(super) fn may_withhold(&self) -> bool {
        self.joined.get() >= JOINED_MIN && self.seat.children.len() == 0 && (self.seat.withholds() || self.is_looked_after())
    }

    /// Whether idle workers would look after a withheld child.
    fn is_looked_after(&self) -> bool {
        let settings = &self.group().settings;
        let polls_long = matches!(settings.spin, Spin::Fixed(span) if span > Duration::from_nanos(WATCH_NS));
        !self.group().may_grow() && settings.victims.is_empty() && !polls_long
    }

    /// Keeps the child that was pushed just now, and is alone, from the others.
    #[inline]
    pub(super) fn withhold(&self) {
        if !self.seat.withholds() {
            self.seat.set_withholds(true);
            self.call_watcher();
        }
    }

    /// Ceases to withhold children, and counts anew; announces one that was.
    #[inline]
    pub(super) fn share_children(&self) {
        self.joined.set(0);
        if self.seat.withholds() {
            self.seat.set_withholds(false);
            if self.seat.children.len() != 0 {
                self.announce(1);
            }
        }
    }

    /// By the loop: a withheld child that is not being joined is one like others, and announced if another goes first. If there was none in this turn, nobody has to look.
    #[inline]
    pub(super) fn review_withheld(&self) {
        let joined = self.joined.get();
        let idle = self.joined_before.replace(joined) == joined;
        if self.joining.replace(false) || !self.seat.withholds() {
            return;
        }
        if self.seat.children.len() != 0 {
            self.joined.set(0);
            self.seat.set_withholds(false);
            self.unannounced.set(true);
        } else if idle {
            self.seat.set_withholds(false);
        }
    }

    /// A child begins to run that was spawned `waited_ns` ago.
    pub(super) fn judge_wait(&self, waited_ns: u64) {
        if waited_ns > AT_ONCE_NS {
            self.share_children();
        }
    }
}
