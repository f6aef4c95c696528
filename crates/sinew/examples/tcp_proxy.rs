//! A TCP proxy: each connection is joined to one of its own to the server, two fibers carry the bytes, and an end of one side is passed on to the other.
//!
//!     cargo run --release --example tcp_proxy

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sinew::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

const CLIENTS: usize = 8;
const MESSAGE_BYTES: usize = 200_000;

static CARRIED: AtomicU64 = AtomicU64::new(0);

/// Carries all bytes from one to the other, then the end.
fn carry(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let bytes = sinew::io::copy(&mut { from }, &mut { to })?;
    CARRIED.fetch_add(bytes, Relaxed);
    to.shutdown(Shutdown::Write)
}

fn join_up(client: &TcpStream, server: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    sinew::scope(|s| {
        let there = s.spawn(|| carry(client, &server));
        let back = carry(&server, client);
        there.join().expect("it does not panic").and(back)
    })
}

/// Calls `attend` with each connection, in a fiber of its own, until it is cancelled.
fn serve(listener: &TcpListener, attend: impl Fn(TcpStream) -> io::Result<()> + Sync) {
    sinew::scope(|s| {
        let attend = &attend;
        while let Ok((stream, _)) = listener.accept() {
            s.spawn(move || attend(stream).expect("no connection breaks here"));
        }
    });
}

/// Reads to the end, and answers with the bytes in reverse.
fn reverse(mut stream: TcpStream) -> io::Result<()> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    bytes.reverse();
    stream.write_all(&bytes)
}

fn ask(proxy: SocketAddr, client: usize) -> io::Result<()> {
    let mut stream = TcpStream::connect(proxy)?;
    let message: Vec<_> = (0..MESSAGE_BYTES).map(|i| (i * (client + 1)) as u8).collect();
    stream.write_all(&message)?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    assert!(answer.iter().rev().eq(&message), "client {client} has another answer");
    Ok(())
}

fn main() -> io::Result<()> {
    let (listener, behind) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    let (proxy, server) = (listener.local_addr()?, behind.local_addr()?);
    let fibers = [sinew::spawn(move || serve(&behind, reverse)), sinew::spawn(move || serve(&listener, |client| join_up(&client, server)))];
    let clients: Vec<_> = (0..CLIENTS).map(|client| sinew::spawn(move || ask(proxy, client).unwrap())).collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    // All connections have ended: nothing is cut short but the waits for more.
    fibers.iter().for_each(|fiber| fiber.cancel());
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());

    println!("{CLIENTS} clients; the proxy carried {} bytes", CARRIED.load(Relaxed));
    assert_eq!(CARRIED.load(Relaxed), (2 * CLIENTS * MESSAGE_BYTES) as u64);
    Ok(())
}
