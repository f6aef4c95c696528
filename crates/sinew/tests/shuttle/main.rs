//! The whole scheduler, with real stack switches, under shuttle: thousands of random schedules of its workers, spawners and wakers.
//!
//! The library's own files are included by path; `base::atomic` and `os` here stand in for those in `src`: shuttle's atomics, a futex whose lost wake-ups
//! hang (and are reported as too many steps), and a clock that counts looks. shuttle takes all atomics as sequentially consistent; the orderings are
//! loom's matter (`tests/loom`). `SINEW_SHUTTLE=<schedules>` asks for more schedules than CI runs. A failure prints a schedule to replay.

#![allow(dead_code, missing_docs, unused_imports, clippy::reversed_empty_ranges)]

mod base {
    pub mod atomic;
    #[path = "../../../src/base/bomb.rs"]
    pub(crate) mod bomb;
    #[path = "../../../src/base/deque.rs"]
    pub mod deque;
    #[path = "../../../src/base/histogram.rs"]
    pub mod histogram;
    #[path = "../../../src/base/inbox.rs"]
    pub mod inbox;
    #[path = "../../../src/base/list.rs"]
    pub mod list;
    #[path = "../../../src/base/mask.rs"]
    pub mod mask;
    #[path = "../../../src/base/prefetch.rs"]
    pub mod prefetch;
    #[path = "../../../src/base/wheel.rs"]
    pub mod wheel;
}
#[path = "../../src/chan/mod.rs"]
mod chan;
mod event;
#[path = "../../src/fiber/mod.rs"]
mod fiber;
#[path = "../../src/future/mod.rs"]
mod future;
mod net;
mod os;
mod rt;
#[path = "../../src/sched/mod.rs"]
mod sched;
mod sync;
#[path = "../../src/time/mod.rs"]
mod time;

mod channels;
mod movers;
#[path = "../common/one_place.rs"]
mod one_place;
mod scenarios;
mod spares;
mod starved;

pub use fiber::Id;
pub use fiber::task::NeverRan;
pub use future::{block_on, try_block_on};
pub use rt::cancel::{Cancelled, cancelled, shield, timeout};
pub use rt::fiber::Fiber;
pub use rt::scope::{Scope, scope};
pub use rt::spawn::{Builder, JoinHandle, run, spawn};
pub use rt::wait::{current, park, park_timeout, sleep, yield_now};
