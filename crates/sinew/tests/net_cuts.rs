//! Writes that are cut short after the peer has half-closed: the poll of the ring then says at once that there is something to do, whether there is room or not.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use sinew::net::unix::UnixStream;
use sinew::net::{Shutdown, TcpStream};
use sinew::{Io, Runtime};

const CUTS: usize = 50;

/// A stream of either kind.
trait Stream: Read + Write + Send {
    fn half_close(&self);
}

impl Stream for UnixStream {
    fn half_close(&self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

impl Stream for TcpStream {
    fn half_close(&self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

type Ends = (Box<dyn Stream>, Box<dyn Stream>);

fn unix_pair() -> Ends {
    let (near, far) = UnixStream::pair().unwrap();
    (Box::new(near), Box::new(far))
}

fn tcp_pair() -> Ends {
    let (near, far) = common::pair();
    (Box::new(near), Box::new(far))
}

/// The ring leaves such a write to a thread of the kernel. To give it up interrupts that thread, and the ring answers EINTR: that is no error of the write.
#[test]
fn a_write_that_is_given_up_is_late_and_not_interrupted() {
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(1).io(io).build().expect("a runtime");
        runtime.run(|| {
            let (mut near, mut far) = UnixStream::pair().unwrap();
            far.shutdown(Shutdown::Write).unwrap();
            let (mut written, mut cuts) = (0, 0);
            while cuts < CUTS {
                near.set_write_timeout(Some(Duration::from_micros(100 + 10 * cuts as u64))).unwrap();
                match near.write(&[7; 10_000]) {
                    Ok(bytes) => written += bytes,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{io:?}, after {cuts} cuts: {error}");
                        cuts += 1;
                    }
                }
            }
            drop(near);
            let mut read = Vec::new();
            far.read_to_end(&mut read).unwrap();
            assert_eq!(read.len(), written, "{io:?}: what was written, and nothing else, was read");
        });
    }
}

/// Counted in turns: it waits once, and those who fill the socket take a few. One that asks the ring again at once takes tens of thousands, one that pauses in between a hundred or more.
#[test]
fn a_half_closed_peer_does_not_make_a_writer_spin() {
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(1).io(io).build().expect("a runtime");
        runtime.run(|| {
            let (mut near, far) = UnixStream::pair().unwrap();
            far.shutdown(Shutdown::Write).unwrap();
            near.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            while near.write(&[7; 10_000]).is_ok() {}
        });
        let switches = runtime.metrics().workers[0].switches;
        assert!(switches < 60, "{io:?}: {switches} turns for a write that could not be done");
    }
}

/// Many writers whose peers have half-closed, as a client of HTTP/1.0 does: they sleep until there is room, get all through, and those that are cancelled are told.
#[test]
fn writers_to_half_closed_peers_sleep_until_there_is_room() {
    const WRITERS: usize = 40;
    const BYTES: usize = 600_000;
    for (io, workers) in [(Io::Uring, 1), (Io::Uring, 2), (Io::Epoll, 2)] {
        let runtime = Runtime::builder().workers(workers).io(io).build().expect("a runtime");
        runtime.run(|| {
            let (nears, fars): (Vec<_>, Vec<_>) = (0..WRITERS).map(|i| if i % 2 == 0 { unix_pair() } else { tcp_pair() }).unzip();
            fars.iter().for_each(|far| far.half_close());
            let writers: Vec<_> = nears.into_iter().map(|mut near| sinew::spawn(move || near.write_all(&[7; BYTES]))).collect();
            let cancelled: Vec<_> = (0..WRITERS)
                .map(|_| {
                    let (mut near, far) = unix_pair();
                    far.half_close();
                    (sinew::spawn(move || near.write_all(&[7; BYTES])), far)
                })
                .collect();
            for mut far in fars {
                let mut read = Vec::new();
                far.read_to_end(&mut read).unwrap();
                assert_eq!(read.len(), BYTES, "{io:?}");
            }
            writers.into_iter().for_each(|writer| writer.join().unwrap().unwrap());
            for (writer, far) in cancelled {
                writer.cancel();
                let error = writer.join().unwrap().unwrap_err();
                assert!(common::is_cancelled(&error), "{io:?}: {error}");
                drop(far);
            }
        });
        runtime.shutdown_timeout(Duration::from_secs(10)).unwrap_or_else(|left| panic!("{io:?}: {left:?}"));
    }
}

/// `io::poll` says that there is room when there is, and not when the peer has half-closed.
#[test]
fn a_poll_for_room_is_not_told_of_a_half_closed_peer() {
    common::everywhere(|| {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        far.shutdown(Shutdown::Write).unwrap();
        near.set_nonblocking(true).unwrap();
        while near.write(&[7; 10_000]).is_ok() {}
        let begun = Arc::new(AtomicBool::new(false));
        let reader = common::On::Thread.start({
            let begun = begun.clone();
            move || {
                common::poll_until("the poll", || begun.load(Relaxed));
                (0..100).for_each(|_| std::thread::yield_now());
                far.read_to_end(&mut Vec::new()).unwrap();
            }
        });
        begun.store(true, Relaxed);
        sinew::io::poll(&near, sinew::io::Interest::Writable).unwrap();
        near.write_all(b"x").expect("there is no room");
        drop(near);
        reader();
    });
}

/// The epoll instance that such a writer waits at cannot be opened when it is first needed, for want of descriptors: it waits all the same.
#[test]
fn a_writer_waits_also_where_there_are_no_descriptors() {
    const NAME: &str = "a_writer_waits_also_where_there_are_no_descriptors";
    if !common::is_child(NAME) {
        for io in ["uring", "epoll"] {
            let child = common::in_child(NAME, &[("SINEW_IO", io)]);
            assert!(child.status.success(), "{io}: {}", String::from_utf8_lossy(&child.stderr));
        }
        return;
    }
    Runtime::builder().workers(1).build().unwrap().run(|| {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        // The worker's source is there from now on.
        assert!(sinew::timeout(Duration::from_millis(1), || far.read(&mut [0; 1]).is_err()).is_err());
        far.shutdown(Shutdown::Write).unwrap();
        let hogs: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        let writer = sinew::spawn(move || near.write_all(&[7; 1 << 20]));
        (0..100).for_each(|_| sinew::yield_now());
        far.read_exact(&mut vec![0; 1 << 20]).unwrap();
        writer.join().unwrap().unwrap();
        drop(hogs);
    });
}
