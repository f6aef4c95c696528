//! One figure of all systems as bars, the best first.

use super::svg::{Anchor, Picture, Theme};
use crate::row::Row;
use crate::table::{figure, short};

const WIDTH: f64 = 720.0;
const NAME_WIDTH: f64 = 100.0;
const BAR_WIDTH_MAX: f64 = 380.0;
const ROW_HEIGHT: f64 = 24.0;
const BAR_HEIGHT: f64 = 16.0;
const TITLE_HEIGHT: f64 = 30.0;
/// Bars longer than so many times the shortest are cut, so that the short ones can still be told apart; a cut bar is marked and its figure stands beside it.
const CUT_TIMES: f64 = 20.0;
/// Longest message that fits beside a name.
const MESSAGE_CHARS_MAX: usize = 84;

pub(super) fn draw(title: &str, rows: &[&Row], theme: Theme) -> String {
    let mut rows = rows.to_vec();
    rows.sort_by(|one, other| one.median.unwrap_or(f64::INFINITY).total_cmp(&other.median.unwrap_or(f64::INFINITY)));
    let full = full_scale(&rows);
    let unit = rows.iter().find(|row| row.median.is_some()).map_or("", |row| short(&row.unit));
    let mut picture = Picture::new(WIDTH, TITLE_HEIGHT + ROW_HEIGHT * rows.len() as f64 + 6.0);
    picture.text(0.0, 18.0, Anchor::Start, theme.faint(), &format!("{title}, {unit}; less is better"));
    for (i, row) in rows.iter().enumerate() {
        let top = TITLE_HEIGHT + ROW_HEIGHT * i as f64;
        let line = top + 13.0;
        picture.text(NAME_WIDTH - 8.0, line, Anchor::End, theme.text(), &row.system);
        match row.median {
            Some(median) => {
                let cut = median > full;
                let width = (median.min(full) / full * BAR_WIDTH_MAX).max(1.0);
                picture.bar(NAME_WIDTH, top, width, BAR_HEIGHT, theme.bar(&row.system));
                let mark = if cut { "»  " } else { "" };
                picture.text(
                    NAME_WIDTH + width + 6.0,
                    line,
                    Anchor::Start,
                    theme.text(),
                    &format!("{mark}{}{}", figure(median), spread(row)),
                );
            }
            None => {
                let message: String = row.error.as_deref().unwrap_or("no figure").chars().take(MESSAGE_CHARS_MAX).collect();
                picture.text(NAME_WIDTH, line, Anchor::Start, theme.faint(), &format!("failed: {message}"));
            }
        }
    }
    picture.finish()
}

/// The value of a bar of full length.
fn full_scale(rows: &[&Row]) -> f64 {
    let medians = || rows.iter().filter_map(|row| row.median).filter(|&median| median > 0.0);
    let greatest = medians().fold(0.0, f64::max);
    let least = medians().fold(f64::INFINITY, f64::min);
    greatest.min(least * CUT_TIMES).max(f64::MIN_POSITIVE)
}

fn spread(row: &Row) -> String {
    match (row.min, row.max) {
        (Some(min), Some(max)) if row.rounds > 1 => format!("  ({} to {})", figure(min), figure(max)),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_sorted_cut_and_failures_last() {
        let rows = [
            Row::new("w".into(), "may", "", &[], Some("no memory".into())),
            Row::new("w".into(), "threads", "ns", &[5000.0], None),
            Row::new("w".into(), "sinew", "ns", &[10.0, 20.0, 30.0], None),
        ];
        let svg = draw("w", &rows.iter().collect::<Vec<_>>(), Theme::Light);
        let place = |text: &str| svg.find(text).unwrap_or_else(|| panic!("{text} is not in {svg}"));
        assert!(place(">sinew<") < place(">threads<") && place(">threads<") < place(">may<"));
        place("20.0  (10.0 to 30.0)");
        place("»  5,000");
        place("failed: no memory");
        assert!(svg.contains(&format!(r#"width="{BAR_WIDTH_MAX:.1}""#)));
    }

    #[test]
    fn zero_is_drawn_too() {
        let row = Row::new("idle-cpu".into(), "sinew", "%", &[0.0], None);
        assert!(draw("idle-cpu", &[&row], Theme::Dark).contains("0.00"));
    }
}
