//! The `sinew` command: what the runtime can do, shown on the machine at hand.
//!
//! Here are the subcommands and the values that they share; each has a file of its own. Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly, 130 Ctrl-C cut it short.

mod demo;
mod engine;
mod failure;
mod interrupt;
mod load;
mod proc;
mod serve;
mod stress;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Most fibers that can be asked for: the library has room for 67 million, and some are the command's own.
const FIBERS_MAX: u32 = 67_000_000;
/// Most workers of a runtime; the library's own limit.
const WORKERS_MAX: usize = 4096;
/// Workers if nobody says otherwise, at least; the library's own rule.
const WORKERS_MIN_DEFAULT: usize = 2;
/// Largest stack of a fiber.
const STACK_BYTES_MAX: usize = 1 << 30;

/// Sinew, an M:N stackful fiber runtime: plain blocking code, a million of it.
#[derive(Parser)]
#[command(name = "sinew", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Arguments),
    Serve(serve::Arguments),
    Load(load::Arguments),
    Stress(stress::Arguments),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Demo(arguments) => demo::main(&arguments),
        Command::Serve(arguments) => serve::main(&arguments),
        Command::Load(arguments) => load::main(&arguments),
        Command::Stress(arguments) => stress::main(&arguments),
    }
}

/// One per CPU that this process may use, as the library's own default.
fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(WORKERS_MIN_DEFAULT, WORKERS_MAX)
}

/// A number of fibers: `1000000` or `1_000_000`.
fn fiber_count(text: &str) -> Result<u32, String> {
    let count = whole_number(text).and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=FIBERS_MAX).contains(n));
    count.ok_or_else(|| format!("it must be a whole number from 1 to {FIBERS_MAX}, as in 1000000 or 1_000_000"))
}

/// A number of workers.
fn worker_count(text: &str) -> Result<usize, String> {
    let count = whole_number(text).filter(|n| (1..=WORKERS_MAX).contains(n));
    count.ok_or_else(|| format!("it must be a whole number from 1 to {WORKERS_MAX} (--workers or SINEW_WORKERS)"))
}

/// A size of stacks: plain bytes, or with `K`, `M` or `G` behind.
fn stack_bytes(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((i, 'k' | 'K')) => (&text[..i], 1 << 10),
        Some((i, 'm' | 'M')) => (&text[..i], 1 << 20),
        Some((i, 'g' | 'G')) => (&text[..i], 1 << 30),
        _ => (text, 1),
    };
    let bytes = whole_number(digits).and_then(|n| n.checked_mul(unit)).filter(|n| (1..=STACK_BYTES_MAX).contains(n));
    bytes.ok_or_else(|| "it must be bytes from 1 to 1G, as in 65536, 64K or 1M (--stack or SINEW_STACK_SIZE)".into())
}

/// Digits, in groups if one likes. A sign is no digit.
fn whole_number(text: &str) -> Option<usize> {
    let starts_well = text.starts_with(|c: char| c.is_ascii_digit());
    starts_well.then(|| text.replace('_', "").parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn numbers_may_be_grouped_but_must_be_in_range() {
        assert_eq!(fiber_count("1_000_000"), Ok(1_000_000));
        assert_eq!(fiber_count("67000000"), Ok(FIBERS_MAX));
        for bad in ["0", "67000001", "", "_", "+5", "-5", "1e6", "12 ", "99999999999999999999999"] {
            assert!(fiber_count(bad).is_err(), "{bad:?} was taken for a number of fibers");
        }
        assert_eq!(worker_count("4096"), Ok(WORKERS_MAX));
        assert!(worker_count("4097").is_err());
        assert!(worker_count("0").is_err());
    }

    #[test]
    fn workers_are_limited_as_by_the_library() {
        let refusal = sinew::Runtime::builder().workers(WORKERS_MAX + 1).build().unwrap_err().to_string();
        assert!(refusal.ends_with(&format!("a whole number from 1 to {WORKERS_MAX}")), "{refusal}");
    }

    #[test]
    fn stacks_have_units() {
        assert_eq!(stack_bytes("64K"), Ok(65_536));
        assert_eq!(stack_bytes("64k"), Ok(65_536));
        assert_eq!(stack_bytes("1M"), Ok(1 << 20));
        assert_eq!(stack_bytes("1G"), Ok(1 << 30));
        assert_eq!(stack_bytes("16384"), Ok(16_384));
        for bad in ["0", "0K", "K", "2G", "64KB", "", "64 K", "99999999999999999G"] {
            assert!(stack_bytes(bad).is_err(), "{bad:?} was taken for a size");
        }
    }
}
