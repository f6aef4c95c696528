//! The switch of x86_64 (System V): neither `call` nor `ret`.
//!
//! A switch that calls into a fiber and returns out of it leaves the CPU's return predictor with entries of the wrong stack, and the next
//! returns are mispredicted (about 17 ns per hop, `spikes`). This one saves, exchanges the stack pointer and jumps; the predictor keeps what the
//! last fiber left there, and fibers parked at the same place, as the connections of a server are, return along the same path.
//!
//! # Picture
//! ```text
//!  a suspended stack                       a fresh stack (`prepare`)
//!
//!  |  frames of the fiber  |               top ->  +----------------+  16-byte aligned
//!  +-----------------------+                       | root           |
//!  | rbp                   |                       | arg            |
//!  | rbx                   |               sp ->   | start          |
//!  | where to go on        | <- sp                 +----------------+
//!  +-----------------------+
//! ```
//! All other registers are declared clobbered, so the compiler keeps what it still needs in the frame, and often that is nothing: no
//! callee-saved register is pushed for its own sake. rbx and rbp are pushed by hand because inline assembly may not name them.
//!
//! # Unwinding
//! No unwinding starts inside the switch. A panic or a backtrace in a fiber walks its frames down to `start`, whose call frame
//! information says that there is no caller (`.cfi_undefined rip`), and ends there.

use std::arch::{asm, naked_asm};

use super::Root;

/// Makes a fresh stack that runs `root(arg)` when first switched to.
///
/// # Safety
/// `top` is 16-byte aligned, and the 64 bytes below it are writable and unused.
pub(crate) unsafe fn prepare(_bottom: usize, top: usize, root: Root, arg: *mut u8) -> *mut u8 {
    let top = top as *mut usize;
    // SAFETY: the caller's promise.
    unsafe {
        *top.sub(1) = root as usize;
        *top.sub(2) = arg as usize;
        *top.sub(3) = start as *const () as usize;
        top.sub(3).cast()
    }
}

/// Stores this stack's place in `*save` and goes on at `to`.
///
/// # Safety
/// `to` came from `prepare` or was saved by `switch`, and nobody has gone on there since (law F3); its stack is alive and used by nobody
/// (law F2). `save` is writable until then.
#[inline(always)]
pub(crate) unsafe fn switch(save: *mut *mut u8, to: *mut u8) {
    // SAFETY: the caller's promise. Every register the other side may change is an output, or pushed and popped.
    unsafe {
        asm!(
            "push rbp",            // cannot be named as clobbered: the frame pointer
            "push rbx",            // cannot be named as clobbered: reserved by LLVM
            "lea rax, [rip + 2f]", // where this side goes on
            "push rax",
            "mov [rdi], rsp",      // now this side can be resumed
            "mov rsp, rsi",        // now we stand on the other stack
            "pop rax",             // where that side goes on
            "jmp rax",             // not `ret`: it would consume a prediction that belongs to a real call
            "2:",
            "pop rbx",
            "pop rbp",
            inlateout("rdi") save => _,
            inlateout("rsi") to => _,
            lateout("r12") _, lateout("r13") _, lateout("r14") _, lateout("r15") _,
            clobber_abi("sysv64"),
        );
    }
}

/// The first instructions on a fresh stack: `root(arg)`, with a return address that unwinders end at.
#[unsafe(naked)]
unsafe extern "C" fn start() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_undefined rip",  // there is no caller: the walk ends here
        "pop rdi",             // arg
        "pop rax",             // root; the stack pointer is at `top` now, 16-byte aligned
        "xor ebp, ebp",        // frame-pointer walkers end here too
        "lea rcx, [rip + 2f]", // what `call` would push, without telling the return predictor
        "push rcx",
        "jmp rax",
        "2:",
        "ud2", // `root` never returns
        ".cfi_endproc",
    )
}
