//! Many sources, one reader: `select!` takes whatever comes first, keeps a beat, and stops when it is told to.

use std::time::Duration;

use sinew::chan::{Receiver, bounded, never, unbounded};

const BEAT: Duration = Duration::from_millis(2);

/// A source that sends `count` readings, one each `pause`.
fn sensor(name: &'static str, count: u32, pause: Duration) -> Receiver<(&'static str, u32)> {
    let (sender, receiver) = bounded(0);
    sinew::spawn(move || {
        for reading in 0..count {
            sinew::sleep(pause);
            if sender.send((name, reading)).is_err() {
                return;
            }
        }
    });
    receiver
}

fn main() {
    let mut quick = sensor("quick", 20, Duration::from_micros(300));
    let mut slow = sensor("slow", 4, Duration::from_millis(3));
    let (stop, stopped) = unbounded::<()>();
    let (mut readings, mut quiet, mut ended) = (Vec::new(), 0, 0);
    loop {
        sinew::select! {
            recv(quick) -> reading => match reading {
                Ok(reading) => readings.push(reading),
                // A channel that has ended would fire again and again: rest it.
                Err(_) => {
                    ended += 1;
                    quick = never();
                }
            },
            recv(slow) -> reading => match reading {
                Ok(reading) => readings.push(reading),
                Err(_) => {
                    ended += 1;
                    slow = never();
                }
            },
            recv(stopped) -> _ => break,
            default(BEAT) => quiet += 1,
        }
        if ended == 2 {
            stop.send(()).expect("we hold the other end");
        }
    }
    let of = |name| readings.iter().filter(|reading| reading.0 == name).count();
    println!("{} readings, {} quick and {} slow; {quiet} times nothing came for {BEAT:?}", readings.len(), of("quick"), of("slow"));
    assert_eq!((of("quick"), of("slow")), (20, 4));
}
