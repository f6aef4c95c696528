//! What a fiber waits for, in one word, for those who ask why nothing goes on.
//!
//! Written by the fiber before it begins to wait, and not cleared after: it means something while the state word says WAITING. A relaxed store on a line
//! that the wait writes anyway.

use super::Control;

const KIND_SHIFT: u32 = 26;
const PLACE: u32 = (1 << KIND_SHIFT) - 1;

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Park,
    Sleep,
    /// The end of the fiber at this place.
    Join(u32),
    /// The fibers of its scope.
    Scope,
    /// The end of another runtime.
    Shutdown,
    /// A job on a thread of the pool.
    Blocking,
    /// A waker of its future.
    Future,
    /// The next timer whose callback it starts.
    Timer,
}

impl Why {
    pub(crate) fn join(fiber: &Control) -> Self {
        Why::Join(fiber.place())
    }

    pub(crate) fn pack(self) -> u32 {
        match self {
            Why::Park => 0,
            Why::Sleep => 1 << KIND_SHIFT,
            Why::Join(place) => 2 << KIND_SHIFT | place,
            Why::Scope => 3 << KIND_SHIFT,
            Why::Shutdown => 4 << KIND_SHIFT,
            Why::Blocking => 5 << KIND_SHIFT,
            Why::Future => 6 << KIND_SHIFT,
            Why::Timer => 7 << KIND_SHIFT,
        }
    }

    pub(crate) fn unpack(word: u32) -> Self {
        match word >> KIND_SHIFT {
            0 => Why::Park,
            1 => Why::Sleep,
            2 => Why::Join(word & PLACE),
            3 => Why::Scope,
            4 => Why::Shutdown,
            5 => Why::Blocking,
            6 => Why::Future,
            _ => Why::Timer,
        }
    }
}
