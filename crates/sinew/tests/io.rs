//! Pipes, copies and the standard streams, in fibers and on threads.

mod common;

use std::io::{BufRead, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::{alone, everywhere, in_child, is_cancelled, is_child, panics, until};
use sinew::io::{self, PipeReader, PipeWriter, pipe};
use sinew::process::{ChildStderr, ChildStdin, ChildStdout};
use sinew::{current, no_suspend, scope, spawn, timeout};

/// More than a pipe holds.
const MUCH: usize = 1_000_000;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 13 + index / 257) as u8).collect()
}

#[test]
fn a_pipe_carries_more_than_it_holds() {
    everywhere(|| {
        let (mut reader, mut writer) = pipe().unwrap();
        let sent = pattern(MUCH);
        scope(|s| {
            s.spawn(|| {
                writer.write_all(&sent).unwrap();
                drop(writer);
            });
            let mut received = Vec::new();
            reader.read_to_end(&mut received).unwrap();
            assert!(received == sent);
            assert_eq!(reader.read(&mut [0; 10]).unwrap(), 0, "the end stays the end");
        });
    });
}

#[test]
fn many_readers_and_writers_of_one_pipe_lose_nothing() {
    everywhere(|| {
        let (reader, writer) = pipe().unwrap();
        let (sum, sent) = (AtomicUsize::new(0), AtomicUsize::new(0));
        scope(|s| {
            for _ in 0..5 {
                let mut writer = writer.try_clone().unwrap();
                let (sent, sum) = (&sent, &sum);
                s.spawn(move || {
                    let bytes = pattern(50_000);
                    sent.fetch_add(bytes.iter().map(|&byte| usize::from(byte)).sum(), SeqCst);
                    writer.write_all(&bytes).unwrap();
                });
                let mut reader = reader.try_clone().unwrap();
                s.spawn(move || {
                    let mut buffer = [0; 1000];
                    loop {
                        match reader.read(&mut buffer).unwrap() {
                            0 => return,
                            count => sum.fetch_add(buffer[..count].iter().map(|&byte| usize::from(byte)).sum(), SeqCst),
                        };
                    }
                });
            }
            drop(writer);
        });
        assert_eq!(sum.load(SeqCst), sent.load(SeqCst));
    });
}

#[test]
fn ends_that_are_gone_are_told() {
    everywhere(|| {
        let (mut reader, writer) = pipe().unwrap();
        drop(writer);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        let (reader, mut writer) = pipe().unwrap();
        drop(reader);
        assert_eq!(writer.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        // While one waits.
        let (mut reader, writer) = pipe().unwrap();
        let waiter = spawn(move || reader.read(&mut [0]).unwrap());
        sinew::yield_now();
        drop(writer);
        assert_eq!(waiter.join().unwrap(), 0);
    });
}

#[test]
fn vectors_and_nothing_go_through_a_pipe() {
    everywhere(|| {
        let (reader, writer) = pipe().unwrap();
        assert_eq!((&writer).write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")]).unwrap(), 5);
        assert_eq!((&writer).write(b"").unwrap(), 0);
        assert_eq!((&reader).read(&mut []).unwrap(), 0);
        let (mut first, mut second) = ([0; 3], [0; 4]);
        assert_eq!((&reader).read_vectored(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)]).unwrap(), 5);
        assert_eq!((&first, &second), (b"abc", b"de\0\0"));
    });
}

#[test]
fn a_wait_at_a_pipe_can_be_cut_short_and_loses_nothing() {
    everywhere(|| {
        let (mut reader, mut writer) = pipe().unwrap();
        let late = timeout(Duration::from_millis(1), || assert_eq!(reader.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut));
        assert!(late.is_err());
        let waiter = spawn(move || (reader.read(&mut [0; 9]).unwrap_err(), reader));
        waiter.cancel();
        let (error, mut reader) = waiter.join().unwrap();
        assert!(is_cancelled(&error));
        writer.write_all(b"still here").unwrap();
        drop(writer);
        assert_eq!(io::read_to_string(&mut reader).unwrap(), "still here");
        current().cancel();
        assert!(is_cancelled(&reader.read(&mut [0]).unwrap_err()));
    });
}

#[test]
fn a_pipe_may_be_used_where_nothing_may_wait_unless_it_must() {
    alone(|| {
        let (mut reader, mut writer) = pipe().unwrap();
        no_suspend(|| {
            writer.write_all(b"x").unwrap();
            reader.read_exact(&mut [0]).unwrap();
        });
        assert!(common::panics(|| no_suspend(|| drop(reader.read(&mut [0])))));
    });
}

#[test]
fn given_away_an_end_is_blocking_and_taken_it_is_not() {
    everywhere(|| {
        let is_blocking = |fd: &OwnedFd| {
            // SAFETY: the descriptor is open.
            unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) & libc::O_NONBLOCK == 0 }
        };
        let (reader, writer) = pipe().unwrap();
        let (reader, writer) = (OwnedFd::from(reader), OwnedFd::from(writer));
        assert!(is_blocking(&reader) && is_blocking(&writer));
        let duplicate = reader.try_clone().unwrap();
        let (mut reader, mut writer) = (PipeReader::from(reader), PipeWriter::from(writer));
        let waiter = spawn(move || io::read_to_string(&mut reader).unwrap());
        writer.write_all(b"again").unwrap();
        drop(writer);
        assert_eq!(waiter.join().unwrap(), "again");
        assert!(!is_blocking(&duplicate), "as the docs say");
    });
}

#[test]
fn ends_are_made_of_descriptors_as_with_std() {
    everywhere(|| {
        let (reader, writer) = std::io::pipe().unwrap();
        let (mut stdout, mut stdin) = (ChildStdout::from(OwnedFd::from(reader)), ChildStdin::from(OwnedFd::from(writer)));
        let waiter = spawn(move || io::read_to_string(&mut stdout).unwrap());
        stdin.write_all(b"through a child's ends").unwrap();
        drop(stdin);
        assert_eq!(waiter.join().unwrap(), "through a child's ends");

        let (reader, writer) = std::io::pipe().unwrap();
        // SAFETY: each descriptor is given away once.
        let (mut stderr, mut writer) = unsafe {
            let reader = PipeReader::from_raw_fd(reader.into_raw_fd());
            (ChildStderr::from_raw_fd(reader.into_raw_fd()), PipeWriter::from_raw_fd(writer.into_raw_fd()))
        };
        let waiter = spawn(move || io::read_to_string(&mut stderr).unwrap());
        writer.write_all(b"raw").unwrap();
        drop(writer);
        assert_eq!(waiter.join().unwrap(), "raw");
    });
}

#[test]
fn an_end_that_a_child_has_too_keeps_no_other_fiber_from_running() {
    // To the child its end is blocking, and so is ours then, which is the same in the kernel. Reader and writer are fibers of one worker.
    everywhere(|| {
        for given in ["reader", "writer"] {
            let (mut reader, mut writer) = pipe().unwrap();
            let mut child = sinew::process::Command::new("true");
            match given {
                "reader" => child.stdin(reader.try_clone().unwrap()),
                _ => child.stdout(writer.try_clone().unwrap()),
            };
            assert!(child.status().unwrap().success());
            drop(child);
            let sent = pattern(MUCH);
            let awaited = sent.clone();
            let begun = Arc::new(AtomicBool::new(false));
            let told = begun.clone();
            let all = spawn(move || {
                told.store(true, SeqCst);
                let mut all = Vec::new();
                reader.read_to_end(&mut all).unwrap();
                all
            });
            // It finds nothing to be read, then we find no room.
            until(|| begun.load(SeqCst));
            sinew::yield_now();
            writer.write_all(&sent).unwrap();
            drop(writer);
            assert!(all.join().unwrap() == awaited, "{given}");
        }
    });
}

#[test]
fn copy_gives_what_std_gives() {
    everywhere(|| {
        for length in [0, 1, 65_536, MUCH] {
            let from = pattern(length);
            let mut to = Vec::new();
            assert_eq!(io::copy(&mut from.as_slice(), &mut to).unwrap(), length as u64);
            assert!(from == to);
        }
        // Between a pipe and a file.
        let path = std::env::temp_dir().join(format!("sinew-test-io-copy-{}", std::process::id()));
        sinew::fs::write(&path, pattern(MUCH)).unwrap();
        let (mut reader, mut writer) = pipe().unwrap();
        let source = path.clone();
        let sender = spawn(move || io::copy(&mut sinew::fs::File::open(source).unwrap(), &mut writer).unwrap());
        let mut all = Vec::new();
        io::copy(&mut reader, &mut all).unwrap();
        assert_eq!(sender.join().unwrap(), MUCH as u64);
        assert!(all == pattern(MUCH));
        sinew::fs::remove_file(&path).unwrap();
    });
}

#[test]
fn copy_tries_again_when_interrupted_and_passes_errors_on() {
    struct Moody(Vec<io::Result<usize>>);
    impl Read for Moody {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            self.0.pop().unwrap()
        }
    }
    let mut moody = Moody(vec![Ok(0), Ok(3), Err(ErrorKind::Interrupted.into()), Ok(2)]);
    assert_eq!(io::copy(&mut moody, &mut io::sink()).unwrap(), 5);
    let mut moody = Moody(vec![Err(ErrorKind::ConnectionReset.into()), Ok(2)]);
    let mut written = Vec::new();
    assert_eq!(io::copy(&mut moody, &mut written).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(written.len(), 2);
}

#[test]
fn input_is_read_by_lines_while_others_run() {
    const NAME: &str = "input_is_read_by_lines_while_others_run";
    const OTHERS_RUN: &str = "others run";
    if !is_child(NAME) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]).env("SINEW_TEST_CHILD", NAME);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // There is nothing to read before: so they run while the reader waits.
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(said.any(|line| line.ends_with(OTHERS_RUN)));
        child.stdin.take().unwrap().write_all(b"first\nsecond\nthird\nrest without end").unwrap();
        assert!(child.wait().unwrap().success());
        return;
    }
    alone(|| {
        scope(|s| {
            s.spawn(|| println!("{OTHERS_RUN}"));
            let mut line = String::new();
            assert_eq!(io::stdin().read_line(&mut line).unwrap(), 6);
            assert_eq!(line, "first\n");
            let mut letter = [0];
            io::stdin().read_exact(&mut letter).unwrap();
            assert_eq!(&letter, b"s");
            assert_eq!(io::stdin().lock().lines().next().unwrap().unwrap(), "econd");
            // As std: more than one buffer is filled, where there is so much.
            let (mut one, mut two) = ([0; 2], [0; 2]);
            assert_eq!(io::stdin().read_vectored(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)]).unwrap(), 4);
            assert_eq!((&one, &two), (b"th", b"ir"));
            assert_eq!(io::stdin().lines().map(Result::unwrap).collect::<Vec<_>>(), ["d", "rest without end"]);
            assert_eq!(io::stdin().read(&mut letter).unwrap(), 0);
        });
    });
}

#[test]
fn a_read_of_input_can_be_cut_short() {
    const NAME: &str = "a_read_of_input_can_be_cut_short";
    if !is_child(NAME) {
        // The input stays open, and empty, until the child has ended.
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]).env("SINEW_TEST_CHILD", NAME);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take();
        assert!(child.wait().unwrap().success());
        drop(input);
        return;
    }
    everywhere(|| {
        let late = timeout(Duration::from_millis(1), || io::stdin().read_line(&mut String::new()).unwrap_err().kind());
        assert!(late.is_err());
        let waiter = spawn(|| io::stdin().read(&mut [0]).unwrap_err());
        waiter.cancel();
        assert!(is_cancelled(&waiter.join().unwrap()));
    });
}

/// Gives the process a new input, and its other end. By a process that uses its input for nothing else.
fn pipe_to_input() -> std::io::PipeWriter {
    let (reader, input) = std::io::pipe().unwrap();
    // SAFETY: by the caller's word nothing else uses it.
    assert_eq!(unsafe { libc::dup2(reader.as_raw_fd(), libc::STDIN_FILENO) }, 0);
    input
}

/// Waits until somebody has read all that was written to the input.
fn until_all_is_taken() {
    until(|| {
        let mut left = 0i32;
        // SAFETY: the kernel writes one number.
        assert_eq!(unsafe { libc::ioctl(libc::STDIN_FILENO, libc::FIONREAD, &mut left) }, 0);
        left == 0
    });
}

/// Runs the named test again in a process of its own: there, it is `f`, which ends the process if it hangs.
fn with_own_input(test: &str, f: impl Fn() + Send + Sync) {
    if !is_child(test) {
        let output = in_child(test, &[]);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    // SAFETY: a number. It is far longer than a loaded machine takes.
    unsafe { libc::alarm(20) };
    everywhere(f);
}

fn read_line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().read_line(&mut line).map(|_| line)
}

/// Claim: a time-out and a cancel reach one that waits for its turn to read, however it reads, while another waits for input. That one gets all of its line, and the next reader the next.
#[test]
fn a_reader_in_line_for_input_can_be_cut_short() {
    /// What each would give does not matter: none comes to it.
    const READS: [fn() -> std::io::Result<()>; 9] = [
        || io::stdin().read_line(&mut String::new()).map(drop),
        || io::stdin().lines().next().unwrap().map(drop),
        || io::stdin().read(&mut [0; 9]).map(drop),
        || (&io::stdin()).read(&mut [0; 9]).map(drop),
        || io::stdin().read_vectored(&mut [IoSliceMut::new(&mut [0; 9])]).map(drop),
        || io::stdin().read_exact(&mut [0; 9]),
        || io::stdin().read_to_end(&mut Vec::new()).map(drop),
        || io::stdin().read_to_string(&mut String::from("x")).map(drop),
        || io::read_to_string(io::stdin()).map(drop),
    ];
    with_own_input("a_reader_in_line_for_input_can_be_cut_short", || {
        let mut input = pipe_to_input();
        input.write_all(b"wh").unwrap();
        let first = spawn(read_line);
        until_all_is_taken();
        for read in READS {
            let mut error = None;
            let late = timeout(Duration::from_millis(1), || error = read().err());
            assert!(late.is_err());
            assert_eq!(error.unwrap().kind(), ErrorKind::TimedOut);

            let begun = Arc::new(AtomicBool::new(false));
            let second = {
                let begun = begun.clone();
                spawn(move || {
                    begun.store(true, SeqCst);
                    read().unwrap_err()
                })
            };
            until(|| begun.load(SeqCst));
            second.cancel();
            assert!(is_cancelled(&second.join().unwrap()));
        }
        assert!(!first.is_finished());
        let third = spawn(read_line);
        input.write_all(b"ole\nnext\n").unwrap();
        assert_eq!(first.join().unwrap().unwrap(), "whole\n");
        assert_eq!(third.join().unwrap().unwrap(), "next\n");
    });
}

/// Claim: as with other locks, a cancel does not reach one that waits for the lock of the input; it reaches the reads by it. Where nothing may wait it is had if it is free.
#[test]
fn a_lock_of_input_is_no_cancel_point() {
    with_own_input("a_lock_of_input_is_no_cancel_point", || {
        let mut input = pipe_to_input();
        let lock = || drop(io::stdin().lock());
        no_suspend(lock);
        let held = io::stdin().lock();
        assert!(panics(|| no_suspend(lock)));
        let begun = Arc::new(AtomicBool::new(false));
        let waiter = {
            let begun = begun.clone();
            spawn(move || {
                current().cancel();
                begun.store(true, SeqCst);
                io::stdin().lock().read(&mut [0]).unwrap_err()
            })
        };
        until(|| begun.load(SeqCst));
        sinew::yield_now();
        assert!(!waiter.is_finished());
        drop(held);
        assert!(is_cancelled(&waiter.join().unwrap()));
        input.write_all(b"line\n").unwrap();
        assert_eq!(read_line().unwrap(), "line\n");
    });
}

#[test]
fn lines_have_the_input_from_the_first_until_they_are_dropped() {
    with_own_input("lines_have_the_input_from_the_first_until_they_are_dropped", || {
        let mut input = pipe_to_input();
        input.write_all(b"one\ntwo\nthree\n").unwrap();
        let mut lines = io::stdin().lines();
        assert_eq!(read_line().unwrap(), "one\n");
        assert_eq!(lines.next().unwrap().unwrap(), "two");
        assert!(timeout(Duration::from_millis(1), read_line).is_err());
        drop(lines);
        assert_eq!(read_line().unwrap(), "three\n");
    });
}

/// Claim: what a read that was cut short had taken from the input, and its caller cannot see, comes first in the next read: lines, characters and records stay whole.
#[test]
fn a_read_of_input_that_is_cut_short_loses_nothing() {
    const NAME: &str = "a_read_of_input_that_is_cut_short_loses_nothing";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    /// Writes to the input, and gives what becomes of a read that is cancelled when it has taken that.
    fn cut<T: Send + 'static>(mut input: &std::io::PipeWriter, piece: &[u8], read: impl FnOnce() -> T + Send + 'static) -> T {
        input.write_all(piece).unwrap();
        let reader = spawn(read);
        until_all_is_taken();
        reader.cancel();
        reader.join().unwrap()
    }
    everywhere(|| {
        let input = pipe_to_input();
        let failed = |error: std::io::Error| assert!(is_cancelled(&error), "{error:?}");

        failed(cut(&input, b"ab", || io::stdin().lines().next().unwrap().unwrap_err()));
        failed(cut(&input, b"cd", || io::stdin().lines().next().unwrap().unwrap_err()));
        (&input).write_all(b"ef\n").unwrap();
        assert_eq!(io::stdin().lines().next().unwrap().unwrap(), "abcdef");

        failed(cut(&input, b"gh", || io::stdin().lock().split(b';').next().unwrap().unwrap_err()));
        (&input).write_all(b"i;").unwrap();
        assert_eq!(io::stdin().lock().split(b';').next().unwrap().unwrap(), b"ghi");

        // Within a character.
        let (error, mut line) = cut(&input, b"j\xC3", || {
            let mut line = String::from("before, ");
            (io::stdin().read_line(&mut line).unwrap_err(), line)
        });
        failed(error);
        assert_eq!(line, "before, ");
        (&input).write_all(b"\xA9\nk").unwrap();
        assert_eq!(io::stdin().read_line(&mut line).unwrap(), 4);
        assert_eq!(line, "before, j\u{e9}\n");

        failed(cut(&input, b"l", || io::stdin().read_exact(&mut [0; 3]).unwrap_err()));
        (&input).write_all(b"mno").unwrap();
        let mut record = [0; 3];
        io::stdin().read_exact(&mut record).unwrap();
        assert_eq!(&record, b"klm");

        // Here the caller sees it.
        let (error, bytes) = cut(&input, b"p", || {
            let mut bytes = Vec::new();
            (io::stdin().read_to_end(&mut bytes).unwrap_err(), bytes)
        });
        failed(error);
        assert_eq!(bytes, b"nop");

        let (error, mut text) = cut(&input, b"123", || {
            let mut text = String::from("x");
            (io::stdin().read_to_string(&mut text).unwrap_err(), text)
        });
        failed(error);
        assert_eq!(text, "x");
        (&input).write_all(b"456").unwrap();
        drop(input);
        assert_eq!(io::stdin().read_to_string(&mut text).unwrap(), 6);
        assert_eq!(text, "x123456");
    });
}

/// Claim: what is no text is no line, and as with std it is gone; the next line comes.
#[test]
fn input_that_is_no_text_is_an_error_once() {
    const NAME: &str = "input_that_is_no_text_is_an_error_once";
    if !is_child(NAME) {
        return with_input(NAME, b"\xFF\nline\nrest\xFE");
    }
    let mut line = String::from("x");
    assert_eq!(io::stdin().read_line(&mut line).unwrap_err().kind(), ErrorKind::InvalidData);
    assert_eq!(line, "x");
    assert_eq!(io::stdin().read_line(&mut line).unwrap(), 5);
    assert_eq!(line, "xline\n");
    line.clear();
    assert_eq!(io::stdin().read_to_string(&mut line).unwrap_err().kind(), ErrorKind::InvalidData);
    assert_eq!((line.as_str(), io::stdin().read(&mut [0]).unwrap()), ("", 0));
    assert_eq!(io::stdin().read_exact(&mut [0]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn output_keeps_its_order_with_println() {
    const NAME: &str = "output_keeps_its_order_with_println";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 two 3\n4\n5 and more"), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("to stderr: 6\nand more"), "{output:?}");
        return;
    }
    alone(|| {
        print!("{} ", 1);
        write!(io::stdout(), "two ").unwrap();
        println!("{}", 3);
        writeln!(io::stdout(), "{}", 4).unwrap();
        io::stdout().write_all(b"5").unwrap();
        let parts = [IoSlice::new(b" and"), IoSlice::new(b" more")];
        assert_eq!(io::stdout().write_vectored(&parts).unwrap(), 9, "as std: more than one buffer is written");
        (&io::stdout()).flush().unwrap();
        writeln!(io::stderr(), "to stderr: {}", 6).unwrap();
        assert_eq!(io::stderr().lock().write_vectored(&[IoSlice::new(b"and "), IoSlice::new(b"more")]).unwrap(), 8);
    });
}

/// Runs the named test again by each driver, with an input that comes in small pieces.
fn with_input(test: &str, input: &[u8]) {
    // No divisor of anything.
    const PIECE: usize = 331;
    for io in ["uring", "epoll"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env("SINEW_TEST_CHILD", test).env("SINEW_IO", io);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut to_child = child.stdin.take().unwrap();
        // It fails if the child has; its output says why.
        let _ = input.chunks(PIECE).try_for_each(|piece| to_child.write_all(piece));
        drop(to_child);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{io}: {output:?}");
    }
}

/// Four fibers of two workers, which take turns wherever the input comes short.
fn four_readers(read: impl Fn() + Send + Sync) {
    sinew::Runtime::builder().workers(2).build().unwrap().run(|| {
        scope(|s| {
            for _ in 0..4 {
                s.spawn(&read);
            }
        });
    });
}

/// As with std, whose lock is held for the whole of a call.
#[test]
fn records_of_input_that_fibers_share_are_not_torn() {
    const NAME: &str = "records_of_input_that_fibers_share_are_not_torn";
    const RECORDS: u32 = 1000;
    const WORDS: usize = 250;
    if !is_child(NAME) {
        let record = |number: u32| [number; WORDS].map(u32::to_ne_bytes);
        return with_input(NAME, (0..RECORDS).flat_map(record).flatten().collect::<Vec<_>>().as_slice());
    }
    let seen = std::sync::Mutex::new(vec![false; RECORDS as usize]);
    four_readers(|| {
        let mut record = [0; 4 * WORDS];
        for turn in 0.. {
            let read = if turn % 2 == 0 { io::stdin().read_exact(&mut record) } else { (&io::stdin()).read_exact(&mut record) };
            match read {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return,
                read => read.unwrap(),
            }
            let (words, _) = record.as_chunks();
            let number = u32::from_ne_bytes(words[0]);
            assert!(words.iter().all(|&word| u32::from_ne_bytes(word) == number), "a record is torn");
            assert!(!std::mem::replace(&mut seen.lock().unwrap()[number as usize], true), "a record came twice");
        }
    });
    assert!(seen.lock().unwrap().iter().all(|&seen| seen), "a record is lost");
}

/// Claim: each line comes to one reader, once and whole, though readers are cut short at any moment, most often in line. By fibers of two workers that give up after a moment, or are cancelled.
#[test]
fn lines_come_once_each_though_readers_are_cut_short() {
    const NAME: &str = "lines_come_once_each_though_readers_are_cut_short";
    const LINES: usize = 20_000;
    if !is_child(NAME) {
        let lines: String = (0..LINES).map(|number| format!("{number}\n")).collect();
        return with_input(NAME, lines.as_bytes());
    }
    let seen = std::sync::Mutex::new(vec![false; LINES]);
    four_readers(|| {
        for turn in 0u64.. {
            let read = if turn % 2 == 0 {
                timeout(Duration::from_micros(turn % 64), read_line).unwrap_or(Ok(String::from("cut")))
            } else {
                let reader = spawn(read_line);
                sinew::yield_now();
                reader.cancel();
                match reader.join().unwrap() {
                    Err(error) if is_cancelled(&error) => Ok(String::from("cut")),
                    read => read,
                }
            };
            match read.unwrap().as_str() {
                "" => return,
                "cut" => {}
                line => {
                    let number: usize = line.strip_suffix('\n').expect("a line is whole").parse().unwrap();
                    assert!(!std::mem::replace(&mut seen.lock().unwrap()[number], true), "line {number} came twice");
                }
            }
        }
    });
    assert!(seen.lock().unwrap().iter().all(|&seen| seen), "a line is lost");
}

#[test]
fn all_that_is_left_of_input_goes_to_one_fiber() {
    const NAME: &str = "all_that_is_left_of_input_goes_to_one_fiber";
    const LENGTH: usize = 300_000;
    if !is_child(NAME) {
        return with_input(NAME, &[b'x'; LENGTH]);
    }
    let (readers, all) = (AtomicUsize::new(0), AtomicUsize::new(0));
    four_readers(|| {
        let (mut bytes, mut text) = (Vec::new(), String::new());
        let read = match readers.fetch_add(1, SeqCst) {
            0 => io::stdin().read_to_end(&mut bytes),
            1 => io::stdin().read_to_string(&mut text),
            2 => (&io::stdin()).read_to_end(&mut bytes),
            _ => (&io::stdin()).read_to_string(&mut text),
        };
        let read = read.unwrap();
        assert!(read == 0 || read == LENGTH, "a part of {read} bytes");
        all.fetch_add(read, SeqCst);
    });
    assert_eq!(all.load(SeqCst), LENGTH);
}

#[test]
fn a_lock_of_output_keeps_other_fibers_out() {
    const NAME: &str = "a_lock_of_output_keeps_other_fibers_out";
    if !is_child(NAME) {
        for io in ["uring", "epoll"] {
            let output = in_child(NAME, &[("SINEW_IO", io)]);
            assert!(output.status.success(), "{output:?}");
            let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let lines: Vec<_> = text.lines().filter(|line| line.starts_with('<')).collect();
            assert_eq!(lines.len(), 20, "{text}");
            assert!(lines.iter().all(|line| *line == "<0 1 2 3 4 5 6 7 8 9>" || *line == "<whole>"), "{text}");
            assert!(errors.contains("{one two}"), "{errors}");
            assert!(errors.contains("from a child\n"), "{errors}");
        }
        return;
    }
    alone(|| {
        println!();
        scope(|s| {
            for _ in 0..10 {
                s.spawn(|| {
                    let mut out = io::stdout().lock();
                    write!(out, "<").unwrap();
                    for digit in 0..9 {
                        write!(out, "{digit} ").unwrap();
                        sinew::yield_now();
                    }
                    // Who has it may lock again, and use other handles.
                    writeln!(io::stdout(), "9>").unwrap();
                    drop(io::stdout().lock());
                });
                s.spawn(|| writeln!(io::stdout(), "<whole>").unwrap());
            }
        });
        let mut errors = io::stderr().lock();
        assert!(!errors.is_terminal() && !io::stdout().lock().is_terminal() && !io::stdin().lock().is_terminal());
        errors.write_all(b"{one ").unwrap();
        writeln!(errors, "two}}").unwrap();
        let status = sinew::process::Command::new("echo").arg("from a child").stdout(io::stderr()).status();
        assert!(status.unwrap().success());
        sinew::process::Command::new("true").stdout(io::stdout()).status().unwrap();
    });
}

#[test]
fn output_that_nobody_reads_keeps_no_other_fiber_from_running() {
    // The child writes more than a pipe holds while nobody reads; another fiber of its one worker then says so on stderr, and only that lets the reading begin.
    const NAME: &str = "output_that_nobody_reads_keeps_no_other_fiber_from_running";
    if !is_child(NAME) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]).env("SINEW_TEST_CHILD", NAME);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ran"), "the worker was blocked");
        let mut all = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut all).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(all.len() >= MUCH);
        return;
    }
    alone(|| {
        let begun = AtomicBool::new(false);
        scope(|s| {
            s.spawn(|| {
                begun.store(true, SeqCst);
                io::stdout().write_all(&vec![b'\n'; MUCH]).unwrap();
            });
            until(|| begun.load(SeqCst));
            for _ in 0..100 {
                sinew::yield_now();
            }
            eprintln!("ran");
        });
    });
}

/// As std: a process whose input was closed finds its end there.
#[test]
fn input_that_was_closed_is_at_its_end() {
    const NAME: &str = "input_that_was_closed_is_at_its_end";
    if !is_child(NAME) {
        for io in ["uring", "epoll"] {
            let output = in_child(NAME, &[("SINEW_IO", io)]);
            assert!(output.status.success(), "{output:?}");
        }
        return;
    }
    everywhere(|| {
        // SAFETY: nothing in this process uses its input but what is below. The second time it is not open.
        unsafe { libc::close(libc::STDIN_FILENO) };
        assert_eq!(std::io::stdin().read(&mut [0]).unwrap(), 0);
        assert_eq!(io::stdin().read(&mut [0]).unwrap(), 0);
        assert_eq!(io::stdin().read_line(&mut String::new()).unwrap(), 0);
    });
}
