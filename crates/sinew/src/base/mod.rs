//! Lists, rings, wheels: data structures that know neither the system nor fibers; and what must not be unwound through.

pub(crate) mod atomic;
pub(crate) mod bomb;
pub(crate) mod deque;
pub(crate) mod histogram;
pub(crate) mod inbox;
pub(crate) mod list;
pub(crate) mod mask;
pub(crate) mod prefetch;
pub(crate) mod wheel;

#[cfg(test)]
mod tests;
