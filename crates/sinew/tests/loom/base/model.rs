use std::ptr;
use std::sync::Arc;

use super::atomic::{AcqRel, Acquire, AtomicPtr, Relaxed};
use super::deque::{Deque, Stolen};
use super::inbox::{Inbox, Pushed};
use super::list::{Linked, List};
use crate::{check, check_notices};

#[derive(Debug)]
struct Node {
    link: AtomicPtr<Node>,
    /// Plain memory: loom reports an access that is not ordered after the pusher's write.
    value: loom::cell::UnsafeCell<u32>,
}

// SAFETY: the link is a plain field that only lists use.
unsafe impl Linked for Node {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

fn node(value: u32) -> *mut Node {
    let node = Node { link: AtomicPtr::new(ptr::null_mut()), value: loom::cell::UnsafeCell::new(0) };
    // SAFETY: not shared yet.
    node.value.with_mut(|place| unsafe { *place = value });
    Box::into_raw(Box::new(node))
}

/// Reads and frees a node that its taker owns.
fn open(node: *mut Node) -> u32 {
    // SAFETY: `node` made the box, and the structure under test says that it is ours alone.
    let node = unsafe { Box::from_raw(node) };
    // SAFETY: as above; loom checks it.
    node.value.with(|place| unsafe { *place })
}

/// Reads a node and leaks it: with a fault in the code under test it may have been taken before, and be nobody's to free.
fn peek(node: *mut Node) -> u32 {
    assert!(!node.is_null(), "an item that nobody has pushed was taken");
    // SAFETY: it is leaked; loom checks the rest.
    unsafe { &*node }.value.with(|place| unsafe { *place })
}

struct Shared<T>(T);
// SAFETY: what the structures under test promise; loom checks the memory behind it.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

fn inbox_model() {
    let inbox = Arc::new(Shared(Inbox::<Node>::new()));
    let pushers: Vec<_> = [[1, 2], [3, 4]]
        .into_iter()
        .map(|values| {
            let inbox = inbox.clone();
            // SAFETY: fresh nodes, pushed once.
            loom::thread::spawn(move || values.map(|v| unsafe { inbox.0.push(node(v)) }))
        })
        .collect();
    let (list, mut seen, mut batches) = (List::new(), Vec::new(), 0);
    let mut drain = |inbox: &Inbox<Node>| {
        inbox.take(&list);
        batches += usize::from(!list.is_empty());
        while !list.is_empty() {
            seen.push(open(list.pop()));
        }
    };
    drain(&inbox.0);
    drain(&inbox.0);
    let told: Vec<Pushed> = pushers.into_iter().flat_map(|p| p.join().unwrap()).collect();
    drain(&inbox.0);
    for pair in [[1, 2], [3, 4]] {
        let places = pair.map(|v| seen.iter().position(|&s| s == v).expect("a node was lost"));
        assert!(places[0] < places[1], "{seen:?}");
    }
    assert_eq!(seen.len(), 4);
    assert_eq!(told.iter().filter(|&t| *t == Pushed::First).count(), batches, "one first push per batch");
}

#[test]
fn an_inbox_loses_nothing_keeps_order_and_tells_the_first_pusher() {
    check(3, inbox_model);
}

/// One node, handed over: what its pusher wrote is seen by its taker.
fn inbox_hand_over() {
    let inbox = Arc::new(Shared(Inbox::<Node>::new()));
    let pusher = {
        let inbox = inbox.clone();
        // SAFETY: a fresh node, pushed once.
        loom::thread::spawn(move || unsafe { inbox.0.push(node(7)) })
    };
    let list = List::new();
    while list.is_empty() {
        inbox.0.take(&list);
        loom::thread::yield_now();
    }
    assert_eq!(open(list.pop()), 7);
    assert_eq!(pusher.join().unwrap(), Pushed::First);
}

#[test]
fn a_node_brings_what_its_pusher_wrote() {
    check(3, inbox_hand_over);
}

#[test]
fn the_inbox_needs_its_orderings() {
    check_notices("relaxed", 3, inbox_hand_over);
}

fn deque_model() {
    let deque = Arc::new(Shared(Deque::<Node, 2>::new()));
    let thieves: Vec<_> = (0..2)
        .map(|_| {
            let deque = deque.clone();
            loom::thread::spawn(move || match deque.0.steal() {
                Stolen::Item(node) => Some(open(node)),
                Stolen::Empty | Stolen::Retry => None,
            })
        })
        .collect();
    let mut seen = Vec::new();
    assert!(deque.0.push(node(1)));
    assert!(deque.0.push(node(2)));
    for next in [3, 4] {
        let newest = deque.0.pop();
        if !newest.is_null() {
            seen.push(open(newest));
        }
        let item = node(next);
        if !deque.0.push(item) {
            seen.push(open(item));
        }
    }
    seen.extend(thieves.into_iter().filter_map(|t| t.join().unwrap()));
    loop {
        let left = deque.0.pop();
        if left.is_null() {
            break;
        }
        seen.push(open(left));
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4], "every item is taken once");
}

#[test]
fn a_deque_gives_every_item_to_exactly_one() {
    check(3, deque_model);
}

/// A thief that steals twice while the owner pops once: without the fences the owner may still see the oldest place as it was before both
/// steals, and take the newest item without asking.
fn deque_last_item() {
    let deque = Arc::new(Shared(Deque::<Node, 4>::new()));
    assert!(deque.0.push(node(1)));
    assert!(deque.0.push(node(2)));
    let thief = {
        let deque = deque.clone();
        loom::thread::spawn(move || {
            [0, 0].map(|_| match deque.0.steal() {
                Stolen::Item(node) => node as usize,
                Stolen::Empty | Stolen::Retry => 0,
            })
        })
    };
    let popped = deque.0.pop() as usize;
    let mut taken: Vec<usize> = thief.join().unwrap().into_iter().chain([popped]).filter(|&p| p != 0).collect();
    loop {
        let left = deque.0.pop();
        if left.is_null() {
            break;
        }
        taken.push(left as usize);
    }
    taken.sort_unstable();
    let before = taken.len();
    taken.dedup();
    assert_eq!(taken.len(), before, "an item was taken twice");
    assert_eq!(taken.len(), 2, "an item was lost");
    let mut values: Vec<u32> = taken.into_iter().map(|p| open(p as *mut Node)).collect();
    values.sort_unstable();
    assert_eq!(values, [1, 2]);
}

#[test]
fn the_last_item_of_a_deque_goes_to_one_taker() {
    check(3, deque_last_item);
}

#[test]
fn the_deque_needs_its_fences() {
    check_notices("no fence", 3, deque_last_item);
}

#[test]
fn a_deque_emptied_by_a_thief_is_empty_for_its_owner() {
    check(3, || {
        let deque = Arc::new(Shared(Deque::<Node, 2>::new()));
        assert!(deque.0.push(node(7)));
        let thief = {
            let deque = deque.clone();
            loom::thread::spawn(move || match deque.0.steal() {
                Stolen::Item(node) => open(node),
                other => panic!("{other:?} with one item and one thief"),
            })
        };
        assert_eq!(thief.join().unwrap(), 7);
        assert!(deque.0.pop().is_null());
        assert_eq!(deque.0.len(), 0);
        assert!(matches!(deque.0.steal(), Stolen::Empty));
    });
}

/// The owner pushes and takes the oldest, as workers do with fibers that may move, while two thieves each take one and half of the rest.
fn deque_robbed() {
    let deque = Arc::new(Shared(Deque::<Node, 4>::new()));
    let take = |deque: &Deque<Node, 4>| loop {
        match deque.steal() {
            Stolen::Item(node) => return Some(peek(node)),
            Stolen::Empty => return None,
            Stolen::Retry => loom::thread::yield_now(),
        }
    };
    let oldest = |deque: &Deque<Node, 4>| Some(deque.pop_oldest()).filter(|node| !node.is_null()).map(peek);
    assert!(deque.0.push(node(1)));
    let thieves: Vec<_> = (0..2)
        .map(|_| {
            let deque = deque.clone();
            loom::thread::spawn(move || {
                let mut loot: Vec<u32> = take(&deque.0).into_iter().collect();
                for _ in 0..deque.0.len() / 2 {
                    loot.extend(take(&deque.0));
                }
                loot
            })
        })
        .collect();
    let mut seen = Vec::new();
    assert!(deque.0.push(node(2)));
    assert!(deque.0.push(node(3)));
    seen.extend(oldest(&deque.0));
    assert!(deque.0.push(node(4)));
    seen.extend(thieves.into_iter().flat_map(|thief| thief.join().unwrap()));
    while let Some(value) = oldest(&deque.0) {
        seen.push(value);
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4], "every item is taken once");
}

/// A ring of two whose owner takes the oldest and uses its place again, while a thief reads it: an item is overwritten only when its taker has it.
fn deque_reused() {
    let deque = Arc::new(Shared(Deque::<Node, 2>::new()));
    assert!(deque.0.push(node(1)));
    assert!(deque.0.push(node(2)));
    let thief = {
        let deque = deque.clone();
        loom::thread::spawn(move || {
            [(); 2].map(|()| match deque.0.steal() {
                Stolen::Item(node) => Some(open(node)),
                Stolen::Empty | Stolen::Retry => None,
            })
        })
    };
    let mut seen = Vec::new();
    for next in [3, 4] {
        let taken = deque.0.pop_oldest();
        if !taken.is_null() {
            seen.push(open(taken));
        }
        let item = node(next);
        if !deque.0.push(item) {
            seen.push(open(item));
        }
    }
    seen.extend(thief.join().unwrap().into_iter().flatten());
    while let Some(left) = Some(deque.0.pop_oldest()).filter(|left| !left.is_null()) {
        seen.push(open(left));
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4], "every item is taken once");
}

#[test]
fn places_of_a_deque_are_used_again_only_when_they_are_taken() {
    check(3, deque_reused);
}

#[test]
fn a_deque_that_is_robbed_while_its_owner_takes_the_oldest_loses_nothing() {
    check(2, deque_robbed);
}

#[test]
fn a_deque_that_is_robbed_needs_its_orderings() {
    check_notices("relaxed", 2, deque_robbed);
}

/// The slot of the fiber that was woken last (`Worker::take_in`, `take_woken_last`, `take_stuck`): its owner swaps, a thief exchanges what it has seen.
fn slot_of_the_last() {
    let slot = Arc::new(Shared(AtomicPtr::<Node>::new(ptr::null_mut())));
    let thieves: Vec<_> = (0..2)
        .map(|_| {
            let slot = slot.clone();
            loom::thread::spawn(move || {
                let seen = slot.0.load(Relaxed);
                (!seen.is_null() && slot.0.compare_exchange(seen, ptr::null_mut(), Acquire, Relaxed).is_ok()).then(|| peek(seen))
            })
        })
        .collect();
    let mut seen = Vec::new();
    for value in [1, 2] {
        let before = slot.0.swap(node(value), AcqRel);
        if !before.is_null() {
            seen.push(peek(before));
        }
    }
    let last = slot.0.swap(ptr::null_mut(), Acquire);
    if !last.is_null() {
        seen.push(peek(last));
    }
    seen.extend(thieves.into_iter().filter_map(|thief| thief.join().unwrap()));
    seen.sort_unstable();
    assert_eq!(seen, [1, 2], "every fiber is taken once");
}

#[test]
fn the_fiber_that_was_woken_last_is_taken_by_one() {
    check(3, slot_of_the_last);
}

#[test]
fn the_slot_of_the_last_needs_its_orderings() {
    check_notices("relaxed", 3, slot_of_the_last);
}

/// Claim: where one is queued behind another before the owner takes that, no look sees none: who lies down is not called for the second.
fn deque_never_seen_empty() {
    let deque = Arc::new(Shared(Deque::<Node, 4>::new()));
    assert!(deque.0.push(node(1)));
    let looker = {
        let deque = deque.clone();
        loom::thread::spawn(move || assert_ne!(deque.0.len(), 0))
    };
    assert!(deque.0.push(node(2)));
    assert_eq!(open(deque.0.pop_oldest()), 1);
    looker.join().unwrap();
    assert_eq!(open(deque.0.pop_oldest()), 2);
}

#[test]
fn a_deque_that_always_has_one_is_never_seen_empty() {
    check(3, deque_never_seen_empty);
}

#[test]
fn the_look_at_a_deque_needs_its_orderings() {
    check_notices("relaxed", 3, deque_never_seen_empty);
}

/// Claim: a look sees no more than there is room for, however many are pushed and taken between its two loads.
fn deque_never_seen_overfull() {
    const ROOM: usize = 2;
    let deque = Arc::new(Shared(Deque::<Node, ROOM>::new()));
    let looker = {
        let deque = deque.clone();
        loom::thread::spawn(move || deque.0.len())
    };
    for value in 0..=ROOM as u32 {
        assert!(deque.0.push(node(value)));
        assert_eq!(open(deque.0.pop_oldest()), value);
    }
    let seen = looker.join().unwrap();
    assert!(seen <= ROOM, "{seen} in a deque of {ROOM}");
}

#[test]
fn a_deque_is_never_seen_fuller_than_it_may_be() {
    check(3, deque_never_seen_overfull);
}
