//! What a load has measured, as a table and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::run::Outcome;
use crate::serve::Protocol;
use crate::table::{count, cut_short, item, row, rule, seconds, time};

/// Quantiles that are told, by name.
const QUANTILES: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];

/// Those of how late the load was.
const LATE_QUANTILES: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

/// One load and what came of it.
pub(super) struct Report {
    pub(super) protocol: Protocol,
    pub(super) target: String,
    pub(super) connections: usize,
    pub(super) rate: Option<usize>,
    /// Bytes of a message, if that was for us to choose.
    pub(super) size: Option<usize>,
    pub(super) outcome: Outcome,
}

impl Report {
    pub(super) fn has_errors(&self) -> bool {
        !self.outcome.errors.is_empty()
    }

    /// Everything in a line.
    pub(super) fn title(&self) -> String {
        format!("{}, {}", self.whom(), self.how())
    }

    fn whom(&self) -> String {
        let seconds = self.seconds();
        let span = if self.outcome.cut_short { cut_short(seconds) } else { format!("{seconds} s") };
        format!("{} {}, {span}", self.protocol.name(), self.target)
    }

    fn how(&self) -> String {
        let size = self.size.map_or(String::new(), |bytes| format!(", {bytes} bytes"));
        let how = self.rate.map_or("closed loop".into(), |rate| format!("{} requests/s", count(rate)));
        format!("{} connections{size}, {how}", count(self.connections))
    }

    fn seconds(&self) -> f64 {
        self.outcome.took.as_secs_f64()
    }

    fn per_second(&self) -> f64 {
        self.outcome.in_time as f64 / self.seconds()
    }

    /// Answers that came when the time was over.
    fn late(&self) -> u64 {
        self.outcome.latencies_ns.len() - self.outcome.in_time
    }

    /// `figure`, unless there was no answer of which it could be one.
    fn measured<T>(&self, figure: T) -> Option<T> {
        (!self.outcome.latencies_ns.is_empty()).then_some(figure)
    }

    /// One object. Times are in microseconds; null if there are none.
    pub(super) fn to_json(&self) -> Value {
        let mut object = json!({
            "protocol": self.protocol.name(),
            "target": self.target,
            "connections": self.connections,
            "seconds": self.seconds(),
            "cut_short": self.outcome.cut_short,
            "rate": self.rate,
            "size": self.size,
            "requests": self.outcome.in_time,
            "requests_per_s": self.per_second(),
            "late": self.late(),
            "mean_us": self.measured(self.outcome.latencies_ns.mean() / 1e3),
            "unsent": self.outcome.unsent,
            "in_flight": self.outcome.in_flight,
            "connect_s": self.outcome.connecting.as_secs_f64(),
            "errors": self.outcome.errors,
        });
        for (name, quantile) in LATE_QUANTILES {
            let late_us = self.outcome.sent_late_ns.value_at_quantile(quantile) as f64 / 1e3;
            object[format!("sent_late_{name}_us")] = json!((!self.outcome.sent_late_ns.is_empty()).then_some(late_us));
        }
        for (name, quantile) in QUANTILES {
            object[format!("{name}_us")] = json!(self.measured(self.outcome.latencies_ns.value_at_quantile(quantile) as f64 / 1e3));
        }
        object
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { latencies_ns, sent_late_ns, in_time, unsent, errors, connecting, in_flight, .. } = &self.outcome;
        writeln!(f, "\n  {}\n  {}", self.whom(), self.how())?;
        rule(f)?;
        row(f, "connected in", seconds(*connecting), "")?;
        row(f, "requests", count(*in_time as usize), "answered in time")?;
        row(f, "requests/s", count(self.per_second() as usize), "")?;
        if self.late() > 0 {
            row(f, "late", count(self.late() as usize), "answered later; they count too")?;
        }
        if *unsent > 0 {
            row(f, "UNSENT", count(*unsent as usize), "were due: the rate is too high")?;
        }
        if *in_flight > 0 {
            row(f, "in flight", count(*in_flight as usize), "when it was cut short; not counted")?;
        }
        rule(f)?;
        let from = if self.rate.is_some() { "from the moment it was due" } else { "from sending to the answer" };
        let told = |ns| self.measured(ns).map_or("-".into(), time);
        row(f, "latency, mean", told(latencies_ns.mean() as u64), from)?;
        for (name, quantile) in QUANTILES {
            row(f, &format!("latency, {name}"), told(latencies_ns.value_at_quantile(quantile)), "")?;
        }
        if !sent_late_ns.is_empty() {
            for (name, quantile) in LATE_QUANTILES {
                let late = time(sent_late_ns.value_at_quantile(quantile));
                row(f, &format!("sent late, {name}"), late, "of those that waited; by the load")?;
            }
        }
        rule(f)?;
        row(f, "errors", count(errors.values().sum::<u64>() as usize), "")?;
        errors.iter().try_for_each(|(name, times)| item(f, count(*times as usize), name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use hdrhistogram::Histogram;

    fn report() -> Report {
        let mut latencies_ns = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        (1..=1000).for_each(|us| latencies_ns.record(us * 1000).unwrap());
        let mut sent_late_ns = Histogram::new_from(&latencies_ns);
        (1..=100).for_each(|us| sent_late_ns.record(us * 1000).unwrap());
        let errors = [("Connection \"reset\"".to_owned(), 3)].into();
        let (connecting, took) = (Duration::from_millis(12), Duration::from_millis(500));
        let outcome =
            Outcome { latencies_ns, sent_late_ns, in_time: 996, unsent: 7, errors, connecting, took, cut_short: false, in_flight: 0 };
        let target = "127.0.0.1:7".into();
        Report { protocol: Protocol::Echo, target, connections: 5, rate: Some(2000), size: Some(64), outcome }
    }

    #[test]
    fn json_has_every_figure() {
        let value: Value = serde_json::from_str(&report().to_json().to_string()).unwrap();
        assert_eq!((&value["requests_per_s"], &value["late"]), (&json!(1992.0), &json!(4)));
        assert_eq!(value["errors"]["Connection \"reset\""], 3);
        assert!((value["p99_us"].as_f64().unwrap() - 990.0).abs() < 2.0, "{value}");
        let [late_p50, late_p99] = ["sent_late_p50_us", "sent_late_p99_us"].map(|name| value[name].as_f64().unwrap());
        assert!((late_p50 - 50.0).abs() < 1.0 && (late_p99 - 99.0).abs() < 1.0, "{value}");
        assert_eq!((&value["unsent"], &value["size"], &value["rate"]), (&json!(7), &json!(64), &json!(2000)));
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let mut report = report();
        let whole = report.to_string();
        report.outcome.errors.insert("Cannot assign requested address (os error 99)".into(), 1_000_000);
        report.outcome.cut_short = true;
        report.outcome.in_flight = 1_000_000;
        (report.connections, report.rate, report.size) = (1_000_000, Some(100_000_000), Some(16 << 20));
        let text = report.to_string();
        assert!(!whole.contains("cut short") && text.contains("cut short after 0.5 s"), "{text}");
        assert!(crate::table::fits(&whole) && crate::table::fits(&text), "{whole}{text}");
    }

    #[test]
    fn the_table_names_errors_and_what_was_not_sent() {
        let mut report = report();
        let table = report.to_string();
        assert!(table.contains("sent late, p99"), "{table}");
        report.outcome.sent_late_ns.reset();
        assert!(!report.to_string().contains("sent late") && report.to_json()["sent_late_p99_us"].is_null());
        assert!(
            table.contains("UNSENT") && table.contains("3  Connection \"reset\"") && table.contains("from the moment it was due"),
            "{table}"
        );
    }
}
