//! What the operating system gives: memory, futex, locks, clock, CPUs, threads, fault signals.
//!
//! Nothing here knows of fibers. Linux only; this folder is the place where another system would be added.

pub(crate) mod audit;
pub(crate) mod clock;
pub(crate) mod cpu;
pub(crate) mod fault;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod lock;
pub(crate) mod memory;
pub(crate) mod thread;

#[cfg(not(target_os = "linux"))]
compile_error!("sinew runs on Linux; other systems need their own files in crates/sinew/src/os");

#[cfg(test)]
mod tests {
    use super::lock::Lock;

    #[test]
    fn additions_under_the_lock_are_not_lost() {
        let sum = Lock::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..20_000).for_each(|_| *sum.lock() += 1));
            }
        });
        assert_eq!(*sum.lock(), 80_000);
    }
}
