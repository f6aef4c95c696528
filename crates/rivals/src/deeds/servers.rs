//! What servers of all shapes share: messages, hogs, HTTP by hand.

use std::time::Duration;

use crate::job::Deed;
use crate::machine::civil;
use crate::proc;

/// Bytes of a request and of its echo.
pub(crate) const MESSAGE_BYTES: usize = 64;
/// Bytes of the buffer that a server reads into.
pub(crate) const BUFFER_BYTES: usize = 1024;
/// First byte of a request that makes the server compute.
pub(crate) const HOG: u8 = b'h';
/// One request of so many does, in the deeds with hogs.
pub(crate) const HOG_EVERY: usize = 100;
/// CPU time that it takes.
const HOG_SPAN: Duration = Duration::from_millis(10);
/// What the load of an HTTP server asks.
pub(crate) const HTTP_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// What a server answers.
pub(crate) const HELLO: &str = "Hello, world!";
/// Most headers of a request.
const HEADERS_MAX: usize = 16;

/// Computes if the request asks for it. No yields: that is the point.
#[inline]
pub(crate) fn burn_if_hog(deed: Deed, request: &[u8]) {
    if deed.has_hogs() && request.first() == Some(&HOG) {
        let end = proc::thread_time() + HOG_SPAN;
        while proc::thread_time() < end {
            std::hint::spin_loop();
        }
    }
}

/// Bytes of the first whole HTTP request in `input`, if there is one; `Err` if what is there is none.
pub(crate) fn http_request_bytes(input: &[u8]) -> Result<Option<usize>, httparse::Error> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    Ok(match httparse::Request::new(&mut headers).parse(input)? {
        httparse::Status::Complete(bytes) => Some(bytes),
        httparse::Status::Partial => None,
    })
}

/// The answer to every HTTP request, with the date that the standard asks for, made once a second.
pub(crate) struct HttpAnswer {
    made_at: u64,
    text: String,
}

impl HttpAnswer {
    pub(crate) fn new() -> Self {
        Self { made_at: u64::MAX, text: String::new() }
    }

    pub(crate) fn bytes(&mut self) -> &[u8] {
        let now = coarse_seconds();
        if now != self.made_at {
            let (length, date) = (HELLO.len(), http_date(now));
            self.text = format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\ndate: {date}\r\n\r\n{HELLO}");
            self.made_at = now;
        }
        self.text.as_bytes()
    }
}

/// Seconds since 1970 as of the kernel's last tick, which is less to ask than the time: other servers keep a thread for it.
fn coarse_seconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut now) };
    u64::try_from(now.tv_sec).unwrap_or(0)
}

/// As in `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (day, second) = (seconds / 86400, seconds % 86400);
    let (year, month, of_month) = civil(day);
    let (weekday, month) = (DAYS[(day % 7) as usize], MONTHS[month as usize - 1]);
    format!("{weekday}, {of_month:02} {month} {year} {:02}:{:02}:{:02} GMT", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_as_the_standard_has_them() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn a_request_is_found_when_it_is_whole() {
        assert_eq!(http_request_bytes(&HTTP_REQUEST[..20]), Ok(None));
        let twice = [HTTP_REQUEST, HTTP_REQUEST].concat();
        assert_eq!(http_request_bytes(&twice), Ok(Some(HTTP_REQUEST.len())));
        assert!(http_request_bytes(b"\x01\x02 nonsense\r\n\r\n").is_err());
    }

    #[test]
    fn only_a_hog_computes() {
        let spent = |deed, request: &[u8]| {
            let before = proc::thread_time();
            burn_if_hog(deed, request);
            proc::thread_time() - before
        };
        assert!(spent(Deed::Hog, b"h...") >= HOG_SPAN);
        assert!(spent(Deed::Hog, b"....") < HOG_SPAN);
        assert!(spent(Deed::Echo, b"h...") < HOG_SPAN);
    }
}
