//! A read whose buffer connections receive into.

use weir_base::sync::Mutex;
use weir_vfs::{Error, Layout, ReadOp};

/// A read whose buffer calls in flight fill; it completes when the last of them drops it.
pub(crate) struct ReadInFlight {
    op: Mutex<ReadOp>,
    outcome: Mutex<weir_vfs::Result<Layout>>,
}

impl ReadInFlight {
    pub(crate) fn new(op: ReadOp) -> Self {
        Self { op: Mutex::new(op), outcome: Mutex::new(Err(Error::Io)) }
    }

    /// The operation, to be locked only while receiving into it without waiting.
    pub(crate) fn op(&self) -> &Mutex<ReadOp> {
        &self.op
    }

    /// Sets the result that completes the operation.
    pub(crate) fn resolve(&self, outcome: weir_vfs::Result<Layout>) {
        *self.outcome.lock() = outcome;
    }
}

impl Drop for ReadInFlight {
    fn drop(&mut self) {
        let nothing = ReadOp::new(0, Box::new(Vec::new()), |_, _| {});
        let op = std::mem::replace(&mut *self.op.lock(), nothing);
        let outcome = std::mem::replace(&mut *self.outcome.lock(), Err(Error::Io));
        op.complete(outcome);
    }
}
