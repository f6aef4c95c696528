//! The switch as sanitizers want it: they are told before a stack is left and after another is reached.
//!
//! Built under `--cfg sinew_sanitize="thread"` or `"address"` only, which `.ci/tsan` and `.ci/asan` set; needs the sanitizer's runtime in the program.
//!
//! A place to go on at is not a stack pointer here but a [`Place`]: in the frame of who left, or at the top of a fresh stack. So whatever the
//! sanitizer must know of a stack is found from where one goes, and no other file knows of it.
//!
//! # What ThreadSanitizer is told
//! Each stack is a "fiber" of its own, which keeps a call stack for reports. A switch says that all the left one did happens before what the other one does
//! (flag 0), which is so: they take turns on one thread (law F5). It stands right before the exchange of stack pointers, with no call between:
//! else the call would be entered in one call stack and left in the other. 10,000 started fibers at once were no trouble, for 70,000 it had no mappings left.
//!
//! # What AddressSanitizer is told
//! The bounds of the stack gone to, and where the left one's fake frames are (they detect use after return). A stack that is left for good is poisoned
//! from bottom to top once we stand elsewhere; `prepare` makes it usable again. So an access to a dead fiber's locals is reported until the stack
//! has its next fiber.
//!
//! # Not here
//! Leaks: what only the frames of a suspended fiber hold is lost in LeakSanitizer's eyes. So a program that is checked ends its fibers before it ends.

use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use super::{Root, arch};

#[cfg(any(not(target_arch = "x86_64"), sinew_switch = "corosensei"))]
compile_error!("sanitizers know our own switch only: corosensei makes calls between its switch and what a sanitizer is told");

/// Where a stack goes on.
struct Place {
    sp: *mut u8,
    tool: tool::Stack,
}

/// A place that nobody has been to, at the top of its stack.
#[repr(C, align(16))]
struct Fresh {
    place: Place,
    root: Root,
    arg: *mut u8,
}

/// Makes a fresh stack that runs `root(arg)` when first switched to.
///
/// # Safety
/// `bottom..top` is an unused stack; `top` is 16-byte aligned.
pub(crate) unsafe fn prepare(bottom: usize, top: usize, root: Root, arg: *mut u8) -> *mut u8 {
    let fresh = (top - size_of::<Fresh>()) as *mut Fresh;
    // SAFETY: the caller's promise; the stack begins below the place, which lasts as long as it.
    unsafe {
        let tool = tool::Stack::fresh(bottom, top);
        let sp = arch::prepare(bottom, fresh as usize, begin, fresh.cast());
        fresh.write(Fresh { place: Place { sp, tool }, root, arg });
    }
    fresh.cast()
}

/// The first function on a fresh stack.
unsafe extern "C" fn begin(fresh: *mut u8) -> ! {
    let fresh: *mut Fresh = fresh.cast();
    // SAFETY: `prepare` wrote it, and F2 - the stack it lies on is ours now.
    unsafe {
        (*fresh).place.tool.reached();
        ((*fresh).root)((*fresh).arg)
    }
}

/// Stores this stack's place in `*save` and goes on at `to`.
///
/// # Safety
/// As the port's `switch`.
#[inline(always)]
pub(crate) unsafe fn switch(save: *mut *mut u8, to: *mut u8) {
    let to: *mut Place = to.cast();
    // SAFETY: the caller's promise (F2, F3): `to` lies in a frame that nobody else uses until it is gone back to. This frame stays until somebody
    // switches back, and with it our own place.
    unsafe {
        let mut here = Place { sp: std::ptr::null_mut(), tool: tool::Stack::here() };
        // Relaxed, as the port's one store is: a worker that fetches ahead may look at the place of a fiber that a thief has just run.
        AtomicPtr::from_ptr(save).store((&raw mut here).cast(), Relaxed);
        let sp = (*to).sp;
        tool::leave(&raw mut here.tool, &raw mut (*to).tool);
        arch::switch(&raw mut here.sp, sp);
        here.tool.reached();
    }
}

/// Goes on at `to` and never comes back: nothing on this stack is used any more.
///
/// # Safety
/// As its namesake in other builds.
#[inline(always)]
pub(crate) unsafe fn leave_for_good(to: *mut u8) -> ! {
    let to: *mut Place = to.cast();
    // SAFETY: the caller's promise. The stack pointer is saved where the other one was, not here: fake frames of this stack are gone by then.
    unsafe {
        let sp = (*to).sp;
        tool::leave_for_good(&raw mut (*to).tool);
        arch::switch(&raw mut (*to).sp, sp);
    }
    unreachable!("a stack that was left for good was gone back to");
}

#[cfg(sinew_sanitize = "thread")]
mod tool {
    use std::ffi::{c_uint, c_void};
    use std::ptr;

    /// What the runtime is told at creation and at a switch: nothing special, the switch synchronizes.
    const PLAIN: c_uint = 0;

    unsafe extern "C" {
        fn __tsan_get_current_fiber() -> *mut c_void;
        fn __tsan_create_fiber(flags: c_uint) -> *mut c_void;
        fn __tsan_destroy_fiber(fiber: *mut c_void);
        fn __tsan_switch_to_fiber(fiber: *mut c_void, flags: c_uint);
    }

    /// A stack as ThreadSanitizer knows it.
    pub(super) struct Stack {
        fiber: *mut c_void,
        /// What was left for good to come here.
        dead: *mut c_void,
    }

    impl Stack {
        pub(super) unsafe fn fresh(_bottom: usize, _top: usize) -> Self {
            // SAFETY: has no preconditions but the runtime's presence, which the cfg promises.
            Self { fiber: unsafe { __tsan_create_fiber(PLAIN) }, dead: ptr::null_mut() }
        }

        #[inline(always)]
        pub(super) unsafe fn here() -> Self {
            // SAFETY: as in `fresh`.
            Self { fiber: unsafe { __tsan_get_current_fiber() }, dead: ptr::null_mut() }
        }

        /// We have just come to this stack.
        #[inline(always)]
        pub(super) unsafe fn reached(&mut self) {
            let dead = std::mem::replace(&mut self.dead, ptr::null_mut());
            if !dead.is_null() {
                // SAFETY: F4 - its stack was left for good, and it is not the current one any more.
                unsafe { __tsan_destroy_fiber(dead) };
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn leave(_here: *mut Stack, to: *mut Stack) {
        // SAFETY: the caller switches to this stack next.
        unsafe { __tsan_switch_to_fiber((*to).fiber, PLAIN) };
    }

    #[inline(always)]
    pub(super) unsafe fn leave_for_good(to: *mut Stack) {
        // SAFETY: the caller switches to this stack next; the dead one is destroyed there.
        unsafe {
            (*to).dead = __tsan_get_current_fiber();
            __tsan_switch_to_fiber((*to).fiber, PLAIN);
        }
    }
}

#[cfg(sinew_sanitize = "address")]
pub(crate) use tool::note_roots;

#[cfg(sinew_sanitize = "address")]
mod tool {
    use std::ffi::c_void;
    use std::ptr;

    unsafe extern "C" {
        fn __sanitizer_start_switch_fiber(fake_frames: *mut *mut c_void, bottom: *const c_void, bytes: usize);
        fn __sanitizer_finish_switch_fiber(fake_frames: *mut c_void, bottom: *mut *const c_void, bytes: *mut usize);
        fn __asan_poison_memory_region(base: *const c_void, bytes: usize);
        fn __asan_unpoison_memory_region(base: *const c_void, bytes: usize);
        fn __lsan_register_root_region(base: *const c_void, bytes: usize);
    }

    /// Says that these bytes may point to what lives.
    pub(crate) fn note_roots(base: usize, bytes: usize) {
        // SAFETY: the caller's memory is never unmapped.
        unsafe { __lsan_register_root_region(base as *const c_void, bytes) };
    }

    /// A stack as AddressSanitizer knows it.
    pub(super) struct Stack {
        /// Its lowest address and size. Of a stack that was left, the runtime says them to who comes next.
        bottom: *const c_void,
        bytes: usize,
        fake_frames: *mut c_void,
        /// Whom we came from; null if it was left for good.
        from: *mut Stack,
    }

    impl Stack {
        pub(super) unsafe fn fresh(bottom: usize, top: usize) -> Self {
            let (bottom, bytes) = (bottom as *const c_void, top - bottom);
            // SAFETY: F4 - the stack is the caller's, and nobody uses what an earlier fiber left there.
            unsafe { __asan_unpoison_memory_region(bottom, bytes) };
            Self { bottom, bytes, fake_frames: ptr::null_mut(), from: ptr::null_mut() }
        }

        #[inline(always)]
        pub(super) unsafe fn here() -> Self {
            Self { bottom: ptr::null(), bytes: 0, fake_frames: ptr::null_mut(), from: ptr::null_mut() }
        }

        /// We have just come to this stack.
        #[inline(always)]
        pub(super) unsafe fn reached(&mut self) {
            let (mut bottom, mut bytes) = (ptr::null(), 0);
            // SAFETY: ends what `leave` or `leave_for_good` began on the other stack. F2 - the place of who left lies in a frame that stays
            // until it is gone back to; F4 - one that was left for good has nobody on it, and whoever uses it next unpoisons it.
            unsafe {
                __sanitizer_finish_switch_fiber(self.fake_frames, &mut bottom, &mut bytes);
                match self.from.as_mut() {
                    Some(from) => (from.bottom, from.bytes) = (bottom, bytes),
                    None => __asan_poison_memory_region(bottom, bytes),
                }
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn leave(here: *mut Stack, to: *mut Stack) {
        // SAFETY: the caller switches to this stack next, and its bounds are known: it is fresh, or somebody came from it.
        unsafe {
            (*to).from = here;
            __sanitizer_start_switch_fiber(&raw mut (*here).fake_frames, (*to).bottom, (*to).bytes);
        }
    }

    #[inline(always)]
    pub(super) unsafe fn leave_for_good(to: *mut Stack) {
        // SAFETY: as `leave`; without a place for them the fake frames of this stack are freed, and nothing in them is used any more.
        unsafe {
            (*to).from = ptr::null_mut();
            __sanitizer_start_switch_fiber(ptr::null_mut(), (*to).bottom, (*to).bytes);
        }
    }
}
