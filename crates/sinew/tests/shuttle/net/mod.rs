#[path = "../../../src/net/accept.rs"]
pub mod accept;

mod acceptors;
