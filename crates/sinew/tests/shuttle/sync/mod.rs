#[path = "../../../src/sync/raw_mutex.rs"]
pub mod raw_mutex;

mod scenarios;
