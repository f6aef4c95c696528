//! Time-out and retry: a call that may hang gets a limit, failed tries wait longer each time, and the whole has a limit of its own.

use std::io;
use std::time::Duration;

/// Stands for a service that hangs twice, fails once and then answers.
fn fetch(attempt: u32) -> io::Result<String> {
    match attempt {
        1 | 2 => sinew::sleep(Duration::from_secs(3600)),
        3 => return Err(io::Error::other("service unavailable")),
        _ => sinew::sleep(Duration::from_millis(1)),
    }
    if sinew::cancelled() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(format!("the answer of attempt {attempt}")) }
}

/// Tries until one succeeds: each for at most `limit`, with a pause between two that doubles each time. Whatever is around the caller cuts it short.
fn retry<T>(limit: Duration, mut f: impl FnMut(u32) -> io::Result<T>) -> io::Result<T> {
    let mut pause = Duration::from_millis(1);
    for attempt in 1.. {
        let outcome = sinew::timeout(limit, || f(attempt));
        match outcome {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => println!("attempt {attempt}: {error}"),
            Err(elapsed) => println!("attempt {attempt}: {elapsed}"),
        }
        sinew::sleep(pause);
        if sinew::cancelled() {
            break;
        }
        pause *= 2;
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "no attempt succeeded in time"))
}

fn main() {
    sinew::run(|| {
        let answer = sinew::timeout(Duration::from_secs(60), || retry(Duration::from_millis(5), fetch));
        println!("{}", answer.expect("in time").expect("the fourth attempt succeeds"));

        // The limit of the whole ends the retrying, wherever it is: it cuts a wait short, or `retry` finds it passed.
        let hopeless = sinew::timeout(Duration::from_millis(30), || retry(Duration::from_millis(5), |_| fetch(1)));
        let error = hopeless.unwrap_or_else(|elapsed| Err(elapsed.into())).expect_err("it never answers");
        println!("a service that always hangs: {error}");
    });
}
