//! `sinew demo`, run as users run it, small.

mod support;

use std::path::PathBuf;

use rustix::process::Signal;
use support::{await_ctrl_c, await_some, number, row, signal, sinew, start, stderr, stdout, time_ns};

#[test]
fn every_figure_is_in_the_table() {
    let output = sinew(&["demo", "--connections", "50", "--seconds", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let table = stdout(&output);
    assert_eq!(row(&table, "connections")[0], "50");
    assert!(number(row(&table, "requests")[0]) >= 50.0, "{table}");
    // What was counted in a second is what is done in a second.
    assert_eq!(row(&table, "requests")[0], row(&table, "requests/s")[0]);
    let latencies = ["p50", "p99", "p999", "max"].map(|name| time_ns(&row(&table, &format!("latency, {name}"))));
    assert!(latencies[0] >= 1_000.0 && latencies.is_sorted(), "{latencies:?}");
    assert!(time_ns(&row(&table, "server CPU per request")) > 0.0);
    assert_eq!(row(&table, "server fibers")[0], "51");
    assert!(number(row(&table, "server memory")[0]) > 0.0);
    assert_eq!(row(&table, "errors")[0], "0");
}

#[test]
fn both_drivers_do_it() {
    for driver in ["epoll", "uring"] {
        let output = sinew(&["demo", "--connections", "20", "--seconds", "0.3", "--size", "5000", "--workers", "2", "--io", driver]);
        assert_eq!(output.status.code(), Some(0), "{driver}: {}", stderr(&output));
        let table = stdout(&output);
        assert_eq!(row(&table, "server workers"), ["2", "I/O", "by", driver]);
        assert_eq!(row(&table, "errors")[0], "0", "{table}");
    }
}

#[test]
fn a_bad_value_is_named_with_what_is_allowed() {
    let cases = [
        ("--connections", "0", "from 1 to 1000000"),
        ("--connections", "many", "from 1 to 1000000"),
        ("--seconds", "0", "from 0.1 to 86400"),
        ("--seconds", "NaN", "from 0.1 to 86400"),
        ("--size", "-1", "from 1 to 16777216"),
        ("--workers", "4097", "from 1 to 4096"),
        ("--io", "kqueue", "uring, epoll or auto"),
    ];
    for (option, value, allowed) in cases {
        let output = sinew(&["demo", option, value]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{option} {value}: {text}");
        assert!(text.contains(&format!("'{value}'")) && text.contains(option) && text.contains(allowed), "{option} {value}: {text}");
        assert_eq!(stdout(&output), "", "{option} {value}");
    }
}

#[test]
fn too_few_descriptors_are_told_of_before_anything_is_done() {
    let limited_to = |descriptors: usize, arguments: &str| {
        let shell = format!("ulimit -n {descriptors} && exec \"$0\" demo --seconds 0.2 {arguments}");
        support::command("sh").args(["-c", &shell, env!("CARGO_BIN_EXE_sinew")]).output().expect("there is a shell")
    };
    let limited = |arguments| limited_to(300, arguments);
    let refused = limited("--connections 1000");
    let text = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("1000 connections need 1256 descriptors") && text.contains("ulimit -Hn 1256"), "{text}");
    // Nobody asked for more than there are: it makes do, and says so.
    let reduced = limited("");
    assert_eq!(reduced.status.code(), Some(0), "{}", stderr(&reduced));
    assert!(stderr(&reduced).contains("44 connections instead of 10000"), "{}", stderr(&reduced));
    assert_eq!(row(&stdout(&reduced), "connections")[0], "44");
    // Nor is it told to ask for fewer than one.
    let refused = limited_to(100, "");
    let text = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("the runtime and one connection need 257 descriptors, and this process may have 100: raise"), "{text}");
}

/// Also one that cannot see to it itself, since a signal ends it.
#[test]
fn a_demo_that_is_ended_leaves_no_load_behind() {
    const CONNECTIONS: usize = 20;
    let mut demo = start(&["demo", "--seconds", "120", "--connections", &CONNECTIONS.to_string()]);
    let load = await_some("a load that is at work", || {
        let load = load_of(demo.id())?;
        let open = std::fs::read_dir(proc_of(load).join("fd")).ok()?.count();
        (open > CONNECTIONS).then_some(load)
    });
    signal(demo.id(), Signal::TERM);
    assert!(!demo.wait().unwrap().success());
    await_some("the end of the load", || {
        // Nobody may have waited for it yet.
        let stat = std::fs::read_to_string(proc_of(load).join("stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

/// A terminal sends Ctrl-C to the load too, which must leave it to the demo.
#[test]
fn ctrl_c_cuts_it_short_and_shows_what_was_measured() {
    let demo = start(&["demo", "--seconds", "120", "--connections", "20"]);
    await_ctrl_c(&demo);
    let load = load_of(demo.id()).expect("the load has begun");
    signal(load, Signal::INT);
    signal(demo.id(), Signal::INT);
    let output = demo.wait_with_output().unwrap();
    let (table, said) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(130), "{table}{said}");
    assert_eq!(row(&table, "requests")[1..4], ["cut", "short", "after"], "{table}");
    assert_eq!(row(&table, "errors"), ["0"]);
    assert!(said.starts_with("demo ") && said.lines().count() == 1, "{said}");
    assert!(!proc_of(load).exists(), "the load has outlived the demo");
}

fn proc_of(id: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{id}"))
}

/// The child of a demo.
fn load_of(id: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    children.split_whitespace().next()?.parse().ok()
}
