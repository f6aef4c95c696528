//! `sinew serve` and `sinew load`, run as users run them: a server process, a load process, and what both say.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use support::{await_ctrl_c, await_some, command, number, row, signal, sinew, start, stderr, stdout};

/// A server in its own process.
struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    addr: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        Self::start_by(command(env!("CARGO_BIN_EXE_sinew")), arguments)
    }

    fn start_by(mut command: std::process::Command, arguments: &[&str]) -> Self {
        let mut child = command
            .args(["serve"])
            .args(arguments)
            .args(["--addr", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary was built for this test");
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let addr = line.split(" listens at ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let addr = addr.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Self { child, output, addr }
    }

    /// Ends it by a signal; how it ended, and its last words.
    fn end(mut self, signal: &str) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        assert!(command("kill").args(["-s", signal, &id]).status().unwrap().success());
        let mut words = String::new();
        self.output.read_to_string(&mut words).unwrap();
        (self.child.wait().unwrap().code(), words)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn json(output: &std::process::Output) -> serde_json::Value {
    serde_json::from_str(&stdout(output)).unwrap_or_else(|error| panic!("{error}: {}\n{}", stdout(output), stderr(output)))
}

#[test]
fn an_echo_server_and_its_load_agree_and_end_cleanly() {
    for driver in ["uring", "epoll"] {
        let server = Server::start(&["echo", "--io", driver, "--workers", "2"]);
        let output = sinew(&["load", "echo", &server.addr, "--connections", "20", "--seconds", "0.5", "--json", "--io", driver]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report = json(&output);
        assert!(report["requests"].as_u64().unwrap() >= 20, "{report}");
        assert!(report["p50_us"].as_f64() > Some(0.0) && report["p50_us"].as_f64() <= report["p999_us"].as_f64(), "{report}");
        assert_eq!(report["errors"], serde_json::json!({}));
        let (code, words) = server.end("TERM");
        assert_eq!(code, Some(0), "{words}");
        assert!(words.starts_with("served 20 connections, ") && words.contains("; 0 connections failed"), "{words}");
    }
}

/// Connections come in until it is gone: what was accepted in the last moment is dropped, and nothing is said of it.
#[test]
fn an_interrupt_ends_a_server_under_load_without_a_word_of_failure() {
    for _ in 0..10 {
        let mut command = command(env!("CARGO_BIN_EXE_sinew"));
        command.stderr(Stdio::piped());
        let mut server = Server::start_by(command, &["echo", "--workers", "2"]);
        let (addr, mut errors) = (server.addr.clone(), server.child.stderr.take().unwrap());
        let (code, words) = std::thread::scope(|s| {
            let client = || while TcpStream::connect(&addr).is_ok() {};
            (0..3).for_each(|_| drop(s.spawn(client)));
            // So that the load has begun.
            (0..20).for_each(|_| drop(TcpStream::connect(&addr).unwrap()));
            server.end("INT")
        });
        let mut said = String::new();
        errors.read_to_string(&mut said).unwrap();
        assert_eq!((code, said.as_str()), (Some(0), ""), "{words}");
        assert!(words.contains("; 0 connections failed"), "{words}");
    }
}

#[test]
fn the_environment_may_ask_for_as_many_workers_as_the_library_takes() {
    let mut command = command(env!("CARGO_BIN_EXE_sinew"));
    command.env("SINEW_WORKERS", "100");
    let server = Server::start_by(command, &["echo"]);
    let (code, words) = server.end("INT");
    assert_eq!(code, Some(0), "{words}");
    let output = support::command(env!("CARGO_BIN_EXE_sinew")).args(["serve", "echo"]).env("SINEW_WORKERS", "4097").output().unwrap();
    assert!(stderr(&output).contains("from 1 to 4096 (--workers or SINEW_WORKERS)"), "{}", stderr(&output));
}

/// A connection that is open, and idle, does not keep the server from ending; nor does one whose client does not read.
#[test]
fn interrupts_end_a_server_with_open_connections() {
    let server = Server::start(&["echo", "--workers", "1"]);
    let mut idle = TcpStream::connect(&server.addr).unwrap();
    idle.write_all(b"x").unwrap();
    idle.read_exact(&mut [0]).unwrap();
    let mut deaf = TcpStream::connect(&server.addr).unwrap();
    deaf.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    while deaf.write(&[7; 65_536]).is_ok() {}
    let (code, words) = server.end("INT");
    assert_eq!(code, Some(0), "{words}");
    assert!(words.starts_with("served 2 connections"), "{words}");
    assert_eq!(idle.read(&mut [0]).unwrap(), 0, "the server has closed");
}

#[test]
fn a_message_larger_than_all_buffers_comes_back() {
    let server = Server::start(&["echo"]);
    let output = sinew(&["load", "echo", &server.addr, "-c", "2", "-s", "0.5", "--size", "16777216"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(number(row(&stdout(&output), "latency, max")[0]) > 0.0);
}

#[test]
fn the_open_loop_keeps_its_rate_and_draws() {
    let server = Server::start(&["echo"]);
    let plot = std::env::temp_dir().join(format!("sinew-load-{}.svg", std::process::id()));
    let file = plot.to_str().unwrap();
    let output = sinew(&["load", "echo", &server.addr, "-c", "10", "-s", "1", "--rate", "200", "--json", "--plot", file]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&output);
    // Every request was due in that second, and was answered, then or later, or told of.
    assert_eq!(report["p50_us"].as_f64().map(|us| us > 0.0), Some(true), "{report}");
    let [requests, late, unsent] = ["requests", "late", "unsent"].map(|name| report[name].as_u64().unwrap());
    assert_eq!(requests + late + unsent, 200, "{report}");
    assert!(requests > 0, "{report}");
    assert!(report["sent_late_p50_us"].as_f64() <= report["sent_late_p99_us"].as_f64() && report["sent_late_p50_us"].is_f64(), "{report}");
    let svg = std::fs::read_to_string(&plot).unwrap();
    std::fs::remove_file(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("10 connections") && svg.contains("<polyline"), "{svg}");
}

/// A file for a plot keeps what is in it until there is another plot.
#[test]
fn a_load_that_fails_leaves_the_last_plot() {
    let plot = std::env::temp_dir().join(format!("sinew-load-kept-{}.svg", std::process::id()));
    let (file, last) = (plot.to_str().unwrap(), "the last one ".repeat(100_000));
    std::fs::write(&plot, &last).unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let output = sinew(&["load", "echo", &nobody, "-c", "1", "-s", "0.1", "--plot", file]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(std::fs::read_to_string(&plot).unwrap() == last, "it is gone");
    // And nothing of it is left by a shorter one.
    let server = Server::start(&["echo"]);
    let output = sinew(&["load", "echo", &server.addr, "-c", "1", "-s", "0.1", "--plot", file]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let svg = std::fs::read_to_string(&plot).unwrap();
    std::fs::remove_file(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{} bytes", svg.len());
}

/// There is no file before there is a plot.
#[test]
fn a_load_that_fails_makes_no_plot() {
    let plot = std::env::temp_dir().join(format!("sinew-load-none-{}.svg", std::process::id()));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let output = sinew(&["load", "echo", &nobody, "-c", "1", "-s", "0.1", "--plot", plot.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(!plot.exists(), "{}", plot.display());
}

/// Where there is nothing yet.
fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("sinew-load-{name}-{}", std::process::id()))
}

fn fifo(name: &str) -> PathBuf {
    let path = temporary(name);
    assert!(command("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// A short load with a plot; one that hangs is ended.
fn plotting(server: &Server, plot: &str) -> std::process::Command {
    let mut load = command("timeout");
    load.args(["60", env!("CARGO_BIN_EXE_sinew"), "load", "echo", &server.addr, "-c", "1", "-s", "0.1", "--json", "--plot", plot]);
    load
}

/// One that fails at its plot.
fn plotted_in_vain(plot: &str) -> Output {
    let output = plotting(&Server::start(&["echo"]), plot).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    output
}

#[test]
fn a_plot_that_fails_does_not_take_the_report_with_it() {
    let output = plotted_in_vain("/dev/full");
    assert!(json(&output)["requests"].as_u64() > Some(0), "{}", stdout(&output));
    assert!(stderr(&output).contains("cannot write the plot to '/dev/full': No space left on device"), "{}", stderr(&output));
}

#[test]
fn a_pipe_that_nobody_reads_is_refused_as_a_plot() {
    let plot = fifo("unread");
    let output = plotted_in_vain(plot.to_str().unwrap());
    fs::remove_file(&plot).unwrap();
    assert!(stderr(&output).contains("nobody reads from it; start its reader first"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}

/// The system's error is that of a pipe that nobody reads, but there is no reader to be started.
#[test]
fn a_socket_is_refused_as_a_plot_in_the_systems_words() {
    let plot = temporary("socket");
    let _socket = UnixListener::bind(&plot).unwrap();
    let output = plotted_in_vain(plot.to_str().unwrap());
    fs::remove_file(&plot).unwrap();
    assert!(stderr(&output).contains(&format!("to '{}': No such device or address", plot.display())), "{}", stderr(&output));
}

#[test]
fn a_link_to_no_file_is_refused_as_a_plot() {
    let (link, nowhere) = (temporary("link"), temporary("nowhere"));
    std::os::unix::fs::symlink(&nowhere, &link).unwrap();
    let output = plotted_in_vain(link.to_str().unwrap());
    fs::remove_file(&link).unwrap();
    assert!(!nowhere.exists());
    assert!(stderr(&output).contains("it is a link to a file that is not there"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}

/// A pipe takes the report and then the plot; in a file the plot would be in the report's place.
#[test]
fn the_plot_may_go_where_the_report_goes_if_that_is_a_pipe() {
    let server = Server::start(&["echo"]);
    let output = plotting(&server, "/dev/stdout").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.starts_with('{') && said.contains("}\n<svg") && said.ends_with("</svg>\n"), "{said}");

    let path = temporary("report");
    let output = plotting(&server, "/dev/stdout").stdout(File::create(&path).unwrap()).output().unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("the report goes there; name another file"), "{}", stderr(&output));
}

/// The pipe has room for a part of the plot: who writes it has to wait.
#[test]
fn a_pipe_that_is_read_slowly_gets_the_whole_plot() {
    const ROOM_BYTES: libc::c_int = 4096;
    let (server, plot) = (Server::start(&["echo"]), fifo("slow"));
    // To be opened for both waits for nobody.
    let both = File::options().read(true).write(true).open(&plot).unwrap();
    // SAFETY: the call changes the size of an open pipe, and no memory of ours.
    assert_eq!(unsafe { libc::fcntl(both.as_raw_fd(), libc::F_SETPIPE_SZ, ROOM_BYTES) }, ROOM_BYTES);
    let mut reader = File::open(&plot).unwrap();
    let mut load = plotting(&server, plot.to_str().unwrap()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut report = String::new();
    BufReader::new(load.stdout.take().unwrap()).read_line(&mut report).unwrap();
    // The load has it open too.
    drop(both);
    let mut svg = String::new();
    reader.read_to_string(&mut svg).unwrap();
    fs::remove_file(&plot).unwrap();
    let output = load.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{} bytes", svg.len());
}

#[test]
fn a_report_that_cannot_be_printed_is_a_failure() {
    let (server, plot) = (Server::start(&["echo"]), temporary("beside"));
    for format in [&[][..], &["--json"]] {
        let mut load = command(env!("CARGO_BIN_EXE_sinew"));
        load.args(["load", "echo", &server.addr, "-c", "1", "-s", "0.1", "--plot"]).arg(&plot).args(format);
        let output = load.stdout(File::options().write(true).open("/dev/full").unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{format:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("cannot print the report: No space left on device"), "{format:?}: {}", stderr(&output));
        // Not lost with it.
        assert!(fs::read_to_string(&plot).unwrap().starts_with("<svg"));
        fs::remove_file(&plot).unwrap();
    }
}

#[test]
fn whoever_does_not_want_the_report_may_close_its_pipe() {
    let (server, (closed, reader)) = (Server::start(&["echo"]), UnixStream::pair().unwrap());
    drop(reader);
    let mut load = command(env!("CARGO_BIN_EXE_sinew"));
    let output = load.args(["load", "echo", &server.addr, "-c", "1", "-s", "0.1"]).stdout(OwnedFd::from(closed)).output().unwrap();
    assert_eq!((output.status.code(), &*stderr(&output)), (Some(0), ""));
}

/// Answers of a server before Ctrl-C comes.
const ANSWERS: usize = 10;

/// A load that is sent Ctrl-C after so many answers, while one more request has none.
fn interrupted(arguments: &[&str]) -> std::process::Output {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let load = start(&[&["load", "echo", &addr, "-c", "1", "-s", "120"], arguments].concat());
    let (mut stream, _) = listener.accept().unwrap();
    let mut buffer = [0; 64];
    for _ in 0..ANSWERS {
        stream.read_exact(&mut buffer).unwrap();
        stream.write_all(&buffer).unwrap();
    }
    stream.read_exact(&mut buffer).unwrap();
    signal(load.id(), Signal::INT);
    load.wait_with_output().unwrap()
}

#[test]
fn ctrl_c_cuts_a_load_short_and_shows_what_was_measured() {
    let plot = std::env::temp_dir().join(format!("sinew-load-cut-{}.svg", std::process::id()));
    let output = interrupted(&["--json", "--plot", plot.to_str().unwrap()]);
    assert_eq!((output.status.code(), &*stderr(&output)), (Some(130), ""));
    let report = json(&output);
    assert_eq!((&report["cut_short"], &report["requests"], &report["in_flight"]), (&true.into(), &ANSWERS.into(), &1.into()), "{report}");
    assert!(report["seconds"].as_f64() < Some(120.0) && report["p50_us"].as_f64() > Some(0.0), "{report}");
    assert_eq!(report["errors"], serde_json::json!({}));
    let svg = std::fs::read_to_string(&plot).unwrap();
    std::fs::remove_file(&plot).unwrap();
    assert!(svg.contains("cut short after ") && svg.ends_with("</svg>\n"), "{svg}");

    let output = interrupted(&[]);
    let table = stdout(&output);
    assert_eq!(output.status.code(), Some(130), "{table}");
    assert!(table.contains(", cut short after ") && row(&table, "requests")[0] == ANSWERS.to_string(), "{table}");
}

/// With a rate, most wait for their moment, which may be far off: they are not waited for, and count neither as sent nor as unsent.
#[test]
fn ctrl_c_does_not_wait_for_requests_that_are_not_due() {
    const CONNECTIONS: usize = 100;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let load = start(&["load", "echo", &addr, "-c", &CONNECTIONS.to_string(), "-s", "3600", "--rate", "1", "--json"]);
    let (sender, asked) = std::sync::mpsc::channel();
    for _ in 0..CONNECTIONS {
        let ((mut stream, _), sender) = (listener.accept().unwrap(), sender.clone());
        // Only the first that asks is heard.
        std::thread::spawn(move || stream.read_exact(&mut [0; 64]).map(|()| sender.send(stream)));
    }
    let _unanswered = asked.recv().unwrap();
    signal(load.id(), Signal::INT);
    let output = load.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let report = json(&output);
    // One was due each second, the first at once; the last of them may not have been sent yet.
    let due = report["seconds"].as_f64().unwrap() as u64 + 1;
    assert_eq!(report["in_flight"].as_u64().unwrap() + report["unsent"].as_u64().unwrap(), due, "{report}");
    assert_eq!(report["errors"], serde_json::json!({}));
}

/// It has nowhere to write to, so that it does not end by the first.
#[test]
fn a_second_ctrl_c_ends_it_as_by_default() {
    let server = Server::start(&["echo"]);
    let (mut full, _reader) = UnixStream::pair().unwrap();
    full.set_nonblocking(true).unwrap();
    while full.write(&[0; 4096]).is_ok() {}
    full.set_nonblocking(false).unwrap();
    let mut load = command(env!("CARGO_BIN_EXE_sinew"));
    load.args(["load", "echo", &server.addr, "-c", "1", "-s", "120", "--json"]).stdout(OwnedFd::from(full));
    let mut load = load.spawn().unwrap();
    await_ctrl_c(&load);
    let status = await_some("its end", || {
        signal(load.id(), Signal::INT);
        load.try_wait().unwrap()
    });
    assert_eq!((status.signal(), status.code()), (Some(Signal::INT.as_raw()), None), "{status}");
}

/// A server that answers nothing for a while: each request that was due in the pause has waited since it was due, and all but the first of a connection were not sent
/// at once. A closed loop would see one slow request per connection.
#[test]
fn a_stall_counts_for_every_request_that_was_due_in_it() {
    const STALL: Duration = Duration::from_millis(600);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 64];
        stream.read_exact(&mut buffer).unwrap();
        std::thread::sleep(STALL);
        loop {
            stream.write_all(&buffer).unwrap();
            if stream.read_exact(&mut buffer).is_err() {
                return;
            }
        }
    });
    let output = sinew(&["load", "echo", &addr, "-c", "1", "-s", "1", "--rate", "100", "--json"]);
    let report = json(&output);
    // 60 of 100 were due in the stall: the median one waited 100 ms at least, where a closed loop would say microseconds.
    assert!(report["p50_us"].as_f64().unwrap() >= 50_000.0, "{report}");
    assert!(report["max_us"].as_f64().unwrap() >= STALL.as_micros() as f64, "{report}");
}

#[test]
fn http_is_answered_and_measured() {
    let server = Server::start(&["http"]);
    let url = format!("http://{}/hello", server.addr);
    let output = sinew(&["load", "http", &url, "-c", "8", "-s", "0.5"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let table = stdout(&output);
    assert!(number(row(&table, "requests")[0]) >= 8.0, "{table}");
    assert_eq!(row(&table, "errors")[0], "0");

    // Several requests in one packet, the last of which asks to close.
    let mut stream = TcpStream::connect(&server.addr).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
    assert!(answers.ends_with("Hello, world!"), "{answers}");
    let mut stream = TcpStream::connect(&server.addr).unwrap();
    stream.write_all(b"no http at all\r\n\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    answers.clear();
    stream.read_to_string(&mut answers).unwrap();
    assert!(answers.starts_with("HTTP/1.1 400"), "{answers}");
}

/// Accepts, reads a little and closes: every request fails, and is counted by what happened to it.
#[test]
fn errors_are_counted_and_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            stream.unwrap().read_exact(&mut [0; 64]).unwrap_or(());
        }
    });
    let output = sinew(&["load", "echo", &addr, "-c", "3", "-s", "0.5"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let table = stdout(&output);
    assert_eq!(row(&table, "requests")[0], "0");
    assert!(number(row(&table, "errors")[0]) >= 3.0, "{table}");
    assert!(table.contains("the server closed the connection"), "{table}");
}

#[test]
fn a_server_that_is_killed_under_load_is_told_of() {
    let mut server = Server::start(&["echo"]);
    let mut load = command(env!("CARGO_BIN_EXE_sinew"))
        .args(["load", "echo", &server.addr, "-c", "20", "-s", "2", "--json", "--announce"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(load.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    server.child.kill().unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "over");
    let report: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(load.wait().unwrap().code(), Some(1));
    // Each connection saw it end, and was refused when it tried again.
    let errors = report["errors"].as_object().unwrap();
    assert!(errors.keys().any(|name| name.starts_with("Connection refused")), "{report}");
    assert!(errors.values().map(|times| times.as_u64().unwrap()).sum::<u64>() >= 40, "{report}");
}

/// More clients than the server has descriptors for: those who find none wait in the queue, the others are served; and so is everybody once the crowd is gone.
#[test]
fn a_server_without_descriptors_serves_those_it_has_and_recovers() {
    let mut shell = command("sh");
    shell.args(["-c", "ulimit -n 300 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_sinew")]).stderr(Stdio::null());
    let server = Server::start_by(shell, &["echo", "--workers", "2"]);
    let output = sinew(&["load", "echo", &server.addr, "-c", "400", "-s", "0.5", "--json"]);
    let report = json(&output);
    assert!(report["requests"].as_u64().unwrap() > 200, "{report}");
    // Who found none was served when the others had left, which they did at the end of the time.
    assert_eq!(report["errors"], serde_json::json!({}));
    assert!(report["max_us"].as_f64().unwrap() >= 400_000.0, "{report}");
    let output = sinew(&["load", "echo", &server.addr, "-c", "50", "-s", "0.5"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let (code, words) = server.end("TERM");
    assert_eq!(code, Some(0), "{words}");
}

#[test]
fn a_server_that_is_not_there_or_never_answers_is_told_of() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    // Connected by the kernel, accepted by nobody.
    let output = sinew(&["load", "echo", &addr, "-c", "3", "-s", "0.3", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(json(&output)["errors"], serde_json::json!({ "no answer by the end": 3 }));
    // Nothing was measured, which is no latency of 0.
    assert!(["mean_us", "p50_us", "max_us"].iter().all(|name| json(&output).get(name) == Some(&serde_json::Value::Null)));
    let output = sinew(&["load", "echo", &addr, "-c", "1", "-s", "0.3"]);
    assert!(["mean", "p50", "max"].iter().all(|name| row(&stdout(&output), &format!("latency, {name}"))[0] == "-"));
    drop(listener);
    let output = sinew(&["load", "echo", &addr, "-c", "3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("no connection to {addr}: Connection refused")), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}

#[test]
fn a_server_that_cannot_listen_says_why() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let mend = "choose another with --addr; port 0 takes a free one";
    for (addr, why) in [(&*addr, mend), ("no.such.name.invalid:1", "cannot listen at 'no.such.name.invalid:1'")] {
        let output = sinew(&["serve", "echo", "--addr", addr]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}

#[test]
fn a_server_that_may_have_next_to_no_descriptors_says_so() {
    let mut shell = command("sh");
    shell.args(["-c", "ulimit -n 20 && exec \"$0\" serve echo", env!("CARGO_BIN_EXE_sinew")]);
    let output = shell.output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("the runtime needs 256 descriptors, and this process may have 20: raise the hard limit"), "{text}");
}

#[test]
fn bad_input_is_refused_by_name() {
    let cases: [(&[&str], &str); 15] = [
        (&["load", "echo", "127.0.0.1"], "needs a port"),
        (&["load", "echo", "http://127.0.0.1:7"], "host:port"),
        (&["load", "http", "https://127.0.0.1"], "no TLS"),
        (&["load", "ftp", "127.0.0.1:7"], "echo, http"),
        (&["load", "echo", "127.0.0.1:7", "--connections", "0"], "from 1 to 1000000"),
        (&["load", "echo", "127.0.0.1:7", "--rate", "-5"], "from 1 to 100000000"),
        (&["load", "echo", "127.0.0.1:7", "--size", "1e9"], "from 1 to 16777216"),
        (&["load", "echo", "127.0.0.1:7", "--seconds", "soon"], "from 0.1 to 86400"),
        (&["load", "http", "127.0.0.1:7", "--size", "100"], "--size is for echo"),
        (&["serve", "gopher"], "echo, http"),
        (&["serve", "echo", "--addr", "nonsense"], "host:port"),
        (&["serve", "echo", "--addr", ":8080"], "host:port"),
        (&["serve", "echo", "--addr", "127.0.0.1:99999"], "host:port"),
        (&["demo", "--connections", "many"], "from 1 to 1000000"),
        (&["serve", "echo", "--io", "magic"], "uring, epoll or auto"),
    ];
    for command in ["serve", "load", "demo"] {
        let help = stdout(&sinew(&[command, "--help"]));
        let workers = help.split("--workers").nth(1).unwrap_or_default();
        assert!(workers.trim_start().starts_with("<N>") && workers.contains("[default: one per CPU"), "{help}");
    }
    for (arguments, said) in cases {
        let output = sinew(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{arguments:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{arguments:?}");
    }
    let output = sinew(&["load", "echo", "127.0.0.1:7", "--plot", "/nowhere/at/all.svg"]);
    assert!(stderr(&output).contains("cannot write the plot to '/nowhere/at/all.svg'"), "{}", stderr(&output));
}
