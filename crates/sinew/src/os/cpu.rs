//! How many CPUs this process may use.

/// CPUs by affinity mask and cgroup quota (std reads both), never below one.
pub(crate) fn usable() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
