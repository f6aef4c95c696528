//! Files: what `sinew::fs` does is what std does, in fibers and on threads, and keeps no other fiber from running.

mod common;

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use common::{alone, everywhere, in_child, is_cancelled, is_child, panics, until};
use sinew::fs::{self, File};
use sinew::{Io, Runtime, blocking, current, no_suspend, scope, shield, spawn, timeout, yield_now};

/// A directory of a test's own, removed at its end.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, SeqCst);
        let path = std::env::temp_dir().join(format!("sinew-test-fs-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.at(name), content).unwrap();
        self.at(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn make_fifo(path: &Path) {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

/// How a call ended, as far as two can be compared.
fn told<T: std::fmt::Debug>(result: io::Result<T>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?} {:?}", error.kind(), error.raw_os_error()),
    }
}

/// Does the same to any file, and writes down what came of it.
fn use_file(mut file: impl Read + Write + Seek) -> Vec<String> {
    let mut log = vec![told(file.write(b"")), told(file.write(b"0123456789")), told(file.stream_position())];
    log.push(told(file.seek(SeekFrom::Start(3))));
    let mut four = [0; 4];
    log.push(told(file.read(&mut four).map(|count| (count, four))));
    log.push(told(file.read(&mut [])));
    log.push(told(file.seek(SeekFrom::Current(-2))));
    let mut rest = String::from(">");
    log.push(told(file.read_to_string(&mut rest)));
    log.push(rest);
    log.push(told(file.read(&mut four)));
    log.push(told(file.seek(SeekFrom::End(-4))));
    log.push(told(file.write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cdefgh")])));
    log.push(told(file.rewind()));
    let (mut left, mut right) = ([0; 5], [0; 20]);
    let count = file.read_vectored(&mut [IoSliceMut::new(&mut left), IoSliceMut::new(&mut right)]);
    log.push(told(count.map(|count| (count, left, right))));
    log.push(told(file.seek(SeekFrom::Current(-100))));
    log.push(told(file.seek(SeekFrom::Start(u64::MAX))));
    log.push(told(file.seek(SeekFrom::Start(50))));
    log.push(told(file.write_all(b"after a hole")));
    log.push(told(file.flush()));
    log.push(told(file.seek(SeekFrom::Start(48))));
    let mut end = vec![7];
    log.push(told(file.read_to_end(&mut end)));
    log.push(format!("{end:?}"));
    log.push(told(file.rewind().and_then(|()| file.read_exact(&mut [0; 100]))));
    log
}

#[test]
fn reads_writes_and_seeks_give_what_std_gives() {
    everywhere(|| {
        let place = Place::new();
        for append in [false, true] {
            let std = std::fs::OpenOptions::new().read(true).write(true).append(append).create(true).open(place.at("std")).unwrap();
            let ours = File::options().read(true).write(true).append(append).create(true).open(place.at("ours")).unwrap();
            let by_reference = File::options().read(true).write(true).append(append).create(true).open(place.at("reference")).unwrap();
            let expected = use_file(std);
            assert_eq!(use_file(ours), expected, "append: {append}");
            assert_eq!(use_file(&by_reference), expected, "append: {append}");
            let written = std::fs::read(place.at("std")).unwrap();
            assert_eq!(fs::read(place.at("ours")).unwrap(), written);
            assert_eq!(fs::read(place.at("reference")).unwrap(), written);
        }
    });
}

#[test]
fn every_combination_of_options_opens_or_fails_as_with_std() {
    everywhere(|| {
        let place = Place::new();
        for bits in 0..128u32 {
            let bit = |number: u32| bits >> number & 1 == 1;
            let try_one = |name: &str, open: &dyn Fn(&Path) -> io::Result<()>| {
                let path = place.at(name);
                if bit(6) {
                    std::fs::write(&path, "there").unwrap();
                }
                let ended = told(open(&path));
                let left = std::fs::read(&path).ok();
                let _ = std::fs::remove_file(&path);
                (ended, left)
            };
            macro_rules! open_with {
                ($options:ty) => {
                    &|path| {
                        let mut options = <$options>::new();
                        options.read(bit(0)).write(bit(1)).append(bit(2)).truncate(bit(3)).create(bit(4)).create_new(bit(5));
                        options.open(path).map(drop)
                    }
                };
            }
            let expected = try_one("std", open_with!(std::fs::OpenOptions));
            assert_eq!(try_one("ours", open_with!(fs::OpenOptions)), expected, "options {bits:07b}");
        }
    });
}

#[test]
fn mode_and_flags_are_passed_on() {
    everywhere(|| {
        let place = Place::new();
        let file = File::options().write(true).create(true).mode(0o640).open(place.at("mode")).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777 & !0o022, 0o640);
        let link = place.at("link");
        fs::symlink(place.at("mode"), &link).unwrap();
        let refused = File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(&link).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ELOOP));
        // The access mode is not to be changed by flags.
        let file = File::options().read(true).custom_flags(libc::O_RDWR).open(place.at("mode")).unwrap();
        assert_eq!((&file).write(b"x").unwrap_err().raw_os_error(), Some(libc::EBADF));
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) }, libc::FD_CLOEXEC, "a child process would have it");
        fs::DirBuilder::new().mode(0o700).create(place.at("directory")).unwrap();
        assert_eq!(fs::metadata(place.at("directory")).unwrap().mode() & 0o777, 0o700);
    });
}

#[test]
fn positions_are_independent_of_the_cursor() {
    everywhere(|| {
        let place = Place::new();
        let mut file = File::create_new(place.at("file")).unwrap();
        file.write_all(b"0123456789").unwrap();
        file.write_all_at(b"ab", 4).unwrap();
        assert_eq!(file.write_at(b"", 4).unwrap(), 0);
        let mut four = [0; 4];
        file.read_exact_at(&mut four, 3).unwrap();
        assert_eq!(&four, b"3ab6");
        assert_eq!(file.read_at(&mut four, 8).unwrap(), 2);
        assert_eq!(file.read_at(&mut four, 10).unwrap(), 0);
        assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
        assert_eq!(file.read_exact_at(&mut four, 8).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(file.read_at(&mut four, u64::MAX).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(file.stream_position().unwrap(), 10);
        // By the trait, as generic code does.
        fn second(file: &impl FileExt) -> u8 {
            let mut one = [0];
            file.read_exact_at(&mut one, 1).unwrap();
            one[0]
        }
        assert_eq!(second(&file), b'1');
    });
}

/// Each of what has no offsets, opened to be read and written, with something to be read where that is easily had.
fn without_offsets(place: &Place) -> Vec<(&'static str, std::fs::File)> {
    make_fifo(&place.at("fifo"));
    let mut both = std::fs::File::options();
    both.read(true).write(true);
    let mut fifo = both.open(place.at("fifo")).unwrap();
    fifo.write_all(&[1; 8]).unwrap();
    // SAFETY: numbers go in; what comes is a descriptor of nobody's yet.
    let counter = unsafe { std::fs::File::from_raw_fd(libc::eventfd(7, libc::EFD_CLOEXEC)) };
    let (mut far, near) = std::os::unix::net::UnixStream::pair().unwrap();
    far.write_all(&[1; 8]).unwrap();
    vec![("fifo", fifo), ("eventfd", counter), ("terminal", both.open("/dev/ptmx").unwrap()), ("socket", OwnedFd::from(near).into())]
}

/// What was there to be read is still there, and a read of nothing does not wait: the ring would take the one and wait for the other, where std has an error.
#[test]
fn what_has_no_offsets_is_refused_as_by_std() {
    everywhere(|| {
        let place = Place::new();
        for (name, theirs) in without_offsets(&place) {
            let ours = File::from(theirs.try_clone().unwrap());
            // Beyond what is tried on the worker, too.
            for length in [0, 8, 100_000] {
                let mut buffer = vec![0; length];
                let expected = theirs.read_at(&mut buffer, 0).unwrap_err();
                assert_eq!(expected.kind(), ErrorKind::NotSeekable, "{name}");
                assert_eq!(told(ours.read_at(&mut buffer, 0)), told::<usize>(Err(expected)), "{name}, {length} bytes");
                let bytes = vec![0; length];
                assert_eq!(told(ours.write_at(&bytes, 1)), told(theirs.write_at(&bytes, 1)), "{name}, {length} bytes");
            }
            assert_eq!(told(ours.sync_all()), told(theirs.sync_all()), "{name}");
            assert_eq!(told(ours.sync_data()), told(theirs.sync_data()), "{name}");
            if name != "terminal" {
                let mut all = [0; 8];
                (&theirs).read_exact(&mut all).unwrap();
                assert_eq!(u64::from_ne_bytes(all), if name == "eventfd" { 7 } else { u64::from_ne_bytes([1; 8]) }, "{name}");
                assert_eq!(told(ours.read_at(&mut all, 0)), told(theirs.read_at(&mut all, 0)), "{name}, empty");
            }
        }
    });
}

/// Some files of the kernel's look plain, and can be read at an offset, but not written.
#[test]
fn what_looks_plain_and_has_no_offsets_is_refused_as_by_std() {
    everywhere(|| {
        let open = || std::fs::File::options().read(true).write(true).open("/proc/self/comm").unwrap();
        let (theirs, ours) = (open(), File::from(open()));
        assert_eq!(theirs.write_at(b"x", 0).unwrap_err().kind(), ErrorKind::NotSeekable);
        for _ in 0..2 {
            assert_eq!(told(ours.write_at(b"x", 0)), told(theirs.write_at(b"x", 0)));
            let (mut name, mut expected) = ([0; 16], [0; 16]);
            assert_eq!(told(ours.read_at(&mut name, 1)), told(theirs.read_at(&mut expected, 1)));
            assert_eq!(name, expected);
        }
    });
}

#[test]
fn offsets_of_what_is_no_plain_file_mean_what_they_do_to_std() {
    everywhere(|| {
        let both = |path: &str| std::fs::File::options().read(true).write(true).open(path);
        let directory = || std::fs::File::open("/");
        for theirs in [both("/dev/null").unwrap(), both("/dev/zero").unwrap(), directory().unwrap()] {
            let ours = File::from(theirs.try_clone().unwrap());
            for _ in 0..2 {
                assert_eq!(told(ours.read_at(&mut [1; 8], 3)), told(theirs.read_at(&mut [1; 8], 3)), "{theirs:?}");
                assert_eq!(told(ours.write_at(&[1; 8], 3)), told(theirs.write_at(&[1; 8], 3)), "{theirs:?}");
                assert_eq!(told(ours.sync_all()), told(theirs.sync_all()), "{theirs:?}");
            }
        }
        // Open for one of both, and it is the other's error that comes.
        let place = Place::new();
        let path = place.file("file", "0123456789");
        let (reads, writes) = (File::open(&path).unwrap(), File::options().write(true).open(&path).unwrap());
        assert_eq!(writes.read_at(&mut [0], 0).unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(reads.write_at(&[0], 0).unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(writes.write_at(b"ab", 0).unwrap(), 2);
        assert_eq!(reads.read_at(&mut [0; 20], 0).unwrap(), 10);
    });
}

#[test]
fn a_hundred_fibers_read_one_file_at_offsets() {
    const PART: usize = 10_000;
    let place = Place::new();
    let content: Vec<u8> = (0..100 * PART).map(|index| (index * 7 + index / 251) as u8).collect();
    let file = File::open(place.file("file", &content)).unwrap();
    scope(|s| {
        for (index, expected) in content.chunks(PART).enumerate() {
            let file = &file;
            s.spawn(move || {
                for _ in 0..10 {
                    let mut part = vec![0; PART];
                    file.read_exact_at(&mut part, (index * PART) as u64).unwrap();
                    assert!(part == expected, "part {index} is not what was written there");
                }
            });
        }
    });
}

#[test]
fn fibers_that_share_a_cursor_share_out_the_file() {
    // Each byte is read once, whoever reads it: on the worker, or in the pool.
    let place = Place::new();
    let content: Vec<u8> = (0..200_000u32).map(|index| (index % 250) as u8).collect();
    let file = File::open(place.file("file", &content)).unwrap();
    let sums = scope(|s| {
        let readers: Vec<_> = (0..20)
            .map(|reader| {
                let file = &file;
                s.spawn(move || {
                    // The larger ones go to the pool.
                    let mut buffer = vec![0; if reader % 2 == 0 { 100 } else { 70_000 }];
                    let (mut count, mut sum) = (0, 0u64);
                    loop {
                        match (&*file).read(&mut buffer).unwrap() {
                            0 => return (count, sum),
                            read => {
                                count += read;
                                sum += buffer[..read].iter().map(|&byte| u64::from(byte)).sum::<u64>();
                            }
                        }
                    }
                })
            })
            .collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    });
    assert_eq!(sums, (content.len(), content.iter().map(|&byte| u64::from(byte)).sum()));
}

#[test]
fn a_read_comes_short_at_the_end_only_wherever_the_file_is() {
    // Parts of the file are put out of memory, where the file system allows that: a trial on the worker finds a part then.
    everywhere(|| {
        const LENGTH: usize = 40_000;
        let place = Place::new();
        let content: Vec<u8> = (0..LENGTH).map(|index| (index / 7 + index / 4096) as u8).collect();
        let path = place.file("file", &content);
        let std = std::fs::File::open(&path).unwrap();
        std.sync_all().unwrap();
        for from_page in 0..10 {
            // SAFETY: numbers go in.
            unsafe { libc::posix_fadvise(std.as_raw_fd(), from_page * 4096, 0, libc::POSIX_FADV_DONTNEED) };
            let mut file = File::open(&path).unwrap();
            let mut buffer = vec![0; LENGTH + 100];
            assert_eq!(file.read(&mut buffer[..LENGTH - 1]).unwrap(), LENGTH - 1);
            assert!(buffer[..LENGTH - 1] == content[..LENGTH - 1]);
            assert_eq!(file.stream_position().unwrap(), LENGTH as u64 - 1);
            // SAFETY: as above.
            unsafe { libc::posix_fadvise(std.as_raw_fd(), from_page * 4096, 0, libc::POSIX_FADV_DONTNEED) };
            assert_eq!(file.read_at(&mut buffer, 1).unwrap(), LENGTH - 1);
            assert!(buffer[..LENGTH - 1] == content[1..]);
            assert_eq!(file.read(&mut buffer).unwrap(), 1);
            assert_eq!(file.read(&mut buffer).unwrap(), 0);
        }
    });
}

#[test]
fn records_of_a_shared_cursor_are_not_torn() {
    // Each read is one, whether it was done on a worker or in the pool: it gives bytes that follow each other, and no other read gives them.
    const RECORD: usize = 8;
    const RECORDS: usize = 30_000;
    let place = Place::new();
    let content: Vec<u8> = (0..RECORDS as u64).flat_map(u64::to_le_bytes).collect();
    let path = place.file("file", &content);
    let file = File::open(&path).unwrap();
    let (seen, file) = (&(0..RECORDS).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>(), &file);
    scope(|s| {
        for reader in 0..6 {
            s.spawn(move || {
                // Those above 64 KiB go to the pool.
                let mut buffer = vec![0; RECORD * [1, 100, 9_000][reader % 3]];
                loop {
                    let read = (&*file).read(&mut buffer).unwrap();
                    if read == 0 {
                        return;
                    }
                    let records: Vec<_> =
                        buffer[..read].chunks(RECORD).map(|record| u64::from_le_bytes(record.try_into().unwrap()) as usize).collect();
                    assert!(records.iter().zip(records[0]..).all(|(&record, expected)| record == expected), "a read is torn");
                    for record in records {
                        seen[record].fetch_add(1, SeqCst);
                    }
                }
            });
        }
    });
    assert!(seen.iter().all(|count| count.load(SeqCst) == 1));
}

#[test]
fn records_of_a_cursor_that_handles_share_are_not_torn() {
    // As above, by clones, which have one cursor in the kernel. Of each record one page is in memory, where the file system allows that: a trial on the worker finds a part, and must not take it.
    const RECORD: usize = 4 * 4096;
    const RECORDS: usize = 200;
    let place = Place::new();
    let content: Vec<u8> = (0..RECORDS as u32).flat_map(|record| record.to_le_bytes().repeat(RECORD / 4)).collect();
    let path = place.file("file", &content);
    let read_all = |mut file: File| {
        let mut buffer = vec![0; RECORD];
        let mut records = Vec::new();
        while file.read(&mut buffer).unwrap() == RECORD {
            assert!(buffer.chunks(4).all(|word| word == &buffer[..4]), "a read is torn");
            records.push(u32::from_le_bytes(buffer[..4].try_into().unwrap()));
        }
        records
    };
    for _ in 0..20 {
        let std = std::fs::File::open(&path).unwrap();
        std.sync_all().unwrap();
        // SAFETY: numbers go in.
        unsafe {
            libc::posix_fadvise(std.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM);
            libc::posix_fadvise(std.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        }
        for record in 0..RECORDS {
            std.read_exact_at(&mut [0; 4096], (record * RECORD) as u64).unwrap();
        }
        let file = File::open(&path).unwrap();
        let clones = [file.try_clone().unwrap(), File::from(std::fs::File::from(file.as_fd().try_clone_to_owned().unwrap())), file];
        let mut records = Runtime::builder().workers(2).build().unwrap().run(|| {
            let readers: Vec<_> = clones.into_iter().map(|file| spawn(move || read_all(file))).collect();
            readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
        });
        records.sort();
        assert!(records.iter().copied().eq(0..RECORDS as u32), "records were lost or read twice: {records:?}");
    }
}

#[test]
fn one_reads_and_another_writes_through_the_same_handle() {
    // A FIFO opened both ways: the read waits, and must not keep the write from being done.
    everywhere(|| {
        let place = Place::new();
        make_fifo(&place.at("fifo"));
        let file = File::options().read(true).write(true).open(place.at("fifo")).unwrap();
        scope(|s| {
            let reader = s.spawn(|| {
                let mut word = [0; 5];
                (&file).read_exact(&mut word).map(|()| word)
            });
            for _ in 0..100 {
                yield_now();
            }
            (&file).write_all(b"hello").unwrap();
            assert_eq!(&reader.join().unwrap().unwrap(), b"hello");
        });
    });
}

#[test]
fn the_end_of_a_fifo_is_an_end() {
    everywhere(|| {
        let place = Place::new();
        make_fifo(&place.at("fifo"));
        let keeper = File::options().read(true).write(true).open(place.at("fifo")).unwrap();
        let mut reader = File::open(place.at("fifo")).unwrap();
        (&keeper).write_all(b"ab").unwrap();
        drop(keeper);
        let mut buffer = [0; 5];
        assert_eq!(reader.read(&mut buffer).unwrap(), 2);
        assert_eq!(reader.read(&mut buffer).unwrap(), 0);
    });
}

#[test]
fn functions_do_and_fail_as_std_does() {
    everywhere(|| {
        let (place, other) = (Place::new(), Place::new());
        // The same twice: once with std in one place, once with ours in the other.
        macro_rules! log_of {
            ($place:expr, $fs:ident, $symlink:path) => {{
                let place = $place;
                let at = |name: &str| place.at(name);
                let mut log = vec![
                    told($fs::write(at("a"), "text")),
                    told($fs::write(at("no/a"), "text")),
                    told($fs::write(at("nul\0"), "text")),
                    told($fs::read(at("a"))),
                    told($fs::read(at("no"))),
                    told($fs::read(at("nul\0"))),
                    told($fs::read(at(""))),
                    told($fs::read_to_string(at("a"))),
                    told($fs::write(at("latin"), [0xe4])),
                    told($fs::read_to_string(at("latin"))),
                    told($fs::copy(at("a"), at("b"))),
                    told($fs::copy(at("no"), at("b"))),
                    told($fs::create_dir(at("d"))),
                    told($fs::create_dir(at("d"))),
                    told($fs::create_dir(at("e/f"))),
                    told($fs::create_dir_all(at("e/f"))),
                    told($fs::create_dir_all(at("e/f"))),
                    told($fs::create_dir_all(at("a/f"))),
                    told($fs::remove_dir(at("e"))),
                    told($fs::remove_file(at("d"))),
                    told($fs::rename(at("b"), at("c"))),
                    told($fs::rename(at("b"), at("c"))),
                    told($fs::hard_link(at("c"), at("g"))),
                    told($fs::hard_link(at("c"), at("g"))),
                    told($symlink(Path::new("c"), at("h"))),
                    told($symlink(Path::new("c"), at("h"))),
                    told($fs::read_link(at("h"))),
                    told($fs::read_link(at("c"))),
                    told($fs::metadata(at("h")).map(|data| (data.len(), data.is_file(), data.nlink()))),
                    told($fs::symlink_metadata(at("h")).map(|data| (data.len(), data.is_symlink()))),
                    told($fs::metadata(at("no")).map(|data| data.len())),
                    told($fs::symlink_metadata(at("no")).map(|data| data.len())),
                    told($fs::canonicalize(at("e/../h")).map(|path| path == place.0.canonicalize().unwrap().join("c"))),
                    told($fs::canonicalize(at("no"))),
                    told($fs::exists(at("h"))),
                    told($fs::exists(at("no"))),
                    told($fs::exists(at("a/no"))),
                    told($fs::set_permissions(at("a"), std::fs::Permissions::from_mode(0o400))),
                    told($fs::metadata(at("a")).map(|data| data.permissions().readonly())),
                    told($fs::set_permissions(at("no"), std::fs::Permissions::from_mode(0o400))),
                    told($fs::read_dir(at("no")).map(|_| ())),
                    told($fs::read_dir(at("a")).map(|_| ())),
                    told($fs::read_dir(at("d")).map(|entries| entries.count())),
                    told($fs::remove_file(at("no"))),
                    told($fs::remove_dir_all(at("e"))),
                    told($fs::remove_dir_all(at("e"))),
                    told($fs::File::open(at("no")).map(|_| ())),
                    told($fs::File::create(at("d")).map(|_| ())),
                    told($fs::File::create_new(at("a")).map(|_| ())),
                ];
                let mut names: Vec<_> = $fs::read_dir(&place.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
                names.sort();
                log.push(format!("{names:?}"));
                log
            }};
        }
        use std::fs as theirs;
        let expected = log_of!(&place, theirs, std::os::unix::fs::symlink);
        let ours = log_of!(&other, fs, fs::symlink);
        assert_eq!(ours.len(), expected.len());
        for (number, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            assert_eq!(ours, expected, "line {number}");
        }
    });
}

#[test]
fn what_a_file_is_can_be_asked_and_changed() {
    everywhere(|| {
        let place = Place::new();
        let path = place.file("file", "0123456789");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.set_len(4).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 4);
        file.set_len(6).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"0123\0\0");
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        file.set_modified(then).unwrap();
        assert_eq!(file.metadata().unwrap().modified().unwrap(), then);
        file.set_times(fs::FileTimes::new().set_accessed(then).set_modified(then + Duration::from_secs(1))).unwrap();
        assert_eq!(file.metadata().unwrap().modified().unwrap(), then + Duration::from_secs(1));
        file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        file.sync_data().unwrap();
        file.sync_all().unwrap();
        let data = file.metadata().unwrap();
        fs::chown(&path, Some(data.uid()), Some(data.gid())).unwrap();
        fs::lchown(&path, None, None).unwrap();
        assert_eq!(fs::chown(place.at("no"), None, None).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(File::open(&path).unwrap().set_len(1).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn what_std_has_for_unix_is_there() {
    everywhere(|| {
        let place = Place::new();
        let file = File::create(place.at("file")).unwrap();
        assert!(!file.is_terminal());
        fs::fchown(&file, None, None).unwrap();
        let owner = file.metadata().unwrap().uid();
        fs::fchown(&file, Some(owner), None).unwrap();
        assert_eq!(file.metadata().unwrap().uid(), owner);
        let nowhere = place.at("nowhere");
        assert_eq!(told(fs::chroot(&nowhere)), told(std::os::unix::fs::chroot(&nowhere)));
    });
}

#[test]
fn handles_can_be_cloned_and_given_away() {
    everywhere(|| {
        let place = Place::new();
        let file = File::open(place.file("file", "0123456789")).unwrap();
        let second = file.try_clone().unwrap();
        let mut byte = [0];
        for (expected, mut file) in (b'0'..b'6').zip([&file, &second].into_iter().cycle()) {
            file.read_exact(&mut byte).unwrap();
            assert_eq!(byte[0], expected, "the cursor is one for both");
        }
        drop(second);
        let descriptor = file.as_raw_fd();
        assert_eq!(file.as_fd().as_raw_fd(), descriptor);
        let std: std::fs::File = file.into();
        let owned: OwnedFd = File::from(std).into();
        let raw = File::from(owned).into_raw_fd();
        assert_eq!(raw, descriptor);
        // SAFETY: it was given up just now.
        let mut file = unsafe { File::from_raw_fd(raw) };
        file.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"6");
        assert!(format!("{file:?}").contains("fd: "));
    });
}

#[test]
fn a_directory_is_read_in_batches_to_its_end() {
    everywhere(|| {
        let place = Place::new();
        for count in [0, 1, 127, 128, 129, 700] {
            let directory = place.at(&count.to_string());
            std::fs::create_dir(&directory).unwrap();
            for index in 0..count {
                match index % 3 {
                    0 => std::fs::write(directory.join(index.to_string()), vec![0; index]).unwrap(),
                    1 => std::fs::create_dir(directory.join(index.to_string())).unwrap(),
                    _ => std::os::unix::fs::symlink("nowhere", directory.join(index.to_string())).unwrap(),
                }
            }
            let mut seen = vec![false; count];
            for entry in fs::read_dir(&directory).unwrap() {
                let entry = entry.unwrap();
                let index: usize = entry.file_name().to_str().unwrap().parse().unwrap();
                assert!(!std::mem::replace(&mut seen[index], true), "{entry:?} came twice");
                assert_eq!(entry.path(), directory.join(index.to_string()));
                let data = std::fs::symlink_metadata(entry.path()).unwrap();
                assert_eq!(entry.file_type().unwrap(), data.file_type());
                assert_eq!(entry.ino(), data.ino());
                if index < 9 {
                    assert_eq!(entry.metadata().unwrap().len(), data.len());
                }
            }
            assert!(seen.iter().all(|&seen| seen));
        }
        let mut entries = fs::read_dir(place.at("0")).unwrap();
        assert!(format!("{entries:?}").starts_with("ReadDir("));
        assert!(entries.next().is_none() && entries.next().is_none());
    });
}

#[test]
fn a_read_that_waits_keeps_no_other_fiber_from_running() {
    // One worker: the reader waits for a writer that lives there too.
    let place = Place::new();
    let path = place.at("fifo");
    make_fifo(&path);
    alone(|| {
        let begun = AtomicBool::new(false);
        scope(|s| {
            let reader = s.spawn(|| {
                begun.store(true, SeqCst);
                let mut file = File::open(&path).unwrap();
                let mut text = String::new();
                let mut first = [0; 5];
                file.read_exact(&mut first).unwrap();
                file.read_to_string(&mut text).unwrap();
                assert_eq!(file.stream_position().unwrap_err().kind(), ErrorKind::NotSeekable);
                (first, text)
            });
            until(|| begun.load(SeqCst));
            let mut writer = File::options().write(true).open(&path).unwrap();
            writer.write_all(b"first").unwrap();
            for _ in 0..100 {
                yield_now();
            }
            writer.write_all(b" and then the rest").unwrap();
            drop(writer);
            assert_eq!(reader.join().unwrap(), (*b"first", " and then the rest".to_string()));
        });
    });
}

#[test]
fn reads_of_what_is_in_memory_let_others_have_their_turn() {
    let place = Place::new();
    let path = place.file("file", [1; 4096]);
    alone(|| {
        let (ended, turns) = (AtomicBool::new(false), AtomicUsize::new(0));
        scope(|s| {
            s.spawn(|| {
                while !ended.load(SeqCst) {
                    turns.fetch_add(1, SeqCst);
                    yield_now();
                }
            });
            yield_now();
            let before = turns.load(SeqCst);
            let file = File::open(&path).unwrap();
            for _ in 0..2_000 {
                assert_eq!(file.read_at(&mut [0; 4096], 0).unwrap(), 4096);
            }
            ended.store(true, SeqCst);
            assert!(turns.load(SeqCst) - before >= 10, "2,000 reads in a row without a turn for others");
        });
    });
}

#[test]
fn a_lock_waits_without_its_worker_and_is_given_back_in_any_case() {
    let place = Place::new();
    let path = place.file("lock", "");
    alone(|| {
        let holder = File::open(&path).unwrap();
        holder.lock().unwrap();
        let other = File::open(&path).unwrap();
        assert!(matches!(other.try_lock(), Err(fs::TryLockError::WouldBlock)));
        assert!(matches!(other.try_lock_shared(), Err(fs::TryLockError::WouldBlock)));
        let begun = Arc::new(AtomicBool::new(false));
        let told = begun.clone();
        let waiter = spawn(move || {
            told.store(true, SeqCst);
            other.lock().unwrap();
            // Cancelled now, it can still unlock.
            current().cancel();
            assert!(is_cancelled(&other.lock_shared().unwrap_err()));
            other.unlock().unwrap();
            other
        });
        until(|| begun.load(SeqCst));
        holder.unlock().unwrap();
        let other = waiter.join().unwrap();
        holder.lock_shared().unwrap();
        other.try_lock_shared().unwrap();
        assert!(matches!(other.try_lock(), Err(fs::TryLockError::WouldBlock)));
    });
}

#[test]
fn those_who_wait_for_a_lock_leave_the_pool_to_others() {
    // More wait than the pool has threads. A job of another kind needs one, and so may what is done under the lock.
    const WAITERS: usize = 3;
    for io in [Io::Uring, Io::Epoll] {
        let place = Place::new();
        let path = place.file("lock", "x");
        let runtime = Runtime::builder().workers(1).blocking_threads(1).io(io).build().unwrap();
        runtime.run(|| {
            let holder = File::open(&path).unwrap();
            holder.lock().unwrap();
            let (begun, inside) = (AtomicUsize::new(0), AtomicBool::new(true));
            scope(|s| {
                for _ in 0..WAITERS {
                    s.spawn(|| {
                        let file = File::open(&path).unwrap();
                        begun.fetch_add(1, SeqCst);
                        file.lock().unwrap();
                        assert!(!inside.swap(true, SeqCst), "{io:?}: two have the lock");
                        assert_eq!(fs::read(&path).unwrap(), b"x");
                        inside.store(false, SeqCst);
                        file.unlock().unwrap();
                    });
                }
                until(|| begun.load(SeqCst) == WAITERS);
                (0..100).for_each(|_| yield_now());
                assert_eq!(fs::read(&path).unwrap(), b"x");
                inside.store(false, SeqCst);
                holder.unlock().unwrap();
            });
        });
    }
}

#[test]
fn a_lock_is_given_back_while_all_threads_of_the_pool_are_busy() {
    for io in [Io::Uring, Io::Epoll] {
        let place = Place::new();
        let path = place.file("lock", "");
        let runtime = Runtime::builder().workers(1).blocking_threads(1).io(io).build().unwrap();
        runtime.run(|| {
            let (holder, other) = (File::open(&path).unwrap(), File::open(&path).unwrap());
            holder.try_lock().unwrap();
            let (sender, receiver) = std::sync::mpsc::channel::<()>();
            let begun = AtomicBool::new(false);
            scope(|s| {
                let (begun, other) = (&begun, &other);
                s.spawn(move || {
                    blocking(move || {
                        begun.store(true, SeqCst);
                        receiver.recv().unwrap_err();
                    });
                });
                until(|| begun.load(SeqCst));
                assert!(matches!(other.try_lock_shared(), Err(fs::TryLockError::WouldBlock)));
                holder.unlock().unwrap();
                other.try_lock().unwrap();
                drop(sender);
            });
        });
    }
}

#[test]
fn a_wait_for_a_lock_can_be_cut_short() {
    everywhere(|| {
        let place = Place::new();
        let path = place.file("lock", "");
        let (holder, other) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        holder.lock_shared().unwrap();
        let late = timeout(Duration::from_millis(1), || assert_eq!(other.lock().unwrap_err().kind(), ErrorKind::TimedOut));
        assert!(late.is_err());
        let begun = Arc::new(AtomicBool::new(false));
        let told = begun.clone();
        let waiter = spawn(move || {
            told.store(true, SeqCst);
            (other.lock().unwrap_err(), other)
        });
        until(|| begun.load(SeqCst));
        (0..100).for_each(|_| yield_now());
        waiter.cancel();
        let (error, other) = waiter.join().unwrap();
        assert!(is_cancelled(&error));
        holder.unlock().unwrap();
        other.try_lock().unwrap();
    });
}

/// Calls all that is a cancel point.
fn call_all(place: &Place, file: &File) -> Vec<io::Error> {
    let (there, new) = (place.at("there"), place.at("new"));
    let mut handle = file;
    vec![
        File::open(&there).unwrap_err(),
        File::create(&new).unwrap_err(),
        fs::write(&new, "").unwrap_err(),
        fs::read(&there).unwrap_err(),
        fs::read_to_string(&there).unwrap_err(),
        fs::copy(&there, &new).unwrap_err(),
        fs::create_dir(&new).unwrap_err(),
        fs::create_dir_all(&new).unwrap_err(),
        fs::remove_file(&there).unwrap_err(),
        fs::rename(&there, &new).unwrap_err(),
        fs::metadata(&there).unwrap_err(),
        fs::exists(&there).unwrap_err(),
        fs::read_dir(&place.0).unwrap_err(),
        handle.read(&mut [0]).unwrap_err(),
        handle.read(&mut []).unwrap_err(),
        handle.read_to_end(&mut Vec::new()).unwrap_err(),
        handle.write(b"x").unwrap_err(),
        handle.rewind().unwrap_err(),
        file.read_at(&mut [0], 0).unwrap_err(),
        file.write_at(b"x", 0).unwrap_err(),
        file.set_len(0).unwrap_err(),
        file.sync_all().unwrap_err(),
        file.metadata().unwrap_err(),
        match file.try_lock() {
            Err(fs::TryLockError::Error(error)) => error,
            other => panic!("{other:?}"),
        },
    ]
}

#[test]
fn one_that_is_cancelled_fails_at_entry_and_does_nothing() {
    everywhere(|| {
        let place = Place::new();
        let path = place.file("there", "as it was");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        current().cancel();
        for (number, error) in call_all(&place, &file).into_iter().enumerate() {
            assert!(is_cancelled(&error), "call {number}: {error:?}");
        }
        shield(|| {
            assert_eq!(fs::read_to_string(&path).unwrap(), "as it was");
            assert!(!fs::exists(place.at("new")).unwrap());
        });
    });
}

#[test]
fn one_that_is_late_fails_at_entry_and_does_nothing() {
    everywhere(|| {
        let place = Place::new();
        let path = place.file("there", "as it was");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let late = timeout(Duration::ZERO, || {
            for (number, error) in call_all(&place, &file).into_iter().enumerate() {
                assert_eq!(error.kind(), ErrorKind::TimedOut, "call {number}");
            }
        });
        assert!(late.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "as it was");
        assert!(!fs::exists(place.at("new")).unwrap());
        // A deadline that is not over cuts nothing.
        assert_eq!(timeout(Duration::from_secs(3600), || fs::read(&path).unwrap().len()), Ok(9));
    });
}

#[test]
fn what_has_begun_runs_to_its_end_whatever_comes() {
    // The open of a FIFO waits for its other end: meanwhile its caller is cancelled, and late.
    everywhere(|| {
        let place = Place::new();
        let path = place.at("fifo");
        make_fifo(&path);
        let begun = Arc::new(AtomicUsize::new(0));
        let (told, fifo) = (begun.clone(), path.clone());
        let cancelled = spawn(move || {
            told.fetch_add(1, SeqCst);
            (File::open(&fifo).is_ok(), sinew::cancelled())
        });
        let (told, fifo) = (begun.clone(), path.clone());
        let late = spawn(move || {
            timeout(Duration::from_millis(1), || {
                told.fetch_add(1, SeqCst);
                let opened = File::open(&fifo).is_ok();
                (opened, sinew::cancelled())
            })
        });
        until(|| begun.load(SeqCst) == 2);
        for _ in 0..100 {
            yield_now();
        }
        cancelled.cancel();
        sinew::sleep(Duration::from_millis(2));
        let writer = File::options().write(true).open(&path).unwrap();
        assert_eq!(cancelled.join().unwrap(), (true, true));
        assert_eq!(late.join().unwrap(), Ok((true, true)));
        drop(writer);
    });
}

#[test]
fn entries_end_after_one_that_was_cut_short() {
    let place = Place::new();
    for index in 0..300 {
        place.file(&index.to_string(), "");
    }
    let fiber = spawn(move || {
        let entries = fs::read_dir(&place.0).unwrap();
        current().cancel();
        let all: Vec<_> = entries.collect();
        drop(place);
        all
    });
    let all = fiber.join().unwrap();
    let (last, fetched) = all.split_last().unwrap();
    assert!(is_cancelled(last.as_ref().unwrap_err()));
    assert!(!fetched.is_empty() && fetched.iter().all(Result::is_ok));
}

#[test]
fn what_may_wait_is_refused_where_nothing_may_and_a_drop_is_not() {
    everywhere(|| {
        let place = Place::new();
        let path = place.file("file", "x");
        let file = File::open(&path).unwrap();
        assert!(panics(|| no_suspend(|| drop(fs::read(&path)))));
        assert!(panics(|| no_suspend(|| drop(file.read_at(&mut [0], 0)))));
        no_suspend(|| drop((file.try_clone().unwrap(), file)));
    });
}

#[test]
fn without_a_thread_to_block_on_it_is_an_error() {
    const NAME: &str = "without_a_thread_to_block_on_it_is_an_error";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    sinew::hidden::fail_blocking_threads(true);
    let error = sinew::run(|| fs::read("/dev/null").unwrap_err());
    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
    sinew::hidden::fail_blocking_threads(false);
    assert_eq!(sinew::run(|| fs::read("/dev/null").unwrap()), b"");
}

#[test]
fn they_may_go_to_other_threads() {
    fn sent<T: Send>() {}
    fn shared<T: Sync>() {}
    sent::<(File, fs::OpenOptions, fs::DirBuilder, fs::ReadDir, fs::DirEntry)>();
    shared::<(File, fs::OpenOptions, fs::DirBuilder, fs::DirEntry)>();
}

/// Claim: a read that passes by what is in memory is not tried on the worker, which it would keep from others while the disk is at it: each suspends.
#[test]
fn reads_that_pass_by_memory_hold_no_worker() {
    const READS: usize = 20;
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    type Read = fn(&File, &mut [u8], usize) -> io::Result<usize>;
    let place = Place::new();
    let path = place.file("pages", vec![7; READS * 4096]);
    for io in [Io::Uring, Io::Epoll] {
        let rt = Runtime::builder().workers(1).io(io).build().unwrap();
        let reads: [Read; 2] = [|file, page, i| file.read_at(page, i as u64 * 4096), |mut file, page, _| file.read(page)];
        for read in reads {
            let file = match rt.run(|| File::options().read(true).custom_flags(libc::O_DIRECT).open(&path)) {
                // Some file systems refuse it.
                Err(error) if error.kind() == ErrorKind::InvalidInput => return,
                file => file.unwrap(),
            };
            let count = Arc::new(AtomicUsize::new(0));
            let counted = count.clone();
            rt.run(move || {
                let mut page = Page([0; 4096]);
                sinew::on_suspend(move || _ = counted.fetch_add(1, SeqCst));
                for i in 0..READS {
                    assert_eq!(read(&file, &mut page.0, i).unwrap(), 4096);
                }
                assert_eq!(page.0, [7; 4096]);
            });
            let count = count.load(SeqCst);
            assert!(count >= READS, "{count} suspensions of {READS} reads, {io:?}");
        }
    }
}
