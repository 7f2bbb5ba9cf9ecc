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
        self.lose_some();
    }

    /// The server has lost some of them: those of owners without a stateid, and perhaps others.
    pub(in crate::v4) fn lose_some(&mut self) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use weir_vfs::LockOwner;

    #[test]
    fn locks_reclaimed_before_one_was_refused_can_be_released() {
        let owner = |number| OpenLockOwner { open: 1, owner: LockOwner(0), number };
        let stateid = |other| StateId { seqid: 1, other: [other; 12] };
        let part = |start, end| LockRange { start, end };
        let mut locks = Locks::default();
        locks.held.lock(&owner(1), part(0, 10), true).unwrap();
        locks.held.lock(&owner(2), part(10, 20), true).unwrap();
        // The server restarted: the first lock is reclaimed, the second one refused.
        locks.forget_states();
        locks.granted(owner(1), stateid(7));
        locks.lose_some();
        assert!(locks.are_lost());
        assert_eq!(locks.states.get(&owner(1)).map(|state| state.stateid), Some(stateid(7)));
        locks.released(owner(1), LockRange::ALL);
        assert!(locks.are_lost());
        locks.released(owner(2), LockRange::ALL);
        assert!(!locks.are_lost());
        assert_eq!(locks.forget(owner(1)), Some(stateid(7)), "it ends at the server, too");
    }
}
