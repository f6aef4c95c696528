#[path = "../../../src/sched/idle.rs"]
pub mod idle;
#[path = "../../../src/sched/slot.rs"]
pub mod slot;

mod groups_model;
mod model;

/// Stands in for the worker: waiters are threads, which sleep on their state words.
pub mod worker {
    use crate::fiber::Claimed;
    use crate::os::futex;

    pub fn make_ready(claimed: Claimed) {
        // SAFETY: blocks of waiters are never freed (`rt::wait`).
        futex::wake_one(unsafe { (*claimed.control).state.word() });
    }
}
