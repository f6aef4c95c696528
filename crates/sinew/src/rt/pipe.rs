//! One end of a pipe, as bytes go through it: what the ends that users have are made of.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::ready::{Interest, poll};
use super::wait::enter_cancel_point;

/// One end of a pipe. Non-blocking in the kernel; so is every duplicate of it, but not the other end.
#[derive(Debug)]
pub(crate) struct Pipe {
    file: File,
}

impl Pipe {
    pub(crate) fn new(end: OwnedFd) -> io::Result<Self> {
        set_nonblocking(end.as_fd(), true)?;
        Ok(Self { file: end.into() })
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { file: self.file.try_clone()? })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Gives it up, blocking, as others expect it.
    pub(crate) fn into_blocking(self) -> OwnedFd {
        // It cannot fail on a valid descriptor.
        let _ = set_nonblocking(self.file.as_fd(), false);
        self.file.into()
    }

    #[track_caller]
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.when(Interest::Readable, |mut file| file.read(buffer))
    }

    #[track_caller]
    pub(crate) fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.when(Interest::Readable, |mut file| file.read_vectored(buffers))
    }

    #[track_caller]
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.when(Interest::Writable, |mut file| file.write(bytes))
    }

    #[track_caller]
    pub(crate) fn write_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.when(Interest::Writable, |mut file| file.write_vectored(buffers))
    }

    /// Tries, and waits before each further try.
    #[track_caller]
    fn when<T>(&self, interest: Interest, mut attempt: impl FnMut(&File) -> io::Result<T>) -> io::Result<T> {
        enter_cancel_point()?;
        loop {
            match attempt(&self.file) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => poll(&self.file, interest)?,
                done => return done,
            }
        }
    }
}

fn set_nonblocking(end: BorrowedFd<'_>, nonblocking: bool) -> io::Result<()> {
    let mut on = libc::c_int::from(nonblocking);
    // SAFETY: the number outlives the call.
    match unsafe { libc::ioctl(end.as_raw_fd(), libc::FIONBIO, &mut on) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
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

        /// For a child process, to which it is blocking, as is every duplicate of it from then on.
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
