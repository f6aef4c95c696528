//! `RwLock`: lock_api's types over our lock, under std's and DESIGN's names.

use std::fmt;
use std::time::{Duration, Instant};

use lock_api::GuardNoSend;

use super::mutex::or_abort;
use super::raw_rwlock::{RawRwLock, Side};
use crate::os::clock;
use crate::rt::wait::Me;

// SAFETY: the word lets in one writer, or readers (`raw_rwlock.rs`).
unsafe impl lock_api::RawRwLock for RawRwLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api asks for it: a fresh lock per use")]
    const INIT: Self = RawRwLock::unlocked();
    type GuardMarker = GuardNoSend;

    #[inline]
    #[track_caller]
    fn lock_shared(&self) {
        or_abort(|| self.read());
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        self.try_read()
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        self.release_read();
    }

    #[inline]
    #[track_caller]
    fn lock_exclusive(&self) {
        or_abort(|| self.write());
    }

    #[inline]
    fn try_lock_exclusive(&self) -> bool {
        self.try_write()
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        self.release_write();
    }

    fn is_locked(&self) -> bool {
        self.is_taken()
    }

    fn is_locked_exclusive(&self) -> bool {
        self.is_written()
    }
}

// SAFETY: as above. A bump refuses to wait while it still has the lock.
unsafe impl lock_api::RawRwLockFair for RawRwLock {
    unsafe fn unlock_shared_fair(&self) {
        self.release_read_fairly();
    }

    unsafe fn unlock_exclusive_fair(&self) {
        self.release_write_fairly();
    }

    #[track_caller]
    unsafe fn bump_shared(&self) {
        if self.is_waited_for() {
            let _may_wait = Me::to_wait();
            self.release_read_fairly();
            self.read();
        }
    }

    #[track_caller]
    unsafe fn bump_exclusive(&self) {
        if self.is_waited_for() {
            let _may_wait = Me::to_wait();
            self.release_write_fairly();
            self.write();
        }
    }
}

// SAFETY: as above; the writer becomes a reader in one step.
unsafe impl lock_api::RawRwLockDowngrade for RawRwLock {
    unsafe fn downgrade(&self) {
        RawRwLock::downgrade(self);
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLockTimed for RawRwLock {
    type Duration = Duration;
    type Instant = Instant;

    #[track_caller]
    fn try_lock_shared_for(&self, timeout: Duration) -> bool {
        // As of a mutex: not before those who wait, over and over.
        self.try_fast(Side::Reader) || if timeout.is_zero() { self.try_read() } else { self.read_until(clock::deadline_ns(timeout)) }
    }

    #[track_caller]
    fn try_lock_shared_until(&self, deadline: Instant) -> bool {
        self.try_lock_shared_for(deadline.saturating_duration_since(Instant::now()))
    }

    #[track_caller]
    fn try_lock_exclusive_for(&self, timeout: Duration) -> bool {
        self.try_fast(Side::Writer) || if timeout.is_zero() { self.try_write() } else { self.write_until(clock::deadline_ns(timeout)) }
    }

    #[track_caller]
    fn try_lock_exclusive_until(&self, deadline: Instant) -> bool {
        self.try_lock_exclusive_for(deadline.saturating_duration_since(Instant::now()))
    }
}

/// Proof that a [`RwLock`] is locked for reading; dropping it unlocks. As parking_lot's: `RwLockReadGuard::map`, `unlocked`, `unlock_fair`, `bump` are there.
pub type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawRwLock, T>;

/// Proof that a [`RwLock`] is locked for writing; dropping it unlocks. As parking_lot's: `RwLockWriteGuard::map`, `downgrade`, `unlocked`, `unlock_fair`, `bump` are there.
pub type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawRwLock, T>;

/// A [`RwLockReadGuard`] that gives a part of the value.
pub type MappedRwLockReadGuard<'a, T> = lock_api::MappedRwLockReadGuard<'a, RawRwLock, T>;

/// A [`RwLockWriteGuard`] that gives a part of the value.
pub type MappedRwLockWriteGuard<'a, T> = lock_api::MappedRwLockWriteGuard<'a, RawRwLock, T>;

/// A value that many may read at once, or one may write.
///
/// As [`std::sync::RwLock`], without poisoning: a panic while it is locked unlocks it. Guards may be held while their fiber suspends: others then wait for as long. It can be a `static`.
///
/// # Fairness
/// Who unlocks wakes some that wait, which then try like any other: after a writer the readers that have waited for longer than any writer, after readers the first writer. They may be overtaken by those who run meanwhile, for some microseconds; then
/// these queue behind them, also at a free lock. Once one has waited for half a millisecond all others queue, unless they read and no writer waits, and who unlocks hands the lock over: after a writer to all readers that wait, as one batch, else to the
/// next writer; after a batch to the writer that has waited longest. So neither side starves. (If the worker of the woken one computes or is blocked, and nobody else locks any more, those who queued before wait for that worker too, though the lock is free: unlike at a [`Mutex`](crate::sync::Mutex#fairness) nobody looks.) One that reads already and reads again may wait for a writer that waits for it, for ever.
///
/// # Suspends
/// `read`, `write` and their timed forms do, while others have it or it is not their turn. They are no [cancel points](crate::cancelled).
///
/// # Examples
/// ```
/// static TABLE: sinew::sync::RwLock<Vec<u32>> = sinew::sync::RwLock::new(Vec::new());
/// TABLE.write().push(7);
/// let (one, two) = (TABLE.read(), TABLE.try_read().unwrap());
/// assert_eq!(one[0] + two[0], 14);
/// assert!(TABLE.try_write().is_none());
/// ```
#[derive(Default)]
pub struct RwLock<T: ?Sized>(lock_api::RwLock<RawRwLock, T>);

impl<T> RwLock<T> {
    /// An unlocked one.
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(lock_api::RwLock::new(value))
    }

    /// The value.
    #[inline]
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer has it, and it is not the turn of another, and locks it for reading.
    ///
    /// # Suspends
    /// Yes, while a writer has it, or it is the turn of another ([fairness](Self#fairness)). No cancel point.
    ///
    /// # Panics
    /// If it has to wait inside [`no_suspend`](crate::no_suspend).
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        // SAFETY: locked just now, and the guard, the one proof of it, unlocks.
        unsafe {
            self.0.raw().read();
            self.0.make_read_guard_unchecked()
        }
    }

    /// Waits until nobody has it, and it is not the turn of another, and locks it for writing.
    ///
    /// # Suspends
    /// Yes, while others have it, or it is their turn ([fairness](Self#fairness)). No cancel point.
    ///
    /// # Panics
    /// If it has to wait inside [`no_suspend`](crate::no_suspend).
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        // SAFETY: as in `read`.
        unsafe {
            self.0.raw().write();
            self.0.make_write_guard_unchecked()
        }
    }

    /// Locks it for reading, if no writer has it, nor has one queued for long. It goes before those who were told to try: over and over, it can keep them from it.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read()
    }

    /// Locks it for writing, if nobody has it, nor has queued for long. It goes before those who were told to try: over and over, it can keep them from it.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write()
    }

    /// As [`read`](Self::read), but gives up after `timeout`.
    ///
    /// # Suspends
    /// As [`read`](Self::read), no longer than `timeout`.
    #[doc(alias = "try_read_for")]
    #[track_caller]
    pub fn read_timeout(&self, timeout: Duration) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read_for(timeout)
    }

    /// As [`write`](Self::write), but gives up after `timeout`.
    ///
    /// # Suspends
    /// As [`write`](Self::write), no longer than `timeout`.
    #[doc(alias = "try_write_for")]
    #[track_caller]
    pub fn write_timeout(&self, timeout: Duration) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write_for(timeout)
    }

    /// Whether anybody has it at this moment.
    pub fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    /// Whether a writer has it at this moment.
    pub fn is_locked_exclusive(&self) -> bool {
        self.0.is_locked_exclusive()
    }

    /// The value: nobody else can have it.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: ?Sized> std::panic::UnwindSafe for RwLock<T> {}
impl<T: ?Sized> std::panic::RefUnwindSafe for RwLock<T> {}
