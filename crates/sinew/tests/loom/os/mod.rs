#[path = "../../../src/os/fork.rs"]
pub mod fork;
#[path = "../../../src/os/lock.rs"]
pub mod lock;
#[path = "../../../src/os/state_lock.rs"]
pub mod state_lock;

mod model;

/// Time stands still, or goes on by so much each time somebody looks. Who waits with a deadline does not look (`rt::wait`).
pub mod clock {
    use std::cell::Cell;
    use std::time::Duration;

    std::thread_local! {
        static NOW_NS: Cell<u64> = const { Cell::new(0) };
        static LOOK_NS: Cell<u64> = const { Cell::new(0) };
    }

    pub fn set_look_ns(ns: u64) {
        LOOK_NS.set(ns);
    }

    /// What time it is, in a model to which that matters: it begins with this.
    pub fn set_ns(ns: u64) {
        NOW_NS.set(ns);
    }

    /// Somebody computes for so long.
    pub fn advance_ns(ns: u64) {
        NOW_NS.set(NOW_NS.get() + ns);
    }

    /// It is that late at least.
    pub fn reach(ns: u64) {
        NOW_NS.set(NOW_NS.get().max(ns));
    }

    /// A deadline that may come at any moment (`rt::wait::SOON`).
    pub fn deadline_ns(_after: Duration) -> u64 {
        1
    }

    pub fn now_ns() -> u64 {
        NOW_NS.set(NOW_NS.get() + LOOK_NS.get());
        NOW_NS.get()
    }
}

/// A futex as the kernel has it: the look at the word and the lying down are one step, by a lock; who sleeps is woken by `wake_one` of its word alone, so that a lost
/// wake is a deadlock, which loom reports.
pub mod futex {
    use loom::sync::{Condvar, Mutex};

    use crate::base::atomic::{AtomicU32, Relaxed, mutant};

    /// The last ticket, and word and ticket of each that sleeps.
    type Sleepers = (u32, Vec<(usize, u32)>);

    loom::lazy_static! {
        static ref BED: (Mutex<Sleepers>, Condvar) = (Mutex::new((0, Vec::new())), Condvar::new());
    }

    pub fn wait(word: &AtomicU32, expected: u32, _deadline_ns: u64) {
        let mut held = BED.0.lock().unwrap();
        if word.load(Relaxed) != expected {
            return;
        }
        held.0 += 1;
        let ticket = held.0;
        held.1.push((std::ptr::from_ref(word) as usize, ticket));
        while held.1.iter().any(|(_, sleeper)| *sleeper == ticket) {
            held = BED.1.wait(held).unwrap();
        }
    }

    pub fn wake_one(word: &AtomicU32) {
        if mutant("no kernel wake") {
            return;
        }
        let mut held = BED.0.lock().unwrap();
        let address = std::ptr::from_ref(word) as usize;
        if let Some(first) = held.1.iter().position(|(sleeps_at, _)| *sleeps_at == address) {
            held.1.remove(first);
            BED.1.notify_all();
        }
    }
}
