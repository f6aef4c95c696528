//! `sinew stress`, run as users run it.

mod support;

use std::process::{Command, Output};

use rustix::process::Signal;

fn command(arguments: &[&str]) -> Command {
    let mut command = support::command(env!("CARGO_BIN_EXE_sinew"));
    command.env_remove("SINEW_STRESS_LEAK").arg("stress").args(arguments);
    command
}

fn stress(arguments: &[&str]) -> Output {
    stress_leaking("", arguments)
}

/// With a leak that is planted (`stress/leaks.rs`).
fn stress_leaking(leak: &str, arguments: &[&str]) -> Output {
    let mut command = command(arguments);
    if !leak.is_empty() {
        command.env("SINEW_STRESS_LEAK", leak);
    }
    command.output().expect("the binary was built for this test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_short_run_finds_nothing_and_says_so() {
    let output = stress(&["--seconds", "2", "--seed", "7"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
    assert!(out.starts_with("stress: seed 7, 2 s\n"), "{out}");
    assert!(out.lines().any(|line| line.starts_with("round    1  workers ")), "{out}");
    assert!(out.lines().last().is_some_and(|line| line.starts_with("ok: ") && line.contains(" fibers, ")), "{out}");
    assert!(out.lines().all(|line| line.len() <= 80), "{out}");
    // Planned panics are silent.
    assert_eq!(err, "");
}

/// It is not for a fiber to answer for the environment: the variable is named, and no seed.
#[test]
fn a_bad_environment_is_refused_by_name() {
    for (variable, bad) in [("SINEW_WORKERS", "abc"), ("SINEW_IO", "foo"), ("SINEW_STACK_SIZE", "much")] {
        for kind in ["fibers", "io", "sched"] {
            let output = command(&[kind, "--seconds", "1"]).env(variable, bad).output().expect("the binary was built for this test");
            let (out, err) = (text(&output.stdout), text(&output.stderr));
            assert_eq!((output.status.code(), &*out), (Some(2), ""), "{variable}, {kind}: {err}");
            assert!(err.contains(variable) && err.contains(bad) && err.lines().count() == 1, "{variable}, {kind}: {err}");
        }
    }
}

#[test]
fn bad_arguments_are_refused_by_name() {
    for (option, bad) in [("--seconds", "0"), ("--seconds", "-1"), ("--seed", "x"), ("--workers", "65"), ("--workers", "0")] {
        let output = stress(&[option, bad]);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option} {bad}: {err}");
        assert!(err.contains(option) && err.contains("it must be"), "{option} {bad}: {err}");
    }
}

#[test]
fn storms_of_sockets_find_nothing_on_both_drivers() {
    for driver in ["uring", "epoll"] {
        let output = stress(&["io", "--seconds", "4", "--seed", "7", "--io", driver]);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
        let rounds: Vec<_> = out.lines().filter(|line| line.starts_with("round ")).collect();
        assert!(!rounds.is_empty() && rounds.iter().all(|line| line.contains(&format!("  {driver}  "))), "{out}");
        assert!(rounds.iter().any(|line| line.ends_with("  moving") || line.ends_with("  spares")), "no fibers moved: {out}");
        assert!(out.lines().all(|line| line.len() <= 80), "{out}");
        assert!(out.contains(" connections, ") && out.contains(" time-outs, ") && out.contains(" resets"), "{out}");
        assert!(out.lines().last().is_some_and(|line| line.starts_with("ok: ")), "{out}");
        assert_eq!(err, "");
    }
}

/// The checks can fail: a leak that is planted is found, and this is said of it.
fn check_finds(leak: &str, said: &str) {
    let output = stress_leaking(leak, &["io", "--seconds", "4", "--seed", "7"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{leak}: {out}\n{err}");
    assert!(err.contains(said), "{leak}: {out}\n{err}");
}

#[test]
fn a_descriptor_in_ten_connections_that_leaks_is_found() {
    check_finds("descriptors:10", "descriptors are open after a round");
}

#[test]
fn a_buffer_of_each_connection_that_leaks_is_found() {
    check_finds("memory:1", "the heap does not return");
}

#[test]
fn a_fiber_that_does_not_end_is_found() {
    check_finds("fibers:50", "of storm 'leak'");
}

/// Twelve rounds: each queue kind with each policy, with fibers that stay, that may move, and that are moved at every chance.
#[test]
fn storms_over_schedulers_of_every_kind_find_nothing() {
    let output = stress(&["sched", "--seconds", "9", "--seed", "7"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
    for kind in ["Shared Affinity settled", "Stealing Balance moving", "Shared Affinity shaken"] {
        assert!(out.lines().any(|line| line.starts_with("round ") && line.contains(kind)), "{kind}: {out}");
    }
    // Each combination is told of at the end, with what was done.
    for kind in ["Shared Affinity settled", "Stealing Balance moving", "Shared Affinity shaken"] {
        let line = out.lines().find(|line| line.starts_with(kind)).unwrap_or_else(|| panic!("{kind}: {out}"));
        assert!(line.contains("  rounds ") && line.contains("  fibers ") && line.contains("  wakes "), "{line}");
    }
    assert!(out.lines().last().is_some_and(|line| line.starts_with("ok: ")), "{out}");
}

#[test]
fn a_driver_is_for_storms_of_sockets_alone() {
    let output = stress(&["--io", "epoll"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("sinew stress io"), "{}", text(&output.stderr));
}

#[test]
fn ctrl_c_ends_it_with_a_line() {
    let storm = support::start(&["stress", "--seconds", "60", "--seed", "7"]);
    support::await_ctrl_c(&storm);
    support::signal(storm.id(), Signal::INT);
    let output = storm.wait_with_output().unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(err.starts_with("cut short after ") && err.ends_with("no check has failed\n") && err.lines().count() == 1, "{err}");
}
