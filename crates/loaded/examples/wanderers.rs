//! A library with Sinew in it, for `tests/accessor.rs` to load.

#[path = "../../sinew/tests/common/wanderers.rs"]
mod wanderers;

/// Lets fibers move until each has found its worker often enough; a claim that fails ends the process.
#[unsafe(no_mangle)]
pub extern "C" fn wander() {
    wanderers::yields();
    wanderers::waits();
}
