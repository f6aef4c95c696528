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
    use crate::sched::group::Group;
    use crate::sched::worker::{Worker, here};

    pub fn current_group() -> io::Result<Arc<Group>> {
        Ok(here().expect("on a worker").group().clone())
    }

    /// Runs `body` beside `workers` workers of a group, then stops the group and waits for the workers, which leave when all fibers have ended.
    pub fn with_workers(workers: usize, body: impl FnOnce(&Arc<Group>)) {
        let class = Class::for_bytes(4 * MIN_BYTES).unwrap();
        let group = Arc::new(Group::new(workers, class, true).unwrap());
        let threads: Vec<_> = (0..workers)
            .map(|index| {
                let group = group.clone();
                shuttle::thread::spawn(move || Worker::new(group, index).run())
            })
            .collect();
        body(&group);
        group.stop();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(group.settled(), 0);
    }
}
