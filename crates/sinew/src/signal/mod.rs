//! Signals of the system, as events that fibers and threads wait for.
//!
//! A signal that is waited for no longer does what it does by default: from the first wait on, SIGINT does not end the process, also after the wait is over. What another handler did before is
//! done too.
//!
//! Each [`Signals`] hears for itself: its handler sets a bit and rings a bell of its own, a descriptor (`eventfd`) that its waiter waits for. So everybody who waits for a signal sees
//! it, and there is neither a thread nor a fiber in between. Handlers are kept by the crate `signal-hook-registry`, which others use too, so that they do not take them from each other.
//!
//! # Examples
//! ```
//! use sinew::signal::{Signal, Signals};
//!
//! let signals = Signals::new([Signal::TERM, Signal::USR1])?;
//! let fiber = sinew::spawn(move || signals.wait());
//! sinew::process::Command::new("kill").args(["-USR1", &std::process::id().to_string()]).status()?;
//! assert_eq!(fiber.join().unwrap()?, Signal::USR1);
//! # std::io::Result::Ok(())
//! ```

mod come;

use std::fmt;
use std::io;
use std::sync::Arc;

use come::Come;
use signal_hook_registry::{FORBIDDEN, SigId, register, unregister};

use crate::rt::io::{Interest, count_gift, poll};
use crate::rt::wait::enter_cancel_point;

/// The largest number of a signal.
const NUMBER_MAX: i32 = 64;

/// Waits for Ctrl-C (SIGINT).
///
/// One that comes before the call ends the process, or goes to other listeners; one that comes after it, and before the next call, is lost: make [`Signals`] once to miss none.
///
/// # Suspends
/// Yes, until the signal comes. A [cancel point](crate::cancelled).
///
/// # Errors
/// The system's, when there are too many descriptors; and as every cancel point.
///
/// # Examples
/// ```no_run
/// let work = sinew::spawn(|| sinew::sleep(std::time::Duration::from_secs(3600)));
/// sinew::signal::ctrl_c()?;
/// work.cancel();
/// work.join().unwrap();
/// # std::io::Result::Ok(())
/// ```
#[track_caller]
pub fn ctrl_c() -> io::Result<()> {
    wait([Signal::INT]).map(drop)
}

/// Waits for one of `signals`; gives the one that came.
///
/// As [`ctrl_c`], it hears only what comes during the call.
///
/// # Suspends
/// Yes, until one comes. A [cancel point](crate::cancelled).
///
/// # Errors
/// As [`Signals::new`]; and as every cancel point.
#[track_caller]
pub fn wait<I: IntoIterator<Item = Signal>>(signals: I) -> io::Result<Signal> {
    Signals::new(signals)?.wait()
}

/// A listener: from its making to its drop no signal of its list is missed.
///
/// Several of one kind that come while nobody waits are one, as signals are in the system.
#[derive(Debug)]
pub struct Signals {
    come: Arc<Come>,
    registered: Vec<SigId>,
}

impl Signals {
    /// Begins to listen for `signals`.
    ///
    /// # Errors
    /// `InvalidInput` if there is none among them, one that is none, or one that cannot be waited for: SIGKILL, SIGSTOP, SIGILL, SIGFPE and SIGSEGV. The system's, when there are
    /// too many descriptors.
    pub fn new<I: IntoIterator<Item = Signal>>(signals: I) -> io::Result<Self> {
        let mut listener = Self { come: Arc::new(Come::new()?), registered: Vec::new() };
        for signal in signals {
            listener.add(signal)?;
        }
        if listener.registered.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no signal to wait for"));
        }
        Ok(listener)
    }

    fn add(&mut self, Signal(number): Signal) -> io::Result<()> {
        if !(1..=NUMBER_MAX).contains(&number) || FORBIDDEN.contains(&number) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} cannot be waited for", Signal(number))));
        }
        let come = self.come.clone();
        // SAFETY: the action sets a bit of an atomic and makes one system call: fit for a handler of signals. The registry keeps `errno`.
        self.registered.push(unsafe { register(number, move || come.note(number)) }?);
        handle_on_alternate_stack(number)
    }

    /// Waits for the next signal. Several may wait at once: each signal goes to one of them.
    ///
    /// # Suspends
    /// Yes, until one comes. A [cancel point](crate::cancelled): cut short, it leaves what comes to the next wait.
    ///
    /// # Errors
    /// As every cancel point.
    #[track_caller]
    pub fn wait(&self) -> io::Result<Signal> {
        enter_cancel_point()?;
        loop {
            if let Some(number) = self.come.take() {
                return Ok(Signal(number));
            }
            poll(&self.come.bell, Interest::Readable)?;
            self.come.bell.hush();
        }
    }

    /// Gives a signal that has come, if one has. Never waits, but lets other fibers run from time to time, as all calls that need not wait.
    pub fn try_wait(&self) -> Option<Signal> {
        count_gift();
        self.come.take().map(Signal)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            unregister(id);
        }
    }
}

/// Has the handler of a signal run where those of stack overflows do, and not on a fiber's stack, which may have no room for its frame; and one at a time: of 8 KiB, which std gives a thread for that,
/// five that come upon each other use up all. The registry does not ask for either.
fn handle_on_alternate_stack(number: i32) -> io::Result<()> {
    // SAFETY: zeros are a value of this type; the calls write to it, and set what they have read with one more flag and more signals to hold back.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(number, std::ptr::null(), &mut action) != 0 {
            return Err(io::Error::last_os_error());
        }
        if action.sa_flags & libc::SA_ONSTACK == 0 {
            action.sa_flags |= libc::SA_ONSTACK;
            libc::sigfillset(&mut action.sa_mask);
            // What a fault sends is not to be held back.
            for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT] {
                libc::sigdelset(&mut action.sa_mask, fault);
            }
            if libc::sigaction(number, &action, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// A signal, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signal(i32);

/// Names, and what each is for.
macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $number:ident;)*) => {
        impl Signal {
            $($(#[$doc])* pub const $name: Signal = Signal(libc::$number);)*

            fn name(self) -> Option<&'static str> {
                match self {
                    $(Signal::$name => Some(stringify!($number)),)*
                    _ => None,
                }
            }
        }
    };
}

names! {
    /// Ctrl-C.
    INT = SIGINT;
    /// A polite demand to end: what `kill` sends.
    TERM = SIGTERM;
    /// The terminal is gone; to a service: read the settings again.
    HUP = SIGHUP;
    /// Ctrl-\.
    QUIT = SIGQUIT;
    /// Whatever the program takes it for.
    USR1 = SIGUSR1;
    /// Whatever the program takes it for.
    USR2 = SIGUSR2;
    /// A child process has ended or stopped. [`process`](crate::process) does not need it.
    CHLD = SIGCHLD;
    /// A timer of the system's.
    ALRM = SIGALRM;
    /// A write that nobody reads. Rust programs ignore it, and see the error.
    PIPE = SIGPIPE;
    /// The terminal has another size.
    WINCH = SIGWINCH;
    /// The process goes on after it was stopped.
    CONT = SIGCONT;
    /// Ctrl-Z.
    TSTP = SIGTSTP;
}

impl Signal {
    /// The signal of this number.
    pub const fn from_raw(number: i32) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn as_raw(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "signal {}", self.0),
        }
    }
}
