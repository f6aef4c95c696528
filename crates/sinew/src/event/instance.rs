//! An epoll instance, and how a descriptor that it tells of is taken out of it.
//!
//! The kernel takes a descriptor out of all instances when the last duplicate of it is closed. While there are others it goes on to tell of it, under a number that may be another's by then; so one that may have
//! duplicates is taken out by hand, before it is closed or given away. Whoever does that may be another thread than the instance's, which may be gone, and its number, too, be another's: so open instances are found here by a
//! number of our own, which never comes again.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::os::fork;
use crate::os::lock::Lock;

static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// All that workers and groups have.
static OPEN: Lock<Vec<(u64, Arc<OwnedFd>)>> = Lock::new(Vec::new());

/// The epoll instance of a worker or a group.
pub(crate) struct Instance {
    fd: Arc<OwnedFd>,
    number: u64,
}

/// A new instance.
///
/// # Errors
/// What the system says.
pub(super) fn create() -> io::Result<OwnedFd> {
    // SAFETY: no memory of ours is involved.
    match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: a new descriptor, which nobody else owns.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

impl Instance {
    pub(super) fn open() -> io::Result<Self> {
        let fd = Arc::new(create()?);
        let number = NUMBERS.fetch_add(1, Relaxed);
        OPEN.lock().push((number, Arc::clone(&fd)));
        Ok(Self { fd, number })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Which one it is, of all in this process there ever were.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever by a thread that is not there.
        if !fork::is_child() {
            OPEN.lock().retain(|(number, _)| *number != self.number);
        }
    }
}

/// Takes `fd` out of the instance with this number, if that is open.
pub(super) fn forget(number: u64, fd: RawFd) {
    let open = OPEN.lock().iter().find(|(open, _)| *open == number).map(|(_, epoll)| Arc::clone(epoll));
    if let Some(epoll) = open {
        // It fails if it is not there (ENOENT), and then nothing is to be done. SAFETY: numbers go in.
        unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, ptr::null_mut()) };
    }
}
