//! Ctrl-C (SIGINT): the first one is heard, the second ends the process, as it does by default.
//!
//! A thread waits for it, so that commands whose main thread is at work hear it too.

use std::fmt;
use std::io::{self, Write};
use std::process;
use std::sync::Arc;

use sinew::signal::{Signal, Signals};
use sinew::sync::Event;

/// Exit code of what was cut short: as shells tell of a process that SIGINT has ended.
pub(crate) const CUT_SHORT: u8 = 130;

/// Listens for Ctrl-C; the event is set by the first.
///
/// # Errors
/// If there is no descriptor or thread for it.
pub(crate) fn listen() -> io::Result<Arc<Event>> {
    let (signals, come) = (Signals::new([Signal::INT])?, Arc::new(Event::new()));
    let event = come.clone();
    in_thread(move || {
        if signals.wait().is_ok() {
            // SAFETY: the default action is one for every signal, and no code of ours runs in it.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
            event.set();
        }
    })?;
    Ok(come)
}

/// Does `deed` on a thread of its own.
///
/// # Errors
/// If there is no thread for it.
pub(crate) fn in_thread(deed: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("ctrl-c".into()).spawn(deed).map(drop)
}

/// Says how far it came, and ends the process.
pub(crate) fn end(how_far: fmt::Arguments<'_>) -> ! {
    // Whoever closes our output early does not want it.
    let _ = writeln!(io::stderr(), "cut short {how_far}");
    process::exit(CUT_SHORT.into());
}
