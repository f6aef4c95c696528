//! The page: `rivals.md`, its charts and the rows they come from.

mod bars;
mod lines;
mod svg;

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::row::Row;
use crate::table::{by_figure, figure, short};
use crate::targets;
use crate::workloads;
use svg::Theme;

/// Folder of charts and rows, beside the page.
const FOLDER: &str = "rivals";

/// What stands above the figures.
pub(crate) struct Origin {
    /// The command that made the page.
    pub(crate) command: String,
    /// When the figures were measured.
    pub(crate) date: String,
    /// Machine, versions, load.
    pub(crate) description: Vec<String>,
}

/// Writes the page and all it needs under `out`.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn write(out: &Path, origin: &Origin, rows: &[Row]) -> io::Result<()> {
    let folder = out.join(FOLDER);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("results.jsonl"), rows.iter().map(|row| row.json() + "\n").collect::<String>())?;
    for chart in charts(rows) {
        for theme in Theme::ALL {
            fs::write(folder.join(theme.file(&chart.name)), (chart.draw)(theme))?;
        }
    }
    fs::write(out.join("rivals.md"), page(origin, rows))
}

/// A picture that is drawn once per theme.
struct Chart<'a> {
    name: String,
    draw: Box<dyn Fn(Theme) -> String + 'a>,
}

/// Bars for every figure; the curve is one of lines.
fn charts(rows: &[Row]) -> Vec<Chart<'_>> {
    let (curve, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.workload.starts_with("curve/"));
    let mut charts = Vec::new();
    for (name, rows) in by_figure(others).into_iter().filter(|(name, _)| is_drawn(name)) {
        charts.push(Chart { name: slug(&name), draw: Box::new(move |theme| bars::draw(&name, &rows, theme)) });
    }
    for kind in ["yield", "spawn"] {
        let prefix = format!("curve/{kind}-");
        let rows: Vec<_> = curve.iter().copied().filter(|row| row.workload.starts_with(&prefix)).collect();
        if !rows.is_empty() {
            let title = format!("ns per {kind}, by number of tasks");
            charts.push(Chart { name: format!("curve-{kind}"), draw: Box::new(move |theme| lines::draw(&title, &prefix, &rows, theme)) });
        }
    }
    charts
}

fn page(origin: &Origin, rows: &[Row]) -> String {
    let mut page = String::from("# Sinew and its rivals\n\n");
    let _ = writeln!(page, "Written by `{}` with figures of {}; do not edit.", origin.command, origin.date);
    page.push_str(HOW);
    origin.description.iter().for_each(|line| {
        let _ = writeln!(page, "- {line}");
    });
    page.push_str("\n## Targets\n\n");
    page.push_str(&target_table(rows));
    for workload in workloads::ALL {
        let belongs = |row: &&Row| row.workload.split('/').next() == Some(workload.name);
        let rows: Vec<&Row> = rows.iter().filter(belongs).collect();
        if !rows.is_empty() {
            let _ = writeln!(page, "\n## {}\n\n{}.\n", workload.name, capital(workload.about));
            page.push_str(&section(workload.name, &rows));
        }
    }
    page
}

const HOW: &str = "
Each measurement is a process of its own. Systems take turns within a round, and each round begins with another one. Figures are medians over the rounds, with the least and
the greatest in brackets; less is better everywhere but in requests per second. What failed is shown with its message. The rows are in [results.jsonl](rivals/results.jsonl); how the work
is defined, and how to add a system, is in [crates/rivals](../crates/rivals/README.md).

";

fn target_table(rows: &[Row]) -> String {
    let mut table = String::from("| figure | Sinew | held against | target | allows | met |\n|---|--:|---|---|--:|---|\n");
    for target in targets::ALL {
        let (words, name) = (target.words(), target.name());
        let _ = match target.judge(rows) {
            Some(verdict) => {
                let unit = short(&verdict.unit);
                let against = verdict.against.as_ref().map_or("-".into(), |(system, value)| format!("{system}: {} {unit}", figure(*value)));
                let met = if verdict.met() { "yes" } else { "**no**" };
                let allows = verdict.against.as_ref().map_or("-".into(), |_| format!("{} {unit}", figure(verdict.limit)));
                writeln!(table, "| {name} | {} {unit} | {against} | {words} | {allows} | {met} |", figure(verdict.ours))
            }
            None => writeln!(table, "| {name} | - | - | {words} | - | not measured |"),
        };
    }
    table
}

fn section(workload: &str, rows: &[&Row]) -> String {
    let mut text = String::new();
    if workload == "curve" {
        ["curve-yield", "curve-spawn"].iter().for_each(|name| text.push_str(&picture(name)));
    }
    for (name, rows) in by_figure(rows.iter().copied()) {
        if workload != "curve" && is_drawn(&name) {
            text.push_str(&picture(&slug(&name)));
        }
        let _ = writeln!(
            text,
            "<details><summary>{name} in figures</summary>\n\n| system | median (least to greatest) | rounds |\n|---|--:|--:|"
        );
        for row in rows {
            let _ = writeln!(text, "| {} | {} | {} |", row.system, cell(row), row.rounds);
        }
        text.push_str("\n</details>\n\n");
    }
    text
}

fn cell(row: &Row) -> String {
    let figures = match (row.median, row.min, row.max) {
        (Some(median), Some(min), Some(max)) => format!("{} {} ({} to {})", figure(median), short(&row.unit), figure(min), figure(max)),
        _ => String::new(),
    };
    match &row.error {
        Some(error) => format!("{figures} failed: {}", error.replace('|', "\\|")).trim_start().to_owned(),
        None => figures,
    }
}

fn picture(name: &str) -> String {
    let [light, dark] = Theme::ALL.map(|theme| format!("{FOLDER}/{}", theme.file(name)));
    format!("<picture><source media=\"(prefers-color-scheme: dark)\" srcset=\"{dark}\"><img alt=\"{name}\" src=\"{light}\"></picture>\n\n")
}

/// Of the units of a server's figures the two that say most have charts.
fn is_drawn(figure: &str) -> bool {
    ["requests_per_s", "p50_us", "p999_us"].iter().all(|unit| !figure.ends_with(unit))
}

/// A name that can be a file's.
fn slug(name: &str) -> String {
    name.replace(['/', ' '], "-")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        vec![
            Row::new("yield-1".into(), "sinew", "ns", &[5.0, 6.0, 7.0], None),
            Row::new("yield-1".into(), "smol", "ns", &[82.0], None),
            Row::new("yield-1".into(), "may", "", &[], Some("a | b".into())),
            Row::new("curve/yield-1k".into(), "sinew", "ns", &[11.0], None),
            Row::new("curve/yield-10k".into(), "sinew", "ns", &[12.0], None),
        ]
    }

    fn origin() -> Origin {
        Origin { command: "rivals report".into(), date: "2026-11-15".into(), description: vec!["machine: small".into()] }
    }

    #[test]
    fn the_page_says_what_was_met_and_what_failed() {
        let page = page(&origin(), &rows());
        assert!(page.contains("| yield-1 | 6.00 ns | smol: 82.0 ns | <= 0.30 x best rival | 24.6 ns | yes |"), "{page}");
        assert!(page.contains("| skynet | - | - | <= 0.70 x best rival | - | not measured |"), "{page}");
        assert!(page.contains("| may | failed: a \\| b | 0 |"), "{page}");
        assert!(page.contains("2026-11-15") && page.contains("machine: small"), "{page}");
    }

    #[test]
    fn a_server_has_charts_of_its_cost_and_its_tail_alone() {
        let row = |unit: &str| Row::new("echo-50".into(), "may", unit, &[9.0], None);
        let rows = ["us_cpu_per_request", "requests_per_s", "p50_us", "p99_us", "p999_us"].map(row);
        let names: Vec<_> = charts(&rows).into_iter().map(|chart| chart.name).collect();
        assert_eq!(names, ["echo-50-us_cpu_per_request", "echo-50-p99_us"]);
        let page = page(&origin(), &rows);
        assert_eq!(page.matches("<picture>").count(), 2);
        assert_eq!(page.matches("<details>").count(), 5);
    }

    #[test]
    fn every_picture_of_the_page_is_written_in_both_themes() {
        let out = std::env::temp_dir().join(format!("rivals-report-{}", std::process::id()));
        write(&out, &origin(), &rows()).unwrap();
        let page = fs::read_to_string(out.join("rivals.md")).unwrap();
        let links: Vec<_> = page.split('"').filter(|part| part.ends_with(".svg")).collect();
        assert_eq!(links.len(), 2 * 2 + 2, "{links:?}");
        for link in links.iter().filter(|link| !link.contains("curve-spawn")) {
            let svg = fs::read_to_string(out.join(link)).unwrap();
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{link}");
        }
        assert_eq!(Row::read_all(&fs::read_to_string(out.join("rivals/results.jsonl")).unwrap()).unwrap(), rows());
        fs::remove_dir_all(out).unwrap();
    }
}
