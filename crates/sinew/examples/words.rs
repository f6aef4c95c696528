//! Borrowing: a scope of fibers counts the words of a text that the caller owns, a line each.

const TEXT: &str = "write plain blocking code
run a million of it
a fiber stays on the thread that first ran it
so what it holds never changes thread";

fn main() {
    let lines: Vec<&str> = TEXT.lines().collect();
    let mut counts = vec![0; lines.len()];
    sinew::scope(|s| {
        for (line, count) in lines.iter().zip(&mut counts) {
            s.spawn(move || *count = line.split_whitespace().count());
        }
    });
    for (line, count) in lines.iter().zip(&counts) {
        println!("{count:>3}  {line}");
    }
    assert_eq!(counts.iter().sum::<usize>(), 26);
}
