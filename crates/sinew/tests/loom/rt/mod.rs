//! Waiting, as plain threads do it, and as fibers of workers that are made of threads.

pub mod workers;

/// Stands in for `src/rt/wait.rs`: a model's thread is the waiter.
pub mod wait {
    use std::cell::RefCell;
    use std::sync::Arc;

    use crate::base::atomic::mutant;
    use crate::fiber::state::Cause;
    use crate::fiber::why::Why;
    use crate::fiber::{Claimed, Control};
    use crate::os::lock::Lock;
    use crate::os::{clock, futex};
    use crate::rt::workers;
    use crate::sched::worker::make_ready;

    /// Stands in for a worker that is held: its threads' waits end, by claim or deadline, only when it is let go.
    pub mod held {
        use std::cell::Cell;

        use loom::sync::{Condvar, Mutex};

        loom::lazy_static! {
            static ref GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
        }

        loom::thread_local! {
            static IS_HELD: Cell<bool> = Cell::new(false);
        }

        /// The caller is of it from now on.
        pub fn begin() {
            IS_HELD.with(|held| held.set(true));
        }

        pub fn end() {
            *GATE.0.lock().unwrap() = true;
            GATE.1.notify_all();
        }

        pub(super) fn pass() {
            if IS_HELD.with(Cell::get) {
                let mut open = GATE.0.lock().unwrap();
                while !*open {
                    open = GATE.1.wait(open).unwrap();
                }
            }
        }
    }

    /// A deadline that may come at any moment of a wait: the model tries each.
    pub const SOON: u64 = 1;

    pub struct Me(Arc<Control>);

    impl Me {
        pub fn to_wait() -> Me {
            Me(Arc::new(Control::new()))
        }

        pub fn control(&self) -> &Control {
            &self.0
        }

        pub fn begin_wait(&self, why: Why) {
            self.control().note_why(why);
            self.control().state.begin_wait();
        }

        /// # Safety
        /// As in `src`.
        pub unsafe fn wait(&self, deadline_ns: u64) -> Cause {
            let state = &self.control().state;
            match self.control().fiber {
                Some(fiber) => self.wait_as_fiber(fiber, deadline_ns),
                None => self.wait_as_thread(deadline_ns),
            }
            // Whoever claimed it may yet wake it: the block must stay, as blocks in `src` do.
            std::mem::forget(self.0.clone());
            state.end_wait()
        }

        /// Lets others of its worker run, until it was made ready and its turn has come. Its alarm may go off at any moment.
        fn wait_as_fiber(&self, fiber: workers::Fiber, deadline_ns: u64) {
            workers::pass_on(fiber);
            if deadline_ns != u64::MAX && !mutant("no alarms") {
                loom::thread::yield_now();
                if self.control().state.claim(Cause::TimedOut) {
                    clock::reach(deadline_ns);
                    workers::make_ready(fiber);
                }
            }
            workers::await_turn(fiber);
        }

        fn wait_as_thread(&self, deadline_ns: u64) {
            let state = &self.control().state;
            held::pass();
            if deadline_ns != u64::MAX && !mutant("no alarms") {
                loom::thread::yield_now();
                let _ = state.claim(Cause::TimedOut);
            }
            while let Some(word) = state.waiting() {
                futex::wait(state.word(), word, u64::MAX);
            }
        }

        /// # Safety
        /// As in `src`.
        pub unsafe fn wait_at<Q>(&self, lock: &Lock<Q>, deadline_ns: u64, withdraw: impl FnOnce(&mut Q)) -> Cause {
            // SAFETY: the caller's promise.
            let cause = unsafe { self.wait(deadline_ns) };
            match cause {
                Cause::Woken => self.pass_through(lock),
                _ => withdraw(&mut lock.lock()),
            }
            cause
        }

        pub fn stays(&self) -> bool {
            true
        }

        pub fn may_be_early(&self) -> bool {
            self.control().fiber.is_none()
        }

        pub fn pass_through<Q>(&self, lock: &Lock<Q>) {
            if self.may_be_early() {
                drop(lock.lock());
            }
        }
    }

    /// The mutant takes every worker's for one that the caller is not of.
    pub fn home() -> *const () {
        match workers::me() {
            Some(fiber) if !mutant("nobody is at home") => fiber.home(),
            _ => std::ptr::null(),
        }
    }

    pub fn yield_now() {
        match workers::me() {
            Some(fiber) => workers::yield_now(fiber),
            None => loom::thread::yield_now(),
        }
    }

    pub fn may_wait() -> bool {
        true
    }

    /// As in `src`: a thread is woken at once, fibers are when the lock was let go of.
    #[must_use]
    pub struct Wakes(RefCell<Vec<Claimed>>);

    impl Wakes {
        pub fn none() -> Self {
            Self(RefCell::new(Vec::new()))
        }

        pub fn add(&self, claimed: Claimed) {
            // SAFETY: blocks of waiters are never freed (`Me::wait`).
            match unsafe { (*claimed.control).fiber } {
                Some(_) => self.0.borrow_mut().push(claimed),
                None => make_ready(claimed),
            }
        }

        pub fn pay(self) {
            self.0.into_inner().into_iter().for_each(make_ready);
        }
    }
}
