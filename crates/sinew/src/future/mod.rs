//! Futures in fibers and on plain threads: the caller polls, and waits between polls.
//!
//! A waker is the id of its fiber (or thread), one word, and owns nothing: cloning and dropping it costs nothing, and keeping it for ever keeps nothing alive. Blocks of fibers are
//! never unmapped and have versions, so a waker finds out that its fiber is gone. What it ends is a wait that was begun with `Ends::BY_WAKER`; between such waits it
//! leaves a token (`fiber/state.rs`). So a waker that comes too late, for another future of the same fiber, has that polled once in vain, which every future must bear; it ends no
//! park, no lock's wait, nothing else.
//!
//! Rejected: a counted cell per call, known to its wakers alone. It costs an allocation per call and a count per clone, and spares a needless poll.
//!
//! # Nesting
//! A call within a poll has the same waker as the call around it, so it may use up a wake that was meant for that. If it has used any, it leaves one behind at its end: the future
//! around it is polled once more, perhaps in vain.

use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::ptr;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use crate::fiber::state::{Begin, Ends};
use crate::fiber::why::{At, Why};
use crate::fiber::{Control, Weak};
use crate::os::fork;
use crate::rt::spawn::{JoinHandle, spawn};
use crate::rt::wait::{Cut, Me, yield_now};
use crate::sched::cancel::Kept;
use crate::sched::worker::make_ready;

const _: () = assert!(size_of::<*const ()>() == size_of::<u64>(), "a waker holds a fiber's id in the place of a pointer");

/// Runs a future to its end, here: in a fiber, or on a plain thread, which it blocks.
///
/// The future need not be `Send`, and may borrow: it stays where it is. One that wakes itself again and again does not keep others from running.
///
/// # Futures that need tokio
/// This is no part of any async runtime. What needs one, as tokio's sockets and timers do, needs its context where they are made and polled, and the context is the thread's: other fibers
/// run there while this one waits. So it is entered for each poll, never around this call: a guard of tokio's that is held while its fiber waits is seen by other fibers, and panics if they
/// have guards of their own. For the same reason nothing in that future may suspend but by `await`.
///
/// ```
/// fn block_on_tokio<F: Future>(tokio: &tokio::runtime::Handle, future: F) -> F::Output {
///     let mut future = std::pin::pin!(future);
///     sinew::block_on(std::future::poll_fn(|context| {
///         let _entered = tokio.enter();
///         future.as_mut().poll(context)
///     }))
/// }
/// # let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
/// # let handle = tokio.handle().clone();
/// // Made where it is polled: inside of `async`.
/// sinew::run(|| block_on_tokio(&handle, async { tokio::time::sleep(std::time::Duration::from_millis(1)).await }));
/// ```
///
/// What is `Send` can as well be a task of tokio's, which needs nothing: `block_on(handle.spawn(future))`.
///
/// # Suspends
/// Yes, until a waker of the future is called; unless it is ready at the first poll. No cancel point: [`try_block_on`] is.
///
/// # Panics
/// Inside [`no_suspend`](crate::no_suspend), before the future is polled. Passes a panic of the future on.
///
/// # Examples
/// ```
/// let child = sinew::spawn(|| 20);
/// let sum = sinew::run(|| sinew::block_on(async { child.await.unwrap() + 1 }));
/// assert_eq!(sum, 21);
/// ```
#[track_caller]
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let me = Me::to_wait();
    let control = me.control();
    let never_cut = || {
        control.note_why(Why::At(At::Future));
        match control.state.begin(Ends::BY_WAKER) {
            Begin::Wait => {
                // SAFETY: the wait was begun just now; a waker ends it.
                unsafe { me.wait(u64::MAX) };
            }
            Begin::AlreadyUnparked | Begin::AlreadyCancelled => yield_now(),
        }
        Ok::<(), std::convert::Infallible>(())
    };
    let Ok(value) = drive(control, pin!(future.into_future()), never_cut);
    value
}

/// Runs a future to its end, as [`block_on`], unless that is cut short.
///
/// # Suspends
/// Yes, until a waker of the future is called; unless it is ready at the first poll. A [cancel point](crate::cancelled): cut short, or cancelled or late already, it drops the future as
/// it is. A future that is ready when it is polled is never cut.
///
/// # Errors
/// [`Cut::Cancelled`] if the caller was cancelled, [`Cut::TimedOut`] if the deadline of a [`timeout`](crate::timeout) around it passed.
///
/// # Panics
/// As [`block_on`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// let late = sinew::timeout(Duration::from_millis(1), || sinew::try_block_on(std::future::pending::<()>()));
/// assert!(late.is_err());
/// assert_eq!(sinew::try_block_on(async { 7 }), Ok(7));
/// ```
#[track_caller]
pub fn try_block_on<F: IntoFuture>(future: F) -> Result<F::Output, Cut> {
    let me = Me::to_wait();
    let future = pin!(future.into_future());
    me.cancel_point_at_entry()?;
    drive(me.control(), future, || {
        let point = me.cancel_point()?;
        if point.begin(Why::At(At::Future), Ends::BY_WAKER)? {
            // SAFETY: the wait was begun just now; a waker, a cancel or a deadline ends it.
            unsafe { point.wait(u64::MAX) }?;
        } else {
            yield_now();
        }
        Ok(())
    })
}

/// Starts a fiber that runs a future to its end: [`spawn`](crate::spawn()) with [`block_on`].
///
/// The future is on its fiber's stack for its whole life, and as that stays on one thread, only what makes it has to be `Send`. In a runtime whose started fibers [move](crate::RuntimeBuilder::migrate_started_fibers) it
/// is polled wherever its fiber is; that it may be is part of the promise made there. A [cancel](JoinHandle::cancel) does not cut it short, but what it calls that is a cancel point;
/// spawn a closure with [`try_block_on`] for that.
///
/// # Suspends
/// No.
///
/// # Panics
/// As [`spawn`](crate::spawn()).
///
/// # Examples
/// ```
/// let first = sinew::spawn_future(async { 20 });
/// let second = sinew::spawn_future(async { first.await.unwrap() + 1 });
/// assert_eq!(second.join().unwrap(), 21);
/// ```
#[track_caller]
pub fn spawn_future<F>(future: F) -> JoinHandle<F::Output>
where
    F: IntoFuture + Send + 'static,
    F::Output: Send + 'static,
{
    spawn(move || block_on(future))
}

/// Polls the future until it is ready, with a `pause` after each poll that it is not.
///
/// # Errors
/// As `pause`.
fn drive<F: Future, E>(me: &Control, mut future: Pin<&mut F>, mut pause: impl FnMut() -> Result<(), E>) -> Result<F::Output, E> {
    let mut polling = Polling::begin(me);
    let waker = waker(me);
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Ok(value);
        }
        pause()?;
        polling.used_a_wake = true;
    }
}

/// While a future is polled or waited for.
struct Polling<'a> {
    me: &'a Control,
    /// Whether a future around this one is being polled.
    nested: bool,
    used_a_wake: bool,
}

impl<'a> Polling<'a> {
    fn begin(me: &'a Control) -> Self {
        Self { me, nested: me.set_polling(true), used_a_wake: false }
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.me.set_polling(self.nested);
        if self.nested && self.used_a_wake {
            self.me.state.poll_again();
        }
    }
}

/// A waker for the futures that `me` polls.
fn waker(me: &Control) -> Waker {
    // SAFETY: the functions of the table want nothing of the data but to be such a word, own nothing, and can be called on any thread.
    unsafe { Waker::from_raw(raw(ptr::without_provenance(Weak::of(me).pack() as usize))) }
}

static TABLE: RawWakerVTable = RawWakerVTable::new(raw, wake, wake, |_| ());

fn raw(id: *const ()) -> RawWaker {
    RawWaker::new(id, &TABLE)
}

fn wake(id: *const ()) {
    // In a forked child nobody waits.
    let fiber = if fork::is_child() { None } else { Kept::new(&Weak::unpack(id.addr() as u64)) };
    if let Some(claimed) = fiber.as_ref().and_then(|fiber| fiber.control().wake_task()) {
        make_ready(claimed);
    }
}
