//! Where one worker sleeps; a wake that comes first is kept.
//!
//! # Picture
//! ```text
//!            lie_down               notify
//!   AWAKE ------------> ASLEEP ----------------> NOTIFIED     the notifier that took ASLEEP away pays the kernel wake
//!     ^                    |                         |
//!     +------ get_up ------+-------------------------+
//! ```
//! A notifier that sees AWAKE does nothing: the worker looks at its inbox once more after it lay down.
//!
//! # Memory order
//! Notifier: leaves work, `fence(SeqCst)`, reads the slot. Sleeper: writes ASLEEP, `fence(SeqCst)`, looks for work. The fences are
//! ordered one way or the other: either the sleeper sees the work, or the notifier sees ASLEEP. Without either fence both may miss,
//! also on x86, where a store may pass a later load. (bthread lost wake-ups by this; the model fails without them.)
//! What the work carries travels with the work, so the slot itself is relaxed.
//!
//! # Not here
//! The system call: the caller sleeps and wakes on [`Slot::word`].

use crate::base::atomic::{AtomicU32, Relaxed, SeqCst, fence};

const AWAKE: u32 = 0;
pub(crate) const ASLEEP: u32 = 1;
const NOTIFIED: u32 = 2;

/// The bed of one worker.
pub(crate) struct Slot(AtomicU32);

impl Slot {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(AWAKE))
    }

    /// Announces sleep. The caller looks for work once more before it sleeps on the word. By the worker.
    pub(crate) fn lie_down(&self) {
        self.0.store(ASLEEP, Relaxed);
        // SeqCst: meets the fence in `notify`.
        fence(SeqCst);
    }

    /// Whether no wake has come since `lie_down`. By the worker.
    pub(crate) fn is_asleep(&self) -> bool {
        self.0.load(Relaxed) == ASLEEP
    }

    /// Ends the sleep, woken or not. By the worker.
    pub(crate) fn get_up(&self) {
        self.0.store(AWAKE, Relaxed);
    }

    /// Makes the worker look for the work that was left for it; `true` if the caller must wake the word.
    #[must_use]
    pub(crate) fn notify(&self) -> bool {
        // SeqCst: meets the fence in `lie_down`.
        fence(SeqCst);
        self.0.load(Relaxed) == ASLEEP && self.0.compare_exchange(ASLEEP, NOTIFIED, Relaxed, Relaxed).is_ok()
    }

    /// The word to sleep on while it is [`ASLEEP`].
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.0
    }
}
