//! A histogram that one thread writes and any thread reads: what waits cost, in nanoseconds, within an eighth.

use std::sync::OnceLock;

use super::atomic::{AtomicU64, Relaxed};

/// Buckets per doubling: the error of a percentile is at most one part in eight.
const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB;

/// Counts of values by size.
pub(crate) struct Histogram {
    /// Made when the first value is counted: a worker that is never started has none.
    counts: OnceLock<Box<[AtomicU64]>>,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { counts: OnceLock::new() }
    }

    /// Counts one value. By the one writer.
    pub(crate) fn record(&self, value: u64) {
        let counts = self.counts.get_or_init(|| (0..BUCKETS).map(|_| AtomicU64::new(0)).collect());
        let count = &counts[bucket(value)];
        count.store(count.load(Relaxed) + 1, Relaxed);
    }

    /// Forgets everything. Nobody writes meanwhile.
    pub(crate) fn reset(&self) {
        self.counts.get().into_iter().flatten().for_each(|count| count.store(0, Relaxed));
    }

    /// Adds its counts to `sum`.
    pub(crate) fn add_to(&self, sum: &mut Counts) {
        for (sum, count) in sum.0.iter_mut().zip(self.counts.get().into_iter().flatten()) {
            *sum += count.load(Relaxed);
        }
    }
}

/// The counts of one or several histograms at one moment.
#[derive(Clone)]
pub(crate) struct Counts(Vec<u64>);

impl Counts {
    pub(crate) fn new() -> Self {
        Self(vec![0; BUCKETS])
    }

    /// What was counted since `earlier`.
    pub(crate) fn since(&self, earlier: &Counts) -> Counts {
        Counts(self.0.iter().zip(&earlier.0).map(|(now, then)| now - then).collect())
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The value that `per_mille` of a thousand do not exceed, rounded up to its bucket's end; `None` if nothing was counted.
    pub(crate) fn per_mille(&self, per_mille: u64) -> Option<u64> {
        let total = self.total();
        let rank = (total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        let place = self.0.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        place.filter(|_| total != 0).map(bucket_end)
    }
}

/// Values below `SUB` have a bucket each, then each doubling has `SUB`.
fn bucket(value: u64) -> usize {
    if value < SUB as u64 {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - SUB_BITS;
    (shift as usize + 1) * SUB + (value >> shift) as usize % SUB
}

fn bucket_end(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let shift = (bucket / SUB - 1) as u32;
    let start = ((SUB + bucket % SUB) as u64) << shift;
    start + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_into_a_bucket_that_ends_at_most_an_eighth_above_it() {
        let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]).chain([u64::MAX, 1000, 123_456_789]);
        for value in edges {
            let end = bucket_end(bucket(value));
            assert!(end >= value && end - value <= value / 8, "{value} ends at {end}");
        }
    }
}
