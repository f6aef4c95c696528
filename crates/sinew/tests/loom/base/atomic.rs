//! loom's atomics in the place of std's, with the faults that models must notice.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use loom::sync::atomic as looms;

/// Lets loom's other threads go on.
pub fn spin_loop() {
    loom::thread::yield_now();
}

/// loom's atomics are larger than std's, and its loops must be short.
pub const AS_IN_MEMORY: bool = false;

/// loom's atomics cannot be made in statics.
macro_rules! in_statics {
    ($(#[$attribute:meta])* $visible:vis const fn $($rest:tt)*) => { $(#[$attribute])* $visible fn $($rest)* };
}
pub(crate) use in_statics;

pub use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// As in `src`: what a release fence covers is relaxed.
pub const FENCED: Ordering = Relaxed;

std::thread_local!(static MUTANT: Cell<&'static str> = const { Cell::new("") });

/// Puts a named fault into the code under test, on this thread; loom runs a model's threads on the thread that checks it.
pub fn set_mutant(name: &'static str) {
    MUTANT.set(name);
}

/// Whether the named fault is to be made.
pub fn mutant(name: &str) -> bool {
    MUTANT.get() == name
}

/// A fence; the mutant "no fence" takes the SeqCst ones out.
pub fn fence(order: Ordering) {
    if order != SeqCst || !mutant("no fence") {
        looms::fence(order);
    }
}

/// The mutant "relaxed" takes every ordering away.
fn of(order: Ordering) -> Ordering {
    if mutant("relaxed") { Relaxed } else { order }
}

/// As `of`, for a `fetch_or`, each half of whose ordering has a mutant of its own.
fn of_or(order: Ordering) -> Ordering {
    match of(order) {
        AcqRel if mutant("fetch_or without acquire") => Release,
        AcqRel if mutant("fetch_or without release") => Acquire,
        Acquire if mutant("fetch_or without acquire") => Relaxed,
        order => order,
    }
}

/// The same for a `fetch_add`.
fn of_add(order: Ordering) -> Ordering {
    match of(order) {
        AcqRel if mutant("fetch_add without acquire") => Release,
        AcqRel if mutant("fetch_add without release") => Acquire,
        order => order,
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty, $($generic:ident)?) => {
        /// As loom's, but for the mutant.
        #[derive(Debug)]
        pub struct $name$(<$generic>)?(looms::$name$(<$generic>)?);

        impl$(<$generic>)? $name$(<$generic>)? {
            pub fn new(value: $value) -> Self {
                Self(looms::$name::new(value))
            }
            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(of(order))
            }
            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, of(order));
            }
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, of(order))
            }
            pub fn compare_exchange(&self, now: $value, next: $value, ok: Ordering, err: Ordering) -> Result<$value, $value> {
                self.0.compare_exchange(now, next, of(ok), of(err))
            }
            pub fn compare_exchange_weak(&self, now: $value, next: $value, ok: Ordering, err: Ordering) -> Result<$value, $value> {
                self.0.compare_exchange_weak(now, next, of(ok), of(err))
            }
        }
    };
}

macro_rules! arithmetic {
    ($name:ident, $value:ty) => {
        atomic!($name, $value,);

        impl $name {
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_add(value, of_add(order))
            }
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_sub(value, of(order))
            }
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_and(value, of(order))
            }
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_or(value, of_or(order))
            }
            pub fn fetch_update(&self, ok: Ordering, err: Ordering, f: impl FnMut($value) -> Option<$value>) -> Result<$value, $value> {
                self.0.fetch_update(of(ok), of(err), f)
            }
        }
    };
}

atomic!(AtomicPtr, *mut T, T);
arithmetic!(AtomicU32, u32);
arithmetic!(AtomicU64, u64);
arithmetic!(AtomicUsize, usize);
