//! The distribution of a latency as SVG: how many requests (across, each step ten times rarer) took how long (upwards, each step ten times longer).

use std::fmt::Write;

use hdrhistogram::Histogram;

/// Size of the picture and of its margins.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

/// Points of the curve: two for each pixel that it is wide.
const POINTS: usize = 1340;

/// Across: the share of slower requests, from all to one in so many powers of ten; at least that of p99.
const DECADES_MIN: f64 = 2.0;

/// Draws it, with a title.
pub(super) fn draw(title: &str, latencies_ns: &Histogram<u64>) -> String {
    let plot = Plot::of(latencies_ns);
    let mut svg = String::new();
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    text(&mut svg, WIDTH / 2.0, TOP - 18.0, "middle", title);
    for decade in 0..=plot.decades.floor() as u32 {
        let x = plot.x(f64::from(decade));
        line(&mut svg, (x, TOP), (x, HEIGHT - BOTTOM));
        text(&mut svg, x, HEIGHT - BOTTOM + 18.0, "middle", &percentile(decade));
    }
    for power in plot.low..=plot.high {
        let y = plot.y(10f64.powi(power));
        line(&mut svg, (LEFT, y), (WIDTH - RIGHT, y));
        text(&mut svg, LEFT - 8.0, y + 4.0, "end", &crate::table::time(10u64.pow(power as u32)));
    }
    text(&mut svg, WIDTH / 2.0, HEIGHT - 10.0, "middle", "percentile");
    text(&mut svg, LEFT - 8.0, TOP - 18.0, "end", "latency");
    let points: Vec<_> = (0..=POINTS).map(|i| plot.point(latencies_ns, i)).collect();
    let _ = writeln!(svg, "<polyline fill=\"none\" stroke=\"#0969da\" stroke-width=\"2\" points=\"{}\"/>\n</svg>", points.join(" "));
    svg
}

/// The scales.
struct Plot {
    /// Powers of ten across.
    decades: f64,
    /// The lowest and highest power of ten upwards, in ns.
    low: i32,
    high: i32,
}

impl Plot {
    fn of(latencies_ns: &Histogram<u64>) -> Self {
        let (min, max) = (latencies_ns.min().max(1) as f64, latencies_ns.max().max(1) as f64);
        let low = min.log10().floor() as i32;
        Self { decades: (latencies_ns.len().max(1) as f64).log10().max(DECADES_MIN), low, high: (max.log10().ceil() as i32).max(low + 1) }
    }

    fn x(&self, decade: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * decade / self.decades
    }

    fn y(&self, ns: f64) -> f64 {
        let share = (ns.max(1.0).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share
    }

    fn point(&self, latencies_ns: &Histogram<u64>, i: usize) -> String {
        let decade = self.decades * i as f64 / POINTS as f64;
        let ns = latencies_ns.value_at_quantile(1.0 - 10f64.powf(-decade));
        format!("{:.1},{:.1}", self.x(decade), self.y(ns as f64))
    }
}

/// `0%`, `90%`, `99%`, `99.9%`, ...
fn percentile(decade: u32) -> String {
    match decade {
        0 => "0%".into(),
        1 => "90%".into(),
        2 => "99%".into(),
        more => format!("99.{}%", "9".repeat(more as usize - 2)),
    }
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#d0d7de\"/>");
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#1f2328\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_rises_and_stays_in_the_picture() {
        let mut latencies_ns = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        (1..=10_000).for_each(|us| latencies_ns.record(us * 1000).unwrap());
        let svg = draw("a < b & c", &latencies_ns);
        assert!(svg.contains(">percentile</text>") && svg.contains(">latency</text>"), "{svg}");
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains("99.99%") && svg.ends_with("</svg>\n"), "{svg}");
        let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let heights: Vec<f64> = points.split(' ').map(|point| point.split(',').nth(1).unwrap().parse().unwrap()).collect();
        assert!(heights.is_sorted_by(|a, b| a >= b), "{heights:?}");
        assert!(heights.iter().all(|y| (TOP..=HEIGHT - BOTTOM).contains(y)), "{heights:?}");
    }

    #[test]
    fn an_empty_distribution_is_drawn_too() {
        assert!(draw("nothing", &Histogram::new_with_bounds(1, 1000, 3).unwrap()).contains("<polyline"));
    }
}
