//! Child processes, with std's names and behaviour, that keep no worker waiting.
//!
//! A change of `use std::process` to `use sinew::process` is all that a program needs. A fiber that waits for a child, or for what it writes, suspends; the system tells of a child's end by
//! a descriptor (`pidfd`), so there is no handler of SIGCHLD, and no other child of the process is touched.
//!
//! What describes processes, like [`Stdio`] and [`ExitStatus`], is std's.
//!
//! # Examples
//! ```
//! use sinew::process::Command;
//!
//! let output = sinew::run(|| Command::new("echo").arg("hello").output())?;
//! assert!(output.status.success());
//! assert_eq!(output.stdout, b"hello\n");
//! # std::io::Result::Ok(())
//! ```

mod both;
mod child;
mod command;
mod spawner;

pub use child::{Child, ChildStderr, ChildStdin, ChildStdout};
pub use command::Command;
pub use std::process::{CommandArgs, CommandEnvs, ExitCode, ExitStatus, Output, Stdio, Termination, abort, exit, id};
