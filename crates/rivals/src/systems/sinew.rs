//! Sinew: settled fibers, a runtime with the asked number of workers, all else by default.

use std::io;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::time::Duration;

use sinew::chan::{self, Receiver, Sender};
use sinew::fs::File;
use sinew::sync::{Mutex, RwLock};
use sinew::{Fiber, JoinHandle, Runtime};

use crate::deeds::blocking::channels::{Channel, Channels};
use crate::deeds::blocking::files::Files;
use crate::deeds::blocking::locks::Locks;
use crate::deeds::blocking::servers::net_as_in_std;
use crate::deeds::blocking::{self, Blocking};
use crate::deeds::raw::Raw;
use crate::deeds::{RECEIVED, SELECT_CHANNELS, SENT};
use crate::job::{Job, Reading};

pub(crate) struct Sinew;

impl Blocking for Sinew {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Bell = Fiber;

    fn run<T: Send + 'static>(job: &Job, root: impl FnOnce() -> T + Send + 'static) -> T {
        let mut builder = Runtime::builder().workers(job.workers);
        if job.stack_kib > 0 {
            builder = builder.stack_size(job.stack_kib << 10);
        }
        let runtime = builder.build().expect("a runtime can be built");
        // Leaked: its drop would wait for fibers that wait for ever.
        Box::leak(Box::new(runtime)).run(root)
    }
    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        sinew::spawn(task)
    }
    fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        handle.join().expect("the task does not panic")
    }
    fn yield_now() {
        sinew::yield_now();
    }
    fn sleep(span: Duration) {
        sinew::sleep(span);
    }
    fn bell() -> Fiber {
        sinew::current()
    }
    fn ring(bell: &Fiber) {
        bell.unpark();
    }
    fn wait(_: &Fiber) {
        sinew::park();
    }
}

net_as_in_std!(Sinew, sinew::net);

impl Files for Sinew {
    type File = File;

    fn open(path: &Path) -> io::Result<File> {
        File::open(path)
    }
    fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buffer, offset)
    }
}

/// Does `job`, I/O by io_uring.
pub(crate) fn perform_uring(job: &Job) -> Vec<Reading> {
    perform("uring", job)
}

/// Does `job`, I/O by epoll.
pub(crate) fn perform_epoll(job: &Job) -> Vec<Reading> {
    perform("epoll", job)
}

fn perform(driver: &str, job: &Job) -> Vec<Reading> {
    // SAFETY: this process has one thread yet, so nobody reads the environment meanwhile.
    unsafe { std::env::set_var("SINEW_IO", driver) };
    blocking::perform_io::<Sinew>(job)
}

impl Locks for Sinew {
    type Mutex = Mutex<u64>;
    type RwLock = RwLock<u64>;

    fn lock(mutex: &Mutex<u64>) -> impl DerefMut<Target = u64> {
        mutex.lock()
    }
    fn read(lock: &RwLock<u64>) -> impl Deref<Target = u64> {
        lock.read()
    }
    fn write(lock: &RwLock<u64>) -> impl DerefMut<Target = u64> {
        lock.write()
    }
}

impl Channel for Sinew {
    type Sender = Sender<u64>;
    type Receiver = Receiver<u64>;

    fn channel(places: usize) -> (Sender<u64>, Receiver<u64>) {
        chan::bounded(places)
    }
    fn send(sender: &Sender<u64>, message: u64) {
        sender.send(message).expect(RECEIVED);
    }
    fn receive(receiver: &Receiver<u64>) -> Option<u64> {
        receiver.recv().ok()
    }
}

impl Channels for Sinew {
    type One = Self;
    type Many = Self;

    fn select([a, b, c, d, e, f, g, h]: [Receiver<u64>; SELECT_CHANNELS], messages: usize) -> u64 {
        let receive = || {
            sinew::select! {
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
    fn oneshot(message: u64) -> u64 {
        let (sender, receiver) = chan::oneshot();
        sender.send(message).expect(RECEIVED);
        receiver.recv().expect(SENT)
    }
}

/// The library's own switch file, bare.
pub(crate) struct Switch;

impl Raw for Switch {
    unsafe fn prepare(bottom: usize, top: usize, root: unsafe extern "C" fn(*mut u8) -> !, arg: *mut u8) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { sinew::hidden::switch::prepare(bottom, top, root, arg) }
    }
    #[inline(always)]
    unsafe fn switch(save: *mut *mut u8, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { sinew::hidden::switch::switch(save, to) }
    }
}
