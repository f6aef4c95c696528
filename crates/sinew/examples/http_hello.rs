//! A tiny HTTP server by hand: a fiber per connection, lines by `BufReader`, connections that stay open. For more, see `sinew serve http`.
//!
//!     cargo run --release --example http_hello

use std::io::{self, BufRead, BufReader, Read, Write};

use sinew::net::{SocketAddr, TcpListener, TcpStream};
use sinew::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use sinew::sync::{Arc, WaitGroup};

const CLIENTS: usize = 16;
const REQUESTS: usize = 20;

/// Answers requests without bodies until the client has no more.
fn attend(stream: &TcpStream) -> io::Result<usize> {
    let (mut lines, mut answered) = (BufReader::new(stream).lines(), 0);
    while let Some(request) = lines.next().transpose()? {
        // The headers, up to the empty line.
        while lines.next().transpose()?.is_some_and(|header| !header.is_empty()) {}
        let (status, body) = match request.split(' ').collect::<Vec<_>>()[..] {
            ["GET", "/", _] => ("200 OK", String::from("Hello, world!\n")),
            ["GET", path, _] if path.starts_with("/hello/") => ("200 OK", format!("Hello, {}!\n", &path["/hello/".len()..])),
            ["GET", ..] => ("404 Not Found", String::from("There is no such page.\n")),
            _ => ("405 Method Not Allowed", String::new()),
        };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        { stream }.write_all(answer.as_bytes())?;
        answered += 1;
    }
    Ok(answered)
}

/// Accepts until it is cancelled, and then waits for the connections that are open; how many requests were answered.
fn serve(listener: &TcpListener) -> usize {
    let (answered, all) = (Arc::new(AtomicUsize::new(0)), WaitGroup::new());
    while let Ok((stream, _)) = listener.accept() {
        let (answered, part) = (answered.clone(), all.clone());
        // Nobody keeps its handle, and no cancel of this fiber reaches it: it goes on until its client has no more.
        sinew::spawn(move || {
            answered.fetch_add(attend(&stream).unwrap(), Relaxed);
            drop(part);
        });
    }
    all.wait();
    answered.load(Relaxed)
}

/// Gets a page; its status line and its body.
fn get(stream: &mut BufReader<TcpStream>, path: &str) -> io::Result<(String, String)> {
    stream.get_mut().write_all(format!("GET {path} HTTP/1.1\r\nHost: example\r\n\r\n").as_bytes())?;
    let (mut status, mut length) = (String::new(), 0);
    stream.read_line(&mut status)?;
    loop {
        let mut header = String::new();
        stream.read_line(&mut header)?;
        match header.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.parse().map_err(io::Error::other)?,
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((status.trim_end().to_owned(), String::from_utf8(body).map_err(io::Error::other)?))
}

fn browse(addr: SocketAddr, client: usize) -> io::Result<()> {
    let mut stream = BufReader::new(TcpStream::connect(addr)?);
    for i in 0..REQUESTS {
        let (status, body) = get(&mut stream, &format!("/hello/{client}.{i}"))?;
        assert_eq!((&*status, body), ("HTTP/1.1 200 OK", format!("Hello, {client}.{i}!\n")));
    }
    assert_eq!(get(&mut stream, "/nowhere")?.0, "HTTP/1.1 404 Not Found");
    Ok(())
}

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    let server = sinew::spawn(move || serve(&listener));
    let clients: Vec<_> = (0..CLIENTS).map(|client| sinew::spawn(move || browse(addr, client).unwrap())).collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    server.cancel();
    let answered = server.join().unwrap();
    println!("http://{addr}/ answered {answered} requests");
    assert_eq!(answered, CLIENTS * (REQUESTS + 1));
    Ok(())
}
