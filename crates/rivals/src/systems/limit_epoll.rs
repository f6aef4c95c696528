//! The limit of a server on epoll: one hand-written loop, no tasks.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::deeds::servers::BUFFER_BYTES;
use crate::job::{Job, Reading};
use crate::poll::{self, EPOLLIN, Poll};
use crate::server::{ANY_PORT, announce};

/// Echoes for ever: per request one receive and one send, and a wait per batch of ready sockets.
///
/// Level-triggered, since edges gain nothing where each message is read whole.
pub(crate) fn serve(_: &Job) -> Vec<Reading> {
    let listener = TcpListener::bind(ANY_PORT).expect("a port is free");
    listener.set_nonblocking(true).expect("a socket can be made so");
    announce(listener.local_addr().expect("a listener has an address"));
    let mut poll = Poll::new();
    let listening = listener.as_raw_fd() as u64;
    poll.add(listener.as_raw_fd(), EPOLLIN, listening);
    let (mut ready, mut buffer) = (Vec::new(), [0; BUFFER_BYTES]);
    loop {
        ready.extend(poll.wait(None));
        for token in ready.drain(..) {
            if token == listening {
                accept_all(&listener, &poll);
            } else {
                echo(token as RawFd, &mut buffer);
            }
        }
    }
}

fn accept_all(listener: &TcpListener, poll: &Poll) {
    while let Ok((stream, _)) = listener.accept() {
        stream.set_nodelay(true).expect("a connection takes options");
        let fd = std::os::fd::IntoRawFd::into_raw_fd(stream);
        poll.add(fd, EPOLLIN, fd as u64);
    }
}

fn echo(fd: RawFd, buffer: &mut [u8]) {
    let echoed = match poll::receive(fd, buffer) {
        Ok(0) => false,
        Ok(got) => poll::send(fd, &buffer[..got]).is_ok(),
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    };
    if !echoed {
        // SAFETY: the descriptor came from a stream that gave it up to us, and is in nobody's hands but the set's, which forgets it with its end.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}
