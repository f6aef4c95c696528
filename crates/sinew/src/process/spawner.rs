//! The threads that start children for fibers.
//!
//! A start takes a worker a millisecond or so: the system copies the process, or holds the caller until the new program is loaded. So it is made elsewhere. Not in the blocking pool:
//! a child that asked to die with its parent (`PR_SET_PDEATHSIG`; sandboxes do so) dies with the thread that started it, and threads of a pool come and go. These stay as long as the
//! process. Most programs have one of them: another is started when an order comes while all are busy, so that a start that takes long (`pre_exec`, a program on a slow file system) holds up no other.

use std::collections::VecDeque;
use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::os::thread;
use crate::rt::ask::ask;
use crate::rt::context::fiber;

/// Threads, at most: so many starts may take long at a time before others wait for them. Arbitrary: a burst of starts leaves so many behind.
const THREADS_MAX: usize = 8;

/// A child to be started, and where to tell of it. The command goes back with the answer.
struct Order {
    command: Command,
    answer: Sender<(Command, io::Result<Child>)>,
}

/// What is to be done, and by how many.
struct Orders {
    queue: VecDeque<Order>,
    threads: usize,
    /// Those of them that wait for an order.
    idle: usize,
}

static ORDERS: Mutex<Orders> = Mutex::new(Orders { queue: VecDeque::new(), threads: 0, idle: 0 });
static ORDERED: Condvar = Condvar::new();

fn orders() -> MutexGuard<'static, Orders> {
    ORDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a child. A plain thread does so itself.
#[track_caller]
pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
    match fiber() {
        None => ask(|| command.spawn()),
        Some(_) => ask(|| have_spawned(command)),
    }
}

/// Has the child started by one of the threads, and waits for that: on a thread that may block.
fn have_spawned(command: &mut Command) -> io::Result<Child> {
    let (answer, told) = channel();
    {
        let mut orders = orders();
        hire(&mut orders)?;
        // An empty command allocates little, and is never run.
        orders.queue.push_back(Order { command: std::mem::replace(command, Command::new("")), answer });
    }
    ORDERED.notify_one();
    let (used, child) = told.recv().expect("the threads that start children end with the process");
    *command = used;
    child
}

/// Starts one more thread if all are busy with orders that came before.
///
/// # Errors
/// If there is none at all then.
fn hire(orders: &mut Orders) -> io::Result<()> {
    if orders.idle > orders.queue.len() || orders.threads == THREADS_MAX {
        return Ok(());
    }
    match thread::start("sinew-spawner".to_string(), start_children) {
        Ok(()) => orders.threads += 1,
        Err(error) if orders.threads == 0 => return Err(error),
        Err(_) => {}
    }
    Ok(())
}

/// What each of the threads does.
fn start_children() {
    let mut waiting = orders();
    loop {
        let Some(Order { mut command, answer }) = waiting.queue.pop_front() else {
            waiting.idle += 1;
            waiting = ORDERED.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            waiting.idle -= 1;
            continue;
        };
        drop(waiting);
        let child = command.spawn();
        let _ = answer.send((command, child));
        waiting = orders();
    }
}
