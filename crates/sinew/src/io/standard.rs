//! The process's own input and output.
//!
//! Their descriptors are shared with other processes, a shell most of all, so they cannot be made non-blocking. Input is waited for before it is read, so that a wait can be cut short; the
//! read itself goes to the blocking pool, since another process may have been quicker. Output goes through std's own buffers, so that what `println!` writes keeps its place; whole in the pool.
//! Std's locks belong to threads, and each write of a fiber may be by another one: so the locks of output are our own, taken by all that goes through these handles.
//!
//! Who reads has the lock of the input while it waits for some: so for a read the wait for that lock is a cancel point too. Rejected: the input as a message of a channel, which goes to the next in line and
//! waits with it while another fiber computes at its worker: 16 fibers of two workers that compute for 30 us per line had 30 us per line most often, and have 16.
//!
//! Input has a buffer of its own, apart from std's: nothing can be asked of std's that would not wait. What a read that fails has taken, and its caller cannot see, is handed back to the source, below
//! that buffer: a read fails only where the buffer is empty, so nothing comes between.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, IsTerminal, Lines, Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::process::Stdio;

use lock_api::{GetThreadId, RawMutex as _, ReentrantMutex, ReentrantMutexGuard};

use crate::rt::ask::ask;
use crate::rt::io::{Interest, poll};
use crate::rt::wait::Me;
use crate::sync::{LazyLock, Mutex, MutexGuard, RawMutex};

static INPUT: LazyLock<Mutex<Input>> = LazyLock::new(|| Mutex::new(BufReader::new(Source { handed_back: VecDeque::new() })));

type Input = BufReader<Source>;

/// The descriptor of the process's input, and what comes before all that is read from it.
struct Source {
    handed_back: VecDeque<u8>,
}

impl Read for Source {
    #[track_caller]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.handed_back.is_empty() {
            return self.handed_back.read(buffer);
        }
        let input = input();
        let read = || {
            // SAFETY: the kernel writes into the buffer, as long as it is.
            usize::try_from(unsafe { libc::read(input.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) })
                .map_err(|_| io::Error::last_os_error())
        };
        match poll(input, Interest::Readable).and_then(|()| ask(read)) {
            // As std: a process without input finds its end.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(0),
            read => read,
        }
    }
}

fn input() -> BorrowedFd<'static> {
    // SAFETY: the number is the process's input for all its life, as std takes it to be.
    unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) }
}

/// A handle to the process's input. As [`std::io::stdin`].
///
/// It has a buffer, which all handles share, but not with std's: a program uses the one or the other. Who reads while another does waits for its turn.
///
/// # Examples
/// ```no_run
/// for line in sinew::io::stdin().lines() {
///     println!("{}", line?);
/// }
/// # std::io::Result::Ok(())
/// ```
pub fn stdin() -> Stdin {
    Stdin(())
}

/// The process's input. See [`stdin`].
///
/// # Suspends
/// A read does until it is its turn, and there is input, or its end. A [cancel point](crate::cancelled), also while it waits for its turn: cut short, it has taken nothing, and what had come of
/// a line, say, comes first in the next read. But `read_to_end` leaves in its buffer what it has read so far, and `skip_until`
/// has skipped it; a panic in the midst of a read, as inside [`no_suspend`](crate::no_suspend), loses it.
#[derive(Debug)]
pub struct Stdin(());

impl Stdin {
    /// Locks the input for one reader; waits while another has it, and that is no cancel point.
    #[track_caller]
    pub fn lock(&self) -> StdinLock<'static> {
        StdinLock { input: Some(INPUT.lock()) }
    }

    /// For one call, or an iterator: the input is locked by the first read, if that is not cut short.
    fn lock_to_read(&self) -> StdinLock<'static> {
        StdinLock { input: None }
    }

    /// Reads a line, with its end, and adds it to `line`; gives the number of bytes, `0` at the end of input.
    ///
    /// # Errors
    /// The system's; `InvalidData` if it is not UTF-8; and as every cancel point.
    #[track_caller]
    pub fn read_line(&self, line: &mut String) -> io::Result<usize> {
        self.lock_to_read().read_line(line)
    }

    /// Gives all lines to come. The input is locked from the first that is asked for, until the iterator is dropped.
    pub fn lines(self) -> Lines<StdinLock<'static>> {
        self.lock_to_read().lines()
    }
}

/// Reading by the handle, locked for the whole of each call, as with std: what one fiber reads is not torn by another.
macro_rules! read_locked {
    ($($handle:ty),*) => {$(
        impl Read for $handle {
            #[track_caller]
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.lock_to_read().read(buffer)
            }

            #[track_caller]
            fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.lock_to_read().read_vectored(buffers)
            }

            #[track_caller]
            fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
                self.lock_to_read().read_exact(buffer)
            }

            #[track_caller]
            fn read_to_end(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
                self.lock_to_read().read_to_end(buffer)
            }

            #[track_caller]
            fn read_to_string(&mut self, buffer: &mut String) -> io::Result<usize> {
                self.lock_to_read().read_to_string(buffer)
            }
        }
    )*};
}

read_locked!(Stdin, &Stdin);

/// The process's input, [locked](Stdin::lock).
pub struct StdinLock<'a> {
    /// None until it is the reader's turn.
    input: Option<MutexGuard<'a, Input>>,
}

impl StdinLock<'_> {
    /// Waits for the reader's turn, if it is not yet that. A cancel point.
    #[track_caller]
    fn input(&mut self) -> io::Result<&mut Input> {
        match &mut self.input {
            Some(input) => Ok(input),
            none => Ok(none.insert(INPUT.lock_or_cut()?)),
        }
    }
}

impl Read for StdinLock<'_> {
    #[track_caller]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.input()?.read(buffer)
    }

    #[track_caller]
    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.input()?.read_vectored(buffers)
    }

    #[track_caller]
    fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let input = self.input()?;
        let mut filled = 0;
        while filled < buffer.len() {
            match input.read(&mut buffer[filled..]) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "failed to fill whole buffer")),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    hand_back(input, &buffer[..filled]);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    #[track_caller]
    fn read_to_end(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        self.input()?.read_to_end(buffer)
    }

    #[track_caller]
    fn read_to_string(&mut self, text: &mut String) -> io::Result<usize> {
        let input = self.input()?;
        add_text(text, |bytes| input.read_to_end(bytes).inspect_err(|_| hand_back(input, &std::mem::take(bytes))))
    }
}

impl BufRead for StdinLock<'_> {
    #[track_caller]
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input()?.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        // Without it there was nothing to see either.
        if let Some(input) = &mut self.input {
            input.consume(amount);
        }
    }

    #[track_caller]
    fn read_until(&mut self, end: u8, bytes: &mut Vec<u8>) -> io::Result<usize> {
        read_until(self.input()?, end, bytes)
    }

    #[track_caller]
    fn read_line(&mut self, line: &mut String) -> io::Result<usize> {
        let input = self.input()?;
        add_text(line, |bytes| read_until(input, b'\n', bytes))
    }
}

fn read_until(input: &mut Input, end: u8, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let before = bytes.len();
    input.read_until(end, bytes).inspect_err(|_| hand_back(input, &bytes.split_off(before)))
}

/// The next read begins with this.
#[cold]
fn hand_back(input: &mut Input, bytes: &[u8]) {
    debug_assert!(input.buffer().is_empty(), "a read failed that had {} bytes", input.buffer().len());
    let source = input.get_mut();
    debug_assert!(source.handed_back.is_empty(), "a read failed before {} bytes", source.handed_back.len());
    source.handed_back.extend(bytes);
}

/// Adds what is read, if it is text. A read that fails leaves nothing in its buffer.
fn add_text(text: &mut String, read: impl FnOnce(&mut Vec<u8>) -> io::Result<usize>) -> io::Result<usize> {
    // Into the string's own memory, if it has nothing else.
    let mut bytes = if text.is_empty() { std::mem::take(text).into_bytes() } else { Vec::new() };
    let read = read(&mut bytes);
    match String::from_utf8(bytes) {
        Ok(more) if text.is_empty() => *text = more,
        Ok(more) => text.push_str(&more),
        Err(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8")),
    }
    read
}

impl fmt::Debug for StdinLock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdinLock").finish_non_exhaustive()
    }
}

/// Reads all that is left as text. As [`std::io::read_to_string`].
///
/// # Errors
/// The reader's; `InvalidData` if it is not UTF-8.
pub fn read_to_string<R: Read>(mut reader: R) -> io::Result<String> {
    let mut text = String::new();
    reader.read_to_string(&mut text)?;
    Ok(text)
}

/// A handle to the process's output. As [`std::io::stdout`], whose buffer it shares: what goes through it and what `println!` writes keep their order.
///
/// `println!` is fine in a fiber as long as whoever reads keeps up: one that does not blocks the worker. Through this handle, it blocks the fiber alone.
///
/// # Examples
/// ```
/// use std::io::Write;
/// let mut out = sinew::io::stdout();
/// writeln!(out, "{} fibers", 7)?;
/// # std::io::Result::Ok(())
/// ```
pub fn stdout() -> Stdout {
    Stdout(())
}

/// A handle to the process's output for errors. As [`std::io::stderr`]: nothing is buffered.
pub fn stderr() -> Stderr {
    Stderr(())
}

/// The process's output. See [`stdout`].
///
/// # Suspends
/// Writes do, and are [cancel points](crate::cancelled) at their entry: once begun, they run to their end.
#[derive(Debug)]
pub struct Stdout(());

/// The process's output for errors. See [`stderr`].
///
/// # Suspends
/// As [`Stdout`].
#[derive(Debug)]
pub struct Stderr(());

/// Tells fibers, and plain threads, apart: by the block that each has while it lives.
struct Caller;

// SAFETY: no two that live have the same block, and the one who has locked lives. (A guard that is forgotten protects nothing.)
unsafe impl GetThreadId for Caller {
    const INIT: Self = Self;

    fn nonzero_thread_id(&self) -> NonZeroUsize {
        NonZeroUsize::new(std::ptr::from_ref(Me::now().control()).addr()).expect("a reference is not null")
    }
}

/// Who may write. Its holder may lock again, as with std.
type Turns = ReentrantMutex<RawMutex, Caller, ()>;

static OUTPUT: Turns = Turns::const_new(RawMutex::INIT, Caller, ());
static ERRORS: Turns = Turns::const_new(RawMutex::INIT, Caller, ());

/// Writing through one of std's handles, in the pool. What is formatted is put together first: one way there and back, and nothing of others in between.
macro_rules! written_in_the_pool {
    ($stream:ident, $lock:ident, $turns:ident) => {
        impl $stream {
            /// Locks the stream for one writer; waits while another has it or writes, and that is no cancel point. As std's: who has the lock may lock again.
            ///
            /// It keeps out what goes through this crate's handles. What `println!`, and std's handles, write may come between two writes, not into one.
            #[track_caller]
            pub fn lock(&self) -> $lock<'static> {
                let wait = || {
                    // It refuses where nothing may be waited for, before lock_api is asked, which could not.
                    let _may_wait = Me::to_wait();
                    $turns.lock()
                };
                $lock { _turn: $turns.try_lock().unwrap_or_else(wait) }
            }
        }

        /// A stream of the process, locked.
        ///
        /// # Suspends
        /// As the stream itself.
        pub struct $lock<'a> {
            _turn: ReentrantMutexGuard<'a, RawMutex, Caller, ()>,
        }

        impl fmt::Debug for $lock<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($lock)).finish_non_exhaustive()
            }
        }

        impl From<$stream> for Stdio {
            fn from(_: $stream) -> Self {
                $stream::std().into()
            }
        }

        impl Write for $lock<'_> {
            #[track_caller]
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                ask(|| $stream::std().write(bytes))
            }

            #[track_caller]
            fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
                ask(|| $stream::std().write_vectored(buffers))
            }

            #[track_caller]
            fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
                ask(|| $stream::std().write_all(bytes))
            }

            #[track_caller]
            fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
                match text.as_str() {
                    Some(text) => self.write_all(text.as_bytes()),
                    None => self.write_all(text.to_string().as_bytes()),
                }
            }

            #[track_caller]
            fn flush(&mut self) -> io::Result<()> {
                ask(|| $stream::std().flush())
            }
        }

        impl Write for &$stream {
            #[track_caller]
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.lock().write(bytes)
            }

            #[track_caller]
            fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
                self.lock().write_vectored(buffers)
            }

            #[track_caller]
            fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
                self.lock().write_all(bytes)
            }

            #[track_caller]
            fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
                match text.as_str() {
                    Some(text) => self.write_all(text.as_bytes()),
                    None => self.write_all(text.to_string().as_bytes()),
                }
            }

            #[track_caller]
            fn flush(&mut self) -> io::Result<()> {
                self.lock().flush()
            }
        }

        impl Write for $stream {
            #[track_caller]
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                (&*self).write(bytes)
            }

            #[track_caller]
            fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
                (&*self).write_vectored(buffers)
            }

            #[track_caller]
            fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
                (&*self).write_all(bytes)
            }

            #[track_caller]
            fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
                (&*self).write_fmt(text)
            }

            #[track_caller]
            fn flush(&mut self) -> io::Result<()> {
                (&*self).flush()
            }
        }
    };
}

impl Stdout {
    fn std() -> io::Stdout {
        io::stdout()
    }
}

impl Stderr {
    fn std() -> io::Stderr {
        io::stderr()
    }
}

written_in_the_pool!(Stdout, StdoutLock, OUTPUT);
written_in_the_pool!(Stderr, StderrLock, ERRORS);

/// What std's streams have besides.
macro_rules! has_descriptor {
    ($($stream:ty: $number:ident),*) => {$(
        impl AsFd for $stream {
            fn as_fd(&self) -> BorrowedFd<'_> {
                // SAFETY: as in `input`.
                unsafe { BorrowedFd::borrow_raw(libc::$number) }
            }
        }

        impl AsRawFd for $stream {
            fn as_raw_fd(&self) -> RawFd {
                libc::$number
            }
        }

        impl $stream {
            /// Whether it is a terminal. As the method of [`IsTerminal`], which no other crate can give its types.
            pub fn is_terminal(&self) -> bool {
                self.as_fd().is_terminal()
            }
        }
    )*};
}

has_descriptor!(Stdin: STDIN_FILENO, Stdout: STDOUT_FILENO, Stderr: STDERR_FILENO);
has_descriptor!(StdinLock<'_>: STDIN_FILENO, StdoutLock<'_>: STDOUT_FILENO, StderrLock<'_>: STDERR_FILENO);
