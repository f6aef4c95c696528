//! The closure of a fiber, its outcome, and the few functions that still know their types.
//!
//! Everything else in the runtime sees a [`Table`] of functions. Closure and outcome share one 64-byte slot of the control block, one after the other;
//! larger ones are boxed, and the slot holds the box.

use std::any::Any;
use std::io::Write;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::join::{Detach, Finish};
use super::tally::Failure;
use super::{Control, INLINE_BYTES, Verdict};
use crate::fiber::stack::NoStack;
use crate::os::memory::Guard;

/// How a fiber ended, as its `join` gives it.
pub(crate) type Outcome<T> = Result<T, Box<dyn Any + Send>>;

/// The functions that know the types of one kind of fiber.
pub(crate) struct Table {
    /// Runs the closure on this stack, stores or drops the outcome; hands back what the end owes.
    pub(crate) run: unsafe fn(&Control) -> Ended,
    /// Drops the closure unrun on this stack and makes `why` the outcome.
    pub(crate) refuse: unsafe fn(&Control, NeverRan) -> Ended,
}

/// What the end of a fiber owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Ended {
    /// Nothing.
    Unseen,
    /// The watcher is to be woken; its field is the caller's.
    Watched,
    /// The fiber panicked and nobody will ask for the payload, nor a scope tell of it.
    InLostPanic,
}

/// The payload of [`join`](crate::JoinHandle::join) for a fiber that ended without having run.
///
/// ```
/// # let handle = sinew::spawn(|| 1);
/// match handle.join() {
///     Ok(value) => assert_eq!(value, 1),
///     Err(payload) => match payload.downcast_ref::<sinew::NeverRan>() {
///         Some(why) => eprintln!("{why}"),
///         None => eprintln!("it panicked"),
///     },
/// }
/// ```
#[derive(Debug, Clone)]
pub struct NeverRan {
    text: String,
}

impl NeverRan {
    pub(crate) fn no_stack(why: &NoStack) -> Self {
        let NoStack { error, stacks, guard } = why;
        let text = match guard {
            Guard::Protect => format!(
                "the fiber never ran: no stack for it after {stacks} stacks ({error}); on this kernel each stack's guard takes two \
                 mappings, so raise vm.max_map_count, now {} (sysctl -w vm.max_map_count=...), or keep fewer fibers alive",
                crate::os::memory::max_map_count()
            ),
            Guard::Marker => format!(
                "the fiber never ran: no stack for it after {stacks} stacks ({error}); the process is out of memory or address space \
                 (ulimit -v, cgroup limit, vm.overcommit_memory, vm.max_map_count): keep fewer fibers alive or give them smaller stacks"
            ),
        };
        Self { text }
    }

    pub(crate) fn shut_down() -> Self {
        Self { text: "the fiber never ran: its runtime was shut down first".into() }
    }
}

impl std::fmt::Display for NeverRan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for NeverRan {}

impl Control {
    /// Puts the closure in, and the functions that know it.
    ///
    /// # Safety
    /// The block is the caller's alone and holds no closure. `F` and `T` may borrow only what outlives the fiber.
    #[inline]
    pub(crate) unsafe fn load<F: FnOnce() -> T, T>(&self, closure: F) {
        self.task.set(Some(const { &Table { run: run::<F, T>, refuse: refuse::<F, T> } }));
        // SAFETY: the slot is free.
        unsafe { put(self, closure) };
    }

    /// Takes the closure back.
    ///
    /// # Safety
    /// `load` put an `F` in, and the fiber was never queued.
    pub(crate) unsafe fn unload<F>(&self) -> F {
        // SAFETY: the caller's promise.
        unsafe { take(self) }
    }

    /// The functions that know the types of this fiber.
    pub(crate) fn table(&self) -> &'static Table {
        self.task.get().expect("a fiber that is run has a closure")
    }

    /// Takes the outcome out.
    ///
    /// # Safety
    /// The fiber is done, its outcome is the caller's (`join.rs`, I2) and was not taken; it has type `T`.
    pub(crate) unsafe fn take_outcome<T>(&self) -> Outcome<T> {
        // SAFETY: the caller's promise.
        unsafe { take(self) }
    }

    /// Gives up the claim to the outcome, and drops it if it is there.
    ///
    /// # Safety
    /// By the one handle of the fiber, which has no watcher set; the outcome has type `T` and was not taken.
    #[inline(never)]
    pub(crate) unsafe fn detach<T>(&self) {
        match self.join.detach() {
            Detach::Left => {}
            Detach::DropOutcome => {
                // SAFETY: `detach` said that the outcome is ours.
                let outcome = unsafe { self.take_outcome::<T>() };
                if outcome.is_err() && !self.is_scoped() {
                    self.report_lost();
                }
                drop(outcome);
            }
        }
    }

    /// Why it has no value, if it has none. At its end, and after it by whoever holds a reference.
    pub(crate) fn failure(&self) -> Failure {
        match self.verdict() {
            Verdict::Run => Failure::Panicked,
            Verdict::NoStack => Failure::NoStack,
            Verdict::ShutDown | Verdict::ShutDownInReserve => Failure::ShutDown,
        }
    }

    /// Says on stderr that it panicked, or never ran, and that no `join` will show it.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_lost(&self) {
        let what = match self.verdict() {
            Verdict::Run => "panicked",
            Verdict::NoStack => "never ran for want of a stack",
            // Dropped with its runtime, as its owner asked; there may be very many.
            Verdict::ShutDown | Verdict::ShutDownInReserve => return,
        };
        // In one piece: the message of another's panic, which std writes without stderr's lock, may come meanwhile. Not `eprintln`, which panics where stderr is gone.
        let line = format!("sinew: fiber {self}, {what}, and its handle was dropped: nobody will join it\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

unsafe fn run<F: FnOnce() -> T, T>(control: &Control) -> Ended {
    // SAFETY: `load` put an `F` there, and a fiber is run once.
    let closure = unsafe { take::<F>(control) };
    let outcome = catch_unwind(AssertUnwindSafe(closure));
    let outcome = match control.end_locals() {
        None => outcome,
        Some(panic) => fail(outcome, panic),
    };
    // SAFETY: the closure is out of the slot.
    unsafe { finish(control, outcome) }
}

unsafe fn refuse<F: FnOnce() -> T, T>(control: &Control, why: NeverRan) -> Ended {
    // SAFETY: `load` put an `F` there, and a fiber is run or refused once.
    let closure = unsafe { take::<F>(control) };
    quietly(|| drop(closure));
    control.end_locals().into_iter().for_each(discard);
    // SAFETY: the closure is out of the slot.
    unsafe { finish::<T>(control, Err(Box::new(why))) }
}

/// A panic of a hook or a fiber-local's destructor becomes the outcome, unless the closure panicked itself.
#[cold]
#[inline(never)]
fn fail<T>(outcome: Outcome<T>, panic: Box<dyn Any + Send>) -> Outcome<T> {
    match outcome {
        Ok(value) => {
            quietly(|| drop(value));
            Err(panic)
        }
        Err(own) => {
            discard(panic);
            Err(own)
        }
    }
}

/// Stores the outcome for the handle, or drops it here if there is none.
unsafe fn finish<T>(control: &Control, outcome: Outcome<T>) -> Ended {
    let failed = outcome.is_err();
    if failed && let Some(tally) = control.tally() {
        tally.failed(control.failure());
    }
    let lost = if failed && !control.is_scoped() { Ended::InLostPanic } else { Ended::Unseen };
    if control.join.is_detached() {
        quietly(|| drop(outcome));
        let _ = control.join.finish();
        return lost;
    }
    // SAFETY: the slot is free, and the outcome still the fiber's.
    unsafe { put(control, outcome) };
    match control.join.finish() {
        Finish::Kept => Ended::Unseen,
        Finish::WakeWatcher => Ended::Watched,
        Finish::DropOutcome => {
            // SAFETY: `finish` said that nobody will take it; it was put there a moment ago.
            let outcome = unsafe { control.take_outcome::<T>() };
            quietly(|| drop(outcome));
            lost
        }
    }
}

/// Runs user code at a place where a panic has nobody to go to. The panic hook has reported it.
pub(crate) fn quietly(f: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
        discard(payload);
    }
}

/// Drops the payload of a panic that nobody will see. If that panics in turn, the new payload is leaked: there must be an end.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

struct Fits<V>(PhantomData<V>);

impl<V> Fits<V> {
    const INLINE: bool = size_of::<V>() <= INLINE_BYTES && align_of::<V>() <= align_of::<Control>();
}

unsafe fn put<V>(control: &Control, value: V) {
    // SAFETY: the caller says that the slot is free and its own; `Fits` says that the value, else the pointer, has room.
    unsafe {
        if Fits::<V>::INLINE {
            control.slot().cast::<V>().write(value);
        } else {
            control.slot().cast::<*mut V>().write(Box::into_raw(Box::new(value)));
        }
    }
}

unsafe fn take<V>(control: &Control) -> V {
    // SAFETY: the caller says that a `V` was put there and belongs to it.
    unsafe { if Fits::<V>::INLINE { control.slot().cast::<V>().read() } else { *Box::from_raw(control.slot().cast::<*mut V>().read()) } }
}
