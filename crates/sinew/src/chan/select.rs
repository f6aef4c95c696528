//! Waiting for several channels at once.
//!
//! # How it works
//! Each arm is tried alone, in random order. If none can be done, the gates of all channels are taken (by address, so that two that select cannot block each other), the
//! arms are tried once more, and a waiter of each is queued before the gates are left. So nothing can happen between the last look and the wait. All waiters stand for one
//! wait, which one claim ends: who claims it has done that arm's deed, and nobody else has (`Waiters::claim_first_or`). Then each waiter is taken out of its channel, one after the other: nobody
//! can claim them any more. They are queued in random order too: of two arms of one channel the first in line would be served each time.
//!
//! `default` without a duration begins in the same way, and gives up where a wait would queue: there was a moment at which no arm could be done. Tries one after the other do not show that: between two of
//! them, the channel that was found empty may be filled and the other be emptied. One arm needs no second try.
//!
//! # Invariants
//! I1. A waiter stays in its arm, and the arm in its frame, from `queue` to `withdraw`.
//! I2. An arm is fired once: its outcome is set by `fire`, by `withdraw` if its waiter was told something, or by `fail`.
//!
//! # Not here
//! `broadcast` and `watch` channels: they have no line of messages that an arm could take from.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::{Channel, Note, Side, Told, Until, giver, settle, taker, wake};
use super::error::{Cause, RecvError, SendError, TryRecvError, TrySendError};
use super::{Receiver, Sender};
use crate::base::atomic::thread_local;
use crate::fiber::state;
use crate::fiber::waiters::Waiter;
use crate::fiber::why::{At, Why};
use crate::fiber::{Claimed, Control};
use crate::os::fork;
use crate::os::lock::{Held, Lock};
use crate::rt::wait::{Cut, Me, enter_counted_cancel_point};

/// Waits for several sends and receives at once, and does the first that can be done.
///
/// The syntax is that of crossbeam-channel's `select!`: any number of arms `recv(receiver) -> message => body` and `send(sender, value) -> result => body`, and at most
/// one `default => body` or `default(duration) => body`. `message` is a `Result<T, RecvError>`, `result` a `Result<(), SendError<T>>`. All bodies have one type, which
/// is that of the whole; they may `return`, `break` and use `?`.
///
/// An arm whose channel is disconnected can be done: it fires with the error. Of several arms that can be done, one is chosen at random. With
/// `default`, nothing is waited for: if there was a moment at which none of the arms could be done, that body runs; with `default(duration)`, it runs if none could be done for so long.
///
/// Receivers, senders and values are evaluated once, in order, before anything is done. This is Go's rule, and differs from
/// crossbeam-channel's, which evaluates a value when its arm fires: here it may be handed over while this fiber sleeps. The value of an arm that does not
/// fire is dropped. An arm takes a receiver or sender, or a reference, a `Box`, an `Rc` or an `Arc` of one; of other pointers what they
/// point to (`recv(*guard)`). It does not take it away: the arm borrows it. The receiver may be that of a [`oneshot`](crate::chan::oneshot()), but not of
/// a [`broadcast`](crate::chan::broadcast()) or [`watch`](crate::chan::watch()) channel: let a fiber receive there, and forward to a channel of its own. An arm that is to rest for now takes [`never`](crate::chan::never).
///
/// There is no biased form: to prefer a channel, [`try_recv`](crate::chan::Receiver::try_recv) it first. Nor are there channels that are clocks: `default(duration)` is a time-out, and a [`Timer`](crate::time::Timer) can send.
///
/// For a list of channels that is made at run time, or for more than about 60 arms (the compiler's limit of recursion), there is [`Select`](crate::chan::Select).
///
/// # Suspends
/// Until an arm can be done, and for a [turn](crate::chan#turns) of others after very many calls; not with `default`. A [cancel point](crate::cancelled), but with `default`: if it is cut short, or the caller is cancelled or late at entry, the first arm
/// fires with that error. Nothing was sent or received then.
///
/// # Panics
/// Inside [`no_suspend`](crate::no_suspend), if it has to wait.
///
/// # Examples
/// ```
/// use sinew::chan::{bounded, unbounded};
/// use std::time::Duration;
///
/// let (numbers, inbox) = unbounded();
/// let (_keep, stop) = bounded::<()>(0);
/// numbers.send(7).unwrap();
/// let got = sinew::select! {
///     recv(inbox) -> number => number.unwrap(),
///     recv(stop) -> _ => 0,
///     default(Duration::from_secs(1)) => -1,
/// };
/// assert_eq!(got, 7);
/// ```
#[macro_export]
macro_rules! select {
    ($($tokens:tt)+) => {
        $crate::__select!(@arm [] [] $($tokens)+)
    };
}

// One arm at a time is moved into the first list, as `[arm outcome [maker (arguments)] [pattern] body]`. The names `arm` and `outcome` of each are
// its own by hygiene.
#[doc(hidden)]
#[macro_export]
macro_rules! __select {
    (@arm $arms:tt $default:tt recv($receiver:expr $(,)?) -> $message:pat => $($rest:tt)+) => {
        $crate::__select!(@body $arms $default [recv_arm(&$receiver)] [$message] $($rest)+)
    };
    (@arm $arms:tt $default:tt send($sender:expr, $value:expr $(,)?) -> $result:pat => $($rest:tt)+) => {
        $crate::__select!(@body $arms $default [send_arm(&$sender, $value)] [$result] $($rest)+)
    };
    (@arm $arms:tt [] default => $($rest:tt)+) => {
        $crate::__select!(@default $arms [not_at_all()] $($rest)+)
    };
    (@arm $arms:tt [] default() => $($rest:tt)+) => {
        $crate::__select!(@default $arms [not_at_all()] $($rest)+)
    };
    (@arm $arms:tt [] default($duration:expr $(,)?) => $($rest:tt)+) => {
        $crate::__select!(@default $arms [at_most($duration)] $($rest)+)
    };
    (@arm $arms:tt [$($default:tt)+] default $($rest:tt)*) => {
        ::core::compile_error!("a `select!` has one `default` at most")
    };

    (@body [$($arms:tt)*] $default:tt $make:tt $pattern:tt $body:block, $($rest:tt)*) => {
        $crate::__select!(@arm [$($arms)* [arm outcome $make $pattern $body]] $default $($rest)*)
    };
    (@body [$($arms:tt)*] $default:tt $make:tt $pattern:tt $body:block $($rest:tt)*) => {
        $crate::__select!(@arm [$($arms)* [arm outcome $make $pattern $body]] $default $($rest)*)
    };
    (@body [$($arms:tt)*] $default:tt $make:tt $pattern:tt $body:expr, $($rest:tt)*) => {
        $crate::__select!(@arm [$($arms)* [arm outcome $make $pattern $body]] $default $($rest)*)
    };
    (@body [$($arms:tt)*] $default:tt $make:tt $pattern:tt $body:expr) => {
        $crate::__select!(@arm [$($arms)* [arm outcome $make $pattern $body]] $default)
    };

    (@default $arms:tt $patience:tt $body:block, $($rest:tt)*) => {
        $crate::__select!(@arm $arms [$patience $body] $($rest)*)
    };
    (@default $arms:tt $patience:tt $body:block $($rest:tt)*) => {
        $crate::__select!(@arm $arms [$patience $body] $($rest)*)
    };
    (@default $arms:tt $patience:tt $body:expr, $($rest:tt)*) => {
        $crate::__select!(@arm $arms [$patience $body] $($rest)*)
    };
    (@default $arms:tt $patience:tt $body:expr) => {
        $crate::__select!(@arm $arms [$patience $body])
    };

    (@arm $arms:tt []) => {
        $crate::__select!(@whole $arms [for_ever()] (::core::unreachable!("no arm of a `select!` fired")))
    };
    (@arm $arms:tt [$patience:tt $body:tt]) => {
        $crate::__select!(@whole $arms $patience $body)
    };
    // Anything else is no arm.
    (@arm $arms:tt $default:tt $($rest:tt)+) => {
        ::core::compile_error!(::core::concat!(
            "an arm of a `select!` is `recv(receiver) -> message => body`, `send(sender, value) -> result => body`, `default => body` or `default(duration) => body`, not `",
            ::core::stringify!($($rest)+), "`"
        ))
    };

    (@whole [$([$arm:ident $outcome:ident [$make:ident $arguments:tt] [$pattern:pat] $body:tt])*] [$patience:ident $duration:tt] $default:tt) => {{
        // A match, so that temporaries in the arguments live long enough; and the channels are no longer borrowed when a body runs.
        #[allow(clippy::let_unit_value, clippy::unused_unit)]
        let ($($outcome,)*) = match ($($crate::chan::select::$make $arguments,)*) {
            ($($arm,)*) => {
                $crate::chan::select::choose([$($arm.as_arm()),*], $crate::chan::select::$patience $duration);
                ($($arm.into_outcome(),)*)
            }
        };
        $(if let ::core::option::Option::Some(outcome) = $outcome {
            let $pattern = outcome;
            $body
        } else)* {
            $default
        }
    }};
}

/// What an arm of a `select!` may receive from: a receiver, or a pointer to one.
pub trait Receives {
    /// What is received.
    type Message;
    #[doc(hidden)]
    fn receiver(&self) -> &Receiver<Self::Message>;
}

/// What an arm of a `select!` may send to: a sender, or a pointer to one.
pub trait Sends {
    /// What is sent.
    type Message;
    #[doc(hidden)]
    fn sender(&self) -> &Sender<Self::Message>;
}

impl<T> Receives for Receiver<T> {
    type Message = T;
    fn receiver(&self) -> &Receiver<T> {
        self
    }
}

impl<T> Sends for Sender<T> {
    type Message = T;
    fn sender(&self) -> &Sender<T> {
        self
    }
}

macro_rules! through_pointers {
    ($($pointer:ty),*) => { $(
        impl<P: Receives + ?Sized> Receives for $pointer {
            type Message = P::Message;
            fn receiver(&self) -> &Receiver<P::Message> {
                (**self).receiver()
            }
        }
        impl<P: Sends + ?Sized> Sends for $pointer {
            type Message = P::Message;
            fn sender(&self) -> &Sender<P::Message> {
                (**self).sender()
            }
        }
    )* };
}
through_pointers!(&P, &mut P, Box<P>, Rc<P>, Arc<P>);

/// Something that can be done at a channel, of whatever type.
trait Arm {
    fn gate(&self) -> &Lock<()>;
    fn side(&self) -> Side;
    /// Does it, if it can be done at once. Without the gate.
    fn fire(&self) -> bool;
    /// As `fire`; gives whom to wake for it, without any gate.
    ///
    /// # Safety
    /// The caller holds the gate.
    unsafe fn fire_inside(&self) -> Option<Option<Claimed>>;
    /// Puts a waiter in line.
    ///
    /// # Safety
    /// The caller holds the gate, is the one whose block this is, and calls `withdraw` before the arm is moved or dropped.
    unsafe fn queue(&self, control: &Control);
    /// Takes the waiter out; notes what it was told. Without the gate.
    ///
    /// # Safety
    /// The wait is over, or was not begun.
    unsafe fn withdraw(&self);
    /// Fires with an error.
    fn fail(&self, cut: Cut);
    fn has_fired(&self) -> bool;
    /// Readies an arm to be used again, and drops what came of it; `false` if it cannot be: it has sent, or has given its message back.
    fn renew(&mut self) -> bool;
}

/// An arm that receives.
#[doc(hidden)]
pub struct RecvArm<'a, T> {
    channel: &'a Channel<T>,
    waiter: OnceCell<Waiter<Note<T>>>,
    outcome: Cell<Option<Result<T, RecvError>>>,
}

#[doc(hidden)]
pub fn recv_arm<R: Receives + ?Sized>(receiver: &R) -> RecvArm<'_, R::Message> {
    RecvArm { channel: &receiver.receiver().channel, waiter: OnceCell::new(), outcome: Cell::new(None) }
}

impl<T> RecvArm<'_, T> {
    #[doc(hidden)]
    pub fn as_arm(&self) -> AnyArm<'_> {
        AnyArm(self)
    }

    /// What came of it, if it has fired.
    #[doc(hidden)]
    pub fn into_outcome(self) -> Option<Result<T, RecvError>> {
        self.outcome.into_inner()
    }

    /// Notes how a try ended; `None` if there was nothing.
    fn note(&self, tried: Result<(T, Option<Claimed>), TryRecvError>) -> Option<Option<Claimed>> {
        let (outcome, claimed) = match tried {
            Ok((value, claimed)) => (Ok(value), claimed),
            Err(TryRecvError::Disconnected) => (Err(RecvError::Disconnected), None),
            Err(TryRecvError::Empty) => return None,
        };
        self.outcome.set(Some(outcome));
        Some(claimed)
    }
}

impl<T> Arm for RecvArm<'_, T> {
    fn gate(&self) -> &Lock<()> {
        self.channel.gate()
    }

    fn side(&self) -> Side {
        Side::Takers
    }

    fn fire(&self) -> bool {
        let tried = self.channel.enter().take();
        self.note(tried).map(wake).is_some()
    }

    unsafe fn fire_inside(&self) -> Option<Option<Claimed>> {
        // SAFETY: the caller holds the gate.
        self.note(unsafe { (*self.channel.inside()).take() })
    }

    unsafe fn queue(&self, control: &Control) {
        let waiter = self.waiter.get_or_init(|| taker(control));
        // SAFETY: the caller's promise, and I1.
        unsafe { (*self.channel.inside()).queue(Side::Takers, waiter) };
    }

    unsafe fn withdraw(&self) {
        let Some(waiter) = self.waiter.get() else { return };
        // SAFETY: it was queued here, and is settled once, since the wait is over.
        let settled = unsafe {
            let mut inside = self.channel.enter();
            inside.withdraw(Side::Takers, waiter);
            settle(Side::Takers, waiter)
        };
        match settled {
            (Told::Nothing, _) => {}
            (_, value) => self.outcome.set(Some(value.ok_or(RecvError::Disconnected))),
        }
    }

    fn fail(&self, cut: Cut) {
        self.outcome.set(Some(Err(cut.into())));
    }

    fn has_fired(&self) -> bool {
        let outcome = self.outcome.take();
        let fired = outcome.is_some();
        self.outcome.set(outcome);
        fired
    }

    fn renew(&mut self) -> bool {
        self.waiter = OnceCell::new();
        self.outcome = Cell::new(None);
        true
    }
}

/// An arm that sends.
#[doc(hidden)]
pub struct SendArm<'a, T> {
    channel: &'a Channel<T>,
    /// The message, while it is not in the waiter.
    value: Cell<Option<T>>,
    waiter: OnceCell<Waiter<Note<T>>>,
    outcome: Cell<Option<Result<(), SendError<T>>>>,
}

#[doc(hidden)]
pub fn send_arm<S: Sends + ?Sized>(sender: &S, value: S::Message) -> SendArm<'_, S::Message> {
    SendArm { channel: &sender.sender().channel, value: Cell::new(Some(value)), waiter: OnceCell::new(), outcome: Cell::new(None) }
}

impl<T> SendArm<'_, T> {
    #[doc(hidden)]
    pub fn as_arm(&self) -> AnyArm<'_> {
        AnyArm(self)
    }

    /// What came of it, if it has fired.
    #[doc(hidden)]
    pub fn into_outcome(self) -> Option<Result<(), SendError<T>>> {
        self.outcome.into_inner()
    }

    fn take_value(&self) -> T {
        self.value.take().expect("an arm that has not fired has its message")
    }

    /// Notes how a try ended; `None` if there was no room.
    fn note(&self, tried: Result<Option<Claimed>, TrySendError<T>>) -> Option<Option<Claimed>> {
        let (outcome, claimed) = match tried {
            Ok(claimed) => (Ok(()), claimed),
            Err(TrySendError::Disconnected(value)) => (Err(SendError::new(value, Cause::Disconnected)), None),
            Err(TrySendError::Full(value)) => {
                self.value.set(Some(value));
                return None;
            }
        };
        self.outcome.set(Some(outcome));
        Some(claimed)
    }
}

impl<T> Arm for SendArm<'_, T> {
    fn gate(&self) -> &Lock<()> {
        self.channel.gate()
    }

    fn side(&self) -> Side {
        Side::Givers
    }

    fn fire(&self) -> bool {
        let value = self.take_value();
        let tried = self.channel.enter().offer(value);
        self.note(tried).map(wake).is_some()
    }

    unsafe fn fire_inside(&self) -> Option<Option<Claimed>> {
        // SAFETY: the caller holds the gate.
        self.note(unsafe { (*self.channel.inside()).offer(self.take_value()) })
    }

    unsafe fn queue(&self, control: &Control) {
        let waiter = self.waiter.get_or_init(|| giver(control, self.take_value()));
        // SAFETY: the caller's promise, and I1.
        unsafe { (*self.channel.inside()).queue(Side::Givers, waiter) };
    }

    unsafe fn withdraw(&self) {
        let Some(waiter) = self.waiter.get() else { return };
        // SAFETY: it was queued here, and is settled once, since the wait is over.
        let settled = unsafe {
            let mut inside = self.channel.enter();
            inside.withdraw(Side::Givers, waiter);
            settle(Side::Givers, waiter)
        };
        match settled {
            (Told::Nothing, value) => self.value.set(value),
            (_, value) => self.outcome.set(Some(value.map_or(Ok(()), |value| Err(SendError::new(value, Cause::Disconnected))))),
        }
    }

    fn fail(&self, cut: Cut) {
        self.outcome.set(Some(Err(SendError::new(self.take_value(), cut))));
    }

    fn has_fired(&self) -> bool {
        let outcome = self.outcome.take();
        let fired = outcome.is_some();
        self.outcome.set(outcome);
        fired
    }

    fn renew(&mut self) -> bool {
        self.waiter = OnceCell::new();
        // One that has fired has nothing to send any more.
        let value = self.value.take();
        let is_left = value.is_some();
        self.value.set(value);
        is_left
    }
}

/// An arm of whatever kind.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct AnyArm<'a>(&'a dyn Arm);

/// How long a `select!` waits.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Patience(Option<Until>);

#[doc(hidden)]
pub fn for_ever() -> Patience {
    Patience(Some(Until::Forever))
}

#[doc(hidden)]
pub fn at_most(duration: Duration) -> Patience {
    Patience(Some(Until::After(duration)))
}

#[doc(hidden)]
pub fn not_at_all() -> Patience {
    Patience(None)
}

/// Does one of `arms`, which then has an outcome; or none, if `patience` ends first.
#[doc(hidden)]
#[track_caller]
pub fn choose<const N: usize>(arms: [AnyArm<'_>; N], patience: Patience) {
    let mut order = [0; N];
    let mut held = [const { None }; N];
    choose_of(&arms, &mut order, &mut held, patience);
}

/// As `choose`, with room for the order of tries and for the gates.
#[track_caller]
fn choose_of<'a>(arms: &[AnyArm<'a>], order: &mut [usize], held: &mut [Option<Held<'a, ()>>], patience: Patience) {
    fork::refuse();
    let mut cut = None;
    if patience.0.is_some() {
        cut = enter_counted_cancel_point().err();
    }
    if cut.is_none() {
        order.iter_mut().enumerate().for_each(|(index, place)| *place = index);
        if at_random(order, |index| arms[index].0.fire().then_some(())).is_some() {
            return;
        }
        match patience {
            Patience(Some(until)) => cut = wait(arms, order, held, until).err(),
            // One try of one arm is a moment; those of several are not.
            Patience(None) if arms.len() > 1 => fire_at_once(arms, order, held),
            Patience(None) => {}
        }
    }
    if let (Some(cut), Some(first)) = (cut, arms.first()) {
        first.0.fail(cut);
    }
}

/// Waits until one of `arms` has been done, or `until` then.
#[cold]
#[inline(never)]
#[track_caller]
fn wait<'a>(arms: &[AnyArm<'a>], order: &mut [usize], held: &mut [Option<Held<'a, ()>>], until: Until) -> Result<(), Cut> {
    let me = Me::to_wait();
    let point = me.cancel_point()?;
    if lock_and_fire(arms, order, held) {
        return Ok(());
    }
    // `order` is a random one: a try of all in vain has left it so.
    for &index in &*order {
        // SAFETY: all gates are held; all arms are withdrawn below, and do not move before (I1).
        unsafe { arms[index].0.queue(me.control()) };
    }
    let begun = point.begin_held(Why::At(At::Select));
    held.fill_with(|| None);
    // SAFETY: the wait was begun above; who claims a waiter, a cancel or the deadline ends it.
    let ended = if begun { Some(unsafe { point.wait(until.ns()) }) } else { None };
    for arm in arms {
        // SAFETY: the wait is over, or was not begun.
        unsafe { arm.0.withdraw() };
    }
    let fired = arms.iter().filter(|arm| arm.0.has_fired()).count();
    debug_assert_eq!(fired, usize::from(ended == Some(Ok(state::Cause::Woken))), "a wait that ended by {ended:?}");
    match ended {
        Some(ended) => ended.map(|_| ()),
        None => Err(point.fail()),
    }
}

/// Does one of `arms`, if at one moment any can be done.
#[cold]
#[inline(never)]
fn fire_at_once<'a>(arms: &[AnyArm<'a>], order: &mut [usize], held: &mut [Option<Held<'a, ()>>]) {
    lock_and_fire(arms, order, held);
    held.fill_with(|| None);
}

/// Takes all gates and tries each arm. The gates are still held if none could be done, and only then.
fn lock_and_fire<'a>(arms: &[AnyArm<'a>], order: &mut [usize], held: &mut [Option<Held<'a, ()>>]) -> bool {
    lock_all(arms, order, held);
    // SAFETY: all gates are held.
    let fired = at_random(order, |index| unsafe { arms[index].0.fire_inside() });
    let Some(claimed) = fired else { return false };
    held.fill_with(|| None);
    wake(claimed);
    true
}

/// Takes the gates of all, each once, in the order of their addresses.
fn lock_all<'a>(arms: &[AnyArm<'a>], order: &mut [usize], held: &mut [Option<Held<'a, ()>>]) {
    let address = |index: usize| std::ptr::from_ref(arms[index].0.gate()).addr();
    order.sort_unstable_by_key(|&index| address(index));
    for place in 0..order.len() {
        if place == 0 || address(order[place]) != address(order[place - 1]) {
            held[place] = Some(arms[order[place]].0.gate().lock());
        }
    }
}

/// Tries all in random order until one succeeds.
fn at_random<T>(order: &mut [usize], mut attempt: impl FnMut(usize) -> Option<T>) -> Option<T> {
    let mut chance = if order.len() > 1 { dice() } else { 0 };
    for left in (1..=order.len()).rev() {
        // The multiplication maps the upper half of the word to 0..left.
        let pick = (((chance >> 32) * left as u64) >> 32) as usize;
        if let Some(done) = attempt(order[pick]) {
            return Some(done);
        }
        order.swap(pick, left - 1);
        chance = next(chance);
    }
    None
}

/// A step of a linear congruential generator (Knuth's MMIX): good in its upper bits, which is what `at_random` uses.
fn next(chance: u64) -> u64 {
    chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

thread_local! {
    static DICE: Cell<u64> = const { Cell::new(0x9E37_79B9_7F4A_7C15) };
}

/// A random word. Not inlined: law R1.
#[inline(never)]
fn dice() -> u64 {
    let rolled = DICE.try_with(|dice| {
        dice.set(next(dice.get()));
        dice.get()
    });
    rolled.unwrap_or(0)
}

/// Waits for a list of sends and receives that is made at run time.
///
/// It does what [`select!`](crate::select) does, which is to be preferred where the channels are known. The names are crossbeam-channel's; but a message is handed over
/// with its arm, not afterwards (the reason is given at [`select!`](crate::select)): so there is no `ready`, which would tell of a message that another may have by then.
///
/// The list can be used again: an arm that received is as before, one that sent, or gave its message back, is gone, as if [removed](Self::remove).
///
/// # Examples
/// ```
/// use sinew::chan::{Select, unbounded};
///
/// let channels: Vec<_> = (0..10).map(|_| unbounded()).collect();
/// channels[3].0.send("three").unwrap();
/// let mut select = Select::new();
/// for (_, receiver) in &channels {
///     select.recv(receiver);
/// }
/// let operation = select.select();
/// assert_eq!(operation.index(), 3);
/// assert_eq!(operation.recv(&channels[3].1), Ok("three"));
/// ```
#[derive(Default)]
pub struct Select<'a> {
    arms: Vec<Option<Box<dyn Arm + 'a>>>,
}

/// What a [`Select`] has done.
///
/// Its result is taken by [`recv`](Self::recv) or [`send`](Self::send); if it is dropped instead, so is a message it has received.
#[must_use]
pub struct SelectedOperation<'s, 'a> {
    select: &'s mut Select<'a>,
    index: usize,
}

/// Nothing could be done in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectTimeoutError(());

impl fmt::Display for SelectTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing could be sent or received in time")
    }
}

impl std::error::Error for SelectTimeoutError {}

impl<'a> Select<'a> {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a receive; gives its index. As in [`select!`](crate::select), the receiver may be that of a [`oneshot`](crate::chan::oneshot()).
    pub fn recv<R: Receives + ?Sized>(&mut self, receiver: &'a R) -> usize
    where
        R::Message: 'a,
    {
        self.add(Box::new(recv_arm(receiver)))
    }

    /// Adds a send of `value`; gives its index.
    pub fn send<S: Sends + ?Sized>(&mut self, sender: &'a S, value: S::Message) -> usize
    where
        S::Message: 'a,
    {
        self.add(Box::new(send_arm(sender, value)))
    }

    fn add(&mut self, arm: Box<dyn Arm + 'a>) -> usize {
        self.arms.push(Some(arm));
        self.arms.len() - 1
    }

    /// Takes an arm out of the list, and drops its message if it is a send. The others keep their indices.
    ///
    /// # Panics
    /// If there is no such arm.
    pub fn remove(&mut self, index: usize) {
        assert!(self.arms.get_mut(index).is_some_and(|arm| arm.take().is_some()), "there is no arm {index}");
    }

    /// Waits until one of the list can be done, and does it.
    ///
    /// # Suspends
    /// As [`select!`](crate::select): a cancel point, at which the arm with the lowest index fires with the error.
    ///
    /// # Panics
    /// If the list is empty: it would wait for ever.
    #[track_caller]
    pub fn select(&mut self) -> SelectedOperation<'_, 'a> {
        let index = self.choose(for_ever()).expect("a wait without a limit ends with an arm");
        SelectedOperation { select: self, index }
    }

    /// Does one of the list, if that can be done at once. If it fails, there was a moment at which none could be done.
    ///
    /// # Suspends
    /// No. It does not fail for a cancel.
    ///
    /// # Errors
    /// If none can be done.
    pub fn try_select(&mut self) -> Result<SelectedOperation<'_, 'a>, SelectTimeoutError> {
        self.choose_or_give_up(not_at_all())
    }

    /// Waits for at most `timeout` until one of the list can be done, and does it.
    ///
    /// # Suspends
    /// As [`select`](Self::select).
    ///
    /// # Errors
    /// If none could be done in time.
    #[track_caller]
    pub fn select_timeout(&mut self, timeout: Duration) -> Result<SelectedOperation<'_, 'a>, SelectTimeoutError> {
        self.choose_or_give_up(at_most(timeout))
    }

    /// Waits until `deadline` until one of the list can be done, and does it.
    ///
    /// # Suspends
    /// As [`select`](Self::select).
    ///
    /// # Errors
    /// If none could be done in time.
    #[track_caller]
    pub fn select_deadline(&mut self, deadline: Instant) -> Result<SelectedOperation<'_, 'a>, SelectTimeoutError> {
        self.choose_or_give_up(Patience(Some(Until::At(deadline))))
    }

    #[track_caller]
    fn choose_or_give_up(&mut self, patience: Patience) -> Result<SelectedOperation<'_, 'a>, SelectTimeoutError> {
        match self.choose(patience) {
            Some(index) => Ok(SelectedOperation { select: self, index }),
            None => Err(SelectTimeoutError(())),
        }
    }

    /// The index of the arm that fired.
    #[track_caller]
    fn choose(&mut self, patience: Patience) -> Option<usize> {
        self.arms.iter_mut().for_each(renew);
        let arms: Vec<_> = self.arms.iter().flatten().map(|arm| AnyArm(&**arm)).collect();
        assert!(!arms.is_empty() || !matches!(patience.0, Some(Until::Forever)), "nothing to select from");
        let mut held: Vec<_> = arms.iter().map(|_| None).collect();
        choose_of(&arms, &mut vec![0; arms.len()], &mut held, patience);
        self.arms.iter().position(|arm| arm.as_ref().is_some_and(|arm| arm.has_fired()))
    }
}

/// Readies an arm to be used again, or removes one that cannot be.
fn renew(place: &mut Option<Box<dyn Arm + '_>>) {
    if place.as_mut().is_some_and(|arm| !arm.renew()) {
        *place = None;
    }
}

impl Drop for SelectedOperation<'_, '_> {
    fn drop(&mut self) {
        renew(&mut self.select.arms[self.index]);
    }
}

impl SelectedOperation<'_, '_> {
    /// The index of the arm.
    pub fn index(&self) -> usize {
        self.index
    }

    /// What was received.
    ///
    /// # Errors
    /// As [`Receiver::recv`].
    ///
    /// # Panics
    /// If the arm is not a receive from this channel.
    pub fn recv<R: Receives + ?Sized>(self, receiver: &R) -> Result<R::Message, RecvError> {
        let arm: *const RecvArm<'_, R::Message> = self.arm(Side::Takers, receiver.receiver().channel.gate()).cast();
        // SAFETY: the arm receives from this channel, and a channel has one type of message. The operation is used up here.
        unsafe { (*arm).outcome.take() }.expect("a selected arm has fired")
    }

    /// Whether the message was sent.
    ///
    /// # Errors
    /// As [`Sender::send`].
    ///
    /// # Panics
    /// If the arm is not a send to this channel.
    pub fn send<S: Sends + ?Sized>(self, sender: &S) -> Result<(), SendError<S::Message>> {
        let arm: *const SendArm<'_, S::Message> = self.arm(Side::Givers, sender.sender().channel.gate()).cast();
        // SAFETY: as in `recv`.
        unsafe { (*arm).outcome.take() }.expect("a selected arm has fired")
    }

    /// The arm, which must be one of this side and this channel.
    fn arm(&self, side: Side, gate: &Lock<()>) -> *const () {
        let arm = self.select.arms[self.index].as_ref().expect("a selected arm is there");
        let matches = arm.side() == side && std::ptr::eq(arm.gate(), gate);
        assert!(matches, "the selected operation {} is another: on another channel, or in the other direction", self.index);
        std::ptr::from_ref(&**arm).cast()
    }
}

impl fmt::Debug for Select<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("Select { .. }")
    }
}

impl fmt::Debug for SelectedOperation<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SelectedOperation").field("index", &self.index).finish_non_exhaustive()
    }
}
