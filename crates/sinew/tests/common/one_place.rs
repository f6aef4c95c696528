//! A check that a fiber is at one place at a time, for those that move: on real workers, and under shuttle, which includes this file by its path.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Says that its fiber runs, and never on two workers at once.
#[derive(Default)]
pub struct Alone(AtomicBool);

impl Alone {
    pub fn begin(&self) {
        assert!(!self.0.swap(true, SeqCst), "a fiber runs on two workers at once");
    }

    /// Does what may suspend.
    pub fn out<T>(&self, waits: impl FnOnce() -> T) -> T {
        assert!(self.0.swap(false, SeqCst), "a fiber runs on two workers at once");
        let value = waits();
        self.begin();
        value
    }
}
