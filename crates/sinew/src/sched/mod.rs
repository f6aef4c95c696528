//! Who runs what, where, and who is woken for it.
//!
//! [`group`] is what the workers of a group share, [`worker`] is one of them; [`slot`] and [`idle`] decide who sleeps and who is woken.

pub(crate) mod group;
pub(crate) mod idle;
pub(crate) mod slot;
pub(crate) mod worker;
