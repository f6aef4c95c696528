//! Law R1 in a program that is optimised as a whole, as `cargo test --release --test accessor` is.
//!
//! On x86_64 a program reaches its thread-locals by one instruction, so that no address can be kept: there `crates/loaded` is the test that can fail.

#[path = "common/wanderers.rs"]
mod wanderers;

#[test]
fn after_each_yield_a_fiber_finds_its_worker() {
    wanderers::yields();
}

#[test]
fn after_each_kind_of_wait_a_fiber_finds_its_worker() {
    wanderers::waits();
}
