//! Rows as text for people.

use std::fmt::Write;

use crate::row::Row;

/// Rows of one workload as a table, figures of the same kind together.
pub(crate) fn of(rows: &[Row]) -> String {
    let mut text = String::new();
    for (name, rows) in by_workload(rows) {
        let _ = writeln!(text, "\n{name}");
        for row in rows {
            let _ = writeln!(text, "  {:<12} {}", row.system, cell(row));
        }
    }
    text
}

/// Rows by their full name, in order of first appearance.
pub(crate) fn by_workload<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<(&'a str, Vec<&'a Row>)> {
    let mut groups: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|(name, _)| *name == row.workload) {
            Some((_, group)) => group.push(row),
            None => groups.push((&row.workload, vec![row])),
        }
    }
    groups
}

/// `median unit (min to max)`, or why there is none.
fn cell(row: &Row) -> String {
    let figures = match (row.median, row.min, row.max) {
        (Some(median), Some(min), Some(max)) => {
            format!("{:>10} {:<4} ({} to {}, {} rounds)", figure(median), row.unit, figure(min), figure(max), row.rounds)
        }
        _ => String::new(),
    };
    match &row.error {
        Some(error) => format!("{figures}{}failed: {error}", if figures.is_empty() { "" } else { "; some " }),
        None => figures,
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
    fn a_failed_row_says_why() {
        let rows =
            [Row::new("skynet".into(), "may", "", &[], Some("no memory".into())), Row::new("skynet".into(), "go", "ms", &[868.0], None)];
        assert_eq!(of(&rows), "\nskynet\n  may          failed: no memory\n  go                  868 ms   (868 to 868, 1 rounds)\n");
    }
}
