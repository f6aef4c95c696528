//! Sinew: a runtime with the asked number of workers, all else by default or as a `Setting` says.

use std::hint::spin_loop;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use sinew::chan::{self, Receiver, Sender};
use sinew::fs::File;
use sinew::sync::{Mutex, RwLock};
use sinew::{Fiber, JoinHandle, Queue, Runtime, RuntimeBuilder, Spin};

use crate::deeds::blocking::channels::{Channel, Channels};
use crate::deeds::blocking::files::Files;
use crate::deeds::blocking::locks::Locks;
use crate::deeds::blocking::servers::net_as_in_std;
use crate::deeds::blocking::{self, Blocking};
use crate::deeds::raw::Raw;
use crate::deeds::{RECEIVED, SELECT_CHANNELS, SENT};
use crate::job::{Job, Reading};

/// How long a new fiber has to be started by another worker while its spawner keeps its own: a sleeper is awake long before.
const START_SPAN: Duration = Duration::from_millis(1);

/// What else a runtime is told. Another kind of queue, policy or migration is a type of its own, which says so to the builder, and a line in `systems::ALL`.
pub(crate) trait Setting: 'static {
    fn apply(builder: RuntimeBuilder) -> RuntimeBuilder;
}

/// Settled fibers, all by default.
pub(crate) struct Default;

impl Setting for Default {
    fn apply(builder: RuntimeBuilder) -> RuntimeBuilder {
        builder
    }
}

/// Settled fibers, one queue per group: as flare's, but that started fibers stay.
pub(crate) struct Shared;

impl Setting for Shared {
    fn apply(builder: RuntimeBuilder) -> RuntimeBuilder {
        builder.queue(Queue::Shared)
    }
}

/// A queue per worker and fibers that move: bthread's kind.
pub(crate) struct Migratable;

impl Setting for Migratable {
    fn apply(builder: RuntimeBuilder) -> RuntimeBuilder {
        // SAFETY: the deeds keep nothing of a thread across a wait.
        unsafe { builder.queue(Queue::Stealing).migrate_started_fibers() }
    }
}

/// One queue per group and fibers that move: flare's kind.
pub(crate) struct SharedMigratable;

impl Setting for SharedMigratable {
    fn apply(builder: RuntimeBuilder) -> RuntimeBuilder {
        // SAFETY: as above.
        unsafe { builder.queue(Queue::Shared).migrate_started_fibers() }
    }
}

/// As bthread: its kind, nobody polls, and nobody stands in for a worker that is held.
pub(crate) struct LikeBthread;

impl Setting for LikeBthread {
    fn apply(builder: RuntimeBuilder) -> RuntimeBuilder {
        Migratable::apply(builder).spin(Spin::Never).spare_workers(0)
    }
}

/// As flare: its kind, idle workers poll for as long as there, and nobody stands in for one that is held.
pub(crate) struct LikeFlare;

impl Setting for LikeFlare {
    fn apply(builder: RuntimeBuilder) -> RuntimeBuilder {
        /// What flare polls.
        const SPIN: Duration = Duration::from_micros(5);
        SharedMigratable::apply(builder).spin(Spin::Fixed(SPIN)).spare_workers(0)
    }
}

pub(crate) struct Sinew<S = Default>(PhantomData<S>);

impl<S: Setting> Blocking for Sinew<S> {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Bell = Fiber;

    fn run<T: Send + 'static>(job: &Job, root: impl FnOnce() -> T + Send + 'static) -> T {
        let mut builder = S::apply(Runtime::builder().workers(job.workers));
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
    /// Spawns it again until another worker has started it: a started fiber stays.
    fn spawn_apart(task: impl FnOnce() + Send + 'static) {
        let here = thread::current().id();
        let mut back = Some(task);
        while let Some(task) = back {
            let (verdict, verdicts) = chan::bounded(1);
            drop(sinew::spawn(move || {
                let is_here = thread::current().id() == here;
                let (mine, theirs) = if is_here { (None, Some(task)) } else { (Some(task), None) };
                verdict.send(theirs).expect(RECEIVED);
                if let Some(task) = mine {
                    task();
                }
            }));
            let start = Instant::now();
            while verdicts.is_empty() && start.elapsed() < START_SPAN {
                spin_loop();
            }
            back = verdicts.recv().expect(SENT);
        }
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
net_as_in_std!(Sinew<Migratable>, sinew::net);

impl<S: Setting> Files for Sinew<S> {
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

impl<S: Setting> Locks for Sinew<S> {
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

impl<S: Setting> Channels for Sinew<S> {
    type One = Sinew;
    type Many = Sinew;

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
