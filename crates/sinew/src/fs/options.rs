//! How a file is opened, and a directory made.

use std::ffi::c_int;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use super::File;
use super::operations::Handle;
use crate::rt::ask::ask;

/// Who may do what with a new file, before the process's mask: all may read and write, as std has it.
const MODE_DEFAULT: u32 = 0o666;

/// How a file is opened. As [`std::fs::OpenOptions`], with the methods of [`OpenOptionsExt`].
///
/// # Examples
/// ```
/// use std::io::Write;
///
/// # let path = std::env::temp_dir().join(format!("sinew-doc-options-{}", std::process::id()));
/// for line in ["one", "two"] {
///     let mut log = sinew::fs::OpenOptions::new().append(true).create(true).open(&path)?;
///     writeln!(log, "{line}")?;
/// }
/// assert_eq!(sinew::fs::read_to_string(&path)?, "one\ntwo\n");
/// # sinew::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    custom_flags: i32,
    mode: u32,
}

impl OpenOptions {
    /// Options that say nothing yet: a file is opened neither for reading nor for writing.
    #[expect(clippy::new_without_default, reason = "as std's, which has no default either")]
    pub fn new() -> Self {
        let (read, write, append, truncate) = (false, false, false, false);
        Self { read, write, append, truncate, create: false, create_new: false, custom_flags: 0, mode: MODE_DEFAULT }
    }

    /// Whether to read.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Whether to write, over what is there.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Whether to write at the end, wherever it is by then.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Whether to empty a file that is there.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Whether to make the file if it is not there.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Whether to make the file, and to fail if it is there.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Who may do what with a new file; the process's mask takes away from that.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Flags of `open(2)` besides.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags = flags;
        self
    }

    /// Opens the file at `path`.
    ///
    /// A FIFO is opened when its other end is, which may be long after: meanwhile a thread of the blocking pool waits there, and nothing cuts that short.
    ///
    /// # Errors
    /// Those of [`std::fs::OpenOptions::open`]: `NotFound`, `PermissionDenied`, `AlreadyExists`, `InvalidInput` for options that contradict each other, and others.
    #[track_caller]
    pub fn open<P: AsRef<Path>>(&self, path: P) -> io::Result<File> {
        let flags = self.access()? | self.creation()? | self.custom_flags & !libc::O_ACCMODE;
        Handle::open(path.as_ref(), flags, self.mode).map(|handle| File { handle })
    }

    fn access(&self) -> io::Result<c_int> {
        match (self.read, self.write, self.append) {
            (true, false, false) => Ok(libc::O_RDONLY),
            (false, true, false) => Ok(libc::O_WRONLY),
            (true, true, false) => Ok(libc::O_RDWR),
            (false, _, true) => Ok(libc::O_WRONLY | libc::O_APPEND),
            (true, _, true) => Ok(libc::O_RDWR | libc::O_APPEND),
            (false, false, false) => refuse("a file is opened to read, to write, or to append"),
        }
    }

    fn creation(&self) -> io::Result<c_int> {
        let makes_or_empties = self.truncate || self.create || self.create_new;
        if !self.write && !self.append && makes_or_empties {
            return refuse("a file can be made or emptied only if it is opened to write or to append");
        }
        if self.append && self.truncate && !self.create_new {
            return refuse("a file that is opened to append cannot be emptied");
        }
        Ok(match (self.create, self.truncate, self.create_new) {
            (_, _, true) => libc::O_CREAT | libc::O_EXCL,
            (true, true, false) => libc::O_CREAT | libc::O_TRUNC,
            (true, false, false) => libc::O_CREAT,
            (false, true, false) => libc::O_TRUNC,
            (false, false, false) => 0,
        })
    }
}

fn refuse(why: &'static str) -> io::Result<c_int> {
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

impl OpenOptionsExt for OpenOptions {
    fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode(mode)
    }

    fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags(flags)
    }
}

/// How a directory is made. As [`std::fs::DirBuilder`], with the method of [`DirBuilderExt`].
#[derive(Debug)]
pub struct DirBuilder {
    std: std::fs::DirBuilder,
}

impl DirBuilder {
    /// Makes one directory, with the rights that the process's mask leaves.
    #[expect(clippy::new_without_default, reason = "as std's, which has no default either")]
    pub fn new() -> Self {
        Self { std: std::fs::DirBuilder::new() }
    }

    /// Whether to make those above it too; then it is no error if it is there.
    pub fn recursive(&mut self, recursive: bool) -> &mut Self {
        self.std.recursive(recursive);
        self
    }

    /// Who may do what with it; the process's mask takes away from that.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.std.mode(mode);
        self
    }

    /// Makes the directory.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn create<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        let path = path.as_ref();
        ask(|| self.std.create(path))
    }
}

impl DirBuilderExt for DirBuilder {
    fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode(mode)
    }
}
