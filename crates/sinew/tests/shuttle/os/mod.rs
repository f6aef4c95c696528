//! The system as the scheduler sees it, on shuttle's threads, which all run on one OS thread.

#[path = "../../../src/os/memory.rs"]
pub mod memory;

#[path = "../../../src/os/audit.rs"]
pub mod audit;
#[path = "../../../src/os/fork.rs"]
pub mod fork;

#[path = "../../../src/os/state_lock.rs"]
pub mod state_lock;

/// The library's own lock, for a scenario of its own.
#[path = "../../../src/os/lock.rs"]
pub mod real_lock;

/// What wakes a worker from its source: who sleeps there looks at the count, see `event::source`.
pub mod bell {
    use std::io;

    use crate::base::atomic::{AtomicU32, Relaxed, mutant};
    use crate::os::futex;

    pub struct Bell(AtomicU32);

    impl Bell {
        pub fn new() -> io::Result<Self> {
            Ok(Self(AtomicU32::new(0)))
        }

        pub fn ring(&self) {
            if !mutant("no bell") {
                self.0.fetch_add(1, Relaxed);
                futex::wake_one(&self.0);
            }
        }

        pub fn word(&self) -> &AtomicU32 {
            &self.0
        }
    }
}

/// No timers are needed where time goes on by looks.
pub mod alarm {
    use std::io;

    #[derive(Debug)]
    pub struct Ahead;

    impl Ahead {
        pub fn new() -> io::Result<Self> {
            Ok(Self)
        }

        pub fn set(&self, _at_ns: u64) {}
    }
}

/// A clock that goes on by a microsecond each time somebody looks.
pub mod clock {
    use std::cell::Cell;
    use std::time::Duration;

    const LOOK_NS: u64 = 1_000;
    std::thread_local!(static NOW_NS: Cell<u64> = const { Cell::new(1) });

    pub fn now_ns() -> u64 {
        NOW_NS.set(NOW_NS.get() + LOOK_NS);
        NOW_NS.get()
    }

    /// Time goes faster for who sleeps: a quarter of what is left passes at each look.
    pub fn passes_towards(deadline_ns: u64) -> bool {
        let left = deadline_ns.saturating_sub(now_ns());
        NOW_NS.set(NOW_NS.get() + left / 4);
        now_ns() >= deadline_ns
    }

    /// For calls of the system, of which no scenario makes any.
    pub fn timespec(_ns: u64) -> libc::timespec {
        unimplemented!("a thread waits at a descriptor")
    }

    pub fn deadline_ns(after: Duration) -> u64 {
        u64::try_from(after.as_nanos()).map_or(u64::MAX, |ns| now_ns().saturating_add(ns))
    }
}

/// A futex: who waits is woken by `wake_one` alone, or by its deadline.
pub mod futex {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use super::clock;
    use crate::base::atomic::{AtomicU32, Relaxed, mutant};

    type Queues = HashMap<usize, Vec<(u64, shuttle::thread::Thread)>>;

    std::thread_local! {
        /// By address of the word: the tickets of those that wait there.
        static QUEUES: RefCell<(u64, Queues)> = RefCell::default();
    }

    pub fn wait(word: &AtomicU32, expected: u32, deadline_ns: u64) {
        let me = shuttle::thread::current();
        // The look at the word and the queueing are one step, as in the kernel: no shuttle operation between them.
        word.load(Relaxed);
        // SAFETY: shuttle runs one thread at a time.
        if unsafe { word.raw_load() } != expected {
            return;
        }
        let address = std::ptr::from_ref(word) as usize;
        let ticket = QUEUES.with_borrow_mut(|(next, queues)| {
            *next += 1;
            queues.entry(address).or_default().push((*next, me));
            *next
        });
        let waits = || QUEUES.with_borrow(|(_, queues)| queues[&address].iter().any(|(t, _)| *t == ticket));
        while waits() {
            if deadline_ns == u64::MAX {
                // For good: if nobody wakes it, shuttle reports a deadlock.
                shuttle::thread::park();
            } else if clock::passes_towards(deadline_ns) {
                QUEUES.with_borrow_mut(|(_, queues)| queues.get_mut(&address).unwrap().retain(|(t, _)| *t != ticket));
                return;
            } else {
                shuttle::thread::yield_now();
            }
        }
    }

    pub fn wake_one(word: &AtomicU32) {
        if mutant("no kernel wake") {
            return;
        }
        let address = std::ptr::from_ref(word) as usize;
        let woken = QUEUES.with_borrow_mut(|(_, queues)| {
            let queue = queues.get_mut(&address).filter(|queue| !queue.is_empty())?;
            Some(queue.remove(0).1)
        });
        if let Some(thread) = woken {
            thread.unpark();
        }
    }
}

#[path = "../../../src/os/cpu_list.rs"]
pub mod cpu_list;
#[path = "../../../src/os/topology.rs"]
pub mod topology;

/// Threads that wait for something to run: shuttle loses count when several of its threads start others at once.
pub mod thread {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::io;

    type Body = Box<dyn FnOnce() + Send>;

    #[derive(Default)]
    struct Threads {
        bodies: VecDeque<Body>,
        threads: Vec<shuttle::thread::JoinHandle<()>>,
        closed: bool,
    }

    std::thread_local!(static THREADS: RefCell<Threads> = RefCell::default());

    /// Shuttle has no CPUs.
    pub fn bind(_cpus: &[usize]) -> io::Result<()> {
        Ok(())
    }

    /// Makes `count` threads, on which all that is started will run.
    pub fn open(count: usize) {
        // What an earlier schedule left is not of this one; and nothing may be of another when the first begins to serve.
        std::mem::forget(THREADS.take());
        let threads = (0..count).map(|_| shuttle::thread::spawn(serve)).collect();
        THREADS.with_borrow_mut(|all| all.threads = threads);
    }

    fn serve() {
        loop {
            match THREADS.with_borrow_mut(|all| (all.bodies.pop_front(), all.closed)) {
                (Some(body), _) => body(),
                (None, true) => return,
                (None, false) => shuttle::thread::park(),
            }
        }
    }

    fn wake_all() {
        let threads: Vec<_> = THREADS.with_borrow(|all| all.threads.iter().map(|thread| thread.thread().clone()).collect());
        threads.iter().for_each(shuttle::thread::Thread::unpark);
    }

    pub fn cpu() -> Option<usize> {
        None
    }

    pub fn affinity() -> io::Result<Vec<usize>> {
        Ok((0..std::thread::available_parallelism()?.get()).collect())
    }

    pub fn start(_name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        THREADS.with_borrow_mut(|all| all.bodies.push_back(Box::new(body)));
        wake_all();
        Ok(())
    }

    /// Waits for all that was started.
    pub fn close() {
        THREADS.with_borrow_mut(|all| all.closed = true);
        wake_all();
        let threads = THREADS.with_borrow_mut(|all| std::mem::take(&mut all.threads));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// A lock that lets other shuttle threads go on while it waits; and before each time it is taken, if a scenario asks for it.
pub mod lock {
    use std::cell::{Cell, UnsafeCell};
    use std::ops::{Deref, DerefMut};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    std::thread_local! {
        /// Whether others may run between two locks: else a thread that meets nobody goes from one to the next in one step. Of the system's thread, on which all threads of an exploration run: other tests are not concerned.
        static SWITCHES: Cell<bool> = const { Cell::new(false) };
    }

    /// Lets others run before each lock that is taken, by whomever, while `f` runs.
    pub fn switching_at_locks<T>(f: impl FnOnce() -> T) -> T {
        with_switches(true, f)
    }

    /// Takes locks at once while `f` runs, which is no part of an exploration.
    pub fn at_once<T>(f: impl FnOnce() -> T) -> T {
        with_switches(false, f)
    }

    fn with_switches<T>(switches: bool, f: impl FnOnce() -> T) -> T {
        let before = SWITCHES.replace(switches);
        let result = f();
        SWITCHES.set(before);
        result
    }

    pub struct Lock<T> {
        held: AtomicBool,
        value: UnsafeCell<T>,
    }

    // SAFETY: `held` lets one thread at a time in.
    unsafe impl<T: Send> Sync for Lock<T> {}

    impl<T> Lock<T> {
        pub const fn new(value: T) -> Self {
            Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
        }

        pub fn lock(&self) -> Held<'_, T> {
            if SWITCHES.get() {
                shuttle::thread::yield_now();
            }
            while self.held.swap(true, SeqCst) {
                shuttle::thread::yield_now();
            }
            Held { lock: self }
        }
    }

    pub struct Held<'a, T> {
        lock: &'a Lock<T>,
    }

    impl<T> Drop for Held<'_, T> {
        fn drop(&mut self) {
            self.lock.held.store(false, SeqCst);
        }
    }

    impl<T> Deref for Held<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            // SAFETY: the lock is held.
            unsafe { &*self.lock.value.get() }
        }
    }

    impl<T> DerefMut for Held<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: the lock is held, and `&mut self` keeps this the only borrow.
            unsafe { &mut *self.lock.value.get() }
        }
    }
}
