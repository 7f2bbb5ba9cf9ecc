//! Limits on the state of each client, and reclamation of state from expired clients.
//!
//! 1. The clients and NLM hosts of an address may together have as much of each kind as they leave
//!    free, and a client as much as it leaves free of the share of its address ([`Tally`]), so that
//!    the next peer gets some, too.
//! 2. For what a client reclaims, and for its first open of a file that is delegated to it, the
//!    other peers' use does not count: its address may have half of the limit.
//! 3. When a limit is reached, clients whose lease has expired are purged, the longest silent
//!    first, no more of them than necessary, and none if that would not free enough.

use crate::admission::{LimitUse, Refusals, allowance, host};
use crate::state::client::ClientId;
use crate::state::error::StateError;
use crate::state::refused::{KINDS, Resource};
use crate::state::table::State;
use crate::state::tables::lock::Holder;
use crate::state::tally::{Account, Removable, Tally};
use std::net::IpAddr;
use std::time::Duration;

/// How long the result of a search for expired clients is reused. Until then, the server searches
/// again only if what the last search found could suffice.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// The peer that requests more of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) enum Requester {
    /// A client without a record.
    Newcomer,
    /// A client that needs something new, within its share.
    Client(ClientId),
    /// A client that already had what it requests.
    Again(ClientId),
    /// An NLM host that needs something new, within the share of its address.
    Host(IpAddr),
    /// An NLM host that reclaims.
    HostAgain(IpAddr),
}

impl Requester {
    /// `again`: the client already had what it requests.
    pub(in crate::state) fn of(client: ClientId, again: bool) -> Self {
        if again { Self::Again(client) } else { Self::Client(client) }
    }

    /// The peer that a holder of locks belongs to. `again`: it already had what it requests.
    pub(in crate::state) fn of_holder(holder: &Holder, again: bool) -> Self {
        match holder {
            Holder::V4(owner) => Self::of(owner.client, again),
            Holder::Nlm(owner) if again => Self::HostAgain(owner.host),
            Holder::Nlm(owner) => Self::Host(owner.host),
            Holder::LocalProgram => Self::Newcomer,
        }
    }

    fn client(self) -> Option<ClientId> {
        match self {
            Self::Newcomer | Self::Host(_) | Self::HostAgain(_) => None,
            Self::Client(client) | Self::Again(client) => Some(client),
        }
    }
}

/// What clients and addresses hold of the kinds that [`State`] itself counts.
#[derive(Debug, Default)]
pub(in crate::state) struct Tallies {
    pub(in crate::state) opens: Tally,
    pub(in crate::state) lock_states: Tally,
    pub(in crate::state) ranges: Tally,
    pub(in crate::state) delegations: Tally,
    pub(in crate::state) store_locks: Tally,
    pub(in crate::state) nlm_hosts: Tally,
    pub(in crate::state) nlm_waiting: Tally,
}

/// The last searches for expired clients, by kind.
pub(in crate::state) type Searches = [Option<ExpirySearch>; KINDS.len()];

/// The last search for expired clients.
#[derive(Clone, Debug)]
pub(in crate::state) struct ExpirySearch {
    at: Duration,
    /// What the expired clients would free that were not purged.
    found: Removable,
}

impl<F: Clone> State<F> {
    /// Checks that a client may have one more of a kind; purges expired clients if necessary.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub(in crate::state) fn check_quota(
        &mut self,
        kind: Resource,
        requester: Requester,
        now: Duration,
    ) -> Result<(), StateError> {
        self.check_quota_for(1, kind, requester, now)
    }

    /// Like [`check_quota`](Self::check_quota), for `amount` more.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub(in crate::state) fn check_quota_for(
        &mut self,
        amount: usize,
        kind: Resource,
        requester: Requester,
        now: Duration,
    ) -> Result<(), StateError> {
        let none = Removable::default();
        if self.allowed(kind, requester, &none) >= amount {
            return Ok(());
        }
        let index = kind as usize;
        let is_recent = |search: &&ExpirySearch| now.saturating_sub(search.at) < SEARCH_INTERVAL;
        let last = self.searches[index].as_ref().filter(is_recent);
        if last.is_none_or(|search| self.allowed(kind, requester, &search.found) >= amount) {
            let silent = self.silent_holders(kind, requester, now);
            let mut found = self.freed_by(kind, silent.iter().map(|(_, id)| *id));
            if self.allowed(kind, requester, &found) >= amount {
                let mut left = silent.iter();
                while self.allowed(kind, requester, &none) < amount
                    && let Some((_, id)) = left.next()
                {
                    self.purge_expired(*id, now);
                }
                found = self.freed_by(kind, left.map(|(_, id)| *id));
            }
            self.searches[index] = Some(ExpirySearch { at: now, found });
            if self.allowed(kind, requester, &none) >= amount {
                return Ok(());
            }
        }
        self.count_refused(kind, requester);
        Err(StateError::TooMany)
    }

    /// Purges a client, unless it has renewed its lease since the search found it expired.
    fn purge_expired(&mut self, id: ClientId, now: Duration) {
        if self.clients.get(id).is_ok_and(|client| self.clients.end_expired(client, now)) {
            self.purge_silent(id);
        }
    }

    /// Like [`check_quota_for`](Self::check_quota_for), but purges no expired clients.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub(in crate::state) fn check_share(
        &mut self,
        amount: usize,
        kind: Resource,
        requester: Requester,
    ) -> Result<(), StateError> {
        if self.allowed(kind, requester, &Removable::default()) >= amount {
            return Ok(());
        }
        self.count_refused(kind, requester);
        Err(StateError::TooMany)
    }

    fn count_refused(&mut self, kind: Resource, requester: Requester) {
        let address = match requester {
            Requester::Newcomer => None,
            Requester::Client(id) | Requester::Again(id) => self.account(id).address,
            Requester::Host(ip) | Requester::HostAgain(ip) => Some(host(ip)),
        };
        self.refusals.count(kind, address);
    }

    /// How often the peers at an address were refused, by limit.
    pub(crate) fn refusals(&self) -> Vec<Refusals> {
        self.refusals.by_address()
    }

    /// The expired clients that hold some of a kind, the longest silent first.
    fn silent_holders(
        &self,
        kind: Resource,
        requester: Requester,
        now: Duration,
    ) -> Vec<(Duration, ClientId)> {
        let spared = [requester.client(), self.replaced_by(kind, requester)];
        let clients = self.clients.iter().filter(|c| !spared.contains(&Some(c.id)));
        let silent = clients.filter(|c| c.confirmed && self.clients.is_expired(c, now));
        let holders = silent.filter(|c| self.tally(kind).is_none_or(|held| held.of(c.id) > 0));
        let mut holders: Vec<_> = holders.map(|c| (c.shared.lease.renewed(), c.id)).collect();
        holders.sort_unstable();
        holders
    }

    /// What clients would free of a kind if they were removed.
    fn freed_by(&self, kind: Resource, clients: impl Iterator<Item = ClientId>) -> Removable {
        let mut freed = Removable::default();
        for id in clients {
            match self.tally(kind) {
                Some(tally) => tally.freed_by(self.account(id), &mut freed),
                None => freed.total += 1,
            }
        }
        freed
    }

    /// The client that the requester replaces when its first session confirms it.
    fn replaced_by(&self, kind: Resource, requester: Requester) -> Option<ClientId> {
        let client = self.clients.get(requester.client()?).ok()?;
        let replaced = self.clients.confirmed(&client.owner).map(|c| c.id);
        replaced.filter(|id| kind == Resource::Session && *id != client.id)
    }

    /// What is held of a kind; `None` for clients, which are counted with their addresses.
    fn tally(&self, kind: Resource) -> Option<&Tally> {
        match kind {
            Resource::Client => None,
            Resource::Session => Some(self.sessions.counts()),
            Resource::Open => Some(&self.tallies.opens),
            Resource::LockState => Some(&self.tallies.lock_states),
            Resource::Range => Some(&self.tallies.ranges),
            Resource::Delegation => Some(&self.tallies.delegations),
            Resource::StoreLock => Some(&self.tallies.store_locks),
            Resource::NlmHost => Some(&self.tallies.nlm_hosts),
            Resource::NlmWaiting => Some(&self.tallies.nlm_waiting),
        }
    }

    /// The limit of a kind, and how many there are.
    fn count(&self, kind: Resource) -> (usize, usize) {
        let limit = match kind {
            Resource::Client => self.limits.clients,
            Resource::Session => self.limits.sessions,
            Resource::Open => self.limits.opens,
            Resource::LockState | Resource::Range => self.limits.locks,
            Resource::Delegation => self.limits.delegations,
            Resource::StoreLock => self.limits.store_locks,
            Resource::NlmHost => self.limits.nlm_hosts,
            Resource::NlmWaiting => self.limits.nlm_waiting,
        };
        (limit, self.tally(kind).map_or(self.clients.len(), Tally::total))
    }

    /// A client, and the address that it is counted at.
    pub(crate) fn account(&self, client: ClientId) -> Account {
        let address = self.clients.get(client).ok().and_then(|client| client.address);
        Account { client, address }
    }

    /// How many more the peer may have if other clients freed `freed` of them.
    fn allowed(&self, kind: Resource, requester: Requester, freed: &Removable) -> usize {
        let (limit, used) = self.count(kind);
        let used = used.saturating_sub(freed.total);
        let Some(tally) = self.tally(kind) else { return allowance(limit, used, 0) };
        let again = |own| limit.div_ceil(2).saturating_sub(own).min(limit.saturating_sub(used));
        match requester {
            Requester::Newcomer => allowance(limit, used, 0),
            Requester::Host(ip) => tally.allowance_at(limit, host(ip), freed),
            Requester::Client(id) => match self.replaced_by(kind, requester) {
                Some(replaced) => {
                    let mut freed = freed.clone();
                    tally.freed_by(self.account(replaced), &mut freed);
                    tally.allowance(limit, self.account(id), &freed)
                }
                None => tally.allowance(limit, self.account(id), freed),
            },
            Requester::Again(id) => again(tally.of_group(self.account(id))),
            Requester::HostAgain(ip) => again(tally.of_address(host(ip))),
        }
    }

    /// The use of each limit that clients share.
    pub(crate) fn limit_uses(&self) -> Vec<LimitUse> {
        let uses = KINDS.iter().zip(*self.refusals.counts()).map(|(&(kind, name), refused)| {
            let (limit, used) = self.count(kind);
            LimitUse { name, limit: limit as u64, used: used as u64, refused }
        });
        uses.chain([self.sessions.kept()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Node;
    use crate::state::refused::MAX_ADDRESSES;
    use crate::state::tests::{
        READ, WRITE, client, lock_under, owner, principal, ready, record, request,
    };
    use crate::state::{
        Channel, Claim, Grace, Ids, Limits, LockRequest, LockTarget, OpenRequest, Owner, Range,
        ReclaimDenied, StateId,
    };
    use weir_vfs::FileId;

    const T0: Duration = Duration::ZERO;

    fn state(limits: Limits) -> State<char> {
        State::new(Ids::new(1, [7; 32]), limits, Grace::default())
    }

    fn open(
        state: &mut State<char>,
        client: ClientId,
        ino: u64,
        now: Duration,
    ) -> Result<StateId, StateError> {
        let node = Node { export: 0, id: FileId { ino, generation: 1 } };
        let opens = crate::state::OpenRequest { node, ..request(client, READ.union(WRITE)) };
        match state.open(opens.clone(), now) {
            Err(StateError::Unsettled) => {
                assert!(!state.write_records().is_empty(), "of a client that was removed for this");
                state.open(opens, now)
            }
            opened => opened,
        }
    }

    fn refused(state: &State<char>, name: &str) -> u64 {
        state.limit_uses().iter().find(|limit| limit.name == name).unwrap().refused
    }

    #[test]
    fn a_client_with_many_opens_leaves_room_for_others() {
        let mut state = state(Limits { opens: 12, ..Limits::default() });
        let [a, b] = ["a", "b"].map(|name| ready(&mut state, name, T0));
        let fill = |state: &mut State<char>, client, first: u64| {
            (first..).take_while(|&ino| open(state, client, ino, T0).is_ok()).count()
        };
        assert_eq!(fill(&mut state, a, 100), 6);
        assert_eq!(fill(&mut state, b, 200), 3);
        assert!(open(&mut state, a, 100, T0).is_ok(), "it has that open");
        assert_eq!(refused(&state, "opens"), 2);
    }

    #[test]
    fn a_client_with_many_locks_leaves_room_for_others() {
        let mut state = state(Limits { locks: 12, ..Limits::default() });
        let [a, b] = ["a", "b"].map(|name| ready(&mut state, name, T0));
        let mut fill = |client, ino| {
            let id = open(&mut state, client, ino, T0).unwrap();
            let node = Node { export: 0, id: FileId { ino, generation: 1 } };
            let locked = (0u64..).take_while(|at| {
                let range = Range { start: at * 10, end: at * 10 + 5 };
                let request =
                    crate::state::LockRequest { node, range, ..lock_under(id, client, true) };
                state.lock(request, T0).is_ok()
            });
            (locked.count(), id)
        };
        let (of_a, open_of_a) = fill(a, 100);
        assert_eq!((of_a, fill(b, 200).0), (6, 3));
        let node = Node { export: 0, id: FileId { ino: 100, generation: 1 } };
        state.close(a, open_of_a, node).unwrap();
        assert_eq!(state.tallies.ranges.of(a), 0);
        assert_eq!(refused(&state, "locked_ranges"), 2);
    }

    #[test]
    fn clients_with_expired_leases_are_removed_first() {
        let mut state = state(Limits { opens: 6, ..Limits::default() });
        let lease = state.limits.lease;
        let [old, older, live] = ["old", "older", "live"].map(|name| ready(&mut state, name, T0));
        state.clients.renew(old, lease / 2);
        for (client, ino) in [(old, 1), (older, 2), (older, 3)] {
            open(&mut state, client, ino, T0).unwrap();
        }
        let now = lease * 2;
        state.clients.renew(live, now);
        open(&mut state, live, 10, now).unwrap();
        assert!(state.clients.get(older).is_ok(), "there is room still");
        open(&mut state, live, 11, now).unwrap();
        assert_eq!(state.clients.get(older).err(), Some(StateError::StaleClientId));
        assert!(state.clients.get(old).is_ok(), "one was enough");
        open(&mut state, live, 12, now).unwrap();
        assert!(state.clients.get(old).is_err());
        assert_eq!(open(&mut state, live, 13, now), Err(StateError::TooMany), "half is the most");
        assert!(state.clients.get(live).is_ok());
    }

    #[test]
    fn a_client_with_many_sessions_leaves_room_for_others() {
        const CHANNEL: Channel = Channel {
            max_request: 4096,
            max_response: 4096,
            max_cached: 1024,
            max_operations: 8,
            slots: 4,
        };
        let mut state = state(Limits { clients: 2, sessions: 6, ..Limits::default() });
        let [a, b] = ["a", "b"].map(|name| ready(&mut state, name, T0));
        let fill = |state: &mut State<char>, client| {
            let made = (0..).take_while(|_| {
                let room = state.check_session(client, T0).is_ok();
                room && state.create_session(client, CHANNEL, CHANNEL, 1).is_ok()
            });
            made.count()
        };
        assert_eq!((fill(&mut state, a), fill(&mut state, b)), (3, 1));
        let mut introduce = |now| {
            let (owner, principal) =
                (crate::state::tests::owner("c"), crate::state::tests::principal());
            state.exchange_id(owner, [0; 8], principal, false, now).map(|_| ())
        };
        assert_eq!(introduce(T0), Err(StateError::TooMany));
        assert_eq!(introduce(Limits::default().lease * 2), Ok(()));
        assert_eq!(state.clients.len(), 2);
    }

    fn opens(limit: usize) -> (State<char>, [ClientId; 3]) {
        let mut state = state(Limits { opens: limit, ..Limits::default() });
        let clients = ["a", "b", "c"].map(|name| ready(&mut state, name, T0));
        (state, clients)
    }

    #[test]
    fn a_silent_client_stays_if_removing_it_frees_nothing() {
        let (mut state, [live, small, idle]) = opens(9);
        let now = Limits::default().lease * 2;
        open(&mut state, small, 1, T0).unwrap();
        state.clients.renew(live, now);
        for ino in 10..14 {
            open(&mut state, live, ino, now).unwrap();
        }
        // It has as much as it leaves free, also when all others are gone.
        assert_eq!(open(&mut state, live, 20, now), Err(StateError::TooMany));
        assert!(state.clients.get(small).is_ok() && state.clients.get(idle).is_ok());
    }

    #[test]
    fn a_silent_client_stays_if_it_holds_none_of_the_scarce_kind() {
        let (mut state, [live, holder, idle]) = opens(2);
        let now = Limits::default().lease * 2;
        state.clients.renew(holder, Duration::from_secs(1));
        open(&mut state, holder, 1, T0).unwrap();
        open(&mut state, holder, 2, T0).unwrap_err();
        state.clients.renew(live, now);
        open(&mut state, live, 3, now).unwrap();
        open(&mut state, live, 4, now).unwrap_err();
        let late = ready(&mut state, "late", now);
        open(&mut state, late, 5, now).unwrap();
        assert!(state.clients.get(holder).is_err() && state.clients.get(idle).is_ok());
    }

    #[test]
    fn a_failed_search_for_one_kind_or_client_does_not_delay_another() {
        let (mut state, [greedy, holder, other]) = opens(3);
        let now = Limits::default().lease * 2;
        open(&mut state, holder, 1, T0).unwrap();
        state.limits.sessions = 0;
        let late = ready(&mut state, "late", now);
        state.clients.renew(greedy, now);
        state.clients.renew(other, now);
        open(&mut state, greedy, 2, now).unwrap();
        assert_eq!(open(&mut state, greedy, 3, now), Err(StateError::TooMany));
        assert_eq!(state.check_session(other, now), Err(StateError::TooMany));
        open(&mut state, other, 4, now).unwrap();
        assert_eq!(open(&mut state, greedy, 3, now), Err(StateError::TooMany));
        assert!(state.clients.get(holder).is_ok());
        open(&mut state, late, 5, now).unwrap();
        assert!(state.clients.get(holder).is_err());
    }

    #[test]
    fn a_removed_v40_client_gets_expired() {
        let mut state = state(Limits { clients: 1, ..Limits::default() });
        let introduce = |state: &mut State<char>, name, now| {
            let owner = Owner { sessions: false, ..owner(name) };
            state.introduce(owner, [0; 8], principal(), None, now).map(|(id, _)| id)
        };
        let old = introduce(&mut state, "old", T0).unwrap();
        state.confirm(old, &principal(), T0).unwrap();
        state.clients.get_mut(old).unwrap().is_recorded = true;
        let opened = open(&mut state, old, 1, T0).unwrap();
        assert_eq!(introduce(&mut state, "new", T0), Err(StateError::TooMany));
        introduce(&mut state, "new", Limits::default().lease * 2).unwrap();
        assert_eq!(state.named_client(old).err(), Some(StateError::Expired));
        assert_eq!(state.missing(opened.key), StateError::Expired);
    }

    #[test]
    fn reclaimed_and_delegated_state_may_be_half_of_a_limit_beside_others() {
        let grace =
            Grace::new(Limits::default().lease, [(owner("a"), record(ReclaimDenied::default()))]);
        let limits = Limits { opens: 6, locks: 6, ..Limits::default() };
        let mut state = State::new(Ids::new(1, [7; 32]), limits, grace);
        let a = client(&mut state, "a", T0);
        for ino in 1..=3 {
            let node = Node { export: 0, id: FileId { ino, generation: 1 } };
            let again = OpenRequest { node, claim: Claim::Reclaim, ..request(a, WRITE) };
            let id = state.open(again, T0).unwrap();
            let lock = LockRequest { node, reclaim: true, ..lock_under(id, a, true) };
            state.lock(lock, T0).unwrap();
        }
        state.limits.opens = 7;
        state.reclaim_complete(a).unwrap();
        assert_eq!(open(&mut state, a, 4, T0), Err(StateError::TooMany));
        let node = Node { export: 0, id: FileId { ino: 4, generation: 1 } };
        let delegated = |node| OpenRequest { node, claim: Claim::Delegated, ..request(a, WRITE) };
        state.open(delegated(node), T0).unwrap();
        let node = Node { export: 0, id: FileId { ino: 5, generation: 1 } };
        assert_eq!(state.open(delegated(node), T0), Err(StateError::TooMany));
    }

    /// Counts a client at an address.
    fn place(state: &mut State<char>, client: ClientId, address: &str) {
        state.clients.get_mut(client).unwrap().address = Some(address.parse().unwrap());
    }

    #[test]
    fn clients_of_one_address_together_have_the_share_of_one() {
        let mut state = state(Limits { opens: 24, ..Limits::default() });
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let crowd = names.map(|name| ready(&mut state, name, T0));
        crowd.iter().for_each(|&client| place(&mut state, client, "192.0.2.1"));
        let other = ready(&mut state, "other", T0);
        place(&mut state, other, "192.0.2.2");
        let mut files = 0..;
        let mut fill = |state: &mut State<char>, client| {
            files.by_ref().take_while(|&ino| open(state, client, ino, T0).is_ok()).count()
        };
        let opened: Vec<usize> = crowd.iter().map(|&client| fill(&mut state, client)).collect();
        assert_eq!(opened.iter().sum::<usize>(), 12, "half of the limit: {opened:?}");
        assert_eq!(opened[..2], [6, 3], "each leaves as much of that as it has");
        assert_eq!(fill(&mut state, other), 3);
        let address = "192.0.2.1".parse().unwrap();
        assert!(state.refusals().contains(&Refusals { limit: "opens", address, count: 8 }));
        for number in 0..2 * MAX_ADDRESSES as u32 {
            let host = Requester::Host(IpAddr::from(number.to_be_bytes()));
            state.check_share(1000, Resource::Open, host).unwrap_err();
        }
        assert_eq!(state.refusals().len(), MAX_ADDRESSES);
        assert!(state.refusals().iter().any(|refused| refused.count == 8), "the most stay");
        state.purge(crowd[0]);
        assert!(fill(&mut state, crowd[7]) > 0, "there is room at the address again");
    }

    #[test]
    fn an_expired_client_makes_room_for_others_of_its_address() {
        let (mut state, [silent, live, _]) = opens(8);
        for client in [silent, live] {
            place(&mut state, client, "192.0.2.1");
        }
        for ino in 1..=2 {
            open(&mut state, silent, ino, T0).unwrap();
        }
        let now = Limits::default().lease * 2;
        state.clients.renew(live, now);
        for ino in 10..12 {
            open(&mut state, live, ino, now).unwrap();
        }
        assert!(state.clients.get(silent).is_err(), "the address has half of the limit");
    }

    #[test]
    fn a_client_whose_call_is_in_progress_is_not_silent() {
        let (mut state, [busy, live, _]) = opens(4);
        for ino in 1..=2 {
            open(&mut state, busy, ino, T0).unwrap();
        }
        let now = Limits::default().courtesy * 2;
        let call = state.clients.begin_call(busy, T0).unwrap();
        state.clients.renew(live, now);
        open(&mut state, live, 10, now).unwrap();
        assert_eq!(open(&mut state, live, 11, now), Err(StateError::TooMany));
        state.sweep(now);
        assert!(state.clients.get(busy).is_ok());
        call.lease.end_call(now);
        assert_eq!(open(&mut state, live, 12, now), Err(StateError::TooMany), "it has just ended");
        let later = now + Limits::default().lease * 2;
        state.clients.renew(live, later);
        open(&mut state, live, 13, later).unwrap();
        assert!(state.clients.get(busy).is_err());
    }

    #[test]
    fn a_delegation_gives_one_open_beyond_the_share() {
        let (mut state, [a, ..]) = opens(6);
        for ino in 1..=3 {
            open(&mut state, a, ino, T0).unwrap();
        }
        assert_eq!(open(&mut state, a, 4, T0), Err(StateError::TooMany));
        state.limits.opens = 7;
        let claim = |state: &mut State<char>, ino, name: &'static str| {
            let node = Node { export: 0, id: FileId { ino, generation: 1 } };
            let claim = Claim::Delegated;
            state.open(OpenRequest { node, claim, owner: name.into(), ..request(a, READ) }, T0)
        };
        claim(&mut state, 4, "first").unwrap();
        assert_eq!(claim(&mut state, 4, "second"), Err(StateError::TooMany));
        assert_eq!(claim(&mut state, 5, "first"), Err(StateError::TooMany), "half is the most");
    }

    #[test]
    fn a_lock_that_is_split_counts_as_the_ranges_that_are_left() {
        let mut state = state(Limits { locks: 8, ..Limits::default() });
        let a = ready(&mut state, "a", T0);
        let id = open(&mut state, a, 1, T0).unwrap();
        let node = Node { export: 0, id: FileId { ino: 1, generation: 1 } };
        let lock = |state: &mut State<char>, start, end, exclusive| {
            let range = Range { start, end };
            let request = LockRequest { node, range, ..lock_under(id, a, exclusive) };
            state.lock(request, T0)
        };
        lock(&mut state, 0, 100, false).unwrap();
        let held = lock(&mut state, 10, 20, true).unwrap();
        assert_eq!(state.tallies.ranges.of(a), 3, "the upgrade splits it");
        let refused = lock(&mut state, 40, 50, true);
        assert_eq!(refused, Err(StateError::TooMany.into()), "five would be more than half");
        lock(&mut state, 40, 50, false).unwrap();
        let held = StateId { seq: 0, ..held };
        let unlock = |state: &mut State<char>, start, end| {
            state.unlock(a, held, node, Range { start, end }).map(|_| ())
        };
        assert_eq!(unlock(&mut state, 60, 70), Ok(()));
        assert_eq!(unlock(&mut state, 80, 90), Err(StateError::TooMany));
        assert_eq!(state.tallies.ranges.of(a), 4);
        assert_eq!(unlock(&mut state, 0, 100), Ok(()));
        assert_eq!(state.tallies.ranges.total(), 0);
    }

    #[test]
    fn lock_states_are_not_counted_as_opens() {
        let (mut state, [a, ..]) = opens(4);
        let id = open(&mut state, a, 1, T0).unwrap();
        let node = Node { export: 0, id: FileId { ino: 1, generation: 1 } };
        for name in ["x", "y", "z"] {
            let target = LockTarget::Open(id, name.into());
            let locked = LockRequest { node, target, ..lock_under(id, a, false) };
            state.lock(locked, T0).unwrap();
        }
        let second = open(&mut state, a, 2, T0).unwrap();
        assert_eq!(open(&mut state, a, 3, T0), Err(StateError::TooMany));
        let held = |state: &State<char>| {
            let Tallies { opens, lock_states, ranges, .. } = &state.tallies;
            [opens, lock_states, ranges].map(|tally| tally.of(a))
        };
        assert_eq!(held(&state), [2, 3, 3]);
        state.close(a, id, node).unwrap();
        let node = Node { export: 0, id: FileId { ino: 2, generation: 1 } };
        state.close(a, second, node).unwrap();
        assert_eq!(held(&state), [0, 0, 0]);
    }

    #[test]
    fn a_client_that_returns_after_the_search_is_not_removed() {
        let (mut state, [a, _, _]) = opens(4);
        let now = Limits::default().lease * 2;
        let call = state.clients.begin_call(a, T0).unwrap();
        state.purge_expired(a, now);
        call.lease.end_call(now);
        state.purge_expired(a, now);
        assert!(state.clients.get(a).is_ok());
        state.purge_expired(a, now * 2);
        assert!(state.clients.get(a).is_err());
        assert!(!call.lease.begin_call(now), "no request begins any more");
    }

    #[test]
    fn slots_with_small_replies_work_while_others_keep_large_ones() {
        use crate::state::session::Sessions;
        use crate::state::slot_table::{SequenceArgs, SlotTable};
        const CHANNEL: Channel = Channel {
            max_request: 4096,
            max_response: 4096,
            max_cached: 1024,
            max_operations: 8,
            slots: 4,
        };
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 20, 4096);
        let run = |table: &SlotTable, slot, sequence, bytes| {
            let request =
                SequenceArgs { slot, sequence, highest_slot: slot, digest: 7, keep: true };
            table.begin(request, T0)?;
            table.finish(slot, Some(vec![0; bytes].into()), T0);
            Ok(())
        };
        let small = sessions.create_alone(0, CHANNEL).unwrap().slots.clone();
        assert_eq!(run(&small, 1, 1, 100), Ok(()));
        for other in 1..12 {
            let table = sessions.create_alone(other, CHANNEL).unwrap().slots.clone();
            assert_eq!(run(&table, 0, 1, 500), Ok(()));
        }
        assert_eq!(run(&small, 1, 2, 100), Ok(()), "it holds a reply");
        assert_eq!(run(&small, 0, 1, 100), Ok(()), "it is the first");
        assert_eq!(run(&small, 2, 1, 100), Err(StateError::TooMany));
        (0..12).for_each(|client| sessions.remove_of(ClientId(client)));
        assert_eq!(sessions.kept().used, 0);
    }
}
