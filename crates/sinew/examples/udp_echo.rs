//! Echo by UDP: one socket serves all clients. A packet may be lost, so a client has a time-out and asks again.
//!
//!     cargo run --release --example udp_echo

use std::io;
use std::time::Duration;

use sinew::net::{SocketAddr, UdpSocket};

const CLIENTS: u32 = 50;
const PACKET_BYTES_MAX: usize = 1500;

/// Sends every packet back to where it came from, until it is cancelled; how many there were.
fn serve(socket: &UdpSocket) -> io::Result<u32> {
    let (mut buffer, mut packets) = ([0; PACKET_BYTES_MAX], 0);
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((length, peer)) => {
                socket.send_to(&buffer[..length], peer)?;
                packets += 1;
            }
            Err(_) if sinew::cancelled() => return Ok(packets),
            Err(error) => return Err(error),
        }
    }
}

/// Asks until there is an answer; how often it had to.
fn ask(server: SocketAddr, client: u32) -> io::Result<u32> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let question = client.to_le_bytes();
    for asked in 1.. {
        socket.send(&question)?;
        let mut answer = [0; PACKET_BYTES_MAX];
        match socket.recv(&mut answer) {
            Ok(length) => {
                assert_eq!(answer[..length], question);
                return Ok(asked);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => println!("client {client} asks again"),
            Err(error) => return Err(error),
        }
    }
    unreachable!("it asks until there is an answer")
}

fn main() -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let addr = socket.local_addr()?;
    let server = sinew::spawn(move || serve(&socket).unwrap());
    let clients: Vec<_> = (0..CLIENTS).map(|client| sinew::spawn(move || ask(addr, client).unwrap())).collect();
    let asked: u32 = clients.into_iter().map(|client| client.join().unwrap()).sum();

    server.cancel();
    let answered = server.join().unwrap();
    println!("{CLIENTS} clients asked {asked} times, the server answered {answered}");
    assert!(asked >= CLIENTS && (CLIENTS..=asked).contains(&answered));
    Ok(())
}
