//! Calls to the system that may block, made where that harms nobody.
//!
//! All of them keep one rule: a caller that is cancelled, or past its deadline, fails at entry; a call that has begun runs to its end, since the system has no way to
//! call it back. A plain thread makes the call itself.

use std::io;

use super::blocking::try_blocking;
use super::wait::Me;

/// Makes `call` on a thread of the blocking pool, and waits for it.
#[track_caller]
pub(crate) fn ask<T: Send>(call: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    ask_after((), |()| None, |()| call())
}

/// As [`ask`], for what a fiber may first try to do right here, without blocking: `at_once` gives nothing if that cannot be. Both work on `what`.
#[track_caller]
pub(crate) fn ask_after<W: Send, T: Send>(
    mut what: W,
    at_once: impl FnOnce(&mut W) -> Option<T>,
    call: impl FnOnce(W) -> io::Result<T> + Send,
) -> io::Result<T> {
    let me = Me::to_wait();
    me.cancel_point_at_entry()?;
    if let Me::Fiber(worker, control) = me
        && let Some(done) = at_once(&mut what)
    {
        worker.count_gift(control);
        return Ok(done);
    }
    try_blocking(|| call(what))?
}
