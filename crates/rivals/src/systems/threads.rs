//! The standard library's threads, locks and channels: what a program does without a runtime. And the locks and channels of crates that threads use.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock, mpsc};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use crate::cpu;
use crate::deeds::blocking::Blocking;
use crate::deeds::blocking::channels::{Channel, Channels};
use crate::deeds::blocking::files::Files;
use crate::deeds::blocking::locks::Locks;
use crate::deeds::blocking::servers::net_as_in_std;
use crate::deeds::{RECEIVED, SELECT_CHANNELS, SENT, UNPOISONED};
use crate::job::Job;

pub(crate) struct Threads;

impl Blocking for Threads {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Bell = Thread;

    fn run<T: Send + 'static>(job: &Job, root: impl FnOnce() -> T + Send + 'static) -> T {
        if job.workers == 1 {
            // "One worker" of threads is one CPU: that on which we are.
            cpu::stay_on(cpu::current());
        }
        Self::join(Self::spawn(root))
    }
    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        thread::spawn(task)
    }
    fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        handle.join().expect("the task does not panic")
    }
    fn yield_now() {
        thread::yield_now();
    }
    fn sleep(span: Duration) {
        thread::sleep(span);
    }
    fn bell() -> Thread {
        thread::current()
    }
    fn ring(bell: &Thread) {
        bell.unpark();
    }
    fn wait(_: &Thread) {
        thread::park();
    }
}

net_as_in_std!(Threads, std::net);

impl Files for Threads {
    type File = File;

    fn open(path: &Path) -> io::Result<File> {
        File::open(path)
    }
    fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buffer, offset)
    }
}

impl Locks for Threads {
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

impl Channels for Threads {
    type One = Mpsc;
    type Many = Book;

    fn select(_: [mpsc::Receiver<u64>; SELECT_CHANNELS], _: usize) -> u64 {
        panic!("the standard library has no select");
    }
}

/// The standard library's channel.
pub(crate) struct Mpsc;

impl Channel for Mpsc {
    type Sender = mpsc::SyncSender<u64>;
    type Receiver = mpsc::Receiver<u64>;

    fn channel(places: usize) -> (mpsc::SyncSender<u64>, mpsc::Receiver<u64>) {
        mpsc::sync_channel(places)
    }
    fn send(sender: &mpsc::SyncSender<u64>, message: u64) {
        sender.send(message).expect(RECEIVED);
    }
    fn receive(receiver: &mpsc::Receiver<u64>) -> Option<u64> {
        receiver.recv().ok()
    }
}

/// Its receiver shared under a lock, as in the thread pool of the Rust book.
pub(crate) struct Book;

impl Channel for Book {
    type Sender = mpsc::SyncSender<u64>;
    type Receiver = Arc<Mutex<mpsc::Receiver<u64>>>;

    fn channel(places: usize) -> (mpsc::SyncSender<u64>, Self::Receiver) {
        let (sender, receiver) = mpsc::sync_channel(places);
        (sender, Arc::new(Mutex::new(receiver)))
    }
    fn send(sender: &mpsc::SyncSender<u64>, message: u64) {
        Mpsc::send(sender, message);
    }
    fn receive(receiver: &Self::Receiver) -> Option<u64> {
        receiver.lock().expect(UNPOISONED).recv().ok()
    }
}

/// The locks of the crate `parking_lot`.
pub(crate) struct ParkingLot;

impl Locks for ParkingLot {
    type Mutex = parking_lot::Mutex<u64>;
    type RwLock = parking_lot::RwLock<u64>;

    fn lock(mutex: &parking_lot::Mutex<u64>) -> impl DerefMut<Target = u64> {
        mutex.lock()
    }
    fn read(lock: &parking_lot::RwLock<u64>) -> impl Deref<Target = u64> {
        lock.read()
    }
    fn write(lock: &parking_lot::RwLock<u64>) -> impl DerefMut<Target = u64> {
        lock.write()
    }
}

/// The channels of the crate `crossbeam-channel`.
pub(crate) struct Crossbeam;

impl Channel for Crossbeam {
    type Sender = crossbeam_channel::Sender<u64>;
    type Receiver = crossbeam_channel::Receiver<u64>;

    fn channel(places: usize) -> (Self::Sender, Self::Receiver) {
        crossbeam_channel::bounded(places)
    }
    fn send(sender: &Self::Sender, message: u64) {
        sender.send(message).expect(RECEIVED);
    }
    fn receive(receiver: &Self::Receiver) -> Option<u64> {
        receiver.recv().ok()
    }
}

impl Channels for Crossbeam {
    type One = Self;
    type Many = Self;

    fn select([a, b, c, d, e, f, g, h]: [crossbeam_channel::Receiver<u64>; SELECT_CHANNELS], messages: usize) -> u64 {
        let receive = || {
            crossbeam_channel::select! {
                recv(a) -> message => message,
                recv(b) -> message => message,
                recv(c) -> message => message,
                recv(d) -> message => message,
                recv(e) -> message => message,
                recv(f) -> message => message,
                recv(g) -> message => message,
                recv(h) -> message => message,
            }
        };
        (0..messages).map(|_| receive().expect(SENT)).sum()
    }
}

/// The channels of the crate `flume`.
pub(crate) struct Flume;

impl Channel for Flume {
    type Sender = flume::Sender<u64>;
    type Receiver = flume::Receiver<u64>;

    fn channel(places: usize) -> (Self::Sender, Self::Receiver) {
        flume::bounded(places)
    }
    fn send(sender: &Self::Sender, message: u64) {
        sender.send(message).expect(RECEIVED);
    }
    fn receive(receiver: &Self::Receiver) -> Option<u64> {
        receiver.recv().ok()
    }
}

impl Channels for Flume {
    type One = Self;
    type Many = Self;

    fn select(receivers: [flume::Receiver<u64>; SELECT_CHANNELS], messages: usize) -> u64 {
        let receive = |_| {
            let none = flume::Selector::new();
            let any = receivers.iter().fold(none, |selector, receiver| selector.recv(receiver, |message| message.expect(SENT)));
            any.wait()
        };
        (0..messages).map(receive).sum()
    }
}
