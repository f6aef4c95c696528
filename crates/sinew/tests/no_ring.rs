//! Where the kernel refuses the ring, or a part of it, everything works by epoll: not sockets alone.

mod common;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::{in_child, is_child, pair, refuse, until};
use sinew::process::{Command, Stdio};
use sinew::signal::{Signal, Signals};
use sinew::{Io, Runtime, fs, io, scope, spawn, timeout};

/// What is refused, and how: what containers do, and old or strict kernels.
const REFUSALS: [(&str, i64, i32); 4] = [
    ("setup-eperm", libc::SYS_io_uring_setup, libc::EPERM),
    ("setup-enosys", libc::SYS_io_uring_setup, libc::ENOSYS),
    ("enter-eperm", libc::SYS_io_uring_enter, libc::EPERM),
    ("enter-enosys", libc::SYS_io_uring_enter, libc::ENOSYS),
];
const REFUSAL: &str = "SINEW_TEST_REFUSAL";

/// Refuses what the parent has named.
fn refuse_as_asked() {
    let asked = std::env::var(REFUSAL).unwrap();
    let (_, call, error) = REFUSALS.into_iter().find(|(name, ..)| *name == asked).unwrap();
    refuse(call, error);
}

/// Runs `everything`, in a process of its own for each refusal; what it wrote to stderr.
fn under_each_refusal(test: &str, check: impl Fn(&str, &str)) {
    for (name, ..) in REFUSALS {
        let child = in_child(test, &[("SINEW_IO", "auto"), (REFUSAL, name)]);
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{name}: {said}");
        check(name, &said);
    }
}

fn sockets() {
    let (near, mut far) = pair();
    let echo = spawn(move || io::copy(&mut (&far).take(300_000), &mut { far.try_clone().unwrap() }).map(|count| (count, far.flush())));
    let sent: Vec<u8> = (0..300_000).map(|index| (index * 7 + index / 251) as u8).collect();
    scope(|s| {
        s.spawn(|| (&near).write_all(&sent).unwrap());
        let mut got = vec![0; sent.len()];
        (&near).read_exact(&mut got).unwrap();
        assert!(got == sent, "bytes were lost");
    });
    assert_eq!(echo.join().unwrap().unwrap().0, 300_000);
    assert!(timeout(Duration::from_millis(1), || (&near).take(1).read(&mut [0])).is_err() || near.peek(&mut [0]).unwrap() == 0);
}

fn files() {
    let path = std::env::temp_dir().join(format!("sinew-test-no-ring-{}-{:?}", std::process::id(), std::thread::current().id()));
    fs::write(&path, "0123456789").unwrap();
    let mut file = fs::File::options().read(true).write(true).open(&path).unwrap();
    file.write_at(b"AB", 4).unwrap();
    file.sync_all().unwrap();
    let mut part = [0; 4];
    file.read_exact_at(&mut part, 3).unwrap();
    assert_eq!(&part, b"3AB6");
    file.lock().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "0123AB6789");
    file.unlock().unwrap();
    let copy = path.with_extension("copy");
    assert_eq!(io::copy(&mut fs::File::open(&path).unwrap(), &mut fs::File::create(&copy).unwrap()).unwrap(), 10);
    assert_eq!(fs::read(&copy).unwrap(), b"0123AB6789");
    fs::remove_file(&path).unwrap();
    fs::remove_file(&copy).unwrap();
}

fn children() {
    let output = Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]).output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout, &*output.stderr), (Some(3), &b"out\n"[..], &b"err\n"[..]));
    let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
    let reader = spawn(move || {
        let mut all = Vec::new();
        io::copy(&mut stdout, &mut all).unwrap();
        all.len()
    });
    stdin.write_all(&[b'x'; 200_000]).unwrap();
    drop(stdin);
    assert_eq!(reader.join().unwrap(), 200_000);
    assert!(cat.wait().unwrap().success());
}

fn signals() {
    let signals = Signals::new([Signal::USR1]).unwrap();
    let begun = AtomicUsize::new(0);
    scope(|s| {
        let waiter = s.spawn(|| {
            begun.store(1, SeqCst);
            signals.wait().unwrap()
        });
        until(|| begun.load(SeqCst) == 1);
        // SAFETY: two numbers go in.
        assert_eq!(unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) }, 0);
        assert_eq!(waiter.join().unwrap(), Signal::USR1);
    });
}

fn pipes() {
    let (mut reader, mut writer) = io::pipe().unwrap();
    let all = spawn(move || io::read_to_string(&mut reader).unwrap().len());
    writer.write_all(&[b'x'; 200_000]).unwrap();
    drop(writer);
    assert_eq!(all.join().unwrap(), 200_000);
}

#[test]
fn without_a_ring_or_a_part_of_it_everything_works() {
    const NAME: &str = "without_a_ring_or_a_part_of_it_everything_works";
    if !is_child(NAME) {
        return under_each_refusal(NAME, |name, said| {
            assert_eq!(said.matches("I/O goes by epoll").count(), 1, "{name}: {said}");
        });
    }
    refuse_as_asked();
    let everything: [fn(); 5] = [sockets, files, children, signals, pipes];
    // One at a time on one worker, then all at once on two, but for the signal, which goes to the process.
    Runtime::builder().workers(1).build().unwrap().run(|| everything.iter().for_each(|part| part()));
    Runtime::builder().workers(2).build().unwrap().run(|| {
        scope(|s| everything.iter().for_each(|part| drop(s.spawn(part))));
        assert!(sinew::metrics().workers.iter().any(|worker| worker.io.is_some()));
        assert!(sinew::metrics().workers.iter().all(|worker| worker.io.is_none_or(|io| io == Io::Epoll)));
    });
}

#[test]
fn which_driver_a_worker_has_can_be_asked() {
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(1).io(io).build().unwrap();
        assert_eq!(runtime.metrics().workers[0].io, None, "nothing has waited for I/O");
        runtime.run(pipes);
        assert_eq!(runtime.metrics().workers[0].io, Some(io));
    }
}

#[test]
fn a_ring_that_was_asked_for_and_is_refused_is_an_error_at_the_start() {
    const NAME: &str = "a_ring_that_was_asked_for_and_is_refused_is_an_error_at_the_start";
    if !is_child(NAME) {
        return under_each_refusal(NAME, |name, said| assert!(!said.contains("I/O goes by epoll"), "{name}: {said}"));
    }
    refuse_as_asked();
    let refused = Runtime::builder().io(Io::Uring).build().expect_err("there is no ring");
    assert!(refused.to_string().contains("the kernel refuses io_uring"), "{refused}");
}

#[test]
fn without_descriptors_the_ring_is_not_said_to_be_forbidden() {
    const NAME: &str = "without_descriptors_the_ring_is_not_said_to_be_forbidden";
    if !is_child(NAME) {
        let child = in_child(NAME, &[]);
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    refuse(libc::SYS_io_uring_setup, libc::EMFILE);
    let refused = Runtime::builder().io(Io::Uring).build().expect_err("there are no descriptors").to_string();
    assert!(refused.contains("descriptors") && refused.contains("ulimit -n") && !refused.contains("refuses"), "{refused}");
}
