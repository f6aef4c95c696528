//! The channel behind senders and receivers: a buffer, and those who wait on either side of it.
//!
//! A message goes from hand to hand wherever it can: who sends to one that waits writes into that one's frame, and who receives from a full channel moves the
//! first waiting sender's message into the buffer. So nobody who waits can be overtaken, messages leave in the order in which they came, and a woken one has what it waited for: it
//! need not look again. (Go's channels work so.) Rejected: to wake a waiter that then tries again (crossbeam-channel): a
//! fiber that is woken in vain costs two switches, and one that comes late may starve.
//!
//! One lock per channel: an operation that need not wait takes it, copies a message, and lets go; there is no other atomic read-modify-write in it.
//!
//! # Invariants
//! I1. All of `Inside` is used under `gate` alone.
//! I2. Takers that can still be claimed wait only while the buffer is empty and no claimable giver of another frame waits (a `select!` may do both at one
//!     channel, and cannot meet itself); givers only while the buffer is full.
//! I3. The value of a giver is its own until it is claimed with `Done`. Whoever claims it has copied the value before; the copy counts if the claim was won, and the
//!     original does not any more. The other way round for a taker.
//! I4. Of the waiters of one frame, at most one is told something when it goes on, and that one was claimed (`Waiters::claim_first_or`).
//! I5. No message is dropped under the gate (law R2).
//! I6. Whoever enters the gate has a handle, which keeps the channel until the gate was left. So a thread that was claimed need not pass through it.

use std::cell::{Cell, UnsafeCell};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::time::{Duration, Instant};

use super::buffer::Buffer;
use super::error::{Cause, RecvError, SendError, TryRecvError, TrySendError};
use crate::fiber::state;
use crate::fiber::waiters::{Waiter, Waiters};
use crate::fiber::why::{At, Why};
use crate::fiber::{Claimed, Control};
use crate::os::clock;
use crate::os::lock::{Held, Lock};
use crate::rt::wait::{CancelPoint, Cut, Me, Wakes, make_ready};

/// A channel.
pub(super) struct Channel<T> {
    /// Apart from what it guards, so that `select!` can hold those of channels of many types.
    gate: Lock<()>,
    inside: UnsafeCell<Inside<T>>,
    capacity: Option<usize>,
}

// SAFETY: I1 - the gate lets one thread at a time in, so sharing the channel only moves messages between threads.
unsafe impl<T: Send> Sync for Channel<T> {}
// SAFETY: the channel owns its messages; waiters belong to waits of others, which outlive neither their channel nor their place in it.
unsafe impl<T: Send> Send for Channel<T> {}

/// What is used under the gate.
pub(super) struct Inside<T> {
    buffer: Buffer<T>,
    senders: usize,
    receivers: usize,
    /// They wait to receive.
    takers: Waiters<Note<T>>,
    /// They wait to send.
    givers: Waiters<Note<T>>,
}

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    /// Its message has been taken, or there is one for it.
    Done,
    /// The other side is gone.
    Disconnected,
}

/// Where a message is handed over: in the frame of the one that waits.
pub(super) struct Note<T> {
    told: Cell<Told>,
    value: UnsafeCell<MaybeUninit<T>>,
}

impl<T> Note<T> {
    fn empty() -> Self {
        Self { told: Cell::new(Told::Nothing), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    fn full(value: T) -> Self {
        Self { told: Cell::new(Told::Nothing), value: UnsafeCell::new(MaybeUninit::new(value)) }
    }

    fn tell(&self, told: Told) {
        self.told.set(told);
    }

    fn untell(&self) {
        self.told.set(Told::Nothing);
    }

    /// Under the gate, or once claimed.
    pub(super) fn told(&self) -> Told {
        self.told.get()
    }

    /// # Safety
    /// I3: the message in it is the caller's, and is taken once.
    unsafe fn take(&self) -> T {
        // SAFETY: the caller's promise.
        unsafe { (*self.value.get()).assume_init_read() }
    }

    /// Copies `from` into a taker's place. The copy counts if the claim that follows is won.
    ///
    /// # Safety
    /// It is a taker's, under the gate.
    unsafe fn put_copy(&self, from: &T) {
        // SAFETY: the place is the waiter's, which stands still; nobody else uses it (I1). What was there before was no message (I3).
        unsafe { ptr::copy_nonoverlapping(from, (*self.value.get()).as_mut_ptr(), 1) };
    }

    /// Copies a giver's message. The copy counts if the claim that follows is won.
    ///
    /// # Safety
    /// It is a giver's, under the gate.
    unsafe fn get_copy(&self, into: &mut MaybeUninit<T>) {
        // SAFETY: as in `put_copy`; a giver's place is full while it waits.
        unsafe { ptr::copy_nonoverlapping((*self.value.get()).as_ptr(), into.as_mut_ptr(), 1) };
    }
}

/// The gate is held.
pub(super) struct Entered<'a, T> {
    channel: &'a Channel<T>,
    _held: Held<'a, ()>,
}

impl<T> Deref for Entered<'_, T> {
    type Target = Inside<T>;
    fn deref(&self) -> &Inside<T> {
        // SAFETY: I1 - the gate is held for as long as this lives.
        unsafe { &*self.channel.inside.get() }
    }
}

impl<T> DerefMut for Entered<'_, T> {
    fn deref_mut(&mut self) -> &mut Inside<T> {
        // SAFETY: as in `deref`, and `&mut self` keeps this the only borrow.
        unsafe { &mut *self.channel.inside.get() }
    }
}

impl<T> Inside<T> {
    /// Sends `value` if that can be done at once, and says whom to wake for it. The caller makes that one ready without the gate.
    #[inline(always)]
    pub(super) fn offer(&mut self, value: T) -> Result<Option<Claimed>, TrySendError<T>> {
        if self.receivers == 0 {
            return Err(TrySendError::Disconnected(value));
        }
        let value = if self.takers.is_empty() {
            value
        } else {
            match self.hand_over(value) {
                Ok(claimed) => return Ok(Some(claimed)),
                Err(value) => value,
            }
        };
        if self.buffer.is_full() {
            return Err(TrySendError::Full(value));
        }
        self.buffer.push(value);
        Ok(None)
    }

    /// Gives `value` to the first taker that can be claimed.
    fn hand_over(&mut self, value: T) -> Result<Claimed, T> {
        let value = ManuallyDrop::new(value);
        let tell = |note: &Note<T>| {
            // SAFETY: it is a taker's, and we are inside.
            unsafe { note.put_copy(&value) };
            note.tell(Told::Done);
        };
        let claimed = self.takers.claim_first_or(tell, Note::untell);
        // I3: if there is nobody, no copy counts.
        claimed.ok_or_else(|| ManuallyDrop::into_inner(value))
    }

    /// Takes the oldest message if there is one, and says whom to wake for it, as [`offer`](Self::offer).
    #[inline(always)]
    pub(super) fn take(&mut self) -> Result<(T, Option<Claimed>), TryRecvError> {
        match self.buffer.pop() {
            Some(value) if self.givers.is_empty() => Ok((value, None)),
            Some(value) => Ok((value, self.refill())),
            None if self.givers.is_empty() => Err(self.nothing()),
            None => match self.take_over() {
                Some((value, claimed)) => Ok((value, Some(claimed))),
                None => Err(self.nothing()),
            },
        }
    }

    fn nothing(&self) -> TryRecvError {
        if self.senders == 0 { TryRecvError::Disconnected } else { TryRecvError::Empty }
    }

    /// Moves the message of the first giver that can be claimed into the buffer, which has room.
    fn refill(&mut self) -> Option<Claimed> {
        let (value, claimed) = self.take_over()?;
        self.buffer.push(value);
        Some(claimed)
    }

    /// Takes the message of the first giver that can be claimed.
    fn take_over(&mut self) -> Option<(T, Claimed)> {
        let mut value = MaybeUninit::uninit();
        let tell = |note: &Note<T>| {
            // SAFETY: it is a giver's, and we are inside.
            unsafe { note.get_copy(&mut value) };
            note.tell(Told::Done);
        };
        let claimed = self.givers.claim_first_or(tell, Note::untell)?;
        // SAFETY: I3 - the claim was won, so the last copy is the message.
        Some((unsafe { value.assume_init() }, claimed))
    }

    /// Queues a waiter.
    ///
    /// # Safety
    /// As `Waiters::push`.
    pub(super) unsafe fn queue(&mut self, side: Side, waiter: &Waiter<Note<T>>) {
        // SAFETY: the caller's promise.
        unsafe { self.side(side).push(waiter) };
    }

    /// Takes a waiter out, if nobody has.
    ///
    /// # Safety
    /// It was queued in this channel on this side.
    pub(super) unsafe fn withdraw(&mut self, side: Side, waiter: &Waiter<Note<T>>) {
        // SAFETY: the caller's promise.
        unsafe { self.side(side).remove(waiter) };
    }

    fn side(&mut self, side: Side) -> &mut Waiters<Note<T>> {
        match side {
            Side::Givers => &mut self.givers,
            Side::Takers => &mut self.takers,
        }
    }

    /// Claims all who wait on `side`, and tells them that the other side is gone.
    fn turn_away(&mut self, side: Side) -> Wakes {
        let wakes = Wakes::none();
        while let Some(claimed) = self.side(side).claim_first_or(|note| note.tell(Told::Disconnected), Note::untell) {
            wakes.add(claimed);
        }
        wakes
    }
}

/// How long a call waits.
#[derive(Clone, Copy)]
pub(super) enum Until {
    Forever,
    After(Duration),
    At(Instant),
}

impl Until {
    /// The same, for a call that waits several times.
    pub(super) fn fixed(self) -> Until {
        match self {
            Until::After(timeout) => Instant::now().checked_add(timeout).map_or(Until::Forever, Until::At),
            other => other,
        }
    }

    /// Whether a [fixed](Self::fixed) moment has passed.
    pub(super) fn is_over(self) -> bool {
        matches!(self, Until::At(deadline) if Instant::now() >= deadline)
    }

    /// The moment, as the runtime counts.
    #[inline]
    pub(super) fn ns(self) -> u64 {
        match self {
            Until::Forever => u64::MAX,
            Until::After(timeout) => clock::deadline_ns(timeout),
            Until::At(deadline) => clock::deadline_ns(deadline.saturating_duration_since(Instant::now())),
        }
    }
}

/// What a waiter is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Givers,
    Takers,
}

impl Side {
    fn why(self) -> Why {
        Why::At(match self {
            Side::Givers => At::Send,
            Side::Takers => At::Receive,
        })
    }
}

impl<T> Channel<T> {
    /// With one sender and one receiver.
    pub(super) fn new(buffer: Buffer<T>) -> Self {
        let capacity = buffer.capacity();
        let inside = Inside { buffer, senders: 1, receivers: 1, takers: Waiters::new(), givers: Waiters::new() };
        Self { gate: Lock::new(()), inside: UnsafeCell::new(inside), capacity }
    }

    #[inline]
    pub(super) fn enter(&self) -> Entered<'_, T> {
        Entered { _held: self.gate.lock(), channel: self }
    }

    /// The lock alone, for who holds several.
    pub(super) fn gate(&self) -> &Lock<()> {
        &self.gate
    }

    /// What is inside, for who holds the gate.
    pub(super) fn inside(&self) -> *mut Inside<T> {
        self.inside.get()
    }

    pub(super) fn capacity(&self) -> Option<usize> {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.enter().buffer.len()
    }

    #[inline]
    pub(super) fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let claimed = self.enter().offer(value)?;
        wake(claimed);
        Ok(())
    }

    #[inline]
    pub(super) fn try_receive(&self) -> Result<T, TryRecvError> {
        let (value, claimed) = self.enter().take()?;
        wake(claimed);
        Ok(value)
    }

    /// Sends `value`; waits for room, `until` then at most.
    #[inline]
    #[track_caller]
    pub(super) fn send(&self, value: T, until: Until) -> Result<(), SendError<T>> {
        let mut inside = self.enter();
        match inside.offer(value) {
            Ok(claimed) => {
                drop(inside);
                wake(claimed);
                Ok(())
            }
            Err(TrySendError::Full(value)) => self.send_waiting(inside, value, until),
            Err(TrySendError::Disconnected(value)) => Err(SendError::new(value, Cause::Disconnected)),
        }
    }

    #[inline(never)]
    #[track_caller]
    fn send_waiting(&self, inside: Entered<'_, T>, value: T, until: Until) -> Result<(), SendError<T>> {
        match Me::unbound() {
            Some(fiber) => self.send_in_line(inside, value, &fiber.me, &fiber.cancel_point(), until),
            None => {
                drop(inside);
                self.send_carefully(value, until)
            }
        }
    }

    /// As `send`, for one that may be refused, or cut short before it waits: neither is done in the gate.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn send_carefully(&self, value: T, until: Until) -> Result<(), SendError<T>> {
        let me = Me::to_wait();
        let point = match me.cancel_point() {
            Ok(point) => point,
            Err(cut) => return Err(SendError::new(value, cut)),
        };
        let mut inside = self.enter();
        match inside.offer(value) {
            Err(TrySendError::Full(value)) => self.send_in_line(inside, value, &me, &point, until),
            Err(TrySendError::Disconnected(value)) => Err(SendError::new(value, Cause::Disconnected)),
            Ok(claimed) => {
                drop(inside);
                wake(claimed);
                Ok(())
            }
        }
    }

    #[inline(always)]
    fn send_in_line(&self, inside: Entered<'_, T>, value: T, me: &Me, point: &CancelPoint<'_>, until: Until) -> Result<(), SendError<T>> {
        let waiter = giver(me.control(), value);
        // SAFETY: the waiter is new, and the caller's.
        let cause = match unsafe { self.stand_in_line(inside, Side::Givers, &waiter, point, until) } {
            Ok(Told::Done) => return Ok(()),
            Ok(_) => Cause::Disconnected,
            Err(cut) => cut.into(),
        };
        // SAFETY: I3 - it was not claimed with `Done`.
        Err(SendError::new(unsafe { waiter.note.take() }, cause))
    }

    /// Receives a message; waits for one, `until` then at most.
    #[inline]
    #[track_caller]
    pub(super) fn receive(&self, until: Until) -> Result<T, RecvError> {
        let mut inside = self.enter();
        match inside.take() {
            Ok((value, claimed)) => {
                drop(inside);
                wake(claimed);
                Ok(value)
            }
            Err(TryRecvError::Empty) => self.receive_waiting(inside, until),
            Err(TryRecvError::Disconnected) => Err(RecvError::Disconnected),
        }
    }

    #[inline(never)]
    #[track_caller]
    fn receive_waiting(&self, inside: Entered<'_, T>, until: Until) -> Result<T, RecvError> {
        match Me::unbound() {
            Some(fiber) => self.receive_in_line(inside, &fiber.me, &fiber.cancel_point(), until),
            None => {
                drop(inside);
                self.receive_carefully(until)
            }
        }
    }

    /// As `receive`, for one that may be refused, or cut short before it waits: neither is done in the gate.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn receive_carefully(&self, until: Until) -> Result<T, RecvError> {
        let me = Me::to_wait();
        let point = me.cancel_point()?;
        let mut inside = self.enter();
        match inside.take() {
            Err(TryRecvError::Empty) => self.receive_in_line(inside, &me, &point, until),
            Err(TryRecvError::Disconnected) => Err(RecvError::Disconnected),
            Ok((value, claimed)) => {
                drop(inside);
                wake(claimed);
                Ok(value)
            }
        }
    }

    #[inline(always)]
    fn receive_in_line(&self, inside: Entered<'_, T>, me: &Me, point: &CancelPoint<'_>, until: Until) -> Result<T, RecvError> {
        let waiter = taker(me.control());
        // SAFETY: the waiter is new, and the caller's.
        match unsafe { self.stand_in_line(inside, Side::Takers, &waiter, point, until) }? {
            // SAFETY: I3 - a sender has put it there for us.
            Told::Done => Ok(unsafe { waiter.note.take() }),
            _ => Err(RecvError::Disconnected),
        }
    }

    /// Queues `waiter`, leaves the gate, and waits until it is told something, or cut short, by its own deadline too.
    ///
    /// # Safety
    /// The waiter is new, and of the caller whose cancel point this is.
    #[inline(always)]
    unsafe fn stand_in_line(
        &self,
        mut inside: Entered<'_, T>,
        side: Side,
        waiter: &Waiter<Note<T>>,
        point: &CancelPoint<'_>,
        until: Until,
    ) -> Result<Told, Cut> {
        // SAFETY: it is new, and stays in the caller's frame until it was claimed or taken out here.
        unsafe { inside.queue(side, waiter) };
        if !point.begin_held(side.why()) {
            // SAFETY: it was queued above.
            unsafe { inside.withdraw(side, waiter) };
            drop(inside);
            return Err(point.fail());
        }
        drop(inside);
        // SAFETY: the wait was begun above; the other side, its end, a cancel or the deadline ends it.
        match unsafe { point.wait(until.ns()) } {
            Ok(state::Cause::Woken) => Ok(waiter.note.told()),
            // SAFETY: it was queued above.
            cut => unsafe {
                self.enter().withdraw(side, waiter);
                Err(cut.err().unwrap_or(Cut::TimedOut))
            },
        }
    }

    pub(super) fn add_sender(&self) {
        self.enter().senders += 1;
    }

    pub(super) fn add_receiver(&self) {
        self.enter().receivers += 1;
    }

    /// As `try_send` and `remove_sender`, of a sender that has one message, in one.
    #[inline]
    pub(super) fn send_last(&self, value: T) -> Result<(), TrySendError<T>> {
        let mut inside = self.enter();
        let sent = inside.offer(value);
        inside.senders -= 1;
        let wakes = if inside.senders == 0 { inside.turn_away(Side::Takers) } else { Wakes::none() };
        drop(inside);
        let sent = sent.map(wake);
        wakes.pay();
        sent
    }

    /// One sender less; those who wait to receive learn that it was the last.
    pub(super) fn remove_sender(&self) {
        let mut inside = self.enter();
        inside.senders -= 1;
        if inside.senders == 0 {
            let wakes = inside.turn_away(Side::Takers);
            drop(inside);
            wakes.pay();
        }
    }

    /// One receiver less. If it was the last, those who wait to send learn of it, and the messages that nobody will receive are dropped.
    pub(super) fn remove_receiver(&self) {
        let mut inside = self.enter();
        inside.receivers -= 1;
        if inside.receivers == 0 {
            let wakes = inside.turn_away(Side::Givers);
            let unread = inside.buffer.take_all();
            drop(inside);
            wakes.pay();
            drop(unread);
        }
    }

    pub(super) fn has_receivers(&self) -> bool {
        self.enter().receivers != 0
    }
}

/// Makes ready whom an operation has claimed.
#[inline]
pub(super) fn wake(claimed: Option<Claimed>) {
    if let Some(claimed) = claimed {
        make_ready(claimed);
    }
}

/// A waiter to receive, of the caller whose block this is.
pub(super) fn taker<T>(control: &Control) -> Waiter<Note<T>> {
    Waiter::new(control, Note::empty())
}

/// A waiter to send `value`.
pub(super) fn giver<T>(control: &Control, value: T) -> Waiter<Note<T>> {
    Waiter::new(control, Note::full(value))
}

/// What is left of a waiter that is in no queue any more: its message, if one is its own.
///
/// # Safety
/// It has waited on `side`, and its message is taken once.
pub(super) unsafe fn settle<T>(side: Side, waiter: &Waiter<Note<T>>) -> (Told, Option<T>) {
    let told = waiter.note.told();
    let has_message = match side {
        Side::Takers => told == Told::Done,
        Side::Givers => told != Told::Done,
    };
    // SAFETY: I3, and the caller's promise.
    (told, has_message.then(|| unsafe { waiter.note.take() }))
}
