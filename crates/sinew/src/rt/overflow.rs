//! What is said of a fiber that ran off its stack.

use std::fmt::Write;

use crate::fiber::stack;
use crate::os::fault::Line;
use crate::sched::worker::here;

/// Fills `line` if `address` lies in the guard of the fiber that runs on this thread. In a signal handler.
pub(crate) fn describe(address: usize, line: &mut Line) -> bool {
    let Some(control) = here().and_then(|worker| worker.current()) else { return false };
    if !stack::in_guard(address, control.stack_bottom()) {
        return false;
    }
    let kib = control.class().bytes() / 1024;
    // The fix before the name, which may be long; the name without what would speak to a terminal.
    let _ = write!(
        line,
        "sinew: fiber {} overflowed its stack of {kib} KiB; give it more with Builder::stack_size, or all fibers with SINEW_STACK_SIZE={}K; \
         it was spawned at {}",
        control.id(),
        (kib * 2).min(stack::MAX_BYTES / 1024),
        control.site(),
    );
    if let Some(name) = control.name() {
        let _ = write!(line, " and is named '");
        for c in name.chars() {
            let _ = line.write_char(if c.is_control() { '?' } else { c });
        }
        let _ = write!(line, "'");
    }
    true
}
