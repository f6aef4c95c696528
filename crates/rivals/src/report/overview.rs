//! All systems on one picture: how many times what Sinew takes, over a logarithmic axis.

use super::svg::{Anchor, Picture, Theme};
use crate::row::Row;
use crate::table::by_figure;

/// What is shown: the figure, in words, and which of ours it is about.
const FIGURES: &[(&str, &str, &str)] = &[
    ("yield-1000x1", "yield, 1,000 tasks", "sinew"),
    ("spawn-join-1", "spawn and join", "sinew"),
    ("spawn-million", "a million spawned, then joined", "sinew"),
    ("skynet", "a tree of a million tasks", "sinew"),
    ("fan-out", "100,000 short tasks of one producer", "sinew"),
    ("ping-pong-1", "channel, to and fro, one worker", "sinew"),
    ("ping-pong-2/apart", "the same between two workers", "sinew"),
    ("select-8", "select over eight channels", "sinew"),
    ("mutex-100", "100 tasks at one mutex", "sinew"),
    ("wake-from-thread/p50", "wake by a thread, p50", "sinew"),
    ("yield-storm/p99", "timers among tasks that yield, p99 late", "sinew"),
    ("echo-50 us_cpu_per_request", "echo, 50 connections, CPU", "sinew-uring"),
    ("echo-1000 us_cpu_per_request", "echo, 1,000 connections, CPU", "sinew-uring"),
    ("echo-1000 p99_us", "echo, 1,000 connections, p99", "sinew-uring"),
    ("echo-10000 us_cpu_per_request", "echo, 10,000 connections, CPU", "sinew-uring"),
    ("echo-10000 p99_us", "echo, 10,000 connections, p99", "sinew-uring"),
    ("http-hello us_cpu_per_request", "HTTP hello, CPU", "sinew-uring"),
    ("echo-hog p99_us", "echo beside hogs, tasks that move, p99", "sinew-migratable"),
];

/// The rivals, and the systems of which the better one stands for each.
const RIVALS: &[(&str, &[&str])] =
    &[("tokio", &["tokio-ct", "tokio-mt"]), ("may", &["may"]), ("smol", &["smol"]), ("Go", &["go"]), ("threads", &["threads"])];

const WIDTH: f64 = 780.0;
const LEFT: f64 = 292.0;
const RIGHT: f64 = 735.0;
const HEAD_HEIGHT: f64 = 56.0;
const ROW_HEIGHT: f64 = 22.0;
const FOOT_HEIGHT: f64 = 26.0;
const LEGEND_STEP: f64 = 84.0;
/// The axis: from half of what Sinew takes to a thousand times as much, in powers of two. What lies beyond stands at its end.
const LOW: f64 = -1.0;
const HIGH: f64 = 10.0;
/// Marks of the axis, in powers of two.
const MARKS: [i32; 6] = [0, 2, 4, 6, 8, 10];

/// How many times our figure each rival's is.
struct Line {
    words: &'static str,
    times: Vec<(&'static str, f64)>,
}

/// The lines that the rows have figures for.
fn lines(rows: &[&Row]) -> Vec<Line> {
    let figures = by_figure(rows.iter().copied());
    let line = |&(figure, words, ours): &(&str, &'static str, &str)| {
        let (_, rows) = figures.iter().find(|(name, _)| name == figure)?;
        let of = |system: &str| rows.iter().find(|row| row.system == system)?.median;
        let ours = of(ours).filter(|&ours| ours > 0.0)?;
        let best = |systems: &[&str]| systems.iter().filter_map(|system| of(system)).min_by(f64::total_cmp);
        let times = RIVALS.iter().filter_map(|&(name, systems)| Some((name, best(systems)? / ours))).collect();
        Some(Line { words, times })
    };
    FIGURES.iter().filter_map(line).collect()
}

/// The picture; `None` if the rows have nothing to show.
pub(super) fn draw(rows: &[&Row], theme: Theme) -> Option<String> {
    let lines = lines(rows);
    if lines.is_empty() {
        return None;
    }
    let bottom = HEAD_HEIGHT + ROW_HEIGHT * lines.len() as f64;
    let mut picture = Picture::new(WIDTH, bottom + FOOT_HEIGHT);
    picture.text(
        0.0,
        16.0,
        Anchor::Start,
        theme.text(),
        "What the others take, as a multiple of what Sinew takes (right of the line: more)",
    );
    for (i, &(name, _)) in RIVALS.iter().enumerate() {
        let x = LEFT + LEGEND_STEP * i as f64;
        picture.dot((x, 36.0), theme.line(name_of(name)));
        picture.text(x + 8.0, 40.0, Anchor::Start, theme.text(), name);
    }
    for mark in MARKS {
        let (x, times) = (x(2f64.powi(mark)), 2u32.pow(mark.unsigned_abs()));
        let (width, colour, words) =
            if mark == 0 { (2.0, theme.bar("sinew"), "Sinew".into()) } else { (0.3, theme.faint(), format!("{times}x")) };
        picture.line(&[(x, HEAD_HEIGHT - 6.0), (x, bottom)], width, colour);
        picture.text(x, bottom + 18.0, Anchor::Middle, colour, &words);
    }
    for (i, line) in lines.iter().enumerate() {
        let y = HEAD_HEIGHT + ROW_HEIGHT * (i as f64 + 0.5);
        picture.text(LEFT - 12.0, y + 4.0, Anchor::End, theme.text(), line.words);
        picture.line(&[(LEFT, y), (RIGHT, y)], 0.3, theme.faint());
        line.times.iter().for_each(|&(name, times)| picture.dot((x(times), y), theme.line(name_of(name))));
    }
    Some(picture.finish())
}

/// The system whose colour a rival has.
fn name_of(rival: &str) -> &'static str {
    RIVALS.iter().find(|(name, _)| *name == rival).map_or("", |(_, systems)| systems[systems.len() - 1])
}

fn x(times: f64) -> f64 {
    let share = (times.max(f64::MIN_POSITIVE).log2().clamp(LOW, HIGH) - LOW) / (HIGH - LOW);
    LEFT + share * (RIGHT - LEFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(workload: &str, system: &str, unit: &str, value: f64) -> Row {
        Row::new(workload.into(), system, unit, &[value; 5], None)
    }

    #[test]
    fn a_rival_stands_at_its_multiple_and_tokio_by_the_better_of_its_two() {
        let rows = [
            row("yield-1000x1", "sinew", "ns", 10.0),
            row("yield-1000x1", "tokio-ct", "ns", 40.0),
            row("yield-1000x1", "tokio-mt", "ns", 50.0),
            row("echo-1000", "sinew-uring", "us_cpu_per_request", 8.0),
            row("echo-1000", "sinew-uring", "p99_us", 100.0),
            row("echo-1000", "may", "us_cpu_per_request", 6.0),
            row("echo-1000", "may", "p99_us", 150.0),
            row("skynet", "smol", "ms", 1.0),
        ];
        let lines = lines(&rows.iter().collect::<Vec<_>>());
        let told: Vec<_> = lines.iter().map(|line| (line.words, line.times.clone())).collect();
        let expected = [
            ("yield, 1,000 tasks", vec![("tokio", 4.0)]),
            ("echo, 1,000 connections, CPU", vec![("may", 0.75)]),
            ("echo, 1,000 connections, p99", vec![("may", 1.5)]),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn the_axis_holds_what_lies_beyond_its_ends() {
        assert_eq!((x(0.5), x(1024.0)), (LEFT, RIGHT));
        assert_eq!((x(0.001), x(1e6)), (LEFT, RIGHT));
        assert!(x(1.0) < x(2.0));
    }

    #[test]
    fn without_a_figure_of_ours_there_is_no_picture() {
        assert!(draw(&[&row("skynet", "smol", "ms", 1.0)], Theme::Light).is_none());
        let svg = draw(&[&row("skynet", "smol", "ms", 8.0), &row("skynet", "sinew", "ms", 1.0)], Theme::Dark).unwrap();
        assert!(svg.contains(">a tree of a million tasks<") && svg.contains(">smol<"), "{svg}");
    }
}
