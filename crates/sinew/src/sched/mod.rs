//! Who runs what, where, and who is woken for it.
//!
//! [`group`] is what the workers of a group share, [`worker`] is one of them; [`slot`] and [`idle`] decide who sleeps and who is woken;
//! [`cancel`] cuts waits short, and finds a group's fibers; [`pool`] keeps the threads for what blocks; [`profile`] says how many groups there are.

pub(crate) mod cancel;
pub(crate) mod group;
pub(crate) mod idle;
pub(crate) mod pool;
#[allow(dead_code)] // Until the runtime has several groups.
pub(crate) mod profile;
pub(crate) mod slot;
pub(crate) mod worker;
