//! Fibers that borrow: a text is counted in parts, in place, with nothing cloned and no `Arc`.
//!
//!     cargo run --release --example scoped_borrow

use std::collections::HashMap;

use sinew::sync::Mutex;

const PARTS: usize = 4;

fn main() {
    let text = "the fiber waits the worker does not the worker runs the next fiber ".repeat(1_000);
    let words: Vec<&str> = text.split_whitespace().collect();
    let total: Mutex<HashMap<&str, usize>> = Mutex::new(HashMap::new());
    let mut lengths = [0; PARTS];

    // Each fiber reads a part of `words`, owns one place of `lengths`, and shares `total`: all of them on this stack.
    sinew::scope(|s| {
        for (part, length) in words.chunks(words.len().div_ceil(PARTS)).zip(&mut lengths) {
            let total = &total;
            s.spawn(move || {
                let mut counts = HashMap::new();
                for &word in part {
                    *counts.entry(word).or_insert(0) += 1;
                    *length += word.len();
                }
                let mut total = total.lock();
                for (word, count) in counts {
                    *total.entry(word).or_insert(0) += count;
                }
            });
        }
    });

    // The scope has ended, and with it every borrow.
    let mut counts: Vec<_> = total.into_inner().into_iter().collect();
    counts.sort_by_key(|&(word, count)| (std::cmp::Reverse(count), word));
    for (word, count) in &counts {
        println!("{count:>6}  {word}");
    }
    println!("letters per part: {lengths:?}");
    assert_eq!(counts.iter().map(|(_, count)| count).sum::<usize>(), words.len());
    assert_eq!(lengths.iter().sum::<usize>(), words.iter().map(|word| word.len()).sum());
}
