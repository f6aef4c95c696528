//! may: coroutines with its default stack of 32 KiB and pinned workers. Its channels have no bounds.

use std::io;
use std::net::TcpListener;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use may::coroutine::{self, JoinHandle};
use may::cqueue;
use may::sync::{Mutex, RwLock, Semphore, mpmc, mpsc, spsc};
use may_minihttp::{HttpServer, HttpService, Request, Response};

use crate::deeds::blocking::Blocking;
use crate::deeds::blocking::channels::{Channel, Channels};
use crate::deeds::blocking::locks::Locks;
use crate::deeds::blocking::servers::{self, net_as_in_std};
use crate::deeds::servers::HELLO;
use crate::deeds::{RECEIVED, SELECT_CHANNELS, SENT, UNPOISONED};
use crate::job::{Job, Reading};
use crate::server::{ANY_PORT, announce};

pub(crate) struct May;

impl Blocking for May {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Bell = Semphore;

    fn run<T: Send + 'static>(job: &Job, root: impl FnOnce() -> T + Send + 'static) -> T {
        may::config().set_workers(job.workers);
        Self::join(Self::spawn(root))
    }
    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        // SAFETY: no task of ours uses thread-locals, and none goes deep into its stack.
        unsafe { coroutine::spawn(task) }
    }
    fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        handle.join().expect("the task does not panic")
    }
    fn yield_now() {
        coroutine::yield_now();
    }
    fn sleep(span: Duration) {
        coroutine::sleep(span);
    }
    fn bell() -> Semphore {
        Semphore::new(0)
    }
    fn ring(bell: &Semphore) {
        bell.post();
    }
    fn wait(bell: &Semphore) {
        bell.wait();
    }
}

net_as_in_std!(May, may::net);

/// Serves `job`, for ever.
pub(crate) fn serve(job: &Job) -> Vec<Reading> {
    if job.deed.is_http() { hellos(job) } else { servers::perform::<May>(job) }
}

/// Answers HTTP requests by may_minihttp, as its page shows.
fn hellos(job: &Job) -> Vec<Reading> {
    #[derive(Clone)]
    struct Hello;
    impl HttpService for Hello {
        fn call(&mut self, _: Request, answer: &mut Response) -> io::Result<()> {
            answer.body(HELLO);
            Ok(())
        }
    }
    may::config().set_workers(job.workers);
    // It wants to be told the port: one that was free a moment ago.
    let free = TcpListener::bind(ANY_PORT).and_then(|listener| listener.local_addr()).expect("a port is free");
    let server = HttpServer(Hello).start(free).expect("the port is still free");
    announce(free);
    server.join().expect("the server does not panic");
    panic!("the server has stopped")
}

impl Locks for May {
    type Mutex = Mutex<u64>;
    type RwLock = RwLock<u64>;

    fn lock(mutex: &Mutex<u64>) -> impl DerefMut<Target = u64> {
        mutex.lock().expect(UNPOISONED)
    }
    fn read(lock: &RwLock<u64>) -> impl Deref<Target = u64> {
        lock.read().expect(UNPOISONED)
    }
    fn write(lock: &RwLock<u64>) -> impl DerefMut<Target = u64> {
        lock.write().expect(UNPOISONED)
    }
}

/// With one consumer.
pub(crate) struct Mpsc;

impl Channel for Mpsc {
    type Sender = mpsc::Sender<u64>;
    type Receiver = mpsc::Receiver<u64>;

    fn channel(_: usize) -> (mpsc::Sender<u64>, mpsc::Receiver<u64>) {
        mpsc::channel()
    }
    fn send(sender: &mpsc::Sender<u64>, message: u64) {
        sender.send(message).expect(RECEIVED);
    }
    fn receive(receiver: &mpsc::Receiver<u64>) -> Option<u64> {
        receiver.recv().ok()
    }
}

/// With several.
pub(crate) struct Mpmc;

impl Channel for Mpmc {
    type Sender = mpmc::Sender<u64>;
    type Receiver = mpmc::Receiver<u64>;

    fn channel(_: usize) -> (mpmc::Sender<u64>, mpmc::Receiver<u64>) {
        mpmc::channel()
    }
    fn send(sender: &mpmc::Sender<u64>, message: u64) {
        sender.send(message).expect(RECEIVED);
    }
    fn receive(receiver: &mpmc::Receiver<u64>) -> Option<u64> {
        receiver.recv().ok()
    }
}

impl Channels for May {
    type One = Mpsc;
    type Many = Mpmc;

    /// A queue of events with one coroutine per channel, as `loop_select!` makes it. `select!` may receive from several channels and drop all but one message.
    fn select(receivers: [mpsc::Receiver<u64>; SELECT_CHANNELS], messages: usize) -> u64 {
        cqueue::scope(|queue| {
            for (token, receiver) in receivers.into_iter().enumerate() {
                queue.add(token, move |events| {
                    while let Ok(message) = receiver.recv() {
                        events.send(message as usize);
                    }
                });
            }
            (0..messages).map(|_| queue.poll(None).expect("every channel has a coroutine").extra as u64).sum()
        })
    }
    fn oneshot(message: u64) -> u64 {
        let (sender, receiver) = spsc::channel();
        sender.send(message).expect(RECEIVED);
        receiver.recv().expect(SENT)
    }
}
