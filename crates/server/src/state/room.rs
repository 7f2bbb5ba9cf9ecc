//! Limits on the state of each client, and reclamation of state from expired clients.
//!
//! 1. A client may have as much of each kind as it leaves free ([`allowance`]), so that there is
//!    room for the next client. For what a client reclaims, or opened under a delegation, only the
//!    total limit counts.
//! 2. When a limit is reached, clients whose lease has expired are purged, the longest silent
//!    first, no more of them than necessary, and none if that would not make room.

use crate::admission::{LimitUse, allowance};
use crate::state::client::{Client, ClientId};
use crate::state::error::StateError;
use crate::state::table::State;
use std::time::Duration;

/// How long the result of a search for expired clients is reused. Until then, the server searches
/// again only if what the last search found could suffice.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Kinds of state with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) enum Limited {
    Client,
    Session,
    Open,
    LockState,
    Range,
}

/// The client that needs room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) enum Asker {
    /// A client without a record.
    Newcomer,
    /// A client that needs something new, within its share.
    Client(ClientId),
    /// A client that already had what it asks for, so its share does not matter.
    Again(ClientId),
}

impl Asker {
    /// `again`: the client already had what it asks for.
    pub(in crate::state) fn of(client: ClientId, again: bool) -> Self {
        if again { Self::Again(client) } else { Self::Client(client) }
    }

    fn client(self) -> Option<ClientId> {
        match self {
            Self::Newcomer => None,
            Self::Client(client) | Self::Again(client) => Some(client),
        }
    }
}

const KINDS: [(Limited, &str); 5] = [
    (Limited::Client, "clients"),
    (Limited::Session, "sessions"),
    (Limited::Open, "opens"),
    (Limited::LockState, "lock_states"),
    (Limited::Range, "locked_ranges"),
];

/// Refused requests, and the last searches for expired clients, by kind.
#[derive(Debug, Default)]
pub(in crate::state) struct Refusals {
    counts: [u64; KINDS.len()],
    looks: [Option<Look>; KINDS.len()],
}

/// The last search for expired clients.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Duration,
    /// How many of the kind the expired clients held that were not purged.
    found: usize,
}

impl<F: Clone> State<F> {
    /// Makes room for one more of a kind; purges expired clients if necessary.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub(in crate::state) fn make_room(
        &mut self,
        kind: Limited,
        asker: Asker,
        now: Duration,
    ) -> Result<(), StateError> {
        if self.has_room(kind, asker, 0) {
            return Ok(());
        }
        let place = kind as usize;
        let is_recent = |look: &Look| now.saturating_sub(look.at) < LOOK_EVERY;
        let last = self.refusals.looks[place].filter(is_recent);
        if last.is_none_or(|look| self.has_room(kind, asker, look.found)) {
            let silent = self.silent_holders(kind, asker, now);
            let mut found = silent.iter().map(|(.., held)| held).sum();
            if self.has_room(kind, asker, found) {
                for (_, id, held) in silent {
                    self.purge_silent(id);
                    found -= held;
                    if self.has_room(kind, asker, 0) {
                        break;
                    }
                }
            }
            self.refusals.looks[place] = Some(Look { at: now, found });
            if self.has_room(kind, asker, 0) {
                return Ok(());
            }
        }
        self.refusals.counts[place] += 1;
        Err(StateError::TooMany)
    }

    /// The expired clients that hold some of a kind, and how many; the longest silent first.
    fn silent_holders(
        &self,
        kind: Limited,
        asker: Asker,
        now: Duration,
    ) -> Vec<(Duration, ClientId, usize)> {
        let spared = [asker.client(), self.replaced_by(kind, asker)];
        let clients = self.clients.iter().filter(|c| !spared.contains(&Some(c.id)));
        let silent = clients.filter(|c| c.confirmed && self.clients.is_expired(c, now));
        let holders = silent.map(|c| (c.renewed, c.id, self.held_by(kind, c)));
        let mut holders: Vec<_> = holders.filter(|(.., held)| *held > 0).collect();
        holders.sort_unstable();
        holders
    }

    /// The client that the asker replaces when its first session confirms it.
    fn replaced_by(&self, kind: Limited, asker: Asker) -> Option<ClientId> {
        let client = self.clients.get(asker.client()?).ok()?;
        let replaced = self.clients.confirmed(&client.owner).map(|c| c.id);
        replaced.filter(|id| kind == Limited::Session && *id != client.id)
    }

    fn held_by(&self, kind: Limited, client: &Client) -> usize {
        match kind {
            Limited::Client => 1,
            Limited::Session => self.sessions.of(client.id).count(),
            Limited::Open => client.opens,
            Limited::LockState => client.lock_states,
            Limited::Range => client.ranges,
        }
    }

    /// The limit of a kind, and how many there are.
    fn count(&self, kind: Limited) -> (usize, usize) {
        match kind {
            Limited::Client => (self.limits.clients, self.clients.len()),
            Limited::Session => (self.limits.sessions, self.sessions.len()),
            Limited::Open => (self.limits.opens, self.opens.len()),
            Limited::LockState => (self.limits.locks, self.locks.len()),
            Limited::Range => (self.limits.locks, self.held),
        }
    }

    /// Whether there is room for one more if other clients freed `freed` of them.
    fn has_room(&self, kind: Limited, asker: Asker, freed: usize) -> bool {
        let (limit, used) = self.count(kind);
        let replaced = self.replaced_by(kind, asker);
        let replaced = replaced.map_or(0, |other| self.sessions.of(other).count());
        let used = used.saturating_sub(replaced).saturating_sub(freed);
        let own = match asker {
            Asker::Client(id) => self.clients.get(id).map_or(0, |c| self.held_by(kind, c)),
            Asker::Newcomer | Asker::Again(_) => 0,
        };
        allowance(limit, used, own) > 0
    }

    /// The use of each limit that clients share.
    pub(crate) fn limit_uses(&self) -> Vec<LimitUse> {
        let uses = KINDS.iter().zip(self.refusals.counts).map(|(&(kind, name), refused)| {
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
        state.open(crate::state::OpenRequest { node, ..request(client, READ.union(WRITE)) }, now)
    }

    fn refused(state: &State<char>, name: &str) -> u64 {
        state.limit_uses().iter().find(|limit| limit.name == name).unwrap().refused
    }

    #[test]
    fn a_client_that_opens_what_it_can_leaves_room_for_others() {
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
    fn a_client_that_locks_what_it_can_leaves_room_for_others() {
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
        assert_eq!(state.clients.get(a).unwrap().ranges, 0);
        assert_eq!(refused(&state, "locked_ranges"), 2);
    }

    #[test]
    fn clients_whose_lease_is_over_make_room_first() {
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
    fn sessions_and_clients_are_limited_likewise() {
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
                room && state.sessions.create(client, CHANNEL, CHANNEL, 1).is_ok()
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
    fn a_silent_client_is_spared_when_its_end_makes_no_room() {
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
    fn a_silent_client_that_holds_none_of_what_is_short_is_spared() {
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
    fn a_look_in_vain_for_one_kind_or_client_does_not_put_off_another() {
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
    fn a_client_of_minor_version_0_that_made_room_is_told_that_its_lease_is_over() {
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
    fn what_a_client_had_before_needs_no_share() {
        let grace =
            Grace::new(Limits::default().lease, [(owner("a"), record(ReclaimDenied::default()))]);
        let limits = Limits { opens: 3, locks: 3, ..Limits::default() };
        let mut state = State::new(Ids::new(1, [7; 32]), limits, grace);
        let a = client(&mut state, "a", T0);
        for ino in 1..=3 {
            let node = Node { export: 0, id: FileId { ino, generation: 1 } };
            let again = OpenRequest { node, claim: Claim::Reclaim, ..request(a, WRITE) };
            let id = state.open(again, T0).unwrap();
            let lock = LockRequest { node, reclaim: true, ..lock_under(id, a, true) };
            state.lock(lock, T0).unwrap();
        }
        state.limits.opens = 4;
        state.reclaim_complete(a).unwrap();
        assert_eq!(open(&mut state, a, 4, T0), Err(StateError::TooMany));
        let node = Node { export: 0, id: FileId { ino: 4, generation: 1 } };
        let delegated = |node| OpenRequest { node, claim: Claim::Delegated, ..request(a, WRITE) };
        state.open(delegated(node), T0).unwrap();
        let node = Node { export: 0, id: FileId { ino: 5, generation: 1 } };
        assert_eq!(state.open(delegated(node), T0), Err(StateError::TooMany));
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
            let client = state.clients.get(a).unwrap();
            (client.opens, client.lock_states, client.ranges)
        };
        assert_eq!(held(&state), (2, 3, 3));
        state.close(a, id, node).unwrap();
        let node = Node { export: 0, id: FileId { ino: 2, generation: 1 } };
        state.close(a, second, node).unwrap();
        assert_eq!(held(&state), (0, 0, 0));
    }

    #[test]
    fn slots_with_small_replies_get_on_when_others_keep_much() {
        use crate::state::session::{Request, SessionId, Sessions};
        const CHANNEL: Channel = Channel {
            max_request: 4096,
            max_response: 4096,
            max_cached: 1024,
            max_operations: 8,
            slots: 4,
        };
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 20, 4096);
        let run = |sessions: &mut Sessions, id: SessionId, slot, sequence, bytes| {
            let request = Request { slot, sequence, highest_slot: slot, digest: 7, keep: true };
            sessions.begin(id, request)?;
            sessions.finish(id, slot, Some(vec![0; bytes].into()));
            Ok(())
        };
        let small = sessions.create(ClientId(0), CHANNEL, CHANNEL, 0).unwrap().id;
        assert_eq!(run(&mut sessions, small, 1, 1, 100), Ok(()));
        for other in 1..12 {
            let id = sessions.create(ClientId(other), CHANNEL, CHANNEL, 0).unwrap().id;
            assert_eq!(run(&mut sessions, id, 0, 1, 500), Ok(()));
        }
        assert_eq!(run(&mut sessions, small, 1, 2, 100), Ok(()), "it holds a reply");
        assert_eq!(run(&mut sessions, small, 0, 1, 100), Ok(()), "it is the first");
        assert_eq!(run(&mut sessions, small, 2, 1, 100), Err(StateError::TooMany));
        (0..12).for_each(|client| sessions.remove_of(ClientId(client)));
        assert_eq!(sessions.kept().used, 0);
    }
}
