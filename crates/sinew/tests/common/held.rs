//! A worker that is held by a fiber which computes, while some of its fibers wait for a lock, and some who are not its fibers wait behind them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use sinew::chan::oneshot;

use super::{On, until};

type Part = Box<dyn FnOnce() + Send>;

/// Longer than any of them takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Longer than one that waits for a lock that is taken looks after it.
pub const LONG: Duration = Duration::from_millis(5);

/// Fibers that have settled, by the thread of their worker; each plays one part.
pub struct Cast {
    by_thread: HashMap<ThreadId, Vec<oneshot::Sender<Part>>>,
    fibers: Vec<sinew::JoinHandle<()>>,
}

impl Cast {
    /// At least so many of each of both workers; those of one, those of the other.
    pub fn of(runtime: &sinew::Runtime, each: usize) -> (Self, [ThreadId; 2]) {
        let mut cast = Self { by_thread: HashMap::new(), fibers: Vec::new() };
        while cast.by_thread.len() < 2 || cast.by_thread.values().any(|players| players.len() < each) {
            let (place, part) = (oneshot(), oneshot::<Part>());
            cast.fibers.push(runtime.spawn(move || {
                place.0.send(std::thread::current().id()).unwrap();
                if let Ok(part) = part.1.recv() {
                    part();
                }
            }));
            cast.by_thread.entry(place.1.recv().unwrap()).or_default().push(part.0);
        }
        let threads: Vec<_> = cast.by_thread.keys().copied().collect();
        (cast, [threads[0], threads[1]])
    }

    pub fn play(&mut self, thread: ThreadId, part: impl FnOnce() + Send + 'static) {
        self.by_thread.get_mut(&thread).unwrap().pop().unwrap().send(Box::new(part)).ok().unwrap();
    }

    pub fn end(self) {
        drop(self.by_thread);
        self.fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    }
}

/// The caller takes a lock. `first` is played three times by fibers of a worker, which wait for it; then a fiber of the same worker computes, until `second` was played `times` times by others, who waited behind them. The lock is let go of
/// when all wait, and have done so for `taken_for`. `false` if it was given to one that had lost its patience by then, as `is_given` says: it is not free, which is no test of this.
#[must_use]
pub fn behind_a_held_worker<G>(
    on: On,
    times: usize,
    taken_for: Duration,
    take: impl FnOnce() -> G,
    first: impl Fn() + Clone + Send + 'static,
    second: impl Fn() + Clone + Send + 'static,
    is_given: impl Fn() -> bool,
) -> bool {
    let runtime = sinew::Runtime::builder().workers(2).build().unwrap();
    let (mut cast, [held, free]) = Cast::of(&runtime, 5.max(times + 2));
    let [computes, queued, served, given] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
    // All have their parts before the first begins, so that they wait for a moment only.
    let stage = Arc::new(AtomicUsize::new(0));
    let begins = stage.clone();
    cast.play(held, move || {
        while begins.load(SeqCst) == 0 {
            std::hint::spin_loop();
        }
    });
    (0..3).for_each(|_| cast.play(held, first.clone()));
    // Of the same worker, and told after them: when this one computes, they wait.
    let (says, looks, ends) = (computes.clone(), served.clone(), given.clone());
    cast.play(held, move || {
        says.store(1, SeqCst);
        let begun = Instant::now();
        while looks.load(SeqCst) < times && ends.load(SeqCst) != 1 && begun.elapsed() < LIMIT {
            std::hint::spin_loop();
        }
        says.store(2, SeqCst);
    });
    let begins = computes.clone();
    cast.play(free, move || {
        while begins.load(SeqCst) == 0 {
            std::hint::spin_loop();
        }
    });
    let second = {
        let (served, computes, given) = (served.clone(), computes.clone(), given.clone());
        move || {
            second();
            assert!(computes.load(SeqCst) == 1 || given.load(SeqCst) == 1, "it was not served before the worker went on");
            served.fetch_add(1, SeqCst);
        }
    };
    if on == On::Fiber {
        (0..times).for_each(|_| cast.play(free, second.clone()));
    }
    let says = queued.clone();
    cast.play(free, move || says.store(1, SeqCst));
    let guard = take();
    stage.store(1, SeqCst);
    until(|| queued.load(SeqCst) == 1);
    let threads: Vec<_> = if on == On::Thread { (0..times).map(|_| sleeper(second.clone())).collect() } else { Vec::new() };
    let begun = Instant::now();
    until(|| begun.elapsed() >= taken_for);
    given.store(2, SeqCst);
    drop(guard);
    let was_given = is_given();
    given.store(usize::from(was_given), SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    cast.end();
    assert_eq!(served.load(SeqCst), times);
    !was_given
}

/// A thread that sleeps in `part`.
fn sleeper(part: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    let id = Arc::new(AtomicI32::new(0));
    let told = id.clone();
    let thread = std::thread::spawn(move || {
        // SAFETY: it asks for a number.
        told.store(unsafe { libc::gettid() }, SeqCst);
        part();
    });
    let sleeps = |id: i32| std::fs::read_to_string(format!("/proc/self/task/{id}/stat")).is_ok_and(|stat| stat.contains(") S "));
    until(|| id.load(SeqCst) != 0 && sleeps(id.load(SeqCst)));
    thread
}
