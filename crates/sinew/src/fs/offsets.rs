//! Which way a read or write at an offset of a file goes.
//!
//! The ring does not ask whether a file has offsets: of a pipe, a terminal or an event counter it reads what comes next, or waits for it, where `pread` is an error. So it gets what is sure to have them: plain files and block
//! devices. But for a few of the kernel's own, which look plain and have none, or none to be written at (`/proc/self/comm`); so each file is asked, by a call that moves no byte. That is done once per handle and
//! direction, since none of it changes while the file is open.
//!
//! What else has offsets (other devices, directories) goes to the pool, and what has none is refused on the spot.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The way of a read or a write at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Ring = 1,
    Pool,
    /// The call itself says so, at once, and does nothing.
    Refused,
}

/// The way of one direction, once it is known; zero until then. Whoever finds it out finds the same.
#[derive(Default)]
struct Known(AtomicU8);

impl Known {
    fn get_or_learn(&self, learn: impl FnOnce() -> Way) -> Way {
        match self.0.load(Relaxed) {
            1 => Way::Ring,
            2 => Way::Pool,
            3 => Way::Refused,
            _ => {
                let way = learn();
                self.0.store(way as u8, Relaxed);
                way
            }
        }
    }
}

/// What is known of one open file.
#[derive(Default)]
pub(super) struct Offsets {
    read: Known,
    write: Known,
}

impl Offsets {
    pub(super) fn read(&self, file: &File) -> Way {
        // SAFETY: no buffers, so nothing is pointed to.
        self.read.get_or_learn(|| way(file, unsafe { libc::preadv(file.as_raw_fd(), ptr::null(), 0, 0) }))
    }

    pub(super) fn write(&self, file: &File) -> Way {
        // SAFETY: no buffers, so nothing is pointed to.
        self.write.get_or_learn(|| way(file, unsafe { libc::pwritev(file.as_raw_fd(), ptr::null(), 0, 0) }))
    }
}

/// `moved`: what a call for no bytes at an offset has given just now. All errors but one are left to the call that the user asks for.
fn way(file: &File, moved: isize) -> Way {
    match moved {
        0 if is_plain(file) => Way::Ring,
        -1 if io::Error::last_os_error().raw_os_error() == Some(libc::ESPIPE) => Way::Refused,
        _ => Way::Pool,
    }
}

/// Whether it is a plain file or a block device, as far as is known without a word with another machine.
fn is_plain(file: &File) -> bool {
    // SAFETY: numbers, for which zero is a value.
    let mut known: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: a C string, and what is written to, outlive the call.
    let failed = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC, libc::STATX_TYPE, &mut known)
    };
    failed == 0 && matches!(u32::from(known.stx_mode) & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_files_alone_go_to_the_ring() {
        let open = |path: &str| File::options().read(true).write(true).open(path).unwrap();
        let ways = |file: &File| {
            let offsets = Offsets::default();
            let learned = [offsets.read(file), offsets.write(file)];
            assert_eq!([offsets.read(file), offsets.write(file)], learned, "the second time");
            learned
        };
        let path = std::env::temp_dir().join(format!("sinew-test-offsets-{}", std::process::id()));
        let plain = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(ways(&plain), [Way::Ring; 2]);
        assert_eq!(ways(&open("/dev/null")), [Way::Pool; 2]);
        assert_eq!(ways(&open("/dev/ptmx")), [Way::Refused; 2]);
        assert_eq!(ways(&open("/proc/self/comm")), [Way::Ring, Way::Refused]);
        assert_eq!(ways(&File::open("/").unwrap()), [Way::Pool; 2]);
        assert_eq!(ways(&File::open("/proc/self/exe").unwrap()), [Way::Ring, Way::Pool], "which cannot be written");
        let (reader, writer) = io::pipe().unwrap();
        assert_eq!(ways(&File::from(std::os::fd::OwnedFd::from(reader))), [Way::Refused; 2]);
        drop(writer);
    }
}
