//! A worker with nothing to do: it polls while that pays, then sleeps, and learns from both.

use super::{SPIN_PAUSES, Worker, passed};
use crate::base::atomic::{Relaxed, spin_loop};
use crate::event::source::SOURCE_GAP_NS;
use crate::fiber::stack;
use crate::os::alarm::Ahead;
use crate::os::{clock, futex};
use crate::sched::counters::add;
use crate::sched::seat::Rest;
use crate::sched::settings::Spin;
use crate::sched::slot::ASLEEP;

/// What it costs to wake a sleeper, until that was measured, and the bounds of what is believed: about what a futex wake takes on a quiet machine, and what it took here on a busy one.
/// A poll in vain is not free: a core that polled before it slept is woken later. An unpark by a thread, 1,000 a second, took 12.0 us with a poll before each sleep and 7.5 without (2
/// virtual cores, medians of 1,500).
pub(super) const WAKE_COST_NS: u64 = 10_000;
const WAKE_COST_MIN_NS: u64 = 5_000;
const WAKE_COST_MAX_NS: u64 = 50_000;
/// A poll shorter than this is none.
const SPIN_LEAST_NS: u64 = 2_000;
/// Looks of a worker that expects mail: about a microsecond.
const MAIL_LOOKS: u32 = 24;
/// How long one that polls and is called looks for what it was called for, if that is not there: another may have taken it, and the next be on its way. A pair of workers of which one spawns and joins one fiber after the other:
/// 210 ns each if it begins to poll anew at once, and is called for each, and 168 with this (medians of 21 and 15).
const CALLED_NS: u64 = 5_000;
/// How long it polls without a system call.
const SPIN_ALONE_NS: u64 = 2_000;
/// A worker with many deadlines gets up for them at most once in so long: where they are dense, several are due by then. 100,000 sleeps of up to a second on 2 workers: some
/// 100,000 futex waits without, 11,000 with. Each costs 12 to 20 us of CPU time on a virtual machine, 8 to 12 with the next one set ahead (`os/alarm.rs`). Half of such sleeps are late by half a gap: 0.09 ms.
const ALARM_GAP_NS: u64 = 180_000;
/// Deadlines up to which each is met exactly. Arbitrary: with so few, a fiber that sleeps again and again for less than the gap is the rule, and sleeps that happen to be dense are rare.
const ALARM_FEW: usize = 64;
/// Stacks that nobody has used for so long give their pages back.
const TRIM_PERIOD_NS: u64 = 1_000_000_000;
/// Warm stacks per size that an idle worker keeps.
const STACKS_KEPT: usize = 8;
/// As `WATCH_NS`, for I/O of fibers that may move, which waits for somebody who looks. `echo-hog` at 2,000 requests a second, p99 of the others: 0.6 to 1 ms with a millisecond, 0.16 to 0.8 with this (medians of 3 to 5, five runs), for
/// some 5 % more of CPU time.
const ROAM_WATCH_NS: u64 = 300_000;

/// What a sleeping worker does for fibers that wait at the group's roam (`event/roam.rs`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Post {
    None,
    Lookout,
    Watcher,
}

impl Worker {
    /// Has nothing to do: polls for a while, if few others do, then sleeps.
    pub(super) fn rest(&self) {
        self.seat().counters.ready.store(0, Relaxed);
        self.rested.set(true);
        self.backlog.set(0);
        self.roam_ns.set(0);
        if self.end_watch() {
            return;
        }
        // Not with an errand to do: a poll would end at once, and nobody would do it.
        let may_spin = self.spin_limit_ns() != 0 && !self.deferred.get() && !self.source_calls() && !self.group().has_errands();
        if may_spin && self.mail_pays.get() && self.await_mail() {
            return;
        }
        if may_spin {
            // Over the poll, and over the sleep after it: the end of a short poll is not that of the watch.
            self.keep_watch();
            if self.spin() || self.end_watch() {
                return;
            }
        }
        if !self.group().settings.victims.is_empty() && self.steal_abroad() {
            return;
        }
        self.sleep();
    }

    /// Polls for a moment before it counts as one who polls: a fiber here and one elsewhere that talk would else fight for the group's masks with every word.
    pub(crate) fn await_mail(&self) -> bool {
        let begun_ns = clock::now_ns();
        let mut now_ns = begun_ns;
        let came = (0..MAIL_LOOKS).any(|_| {
            let has_come = self.has_work();
            if !has_come {
                // It is the pause, too, and takes as long as two. None is read once something has come: that is to run.
                now_ns = clock::now_ns();
            }
            has_come
        });
        self.mail_pays.set(came);
        add(&self.seat.counters.spun_ns, now_ns - begun_ns);
        self.seat.counters.count_idle(now_ns - begun_ns);
        came
    }

    /// Polls; `true` if there is something to do.
    fn spin(&self) -> bool {
        let idle = &self.group().idle;
        if !idle.begin_spin(self.index) {
            return false;
        }
        let found = self.poll();
        self.mail_pays.set(self.seat.has_mail());
        let claimed = idle.end_spin(self.index);
        self.must_take.set(claimed);
        if found && !idle.spinning().is_empty() {
            idle.leave_pending();
        }
        let pays = found || claimed;
        self.spin_ns.set(if pays { self.wake_cost_ns.get() } else { less_spin_ns(self.spin_ns.get()) });
        pays
    }

    /// How long it may poll now; 0 is not at all.
    fn spin_limit_ns(&self) -> u64 {
        match self.group().settings.spin {
            Spin::Never => 0,
            Spin::Fixed(duration) => u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
            Spin::Adaptive => self.spin_ns.get(),
        }
    }

    fn poll(&self) -> bool {
        // SAFETY: I1, I2.
        let wake_ns = unsafe { (*self.timers.get()).next_ns() };
        let begun_ns = clock::now_ns();
        let end_ns = begun_ns.saturating_add(self.spin_limit_ns());
        self.seat.counters.begin_idle(begun_ns);
        let (mut now_ns, mut look_ns, mut called_ns) = (begun_ns, begun_ns + SOURCE_GAP_NS, u64::MAX);
        let found = loop {
            if self.has_work() || self.source_calls() {
                break true;
            }
            self.group().replace_spinner();
            now_ns = clock::now_ns();
            if called_ns == u64::MAX && !self.group().idle.spinning().contains(self.index) {
                called_ns = now_ns;
            }
            if now_ns >= called_ns.saturating_add(CALLED_NS) {
                // What it was called for another has taken. To poll on it must be one of the two again (S2).
                break false;
            }
            if now_ns >= look_ns {
                self.ask_epoll();
                look_ns = now_ns + SOURCE_GAP_NS;
                self.keep_watch();
                if self.finds_at_roam() || self.end_watch() {
                    break true;
                }
            }
            if now_ns >= wake_ns || now_ns >= end_ns {
                break now_ns >= wake_ns;
            }
            if now_ns - begun_ns < SPIN_ALONE_NS {
                (0..SPIN_PAUSES).for_each(|_| spin_loop());
            } else {
                // Whoever is to make something ready may be waiting for this very core.
                std::thread::yield_now();
            }
        };
        self.seat.counters.end_idle(now_ns);
        add(&self.seat.counters.spun_ns, now_ns - begun_ns);
        found
    }

    /// Sleeps until there is something to do; or finds that there is, and does not.
    pub(super) fn sleep(&self) {
        // SAFETY: I1, I2.
        let (wake_ns, armed) = unsafe { ((*self.timers.get()).next_ns(), (*self.timers.get()).armed()) };
        let post = self.take_post();
        let at_source = self.source_waits.get() != 0 || post == Post::Lookout;
        // Not if it has a post: whether fibers wait there is asked of the roam (`Groups::all_rest_for_good`). They may have gone on, and nobody has told the lookout.
        let for_good = wake_ns == u64::MAX && self.source_waits.get() == 0;
        let alarm_ns = alarm_at(wake_ns, armed, self.alarm_ns.get());
        let sleep_ns = alarm_ns.min(self.trim_when_due());
        self.seat().set_rest(Rest { for_good, at_source });
        self.seat().slot.lie_down();
        self.group().idle.enter_sleep(self.index);
        if self.group().settings.spares != 0 {
            // The sentry may have taken it for held since it was in its loop.
            self.group().duty.come_back(self.index);
        }
        let is_needed = post == Post::None && self.group().roam.is_deserted();
        if !self.has_work() && !self.must_refuse() && !is_needed {
            add(&self.seat().counters.sleeps, 1);
            let begun_ns = clock::now_ns();
            // After the fence in `enter_sleep`, see `call_watcher`.
            let watch = self.keep_watch();
            let watch_ns = watch.unwrap_or(u64::MAX);
            let roam_ns = if post == Post::Watcher { begun_ns + ROAM_WATCH_NS } else { u64::MAX };
            let sleep_ns = sleep_ns.min(watch_ns).min(roam_ns);
            if watch.is_some() {
                self.begin_watch();
            }
            self.seat.counters.begin_idle(begun_ns);
            if alarm_ns > wake_ns {
                self.set_ahead(alarm_ns + ALARM_GAP_NS);
            }
            if at_source {
                self.sleep_at_source(sleep_ns);
            } else {
                while self.seat().slot.is_asleep() && !passed(sleep_ns) {
                    futex::wait(self.seat().slot.word(), ASLEEP, sleep_ns);
                }
            }
            let now_ns = clock::now_ns();
            if watch.is_some() {
                self.leave_watch();
            }
            self.seat.counters.end_idle(now_ns);
            add(&self.seat.counters.slept_ns, now_ns - begun_ns);
            self.learn_from_sleep(begun_ns, now_ns);
            if now_ns >= wake_ns {
                self.alarm_ns.set(met_at(alarm_ns, now_ns));
            }
        }
        self.seat().slot.get_up();
        self.must_take.set(self.group().idle.leave_sleep(self.index));
        self.deferred.set(false);
        self.starts.set(0);
        self.leave_post(post);
    }

    /// Where deadlines are dense: has the moment after the one that is slept towards known to the kernel.
    fn set_ahead(&self, at_ns: u64) {
        if let Some(ahead) = self.ahead.get_or_init(|| Ahead::new().ok()) {
            ahead.set(at_ns);
        }
    }

    /// Sleeps beside work that it leaves to others for a while. Its own mail, I/O and deadlines end that; new work does not.
    pub(super) fn nap(&self, until_ns: u64) {
        // SAFETY: I1, I2.
        let until_ns = until_ns.min(unsafe { (*self.timers.get()).next_ns() });
        let at_source = self.source_waits.get() != 0;
        self.seat().set_rest(Rest { for_good: false, at_source });
        self.seat().slot.lie_down();
        if !self.seat().has_mail() {
            let begun_ns = clock::now_ns();
            self.seat.counters.begin_idle(begun_ns);
            match at_source {
                true => self.sleep_at_source(until_ns),
                false => futex::wait(self.seat().slot.word(), ASLEEP, until_ns),
            }
            let now_ns = clock::now_ns();
            self.seat.counters.end_idle(now_ns);
            add(&self.seat.counters.slept_ns, now_ns - begun_ns);
        }
        self.seat().slot.get_up();
    }

    /// Sees what the wake from a sleep cost, and whether to poll would have been better.
    pub(super) fn learn_from_sleep(&self, begun_ns: u64, now_ns: u64) {
        // To poll memory brings no I/O, and no deadline sooner.
        if self.seat.slot.is_asleep() {
            return;
        }
        if let Some(cost_ns) = self.seat.wake_cost_ns(begun_ns, now_ns) {
            self.seat.counters.wake_cost.record(cost_ns);
            // By an eighth each time: one wake that met a busy machine says little.
            let before_ns = self.wake_cost_ns.get();
            self.wake_cost_ns.set(((before_ns * 7 + cost_ns) / 8).clamp(WAKE_COST_MIN_NS, WAKE_COST_MAX_NS));
        }
        if now_ns - begun_ns < 2 * self.wake_cost_ns.get() {
            self.spin_ns.set(self.wake_cost_ns.get());
        }
    }

    /// Sleeps where I/O ends the sleep too. For whatever reason it ends: the loop looks at everything.
    fn sleep_at_source(&self, sleep_ns: u64) {
        // SAFETY: I1, I2 - it runs no user code.
        unsafe { (*self.source.get()).as_mut().expect("fibers wait at it").sleep(sleep_ns) };
    }

    /// What an idle worker must not oversleep. The fences in `lie_down` and `enter_sleep` make these relaxed looks enough.
    pub(super) fn has_work(&self) -> bool {
        let group = self.group();
        self.seat().has_mail()
            || (group.has_work() && !(self.deferred.get() && group.idle.is_somebody_coming()))
            || group.has_errands()
            || self.owes_stacks()
            || (group.is_stopping() && (!self.wound_up.get() || (self.settled.get() == 0 && self.groups.movers() == 0)))
    }

    /// Gives idle stacks' pages back if it is time; says when to come again. By a worker with nothing to do.
    fn trim_when_due(&self) -> u64 {
        // SAFETY: I1, I2.
        let stacks = unsafe { &mut *self.stacks.get() };
        if stack::depot().dirty() == 0 && stacks.idle_at_most() <= STACKS_KEPT {
            self.trim_ns.set(u64::MAX);
        } else if self.trim_ns.get() == u64::MAX {
            self.trim_ns.set(clock::now_ns() + TRIM_PERIOD_NS);
        } else if passed(self.trim_ns.get()) {
            stacks.share(STACKS_KEPT);
            // Those that give their pages back are nobody's meanwhile.
            self.untold.set(true);
            self.trim_ns.set(stack::depot().trim_unused(clock::now_ns(), TRIM_PERIOD_NS));
        }
        self.trim_ns.get()
    }

    /// Whether its fibers have asked for what the kernel does not know of yet, or has done already.
    fn source_calls(&self) -> bool {
        // SAFETY: I1, I2.
        self.source_waits.get() != 0
            && unsafe { (*self.source.get()).as_ref().is_some_and(|source| source.unsent() != 0 || source.has_found()) }
    }

    /// Looks at the group's roam, if fibers wait there; whether one of them is this worker's to run. (Of others `has_work` tells.)
    fn finds_at_roam(&self) -> bool {
        if self.group().roam.has_waits() {
            self.look_at_roam();
        }
        self.has_own()
    }

    /// What a worker that goes to sleep does for the fibers that wait at the group's roam: it is the lookout if all others sleep, or nobody but it has looked since its last watch. One watches at a
    /// time: two would each take the other's looks for those of a worker that is not held.
    fn take_post(&self) -> Post {
        let roam = &self.group().roam;
        if !roam.is_unattended() {
            return Post::None;
        }
        let asleep = self.group().idle.sleeping().len() + self.group().duty.bench().len();
        let all_sleep = asleep + 1 >= self.group().seats().len();
        let alone = roam.looks() == self.roam_looks.get();
        if (all_sleep || alone) && roam.take_post() {
            let watches = roam.instance().and_then(|(fd, _)| self.with_source(|source| source.watch_roam(fd))?);
            if watches.is_ok() {
                return Post::Lookout;
            }
            roam.leave_post();
        }
        if !roam.is_deserted() {
            return Post::None;
        }
        self.roam_looks.set(roam.looks());
        roam.begin_watch();
        Post::Watcher
    }

    /// Ends what `take_post` began. If the worker has something to run, it calls another (`pass_on`).
    fn leave_post(&self, post: Post) {
        let roam = &self.group().roam;
        match post {
            Post::None => {}
            Post::Watcher => roam.end_watch(),
            Post::Lookout => {
                self.roam_due.set(true);
                roam.leave_post();
            }
        }
    }
}

/// When a worker gets up for the next of its `armed` deadlines, having done so `before_ns`.
fn alarm_at(wake_ns: u64, armed: usize, before_ns: u64) -> u64 {
    if armed <= ALARM_FEW { wake_ns } else { wake_ns.max(before_ns + ALARM_GAP_NS) }
}

/// The moment from which on the next gap counts, for a worker that was to get up at `alarm_ns` and did at `now_ns`: the first, so that it gets up at even distances, which are known ahead. Not if it is so late that the next gap would be none.
fn met_at(alarm_ns: u64, now_ns: u64) -> u64 {
    if now_ns < alarm_ns + ALARM_GAP_NS / 2 { alarm_ns.min(now_ns) } else { now_ns }
}

/// How long to poll after a poll of `spin_ns` was in vain.
fn less_spin_ns(spin_ns: u64) -> u64 {
    let half_ns = spin_ns / 2;
    if half_ns < SPIN_LEAST_NS { 0 } else { half_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_deadlines_are_met_exactly_and_dense_ones_together() {
        let (wake_ns, before_ns) = (1_000_020_000, 1_000_000_000);
        assert_eq!(alarm_at(wake_ns, 1, before_ns), wake_ns);
        assert_eq!(alarm_at(wake_ns, ALARM_FEW, before_ns), wake_ns);
        assert_eq!(alarm_at(wake_ns, ALARM_FEW + 1, before_ns), before_ns + ALARM_GAP_NS);
        assert_eq!(alarm_at(wake_ns + ALARM_GAP_NS, 100_000, before_ns), wake_ns + ALARM_GAP_NS);
        assert_eq!(alarm_at(u64::MAX, 0, before_ns), u64::MAX);
    }

    #[test]
    fn gaps_are_even_unless_a_worker_is_late_or_was_woken() {
        let alarm_ns = 1_000_000_000;
        assert_eq!(met_at(alarm_ns, alarm_ns), alarm_ns);
        assert_eq!(met_at(alarm_ns, alarm_ns + ALARM_GAP_NS / 2 - 1), alarm_ns);
        let late_ns = alarm_ns + ALARM_GAP_NS / 2;
        assert_eq!(met_at(alarm_ns, late_ns), late_ns);
        assert_eq!(met_at(alarm_ns, alarm_ns - 1), alarm_ns - 1);
    }
}
