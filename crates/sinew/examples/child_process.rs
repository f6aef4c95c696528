//! A child process with pipes at both ends: one fiber feeds it, another reads what comes back, and neither keeps other fibers from running. Then one that takes too long.

use std::io::{self, BufRead, BufReader, Write};
use std::time::Duration;

use sinew::process::{Command, Stdio};

const NUMBERS: u32 = 20_000;

/// Has `sort` put numbers in order: more than its pipes hold, so that writing all of them before reading would never end.
fn sort(numbers: impl Iterator<Item = u32> + Send) -> io::Result<Vec<u32>> {
    let mut child = Command::new("sort").arg("-n").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let sorted = sinew::scope(|s| {
        s.spawn(move || {
            let mut input = io::BufWriter::new(input);
            numbers.into_iter().try_for_each(|number| writeln!(input, "{number}"))
            // The input is closed here: that is what `sort` waits for.
        });
        BufReader::new(output).lines().map(|line| Ok(line?.parse().unwrap())).collect()
    });
    assert!(child.wait()?.success());
    sorted
}

fn main() -> io::Result<()> {
    sinew::run(|| {
        let sorted = sort((0..NUMBERS).map(|index| index * 7919 % NUMBERS))?;
        println!("sorted {} numbers, from {} to {}", sorted.len(), sorted[0], sorted[sorted.len() - 1]);
        assert!(sorted.into_iter().eq(0..NUMBERS));

        let mut slow = Command::new("sleep").arg("3600").spawn()?;
        let late = sinew::timeout(Duration::from_millis(10), || slow.wait());
        assert!(late.is_err(), "it sleeps for an hour");
        slow.kill()?;
        println!("one that took too long: {}", slow.wait()?);
        Ok(())
    })
}
