//! Notices that nothing moves any more, and names who waits for what. On a plain thread: it must speak when all workers are stuck.

use std::io::{self, Write};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::failure::{fail, seed_and_round};
use super::ledger::LEDGER;

/// No fiber has begun a slice for this long: something is lost. The longest planned wait is 2 ms; the rest is for loaded machines.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often it looks.
const PERIOD: Duration = Duration::from_millis(200);
/// Fibers that are named; of the rest the number is told.
const NAMED_MAX: usize = 100;

static ROUND_RUNS: AtomicBool = AtomicBool::new(false);

/// Looks only while a round runs.
pub(super) fn watch_round(runs: bool) {
    ROUND_RUNS.store(runs, Relaxed);
}

pub(super) fn start() -> io::Result<()> {
    std::thread::Builder::new().name("stress-watchdog".into()).spawn(watch).map(drop)
}

fn watch() {
    let (mut seen, mut since) = (LEDGER.slices(), Instant::now());
    loop {
        std::thread::sleep(PERIOD);
        let slices = LEDGER.slices();
        if slices != seen || !ROUND_RUNS.load(Relaxed) {
            (seen, since) = (slices, Instant::now());
        } else if since.elapsed() >= PATIENCE {
            name_the_waiting();
            fail(format_args!("no fiber has run for {PATIENCE:?}: a wake was lost, or a worker is stuck"));
        }
    }
}

fn name_the_waiting() {
    let (present, (seed, round)) = (LEDGER.present(), seed_and_round());
    let mut err = io::stderr().lock();
    let _ = writeln!(err, "\nseed {seed}, round {round}: {} are waiting:", present.len());
    for record in present.iter().take(NAMED_MAX) {
        let _ = writeln!(err, "  {record}");
    }
    if present.len() > NAMED_MAX {
        let _ = writeln!(err, "  and {} more", present.len() - NAMED_MAX);
    }
}
