//! `sinew demo million`, run as users run it.

mod support;

use rustix::process::Signal;
use support::{await_ctrl_c, command, number, row, signal, sinew, start, stderr, stdout, time_ns};

/// Address space that is enough for the process and far too little for the stacks of `STARVED_FIBERS`.
const STARVED_KIB: u64 = 4_000_000;
const STARVED_FIBERS: &str = "40000";

#[test]
fn every_figure_is_in_the_table() {
    let output = sinew(&["demo", "million", "--fibers", "2000"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let table = stdout(&output);
    assert_eq!(row(&table, "fibers")[0], "2,000");
    assert!(number(row(&table, "workers")[0]) >= 2.0);
    assert_eq!(row(&table, "stack")[..2], ["256", "KiB"]);
    // A page of stack at least, and no second one.
    let kib = number(row(&table, "memory per parked fiber")[0]);
    assert!((4.0..8.0).contains(&kib), "{kib} KiB per parked fiber");
    assert!(table.contains("the bound of 4.8 KiB") || table.contains("ABOVE the bound"), "{table}");
    for name in ["mappings (VMAs)", "spawn", "wake", "join", "switch, few fibers", "switch, all fibers"] {
        assert!(number(row(&table, name)[0]) > 0.0, "{name} in:\n{table}");
    }
    assert!(row(&table, "total").contains(&"s"), "{table}");
}

#[test]
fn latencies_are_measured_and_in_order() {
    let output = sinew(&["demo", "million", "--fibers", "2000"]);
    let table = stdout(&output);
    let latencies = ["p50", "p99", "p999", "max"].map(|name| time_ns(&row(&table, &format!("ready to running, {name}"))));
    assert!(latencies.is_sorted(), "{latencies:?}");
    // A fiber that is behind 63 others cannot run at once; and no wake takes longer than all of them together.
    assert!(latencies[0] >= 100.0, "half of the wakes took {} ns", latencies[0]);
    assert!(latencies[3] <= time_ns(&row(&table, "total")) * 1.01 + 1e7, "a wake took longer than the demo:\n{table}");
}

#[test]
fn without_a_terminal_each_phase_says_one_line() {
    let output = sinew(&["demo", "million", "--fibers", "2000", "--workers", "3", "--stack", "64K"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (text, table) = (stderr(&output), stdout(&output));
    let names: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["spawn", "memory", "wake", "switch", "switch", "join"], "{text}");
    assert!(!text.contains('\r') && !text.contains('\x1b'), "{text:?}");
    assert_eq!(row(&table, "workers")[0], "3");
    assert_eq!(row(&table, "stack")[..2], ["64", "KiB"]);
    assert!(table.contains("bound of 4.4 KiB"), "{table}");
}

#[test]
fn a_flock_may_be_empty() {
    let output = sinew(&["demo", "million", "--fibers", "1", "--workers", "4", "--stack", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let table = stdout(&output);
    assert_eq!(row(&table, "fibers")[0], "1");
    assert_eq!(row(&table, "stack")[..2], ["16", "KiB"]);
    assert!(table.contains("no bound is set"), "{table}");
}

#[test]
fn a_bad_value_is_named_with_what_is_allowed() {
    let cases = [
        ("--fibers", "0", "from 1 to 67000000"),
        ("--fibers", "many", "from 1 to 67000000"),
        ("--fibers", "-3", "from 1 to 67000000"),
        ("--stack", "64X", "64K"),
        ("--stack", "2G", "from 1 to 1G"),
        ("--workers", "0", "from 1 to 4096"),
        ("--workers", "4097", "from 1 to 4096"),
    ];
    for (option, value, allowed) in cases {
        let output = sinew(&["demo", "million", option, value]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{option} {value}: {text}");
        assert!(text.contains(&format!("'{value}'")) && text.contains(option) && text.contains(allowed), "{option} {value}: {text}");
        assert_eq!(stdout(&output), "", "{option} {value}");
    }
}

#[test]
fn the_environment_is_read_and_the_option_wins() {
    let demo = |value: &str, arguments: &[&str]| {
        let mut command = command(env!("CARGO_BIN_EXE_sinew"));
        command
            .env("SINEW_WORKERS", value)
            .args(["demo", "million", "--fibers", "10"])
            .args(arguments)
            .output()
            .expect("the binary was built")
    };
    assert_eq!(row(&stdout(&demo("3", &[])), "workers")[0], "3");
    assert_eq!(row(&stdout(&demo("3", &["--workers", "1"])), "workers")[0], "1");
    let refused = demo("several", &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("'several'") && stderr(&refused).contains("SINEW_WORKERS"), "{}", stderr(&refused));
}

#[test]
fn fibers_that_find_no_stack_are_told_of() {
    let limited = format!("ulimit -v {STARVED_KIB} && exec \"$0\" demo million --fibers {STARVED_FIBERS}");
    let output = command("sh").args(["-c", &limited, env!("CARGO_BIN_EXE_sinew")]).output().expect("there is a shell");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(" of 40,000 fibers failed") && text.contains("never ran: no stack for it"), "{text}");
    assert_eq!(stdout(&output), "");
}

#[test]
fn ctrl_c_ends_it_with_a_line() {
    let demo = start(&["demo", "million", "--fibers", "100000"]);
    await_ctrl_c(&demo);
    signal(demo.id(), Signal::INT);
    let output = demo.wait_with_output().unwrap();
    let said = stderr(&output);
    assert_eq!((output.status.code(), stdout(&output)), (Some(130), String::new()), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("cut short at ") && last.contains(" of 100,000 fibers"), "{said}");
}
