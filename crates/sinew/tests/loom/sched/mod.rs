#[path = "../../../src/sched/duty.rs"]
pub mod duty;
#[path = "../../../src/sched/idle.rs"]
pub mod idle;
#[path = "../../../src/sched/quiet.rs"]
pub mod quiet;
#[path = "../../../src/sched/slot.rs"]
pub mod slot;

mod duty_model;
mod groups_model;
pub mod model;
mod quiet_model;

/// Stands in for the worker: waiters are threads, which sleep on their state words, or fibers that are made of threads (`rt::workers`).
pub mod worker {
    use crate::fiber::Claimed;
    use crate::os::{clock, futex};
    use crate::rt::wait::SOON;
    use crate::rt::workers;

    pub fn make_ready(claimed: Claimed) {
        // SAFETY: blocks of waiters are never freed (`rt::wait`).
        let control = unsafe { &*claimed.control };
        match control.fiber {
            Some(fiber) => workers::make_ready(fiber),
            None => futex::wake_one(control.state.word()),
        }
    }

    /// One that may come at any moment has come, once a wait was cut short by it.
    pub fn passed(deadline_ns: u64) -> bool {
        deadline_ns != u64::MAX && (deadline_ns == SOON || clock::now_ns() >= deadline_ns)
    }
}
