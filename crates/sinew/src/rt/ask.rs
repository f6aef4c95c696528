//! Calls to the system that may block, made where that harms nobody.
//!
//! All of them keep one rule: a caller that is cancelled, or past its deadline, fails at entry; a call that has begun runs to its end, since the system has no way to
//! call it back. A plain thread makes the call itself.

use std::io;

use io_uring::squeue::Entry;

use super::blocking::try_blocking;
use super::io::complete;
use super::wait::Me;
use crate::fiber::why::At;

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

/// As [`ask_after`], for a call that the ring knows: where the caller's worker has one, and the caller stays there, it is asked, and no thread. What it does not do it leaves to `call`.
///
/// # Safety
/// What the entry points to is of `what`, or outlives the call.
#[track_caller]
pub(crate) unsafe fn ask_ring_after<W: Send>(
    mut what: W,
    at_once: impl FnOnce(&mut W) -> Option<usize>,
    entry: impl FnOnce(&mut W) -> Entry,
    call: impl FnOnce(W) -> io::Result<usize> + Send,
) -> io::Result<usize> {
    let me = Me::to_wait();
    me.cancel_point_at_entry()?;
    if let Me::Fiber(worker, control) = me {
        if let Some(done) = at_once(&mut what) {
            worker.count_gift(control);
            return Ok(done);
        }
        // SAFETY: the caller's promise; `what` stays in this frame.
        match unsafe { complete(At::File, || entry(&mut what)) } {
            Some(Err(error)) if is_left_to_threads(&error) => {}
            Some(done) => return done,
            None => {}
        }
    }
    try_blocking(|| call(what))?
}

/// Whether the ring has not done it, but a call may. No error that is told once, such as that of a sync.
fn is_left_to_threads(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::EINVAL | libc::EOPNOTSUPP))
}
