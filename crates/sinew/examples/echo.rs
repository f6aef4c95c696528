//! An echo server and a hundred clients, in plain blocking code: a loop that accepts, a fiber per connection.
//!
//!     cargo run --release --example echo

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use sinew::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

const CLIENTS: usize = 100;
const MESSAGES: usize = 50;

/// Sends back what it receives until the client has no more; how many bytes that was.
fn echo(mut stream: TcpStream) -> io::Result<usize> {
    let (mut buffer, mut bytes) = ([0; 1024], 0);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(bytes),
            received => {
                stream.write_all(&buffer[..received])?;
                bytes += received;
            }
        }
    }
}

/// Accepts until it is cancelled, and sums up what its connections did. The scope waits for them: no list of handles grows with each.
fn serve(listener: &TcpListener) -> usize {
    let bytes = AtomicUsize::new(0);
    sinew::scope(|s| {
        while let Ok((stream, _)) = listener.accept() {
            s.spawn(|| bytes.fetch_add(echo(stream).unwrap(), Relaxed));
        }
    });
    bytes.into_inner()
}

/// Says something and hears it back, again and again; how many bytes that was.
fn talk(addr: SocketAddr, client: usize) -> io::Result<usize> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    let mut bytes = 0;
    for i in 0..MESSAGES {
        let message = format!("message {i} of client {client}");
        stream.write_all(message.as_bytes())?;
        let mut answer = vec![0; message.len()];
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, message.as_bytes());
        bytes += message.len();
    }
    // The server reads to the end, and then closes too.
    stream.shutdown(Shutdown::Write)?;
    assert_eq!(stream.read(&mut [0])?, 0);
    Ok(bytes)
}

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    let server = sinew::spawn(move || serve(&listener));
    let clients: Vec<_> = (0..CLIENTS).map(|client| sinew::spawn(move || talk(addr, client).unwrap())).collect();
    let sent: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();

    server.cancel();
    let echoed = server.join().unwrap();
    println!("{CLIENTS} clients sent {sent} bytes, {echoed} bytes were sent back");
    assert_eq!(sent, echoed);
    Ok(())
}
