//! All state: the tables, and the transitions that concern clients.

use crate::admission::AddressShares;
use crate::handle::Node;
use crate::state::client::{
    CallbackService, Client, ClientId, Clients, Exchanged, Owner, Principal,
};
use crate::state::error::StateError;
use crate::state::grace::Grace;
use crate::state::ids::Ids;
use crate::state::limits::Limits;
use crate::state::room::{Asker, Limited, Refusals};
use crate::state::session::{SessionId, Sessions};
use crate::state::share::Share;
use crate::state::stateid::StateKey;
use crate::state::tables::lapsed::Lapsed;
use crate::state::tables::lock::Holder;
use crate::state::tables::nlm::NlmOwner;
use crate::state::tables::revoked::Why;
use crate::state::tables::store_locks::Machine;
use crate::state::tables::{delegation, lock, lock_waiters, nlm, open};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use weir_vfs::RangeLocks;

/// How long a client without state stays on disk.
pub(in crate::state) const IDLE: Duration = Duration::from_secs(10);

/// What concerns one file.
#[derive(Debug, Default)]
pub(in crate::state) struct FileState {
    pub(in crate::state) opens: Vec<StateKey>,
    pub(in crate::state) lock_states: Vec<StateKey>,
    pub(in crate::state) ranges: RangeLocks<Holder>,
    /// Share reservations of hosts that use NLM.
    pub(in crate::state) shares: Vec<(NlmOwner, Share)>,
    /// Locks that hosts wait for, first come first served.
    pub(in crate::state) waiting: Vec<nlm::Waiting>,
    /// The file in its store, while something of it is locked or waited for.
    pub(in crate::state) machine: Option<Machine>,
}

impl FileState {
    /// Whether hosts that use NLM hold something, or wait for it.
    pub(in crate::state) fn is_used_by_nlm(&self) -> bool {
        !self.shares.is_empty()
            || !self.waiting.is_empty()
            || self.ranges.owners().any(|holder| matches!(holder, Holder::Nlm(_)))
    }

    pub(in crate::state) fn is_idle(&self) -> bool {
        self.opens.is_empty()
            && self.lock_states.is_empty()
            && self.ranges.is_empty()
            && self.shares.is_empty()
            && self.waiting.is_empty()
    }
}

/// All state.
#[derive(Debug)]
pub struct State<F> {
    /// The clients.
    pub clients: Clients,
    /// Their sessions.
    pub sessions: Sessions,
    /// Reclaiming after a restart.
    pub grace: Grace,
    pub(in crate::state) files: HashMap<Node, FileState>,
    pub(in crate::state) opens: HashMap<StateKey, open::Open<F>>,
    /// Of `opens`: those that wait for their owners to confirm them.
    pub(in crate::state) unconfirmed: Vec<StateKey>,
    pub(in crate::state) locks: HashMap<StateKey, lock::LockState>,
    /// Ranges that are held in all files together.
    pub(in crate::state) held: usize,
    /// Files that are held in their stores.
    pub(in crate::state) machines: HashSet<Node>,
    pub(in crate::state) nlm: nlm::Hosts,
    pub(in crate::state) lock_waiters: lock_waiters::LockWaiters,
    pub(in crate::state) delegations: delegation::Delegations<F>,
    /// What was taken away, from whom, and why; the same as clients' [`Client::revoked`].
    pub(in crate::state) revoked: HashMap<StateKey, (ClientId, Why)>,
    /// Clients of minor version 0 that lost their lease.
    pub(in crate::state) lapsed: Lapsed,
    pub(in crate::state) unwritten: BTreeSet<Owner>,
    /// Clients without state that are on disk still: a restart would wait for them, and that is all.
    pub(in crate::state) idle: BTreeSet<Owner>,
    pub(in crate::state) refusals: Refusals,
    pub(in crate::state) limits: Limits,
    pub(in crate::state) ids: Ids,
    pub(in crate::state) made: u64,
}

impl<F: Clone> State<F> {
    /// No state, in the run of the server that `ids` are of, with `grace` for earlier runs.
    pub fn new(ids: Ids, limits: Limits, grace: Grace) -> Self {
        Self {
            clients: Clients::new(ids, limits.lease, limits.clients),
            sessions: Sessions::new(ids, limits.sessions, limits.kept_reply_bytes),
            grace,
            files: HashMap::new(),
            opens: HashMap::new(),
            unconfirmed: Vec::new(),
            locks: HashMap::new(),
            held: 0,
            machines: HashSet::new(),
            nlm: nlm::Hosts::default(),
            lock_waiters: lock_waiters::LockWaiters::default(),
            delegations: delegation::Delegations::default(),
            revoked: HashMap::new(),
            lapsed: Lapsed::default(),
            unwritten: BTreeSet::new(),
            idle: BTreeSet::new(),
            refusals: Refusals::default(),
            limits,
            ids,
            made: 0,
        }
    }

    /// The bounds.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Gives clients a longer lease, of which they learn when they ask; false if it is shorter: a
    /// client that renews by the one it knows would be late.
    pub fn extend_lease(&mut self, lease: Duration) -> bool {
        let longer = lease >= self.limits.lease;
        if longer {
            self.limits.lease = lease;
            self.clients.extend_lease(lease);
        }
        longer
    }

    pub(in crate::state) fn states_of(&self, client: ClientId) -> impl Iterator<Item = &StateKey> {
        self.clients.get(client).into_iter().flat_map(|client| &client.states)
    }

    pub(in crate::state) fn new_key(&mut self) -> StateKey {
        loop {
            self.made += 1;
            let key = self.ids.state(self.made);
            // Two counts with one name are next to impossible, and harmless like this.
            if self.newest(key).is_none() && !self.revoked.contains_key(&key) {
                return key;
            }
        }
    }

    /// EXCHANGE_ID ([`Clients::exchange_id`]).
    ///
    /// # Errors
    /// As there; [`StateError::ClientInUse`] too while another principal's client of this name may
    /// come back after a restart.
    pub fn exchange_id(
        &mut self,
        owner: Owner,
        verifier: [u8; 8],
        principal: Principal,
        update: bool,
        now: Duration,
    ) -> Result<Exchanged, StateError> {
        self.grace.check_name(&owner, &principal, now)?;
        let again = (owner.clone(), principal.clone());
        match self.clients.exchange_id(owner, verifier, principal, update, now) {
            Err(StateError::TooMany) => {
                self.make_room(Limited::Client, Asker::Newcomer, now)?;
                self.clients.exchange_id(again.0, verifier, again.1, update, now)
            }
            found => found,
        }
    }

    /// Counts a client among those of the address that it is introduced from, if it is not counted yet.
    ///
    /// # Errors
    /// [`StateError::TooMany`]: the address has as many as it may have, and the client is forgotten again.
    pub(crate) fn take_place(
        &mut self,
        id: ClientId,
        address: &Arc<AddressShares>,
    ) -> Result<(), StateError> {
        let client = self.clients.get_mut(id)?;
        if client.place.is_none() {
            client.place = address.place_for_client().map(Arc::new);
        }
        if client.place.is_none() && !client.confirmed {
            self.clients.remove(id);
            return Err(StateError::TooMany);
        }
        Ok(())
    }

    /// SETCLIENTID ([`Clients::introduce`]), by a client that listens for callbacks at `callback`.
    ///
    /// # Errors
    /// As [`exchange_id`](Self::exchange_id).
    pub fn introduce(
        &mut self,
        owner: Owner,
        verifier: [u8; 8],
        principal: Principal,
        callback: Option<CallbackService>,
        now: Duration,
    ) -> Result<(ClientId, [u8; 8]), StateError> {
        self.grace.check_name(&owner, &principal, now)?;
        let again = (owner.clone(), principal.clone());
        match self.clients.introduce(owner, verifier, principal, callback, now) {
            Err(StateError::TooMany) => {
                self.make_room(Limited::Client, Asker::Newcomer, now)?;
                self.clients.introduce(again.0, verifier, again.1, callback, now)
            }
            found => found,
        }
    }

    /// CREATE_SESSION's, or SETCLIENTID_CONFIRM's, effect on its client: confirms it, frees what it
    /// replaces.
    ///
    /// # Errors
    /// [`StateError::StaleClientId`], [`StateError::NotSamePrincipal`], or
    /// [`StateError::ClientInUse`]: by now another principal's client of this name has state.
    pub fn confirm(
        &mut self,
        id: ClientId,
        principal: &Principal,
        now: Duration,
    ) -> Result<(), StateError> {
        let client = self.clients.get_mut(id)?;
        if client.principal != *principal {
            return Err(StateError::NotSamePrincipal);
        }
        if client.confirmed {
            client.renewed = client.renewed.max(now);
            return Ok(());
        }
        let owner = client.owner.clone();
        self.clients.check_name(&owner, principal, now)?;
        self.grace.check_name(&owner, principal, now)?;
        // One that said goodbye in this grace is off the disk by now.
        let again = self.grace.has_returned(&owner);
        let client = self.clients.get_mut(id)?;
        client.renewed = client.renewed.max(now);
        client.may_reclaim = self.grace.may_reclaim(&owner, principal, now);
        client.is_recorded = client.may_reclaim;
        if client.may_reclaim
            && let Some(record) = self.grace.record(&owner)
        {
            client.inherited = record.barred.clone();
            if record.principal.is_none() || again {
                self.unwritten.insert(owner);
            }
        }
        if let Some(replaced) = self.clients.confirm(id)?
            && let Some(replaced) = self.release(replaced)
            && replaced.is_recorded
        {
            self.clients.get_mut(id)?.is_recorded = true;
            if !replaced.barred().is_empty() || replaced.principal != *principal {
                self.unwritten.insert(replaced.owner);
            }
        }
        Ok(())
    }

    /// Whether a session of a client fits, those counted out that it replaces when it is confirmed.
    ///
    /// # Errors
    /// [`StateError::StaleClientId`], [`StateError::TooMany`].
    pub fn check_session(&mut self, id: ClientId, now: Duration) -> Result<(), StateError> {
        self.clients.get(id)?;
        self.make_room(Limited::Session, Asker::Client(id), now)
    }

    /// RECLAIM_COMPLETE for all file systems.
    ///
    /// # Errors
    /// [`StateError::CompleteAlready`].
    pub fn reclaim_complete(&mut self, id: ClientId) -> Result<(), StateError> {
        let client = self.clients.get_mut(id)?;
        if client.reclaim_complete {
            return Err(StateError::CompleteAlready);
        }
        client.reclaim_complete = true;
        // Who has another's name, as far as the disk did not say whose it is, is not done for it.
        if std::mem::take(&mut client.may_reclaim) {
            self.grace.completed(&client.owner);
        }
        self.lift_inherited(id)
    }

    /// Whether a client may take new state, or (`reclaim`) state that it had before a restart.
    ///
    /// # Errors
    /// [`StateError::Grace`] or [`StateError::NoGrace`].
    pub fn check_grace(
        &self,
        id: ClientId,
        reclaim: bool,
        now: Duration,
    ) -> Result<(), StateError> {
        let client = self.clients.get(id)?;
        if reclaim {
            let open = self.grace.is_active(now) && client.may_reclaim;
            return if open { Ok(()) } else { Err(StateError::NoGrace) };
        }
        // A client with sessions says when it is done reclaiming (RFC 8881 section 18.51.3).
        if self.grace.is_active(now) || (client.owner.sessions && !client.reclaim_complete) {
            return Err(StateError::Grace);
        }
        Ok(())
    }

    /// DESTROY_CLIENTID.
    ///
    /// # Errors
    /// [`StateError::ClientBusy`] while it has sessions or state.
    pub fn destroy_client(&mut self, id: ClientId) -> Result<(), StateError> {
        let client = self.clients.get(id)?;
        if !client.owner.sessions {
            return Err(StateError::StaleClientId);
        }
        if !client.states.is_empty() || self.sessions.of(id).next().is_some() {
            return Err(StateError::ClientBusy);
        }
        self.purge(id);
        Ok(())
    }

    /// As [`purge`](Self::purge), for a client whose lease is over. In minor version 0 it is told so later.
    pub(in crate::state) fn purge_silent(&mut self, id: ClientId) {
        if let Ok(client) = self.clients.get(id)
            && !client.owner.sessions
        {
            self.lapsed.note(id, client.states.iter().copied());
        }
        self.purge(id);
    }

    /// A client by number, for a request of minor version 0 that names it.
    ///
    /// # Errors
    /// [`StateError::Expired`] if it lost its lease, [`StateError::StaleClientId`] if it is none of that
    /// version.
    pub fn named_client(&self, id: ClientId) -> Result<&Client, StateError> {
        match self.clients.get(id) {
            Ok(client) if client.confirmed && !client.owner.sessions => Ok(client),
            Err(_) if self.lapsed.has_client(id) => Err(StateError::Expired),
            _ => Err(StateError::StaleClientId),
        }
    }

    /// Frees everything that a client has, and forgets it for good.
    pub fn purge(&mut self, id: ClientId) {
        if let Some(client) = self.release(id)
            && client.is_recorded
        {
            self.unwritten.insert(client.owner);
        }
    }

    /// Frees everything that a client has.
    pub(in crate::state) fn release(&mut self, id: ClientId) -> Option<Client> {
        let client = self.clients.remove(id)?;
        self.sessions.remove_of(id);
        self.lock_waiters.forget_client(id);
        for key in &client.states {
            self.drop_lock_state(*key);
        }
        for key in &client.states {
            self.drop_open(*key);
        }
        for key in &client.states {
            self.drop_delegation(*key);
        }
        for revoked in &client.revoked {
            self.forget_revoked(revoked.key);
        }
        Some(client)
    }

    /// Whether something is to be written.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// A client's record is to be written, as what it is by then.
    pub(crate) fn is_to_be_written(&mut self, owner: Owner) {
        self.unwritten.insert(owner);
    }

    /// Owners of whom the disk says what is no longer so: [`record_of`](Self::record_of) is to be
    /// on it before the next reply.
    pub fn take_unwritten(&mut self) -> Vec<Owner> {
        std::mem::take(&mut self.unwritten).into_iter().collect()
    }

    /// Whether a client is to be taken off the disk, for which no reply waits.
    pub(crate) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// A client is to be taken off the disk, unless it has state by then.
    pub(crate) fn is_idle_on_disk(&mut self, owner: Owner) {
        self.idle.insert(owner);
    }

    /// Owners of whom the disk says more than is so, which does no harm.
    pub fn take_idle(&mut self) -> Vec<Owner> {
        std::mem::take(&mut self.idle).into_iter().collect()
    }

    /// Periodic: frees clients that were silent for longer than the courtesy, takes
    /// delegations away that were not given back in time, and forgets idle clients' records.
    pub fn sweep(&mut self, now: Duration) {
        self.end_reclaims(now);
        self.revoke_overdue(now);
        self.cancel_overdue(now);
        self.clients.drop_unconfirmed(now);
        let gone: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|c| {
                let silent = now.saturating_sub(c.renewed);
                let keeps =
                    if c.states.is_empty() { self.limits.lease * 2 } else { self.limits.courtesy };
                c.confirmed && silent > keeps
            })
            .map(|c| c.id)
            .collect();
        for id in gone {
            self.purge_silent(id);
        }
        self.unrecord_idle(now);
        self.retry_waiting(now);
        self.retry_lock_waiters(now);
        self.detach_all_unlocked();
    }

    /// Takes clients off the disk that have had nothing for a while: no grace period needs to wait for them
    /// after a restart.
    pub(in crate::state) fn unrecord_idle(&mut self, now: Duration) {
        if self.grace.is_active(now) {
            // They may be about to reclaim, also if the server stops again meanwhile.
            return;
        }
        for client in self.clients.iter_mut() {
            if !client.states.is_empty() {
                client.idle_since = None;
            } else if client.is_recorded
                && now.saturating_sub(*client.idle_since.get_or_insert(now)) >= IDLE
            {
                client.is_recorded = false;
                self.idle.insert(client.owner.clone());
            }
        }
    }

    /// DESTROY_SESSION. A client that leaves nothing behind with its last session is taken off the
    /// disk at once.
    pub fn destroy_session(&mut self, id: SessionId, now: Duration) {
        let Some(session) = self.sessions.remove(id) else { return };
        let is_last = self.sessions.of(session.client).next().is_none();
        if let Ok(client) = self.clients.get_mut(session.client)
            && is_last
            && client.is_recorded
            && client.states.is_empty()
            && !self.grace.is_active(now)
        {
            client.is_recorded = false;
            self.idle.insert(client.owner.clone());
        }
    }

    /// A name for a copy that goes on in the background.
    pub fn name_copy(&mut self) -> StateKey {
        self.new_key()
    }

    /// Frees what clients have open of an export that is served no more, and their locks in it.
    pub fn drop_export(&mut self, export: u16) {
        // First, so that nothing is granted to hosts that wait.
        self.nlm_drop_export(export);
        let gone = self.files.iter().filter(|(node, _)| node.export == export);
        let opens: Vec<_> = gone.map(|(_, file)| file.opens.clone()).collect();
        opens.concat().into_iter().for_each(|key| self.revoke(key, Why::Removed));
        self.drop_delegations_of_export(export);
    }

    /// What a client is called where another is told of it.
    pub fn name_to(&self, asker: ClientId, client: ClientId) -> u64 {
        if asker == client { client.0 } else { self.ids.holder(client) }
    }

    /// Whether a client can be called back, as far as is known.
    pub fn can_call(&self, id: ClientId) -> bool {
        let Ok(client) = self.clients.get(id) else { return false };
        match client.callback {
            Some(service) => service.is_up,
            None => self.sessions.can_call(id),
        }
    }

    pub(in crate::state) fn drop_idle(&mut self, node: Node) {
        if self.files.get(&node).is_some_and(FileState::is_idle) {
            self.files.remove(&node);
        }
    }

    /// How many opens and lock states there are.
    pub fn counts(&self) -> (usize, usize) {
        (self.opens.len(), self.locks.len())
    }
}
