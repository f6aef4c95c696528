//! Three stages joined by small channels: a stage that is too fast waits for the next one, so memory stays small however much goes through.

use std::time::Duration;

use sinew::chan::{Receiver, Sender, bounded};

const NUMBERS: u64 = 1_000;

/// Makes numbers, faster than anybody can use them.
fn produce(output: Sender<u64>) {
    for number in 1..=NUMBERS {
        // Waits here while the next stage is busy; fails when that is gone.
        if output.send(number).is_err() {
            return;
        }
    }
}

/// Counts how many steps each takes to reach 1 (the Collatz conjecture).
fn count_steps(input: Receiver<u64>, output: Sender<(u64, u32)>) {
    for number in input {
        let (mut value, mut steps) = (number, 0);
        while value != 1 {
            value = if value % 2 == 0 { value / 2 } else { 3 * value + 1 };
            steps += 1;
        }
        if output.send((number, steps)).is_err() {
            return;
        }
    }
}

fn main() {
    let (numbers, to_count) = bounded(4);
    let (counted, results) = bounded(4);
    let waiting = to_count.clone();
    sinew::spawn(move || produce(numbers));
    sinew::spawn(move || count_steps(to_count, counted));

    let (mut longest, mut most_waiting) = ((0, 0), 0);
    for (number, steps) in results {
        // The last stage is the slowest, now and then.
        if number % 100 == 0 {
            sinew::sleep(Duration::from_millis(1));
        }
        most_waiting = most_waiting.max(waiting.len());
        if steps > longest.1 {
            longest = (number, steps);
        }
    }
    println!("of the numbers up to {NUMBERS}, {} takes the most steps: {}", longest.0, longest.1);
    println!("never more than {most_waiting} numbers waited for the second stage");
    assert_eq!(longest, (871, 178));
    assert!(most_waiting <= 4);
}
