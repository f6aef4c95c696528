//! Leaks that are planted, to see that they are found.
//!
//! `SINEW_STRESS_LEAK=descriptors:N`, or `memory:N`, or `fibers:N`, is for tests of the checks alone: of every N connections that are accepted one leaves something behind.

use std::net::UdpSocket;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::failure::fail;
use super::random::Random;
use super::storms::Stage;

const VARIABLE: &str = "SINEW_STRESS_LEAK";
/// What one leaves of the heap: a buffer of a connection.
const BYTES: usize = 64 << 10;

#[derive(Clone, Copy)]
enum What {
    Descriptor,
    Memory,
    Fiber,
}

/// A connection was accepted.
pub(super) fn plant(stage: &Stage<'_>, random: &mut Random) {
    static ASKED: OnceLock<Option<(What, u64)>> = OnceLock::new();
    static ACCEPTED: AtomicU64 = AtomicU64::new(0);
    let Some((what, connections)) = *ASKED.get_or_init(asked) else { return };
    if !(ACCEPTED.fetch_add(1, Relaxed) + 1).is_multiple_of(connections) {
        return;
    }
    match what {
        What::Descriptor => std::mem::forget(UdpSocket::bind("127.0.0.1:0")),
        What::Memory => std::mem::forget(vec![1u8; BYTES]),
        What::Fiber => {
            let stays = stage.spawn("leak", random, |stage, _| {
                sinew::shield(|| stage.me.await_sent(u64::MAX));
            });
            drop(stays);
        }
    }
}

fn asked() -> Option<(What, u64)> {
    let text = std::env::var(VARIABLE).ok()?;
    let (what, connections) = text.split_once(':').unwrap_or((&text, "1"));
    let what = match what {
        "descriptors" => What::Descriptor,
        "memory" => What::Memory,
        "fibers" => What::Fiber,
        _ => fail(format_args!("{VARIABLE} is {text:?}")),
    };
    Some((what, connections.parse().unwrap_or_else(|error| fail(format_args!("{VARIABLE} is {text:?}: {error}")))))
}
