//! `recv` and `send`, without what glibc adds to them.
//!
//! Its functions are places at which a thread may be cancelled (`pthread_cancel`, which nobody uses here). In a process of several threads each call says so before and takes it back after, by an atomic exchange each (glibc
//! 2.36; 1.4 % of the samples of an echo by epoll were in these). ThreadSanitizer learns from glibc's functions that what was sent happened before it is received, so there they are used.

use std::os::fd::RawFd;

/// As `recv`.
///
/// # Safety
/// The buffer is the caller's, and has so many bytes.
#[inline]
pub(crate) unsafe fn receive(fd: RawFd, buf: *mut u8, length: usize, flags: libc::c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        match cfg!(sinew_sanitize = "thread") {
            true => libc::recv(fd, buf.cast(), length, flags),
            false => libc::syscall(libc::SYS_recvfrom, fd, buf, length, flags, 0usize, 0usize) as isize,
        }
    }
}

/// As `send`.
///
/// # Safety
/// The buffer has so many bytes.
#[inline]
pub(crate) unsafe fn send(fd: RawFd, buf: *const u8, length: usize, flags: libc::c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        match cfg!(sinew_sanitize = "thread") {
            true => libc::send(fd, buf.cast(), length, flags),
            false => libc::syscall(libc::SYS_sendto, fd, buf, length, flags, 0usize, 0usize) as isize,
        }
    }
}
