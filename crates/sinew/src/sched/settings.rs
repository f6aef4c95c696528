//! How a group is to be: what builders say and the scheduler heeds.

use std::time::Duration;

use crate::fiber::stack::Class;

/// Where fibers that any worker of a group may run wait for one. See [`RuntimeBuilder::queue`](crate::RuntimeBuilder::queue).
///
/// Started fibers that are settled wait at their own worker in both kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queue {
    /// One queue for the whole group, first come, first served: the order is fair over all workers, and every spawn and every start takes the queue's lock.
    Shared,
    /// A queue for each worker, from which idle workers steal: spawns and wakes stay on their worker while that is not idle, and need no lock. The default.
    #[default]
    Stealing,
}

/// What a worker takes first. See [`RuntimeBuilder::policy`](crate::RuntimeBuilder::policy).
///
/// Neither starves what the other prefers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Its own fibers; what waits for any worker of the group in every eighth round, or after 61 fibers of its own. The default.
    #[default]
    Affinity,
    /// What waits for any worker of the group; its own fibers in every eighth round.
    Balance,
}

/// How long an idle worker polls for work before it sleeps. See [`RuntimeBuilder::spin`](crate::RuntimeBuilder::spin).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// Not at all.
    Never,
    /// For so long, each time.
    Fixed(Duration),
    /// About as long as it has been measured to take to wake a sleeper, while that pays; less and less while it does not. The default.
    #[default]
    Adaptive,
}

/// One group.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Workers, at most, and how many of them there are from the beginning.
    pub(crate) workers: usize,
    pub(crate) workers_min: usize,
    /// Workers besides, at most, that stand in for those that are held. None where started fibers stay: what has begun on a worker could not go on elsewhere.
    pub(crate) spares: usize,
    /// The stack of a fiber that asks for none.
    pub(crate) class: Class,
    pub(crate) spin: Spin,
    pub(crate) queue: Queue,
    pub(crate) policy: Policy,
    pub(crate) background: bool,
    /// The NUMA node that its workers are bound to.
    pub(crate) node: Option<usize>,
    /// Whether started fibers may move, by their owner's promise.
    pub(crate) migrates: bool,
    /// Whether every fiber that may move does so at every chance: a test of that promise.
    pub(crate) shakes: bool,
    /// The groups that its idle workers steal from, and after how many idle passes each.
    pub(crate) victims: Vec<(usize, u32)>,
}

impl Settings {
    /// One group of `workers`, with everything else as it is by default.
    pub(crate) fn plain(workers: usize, class: Class) -> Self {
        Self {
            workers,
            workers_min: workers,
            spares: 0,
            class,
            spin: Spin::default(),
            queue: Queue::default(),
            policy: Policy::default(),
            background: false,
            node: None,
            migrates: false,
            shakes: false,
            victims: Vec::new(),
        }
    }
}
