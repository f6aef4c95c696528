use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::raw_mutex::RawMutex;
use crate::os::clock;
use crate::rt::runtime::with_workers;
use crate::rt::spawn::Builder;
use crate::scenarios::{explore, in_own_process};
use crate::yield_now;
use std::time::Duration;

/// Fibers of two workers and a thread, some of which give up: one is inside at a time, and none is left behind.
#[test]
fn a_mutex_has_one_owner_and_forgets_nobody() {
    in_own_process!();
    explore(|| {
        with_workers(2, |group| {
            let (lock, inside) = (Arc::new(RawMutex::unlocked()), Arc::new(AtomicUsize::new(0)));
            let enter = {
                let lock = lock.clone();
                move || {
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two are inside");
                    yield_now();
                    inside.fetch_sub(1, SeqCst);
                    lock.release();
                }
            };
            let fibers: Vec<_> = (0..4)
                .map(|i| {
                    let (lock, enter) = (lock.clone(), enter.clone());
                    let body = move || {
                        for _ in 0..2 {
                            if i > 0 {
                                lock.take();
                                enter();
                            } else if lock.take_until(clock::deadline_ns(Duration::from_micros(50))) {
                                enter();
                            }
                        }
                    };
                    Builder::new().spawn_in(group, body).unwrap()
                })
                .collect();
            lock.take();
            enter();
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            assert!(lock.try_take(), "it is left locked");
        });
    });
}
