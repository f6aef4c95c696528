//! What the kernel says of this process, read from `/proc/self`.

use std::fs;
use std::io;
use std::path::Path;

/// Memory that this process occupies now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Pages in memory, `VmRSS`.
    pub(crate) resident_bytes: u64,
    /// Page tables, `VmPTE`, which `VmRSS` leaves out.
    pub(crate) table_bytes: u64,
}

impl Memory {
    /// Memory at this moment.
    ///
    /// # Errors
    /// If `/proc/self/status` cannot be read or lacks a field.
    pub(crate) fn now() -> io::Result<Self> {
        Self::parse(&fs::read_to_string("/proc/self/status")?)
    }

    fn parse(status: &str) -> io::Result<Self> {
        Ok(Self { resident_bytes: field_bytes(status, "VmRSS:")?, table_bytes: field_bytes(status, "VmPTE:")? })
    }

    /// Pages and page tables together.
    pub(crate) fn total_bytes(self) -> u64 {
        self.resident_bytes + self.table_bytes
    }
}

/// Bytes of the heap that are in use, as malloc counts them; none where it does not.
#[cfg(target_env = "gnu")]
pub(crate) fn heap_bytes() -> u64 {
    // SAFETY: malloc reads numbers of its own, under its own locks.
    let heap = unsafe { libc::mallinfo2() };
    (heap.uordblks + heap.hblkhd) as u64
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn heap_bytes() -> u64 {
    0
}

/// Mappings (VMAs) of this process, which `vm.max_map_count` limits.
///
/// # Errors
/// If `/proc/self/maps` cannot be read.
pub(crate) fn mappings() -> io::Result<usize> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().count())
}

/// Open descriptors of this process, but for event counters.
///
/// # Errors
/// If `/proc/self/fd` cannot be read.
pub(crate) fn descriptors() -> io::Result<usize> {
    let mut count: usize = 0;
    for entry in fs::read_dir("/proc/self/fd")? {
        // One that was closed since it was listed counts for nothing.
        let what = fs::read_link(entry?.path());
        count += usize::from(what.is_ok_and(|what| what != Path::new("anon_inode:[eventfd]")));
    }
    // One of them is that of the listing itself.
    Ok(count.saturating_sub(1))
}

/// A field of `status` as in `VmRSS:    1234 kB`.
fn field_bytes(status: &str, name: &str) -> io::Result<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = value.and_then(|value| value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/self/status has no {name} in kB")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = "Name:\tsinew\nVmHWM:\t  9999 kB\nVmRSS:\t    1234 kB\nRssAnon:\t 7 kB\nVmPTE:\t      56 kB\n";
        assert_eq!(Memory::parse(status).unwrap(), Memory { resident_bytes: 1234 << 10, table_bytes: 56 << 10 });
    }

    #[test]
    fn a_missing_field_is_named() {
        let error = Memory::parse("VmRSS:\t 12 kB\n").unwrap_err();
        assert!(error.to_string().contains("VmPTE"), "{error}");
    }

    #[test]
    fn touched_memory_and_new_mappings_are_seen() {
        const BYTES: usize = 64 << 20;
        let (before, maps) = (Memory::now().unwrap(), mappings().unwrap());
        let touched = vec![1u8; BYTES];
        let after = Memory::now().unwrap();
        assert!(after.total_bytes() >= before.total_bytes() + BYTES as u64 / 2, "{before:?} {after:?}, {} bytes touched", touched.len());
        assert!(maps > 0);
    }
}
