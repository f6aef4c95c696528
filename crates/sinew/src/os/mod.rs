//! What the operating system gives: memory, futex, locks, clock, CPUs, threads, fault signals.
//!
//! Nothing here knows of fibers. Linux only; this folder is the place where another system would be added.

pub(crate) mod alarm;
pub(crate) mod audit;
pub(crate) mod bell;
pub(crate) mod clock;
pub(crate) mod cpu;
pub(crate) mod cpu_list;
pub(crate) mod fault;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod lock;
pub(crate) mod memory;
pub(crate) mod socket;
pub(crate) mod state_lock;
pub(crate) mod thread;
pub(crate) mod topology;

#[cfg(not(target_os = "linux"))]
compile_error!("sinew runs on Linux; other systems need their own files in crates/sinew/src/os");

#[cfg(test)]
mod tests {
    use super::lock::Lock;
    use super::state_lock::StateLock;

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
    /// Some add inside, which also counts in a plain place, some in one step from outside: no addition is lost, and none is made while another is inside.
    #[test]
    fn changes_from_inside_and_from_outside_are_not_lost() {
        const ROUNDS: u32 = 20_000;
        let sum = StateLock::new(0, 0u32);
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut inside = sum.lock();
                        inside.state += 1;
                        *inside += 1;
                    }
                });
                s.spawn(|| {
                    let mut done = 0;
                    while done < ROUNDS {
                        done += u32::from(sum.change(|state| Some(state + 1)).is_some());
                    }
                });
            }
        });
        assert_eq!((sum.state(), *sum.lock()), (4 * ROUNDS, 2 * ROUNDS));
    }
}
