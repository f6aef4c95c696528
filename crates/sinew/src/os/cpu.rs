//! How many CPUs this process may use.

/// CPUs by affinity mask and cgroup quota, never below one. std reads both, the quota along the whole path of nested groups, and rounds it
/// down: a quota below two is one CPU.
pub(crate) fn usable() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
