//! Copying all of a stream into another.

use std::io::{self, ErrorKind, Read, Write};

/// Bytes that are carried at a time. Not on the stack, as std's 8 KiB are: a fiber's is smaller than a thread's. Larger ones gain little (Go's and cat's are of this size, or near it).
const BUFFER_BYTES: usize = 64 << 10;

/// Copies all that `reader` gives to `writer`; gives the number of bytes. As [`std::io::copy`], which works in a fiber too: this one carries more at a time, and takes less of the stack.
///
/// # Suspends
/// Where `reader` and `writer` do.
///
/// # Errors
/// Theirs, at once; but `Interrupted` is tried again. What was read then and not yet written is lost.
///
/// # Examples
/// ```
/// let mut all = Vec::new();
/// let count = sinew::io::copy(&mut "some text".as_bytes(), &mut all)?;
/// assert_eq!((count, all.as_slice()), (9, b"some text".as_slice()));
/// # std::io::Result::Ok(())
/// ```
pub fn copy<R, W>(reader: &mut R, writer: &mut W) -> io::Result<u64>
where
    R: Read + ?Sized,
    W: Write + ?Sized,
{
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut copied = 0;
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(copied),
            Ok(count) => {
                writer.write_all(&buffer[..count])?;
                copied += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
