//! Open files.
//!
//! ```text
//!            open              open (upgrade), downgrade
//!   (none) ------> open(seq 1) -----------------------> open(seq + 1)
//!                     |
//!                     | close, purge: its locks go with it
//!                     v
//!                  (none)
//! ```
//!
//! An OPEN is in progress until [`State::keep_open`], or until [`State::undo_open`] takes back its share mode and its
//! truncation. Meanwhile it counts like any other, and OPENs of the same owner and file join the open.
//!
//! An open that its owner must confirm (minor version 0) conflicts with other opens, but is
//! unusable until [`State::confirm_open`]. If that does not come within a lease, the open is
//! dropped.

use crate::handle::Node;
use crate::state::client::{ClientId, OwnerName, Principal};
use crate::state::error::StateError;
use crate::state::quota::Requester;
use crate::state::refused::Resource;
use crate::state::share::Share;
use crate::state::stateid::{StateId, StateKey, StateRef, check_seq, next_seq};
use crate::state::table::State;
use crate::state::tables::delegation::Touch;
use crate::state::tables::lock::LockOwner;
use crate::state::tables::open::{BeforeOpen, Claim, Io, Open, OpenRequest, PendingOpen, Use};
use std::time::Duration;
use weir_vfs::Access;

impl<F: Clone> State<F> {
    /// Opens a file, or upgrades the owner's existing open of it. The caller ends this with
    /// [`keep_open`](Self::keep_open) or [`undo_open`](Self::undo_open).
    ///
    /// # Errors
    /// [`StateError::Delegated`], [`StateError::ShareDenied`], [`StateError::Unrecorded`],
    /// [`StateError::Unsettled`]; the grace period forbids it; or a limit is reached.
    pub(crate) fn open(
        &mut self,
        request: OpenRequest<F>,
        now: Duration,
    ) -> Result<StateId, StateError> {
        let effect = request.effect();
        let OpenRequest { client, owner, node, share, claim, confirm, by, made, truncates, file } =
            request;
        self.check_grace(client, claim == Claim::Reclaim)?;
        if claim == Claim::Reclaim {
            self.check_reclaim(client, node)?;
        }
        if !self.clients.get(client)?.is_recorded {
            return Err(StateError::Unrecorded);
        }
        if self.delegations.conflict(node, effect.touch(), Some(client)) {
            return Err(StateError::Delegated);
        }
        // An owner's own deny modes apply to itself, too (RFC 8881 section 18.16.3). Not to a
        // reclaim: it may be a retransmission of one that has already taken effect. And not to the
        // open that stands for the client's delegation, of which the client does not know.
        let stand_in = self.stand_in_owner(client, node);
        let own = match claim {
            Claim::Reclaim => Some((client, &owner)),
            _ => stand_in.as_ref().map(|name| (client, name)),
        };
        self.clear_shares(node, own, effect, now)?;
        if self.nlm_share_conflict(node, None, effect) {
            return Err(StateError::ShareDenied);
        }
        let key = match self.opens.of_owner(client, &owner, node) {
            Some(key) => {
                self.check_settled()?;
                key
            }
            None => {
                // A delegation promises one open. The client may not turn it into any number of
                // them by naming more owners.
                let again = match claim {
                    Claim::New => false,
                    Claim::Reclaim => true,
                    Claim::Delegated => !self.has_open(client, node),
                };
                self.check_quota(Resource::Open, Requester::of(client, again), now)?;
                self.check_settled()?;
                let key = self.new_key();
                let open = Open {
                    client,
                    // Copied, because the decoded name keeps the buffer of the whole request alive.
                    owner: OwnerName::copy_from_slice(&owner),
                    node,
                    seq: 0,
                    share: Share::default(),
                    by: by.clone(),
                    made_by: None,
                    unconfirmed: confirm.then_some(now),
                    waits: false,
                    opened: Vec::new(),
                    pending: Vec::new(),
                    reader: None,
                    writer: None,
                };
                self.enter_open(key, open)?;
                key
            }
        };
        if effect.touch() == Touch::Change {
            self.delegations.changed_by(client, node);
        }
        let made_before = match claim {
            Claim::Delegated => self.delegations.made_by(client, node),
            Claim::New | Claim::Reclaim => None,
        };
        let opened = self.opens.change(key, |open| {
            let (by_before, made_by_before) = (open.by.clone(), open.made_by.clone());
            let before = BeforeOpen { seq: open.seq, by: by_before, made_by: made_by_before };
            if made {
                open.made_by = Some(by.clone());
            } else if open.made_by.is_none() {
                open.made_by = made_before;
            }
            open.by = by;
            open.seq = next_seq(open.seq);
            open.pending.push(PendingOpen { seq: open.seq, share, truncates, before });
            open.settle();
            if share.access.contains(Access::READ) && open.reader.is_none() {
                open.reader = Some(file.clone());
            }
            if share.access.contains(Access::WRITE) && open.writer.is_none() {
                open.writer = Some(file);
            }
            StateId { seq: open.seq, key }
        });
        opened.ok_or(StateError::BadStateId)
    }

    /// Whether a client has an open of a file that it knows of.
    fn has_open(&self, client: ClientId, node: Node) -> bool {
        let stand_in = self.stand_in_owner(client, node);
        let mut opens = self.opens.of_client(client, node);
        opens.any(|(_, o)| Some(&o.owner) != stand_in.as_ref())
    }

    /// Counts an open that a client is about to make of a file that does not exist yet.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub(crate) fn reserve_open(
        &mut self,
        client: ClientId,
        now: Duration,
    ) -> Result<(), StateError> {
        self.check_quota(Resource::Open, Requester::Client(client), now)?;
        self.count_reserved(client);
        Ok(())
    }

    /// Counts an open that was counted before, even beyond the share.
    pub(crate) fn count_reserved(&mut self, client: ClientId) {
        let account = self.account(client);
        self.tallies.opens.add(account, 1);
    }

    /// Returns what [`reserve_open`](Self::reserve_open) has counted.
    pub(crate) fn unreserve_open(&mut self, client: ClientId) {
        self.tallies.opens.subtract(client, 1);
    }

    /// Puts a new open into every table.
    pub(super) fn enter_open(&mut self, key: StateKey, open: Open<F>) -> Result<(), StateError> {
        let account = self.account(open.client);
        self.clients.get_mut(open.client)?.states.insert(key);
        self.tallies.opens.add(account, 1);
        self.opens.insert(key, open);
        Ok(())
    }

    /// Ends an OPEN whose client learns of it: what it opened stays open.
    pub(crate) fn keep_open(&mut self, id: StateId) {
        self.opens.change(id.key, |open| {
            let Some(PendingOpen { share, .. }) = open.take_pending(id.seq) else { return };
            if !share.access.is_empty() && !open.opened.contains(&share) {
                open.opened.push(share);
            }
            open.settle();
        });
    }

    /// Takes back what an OPEN has opened, because the client does not learn of it. What other OPENs of the owner
    /// have opened stays open, even if they came later.
    pub(crate) fn undo_open(&mut self, id: StateId) {
        let is_unused = self.opens.change(id.key, |open| {
            open.undo(id.seq);
            open.opened.is_empty() && open.pending.is_empty()
        });
        if is_unused == Some(true) {
            // It may have got the locks of a delegation that the client has returned meanwhile.
            self.drop_lock_states(self.locks.under(id.key));
            self.drop_open(id.key);
        }
    }

    /// Ends the truncation of an OPEN, done or failed: others may deny writing from now on, unless the owner truncates
    /// the file otherwise or has opened it for writing.
    pub(crate) fn truncated(&mut self, id: StateId) {
        self.opens.change(id.key, |open| {
            if let Some(pending) = open.pending(id.seq) {
                pending.truncates = false;
            }
            open.settle();
        });
    }

    /// OPEN_CONFIRM (RFC 7530 section 16.18).
    ///
    /// # Errors
    /// The stateid is wrong, or the open does not wait for this.
    pub(crate) fn confirm_open(
        &mut self,
        client: ClientId,
        id: StateId,
        node: Node,
    ) -> Result<StateId, StateError> {
        let open = self.opens.get(id.key).ok_or_else(|| self.missing(id.key))?;
        if open.client != client || open.node != node || open.unconfirmed.is_none() {
            return Err(StateError::BadStateId);
        }
        check_seq(id.seq, open.seq, false)?;
        self.change_open(id.key, |open| open.unconfirmed = None)
    }

    /// Drops an open if it is unconfirmed.
    pub(crate) fn cancel_unconfirmed(&mut self, key: StateKey) {
        if self.opens.get(key).is_some_and(|open| open.unconfirmed.is_some()) {
            self.drop_open(key);
        }
    }

    /// Drops opens that stayed unconfirmed for longer than a lease.
    pub(super) fn cancel_overdue(&mut self, now: Duration) {
        let late = |since: Duration| now.saturating_sub(since) > self.limits.lease;
        let overdue =
            self.opens.unconfirmed().filter(|(_, open)| open.unconfirmed.is_some_and(late));
        let gone: Vec<StateKey> = overdue.map(|(key, _)| key).collect();
        gone.into_iter().for_each(|key| self.cancel_unconfirmed(key));
    }

    /// The names of a client's open owners.
    pub(crate) fn open_owners(&self, client: ClientId) -> impl Iterator<Item = &OwnerName> {
        self.states_of(client).filter_map(|key| self.opens.get(*key)).map(|open| &open.owner)
    }

    /// OPEN_DOWNGRADE.
    ///
    /// # Errors
    /// The stateid is wrong, or [`StateError::NotASubset`].
    pub(crate) fn downgrade(
        &mut self,
        client: ClientId,
        id: StateId,
        node: Node,
        share: Share,
    ) -> Result<StateId, StateError> {
        let open = self.own_open(client, id, node)?;
        let modes: Vec<Share> = open.modes().collect();
        if share.access.is_empty() || !share.is_union_of(&modes) {
            return Err(StateError::NotASubset);
        }
        self.change_open(id.key, |open| {
            open.opened.retain(|o| o.is_within(share));
            for pending in open.pending.iter_mut().filter(|o| !o.share.is_within(share)) {
                pending.share = Share::default();
            }
            open.settle();
        })
    }

    /// Changes an open, and counts the change.
    fn change_open(
        &mut self,
        key: StateKey,
        change: impl FnOnce(&mut Open<F>),
    ) -> Result<StateId, StateError> {
        let changed = self.opens.change(key, |open| {
            change(open);
            open.seq = next_seq(open.seq);
            StateId { seq: open.seq, key }
        });
        changed.ok_or(StateError::BadStateId)
    }

    /// CLOSE. Also drops the locks that were taken under the open.
    ///
    /// # Errors
    /// The stateid is wrong.
    pub(crate) fn close(
        &mut self,
        client: ClientId,
        id: StateId,
        node: Node,
    ) -> Result<(), StateError> {
        if self.own_open(client, id, node)?.share.access.contains(Access::WRITE) {
            self.delegations.changed_by(client, node);
        }
        self.drop_lock_states(self.locks.under(id.key));
        self.drop_open(id.key);
        Ok(())
    }

    /// The handle for I/O under the stateid of an open, of locks under an open, or of a delegation.
    ///
    /// # Errors
    /// The stateid is wrong, or the file is not open for `access`.
    pub(crate) fn io(
        &self,
        client: Option<ClientId>,
        id: StateId,
        node: Node,
        access: Access,
    ) -> Result<Io<F>, StateError> {
        if let Some(io) = self.delegation_io(client, id, node, access) {
            return io;
        }
        let (open_key, lock) = match self.locks.get(id.key) {
            Some(lock) => (lock.open, Some(lock)),
            None => (id.key, None),
        };
        let open = self.opens.get(open_key).ok_or_else(|| self.missing(id.key))?;
        if open.unconfirmed.is_some()
            || open.node != node
            || client.is_some_and(|client| client != open.client)
        {
            return Err(StateError::BadStateId);
        }
        let seq = lock.map_or(open.seq, |lock| lock.seq);
        check_seq(id.seq, seq, client.is_some())?;
        let file = if access.contains(Access::WRITE) { &open.writer } else { &open.reader };
        let file = file.clone().ok_or(StateError::OpenMode)?;
        let lock_owner = lock.map(|lock| lock.owner.clone());
        let (opened_by, made_by) = (Some(open.by.clone()), open.made_by.clone());
        Ok(Io { file, lock_owner, opened_by, made_by, writing: None })
    }

    /// Whether share reservations allow I/O without an open. Revokes conflicting opens of clients
    /// whose lease has expired.
    ///
    /// # Errors
    /// [`StateError::Locked`].
    pub(crate) fn anonymous_io(
        &mut self,
        node: Node,
        access: Access,
        now: Duration,
    ) -> Result<(), StateError> {
        let share = Share { access, deny: Access::empty() };
        self.clear_shares(node, None, share, now).map_err(|_| StateError::Locked)?;
        if self.nlm_share_conflict(node, None, share) { Err(StateError::Locked) } else { Ok(()) }
    }

    /// A handle for writing from the opens or the delegation of `client`, or, if that is `None`, from
    /// opens by the principal `by` in minor version 0, which has no write delegations.
    pub(crate) fn writer(&self, client: Option<ClientId>, by: &Principal, node: Node) -> Option<F> {
        if let Some(client) = client {
            let mut opens = self.opens.of_client(client, node);
            let writer = opens.find_map(|(_, open)| open.writer.clone());
            return writer.or_else(|| self.delegated_writer(client, node));
        }
        let is_its = |open: &Open<F>| open.by == *by && !self.has_sessions(open.client);
        let mut opens = self.opens.of_file_to_change(node);
        opens.find_map(|(_, open)| open.writer.as_ref().filter(|_| is_its(open)).cloned())
    }

    /// Whether any client has the file open.
    #[cfg(test)]
    pub(crate) fn is_open(&self, node: Node) -> bool {
        self.opens.is_open(node)
    }

    /// Whether a client may continue to use a file as it began to.
    ///
    /// # Errors
    /// The reason why it may not.
    pub(crate) fn check_use(&self, client: ClientId, used: &Use) -> Result<(), StateError> {
        let &Use { under, node, access } = used;
        let writes = access.contains(Access::WRITE);
        match under {
            StateRef::Of(StateId { key, .. }) => {
                if writes && self.delegations.is_overdue(key) {
                    return Err(StateError::Revoked);
                }
                match self.newest(key) {
                    Some((owner, _)) if owner == client => {}
                    Some(_) => return Err(StateError::BadStateId),
                    None => return Err(self.missing(key)),
                }
                let open = self.locks.get(key).map_or(key, |lock| lock.open);
                // The access that a delegation allows does not change.
                let Some(open) = self.opens.get(open) else { return Ok(()) };
                let file = if writes { &open.writer } else { &open.reader };
                if file.is_some() { Ok(()) } else { Err(StateError::OpenMode) }
            }
            // A READ with this stateid ignores share reservations.
            StateRef::Bypass if !writes => Ok(()),
            _ => {
                let share = Share { access, deny: Access::empty() };
                let denied = self.opens.are_in_conflict(node, None, share)
                    || self.nlm_share_conflict(node, None, share);
                if denied { Err(StateError::Locked) } else { Ok(()) }
            }
        }
    }

    /// The client of minor version 0 that owns a state. State of a client with sessions can only be
    /// used in its sessions.
    ///
    /// # Errors
    /// There is no such state of such a client.
    pub(crate) fn client_of(&self, key: StateKey) -> Result<ClientId, StateError> {
        match self.newest(key) {
            Some((client, _)) if self.has_sessions(client) => Err(StateError::BadStateId),
            Some((client, _)) => Ok(client),
            None => Err(self.missing(key)),
        }
    }

    /// Like [`client_of`](Self::client_of), for a principal that is about to change the state. Only
    /// the principal that opened the file, or the client's own, may do so.
    ///
    /// # Errors
    /// There is no such state of such a client, or [`StateError::NotTheOpener`].
    pub(crate) fn client_of_own(
        &self,
        key: StateKey,
        principal: &Principal,
    ) -> Result<ClientId, StateError> {
        let client = self.client_of(key)?;
        let open = self.opens.get(self.locks.get(key).map_or(key, |lock| lock.open));
        let by = open.map(|open| &open.by).or_else(|| self.delegations.holder(key));
        if by == Some(principal) || self.clients.get(client)?.principal == *principal {
            return Ok(client);
        }
        Err(StateError::NotTheOpener)
    }

    fn has_sessions(&self, client: ClientId) -> bool {
        self.clients.get(client).is_ok_and(|client| client.owner.sessions)
    }

    /// The owner of an open (minor version 0), if `principal` may change it.
    ///
    /// # Errors
    /// There is no such open, or [`StateError::NotTheOpener`].
    pub(crate) fn owner_of_open(
        &self,
        key: StateKey,
        principal: &Principal,
    ) -> Result<LockOwner, StateError> {
        self.client_of_own(key, principal)?;
        let open = self.opens.get(key).ok_or(StateError::BadStateId)?;
        Ok(LockOwner { client: open.client, name: open.owner.clone() })
    }

    /// The client, and the stateid with its current sequence number, of an open, lock or
    /// delegation.
    pub(crate) fn newest(&self, key: StateKey) -> Option<(ClientId, StateId)> {
        let of_open = self.opens.get(key).map(|o| (o.client, o.seq));
        let of_delegation = self.delegations.client_of(key).map(|client| (client, 1));
        let of_lock = self.locks.get(key).map(|l| (l.owner.client, l.seq));
        of_open.or(of_lock).or(of_delegation).map(|(client, seq)| (client, StateId { seq, key }))
    }

    /// Revokes conflicting opens of clients whose lease has expired. Fails if another conflict
    /// remains.
    pub(super) fn clear_shares(
        &mut self,
        node: Node,
        by: Option<(ClientId, &OwnerName)>,
        share: Share,
        now: Duration,
    ) -> Result<(), StateError> {
        while let Some(other) = self.share_conflict(node, by, share) {
            let (key, client) = other;
            if !self.revoke_if_expired(client, Some(key), now) {
                return Err(StateError::ShareDenied);
            }
        }
        Ok(())
    }

    /// An open that conflicts with an open by `by`, or with I/O without an open; and its client.
    fn share_conflict(
        &self,
        node: Node,
        by: Option<(ClientId, &OwnerName)>,
        share: Share,
    ) -> Option<(StateKey, ClientId)> {
        if !self.opens.are_in_conflict(node, by, share) {
            return None;
        }
        // Only opens for reading conflict besides, with one that denies reading.
        self.opens
            .of_file_to_change(node)
            .chain(self.opens.of_file(node))
            .filter(|(_, o)| by != Some((o.client, &o.owner)))
            .find(|(_, o)| o.share.conflicts(share))
            .map(|(key, o)| (key, o.client))
    }

    /// A client's confirmed open of a file.
    pub(super) fn own_open(
        &self,
        client: ClientId,
        id: StateId,
        node: Node,
    ) -> Result<&Open<F>, StateError> {
        let zero_is_newest = self.clients.get(client)?.owner.sessions;
        let open = self.opens.get(id.key).ok_or_else(|| self.missing(id.key))?;
        if open.unconfirmed.is_some() || open.client != client || open.node != node {
            return Err(StateError::BadStateId);
        }
        check_seq(id.seq, open.seq, zero_is_newest)?;
        Ok(open)
    }

    /// Removes an open from every table.
    pub(super) fn drop_open(&mut self, key: StateKey) {
        let Some(open) = self.opens.remove(key) else { return };
        if let Ok(client) = self.clients.get_mut(open.client) {
            client.states.remove(&key);
        }
        self.tallies.opens.subtract(open.client, 1);
        if open.waits {
            self.lock_waiters.closed(key, open.node);
        }
        self.drop_idle(open.node);
    }
}
