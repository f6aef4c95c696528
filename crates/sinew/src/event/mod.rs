//! Sources: they turn the outside world into lists of ready fibers, and never schedule (law E1).

pub(crate) mod epoll;
pub(crate) mod instance;
pub(crate) mod readiness;
pub(crate) mod roam;
pub(crate) mod source;
pub(crate) mod timers;
pub(crate) mod uring;
