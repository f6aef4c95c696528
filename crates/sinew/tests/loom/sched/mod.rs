#[path = "../../../src/sched/idle.rs"]
pub mod idle;
#[path = "../../../src/sched/slot.rs"]
pub mod slot;

mod model;
