//! What a handle leaves behind when it is dropped or given away while others have the same socket: nothing in any epoll instance.

mod common;

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use common::{await_until, pair};
use sinew::io::{Interest, PipeReader, pipe, poll};
use sinew::net::UdpSocket;
use sinew::{Io, Runtime, RuntimeBuilder, spawn};

/// Where fibers wait at epoll: at their worker's instance, or, if they may move, at their group's, also by the ring.
fn at_epoll(f: impl Fn() + Send + Sync) {
    let builder = |io| Runtime::builder().workers(2).io(io);
    // SAFETY: what these fibers do is bound to no thread.
    let moving = |builder: RuntimeBuilder| unsafe { builder.migrate_started_fibers() };
    for builder in [builder(Io::Epoll), moving(builder(Io::Epoll)), moving(builder(Io::Uring))] {
        let runtime = builder.build().unwrap();
        runtime.run(&f);
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
    }
}

/// How often the file of this descriptor is in the epoll instances of the process, under whatever number.
fn watched(file: &impl AsFd) -> usize {
    let std = std::fs::File::from(file.as_fd().try_clone_to_owned().unwrap());
    let name = format!(" ino:{:x} ", std::os::unix::fs::MetadataExt::ino(&std.metadata().unwrap()));
    let all = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten().filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    all.map(|text| text.lines().filter(|line| line.starts_with("tfd:") && line.contains(&name)).count()).sum()
}

/// Waits at the socket for a moment, in vain.
fn wait_at(socket: &UdpSocket) {
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert!(socket.recv(&mut [0]).is_err());
    assert_ne!(watched(socket), 0);
}

#[test]
fn a_clone_that_is_dropped_leaves_no_instance_to_tell_of_it() {
    at_epoll(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let clones: Vec<_> = (0..20).map(|_| socket.try_clone().unwrap()).collect();
        let fibers: Vec<_> = clones.into_iter().map(|clone| spawn(move || wait_at(&clone))).collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert_eq!(watched(&socket), 0);

        // Nor does the one that was cloned.
        let clone = socket.try_clone().unwrap();
        wait_at(&socket);
        drop(socket);
        assert_eq!(watched(&clone), 0);
    });
}

#[test]
fn a_duplicate_made_by_the_system_is_one_too() {
    at_epoll(|| {
        let std = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for socket in [UdpSocket::from(std.try_clone().unwrap()), UdpSocket::from(OwnedFd::from(std.try_clone().unwrap()))] {
            wait_at(&socket);
            drop(socket);
            assert_eq!(watched(&std), 0);
        }

        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let duplicate = socket.as_fd().try_clone_to_owned().unwrap();
        wait_at(&socket);
        drop(socket);
        assert_eq!(watched(&duplicate), 0);
    });
}

#[test]
fn what_std_has_got_is_told_to_no_worker() {
    at_epoll(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        wait_at(&socket);
        let std = std::net::UdpSocket::from(socket);
        assert_eq!(watched(&std), 0);

        // And it can come back.
        let socket = UdpSocket::from(std);
        wait_at(&socket);
        socket.set_read_timeout(None).unwrap();
        let to = socket.local_addr().unwrap();
        let receiver = spawn(move || socket.recv(&mut [0; 8]).unwrap());
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"abc", to).unwrap();
        assert_eq!(receiver.join().unwrap(), 3);
    });
}

#[test]
fn a_pipe_and_a_poll_leave_nothing_either() {
    at_epoll(|| {
        let (reader, writer) = pipe().unwrap();
        let wait = |end: PipeReader| sinew::timeout(Duration::from_millis(1), || (&end).read(&mut [0]).unwrap_err());
        let _ = wait(reader.try_clone().unwrap());
        assert_eq!(watched(&reader), 0);
        let _ = sinew::timeout(Duration::from_millis(1), || poll(&reader, Interest::Readable).unwrap_err());
        assert_eq!(watched(&reader), 0);
        drop(writer);
    });
}

#[test]
fn a_handle_is_told_of_what_comes_after_a_clone_was_dropped() {
    at_epoll(|| {
        let (near, far) = pair();
        let clone = far.try_clone().unwrap();
        let reader = spawn(move || {
            let mut byte = [0];
            (&far).read_exact(&mut byte).unwrap();
            byte[0]
        });
        clone.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert!((&clone).read(&mut [0]).is_err());
        await_until("both handles at epoll", || watched(&clone) >= 2);
        drop(clone);
        (&near).write_all(b"b").unwrap();
        assert_eq!(reader.join().unwrap(), b'b');
    });
}
