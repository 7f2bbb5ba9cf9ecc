//! Progress reports of a copy to its caller.

use crate::failure::Failure;

/// Receives the progress of a copy. The copy calls these methods from several threads at a time,
/// and waits for each call. By default, every method does nothing.
pub trait Progress: Send + Sync + 'static {
    /// The copy found a file of this size to copy.
    fn found(&self, bytes: u64) {
        let _ = bytes;
    }

    /// The copy has finished this many more bytes of files, holes included.
    fn copied(&self, bytes: u64) {
        let _ = bytes;
    }

    /// A file could not be copied; the copy continues with the others.
    fn failed(&self, failure: &Failure) {
        let _ = failure;
    }

    /// [`Copier::interrupt`](super::Copier::interrupt) ended the copy early.
    fn interrupted(&self) {}
}

/// Hears nothing.
impl Progress for () {}
