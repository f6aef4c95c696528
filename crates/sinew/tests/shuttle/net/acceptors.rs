//! Fibers that accept at one listener by the rings of their workers: of each worker one asks for all, the others stand in a line behind it (`event/readiness.rs`, "By a ring").
//!
//! With `net/accept.rs`, `rt/io.rs` and `event/readiness.rs` as they stand, and a kernel (`event::kernel`) whose polls tell all who have asked, of what is there when they ask and of what comes, perhaps late.
//! In all scenarios: a ring has one poll per listener at most, and no fiber is left waiting, which shuttle reports as a deadlock.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use shuttle::Runner;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;

use super::accept::accept_by;
use crate::base::atomic::set_mutant;
use crate::event::kernel;
use crate::os::lock::switching_at_locks;
use crate::rt::io::Descriptor;
use crate::rt::runtime::{plain, with_rings};
use crate::rt::spawn::{Builder, Group};
use crate::scenarios::{config, explore, explore_one_of, fails_in_a_child, in_own_process};
use crate::sched::groups::Groups;
use crate::{Cancelled, JoinHandle, park, timeout};

/// So long that some schedules accept before, so short that some do not begin to.
const SOON: Duration = Duration::from_micros(60);

/// Yields in which a worker is told, accepts, and hands its duty on.
const A_WHILE: usize = 60;

/// A listener of the model's kernel. The descriptor is a real one, that nobody else has the number.
struct Listener(File);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What fibers of a scenario accept at.
#[derive(Clone)]
struct Door(Arc<Descriptor<Listener>>);

impl Door {
    fn open() -> Self {
        let listener = Listener(File::open("/dev/null").unwrap());
        kernel::begin();
        kernel::listen(listener.0.as_raw_fd());
        Self(Arc::new(Descriptor::of_nonblocking(listener)))
    }

    fn fd(&self) -> RawFd {
        self.0.socket().0.as_raw_fd()
    }

    /// A connection comes, some time.
    fn connect(&self) {
        a_while();
        kernel::connect(self.fd());
    }

    fn accept(&self) -> io::Result<()> {
        accept_by(&self.0, |listener| {
            shuttle::thread::yield_now();
            kernel::accept(listener.0.as_raw_fd()).map_err(io::Error::from_raw_os_error)
        })
    }

    /// A fiber of the only worker of `group` that accepts once.
    fn acceptor(&self, groups: &Arc<Groups>, group: usize) -> JoinHandle<io::Result<()>> {
        let door = self.clone();
        on(groups, group, move || door.accept())
    }

    /// One that accepts in a time-out; `None` if it is over first. Nobody claims it after that.
    fn hasty_acceptor(&self, groups: &Arc<Groups>, group: usize) -> JoinHandle<Option<io::Result<()>>> {
        let door = self.clone();
        on(groups, group, move || {
            let accepted = timeout(SOON, || door.accept()).ok();
            assert!(timeout(SOON, park).is_err(), "a wait that is over was ended once more");
            accepted
        })
    }
}

fn on<T: Send + 'static>(groups: &Arc<Groups>, group: usize, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().group(Group::foreground(group)).pinned().spawn_in(groups, f).unwrap()
}

/// Workers of a group each, so that a scenario says which fiber is whose.
fn with_worker_each<const N: usize>(body: impl FnOnce(&Arc<Groups>)) {
    with_rings((0..N).map(|_| plain(1)).collect(), body);
}

/// Lets the others go on for a while, which differs.
fn a_while() {
    (0..thread_rng().gen_range(0..A_WHILE)).for_each(|_| shuttle::thread::yield_now());
}

/// Waits until it is so.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        shuttle::thread::yield_now();
    }
}

/// Claim: as many connections as acceptors, whenever they come, and whoever is told: each acceptor has one, and none is left.
fn all_are_served() {
    let door = Door::open();
    with_worker_each::<2>(|groups| {
        let acceptors: Vec<_> = (0..5).map(|index| door.acceptor(groups, index % 2)).collect();
        (0..5).for_each(|_| door.connect());
        acceptors.into_iter().for_each(|acceptor| acceptor.join().unwrap().unwrap());
        assert_eq!((kernel::connections(door.fd()), kernel::armed()), (0, 0));
    });
}

#[test]
fn every_connection_finds_an_acceptor_and_every_acceptor_a_connection() {
    in_own_process!();
    explore(all_are_served);
    switching_at_locks(|| explore_one_of(2, all_are_served));
}

/// Claim: whoever is cancelled or late, the first of a line or one behind, or all before him, who stays is served; by the only connection that those have left.
fn one_stays(groups: &Arc<Groups>, door: &Door, cancelled: usize, late: usize, patient_at: usize) {
    let mut patient = None;
    let (mut to_cancel, mut hasty) = (Vec::new(), Vec::new());
    for place in 0..=cancelled + late {
        if place == patient_at {
            patient = Some(door.acceptor(groups, 0));
        } else if to_cancel.len() < cancelled {
            to_cancel.push(door.acceptor(groups, 0));
        } else {
            hasty.push(door.hasty_acceptor(groups, 0));
        }
    }
    // One comes while they leave: for each that is taken by one of them another comes.
    door.connect();
    for acceptor in &to_cancel {
        a_while();
        acceptor.cancel();
    }
    let mut served = 0;
    for acceptor in to_cancel {
        match acceptor.join().unwrap() {
            Ok(()) => served += 1,
            Err(error) => assert!(Cancelled::is_in(&error), "{error}"),
        }
    }
    for acceptor in hasty {
        match acceptor.join().unwrap() {
            Some(Ok(())) => served += 1,
            Some(Err(error)) => panic!("{error}"),
            None => {}
        }
    }
    (0..served).for_each(|_| door.connect());
    patient.expect("it is one of them").join().unwrap().unwrap();
    assert_eq!((kernel::connections(door.fd()), kernel::armed()), (0, 0));
}

fn cuts(cancelled: usize, late: usize, patient_at: usize) -> impl Fn() + Send + Sync + Clone + 'static {
    move || {
        let door = Door::open();
        with_worker_each::<1>(|groups| one_stays(groups, &door, cancelled, late, patient_at));
    }
}

#[test]
fn who_is_cancelled_or_late_leaves_nobody_behind() {
    in_own_process!();
    for (cancelled, late, patient_at) in [(1, 0, 1), (2, 0, 2), (0, 1, 1), (0, 2, 2), (1, 1, 2), (1, 1, 1)] {
        explore_one_of(3, cuts(cancelled, late, patient_at));
        switching_at_locks(|| explore_one_of(6, cuts(cancelled, late, patient_at)));
    }
}

/// Claim: one that was told and finds no descriptor keeps the connection from nobody, though it is cancelled while it pauses: not from those behind it, nor from another worker's.
fn one_is_short() {
    let door = Door::open();
    with_worker_each::<2>(|groups| {
        let acceptors: Vec<_> = (0..3).map(|index| door.acceptor(groups, index % 2)).collect();
        until(|| kernel::armed() == 2);
        kernel::run_short(1);
        door.connect();
        until(|| !kernel::is_short());
        // Whoever it was: one is cancelled, two are served.
        a_while();
        acceptors[0].cancel();
        door.connect();
        door.connect();
        let results: Vec<_> = acceptors.into_iter().map(|acceptor| acceptor.join().unwrap()).collect();
        assert!(results[1..].iter().all(Result::is_ok), "{results:?}");
        assert!(results[0].as_ref().map_or_else(Cancelled::is_in, |()| true), "{results:?}");
    });
}

/// As that, with one connection, which comes while there is no descriptor: all but one are cancelled in their pauses or their line.
fn all_are_short() {
    let door = Door::open();
    with_worker_each::<1>(|groups| {
        let acceptors: Vec<_> = (0..3).map(|_| door.acceptor(groups, 0)).collect();
        kernel::run_short(3);
        door.connect();
        until(|| !kernel::is_short());
        let [first, second, last] = acceptors.try_into().unwrap_or_else(|_| unreachable!());
        for acceptor in [&first, &second] {
            a_while();
            acceptor.cancel();
        }
        let served = [first, second].map(|cut| cut.join().unwrap()).iter().filter(|accepted| accepted.is_ok()).count();
        (0..served).for_each(|_| door.connect());
        last.join().unwrap().unwrap();
        assert_eq!((kernel::connections(door.fd()), kernel::armed()), (0, 0));
    });
}

#[test]
fn who_has_no_descriptor_keeps_the_connection_from_nobody() {
    in_own_process!();
    explore(one_is_short);
    explore(all_are_short);
}

/// Claim: a listener that is shut down ends all who wait, of all workers, the first and those behind.
#[test]
fn a_listener_that_is_shut_ends_all_who_wait() {
    in_own_process!();
    explore(|| {
        let door = Door::open();
        with_worker_each::<2>(|groups| {
            let acceptors: Vec<_> = (0..5).map(|index| door.acceptor(groups, index % 2)).collect();
            a_while();
            kernel::shut(door.fd());
            for acceptor in acceptors {
                assert_eq!(acceptor.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EINVAL));
            }
            assert_eq!(kernel::armed(), 0);
        });
    });
}

/// Claim: the end of the runtime ends all who wait, and leaves nothing in a ring.
#[test]
fn a_runtime_that_ends_ends_all_who_accept() {
    in_own_process!();
    explore(|| {
        let door = Door::open();
        let served = Arc::new(AtomicUsize::new(0));
        with_worker_each::<2>(|groups| {
            for index in 0..4 {
                let (door, served) = (door.clone(), served.clone());
                let accepts = move || match door.accept() {
                    Ok(()) => _ = served.fetch_add(1, SeqCst),
                    Err(error) => assert!(Cancelled::is_in(&error), "{error}"),
                };
                drop(on(groups, index % 2, accepts));
            }
            door.connect();
        });
        assert_eq!(served.load(SeqCst) + kernel::connections(door.fd()), 1);
        assert_eq!(kernel::armed(), 0);
    });
}

/// Claim: a worker that is held, and was told, keeps the connection from no other worker's acceptors. By a fiber that holds it until they have it.
fn one_is_held() {
    let door = Door::open();
    with_worker_each::<2>(|groups| {
        let kept: Vec<_> = (0..2).map(|_| door.acceptor(groups, 0)).collect();
        until(|| kernel::armed() == 1);
        let stage = Arc::new(AtomicUsize::new(0));
        let hog = {
            let stage = stage.clone();
            on(groups, 0, move || {
                stage.store(1, SeqCst);
                until(|| stage.load(SeqCst) == 2);
            })
        };
        until(|| stage.load(SeqCst) == 1);
        let before = kernel::found_none();
        let others: Vec<_> = (0..2).map(|_| door.acceptor(groups, 1)).collect();
        // The one behind has tried too: what it found by itself would say nothing of what it is told.
        until(|| kernel::armed() == 2 && kernel::found_none() == before + 2);
        for other in others {
            door.connect();
            // A join would be a deadlock that is none: the hog goes on.
            until(|| kernel::connections(door.fd()) == 0);
            drop(other);
        }
        stage.store(2, SeqCst);
        hog.join().unwrap();
        kept.iter().for_each(|_| door.connect());
        kept.into_iter().for_each(|acceptor| acceptor.join().unwrap().unwrap());
    });
}

#[test]
fn a_worker_that_is_held_keeps_connections_from_no_other() {
    in_own_process!();
    explore(one_is_held);
}

/// The model notices a kernel that tells one ring of a connection, as it does by `ACCEPT`. In a process of its own, as all that shuttle cannot clean up after.
#[test]
fn polls_that_tell_one_alone_are_noticed() {
    const CHILD: &str = "SINEW_SHUTTLE_EXCLUSIVE_POLLS";
    if std::env::var_os(CHILD).is_some() {
        set_mutant("exclusive polls");
        Runner::new(RandomScheduler::new(200), config()).run(one_is_held);
        return;
    }
    fails_in_a_child("net::acceptors::polls_that_tell_one_alone_are_noticed", CHILD);
}

/// And one whose polls tell of what comes, and not of what is there: who has just been handed the duty would not learn what the one before has left.
#[test]
fn polls_that_do_not_look_are_noticed() {
    const CHILD: &str = "SINEW_SHUTTLE_BLIND_POLLS";
    if std::env::var_os(CHILD).is_some() {
        set_mutant("blind polls");
        Runner::new(RandomScheduler::new(200), config()).run(all_are_served);
        return;
    }
    fails_in_a_child("net::acceptors::polls_that_do_not_look_are_noticed", CHILD);
}
