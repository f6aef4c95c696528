//! Cutting waits short: cancellation, time-outs, and what keeps them off.

use std::fmt;
use std::io;
use std::time::Duration;

use super::wait::{Cut, Me};
use crate::fiber::frame::{Frame, Limit};
use crate::os::clock;

/// The caller was cancelled: what a cancel point fails with.
///
/// I/O fails with an [`io::Error`] that contains it: [`is_in`](Self::is_in) tells. The kind is [`Other`](io::ErrorKind::Other): never `Interrupted`, which std's loops would retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cancelled;

impl Cancelled {
    /// Whether `error` is what I/O of a cancelled caller fails with.
    ///
    /// It looks at what the error [contains](io::Error::get_ref). Its [`source`](std::error::Error::source) is not this: in std that is the cause of what is contained, and here there is none.
    ///
    /// # Suspends
    /// No.
    ///
    /// # Examples
    /// ```
    /// use std::io::Read;
    /// let (mut reader, _writer) = sinew::io::pipe()?;
    /// let fiber = sinew::spawn(move || reader.read(&mut [0; 16]));
    /// fiber.cancel();
    /// let error = fiber.join().unwrap().unwrap_err();
    /// assert!(sinew::Cancelled::is_in(&error));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|cause| cause.is::<Self>())
    }
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fiber was cancelled")
    }
}

impl std::error::Error for Cancelled {}

impl From<Cancelled> for io::Error {
    fn from(cancelled: Cancelled) -> Self {
        io::Error::other(cancelled)
    }
}

/// A deadline cut a wait short: what [`timeout`] fails with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elapsed(());

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time-out elapsed")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(elapsed: Elapsed) -> Self {
        io::Error::new(io::ErrorKind::TimedOut, elapsed)
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Cancelled => Cancelled.fmt(f),
            Cut::TimedOut => Elapsed(()).fmt(f),
        }
    }
}

impl std::error::Error for Cut {}

impl From<Cut> for io::Error {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Cancelled => Cancelled.into(),
            Cut::TimedOut => Elapsed(()).into(),
        }
    }
}

/// Whether cancel points of the caller fail now: it was [cancelled](crate::JoinHandle::cancel), or a deadline of a [`timeout`] around it has passed, and no
/// [`shield`] keeps that off.
///
/// A computation that waits nowhere asks this from time to time; [`sleep`](crate::sleep) and [`park`](crate::park), which return nothing, are followed by
/// it where it matters.
///
/// # Suspends
/// No.
///
/// # Which calls wait, and which are cancel points
/// - A cancel point fails at once if the caller is already cancelled, or past its deadline; it lets others run before it returns.
/// - One that is under way is cut short.
/// - One whose event came first succeeds.
///
/// | call | may suspend | cancel point | what is left undone |
/// |---|---|---|---|
/// | [`sleep`](crate::sleep), [`sleep_until`](crate::sleep_until) | yes | yes, unless the duration is zero | the rest of the time |
/// | [`park`](crate::park), [`park_timeout`](crate::park_timeout) | yes | yes | an `unpark` that came before, or comes later, is kept for the next park |
/// | [`Interval::tick`](crate::time::Interval::tick) | yes | yes | the tick, which is still to come |
/// | [`yield_now`](crate::yield_now) | yes | no | |
/// | `send`, `recv`, their `_timeout` and `_deadline` forms and iterators, of all [channels](crate::chan) but for the sends below | yes, unless it can be done at once; then only for a [turn](crate::chan#turns) of others, after very many calls, also where the channel has no limit | yes, also where it can be done at once | nothing was sent, and the error has the message; nothing was received |
/// | [`select!`](crate::select), [`Select`](crate::chan::Select) | yes, unless an arm can be done at once; then only for a turn of others, as above | yes, also then: the first arm fires with the error | all arms |
/// | `changed`, `wait_for` of a [`watch`](crate::chan::watch()) channel, and their `_timeout` and `_deadline` forms | yes, unless it has changed; then only for a turn of others, as above | yes, also then | a change is there for the next call |
/// | `send_modify` of a [`watch`](crate::chan::watch()) channel | while another modifies the value; else only for a turn of others, as above | yes, also where none does | the value is as it was, and the error has the closure |
/// | `try_send`, `try_recv`, `select!` with `default`; `send` of a [`oneshot`](crate::chan::oneshot()), [`broadcast`](crate::chan::broadcast()) or [`watch`](crate::chan::watch()) channel | no | no | |
/// | [`JoinHandle::join`](crate::JoinHandle::join), [`ScopedJoinHandle::join`](crate::ScopedJoinHandle::join) | yes, unless it has ended | no | |
/// | [`run`](crate::run), [`Runtime::run`](crate::Runtime::run), [`Handle::run`](crate::Handle::run) | yes | no | |
/// | [`scope`](crate::scope), at its end | yes | no | |
/// | [`blocking`](crate::blocking()) | yes | no | |
/// | [`File::lock`](crate::fs::File::lock), [`lock_shared`](crate::fs::File::lock_shared) | yes, unless it can be had at once | yes | the lock |
/// | all else of [`fs`](crate::fs) but [`unlock`](crate::fs::File::unlock), which is none | yes | at their entry; once begun they run to their end | what was asked for |
/// | reads, writes, `connect` and `accept` of [sockets](crate::net) | yes, unless they can go on at once; a write by the ring always | yes | nothing was read, written or accepted |
/// | reads and writes of [pipes](crate::io::pipe()) and of a child's, of [`stdin`](crate::io::stdin), [`io::poll`](crate::io::poll) | yes, unless they can go on at once | yes | what was not read or written |
/// | [`Child::wait`](crate::process::Child::wait), [`ctrl_c`](crate::signal::ctrl_c), [`signal::wait`](crate::signal::wait), [`Signals::wait`](crate::signal::Signals::wait) | yes | yes | the wait |
/// | [`Child::try_wait`](crate::process::Child::try_wait), [`Signals::try_wait`](crate::signal::Signals::try_wait) | only for a turn of others, after very many | no | |
/// | [`output`](crate::process::Command::output), [`status`](crate::process::Command::status), [`wait_with_output`](crate::process::Child::wait_with_output) | yes | yes | the child is killed |
/// | [`Command::spawn`](crate::process::Command::spawn), writes to [`stdout`](crate::io::stdout) and [`stderr`](crate::io::stderr) | yes | at their entry | all |
/// | [`block_on`](crate::block_on) | yes | no | |
/// | [`try_block_on`](crate::try_block_on) | yes | yes | the future, which is dropped |
/// | [`Runtime::shutdown_timeout`](crate::Runtime::shutdown_timeout), drop of a [`Runtime`](crate::Runtime) | yes | no | |
/// | [`spawn`](crate::spawn()), [`spawn_batch`](crate::spawn_batch), [`spawn_future`](crate::spawn_future), [`hop`](crate::hop), all of [`Timer`](crate::time::Timer), [`unpark`](crate::Fiber::unpark), [`cancel`](crate::JoinHandle::cancel), `cancelled` | no | no | |
/// | [`on_suspend`](crate::on_suspend), [`on_resume`](crate::on_resume), [`no_suspend`](crate::no_suspend) | no; inside, a suspension panics | no | |
/// | all waits of [`sync`](crate::sync): [`lock`](crate::sync::Mutex::lock), [`read`](crate::sync::RwLock::read), [`write`](crate::sync::RwLock::write), [`acquire`](crate::sync::Semaphore::acquire), [`Condvar::wait`](crate::sync::Condvar::wait), [`Barrier::wait`](crate::sync::Barrier::wait), [`call_once`](crate::sync::Once::call_once), ..., and their `_timeout` forms | yes, unless they can go on at once | no | |
/// | the next of [`Tasks`](crate::sync::Tasks), in the handler of an [`ExecutionQueue`](crate::sync::ExecutionQueue) | only for a turn of others, after very many | no | |
/// | `try_` forms, unlocking, and what wakes in [`sync`](crate::sync): [`notify_one`](crate::sync::Condvar::notify_one), [`set`](crate::sync::Event::set), [`count_down`](crate::sync::Latch::count_down), [`wake`](crate::sync::Futex::wake), [`push`](crate::sync::ExecutionQueue::push), ... | no | no | |
/// | [`timeout`], [`shield`], `with` of a [`fiber_local!`](crate::fiber_local) | as what they call | as what they call | |
///
/// # Examples
/// ```
/// use std::time::Duration;
/// let late = sinew::timeout(Duration::from_millis(1), || {
///     let mut sum = 0u64;
///     while !sinew::cancelled() {
///         sum += 1;
///     }
///     sum
/// });
/// assert!(late.is_ok(), "no wait was cut short");
/// ```
pub fn cancelled() -> bool {
    let me = Me::now();
    let bounds = me.control().bounds();
    (!bounds.shielded && me.control().state.is_cancelled()) || bounds.limit.is_some_and(|limit| clock::now_ns() >= limit.deadline_ns)
}

/// Runs `f`, in which [cancel points](cancelled#which-calls-wait-and-which-are-cancel-points) fail once `duration` has passed: I/O, channels, `select!`, `sleep`, `park`.
///
/// Locks, `join`, `blocking` and `block_on` are none, and are not cut short: for these there are `lock_timeout` and its like, and [`try_block_on`](crate::try_block_on), which also [joins with a limit](crate::JoinHandle::join): `timeout(d, || try_block_on(&mut handle))`.
///
/// Nothing is torn down by force: a late `f` ends by the errors it meets, and goes on computing if it meets none. Deadlines nest: the earliest counts, and
/// [`Elapsed`] comes from the `timeout` whose deadline cut a wait short. Fibers of a [`scope`](crate::scope) opened in `f` are under the deadline too. Works on plain threads.
/// A wait is cut short when the deadline has passed, never before, and may be as late as a [`sleep`](crate::sleep).
///
/// # Suspends
/// Only where `f` does.
///
/// # Errors
/// [`Elapsed`] if and only if this deadline cut a wait short, in `f` or in a fiber of a scope in it; what `f` returned is dropped then. Otherwise `Ok`, even if it
/// comes late.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// let slow = sinew::timeout(Duration::from_millis(1), || sinew::sleep(Duration::from_secs(3600)));
/// assert!(slow.is_err());
/// let quick = sinew::timeout(Duration::from_secs(3600), || 7);
/// assert_eq!(quick, Ok(7));
/// ```
pub fn timeout<F, T>(duration: Duration, f: F) -> Result<T, Elapsed>
where
    F: FnOnce() -> T,
{
    let me = Me::now();
    let limit = Limit::new(clock::deadline_ns(duration));
    let frame = Frame::limited(me.control().bounds(), &limit);
    let value = within(&me, &frame, f);
    if limit.has_cut() { Err(Elapsed(())) } else { Ok(value) }
}

/// Runs `f`, in which cancel points do not fail for a cancel, nor for a deadline, that comes from outside: cleaning up goes on as ever.
///
/// The cancel is not lost: cancel points after the shield fail. A [`timeout`] opened in `f` counts. What comes from outside does not reach the fibers of a scope opened in `f`
/// either, not even a shutdown; one that is cancelled by its own handle is. Fibers of a scope that is around the shield are cancelled with the caller all the same.
///
/// # Suspends
/// Only where `f` does.
///
/// # Examples
/// ```
/// let fiber = sinew::spawn(|| {
///     sinew::current().cancel();
///     let inside = sinew::shield(sinew::cancelled);
///     (inside, sinew::cancelled())
/// });
/// assert_eq!(fiber.join().unwrap(), (false, true));
/// ```
pub fn shield<F, T>(f: F) -> T
where
    F: FnOnce() -> T,
{
    within(&Me::now(), &Frame::shield(), f)
}

/// Runs `f` with `frame` open, and closes it whatever happens.
pub(crate) fn within<T>(me: &Me, frame: &Frame, f: impl FnOnce() -> T) -> T {
    struct Close<'a>(&'a Me, &'a Frame);
    impl Drop for Close<'_> {
        fn drop(&mut self) {
            self.0.control().close(self.1);
        }
    }
    // SAFETY: the frame is borrowed for the whole call and closed by the guard, last opened first.
    unsafe { me.control().open(frame) };
    let _close = Close(me, frame);
    f()
}
