//! `sinew load`: requests over many connections, and how long their answers take.
//!
//! One fiber per connection (`run.rs`), which sends a request and waits for its answer (`client.rs`). The main thread waits for the end and draws how far it is.
//!
//! # Closed and open loop
//! Without `--rate` the loop is closed: each connection sends its next request when it has the answer to the last, so a server that stalls is asked less meanwhile.
//! With it the loop is open: every request has a moment at which it is due, whatever the server does, and its latency counts from there. So a stall of the server counts
//! for every request that was due in it (no coordinated omission), and requests that were due and could not be sent before the end are told of.

mod client;
mod plot;
mod report;
mod run;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Signal, set_parent_process_death_signal};
use sinew::signal::{self, Signals};
use sinew::sync::Event;

use crate::engine::{self, Engine};
use crate::failure::{FAILED, Failure};
use crate::interrupt::{self, CUT_SHORT};
use crate::serve::Protocol;
use report::Report;

/// What can be asked for, at most. Arbitrary: a typing error is more likely than a need for more.
const CONNECTIONS_MAX: usize = 1_000_000;
const RATE_MAX: usize = 100_000_000;
const SIZE_MAX: usize = 16 << 20;
const SECONDS_MAX: f64 = 86_400.0;
/// Bytes of a request if nobody says otherwise.
const SIZE_DEFAULT: usize = 64;
/// What a parent process says to end the load early.
pub(crate) const STOP: &str = "stop";

/// A load on a server: requests per second, and percentiles of their latency
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What the server speaks
    protocol: Protocol,

    /// Where it is: host:port, or for http a URL as in http://127.0.0.1:7777/
    #[arg(value_name = "URL")]
    target: String,

    /// Connections, each with one request at a time
    #[arg(long, short, value_name = "N", default_value = "100", value_parser = connections, allow_negative_numbers = true)]
    connections: usize,

    /// How long requests are sent
    #[arg(long, short, value_name = "S", default_value = "10", value_parser = seconds, allow_negative_numbers = true)]
    seconds: f64,

    /// Requests per second of all connections together, on a schedule that the server's slowness does not change [default: as fast as answers come]
    #[arg(long, value_name = "R", value_parser = rate, allow_negative_numbers = true)]
    rate: Option<usize>,

    /// Bytes of a request (echo only) [default: 64]
    #[arg(long, value_name = "B", value_parser = size, allow_negative_numbers = true)]
    size: Option<usize>,

    /// Prints one line of JSON instead of the table
    #[arg(long)]
    json: bool,

    /// Draws the distribution of the latency into this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Prints `begun` and `over` when the time begins and when it is over, for a parent process that measures meanwhile; ends with it, and early if it says `stop`
    #[arg(long, hide = true)]
    announce: bool,

    #[command(flatten)]
    engine: Engine,
}

/// A number of connections.
pub(crate) fn connections(text: &str) -> Result<usize, String> {
    whole(text, CONNECTIONS_MAX)
}

/// A time in seconds, fractions allowed.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|n| (0.1..=SECONDS_MAX).contains(n));
    seconds.ok_or_else(|| format!("it must be a number of seconds from 0.1 to {SECONDS_MAX}"))
}

fn rate(text: &str) -> Result<usize, String> {
    whole(text, RATE_MAX)
}

/// Bytes of a message.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    whole(text, SIZE_MAX)
}

fn whole(text: &str, max: usize) -> Result<usize, String> {
    crate::whole_number(text).filter(|n| (1..=max).contains(n)).ok_or_else(|| format!("it must be a whole number from 1 to {max}"))
}

/// Puts the load on, and tells what came of it.
pub(crate) fn main(arguments: &Arguments) -> ExitCode {
    perform(arguments).unwrap_or_else(|failure| failure.tell())
}

fn perform(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let target = Target::parse(arguments.protocol, &arguments.target)?;
    if arguments.protocol == Protocol::Http && arguments.size.is_some() {
        return Err(Failure::refusal("--size is for echo: a request of http has the size that its URL gives it".into()));
    }
    let stop = if arguments.announce { obey_parent()? } else { interrupt::listen()? };
    let size = arguments.size.unwrap_or(SIZE_DEFAULT);
    let connections = arguments.connections;
    engine::raise_descriptors(connections)?;
    let plot = arguments.plot.as_deref().map(PlotFile::open).transpose()?;
    let plan = run::Plan {
        addrs: target.addrs.clone(),
        talk: match arguments.protocol {
            Protocol::Echo => client::Talk::Echo { bytes: size },
            Protocol::Http => client::Talk::Http { request: target.request().into_bytes().into() },
        },
        connections,
        duration: Duration::from_secs_f64(arguments.seconds),
        rate: arguments.rate,
        announces: arguments.announce,
        stop,
    };
    let runtime = arguments.engine.start(crate::default_workers())?;
    let outcome = run::drive(&runtime, plan)?;
    let report = Report {
        protocol: arguments.protocol,
        target: arguments.target.clone(),
        connections,
        rate: arguments.rate,
        size: (arguments.protocol == Protocol::Echo).then_some(size),
        outcome,
    };
    // Each is tried whatever becomes of the other: nobody wants to measure again.
    let printed = print(&if arguments.json { report.to_json().to_string() + "\n" } else { report.to_string() });
    let drawn = plot.map_or(Ok(()), |plot| plot.replace_by(&plot::draw(&report.title(), &report.outcome.latencies_ns)));
    printed.and(drawn)?;
    // Errors are part of the report; scripts look at the exit code.
    Ok(match (report.outcome.cut_short, report.has_errors()) {
        (true, _) => ExitCode::from(CUT_SHORT),
        (_, true) => ExitCode::from(FAILED),
        _ => ExitCode::SUCCESS,
    })
}

fn print(report: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout();
    match stdout.write_all(report.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(format!("cannot print the report: {error}"))),
        // Whoever closes our output early does not want the rest.
        _ => Ok(()),
    }
}

/// Ends with the parent, and early if that says so: the event is set then. Ctrl-C, which a terminal sends to both, is for the parent to hear.
fn obey_parent() -> io::Result<Arc<Event>> {
    // A parent that a signal ends can no longer end this process. (It is its main thread that the system takes for the parent.)
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let (deaf, stop) = (Signals::new([signal::Signal::INT])?, Arc::new(Event::new()));
    let event = stop.clone();
    interrupt::in_thread(move || {
        let told = io::stdin().lines().map_while(Result::ok).any(|line| line == STOP);
        told.then(|| event.set());
        // From its making on, and for good.
        drop(deaf);
    })?;
    Ok(stop)
}

/// Where the plot goes. It is tried before the load, so that a bad name is not found out after it; what is there stays until there is something to put in its place, and what is not is made
/// only then.
struct PlotFile<'a> {
    file: Option<File>,
    path: &'a Path,
}

impl<'a> PlotFile<'a> {
    fn open(path: &'a Path) -> Result<Self, Failure> {
        let file = match Self::options().open(path) {
            Ok(file) if is_stdout(&file) => Err(io::Error::other("the report goes there; name another file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                File::create_new(path).and_then(|_| fs::remove_file(path)).map(|()| None)
            }
            found => found.map(Some),
        };
        file.map(|file| Self { file, path }).map_err(|error| Self::failure(path, &error))
    }

    /// A pipe that nobody reads is an error, and is not waited for.
    fn options() -> OpenOptions {
        let mut options = File::options();
        options.write(true).custom_flags(libc::O_NONBLOCK);
        options
    }

    fn replace_by(self, svg: &str) -> Result<(), Failure> {
        let written = self.file.map_or_else(|| Self::options().create(true).open(self.path), Ok).and_then(|mut file| {
            // What has no length, such as a terminal or a pipe, is written to as it is.
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            // One that is read is waited for.
            ioctl_fionbio(&file, false)?;
            file.write_all(svg.as_bytes())
        });
        written.map_err(|error| Self::failure(self.path, &error))
    }

    fn failure(path: &Path, error: &io::Error) -> Failure {
        let why = match error.kind() {
            // Also what the system says of a socket, and of a device that is not there.
            _ if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) && is_fifo(path) => {
                "nobody reads from it; start its reader first, or name a plain file".into()
            }
            io::ErrorKind::AlreadyExists if path.is_symlink() => {
                "it is a link to a file that is not there; make that file, or name it".into()
            }
            _ => error.to_string(),
        };
        Failure::new(format!("cannot write the plot to '{}': {why}", path.display()))
    }
}

fn is_fifo(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// Whether it is the file that the report goes to: one of them would be lost. What is no file, such as a pipe, takes both.
fn is_stdout(file: &File) -> bool {
    let (Ok(file), Ok(stdout)) = (file.metadata(), fs::metadata("/dev/stdout")) else { return false };
    file.is_file() && (file.dev(), file.ino()) == (stdout.dev(), stdout.ino())
}

/// Where the load goes.
#[derive(Debug)]
struct Target {
    /// Of its name, in the order in which they are to be tried; one at least.
    addrs: Vec<SocketAddr>,
    /// As the request names it.
    host: String,
    path: String,
}

impl Target {
    /// # Errors
    /// A refusal, if it is no address; a failure, if its name is not known.
    fn parse(protocol: Protocol, text: &str) -> Result<Self, Failure> {
        let refuse = |why: &str| Err(Failure::refusal(format!("invalid target '{text}': {why}")));
        let (scheme, rest) = text.split_once("://").unwrap_or((protocol.name(), text));
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "https" {
            return refuse("this load speaks no TLS; use http://");
        }
        if scheme != protocol.name() && !(protocol == Protocol::Echo && scheme == "tcp") {
            return refuse("it must be host:port, or for http a URL as in http://127.0.0.1:7777/");
        }
        let (host, path) = rest.find(['/', '?', '#']).map_or((rest, "/"), |i| rest.split_at(i));
        if protocol == Protocol::Echo && path != "/" {
            return refuse("an echo server has no paths; it must be host:port");
        }
        if path.contains(|c: char| c.is_ascii_control() || c == ' ') || host.is_empty() || host.contains('@') {
            return refuse("it must be host:port, or for http a URL as in http://127.0.0.1:7777/");
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port != 0));
        let with_port = match protocol {
            _ if has_port => host.to_owned(),
            Protocol::Http if !host.contains(':') || host.ends_with(']') => format!("{host}:80"),
            _ => return refuse("it needs a port from 1 to 65535, as in 127.0.0.1:7777"),
        };
        let found = with_port.to_socket_addrs().map_err(|error| Failure::new(format!("no address for '{with_port}': {error}")))?;
        let addrs: Vec<_> = found.collect();
        if addrs.is_empty() {
            return Err(Failure::new(format!("no address for '{with_port}'")));
        }
        // A fragment is not for the server; a query alone is one of the root.
        let path = path.split_once('#').map_or(path, |(path, _)| path);
        let root = if path.starts_with('/') { "" } else { "/" };
        Ok(Self { addrs, host: host.to_owned(), path: format!("{root}{path}") })
    }

    fn request(&self) -> String {
        format!("GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: sinew-load\r\n\r\n", self.path, self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses_or_urls() {
        let http = |text| Target::parse(Protocol::Http, text).unwrap();
        assert_eq!(http("http://127.0.0.1:81/a/b?c=d").request().lines().next(), Some("GET /a/b?c=d HTTP/1.1"));
        assert_eq!(http("http://127.0.0.1").addrs, ["127.0.0.1:80".parse().unwrap()]);
        assert_eq!(http("http://[::1]").addrs, ["[::1]:80".parse().unwrap()]);
        assert_eq!(http("127.0.0.1:8080").path, "/");
        assert_eq!((http("http://127.0.0.1:80?x=1/2").path.as_str(), http("http://127.0.0.1?").host.as_str()), ("/?x=1/2", "127.0.0.1"));
        for text in ["127.0.0.1:7", "tcp://127.0.0.1:7", "echo://127.0.0.1:7", "TCP://127.0.0.1:7"] {
            assert_eq!(Target::parse(Protocol::Echo, text).unwrap().addrs, ["127.0.0.1:7".parse().unwrap()]);
        }
    }

    #[test]
    fn schemes_may_be_in_capitals() {
        assert_eq!(Target::parse(Protocol::Http, "HTTP://127.0.0.1:80/A").unwrap().path, "/A");
        let failure = Target::parse(Protocol::Http, "Https://127.0.0.1").unwrap_err();
        assert!(format!("{failure:?}").contains("no TLS"), "{failure:?}");
    }

    #[test]
    fn fragments_are_not_sent() {
        for (url, path) in [("/a?b#c", "/a?b"), ("/#/x?y", "/"), ("#x", "/"), ("?b#c#d", "/?b"), ("/a#", "/a")] {
            let target = Target::parse(Protocol::Http, &format!("http://127.0.0.1:80{url}")).unwrap();
            assert_eq!((target.path.as_str(), target.host.as_str()), (path, "127.0.0.1:80"), "{url}");
        }
    }

    #[test]
    fn other_targets_are_refused() {
        for text in
            ["https://127.0.0.1", "ftp://127.0.0.1/", "http://", "http://a b/", "http://127.0.0.1/a b", "http://1.2.3.4:99999", "u@h:80"]
        {
            assert!(Target::parse(Protocol::Http, text).is_err(), "{text}");
        }
        for text in ["127.0.0.1", "127.0.0.1:0", "127.0.0.1:7/path", "127.0.0.1:7?x", "127.0.0.1:7#x", "http://127.0.0.1:7", "", ":"] {
            assert!(Target::parse(Protocol::Echo, text).is_err(), "{text}");
        }
    }
}
