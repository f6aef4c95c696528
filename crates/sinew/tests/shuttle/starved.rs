//! Fibers that find no stack, and get one that another has left.
//!
//! Memory is refused to the whole process, which is the test's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::fiber::stack::{Cache, Class};
use crate::movers::begin;
use crate::os::memory::fail_after;
use crate::rt::runtime::{plain, with_groups};
use crate::rt::spawn::{Builder, Group};
use crate::scenarios::{explore_one_of, in_own_process};
use crate::sched::groups::Groups;
use crate::{JoinHandle, sleep, yield_now};

/// Of another size than those of the reserve, which each runtime takes and leaves.
const STACK_BYTES: usize = 256 * 1024;
const MICRO: Duration = Duration::from_micros(1);

/// Claim: while anything can run, a fiber that found no stack gets one once there is one, whoever left it and whoever tried for it meanwhile. By a fiber that always can run, so that nothing is refused, and others that make do with
/// fewer stacks than they are; in one group, and in two that steal from each other.
#[test]
fn a_stack_that_is_left_reaches_who_waits_for_one() {
    in_own_process!();
    for (count, workers, stacks) in [(1, 2, 1), (2, 1, 1), (2, 2, 1), (1, 3, 2), (2, 1, 2), (2, 2, 2)] {
        let scenario = move || {
            fail_after(u64::MAX);
            with_groups((0..count).map(|_| plain(workers)).collect(), |groups| {
                let ends = Arc::new(AtomicUsize::new(GOES));
                let ticker = begin_ticker(groups, &ends);
                make_stacks(stacks);
                fail_after(0);
                let fibers: Vec<_> =
                    (0..4).map(|i| starve(groups, i % count, if i % 2 == 0 { yield_now as fn() } else { || () })).collect();
                // And one that keeps its stack until all others have ended, where there are two: what is idle beside it is not its worker's alone.
                let ended = Arc::new(AtomicUsize::new(0));
                let others = ended.clone();
                let keeps = move || {
                    while others.load(SeqCst) != 4 {
                        sleep(MICRO);
                        shuttle::thread::yield_now();
                    }
                };
                let keeper = (stacks > 1).then(|| starve(groups, 0, keeps));
                for fiber in fibers {
                    fiber.join().unwrap();
                    ended.fetch_add(1, SeqCst);
                }
                keeper.into_iter().for_each(|keeper| keeper.join().unwrap());
                ends.store(ENDS, SeqCst);
                ticker.join().unwrap();
            });
        };
        explore_one_of(3, scenario);
    }
}

const GOES: usize = 0;
const STARTED: usize = 1;
const ENDS: usize = 2;

/// A fiber that always can run, and has a stack.
fn begin_ticker(groups: &Arc<Groups>, ends: &Arc<AtomicUsize>) -> JoinHandle<()> {
    let its_ends = ends.clone();
    let ticker = begin(groups, move || {
        its_ends.store(STARTED, SeqCst);
        while its_ends.load(SeqCst) != ENDS {
            sleep(MICRO);
            // It goes on at once: else schedules by priority would run nobody but its worker.
            shuttle::thread::yield_now();
        }
    });
    while ends.load(SeqCst) != STARTED {
        shuttle::thread::yield_now();
    }
    ticker
}

/// Has so many stacks of the rare size made, if there are not: what earlier schedules have left is there.
fn make_stacks(count: usize) {
    let mut cache = Cache::new();
    let class = Class::for_bytes(STACK_BYTES).unwrap();
    let stacks: Vec<_> = (0..count).map(|_| cache.take(class).unwrap()).collect();
    stacks.into_iter().for_each(|stack| cache.give(stack));
}

/// Spawns a fiber with a stack of the size that is rare.
fn starve(groups: &Arc<Groups>, group: usize, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    Builder::new().group(Group::foreground(group)).stack_size(STACK_BYTES).spawn_in(groups, body).unwrap()
}
