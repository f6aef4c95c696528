//! Why a command could not do what it was asked for.

use std::io;
use std::process::ExitCode;

/// Exit code of a failure, and of a request that is refused.
pub(crate) const FAILED: u8 = 1;
pub(crate) const REFUSED: u8 = 2;

/// A sentence for whoever asked, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    /// It was tried and did not work.
    pub(crate) fn new(text: String) -> Self {
        Self { text, code: FAILED }
    }

    /// It was asked for wrongly.
    pub(crate) fn refusal(text: String) -> Self {
        Self { text, code: REFUSED }
    }

    /// Says it, and gives the exit code.
    pub(crate) fn tell(&self) -> ExitCode {
        eprintln!("error: {}", self.text);
        ExitCode::from(self.code)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidInput => Self::refusal(error.to_string()),
            _ => Self::new(error.to_string()),
        }
    }
}
