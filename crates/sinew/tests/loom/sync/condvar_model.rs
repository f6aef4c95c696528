use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::condvar::Condvar;
use super::mutex::Mutex;
use crate::{check, check_notices};

/// A time-out that may come at any moment.
const SOON: Duration = Duration::ZERO;

type Shared = Arc<(Mutex<usize>, Condvar)>;

fn shared() -> Shared {
    Arc::new((Mutex::new(0), Condvar::new()))
}

/// Where a notification is given: what is changed is always changed under the mutex.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notified {
    UnderTheMutex,
    AfterIt,
}

fn change(shared: &Shared, when: Notified, notify: fn(&Condvar)) {
    let mut count = shared.0.lock();
    *count += 1;
    if when == Notified::AfterIt {
        drop(count);
        notify(&shared.1);
    } else {
        notify(&shared.1);
        drop(count);
    }
}

fn one(condvar: &Condvar) {
    condvar.notify_one();
}

fn all(condvar: &Condvar) {
    condvar.notify_all();
}

/// One waits for a change that another makes, then tells of, by a look at the word without its lock: no notification is lost.
fn told(when: Notified, notify: fn(&Condvar)) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = shared();
        let teller = {
            let shared = shared.clone();
            thread::spawn(move || change(&shared, when, notify))
        };
        let mut count = shared.0.lock();
        shared.1.wait_while(&mut count, |count| *count == 0);
        assert_eq!(*count, 1);
        drop(count);
        teller.join().unwrap();
        assert!(!shared.1.notify_one(), "somebody is still queued");
    }
}

/// A wait whose time may be up at any moment, against a notification: that says that it woke one if and only if the wait says that it was woken.
fn timed(notify: fn(&Condvar) -> usize) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = shared();
        let teller = {
            let shared = shared.clone();
            thread::spawn(move || notify(&shared.1))
        };
        let timed_out = shared.1.wait_timeout(&mut shared.0.lock(), SOON).timed_out();
        assert_eq!(teller.join().unwrap(), usize::from(!timed_out));
        assert_eq!(shared.1.notify_all(), 0, "somebody is still queued");
    }
}

#[test]
fn a_condvar_loses_no_notification() {
    check(3, told(Notified::AfterIt, one));
    check(3, told(Notified::AfterIt, all));
    check(3, told(Notified::UnderTheMutex, one));
}

#[test]
fn a_notification_of_a_condvar_against_a_time_out_counts_once() {
    check(3, timed(Condvar::notify_all));
    check(3, timed(|condvar| usize::from(condvar.notify_one())));
}

#[test]
fn without_their_orderings_or_wakes_the_models_of_condvars_fail() {
    check_notices("relaxed", 2, told(Notified::AfterIt, one));
    check_notices("no kernel wake", 2, told(Notified::AfterIt, one));
}
