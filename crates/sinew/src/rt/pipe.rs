//! One end of a pipe, as bytes go through it: what the ends that users have are made of.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::io::{Descriptor, Direction, Try, count, perform};

/// One end of a pipe. Non-blocking in the kernel; so is every duplicate of it, but not the other end.
///
/// It becomes blocking when a duplicate goes to a child, which expects that: they are one in the kernel. So each call asks for itself not to wait (`RWF_NOWAIT`), where that can be asked.
///
/// The ring only tells when to try: it does not wait in a read of a non-blocking pipe.
pub(crate) struct Pipe {
    descriptor: Descriptor<File>,
}

/// Buffers that the system takes at once: `UIO_MAXIOV`. What is left is for the next call.
const BUFFERS_MAX: usize = 1024;

/// Reads what is there, and fails where it would wait.
fn read_now(mut file: &File, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let number = buffers.len().min(BUFFERS_MAX) as libc::c_int;
    // SAFETY: an `IoSliceMut` is an `iovec` in memory; the buffers are borrowed for the call, which is over when it returns.
    let read = unsafe { libc::preadv2(file.as_raw_fd(), buffers.as_ptr().cast(), number, AT_CURSOR, libc::RWF_NOWAIT) };
    count(read).or_else(|error| if is_unknown(&error) { file.read_vectored(buffers) } else { Err(error) })
}

/// Writes what there is room for, and fails where it would wait.
fn write_now(mut file: &File, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
    let number = buffers.len().min(BUFFERS_MAX) as libc::c_int;
    // SAFETY: as in `read_now`.
    let written = unsafe { libc::pwritev2(file.as_raw_fd(), buffers.as_ptr().cast(), number, AT_CURSOR, libc::RWF_NOWAIT) };
    count(written).or_else(|error| if is_unknown(&error) { file.write_vectored(buffers) } else { Err(error) })
}

/// A pipe has no offsets.
const AT_CURSOR: libc::off_t = -1;

/// Whether the system knows no calls that do not wait, for this kind of file: a terminal, a FIFO, or any pipe before Linux 6.4.
fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::EPERM))
}

impl Pipe {
    /// Takes one end of a pipe, or of anything else that can be waited for, and makes it non-blocking, which the system refuses to nothing that can be read or written.
    pub(crate) fn new(end: OwnedFd) -> Self {
        let file = File::from(end);
        let _ = Descriptor::new(file.as_fd());
        let descriptor = Descriptor::of_nonblocking(file);
        // Where it comes from is not known. One of our own pays a system call for that when it is dropped; pipes are few.
        descriptor.note_duplicate();
        Self { descriptor }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { descriptor: self.descriptor.clone_as(self.descriptor.socket().try_clone()?) })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.lend()
    }

    /// Gives it up, blocking, as others expect it.
    pub(crate) fn into_blocking(self) -> OwnedFd {
        self.descriptor.into_inner().into()
    }

    #[track_caller]
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    #[track_caller]
    pub(crate) fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        perform(&self.descriptor, Try(Direction::Read, |file: &File| read_now(file, buffers)))
    }

    #[track_caller]
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    #[track_caller]
    pub(crate) fn write_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        perform(&self.descriptor, Try(Direction::Write, |file: &File| write_now(file, buffers)))
    }
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.descriptor.socket().fmt(f)
    }
}

/// Gives a type around a `Pipe`, in its field `pipe`, what every end of a pipe has.
macro_rules! pipe_end {
    ($end:ident) => {
        impl std::os::fd::AsFd for $end {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.pipe.as_fd()
            }
        }

        impl std::os::fd::AsRawFd for $end {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                std::os::fd::AsRawFd::as_raw_fd(&self.pipe.as_fd())
            }
        }

        /// Takes one end of a pipe, or of anything else that can be waited for, and makes it non-blocking: with it all duplicates, those of other processes too, and so they stay when it is dropped.
        /// Made an `OwnedFd` again, it is blocking.
        impl From<std::os::fd::OwnedFd> for $end {
            fn from(end: std::os::fd::OwnedFd) -> Self {
                Self { pipe: crate::rt::pipe::Pipe::new(end) }
            }
        }

        impl std::os::fd::FromRawFd for $end {
            unsafe fn from_raw_fd(end: std::os::fd::RawFd) -> Self {
                // SAFETY: the caller's promise.
                unsafe { std::os::fd::OwnedFd::from_raw_fd(end) }.into()
            }
        }

        /// It is blocking then.
        impl From<$end> for std::os::fd::OwnedFd {
            fn from(end: $end) -> Self {
                end.pipe.into_blocking()
            }
        }

        impl std::os::fd::IntoRawFd for $end {
            fn into_raw_fd(self) -> std::os::fd::RawFd {
                std::os::fd::IntoRawFd::into_raw_fd(std::os::fd::OwnedFd::from(self))
            }
        }

        /// For a child process, to which it is blocking. Duplicates that fibers keep still block no worker (but before Linux 6.4 they do).
        impl From<$end> for std::process::Stdio {
            fn from(end: $end) -> Self {
                std::os::fd::OwnedFd::from(end).into()
            }
        }
    };
}

/// As `pipe_end`, for one that is read.
macro_rules! reading_end {
    ($end:ident) => {
        crate::rt::pipe::pipe_end!($end);

        impl std::io::Read for &$end {
            #[track_caller]
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                self.pipe.read(buffer)
            }

            #[track_caller]
            fn read_vectored(&mut self, buffers: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                self.pipe.read_vectored(buffers)
            }
        }

        impl std::io::Read for $end {
            #[track_caller]
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                self.pipe.read(buffer)
            }

            #[track_caller]
            fn read_vectored(&mut self, buffers: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                self.pipe.read_vectored(buffers)
            }
        }
    };
}

/// As `pipe_end`, for one that is written.
macro_rules! writing_end {
    ($end:ident) => {
        crate::rt::pipe::pipe_end!($end);

        impl std::io::Write for &$end {
            #[track_caller]
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.pipe.write(bytes)
            }

            #[track_caller]
            fn write_vectored(&mut self, buffers: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                self.pipe.write_vectored(buffers)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        impl std::io::Write for $end {
            #[track_caller]
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.pipe.write(bytes)
            }

            #[track_caller]
            fn write_vectored(&mut self, buffers: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                self.pipe.write_vectored(buffers)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
    };
}

pub(crate) use {pipe_end, reading_end, writing_end};
