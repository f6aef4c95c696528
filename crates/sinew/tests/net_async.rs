//! Our streams under futures: polled by fibers, by tokio, and by both at once.
#![cfg(all(feature = "futures-io", feature = "tokio-io"))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sinew::net::unix::UnixStream;
use sinew::net::{TcpListener, TcpStream};

/// A megabyte through a socket, both ends futures of one kind, on fibers.
#[test]
fn futures_io_in_fibers() {
    use futures::io::{AsyncReadExt, AsyncWriteExt};
    sinew::run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = sinew::spawn(move || {
            let mut stream = listener.accept().unwrap().0.into_async();
            sinew::block_on(async {
                let mut got = Vec::new();
                stream.read_to_end(&mut got).await.unwrap();
                stream.write_all(&got).await.unwrap();
                got.len()
            })
        });
        let mut stream = TcpStream::connect(addr).unwrap().into_async();
        let sent: Vec<u8> = (0..1 << 20).map(|i| i as u8).collect();
        let got = sinew::block_on(async {
            stream.write_all(&sent).await.unwrap();
            stream.close().await.unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).await.unwrap();
            got
        });
        assert!(got == sent);
        assert_eq!(server.join().unwrap(), 1 << 20);
    });
}

/// One end is a future of tokio's, the other a fiber that blocks.
#[test]
fn tokio_at_one_end_and_a_fiber_at_the_other() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (near, far) = UnixStream::pair().unwrap();
    let fiber = sinew::spawn(move || {
        use std::io::{Read, Write};
        for _ in 0..100 {
            let mut buf = [0; 8];
            (&far).read_exact(&mut buf).unwrap();
            (&far).write_all(&buf).unwrap();
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.block_on(async {
        let mut near = near.into_async();
        for round in 0..100u64 {
            near.write_all(&round.to_ne_bytes()).await.unwrap();
            let mut buf = [0; 8];
            near.read_exact(&mut buf).await.unwrap();
            assert_eq!(u64::from_ne_bytes(buf), round);
        }
        near.shutdown().await.unwrap();
    });
    fiber.join().unwrap();
}

/// A future that is dropped while it waits leaves no fiber behind.
#[test]
fn a_dropped_read_leaves_nobody_waiting() {
    use futures::FutureExt;
    use futures::io::AsyncReadExt;
    let runtime = sinew::Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        let (near, _far) = UnixStream::pair().unwrap();
        let mut near = near.into_async();
        assert!(sinew::block_on(async { near.read(&mut [0; 4]).now_or_never() }).is_none());
        sinew::yield_now();
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(10)).unwrap();
}

/// Claim: the peer of a stream that is dropped while a fiber waits in its future's place sees the end at once, though that fiber's worker is held; not where there is a clone, which goes on.
#[test]
fn a_dropped_stream_ends_for_its_peer() {
    use futures::FutureExt;
    use futures::io::AsyncReadExt;
    use std::io::{Read, Write};
    for io in [sinew::Io::Uring, sinew::Io::Epoll] {
        let runtime = sinew::Runtime::builder().workers(1).io(io).build().unwrap();
        runtime.run(|| {
            for has_clone in [false, true] {
                let (near, far) = UnixStream::pair().unwrap();
                let mut far = std::os::unix::net::UnixStream::from(far);
                far.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
                let clone = has_clone.then(|| near.try_clone().unwrap());
                let mut near = near.into_async();
                assert!(sinew::block_on(async { near.read(&mut [0; 4]).now_or_never() }).is_none());
                // The fiber begins to wait.
                sinew::yield_now();
                drop(near);
                if let Some(mut clone) = clone {
                    clone.write_all(b"on").unwrap();
                    assert_eq!(far.read(&mut [0; 4]).unwrap(), 2);
                }
                // std's: it holds the one worker.
                if !has_clone {
                    assert_eq!(far.read(&mut [0; 4]).unwrap(), 0, "{io:?}");
                }
            }
        });
        runtime.shutdown_timeout(std::time::Duration::from_secs(10)).unwrap();
    }
}

/// Claim: a stream whose close resets it does so also if it is dropped while a fiber waits in its future's place: the peer sees no end, neither before that fiber has run nor after.
#[test]
fn a_dropped_stream_is_reset_as_a_closed_one() {
    use futures::FutureExt;
    use futures::io::{AsyncRead, AsyncReadExt};
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::AsRawFd;
    /// In which that fiber has run. Arbitrary: far more than it takes, and seconds at most.
    const TURNS_MAX: usize = 1_000_000;
    /// Drops `near` while a fiber waits for it, and `unread` has come.
    fn check<F: Read + Write>(mut near: impl AsyncRead + Unpin, mut far: F, unread: &[u8], has_come: impl Fn(&F) -> bool, what: &str) {
        assert!(sinew::block_on(async { near.read(&mut [0; 4]).now_or_never() }).is_none());
        // The fiber begins to wait. It does not go on while this one holds the one worker.
        sinew::yield_now();
        far.write_all(unread).unwrap();
        common::poll_until("what was sent to have come", || has_come(&far));
        drop(near);
        let mut seen = || far.read(&mut [0; 4]).map_err(|error| error.kind());
        assert_eq!(seen(), Err(ErrorKind::WouldBlock), "{what}: before that fiber has run");
        let mut turns = std::iter::repeat_with(|| (sinew::yield_now(), seen()).1).take(TURNS_MAX);
        let after = turns.find(|seen| *seen != Err(ErrorKind::WouldBlock));
        assert_eq!(after, Some(Err(ErrorKind::ConnectionReset)), "{what}");
    }
    /// Whether the peer has got all that was sent.
    fn has_come(far: &std::net::TcpStream) -> bool {
        let mut left = 0;
        // SAFETY: the number outlives the call.
        assert_eq!(unsafe { libc::ioctl(far.as_raw_fd(), libc::TIOCOUTQ, &mut left) }, 0);
        left == 0
    }
    on_both(|| {
        for (linger, unread) in [(Some(std::time::Duration::ZERO), &b""[..]), (None, b"unread")] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let far = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            far.set_nonblocking(true).unwrap();
            let near = listener.accept().unwrap().0;
            near.set_linger(linger).unwrap();
            check(near.into_async(), far, unread, has_come, &format!("TCP, linger {linger:?}"));
        }
        let (near, far) = UnixStream::pair().unwrap();
        let far = std::os::unix::net::UnixStream::from(far);
        far.set_nonblocking(true).unwrap();
        check(near.into_async(), far, b"unread", |_| true, "Unix");
    });
}

/// Claim: a stream that a forked child drops, while a fiber of the parent waits for it, is dropped quietly there, and goes on in the parent.
#[test]
fn a_stream_dropped_in_a_forked_child_goes_on_in_the_parent() {
    use futures::FutureExt;
    use futures::io::AsyncReadExt;
    use std::io::Write;
    let (near, far) = UnixStream::pair().unwrap();
    let mut near = near.into_async();
    assert!(sinew::block_on(async { near.read(&mut [0; 4]).now_or_never() }).is_none());
    // SAFETY: the child only drops, and leaves by `_exit`; its alarm ends one that hangs.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above.
        unsafe { libc::alarm(30) };
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(near)));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(dropped.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    (&far).write_all(b"on").unwrap();
    assert_eq!(sinew::block_on(async { near.read(&mut [0; 4]).await }).unwrap(), 2);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
}

/// Claim: a type of a user's own may have a stream of any kind in it, and a drop, without a bound. It is checked by the compiler.
#[test]
fn a_stream_of_any_kind_may_be_part_of_a_type() {
    use std::io::Read;
    #[derive(Debug)]
    struct Connection<S> {
        stream: sinew::net::Async<S>,
    }
    impl<S> Drop for Connection<S> {
        fn drop(&mut self) {
            let _stream: &S = self.stream.get_ref();
        }
    }
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = Connection { stream: near.into_async() };
    assert_eq!(format!("{near:?}"), "Connection { stream: Async { .. } }");
    drop(near);
    assert_eq!(far.read(&mut [0; 4]).unwrap(), 0);
}

/// Claim: to close the writes of a stream that its peer has reset is no error, as with tokio's.
#[test]
fn a_reset_stream_closes_without_an_error() {
    sinew::run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        // What is closed with something unread is reset.
        std::io::Write::write_all(&mut &stream, b"unread").unwrap();
        peer.peek(&mut [0; 4]).unwrap();
        drop(peer);
        let mut near = stream.into_async();
        sinew::block_on(async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            assert_eq!(near.read(&mut [0; 4]).await.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
            near.shutdown().await.unwrap();
        });
    });
}

/// A future whose fiber cannot wait is told why, and does not ask for ever.
#[test]
fn a_read_that_cannot_wait_says_why() {
    use futures::io::AsyncReadExt;
    let runtime = sinew::Runtime::builder().workers(1).io(sinew::Io::Epoll).build().unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let (began, begun) = std::sync::mpsc::channel();
    let fiber = runtime.spawn(move || {
        let mut near = near.into_async();
        sinew::block_on(async {
            began.send(()).unwrap();
            near.read(&mut [0; 4]).await
        })
    });
    begun.recv().unwrap();
    // Cancels the fiber that waits in place of the future; `block_on` itself is no cancel point.
    runtime.shutdown_timeout(std::time::Duration::from_secs(10)).unwrap();
    assert!(fiber.join().unwrap().is_err());
    drop(far);
}

/// Claim: a stream outlives the runtime where it was polled first, in vain: another waits for it and reads. Whoever waited there was cancelled, or had not begun, when that was shut down.
#[test]
fn a_stream_goes_on_in_another_runtime() {
    use futures::FutureExt;
    use futures::io::AsyncReadExt;
    use std::io::Write;
    for io in [sinew::Io::Uring, sinew::Io::Epoll] {
        // Turns in which the one who waits begins to, or none.
        for turns in [10, 0] {
            let [first, second] = [(); 2].map(|()| sinew::Runtime::builder().workers(1).io(io).build().unwrap());
            let (near, far) = UnixStream::pair().unwrap();
            let mut near = near.into_async();
            first.run(|| {
                assert!(sinew::block_on(async { near.read(&mut [0; 1]).now_or_never() }).is_none());
                (0..turns).for_each(|_| sinew::yield_now());
            });
            first.shutdown_timeout(std::time::Duration::from_secs(10)).unwrap();
            let read = second.run(|| {
                let writer = sinew::spawn(move || (&far).write_all(b"x"));
                let read = sinew::block_on(async { near.read(&mut [0; 1]).await });
                writer.join().unwrap().unwrap();
                read
            });
            assert_eq!(read.unwrap(), 1, "{io:?}, {turns} turns");
        }
    }
}

/// Claim: those who were to wait and were ended unrun with their runtimes, however many, leave nothing to the next poll, which waits. Each is queued behind one that holds its worker until the shutdown has begun.
#[test]
fn runtimes_that_end_before_anybody_waits_leave_nothing_to_the_next() {
    use futures::io::AsyncRead;
    use futures::task::ArcWake;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    #[derive(Default)]
    struct Wakes(AtomicU64);
    impl ArcWake for Wakes {
        fn wake_by_ref(wakes: &Arc<Self>) {
            wakes.0.fetch_add(1, Relaxed);
        }
    }
    let wakes = Arc::new(Wakes::default());
    let waker = futures::task::waker(wakes.clone());
    let poll = move |near: &mut sinew::net::Async<UnixStream>| Pin::new(near).poll_read(&mut Context::from_waker(&waker), &mut [0; 4]);
    let (near, _far) = UnixStream::pair().unwrap();
    let mut near = near.into_async();
    for round in 0..3 {
        let runtime = sinew::Runtime::builder().workers(1).build().unwrap();
        let gate = common::Gate::default();
        let polled = runtime.spawn({
            let (gate, poll) = (gate.clone(), poll.clone());
            move || {
                let first = poll(&mut near);
                gate.hold();
                (near, first)
            }
        });
        common::poll_until("the worker to be held", || gate.held() == 1);
        assert!(runtime.shutdown_timeout(std::time::Duration::from_millis(1)).is_err(), "the worker is held");
        gate.open();
        let first: Poll<_>;
        (near, first) = polled.join().unwrap();
        assert!(first.is_pending(), "round {round}: {first:?}");
        common::poll_until("the end of who was to wait", || wakes.0.load(Relaxed) == round + 1);
    }
}

/// No fiber could be had to wait in place of a future: those polls are told so, and the next, when there are some again, waits.
#[test]
fn a_poll_that_had_no_fiber_leaves_nothing_to_the_next() {
    use futures::io::AsyncRead;
    use std::pin::Pin;
    use std::task::{Context, Waker};
    const NAME: &str = "a_poll_that_had_no_fiber_leaves_nothing_to_the_next";
    if !common::is_child(NAME) {
        let output = common::in_child(NAME, &[]);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    sinew::Runtime::builder().workers(1).build().unwrap().run(|| {
        let (near, _far) = UnixStream::pair().unwrap();
        let mut near = near.into_async();
        let mut poll = || Pin::new(&mut near).poll_read(&mut Context::from_waker(Waker::noop()), &mut [0; 4]);
        sinew::hidden::limit_blocks(0);
        let mut hogs = Vec::new();
        while let Ok(hog) = sinew::Builder::new().spawn(sinew::park) {
            hogs.push(hog);
        }
        for _ in 0..2 {
            assert!(matches!(poll(), std::task::Poll::Ready(Err(_))), "there was a fiber");
        }
        sinew::hidden::limit_blocks(usize::MAX);
        let next = poll();
        assert!(next.is_pending(), "{next:?}");
        hogs.iter().for_each(|hog| hog.cancel());
    });
}

/// Runs `f` as a fiber on each driver, with one worker.
fn on_both(f: impl Fn() + Send + Sync) {
    for io in [sinew::Io::Uring, sinew::Io::Epoll] {
        sinew::Runtime::builder().workers(1).io(io).build().unwrap().run(&f);
    }
}

/// Counted in turns: one that is told in vain that there is room tries for as long as there is none.
#[test]
fn a_write_to_a_half_closed_peer_sleeps_until_there_is_room() {
    use futures::io::AsyncWriteExt;
    use std::io::Read;
    on_both(|| {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.shutdown(sinew::net::Shutdown::Write).unwrap();
        let polls = Arc::new(AtomicU64::new(0));
        let writer = sinew::spawn({
            let polls = polls.clone();
            move || {
                let mut near = near.into_async();
                let mut write = std::pin::pin!(async { near.write_all(&[7; 1 << 20]).await });
                sinew::block_on(std::future::poll_fn(|cx| {
                    polls.fetch_add(1, Relaxed);
                    write.as_mut().poll(cx)
                }))
            }
        });
        // Until it waits; then for longer.
        (0..2_000).for_each(|_| sinew::yield_now());
        let before = polls.load(Relaxed);
        assert!(before < 20, "{before} polls of a write that could not be done");
        let mut got = vec![0; 1 << 20];
        far.read_exact(&mut got).unwrap();
        writer.join().unwrap().unwrap();
    });
}

/// Counted in turns of another fiber.
#[test]
fn streams_that_are_always_ready_let_others_run() {
    use futures::io::{AsyncReadExt, AsyncWriteExt};
    on_both(|| {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut near, mut far) = (near.into_async(), far.into_async());
        let turns = Arc::new(AtomicU64::new(0));
        let other = sinew::spawn({
            let turns = turns.clone();
            move || {
                while !sinew::cancelled() {
                    turns.fetch_add(1, Relaxed);
                    sinew::yield_now();
                }
            }
        });
        sinew::block_on(async {
            for _ in 0..10_000 {
                near.write_all(b"x").await.unwrap();
                far.read_exact(&mut [0; 1]).await.unwrap();
            }
        });
        assert!(turns.load(Relaxed) >= 20, "{} turns in 20,000 calls", turns.load(Relaxed));
        other.cancel();
        other.join().unwrap();
    });
}

/// Claim: a fiber that unwinds is not switched away by polls that find something: others would see its panic, by the thread's count.
#[test]
fn streams_that_are_always_ready_switch_nobody_away_who_unwinds() {
    use futures::io::AsyncReadExt;
    use std::io::Write;
    const BYTES: usize = 1000;
    struct ReadsInDrop(sinew::net::Async<UnixStream>);
    impl Drop for ReadsInDrop {
        fn drop(&mut self) {
            sinew::block_on(async {
                for _ in 0..BYTES {
                    self.0.read_exact(&mut [0]).await.unwrap();
                }
            });
        }
    }
    on_both(|| {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(&[7; BYTES]).unwrap();
        let unwinds = sinew::spawn(move || {
            let _reads = ReadsInDrop(near.into_async());
            // The other has begun.
            sinew::yield_now();
            std::panic::resume_unwind(Box::new(()));
        });
        while !unwinds.is_finished() {
            assert!(!std::thread::panicking(), "it was switched away");
            sinew::yield_now();
        }
        assert!(unwinds.join().is_err());
    });
}

/// A clone that std has got is blocking, and so is the socket; but no poll blocks.
#[test]
fn a_stream_that_std_has_a_clone_of_blocks_no_worker() {
    use futures::FutureExt;
    use futures::io::{AsyncReadExt, AsyncWriteExt};
    on_both(|| {
        let (near, far) = UnixStream::pair().unwrap();
        let std = std::os::unix::net::UnixStream::from(near.try_clone().unwrap());
        let mut near = near.into_async();
        sinew::block_on(async {
            assert_eq!(near.read(&mut []).now_or_never().unwrap().unwrap(), 0);
            assert!(near.read(&mut [0; 4]).now_or_never().is_none());
            while near.write(&[7; 10_000]).now_or_never().is_some() {}
        });
        drop((std, far));
    });
}

/// Claim: a poll never suspends. tokio's halves of one stream share a `std::sync::Mutex`, which is locked during a poll: a fiber that yielded with it would block its worker for ever, once another of
/// that worker polls the other half.
#[test]
fn halves_of_a_stream_in_two_fibers_of_one_worker() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const BYTES: usize = 20_000;
    on_both(|| {
        let (near, far) = UnixStream::pair().unwrap();
        let echo = sinew::spawn(move || sinew::io::copy(&mut &far, &mut &far).unwrap());
        let (mut reads, mut writes) = tokio::io::split(near.into_async());
        let writer = sinew::spawn(move || {
            sinew::block_on(async {
                for _ in 0..BYTES {
                    writes.write_all(b"x").await.unwrap();
                }
                writes.shutdown().await.unwrap();
            });
        });
        let got = sinew::block_on(async {
            let mut got = 0;
            while reads.read(&mut [0; 1]).await.unwrap() == 1 {
                got += 1;
            }
            got
        });
        assert_eq!(got, BYTES);
        writer.join().unwrap();
        assert_eq!(echo.join().unwrap(), BYTES as u64);
    });
}

/// Poll tells without end of an error queue that nobody reads. Counted in polls of the future: one that is woken each time is polled thousands of times.
#[test]
fn an_error_queue_that_nobody_reads_makes_no_future_spin() {
    use futures::AsyncRead;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    /// SOF_TIMESTAMPING_TX_SOFTWARE and SOF_TIMESTAMPING_SOFTWARE: the time of each send goes to the error queue.
    const TIMES: libc::c_int = 1 << 1 | 1 << 4;
    for io in [sinew::Io::Uring, sinew::Io::Epoll] {
        sinew::Runtime::builder().workers(1).io(io).build().unwrap().run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let far = listener.accept().unwrap().0;
            // SAFETY: the number outlives the call.
            let set = unsafe {
                libc::setsockopt(near.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, std::ptr::from_ref(&TIMES).cast(), 4)
            };
            assert_eq!(set, 0);
            (&near).write_all(b"x").unwrap();
            (&far).read_exact(&mut [0]).unwrap();
            let mut asked = libc::pollfd { fd: near.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry outlives the call.
            assert_eq!((unsafe { libc::poll(&mut asked, 1, -1) }, asked.revents), (1, libc::POLLERR));

            let mut near = near.into_async();
            let mut polls = 0;
            let mut read = || {
                let mut buf = [0; 8];
                sinew::try_block_on(std::future::poll_fn(|cx| {
                    polls += 1;
                    std::pin::Pin::new(&mut near).poll_read(cx, &mut buf)
                }))
            };
            assert!(sinew::timeout(std::time::Duration::from_millis(200), &mut read).is_err());
            (&far).write_all(b"abc").unwrap();
            assert_eq!(read().unwrap().unwrap(), 3);
            assert!(polls < 200, "{io:?}: {polls} polls");
        });
    }
}

/// A future whose fiber never runs, for want of a stack, is told so, and does not ask for ever. In a process of its own: memory fails there.
#[test]
fn a_read_for_which_there_is_no_stack_says_so() {
    use futures::io::AsyncReadExt;
    const NAME: &str = "a_read_for_which_there_is_no_stack_says_so";
    if !common::is_child(NAME) {
        let child = common::in_child(NAME, &[("SINEW_STACK_SIZE", "8M")]);
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    // SAFETY: the call takes a number only. Its signal ends a child that asks for ever.
    unsafe { libc::alarm(30) };
    let (near, far) = UnixStream::pair().unwrap();
    let mut near = near.into_async();
    // The default runtime runs, and has no stack of its default size.
    sinew::Builder::new().stack_size(64 * 1024).spawn(|| ()).unwrap().join().unwrap();
    sinew::hidden::fail_memory_after(0);
    let read = sinew::block_on(async { near.read(&mut [0; 4]).await });
    sinew::hidden::fail_memory_after(u64::MAX);
    assert_eq!(read.unwrap_err().to_string(), "no fiber could be run to wait: there is no stack for one");
    drop(far);
}
