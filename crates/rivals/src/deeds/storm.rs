//! The roles in `Deed::Storm`: most tasks yield all the time, some sleep again and again, and one is woken by a thread.

use std::time::{Duration, Instant};

use super::{Arrivals, latencies};
use crate::job::{Job, Reading};

/// How long a sleeper sleeps at a time.
pub(crate) const NAP: Duration = Duration::from_millis(1);
/// Tasks that yield, for each worker.
const YIELDERS_PER_WORKER: usize = 2;

/// What a task of the storm does.
pub(crate) enum Role {
    /// Yields until the storm is over.
    Yield,
    /// Sleeps for `NAP`, again and again.
    Sleep,
    /// Waits for a thread that wakes it, again and again.
    Hear,
}

/// Who does what, and how long it lasts.
pub(crate) struct Storm {
    yielders: usize,
    sleepers: usize,
    /// Sleepers and the hearer as they end.
    done: Arrivals,
}

impl Storm {
    pub(crate) fn of(job: &Job) -> Self {
        Self { yielders: YIELDERS_PER_WORKER * job.workers, sleepers: job.tasks, done: Arrivals::default() }
    }

    /// All tasks.
    pub(crate) fn tasks(&self) -> usize {
        self.yielders + self.sleepers + 1
    }

    pub(crate) fn role(&self, index: usize) -> Role {
        if index < self.yielders {
            Role::Yield
        } else if index < self.yielders + self.sleepers {
            Role::Sleep
        } else {
            Role::Hear
        }
    }

    /// A sleeper or the hearer has ended.
    pub(crate) fn leave(&self) {
        self.done.note();
    }

    /// Whether all of them have.
    pub(crate) fn is_over(&self) -> bool {
        self.done.count() == self.sleepers + 1
    }

    /// The figures, given how late in nanoseconds each task was each time: those of sleepers, and those of the hearer.
    pub(crate) fn readings(&self, mut late_ns: Vec<Vec<u64>>) -> Vec<Reading> {
        let mut heard = latencies(late_ns.pop().expect("the hearer is the last task"));
        heard.iter_mut().for_each(|reading| reading.metric.insert_str(0, "wake-"));
        let mut readings = latencies(late_ns.concat());
        readings.append(&mut heard);
        readings
    }
}

/// Nanoseconds since `deadline`.
pub(crate) fn late_ns(deadline: Instant) -> u64 {
    Instant::now().saturating_duration_since(deadline).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Deed;

    #[test]
    fn a_storm_is_over_when_sleepers_and_hearer_are_done() {
        let storm = Storm::of(&Job::new(Deed::Storm).workers(2).tasks(3));
        let roles: Vec<_> = (0..storm.tasks()).map(|index| storm.role(index)).collect();
        assert_eq!(roles.iter().filter(|role| matches!(role, Role::Yield)).count(), 4);
        assert_eq!(roles.iter().filter(|role| matches!(role, Role::Sleep)).count(), 3);
        assert!(matches!(roles.last(), Some(Role::Hear)));
        for _ in 0..4 {
            assert!(!storm.is_over());
            storm.leave();
        }
        assert!(storm.is_over());
    }

    #[test]
    fn sleepers_and_hearer_have_figures_of_their_own() {
        let storm = Storm::of(&Job::new(Deed::Storm).tasks(2));
        let readings = storm.readings(vec![vec![], vec![], vec![1000, 3000], vec![2000], vec![9000]]);
        let found: Vec<_> = readings.iter().map(|reading| (reading.metric.as_str(), reading.value)).collect();
        assert_eq!(found, [("p50", 2.0), ("p99", 3.0), ("p999", 3.0), ("wake-p50", 9.0), ("wake-p99", 9.0), ("wake-p999", 9.0)]);
    }
}
