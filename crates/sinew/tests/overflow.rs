//! Who is told what when a stack overflows or an address is bad: our one line for fibers, everybody else's own handling for all the rest.
//!
//! Each claim ends a process, so each is tried in a child: this test binary again, with one test selected and `CASE` in its environment.

use std::hint::black_box;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use libc::{SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_SIGINFO, SIGABRT, SIGBUS, SIGSEGV};
use sinew::{Builder, Runtime};

// ---- overflow of a fiber's stack

/// Says where the next line spawns, for the parent to look for in the report.
macro_rules! next_line_spawns {
    () => {
        println!("site={}:{}", file!(), line!() + 1)
    };
}

fn overflow<const FRAME: usize>() {
    println!("id={}", sinew::current().id());
    // Suspended once, so that it overflows after a resume and not only in its first run.
    sinew::yield_now();
    recurse::<FRAME>(usize::MAX);
}

fn overflow_in(rt: &Runtime, name: Option<&str>) {
    let builder = name.into_iter().fold(Builder::new(), Builder::name);
    // A fiber of `rt` does it: `Builder` spawns into the current runtime.
    rt.run(|| {
        next_line_spawns!();
        let fiber = builder.stack_size(64 * 1024).spawn(overflow::<256>).unwrap();
        drop(fiber.join());
    });
}

/// Asserts that the child died of an overflow that was reported in one line with all that belongs in it.
fn assert_overflow_reported(ended: &Ended, name: Option<&str>, kib: usize) {
    ended.assert_signal(SIGSEGV);
    let lines = ended.lines_of_ours();
    assert_eq!(lines.len(), 1, "one line of ours was expected: {ended:?}");
    let line = lines[0];
    let (id, site) = (ended.said("id="), ended.said("site="));
    assert!(line.contains(&format!("fiber {id}")), "the id {id} is missing: {line}");
    assert!(line.contains(site), "the spawn site {site} is missing: {line}");
    assert!(line.contains(&format!("{kib} KiB")), "the size is missing: {line}");
    assert!(line.contains("overflowed its stack"), "{line}");
    assert!(line.contains("Builder::stack_size") && line.contains("SINEW_STACK_SIZE"), "the fix is missing: {line}");
    match name {
        Some(name) => assert!(line.contains(&format!("'{name}'")), "the name is missing: {line}"),
        None => assert!(!line.contains('\''), "a name where there is none: {line}"),
    }
    assert!(!ended.err.contains("has overflowed its stack"), "std reported too: {ended:?}");
}

#[test]
fn an_overflow_is_reported_in_one_line_and_kills_by_sigsegv() {
    for workers in [1, 2, 4] {
        for (guard, by_mprotect) in [("marker", false), ("mprotect", true)] {
            for name in [None, Some("deep")] {
                for round in 0..3 {
                    let case = format!("{workers} {guard} {name:?} {round}");
                    let body = || {
                        if by_mprotect {
                            sinew::hidden::guard_by_mprotect();
                        }
                        overflow_in(&runtime(workers), name);
                    };
                    in_child(&case, body, |ended| assert_overflow_reported(ended, name, 64));
                }
            }
        }
    }
}

#[test]
fn frames_of_any_size_hit_the_guard() {
    fn overflow_with<const FRAME: usize>() {
        let rt = runtime(2);
        next_line_spawns!();
        let fiber = rt.spawn(overflow::<FRAME>);
        drop(fiber.join());
    }
    in_child("3 KiB", overflow_with::<{ 3 << 10 }>, |ended| assert_overflow_reported(ended, None, 256));
    in_child("20 KiB", overflow_with::<{ 20 << 10 }>, |ended| assert_overflow_reported(ended, None, 256));
    // Larger than guard and stack together: the first frame already ends below the guard, and what probes it must not get there.
    in_child("1 MiB", overflow_with::<{ 1 << 20 }>, |ended| assert_overflow_reported(ended, None, 256));
}

#[test]
fn an_overflow_amid_parked_and_yielding_fibers_names_the_right_one() {
    let body = || {
        let rt = runtime(3);
        for _ in 0..50 {
            drop(rt.spawn(sinew::park));
            drop(rt.spawn(|| {
                loop {
                    sinew::yield_now();
                }
            }));
        }
        // Ids with a version: the places of ended fibers are used again.
        for _ in 0..50 {
            rt.spawn(|| ()).join().unwrap();
        }
        overflow_in(&rt, Some("the one"));
    };
    for round in 0..5 {
        in_child(&round.to_string(), body, |ended| assert_overflow_reported(ended, Some("the one"), 64));
    }
}

#[test]
fn fibers_that_overflow_at_once_give_whole_lines() {
    const WORKERS: usize = 4;
    let body = || {
        let rt = runtime(WORKERS);
        let all_here = Arc::new(Barrier::new(WORKERS));
        let fibers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let all_here = all_here.clone();
                rt.spawn(move || {
                    // Blocks the thread: each of the fibers must be on a worker of its own.
                    all_here.wait();
                    recurse::<256>(usize::MAX)
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| drop(fiber.join()));
    };
    for round in 0..10 {
        in_child(&round.to_string(), body, |ended| {
            ended.assert_signal(SIGSEGV);
            let lines = ended.lines_of_ours();
            assert!((1..=WORKERS).contains(&lines.len()), "{ended:?}");
            for line in lines {
                let whole = line.starts_with("sinew: fiber #") && line.contains("SINEW_STACK_SIZE=512K") && line.contains("overflow.rs:");
                assert!(whole, "a torn line: {ended:?}");
            }
        });
    }
}

#[test]
fn guards_survive_the_trim_of_idle_stacks() {
    const FIBERS: usize = 300;
    let body = || {
        let rt = runtime(2);
        let started = Arc::new(AtomicUsize::new(0));
        let parked = |deep: usize| {
            let fiber = |started: Arc<AtomicUsize>| {
                move || {
                    recurse::<4096>(deep);
                    started.fetch_add(1, SeqCst);
                    sinew::park();
                }
            };
            let fibers: Vec<_> = (0..FIBERS).map(|_| rt.spawn(fiber(started.clone()))).collect();
            wait_until("all are parked", || started.load(SeqCst) == FIBERS);
            started.store(0, SeqCst);
            fibers
        };
        let used = parked(40);
        let high_kib = resident_kib();
        used.iter().for_each(|fiber| fiber.fiber().unpark());
        used.into_iter().for_each(|fiber| fiber.join().unwrap());
        // 300 stacks of at least 160 KiB: half of that has gone when they are trimmed.
        wait_until("idle stacks are trimmed", || resident_kib() + FIBERS * 80 < high_kib);
        // Takes the warm stacks that workers keep, and some of the trimmed ones.
        let _held = parked(0);
        next_line_spawns!();
        let fiber = rt.spawn(overflow::<256>);
        drop(fiber.join());
    };
    in_child("", body, |ended| assert_overflow_reported(ended, None, 256));
}

#[test]
fn an_overflow_is_reported_also_in_locked_memory() {
    // Before the first fiber, and after it, when guard markers are in use.
    for fibers_come_first in [false, true] {
        let body = || {
            let rt = fibers_come_first.then(|| runtime(2));
            // SAFETY: changes how this process, a child, is paged, and nothing else.
            if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
                println!("skipped: mlockall is not permitted");
                return;
            }
            overflow_in(&rt.unwrap_or_else(|| runtime(2)), Some("locked"));
        };
        in_child(&format!("fibers first: {fibers_come_first}"), body, |ended| {
            if !ended.out.contains("skipped") {
                assert_overflow_reported(ended, Some("locked"), 64);
            }
        });
    }
}

#[test]
fn no_name_can_spoil_the_report() {
    for name in ["x".repeat(5_000), "two\nlines".into(), "\u{7f}\u{1b}[2J\r".into(), "ends with a wide \u{1f980}".into()] {
        let body = || overflow_in(&runtime(2), Some(&name));
        in_child(&name.escape_default().take(30).collect::<String>(), body, |ended| {
            ended.assert_signal(SIGSEGV);
            assert_eq!(ended.err.lines().count(), 1, "more than one line: {ended:?}");
            assert!(ended.err.ends_with('\n'), "{ended:?}");
            assert!(ended.err.contains("Builder::stack_size"), "the name drove out the fix: {ended:?}");
            assert!(!ended.err.trim_end().contains(char::is_control), "the name speaks to the terminal: {ended:?}");
        });
    }
}

/// Takes the advice of the report at its word: with that much stack the same fiber ends well.
#[test]
fn the_advice_of_the_report_helps() {
    fn deep() {
        println!("id={}", sinew::current().id());
        // 364 KiB and a little: more than the default, less than twice that.
        recurse::<4096>(90);
    }
    let body = || {
        next_line_spawns!();
        let fiber = sinew::spawn(deep);
        fiber.join().unwrap();
    };
    in_child("default", body, |ended| {
        assert_overflow_reported(ended, None, 256);
        assert!(ended.lines_of_ours()[0].contains("SINEW_STACK_SIZE=512K"), "{ended:?}");
    });
    in_child_with("advised", &[("SINEW_STACK_SIZE", "512K")], body, Ended::assert_ok);
    in_child_with("small", &[("SINEW_STACK_SIZE", "16K")], body, |ended| {
        assert_overflow_reported(ended, None, 16);
        assert!(ended.lines_of_ours()[0].contains("SINEW_STACK_SIZE=32K"), "{ended:?}");
    });
}

// ---- faults that are not ours

/// A fiber that has run, one that is parked, and so our handler and a `current` fiber for it to ask.
fn start_runtime() -> Runtime {
    let rt = runtime(2);
    rt.run(sinew::yield_now);
    drop(rt.spawn(sinew::park));
    rt
}

/// Runs `f` on a plain thread, or in a fiber.
fn on(place: &str, f: impl FnOnce() + Send + 'static) {
    let rt = start_runtime();
    match place {
        "thread" => drop(std::thread::Builder::new().name("plain".into()).spawn(f).unwrap().join()),
        "fiber" => drop(rt.spawn(f).join()),
        _ => unreachable!("{place}"),
    }
}

const PLACES: [&str; 2] = ["thread", "fiber"];

#[test]
fn an_overflow_of_a_thread_is_reported_by_std() {
    let body = || on("thread", overflow_here);
    for round in 0..3 {
        in_child(&round.to_string(), body, |ended| {
            ended.assert_signal(SIGABRT);
            assert!(ended.err.contains("has overflowed its stack") && ended.err.contains("plain"), "{ended:?}");
            assert!(ended.lines_of_ours().is_empty(), "{ended:?}");
        });
    }
}

#[test]
fn a_bad_address_still_kills_by_sigsegv_without_a_line_of_ours() {
    for place in PLACES {
        for by_mprotect in [false, true] {
            let body = || {
                if by_mprotect {
                    sinew::hidden::guard_by_mprotect();
                }
                on(place, write_to_bad_address)
            };
            in_child(&format!("{place} {by_mprotect}"), body, |ended| {
                ended.assert_signal(SIGSEGV);
                assert!(ended.lines_of_ours().is_empty(), "{ended:?}");
            });
        }
    }
}

#[test]
fn a_bus_error_still_kills_by_sigbus_without_a_line_of_ours() {
    for place in PLACES {
        let body = || on(place, write_beyond_end_of_file);
        in_child(place, body, |ended| {
            ended.assert_signal(SIGBUS);
            assert!(ended.lines_of_ours().is_empty(), "{ended:?}");
        });
    }
}

/// What foreign handlers exit with, by form.
const GOT_INFO: i32 = 42;
const GOT_NUMBER: i32 = 43;
/// A foreign handler was called with something else than it should.
const GOT_NONSENSE: i32 = 44;

extern "C" fn foreign_with_info(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel, or whoever passes the fault on, gives a valid `siginfo_t`; `_exit` is async-signal-safe.
    unsafe {
        let right = match signal {
            SIGSEGV => (*info).si_addr() as usize == BAD_ADDRESS,
            SIGBUS => (*info).si_code == libc::BUS_ADRERR,
            _ => false,
        };
        libc::_exit(if right && !context.is_null() { GOT_INFO } else { GOT_NONSENSE })
    }
}

extern "C" fn foreign_with_number(signal: i32) {
    // SAFETY: `_exit` is async-signal-safe.
    unsafe { libc::_exit(if [SIGSEGV, SIGBUS].contains(&signal) { GOT_NUMBER } else { GOT_NONSENSE }) }
}

fn install_foreign(signal: i32, handler: usize, flags: i32) {
    // SAFETY: all-zero is a valid `sigaction`, and callers give a handler of the form that `flags` says.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
    }
}

#[test]
fn a_foreign_handler_gets_the_faults_that_are_not_ours() {
    let with_info = (foreign_with_info as *const () as usize, SA_SIGINFO | SA_ONSTACK, GOT_INFO);
    let with_number = (foreign_with_number as *const () as usize, SA_ONSTACK, GOT_NUMBER);
    let without_stack = (foreign_with_number as *const () as usize, 0, GOT_NUMBER);
    let faults: [(i32, fn()); 2] = [(SIGSEGV, write_to_bad_address), (SIGBUS, write_beyond_end_of_file)];
    for (handler, flags, code) in [with_info, with_number, without_stack] {
        for (signal, fault) in faults {
            for place in PLACES {
                let body = || {
                    install_foreign(signal, handler, flags);
                    on(place, fault);
                };
                in_child(&format!("{code} {flags} {signal} {place}"), body, |ended| {
                    assert_eq!(ended.status.code(), Some(code), "{ended:?}");
                    assert!(ended.lines_of_ours().is_empty(), "{ended:?}");
                });
            }
        }
    }
}

#[test]
fn an_overflow_is_reported_also_where_there_is_a_foreign_handler() {
    let body = || {
        install_foreign(SIGSEGV, foreign_with_info as *const () as usize, SA_SIGINFO | SA_ONSTACK);
        overflow_in(&runtime(2), Some("deep"));
    };
    in_child("", body, |ended| assert_overflow_reported(ended, Some("deep"), 64));
}

/// Pages that the handler below makes writable, as garbage collectors and checkpointing libraries do.
const FORBIDDEN_PAGES: usize = 64;
static FORBIDDEN: AtomicUsize = AtomicUsize::new(0);
static MENDED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn mend(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: a valid `siginfo_t`; `mprotect` on pages of our own, `_exit` on any others.
    unsafe {
        let page = (*info).si_addr() as usize & !4095;
        let base = FORBIDDEN.load(SeqCst);
        if !(base..base + FORBIDDEN_PAGES * 4096).contains(&page) {
            libc::_exit(GOT_NONSENSE);
        }
        libc::mprotect(page as *mut _, 4096, libc::PROT_READ | libc::PROT_WRITE);
        MENDED.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_foreign_handler_may_mend_faults_of_fibers_and_overflow_is_still_reported() {
    let body = || {
        FORBIDDEN.store(map_anonymous(FORBIDDEN_PAGES * 4096, libc::PROT_NONE), SeqCst);
        install_foreign(SIGSEGV, mend as *const () as usize, SA_SIGINFO | SA_ONSTACK | SA_NODEFER);
        let rt = runtime(2);
        let writers: Vec<_> = (0..FORBIDDEN_PAGES)
            .map(|i| {
                rt.spawn(move || {
                    let place = (FORBIDDEN.load(SeqCst) + i * 4096 + 8 * i) as *mut u64;
                    // SAFETY: the page is mapped; the handler makes it writable when the write faults.
                    unsafe {
                        place.write_volatile(i as u64);
                        sinew::yield_now();
                        place.read_volatile()
                    }
                })
            })
            .collect();
        for (i, writer) in writers.into_iter().enumerate() {
            assert_eq!(writer.join().unwrap(), i as u64);
        }
        assert_eq!(MENDED.load(SeqCst), FORBIDDEN_PAGES);
        overflow_in(&rt, Some("deep"));
    };
    in_child("", body, |ended| assert_overflow_reported(ended, Some("deep"), 64));
}

static RESET_CALLS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn foreign_once(_: i32) {
    // Installed with SA_RESETHAND: when it returns, the fault comes again and must find the default action.
    if RESET_CALLS.fetch_add(1, SeqCst) != 0 {
        // SAFETY: `_exit` is async-signal-safe.
        unsafe { libc::_exit(GOT_NONSENSE) }
    }
}

#[test]
fn a_foreign_handler_that_resets_itself_is_called_once() {
    for place in PLACES {
        let body = || {
            install_foreign(SIGSEGV, foreign_once as *const () as usize, SA_ONSTACK | SA_RESETHAND);
            on(place, write_to_bad_address);
        };
        in_child(place, body, |ended| ended.assert_signal(SIGSEGV));
    }
}

// ---- faults on demand

/// Takes `FRAME` bytes of stack and a little, `depth + 1` times over.
#[inline(never)]
fn recurse<const FRAME: usize>(depth: usize) -> usize {
    let mut frame = [0u8; FRAME];
    black_box(&mut frame);
    let below = if depth == 0 { 0 } else { recurse::<FRAME>(depth - 1) };
    // Used after the call: no tail call, and the frame stays.
    below + usize::from(black_box(&frame)[FRAME / 2])
}

fn overflow_here() {
    recurse::<256>(usize::MAX);
}

/// In the page at address zero, which is never mapped; not null, which debug builds check for.
const BAD_ADDRESS: usize = 16;

fn write_to_bad_address() {
    // SAFETY: the write faults, as is the point of it.
    unsafe { ptr::without_provenance_mut::<u8>(black_box(BAD_ADDRESS)).write_volatile(1) }
}

fn write_beyond_end_of_file() {
    // SAFETY: an empty file in memory, mapped where the kernel likes; the write faults, as is the point of it.
    unsafe {
        let file = libc::memfd_create(c"empty".as_ptr(), 0);
        assert!(file >= 0);
        let page = libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file, 0);
        assert_ne!(page, libc::MAP_FAILED);
        page.cast::<u8>().write_volatile(1);
    }
}

fn map_anonymous(len: usize, protection: i32) -> usize {
    // SAFETY: a fresh mapping where the kernel likes touches no memory of ours.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    base as usize
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < end, "not after 30 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

// ---- children (the same in `stacks.rs`)

/// Names the test and the case that a child runs.
const CASE: &str = "SINEW_TEST_CASE";
/// A child that takes longer hangs.
const CHILD_SECONDS_MAX: u64 = 60;

/// How a child ended.
#[derive(Debug)]
struct Ended {
    status: ExitStatus,
    out: String,
    err: String,
}

impl Ended {
    fn assert_ok(&self) {
        assert!(self.status.success(), "the child failed: {self:?}");
    }

    fn assert_signal(&self, signal: i32) {
        assert_eq!(self.status.signal(), Some(signal), "the child was to die by signal {signal}: {self:?}");
    }

    /// Lines on stderr that Sinew wrote.
    fn lines_of_ours(&self) -> Vec<&str> {
        self.err.lines().filter(|line| line.contains("sinew: ")).collect()
    }

    /// What the child printed after `label`.
    fn said(&self, label: &str) -> &str {
        let found = self.out.lines().find_map(|line| line.split_once(label));
        found.unwrap_or_else(|| panic!("the child did not say {label}: {self:?}")).1
    }
}

/// Runs `body` in a child, and `check` on how that ended. In the child itself, runs `body` if the case is the one asked for.
fn in_child<B: FnOnce()>(case: &str, body: B, check: impl FnOnce(&Ended)) {
    in_child_with(case, &[], body, check);
}

/// As `in_child`, with more in the child's environment.
fn in_child_with<B: FnOnce()>(case: &str, environment: &[(&str, &str)], body: B, check: impl FnOnce(&Ended)) {
    let test = test_that_made::<B>();
    let case = format!("{test}: {case}");
    match std::env::var(CASE) {
        Err(_) => check(&run_child(test, &case, environment)),
        Ok(wanted) if wanted == case => {
            no_core_dump();
            println!("child of {case}");
            body();
            std::process::exit(0);
        }
        Ok(_) => {}
    }
}

/// `a` of `overflow::a::{{closure}}` or `overflow::a::b`.
fn test_that_made<B>() -> &'static str {
    std::any::type_name::<B>().split("::").nth(1).expect("the body of a child is made in a test")
}

fn run_child(test: &str, case: &str, environment: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CASE, case).env_remove("SINEW_STACK_SIZE").env_remove("SINEW_WORKERS");
    command.envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (out, err) = (read_all(child.stdout.take().unwrap()), read_all(child.stderr.take().unwrap()));
    let end = Instant::now() + Duration::from_secs(CHILD_SECONDS_MAX);
    let mut hung = false;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > end && !hung => {
                hung = true;
                child.kill().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let ended = Ended { status, out: out.join().unwrap(), err: err.join().unwrap() };
    assert!(!hung, "the child of {case} hung: {ended:?}");
    assert!(ended.out.contains(&format!("child of {case}")), "the child of {case} did not get there: {ended:?}");
    ended
}

fn read_all(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Children die on purpose.
fn no_core_dump() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: sets a limit of this process, which is a child.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}
