//! `sinew serve`: small servers to measure and to play with, ended by Ctrl-C or SIGTERM.
//!
//! The code of a server is what a user would write: a loop that accepts, and a fiber per connection that reads and writes. The main thread waits for the signal; the
//! runtime then cancels the fibers, which is how they learn that it is over.

mod http;

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clap::ValueEnum;
use indicatif::HumanCount;
use sinew::Runtime;
use sinew::net::{SocketAddr, TcpListener, TcpStream};
use sinew::signal::{Signal, Signals};

use crate::engine::{self, Engine};
use crate::failure::{FAILED, Failure};

/// What a connection reads at once: most requests, and little memory per connection, since only pages that are written to count.
const BUFFER_BYTES: usize = 16 << 10;

/// How long fibers may take to end when they are told to.
const GRACE: Duration = Duration::from_secs(5);

/// A server: echo sends back what it receives, http says hello
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What is served
    protocol: Protocol,

    /// Where it listens; port 0 takes a free one, which is printed
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7777", value_parser = address)]
    addr: String,

    #[command(flatten)]
    engine: Engine,
}

/// A place to listen at. Whether there is one of that name is found out later.
fn address(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    parts.map(|_| text.to_owned()).ok_or_else(|| "it must be host:port, as in 127.0.0.1:7777, 0.0.0.0:80 or [::1]:0".into())
}

/// What is spoken over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    Echo,
    Http,
}

impl Protocol {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Protocol::Echo => "echo",
            Protocol::Http => "http",
        }
    }
}

/// Serves until a signal comes.
pub(crate) fn main(arguments: &Arguments) -> ExitCode {
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let signals = Signals::new([Signal::INT, Signal::TERM])?;
    engine::raise_descriptors(0)?;
    let runtime = arguments.engine.start(crate::default_workers())?;
    let server = Server::start(&runtime, arguments.protocol, &arguments.addr)?;
    let workers = runtime.metrics().workers.len();
    let (protocol, driver) = (arguments.protocol.name(), engine::name(runtime.io()?));
    say(format_args!("{protocol} listens at {} ({workers} workers, I/O by {driver}); Ctrl-C ends it", server.addr));
    signals.wait()?;
    runtime.shutdown_timeout(GRACE).map_err(|unfinished| Failure::new(unfinished.to_string()))?;
    let Tally { connections, bytes, failed } = &*server.tally;
    let [connections, bytes, failed] = [connections, bytes, failed].map(|n| HumanCount(n.load(Relaxed)));
    say(format_args!("served {connections} connections, {bytes} bytes; {failed} connections failed"));
    Ok(())
}

/// Whoever closes our output early does not want it.
fn say(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// A server that runs.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    pub(crate) tally: Arc<Tally>,
}

/// What it has done.
#[derive(Default)]
pub(crate) struct Tally {
    /// Accepted so far.
    pub(crate) connections: AtomicU64,
    /// Received by connections that have ended.
    pub(crate) bytes: AtomicU64,
    /// Ended by an error, and not by their client or the end of the server.
    pub(crate) failed: AtomicU64,
}

impl Server {
    /// Listens, and accepts in a fiber of `runtime`.
    ///
    /// # Errors
    /// If it cannot listen there.
    pub(crate) fn start(runtime: &Runtime, protocol: Protocol, addr: &str) -> Result<Self, Failure> {
        let listener = TcpListener::bind(addr).map_err(|error| {
            let mend = match error.kind() {
                io::ErrorKind::AddrInUse => "; choose another with --addr; port 0 takes a free one",
                _ => "",
            };
            Failure::new(format!("cannot listen at '{addr}': {error}{mend}"))
        })?;
        let server = Self { addr: listener.local_addr()?, tally: Arc::default() };
        let tally = server.tally.clone();
        runtime.spawn(move || accept(&listener, protocol, &tally));
        Ok(server)
    }
}

fn accept(listener: &TcpListener, protocol: Protocol, tally: &Arc<Tally>) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                tally.connections.fetch_add(1, Relaxed);
                let tally = tally.clone();
                sinew::spawn(move || attend(&stream, protocol, &tally));
            }
            Err(_) if sinew::cancelled() => break,
            Err(error) => {
                eprintln!("error: no more connections can be accepted: {error}");
                std::process::exit(FAILED.into());
            }
        }
    }
}

/// One connection, from its beginning to its end.
fn attend(stream: &TcpStream, protocol: Protocol, tally: &Tally) {
    let mut bytes = 0;
    let ended = stream.set_nodelay(true).and_then(|()| match protocol {
        Protocol::Echo => echo(stream, &mut bytes),
        Protocol::Http => http::hello(stream, &mut bytes),
    });
    tally.bytes.fetch_add(bytes, Relaxed);
    if ended.is_err() && !sinew::cancelled() {
        tally.failed.fetch_add(1, Relaxed);
    }
}

fn echo(mut stream: &TcpStream, bytes: &mut u64) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let received = stream.read(&mut buffer)?;
        if received == 0 {
            return Ok(());
        }
        *bytes += received as u64;
        stream.write_all(&buffer[..received])?;
    }
}
