//! What the operating system gives: memory, futex, locks, clock, CPUs, fault signals.
//!
//! Nothing here knows of fibers. Linux only; this folder is the place where another system would be added.

pub(crate) mod clock;
pub(crate) mod cpu;
pub(crate) mod fault;
pub(crate) mod futex;
pub(crate) mod lock;
pub(crate) mod memory;

#[cfg(not(target_os = "linux"))]
compile_error!("sinew runs on Linux; other systems need their own files in crates/sinew/src/os");
