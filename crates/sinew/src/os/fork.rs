//! What becomes of a runtime in a forked child: nothing, said clearly.
//!
//! A child has the thread that forked and no other, so no worker; locks may be held by threads that are not there. The
//! child's thread forgets that it was a worker, or ever waited, so a yield or a wait takes the slow way of a thread that is new to the runtime, where the flag is looked at. A spawn, a join, an
//! unpark, a time-out, and what wakes those who wait at an object, look at it themselves: one load each.
//! `std::process::Command` is not concerned: what runs between its fork and its exec does not call us.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IS_CHILD: AtomicBool = AtomicBool::new(false);
static FORGET: OnceLock<fn()> = OnceLock::new();

/// Has `forget` called in each forked child, on its one thread. Once is enough.
pub(crate) fn install(forget: fn()) {
    FORGET.get_or_init(|| {
        // SAFETY: the handler stores to a static and calls `forget`, which stores to thread-locals without destructors: fit for a child of any process.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        forget
    });
}

extern "C" fn in_child() {
    IS_CHILD.store(true, Relaxed);
    if let Some(forget) = FORGET.get() {
        forget();
    }
}

/// Whether this process was forked by one that had a runtime.
#[inline]
pub(crate) fn is_child() -> bool {
    IS_CHILD.load(Relaxed)
}

/// What is said there.
pub(crate) const REFUSAL: &str = "sinew cannot be used in a forked child: its workers were left behind in the parent; exec or _exit there, \
     use std::process::Command, or fork before the first use";

/// Ends a forked child where it can neither go on nor unwind.
#[cold]
pub(crate) fn abort(what: &str) -> ! {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "sinew: {what}. {REFUSAL}");
    std::process::abort();
}

/// Panics in a forked child.
#[inline]
#[track_caller]
pub(crate) fn refuse() {
    if is_child() {
        panic!("{REFUSAL}");
    }
}

/// Whether a child that is forked here comes to the end of `f`.
#[cfg(test)]
pub(crate) fn child_does(f: impl FnOnce()) -> bool {
    /// A child that does nothing for so long hangs. Arbitrary: far longer than a loaded machine makes it wait.
    const PATIENCE_S: u32 = 20;
    install(|| ());
    // SAFETY: the child only does what its test is about, and leaves by `_exit`; its alarm ends it.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above.
        unsafe { libc::alarm(PATIENCE_S) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    std::mem::forget(f);
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid, "the child is ours");
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}
