//! What happens when a check fails: the seed is told, and the process ends.
//!
//! At once, from wherever the check stood: after a broken law nothing that follows can be trusted, an orderly end least of all.

use std::any::Any;
use std::fmt;
use std::io::{self, Write};
use std::panic::{self, PanicHookInfo};
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use super::FAILED;

/// What the library says when a scope ends with a panic that nobody took.
pub(super) const SCOPE_PANIC: &str = "a scoped fiber panicked";

/// How to run this again.
pub(super) struct Recipe {
    pub(super) seed: u64,
    /// All arguments but the seed and the round.
    pub(super) arguments: String,
}

static RECIPE: OnceLock<Recipe> = OnceLock::new();
static ROUND: AtomicU64 = AtomicU64::new(0);
static OVER: AtomicBool = AtomicBool::new(false);
static SCOPES_TO_PANIC: AtomicUsize = AtomicUsize::new(0);

/// The payload of a panic that is part of a storm.
pub(super) struct Planned(pub(super) u64);

/// Makes failures tell `recipe`, keeps planned panics silent, and takes every other panic for a failure.
pub(super) fn prepare(recipe: Recipe) {
    let _ = RECIPE.set(recipe);
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !is_planned(info) {
            default(info);
            fail(format_args!("a panic that is no part of the storms"));
        }
    }));
}

fn is_planned(info: &PanicHookInfo<'_>) -> bool {
    let payload: &(dyn Any + Send) = info.payload();
    payload.is::<Planned>() || payload.downcast_ref::<&str>() == Some(&SCOPE_PANIC) && SCOPES_TO_PANIC.load(Relaxed) > 0
}

/// Runs `f`, a scope that is to panic for the sake of its fibers.
pub(super) fn with_scope_panic<R>(f: impl FnOnce() -> R) -> R {
    SCOPES_TO_PANIC.fetch_add(1, Relaxed);
    let result = f();
    SCOPES_TO_PANIC.fetch_sub(1, Relaxed);
    result
}

pub(super) fn enter_round(round: u64) {
    ROUND.store(round, Relaxed);
}

pub(super) fn seed_and_round() -> (u64, u64) {
    (RECIPE.get().map_or(0, |recipe| recipe.seed), ROUND.load(Relaxed))
}

/// Tells what failed and how to run it again, and ends the process.
#[cold]
pub(super) fn fail(what: impl fmt::Display) -> ! {
    // SeqCst, for plainness: of several failures the first speaks.
    if OVER.swap(true, SeqCst) {
        loop {
            std::thread::park();
        }
    }
    let (seed, round) = seed_and_round();
    let arguments = RECIPE.get().map_or("", |recipe| &recipe.arguments);
    let _ = writeln!(
        io::stderr(),
        "\nerror: {what}\nseed {seed}, round {round}\nrun it again: sinew stress{arguments} --seed {seed}\n\
         or only that round, over and over: sinew stress{arguments} --seed {seed} --round {round}"
    );
    process::exit(FAILED.into());
}

/// Fails unless `true`. The text is made only then.
macro_rules! check {
    ($claim:expr, $($text:tt)+) => {
        if !$claim {
            $crate::stress::failure::fail(format_args!($($text)+));
        }
    };
}
pub(super) use check;
