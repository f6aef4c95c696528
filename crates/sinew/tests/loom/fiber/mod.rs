#[path = "../../../src/fiber/join.rs"]
pub mod join;
#[path = "../../../src/fiber/references.rs"]
pub mod references;
#[path = "../../../src/fiber/state.rs"]
pub mod state;
#[path = "../../../src/fiber/tally.rs"]
pub mod tally;

mod model;

/// Stands in for the control block: the models need its address only.
pub struct Control;
