//! What a fiber carries for itself: its fiber-locals and its hooks. A plain thread has its own.
//!
//! Nothing is made before it is used: a [`Place`] is one pointer, null until then, so that fibers that carry nothing pay for a look at it when they
//! spawn and when they end. Values are boxed, each by itself: the closure of `with` may suspend, or make other keys, while it holds one. The
//! list is searched from its beginning; a fiber has a handful of keys. Rejected: a number per key and a table per fiber, which is longer than the list
//! as soon as fibers use different keys.
//!
//! # Picture
//! ```text
//!   place:   null ----first use, or inherited----> Locals ----end----> GONE          of a fiber: until its block is used again
//!   entry:   (none) --begin--> MAKING --finish--> MADE --end--> DESTROYED
//!               ^-----panic------+
//! ```
//!
//! # Invariants
//! I1. Locals are touched by the fiber they belong to alone (law F2), or, before it is queued, by its spawner.
//! I2. No reference into an `UnsafeCell` of this file is alive when user code runs.
//! I3. A made value stays where it is until `end` destroys it. `end` runs when the fiber's closure has returned, so that nothing of it holds a
//!     value; what destructors hold, they let go before `end` goes on.
//! I4. Made entries are in the order of their making; what comes to be during `end` is ended too.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use super::hooks::Hooks;
use super::task::discard;

/// What a panic carries.
pub(crate) type Payload = Box<dyn Any + Send>;

/// A key as this file knows it; its address is its identity, so it is never of size zero.
pub(crate) struct Key {
    drop: unsafe fn(*mut ()),
    /// How a child gets its value; `None` if it does not.
    clone: Option<unsafe fn(*const ()) -> *mut ()>,
}

impl Key {
    /// A key whose values each fiber makes for itself.
    pub(crate) const fn own<T>() -> Self {
        Self { drop: drop_value::<T>, clone: None }
    }

    /// A key whose value a child gets a clone of.
    pub(crate) const fn inherited<T: Clone + Send>() -> Self {
        Self { drop: drop_value::<T>, clone: Some(clone_value::<T>) }
    }
}

/// # Safety
/// `value` came from a `Box<T>` and is used by nobody any more.
unsafe fn drop_value<T>(value: *mut ()) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(value.cast::<T>()) });
}

/// # Safety
/// `value` points to a `T` that lives.
unsafe fn clone_value<T: Clone>(value: *const ()) -> *mut () {
    // SAFETY: the caller's promise.
    let clone = unsafe { (*value.cast::<T>()).clone() };
    Box::into_raw(Box::new(clone)).cast()
}

/// What there is of a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Its value, which stays there until the end.
    Value(*const ()),
    Unmade,
    /// Its initialiser runs.
    BeingMade,
    Destroyed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Making,
    Made,
    Destroyed,
}

#[derive(Clone, Copy)]
struct Entry {
    key: &'static Key,
    value: *mut (),
    stage: Stage,
}

/// The fiber-locals and hooks of one fiber or thread.
pub(crate) struct Locals {
    entries: UnsafeCell<Vec<Entry>>,
    pub(crate) hooks: Hooks,
    /// The first panic of a hook or a destructor, for the outcome.
    panic: Cell<Option<Payload>>,
}

impl Locals {
    fn new() -> Box<Self> {
        Box::new(Self { entries: UnsafeCell::new(Vec::new()), hooks: Hooks::new(), panic: Cell::new(None) })
    }

    fn find(&self, key: &'static Key) -> Found {
        // SAFETY: I1, I2.
        let entries = unsafe { &*self.entries.get() };
        match entries.iter().find(|entry| ptr::eq(entry.key, key)) {
            None => Found::Unmade,
            Some(Entry { stage: Stage::Making, .. }) => Found::BeingMade,
            Some(Entry { stage: Stage::Made, value, .. }) => Found::Value(*value),
            Some(Entry { stage: Stage::Destroyed, .. }) => Found::Destroyed,
        }
    }

    /// Begins to make the value of a key that is unmade. Unless it is finished, the key is unmade again.
    pub(crate) fn begin(&self, key: &'static Key) -> Making<'_> {
        self.push(Entry { key, value: ptr::null_mut(), stage: Stage::Making });
        Making { locals: self, key }
    }

    fn push(&self, entry: Entry) {
        // SAFETY: I1, I2.
        unsafe { (*self.entries.get()).push(entry) };
    }

    /// Clones what children inherit. A panic of a `clone` passes, and drops the clones that were made.
    fn inherit(&self) -> Inherited {
        let mut child = Inherited::default();
        let mut index = 0;
        // Each entry is read anew: a `clone` may make other keys, which come behind those that there are.
        // SAFETY: I1, I2 - the entry is copied out.
        while let Some(entry) = unsafe { (&*self.entries.get()).get(index).copied() } {
            index += 1;
            let Some(clone) = entry.key.clone.filter(|_| entry.stage == Stage::Made) else { continue };
            // SAFETY: I3 - the value is made and stays; it has the type that the key was made for.
            let value = unsafe { clone(entry.value) };
            child.0.get_or_insert_with(Locals::new).push(Entry { value, ..entry });
        }
        child
    }

    /// Drops the hook that was set last, else the value that was made last; `false` if there is neither.
    fn drop_last(&self) -> bool {
        if let Some(hook) = self.hooks.pop() {
            self.carefully(|| drop(hook));
            return true;
        }
        // SAFETY: I1, I2 - the borrow ends before the destructor runs.
        let entries = unsafe { &mut *self.entries.get() };
        let Some(entry) = entries.iter_mut().rev().find(|entry| entry.stage == Stage::Made) else { return false };
        entry.stage = Stage::Destroyed;
        let Entry { key, value, .. } = *entry;
        // SAFETY: I3 - nobody holds the value, and it is destroyed once: its stage was changed first.
        self.carefully(|| unsafe { (key.drop)(value) });
        true
    }

    /// Runs user code at a place that must go on; keeps the first panic for the outcome. Says whether it panicked.
    pub(crate) fn carefully(&self, f: impl FnOnce()) -> bool {
        let Err(payload) = catch_unwind(AssertUnwindSafe(f)) else { return false };
        match self.panic.take() {
            None => self.panic.set(Some(payload)),
            Some(first) => {
                self.panic.set(Some(first));
                discard(payload);
            }
        }
        true
    }
}

/// A value that is being made.
#[must_use]
pub(crate) struct Making<'a> {
    locals: &'a Locals,
    key: &'static Key,
}

impl Making<'_> {
    /// Puts the value in: it is the last that was made.
    ///
    /// # Safety
    /// `value` came from a box of the key's type and is handed over.
    pub(crate) unsafe fn finish(self, value: *mut ()) {
        self.remove();
        self.locals.push(Entry { key: self.key, value, stage: Stage::Made });
        mem::forget(self);
    }

    fn remove(&self) {
        // SAFETY: I1, I2.
        let entries = unsafe { &mut *self.locals.entries.get() };
        entries.retain(|entry| !ptr::eq(entry.key, self.key));
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

/// What a fiber that does not exist yet will have from its parent.
#[derive(Default)]
pub(crate) struct Inherited(Option<Box<Locals>>);

impl Drop for Inherited {
    #[inline]
    fn drop(&mut self) {
        if let Some(locals) = &self.0 {
            refuse(locals);
        }
    }
}

/// Drops what nobody inherits.
#[cold]
#[inline(never)]
fn refuse(locals: &Locals) {
    while locals.drop_last() {}
    // A refused fiber has no outcome that could show it.
    locals.panic.take().into_iter().for_each(discard);
}

/// Where the locals of a fiber or a thread hang.
pub(crate) struct Place(Cell<*const Locals>);

/// They have been dropped. No box is there: it is an address in the first page.
const GONE: *const Locals = ptr::dangling();

impl Place {
    pub(crate) const fn new() -> Self {
        Self(Cell::new(ptr::null()))
    }

    /// The locals, if there are any.
    pub(crate) fn get(&self) -> Option<&Locals> {
        let locals = self.0.get();
        // SAFETY: null, or a box that lives until `end`, whose callers hold nothing of it.
        if ptr::eq(locals, GONE) { None } else { unsafe { locals.as_ref() } }
    }

    /// The locals, made if need be; `None` if they have been dropped.
    pub(crate) fn get_or_make(&self) -> Option<&Locals> {
        if self.0.get().is_null() {
            self.0.set(Box::into_raw(Locals::new()));
        }
        self.get()
    }

    pub(crate) fn find(&self, key: &'static Key) -> Found {
        match self.get() {
            Some(locals) => locals.find(key),
            None if ptr::eq(self.0.get(), GONE) => Found::Destroyed,
            None => Found::Unmade,
        }
    }

    /// What a child gets of them.
    #[inline]
    pub(crate) fn inherit(&self) -> Inherited {
        if self.0.get().is_null() { Inherited::default() } else { self.inherit_all() }
    }

    #[cold]
    #[inline(never)]
    fn inherit_all(&self) -> Inherited {
        self.get().map(Locals::inherit).unwrap_or_default()
    }

    /// Begins anew, with what was inherited. By the spawner.
    #[inline]
    pub(crate) fn put(&self, mut inherited: Inherited) {
        self.0.set(inherited.0.take().map_or(ptr::null(), |locals| Box::into_raw(locals)));
    }

    /// Takes back what `put` gave to a fiber that was never queued.
    pub(crate) fn take(&self) -> Inherited {
        let locals = self.0.replace(ptr::null());
        // SAFETY: null, or the box of `put`: nobody has used it since.
        Inherited((!locals.is_null()).then(|| unsafe { Box::from_raw(locals.cast_mut()) }))
    }

    /// Drops everything, last first, hooks before values; from now on every key is destroyed. Gives the first panic that was met.
    #[inline]
    pub(crate) fn end(&self) -> Option<Payload> {
        if self.0.get().is_null() {
            self.0.set(GONE);
            return None;
        }
        self.end_all()
    }

    #[cold]
    #[inline(never)]
    fn end_all(&self) -> Option<Payload> {
        let locals = self.get()?;
        while locals.drop_last() {}
        let locals = ptr::from_ref(locals);
        self.0.set(GONE);
        // SAFETY: it came from a box, and nobody can reach it any more.
        unsafe { Box::from_raw(locals.cast_mut()) }.panic.take()
    }
}
