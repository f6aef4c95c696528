//! Signals: each listener sees each one, none is missed, and the process lives on. Tests of one process share its signals: each has its own.

mod common;

use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::{alone, everywhere, in_child, is_cancelled, is_child, until};
use sinew::signal::{Signal, Signals, ctrl_c, wait};
use sinew::{current, scope, spawn, timeout};

const HOUR: Duration = Duration::from_secs(3600);

fn raise(signal: Signal) {
    // SAFETY: two numbers go in.
    assert_eq!(unsafe { libc::kill(libc::getpid(), signal.as_raw()) }, 0);
}

/// A real-time signal, which no other test uses.
fn own(number: i32) -> Signal {
    Signal::from_raw(libc::SIGRTMIN() + number)
}

/// Waits until a signal has come to a listener, and takes it.
fn come(signals: &Signals) -> Signal {
    loop {
        if let Some(signal) = signals.try_wait() {
            return signal;
        }
        sinew::yield_now();
    }
}

#[test]
fn a_signal_that_came_before_the_wait_is_kept() {
    everywhere(|| {
        let (signals, other) = (Signals::new([own(0), own(1)]).unwrap(), Signals::new([own(0), own(1)]).unwrap());
        for signal in [own(0), own(1), own(0)] {
            raise(signal);
            // The system may deliver it on another thread, a little later.
            assert_eq!(come(&other), signal);
            assert_eq!(signals.wait().unwrap(), signal);
        }
        assert_eq!(signals.try_wait(), None);
    });
}

#[test]
fn a_signal_ends_a_wait_and_every_waiter_sees_it() {
    everywhere(|| {
        let waiting = AtomicUsize::new(0);
        scope(|s| {
            let waits: Vec<_> = (0..20)
                .map(|_| {
                    let signals = Signals::new([own(2), Signal::USR2]).unwrap();
                    let waiting = &waiting;
                    s.spawn(move || {
                        waiting.fetch_add(1, SeqCst);
                        signals.wait().unwrap()
                    })
                })
                .collect();
            until(|| waiting.load(SeqCst) == 20);
            raise(own(2));
            for wait in waits {
                assert_eq!(wait.join().unwrap(), own(2));
            }
        });
    });
}

#[test]
fn waiters_of_one_listener_share_out_its_signals() {
    everywhere(|| {
        let range = 3..11;
        let signals = Signals::new(range.clone().map(own)).unwrap();
        let waiting = AtomicUsize::new(0);
        let wait = || {
            waiting.fetch_add(1, SeqCst);
            signals.wait().unwrap()
        };
        scope(|s| {
            let waits: Vec<_> = range.clone().map(|_| s.spawn(wait)).collect();
            until(|| waiting.load(SeqCst) == range.len());
            for number in range.clone() {
                raise(own(number));
            }
            let mut seen: Vec<_> = waits.into_iter().map(|wait| wait.join().unwrap()).collect();
            seen.sort();
            assert_eq!(seen, range.clone().map(own).collect::<Vec<_>>());
        });
    });
}

#[test]
fn ctrl_c_and_wait_return_when_it_comes() {
    everywhere(|| {
        // Whatever comes too early for the others does not end the process.
        let _keeps_alive = Signals::new([Signal::INT, Signal::HUP]).unwrap();
        let (first, second) = (spawn(ctrl_c), spawn(|| wait([Signal::HUP, Signal::INT])));
        until(|| {
            raise(Signal::INT);
            first.is_finished() && second.is_finished()
        });
        first.join().unwrap().unwrap();
        assert_eq!(second.join().unwrap().unwrap(), Signal::INT);
    });
}

#[test]
fn a_wait_keeps_no_other_fiber_from_running() {
    alone(|| {
        let signals = Signals::new([own(11)]).unwrap();
        let waiter = spawn(move || signals.wait().unwrap());
        sinew::yield_now();
        assert!(!waiter.is_finished());
        raise(own(11));
        assert_eq!(waiter.join().unwrap(), own(11));
    });
}

#[test]
fn a_wait_can_be_cut_short_and_loses_nothing() {
    everywhere(|| {
        let signals = Signals::new([own(12)]).unwrap();
        let other = Signals::new([own(12)]).unwrap();
        let late = timeout(Duration::from_millis(1), || assert_eq!(signals.wait().unwrap_err().kind(), ErrorKind::TimedOut));
        assert!(late.is_err());
        let waiter = spawn(|| wait([own(13)]).unwrap_err());
        waiter.cancel();
        assert!(is_cancelled(&waiter.join().unwrap()));
        raise(own(12));
        come(&other);
        assert_eq!(timeout(HOUR, || signals.wait().unwrap()), Ok(own(12)));
        raise(own(12));
        come(&other);
        current().cancel();
        assert!(is_cancelled(&signals.wait().unwrap_err()));
    });
}

#[test]
fn the_process_lives_on_when_nobody_listens_any_more() {
    const NAME: &str = "the_process_lives_on_when_nobody_listens_any_more";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    drop(Signals::new([Signal::INT, Signal::TERM]).unwrap());
    raise(Signal::INT);
    raise(Signal::TERM);
}

#[test]
fn what_cannot_be_waited_for_is_refused() {
    for number in [libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, 0, -1, 65, i32::MIN] {
        let error = Signals::new([Signal::USR2, Signal::from_raw(number)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{number}");
    }
    assert_eq!(wait([]).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(format!("{} {}", Signal::TERM, Signal::from_raw(64)), "SIGTERM signal 64");
}

#[test]
fn handlers_run_on_the_alternate_stack() {
    // A fiber's stack has little room, and a handler's frame may need more.
    let _signals = Signals::new([own(13)]).unwrap();
    // SAFETY: zeros are a value of this type, which the call fills in.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(own(13).as_raw(), std::ptr::null(), &mut action), 0);
        action
    };
    assert_ne!(action.sa_flags & libc::SA_ONSTACK, 0);
    assert_ne!(action.sa_flags & libc::SA_RESTART, 0);
}

#[test]
fn a_wait_goes_on_without_descriptors_to_wait_with() {
    const NAME: &str = "a_wait_goes_on_without_descriptors_to_wait_with";
    if !is_child(NAME) {
        for io in ["uring", "epoll"] {
            let output = in_child(NAME, &[("SINEW_IO", io)]);
            assert!(output.status.success(), "{io}: {output:?}");
        }
        return;
    }
    alone(|| {
        let signals = Signals::new([Signal::USR1]).unwrap();
        let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
        // SAFETY: the limit outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        let all: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        let raiser = sinew::spawn(|| raise(Signal::USR1));
        assert_eq!(signals.wait().unwrap(), Signal::USR1);
        raiser.join().unwrap();
        drop(all);
    });
}

/// Claim: a loop that asks again and again for a signal holds nobody of its worker, who may be the one that raises it.
#[test]
fn a_loop_of_tries_for_a_signal_holds_nobody() {
    const TRIES_MAX: usize = 1000;
    let rt = sinew::Runtime::builder().workers(1).build().unwrap();
    rt.run(|| {
        let signals = Signals::new([own(9)]).unwrap();
        let raises = spawn(|| raise(own(9)));
        let mut tries = 0;
        while !raises.is_finished() {
            // It may have come already.
            let _ = signals.try_wait();
            tries += 1;
            assert!(tries < TRIES_MAX, "no other fiber has run");
        }
    });
}
