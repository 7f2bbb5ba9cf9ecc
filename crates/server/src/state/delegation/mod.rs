//! Delegations allow a client to open and read a file, and to cache what it read, without asking
//! the server. A write delegation also allows it to write, and to delay writing back.
//!
//! 1. While a file is delegated, only the holder changes it; with a write delegation, no other
//!    client reads it either. A conflicting call goes through [`State::recall`] or [`State::open`],
//!    and is tried again when the delegation is gone.
//! 2. A delegation is granted only if the client can be called back, no other client has the file
//!    open in a conflicting way, no call is changing the file ([`Filter`]), and none was recalled
//!    recently.
//! 3. A delegation is gone at the latest a lease after its recall, even if its client does not
//!    answer; but not before the writes under it that the server executes are done, so that none
//!    comes after the next client's. Later writes are refused.
//! 4. There are at most [`Limits::delegations`]. Reclaims may exceed a limit below the default, up
//!    to the default. Revoked delegations do not count; `revoked` remembers them.
//! 5. The holder of a write delegation sees the server's attributes, and is itself the authority
//!    for the change attribute, the size and, if it keeps them, the times. Other clients see what
//!    it answers ([`State::attrs_for_others`]); the change attribute that they see never goes back.
//!    If it does not answer, they see nothing until the delegation is gone.
//! 6. Only the holder sets the times that it keeps, and only forwards ([`State::delegated_times`]).
//!    If its client crashes, or the delegation is revoked, the file has the times at which the
//!    client's writes reached the server. If the server crashes, the client reclaims the
//!    delegation, and the file's times of that moment are the original ones.
//! 7. A delegation may be all that keeps a file open (RFC 9754 section 4). It has a handle for all
//!    the access that it allows, and remembers who created the file. An open that denies access to
//!    others is never replaced by a delegation.
//!
//! ```text
//!   delegate        recall               return_delegation
//!  ----------> held -------> recalled ----------------------> (none)
//!               |               | revoke_overdue                 ^
//!               |               +------> overdue, while writing -+
//!               +--- return_delegation, the client goes ---------+
//! ```

mod stand_in;
mod times;

use crate::handle::Node;
use crate::state::client::{ClientId, Principal};
use crate::state::error::StateError;
use crate::state::limits::Limits;
use crate::state::quota::Requester;
use crate::state::refused::Resource;
use crate::state::stateid::{StateId, StateKey, check_seq};
use crate::state::table::{FileState, State};
use crate::state::tables::delegation::{
    CONTENDED, Delegation, DelegationKind, DelegationRequest, Grant, PendingRecall, Phase,
    Recalled, Touch, Wanted, WhyNot, Writer,
};
use crate::state::tables::delegation_filter::Filter;
use crate::state::tables::open::{Io, WriteInProgress};
use crate::state::tables::revoked::{Kind, Revoked, Why};
use std::sync::Arc;
use std::time::Duration;
use weir_vfs::Access;

impl<F: Clone> State<F> {
    /// The filter that tells which files may be delegated.
    pub(crate) fn filter(&self) -> Arc<Filter> {
        self.delegations.filter.clone()
    }

    /// Whether, and how, a file that was just opened may be delegated.
    ///
    /// # Errors
    /// The reason why it may not.
    pub(crate) fn may_delegate(
        &mut self,
        request: DelegationRequest,
        now: Duration,
    ) -> Result<DelegationKind, WhyNot> {
        let DelegationRequest { client, node, share, wanted } = request;
        let kind = match wanted {
            Wanted::Read => DelegationKind::Read,
            Wanted::Write => DelegationKind::Write,
            Wanted::NoPreference | Wanted::Any if share.access.contains(Access::WRITE) => {
                DelegationKind::Write
            }
            Wanted::NoPreference | Wanted::Any => DelegationKind::Read,
        };
        if self.limits.delegations == 0 || !self.can_call(client) {
            return Err(WhyNot::Resource);
        }
        if let Some(mine) = self.delegations.held_by(client, node) {
            let has = self.delegations.by_key.get(&mine).map(|d| d.kind);
            return Err(match (has, kind) {
                (Some(DelegationKind::Read), DelegationKind::Write) => WhyNot::Upgrade,
                (Some(DelegationKind::Write), _) if wanted == Wanted::Read => WhyNot::Downgrade,
                _ => WhyNot::HasOne,
            });
        }
        if kind == DelegationKind::Write
            && !self.clients.get(client).is_ok_and(|c| c.owner.sessions)
        {
            return Err(WhyNot::Resource);
        }
        let lately = |recalled: &Duration| now.saturating_sub(*recalled) < CONTENDED;
        if self.is_in_the_way_of(kind, client, node)
            || self.delegations.contended.get(&node).is_some_and(lately)
        {
            return Err(WhyNot::Contention);
        }
        if wanted == Wanted::NoPreference
            && self.delegations.opened.insert((node, client, kind), ()).is_none()
        {
            return Err(WhyNot::NotYet);
        }
        let share = self.check_share(1, Resource::Delegation, Requester::Client(client));
        share.map_err(|_| WhyNot::Resource)?;
        Ok(kind)
    }

    /// Whether an open, a delegation or an NLM lock conflicts with a delegation of this kind.
    fn is_in_the_way_of(&self, kind: DelegationKind, client: ClientId, node: Node) -> bool {
        if self.files.get(&node).is_some_and(FileState::is_used_by_nlm) {
            return true;
        }
        match kind {
            // The client's own opens for writing count, too: it is about to change the file.
            DelegationKind::Read => {
                self.opens.is_open_to_write(node)
                    || self.delegations.conflict(node, Touch::Read, None)
            }
            DelegationKind::Write => {
                self.opens.is_open_by_others(client, node)
                    || self.delegations.conflict(node, Touch::Change, None)
            }
        }
    }

    /// Delegates a file that the client has open.
    ///
    /// # Errors
    /// The reason why it may not; conditions may have changed since
    /// [`may_delegate`](Self::may_delegate).
    pub(crate) fn delegate(
        &mut self,
        grant: Grant<F>,
        kind: DelegationKind,
        now: Duration,
    ) -> Result<StateId, WhyNot> {
        let (client, node) = (grant.request.client, grant.request.node);
        if self.may_delegate(grant.request, now)? != kind
            || !self.delegations.filter.add(node, kind)
        {
            return Err(WhyNot::Contention);
        }
        Ok(self.insert_delegation(grant, kind, Phase::Held, client, node))
    }

    /// Restores a delegation from before a restart. Returns whether the client must return it at
    /// once: because an open conflicts, or because delegations are disabled.
    ///
    /// # Errors
    /// The limit is reached, or the client has a delegation of the file.
    pub(crate) fn reclaim_delegation(
        &mut self,
        grant: Grant<F>,
        kind: DelegationKind,
        now: Duration,
    ) -> Result<(StateId, bool), WhyNot> {
        let (client, node) = (grant.request.client, grant.request.node);
        let most = self.limits.delegations.max(Limits::default().delegations);
        if self.delegations.by_key.len() >= most {
            return Err(WhyNot::Resource);
        }
        if self.delegations.held_by(client, node).is_some() {
            return Err(WhyNot::HasOne);
        }
        let recall = self.limits.delegations == 0 || self.is_in_the_way_of(kind, client, node);
        // Counted even if it is recalled at once: the client holds it until it returns it.
        let recall = !self.delegations.filter.count(node, kind) || recall;
        let phase = if recall { Phase::Recalled { since: now } } else { Phase::Held };
        Ok((self.insert_delegation(grant, kind, phase, client, node), recall))
    }

    fn insert_delegation(
        &mut self,
        grant: Grant<F>,
        kind: DelegationKind,
        phase: Phase,
        client: ClientId,
        node: Node,
    ) -> StateId {
        let key = self.new_key();
        let Grant { file, change, times, keeps_times, referring, by, made, .. } = grant;
        let delegation = Delegation {
            client,
            node,
            kind,
            phase,
            file,
            change: Some(change),
            shown_change: 0,
            shown_mtime: None,
            original: times,
            keeps_times: keeps_times && kind == DelegationKind::Write,
            referring,
            made_by: made.then(|| by.clone()),
            by,
            stand_in: None,
            writing: WriteInProgress::default(),
        };
        self.delegations.insert(key, delegation);
        let account = self.account(client);
        if let Ok(client) = self.clients.get_mut(client) {
            client.states.insert(key);
            self.tallies.delegations.add(account, 1);
        }
        StateId { seq: 1, key }
    }

    /// Recalls the delegations that conflict with a call by client `by` (`None`: unknown). Revokes
    /// those that are overdue, or whose client's lease has expired.
    pub(crate) fn recall(
        &mut self,
        node: Node,
        touch: Touch,
        by: Option<ClientId>,
        now: Duration,
    ) -> Recalled {
        let mut recalled = Recalled::default();
        if let Some(client) = by
            && touch == Touch::Change
        {
            self.delegations.changed_by(client, node);
        }
        let broken: Vec<StateKey> = self.delegations.broken_by(node, touch, by).collect();
        for key in broken {
            let Some(client) = self.delegations.client_of(key) else { continue };
            let client = self.clients.get(client);
            let expired = client.is_ok_and(|c| self.lets_go(c, node.export, now));
            if expired {
                self.revoke_delegation(key, Why::Expired);
                continue;
            }
            if self.revoke_if_overdue(key, now) {
                continue;
            }
            recalled.pending = true;
            let Some(delegation) = self.delegations.by_key.get_mut(&key) else { continue };
            if delegation.phase == Phase::Held {
                delegation.phase = Phase::Recalled { since: now };
                recalled.tell.push(key);
            }
        }
        if recalled.pending {
            self.delegations.contended.insert(node, now);
        }
        recalled
    }

    /// The recall to send to a client; `None` if the delegation is gone.
    pub(crate) fn order(&self, key: StateKey) -> Option<PendingRecall> {
        let d = self.delegations.by_key.get(&key)?;
        let out = matches!(d.phase, Phase::Recalled { .. });
        let id = StateId { seq: 1, key };
        out.then_some(PendingRecall { client: d.client, id, node: d.node, referring: d.referring })
    }

    /// DELEGRETURN.
    ///
    /// # Errors
    /// The stateid is wrong, or [`StateError::Revoked`].
    pub(crate) fn return_delegation(
        &mut self,
        client: ClientId,
        id: StateId,
        node: Node,
    ) -> Result<(), StateError> {
        let d = self.delegation(client, id)?;
        if d.node != node {
            return Err(StateError::BadStateId);
        }
        self.drop_delegation(id.key);
        self.forget_revoked_locks(client, id.key);
        Ok(())
    }

    /// The kind of the delegation under which a client claims an open, and the principal that
    /// created the file with it.
    ///
    /// # Errors
    /// The stateid is wrong, or [`StateError::Revoked`].
    pub(crate) fn delegated(
        &self,
        client: ClientId,
        id: StateId,
        node: Node,
    ) -> Result<(DelegationKind, Option<Principal>), StateError> {
        let d = self.delegation(client, id)?;
        if d.node != node {
            return Err(StateError::BadStateId);
        }
        Ok((d.kind, d.made_by.clone()))
    }

    /// The handle for I/O under a delegation; `None` if the stateid is not that of a delegation.
    pub(super) fn delegation_io(
        &self,
        client: Option<ClientId>,
        id: StateId,
        node: Node,
        access: Access,
    ) -> Option<Result<Io<F>, StateError>> {
        let d = self.delegations.by_key.get(&id.key)?;
        let io = || {
            if d.node != node || client.is_some_and(|client| client != d.client) {
                return Err(StateError::BadStateId);
            }
            check_seq(id.seq, 1, client.is_some())?;
            let (file, writes) = (d.file.clone(), access.contains(Access::WRITE));
            if writes && d.kind == DelegationKind::Read {
                return Err(StateError::OpenMode);
            }
            if writes && d.phase == Phase::Overdue {
                return Err(StateError::Revoked);
            }
            let (opened_by, made_by) = (Some(d.by.clone()), d.made_by.clone());
            let writing = writes.then(|| d.writing.clone());
            Ok(Io { file, lock_owner: None, opened_by, made_by, writing })
        };
        Some(io())
    }

    /// The handle for writing of a client's write delegation, which may be all that keeps the file open.
    pub(super) fn delegated_writer(&self, client: ClientId, node: Node) -> Option<F> {
        let held = self.delegations.by_node.get(&(node, DelegationKind::Write, client))?;
        self.delegations.by_key.get(held).map(|d| d.file.clone())
    }

    /// TEST_STATEID of a delegation; `None` if the stateid is not that of a delegation.
    pub(super) fn test_delegation(
        &self,
        client: ClientId,
        id: StateId,
    ) -> Option<Result<(), StateError>> {
        self.delegations.by_key.get(&id.key)?;
        Some(self.delegation(client, id).map(|_| ()))
    }

    pub(super) fn delegation(
        &self,
        client: ClientId,
        id: StateId,
    ) -> Result<&Delegation<F>, StateError> {
        let d = self.delegations.by_key.get(&id.key).ok_or_else(|| self.missing(id.key))?;
        if d.client != client {
            return Err(StateError::BadStateId);
        }
        check_seq(id.seq, 1, self.clients.get(client)?.owner.sessions)?;
        Ok(d)
    }

    /// Another client than `by` that may have written to a file what the server does not know.
    pub(crate) fn writer_elsewhere(&self, node: Node, by: Option<ClientId>) -> Option<Writer> {
        let mut of_node = self.delegations.of(node, DelegationKind::Write);
        let found = of_node.find(|(_, d)| Some(d.client) != by);
        found.map(|(key, d)| Writer { key, client: d.client, keeps_times: d.keeps_times })
    }

    /// The change attribute that the holder of a read delegation was told. If `by` is `None` (minor
    /// version 0, where the server does not know who asks), that of any holder.
    pub(crate) fn known_change(&self, node: Node, by: Option<ClientId>) -> Option<u64> {
        let key = match by {
            Some(client) => *self.delegations.by_node.get(&(node, DelegationKind::Read, client))?,
            None => self.delegations.of(node, DelegationKind::Read).next()?.0,
        };
        self.delegations.by_key.get(&key)?.change
    }

    /// The next `most` read delegations whose files to check, with the change attribute that their
    /// clients know; `None` if the client has opened the file for writing, or changed it, itself.
    pub(crate) fn delegations_to_look_at(
        &mut self,
        most: usize,
    ) -> Vec<(StateKey, Node, Option<u64>)> {
        let after = self.delegations.looked_at.take();
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let batch: Vec<_> = self
            .delegations
            .by_key
            .range((from, std::ops::Bound::Unbounded))
            .filter(|(_, d)| d.phase == Phase::Held && d.kind == DelegationKind::Read)
            .take(most)
            .map(|(key, d)| (*key, d.node, d.change))
            .collect();
        if batch.len() == most {
            self.delegations.looked_at = batch.last().map(|(key, ..)| *key);
        }
        batch
    }

    /// The files with delegations, not recalled yet, outside the exports that `allowed` names.
    pub(crate) fn delegated_elsewhere(&self, allowed: impl Fn(u16) -> bool) -> Vec<Node> {
        let held = self.delegations.by_key.values().filter(|d| d.phase == Phase::Held);
        held.map(|d| d.node).filter(|node| !allowed(node.export)).collect()
    }

    /// Periodic: revokes delegations not returned within a lease. Returns whether there were any.
    pub(super) fn revoke_overdue(&mut self, now: Duration) -> bool {
        let keys: Vec<StateKey> = self.delegations.by_key.keys().copied().collect();
        keys.into_iter().filter(|&key| self.revoke_if_overdue(key, now)).count() > 0
    }

    fn revoke_if_overdue(&mut self, key: StateKey, now: Duration) -> bool {
        let lease = self.limits.lease;
        let Some(d) = self.delegations.by_key.get_mut(&key) else { return false };
        match d.phase {
            Phase::Recalled { since } if now.saturating_sub(since) > lease => {}
            Phase::Overdue => {}
            _ => return false,
        }
        if d.writing.are_there_others() {
            d.phase = Phase::Overdue;
            return false;
        }
        self.revoke_delegation(key, Why::Recalled);
        true
    }

    /// Revokes a delegation.
    fn revoke_delegation(&mut self, key: StateKey, why: Why) {
        let Some(d) = self.delegations.by_key.get(&key) else { return };
        let (client, node) = (d.client, d.node);
        // Before the delegation goes: requests see that without the state's lock.
        if let Ok(client) = self.clients.get(client) {
            self.unwritten.insert(client.owner.clone());
        }
        self.end_stand_in(key, Some(why));
        self.drop_delegation(key);
        self.note_revoked(client, Revoked { key, kind: Kind::Delegation, node, why });
    }

    /// Removes a delegation from every table.
    pub(super) fn drop_delegation(&mut self, key: StateKey) {
        self.end_stand_in(key, None);
        self.delegations.lift(key);
        let Some(d) = self.delegations.by_key.remove(&key) else { return };
        self.tallies.delegations.subtract(d.client, 1);
        if let Ok(client) = self.clients.get_mut(d.client) {
            client.states.remove(&key);
        }
    }

    /// Revokes the delegations of an export that is no longer served.
    pub(super) fn drop_delegations_of_export(&mut self, export: u16) {
        let gone = self.delegations.by_key.iter().filter(|(_, d)| d.node.export == export);
        let gone: Vec<StateKey> = gone.map(|(key, _)| *key).collect();
        gone.into_iter().for_each(|key| self.revoke_delegation(key, Why::Removed));
    }

    /// Whether a client holds any delegation.
    pub(crate) fn holds_delegation(&self, id: ClientId) -> bool {
        let keys = self.clients.get(id).map(|client| &client.states);
        keys.is_ok_and(|keys| keys.iter().any(|key| self.delegations.by_key.contains_key(key)))
    }

    /// How many delegations there are.
    #[cfg(test)]
    pub(crate) fn delegation_count(&self) -> usize {
        self.delegations.by_key.len()
    }
}

#[cfg(test)]
mod tests;
