//! Telling a fiber's stack overflow from every other fault.
//!
//! A handler for SIGSEGV and SIGBUS is put before the one that is there (std's, or anybody's). It asks `describe`, which was handed down
//! at installation, whether the address lies in the guard of the fiber that runs on this thread. If so it writes one line and lets the
//! process die by the default action at the faulting instruction, so that a core dump shows the true frame. If not, the earlier
//! handler gets the signal exactly as if we were not here.
//!
//! Recovery was rejected: the fault may be anywhere, so destructors would be skipped and locks stay held (`DESIGN`, never).
//!
//! # Not here
//! What the line says: `rt::overflow`. Threads made by std bring their own alternate stack; [`ensure_alternate_stack`] serves the others.

use std::fmt::{self, Write};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

/// Writes the report for a fault at `address` if it is an overflow of the fiber running on this thread.
///
/// Runs in a signal handler: no locks, no allocation. Returns whether the fault was ours.
pub(crate) type Describe = fn(address: usize, line: &mut Line) -> bool;

const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Room for the report, names included; longer ones are cut.
const LINE_BYTES: usize = 1024;

/// What the handler on top of the default alternate stack of glibc (8 KiB) may need: this, twice over.
const ALTERNATE_STACK_BYTES: usize = 32 * 1024;

struct Installed {
    describe: Describe,
    before: [libc::sigaction; 2],
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();

/// Puts our handler in front, once per process.
pub(crate) fn install(describe: Describe) {
    INSTALLED.get_or_init(|| Installed { describe, before: SIGNALS.map(current_action) });
    static ARMED: std::sync::Once = std::sync::Once::new();
    // After INSTALLED is readable, so that a fault in between finds the earlier handler, and one after it finds everything.
    ARMED.call_once(|| {
        for signal in SIGNALS {
            // SAFETY: all-zero is a valid `sigaction`; the handler has the SA_SIGINFO signature and is async-signal-safe.
            unsafe {
                let mut ours: libc::sigaction = std::mem::zeroed();
                ours.sa_sigaction = on_fault as *const () as usize;
                ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(signal, &ours, ptr::null_mut());
            }
        }
    });
}

fn current_action(signal: i32) -> libc::sigaction {
    let mut action = MaybeUninit::zeroed();
    // SAFETY: asks only, into a place large enough; zeroes (SIG_DFL) stand if the call fails.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    }
}

/// Gives this thread an alternate signal stack if it has none. It is leaked: threads that need it are few and live long.
pub(crate) fn ensure_alternate_stack() {
    // SAFETY: plain queries and settings of this thread's signal stack; the memory given to it is leaked and so stays valid.
    unsafe {
        let mut now: libc::stack_t = std::mem::zeroed();
        if libc::sigaltstack(ptr::null(), &mut now) != 0 || now.ss_flags & libc::SS_DISABLE == 0 {
            return;
        }
        let memory = Box::leak(vec![0u8; ALTERNATE_STACK_BYTES].into_boxed_slice());
        let ours = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
        libc::sigaltstack(&ours, ptr::null_mut());
    }
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(installed) = INSTALLED.get() else { return };
    // SAFETY: the kernel hands a valid `siginfo_t` to an SA_SIGINFO handler.
    let address = unsafe { (*info).si_addr() } as usize;
    let mut line = Line::new();
    if (installed.describe)(address, &mut line) {
        line.send_to_stderr();
        default_action(signal);
        return;
    }
    let before = &installed.before[usize::from(signal == libc::SIGBUS)];
    if before.sa_flags & libc::SA_RESETHAND != 0 {
        default_action(signal);
    }
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => default_action(signal),
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: `sigaction` reported this as an SA_SIGINFO handler, so it has this signature.
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: `sigaction` reported this as a plain handler, so it takes the signal number alone.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// The faulting instruction runs again when the handler returns and now ends the process. (Ignoring a real fault would loop for ever.)
fn default_action(signal: i32) {
    // SAFETY: `signal` is async-signal-safe and SIG_DFL always valid.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// A line of text built without allocation.
pub(crate) struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: [0; LINE_BYTES], len: 0 }
    }

    fn send_to_stderr(&mut self) {
        let _ = self.write_str("\n");
        self.bytes[self.len - 1] = b'\n';
        // SAFETY: the buffer is ours and `len` within it. A failed write has nobody to be told to.
        unsafe { libc::write(2, self.bytes.as_ptr().cast(), self.len) };
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LINE_BYTES - self.len;
        let taken = text.len().min(room);
        self.bytes[self.len..self.len + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        Ok(())
    }
}
