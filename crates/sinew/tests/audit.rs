//! The suspension audit: each rule of the contract is broken in a process of its own, and the audit says so; clean code leaves it silent.

mod common;

use std::sync::{LazyLock, Once, OnceLock};

use sinew::{spawn, yield_now};

fn run_in_child(test: &str, audit: &str) -> (bool, String) {
    let output = common::in_child(test, &[("SINEW_AUDIT", audit)]);
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Runs `body` in a child with the audit on, and expects one report that says `what`, or none.
fn expect(test: &str, what: Option<&str>, body: fn()) {
    if common::is_child(test) {
        // Twice: a call stack is reported once.
        (0..2).for_each(|_| spawn(body).join().unwrap());
        return;
    }
    let (ended, text) = run_in_child(test, "1");
    assert!(ended, "{text}");
    if !cfg!(debug_assertions) {
        assert!(text.contains("debug assertions only"), "{text}");
        return;
    }
    assert_eq!(text.matches("sinew audit: fiber #").count(), usize::from(what.is_some()), "{text}");
    if let Some(what) = what {
        assert!(text.contains(&format!("suspends in {what}")) && text.contains("audit::"), "{text}");
    }
}

#[test]
fn a_suspension_in_a_thread_local_initialiser_is_reported() {
    thread_local!(static VALUE: String = {
        sinew::sleep(std::time::Duration::from_millis(1));
        String::from("made")
    });
    expect("a_suspension_in_a_thread_local_initialiser_is_reported", Some("a thread_local! initialiser"), || {
        VALUE.with(|value| assert_eq!(value, "made"));
    });
}

#[test]
fn a_suspension_in_a_once_is_reported() {
    static ONCE: Once = Once::new();
    expect("a_suspension_in_a_once_is_reported", Some("a Once"), || {
        ONCE.call_once(|| sinew::sleep(std::time::Duration::from_millis(1)));
    });
}

#[test]
fn a_suspension_in_a_once_lock_and_a_lazy_lock_is_reported() {
    static CELL: OnceLock<u32> = OnceLock::new();
    expect("a_suspension_in_a_once_lock_and_a_lazy_lock_is_reported", Some("a Once"), || {
        CELL.get_or_init(|| {
            sinew::sleep(std::time::Duration::from_millis(1));
            1
        });
        static LAZY: LazyLock<u32> = LazyLock::new(|| 7);
        assert_eq!(*LAZY, 7);
    });
}

#[test]
fn a_suspension_in_a_panic_hook_is_reported() {
    expect("a_suspension_in_a_panic_hook_is_reported", Some("a panic hook"), || {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| std::panic::set_hook(Box::new(|_| sinew::sleep(std::time::Duration::from_millis(1)))));
        let _ = std::panic::catch_unwind(|| panic!("on purpose"));
    });
}

#[test]
fn a_suspension_in_a_scoped_thread_local_is_reported() {
    scoped_tls::scoped_thread_local!(static SCOPED: u32);
    expect("a_suspension_in_a_scoped_thread_local_is_reported", Some("a scoped thread-local"), || {
        SCOPED.set(&1, || sinew::sleep(std::time::Duration::from_millis(1)));
    });
}

#[test]
fn ordinary_waits_are_not_reported() {
    thread_local!(static COUNT: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
    expect("ordinary_waits_are_not_reported", None, || {
        COUNT.with(|count| count.set(count.get() + 1));
        static CELL: OnceLock<u32> = OnceLock::new();
        CELL.get_or_init(|| 1);
        yield_now();
        sinew::sleep(std::time::Duration::from_millis(1));
        sinew::scope(|s| drop(s.spawn(yield_now)));
        let _ = std::panic::catch_unwind(|| {
            struct Waits;
            impl Drop for Waits {
                fn drop(&mut self) {
                    sinew::sleep(std::time::Duration::from_millis(1));
                }
            }
            let _waits = Waits;
            std::panic::resume_unwind(Box::new(()));
        });
    });
}

#[test]
fn a_bad_value_is_refused() {
    if common::is_child("a_bad_value_is_refused") {
        let error = sinew::Runtime::builder().build().unwrap_err();
        assert!(error.to_string().contains("SINEW_AUDIT=\"yes\" is refused: it must be 0 or 1"), "{error}");
        return;
    }
    let (ended, text) = run_in_child("a_bad_value_is_refused", "yes");
    assert!(ended, "{text}");
}
