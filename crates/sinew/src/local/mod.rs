//! Values of which every fiber has its own: keys made by [`fiber_local!`](crate::fiber_local).
//!
//! The API is that of [`std::thread::LocalKey`]. On a thread that is no worker a key is a thread-local: such a thread has its own value too.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;

use crate::fiber::local::{Found, Key, Place};
use crate::rt::context::{keep_locals, place};

/// Declares keys of which every fiber has its own value, as [`std::thread_local!`] does for threads.
///
/// A value is made when its fiber first asks for it. It stays where it is until the fiber ends, so the closure of
/// [`with`](crate::local::LocalKey::with) may suspend. A plain thread has values of its own.
///
/// # Inheritance
/// With `#[inherit]` before it, the type is `Clone + Send`, and whoever spawns a fiber, by whatever call ([`spawn`](crate::spawn()),
/// [`spawn_batch`](crate::spawn_batch), [`Builder`](crate::Builder), [`scope`](crate::scope), [`run`](crate::run),
/// [`Runtime`](crate::Runtime), [`hop`](crate::hop), from a fiber or a plain thread), gives it a clone of its own value, if it has made one. The clone is taken during the call, in the
/// caller; if it panics, so does the call, and no fiber comes to be. Later changes are each one's own. The clones of a fiber that is refused are dropped.
///
/// # The end
/// When the fiber's closure has returned or panicked, its values are dropped, on the fiber, the one made last first (inherited ones are the oldest);
/// only then `join`, `scope` and `run` return. The fiber's outcome is dropped later, and has no access.
///
/// - A destructor may suspend, use other keys, and make new ones; those are dropped too.
/// - A key whose value is being dropped, or was, is not made anew: [`try_with`](crate::local::LocalKey::try_with) gives an error,
///   [`with`](crate::local::LocalKey::with) and the others panic.
/// - If a destructor panics, the others still run. The first such panic becomes the fiber's outcome, unless it had panicked itself.
///
/// On a plain thread all values are dropped when its thread-locals are; from then on there is no access, for other thread-locals'
/// destructors. A panic in a destructor is reported by the panic hook and goes no further. Values of the main thread may not be dropped at all, as
/// with `thread_local!`.
///
/// # Initialisers
/// An initialiser may suspend and use other keys; to use its own key there panics. If it panics, the key is as it was: not made.
///
/// # Examples
/// ```
/// use std::cell::{Cell, RefCell};
///
/// sinew::fiber_local! {
///     static VISITS: Cell<u32> = const { Cell::new(0) };
///     /// Who asked: children know it too.
///     #[inherit]
///     pub static USER: RefCell<String> = RefCell::new(String::from("nobody"));
/// }
///
/// USER.set(String::from("alice"));
/// let fiber = sinew::spawn(|| {
///     VISITS.set(VISITS.get() + 1);
///     (VISITS.get(), USER.take())
/// });
/// assert_eq!(fiber.join().unwrap(), (1, String::from("alice")));
/// assert_eq!((VISITS.get(), USER.take()), (0, String::from("alice")));
/// ```
#[macro_export]
macro_rules! fiber_local {
    () => {};

    (@take [$($attribute:tt)*] $kind:ident #[inherit] $($rest:tt)*) => {
        $crate::fiber_local!(@take [$($attribute)*] __inherited $($rest)*);
    };
    (@take [$($attribute:tt)*] $kind:ident #$another:tt $($rest:tt)*) => {
        $crate::fiber_local!(@take [$($attribute)* #$another] $kind $($rest)*);
    };
    (@take [$($attribute:tt)*] $kind:ident $visibility:vis static $name:ident: $type:ty = $value:expr; $($rest:tt)*) => {
        $crate::fiber_local!(@take [$($attribute)*] $kind $visibility static $name: $type = $value);
        $crate::fiber_local!($($rest)*);
    };
    (@take [$($attribute:tt)*] $kind:ident $visibility:vis static $name:ident: $type:ty = $value:expr) => {
        $($attribute)*
        $visibility static $name: $crate::local::LocalKey<$type> = {
            fn make() -> $type {
                $value
            }
            $crate::local::LocalKey::$kind(make)
        };
    };

    ($($rest:tt)+) => {
        $crate::fiber_local!(@take [] __own $($rest)+);
    };
}

/// A key of which every fiber has its own value, as [`std::thread::LocalKey`]; made by [`fiber_local!`](crate::fiber_local), which tells how values
/// come and go.
pub struct LocalKey<T: 'static> {
    key: Key,
    make: fn() -> T,
    /// Invariant: values are put in and taken out.
    value: PhantomData<fn(T) -> T>,
}

impl<T: 'static> LocalKey<T> {
    #[doc(hidden)]
    pub const fn __own(make: fn() -> T) -> Self {
        Self { key: Key::own::<T>(), make, value: PhantomData }
    }

    #[doc(hidden)]
    pub const fn __inherited(make: fn() -> T) -> Self
    where
        T: Clone + Send,
    {
        Self { key: Key::inherited::<T>(), make, value: PhantomData }
    }

    /// Calls `f` with this fiber's value, which is made if need be.
    ///
    /// # Suspends
    /// If `f` or the initialiser does. Both may: the value is this fiber's own and stays where it is.
    ///
    /// # Panics
    /// If the value is being dropped or was, and if the initialiser uses its own key. Passes a panic of `f` and of the initialiser on.
    #[track_caller]
    pub fn with<F, R>(&'static self, f: F) -> R
    where
        F: FnOnce(&T) -> R,
    {
        match self.try_with(f) {
            Ok(result) => result,
            Err(error) => error.raise(),
        }
    }

    /// Calls `f` with this fiber's value, which is made if need be.
    ///
    /// # Suspends
    /// As [`with`](Self::with).
    ///
    /// # Panics
    /// If the initialiser uses its own key. Passes a panic of `f` and of the initialiser on.
    ///
    /// # Errors
    /// If the value is being dropped or was; then `f` is not called.
    #[track_caller]
    pub fn try_with<F, R>(&'static self, f: F) -> Result<R, AccessError>
    where
        F: FnOnce(&T) -> R,
    {
        let value = self.get_or_make(self.make)?;
        // SAFETY: F2 - the value is this fiber's, and stays until the fiber's closure, and with it `f`, has returned (`fiber/local.rs`, I3).
        Ok(f(unsafe { &*value }))
    }

    /// Makes `value` the value if there is none; else gives it to `f` beside the one that there is.
    #[track_caller]
    fn with_given<R>(&'static self, value: T, f: impl FnOnce(Option<T>, &T) -> R) -> R {
        let mut given = Some(value);
        match self.get_or_make(|| given.take().expect("a value is made once")) {
            // SAFETY: as in `try_with`.
            Ok(value) => f(given, unsafe { &*value }),
            Err(error) => error.raise(),
        }
    }

    #[track_caller]
    fn get_or_make(&'static self, make: impl FnOnce() -> T) -> Result<*const T, AccessError> {
        let place = place().ok_or(AccessError)?;
        match place.find(&self.key) {
            Found::Value(value) => Ok(value.cast()),
            Found::Unmade => self.make_in(place, make),
            Found::Destroyed => Err(AccessError),
            Found::BeingMade => panic!("the initialiser of a fiber-local used its own key"),
        }
    }

    #[cold]
    fn make_in(&'static self, place: &Place, make: impl FnOnce() -> T) -> Result<*const T, AccessError> {
        keep_locals();
        let making = place.get_or_make().ok_or(AccessError)?.begin(&self.key);
        let value = Box::into_raw(Box::new(make()));
        // SAFETY: the key is for values of type `T`.
        unsafe { making.finish(value.cast()) };
        Ok(value)
    }
}

impl<T: 'static> LocalKey<Cell<T>> {
    /// Sets the value. If there is none yet, the initialiser does not run.
    ///
    /// # Panics
    /// If the value is being dropped or was, or its initialiser runs.
    #[track_caller]
    pub fn set(&'static self, value: T) {
        self.with_given(Cell::new(value), |given, cell| {
            if let Some(given) = given {
                cell.set(given.into_inner());
            }
        });
    }

    /// Gives a copy of the value.
    ///
    /// # Panics
    /// As [`with`](Self::with).
    #[track_caller]
    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }

    /// Takes the value and leaves the default.
    ///
    /// # Panics
    /// As [`with`](Self::with).
    #[track_caller]
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(Cell::take)
    }

    /// Puts `value` in the place of the value, which it gives.
    ///
    /// # Panics
    /// As [`with`](Self::with).
    #[track_caller]
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T: 'static> LocalKey<RefCell<T>> {
    /// Calls `f` with the value borrowed.
    ///
    /// # Panics
    /// As [`with`](Self::with), and if it is borrowed mutably.
    #[track_caller]
    pub fn with_borrow<F, R>(&'static self, f: F) -> R
    where
        F: FnOnce(&T) -> R,
    {
        self.with(|cell| f(&cell.borrow()))
    }

    /// Calls `f` with the value borrowed mutably.
    ///
    /// # Panics
    /// As [`with`](Self::with), and if it is borrowed.
    #[track_caller]
    pub fn with_borrow_mut<F, R>(&'static self, f: F) -> R
    where
        F: FnOnce(&mut T) -> R,
    {
        self.with(|cell| f(&mut cell.borrow_mut()))
    }

    /// Sets the value. If there is none yet, the initialiser does not run.
    ///
    /// # Panics
    /// If the value is being dropped or was, its initialiser runs, or it is borrowed.
    #[track_caller]
    pub fn set(&'static self, value: T) {
        self.with_given(RefCell::new(value), |given, cell| {
            if let Some(given) = given {
                cell.replace(given.into_inner());
            }
        });
    }

    /// Takes the value and leaves the default.
    ///
    /// # Panics
    /// As [`with`](Self::with), and if it is borrowed.
    #[track_caller]
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(RefCell::take)
    }

    /// Puts `value` in the place of the value, which it gives.
    ///
    /// # Panics
    /// As [`with`](Self::with), and if it is borrowed.
    #[track_caller]
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T: 'static> fmt::Debug for LocalKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalKey").finish_non_exhaustive()
    }
}

/// The value of a [`LocalKey`] is being dropped, or was: [`LocalKey::try_with`] gives this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccessError;

impl AccessError {
    #[cold]
    #[track_caller]
    fn raise(self) -> ! {
        panic!("{self}");
    }
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fiber-local was used during or after its destruction")
    }
}

impl Error for AccessError {}
