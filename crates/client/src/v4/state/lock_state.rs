//! The locks of an open file, as known to the client.

use crate::protocol::OpenLockOwner;
use crate::v4::state::numbered::Unanswered;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use weir_nfs::v4::types::StateId;
use weir_vfs::{Lock, LockRange, RangeLocks};

/// The locks of an open file.
#[derive(Default)]
pub(in crate::v4) struct Locks {
    pub(in crate::v4) states: HashMap<OpenLockOwner, LockState>,
    pub(in crate::v4) held: RangeLocks<OpenLockOwner>,
    pub(in crate::v4) lost: bool,
}

/// A lock owner that the server knows.
#[derive(Clone)]
pub(in crate::v4) struct LockState {
    pub(in crate::v4) stateid: StateId,
    /// The number of the next request (minor version 0).
    pub(in crate::v4) seqid: u32,
    /// A release has been sent, and not been answered with success: the server may have locks that are
    /// not among those held.
    is_releasing: bool,
    /// The last request that it numbered, unless that was answered (minor version 0).
    pub(in crate::v4) unanswered: Option<Arc<Unanswered>>,
}

impl LockState {
    pub(in crate::v4) fn new(stateid: StateId, seqid: u32) -> Self {
        Self { stateid, seqid, is_releasing: false, unanswered: None }
    }
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

    /// The server has lost an owner's state, unless the owner has another stateid by now. Returns whether it has
    /// lost it.
    pub(in crate::v4) fn lose_state(&mut self, owner: OpenLockOwner, stateid: StateId) -> bool {
        let is_lost = self.states.get(&owner).is_some_and(|state| state.stateid == stateid);
        if is_lost {
            self.states.remove(&owner);
            if self.held.holds(&owner) {
                self.lose_some();
            }
        }
        is_lost
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
        self.states.entry(owner).or_insert(LockState::new(stateid, 1)).stateid = stateid;
    }

    /// Forgets a lock owner without locks; returns its stateid, if the server knows it.
    pub(in crate::v4) fn forget(&mut self, owner: OpenLockOwner) -> Option<StateId> {
        let may_hold = self.states.get(&owner).is_some_and(|state| state.is_releasing);
        let gone = !may_hold && !self.held.holds(&owner);
        gone.then(|| self.states.remove(&owner)).flatten().map(|state| state.stateid)
    }

    /// Forgets an owner's locks in a range, before the server is asked to release them. Returns whether
    /// there are any.
    pub(in crate::v4) fn forget_range(&mut self, owner: OpenLockOwner, range: LockRange) -> bool {
        let held = !self.held.within(&owner, range).is_empty();
        self.held.unlock(&owner, range);
        self.lost &= !self.held.is_empty();
        held
    }

    /// A release is about to be sent. Returns the owner's stateid, if the server knows it.
    pub(in crate::v4) fn begin_release(&mut self, owner: OpenLockOwner) -> Option<StateId> {
        let state = self.states.get_mut(&owner)?;
        state.is_releasing = true;
        Some(state.stateid)
    }

    /// The server has released what the owner asked for last.
    pub(in crate::v4) fn released(&mut self, owner: OpenLockOwner) {
        if let Some(state) = self.states.get_mut(&owner) {
            state.is_releasing = false;
        }
    }

    /// Records the exclusive locks of an owner in a range as shared, before the server is asked for that.
    pub(in crate::v4) fn downgrade(&mut self, owner: OpenLockOwner, range: LockRange) -> Downgrade {
        let mut parts = self.held.within(&owner, range);
        parts.retain(|part| part.exclusive);
        self.set(owner, &parts, false);
        Downgrade { parts, under: self.identity(owner) }
    }

    /// The server has not executed a downgrade: the locks are exclusive again. After a restart in between
    /// the server has them as they were reclaimed, shared; then they are lost.
    pub(in crate::v4) fn take_back(&mut self, owner: OpenLockOwner, downgrade: Downgrade) {
        if downgrade.under == self.identity(owner) {
            self.set(owner, &downgrade.parts, true);
        } else {
            self.lose_downgraded(downgrade);
        }
    }

    /// It is not known what the server did with a downgrade, so the locks are lost.
    pub(in crate::v4) fn lose_downgraded(&mut self, downgrade: Downgrade) {
        if !downgrade.parts.is_empty() {
            self.lose_some();
        }
    }

    /// The owners that the server may know, or that hold locks.
    pub(in crate::v4) fn owners(&self) -> HashSet<OpenLockOwner> {
        self.states.keys().chain(self.held.owners()).copied().collect()
    }

    /// What identifies the state of an owner at the server.
    fn identity(&self, owner: OpenLockOwner) -> Option<[u8; 12]> {
        self.states.get(&owner).map(|state| state.stateid.other)
    }

    fn set(&mut self, owner: OpenLockOwner, parts: &[Lock], exclusive: bool) {
        for part in parts {
            // The owner's own locks are in no one's way.
            let _ = self.held.lock(&owner, part.range, exclusive);
        }
    }
}

/// A downgrade that the server is asked for.
pub(in crate::v4) struct Downgrade {
    /// What is exclusive at the server until it has executed the downgrade.
    parts: Vec<Lock>,
    /// The state that it is asked under.
    under: Option<[u8; 12]>,
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
        assert_eq!(locks.begin_release(owner(1)), Some(stateid(7)));
        assert!(locks.forget_range(owner(1), LockRange::ALL));
        assert!(locks.are_lost());
        assert!(locks.forget_range(owner(2), LockRange::ALL));
        assert!(!locks.are_lost());
        assert_eq!(locks.forget(owner(1)), None, "the server may still have its locks");
        locks.released(owner(1));
        assert_eq!(locks.forget(owner(1)), Some(stateid(7)), "it ends at the server, too");
    }

    #[test]
    fn a_downgrade_that_is_refused_changes_nothing() {
        let owner = OpenLockOwner { open: 1, owner: LockOwner(0), number: 1 };
        let part = |start, end, exclusive| Lock { range: LockRange { start, end }, exclusive };
        let mut locks = Locks::default();
        for Lock { range, exclusive } in [part(0, 10, true), part(20, 30, false)] {
            locks.held.lock(&owner, range, exclusive).unwrap();
        }
        let held = |locks: &Locks| locks.held.within(&owner, LockRange::ALL);
        let before = held(&locks);
        let stateid = |other| StateId { seqid: 1, other: [other; 12] };
        locks.granted(owner, stateid(7));
        let downgrade = locks.downgrade(owner, LockRange { start: 5, end: 40 });
        assert_eq!(downgrade.parts, [part(5, 10, true)]);
        let now = [part(0, 5, true), part(5, 10, false), part(20, 30, false)];
        assert_eq!(held(&locks), now, "nothing is held that was not");
        locks.granted(owner, StateId { seqid: 2, ..stateid(7) });
        locks.take_back(owner, downgrade);
        assert_eq!(held(&locks), before);
        assert!(!locks.are_lost());
        // The server has restarted, and has what was reclaimed.
        let downgrade = locks.downgrade(owner, LockRange { start: 5, end: 40 });
        locks.forget_states();
        locks.granted(owner, stateid(8));
        locks.take_back(owner, downgrade);
        assert_eq!(held(&locks), now);
        assert!(locks.are_lost());
    }
}
