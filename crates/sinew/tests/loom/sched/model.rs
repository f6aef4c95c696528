use std::sync::Arc;

use super::idle::Idle;
use super::slot::Slot;
use crate::base::atomic::{AtomicUsize, Relaxed};
use crate::{check, check_notices};

/// One worker with an inbox, seen as a counter of things left in it.
struct Bed {
    slot: Slot,
    left: AtomicUsize,
}

/// A waker leaves something; the worker must come to see it without being woken by anything else.
fn slot_model() {
    let bed = Arc::new(Bed { slot: Slot::new(), left: AtomicUsize::new(0) });
    let waker = {
        let bed = bed.clone();
        loom::thread::spawn(move || {
            bed.left.store(1, Relaxed);
            let _ = bed.slot.notify();
        })
    };
    bed.slot.lie_down();
    if bed.left.load(Relaxed) == 0 {
        // The kernel's part: sleep as long as the word says ASLEEP. A lost wake-up never leaves this loop, and loom reports it.
        while bed.slot.is_asleep() {
            loom::thread::yield_now();
        }
    }
    bed.slot.get_up();
    waker.join().unwrap();
    assert_eq!(bed.left.load(Relaxed), 1);
}

#[test]
fn a_wake_before_at_or_after_lying_down_is_kept() {
    check(3, slot_model);
}

#[test]
fn the_slot_needs_its_fences() {
    check_notices("no fence", 3, slot_model);
}
