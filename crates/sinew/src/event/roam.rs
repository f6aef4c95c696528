//! Where fibers that may move wait for I/O: one epoll instance for all workers of a group.
//!
//! A fiber that stays waits at its own worker's source, and for that worker. One that may move is not to stand behind a fiber that computes: whichever worker looks here gets it. (A ring cannot be
//! shared so: it answers the thread that asked.) Its deadlines are kept here too, under a lock, and the earliest of them is an alarm in the instance: to those who look it is one more thing that
//! has come. (In the timers of the worker where it waits, which that worker alone may touch, they would bind it to that one, and come late themselves if it is held.)
//! Fibers that may move and wait on a spare, for whatever it be, have their deadlines here too: it may sit out meanwhile.
//!
//! # Who looks
//! Every worker that runs fibers or polls, from time to time. Of those that sleep one, the *lookout*: it sleeps in its own source, which watches this instance too. When it has got up to run something,
//! one of the others is to *watch*: it sleeps for 0.3 ms at a time, and when nobody but it has looked meanwhile, it is the lookout. So a worker that is held by one fiber delays I/O by as much
//! or twice that, and a group that has much to do pays for a wake in 0.3 ms.
//!
//! Where a group has not all of its workers yet, and all that it has run something, one more is started to look (`Group::hire_lookout`): nobody could say later that they are held.
//!
//! # Invariants
//! I1. While fibers wait here and a worker sleeps, there is a lookout, or a worker that watches, or one that is up and on its way to become that: who has been any of these and runs fibers instead, or
//!     waits as the first, calls another (`must_call`); who lies down without a post looks once more (`is_deserted`). Their fences meet (`Idle::enter_sleep`).
//! I2. An armed deadline is that of a fiber that waits here, and which disarms it, under the lock, before it goes on, unless it was what ended the wait: so a deadline ends no other wait than its own (`state.rs`, I3).
//! I3. The alarm is set to the earliest deadline, or to an earlier moment: then it is in vain, and set anew.

use std::io;
use std::os::fd::RawFd;
use std::sync::OnceLock;

use super::epoll;
use super::instance::Instance;
use crate::base::atomic::{AtomicU64, AtomicUsize, Relaxed, SeqCst, fence};
use crate::base::list::List;
use crate::base::wheel::{Entry, Wheel};
use crate::fiber::Control;
use crate::fiber::state::Cause;
use crate::os::clock;
use crate::os::lock::Lock;

/// Events fetched by one call. Arbitrary; what is left is fetched by the next.
const EVENTS: usize = 64;

/// The instance of one group, and who looks after it.
pub(crate) struct Roam {
    open: OnceLock<Open>,
    /// Fibers that wait here, and that nobody has claimed for what has come or for their deadline.
    waits: AtomicUsize,
    /// How often somebody has looked.
    looks: AtomicU64,
    /// 1 while there is a lookout.
    lookout: AtomicUsize,
    watchers: AtomicUsize,
}

/// What is opened at the first wait.
struct Open {
    instance: Instance,
    deadlines: Lock<Deadlines>,
}

impl Open {
    fn new() -> io::Result<Self> {
        let instance = Instance::open()?;
        let alarm = epoll::Alarm::new(instance.fd())?;
        let deadlines = Deadlines { wheel: Wheel::boxed(clock::now_ns()), alarm, alarm_ns: u64::MAX };
        Ok(Self { instance, deadlines: Lock::new(deadlines) })
    }
}

/// The deadlines of fibers that wait here.
struct Deadlines {
    wheel: Box<Wheel>,
    alarm: epoll::Alarm,
    /// What the alarm is set to; `u64::MAX` if it is not.
    alarm_ns: u64,
}

// SAFETY: entries are touched under the lock alone (I2).
unsafe impl Send for Deadlines {}

impl Drop for Deadlines {
    fn drop(&mut self) {
        // A panic here while another is under way would end the process, and hide that one.
        debug_assert!(
            std::thread::panicking() || self.wheel.armed() == 0,
            "I2: {} deadlines of fibers that have gone on",
            self.wheel.armed()
        );
    }
}

impl Deadlines {
    /// Makes sure that the alarm goes off for a deadline (I3).
    fn watch(&mut self, deadline_ns: u64) {
        if deadline_ns < self.alarm_ns {
            self.alarm_ns = deadline_ns;
            self.alarm.set(Wheel::fires_ns(deadline_ns));
        }
    }

    /// The alarm has gone off: appends the fibers whose deadline ended their wait to `woken`. All that are due, under the lock: 10,000 readers in a scope with one time-out took 0.48 ms, in which no other worker begins
    /// or ends a wait with a deadline here; to run them takes far longer. In batches it would be no shorter by much: the wheel moves entries from level to level whole slots at a time.
    fn expire(&mut self, woken: &List<Control>) {
        self.wheel.advance(clock::now_ns(), |entry| {
            let control = entry.owner().cast::<Control>();
            // SAFETY: I2 - the fiber has not gone on, so its block is alive. F1 - once claimed it is ours, and in no list.
            unsafe {
                if let Some(claimed) = (*control).claim(Cause::TimedOut) {
                    woken.push(claimed.control.cast_mut());
                }
            }
        });
        self.alarm_ns = u64::MAX;
        self.watch(self.wheel.next_deadline_ns());
    }
}

impl Roam {
    pub(crate) fn new() -> Self {
        let zero = || AtomicUsize::new(0);
        Self { open: OnceLock::new(), waits: zero(), looks: AtomicU64::new(0), lookout: zero(), watchers: zero() }
    }

    /// The instance, and its number.
    ///
    /// # Errors
    /// If it could not be opened.
    pub(crate) fn instance(&self) -> io::Result<(RawFd, u64)> {
        let open = match self.open.get() {
            Some(open) => open,
            None => {
                let new = Open::new()?;
                self.open.get_or_init(|| new)
            }
        };
        Ok((open.instance.fd(), open.instance.number()))
    }

    /// Ends, at `deadline_ns`, the wait of the fiber that `entry` was made for.
    ///
    /// # Safety
    /// The fiber has begun a wait here. `entry` is not armed, and stays in place until the fiber [disarms](Self::disarm) it, which it does before it goes on.
    pub(crate) unsafe fn arm(&self, entry: &Entry, deadline_ns: u64) {
        let mut deadlines = self.deadlines().lock();
        // SAFETY: the caller's promise.
        unsafe { deadlines.wheel.arm(entry, deadline_ns) };
        deadlines.watch(deadline_ns);
    }

    /// Takes a deadline out, if it has not ended the wait.
    ///
    /// # Safety
    /// `entry` was armed here.
    pub(crate) unsafe fn disarm(&self, entry: &Entry) {
        // SAFETY: the caller's promise.
        unsafe { self.deadlines().lock().wheel.disarm(entry) };
    }

    fn deadlines(&self) -> &Lock<Deadlines> {
        &self.open.get().expect("a fiber waits at it").deadlines
    }

    /// Whether fibers wait here. A relaxed look.
    #[inline]
    pub(crate) fn has_waits(&self) -> bool {
        self.waits.load(Relaxed) != 0
    }

    /// A fiber waits here from now on, before a look can find it; whether it is the first, and [somebody must be called](Self::must_call) if nobody looks.
    #[must_use]
    pub(crate) fn begin_wait(&self) -> bool {
        self.waits.fetch_add(1, Relaxed) == 0
    }

    /// One does no longer. By who claims it for what has come or for its deadline, and by the fiber itself if anything else has ended its wait.
    pub(crate) fn end_wait(&self) {
        self.waits.fetch_sub(1, Relaxed);
    }

    /// Appends the fibers that something has come for, or whose deadline has, to `woken`; gives how often somebody has looked by now.
    pub(crate) fn look(&self, woken: &List<Control>) -> u64 {
        let Some(Open { instance, deadlines }) = self.open.get() else { return self.looks() };
        let before = woken.len();
        if epoll::look_once::<EVENTS>(instance.fd(), instance.number(), woken) {
            deadlines.lock().expire(woken);
        }
        self.waits.fetch_sub(woken.len() - before, Relaxed);
        self.looks.fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Relaxed)
    }

    /// Makes the caller, which goes to sleep, the lookout; `false` if there is one.
    #[must_use]
    pub(crate) fn take_post(&self) -> bool {
        self.lookout.compare_exchange(0, 1, Relaxed, Relaxed).is_ok()
    }

    /// The lookout has got up.
    pub(crate) fn leave_post(&self) {
        self.lookout.store(0, Relaxed);
        // SeqCst: meets the fence in `must_call`. Either one who waits as the first sees that nobody looks, or the caller sees that one waits (`Worker::pass_on`).
        fence(SeqCst);
    }

    /// Whether fibers wait here and nobody asleep is woken by what they wait for.
    pub(crate) fn is_unattended(&self) -> bool {
        self.has_waits() && self.lookout.load(Relaxed) == 0
    }

    pub(crate) fn begin_watch(&self) {
        self.watchers.fetch_add(1, Relaxed);
    }

    pub(crate) fn end_watch(&self) {
        self.watchers.fetch_sub(1, Relaxed);
        // SeqCst: as in `leave_post`.
        fence(SeqCst);
    }

    /// Whether, besides, nobody watches.
    pub(crate) fn is_deserted(&self) -> bool {
        self.is_unattended() && self.watchers.load(Relaxed) == 0
    }

    /// Whether a sleeper must be called to watch: by one who has left the post, or waits here as the first (I1).
    pub(crate) fn must_call(&self) -> bool {
        // SeqCst: meets the fence in `Idle::enter_sleep`. Either the caller sees who sleeps, or that one sees that nobody looks.
        fence(SeqCst);
        self.is_deserted()
    }
}
