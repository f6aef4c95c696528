//! Waiting until somebody says that something has changed.

use super::channel::Until;
use crate::fiber::waiters::{Waiter, Waiters};
use crate::fiber::why::{At, Why};
use crate::os::lock::Lock;
use crate::rt::wait::{Cut, Me, Wakes};

/// Waits in `line` at `place` until somebody claims it there, unless `must_wait` says that there is no need to, or `until` then. A cancel point.
#[track_caller]
pub(super) fn wait_while<Q>(
    place: &Lock<Q>,
    line: impl Fn(&mut Q) -> &mut Waiters,
    must_wait: impl FnOnce(&mut Q) -> bool,
    at: At,
    until: Until,
) -> Result<(), Cut> {
    let me = Me::to_wait();
    let point = me.cancel_point()?;
    let waiter = Waiter::new(me.control(), ());
    let mut inside = place.lock();
    if !must_wait(&mut inside) {
        return Ok(());
    }
    // SAFETY: it is new, and stays in this frame until it was claimed or taken out below.
    unsafe { line(&mut inside).push(&waiter) };
    if !point.begin_held(Why::At(at)) {
        // SAFETY: it was queued above.
        unsafe { line(&mut inside).remove(&waiter) };
        drop(inside);
        return Err(point.fail());
    }
    drop(inside);
    // SAFETY: the wait was begun above; a claim, a cancel or the deadline ends it. The waiter is in this line or in none.
    match unsafe { point.wait_at(place, until.ns(), |inside| _ = line(inside).remove(&waiter)) } {
        Ok(crate::fiber::state::Cause::Woken) => Ok(()),
        Ok(_) => Err(Cut::TimedOut),
        Err(cut) => Err(cut),
    }
}

/// Claims all who wait in a line; the caller pays when it has unlocked the place.
pub(super) fn call(line: &mut Waiters) -> Wakes {
    let wakes = Wakes::none();
    while let Some(claimed) = line.claim_first(|()| ()) {
        wakes.add(claimed);
    }
    wakes
}
