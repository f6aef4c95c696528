//! What fibers and plain threads wait at: locks and the like, under std's and parking_lot's names.
//!
//! None of them poisons, and none is a [cancel point](crate::cancelled).

mod mutex;
mod raw_mutex;

pub use mutex::{MappedMutexGuard, Mutex, MutexGuard};
pub use raw_mutex::RawMutex;
