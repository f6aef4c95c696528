//! Bare switches: no scheduler, or the smallest that can be.
//!
//! `round_trips` goes from the main stack to a fiber and back. `Ring` is the spike of `spikes/own_switch_prefetch.rs` with two fibers: an
//! intrusive queue, an accessor that is not inlined, a state word, a budget, an inbox that is looked at, direct hand-over, four calls deep. Both are
//! generic over the switch, so that what differs between two systems is the switch alone.

use std::arch::asm;
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};
use std::time::{Duration, Instant};

use super::{four_deep, paced};
use crate::job::{Deed, Job, Reading};

/// Room for a stack; unguarded, since nothing here goes deep.
const STACK_BYTES: usize = 256 << 10;
/// Yields without a switch that a lone fiber may do before its worker looks around.
const BUDGET: u32 = 61;

/// A way to change stacks.
pub(crate) trait Raw: 'static {
    /// Makes a fresh stack that calls `root(arg)` when first switched to.
    ///
    /// # Safety
    /// `bottom..top` is writable and unused; `top` is 16-byte aligned; `root` never returns.
    unsafe fn prepare(bottom: usize, top: usize, root: unsafe extern "C" fn(*mut u8) -> !, arg: *mut u8) -> *mut u8;

    /// Stores this stack's place in `*save` and goes on at `to`.
    ///
    /// # Safety
    /// `to` came from `prepare` or an earlier `switch` on this thread and was not used since.
    unsafe fn switch(save: *mut *mut u8, to: *mut u8);
}

/// Does `job` with the switch `R`.
pub(crate) fn perform<R: Raw>(job: &Job) -> Vec<Reading> {
    match job.deed {
        Deed::Switch => paced(job, 1, round_trips::<R>),
        Deed::SwitchNested => paced(job, 2, ring::<R>),
        other => panic!("a bare switch cannot do {other:?}"),
    }
}

fn fresh<R: Raw>(root: unsafe extern "C" fn(*mut u8) -> !, arg: *mut u8) -> *mut u8 {
    let bottom = Vec::<u128>::leak(vec![0; STACK_BYTES / size_of::<u128>()]).as_mut_ptr() as usize;
    // SAFETY: fresh memory, never freed; 16-byte aligned at both ends, being made of 16-byte words.
    unsafe { R::prepare(bottom, bottom + STACK_BYTES, root, arg) }
}

struct Pair {
    main: *mut u8,
    fiber: *mut u8,
}

fn round_trips<R: Raw>(turns: usize) -> Duration {
    unsafe extern "C" fn back<R: Raw>(pair: *mut u8) -> ! {
        let pair: *mut Pair = pair.cast();
        loop {
            // SAFETY: the main stack has just saved its place here and waits for us.
            unsafe { R::switch(&raw mut (*pair).fiber, (*pair).main) };
        }
    }
    let mut pair = Pair { main: ptr::null_mut(), fiber: ptr::null_mut() };
    let pair = &raw mut pair;
    // SAFETY: `pair` outlives the loop, and the fiber runs only inside it.
    unsafe {
        (*pair).fiber = fresh::<R>(back::<R>, pair.cast());
        let start = Instant::now();
        for _ in 0..turns {
            R::switch(&raw mut (*pair).main, (*pair).fiber);
        }
        start.elapsed()
    }
}

#[repr(align(64))]
struct Fiber {
    next: *mut Fiber,
    sp: *mut u8,
    ticks: u64,
    state: AtomicU32,
}

struct Ring {
    head: *mut Fiber,
    tail: *mut Fiber,
    current: *mut Fiber,
    main: *mut u8,
    turns: usize,
    switches: u64,
    budget: u32,
    inbox: AtomicPtr<Fiber>,
}

thread_local!(static RING: Cell<*mut Ring> = const { Cell::new(ptr::null_mut()) });

/// The ring of this thread; not inlined, as a runtime's accessor must not be.
#[inline(never)]
fn here() -> *mut Ring {
    let ring = RING.get();
    // SAFETY: no instruction; the compiler cannot know the value after it.
    unsafe { asm!("/* {0} */", in(reg) ring, options(nostack, preserves_flags)) };
    ring
}

impl Ring {
    /// # Safety
    /// `fiber` is alive and in no queue.
    #[inline]
    unsafe fn push(&mut self, fiber: *mut Fiber) {
        // SAFETY: the caller's promise; queued fibers are alive.
        unsafe {
            (*fiber).next = ptr::null_mut();
            if self.tail.is_null() {
                self.head = fiber;
            } else {
                (*self.tail).next = fiber;
            }
        }
        self.tail = fiber;
    }

    /// Takes the next fiber and warms the caches for the one after.
    #[inline]
    fn pop(&mut self) -> *mut Fiber {
        let fiber = self.head;
        if !fiber.is_null() {
            // SAFETY: queued fibers are alive.
            self.head = unsafe { (*fiber).next };
            if self.head.is_null() {
                self.tail = ptr::null_mut();
            } else {
                // SAFETY: as above.
                unsafe { prefetch(&*self.head) };
            }
        }
        fiber
    }
}

#[cfg(target_arch = "x86_64")]
fn prefetch(fiber: &Fiber) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch reads nothing that the program can see, whatever the address.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(fiber.sp.cast());
        _mm_prefetch::<_MM_HINT_T0>(fiber.sp.wrapping_add(64).cast());
        _mm_prefetch::<_MM_HINT_T0>(fiber.next.cast());
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch(_: &Fiber) {}

#[inline(never)]
fn yield_now<R: Raw>() {
    // SAFETY: a fiber runs, so the ring and the running fiber are alive; only this thread uses them.
    unsafe {
        let ring = here();
        let fiber = (*ring).current;
        if (*ring).head.is_null() && (*ring).inbox.load(Relaxed).is_null() && (*ring).budget > 0 {
            (*ring).budget -= 1;
            return;
        }
        (*fiber).state.store(1, Release); // as a runtime must, so that a waker may look
        (*ring).push(fiber);
        let next = (*ring).pop();
        (*ring).current = next;
        (*ring).switches += 1;
        (*ring).budget = BUDGET;
        (*next).ticks += 1;
        if next != fiber {
            R::switch(&raw mut (*fiber).sp, (*next).sp);
        }
    }
}

/// A fiber of the ring: yields, then hands over for good.
unsafe extern "C" fn body<R: Raw>(_: *mut u8) -> ! {
    // SAFETY: as in `yield_now`; who has left the queue is never switched to again.
    unsafe {
        for _ in 0..(*here()).turns {
            four_deep(yield_now::<R>);
        }
        let ring = here();
        let fiber = (*ring).current;
        let next = (*ring).pop();
        (*ring).current = next;
        R::switch(&raw mut (*fiber).sp, if next.is_null() { (*ring).main } else { (*next).sp });
    }
    unreachable!("a fiber that ended was switched to")
}

fn ring<R: Raw>(turns: usize) -> Duration {
    let mut ring = Ring {
        head: ptr::null_mut(),
        tail: ptr::null_mut(),
        current: ptr::null_mut(),
        main: ptr::null_mut(),
        turns,
        switches: 0,
        budget: BUDGET,
        inbox: AtomicPtr::default(),
    };
    let ring = &raw mut ring;
    RING.set(ring);
    let fiber = || Fiber { next: ptr::null_mut(), sp: fresh::<R>(body::<R>, ptr::null_mut()), ticks: 0, state: AtomicU32::new(0) };
    let mut fibers = [fiber(), fiber()];
    // SAFETY: ring and fibers outlive the switch, which comes back when both fibers have ended.
    unsafe {
        fibers.iter_mut().for_each(|fiber| (*ring).push(fiber));
        (*ring).current = (*ring).pop();
        let start = Instant::now();
        R::switch(&raw mut (*ring).main, (*(*ring).current).sp);
        let took = start.elapsed();
        RING.set(ptr::null_mut());
        assert!((*ring).switches >= turns as u64, "{} switches in {turns} turns", (*ring).switches);
        took
    }
}
