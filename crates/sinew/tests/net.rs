//! Sockets: what std's do, for fibers and threads, on both drivers.

mod common;

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::held::Cast;
use common::{On, await_until, pair, poll_until, until};
use sinew::net::unix::{UnixDatagram, UnixListener, UnixStream};
use sinew::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use sinew::{Io, Runtime, scope};

/// Runs `f` as a fiber on each driver, with one worker and with two.
fn on_all(f: impl Fn() + Send + Sync) {
    for io in [Io::Uring, Io::Epoll] {
        for workers in [1, 2] {
            let runtime = Runtime::builder().workers(workers).io(io).build().expect("a runtime");
            runtime.run(&f);
            runtime.shutdown_timeout(Duration::from_secs(10)).unwrap_or_else(|left| panic!("{io:?}, {workers} workers: {left:?}"));
        }
    }
}

#[test]
fn what_is_written_is_read() {
    on_all(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = sinew::spawn(move || {
            for stream in listener.incoming().take(20) {
                let mut stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                sinew::spawn(move || {
                    let mut buf = [0; 1000];
                    loop {
                        match stream.read(&mut buf).unwrap() {
                            0 => break,
                            n => stream.write_all(&buf[..n]).unwrap(),
                        }
                    }
                });
            }
        });
        let clients: Vec<_> = (0..20u8)
            .map(|i| {
                sinew::spawn(move || {
                    let mut stream = TcpStream::connect(addr).unwrap();
                    stream.set_nodelay(true).unwrap();
                    for round in 0..50usize {
                        let sent = vec![i; 1 + round * 97 % 5000];
                        stream.write_all(&sent).unwrap();
                        let mut got = vec![0; sent.len()];
                        stream.read_exact(&mut got).unwrap();
                        assert_eq!(got, sent);
                    }
                    stream.shutdown(Shutdown::Write).unwrap();
                    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        server.join().unwrap();
    });
}

/// Claim: in a crowd, in which the ring is told of receives little by little, each byte is echoed once and in order, whether its reader waits for good, has a time-out that is over again and again, or is one of many that are cancelled.
#[test]
fn a_crowd_is_served_whoever_gives_up_meanwhile() {
    // A crowd for each of two workers, also in a program that is optimised.
    const CONNECTIONS: usize = 300;
    const ROUNDS: u8 = 20;
    on_all(|| {
        let (near, far): (Vec<_>, Vec<_>) = (0..CONNECTIONS).map(|_| std::os::unix::net::UnixStream::pair().unwrap()).unzip();
        let servers: Vec<_> = near
            .into_iter()
            .enumerate()
            .map(|(i, stream)| {
                let mut stream = UnixStream::from(stream);
                stream.set_read_timeout((i % 3 == 1).then_some(Duration::from_micros(50))).unwrap();
                sinew::spawn(move || {
                    let (mut byte, mut echoed) = ([0], 0);
                    loop {
                        match stream.read(&mut byte) {
                            Ok(1) => stream.write_all(&byte).unwrap(),
                            Err(error) if i % 3 == 1 => {
                                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                                sinew::yield_now();
                                continue;
                            }
                            ended => break (echoed, ended.map_err(|error| error.kind())),
                        }
                        echoed += 1;
                    }
                })
            })
            .collect();
        // All bytes of a round are there at once, written by a thread while the workers are held.
        let (asks, asked) = std::sync::mpsc::channel();
        let (tells, told) = std::sync::mpsc::channel();
        let client = std::thread::spawn(move || {
            for round in asked {
                far.iter().for_each(|mut stream| stream.write_all(&[round]).unwrap());
                tells.send(()).unwrap();
                for (i, mut stream) in far.iter().enumerate() {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    assert_eq!(byte, [round], "{i}");
                }
                tells.send(()).unwrap();
            }
        });
        for round in 0..ROUNDS {
            asks.send(round).unwrap();
            told.recv().unwrap();
            await_until("all are echoed", || told.try_recv().is_ok());
        }
        // These are told so, unless the end of the stream comes first.
        servers.iter().skip(2).step_by(3).for_each(|server| server.fiber().cancel());
        drop(asks);
        client.join().unwrap();
        for (i, server) in servers.into_iter().enumerate() {
            let (echoed, ended) = server.join().unwrap();
            assert_eq!(echoed, ROUNDS, "{i}");
            if i % 3 != 2 {
                assert_eq!(ended, Ok(0), "{i}");
            }
        }
    });
}

#[test]
fn a_read_that_waits_for_longer_than_its_time_out_fails_as_in_std() {
    on_all(|| {
        let (mut near, mut far) = pair();
        near.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let begun = Instant::now();
        assert_eq!(near.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(begun.elapsed() >= Duration::from_millis(5));
        far.write_all(b"x").unwrap();
        assert_eq!(near.read(&mut [0; 8]).unwrap(), 1);
        assert!(near.set_read_timeout(Some(Duration::ZERO)).is_err());
    });
}

#[test]
fn a_cancelled_read_ends_and_loses_nothing() {
    on_all(|| {
        let (near, mut far) = pair();
        let near = std::sync::Arc::new(near);
        let reader = sinew::spawn({
            let near = near.clone();
            move || (&*near).read(&mut [0; 8])
        });
        sinew::yield_now();
        reader.cancel();
        let error = reader.join().unwrap().unwrap_err();
        assert!(sinew::Cancelled::is_in(&error), "{error:?}");
        far.write_all(b"later").unwrap();
        let mut buf = [0; 5];
        (&*near).read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"later");
    });
}

#[test]
fn a_time_out_around_a_read_cuts_it_short() {
    on_all(|| {
        let (mut near, _far) = pair();
        let late = sinew::timeout(Duration::from_millis(2), || near.read(&mut [0; 8]).unwrap_err().kind());
        assert!(late.is_err());
    });
}

/// Claim: what cuts a read short, or does not, is the same where the last one took all there was, so that the next asks the ring before anything is tried.
#[test]
fn reads_that_ask_at_once_are_cut_short_as_all_are() {
    on_all(|| {
        let (near, mut far) = pair();
        let near = std::sync::Arc::new(near);
        let read = || (&*near).read(&mut [0; 8]);
        let mut drain = || {
            far.write_all(b"x").unwrap();
            assert_eq!(read().unwrap(), 1);
        };
        let begin = |shields: bool| {
            let (near, begun) = (near.clone(), std::sync::Arc::new(AtomicU64::new(0)));
            let reader = sinew::spawn({
                let begun = begun.clone();
                move || {
                    begun.store(1, Relaxed);
                    let read = || (&*near).read(&mut [0; 8]);
                    if shields { sinew::shield(read) } else { read() }
                }
            });
            until(|| begun.load(Relaxed) == 1);
            reader.cancel();
            reader
        };
        drain();
        assert!(sinew::timeout(Duration::from_millis(2), || read().unwrap_err()).is_err(), "a deadline");
        drain();
        let error = begin(false).join().unwrap().unwrap_err();
        assert!(sinew::Cancelled::is_in(&error), "{error:?}");
        drain();
        let shielded = begin(true);
        far.write_all(b"y").unwrap();
        assert_eq!(shielded.join().unwrap().unwrap(), 1);
        near.set_nonblocking(true).unwrap();
        assert_eq!(read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    });
}

#[test]
fn datagrams_come_whole() {
    on_all(|| {
        let (one, two) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let addr = two.local_addr().unwrap();
        let receiver = sinew::spawn(move || {
            let mut buf = [0; 64];
            (0..10).map(|_| two.recv_from(&mut buf).unwrap().0).sum::<usize>()
        });
        (1..=10).for_each(|n| assert_eq!(one.send_to(&[7; 64][..n], addr).unwrap(), n));
        assert_eq!(receiver.join().unwrap(), 55);
    });
}

#[test]
fn options_and_conversions_are_those_of_std() {
    on_all(|| {
        let (near, far) = pair();
        near.set_nodelay(true).unwrap();
        near.set_ttl(99).unwrap();
        for quickack in [false, true] {
            near.set_quickack(quickack).unwrap();
            assert_eq!(near.quickack().unwrap(), quickack);
        }
        near.set_linger(Some(Duration::from_secs(3))).unwrap();
        assert_eq!((near.nodelay().unwrap(), near.ttl().unwrap(), near.linger().unwrap()), (true, 99, Some(Duration::from_secs(3))));
        assert_eq!(near.peer_addr().unwrap(), far.local_addr().unwrap());
        assert!(near.take_error().unwrap().is_none());
        near.set_linger(None).unwrap();
        assert!(format!("{near:?}").contains("TcpStream"), "{near:?}");

        // Non-blocking in the kernel while it is ours, blocking again when it is std's.
        let is_nonblocking = |fd: i32| {
            // SAFETY: asks for flags.
            unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
        };
        assert!(is_nonblocking(near.as_raw_fd()));
        let as_std = std::net::TcpStream::from(near);
        assert!(!is_nonblocking(as_std.as_raw_fd()));
        let near = TcpStream::from(as_std);
        assert!(is_nonblocking(near.as_raw_fd()));
        // SAFETY: just given up.
        let near = unsafe { TcpStream::from_raw_fd(near.into_raw_fd()) };
        let mut near = TcpStream::from(OwnedFd::from(near));
        near.write_all(b"still there").unwrap();
        let mut buf = [0; 11];
        (&far).read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"still there");
    });
}

#[test]
fn conversions_keep_time_outs_and_whether_calls_wait() {
    on_all(|| {
        let (near, far) = pair();
        let (read, write) = (Some(Duration::from_millis(40)), Some(Duration::from_secs(2)));
        near.set_read_timeout(read).unwrap();
        near.set_write_timeout(write).unwrap();
        near.set_nonblocking(true).unwrap();
        let as_std = std::net::TcpStream::from(near);
        assert_eq!((as_std.read_timeout().unwrap(), as_std.write_timeout().unwrap()), (read, write));
        assert_eq!((&as_std).read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let near = TcpStream::from(as_std);
        assert_eq!((near.read_timeout().unwrap(), near.write_timeout().unwrap()), (read, write));
        // At once: without the mode it would be told only when it has waited.
        near.set_read_timeout(Some(Duration::from_secs(1000))).unwrap();
        assert_eq!((&near).read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        near.set_nonblocking(false).unwrap();
        near.set_read_timeout(None).unwrap();
        let as_std = std::net::TcpStream::from(near);
        assert_eq!((as_std.read_timeout().unwrap(), as_std.write_timeout().unwrap()), (None, write));
        as_std.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let near = TcpStream::from(as_std);
        assert_eq!((&near).read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(far);
    });
}

/// All of ours are non-blocking in the kernel: a duplicate by its number waits all the same.
#[test]
fn a_duplicate_of_ours_waits() {
    on_all(|| {
        let (near, mut far) = pair();
        let mut near = TcpStream::from(near.as_fd().try_clone_to_owned().unwrap());
        let reader = sinew::spawn(move || near.read(&mut [0; 4]).unwrap());
        sinew::yield_now();
        far.write_all(b"abc").unwrap();
        assert_eq!(reader.join().unwrap(), 3);
    });
}

/// As the page says: not as with std, whose mode is the socket's.
#[test]
fn whether_calls_wait_belongs_to_the_handle() {
    on_all(|| {
        let (near, mut far) = pair();
        let mut earlier = near.try_clone().unwrap();
        near.set_nonblocking(true).unwrap();
        let later = near.try_clone().unwrap();
        for socket in [&near, &later] {
            assert_eq!((&*socket).read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        let reader = sinew::spawn(move || earlier.read(&mut [0; 4]));
        sinew::yield_now();
        far.write_all(b"abc").unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), 3);
        near.set_nonblocking(false).unwrap();
        assert_eq!((&later).read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    });
}

#[test]
fn a_non_blocking_socket_says_so() {
    on_all(|| {
        let (near, mut far) = pair();
        near.set_nonblocking(true).unwrap();
        for _ in 0..3 {
            assert_eq!((&near).read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        far.write_all(b"abcdef").unwrap();
        assert_eq!((&near).read(&mut [0; 16]).unwrap(), 6);
        assert_eq!((&near).read(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    });
}

#[test]
fn peeking_vectors_and_empty_buffers() {
    on_all(|| {
        let (mut near, mut far) = pair();
        assert_eq!(near.read(&mut []).unwrap(), 0);
        assert_eq!(near.write(&[]).unwrap(), 0);
        let peeker = sinew::spawn({
            let far = far.try_clone().unwrap();
            move || far.peek(&mut [0; 3]).unwrap()
        });
        assert_eq!(near.write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b"cde")]).unwrap(), 5);
        assert!((1..=3).contains(&peeker.join().unwrap()));
        let (mut one, mut two) = ([0; 2], [0; 3]);
        let mut got = 0;
        while got < 5 {
            // All five were sent at once, and came at once.
            got += far.read_vectored(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)]).unwrap();
        }
        assert_eq!((&one, &two), (b"ab", b"cde"));
    });
}

#[test]
fn both_halves_of_a_connection_work_at_once_and_end_one_by_one() {
    const BYTES: usize = 1 << 20;
    on_all(|| {
        let (near, far) = pair();
        let ends: Vec<_> = [near, far]
            .into_iter()
            .map(|stream| {
                let stream = Arc::new(stream);
                let writer = sinew::spawn({
                    let stream = stream.clone();
                    move || {
                        let sent: Vec<u8> = (0..BYTES).map(|i| i as u8).collect();
                        (&*stream).write_all(&sent).unwrap();
                        stream.shutdown(Shutdown::Write).unwrap();
                    }
                });
                let reader = sinew::spawn(move || {
                    let mut got = Vec::new();
                    (&*stream).read_to_end(&mut got).unwrap();
                    assert!(got.len() == BYTES && got.iter().enumerate().all(|(i, &byte)| byte == i as u8));
                });
                (writer, reader)
            })
            .collect();
        for (writer, reader) in ends {
            writer.join().unwrap();
            reader.join().unwrap();
        }
    });
}

/// A shutdown by one fiber ends the read of another.
#[test]
fn a_shutdown_wakes_those_who_read() {
    on_all(|| {
        let (near, _far) = pair();
        let near = Arc::new(near);
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let near = near.clone();
                sinew::spawn(move || (&*near).read(&mut [0; 8]).unwrap())
            })
            .collect();
        sinew::yield_now();
        near.shutdown(Shutdown::Both).unwrap();
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() == 0));
    });
}

/// Fibers of several workers, and threads, read from one socket: each byte goes to one of them.
#[test]
fn readers_on_several_workers_share_a_socket() {
    const READERS: usize = 6;
    on_all(|| {
        let (mut near, far) = pair();
        let (far, sum) = (Arc::new(far), Arc::new(AtomicU64::new(0)));
        let readers: Vec<_> = (0..READERS)
            .map(|i| {
                let (far, sum) = (far.clone(), sum.clone());
                let read = move || {
                    let mut byte = [0];
                    while (&*far).read(&mut byte).unwrap() == 1 {
                        sum.fetch_add(u64::from(byte[0]), Relaxed);
                    }
                };
                On::by_turns(i).start(read)
            })
            .collect();
        let mut expected = 0;
        for round in 0..500u64 {
            near.write_all(&[round as u8]).unwrap();
            expected += round & 255;
            if round % 7 == 0 {
                sinew::yield_now();
            }
        }
        near.shutdown(Shutdown::Write).unwrap();
        readers.into_iter().for_each(|reader| reader());
        assert_eq!(sum.load(Relaxed), expected);
    });
}

/// A descriptor that fibers of two workers use is held by the source of each: one worker computes, and what comes reaches the other's fiber all the same.
#[test]
fn a_worker_that_computes_keeps_nothing_from_another() {
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(2).io(io).build().unwrap();
        runtime.run(|| {
            let (near, far) = pair();
            let (far, told) = (Arc::new(far), Arc::new(AtomicUsize::new(0)));
            // By a thread: this fiber's worker may be the one that is held.
            let writer = std::thread::spawn({
                let told = told.clone();
                move || {
                    (&near).write_all(b"a").unwrap();
                    until(|| told.load(Relaxed) == 1);
                    (&near).write_all(b"b").unwrap();
                }
            });
            let hog = sinew::spawn({
                let (far, told) = (far.clone(), told.clone());
                move || {
                    // It waits here first, so that its worker's source knows the socket; then it holds its worker.
                    (&*far).read_exact(&mut [0; 1]).unwrap();
                    let other = sinew::spawn({
                        let (far, told) = (far.clone(), told.clone());
                        move || {
                            told.store(1, Relaxed);
                            (&*far).read_exact(&mut [0; 1]).unwrap();
                            told.store(2, Relaxed);
                        }
                    });
                    while told.load(Relaxed) < 2 {
                        std::hint::spin_loop();
                    }
                    other
                }
            });
            hog.join().unwrap().join().unwrap();
            writer.join().unwrap();
        });
    }
}

/// Fibers of two workers accept at one listener. The worker of the one that waits first computes: the connection is the other's.
#[test]
fn a_worker_that_computes_keeps_no_connection_from_another() {
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(2).io(io).build().unwrap();
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let addr = listener.local_addr().unwrap();
        let (mut cast, [held, free]) = Cast::of(&runtime, 2);
        let [computes, waits, taken] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
        let accept = |by: usize| {
            let (listener, taken) = (listener.clone(), taken.clone());
            move || {
                drop(listener.accept().unwrap());
                taken.fetch_add(by, Relaxed);
            }
        };
        // Each worker sleeps once its acceptor waits, and so has told the kernel of it.
        cast.play(held, accept(1));
        cast.play(held, {
            let (computes, taken) = (computes.clone(), taken.clone());
            move || {
                sinew::sleep(Duration::from_millis(1));
                computes.store(1, Relaxed);
                let begun = Instant::now();
                while taken.load(Relaxed) == 0 && begun.elapsed() < Duration::from_secs(10) {
                    std::hint::spin_loop();
                }
                computes.store(2, Relaxed);
            }
        });
        poll_until("the first acceptor", || computes.load(Relaxed) == 1);
        cast.play(free, accept(2));
        cast.play(free, {
            let waits = waits.clone();
            move || {
                sinew::sleep(Duration::from_millis(1));
                waits.store(1, Relaxed);
            }
        });
        poll_until("the second acceptor", || waits.load(Relaxed) == 1);
        let _first = std::net::TcpStream::connect(addr).unwrap();
        poll_until("the end of the computation", || computes.load(Relaxed) == 2 || taken.load(Relaxed) == 2);
        assert_eq!(taken.load(Relaxed), 2, "{io:?}: the connection waits for a worker that computes");
        let _second = std::net::TcpStream::connect(addr).unwrap();
        cast.end();
    }
}

/// Many fibers accept from one listener.
#[test]
fn acceptors_share_a_listener() {
    on_all(|| {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let addr = listener.local_addr().unwrap();
        let acceptors: Vec<_> = (0..8)
            .map(|_| {
                let listener = listener.clone();
                sinew::spawn(move || listener.accept().unwrap().0.write_all(b"x").unwrap())
            })
            .collect();
        for _ in 0..8 {
            TcpStream::connect(addr).unwrap().read_exact(&mut [0; 1]).unwrap();
        }
        acceptors.into_iter().for_each(|acceptor| acceptor.join().unwrap());
    });
}

/// A closed descriptor's number comes again at once: what was known of the old one, also through a duplicate that lives on, is not believed of the new one.
#[test]
fn a_number_that_comes_again_is_a_new_socket() {
    on_all(|| {
        let mut kept = Vec::new();
        for round in 0..200u8 {
            let (mut near, far) = pair();
            let reader = sinew::spawn(move || {
                let mut byte = [0];
                (&far).read_exact(&mut byte).unwrap();
                (far, byte[0])
            });
            sinew::yield_now();
            near.write_all(&[round]).unwrap();
            let (far, got) = reader.join().unwrap();
            assert_eq!(got, round);
            if round % 50 == 0 {
                kept.push((near, far.try_clone().unwrap()));
            }
        }
        for (mut near, mut far) in kept {
            let reader = sinew::spawn(move || far.read(&mut [0; 4]).unwrap());
            sinew::yield_now();
            near.write_all(b"four").unwrap();
            assert_eq!(reader.join().unwrap(), 4);
        }
    });
}

#[test]
fn connecting_fails_as_in_std() {
    on_all(|| {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(TcpStream::connect(free).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(TcpStream::connect_timeout(&free, Duration::ZERO).is_err());
        assert!(TcpStream::connect("no port").is_err());
        assert_eq!(TcpStream::connect(&[][..]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // The second address answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        TcpStream::connect(&[free, listener.local_addr().unwrap()][..]).unwrap();
    });
}

/// A listener whose queue is full answers no more: who connects waits, until its time is over.
#[test]
fn a_connection_that_nobody_answers_is_given_up() {
    on_all(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.listen(0).unwrap();
        let addr = socket.local_addr().unwrap().as_socket().unwrap();
        let mut kept = Vec::new();
        let error = loop {
            match TcpStream::connect_timeout(&addr, Duration::from_millis(50)) {
                Ok(stream) => kept.push(stream),
                Err(error) => break error,
            }
            assert!(kept.len() < 10, "a queue of none took ten");
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let late = sinew::timeout(Duration::from_millis(5), || TcpStream::connect(addr).is_err());
        assert!(late.is_err(), "the time-out cut it short");
    });
}

#[test]
fn names_are_looked_up() {
    on_all(|| {
        let listener = TcpListener::bind("localhost:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = sinew::spawn(move || drop(listener.accept().unwrap()));
        TcpStream::connect(("localhost", port)).unwrap();
        server.join().unwrap();
        let one = ("127.0.0.1".to_string(), 7).to_socket_addrs().unwrap().collect::<Vec<_>>();
        assert_eq!(one, [std::net::SocketAddr::from(([127, 0, 0, 1], 7))]);
        assert!("nobody.invalid:1".to_socket_addrs().is_err());
    });
}

#[test]
fn unix_sockets_do_the_same() {
    on_all(|| {
        let dir = std::env::temp_dir().join(format!("sinew-net-{}-{:?}", std::process::id(), sinew::current().id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let server = sinew::spawn(move || {
            let mut stream = (&listener).into_iter().next().unwrap().unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            stream.write_all(text.to_uppercase().as_bytes()).unwrap();
        });
        let mut stream = UnixStream::connect(&path).unwrap();
        assert_eq!(stream.peer_addr().unwrap().as_pathname(), Some(&*path));
        stream.write_all(b"quiet").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, "QUIET");
        server.join().unwrap();

        let (one, two) = UnixDatagram::pair().unwrap();
        let receiver = sinew::spawn(move || two.recv(&mut [0; 8]).unwrap());
        sinew::yield_now();
        one.send(b"abc").unwrap();
        assert_eq!(receiver.join().unwrap(), 3);

        let (mut one, two) = UnixStream::pair().unwrap();
        let peeker = sinew::spawn(move || (two.peek(&mut [0; 8]).unwrap(), two));
        sinew::yield_now();
        one.write_all(b"abcd").unwrap();
        let (seen, mut two) = peeker.join().unwrap();
        assert_eq!((seen, two.read(&mut [0; 8]).unwrap()), (4, 4));
        let (one, two) = UnixDatagram::pair().unwrap();
        let peeker = sinew::spawn(move || (two.peek(&mut [0; 8]).unwrap(), two.peek_from(&mut [0; 8]).unwrap(), two));
        sinew::yield_now();
        one.send(b"abcde").unwrap();
        let (seen, (again, from), two) = peeker.join().unwrap();
        assert!((seen, again, two.recv(&mut [0; 8]).unwrap()) == (5, 5, 5) && from.is_unnamed());
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// All of it on plain threads, with fibers of the default runtime at the other end.
#[test]
fn threads_block() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let fiber = sinew::spawn(move || {
        let mut stream = TcpStream::connect(addr).unwrap();
        let mut buf = [0; 4];
        stream.read_exact(&mut buf).unwrap();
        stream.write_all(&buf).unwrap();
    });
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    assert_eq!(stream.read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    stream.set_read_timeout(None).unwrap();
    let late = sinew::timeout(Duration::from_millis(5), || stream.read(&mut [0; 4]).unwrap_err().kind());
    assert!(late.is_err());
    stream.write_all(b"ping").unwrap();
    let mut buf = [0; 4];
    stream.read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"ping");
    fiber.join().unwrap();
}

#[test]
fn any_descriptor_can_be_waited_for() {
    on_all(|| {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let waiter = sinew::spawn(move || {
            sinew::io::poll(&far, sinew::io::Interest::Readable).unwrap();
            sinew::io::poll(&far, sinew::io::Interest::Writable).unwrap();
            let mut byte = [0];
            (&far).read_exact(&mut byte).unwrap();
            // Once more at the same descriptor: the end is readable too.
            sinew::io::poll(&far, sinew::io::Interest::Readable).unwrap();
            byte[0]
        });
        sinew::yield_now();
        (&near).write_all(b"!").unwrap();
        drop(near);
        assert_eq!(waiter.join().unwrap(), b'!');
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        sinew::io::poll(&file, sinew::io::Interest::Readable).unwrap();
    });
}

/// A fiber that waits for I/O is no deadlock, and a shutdown ends it.
#[test]
fn a_shutdown_ends_fibers_that_wait_for_io() {
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(2).io(io).build().unwrap();
        let waiting = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..20)
            .map(|_| {
                let waiting = waiting.clone();
                runtime.spawn(move || {
                    let (near, _far) = UnixStream::pair().unwrap();
                    waiting.fetch_add(1, Relaxed);
                    (&near).read(&mut [0; 1]).unwrap_err()
                })
            })
            .collect();
        until(|| waiting.load(Relaxed) == 20);
        runtime.shutdown_timeout(Duration::from_secs(10)).unwrap();
        for fiber in fibers {
            let error = fiber.join().unwrap();
            assert!(sinew::Cancelled::is_in(&error), "{error:?}");
        }
    }
}

/// One worker; fibers that do nothing but yield, and count. A byte is sent to a socket that another fiber reads from: that one goes on within the budget of turns.
#[test]
fn ready_fibers_do_not_hide_a_socket() {
    // 16 turns of 32 switches until epoll is polled, one more turn until the fiber is reached, and those who yield once each.
    const BY_EPOLL: u64 = 17 * 32 + 100;
    // Two turns of 33 until the ring is told of the write and asked, and those who yield once each.
    const BY_RING: u64 = 2 * 33 + 50;
    const BYTES: u64 = 50;
    for (io, budget) in [(Io::Uring, BY_RING), (Io::Epoll, BY_EPOLL)] {
        let runtime = Runtime::builder().workers(1).io(io).build().unwrap();
        let longest = runtime.run(|| {
            let (near, far) = UnixStream::pair().unwrap();
            let (yields, read_at) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let reader = sinew::spawn({
                let (yields, read_at) = (yields.clone(), read_at.clone());
                move || {
                    for _ in 0..BYTES {
                        (&far).read_exact(&mut [0; 1]).unwrap();
                        read_at.store(yields.load(Relaxed), Relaxed);
                    }
                }
            });
            let storm: Vec<_> = (0..50)
                .map(|_| {
                    let yields = yields.clone();
                    sinew::spawn(move || {
                        while !sinew::cancelled() {
                            yields.fetch_add(1, Relaxed);
                            sinew::yield_now();
                        }
                    })
                })
                .collect();
            until(|| yields.load(Relaxed) > 10_000);
            // From any place of a turn.
            let waited = (0..BYTES).map(|i| {
                (0..i % 7).for_each(|_| sinew::yield_now());
                read_at.store(0, Relaxed);
                let sent_at = yields.load(Relaxed);
                (&near).write_all(b"x").unwrap();
                until(|| read_at.load(Relaxed) != 0);
                read_at.load(Relaxed) - sent_at
            });
            let longest = waited.max().unwrap();
            reader.join().unwrap();
            storm.iter().for_each(|fiber| fiber.cancel());
            longest
        });
        assert!(longest <= budget, "{io:?}: {longest} yields between a write and its read");
    }
}

/// One worker; two fibers that compute and sleep by turns, so that one of them is always due when the other lies down, and nobody else is ready. A socket is looked at all the same, and what its reader asks of the kernel next is
/// told to it: bytes that a plain thread sends, one when the last was read.
#[test]
fn fibers_that_sleep_and_compute_do_not_hide_a_socket() {
    const BYTES: u64 = 20;
    // 16 turns until epoll is polled, of one fiber each, and some until the reader runs.
    const BUDGET: u64 = BYTES * 40;
    const WORK: Duration = Duration::from_micros(150);
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(1).io(io).build().unwrap();
        let rounds = runtime.run(|| {
            let (near, far) = UnixStream::pair().unwrap();
            let near = std::os::unix::net::UnixStream::from(near);
            let rounds = Arc::new(AtomicU64::new(0));
            let tickers: Vec<_> = (0..2)
                .map(|_| {
                    let rounds = rounds.clone();
                    sinew::spawn(move || {
                        while !sinew::cancelled() && rounds.fetch_add(1, Relaxed) < 2 * BUDGET {
                            let begun = Instant::now();
                            while begun.elapsed() < WORK {}
                            sinew::sleep(WORK / 15);
                        }
                    })
                })
                .collect();
            let writer = std::thread::spawn(move || {
                for _ in 0..BYTES {
                    (&near).write_all(b"x").unwrap();
                    (&near).read_exact(&mut [0]).unwrap();
                }
            });
            for _ in 0..BYTES {
                (&far).read_exact(&mut [0]).unwrap();
                (&far).write_all(b"y").unwrap();
            }
            let rounds = rounds.load(Relaxed);
            tickers.iter().for_each(|ticker| ticker.cancel());
            writer.join().unwrap();
            rounds
        });
        assert!(rounds <= BUDGET, "{io:?}: {rounds} rounds of others for {BYTES} bytes");
    }
}

/// One worker; so many fibers that are always ready that one round of them is 150 turns. The kernel is asked what has come within some turns all the same: one that reads goes on after a round of the others, not after two. Written from
/// several places of a round: wherever the worker asks, most of them are far from it.
#[test]
fn a_crowd_of_ready_fibers_hides_a_socket_for_one_round() {
    const CROWD: u64 = 5_000;
    const WRITERS: u64 = 10;
    // 16 turns of 33 switches until the kernel is asked, the turn that is under way, and one until its answer is read.
    const BUDGET: u64 = CROWD + 18 * 33;
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(1).io(io).build().unwrap();
        let longest = runtime.run(|| {
            // Written to as a plain thread would: the writers do not wait.
            let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
            let (near, far) = (Arc::new(near), UnixStream::from(far));
            let [yields, writer, sent_at, read_at] = [(); 4].map(|()| Arc::new(AtomicU64::new(0)));
            let reader = sinew::spawn({
                let (yields, read_at) = (yields.clone(), read_at.clone());
                move || {
                    while (&far).read(&mut [0; 1]).unwrap() == 1 {
                        read_at.store(yields.load(Relaxed), Relaxed);
                    }
                }
            });
            let member = |i: u64| {
                let (near, yields, writer, sent_at) = (near.clone(), yields.clone(), writer.clone(), sent_at.clone());
                let runs = move || {
                    while !sinew::cancelled() {
                        if writer.load(Relaxed) == i {
                            writer.store(0, Relaxed);
                            sent_at.store(yields.load(Relaxed), Relaxed);
                            (&*near).write_all(b"x").unwrap();
                        }
                        yields.fetch_add(1, Relaxed);
                        sinew::yield_now();
                    }
                };
                sinew::spawn(runs)
            };
            let crowd: Vec<_> = (1..=CROWD).map(member).collect();
            until(|| yields.load(Relaxed) > 3 * CROWD);
            let waited = (1..=WRITERS).map(|i| {
                writer.store(i * CROWD / WRITERS, Relaxed);
                let last = read_at.load(Relaxed);
                until(|| read_at.load(Relaxed) > last);
                read_at.load(Relaxed) - sent_at.load(Relaxed)
            });
            let longest = waited.max().unwrap();
            crowd.iter().for_each(|fiber| fiber.cancel());
            crowd.into_iter().for_each(|fiber| fiber.join().unwrap());
            near.shutdown(Shutdown::Both).unwrap();
            reader.join().unwrap();
            longest
        });
        assert!(longest <= BUDGET, "{io:?}: {longest} yields between a write and the read");
    }
}

/// Calls that need not wait between two moments of others: a yield per 32, and some turns until all of them have run.
const BUDGET: u64 = 32 * 64;

/// One worker; a fiber whose reads and writes never have to wait. The others get their turn: another socket, and below a timer and a fiber that is ready. Counted in calls of the flood.
#[test]
fn a_flood_on_one_socket_does_not_hide_the_rest() {
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(1).io(io).build().unwrap();
        runtime.run(|| {
            let (near, far) = UnixStream::pair().unwrap();
            let (other, quiet) = UnixStream::pair().unwrap();
            let calls = Arc::new(AtomicU64::new(0));
            let flood = sinew::spawn({
                let calls = calls.clone();
                move || {
                    while !sinew::cancelled() {
                        (&near).write_all(b"x").unwrap();
                        (&far).read_exact(&mut [0; 1]).unwrap();
                        calls.fetch_add(2, Relaxed);
                    }
                }
            });
            let reader = sinew::spawn({
                let calls = calls.clone();
                move || {
                    (&quiet).read_exact(&mut [0; 1]).unwrap();
                    calls.load(Relaxed)
                }
            });
            until(|| calls.load(Relaxed) > 10_000);
            sinew::sleep(Duration::from_millis(1));
            (&other).write_all(b"y").unwrap();
            let sent_at = calls.load(Relaxed);
            let read_at = reader.join().unwrap();
            flood.cancel();
            // It is cancelled in the middle of a call, perhaps.
            let _ = flood.join();
            assert!(read_at - sent_at <= BUDGET, "{io:?}: {} calls between the write and the read", read_at - sent_at);
        });
    }
}

#[test]
fn a_flood_on_one_socket_delays_no_timer_and_no_ready_fiber() {
    const NEVER: u64 = u64::MAX;
    for io in [Io::Uring, Io::Epoll] {
        Runtime::builder().workers(1).io(io).build().unwrap().run(|| {
            let (near, far) = UnixStream::pair().unwrap();
            let start = Instant::now();
            // The moment that the timer is set to, in ns from the start, and the calls that the flood had made when it found that moment passed.
            let [calls, due_ns, calls_when_due] = [0, NEVER, 0].map(AtomicU64::new);
            let now_ns = || start.elapsed().as_nanos() as u64;
            scope(|s| {
                let flood = s.spawn(|| {
                    while !sinew::cancelled() && (&near).write_all(b"x").is_ok() && (&far).read_exact(&mut [0; 1]).is_ok() {
                        let made = calls.fetch_add(2, Relaxed) + 2;
                        if now_ns() >= due_ns.load(Relaxed) {
                            due_ns.store(NEVER, Relaxed);
                            calls_when_due.store(made, Relaxed);
                        }
                    }
                });
                for _ in 0..100 {
                    let due = now_ns() + 1_000_000;
                    due_ns.store(due, Relaxed);
                    sinew::sleep_until(start + Duration::from_nanos(due));
                    // If the flood has not found it passed, it has not run since.
                    if due_ns.swap(NEVER, Relaxed) == NEVER {
                        let used = calls.load(Relaxed) - calls_when_due.load(Relaxed);
                        assert!(used <= BUDGET, "{io:?}: {used} calls between the moment and its timer");
                    }

                    let before = calls.load(Relaxed);
                    s.spawn(|| ()).join().unwrap();
                    let used = calls.load(Relaxed) - before;
                    assert!(used <= BUDGET, "{io:?}: {used} calls before a ready fiber ran");
                }
                flood.cancel();
            });
        });
    }
}
