//! Servers of systems whose tasks block: one task per connection, `Read` and `Write` as in std.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use super::Blocking;
use crate::deeds::servers::{BUFFER_BYTES, HttpAnswer, burn_if_hog, http_request_bytes};
use crate::job::{Deed, Job, Reading};
use crate::server::announce;

/// Sockets of a system.
pub(crate) trait Net: Blocking {
    type Listener: Send + 'static;
    type Stream: Read + Write + Send + 'static;

    /// At a port that the kernel chooses.
    fn listen() -> io::Result<(Self::Listener, SocketAddr)>;
    /// The next connection, which does not delay small messages.
    fn accept(listener: &Self::Listener) -> io::Result<Self::Stream>;
}

/// `Net` for a system whose sockets are called and used as std's are.
macro_rules! net_as_in_std {
    ($system:ty, $($module:ident)::+) => {
        impl $crate::deeds::blocking::servers::Net for $system {
            type Listener = $($module)::+::TcpListener;
            type Stream = $($module)::+::TcpStream;

            fn listen() -> std::io::Result<(Self::Listener, std::net::SocketAddr)> {
                let listener = Self::Listener::bind($crate::server::ANY_PORT)?;
                let address = listener.local_addr()?;
                Ok((listener, address))
            }
            fn accept(listener: &Self::Listener) -> std::io::Result<Self::Stream> {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(stream)
            }
        }
    };
}
pub(crate) use net_as_in_std;

/// Serves `job` on `S`, for ever: HTTP by hand.
pub(crate) fn perform<S: Net>(job: &Job) -> Vec<Reading> {
    let deed = job.deed;
    if deed.is_http() { serve::<S>(job, hello) } else { serve::<S>(job, move |stream| echo(deed, stream)) }
}

/// Serves each connection by `talk`.
fn serve<S: Net>(job: &Job, talk: impl Fn(S::Stream) -> io::Result<()> + Copy + Send + 'static) -> Vec<Reading> {
    S::run(job, move || {
        let (listener, address) = S::listen().expect("a port is free");
        announce(address);
        loop {
            let stream = S::accept(&listener).expect("a connection can be accepted");
            // What the load closes ends its task, and nobody waits for that.
            drop(S::spawn(move || talk(stream)));
        }
    })
}

fn echo(deed: Deed, mut stream: impl Read + Write) -> io::Result<()> {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        let got = match stream.read(&mut buffer)? {
            0 => return Ok(()),
            got => got,
        };
        burn_if_hog(deed, &buffer[..got]);
        stream.write_all(&buffer[..got])?;
    }
}

/// HTTP by hand: answers every whole request, and reads on from where it ended.
fn hello(mut stream: impl Read + Write) -> io::Result<()> {
    let (mut buffer, mut filled) = ([0; BUFFER_BYTES], 0);
    let mut answer = HttpAnswer::new();
    loop {
        filled += match stream.read(&mut buffer[filled..])? {
            0 => return Ok(()),
            got => got,
        };
        while let Some(bytes) = http_request_bytes(&buffer[..filled]).map_err(io::Error::other)? {
            stream.write_all(answer.bytes())?;
            buffer.copy_within(bytes..filled, 0);
            filled -= bytes;
        }
    }
}
