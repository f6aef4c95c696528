//! What many requests gave: the five figures of a row of servers or files.

use std::time::Duration;

use crate::job::Reading;
use crate::stats::quantile;

/// Requests that were answered in a span of time.
pub(crate) struct Requests {
    /// Latency of each answer that counts.
    pub(crate) late_ns: Vec<u64>,
    /// All answers.
    pub(crate) count: usize,
    pub(crate) took: Duration,
}

impl Requests {
    /// With the CPU time that answering took.
    ///
    /// # Panics
    /// If no latency is known.
    pub(crate) fn readings(mut self, cpu: Duration) -> Vec<Reading> {
        assert!(!self.late_ns.is_empty(), "nothing was answered");
        self.late_ns.sort_unstable();
        let share = |share| quantile(&self.late_ns, share) as f64 / 1e3;
        [
            ("us_cpu_per_request", cpu.as_secs_f64() * 1e6 / self.count as f64),
            ("requests_per_s", self.count as f64 / self.took.as_secs_f64()),
            ("p50_us", share(0.5)),
            ("p99_us", share(0.99)),
            ("p999_us", share(0.999)),
        ]
        .map(|(unit, value)| Reading::new("", unit, value))
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_latency_counts_as_a_request() {
        let requests = Requests { late_ns: vec![1000, 2000, 3000], count: 4, took: Duration::from_millis(2) };
        let readings = requests.readings(Duration::from_micros(20));
        let of = |unit: &str| readings.iter().find(|reading| reading.unit == unit).unwrap().value;
        assert_eq!((of("us_cpu_per_request"), of("requests_per_s"), of("p50_us"), of("p999_us")), (5.0, 2000.0, 2.0, 3.0));
    }
}
