//! What several tests need: those that need a process of their own run themselves again; parts of a test run in fibers or on threads.

#![allow(dead_code, reason = "not every test uses all of it")]

pub mod held;
pub mod one_place;

use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use sinew::net::{TcpListener, TcpStream};

const CHILD: &str = "SINEW_TEST_CHILD";

/// Runs the named test of this binary again in a process of its own, with `variables`, and gives how it ended and what it wrote.
pub fn in_child(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

/// Whether this is the process in which the named test was to run again.
pub fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|child| child == test)
}

/// Lets a call of the system fail with this error from now on, on this thread and those that it starts, in this process and its children: as in a container, or where something is short.
pub fn refuse(call: i64, error: i32) {
    answer(call, libc::SECCOMP_RET_ERRNO | error as u32);
}

/// Ends the process if this thread makes a call of the system from now on.
pub fn forbid(call: i64) {
    answer(call, libc::SECCOMP_RET_KILL_PROCESS);
}

/// Has the kernel do this, from now on, instead of a call of the system by this thread.
fn answer(call: i64, action: u32) {
    let filter = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The system call's number.
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, action),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program outlives the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// An object that one of those who use it ends as soon as it may, while others may still be in their calls. AddressSanitizer is given freed memory, and reports any late touch; other builds overwrite it, and find late writes.
pub struct Mortal<O>(*mut O);

// SAFETY: what it points to is `Sync`; who ends it may be another than who made it.
unsafe impl<O: Send + Sync> Send for Mortal<O> {}

impl<O> Clone for Mortal<O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for Mortal<O> {}

impl<O> Mortal<O> {
    /// No word that an object of ours may hold.
    const PATTERN: u8 = 0xA5;
    const IS_FREED: bool = cfg!(sinew_sanitize = "address");

    pub fn new(object: O) -> Self {
        Self(Box::into_raw(Box::new(object)))
    }

    /// # Safety
    /// It has not been ended, nor is it before the caller's last use of it.
    pub unsafe fn get<'a>(self) -> &'a O {
        // SAFETY: the caller's promise.
        unsafe { &*self.0 }
    }

    /// # Safety
    /// Once; nobody uses it from now on.
    pub unsafe fn end(self) {
        // SAFETY: the caller's promise; the memory came from a box.
        unsafe {
            if Self::IS_FREED {
                return drop(Box::from_raw(self.0));
            }
            self.0.drop_in_place();
            self.0.cast::<u8>().write_bytes(Self::PATTERN, size_of::<O>());
        }
    }

    /// Nobody has written to it since it was ended.
    ///
    /// # Safety
    /// Once; all who used it have returned.
    pub unsafe fn check(self) {
        if Self::IS_FREED {
            return;
        }
        // SAFETY: the memory is that of a box; its bytes were all written by `end`.
        unsafe {
            let bytes = std::slice::from_raw_parts(self.0.cast::<u8>(), size_of::<O>());
            assert!(bytes.iter().all(|&byte| byte == Self::PATTERN), "it was written to after its end, or never ended: {bytes:x?}");
            drop(Box::from_raw(self.0.cast::<std::mem::MaybeUninit<O>>()));
        }
    }
}

/// Where a part of a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Fiber,
    Thread,
}

impl On {
    pub const BOTH: [On; 2] = [On::Fiber, On::Thread];

    /// Starts `f` there; what is returned waits for it, and passes a panic on.
    pub fn start<T: Send + 'static>(self, f: impl FnOnce() -> T + Send + 'static) -> Box<dyn FnOnce() -> T> {
        match self {
            On::Fiber => {
                let fiber = sinew::spawn(f);
                Box::new(move || fiber.join().unwrap())
            }
            On::Thread => {
                let thread = std::thread::spawn(f);
                Box::new(move || thread.join().unwrap())
            }
        }
    }

    /// One of both, by turns.
    pub fn by_turns(index: usize) -> On {
        On::BOTH[index % 2]
    }
}

/// Runs `f` in a fiber of a runtime with one worker, on each driver, and on a plain thread.
pub fn everywhere(f: impl Fn() + Send + Sync) {
    for io in [sinew::Io::Uring, sinew::Io::Epoll] {
        let runtime = sinew::Runtime::builder().workers(1).io(io).build().unwrap();
        runtime.run(&f);
        runtime.shutdown_timeout(std::time::Duration::from_secs(60)).unwrap_or_else(|left| panic!("{io:?}: {left:?}"));
    }
    std::thread::scope(|s| drop(s.spawn(&f)));
}

/// Whether an error says that its caller was cancelled.
pub fn is_cancelled(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::Other && sinew::Cancelled::is_in(error)
}

/// Runs `f` in a fiber of a runtime with one worker.
pub fn alone<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    sinew::Runtime::builder().workers(1).build().unwrap().run(f)
}

/// Whether `f` panics.
pub fn panics(f: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err()
}

/// Lets others run until `condition` holds.
pub fn until(condition: impl Fn() -> bool) {
    while !condition() {
        sinew::yield_now();
    }
}

/// Two ends of a TCP connection.
pub fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, from) = listener.accept().unwrap();
    assert_eq!(from, near.local_addr().unwrap());
    (near, far)
}

/// Rounds of a race: the full number when optimised, a fiftieth otherwise.
pub fn rounds(full: usize) -> usize {
    if cfg!(debug_assertions) { full / 50 } else { full }
}

/// Waits on a plain thread for a condition, not for a time; fails loudly if it does not come.
pub fn poll_until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// The same in a fiber, which lets others run meanwhile.
pub fn await_until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        sinew::sleep(Duration::from_micros(20));
    }
}

/// Holds threads, and whatever would run on them, until it is opened.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<(usize, bool)>, Condvar)>);

impl Gate {
    /// Blocks the thread, not the fiber, until the gate is open.
    pub fn hold(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        state.0 += 1;
        let (state, late) = changed.wait_timeout_while(state, Duration::from_secs(60), |state| !state.1).unwrap();
        drop(state);
        assert!(!late.timed_out(), "the gate was not opened");
    }

    /// How many have come to it so far.
    pub fn held(&self) -> usize {
        self.0.0.lock().unwrap().0
    }

    pub fn open(&self) {
        self.0.0.lock().unwrap().1 = true;
        self.0.1.notify_all();
    }
}

/// The group whose worker runs this, by its thread's name: `0`, or `b0` for a background group.
pub fn group() -> String {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let place = name.strip_prefix("sinew-").unwrap_or_else(|| panic!("{name:?} is no worker"));
    place.split('.').next().unwrap_or_default().to_owned()
}

/// The name of each worker of this process, and the CPUs that it may use.
pub fn cpus_of_workers() -> Vec<(String, String)> {
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let path = task.ok()?.path();
        let name = std::fs::read_to_string(path.join("comm")).ok()?.trim().to_owned();
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned();
        name.strip_prefix("sinew-").filter(|name| name.contains('.')).map(|name| (name.to_owned(), cpus))
    };
    let mut all: Vec<_> = std::fs::read_dir("/proc/self/task").unwrap().filter_map(of).collect();
    all.sort();
    all
}

/// The control words of floating point, MXCSR and x87's. Rust must not compute under another mode than the default, so tests only compare them.
#[cfg(target_arch = "x86_64")]
pub mod rounding {
    pub type Words = (u32, u16);

    /// What a fiber begins with.
    pub const DEFAULT: Words = (0x1f80, 0x37f);

    /// The words of one of the four ways to round.
    pub fn mode(index: u32) -> Words {
        let bits = index % 4;
        (DEFAULT.0 | bits << 13, DEFAULT.1 | (bits as u16) << 10)
    }

    /// The words of this moment, without the flags of what was computed.
    pub fn words() -> Words {
        let (mut mxcsr, mut x87) = (0u32, 0u16);
        // SAFETY: stores the control words and nothing else.
        unsafe { std::arch::asm!("stmxcsr [{}]", "fnstcw [{}]", in(reg) &mut mxcsr, in(reg) &mut x87) };
        (mxcsr & !0x3f, x87)
    }

    /// Sets them to what [`mode`] gives.
    pub fn set(words: Words) {
        // SAFETY: the words are the default ones but for the rounding bits, which nothing here computes under.
        unsafe { std::arch::asm!("ldmxcsr [{}]", "fldcw [{}]", in(reg) &words.0, in(reg) &words.1) };
    }
}
