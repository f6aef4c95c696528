//! Law R1 under migration: after each move a fiber finds the worker that it is at, and not the one where its function began.
//!
//! It says something when it is optimised as a whole, with link-time optimisation: there the runtime's thread-local could be inlined into the loops below, and its address be kept over a
//! suspension. Included by its path where it is to be so: in `tests/accessor.rs`, and in the library of `crates/loaded`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sinew::{Queue, Runtime};

const FIBERS: usize = 8;
const ROUNDS: usize = if cfg!(debug_assertions) { 300 } else { 5_000 };

/// By thread, as the kernel names it: its worker.
type Known = Mutex<HashMap<i32, usize>>;

/// The kernel's name of the thread that runs the caller. A system call: nothing can be kept of it.
fn kernel_thread() -> i32 {
    // SAFETY: no argument, no pointer.
    unsafe { libc::gettid() }
}

/// Learns whose thread this is, from a fiber that has never moved.
#[inline(never)]
fn learn(known: &Known) {
    let (thread, worker) = (kernel_thread(), sinew::hidden::worker());
    assert_ne!(worker, 0, "in a fiber");
    let before = known.lock().unwrap_or_else(PoisonError::into_inner).insert(thread, worker);
    assert!(before.is_none_or(|before| before == worker), "a thread has two workers");
}

/// What is seen after a wait: thread and worker.
type Seen = Vec<(i32, usize)>;

/// Waits in a loop, in one function, with all that the library lets be inlined in it.
fn wanders(known: &Known, waits: impl Fn(usize)) -> Seen {
    learn(known);
    let mut seen = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let (thread, worker) = (kernel_thread(), sinew::hidden::worker());
        seen.push((thread, worker));
        waits(round);
        let (thread, worker) = (kernel_thread(), sinew::hidden::worker());
        seen.push((thread, worker));
    }
    seen
}

/// Shaken, so that every wait moves.
fn shaken(queue: Queue) -> Runtime {
    // SAFETY: the fibers keep nothing of a thread across a suspension; what they note of it are numbers.
    let builder = unsafe { Runtime::builder().workers(3).queue(queue).migrate_started_fibers() };
    builder.shake(true).build().unwrap()
}

fn check(waits: impl Fn(usize) + Clone + Send + 'static) {
    for queue in [Queue::Shared, Queue::Stealing] {
        let runtime = shaken(queue);
        let known = Arc::new(Known::default());
        let fibers: Vec<_> = (0..FIBERS)
            .map(|_| {
                let (known, waits) = (known.clone(), waits.clone());
                runtime.spawn(move || wanders(&known, waits))
            })
            .collect();
        let all: Vec<Seen> = fibers.into_iter().map(|fiber| fiber.join().unwrap()).collect();
        // Whatever thread has not been learnt by now runs fibers from their begin.
        let known = known.lock().unwrap();
        let mut moves = 0;
        for seen in &all {
            moves += seen.windows(2).filter(|pair| pair[0].0 != pair[1].0).count();
            for (thread, worker) in seen {
                if let Some(of_thread) = known.get(thread) {
                    assert_eq!(worker, of_thread, "{queue:?}: a fiber on thread {thread} takes another worker for its own");
                }
            }
        }
        // By whoever is on it: a thread has one worker, and a worker one thread.
        let mut by_thread = HashMap::new();
        let mut by_worker = HashMap::new();
        for (thread, worker) in all.iter().flatten() {
            assert_eq!(by_thread.entry(thread).or_insert(worker), &worker, "{queue:?}: a thread with two workers");
            assert_eq!(by_worker.entry(worker).or_insert(thread), &thread, "{queue:?}: a worker with two threads");
        }
        assert!(moves > ROUNDS, "{queue:?}: nothing was tested, with {moves} moves");
    }
}

/// Moves by yields alone.
pub fn yields() {
    check(|_| sinew::yield_now());
}

/// Moves in each kind of wait.
pub fn waits() {
    check(|round| match round % 3 {
        0 => {
            let me = sinew::current();
            let waker = sinew::spawn(move || me.unpark());
            sinew::park();
            waker.join().unwrap();
        }
        1 => sinew::yield_now(),
        _ => {
            let (sender, receiver) = sinew::chan::bounded(0);
            let other = sinew::spawn(move || sender.send(1).unwrap());
            assert_eq!(receiver.recv(), Ok(1));
            other.join().unwrap();
        }
    });
}
