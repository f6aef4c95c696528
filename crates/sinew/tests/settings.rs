//! What builders and the environment say of workers, groups and CPUs; what is refused, and how; and what the metrics tell of it.

mod common;

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use common::{Gate, cpus_of_workers, in_child, is_child, poll_until};
use sinew::{Builder, Group, JoinHandle, Metrics, Policy, Profile, Queue, Runtime, RuntimeBuilder, Spin};

fn join_all<T>(handles: Vec<JoinHandle<T>>) -> Vec<T> {
    handles.into_iter().map(|h| h.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

/// Sizes of the groups of a runtime.
fn sizes(builder: RuntimeBuilder) -> Vec<usize> {
    builder.build().unwrap().metrics().groups.iter().map(|group| group.workers_max).collect()
}

fn refusal(builder: RuntimeBuilder) -> String {
    let error = builder.build().expect_err("it is to be refused");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    error.to_string()
}

/// Waits until all workers that there are sleep: each has been bound by then.
fn await_sleep(rt: &Runtime) {
    poll_until("all workers to sleep", || rt.metrics().workers.iter().all(|worker| worker.sleeping));
}

/// The CPUs of this process, by the kernel's list.
fn own_cpus() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    };
    list.split(',').flat_map(range).collect()
}

/// Runs `test` in a process of its own, since it looks at all threads.
fn alone(name: &str, variables: &[(&str, &str)], test: impl FnOnce()) {
    if is_child(name) {
        return test();
    }
    let child = in_child(name, variables);
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

#[test]
fn workers_are_divided_into_groups() {
    assert_eq!(sizes(Runtime::builder().workers(5).group_size(2)), [2, 2, 1]);
    assert_eq!(sizes(Runtime::builder().workers(3).group_size(64)), [3]);
    assert_eq!(sizes(Runtime::builder().workers(3).group_size(1).background(2)), [1, 1, 1, 1, 1]);
    assert_eq!(sizes(Runtime::builder().workers(3).profile(Profile::Custom).group_size(2)), [2, 1]);
    // flare's groups, on any machine with one node.
    let one_node = Runtime::builder().workers(4).group_size(1).build().unwrap().metrics().groups[0].node.is_none();
    if one_node {
        assert_eq!(sizes(Runtime::builder().workers(45).profile(Profile::IoHeavy)), [9; 5]);
        assert_eq!(sizes(Runtime::builder().workers(20)), [20]);
    }
    for profile in [Profile::ComputeHeavy, Profile::Neutral, Profile::Io, Profile::IoHeavy] {
        assert_eq!(sizes(Runtime::builder().workers(8).profile(profile)), [8], "{profile:?}");
    }
}

#[test]
fn the_builder_refuses_by_name_and_says_what_is_allowed() {
    let new = Runtime::builder;
    for (builder, said) in [
        (new().workers(0), "RuntimeBuilder::workers(0) is refused: it must be a whole number from 1 to 4096"),
        (new().workers(4097), "RuntimeBuilder::workers(4097) is refused"),
        (new().workers_min(0), "RuntimeBuilder::workers_min(0) is refused: it must be a whole number from 1 to 4096"),
        (new().workers(2).workers_min(3), "RuntimeBuilder::workers_min(3) is refused: it must be at most RuntimeBuilder::workers(2)"),
        (
            new().workers(4).group_size(2).workers_min(3),
            "RuntimeBuilder::workers_min(3) is refused: it must be at most RuntimeBuilder::group_size(2)",
        ),
        (new().group_size(0), "RuntimeBuilder::group_size(0) is refused: it must be a whole number from 1 to 64"),
        (new().group_size(65), "RuntimeBuilder::group_size(65) is refused"),
        (new().background(64), "RuntimeBuilder::background(64) is refused: it must be a whole number from 0 to 63"),
        (new().steal_ratio(usize::MAX), "is refused: it must be a whole number from 0 to 1048576"),
        (new().steal_ratio_across_nodes(1 << 21), "RuntimeBuilder::steal_ratio_across_nodes(2097152) is refused"),
        (new().profile(Profile::Io).group_size(4), "a group size, here 4, goes with Profile::Custom; Profile::Io finds its own"),
        (new().profile(Profile::Custom), "Profile::Custom needs a group size from 1 to 64; none is given"),
        (new().workers(65).group_size(1), "are 65 groups: there may be 64"),
        (new().workers(60).group_size(1).background(5), "are 65 groups: there may be 64; make the groups larger"),
    ] {
        let text = refusal(builder);
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn a_bad_cpu_list_names_its_option_its_part_and_what_is_allowed() {
    let first = own_cpus()[0];
    for (list, said) in [
        ("", &["a number is missing", "0-3,8"][..]),
        ("zero", &["\"zero\"", "not a number", "0-3,8"]),
        ("0,,1", &["in \"\"", "a number is missing"]),
        ("0-", &["in \"0-\"", "a number is missing"]),
        ("3-1", &["in \"3-1\"", "the range ends before it begins"]),
        ("0,99999999999", &["in \"99999999999\"", "too large"]),
        ("0-60000", &["does not exist or is offline", "online are"]),
        ("-60000", &["-60000 counts from the end"]),
        ("1.5", &["in \"1.5\"", "not a number"]),
    ] {
        for (option, builder) in [
            ("RuntimeBuilder::cpus", Runtime::builder().cpus(list)),
            ("RuntimeBuilder::cpus_forbidden", Runtime::builder().cpus_forbidden(list)),
        ] {
            let text = refusal(builder);
            assert!(text.starts_with(&format!("{option} is refused: ")) && text.matches("refused").count() == 1, "{text}");
            assert!(text.contains(&format!("{list:?}")) && said.iter().all(|said| text.contains(said)), "{text}");
        }
    }
    let none = refusal(Runtime::builder().cpus(first.to_string()).cpus_forbidden(first.to_string()));
    assert!(none.starts_with("RuntimeBuilder::cpus_forbidden is refused: ") && none.contains("none is left for the workers"), "{none}");
}

#[test]
fn a_bad_cpu_list_in_the_environment_names_its_variable() {
    const TEST: &str = "a_bad_cpu_list_in_the_environment_names_its_variable";
    if is_child(TEST) {
        eprintln!("refused: {}", refusal(Runtime::builder()));
        // What the builder says wins, also over what could not be read.
        let first = own_cpus()[0].to_string();
        if std::env::var_os("SINEW_CPUS").is_some() {
            Runtime::builder().cpus(first).build().unwrap();
        }
        return;
    }
    for variable in ["SINEW_CPUS", "SINEW_CPUS_FORBIDDEN"] {
        for (value, said) in [("", "0-3,8"), ("0,x", "\"x\""), ("0-60000", "online are"), ("-60000", "counts from the end")] {
            let child = in_child(TEST, &[(variable, value)]);
            let text = String::from_utf8_lossy(&child.stderr);
            assert!(child.status.success(), "{variable}={value}: {text}");
            let line = text.lines().find(|line| line.starts_with("refused: ")).unwrap_or_default();
            assert!(line.contains(&format!("{variable} is refused: ")) && line.contains(said), "{variable}={value}: {text}");
        }
    }
}

#[test]
fn a_variable_that_is_not_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    const TEST: &str = "a_variable_that_is_not_text_is_refused";
    if is_child(TEST) {
        eprintln!("refused: {}", refusal(Runtime::builder()));
        return;
    }
    for variable in ["SINEW_WORKERS", "SINEW_PROFILE", "SINEW_CPUS", "SINEW_CPUS_FORBIDDEN"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
            .env("SINEW_TEST_CHILD", TEST)
            .env(variable, std::ffi::OsStr::from_bytes(b"1\xff"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && text.contains(&format!("refused: {variable}")), "{variable}: {text}");
    }
}

#[test]
fn workers_are_bound_to_the_cpus_of_the_list() {
    alone("workers_are_bound_to_the_cpus_of_the_list", &[], || {
        let own = own_cpus();
        for (list, expected) in [(own[0].to_string(), own[0]), (own[own.len() - 1].to_string(), own[own.len() - 1])] {
            let rt = Runtime::builder().workers(4).group_size(2).workers_min(1).background(1).cpus(list).build().unwrap();
            // All of them, also those that come late.
            rt.run(|| join_all((0..4).map(|_| sinew::spawn(std::thread::yield_now)).collect()));
            // One that has just come has its name before its CPUs.
            poll_until("all workers to be bound", || {
                let workers = cpus_of_workers();
                workers.len() >= 3 && workers.iter().all(|(_, cpus)| *cpus == expected.to_string() || own.len() == 1)
            });
            rt.shutdown_timeout(Duration::from_secs(60)).unwrap();
            poll_until("the workers to be gone", || cpus_of_workers().is_empty());
        }
        // This thread is what it was.
        assert_eq!(own_cpus(), own);
    });
}

/// Claim: where the system does not let threads be bound (a sandbox), who asks for CPUs is told, and who does not is served.
#[test]
fn cpus_that_cannot_be_kept_to_are_refused() {
    alone("cpus_that_cannot_be_kept_to_are_refused", &[], || {
        common::refuse(libc::SYS_sched_setaffinity, libc::EPERM);
        let mut asking = vec![Runtime::builder().workers(1).one_cpu_per_worker(true)];
        if let [first, _, ..] = own_cpus()[..] {
            asking.push(Runtime::builder().cpus(first.to_string()));
        }
        for builder in asking {
            let error = builder.build().unwrap_err();
            let text = error.to_string();
            assert!(
                error.kind() == ErrorKind::PermissionDenied && text.contains("cannot be bound") && text.contains("SINEW_CPUS"),
                "{text}"
            );
        }
        assert_eq!(Runtime::builder().build().unwrap().run(|| 7), 7);
    });
}

#[test]
fn forbidden_cpus_are_left_to_others() {
    alone("forbidden_cpus_are_left_to_others", &[], || {
        let own = own_cpus();
        if own.len() < 2 {
            return;
        }
        let rt = Runtime::builder().workers(2).cpus_forbidden(own[0].to_string()).build().unwrap();
        await_sleep(&rt);
        let workers = cpus_of_workers();
        assert!(
            workers.len() == 2 && workers.iter().all(|(_, cpus)| !cpus.split(['-', ',']).any(|id| id == own[0].to_string())),
            "{workers:?}"
        );
    });
}

#[test]
fn each_worker_has_a_cpu_of_its_own_if_there_are_enough() {
    alone("each_worker_has_a_cpu_of_its_own_if_there_are_enough", &[], || {
        let own = own_cpus();
        let rt = Runtime::builder().workers(own.len().min(64)).one_cpu_per_worker(true).build().unwrap();
        await_sleep(&rt);
        let mut cpus: Vec<String> = cpus_of_workers().into_iter().map(|(_, cpus)| cpus).collect();
        let count = cpus.len();
        cpus.sort();
        cpus.dedup();
        assert!(count == own.len().min(64) && cpus.len() == count && cpus.iter().all(|cpus| cpus.parse::<usize>().is_ok()), "{cpus:?}");
        rt.shutdown_timeout(Duration::from_secs(60)).unwrap();
        let text = refusal(Runtime::builder().workers(own.len() + 1).one_cpu_per_worker(true));
        let said = format!("one CPU per worker is asked for, and {} workers have {} CPUs to use", own.len() + 1, own.len());
        assert!(text.contains(&said), "{text}");
        // Who asks for no number gets what there is.
        assert_eq!(sizes(Runtime::builder().cpus(own[0].to_string()).one_cpu_per_worker(true)), [1]);
        // Those of background groups share what there is.
        let rt = Runtime::builder().workers(own.len().min(64)).background(1).one_cpu_per_worker(true).build().unwrap();
        await_sleep(&rt);
    });
}

/// What of a runtime can be seen from outside.
fn looks(rt: &Runtime) -> String {
    let metrics = rt.metrics();
    let groups: Vec<_> = metrics.groups.iter().map(|g| (g.background, g.workers, g.workers_max, g.thefts.len())).collect();
    format!("{groups:?}")
}

#[test]
fn the_environment_says_what_the_builder_does_not() {
    const TEST: &str = "the_environment_says_what_the_builder_does_not";
    if is_child(TEST) {
        eprintln!("looks: {}", looks(&Runtime::builder().build().unwrap()));
        // What the builder says wins.
        let own = Runtime::builder().workers(6).group_size(3).background(1).workers_min(2).steal_ratio(0);
        eprintln!("own: {}", looks(&own.steal_ratio_across_nodes(0).build().unwrap()));
        return;
    }
    let workers = [("SINEW_WORKERS", "4")];
    for (variables, expected) in [
        (&[("SINEW_GROUP_SIZE", "2")][..], "[(false, 2, 2, 1), (false, 2, 2, 1)]"),
        (&[("SINEW_GROUP_SIZE", " 4 ")], "[(false, 4, 4, 0)]"),
        (&[("SINEW_GROUP_SIZE", "2"), ("SINEW_PROFILE", "custom")], "[(false, 2, 2, 1), (false, 2, 2, 1)]"),
        (&[("SINEW_PROFILE", "io-heavy")], "[(false, 4, 4, 0)]"),
        (&[("SINEW_PROFILE", "compute-heavy")], "[(false, 4, 4, 0)]"),
        (&[("SINEW_WORKERS_MIN", "1")], "[(false, 1, 4, 0)]"),
        (&[("SINEW_BACKGROUND", "1")], "[(false, 4, 4, 0), (true, 1, 4, 0)]"),
        (&[("SINEW_GROUP_SIZE", "2"), ("SINEW_STEAL_RATIO", "0")], "[(false, 2, 2, 0), (false, 2, 2, 0)]"),
        (&[("SINEW_STEAL_RATIO_ACROSS_NODES", "3")], "[(false, 4, 4, 0)]"),
        (&[("SINEW_QUEUE", "shared"), ("SINEW_POLICY", "balance"), ("SINEW_SPIN", "never")], "[(false, 4, 4, 0)]"),
        (&[("SINEW_QUEUE", "stealing"), ("SINEW_POLICY", "affinity"), ("SINEW_SPIN", "adaptive")], "[(false, 4, 4, 0)]"),
        (&[("SINEW_SPIN", "5"), ("SINEW_ONE_CPU_PER_WORKER", "0")], "[(false, 4, 4, 0)]"),
    ] {
        let all: Vec<_> = workers.iter().chain(variables).copied().collect();
        let child = in_child(TEST, &all);
        let text = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{variables:?}: {text}");
        assert!(text.contains(&format!("looks: {expected}\n")), "{variables:?}: {text}");
        assert!(text.contains("own: [(false, 2, 3, 0), (false, 2, 3, 0), (true, 1, 3, 0)]\n"), "{variables:?}: {text}");
    }
}

#[test]
fn a_bad_variable_is_refused_by_name_with_what_is_allowed() {
    const TEST: &str = "a_bad_variable_is_refused_by_name_with_what_is_allowed";
    if is_child(TEST) {
        let text = refusal(Runtime::builder());
        let spawned = Builder::new().spawn(|| ()).unwrap_err();
        assert_eq!(spawned.to_string(), text, "the default runtime says the same");
        eprintln!("refused: {text}");
        return;
    }
    for (option, values, allowed) in OPTIONS {
        let variable = variable(option);
        for value in values {
            let child = in_child(TEST, &[(&variable, value)]);
            let text = String::from_utf8_lossy(&child.stderr);
            assert!(child.status.success(), "{variable}={value}: {text}");
            let expected = format!("refused: {variable}={value:?} is refused: it must be {allowed}");
            assert!(text.lines().any(|line| line == expected), "{variable}={value}: {text}");
        }
    }
}

/// The options of a builder that have a text in the environment for what may be said: values that are refused there, and what is allowed.
#[rustfmt::skip]
const OPTIONS: [(&str, &[&str], &str); 18] = [
    ("workers", &["0", "4097", "many"], "a whole number from 1 to 4096"),
    ("workers_min", &["0", "4097", "few", ""], "a whole number from 1 to 4096"),
    ("spare_workers", &["64", "-1", "some"], "a whole number from 0 to 63"),
    ("profile", &["Io", "io_heavy", ""], "compute-heavy, compute, neutral, io, io-heavy or custom"),
    ("group_size", &["0", "65", "-1"], "a whole number from 1 to 64"),
    ("background", &["64", "one"], "a whole number from 0 to 63"),
    ("queue", &["fifo", "Shared"], "shared or stealing"),
    ("policy", &["fair"], "affinity or balance"),
    ("spin", &["0", "86400000001", "always", "5us"], "never, adaptive, or microseconds from 1 to 86400000000"),
    ("steal_ratio", &["1048577", "never"], "a whole number from 0 to 1048576"),
    ("steal_ratio_across_nodes", &["-1"], "a whole number from 0 to 1048576"),
    ("one_cpu_per_worker", &["yes", "2"], "0 or 1"),
    ("shake", &["on"], "0 or 1"),
    ("stack_size", &["0", "2G", "64KB"], "bytes from 1 to 1G, as in 65536, 64K or 1M"),
    ("deadlock_watch", &["0", "86400001", "ever"], "a whole number of milliseconds from 1 to 86400000"),
    ("blocking_threads", &["0", "32769", "many"], "a whole number from 1 to 32768"),
    ("blocking_idle", &["-1", "1s", "86400001"], "a whole number of milliseconds from 0 to 86400000"),
    ("io", &["kqueue", "Uring"], "uring, epoll or auto"),
];

/// The environment's name of an option.
fn variable(option: &str) -> String {
    format!("SINEW_{}", option.to_uppercase())
}

/// By the source, so that an option that is added later is not forgotten. Closures have no name, and a promise that is unsafe to make is not the environment's to make.
#[test]
fn every_option_of_the_builder_has_a_variable_of_its_name() {
    const SOURCE: &str = include_str!("../src/rt/builder.rs");
    let named = SOURCE.lines().filter_map(|line| line.trim().strip_prefix("pub fn ")?.split_once("(mut self"));
    let mut options: Vec<&str> = named.map(|(name, _)| name).filter(|name| !name.starts_with("on_worker_")).collect();
    let tested = OPTIONS.iter().map(|(option, ..)| *option);
    let mut tested: Vec<&str> = tested.chain(["cpus", "cpus_forbidden"]).collect();
    options.sort_unstable();
    tested.sort_unstable();
    assert_eq!(options, tested);
    // The page of the builder names each of them.
    let page: Vec<&str> = SOURCE.lines().filter(|line| line.starts_with("///")).collect();
    for option in options {
        let variable = variable(option);
        assert!(page.iter().any(|line| line.contains(&format!("`{variable}`"))), "{variable} is not in the documentation");
    }
}

/// The longest time that can be asked for.
const DAY: Duration = Duration::from_secs(86_400);

/// What can be said wrongly by the builder too is refused there in the same words.
#[test]
fn the_builder_and_the_environment_refuse_in_the_same_words() {
    let new = Runtime::builder;
    for (option, builder, value) in [
        ("workers", new().workers(0), "0"),
        ("workers_min", new().workers_min(4097), "4097"),
        ("group_size", new().group_size(65), "65"),
        ("background", new().background(64), "64"),
        ("steal_ratio", new().steal_ratio(1_048_577), "1048577"),
        ("steal_ratio_across_nodes", new().steal_ratio_across_nodes(1 << 21), "2097152"),
        ("stack_size", new().stack_size(0), "0"),
        ("spin", new().spin(Spin::Fixed(Duration::ZERO)), "0"),
        ("spin", new().spin(Spin::Fixed(Duration::from_nanos(999))), "999ns"),
        ("spin", new().spin(Spin::Fixed(DAY + Duration::from_micros(1))), "86400000001"),
        ("spin", new().spin(Spin::Fixed(Duration::MAX)), "18446744073709551615.999999999s"),
        ("deadlock_watch", new().deadlock_watch(Duration::ZERO), "0"),
        ("deadlock_watch", new().deadlock_watch(Duration::from_micros(10)), "10µs"),
        ("deadlock_watch", new().deadlock_watch(DAY + Duration::from_millis(1)), "86400001"),
        ("deadlock_watch", new().deadlock_watch(Duration::MAX), "18446744073709551615.999999999s"),
        ("blocking_idle", new().blocking_idle(DAY + Duration::from_millis(1)), "86400001"),
        ("blocking_idle", new().blocking_idle(Duration::MAX), "18446744073709551615.999999999s"),
        ("blocking_threads", new().blocking_threads(32_769), "32769"),
    ] {
        let (.., allowed) = OPTIONS.iter().find(|(name, ..)| *name == option).unwrap();
        assert_eq!(refusal(builder), format!("RuntimeBuilder::{option}({value}) is refused: it must be {allowed}"));
    }
    // The ends of the ranges are within.
    let least =
        new().workers(1).spin(Spin::Fixed(Duration::from_micros(1))).deadlock_watch(Duration::from_millis(1)).blocking_idle(Duration::ZERO);
    let most = new().workers(1).spin(Spin::Fixed(DAY)).deadlock_watch(DAY).blocking_idle(DAY);
    for builder in [least, most] {
        builder.build().unwrap();
    }
}

#[test]
fn more_workers_to_begin_with_than_there_may_be_are_refused_by_the_names_of_both() {
    const TEST: &str = "more_workers_to_begin_with_than_there_may_be_are_refused_by_the_names_of_both";
    if is_child(TEST) {
        eprintln!("refused: {}", refusal(Runtime::builder()));
        eprintln!("refused: {}", refusal(Runtime::builder().workers(1)));
        // What the builder says wins, and a profile finds its sizes.
        Runtime::builder().workers(2).workers_min(2).profile(Profile::Io).build().unwrap();
        return;
    }
    let workers = "RuntimeBuilder::workers(1)";
    for (variable, value, named) in [("SINEW_WORKERS", "2", r#"SINEW_WORKERS="2""#), ("SINEW_GROUP_SIZE", "1", r#"SINEW_GROUP_SIZE="1""#)] {
        let child = in_child(TEST, &[("SINEW_WORKERS_MIN", "3"), (variable, value)]);
        let text = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{variable}: {text}");
        for most in [named, workers] {
            let expected = format!("refused: SINEW_WORKERS_MIN=\"3\" is refused: it must be at most {most}");
            assert!(text.lines().any(|line| line == expected), "{variable}: {text}");
        }
    }
}

#[test]
fn what_the_builder_says_wins_over_a_profile_or_size_of_the_environment() {
    const TEST: &str = "what_the_builder_says_wins_over_a_profile_or_size_of_the_environment";
    if is_child(TEST) {
        let sizes = [
            sizes(Runtime::builder().workers(4).group_size(2)),
            sizes(Runtime::builder().workers(4).profile(Profile::ComputeHeavy)),
            sizes(Runtime::builder().workers(4).profile(Profile::Custom).group_size(3)),
        ];
        assert_eq!(sizes, [vec![2, 2], vec![4], vec![2, 2]]);
        return;
    }
    for (variable, value) in [("SINEW_PROFILE", "io"), ("SINEW_GROUP_SIZE", "1"), ("SINEW_PROFILE", "custom")] {
        let child = in_child(TEST, &[(variable, value)]);
        assert!(child.status.success(), "{variable}={value}: {}", String::from_utf8_lossy(&child.stderr));
    }
}

#[test]
fn a_size_and_a_profile_of_the_environment_that_do_not_agree_are_both_named() {
    const TEST: &str = "a_size_and_a_profile_of_the_environment_that_do_not_agree_are_both_named";
    if is_child(TEST) {
        eprintln!("refused: {}", refusal(Runtime::builder()));
        return;
    }
    let cases: [(&[(&str, &str)], &str); 2] = [
        (
            &[("SINEW_PROFILE", "io"), ("SINEW_GROUP_SIZE", "2")],
            "SINEW_PROFILE and SINEW_GROUP_SIZE do not go together: a group size, here 2, goes with Profile::Custom; Profile::Io finds its own",
        ),
        (
            &[("SINEW_PROFILE", "custom")],
            "SINEW_PROFILE=\"custom\" is refused: it needs a group size, SINEW_GROUP_SIZE, from 1 to 64, and none is given",
        ),
    ];
    for (variables, expected) in cases {
        let child = in_child(TEST, variables);
        let text = String::from_utf8_lossy(&child.stderr);
        let line = text.lines().find_map(|line| line.strip_prefix("refused: ")).unwrap_or_default();
        assert!(child.status.success(), "{text}");
        assert_eq!(line, expected, "{text}");
    }
}

#[test]
fn one_cpu_per_worker_by_the_environment() {
    alone(
        "one_cpu_per_worker_by_the_environment",
        &[("SINEW_ONE_CPU_PER_WORKER", "1"), ("SINEW_WORKERS", "1"), ("SINEW_CPUS", "-1")],
        || {
            if own_cpus().len() < 2 {
                return;
            }
            let rt = Runtime::builder().build().unwrap();
            await_sleep(&rt);
            let last = own_cpus().pop().unwrap().to_string();
            assert_eq!(cpus_of_workers().into_iter().collect::<Vec<_>>(), [("0.0".to_owned(), last)]);
            let text = refusal(Runtime::builder().workers(2));
            assert!(text.contains("one CPU per worker is asked for, and 2 workers have 1 CPUs"), "{text}");
            Runtime::builder().workers(2).one_cpu_per_worker(false).build().unwrap();
        },
    );
}

/// What must only grow.
fn counters(metrics: &Metrics) -> Vec<u64> {
    let mut all = vec![metrics.spawned, metrics.ended, metrics.overflowed, metrics.wakes_by_nobody];
    all.extend([metrics.wakes_by_spinner, metrics.wakes_by_sleeper]);
    for group in &metrics.groups {
        all.extend([group.workers as u64, group.overflowed, group.wakes_by_spinner, group.wakes_by_sleeper, group.wakes_by_nobody]);
        all.extend([group.switches, group.spun.as_nanos() as u64]);
        all.extend(group.thefts.iter().flat_map(|theft| [theft.tried, theft.won]));
    }
    all
}

/// The same for each worker that there was at both times.
fn counters_of_workers(metrics: &Metrics) -> Vec<[u64; 10]> {
    let of = |w: &sinew::WorkerMetrics| {
        let [spun, slept] = [w.spun, w.slept].map(|time| time.as_nanos() as u64);
        let [spinner, sleeper, nobody] = wakes_of(w);
        [w.switches, w.sleeps, w.thefts, w.steals, spun, slept, w.overflowed, spinner, sleeper, nobody]
    };
    metrics.workers.iter().map(of).collect()
}

/// Wakes by a worker: served by a spinner, by a sleeper, by nobody.
fn wakes_of(worker: &sinew::WorkerMetrics) -> [u64; 3] {
    [worker.wakes_by_spinner, worker.wakes_by_sleeper, worker.wakes_by_nobody]
}

fn assert_sound(metrics: &Metrics) {
    for worker in &metrics.workers {
        assert!((0.0..=1.0).contains(&worker.busy), "busy {}", worker.busy);
        assert!(worker.steals <= worker.thefts && worker.group < metrics.groups.len());
    }
    for (index, group) in metrics.groups.iter().enumerate() {
        let mask = u64::MAX >> (64 - group.workers_max);
        assert!(group.workers <= group.workers_max && (group.spinning | group.sleeping) & !mask == 0, "{group:?}");
        assert!(group.spinning.count_ones() <= 2, "three spin: {group:?}");
        assert!((0.0..=1.0).contains(&group.busy), "busy {}", group.busy);
        assert!(group.thefts.iter().all(|theft| theft.from != index && theft.won <= theft.tried));
    }
    assert_eq!(metrics.queued, metrics.groups.iter().map(|group| group.queued).sum::<usize>());
}

#[test]
fn metrics_are_sound_at_every_moment() {
    for (queue, policy) in [(Queue::Shared, Policy::Balance), (Queue::Stealing, Policy::Affinity)] {
        let rt = Runtime::builder().workers(4).group_size(2).workers_min(1).background(1).queue(queue).policy(policy).build().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        std::thread::scope(|s| {
            let (handle, ends) = (rt.handle(), done.clone());
            let observer = s.spawn(move || {
                let mut before = handle.metrics();
                while !ends.load(SeqCst) {
                    let now = handle.metrics();
                    assert_sound(&now);
                    for (was, is) in counters(&before).into_iter().zip(counters(&now)) {
                        assert!(was <= is, "{was} then {is}: {before:?} {now:?}");
                    }
                    // Workers are listed group by group: while none has come, each is where it was.
                    if before.workers.len() == now.workers.len() {
                        let pairs = counters_of_workers(&before).into_iter().zip(counters_of_workers(&now));
                        pairs.for_each(|(was, is)| assert!(was.iter().zip(is).all(|(was, is)| *was <= is), "{was:?} then {is:?}"));
                    }
                    before = now;
                }
            });
            for round in 0..30u64 {
                rt.run(move || {
                    let body = move |i: u64| match (i + round) % 4 {
                        0 => sinew::sleep(Duration::from_micros(i % 30)),
                        1 => sinew::yield_now(),
                        2 => sinew::spawn(|| ()).join().unwrap(),
                        // What is not quite idle nor quite busy.
                        _ => std::thread::yield_now(),
                    };
                    let place = |i: u64| if i.is_multiple_of(7) { Group::background(0) } else { Group::any() };
                    join_all((0..200).map(|i| Builder::new().group(place(i)).spawn(move || body(i)).unwrap()).collect());
                });
            }
            // bthread's test of its own monitoring: asked for in fibers while others run.
            rt.run(|| join_all((0..1_000).map(|_| sinew::spawn(|| assert_sound(&sinew::metrics()))).collect()));
            done.store(true, SeqCst);
            observer.join().unwrap();
        });
        poll_until("the last end to be counted", || rt.metrics().ended == rt.metrics().spawned);
    }
}

#[test]
fn a_wake_that_finds_nobody_is_counted() {
    let rt = Runtime::builder().workers(1).spin(Spin::Never).build().unwrap();
    poll_until("the worker to sleep", || rt.metrics().groups[0].sleeping == 1);
    let before = rt.metrics();
    let gate = Gate::default();
    let inside = gate.clone();
    let held = rt.spawn(move || inside.hold());
    poll_until("the worker to be held", || gate.held() == 1);
    let fibers: Vec<_> = (0..10).map(|_| rt.spawn(|| ())).collect();
    let after = rt.metrics();
    assert_eq!(after.wakes_by_sleeper - before.wakes_by_sleeper, 1);
    assert_eq!(after.wakes_by_nobody - before.wakes_by_nobody, 10);
    assert_eq!(wakes_of(&after.workers[0]), wakes_of(&before.workers[0]), "a plain thread woke, and no worker");
    assert_eq!((after.queued, after.groups[0].queued, after.groups[0].sleeping, after.groups[0].spinning), (10, 10, 0, 0));
    gate.open();
    held.join().unwrap();
    join_all(fibers);
    // A fiber's own children too.
    rt.run(|| {
        let before = sinew::metrics().wakes_by_nobody;
        let own = wakes_of(&sinew::metrics().workers[0]);
        let children: Vec<_> = (0..5).map(|_| sinew::spawn(|| ())).collect();
        let metrics = sinew::metrics();
        assert_eq!(wakes_of(&metrics.workers[0]), [own[0], own[1], own[2] + 5]);
        assert_eq!((metrics.wakes_by_nobody - before, metrics.workers[0].children, metrics.workers[0].settled), (5, 5, 1));
        join_all(children);
    });
}

/// A fiber wakes the sleeper beside it, in its own group or in the other one. Only what it does in its own counts at its worker; the group whose worker was woken counts it in any case.
#[test]
fn a_wake_is_counted_at_the_worker_that_wakes() {
    for queue in [Queue::Shared, Queue::Stealing] {
        let rt = Runtime::builder().workers(4).group_size(2).queue(queue).spin(Spin::Never).steal_ratio(0).build().unwrap();
        let home = Builder::new().group(Group::foreground(0));
        let handle = rt.handle();
        let waker = move || {
            let me: usize = std::thread::current().name().and_then(|name| name.strip_prefix("sinew-0.")).unwrap().parse().unwrap();
            // One that has just got up to give pages back is not woken: once more, then.
            let woken_in = |group: usize| {
                poll_until("all others to sleep", || handle.metrics().workers.iter().filter(|worker| worker.sleeping).count() == 3);
                let before = handle.metrics();
                let fiber = Builder::new().group(Group::foreground(group)).spawn(|| ()).unwrap();
                let after = handle.metrics();
                fiber.join().unwrap();
                let own = after.workers[me].wakes_by_sleeper - before.workers[me].wakes_by_sleeper;
                (own, after.groups[group].wakes_by_sleeper - before.groups[group].wakes_by_sleeper)
            };
            poll_until("a sleeper of its own group", || woken_in(0) == (1, 1));
            poll_until("a sleeper of the other group", || woken_in(1) == (0, 1));
        };
        rt.run(move || home.spawn(waker).unwrap().join().unwrap());
    }
}

#[test]
fn fibers_that_find_their_workers_queue_full_are_counted_there() {
    let rt = Runtime::builder().workers(1).build().unwrap();
    rt.run(|| join_all((0..1_000).map(|_| sinew::spawn(|| ())).collect()));
    let metrics = rt.metrics();
    assert!(metrics.overflowed > 0);
    assert_eq!((metrics.workers[0].overflowed, metrics.groups[0].overflowed), (metrics.overflowed, metrics.overflowed));
}

#[test]
fn a_busy_worker_is_busy_and_a_sleeping_one_is_not() {
    let rt = Runtime::builder().workers(2).group_size(1).steal_ratio(0).steal_ratio_across_nodes(0).build().unwrap();
    let gate = Gate::default();
    let inside = gate.clone();
    let held = rt.run(move || Builder::new().group(Group::foreground(0)).pinned().spawn(move || inside.hold()).unwrap());
    // As shares of a life that grows: the one comes as near to 1 as one likes, the other to 0.
    poll_until("the one to be busy and the other idle", || {
        let metrics = rt.metrics();
        let is_so = |of: [f64; 2]| of[0] > 0.9 && of[1] < 0.1;
        is_so([0, 1].map(|i| metrics.workers[i].busy)) && is_so([0, 1].map(|i| metrics.groups[i].busy))
    });
    gate.open();
    held.join().unwrap();
}
