//! Handles to fibers, and to plain threads that wait as fibers do.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::ptr::{self, NonNull};

use crate::base::atomic::thread_local;
use crate::fiber::stack::Class;
use crate::fiber::{Control, Id, Kind, stack};
use crate::os::{fork, memory};
use crate::sched::cancel;
use crate::sched::worker::{here, make_ready, new_block, recycle};

/// A handle to a fiber, as [`std::thread::Thread`] is one to a thread.
///
/// It can be cloned, sent and kept for as long as one likes; it keeps neither the fiber running nor its stack alive. On a thread that is no worker,
/// [`current`](crate::current) gives a handle to that thread, which can be unparked like any other.
pub struct Fiber {
    control: NonNull<Control>,
}

// SAFETY: a handle uses of its block only what is atomic or does not change while a reference lives.
unsafe impl Send for Fiber {}
// SAFETY: as above.
unsafe impl Sync for Fiber {}

// A handle gives no access to what a panic may have left half done; as std's.
impl std::panic::UnwindSafe for Fiber {}
impl std::panic::RefUnwindSafe for Fiber {}

impl Fiber {
    /// # Safety
    /// The caller hands over one reference to the block.
    pub(crate) unsafe fn from_reference(control: *const Control) -> Self {
        Self { control: NonNull::new(control.cast_mut()).expect("a block is never at address zero") }
    }

    pub(crate) fn control(&self) -> &Control {
        // SAFETY: this handle owns a reference, so the block is this fiber's.
        unsafe { self.control.as_ref() }
    }

    /// Its id, which no other fiber has while a handle to this one lives.
    pub fn id(&self) -> Id {
        self.control().id()
    }

    /// The name given by [`Builder::name`](crate::Builder::name); for a plain thread, the thread's.
    pub fn name(&self) -> Option<&str> {
        self.control().name()
    }

    /// Where it was spawned.
    pub fn spawned_at(&self) -> &'static Location<'static> {
        self.control().site()
    }

    /// Makes its current or next [`park`](crate::park) return.
    ///
    /// Several calls before it parks count as one, as with [`std::thread::Thread::unpark`].
    #[track_caller]
    pub fn unpark(&self) {
        fork::refuse();
        if let Some(claimed) = self.control().unpark() {
            make_ready(claimed);
        }
    }

    /// Cancels it, as [`JoinHandle::cancel`](crate::JoinHandle::cancel). A plain thread can be cancelled too: its cancel points fail from then on.
    #[track_caller]
    pub fn cancel(&self) {
        fork::refuse();
        cancel::cancel(self.control());
    }

    /// Bytes of stack it is known to have used; 0 before its first suspension and for plain threads.
    ///
    /// That is the deepest place at which it suspended. On the running fiber itself (through [`current`](crate::current)) the pages its
    /// stack has in memory count too: then it is never less than the truth, but pages touched by an earlier fiber on the same
    /// stack are counted as well.
    pub fn stack_high_water(&self) -> usize {
        let control = self.control();
        let noted = control.noted_depth();
        let is_current = crate::sched::worker::here().and_then(|w| w.current()).is_some_and(|me| std::ptr::eq(me, control));
        if !is_current {
            return noted;
        }
        noted.max(memory::resident_depth(control.stack_bottom(), control.class().bytes()))
    }

    /// Usable bytes of its stack; 0 for a plain thread.
    pub fn stack_size(&self) -> usize {
        match self.control().kind() {
            Kind::Fiber | Kind::Mover => self.control().class().bytes(),
            Kind::Thread => 0,
        }
    }
}

impl Clone for Fiber {
    fn clone(&self) -> Self {
        self.control().retain();
        Self { control: self.control }
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        if self.control().release() {
            // SAFETY: that was the last reference.
            unsafe { recycle(self.control.as_ptr()) };
        }
    }
}

impl fmt::Debug for Fiber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fiber").field("id", &self.id()).field("name", &self.name()).finish_non_exhaustive()
    }
}

/// In a forked child: its thread has no block, so that whatever waits there comes to `new_thread_block`.
pub(crate) fn forget_block() {
    let _ = BLOCK.try_with(|block| block.set(ptr::null()));
}

thread_local! {
    /// The block of a plain thread, made when it first waits. Fibers never come here: theirs is their worker's (`Me::now`).
    static BLOCK: Cell<*const Control> = const { Cell::new(ptr::null()) };
    /// Gives the block up when the thread ends.
    static KEEPER: Keeper = const { Keeper };
}

struct Keeper;

impl Drop for Keeper {
    fn drop(&mut self) {
        let block = BLOCK.try_with(|block| block.replace(ptr::null())).unwrap_or(ptr::null());
        if !block.is_null() {
            // SAFETY: the thread's own reference, given up once.
            drop(unsafe { Fiber::from_reference(block) });
        }
    }
}

/// The block of this plain thread. A thread that waits while its thread-locals are being destroyed gets one that nobody gives up: one
/// block is lost with it.
#[track_caller]
pub(crate) fn of_this_thread() -> Fiber {
    let block = BLOCK.try_with(Cell::get).unwrap_or(ptr::null());
    // SAFETY: the thread's own reference keeps the block; the handle gets one of its own.
    unsafe {
        match block.as_ref() {
            Some(block) => block.retain(),
            None => return new_thread_block(),
        }
        Fiber::from_reference(block)
    }
}

/// Has `look` look at the block of this plain thread; `None` if it has never waited, so has none.
#[inline(never)]
pub(crate) fn with_block<T>(look: impl FnOnce(&Control) -> T) -> Option<T> {
    let block = BLOCK.try_with(Cell::get).unwrap_or(ptr::null());
    // SAFETY: the thread's own reference keeps the block.
    unsafe { block.as_ref() }.map(look)
}

#[cold]
#[track_caller]
fn new_thread_block() -> Fiber {
    fork::refuse();
    let block = new_block(here());
    assert!(!block.is_null(), "sinew: no control block left for this thread: too many fibers are alive");
    let name = std::thread::current().name().map(Box::from);
    let class = Class::for_bytes(stack::DEFAULT_BYTES).expect("the default size is a valid one");
    // SAFETY: the block came from the pool just now; one reference is the thread's, one the handle's.
    unsafe {
        (*block).occupy(Kind::Thread, 2, class, name, Location::caller(), ptr::null());
        let _ = BLOCK.try_with(|place| place.set(block));
        let _ = KEEPER.try_with(|_| ());
        Fiber::from_reference(block)
    }
}
