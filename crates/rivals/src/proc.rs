//! What the kernel says of this process.

use std::fs;
use std::time::Duration;

/// A field of `/proc/self/status` as in `VmRSS:  1234 kB`, in bytes.
///
/// # Panics
/// If the field is not there: a figure from nothing would be worse.
fn status_bytes(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc/self/status is readable");
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib: Option<u64> = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse().ok());
    kib.unwrap_or_else(|| panic!("/proc/self/status has no {name} in kB")) << 10
}

/// Pages in memory and the page tables for them.
pub(crate) fn memory_bytes() -> u64 {
    status_bytes("VmRSS") + status_bytes("VmPTE")
}

/// The most pages that were in memory at once.
pub(crate) fn peak_bytes() -> u64 {
    status_bytes("VmHWM")
}

/// Mappings (VMAs), which `vm.max_map_count` limits.
pub(crate) fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").expect("/proc/self/maps is readable").lines().count()
}

/// CPU time that all threads have used.
pub(crate) fn cpu_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time that the calling thread has used.
pub(crate) fn thread_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time that all threads of another process have used.
///
/// # Panics
/// If there is no such process.
pub(crate) fn cpu_time_of(process: u32) -> Duration {
    /// In the low bits of the clock of a process: that it is one of scheduled time, in nanoseconds. What `clock_getcpuclockid` makes, which crate `libc` lacks.
    const SCHEDULED: libc::clockid_t = 2;
    clock(!(process as libc::clockid_t) << 3 | SCHEDULED)
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call only writes to `time`.
    let failed = unsafe { libc::clock_gettime(id, &mut time) };
    assert_eq!(failed, 0, "clock_gettime of CPU time failed");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_and_spent_time_are_seen() {
        const BYTES: usize = 64 << 20;
        let (memory, time) = (memory_bytes(), cpu_time());
        let touched = std::hint::black_box(vec![1u8; BYTES]);
        assert!(memory_bytes() >= memory + BYTES as u64 / 2, "{} bytes were touched", touched.len());
        assert!(peak_bytes() >= BYTES as u64);
        assert!(cpu_time() > time);
        assert!(cpu_time_of(std::process::id()) > time);
        assert!(thread_time() > Duration::ZERO);
        assert!(mappings() > 0);
    }
}
