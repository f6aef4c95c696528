//! Writes that are cut short after the peer has half-closed: the poll of the ring then says at once that there is something to do, whether there is room or not.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use sinew::net::Shutdown;
use sinew::net::unix::UnixStream;
use sinew::{Io, Runtime};

const CUTS: usize = 50;

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

/// Counted in turns: pauses between tries grow to 2 ms, so there are some hundred in the time it waits. One that asks the ring again at once takes tens of thousands.
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
        assert!(switches < 2_000, "{io:?}: {switches} turns for a write that could not be done");
    }
}
