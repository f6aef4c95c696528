//! Servers of systems whose tasks are futures: one task per connection. It follows the one of `blocking`.

use std::io;
use std::net::SocketAddr;

use super::Futures;
use crate::deeds::servers::{BUFFER_BYTES, burn_if_hog};
use crate::job::{Deed, Job, Reading};
use crate::server::announce;

/// Sockets of a system; as `blocking::servers::Net`.
pub(crate) trait Net: Futures {
    type Listener: Send + Sync + 'static;
    type Stream: Send + 'static;

    fn listen() -> impl Future<Output = io::Result<(Self::Listener, SocketAddr)>> + Send;
    fn accept(listener: &Self::Listener) -> impl Future<Output = io::Result<Self::Stream>> + Send;
    fn read(stream: &mut Self::Stream, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send;
    fn write_all(stream: &mut Self::Stream, bytes: &[u8]) -> impl Future<Output = io::Result<()>> + Send;
    /// Makes a task of a future whose end nobody waits for.
    fn detach(task: impl Future<Output = io::Result<()>> + Send + 'static);
}

/// Echoes for `job` on `S`, for ever.
pub(crate) fn perform<S: Net>(job: &Job) -> Vec<Reading> {
    let deed = job.deed;
    serve::<S, _>(job, move |stream| echo::<S>(deed, stream))
}

/// Serves each connection by `talk`.
pub(crate) fn serve<S: Net, T: Future<Output = io::Result<()>> + Send + 'static>(
    job: &Job,
    talk: impl Fn(S::Stream) -> T + Send + Sync + 'static,
) -> Vec<Reading> {
    S::run(job, async move {
        let (listener, address) = S::listen().await.expect("a port is free");
        announce(address);
        loop {
            S::detach(talk(S::accept(&listener).await.expect("a connection can be accepted")));
        }
    })
}

async fn echo<S: Net>(deed: Deed, mut stream: S::Stream) -> io::Result<()> {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        let got = match S::read(&mut stream, &mut buffer).await? {
            0 => return Ok(()),
            got => got,
        };
        burn_if_hog(deed, &buffer[..got]);
        S::write_all(&mut stream, &buffer[..got]).await?;
    }
}
