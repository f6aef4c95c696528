//! The switch by corosensei: every CPU it knows, and the check that our own does nothing else.
//!
//! corosensei resumes and suspends; the scheduler wants to go from any stack to any other. So the worker's side runs a loop: a
//! fiber that switches to another names it and suspends, and the loop resumes the named one. A fiber's place is its [`Record`], the
//! worker's own place is null.
//!
//! Coroutines are never dropped: a fiber that has ended stays suspended for ever in a frame that owns nothing, and its stack is used again
//! (law F4).

use std::cell::Cell;
use std::mem::{ManuallyDrop, size_of};
use std::ptr;

use corosensei::stack::{Stack, StackPointer};
use corosensei::{Coroutine, Yielder};

use super::Root;

/// What a fiber's `sp` points to; at the top of its stack.
struct Record {
    coroutine: ManuallyDrop<Coroutine<(), (), (), Region>>,
    yielder: Cell<*const Yielder<(), ()>>,
}

/// A stack that belongs to somebody else.
struct Region {
    bottom: usize,
    top: usize,
}

// SAFETY: `prepare`'s caller promises that the range is a stack with a guard below it.
unsafe impl Stack for Region {
    fn base(&self) -> StackPointer {
        StackPointer::new(self.top).expect("a stack is never at address zero")
    }
    fn limit(&self) -> StackPointer {
        StackPointer::new(self.bottom).expect("a stack is never at address zero")
    }
}

thread_local! {
    static RUNNING: Cell<*mut Record> = const { Cell::new(ptr::null_mut()) };
    static NEXT: Cell<*mut Record> = const { Cell::new(ptr::null_mut()) };
}

/// Makes a fresh stack that runs `root(arg)` when first switched to.
///
/// # Safety
/// `bottom..top` is an unused stack with a guard below it; `top` is 16-byte aligned.
pub(crate) unsafe fn prepare(bottom: usize, top: usize, root: Root, arg: *mut u8) -> *mut u8 {
    let record = (top - size_of::<Record>()) & !63;
    let record = record as *mut Record;
    let region = Region { bottom, top: record as usize };
    let coroutine = Coroutine::with_stack(region, move |yielder, ()| {
        // SAFETY: the record was written before the first resume, and only this stack and its resumer use it.
        unsafe {
            (*record).yielder.set(yielder);
            root(arg)
        }
    });
    // SAFETY: the place is on the unused stack, above what the coroutine was given.
    unsafe { record.write(Record { coroutine: ManuallyDrop::new(coroutine), yielder: Cell::new(ptr::null()) }) };
    record.cast()
}

/// Stores this stack's place in `*save` and goes on at `to`.
///
/// # Safety
/// `to` came from `prepare` or was saved by `switch` on this thread, and nobody has gone on there since (law F3); its stack is alive and used
/// by nobody (law F2). `save` is writable until then.
pub(crate) unsafe fn switch(save: *mut *mut u8, to: *mut u8) {
    let here = RUNNING.get();
    // SAFETY: the caller's promise for `save` and `to`; `here` is the record of the stack we stand on.
    unsafe {
        *save = here.cast();
        if here.is_null() {
            drive(to.cast());
        } else {
            NEXT.set(to.cast());
            (*(*here).yielder.get()).suspend(());
        }
    }
}

/// Resumes fibers, one after the other as they name each other, until one names the worker.
unsafe fn drive(mut next: *mut Record) {
    while !next.is_null() {
        RUNNING.set(next);
        // SAFETY: `next` is a suspended record by the promise of whoever named it.
        unsafe { (*next).coroutine.resume(()) };
        next = NEXT.replace(ptr::null_mut());
    }
    RUNNING.set(ptr::null_mut());
}
