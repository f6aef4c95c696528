//! Sockets where a hostile reviewer looked: short reads that are not the end, queues nothing tells of, clones, regions, huge buffers.

mod common;

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::pair;
use sinew::net::unix::{UnixDatagram, UnixListener, UnixStream};
use sinew::net::{TcpListener, TcpStream, UdpSocket};
use sinew::{Io, Runtime};

/// Runs `f` as a fiber on each driver, with one worker.
fn on_both(f: impl Fn() + Send + Sync) {
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(1).io(io).build().expect("a runtime");
        runtime.run(&f);
        runtime.shutdown_timeout(Duration::from_secs(10)).unwrap_or_else(|left| panic!("{io:?}: {left:?}"));
    }
}

/// Sends without suspending.
fn send(fd: &impl AsRawFd, bytes: &[u8], flags: libc::c_int) {
    // SAFETY: the bytes outlive the call.
    let sent = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    assert_eq!(sent, bytes.len() as isize, "{}", io::Error::last_os_error());
}

/// Sends one byte with a descriptor, without suspending.
fn send_with_descriptor(fd: &impl AsRawFd, passed: &impl AsRawFd) {
    let mut byte = [b'f'];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut room = [0u64; 4];
    // SAFETY: all that the message points to outlives the call; there is room for one descriptor.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = room.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(passed.as_raw_fd());
        assert_eq!(libc::sendmsg(fd.as_raw_fd(), &raw const message, 0), 1, "{}", io::Error::last_os_error());
    }
}

/// Switches between fibers of this runtime, so far: who spins switches thousands of times.
fn switches() -> u64 {
    sinew::metrics().workers.iter().map(|worker| worker.switches).sum()
}

/// Reads until `wanted` bytes have come, or for too long.
fn read_all(mut from: impl Read, wanted: usize) -> Vec<u8> {
    let mut got = Vec::new();
    let read = sinew::timeout(Duration::from_secs(3), || {
        while got.len() < wanted {
            let mut buf = [0; 64];
            let Ok(n) = from.read(&mut buf) else { break };
            got.extend_from_slice(&buf[..n]);
        }
    });
    assert!(read.is_ok(), "stuck after {:?}", String::from_utf8_lossy(&got));
    got
}

#[test]
fn a_read_that_stops_at_urgent_data_is_not_the_last() {
    on_both(|| {
        let (near, far) = pair();
        let reader = sinew::spawn(move || read_all(near, 5));
        sinew::sleep(Duration::from_millis(2));
        send(&far, b"abc", 0);
        send(&far, b"!", libc::MSG_OOB);
        send(&far, b"de", 0);
        assert_eq!(reader.join().unwrap(), b"abcde");
    });
}

#[test]
fn a_read_that_stops_at_a_passed_descriptor_is_not_the_last() {
    on_both(|| {
        let (near, far) = UnixStream::pair().unwrap();
        let reader = sinew::spawn(move || read_all(near, 4));
        sinew::sleep(Duration::from_millis(2));
        send_with_descriptor(&far, &io::stdin());
        send(&far, b"abc", 0);
        assert_eq!(reader.join().unwrap(), b"fabc");
    });
}

#[test]
fn urgent_data_alone_is_nothing_to_read_and_wakes_nobody() {
    let wait = || {
        let (near, far) = pair();
        send(&far, b"!", libc::MSG_OOB);
        near.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
        let before = switches();
        let _ = near.peek(&mut [0; 8]).unwrap_err();
        let used = switches() - before;
        assert!(used < 100, "{used} switches in one wait");
    };
    on_both(wait);
}

#[test]
fn a_region_reads_what_is_there() {
    on_both(|| {
        let (mut near, far) = pair();
        send(&far, b"one", 0);
        assert_eq!(near.read(&mut [0; 64]).unwrap(), 3);
        send(&far, b"two", 0);
        assert_eq!(sinew::no_suspend(|| near.read(&mut [0; 64])).unwrap(), 3);
    });
}

#[test]
fn a_refusal_to_wait_names_the_caller() {
    on_both(|| {
        let (mut near, _far) = pair();
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sinew::no_suspend(|| near.read(&mut [0; 8]).is_ok())));
        let message = refused.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains(&format!("a call at {}", file!())), "{message}");
    });
}

#[test]
fn a_datagram_to_a_full_queue_is_sent_when_there_is_room() {
    let dir = std::env::temp_dir().join(format!("sinew-net-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    on_both(|| {
        let path = dir.join("queue");
        let _ = std::fs::remove_file(&path);
        let to = UnixDatagram::bind(&path).unwrap();
        let from = UnixDatagram::unbound().unwrap();
        // By others: what is taken of ours wakes us. By several: each may have so much under way.
        let mut others = Vec::new();
        loop {
            let other = std::os::unix::net::UnixDatagram::unbound().unwrap();
            other.set_nonblocking(true).unwrap();
            let sent = (0..).take_while(|_| other.send_to(b"x", &path).is_ok()).count();
            others.push(other);
            if sent == 0 {
                break;
            }
        }
        let sender = sinew::spawn({
            let path = path.clone();
            move || sinew::timeout(Duration::from_secs(3), || from.send_to(b"last", &path))
        });
        let before = switches();
        sinew::sleep(Duration::from_millis(400));
        let used = switches() - before;
        assert!(used < 200, "{used} switches in 400 ms");
        let mut buf = [0; 8];
        while to.recv(&mut buf).unwrap() != 4 {}
        assert_eq!(sender.join().unwrap().expect("it hangs").unwrap(), 4);
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_full_abstract_listener_blocks_no_worker() {
    on_both(|| {
        let name = format!("sinew-net-{}-{:?}", std::process::id(), std::time::Instant::now());
        let addr = std::os::unix::net::SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let listener = std::os::unix::net::UnixListener::bind_addr(&addr).unwrap();
        // SAFETY: no memory is involved.
        unsafe { libc::listen(listener.as_raw_fd(), 0) };
        let first = UnixStream::connect_addr(&addr).unwrap();
        let second = sinew::spawn({
            let addr = addr.clone();
            move || UnixStream::connect_addr(&addr).map(drop)
        });
        let acceptor = sinew::spawn(move || {
            sinew::sleep(Duration::from_millis(2));
            let listener = UnixListener::from(listener);
            (0..2).for_each(|_| drop(listener.accept().unwrap()));
        });
        second.join().unwrap().unwrap();
        acceptor.join().unwrap();
        drop(first);
    });
}

#[test]
fn a_clone_of_what_std_has_got_blocks_no_worker() {
    on_both(|| {
        let (near, mut far) = pair();
        let clone = near.try_clone().unwrap();
        let std = std::net::TcpStream::from(near);
        let reader = sinew::spawn(move || read_all(clone, 3));
        let writer = sinew::spawn(move || far.write_all(b"abc"));
        assert_eq!(reader.join().unwrap(), b"abc");
        writer.join().unwrap().unwrap();
        drop(OwnedFd::from(std));
    });
}

#[test]
fn buffers_of_gigabytes_are_buffers() {
    on_both(|| {
        let (mut near, mut far) = pair();
        far.write_all(b"x").unwrap();
        assert_eq!(near.read(&mut [0; 8]).unwrap(), 1);
        let reader = sinew::spawn(move || {
            let mut buf = vec![0; 3 << 30];
            let read = near.read(&mut buf);
            (read, buf[0])
        });
        sinew::sleep(Duration::from_millis(5));
        far.write_all(b"hello").unwrap();
        let (read, first) = reader.join().unwrap();
        assert_eq!((read.unwrap(), first), (5, b'h'));
    });
}

#[test]
fn a_huge_write_is_a_write() {
    on_both(|| {
        let (mut near, mut far) = pair();
        let reader = sinew::spawn(move || far.read(&mut [0; 64]));
        sinew::yield_now();
        let buf = vec![0; 3 << 30];
        assert!(near.write(&buf).unwrap() > 0);
        reader.join().unwrap().unwrap();
    });
}

#[test]
fn io_works_where_fibers_end() {
    struct Reads(Arc<UnixStream>);
    impl Drop for Reads {
        fn drop(&mut self) {
            let mut buf = [0; 1];
            (&*self.0).read_exact(&mut buf).unwrap();
            (&*self.0).write_all(&buf).unwrap();
        }
    }
    on_both(|| {
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = Arc::new(near);
        // While it unwinds.
        let fiber = sinew::spawn({
            let reads = Reads(near.clone());
            move || {
                let _reads = reads;
                std::panic::resume_unwind(Box::new(1));
            }
        });
        sinew::sleep(Duration::from_millis(1));
        far.write_all(b"a").unwrap();
        assert!(fiber.join().is_err());
        // In the drop of an outcome that nobody takes.
        drop(sinew::spawn({
            let reads = Reads(near.clone());
            move || reads
        }));
        sinew::sleep(Duration::from_millis(1));
        far.write_all(b"b").unwrap();
        let mut buf = [0; 2];
        far.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"ab");
    });
}

#[test]
fn io_works_in_a_destructor_of_a_thread() {
    struct Reads(UnixStream);
    impl Drop for Reads {
        fn drop(&mut self) {
            let mut buf = [0; 1];
            self.0.read_exact(&mut buf).unwrap();
            self.0.write_all(&buf).unwrap();
        }
    }
    std::thread_local!(static READS: std::cell::RefCell<Option<Reads>> = const { std::cell::RefCell::new(None) });
    let (near, mut far) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        READS.with(|reads| *reads.borrow_mut() = Some(Reads(near)));
        sinew::yield_now();
    });
    far.write_all(b"a").unwrap();
    let mut buf = [0; 1];
    far.read_exact(&mut buf).unwrap();
    thread.join().unwrap();
}

/// The first I/O of a process meets a shortage of descriptors: that settles nothing.
#[test]
fn a_shortage_of_descriptors_is_no_refusal_of_the_ring() {
    const NAME: &str = "a_shortage_of_descriptors_is_no_refusal_of_the_ring";
    if !common::is_child(NAME) {
        let child = common::in_child(NAME, &[]);
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && !said.contains("I/O goes by epoll"), "{said}");
        return;
    }
    Runtime::builder().workers(1).io(Io::Auto).build().unwrap().run(|| {
        let (near, far) = UnixStream::pair().unwrap();
        let hogs: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        assert!(sinew::timeout(Duration::from_millis(1), || (&near).read(&mut [0; 8]).is_err()).is_err());
        assert_eq!(sinew::metrics().workers[0].io, None, "it had a descriptor to wait with");
        drop(hogs);
        send(&far, b"abc", 0);
        assert_eq!(read_all(&near, 3), b"abc");
        assert_eq!(sinew::timeout(Duration::from_millis(1), || (&near).read(&mut [0; 8]).is_err()).ok(), None);
    });
}

/// Fibers that are always ready, and compute between their yields: a socket waits for a round of them or two, and not for hundreds of turns.
#[test]
fn fibers_that_compute_do_not_hide_a_socket() {
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(1).io(io).build().unwrap();
        let longest = runtime.run(|| {
            let (near, far) = UnixStream::pair().unwrap();
            let (rounds, read_at) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let reader = sinew::spawn({
                let (rounds, read_at) = (rounds.clone(), read_at.clone());
                move || {
                    while (&far).read(&mut [0; 1]).unwrap() == 1 {
                        read_at.store(rounds.load(Relaxed), Relaxed);
                    }
                }
            });
            let crowd: Vec<_> = (0..50)
                .map(|_| {
                    let rounds = rounds.clone();
                    sinew::spawn(move || {
                        while !sinew::cancelled() {
                            let begun = Instant::now();
                            while begun.elapsed() < Duration::from_micros(150) {}
                            rounds.fetch_add(1, Relaxed);
                            sinew::yield_now();
                        }
                    })
                })
                .collect();
            let waited = (0..8u64).map(|_| {
                let begun_at = rounds.load(Relaxed);
                common::until(|| rounds.load(Relaxed) > begun_at + 110);
                send(&near, b"x", 0);
                let sent_at = rounds.load(Relaxed);
                common::until(|| read_at.load(Relaxed) >= sent_at);
                read_at.load(Relaxed) - sent_at
            });
            let longest = waited.max().unwrap();
            crowd.iter().for_each(|fiber| fiber.cancel());
            drop(near);
            reader.join().unwrap();
            longest
        });
        assert!(longest <= 110, "{io:?}: {longest} rounds between a write and the read");
    }
}

/// A socket that a fiber of a ring, one of epoll and a thread read from at once: all that is written is read by one of them.
#[test]
fn readers_of_both_drivers_and_a_thread_share_a_socket() {
    const BYTES: u64 = 200_000;
    let (near, far) = UnixStream::pair().unwrap();
    let (far, got) = (Arc::new(far), Arc::new(AtomicU64::new(0)));
    let runtimes = [Io::Uring, Io::Epoll].map(|io| Runtime::builder().workers(1).io(io).build().unwrap());
    let read = |far: Arc<UnixStream>, got: Arc<AtomicU64>| {
        move || {
            let mut buf = [0; 100];
            loop {
                match (&*far).read(&mut buf).unwrap() {
                    0 => break,
                    n => got.fetch_add(n as u64, Relaxed),
                };
            }
        }
    };
    let fibers: Vec<_> = runtimes.iter().flat_map(|rt| [rt, rt]).map(|rt| rt.spawn(read(far.clone(), got.clone()))).collect();
    let thread = std::thread::spawn(read(far.clone(), got.clone()));
    let mut sent = 0;
    while sent < BYTES {
        let n = 1 + sent % 37;
        (&near).write_all(&[1; 64][..n as usize]).unwrap();
        sent += n;
        if sent % 5 == 0 {
            // Now and then they have taken all, and wait.
            common::until(|| got.load(Relaxed) == sent);
        }
    }
    near.shutdown(std::net::Shutdown::Write).unwrap();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    thread.join().unwrap();
    assert_eq!(got.load(Relaxed), sent);
}

/// Many accept at one listener, on two workers; some give up all the time, in the moment in which they are woken perhaps. No connection is left without one who comes for it, and few run for it.
#[test]
fn a_crowd_at_a_listener_takes_every_connection() {
    const CONNECTIONS: usize = 500;
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(2).io(io).build().unwrap();
        runtime.run(|| {
            let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
            let addr = listener.local_addr().unwrap();
            let crowd: Vec<_> = (0..60)
                .map(|i| {
                    let listener = listener.clone();
                    sinew::spawn(move || {
                        while !sinew::cancelled() {
                            match i % 3 {
                                0 => drop(sinew::timeout(Duration::from_micros(50 + i), || listener.accept())),
                                _ => drop(listener.accept()),
                            }
                        }
                    })
                })
                .collect();
            for step in 0..CONNECTIONS / 2 {
                // A time-out for each, as all of them take long on a machine that is busy.
                let late = sinew::timeout(Duration::from_secs(20), || {
                    // Two at once: one edge for both, perhaps.
                    let both = [(); 2].map(|()| TcpStream::connect(addr).unwrap());
                    both.iter().for_each(|mut stream| drop(stream.read(&mut [0; 1])));
                });
                assert!(late.is_ok(), "{io:?}: a connection was left in step {step}");
            }
            crowd.iter().for_each(|fiber| fiber.cancel());
            crowd.into_iter().for_each(|fiber| fiber.join().unwrap());
        });
    }
}

/// The kernel tells the first of those who accept of a connection, who is cancelled before he knows: he takes it, or another does.
#[test]
fn a_connection_is_not_lost_with_an_acceptor_that_is_cancelled() {
    on_both(|| {
        for round in 0..20 {
            let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
            let addr = listener.local_addr().unwrap();
            let taken = Arc::new(AtomicU64::new(0));
            let acceptors = [(); 2].map(|()| {
                let (listener, taken) = (listener.clone(), taken.clone());
                let fiber = sinew::spawn(move || listener.accept().map(|_| taken.fetch_add(1, Relaxed)));
                // So it is asked of the kernel before the next.
                sinew::sleep(Duration::from_millis(1));
                fiber
            });
            let _stream = std::net::TcpStream::connect(addr).unwrap();
            acceptors[0].cancel();
            let begun = Instant::now();
            while taken.load(Relaxed) == 0 && begun.elapsed() < Duration::from_secs(5) {
                sinew::sleep(Duration::from_millis(1));
            }
            acceptors[1].cancel();
            acceptors.into_iter().for_each(|fiber| drop(fiber.join().unwrap()));
            assert_eq!(taken.load(Relaxed), 1, "round {round}: the connection was left");
        }
    });
}

/// A thousand call `accept`, and one after the other `connect`s: a connection costs the switches of two of them.
fn few_are_woken(accept: impl Fn() -> bool + Clone + Send + 'static, connect: impl Fn()) {
    let crowd: Vec<_> = (0..1000)
        .map(|_| {
            let accept = accept.clone();
            sinew::spawn(move || while accept() {})
        })
        .collect();
    sinew::sleep(Duration::from_millis(20));
    let before = switches();
    (0..200).for_each(|_| connect());
    let used = switches() - before;
    assert!(used < 200 * 50, "{used} switches for 200 connections");
    crowd.iter().for_each(|fiber| fiber.cancel());
}

#[test]
fn a_connection_does_not_wake_a_crowd() {
    on_both(|| {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let addr = listener.local_addr().unwrap();
        few_are_woken(move || listener.accept().is_ok(), || drop(TcpStream::connect(addr).unwrap().read(&mut [0; 1])));

        let name = format!("sinew-crowd-{}-{:?}", std::process::id(), Instant::now());
        let addr = std::os::unix::net::SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let listener = Arc::new(UnixListener::bind_addr(&addr).unwrap());
        few_are_woken(move || listener.accept().is_ok(), || drop(UnixStream::connect_addr(&addr).unwrap().read(&mut [0; 1])));
    });
}

/// Lets `f` wait for so long that it hangs, if it does.
fn in_time<T>(f: impl FnOnce() -> T) -> T {
    sinew::timeout(Duration::from_secs(20), f).unwrap_or_else(|_| panic!("it hangs"))
}

fn shut_down(socket: &impl AsRawFd, how: libc::c_int) {
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::shutdown(socket.as_raw_fd(), how) }, 0, "{}", io::Error::last_os_error());
}

#[test]
fn a_datagram_socket_whose_reads_are_shut_down_is_at_its_end() {
    common::everywhere(|| {
        let (near, far) = UnixDatagram::pair().unwrap();
        far.send(b"last").unwrap();
        near.shutdown(std::net::Shutdown::Read).unwrap();
        let mut buf = [0; 8];
        assert_eq!(in_time(|| near.recv(&mut buf)).unwrap(), 4);
        for _ in 0..3 {
            assert_eq!(in_time(|| near.recv(&mut buf)).unwrap(), 0);
            let (length, from) = in_time(|| near.recv_from(&mut buf)).unwrap();
            assert!(length == 0 && from.is_unnamed(), "{length} from {from:?}");
        }
        near.set_nonblocking(true).unwrap();
        assert_eq!(near.recv(&mut buf).unwrap_err().kind(), io::ErrorKind::WouldBlock);

        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(near.local_addr().unwrap()).unwrap();
        shut_down(&near, libc::SHUT_RD);
        assert_eq!(in_time(|| near.recv(&mut buf)).unwrap(), 0);
        assert_eq!(in_time(|| near.peek(&mut buf)).unwrap(), 0);
        assert_eq!(in_time(|| near.recv_from(&mut buf)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    });
}

/// Several wait when the end comes, and one comes after it: to a socket that epoll has told of already.
#[test]
fn the_end_of_a_datagram_socket_wakes_all_who_wait() {
    common::everywhere(|| {
        for round in 0..20 {
            let (near, far) = UnixDatagram::pair().unwrap();
            let near = Arc::new(near);
            let begun = Arc::new(AtomicU64::new(0));
            let receive = |on: common::On| {
                let (near, begun) = (near.clone(), begun.clone());
                on.start(move || {
                    begun.fetch_add(1, Relaxed);
                    in_time(|| while near.recv(&mut [0; 8]).unwrap() != 0 {})
                })
            };
            let receivers: Vec<_> = (0..4).map(|i| receive(common::On::by_turns(i))).collect();
            common::until(|| begun.load(Relaxed) == 4);
            (0..round).for_each(|_| sinew::yield_now());
            far.send(b"x").unwrap();
            (0..round).for_each(|_| sinew::yield_now());
            near.shutdown(std::net::Shutdown::Read).unwrap();
            receivers.into_iter().for_each(|end| end());
            receive(common::On::Fiber)();
        }
    });
}

#[test]
fn accept_at_a_unix_listener_that_is_shut_down_is_an_error() {
    common::everywhere(|| {
        for round in 0..20 {
            let name = format!("sinew-shut-{}-{:?}", std::process::id(), std::time::Instant::now());
            let addr = std::os::unix::net::SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
            let listener = Arc::new(UnixListener::bind_addr(&addr).unwrap());
            let accept = || {
                let listener = listener.clone();
                sinew::spawn(move || in_time(|| listener.accept()).unwrap_err().raw_os_error())
            };
            let acceptors = [accept(), accept()];
            (0..round).for_each(|_| sinew::yield_now());
            shut_down(&*listener, if round % 2 == 0 { libc::SHUT_RDWR } else { libc::SHUT_RD });
            acceptors.into_iter().for_each(|acceptor| assert_eq!(acceptor.join().unwrap(), Some(libc::EINVAL)));
            assert_eq!(in_time(|| listener.accept()).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
    });
}

#[test]
fn a_number_that_is_no_descriptor_is_not_ready() {
    common::everywhere(|| {
        // SAFETY: not that of an open descriptor, nor of one that anybody opens: it is only asked about.
        let nothing = unsafe { std::os::fd::BorrowedFd::borrow_raw(1 << 29) };
        for interest in [sinew::io::Interest::Readable, sinew::io::Interest::Writable] {
            assert_eq!(sinew::io::poll(nothing, interest).unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
    });
}

/// Counted in turns of another fiber.
#[test]
fn one_that_polls_what_is_ready_lets_others_run() {
    on_both(|| {
        let (near, _far) = UnixStream::pair().unwrap();
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
        (0..20_000).for_each(|_| sinew::io::poll(&near, sinew::io::Interest::Writable).unwrap());
        assert!(turns.load(Relaxed) >= 20, "{} turns in 20,000 calls", turns.load(Relaxed));
        other.cancel();
        other.join().unwrap();
    });
}

/// As above with buffers of several parts, and with a peek.
#[test]
fn several_buffers_and_a_peek_of_what_std_has_got_block_no_worker() {
    on_both(|| {
        let (near, far) = pair();
        let (mut reader, peeker, mut writer) = (near.try_clone().unwrap(), near.try_clone().unwrap(), near.try_clone().unwrap());
        let std = std::net::TcpStream::from(near);
        let reading = sinew::spawn(move || {
            let (mut one, mut two) = ([0; 2], [0; 2]);
            let read = reader.read_vectored(&mut [io::IoSliceMut::new(&mut one), io::IoSliceMut::new(&mut two)]).unwrap();
            ([one, two].concat(), read)
        });
        // It must not wait behind one that blocks the only worker.
        sinew::yield_now();
        send(&far, b"abc", 0);
        assert_eq!(reading.join().unwrap(), (b"abc\0".to_vec(), 3));
        let peeking = sinew::spawn(move || peeker.peek(&mut [0; 8]));
        sinew::yield_now();
        send(&far, b"de", 0);
        assert_eq!(peeking.join().unwrap().unwrap(), 2);
        writer.read_exact(&mut [0; 2]).unwrap();
        let writing = sinew::spawn(move || {
            let part = [7; 10_000];
            (0..400).map(|_| writer.write_vectored(&[io::IoSlice::new(&part); 2]).unwrap()).sum::<usize>()
        });
        sinew::yield_now();
        drop(std);
        let mut far = far;
        let read = io::copy(&mut far, &mut io::sink()).unwrap();
        assert_eq!(writing.join().unwrap() as u64, read);
    });
}

/// As above with datagrams, to and from addresses.
#[test]
fn datagrams_of_a_socket_that_std_has_got_block_no_worker() {
    on_both(|| {
        let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let (peeker, receiver, to) = (near.try_clone().unwrap(), near.try_clone().unwrap(), near.local_addr().unwrap());
        let std = std::net::UdpSocket::from(near);
        let peeking = sinew::spawn(move || peeker.peek_from(&mut [0; 8]));
        let receiving = sinew::spawn(move || (receiver.recv_from(&mut [0; 8]), receiver.recv_from(&mut [0; 8]).map(|_| receiver)));
        // It must not wait behind one that blocks the only worker.
        sinew::yield_now();
        far.send_to(b"abc", to).unwrap();
        assert_eq!(peeking.join().unwrap().unwrap(), (3, far.local_addr().unwrap()));
        far.send_to(b"de", to).unwrap();
        let (first, second) = receiving.join().unwrap();
        assert_eq!(first.unwrap(), (3, far.local_addr().unwrap()));
        second.unwrap().send_to(b"f", far.local_addr().unwrap()).unwrap();
        assert_eq!(far.recv_from(&mut [0; 8]).unwrap(), (1, to));
        drop(std);

        let name = format!("sinew-std-{}-{:?}", std::process::id(), Instant::now());
        let addr = std::os::unix::net::SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let (to, from) = (UnixDatagram::bind_addr(&addr).unwrap(), UnixDatagram::unbound().unwrap());
        let (receiver, sender) = (to.try_clone().unwrap(), from.try_clone().unwrap());
        let std = [to, from].map(std::os::unix::net::UnixDatagram::from);
        let sending = sinew::spawn(move || (0..2_000).try_for_each(|_| sender.send_to_addr(b"abc", &addr).map(drop)));
        // Until the queue is full, if it can be; and it is not this fiber that is blocked.
        sinew::yield_now();
        for _ in 0..2_000 {
            let (length, from) = receiver.recv_from(&mut [0; 8]).unwrap();
            assert!(length == 3 && from.is_unnamed(), "{from:?}");
        }
        sending.join().unwrap().unwrap();
        drop(std);
    });
}

/// Whom datagrams come from, and what comes of sending to what is no address.
#[test]
fn addresses_of_unix_datagrams_are_those_of_std() {
    use std::os::unix::net::{SocketAddr, UnixDatagram as Std};
    let dir = std::env::temp_dir().join(format!("sinew-addresses-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    common::everywhere(|| {
        let path = dir.join("socket");
        let name = format!("sinew-addresses-{}-{:?}", std::process::id(), Instant::now());
        let abstract_name = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let (ours, theirs) = (UnixDatagram::unbound().unwrap(), Std::unbound().unwrap());
        let _ = std::fs::remove_file(&path);
        let (at_path, at_name) = (UnixDatagram::bind(&path).unwrap(), Std::bind_addr(&abstract_name).unwrap());

        at_name.send_to(b"x", &path).unwrap();
        let (_, from) = at_path.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(from.as_abstract_name(), Some(name.as_bytes()));
        at_path.send_to_addr(b"x", &abstract_name).unwrap();
        assert_eq!(at_name.recv_from(&mut [0; 8]).unwrap().1.as_pathname(), Some(&*path));
        at_path.send_to(b"x", &path).unwrap();
        assert_eq!(at_path.recv_from(&mut [0; 8]).unwrap().1.as_pathname(), Some(&*path));
        ours.send_to_addr(b"x", &SocketAddr::from_pathname(&path).unwrap()).unwrap();
        assert!(at_path.recv_from(&mut [0; 8]).unwrap().1.is_unnamed());

        let long = |length| "x".repeat(length);
        for path in ["", "a\0b", "\0a", "/nobody/is/here", "/tmp", &long(106), &long(107), &long(108), &long(300)] {
            let [ours, theirs] = [ours.send_to(b"x", path), theirs.send_to(b"x", path)].map(|sent| sent.unwrap_err());
            assert_eq!((ours.kind(), ours.raw_os_error()), (theirs.kind(), theirs.raw_os_error()), "{path:?}");
            let [ours, theirs] = [UnixStream::connect(path).map(drop), std::os::unix::net::UnixStream::connect(path).map(drop)];
            let [ours, theirs] = [ours, theirs].map(|connected| connected.unwrap_err());
            assert_eq!((ours.kind(), ours.raw_os_error()), (theirs.kind(), theirs.raw_os_error()), "{path:?}");
        }
        let nameless = at_path.local_addr().and_then(|_| ours.local_addr()).unwrap();
        let [ours, theirs] = [ours.send_to_addr(b"x", &nameless), theirs.send_to_addr(b"x", &nameless)].map(|sent| sent.unwrap_err());
        assert_eq!(ours.raw_os_error(), theirs.raw_os_error());
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

/// No part, parts without bytes, and more parts than the kernel takes at once.
#[test]
fn few_and_many_buffers() {
    common::everywhere(|| {
        let (mut near, mut far) = pair();
        assert_eq!(near.read_vectored(&mut []).unwrap(), 0);
        assert_eq!(near.read_vectored(&mut [io::IoSliceMut::new(&mut []), io::IoSliceMut::new(&mut [])]).unwrap(), 0);
        assert_eq!(near.write_vectored(&[]).unwrap(), 0);
        let parts = [io::IoSlice::new(b"x"); 3000];
        let sent = near.write_vectored(&parts).unwrap();
        assert!((1..=3000).contains(&sent), "{sent}");
        let mut bytes = [0; 3000];
        far.read_exact(&mut bytes[..sent]).unwrap();
        near.write_all(&[b'y'; 3000]).unwrap();
        let mut parts: Vec<_> = bytes.chunks_mut(1).map(io::IoSliceMut::new).collect();
        assert!((1..=3000).contains(&far.read_vectored(&mut parts).unwrap()));
        assert_eq!(bytes[0], b'y');
    });
}

/// Claim: a loop over connections that passes over errors, as that of std's documentation, ends when its fiber is cancelled; it is told so once.
#[test]
fn a_loop_over_connections_ends_with_its_fiber() {
    fn errors<T>(incoming: impl Iterator<Item = io::Result<T>>) -> usize {
        incoming.take(1_000).filter(Result::is_err).count()
    }
    on_both(|| {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let path = std::os::unix::net::SocketAddr::from_abstract_name(format!("sinew-incoming-{}", sinew::current().id())).unwrap();
        let unix = UnixListener::bind_addr(&path).unwrap();
        for looping in [sinew::spawn(move || errors(tcp.incoming())), sinew::spawn(move || errors(unix.incoming()))] {
            // Once it waits, or before: both must end.
            sinew::yield_now();
            looping.cancel();
            assert_eq!(looping.join().unwrap(), 1);
        }
    });
}

/// Claim: a deadline ends a loop over connections as a cancel does; but an iterator that was told of it, and is asked again when the deadline no longer counts, goes on.
#[test]
fn connections_come_again_after_a_deadline() {
    on_both(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut incoming = listener.incoming();
        let late = sinew::timeout(Duration::from_millis(1), || assert!(incoming.next().unwrap().is_err()));
        assert!(late.is_err());
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(incoming.next().unwrap().is_ok());
        let late = sinew::timeout(Duration::from_millis(1), || incoming.by_ref().take(1_000).count());
        assert!(late.is_err());
        let after = sinew::timeout(Duration::from_millis(1), || incoming.next().is_none());
        assert_eq!(after, Ok(true), "it has ended, and stays so");
    });
}

/// Claim: to build a runtime disturbs no call of the thread that does so. By calls that are not begun anew when they are interrupted, as all that have a time-out.
#[test]
fn a_runtime_that_is_built_interrupts_nobody() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    for io in [Io::Uring, Io::Epoll] {
        for _ in 0..10 {
            let runtime = Runtime::builder().workers(1).io(io).build().unwrap();
            assert_eq!(socket.recv(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            drop(runtime);
        }
    }
}

/// Claim: a worker that sleeps in its ring, where a read waits, is no wait for a disk: else each idle worker counts as one, and an idle machine looks busy in `top`. (Linux 6.15 on.)
#[test]
fn a_worker_that_sleeps_waits_for_no_disk() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) < (Some(6), Some(15)) {
        return;
    }
    // Of the whole machine: others may wait for one now and then. Where somebody always does, nothing can be seen of us. So many times in a row: a worker may get up for a moment.
    let nobody_waits = || (0..50).all(|_| std::fs::read_to_string("/proc/stat").unwrap().lines().any(|line| line == "procs_blocked 0"));
    if !(0..1_000).any(|_| nobody_waits()) {
        return;
    }
    let runtime = Runtime::builder().workers(1).io(Io::Uring).build().unwrap();
    let (mut near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let reader = runtime.spawn(move || UnixStream::from(far).read(&mut [0; 8]));
    common::poll_until("the worker to sleep in its ring", || {
        let worker = &runtime.metrics().workers[0];
        worker.sleeping && worker.io == Some(Io::Uring) && worker.ready == 0
    });
    common::poll_until("a time in which nobody waits for a disk", nobody_waits);
    near.write_all(b"x").unwrap();
    assert_eq!(reader.join().unwrap().unwrap(), 1);
}

/// Tries until something comes, so often at most: a fiber of the same worker is to bring it.
fn tried<T>(mut call: impl FnMut() -> io::Result<T>) -> T {
    const TRIES_MAX: usize = 1000;
    for _ in 0..TRIES_MAX {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done.unwrap(),
        }
    }
    panic!("nothing came in {TRIES_MAX} tries");
}

/// Claim: a call that does not wait, or whose time-out is over at once, lets others run from time to time, also where it finds nothing: a loop of them does not keep those from running that it waits for.
#[test]
fn a_loop_of_calls_that_find_nothing_holds_nobody() {
    on_both(|| {
        let (mut near, mut far) = pair();
        near.set_nonblocking(true).unwrap();
        let writer = sinew::spawn(move || far.write_all(b"x").map(|()| far));
        assert_eq!(tried(|| near.read(&mut [0; 8])), 1);
        writer.join().unwrap().unwrap();

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let client = sinew::spawn(move || TcpStream::connect(addr).unwrap());
        tried(|| listener.accept());
        client.join().unwrap();

        // The queue of one that has not read is full; one socket each for the two sides of the loop.
        let path = std::env::temp_dir().join(format!("sinew-test-full-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let (sends, receives) = (UnixDatagram::unbound().unwrap(), UnixDatagram::bind(&path).unwrap());
        sends.set_nonblocking(true).unwrap();
        while sends.send_to(b"x", &path).is_ok() {}
        let receiver = sinew::spawn(move || receives.recv(&mut [0; 8]).map(|_| receives));
        tried(|| sends.send_to(b"x", &path));
        receiver.join().unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();

        let (mut near, mut far) = pair();
        send(&far, b"a", 0);
        assert_eq!(near.read(&mut [0; 8]).unwrap(), 1);
        near.set_read_timeout(Some(Duration::from_nanos(1))).unwrap();
        let writer = sinew::spawn(move || far.write_all(b"x").map(|()| far));
        assert_eq!(tried(|| near.peek(&mut [0; 8])), 1);
        assert_eq!(tried(|| near.read(&mut [0; 8])), 1);
        writer.join().unwrap().unwrap();
    });
}

/// The bytes that have come and were not read.
fn unread(stream: &TcpStream) -> libc::c_int {
    let mut bytes = 0;
    // SAFETY: the number outlives the call.
    assert_eq!(unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &mut bytes) }, 0);
    bytes
}

/// Claim: what is there is found, however short the time-out, though the last read had left nothing.
#[test]
fn what_is_there_is_found_though_the_time_out_is_over() {
    on_both(|| {
        let (mut near, far) = pair();
        near.set_read_timeout(Some(Duration::from_nanos(1))).unwrap();
        for _ in 0..3 {
            let drains = |near: &mut TcpStream| {
                send(&far, b"one", 0);
                assert_eq!(tried(|| near.read(&mut [0; 64])), 3);
                send(&far, b"three", 0);
                common::poll_until("five bytes to come", || unread(near) == 5);
            };
            drains(&mut near);
            assert_eq!(near.peek(&mut [0; 64]).unwrap(), 5);
            assert_eq!(near.read(&mut [0; 64]).unwrap(), 5);
            drains(&mut near);
            assert_eq!(near.read_vectored(&mut [io::IoSliceMut::new(&mut [0; 64])]).unwrap(), 5);
        }
    });
}
