//! `Mutex`: lock_api's types over our lock, under std's and DESIGN's names.

use std::fmt;
use std::time::{Duration, Instant};

use lock_api::GuardNoSend;

use super::raw_mutex::RawMutex;
use crate::base::bomb::Bomb;
use crate::os::clock;
use crate::rt::wait::{Cut, Me};

// SAFETY: the word lets one owner in at a time (`raw_mutex.rs`).
unsafe impl lock_api::RawMutex for RawMutex {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api asks for it: a fresh lock per use")]
    const INIT: Self = RawMutex::unlocked();
    type GuardMarker = GuardNoSend;

    #[inline]
    #[track_caller]
    fn lock(&self) {
        or_abort(|| self.take());
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.try_take()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.release();
    }

    fn is_locked(&self) -> bool {
        self.is_taken()
    }
}

// SAFETY: as above. A bump refuses to wait while it still has the lock.
unsafe impl lock_api::RawMutexFair for RawMutex {
    unsafe fn unlock_fair(&self) {
        self.release_fair();
    }

    #[track_caller]
    unsafe fn bump(&self) {
        if self.is_waited_for() {
            let _may_wait = Me::to_wait();
            self.release_fair();
            self.take();
        }
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawMutexTimed for RawMutex {
    type Duration = Duration;
    type Instant = Instant;

    #[track_caller]
    fn try_lock_for(&self, timeout: Duration) -> bool {
        // Not before those who wait, as one that does not wait at all: over and over it would keep them from it for ever.
        self.try_take_free() || if timeout.is_zero() { self.try_take() } else { self.take_until(clock::deadline_ns(timeout)) }
    }

    #[track_caller]
    fn try_lock_until(&self, deadline: Instant) -> bool {
        self.try_lock_for(deadline.saturating_duration_since(Instant::now()))
    }
}

/// Locks on behalf of lock_api, which takes it for granted that the lock is had then: a guard that unlocked for a while would, when this panics, unlock what another has. So where a lock must not be
/// waited for (`no_suspend`), that ends the process; `Mutex::lock` and its like, which have given no guard yet, panic.
#[inline]
#[track_caller]
pub(super) fn or_abort<T>(lock: impl FnOnce() -> T) -> T {
    let bomb = Bomb("a guard that was unlocked for a while could not be locked again, since nothing may be waited for here");
    let locked = lock();
    bomb.defuse();
    locked
}

/// Proof that a [`Mutex`] is locked; dropping it unlocks. As parking_lot's: `MutexGuard::map`, `unlocked`, `unlock_fair`, `bump` are there.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;

/// A [`MutexGuard`] that gives a part of the value.
pub type MappedMutexGuard<'a, T> = lock_api::MappedMutexGuard<'a, RawMutex, T>;

/// A value that one fiber, or plain thread, at a time may use.
///
/// As [`std::sync::Mutex`], without poisoning: a panic while it is locked unlocks it. A fiber that waits for it lets others of its worker run; a plain thread sleeps. A guard may be held
/// while its fiber suspends: others then wait for as long. It can be a `static`.
///
/// # Fairness
/// Who unlocks wakes one that waits, which then tries like any other. It may be overtaken by those who run meanwhile, for some microseconds; then they queue behind it. For a tenth of a millisecond
/// waiters of the same worker are preferred; else the one that has waited longest is next. One that has waited for half a millisecond, and finds it locked when it is woken, is given it by the next
/// unlock. `MutexGuard::unlock_fair` gives it to the one that has waited longest at once.
///
/// If the worker of the woken one computes, or is blocked by a system call, others wait for it for a millisecond or so: then one of another worker, or a thread, has the mutex. (So a held worker can cost the others a millisecond for each of its fibers that is woken.)
/// Let long computations yield all the same, and leave what blocks to [`blocking`](crate::blocking): fibers of that worker wait for it.
///
/// # Suspends
/// `lock` and `lock_timeout` do, while another has it. They are no [cancel points](crate::cancelled).
///
/// # Examples
/// ```
/// static COUNT: sinew::sync::Mutex<u32> = sinew::sync::Mutex::new(0);
/// sinew::scope(|s| {
///     for _ in 0..100 {
///         s.spawn(|| *COUNT.lock() += 1);
///     }
/// });
/// assert_eq!(*COUNT.lock(), 100);
/// ```
#[derive(Default)]
pub struct Mutex<T: ?Sized>(lock_api::Mutex<RawMutex, T>);

impl<T> Mutex<T> {
    /// An unlocked mutex.
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(lock_api::Mutex::new(value))
    }

    /// The value.
    #[inline]
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until nobody else has it, and locks it.
    ///
    /// One that locks it again while it holds it waits for ever.
    ///
    /// # Suspends
    /// Yes, while another has it. No cancel point.
    ///
    /// # Panics
    /// If it has to wait inside [`no_suspend`](crate::no_suspend).
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        // SAFETY: locked just now, and the guard, the one proof of it, unlocks.
        unsafe {
            self.0.raw().take();
            self.0.make_guard_unchecked()
        }
    }

    /// Locks it if nobody else has it. It goes before those who wait: over and over, it can keep them from it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }

    /// As [`lock`](Self::lock), but gives up after `timeout`.
    ///
    /// # Suspends
    /// Yes, while another has it, and no longer than `timeout`. No cancel point.
    #[doc(alias = "try_lock_for")]
    #[track_caller]
    pub fn lock_timeout(&self, timeout: Duration) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock_for(timeout)
    }

    /// As [`lock`](Self::lock), but a cancel point: for who keeps it while he waits at one.
    #[track_caller]
    pub(crate) fn lock_or_cut(&self) -> Result<MutexGuard<'_, T>, Cut> {
        let me = Me::now();
        let point = me.cancel_point_at_entry()?;
        // SAFETY: locked just now, and the guard, the one proof of it, unlocks.
        unsafe {
            let raw = self.0.raw();
            let until_ns = point.until_ns(u64::MAX);
            let taken = if point.heeds_cancel() { raw.take_unless_cancelled(until_ns) } else { raw.take_until(until_ns) };
            if taken { Ok(self.0.make_guard_unchecked()) } else { Err(point.what_cut()) }
        }
    }

    /// Whether somebody has it at this moment.
    pub fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    /// The value: nobody else can have it.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: ?Sized> std::panic::UnwindSafe for Mutex<T> {}
impl<T: ?Sized> std::panic::RefUnwindSafe for Mutex<T> {}
