//! Tables of figures: a name, a value, and what it means.

use std::fmt;
use std::time::Duration;

use indicatif::HumanCount;

/// Widths of the columns.
const NAME: usize = 26;
const VALUE: usize = 14;

pub(crate) fn row(f: &mut fmt::Formatter<'_>, name: &str, value: String, note: &str) -> fmt::Result {
    let line = format!("  {name:<NAME$}{value:>VALUE$}  {note}");
    writeln!(f, "{}", line.trim_end())
}

/// A line that has no name, but much to say.
pub(crate) fn item(f: &mut fmt::Formatter<'_>, value: String, what: &str) -> fmt::Result {
    writeln!(f, "  {value:>VALUE$}  {what}")
}

pub(crate) fn rule(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "  {}", "-".repeat(NAME + VALUE))
}

pub(crate) fn count(n: usize) -> String {
    HumanCount(n as u64).to_string()
}

pub(crate) fn rate(n: f64, took: Duration) -> String {
    count((n / took.as_secs_f64()) as usize)
}

pub(crate) fn seconds(took: Duration) -> String {
    format!("{:.2} s", took.as_secs_f64())
}

/// Of a measurement that Ctrl-C ended.
pub(crate) fn cut_short(seconds: f64) -> String {
    format!("cut short after {seconds:.1} s")
}

/// Whether no line of `text` is wider than common terminals.
#[cfg(test)]
pub(crate) fn fits(text: &str) -> bool {
    text.lines().all(|line| line.chars().count() <= 80)
}

/// A time in the unit in which it has one to three digits before the point.
pub(crate) fn time(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}
