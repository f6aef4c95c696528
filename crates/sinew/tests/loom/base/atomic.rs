//! loom's atomics in the place of std's.

use std::cell::Cell;

pub use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
pub use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

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
pub fn fence(order: std::sync::atomic::Ordering) {
    if order != SeqCst || !mutant("no fence") {
        loom::sync::atomic::fence(order);
    }
}
