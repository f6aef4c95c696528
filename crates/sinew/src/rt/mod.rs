//! The only door between user code and the scheduler.

pub(crate) mod ask;
pub(crate) mod blocking;
pub(crate) mod builder;
pub(crate) mod cancel;
pub(crate) mod context;
pub(crate) mod fiber;
pub(crate) mod io;
#[cfg(test)]
mod io_tests;
pub(crate) mod metrics;
pub(crate) mod overflow;
pub(crate) mod pauses;
pub(crate) mod pipe;
pub(crate) mod report;
pub(crate) mod runtime;
pub(crate) mod scope;
pub(crate) mod spawn;
pub(crate) mod wait;
