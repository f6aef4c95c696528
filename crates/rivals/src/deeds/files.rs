//! What readers of files of all shapes share: the file, and where to read in it.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Bytes of a read.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Blocks of the file: 64 MiB, which stay in memory, so that what is compared is the systems and not the disk.
const BLOCKS: u64 = 16 << 10;

/// A file in which every block begins with its number. It goes with this value.
pub(crate) struct Numbered(PathBuf);

impl Numbered {
    pub(crate) fn make() -> Self {
        let path = std::env::temp_dir().join(format!("rivals-blocks-{}", std::process::id()));
        let mut file = File::create(&path).expect("there is room for a file");
        let this = Self(path);
        let mut block = [0; BLOCK_BYTES];
        for number in 0..BLOCKS {
            block[..8].copy_from_slice(&number.to_le_bytes());
            file.write_all(&block).expect("there is room for a file");
        }
        this
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Where reader `index` reads at its turn `turn`: anywhere, and the same in every system.
pub(crate) fn offset(index: usize, turn: usize) -> u64 {
    // Knuth's constant for 64 bits; the upper bits are the well-mixed ones.
    let hash = ((index as u64) << 32 | turn as u64).wrapping_add(1).wrapping_mul(6_364_136_223_846_793_005);
    (hash >> 40) % BLOCKS * BLOCK_BYTES as u64
}

/// Makes sure that a whole block came, and the right one.
pub(crate) fn check(offset: u64, got: usize, block: &[u8; BLOCK_BYTES]) {
    let number = u64::from_le_bytes(block[..8].try_into().expect("eight bytes are eight"));
    assert_eq!((got, number * BLOCK_BYTES as u64), (BLOCK_BYTES, offset), "the wrong block was read");
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn offsets_are_of_blocks_all_over_the_file() {
        let file = Numbered::make();
        let opened = File::open(file.path()).unwrap();
        let mut block = [0; BLOCK_BYTES];
        let mut upper = 0;
        for turn in 0..1000 {
            let offset = offset(7, turn);
            check(offset, opened.read_at(&mut block, offset).unwrap(), &block);
            upper += usize::from(offset >= BLOCKS / 2 * BLOCK_BYTES as u64);
        }
        assert!((400..600).contains(&upper), "{upper} of 1000 are in the upper half");
    }
}
