//! An open file.

use std::fmt;
use std::fs::{FileTimes, Metadata, Permissions, TryLockError};
use std::io::{self, IoSlice, IoSliceMut, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::SystemTime;

use super::OpenOptions;
use super::operations::Handle;
use crate::rt::ask::{ask, ask_after};
use crate::rt::pauses::Pauses;

/// An open file, read and written without keeping other fibers from running.
///
/// Has all that [`std::fs::File`] has (but for `Read`, `Write` and `Seek` of an `Arc` of it: `&*file` has them), and what [`FileExt`] adds on Unix, also without that trait in scope. Several fibers may use one file at a time; as with std's, the cursor is one for all of
/// them, and [`read_at`](Self::read_at) and [`write_at`](Self::write_at) need none.
///
/// Reads of what is in memory are done on the worker; at the cursor only by a handle that was made by opening and of which there can be no other, since [`try_clone`](Self::try_clone) or its descriptor was never asked
/// for. All others go to the blocking pool for that: 13 us for 1.
///
/// Each read or write is one call to the system: wrap it in a [`BufReader`](std::io::BufReader) or [`BufWriter`](std::io::BufWriter) for small ones.
///
/// Dropped, it is closed, on the spot and without a word about errors: [`sync_all`](Self::sync_all) before tells of them.
///
/// # Suspends
/// All but [`unlock`](Self::unlock), [`try_clone`](Self::try_clone), the conversions and the drop may suspend; all of those are [cancel points](crate::cancelled) at their
/// [entry](super#suspends), and [`lock`](Self::lock) and [`lock_shared`](Self::lock_shared) in their wait too.
///
/// # Examples
/// ```
/// use std::io::{Read, Seek, Write};
///
/// # let path = std::env::temp_dir().join(format!("sinew-doc-file-{}", std::process::id()));
/// let mut file = sinew::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
/// file.write_all(b"plain blocking code")?;
/// file.rewind()?;
/// let mut text = String::new();
/// file.read_to_string(&mut text)?;
/// assert_eq!(text, "plain blocking code");
/// # sinew::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// ```
pub struct File {
    pub(super) handle: Handle,
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    #[track_caller]
    pub fn open<P: AsRef<Path>>(path: P) -> io::Result<File> {
        OpenOptions::new().read(true).open(path)
    }

    /// Opens a file for writing: makes it if it is not there, empties it if it is.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    #[track_caller]
    pub fn create<P: AsRef<Path>>(path: P) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path)
    }

    /// Makes a file, for reading and writing.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]; `AlreadyExists` if there is one.
    #[track_caller]
    pub fn create_new<P: AsRef<Path>>(path: P) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).open(path)
    }

    /// Options, to open a file in another way.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// Waits until content and metadata are on the disk.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn sync_all(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    /// Waits until the content is on the disk.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn sync_data(&self) -> io::Result<()> {
        self.handle.sync_data()
    }

    /// Makes the file `size` bytes long: cuts it, or fills it up with zeros. The cursor stays.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn set_len(&self, size: u64) -> io::Result<()> {
        ask(|| self.handle.file.set_len(size))
    }

    /// Gives what is known of the file.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.handle.metadata()
    }

    /// Whether it is a terminal. As the method of [`IsTerminal`], which no other crate can give its types. Does not suspend.
    pub fn is_terminal(&self) -> bool {
        self.handle.file.is_terminal()
    }

    /// Makes a second handle to the same open file: they share the cursor. Does not suspend.
    ///
    /// # Errors
    /// The system's, when there are too many descriptors.
    pub fn try_clone(&self) -> io::Result<File> {
        self.handle.lend().try_clone().map(File::from)
    }

    /// Changes who may do what with the file.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        ask(|| self.handle.file.set_permissions(permissions))
    }

    /// Changes the file's times.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn set_times(&self, times: FileTimes) -> io::Result<()> {
        ask(|| self.handle.file.set_times(times))
    }

    /// Changes when the file was modified last.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.set_times(FileTimes::new().set_modified(time))
    }

    /// Locks the file (`flock`) against other handles, of this process or another; waits while one has it.
    ///
    /// It tries again and again, with pauses of 10 ms at most: a wait in the system would hold a thread, and as many as the blocking pool has could keep out the one that is to unlock. So it is not first come,
    /// first served. Between fibers of one process a [`Mutex`](crate::sync::Mutex) is the better lock.
    ///
    /// # Suspends
    /// Yes, until it has the lock. A [cancel point](crate::cancelled), also in the wait: cut short, it has locked nothing.
    ///
    /// # Errors
    /// The system's; and as every cancel point.
    #[track_caller]
    pub fn lock(&self) -> io::Result<()> {
        self.lock_by(std::fs::File::try_lock)
    }

    /// Locks the file against those who would [`lock`](Self::lock) it; others may share it. Waits as that does.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    #[track_caller]
    pub fn lock_shared(&self) -> io::Result<()> {
        self.lock_by(std::fs::File::try_lock_shared)
    }

    /// Locks the file if no other handle has. Never waits.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if one has; else the system's.
    #[track_caller]
    pub fn try_lock(&self) -> Result<(), TryLockError> {
        self.try_lock_by(std::fs::File::try_lock)
    }

    /// Locks the file against those who would [`lock`](Self::lock) it, if no other handle has. Never waits.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    #[track_caller]
    pub fn try_lock_shared(&self) -> Result<(), TryLockError> {
        self.try_lock_by(std::fs::File::try_lock_shared)
    }

    /// Unlocks the file. Does not suspend, and is no cancel point: what was locked can be unlocked.
    ///
    /// # Errors
    /// The system's.
    pub fn unlock(&self) -> io::Result<()> {
        self.handle.file.unlock()
    }

    #[track_caller]
    fn lock_by(&self, tries: TryLock) -> io::Result<()> {
        let mut pauses = Pauses::new();
        loop {
            match self.try_lock_by(tries) {
                Ok(()) => return Ok(()),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) => pauses.pause()?,
            }
        }
    }

    /// On the worker, not in the pool: all of its threads may be busy with what waits for this very lock. The system answers at once, but for files of another machine (NFS), which it asks meanwhile.
    #[track_caller]
    fn try_lock_by(&self, tries: TryLock) -> Result<(), TryLockError> {
        let file = &self.handle.file;
        let tried = ask_after((), |()| Some(tries(file)), |()| Ok(tries(file)));
        tried.unwrap_or_else(|error| Err(TryLockError::Error(error)))
    }

    /// Reads at `offset`, and leaves the cursor where it is; gives the number of bytes.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Examples
    /// ```
    /// # let path = std::env::temp_dir().join(format!("sinew-doc-read-at-{}", std::process::id()));
    /// sinew::fs::write(&path, "0123456789")?;
    /// let file = sinew::fs::File::open(&path)?;
    /// let halves = sinew::scope(|s| {
    ///     let half = |offset| {
    ///         let mut half = [0; 5];
    ///         file.read_exact_at(&mut half, offset).map(|()| half)
    ///     };
    ///     let second = s.spawn(move || half(5));
    ///     [half(0), second.join().unwrap()]
    /// });
    /// let [first, second] = halves;
    /// assert_eq!((&first?, &second?), (b"01234", b"56789"));
    /// # sinew::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.handle.read_at(buffer, offset)
    }

    /// Writes at `offset`, and leaves the cursor where it is; gives the number of bytes. In a file opened to append, Linux writes at its end all the same.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.handle.write_at(bytes, offset)
    }

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` if there is too little; else the system's.
    #[track_caller]
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }

    /// Writes all of `bytes` from `offset` on.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }
}

/// One of the two ways to try for a lock.
type TryLock = fn(&std::fs::File) -> Result<(), TryLockError>;

impl FileExt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.handle.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.handle.write_at(bytes, offset)
    }
}

impl Read for &File {
    #[track_caller]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.handle.read(buffer)
    }

    #[track_caller]
    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.handle.read_vectored(buffers)
    }

    #[track_caller]
    fn read_to_end(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        self.handle.read_to_end(buffer)
    }

    #[track_caller]
    fn read_to_string(&mut self, buffer: &mut String) -> io::Result<usize> {
        self.handle.read_to_string(buffer)
    }
}

impl Write for &File {
    #[track_caller]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.handle.write(bytes)
    }

    #[track_caller]
    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.handle.write_vectored(buffers)
    }

    /// Does nothing: what was written is with the system.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    #[track_caller]
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.handle.seek(to)
    }
}

impl Read for File {
    #[track_caller]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    #[track_caller]
    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }

    #[track_caller]
    fn read_to_end(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        (&*self).read_to_end(buffer)
    }

    #[track_caller]
    fn read_to_string(&mut self, buffer: &mut String) -> io::Result<usize> {
        (&*self).read_to_string(buffer)
    }
}

impl Write for File {
    #[track_caller]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    #[track_caller]
    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(buffers)
    }

    /// Does nothing: what was written is with the system.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    #[track_caller]
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> Self {
        Self { handle: Handle::new(file) }
    }
}

impl From<File> for std::fs::File {
    fn from(file: File) -> Self {
        file.handle.file
    }
}

impl From<OwnedFd> for File {
    fn from(descriptor: OwnedFd) -> Self {
        std::fs::File::from(descriptor).into()
    }
}

impl From<File> for OwnedFd {
    fn from(file: File) -> Self {
        file.handle.file.into()
    }
}

impl From<File> for Stdio {
    fn from(file: File) -> Self {
        file.handle.file.into()
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.lend().as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.handle.lend().as_raw_fd()
    }
}

impl FromRawFd for File {
    unsafe fn from_raw_fd(descriptor: RawFd) -> Self {
        // SAFETY: the caller's promise.
        unsafe { std::fs::File::from_raw_fd(descriptor) }.into()
    }
}

impl IntoRawFd for File {
    fn into_raw_fd(self) -> RawFd {
        self.handle.file.into_raw_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.file.fmt(f)
    }
}
