//! tokio: the multi-thread runtime and the current-thread one, both with all drivers on, as `#[tokio::main]` sets them up.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, Notify, RwLock, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::smol::Async;
use crate::deeds::futures::channels::{Channel, Channels};
use crate::deeds::futures::files::{Block, Files};
use crate::deeds::futures::locks::Locks;
use crate::deeds::futures::servers::{self, Net};
use crate::deeds::futures::{self, Futures};
use crate::deeds::servers::HELLO;
use crate::deeds::{RECEIVED, SELECT_CHANNELS, SENT};
use crate::job::{Job, Reading};
use crate::server::ANY_PORT;

/// Which of the two runtimes.
pub(crate) struct Tokio<const WORKERS: bool>;
/// Workers that steal from each other.
pub(crate) type MultiThread = Tokio<true>;
/// Everything on the thread that blocks on it.
pub(crate) type CurrentThread = Tokio<false>;

impl<const WORKERS: bool> Tokio<WORKERS> {
    fn runtime(job: &Job) -> &'static Runtime {
        let mut builder = if WORKERS { Builder::new_multi_thread() } else { Builder::new_current_thread() };
        if WORKERS {
            builder.worker_threads(job.workers);
        }
        Box::leak(Box::new(builder.enable_all().build().expect("a runtime can be built")))
    }
}

impl<const WORKERS: bool> Futures for Tokio<WORKERS> {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Bell = Notify;

    fn run<T: Send + 'static>(job: &Job, root: impl Future<Output = T> + Send + 'static) -> T {
        // Spawned: what is blocked on directly would not run on a worker.
        let runtime = Self::runtime(job);
        runtime.block_on(runtime.spawn(root)).expect("the root task does not panic")
    }
    fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        tokio::spawn(task)
    }
    fn spawn_apart(task: impl Future<Output = ()> + Send + 'static) {
        thread::spawn(|| Builder::new_current_thread().build().expect("a runtime can be built").block_on(task));
    }
    async fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        handle.await.expect("the task does not panic")
    }
    fn yield_now() -> impl Future<Output = ()> + Send {
        tokio::task::yield_now()
    }
    fn sleep(span: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(span)
    }
    fn bell() -> Notify {
        Notify::new()
    }
    fn ring(bell: &Notify) {
        bell.notify_one();
    }
    fn wait(bell: &Notify) -> impl Future<Output = ()> + Send {
        bell.notified()
    }
}

impl<const WORKERS: bool> Locks for Tokio<WORKERS> {
    type Mutex = Mutex<u64>;
    type RwLock = RwLock<u64>;

    async fn lock(mutex: &Mutex<u64>) -> impl DerefMut<Target = u64> {
        mutex.lock().await
    }
    async fn read(lock: &RwLock<u64>) -> impl Deref<Target = u64> {
        lock.read().await
    }
    async fn write(lock: &RwLock<u64>) -> impl DerefMut<Target = u64> {
        lock.write().await
    }
}

pub(crate) struct Mpsc;

impl Channel for Mpsc {
    type Sender = mpsc::Sender<u64>;
    type Receiver = mpsc::Receiver<u64>;

    fn channel(places: usize) -> (mpsc::Sender<u64>, mpsc::Receiver<u64>) {
        mpsc::channel(places)
    }
    async fn send(sender: &mpsc::Sender<u64>, message: u64) {
        sender.send(message).await.expect(RECEIVED);
    }
    async fn receive(receiver: &mut mpsc::Receiver<u64>) -> Option<u64> {
        receiver.recv().await
    }
}

impl<const WORKERS: bool> Channels for Tokio<WORKERS> {
    type One = Mpsc;
    /// tokio has none; its tutorial names this one.
    type Many = Async;

    async fn select(receivers: [mpsc::Receiver<u64>; SELECT_CHANNELS], messages: usize) -> u64 {
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = receivers;
        let mut sum = 0;
        for _ in 0..messages {
            let message = tokio::select! {
                message = a.recv() => message,
                message = b.recv() => message,
                message = c.recv() => message,
                message = d.recv() => message,
                message = e.recv() => message,
                message = f.recv() => message,
                message = g.recv() => message,
                message = h.recv() => message,
            };
            sum += message.expect(SENT);
        }
        sum
    }
    async fn oneshot(message: u64) -> u64 {
        let (sender, receiver) = oneshot::channel();
        sender.send(message).expect(RECEIVED);
        receiver.await.expect(SENT)
    }
}

impl<const WORKERS: bool> Files for Tokio<WORKERS> {
    async fn read_at(file: Arc<File>, mut block: Block, offset: u64) -> (io::Result<usize>, Block) {
        let read = move || (file.read_at(&mut *block, offset), block);
        tokio::task::spawn_blocking(read).await.expect("a read does not panic")
    }
}

impl<const WORKERS: bool> Net for Tokio<WORKERS> {
    type Listener = TcpListener;
    type Stream = TcpStream;

    async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind(ANY_PORT).await?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }
    async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
    async fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        stream.read(buffer).await
    }
    async fn write_all(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        stream.write_all(bytes).await
    }
    fn detach(task: impl Future<Output = io::Result<()>> + Send + 'static) {
        drop(tokio::spawn(task));
    }
}

/// Does a job about sockets or files.
pub(crate) fn perform_io<const WORKERS: bool>(job: &Job) -> Vec<Reading> {
    if job.deed.is_http() { hellos::<WORKERS>(job) } else { futures::perform_io::<Tokio<WORKERS>>(job) }
}

/// Answers HTTP requests by hyper, as its guide shows.
fn hellos<const WORKERS: bool>(job: &Job) -> Vec<Reading> {
    async fn answer(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        Ok(Response::new(Full::new(Bytes::from_static(HELLO.as_bytes()))))
    }
    servers::serve::<Tokio<WORKERS>, _>(job, |stream| async {
        http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await.map_err(io::Error::other)
    })
}
