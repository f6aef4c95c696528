//! Faults that a sanitizer must report in fibers: without these its silence would prove nothing.
//!
//! Nothing is here in ordinary builds; `.ci/tsan` and `.ci/asan` run it. Each test runs itself again as a child that commits the fault. It expects
//! the kind of report and, in it, the function at fault: a sanitizer that lost its way between stacks would name another, or none.
#![cfg(any(sinew_sanitize = "thread", sinew_sanitize = "address"))]

use std::process::Command;

/// Set for the child that commits the fault.
const CHILD: &str = "SINEW_COMMITS_FAULT";

/// Runs `fault` in a child under `options` of the sanitizer; its report must contain each of `said`.
fn expect_report<F: FnOnce()>(options: &str, said: &[&str], fault: F) {
    if std::env::var_os(CHILD).is_some() {
        return fault();
    }
    // `sanitizers::module::name_of_the_test::{{closure}}`
    let path: Vec<_> = std::any::type_name::<F>().split("::").collect();
    let test = path[1..3].join("::");
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("TSAN_OPTIONS", options)
        .env("ASAN_OPTIONS", options)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "nothing was reported");
    for said in said {
        assert!(text.contains(said), "the report does not say {said:?}:\n{text}");
    }
}

#[cfg(sinew_sanitize = "thread")]
mod thread {
    use std::cell::UnsafeCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    struct Shared {
        plain: UnsafeCell<u64>,
        /// Fibers that are there. Relaxed: it makes nothing happen before anything.
        there: AtomicUsize,
    }

    // SAFETY: none; that is the fault.
    unsafe impl Sync for Shared {}

    #[inline(never)]
    fn planted_write(shared: &Shared) {
        // SAFETY: none; that is the fault.
        unsafe { *shared.plain.get() += 1 };
    }

    /// Two fibers on two workers, each of which holds its thread until the other runs.
    #[test]
    fn a_race_between_fibers_is_reported() {
        super::expect_report("halt_on_error=1", &["ThreadSanitizer: data race", "planted_write"], || {
            let shared = Arc::new(Shared { plain: UnsafeCell::new(0), there: AtomicUsize::new(0) });
            let runtime = sinew::Runtime::builder().workers(2).build().unwrap();
            let racers = [(); 2].map(|()| {
                let shared = shared.clone();
                runtime.spawn(move || {
                    shared.there.fetch_add(1, Relaxed);
                    while shared.there.load(Relaxed) != 2 {
                        std::hint::spin_loop();
                    }
                    // Not before: both could begin on one worker then, and stay there.
                    sinew::yield_now();
                    planted_write(&shared);
                })
            });
            racers.into_iter().for_each(|racer| racer.join().unwrap());
        });
    }

    /// A fiber that is woken by a relaxed flag has not seen what was written before the flag; one that is joined has.
    #[test]
    fn a_flag_instead_of_a_join_is_reported() {
        super::expect_report("halt_on_error=1", &["ThreadSanitizer: data race", "planted_write"], || {
            let shared = Arc::new(Shared { plain: UnsafeCell::new(0), there: AtomicUsize::new(0) });
            let runtime = sinew::Runtime::builder().workers(1).build().unwrap();
            let writer = shared.clone();
            let fiber = runtime.spawn(move || {
                planted_write(&writer);
                writer.there.store(1, Relaxed);
                sinew::park();
            });
            while shared.there.load(Relaxed) != 1 {
                std::hint::spin_loop();
            }
            planted_write(&shared);
            fiber.fiber().unpark();
            fiber.join().unwrap();
        });
    }
}

#[cfg(sinew_sanitize = "address")]
mod address {
    use std::hint::black_box;
    use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

    /// Leaves the address of a local that is gone when it returns. No `black_box` here: a function with inline assembly has no fake frame.
    #[inline(never)]
    fn let_a_local_escape(place: &AtomicPtr<u64>) {
        let mut local = place as *const _ as u64;
        place.store(&mut local, Relaxed);
    }

    #[inline(never)]
    fn planted_read(place: *const u64) -> u64 {
        // SAFETY: none; that is the fault.
        unsafe { place.read_volatile() }
    }

    /// One worker: whoever goes on after a fiber's end stands where it was left.
    fn in_a_fiber(fault: impl FnOnce() + Send) {
        sinew::Runtime::builder().workers(1).build().unwrap().run(fault);
    }

    #[test]
    fn a_use_after_return_over_a_switch_is_reported() {
        super::expect_report("detect_stack_use_after_return=1", &["stack-use-after-return", "planted_read"], || {
            in_a_fiber(|| {
                let place = AtomicPtr::new(std::ptr::null_mut());
                let_a_local_escape(&place);
                sinew::sleep(std::time::Duration::from_millis(1));
                black_box(planted_read(place.load(Relaxed)));
            });
        });
    }

    /// Without fake frames locals are on the fiber's own stack, which is poisoned once the fiber has ended and left it.
    #[test]
    fn a_use_of_a_dead_fibers_stack_is_reported() {
        super::expect_report("detect_stack_use_after_return=0", &["use-after-poison", "planted_read"], || {
            in_a_fiber(|| {
                let child = sinew::spawn(|| {
                    let local = black_box(7u64);
                    sinew::yield_now();
                    black_box(&raw const local) as usize
                });
                let place = child.join().unwrap() as *const u64;
                black_box(planted_read(place));
            });
        });
    }

    #[test]
    fn a_read_beyond_the_heap_is_reported() {
        super::expect_report("", &["heap-buffer-overflow", "planted_read"], || {
            in_a_fiber(|| {
                let words = black_box(vec![1u64; 3]);
                sinew::yield_now();
                black_box(planted_read(words.as_ptr().wrapping_add(3)));
            });
        });
    }

    #[test]
    fn memory_that_a_fiber_lost_is_reported() {
        super::expect_report("", &["LeakSanitizer: detected memory leaks", "planted_loss"], || in_a_fiber(planted_loss));
    }

    #[inline(never)]
    fn planted_loss() {
        std::mem::forget(black_box(vec![1u64; 1_000]));
        sinew::yield_now();
    }
}
