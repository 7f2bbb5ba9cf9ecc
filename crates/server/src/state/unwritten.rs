//! The clients whose disk record is out of date, and whether the lease on disk is.
//!
//! A flag tells whether any record is to be written, or is being written. So a compound for which nothing is due finds
//! that out without the state's lock. The flag changes only under the lock. A transition sets it before anything
//! changes that can be seen without the lock (the filter of delegations). So a task that depends on the transition
//! sees the flag of that transition, or of a later one.

use crate::state::client::Owner;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is out of date on disk.
#[derive(Debug, Default)]
pub(in crate::state) struct Unwritten {
    owners: BTreeSet<Owner>,
    lease: bool,
    due: Arc<AtomicBool>,
}

impl Unwritten {
    pub(in crate::state) fn insert(&mut self, owner: Owner) {
        self.owners.insert(owner);
        self.due.store(true, Ordering::Release);
    }

    pub(in crate::state) fn insert_lease(&mut self) {
        self.lease = true;
        self.due.store(true, Ordering::Release);
    }

    /// Takes whether the lease is out of date; it is due until [`written`](Self::written).
    pub(in crate::state) fn take_lease(&mut self) -> bool {
        std::mem::take(&mut self.lease)
    }

    /// Takes all clients; they are due until [`written`](Self::written).
    pub(in crate::state) fn take(&mut self) -> Vec<Owner> {
        std::mem::take(&mut self.owners).into_iter().collect()
    }

    /// Notes that those taken are on disk, or inserted again.
    pub(in crate::state) fn written(&mut self) {
        self.due.store(self.lease || !self.owners.is_empty(), Ordering::Release);
    }

    #[cfg(test)]
    pub(in crate::state) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Whether a record is to be written, or is being written.
    pub(in crate::state) fn is_due(&self) -> bool {
        self.due.load(Ordering::Acquire)
    }

    /// Set while [a record is due](Self::is_due).
    pub(in crate::state) fn due(&self) -> &Arc<AtomicBool> {
        &self.due
    }
}
