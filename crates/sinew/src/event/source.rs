//! Where one worker's fibers wait for the kernel: a ring, or an epoll instance.
//!
//! A worker opens its source when one of its fibers first waits for I/O; a program without I/O has none. A source is used by its worker's thread alone: fibers put
//! what they wait for into it, the worker's loop [looks](Source::look) from time to time, and a worker with nothing to do [sleeps](Source::sleep) in it.
//!
//! The two drivers are of equal rank. With a ring an operation is handed to the kernel, which writes into the borrowed buffer and tells when it has (`uring.rs`). With
//! epoll the kernel tells when it is worth trying, and the fiber tries (`epoll.rs`, `readiness.rs`).
//!
//! # Invariants
//! I1. A source hands back fibers whose wait it has ended, and runs no user code (law E1).
//! I2. A worker whose fibers wait here sleeps here: it is woken by what they wait for, by its [`Bell`], or by the earliest deadline.
//! I3. A borrowed buffer is the kernel's until the completion of its operation is read (law E2). The fiber that lent it waits for that, whatever happens; so when all fibers of
//!     a worker have ended, nothing of theirs is in the ring, and it may be closed. (To close it is no barrier by itself.)

use std::io;
use std::os::fd::RawFd;
use std::sync::OnceLock;

use super::epoll::Epoll;
use super::uring::Uring;
use crate::base::list::List;
use crate::fiber::Control;
use crate::os::bell::Bell;

/// Turns of the worker's loop after which a worker that always has ready fibers polls epoll, which is a system call, though not all have run that were ready at the last time. Even, so that the loop's own order by turns holds. Arbitrary: some 500 switches, 10 us of yields.
pub(crate) const SOURCE_TURNS: u32 = 16;
/// And, where all of those have run, the time between two polls, whatever the turns: fibers that compute for long make long ones. Arbitrary: a hundred times what a poll costs.
pub(crate) const SOURCE_GAP_NS: u64 = 100_000;

/// How a runtime's fibers do I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Io {
    /// The ring where the kernel allows it, else epoll.
    #[default]
    Auto,
    /// `io_uring`: one ring per worker.
    Uring,
    /// `epoll`: one instance per worker.
    Epoll,
}

/// What a worker opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    Uring,
    Epoll,
}

impl Driver {
    /// The driver for what was asked; an error if the kernel refuses the one that was named.
    pub(crate) fn choose(io: Io) -> io::Result<Driver> {
        match io {
            Io::Epoll => Ok(Driver::Epoll),
            Io::Uring => probe().map(|()| Driver::Uring).map_err(|error| {
                let text = match is_shortage(&error) {
                    true => format!("there are no descriptors for a ring ({error}): {MORE_DESCRIPTORS}"),
                    false => format!("the kernel refuses io_uring ({error}): {REMEDY}"),
                };
                io::Error::new(error.kind(), text)
            }),
            Io::Auto => match AUTO.get() {
                Some(driver) => Ok(*driver),
                None => choose_for_all(),
            },
        }
    }

    /// What it is called.
    pub(crate) fn io(self) -> Io {
        match self {
            Driver::Uring => Io::Uring,
            Driver::Epoll => Io::Epoll,
        }
    }
}

/// What `Auto` comes to, for the process. A shortage of descriptors says nothing of the kernel, and nothing is settled by it.
#[cold]
fn choose_for_all() -> io::Result<Driver> {
    let probed = match probe() {
        Err(error) if is_shortage(&error) => return Err(error),
        probed => probed,
    };
    Ok(*AUTO.get_or_init(|| match probed {
        Ok(()) => Driver::Uring,
        Err(error) => {
            eprintln!("sinew: I/O goes by epoll, since the kernel refuses io_uring ({error}); SINEW_IO=epoll silences this line");
            Driver::Epoll
        }
    }))
}

/// Whether an error says that there are no descriptors to be had, which may be over soon.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

const MORE_DESCRIPTORS: &str = "raise the limit (ulimit -n, /proc/sys/fs/file-max) or close some";
const REMEDY: &str = "ask for Io::Epoll or Io::Auto, or allow it (/proc/sys/kernel/io_uring_disabled, the container's seccomp profile)";

/// What `Auto` came to, once for the process.
static AUTO: OnceLock<Driver> = OnceLock::new();

/// Whether there can be a ring with all that is needed of it, and whether it works: a sandbox may allow the call that makes one, and forbid the one that uses it.
///
/// By a thread of its own: the kernel takes a ring apart some time after it was closed, and for that it interrupts the thread that has used it. The caller may be any thread; its next call of the system would fail (EINTR).
fn probe() -> io::Result<()> {
    match std::thread::Builder::new().spawn(probe_here) {
        Ok(probing) => probing.join().expect("a probe does not panic"),
        Err(_) => probe_here(),
    }
}

fn probe_here() -> io::Result<()> {
    Uring::open(&Bell::new()?)?.prove()
}

/// The source of one worker.
pub(crate) enum Source {
    Uring(Box<Uring>),
    Epoll(Box<Epoll>),
}

impl Source {
    /// Opens one that `bell` wakes. The bell outlives it.
    ///
    /// # Errors
    /// What the system says. With [`Io::Auto`] a ring that one worker is refused, for want of memory, is no error: that worker has an epoll instance then, and says so.
    pub(crate) fn open(io: Io, bell: &Bell) -> io::Result<Self> {
        // One that was named was tried when the runtime was built.
        if io != Io::Uring && Driver::choose(io)? == Driver::Epoll {
            return Self::open_epoll(bell);
        }
        match Uring::open(bell) {
            Ok(ring) => Ok(Source::Uring(Box::new(ring))),
            Err(error) if io == Io::Uring || is_shortage(&error) => Err(error),
            Err(error) => {
                eprintln!("sinew: the I/O of one worker goes by epoll, since the kernel has no ring for it ({error})");
                Self::open_epoll(bell)
            }
        }
    }

    fn open_epoll(bell: &Bell) -> io::Result<Self> {
        Ok(Source::Epoll(Box::new(Epoll::open(bell)?)))
    }

    /// Which of the two it is.
    pub(crate) fn io(&self) -> Io {
        match self {
            Source::Uring(_) => Io::Uring,
            Source::Epoll(_) => Io::Epoll,
        }
    }

    pub(crate) fn is_ring(&self) -> bool {
        matches!(self, Source::Uring(_))
    }

    /// What is yet to be told to the kernel.
    #[inline]
    pub(crate) fn unsent(&self) -> usize {
        match self {
            Source::Uring(ring) => ring.unsent(),
            Source::Epoll(_) => 0,
        }
    }

    /// Whether [`look`](Self::look) would find something that has come already, or has more to tell than a sleep does. A look at memory.
    #[inline]
    pub(crate) fn has_found(&self) -> bool {
        match self {
            Source::Uring(ring) => ring.has_found(),
            Source::Epoll(epoll) => epoll.has_found(),
        }
    }

    /// Whether the kernel was not asked for so long that even a worker with nothing to do asks it before it rests: one that is called in vain again and again never comes to sleep. A ring tells by memory.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        match self {
            Source::Uring(_) => false,
            Source::Epoll(epoll) => epoll.is_due(),
        }
    }

    /// Tells the kernel what is to be told, asks it for what has come, and ends the waits for that: appends the fibers to `woken`. `turns` are those of the worker since it last asked, and `has_backlog` says that
    /// not all have run that were ready then; `false` if it is too early to ask again. A ring is told by the call that asks it; in a crowd, of the more receives the fewer fibers are `ready`.
    #[inline]
    pub(crate) fn look(&mut self, turns: u32, has_backlog: bool, ready: usize, woken: &List<Control>) -> bool {
        match self {
            Source::Uring(ring) => {
                ring.look(ready, woken);
                true
            }
            Source::Epoll(epoll) => epoll.look(turns, has_backlog, woken),
        }
    }

    /// Has the next sleep end when there is something at the epoll instance `roam` of the group, too.
    ///
    /// # Errors
    /// What the kernel says, if it has no memory for that.
    pub(crate) fn watch_roam(&mut self, roam: RawFd) -> io::Result<()> {
        match self {
            Source::Uring(ring) => {
                ring.watch_roam(roam);
                Ok(())
            }
            Source::Epoll(epoll) => epoll.watch_roam(roam),
        }
    }

    /// Sleeps until something has come, the bell rings, or it is `deadline_ns`. Returns early for no reason at all. What has come is for the next `look`.
    pub(crate) fn sleep(&mut self, deadline_ns: u64) {
        match self {
            Source::Uring(ring) => ring.sleep(deadline_ns),
            Source::Epoll(epoll) => epoll.sleep(deadline_ns),
        }
    }
}

/// Ends the process: what fibers wait for cannot be learned any more.
#[cold]
pub(crate) fn lost(call: &str, error: &io::Error) -> ! {
    eprintln!(
        "sinew: {call} failed ({error}): a worker has lost its source of I/O; has something closed descriptors that it had not opened?"
    );
    std::process::abort();
}
