//! Medians, spreads and quantiles.

/// Middle and ends of what the rounds gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of `values`; `None` if there are none.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median, min, max })
    }
}

/// The smallest of `sorted` that at least `share` of them do not exceed (nearest rank).
///
/// # Panics
/// If `sorted` is empty.
pub(crate) fn quantile(sorted: &[u64], share: f64) -> u64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_two() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0]), Some(Spread { median: 3.0, min: 3.0, max: 3.0 }));
        assert_eq!(Spread::of(&[9.0, 1.0, 5.0]), Some(Spread { median: 5.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0, 100.0, 2.0]), Some(Spread { median: 3.0, min: 1.0, max: 100.0 }));
    }

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(quantile(&hundred, 0.5), 50);
        assert_eq!(quantile(&hundred, 0.99), 99);
        assert_eq!(quantile(&hundred, 0.999), 100);
        assert_eq!(quantile(&hundred, 0.0), 1);
        assert_eq!(quantile(&[7], 0.5), 7);
    }
}
