//! Stacks by the million: where they come from, who keeps them, when their memory goes back.
//!
//! One [`Depot`] per process holds slabs (one mapping for many stacks of a size class) and what workers do not need. A [`Cache`] per worker gives
//! and takes without locks, last in first out, so that the next fiber starts on a warm stack.
//!
//! # Picture
//! ```text
//!  a slab:  | guard | stack 0      | guard | stack 1      | guard | not carved yet ...
//!                     bottom    top
//!
//!  stride = usable size + guard = an odd number of pages: the same frame of neighbouring stacks falls into different sets of the
//!  level-2 cache. Tops are shifted by a multiple of 64 bytes, by the page number, for the level-1 cache (64 sets = one page).
//! ```
//!
//! # Life of a stack
//! reserved by a worker (from its second run of them on with guards and top pages, by one call each) -> carved (guarded, when first needed) -> with a fiber <-> in a worker's cache <-> surplus in the depot, dirty -> trimmed: pages given
//! back, runs of neighbours in one call, off the hot path, when they have not been used for a second or two. Slabs stay mapped: address space is not memory.
//!
//! # Invariants
//! I1. A stack is with one fiber, or in one cache, or in the depot (law F1 for stacks).
//! I2. Only the worker whose fiber ended on a stack puts it into its own cache, and it hands surplus to the depot only when it stands
//!     on its own thread's stack again: nobody runs on a stack that others may take (law F4).

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use crate::base::prefetch::prefetch;
use crate::os::lock::Lock;
use crate::os::memory::{self, Guard};

/// Smallest usable size: a signal frame with AVX-512 state (3.5 KiB) and a formatted panic (about 8 KiB in debug builds) must fit.
pub(crate) const MIN_BYTES: usize = 16 * 1024;
/// Largest usable size: beyond it a size is taken for a mistake.
pub(crate) const MAX_BYTES: usize = 1 << 30;
/// What a fiber gets that asks for nothing.
pub(crate) const DEFAULT_BYTES: usize = 256 * 1024;

/// How many size classes there are.
pub(crate) const CLASSES: usize = (MAX_BYTES / MIN_BYTES).ilog2() as usize + 1;

/// Guard below each stack. Rust frames touch every page they skip, so one page would do for them; three catch C frames of up to 12 KiB and make
/// the stride odd. Each guard page costs 8 bytes of page table per stack.
const GUARD_PAGES: usize = 3;

/// Shifts of the stack top, in cache lines: 16 of 64 bytes use a quarter of the top page at most.
const COLOURS: usize = 16;
const COLOUR_BYTES: usize = 64;

/// Stacks of the first slab of a class; each further one is twice as large, up to `SLAB_BYTES_MAX`.
const SLAB_STACKS_MIN: usize = 64;
/// 32 GiB of address space: a million default stacks are some twenty slabs.
const SLAB_BYTES_MAX: usize = 32 << 30;

/// Stacks a worker keeps for itself per class; above it half go to the depot. Arbitrary: enough for bursts, 256 KiB of touched memory.
const CACHE_MAX: usize = 64;
/// Stacks moved between depot and cache at once.
const BATCH: usize = CACHE_MAX / 2;
const _: () = assert!(BATCH <= memory::RANGES_MAX, "the stacks that are reserved at once are prepared by one call");

/// Address space that stacks leave when it becomes scarce. Arbitrary: ten chunks of control blocks.
const SPARED_BYTES: usize = 64 << 20;
/// Mappings left to the rest of the process when guards need mappings of their own.
const MAPS_SPARED: usize = 1000;

/// A size class: usable bytes are `MIN_BYTES << class`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

impl Class {
    /// The class for stacks of at least `bytes`.
    pub(crate) fn for_bytes(bytes: usize) -> io::Result<Class> {
        if bytes == 0 || bytes > MAX_BYTES {
            let text = format!(
                "a fiber's stack of {bytes} bytes is refused: it must be between 1 byte and {} MiB (sizes below {} KiB are raised to it)",
                MAX_BYTES >> 20,
                MIN_BYTES >> 10
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Class(bytes.div_ceil(MIN_BYTES).next_power_of_two().ilog2() as u8))
    }

    /// Usable bytes of its stacks.
    pub(crate) fn bytes(self) -> usize {
        MIN_BYTES << self.0
    }

    /// The class of this [number](Self::index).
    pub(crate) fn numbered(index: u8) -> Class {
        Class(index)
    }

    /// Its number, below [`CLASSES`].
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    fn stride(self) -> usize {
        self.bytes() + guard_bytes()
    }
}

fn guard_bytes() -> usize {
    GUARD_PAGES * memory::page_size()
}

/// Stacks that are kept back for fibers that are ended without one of their own: 64 KiB.
pub(crate) const RESERVE: Class = Class((64 * 1024 / MIN_BYTES).ilog2() as u8);

/// A stack, owned.
#[derive(Debug)]
pub(crate) struct Stack {
    bottom: usize,
    class: Class,
}

impl Stack {
    /// # Safety
    /// `bottom` and `class` are those of a stack that the caller owns (I1).
    pub(crate) unsafe fn from_parts(bottom: usize, class: Class) -> Stack {
        Stack { bottom, class }
    }

    pub(crate) fn class(&self) -> Class {
        self.class
    }

    /// The lowest usable address.
    pub(crate) fn bottom(&self) -> usize {
        self.bottom
    }

    /// Where the first frame begins: the coloured top, 64-byte aligned.
    pub(crate) fn top(&self) -> usize {
        top_of(self.bottom, self.class)
    }
}

/// The first frame's place on the stack that begins at `bottom`.
pub(crate) fn top_of(bottom: usize, class: Class) -> usize {
    let colour = bottom / memory::page_size() % COLOURS;
    bottom + class.bytes() - colour * COLOUR_BYTES
}

/// Whether `address` lies in the guard below the stack that begins at `bottom`.
pub(crate) fn in_guard(address: usize, bottom: usize) -> bool {
    (bottom - guard_bytes()..bottom).contains(&address)
}

/// Why there is no stack.
#[derive(Debug)]
pub(crate) struct NoStack {
    /// What the system said.
    pub(crate) error: io::Error,
    /// Stacks of all sizes that exist.
    pub(crate) stacks: usize,
    /// The guard in use: with `Protect` the limit is the number of mappings.
    pub(crate) guard: Guard,
}

/// All stacks of the process that are with no fiber and in no worker's cache.
pub(crate) struct Depot {
    classes: [Lock<Shelf>; CLASSES],
    /// Stacks that have a guard.
    carved: AtomicUsize,
    /// Of these, stacks whose guard is a mapping of its own.
    protected: AtomicUsize,
    /// Stacks on the shelves whose pages are still there.
    dirty: AtomicUsize,
    /// When idle stacks are looked at next.
    trim_ns: AtomicU64,
}

/// Stacks of one class.
struct Shelf {
    /// The last ones are given out first.
    dirty: Vec<usize>,
    /// The least that `dirty` has held since idle stacks were last looked at: so many of its first have not been used since.
    least: usize,
    clean: Vec<usize>,
    /// Bottom of the next stack to carve from the newest slab, and how many are left in it.
    next: usize,
    left: usize,
    /// Runs that workers had reserved and left uncarved.
    spare: Vec<(usize, usize)>,
    slab_stacks: usize,
}

static DEPOT: Depot = Depot {
    classes: [const { Lock::new(Shelf::EMPTY) }; CLASSES],
    carved: AtomicUsize::new(0),
    protected: AtomicUsize::new(0),
    dirty: AtomicUsize::new(0),
    trim_ns: AtomicU64::new(0),
};

/// The depot of this process.
pub(crate) fn depot() -> &'static Depot {
    &DEPOT
}

impl Depot {
    /// Stacks of all sizes that exist, used or idle.
    pub(crate) fn carved(&self) -> usize {
        self.carved.load(Relaxed)
    }

    /// Idle stacks whose pages have not been given back.
    pub(crate) fn dirty(&self) -> usize {
        self.dirty.load(Relaxed)
    }

    /// Gives the pages of all idle stacks back.
    pub(crate) fn trim(&self) {
        self.trim_each(|shelf| shelf.dirty.len());
    }

    /// Gives the pages of stacks back that have been idle since the last such look, if that was `period_ns` ago; whoever asks first does it. Says when to ask again.
    pub(crate) fn trim_unused(&self, now_ns: u64, period_ns: u64) -> u64 {
        let due_ns = self.trim_ns.load(Relaxed);
        let next_ns = now_ns + period_ns;
        if now_ns < due_ns {
            return due_ns;
        }
        if self.trim_ns.compare_exchange(due_ns, next_ns, Relaxed, Relaxed).is_ok() {
            self.trim_each(|shelf| shelf.least);
        }
        next_ns
    }

    /// Gives the pages of the coldest idle stacks of each class back, as many as `count` says: neighbours together in one call.
    fn trim_each(&self, count: impl Fn(&Shelf) -> usize) {
        for class in 0..CLASSES {
            let class = Class(class as u8);
            let mut idle: Vec<usize> = {
                let mut shelf = self.shelf(class).lock();
                let count = count(&shelf);
                let idle = shelf.dirty.drain(..count).collect();
                shelf.least = shelf.dirty.len();
                idle
            };
            self.dirty.fetch_sub(idle.len(), Relaxed);
            idle.sort_unstable();
            for run in idle.chunk_by(|a, b| a + class.stride() == *b) {
                let len = run[run.len() - 1] + class.bytes() - run[0];
                // SAFETY: I1 - these stacks are this function's alone, and between them lie only their guards.
                unsafe { memory::give_back(run[0], len) };
            }
            self.shelf(class).lock().clean.append(&mut idle);
        }
    }

    fn shelf(&self, class: Class) -> &Lock<Shelf> {
        &self.classes[class.index()]
    }

    /// Moves idle stacks into `cache`, warm ones first; `false` if there are none.
    fn refill(&self, class: Class, cache: &mut Vec<usize>) -> bool {
        let mut shelf = self.shelf(class).lock();
        let warm = shelf.dirty.len().min(BATCH);
        let from = shelf.dirty.len() - warm;
        cache.extend(shelf.dirty.drain(from..));
        shelf.least = shelf.least.min(from);
        self.dirty.fetch_sub(warm, Relaxed);
        if warm == 0 {
            let from = shelf.clean.len() - shelf.clean.len().min(BATCH);
            cache.extend(shelf.clean.drain(from..));
        }
        !cache.is_empty()
    }

    fn put(&self, class: Class, stacks: impl ExactSizeIterator<Item = usize>) {
        self.dirty.fetch_add(stacks.len(), Relaxed);
        self.shelf(class).lock().dirty.extend(stacks);
    }

    /// A run of stacks that have no guard yet: bottom of the first, and how many.
    fn reserve(&self, class: Class) -> io::Result<(usize, usize)> {
        let mut shelf = self.shelf(class).lock();
        if let Some(run) = shelf.spare.pop() {
            return Ok(run);
        }
        if shelf.left == 0 {
            shelf.new_slab(class)?;
        }
        let (first, run) = (shelf.next, shelf.left.min(BATCH));
        shelf.next += run * class.stride();
        shelf.left -= run;
        Ok((first, run))
    }

    /// Makes the stack at `bottom` usable: its guard is counted, and installed unless it `is_guarded`.
    fn carve(&self, bottom: usize, is_guarded: bool) -> io::Result<()> {
        let kind = memory::guard_kind();
        let full = !is_guarded && kind == Guard::Protect && self.protected.load(Relaxed) >= protect_limit();
        if full && !self.uncarve_one() {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let kind = match is_guarded {
            true => memory::use_guard(),
            // SAFETY: the pages below `bottom` belong to this stack, which nobody has used yet.
            false => unsafe { memory::guard(kind, bottom - guard_bytes(), guard_bytes()) },
        }?;
        self.carved.fetch_add(1, Relaxed);
        self.protected.fetch_add(usize::from(kind == Guard::Protect), Relaxed);
        Ok(())
    }

    /// Takes the guard of some idle stack away, so that its mappings serve another; `false` if no stack is idle here.
    #[cold]
    fn uncarve_one(&self) -> bool {
        for class in 0..CLASSES {
            let class = Class(class as u8);
            let mut shelf = self.shelf(class).lock();
            let Some(bottom) = shelf.clean.pop().or_else(|| shelf.take_dirty(self)) else { continue };
            // SAFETY: I1 - the stack is this function's alone; it becomes one without a guard, which is carved anew before it is used.
            if unsafe { memory::unguard(bottom - guard_bytes(), guard_bytes()) }.is_ok() {
                shelf.spare.push((bottom, 1));
                self.carved.fetch_sub(1, Relaxed);
                self.protected.fetch_sub(1, Relaxed);
                return true;
            }
            shelf.clean.push(bottom);
        }
        false
    }
}

/// How many stacks may have a guard mapping of their own: each takes two of the process's mappings.
fn protect_limit() -> usize {
    static LIMIT: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *LIMIT.get_or_init(|| memory::max_map_count().saturating_sub(memory::map_count() + MAPS_SPARED) / 2)
}

/// Where a larger slab was refused there is little address space left: stacks leave some to the rest of the program, control blocks included, which could not go on without.
fn spare_the_rest(base: usize, bytes: usize, is_scarce: bool) -> io::Result<usize> {
    if is_scarce && !memory::has_room(SPARED_BYTES) {
        // SAFETY: mapped by the caller just now, and used by nobody.
        unsafe { memory::unmap(base, bytes) };
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    Ok(base)
}

impl Shelf {
    const EMPTY: Shelf =
        Shelf { dirty: Vec::new(), least: 0, clean: Vec::new(), next: 0, left: 0, spare: Vec::new(), slab_stacks: SLAB_STACKS_MIN };

    /// Takes an idle stack whose pages are still there.
    fn take_dirty(&mut self, depot: &Depot) -> Option<usize> {
        let bottom = self.dirty.pop()?;
        self.least = self.least.min(self.dirty.len());
        depot.dirty.fetch_sub(1, Relaxed);
        Some(bottom)
    }

    /// Maps a slab, twice as large as the last; a smaller one where the system will not give that much.
    fn new_slab(&mut self, class: Class) -> io::Result<()> {
        let most = self.slab_stacks.min((SLAB_BYTES_MAX / class.stride()).max(1));
        let mut stacks = most;
        let base = loop {
            let mapped = memory::map(stacks * class.stride());
            match mapped.and_then(|base| spare_the_rest(base, stacks * class.stride(), stacks < most)) {
                Ok(base) => break base,
                Err(error) if stacks == 1 => return Err(error),
                Err(_) => stacks /= 2,
            }
        };
        self.next = base + guard_bytes();
        self.left = stacks;
        self.slab_stacks = stacks * 2;
        Ok(())
    }
}

/// Stacks that the cache is asked for together, and lines of each. A prefetch whose page walk misses is waited for, but several in a row overlap: 100,000 fibers started on warm stacks and put to sleep took
/// 38 ms less of CPU time than without, 10 less than with 4 lines.
const AHEAD: usize = 8;
const AHEAD_LINES: usize = 8;

/// One worker's stacks.
pub(crate) struct Cache {
    classes: [Row; CLASSES],
    /// No class has held more idle stacks since they were last shared.
    most: usize,
}

#[derive(Default)]
struct Row {
    idle: Vec<usize>,
    /// As many of them, the first ones, have not been used lately.
    cold: usize,
    /// Stacks reserved for this worker that do not count as carved yet.
    next: usize,
    left: usize,
    /// They have their guards already.
    guarded: bool,
    /// It has reserved stacks before: it needs many, and they are prepared together from then on.
    many: bool,
}

impl Cache {
    pub(crate) fn new() -> Self {
        Self { classes: Default::default(), most: 0 }
    }

    /// A stack of this class: the warmest there is, else a new one.
    #[inline]
    pub(crate) fn take(&mut self, class: Class) -> Result<Stack, NoStack> {
        let row = &mut self.classes[class.index()];
        match row.idle.pop() {
            Some(bottom) => {
                if row.idle.len() < row.cold {
                    row.fetch_ahead(class);
                }
                Ok(Stack { bottom, class })
            }
            None => self.take_slow(class),
        }
    }

    #[cold]
    fn take_slow(&mut self, class: Class) -> Result<Stack, NoStack> {
        let row = &mut self.classes[class.index()];
        if depot().refill(class, &mut row.idle) {
            row.cold = row.idle.len();
            self.most = self.most.max(row.idle.len());
            return self.take(class);
        }
        let stack = row.carve_next(class);
        stack.map_err(|error| NoStack { error, stacks: depot().carved(), guard: memory::guard_kind() })
    }

    /// At least as many as the idle stacks of any class.
    pub(crate) fn idle_at_most(&self) -> usize {
        self.most
    }

    /// Takes a stack back. It stays with this worker until [`Cache::settle`] (I2).
    #[inline]
    pub(crate) fn give(&mut self, stack: Stack) {
        let row = &mut self.classes[stack.class.index()];
        row.idle.push(stack.bottom);
        let idle = row.idle.len();
        if idle > row.cold + AHEAD {
            row.cold = idle - AHEAD;
        }
        if idle > self.most {
            self.most = idle;
        }
    }

    /// Hands surplus to the depot. Only from the worker's own thread stack (I2).
    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.most > CACHE_MAX {
            self.share(CACHE_MAX - BATCH);
        }
    }

    /// Hands all but `keep` stacks of each class to the depot, coldest first; whether there were more.
    #[cold]
    pub(crate) fn share(&mut self, keep: usize) -> bool {
        let mut shared = false;
        self.most = self.most.min(keep);
        for (class, row) in self.classes.iter_mut().enumerate() {
            let surplus = row.idle.len().saturating_sub(keep);
            if surplus > 0 {
                depot().put(Class(class as u8), row.idle.drain(..surplus));
                row.cold = row.cold.saturating_sub(surplus);
                shared = true;
            }
        }
        shared
    }
}

impl Row {
    /// Asks the cache for the tops of the stacks that are taken next.
    #[cold]
    fn fetch_ahead(&mut self, class: Class) {
        self.cold = self.idle.len().saturating_sub(AHEAD);
        for &bottom in &self.idle[self.cold..] {
            let top = top_of(bottom, class);
            (1..=AHEAD_LINES).for_each(|line| prefetch((top - 64 * line) as *const u8));
        }
    }

    /// Installs the guards of the stacks that were reserved, and finds the top page of each, by two calls for all; whether they are guarded. 100,000 fibers that begin to sleep, cold: some 70 ms less of CPU time.
    fn prepare(&self, class: Class) -> bool {
        let bottoms = (0..self.left).map(|i| self.next + i * class.stride());
        // SAFETY: I1 - reserved for this worker, and nobody has used them.
        let guarded = unsafe { memory::guard_all(bottoms.clone().map(|bottom| bottom - guard_bytes()), guard_bytes()) };
        if guarded {
            memory::populate_all(bottoms.map(|bottom| bottom + class.bytes() - memory::page_size()), memory::page_size());
        }
        guarded
    }

    fn carve_next(&mut self, class: Class) -> io::Result<Stack> {
        if self.left == 0 {
            (self.next, self.left) = depot().reserve(class)?;
            self.guarded = self.many && self.prepare(class);
            self.many = true;
        }
        depot().carve(self.next, self.guarded)?;
        let bottom = self.next;
        self.next += class.stride();
        self.left -= 1;
        Ok(Stack { bottom, class })
    }
}

impl Drop for Cache {
    /// The worker ends: its stacks, and what it had reserved, serve others.
    fn drop(&mut self) {
        self.share(0);
        for (class, row) in self.classes.iter().enumerate().filter(|(_, row)| row.left != 0) {
            depot().shelf(Class(class as u8)).lock().spare.push((row.next, row.left));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_and_absurd_ones_refused() {
        for (asked, got) in
            [(1, MIN_BYTES), (MIN_BYTES, MIN_BYTES), (MIN_BYTES + 1, 2 * MIN_BYTES), (100_000, 131_072), (MAX_BYTES, MAX_BYTES)]
        {
            assert_eq!(Class::for_bytes(asked).unwrap().bytes(), got, "asked for {asked}");
        }
        for absurd in [0, MAX_BYTES + 1, usize::MAX] {
            let error = Class::for_bytes(absurd).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(&absurd.to_string()), "{error}");
        }
    }

    #[test]
    fn strides_are_odd_and_tops_coloured() {
        for class in 0..CLASSES {
            assert_eq!(Class(class as u8).stride() / memory::page_size() % 2, 1);
        }
        let mut cache = Cache::new();
        // A class of its own: of those that others gave back many may be of one colour.
        let class = Class::for_bytes(2 << 20).unwrap();
        let stacks: Vec<Stack> = (0..32).map(|_| cache.take(class).unwrap()).collect();
        let lines: std::collections::HashSet<usize> = stacks.iter().map(|s| s.top() % 4096 / COLOUR_BYTES).collect();
        assert!(lines.len() >= COLOURS / 2, "tops fall into {} cache lines only", lines.len());
        for stack in &stacks {
            assert_eq!(stack.top() % 64, 0);
            assert!(stack.top() > stack.bottom() + class.bytes() - 4096);
        }
        stacks.into_iter().for_each(|s| cache.give(s));
    }

    #[test]
    fn the_last_stack_given_is_the_first_taken() {
        let mut cache = Cache::new();
        let class = Class::for_bytes(MIN_BYTES).unwrap();
        let (a, b) = (cache.take(class).unwrap(), cache.take(class).unwrap());
        let (a_bottom, b_bottom) = (a.bottom(), b.bottom());
        assert_ne!(a_bottom, b_bottom);
        cache.give(a);
        cache.give(b);
        assert_eq!(cache.take(class).unwrap().bottom(), b_bottom);
        assert_eq!(cache.take(class).unwrap().bottom(), a_bottom);
    }

    #[test]
    fn the_whole_stack_is_usable_and_trimming_gives_its_pages_back() {
        // A class of its own, so that other tests' stacks do not mix in.
        let class = Class::for_bytes(512 * 1024).unwrap();
        let mut cache = Cache::new();
        let stacks: Vec<Stack> = (0..40).map(|_| cache.take(class).unwrap()).collect();
        for stack in &stacks {
            // SAFETY: the stack is ours, from bottom to bottom + bytes.
            unsafe { std::ptr::write_bytes(stack.bottom() as *mut u8, 0x5a, class.bytes()) };
            assert_eq!(memory::resident_depth(stack.bottom(), class.bytes()), class.bytes());
        }
        let bottoms: Vec<usize> = stacks.iter().map(Stack::bottom).collect();
        stacks.into_iter().for_each(|s| cache.give(s));
        cache.share(0);
        depot().trim();
        for bottom in bottoms {
            assert_eq!(memory::resident_depth(bottom, class.bytes()), 0, "pages of an idle stack were kept");
        }
    }

    /// Of ten idle stacks three are used between two looks: the other seven give their pages back, and the three do at the look after that.
    #[test]
    fn only_stacks_that_nobody_used_since_the_last_look_are_trimmed() {
        let class = Class::for_bytes(4 << 20).unwrap();
        let depot = Depot {
            classes: [const { Lock::new(Shelf::EMPTY) }; CLASSES],
            carved: AtomicUsize::new(0),
            protected: AtomicUsize::new(0),
            dirty: AtomicUsize::new(0),
            trim_ns: AtomicU64::new(0),
        };
        let mut cache = Cache::new();
        let bottoms: Vec<usize> = (0..10).map(|_| cache.take(class).unwrap().bottom()).collect();
        depot.put(class, bottoms.clone().into_iter());
        let clean = || depot.shelf(class).lock().clean.len();
        let next_ns = depot.trim_unused(100, 10);
        assert_eq!((next_ns, clean()), (110, 0), "nothing has been idle since an earlier look: there was none");
        assert_eq!((depot.trim_unused(109, 10), clean()), (110, 0), "it is not time yet");
        let used: Vec<usize> = (0..3).map(|_| depot.shelf(class).lock().take_dirty(&depot).unwrap()).collect();
        assert_eq!(used, [bottoms[9], bottoms[8], bottoms[7]], "warm ones first");
        depot.put(class, used.into_iter());
        assert_eq!((depot.trim_unused(110, 10), clean(), depot.dirty()), (120, 7, 3));
        assert_eq!((depot.trim_unused(120, 10), clean(), depot.dirty()), (130, 10, 0));
    }

    #[test]
    fn surplus_goes_to_the_depot_and_serves_another_cache() {
        let class = Class::for_bytes(1 << 20).unwrap();
        let (mut giver, mut taker) = (Cache::new(), Cache::new());
        let stacks: Vec<Stack> = (0..CACHE_MAX + 1).map(|_| giver.take(class).unwrap()).collect();
        let bottoms: Vec<usize> = stacks.iter().map(Stack::bottom).collect();
        stacks.into_iter().for_each(|s| giver.give(s));
        giver.settle();
        assert_eq!(giver.classes[class.index()].idle.len(), CACHE_MAX - BATCH);
        let taken = taker.take(class).unwrap();
        assert!(bottoms.contains(&taken.bottom()), "a new stack was carved although idle ones were there");
        taker.give(taken);
    }
}
