//! Two threads that hand a number to and fro in one word of memory and never sleep: what the way between two cores costs.
//!
//! Each is kept on a CPU of its own: where the kernel leaves both on one, as it does at first while others are busy, a round takes two of its time slices.

use std::hint::spin_loop;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::{Duration, Instant};

use crate::cpu;
use crate::deeds::paced;
use crate::job::{Job, Reading};

/// Does `job`, which is a ping-pong.
pub(crate) fn perform(job: &Job) -> Vec<Reading> {
    let cpus = cpu::allowed();
    paced(job, 1, |turns| round_trips(turns, [cpus[0], cpus[1 % cpus.len()]]))
}

fn round_trips(turns: usize, [ping, pong]: [usize; 2]) -> Duration {
    let word = AtomicU64::new(0);
    let ends = 2 * turns as u64;
    thread::scope(|scope| {
        scope.spawn(|| {
            cpu::stay_on(pong);
            play(&word, 1, ends);
        });
        cpu::stay_on(ping);
        let start = Instant::now();
        play(&word, 0, ends);
        await_number(&word, ends);
        start.elapsed()
    })
}

/// Answers every other number with the next one, from `first` on.
fn play(word: &AtomicU64, first: u64, end: u64) {
    for number in (first..end).step_by(2) {
        await_number(word, number);
        word.store(number + 1, Release); // meets `await_number` of the other
    }
}

fn await_number(word: &AtomicU64, number: u64) {
    // Acquire: meets `play` of the other.
    while word.load(Acquire) != number {
        spin_loop();
    }
}
