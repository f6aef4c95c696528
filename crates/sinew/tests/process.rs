//! Child processes: what `sinew::process` does is what std does, in fibers and on threads, and keeps no other fiber from running.

mod common;

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::{alone, everywhere, in_child, is_cancelled, is_child, panics, until};
use sinew::process::{Child, Command, Stdio};
use sinew::{Io, Runtime, cancelled, current, no_suspend, scope, shield, spawn, timeout, yield_now};

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// Whether there is a process of this number, ended or not, that was not waited for.
fn is_there(id: u32) -> bool {
    std::path::Path::new(&format!("/proc/{id}")).exists()
}

#[test]
fn output_status_and_spawn_give_what_std_gives() {
    everywhere(|| {
        for script in ["echo out; echo err >&2; exit 3", "exit 0", "kill -9 $$", "cat", "printf '%s' \"$0\"", "head -c 300000 /dev/zero"] {
            let ours = shell(script).output().unwrap();
            let theirs = std::process::Command::new("sh").args(["-c", script]).output().unwrap();
            assert_eq!(ours, theirs, "{script}");
            let (mut ours, mut theirs) = (shell(script), std::process::Command::new("sh"));
            theirs.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let status = ours.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
            assert_eq!(status, theirs.status().unwrap(), "{script}");
            let mut child = ours.spawn().unwrap();
            assert_eq!(child.wait().unwrap(), status);
            assert_eq!(child.wait().unwrap(), status, "the second time");
            assert_eq!(child.try_wait().unwrap(), Some(status));
            child.kill().unwrap();
        }
        assert_eq!(Command::new("/no/such/program").spawn().unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(Command::new("/").output().unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(Command::new("nul\0").status().unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_child_is_started_as_it_was_said() {
    everywhere(|| {
        let directory = std::env::temp_dir().canonicalize().unwrap();
        let mut command = shell("echo \"$A|$B|$C|$PWD|$0\"; [ \"$(ps -o pgid= -p $$ 2>/dev/null || echo $$)\" -eq $$ ] && echo own group");
        command.env("A", "1").envs([("B", "2"), ("C", "3")]).env_remove("C").current_dir(&directory).process_group(0).arg("name");
        // SAFETY: it calls nothing but the system, which is fit for a forked child.
        unsafe {
            command.pre_exec(|| match libc::setenv(c"D".as_ptr(), c"4".as_ptr(), 1) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            })
        };
        assert_eq!(command.get_program(), "sh");
        assert_eq!(command.get_args().count(), 3);
        assert_eq!(command.get_envs().count(), 3);
        assert_eq!(command.get_current_dir(), Some(directory.as_path()));
        for _ in 0..2 {
            let output = command.output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert_eq!(text, format!("1|2||{}|name\nown group\n", directory.display()));
        }
        // SAFETY: as above.
        let refused = unsafe { command.pre_exec(|| Err(io::Error::from_raw_os_error(libc::EXDEV))) }.output();
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EXDEV));
        let named = Command::new("sh").arg0("other").args(["-c", "tr '\\0' ' ' < /proc/$$/cmdline"]).env_clear().output().unwrap();
        assert!(named.stdout.starts_with(b"other -c"), "{named:?}");
    });
}

#[test]
fn what_output_sets_is_not_there_for_the_next_call() {
    // In a process of its own, which can see where a grandchild writes to.
    const NAME: &str = "what_output_sets_is_not_there_for_the_next_call";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).matches("word").count(), 2, "{output:?}");
        return;
    }
    let mut command = shell("echo word; cat");
    assert_eq!(command.output().unwrap().stdout, b"word\n");
    assert!(command.status().unwrap().success());
    let child = command.spawn().unwrap();
    assert!(child.stdout.is_none() && child.stdin.is_none());
    assert!(child.wait_with_output().unwrap().stdout.is_empty());
    assert_eq!(command.output().unwrap().stdout, b"word\n");
}

#[test]
fn a_child_that_fills_both_pipes_does_not_stand_still() {
    everywhere(|| {
        // Each more than a pipe holds, in turns.
        let script = "for i in 1 2 3; do head -c 200000 /dev/zero; head -c 200000 /dev/zero >&2; done";
        let output = shell(script).output().unwrap();
        assert_eq!((output.stdout.len(), output.stderr.len()), (600_000, 600_000));
        // One of both, and none.
        let one = shell(script).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!((one.stdout.len(), one.stderr.len()), (0, 600_000));
        let none = shell(script).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!((none.stdout.len(), none.stderr.len()), (0, 0));
    });
}

/// Sends numbered lines through `cat`, more than both pipes hold, while another reads.
fn converse(child: &mut Child, lines: usize) {
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    scope(|s| {
        let read = s.spawn(move || BufReader::new(stdout).lines().map(|line| line.unwrap().parse::<usize>().unwrap()).eq(0..lines));
        for line in 0..lines {
            writeln!(stdin, "{line}").unwrap();
        }
        drop(stdin);
        assert!(read.join().unwrap());
    });
}

#[test]
fn pipes_carry_more_than_they_hold_both_ways_on_one_worker() {
    alone(|| {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        converse(&mut child, 5_000);
        assert!(child.wait().unwrap().success());
    });
}

#[test]
fn many_children_at_once_on_one_worker() {
    // Each ends only when its input is closed, which the last of them does for all: so all are waited for at once.
    const CHILDREN: usize = 20;
    alone(|| {
        let started = AtomicUsize::new(0);
        scope(|s| {
            let waits: Vec<_> = (0..CHILDREN)
                .map(|index| {
                    let started = &started;
                    s.spawn(move || {
                        let mut child = shell(&format!("read line; exit {index}")).stdin(Stdio::piped()).spawn().unwrap();
                        let input = child.stdin.take().unwrap();
                        started.fetch_add(1, SeqCst);
                        let waiter = spawn(move || child.wait().unwrap());
                        while started.load(SeqCst) < CHILDREN {
                            yield_now();
                        }
                        drop(input);
                        waiter.join().unwrap()
                    })
                })
                .collect();
            for (index, wait) in waits.into_iter().enumerate() {
                assert_eq!(wait.join().unwrap().code(), Some(index as i32));
            }
        });
    });
}

#[test]
fn a_wait_keeps_no_other_fiber_from_running() {
    alone(|| {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let begun = Arc::new(AtomicBool::new(false));
        let told = begun.clone();
        let waiter = spawn(move || {
            told.store(true, SeqCst);
            child.wait().unwrap()
        });
        until(|| begun.load(SeqCst));
        assert!(!waiter.is_finished());
        drop(input);
        assert!(waiter.join().unwrap().success());
    });
}

#[test]
fn a_wait_closes_the_input() {
    everywhere(|| {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(child.wait().unwrap().success());
        assert!(child.stdin.is_none());
    });
}

#[test]
fn a_wait_that_is_cut_short_leaves_the_child() {
    everywhere(|| {
        let mut child = Command::new("sleep").arg("3600").spawn().unwrap();
        let late = timeout(Duration::from_millis(1), || assert_eq!(child.wait().unwrap_err().kind(), ErrorKind::TimedOut));
        assert!(late.is_err());
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert!(!is_there(child.id()));
    });
}

#[test]
fn a_cancel_ends_a_wait_and_a_read() {
    let mut child = Command::new("sleep").arg("3600").stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let reader = spawn(move || stdout.read(&mut [0; 10]).unwrap_err());
    let waiter = spawn(move || (child.wait().unwrap_err(), child));
    reader.cancel();
    waiter.cancel();
    assert!(is_cancelled(&reader.join().unwrap()));
    let (error, mut child) = waiter.join().unwrap();
    assert!(is_cancelled(&error));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn output_and_status_that_are_cut_short_kill_and_reap_the_child() {
    everywhere(|| {
        let path = std::env::temp_dir().join(format!("sinew-test-process-{}", std::process::id()));
        let script = format!("echo $$ > '{0}.new'; mv '{0}.new' '{0}'; exec sleep 3600", path.display());
        let calls: [fn(&mut Command) -> io::Result<()>; 2] = [|command| command.output().map(drop), |command| command.status().map(drop)];
        for call in calls {
            let path = path.clone();
            let mut command = shell(&script);
            command.stdout(Stdio::null());
            let fiber = spawn(move || call(&mut command).unwrap_err());
            until(|| path.exists());
            let id: u32 = std::fs::read_to_string(&path).unwrap().trim().parse().unwrap();
            fiber.cancel();
            assert!(is_cancelled(&fiber.join().unwrap()));
            assert!(!is_there(id), "the child is still there");
            std::fs::remove_file(&path).unwrap();
        }
        let late = timeout(Duration::from_millis(20), || Command::new("sleep").arg("3600").output());
        assert!(late.is_err());
    });
}

#[test]
fn one_that_is_cancelled_starts_nothing() {
    everywhere(|| {
        let path = std::env::temp_dir().join(format!("sinew-test-process-none-{}", std::process::id()));
        current().cancel();
        assert!(is_cancelled(&Command::new("touch").arg(&path).spawn().unwrap_err()));
        assert!(is_cancelled(&Command::new("touch").arg(&path).output().unwrap_err()));
        assert!(!path.exists());
    });
}

#[test]
fn a_child_outlives_the_thread_pool_it_was_asked_for_by() {
    // One that is to die with its parent dies with the thread that started it: that must not be one of the pool's.
    let runtime = sinew::Runtime::builder().workers(1).blocking_idle(Duration::ZERO).build().unwrap();
    let mut child = runtime.run(|| {
        let mut command = Command::new("cat");
        // SAFETY: a call of the system, fit for a forked child.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            })
        };
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        until(|| sinew::metrics().blocking_threads == 0);
        child
    });
    drop(runtime);
    converse(&mut child, 10);
    assert!(child.wait().unwrap().success());
}

#[test]
fn ends_can_be_given_to_another_child() {
    everywhere(|| {
        let mut first = shell("echo one two").stdout(Stdio::piped()).spawn().unwrap();
        let second = Command::new("wc").arg("-w").stdin(first.stdout.take().unwrap()).output().unwrap();
        assert_eq!(String::from_utf8(second.stdout).unwrap().trim(), "2");
        assert!(first.wait().unwrap().success());

        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        assert_eq!(stdin.as_fd().as_raw_fd(), stdin.as_raw_fd());
        // Std's own calls find them blocking.
        let mut stdin = std::fs::File::from(OwnedFd::from(stdin));
        let mut stdout = std::fs::File::from(OwnedFd::from(stdout));
        stdin.write_all(b"there").unwrap();
        drop(stdin);
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        assert_eq!(text, "there");
        child.wait().unwrap();
    });
}

#[test]
fn a_write_to_one_that_is_gone_is_a_broken_pipe() {
    everywhere(|| {
        let mut child = shell("exec <&-; echo closed; read line <&1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut closed = [0; 7];
        child.stdout.as_mut().unwrap().read_exact(&mut closed).unwrap();
        // Children that other tests fork at this moment have the other end too, until they exec.
        let error = loop {
            match child.stdin.as_mut().unwrap().write_all(b"for nobody") {
                Ok(()) => sinew::yield_now(),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

#[test]
fn without_a_descriptor_for_its_end_a_child_is_waited_for_all_the_same() {
    // In a process of its own, which runs out of descriptors before the child is started.
    const NAME: &str = "without_a_descriptor_for_its_end_a_child_is_waited_for_all_the_same";
    if !is_child(NAME) {
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    alone(|| {
        // What is opened at the first use is open then.
        assert!(Command::new("true").status().unwrap().success());
        let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
        // SAFETY: the limit outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        let (reader, writer) = std::io::pipe().unwrap();
        let all: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        let mut child = Command::new("cat").stdin(reader).spawn().unwrap();
        // The wait ends only if this fiber runs meanwhile.
        let closer = spawn(move || drop(writer));
        assert!(child.wait().unwrap().success());
        assert!(child.wait().unwrap().success());
        closer.join().unwrap();
        drop(all);
    });
}

/// Traces a process, which belongs to this one, until the writer is dropped: from another process, whose number is given.
fn trace(traced: u32) -> (std::io::PipeWriter, libc::pid_t) {
    let (held, hold) = std::io::pipe().unwrap();
    let (mut traces, told) = std::io::pipe().unwrap();
    // SAFETY: the new process makes calls of the system only, with numbers and a byte that is its own.
    let tracer = unsafe {
        match libc::fork() {
            0 => {
                libc::close(hold.as_raw_fd());
                let none = std::ptr::null_mut::<libc::c_void>();
                if libc::ptrace(libc::PTRACE_SEIZE, traced as libc::pid_t, none, none) != 0 {
                    libc::_exit(1);
                }
                let mut byte = 0u8;
                libc::write(told.as_raw_fd(), (&raw const byte).cast(), 1);
                libc::read(held.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::_exit(0)
            }
            tracer => tracer,
        }
    };
    assert!(tracer > 0);
    drop(told);
    traces.read_exact(&mut [0]).expect("the system lets a process be traced");
    (hold, tracer)
}

/// Claim: a child that has ended, and that somebody traces who has not let go of it, is waited for without computing: its end is told of, and cannot be had yet.
#[test]
fn a_wait_for_a_traced_child_does_not_compute() {
    const NAME: &str = "a_wait_for_a_traced_child_does_not_compute";
    /// For how long the tracer has the ended child: time of computing is compared with this.
    const HELD: Duration = Duration::from_millis(300);
    if !is_child(NAME) {
        // The tracer has all descriptors that its parent has.
        let output = in_child(NAME, &[]);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    // SAFETY: a number. It ends this process, and so the test, if that hangs.
    unsafe { libc::alarm(60) };
    let used = || {
        let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes the time.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut used) }, 0);
        Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
    };
    everywhere(|| {
        let mut command = Command::new("sleep");
        command.arg("3600");
        // SAFETY: a call of the system with numbers. Where only its parents may trace a process, others may trace this one.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0);
                Ok(())
            })
        };
        let mut child = command.spawn().unwrap();
        let id = child.id();
        let (hold, tracer) = trace(id);
        child.kill().unwrap();
        let holder = std::thread::spawn(move || {
            let has_ended = || std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap().contains(") Z ");
            while !has_ended() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let before = used();
            std::thread::sleep(HELD);
            let used = used() - before;
            drop(hold);
            used
        });
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        let used = holder.join().unwrap();
        // SAFETY: no status is asked for.
        assert_eq!(unsafe { libc::waitpid(tracer, std::ptr::null_mut(), 0) }, tracer);
        assert!(used < HELD / 3, "{used:?} of computing while it was traced for {HELD:?}");
    });
}

/// Leaves no descriptor to be opened; what is given can be dropped for one each.
fn take_all_descriptors() -> Vec<std::fs::File> {
    let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
    // SAFETY: the limit outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect()
}

/// Runs the named test again in a process of its own, by each driver.
fn by_each_driver(test: &str) {
    for io in ["uring", "epoll"] {
        let output = in_child(test, &[("SINEW_IO", io)]);
        assert!(output.status.success(), "{io}: {output:?}");
    }
}

#[test]
fn a_child_is_not_killed_because_there_is_no_descriptor_to_wait_with() {
    const NAME: &str = "a_child_is_not_killed_because_there_is_no_descriptor_to_wait_with";
    if !is_child(NAME) {
        return by_each_driver(NAME);
    }
    alone(|| {
        // What is opened at the first use is open then.
        assert!(Command::new("true").status().unwrap().success());
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut command = shell("read line");
        command.stdin(reader);
        let mut all = take_all_descriptors();
        // One is left, and taken for the child's end.
        let number = all.pop().unwrap().as_raw_fd();
        let other = spawn(move || {
            // SAFETY: asks for flags.
            until(|| unsafe { libc::fcntl(number, libc::F_GETFD) } != -1);
            writer.write_all(b"\n").unwrap();
            writer
        });
        assert!(command.status().unwrap().success());
        other.join().unwrap();
        drop(all);
    });
}

#[test]
fn a_child_is_not_killed_because_there_is_no_descriptor_to_read_with() {
    const NAME: &str = "a_child_is_not_killed_because_there_is_no_descriptor_to_read_with";
    if !is_child(NAME) {
        return by_each_driver(NAME);
    }
    // The first wait of a worker opens its source.
    alone(|| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let child = Command::new("cat").stdin(reader).stdout(Stdio::piped()).spawn().unwrap();
        let all = take_all_descriptors();
        let other = spawn(move || {
            drop(all);
            writer.write_all(b"all the same").unwrap();
        });
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout, b"all the same");
        other.join().unwrap();
    });
}

#[test]
fn a_child_is_not_killed_because_there_is_no_descriptor_to_read_both_pipes_with() {
    const NAME: &str = "a_child_is_not_killed_because_there_is_no_descriptor_to_read_both_pipes_with";
    if !is_child(NAME) {
        return by_each_driver(NAME);
    }
    alone(|| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut command = shell("read line; echo $line; echo too >&2");
        let child = command.stdin(reader).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let all = take_all_descriptors();
        // The child writes nothing before this fiber has run.
        let other = spawn(move || writer.write_all(b"all the same\n").unwrap());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"all the same\n"[..], &b"too\n"[..]));
        other.join().unwrap();
        drop(all);
    });
}

/// More than both pipes hold, to the one and then to the other, to both at once, and by turns.
#[test]
fn what_is_written_to_both_pipes_is_read_as_it_comes() {
    const MUCH: usize = 300_000;
    everywhere(|| {
        let much = |to: &str| format!("head -c {MUCH} /dev/zero {to}");
        let (out, err) = (much(""), much(">&2"));
        let scripts = [
            (format!("{out}; {err}"), 1, 1),
            (format!("{err}; {out}"), 1, 1),
            (format!("{err} & {out}; wait"), 1, 1),
            (format!("{out}; {err}; {out}; {err}"), 2, 2),
            // One ends long before the other.
            (format!("exec 2>&-; {out}; {out}"), 2, 0),
            (format!("exec >&-; {err}; {err}"), 0, 2),
        ];
        for (script, of_out, of_err) in scripts {
            let output = shell(&script).output().unwrap();
            assert!(output.status.success(), "{script}");
            assert_eq!((output.stdout.len(), output.stderr.len()), (of_out * MUCH, of_err * MUCH), "{script}");
        }
    });
}

/// Nobody can be spawned any more then.
#[test]
fn output_is_had_in_a_shield_during_a_shutdown() {
    for io in [Io::Uring, Io::Epoll] {
        let runtime = Runtime::builder().workers(1).io(io).build().unwrap();
        let cleaner = runtime.run(|| {
            let begun = Arc::new(AtomicBool::new(false));
            let told = begun.clone();
            let cleaner = spawn(move || {
                told.store(true, SeqCst);
                until(cancelled);
                shield(|| shell("echo out; echo err >&2").output())
            });
            // One that has not begun when the runtime is shut down never does.
            until(|| begun.load(SeqCst));
            cleaner
        });
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
        let output = cleaner.join().unwrap().unwrap();
        assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]), "{io:?}");
    }
}

#[test]
fn a_thread_has_output_without_a_runtime() {
    const NAME: &str = "a_thread_has_output_without_a_runtime";
    if !is_child(NAME) {
        let output = in_child(NAME, &[("SINEW_WORKERS", "0")]);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    // Not for want of a try.
    assert!(panics(|| drop(spawn(|| ()))));
    let output = shell("echo out; echo err >&2").output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    let late = timeout(Duration::from_millis(1), || Command::new("sleep").arg("3600").output());
    assert!(late.is_err());
}

#[test]
fn output_needs_no_stack_but_the_callers() {
    const NAME: &str = "output_needs_no_stack_but_the_callers";
    if !is_child(NAME) {
        return by_each_driver(NAME);
    }
    alone(|| {
        sinew::hidden::fail_memory_after(0);
        let output = shell("echo out; echo err >&2").output().unwrap();
        assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    });
}

#[test]
fn a_child_is_killed_and_reaped_by_an_unwinding_too() {
    everywhere(|| {
        for stderr in [Stdio::piped, Stdio::inherit] {
            let child = Command::new("sleep").arg("3600").stdout(Stdio::piped()).stderr(stderr()).spawn().unwrap();
            let id = child.id();
            assert!(panics(|| no_suspend(|| drop(child.wait_with_output()))));
            assert!(!is_there(id), "the child is still there");
        }
    });
}

#[test]
fn a_start_that_takes_long_delays_no_other() {
    // The slow ones wait for a byte before they run their program; they get it when others have run.
    const SLOW: usize = 3;
    everywhere(|| {
        let (begun, tells) = sinew::io::pipe().unwrap();
        let (waits, go) = std::io::pipe().unwrap();
        let (tells, waits) = (OwnedFd::from(tells), OwnedFd::from(waits));
        let (told, awaited) = (tells.as_raw_fd(), waits.as_raw_fd());
        let slow: Vec<_> = (0..SLOW)
            .map(|_| {
                let mut command = Command::new("true");
                // SAFETY: calls of the system, fit for a forked child.
                unsafe {
                    command.pre_exec(move || {
                        libc::write(told, b"x".as_ptr().cast(), 1);
                        libc::read(awaited, [0u8; 1].as_mut_ptr().cast(), 1);
                        Ok(())
                    })
                };
                spawn(move || command.status().unwrap())
            })
            .collect();
        (&begun).read_exact(&mut [0; SLOW]).unwrap();
        for _ in 0..3 {
            assert!(Command::new("true").status().unwrap().success());
        }
        (&go).write_all(&[0; SLOW]).unwrap();
        assert!(slow.into_iter().all(|slow| slow.join().unwrap().success()));
    });
}

/// Claim: a loop that asks again and again whether a child has ended holds nobody of its worker.
#[test]
fn a_loop_of_tries_for_a_child_holds_nobody() {
    const TRIES_MAX: usize = 1000;
    let rt = Runtime::builder().workers(1).build().unwrap();
    rt.run(|| {
        let mut child = shell("read line").stdin(Stdio::piped()).spawn().unwrap();
        let other = spawn(|| ());
        let mut tries = 0;
        while !other.is_finished() {
            assert_eq!(child.try_wait().unwrap(), None);
            tries += 1;
            assert!(tries < TRIES_MAX, "no other fiber has run");
        }
        child.wait().unwrap();
    });
}
