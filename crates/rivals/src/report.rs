//! The page: `rivals.md`, its charts and the rows they come from.

mod bars;
mod lines;
mod overview;
mod svg;

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::machine;
use crate::results::{Results, Run};
use crate::row::Row;
use crate::table::{by_figure, figure, short};
use crate::targets;
use crate::workloads;
use svg::Theme;

/// Folder of charts and rows, beside the page.
const FOLDER: &str = "rivals";
/// The rows in it.
const ROWS: &str = "results.jsonl";
/// The picture of all systems, which the README shows too.
const OVERVIEW: &str = "overview";

/// Writes the page and all it needs under `out`.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn write(out: &Path, results: &Results) -> io::Result<()> {
    let folder = out.join(FOLDER);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(ROWS), results.text())?;
    for chart in charts(&results.rows) {
        for theme in Theme::ALL {
            fs::write(folder.join(theme.file(&chart.name)), (chart.draw)(theme))?;
        }
    }
    fs::write(out.join("rivals.md"), page(&rows_file(out), results))
}

/// The file of the rows, as the page names it: seen from where the command was given, but nothing of the machine's own folders.
fn rows_file(out: &Path) -> String {
    let out = if out.is_absolute() { Path::new(out.file_name().unwrap_or_default()) } else { out };
    out.join(FOLDER).join(ROWS).display().to_string()
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
    if overview::draw(&others, Theme::Light).is_some() {
        let rows = others.clone();
        charts.push(Chart { name: OVERVIEW.into(), draw: Box::new(move |theme| overview::draw(&rows, theme).unwrap_or_default()) });
    }
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

fn page(rows_file: &str, results: &Results) -> String {
    let mut page = String::from("# Sinew and its rivals\n\n");
    let _ = writeln!(page, "Written by `cargo run --release -p rivals -- report --from {rows_file}`; do not edit.");
    page.push_str(HOW);
    page.push_str(&measured_by(&results.runs()));
    let rows = &results.rows;
    if charts(rows).iter().any(|chart| chart.name == OVERVIEW) {
        page.push('\n');
        page.push_str(&picture(OVERVIEW));
    }
    page.push_str("\n## Targets\n\nWhere the time of those goes that are missed is in [decisions.md](decisions.md).\n\n");
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

/// Where the figures come from: each run, its command, its machine and the load of that.
fn measured_by(runs: &[&Run]) -> String {
    if runs.is_empty() {
        let (machine, versions) = (machine::machine(), machine::versions().join(", "));
        return format!(
            "The rows do not say where, when and under what load they were measured. What wrote the page:\n\n- machine: {machine}\n- versions: {versions}\n"
        );
    }
    let mut text = String::new();
    for run in runs {
        let _ = writeln!(text, "Measured by `{}` on {}:\n", run.command, run.date);
        run.lines().iter().for_each(|line| {
            let _ = writeln!(text, "- {line}");
        });
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
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
                let met = verdict.words();
                let allows = verdict.against.as_ref().map_or("-".into(), |_| format!("{} {unit}", figure(verdict.limit)));
                writeln!(table, "| {name} | {} {unit} | {against} | {words} | {allows} | {met} |", figure(verdict.ours))
            }
            None if target.is_failed(rows) => writeln!(table, "| {name} | failed | - | {words} | - | **no** |"),
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
            Row::new("yield-1".into(), "smol", "ns", &[82.0; 4], None),
            Row::new("fan-out".into(), "sinew", "", &[], Some("no".into())),
            Row::new("yield-1".into(), "may", "", &[], Some("a | b".into())),
            Row::new("curve/yield-1k".into(), "sinew", "ns", &[11.0], None),
            Row::new("curve/yield-10k".into(), "sinew", "ns", &[12.0], None),
            Row::new("select-8".into(), "sinew", "ns", &[79.0], None),
        ]
    }

    fn results(mut rows: Vec<Row>) -> Results {
        let mut run = Run::begin("rivals run --short".into());
        (run.load_before, run.load_after) = (Some("0.25 0.5 1".into()), Some("1.75 1 1".into()));
        rows[0].run = Some(Box::new(run));
        Results { rows }
    }

    #[test]
    fn the_page_says_what_was_met_and_what_failed() {
        let page = page("docs/rivals/results.jsonl", &results(rows()));
        assert!(page.contains("| yield-1 | 6.00 ns | smol: 82.0 ns | <= 0.30 x best rival | 24.6 ns | yes, of 3 rounds |"), "{page}");
        assert!(page.contains("| fan-out | failed | - | <= 0.80 x best runtime | - | **no** |"), "{page}");
        assert!(page.contains("| skynet | - | - | <= 0.70 x best rival | - | not measured |"), "{page}");
        assert!(page.contains("| may | failed: a \\| b | 0 |"), "{page}");
    }

    #[test]
    fn the_page_says_how_it_was_measured_under_what_load_and_how_it_is_written_again() {
        let page = page(&rows_file(Path::new("docs")), &results(rows()));
        for wants in ["`rivals run --short`", "0.25 0.5 1 before, 1.75 1 1 after", "report --from docs/rivals/results.jsonl`", "machine: "]
        {
            assert!(page.contains(wants), "{wants} is missing: {page}");
        }
        assert_eq!(rows_file(Path::new("/somewhere/out")), "out/rivals/results.jsonl");
    }

    #[test]
    fn rows_that_do_not_say_where_they_come_from_have_a_page_too() {
        let page = page("docs/rivals/results.jsonl", &Results { rows: rows() });
        assert!(page.contains("do not say") && page.contains("| yield-1 | 6.00 ns |"), "{page}");
    }

    #[test]
    fn a_server_has_charts_of_its_cost_and_its_tail_alone() {
        let row = |unit: &str| Row::new("echo-50".into(), "may", unit, &[9.0], None);
        let rows = ["us_cpu_per_request", "requests_per_s", "p50_us", "p99_us", "p999_us"].map(row);
        let names: Vec<_> = charts(&rows).into_iter().map(|chart| chart.name).collect();
        assert_eq!(names, ["echo-50-us_cpu_per_request", "echo-50-p99_us"], "no overview without a figure of ours");
        let page = page("results.jsonl", &results(rows.into()));
        assert_eq!(page.matches("<picture>").count(), 2);
        assert_eq!(page.matches("<details>").count(), 5);
    }

    #[test]
    fn every_picture_of_the_page_is_written_in_both_themes() {
        let out = std::env::temp_dir().join(format!("rivals-report-{}", std::process::id()));
        let results = results(rows());
        write(&out, &results).unwrap();
        let page = fs::read_to_string(out.join("rivals.md")).unwrap();
        let links: Vec<_> = page.split('"').filter(|part| part.ends_with(".svg")).collect();
        assert_eq!(links.len(), 5 * 2 + 2, "{links:?}");
        for link in links.iter().filter(|link| !link.contains("curve-spawn")) {
            let svg = fs::read_to_string(out.join(link)).unwrap();
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{link}");
        }
        assert_eq!(Results::read(&fs::read_to_string(out.join("rivals/results.jsonl")).unwrap()).unwrap(), results);
        fs::remove_dir_all(out).unwrap();
    }
}
