//! A server that ends well: on Ctrl-C or SIGTERM it takes no more connections, finishes the requests it has, and is gone within a limit of time.
//!
//!     cargo run --release --example graceful_shutdown

use std::io::{self, Read, Write};
use std::time::Duration;

use sinew::net::{SocketAddr, TcpListener, TcpStream};
use sinew::signal::{Signal, Signals};
use sinew::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use sinew::sync::{Latch, WaitGroup};

const CLIENTS: usize = 30;
/// How long requests may go on after the signal.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// Requests that have not arrived: the signal is to come when all are under way.
static TO_ARRIVE: Latch = Latch::new(CLIENTS);

/// A request that takes its time. It need not know of signals.
fn attend(mut stream: TcpStream) -> io::Result<()> {
    stream.read_exact(&mut [0; 4])?;
    TO_ARRIVE.count_down();
    sinew::sleep(Duration::from_millis(100));
    stream.write_all(b"done")
}

/// Serves until a signal comes, then drains; how many connections were served to their end.
fn serve(listener: TcpListener, signals: &Signals) -> io::Result<usize> {
    let (served, all) = (&AtomicUsize::new(0), WaitGroup::new());
    sinew::scope(|s| {
        let part = all.clone();
        // The door alone is cancelled with its handle. The connections are fibers of the scope, whoever spawns them there.
        let door = s.spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let part = part.clone();
                s.spawn(move || {
                    served.fetch_add(usize::from(attend(stream).is_ok()), Relaxed);
                    drop(part);
                });
            }
            // The listener is closed here: whoever comes now is refused, and does not wait in vain.
        });
        let signal = signals.wait().inspect(|signal| println!("{signal}: no more connections"));
        door.cancel();
        door.join().unwrap();
        if all.wait_timeout(DRAIN_TIME_MAX).is_err() {
            println!("some requests take too long: they are cut short");
            // With the owner of their scope, which has nothing left to wait for but them.
            sinew::current().cancel();
        }
        signal
    })?;
    Ok(served.load(Relaxed))
}

fn ask(addr: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(addr)?;
    stream.write_all(b"work")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn main() -> io::Result<()> {
    // From here on none of these is missed, and none ends the process by itself.
    let signals = Signals::new([Signal::INT, Signal::TERM])?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    let server = sinew::spawn(move || serve(listener, &signals).unwrap());
    let clients: Vec<_> = (0..CLIENTS).map(|_| sinew::spawn(move || ask(addr).unwrap())).collect();

    TO_ARRIVE.wait();
    sinew::process::Command::new("kill").args(["-s", "TERM", &std::process::id().to_string()]).status()?;
    let served = server.join().unwrap();
    assert!(clients.into_iter().all(|client| client.join().unwrap() == "done"), "a request was cut short");
    println!("{served} requests were finished; the next is refused: {}", ask(addr).unwrap_err());
    assert_eq!(served, CLIENTS);
    Ok(())
}
