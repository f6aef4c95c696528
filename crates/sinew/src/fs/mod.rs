//! Files and directories, with std's names and behaviour.
//!
//! A change of `use std::fs` to `use sinew::fs` is all that a program needs. From a fiber, what may wait for a disk is done where that keeps no other fiber from running, the fiber waiting: `read_at`,
//! `write_at` and their kind, and the syncs, by the worker's ring where it has one and the fiber does not [move](crate::RuntimeBuilder::migrate_started_fibers); all else, and these otherwise, on a thread of the runtime's [blocking pool](crate::blocking()). Reads of what the system has in memory are
//! done on the spot. From a plain thread each call is std's own.
//!
//! What describes files, like [`Metadata`] and [`Permissions`], is std's.
//!
//! # Suspends
//! All functions here do, and nearly all methods of [`File`]. They are [cancel points](crate::cancelled) at their entry: called by one that is cancelled or past its deadline they fail, and
//! nothing has been done. Once begun they run to their end, whatever comes: a file is not a socket, and the system lets nobody take back what it was asked of the disk.
//! To clean up all the same, do so in a [`shield`](crate::shield). A wait for a [lock](File::lock) can be cut short all the time.
//!
//! # Errors
//! The system's, with the kinds that std gives them. An error at the entry [contains `Cancelled`](crate::Cancelled::is_in), or has the kind `TimedOut`.
//!
//! # Panics
//! Inside [`no_suspend`](crate::no_suspend), in all cases but those that never suspend.
//!
//! # Examples
//! ```
//! use sinew::fs;
//!
//! # let path = std::env::temp_dir().join(format!("sinew-doc-fs-{}", std::process::id()));
//! let length = sinew::run(|| {
//!     fs::write(&path, "a few words")?;
//!     let words = fs::read_to_string(&path)?;
//!     fs::remove_file(&path)?;
//!     std::io::Result::Ok(words.len())
//! })?;
//! assert_eq!(length, 11);
//! # std::io::Result::Ok(())
//! ```

mod cursor;
mod directory;
mod file;
mod offsets;
mod operations;
mod options;

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::rt::ask::ask;

pub use directory::{DirEntry, ReadDir, read_dir};
pub use file::File;
pub use options::{DirBuilder, OpenOptions};
pub use std::fs::{FileTimes, FileType, Metadata, Permissions, TryLockError};

/// Reads a whole file.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn read<P: AsRef<Path>>(path: P) -> io::Result<Vec<u8>> {
    let path = path.as_ref();
    ask(|| std::fs::read(path))
}

/// Reads a whole file of text.
///
/// # Errors
/// The system's; `InvalidData` if it is not UTF-8.
#[track_caller]
pub fn read_to_string<P: AsRef<Path>>(path: P) -> io::Result<String> {
    let path = path.as_ref();
    ask(|| std::fs::read_to_string(path))
}

/// Makes `contents` all that is in a file, which is made if it is not there.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn write<P: AsRef<Path>, C: AsRef<[u8]>>(path: P, contents: C) -> io::Result<()> {
    let (path, contents) = (path.as_ref(), contents.as_ref());
    ask(|| std::fs::write(path, contents))
}

/// Copies a file's content and permissions over another; gives the number of bytes.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn copy<P: AsRef<Path>, Q: AsRef<Path>>(from: P, to: Q) -> io::Result<u64> {
    let (from, to) = (from.as_ref(), to.as_ref());
    ask(|| std::fs::copy(from, to))
}

/// Makes a directory.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn create_dir<P: AsRef<Path>>(path: P) -> io::Result<()> {
    DirBuilder::new().create(path)
}

/// Makes a directory and those above it, as far as they are not there.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn create_dir_all<P: AsRef<Path>>(path: P) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(path)
}

/// Removes a file, or a link.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn remove_file<P: AsRef<Path>>(path: P) -> io::Result<()> {
    let path = path.as_ref();
    ask(|| std::fs::remove_file(path))
}

/// Removes an empty directory.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn remove_dir<P: AsRef<Path>>(path: P) -> io::Result<()> {
    let path = path.as_ref();
    ask(|| std::fs::remove_dir(path))
}

/// Removes a directory with all that is in it; links are not followed.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn remove_dir_all<P: AsRef<Path>>(path: P) -> io::Result<()> {
    let path = path.as_ref();
    ask(|| std::fs::remove_dir_all(path))
}

/// Gives a file another name, in the place of one that has it.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn rename<P: AsRef<Path>, Q: AsRef<Path>>(from: P, to: Q) -> io::Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    ask(|| std::fs::rename(from, to))
}

/// Gives a file one more name.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn hard_link<P: AsRef<Path>, Q: AsRef<Path>>(original: P, link: Q) -> io::Result<()> {
    let (original, link) = (original.as_ref(), link.as_ref());
    ask(|| std::fs::hard_link(original, link))
}

/// Makes a link to a path. As [`std::os::unix::fs::symlink`].
///
/// # Errors
/// The system's.
#[track_caller]
pub fn symlink<P: AsRef<Path>, Q: AsRef<Path>>(original: P, link: Q) -> io::Result<()> {
    let (original, link) = (original.as_ref(), link.as_ref());
    ask(|| std::os::unix::fs::symlink(original, link))
}

/// Gives where a link leads.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn read_link<P: AsRef<Path>>(path: P) -> io::Result<PathBuf> {
    let path = path.as_ref();
    ask(|| std::fs::read_link(path))
}

/// Gives a path from the root, without links, `.` and `..`.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn canonicalize<P: AsRef<Path>>(path: P) -> io::Result<PathBuf> {
    let path = path.as_ref();
    ask(|| std::fs::canonicalize(path))
}

/// Gives what is known of a file; of a link, of where it leads.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn metadata<P: AsRef<Path>>(path: P) -> io::Result<Metadata> {
    operations::metadata(path.as_ref())
}

/// Gives what is known of a file; of a link, of the link itself.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn symlink_metadata<P: AsRef<Path>>(path: P) -> io::Result<Metadata> {
    operations::symlink_metadata(path.as_ref())
}

/// Whether there is a file; a link that leads nowhere is none.
///
/// # Errors
/// The system's, if that cannot be told.
#[track_caller]
pub fn exists<P: AsRef<Path>>(path: P) -> io::Result<bool> {
    let path = path.as_ref();
    ask(|| std::fs::exists(path))
}

/// Changes who may do what with a file.
///
/// # Errors
/// The system's.
#[track_caller]
pub fn set_permissions<P: AsRef<Path>>(path: P, permissions: Permissions) -> io::Result<()> {
    let path = path.as_ref();
    ask(|| std::fs::set_permissions(path, permissions))
}

/// Changes whose a file is. As [`std::os::unix::fs::chown`].
///
/// # Errors
/// The system's.
#[track_caller]
pub fn chown<P: AsRef<Path>>(path: P, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
    let path = path.as_ref();
    ask(|| std::os::unix::fs::chown(path, user, group))
}

/// As [`chown`], of a link itself. As [`std::os::unix::fs::lchown`].
///
/// # Errors
/// The system's.
#[track_caller]
pub fn lchown<P: AsRef<Path>>(path: P, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
    let path = path.as_ref();
    ask(|| std::os::unix::fs::lchown(path, user, group))
}

/// As [`chown`], of an open file or directory. As [`std::os::unix::fs::fchown`].
///
/// # Errors
/// The system's.
#[track_caller]
pub fn fchown<F: AsFd>(file: F, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
    let file = file.as_fd();
    ask(|| std::os::unix::fs::fchown(file, user, group))
}

/// Makes a directory the root of the process, with all its threads. As [`std::os::unix::fs::chroot`].
///
/// # Errors
/// The system's.
#[track_caller]
pub fn chroot<P: AsRef<Path>>(path: P) -> io::Result<()> {
    let path = path.as_ref();
    ask(|| std::os::unix::fs::chroot(path))
}
