//! Streams for futures: `futures-io`'s and tokio's traits on our sockets, behind the features `futures-io` and `tokio-io`.
//!
//! A future has a waker, and the sources know fibers. So a poll that would block has a fiber wait in its place, which wakes the waker: one for each direction that waits, spawned when it is needed. So it works
//! wherever the future is polled: by [`block_on`](crate::block_on) in a fiber, by tokio's workers, by any executor.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use socket2::SockRef;

use super::unix::UnixStream;
use super::{TcpStream, calls};
use crate::fiber::Verdict;
use crate::os::fork;
use crate::os::lock::Lock;
use crate::rt::cancel::cancelled;
use crate::rt::context::fiber;
use crate::rt::io::{Interest, owes_a_turn, poll};
use crate::rt::spawn::{Builder, JoinHandle};
use crate::rt::wait::sleep;

/// A stream for futures, made by `into_async`: it has `AsyncRead` and `AsyncWrite` of `futures-io` and of tokio, whichever features are on.
///
/// The stream's time-outs and `set_nonblocking` mean nothing to it: a future waits until it is ready, or dropped.
///
/// Dropped, it is closed as soon as no fiber waits in the place of its futures. Where one does, it is shut down on the spot, so that the peer sees the end whatever that fiber's worker does. It is not:
/// - if there may be a duplicate that is to go on: it was cloned, its descriptor was asked for, or it was taken from std or from a descriptor;
/// - if its close resets it, which the peer is not to take for an end: something that came was not read, or it has a [linger](TcpStream::set_linger) of zero.
///
/// Then the peer learns of it when that fiber has run.
///
/// # Suspends
/// A poll never waits. One that is made in a fiber and has done something lets others run from time to time, as every call of ours does that need not wait.
///
/// # Examples
/// ```
/// # #[cfg(feature = "futures-io")] {
/// use futures::io::{AsyncReadExt, AsyncWriteExt};
/// let (near, far) = sinew::net::unix::UnixStream::pair()?;
/// let (mut near, mut far) = (near.into_async(), far.into_async());
/// sinew::run(|| sinew::block_on(async {
///     near.write_all(b"hello").await?;
///     let mut buf = [0; 5];
///     far.read_exact(&mut buf).await?;
///     assert_eq!(&buf, b"hello");
///     std::io::Result::Ok(())
/// }))?;
/// # }
/// # std::io::Result::Ok(())
/// ```
pub struct Async<S> {
    stream: Arc<S>,
    /// By direction.
    sides: [Side; 2],
    /// [`Stream::end`]. Here because a drop has the bounds of its type, and whoever names this one in a type of his own cannot write a bound that is private.
    end: fn(&S),
}

#[derive(Default)]
struct Side {
    shared: Arc<Lock<Shared>>,
    /// The fiber that waits, or has waited.
    fiber: Option<JoinHandle<()>>,
    /// How many have, since a try last succeeded.
    in_vain: u32,
}

/// The waits of which each may be in vain for a good reason, such as another that was quicker. After more there is something that is told of without end (an error queue that nobody reads), and each
/// is by so much later than the one before, up to a hundred times. Arbitrary: as all who try again (`rt/pauses.rs`).
const IN_VAIN_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_micros(100);
const PAUSES_MAX: u32 = 100;

#[derive(Default)]
struct Shared {
    /// Whom to wake.
    waker: Option<Waker>,
    /// Whether a fiber waits.
    waits: bool,
    /// Why it could not, for the next poll. Nothing if it was ended with its runtime: the next poll may be in another, and in the same one is told so when it spawns.
    failed: Option<io::Error>,
}

impl Default for Lock<Shared> {
    fn default() -> Self {
        Self::new(Shared::default())
    }
}

/// What the two kinds of streams have in common. In a private module: nobody else implements it.
pub trait Stream: Send + Sync + 'static {
    /// What a fiber waits at. Not `as_fd`: that is for who may duplicate it.
    fn socket(&self) -> BorrowedFd<'_>;
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize>;
    fn try_write(&self, buf: &[u8]) -> io::Result<usize>;
    fn close_writes(&self) -> io::Result<()>;
    /// Has the peer see the end, though the socket cannot be closed yet; nothing if there may be a duplicate of it, which is to go on, or if the peer is to see no end.
    fn end(&self);
}

macro_rules! stream {
    ($($stream:ident),*) => {
        $(impl Stream for $stream {
            fn socket(&self) -> BorrowedFd<'_> {
                self.descriptor.socket().as_fd()
            }

            fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
                match buf.len() {
                    // As a read: `recv` would wait.
                    0 => Ok(0),
                    _ => calls::try_receive(self.descriptor.socket(), buf, 0),
                }
            }

            fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
                calls::try_send(self.descriptor.socket(), buf)
            }

            fn close_writes(&self) -> io::Result<()> {
                match self.shutdown(Shutdown::Write) {
                    // The peer has closed or reset it: there is nothing left to end. As tokio's.
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
                    done => done,
                }
            }

            fn end(&self) {
                if !self.descriptor.may_have_duplicates() && !resets(self.socket()) {
                    // It fails where the peer has ended it.
                    let _ = self.shutdown(Shutdown::Both);
                }
            }
        }

        impl $stream {
            /// This stream for futures, with `AsyncRead` and `AsyncWrite` of `futures-io` and of tokio.
            pub fn into_async(self) -> Async<Self> {
                Async { stream: Arc::new(self), sides: Default::default(), end: Self::end }
            }
        })*
    };
}

stream!(TcpStream, UnixStream);

/// Whether to close this stream resets it: because it is to, or because something was not read. To shut it down does not, and the peer takes that for the end; of TCP it sees nothing else after it.
fn resets(socket: BorrowedFd<'_>) -> bool {
    matches!(SockRef::from(&socket).linger(), Ok(Some(Duration::ZERO))) || unread(socket) > 0
}

/// The bytes that have come and were not read.
fn unread(socket: BorrowedFd<'_>) -> libc::c_int {
    let mut bytes = 0;
    // SAFETY: the number outlives the call. It does not fail at a stream, and would leave the number as it is.
    unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &mut bytes) };
    bytes
}

impl<S> Async<S> {
    /// The stream, for what does not wait.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }
}

impl<S: Stream> Async<S> {
    /// Tries; where that would block, sees to it that `cx` is woken when it is worth another try.
    fn poll_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        interest: Interest,
        mut try_it: impl FnMut(&S) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        // A poll must not suspend: who polls may hold a lock or a context of the thread. So it is not ready this time, and whoever drives it lets others run.
        if owes_a_turn() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            match try_it(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                done => {
                    self.sides[interest as usize].in_vain = 0;
                    return Poll::Ready(done);
                }
            }
        }
        let side = &mut self.sides[interest as usize];
        let waker = cx.waker().clone();
        let (replaced, waits, failed) = {
            let mut shared = side.shared.lock();
            let failed = shared.failed.take();
            let waits = failed.is_none() && std::mem::replace(&mut shared.waits, true);
            (shared.waker.replace(waker), waits, failed)
        };
        drop(replaced);
        if let Some(error) = failed {
            return Poll::Ready(Err(error));
        }
        if !waits {
            let stream = self.stream.clone();
            let deputy = Deputy { shared: side.shared.clone(), failed: None };
            let pause = PAUSE * side.in_vain.saturating_sub(IN_VAIN_MAX).min(PAUSES_MAX);
            side.in_vain = side.in_vain.saturating_add(1);
            match Builder::new().spawn(move || deputy.wait(&*stream, interest, pause)) {
                Ok(fiber) => side.fiber = Some(fiber),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Pending
    }
}

/// What a fiber has that waits in place of a future. It wakes the future when it is dropped: also where the fiber never ran.
struct Deputy {
    shared: Arc<Lock<Shared>>,
    failed: Option<io::Error>,
}

impl Deputy {
    fn wait(mut self, stream: &impl Stream, interest: Interest, pause: Duration) {
        if !pause.is_zero() {
            sleep(pause);
        }
        self.failed = poll(stream.socket(), interest).err().filter(|_| !cancelled());
    }

    /// Why it is dropped unrun, if its fiber is: where there is no stack, another would be as well, and wake the future at once. One that was ended with its runtime, or could not be made, has nothing to
    /// tell the next poll.
    fn no_stack() -> Option<io::Error> {
        let (_, me) = fiber()?;
        (me.verdict() == Verdict::NoStack).then(|| io::Error::other("no fiber could be run to wait: there is no stack for one"))
    }
}

impl Drop for Deputy {
    fn drop(&mut self) {
        let failed = self.failed.take().or_else(Self::no_stack);
        let (waker, replaced) = {
            let mut shared = self.shared.lock();
            shared.waits = false;
            (shared.waker.take(), std::mem::replace(&mut shared.failed, failed))
        };
        drop(replaced);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(feature = "futures-io")]
impl<S: Stream> futures_io::AsyncRead for Async<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, Interest::Readable, |stream| stream.try_read(buf))
    }
}

#[cfg(feature = "futures-io")]
impl<S: Stream> futures_io::AsyncWrite for Async<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, Interest::Writable, |stream| stream.try_write(buf))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.close_writes())
    }
}

#[cfg(feature = "tokio-io")]
impl<S: Stream> tokio::io::AsyncRead for Async<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut tokio::io::ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_with(cx, Interest::Readable, |stream| stream.try_read(buf.initialize_unfilled())).map_ok(|read| buf.advance(read))
    }
}

#[cfg(feature = "tokio-io")]
impl<S: Stream> tokio::io::AsyncWrite for Async<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, Interest::Writable, |stream| stream.try_write(buf))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.close_writes())
    }
}

impl<S> Drop for Async<S> {
    /// Nobody is to wait for it any more. It is closed by the last of those who do, which may be of a worker that computes; the peer need not wait for that. In a forked child
    /// nobody waits, the connection is the parent's, and its locks may be held by threads that are not there.
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        if self.sides.iter().any(|side| side.shared.lock().waits) {
            (self.end)(&self.stream);
        }
        self.sides.iter().filter_map(|side| side.fiber.as_ref()).for_each(|fiber| fiber.cancel());
    }
}

impl<S> fmt::Debug for Async<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Async").finish_non_exhaustive()
    }
}
