//! compio: one thread with a ring of its own. It takes buffers away and gives them back, so the servers are written for it.

use compio::BufResult;
use compio::io::{AsyncRead, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::Runtime;

use crate::deeds::servers::BUFFER_BYTES;
use crate::job::{Job, Reading};
use crate::server::{ANY_PORT, announce};

/// Echoes for ever.
pub(crate) fn serve(_: &Job) -> Vec<Reading> {
    Runtime::new().expect("a runtime can be built").block_on(async {
        let listener = TcpListener::bind(ANY_PORT).await.expect("a port is free");
        announce(listener.local_addr().expect("a listener has an address"));
        loop {
            let (stream, _) = listener.accept().await.expect("a connection can be accepted");
            stream.set_nodelay(true).expect("a connection takes options");
            compio::runtime::spawn(echo(stream)).detach();
        }
    })
}

async fn echo(mut stream: TcpStream) {
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    loop {
        let BufResult(got, read) = stream.read(buffer).await;
        if !got.is_ok_and(|got| got > 0) {
            return;
        }
        let BufResult(written, back) = stream.write_all(read).await;
        if written.is_err() {
            return;
        }
        buffer = back;
        buffer.clear();
    }
}
