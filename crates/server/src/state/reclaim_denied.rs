//! Files of which a client may not reclaim state after a restart, because the server revoked the
//! state and may have granted conflicting state to another client (RFC 8881 section 8.4.3).
//!
//! ```text
//!                revoked                 free_stateid
//!   (none) ----------------> unfreed ------------------> (none)
//!                | minor version 0, or the table of revoked state is full
//!                +---------> unacknowledged -----------> (none)  the client goes
//!                  restart               RECLAIM_COMPLETE; without sessions: the end of grace
//!   any of these ----------> inherited ----------------> (none)
//! ```
//!
//! 1. Reclaims of a file stay denied while its client may believe that it still has the revoked
//!    state: until the client frees the stateid, or its chance to reclaim has passed.
//! 2. The denial is on disk ([`State::take_unwritten`]) before the server replies to the client
//!    that gets what was revoked.
//! 3. At most [`MAX_REVOKED`](super::revoked) files per client are recorded individually, and
//!    [`MAX_UNACKNOWLEDGED`] where the server gets no acknowledgment. Beyond that, the client may
//!    reclaim nothing.
//! 4. A client with sessions that has not sent RECLAIM_COMPLETE by the end of grace may have missed
//!    any of its state. Until it sends RECLAIM_COMPLETE, it may reclaim nothing after another
//!    restart.

use crate::handle::Node;
use crate::state::client::{Client, ClientId, Owner};
use crate::state::error::StateError;
use crate::state::record::Record;
use crate::state::table::State;
use crate::state::tables::reclaim_denied::{MAX_UNACKNOWLEDGED, ReclaimDenied};

impl Client {
    /// Denies reclaims of a file without an acknowledgment to wait for: the protocol has none, or
    /// the table of revoked state is full.
    pub(super) fn deny_unacknowledged(&mut self, node: Node) {
        self.unacknowledged.add(node, MAX_UNACKNOWLEDGED);
    }

    /// Everything that the client may not reclaim after a restart.
    pub(super) fn reclaim_denied(&self) -> ReclaimDenied {
        if self.inherited.all || self.unacknowledged.all {
            return ReclaimDenied::all();
        }
        let denied = self.inherited.files.iter().chain(&self.unacknowledged.files).copied();
        let files = denied.chain(self.revoked.iter().map(|revoked| revoked.node)).collect();
        ReclaimDenied { all: false, files }
    }
}

impl Client {
    fn record(&self) -> Record {
        Record { reclaim_denied: self.reclaim_denied(), principal: Some(self.principal.clone()) }
    }
}

impl<F: Clone> State<F> {
    /// The disk record that a client should have; `None` if it should have none.
    pub(crate) fn record_of(&self, owner: &Owner) -> Option<Record> {
        let client = self.clients.confirmed(owner)?;
        client.is_recorded.then(|| client.record())
    }

    /// The record to write for a client that is not on disk yet, with the client's name; `None` if
    /// it is on disk.
    ///
    /// # Errors
    /// [`StateError::StaleClientId`].
    pub(crate) fn new_record(&self, id: ClientId) -> Result<Option<(Owner, Record)>, StateError> {
        let client = self.clients.get(id)?;
        Ok((!client.is_recorded).then(|| (client.owner.clone(), client.record())))
    }

    /// Checks that a client may reclaim state of a file.
    ///
    /// # Errors
    /// [`StateError::ReclaimDenied`] if the state was revoked.
    pub(super) fn check_reclaim(&self, id: ClientId, node: Node) -> Result<(), StateError> {
        let client = self.clients.get(id)?;
        let is_denied = |reclaim_denied: &ReclaimDenied| {
            reclaim_denied.all || reclaim_denied.files.contains(&node)
        };
        if is_denied(&client.inherited)
            || is_denied(&client.unacknowledged)
            || client.revoked.iter().any(|revoked| revoked.node == node)
        {
            return Err(StateError::ReclaimDenied);
        }
        Ok(())
    }

    /// Ends what earlier runs denied: the client has sent RECLAIM_COMPLETE, so it knows its state.
    pub(super) fn clear_inherited(&mut self, id: ClientId) -> Result<(), StateError> {
        let client = self.clients.get_mut(id)?;
        if !std::mem::take(&mut client.inherited).is_empty() {
            self.unwritten.insert(client.owner.clone());
        }
        Ok(())
    }

    /// Periodic: ends the reclaims of all clients once grace is over.
    pub(super) fn end_reclaims(&mut self) {
        if self.grace.is_active() {
            return;
        }
        for client in self.clients.iter_mut().filter(|client| client.may_reclaim) {
            client.may_reclaim = false;
            let inherited =
                if client.owner.sessions { ReclaimDenied::all() } else { ReclaimDenied::default() };
            if client.inherited != inherited {
                client.inherited = inherited;
                self.unwritten.insert(client.owner.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::{
        LEASE, NODE, T0, WRITE, client, lock_under, owner, principal, ready, request, state_after,
        state_denying,
    };
    use crate::state::{Claim, LockError, OpenRequest, StateId};
    use std::time::Duration;
    use weir_vfs::FileId;

    type State = super::State<char>;

    const OVER: Duration = Duration::from_secs(91);
    const OTHER: Node = Node { id: FileId { ino: 2, generation: 0 }, ..NODE };

    fn on_disk(state: &mut State, name: &'static str) -> Option<ReclaimDenied> {
        assert!(state.write_records().contains(&owner(name)), "the record must be written");
        reclaim_denied(state, &owner(name))
    }

    fn reclaim_denied(state: &State, owner: &Owner) -> Option<ReclaimDenied> {
        state.record_of(owner).map(|record| record.reclaim_denied)
    }

    fn only(node: Node) -> ReclaimDenied {
        ReclaimDenied { all: false, files: [node].into() }
    }

    /// Client A has two files open, and loses one of them to client B after its lease has expired.
    fn taken_from_a() -> (State, ClientId, [StateId; 2]) {
        let mut state = state_after(&[]);
        let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
        let open = state.open(request(a, WRITE), T0).unwrap();
        let locks = state.lock(lock_under(open, a, true), T0).unwrap();
        state.open(OpenRequest { node: OTHER, ..request(a, WRITE) }, T0).unwrap();
        let open_b = state.open(request(b, WRITE), OVER).unwrap();
        let lock_b = lock_under(open_b, b, true);
        let unsettled = Err(LockError::State(StateError::Unsettled));
        assert_eq!(state.lock(lock_b.clone(), OVER), unsettled);
        assert_eq!(on_disk(&mut state, "a"), Some(only(NODE)));
        state.lock(lock_b, OVER).unwrap();
        (state, a, [open, locks])
    }

    fn reclaim(state: &mut State, client: ClientId, node: Node) -> Result<StateId, StateError> {
        let request = OpenRequest { claim: Claim::Reclaim, node, ..request(client, WRITE) };
        state.open(request, T0)
    }

    #[test]
    fn revoked_files_stay_denied_until_the_client_acknowledges() {
        let (mut state, a, [open, locks]) = taken_from_a();
        state.clients.renew(a, OVER);
        let node = Node { id: FileId { ino: 3, generation: 0 }, ..NODE };
        state.open(OpenRequest { node, ..request(a, WRITE) }, OVER).unwrap();
        assert_eq!(reclaim_denied(&state, &owner("a")), Some(only(NODE)));
        state.free_stateid(a, locks).unwrap();
        assert_eq!(
            reclaim_denied(&state, &owner("a")),
            Some(only(NODE)),
            "the open was revoked, too"
        );
        state.free_stateid(a, open).unwrap();
        assert_eq!(on_disk(&mut state, "a"), Some(ReclaimDenied::default()));
    }

    #[test]
    fn only_denied_files_are_refused_to_reclaims() {
        let mut state = state_denying([("a", only(NODE)), ("all", ReclaimDenied::all())]);
        let (a, all) = (client(&mut state, "a", T0), client(&mut state, "all", T0));
        assert_eq!(reclaim(&mut state, a, NODE), Err(StateError::ReclaimDenied));
        assert!(reclaim(&mut state, a, OTHER).is_ok());
        assert_eq!(reclaim(&mut state, all, OTHER), Err(StateError::ReclaimDenied));
        // Another restart now would not lift it.
        assert_eq!(reclaim_denied(&state, &owner("a")), Some(only(NODE)));
        state.reclaim_complete(a).unwrap();
        assert_eq!(on_disk(&mut state, "a"), Some(ReclaimDenied::default()));
    }

    #[test]
    fn a_client_without_reclaim_complete_may_reclaim_nothing_later() {
        let mut state = state_denying([("a", ReclaimDenied::default())]);
        let a = client(&mut state, "a", T0);
        reclaim(&mut state, a, NODE).unwrap();
        state.sweep(LEASE - Duration::from_secs(1));
        assert_eq!(reclaim_denied(&state, &owner("a")), Some(ReclaimDenied::default()));
        state.sweep(LEASE);
        assert_eq!(on_disk(&mut state, "a"), Some(ReclaimDenied::all()));
        state.reclaim_complete(a).unwrap();
        assert_eq!(on_disk(&mut state, "a"), Some(ReclaimDenied::default()));
    }

    /// A restart before this is on disk would let the absent client reclaim what others have got meanwhile.
    #[test]
    fn nothing_is_granted_until_it_is_on_disk_that_absent_clients_may_not_reclaim() {
        let mut state = state_denying([("a", ReclaimDenied::default())]);
        let b = ready(&mut state, "b", T0);
        state.write_records();
        assert_eq!(state.open(request(b, WRITE), LEASE), Err(StateError::Grace));
        state.sweep(LEASE);
        assert_eq!(state.open(request(b, WRITE), LEASE), Err(StateError::Unsettled));
        assert!(state.write_records().contains(&owner("a")));
        assert_eq!(reclaim_denied(&state, &owner("a")), None);
        state.open(request(b, WRITE), LEASE).unwrap();
    }

    #[test]
    fn denials_of_an_unreachable_client_last_until_its_next_run() {
        let mut state = state_after(&[]);
        let old = |state: &mut State, verifier| {
            let owner = Owner { sessions: false, ..owner("old") };
            let (id, _) =
                state.clients.introduce(owner, [verifier; 8], principal(), None, T0).unwrap();
            state.confirm(id, &principal(), T0).unwrap();
            state.clients.get_mut(id).unwrap().is_recorded = true;
            id
        };
        let id = old(&mut state, 0);
        let name = Owner { sessions: false, ..owner("old") };
        for ino in 0..MAX_UNACKNOWLEDGED as u64 {
            state.open(request(id, WRITE), T0).unwrap();
            let node = Node { id: FileId { ino, generation: 1 }, ..NODE };
            state.open(OpenRequest { node, ..request(id, WRITE) }, T0).unwrap();
            assert!(!reclaim_denied(&state, &name).unwrap().all);
            state.drop_export(NODE.export);
            assert!(!reclaim_denied(&state, &name).unwrap().is_empty());
            assert_eq!(state.write_records(), std::slice::from_ref(&name));
        }
        assert_eq!(
            reclaim_denied(&state, &name),
            Some(ReclaimDenied::all()),
            "too many files to record individually"
        );
        old(&mut state, 1);
        assert_eq!(state.write_records(), std::slice::from_ref(&name));
        assert_eq!(reclaim_denied(&state, &name), Some(ReclaimDenied::default()));
    }
}
