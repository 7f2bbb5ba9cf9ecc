//! Clients of minor version 0 that lost all state with their lease. Requests that name such a
//! client or its state fail with NFS4ERR_EXPIRED (RFC 7530 section 9.6.3).
//!
//! At most [`MAX_CLIENTS`] and [`MAX_STATES`] are remembered; the oldest are forgotten first.

use crate::state::client::ClientId;
use crate::state::stateid::StateKey;
use std::collections::{HashMap, HashSet, VecDeque};

/// Maximum number of remembered clients.
const MAX_CLIENTS: usize = 1024;
/// Maximum number of remembered states, of all clients together.
const MAX_STATES: usize = 64 << 10;

/// The clients that lost their lease, and their states.
#[derive(Debug, Default)]
pub(in crate::state) struct Lapsed {
    oldest_first: VecDeque<ClientId>,
    clients: HashMap<ClientId, Vec<StateKey>>,
    states: HashSet<StateKey>,
}

impl Lapsed {
    /// Remembers a client that is about to be purged, and its states.
    pub(in crate::state) fn note(
        &mut self,
        client: ClientId,
        states: impl Iterator<Item = StateKey>,
    ) {
        let states: Vec<StateKey> = states.take(MAX_STATES).collect();
        self.states.extend(&states);
        if self.clients.insert(client, states).is_none() {
            self.oldest_first.push_back(client);
        }
        while self.clients.len() > MAX_CLIENTS || self.states.len() > MAX_STATES {
            let Some(oldest) = self.oldest_first.pop_front() else { return };
            for key in self.clients.remove(&oldest).unwrap_or_default() {
                self.states.remove(&key);
            }
        }
    }

    /// Whether a client lost its lease.
    pub(in crate::state) fn has_client(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }

    /// Whether a client lost this state with its lease.
    pub(in crate::state) fn has_state(&self, key: StateKey) -> bool {
        self.states.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> StateKey {
        StateKey { run: 1, number }
    }

    #[test]
    fn the_oldest_entries_are_forgotten() {
        let mut lapsed = Lapsed::default();
        for i in 0..=MAX_CLIENTS as u64 {
            lapsed.note(ClientId(i), [key(i)].into_iter());
        }
        assert!(!lapsed.has_client(ClientId(0)) && !lapsed.has_state(key(0)));
        assert!(lapsed.has_client(ClientId(1)) && lapsed.has_state(key(1)));
        let many = MAX_STATES as u64;
        lapsed.note(ClientId(many), (many..many * 2).map(key));
        assert!(!lapsed.has_client(ClientId(1)), "there are too many states");
        assert!(lapsed.has_state(key(many)) && lapsed.has_client(ClientId(many)));
        assert_eq!((lapsed.clients.len(), lapsed.oldest_first.len()), (1, 1));
    }
}
