//! Where control blocks live: places that are used again and again, and never unmapped.
//!
//! Blocks are 192 bytes in chunks of 32,768: three huge pages of 2 MiB, but for the first chunk, which is in small ones, since most programs touch a part of it. They are type-stable: whoever holds an old pointer reads a control block, perhaps of a later fiber,
//! never something else. That lets a late futex wake hit a block whose thread has gone. The index of a block and the
//! version of its content make a fiber's id.
//!
//! Blocks from the allocator were rejected: a block is freed by whoever drops the last handle, and a malloc whose blocks wander between threads
//! costs more than the rest of a spawn.

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

use super::Control;
use super::switch::note_roots;
use crate::base::list::List;
use crate::os::lock::Lock;
use crate::os::memory;

const CHUNK: usize = 32_768;
/// 67 million fibers at once: 17 TiB of default stacks.
const CHUNKS: usize = 2048;

/// Blocks a worker keeps; above it half go to the shared list. Arbitrary: 96 KiB.
const CACHE_MAX: usize = 512;
/// Blocks moved between the shared list and a cache at once.
const BATCH: usize = CACHE_MAX / 2;

struct Shared {
    free: List<Control>,
    chunks: usize,
    /// Blocks of the newest chunk that were never used.
    unused: usize,
}

// SAFETY: the list's nodes are plain memory of the pool; the lock around them lets one thread at a time in.
unsafe impl Send for Shared {}

static SHARED: Lock<Shared> = Lock::new(Shared { free: List::new(), chunks: 0, unused: 0 });
static TABLE: [AtomicPtr<Control>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

impl Shared {
    /// A free block; null when all there can be are used.
    fn pop(&mut self) -> *mut Control {
        let block = self.free.pop();
        if !block.is_null() {
            return block;
        }
        if self.used() >= LIMIT.load(Relaxed) || (self.unused == 0 && !self.add_chunk()) {
            return ptr::null_mut();
        }
        self.unused -= 1;
        let (chunk, place) = (self.chunks - 1, CHUNK - 1 - self.unused);
        // SAFETY: the chunk has `CHUNK` places, and this one was never given out.
        unsafe {
            let block = TABLE[chunk].load(Acquire).add(place);
            block.write(Control::vacant((chunk * CHUNK + place) as u32));
            block
        }
    }

    /// Blocks that were ever given out.
    fn used(&self) -> usize {
        self.chunks * CHUNK - self.unused
    }

    fn add_chunk(&mut self) -> bool {
        if self.chunks == CHUNKS {
            return false;
        }
        let bytes = CHUNK * size_of::<Control>();
        // Zeroed, and it costs memory only as it is used; never unmapped.
        let mapped = if self.chunks == 0 { memory::map_small(bytes) } else { memory::map_huge(bytes) };
        let Ok(chunk) = mapped else { return false };
        note_roots(chunk, bytes);
        let chunk = std::ptr::with_exposed_provenance_mut::<Control>(chunk);
        // Release: meets the Acquire of whoever walks the table.
        TABLE[self.chunks].store(chunk, Release);
        self.chunks += 1;
        self.unused = CHUNK;
        true
    }
}

/// Makes the pool give out no more blocks than `blocks` in all; for tests of exhaustion.
pub(crate) fn limit(blocks: usize) {
    LIMIT.store(blocks, Relaxed);
}

static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Every block that was ever used, in use or not. Those who look must make do with atomics, or pin the fiber first (`Weak`).
pub(crate) fn blocks() -> impl Iterator<Item = &'static Control> {
    let used = SHARED.lock().used();
    (0..used).map(|place| at(place as u32))
}

/// The block at a place that was used.
pub(crate) fn at(place: u32) -> &'static Control {
    let (chunk, place) = (place as usize / CHUNK, place as usize % CHUNK);
    // Acquire: meets the Release in `add_chunk`. SAFETY: a place that was used has a block, which stays for ever.
    unsafe { &*TABLE[chunk].load(Acquire).add(place) }
}

/// A free block straight from the shared list, for threads without a cache; null when all are used.
pub(crate) fn take_shared() -> *mut Control {
    SHARED.lock().pop()
}

/// Gives a block back to the shared list.
///
/// # Safety
/// Nobody uses the block any more.
pub(crate) unsafe fn give_shared(block: *mut Control) {
    // SAFETY: the caller's promise.
    unsafe { SHARED.lock().free.push(block) };
}

/// One worker's free blocks.
pub(crate) struct Cache {
    free: Vec<*mut Control>,
}

impl Cache {
    pub(crate) fn new() -> Self {
        Self { free: Vec::with_capacity(CACHE_MAX + 1) }
    }

    /// A free block; null when all there can be are used.
    #[inline]
    pub(crate) fn take(&mut self) -> *mut Control {
        if let Some(block) = self.free.pop() {
            return block;
        }
        self.refill();
        self.free.pop().unwrap_or(ptr::null_mut())
    }

    #[cold]
    fn refill(&mut self) {
        let mut shared = SHARED.lock();
        while self.free.len() < BATCH {
            let block = shared.pop();
            if block.is_null() {
                break;
            }
            self.free.push(block);
        }
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// Nobody uses the block any more.
    #[inline]
    pub(crate) unsafe fn give(&mut self, block: *mut Control) {
        self.free.push(block);
        if self.free.len() > CACHE_MAX {
            self.share(BATCH);
        }
    }

    #[cold]
    fn share(&mut self, keep: usize) {
        let shared = SHARED.lock();
        for block in self.free.drain(..self.free.len() - keep) {
            // SAFETY: blocks in the cache are used by nobody.
            unsafe { shared.free.push(block) };
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.share(0);
    }
}
