#[path = "../../../src/rt/blocking.rs"]
pub mod blocking;
#[path = "../../../src/rt/cancel.rs"]
pub mod cancel;
#[path = "../../../src/rt/context.rs"]
pub mod context;
#[path = "../../../src/rt/fiber.rs"]
pub mod fiber;
#[path = "../../../src/rt/io.rs"]
pub mod io;
#[path = "../../../src/rt/pauses.rs"]
pub mod pauses;
#[path = "../../../src/rt/scope.rs"]
pub mod scope;
#[path = "../../../src/rt/spawn.rs"]
pub mod spawn;
#[path = "../../../src/rt/wait.rs"]
pub mod wait;

impl spawn::Builder {
    /// Spawns into `groups`, as by a handle to their runtime.
    pub(crate) fn spawn_in<F, T>(self, groups: &std::sync::Arc<crate::sched::groups::Groups>, f: F) -> std::io::Result<spawn::JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.runtime(&runtime::Handle(groups.clone())).spawn(f)
    }
}

/// A runtime on shuttle's threads.
pub mod runtime {
    use std::io;
    use std::sync::Arc;

    use crate::event::source::Io;
    use crate::fiber::stack::{Class, MIN_BYTES};
    use crate::os::thread;
    use crate::sched::cancel::cancel_all;
    use crate::sched::groups::{Binding, Groups, Hooks};
    use crate::sched::pool::Pool;
    use crate::sched::settings::{Settings, Spin};
    use crate::sched::worker::{Worker, here, make_ready};

    /// Stands in for a handle to a runtime.
    #[derive(Clone)]
    pub struct Handle(pub(crate) Arc<Groups>);

    impl Handle {
        pub(crate) fn groups(&self) -> &Arc<Groups> {
            &self.0
        }
    }

    impl std::fmt::Debug for Handle {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Handle")
        }
    }

    pub fn current_groups() -> io::Result<Arc<Groups>> {
        Ok(here().expect("on a worker").groups().clone())
    }

    pub fn groups_of_thread() -> Option<Arc<Groups>> {
        None
    }

    /// A group of `workers` as it is by default.
    pub fn plain(workers: usize) -> Settings {
        // So short that most schedules come to sleep.
        let spin = Spin::Fixed(std::time::Duration::from_micros(2));
        Settings { spin, ..Settings::plain(workers, Class::for_bytes(4 * MIN_BYTES).unwrap()) }
    }

    /// Runs `body` beside `workers` workers of a group, then stops the group and waits for the workers, which leave when all fibers have ended.
    pub fn with_workers(workers: usize, body: impl FnOnce(&Arc<Groups>)) {
        with_groups(vec![plain(workers)], body);
    }

    /// As `with_workers`, with the workers of several groups.
    pub fn with_groups(groups: Vec<Settings>, body: impl FnOnce(&Arc<Groups>)) {
        with_all(groups, Io::Auto, 0, 0, body);
    }

    /// As `with_groups`, whose workers have rings.
    pub fn with_rings(groups: Vec<Settings>, body: impl FnOnce(&Arc<Groups>)) {
        with_all(groups, Io::Uring, 0, 0, body);
    }

    /// As `with_workers`, with so many threads for what blocks, which stay idle for so long; they are waited for too.
    pub fn with_pool(workers: usize, blocking: usize, idle_ns: u64, body: impl FnOnce(&Arc<Groups>)) {
        with_all(vec![plain(workers)], Io::Auto, blocking, idle_ns, body);
    }

    fn with_all(each: Vec<Settings>, io: Io, blocking: usize, idle_ns: u64, body: impl FnOnce(&Arc<Groups>)) {
        // Workers that are started later run on these threads too.
        let late: usize = each.iter().map(|settings| settings.workers + settings.spares - settings.workers_min).sum();
        thread::open(blocking + late);
        let pool = Pool::new(blocking, idle_ns);
        let groups = Groups::new(each, io, pool, start_worker, Hooks::default(), Binding::default()).unwrap();
        groups.all.iter().for_each(|group| group.begin());
        let seats = groups.all.iter().flat_map(|group| (0..group.settings.workers_min).map(|seat| (group.index, seat)));
        let threads: Vec<_> = seats
            .map(|(group, seat)| {
                let groups = groups.clone();
                shuttle::thread::spawn(move || Worker::new(groups, group, seat).run())
            })
            .collect();
        body(&groups);
        groups.stop();
        if groups.all.iter().any(|group| group.settings.migrates) {
            // As `Runtime::end` does. A worker finds those that stay there; one that moves might pass by all of them.
            cancel_all(&groups, None);
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        thread::close();
        assert_eq!((groups.started(), groups.pool.counts()), (0, (0, 0)));
    }

    /// Starts a worker more.
    fn start_worker(groups: &Arc<Groups>, group: usize, seat: usize) -> io::Result<()> {
        let groups = groups.clone();
        thread::start(String::new(), move || {
            if groups.all[group].join_late(seat) {
                Worker::new(groups.clone(), group, seat).run();
            }
            groups.thread_left().into_iter().for_each(make_ready);
        })
    }
}
