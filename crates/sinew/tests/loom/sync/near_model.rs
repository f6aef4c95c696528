//! A mutex whose woken one is of the caller's own worker: it comes when the caller lets it, and not before; so the caller queues behind it, however late it is.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use loom::thread::JoinHandle;

use super::model::{FAIR, Guarded, HASTY, IMPATIENT, PATIENT, Visit};
use super::turns::{STALE_NS, STAY_NS, TURN_NS};
use crate::base::atomic::set_mutant;
use crate::os::clock;
use crate::rt::wait::yield_now;
use crate::rt::workers;
use crate::{check, check_notices};

/// Who else wants the lock.
#[derive(Clone, Copy)]
enum Beside {
    Nobody,
    Thread(&'static [Visit]),
    /// A fiber of another worker.
    Fiber(&'static [Visit]),
}

impl Beside {
    fn start(self, guarded: &Arc<Guarded>) -> Option<JoinHandle<usize>> {
        let guarded = guarded.clone();
        let visit = move |visits: &[Visit]| visits.iter().map(|visit| guarded.add(*visit)).sum::<usize>();
        match self {
            Beside::Nobody => None,
            Beside::Thread(visits) => Some(loom::thread::spawn(move || visit(visits))),
            Beside::Fiber(visits) => Some(workers::spawn(1, move || visit(visits))),
        }
    }
}

/// Longer than one that was woken is waited for elsewhere, also if it is thought to be of another worker.
const LONG_NS: u64 = 2 * STALE_NS;

/// Longer than one that was woken is overtaken, and so short that nobody gives it up.
const SHORT_NS: u64 = 4 * TURN_NS;

/// What a fiber does that has told another of its worker to try: it computes under the lock, for so long each time, and never waits for anything else.
#[derive(Clone, Copy)]
struct Computes {
    visits: &'static [Visit],
    section_ns: u64,
    /// What the other does, and whether it has had its turn before that is done.
    waits: Visit,
    lets_it_come: bool,
}

fn computes_under_it(computes: Computes, beside: Beside) -> impl Fn() + Sync + Send + 'static {
    move || {
        clock::set_ns(0);
        let (guarded, had) = (Guarded::new(), Arc::new(AtomicBool::new(false)));
        let busy = guarded.clone();
        let (got, others) = workers::spawn(0, move || {
            busy.lock.take();
            let (waits, says) = (busy.clone(), had.clone());
            let waiter = workers::spawn(0, move || {
                let got = waits.add(computes.waits);
                says.store(true, SeqCst);
                got
            });
            // It queues.
            yield_now();
            let beside = beside.start(&busy);
            busy.lock.release();
            let section = || clock::advance_ns(computes.section_ns);
            let got: usize = computes.visits.iter().map(|visit| busy.visit(*visit, section)).sum();
            assert!(had.load(SeqCst) || !computes.lets_it_come, "it is kept from the lock");
            (got, [Some(waiter), beside])
        })
        .join()
        .unwrap();
        let others: usize = others.into_iter().flatten().map(|part| part.join().unwrap()).sum();
        guarded.check_end(got + others);
    }
}

/// The first section overtakes the woken one, before the second the time is looked at.
const LONG: Computes = Computes { visits: &[PATIENT, PATIENT], section_ns: LONG_NS, waits: PATIENT, lets_it_come: true };

#[test]
fn who_computes_under_a_mutex_queues_behind_a_woken_one_of_its_worker() {
    // Who only tries lets nobody run, but forgets nobody either.
    let alone: [&[Visit]; 4] = [&[PATIENT; 2], &[IMPATIENT; 2], &[FAIR; 2], &[HASTY, HASTY, PATIENT]];
    for visits in alone {
        check(3, computes_under_it(Computes { visits, ..LONG }, Beside::Nobody));
        check_notices("nobody is at home", 3, computes_under_it(Computes { visits, ..LONG }, Beside::Nobody));
    }
    // Others count with it, so that the time may be looked at one section later.
    let short = Computes { visits: &[PATIENT; 3], section_ns: SHORT_NS, ..LONG };
    check(1, computes_under_it(short, Beside::Fiber(&[HASTY])));
    check(1, computes_under_it(short, Beside::Thread(&[PATIENT])));
}

/// Others may give it up, whose worker does not keep it from coming. Who does yields then, and it comes: one section later if it found the lock taken and was woken again.
#[test]
fn one_of_its_worker_that_others_give_up_comes_all_the_same() {
    let long = Computes { visits: &[PATIENT; 4], ..LONG };
    for beside in [Beside::Thread(&[PATIENT]), Beside::Thread(&[HASTY]), Beside::Fiber(&[PATIENT]), Beside::Fiber(&[IMPATIENT])] {
        check(1, computes_under_it(long, beside));
    }
    let hasty = Computes { visits: &[HASTY, HASTY, PATIENT, PATIENT, PATIENT], ..LONG };
    check(1, computes_under_it(hasty, Beside::Thread(&[PATIENT])));
    // One that is out of time is not kept from the lock; but if it was given up, it is not gone for ever.
    check(1, computes_under_it(Computes { waits: IMPATIENT, lets_it_come: false, ..long }, Beside::Thread(&[PATIENT])));
}

/// A fiber of another worker queues, then one of the unlocker's; who has the lock first, if it is let go of so long after it came from another worker?
fn first_after(ns: u64, expected: &'static str) -> impl Fn() + Sync + Send + 'static {
    move || {
        clock::set_ns(ns);
        let (guarded, first) = (Guarded::new(), Arc::new(OnceLock::new()));
        let holds = guarded.clone();
        let has_it_first = move |name| {
            let (guarded, first) = (guarded.clone(), first.clone());
            move || guarded.visit(PATIENT, || assert_eq!(*first.get_or_init(|| name), expected))
        };
        let holder = workers::spawn(0, move || {
            holds.lock.take();
            let far = workers::spawn(1, has_it_first("of another worker"));
            while !holds.lock.is_waited_for() {
                loom::thread::yield_now();
            }
            let near = workers::spawn(0, has_it_first("of the same worker"));
            // It queues.
            yield_now();
            holds.lock.release();
            [far, near]
        });
        holder.join().unwrap().into_iter().for_each(|part| assert_eq!(part.join().unwrap(), 1));
    }
}

/// Nobody's alarm goes off here: who looks after a woken one may have the lock before it.
#[test]
fn a_mutex_stays_with_the_fibers_of_one_worker_for_a_while() {
    set_mutant("no alarms");
    check(2, first_after(STAY_NS - 1, "of the same worker"));
    check(2, first_after(STAY_NS, "of another worker"));
    set_mutant("");
}
