//! Rounds of children, interleaved: every system once per round, each round beginning with another one.
//!
//! So a slow minute of the machine falls on all systems alike, and none always runs behind the same neighbour.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::child::{self, Failure};
use crate::job::{Job, Reading};
use crate::row::Row;
use crate::systems::{System, Takes};
use crate::workloads::{Case, Scale, Workload};

/// A case that failed so often is not tried again.
const FAILURES_MAX: usize = 2;

/// What is to be measured.
pub(crate) struct Plan {
    pub(crate) workloads: Vec<&'static Workload>,
    pub(crate) systems: Vec<&'static System>,
    pub(crate) rounds: usize,
    /// Workers of each job, if that is not as its workload says.
    pub(crate) workers: Option<usize>,
    pub(crate) scale: Scale,
    /// No child is begun after it.
    pub(crate) end: Option<Instant>,
}

/// One system at one case, and what its rounds gave.
struct Entry {
    workload: &'static Workload,
    case: &'static str,
    job: Job,
    /// After which its child is ended.
    limit: Duration,
    system: &'static System,
    rounds: Vec<Vec<Reading>>,
    failures: Vec<Failure>,
    /// Whether it runs at all, and so counts in the progress bar.
    tried: bool,
}

impl Plan {
    /// Measures everything, and hands the rows of each workload to `done` as soon as they are known. Gives the workloads that time was too short for.
    pub(crate) fn carry_out(&self, mut done: impl FnMut(Vec<Row>)) -> Vec<String> {
        let mut workloads: Vec<Vec<Entry>> = self.workloads.iter().map(|workload| self.entries(workload)).collect();
        let children = workloads.iter().flatten().filter(|entry| entry.tried).count() * self.rounds;
        let bar = progress(children);
        let mut cut = Vec::new();
        for (workload, entries) in self.workloads.iter().zip(&mut workloads) {
            let whole = (0..self.rounds).all(|round| self.round(round, entries, &bar));
            if !whole {
                cut.push(workload.name.to_owned());
            }
            let rows: Vec<Row> = entries.iter().filter(|entry| entry.has_answer()).flat_map(Entry::rows).collect();
            bar.suspend(|| done(rows));
        }
        bar.finish_and_clear();
        cut
    }

    /// Whether `system` has a row in `workload`, be it one that says why there is no figure.
    pub(crate) fn has(&self, workload: &Workload, system: &System) -> bool {
        self.cases(workload).any(|case| !matches!(case.takes(system), Takes::No))
    }

    fn entries(&self, workload: &'static Workload) -> Vec<Entry> {
        self.cases(workload)
            .flat_map(|case| self.systems.iter().filter_map(move |system| Entry::new(workload, &case, system, self.scale)))
            .collect()
    }

    pub(crate) fn cases(&self, workload: &Workload) -> impl Iterator<Item = Case> {
        let job = |job: Job| self.workers.map_or(job, |workers| job.workers(workers));
        (workload.cases)(self.scale).into_iter().map(move |case| Case { job: job(case.job), ..case })
    }

    /// Every entry once, or until the end; whether it was every one. The order turns by one system each round.
    fn round(&self, round: usize, entries: &mut [Entry], bar: &ProgressBar) -> bool {
        let shift = round % entries.len().max(1);
        let (late, early) = entries.split_at_mut(shift);
        for entry in early.iter_mut().chain(late) {
            if entry.wanted() {
                if self.end.is_some_and(|end| Instant::now() >= end) {
                    return false;
                }
                bar.set_message(format!("{} on {}", entry.name(""), entry.system.name));
                entry.measure();
            }
            bar.inc(u64::from(entry.tried));
        }
        true
    }
}

impl Entry {
    fn new(workload: &'static Workload, case: &Case, system: &'static System, scale: Scale) -> Option<Self> {
        let failures = match case.takes(system) {
            Takes::No => return None,
            Takes::Refuses(why) => vec![Failure::Failed(why.into()); FAILURES_MAX],
            Takes::Yes => (system.version)().err().map(|why| vec![Failure::Failed(why); FAILURES_MAX]).unwrap_or_default(),
        };
        let tried = failures.is_empty();
        let limit = Duration::from_secs(case.limit_seconds(scale));
        Some(Self { workload, case: case.name, job: case.job, limit, system, rounds: Vec::new(), failures, tried })
    }

    /// Whether another round may give something: a time-out or repeated failure is believed.
    fn wanted(&self) -> bool {
        self.failures.len() < FAILURES_MAX && !self.failures.iter().any(|failure| matches!(failure, Failure::TimedOut(_)))
    }

    /// Whether there is anything to tell: a figure, or why there is none.
    fn has_answer(&self) -> bool {
        !self.rounds.is_empty() || !self.failures.is_empty()
    }

    fn measure(&mut self) {
        match child::measure(self.system.name, &self.job, self.limit) {
            Ok(readings) => self.rounds.push(readings),
            Err(failure) => self.failures.push(failure),
        }
    }

    fn name(&self, metric: &str) -> String {
        row_name([self.workload.name, self.case, metric])
    }

    fn rows(&self) -> Vec<Row> {
        let error = self.failures.last().map(|failure| failure.message().to_owned());
        let Some(first) = self.rounds.first() else {
            return vec![Row::new(self.name(""), self.system.name, "", &[], error)];
        };
        let row = |reading: &Reading| {
            let values = self
                .rounds
                .iter()
                .flatten()
                .filter(|other| (&other.metric, &other.unit) == (&reading.metric, &reading.unit))
                .map(|other| other.value);
            Row::new(self.name(&reading.metric), self.system.name, &reading.unit, &values.collect::<Vec<_>>(), error.clone())
        };
        first.iter().map(row).collect()
    }
}

/// What a row is called: workload, case and metric, those that there are.
pub(crate) fn row_name(parts: [&str; 3]) -> String {
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

/// A bar on standard error that moves only between children.
pub(crate) fn progress(children: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(children as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (left {eta})  {msg}").expect("the template is a good one");
    bar.set_style(style);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{systems, workloads};

    fn entry() -> Entry {
        let workload = workloads::named("yield-1").unwrap();
        let case = (workload.cases)(Scale::Tiny).remove(0);
        Entry::new(workload, &case, systems::named("sinew").unwrap(), Scale::Tiny).unwrap()
    }

    #[test]
    fn rounds_become_a_row_with_median_and_spread() {
        let mut entry = entry();
        entry.rounds = [4.0, 2.0, 9.0].map(|value| vec![Reading::new("", "ns", value)]).into();
        assert_eq!(entry.rows(), [Row::new("yield-1".into(), "sinew", "ns", &[4.0, 2.0, 9.0], None)]);
        assert_eq!(entry.rows()[0].median, Some(4.0));
    }

    #[test]
    fn metrics_become_rows_of_their_own() {
        let mut entry = entry();
        entry.rounds = vec![vec![Reading::new("p50", "us", 1.0), Reading::new("p99", "us", 5.0)]];
        let names: Vec<_> = entry.rows().into_iter().map(|row| row.workload).collect();
        assert_eq!(names, ["yield-1/p50", "yield-1/p99"]);
    }

    #[test]
    fn units_become_rows_of_their_own() {
        let mut entry = entry();
        entry.rounds = [1.0, 3.0, 2.0].map(|value| vec![Reading::new("", "p50_us", value), Reading::new("", "p99_us", 9.0)]).into();
        let rows: Vec<_> = entry.rows().into_iter().map(|row| (row.workload, row.unit, row.median)).collect();
        assert_eq!(rows, [("yield-1".into(), "p50_us".into(), Some(2.0)), ("yield-1".into(), "p99_us".into(), Some(9.0))]);
    }

    #[test]
    fn a_time_out_is_believed_and_a_failure_tried_twice() {
        let mut entry = entry();
        entry.failures.push(Failure::Failed("no memory".into()));
        assert!(entry.wanted());
        entry.failures.push(Failure::Failed("no memory".into()));
        assert!(!entry.wanted());
        assert_eq!(entry.rows()[0].error.as_deref(), Some("no memory"));
        entry.failures = vec![Failure::TimedOut("not done".into())];
        assert!(!entry.wanted());
    }

    #[test]
    fn the_workers_asked_for_are_those_of_each_job() {
        let workloads = ["yield-1", "fan-out"].map(|name| workloads::named(name).unwrap());
        let plan = |workers| Plan {
            workloads: workloads.into(),
            systems: vec![systems::named("sinew").unwrap()],
            rounds: 1,
            workers,
            scale: Scale::Tiny,
            end: None,
        };
        let found = |workers| workloads.map(|workload| plan(workers).entries(workload)[0].job.workers);
        assert_eq!((found(None), found(Some(48))), ([1, 2], [48, 48]));
    }

    #[test]
    fn a_plan_whose_time_is_over_begins_nothing_and_says_so() {
        let named = |name| workloads::named(name).unwrap();
        let systems = ["sinew", "smol"].map(|name| systems::named(name).unwrap()).into();
        let plan = Plan {
            workloads: vec![named("yield-1"), named("skynet")],
            systems,
            rounds: 3,
            workers: None,
            scale: Scale::Tiny,
            end: Some(Instant::now()),
        };
        let mut rows = 0;
        assert_eq!(plan.carry_out(|more| rows += more.len()), ["yield-1", "skynet"]);
        assert_eq!(rows, 0);
    }
}
