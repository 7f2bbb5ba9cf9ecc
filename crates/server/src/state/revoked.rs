//! Revoked state, until its client acknowledges the revocation (RFC 8881 sections 8.4.2.4, 8.5 and
//! 18.38).
//!
//! ```text
//!          revoke (its lease is over and another client wants it; its export is gone),
//!          revoke_if_overdue (a delegation was not given back)
//!   held ------------------------------------------------------------------------> revoked
//!                                     (none) <---- free_stateid, the client goes ------+
//! ```
//!
//! 1. Of a client whose lease has expired, only the conflicting state is revoked: an open with all
//!    locks under it, or a delegation. Never a lock alone: Linux's client, denied the lock, would
//!    still write under the open. The client keeps the rest, even across a restart. The files of
//!    revoked state are recorded on disk and cannot be reclaimed
//!    ([`crate::state::reclaim_denied`]).
//! 2. Every use of a revoked stateid returns the reason. Only of revoked delegations, which a client
//!    may use without a request, every SEQUENCE reply tells until the client has acknowledged all
//!    of them ([`Client::has_revoked_delegation`]).
//! 3. Who acknowledges an open or a delegation acknowledges the locks under it: Linux's client frees
//!    no stateid of a lock that it has given up.
//! 4. At most [`MAX_REVOKED`] revocations per client and [`MAX`] in all are remembered.
//! 5. A client of minor version 0 loses all its state when it loses some: the protocol cannot tell
//!    it which. Its later requests return the reason ([`crate::state::tables::lapsed`]).

use crate::handle::Node;
use crate::state::client::{Client, ClientId};
use crate::state::error::StateError;
use crate::state::stateid::StateKey;
use crate::state::table::State;
use crate::state::tables::lock::LockOwner;
use crate::state::tables::reclaim_denied::ReclaimDenied;
use crate::state::tables::revoked::{Kind, Revoked, Why};
use std::time::Duration;

/// Revocations that are remembered per client.
const MAX_REVOKED: usize = 1024;
/// Revocations that are remembered in all.
const MAX: usize = 64 << 10;

impl Client {
    /// Whether the client has a revoked delegation to acknowledge.
    ///
    /// SEQUENCE tells of nothing else (RFC 8881 section 18.46.3). After a flag that tells of a revoked open, Linux's
    /// client (6.12) gives up every lock that it has on this server, in all files, without unlocking any; and after
    /// EXPIRED_ALL_STATE_REVOKED it never sends RECLAIM_COMPLETE, so that its opens get NFS4ERR_GRACE for ever. It
    /// recovers by the errors that revoked stateids return, one file at a time.
    pub(crate) fn has_revoked_delegation(&self) -> bool {
        self.revoked.iter().any(|revoked| revoked.kind == Kind::Delegation)
    }
}

impl<F: Clone> State<F> {
    /// Whether what a client has in an export may be taken from it: its lease is over, but for calls in progress that
    /// do not use the export; and it could have renewed its lease beside these, in another slot. A client of minor
    /// version 0 keeps all during its calls: it can only lose all. A request that begins just now finds its state
    /// revoked: it came too late.
    pub(super) fn lets_go(&self, client: &Client, export: u16, now: Duration) -> bool {
        if self.clients.is_expired(client, now) {
            return true;
        }
        let could_renew = || self.sessions.of(client.id).any(|session| session.slots.has_idle());
        client.owner.sessions
            && self.clients.is_over(client, now)
            && !client.shared.in_use.has(export)
            && could_renew()
    }

    /// Revokes an open of a client whose lease has expired, because another client needs what it
    /// holds. Returns whether it did: the lease may not have expired, or a call may use the file.
    pub(super) fn revoke_if_expired(
        &mut self,
        client: ClientId,
        key: Option<StateKey>,
        now: Duration,
    ) -> bool {
        let Ok(holder) = self.clients.get(client) else { return false };
        let open = key.and_then(|key| Some((key, self.opens.get(key)?.node.export)));
        match open {
            Some((key, export)) if holder.owner.sessions => {
                let lets_go = self.lets_go(holder, export, now);
                if lets_go {
                    self.revoke(key, Why::Expired);
                }
                lets_go
            }
            _ => {
                let ended = self.clients.end_expired(holder, now);
                if ended {
                    self.purge_silent(client);
                }
                ended
            }
        }
    }

    /// Like [`revoke_if_expired`](Self::revoke_if_expired), for the open under which an owner has
    /// locks on a file.
    pub(super) fn revoke_locks_if_expired(
        &mut self,
        owner: &LockOwner,
        node: Node,
        now: Duration,
    ) -> bool {
        let locks = self.locks.of_owner(owner, node).and_then(|key| self.locks.get(key));
        // Without an open, all of the client goes, so that its locks go in any case.
        let key = locks.map(|locks| locks.open).filter(|open| self.opens.contains(*open));
        self.revoke_if_expired(owner.client, key, now)
    }

    /// Revokes an open and the locks under it.
    pub(super) fn revoke(&mut self, key: StateKey, why: Why) {
        let Some((client, _)) = self.newest(key) else { return };
        let Some(node) = self.opens.get(key).map(|open| open.node) else { return };
        // The client does not know the stateid of an open that stands for a delegation.
        let stands_for = self.delegations.held_by(client, node).filter(|delegation| {
            self.delegations.by_key.get(delegation).is_some_and(|d| d.stand_in == Some(key))
        });
        let kind = Kind::Lock(stands_for.unwrap_or(key));
        let locks = self.locks.under(key);
        self.drop_lock_states(locks.iter().copied());
        for lock in locks {
            self.note_revoked(client, Revoked { key: lock, kind, node, why });
        }
        self.drop_open(key);
        if stands_for.is_none() {
            self.note_revoked(client, Revoked { key, kind: Kind::Open, node, why });
        }
    }

    /// Remembers a revoked state, to return the reason to the client if the protocol can, and to refuse it a
    /// reclaim after a restart.
    pub(super) fn note_revoked(&mut self, id: ClientId, revoked: Revoked) {
        let Ok(client) = self.clients.get_mut(id) else { return };
        self.unwritten.insert(client.owner.clone());
        let (has_most, are_most) = (client.revoked.len() >= MAX_REVOKED, self.revoked.len() >= MAX);
        let is_delegation = revoked.kind == Kind::Delegation;
        // A client that is not told of a delegation goes on using it, so entries of other kinds go first.
        let spare = client.revoked.iter().find(|other| other.kind != Kind::Delegation);
        let forgotten = match (has_most, are_most && is_delegation) {
            (true, _) => spare.or(client.revoked.front()),
            (false, true) => spare,
            (false, false) => None,
        };
        let forgotten = forgotten.map(|other| other.key);
        if !client.owner.sessions || (are_most && forgotten.is_none()) {
            client.deny_unacknowledged(revoked.node);
            return;
        }
        client.revoked.push_back(revoked);
        if is_delegation {
            client.shared.set_revoked(true);
        }
        if forgotten.is_some() {
            client.unacknowledged = ReclaimDenied::all();
        }
        self.revoked.insert(revoked.key, (id, revoked.why));
        if let Some(key) = forgotten {
            self.forget_revoked(key);
        }
    }

    /// FREE_STATEID of a revoked state, which acknowledges the locks under it too; `None` if the state was not
    /// revoked.
    pub(super) fn free_revoked(
        &mut self,
        client: ClientId,
        key: StateKey,
    ) -> Option<Result<(), StateError>> {
        let (owner, _) = *self.revoked.get(&key)?;
        if owner != client {
            return Some(Err(StateError::BadStateId));
        }
        self.forget_revoked(key);
        self.forget_revoked_locks(client, key);
        // Written once, when all is acknowledged. Until then the disk may deny too much, which is
        // safe.
        if let Ok(client) = self.clients.get(client)
            && client.revoked.is_empty()
        {
            self.unwritten.insert(client.owner.clone());
        }
        Some(Ok(()))
    }

    /// Forgets the revoked locks of a client under an open or a delegation.
    pub(super) fn forget_revoked_locks(&mut self, client: ClientId, under: StateKey) {
        let Ok(client) = self.clients.get(client) else { return };
        let locks = client.revoked.iter().filter(|revoked| revoked.kind == Kind::Lock(under));
        let locks: Vec<StateKey> = locks.map(|lock| lock.key).collect();
        locks.into_iter().for_each(|lock| self.forget_revoked(lock));
    }

    /// Forgets a revocation.
    pub(super) fn forget_revoked(&mut self, key: StateKey) {
        let Some((client, _)) = self.revoked.remove(&key) else { return };
        if let Ok(client) = self.clients.get_mut(client) {
            client.revoked.retain(|revoked| revoked.key != key);
            client.shared.set_revoked(client.has_revoked_delegation());
        }
    }

    /// The error for a key that names no state.
    pub(super) fn missing(&self, key: StateKey) -> StateError {
        match self.revoked.get(&key) {
            Some((_, Why::Expired)) => StateError::Expired,
            Some((_, Why::Removed)) => StateError::AdminRevoked,
            Some((_, Why::Recalled)) => StateError::Revoked,
            None if self.lapsed.has_state(key) => StateError::Expired,
            None if key.run == self.ids.run() => StateError::BadStateId,
            None => StateError::StaleStateId,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::{
        LEASE, NODE, READ, T0, WRITE, lock_under, owner, ready, request, state_after,
    };
    use crate::state::{LockError, OpenRequest, Share};
    use weir_vfs::{Access, FileId};

    const OVER: Duration = Duration::from_secs(91);
    const OTHER: Node = Node { export: 0, id: FileId { ino: 2, generation: 0 } };

    #[test]
    fn only_conflicting_state_is_revoked_and_reported() {
        let mut state = state_after(&[]);
        let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
        let open_a = state.open(request(a, WRITE), T0).unwrap();
        let locked = state.lock(lock_under(open_a, a, true), T0).unwrap();
        let other = state.open(OpenRequest { node: OTHER, ..request(a, READ) }, T0).unwrap();
        let open_b = state.open(request(b, WRITE), OVER).unwrap();
        assert!(LEASE < OVER);
        let lock_b = lock_under(open_b, b, true);
        let unsettled = Err(LockError::State(StateError::Unsettled));
        assert_eq!(state.lock(lock_b.clone(), OVER), unsettled);
        assert_eq!(state.write_records(), [owner("a")], "it may not reclaim it");
        state.lock(lock_b, OVER).unwrap();

        let io = |state: &mut crate::state::State<char>, id, node| {
            state.io(Some(a), id, node, Access::READ).map(|_| ())
        };
        assert_eq!(io(&mut state, locked, NODE), Err(StateError::Expired));
        assert_eq!(io(&mut state, other, OTHER), Ok(()));
        assert_eq!(state.test_stateid(a, locked), Err(StateError::Expired));
        assert_eq!(state.test_stateid(b, locked), Err(StateError::BadStateId));
        assert_eq!(state.test_stateid(a, open_a), Err(StateError::Expired));
        let kinds = [Kind::Lock(open_a.key), Kind::Open];
        let revoked = std::iter::zip([locked, open_a], kinds);
        let revoked =
            revoked.map(|(id, kind)| Revoked { key: id.key, kind, node: NODE, why: Why::Expired });
        assert!(state.clients.get(a).unwrap().revoked.iter().copied().eq(revoked));
        assert_eq!(state.free_stateid(b, locked), Err(StateError::BadStateId));
        assert_eq!(state.free_stateid(a, locked), Ok(()));
        assert_eq!(state.free_stateid(a, open_a), Ok(()));
        assert!(state.clients.get(a).unwrap().revoked.is_empty() && state.revoked.is_empty());
        assert_eq!(state.test_stateid(a, locked), Err(StateError::BadStateId));
    }

    #[test]
    fn revoking_an_open_revokes_its_locks() {
        let mut state = state_after(&[]);
        let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
        let alone = Share { access: Access::WRITE, deny: Access::WRITE };
        let open_a = state.open(request(a, alone), T0).unwrap();
        let locked = state.lock(lock_under(open_a, a, true), T0).unwrap();
        assert_eq!(state.open(request(b, WRITE), OVER), Err(StateError::Unsettled));
        assert_eq!(state.write_records(), [owner("a")]);
        state.open(request(b, WRITE), OVER).unwrap();
        for id in [open_a, locked] {
            assert_eq!(state.test_stateid(a, id), Err(StateError::Expired));
        }
        assert_eq!(state.close(a, open_a, NODE), Err(StateError::Expired));
        assert!(state.clients.get(a).unwrap().states.is_empty());
        // With the client goes what was remembered of it.
        state.purge(a);
        assert!(state.revoked.is_empty());
    }

    #[test]
    fn opens_of_a_removed_export_are_reported_as_revoked() {
        let mut state = state_after(&[]);
        let a = ready(&mut state, "a", T0);
        let open = state.open(request(a, WRITE), T0).unwrap();
        let locked = state.lock(lock_under(open, a, true), T0).unwrap();
        state.drop_export(NODE.export);
        for id in [open, locked] {
            assert_eq!(state.test_stateid(a, id), Err(StateError::AdminRevoked));
        }
        // Who frees the open has freed the locks under it.
        assert_eq!(state.free_stateid(a, open), Ok(()));
        assert!(state.revoked.is_empty() && state.files.is_empty());
    }

    #[test]
    fn a_revoked_delegation_is_told_of_however_much_else_is_revoked() {
        let mut state = state_after(&[]);
        let a = ready(&mut state, "a", T0);
        let noted = |number, kind| {
            let node = Node { id: FileId { ino: number, generation: 0 }, ..NODE };
            Revoked { key: StateKey { run: 1, number }, kind, node, why: Why::Expired }
        };
        state.note_revoked(a, noted(0, Kind::Delegation));
        for number in 1..2 * MAX_REVOKED as u64 {
            state.note_revoked(a, noted(number, Kind::Open));
        }
        let client = state.clients.get(a).unwrap();
        assert!(client.has_revoked_delegation() && client.shared.has_revoked());
        assert_eq!((client.revoked.len(), state.revoked.len()), (MAX_REVOKED, MAX_REVOKED));
        // Nor does a table that others fill.
        for number in 0..MAX as u64 {
            state.revoked.entry(StateKey { run: 2, number }).or_insert((a, Why::Expired));
        }
        let b = ready(&mut state, "b", T0);
        state.note_revoked(a, noted(1 << 20, Kind::Delegation));
        assert_eq!(state.clients.get(a).unwrap().revoked.len(), MAX_REVOKED);
        state.note_revoked(b, noted(1 << 21, Kind::Open));
        assert!(state.clients.get(b).unwrap().revoked.is_empty());
    }

    #[test]
    fn revoked_stateids_of_a_client_are_bounded() {
        let mut state = state_after(&[]);
        let a = ready(&mut state, "a", T0);
        for ino in 0..2 * MAX_REVOKED as u64 {
            let node = Node { id: FileId { ino, generation: 0 }, ..NODE };
            state.open(OpenRequest { node, ..request(a, READ) }, T0).unwrap();
        }
        state.drop_export(NODE.export);
        let remembered = state.clients.get(a).unwrap().revoked.len();
        assert_eq!((remembered, state.revoked.len()), (MAX_REVOKED, MAX_REVOKED));
    }
}
