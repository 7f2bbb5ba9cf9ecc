//! [`State`]: all tables, and the transitions of clients.

use crate::admission::AddressShares;
use crate::handle::Node;
use crate::state::channel::Channel;
use crate::state::client::{
    CallbackService, Client, ClientId, Clients, Exchanged, Owner, Principal,
};
use crate::state::error::StateError;
use crate::state::grace::Grace;
use crate::state::ids::{Ids, SessionId};
use crate::state::limits::Limits;
use crate::state::quota::{Requester, Searches, Tallies};
use crate::state::record::RecordedLease;
use crate::state::refused::{Refused, Resource};
use crate::state::session::{Session, Sessions};
use crate::state::share::Share;
use crate::state::stateid::StateKey;
use crate::state::tables::lapsed::Lapsed;
use crate::state::tables::lock::Holder;
use crate::state::tables::lock_states::LockStates;
use crate::state::tables::nlm::NlmOwner;
use crate::state::tables::opens::Opens;
use crate::state::tables::revoked::Why;
use crate::state::tables::store_locks::StoreLocks;
use crate::state::tables::{delegation, lock_waiters, nlm};
use crate::state::unwritten::Unwritten;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tracing::info;
use weir_vfs::RangeLocks;

/// How long the disk record of a client without state is kept.
pub(in crate::state) const IDLE: Duration = Duration::from_secs(10);

/// The locks of one file, and the share reservations of NLM hosts.
#[derive(Debug, Default)]
pub(in crate::state) struct FileState {
    pub(in crate::state) ranges: RangeLocks<Holder>,
    /// How many of `ranges` NLM hosts hold.
    pub(in crate::state) nlm_ranges: usize,
    /// Share reservations of NLM hosts.
    pub(in crate::state) shares: Vec<(NlmOwner, Share)>,
    /// Locks that NLM hosts wait for, oldest request first.
    pub(in crate::state) waiting: Vec<nlm::QueuedLock>,
    /// The file, open in its store while a range of it is locked or waited for.
    pub(in crate::state) store_locks: Option<Arc<dyn StoreLocks>>,
}

impl FileState {
    /// Whether NLM hosts hold or wait for locks, or hold share reservations.
    pub(in crate::state) fn is_used_by_nlm(&self) -> bool {
        !self.shares.is_empty() || !self.waiting.is_empty() || self.nlm_ranges > 0
    }

    /// Counts the ranges that NLM hosts hold, after a holder's were changed; there were `before` of all holders.
    pub(in crate::state) fn count_nlm(&mut self, holder: &Holder, before: usize) {
        if matches!(holder, Holder::Nlm(_)) {
            self.nlm_ranges = self.nlm_ranges + self.ranges.len() - before;
        }
    }

    /// Whether nothing is locked, reserved or waited for.
    pub(in crate::state) fn is_idle(&self) -> bool {
        self.ranges.is_empty() && self.shares.is_empty() && self.waiting.is_empty()
    }
}

/// The state of all clients and hosts. `F` is the type of file handles.
#[derive(Debug)]
pub(crate) struct State<F> {
    /// The clients.
    pub(crate) clients: Clients,
    /// Their sessions.
    pub(crate) sessions: Sessions,
    /// The grace period.
    pub(crate) grace: Grace,
    pub(in crate::state) files: HashMap<Node, FileState>,
    pub(in crate::state) opens: Opens<F>,
    pub(in crate::state) locks: LockStates,
    /// What clients and hosts hold.
    pub(in crate::state) tallies: Tallies,
    /// Files that are open in their stores for locking, and the addresses at which they are counted.
    pub(in crate::state) locked_in_store: HashMap<Node, Option<IpAddr>>,
    pub(in crate::state) nlm: nlm::Hosts,
    pub(in crate::state) lock_waiters: lock_waiters::LockWaiters,
    pub(in crate::state) delegations: delegation::Delegations<F>,
    /// Revoked state of all clients, by key; holds the same entries as each [`Client::revoked`].
    pub(in crate::state) revoked: HashMap<StateKey, (ClientId, Why)>,
    /// Clients of minor version 0 that lost their lease.
    pub(in crate::state) lapsed: Lapsed,
    /// Clients whose disk record is out of date.
    pub(in crate::state) unwritten: Unwritten,
    /// Clients without state whose disk record can be removed. Until then the only harm is that the
    /// grace period after a restart waits for them.
    pub(in crate::state) idle: BTreeSet<Owner>,
    pub(in crate::state) refusals: Refused,
    pub(in crate::state) searches: Searches,
    pub(in crate::state) limits: Limits,
    pub(in crate::state) ids: Ids,
    pub(in crate::state) made: u64,
}

impl<F: Clone> State<F> {
    /// Empty state for the server run that `ids` identifies, with the grace period `grace`.
    pub(crate) fn new(ids: Ids, limits: Limits, grace: Grace) -> Self {
        Self {
            clients: Clients::new(ids, limits.lease, limits.clients),
            sessions: Sessions::new(ids, limits.sessions, limits.kept_reply_bytes),
            grace,
            files: HashMap::new(),
            opens: Opens::default(),
            locks: LockStates::default(),
            tallies: Tallies::default(),
            locked_in_store: HashMap::new(),
            nlm: nlm::Hosts::default(),
            lock_waiters: lock_waiters::LockWaiters::default(),
            delegations: delegation::Delegations::default(),
            revoked: HashMap::new(),
            lapsed: Lapsed::default(),
            unwritten: Unwritten::default(),
            idle: BTreeSet::new(),
            refusals: Refused::default(),
            searches: Searches::default(),
            limits,
            ids,
            made: 0,
        }
    }

    /// The limits.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The lease time.
    pub(crate) fn lease(&self) -> Duration {
        self.limits.lease
    }

    /// The lease to be recorded with clients' records. In grace, some may know that of an earlier run.
    pub(crate) fn lease_of_records(&self) -> RecordedLease {
        RecordedLease { time: self.limits.lease, may_be_shorter: !self.grace.is_active() }
    }

    /// Extends the lease time. Clients learn the new value when they read the attribute. Returns
    /// false and changes nothing if `lease` is shorter: a client that renews by the old value would
    /// be late.
    pub(crate) fn extend_lease(&mut self, lease: Duration) -> bool {
        let longer = lease >= self.limits.lease;
        if longer {
            self.limits.lease = lease;
            self.clients.extend_lease(lease);
            self.lease_is_to_be_written();
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
            // Two counts are very unlikely to give the same key; if they do, the next count is
            // used.
            if self.newest(key).is_none() && !self.revoked.contains_key(&key) {
                return key;
            }
        }
    }

    /// EXCHANGE_ID ([`Clients::exchange_id`]).
    ///
    /// # Errors
    /// Those of [`Clients::exchange_id`], and [`StateError::ClientInUse`] while another principal's
    /// client of this name may still reclaim.
    pub(crate) fn exchange_id(
        &mut self,
        owner: Owner,
        verifier: [u8; 8],
        principal: Principal,
        update: bool,
        now: Duration,
    ) -> Result<Exchanged, StateError> {
        self.grace.check_name(&owner, &principal)?;
        let again = (owner.clone(), principal.clone());
        match self.clients.exchange_id(owner, verifier, principal, update, now) {
            Err(StateError::TooMany) => {
                self.check_quota(Resource::Client, Requester::Newcomer, now)?;
                self.clients.exchange_id(again.0, verifier, again.1, update, now)
            }
            found => found,
        }
    }

    /// Counts a client against the limit of its address, if it is not counted yet.
    ///
    /// # Errors
    /// [`StateError::TooMany`] if an unconfirmed client exceeds the limit; the client is removed.
    pub(crate) fn charge_address(
        &mut self,
        id: ClientId,
        address: &Arc<AddressShares>,
    ) -> Result<(), StateError> {
        let client = self.clients.get_mut(id)?;
        client.address.get_or_insert(address.host());
        if client.charge.is_none() {
            client.charge = address.charge_client().map(Arc::new);
        }
        if client.charge.is_none() && !client.confirmed {
            self.clients.remove(id);
            return Err(StateError::TooMany);
        }
        Ok(())
    }

    /// SETCLIENTID ([`Clients::introduce`]) of a client with the callback service `callback`.
    ///
    /// # Errors
    /// As [`exchange_id`](Self::exchange_id).
    pub(crate) fn introduce(
        &mut self,
        owner: Owner,
        verifier: [u8; 8],
        principal: Principal,
        callback: Option<CallbackService>,
        now: Duration,
    ) -> Result<(ClientId, [u8; 8]), StateError> {
        self.grace.check_name(&owner, &principal)?;
        let again = (owner.clone(), principal.clone());
        match self.clients.introduce(owner, verifier, principal, callback, now) {
            Err(StateError::TooMany) => {
                self.check_quota(Resource::Client, Requester::Newcomer, now)?;
                self.clients.introduce(again.0, verifier, again.1, callback, now)
            }
            found => found,
        }
    }

    /// Confirms a client, for CREATE_SESSION or SETCLIENTID_CONFIRM, and frees the client that it
    /// replaces.
    ///
    /// # Errors
    /// [`StateError::StaleClientId`], [`StateError::NotSamePrincipal`], or
    /// [`StateError::ClientInUse`] if another principal's client of this name has state by now.
    pub(crate) fn confirm(
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
            client.shared.lease.renew(now);
            return Ok(());
        }
        let owner = client.owner.clone();
        self.grace.check_name(&owner, principal)?;
        // This must be the last check: it may end the lease of the client that has the name.
        self.clients.claim_name(&owner, principal, now)?;
        // A client that returned earlier in this grace period and left may have no disk record any
        // more, so it is written again.
        let again = self.grace.has_returned(&owner);
        let client = self.clients.get_mut(id)?;
        client.shared.lease.renew(now);
        client.may_reclaim = self.grace.may_reclaim(&owner, principal);
        client.is_recorded = client.may_reclaim;
        if client.may_reclaim
            && let Some(record) = self.grace.record(&owner)
        {
            client.inherited = record.reclaim_denied.clone();
            if record.principal.is_none() || again {
                self.unwritten.insert(owner);
            }
        }
        let Some(replaced) = self.clients.confirm(id)? else { return Ok(()) };
        if let Ok(replaced) = self.clients.get(replaced)
            && replaced.is_recorded
        {
            // Before its delegations go, as in `purge`.
            if !replaced.reclaim_denied().is_empty() || replaced.principal != *principal {
                self.unwritten.insert(replaced.owner.clone());
            }
            self.clients.get_mut(id)?.is_recorded = true;
        }
        self.release(replaced);
        Ok(())
    }

    /// Checks that a client may have one more session. The sessions that the client replaces when
    /// it is confirmed do not count.
    ///
    /// # Errors
    /// [`StateError::StaleClientId`], [`StateError::TooMany`].
    pub(crate) fn check_session(&mut self, id: ClientId, now: Duration) -> Result<(), StateError> {
        self.clients.get(id)?;
        self.check_quota(Resource::Session, Requester::Client(id), now)
    }

    /// Creates a session of a client ([`Sessions::create`]).
    ///
    /// # Errors
    /// [`StateError::StaleClientId`], [`StateError::TooMany`].
    pub(crate) fn create_session(
        &mut self,
        client: ClientId,
        fore: Channel,
        back: Channel,
        minor: u32,
    ) -> Result<&mut Session, StateError> {
        let shared = self.clients.get(client)?.shared.clone();
        let account = self.account(client);
        self.sessions.create(account, shared, fore, back, minor)
    }

    /// RECLAIM_COMPLETE for all file systems (`rca_one_fs` is false).
    ///
    /// # Errors
    /// [`StateError::CompleteAlready`].
    pub(crate) fn reclaim_complete(&mut self, id: ClientId) -> Result<(), StateError> {
        let client = self.clients.get_mut(id)?;
        if client.reclaim_complete {
            return Err(StateError::CompleteAlready);
        }
        client.reclaim_complete = true;
        // Only the client that may reclaim ends the wait for it. A client of another principal with
        // the same name does not; both can exist if the disk record names no principal.
        if std::mem::take(&mut client.may_reclaim) {
            self.grace.completed(&client.owner);
        }
        self.clear_inherited(id)
    }

    /// Checks that a client may get new state or, with `reclaim`, state that it had before a
    /// restart.
    ///
    /// # Errors
    /// [`StateError::Grace`] or [`StateError::NoGrace`].
    pub(crate) fn check_grace(&self, id: ClientId, reclaim: bool) -> Result<(), StateError> {
        let client = self.clients.get(id)?;
        if reclaim {
            let open = self.grace.is_active() && client.may_reclaim;
            return if open { Ok(()) } else { Err(StateError::NoGrace) };
        }
        // A client with sessions must send RECLAIM_COMPLETE first (RFC 8881 section 18.51.3).
        if self.grace.is_active() || (client.owner.sessions && !client.reclaim_complete) {
            return Err(StateError::Grace);
        }
        Ok(())
    }

    /// DESTROY_CLIENTID.
    ///
    /// # Errors
    /// [`StateError::ClientBusy`] while it has sessions or state.
    pub(crate) fn destroy_client(&mut self, id: ClientId) -> Result<(), StateError> {
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

    /// Does what [`purge`](Self::purge) does, for a client whose lease has ended because it expired. Later requests
    /// of a minor version 0 client return NFS4ERR_EXPIRED.
    pub(in crate::state) fn purge_silent(&mut self, id: ClientId) {
        if let Ok(client) = self.clients.get(id)
            && !client.owner.sessions
        {
            self.lapsed.note(id, client.states.iter().copied());
        }
        self.purge(id);
    }

    /// The client with this ID, for a request of minor version 0.
    ///
    /// # Errors
    /// [`StateError::Expired`] if it lost its lease, [`StateError::StaleClientId`] if there is no
    /// confirmed client of that version.
    pub(crate) fn named_client(&self, id: ClientId) -> Result<&Client, StateError> {
        match self.clients.get(id) {
            Ok(client) if client.confirmed && !client.owner.sessions => Ok(client),
            Err(_) if self.lapsed.has_client(id) => Err(StateError::Expired),
            _ => Err(StateError::StaleClientId),
        }
    }

    /// Removes a client, all its state, and its disk record.
    pub(crate) fn purge(&mut self, id: ClientId) {
        // Before its delegations go: requests see that without the state's lock.
        if let Ok(client) = self.clients.get(id)
            && client.is_recorded
        {
            self.unwritten.insert(client.owner.clone());
        }
        self.release(id);
    }

    /// Removes a client and all its state. The disk record is left to the caller.
    pub(in crate::state) fn release(&mut self, id: ClientId) -> Option<Client> {
        let client = self.clients.remove(id)?;
        self.sessions.remove_of(id);
        self.lock_waiters.forget_client(id);
        self.drop_lock_states(client.states.iter().copied());
        client.states.iter().for_each(|key| self.drop_open(*key));
        client.states.iter().for_each(|key| self.drop_delegation(*key));
        for revoked in &client.revoked {
            self.forget_revoked(revoked.key);
        }
        Some(client)
    }

    /// Whether a disk record is out of date.
    #[cfg(test)]
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Checks that a transition may grant something: what it or an earlier one has revoked, perhaps
    /// for this, is on disk. An earlier grant would have to be taken back if the record failed.
    ///
    /// # Errors
    /// [`StateError::Unsettled`]: nothing is granted; the caller writes the records and tries again.
    pub(in crate::state) fn check_settled(&self) -> Result<(), StateError> {
        if self.unwritten.is_due() { Err(StateError::Unsettled) } else { Ok(()) }
    }

    /// A flag that is set while a disk record must be written before the next reply, or is being written. It changes
    /// only under the state's lock.
    pub(crate) fn records_due(&self) -> &Arc<AtomicBool> {
        self.unwritten.due()
    }

    /// Marks the disk record of a client as out of date.
    pub(crate) fn is_to_be_written(&mut self, owner: Owner) {
        self.unwritten.insert(owner);
    }

    /// Marks the lease on disk as out of date.
    pub(crate) fn lease_is_to_be_written(&mut self) {
        self.unwritten.insert_lease();
    }

    /// Takes whether the lease on disk is out of date. It is due as the clients' records are.
    pub(crate) fn take_unwritten_lease(&mut self) -> bool {
        self.unwritten.take_lease()
    }

    /// Takes the clients whose disk record is out of date. The caller must write
    /// [`record_of`](Self::record_of) for each before the next reply. They are due until
    /// [`records_written`](Self::records_written).
    pub(crate) fn take_unwritten(&mut self) -> Vec<Owner> {
        self.unwritten.take()
    }

    /// Takes the clients whose disk record is out of date, and notes that these are on disk.
    #[cfg(test)]
    pub(crate) fn write_records(&mut self) -> Vec<Owner> {
        let owners = self.take_unwritten();
        self.records_written();
        owners
    }

    /// Notes that the records of the clients taken are on disk, or that they are marked again.
    pub(crate) fn records_written(&mut self) {
        self.unwritten.written();
    }

    /// Whether there are disk records of idle clients to remove. No reply waits for this.
    pub(crate) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Marks the disk record of a client for removal, unless the client has a record again by then.
    pub(crate) fn is_idle_on_disk(&mut self, owner: Owner) {
        self.idle.insert(owner);
    }

    /// Takes the idle clients whose disk records can be removed.
    pub(crate) fn take_idle(&mut self) -> Vec<Owner> {
        std::mem::take(&mut self.idle).into_iter().collect()
    }

    /// Periodic: purges clients that were silent for longer than the courtesy time, revokes
    /// delegations that were not returned in time, removes the records of idle clients, and retries
    /// waiting locks.
    pub(crate) fn sweep(&mut self, now: Duration) {
        let absent = self.grace.end(now);
        if self.grace.lease_may_be_shorter_now() {
            self.lease_is_to_be_written();
        }
        if !absent.is_empty() {
            info!(
                "{} clients did not reclaim in the grace period: their records are removed",
                absent.len()
            );
        }
        absent.into_iter().for_each(|owner| self.unwritten.insert(owner));
        self.end_reclaims();
        self.revoke_overdue(now);
        self.cancel_overdue(now);
        self.clients.drop_unconfirmed(now);
        self.purge_forgotten(now);
        self.unrecord_idle(now);
        self.retry_waiting(now);
        self.retry_lock_waiters(now);
        self.detach_all_unlocked();
    }

    /// Purges clients that were silent for longer than their state is kept.
    fn purge_forgotten(&mut self, now: Duration) {
        let keeps = |client: &Client| match client.states.is_empty() {
            true => self.limits.lease * 2,
            false => self.limits.courtesy.max(self.limits.lease),
        };
        // A client whose lease this ends is purged in any case.
        let ends = |client: &&Client| {
            client.confirmed && client.shared.lease.end_if_silent(now, keeps(client))
        };
        let gone: Vec<ClientId> = self.clients.iter().filter(ends).map(|c| c.id).collect();
        for id in gone {
            self.purge_silent(id);
        }
    }

    /// Removes the disk records of clients that have had no state for [`IDLE`], so that the grace
    /// period after a restart does not wait for them.
    pub(in crate::state) fn unrecord_idle(&mut self, now: Duration) {
        if self.grace.is_active() {
            // They may be about to reclaim, even after another restart.
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

    /// DESTROY_SESSION, in the slot `own` of the same session if that is not `None`. If it was the last session of a
    /// client without state, the client's disk record is removed at once.
    ///
    /// # Errors
    /// [`StateError::BadSession`], or [`StateError::Busy`] while another request is in progress in the session.
    pub(crate) fn destroy_session(
        &mut self,
        id: SessionId,
        own: Option<u32>,
    ) -> Result<(), StateError> {
        let session = self.sessions.remove_idle(id, own)?;
        let is_last = self.sessions.of(session.client).next().is_none();
        if let Ok(client) = self.clients.get_mut(session.client)
            && is_last
            && client.is_recorded
            && client.states.is_empty()
            && !self.grace.is_active()
        {
            client.is_recorded = false;
            self.idle.insert(client.owner.clone());
        }
        Ok(())
    }

    /// A new key for a copy in the background.
    pub(crate) fn name_copy(&mut self) -> StateKey {
        self.new_key()
    }

    /// Revokes the opens, locks and delegations in an export that is no longer served.
    pub(crate) fn drop_export(&mut self, export: u16) {
        // This must be first: freed locks would otherwise be granted to waiting hosts.
        self.nlm_drop_export(export);
        let opens: Vec<StateKey> = self.opens.of_export(export).collect();
        opens.into_iter().for_each(|key| self.revoke(key, Why::Removed));
        self.drop_delegations_of_export(export);
    }

    /// The ID under which `requester` learns of `client`: other clients do not see the real client
    /// ID.
    pub(crate) fn name_to(&self, requester: ClientId, client: ClientId) -> u64 {
        if requester == client { client.0 } else { self.ids.holder(client) }
    }

    /// Whether callbacks to a client are believed to work.
    pub(crate) fn can_call(&self, id: ClientId) -> bool {
        let Ok(client) = self.clients.get(id) else { return false };
        match client.callback {
            Some(service) => service.is_up,
            None => self.sessions.can_call(id),
        }
    }

    /// Removes a file that is neither open nor locked.
    pub(in crate::state) fn drop_idle(&mut self, node: Node) {
        if !self.opens.is_open(node) && self.files.get(&node).is_some_and(FileState::is_idle) {
            self.files.remove(&node);
        }
    }

    /// The numbers of opens and lock states.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.opens.len(), self.locks.len())
    }
}
