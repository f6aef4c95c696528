//! Changing stacks: the one seam between the scheduler and the CPU.
//!
//! # What a port gives
//! - `prepare(bottom, top, root, arg) -> sp`: makes a fresh stack that, when first switched to, calls `root(arg)` on it, which never
//!   returns; a backtrace ends there.
//! - `switch(save, to)`: stores where this stack stands in `*save` and goes on at `to`, a place that `prepare` or an earlier `switch` gave. Returns
//!   when somebody switches back. It is symmetric: fiber to fiber, fiber to worker, worker to fiber.
//! - `FloatControl::{now, save, set, DEFAULT}`: rounding mode, exception masks.
//!
//! x86_64 has its own dozen instructions; other CPUs, and x86_64 under `--cfg sinew_switch="corosensei"`, use corosensei. Both run the same tests.
//! Under `--cfg sinew_sanitize=".."` a layer above the port tells ThreadSanitizer or AddressSanitizer of every change of stack (`sanitized.rs`); in other
//! builds nothing of it is there.
//!
//! # Floating-point control words
//! They belong to the fiber. Measured with the prefetching spike (1,000 fibers, direct hand-over, medians of 5 interleaved runs, 2-core Zen 3): no care
//! 10.0 ns per yield; save and load both words 12.9; save, compare with the other fiber's, load if different 13.4; compare with the default before
//! leaving 13.2; MXCSR alone 12.8. The plain save and load is as cheap as any guess, keeps the exception flags apart too, and has no
//! branch to get wrong. It stands outside `switch`, so that the raw switch stays comparable with others'.

#[cfg(any(not(target_arch = "x86_64"), sinew_switch = "corosensei"))]
#[path = "corosensei.rs"]
mod arch;
#[cfg(all(target_arch = "x86_64", not(sinew_switch = "corosensei")))]
#[path = "x86_64.rs"]
mod arch;

#[cfg(any(sinew_sanitize = "thread", sinew_sanitize = "address"))]
mod sanitized;

use std::mem::MaybeUninit;
#[cfg(target_arch = "x86_64")]
use std::mem::offset_of;

#[cfg(not(any(sinew_sanitize = "thread", sinew_sanitize = "address")))]
pub(crate) use arch::{prepare, switch};
#[cfg(any(sinew_sanitize = "thread", sinew_sanitize = "address"))]
pub(crate) use sanitized::{leave_for_good, prepare, switch};

#[cfg(sinew_sanitize = "address")]
pub(crate) use sanitized::note_roots;

/// Says that these bytes may point to what lives: the search for leaks does not look into mappings by itself.
#[cfg(not(sinew_sanitize = "address"))]
#[inline(always)]
pub(crate) fn note_roots(_base: usize, _bytes: usize) {}

/// What runs on a fresh stack. It must not return.
pub(crate) type Root = unsafe extern "C" fn(arg: *mut u8) -> !;

/// Switches as `switch` does and keeps this side's floating-point control words.
///
/// # Safety
/// As [`switch`].
#[inline(always)]
pub(crate) unsafe fn switch_keeping_float(save: *mut *mut u8, to: *mut u8) {
    let mut mine = MaybeUninit::uninit();
    FloatControl::save(&mut mine);
    // SAFETY: the caller's promise.
    unsafe { switch(save, to) };
    // SAFETY: it was saved, on this stack, which nobody has touched since (law F2).
    unsafe { mine.assume_init_ref() }.set();
}

/// Goes on at `to` and never comes back: nothing on this stack is used any more.
///
/// # Safety
/// `to` as for [`switch`]; nobody uses this stack's content, and nobody else its memory before it has been left (law F4).
#[cfg(not(any(sinew_sanitize = "thread", sinew_sanitize = "address")))]
#[inline(always)]
pub(crate) unsafe fn leave_for_good(to: *mut u8) -> ! {
    let mut nobody_returns = std::ptr::null_mut();
    // SAFETY: the caller's promise.
    unsafe { switch(&mut nobody_returns, to) };
    unreachable!("a stack that was left for good was gone back to");
}

/// Rounding mode, exception masks and flags of this CPU.
#[derive(Clone, Copy)]
pub(crate) struct FloatControl {
    #[cfg(target_arch = "x86_64")]
    mxcsr: u32,
    #[cfg(target_arch = "x86_64")]
    x87: u16,
    #[cfg(target_arch = "aarch64")]
    fpcr: u64,
}

impl FloatControl {
    /// What this CPU has.
    pub(crate) fn now() -> Self {
        let mut words = MaybeUninit::uninit();
        Self::save(&mut words);
        // SAFETY: saved just now.
        unsafe { words.assume_init() }
    }
}

#[cfg(target_arch = "x86_64")]
impl FloatControl {
    /// What a new thread has: round to nearest, all exceptions masked.
    pub(crate) const DEFAULT: Self = Self { mxcsr: 0x1f80, x87: 0x37f };

    /// Writes what this CPU has to `place`: there, and not by value, since each copy is a store that the next load waits for.
    #[inline(always)]
    fn save(place: &mut MaybeUninit<Self>) {
        // SAFETY: both instructions only store, each to its field.
        unsafe {
            std::arch::asm!(
                "stmxcsr [{place} + {mxcsr}]",
                "fnstcw [{place} + {x87}]",
                place = in(reg) place.as_mut_ptr(),
                mxcsr = const offset_of!(Self, mxcsr),
                x87 = const offset_of!(Self, x87),
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    pub(crate) fn set(&self) {
        // SAFETY: the words are the default or were read on this CPU, so no reserved bit is set; they are this fiber's own.
        unsafe {
            std::arch::asm!(
                "ldmxcsr [{place} + {mxcsr}]",
                "fldcw [{place} + {x87}]",
                place = in(reg) self,
                mxcsr = const offset_of!(Self, mxcsr),
                x87 = const offset_of!(Self, x87),
                options(nostack, preserves_flags, readonly),
            );
        }
    }
}

#[cfg(target_arch = "aarch64")]
impl FloatControl {
    /// What a new thread has: round to nearest, no traps.
    pub(crate) const DEFAULT: Self = Self { fpcr: 0 };

    #[inline(always)]
    fn save(place: &mut MaybeUninit<Self>) {
        let fpcr;
        // SAFETY: reads a control register.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags)) };
        place.write(Self { fpcr });
    }

    #[inline(always)]
    pub(crate) fn set(&self) {
        // SAFETY: the word is the default or was read on this CPU; it is this fiber's own.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) self.fpcr, options(nomem, nostack, preserves_flags)) };
    }
}

/// CPUs whose control words we do not know keep one setting per worker.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl FloatControl {
    pub(crate) const DEFAULT: Self = Self {};
    fn save(place: &mut MaybeUninit<Self>) {
        place.write(Self {});
    }
    pub(crate) fn set(&self) {}
}
