//! Sessions: their slots, sizes and connections.
//!
//! 1. The replies that all sessions may keep together never pass a budget: a session is granted
//!    as many slots as still fit, and at least one.
//! 2. A slot that was taken is given back however its request ends.

use super::slot::{Begin, Slot, SlotError};
use super::{ClientId, StateError};
use bytes::Bytes;
use std::collections::HashMap;

/// A session's name: the client's number and a number never used twice in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 16]);

/// Sizes of one direction of a session (RFC 8881 section 18.36: `channel_attrs4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Largest request, RPC header included, in bytes.
    pub max_request: u32,
    /// Largest reply, RPC header included, in bytes.
    pub max_response: u32,
    /// Largest reply that is kept, in bytes.
    pub max_cached: u32,
    /// Most operations in a request.
    pub max_operations: u32,
    /// Slots.
    pub slots: u32,
}

impl Channel {
    /// What is granted: no more than asked for, no more than `self` offers.
    ///
    /// # Errors
    /// [`StateError::TooSmall`] when nothing useful fits the sizes asked for.
    pub fn grant(self, asked: Self) -> Result<Self, StateError> {
        const LEAST_BYTES: u32 = 512;
        let granted = Self {
            max_request: self.max_request.min(asked.max_request),
            max_response: self.max_response.min(asked.max_response),
            max_cached: self.max_cached.min(asked.max_cached),
            max_operations: self.max_operations.min(asked.max_operations),
            slots: self.slots.min(asked.slots).max(1),
        };
        let useful = granted.max_request >= LEAST_BYTES
            && granted.max_response >= LEAST_BYTES
            && granted.max_operations > 0;
        if useful { Ok(granted) } else { Err(StateError::TooSmall) }
    }

    fn kept_bytes(self) -> u64 {
        u64::from(self.slots) * u64::from(self.max_cached)
    }
}

/// One session.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its name.
    pub id: SessionId,
    /// Whose it is.
    pub client: ClientId,
    /// Requests of the client.
    pub fore: Channel,
    /// Requests of the server.
    pub back: Channel,
    /// The program number that the client's callback service has.
    pub callback_program: u32,
    slots: Vec<Slot>,
}

impl Session {
    /// Whether a slot other than `but` is busy.
    pub fn is_busy(&self, but: Option<u32>) -> bool {
        self.slots.iter().enumerate().any(|(i, slot)| slot.is_busy() && Some(i as u32) != but)
    }
}

/// What SEQUENCE found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sequenced {
    /// Execute the request, then [`Sessions::finish`] the slot.
    Execute {
        /// Whose session it is.
        client: ClientId,
        /// Sizes of the session.
        fore: Channel,
    },
    /// The reply that was kept.
    Replay(Bytes),
}

/// The sessions.
#[derive(Debug)]
pub struct Sessions {
    by_id: HashMap<SessionId, Session>,
    made: u64,
    kept_bytes: u64,
    max_kept_bytes: u64,
    max: usize,
}

impl Sessions {
    /// No sessions; `max` at most, which keep replies of `max_kept_bytes` together.
    pub fn new(max: usize, max_kept_bytes: u64) -> Self {
        Self { by_id: HashMap::new(), made: 0, kept_bytes: 0, max_kept_bytes, max }
    }

    /// Makes a session.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub fn create(
        &mut self,
        client: ClientId,
        mut fore: Channel,
        back: Channel,
        callback_program: u32,
    ) -> Result<&Session, StateError> {
        if self.by_id.len() >= self.max {
            return Err(StateError::TooMany);
        }
        let left = self.max_kept_bytes.saturating_sub(self.kept_bytes);
        let fitting = left / u64::from(fore.max_cached.max(1));
        fore.slots = fore.slots.min(u32::try_from(fitting).unwrap_or(u32::MAX)).max(1);
        self.kept_bytes += fore.kept_bytes();
        self.made += 1;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&client.0.to_be_bytes());
        id[8..].copy_from_slice(&self.made.to_be_bytes());
        let id = SessionId(id);
        let slots = vec![Slot::new(1); fore.slots as usize];
        let session = Session { id, client, fore, back, callback_program, slots };
        Ok(self.by_id.entry(id).or_insert(session))
    }

    /// A session by name.
    ///
    /// # Errors
    /// [`StateError::BadSession`].
    pub fn get(&self, id: SessionId) -> Result<&Session, StateError> {
        self.by_id.get(&id).ok_or(StateError::BadSession)
    }

    /// Takes a slot for a request.
    ///
    /// # Errors
    /// No such session or slot, or the slot cannot take it.
    pub fn begin(
        &mut self,
        id: SessionId,
        slot: u32,
        sequence: u32,
    ) -> Result<Sequenced, StateError> {
        let session = self.by_id.get_mut(&id).ok_or(StateError::BadSession)?;
        let slot = session.slots.get_mut(slot as usize).ok_or(StateError::BadSlot)?;
        match slot.begin(sequence) {
            Ok(Begin::Execute) => {
                Ok(Sequenced::Execute { client: session.client, fore: session.fore })
            }
            Ok(Begin::Replay(reply)) => Ok(Sequenced::Replay(reply)),
            Err(SlotError::Misordered) => Err(StateError::Misordered),
            Err(SlotError::Uncached) => Err(StateError::Uncached),
            Err(SlotError::Busy) => Err(StateError::Busy),
        }
    }

    /// Gives a slot back, with the reply if it is to be kept. The session may be gone.
    pub fn finish(&mut self, id: SessionId, slot: u32, reply: Option<Bytes>) {
        if let Some(session) = self.by_id.get_mut(&id)
            && let Some(slot) = session.slots.get_mut(slot as usize)
        {
            slot.finish(reply);
        }
    }

    /// Forgets a session.
    pub fn remove(&mut self, id: SessionId) -> Option<Session> {
        let session = self.by_id.remove(&id)?;
        self.kept_bytes -= session.fore.kept_bytes();
        Some(session)
    }

    /// Forgets a client's sessions.
    pub fn remove_of(&mut self, client: ClientId) {
        let ids: Vec<SessionId> = self.of(client).map(|s| s.id).collect();
        for id in ids {
            self.remove(id);
        }
    }

    /// A client's sessions.
    pub fn of(&self, client: ClientId) -> impl Iterator<Item = &Session> {
        self.by_id.values().filter(move |s| s.client == client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNEL: Channel = Channel {
        max_request: 4096,
        max_response: 4096,
        max_cached: 1024,
        max_operations: 8,
        slots: 4,
    };

    #[test]
    fn kept_replies_stay_in_their_budget() {
        let mut sessions = Sessions::new(10, 6 * 1024);
        let slots: Vec<u32> = (0..3)
            .map(|i| sessions.create(ClientId(i), CHANNEL, CHANNEL, 0).unwrap().fore.slots)
            .collect();
        assert_eq!(slots, [4, 2, 1]);
        let first = sessions.of(ClientId(0)).next().unwrap().id;
        sessions.remove(first);
        assert_eq!(sessions.create(ClientId(9), CHANNEL, CHANNEL, 0).unwrap().fore.slots, 3);
    }

    #[test]
    fn requests_find_their_slot() {
        let mut sessions = Sessions::new(1, 1 << 20);
        let id = sessions.create(ClientId(5), CHANNEL, CHANNEL, 0).unwrap().id;
        assert_eq!(
            sessions.begin(id, 0, 1),
            Ok(Sequenced::Execute { client: ClientId(5), fore: CHANNEL })
        );
        assert!(sessions.get(id).unwrap().is_busy(None));
        assert!(!sessions.get(id).unwrap().is_busy(Some(0)));
        assert_eq!(sessions.begin(id, 4, 1), Err(StateError::BadSlot));
        assert_eq!(sessions.begin(SessionId([0; 16]), 0, 1), Err(StateError::BadSession));
        assert_eq!(
            sessions.create(ClientId(6), CHANNEL, CHANNEL, 0).unwrap_err(),
            StateError::TooMany
        );
        sessions.remove_of(ClientId(5));
        sessions.finish(id, 0, None);
        assert_eq!(sessions.begin(id, 0, 2), Err(StateError::BadSession));
    }

    #[test]
    fn sizes_are_the_lesser_and_useless_ones_are_refused() {
        let asked = Channel { max_request: 1 << 30, slots: 0, ..CHANNEL };
        let granted = CHANNEL.grant(asked).unwrap();
        assert_eq!((granted.max_request, granted.slots), (4096, 1));
        let tiny = Channel { max_response: 100, ..CHANNEL };
        assert_eq!(CHANNEL.grant(tiny), Err(StateError::TooSmall));
    }
}
