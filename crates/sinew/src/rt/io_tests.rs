//! What cannot be seen from outside: how often a call that waits is tried.
//!
//! They stand apart because shuttle's models include `io.rs`.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::io::{Descriptor, Direction, Try, perform, poll_until};
use crate::event::source::Io;
use crate::rt::runtime::Runtime;

/// A socket with an error in its queue (`IP_RECVERR`) that nobody takes: poll tells of it for ever.
fn with_error_queue() -> Descriptor<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let on: libc::c_int = 1;
    // SAFETY: the number outlives the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_RECVERR,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    socket.send_to(b"x", nobody).unwrap();
    assert_ne!(poll_until(socket.as_raw_fd(), Direction::Read, u64::MAX).unwrap() & libc::POLLERR, 0);
    // The error itself is told once; that it is in the queue is not.
    assert_eq!(socket.take_error().unwrap().unwrap().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(poll_until(socket.as_raw_fd(), Direction::Read, 0).unwrap(), libc::POLLERR);
    Descriptor::new(socket).unwrap()
}

/// Counted in tries: one before the wait, one for what poll tells of that is nothing, one for each thing that the edge-triggered instance tells of. One that spins tries tens of thousands of times.
#[test]
fn an_error_queue_that_nobody_reads_makes_nobody_spin() {
    let wait = || {
        let descriptor = with_error_queue();
        let tries = AtomicUsize::new(0);
        let receive = || {
            let call = |socket: &UdpSocket| {
                tries.fetch_add(1, Relaxed);
                socket.recv(&mut [0; 8])
            };
            perform(&descriptor, Try(Direction::Read, call))
        };
        descriptor.set_timeout(Direction::Read, Some(Duration::from_millis(50))).unwrap();
        assert_eq!(receive().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let used = tries.load(Relaxed);
        assert!(used < 10, "{used} tries in one wait");

        // And what comes is found.
        descriptor.set_timeout(Direction::Read, None).unwrap();
        let (to, sender) = (descriptor.socket().local_addr().unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        std::thread::scope(|s| {
            for _ in 0..20 {
                let before = tries.load(Relaxed);
                let (sender, tries) = (&sender, &tries);
                s.spawn(move || {
                    while tries.load(Relaxed) == before {
                        std::thread::yield_now();
                    }
                    sender.send_to(b"abc", to).unwrap();
                });
                assert_eq!(receive().unwrap(), 3);
            }
        });
    };
    for io in [Io::Uring, Io::Epoll] {
        Runtime::builder().workers(1).io(io).build().unwrap().run(wait);
    }
    wait();
}
