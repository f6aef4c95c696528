//! corosensei: the switch that most stackful Rust libraries use, as its documentation shows it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr;
use std::time::{Duration, Instant};

use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::deeds::{four_deep, paced};
use crate::job::{Deed, Job, Reading};

/// Does `job`, which is a switch.
pub(crate) fn perform(job: &Job) -> Vec<Reading> {
    match job.deed {
        Deed::Switch => paced(job, 1, round_trips),
        Deed::SwitchNested => paced(job, 2, ring),
        other => panic!("a bare switch cannot do {other:?}"),
    }
}

fn round_trips(turns: usize) -> Duration {
    let mut coroutine = Coroutine::<(), (), ()>::new(|yielder, ()| {
        loop {
            yielder.suspend(());
        }
    });
    let start = Instant::now();
    for _ in 0..turns {
        coroutine.resume(());
    }
    let took = start.elapsed();
    std::mem::forget(coroutine); // it is suspended for ever
    took
}

thread_local!(static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) });

#[inline(never)]
fn yield_now() {
    // SAFETY: whoever resumed this coroutine has set its own yielder, which lives on the coroutine's stack.
    unsafe { (*YIELDER.get()).suspend(()) };
}

/// Two coroutines in turn. corosensei cannot hand over directly, so each goes through the loop here.
fn ring(turns: usize) -> Duration {
    struct Member {
        coroutine: Coroutine<(), (), ()>,
        yielder: *const Yielder<(), ()>,
    }
    let member = || Member {
        coroutine: Coroutine::new(move |yielder, ()| {
            YIELDER.set(yielder);
            for _ in 0..turns {
                four_deep(yield_now);
            }
        }),
        yielder: ptr::null(),
    };
    let mut ready = VecDeque::from([member(), member()]);
    let start = Instant::now();
    while let Some(mut next) = ready.pop_front() {
        YIELDER.set(next.yielder);
        if let CoroutineResult::Yield(()) = next.coroutine.resume(()) {
            next.yielder = YIELDER.get();
            ready.push_back(next);
        }
    }
    start.elapsed()
}
