//! The limit: a hand-written switch, as few instructions as can be. Bare it is `limit-asm`; in the ring of the spike it is `spike`.

use std::arch::{asm, naked_asm};

use crate::deeds::raw::Raw;

pub(crate) struct Assembly;

impl Raw for Assembly {
    unsafe fn prepare(_: usize, top: usize, root: unsafe extern "C" fn(*mut u8) -> !, arg: *mut u8) -> *mut u8 {
        let top = top as *mut usize;
        // SAFETY: the caller's promise.
        unsafe {
            *top.sub(1) = root as usize;
            *top.sub(2) = arg as usize;
            *top.sub(3) = start as *const () as usize;
            top.sub(3).cast()
        }
    }

    #[inline(always)]
    unsafe fn switch(save: *mut *mut u8, to: *mut u8) {
        // SAFETY: the caller's promise. What the other side may change is an output, or pushed and popped.
        unsafe {
            asm!(
                "push rbp",
                "push rbx",
                "lea rax, [rip + 2f]",
                "push rax",
                "mov [rdi], rsp",
                "mov rsp, rsi",
                "pop rax",
                "jmp rax",
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
}

/// First instructions of a fresh stack.
#[unsafe(naked)]
unsafe extern "C" fn start() {
    naked_asm!("pop rdi", "pop rax", "push 0", "jmp rax")
}
