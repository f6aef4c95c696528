#[path = "../../../src/fiber/join.rs"]
pub mod join;
#[path = "../../../src/fiber/references.rs"]
pub mod references;
#[path = "../../../src/fiber/state.rs"]
pub mod state;
#[path = "../../../src/fiber/tally.rs"]
pub mod tally;

#[path = "../../../src/fiber/waiters.rs"]
pub mod waiters;
#[path = "../../../src/fiber/why.rs"]
pub mod why;

mod model;
mod movers_model;

use state::{Cause, State};

use crate::base::atomic::{AtomicPtr, mutant};
use crate::base::list::Linked;
use crate::rt::workers::{self, Fiber};

/// Stands in for the control block of a plain thread, or of a fiber: what waits use of it.
pub struct Control {
    pub state: State,
    /// `None` of a thread.
    pub fiber: Option<Fiber>,
    link: AtomicPtr<Control>,
}

// SAFETY: the link is one field, and only the list that holds the block uses it (law F1).
unsafe impl Linked for Control {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

impl Control {
    /// The caller's.
    pub fn new() -> Self {
        Self { state: State::new(), fiber: workers::me(), link: AtomicPtr::new(std::ptr::null_mut()) }
    }

    pub fn place(&self) -> u32 {
        0
    }

    pub fn home(&self) -> *const () {
        if mutant("all of one place") { std::ptr::without_provenance(4096) } else { self.fiber.map_or(std::ptr::null(), Fiber::home) }
    }

    pub fn note_why(&self, _why: why::Why) {}

    pub fn claim(&self, cause: Cause) -> Option<Claimed> {
        self.state.claim(cause).then_some(Claimed { control: self })
    }
}

/// A wait that the holder has ended.
#[must_use]
pub struct Claimed {
    pub control: *const Control,
}
