//! What is in a directory.
//!
//! Entries are fetched in batches: one stay in the pool for many. What each of them is comes along, since most file systems say so for nothing.

use std::ffi::OsString;
use std::fmt;
use std::fs::{FileType, Metadata};
use std::io;
use std::os::unix::fs::DirEntryExt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};
use std::vec;

use crate::rt::ask::ask;

/// Entries of a batch. Arbitrary: the way to the pool costs little beside reading so many.
const BATCH: usize = 128;

/// Gives the entries of a directory, in no order; without `.` and `..`.
///
/// # Errors
/// The system's.
///
/// # Examples
/// ```
/// # let path = std::env::temp_dir().join(format!("sinew-doc-read-dir-{}", std::process::id()));
/// sinew::fs::create_dir_all(path.join("inner"))?;
/// for entry in sinew::fs::read_dir(&path)? {
///     let entry = entry?;
///     assert_eq!(entry.file_name(), "inner");
///     assert!(entry.file_type()?.is_dir());
/// }
/// sinew::fs::remove_dir_all(&path)?;
/// # std::io::Result::Ok(())
/// ```
#[track_caller]
pub fn read_dir<P: AsRef<Path>>(path: P) -> io::Result<ReadDir> {
    let path = path.as_ref();
    ask(|| {
        let mut rest = std::fs::read_dir(path)?;
        let batch = fetch(&mut rest);
        Ok(ReadDir { path: path.to_path_buf(), batch: batch.into_iter(), rest: Some(rest) })
    })
}

fn fetch(rest: &mut std::fs::ReadDir) -> Vec<io::Result<DirEntry>> {
    rest.take(BATCH).map(|entry| entry.map(DirEntry::new)).collect()
}

/// The entries of a directory. See [`read_dir`].
///
/// # Suspends
/// For one entry in many, which is a [cancel point](crate::cancelled) at its [entry](super#suspends): after its error there are no more entries.
pub struct ReadDir {
    path: PathBuf,
    batch: vec::IntoIter<io::Result<DirEntry>>,
    /// None when all was fetched.
    rest: Option<std::fs::ReadDir>,
}

// As std's. What keeps the compiler from saying so are the errors in the batch, which nobody sees before they are given out.
impl UnwindSafe for ReadDir {}
impl RefUnwindSafe for ReadDir {}

impl Iterator for ReadDir {
    type Item = io::Result<DirEntry>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        if let Some(entry) = self.batch.next() {
            return Some(entry);
        }
        let mut rest = self.rest.take()?;
        match ask(|| Ok(fetch(&mut rest))) {
            Err(cut) => Some(Err(cut)),
            Ok(batch) => {
                // One that has given nothing is at its end.
                self.rest = (!batch.is_empty()).then_some(rest);
                self.batch = batch.into_iter();
                self.batch.next()
            }
        }
    }
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadDir").field(&self.path).finish()
    }
}

/// One entry of a directory.
pub struct DirEntry {
    std: std::fs::DirEntry,
    kind: Option<FileType>,
}

impl DirEntry {
    /// On a thread that may block.
    fn new(entry: std::fs::DirEntry) -> Self {
        Self { kind: entry.file_type().ok(), std: entry }
    }

    /// Gives the directory's path with the entry's name after it.
    pub fn path(&self) -> PathBuf {
        self.std.path()
    }

    /// Gives the name.
    pub fn file_name(&self) -> OsString {
        self.std.file_name()
    }

    /// Gives what it was when it was fetched; a link is a link. Suspends only if that could not be found out then.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn file_type(&self) -> io::Result<FileType> {
        match self.kind {
            Some(kind) => Ok(kind),
            None => ask(|| self.std.file_type()),
        }
    }

    /// Gives what is known of it; of a link, the link itself.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn metadata(&self) -> io::Result<Metadata> {
        ask(|| self.std.metadata())
    }

    /// Gives its number in the file system.
    pub fn ino(&self) -> u64 {
        self.std.ino()
    }
}

impl DirEntryExt for DirEntry {
    fn ino(&self) -> u64 {
        self.ino()
    }
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.std.fmt(f)
    }
}
