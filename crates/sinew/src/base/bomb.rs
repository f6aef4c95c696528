//! What must not be unwound through.

/// Ends the process with a line that says why, unless it is defused.
pub(crate) struct Bomb(pub(crate) &'static str);

impl Bomb {
    #[inline]
    pub(crate) fn defuse(self) {
        std::mem::forget(self);
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        eprintln!("sinew: {} (see the panic above): the process ends", self.0);
        std::process::abort();
    }
}
