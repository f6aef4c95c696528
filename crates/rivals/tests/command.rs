//! The command from outside: what it refuses, and that every workload runs on every system.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use serde_json::Value;

fn rivals(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rivals")).args(arguments).output().expect("the harness starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_is_unknown_is_refused_with_what_there_is() {
    for (arguments, wants) in [
        (["run", "--workload", "yield-7"], ["yield-7", "yield-1000x1", "curve"]),
        (["run", "--system", "erlang"], ["erlang", "tokio-mt", "limit-asm"]),
        (["report", "--system", "erlang"], ["erlang", "tokio-mt", "limit-asm"]),
        (["run", "--rounds", "0"], ["0", "1..=1000", "--rounds"]),
        (["run", "--workload=yield-1", "--system=monoio"], ["yield-1", "sinew-shared", "tokio-ct"]),
        (["report", "--workload=echo-50", "--system=sinew"], ["echo-50", "sinew-uring", "monoio"]),
    ] {
        let output = rivals(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = text(&output.stderr);
        wants.iter().for_each(|want| assert!(said.contains(want), "{arguments:?} does not name {want}: {said}"));
        assert!(output.stdout.is_empty(), "{arguments:?} printed results");
    }
}

#[test]
fn the_list_names_workloads_and_systems() {
    let list = text(&rivals(&["list"]).stdout);
    for name in [
        "switch-nested",
        "wake-from-thread",
        "parked-memory",
        "echo-10000",
        "tokio-ct",
        "smol",
        "corosensei",
        "limit-uring-1",
        "chan-ping-pong",
    ] {
        assert!(list.contains(name), "{name} is missing: {list}");
    }
}

/// A reader that goes, as `head -1` does, ends the program without a complaint: the pipe has none from the start.
#[test]
fn output_that_nobody_reads_ends_it_quietly() {
    const PAIR: [&str; 3] = ["--tiny", "--workload=yield-1", "--system=sinew"];
    let with = |more: &[&'static str]| [more, &PAIR].concat();
    for arguments in [vec!["list"], with(&["run"]), with(&["run", "--json"])] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_rivals")).args(&arguments).stdout(writer).output().unwrap();
        let said = text(&output.stderr);
        assert!(!said.contains("panicked") && !said.contains("roken pipe"), "{arguments:?}: {said}");
        assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{arguments:?}: {said}");
    }
}

/// Every workload on every system that it concerns, as small as can be; each row has the promised shape, and none failed but Go where it is not installed, and what a system
/// does not offer.
#[test]
fn every_workload_runs_on_every_system() {
    const FIELDS: [&str; 7] = ["workload", "system", "unit", "median", "min", "max", "rounds"];
    let output = rivals(&["run", "--tiny", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut seen = BTreeSet::new();
    let mut told = BTreeSet::new();
    for line in text(&output.stdout).lines() {
        let mut row: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let run = row.as_object_mut().unwrap().remove("run");
        let (workload, system) = (row["workload"].as_str().unwrap(), row["system"].as_str().unwrap());
        let name = workload.split('/').next().unwrap();
        assert_eq!(told.insert(name.to_owned()), run.is_some(), "the first row of a workload, and no other, tells of the run: {line}");
        for field in ["command", "date", "machine", "load_before", "load_after", "built_by"] {
            assert!(run.as_ref().is_none_or(|run| run[field].is_string()), "{field} is missing: {line}");
        }
        seen.insert(format!("{name} {system}"));
        let absent = if system == "go" { "not installed" } else { "not offered" };
        if row["error"].as_str().is_some_and(|error| error.starts_with(absent)) {
            continue;
        }
        let keys: BTreeSet<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, FIELDS.into(), "{line}");
        assert_eq!(row["rounds"], 1, "{line}");
        let median = row["median"].as_f64().unwrap();
        // In so short a run a task may have all its turns in a row, overtaken by nobody.
        let may_be_zero =
            ["idle-cpu", "parked-memory", "timers-100k", "mutex-100/max-wait/overtaken"].iter().any(|name| workload.starts_with(name));
        assert!(median > 0.0 || may_be_zero && median >= 0.0, "{line}");
    }
    let list = text(&rivals(&["list"]).stdout);
    let expected = list.lines().scan("", |workload, line| {
        if let Some(systems) = line.trim().strip_prefix("on ") {
            return Some(systems.split(", ").map(|system| format!("{workload} {system}")).collect::<Vec<_>>());
        }
        *workload = line.split_whitespace().next().unwrap_or("");
        Some(Vec::new())
    });
    let expected: BTreeSet<_> = expected.flatten().collect();
    assert_eq!(seen, expected);
    assert!(seen.len() > 150, "only {} pairs", seen.len());
}

#[test]
fn two_run_at_once_and_are_held_against_each_other() {
    let output = rivals(&["run", "--tiny", "--json", "--at-once", "--workload=echo-50", "--system=sinew-uring", "--system=tokio-ct"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows[0]["run"]["command"].as_str().unwrap().contains("run --json --at-once"), "{}", rows[0]);
    let median = |system: &str, unit: &str| {
        let is_it = |row: &&Value| row["workload"] == "echo-50" && row["system"] == system && row["unit"] == unit;
        rows.iter().find(is_it).unwrap_or_else(|| panic!("no {unit} of {system}"))["median"].as_f64().unwrap()
    };
    let [ours, theirs] = ["sinew-uring", "tokio-ct"].map(|system| median(system, "us_cpu_per_request"));
    // Of one round.
    assert!((median("sinew-uring/tokio-ct", "x us_cpu_per_request") - ours / theirs).abs() < 1e-9);

    for (arguments, want) in [
        (vec!["run", "--at-once"], "--system"),
        (vec!["run", "--at-once", "--system=sinew"], "two systems, and --system names 1"),
        (vec!["run", "--at-once", "--workload=yield-1", "--system=sinew", "--system=monoio"], "monoio does nothing"),
        (vec!["run", "--at-once", "--workload=yield-1", "--workload=echo-50", "--system=sinew", "--system=monoio"], "not for both"),
    ] {
        let output = rivals(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(want), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_report_can_be_made_from_rows() {
    let folder = std::env::temp_dir().join(format!("rivals-command-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (rows, out) = (folder.join("rows.jsonl"), folder.join("out"));
    let run = rivals(&["run", "--tiny", "--json", "--workload", "yield-1", "--system", "sinew", "--system", "smol"]);
    std::fs::write(&rows, run.stdout).unwrap();
    let report = |rows: &std::path::Path| rivals(&["report", "--from", rows.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(report(&rows).status.success());
    let page = std::fs::read_to_string(out.join("rivals.md")).unwrap();
    assert!(page.contains("| yield-1 |") && page.contains("yield-1-dark.svg"), "{page}");
    for wants in ["run --json --workload yield-1 --system sinew --system smol`", "load average", "report --from out/rivals/results.jsonl`"]
    {
        assert!(page.contains(wants), "{wants} is missing: {page}");
    }
    // What was written says all that the page needs.
    assert!(report(&out.join("rivals/results.jsonl")).status.success());
    assert_eq!(std::fs::read_to_string(out.join("rivals.md")).unwrap(), page);
    assert!(!page.contains(folder.to_str().unwrap()), "a path of this machine is on the page");
    std::fs::write(&rows, "nonsense\n").unwrap();
    let refused = report(&rows);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("line 1"), "{}", text(&refused.stderr));
    std::fs::remove_dir_all(folder).unwrap();
}
