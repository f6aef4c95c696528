#[path = "../../../src/os/lock.rs"]
pub mod lock;

mod model;

/// A futex as the kernel has it: the look at the word and the lying down are one step, by a lock; who sleeps is woken by `wake_one` alone, so that a lost
/// wake is a deadlock, which loom reports.
pub mod futex {
    use loom::sync::{Condvar, Mutex};

    use crate::base::atomic::{AtomicU32, Relaxed, mutant};

    loom::lazy_static! {
        static ref BED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    pub fn wait(word: &AtomicU32, expected: u32, _deadline_ns: u64) {
        let held = BED.0.lock().unwrap();
        if word.load(Relaxed) == expected {
            drop(BED.1.wait(held).unwrap());
        }
    }

    pub fn wake_one(_word: &AtomicU32) {
        if mutant("no kernel wake") {
            return;
        }
        let _held = BED.0.lock().unwrap();
        BED.1.notify_one();
    }
}
