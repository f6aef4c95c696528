//! I/O when things go wrong: no ring, no descriptors, resets, full queues, time-outs that race data.

mod common;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::{in_child, is_child, pair, refuse, rounds, until};
use sinew::net::unix::{UnixDatagram, UnixStream};
use sinew::net::{TcpListener, TcpStream, UdpSocket};
use sinew::{Io, Runtime, RuntimeBuilder};

/// Runs the test of this name in a process of its own for each driver, if this is not one: then the caller does what it is to do.
fn runs_in_children(name: &str) -> bool {
    if is_child(name) {
        return false;
    }
    for io in ["uring", "epoll"] {
        let child = in_child(name, &[("SINEW_IO", io)]);
        assert!(child.status.success(), "{io}: {}", String::from_utf8_lossy(&child.stderr));
    }
    true
}

const DRIVERS: [Io; 2] = [Io::Uring, Io::Epoll];

/// Switches between fibers of this runtime, so far.
fn switches() -> u64 {
    sinew::metrics().workers.iter().map(|worker| worker.switches).sum()
}

/// A connection, some bytes there and back.
fn echo_once() {
    let (mut near, mut far) = pair();
    let server = sinew::spawn(move || {
        let mut buf = [0; 5];
        far.read_exact(&mut buf).unwrap();
        far.write_all(&buf).unwrap();
    });
    near.write_all(b"hello").unwrap();
    let mut buf = [0; 5];
    near.read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"hello");
    server.join().unwrap();
}

#[test]
fn without_a_ring_all_works_by_epoll_and_it_is_said_once() {
    const NAME: &str = "without_a_ring_all_works_by_epoll_and_it_is_said_once";
    if is_child(NAME) {
        refuse(libc::SYS_io_uring_setup, libc::EPERM);
        let refused = Runtime::builder().io(Io::Uring).build().expect_err("there is no ring");
        assert!(refused.kind() == io::ErrorKind::PermissionDenied && refused.to_string().contains("Io::Epoll"), "{refused}");
        sinew::run(echo_once);
        Runtime::builder().workers(2).build().unwrap().run(echo_once);
        return;
    }
    let child = in_child(NAME, &[("SINEW_IO", "auto")]);
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{said}");
    assert_eq!(said.matches("I/O goes by epoll").count(), 1, "{said}");
    let silent = in_child(NAME, &[("SINEW_IO", "epoll")]);
    assert!(silent.status.success() && !String::from_utf8_lossy(&silent.stderr).contains("I/O goes by epoll"));
}

#[test]
fn a_driver_that_is_not_there_is_refused() {
    const NAME: &str = "a_driver_that_is_not_there_is_refused";
    if is_child(NAME) {
        let error = Runtime::builder().build().expect_err("no such driver");
        assert!(error.to_string().contains("SINEW_IO") && error.to_string().contains("uring, epoll or auto"), "{error}");
        return;
    }
    assert!(in_child(NAME, &[("SINEW_IO", "kqueue")]).status.success());
}

/// Descriptors run out while clients connect: `accept` waits, says so once, and goes on when there are some again.
#[test]
fn accept_waits_for_descriptors() {
    const NAME: &str = "accept_waits_for_descriptors";
    if !is_child(NAME) {
        for io in ["uring", "epoll"] {
            let child = in_child(NAME, &[("SINEW_IO", io)]);
            let said = String::from_utf8_lossy(&child.stderr);
            assert!(child.status.success(), "{io}: {said}");
            let times = said.matches("accept waits").count();
            assert_eq!(times, 1, "{io}: one that is met again soon is the same: {said}");
        }
        return;
    }
    Runtime::builder().workers(1).build().unwrap().run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        // The clients' own descriptors are there before all others are taken.
        let clients: Vec<_> = (0..4).map(|_| std::net::TcpStream::connect(addr).unwrap()).collect();
        drop(listener.accept().unwrap());
        let mut hogs: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        let before = switches();
        let late = sinew::timeout(Duration::from_millis(300), || listener.accept().unwrap_err().kind());
        assert!(late.is_err(), "it did not wait");
        // After 1, 2, 4 ... ms: each try is a turn, or two.
        let used = switches() - before;
        assert!((5..50).contains(&used), "{used} turns in one wait");
        // There is room for one.
        hogs.pop();
        drop(listener.accept().unwrap());
        // And by itself, when there is one in the end.
        hogs.push(std::fs::File::open("/dev/null").unwrap());
        let server = sinew::spawn(move || (0..2).for_each(|_| drop(listener.accept().unwrap())));
        // It is ready, so it has tried in vain after this.
        (0..10).for_each(|_| sinew::yield_now());
        drop(hogs);
        server.join().unwrap();
        drop(clients);
    });
}

/// Lets this process open no descriptor any more, whatever it closes above the lowest that is not in use now; gives the limit that there was.
fn forbid_descriptors() -> libc::rlimit {
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    // SAFETY: limits go in and out, and outlive the calls.
    unsafe {
        let mut before: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut before), 0);
        let none = libc::rlimit { rlim_cur: next as u64, ..before };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &none), 0);
        assert_eq!(std::fs::File::open("/dev/null").unwrap_err().raw_os_error(), Some(libc::EMFILE));
        before
    }
}

fn allow_descriptors(limit: &libc::rlimit) {
    // SAFETY: the limit outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }, 0);
}

/// The one thread that could look a name up is held: who is cancelled, or late, does not wait for it.
#[test]
fn a_look_up_by_one_who_is_cancelled_does_not_begin() {
    let runtime = Runtime::builder().workers(1).blocking_threads(1).build().unwrap();
    let gate = common::Gate::default();
    let hold = gate.clone();
    let holder = runtime.spawn(move || sinew::blocking(|| hold.hold()));
    common::poll_until("the thread to be held", || gate.held() == 1);
    let fiber = runtime.spawn(|| {
        until(sinew::cancelled);
        let error = TcpStream::connect("localhost:1").unwrap_err();
        let late = sinew::shield(|| sinew::timeout(Duration::ZERO, || TcpStream::connect("localhost:1").unwrap_err().kind()));
        (error, late)
    });
    fiber.cancel();
    let begun = Instant::now();
    while !fiber.is_finished() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    let is_over = fiber.is_finished();
    gate.open();
    holder.join().unwrap();
    let (error, late) = fiber.join().unwrap();
    assert!(is_over, "it waited for a thread");
    assert!(common::is_cancelled(&error), "{error}");
    assert!(late.is_err(), "{late:?}");
}

#[test]
fn without_a_thread_to_look_a_name_up_it_is_an_error() {
    const NAME: &str = "without_a_thread_to_look_a_name_up_it_is_an_error";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    sinew::hidden::fail_blocking_threads(true);
    let error = sinew::run(|| TcpStream::connect("localhost:1").unwrap_err());
    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
}

/// Two accept when descriptors have run out. The one that is told of a connection is cancelled while it waits for better times: the connection is the other's.
#[test]
fn a_connection_is_not_lost_with_an_acceptor_that_has_no_descriptor() {
    const NAME: &str = "a_connection_is_not_lost_with_an_acceptor_that_has_no_descriptor";
    if runs_in_children(NAME) {
        return;
    }
    Runtime::builder().workers(1).build().unwrap().run(|| {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let addr = listener.local_addr().unwrap();
        let acceptors = [(); 2].map(|()| {
            let listener = listener.clone();
            let fiber = sinew::spawn(move || listener.accept().map(drop));
            // So it is asked of the kernel before the next.
            sinew::sleep(Duration::from_millis(1));
            fiber
        });
        let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        // Not by a lower limit: the ring keeps the one that there was when it was asked.
        let hogs: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        client.connect(&addr.into()).unwrap();
        // It is told, and pauses.
        sinew::sleep(Duration::from_millis(20));
        let [first, second] = acceptors;
        first.cancel();
        assert!(common::is_cancelled(&first.join().unwrap().unwrap_err()));
        drop(hogs);
        let begun = Instant::now();
        while !second.is_finished() && begun.elapsed() < Duration::from_secs(5) {
            sinew::sleep(Duration::from_millis(1));
        }
        assert!(second.is_finished(), "the connection was left");
        second.join().unwrap().unwrap();
    });
}

/// Claim: a loop of calls whose time-out is over at once lets others run also where there is no descriptor to wait with: it does not keep those from running that it waits for.
#[test]
fn a_loop_of_calls_that_are_late_holds_nobody_without_descriptors() {
    const NAME: &str = "a_loop_of_calls_that_are_late_holds_nobody_without_descriptors";
    const TRIES_MAX: usize = 1000;
    if runs_in_children(NAME) {
        return;
    }
    Runtime::builder().workers(1).build().unwrap().run(|| {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.set_read_timeout(Some(Duration::from_nanos(1))).unwrap();
        let limit = forbid_descriptors();
        let writer = sinew::spawn(move || far.write_all(b"x").map(|()| far));
        let read = (0..TRIES_MAX).find_map(|_| near.read(&mut [0; 8]).ok());
        allow_descriptors(&limit);
        assert_eq!(read, Some(1), "nothing came in {TRIES_MAX} tries");
        writer.join().unwrap().unwrap();
    });
}

/// Claim: a read whose time-out is over finds what is there also where the last one took all there was, so that this one would wait first, and there is no descriptor to wait with.
#[test]
fn a_late_read_without_descriptors_finds_what_is_there() {
    const NAME: &str = "a_late_read_without_descriptors_finds_what_is_there";
    if runs_in_children(NAME) {
        return;
    }
    Runtime::builder().workers(1).build().unwrap().run(|| {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.set_read_timeout(Some(Duration::from_nanos(1))).unwrap();
        let limit = forbid_descriptors();
        let read = [b"a", b"b"].map(|byte| {
            far.write_all(byte).unwrap();
            near.read(&mut [0; 8]).ok()
        });
        allow_descriptors(&limit);
        assert_eq!(read, [Some(1), Some(1)]);
    });
}

/// A worker's first wait for I/O finds no descriptor for its source: no call on a descriptor that is open fails for that. It waits by pauses, is cut short as ever, says so once, and waits at the source as
/// soon as there can be one.
#[test]
fn who_waits_first_waits_also_without_descriptors() {
    const NAME: &str = "who_waits_first_waits_also_without_descriptors";
    if !is_child(NAME) {
        for io in ["uring", "epoll"] {
            let child = in_child(NAME, &[("SINEW_IO", io)]);
            let said = String::from_utf8_lossy(&child.stderr);
            assert!(child.status.success(), "{io}: {said}");
            assert_eq!(said.matches("no descriptor to wait with").count(), 1, "{io}: {said}");
        }
        return;
    }
    let driver = || sinew::metrics().workers[0].io;
    Runtime::builder().workers(1).build().unwrap().run(|| {
        // All that is used is opened before.
        let (near, far) = UnixStream::pair().unwrap();
        let (mut pipe_out, mut pipe_in) = sinew::io::pipe().unwrap();
        let (datagrams, _silent) = UnixDatagram::pair().unwrap();
        let (near, datagrams) = (Arc::new(near), Arc::new(datagrams));
        let limit = forbid_descriptors();
        let read = || {
            let near = near.clone();
            let reader = sinew::spawn(move || {
                let mut buf = [0; 8];
                (&*near).read(&mut buf).map(|n| buf[..n].to_vec())
            });
            sinew::yield_now();
            reader
        };

        // Its own time-out, one around it, a cancel; in few turns.
        let before = switches();
        near.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert_eq!((&*near).read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        near.set_read_timeout(None).unwrap();
        assert!(sinew::timeout(Duration::from_millis(100), || (&*near).read(&mut [0; 8]).is_err()).is_err());
        let used = switches() - before;
        assert!(used < 100, "{used} turns in two waits");
        let reader = read();
        reader.cancel();
        assert!(common::is_cancelled(&reader.join().unwrap().unwrap_err()));

        // What comes is found: by a stream, a pipe that was full, and at an end that nothing but a poll tells of.
        let reader = read();
        let writer = sinew::spawn(move || pipe_in.write_all(&[7; 300_000]).map(|()| pipe_in));
        let drain = sinew::spawn(move || pipe_out.read_exact(&mut vec![0; 300_000]).map(|()| pipe_out));
        let receiver = sinew::spawn({
            let datagrams = datagrams.clone();
            move || datagrams.recv(&mut [0; 8])
        });
        sinew::yield_now();
        (&far).write_all(b"abc").unwrap();
        datagrams.shutdown(Shutdown::Read).unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), b"abc");
        // They are not closed: that would make room.
        let _pipe = (writer.join().unwrap().unwrap(), drain.join().unwrap().unwrap());
        assert_eq!(receiver.join().unwrap().unwrap(), 0);

        // By one who polls.
        let poller = sinew::spawn({
            let near = near.clone();
            move || sinew::io::poll(&*near, sinew::io::Interest::Readable)
        });
        sinew::yield_now();
        assert!(!poller.is_finished() && driver().is_none(), "there was a descriptor to wait with");
        (&far).write_all(b"d").unwrap();
        poller.join().unwrap().unwrap();
        assert_eq!(read().join().unwrap().unwrap(), b"d");

        // And when there are some again, they are used, by one who waits already.
        let reader = read();
        assert_eq!(driver(), None);
        allow_descriptors(&limit);
        common::await_until("the worker's source", || driver().is_some());
        (&far).write_all(b"e").unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), b"e");
    });
}

/// The user has as many descriptors in epoll instances as he may (`max_user_watches`, injected): no wait fails for that either. On the ring it is fibers that may move who wait at epoll.
#[test]
fn who_waits_waits_also_without_room_in_epoll() {
    const NAME: &str = "who_waits_waits_also_without_room_in_epoll";
    const MOVES: &str = "SINEW_TEST_MOVES";
    if !is_child(NAME) {
        for (io, moves) in [("epoll", "no"), ("epoll", "yes"), ("uring", "yes")] {
            let child = in_child(NAME, &[("SINEW_IO", io), (MOVES, moves)]);
            let said = String::from_utf8_lossy(&child.stderr);
            assert!(child.status.success(), "{io}, moves: {moves}: {said}");
            assert_eq!(said.matches("max_user_watches").count(), 1, "{io}, moves: {moves}: {said}");
        }
        return;
    }
    let builder = Runtime::builder().workers(1);
    let builder = match std::env::var(MOVES).unwrap().as_str() {
        // Without a spare, which would stand in on a thread where nothing is refused if the system kept the worker from its CPU.
        // SAFETY: these fibers keep nothing of a thread across a suspension.
        "yes" => unsafe { builder.migrate_started_fibers() }.spare_workers(0),
        _ => builder,
    };
    builder.build().unwrap().run(|| {
        let waits = |near: &UnixStream| sinew::timeout(Duration::from_millis(1), || (&*near).read(&mut [0; 8]).is_err()).is_err();
        let (known, _silent) = UnixStream::pair().unwrap();
        assert!(waits(&known));
        // On the worker's thread, which this is.
        refuse(libc::SYS_epoll_ctl, libc::ENOSPC);
        let (near, far) = UnixStream::pair().unwrap();
        assert!(waits(&known) && waits(&near));
        near.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert_eq!((&near).read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        near.set_read_timeout(None).unwrap();
        let near = Arc::new(near);
        let poller = sinew::spawn({
            let near = near.clone();
            move || sinew::io::poll(&*near, sinew::io::Interest::Readable).and_then(|()| (&*near).read(&mut [0; 8]))
        });
        sinew::yield_now();
        (&far).write_all(b"abc").unwrap();
        assert_eq!(poller.join().unwrap().unwrap(), 3);
        let reader = sinew::spawn(move || (&*near).read(&mut [0; 8]));
        sinew::yield_now();
        assert!(!reader.is_finished());
        (&far).write_all(b"de").unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), 2);
    });
}

/// A datagram that goes in so many fragments that the socket's buffer never has room for them. The kernel says ENOBUFS, and not that it would block: to wait would be for ever. So it is an error, as std's.
#[test]
fn a_datagram_that_there_is_never_room_for_is_an_error() {
    let set = |socket: &dyn AsRawFd, level: libc::c_int, option: libc::c_int, to: libc::c_int| {
        // SAFETY: the number outlives the call.
        let set =
            unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const to).cast(), size_of_val(&to) as libc::socklen_t) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
    };
    common::everywhere(|| {
        // Fragments below 64 KiB on the way to this machine itself can be asked for with IPv6 alone.
        let Ok(to) = UdpSocket::bind("[::1]:0") else { return };
        let from = UdpSocket::bind("[::1]:0").unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        set(&from, libc::IPPROTO_IPV6, libc::IPV6_MTU, 1280);
        set(&from, libc::SOL_SOCKET, libc::SO_SNDBUF, 1);
        for _ in 0..3 {
            let std = std::net::UdpSocket::from(from.try_clone().unwrap()).send(&[7; 60_000]).unwrap_err();
            assert_eq!(std.raw_os_error(), Some(libc::ENOBUFS), "it is not what this test is about");
            assert_eq!(from.send(&[7; 60_000]).unwrap_err().raw_os_error(), Some(libc::ENOBUFS));
            assert_eq!(from.send_to(&[7; 60_000], to.local_addr().unwrap()).unwrap_err().raw_os_error(), Some(libc::ENOBUFS));
            // It is none of the socket's: what there is room for goes on.
            assert_eq!(from.send(b"small").unwrap(), 5);
            assert_eq!(to.recv(&mut [0; 8]).unwrap(), 5);
        }
    });
}

/// The kernel has no buffers at all (injected): a write is told, as by std, and nothing of it was sent; `accept` waits for better times, since nobody else would take its connections.
#[test]
fn without_buffers_a_write_fails_and_accept_waits() {
    const NAME: &str = "without_buffers_a_write_fails_and_accept_waits";
    if !is_child(NAME) {
        for io in ["uring", "epoll"] {
            let child = in_child(NAME, &[("SINEW_IO", io)]);
            let said = String::from_utf8_lossy(&child.stderr);
            assert!(child.status.success(), "{io}: {said}");
            assert_eq!(said.matches("accept waits").count(), 1, "{io}: {said}");
        }
        return;
    }
    let (near, far) = pair();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    refuse(libc::SYS_sendto, libc::ENOBUFS);
    refuse(libc::SYS_accept4, libc::ENOBUFS);
    Runtime::builder().workers(1).build().unwrap().run(|| {
        assert_eq!((&near).write(b"abc").unwrap_err().raw_os_error(), Some(libc::ENOBUFS));
        let to_itself = datagrams.local_addr().unwrap();
        assert_eq!(datagrams.send_to(b"abc", to_itself).unwrap_err().raw_os_error(), Some(libc::ENOBUFS));
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&far).read(&mut [0; 8]).unwrap(), 0, "it was sent");
        let before = switches();
        assert!(sinew::timeout(Duration::from_millis(300), || listener.accept().is_err()).is_err(), "it did not wait");
        let used = switches() - before;
        assert!(used < 50, "{used} turns in one wait");
    });
}

/// Ends this process, and so the test, if it hangs.
fn end_if_it_hangs() {
    // SAFETY: two numbers.
    unsafe { libc::alarm(20) };
}

/// Claim: a deadline around a call ends it, also where the system says again and again that there is something, and the call finds nothing.
#[test]
fn a_deadline_ends_a_call_that_is_told_in_vain() {
    const NAME: &str = "a_deadline_ends_a_call_that_is_told_in_vain";
    const WHERE: &str = "SINEW_TEST_WHERE";
    if !is_child(NAME) {
        for place in ["uring", "epoll", "thread"] {
            let child = in_child(NAME, &[(WHERE, place)]);
            assert!(child.status.success(), "{place}: {:?}: {}", child.status, String::from_utf8_lossy(&child.stderr));
        }
        return;
    }
    end_if_it_hangs();
    // A read into several buffers is tried, and the ring is only to tell when.
    refuse(libc::SYS_recvmsg, libc::EAGAIN);
    let read = || {
        let (near, far) = UnixStream::pair().unwrap();
        (&near).write_all(b"x").unwrap();
        let mut buf = [0; 1];
        let late = sinew::timeout(Duration::from_millis(20), || {
            let error = (&far).read_vectored(&mut [io::IoSliceMut::new(&mut buf)]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
        assert!(late.is_err());
    };
    match std::env::var(WHERE).unwrap().as_str() {
        "uring" => Runtime::builder().workers(1).io(Io::Uring).build().unwrap().run(read),
        "epoll" => Runtime::builder().workers(1).io(Io::Epoll).build().unwrap().run(read),
        _ => read(),
    }
}

/// Claim: receives, and operations on files, go by the ring where there is one. The calls that would be made else are refused, so that nothing comes of it if they are made.
#[test]
fn what_goes_by_the_ring_makes_no_call() {
    const NAME: &str = "what_goes_by_the_ring_makes_no_call";
    if !is_child(NAME) {
        if Runtime::builder().workers(1).io(Io::Uring).build().is_ok() {
            let child = in_child(NAME, &[]);
            assert!(child.status.success(), "{:?}: {}", child.status, String::from_utf8_lossy(&child.stderr));
        }
        return;
    }
    end_if_it_hangs();
    let path = std::env::temp_dir().join(format!("sinew-by-the-ring-{}", std::process::id()));
    // More than is tried on the worker.
    let bytes = vec![b'x'; 128 << 10];
    std::fs::write(&path, &bytes).unwrap();
    for call in [libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_pread64] {
        refuse(call, libc::EIO);
    }
    // A read that is tried finds nothing.
    refuse(libc::SYS_recvfrom, libc::EAGAIN);
    Runtime::builder().workers(1).io(Io::Uring).build().unwrap().run(|| {
        let file = sinew::fs::File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut buf = vec![0; bytes.len()];
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), bytes.len());
        assert!(buf == bytes);
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        (&near).write_all(b"x").unwrap();
        let received = sinew::timeout(Duration::from_secs(10), || (&far).read(&mut [0; 8]));
        assert_eq!(received.expect("by the ring").unwrap(), 1);
    });
}

/// A reader with a time-out of next to nothing, and a writer that writes now and then: bytes out equal bytes in, in order, and a read that failed writes nothing into its buffer, not even later.
///
/// `SINEW_TIMED_READS=10000000` for the long run.
#[test]
fn time_outs_that_race_data_lose_nothing() {
    race_time_outs(|| Runtime::builder().workers(2), 1);
}

/// The same by fibers that move: they wait elsewhere, whatever the driver.
#[test]
fn time_outs_that_race_data_of_fibers_that_move_lose_nothing() {
    for spares in [0, 2] {
        // SAFETY: these fibers keep nothing of a thread across a suspension.
        race_time_outs(|| unsafe { Runtime::builder().workers(2).spare_workers(spares).migrate_started_fibers() }, 4);
    }
}

/// The same by so many at one worker that their receives stand in line before the ring is told of them: some are given up there.
#[test]
fn time_outs_that_race_data_in_a_crowd_lose_nothing() {
    race_time_outs(|| Runtime::builder().workers(1), 300);
}

fn race_time_outs(runtime: impl Fn() -> RuntimeBuilder, readers: usize) {
    make_room(2 * readers as libc::rlim_t + 200);
    let reads = std::env::var("SINEW_TIMED_READS").ok().map_or(rounds(200_000), |n| n.parse().expect("SINEW_TIMED_READS is a number"));
    for io in DRIVERS {
        let runtime = runtime().io(io).build().unwrap();
        let ends: Vec<_> = runtime.run(move || {
            let races: Vec<_> = (0..readers).map(|_| sinew::spawn(move || race_one(io, reads.div_ceil(readers)))).collect();
            races.into_iter().map(|race| race.join().unwrap()).collect()
        });
        let [failed, got] = ends.into_iter().fold([0, 0], |[failed, got], (fails, gets)| [failed + fails, got + gets]);
        assert!(failed > 0 && got > 0, "{io:?}: {failed} reads failed, {got} bytes came: nothing raced");
    }
}

/// So many timed reads of a stream, and all that is left then; gives how many failed, and how many bytes came.
fn race_one(io: Io, reads: usize) -> (u64, u64) {
    let (near, far) = pair();
    near.set_nodelay(true).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let writer = sinew::spawn({
        let done = done.clone();
        move || {
            let mut sent = 0u64;
            while !done.load(Relaxed) {
                (&near).write_all(&[sent as u8]).unwrap();
                sent += 1;
                // Between none and some 30 us.
                (0..sent * 7 % 4).for_each(|_| sinew::sleep(Duration::from_micros(sent % 11)));
            }
            near.shutdown(Shutdown::Write).unwrap();
            sent
        }
    });
    let (mut failed, mut got) = (0u64, 0u64);
    let mut buf = [0xAA; 64];
    let take = |n: usize, buf: &mut [u8; 64], got: &mut u64| {
        for byte in &mut buf[..n] {
            assert_eq!(*byte, *got as u8, "{io:?}: a byte was lost, or came twice");
            *byte = 0xAA;
            *got += 1;
        }
    };
    // Until some have come in time, too: where there are many, their writers may begin late.
    for read in 0.. {
        if read >= reads && got > 0 {
            break;
        }
        far.set_read_timeout(Some(Duration::from_nanos(1 + read as u64 * 37 % 20_000))).unwrap();
        match (&far).read(&mut buf) {
            Ok(n) => take(n, &mut buf, &mut got),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                failed += 1;
            }
        }
        assert!(buf.iter().all(|&byte| byte == 0xAA), "{io:?}: written after the return");
    }
    done.store(true, Relaxed);
    far.set_read_timeout(None).unwrap();
    loop {
        match (&far).read(&mut buf).unwrap() {
            0 => break,
            n => take(n, &mut buf, &mut got),
        }
    }
    assert_eq!(got, writer.join().unwrap());
    (failed, got)
}

/// The same with cancels.
#[test]
fn cancels_that_race_data_lose_nothing() {
    for io in DRIVERS {
        let runtime = Runtime::builder().workers(2).io(io).build().unwrap();
        runtime.run(|| {
            let (near, far) = pair();
            near.set_nodelay(true).unwrap();
            let far = Arc::new(far);
            let mut got = 0u64;
            for round in 0..rounds(20_000) as u64 {
                let reader = sinew::spawn({
                    let far = far.clone();
                    move || {
                        let mut buf = [0; 16];
                        (&*far).read(&mut buf).map(|n| buf[..n].to_vec())
                    }
                });
                if round % 3 == 0 {
                    sinew::yield_now();
                }
                (&near).write_all(&[round as u8]).unwrap();
                reader.cancel();
                // Nothing, or all that there was.
                for byte in reader.join().unwrap().unwrap_or_default() {
                    assert_eq!(byte, got as u8, "{io:?}: a byte was lost");
                    got += 1;
                }
            }
            near.shutdown(Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            (&*far).read_to_end(&mut rest).unwrap();
            assert!(rest.iter().enumerate().all(|(i, &byte)| byte == (got + i as u64) as u8));
            assert_eq!(got + rest.len() as u64, rounds(20_000) as u64);
        });
    }
}

/// More readers than a ring holds completions for, all of whom are written to while their worker computes. (How a ring is when it is full, and when completions overflow, is tested in `event/uring.rs`: a worker tells and asks it in every turn.)
#[test]
fn thousands_that_are_answered_at_once_lose_nothing() {
    const SOCKETS: usize = 5_000;
    for io in DRIVERS {
        let runtime = Runtime::builder().workers(1).io(io).build().unwrap();
        runtime.run(|| {
            let (near, far): (Vec<_>, Vec<_>) = (0..SOCKETS).map(|_| UnixStream::pair().unwrap()).unzip();
            let waiting = Arc::new(AtomicUsize::new(0));
            let readers: Vec<_> = far
                .into_iter()
                .enumerate()
                .map(|(i, far)| {
                    let waiting = waiting.clone();
                    sinew::spawn(move || {
                        waiting.fetch_add(1, Relaxed);
                        let mut bytes = [0; 8];
                        (&far).read_exact(&mut bytes).unwrap();
                        assert_eq!(u64::from_ne_bytes(bytes), i as u64);
                    })
                })
                .collect();
            until(|| waiting.load(Relaxed) == SOCKETS);
            (0..10).for_each(|_| sinew::yield_now());
            // By a thread, while this fiber holds the worker.
            let writer = std::thread::spawn(move || {
                near.iter().enumerate().for_each(|(i, near)| (&*near).write_all(&(i as u64).to_ne_bytes()).unwrap());
                near
            });
            let near = writer.join().unwrap();
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            drop(near);
        });
    }
}

/// A peer that goes with unread data resets the connection: who writes to it gets an error, and so does who waits for it.
#[test]
fn a_reset_is_an_error_and_no_hang() {
    for io in DRIVERS {
        Runtime::builder().workers(2).io(io).build().unwrap().run(|| {
            let (near, far) = pair();
            let near = Arc::new(near);
            (&*near).write_all(&[1; 1000]).unwrap();
            let reader = sinew::spawn({
                let near = near.clone();
                move || (&*near).read(&mut [0; 8])
            });
            let writer = sinew::spawn({
                let near = near.clone();
                move || {
                    loop {
                        if let Err(error) = (&*near).write_all(&[2; 64 << 10]) {
                            return error.kind();
                        }
                    }
                }
            });
            // Until the writer waits: its peer reads nothing.
            let sent = |near: &TcpStream| {
                let mut queued = 0i32;
                // SAFETY: the kernel writes one number.
                unsafe { libc::ioctl(near.as_raw_fd(), libc::TIOCOUTQ, &mut queued) };
                queued
            };
            until(|| sent(&near) > 64 << 10);
            drop(far);
            let ended = writer.join().unwrap();
            assert!(matches!(ended, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{io:?}: {ended:?}");
            // The system tells one of them of the reset, and the other that the connection is over.
            let read = reader.join().unwrap().map_err(|error| error.kind());
            let over = (ended, read) == (io::ErrorKind::ConnectionReset, Ok(0));
            assert!(
                over || (ended, read) == (io::ErrorKind::BrokenPipe, Err(io::ErrorKind::ConnectionReset)),
                "{io:?}: {ended:?}, {read:?}"
            );
        });
    }
}

/// A peer that never reads: writes wait, until their time-out.
#[test]
fn a_peer_that_never_reads_holds_nobody_for_ever() {
    for io in DRIVERS {
        Runtime::builder().workers(1).io(io).build().unwrap().run(|| {
            let (near, far) = pair();
            near.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
            let mut sent = 0u64;
            let error = loop {
                match (&near).write(&[3; 64 << 10]) {
                    Ok(n) => sent += n as u64,
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            near.shutdown(Shutdown::Write).unwrap();
            let got = io::copy(&mut &far, &mut io::sink()).unwrap();
            assert_eq!(got, sent, "{io:?}");
        });
    }
}

/// Signals that interrupt system calls, a thousand: nothing fails with EINTR.
#[test]
fn signals_interrupt_nothing() {
    const NAME: &str = "signals_interrupt_nothing";
    if runs_in_children(NAME) {
        return;
    }
    static SIGNALS: AtomicU64 = AtomicU64::new(0);
    extern "C" fn count(_: i32) {
        SIGNALS.fetch_add(1, Relaxed);
    }
    // SAFETY: a handler that only counts, without SA_RESTART; then a timer that sends its signal every 100 us.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as extern "C" fn(i32) as usize;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
        let often = libc::timeval { tv_sec: 0, tv_usec: 100 };
        let timer = libc::itimerval { it_interval: often, it_value: often };
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()), 0);
    }
    let echo_on = || {
        while SIGNALS.load(Relaxed) < 1000 {
            echo_once();
        }
    };
    Runtime::builder().workers(2).build().unwrap().run(|| {
        let echoes: Vec<_> = (0..8).map(|_| sinew::spawn(echo_on)).collect();
        // A thread of the program's own is interrupted too.
        let thread = std::thread::spawn(echo_on);
        echoes.into_iter().for_each(|echo| echo.join().unwrap());
        thread.join().unwrap();
    });
    assert!(SIGNALS.load(Relaxed) >= 1000);
}

/// Connections that come one by one settle evenly: 1,000 of them, and each fiber stays for its connection's life. Each comes when the workers have gone to sleep after the one before: that is what a hundred a
/// second are to a runtime, also on a machine that is not idle. `SINEW_CONNECTION_GAP_MS=10` has them come at that rate by the clock too, in 20 s.
#[test]
fn connections_spread_over_workers() {
    const CONNECTIONS: usize = 1000;
    let gap_ms = std::env::var("SINEW_CONNECTION_GAP_MS").ok().map_or(0, |ms| ms.parse().expect("SINEW_CONNECTION_GAP_MS is a number"));
    // Both ends are here.
    make_room(2 * CONNECTIONS as libc::rlim_t + 200);
    for io in DRIVERS {
        let runtime = Runtime::builder().workers(2).io(io).build().unwrap();
        let addr = runtime.run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap();
            sinew::spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    sinew::spawn(move || {
                        let mut byte = [0];
                        while (&stream).read(&mut byte).is_ok_and(|n| n == 1) {
                            let _ = (&stream).write_all(&byte);
                        }
                    });
                }
            });
            addr
        });
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(gap_ms));
                until(|| runtime.metrics().workers.iter().all(|worker| worker.sleeping));
                let mut client = std::net::TcpStream::connect(addr).unwrap();
                client.write_all(b"x").unwrap();
                client.read_exact(&mut [0; 1]).unwrap();
                client
            })
            .collect();
        let settled: Vec<usize> = runtime.metrics().workers.iter().map(|worker| worker.settled).collect();
        assert!(settled.iter().sum::<usize>() >= CONNECTIONS, "{io:?}: {settled:?}");
        let mean = settled.iter().sum::<usize>() as f64 / settled.len() as f64;
        let most = *settled.iter().max().unwrap() as f64;
        assert!(most / mean <= 1.2, "{io:?}: {settled:?}");
        drop(clients);
    }
}

/// Lets this process have as many open descriptors.
fn make_room(count: libc::rlim_t) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit outlives the calls.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_cur.max(count);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0, "{count} descriptors are more than the system allows");
    }
}

/// Somebody closes descriptors that are not his, the workers' among them: the process ends with a line that says so, and does not spin.
#[test]
fn a_source_that_was_closed_is_noticed() {
    const NAME: &str = "a_source_that_was_closed_is_noticed";
    if !is_child(NAME) {
        for io in ["uring", "epoll"] {
            let child = in_child(NAME, &[("SINEW_IO", io)]);
            let said = String::from_utf8_lossy(&child.stderr);
            assert!(!child.status.success() && said.contains("lost its source of I/O"), "{io}: {said}");
        }
        return;
    }
    Runtime::builder().workers(1).build().unwrap().run(|| {
        let (near, far) = UnixStream::pair().unwrap();
        let reader = sinew::spawn(move || (&far).read(&mut [0; 1]));
        sinew::yield_now();
        // SAFETY: not at all; that is the point.
        unsafe { libc::close_range(3, !0, 0) };
        std::mem::forget((near, reader));
        sinew::sleep(Duration::from_millis(10));
    });
}
