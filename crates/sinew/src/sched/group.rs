//! What the workers of a group share.
//!
//! # Where a ready fiber is
//! - unstarted, spawned by a fiber: among its worker's children (a deque that the others steal from);
//! - unstarted, spawned from elsewhere, or when the children are too many: in the group's queue;
//! - started and settled, or bound: in its own worker's list, or in its inbox if another thread woke it;
//! - started, and may move: in the group's queue, or, where workers steal, in the deque of the worker that made it ready, or in its slot for the one woken last. That slot is
//!   no part of `has_work`: its worker must look there itself before it rests.
//!
//! # Invariants
//! I1. (law S1) A non-empty queue has a worker awake or a wake under way: whoever pushes announces, whoever lies down looks again, and
//!     whoever gets up for work of its own passes a claimed wake on.
//! I2. `closed` is set under the queue's lock by the last worker to leave, when the queue is empty; after it every push fails. So a
//!     queued fiber always has a worker to run or refuse it.

use std::any::Any;
use std::io;
use std::ops::Range;
use std::sync::atomic as plain;
use std::sync::{Arc, OnceLock, Weak};

use crate::base::atomic::{Acquire, AtomicU64, AtomicUsize, Relaxed, Release, SeqCst, fence};
use crate::base::list::List;
use crate::base::mask::{Mask, Set};
use crate::event::roam::Roam;
use crate::fiber::Control;
use crate::fiber::stack::{self, CLASSES, NoStack, Stack};
use crate::fiber::task::NeverRan;
use crate::os::clock;
use crate::os::lock::Lock;
use crate::sched::counters::{Counters, add};
use crate::sched::duty::Duty;
use crate::sched::groups::Groups;
use crate::sched::idle::{Claimed, Idle};
use crate::sched::quiet::Quiet;
use crate::sched::seat::{Seat, or_else, steal_one};
use crate::sched::settings::{Settings, Spin};
use crate::sched::worker::{Worker, here};

/// Stacks of the reserve beside one for each worker that was asked for: so many fibers that never got one may wait for each other in their closures' destructors.
const RESERVE_MORE: usize = 8;

/// How long after a thread could not be started the next is asked for: a start that fails costs some microseconds, and each turn of a busy worker may want one.
const GROW_PAUSE_NS: u64 = 50_000_000;

/// Workers that share a queue.
pub(crate) struct Group {
    /// Its place among the groups of its runtime.
    pub(crate) index: usize,
    pub(crate) settings: Settings,
    groups: Weak<Groups>,
    seats: Box<[&'static Seat]>,
    /// Workers that there are: the first of the seats.
    born: AtomicUsize,
    /// A worker is being started.
    growing: AtomicUsize,
    /// The system gave no thread for a worker: until then none is asked for.
    grows_after_ns: AtomicU64,
    pub(crate) idle: Idle,
    pub(crate) duty: Duty,
    /// Wakes by threads that are no workers of this group: as workers count theirs (`Counters`).
    pub(crate) spinner_wakes: AtomicU64,
    pub(crate) sleeper_wakes: AtomicU64,
    pub(crate) unserved: AtomicU64,
    /// Fibers spawned by threads that are no workers, and in batches.
    pub(crate) spawned_outside: AtomicU64,
    /// Whose turn it is among the groups of a node, for fibers that may go to any of them; that of its first group counts. (With one count for all nodes, two that ask by turns would each get the same group again and again; `Groups::any` counts by itself for the same reason.)
    turn: AtomicUsize,
    /// Fibers queued quietly that nobody has been woken for.
    pub(crate) quiet: Quiet,
    /// Groups, by bits, that have more than they can do: an idle worker of this group is to steal there.
    errands: AtomicU64,
    /// Groups, by bits, whose idle workers steal here.
    pub(crate) thieves: u64,
    /// Its workers that sleep for a while only, to look after what was woken last on others, of this group or of those that it steals from (`Worker::call_watcher`); and workers of other groups that do so for one of this.
    pub(crate) watchers: AtomicUsize,
    pub(crate) watchers_abroad: AtomicUsize,
    /// Thefts from each group of the runtime: tried and won.
    pub(crate) thefts: Box<[(AtomicU64, AtomicU64)]>,
    queue: Lock<Line>,
    queued: AtomicUsize,
    starved: Lock<Starved>,
    starved_count: AtomicUsize,
    /// Workers that have handed out what stacks they can spare since the last fiber starved.
    spared: Mask,
    /// For fibers that are ended without a stack of their own.
    reserve: Reserve,
    stopping: AtomicUsize,
    /// Where its fibers that may move wait for I/O.
    pub(crate) roam: Roam,
    /// What the timers of layers above keep for this group.
    pub(crate) timers: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Group {
    /// An error if there is no memory for the reserve stacks.
    pub(crate) fn new(index: usize, settings: Settings, thieves: u64, groups: Weak<Groups>) -> io::Result<Self> {
        let reserve = Reserve::new(settings.workers + RESERVE_MORE)?;
        let zero = || AtomicU64::new(0);
        let groups_known = settings.victims.iter().map(|&(victim, _)| victim + 1).max().unwrap_or(0);
        Ok(Self {
            index,
            groups,
            seats: (0..settings.workers + settings.spares).map(|_| Seat::take()).collect(),
            born: AtomicUsize::new(0),
            growing: AtomicUsize::new(0),
            grows_after_ns: AtomicU64::new(0),
            idle: Idle::new(),
            duty: Duty::new(),
            spinner_wakes: zero(),
            sleeper_wakes: zero(),
            unserved: zero(),
            spawned_outside: zero(),
            turn: AtomicUsize::new(0),
            quiet: Quiet::new(),
            errands: zero(),
            thieves,
            watchers: AtomicUsize::new(0),
            watchers_abroad: AtomicUsize::new(0),
            thefts: (0..groups_known).map(|_| (zero(), zero())).collect(),
            queue: Lock::new(Line { list: List::new(), pinned: List::new(), pinned_next: false, live_workers: 0, closed: false }),
            queued: AtomicUsize::new(0),
            starved: Lock::new(Starved { lists: [const { List::new() }; CLASSES], why: None }),
            starved_count: AtomicUsize::new(0),
            spared: Mask::new(),
            reserve,
            stopping: AtomicUsize::new(0),
            roam: Roam::new(),
            timers: OnceLock::new(),
            settings,
        })
    }

    /// Makes the seats this group's, once that has its place in memory.
    pub(crate) fn take_seats(&self) {
        self.seats.iter().for_each(|seat| seat.belong_to(self));
    }

    /// The workers that there are.
    #[inline]
    pub(crate) fn seats(&self) -> &[&'static Seat] {
        &self.seats[..self.born.load(Relaxed)]
    }

    /// One of the workers that there are, or the caller.
    pub(crate) fn seat(&self, index: usize) -> &'static Seat {
        self.seats[index]
    }

    /// Whether idle workers poll before they sleep.
    pub(crate) fn spins(&self) -> bool {
        self.settings.spin != Spin::Never
    }

    /// Whose turn it is among this group and its neighbours.
    pub(crate) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Relaxed)
    }

    /// The runtime, while there is one.
    pub(crate) fn groups(&self) -> Option<Arc<Groups>> {
        self.groups.upgrade()
    }

    /// The first workers of a new runtime are there: before their threads are, so that what is queued has somebody to count on (I2).
    pub(crate) fn begin(&self) {
        self.queue.lock().live_workers = self.settings.workers_min;
        self.born.store(self.settings.workers_min, Relaxed);
    }

    /// A worker more is there, at seat `index`; `false` if it comes too late. By its thread.
    #[must_use]
    pub(crate) fn join_late(&self, index: usize) -> bool {
        let mut queue = self.queue.lock();
        let welcome = !queue.closed;
        if welcome {
            queue.live_workers += 1;
            if self.is_spare(index) {
                // Before it counts as one that is there.
                self.duty.come_to_bench(index);
            }
            self.born.store(index + 1, Relaxed);
        }
        // Release: meets the Acquire in `grow`.
        self.growing.store(0, Release);
        // SeqCst: meets the fence in `Idle::claim`. Either who queues a fiber and finds nobody idle sees that one more may be started, or this worker's first looks at the queues see the fiber (`pass_rest_on`).
        fence(SeqCst);
        welcome
    }

    /// Workers that are to be on duty: as many as were asked for, and as many as are held, if these are more. The system divides the CPUs evenly among both, so what is short has half of them, however many compute.
    pub(crate) fn wanted(&self) -> usize {
        self.settings.workers.max(self.duty.held().len())
    }

    /// Whether more workers are on duty than are wanted.
    #[inline]
    pub(crate) fn has_surplus(&self) -> bool {
        self.duty.on(self.seats().len()) > self.wanted()
    }

    /// Whether worker `index` began as a spare.
    pub(crate) fn is_spare(&self, index: usize) -> bool {
        index >= self.settings.workers
    }

    /// Whether there may be more workers than there are, spares apart.
    #[inline]
    pub(crate) fn may_grow(&self) -> bool {
        self.born.load(Relaxed) < self.settings.workers
    }

    /// Starts a worker more if there may be one and none is being started; whether it does. (I2: the new one looks at the queues when it is there.)
    #[cold]
    fn grow(&self) -> bool {
        self.start_one_of(0..self.settings.workers)
    }

    /// Starts a spare, which sits out first, if there may be one more, all others are there, and none is being started.
    #[cold]
    pub(crate) fn start_spare(&self) {
        self.start_one_of(self.settings.workers..self.seats.len());
    }

    fn start_one_of(&self, seats: Range<usize>) -> bool {
        if !seats.contains(&self.born.load(Relaxed)) {
            return false;
        }
        let after_ns = self.grows_after_ns.load(Relaxed);
        if after_ns != 0 && clock::now_ns() < after_ns {
            return false;
        }
        // Acquire: meets the Release in `join_late`, so that no seat is given to two workers.
        if self.is_stopping() || self.growing.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            return false;
        }
        let next = self.born.load(Relaxed);
        // Another may have come meanwhile, as the last that there may be.
        let may_start = seats.contains(&next);
        let started = may_start && self.groups().is_some_and(|groups| groups.start_worker(self.index, next).is_ok());
        if may_start && !started {
            self.grows_after_ns.store(clock::now_ns() + GROW_PAUSE_NS, Relaxed);
        }
        if !started {
            self.growing.store(0, Release);
        }
        started
    }

    /// Queues a fiber and, unless that is to be `quiet`, wakes a worker for it; `false` if no worker is left (I2).
    ///
    /// # Safety
    /// The fiber is the caller's alone, and unstarted, or it may move and has left its stack.
    #[must_use]
    pub(crate) unsafe fn push(&self, control: *const Control, quiet: bool) -> bool {
        let one = List::new();
        // SAFETY: the caller's promise.
        unsafe { one.push(control.cast_mut()) };
        self.push_all(&one, quiet)
    }

    /// Queues fibers, in order, by one claim of the queue, and wakes workers for them by one call, or, if that is to be `quiet`, nobody before [`flush`](Self::flush); `false`, with
    /// `fibers` as it was, if no worker is left (I2). All of them are pinned, or none is.
    #[must_use]
    pub(crate) fn push_all(&self, fibers: &List<Control>, quiet: bool) -> bool {
        let count = fibers.len();
        let queued = self.queue_all(fibers, quiet);
        if queued && !quiet {
            self.tell(count);
        }
        queued
    }

    /// Queues a fiber, and wakes nobody: by a worker that comes to it next. Whether somebody has been told of what is queued before it, and comes, or is awake: not if nothing is, or some of it was queued quietly.
    ///
    /// # Safety
    /// As [`push`](Self::push); and the caller is a worker of this group, so that its queue is open (I2).
    pub(crate) unsafe fn put(&self, control: *const Control) -> bool {
        let one = List::new();
        // SAFETY: the caller's promise.
        unsafe { one.push(control.cast_mut()) };
        let queue = self.queue.lock();
        assert!(!queue.closed, "this worker is there");
        // Under the lock, where both are counted.
        let is_told = self.queued.load(Relaxed) != 0 && !self.quiet.has_any();
        self.append(&queue, &one);
        is_told
    }

    /// Queues fibers, and counts them if that is to be `quiet`; `false` if no worker is left (I2).
    fn queue_all(&self, fibers: &List<Control>, quiet: bool) -> bool {
        let count = fibers.len();
        let queue = self.queue.lock();
        if !queue.closed {
            self.append(&queue, fibers);
            if quiet {
                self.quiet.note(count);
            }
        }
        !queue.closed
    }

    fn append(&self, queue: &Line, fibers: &List<Control>) {
        let count = fibers.len();
        // SAFETY: F1 - the caller's fibers are alive.
        let pinned = unsafe { fibers.first().as_ref() }.is_some_and(Control::is_pinned);
        (if pinned { &queue.pinned } else { &queue.list }).append(fibers);
        self.queued.fetch_add(count, Relaxed);
    }

    /// Wakes workers for as many fibers as were queued quietly, but for no more than any worker may take now: those may have run since.
    pub(crate) fn flush(&self) {
        match self.quiet.take() {
            0 => {}
            count => match count.min(self.takeable()) {
                0 => {}
                left => self.tell(left),
            },
        }
    }

    /// Announces, and counts if nobody comes.
    fn tell(&self, count: usize) {
        if !self.announce(count) {
            self.count(|own| &own.unserved, &self.unserved, 1);
        }
    }

    /// Counts wakes, at the worker of this group that the caller is, else with the group: only what several threads write needs more than a load and a store.
    fn count(&self, own: fn(&Counters) -> &plain::AtomicU64, shared: &AtomicU64, n: usize) {
        match here().filter(|worker| std::ptr::eq(worker.group(), self)) {
            Some(worker) => add(own(&worker.seat().counters), n as u64),
            None => _ = shared.fetch_add(n as u64, Relaxed),
        }
    }

    /// Wakes as many idle workers as there are items just put where all may take them (I1): spinners first, then the lightest sleepers. If fewer are idle, one more worker is
    /// started, or that of another group called. `false` if nobody at all comes.
    #[inline]
    pub(crate) fn announce(&self, items: usize) -> bool {
        let claimed = self.idle.claim(items, |worker| self.seats[worker].settled());
        let somebody = self.pay(&claimed);
        let all = claimed.spinners + claimed.sleepers.len() >= items;
        (all || self.call_for_help()) || somebody
    }

    #[inline]
    fn call_for_help(&self) -> bool {
        (self.may_grow() && self.grow()) || (self.thieves != 0 && self.call_thief())
    }

    /// Calls an idle worker of another group that steals here; if there is none, each of these groups knows where to go when one becomes idle. It takes one fiber, and calls the next thief if
    /// more are left. Nobody is called if there is nothing that may leave.
    #[cold]
    pub(crate) fn call_thief(&self) -> bool {
        if !self.has_loot() {
            return false;
        }
        let send = |groups: &Groups| groups.thieves_of(self).any(|thieves| thieves.go_to(self.index));
        // A worker of this runtime holds it. Others count themselves in and out, by a word that all groups share: where all are busy each spawn would.
        match here().map(Worker::groups).filter(|groups| groups.all.get(self.index).is_some_and(|group| std::ptr::eq(group, self))) {
            Some(groups) => send(groups),
            None => self.groups().is_some_and(|groups| send(&groups)),
        }
    }

    /// Sends an idle worker to steal from group `victim`; `false` if none is idle, or somebody has been sent already.
    fn go_to(&self, victim: usize) -> bool {
        let errand = 1 << victim;
        // Who sees it set has a fence behind its push (`Idle::claim`), and who takes it one before its look at the victim's queues.
        if self.errands.load(Relaxed) & errand != 0 || self.errands.fetch_or(errand, Relaxed) & errand != 0 {
            return false;
        }
        self.call_one()
    }

    /// Wakes an idle worker, for an errand or for whatever else the caller knows of; `false` if none is idle. Its fence, and that of who lies down, make what it is for known to one of them.
    pub(crate) fn call_one(&self) -> bool {
        let claimed = self.idle.claim(1, |worker| self.seats[worker].settled());
        self.pay(&claimed)
    }

    /// Calls a sleeper to look after the roam, if nobody does (`roam.rs`, I1).
    pub(crate) fn call_lookout(&self) {
        if self.roam.must_call() && !self.idle.sleeping().is_empty() {
            self.call_one();
        }
    }

    /// Starts a worker more to look after the roam, if there may be one, nobody does, and nobody is idle who would: for one that is about to run something, which may take long.
    #[inline]
    pub(crate) fn hire_lookout(&self) {
        if self.may_grow() && self.roam.is_deserted() && !self.idle.is_anybody() {
            self.grow();
        }
    }

    /// Has somebody look, in a while, whether a fiber that was woken last at a worker of this group has been run, unless somebody will anyway: one of this group that sleeps; if none is idle, a new one, or one
    /// of a group that steals here. After a fence: see `Worker::call_watcher`.
    #[inline]
    pub(crate) fn call_watcher(&self, groups: &Groups) {
        if !self.lacks_watcher() {
            return;
        }
        if self.idle.sleeping().is_empty() {
            self.call_watcher_abroad(groups);
        } else {
            self.call_one();
        }
    }

    /// Whether nobody of this group will look by himself, and there is perhaps somebody who can be called.
    #[inline]
    pub(crate) fn lacks_watcher(&self) -> bool {
        !self.will_look() && (!self.idle.sleeping().is_empty() || self.may_grow() || self.thieves != 0)
    }

    /// As `call_watcher`, where nobody is idle.
    #[inline(never)]
    fn call_watcher_abroad(&self, groups: &Groups) {
        if self.is_watched_abroad() || (self.may_grow() && self.grow()) {
            return;
        }
        let comes = |thieves: &Group| thieves.will_look() || (!thieves.idle.sleeping().is_empty() && thieves.call_one());
        let _ = groups.thieves_of(self).any(comes);
    }

    /// Whether a worker of this group will look by itself for fibers that others do not come to: it does so in its sleep, when it has polled, or when it is there.
    fn will_look(&self) -> bool {
        self.is_watched() || !self.idle.spinning().is_empty() || self.idle.is_somebody_coming()
    }

    /// Whether a worker of this group sleeps for a while only, and looks then.
    pub(crate) fn is_watched(&self) -> bool {
        self.watchers.load(Relaxed) != 0
    }

    /// Whether one of another group does so for one of this.
    pub(crate) fn is_watched_abroad(&self) -> bool {
        self.watchers_abroad.load(Relaxed) != 0
    }

    /// The groups that a worker of this one was sent to, by bits.
    #[inline]
    pub(crate) fn take_errands(&self) -> u64 {
        if !self.has_errands() {
            return 0;
        }
        let errands = self.errands.swap(0, Relaxed);
        // SeqCst: meets the fence in `Idle::claim` of who found the errand set, and counts on it.
        fence(SeqCst);
        errands
    }

    /// Leaves errands that were taken, and not done, to others.
    pub(crate) fn leave_errands(&self, errands: u64) {
        if errands != 0 {
            self.errands.fetch_or(errands, Relaxed);
        }
    }

    #[inline]
    pub(crate) fn has_errands(&self) -> bool {
        self.errands() != 0
    }

    #[inline]
    pub(crate) fn errands(&self) -> u64 {
        self.errands.load(Relaxed)
    }

    /// Counts who was claimed and wakes the sleepers among them; whether there was anybody.
    #[inline]
    fn pay(&self, claimed: &Claimed) -> bool {
        if claimed.spinners != 0 {
            self.count(|own| &own.spinner_wakes, &self.spinner_wakes, claimed.spinners);
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
        self.count(|own| &own.sleeper_wakes, &self.sleeper_wakes, sleepers.len());
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
        self.call_one()
    }

    /// Moves the oldest of the group's queue to `taken`, and a worker's share of the rest, `most` in all.
    pub(crate) fn take(&self, most: usize, taken: &List<Control>) {
        let mut queue = self.queue.lock();
        queue.pinned_next = !queue.pinned_next;
        let pinned = !queue.pinned.is_empty() && (queue.list.is_empty() || queue.pinned_next);
        let list = if pinned { &queue.pinned } else { &queue.list };
        let share =
            (list.len() / self.seats().len().clamp(1, self.settings.workers)).clamp(1, if pinned { 1 } else { most }).min(list.len());
        for _ in 0..share {
            // SAFETY: F1 - popped, so it is ours.
            unsafe { taken.push(list.pop()) };
        }
        self.queued.fetch_sub(share, Relaxed);
    }

    /// Gives the oldest fiber that may leave the group to a thief of another one: of the queue, or of a worker that has not come to it; null if there is none.
    pub(crate) fn give_away(&self) -> *const Control {
        if self.queued() != 0 {
            let queue = self.queue.lock();
            let control = queue.list.pop();
            if !control.is_null() {
                // Under the lock, as all that count there.
                self.queued.fetch_sub(1, Relaxed);
                return control;
            }
        }
        let oldest_at = |seat: &&Seat| or_else(steal_one(&seat.children), || steal_one(&seat.moving));
        self.seats().iter().map(oldest_at).find(|control| !control.is_null()).unwrap_or(std::ptr::null_mut())
    }

    /// Whether there is work that any worker may take. A relaxed look: the fences of `idle` make it enough.
    pub(crate) fn has_work(&self) -> bool {
        self.queued.load(Relaxed) != 0 || self.has_at_seats()
    }

    /// Whether there is work that may leave the group. Under the queue's lock where that has some: what is pinned counts as queued, too.
    fn has_loot(&self) -> bool {
        self.has_at_seats() || (self.queued() != 0 && !self.queue.lock().list.is_empty())
    }

    fn has_at_seats(&self) -> bool {
        self.seats().iter().any(|seat| seat.children.len() != 0 || seat.moving.len() != 0)
    }

    /// Fibers in the group's queue.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Relaxed)
    }

    /// Fibers that wait for a stack.
    pub(crate) fn starved(&self) -> usize {
        self.starved_count.load(Relaxed)
    }

    /// Fibers that have not begun to run, as a look sees them, and those that may move and are ready.
    pub(crate) fn unstarted(&self) -> usize {
        self.takeable() + self.starved_count.load(Relaxed)
    }

    /// Those of them that any worker of the group may take.
    fn takeable(&self) -> usize {
        let at = |seat: &&Seat| seat.children.len() + seat.moving.len();
        self.queued() + self.seats().iter().map(at).sum::<usize>()
    }

    /// Puts an unstarted fiber aside for which there is no stack.
    ///
    /// # Safety
    /// The fiber is unstarted and the caller's alone.
    pub(crate) unsafe fn starve(&self, control: *const Control, why: &NoStack) {
        let mut starved = self.starved.lock();
        // SAFETY: the caller's promise.
        unsafe { starved.lists[(*control).class().index()].push(control.cast_mut()) };
        starved.why = Some(NeverRan::no_stack(why));
        self.starved_count.fetch_add(1, Relaxed);
    }

    /// Whether a fiber waits for a stack of the size numbered `class`.
    #[cold]
    pub(crate) fn starves(&self, class: usize) -> bool {
        !self.starved.lock().lists[class].is_empty()
    }

    #[inline]
    pub(crate) fn has_starved(&self) -> bool {
        self.starved_count.load(Relaxed) != 0
    }

    /// Whether `worker` has yet to see what it can spare for starved fibers, of whichever group.
    #[inline]
    pub(crate) fn owes_stacks(&self, worker: usize) -> bool {
        !self.spared.get().contains(worker)
    }

    /// Notes that `worker` has handed out what it can spare.
    pub(crate) fn note_spared(&self, worker: usize) {
        self.spared.insert(worker);
    }

    /// Has a worker that sleeps try once more for the fibers that starve here; if none does, whoever comes to it first.
    #[cold]
    pub(crate) fn ask_for_starved(&self) {
        // They owe a look now. The fences of their slots make that known to them.
        match self.idle.sleeping().iter().next() {
            Some(worker) => {
                let _ = self.spared.remove(worker);
                self.seats[worker].wake();
            }
            None => {
                self.forget_spared();
                self.seats().iter().for_each(|seat| seat.wake());
            }
        }
    }

    /// Every worker is to look once more what it can spare.
    pub(crate) fn forget_spared(&self) {
        self.spared.clear();
    }

    /// Whether every worker has handed out what it can spare.
    pub(crate) fn has_spared(&self) -> bool {
        self.spared.get().len() >= self.seats().len()
    }

    /// Takes the oldest fiber that waits for a stack of the size numbered `class`; null if there is none. It counts as starved until [`fed`](Groups::fed), so that nobody
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

    /// Started fibers of this group that stay at their worker and have not ended.
    pub(crate) fn settled(&self) -> usize {
        self.seats().iter().map(|seat| seat.settled()).sum()
    }

    /// Whether new fibers are refused and unstarted ones dropped.
    #[inline]
    pub(crate) fn is_stopping(&self) -> bool {
        // Acquire: meets the Release in `stop`.
        self.stopping.load(Acquire) != 0
    }

    /// Refuses new fibers. By [`Groups::stop`].
    pub(crate) fn stop(&self) {
        // Release: meets the Acquire in `is_stopping`.
        self.stopping.store(1, Release);
    }

    /// A worker with nothing left wants to end; `false` if the queue holds work after all (I2).
    #[must_use]
    pub(crate) fn retire(&self) -> bool {
        let mut queue = self.queue.lock();
        if !queue.list.is_empty() || !queue.pinned.is_empty() || self.has_starved() {
            return false;
        }
        queue.live_workers -= 1;
        queue.closed = queue.live_workers == 0;
        true
    }
}

impl Drop for Group {
    /// Its workers have left, or were never there: nothing is in the seats.
    fn drop(&mut self) {
        // The last one is used again first: spares, which may never have been used, come after all others.
        self.seats.iter().rev().for_each(|seat| seat.leave());
    }
}

struct Line {
    /// What any worker may take, also of another group.
    list: List<Control>,
    /// What must not leave the group.
    pinned: List<Control>,
    /// Which of the two is next, if both have some.
    pinned_next: bool,
    live_workers: usize,
    closed: bool,
}

// SAFETY: the fibers in the lists are unstarted, so they are `Send` closures, or may move, by their maker's promise; the lock lets one thread at a time in.
unsafe impl Send for Line {}

struct Starved {
    /// By size of the stack they want: one that must wait longer does not stand in the way of another size.
    lists: [List<Control>; CLASSES],
    why: Option<NeverRan>,
}

// SAFETY: as `Line`.
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
