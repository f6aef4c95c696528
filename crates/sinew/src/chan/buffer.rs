//! What a channel holds while nobody takes it.
//!
//! Three shapes: one place in the channel itself (no second allocation, for `bounded(1)` and `oneshot` of small messages), a ring of a fixed size, and linked blocks that grow
//! without limit. Rejected for the last: a ring that doubles, which would copy all messages while the channel is locked. The buffer is small whatever the messages are: a channel is
//! made on the stack of a fiber, which has little.
//!
//! # Invariants
//! I1. Of a ring, the `len` places from `head` on are filled, and no others; of blocks, those from `head` in the first to `tail` in the last; the
//!     one place, if `len` is 1. `T` fits into that.
//! I2. The blocks from `first` to `last` are linked by `next`; `spare` is one more or null. All came from `Box`.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// Messages of a block. As crossbeam-channel's and tokio's; the cost of an allocation is shared by so many messages.
const BLOCK_LEN: usize = 32;

/// Messages in the order in which they came.
pub(super) enum Buffer<T> {
    One(One<T>),
    Ring(Ring<T>),
    Blocks(Blocks<T>),
}

impl<T> Buffer<T> {
    #[track_caller]
    pub(super) fn bounded(capacity: usize) -> Self {
        if capacity == 1 && One::<T>::FITS { Buffer::One(One::new()) } else { Buffer::Ring(Ring::new(capacity)) }
    }

    pub(super) fn unbounded() -> Self {
        Buffer::Blocks(Blocks::new())
    }

    /// How many it can hold; `None` if there is no limit.
    pub(super) fn capacity(&self) -> Option<usize> {
        match self {
            Buffer::One(_) => Some(1),
            Buffer::Ring(ring) => Some(ring.places.len()),
            Buffer::Blocks(_) => None,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Buffer::One(one) => one.len,
            Buffer::Ring(ring) => ring.len,
            Buffer::Blocks(blocks) => blocks.len,
        }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        match self {
            Buffer::One(one) => one.len == 1,
            Buffer::Ring(ring) => ring.len == ring.places.len(),
            Buffer::Blocks(_) => false,
        }
    }

    /// Puts `value` behind all others. It is not full.
    #[inline]
    pub(super) fn push(&mut self, value: T) {
        debug_assert!(!self.is_full(), "a message for a full channel");
        match self {
            Buffer::One(one) => one.push(value),
            Buffer::Ring(ring) => ring.push(value),
            Buffer::Blocks(blocks) => blocks.push(value),
        }
    }

    /// Takes the oldest.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        // SAFETY: the message is ours now.
        self.pop_place().map(|place| unsafe { place.read() })
    }

    /// Takes the oldest, and leaves it where it is: it is the caller's, until the next push.
    #[inline]
    fn pop_place(&mut self) -> Option<*mut T> {
        match self {
            Buffer::One(one) => one.pop_place(),
            Buffer::Ring(ring) => ring.pop_place(),
            Buffer::Blocks(blocks) => blocks.pop_place(),
        }
    }

    /// All that is in it, to be dropped without the channel's lock.
    pub(super) fn take_all(&mut self) -> Buffer<T> {
        let rest = match self {
            Buffer::One(_) => Buffer::One(One::new()),
            Buffer::Ring(_) => Buffer::Ring(Ring::new(0)),
            Buffer::Blocks(_) => Buffer::unbounded(),
        };
        std::mem::replace(self, rest)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        /// Goes on dropping if one message's destructor panics; two such panics abort, as with a `Vec`.
        struct Rest<'a, T>(&'a mut Buffer<T>);
        impl<T> Drop for Rest<'_, T> {
            fn drop(&mut self) {
                while let Some(place) = self.0.pop_place() {
                    // SAFETY: the message is ours now. In its place: it may be larger than the stack.
                    unsafe { place.drop_in_place() };
                }
            }
        }
        let rest = Rest(self);
        while let Some(place) = rest.0.pop_place() {
            // SAFETY: as above.
            unsafe { place.drop_in_place() };
        }
    }
}

/// As many words as the other shapes have.
type Place = MaybeUninit<[usize; 5]>;

pub(super) struct One<T> {
    place: Place,
    /// 0 or 1.
    len: usize,
    _message: PhantomData<T>,
}

impl<T> One<T> {
    /// Whether the place is one for a message.
    const FITS: bool = size_of::<T>() <= size_of::<Place>() && align_of::<T>() <= align_of::<Place>();

    fn new() -> Self {
        Self { place: MaybeUninit::uninit(), len: 0, _message: PhantomData }
    }

    #[inline]
    fn push(&mut self, value: T) {
        // SAFETY: I1 - a message fits, and the place is free.
        unsafe { self.place.as_mut_ptr().cast::<T>().write(value) };
        self.len = 1;
    }

    #[inline]
    fn pop_place(&mut self) -> Option<*mut T> {
        (std::mem::take(&mut self.len) == 1).then(|| self.place.as_mut_ptr().cast())
    }
}

pub(super) struct Ring<T> {
    places: Box<[MaybeUninit<T>]>,
    head: usize,
    len: usize,
}

impl<T> Ring<T> {
    #[track_caller]
    fn new(capacity: usize) -> Self {
        let mut places = Vec::new();
        if places.try_reserve_exact(capacity).is_err() {
            refuse_capacity(capacity);
        }
        // SAFETY: there is room for so many, and places need no value.
        unsafe { places.set_len(capacity) };
        Self { places: places.into_boxed_slice(), head: 0, len: 0 }
    }

    #[inline]
    fn push(&mut self, value: T) {
        // No sum that could overflow: of a type without size there may be `usize::MAX` places.
        let before_wrap = self.places.len() - self.head;
        let index = if self.len < before_wrap { self.head + self.len } else { self.len - before_wrap };
        self.places[index].write(value);
        self.len += 1;
    }

    #[inline]
    fn pop_place(&mut self) -> Option<*mut T> {
        if self.len == 0 {
            return None;
        }
        // The place at `head` leaves the filled ones (I1).
        let place = self.places[self.head].as_mut_ptr();
        self.head = if self.head + 1 == self.places.len() { 0 } else { self.head + 1 };
        self.len -= 1;
        Some(place)
    }
}

/// Panics since there is no memory for a channel.
#[cold]
#[track_caller]
pub(super) fn refuse_capacity(capacity: usize) -> ! {
    panic!("there is no memory for a channel of {capacity} messages");
}

struct Block<T> {
    next: *mut Block<T>,
    places: [MaybeUninit<T>; BLOCK_LEN],
}

pub(super) struct Blocks<T> {
    first: *mut Block<T>,
    /// In the first: the oldest message.
    head: usize,
    last: *mut Block<T>,
    /// In the last: the next free place. `BLOCK_LEN` while there is no block.
    tail: usize,
    len: usize,
    spare: *mut Block<T>,
}

impl<T> Blocks<T> {
    fn new() -> Self {
        Self { first: ptr::null_mut(), head: 0, last: ptr::null_mut(), tail: BLOCK_LEN, len: 0, spare: ptr::null_mut() }
    }

    #[inline]
    fn push(&mut self, value: T) {
        if self.tail == BLOCK_LEN {
            self.grow();
        }
        // SAFETY: I1, I2 - `last` is a block, and its place at `tail` is free.
        unsafe { (&mut (*self.last).places)[self.tail].write(value) };
        self.tail += 1;
        self.len += 1;
    }

    #[inline]
    fn pop_place(&mut self) -> Option<*mut T> {
        if self.len == 0 {
            return None;
        }
        if self.head == BLOCK_LEN {
            self.leave_first();
        }
        // SAFETY: I1, I2 - there is a message, so the place at `head` is in a block. It leaves the filled ones here.
        let place = unsafe { (&mut (*self.first).places)[self.head].as_mut_ptr() };
        self.head += 1;
        self.len -= 1;
        Some(place)
    }

    #[cold]
    fn grow(&mut self) {
        let mut block = std::mem::replace(&mut self.spare, ptr::null_mut());
        if block.is_null() {
            // Not made on the stack first: messages may be large.
            block = Box::into_raw(Box::<Block<T>>::new_uninit()).cast();
        }
        // SAFETY: I2 - the block is ours alone; its places need no value.
        unsafe { (&raw mut (*block).next).write(ptr::null_mut()) };
        if self.last.is_null() {
            self.first = block;
        } else {
            // SAFETY: I2.
            unsafe { (*self.last).next = block };
        }
        self.last = block;
        self.tail = 0;
    }

    /// Goes on to the second block: there is a message, and not in the first.
    #[cold]
    fn leave_first(&mut self) {
        let left = self.first;
        // SAFETY: I1, I2 - the first has been emptied, and there is another.
        self.first = unsafe { (*left).next };
        self.head = 0;
        let one_too_many = std::mem::replace(&mut self.spare, left);
        Self::free(one_too_many);
    }

    fn free(block: *mut Block<T>) {
        if !block.is_null() {
            // SAFETY: I2 - it came from a box, and nobody else has it.
            drop(unsafe { Box::from_raw(block) });
        }
    }
}

impl<T> Drop for Blocks<T> {
    fn drop(&mut self) {
        // `Buffer` has dropped the messages.
        Self::free(self.spare);
        while !self.first.is_null() {
            // SAFETY: I2.
            let next = unsafe { (*self.first).next };
            Self::free(self.first);
            self.first = next;
        }
    }
}

// SAFETY: it owns its blocks and the messages in them.
unsafe impl<T: Send> Send for Blocks<T> {}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn every_shape_is_a_queue() {
        for capacity in [Some(1), Some(2), Some(3), Some(33), None] {
            let mut buffer = capacity.map_or(Buffer::unbounded(), Buffer::bounded);
            let mut model = VecDeque::new();
            // Pushes and pops of all proportions, over many blocks and many turns of a ring.
            for step in 0..20_000u64 {
                if step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40 & 1023 < 512 + step % 900 - 400 && !buffer.is_full() {
                    buffer.push(step.to_string());
                    model.push_back(step.to_string());
                } else {
                    assert_eq!(buffer.pop(), model.pop_front());
                }
                assert_eq!(buffer.len(), model.len());
                assert_eq!(buffer.is_full(), Some(model.len()) == capacity);
            }
        }
    }

    #[test]
    fn one_place_takes_messages_that_fit_and_no_others() {
        #[derive(Debug, PartialEq)]
        #[repr(align(64))]
        struct Aligned(u8);
        let mut places = (Buffer::bounded(1), Buffer::bounded(1), Buffer::bounded(1), Buffer::bounded(1));
        places.0.push([7usize; 5]);
        places.1.push([7usize; 6]);
        places.2.push(Aligned(7));
        places.3.push(());
        assert!(matches!((&places.0, &places.3), (Buffer::One(_), Buffer::One(_))));
        assert!(matches!((&places.1, &places.2), (Buffer::Ring(_), Buffer::Ring(_))));
        assert_eq!((places.0.pop(), places.0.pop(), places.1.pop()), (Some([7; 5]), None, Some([7; 6])));
        assert_eq!((places.2.pop(), places.3.pop(), places.3.len()), (Some(Aligned(7)), Some(()), 0));
        assert_eq!(size_of::<Buffer<[u8; 1 << 20]>>(), size_of::<Buffer<()>>());
    }

    #[test]
    fn a_ring_of_nothing_may_have_any_size() {
        let mut buffer = Buffer::bounded(usize::MAX);
        for _ in 0..3 {
            buffer.push(());
        }
        assert_eq!((buffer.len(), buffer.pop(), buffer.len()), (3, Some(()), 2));
    }

    #[test]
    fn what_is_left_is_dropped_once_even_if_one_panics() {
        struct Counts(std::rc::Rc<std::cell::Cell<u32>>, bool);
        impl Drop for Counts {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
                assert!(!self.1, "as planned");
            }
        }
        for mut buffer in [Buffer::bounded(100), Buffer::unbounded()] {
            let dropped = std::rc::Rc::new(std::cell::Cell::new(0));
            (0..100).for_each(|i| buffer.push(Counts(dropped.clone(), i == 40)));
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(buffer)));
            assert!(panic.is_err());
            assert_eq!(dropped.get(), 100);
        }
    }
}
