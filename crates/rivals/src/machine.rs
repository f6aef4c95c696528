//! Where and with what something was measured.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::systems::{self, Side};

/// CPUs, memory, kernel.
pub(crate) fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let model = line_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "CPU of unknown model".into());
    let memory_kib: u64 = line_of("/proc/meminfo", "MemTotal").and_then(|line| line.split(' ').next()?.parse().ok()).unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // A kernel's local suffix is nobody's business.
    let kernel = kernel.trim().split('-').next().unwrap_or_default().to_owned();
    format!("{cpus} x {model}, {} GiB, Linux {kernel}", (memory_kib + (1 << 19)) >> 20)
}

/// The kernel's three load averages: other work on the machine is part of the figures.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let three: Vec<_> = text.split(' ').take(3).collect();
    if three.len() == 3 { three.join(" ") } else { "unknown".into() }
}

/// Each system's name and version, or why it has none; systems of one crate together.
pub(crate) fn versions() -> Vec<String> {
    let ours = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let commit = Command::new("git").args(["-C", ours, "describe", "--always", "--dirty"]).output().ok();
    let commit = commit.filter(|output| output.status.success()).map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let version = |system: &systems::System| {
        let version = (system.version)().unwrap_or_else(|why| why);
        match &commit {
            Some(commit) if system.name == "sinew" => format!("sinew {version} ({commit})"),
            _ => format!("{} {version}", system.name),
        }
    };
    let told = |system: &&systems::System| {
        let again = system.name.starts_with("sinew-") || matches!(system.name, "tokio-ct" | "tokio-std");
        !again && system.name != "threads" && system.side != Side::Limit
    };
    systems::ALL.iter().filter(told).map(version).map(|line| line.replace("tokio-mt", "tokio")).collect()
}

/// Today, as `2026-11-15`, by UTC.
pub(crate) fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a day since 1970 (Howard Hinnant's `civil_from_days`).
pub(crate) fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// What stands behind `name :` in a file of such lines.
fn line_of(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':').map(|rest| rest.trim().to_owned()))
}

/// Touches `bytes` of memory and gives them back, so that the host has them ready for who comes next.
pub(crate) fn touch_memory(bytes: usize) {
    // SAFETY: a fresh anonymous mapping, written to within its bounds and unmapped again; if there is no memory, nothing is done.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if base == libc::MAP_FAILED {
            return;
        }
        libc::madvise(base, bytes, libc::MADV_HUGEPAGE);
        (0..bytes).step_by(4096).for_each(|offset| base.cast::<u8>().add(offset).write_volatile(1));
        libc::munmap(base, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(19_783), (2024, 3, 1));
        assert_eq!(civil(20_819), (2027, 1, 1));
    }

    #[test]
    fn the_machine_is_described() {
        assert!(machine().contains("Linux"), "{}", machine());
        assert_eq!(load_average().split(' ').count(), 3);
    }
}
