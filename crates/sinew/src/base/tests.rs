//! Tests of `list`, `mask`, `deque` and `histogram`; they stand apart because the models include those files as they are.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::atomic::AtomicPtr;
use super::deque::{Deque, Stolen};
use super::histogram::{Counts, Histogram};
use super::list::{Linked, List};
use super::mask::{Mask, Set};

struct Node(AtomicPtr<Node>, u32);
// SAFETY: the link is a plain field that only lists use.
unsafe impl Linked for Node {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.0
    }
}

fn drain(list: &List<Node>) -> Vec<u32> {
    std::iter::from_fn(|| {
        let node = list.pop();
        // SAFETY: popped nodes are the boxes leaked by `node`.
        (!node.is_null()).then(|| unsafe { Box::from_raw(node) }.1)
    })
    .collect()
}

fn fill(list: &List<Node>, numbers: std::ops::Range<u32>) {
    for n in numbers {
        // SAFETY: a fresh leaked box is valid and in no list.
        unsafe { list.push(Box::into_raw(Box::new(Node(AtomicPtr::default(), n)))) };
    }
}

#[test]
fn nodes_leave_in_the_order_they_came() {
    let list = List::new();
    fill(&list, 0..3);
    assert_eq!(drain(&list), [0, 1, 2]);
    fill(&list, 7..8);
    assert_eq!(drain(&list), [7]);
    assert!(list.is_empty());
}

#[test]
fn append_keeps_order_and_empties_the_other() {
    for (here, there) in [(0..0, 0..2), (0..2, 2..2), (0..2, 2..5)] {
        let (a, b) = (List::new(), List::new());
        let all: Vec<u32> = here.clone().chain(there.clone()).collect();
        fill(&a, here);
        fill(&b, there);
        a.append(&b);
        assert!(b.is_empty());
        assert_eq!(b.len(), 0);
        assert_eq!(a.len(), all.len());
        assert_eq!(drain(&a), all);
    }
}

/// Group sizes at which arithmetic goes wrong if it ever does.
const SIZES: [usize; 7] = [1, 2, 31, 32, 33, 63, 64];

#[test]
fn a_set_holds_every_worker_of_every_group_size() {
    for size in SIZES {
        let full = (0..size).fold(Set::EMPTY, Set::with);
        assert_eq!(full.len(), size);
        assert!(full.iter().eq(0..size), "{full:?}");
        for worker in 0..size {
            let without = full.without(worker);
            assert!(!without.contains(worker) && without.len() == size - 1);
            assert!(without.iter().eq((0..size).filter(|&w| w != worker)));
            assert_eq!(without.with(worker), full);
            assert_eq!(Set::of(worker).iter().collect::<Vec<_>>(), [worker]);
        }
    }
}

#[test]
fn a_mask_gives_each_worker_to_one_remover_and_keeps_its_limit() {
    for size in SIZES {
        let mask = Mask::new();
        for worker in 0..size {
            assert!(mask.insert_below(worker, size));
        }
        assert!(!mask.insert_below(0, size), "{size} workers were in already");
        let removed: usize = std::thread::scope(|s| {
            let removers: Vec<_> = (0..4).map(|_| s.spawn(|| (0..size).filter(|&w| mask.remove(w)).count())).collect();
            removers.into_iter().map(|r| r.join().unwrap()).sum()
        });
        assert_eq!(removed, size);
        assert!(mask.get().is_empty());
        mask.insert(size - 1);
        assert_eq!(mask.get(), Set::of(size - 1));
        mask.clear();
        assert!(mask.get().is_empty());
    }
}

#[test]
fn percentiles_come_from_what_was_recorded() {
    let histogram = Histogram::new();
    (1..=1000).for_each(|value| histogram.record(value));
    let mut counts = Counts::new();
    histogram.add_to(&mut counts);
    for (per_mille, value) in [(1, 1), (500, 500), (990, 990), (1000, 1000)] {
        let got = counts.per_mille(per_mille).unwrap();
        assert!(got >= value && got - value <= value / 8, "{per_mille} per mille is {got}");
    }
    assert_eq!(counts.since(&counts).per_mille(500), None);
}

/// bthread's test of its queue: eight thieves, and an owner that pushes half a million items, takes some back from both ends, and goes round the ring some ten thousand times. Each item is taken once.
#[test]
fn every_item_of_a_deque_is_taken_once_by_its_owner_or_one_of_eight_thieves() {
    const ITEMS: usize = 512 * 1024;
    const THIEVES: usize = 8;
    let taken: Vec<AtomicUsize> = (0..ITEMS).map(|_| AtomicUsize::new(0)).collect();
    let (deque, done) = (Deque::<AtomicUsize, 64>::new(), AtomicBool::new(false));
    // SAFETY: the items are places in `taken`, which outlives all who take them.
    let take = |item: *mut AtomicUsize| !item.is_null() && unsafe { &*item }.fetch_add(1, Ordering::Relaxed) == 0;
    let stolen: usize = std::thread::scope(|s| {
        let thief = || {
            let mut count = 0;
            loop {
                let was_done = done.load(Ordering::Acquire);
                match deque.steal() {
                    Stolen::Item(item) => count += usize::from(take(item)),
                    Stolen::Retry => {}
                    Stolen::Empty if was_done => return count,
                    Stolen::Empty => std::thread::yield_now(),
                }
            }
        };
        let thieves: Vec<_> = (0..THIEVES).map(|_| s.spawn(thief)).collect();
        let mut own = 0;
        for (n, item) in taken.iter().enumerate() {
            while !deque.push(std::ptr::from_ref(item).cast_mut()) {
                own += usize::from(take(if n % 2 == 0 { deque.pop() } else { deque.pop_oldest() }));
            }
            if n % 3 == 0 {
                own += usize::from(take(deque.pop()));
            }
        }
        done.store(true, Ordering::Release);
        own + thieves.into_iter().map(|thief| thief.join().unwrap()).sum::<usize>()
    });
    assert_eq!(stolen, ITEMS);
    assert!(taken.iter().all(|times| times.load(Ordering::Relaxed) == 1));
}
