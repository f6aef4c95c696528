//! What the demo measured, as a table.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::flock::WAKE_BURST;
use crate::table::{count, rate, row, rule, seconds, time};

/// What a parked fiber may cost at most, by the size of its stack: the promise of the project's design, in KiB.
const BOUNDS_KIB: [(usize, f64); 2] = [(256 << 10, 4.8), (64 << 10, 4.4)];

/// All figures of one run.
pub(super) struct Report {
    pub(super) fibers: usize,
    pub(super) workers: usize,
    pub(super) stack_bytes: usize,
    /// Of all fibers together, while they are parked.
    pub(super) memory_bytes: u64,
    pub(super) mappings: usize,
    pub(super) spawn: Duration,
    pub(super) wake: Duration,
    pub(super) latencies_ns: Histogram<u64>,
    pub(super) switch_few: Switches,
    pub(super) switch_all: Switches,
    pub(super) join: Duration,
    pub(super) total: Duration,
}

/// A time in which fibers yielded in turn.
pub(super) struct Switches {
    pub(super) fibers: usize,
    /// Of each.
    pub(super) yields: u32,
    pub(super) took: Duration,
}

impl Switches {
    /// Each fiber was resumed by the wake and after each yield.
    fn count(&self) -> f64 {
        self.fibers as f64 * (f64::from(self.yields) + 1.0)
    }

    fn per_second(&self) -> f64 {
        self.count() / self.took.as_secs_f64()
    }

    /// What one worker needs for one of them.
    fn ns_each(&self, workers: usize) -> f64 {
        self.took.as_nanos() as f64 * workers as f64 / self.count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        row(f, "fibers", count(self.fibers), "alive at once")?;
        row(f, "workers", count(self.workers), "")?;
        row(f, "stack", size(self.stack_bytes), "of address space per fiber")?;
        rule(f)?;
        row(f, "memory per parked fiber", format!("{:.2} KiB", self.memory_kib()), &self.memory_note())?;
        row(f, "mappings (VMAs)", count(self.mappings), "")?;
        rule(f)?;
        row(f, "spawn", rate(self.fibers as f64, self.spawn), &format!("fibers/s, until all park: {}", seconds(self.spawn)))?;
        row(f, "wake", rate(self.fibers as f64, self.wake), &format!("fibers/s, until all ran: {}", seconds(self.wake)))?;
        row(f, "join", rate(self.fibers as f64, self.join), &format!("fibers/s, until all ended: {}", seconds(self.join)))?;
        self.switch_row(f, "switch, few fibers", &self.switch_few)?;
        self.switch_row(f, "switch, all fibers", &self.switch_all)?;
        rule(f)?;
        let how = format!("each worker wakes {WAKE_BURST}, then runs them");
        for (name, quantile, note) in [("p50", 0.5, &*how), ("p99", 0.99, ""), ("p999", 0.999, ""), ("max", 1.0, "")] {
            let ns = self.latencies_ns.value_at_quantile(quantile);
            row(f, &format!("ready to running, {name}"), time(ns), note)?;
        }
        rule(f)?;
        row(f, "total", seconds(self.total), "from start to the last join")
    }
}

impl Report {
    fn memory_kib(&self) -> f64 {
        self.memory_bytes as f64 / self.fibers as f64 / 1024.0
    }

    fn memory_note(&self) -> String {
        let bytes = count(self.memory_bytes as usize / self.fibers);
        match BOUNDS_KIB.iter().find(|(stack_bytes, _)| *stack_bytes == self.stack_bytes) {
            Some((_, bound)) if self.memory_kib() <= *bound => format!("{bytes} B; the bound of {bound} KiB holds"),
            Some((_, bound)) => format!("{bytes} B; ABOVE the bound of {bound} KiB"),
            None => format!("{bytes} B; no bound is set for it"),
        }
    }

    fn switch_row(&self, f: &mut fmt::Formatter<'_>, name: &str, switches: &Switches) -> fmt::Result {
        let rate = rate(switches.per_second(), Duration::from_secs(1));
        let ns = switches.ns_each(self.workers);
        let (fibers, yields) = (count(switches.fibers), count(switches.yields as usize));
        row(f, name, rate, &format!("switches/s, {ns:.1} ns of a worker"))?;
        row(f, "", String::new(), &format!("{fibers} yield {yields} times"))
    }
}

/// A size of stack, which is a power of two from 16 KiB up.
fn size(bytes: usize) -> String {
    match bytes >> 10 {
        kib if kib < 1024 => format!("{kib} KiB"),
        kib => format!("{} MiB", kib >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let long = Duration::from_secs(3600);
        for memory_kib_each in [4, 40] {
            let report = Report {
                fibers: 67_000_000,
                workers: 2,
                stack_bytes: 256 << 10,
                memory_bytes: 67_000_000 * (memory_kib_each << 10),
                mappings: 65_530,
                spawn: long,
                wake: Duration::from_millis(1),
                latencies_ns: Histogram::new_with_bounds(1, 1000, 3).unwrap(),
                switch_few: Switches { fibers: 1_000, yields: 40_000, took: long },
                switch_all: Switches { fibers: 67_000_000, yields: 8, took: long },
                join: long,
                total: long,
            };
            assert!(crate::table::fits(&report.to_string()), "{report}");
        }
    }
}
