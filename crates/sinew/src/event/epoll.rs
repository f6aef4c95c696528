//! Epoll: the kernel tells when a descriptor is worth another try.
//!
//! # Invariants
//! I1. The data of an event is the address of a [`Readiness`], which is never freed, or one of the small numbers below.
//! I2. A worker that sleeps here is woken by every event of its instance, whoever waits for it. Its events wake its own fibers only. (Those that may move wait at the instance of their group,
//!     `roam.rs`.)

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::instance::{Instance, create};
use super::readiness::{Direction, Readiness, Told};
use super::source::{SOURCE_GAP_NS, SOURCE_TURNS, lost};
use crate::base::list::{Linked, List};
use crate::base::prefetch::prefetch;
use crate::fiber::{Control, Kind};
use crate::os::bell::Bell;
use crate::os::clock;

/// Events fetched by one call. What is left is fetched by the next; the kernel goes round, so none is left for ever.
const EVENTS: usize = 256;

/// The cache is asked so many events ahead for what one tells of.
const AHEAD: usize = 8;

/// So many stacks the processor knows the pages of. Arbitrary: its smaller table has 72 entries (Zen 4).
const STACKS_KNOWN: usize = 64;

const BELL: u64 = 0;
/// The instance of the group, which the lookout watches (`roam.rs`).
const ROAM: u64 = 1;
/// The alarm of a group's instance.
const ALARM: u64 = 2;

/// The kernel is older than 5.11, or its container is, and counts sleeps in milliseconds.
static IN_MILLISECONDS: AtomicBool = AtomicBool::new(false);

/// The epoll instance of one worker.
pub(crate) struct Epoll {
    instance: Instance,
    events: Vec<libc::epoll_event>,
    /// When the kernel was last asked.
    polled_ns: u64,
    /// Whether the group's instance is among those it tells of, and is watched now.
    has_roam: bool,
    watches_roam: bool,
}

/// Ends the waits for what an event tells of: appends the fibers to `woken`.
fn tell(instance: u64, event: libc::epoll_event, woken: &List<Control>) {
    let (bits, data) = (event.events as i32, event.u64);
    let ended = bits & (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) != 0;
    let urgent = bits & libc::EPOLLPRI != 0;
    let mut told = Told { directions: [false; 2], never_drained: ended || urgent };
    told.directions[Direction::Read as usize] = ended || bits & libc::EPOLLIN != 0;
    told.directions[Direction::Write as usize] = bits & (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) != 0;
    // SAFETY: I1.
    unsafe { &*(data as *const Readiness) }.edge(instance, told, |claimed| {
        debug_assert_ne!(claimed.kind, Kind::Thread, "threads poll by themselves");
        // SAFETY: F1 - a claimed fiber is ours, and in no list, until it is made ready.
        unsafe { woken.push(claimed.control.cast_mut()) };
    });
}

/// Has the pages of these fibers' stacks looked up, in a row, so that the look-ups overlap: each fiber does system calls before the next one runs, and what is asked for then is waited for if the page is not known. Few are known anyway.
fn fetch_stacks(woken: &List<Control>) {
    if woken.len() < STACKS_KNOWN {
        return;
    }
    let mut at = woken.first();
    // SAFETY: F1 - claimed fibers are ours, and in this list, until they are made ready.
    while let Some(control) = unsafe { at.as_ref() } {
        prefetch(control.sp());
        at = control.link().load(Relaxed);
    }
}

/// An instance of a thread's own, which tells of one descriptor, and of each thing once.
pub(crate) struct Edges(OwnedFd);

impl Edges {
    /// Tells of `bits`, as poll has them, and of errors. What is the case now is told of too.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn of(fd: RawFd, bits: libc::c_short) -> io::Result<Self> {
        let epoll = create()?;
        let mut event = libc::epoll_event { events: bits as u32 | libc::EPOLLET as u32, u64: 0 };
        // SAFETY: the event outlives the call.
        match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } {
            0 => Ok(Self(epoll)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// What is readable when there is something to [take](Self::take).
    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// What has come since the last time, as poll has it; 0 if nothing has.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn take(&self) -> io::Result<libc::c_short> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: there is room for one.
        match unsafe { libc::epoll_wait(self.fd(), &mut event, 1, 0) } {
            -1 => Err(io::Error::last_os_error()),
            // The bits that are asked for, and those that come unasked, are the same in both.
            _ => Ok(event.events as libc::c_short),
        }
    }
}

/// A moment that an instance tells of, once, as of something that has come.
pub(super) struct Alarm(OwnedFd);

impl Alarm {
    /// Of the instance `epoll`, which has no other. Not set.
    pub(super) fn new(epoll: RawFd) -> io::Result<Self> {
        // SAFETY: no memory of ours is involved.
        let timer = match unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: a new descriptor, which nobody else owns.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        // Told of at its edge, so that it need not be read.
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: ALARM };
        // SAFETY: the event outlives the call.
        match unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, timer.as_raw_fd(), &mut event) } {
            0 => Ok(Self(timer)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sets it to `at_ns`, in place of whatever it was set to. A moment that has passed is told of at once.
    pub(super) fn set(&self, at_ns: u64) {
        // Zero would turn it off.
        let alarm = libc::itimerspec { it_interval: clock::timespec(0), it_value: clock::timespec(at_ns.max(1)) };
        // SAFETY: the time outlives the call.
        if unsafe { libc::timerfd_settime(self.0.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &alarm, std::ptr::null_mut()) } != 0 {
            lost("timerfd_settime", &io::Error::last_os_error());
        }
    }
}

/// Asks an instance that any thread may ask, and in which only descriptors and an alarm are, for what has come by now; whether the alarm has gone off.
pub(super) fn look_once<const MOST: usize>(epoll: RawFd, instance: u64, woken: &List<Control>) -> bool {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
    // SAFETY: there is room for so many.
    let found = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), MOST as libc::c_int, 0) };
    let Ok(found) = usize::try_from(found) else {
        check(&io::Error::last_os_error());
        return false;
    };
    let mut rang = false;
    for &event in &events[..found] {
        match event.u64 {
            ALARM => rang = true,
            _ => tell(instance, event, woken),
        }
    }
    rang
}

/// An interrupted wait found nothing; any other error is the end.
fn check(error: &io::Error) {
    if error.kind() != io::ErrorKind::Interrupted {
        lost("epoll_wait", error);
    }
}

impl Epoll {
    pub(crate) fn open(bell: &Bell) -> io::Result<Self> {
        let instance = Instance::open()?;
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: BELL };
        // SAFETY: the event outlives the call.
        if unsafe { libc::epoll_ctl(instance.fd(), libc::EPOLL_CTL_ADD, bell.fd(), &mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let events = Vec::with_capacity(EVENTS);
        Ok(Self { instance, events, polled_ns: 0, has_roam: false, watches_roam: false })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.instance.fd()
    }

    pub(crate) fn instance(&self) -> u64 {
        self.instance.number()
    }

    pub(crate) fn has_found(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) fn is_due(&self) -> bool {
        clock::now_ns() >= self.polled_ns + SOURCE_GAP_NS
    }

    pub(crate) fn look(&mut self, turns: u32, has_backlog: bool, woken: &List<Control>) -> bool {
        if self.events.is_empty() {
            if turns < SOURCE_TURNS && (has_backlog || !self.is_due()) {
                return false;
            }
            self.fetch(0);
        }
        for i in 0..self.events.len() {
            if let Some(later) = self.events.get(i + AHEAD) {
                // A hint: of the small numbers it asks for nothing.
                prefetch(later.u64 as *const Readiness);
            }
            let event = self.events[i];
            match event.u64 {
                BELL => {}
                ROAM => self.watches_roam = false,
                _ => tell(self.instance.number(), event, woken),
            }
        }
        self.events.clear();
        fetch_stacks(woken);
        true
    }

    /// Is woken once when there is something at the instance `roam`, of which there is one.
    pub(crate) fn watch_roam(&mut self, roam: RawFd) -> io::Result<()> {
        if self.watches_roam {
            return Ok(());
        }
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLONESHOT) as u32, u64: ROAM };
        let what = if self.has_roam { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_ADD };
        // SAFETY: the event outlives the call.
        if unsafe { libc::epoll_ctl(self.fd(), what, roam, &mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        (self.has_roam, self.watches_roam) = (true, true);
        Ok(())
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
                check(&io::Error::last_os_error());
            }
            self.events.set_len(usize::try_from(found).unwrap_or(0));
        }
        self.polled_ns = clock::now_ns();
    }

    unsafe fn wait(&mut self, left: Option<u64>) -> libc::c_long {
        let (fd, room, most) = (self.fd(), self.events.as_mut_ptr(), EVENTS as libc::c_int);
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
