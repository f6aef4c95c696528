//! The load on a server: one thread, many connections, one request under way on each.
//!
//! Closed loop: an answer is followed by the next request at once, so latency is connections by throughput, and fairness shows as p99 by p50. Open loop
//! (`Deed::HogPaced`): requests are due at fixed times, and latency counts from the time that a request was due, also if no connection was free then.
//!
//! Answers are taken in the order in which they came: edges, not levels. (Where epoll tells of levels it keeps all that it has told of at the head of its list, and looks there first; an answer that came a moment too late for
//! one look stood behind all who had been asked since, and had waited for two rounds of the load and not for one. p99 of the faster server was the worse for it.)
//!
//! On loopback a request costs the load what it costs a bare epoll server. So the load may be the bottleneck, and the figure to compare is the server's CPU time
//! per request, which does not depend on it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::cpu;
use crate::deeds::servers::{HOG, HOG_EVERY, HTTP_REQUEST, MESSAGE_BYTES};
use crate::job::{Deed, Job, Reading};
use crate::poll::{self, EPOLLET, EPOLLIN, Poll};
use crate::requests::Requests;
use crate::server::{self, Server};
use crate::systems::System;

/// A server that says nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// The load runs for this share of the measured time before it counts.
const WARM_UP: f64 = 0.25;
/// Requests per second of the open loop: a fifth of one CPU goes to hogs.
const PACE_PER_SECOND: u64 = 2000;
/// Connections that are opened together: fewer than std's listeners let wait.
const CONNECT_AT_ONCE: usize = 100;
/// Room for an answer.
const ANSWER_BYTES: usize = 1024;

/// Starts `system` as a server, loads it for `job.turns` milliseconds with `job.tasks` connections, and says what that gave.
pub(crate) fn measure(system: &System, job: &Job) -> Vec<Reading> {
    let server = Server::start(system, job);
    server::raise_file_limit();
    if job.deed.is_pinned() {
        cpu::stay_on(*cpu::allowed().last().expect("this process runs somewhere"));
    } else {
        run_before_all_others();
    }
    let mut load = Load::new(server.address(), job);
    let span = Duration::from_millis(job.turns as u64);
    load.run(span.mul_f64(WARM_UP));
    let cpu = server.cpu_time();
    let answers = load.run(span);
    answers.readings(server.cpu_time() - cpu)
}

/// Where servers and load share CPUs, waiting for one would be taken for the server's latency. Without the right to it the figures are a little worse for all.
fn run_before_all_others() {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the priority is plain data that lives through the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) };
}

/// A connection and the request under way on it.
struct Client {
    stream: TcpStream,
    due_ns: u64,
    got: usize,
    hog: bool,
}

/// When requests of the open loop are due.
struct Pace {
    begun_ns: u64,
    asked: u64,
}

impl Pace {
    const fn due_ns(&self) -> u64 {
        self.begun_ns + self.asked * 1_000_000_000 / PACE_PER_SECOND
    }
}

struct Load {
    deed: Deed,
    poll: Poll,
    /// Clients that the kernel says have something, of one look.
    ready: Vec<u64>,
    clients: Vec<Client>,
    request: Vec<u8>,
    answer_bytes: usize,
    start: Instant,
    asked: usize,
    /// Clients without a request: at first all, later only in the open loop.
    free: Vec<usize>,
}

impl Load {
    /// Connects all clients. Each has had an answer then, so that nobody waits to be accepted any more.
    fn new(address: SocketAddr, job: &Job) -> Self {
        let request = if job.deed.is_http() { HTTP_REQUEST.to_vec() } else { vec![b'.'; MESSAGE_BYTES] };
        let (poll, mut clients, mut answer_bytes) = (Poll::new(), Vec::with_capacity(job.tasks), 0);
        while clients.len() < job.tasks {
            let count = CONNECT_AT_ONCE.min(job.tasks - clients.len());
            let asked: io::Result<Vec<_>> = (0..count).map(|_| connect(address, &request)).collect();
            for mut stream in asked.unwrap_or_else(|error| panic!("a connection after {}: {error}", clients.len())) {
                let answer = first_answer(&mut stream, &request);
                answer_bytes = answer.unwrap_or_else(|error| panic!("first answer to {}: {error}", clients.len()));
                stream.set_nonblocking(true).expect("a socket can be made so");
                poll.add(stream.as_raw_fd(), EPOLLIN | EPOLLET, clients.len() as u64);
                clients.push(Client { stream, due_ns: 0, got: 0, hog: false });
            }
        }
        let free = (0..clients.len()).collect();
        Self { deed: job.deed, poll, ready: Vec::new(), clients, request, answer_bytes, start: Instant::now(), asked: 0, free }
    }

    fn run(&mut self, span: Duration) -> Requests {
        let start = Instant::now();
        let mut answers = Requests { late_ns: Vec::new(), count: 0, took: Duration::ZERO };
        let mut pace = (self.deed == Deed::HogPaced).then(|| Pace { begun_ns: self.now_ns(), asked: 0 });
        while start.elapsed() < span {
            let limit = match &mut pace {
                Some(pace) => self.ask_what_is_due(pace),
                None => self.ask_all(),
            };
            self.collect(limit, &mut answers);
        }
        answers.took = start.elapsed();
        answers
    }

    /// Closed loop: nobody is without a request. The answer to wait for may take as long as the patience lasts.
    fn ask_all(&mut self) -> Duration {
        while let Some(index) = self.free.pop() {
            self.ask(index, self.now_ns());
        }
        PATIENCE
    }

    /// Open loop: asks what is due, as far as connections are free, and says how long it is until more is.
    fn ask_what_is_due(&mut self, pace: &mut Pace) -> Duration {
        while pace.due_ns() <= self.now_ns()
            && let Some(index) = self.free.pop()
        {
            self.ask(index, pace.due_ns());
            pace.asked += 1;
        }
        if self.free.is_empty() { PATIENCE } else { Duration::from_nanos(pace.due_ns().saturating_sub(self.now_ns())) }
    }

    /// Takes what answers there are, or come within `limit`.
    fn collect(&mut self, limit: Duration, answers: &mut Requests) {
        self.ready.clear();
        self.ready.extend(self.poll.wait(Some(limit)));
        assert!(limit < PATIENCE || !self.ready.is_empty(), "no answer for {} s", PATIENCE.as_secs());
        for place in 0..self.ready.len() {
            let index = self.ready[place] as usize;
            if !self.clients[index].answered(self.answer_bytes) {
                continue;
            }
            let (now_ns, client) = (self.now_ns(), &self.clients[index]);
            answers.count += 1;
            if !client.hog {
                answers.late_ns.push(now_ns.saturating_sub(client.due_ns));
            }
            if self.deed == Deed::HogPaced {
                self.free.push(index);
            } else {
                self.ask(index, now_ns);
            }
        }
    }

    fn ask(&mut self, index: usize, due_ns: u64) {
        self.asked += 1;
        let client = &mut self.clients[index];
        client.due_ns = due_ns;
        client.hog = self.deed.has_hogs() && self.asked.is_multiple_of(HOG_EVERY);
        if self.deed.has_hogs() {
            self.request[0] = if client.hog { HOG } else { b'.' };
        }
        poll::send(client.stream.as_raw_fd(), &self.request).unwrap_or_else(|error| panic!("request on {index}: {error}"));
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

impl Client {
    /// Receives what is there, and says whether it is the whole answer now.
    fn answered(&mut self, answer_bytes: usize) -> bool {
        let mut buffer = [0; ANSWER_BYTES];
        match poll::receive(self.stream.as_raw_fd(), &mut buffer) {
            Ok(0) => panic!("the server closed a connection"),
            Ok(got) => self.got += got,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) => panic!("receiving an answer: {error}"),
        }
        assert!(self.got <= answer_bytes, "{} bytes came where {answer_bytes} were asked for", self.got);
        if self.got < answer_bytes {
            return false;
        }
        self.got = 0;
        true
    }
}

/// Connects, and sends the first request.
fn connect(address: SocketAddr, request: &[u8]) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    Ok(stream)
}

/// Waits for the answer to the first request, and says how long an answer is: all are alike.
fn first_answer(stream: &mut TcpStream, request: &[u8]) -> io::Result<usize> {
    if request != HTTP_REQUEST {
        let mut answer = [0; MESSAGE_BYTES];
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, request, "that is no echo");
        return Ok(MESSAGE_BYTES);
    }
    let (mut answer, mut got) = ([0; ANSWER_BYTES], 0);
    loop {
        got += match stream.read(&mut answer[got..])? {
            0 => return Err(io::Error::other("the server closed the connection")),
            more => more,
        };
        if let Some(whole) = http_answer_bytes(&answer[..got]).filter(|&whole| got >= whole) {
            assert_eq!(got, whole, "more came than one answer");
            return Ok(whole);
        }
    }
}

/// Length of an HTTP answer by its head, when that is there.
fn http_answer_bytes(answer: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(answer).expect("the answer is text");
    let head = text.find("\r\n\r\n")?;
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    let length = text[..head].lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().expect("a length is a number"))
    });
    Some(head + 4 + length.expect("an answer has a length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_an_http_answer_is_in_its_head() {
        assert_eq!(http_answer_bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n"), None);
        assert_eq!(http_answer_bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel"), Some(43));
    }
}
