//! The first program: ten thousand fibers, each an ordinary closure that blocks whenever it likes.

use std::time::{Duration, Instant};

fn main() {
    let begun = Instant::now();
    let sum: u64 = sinew::run(|| {
        let sleepers: Vec<_> = (0..10_000)
            .map(|i| {
                sinew::spawn(move || {
                    sinew::sleep(Duration::from_millis(10));
                    i
                })
            })
            .collect();
        sleepers.into_iter().map(|fiber| fiber.join().unwrap()).sum()
    });
    assert_eq!(sum, 49_995_000);
    println!("10,000 fibers slept 10 ms each, in {:?} altogether", begun.elapsed());
}
