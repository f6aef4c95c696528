//! Fibers that may move: where they wait for a worker, and how they leave the one they were on.
//!
//! One that leaves goes to the loop, which gives it away only then: nobody runs it before its registers are saved (law F3).

use std::cell::Cell;
use std::ptr;

use super::{Worker, here, passed};
use crate::base::atomic::{AcqRel, Acquire, Relaxed, Release, SeqCst, fence};
use crate::base::mask::WORKERS_MAX;
use crate::fiber::Control;
use crate::os::clock;
use crate::sched::counters::add;
use crate::sched::group::Group;
use crate::sched::groups::GROUPS_MAX;
use crate::sched::seat::{Seat, or_else, steal_one};
use crate::sched::settings::Queue;

/// Fibers woken last that run first, in a row. Arbitrary: a pair that talks stays together, and others wait for a few microseconds at most.
const NEXT_RUNS: u32 = 32;
/// How long the fiber that was woken last may wait for a worker that runs another before an idle one takes it. Arbitrary: so seldom that a pair that talks all day costs its watcher nothing to speak of.
pub(super) const WATCH_NS: u64 = 1_000_000;
/// The same for one of another group. Longer, since it stays there: a pair that talks is parted for good, and each of its words is a wake between groups. So it is more than the time for which the kernel keeps a worker from its CPU where that
/// is busy.
const ABROAD_NS: u64 = 10 * WATCH_NS;
/// Workers of a runtime, at most.
const PLACES: usize = GROUPS_MAX * WORKERS_MAX;

impl Worker {
    /// The fiber that was woken last on this worker and may move: its data is warm here. After some of them in a row the next one queues up like all others.
    pub(super) fn take_woken_last(&self) -> *const Control {
        if self.seat.next.load(Relaxed).is_null() {
            self.next_runs.set(0);
            return ptr::null();
        }
        // Acquire: meets the Release in `take_in`; though that was this thread, a thief may have had it meanwhile.
        let control = self.seat.next.swap(ptr::null_mut(), Acquire);
        let runs = self.next_runs.get() + 1;
        if control.is_null() || runs <= NEXT_RUNS {
            self.next_runs.set(runs);
            return control;
        }
        self.next_runs.set(0);
        // SAFETY: F1 - taken out, so it is ours.
        unsafe { self.push_moving(control) };
        ptr::null()
    }

    /// Takes a ready fiber of this group in that may move. By a fiber of this worker, or its loop.
    ///
    /// # Safety
    /// The fiber is the caller's, has left its stack, and is of this group.
    unsafe fn take_in(&self, control: *const Control) {
        let settings = &self.group().settings;
        // SAFETY: the caller's promise.
        unsafe {
            if shake(self.group(), control) {
                return;
            }
            if settings.queue == Queue::Shared || (*control).is_pinned() {
                let queued = self.group().push(control, false);
                assert!(queued, "this worker is there");
            } else if self.current.get().is_null() {
                self.push_moving(control);
            } else {
                // Release: meets the Acquire of who takes it. Nobody is woken to take it: this worker is about to. Only it puts fibers there, so an empty slot stays so, and a store will do.
                if self.seat.next.load(Relaxed).is_null() {
                    self.seat.next.store(control.cast_mut(), Release);
                } else {
                    let before = self.seat.next.swap(control.cast_mut(), AcqRel);
                    if !before.is_null() {
                        self.push_moving(before);
                    }
                }
                self.call_watcher();
            }
        }
    }

    /// Queues a ready fiber that may move at this worker, and wakes another one for it if this one has others to run.
    ///
    /// # Safety
    /// The fiber is the caller's, has left its stack, and is of this group, or may leave its own.
    unsafe fn push_moving(&self, control: *const Control) {
        let has_others = self.seat.moving.len() != 0 || self.runs_another_first();
        // SAFETY: the caller's promise.
        unsafe { self.put_moving(control) };
        if has_others {
            self.announce(1);
        } else {
            self.unannounced.set(true);
        }
    }

    /// As `push_moving`, and wakes nobody. Where there is no room it queues up in the group, and so do those that come after it, until nobody waits there: so order holds. There somebody is told of it in the end, if nobody was of those before it.
    ///
    /// # Safety
    /// As `push_moving`.
    pub(super) unsafe fn put_moving(&self, control: *const Control) {
        let spills = self.spills.get() && self.group().queued() != 0;
        if !spills && self.seat.moving.push(control.cast_mut()) {
            self.spills.set(false);
            return;
        }
        self.spills.set(true);
        add(&self.seat.counters.overflowed, 1);
        // SAFETY: the caller's promise.
        if !unsafe { self.group().put(control) } {
            self.unannounced.set(true);
        }
    }

    /// Whether this worker runs another fiber before it comes to one that is queued now.
    fn runs_another_first(&self) -> bool {
        !self.current.get().is_null() || !self.urgent.get().is_null() || !self.ready.is_empty()
    }

    /// Looks, as an idle worker, for one that has not come to the fiber that it woke last, and may be held by another, in its group and abroad: gives when it is to look again, if it watches any from now on. What it watched
    /// before, if that is as it was: it gets up for its own fibers, and polls, as often as it likes, and sees the end of the watch all the same.
    pub(super) fn keep_watch(&self) -> Option<u64> {
        if self.groups.movers() == 0 {
            return None;
        }
        let own = self.watched.keep(WATCH_NS, || self.stuck());
        let abroad = self.watched_abroad.keep(ABROAD_NS, || self.stuck_abroad());
        // One abroad, too, for so long at a time: who was woken last in this group counts on this worker as well.
        own.or_else(|| abroad.map(|_| clock::now_ns() + WATCH_NS))
    }

    /// Takes a fiber that this worker watches, if it has for long enough; whether it got one.
    pub(super) fn end_watch(&self) -> bool {
        [&self.watched, &self.watched_abroad].into_iter().any(|beat| beat.end().is_some_and(|suspect| self.take_stuck(suspect)))
    }

    /// A worker of this group that has not come to the fiber that it woke last, unless somebody watches already.
    pub(super) fn stuck(&self) -> Option<Suspect> {
        self.watched.choose(self.unwatched().filter(|group| self.is_own(group)).flat_map(|group| self.waiting_at(group)))
    }

    /// The same, of a group that this one steals from.
    pub(super) fn stuck_abroad(&self) -> Option<Suspect> {
        self.watched_abroad.choose(self.unwatched().filter(|group| !self.is_own(group)).flat_map(|group| self.waiting_at(group)))
    }

    fn is_own(&self, group: &Group) -> bool {
        ptr::eq(group, self.group())
    }

    /// The groups that this worker looks after while it is idle: its own, and, of those that it steals from, the ones in which nobody is idle; unless somebody watches them already.
    fn unwatched(&self) -> impl Iterator<Item = &Group> {
        let own = Some(self.group()).filter(|group| !group.is_watched());
        let abroad = self.group().settings.victims.iter().map(|&(victim, _)| &self.groups.all[victim]);
        own.into_iter().chain(abroad.filter(|group| !group.idle.is_anybody() && !group.is_watched_abroad()))
    }

    /// The other workers of a group that have not come to the fibers that they woke last.
    fn waiting_at<'a>(&self, group: &'a Group) -> impl Iterator<Item = (usize, &'static Seat)> + use<'a> {
        let (me, first) = (self.seat, group.index * WORKERS_MAX);
        let seats = group.seats().iter().enumerate().map(move |(index, &seat)| (first + index, seat));
        seats.filter(move |(_, seat)| !ptr::eq(*seat, me) && !seat.next.load(Relaxed).is_null())
    }

    /// Takes the fiber that a worker woke last, if that is still held: the last that a thief takes.
    pub(super) fn take_stuck(&self, suspect: Suspect) -> bool {
        if !suspect.is_held() {
            return false;
        }
        let control = suspect.take_next();
        self.count_theft(suspect, !control.is_null());
        if control.is_null() {
            return false;
        }
        // SAFETY: F1 - taken out, so it is ours. One that is pinned to its group is never in that place (`take_in`).
        unsafe { self.put_moving(control) };
        true
    }

    fn count_theft(&self, suspect: Suspect, won: bool) {
        if suspect.group() == self.group().index {
            add(&self.seat.counters.thefts, 1);
            add(&self.seat.counters.steals, u64::from(won));
        } else {
            let (tried, got) = &self.group().thefts[suspect.group()];
            tried.fetch_add(1, Relaxed);
            got.fetch_add(u64::from(won), Relaxed);
        }
    }

    /// This worker sleeps for a while only, and looks again then: nobody else needs to.
    pub(super) fn begin_watch(&self) {
        self.group().watchers.fetch_add(1, Relaxed);
        if let Some(group) = self.group_watched_abroad() {
            group.watchers_abroad.fetch_add(1, Relaxed);
        }
    }

    /// It has got up. It lies down again, with a look, or it [passes the watch on](Self::pass_watch_on), before anything that may take long.
    pub(super) fn leave_watch(&self) {
        self.group().watchers.fetch_sub(1, Relaxed);
        if let Some(group) = self.group_watched_abroad() {
            group.watchers_abroad.fetch_sub(1, Relaxed);
        }
    }

    fn group_watched_abroad(&self) -> Option<&Group> {
        self.watched_abroad.watch.get().map(|watch| &self.groups.all[watch.suspect.group()])
    }

    /// Takes a fiber from a worker that was held by one of its fibers at the last look, and is; then it looks at the next one. Idle workers take what another does not come to, but with
    /// settled fibers that are always ready none is ever idle. Null if there is none.
    #[cold]
    pub(super) fn rescue(&self) -> *const Control {
        let seats = self.group().seats();
        if let Some(suspect) = self.suspect.get().filter(Suspect::is_held) {
            add(&self.seat.counters.thefts, 1);
            let control = suspect.rob();
            if !control.is_null() {
                add(&self.seat.counters.steals, 1);
                return control;
            }
        }
        let next = self.suspect_next.get() % seats.len();
        self.suspect_next.set(next + 1);
        self.suspect.set((next != self.index).then(|| Suspect::of(self.group().index * WORKERS_MAX + next, seats[next])));
        ptr::null()
    }

    /// Takes what the others have queued that may move: this worker was held by one of its fibers, and so may they be. What waits there has waited for longer than what comes now. (`echo-hog` in a closed loop,
    /// p99 of the others: 26 ms without, 18 with; tokio 19.)
    #[cold]
    pub(super) fn relieve(&self) {
        let mut taken = 0;
        add(&self.seat.counters.thefts, 1);
        for seat in self.group().seats().iter().filter(|seat| !ptr::eq(**seat, self.seat)) {
            for _ in 0..seat.moving.len() {
                let control = steal_one(&seat.moving);
                if control.is_null() {
                    break;
                }
                taken += 1;
                // SAFETY: F1 - taken out, so it is ours.
                unsafe { self.put_moving(control) };
            }
        }
        if taken != 0 {
            add(&self.seat.counters.steals, 1);
            // Whoever was woken for them has perhaps found nothing while they were in nobody's queue (S1).
            self.announce(taken);
        }
    }

    /// Leaves `me`, which may move, for the loop: only once it has left its stack may another worker have it (F3). `ready` if it yields.
    ///
    /// # Safety
    /// As `leave`.
    pub(super) unsafe fn leave_moving(&self, me: &Control, ready: bool) {
        self.left.set(me);
        self.left_ready.set(ready);
        // A fiber that unwinds stays: std counts panics by thread.
        let was_bound = std::thread::panicking().then(|| me.set_bound(true));
        // SAFETY: the caller's promise.
        unsafe { self.go(me, self.back_to_loop()) };
        if let Some(was_bound) = was_bound {
            me.set_bound(was_bound);
        }
    }

    /// If a fiber that may move has come back to the loop, and left its stack: when it is ready, or has been called, others may have it from now on.
    pub(super) fn see_to_left(&self) {
        let control = self.left.replace(ptr::null());
        if control.is_null() {
            return;
        }
        // SAFETY: F1 - a fiber that has just left is its worker's, until `leave` says that its waker has it.
        unsafe {
            if self.left_ready.replace(false) {
                self.queue_again(control);
            } else if (*control).state.leave() {
                find_place(control);
            }
        }
    }

    /// Queues a fiber that may move and has yielded, behind all others.
    ///
    /// # Safety
    /// The fiber is the caller's, and has left its stack.
    unsafe fn queue_again(&self, control: *const Control) {
        let settings = &self.group().settings;
        // SAFETY: the caller's promise.
        unsafe {
            if (*control).is_bound() {
                self.ready.push(control.cast_mut());
            } else if shake(self.group(), control) {
                // It is another worker's now.
            } else if settings.queue == Queue::Stealing && !(*control).is_pinned() {
                // There is not more to do than before, but for a fiber that runs first and was not there.
                self.put_moving(control);
                self.tell_if_left(Some(&self.requeued));
            } else {
                // Nobody is woken for it if this worker looks there next.
                self.others_due.set(true);
                let is_told = self.group().put(control);
                self.tell_if_left((!is_told).then_some(&self.unannounced));
            }
        }
    }

    /// Sees to it that somebody looks, in a while, whether the fiber that was woken last here has been run: the one that runs now may compute for long, or block its thread.
    fn call_watcher(&self) {
        // SeqCst: meets the fences in `Idle::enter_sleep` and `Idle::arrive`, of this group or one that steals here, and that in `pass_watch_on`. Either this sees who sleeps, or that one sees the fiber and sleeps for a while
        // only. And if this counts on one that watches, polls or comes, that one lies down after this, and sees the fiber, or runs something, and passes the watch on.
        fence(SeqCst);
        self.group().call_watcher(&self.groups);
    }

    /// Calls another worker in place of this one, which was idle and might have seen that a third is held, and which is about to run something.
    pub(super) fn pass_watch_on(&self) {
        if self.groups.movers() == 0 {
            return;
        }
        // SeqCst: meets the fence in `call_watcher`. Either who woke a fiber sees that this worker neither watches nor polls, or this one sees the fiber. It meets that in `Idle::enter_sleep`, too: one that left the
        // watch to this worker, or to the group in which this one was the last that was idle, is seen here.
        fence(SeqCst);
        let is_left = |group: &&Group| group.lacks_watcher() && self.waiting_at(group).next().is_some();
        self.unwatched().filter(is_left).for_each(|group| group.call_watcher(&self.groups));
    }

    /// A fiber that may move was queued again: others are told if this worker runs another first, now or, with a `mark`, in the end.
    fn tell_if_left(&self, mark: Option<&Cell<bool>>) {
        if self.runs_another_first() {
            self.announce(1);
        } else if let Some(mark) = mark {
            mark.set(true);
        }
    }

    /// Wakes another worker for a fiber that may move, if this one was about to take it and runs another first.
    #[inline]
    pub(super) fn announce_left(&self) {
        let is_left = self.unannounced.replace(false) | self.requeued.replace(false);
        if is_left && (self.seat.moving.len() != 0 || self.group().queued() != 0) {
            self.announce(1);
        }
    }
}

/// What an idle worker looks after: the fiber that a suspect woke last, which it takes at that time if the suspect is held until then.
#[derive(Clone, Copy)]
struct Watch {
    suspect: Suspect,
    until_ns: u64,
}

/// The workers that an idle one looks after, by turns: one that always has a fiber that it woke last, and runs them, is not to hide another.
pub(super) struct Beat {
    watch: Cell<Option<Watch>>,
    /// Whom to watch next, by its place.
    next: Cell<usize>,
}

impl Beat {
    pub(super) fn new(next: usize) -> Self {
        Self { watch: Cell::new(None), next: Cell::new(next) }
    }

    /// Goes on with the watch that there is while its suspect is stuck, else with one of `another` for so long; gives its end.
    fn keep(&self, for_ns: u64, another: impl FnOnce() -> Option<Suspect>) -> Option<u64> {
        let before = self.watch.get().filter(|watch| watch.suspect.is_stuck());
        let watch = before.or_else(|| another().map(|suspect| Watch { suspect, until_ns: clock::now_ns() + for_ns }));
        self.watch.set(watch);
        watch.map(|watch| watch.until_ns)
    }

    /// Whom it has watched for long enough, if it has; it does no longer.
    fn end(&self) -> Option<Suspect> {
        let watch = self.watch.get().filter(|watch| passed(watch.until_ns))?;
        self.watch.set(None);
        Some(watch.suspect)
    }

    /// The next of those that wait.
    fn choose(&self, waiting: impl Iterator<Item = (usize, &'static Seat)>) -> Option<Suspect> {
        let (place, seat) = waiting.min_by_key(|(place, _)| place.wrapping_sub(self.next.get()) % PLACES)?;
        self.next.set(place + 1);
        Some(Suspect::of(place, seat))
    }
}

/// A worker that may be held by one of its fibers, which computes or blocks the thread: it had come so far when it was first seen.
#[derive(Clone, Copy)]
pub(super) struct Suspect {
    /// Its group and its place there, as one number.
    pub(super) place: usize,
    seat: &'static Seat,
    progress: u64,
}

impl Suspect {
    fn of(place: usize, seat: &'static Seat) -> Self {
        Self { place, seat, progress: seat.counters.progress() }
    }

    fn group(&self) -> usize {
        self.place / WORKERS_MAX
    }

    /// Whether it has come no further since, and has not run the fiber that it woke last.
    fn is_stuck(&self) -> bool {
        !self.seat.next.load(Relaxed).is_null() && self.is_held()
    }

    /// Whether it has come no further since. A relaxed look: if it has just done so, a fiber is taken that it would have come to, and that is all.
    fn is_held(&self) -> bool {
        self.seat.counters.progress() == self.progress
    }

    /// The fiber that it woke last, if that has not run.
    fn take_next(&self) -> *mut Control {
        if self.seat.next.load(Relaxed).is_null() {
            return ptr::null_mut();
        }
        // Acquire: meets the Release in `take_in`.
        self.seat.next.swap(ptr::null_mut(), Acquire)
    }

    /// The oldest of what it has that any worker may take; null if it has nothing.
    fn rob(&self) -> *mut Control {
        let queued = or_else(steal_one(&self.seat.moving), || steal_one(&self.seat.children));
        or_else(queued, || self.take_next())
    }
}

/// Puts a ready fiber that may move where a worker finds it.
///
/// # Safety
/// The fiber is the caller's, and has left its stack.
pub(super) unsafe fn find_place(control: *const Control) {
    // SAFETY: the caller's promise; seats are never freed, and a group lives while any of its fibers does.
    unsafe {
        let home = (*control).home().cast::<Seat>();
        let group = &*(*home).group();
        match here() {
            Some(worker) if (*control).is_bound() && ptr::eq(worker.seat(), home) => worker.ready.push(control.cast_mut()),
            _ if (*control).is_bound() => (*home).deliver(control),
            Some(worker) if ptr::eq(worker.group(), group) => worker.take_in(control),
            _ => {
                // Until the push is over: the fiber may have ended by then, and its runtime with it.
                let _kept = group.groups();
                if !shake(group, control) {
                    let queued = group.push(control, false);
                    assert!(queued, "no worker leaves before the last fiber that may move");
                }
            }
        }
    }
}

/// Where fibers are shaken: gives one that may move to the worker after its own, if there is another; it is to show at once whether it bears that. Counted from its home, not from its waker: two that wake each other would go round and
/// meet where they were.
///
/// # Safety
/// The fiber is the caller's, has left its stack, is of this group and not bound.
unsafe fn shake(group: &Group, control: *const Control) -> bool {
    if !group.settings.shakes {
        return false;
    }
    let seats = group.seats();
    if seats.len() < 2 || group.is_stopping() {
        return false;
    }
    // SAFETY: the caller's promise.
    let home = unsafe { (*control).home().cast::<Seat>() };
    let place = seats.iter().position(|seat| ptr::eq(*seat, home)).expect("a fiber's home is one of its group's workers");
    let to = seats[(place + 1) % seats.len()];
    // SAFETY: the caller's promise; its new home is where it is delivered to.
    unsafe {
        (*control).move_to(ptr::from_ref(to).cast());
        to.deliver(control);
    }
    true
}
