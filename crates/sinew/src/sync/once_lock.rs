//! `OnceLock` and `LazyLock`: values that are made once.

use std::cell::UnsafeCell;
use std::convert::Infallible;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use super::once::Once;

/// A value that is set once, as [`std::sync::OnceLock`].
///
/// If an initialiser panics, the next caller tries. It can be a `static`.
///
/// # Suspends
/// `get_or_init`, `get_or_try_init` and `set` do, while another initialises; `wait` and `wait_timeout`, until one has. They are no [cancel points](crate::cancelled).
///
/// # Examples
/// ```
/// static NAME: sinew::sync::OnceLock<String> = sinew::sync::OnceLock::new();
/// assert_eq!(NAME.get(), None);
/// assert_eq!(NAME.get_or_init(|| "first".to_owned()), "first");
/// assert_eq!(NAME.set("second".to_owned()), Err("second".to_owned()));
/// ```
pub struct OnceLock<T> {
    once: Once,
    /// Initialised exactly when `once` is complete.
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is written by the one whom `once` lets, before it is complete; afterwards it is shared, and may be dropped or taken on another thread than its maker's.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}
// SAFETY: as above; whoever has the cell has the value alone.
unsafe impl<T: Send> Send for OnceLock<T> {}

impl<T: RefUnwindSafe + UnwindSafe> RefUnwindSafe for OnceLock<T> {}
impl<T: UnwindSafe> UnwindSafe for OnceLock<T> {}

impl<T> OnceLock<T> {
    /// One without a value.
    pub const fn new() -> Self {
        Self { once: Once::new(), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// The value, if it was set.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: it is complete, so the value is there and is not written again while shared.
        self.once.is_completed().then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// The value, if it was set: nobody else can have it.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: as in `get`, and `&mut self` keeps this the only borrow.
        self.once.is_completed().then(|| unsafe { self.value.get_mut().assume_init_mut() })
    }

    /// Sets the value.
    ///
    /// # Suspends
    /// Yes, while another initialises. No cancel point.
    ///
    /// # Errors
    /// The value, if one was set before.
    #[track_caller]
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        let Ok(()) = self.initialise(|| Ok::<T, Infallible>(value.take().expect("an initialiser is called once")));
        value.map_or(Ok(()), Err)
    }

    /// The value, which `f` makes if there is none.
    ///
    /// An `f` that comes back to the same `OnceLock` waits for ever.
    ///
    /// # Suspends
    /// Yes, while another initialises. No cancel point.
    ///
    /// # Panics
    /// If it has to wait inside [`no_suspend`](crate::no_suspend); and as `f` does: then the next caller tries.
    #[inline]
    #[track_caller]
    pub fn get_or_init<F: FnOnce() -> T>(&self, f: F) -> &T {
        let Ok(value) = self.get_or_try_init(|| Ok::<T, Infallible>(f()));
        value
    }

    /// The value, which `f` makes if there is none; if it fails, the next caller tries.
    ///
    /// # Suspends
    /// As [`get_or_init`](Self::get_or_init).
    ///
    /// # Errors
    /// As `f`.
    #[inline]
    #[track_caller]
    pub fn get_or_try_init<F: FnOnce() -> Result<T, E>, E>(&self, f: F) -> Result<&T, E> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        self.initialise(f)?;
        Ok(self.get().expect("it is complete"))
    }

    /// Lets `f` make the value if there is none. The cell is not touched after the value is there: another may free it then.
    #[track_caller]
    fn initialise<E>(&self, f: impl FnOnce() -> Result<T, E>) -> Result<(), E> {
        // SAFETY: `once` lets one at a time come here, and none once the value is there.
        self.once.try_call_once(|| f().map(|value| unsafe { (*self.value.get()).write(value) }).map(|_| ()))
    }

    /// Waits until the value was set, by whomever.
    ///
    /// # Suspends
    /// Yes, unless it was. No cancel point.
    #[track_caller]
    pub fn wait(&self) -> &T {
        self.once.wait();
        self.get().expect("it is complete")
    }

    /// As [`wait`](Self::wait), at most for `timeout`.
    ///
    /// # Suspends
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> Option<&T> {
        self.once.wait_timeout(timeout);
        self.get()
    }

    /// The value, if it was set.
    pub fn into_inner(mut self) -> Option<T> {
        self.take()
    }

    /// Takes the value out, if it was set: it can be set again.
    pub fn take(&mut self) -> Option<T> {
        if !self.once.is_completed() {
            return None;
        }
        self.once.reset();
        // SAFETY: it was complete, and no longer is: the value is read once.
        Some(unsafe { self.value.get_mut().assume_init_read() })
    }
}

impl<T> Drop for OnceLock<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> Self {
        let cell = Self::new();
        let _ = cell.set(value);
        cell
    }
}

impl<T: Clone> Clone for OnceLock<T> {
    fn clone(&self) -> Self {
        self.get().cloned().map_or_else(Self::new, Self::from)
    }
}

impl<T: PartialEq> PartialEq for OnceLock<T> {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl<T: Eq> Eq for OnceLock<T> {}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceLock").field(&self.get()).finish()
    }
}

/// A value that is made when it is first used, as [`std::sync::LazyLock`].
///
/// If its initialiser panics there is none left to call: whoever uses it later panics too, as with std's. An [`OnceLock`], whose callers bring their own, can be tried again.
///
/// # Suspends
/// The first uses do, while another initialises. No [cancel point](crate::cancelled).
///
/// # Examples
/// ```
/// static WORDS: sinew::sync::LazyLock<Vec<&str>> = sinew::sync::LazyLock::new(|| "made when first used".split(' ').collect());
/// assert_eq!(WORDS.len(), 4);
/// ```
pub struct LazyLock<T, F = fn() -> T> {
    cell: OnceLock<T>,
    /// Taken by the one whom `cell` lets.
    make: UnsafeCell<Option<F>>,
}

// SAFETY: `make` is taken by the one whom `cell` lets initialise, at most once; the rest is as with `OnceLock`.
unsafe impl<T: Send + Sync, F: Send> Sync for LazyLock<T, F> {}

impl<T: RefUnwindSafe + UnwindSafe, F: UnwindSafe> RefUnwindSafe for LazyLock<T, F> {}
impl<T: UnwindSafe, F: UnwindSafe> UnwindSafe for LazyLock<T, F> {}

impl<T, F: FnOnce() -> T> LazyLock<T, F> {
    /// One that `make` makes.
    pub const fn new(make: F) -> Self {
        Self { cell: OnceLock::new(), make: UnsafeCell::new(Some(make)) }
    }

    /// The value, which is made now if it is not there.
    ///
    /// # Suspends
    /// Yes, while another initialises. No cancel point.
    ///
    /// # Panics
    /// As the initialiser; and if that has panicked before.
    #[inline]
    #[track_caller]
    pub fn force(this: &LazyLock<T, F>) -> &T {
        this.cell.get_or_init(|| {
            // SAFETY: the cell lets one at a time come here.
            let make = unsafe { (*this.make.get()).take() };
            make.expect("the initialiser of this LazyLock has panicked before")()
        })
    }

    /// The value, if it is there.
    #[inline]
    pub fn get(this: &LazyLock<T, F>) -> Option<&T> {
        this.cell.get()
    }
}

impl<T, F: FnOnce() -> T> Deref for LazyLock<T, F> {
    type Target = T;

    #[inline]
    #[track_caller]
    fn deref(&self) -> &T {
        LazyLock::force(self)
    }
}

impl<T: Default> Default for LazyLock<T> {
    fn default() -> Self {
        Self::new(T::default)
    }
}

impl<T: fmt::Debug, F> fmt::Debug for LazyLock<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LazyLock").field(&self.cell.get()).finish()
    }
}
