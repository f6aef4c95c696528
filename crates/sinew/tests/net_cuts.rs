//! Writes that are cut short while the kernel is at work on them: they say so, and nothing else.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use sinew::net::Shutdown;
use sinew::net::unix::UnixStream;
use sinew::{Io, Runtime};

const PAIRS: usize = 8;
const WRITES: usize = 2_000;
/// Time-outs go up to this: about as long as a reader takes to make room.
const RACE_US_MAX: usize = 150;
const LENGTHS: [usize; 5] = [16_384, 1, 5_000, 1_000, 64];

/// Reads to the end, in fits and starts; how much that was.
fn read_slowly(mut stream: &UnixStream) -> usize {
    let (mut buf, mut bytes) = (vec![0; 16_384], 0);
    for i in 0.. {
        match stream.read(&mut buf[..LENGTHS[i % LENGTHS.len()]]).unwrap() {
            0 => break,
            read => bytes += read,
        }
        match i % 16 {
            0..6 => sinew::yield_now(),
            6 => sinew::sleep(Duration::from_micros(50)),
            _ => {}
        }
    }
    bytes
}

/// Writes with time-outs that are often too short; how much was written, and how often it was late.
fn write_in_haste(mut stream: &UnixStream, seed: usize) -> (usize, usize) {
    let (mut written, mut late) = (0, 0);
    let message = vec![7; 16_384];
    for i in seed..seed + WRITES {
        stream.set_write_timeout(Some(Duration::from_micros((1 + i % RACE_US_MAX) as u64))).unwrap();
        match stream.write(&message[..LENGTHS[i % LENGTHS.len()]]) {
            Ok(bytes) => written += bytes,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "write {i}: {error}");
                late += 1;
            }
        }
    }
    stream.shutdown(Shutdown::Write).unwrap();
    (written, late)
}

/// The ring may leave a write to a thread of the kernel. To give that up interrupts the thread, and the ring answers EINTR: that is no error of the write. Buffers are small, so that there is
/// often no room. (`sinew stress io` found it; here it is rare.)
#[test]
fn a_write_that_is_given_up_is_late_and_not_interrupted() {
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(2).io(io).build().expect("a runtime");
        let pairs: Vec<_> = (0..PAIRS)
            .map(|seed| {
                let (near, far) = UnixStream::pair().unwrap();
                socket2::SockRef::from(&near).set_send_buffer_size(1).unwrap();
                (runtime.spawn(move || read_slowly(&far)), runtime.spawn(move || write_in_haste(&near, seed)))
            })
            .collect();
        let late: usize = pairs
            .into_iter()
            .map(|(reader, writer)| {
                let (written, late) = writer.join().unwrap();
                assert_eq!(reader.join().unwrap(), written, "{io:?}: what was written was read");
                late
            })
            .sum();
        assert!(late > 0, "{io:?}: no write was given up");
    }
}
