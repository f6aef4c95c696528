//! Cancelling a tree of fibers: one call at the root reaches every leaf, each cleans up, and nobody is left behind.
//!
//!     cargo run --release --example cancel_tree

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use sinew::sync::Latch;

const DEPTH: u32 = 6;
const LEAVES: usize = 1 << DEPTH;

static WORKING: Latch = Latch::new(LEAVES);
static CLEANED_UP: AtomicUsize = AtomicUsize::new(0);

/// A branch has two children, in a scope: they are cancelled with it, and it does not end before them.
fn grow(depth: u32) {
    if depth == 0 {
        return work();
    }
    sinew::scope(|s| {
        s.spawn(move || grow(depth - 1));
        s.spawn(move || grow(depth - 1));
    });
}

/// A leaf works until it is told to end.
fn work() {
    WORKING.count_down();
    while !sinew::cancelled() {
        // A cancel point: cut short, it returns at once.
        sinew::sleep(Duration::from_secs(3600));
    }
    // What must be done to the end is not disturbed by the cancel.
    sinew::shield(|| sinew::sleep(Duration::from_millis(1)));
    CLEANED_UP.fetch_add(1, SeqCst);
}

fn main() {
    let root = sinew::spawn(|| grow(DEPTH));
    WORKING.wait();
    println!("{LEAVES} leaves work");

    root.cancel();
    root.join().unwrap();
    println!("{} leaves have cleaned up", CLEANED_UP.load(SeqCst));
    assert_eq!(CLEANED_UP.load(SeqCst), LEAVES);
}
