//! Reading and writing: std's traits and types, and what must not block a worker.
//!
//! A change of `use std::io` to `use sinew::io` is all that most programs need. [`Read`], [`Write`] and their like are std's own; the standard streams, [`pipe`](pipe()) and [`copy`](copy()) are made for
//! fibers, and [`poll`] waits for descriptors of any kind.

mod copy;
mod pipe;
mod standard;

pub use crate::rt::io::{Interest, poll};
pub use copy::copy;
pub use pipe::{PipeReader, PipeWriter, pipe};
pub use standard::{Stderr, StderrLock, Stdin, StdinLock, Stdout, StdoutLock, read_to_string, stderr, stdin, stdout};
pub use std::io::{
    BufRead, BufReader, BufWriter, Bytes, Chain, Cursor, Empty, Error, ErrorKind, IntoInnerError, IoSlice, IoSliceMut, IsTerminal,
    LineWriter, Lines, Read, Repeat, Result, Seek, SeekFrom, Sink, Split, Take, Write, WriterPanicked, empty, prelude, repeat, sink,
};
