//! What a fiber wants done when it leaves its thread and when it comes back, and the regions in which it must not leave.
//!
//! Both are told by a byte of marks in the control block (`Control::is_marked`): a suspension of a fiber without marks looks at nothing else.

use std::cell::UnsafeCell;
use std::fmt;
use std::panic::Location;

use super::local::Locals;
use super::task::quietly;

/// When a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Suspend,
    Resume,
}

/// A stretch of a program in which it must not suspend. It cannot be left by a switch, so the thread knows which is the innermost.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    /// What it is, and how it came to be: "sinew::no_suspend, entered".
    pub(crate) what: &'static str,
    pub(crate) site: &'static Location<'static>,
}

impl Region {
    fn of_hook(when: When, site: &'static Location<'static>) -> Self {
        let what = match when {
            When::Suspend => "an on_suspend hook, set",
            When::Resume => "an on_resume hook, set",
        };
        Self { what, site }
    }

    /// Refuses a suspension that is tried inside this region.
    #[cold]
    #[inline(never)]
    #[track_caller]
    pub(crate) fn refuse(self) -> ! {
        panic!("a call at {} would suspend; it is inside {self}", Location::caller());
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.what, self.site)
    }
}

/// A hook.
pub(crate) struct Hook {
    when: When,
    site: &'static Location<'static>,
    /// `None` while it runs, and once it has panicked.
    call: Option<Box<dyn FnMut()>>,
}

/// The hooks of one fiber, in the order in which they were set. By that fiber alone (law F2).
pub(crate) struct Hooks(UnsafeCell<Vec<Hook>>);

impl Hooks {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(Vec::new()))
    }

    pub(crate) fn push(&self, when: When, site: &'static Location<'static>, call: Box<dyn FnMut()>) {
        // SAFETY: F2, and the borrow ends before user code runs (`local.rs`, I2).
        unsafe { (*self.0.get()).push(Hook { when, site, call: Some(call) }) };
    }

    /// Takes out the one that was set last.
    pub(crate) fn pop(&self) -> Option<Hook> {
        // SAFETY: as in `push`.
        unsafe { (*self.0.get()).pop() }
    }

    fn len(&self) -> usize {
        // SAFETY: as in `push`.
        unsafe { (&*self.0.get()).len() }
    }

    /// The hook at `index`, if it is one for `when` and can be called; it is put back by `put`.
    fn take(&self, index: usize, when: When) -> Option<(Region, Box<dyn FnMut()>)> {
        // SAFETY: as in `push`.
        let hook = unsafe { (&mut *self.0.get()).get_mut(index)? };
        let call = if hook.when == when { hook.call.take() } else { None };
        Some((Region::of_hook(when, hook.site), call?))
    }

    fn put(&self, index: usize, call: Box<dyn FnMut()>) {
        // SAFETY: as in `push`. Hooks are taken out at the end of the fiber only, and never by a hook.
        unsafe { (&mut *self.0.get())[index].call = Some(call) };
    }
}

impl Locals {
    /// Runs the hooks for `when`; `enter` is told the region that each is. The last set runs first before a suspension, and last after it. One that
    /// panics is not run again; its panic is kept for the outcome.
    pub(crate) fn run_hooks(&self, when: When, enter: impl Fn(Region)) {
        let count = self.hooks.len();
        for step in 0..count {
            let index = if when == When::Suspend { count - 1 - step } else { step };
            let Some((region, mut call)) = self.hooks.take(index, when) else { continue };
            enter(region);
            if self.carefully(&mut *call) {
                quietly(|| drop(call));
            } else {
                self.hooks.put(index, call);
            }
        }
    }
}
