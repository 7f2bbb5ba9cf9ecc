//! The locks of an open file, as known to the client.

use crate::protocol::OpenLockOwner;
use std::collections::HashMap;
use weir_nfs::v4::types::StateId;
use weir_vfs::{LockRange, RangeLocks};

/// The locks of an open file.
#[derive(Default)]
pub(in crate::v4) struct Locks {
    pub(in crate::v4) states: HashMap<OpenLockOwner, LockState>,
    pub(in crate::v4) held: RangeLocks<OpenLockOwner>,
    pub(in crate::v4) lost: bool,
}

/// A lock owner that the server knows.
#[derive(Clone, Copy)]
pub(in crate::v4) struct LockState {
    pub(in crate::v4) stateid: StateId,
    /// The number of the next request (minor version 0).
    pub(in crate::v4) seqid: u32,
}

impl Locks {
    /// Whether owners hold locks that the server no longer has.
    pub(in crate::v4) fn are_lost(&self) -> bool {
        self.lost
    }

    /// Whether the server knows of no lock owner.
    pub(in crate::v4) fn are_unused(&self) -> bool {
        self.states.is_empty() && !self.lost
    }

    /// The server has lost all of them.
    pub(in crate::v4) fn lose(&mut self) {
        self.states.clear();
        self.lost |= !self.held.is_empty();
    }

    /// The server does not know their owners any more.
    pub(in crate::v4) fn forget_states(&mut self) {
        self.states.clear();
    }

    pub(in crate::v4) fn count(&mut self, owner: OpenLockOwner) {
        if let Some(state) = self.states.get_mut(&owner) {
            state.seqid = state.seqid.wrapping_add(1);
        }
    }

    pub(in crate::v4) fn granted(&mut self, owner: OpenLockOwner, stateid: StateId) {
        // The first request, which introduced the owner, had number 0.
        self.states.entry(owner).or_insert(LockState { stateid, seqid: 1 }).stateid = stateid;
    }

    /// Forgets a lock owner without locks; returns its stateid, if the server knows it.
    pub(in crate::v4) fn forget(&mut self, owner: OpenLockOwner) -> Option<StateId> {
        let gone = !self.held.holds(&owner);
        gone.then(|| self.states.remove(&owner)).flatten().map(|state| state.stateid)
    }

    pub(in crate::v4) fn released(&mut self, owner: OpenLockOwner, range: LockRange) {
        self.held.unlock(&owner, range);
        self.lost &= !self.held.is_empty();
    }
}
