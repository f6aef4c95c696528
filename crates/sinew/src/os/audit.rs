//! A test tool: looks at where fibers suspend, and says so where they must not.
//!
//! Settled fibers keep std's contract but for three rules (README): no suspension in a `thread_local!` initialiser, in a scoped thread-local's
//! closure, or in a panic hook; and one in a `Once` lets other fibers of the thread wait for ever. Each shows in the frames between a fiber's root and its
//! suspension. `SINEW_AUDIT=1` has the first suspension of each distinct call stack looked at, in builds with debug assertions: a look costs
//! milliseconds, and optimised frames have no names.

use std::backtrace::Backtrace;
use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::fmt::Display;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Call stacks that were looked at. std's lock: its holders neither suspend nor run user code.
static SEEN: Mutex<Option<HashSet<u64>>> = Mutex::new(None);

/// Stack that a look may use; where less is left, none is made.
const STACK_BYTES: usize = 128 << 10;

/// What a frame's name contains, and what it means to suspend in it.
const DANGERS: [(&str, &str); 8] = [
    ("thread_local::native::lazy::Storage", "a thread_local! initialiser: another fiber of this thread may run it again"),
    ("thread_local::os::", "a thread_local! initialiser: another fiber of this thread may run it again"),
    ("scoped_tls::ScopedKey", "a scoped thread-local's closure: other fibers of this thread see its value"),
    ("std::sync::once::Once", "a Once: other fibers of this thread that come to it block the thread for ever"),
    ("std::sys::sync::once", "a Once: other fibers of this thread that come to it block the thread for ever"),
    ("once_lock::OnceLock", "a OnceLock: other fibers of this thread that come to it block the thread for ever"),
    ("once_cell::imp", "a once_cell: other fibers of this thread that come to it block the thread for ever"),
    ("panic_with_hook", "a panic hook: it runs under a lock of std's"),
];

/// Begins to look.
pub(crate) fn turn_on() {
    if cfg!(debug_assertions) {
        IS_ON.store(true, Relaxed);
    } else {
        let _ =
            writeln!(std::io::stderr(), "sinew: SINEW_AUDIT is set, but suspensions are looked at in builds with debug assertions only");
    }
}

/// Looks at a suspension of `fiber`, which has `stack_left` bytes of stack. By the fiber itself, in builds with debug assertions.
#[inline]
pub(crate) fn suspends(fiber: &dyn Display, stack_left: usize) {
    if IS_ON.load(Relaxed) {
        look(fiber, stack_left);
    }
}

#[cold]
fn look(fiber: &dyn Display, stack_left: usize) {
    if stack_left < STACK_BYTES {
        static ONCE: AtomicBool = AtomicBool::new(false);
        if !ONCE.swap(true, Relaxed) {
            let _ = writeln!(
                std::io::stderr(),
                "sinew audit: fiber {fiber}, and others with less than 128 KiB of stack left, cannot be looked at"
            );
        }
        return;
    }
    if !is_new(call_stack()) {
        return;
    }
    let frames = Backtrace::force_capture().to_string();
    if let Some((_, what)) = DANGERS.iter().find(|(name, _)| frames.contains(name)) {
        let _ = writeln!(std::io::stderr(), "sinew audit: fiber {fiber}, suspends in {what}\n{frames}");
    }
}

fn is_new(call_stack: u64) -> bool {
    SEEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert_default().insert(call_stack)
}

unsafe extern "C-unwind" {
    fn _Unwind_Backtrace(each: extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// A hash of the addresses from here to the fiber's root.
fn call_stack() -> u64 {
    extern "C-unwind" fn each(context: *mut c_void, hasher: *mut c_void) -> c_int {
        // SAFETY: the walk below gives the hasher, and the context is the walk's.
        unsafe { (*hasher.cast::<DefaultHasher>()).write_usize(_Unwind_GetIP(context)) };
        0
    }
    let mut hasher = DefaultHasher::new();
    // SAFETY: std's own unwinder; `each` neither unwinds nor keeps what it is given.
    unsafe { _Unwind_Backtrace(each, (&raw mut hasher).cast()) };
    hasher.finish()
}
