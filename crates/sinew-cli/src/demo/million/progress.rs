//! How far a phase is: a bar on a terminal, nothing elsewhere; and one line when it is over.

use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};

use crate::interrupt;

/// How often a bar is drawn.
pub(super) const DRAW_PERIOD: Duration = Duration::from_millis(50);

const BAR: &str = "{prefix:<8} [{wide_bar:.cyan/blue}] {human_pos:>11} / {human_len}";

/// One phase under way.
pub(super) struct Phase {
    bar: ProgressBar,
    name: &'static str,
    fibers: u64,
    begun: Instant,
}

impl Phase {
    pub(super) fn begin(name: &'static str, fibers: u64) -> Self {
        let bar = ProgressBar::new(fibers).with_prefix(name);
        bar.set_style(ProgressStyle::with_template(BAR).expect("the template is a valid one").progress_chars("=> "));
        bar.set_position(0);
        Self { bar, name, fibers, begun: Instant::now() }
    }

    pub(super) fn show(&self, done: usize) {
        self.bar.set_position(done as u64);
    }

    /// Ends the process, with a line.
    pub(super) fn cut_short(&self, done: usize) -> ! {
        self.bar.finish_and_clear();
        let (done, fibers) = (HumanCount(done as u64), HumanCount(self.fibers));
        interrupt::end(format_args!(
            "at {} of {done} of {fibers} fibers, after {:.1} s of it",
            self.name,
            self.begun.elapsed().as_secs_f64()
        ));
    }

    /// Ends the phase; how long it took.
    pub(super) fn end(self) -> Duration {
        let took = self.begun.elapsed();
        // Finished bars would draw over each other; the line stays.
        self.bar.finish_and_clear();
        eprintln!("{:<8} {} fibers in {:.3} s", self.name, HumanCount(self.fibers), took.as_secs_f64());
        took
    }
}
