//! One cost of all systems as the number of tasks grows: lines over logarithmic axes.

use super::svg::{Anchor, Picture, Theme};
use crate::row::Row;
use crate::table::figure;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 620.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 290.0;
/// Least distance of two names at the right end.
const NAME_HEIGHT: f64 = 15.0;

/// `rows` have names that begin with `prefix` and end with a number as in `10k`.
pub(super) fn draw(title: &str, prefix: &str, rows: &[&Row], theme: Theme) -> String {
    let mut picture = Picture::new(WIDTH, HEIGHT);
    picture.text(0.0, 18.0, Anchor::Start, theme.faint(), &format!("{title}; less is better"));
    let mut columns: Vec<&str> = Vec::new();
    for row in rows {
        let name = row.workload.strip_prefix(prefix).unwrap_or(&row.workload);
        if !columns.contains(&name) {
            columns.push(name);
        }
    }
    let axis = Axis::over(rows.iter().filter_map(|row| row.median));
    let step = (RIGHT - LEFT) / (columns.len().max(2) - 1) as f64;
    for power in axis.powers() {
        picture.line(&[(LEFT, axis.y(power)), (RIGHT, axis.y(power))], 0.3, theme.faint());
        picture.text(
            LEFT - 8.0,
            axis.y(power) + 4.0,
            Anchor::End,
            theme.faint(),
            &format!("{} ns", figure(power).trim_end_matches(".00").trim_end_matches(".0")),
        );
    }
    for (i, name) in columns.iter().enumerate() {
        picture.text(LEFT + step * i as f64, BOTTOM + 20.0, Anchor::Middle, theme.faint(), name);
    }
    let mut ends: Vec<(f64, f64, &str)> = Vec::new();
    for system in systems(rows) {
        let place = |row: &&&Row| Some((columns.iter().position(|name| row.workload.strip_prefix(prefix) == Some(name))?, row.median?));
        let own = rows.iter().filter(|row| row.system == system);
        let points: Vec<(f64, f64)> = own.filter_map(|row| place(&row)).map(|(i, value)| (LEFT + step * i as f64, axis.y(value))).collect();
        picture.line(&points, 2.0, theme.line(system));
        points.iter().for_each(|&point| picture.dot(point, theme.line(system)));
        ends.extend(points.last().map(|&(x, y)| (x, y, system)));
    }
    for (x, y, system) in apart(ends) {
        picture.text(x + 8.0, y + 4.0, Anchor::Start, theme.line(system), system);
    }
    picture.finish()
}

fn systems<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.system.as_str()) {
            names.push(&row.system);
        }
    }
    names
}

/// Moves names down until none stands on another.
fn apart(mut names: Vec<(f64, f64, &str)>) -> Vec<(f64, f64, &str)> {
    names.sort_by(|one, other| one.1.total_cmp(&other.1));
    for i in 1..names.len() {
        let above: Vec<f64> = names[..i].iter().filter(|name| name.0 == names[i].0).map(|name| name.1).collect();
        names[i].1 = above.into_iter().map(|y| y + NAME_HEIGHT).fold(names[i].1, f64::max);
    }
    names
}

/// Whole powers of ten around all values.
struct Axis {
    low: i32,
    high: i32,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone) -> Self {
        let powers = values.filter(|&value| value > 0.0).map(f64::log10);
        let low = powers.clone().fold(f64::INFINITY, f64::min);
        let high = powers.fold(f64::NEG_INFINITY, f64::max);
        if low.is_finite() {
            Self { low: low.floor() as i32, high: (high.ceil() as i32).max(low.floor() as i32 + 1) }
        } else {
            Self { low: 0, high: 1 }
        }
    }

    fn powers(&self) -> impl Iterator<Item = f64> + use<> {
        (self.low..=self.high).map(|power| 10f64.powi(power))
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        BOTTOM - share * (BOTTOM - TOP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_holds_all_values_between_powers_of_ten() {
        let axis = Axis::over([11.0, 240.0].into_iter());
        assert_eq!(axis.powers().collect::<Vec<_>>(), [10.0, 100.0, 1000.0]);
        assert_eq!((axis.y(10.0), axis.y(1000.0)), (BOTTOM, TOP));
        assert_eq!(Axis::over([10.0].into_iter()).powers().count(), 2);
    }

    #[test]
    fn names_do_not_stand_on_each_other() {
        let names = apart(vec![(5.0, 100.0, "a"), (5.0, 101.0, "b"), (5.0, 102.0, "c"), (9.0, 101.0, "d")]);
        let ys: Vec<_> = names.iter().filter(|name| name.0 == 5.0).map(|name| name.1).collect();
        assert_eq!(ys, [100.0, 115.0, 130.0]);
    }

    #[test]
    fn a_system_without_figures_has_no_line() {
        let rows = [
            Row::new("curve/yield-1k".into(), "sinew", "ns", &[11.0], None),
            Row::new("curve/yield-10k".into(), "sinew", "ns", &[12.0], None),
            Row::new("curve/yield-1k".into(), "may", "", &[], Some("no".into())),
        ];
        let svg = draw("t", "curve/yield-", &rows.iter().collect::<Vec<_>>(), Theme::Light);
        assert!(svg.contains(">sinew<") && !svg.contains(">may<") && svg.contains(">10k<"), "{svg}");
    }
}
