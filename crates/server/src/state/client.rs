//! Who the clients are: records made by EXCHANGE_ID (and SETCLIENTID), confirmed by the first
//! session (or SETCLIENTID_CONFIRM), kept by leases.
//!
//! 1. An owner (the client's own name for itself) has at most one confirmed and one unconfirmed
//!    record. Only the confirmed one has state.
//! 2. A record that takes another's place does so when it is confirmed, never before, so that a
//!    stray EXCHANGE_ID costs no client its state.
//! 3. A confirmed client answers only to the principal that made it.
//!
//! ```text
//!   exchange_id          confirm              renew
//!  ------------> unconfirmed ------> confirmed <--+
//!                    | lease            | lease
//!                    v                  v
//!                  gone             courtesy --- wanted by others, or too old ---> gone
//! ```

use crate::admission::Place;
use crate::state::error::StateError;
use crate::state::ids::Ids;
use crate::state::stateid::StateKey;
use crate::state::tables::reclaim_denied::ReclaimDenied;
use crate::state::tables::revoked::Revoked;
use bytes::Bytes;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A client as the server numbers it: a number that cannot be guessed ([`Ids`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// A client's own name for itself. Minor version 0 is a name space of its own, because its
/// clients have no sessions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// Whether it came by EXCHANGE_ID.
    pub sessions: bool,
    /// `co_ownerid`, or the `id` of SETCLIENTID.
    pub name: Bytes,
}

/// The name by which a client introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// RPC authentication flavor.
    pub flavor: u32,
    /// User, where the flavor has one.
    pub uid: u32,
}

impl Principal {
    /// Whether this is who kernels say they are when they speak for themselves: the superuser, by
    /// AUTH_SYS.
    pub fn is_superuser(&self) -> bool {
        const AUTH_SYS: u32 = 1;
        (self.flavor, self.uid) == (AUTH_SYS, 0)
    }
}

/// One client.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its number.
    pub id: ClientId,
    /// Its own name.
    pub owner: Owner,
    /// Which run of it.
    pub verifier: [u8; 8],
    /// Who may speak for it.
    pub principal: Principal,
    /// Whether it may have state.
    pub confirmed: bool,
    /// When it was last heard of, on the monotonic clock.
    pub renewed: Duration,
    /// What its last SETCLIENTID_CONFIRM brought (minor version 0).
    pub confirmation: Option<[u8; 8]>,
    /// The sequence number that its next CREATE_SESSION has.
    pub next_create: u32,
    /// The reply to its last CREATE_SESSION, to be sent again.
    pub last_create: Option<Bytes>,
    /// It has said that it reclaims nothing more.
    pub reclaim_complete: bool,
    /// It had state when the server last stopped, and may ask for it back.
    pub may_reclaim: bool,
    /// It is on disk, so it may have opens.
    pub is_recorded: bool,
    /// Since when it has had no state, as far as was looked.
    pub idle_since: Option<Duration>,
    /// Its open, lock and delegation state.
    pub states: HashSet<StateKey>,
    /// Of `states`: opens.
    pub opens: usize,
    /// Of `states`: those of lock owners.
    pub lock_states: usize,
    /// Ranges that its owners have locked.
    pub ranges: usize,
    /// Counts it among the clients of its address.
    pub(crate) place: Option<Arc<Place>>,
    /// What was taken away from it and what it has not acknowledged, oldest first.
    pub revoked: VecDeque<Revoked>,
    /// What an earlier run of the server took away from it.
    pub inherited: ReclaimDenied,
    /// What was taken away from it and is not in [`revoked`](Self::revoked).
    pub untold: ReclaimDenied,
    /// Where it can be called back (minor version 0).
    pub callback: Option<CallbackService>,
    /// Its last SETCLIENTID, until that is confirmed.
    pub introduction: Option<Introduction>,
}

/// A SETCLIENTID that is to be confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// What SETCLIENTID_CONFIRM has to bring.
    pub confirmation: [u8; 8],
    /// Where the client can be called back from then on, if anywhere.
    pub callback: Option<CallbackService>,
}

/// A client's callback program (minor version 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallbackService {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Its program number.
    pub program: u32,
    /// What the client wants to be told in every call.
    pub ident: u32,
    /// It has answered, and always since.
    pub is_up: bool,
}

/// What EXCHANGE_ID found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// The client's number.
    pub id: ClientId,
    /// The sequence number for CREATE_SESSION.
    pub next_create: u32,
    /// The record is a confirmed one.
    pub confirmed: bool,
}

/// The clients.
#[derive(Debug)]
pub struct Clients {
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
    /// No clients; `max` records at most, numbered by `ids`.
    pub fn new(ids: Ids, lease: Duration, max: usize) -> Self {
        let (by_id, by_owner) = (HashMap::new(), HashMap::new());
        Self { by_id, by_owner, ids, made: 0, introduced: 0, max, lease }
    }

    /// A client by number.
    pub fn get(&self, id: ClientId) -> Result<&Client, StateError> {
        self.by_id.get(&id).ok_or(StateError::StaleClientId)
    }

    /// A client by number, to change.
    pub fn get_mut(&mut self, id: ClientId) -> Result<&mut Client, StateError> {
        self.by_id.get_mut(&id).ok_or(StateError::StaleClientId)
    }

    /// The confirmed client with this name.
    pub fn confirmed(&self, owner: &Owner) -> Option<&Client> {
        self.by_id.get(&self.by_owner.get(owner)?.confirmed?)
    }

    /// The client with this name that is not confirmed yet.
    pub fn unconfirmed(&self, owner: &Owner) -> Option<&Client> {
        self.by_id.get(&self.by_owner.get(owner)?.unconfirmed?)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// All clients.
    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.by_id.values()
    }

    /// Gives clients a longer lease.
    pub(super) fn extend_lease(&mut self, lease: Duration) {
        self.lease = self.lease.max(lease);
    }

    /// All clients, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.by_id.values_mut()
    }

    /// Whether a client has been silent for longer than its lease.
    pub fn is_expired(&self, client: &Client, now: Duration) -> bool {
        now.saturating_sub(client.renewed) > self.lease
    }

    /// Renews a lease.
    pub fn renew(&mut self, id: ClientId, now: Duration) {
        if let Some(client) = self.by_id.get_mut(&id) {
            client.renewed = client.renewed.max(now);
        }
    }

    /// EXCHANGE_ID (RFC 8881 section 18.35.4); `update` is EXCHGID4_FLAG_UPD_CONFIRMED_REC_A.
    ///
    /// # Errors
    /// What is wrong with an update; [`StateError::ClientInUse`] when another principal has a
    /// live client of this name; [`StateError::TooMany`].
    pub fn exchange_id(
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

    /// Refuses a name to a principal while a live client of another one has it and has state.
    ///
    /// # Errors
    /// [`StateError::ClientInUse`].
    pub(super) fn check_name(
        &self,
        owner: &Owner,
        principal: &Principal,
        now: Duration,
    ) -> Result<(), StateError> {
        match self.confirmed(owner) {
            Some(client)
                if client.principal != *principal
                    && !client.states.is_empty()
                    && !self.is_expired(client, now) =>
            {
                Err(StateError::ClientInUse)
            }
            _ => Ok(()),
        }
    }

    /// SETCLIENTID (RFC 7530 section 16.33): the client's number, and what confirms this introduction of it
    /// and no other.
    ///
    /// # Errors
    /// [`StateError::ClientInUse`], [`StateError::TooMany`].
    pub fn introduce(
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

    /// Makes an unconfirmed record, in the place of one that the owner may have.
    pub fn insert(
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
            renewed: now,
            confirmation: None,
            next_create: 1,
            last_create: None,
            reclaim_complete: false,
            may_reclaim: false,
            is_recorded: false,
            idle_since: None,
            states: HashSet::new(),
            opens: 0,
            lock_states: 0,
            ranges: 0,
            place: None,
            revoked: VecDeque::new(),
            inherited: ReclaimDenied::default(),
            untold: ReclaimDenied::default(),
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

    /// Confirms a client. Returns the one whose place it takes, still in the table under its
    /// number: its state is to be freed, then it is to be [removed](Self::remove).
    pub fn confirm(&mut self, id: ClientId) -> Result<Option<ClientId>, StateError> {
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

    /// Forgets a client.
    pub fn remove(&mut self, id: ClientId) -> Option<Client> {
        let client = self.by_id.remove(&id)?;
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

    /// Forgets clients that were never confirmed in a lease time.
    pub fn drop_unconfirmed(&mut self, now: Duration) {
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

/// An owner's name in the protocol: any bytes.
pub type OwnerName = Bytes;

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
    fn records_are_bounded_and_the_unconfirmed_go_first() {
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
