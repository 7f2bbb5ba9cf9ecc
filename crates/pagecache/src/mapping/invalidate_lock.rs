//! The lock for changes of the whole file (truncate, hole punch, attributes).
//!
//! 1. It has one holder at a time, with no writeback in flight, and no fill, writeback or write
//!    begins meanwhile.
//! 2. Pages may be dirty when it is acquired. An operation that needs them in the store writes the file back first, and
//!    tries again if writes came in between, which it excludes from the second attempt on.

use crate::mapping::Mapping;
use std::sync::Arc;

/// The exclusive right to change the whole file.
pub(crate) struct InvalidateLock {
    pub(super) mapping: Arc<Mapping>,
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

/// Excludes writes of the file while it exists; writeback goes on.
pub(crate) struct HeldWriters {
    mapping: Arc<Mapping>,
}

impl Drop for HeldWriters {
    fn drop(&mut self) {
        self.mapping.state.lock().holds_of_writers -= 1;
        self.mapping.changed.notify();
    }
}

impl Mapping {
    /// Excludes writes, for one that needs all of the file written back.
    pub(crate) fn hold_writers(self: &Arc<Self>) -> HeldWriters {
        self.state.lock().holds_of_writers += 1;
        HeldWriters { mapping: self.clone() }
    }

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

    /// Keeps the fills in flight from publishing: the store is about to be changed.
    pub(crate) fn disown_fills(&self, _held: &InvalidateLock) {
        for fill in &self.state.lock().fills {
            fill.disown();
        }
    }
}
