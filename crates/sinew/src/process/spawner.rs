//! The thread that starts children for fibers.
//!
//! A start takes a worker a millisecond or so: the system copies the process, or holds the caller until the new program is loaded. So it is made elsewhere. Not in the blocking pool:
//! a child that asked to die with its parent (`PR_SET_PDEATHSIG`; sandboxes do so) dies with the thread that started it, and threads of a pool come and go. This one stays as long as the
//! process. It starts one child at a time; the system does little else.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

use crate::os::thread;
use crate::rt::ask::ask;
use crate::rt::context::fiber;

/// A child to be started, and where to tell of it. The command goes back with the answer.
struct Order {
    command: Command,
    answer: Sender<(Command, io::Result<Child>)>,
}

/// Starts a child. A plain thread does so itself.
#[track_caller]
pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
    match fiber() {
        None => ask(|| command.spawn()),
        Some(_) => ask(|| have_spawned(command)),
    }
}

/// Has the child started by the one thread, and waits for that: on a thread that may block.
fn have_spawned(command: &mut Command) -> io::Result<Child> {
    let orders = orders()?;
    let (answer, told) = channel();
    // An empty command allocates little, and is never run.
    let order = Order { command: std::mem::replace(command, Command::new("")), answer };
    orders.send(order).expect("the thread that starts children ends with the process");
    let (used, child) = told.recv().expect("the thread that starts children ends with the process");
    *command = used;
    child
}

/// Where orders go. The first one starts the thread.
fn orders() -> io::Result<Sender<Order>> {
    static ORDERS: Mutex<Option<Sender<Order>>> = Mutex::new(None);
    let mut orders = ORDERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(orders) = &*orders {
        return Ok(orders.clone());
    }
    let (sender, received) = channel::<Order>();
    thread::start("sinew-spawner".to_string(), move || {
        for Order { mut command, answer } in received {
            let child = command.spawn();
            let _ = answer.send((command, child));
        }
    })?;
    Ok(orders.insert(sender).clone())
}
