//! `no_suspend`: every call that would suspend panics inside it, names both places, and leaves everything as it was.

mod common;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sinew::{Runtime, no_suspend, yield_now};

const MOMENT: Duration = Duration::from_micros(1);

fn text(payload: Box<dyn Any + Send>) -> String {
    *payload.downcast::<String>().expect("a formatted message")
}

/// Runs `f`, which must be refused; gives the message.
fn refused(f: impl FnOnce()) -> String {
    let message = text(catch_unwind(AssertUnwindSafe(f)).expect_err("the call was not refused"));
    assert!(message.contains("would suspend") && message.contains("sinew::no_suspend, entered at"), "{message}");
    message
}

/// All calls that wait, in a region.
fn all_are_refused() {
    let calls: [fn(); 9] = [
        || yield_now(),
        || sinew::park(),
        || sinew::park_timeout(MOMENT),
        || sinew::sleep(MOMENT),
        || sinew::sleep(Duration::ZERO),
        || sinew::sleep_until(Instant::now()),
        || sinew::scope(|_| unreachable!("the scope began")),
        || sinew::run(|| unreachable!("the fiber ran")),
        || Runtime::builder().workers(1).build().unwrap().run(|| unreachable!("the fiber ran")),
    ];
    for call in calls {
        refused(|| no_suspend(call));
        // The region has been left.
        call_freely();
    }
    let waits = sinew::spawn(|| sinew::park());
    let waiting = waits.fiber().clone();
    refused(|| no_suspend(|| drop(waits.join())));
    waiting.unpark();
    sinew::scope(|scope| {
        let waits = scope.spawn(|| sinew::park());
        let waiting = waits.fiber().clone();
        refused(|| no_suspend(|| drop(waits.join())));
        waiting.unpark();
    });
}

/// All calls that wait, but not for ever.
fn call_freely() {
    yield_now();
    sinew::park_timeout(MOMENT);
    sinew::sleep(MOMENT);
    sinew::scope(|scope| _ = scope.spawn(|| yield_now()));
    sinew::run(|| yield_now());
    sinew::spawn(|| yield_now()).join().unwrap();
}

#[test]
fn every_call_that_waits_is_refused_in_a_fiber() {
    sinew::run(all_are_refused);
    let one_worker = Runtime::builder().workers(1).build().unwrap();
    one_worker.run(all_are_refused);
}

#[test]
fn every_call_that_waits_is_refused_on_a_plain_thread() {
    std::thread::spawn(all_are_refused).join().unwrap();
}

#[test]
fn the_message_names_both_places() {
    let check = || {
        let (entered, tried) = (line!() + 3, line!() + 4);
        let message = refused(|| {
            #[rustfmt::skip]
            no_suspend(|| {
                sinew::sleep(MOMENT);
            });
        });
        let (entered, tried) = (format!("entered at {}:{entered}:", file!()), format!("a call at {}:{tried}:", file!()));
        assert!(message.contains(&entered) && message.contains(&tried), "{message}: {entered}, {tried}");
    };
    check();
    sinew::run(check);
}

#[test]
fn what_need_not_wait_is_allowed() {
    let check = || {
        let ended = sinew::spawn(|| 5);
        while !ended.is_finished() {
            yield_now();
        }
        let (value, child) = no_suspend(|| {
            sinew::current().unpark();
            (ended.join().unwrap(), sinew::spawn(|| 6))
        });
        assert_eq!(value + child.join().unwrap(), 11);
        // The token is still there.
        sinew::park();
    };
    sinew::run(check);
    std::thread::spawn(check).join().unwrap();
}

#[test]
fn a_refused_park_keeps_the_token() {
    sinew::run(|| {
        sinew::current().unpark();
        refused(|| no_suspend(|| sinew::park()));
        sinew::park();
    });
}

#[test]
fn regions_nest_and_the_innermost_is_named() {
    let check = || {
        no_suspend(|| {
            let inner = line!() + 1;
            let message = refused(|| no_suspend(|| yield_now()));
            assert!(message.contains(&format!("entered at {}:{inner}:", file!())), "{message}");
            // Still inside the outer one, after the inner unwound and after one that returned.
            refused(|| yield_now());
            no_suspend(|| ());
            refused(|| yield_now());
        });
        yield_now();
    };
    sinew::run(check);
    check();
}

/// A region is the fiber's alone: others, on the same thread and elsewhere, go on as ever, children included.
#[test]
fn a_region_binds_its_own_fiber_only() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        let child = no_suspend(|| sinew::spawn(|| (0..10).for_each(|_| yield_now())));
        child.join().unwrap();
        let other = sinew::spawn(|| {
            for _ in 0..100 {
                no_suspend(|| ());
                yield_now();
            }
        });
        for _ in 0..100 {
            yield_now();
            refused(|| no_suspend(|| yield_now()));
        }
        other.join().unwrap();
    });
}

/// A region inside a scope ends before the scope does: the scope still waits for what borrows from it.
#[test]
fn a_violation_inside_a_scope_still_waits_for_its_fibers() {
    let done = AtomicUsize::new(0);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        sinew::scope(|scope| {
            let child = scope.spawn(|| {
                sinew::sleep(Duration::from_millis(5));
                done.fetch_add(1, SeqCst);
            });
            no_suspend(|| child.join().unwrap());
        });
    }));
    assert!(text(panic.unwrap_err()).contains("would suspend"));
    assert_eq!(done.load(SeqCst), 1);
}

#[test]
fn hop_runs_detached_with_the_name_and_stack_of_its_maker() {
    let (sender, receiver) = mpsc::channel();
    let fiber = sinew::Builder::new().name("traveller").stack_size(64 * 1024).spawn(move || {
        sinew::hop(move || {
            let me = sinew::current();
            sender.send((me.name().map(str::to_owned), me.stack_size(), me.id())).unwrap();
        });
        sinew::current().id()
    });
    let first = fiber.unwrap().join().unwrap();
    let (name, stack, second) = receiver.recv().unwrap();
    assert_eq!((name.as_deref(), stack), (Some("traveller"), 64 * 1024));
    assert_ne!(first, second);
}

/// The worker of the one that hops does not suspend until `f` has run: so `f` ran on the other.
#[test]
fn a_hop_goes_where_there_is_room() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let fiber = runtime.spawn(|| {
        let (sender, receiver) = mpsc::channel();
        sinew::hop(move || sender.send(std::thread::current().id()).unwrap());
        (std::thread::current().id(), receiver.recv().unwrap())
    });
    let (mine, others) = fiber.join().unwrap();
    assert_ne!(mine, others);
}

#[test]
fn join_does_not_wait_for_what_hopped() {
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    sinew::run(move || {
        sinew::hop(move || {
            while may_go_on.try_recv().is_err() {
                yield_now();
            }
            sender.send(()).unwrap();
        });
    });
    go_on.send(()).unwrap();
    receiver.recv().unwrap();
}

#[test]
fn a_hop_from_a_plain_thread_is_a_detached_spawn() {
    let (sender, receiver) = mpsc::channel();
    sinew::hop(move || sender.send(5).unwrap());
    assert_eq!(receiver.recv(), Ok(5));
}

/// A chain of hops: each gives the rest to the next, and nothing is left of the ones before.
#[test]
fn hops_chain() {
    fn step(left: u32, done: mpsc::Sender<u32>) {
        match left {
            0 => done.send(left).unwrap(),
            _ => sinew::hop(move || step(left - 1, done)),
        }
    }
    let (done, end) = mpsc::channel();
    sinew::spawn(move || step(10_000, done));
    assert_eq!(end.recv(), Ok(0));
}

/// Claim: a guard that was unlocked for a while where nothing may be waited for, and cannot be locked again, ends the process: it never unlocks what another has.
#[test]
fn a_guard_that_cannot_be_locked_again_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    const SELF: &str = "a_guard_that_cannot_be_locked_again_ends_the_process";
    if !common::is_child(SELF) {
        let output = common::in_child(SELF, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{text}");
        assert!(text.contains("could not be locked again"), "{text}");
        return;
    }
    static LOCK: sinew::sync::Mutex<()> = sinew::sync::Mutex::new(());
    let mut guard = LOCK.lock();
    let take_for_ever = || std::thread::spawn(|| std::mem::forget(LOCK.lock())).join().unwrap();
    sinew::no_suspend(|| sinew::sync::MutexGuard::unlocked(&mut guard, take_for_ever));
}

/// Claim: output that another has locked is refused where nothing may be waited for, and the process goes on.
#[test]
fn locked_output_is_refused() {
    use std::io::Write;
    let locked = sinew::io::stderr().lock();
    std::thread::scope(|s| {
        s.spawn(|| refused(|| no_suspend(|| drop(sinew::io::stderr().lock()))));
        s.spawn(|| refused(|| no_suspend(|| drop(writeln!(sinew::io::stderr(), "no")))));
    });
    drop(locked);
}
