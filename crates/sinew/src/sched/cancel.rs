//! Cancelling a fiber and, with it, the fibers of its scopes.

use crate::fiber::{Control, Weak, pool};
use crate::sched::groups::Groups;
use crate::sched::seat::Seat;
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

/// Cancels the started fibers of a runtime, of one worker or of all, since it is being shut down; but those that clean up for one who is shielded.
pub(crate) fn cancel_all(groups: &Groups, worker: Option<&Seat>) {
    let all = fibers_of(groups, worker);
    all.filter(|kept| !kept.control().state.is_sheltered()).for_each(|kept| cancel(kept.control()));
}

/// The started fibers of a runtime that have not left their worker, of one worker or of all.
pub(crate) fn fibers_of(groups: &Groups, worker: Option<&Seat>) -> impl Iterator<Item = Kept> {
    pool::blocks().filter_map(move |block| {
        let here = |block: &Control| match worker {
            Some(seat) => std::ptr::eq(block.home(), std::ptr::from_ref(seat).cast()),
            None => groups.has(block.home()),
        };
        // Looked at again once it is kept: it may have become another fiber, of another group.
        let kept = here(block).then(|| Kept::new(&Weak::of(block))).flatten()?;
        here(block).then_some(kept)
    })
}
