//! Models of every protocol file, as it stands in `src`, over loom's atomics: all interleavings up to a bound of preemptions.
//!
//! The files are included by path; `base::atomic` here stands in for the one in `src`. A [`mutant`](base::atomic::mutant) takes one fence or
//! re-check out of a file, so that a model can show that it would notice: those tests expect the model to fail.
//!
//! Bounds: 3 preemptions where a model says nothing, the number it says otherwise. `LOOM_MAX_PREEMPTIONS` overrides them.

// The files are whole; a model uses parts of them.
// `reversed_empty_ranges`: a lock does not spin in a model. `arc_with_non_send_sync`: loom checks who uses its cells.
#![allow(dead_code, missing_docs, clippy::reversed_empty_ranges, clippy::arc_with_non_send_sync)]

mod base;
mod event;
mod fiber;
mod os;
mod rt;
mod sched;
mod sync;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Checks a model completely at `preemptions`.
pub fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(model);
}

/// Checks that a model fails when `mutant` is put into the code.
pub fn check_notices(mutant: &'static str, preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    base::atomic::set_mutant(mutant);
    let failed = catch_unwind(AssertUnwindSafe(|| check(preemptions, model))).is_err();
    base::atomic::set_mutant("");
    assert!(failed, "the model does not notice the mutant {mutant:?}");
}
