//! Notes which compiler builds this harness: the report names it.

use std::process::Command;

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let said = Command::new(rustc).arg("--version").output().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    println!("cargo::rustc-env=RIVALS_RUSTC={}", said.unwrap_or_else(|_| "rustc, version unknown".into()));
    println!("cargo::rerun-if-changed=build.rs");
}
