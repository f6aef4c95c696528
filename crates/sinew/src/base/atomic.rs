//! The one door to atomics for every file that owns a protocol.
//!
//! The model tests (`tests/loom`) compile the very same protocol files with another module in this place, which gives them loom's types;
//! so a file is checked as it stands, without a cargo feature or a `--cfg`.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
pub(crate) use std::thread_local;

/// Whether atomics have the size they have in memory; the models' do not.
pub(crate) const AS_IN_MEMORY: bool = true;

/// Marks what is made in statics: a plain function under loom, whose atomics cannot be.
macro_rules! in_statics {
    ($($function:tt)*) => { $($function)* };
}
pub(crate) use in_statics;

/// The ordering of a store that an earlier `fence(Release)` of its thread covers: Relaxed. ThreadSanitizer does not know fences; there such a store is a
/// release itself (std's `Arc` does the like for its fence).
pub(crate) const FENCED: Ordering = if cfg!(sinew_sanitize = "thread") { Release } else { Relaxed };
