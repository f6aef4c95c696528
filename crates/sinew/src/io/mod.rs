//! Waiting for descriptors of any kind.

pub use crate::rt::io::{Interest, poll};
