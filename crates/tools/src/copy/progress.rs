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

    /// The copy has made, or with [`Options::dry_run`](super::Options::dry_run) would make, the file at
    /// `to` from the one at `from`.
    fn made(&self, from: &str, to: &str) {
        let _ = (from, to);
    }

    /// A synchronization has removed, or with [`Options::dry_run`](super::Options::dry_run) would
    /// remove, what is at `shown`.
    fn removed(&self, shown: &str) {
        let _ = shown;
    }

    /// Whether to replace the file at `to`, with [`Options::asks`](super::Options::asks).
    fn may_replace(&self, to: &str) -> bool {
        let _ = to;
        true
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
