//! Who is there and what they wait for, in words: what a shutdown leaves behind, and a probable deadlock.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::fiber::Fiber;
use crate::base::atomic::Relaxed;
use crate::fiber::why::Why;
use crate::fiber::{self, Control, pool};
use crate::sched::cancel::{Kept, fibers_of};
use crate::sched::groups::Groups;

/// Fibers that a report names; of the others it says how many they are.
const NAMED_MAX: usize = 100;

/// Fibers of a scope that are named where its owner waits for them.
const CHILDREN_NAMED_MAX: usize = 4;

/// Looks per deadlock watch period. Arbitrary: a report comes at most a quarter late.
const LOOKS: u32 = 4;

/// Fibers that had not ended when a runtime was [shut down](crate::Runtime::shutdown_timeout); they and their workers are left as they are.
///
/// `Debug` and `Display` name each of them, where it was spawned and what it waits for.
pub struct Unfinished {
    fibers: Vec<Fiber>,
    /// Fibers that had not begun, whose workers were too busy to refuse them.
    unstarted: usize,
    /// Threads of workers that had not left.
    threads: usize,
    has_hooks: bool,
    lines: Vec<String>,
}

impl Unfinished {
    pub(crate) fn of(groups: &Groups) -> Self {
        let kept: Vec<Kept> = fibers_of(groups, None).collect();
        let lines = kept.iter().take(NAMED_MAX).map(|kept| Line(kept.control()).to_string()).collect();
        let (unstarted, threads) = (groups.unstarted(), groups.threads());
        let has_hooks = groups.hooks.start.is_some() || groups.hooks.stop.is_some();
        Self { fibers: kept.into_iter().map(Kept::into_fiber).collect(), unstarted, threads, has_hooks, lines }
    }

    /// The fibers.
    pub fn fibers(&self) -> &[Fiber] {
        &self.fibers
    }
}

impl Kept {
    fn into_fiber(self) -> Fiber {
        let kept = std::mem::ManuallyDrop::new(self);
        // SAFETY: the reference is handed over.
        unsafe { Fiber::from_reference(kept.control()) }
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.fibers.len();
        if count == 0 && self.unstarted == 0 {
            // At least one, a moment ago.
            let threads = self.threads.max(1);
            let why = if self.has_hooks { ": a worker hook takes its time" } else { " yet: give them a moment more" };
            return write!(f, "all fibers had ended, but {threads} of the workers' threads had not{why}");
        }
        write!(f, "{count} fiber{} had not ended", if count == 1 { "" } else { "s" })?;
        self.lines.iter().try_for_each(|line| write!(f, "\n  {line}"))?;
        match count.saturating_sub(NAMED_MAX) {
            0 => {}
            more => write!(f, "\n  and {more} more")?,
        }
        match self.unstarted {
            0 => Ok(()),
            more => write!(f, "\n  and {more} that had not begun to run"),
        }
    }
}

impl fmt::Debug for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Unfinished {}

/// `fiber #7 'reader', spawned at src/main.rs:10:5, is parked`.
struct Line<'a>(&'a Control);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fiber {}, ", self.0)?;
        match self.0.waits_for() {
            None if self.0.state.is_cancelled() => {
                f.write_str("was cancelled, and goes on: a loop around `sleep` or `park` must ask `sinew::cancelled()`")
            }
            None => f.write_str("runs, or is about to"),
            Some(Why::Park) => f.write_str("is parked: only an unpark or a cancel ends that"),
            Some(Why::Sleep) => f.write_str("sleeps"),
            Some(Why::Scope) => self.write_scope(f),
            Some(Why::Shutdown) => f.write_str("waits for a runtime to shut down"),
            Some(Why::At(at)) => write!(f, "waits {}", at.text()),
            // While it waits it keeps that fiber's block.
            Some(Why::Join(place)) => match Kept::new(&fiber::Weak::of(pool::at(place))) {
                Some(joined) => write!(f, "waits for the end of fiber {}", joined.control()),
                None => f.write_str("is about to run: the fiber it joined has ended"),
            },
        }
    }
}

impl Line<'_> {
    fn write_scope(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut children = Vec::new();
        self.0.children_into(&mut children);
        f.write_str("waits for the fibers of its scope")?;
        let mut named = 0;
        for child in children.iter().filter_map(Kept::new).take(CHILDREN_NAMED_MAX) {
            write!(f, "{} {}", if named == 0 { ":" } else { "," }, child.control().id())?;
            named += 1;
        }
        match children.len() - named {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Starts the thread that says so when no fiber of `group` could run for `period`.
pub(crate) fn watch_for_deadlock(groups: &Arc<Groups>, period: Duration) -> io::Result<()> {
    let groups = Arc::downgrade(groups);
    std::thread::Builder::new().name("sinew-watch".into()).spawn(move || watch(&groups, period)).map(drop)
}

fn watch(groups: &Weak<Groups>, period: Duration) {
    let mut quiet: Option<(u64, Instant)> = None;
    // A worker that gets up and finds nothing to run, so that none has switched since, does not end a standstill.
    let mut reported_at = None;
    while let Some(groups) = groups.upgrade().filter(|groups| !groups.is_stopping()) {
        let switches = groups.seats().map(|seat| seat.counters.switches.load(Relaxed)).sum();
        match quiet {
            _ if groups.started() == 0 || groups.has_work() || !groups.all_rest_for_good() => quiet = None,
            Some((then, since)) if then == switches => {
                if since.elapsed() >= period && reported_at != Some(switches) {
                    reported_at = Some(switches);
                    report(&groups, since.elapsed());
                }
            }
            _ => quiet = Some((switches, Instant::now())),
        }
        drop(groups);
        std::thread::sleep((period / LOOKS).max(Duration::from_millis(1)));
    }
}

fn report(groups: &Groups, quiet: Duration) {
    let there = Unfinished::of(groups);
    let _ = writeln!(
        io::stderr(),
        "sinew: probable deadlock: for {:.1}s all workers slept, with no deadline to wake them; {there}\n  \
         if threads outside, or signals, are to wake them, all is well: this line comes once per standstill",
        quiet.as_secs_f64()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claim: a hook is blamed where there is one.
    #[test]
    fn threads_that_have_not_left_are_told_of_with_their_cause() {
        let left = |has_hooks| Unfinished { fibers: Vec::new(), unstarted: 0, threads: 2, has_hooks, lines: Vec::new() }.to_string();
        assert_eq!(left(true), "all fibers had ended, but 2 of the workers' threads had not: a worker hook takes its time");
        assert_eq!(left(false), "all fibers had ended, but 2 of the workers' threads had not yet: give them a moment more");
    }
}
