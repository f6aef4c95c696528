//! The laws F1 to F5 (`ARCHITECTURE.md`), each with tests that fail when it is broken.
//!
//! The method is the same throughout: fibers that know what must be true of them (a flag, a count, the bytes of their stack, their thread)
//! check it after every suspension, while plain threads and other fibers wake them at the worst moments. Outcomes are counted
//! exactly; a lost fiber shows as a test that does not end in time.

use std::collections::BTreeMap;
use std::hint::{black_box, spin_loop};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use sinew::{Fiber, Runtime};

const WORKERS: [usize; 4] = [1, 2, 4, 8];

/// A hang fails after this long. Generous: the machine may be busy with other things.
const LIMIT: Duration = Duration::from_secs(100);

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

/// How often: debug builds are some ten times slower.
fn rounds(debug: usize, release: usize) -> usize {
    if cfg!(debug_assertions) { debug } else { release }
}

/// Runs the body of a test; fails if it does not come back.
fn in_time<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(body()));
    match receiver.recv_timeout(LIMIT) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not done after {LIMIT:?}: a fiber or a wake-up was lost"),
    }
}

/// Xorshift: the same numbers in every run.
struct Random(u64);

impl Random {
    fn new(seed: usize) -> Self {
        Self((seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % limit
    }

    fn micros(&mut self, limit: usize) -> Duration {
        Duration::from_micros(self.below(limit) as u64)
    }
}

/// Waits on a plain thread until `reached`, gently: there are fewer CPUs than threads.
fn wait_until(reached: impl Fn() -> bool) {
    for turn in 0.. {
        if reached() {
            return;
        }
        if turn % 64 == 63 { std::thread::yield_now() } else { spin_loop() }
    }
}

/// Suspends once, in one of all the ways there are.
fn suspend_somehow(random: &mut Random) {
    match random.below(7) {
        0 | 1 => sinew::yield_now(),
        2 => sinew::sleep(random.micros(30)),
        3 => sinew::park_timeout(random.micros(30)),
        4 => {
            let me = sinew::current();
            let waker = sinew::spawn(move || me.unpark());
            sinew::park();
            waker.join().unwrap();
        }
        5 => sinew::spawn(sinew::yield_now).join().unwrap(),
        _ => sinew::scope(|s| {
            s.spawn(|| ());
            s.spawn(sinew::yield_now);
        }),
    }
}

// ---- F1: a fiber is in exactly one place

/// A fiber that is sent mail by many, and checks that it runs once at a time.
#[derive(Default)]
struct Addressee {
    fiber: OnceLock<Fiber>,
    mail: AtomicUsize,
    running: AtomicBool,
    /// Returns from `park`, and calls of `unpark`.
    returns: AtomicUsize,
    unparks: AtomicUsize,
}

impl Addressee {
    fn send(&self) {
        self.mail.fetch_add(1, SeqCst);
        self.unpark();
    }

    fn unpark(&self) {
        self.unparks.fetch_add(1, SeqCst);
        self.fiber.get().expect("set before anybody sends").unpark();
    }

    /// Leaves this slice and begins the next one.
    fn suspended(&self, wait: impl FnOnce()) {
        assert!(self.running.swap(false, SeqCst), "it ran in two places");
        wait();
        assert!(!self.running.swap(true, SeqCst), "resumed while it runs");
    }

    /// Reads mail until told to stop; gives how much it read.
    fn read(&self, stop: &AtomicBool, mut random: Random) -> usize {
        assert!(!self.running.swap(true, SeqCst), "started while it runs");
        let mut read = 0;
        loop {
            let stopped = stop.load(SeqCst);
            let new = self.mail.swap(0, SeqCst);
            read += new;
            match random.below(8) {
                _ if new == 0 && stopped => break,
                0 => self.suspended(sinew::yield_now),
                1 => self.suspended(|| sinew::park_timeout(random.micros(20))),
                2 => self.suspended(|| sinew::sleep(random.micros(20))),
                _ if new == 0 => {
                    self.suspended(sinew::park);
                    self.returns.fetch_add(1, SeqCst);
                }
                _ => {}
            }
        }
        assert!(self.running.swap(false, SeqCst), "it ran in two places");
        read
    }
}

/// Sends `letters` letters to addressees at random, at random moments.
fn send_letters(addressees: &[Addressee], letters: usize, mut random: Random, pause: fn()) {
    for _ in 0..letters {
        addressees[random.below(addressees.len())].send();
        (0..random.below(200)).for_each(|_| spin_loop());
        if random.below(16) == 0 {
            pause();
        }
    }
}

#[test]
fn f1_a_fiber_runs_in_one_place_at_a_time_in_a_storm_of_wakes() {
    in_time(|| {
        let letters = rounds(4_000, 20_000);
        let elsewhere = runtime(1);
        for workers in WORKERS {
            let rt = runtime(workers);
            let addressees: Arc<Vec<Addressee>> = Arc::new((0..24).map(|_| Addressee::default()).collect());
            let stop = Arc::new(AtomicBool::new(false));
            let readers: Vec<_> = (0..addressees.len())
                .map(|i| {
                    let (addressees, stop) = (addressees.clone(), stop.clone());
                    rt.spawn(move || {
                        while addressees[i].fiber.get().is_none() {
                            sinew::yield_now();
                        }
                        addressees[i].read(&stop, Random::new(i))
                    })
                })
                .collect();
            for (addressee, reader) in addressees.iter().zip(&readers) {
                addressee.fiber.set(reader.fiber().clone()).unwrap();
            }
            let fibers: Vec<_> = (0..6)
                .map(|i| {
                    let addressees = addressees.clone();
                    let home = if i == 0 { &elsewhere } else { &rt };
                    home.spawn(move || send_letters(&addressees, letters, Random::new(100 + i), sinew::yield_now))
                })
                .collect();
            std::thread::scope(|s| {
                for i in 0..3 {
                    let addressees = &addressees;
                    s.spawn(move || send_letters(addressees, letters, Random::new(200 + i), std::thread::yield_now));
                }
            });
            fibers.into_iter().for_each(|f| f.join().unwrap());
            stop.store(true, SeqCst);
            addressees.iter().for_each(Addressee::unpark);
            let read: usize = readers.into_iter().map(|r| r.join().unwrap()).sum();
            assert_eq!(read, 9 * letters, "letters lost or read twice with {workers} workers");
            for addressee in addressees.iter() {
                let (returns, unparks) = (addressee.returns.load(SeqCst), addressee.unparks.load(SeqCst));
                assert!(returns <= unparks, "park returned {returns} times for {unparks} unparks");
            }
        }
    });
}

/// Parks `rounds` times and says so each time.
fn park_and_count(returned: &AtomicUsize, rounds: usize, mut random: Random) {
    for round in 1..=rounds {
        (0..random.below(60)).for_each(|_| spin_loop());
        sinew::park();
        returned.store(round, SeqCst);
    }
}

/// Unparks once per return, before, while or after the other parks.
fn unpark_once_per_return(sleeper: &Fiber, returned: &AtomicUsize, rounds: usize, mut random: Random, wait: fn(&dyn Fn() -> bool)) {
    for round in 0..rounds {
        assert_eq!(returned.load(SeqCst), round, "a park returned without an unpark");
        (0..random.below(60)).for_each(|_| spin_loop());
        sleeper.unpark();
        wait(&|| returned.load(SeqCst) != round);
    }
    assert_eq!(returned.load(SeqCst), rounds);
}

#[test]
fn f1_a_park_returns_exactly_once_per_unpark() {
    in_time(|| {
        let rounds = rounds(12_000, 40_000);
        for workers in WORKERS {
            let rt = runtime(workers);
            let returned = Arc::new(AtomicUsize::new(0));
            let park = |returned: Arc<AtomicUsize>| move || park_and_count(&returned, rounds, Random::new(workers));
            // Woken by a plain thread.
            let sleeper = rt.spawn(park(returned.clone()));
            unpark_once_per_return(sleeper.fiber(), &returned, rounds, Random::new(7), |reached| wait_until(reached));
            sleeper.join().unwrap();
            // Woken by a fiber, of the same worker or of another.
            returned.store(0, SeqCst);
            let sleeper = rt.spawn(park(returned.clone()));
            let wait: fn(&dyn Fn() -> bool) = |reached| {
                while !reached() {
                    sinew::yield_now();
                }
            };
            rt.run(|| unpark_once_per_return(sleeper.fiber(), &returned, rounds, Random::new(8), wait));
            sleeper.join().unwrap();
        }
    });
}

/// One fiber that parks with a time-out, and what its waker must know.
struct Timed {
    begun: Instant,
    fiber: OnceLock<Fiber>,
    /// The round that waits to be woken, and the moment (ns since `begun`) at which it times out.
    round: AtomicUsize,
    due_ns: AtomicU64,
    unparking: AtomicUsize,
    unparked: AtomicUsize,
}

impl Timed {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            fiber: OnceLock::new(),
            round: AtomicUsize::new(0),
            due_ns: AtomicU64::new(0),
            unparking: AtomicUsize::new(0),
            unparked: AtomicUsize::new(0),
        }
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn sleep_rounds(&self, rounds: usize, mut random: Random) {
        for round in 1..=rounds {
            let timeout = random.micros(40);
            let before = Instant::now();
            self.due_ns.store(self.now_ns() + timeout.as_nanos() as u64, SeqCst);
            self.round.store(round, SeqCst);
            sinew::park_timeout(timeout);
            if before.elapsed() < timeout {
                assert!(self.unparking.load(SeqCst) >= round, "neither time-out nor unpark ended a park");
            }
            while self.unparked.load(SeqCst) < round {
                // Not a yield: the waker needs a CPU too.
                sinew::sleep(Duration::from_micros(10));
            }
            // The unpark ended the wait, or it left a token, which this uses up. Nothing may be left after it.
            sinew::park_timeout(Duration::ZERO);
            if round % 8 == 0 {
                let (before, full) = (Instant::now(), Duration::from_micros(5));
                sinew::park_timeout(full);
                assert!(before.elapsed() >= full, "an unpark ended two parks");
            }
        }
    }

    /// Unparks, once, a round that is about to time out; says whether there was one.
    fn unpark_if_due(&self, random: &mut Random) -> bool {
        let round = self.round.load(SeqCst);
        if round == self.unparked.load(SeqCst) || self.now_ns() + 5_000 < self.due_ns.load(SeqCst) {
            return false;
        }
        (0..random.below(300)).for_each(|_| spin_loop());
        self.unparking.store(round, SeqCst);
        self.fiber.get().expect("set before the first round").unpark();
        self.unparked.store(round, SeqCst);
        true
    }
}

#[test]
fn f1_an_unpark_and_a_timeout_at_the_same_moment_end_one_wait_once() {
    in_time(|| {
        const FIBERS: usize = 16;
        let rounds = rounds(100_000, 300_000) / FIBERS / WORKERS.len();
        for workers in WORKERS {
            let rt = runtime(workers);
            let timed: Arc<Vec<Timed>> = Arc::new((0..FIBERS).map(|_| Timed::new()).collect());
            let sleepers: Vec<_> = (0..FIBERS)
                .map(|i| {
                    let timed = timed.clone();
                    rt.spawn(move || {
                        timed[i].fiber.set(sinew::current()).unwrap();
                        timed[i].sleep_rounds(rounds, Random::new(i));
                    })
                })
                .collect();
            std::thread::scope(|s| {
                for half in timed.chunks(FIBERS / 2) {
                    s.spawn(move || {
                        let (mut random, mut left) = (Random::new(workers), rounds * half.len());
                        while left > 0 {
                            let woken = half.iter().filter(|t| t.unpark_if_due(&mut random)).count();
                            left -= woken;
                            if woken == 0 {
                                std::thread::yield_now();
                            }
                        }
                    });
                }
            });
            sleepers.into_iter().for_each(|s| s.join().unwrap());
        }
    });
}

// ---- F2: only the worker that runs a fiber touches its stack

/// Recurses to a random depth with a pattern in every frame, suspends at the bottom, and finds every pattern as it was.
fn suspend_below_patterns(pattern: u64, depth: usize, random: &mut Random) {
    let frame = black_box([pattern.wrapping_mul(depth as u64 + 1); 48]);
    if depth > 0 {
        suspend_below_patterns(pattern, depth - 1, random);
    } else {
        suspend_somehow(random);
    }
    let changed = black_box(&frame).iter().filter(|&&word| word != pattern.wrapping_mul(depth as u64 + 1)).count();
    assert_eq!(changed, 0, "words of a suspended stack changed at depth {depth}");
}

#[test]
fn f2_a_suspended_stack_keeps_every_byte() {
    in_time(|| {
        let suspensions = rounds(100, 1_000);
        for workers in WORKERS {
            runtime(workers).run(|| {
                sinew::scope(|s| {
                    for i in 0..48 {
                        s.spawn(move || {
                            let mut random = Random::new(i);
                            let pattern = 0x0123_4567_89ab_cdef ^ ((i as u64) << 32);
                            for _ in 0..suspensions {
                                let depth = random.below(60);
                                suspend_below_patterns(pattern, depth, &mut random);
                            }
                        });
                    }
                })
            });
        }
    });
}

#[test]
fn f2_values_in_registers_survive_suspensions() {
    // More live values than there are registers of any kind, so that some of them are in registers wherever the switch is.
    fn mix(seed: u64, random: &mut Random) {
        let whole: [u64; 20] = black_box(std::array::from_fn(|i| seed ^ i as u64));
        let real: [f64; 20] = black_box(std::array::from_fn(|i| seed as f64 + i as f64));
        let (a, b, c, d, e, f, g, h) = (whole[0], whole[1], whole[2], whole[3], whole[4], whole[5], whole[6], whole[7]);
        let (r, s, t, u) = (real[0], real[1], real[2], real[3]);
        suspend_somehow(random);
        assert_eq!([a, b, c, d, e, f, g, h], std::array::from_fn(|i| seed ^ i as u64));
        assert_eq!([r, s, t, u], std::array::from_fn(|i| seed as f64 + i as f64));
        assert_eq!(black_box(whole)[19], seed ^ 19);
        assert_eq!(black_box(real)[19], seed as f64 + 19.0);
    }
    in_time(|| {
        for workers in WORKERS {
            runtime(workers).run(|| {
                sinew::scope(|s| {
                    for i in 0..32 {
                        s.spawn(move || (0..200).for_each(|round| mix((i * 1000 + round) as u64, &mut Random::new(i + round))));
                    }
                })
            });
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod callee_saved {
    use super::*;

    std::arch::global_asm!(
        // u64 laws_call_with_pattern(u64 pattern (rdi), extern "C" fn() (rsi)): fills the registers a callee must keep with the
        // pattern plus a number each, calls, and gives back a set bit for each one that changed.
        ".globl laws_call_with_pattern",
        "laws_call_with_pattern:",
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdi",
        "lea rbx, [rdi + 1]",
        "lea rbp, [rdi + 2]",
        "lea r12, [rdi + 3]",
        "lea r13, [rdi + 4]",
        "lea r14, [rdi + 5]",
        "lea r15, [rdi + 6]",
        "call rsi",
        "pop rdi",
        "xor eax, eax",
        "lea rcx, [rdi + 1]",
        "cmp rbx, rcx",
        "je 2f",
        "or eax, 1",
        "2:",
        "lea rcx, [rdi + 2]",
        "cmp rbp, rcx",
        "je 2f",
        "or eax, 2",
        "2:",
        "lea rcx, [rdi + 3]",
        "cmp r12, rcx",
        "je 2f",
        "or eax, 4",
        "2:",
        "lea rcx, [rdi + 4]",
        "cmp r13, rcx",
        "je 2f",
        "or eax, 8",
        "2:",
        "lea rcx, [rdi + 5]",
        "cmp r14, rcx",
        "je 2f",
        "or eax, 16",
        "2:",
        "lea rcx, [rdi + 6]",
        "cmp r15, rcx",
        "je 2f",
        "or eax, 32",
        "2:",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    );

    unsafe extern "C" {
        fn laws_call_with_pattern(pattern: u64, callee: extern "C" fn()) -> u64;
    }

    extern "C" fn yields() {
        sinew::yield_now();
    }

    extern "C" fn parks() {
        let me = sinew::current();
        drop(sinew::spawn(move || me.unpark()));
        sinew::park();
    }

    extern "C" fn sleeps() {
        sinew::sleep(Duration::from_micros(1));
    }

    #[test]
    fn f2_registers_that_a_call_must_keep_are_kept_over_a_suspension() {
        in_time(|| {
            for workers in WORKERS {
                runtime(workers).run(|| {
                    sinew::scope(|s| {
                        for i in 0..16u64 {
                            s.spawn(move || {
                                for round in 0..300 {
                                    for callee in [yields, parks, sleeps] {
                                        // SAFETY: the function keeps the calling convention and nothing in it unwinds.
                                        let changed = unsafe { laws_call_with_pattern(i << 32 | round, callee) };
                                        assert_eq!(changed, 0, "registers changed (a bit for each of rbx, rbp, r12 to r15)");
                                    }
                                }
                            });
                        }
                    })
                });
            }
        });
    }
}

/// Bytes of this process that are in memory.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[inline(never)]
fn touch(kib: usize) {
    let frame = [kib as u8; 1024];
    if kib > 1 {
        touch(kib - 1);
    }
    black_box(&frame);
}

#[test]
fn f2_idle_stacks_give_their_pages_back_and_suspended_ones_keep_theirs() {
    // Stacks of idle and suspended fibers lie side by side in one slab; pages of idle ones are given back in runs.
    in_time(|| {
        const MIB: usize = 1 << 20;
        let rt = runtime(1);
        let touched = Arc::new(AtomicUsize::new(0));
        let (kept, gone): (Vec<_>, Vec<_>) = rt.run(|| {
            let spawn = |i: u64| {
                let touched = touched.clone();
                let builder = sinew::Builder::new().stack_size(512 * 1024);
                builder.spawn(move || {
                    touch(256);
                    touched.fetch_add(1, SeqCst);
                    suspend_parked(i, 100);
                })
            };
            let handles: Vec<_> = (0..300).map(|i| spawn(i).unwrap()).collect();
            while touched.load(SeqCst) < handles.len() {
                sinew::yield_now();
            }
            handles.into_iter().enumerate().partition(|(i, _)| i % 3 == 0)
        });
        let full = resident_bytes();
        assert!(full > 50 * MIB, "only {full} bytes are resident: the stacks were not touched");
        for (_, handle) in gone {
            handle.fiber().unpark();
            handle.join().unwrap();
        }
        let end = Instant::now() + LIMIT / 2;
        while resident_bytes() + 30 * MIB > full {
            assert!(Instant::now() < end, "{} of {full} bytes are still resident", resident_bytes());
            std::thread::sleep(Duration::from_millis(50));
        }
        for (_, handle) in kept {
            handle.fiber().unpark();
            handle.join().unwrap();
        }
    });

    fn suspend_parked(pattern: u64, depth: usize) {
        let frame = black_box([pattern ^ depth as u64; 64]);
        if depth == 0 {
            sinew::park()
        } else {
            suspend_parked(pattern, depth - 1)
        }
        assert!(black_box(&frame).iter().all(|&word| word == pattern ^ depth as u64), "a suspended stack lost its content");
    }
}

// ---- F3: nobody resumes a fiber before its registers are saved

/// A fiber that suspends at places of different depth, and says right before that it is about to.
struct Leaver {
    fiber: OnceLock<Fiber>,
    leaving: AtomicUsize,
}

impl Leaver {
    #[inline(never)]
    fn park_below(&self, round: usize, depth: usize) -> usize {
        let frame = black_box([round; 8]);
        let below = if depth > 0 {
            self.park_below(round, depth - 1)
        } else {
            self.leaving.store(round, SeqCst);
            sinew::park();
            round
        };
        // Resumed too early, it would go on at an older place: with that round's frames, or over frames that are gone.
        assert_eq!(below, round, "resumed at an older place");
        assert!(black_box(&frame).iter().all(|&word| word == round), "resumed on frames of another round");
        below
    }
}

#[test]
fn f3_a_fiber_woken_while_it_is_still_leaving_goes_on_where_it_left() {
    in_time(|| {
        let rounds = rounds(20_000, 80_000);
        for workers in WORKERS {
            let rt = runtime(workers);
            for waker_is_a_fiber in [false, true] {
                let leaver = Arc::new(Leaver { fiber: OnceLock::new(), leaving: AtomicUsize::new(0) });
                let fiber = {
                    let leaver = leaver.clone();
                    rt.spawn(move || {
                        leaver.fiber.set(sinew::current()).unwrap();
                        let mut random = Random::new(workers);
                        (1..=rounds).for_each(|round| assert_eq!(leaver.park_below(round, random.below(5)), round));
                    })
                };
                let wake = move || {
                    let mut random = Random::new(3);
                    for round in 1..=rounds {
                        while leaver.leaving.load(SeqCst) != round {
                            if waker_is_a_fiber {
                                sinew::yield_now()
                            } else {
                                spin_loop()
                            }
                            if random.below(512) == 0 {
                                std::thread::yield_now();
                            }
                        }
                        (0..random.below(4) * random.below(30)).for_each(|_| spin_loop());
                        leaver.fiber.get().unwrap().unpark();
                    }
                };
                if waker_is_a_fiber {
                    rt.run(wake)
                } else {
                    wake()
                }
                fiber.join().unwrap();
            }
        }
    });
}

// ---- F4: a stack is reused only after its fiber is done and left

/// The stack memory that living fibers stand on.
#[derive(Default)]
struct Ground {
    taken: Mutex<BTreeMap<usize, usize>>,
}

impl Ground {
    /// Runs `f` while `bytes` is this fiber's; fails if any of it is another's.
    fn with(&self, bytes: &[u8], f: impl FnOnce()) {
        let (from, to) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
        {
            let mut taken = self.taken.lock().unwrap();
            if let Some((&start, &end)) = taken.range(..to).next_back() {
                assert!(end <= from, "{from:x}..{to:x} is on the stack of a living fiber, {start:x}..{end:x}");
            }
            taken.insert(from, to);
        }
        f();
        self.taken.lock().unwrap().remove(&from);
    }

    /// Stands on a few KiB of this stack for a while.
    #[inline(never)]
    fn stand(&self, random: &mut Random) {
        let mark = random.below(256) as u8;
        let frame = black_box([mark; 3000]);
        self.with(&frame, || (0..random.below(3)).for_each(|_| sinew::yield_now()));
        assert!(black_box(&frame).iter().all(|&byte| byte == mark), "another fiber wrote on this stack");
    }
}

/// A value whose destructor, and a waker whose wake, still need the stack.
struct StandsOnDrop(Arc<Ground>, usize);

impl Drop for StandsOnDrop {
    fn drop(&mut self) {
        self.0.stand(&mut Random::new(self.1));
    }
}

impl Wake for StandsOnDrop {
    fn wake(self: Arc<Self>) {
        self.0.stand(&mut Random::new(self.1));
    }
}

#[test]
fn f4_no_two_living_fibers_stand_on_the_same_memory() {
    // Fibers come and go by the thousand on several workers; they end in every way: joined, detached before and after the end,
    // polled, panicking. The last user code of each (outcome's destructor, waker) is still on its own stack.
    in_time(|| {
        let fibers = rounds(3_000, 30_000);
        for workers in WORKERS {
            let (rt, ground) = (runtime(workers), Arc::new(Ground::default()));
            rt.run(|| {
                sinew::scope(|s| {
                    for part in 0..4 {
                        let ground = ground.clone();
                        s.spawn(move || come_and_go(&ground, fibers / 4, Random::new(part)));
                    }
                })
            });
            drop(rt);
            assert!(ground.taken.lock().unwrap().is_empty(), "a fiber has not ended");
        }
    });

    fn come_and_go(ground: &Arc<Ground>, fibers: usize, mut random: Random) {
        let mut handles = Vec::new();
        for i in 0..fibers {
            let (inside, outcome) = (ground.clone(), StandsOnDrop(ground.clone(), i));
            let mut handle = sinew::spawn(move || {
                inside.stand(&mut Random::new(i));
                if i % 50 == 0 {
                    std::panic::resume_unwind(Box::new(outcome));
                }
                outcome
            });
            match random.below(4) {
                0 => drop(handle),
                1 => {
                    let waker = Waker::from(Arc::new(StandsOnDrop(ground.clone(), i)));
                    if std::pin::Pin::new(&mut handle).poll(&mut Context::from_waker(&waker)).is_pending() {
                        handles.push(handle);
                    }
                }
                _ => handles.push(handle),
            }
            if handles.len() > 150 {
                let from = random.below(100);
                handles.drain(from..from + 40).for_each(drop);
                handles.drain(..40).filter(|_| random.below(2) == 0).for_each(|h| drop(h.join()));
            }
        }
    }
}

#[test]
fn f4_an_ended_fiber_leaves_its_stack_to_the_next_and_not_before() {
    // One worker: children of one parent run one after the other. Each finds the mark of the one before it (the stack is the
    // same) or another stack, and the one that is alive next to it never moves onto its bytes.
    in_time(|| {
        let addresses: Vec<usize> = runtime(1).run(|| {
            let handles: Vec<_> = (0..1000).map(|_| sinew::spawn(|| black_box(&0u8) as *const u8 as usize)).collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        });
        let distinct: std::collections::HashSet<_> = addresses.iter().collect();
        assert!(distinct.len() <= 100, "{} stacks for fibers that ran one after the other", distinct.len());
    });
}

#[test]
fn f4_a_stack_used_again_ends_in_the_same_root_as_a_fresh_one() {
    // What a fiber starts with must not be written over a frame that is still in use: backtraces would run off the stack.
    in_time(|| {
        let trace = || std::backtrace::Backtrace::force_capture().to_string();
        let root = |trace: &str| {
            let names = trace.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
            let names: Vec<_> = names.map(|line| line.trim().split_once(": ").unwrap().1.to_owned()).collect();
            names.into_iter().skip_while(|name| !name.ends_with("root")).collect::<Vec<_>>()
        };
        let fresh = root(&runtime(1).run(trace));
        assert!(!fresh.is_empty());
        let again: Vec<_> = runtime(1).run(|| {
            let handles: Vec<_> = (0..8).map(|_| sinew::spawn(trace)).collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        });
        for trace in again {
            assert_eq!(root(&trace), fresh, "{trace}");
        }
    });
}

// ---- F5: a settled fiber runs on one thread for life

/// Checks, wherever it is used, that it is still on the thread on which it was made.
struct Homebody(std::thread::ThreadId, PhantomData<*const ()>);

impl Homebody {
    fn new() -> Self {
        Self(std::thread::current().id(), PhantomData)
    }

    fn check(&self) {
        assert_eq!(std::thread::current().id(), self.0, "a settled fiber changed its thread");
    }
}

impl Drop for Homebody {
    fn drop(&mut self) {
        self.check();
        sinew::yield_now();
        self.check();
    }
}

#[test]
fn f5_a_fiber_stays_on_the_thread_of_its_first_run() {
    in_time(|| {
        let suspensions = rounds(300, 3_000);
        for workers in WORKERS {
            let rt = runtime(workers);
            let handles: Vec<_> = (0..64)
                .map(|i| {
                    rt.spawn(move || {
                        // It is not `Send`, and it does not have to be.
                        let home = Homebody::new();
                        let mut random = Random::new(i);
                        for _ in 0..suspensions {
                            suspend_somehow(&mut random);
                            home.check();
                        }
                        if i % 4 == 0 {
                            // The destructor suspends and checks while it unwinds.
                            std::panic::resume_unwind(Box::new(i));
                        }
                        i
                    })
                })
                .collect();
            // Wakes from a thread that is no worker, all the while.
            while handles.iter().any(|h| !h.is_finished()) {
                handles.iter().for_each(|h| h.fiber().unpark());
                std::thread::yield_now();
            }
            for (i, handle) in handles.into_iter().enumerate() {
                match handle.join() {
                    Ok(value) => assert_eq!(value, i),
                    Err(payload) => assert_eq!(*payload.downcast::<usize>().expect("only the intended unwinding"), i),
                }
            }
        }
    });
}

#[test]
fn f5_an_unstarted_fiber_is_taken_by_a_free_worker_and_then_stays_there() {
    // The parent keeps its worker busy without ever suspending until the child has run: so another worker must have taken it.
    in_time(|| {
        for workers in [2, 4, 8] {
            let rt = runtime(workers);
            for _ in 0..200 {
                rt.run(|| {
                    let parent = std::thread::current().id();
                    let stage = Arc::new(AtomicUsize::new(0));
                    let child = sinew::spawn({
                        let stage = stage.clone();
                        move || {
                            let home = Homebody::new();
                            stage.store(1, SeqCst);
                            while stage.load(SeqCst) != 2 {
                                sinew::yield_now();
                                home.check();
                            }
                            home.0
                        }
                    });
                    wait_until(|| stage.load(SeqCst) == 1);
                    stage.store(2, SeqCst);
                    assert_ne!(child.join().unwrap(), parent);
                });
            }
        }
    });
}
