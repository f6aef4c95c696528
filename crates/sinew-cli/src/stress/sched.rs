//! Schedulers: every round has a runtime of another kind, and all storms over it.
//!
//! Twelve rounds have each queue kind with each policy, with fibers that stay, that may move, and that are moved at every chance: each such combination comes again and again, and what it was
//! is told at the end. Groups, thefts, growth and how long idle workers poll come from the seed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use sinew::{Builder, Group, Launch, Policy, Queue, Runtime, RuntimeBuilder, Spin};

use super::failure::{check, fail};
use super::ledger::{LEDGER, Spawned};
use super::random::Random;
use super::storms::{self, Stage, Storm, deadlines, naps, prepare, races, spin_until};

/// All storms, one that holds workers, and more that launch fibers in every way.
pub(super) const STORMS: [Storm; storms::STORMS.len() + 4] = {
    let mut all = [launches as Storm; storms::STORMS.len() + 4];
    all[storms::STORMS.len()] = holds;
    let mut i = 0;
    while i < storms::STORMS.len() {
        all[i] = storms::STORMS[i];
        i += 1;
    }
    all
};

/// Idle passes between two thefts: never, at each, and as by default.
const STEAL_RATIOS: [usize; 3] = [0, 1, 16];
/// Polls of idle workers.
const SPINS: [Spin; 3] = [Spin::Never, Spin::Adaptive, Spin::Fixed(Duration::from_micros(20))];
/// Foreground groups, at most: with those of the background a runtime may have 64.
const FOREGROUND_MAX: usize = 62;
/// Background groups, at most, and fibers of one storm of launches.
pub(super) const BACKGROUND_MAX: usize = 2;
const LAUNCHES_MAX: usize = 200;
/// Fibers of one storm that hold their workers, and for how long, at most: the spares of a group look for such ones once in a millisecond.
const HOLDS_MAX: usize = 6;
const HOLD_US_MAX: usize = 5_000;
/// Spares of a group whose fibers move: none, and so many at most. More would be as many stacks that nobody can tell from lost ones.
const SPARES: [usize; 3] = [0, 1, SPARES_MAX];
pub(super) const SPARES_MAX: usize = 4;

/// Whether started fibers move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moves {
    Never,
    WhenItPays,
    Always,
}

/// One round's runtime.
pub(super) struct Plan {
    queue: Queue,
    policy: Policy,
    moves: Moves,
    spin: Spin,
    steal_ratio: usize,
    workers: usize,
    workers_min: usize,
    spares: usize,
    group_size: usize,
    background: usize,
}

impl Plan {
    /// The runtime of `round`, which has `workers`.
    pub(super) fn of(round: u64, workers: usize, random: &mut Random) -> Self {
        let turn = round.saturating_sub(1);
        let group_size = if random.once_in(3) { workers } else { random.between(workers.div_ceil(FOREGROUND_MAX), workers) };
        Self {
            queue: [Queue::Shared, Queue::Stealing][turn as usize % 2],
            policy: [Policy::Affinity, Policy::Balance][turn as usize / 2 % 2],
            moves: [Moves::Never, Moves::WhenItPays, Moves::Always][turn as usize / 4 % 3],
            spin: random.pick(&SPINS),
            steal_ratio: random.pick(&STEAL_RATIOS),
            workers,
            workers_min: if random.once_in(2) { 1 } else { group_size },
            group_size,
            background: random.between(0, BACKGROUND_MAX),
            spares: random.pick(&SPARES),
        }
    }

    /// What of it the rounds have in turn.
    fn combination(&self) -> String {
        let moves = match self.moves {
            Moves::Never => "settled",
            Moves::WhenItPays => "moving",
            Moves::Always => "shaken",
        };
        format!("{:?} {:?} {moves}", self.queue, self.policy)
    }

    fn described(&self) -> RuntimeBuilder {
        let builder = Runtime::builder().workers(self.workers).workers_min(self.workers_min).group_size(self.group_size);
        let builder = builder.background(self.background).queue(self.queue).policy(self.policy).spin(self.spin);
        let builder = builder.steal_ratio(self.steal_ratio);
        match self.moves {
            Moves::Never => builder,
            Moves::WhenItPays | Moves::Always => {
                // SAFETY: the storms keep nothing of a thread across a suspension: what they keep is `Send`, and they ask for their thread by a call that is not inlined.
                unsafe { builder.spare_workers(self.spares).migrate_started_fibers() }.shake(self.moves == Moves::Always)
            }
        }
    }

    /// The runtime.
    pub(super) fn build(&self) -> Runtime {
        LEDGER.moving.store(self.moves != Moves::Never, Relaxed);
        self.described().build().unwrap_or_else(|error| fail(format_args!("no runtime of {self}: {error}")))
    }

    /// What must hold of its workers and groups at any time.
    pub(super) fn check(&self, runtime: &Runtime) {
        let metrics = runtime.metrics();
        let foreground = metrics.groups.iter().filter(|group| !group.background);
        let most: usize = foreground.map(|group| group.workers_max).sum();
        check!(most == self.workers, "the foreground groups of {self} may have {most} workers");
        let background = metrics.groups.iter().filter(|group| group.background).count();
        check!(background == self.background, "{self} has {background} background groups");
        for group in &metrics.groups {
            check!(
                (1..=group.workers_max + group.spares_max).contains(&group.workers),
                "a group of {self} has {} of {} workers, and {} to spare",
                group.workers,
                group.workers_max,
                group.spares_max
            );
            let thefts = group.thefts.iter().map(|theft| theft.tried).sum::<u64>();
            check!(self.steal_ratio != 0 || thefts == 0, "{self} stole between groups, {thefts} times");
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workers, workers_min, spares, group_size, background, steal_ratio, spin, .. } = self;
        let combination = self.combination();
        write!(
            f,
            "{combination} {workers_min}..{workers} by {group_size}, spares {spares}, background {background}, steal {steal_ratio}, spin {spin:?}"
        )
    }
}

/// What was done over schedulers of one combination.
#[derive(Default)]
struct Done {
    rounds: u64,
    fibers: u64,
    wakes: u64,
    took: Duration,
}

/// What was done over schedulers of each combination, by its name.
#[derive(Default)]
pub(super) struct Tally(BTreeMap<String, Done>);

impl Tally {
    /// A round over `plan` is over, which took so long.
    pub(super) fn count(&mut self, plan: &Plan, fibers: u64, wakes: u64, took: Duration) {
        let done = self.0.entry(plan.combination()).or_default();
        done.rounds += 1;
        done.fibers += fibers;
        done.wakes += wakes;
        done.took += took;
    }

    /// A line for each.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(name, Done { rounds, fibers, wakes, took })| {
            format!("{name:<25}  rounds {rounds:>3}  fibers {fibers:>8}  wakes {wakes:>8}  {:.1} s", took.as_secs_f64())
        })
    }
}

/// The group of this thread's worker, by its name; nothing on a plain thread. Not inlined: one that has moved must see it.
#[inline(never)]
fn group_here() -> Option<String> {
    let thread = std::thread::current();
    let name = std::hint::black_box(thread.name())?;
    name.starts_with("sinew-").then(|| name.split('.').next().unwrap_or_default().to_owned())
}

/// Fibers that begin in every way, into any group, pinned to it or not: all end, and those that are pinned stay.
fn launches(stage: &Stage<'_>, random: &mut Random) {
    let mut fibers: Vec<Spawned<u64>> = Vec::new();
    let groups = sinew::metrics().groups;
    let background = groups.iter().filter(|group| group.background).count();
    // On a plain thread, before the default runtime has begun, there are none to be seen; there will be one.
    let foreground = (groups.len() - background).max(1);
    for number in 0..random.between(1, LAUNCHES_MAX) as u64 {
        let mut builder = Builder::new();
        let mut pinned = false;
        builder = match random.between(0, 5) {
            0 => builder.group(Group::any()),
            1 => builder.group(Group::foreground(random.between(0, foreground - 1))),
            2 if background > 0 => builder.group(Group::background(random.between(0, background - 1))),
            _ => builder,
        };
        if random.once_in(3) {
            builder = builder.pinned();
            pinned = true;
        }
        builder = match random.between(0, 5) {
            0 => builder.launch(Launch::Dispatch),
            1 => builder.quiet(),
            _ => builder,
        };
        let (closure, record) = prepare("launch", 0, random, move |stage: &Stage<'_>, random: &mut Random| {
            let home = group_here();
            for _ in 0..random.between(0, 4) {
                stage.dawdle(random);
                let here = group_here();
                check!(!pinned || here == home, "a pinned fiber of {home:?} runs in {here:?}");
            }
            number
        });
        // A dispatch suspends the caller.
        let spawned = stage.me.away(super::ledger::Wait::Yield, || builder.spawn(closure));
        match spawned {
            Ok(handle) => fibers.push(Spawned { handle, record }),
            Err(error) => fail(format_args!("a fiber could not be launched: {error}")),
        }
    }
    sinew::flush();
    let count = fibers.len() as u64;
    let sum: u64 = stage.join_all(fibers, random).into_iter().sum();
    check!(sum == count * (count - 1) / 2, "{count} launched fibers gave {sum}");
}

/// Fibers that hold their workers, by computing or by blocking the thread, beside others that sleep and wait with time-outs: where fibers may move, spares stand in for a while.
fn holds(stage: &Stage<'_>, random: &mut Random) {
    let held: Vec<_> = (0..random.between(1, HOLDS_MAX))
        .map(|_| {
            stage.spawn("hold", random, |stage, random| {
                stage.dawdle(random);
                let time = Duration::from_micros(random.between(0, HOLD_US_MAX) as u64);
                if random.once_in(2) { std::thread::sleep(time) } else { spin_until(Instant::now() + time) }
            })
        })
        .collect();
    random.pick(&[naps as Storm, races, deadlines])(stage, random);
    stage.join_all(held, random);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of queue kind, policy and moves.
    const COMBINATIONS: usize = 2 * 2 * 3;

    #[test]
    fn twelve_rounds_have_every_combination_once() {
        let mut tally = Tally::default();
        for round in 1..=COMBINATIONS as u64 {
            tally.count(&Plan::of(round, 4, &mut Random::new(round)), 1, 1, Duration::ZERO);
        }
        assert_eq!(tally.lines().count(), COMBINATIONS);
        assert!(tally.0.values().all(|done| done.rounds == 1));
    }
}
