//! One measurement in a process of its own: started, timed, ended.

use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::job::{Job, Reading};
use crate::machine;

/// The hidden subcommand that a child is started with.
pub(crate) const SUBCOMMAND: &str = "child";
/// Jobs of so many tasks use much memory that they have never touched. On a virtual machine whose free memory has gone back to the host, the first touch costs
/// what the host takes for it, several times what the system does: a million spawned fibers cost 110 to 180 ns each after such a touch, 600 to 700 without. So the
/// parent touches it first, for every system alike.
const MANY_TASKS: usize = 100_000;
const TOUCHED_BYTES: usize = 1 << 30;
/// Longest message that is kept of a failed child.
const MESSAGE_CHARS_MAX: usize = 160;

/// Why a child gave no figures.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    TimedOut(String),
    Failed(String),
}

impl Failure {
    pub(crate) fn message(&self) -> &str {
        let (Self::TimedOut(message) | Self::Failed(message)) = self;
        message
    }
}

/// Runs `job` on `system` in a child of at most `limit`.
///
/// # Errors
/// If it cannot be started, fails, takes too long or says nothing.
pub(crate) fn measure(system: &str, job: &Job, limit: Duration) -> Result<Vec<Reading>, Failure> {
    if job.tasks >= MANY_TASKS {
        machine::touch_memory(TOUCHED_BYTES);
    }
    let us = std::env::current_exe().map_err(|error| Failure::Failed(error.to_string()))?;
    let mut command = Command::new(us);
    // A backtrace needs memory, and those that fail here mostly have none.
    command.args([SUBCOMMAND, system]).args(job.arguments()).env("RUST_BACKTRACE", "0");
    let output = finish(command, limit)?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let readings: Option<Vec<_>> = stdout.lines().map(Reading::parse).collect();
    match readings {
        Some(readings) if output.status.success() && !readings.is_empty() => Ok(readings),
        _ if output.status.success() => Err(Failure::Failed(format!("its answer is none: {:?}", stdout.trim()))),
        _ => Err(Failure::Failed(complaint(&output))),
    }
}

/// Waits for the child without looking at it: on two cores a parent that polls would be part of the measurement.
fn finish(mut command: Command, limit: Duration) -> Result<Output, Failure> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|error| Failure::Failed(format!("it cannot be started: {error}")))?;
    let id = child.id() as libc::pid_t;
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    match ended.recv_timeout(limit) {
        Ok(output) => output.map_err(|error| Failure::Failed(error.to_string())),
        Err(_) => {
            // SAFETY: a signal to our own child, whose id is taken until the thread has waited for it.
            unsafe { libc::kill(id, libc::SIGKILL) };
            let said = ended.recv().ok().and_then(|output| said(&output.ok()?));
            let said = said.map(|said| format!(": {said}")).unwrap_or_default();
            Err(Failure::TimedOut(format!("not done after {} s{said}", limit.as_secs())))
        }
    }
}

/// Why a child ended as it did.
fn complaint(output: &Output) -> String {
    format!("{} ({})", said(output).unwrap_or_else(|| "it said nothing".into()), output.status)
}

/// The line of standard error that says most: the first panic's message, else the last.
fn said(output: &Output) -> Option<String> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let panic = lines.clone().skip_while(|line| !line.contains("panicked at")).nth(1);
    panic.or_else(|| lines.next_back()).map(|line| line.chars().take(MESSAGE_CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_child_that_takes_too_long_is_ended() {
        let failure = finish(shell("echo stuck >&2; exec sleep 100"), Duration::from_millis(500)).unwrap_err();
        assert_eq!(failure, Failure::TimedOut("not done after 0 s: stuck".into()));
    }

    #[test]
    fn the_panic_is_quoted_and_not_the_noise() {
        let script =
            "echo noise >&2; echo \"thread 'main' panicked at x.rs:1:1:\" >&2; echo 'no memory' >&2; echo 'note: more' >&2; exit 101";
        let output = finish(shell(script), Duration::from_secs(10)).unwrap();
        assert_eq!(complaint(&output), "no memory (exit status: 101)");
    }

    #[test]
    fn without_a_panic_the_last_line_is_quoted() {
        let output = finish(shell("echo first >&2; echo last >&2; exit 3"), Duration::from_secs(10)).unwrap();
        assert_eq!(complaint(&output), "last (exit status: 3)");
    }
}
