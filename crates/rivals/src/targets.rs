//! What Sinew has to reach, and whether it did.

use crate::row::Row;
use crate::systems::{self, Side};
use crate::table::figure;

/// Against what our figure is held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// So many times the best rival's.
    Best(f64),
    /// So many times that of the best rival which is a runtime.
    BestRuntime(f64),
    /// So many times that of one system.
    Of(&'static str, f64),
    /// A fixed value.
    Fixed(f64),
}

/// A bound for one figure.
pub(crate) struct Target {
    /// Name of the row.
    pub(crate) figure: &'static str,
    pub(crate) bound: Bound,
}

/// The targets of the issues "Yardstick" and "Waiting".
pub(crate) const ALL: &[Target] = &[
    Target { figure: "switch", bound: Bound::Of("limit-asm", 1.35) },
    // 12 ns where the spike took 11.
    Target { figure: "switch-nested", bound: Bound::Of("spike", 12.0 / 11.0) },
    Target { figure: "yield-1", bound: Bound::Best(0.3) },
    Target { figure: "yield-1000x1", bound: Bound::Best(0.35) },
    Target { figure: "yield-1000x2", bound: Bound::Best(0.4) },
    Target { figure: "spawn-join-1", bound: Bound::Best(0.6) },
    Target { figure: "spawn-join-2", bound: Bound::Best(0.7) },
    Target { figure: "spawn-million", bound: Bound::Best(0.7) },
    Target { figure: "skynet", bound: Bound::Best(0.7) },
    Target { figure: "wake-from-thread/p50", bound: Bound::Of("threads", 1.15) },
    Target { figure: "wake-from-thread/p99", bound: Bound::Best(1.0) },
    // 4.8 and 4.4 KiB.
    Target { figure: "parked-memory/1M", bound: Bound::Fixed(4.8 * 1024.0) },
    Target { figure: "parked-memory/1M-64k-stacks", bound: Bound::Fixed(4.4 * 1024.0) },
    Target { figure: "parked-memory/1M/vmas", bound: Bound::Fixed(99.0) },
    // What is printed as 0.00.
    Target { figure: "idle-cpu", bound: Bound::Fixed(0.005) },
    Target { figure: "mutex-free", bound: Bound::Of("threads", 1.1) },
    Target { figure: "mutex-100", bound: Bound::Best(1.1) },
    // 1 ms.
    Target { figure: "mutex-100/max-wait", bound: Bound::Fixed(1000.0) },
    Target { figure: "chan-ping-pong", bound: Bound::Best(0.6) },
    Target { figure: "chan-2to1x1", bound: Bound::BestRuntime(0.8) },
    Target { figure: "chan-2to1x2", bound: Bound::BestRuntime(0.8) },
    // The first wave touches every stack for the first time.
    Target { figure: "timers-100k/cpu", bound: Bound::Best(2.0) },
    Target { figure: "timers-100k/warm-cpu", bound: Bound::Best(1.0) },
    // 0.1 ms.
    Target { figure: "timers-100k/p50", bound: Bound::Fixed(100.0) },
    Target { figure: "timers-100k/p99", bound: Bound::Best(1.0) },
    Target { figure: "timers-100k/warm-p50", bound: Bound::Fixed(100.0) },
    Target { figure: "timers-100k/warm-p99", bound: Bound::Best(1.0) },
];

/// A target held against results.
#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) ours: f64,
    pub(crate) unit: String,
    /// The system and figure that the bound comes from; none if it is fixed.
    pub(crate) against: Option<(String, f64)>,
    pub(crate) limit: f64,
}

impl Verdict {
    pub(crate) fn met(&self) -> bool {
        self.ours <= self.limit
    }
}

impl Target {
    /// `None` if the results lack what it needs.
    pub(crate) fn judge(&self, rows: &[Row]) -> Option<Verdict> {
        let figures: Vec<(&Row, f64)> =
            rows.iter().filter(|row| row.workload == self.figure).filter_map(|row| Some((row, row.median?))).collect();
        let of = |name: &str| figures.iter().find(|(row, _)| row.system == name).copied();
        let (row, ours) = of("sinew")?;
        let (against, limit) = match self.bound {
            Bound::Fixed(limit) => (None, limit),
            Bound::Of(name, times) => of(name).map(|(row, value)| (Some((row.system.clone(), value)), value * times))?,
            Bound::Best(times) => best(&figures, &[Side::Runtime, Side::Rival], times)?,
            Bound::BestRuntime(times) => best(&figures, &[Side::Runtime], times)?,
        };
        Some(Verdict { ours, unit: row.unit.clone(), against, limit })
    }

    /// The bound in words.
    pub(crate) fn words(&self) -> String {
        match self.bound {
            Bound::Best(1.0) => "<= best rival".into(),
            Bound::Best(times) => format!("<= {} x best rival", figure(times)),
            Bound::BestRuntime(times) => format!("<= {} x best runtime", figure(times)),
            Bound::Of(name, times) => format!("<= {} x {name}", figure(times)),
            Bound::Fixed(limit) => format!("<= {}", if limit < 1.0 { format!("{limit}") } else { figure(limit) }),
        }
    }
}

/// The best of those on `sides` with its figure, and so many times that figure.
fn best(figures: &[(&Row, f64)], sides: &[Side], times: f64) -> Option<(Option<(String, f64)>, f64)> {
    let rivals = figures.iter().filter(|(row, _)| systems::named(&row.system).is_ok_and(|system| sides.contains(&system.side)));
    let (row, value) = rivals.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
    Some((Some((row.system.clone(), *value)), value * times))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, value: f64) -> Row {
        Row::new("yield-1".into(), system, "ns", &[value], None)
    }

    #[test]
    fn the_best_rival_is_neither_a_limit_nor_ourselves_nor_a_failure() {
        let failed = Row::new("yield-1".into(), "may", "", &[], Some("no".into()));
        let rows = [row("sinew", 10.0), row("sinew-yield", 1.0), row("limit-asm", 2.0), failed, row("smol", 82.0), row("go", 97.0)];
        let verdict = Target { figure: "yield-1", bound: Bound::Best(0.3) }.judge(&rows).unwrap();
        assert_eq!(verdict.against, Some(("smol".into(), 82.0)));
        assert!(verdict.met());
        assert!(!Target { figure: "yield-1", bound: Bound::Best(0.1) }.judge(&rows).unwrap().met());
    }

    #[test]
    fn threads_are_rivals_and_no_runtime() {
        let rows = [row("sinew", 10.0), row("threads", 9.0), row("crossbeam", 12.0), row("smol", 11.0), row("go", 97.0)];
        let against = |bound| Target { figure: "yield-1", bound }.judge(&rows).unwrap().against;
        assert_eq!(against(Bound::Best(1.0)), Some(("threads".into(), 9.0)));
        assert_eq!(against(Bound::BestRuntime(1.0)), Some(("smol".into(), 11.0)));
    }

    #[test]
    fn without_our_figure_or_theirs_there_is_no_verdict() {
        let target = Target { figure: "yield-1", bound: Bound::Of("limit-asm", 1.35) };
        assert_eq!(target.judge(&[row("sinew", 3.0)]), None);
        assert_eq!(target.judge(&[row("limit-asm", 3.0)]), None);
        assert!(target.judge(&[row("sinew", 3.0), row("limit-asm", 2.8)]).unwrap().met());
    }

    #[test]
    fn every_target_names_a_workload() {
        for target in ALL {
            let name = target.figure.split('/').next().unwrap();
            assert!(crate::workloads::named(name).is_ok(), "{}", target.figure);
        }
    }
}
