//! Tests that need a process of their own run themselves again.

use std::process::{Command, Output, Stdio};

const CHILD: &str = "SINEW_TEST_CHILD";

/// Runs the named test of this binary again in a process of its own, with `variables`, and gives how it ended and what it wrote.
pub fn in_child(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

/// Whether this is the process in which the named test was to run again.
pub fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|child| child == test)
}
