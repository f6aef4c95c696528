//! How many groups there are, how large, and whether they keep to NUMA nodes.
//!
//! flare's search, with its results for the cases that flare's own tests name. A large group balances its load well, for all of its workers see all of its
//! work; a small one has less to quarrel about at its queue and its masks. So a profile names a range of sizes, and the size is taken that fits the
//! number of workers best: with the least padding, which are the seats that stay empty if all groups have that size.
//!
//! Other than flare we never start more workers than were asked for: [`Shape::sizes`] spreads exactly those. Nor fewer than one per group: flare's rule
//! for `Compute` would make a group for each of two nodes and one worker. Nor more groups than there may be: where a profile's sizes would, they are larger. And nodes must have
//! CPUs for their groups ([`Shape::fits`]).

use std::io;
use std::ops::Range;

use crate::base::mask::WORKERS_MAX;

/// By node if that leaves at most one seat in so many empty. flare's number: more would be too unlike what was asked for.
const PADDING_SHARE: usize = 10;
/// flare's ranges of sizes.
const NEUTRAL_SIZES: Range<usize> = 16..32;
const IO_SIZES: Range<usize> = 12..24;
const IO_HEAVY_SIZES: Range<usize> = 8..16;

/// Which load the runtime's groups of workers are made for.
///
/// Workers of a group share their unstarted fibers; groups only steal from one another, and seldom. Large groups spread work best, small ones quarrel least about it. It makes
/// a difference on machines with many CPUs: up to 8 workers are one group with any profile but [`Custom`](Self::Custom), unless the machine has several NUMA nodes
/// and the profile is [`Compute`](Self::Compute). There are 64 groups at most, and larger ones where that takes it. Groups are bound to nodes only where each of their workers has a CPU there, or the CPUs that workers may use are spread over the nodes about evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// Long computations, few at a time, where an idle CPU is the worst that can happen: as few groups as possible, of up to 64 workers, bound to no NUMA node.
    ComputeHeavy,
    /// Computations whose data should stay near: as [`ComputeHeavy`](Self::ComputeHeavy), but for each NUMA node, if there are several and the workers would
    /// keep at least half of the CPUs busy.
    Compute,
    /// Some of both: groups of 16 to 31 workers. Bound to NUMA nodes if they fit them, as with the next two.
    #[default]
    Neutral,
    /// Requests that compute little and wait for others: groups of 12 to 23 workers.
    Io,
    /// A great many fibers that run for a few microseconds between waits: groups of 8 to 15 workers.
    IoHeavy,
    /// Groups of the size that is given. Bound to NUMA nodes if they fit them.
    Custom,
}

/// The groups of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) groups: usize,
    /// Most workers in a group.
    pub(crate) size: usize,
    /// Whether each group keeps to a NUMA node; then each node has as many groups as any other.
    pub(crate) by_node: bool,
}

/// Finds the groups for so many `workers`, on a machine with so many NUMA `nodes` and `cpus` to use: at most `groups_max`, if a profile is to find their size and they have room.
///
/// # Errors
/// `InvalidInput` if the size is not one that a group can have, if it is missing, or given to another profile than `Custom`.
pub(crate) fn plan(
    profile: Profile,
    workers: usize,
    [nodes, cpus, groups_max]: [usize; 3],
    group_size: Option<usize>,
) -> io::Result<Shape> {
    let search_within = |sizes: Range<usize>| {
        // Of the first size on at which they are not too many, and as many sizes to choose from as the profile has.
        let more = workers.div_ceil(groups_max.max(1)).saturating_sub(sizes.start);
        let most = WORKERS_MAX + 1;
        search(workers, nodes, (sizes.start + more).min(most - 1)..(sizes.end + more).min(most))
    };
    assert!(workers > 0 && nodes > 0, "{workers} workers on {nodes} nodes");
    match (profile, group_size) {
        (Profile::Custom, Some(size @ 1..=WORKERS_MAX)) => Ok(search(workers, nodes, size..size + 1)),
        (Profile::Custom, size) => {
            let found = size.map_or("none is given".to_owned(), |size| format!("{size} is refused"));
            Err(invalid(format!("Profile::Custom needs a group size from 1 to {WORKERS_MAX}; {found}")))
        }
        (_, Some(size)) => {
            Err(invalid(format!("a group size, here {size}, goes with Profile::Custom; Profile::{profile:?} finds its own")))
        }
        (Profile::ComputeHeavy, None) => Ok(fewest(workers)),
        (Profile::Compute, None) => Ok(fewest_by_node(workers, nodes, cpus, groups_max)),
        (Profile::Neutral, None) => Ok(search_within(NEUTRAL_SIZES)),
        (Profile::Io, None) => Ok(search_within(IO_SIZES)),
        (Profile::IoHeavy, None) => Ok(search_within(IO_HEAVY_SIZES)),
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// As few groups as can hold the workers.
fn fewest(workers: usize) -> Shape {
    let groups = workers.div_ceil(WORKERS_MAX);
    Shape { groups, size: workers.div_ceil(groups), by_node: false }
}

/// The same for each node, if the workers are enough to fill half of the machine, and these are not too many groups.
fn fewest_by_node(workers: usize, nodes: usize, cpus: usize, groups_max: usize) -> Shape {
    let node = fewest(workers.div_ceil(nodes));
    let groups = node.groups * nodes;
    if nodes == 1 || workers < nodes || workers * 2 < cpus || groups > groups_max {
        return fewest(workers);
    }
    Shape { groups, size: node.size, by_node: true }
}

/// Groups of the size, among `sizes`, with the least padding: by node if that is possible at little cost.
fn search(workers: usize, nodes: usize, sizes: Range<usize>) -> Shape {
    if workers <= sizes.start {
        return Shape { groups: 1, size: workers, by_node: false };
    }
    let shapes = |by_node| sizes.clone().map(move |size| Shape { groups: workers.div_ceil(size), size, by_node });
    let padding = |shape: &Shape| shape.groups * shape.size - workers;
    let by_node = shapes(true).filter(|shape| nodes > 1 && shape.groups.is_multiple_of(nodes)).min_by_key(padding);
    by_node
        .filter(|shape| padding(shape) <= workers / PADDING_SHARE)
        .unwrap_or_else(|| shapes(false).min_by_key(padding).expect("a range of sizes is not empty"))
}

impl Shape {
    /// How many of the `workers` each group has: none more than one above another.
    pub(crate) fn sizes(&self, workers: usize) -> Vec<usize> {
        let (each, rest) = (workers / self.groups, workers % self.groups);
        (0..self.groups).map(|group| each + usize::from(group < rest)).collect()
    }

    /// Whether groups that keep to nodes have their share of the CPUs there, `cpus` of each node: workers are spread over nodes evenly, whatever is left to us of each. Each worker has a CPU, or no node has a tenth
    /// more workers than its CPUs would have of all; with `one_each`, each has a CPU.
    pub(crate) fn fits(&self, workers: usize, cpus: &[usize], one_each: bool) -> bool {
        let all: usize = cpus.iter().sum();
        let sizes = self.sizes(workers);
        let fits = |(node, &cpus_here): (usize, &usize)| {
            let here: usize = sizes.iter().skip(node).step_by(cpus.len()).sum();
            let is_fair = here * all * PADDING_SHARE <= cpus_here * workers * (PADDING_SHARE + 1);
            here <= cpus_here || (is_fair && !one_each)
        };
        !self.by_node || cpus.iter().enumerate().all(fits)
    }

    /// Which of the `nodes` each group keeps to. In turn, so that nodes have alike many workers too, where groups differ by one.
    pub(crate) fn nodes(&self, nodes: &[usize]) -> Vec<Option<usize>> {
        (0..self.groups).map(|group| self.by_node.then(|| nodes[group % nodes.len()])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEARCHED: [Profile; 5] = [Profile::ComputeHeavy, Profile::Compute, Profile::Neutral, Profile::Io, Profile::IoHeavy];

    /// What flare's tests expect of its search. Nodes, CPUs, workers; then groups and size for each profile of `SEARCHED`, 0 where flare says nothing. With two
    /// nodes all but the first profile bind to them, with one none does.
    #[test]
    fn groups_are_those_of_flare() {
        for (nodes, cpus, workers, expected) in [
            (1, 45, 45, [(1, 45), (1, 45), (2, 23), (3, 15), (5, 9)]),
            (1, 90, 90, [(2, 45), (2, 45), (5, 18), (6, 15), (10, 9)]),
            (1, 45, 90, [(2, 45), (2, 45), (5, 18), (6, 15), (10, 9)]),
            (1, 90, 45, [(1, 45), (1, 45), (2, 23), (3, 15), (5, 9)]),
            (2, 40, 80, [(2, 40), (2, 40), (4, 20), (4, 20), (10, 8)]),
            (2, 80, 80, [(2, 40), (2, 40), (4, 20), (4, 20), (10, 8)]),
            (2, 80, 40, [(1, 40), (2, 20), (2, 20), (2, 20), (4, 10)]),
            (2, 40, 40, [(1, 40), (2, 20), (2, 20), (2, 20), (4, 10)]),
            (2, 76, 32, [(0, 0), (0, 0), (2, 16), (2, 16), (4, 8)]),
            (2, 76, 40, [(0, 0), (0, 0), (2, 20), (2, 20), (4, 10)]),
            (2, 80, 90, [(0, 0), (0, 0), (0, 0), (6, 15), (0, 0)]),
            (2, 80, 45, [(0, 0), (0, 0), (0, 0), (2, 23), (0, 0)]),
            (2, 80, 85, [(0, 0), (0, 0), (0, 0), (4, 22), (0, 0)]),
            (2, 80, 77, [(0, 0), (0, 0), (0, 0), (6, 13), (0, 0)]),
        ] {
            for (profile, (groups, size)) in SEARCHED.into_iter().zip(expected) {
                let expected = Shape { groups, size, by_node: nodes == 2 && profile != Profile::ComputeHeavy };
                let found = plan(profile, workers, [nodes, cpus, 64], None).expect("groups");
                assert!(groups == 0 || found == expected, "{profile:?} for {workers} workers, {nodes} nodes, {cpus} CPUs: {found:?}");
            }
        }
    }

    #[test]
    fn few_workers_are_one_group() {
        for (profile, workers) in [(Profile::Neutral, 16), (Profile::Io, 12), (Profile::IoHeavy, 8), (Profile::Compute, 8)] {
            let found = plan(profile, workers, [2, 64, 64], None).expect("groups");
            assert_eq!(found, Shape { groups: 1, size: workers, by_node: false }, "{profile:?}");
        }
        // One worker cannot be in two groups, however few the CPUs.
        assert_eq!(plan(Profile::Compute, 1, [2, 2, 64], None).expect("groups"), Shape { groups: 1, size: 1, by_node: false });
    }

    #[test]
    fn a_size_of_ones_own_is_taken_and_checked() {
        assert_eq!(plan(Profile::Custom, 10, [1, 10, 64], Some(4)).expect("groups"), Shape { groups: 3, size: 4, by_node: false });
        assert_eq!(plan(Profile::Custom, 8, [2, 8, 64], Some(4)).expect("groups"), Shape { groups: 2, size: 4, by_node: true });
        assert_eq!(plan(Profile::Custom, 3, [2, 8, 64], Some(64)).expect("groups"), Shape { groups: 1, size: 3, by_node: false });
        for (profile, size, said) in [
            (Profile::Custom, None, "none is given"),
            (Profile::Custom, Some(0), "0 is refused"),
            (Profile::Custom, Some(65), "from 1 to 64; 65 is refused"),
            (Profile::Io, Some(8), "goes with Profile::Custom; Profile::Io finds its own"),
        ] {
            let error = plan(profile, 8, [1, 8, 64], size).expect_err(said);
            assert!(error.kind() == io::ErrorKind::InvalidInput && error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn workers_and_groups_are_spread_evenly() {
        let shape = plan(Profile::Io, 77, [2, 80, 64], None).expect("groups");
        assert_eq!(shape.sizes(77), [13, 13, 13, 13, 13, 12]);
        assert_eq!(shape.nodes(&[0, 3]), [Some(0), Some(3), Some(0), Some(3), Some(0), Some(3)]);
        assert_eq!(Shape { by_node: false, ..shape }.nodes(&[0, 3]), [None; 6]);
    }

    fn any_plan() -> impl Strategy<Value = (Profile, Option<usize>)> {
        prop_oneof![
            5 => proptest::sample::select(SEARCHED.to_vec()).prop_map(|profile| (profile, None)),
            1 => (1usize..=64).prop_map(|size| (Profile::Custom, Some(size))),
        ]
    }

    proptest! {
        #[test]
        fn every_worker_has_a_seat_and_every_group_a_worker(
            (profile, size) in any_plan(), workers in 1usize..4096, nodes in 1usize..9, cpus in 1usize..4096, background in 0usize..64
        ) {
            let most = 64 - background;
            let shape = plan(profile, workers, [nodes, cpus, most], size).expect("groups");
            // What needs more groups than that at 64 each cannot have fewer.
            let most = most.max(workers.div_ceil(64));
            prop_assert!(profile == Profile::Custom || shape.groups <= most, "{shape:?}");
            prop_assert!(shape.groups * shape.size >= workers && (1..=64).contains(&shape.size), "{shape:?}");
            prop_assert!(!shape.by_node || nodes > 1 && shape.groups.is_multiple_of(nodes), "{shape:?}");
            // `Compute` goes by node at any padding.
            let is_little = (shape.groups * shape.size - workers) * 10 <= workers;
            prop_assert!(!shape.by_node || is_little || profile == Profile::Compute, "{shape:?}");

            let sizes = shape.sizes(workers);
            let (least, most) = (sizes.iter().min().expect("a group"), sizes.iter().max().expect("a group"));
            prop_assert!(sizes.iter().sum::<usize>() == workers && *least >= 1 && most - least <= 1 && *most <= shape.size, "{sizes:?}");

            let ids: Vec<usize> = (0..nodes).map(|node| node * 2).collect();
            let of_groups = shape.nodes(&ids);
            prop_assert_eq!(of_groups.len(), shape.groups);
            if shape.by_node {
                let workers_of = |id| of_groups.iter().zip(&sizes).filter(|(node, _)| **node == Some(id)).map(|(_, size)| size).sum::<usize>();
                let totals: Vec<usize> = ids.into_iter().map(workers_of).collect();
                prop_assert!(totals.iter().max().expect("a node") - totals.iter().min().expect("a node") <= 1, "{totals:?}");
            } else {
                prop_assert!(of_groups.iter().all(Option::is_none));
            }
        }
    }
}
