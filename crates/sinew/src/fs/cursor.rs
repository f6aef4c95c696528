//! Who uses the cursor of an open file: any number in the pool, or one on a worker.
//!
//! The kernel has a lock for a plain file's cursor, which a read holds while it waits for the disk. A worker must not wait for that, so it uses the cursor only while nobody in the pool
//! does. And what it does there may take two calls, a read and a step back, between which nobody is to come.
//!
//! Those in the pool do not keep each other off: one may read from a terminal while another writes to it. Duplicates of the descriptor are not known here; with them a worker may wait
//! for the kernel's lock, as long as a read of theirs takes.

use crate::base::atomic::{Acquire, AtomicU32, Relaxed, Release};

/// In the word: a worker uses it. Below it is the number of those in the pool.
const ON_WORKER: u32 = 1 << 31;

pub(super) struct Cursor(AtomicU32);

impl Cursor {
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Runs `f`, which does not wait, on a worker, if nobody else uses the cursor.
    pub(super) fn alone<T>(&self, f: impl FnOnce() -> Option<T>) -> Option<T> {
        // Acquire: meets the Release of whoever used it last; the calls in `f` come after theirs.
        self.0.compare_exchange(0, ON_WORKER, Acquire, Relaxed).ok()?;
        let done = f();
        // Release: meets the Acquire in `beside_others`.
        self.0.fetch_and(!ON_WORKER, Release);
        done
    }

    /// Runs `f` on a thread that may block. A worker that is at it is waited for: a few microseconds.
    pub(super) fn beside_others<T>(&self, f: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, Relaxed);
        // Acquire: meets the Release in `alone`.
        while self.0.load(Acquire) & ON_WORKER != 0 {
            std::thread::yield_now();
        }
        let done = f();
        // Release: meets the Acquire in `alone`.
        self.0.fetch_sub(1, Release);
        done
    }
}
