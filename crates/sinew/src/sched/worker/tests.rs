//! What a worker without a thread would do, step by step: a test looks for it, and sees what it finds and where.
//!
//! They stand apart because shuttle's models include the other files. Its atomics work in a model only: there each of these is empty.

use std::collections::BTreeSet;
use std::time::Duration;

use super::bench::Sentry;
use super::moving::WATCH_NS;
use super::search::{STEAL_MAX, STRIDES};
use super::*;
use crate::base::atomic::AS_IN_MEMORY;
use crate::base::deque::{Deque, Stolen};
use crate::event::source::Io;
use crate::fiber::stack::{Class, DEFAULT_BYTES};
use crate::sched::groups::{Binding, Hooks};
use crate::sched::pool::Pool;
use crate::sched::seat::{CHILDREN_MAX, MOVING_MAX, steal_one};
use crate::sched::settings::{Settings, Spin};

fn of_size(workers: usize) -> Settings {
    Settings::plain(workers, Class::for_bytes(DEFAULT_BYTES).expect("the default"))
}

/// Groups whose workers are there, and have no threads.
fn groups(each: Vec<Settings>) -> Arc<Groups> {
    groups_by(Io::Auto, each)
}

fn groups_by(io: Io, each: Vec<Settings>) -> Arc<Groups> {
    let groups = Groups::new(each, io, Pool::new(1, 0), |_, _, _| Ok(()), Hooks::default(), Binding::default()).expect("memory");
    groups.all.iter().for_each(Group::begin);
    groups
}

fn worker(groups: &Arc<Groups>, index: usize) -> Worker {
    Worker::new(groups.clone(), 0, index)
}

/// Blocks of fibers that never begin, nor end.
fn fibers<const N: usize>() -> [*mut Control; N] {
    std::array::from_fn(|_| pool::take_shared())
}

fn fill<const N: usize>(deque: &Deque<Control, N>, fibers: &[*mut Control]) {
    assert!(fibers.iter().all(|&fiber| deque.push(fiber)));
}

/// What is in a deque, the oldest first; it is empty then.
fn drain<const N: usize>(deque: &Deque<Control, N>) -> Vec<*mut Control> {
    std::iter::from_fn(|| match deque.steal() {
        Stolen::Item(fiber) => Some(fiber),
        Stolen::Empty | Stolen::Retry => None,
    })
    .collect()
}

/// Claim: an idle worker looks into each other group once in as many passes as that one's ratio says, and at once where it was called to.
#[test]
fn each_group_is_looked_into_once_in_so_many_passes() {
    if !AS_IN_MEMORY {
        return;
    }
    let thief = Settings { victims: vec![(1, 16), (2, 5)], ..of_size(1) };
    let groups = groups(vec![thief, of_size(1), of_size(1)]);
    let worker = worker(&groups, 0);
    let tried = || [1, 2].map(|victim| groups.all[0].thefts[victim].0.load(Relaxed));
    for pass in 1..=160 {
        assert!(!worker.steal_abroad());
        assert_eq!(tried(), [pass / 16, pass / 5], "after {pass} passes");
    }
    groups.all[0].leave_errands(1 << 2);
    assert!(!worker.steal_abroad());
    assert_eq!(tried(), [10, 33]);
}

/// Claim: a thief leaves as much as it takes beside what it runs at once, up to a bound; it takes the oldest, and both keep their order.
#[test]
fn a_thief_takes_half_of_what_may_move() {
    if !AS_IN_MEMORY {
        return;
    }
    let groups = groups(vec![of_size(2)]);
    let (thief, victim) = (worker(&groups, 0), groups.all[0].seat(1));
    let fibers = fibers::<CHILDREN_MAX>();
    for count in [0, 1, 2, 3, 4, 7, 8, 50, 64, 65, 66, CHILDREN_MAX] {
        fill(&victim.moving, &fibers[..count]);
        let first = thief.next();
        let taken = count.min(1) + (count.saturating_sub(1) / 2).min(STEAL_MAX);
        assert_eq!(first.is_null(), count == 0, "of {count}");
        let mut got = drain(&thief.seat.moving);
        got.splice(0..0, (count != 0).then_some(first.cast_mut()));
        assert_eq!(got, fibers[..taken], "of {count}");
        assert_eq!(drain(&victim.moving), fibers[taken..count], "of {count}");
    }
}

/// Claim: a worker that steals before it has rested tells of what it took beside the one it runs: who lay down while that was in nobody's queue has not seen it (S1). Who has rested tells of it as it passes on.
#[test]
fn a_thief_tells_of_what_it_took_beside_the_one_it_runs() {
    if !AS_IN_MEMORY {
        return;
    }
    for (count, rested, told, passed_on) in [(1, false, false, false), (3, false, true, true), (3, true, false, true)] {
        let groups = groups(vec![of_size(3)]);
        let (thief, group) = (worker(&groups, 0), &groups.all[0]);
        thief.rested.set(rested);
        let fibers = fibers::<3>();
        fill(&group.seat(1).moving, &fibers[..count]);
        group.idle.enter_sleep(2);
        let is_woken = || !group.idle.sleeping().contains(2);
        assert_eq!(thief.next().cast_mut(), fibers[0]);
        assert_eq!(is_woken(), told, "of {count}, rested: {rested}");
        thief.pass_on();
        assert_eq!(is_woken(), passed_on, "of {count}, rested: {rested}");
        drain(&group.seat(1).moving);
        drain(&thief.seat.moving);
    }
}

/// Claim: one that may move and yields behind another, which a thief takes then, is told of as this worker runs something else first: who was called for the other has perhaps found nothing. Not where this worker takes the other itself.
#[test]
fn who_yields_behind_one_that_is_stolen_is_told_of() {
    if !AS_IN_MEMORY {
        return;
    }
    for is_stolen in [true, false] {
        let groups = groups(vec![of_size(2)]);
        let (worker, group) = (worker(&groups, 0), &groups.all[0]);
        let [before, yields, late] = fibers();
        fill(&worker.seat.moving, &[before]);
        worker.left.set(yields);
        worker.left_ready.set(true);
        worker.see_to_left();
        group.idle.enter_sleep(1);
        let next = if is_stolen {
            assert_eq!(steal_one(&worker.seat.moving), before);
            // It comes by mail, and has its turn before those that may move.
            worker.moving_next.set(true);
            // SAFETY: a block of our own, in no other list.
            unsafe { worker.ready.push(late) };
            late
        } else {
            before
        };
        assert_eq!(worker.next().cast_mut(), next);
        worker.announce_left();
        assert_eq!(!group.idle.sleeping().contains(1), is_stolen, "is stolen: {is_stolen}");
        assert_eq!(drain(&worker.seat.moving), [yields]);
    }
}

/// Claim: where a yielder finds no room and so queues up in the group, with nobody before it there, it is told of as this worker runs another: whether that is of its own deque does not matter, who was called for those does not find this one in their place.
#[test]
fn who_yields_and_finds_no_room_is_told_of() {
    if !AS_IN_MEMORY {
        return;
    }
    let groups = groups(vec![of_size(2)]);
    let (worker, group) = (worker(&groups, 0), &groups.all[0]);
    let before = fibers::<MOVING_MAX>();
    fill(&worker.seat.moving, &before);
    let [yields] = fibers();
    worker.left.set(yields);
    worker.left_ready.set(true);
    worker.see_to_left();
    assert_eq!(group.queued(), 1);
    group.idle.enter_sleep(1);
    assert_eq!(worker.next().cast_mut(), before[0]);
    worker.announce_left();
    assert!(!group.idle.sleeping().contains(1), "it lies beside a worker that sleeps");
    drain(&worker.seat.moving);
    assert!(!worker.next().is_null());
}

/// Claim: what a wake takes is learnt from wakes alone. A waker may come so late to note its time that the worker it called has got up by itself, and lain down again.
#[test]
fn a_sleep_that_nobody_ended_tells_of_no_wake() {
    if !AS_IN_MEMORY {
        return;
    }
    const LATE_NS: u64 = 1_000_000_000;
    let groups = groups(vec![of_size(2)]);
    let worker = worker(&groups, 0);
    let slot = &worker.seat.slot;
    let (begun_ns, cost_ns) = (clock::now_ns(), worker.wake_cost_ns.get());
    slot.lie_down();
    // The late note: a waker that has notified nobody now notes a wake.
    worker.seat.wake();
    slot.get_up();
    slot.lie_down();
    worker.learn_from_sleep(begun_ns, clock::now_ns() + LATE_NS);
    assert_eq!(worker.wake_cost_ns.get(), cost_ns);
    assert!(slot.notify());
    worker.learn_from_sleep(begun_ns, clock::now_ns() + LATE_NS);
    assert!(worker.wake_cost_ns.get() > cost_ns);
    slot.get_up();
}

/// Claim: a flush of what has run long ago wakes nobody, and counts no wake; one of what is left does.
#[test]
fn a_flush_wakes_for_what_is_left() {
    if !AS_IN_MEMORY {
        return;
    }
    let groups = groups(vec![of_size(2)]);
    let (worker, group) = (worker(&groups, 0), &groups.all[0]);
    // SAFETY: blocks of our own, which never begin.
    let adopt = |fiber: *mut Control| assert!(unsafe { worker.adopt(&*fiber, true) });
    let [taken, left] = fibers();
    group.idle.enter_sleep(1);
    adopt(taken);
    assert_eq!(worker.next().cast_mut(), taken);
    group.flush();
    assert!(group.idle.sleeping().contains(1), "it was woken for a fiber that runs");
    assert_eq!(group.unserved.load(Relaxed), 0);
    adopt(left);
    group.flush();
    assert!(!group.idle.sleeping().contains(1));
    drain(&worker.seat.children);
}

/// Claim: a quiet child that finds no room tells of those that it moves if these were flushed meanwhile: who was woken by that has perhaps seen them in nobody's queue (S1).
#[test]
fn a_quiet_child_moves_flushed_ones_aloud() {
    if !AS_IN_MEMORY {
        return;
    }
    let groups = groups(vec![of_size(2)]);
    let (worker, group) = (worker(&groups, 0), &groups.all[0]);
    // SAFETY: blocks of our own, which never begin.
    let adopt = |fiber: *mut Control| assert!(unsafe { worker.adopt(&*fiber, true) });
    fibers::<CHILDREN_MAX>().into_iter().for_each(adopt);
    group.flush();
    group.idle.enter_sleep(1);
    let [late] = fibers();
    adopt(late);
    assert_eq!((group.queued(), group.idle.sleeping().contains(1)), (CHILDREN_MAX / 2, false));
    drain(&worker.seat.children);
    (0..CHILDREN_MAX / 2).for_each(|_| assert!(!worker.next().is_null()));
    drain(&worker.seat.children);
}

/// Claim: a worker that is called in vain again and again, and so neither sleeps nor has anything to do, asks epoll from time to time all the same.
#[test]
fn a_worker_that_is_called_in_vain_asks_epoll() {
    if !AS_IN_MEMORY {
        return;
    }
    let groups = groups_by(Io::Epoll, vec![of_size(2)]);
    let worker = worker(&groups, 0);
    assert!(worker.with_source(|source| source.is_due()).expect("descriptors"), "it was never asked");
    worker.source_waits.set(1);
    worker.turn.set(7);
    worker.look_at_source();
    assert_eq!(worker.asked_turn.get(), 7);
}

/// Claim: a quiet child that finds no room wakes nobody if those before it were quiet too; else one is woken: who was woken for them has perhaps seen them in nobody's queue (S1).
#[test]
fn a_quiet_child_moves_loud_ones_aloud() {
    if !AS_IN_MEMORY {
        return;
    }
    for were_quiet in [true, false] {
        let groups = groups(vec![of_size(2)]);
        let (worker, group) = (worker(&groups, 0), &groups.all[0]);
        // SAFETY: blocks of our own, which never begin.
        let adopt = |fiber: *mut Control, quiet| assert!(unsafe { worker.adopt(&*fiber, quiet) });
        let [first] = fibers();
        adopt(first, were_quiet);
        fibers::<{ CHILDREN_MAX - 1 }>().into_iter().for_each(|fiber| adopt(fiber, true));
        group.idle.enter_sleep(1);
        let [late] = fibers();
        adopt(late, true);
        assert_eq!((group.queued(), group.idle.sleeping().contains(1)), (CHILDREN_MAX / 2, were_quiet));
        drain(&worker.seat.children);
        (0..CHILDREN_MAX / 2).for_each(|_| assert!(!worker.next().is_null()));
        drain(&worker.seat.children);
    }
}

/// Claim: other groups are robbed by turns: one that always has something does not hide another.
#[test]
fn a_thief_goes_to_other_groups_by_turns() {
    if !AS_IN_MEMORY {
        return;
    }
    let thief = Settings { victims: vec![(1, 1), (2, 1), (3, 1)], ..of_size(1) };
    let groups = groups(vec![thief, of_size(1), of_size(1), of_size(1)]);
    let worker = worker(&groups, 0);
    let fibers = fibers::<6>();
    fill(&groups.all[1].seat(0).children, &fibers[..4]);
    fill(&groups.all[3].seat(0).children, &fibers[4..]);
    for expected in [0, 4, 1, 5] {
        assert!(worker.steal_abroad());
        // Where it is kept goes by whether its block has been a fiber before.
        let got = [drain(&worker.seat.children), drain(&worker.seat.moving)].concat();
        assert_eq!(got, [fibers[expected]]);
    }
    drain(&groups.all[1].seat(0).children);
}

/// Claim: one that may move and finds no room at its worker queues up in the group, those that come after it do so behind it, though there is room by then, and once nobody waits there the worker's own place is used again.
#[test]
fn who_finds_no_room_is_not_overtaken() {
    if !AS_IN_MEMORY {
        return;
    }
    let groups = groups(vec![of_size(1)]);
    let worker = worker(&groups, 0);
    let own: Vec<_> = (0..MOVING_MAX).map(|_| pool::take_shared()).collect();
    let late = fibers::<4>();
    // SAFETY: these fibers are nobody else's, and have no stacks.
    let put = |fiber: *mut Control| unsafe { worker.put_moving(fiber) };
    own.iter().for_each(|&fiber| put(fiber));
    put(late[0]);
    assert_eq!(groups.all[0].queued(), 1);
    assert_eq!(worker.pop_moving(), own[0]);
    put(late[1]);
    put(late[2]);
    assert_eq!(groups.all[0].queued(), 3, "there is room, but others wait");
    assert_eq!(drain(&worker.seat.moving), own[1..]);
    let next: Vec<_> = (0..3).map(|_| worker.next().cast_mut()).collect();
    assert_eq!(next, late[..3]);
    put(late[3]);
    assert_eq!((groups.all[0].queued(), drain(&worker.seat.moving)), (0, vec![late[3]]));
}

/// Claim: of unstarted fibers a thief takes one, where they are to settle: neighbours would be on one worker for life. Where they may move it takes half.
#[test]
fn a_thief_takes_one_child_that_settles_and_half_of_those_that_do_not() {
    if !AS_IN_MEMORY {
        return;
    }
    for (migrates, taken) in [(false, 1), (true, 5)] {
        let groups = groups(vec![Settings { migrates, ..of_size(2) }]);
        let (thief, victim) = (worker(&groups, 0), groups.all[0].seat(1));
        let fibers = fibers::<10>();
        fill(&victim.children, &fibers);
        assert_eq!(thief.next().cast_mut(), fibers[0]);
        assert_eq!(drain(&thief.seat.children), fibers[1..taken], "migrates: {migrates}");
        assert_eq!(drain(&victim.children), fibers[taken..], "migrates: {migrates}");
    }
}

/// Claim: a search meets every other worker once, whatever the size of the group.
#[test]
fn a_search_for_a_victim_meets_each_once() {
    if !AS_IN_MEMORY {
        return;
    }
    for workers in 1..=64 {
        let groups = groups(vec![of_size(workers)]);
        for me in [0, workers / 2, workers - 1] {
            let (thief, others) = (worker(&groups, me), (0..workers).filter(|&other| other != me).collect::<Vec<_>>());
            for _ in 0..20 {
                let mut met: Vec<_> = thief.victims(workers).collect();
                met.sort_unstable();
                assert_eq!(met, others, "{workers} workers, by {me}");
            }
        }
    }
}

/// Claim: thieves that become idle at the same moment do not go the same way: neither do they begin with the same victim, nor go on by the same stride.
#[test]
fn thieves_look_for_victims_in_different_orders() {
    if !AS_IN_MEMORY {
        return;
    }
    const WORKERS: usize = 64;
    let groups = groups(vec![of_size(WORKERS)]);
    let orders: Vec<Vec<usize>> = (0..WORKERS).map(|me| worker(&groups, me).victims(WORKERS).collect()).collect();
    let firsts: BTreeSet<_> = orders.iter().map(|order| order[0]).collect();
    // By chance, and always the same: some 40 of 64 that each take one of 64.
    assert!(firsts.len() > WORKERS / 2, "{} first victims of {WORKERS} thieves", firsts.len());
    // Thieves skip themselves, so once in an order a step is two strides.
    let steps: BTreeSet<_> = orders.iter().map(|order| (order[2] + WORKERS - order[1]) % WORKERS).collect();
    assert!(STRIDES.iter().all(|stride| steps.contains(stride)), "{steps:?}");
    // One thief goes another way each time.
    let thief = worker(&groups, 0);
    let firsts: BTreeSet<_> = (0..WORKERS).filter_map(|_| thief.victims(WORKERS).next()).collect();
    assert!(firsts.len() > WORKERS / 2, "{} first victims in {WORKERS} searches", firsts.len());
}

/// Claim: what a worker woke last is the last that is taken from it: not by a search, and by a last pass only if it has not switched meanwhile.
#[test]
fn the_fiber_woken_last_is_left_to_its_worker_until_the_last_pass() {
    if !AS_IN_MEMORY {
        return;
    }
    let groups = groups(vec![of_size(2)]);
    let (thief, victim) = (worker(&groups, 0), groups.all[0].seat(1));
    let [woken_last, moving, child] = fibers();
    groups.mover_comes();
    victim.next.store(woken_last, Relaxed);
    fill(&victim.moving, &[moving]);
    fill(&victim.children, &[child]);
    assert_eq!(thief.next().cast_mut(), child);
    assert_eq!(thief.next().cast_mut(), moving);
    assert!(thief.next().is_null(), "a search takes what was woken last");
    // It is seen before the thief polls or sleeps. Its worker goes on meanwhile, and will come to it.
    let stuck = thief.stuck().expect("it waits there");
    add(&victim.counters.switches, 1);
    assert!(!thief.take_stuck(stuck), "taken from a worker that is not held");
    assert_eq!(victim.next.load(Relaxed), woken_last);
    // The same once more, and its worker has not moved.
    let stuck = thief.stuck().expect("it waits there");
    assert!(thief.take_stuck(stuck));
    assert_eq!((steal_one(&thief.seat.moving), victim.next.load(Relaxed)), (woken_last, ptr::null_mut()));
    assert!(thief.stuck().is_none());
}

/// Claim: an idle worker leaves what another woke last to that one for the time of a watch, however short its own polls are, and takes it then.
#[test]
fn a_short_poll_does_not_end_a_watch() {
    if !AS_IN_MEMORY {
        return;
    }
    let groups = groups(vec![Settings { spin: Spin::Fixed(Duration::from_micros(1)), ..of_size(2) }]);
    let (thief, victim) = (worker(&groups, 0), groups.all[0].seat(1));
    let [woken_last] = fibers();
    groups.mover_comes();
    let begun_ns = clock::now_ns();
    victim.next.store(woken_last, Relaxed);
    while !victim.next.load(Relaxed).is_null() {
        // It polls, then sleeps until the watch is over.
        thief.rest();
    }
    let waited_ns = clock::now_ns() - begun_ns;
    assert!(waited_ns >= WATCH_NS, "taken after {waited_ns} ns");
    assert_eq!(steal_one(&thief.seat.moving), woken_last);
}

/// Claim: an idle worker looks after all that has been woken last in its own group, and in those that it steals from and where nobody is idle, by turns. It leaves to others what they watch already.
#[test]
fn fibers_woken_last_are_watched_by_turns_also_abroad() {
    if !AS_IN_MEMORY {
        return;
    }
    let thief = Settings { victims: vec![(1, 16), (2, 16)], ..of_size(3) };
    let groups = groups(vec![thief, of_size(2), of_size(1), of_size(1)]);
    let worker = worker(&groups, 0);
    groups.mover_comes();
    assert!(worker.stuck().is_none() && worker.stuck_abroad().is_none());
    let fibers = fibers::<7>();
    groups.seats().zip(fibers).for_each(|(seat, fiber)| seat.next.store(fiber, Relaxed));
    let place = |suspect: Suspect| (suspect.place / WORKERS_MAX, suspect.place % WORKERS_MAX);
    let own = |count| (0..count).map(|_| worker.stuck().map(place));
    let abroad = |count| (0..count).map(|_| worker.stuck_abroad().map(place));
    assert!(own(3).eq([(0, 1), (0, 2), (0, 1)].map(Some)), "its own place, or not each once");
    assert!(abroad(4).eq([(1, 0), (1, 1), (2, 0), (1, 0)].map(Some)), "the group that it does not steal from, or not each once");
    // In group 1 somebody sleeps, and looks by himself.
    groups.all[1].idle.enter_sleep(0);
    assert!(abroad(2).eq([(2, 0); 2].map(Some)));
    // Another worker of its group watches whatever that may be; one of a third group watches group 2.
    groups.all[0].watchers.fetch_add(1, Relaxed);
    groups.all[2].watchers_abroad.fetch_add(1, Relaxed);
    assert!(worker.stuck().is_none() && worker.stuck_abroad().is_none());
    // It has gone, and so has the sleeper.
    groups.all[2].watchers_abroad.fetch_sub(1, Relaxed);
    assert!(!groups.all[1].idle.leave_sleep(0));
    let suspect = worker.stuck_abroad().expect("there are three");
    assert!(worker.take_stuck(suspect));
    assert_eq!(worker.group().thefts[suspect.place / WORKERS_MAX].1.load(Relaxed), 1);
    assert!(fibers.contains(&steal_one(&worker.seat.moving)));
    groups.seats().for_each(|seat| seat.next.store(ptr::null_mut(), Relaxed));
}

/// Claim: a busy worker, too, takes from one that is held what that woke last only when nothing else is there.
#[test]
fn the_fiber_woken_last_is_the_last_that_is_rescued() {
    if !AS_IN_MEMORY {
        return;
    }
    let groups = groups(vec![of_size(2)]);
    let (busy, held) = (worker(&groups, 0), groups.all[0].seat(1));
    let [woken_last, moving, child] = fibers();
    held.next.store(woken_last, Relaxed);
    fill(&held.moving, &[moving]);
    fill(&held.children, &[child]);
    assert!(busy.rescue().is_null(), "at its first look it cannot know that the other is held");
    let rescued = std::array::from_fn(|_| busy.rescue().cast_mut());
    assert_eq!(rescued, [moving, child, woken_last]);
    assert!(held.next.load(Relaxed).is_null());
}

/// Claim: held are those who have neither switched nor ended a fiber between two looks of the sentry, and it comes where too few are left, and only for something to do. (Fibers that end and are followed in place count as no switch: a
/// worker that ran short ones was taken for held.)
#[test]
fn the_sentry_knows_who_is_held_and_where_it_is_needed() {
    if !AS_IN_MEMORY {
        return;
    }
    let groups = groups(vec![of_size(3)]);
    let (sentry, duty) = (worker(&groups, 2), &groups.all[0].duty);
    assert!(duty.sit_out(2, 3, 2));
    let counters = [0, 1].map(|worker| &groups.all[0].seat(worker).counters);
    let mut known = Sentry::new();
    assert!(!sentry.is_needed(&mut known), "at its first look it cannot know");
    add(&counters[0].switches, 1);
    add(&counters[1].ended, 1);
    assert!(!sentry.is_needed(&mut known));
    assert!(duty.held().is_empty(), "both have gone on");
    assert!(!sentry.is_needed(&mut known), "there is nothing to do");
    assert_eq!(duty.held().bits(), 0b11);
    duty.come_back(1);
    assert_eq!(duty.held().bits(), 0b01);
    fill(&groups.all[0].seat(0).children, &fibers::<1>());
    assert!(sentry.is_needed(&mut known), "one is left on duty where three are to be");
    drain(&groups.all[0].seat(0).children);
}
