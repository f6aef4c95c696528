//! shuttle's atomics in the place of std's: every operation is a point where another thread may go on.

use std::cell::Cell;

pub use shuttle::hint::spin_loop;
pub use shuttle::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
pub use shuttle::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
pub use shuttle::thread_local;

/// shuttle's atomics are larger than std's, so control blocks are.
pub const AS_IN_MEMORY: bool = false;

/// shuttle knows sequential consistency only.
pub fn fence(_order: std::sync::atomic::Ordering) {}

std::thread_local!(static MUTANT: Cell<&'static str> = const { Cell::new("") });

/// Puts a named fault into the code under test.
pub fn set_mutant(name: &'static str) {
    MUTANT.set(name);
}

/// Whether the named fault is to be made.
pub fn mutant(name: &str) -> bool {
    MUTANT.get() == name
}

/// As the library's: shuttle's atomics can be in statics.
macro_rules! in_statics {
    ($($function:tt)*) => { $($function)* };
}
pub(crate) use in_statics;
