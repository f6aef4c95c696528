//! Which CPUs there are, how they lie together, and which of them a worker's thread is bound to.
//!
//! Read from `/sys` below a root that tests choose. What is missing there, or must not be read, as in containers, is taken to be plain: one node, a core for each CPU.
//! What is there and cannot be understood is an error. A CPU that the process may use is online, whatever `/sys` says: the mask is the kernel's own word,
//! `/sys` is made up by some containers.
//!
//! # Not here
//! How many CPUs a cgroup's quota amounts to: that limits the number of workers, not their places (`cpu.rs`). How many groups there are
//! and which of them keep to a node: `sched/profile.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::cpu_list::{CpuList, Show, parse_kernel};

/// A CPU that is online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpu {
    pub(crate) id: usize,
    /// The NUMA node it belongs to, as the machine numbers them.
    pub(crate) node: usize,
}

/// CPUs, by id: of a machine, or those of it that workers may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Topology {
    pub(crate) cpus: Vec<Cpu>,
    /// What the process may use of the machine.
    pub(crate) affinity: Vec<usize>,
    /// All of the machine that are online: threads that are no workers run there.
    online: Vec<Cpu>,
    /// Where the machine describes its CPUs. Which of them share a core is read when it is asked for: two files of each.
    directory: PathBuf,
}

/// The CPUs that a thread is bound to; `None` leaves it as it is.
pub(crate) type Binding = Option<Vec<usize>>;

/// How workers share CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// Each may run on all that its group has.
    Shared,
    /// Each has one of its own.
    OneCpuPerWorker,
}

impl Topology {
    /// All CPUs of the machine that are online, as described below `root`; `affinity` is what the process may use (`thread::affinity`).
    ///
    /// # Errors
    /// `InvalidData` for a file with broken content, which is named with what was expected; others if a file is there, is ours to read, and cannot be read.
    pub(crate) fn read(root: &Path, affinity: Vec<usize>) -> io::Result<Self> {
        let system = root.join("sys/devices/system");
        let mut online = read_list(&system.join("cpu/online"))?.unwrap_or_default();
        online.extend(&affinity);
        online.sort_unstable();
        online.dedup();
        let nodes = read_nodes(&system.join("node"))?;
        let first_node = nodes.values().min().copied().unwrap_or(0);
        let cpu = |id| Cpu { id, node: nodes.get(&id).copied().unwrap_or(first_node) };
        let online: Vec<Cpu> = online.into_iter().map(cpu).collect();
        Ok(Self { cpus: online.clone(), affinity, online, directory: system.join("cpu") })
    }

    /// Those that workers may use: what the process may use, of that the `allowed`, without the `forbidden`.
    ///
    /// # Errors
    /// `InvalidInput` if a list names a CPU that is not there, if a CPU of the `allowed` is not the process's to use (it is named), and if nothing is left.
    pub(crate) fn usable(&self, allowed: Option<&CpuList>, forbidden: Option<&CpuList>) -> io::Result<Self> {
        let online = self.ids(|_| true);
        let mut ids = self.affinity.clone();
        if let Some(list) = allowed {
            ids = list.resolve(&online)?;
            if let Some(id) = ids.iter().find(|id| !self.affinity.contains(id)) {
                let ours = Show(&self.affinity);
                return Err(list.refuse(format_args!("CPU {id} is not allowed to this process, which may use {ours}")));
            }
        }
        if let Some(list) = forbidden {
            let before = ids.clone();
            let out = list.resolve(&online)?;
            ids.retain(|id| !out.contains(id));
            if ids.is_empty() {
                return Err(list.refuse(format_args!("it forbids all of {}, so that none is left for the workers", Show(&before))));
            }
        }
        let cpus = self.cpus.iter().filter(|cpu| ids.contains(&cpu.id)).copied().collect();
        Ok(Self { cpus, ..self.clone() })
    }

    /// The nodes that have CPUs here, in order.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        let mut nodes: Vec<usize> = self.cpus.iter().map(|cpu| cpu.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// The node of a CPU of the machine, whether or not workers may use it.
    pub(crate) fn node_of(&self, id: usize) -> Option<usize> {
        let at = self.online.binary_search_by_key(&id, |cpu| cpu.id).ok()?;
        Some(self.online[at].node)
    }

    /// Binds the workers of each group, whose node (`None`: it keeps to none) and size are given: a binding for each worker of each group.
    ///
    /// # Errors
    /// If each worker is to have a CPU of its own: `InvalidInput` if there are too few, in the machine or in a node, and as [`read`](Self::read) if it cannot be
    /// found out which of them share a core.
    pub(crate) fn assign(&self, nodes: &[Option<usize>], sizes: &[usize], spread: Spread) -> io::Result<Vec<Vec<Binding>>> {
        assert_eq!(nodes.len(), sizes.len(), "a node, or none, and a size for each group");
        match spread {
            Spread::Shared => Ok(nodes.iter().zip(sizes).map(|(&node, &size)| vec![self.shared(node); size]).collect()),
            Spread::OneCpuPerWorker => self.one_each(nodes, sizes),
        }
    }

    /// Whether workers are to use less than the process may.
    pub(crate) fn is_narrowed(&self) -> bool {
        self.cpus.len() < self.affinity.len()
    }

    fn shared(&self, node: Option<usize>) -> Binding {
        (node.is_some() || self.is_narrowed()).then(|| self.ids(|cpu| is_in(cpu, node)))
    }

    fn one_each(&self, nodes: &[Option<usize>], sizes: &[usize]) -> io::Result<Vec<Vec<Binding>>> {
        let mut free = self.cores_first()?;
        let mut take = |node| free.iter().position(|cpu| is_in(cpu, node)).map(|at| Some(vec![free.remove(at).id]));
        let group = |(&node, &size): (&Option<usize>, &usize)| (0..size).map(|_| take(node).ok_or(node)).collect();
        let groups: Result<_, Option<usize>> = nodes.iter().zip(sizes).map(group).collect();
        groups.map_err(|node| {
            let workers: usize = nodes.iter().zip(sizes).filter(|(other, _)| **other == node).map(|(_, size)| size).sum();
            let cpus = self.ids(|cpu| is_in(cpu, node));
            let place = node.map_or(String::new(), |node| format!(" of node {node}"));
            let text =
                format!("one CPU per worker is asked for, and {workers} workers have {} CPUs{place} to use: {}", cpus.len(), Show(&cpus));
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })
    }

    /// One CPU of each core, then the second ones, and so on; node by node, so that neighbours in a group are neighbours in the machine.
    fn cores_first(&self) -> io::Result<Vec<Cpu>> {
        let mut seen = BTreeMap::new();
        let mut ranked: Vec<(usize, Cpu)> = Vec::with_capacity(self.cpus.len());
        for (&cpu, core) in self.cpus.iter().zip(self.cores()?) {
            let rank = seen.entry(core).or_insert(0);
            ranked.push((*rank, cpu));
            *rank += 1;
        }
        ranked.sort_by_key(|&(rank, cpu)| (rank, cpu.node, cpu.id));
        Ok(ranked.into_iter().map(|(_, cpu)| cpu).collect())
    }

    /// For each CPU the physical core it is part of: the lowest id of those here that belong to it.
    fn cores(&self) -> io::Result<Vec<usize>> {
        let mut first = BTreeMap::new();
        let core_of = |&Cpu { id, .. }: &Cpu| {
            let core = read_core(&self.directory.join(format!("cpu{id}/topology")))?;
            Ok(core.map_or(id, |core| *first.entry(core).or_insert(id)))
        };
        self.cpus.iter().map(core_of).collect()
    }

    fn ids(&self, is_wanted: impl Fn(&Cpu) -> bool) -> Vec<usize> {
        self.cpus.iter().filter(|cpu| is_wanted(cpu)).map(|cpu| cpu.id).collect()
    }
}

fn is_in(cpu: &Cpu, node: Option<usize>) -> bool {
    node.is_none_or(|node| cpu.node == node)
}

/// The node of each CPU; empty where there are no nodes. Nodes of memory alone have empty lists.
fn read_nodes(directory: &Path) -> io::Result<BTreeMap<usize, usize>> {
    let mut nodes = BTreeMap::new();
    let Some(entries) = if_there(fs::read_dir(directory), directory)? else { return Ok(nodes) };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("node"));
        let Some(node) = name.and_then(|digits| digits.parse::<usize>().ok()) else { continue };
        let cpus = read_list(&path.join("cpulist"))?.unwrap_or_default();
        nodes.extend(cpus.into_iter().map(|id| (id, node)));
    }
    Ok(nodes)
}

/// What tells a core from all others: its package and its number there. Either is below zero where the kernel does not know it.
fn read_core(directory: &Path) -> io::Result<Option<(i64, i64)>> {
    let number = |name: &str| read_as(&directory.join(name), "a whole number", |text| text.trim().parse().ok());
    Ok(number("physical_package_id")?.zip(number("core_id")?))
}

fn read_list(path: &Path) -> io::Result<Option<Vec<usize>>> {
    read_as(path, "a list of CPUs, as in 0-3,8", parse_kernel)
}

/// What a file says; `None` if there is no such file, or it is not ours to read.
fn read_as<V>(path: &Path, expected: &str, parse: impl FnOnce(&str) -> Option<V>) -> io::Result<Option<V>> {
    let Some(bytes) = if_there(fs::read(path), path)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let broken = || io::Error::new(io::ErrorKind::InvalidData, format!("{} holds {text:?}; expected was {expected}", path.display()));
    parse(&text).map(Some).ok_or_else(broken)
}

fn if_there<V>(result: io::Result<V>, path: &Path) -> io::Result<Option<V>> {
    match result {
        Ok(value) => Ok(Some(value)),
        // A sandbox that hides `/sys` is no reason not to start.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{} cannot be read: {error}", path.display()))),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::os::thread;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// A machine's `/sys` in a directory that goes with it: it must outlive what reads cores.
    pub(crate) struct Machine(PathBuf);

    impl Machine {
        fn new() -> Self {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let name = format!("sinew-topology-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
            Self(std::env::temp_dir().join(name))
        }

        fn with(self, path: &str, content: &str) -> Self {
            let path = self.0.join("sys/devices/system").join(path);
            fs::create_dir_all(path.parent().expect("a file in a directory")).expect("a directory");
            fs::write(path, content).expect("a file");
            self
        }

        fn online(self, list: &str) -> Self {
            self.with("cpu/online", &format!("{list}\n"))
        }

        /// CPUs with the package and the number of their core; those with the same are siblings.
        fn cores(self, cpus: impl IntoIterator<Item = (usize, i64, i64)>) -> Self {
            cpus.into_iter().fold(self, |machine, (id, package, core)| {
                let machine = machine.with(&format!("cpu/cpu{id}/topology/physical_package_id"), &format!("{package}\n"));
                machine.with(&format!("cpu/cpu{id}/topology/core_id"), &format!("{core}\n"))
            })
        }

        fn node(self, node: usize, list: &str) -> Self {
            self.with(&format!("node/node{node}/cpulist"), &format!("{list}\n"))
        }

        pub(crate) fn read(&self, affinity: &str) -> io::Result<Topology> {
            Topology::read(&self.0, parse_kernel(affinity).expect("a list"))
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Two nodes of four cores of two threads each: siblings are 8 apart, node 1 has the odd CPUs, and each package counts its cores from 0.
    pub(crate) fn two_nodes() -> Machine {
        let machine = Machine::new().online("0-15").with("node/possible", "0-1\n").with("node/has_cpu", "0-1\n");
        let machine = machine.node(0, "0,2,4,6,8,10,12,14").node(1, "1,3,5,7,9,11,13,15");
        machine.cores((0..16).map(|id| (id, id as i64 % 2, id as i64 % 8 / 2)))
    }

    /// One node of so many CPUs.
    pub(crate) fn many(cpus: usize) -> Machine {
        Machine::new().online(&format!("0-{}", cpus - 1))
    }

    fn nodes_of(topology: &Topology) -> Vec<usize> {
        topology.cpus.iter().map(|cpu| cpu.node).collect()
    }

    fn cores_of(topology: &Topology) -> Vec<usize> {
        topology.cores().expect("cores")
    }

    fn usable(machine: &Topology, allowed: &str, forbidden: &str) -> Result<Topology, String> {
        let list = |text: &str| (!text.is_empty()).then(|| CpuList::parse(text).expect("a list"));
        machine.usable(list(allowed).as_ref(), list(forbidden).as_ref()).map_err(|error| error.to_string())
    }

    fn alone(groups: &[&[usize]]) -> Vec<Vec<Binding>> {
        groups.iter().map(|group| group.iter().map(|&id| Some(vec![id])).collect()).collect()
    }

    #[test]
    fn one_node_with_a_core_for_each_cpu() {
        let machine = Machine::new().online("0-3").node(0, "0-3").cores((0..4).map(|id| (id, 0, id as i64)));
        let topology = machine.read("0-3").expect("a machine");
        let cpus: Vec<Cpu> = (0..4).map(|id| Cpu { id, node: 0 }).collect();
        assert_eq!((topology.cpus.clone(), topology.nodes(), cores_of(&topology)), (cpus, vec![0], vec![0, 1, 2, 3]));
    }

    #[test]
    fn two_nodes_of_hyper_threads() {
        let described = two_nodes();
        let topology = described.read("0-15").expect("a machine");
        assert_eq!(nodes_of(&topology), [0, 1].repeat(8));
        assert_eq!(cores_of(&topology), [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7], "core 0 of package 0 is not core 0 of package 1");
        assert_eq!(topology.nodes(), [0, 1]);
    }

    #[test]
    fn cpus_that_are_offline_are_left_out() {
        // An offline CPU keeps its directory without a topology, and stands in no node's list.
        let machine = Machine::new().online("0,2-3").node(0, "0").node(1, "2-3").with("cpu/cpu1/online", "0\n");
        let machine = machine.cores([(0, 0, 0), (2, 1, 0), (3, 1, 0)]);
        let topology = machine.read("0,2-3").expect("a machine");
        assert_eq!(topology.ids(|_| true), [0, 2, 3]);
        assert_eq!((nodes_of(&topology), cores_of(&topology)), (vec![0, 1, 1], vec![0, 2, 2]));
        assert!(usable(&topology, "0-1", "").expect_err("offline").contains("CPU 1 does not exist or is offline"));
    }

    #[test]
    fn a_node_of_memory_alone_is_skipped_and_numbers_are_the_machines() {
        let topology = Machine::new().online("0-3").node(0, "").node(2, "2-3").node(10, "0-1").read("0-3").expect("a machine");
        assert_eq!((topology.nodes(), nodes_of(&topology)), (vec![2, 10], vec![10, 10, 2, 2]));
    }

    #[test]
    fn what_a_container_does_not_show_is_taken_to_be_plain() {
        let without_nodes = Machine::new().online("0-3").cores((0..4).map(|id| (id, 0, id as i64 / 2)));
        let topology = without_nodes.read("0-3").expect("a machine");
        assert_eq!((topology.nodes(), cores_of(&topology)), (vec![0], vec![0, 0, 2, 2]));
        let without_sys = Machine::new().read("4-5").expect("a machine");
        assert_eq!(without_sys.cpus, [Cpu { id: 4, node: 0 }, Cpu { id: 5, node: 0 }]);
        assert_eq!(cores_of(&without_sys), [4, 5]);
        // A `/sys` that numbers the container's CPUs from 0, and a process that may use others.
        let made_up = Machine::new().online("0-1").node(3, "0-1").read("6-7").expect("a machine");
        assert_eq!(usable(&made_up, "", "").expect("CPUs").ids(|_| true), [6, 7]);
        assert_eq!(made_up.nodes(), [3]);
    }

    #[test]
    fn more_cpus_than_a_word_has_bits() {
        let machine = Machine::new().online("0-2047").node(0, "0-1023").node(1, "1024-2047");
        let topology = machine.read("0-2047").expect("a machine");
        assert_eq!((topology.cpus.len(), topology.nodes()), (2048, vec![0, 1]));
        assert_eq!((topology.cpus[2047], cores_of(&topology)[2047]), (Cpu { id: 2047, node: 1 }, 2047));
        let last = usable(&topology, "-2--1", "").expect("CPUs");
        assert_eq!(last.assign(&[None], &[1], Spread::Shared).expect("a place"), [vec![Some(vec![2046, 2047])]]);
    }

    #[test]
    fn broken_content_is_named_with_what_was_expected() {
        for (path, content, expected) in [
            ("cpu/online", "0-x\n", "as in 0-3,8"),
            ("cpu/online", "-1\n", "as in 0-3,8"),
            ("node/node1/cpulist", "1-0", "as in 0-3,8"),
            ("cpu/cpu0/topology/core_id", "", "a whole number"),
            ("cpu/cpu1/topology/physical_package_id", "one", "a whole number"),
        ] {
            let machine = Machine::new().online("0-1").node(0, "0-1").cores([(0, 0, 0), (1, 0, 1)]).with(path, content);
            let one_each = |topology: Topology| topology.assign(&[None], &[2], Spread::OneCpuPerWorker);
            let error = machine.read("0-1").and_then(one_each).expect_err(path);
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            let text = error.to_string();
            assert!(text.contains(path) && text.contains(&format!("holds {content:?}")) && text.contains(expected), "{text}");
        }
        let a_directory = Machine::new().with("cpu/online/x", "").read("0-1").expect_err("no file").to_string();
        assert!(a_directory.contains("cpu/online cannot be read"), "{a_directory}");
    }

    #[test]
    fn which_cpus_share_a_core_is_read_for_a_cpu_per_worker_only() {
        let described = Machine::new().online("0-1").cores([(0, 0, 0), (1, 0, 1)]).with("cpu/cpu1/topology/core_id", "broken");
        let machine = described.read("0-1").expect("a machine");
        assert_eq!(machine.assign(&[None], &[2], Spread::Shared).expect("places"), [vec![None, None]]);
        machine.assign(&[None], &[2], Spread::OneCpuPerWorker).expect_err("a broken file");
        // Not of CPUs that are left to others.
        let first = usable(&machine, "0", "").expect("CPUs");
        assert_eq!(first.assign(&[None], &[1], Spread::OneCpuPerWorker).expect("places"), alone(&[&[0]]));
    }

    #[test]
    fn this_machine_is_understood() {
        let affinity = thread::affinity().expect("a mask");
        let topology = Topology::read(Path::new("/"), affinity.clone()).expect("this machine");
        assert_eq!(topology.usable(None, None).expect("CPUs").ids(|_| true), affinity);
        assert_eq!(cores_of(&topology).len(), topology.cpus.len());
    }

    #[test]
    fn workers_use_what_the_process_may_use_and_the_lists_leave() {
        let machine = two_nodes().read("0-7").expect("a machine");
        for (allowed, forbidden, left) in
            [("", "", "0-7"), ("2-5,0", "", "0,2-5"), ("", "0,8-15", "1-7"), ("0-3", "3,-1", "0-2"), ("1,3", "", "1,3")]
        {
            let usable = usable(&machine, allowed, forbidden).expect("CPUs");
            assert_eq!(Show(&usable.ids(|_| true)).to_string(), left, "{allowed:?} without {forbidden:?}");
        }
        assert_eq!(usable(&machine, "1,3", "").expect("CPUs").nodes(), [1]);
        for (allowed, forbidden, why) in [
            ("0,9", "", "CPU 9 is not allowed to this process, which may use 0-7"),
            ("-1", "", "CPU 15 is not allowed"),
            ("16", "", "CPU 16 does not exist"),
            ("", "16", "CPU 16 does not exist"),
            ("0-1", "0-3", "it forbids all of 0-1"),
        ] {
            let text = usable(&machine, allowed, forbidden).expect_err(why);
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn workers_share_what_their_group_has() {
        let machine = two_nodes().read("0-15").expect("a machine");
        let all = usable(&machine, "", "").expect("CPUs");
        // Neither a node nor a list: threads stay as they are.
        assert_eq!(all.assign(&[None, None], &[2, 1], Spread::Shared).expect("places"), [vec![None, None], vec![None]]);
        let evens = Some(vec![0, 2, 4, 6, 8, 10, 12, 14]);
        let odds = Some(vec![1, 3, 5, 7, 9, 11, 13, 15]);
        let by_node = all.assign(&[Some(0), Some(1)], &[2, 1], Spread::Shared).expect("places");
        assert_eq!(by_node, [vec![evens.clone(), evens], vec![odds]]);
        let few = usable(&machine, "0-3", "3").expect("CPUs");
        assert_eq!(few.assign(&[None], &[1], Spread::Shared).expect("places"), [vec![Some(vec![0, 1, 2])]]);
        assert_eq!(few.assign(&[Some(1)], &[1], Spread::Shared).expect("places"), [vec![Some(vec![1])]]);
    }

    #[test]
    fn a_worker_with_a_cpu_of_its_own_has_a_core_of_its_own_first() {
        let described = two_nodes();
        let machine = described.read("0-15").expect("a machine");
        let one_each = |topology: &Topology, nodes: &[Option<usize>], sizes: &[usize]| {
            topology.assign(nodes, sizes, Spread::OneCpuPerWorker).map_err(|error| error.to_string())
        };
        let all = usable(&machine, "", "").expect("CPUs");
        // Eight cores, node by node, then siblings.
        assert_eq!(one_each(&all, &[None, None], &[5, 5]), Ok(alone(&[&[0, 2, 4, 6, 1], &[3, 5, 7, 8, 10]])));
        // Two groups at node 0, one at node 1.
        assert_eq!(one_each(&all, &[Some(0), Some(1), Some(0)], &[3, 2, 2]), Ok(alone(&[&[0, 2, 4], &[1, 3], &[6, 8]])));
        // Of a core whose first CPU is forbidden the other one comes first.
        let few = usable(&machine, "", "0,4,6").expect("CPUs");
        assert_eq!(one_each(&few, &[Some(0)], &[5]), Ok(alone(&[&[2, 8, 12, 14, 10]])));
        let text = one_each(&all, &[None, None], &[9, 8]).expect_err("too few");
        assert!(text.contains("17 workers have 16 CPUs to use: 0-15"), "{text}");
        let text = one_each(&few, &[Some(1), Some(0), Some(0)], &[1, 3, 3]).expect_err("too few");
        assert!(text.contains("6 workers have 5 CPUs of node 0 to use: 2,8,10,12,14"), "{text}");
    }
}
