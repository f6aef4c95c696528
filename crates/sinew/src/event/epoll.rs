//! Epoll: the kernel tells when a descriptor is worth another try.
//!
//! # Invariants
//! I1. The data of an event is the address of a [`Readiness`], which is never freed, or 0 for the bell.
//! I2. A worker that sleeps here is woken by every event of its instance, whoever waits for it. Its events wake its own fibers only.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::readiness::{Direction, Readiness, Told};
use super::source::{SOURCE_GAP_NS, SOURCE_TURNS, lost};
use crate::base::list::List;
use crate::fiber::{Control, Kind};
use crate::os::bell::Bell;
use crate::os::clock;

/// Events fetched by one call. What is left is fetched by the next; the kernel goes round, so none is left for ever.
const EVENTS: usize = 256;

const BELL: u64 = 0;

static INSTANCES: AtomicU64 = AtomicU64::new(0);

/// The kernel is older than 5.11, or its container is, and counts sleeps in milliseconds.
static IN_MILLISECONDS: AtomicBool = AtomicBool::new(false);

/// The epoll instance of one worker.
pub(crate) struct Epoll {
    fd: OwnedFd,
    /// Which one it is, of all in this process there ever were: a descriptor's number may come again.
    instance: u64,
    events: Vec<libc::epoll_event>,
    /// The turn of the last look, and its time.
    polled: u32,
    polled_ns: u64,
}

impl Epoll {
    pub(crate) fn open(bell: &Bell) -> io::Result<Self> {
        // SAFETY: no memory of ours is involved.
        let fd = match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: a new descriptor, which nobody else owns.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: BELL };
        // SAFETY: the event outlives the call.
        if unsafe { libc::epoll_ctl(fd.as_raw_fd(), libc::EPOLL_CTL_ADD, bell.fd(), &mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let instance = INSTANCES.fetch_add(1, Relaxed);
        Ok(Self { fd, instance, events: Vec::with_capacity(EVENTS), polled: 0, polled_ns: 0 })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    pub(crate) fn has_found(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) fn look(&mut self, turn: u32, woken: &List<Control>) {
        if self.events.is_empty() {
            if turn.wrapping_sub(self.polled) < SOURCE_TURNS && clock::now_ns() < self.polled_ns + SOURCE_GAP_NS {
                return;
            }
            self.fetch(0);
        }
        (self.polled, self.polled_ns) = (turn, clock::now_ns());
        for event in self.events.drain(..) {
            let (bits, data) = (event.events as i32, event.u64);
            if data == BELL {
                continue;
            }
            let ended = bits & (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) != 0;
            let urgent = bits & libc::EPOLLPRI != 0;
            let mut told = Told { directions: [false; 2], never_drained: ended || urgent };
            told.directions[Direction::Read as usize] = ended || bits & libc::EPOLLIN != 0;
            told.directions[Direction::Write as usize] = bits & (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) != 0;
            // SAFETY: I1.
            unsafe { &*(data as *const Readiness) }.edge(self.instance, told, |claimed| {
                debug_assert_ne!(claimed.kind, Kind::Thread, "threads poll by themselves");
                // SAFETY: F1 - a claimed fiber is ours, and in no list, until it is made ready.
                unsafe { woken.push(claimed.control.cast_mut()) };
            });
        }
    }

    pub(crate) fn sleep(&mut self, deadline_ns: u64) {
        if self.events.is_empty() {
            self.fetch(deadline_ns);
        }
    }

    /// Waits until `deadline_ns` for events, and keeps them.
    fn fetch(&mut self, deadline_ns: u64) {
        let left = match deadline_ns {
            u64::MAX => None,
            0 => Some(0),
            _ => Some(deadline_ns.saturating_sub(clock::now_ns())),
        };
        // SAFETY: there is room for so many, and the kernel has written as many as it says; EINTR is none.
        unsafe {
            let found = self.wait(left);
            if found < 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    lost("epoll_wait", &error);
                }
            }
            self.events.set_len(usize::try_from(found).unwrap_or(0));
        }
    }

    unsafe fn wait(&mut self, left: Option<u64>) -> libc::c_long {
        let (fd, room, most) = (self.fd.as_raw_fd(), self.events.as_mut_ptr(), EVENTS as libc::c_int);
        // SAFETY: the caller keeps `room`; the limit outlives the call.
        unsafe {
            if !IN_MILLISECONDS.load(Relaxed) && left != Some(0) {
                let limit = left.map(clock::timespec);
                let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                let no_mask = std::ptr::null::<libc::sigset_t>();
                let found = libc::syscall(libc::SYS_epoll_pwait2, fd, room, most, limit, no_mask, size_of::<u64>());
                // EPERM: so do containers answer that know a call not yet.
                if found != -1 || !matches!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) {
                    return found;
                }
                IN_MILLISECONDS.store(true, Relaxed);
            }
            let milliseconds = left.map_or(-1, |left| left.div_ceil(1_000_000).min(i32::MAX as u64) as libc::c_int);
            libc::c_long::from(libc::epoll_wait(fd, room, most, milliseconds))
        }
    }
}
