//! Room for more state.
//!
//! 1. A client may have as much of each kind as it leaves free ([`allowance`]), so that there is room for the next
//!    client. Its opens, lock states and delegations count together.
//! 2. When there is no room, clients whose lease is over lose theirs first, the longest silent one before the
//!    others, and no more of them than necessary.

use crate::admission::{LimitUse, allowance};
use crate::state::client::ClientId;
use crate::state::error::StateError;
use crate::state::table::State;
use std::time::Duration;

/// After a look in vain for clients whose lease is over, how long there is no other.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What there may be a limited number of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) enum Limited {
    Client,
    Session,
    Open,
    LockState,
    Range,
}

const KINDS: [(Limited, &str); 5] = [
    (Limited::Client, "clients"),
    (Limited::Session, "sessions"),
    (Limited::Open, "opens"),
    (Limited::LockState, "lock_states"),
    (Limited::Range, "locked_ranges"),
];

/// What was asked for in vain.
#[derive(Debug, Default)]
pub(in crate::state) struct Refusals {
    counts: [u64; KINDS.len()],
    looked_at: Option<Duration>,
}

impl<F: Clone> State<F> {
    /// Makes room for one more of a kind, for a client if it is known.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub(in crate::state) fn make_room(
        &mut self,
        kind: Limited,
        client: Option<ClientId>,
        now: Duration,
    ) -> Result<(), StateError> {
        if self.has_room(kind, client) {
            return Ok(());
        }
        let looked_at = self.refusals.looked_at;
        if looked_at.is_none_or(|looked_at| now.saturating_sub(looked_at) >= LOOK_EVERY) {
            let clients = self.clients.iter();
            let silent = clients.filter(|c| c.confirmed && self.clients.is_expired(c, now));
            let mut silent: Vec<_> = silent.map(|c| (c.renewed, c.id)).collect();
            silent.sort_unstable();
            for (_, id) in silent.into_iter().filter(|(_, id)| Some(*id) != client) {
                self.purge(id);
                if self.has_room(kind, client) {
                    return Ok(());
                }
            }
            self.refusals.looked_at = Some(now);
        }
        let place = KINDS.iter().position(|(known, _)| *known == kind);
        place.into_iter().for_each(|place| self.refusals.counts[place] += 1);
        Err(StateError::TooMany)
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

    fn has_room(&self, kind: Limited, client: Option<ClientId>) -> bool {
        let (limit, mut used) = self.count(kind);
        let Some(client) = client.and_then(|id| self.clients.get(id).ok()) else {
            return used < limit;
        };
        let own = match kind {
            Limited::Client => 0,
            Limited::Session => {
                // Those that it replaces when it is confirmed are gone then.
                let replaced = self.clients.confirmed(&client.owner).filter(|c| c.id != client.id);
                used -= replaced.map_or(0, |other| self.sessions.of(other.id).count());
                self.sessions.of(client.id).count()
            }
            Limited::Open | Limited::LockState => client.states.len(),
            Limited::Range => client.ranges,
        };
        allowance(limit, used, own) > 0
    }

    /// What is held of each limit that clients share.
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
    use crate::state::tests::{READ, WRITE, lock_under, ready, request};
    use crate::state::{Channel, Grace, Ids, Limits, Range, StateId};
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
}
