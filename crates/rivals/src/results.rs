//! What `run --json` prints and `report` reads: lines, each of them a row. The first row of each workload says also where and how it was made, as `"run":{..}`.
//!
//! So every line is a result, a run that was broken off still says where it comes from, and files of several runs may be joined. A file without runs is read too.
//! A run is told once per workload, each time with the load of the machine until then: the last word counts.

use serde::{Deserialize, Serialize};

use crate::machine;
use crate::row::Row;

/// Where, when and by what command rows were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) command: String,
    pub(crate) date: String,
    pub(crate) machine: String,
    /// The kernel's three load averages; absent if nobody noted them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) load_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) load_after: Option<String>,
    pub(crate) built_by: String,
    pub(crate) versions: Vec<String>,
}

impl Run {
    /// A run that begins now.
    pub(crate) fn begin(command: String) -> Self {
        Self {
            command,
            date: machine::today(),
            machine: machine::machine(),
            load_before: Some(machine::load_average()),
            load_after: None,
            built_by: format!("{}, release with fat LTO", env!("RIVALS_RUSTC")),
            versions: machine::versions(),
        }
    }

    /// Tells it in the first of `rows`, which were measured just now.
    pub(crate) fn tell(&mut self, rows: &mut [Row]) {
        self.load_after = Some(machine::load_average());
        if let Some(first) = rows.first_mut() {
            first.run = Some(Box::new(self.clone()));
        }
    }

    /// Whether `later` is the same run, told at another time.
    fn is_told_again_by(&self, later: &Self) -> bool {
        let then = Self { load_after: later.load_after.clone(), ..self.clone() };
        then == *later
    }

    /// What stands above its figures.
    pub(crate) fn lines(&self) -> Vec<String> {
        let load = match (&self.load_before, &self.load_after) {
            (Some(before), Some(after)) => format!("{before} before, {after} after"),
            (Some(before), None) => before.clone(),
            (None, _) => "not noted".into(),
        };
        vec![
            format!("machine: {}", self.machine),
            format!("load average over 1, 5 and 15 minutes: {load}"),
            format!("built by: {}", self.built_by),
            format!("versions: {}", self.versions.join(", ")),
        ]
    }
}

/// The rows of one run or of several.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Results {
    pub(crate) rows: Vec<Row>,
}

impl Results {
    /// Reads lines.
    ///
    /// # Errors
    /// Names the line that is no row.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let row = |(i, line)| serde_json::from_str(line).map_err(|error| format!("line {} is no row: {error}", i + 1));
        Ok(Self { rows: lines.map(row).collect::<Result<_, _>>()? })
    }

    /// The runs that rows tell of, in that order.
    pub(crate) fn runs(&self) -> Vec<&Run> {
        let mut runs: Vec<&Run> = Vec::new();
        for told in self.rows.iter().filter_map(|row| row.run.as_deref()) {
            match runs.iter_mut().find(|run| run.is_told_again_by(told)) {
                Some(run) => *run = told,
                None => runs.push(told),
            }
        }
        runs
    }

    /// The same as lines.
    pub(crate) fn text(&self) -> String {
        self.rows.iter().map(|row| row.json() + "\n").collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row::new("skynet".into(), "may", "ms", &[], Some("out of \"memory\"".into()))
    }

    /// Rows of a workload, told of `run` under such a load.
    fn told(run: &Run, load: &str) -> Vec<Row> {
        let mut rows = vec![row(), row()];
        run.clone().tell(&mut rows);
        rows[0].run.as_mut().unwrap().load_after = Some(load.into());
        rows
    }

    #[test]
    fn the_first_row_of_a_workload_has_the_run_and_no_other_line_is_needed() {
        let mut rows = vec![row(), row()];
        Run::begin("rivals run".into()).tell(&mut rows);
        let text = Results { rows: rows.clone() }.text();
        let runs: Vec<_> = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["run"].clone()).collect();
        assert_eq!(runs.len(), 2, "{text}");
        assert!(runs[0]["command"] == "rivals run" && runs[0]["load_after"].is_string() && runs[1].is_null(), "{text}");
        assert_eq!(Results::read(&text).unwrap().rows, rows);
    }

    #[test]
    fn a_run_that_is_told_again_is_one_and_its_last_word_counts() {
        let (first, second) = (Run::begin("rivals run".into()), Run::begin("rivals run --short".into()));
        let rows = [told(&first, "1"), told(&second, "2"), told(&first, "3"), vec![row()]].concat();
        let results = Results { rows };
        let found: Vec<_> = results.runs().iter().map(|run| (run.command.as_str(), run.load_after.as_deref())).collect();
        assert_eq!(found, [("rivals run", Some("3")), ("rivals run --short", Some("2"))]);
    }

    #[test]
    fn rows_without_a_run_and_a_run_without_a_load_are_read() {
        assert_eq!(Results::read(&format!("{}\n\n", row().json())).unwrap(), Results { rows: vec![row()] });
        let run = r#""run":{"command":"c","date":"2026-11-16","machine":"m","built_by":"rustc","versions":["sinew 0.1.0"]}}"#;
        let results = Results::read(&format!("{},{run}", row().json().strip_suffix('}').unwrap())).unwrap();
        assert!(results.runs()[0].lines()[1].ends_with("minutes: not noted"), "{results:?}");
    }

    #[test]
    fn a_line_that_is_no_row_is_named() {
        for bad in ["nonsense", "{}", r#"{"run":{"date":"today"}}"#] {
            assert!(Results::read(&format!("{}\n{bad}", row().json())).unwrap_err().starts_with("line 2"), "{bad}");
        }
    }
}
