//! What a copy tells its caller while it goes on.

use crate::failure::Failure;

/// Hears how a copy goes on. The copy calls these methods from several threads at a time, and waits for
/// each call. Every method does nothing unless implemented.
pub trait Progress: Send + Sync + 'static {
    /// The copy found a file of this size that it is going to copy.
    fn found(&self, bytes: u64) {
        let _ = bytes;
    }

    /// The copy is done with so many more bytes of files, holes included.
    fn copied(&self, bytes: u64) {
        let _ = bytes;
    }

    /// A file could not be copied; the copy goes on with the others.
    fn failed(&self, failure: &Failure) {
        let _ = failure;
    }

    /// [`Copier::interrupt`](super::Copier::interrupt) ended the copy early.
    fn interrupted(&self) {}
}

/// Hears nothing.
impl Progress for () {}
