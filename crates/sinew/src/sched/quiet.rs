//! How many fibers were queued quietly, and whether they have been told of since.
//!
//! A flush wakes workers for as many as these, but for no more than there are to take, quiet or not: what was queued quietly may have run long ago. It finds that out by a look at the queues. But a worker that makes room among its children has some of
//! them in nobody's queue for a moment: a flush that looks then does not see them, and neither does a worker that it has woken. So whoever has moved quiet ones asks whether there was a flush since they were made, and tells of them if so.
//!
//! # Memory order
//! The flush counts itself and then looks at the queues; the mover queues, and then looks at the count. Store-then-load on both sides: the two SeqCst fences make at least one of them see the other.

use crate::base::atomic::{Acquire, AtomicUsize, Relaxed, Release, SeqCst, fence};

/// What a group knows of its quiet fibers.
pub(crate) struct Quiet {
    /// Those that nobody has been woken for. Many of them may have run since.
    count: AtomicUsize,
    /// How often some were told of.
    flushes: AtomicUsize,
}

impl Quiet {
    pub(crate) fn new() -> Self {
        Self { count: AtomicUsize::new(0), flushes: AtomicUsize::new(0) }
    }

    /// So many fibers were queued that nobody was woken for.
    pub(crate) fn note(&self, count: usize) {
        // Release: meets the Acquire in `take`, by whomever; who wakes others for these fibers has seen them queued, and so do those.
        self.count.fetch_add(count, Release);
    }

    /// Whether some may be queued that nobody was woken for.
    pub(crate) fn has_any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// Begins a flush: so many were queued since the last one. The caller wakes workers for no more of them than it finds queued after this.
    pub(crate) fn take(&self) -> usize {
        // Acquire: meets the Release in `note`.
        let count = self.count.swap(0, Acquire);
        if count != 0 {
            self.flushes.fetch_add(1, Relaxed);
            // SeqCst: meets the fence in `has_flushed`.
            fence(SeqCst);
        }
        count
    }

    /// The flushes up to now, by one who is about to queue.
    pub(crate) fn flushes(&self) -> usize {
        self.flushes.load(Relaxed)
    }

    /// Whether there was a flush since there were so many, by one who has just queued again what was queued since then.
    pub(crate) fn has_flushed(&self, before: usize) -> bool {
        // SeqCst: meets the fence in `take`.
        fence(SeqCst);
        self.flushes() != before
    }
}
