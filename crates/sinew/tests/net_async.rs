//! Our streams under futures: polled by fibers, by tokio, and by both at once.
#![cfg(all(feature = "futures-io", feature = "tokio-io"))]

use sinew::net::unix::UnixStream;
use sinew::net::{TcpListener, TcpStream};

/// A megabyte through a socket, both ends futures of one kind, on fibers.
#[test]
fn futures_io_in_fibers() {
    use futures::io::{AsyncReadExt, AsyncWriteExt};
    sinew::run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = sinew::spawn(move || {
            let mut stream = listener.accept().unwrap().0.into_async();
            sinew::block_on(async {
                let mut got = Vec::new();
                stream.read_to_end(&mut got).await.unwrap();
                stream.write_all(&got).await.unwrap();
                got.len()
            })
        });
        let mut stream = TcpStream::connect(addr).unwrap().into_async();
        let sent: Vec<u8> = (0..1 << 20).map(|i| i as u8).collect();
        let got = sinew::block_on(async {
            stream.write_all(&sent).await.unwrap();
            stream.close().await.unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).await.unwrap();
            got
        });
        assert!(got == sent);
        assert_eq!(server.join().unwrap(), 1 << 20);
    });
}

/// One end is a future of tokio's, the other a fiber that blocks.
#[test]
fn tokio_at_one_end_and_a_fiber_at_the_other() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (near, far) = UnixStream::pair().unwrap();
    let fiber = sinew::spawn(move || {
        use std::io::{Read, Write};
        for _ in 0..100 {
            let mut buf = [0; 8];
            (&far).read_exact(&mut buf).unwrap();
            (&far).write_all(&buf).unwrap();
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.block_on(async {
        let mut near = near.into_async();
        for round in 0..100u64 {
            near.write_all(&round.to_ne_bytes()).await.unwrap();
            let mut buf = [0; 8];
            near.read_exact(&mut buf).await.unwrap();
            assert_eq!(u64::from_ne_bytes(buf), round);
        }
        near.shutdown().await.unwrap();
    });
    fiber.join().unwrap();
}

/// A future that is dropped while it waits leaves no fiber behind.
#[test]
fn a_dropped_read_leaves_nobody_waiting() {
    use futures::FutureExt;
    use futures::io::AsyncReadExt;
    let runtime = sinew::Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        let (near, _far) = UnixStream::pair().unwrap();
        let mut near = near.into_async();
        assert!(sinew::block_on(async { near.read(&mut [0; 4]).now_or_never() }).is_none());
        sinew::yield_now();
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(10)).unwrap();
}

/// A future whose fiber cannot wait is told why, and does not ask for ever.
#[test]
fn a_read_that_cannot_wait_says_why() {
    use futures::io::AsyncReadExt;
    let runtime = sinew::Runtime::builder().workers(1).io(sinew::Io::Epoll).build().unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let (began, begun) = std::sync::mpsc::channel();
    let fiber = runtime.spawn(move || {
        let mut near = near.into_async();
        sinew::block_on(async {
            began.send(()).unwrap();
            near.read(&mut [0; 4]).await
        })
    });
    begun.recv().unwrap();
    // Cancels the fiber that waits in place of the future; `block_on` itself is no cancel point.
    runtime.shutdown_timeout(std::time::Duration::from_secs(10)).unwrap();
    assert!(fiber.join().unwrap().is_err());
    drop(far);
}
