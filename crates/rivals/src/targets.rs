//! What Sinew has to reach, and whether it did.

use crate::row::Row;
use crate::systems::{self, Side};
use crate::table::figure;

/// A verdict of fewer rounds says how many they were: so many has a run whose figures are quoted.
const ROUNDS_QUOTED: usize = 5;

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
    /// Name of the row, and behind a space its unit if it has several.
    figure: &'static str,
    /// Whose figure it is about.
    ours: &'static str,
    bound: Bound,
}

/// The targets of the issues "Yardstick", "Waiting", "Input and output" and "Scheduler".
pub(crate) const ALL: &[Target] = &[
    Target::of("switch", Bound::Of("limit-asm", 1.35)),
    // 12 ns where the spike took 11.
    Target::of("switch-nested", Bound::Of("spike", 12.0 / 11.0)),
    Target::of("yield-1", Bound::Best(0.3)),
    Target::of("yield-1000x1", Bound::Best(0.35)),
    Target::of("yield-1000x2", Bound::Best(0.4)),
    Target::of("spawn-join-1", Bound::Best(0.6)),
    Target::of("spawn-join-2", Bound::Best(0.7)),
    Target::of("spawn-million", Bound::Best(0.7)),
    // Peak memory is bounded by what is alive: a million tasks with their handles, 256 bytes each; in MB.
    Target::of("spawn-million/peak", Bound::Fixed(256.0)),
    Target::of("fan-out", Bound::BestRuntime(0.8)),
    Target::of("unbalanced", Bound::BestRuntime(0.8)),
    Target::of("unbalanced/fine", Bound::BestRuntime(0.8)),
    Target::of("skynet", Bound::Best(0.7)),
    Target::of("wake-from-thread/p50", Bound::Of("threads", 1.15)),
    Target::of("wake-from-thread/p99", Bound::Best(1.0)),
    // 4.8 and 4.4 KiB.
    Target::of("parked-memory/1M", Bound::Fixed(4.8 * 1024.0)),
    Target::of("parked-memory/1M-64k-stacks", Bound::Fixed(4.4 * 1024.0)),
    Target::of("parked-memory/1M/vmas", Bound::Fixed(99.0)),
    Target::of("parked-memory/1M-64k-stacks/vmas", Bound::Fixed(99.0)),
    // What is printed as 0.00.
    Target::of("idle-cpu", Bound::Fixed(0.005)),
    Target::of("yield-storm/p99", Bound::BestRuntime(1.0)),
    Target::of("mutex-free", Bound::Of("threads", 1.1)),
    Target::of("mutex-100", Bound::Best(1.1)),
    // 1 ms, for which others are let in before one that waits. (Its wait is longer where the system stops the one that has the lock: see `limit-clock`.)
    Target::of("mutex-100/max-wait/overtaken", Bound::Fixed(1000.0)),
    Target::of("ping-pong-1", Bound::Best(0.6)),
    // Rivals pull the pair onto one worker.
    Target::of("ping-pong-2", Bound::Best(0.8)).by("sinew-migratable"),
    // Threads that spin before they sleep.
    Target::of("ping-pong-2/apart", Bound::Of("crossbeam", 1.5)),
    Target::of("chan-2to1x1", Bound::BestRuntime(0.8)),
    Target::of("chan-2to1x2", Bound::BestRuntime(0.8)),
    // The first wave touches every stack for the first time.
    Target::of("timers-100k/cpu", Bound::Best(2.0)),
    Target::of("timers-100k/warm-cpu", Bound::Best(1.0)),
    // 0.1 ms.
    Target::of("timers-100k/p50", Bound::Fixed(100.0)),
    Target::of("timers-100k/p99", Bound::Best(1.0)),
    Target::of("timers-100k/warm-p50", Bound::Fixed(100.0)),
    Target::of("timers-100k/warm-p99", Bound::Best(1.0)),
    Target::of("echo-50 us_cpu_per_request", Bound::Of("limit-uring-1", 1.15)).by("sinew-uring"),
    Target::of("echo-50 us_cpu_per_request", Bound::Best(1.0)).by("sinew-uring"),
    Target::of("echo-50 us_cpu_per_request", Bound::Of("limit-epoll", 1.15)).by("sinew-epoll"),
    Target::of("echo-1000 us_cpu_per_request", Bound::Of("limit-uring-1", 1.15)).by("sinew-uring"),
    Target::of("echo-1000 us_cpu_per_request", Bound::Best(1.0)).by("sinew-uring"),
    Target::of("echo-1000 us_cpu_per_request", Bound::Of("limit-epoll", 1.15)).by("sinew-epoll"),
    Target::of("echo-1000 p99_us", Bound::Of("limit-uring", 1.1)).by("sinew-uring"),
    Target::of("echo-10000 us_cpu_per_request", Bound::Of("limit-uring-1", 1.15)).by("sinew-uring"),
    Target::of("echo-10000 us_cpu_per_request", Bound::Best(1.0)).by("sinew-uring"),
    Target::of("echo-10000 us_cpu_per_request", Bound::Of("limit-epoll", 1.15)).by("sinew-epoll"),
    Target::of("echo-10000 p99_us", Bound::Of("limit-uring", 1.1)).by("sinew-uring"),
    // Of fibers that may change workers; settled ones, as in the other rows, stand behind a hog that their worker has.
    Target::of("echo-hog p99_us", Bound::Best(1.0)).by("sinew-migratable"),
    Target::of("echo-hog/paced p99_us", Bound::Best(1.0)).by("sinew-migratable"),
    Target::of("http-hello us_cpu_per_request", Bound::Best(0.9)).by("sinew-uring"),
    Target::of("http-hello p99_us", Bound::Best(1.0)).by("sinew-uring"),
];

/// A target held against results.
#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) ours: f64,
    pub(crate) unit: String,
    /// The system and figure that the bound comes from; none if it is fixed.
    pub(crate) against: Option<(String, f64)>,
    pub(crate) limit: f64,
    /// Whether a round of ours failed: then our figure is of the others.
    pub(crate) failed: bool,
    /// Rounds of our figure or of that it is held against, whichever has fewer.
    pub(crate) rounds: usize,
    /// What the work takes at least on so many CPUs, where the limit is below that: then nobody can meet it.
    pub(crate) least: Option<f64>,
}

impl Verdict {
    pub(crate) fn met(&self) -> bool {
        !self.failed && self.ours <= self.limit
    }

    /// Whether it was met, and what speaks against believing it.
    pub(crate) fn words(&self) -> String {
        let mut words = String::from(if self.met() { "yes" } else { "**no**" });
        if let Some(least) = self.least {
            words += &format!(", nobody can: the work itself takes {} {}", figure(least), self.unit);
        }
        if self.failed {
            words += ", a round failed";
        }
        if self.rounds < ROUNDS_QUOTED {
            words += &format!(", of {} round{}", self.rounds, if self.rounds == 1 { "" } else { "s" });
        }
        words
    }
}

impl Target {
    const fn of(figure: &'static str, bound: Bound) -> Self {
        Self { figure, ours: "sinew", bound }
    }

    const fn by(self, ours: &'static str) -> Self {
        Self { ours, ..self }
    }

    /// The figure, and who has to reach it if that is not plain.
    pub(crate) fn name(&self) -> String {
        if self.ours == "sinew" { self.figure.into() } else { format!("{} of {}", self.figure, self.ours) }
    }

    /// The row's name, and its unit if that is needed.
    fn row(&self) -> (&'static str, &'static str) {
        self.figure.split_once(' ').unwrap_or((self.figure, ""))
    }

    /// Whether ours was tried and gave no figure at all. Such a row has no unit, and names its case but none of the case's figures.
    pub(crate) fn is_failed(&self, rows: &[Row]) -> bool {
        let (workload, _) = self.row();
        let of_us = |row: &&Row| row.system == self.ours && (row.error.is_some() || row.median.is_some());
        let meant = |row: &&Row| workload.strip_prefix(&*row.workload).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        // The longest name is the nearest: a case may have failed beside another whose name is the whole workload's.
        let nearest = rows.iter().filter(of_us).filter(meant).max_by_key(|row| row.workload.len());
        nearest.is_some_and(|row| row.median.is_none())
    }

    /// `None` if the results lack what it needs.
    pub(crate) fn judge(&self, rows: &[Row]) -> Option<Verdict> {
        let (workload, unit) = self.row();
        let meant = |row: &&Row| row.workload == workload && (unit.is_empty() || row.unit == unit);
        let figures: Vec<Figure<'_>> = rows.iter().filter(meant).filter_map(|row| Some((row, row.median?))).collect();
        let of = |name: &str| figures.iter().find(|(row, _)| row.system == name).copied();
        let (row, ours) = of(self.ours)?;
        let (theirs, limit) = match self.bound {
            Bound::Fixed(limit) => (None, limit),
            Bound::Of(name, times) => held(of(name)?, times),
            Bound::Best(times) => held(best(&figures, &[Side::Runtime, Side::Rival])?, times),
            Bound::BestRuntime(times) => held(best(&figures, &[Side::Runtime])?, times),
        };
        // The share of it that cannot be saved is a figure of its own.
        let ratio = rows.iter().find(|other| other.system == self.ours && other.workload == format!("{workload}/ratio"));
        let least = ratio.and_then(|row| row.median).map(|ratio| ours / ratio);
        Some(Verdict {
            least: least.filter(|&least| limit < least),
            ours,
            unit: row.unit.clone(),
            against: theirs.map(|(row, value)| (row.system.clone(), value)),
            limit,
            failed: row.error.is_some(),
            rounds: theirs.map_or(row.rounds, |(other, _)| other.rounds.min(row.rounds)),
        })
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

/// A row with its figure.
type Figure<'a> = (&'a Row, f64);

/// What ours is held against, and so many times its figure.
fn held(theirs: Figure<'_>, times: f64) -> (Option<Figure<'_>>, f64) {
    (Some(theirs), theirs.1 * times)
}

/// The best of those on `sides`.
fn best<'a>(figures: &[Figure<'a>], sides: &[Side]) -> Option<Figure<'a>> {
    let rivals = figures.iter().filter(|(row, _)| systems::named(&row.system).is_ok_and(|system| sides.contains(&system.side)));
    rivals.min_by(|(_, one), (_, other)| one.total_cmp(other)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Deed, Job, Kind};
    use crate::systems::Takes;
    use crate::workloads::{self, Case, Scale, Workload};

    fn row(system: &str, value: f64) -> Row {
        Row::new("yield-1".into(), system, "ns", &[value], None)
    }

    #[test]
    fn the_best_rival_is_neither_a_limit_nor_ourselves_nor_a_failure() {
        let failed = Row::new("yield-1".into(), "may", "", &[], Some("no".into()));
        let rows = [row("sinew", 10.0), row("sinew-yield", 1.0), row("limit-asm", 2.0), failed, row("smol", 82.0), row("go", 97.0)];
        let verdict = Target::of("yield-1", Bound::Best(0.3)).judge(&rows).unwrap();
        assert_eq!(verdict.against, Some(("smol".into(), 82.0)));
        assert!(verdict.met());
        assert!(!Target::of("yield-1", Bound::Best(0.1)).judge(&rows).unwrap().met());
    }

    #[test]
    fn threads_are_rivals_and_no_runtime() {
        let rows = [row("sinew", 10.0), row("threads", 9.0), row("crossbeam", 12.0), row("smol", 11.0), row("go", 97.0)];
        let against = |bound| Target::of("yield-1", bound).judge(&rows).unwrap().against;
        assert_eq!(against(Bound::Best(1.0)), Some(("threads".into(), 9.0)));
        assert_eq!(against(Bound::BestRuntime(1.0)), Some(("smol".into(), 11.0)));
    }

    #[test]
    fn without_our_figure_or_theirs_there_is_no_verdict() {
        let target = Target::of("yield-1", Bound::Of("limit-asm", 1.35));
        assert_eq!(target.judge(&[row("sinew", 3.0)]), None);
        assert_eq!(target.judge(&[row("limit-asm", 3.0)]), None);
        assert!(target.judge(&[row("sinew", 3.0), row("limit-asm", 2.8)]).unwrap().met());
    }

    #[test]
    fn a_unit_and_a_system_of_ours_are_heeded() {
        let row = |system: &str, unit: &str, value| Row::new("echo-50".into(), system, unit, &[value], None);
        let rows = [
            row("sinew-epoll", "p50_us", 5.0),
            row("sinew-epoll", "p99_us", 50.0),
            row("limit-epoll", "p99_us", 45.0),
            row("sinew", "p99_us", 1.0),
        ];
        let target = Target::of("echo-50 p99_us", Bound::Of("limit-epoll", 1.15)).by("sinew-epoll");
        let verdict = target.judge(&rows).unwrap();
        assert_eq!((verdict.ours, verdict.met()), (50.0, true));
        assert_eq!(target.name(), "echo-50 p99_us of sinew-epoll");
    }

    #[test]
    fn a_row_of_ours_that_failed_meets_nothing() {
        let failed = |name: &str, values: &[f64]| {
            Row::new(name.into(), "sinew", if values.is_empty() { "" } else { "ns" }, values, Some("no".into()))
        };
        let target = Target::of("yield-1", Bound::Fixed(9.0));
        let verdict = target.judge(&[failed("yield-1", &[1.0; 5])]).unwrap();
        assert_eq!((verdict.met(), verdict.words().as_str()), (false, "**no**, a round failed"));
        let target = Target::of("mutex-100/max-wait", Bound::Fixed(9.0));
        for (rows, is_failed) in [
            (vec![failed("mutex-100/max-wait", &[])], true),
            (vec![failed("mutex-100", &[])], true),
            (vec![failed("mutex-100", &[]), failed("mutex-100/max-wait", &[1.0])], false),
            (vec![failed("mutex-10", &[]), row("sinew", 1.0)], false),
            (vec![], false),
        ] {
            assert_eq!(target.is_failed(&rows), is_failed, "{rows:?}");
        }
    }

    #[test]
    fn a_bound_below_what_the_work_takes_is_called_that() {
        let row = |workload: &str, system: &str, value| Row::new(workload.into(), system, "ms", &[value; 5], None);
        let rows = |ours, best| [row("unbalanced", "sinew", ours), row("unbalanced/ratio", "sinew", 1.05), row("unbalanced", "smol", best)];
        let words = |ours, best| Target::of("unbalanced", Bound::BestRuntime(0.8)).judge(&rows(ours, best)).unwrap().words();
        assert_eq!(words(21.0, 21.2), "**no**, nobody can: the work itself takes 20.0 ms");
        assert_eq!(words(21.0, 26.0), "**no**");
        assert_eq!(words(21.0, 27.0), "yes");
    }

    #[test]
    fn a_verdict_of_few_rounds_says_so() {
        let row = |system: &str, rounds| Row::new("yield-1".into(), system, "ns", &vec![4.0; rounds], None);
        let words = |bound, ours, theirs| Target::of("yield-1", bound).judge(&[row("sinew", ours), row("smol", theirs)]).unwrap().words();
        assert_eq!(words(Bound::Best(1.0), 5, 5), "yes");
        assert_eq!(words(Bound::Best(1.0), 3, 5), "yes, of 3 rounds");
        assert_eq!(words(Bound::Best(0.5), 5, 1), "**no**, of 1 round");
        assert_eq!(words(Bound::Fixed(9.0), 5, 1), "yes");
    }

    /// The figures of a job as the names of rows have them, empty if they have none; its units where those tell several apart.
    fn figures(job: &Job) -> &'static [&'static str] {
        match job.deed {
            Deed::SpawnAll | Deed::Skynet if job.budget_ms == 0 => &["", "/peak"],
            Deed::Unbalanced => &["", "/ratio"],
            Deed::Wake => &["/p50", "/p99", "/p999"],
            Deed::Storm => &["/p50", "/p99", "/p999", "/wake-p50", "/wake-p99", "/wake-p999"],
            Deed::Timers => &["/cpu", "/p50", "/p99", "/warm-cpu", "/warm-p50", "/warm-p99"],
            Deed::Parked => &["", "/vmas"],
            Deed::MutexWait => &["", "/overtaken"],
            deed if matches!(deed.kind(), Kind::Server | Kind::File) => {
                &[" us_cpu_per_request", " requests_per_s", " p50_us", " p99_us", " p999_us"]
            }
            _ => &[""],
        }
    }

    /// The job that gives a target's figure.
    fn job_of(target: &Target) -> Option<Job> {
        let gives = |workload: &Workload, case: &Case| {
            let name = [workload.name, case.name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
            figures(&case.job).iter().any(|figure| format!("{name}{figure}") == target.figure)
        };
        let cases = workloads::ALL.iter().flat_map(|workload| (workload.cases)(Scale::Full).into_iter().map(move |case| (workload, case)));
        cases.into_iter().find(|(workload, case)| gives(workload, case)).map(|(_, case)| case.job)
    }

    /// What a hog costs the others is a target in the closed loop and at a fixed pace: the row names both.
    #[test]
    fn others_beside_a_hog_have_a_target_in_both_loops() {
        let row = |workload: &str, system: &str, value| Row::new(workload.into(), system, "p99_us", &[value; 5], None);
        for (workload, figure) in [("echo-hog", "echo-hog p99_us"), ("echo-hog/paced", "echo-hog/paced p99_us")] {
            let target = ALL.iter().find(|target| target.figure == figure).unwrap_or_else(|| panic!("{figure} is no target"));
            let rows = [row(workload, "sinew-migratable", 5.0), row(workload, "sinew-uring", 1.0), row(workload, "threads", 4.0)];
            let verdict = target.judge(&rows).unwrap();
            assert_eq!((verdict.ours, verdict.against.as_ref(), verdict.met()), (5.0, Some(&("threads".into(), 4.0)), false));
        }
    }

    #[test]
    fn every_target_names_a_figure_and_systems_that_have_it() {
        for target in ALL {
            let job = job_of(target).unwrap_or_else(|| panic!("no workload gives {}", target.figure));
            let other = if let Bound::Of(name, _) = target.bound { Some(name) } else { None };
            for name in other.into_iter().chain([target.ours]) {
                let system = systems::named(name).unwrap_or_else(|error| panic!("{}: {error}", target.figure));
                assert!(matches!((system.takes)(&job), Takes::Yes), "{name} does not do {}", target.figure);
            }
        }
    }
}
