//! Two systems at the same time: whatever the machine does meanwhile, it does to both.
//!
//! On a host that is half as fast again in one second as in the next, medians of rounds that take turns differ by a tenth and more from run to run; the ratio of two that ran at once by two to five hundredths. Each has half of the CPU
//! time and a part of the caches, so the ratio alone is to be quoted.

use std::thread;
use std::time::Duration;

use crate::child::{self, Failure};
use crate::job::Reading;
use crate::rounds::{Plan, progress, row_name};
use crate::row::Row;
use crate::systems::{System, Takes};
use crate::workloads::Case;

/// Both systems' readings of a round.
type Round = [Vec<Reading>; 2];

/// Measures what both systems of the plan do, and hands the rows of each workload to `done`.
pub(crate) fn carry_out(plan: &Plan, pair: [&'static System; 2], mut done: impl FnMut(Vec<Row>)) {
    let cases = |case: &Case| !pair.iter().any(|system| matches!(case.takes(system), Takes::No));
    let work: Vec<(&str, Vec<Case>)> =
        plan.workloads.iter().map(|workload| (workload.name, plan.cases(workload).filter(cases).collect())).collect();
    let bar = progress(work.iter().map(|(_, cases)| cases.len()).sum::<usize>() * plan.rounds);
    for (workload, cases) in work {
        let mut rows = Vec::new();
        for case in cases {
            bar.set_message(row_name([workload, case.name, ""]));
            let measured = (0..plan.rounds).map(|round| {
                bar.inc(1);
                both(pair, &case, Duration::from_secs(case.limit_seconds(plan.scale)), round)
            });
            let names = pair.map(|system| system.name);
            rows.extend(match measured.collect::<Result<Vec<Round>, Failure>>() {
                Ok(rounds) => ratios([workload, case.name], names, &rounds),
                Err(failure) => {
                    let name = row_name([workload, case.name, ""]);
                    vec![Row::new(name, &names.join("/"), "", &[], Some(failure.message().into()))]
                }
            });
        }
        bar.suspend(|| done(rows));
    }
    bar.finish_and_clear();
}

/// Both at once; the one that is started first changes with the round.
fn both(pair: [&'static System; 2], case: &Case, limit: Duration, round: usize) -> Result<Round, Failure> {
    if let Some(why) = pair.iter().find_map(|system| if let Takes::Refuses(why) = case.takes(system) { Some(why) } else { None }) {
        return Err(Failure::Failed(why.into()));
    }
    let start = |system: &'static System| {
        let job = case.job;
        thread::spawn(move || child::measure(system.name, &job, limit))
    };
    let mut order = pair;
    order.rotate_left(round % 2);
    let mut ends = order.map(start).map(|child| child.join().expect("a measurement does not panic"));
    ends.rotate_right(round % 2);
    let [one, other] = ends;
    Ok([one?, other?])
}

/// For each figure: that of the one, that of the other, and how many times the other's the one's is, by the round.
fn ratios([workload, case]: [&str; 2], names: [&str; 2], rounds: &[Round]) -> Vec<Row> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let rows = |reading: &Reading| {
        let name = row_name([workload, case, &reading.metric]);
        let is_same = |other: &&Reading| (&other.metric, &other.unit) == (&reading.metric, &reading.unit);
        let value = |readings: &[Reading]| readings.iter().find(is_same).map(|reading| reading.value);
        let found: Vec<[f64; 2]> = rounds.iter().filter_map(|[one, other]| Some([value(one)?, value(other)?])).collect();
        let of = |i: usize| found.iter().map(|values| values[i]).collect::<Vec<_>>();
        let times = found.iter().map(|[one, other]| one / other).collect::<Vec<_>>();
        [
            Row::new(name.clone(), names[0], &reading.unit, &of(0), None),
            Row::new(name.clone(), names[1], &reading.unit, &of(1), None),
            Row::new(name, &names.join("/"), &format!("x {}", reading.unit), &times, None),
        ]
    };
    first[0].iter().flat_map(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claim: the ratio is that of each round, whatever the rounds are to each other.
    #[test]
    fn the_ratio_is_by_the_round() {
        let round = |one, other| [vec![Reading::new("p50", "us", one)], vec![Reading::new("p50", "us", other)]];
        let rows = ratios(["echo", ""], ["a", "b"], &[round(1.0, 2.0), round(30.0, 40.0), round(6.0, 6.0)]);
        let told: Vec<_> = rows.iter().map(|row| (row.workload.as_str(), row.system.as_str(), row.unit.as_str(), row.median)).collect();
        assert_eq!(
            told,
            [("echo/p50", "a", "us", Some(6.0)), ("echo/p50", "b", "us", Some(6.0)), ("echo/p50", "a/b", "x us", Some(0.75)),]
        );
        assert_eq!((rows[2].min, rows[2].max, rows[2].rounds), (Some(0.5), Some(1.0), 3));
    }
}
