//! The sequence number by which readers without the lock notice a change.
//!
//! 1. It is odd while slots or the size change. A reader that finds it odd, or different after its
//!    read, retries.

use crate::mapping::Mapping;
use crate::mapping::edit::Edit;
use weir_base::sync::atomic::{Ordering, fence};

/// While it exists, readers without the lock retry.
pub(crate) struct WriteSeqcount<'a> {
    mapping: &'a Mapping,
    sequence: u64,
}

impl WriteSeqcount<'_> {
    /// Changes the size.
    pub(crate) fn set_size(&self, size: u64) {
        self.mapping.size.store(size, Ordering::Relaxed);
    }
}

impl Drop for WriteSeqcount<'_> {
    fn drop(&mut self) {
        self.mapping.sequence.store(self.sequence + 2, Ordering::Release);
    }
}

impl Mapping {
    /// Makes readers without the lock retry until the guard is dropped.
    pub(crate) fn write_seqcount(&self, _locked: &Edit<'_>) -> WriteSeqcount<'_> {
        let sequence = self.sequence.load(Ordering::Relaxed);
        debug_assert!(sequence & 1 == 0);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        // A reader that sees one of the following stores also sees the odd number.
        fence(Ordering::Release);
        WriteSeqcount { mapping: self, sequence }
    }
}
