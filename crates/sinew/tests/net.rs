//! Sockets: what std's do, for fibers and threads, on both drivers.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use sinew::net::{TcpListener, TcpStream, UdpSocket};
use sinew::{Io, Runtime};

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

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, from) = listener.accept().unwrap();
    assert_eq!(from, near.local_addr().unwrap());
    (near, far)
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
        assert!(error.get_ref().is_some_and(|source| source.is::<sinew::Cancelled>()), "{error:?}");
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
