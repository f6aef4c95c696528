//! What `run --json` prints and `report` reads: lines of rows, and behind the rows of a run one more that has no figures and says where and how it was made, as `"run":{..}`.
//!
//! That line has the fields of a row, so that who reads these of each line stumbles over none; older files have `{"run":{..}}` alone, which is read too.
//! The line of the run comes last, since it has the load of the machine before and after; files of several runs may be joined. A file without such lines is read too.

use serde::{Deserialize, Serialize};
use serde_json::Value;

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

    /// It has ended.
    pub(crate) fn end(&mut self) {
        self.load_after = Some(machine::load_average());
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

    pub(crate) fn json(&self) -> String {
        let row = Row::new("run".into(), "rivals", "-", &[], None);
        serde_json::to_string(&Line { row, run: self }).expect("a run is plain data")
    }
}

/// The line of a run.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    row: Row,
    run: &'a Run,
}

/// The rows of one run or of several.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Results {
    pub(crate) runs: Vec<Run>,
    pub(crate) rows: Vec<Row>,
}

impl Results {
    /// Reads lines.
    ///
    /// # Errors
    /// Names the line that is neither a row nor a run.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut results = Self::default();
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            results.add(line).map_err(|error| format!("line {} is no row: {error}", i + 1))?;
        }
        Ok(results)
    }

    fn add(&mut self, line: &str) -> serde_json::Result<()> {
        let mut value: Value = serde_json::from_str(line)?;
        match value.get_mut("run") {
            Some(run) => self.runs.push(serde_json::from_value(run.take())?),
            None => self.rows.push(serde_json::from_value(value)?),
        }
        Ok(())
    }

    /// The same as lines.
    pub(crate) fn text(&self) -> String {
        let lines = self.rows.iter().map(Row::json).chain(self.runs.iter().map(Run::json));
        lines.map(|line| line + "\n").collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row::new("skynet".into(), "may", "ms", &[], Some("out of \"memory\"".into()))
    }

    #[test]
    fn rows_and_runs_survive_their_lines() {
        let mut run = Run::begin("rivals run".into());
        run.end();
        let results = Results { runs: vec![run.clone(), run], rows: vec![row(), row()] };
        assert_eq!(Results::read(&results.text()).unwrap(), results);
    }

    #[test]
    fn the_line_of_a_run_has_the_fields_of_a_row_without_figures() {
        let line = Run::begin("rivals run".into()).json();
        let begins = r#"{"workload":"run","system":"rivals","unit":"-","median":null,"min":null,"max":null,"rounds":0,"run":{"command":"#;
        assert!(line.starts_with(begins), "{line}");
        assert!(serde_json::from_str::<Row>(&line).is_ok(), "{line}");
    }

    #[test]
    fn rows_without_a_run_and_a_run_of_an_older_form_are_read() {
        assert_eq!(Results::read(&format!("{}\n\n", row().json())).unwrap(), Results { runs: vec![], rows: vec![row()] });
        let old = r#"{"run":{"command":"c","date":"2026-11-16","machine":"m","built_by":"rustc","versions":["sinew 0.1.0"]}}"#;
        let runs = Results::read(old).unwrap().runs;
        assert!(runs[0].lines()[1].ends_with("minutes: not noted"), "{:?}", runs[0].lines());
    }

    #[test]
    fn a_line_that_is_neither_is_named() {
        for bad in ["nonsense", "{}", r#"{"run":{"date":"today"}}"#] {
            assert!(Results::read(&format!("{}\n{bad}", row().json())).unwrap_err().starts_with("line 2"), "{bad}");
        }
    }
}
