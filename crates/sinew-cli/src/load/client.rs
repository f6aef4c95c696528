//! One connection of the load: a request, and the whole of its answer.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use httparse::{EMPTY_HEADER, Response, Status};
use sinew::net::TcpStream;

/// How long a server may take to accept.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Messages above this are written and read at once, by two fibers: buffers of the system may not hold the whole, and an echo server that is not read from stops reading.
const WHOLE_BYTES_MAX: usize = 32 << 10;

/// Headers of an answer, at most, and bytes of its head.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 << 10;

/// What is said over a connection.
pub(super) enum Talk {
    /// Messages of so many bytes, which must come back.
    Echo { bytes: usize },
    /// This request.
    Http { request: Arc<[u8]> },
}

/// Why a request has no answer, or none that counts.
pub(super) enum Fault {
    Io(io::Error),
    Wrong(String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// As it is counted: the same text for the same fault.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => f.write_str("the server closed the connection"),
            Self::Io(error) => error.fmt(f),
            Self::Wrong(what) => f.write_str(what),
        }
    }
}

/// Whether a connection can carry another request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Closes,
}

/// A connection.
pub(super) struct Client {
    stream: TcpStream,
    speech: Speech,
}

enum Speech {
    Echo { message: Vec<u8>, answer: Vec<u8>, sequence: u64 },
    Http { request: Arc<[u8]>, buffer: Vec<u8> },
}

impl Client {
    /// Connects. `number` makes messages different from those of other connections.
    pub(super) fn connect(addr: &SocketAddr, talk: &Talk, number: usize) -> Result<Self, Fault> {
        let stream = TcpStream::connect_timeout(addr, CONNECT_TIME_MAX)?;
        stream.set_nodelay(true)?;
        let speech = match talk {
            Talk::Echo { bytes } => {
                let message = (0..*bytes).map(|i| (i + number) as u8).collect();
                Speech::Echo { message, answer: vec![0; *bytes], sequence: (number as u64) << 40 }
            }
            Talk::Http { request } => Speech::Http { request: request.clone(), buffer: vec![0; HEAD_BYTES_MAX] },
        };
        Ok(Self { stream, speech })
    }

    /// Sends a request and reads its answer.
    pub(super) fn exchange(&mut self) -> Result<Then, Fault> {
        match &mut self.speech {
            Speech::Echo { message, answer, sequence } => {
                *sequence += 1;
                let number = sequence.to_le_bytes();
                let numbered = message.len().min(number.len());
                message[..numbered].copy_from_slice(&number[..numbered]);
                echo(&self.stream, message, answer)?;
                if message != answer {
                    return Err(Fault::Wrong("an answer that is not the message".into()));
                }
                Ok(Then::GoOn)
            }
            Speech::Http { request, buffer } => {
                (&self.stream).write_all(request)?;
                read_answer(&self.stream, buffer)
            }
        }
    }
}

fn echo(mut stream: &TcpStream, message: &[u8], answer: &mut [u8]) -> io::Result<()> {
    if message.len() <= WHOLE_BYTES_MAX {
        stream.write_all(message)?;
        return stream.read_exact(answer);
    }
    sinew::scope(|s| {
        let writer = s.spawn(|| { stream }.write_all(message));
        let read = { stream }.read_exact(answer);
        if read.is_err() {
            // So that the writer ends too. A connection that is gone already does not mind.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let written = writer.join().expect("a write does not panic");
        written.and(read)
    })
}

/// The head of an answer.
struct Head {
    bytes: usize,
    /// Of the body; none if it goes on until the server closes.
    length: Option<usize>,
    then: Then,
}

fn read_answer(mut stream: &TcpStream, buffer: &mut [u8]) -> Result<Then, Fault> {
    let mut filled = 0;
    let head = loop {
        let received = stream.read(&mut buffer[filled..])?;
        if received == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        filled += received;
        match parse(&buffer[..filled])? {
            Some(head) => break head,
            None if filled == buffer.len() => {
                return Err(Fault::Wrong(format!("an answer with a head of more than {HEAD_BYTES_MAX} bytes")));
            }
            None => {}
        }
    };
    let Some(length) = head.length else {
        while stream.read(buffer)? > 0 {}
        return Ok(Then::Closes);
    };
    let mut left = (head.bytes + length).checked_sub(filled).ok_or_else(|| Fault::Wrong("an answer longer than it says".into()))?;
    while left > 0 {
        let room = left.min(buffer.len());
        match stream.read(&mut buffer[..room])? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            received => left -= received,
        }
    }
    Ok(head.then)
}

/// The head at the beginning of `bytes`; none if that is not all of it.
fn parse(bytes: &[u8]) -> Result<Option<Head>, Fault> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut response = Response::new(&mut headers);
    let head = match response.parse(bytes) {
        Ok(Status::Complete(head)) => head,
        Ok(Status::Partial) => return Ok(None),
        Err(error) => return Err(Fault::Wrong(format!("an answer that is no HTTP/1: {error}"))),
    };
    match response.code {
        Some(200..=299) => {}
        code => return Err(Fault::Wrong(format!("status {}", code.unwrap_or(0)))),
    }
    let says = |name: &str| {
        let header = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        header.map(|header| String::from_utf8_lossy(header.value).trim().to_ascii_lowercase())
    };
    if says("transfer-encoding").is_some() {
        return Err(Fault::Wrong("a chunked answer, which this load does not read".into()));
    }
    let length = match says("content-length").map(|text| text.parse::<usize>()) {
        Some(Ok(length)) if length.checked_add(head).is_none() => {
            return Err(Fault::Wrong(format!("an answer with a Content-Length of {length}")));
        }
        Some(Ok(length)) => Some(length),
        Some(Err(_)) => return Err(Fault::Wrong("an answer with a Content-Length that is no number".into())),
        None if response.code == Some(204) => Some(0),
        None => None,
    };
    let closes = match says("connection").as_deref() {
        Some("close") => true,
        Some("keep-alive") => false,
        _ => response.version == Some(0),
    };
    Ok(Some(Head { bytes: head, length, then: if closes { Then::Closes } else { Then::GoOn } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(bytes: &[u8]) -> String {
        parse(bytes).err().expect("it is no good answer").to_string()
    }

    #[test]
    fn heads_are_understood() {
        let head = parse(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").ok().flatten().unwrap();
        assert_eq!((head.bytes, head.length, head.then), (38, Some(5), Then::GoOn));
        let head = parse(b"HTTP/1.0 200 OK\r\n\r\n").ok().flatten().unwrap();
        assert_eq!((head.length, head.then), (None, Then::Closes));
        assert!(matches!(parse(b"HTTP/1.1 200 OK\r\ncont"), Ok(None)));
    }

    #[test]
    fn other_heads_are_named() {
        assert_eq!(fault(b"HTTP/1.1 404 Not Found\r\n\r\n"), "status 404");
        assert!(fault(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").contains("chunked"));
        assert!(fault(b"SSH-2.0-x\r\n\r\n").contains("no HTTP/1"));
        assert!(fault(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n").contains("Content-Length"));
        let most = usize::MAX;
        assert!(fault(format!("HTTP/1.1 200 OK\r\nContent-Length: {most}\r\n\r\n").as_bytes()).contains(&most.to_string()));
    }
}
