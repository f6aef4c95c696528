//! The little SVG that the charts need: text, bars, lines, in a light and a dark theme.

use std::fmt::Write;

use crate::systems::{self, Side};

/// For pages with a light or with a dark background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Theme {
    Light,
    Dark,
}

impl Theme {
    pub(crate) const ALL: [Self; 2] = [Self::Light, Self::Dark];

    /// Name of a chart's file.
    pub(crate) fn file(self, chart: &str) -> String {
        let theme = if self == Self::Light { "light" } else { "dark" };
        format!("{chart}-{theme}.svg")
    }

    pub(super) fn text(self) -> &'static str {
        if self == Self::Light { "#1f2328" } else { "#e6edf3" }
    }

    pub(super) fn faint(self) -> &'static str {
        if self == Self::Light { "#6e7781" } else { "#8d96a0" }
    }

    /// Colour of a system's bar: ours stands out, limits step back.
    pub(super) fn bar(self, system: &str) -> &'static str {
        let side = systems::named(system).map_or(Side::Rival, |system| system.side);
        match (side, self) {
            (Side::Ours, Self::Light) => "#0969da",
            (Side::Ours, Self::Dark) => "#4493f8",
            (Side::Runtime | Side::Rival, Self::Light) => "#afb8c1",
            (Side::Runtime | Side::Rival, Self::Dark) => "#656c76",
            (Side::Limit, Self::Light) => "#d8c9a8",
            (Side::Limit, Self::Dark) => "#7d6a3f",
        }
    }

    /// Colour of a system's line: lines cross, so each has its own.
    pub(super) fn line(self, system: &str) -> &'static str {
        const LIGHT: [&str; 7] = ["#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#57606a", "#116329"];
        const DARK: [&str; 7] = ["#f0883e", "#3fb950", "#a371f7", "#f778ba", "#d29922", "#9ea7b3", "#7ee787"];
        if systems::named(system).is_ok_and(|system| system.side == Side::Ours) {
            return self.bar(system);
        }
        let rivals = systems::ALL.iter().filter(|system| system.side != Side::Ours);
        let index = rivals.enumerate().find(|(_, rival)| rival.name == system).map_or(0, |(index, _)| index);
        if self == Self::Light { LIGHT[index % LIGHT.len()] } else { DARK[index % DARK.len()] }
    }
}

/// Where a text stands from its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture as it grows.
pub(super) struct Picture {
    body: String,
    width: f64,
    height: f64,
}

impl Picture {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    pub(super) fn text(&mut self, x: f64, y: f64, anchor: Anchor, colour: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(self.body, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{colour}">{}</text>"#, escape(text));
    }

    pub(super) fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        let _ = writeln!(self.body, r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2" fill="{colour}"/>"#);
    }

    pub(super) fn line(&mut self, points: &[(f64, f64)], width: f64, colour: &str) {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(self.body, r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}"/>"#, points.join(" "));
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), colour: &str) {
        let _ = writeln!(self.body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#);
    }

    pub(super) fn finish(self) -> String {
        let Self { body, width, height } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"system-ui, sans-serif\" \
             font-size=\"13\">\n{body}</svg>\n"
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_the_picture() {
        let mut picture = Picture::new(10.0, 10.0);
        picture.text(0.0, 0.0, Anchor::Start, "#000", "a<b> & c");
        assert!(picture.finish().contains(">a&lt;b&gt; &amp; c</text>"));
    }

    #[test]
    fn ours_differs_from_theirs_in_both_themes() {
        for theme in Theme::ALL {
            assert_ne!(theme.bar("sinew"), theme.bar("go"));
            assert_ne!(theme.line("sinew"), theme.line("go"));
            assert_ne!(theme.line("may"), theme.line("go"));
        }
    }
}
