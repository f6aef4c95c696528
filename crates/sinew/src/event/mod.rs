//! Sources: they turn the outside world into lists of ready fibers, and never schedule (law E1).

pub(crate) mod timers;
