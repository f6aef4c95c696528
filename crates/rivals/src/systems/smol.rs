//! smol: one executor that the asked number of threads run, as `smol::spawn` itself sets it up.

use std::fs::File;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use smol::channel::{self, Receiver, Sender};
use smol::future::race;
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::lock::{Mutex, RwLock, Semaphore};
use smol::net::{TcpListener, TcpStream};
use smol::{Executor, Task, Timer};

use crate::deeds::futures::Futures;
use crate::deeds::futures::channels::{Channel, Channels};
use crate::deeds::futures::files::{Block, Files};
use crate::deeds::futures::locks::Locks;
use crate::deeds::futures::servers::Net;
use crate::deeds::{RECEIVED, SELECT_CHANNELS, SENT};
use crate::job::Job;
use crate::server::ANY_PORT;

static EXECUTOR: Executor<'static> = Executor::new();

pub(crate) struct Smol;

impl Futures for Smol {
    type Handle<T: Send + 'static> = Task<T>;
    type Bell = Semaphore;

    fn run<T: Send + 'static>(job: &Job, root: impl Future<Output = T> + Send + 'static) -> T {
        for _ in 0..job.workers {
            thread::spawn(|| smol::block_on(EXECUTOR.run(pending::<()>())));
        }
        smol::block_on(EXECUTOR.spawn(root))
    }
    fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> Task<T> {
        EXECUTOR.spawn(task)
    }
    fn spawn_apart(task: impl Future<Output = ()> + Send + 'static) {
        thread::spawn(|| smol::block_on(task));
    }
    fn join<T: Send + 'static>(handle: Task<T>) -> impl Future<Output = T> + Send {
        handle
    }
    fn yield_now() -> impl Future<Output = ()> + Send {
        smol::future::yield_now()
    }
    async fn sleep(span: Duration) {
        Timer::after(span).await;
    }
    fn bell() -> Semaphore {
        Semaphore::new(0)
    }
    fn ring(bell: &Semaphore) {
        bell.add_permits(1);
    }
    async fn wait(bell: &Semaphore) {
        bell.acquire().await.forget();
    }
}

impl Locks for Smol {
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

/// The channel of the crate `async-channel`.
pub(crate) struct Async;

impl Channel for Async {
    type Sender = Sender<u64>;
    type Receiver = Receiver<u64>;

    fn channel(places: usize) -> (Sender<u64>, Receiver<u64>) {
        channel::bounded(places)
    }
    async fn send(sender: &Sender<u64>, message: u64) {
        sender.send(message).await.expect(RECEIVED);
    }
    async fn receive(receiver: &mut Receiver<u64>) -> Option<u64> {
        receiver.recv().await.ok()
    }
}

impl Channels for Smol {
    type One = Async;
    type Many = Async;

    /// `race` is what smol has: a future of two futures.
    async fn select([a, b, c, d, e, f, g, h]: [Receiver<u64>; SELECT_CHANNELS], messages: usize) -> u64 {
        let mut sum = 0;
        for _ in 0..messages {
            let first = race(race(a.recv(), b.recv()), race(c.recv(), d.recv()));
            let last = race(race(e.recv(), f.recv()), race(g.recv(), h.recv()));
            sum += race(first, last).await.expect(SENT);
        }
        sum
    }
}

impl Files for Smol {
    async fn read_at(file: Arc<File>, mut block: Block, offset: u64) -> (io::Result<usize>, Block) {
        let read = move || (file.read_at(&mut *block, offset), block);
        smol::unblock(read).await
    }
}

impl Net for Smol {
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
        EXECUTOR.spawn(task).detach();
    }
}
