pub mod atomic;
#[path = "../../../src/base/deque.rs"]
pub mod deque;
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

mod model;
