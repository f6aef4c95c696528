//! Who uses the cursor of an open file: any number in the pool, or one on a worker.
//!
//! The kernel has a lock for a plain file's cursor, which a read holds while it waits for the disk. A worker must not wait for that, so it uses the cursor only while nobody in the pool
//! does. And what it does there may take two calls, a read and a step back, between which nobody is to come.
//!
//! The cursor is not the handle's but the open file's, and duplicates of the descriptor have it too, in this process or another. What they do is not known here; so once there may be one, it is *shared*, for good, and
//! no worker uses it any more. Only who was lent the descriptor can duplicate it: a handle made by opening is not shared until then.
//!
//! Those in the pool do not keep each other off: one may read from a terminal while another writes to it.

use crate::base::atomic::{Acquire, AtomicU32, Relaxed, Release};

/// In the word: a worker uses it.
const ON_WORKER: u32 = 1 << 31;
/// There may be duplicates. Below it is the number of those in the pool.
const SHARED: u32 = 1 << 30;

pub(super) struct Cursor(AtomicU32);

impl Cursor {
    /// That of a file that was opened just now.
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// That of a descriptor that came from elsewhere.
    pub(super) fn new_shared() -> Self {
        Self(AtomicU32::new(SHARED))
    }

    /// From now on there may be duplicates. A worker that is at it is waited for: a few microseconds.
    pub(super) fn share(&self) {
        if self.0.load(Relaxed) & SHARED == 0 {
            self.0.fetch_or(SHARED, Relaxed);
        }
        self.await_worker();
    }

    /// Runs `f`, which does not wait, on a worker, if nobody else uses the cursor, or may.
    pub(super) fn alone<T>(&self, f: impl FnOnce() -> Option<T>) -> Option<T> {
        // Acquire: meets the Release of whoever used it last; the calls in `f` come after theirs.
        self.0.compare_exchange(0, ON_WORKER, Acquire, Relaxed).ok()?;
        let done = f();
        // Release: meets the Acquire in `await_worker`.
        self.0.fetch_and(!ON_WORKER, Release);
        done
    }

    /// Runs `f` on a thread that may block. A worker that is at it is waited for: a few microseconds.
    pub(super) fn beside_others<T>(&self, f: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, Relaxed);
        self.await_worker();
        let done = f();
        // Release: meets the Acquire in `alone`.
        self.0.fetch_sub(1, Release);
        done
    }

    fn await_worker(&self) {
        // Acquire: meets the Release in `alone`.
        while self.0.load(Acquire) & ON_WORKER != 0 {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_worker_uses_a_cursor_that_may_be_shared() {
        let cursor = Cursor::new();
        assert_eq!(cursor.alone(|| Some(1)), Some(1));
        assert_eq!(cursor.beside_others(|| cursor.alone(|| Some(1))), None);
        assert_eq!(cursor.alone(|| Some(1)), Some(1));
        cursor.share();
        assert_eq!(cursor.alone(|| Some(1)), None);
        assert_eq!(cursor.beside_others(|| 2), 2);
        assert_eq!(cursor.alone(|| Some(1)), None);
        assert_eq!(Cursor::new_shared().alone(|| Some(1)), None);
    }
}
