//! The storms: what fibers do to each other, and what must come out.
//!
//! Each is a plain function that ends when all it started has ended, detached fibers excepted. The same storms are run by fibers of the
//! round's runtime and by plain threads, which spawn into that runtime and into the default one by turns.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use sinew::chan::{bounded, never, unbounded};
use sinew::sync::{Mutex, RwLock, Semaphore};
use sinew::{Runtime, Scope, ScopedJoinHandle};

use super::failure::{Planned, SCOPE_PANIC, check, with_scope_panic};
use super::ledger::{LEDGER, Life, STACK_SIZES, Spawned, Target, Ticket, Wait};
use super::random::Random;

/// Longest sleep of a fiber.
const SLEEP_US_MAX: usize = 2_000;
/// Longest time-out that races with an unpark, and the longest that the waker dawdles.
const RACE_US_MAX: usize = 150;
/// Most fibers before a gate, and how seldom: enough for a hundred MiB of stacks, so that it is seen whether they go back.
const GATE_MAX: usize = 20_000;
const GATE_MAX_ONCE_IN: usize = 60;
/// Most letters of a ring. Each may wait for two threads to be scheduled: on a loaded machine that is a millisecond.
const LETTERS_MAX: usize = 600;

pub(super) type Storm = fn(&Stage<'_>, &mut Random);

pub(super) const STORMS: [Storm; 14] =
    [ring, crowd, gate, races, naps, panics, tree, scopes, strays, futures, cancels, deadlines, locks, mail];

/// Runs `count` of `storms`, one after the other.
pub(super) fn rage(stage: &Stage<'_>, random: &mut Random, storms: &[Storm], count: usize) {
    for _ in 0..count {
        random.pick(storms)(stage, random);
    }
}

/// Who acts, and where he spawns.
pub(super) struct Stage<'a> {
    pub(super) me: &'a Life,
    /// The round's runtime, for plain threads.
    pub(super) runtime: Option<&'a Runtime>,
}

impl Stage<'_> {
    /// Spawns a fiber: in the current runtime with any stack size, or, from a plain thread, in the round's.
    pub(super) fn spawn<F, T>(&self, what: &'static str, random: &mut Random, f: F) -> Spawned<T>
    where
        F: FnOnce(&Stage<'_>, &mut Random) -> T + Send + 'static,
        T: Send + 'static,
    {
        if let Some(runtime) = self.runtime.filter(|_| random.once_in(2)) {
            let (f, record) = prepare(what, 0, random, f);
            return Spawned { handle: runtime.spawn(f), record };
        }
        let size = if random.once_in(8) { random.between(0, STACK_SIZES.len() - 1) } else { 0 };
        let mut builder = sinew::Builder::new();
        if let Some(bytes) = STACK_SIZES[size] {
            builder = builder.stack_size(bytes);
        }
        if random.once_in(16) {
            builder = builder.name(what);
        }
        let (f, record) = prepare(what, size, random, f);
        match builder.spawn(f) {
            Ok(handle) => Spawned { handle, record },
            Err(error) => super::failure::fail(format_args!("a fiber could not be spawned: {error}")),
        }
    }

    /// Spawns `count` fibers at once in the current runtime, the default one on a plain thread.
    fn spawn_batch<F, T>(&self, what: &'static str, count: usize, random: &mut Random, f: F) -> Vec<Spawned<T>>
    where
        F: FnOnce(&Stage<'_>, &mut Random) -> T + Clone + Send + 'static,
        T: Send + 'static,
    {
        let (closures, records): (Vec<_>, Vec<_>) = (0..count).map(|_| prepare(what, 0, random, f.clone())).unzip();
        let handles = sinew::spawn_batch(closures);
        check!(handles.len() == count, "spawn_batch of {count} gave {} handles", handles.len());
        handles.into_iter().zip(records).map(|(handle, record)| Spawned { handle, record }).collect()
    }

    /// Joins all, in random order, and returns what they gave.
    pub(super) fn join_all<T>(&self, mut fibers: Vec<Spawned<T>>, random: &mut Random) -> Vec<T> {
        random.shuffle(&mut fibers);
        fibers.into_iter().map(|fiber| self.join(fiber)).collect()
    }

    pub(super) fn join<T>(&self, fiber: Spawned<T>) -> T {
        let record = fiber.record.clone();
        match self.me.join(fiber) {
            Ok(value) => value,
            Err(_) => super::failure::fail(format_args!("{record} panicked, and was not to")),
        }
    }

    /// Yields, sleeps or goes on.
    pub(super) fn dawdle(&self, random: &mut Random) {
        match random.between(0, 15) {
            0..=5 => self.me.yield_now(),
            6 => self.me.sleep(Duration::from_micros(random.between(0, 100) as u64)),
            _ => {}
        }
    }
}

/// A fiber's closure, entered in the ledger.
pub(super) fn prepare<F, T>(
    what: &'static str,
    size: usize,
    random: &mut Random,
    f: F,
) -> (impl FnOnce() -> T + Send + use<F, T>, Arc<super::ledger::Record>)
where
    F: FnOnce(&Stage<'_>, &mut Random) -> T + Send,
{
    let (ticket, record) = Ticket::new(what, size);
    let mut random = random.fork();
    let closure = move || {
        let me = ticket.begin();
        let value = f(&Stage { me: &me, runtime: None }, &mut random);
        me.finish();
        value
    };
    (closure, record)
}

/// Messages that go round: each member passes the number on, and nobody moves unless the wake of the one before arrives.
fn ring(stage: &Stage<'_>, random: &mut Random) {
    struct Ring {
        targets: OnceLock<Vec<Target>>,
        letters: Vec<AtomicU64>,
    }

    /// Takes part for `laps`; `first` wakes were sent before the ring's.
    fn go_round(me: &Life, ring: &Ring, place: usize, laps: u64, first: u64) {
        let targets = ring.targets.get().expect("the targets are known before the first letter");
        let (size, next) = (targets.len(), (place + 1) % targets.len());
        for lap in 0..laps {
            me.await_sent(first + lap + 1);
            let (letter, due) = (ring.letters[place].load(Acquire), lap * size as u64 + place as u64);
            check!(letter == due, "ring: member {place} of {size} has letter {letter} instead of {due}");
            let is_last = lap + 1 == laps && next == 0;
            if !is_last {
                ring.letters[next].store(letter + 1, Release);
                targets[next].wake();
            }
        }
    }

    let size = random.between(2, 24);
    let laps = random.between(1, LETTERS_MAX / size) as u64;
    let ring = Arc::new(Ring { targets: OnceLock::new(), letters: (0..size).map(|_| AtomicU64::new(0)).collect() });
    let mut members = Vec::new();
    for place in 1..size {
        let ring = ring.clone();
        members.push(stage.spawn("ring", random, move |stage, _| {
            // The first letter carries the targets along.
            stage.me.await_sent(1);
            go_round(stage.me, &ring, place, laps, 0);
        }));
    }
    let targets = std::iter::once(stage.me.target()).chain(members.iter().map(Spawned::target)).collect();
    let _ = ring.targets.set(targets);
    let first = stage.me.sent();
    stage.me.target().wake();
    go_round(stage.me, &ring, 0, laps, first);
    stage.join_all(members, random);
}

/// Many are woken by many: each has to get every wake that was sent to it.
fn crowd(stage: &Stage<'_>, random: &mut Random) {
    let (sleepers, wakers, each) = (random.between(1, 60), random.between(1, 12), random.between(1, 12));
    let due = (wakers * each) as u64;
    let crowd: Vec<_> = (0..sleepers)
        .map(|_| {
            stage.spawn("crowd", random, move |stage, random| {
                let mut seen = 0;
                while seen < due {
                    stage.me.await_sent(seen + 1);
                    let sent = stage.me.sent();
                    check!(sent > seen && sent <= due, "crowd: {sent} wakes of {due} sent, {seen} of them seen before");
                    seen = sent;
                    stage.dawdle(random);
                }
            })
        })
        .collect();
    let targets: Arc<[Target]> = crowd.iter().map(Spawned::target).collect();
    let send = move |targets: &[Target], stage: &Stage<'_>, random: &mut Random| {
        let mut order: Vec<usize> = (0..targets.len()).flat_map(|i| std::iter::repeat_n(i, each)).collect();
        random.shuffle(&mut order);
        for i in order {
            targets[i].wake();
            stage.dawdle(random);
        }
    };
    let others: Vec<_> = (1..wakers)
        .map(|_| {
            let targets = targets.clone();
            stage.spawn("crowd waker", random, move |stage, random| send(&targets, stage, random))
        })
        .collect();
    send(&targets, stage, random);
    stage.join_all(others, random);
    stage.join_all(crowd, random);
}

/// A batch waits before a gate and is let in, all at once; nobody is left outside.
fn gate(stage: &Stage<'_>, random: &mut Random) {
    let count = match random.between(1, GATE_MAX_ONCE_IN) {
        1 => GATE_MAX,
        2..=10 => random.between(1_000, 4_000),
        _ => random.between(1, 300),
    };
    let wait_inside = move |stage: &Stage<'_>, random: &mut Random| {
        stage.me.await_sent(1);
        stage.dawdle(random);
        stage.me.serial()
    };
    let mut waiting = stage.spawn_batch("gate", count, random, wait_inside);
    random.shuffle(&mut waiting);
    let targets: Vec<_> = waiting.iter().map(Spawned::target).collect();
    let helpers = random.between(0, 2);
    let share = count / (helpers + 1);
    let mut parts = targets.chunks(share.max(1));
    let own = parts.next().unwrap_or_default();
    let helpers: Vec<_> = parts
        .map(|part| {
            let part = part.to_vec();
            stage.spawn("gate helper", random, move |_, _| part.iter().for_each(Target::wake))
        })
        .collect();
    own.iter().for_each(Target::wake);
    // A third of the handles are dropped early: their fibers end all the same.
    let joined = waiting.split_off(count / 3);
    drop(waiting);
    let mut serials = stage.join_all(joined, random);
    serials.sort_unstable();
    serials.dedup();
    check!(serials.len() == count - count / 3, "gate: {} different outcomes of {}", serials.len(), count - count / 3);
    stage.join_all(helpers, random);
}

/// `park_timeout` against an unpark at the same moment: whichever wins, the wake must not be lost.
pub(super) fn races(stage: &Stage<'_>, random: &mut Random) {
    let (pairs, turns) = (random.between(1, 12), random.between(1, 20) as u64);
    let sleepers: Vec<_> = (0..pairs)
        .map(|_| {
            stage.spawn("race", random, move |stage, random| {
                for turn in 1..=turns {
                    let timeout = Duration::from_micros(random.between(0, RACE_US_MAX) as u64);
                    stage.me.park_timeout(timeout);
                    // Without a time-out now: a wake that the time-out swallowed would never come.
                    stage.me.await_sent(turn);
                }
            })
        })
        .collect();
    let wakers: Vec<_> = sleepers
        .iter()
        .map(|sleeper| {
            let target = sleeper.target();
            stage.spawn("race waker", random, move |stage, random| {
                for _ in 0..turns {
                    let moment = Instant::now() + Duration::from_micros(random.between(0, RACE_US_MAX) as u64);
                    match random.between(0, 2) {
                        0 => stage.me.sleep(moment.saturating_duration_since(Instant::now())),
                        1 => spin_until(moment),
                        _ => stage.me.yield_now(),
                    }
                    target.wake();
                }
            })
        })
        .collect();
    stage.join_all(wakers, random);
    stage.join_all(sleepers, random);
}

/// Keeps the worker busy.
pub(super) fn spin_until(moment: Instant) {
    while Instant::now() < moment {
        std::hint::spin_loop();
    }
}

/// Sleeps of many lengths, none too short.
pub(super) fn naps(stage: &Stage<'_>, random: &mut Random) {
    let (count, each) = (random.between(1, 100), random.between(1, 6));
    let nappers: Vec<_> = (0..count)
        .map(|_| {
            stage.spawn("nap", random, move |stage, random| {
                for _ in 0..each {
                    let duration = Duration::from_micros(random.between(0, SLEEP_US_MAX) as u64);
                    if random.once_in(2) {
                        stage.me.sleep(duration);
                    } else {
                        let end = Instant::now() + duration;
                        stage.me.away(Wait::Sleep, || sinew::sleep_until(end));
                        check!(Instant::now() >= end, "sleep_until came back too early");
                    }
                }
            })
        })
        .collect();
    stage.join_all(nappers, random);
}

/// Panics arrive where they are joined, with their payload, and nowhere else.
///
/// Fibers that are to panic are joined: the library tells of each panic that nobody can join, and who reads that here takes it for a failure.
fn panics(stage: &Stage<'_>, random: &mut Random) {
    let mut fibers = Vec::new();
    for number in 0..random.between(1, 60) as u64 {
        let is_planned = random.once_in(2);
        let fiber = stage.spawn("panic", random, move |stage, random| {
            stage.dawdle(random);
            if is_planned {
                panic_any(Planned(number));
            }
            number
        });
        fibers.push((number, is_planned, fiber));
    }
    random.shuffle(&mut fibers);
    for (number, is_planned, fiber) in fibers {
        if !is_planned && random.once_in(4) {
            drop(fiber);
            continue;
        }
        match stage.me.join(fiber) {
            Ok(value) => check!(!is_planned && value == number, "fiber {number} gave {value}, planned to panic: {is_planned}"),
            Err(payload) => {
                let found = payload.downcast_ref::<Planned>().map(|planned| planned.0);
                check!(is_planned && found == Some(number), "fiber {number} panicked with {found:?}, planned: {is_planned}");
            }
        }
    }
}

/// A tree of fibers, each joining its children in random order.
fn tree(stage: &Stage<'_>, random: &mut Random) {
    fn grow(stage: &Stage<'_>, random: &mut Random, depth: usize, branches: usize) -> u64 {
        if depth == 0 {
            stage.dawdle(random);
            return 1;
        }
        let mut children = Vec::new();
        for _ in 0..branches {
            children.push(stage.spawn("tree", random, move |stage, random| grow(stage, random, depth - 1, branches)));
            stage.dawdle(random);
        }
        stage.join_all(children, random).into_iter().sum::<u64>() + 1
    }

    let (depth, branches) = random.pick(&[(1, 64), (2, 8), (3, 6), (5, 3), (8, 2), (40, 1)]);
    let count = grow(stage, random, depth, branches);
    let due: u64 = (0..=depth as u32).map(|level| (branches as u64).pow(level)).sum();
    check!(count == due, "a tree of depth {depth} with {branches} branches has {count} fibers instead of {due}");
}

/// Scoped fibers write into what they borrow, in scopes inside scopes; the scope ends when all have.
fn scopes(stage: &Stage<'_>, random: &mut Random) {
    let depth = random.between(1, 3);
    let mut cells = vec![0u32; 6usize.pow(depth as u32)];
    fill(stage, random, &mut cells);
    check!(cells.iter().all(|&n| n == 1), "a scope ended before its fibers had written: {cells:?}");
    if random.once_in(2) {
        let joins = random.pick(&[Joins::All, Joins::None]);
        scope_with_panics(stage, random, joins);
    }
}

/// Adds one to each cell, by a fiber for each sixth, for each sixth of these, and so on.
fn fill(stage: &Stage<'_>, random: &mut Random, cells: &mut [u32]) {
    if let [cell] = cells {
        stage.dawdle(random);
        *cell += 1;
        return;
    }
    let part = cells.len() / 6;
    let mut owner = *b"borrowed";
    sinew::scope(|s| {
        let word = &owner;
        let mut handles = Vec::new();
        for part in cells.chunks_mut(part) {
            let fiber = spawn_scoped(s, random, move |stage, random| {
                fill(stage, random, part);
                check!(word == b"borrowed", "a fiber of a scope reads {word:?} where 'borrowed' was");
                part.len()
            });
            if random.once_in(2) {
                handles.push(fiber);
            }
        }
        random.shuffle(&mut handles);
        for handle in handles {
            let count = stage.me.away(Wait::Join, || handle.join());
            check!(count.is_ok_and(|n| n == part), "a scoped fiber gave another value");
        }
        stage.me.leave(Wait::Scope);
    });
    stage.me.back();
    owner.fill(0);
    std::hint::black_box(&owner);
}

fn spawn_scoped<'scope, F, T>(s: &'scope Scope<'scope, '_>, random: &mut Random, f: F) -> ScopedJoinHandle<'scope, T>
where
    F: FnOnce(&Stage<'_>, &mut Random) -> T + Send + 'scope,
    T: Send + 'scope,
{
    let (closure, _) = prepare("scope", 0, random, f);
    s.spawn(closure)
}

/// Whether the panics of a scope are joined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Joins {
    All,
    None,
}

/// A scope whose fibers panic ends with a panic of its own, after all of them, unless each panic was taken by a join.
fn scope_with_panics(stage: &Stage<'_>, random: &mut Random, joins: Joins) {
    let ended = AtomicU64::new(0);
    let count = random.between(1, 12);
    let outcome = with_scope_panic(|| {
        catch_unwind(AssertUnwindSafe(|| {
            sinew::scope(|s| {
                let mut handles = Vec::new();
                for number in 0..count as u64 {
                    let ended = &ended;
                    handles.push(spawn_scoped(s, random, move |stage, random| {
                        stage.dawdle(random);
                        ended.fetch_add(1, Release);
                        panic_any(Planned(number));
                    }));
                }
                for (number, handle) in handles.into_iter().enumerate().filter(|_| joins == Joins::All) {
                    let outcome: std::thread::Result<()> = stage.me.away(Wait::Join, || handle.join());
                    let found = outcome.err().and_then(|payload| payload.downcast_ref::<Planned>().map(|planned| planned.0));
                    check!(found == Some(number as u64), "a scoped fiber's panic {number} came as {found:?}");
                }
                stage.me.leave(Wait::Scope);
            });
        }))
    });
    stage.me.back();
    let ended = ended.load(Acquire);
    check!(ended == count as u64, "a scope ended with {ended} of its {count} fibers");
    let text = outcome.err().map(|payload| payload.downcast_ref::<&str>().copied().unwrap_or("(no text)"));
    let due = if joins == Joins::All { None } else { Some(SCOPE_PANIC) };
    check!(text == due, "a scope of panics ended with {text:?} instead of {due:?}");
}

/// Trees of scopes whose leaves wait until they are cancelled, by a cancel of the root: it reaches every leaf, whenever it comes.
fn cancels(stage: &Stage<'_>, random: &mut Random) {
    fn grow(stage: &Stage<'_>, random: &mut Random, depth: usize, leaves: &AtomicU64) {
        if depth == 0 {
            while !sinew::cancelled() {
                let sleeps = random.once_in(2);
                stage.me.away(Wait::Park, || if sleeps { sinew::sleep(Duration::from_secs(3600)) } else { sinew::park() });
            }
            leaves.fetch_add(1, Release);
            return;
        }
        sinew::scope(|s| {
            for _ in 0..3 {
                drop(spawn_scoped(s, random, move |stage, random| grow(stage, random, depth - 1, leaves)));
            }
            stage.me.leave(Wait::Scope);
        });
        stage.me.back();
    }

    let trees: Vec<_> = (0..random.between(1, 6))
        .map(|_| {
            let depth = random.between(0, 3);
            let tree = stage.spawn("cancelled tree", random, move |stage, random| {
                let leaves = AtomicU64::new(0);
                grow(stage, random, depth, &leaves);
                check!(leaves.load(Acquire) == 3u64.pow(depth as u32), "a cancel did not reach every leaf of a tree of scopes");
            });
            if random.once_in(2) {
                tree.handle.cancel();
            }
            tree
        })
        .collect();
    stage.dawdle(random);
    trees.iter().for_each(|tree| tree.handle.cancel());
    stage.join_all(trees, random);
}

/// Time-outs around sleeps, in scopes too: neither ends early, and each says truly which of the two it was.
pub(super) fn deadlines(stage: &Stage<'_>, random: &mut Random) {
    let (count, each) = (random.between(1, 60), random.between(1, 6));
    let fibers: Vec<_> = (0..count)
        .map(|_| {
            stage.spawn("deadline", random, move |stage, random| {
                for _ in 0..each {
                    let micros = |random: &mut Random| Duration::from_micros(random.between(1, SLEEP_US_MAX / 4) as u64);
                    let (limit, nap) = (micros(random), micros(random));
                    let begun = Instant::now();
                    let outcome = stage.me.away(Wait::Sleep, || sinew::timeout(limit, || sinew::sleep(nap)));
                    let took = begun.elapsed();
                    let due = if outcome.is_ok() { nap } else { limit };
                    check!(took >= due, "a sleep of {nap:?} in a time-out of {limit:?} ended after {took:?}: {outcome:?}");
                    let shielded = stage.me.away(Wait::Sleep, || sinew::timeout(limit, || sinew::shield(|| sinew::sleep(nap))));
                    check!(shielded.is_ok(), "a shielded sleep was cut short");
                }
            })
        })
        .collect();
    stage.join_all(fibers, random);
}

/// Locks and permits, with and without patience: two halves of a value stay equal, and all that was added is there in the end.
fn locks(stage: &Stage<'_>, random: &mut Random) {
    #[derive(Default)]
    struct Objects {
        sum: Mutex<u64>,
        halves: RwLock<(u64, u64)>,
        inside: AtomicU64,
    }
    const PERMITS: usize = 2;

    let (count, each) = (random.between(2, 60), random.between(1, 60));
    let objects = Arc::new((Objects::default(), Semaphore::new(PERMITS)));
    let fibers: Vec<_> = (0..count)
        .map(|_| {
            let objects = objects.clone();
            stage.spawn("locker", random, move |stage, random| {
                let (Objects { sum, halves, inside }, permits) = &*objects;
                let mut added = (0, 0);
                for _ in 0..each {
                    let patience = Duration::from_micros(random.between(0, RACE_US_MAX) as u64);
                    match random.between(0, 5) {
                        0 => {
                            let mut held = stage.me.away(Wait::Lock, || sum.lock());
                            *held += 1;
                            added.0 += 1;
                            stage.dawdle(random);
                        }
                        1 => {
                            if let Some(mut held) = stage.me.away(Wait::Lock, || sum.lock_timeout(patience)) {
                                *held += 1;
                                added.0 += 1;
                            }
                        }
                        2 => {
                            let mut held = stage.me.away(Wait::Lock, || halves.write());
                            held.0 += 1;
                            stage.dawdle(random);
                            held.1 += 1;
                            added.1 += 1;
                        }
                        3 => {
                            if let Some(held) = stage.me.away(Wait::Lock, || halves.read_timeout(patience)) {
                                stage.dawdle(random);
                                check!(held.0 == held.1, "a reader saw {} and {} while nobody may write", held.0, held.1);
                            }
                        }
                        4 => {
                            let held = stage.me.away(Wait::Lock, || halves.read());
                            check!(held.0 == held.1, "a reader saw {} and {} while nobody may write", held.0, held.1);
                        }
                        _ => {
                            let _permit = stage.me.away(Wait::Lock, || permits.acquire());
                            let others = inside.fetch_add(1, AcqRel);
                            check!(others < PERMITS as u64, "{} are inside with {PERMITS} permits", others + 1);
                            stage.dawdle(random);
                            inside.fetch_sub(1, AcqRel);
                        }
                    }
                }
                added
            })
        })
        .collect();
    let added = stage.join_all(fibers, random).into_iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let (Objects { sum, halves, .. }, permits) = &*objects;
    let there = (*sum.lock(), *halves.read());
    check!(there == (added.0, (added.1, added.1)), "{there:?} is there, {added:?} was added");
    check!(permits.available() == PERMITS, "{} of {PERMITS} permits came back", permits.available());
}

/// Letters by channels of all sizes, sent and received one way and another: each arrives once, in the order of its sender where one receives.
fn mail(stage: &Stage<'_>, random: &mut Random) {
    let (senders, receivers) = (random.between(1, 12), random.between(1, 6));
    let each = random.between(1, LETTERS_MAX / senders) as u64;
    let room = [Some(0), Some(1), Some(random.between(2, 64)), None];
    let make = |random: &mut Random| match random.pick(&room) {
        Some(places) => bounded::<(usize, u64)>(places),
        None => unbounded(),
    };
    let lines = [make(random), make(random)];
    let posts: Vec<_> = (0..senders)
        .map(|name| {
            let lines = lines.each_ref().map(|(sender, _)| sender.clone());
            stage.spawn("sender", random, move |stage, random| {
                for number in 0..each {
                    let mut letter = (name, number);
                    // One line per sender, so that its letters stay in order.
                    let line = &lines[name % lines.len()];
                    loop {
                        let patience = Duration::from_micros(random.between(1, RACE_US_MAX) as u64);
                        letter = match stage.me.away(Wait::Mail, || line.send_timeout(letter, patience)) {
                            Ok(()) => break,
                            Err(refused) => {
                                check!(refused.is_timeout(), "a letter came back although somebody receives: {refused:?}");
                                refused.into_inner()
                            }
                        };
                    }
                    stage.dawdle(random);
                }
            })
        })
        .collect();
    let boxes: Vec<_> = (0..receivers)
        .map(|_| {
            let [(_, one), (_, other)] = lines.each_ref().map(|(_, receiver)| ((), receiver.clone()));
            stage.spawn("receiver", random, move |stage, random| {
                let mut letters: Vec<(usize, u64)> = Vec::new();
                let mut open = [true, true];
                while open != [false, false] {
                    let patience = Duration::from_micros(random.between(1, RACE_US_MAX) as u64);
                    let got = stage.me.away(Wait::Mail, || {
                        let (never, other_never) = (never(), never());
                        let (one, other) = (if open[0] { &one } else { &never }, if open[1] { &other } else { &other_never });
                        sinew::select! {
                            recv(one) -> letter => Some((0, letter)),
                            recv(other) -> letter => Some((1, letter)),
                            default(patience) => None,
                        }
                    });
                    match got {
                        None => {}
                        Some((_, Ok(letter))) => letters.push(letter),
                        Some((line, Err(_))) => open[line] = false,
                    }
                    stage.dawdle(random);
                }
                letters
            })
        })
        .collect();
    drop(lines);
    stage.join_all(posts, random);
    let mut letters = stage.join_all(boxes, random);
    for line in &letters {
        let mut last = vec![None; senders];
        for &(name, number) in line {
            check!(last[name].is_none_or(|last| last < number), "letter {number} of sender {name} came after {:?}", last[name]);
            last[name] = Some(number);
        }
    }
    let mut all: Vec<(usize, u64)> = letters.drain(..).flatten().collect();
    all.sort_unstable();
    let sent: Vec<(usize, u64)> = (0..senders).flat_map(|name| (0..each).map(move |number| (name, number))).collect();
    check!(all == sent, "{} letters were sent, {} arrived, or not the same", sent.len(), all.len());
}

/// Fibers that nobody joins, and that spawn more of their kind.
fn strays(stage: &Stage<'_>, random: &mut Random) {
    for _ in 0..random.between(1, 40) {
        let generations = random.between(0, 3);
        stray(stage, random, generations);
        stage.dawdle(random);
    }
}

fn stray(stage: &Stage<'_>, random: &mut Random, generations: usize) {
    let fiber = stage.spawn("stray", random, move |stage, random| {
        if generations > 0 {
            stray(stage, random, generations - 1);
        }
        stage.dawdle(random);
    });
    if random.once_in(2) {
        stage.dawdle(random);
    }
    drop(fiber);
}

/// Handles as futures: awaited by parking, or polled once and dropped, or polled and then joined.
fn futures(stage: &Stage<'_>, random: &mut Random) {
    struct Unpark(Target);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.wake();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(stage.me.target())));
    let mut context = Context::from_waker(&waker);
    for number in 0..random.between(1, 60) as u64 {
        let mut fiber = stage.spawn("future", random, move |stage, random| {
            stage.dawdle(random);
            number
        });
        if random.once_in(2) {
            stage.dawdle(random);
        }
        match random.between(0, 3) {
            0 => drop(Pin::new(&mut fiber.handle).poll(&mut context)),
            1 => {
                // A wake that is still on its way when the handle turns to `join` does no harm.
                let is_done = Pin::new(&mut fiber.handle).poll(&mut context).is_ready();
                if !is_done {
                    check!(stage.join(fiber) == number, "a fiber that was polled and joined gave another value");
                }
            }
            _ => {
                let value = loop {
                    match Pin::new(&mut fiber.handle).poll(&mut context) {
                        Poll::Ready(outcome) => break outcome.ok(),
                        Poll::Pending => stage.me.park(),
                    }
                };
                check!(value == Some(number), "an awaited fiber gave {value:?} instead of {number}");
            }
        }
    }
}

/// Waits until a shutdown cuts it short.
pub(super) fn park_for_ever(stage: &Stage<'_>) {
    stage.me.away(Wait::Park, sinew::park);
}

/// Fibers of a runtime that is dropped while they run, or before. Some `wait_for_ever`.
pub(super) fn last_ones(runtime: Runtime, random: &mut Random, wait_for_ever: fn(&Stage<'_>)) {
    LEDGER.closing.store(true, Release);
    let mut fibers = Vec::new();
    for number in 0..random.between(0, 200) {
        let (closure, record) = prepare("last", 0, random, move |stage: &Stage<'_>, random: &mut Random| {
            stage.dawdle(random);
            if random.once_in(4) {
                wait_for_ever(stage);
            }
            stage.me.sleep(Duration::from_micros(random.between(0, SLEEP_US_MAX) as u64));
            number
        });
        fibers.push((number, Spawned { handle: runtime.spawn(closure), record }));
    }
    drop(runtime);
    let me = Life::of_thread("last");
    for (number, fiber) in fibers {
        match me.join(fiber) {
            Ok(value) => check!(value == number, "fiber {number} gave {value}"),
            Err(payload) => check!(payload.is::<sinew::NeverRan>(), "a fiber of a dropped runtime has another payload than NeverRan"),
        }
    }
    me.finish();
    drop(me);
    LEDGER.closing.store(false, Release);
}
