//! Copies a file in pieces, each by a fiber of its own: reads and writes of several pieces are under way at once.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sinew::fs::{self, File};
use sinew::sync::Semaphore;

const PIECE: u64 = 256 << 10;
/// Pieces under way at once: each has its buffer.
const AT_ONCE: usize = 8;

/// Copies `length` bytes at `offset`.
fn copy_piece(from: &File, to: &File, offset: u64, length: u64) -> io::Result<()> {
    let mut buffer = vec![0; length as usize];
    from.read_exact_at(&mut buffer, offset)?;
    to.write_all_at(&buffer, offset)
}

fn copy(from: &Path, to: &Path, done: &AtomicU64) -> io::Result<u64> {
    let (from, to) = (&File::open(from)?, &File::create(to)?);
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let places = &Semaphore::new(AT_ONCE);
    sinew::scope(|s| {
        let pieces: Vec<_> = (0..length)
            .step_by(PIECE as usize)
            .map(|offset| {
                let place = places.acquire();
                s.spawn(move || {
                    let length = PIECE.min(length - offset);
                    copy_piece(from, to, offset, length)?;
                    done.fetch_add(length, Relaxed);
                    drop(place);
                    io::Result::Ok(())
                })
            })
            .collect();
        pieces.into_iter().try_for_each(|piece| piece.join().unwrap())
    })?;
    to.sync_all()?;
    Ok(length)
}

fn main() -> io::Result<()> {
    let directory = std::env::temp_dir().join(format!("sinew-example-copy-{}", std::process::id()));
    let (from, to) = (directory.join("from"), directory.join("to"));
    let done = AtomicU64::new(0);
    sinew::run(|| {
        fs::create_dir(&directory)?;
        let content: Vec<u8> = (0..10_000_000u32).map(|index| (index / 7) as u8).collect();
        fs::write(&from, &content)?;
        let length = copy(&from, &to, &done)?;
        println!("copied {length} bytes in {} pieces", length.div_ceil(PIECE));
        assert!(fs::read(&to)? == content, "the copy is not what was copied");
        assert_eq!(done.load(Relaxed), length);
        fs::remove_dir_all(&directory)
    })
}
