//! The reserve of free frames that uncached operations use, and the traces that they leave while
//! they use it.

use weir_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Progress of uncached operations.
#[derive(Default)]
pub(crate) struct Reserve {
    /// Threads that hold frames of uncached operations which are in no file.
    at_work: AtomicUsize,
    /// Pages that uncached operations have dropped when done with them, so far.
    pub(crate) pruned: AtomicU64,
    /// Pages that uncached writes have in flight to a store.
    pub(crate) io: AtomicUsize,
}

impl Reserve {
    /// Tells the operations that wait for frames of the reserve that this thread holds some, until
    /// the guard is dropped.
    pub(crate) fn at_work(&self) -> AtWork<'_> {
        self.at_work.fetch_add(1, Ordering::SeqCst);
        AtWork(&self.at_work)
    }

    /// Whether any thread is [at work](Self::at_work).
    pub(crate) fn is_at_work(&self) -> bool {
        self.at_work.load(Ordering::SeqCst) > 0
    }
}

/// See [`Reserve::at_work`].
pub(crate) struct AtWork<'a>(&'a AtomicUsize);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
