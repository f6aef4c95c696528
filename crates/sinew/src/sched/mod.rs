//! Who runs what, where, and who is woken for it.
//!
//! [`groups`] is what a runtime consists of, [`group`] what the workers of a group share, [`seat`] what others touch of one worker, [`counters`] what it counts, [`worker`] the worker itself, [`settings`] how they are to be; [`slot`] and [`idle`] decide who sleeps and who is woken, [`quiet`] counts those whom nobody was woken for yet, [`duty`] says who stands in for whom;
//! [`cancel`] cuts waits short, and finds a runtime's fibers; [`pool`] keeps the threads for what blocks; [`profile`] says how many groups there are.

pub(crate) mod cancel;
pub(crate) mod counters;
pub(crate) mod duty;
pub(crate) mod group;
pub(crate) mod groups;
pub(crate) mod idle;
pub(crate) mod pool;
pub(crate) mod profile;
pub(crate) mod quiet;
pub(crate) mod seat;
pub(crate) mod settings;
pub(crate) mod slot;
pub(crate) mod worker;
