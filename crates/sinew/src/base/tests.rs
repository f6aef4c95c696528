//! Tests of `list`; they stand apart because the models include that file as it is.

use super::atomic::AtomicPtr;
use super::list::{Linked, List};

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
