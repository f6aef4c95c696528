//! `sinew demo`: an echo server and its load in one command.
//!
//! The server is in this process, the load in a child, `sinew load`: each has its own limit of descriptors, and the CPU time of the one is not that of the other. The
//! child says when the measured time begins and when it is over; in between this process counts its own CPU time. Nothing is in the table that was not measured in
//! this run.

mod million;

use std::fmt;
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use sinew::Runtime;
use sinew::sync::Event;

use crate::engine::{self, Engine};
use crate::failure::{FAILED, Failure};
use crate::interrupt::{self, CUT_SHORT};
use crate::load;
use crate::proc::Memory;
use crate::serve::{Protocol, Server};
use crate::table::{count, cut_short, item, row, rule, seconds, time};

/// Connections, unless there are too few descriptors for so many.
const CONNECTIONS_DEFAULT: usize = 10_000;

/// How long the fibers of the server may take to end.
const GRACE: Duration = Duration::from_secs(5);

/// An echo server under load: ten thousand connections for ten seconds, and what they cost
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,

    /// Connections that are open at once [default: 10000, or fewer if descriptors are scarce]
    #[arg(long, value_name = "N", value_parser = load::connections, allow_negative_numbers = true)]
    connections: Option<usize>,

    /// How long requests are sent
    #[arg(long, value_name = "S", default_value = "10", value_parser = load::seconds, allow_negative_numbers = true)]
    seconds: f64,

    /// Bytes of a request
    #[arg(long, value_name = "B", default_value = "64", value_parser = load::size, allow_negative_numbers = true)]
    size: usize,

    #[command(flatten)]
    engine: Engine,
}

#[derive(clap::Subcommand)]
enum Other {
    Million(million::Arguments),
}

/// Runs the demo that was asked for.
pub(crate) fn main(arguments: &Arguments) -> ExitCode {
    if let Some(Other::Million(arguments)) = &arguments.other {
        return million::main(arguments);
    }
    match perform(arguments) {
        Ok(report) => {
            // Whoever closes our output early does not want the rest.
            let _ = write!(io::stdout(), "{report}");
            match (report.is_cut_short(), report.errors().next()) {
                (true, _) => ExitCode::from(CUT_SHORT),
                (_, Some(_)) => ExitCode::from(FAILED),
                _ => ExitCode::SUCCESS,
            }
        }
        Err(failure) => failure.tell(),
    }
}

fn perform(arguments: &Arguments) -> Result<Report, Failure> {
    let connections = connections(arguments.connections)?;
    let runtime = arguments.engine.start(engine::half_of_the_cpus())?;
    let before = Memory::now()?;
    let server = Server::start(&runtime, Protocol::Echo, "127.0.0.1:0")?;
    eprintln!("{:<8} echo at {}, {} s of {} connections", "demo", server.addr, arguments.seconds, count(connections));
    let mut load = Load::start(arguments, connections, &server)?;
    load.expect("begun")?;
    // Before, there was nothing to show.
    let interrupt = interrupt::listen()?;
    let cpu = cpu_time();
    // While all are at work.
    interrupt.wait_timeout(Duration::from_secs_f64(arguments.seconds / 2.0));
    let (memory, fibers) = (Memory::now()?, alive(&runtime));
    load.stop_at(interrupt)?;
    load.expect("over")?;
    let cpu = cpu_time().saturating_sub(cpu);
    let measured = load.result()?;
    let workers = runtime.metrics().workers.len();
    let driver = engine::name(runtime.io()?);
    runtime.shutdown_timeout(GRACE).map_err(|unfinished| Failure::new(unfinished.to_string()))?;
    let memory_bytes = memory.total_bytes().saturating_sub(before.total_bytes());
    Ok(Report { connections, workers, driver, fibers, memory_bytes, cpu, measured })
}

/// As many as were asked for; if none were, as many as there can be.
fn connections(asked: Option<usize>) -> Result<usize, Failure> {
    let default = CONNECTIONS_DEFAULT.min(engine::connections_max());
    let connections = asked.unwrap_or(default);
    engine::raise_descriptors(connections.max(1))?;
    if asked.is_none() && default < CONNECTIONS_DEFAULT {
        eprintln!("demo     {default} connections instead of {CONNECTIONS_DEFAULT}: descriptors are scarce (ulimit -Hn)");
    }
    Ok(connections)
}

/// CPU time of all threads of this process so far.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

/// Fibers that have begun and not ended.
fn alive(runtime: &Runtime) -> usize {
    runtime.metrics().workers.iter().map(|worker| worker.settled).sum()
}

/// The child process that asks.
struct Load {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Load {
    fn start(arguments: &Arguments, connections: usize, server: &Server) -> Result<Self, Failure> {
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.args(["load", "echo", &server.addr.to_string(), "--json", "--announce"]);
        command.args([
            format!("--connections={connections}"),
            format!("--seconds={}", arguments.seconds),
            format!("--size={}", arguments.size),
        ]);
        command.args(arguments.engine.arguments(engine::half_of_the_cpus()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().expect("its output is piped");
        Ok(Self { child, lines: BufReader::new(stdout).lines() })
    }

    /// Has it end early when `interrupt` is set. It does not hear Ctrl-C itself.
    fn stop_at(&mut self, interrupt: Arc<Event>) -> io::Result<()> {
        let mut stdin = self.child.stdin.take().expect("its input is piped");
        interrupt::in_thread(move || {
            interrupt.wait();
            // One that has ended needs not be told.
            let _ = writeln!(stdin, "{}", load::STOP);
        })
    }

    fn line(&mut self) -> Result<String, Failure> {
        match self.lines.next() {
            Some(line) => Ok(line?),
            None => Err(Failure::new(format!("the load has ended too soon: {}", self.child.wait()?))),
        }
    }

    fn expect(&mut self, word: &str) -> Result<(), Failure> {
        match self.line()? {
            line if line == word => Ok(()),
            line => Err(Failure::new(format!("the load said '{line}' instead of '{word}'"))),
        }
    }

    fn result(mut self) -> Result<Value, Failure> {
        let line = self.line()?;
        self.child.wait()?;
        serde_json::from_str(&line).map_err(|error| Failure::new(format!("the load said '{line}': {error}")))
    }
}

/// A demo that fails leaves nobody behind.
impl Drop for Load {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All figures of one run.
struct Report {
    connections: usize,
    workers: usize,
    driver: &'static str,
    /// Of the server, and so is all that follows.
    fibers: usize,
    memory_bytes: u64,
    cpu: Duration,
    /// What the load said.
    measured: Value,
}

impl Report {
    fn number(&self, name: &str) -> f64 {
        self.measured[name].as_f64().unwrap_or(0.0)
    }

    fn is_cut_short(&self) -> bool {
        self.measured["cut_short"] == true
    }

    /// Errors of the load and how often they came.
    fn errors(&self) -> impl Iterator<Item = (&String, u64)> {
        self.measured["errors"].as_object().into_iter().flatten().map(|(name, times)| (name, times.as_u64().unwrap_or(0)))
    }

    /// Of a latency; nothing was measured if there was no answer.
    fn latency(&self, name: &str) -> String {
        self.measured[name].as_f64().map_or("-".into(), |us| time((us * 1e3) as u64))
    }

    fn cpu_per_request(&self) -> String {
        match self.number("requests") {
            0.0 => "-".into(),
            requests => format!("{:.2} us", self.cpu.as_secs_f64() * 1e6 / requests),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        row(f, "connections", count(self.connections), &format!("of {} bytes to and fro", self.number("size")))?;
        row(f, "connected in", seconds(Duration::from_secs_f64(self.number("connect_s"))), "")?;
        let seconds = self.number("seconds");
        let span = if self.is_cut_short() { cut_short(seconds) } else { format!("in {seconds} s") };
        row(f, "requests", count(self.number("requests") as usize), &span)?;
        row(f, "requests/s", count(self.number("requests_per_s") as usize), "")?;
        rule(f)?;
        for name in ["p50", "p99", "p999", "max"] {
            row(f, &format!("latency, {name}"), self.latency(&format!("{name}_us")), "")?;
        }
        rule(f)?;
        row(f, "server workers", count(self.workers), &format!("I/O by {}", self.driver))?;
        row(f, "server CPU per request", self.cpu_per_request(), "the kernel's work included")?;
        row(f, "server fibers", count(self.fibers), "one per connection, and one accepts")?;
        let each = format!("{:.2} KiB each; the kernel's apart", self.memory_bytes as f64 / 1024.0 / self.connections as f64);
        row(f, "server memory", format!("{:.1} MiB", self.memory_bytes as f64 / f64::from(1 << 20)), &each)?;
        rule(f)?;
        row(f, "errors", count(self.errors().map(|(_, times)| times).sum::<u64>() as usize), "")?;
        self.errors().try_for_each(|(name, times)| item(f, count(times as usize), name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let measured = serde_json::json!({ "size": 16 << 20, "requests": 4_000_000_000u64, "seconds": 86_400, "cut_short": true, "errors": { "Cannot assign requested address (os error 99)": 7 } });
        let report = Report {
            connections: 1_000_000,
            workers: 4096,
            driver: "uring",
            fibers: 1_000_001,
            memory_bytes: 999 << 30,
            cpu: Duration::from_secs(86_400),
            measured,
        };
        assert!(crate::table::fits(&report.to_string()), "{report}");
    }
}
