//! A read whose buffer connections receive into.

use weir_base::sync::Mutex;
use weir_vfs::{Error, Layout, ReadOp};

/// A read whose buffer calls in flight fill; completes when the last of them lets go.
pub(crate) struct ReadInFlight {
    op: Mutex<ReadOp>,
    outcome: Mutex<weir_vfs::Result<Layout>>,
}

impl ReadInFlight {
    pub(crate) fn new(op: ReadOp) -> Self {
        Self { op: Mutex::new(op), outcome: Mutex::new(Err(Error::Io)) }
    }

    /// The operation, for as long as it takes to receive into it without waiting.
    pub(crate) fn op(&self) -> &Mutex<ReadOp> {
        &self.op
    }

    /// The outcome to complete the operation with.
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
