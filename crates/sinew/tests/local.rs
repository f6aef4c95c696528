//! Fiber-locals and hooks: when values come to be, whose they are, and how they end.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use sinew::local::AccessError;
use sinew::{Builder, Runtime, fiber_local, on_resume, on_suspend, yield_now};

/// What happened, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap_or_else(|broken| broken.into_inner()).push(what.into());
    }

    fn read(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(|broken| broken.into_inner()).clone()
    }
}

/// Does something when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

type Deed = RefCell<Option<OnDrop<Box<dyn FnMut()>>>>;

fn deed(f: impl FnMut() + 'static) -> Option<OnDrop<Box<dyn FnMut()>>> {
    Some(OnDrop(Box::new(f)))
}

/// Notes its end.
fn noting(log: &Log, what: &'static str) -> Option<OnDrop<Box<dyn FnMut()>>> {
    let log = log.clone();
    deed(move || log.note(what))
}

fiber_local! {
    static A: Deed = const { RefCell::new(None) };
    static B: Deed = const { RefCell::new(None) };
    static C: Deed = const { RefCell::new(None) };
    static COUNT: Cell<u32> = Cell::new(7);
    static TEXT: RefCell<String> = RefCell::new(String::from("unset"))
}

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

fn text(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast::<&str>().expect("a panic message is a &str or a String")).to_owned(),
    }
}

#[test]
fn every_fiber_has_its_own_value_across_suspensions() {
    runtime(2).run(|| {
        let fibers: Vec<_> = (0..100)
            .map(|i| {
                sinew::spawn(move || {
                    assert_eq!(COUNT.get(), 7, "made by this fiber, not left by another");
                    for round in 0..50 {
                        COUNT.set(i * 1000 + round);
                        TEXT.with_borrow_mut(|text| *text = format!("{i} {round}"));
                        yield_now();
                        assert_eq!(COUNT.get(), i * 1000 + round);
                        TEXT.with_borrow(|text| assert_eq!(*text, format!("{i} {round}")));
                    }
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert_eq!(COUNT.get(), 7);
    });
}

#[test]
fn a_value_stays_in_place_while_its_closure_suspends_and_makes_others() {
    runtime(1).run(|| {
        let other = sinew::spawn(|| TEXT.set(String::from("other")));
        TEXT.with(|text| {
            let address = std::ptr::from_ref(text);
            A.with(|_| B.with(|_| C.with(|_| COUNT.with(|_| other.join().unwrap()))));
            yield_now();
            assert_eq!(*text.borrow(), "unset");
            TEXT.with(|again| assert!(std::ptr::eq(again, address)));
        });
    });
}

#[test]
fn the_methods_are_those_of_std() {
    sinew::run(|| {
        assert_eq!(COUNT.replace(1), 7);
        assert_eq!(COUNT.take(), 1);
        assert_eq!(COUNT.get(), 0);
        assert_eq!(TEXT.replace(String::from("x")), "unset");
        assert_eq!(TEXT.take(), "x");
        TEXT.set(String::from("y"));
        TEXT.with_borrow_mut(|text| text.push('z'));
        assert_eq!(TEXT.try_with(|text| text.borrow().clone()), Ok(String::from("yz")));
    });
}

#[test]
fn set_does_not_run_the_initialiser() {
    fiber_local!(static NEVER: Cell<u32> = panic!("the initialiser ran"));
    fiber_local!(static NEVER_EITHER: RefCell<u32> = panic!("the initialiser ran"));
    sinew::run(|| {
        NEVER.set(3);
        NEVER_EITHER.set(4);
        assert_eq!(NEVER.get() + NEVER_EITHER.take(), 7);
    });
}

#[test]
fn attributes_and_visibility_pass_through_in_any_order() {
    mod inner {
        sinew::fiber_local! {
            /// Documented.
            #[inherit]
            #[allow(non_upper_case_globals)]
            pub static lower: std::cell::Cell<u8> = const { std::cell::Cell::new(1) };
            #[inherit]
            /// Documented too.
            pub(super) static UPPER: u8 = 2;
        }
    }
    inner::lower.set(5);
    assert_eq!(sinew::run(|| inner::lower.get() + inner::UPPER.with(|upper| *upper)), 7);
}

#[test]
fn values_are_dropped_in_reverse_order_before_join_returns() {
    let log = Log::default();
    let noted = log.clone();
    let runtime = runtime(2);
    let fiber = runtime.spawn(move || {
        B.set(noting(&noted, "b"));
        C.set(noting(&noted, "c"));
        A.set(noting(&noted, "a"));
        yield_now();
        noted.note("closure");
    });
    fiber.join().unwrap();
    assert_eq!(log.read(), ["closure", "a", "c", "b"]);
}

/// A value that others were made for is dropped before them, also if their making lay inside its own.
#[test]
fn a_value_made_inside_an_initialiser_is_the_older_one() {
    fiber_local! {
        static LOG: Log = Log::default();
        static OUTER: OnDrop<Box<dyn FnMut()>> = {
            let log = LOG.with(Log::clone);
            INNER.with(|_| ());
            OnDrop(Box::new(move || log.note("outer")))
        };
        static INNER: OnDrop<Box<dyn FnMut()>> = {
            let log = LOG.with(Log::clone);
            OnDrop(Box::new(move || log.note("inner")))
        };
    }
    let log = sinew::run(|| {
        OUTER.with(|_| ());
        LOG.with(Log::clone)
    });
    assert_eq!(log.read(), ["outer", "inner"]);
}

#[test]
fn values_are_dropped_before_run_and_scope_return() {
    let log = Log::default();
    sinew::run(|| A.set(noting(&log, "run")));
    log.note("after run");
    sinew::scope(|scope| {
        scope.spawn(|| A.set(noting(&log, "scope")));
    });
    log.note("after scope");
    assert_eq!(log.read(), ["run", "after run", "scope", "after scope"]);
}

#[test]
fn values_of_a_fiber_that_panics_are_dropped() {
    let log = Log::default();
    let noted = log.clone();
    let fiber = sinew::spawn(move || {
        A.set(noting(&noted, "a"));
        panic!("on purpose");
    });
    assert_eq!(text(fiber.join().unwrap_err()), "on purpose");
    assert_eq!(log.read(), ["a"]);
}

#[test]
fn a_destructor_may_suspend_use_older_keys_and_make_new_ones() {
    let log = Log::default();
    let noted = log.clone();
    let fiber = sinew::spawn(move || {
        A.set(noting(&noted, "a"));
        TEXT.set(String::from("older"));
        B.set(deed(move || {
            yield_now();
            sinew::sleep(Duration::from_micros(10));
            noted.note(TEXT.with_borrow(|text| format!("b sees {text}")));
            C.set(noting(&noted, "c, made by b"));
        }));
    });
    fiber.join().unwrap();
    assert_eq!(log.read(), ["b sees older", "c, made by b", "a"]);
}

#[test]
fn a_destroyed_key_gives_an_error_and_is_not_made_anew() {
    let log = Log::default();
    let noted = log.clone();
    let fiber = sinew::spawn(move || {
        A.set(deed(move || {
            noted.note(format!("{:?} {:?}", A.try_with(|_| ()), B.try_with(|_| ())));
            let panic = catch_unwind(|| B.with(|_| ())).unwrap_err();
            noted.note(text(panic));
            let panic = catch_unwind(|| B.set(None)).unwrap_err();
            noted.note(text(panic));
        }));
        B.set(None);
    });
    fiber.join().unwrap();
    let refused = "a fiber-local was used during or after its destruction";
    assert_eq!(log.read(), ["Err(AccessError) Err(AccessError)", refused, refused]);
}

#[test]
fn a_panic_in_a_destructor_becomes_the_outcome_and_the_others_still_run() {
    let log = Log::default();
    let noted = log.clone();
    let fiber = sinew::spawn(move || {
        A.set(noting(&noted, "a"));
        B.set(deed(|| panic!("second panic")));
        C.set(deed(|| panic!("first panic")));
        OnDrop(move || noted.note("the lost value"))
    });
    assert_eq!(text(fiber.join().map(drop).unwrap_err()), "first panic");
    assert_eq!(log.read(), ["a", "the lost value"]);

    let fiber = sinew::spawn(|| {
        A.set(deed(|| panic!("a destructor's panic")));
        panic!("the fiber's own panic");
    });
    assert_eq!(text(fiber.join().unwrap_err()), "the fiber's own panic");

    let scope = catch_unwind(|| sinew::scope(|scope| _ = scope.spawn(|| A.set(deed(|| panic!("in a scope"))))));
    assert_eq!(text(scope.unwrap_err()), "a scoped fiber panicked");
}

#[test]
fn an_initialiser_that_panics_leaves_the_key_unmade() {
    static TRIES: AtomicUsize = AtomicUsize::new(0);
    fiber_local!(static AT_LAST: usize = match TRIES.fetch_add(1, SeqCst) {
        2 => 42,
        n => panic!("try {n}"),
    });
    sinew::run(|| {
        assert_eq!(text(catch_unwind(|| AT_LAST.with(|_| ())).unwrap_err()), "try 0");
        assert_eq!(text(catch_unwind(|| AT_LAST.with(|_| ())).unwrap_err()), "try 1");
        assert_eq!(AT_LAST.with(|value| *value), 42);
    });
}

#[test]
fn an_initialiser_that_uses_its_own_key_panics() {
    fiber_local!(static SELF: Cell<u32> = Cell::new(1 + if WHICH.get() { SELF.get() } else { SELF.set(1); 1 }));
    fiber_local!(static WHICH: Cell<bool> = const { Cell::new(false) });
    for which in [true, false] {
        sinew::run(|| {
            WHICH.set(which);
            let panic = catch_unwind(|| SELF.get()).unwrap_err();
            assert_eq!(text(panic), "the initialiser of a fiber-local used its own key");
        });
    }
}

/// The case that is undefined behaviour with `thread_local!`: two fibers of one thread in the same initialiser.
#[test]
fn an_initialiser_may_suspend() {
    fiber_local!(static SLOW: RefCell<String> = {
        yield_now();
        RefCell::new(String::from("made"))
    });
    runtime(1).run(|| {
        let fibers: Vec<_> = (0..10)
            .map(|i| {
                sinew::spawn(move || {
                    SLOW.with(|value| {
                        assert_eq!(value.replace(format!("{i}")), "made");
                        yield_now();
                        assert_eq!(*value.borrow(), format!("{i}"));
                    });
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
}

/// What a fiber leaves to be dropped when nobody asks for its outcome comes after its locals, whether or not it had any.
#[test]
fn an_outcome_that_nobody_takes_has_no_access() {
    for used in [false, true] {
        let (sender, receiver) = mpsc::channel();
        let runtime = runtime(1);
        runtime.run(|| {
            drop(sinew::spawn(move || {
                if used {
                    COUNT.set(1);
                }
                on_resume(|| ());
                OnDrop(move || {
                    on_suspend(|| panic!("a hook of a fiber that has ended"));
                    yield_now();
                    sender.send(COUNT.try_with(Cell::get)).unwrap();
                })
            }));
        });
        let refused: Result<u32, AccessError> = receiver.recv().unwrap();
        assert!(refused.is_err());
    }
}

#[test]
fn a_plain_thread_has_values_of_its_own_and_drops_them_at_its_end() {
    let log = Log::default();
    let noted = log.clone();
    let thread = std::thread::spawn(move || {
        A.set(noting(&noted, "a"));
        let last = noted.clone();
        B.set(deed(move || {
            C.set(noting(&last, "c, made by b"));
            last.note(format!("{:?} {:?}", A.try_with(|_| ()), B.try_with(|_| ())));
        }));
        assert_eq!(sinew::run(|| COUNT.replace(1)), 7, "a fiber has its own");
        assert_eq!(COUNT.get(), 7);
        noted.note("closure");
    });
    thread.join().unwrap();
    assert_eq!(log.read(), ["closure", "Ok(()) Err(AccessError)", "c, made by b", "a"]);
}

#[test]
fn a_panic_in_a_destructor_of_a_plain_thread_goes_no_further() {
    let log = Log::default();
    let noted = log.clone();
    let thread = std::thread::spawn(move || {
        A.set(noting(&noted, "a"));
        B.set(deed(|| panic!("at the end of a thread")));
    });
    thread.join().unwrap();
    assert_eq!(log.read(), ["a"]);
}

/// Whichever of the two ends first, neither is touched after it has gone.
#[test]
fn a_thread_locals_destructor_may_use_fiber_locals() {
    thread_local!(static STD: Deed = const { RefCell::new(None) });
    for std_first in [false, true] {
        let log = Log::default();
        let noted = log.clone();
        let thread = std::thread::spawn(move || {
            let late = noted.clone();
            let make_std = || STD.set(deed(move || late.note(format!("{}", COUNT.try_with(Cell::get).is_ok()))));
            let make_ours = || A.set(noting(&noted, "a"));
            if std_first {
                make_std();
                make_ours();
            } else {
                make_ours();
                make_std();
            }
        });
        thread.join().unwrap();
        let mut log = log.read();
        log.retain(|line| line != "true" && line != "false");
        assert_eq!(log, ["a"]);
    }
}

/// Counts itself, and the clones that were made of it.
struct Counted {
    value: u32,
    alive: Arc<AtomicUsize>,
    clones: Arc<AtomicUsize>,
    /// The clone that panics.
    bad: usize,
}

impl Counted {
    fn new(value: u32, bad: usize) -> Self {
        Self { value, alive: Arc::new(AtomicUsize::new(1)), clones: Arc::default(), bad }
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        assert!(self.clones.fetch_add(1, SeqCst) + 1 != self.bad, "clone {}", self.bad);
        self.alive.fetch_add(1, SeqCst);
        Self { value: self.value, alive: self.alive.clone(), clones: self.clones.clone(), bad: self.bad }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, SeqCst);
    }
}

fiber_local! {
    #[inherit]
    static FIRST: RefCell<Option<Counted>> = const { RefCell::new(None) };
    #[inherit]
    static USER: Cell<u32> = const { Cell::new(0) };
    #[inherit]
    static SECOND: RefCell<Option<Counted>> = const { RefCell::new(None) };
}

#[test]
fn every_way_to_spawn_hands_inherited_values_down() {
    let runtime = runtime(2);
    let seen = |expected: u32| move || assert_eq!(USER.replace(999), expected);
    let all = |expected: u32| {
        sinew::spawn(seen(expected)).join().unwrap();
        Builder::new().name("b").spawn(seen(expected)).unwrap().join().unwrap();
        sinew::spawn_batch((0..5).map(|_| seen(expected))).into_iter().for_each(|fiber| fiber.join().unwrap());
        sinew::scope(|scope| {
            scope.spawn(seen(expected));
            Builder::new().spawn_scoped(scope, seen(expected)).unwrap();
        });
        sinew::run(seen(expected));
        runtime.spawn(seen(expected)).join().unwrap();
        runtime.run(seen(expected));
        let (sender, receiver) = mpsc::channel();
        sinew::hop(move || sender.send(USER.get()).unwrap());
        assert_eq!(receiver.recv().unwrap(), expected);
        assert_eq!(USER.get(), expected, "the parent's own is as it was");
    };
    // From a plain thread, from a fiber, from a child, which has it from its parent alone.
    USER.set(1);
    all(1);
    sinew::run(|| {
        all(1);
        USER.set(2);
        all(2);
        sinew::run(|| all(2));
    });
}

#[test]
fn a_value_that_was_not_made_or_not_marked_is_not_inherited() {
    sinew::run(|| {
        COUNT.set(1);
        assert_eq!(sinew::run(|| COUNT.get()), 7);
        assert_eq!(sinew::run(|| USER.get()), 0);
        assert_eq!(sinew::run(|| sinew::run(|| USER.get())), 0);
    });
}

#[test]
fn a_clone_that_panics_leaves_nothing_behind() {
    let runtime = runtime(2);
    runtime.run(|| {
        let ways: [fn(&Runtime); 6] = [
            |_| drop(sinew::spawn(|| unreachable!())),
            |_| drop(sinew::spawn_batch((0..3).map(|_| || unreachable!()))),
            |_| sinew::scope(|scope| _ = scope.spawn(|| unreachable!())),
            |_| sinew::run(|| unreachable!()),
            |runtime| drop(runtime.spawn(|| unreachable!())),
            |_| sinew::hop(|| unreachable!()),
        ];
        for way in ways {
            let (first, second) = (Counted::new(1, 0), Counted::new(2, 1));
            let alive = [first.alive.clone(), second.alive.clone()];
            let before = sinew::metrics().spawned;
            FIRST.set(Some(first));
            SECOND.set(Some(second));
            let panic = catch_unwind(AssertUnwindSafe(|| way(&runtime))).unwrap_err();
            assert_eq!(text(panic), "clone 1");
            assert_eq!(alive.each_ref().map(|alive| alive.load(SeqCst)), [1, 1], "the parent's own");
            assert_eq!(sinew::metrics().spawned, before);
        }
    });
}

/// A fiber that keeps its worker spawns until its runtime, which is being dropped, refuses: what was accepted is dropped unrun.
#[test]
fn clones_of_refused_children_are_dropped() {
    let value = Counted::new(1, 0);
    let (alive, clones) = (value.alive.clone(), value.clones.clone());
    let runtime = runtime(1);
    let (begun, has_begun) = mpsc::channel();
    let hog = runtime.spawn(move || {
        begun.send(()).unwrap();
        FIRST.set(Some(value));
        let mut accepted = Vec::new();
        loop {
            match Builder::new().spawn(|| unreachable!("a child ran")) {
                Ok(child) => accepted.push(child),
                Err(_) => break accepted,
            }
        }
    });
    has_begun.recv().unwrap();
    drop(runtime);
    let children = hog.join().unwrap();
    assert_eq!(clones.load(SeqCst), children.len() + 1);
    for child in children {
        let payload: Box<dyn Any + Send> = child.join().unwrap_err();
        assert!(payload.is::<sinew::NeverRan>());
    }
    assert_eq!(alive.load(SeqCst), 0);
}

#[test]
fn a_clone_may_suspend_spawn_and_make_other_keys() {
    struct Busy(u32);
    impl Clone for Busy {
        fn clone(&self) -> Self {
            yield_now();
            TEXT.set(String::from("by clone"));
            USER.set(5);
            // Which clones in turn, once.
            if !NESTED.replace(true) {
                sinew::run(|| ());
            }
            Self(self.0 + 1)
        }
    }
    fiber_local! {
        #[inherit]
        static BUSY: Busy = Busy(0);
        static NESTED: Cell<bool> = const { Cell::new(false) };
    }
    runtime(2).run(|| {
        BUSY.with(|_| ());
        let in_child = sinew::run(|| (BUSY.with(|busy| busy.0), USER.get(), TEXT.take()));
        assert_eq!(in_child, (1, 5, String::from("unset")));
    });
}

#[test]
fn hooks_run_around_every_suspension_and_at_no_other_time() {
    runtime(1).run(|| {
        let log = Log::default();
        let noted = log.clone();
        let fiber = sinew::spawn(move || {
            for name in ["1", "2"] {
                let (out, back) = (noted.clone(), noted.clone());
                on_suspend(move || out.note(format!("out {name}")));
                on_resume(move || back.note(format!("back {name}")));
            }
            let pair = |what: &str| {
                assert_eq!(noted.read(), ["out 2", "out 1", "back 1", "back 2"], "{what}");
                noted.0.lock().unwrap().clear();
            };
            // No suspension, no hook.
            let child = sinew::spawn(|| 5);
            sinew::current().unpark();
            sinew::park();
            assert!(noted.read().is_empty());

            yield_now();
            pair("yield_now");
            assert_eq!(child.join().unwrap(), 5);
            noted.0.lock().unwrap().clear();
            sinew::park_timeout(Duration::from_micros(1));
            pair("park_timeout");
            sinew::sleep(Duration::from_micros(1));
            pair("sleep");
            sinew::spawn(|| ()).join().unwrap();
            pair("join");
            sinew::scope(|scope| _ = scope.spawn(|| ()));
            pair("scope");
            sinew::run(|| yield_now());
            pair("run: a child has no hooks");
            noted.note("closure");
        });
        // Somebody else is ready whenever it yields.
        while !fiber.is_finished() {
            yield_now();
        }
        fiber.join().unwrap();
        assert_eq!(log.read(), ["closure"]);
    });
}

/// What the hooks are for: a value in a thread-local that follows its fiber.
#[test]
fn context_in_a_thread_local_does_not_leak_between_fibers() {
    thread_local!(static CONTEXT: Cell<u32> = const { Cell::new(0) });
    runtime(2).run(|| {
        let fibers: Vec<_> = (1..=50)
            .map(|i| {
                sinew::spawn(move || {
                    assert_eq!(CONTEXT.get(), 0);
                    if i % 3 == 0 {
                        yield_now();
                        assert_eq!(CONTEXT.get(), 0, "left by another fiber");
                        return;
                    }
                    let kept = Rc::new(Cell::new(0));
                    let take = kept.clone();
                    on_suspend(move || take.set(CONTEXT.replace(0)));
                    on_resume(move || CONTEXT.set(kept.replace(0)));
                    CONTEXT.set(i);
                    for _ in 0..20 {
                        yield_now();
                        assert_eq!(CONTEXT.get(), i);
                    }
                    CONTEXT.set(0);
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
}

#[test]
fn hooks_are_dropped_before_the_locals_last_first() {
    let log = Log::default();
    let noted = log.clone();
    sinew::run(|| {
        A.set(noting(&noted, "local"));
        for name in ["first", "second"] {
            let end = noting(&noted, name);
            on_suspend(move || assert!(end.is_some()));
        }
    });
    assert_eq!(log.read(), ["second", "first", "local"]);
}

#[test]
fn a_hook_that_panics_is_dropped_and_its_panic_is_the_outcome() {
    let runs = Arc::new(AtomicUsize::new(0));
    let (bad, good) = (runs.clone(), runs.clone());
    let fiber = sinew::spawn(move || {
        on_suspend(move || _ = good.fetch_add(1, SeqCst));
        on_suspend(move || {
            bad.fetch_add(100, SeqCst);
            panic!("in a hook");
        });
        (0..3).for_each(|_| sinew::sleep(Duration::from_micros(1)));
        "a value"
    });
    assert_eq!(text(fiber.join().unwrap_err()), "in a hook");
    assert_eq!(runs.load(SeqCst), 103);

    let fiber = sinew::spawn(|| {
        on_resume(|| panic!("in a hook"));
        sinew::sleep(Duration::from_micros(1));
        panic!("its own");
    });
    assert_eq!(text(fiber.join().unwrap_err()), "its own");
}

/// The wait that a hook precedes has begun: it must neither be disturbed by one that tries to suspend, nor by one that panics while the fiber unwinds.
#[test]
fn a_hook_that_tries_to_suspend_panics_and_the_wait_goes_on() {
    let place = format!("{}:{}", file!(), line!() + 2);
    let fiber = sinew::spawn(|| {
        on_suspend(|| sinew::sleep(Duration::from_secs(1000)));
        let child = sinew::spawn(|| sinew::sleep(Duration::from_millis(1)));
        child.join().unwrap();
        sinew::scope(|scope| _ = scope.spawn(|| yield_now()));
        assert!(catch_unwind(|| sinew::no_suspend(|| yield_now())).is_err());
        yield_now();
    });
    let panic = text(fiber.join().unwrap_err());
    assert!(
        panic.starts_with(&format!("a call at {place}")) && panic.contains(&format!("inside an on_suspend hook, set at {place}")),
        "{panic}"
    );

    let fiber = sinew::spawn(|| {
        on_suspend(|| panic!("in a hook"));
        let _end = OnDrop(|| sinew::sleep(Duration::from_micros(1)));
        panic!("its own");
    });
    assert_eq!(text(fiber.join().unwrap_err()), "its own");
}

#[test]
fn a_hook_may_set_hooks_spawn_and_unpark() {
    runtime(1).run(|| {
        let (sender, receiver) = mpsc::channel();
        let me = sinew::current();
        on_suspend(move || {
            let (me, sender) = (me.clone(), sender.clone());
            on_resume(|| ());
            // Its own park, which has begun, ends by its own hand.
            sinew::spawn(move || sender.send(()).unwrap());
            me.unpark();
        });
        sinew::park();
        yield_now();
        receiver.recv().unwrap();
    });
}

#[test]
fn hooks_on_a_plain_thread_do_nothing() {
    let thread = std::thread::spawn(|| {
        on_suspend(|| panic!("on a plain thread"));
        on_resume(|| panic!("on a plain thread"));
        sinew::park_timeout(Duration::from_micros(1));
        yield_now();
    });
    thread.join().unwrap();
}

#[test]
fn many_fibers_with_locals_and_hooks_leave_nothing_behind() {
    let alive = Arc::new(AtomicUsize::new(0));
    let runtime = runtime(4);
    let fibers: Vec<_> = (0..2000usize)
        .map(|i| {
            let alive = alive.clone();
            runtime.spawn(move || {
                let one = || {
                    alive.fetch_add(1, SeqCst);
                    let alive = alive.clone();
                    OnDrop(move || _ = alive.fetch_sub(1, SeqCst))
                };
                let (a, hook) = (one(), one());
                A.set(deed(move || assert!(std::ptr::from_ref(&a) as usize != 0)));
                on_suspend(move || assert!(std::ptr::from_ref(&hook) as usize != 0));
                yield_now();
                assert!(i % 7 != 0, "on purpose");
            })
        })
        .collect();
    let failed = fibers.into_iter().map(|fiber| fiber.join()).filter(Result::is_err).count();
    assert_eq!((failed, alive.load(SeqCst)), (286, 0));
}
