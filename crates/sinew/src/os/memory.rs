//! Address space: mapping it, guarding it, giving its pages back.
//!
//! Two ways to guard the low end of a stack:
//!
//! | kind | kernel | cost per stack | limit |
//! |---|---|---|---|
//! | [`Guard::Marker`]: `MADV_GUARD_INSTALL` | 6.13+, memory not mlocked | about 1 us, no VMA | none met at a million |
//! | [`Guard::Protect`]: `mprotect(PROT_NONE)` | any | about 4 us, two VMAs | `vm.max_map_count` / 2, about 32 thousand |
//!
//! The marker is tried first; a refusal (`EINVAL`: old kernel, or memory locked by `mlockall`, at any time) settles on `mprotect` for the rest of the
//! process's life. Markers survive `MADV_DONTNEED`, so one call can give back the pages of many adjacent stacks.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

const MADV_GUARD_INSTALL: i32 = 102;
/// Ourselves, for `process_madvise`: 6.14+.
const PIDFD_SELF: i32 = -10_000;
/// Ranges that one call can be given.
pub(crate) const RANGES_MAX: usize = 32;

/// How the low end of a stack is made to fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Guard markers in the page table: no VMA of their own.
    Marker,
    /// A mapping of its own without access rights.
    Protect,
}

/// Bytes of a page.
#[inline]
pub(crate) fn page_size() -> usize {
    // The smallest page of this architecture, and of Linux on it: what a stack's top is reckoned by, at every spawn.
    if cfg!(target_arch = "x86_64") {
        return 4096;
    }
    static SIZE: OnceLock<usize> = OnceLock::new();
    // SAFETY: `sysconf` has no preconditions.
    *SIZE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize)
}

const MARKER: u8 = 0;
const PROTECT: u8 = 1;

/// The guard in use. Markers until the kernel has refused one.
static KIND: AtomicU8 = AtomicU8::new(MARKER);

/// The guard this process uses for its next stack.
pub(crate) fn guard_kind() -> Guard {
    if KIND.load(Relaxed) == MARKER { Guard::Marker } else { Guard::Protect }
}

/// Uses `mprotect` from now on.
pub(crate) fn guard_by_protection() {
    KIND.store(PROTECT, Relaxed);
}

/// Reserves `len` bytes of zeroed memory for stacks, which cost nothing until touched; never in huge pages.
pub(crate) fn map(len: usize) -> io::Result<usize> {
    injected_failure()?;
    // Kernels before 6.7 do not read MAP_STACK as "no huge pages", so it is said twice.
    reserve(len, libc::MAP_STACK, libc::MADV_NOHUGEPAGE)
}

/// Reserves `len` bytes of zeroed memory for what lies densely in it, page by page.
pub(crate) fn map_small(len: usize) -> io::Result<usize> {
    reserve(len, 0, libc::MADV_NOHUGEPAGE)
}

/// The same, in huge pages where there are any.
pub(crate) fn map_huge(len: usize) -> io::Result<usize> {
    reserve(len, 0, libc::MADV_HUGEPAGE)
}

/// Whether `len` more bytes could be reserved.
pub(crate) fn has_room(len: usize) -> bool {
    // SAFETY: what was reserved just now is used by nobody.
    map_small(len).map(|base| unsafe { unmap(base, len) }).is_ok()
}

/// Gives a whole mapping back.
///
/// # Safety
/// It was reserved here, and nobody uses it.
pub(crate) unsafe fn unmap(base: usize, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(base), len) };
}

fn reserve(len: usize, more_flags: libc::c_int, advice: libc::c_int) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | more_flags;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory of ours.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // Where there are no huge pages this fails and does not matter.
    // SAFETY: the range was mapped just now.
    unsafe { libc::madvise(base, len, advice) };
    Ok(base as usize)
}

/// Makes every access to `len` bytes at `base` fault; says by which kind of guard.
///
/// # Safety
/// The range is page-aligned, lies in a mapping from [`map`], and nobody uses its content.
pub(crate) unsafe fn guard(kind: Guard, base: usize, len: usize) -> io::Result<Guard> {
    injected_failure()?;
    match kind {
        Guard::Marker => match install_marker(base, len) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                guard_by_protection();
                protect(base, len, libc::PROT_NONE).map(|()| Guard::Protect)
            }
            installed => installed.map(|()| kind),
        },
        Guard::Protect => protect(base, len, libc::PROT_NONE).map(|()| kind),
    }
}

/// As [`guard`], by one call for `len` bytes at each of `bases`, `RANGES_MAX` at most; `false` if that was not to be had, and then none of them counts as guarded. For 32 guards 12 us in place of 22.
///
/// # Safety
/// As [`guard`], for each of the ranges.
pub(crate) unsafe fn guard_all(bases: impl Iterator<Item = usize>, len: usize) -> bool {
    // SAFETY: the caller's promise: nobody uses what is there.
    guard_kind() == Guard::Marker && unsafe { advise_all(bases, len, MADV_GUARD_INSTALL) }
}

/// A guard that [`guard_all`] has installed is used: what [`guard`] would say.
pub(crate) fn use_guard() -> io::Result<Guard> {
    injected_failure().map(|()| Guard::Marker)
}

/// Has the system find the pages of `len` bytes at each of `bases`, `RANGES_MAX` at most, by one call: 37 us for 32 pages, where as many faults take 49. If it does not, they fault when they are touched.
pub(crate) fn populate_all(bases: impl Iterator<Item = usize>, len: usize) {
    // SAFETY: finding pages changes nothing that is there.
    unsafe { advise_all(bases, len, libc::MADV_POPULATE_WRITE) };
}

/// # Safety
/// The advice may be given for these ranges.
unsafe fn advise_all(bases: impl Iterator<Item = usize>, len: usize, advice: i32) -> bool {
    /// An older kernel, or a sandbox, has refused it.
    static REFUSED: AtomicBool = AtomicBool::new(false);
    if REFUSED.load(Relaxed) {
        return false;
    }
    let mut ranges = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; RANGES_MAX];
    let mut count = 0;
    for base in bases {
        ranges[count] = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(base), iov_len: len };
        count += 1;
    }
    // SAFETY: the kernel reads so many ranges; the caller's promise for what they are.
    let advised = unsafe { libc::syscall(libc::SYS_process_madvise, PIDFD_SELF, ranges.as_ptr(), count, advice, 0) };
    let done = usize::try_from(advised) == Ok(count * len);
    REFUSED.fetch_or(!done, Relaxed);
    done
}

/// Takes a guard by `mprotect` away again, and with it its mappings.
///
/// # Safety
/// The range was guarded so, and nobody relies on it.
pub(crate) unsafe fn unguard(base: usize, len: usize) -> io::Result<()> {
    protect(base, len, libc::PROT_READ | libc::PROT_WRITE)
}

fn protect(base: usize, len: usize, rights: i32) -> io::Result<()> {
    // SAFETY: callers give a range of their own mapping whose content nobody uses.
    let failed = unsafe { libc::mprotect(base as *mut _, len, rights) } != 0;
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn install_marker(base: usize, len: usize) -> io::Result<()> {
    // SAFETY: callers give a range of their own mapping whose content nobody uses.
    let failed = unsafe { libc::madvise(base as *mut _, len, MADV_GUARD_INSTALL) } != 0;
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives the pages of a range back to the system; it reads as zeroes afterwards, guards stay.
///
/// # Safety
/// The range is page-aligned, lies in mappings from [`map`], and nobody uses its content.
pub(crate) unsafe fn give_back(base: usize, len: usize) {
    // SAFETY: by the caller's promise. A failure leaves the pages resident, which costs memory and nothing else.
    unsafe { libc::madvise(base as *mut _, len, libc::MADV_DONTNEED) };
}

/// Bytes between the lowest resident page of a range and its end.
pub(crate) fn resident_depth(base: usize, len: usize) -> usize {
    let page = page_size();
    let mut pages = vec![0u8; len / page];
    // SAFETY: `mincore` writes one byte per page into a buffer of just that length and reads none of the range.
    let failed = unsafe { libc::mincore(base as *mut _, len, pages.as_mut_ptr()) } != 0;
    let untouched = if failed { pages.len() } else { pages.iter().take_while(|&&p| p & 1 == 0).count() };
    len - untouched * page
}

/// `vm.max_map_count`, the number of mappings a process may have.
pub(crate) fn max_map_count() -> usize {
    /// The kernel's own default, for systems that hide the setting.
    const DEFAULT: usize = 65_530;
    std::fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|s| s.trim().parse().ok()).unwrap_or(DEFAULT)
}

/// Mappings this process has now.
pub(crate) fn map_count() -> usize {
    std::fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count())
}

/// Calls that may still succeed before an injected ENOMEM; `u64::MAX` when none is wanted.
static UNTIL_FAILURE: AtomicU64 = AtomicU64::new(u64::MAX);

/// Makes `map` and `guard` fail with ENOMEM after `calls` more successes, until told otherwise. For tests of exhaustion.
pub(crate) fn fail_after(calls: u64) {
    UNTIL_FAILURE.store(calls, Relaxed);
}

fn injected_failure() -> io::Result<()> {
    let left = UNTIL_FAILURE.load(Relaxed);
    if left == u64::MAX {
        return Ok(());
    }
    match UNTIL_FAILURE.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
        Ok(_) => Ok(()),
        Err(_) => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
    }
}
