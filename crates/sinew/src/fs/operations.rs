//! The operations that programs do often. Where each is done is decided here, and nowhere else in this folder.
//!
//! Reading and writing at an offset (of what has offsets, `offsets.rs`), and syncing go to the ring, where there is one and the fiber cannot move; all else goes to the blocking pool, but for what can be had without waiting. What uses the cursor does not go
//! to the ring: that reads and moves it in two steps, and two fibers would read the same bytes. Nor does opening: the ring first tries it with `O_NONBLOCK`, by which a FIFO is opened before its other
//! end is, or not at all (ENXIO); and made to take a thread of its own for it (`IOSQE_ASYNC`), a few that wait so would use up those that other files need.
//! A read of what lies in the page cache is tried first, on the worker (`preadv2` with `RWF_NOWAIT`); at the cursor only while no other handle can have it (`cursor.rs`). Of 4 KiB it
//! takes 1.1 us of CPU there, 13 by the pool, 0.9 on a plain thread (the first of two runs on the loaded machine of ARCHITECTURE). A write is not tried: few file systems can tell beforehand that it would not wait. Nor is a read
//! of a file that was opened with `O_DIRECT`, which waits for the disk all the same (3,200 of 4 KiB by 32 fibers of one worker: 159 ms when they were tried, 40 since, threads 40).
//!
//! A trial may bring a part, where only that was in memory, and some kernels took a page that was not there for the end of the file. So a plain file is asked for its length, and what came short
//! before the end is read again, whole, in the pool: as with std, a read of a plain file comes short at its end only.
//!
//! # Not here
//! Closing: `close(2)`, on the worker, when the handle is dropped. It is quick for local files; where it is not (a network's file system that writes back at
//! close), `sync_all` before it takes the time instead, and tells of errors. The last handle of a large file that has been removed frees its blocks: drop that in [`blocking`](crate::blocking()).

use std::ffi::{CStr, CString, c_int};
use std::fs::{File, Metadata};
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use io_uring::opcode;
use io_uring::types::{Fd, FsyncFlags};

use super::cursor::Cursor;
use super::offsets::{Offsets, Way};
use crate::rt::ask::{ask, ask_after, ask_ring_after};
use crate::rt::io::ring_length;

/// Bytes that are worth a trial on the worker, at most: as long to copy as the way to the pool takes.
const TRIAL_BYTES_MAX: usize = 64 << 10;
/// Where a call that uses the cursor reads, as `preadv2` is told.
const AT_CURSOR: i64 = -1;

/// An open file.
pub(super) struct Handle {
    pub(super) file: File,
    cursor: Cursor,
    offsets: Offsets,
    /// Whether reads pass by what is in memory (`O_DIRECT`): then each waits for the disk, also one that is not to wait for locks and pages.
    direct: bool,
}

impl Handle {
    /// Takes a file that others may have too.
    pub(super) fn new(file: File) -> Self {
        // SAFETY: a number goes in; an error is as if no flag was set.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        let direct = flags != -1 && flags & libc::O_DIRECT != 0;
        Self { file, cursor: Cursor::new_shared(), offsets: Offsets::default(), direct }
    }

    /// The file, for one who may duplicate it.
    pub(super) fn lend(&self) -> &File {
        self.cursor.share();
        &self.file
    }

    /// Opens the file at `path`.
    #[track_caller]
    pub(super) fn open(path: &Path, flags: c_int, mode: libc::mode_t) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let direct = flags & libc::O_DIRECT != 0;
        ask(|| open(&path, flags, mode)).map(|file| Self { file, cursor: Cursor::new(), offsets: Offsets::default(), direct })
    }

    fn fd(&self) -> Fd {
        Fd(self.file.as_raw_fd())
    }

    #[track_caller]
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.at_cursor(buffer, |buffer| self.try_read(buffer), |buffer| (&self.file).read(buffer))
    }

    #[track_caller]
    pub(super) fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.at_cursor(buffers, |_| None, |buffers| (&self.file).read_vectored(buffers))
    }

    /// Reads all that is left, in one stay in the pool.
    #[track_caller]
    pub(super) fn read_to_end(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        self.at_cursor(buffer, |_| None, |buffer| (&self.file).read_to_end(buffer))
    }

    #[track_caller]
    pub(super) fn read_to_string(&self, buffer: &mut String) -> io::Result<usize> {
        self.at_cursor(buffer, |_| None, |buffer| (&self.file).read_to_string(buffer))
    }

    #[track_caller]
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.at_cursor(bytes, |_| None, |bytes| (&self.file).write(bytes))
    }

    #[track_caller]
    pub(super) fn write_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.at_cursor(buffers, |_| None, |buffers| (&self.file).write_vectored(buffers))
    }

    /// Moves the cursor, on the worker if the file need not be asked where its end is.
    #[track_caller]
    pub(super) fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        let try_here = |_: &mut ()| if let SeekFrom::End(_) = to { None } else { (&self.file).seek(to).ok() };
        self.at_cursor((), try_here, |()| (&self.file).seek(to))
    }

    #[track_caller]
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if i64::try_from(offset).is_err() {
            return Err(no_such_offset());
        }
        let entry =
            |buffer: &mut &mut [u8]| opcode::Read::new(self.fd(), buffer.as_mut_ptr(), ring_length(buffer.len())).offset(offset).build();
        let try_here = |buffer: &mut &mut [u8]| self.try_read_at(buffer, offset);
        let call = |buffer: &mut [u8]| self.file.read_at(buffer, offset);
        match self.offsets.read(&self.file) {
            // SAFETY: the entry points to the buffer.
            Way::Ring => unsafe { ask_ring_after(buffer, try_here, entry, call) },
            Way::Pool => ask_after(buffer, try_here, call),
            Way::Refused => refused(buffer, |buffer| self.file.read_at(buffer, offset)),
        }
    }

    #[track_caller]
    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        if i64::try_from(offset).is_err() {
            return Err(no_such_offset());
        }
        let entry = |bytes: &mut &[u8]| opcode::Write::new(self.fd(), bytes.as_ptr(), ring_length(bytes.len())).offset(offset).build();
        let call = |bytes: &[u8]| self.file.write_at(bytes, offset);
        match self.offsets.write(&self.file) {
            // SAFETY: the entry points to the bytes.
            Way::Ring => unsafe { ask_ring_after(bytes, |_| None, entry, call) },
            Way::Pool => ask(|| call(bytes)),
            Way::Refused => refused(bytes, |bytes| self.file.write_at(bytes, offset)),
        }
    }

    #[track_caller]
    pub(super) fn sync_all(&self) -> io::Result<()> {
        // SAFETY: nothing is lent.
        unsafe { ask_ring_after((), |()| None, |()| opcode::Fsync::new(self.fd()).build(), |()| self.file.sync_all().map(|()| 0)) }
            .map(drop)
    }

    #[track_caller]
    pub(super) fn sync_data(&self) -> io::Result<()> {
        let entry = |(): &mut ()| opcode::Fsync::new(self.fd()).flags(FsyncFlags::DATASYNC).build();
        // SAFETY: nothing is lent.
        unsafe { ask_ring_after((), |()| None, entry, |()| self.file.sync_data().map(|()| 0)) }.map(drop)
    }

    #[track_caller]
    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        ask(|| self.file.metadata())
    }

    /// Does `call`, which uses the cursor, in the pool, unless the cursor is this handle's alone, is free, and `at_once` does it here.
    #[track_caller]
    fn at_cursor<W: Send, T: Send>(
        &self,
        what: W,
        at_once: impl FnOnce(&mut W) -> Option<T>,
        call: impl FnOnce(W) -> io::Result<T> + Send,
    ) -> io::Result<T> {
        ask_after(what, |what| self.cursor.alone(|| at_once(what)), |what| self.cursor.beside_others(|| call(what)))
    }

    /// Reads at the cursor, if that need not wait.
    fn try_read(&self, buffer: &mut [u8]) -> Option<usize> {
        let read = self.read_without_waiting(buffer, AT_CURSOR)?;
        if read == buffer.len() || self.is_all(read, || (&self.file).stream_position().ok()) {
            return Some(read);
        }
        if read > 0 {
            // A plain file. Its cursor is this worker's alone (`cursor.rs`), so nobody has seen it move.
            let step_back = -i64::try_from(read).expect("a trial is small");
            (&self.file).seek(SeekFrom::Current(step_back)).expect("a plain file's cursor can be moved to where it was");
        }
        None
    }

    /// Reads at `offset`, if that need not wait.
    fn try_read_at(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        let read = self.read_without_waiting(buffer, i64::try_from(offset).ok()?)?;
        (read == buffer.len() || self.is_all(read, || Some(offset + read as u64))).then_some(read)
    }

    /// Whether a read that came short, and ended at `end`, has brought all that there is. What is no plain file gives what it has.
    fn is_all(&self, read: usize, end: impl FnOnce() -> Option<u64>) -> bool {
        match self.file.metadata() {
            Ok(metadata) if metadata.is_file() => end().is_some_and(|end| end >= metadata.len()),
            _ => read > 0,
        }
    }

    fn read_without_waiting(&self, buffer: &mut [u8], offset: i64) -> Option<usize> {
        if self.direct || buffer.len() > TRIAL_BYTES_MAX {
            return None;
        }
        let buffers = [IoSliceMut::new(buffer)];
        // SAFETY: an `IoSliceMut` is an `iovec` in memory; the buffer is borrowed for the call, which is over when it returns.
        let read = unsafe { libc::preadv2(self.file.as_raw_fd(), buffers.as_ptr().cast(), 1, offset, libc::RWF_NOWAIT) };
        usize::try_from(read).ok()
    }
}

/// Makes a call that fails at once, on the worker.
#[cold]
#[track_caller]
fn refused<W: Send>(what: W, call: impl Fn(&mut W) -> io::Result<usize> + Sync) -> io::Result<usize> {
    ask_after(what, |what| Some(call(what)), |mut what| Ok(call(&mut what)))?
}

/// As the system says of one that is negative to it. (To the ring the last of them would be the cursor.)
fn no_such_offset() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// What is known of the file at `path`.
#[track_caller]
pub(super) fn metadata(path: &Path) -> io::Result<Metadata> {
    ask(|| std::fs::metadata(path))
}

/// As [`metadata`], of the link itself where there is one.
#[track_caller]
pub(super) fn symlink_metadata(path: &Path) -> io::Result<Metadata> {
    ask(|| std::fs::symlink_metadata(path))
}

fn open(path: &CStr, flags: c_int, mode: libc::mode_t) -> io::Result<File> {
    loop {
        // SAFETY: a C string, which stays for the call.
        let descriptor = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC | libc::O_LARGEFILE, libc::c_uint::from(mode)) };
        if descriptor >= 0 {
            // SAFETY: it was opened just now, and is nobody's yet.
            return Ok(unsafe { File::from_raw_fd(descriptor) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
