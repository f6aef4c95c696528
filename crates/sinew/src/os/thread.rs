//! Starting a thread that nobody joins.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static FAIL: AtomicBool = AtomicBool::new(false);

/// Starts `body` on a thread of its own.
pub(crate) fn start(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    if FAIL.load(Relaxed) {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    std::thread::Builder::new().name(name).spawn(body).map(drop)
}

/// Makes every start fail from now on, or no longer; for tests of exhaustion.
pub(crate) fn fail(now: bool) {
    FAIL.store(now, Relaxed);
}
