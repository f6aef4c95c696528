//! Sleeping on a 32-bit word, and waking who sleeps there.
//!
//! Every caller re-checks its word in a loop: a wait may end for no reason, and a wake may be sent to a word whose owner has
//! moved on (all such words live in memory that is never unmapped while a wake may be under way).

use std::sync::atomic::AtomicU32;

use super::clock;

/// Sleeps while `*word == expected`, at most until `deadline_ns` of the monotonic clock (`u64::MAX`: for ever).
///
/// Returns on a wake, on a changed word, on a signal, at the deadline, or for no reason at all.
pub(crate) fn wait(word: &AtomicU32, expected: u32, deadline_ns: u64) {
    let limit;
    let limit_ptr = if deadline_ns == u64::MAX {
        std::ptr::null()
    } else {
        let left = deadline_ns.saturating_sub(clock::now_ns());
        if left == 0 {
            return;
        }
        limit = clock::timespec(left);
        &limit as *const libc::timespec
    };
    // SAFETY: the word is borrowed for the whole call, the limit outlives it; a relative FUTEX_WAIT counts CLOCK_MONOTONIC.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, expected, limit_ptr);
    }
}

/// Wakes at most one sleeper of `word`.
pub(crate) fn wake_one(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE reads no memory of ours; the address only names the queue.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
}
