//! A child that was started.

use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};

use super::both::read_both;
use super::{ExitStatus, Output};
use crate::rt::cancel::shield;
use crate::rt::context::region;
use crate::rt::io::{Interest, count_gift, poll};
use crate::rt::pauses::Pauses;
use crate::rt::pipe::{Pipe, reading_end, writing_end};
use crate::rt::wait::enter_cancel_point;

/// A child process. As [`std::process::Child`].
///
/// Dropped, it runs on, as std's does, and stays as a zombie when it ends until this process does: [`wait`](Self::wait) for every child.
#[derive(Debug)]
pub struct Child {
    /// Where the child reads from, if that was [piped](super::Stdio::piped).
    pub stdin: Option<ChildStdin>,
    /// What the child writes, if that was piped.
    pub stdout: Option<ChildStdout>,
    /// What the child writes as errors, if that was piped.
    pub stderr: Option<ChildStderr>,
    std: std::process::Child,
    /// Readable when the child has ended. None where the system has no such thing.
    ended: Option<OwnedFd>,
}

impl Child {
    pub(super) fn new(mut child: std::process::Child) -> Self {
        let stdin = child.stdin.take().map(|end| OwnedFd::from(end).into());
        let stdout = child.stdout.take().map(|end| OwnedFd::from(end).into());
        let stderr = child.stderr.take().map(|end| OwnedFd::from(end).into());
        Self { stdin, stdout, stderr, ended: open_pidfd(child.id()), std: child }
    }

    /// Gives the child's number.
    pub fn id(&self) -> u32 {
        self.std.id()
    }

    /// Kills the child (SIGKILL). It is no error if it has ended and was waited for.
    ///
    /// # Errors
    /// The system's.
    pub fn kill(&mut self) -> io::Result<()> {
        self.std.kill()
    }

    /// Closes the child's input and waits for its end.
    ///
    /// # Suspends
    /// Yes, until the child ends. A [cancel point](crate::cancelled): cut short, it leaves the child running, to be killed or waited for again. Where the system has no `pidfd`, or no descriptors are to
    /// be had, it looks from time to time, every 10 ms at last; and so it does while another process traces the child and has not let go of it.
    ///
    /// # Errors
    /// The system's; and as every cancel point.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// let mut child = sinew::process::Command::new("sleep").arg("3600").spawn()?;
    /// let late = sinew::timeout(Duration::from_millis(1), || child.wait());
    /// assert!(late.is_err());
    /// child.kill()?;
    /// assert!(!child.wait()?.success());
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        enter_cancel_point()?;
        let (mut pauses, mut is_told) = (Pauses::new(), false);
        loop {
            if let Some(status) = self.std.try_wait()? {
                return Ok(status);
            }
            match &self.ended {
                Some(ended) if !is_told => {
                    poll(ended, Interest::Readable)?;
                    is_told = true;
                }
                // There is no such descriptor; or it has told, and would again at once, while the end is for who traces the child.
                _ => pauses.pause()?,
            }
        }
    }

    /// Gives how the child ended, if it has. Never waits, but lets other fibers run from time to time, as all calls that need not wait.
    ///
    /// # Errors
    /// The system's.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        count_gift();
        self.std.try_wait()
    }

    /// Closes the child's input, reads all that it writes where that was piped, and waits for its end.
    ///
    /// # Suspends
    /// Yes, until the child ends. A [cancel point](crate::cancelled): cut short, it kills the child, which nobody else could, and what was written is lost.
    ///
    /// # Errors
    /// The system's; and as every cancel point.
    #[track_caller]
    pub fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.stdin.take());
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        let last = Last(self);
        let (mut from_stdout, mut from_stderr) = (Vec::new(), Vec::new());
        match (stdout, stderr) {
            (None, None) => {}
            (Some(mut stdout), None) => drop(stdout.read_to_end(&mut from_stdout)?),
            (None, Some(mut stderr)) => drop(stderr.read_to_end(&mut from_stderr)?),
            (Some(stdout), Some(stderr)) => (from_stdout, from_stderr) = read_both(stdout.into(), stderr.into())?,
        }
        Ok(Output { status: last.wait()?, stdout: from_stdout, stderr: from_stderr })
    }

    /// As `wait`, by the last who could kill it.
    #[track_caller]
    pub(super) fn wait_or_kill(self) -> io::Result<ExitStatus> {
        Last(self).wait()
    }

    /// Kills the child and waits for that, whatever comes.
    #[cold]
    fn end(&mut self) {
        if self.kill().is_err() {
            return;
        }
        let _ = match region() {
            None => shield(|| self.wait()),
            // It unwinds from where nothing may be waited for. This blocks the thread, but not for long: who was killed ends.
            Some(_) => self.std.wait(),
        };
    }
}

/// A child that nobody else can kill or wait for. Dropped before its end, by an error or an unwinding, it is killed.
struct Last(Child);

impl Last {
    #[track_caller]
    fn wait(mut self) -> io::Result<ExitStatus> {
        self.0.wait()
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        if !matches!(self.0.std.try_wait(), Ok(Some(_))) {
            self.0.end();
        }
    }
}

/// A descriptor that is readable when the child of this number has ended; the caller has not waited for it, so the number is its own.
fn open_pidfd(child: u32) -> Option<OwnedFd> {
    // SAFETY: two numbers go in.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, child, 0) };
    // SAFETY: it was opened just now, and is nobody's yet.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Where a child reads from. Dropped, it is closed, and the child finds the end.
///
/// # Suspends
/// A write does while the pipe is full. A [cancel point](crate::cancelled): cut short, it has written nothing.
#[derive(Debug)]
pub struct ChildStdin {
    pipe: Pipe,
}

writing_end!(ChildStdin);

/// What a child writes.
///
/// # Suspends
/// A read does until the child has written something, or closed its end. A [cancel point](crate::cancelled): cut short, it has read nothing.
#[derive(Debug)]
pub struct ChildStdout {
    pipe: Pipe,
}

reading_end!(ChildStdout);

/// What a child writes as errors. As [`ChildStdout`].
#[derive(Debug)]
pub struct ChildStderr {
    pipe: Pipe,
}

reading_end!(ChildStderr);
