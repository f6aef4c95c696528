//! A RwLock at which those who were told to try are of the caller's own worker, as in `near_model.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use loom::sync::{Condvar, Mutex};
use loom::thread::JoinHandle;

use super::rwlock_model::{Guarded, Use, read, write, write_soon};
use super::turns::{COMES_NS, STALE_NS};
use crate::os::clock;
use crate::rt::wait::yield_now;
use crate::rt::workers;
use crate::{check, check_notices};

/// Longer than those who were told to try are waited for elsewhere, also if they are thought to be of another worker; shorter than the patience of one that waits.
const LONG_NS: u64 = COMES_NS + STALE_NS;

/// So often those who wait are overtaken before somebody looks at the time.
const OVERTAKES: usize = 31;

fn try_write(guarded: &Guarded) -> usize {
    assert!(guarded.lock.try_write(), "nobody has it");
    guarded.lock.release_write();
    0
}

/// Holds a worker until it is opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn hold(&self) {
        let mut open = self.0.lock().unwrap();
        while !*open {
            open = self.1.wait(open).unwrap();
        }
    }

    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}

/// Who else waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nobody,
    /// A reader of another worker, which is held until the end.
    AbsentReader,
    /// A thread that comes once.
    Visitor,
}

/// The lock is written by a fiber, and others come to it; then that lets go, and `uses` it, after a long time each, and never waits for anything else. The one of its worker that `waits` has had its turn by then.
fn computes_beside(waits: Use, uses: &'static [Use], beside: Beside) -> impl Fn() + Sync + Send + 'static {
    move || {
        clock::set_ns(0);
        let (guarded, had, gate) = (Guarded::new(), Arc::new(AtomicBool::new(false)), Arc::new(Gate::default()));
        let (busy, says, opens) = (guarded.clone(), had.clone(), gate.clone());
        let (mut added, others) = workers::spawn(0, move || {
            busy.lock.write();
            let mut others = Vec::new();
            if beside == Beside::AbsentReader {
                others.extend(absent_reader(&busy, gate));
            }
            let other = busy.clone();
            others.push(workers::spawn(0, move || {
                let added = waits(&other);
                says.store(true, SeqCst);
                added
            }));
            // It queues.
            yield_now();
            if beside == Beside::Visitor {
                let visits = busy.clone();
                others.push(loom::thread::spawn(move || write(&visits)));
            }
            busy.lock.release_write();
            let mut added = 0;
            for one in uses {
                added += (0..OVERTAKES).map(|_| write(&busy)).sum::<usize>();
                clock::advance_ns(LONG_NS);
                added += one(&busy);
            }
            assert!(had.load(SeqCst), "it is kept from the lock");
            opens.open();
            (added, others)
        })
        .join()
        .unwrap();
        added += others.into_iter().map(|other| other.join().unwrap()).sum::<usize>();
        guarded.check_end(added);
    }
}

/// It queues, at a lock for which nobody waits, and its worker is held then.
fn absent_reader(guarded: &Arc<Guarded>, gate: Arc<Gate>) -> [JoinHandle<usize>; 2] {
    let reads = guarded.clone();
    let reader = workers::spawn(1, move || read(&reads));
    while !guarded.lock.is_waited_for() {
        loom::thread::yield_now();
    }
    let holds = workers::spawn(1, move || {
        gate.hold();
        0
    });
    [reader, holds]
}

#[test]
fn who_computes_beside_a_rwlock_queues_behind_those_of_its_worker() {
    // Who only tries lets nobody run, but forgets nobody either.
    const USES: [&[Use]; 4] = [&[write], &[write_soon], &[try_write, write], &[read]];
    for (waits, uses) in [write as Use, read].into_iter().flat_map(|waits| USES.map(|uses| (waits, uses))) {
        check(3, computes_beside(waits, uses, Beside::Nobody));
        check_notices("nobody is at home", 3, computes_beside(waits, uses, Beside::Nobody));
    }
    // Told to try are those of two workers, of which one is the caller's.
    check(2, computes_beside(read, &[write], Beside::AbsentReader));
    check_notices("nobody is at home", 2, computes_beside(read, &[write], Beside::AbsentReader));
}

/// A visitor may give it up, and leave: then who computes yields, once the time is looked at again, and it comes; one time later if it found the lock taken.
#[test]
fn one_of_its_worker_that_a_visitor_gives_up_comes_to_a_rwlock_all_the_same() {
    for waits in [write as Use, read] {
        check(1, computes_beside(waits, &[write, write, write], Beside::Visitor));
    }
    check(1, computes_beside(write, &[read, read, read], Beside::Visitor));
}

/// One that reads already, and reads again, would wait for itself behind the writer that it keeps from coming: it lets that come, which queues then.
fn reads_again() {
    clock::set_ns(0);
    let guarded = Guarded::new();
    let busy = guarded.clone();
    let writer = workers::spawn(0, move || {
        busy.lock.write();
        let waits = busy.clone();
        let writer = workers::spawn(0, move || write(&waits));
        // It queues.
        yield_now();
        busy.lock.release_write();
        (0..OVERTAKES).for_each(|_| busy.lock.read());
        clock::advance_ns(LONG_NS);
        assert!(!busy.lock.is_waited_for(), "it has not come");
        busy.lock.read();
        assert!(busy.lock.is_waited_for(), "it is kept from coming");
        (0..=OVERTAKES).for_each(|_| busy.lock.release_read());
        writer
    });
    let added = writer.join().unwrap().join().unwrap();
    guarded.check_end(added);
}

#[test]
fn who_reads_again_lets_a_writer_of_its_worker_come() {
    check(3, reads_again);
    check_notices("nobody is at home", 3, reads_again);
}
