//! Client records: created by EXCHANGE_ID (or SETCLIENTID), confirmed by the first session (or
//! SETCLIENTID_CONFIRM), kept by leases.
//!
//! 1. An owner (the client's own name for itself) has at most one confirmed and one unconfirmed
//!    record. Only the confirmed one has state.
//! 2. A record replaces another only when it is confirmed, so that a stray EXCHANGE_ID cannot
//!    destroy a client's state.
//! 3. Only the principal that created a client may confirm or update it.
//!
//! ```text
//!   exchange_id          confirm              renew
//!  ------------> unconfirmed ------> confirmed <--+
//!                    | lease            | lease
//!                    v                  v
//!                  gone             courtesy --- wanted by others, or too old ---> gone
//! ```

use crate::admission::ClientCharge;
use crate::state::error::StateError;
use crate::state::ids::Ids;
use crate::state::shared_client::SharedClient;
use crate::state::stateid::StateKey;
use crate::state::tables::reclaim_denied::ReclaimDenied;
use crate::state::tables::revoked::Revoked;
use bytes::Bytes;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A client ID, which cannot be guessed ([`Ids`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(pub u64);

/// A client's own name for itself. Names of minor version 0, without sessions, are separate from
/// those of later versions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    /// Whether it was sent in EXCHANGE_ID.
    pub(crate) sessions: bool,
    /// `co_ownerid`, or the `id` of SETCLIENTID.
    pub(crate) name: Bytes,
}

/// The RPC principal of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Principal {
    /// RPC authentication flavor.
    pub(crate) flavor: u32,
    /// User, where the flavor has one.
    pub(crate) uid: u32,
}

impl Principal {
    /// Whether this is the principal that kernels use for requests of their own: the superuser
    /// under AUTH_SYS.
    pub(crate) fn is_superuser(&self) -> bool {
        const AUTH_SYS: u32 = 1;
        (self.flavor, self.uid) == (AUTH_SYS, 0)
    }
}

/// One client.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// The server's ID for it.
    pub(crate) id: ClientId,
    /// Its name for itself.
    pub(crate) owner: Owner,
    /// Identifies one incarnation of the client (a reboot changes it).
    pub(crate) verifier: [u8; 8],
    /// The principal that created it.
    pub(crate) principal: Principal,
    /// Whether it may have state.
    pub(crate) confirmed: bool,
    /// Its lease, and more that requests use without the state's lock.
    pub(crate) shared: Arc<SharedClient>,
    /// The verifier of its last SETCLIENTID_CONFIRM (minor version 0).
    pub(crate) confirmation: Option<[u8; 8]>,
    /// The sequence number of its next CREATE_SESSION.
    pub(crate) next_create: u32,
    /// The reply to its last CREATE_SESSION, for a retransmission.
    pub(crate) last_create: Option<Bytes>,
    /// Whether it has sent RECLAIM_COMPLETE.
    pub(crate) reclaim_complete: bool,
    /// Whether it had state when the server last stopped, and may reclaim it.
    pub(crate) may_reclaim: bool,
    /// Whether it is recorded on disk, so that it may have opens.
    pub(crate) is_recorded: bool,
    /// When [`State::sweep`](super::State::sweep) first found it without state.
    pub(crate) idle_since: Option<Duration>,
    /// Its open, lock and delegation state.
    pub(crate) states: HashSet<StateKey>,
    /// The address at which its state is counted.
    pub(crate) address: Option<IpAddr>,
    /// Counts it against its address.
    pub(crate) charge: Option<Arc<ClientCharge>>,
    /// Revoked state that it has not acknowledged yet, oldest first.
    pub(crate) revoked: VecDeque<Revoked>,
    /// What earlier runs of the server denied it to reclaim.
    pub(crate) inherited: ReclaimDenied,
    /// Files with revoked state that [`revoked`](Self::revoked) does not contain.
    pub(crate) unacknowledged: ReclaimDenied,
    /// Its callback service (minor version 0).
    pub(crate) callback: Option<CallbackService>,
    /// Its last SETCLIENTID, until it is confirmed.
    pub(crate) introduction: Option<Introduction>,
}

/// A SETCLIENTID that is not confirmed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    /// The verifier that SETCLIENTID_CONFIRM must carry.
    pub(crate) confirmation: [u8; 8],
    /// The callback service that takes effect on confirmation, if there is one.
    pub(crate) callback: Option<CallbackService>,
}

/// A client's callback program (minor version 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallbackService {
    /// Where it listens.
    pub(crate) addr: SocketAddr,
    /// Its program number.
    pub(crate) program: u32,
    /// The identifier that the client expects in every callback.
    pub(crate) ident: u32,
    /// Whether it answered the last callback.
    pub(crate) is_up: bool,
}

impl CallbackService {
    /// Whether both are one program, which may have answered or not since.
    pub(crate) fn is(&self, other: &Self) -> bool {
        (self.addr, self.program) == (other.addr, other.program)
    }
}

/// The result of EXCHANGE_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchanged {
    /// The client's ID.
    pub(crate) id: ClientId,
    /// The sequence number for CREATE_SESSION.
    pub(crate) next_create: u32,
    /// Whether the record is confirmed.
    pub(crate) confirmed: bool,
}

/// All client records.
#[derive(Debug)]
pub(crate) struct Clients {
    by_id: HashMap<ClientId, Client>,
    by_owner: HashMap<Owner, Records>,
    ids: Ids,
    made: u64,
    introduced: u64,
    max: usize,
    lease: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Records {
    confirmed: Option<ClientId>,
    unconfirmed: Option<ClientId>,
}

impl Clients {
    /// An empty table for at most `max` records.
    pub(crate) fn new(ids: Ids, lease: Duration, max: usize) -> Self {
        let (by_id, by_owner) = (HashMap::new(), HashMap::new());
        Self { by_id, by_owner, ids, made: 0, introduced: 0, max, lease }
    }

    /// Looks up a client.
    pub(crate) fn get(&self, id: ClientId) -> Result<&Client, StateError> {
        self.by_id.get(&id).ok_or(StateError::StaleClientId)
    }

    /// Looks up a client for a change.
    pub(crate) fn get_mut(&mut self, id: ClientId) -> Result<&mut Client, StateError> {
        self.by_id.get_mut(&id).ok_or(StateError::StaleClientId)
    }

    /// The confirmed client of an owner.
    pub(crate) fn confirmed(&self, owner: &Owner) -> Option<&Client> {
        self.by_id.get(&self.by_owner.get(owner)?.confirmed?)
    }

    /// The unconfirmed client of an owner.
    pub(crate) fn unconfirmed(&self, owner: &Owner) -> Option<&Client> {
        self.by_id.get(&self.by_owner.get(owner)?.unconfirmed?)
    }

    /// The number of records.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// All clients.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.by_id.values()
    }

    /// Extends the lease time of all clients.
    pub(super) fn extend_lease(&mut self, lease: Duration) {
        self.lease = self.lease.max(lease);
    }

    /// All clients, for changes.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.by_id.values_mut()
    }

    /// Whether a client has been silent for longer than its lease.
    pub(crate) fn is_expired(&self, client: &Client, now: Duration) -> bool {
        client.shared.lease.is_silent(now, self.lease)
    }

    /// Whether a client was last heard longer ago than its lease lasts; calls may be in progress.
    pub(super) fn is_over(&self, client: &Client, now: Duration) -> bool {
        now.saturating_sub(client.shared.lease.renewed()) > self.lease
    }

    /// Ends the lease of a client that has been silent for longer than that. Returns false if the client has not: a
    /// request may have begun since [`is_expired`](Self::is_expired) was asked.
    pub(super) fn end_expired(&self, client: &Client, now: Duration) -> bool {
        client.shared.lease.end_if_silent(now, self.lease)
    }

    /// Renews a lease for as long as a call is in progress: until
    /// [`Lease::end_call`](weir_base::Lease::end_call). Returns the client that has the lease;
    /// `None` if there is none.
    pub(crate) fn begin_call(&self, id: ClientId, now: Duration) -> Option<Arc<SharedClient>> {
        let shared = &self.by_id.get(&id)?.shared;
        shared.lease.begin_call(now).then(|| shared.clone())
    }

    /// Renews a lease.
    pub(crate) fn renew(&self, id: ClientId, now: Duration) {
        if let Some(client) = self.by_id.get(&id) {
            client.shared.lease.renew(now);
        }
    }

    /// EXCHANGE_ID (RFC 8881 section 18.35.4); `update` is EXCHGID4_FLAG_UPD_CONFIRMED_REC_A.
    ///
    /// # Errors
    /// [`StateError::NoSuchClient`], [`StateError::NotSameVerifier`] or
    /// [`StateError::NotSamePrincipal`] for an update; [`StateError::ClientInUse`] if another
    /// principal's live client has this name and state; [`StateError::TooMany`].
    pub(crate) fn exchange_id(
        &mut self,
        owner: Owner,
        verifier: [u8; 8],
        principal: Principal,
        update: bool,
        now: Duration,
    ) -> Result<Exchanged, StateError> {
        let confirmed = self.confirmed(&owner);
        if update {
            let client = confirmed.ok_or(StateError::NoSuchClient)?;
            if client.verifier != verifier {
                return Err(StateError::NotSameVerifier);
            }
            if client.principal != principal {
                return Err(StateError::NotSamePrincipal);
            }
        } else {
            self.check_name(&owner, &principal, now)?;
        }
        if let Some(client) = confirmed
            && client.verifier == verifier
            && client.principal == principal
        {
            let found =
                Exchanged { id: client.id, next_create: client.next_create, confirmed: true };
            self.renew(found.id, now);
            return Ok(found);
        }
        let id = self.insert(owner, verifier, principal, now)?;
        Ok(Exchanged { id, next_create: 1, confirmed: false })
    }

    /// Refuses a name if a live client of another principal has this name and holds state.
    ///
    /// # Errors
    /// [`StateError::ClientInUse`].
    pub(super) fn check_name(
        &self,
        owner: &Owner,
        principal: &Principal,
        now: Duration,
    ) -> Result<(), StateError> {
        self.refuse_name(owner, principal, |client| self.is_expired(client, now))
    }

    /// As [`check_name`](Self::check_name), for a client that is about to replace the one that has the name: ends the
    /// lease of that one if only its silence allows to replace it.
    ///
    /// # Errors
    /// [`StateError::ClientInUse`].
    pub(super) fn claim_name(
        &self,
        owner: &Owner,
        principal: &Principal,
        now: Duration,
    ) -> Result<(), StateError> {
        self.refuse_name(owner, principal, |client| self.end_expired(client, now))
    }

    /// Refuses a name if a client of another principal has it and holds state, unless `goes`.
    fn refuse_name(
        &self,
        owner: &Owner,
        principal: &Principal,
        goes: impl FnOnce(&Client) -> bool,
    ) -> Result<(), StateError> {
        let holds = |client: &&Client| client.principal != *principal && !client.states.is_empty();
        match self.confirmed(owner).filter(holds) {
            Some(client) if !goes(client) => Err(StateError::ClientInUse),
            _ => Ok(()),
        }
    }

    /// SETCLIENTID (RFC 7530 section 16.33). Returns the client's ID and the verifier that confirms
    /// this SETCLIENTID and no other.
    ///
    /// # Errors
    /// [`StateError::ClientInUse`], [`StateError::TooMany`].
    pub(crate) fn introduce(
        &mut self,
        owner: Owner,
        verifier: [u8; 8],
        principal: Principal,
        callback: Option<CallbackService>,
        now: Duration,
    ) -> Result<(ClientId, [u8; 8]), StateError> {
        let found = self.exchange_id(owner, verifier, principal, false, now)?;
        self.introduced += 1;
        let confirmation = self.ids.confirmation(self.introduced);
        self.get_mut(found.id)?.introduction = Some(Introduction { confirmation, callback });
        Ok((found.id, confirmation))
    }

    /// Creates an unconfirmed record. It replaces the owner's previous unconfirmed record.
    pub(crate) fn insert(
        &mut self,
        owner: Owner,
        verifier: [u8; 8],
        principal: Principal,
        now: Duration,
    ) -> Result<ClientId, StateError> {
        if let Some(old) = self.unconfirmed(&owner).map(|c| c.id) {
            self.remove(old);
        }
        if self.by_id.len() >= self.max {
            self.drop_unconfirmed(now);
        }
        if self.by_id.len() >= self.max {
            return Err(StateError::TooMany);
        }
        let id = self.new_id();
        self.by_owner.entry(owner.clone()).or_default().unconfirmed = Some(id);
        let client = Client {
            id,
            owner,
            verifier,
            principal,
            confirmed: false,
            shared: Arc::new(SharedClient::new(now)),
            confirmation: None,
            next_create: 1,
            last_create: None,
            reclaim_complete: false,
            may_reclaim: false,
            is_recorded: false,
            idle_since: None,
            states: HashSet::new(),
            address: None,
            charge: None,
            revoked: VecDeque::new(),
            inherited: ReclaimDenied::default(),
            unacknowledged: ReclaimDenied::default(),
            callback: None,
            introduction: None,
        };
        self.by_id.insert(id, client);
        Ok(id)
    }

    fn new_id(&mut self) -> ClientId {
        loop {
            self.made += 1;
            let id = self.ids.client(self.made);
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }

    /// Confirms a client. Returns the client that it replaces. This one is still in the table: the
    /// caller frees its state and then [removes](Self::remove) it.
    pub(crate) fn confirm(&mut self, id: ClientId) -> Result<Option<ClientId>, StateError> {
        let client = self.get_mut(id)?;
        if client.confirmed {
            return Ok(None);
        }
        client.confirmed = true;
        let owner = client.owner.clone();
        let records = self.by_owner.entry(owner).or_default();
        records.unconfirmed = None;
        Ok(records.confirmed.replace(id))
    }

    /// Removes a client's record, and ends its lease.
    pub(crate) fn remove(&mut self, id: ClientId) -> Option<Client> {
        let client = self.by_id.remove(&id)?;
        client.shared.lease.end();
        if let Some(records) = self.by_owner.get_mut(&client.owner) {
            if records.confirmed == Some(id) {
                records.confirmed = None;
            }
            if records.unconfirmed == Some(id) {
                records.unconfirmed = None;
            }
            if records.confirmed.is_none() && records.unconfirmed.is_none() {
                self.by_owner.remove(&client.owner);
            }
        }
        Some(client)
    }

    /// Removes records that stayed unconfirmed for longer than a lease.
    pub(crate) fn drop_unconfirmed(&mut self, now: Duration) {
        let old: Vec<ClientId> = self
            .by_id
            .values()
            .filter(|c| !c.confirmed && self.is_expired(c, now))
            .map(|c| c.id)
            .collect();
        for id in old {
            self.remove(id);
        }
    }
}

/// An owner's name: arbitrary bytes.
pub(crate) type OwnerName = Bytes;

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(90);
    const NOW: Duration = Duration::ZERO;

    fn owner() -> Owner {
        Owner { sessions: true, name: Bytes::from_static(b"host") }
    }

    fn principal(uid: u32) -> Principal {
        Principal { flavor: 1, uid }
    }

    fn clients() -> Clients {
        Clients::new(Ids::new(3, [7; 32]), LEASE, 2)
    }

    #[test]
    fn a_restarted_client_replaces_its_record_only_when_confirmed() {
        let mut c = clients();
        let first = c.exchange_id(owner(), [1; 8], principal(0), false, NOW).unwrap();
        assert!(!first.confirmed);
        assert_eq!(c.confirm(first.id), Ok(None));
        let again = c.exchange_id(owner(), [1; 8], principal(0), false, NOW).unwrap();
        assert_eq!((again.id, again.confirmed), (first.id, true));

        let restarted = c.exchange_id(owner(), [2; 8], principal(0), false, NOW).unwrap();
        assert_ne!(restarted.id, first.id);
        assert_eq!(c.confirmed(&owner()).unwrap().id, first.id);
        assert_eq!(c.confirm(restarted.id), Ok(Some(first.id)));
        c.remove(first.id);
        assert_eq!(c.confirmed(&owner()).unwrap().id, restarted.id);
    }

    #[test]
    fn updates_name_a_confirmed_record_and_its_principal() {
        let mut c = clients();
        let update = |c: &mut Clients, v, uid| c.exchange_id(owner(), v, principal(uid), true, NOW);
        assert_eq!(update(&mut c, [1; 8], 0), Err(StateError::NoSuchClient));
        let id = c.exchange_id(owner(), [1; 8], principal(0), false, NOW).unwrap().id;
        assert_eq!(update(&mut c, [1; 8], 0), Err(StateError::NoSuchClient));
        c.confirm(id).unwrap();
        assert_eq!(update(&mut c, [2; 8], 0), Err(StateError::NotSameVerifier));
        assert_eq!(update(&mut c, [1; 8], 1), Err(StateError::NotSamePrincipal));
        assert_eq!(update(&mut c, [1; 8], 0).unwrap().id, id);
    }

    #[test]
    fn a_name_in_use_is_refused_to_another_principal_while_its_lease_lasts() {
        let mut c = clients();
        let id = c.exchange_id(owner(), [1; 8], principal(0), false, NOW).unwrap().id;
        c.confirm(id).unwrap();
        c.get_mut(id).unwrap().states.insert(StateKey { run: 3, number: 1 });
        let other = |c: &mut Clients, now| c.exchange_id(owner(), [1; 8], principal(9), false, now);
        assert_eq!(other(&mut c, LEASE), Err(StateError::ClientInUse));
        assert!(other(&mut c, LEASE + Duration::from_secs(1)).is_ok());
    }

    #[test]
    fn client_records_are_bounded_and_unconfirmed_ones_removed_first() {
        let mut c = clients();
        for name in [&b"a"[..], b"b"] {
            let owner = Owner { sessions: true, name: Bytes::from_static(name) };
            c.insert(owner, [0; 8], principal(0), NOW).unwrap();
        }
        assert_eq!(c.insert(owner(), [0; 8], principal(0), LEASE), Err(StateError::TooMany));
        c.insert(owner(), [0; 8], principal(0), LEASE * 2).unwrap();
        assert_eq!(c.iter().count(), 1);
    }
}
