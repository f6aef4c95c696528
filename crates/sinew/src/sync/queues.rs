//! The queues of futexes: made when needed, used again, never freed (`futex.rs` says why).

use super::futex::Queue;
use crate::fiber::waiters::Waiters;
use crate::os::lock::Lock;

/// Those that no futex has.
static SPARE: Lock<Vec<&'static Queue>> = Lock::new(Vec::new());

/// An empty queue.
pub(super) fn take() -> &'static Queue {
    let spare = SPARE.lock().pop();
    spare.unwrap_or_else(|| Box::leak(Box::new(Queue(Lock::new(Waiters::new())))))
}

/// Takes back a queue that is empty.
pub(super) fn give_back(queue: &'static Queue) {
    debug_assert!(queue.0.lock().is_empty(), "somebody waits in a queue that was given back");
    SPARE.lock().push(queue);
}
