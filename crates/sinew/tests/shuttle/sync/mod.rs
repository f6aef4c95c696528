#[path = "../../../src/sync/barrier.rs"]
pub mod barrier;
#[path = "../../../src/sync/condvar.rs"]
pub mod condvar;
#[path = "../../../src/sync/event.rs"]
pub mod event;
#[path = "../../../src/sync/execution_queue.rs"]
pub mod execution_queue;
#[path = "../../../src/sync/futex.rs"]
pub mod futex;
#[path = "../../../src/sync/monitor.rs"]
pub mod monitor;
#[path = "../../../src/sync/mutex.rs"]
pub mod mutex;
#[path = "../../../src/sync/queues.rs"]
pub mod queues;
#[path = "../../../src/sync/raw_mutex.rs"]
pub mod raw_mutex;
#[path = "../../../src/sync/raw_rwlock.rs"]
pub mod raw_rwlock;
#[path = "../../../src/sync/semaphore.rs"]
pub mod semaphore;
#[path = "../../../src/sync/turns.rs"]
pub mod turns;
#[path = "../../../src/sync/watch.rs"]
pub mod watch;

mod object_scenarios;
mod scenarios;
