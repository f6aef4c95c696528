//! One line of results: `{"workload","system","unit","median","min","max","rounds"}`, and `"error"` if it failed; the first row of a workload also has `"run"`, which
//! says where and how it was made.

use serde::{Deserialize, Serialize};

use crate::results::Run;
use crate::stats::Spread;

/// What the rounds gave for one figure of one system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Workload, and case and metric behind slashes where there are several, as in `parked-memory/1M/vmas`.
    pub(crate) workload: String,
    pub(crate) system: String,
    pub(crate) unit: String,
    /// Null if no round gave a figure.
    pub(crate) median: Option<f64>,
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    /// Rounds that gave a figure.
    pub(crate) rounds: usize,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) error: Option<String>,
    /// The run that this row and those behind it come from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) run: Option<Box<Run>>,
}

impl Row {
    /// From the figures of the rounds and, if one failed, its message.
    pub(crate) fn new(workload: String, system: &str, unit: &str, values: &[f64], error: Option<String>) -> Self {
        let spread = Spread::of(values);
        Self {
            workload,
            system: system.into(),
            unit: unit.into(),
            median: spread.map(|spread| spread.median),
            min: spread.map(|spread| spread.min),
            max: spread.map(|spread| spread.max),
            rounds: values.len(),
            error,
            run: None,
        }
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("a row is plain data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_exactly_the_promised_fields() {
        let row = Row::new("yield-1".into(), "sinew", "ns", &[3.0, 1.0, 2.0], None);
        assert_eq!(row.json(), r#"{"workload":"yield-1","system":"sinew","unit":"ns","median":2.0,"min":1.0,"max":3.0,"rounds":3}"#);
    }

    #[test]
    fn a_failed_row_carries_its_error() {
        let row = Row::new("skynet".into(), "may", "ms", &[], Some("out of \"memory\"".into()));
        assert_eq!(
            row.json(),
            r#"{"workload":"skynet","system":"may","unit":"ms","median":null,"min":null,"max":null,"rounds":0,"error":"out of \"memory\""}"#
        );
    }
}
