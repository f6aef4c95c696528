//! Pipes of the system's: for other processes. Between fibers there are channels.

use std::io;
use std::os::fd::OwnedFd;

use crate::rt::pipe::{Pipe, reading_end, writing_end};

/// Makes a pipe. As [`std::io::pipe`].
///
/// For what goes to or comes from another process. Fibers of one process talk by [channels](crate::chan), at a fraction of the cost.
///
/// # Errors
/// The system's, when there are too many descriptors.
///
/// # Examples
/// ```
/// use std::io::Read;
/// use sinew::process::Command;
///
/// let (mut reader, writer) = sinew::io::pipe()?;
/// let mut child = Command::new("sh").args(["-c", "echo both; echo of them >&2"]).stdout(writer.try_clone()?).stderr(writer).spawn()?;
/// let mut text = String::new();
/// reader.read_to_string(&mut text)?;
/// assert_eq!(text, "both\nof them\n");
/// child.wait()?;
/// # std::io::Result::Ok(())
/// ```
pub fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    Ok((OwnedFd::from(reader).into(), OwnedFd::from(writer).into()))
}

/// The end of a [`pipe`] that is read.
///
/// # Suspends
/// A read does until something was written, or all writers are gone. A [cancel point](crate::cancelled): cut short, it has read nothing.
#[derive(Debug)]
pub struct PipeReader {
    pipe: Pipe,
}

reading_end!(PipeReader);

impl PipeReader {
    /// Makes a second handle to the same end.
    ///
    /// # Errors
    /// The system's, when there are too many descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { pipe: self.pipe.try_clone()? })
    }
}

/// The end of a [`pipe`] that is written.
///
/// # Suspends
/// A write does while the pipe is full. A [cancel point](crate::cancelled): cut short, it has written nothing.
#[derive(Debug)]
pub struct PipeWriter {
    pipe: Pipe,
}

writing_end!(PipeWriter);

impl PipeWriter {
    /// Makes a second handle to the same end.
    ///
    /// # Errors
    /// The system's, when there are too many descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { pipe: self.pipe.try_clone()? })
    }
}
