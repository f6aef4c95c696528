//! Cancelling a fiber and, with it, the fibers of its scopes.

use crate::fiber::{Control, Weak, pool};
use crate::sched::group::Group;
use crate::sched::worker::{make_ready, recycle};

/// A fiber found by a look at its block, kept until this is dropped.
pub(crate) struct Kept(*const Control);

impl Kept {
    /// Keeps the fiber that `weak` knows; `None` if that is gone.
    pub(crate) fn new(weak: &Weak) -> Option<Self> {
        let kept = Self(weak.pin()?);
        weak.is_same().then_some(kept)
    }

    pub(crate) fn control(&self) -> &Control {
        // SAFETY: this holds a reference.
        unsafe { &*self.0 }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.control().release() {
            // SAFETY: that was the last reference.
            unsafe { recycle(self.0) };
        }
    }
}

/// Cancels `fiber` and all fibers of its scopes, theirs, and so on; who was cancelled before has passed it on already.
///
/// The caller holds a reference to `fiber`.
pub(crate) fn cancel(fiber: &Control) {
    let mut below = Vec::new();
    cancel_one(fiber, &mut below);
    while let Some(child) = below.pop() {
        if let Some(kept) = Kept::new(&child) {
            cancel_one(kept.control(), &mut below);
        }
    }
}

fn cancel_one(fiber: &Control, below: &mut Vec<Weak>) {
    let Ok(claimed) = fiber.cancel() else { return };
    // First the children: once the fiber is ready its frames may close, and with them the list of those that are cancelled with it.
    fiber.children_into(below);
    if let Some(claimed) = claimed {
        make_ready(claimed);
    }
}

/// Cancels the started fibers of `group`, of one worker or of all, since it is being shut down; but those that clean up for one who is shielded.
pub(crate) fn cancel_all(group: &Group, worker: Option<usize>) {
    let all = fibers_of(group, worker);
    all.filter(|kept| !kept.control().state.is_sheltered()).for_each(|kept| cancel(kept.control()));
}

/// The started fibers of `group` that have not left their worker, of one worker or of all.
pub(crate) fn fibers_of(group: &Group, worker: Option<usize>) -> impl Iterator<Item = Kept> {
    pool::blocks().filter_map(move |block| {
        let is_there = |index: usize| std::ptr::eq(block.home(), std::ptr::from_ref(group.seats[index]).cast());
        let here = |block: &Control| match worker {
            _ if block.home().is_null() => false,
            Some(index) => is_there(index),
            None => (0..group.seats.len()).any(is_there),
        };
        // Looked at again once it is kept: it may have become another fiber, of another group.
        let kept = here(block).then(|| Kept::new(&Weak::of(block))).flatten()?;
        here(block).then_some(kept)
    })
}
