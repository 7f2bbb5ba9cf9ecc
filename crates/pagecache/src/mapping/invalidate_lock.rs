//! Exclusion of other operations on a file.
//!
//! 1. [`InvalidateLock`], for changes of the whole file (truncate, hole punch, attributes): it has
//!    one holder at a time, with no writeback in flight, and no fill, writeback or write begins
//!    meanwhile.
//! 2. [`WriteSeqcount`], for changes of slots or size under the lock: readers without the lock
//!    retry.

use crate::mapping::Mapping;
use std::sync::Arc;
use weir_base::sync::atomic::{Ordering, fence};

/// The exclusive right to change the whole file.
pub(crate) struct InvalidateLock {
    mapping: Arc<Mapping>,
}

impl Drop for InvalidateLock {
    fn drop(&mut self) {
        let mut state = self.mapping.state.lock();
        state.invalidating = false;
        // Writeback may have skipped the file meanwhile.
        let passed_over = !state.dirty.is_empty();
        self.mapping.note_progress(&mut state);
        drop(state);
        self.mapping.changed.notify();
        self.mapping.memory.collect_some();
        if passed_over {
            self.mapping.lane().kick();
        }
    }
}

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
    /// Acquires the right to change the whole file: waits for other holders and for writeback in
    /// flight, and keeps fills, writeback and writes from starting.
    pub(crate) async fn lock_invalidate(self: &Arc<Self>) -> InvalidateLock {
        loop {
            let ticket = self.changed.ticket();
            {
                let mut state = self.state.lock();
                if !state.invalidating {
                    state.invalidating = true;
                    break;
                }
            }
            self.changed.wait(ticket).await;
        }
        let held = InvalidateLock { mapping: self.clone() };
        loop {
            let ticket = self.changed.ticket();
            if self.state.lock().writeback.is_empty() {
                return held;
            }
            self.changed.wait(ticket).await;
        }
    }

    /// Makes readers without the lock retry until the guard is dropped. The lock is held.
    pub(crate) fn write_seqcount(&self) -> WriteSeqcount<'_> {
        let sequence = self.sequence.load(Ordering::Relaxed);
        debug_assert!(sequence & 1 == 0);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        // A reader that sees one of the following stores also sees the odd number.
        fence(Ordering::Release);
        WriteSeqcount { mapping: self, sequence }
    }
}
