#[path = "../../../src/rt/blocking.rs"]
pub mod blocking;
#[path = "../../../src/rt/cancel.rs"]
pub mod cancel;
#[path = "../../../src/rt/context.rs"]
pub mod context;
#[path = "../../../src/rt/fiber.rs"]
pub mod fiber;
#[path = "../../../src/rt/scope.rs"]
pub mod scope;
#[path = "../../../src/rt/spawn.rs"]
pub mod spawn;
#[path = "../../../src/rt/wait.rs"]
pub mod wait;

/// A runtime on shuttle's threads.
pub mod runtime {
    use std::io;
    use std::sync::Arc;

    use crate::fiber::stack::{Class, MIN_BYTES};
    use crate::os::thread;
    use crate::sched::group::Group;
    use crate::sched::pool::Pool;
    use crate::sched::worker::{Worker, here};

    pub fn current_group() -> io::Result<Arc<Group>> {
        Ok(here().expect("on a worker").group().clone())
    }

    /// Runs `body` beside `workers` workers of a group, then stops the group and waits for the workers, which leave when all fibers have ended.
    pub fn with_workers(workers: usize, body: impl FnOnce(&Arc<Group>)) {
        with_pool(workers, 0, 0, body);
    }

    /// As `with_workers`, with so many threads for what blocks, which stay idle for so long; they are waited for too.
    pub fn with_pool(workers: usize, blocking: usize, idle_ns: u64, body: impl FnOnce(&Arc<Group>)) {
        thread::open(blocking);
        let class = Class::for_bytes(4 * MIN_BYTES).unwrap();
        let mut group = Group::new(workers, class, true).unwrap();
        group.pool = Arc::new(Pool::new(blocking, idle_ns));
        let group = Arc::new(group);
        let threads: Vec<_> = (0..workers)
            .map(|index| {
                let group = group.clone();
                shuttle::thread::spawn(move || Worker::new(group, index).run())
            })
            .collect();
        body(&group);
        group.stop();
        threads.into_iter().for_each(|t| t.join().unwrap());
        thread::close();
        assert_eq!((group.settled(), group.pool.counts()), (0, (0, 0)));
    }
}
