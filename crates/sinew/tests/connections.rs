//! Connections that are opened and dropped at random, by either side, in every way: nothing hangs, no byte is wrong, and no descriptor or fiber is left.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::{await_until, rounds};
use sinew::net::{TcpListener, TcpStream};
use sinew::{Io, Runtime};

/// Of each driver; a fiftieth of it in builds that are not optimised.
const CONNECTIONS: usize = 20_000;
/// Fibers that open them.
const CLIENTS: usize = 100;
/// Several, since what was closed holds its pair of ports for a while.
const LISTENERS: usize = 4;
const BYTES_MAX: u64 = 20_000;

/// A small generator: numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[derive(Default)]
struct Tally {
    /// Hosts that were started, and that have ended.
    hosts: AtomicUsize,
    ended: AtomicUsize,
    /// Bytes that came back to a client as they were sent.
    echoed: AtomicUsize,
}

/// What a side may find when the other has dropped the connection.
fn check_break(error: &std::io::Error) {
    let allowed = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::NotConnected, ErrorKind::WouldBlock];
    assert!(allowed.contains(&error.kind()), "{error:?}");
}

/// Echoes until the end, or until it has had enough.
fn host(mut stream: TcpStream, random: &mut Random) {
    let mut buffer = [0; 1024];
    while random.below(20) != 0 {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => match stream.write_all(&buffer[..count]) {
                Ok(()) => {}
                Err(error) => return check_break(&error),
            },
            Err(error) => return check_break(&error),
        }
    }
}

fn visit(addr: SocketAddr, random: &mut Random, tally: &Tally) {
    let mut stream = TcpStream::connect(addr).unwrap();
    let bytes: Vec<u8> = (0..random.below(BYTES_MAX)).map(|_| random.below(256) as u8).collect();
    match random.below(5) {
        0 => return,
        1 => return stream.set_linger(Some(Duration::ZERO)).unwrap(),
        2 => stream.set_read_timeout(Some(Duration::from_micros(1 + random.below(200)))).unwrap(),
        _ => {}
    }
    let mut back = vec![0; bytes.len()];
    let reader = stream.try_clone().unwrap();
    let (written, got) = sinew::scope(|s| {
        let reader = s.spawn(|| read_some(&reader, &mut back));
        let written = stream.write_all(&bytes);
        // Else the host waits for more, and its reader for the host.
        let _ = stream.shutdown(Shutdown::Write);
        (written, reader.join().unwrap())
    });
    let _ = written.inspect_err(check_break);
    assert_eq!(back[..got], bytes[..got], "other bytes came back than were sent");
    tally.echoed.fetch_add(got, SeqCst);
}

/// Reads until all is there, or the other side has had enough.
fn read_some(mut stream: &TcpStream, buffer: &mut [u8]) -> usize {
    let mut got = 0;
    while got < buffer.len() {
        match stream.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(error) => {
                check_break(&error);
                break;
            }
        }
    }
    got
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn storm(tally: &Arc<Tally>) {
    let listeners: Vec<_> = (0..LISTENERS).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addrs: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let doors: Vec<_> = listeners
        .into_iter()
        .map(|listener| {
            let tally = tally.clone();
            sinew::spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    let (tally, number) = (tally.clone(), tally.hosts.fetch_add(1, SeqCst));
                    sinew::spawn(move || {
                        host(stream, &mut Random(number as u64));
                        tally.ended.fetch_add(1, SeqCst);
                    });
                }
            })
        })
        .collect();
    sinew::scope(|s| {
        for client in 0..CLIENTS {
            let (addrs, tally) = (&addrs, &**tally);
            s.spawn(move || {
                let mut random = Random(client as u64 + 1_000_000);
                (0..rounds(CONNECTIONS) / CLIENTS).for_each(|round| visit(addrs[round % LISTENERS], &mut random, tally));
            });
        }
    });
    doors.iter().for_each(|door| door.cancel());
    doors.into_iter().for_each(|door| door.join().unwrap());
}

#[test]
fn twenty_thousand_connections_opened_and_dropped_at_random_leave_nothing() {
    for io in [Io::Uring, Io::Epoll] {
        let before = open_descriptors();
        let runtime = Runtime::builder().workers(2).io(io).build().unwrap();
        let tally = Arc::new(Tally::default());
        runtime.run(|| {
            storm(&tally);
            await_until("the last hosts", || tally.hosts.load(SeqCst) == tally.ended.load(SeqCst));
        });
        let (hosts, echoed) = (tally.hosts.load(SeqCst), tally.echoed.load(SeqCst));
        assert!(hosts > rounds(CONNECTIONS) / 2 && echoed > 0, "{io:?}: {hosts} accepted, {echoed} bytes came back");
        let (own, left) = (open_descriptors() - before, runtime.metrics());
        assert!(own <= 3 * left.workers.len() + 2, "{io:?}: {own} descriptors are open, with {} workers", left.workers.len());
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap_or_else(|left| panic!("{io:?}: {left:?}"));
    }
}
