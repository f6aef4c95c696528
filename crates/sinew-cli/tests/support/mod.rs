//! Running the command, and reading what it says.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub fn sinew(arguments: &[&str]) -> Output {
    command(env!("CARGO_BIN_EXE_sinew")).args(arguments).output().expect("the binary was built for this test")
}

/// A command that the environment of whoever runs the tests does not change.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_remove("SINEW_WORKERS").env_remove("SINEW_STACK_SIZE").env_remove("SINEW_IO");
    command
}

/// Starts it, with its output and errors kept for `wait_with_output`.
pub fn start(arguments: &[&str]) -> Child {
    let mut command = command(env!("CARGO_BIN_EXE_sinew"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the binary was built for this test")
}

pub fn signal(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(process.cast_signed()).expect("it is no zero"), signal).unwrap();
}

/// Waits until it hears Ctrl-C: the thread that does is there.
pub fn await_ctrl_c(child: &Child) {
    let tasks = format!("/proc/{}/task", child.id());
    await_some("a thread that hears Ctrl-C", || {
        let mut names = std::fs::read_dir(&tasks).unwrap().map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name == "ctrl-c\n")).then_some(())
    });
}

/// Waits for a condition, not for a time; fails loudly if it does not come.
pub fn await_some<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("the output is text")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("the output is text")
}

/// What stands behind `name` in the table, in words.
pub fn row<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let found = table.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix("  "));
    found.unwrap_or_else(|| panic!("no line {name:?} in:\n{table}")).split_whitespace().collect()
}

pub fn number(text: &str) -> f64 {
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// A time such as `6.5 us`, in ns.
pub fn time_ns(words: &[&str]) -> f64 {
    let unit = match words[1] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        other => panic!("{other:?} is no unit of time"),
    };
    number(words[0]) * unit
}
