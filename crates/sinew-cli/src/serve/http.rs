//! The least of HTTP/1.1 that a load can be put on: every request is answered with the same words, connections stay open, requests may come in one packet.

use std::io::{self, Read, Write};

use httparse::{EMPTY_HEADER, Request, Status};
use sinew::net::TcpStream;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, world!";
const REFUSAL: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Headers of a request, at most. What browsers send is a third of that.
const HEADERS_MAX: usize = 64;
/// A request's head, at most. Arbitrary; as common servers have it.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Answers requests until the client closes, or asks to.
pub(super) fn hello(mut stream: &TcpStream, bytes: &mut u64) -> io::Result<()> {
    let mut buffer = vec![0; HEAD_BYTES_MAX];
    let (mut filled, mut answers) = (0, Vec::new());
    loop {
        let received = stream.read(&mut buffer[filled..])?;
        if received == 0 {
            return Ok(());
        }
        *bytes += received as u64;
        filled += received;
        let mut rest = &buffer[..filled];
        let next = loop {
            match request(rest) {
                Next::Answer { length } => {
                    answers.extend_from_slice(ANSWER);
                    rest = &rest[length..];
                }
                other => break other,
            }
        };
        let (left, consumed) = (rest.len(), filled - rest.len());
        let is_full = left == HEAD_BYTES_MAX;
        match next {
            Next::Last => answers.extend_from_slice(ANSWER),
            Next::Refuse => answers.extend_from_slice(REFUSAL),
            _ if is_full => answers.extend_from_slice(REFUSAL),
            _ => {}
        }
        stream.write_all(&answers)?;
        if is_full || matches!(next, Next::Last | Next::Refuse) {
            return Ok(());
        }
        answers.clear();
        buffer.copy_within(consumed..filled, 0);
        filled = left;
    }
}

/// What stands at the head of the bytes received.
enum Next {
    /// A request of that length; others may follow.
    Answer { length: usize },
    /// A request after which the client wants no more.
    Last,
    /// A part of one.
    More,
    /// None that is understood.
    Refuse,
}

fn request(bytes: &[u8]) -> Next {
    if bytes.is_empty() {
        return Next::More;
    }
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let head = match request.parse(bytes) {
        Ok(Status::Complete(head)) => head,
        Ok(Status::Partial) => return Next::More,
        Err(_) => return Next::Refuse,
    };
    let says = |name: &str| request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value);
    // A body is passed over: nobody here wants it.
    let body = says("content-length").map_or(Some(0), |text| std::str::from_utf8(text).ok()?.trim().parse::<usize>().ok());
    let Some(length) = body.and_then(|body| head.checked_add(body)).filter(|_| says("transfer-encoding").is_none()) else {
        return Next::Refuse;
    };
    let closes = says("connection").is_some_and(|value| value.eq_ignore_ascii_case(b"close"));
    let keeps = request.version == Some(1) || says("connection").is_some_and(|value| value.eq_ignore_ascii_case(b"keep-alive"));
    match () {
        () if bytes.len() < length => Next::More,
        () if closes || !keeps => Next::Last,
        () => Next::Answer { length },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let get = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        assert!(matches!(request(get), Next::Answer { length } if length == get.len()));
        assert!(matches!(request(&get[..10]), Next::More));
        assert!(matches!(request(b"GET / HTTP/1.0\r\n\r\n"), Next::Last));
        assert!(matches!(request(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"), Next::Last));
        assert!(matches!(request(b"\x16\x03\x01 no http"), Next::Refuse));
        assert!(matches!(request(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab"), Next::More));
        assert!(matches!(request(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), Next::Answer { length: 41 }));
        assert!(matches!(request(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), Next::Refuse));
    }
}
