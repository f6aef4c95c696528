//! A chat room: what one says, all hear, in the same order. Two fibers per guest: one reads what he says, one writes what the room hears.
//!
//!     cargo run --release --example chat

use std::io::{self, BufRead, BufReader, Write};
use std::sync::Arc;

use sinew::chan::broadcast;
use sinew::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use sinew::sync::Barrier;

const GUESTS: usize = 20;
const LINES: usize = 10;
/// The room remembers this much for a guest who reads slowly: all that is ever said here.
const BACKLOG: usize = GUESTS * LINES;

/// Admits the guests, and ends when the last has left.
fn host(listener: &TcpListener) -> io::Result<()> {
    let (room, _) = broadcast::<Arc<str>>(BACKLOG);
    sinew::scope(|s| {
        for _ in 0..GUESTS {
            let (stream, _) = listener.accept()?;
            let (stream, room, mut heard) = (Arc::new(stream), room.clone(), room.subscribe());
            let ear = stream.clone();
            // Ends when the last mouth has: then the room has no sender any more.
            s.spawn(move || {
                while let Ok(line) = heard.recv() {
                    writeln!(&*ear, "{line}").expect("guests stay to the end");
                }
                ear.shutdown(Shutdown::Write).expect("guests stay to the end");
            });
            s.spawn(move || {
                for line in BufReader::new(&*stream).lines() {
                    room.send(line.expect("guests speak plainly").into()).expect("somebody listens");
                }
            });
        }
        drop(room);
        Ok(())
    })
}

/// Says his lines, and returns all that he heard.
fn visit(addr: SocketAddr, guest: usize, all_here: &Barrier) -> io::Result<Vec<String>> {
    let stream = TcpStream::connect(addr)?;
    all_here.wait();
    for line in 0..LINES {
        writeln!(&stream, "guest {guest}: line {line}")?;
        sinew::yield_now();
    }
    stream.shutdown(Shutdown::Write)?;
    BufReader::new(&stream).lines().collect()
}

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    let all_here = Arc::new(Barrier::new(GUESTS));
    let host = sinew::spawn(move || host(&listener).unwrap());
    let guests: Vec<_> = (0..GUESTS)
        .map(|guest| {
            let all_here = all_here.clone();
            sinew::spawn(move || visit(addr, guest, &all_here).unwrap())
        })
        .collect();
    let heard: Vec<_> = guests.into_iter().map(|guest| guest.join().unwrap()).collect();
    host.join().unwrap();

    println!("{GUESTS} guests heard {} lines each, the first was {:?}", heard[0].len(), heard[0][0]);
    // A guest who was admitted late has missed the beginning; what he heard, he heard as all others.
    let longest = heard.iter().max_by_key(|lines| lines.len()).unwrap();
    assert!(heard.iter().all(|lines| longest.ends_with(lines) && lines.len() >= LINES));
    assert_eq!(longest.len(), GUESTS * LINES);
    Ok(())
}
