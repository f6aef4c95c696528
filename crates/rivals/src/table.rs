//! Rows as text for people.

use std::fmt::Write;

use crate::row::Row;

/// Rows of one workload as a table, figures of the same kind together.
pub(crate) fn of(rows: &[Row]) -> String {
    let mut text = String::new();
    for (name, rows) in by_figure(rows) {
        let _ = writeln!(text, "\n{name}");
        for row in rows {
            let _ = writeln!(text, "  {:<13} {}", row.system, cell(row));
        }
    }
    text
}

/// Rows by their figure, in order of first appearance. The name is the row's, and where one name has figures of several units, also the unit. What failed has no unit
/// and stands with the first figure.
pub(crate) fn by_figure<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<(String, Vec<&'a Row>)> {
    let mut groups: Vec<(&str, &str, Vec<&Row>)> = Vec::new();
    for row in rows {
        let belongs = |unit: &str| unit == row.unit || unit.is_empty() || row.unit.is_empty();
        match groups.iter_mut().find(|(name, unit, _)| *name == row.workload && belongs(unit)) {
            Some((_, unit, group)) => {
                *unit = if unit.is_empty() { &row.unit } else { unit };
                group.push(row);
            }
            None => groups.push((&row.workload, &row.unit, vec![row])),
        }
    }
    let units_of = |name: &str| groups.iter().filter(|(other, _, _)| *other == name).count();
    let names: Vec<_> =
        groups.iter().map(|(name, unit, _)| if units_of(name) > 1 { format!("{name} {unit}") } else { (*name).to_owned() }).collect();
    names.into_iter().zip(groups).map(|(name, (_, _, rows))| (name, rows)).collect()
}

/// `median unit (min to max)`, or why there is none.
fn cell(row: &Row) -> String {
    let figures = match (row.median, row.min, row.max) {
        (Some(median), Some(min), Some(max)) => {
            format!("{:>10} {:<4} ({} to {}, {} rounds)", figure(median), short(&row.unit), figure(min), figure(max), row.rounds)
        }
        _ => String::new(),
    };
    match &row.error {
        Some(error) => format!("{figures}{}failed: {error}", if figures.is_empty() { "" } else { "; some " }),
        None => figures,
    }
}

/// A unit beside a figure whose name has the whole of it.
pub(crate) fn short(unit: &str) -> &str {
    match unit {
        "us_cpu_per_request" | "p50_us" | "p99_us" | "p999_us" => "us",
        "requests_per_s" => "/s",
        plain => plain,
    }
}

/// Three digits that count, and commas.
pub(crate) fn figure(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 99.95 {
        grouped(value.round() as i64)
    } else if magnitude >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::from(if value < 0 { "-" } else { "" });
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_that_count() {
        for (value, text) in [(0.0, "0.00"), (2.789, "2.79"), (12.34, "12.3"), (99.97, "100"), (757.4, "757"), (1_234_567.0, "1,234,567")] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn figures_of_several_units_stand_apart_and_failures_with_the_first() {
        let row = |system: &str, unit: &str| Row::new("echo-50".into(), system, unit, &[1.0], None);
        let failed = |system: &str| Row::new("echo-50".into(), system, "", &[], Some("no".into()));
        let rows = [
            failed("go"),
            row("may", "p50_us"),
            row("may", "p99_us"),
            failed("smol"),
            row("tokio-mt", "p50_us"),
            row("tokio-mt", "p99_us"),
        ];
        let groups: Vec<_> = by_figure(&rows)
            .into_iter()
            .map(|(name, rows)| (name, rows.into_iter().map(|row| row.system.clone()).collect::<Vec<_>>()))
            .collect();
        let expected = [("echo-50 p50_us", vec!["go", "may", "smol", "tokio-mt"]), ("echo-50 p99_us", vec!["may", "tokio-mt"])];
        assert_eq!(groups, expected.map(|(name, systems)| (name.to_owned(), systems.into_iter().map(String::from).collect())));
    }

    #[test]
    fn a_failed_row_says_why() {
        let rows =
            [Row::new("skynet".into(), "may", "", &[], Some("no memory".into())), Row::new("skynet".into(), "go", "ms", &[868.0], None)];
        assert_eq!(of(&rows), "\nskynet\n  may           failed: no memory\n  go                   868 ms   (868 to 868, 1 rounds)\n");
    }
}
