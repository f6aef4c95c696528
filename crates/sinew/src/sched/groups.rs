//! All groups of one runtime, and what they share.
//!
//! Foreground groups come first, then background groups. Whoever holds an `Arc` of this holds all of them; a group knows its runtime weakly.

use std::io;
use std::sync::{Arc, Weak};

use crate::base::atomic::{AcqRel, Acquire, AtomicUsize, Relaxed, SeqCst, fence};
use crate::event::source::Io;
use crate::fiber::stack::NoStack;
use crate::fiber::state::Cause;
use crate::fiber::{self, Control};
use crate::os::lock::Lock;
use crate::os::thread;
use crate::os::topology::Topology;
use crate::sched::group::Group;
use crate::sched::pool::Pool;
use crate::sched::seat::Seat;
use crate::sched::settings::Settings;
use crate::sched::worker::make_ready;

/// Groups of a runtime, at most: they are the bits of a word.
pub(crate) const GROUPS_MAX: usize = 64;

/// What a program wants to be done on its workers' threads.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) start: Option<Arc<dyn Fn() + Send + Sync>>,
    pub(crate) stop: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// Where workers may run.
#[derive(Default)]
pub(crate) struct Binding {
    /// The CPUs of each worker of each group, if it is bound to some.
    pub(crate) cpus: Vec<Vec<Option<Vec<usize>>>>,
    pub(crate) machine: Topology,
}

/// Starts the thread of a worker: of this group, at this seat.
pub(crate) type StartWorker = fn(&Arc<Groups>, usize, usize) -> io::Result<()>;

/// The groups of one runtime.
pub(crate) struct Groups {
    pub(crate) all: Box<[Group]>,
    /// How many of them are foreground groups.
    pub(crate) foreground: usize,
    /// How its fibers do I/O.
    pub(crate) io: Io,
    /// Threads for what blocks.
    pub(crate) pool: Arc<Pool>,
    /// Fibers that wait for something known to be under way outside: a job of the pool. Written by the fibers themselves.
    pub(crate) outside: AtomicUsize,
    /// Started fibers that may move and have not ended: no worker leaves before them.
    movers: AtomicUsize,
    /// Unstarted fibers that found no stack.
    starving: AtomicUsize,
    /// Whose turn it is among all foreground groups, for fibers that may go anywhere. Those that are to be near have counts of their own, by node: with one for both, two that ask by turns would each get the same group again and again.
    turn: AtomicUsize,
    /// The same for those that are to be near, and are at no group's node.
    turn_of_strays: AtomicUsize,
    start_worker: StartWorker,
    pub(crate) hooks: Hooks,
    binding: Binding,
    exit: Lock<Exit>,
}

/// Who waits for the workers' threads.
struct Exit {
    threads: usize,
    waiter: *const Control,
}

// SAFETY: the waiter is claimed under the lock only, while it waits.
unsafe impl Send for Exit {}

/// What one that waits for the workers' threads does next.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum AwaitExit {
    /// Wait, then call [`Groups::forget_waiter`].
    Wait,
    /// All have left.
    Done,
}

impl Groups {
    /// An error if there is no memory for the reserve stacks.
    pub(crate) fn new(
        each: Vec<Settings>,
        io: Io,
        pool: Pool,
        start_worker: StartWorker,
        hooks: Hooks,
        binding: Binding,
    ) -> io::Result<Arc<Self>> {
        let mut refusal = None;
        let groups = Arc::new_cyclic(|weak: &Weak<Groups>| {
            let foreground = each.iter().filter(|settings| !settings.background).count();
            let mut thieves = vec![0; each.len()];
            for (thief, settings) in each.iter().enumerate() {
                settings.victims.iter().for_each(|&(victim, _)| thieves[victim] |= 1 << thief);
            }
            let each = each.into_iter().zip(thieves).enumerate();
            let all = each.map(|(index, (settings, thieves))| Group::new(index, settings, thieves, weak.clone())).collect();
            Self {
                all: Result::unwrap_or_else(all, |error| {
                    refusal = Some(error);
                    Box::default()
                }),
                foreground,
                io,
                pool: Arc::new(pool),
                outside: AtomicUsize::new(0),
                movers: AtomicUsize::new(0),
                starving: AtomicUsize::new(0),
                turn: AtomicUsize::new(0),
                turn_of_strays: AtomicUsize::new(0),
                start_worker,
                hooks,
                binding,
                exit: Lock::new(Exit { threads: 0, waiter: std::ptr::null() }),
            }
        });
        match refusal {
            Some(error) => Err(error),
            None => {
                groups.all.iter().for_each(Group::take_seats);
                Ok(groups)
            }
        }
    }

    /// All workers that there are.
    pub(crate) fn seats(&self) -> impl Iterator<Item = &'static Seat> + Clone {
        self.all.iter().flat_map(Group::seats).copied()
    }

    /// Whether a fiber with this home is of this runtime.
    pub(crate) fn has(&self, home: *const ()) -> bool {
        // SAFETY: seats are never freed, and a home is null or one of them.
        unsafe { home.cast::<Seat>().as_ref() }.is_some_and(|seat| self.all.as_ptr_range().contains(&seat.group()))
    }

    /// The CPUs that a worker is bound to, if it is.
    pub(crate) fn cpus_of(&self, group: usize, seat: usize) -> Option<&[usize]> {
        self.binding.cpus.get(group)?.get(seat)?.as_deref()
    }

    /// The CPUs that the process could use when the runtime was built.
    pub(crate) fn cpus_of_process(&self) -> &[usize] {
        &self.binding.machine.affinity
    }

    /// As `cpus_of_process`, if a thread of this runtime may run elsewhere than the process may.
    pub(crate) fn cpus_where_bound(&self) -> Option<&[usize]> {
        self.binds().then(|| self.cpus_of_process())
    }

    /// The CPUs of threads that workers start, and that are none, if workers are bound: else each may run where the one may that starts it.
    pub(crate) fn cpus_of_helpers(&self) -> Option<Vec<usize>> {
        self.binds().then(|| self.binding.machine.cpus.iter().map(|cpu| cpu.id).collect())
    }

    fn binds(&self) -> bool {
        self.binding.cpus.iter().flatten().any(Option::is_some)
    }

    /// A foreground group at the NUMA node that the caller runs at, if there is one: by turns.
    pub(crate) fn nearest(&self) -> &Group {
        let bound = self.foreground > 1 && self.all[0].settings.node.is_some();
        self.nearest_to(if bound { thread::cpu() } else { None })
    }

    /// As `nearest`, for one that runs on `cpu`. At a node that has no group, and where nobody knows which it is, all are alike.
    pub(crate) fn nearest_to(&self, cpu: Option<usize>) -> &Group {
        let foreground = &self.all[..self.foreground];
        if let [only] = foreground {
            return only;
        }
        let node = cpu.and_then(|cpu| self.binding.machine.node_of(cpu));
        let near = |group: &&Group| group.settings.node.is_none() || group.settings.node == node;
        match foreground.iter().filter(near).count() {
            0 => self.next_by(&self.turn_of_strays),
            count => {
                let first = foreground.iter().find(near).expect("so many were counted");
                foreground.iter().filter(near).nth(first.next_turn() % count).expect("so many were counted")
            }
        }
    }

    /// A foreground group for a fiber that may be anywhere: by turns.
    pub(crate) fn any(&self) -> &Group {
        self.next_by(&self.turn)
    }

    /// The foreground group whose turn it is by this count.
    fn next_by(&self, turn: &AtomicUsize) -> &Group {
        &self.all[turn.fetch_add(1, Relaxed) % self.foreground]
    }

    /// The groups whose workers steal from this one.
    pub(crate) fn thieves_of(&self, group: &Group) -> impl Iterator<Item = &Group> {
        self.all.iter().filter(move |thieves| group.thieves & 1 << thieves.index != 0)
    }

    /// Starts the thread of a worker, which is to [leave](Self::thread_left).
    pub(crate) fn start_worker(self: &Arc<Self>, group: usize, seat: usize) -> io::Result<()> {
        self.exit.lock().threads += 1;
        let started = (self.start_worker)(self, group, seat);
        if started.is_err() {
            self.thread_left().into_iter().for_each(make_ready);
        }
        started
    }

    /// Threads of workers that have not left.
    pub(crate) fn threads(&self) -> usize {
        self.exit.lock().threads
    }

    /// A worker's thread has left all behind; whom to make ready for it.
    pub(crate) fn thread_left(&self) -> Option<fiber::Claimed> {
        let mut exit = self.exit.lock();
        exit.threads -= 1;
        let waiter = if exit.threads == 0 { std::mem::replace(&mut exit.waiter, std::ptr::null()) } else { std::ptr::null() };
        // SAFETY: a waiter forgets itself under this lock before it goes on, so it still waits, or its deadline has just ended its wait.
        unsafe { waiter.as_ref() }?.claim(Cause::Woken)
    }

    /// Makes `me`, which has begun a wait, the one to be woken when all threads have left. One at a time.
    pub(crate) fn await_exit(&self, me: &Control) -> AwaitExit {
        let mut exit = self.exit.lock();
        if exit.threads == 0 {
            return AwaitExit::Done;
        }
        exit.waiter = me;
        AwaitExit::Wait
    }

    /// Ends what `await_exit` began; whether all threads have left.
    pub(crate) fn forget_waiter(&self) -> bool {
        let mut exit = self.exit.lock();
        exit.waiter = std::ptr::null();
        exit.threads == 0
    }

    /// Puts an unstarted fiber of `group` aside for which there is no stack, and has every worker look whether it can spare one.
    ///
    /// # Safety
    /// The fiber is unstarted and the caller's alone.
    #[cold]
    pub(crate) unsafe fn starve(&self, group: &Group, control: *const Control, why: &NoStack) {
        // SAFETY: the caller's promise.
        unsafe { group.starve(control, why) };
        self.starving.fetch_add(1, Relaxed);
        self.all.iter().for_each(Group::forget_spared);
        self.wake_all();
    }

    /// A starved fiber has got a stack.
    pub(crate) fn fed(&self, group: &Group) {
        group.fed();
        self.starving.fetch_sub(1, Relaxed);
    }

    #[inline]
    pub(crate) fn has_starved(&self) -> bool {
        self.starving.load(Relaxed) != 0
    }

    /// Whether fibers starve although every worker has handed out what it can spare.
    pub(crate) fn starves_for_good(&self) -> bool {
        self.has_starved() && self.all.iter().all(Group::has_spared)
    }

    /// Has a worker of each other group look after its own starved fibers: nothing may be left that could give one a stack.
    #[cold]
    pub(crate) fn pass_stacks_on(&self, from: &Group) {
        self.starving_beside(Some(from)).for_each(|group| group.seats()[0].wake());
    }

    fn starving_beside(&self, from: Option<&Group>) -> impl Iterator<Item = &Group> {
        self.all.iter().filter(move |group| group.has_starved() && !from.is_some_and(|from| std::ptr::eq(*group, from)))
    }

    /// Has a worker of each group, but not of `from`, try for its own starved fibers: stacks were handed out, and some may be left. Only for that: two groups that asked each other for
    /// no reason would never rest.
    #[inline]
    pub(crate) fn ask_for_starved(&self, from: Option<&Group>) {
        if self.has_starved() {
            self.starving_beside(from).for_each(Group::ask_for_starved);
        }
    }

    /// Whether all workers have lain down with no deadline, none is being woken, and neither a job of the pool nor I/O will wake one, so that nothing inside can make anything ready. By a
    /// worker that has lain down itself: of the last two at least one sees the other, and what its fibers counted, by the fences of their slots.
    pub(crate) fn all_rest_for_good(&self) -> bool {
        let waits_outside = || self.outside.load(Relaxed) != 0 || self.all.iter().any(|group| group.roam.has_waits());
        self.seats().all(|seat| !seat.has_mail() && seat.rests_for_good()) && !waits_outside()
    }

    /// Started fibers that have not ended.
    pub(crate) fn started(&self) -> usize {
        self.seats().map(Seat::settled).sum::<usize>() + self.movers()
    }

    /// Started fibers that may move and have not ended.
    pub(crate) fn movers(&self) -> usize {
        self.movers.load(Relaxed)
    }

    /// Whether there are none, for sure: a worker that leaves must not miss one.
    pub(crate) fn has_no_movers(&self) -> bool {
        // An addition reads the last value there is; a load might not. AcqRel: meets that in `mover_goes`; if this comes first, that sees the shutdown that the caller has seen.
        // Its Release meets the Acquire in `mover_comes` too, and carries the same.
        self.movers.fetch_add(0, AcqRel) == 0
    }

    /// One more of them.
    pub(crate) fn mover_comes(&self) {
        // Acquire: meets the Release in `has_no_movers`: who starts one after a worker has left knows why that has.
        self.movers.fetch_add(1, Acquire);
        // SeqCst: meets the fence in `stop`. Either the shutdown sees the fiber, or its worker sees the shutdown and cancels it.
        fence(SeqCst);
    }

    /// One of them has ended; the last one lets the workers of a runtime that ends go.
    pub(crate) fn mover_goes(&self) {
        // AcqRel: meets that in `has_no_movers`. (With Relaxed both could miss: loom found it.)
        if self.movers.fetch_sub(1, AcqRel) == 1 && self.is_stopping() {
            self.wake_all();
        }
    }

    /// Wakes workers for what was queued quietly.
    pub(crate) fn flush(&self) {
        self.all.iter().for_each(Group::flush);
    }

    /// Whether there is work that any worker may take.
    pub(crate) fn has_work(&self) -> bool {
        self.all.iter().any(Group::has_work)
    }

    /// Fibers that have not begun to run, as a look sees them.
    pub(crate) fn unstarted(&self) -> usize {
        self.all.iter().map(Group::unstarted).sum()
    }

    #[inline]
    pub(crate) fn is_stopping(&self) -> bool {
        self.all[0].is_stopping()
    }

    /// Refuses new fibers and lets workers leave when theirs have ended.
    pub(crate) fn stop(&self) {
        self.all.iter().for_each(Group::stop);
        // SeqCst: meets the fence in `mover_comes`.
        fence(SeqCst);
        self.wake_all();
        self.pool.close().into_iter().for_each(make_ready);
    }

    fn wake_all(&self) {
        self.seats().for_each(Seat::wake);
    }
}
