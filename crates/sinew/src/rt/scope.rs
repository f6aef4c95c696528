//! Fibers that borrow from the one that waits for them.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::fiber::Fiber;
use super::runtime::current_groups;
use super::spawn::{Family, Handle, Settings, launch, or_panic};
use super::wait::Me;
use crate::fiber::frame::Frame;
use crate::fiber::tally::{Failure, Tally};
use crate::fiber::why::Why;
use crate::os::fork;
use crate::sched::groups::Groups;

/// Where scoped fibers are spawned, as [`std::thread::Scope`]. See [`scope`].
pub struct Scope<'scope, 'env: 'scope> {
    tally: Tally,
    groups: Arc<Groups>,
    /// The owner's frame, and what the fibers of the scope begin with.
    frame: Frame,
    root: Frame,
    // Invariant in both, as std's: else a fiber could borrow what lives shorter than the scope.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

// SAFETY: what fibers share of a scope is the tally's atomics, the owner's block (which they claim once, at the end), the groups, and the frames (`frame.rs`).
unsafe impl Sync for Scope<'_, '_> {}
// SAFETY: as above.
unsafe impl Send for Scope<'_, '_> {}

/// Runs `f`, which may spawn fibers that borrow, and returns when all of them have ended.
///
/// As [`std::thread::scope`]: fibers that nobody joined are waited for, whatever happens, a panic of `f` included. Works in fibers, and on plain
/// threads, where the fibers are of the default runtime (in a job of [`blocking`](crate::blocking()) of that of the fiber that asked).
///
/// The fibers are cancelled when the caller is, and the deadline that is in force here ([`timeout`](crate::timeout)) is theirs too.
///
/// # Suspends
/// Yes, until all fibers of the scope have ended. No cancel point.
///
/// # Panics
/// If a fiber panicked that was not joined, or was not run, for want of a stack or since the runtime is being [shut down](crate::Runtime::shutdown_timeout): what it was to do is missing; the message says
/// which of these it was, and a [panic hook](crate::Builder::name) which fiber. If the fiber was joined, `join` returns that error, and `scope` does not panic. Also inside [`no_suspend`](crate::no_suspend), before `f` is called.
///
/// # Examples
/// ```
/// let mut counts = [0u32; 4];
/// sinew::scope(|s| {
///     for (i, count) in counts.iter_mut().enumerate() {
///         s.spawn(move || *count = i as u32 * 10);
///     }
/// });
/// assert_eq!(counts, [0, 10, 20, 30]);
/// ```
#[track_caller]
pub fn scope<'env, F, T>(f: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let me = Me::to_wait();
    let groups = or_panic(current_groups(), "sinew::scope");
    let around = me.control().bounds();
    let (tally, frame, root) = (Tally::new(me.control()), Frame::scope(around), Frame::root(around));
    let scope = Scope { tally, groups, frame, root, scope: PhantomData, env: PhantomData };
    scope.root.count_by(&scope.tally);
    // SAFETY: the scope stays in place, and its frame is closed below, whatever `f` does.
    unsafe { me.control().open(&scope.frame) };
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    if fork::is_child() {
        // The fibers that would have to be waited for are in the parent, and may borrow from this frame there.
        fork::abort("a scope came to its end in a forked child");
    }
    me.control().note_why(Why::Scope);
    me.control().state.begin_wait();
    if scope.tally.begin_wait() {
        // SAFETY: the wait was begun above; the last child ends it.
        unsafe { me.wait(u64::MAX) };
    } else {
        me.abandon_wait();
    }
    me.control().close(&scope.frame);
    match (result, scope.tally.failure()) {
        (Err(payload), _) => resume_unwind(payload),
        (Ok(value), None) => value,
        (Ok(_), Some(Failure::Panicked)) => panic!("a scoped fiber panicked"),
        (Ok(_), Some(Failure::NoStack)) => panic!("a scoped fiber was not run: there was no stack for it"),
        (Ok(_), Some(Failure::ShutDown)) => panic!("a scoped fiber was not run: the runtime is being shut down"),
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a fiber that may borrow what outlives the scope.
    ///
    /// In a runtime that is being shut down it is dropped unrun, as by [`spawn`](crate::spawn()): its `join` gives a [`NeverRan`](crate::NeverRan), and if nobody joins it, [`scope`] panics at its end.
    ///
    /// # Panics
    /// If the runtime is out of memory; [`Builder::spawn_scoped`](crate::Builder::spawn_scoped) gives an error instead, and also during a shutdown.
    #[track_caller]
    pub fn spawn<F, T>(&'scope self, f: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        or_panic(self.launch(None, Settings::default(), Location::caller(), f), "Scope::spawn")
    }

    /// Starts a fiber of this scope, in these groups, if they are not its own.
    pub(crate) fn launch<F, T>(
        &'scope self,
        groups: Option<&Arc<Groups>>,
        settings: Settings,
        site: &'static Location<'static>,
        f: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let family = Family { owner: self.tally.owner(), frame: &self.frame, root: &self.root };
        let settings = Settings { family: Some(family), ..settings };
        // SAFETY: `scope` does not return before every fiber of the tally has left it, which it does after its outcome was stored or dropped;
        // so all that lives for `'scope` outlives it.
        let handle = unsafe { launch(groups.unwrap_or(&self.groups), settings, site, f) }?;
        Ok(ScopedJoinHandle { handle, tally: &self.tally })
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

/// The right to wait for a scoped fiber and have its outcome, as [`std::thread::ScopedJoinHandle`].
pub struct ScopedJoinHandle<'scope, T> {
    handle: Handle<T>,
    tally: &'scope Tally,
}

// SAFETY: as `JoinHandle`.
unsafe impl<T: Send> Send for ScopedJoinHandle<'_, T> {}
// SAFETY: as `JoinHandle`.
unsafe impl<T: Send> Sync for ScopedJoinHandle<'_, T> {}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the fiber to end, and returns its value, or the payload of its panic; a [`NeverRan`](crate::NeverRan) if it was not run at all.
    ///
    /// # Suspends
    /// Yes, until the fiber has ended.
    #[track_caller]
    pub fn join(mut self) -> std::thread::Result<T> {
        let outcome = self.handle.join();
        if outcome.is_err() {
            self.tally.failure_taken(self.fiber().control().failure());
        }
        outcome
    }

    /// Cancels the fiber and the fibers of its scopes, as [`JoinHandle::cancel`](crate::JoinHandle::cancel).
    pub fn cancel(&self) {
        self.handle.fiber.cancel();
    }

    /// Whether the fiber has ended, so that `join` would not wait.
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// The fiber itself.
    pub fn fiber(&self) -> &Fiber {
        &self.handle.fiber
    }
}

impl<T> fmt::Debug for ScopedJoinHandle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedJoinHandle").field("fiber", self.fiber()).finish_non_exhaustive()
    }
}
