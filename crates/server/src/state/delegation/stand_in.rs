//! Locks under a delegation: a client whose OPEN got a delegation and no open names the delegation
//! in LOCK (RFC 9754 section 4). An open of the server's own then stands for the delegation: locks
//! belong to opens.
//!
//! 1. Its stateid is told to no client, and its owner has a name that no client can send. It ends with the delegation.
//! 2. Its locks then go on under another open of the client, which the client made under the
//!    delegation before it returned that; without one they are released, as by CLOSE.

use crate::handle::Node;
use crate::state::client::{ClientId, OwnerName};
use crate::state::error::StateError;
use crate::state::quota::Requester;
use crate::state::refused::Resource;
use crate::state::share::Share;
use crate::state::stateid::{StateId, StateKey};
use crate::state::table::State;
use crate::state::tables::delegation::DelegationKind;
use crate::state::tables::open::Open;
use crate::state::tables::revoked::{Kind, Revoked, Why};
use std::time::Duration;
use weir_nfs::v4::types::MAX_OWNER_BYTES;
use weir_vfs::Access;

/// The name of its owner: longer than a name on the wire. OPEN does not find it, and so adds nothing to it.
static OWNER: [u8; MAX_OWNER_BYTES + 1] = [0; MAX_OWNER_BYTES + 1];

impl<F: Clone> State<F> {
    /// The open for locks that are asked for under an open or a delegation.
    ///
    /// # Errors
    /// The stateid is wrong, or there are too many opens.
    pub(in crate::state) fn open_for_locks(
        &mut self,
        client: ClientId,
        id: StateId,
        node: Node,
        now: Duration,
    ) -> Result<StateKey, StateError> {
        if self.delegations.client_of(id.key).is_none() {
            return self.own_open(client, id, node).map(|_| id.key);
        }
        let d = self.delegation(client, id)?;
        if d.node != node {
            return Err(StateError::BadStateId);
        }
        if let Some(key) = d.stand_in.filter(|key| self.opens.contains(*key)) {
            return Ok(key);
        }
        let (file, by, made_by) = (d.file.clone(), d.by.clone(), d.made_by.clone());
        let share = Share { access: d.kind.access(), deny: Access::empty() };
        let writer = (d.kind == DelegationKind::Write).then(|| file.clone());
        self.check_quota(Resource::Open, Requester::of(client, true), now)?;
        let key = self.new_key();
        let open = Open {
            client,
            owner: OwnerName::from_static(&OWNER),
            node,
            seq: 1,
            share,
            by,
            made_by,
            unconfirmed: None,
            waits: false,
            opened: vec![share],
            pending: Vec::new(),
            reader: Some(file),
            writer,
        };
        self.enter_open(key, open)?;
        if let Some(d) = self.delegations.by_key.get_mut(&id.key) {
            d.stand_in = Some(key);
        }
        Ok(key)
    }

    /// The owner of the open that stands for a client's delegation of a file.
    pub(in crate::state) fn stand_in_owner(
        &self,
        client: ClientId,
        node: Node,
    ) -> Option<OwnerName> {
        let delegation = self.delegations.held_by(client, node)?;
        let stand_in = self.delegations.by_key.get(&delegation)?.stand_in?;
        self.opens.get(stand_in).map(|open| open.owner.clone())
    }

    /// Ends the open that stands for a delegation, which ends, or was revoked for a reason.
    pub(super) fn end_stand_in(&mut self, delegation: StateKey, why: Option<Why>) {
        let Some(d) = self.delegations.by_key.get_mut(&delegation) else { return };
        let (client, node) = (d.client, d.node);
        let Some(key) = d.stand_in.take() else { return };
        if !self.opens.contains(key) {
            return;
        }
        let others = self.opens.of_client(client, node);
        let others = others.filter(|(other, open)| *other != key && open.unconfirmed.is_none());
        let most = others.max_by_key(|(_, open)| open.share.access.bits().count_ones());
        let heir = most.map(|(key, _)| key).filter(|_| why.is_none());
        let locks = self.locks.under(key);
        if let Some(heir) = heir {
            for lock in locks {
                self.locks.change(lock, |state| state.open = heir);
            }
        } else {
            self.drop_lock_states(locks.iter().copied());
            for lock in locks {
                why.into_iter().for_each(|why| {
                    let kind = Kind::Lock(delegation);
                    self.note_revoked(client, Revoked { key: lock, kind, node, why });
                });
            }
        }
        self.drop_open(key);
    }
}
