//! A server process that is killed while many fibers read from it and write to it: each of them ends with an error or the end of its stream, none hangs, and no descriptor or fiber is left.

mod common;

use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use common::{await_until, is_child, poll_until};
use sinew::io::Interest;
use sinew::net::unix::{UnixListener, UnixStream};
use sinew::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use sinew::{Builder, Io, JoinHandle, Runtime, RuntimeBuilder};

const NAME: &str = "a_server_that_is_killed_under_load_leaves_nobody_waiting";
const WORKERS: usize = 2;
/// Of each kind, for each of two sorts of sockets.
const CLIENTS: usize = 12;
/// What all together have done before the server is killed.
const ECHOES: usize = 2_000;
/// Longer than any wait of these takes: who is cut short by it hangs.
const LONG: Duration = Duration::from_secs(60);

/// What a client has its host do, said by its first byte.
const ECHO: u8 = b'e';
const NOTHING: u8 = b'n';
const FLOOD: u8 = b'f';

/// A stream of either sort.
trait Stream: Read + Write + AsFd + Send + Sized + 'static {
    type Addr: Clone + Send + Sync + 'static;

    fn connect(addr: &Self::Addr) -> io::Result<Self>;
    fn clone(&self) -> io::Result<Self>;
    fn half_close(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    type Addr = SocketAddr;

    fn connect(addr: &SocketAddr) -> io::Result<Self> {
        TcpStream::connect(addr)
    }

    fn clone(&self) -> io::Result<Self> {
        self.try_clone()
    }

    fn half_close(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for UnixStream {
    type Addr = UnixAddr;

    fn connect(addr: &UnixAddr) -> io::Result<Self> {
        UnixStream::connect_addr(addr)
    }

    fn clone(&self) -> io::Result<Self> {
        self.try_clone()
    }

    fn half_close(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

fn unix_addr(server: u32) -> UnixAddr {
    UnixAddr::from_abstract_name(format!("sinew-killed-{server}")).unwrap()
}

/// Serves until it is killed, or who has started it is no more.
fn serve() {
    std::thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    sinew::run(|| {
        let unix = UnixListener::bind_addr(&unix_addr(std::process::id())).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        println!("\nlistens at {}", tcp.local_addr().unwrap());
        sinew::spawn(move || unix.incoming().for_each(|stream| drop(sinew::spawn(move || host(stream.unwrap())))));
        tcp.incoming().for_each(|stream| drop(sinew::spawn(move || host(stream.unwrap()))));
    });
}

/// What comes of it is its client's matter.
fn host(mut stream: impl Stream) -> io::Result<()> {
    let mut wish = [0];
    stream.read_exact(&mut wish)?;
    match wish[0] {
        ECHO => {
            let mut buffer = [0; 4096];
            loop {
                let read = stream.read(&mut buffer)?;
                stream.write_all(&buffer[..read])?;
            }
        }
        FLOOD => loop {
            stream.write_all(&[7; 4096])?;
        },
        _ => {
            sinew::park();
            Ok(())
        }
    }
}

/// Starts it in a process of its own.
fn start_server() -> (Child, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]).env("SINEW_TEST_CHILD", NAME);
    let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
    let addr = lines.find_map(|line| line.strip_prefix("listens at ").map(|addr| addr.parse().unwrap()));
    (server, addr.expect("the server says where it is"))
}

/// Who does what, until the server is no more.
fn clients<S: Stream>(addr: &S::Addr, echoes: &Arc<AtomicUsize>, begun: &Arc<AtomicUsize>) -> Vec<(&'static str, JoinHandle<io::Error>)> {
    /// What ends a client: an error, or the end of the stream.
    fn end(read: io::Result<usize>) -> io::Result<usize> {
        read.and_then(|read| if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(read) })
    }
    fn to_the_end(mut stream: impl Read) -> io::Error {
        let mut buffer = [0; 1000];
        loop {
            if let Err(error) = end(stream.read(&mut buffer)) {
                return error;
            }
        }
    }
    type Part<S> = fn(S, &AtomicUsize) -> io::Error;
    let parts: [(&str, u8, Part<S>); 8] = [
        ("asks and is answered", ECHO, |mut stream, echoes| {
            loop {
                if let Err(error) = stream.write_all(b"12345").and_then(|()| stream.read_exact(&mut [0; 5])) {
                    return error;
                }
                echoes.fetch_add(1, Relaxed);
            }
        }),
        ("writes and reads at once", ECHO, |mut stream, echoes| {
            let mut reader = stream.clone().unwrap();
            sinew::scope(|s| {
                let written = s.spawn(move || {
                    loop {
                        if let Err(error) = stream.write_vectored(&[IoSlice::new(&[1; 500]), IoSlice::new(&[2; 3000])]) {
                            return error;
                        }
                    }
                });
                let read = loop {
                    match end(reader.read(&mut [0; 3000])) {
                        Ok(_) => echoes.fetch_add(1, Relaxed),
                        Err(error) => break error,
                    };
                };
                assert_ends("the writer beside it", &written.join().unwrap());
                read
            })
        }),
        ("waits for room", NOTHING, |mut stream, _| {
            loop {
                if let Err(error) = stream.write_all(&[3; 100_000]) {
                    return error;
                }
            }
        }),
        ("waits for bytes", NOTHING, |stream, _| to_the_end(stream)),
        ("has half-closed", NOTHING, |stream, _| stream.half_close().err().unwrap_or_else(|| to_the_end(stream))),
        ("polls", NOTHING, |stream, _| sinew::io::poll(&stream, Interest::Readable).err().unwrap_or_else(|| to_the_end(stream))),
        ("is flooded", FLOOD, |stream, _| to_the_end(stream)),
        ("reads not all of a flood", FLOOD, |mut stream, _| {
            let mut writer = stream.clone().unwrap();
            // The host, which waits for room, does not read either.
            let error = loop {
                if let Err(error) = writer.write_all(&[4; 10_000]) {
                    break error;
                }
            };
            // What has come before is there to be read, unless the connection was reset.
            while end(stream.read(&mut [0; 4096])).is_ok() {}
            error
        }),
    ];
    let stays = parts.into_iter().flat_map(|part| std::iter::repeat_n(part, CLIENTS)).map(|(what, wish, part)| {
        let (addr, echoes, begun) = (addr.clone(), echoes.clone(), begun.clone());
        let client = move || {
            let mut stream = S::connect(&addr).unwrap();
            stream.write_all(&[wish]).unwrap();
            begun.fetch_add(1, Relaxed);
            sinew::timeout(LONG, || part(stream, &echoes)).unwrap_or_else(|_| panic!("one that {what} hangs"))
        };
        (what, Builder::new().spawn(client).unwrap())
    });
    let comes_and_goes = (0..CLIENTS).map(|_| {
        let (addr, echoes, begun) = (addr.clone(), echoes.clone(), begun.clone());
        let client = move || {
            begun.fetch_add(1, Relaxed);
            let visit = || {
                let mut stream = S::connect(&addr)?;
                stream.write_all(&[ECHO, 1, 2])?;
                stream.read_exact(&mut [0; 2])
            };
            loop {
                match sinew::timeout(LONG, visit).expect("one that comes and goes hangs") {
                    Ok(()) => echoes.fetch_add(1, Relaxed),
                    Err(error) => return error,
                };
            }
        };
        ("comes and goes", Builder::new().spawn(client).unwrap())
    });
    stays.chain(comes_and_goes).collect()
}

/// Whether it is what the death of the other side comes to.
fn assert_ends(what: &str, error: &io::Error) {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof};
    let allowed = [BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof];
    assert!(allowed.contains(&error.kind()), "one that {what}: {error:?}");
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn flavours() -> Vec<(String, RuntimeBuilder)> {
    let of = |io| Runtime::builder().workers(WORKERS).io(io);
    // SAFETY: these fibers keep nothing of a thread across a suspension.
    let moving = |io| unsafe { of(io).migrate_started_fibers() };
    let both = |io| [(format!("{io:?}"), of(io)), (format!("{io:?}, moving"), moving(io))];
    [Io::Uring, Io::Epoll].into_iter().flat_map(both).collect()
}

#[test]
fn a_server_that_is_killed_under_load_leaves_nobody_waiting() {
    if is_child(NAME) {
        return serve();
    }
    let (before, mut workers) = (open_descriptors(), WORKERS);
    for (flavour, builder) in flavours() {
        let (mut server, addr) = start_server();
        let runtime = builder.build().unwrap();
        runtime.run(|| {
            let (echoes, begun) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let mut all = clients::<TcpStream>(&addr, &echoes, &begun);
            all.extend(clients::<UnixStream>(&unix_addr(server.id()), &echoes, &begun));
            await_until("all to begin", || begun.load(Relaxed) == all.len());
            let so_far = echoes.load(Relaxed);
            await_until("the load", || echoes.load(Relaxed) >= so_far + ECHOES);
            assert!(all.iter().all(|(_, client)| !client.is_finished()), "one has ended before the server has");
            server.kill().unwrap();
            for (what, client) in all {
                assert_ends(what, &client.join().unwrap());
            }
        });
        server.wait().unwrap();
        drop(server);
        // Of those that may move, perhaps spares.
        workers = workers.max(runtime.metrics().workers.len());
        runtime.shutdown_timeout(LONG).unwrap_or_else(|left| panic!("{flavour}: {left:?}"));
        // Those of the workers are closed when their threads are gone, but for one each, by which it was woken: the next runtime's have that.
        poll_until(&format!("{flavour}: descriptors to be closed"), || open_descriptors() <= before + workers);
    }
}
