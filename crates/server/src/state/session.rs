//! Sessions: their slots, sizes and connections.
//!
//! 1. The replies that all sessions may keep together never pass a budget: a session is granted
//!    as many slots as still fit, and at least one.
//! 2. A slot that was taken is given back however its request ends.
//! 3. A session's callbacks go over connections that its client bound to the backchannel and that
//!    have answered a call; one that fails to answer is bound no more.

use crate::state::client::ClientId;
use crate::state::error::StateError;
use crate::state::ids::Ids;
use crate::state::slot::{Begin, Slot, SlotError};
use bytes::Bytes;
use std::collections::HashMap;

/// Most connections that serve one session's backchannel.
const MAX_BACK_CONNECTIONS: usize = 16;
/// Most callbacks of one session at a time.
const MAX_BACK_SLOTS: u32 = 16;

/// A session's name, which cannot be guessed ([`Ids`]).
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
    /// How the server says who it is when it calls back; `None`: the client takes no way that the
    /// server knows, so it is not called.
    pub callback_cred: Option<CallbackCred>,
    /// The minor version that it was made with.
    pub minor: u32,
    slots: Vec<Slot>,
    /// Connections that serve the backchannel.
    back_connections: Vec<BackConnection>,
    /// A connection served the backchannel once.
    had_backchannel: bool,
    back_slots: Vec<BackSlot>,
}

/// How the server authenticates itself to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallbackCred {
    /// Not at all.
    AuthNone,
    /// With this body of an AUTH_SYS credential.
    Sys(Bytes),
}

#[derive(Clone, Copy, Debug)]
struct BackConnection {
    id: u64,
    has_answered: bool,
}

#[derive(Clone, Copy, Debug)]
struct BackSlot {
    /// The number of its next call.
    next: u32,
    is_busy: bool,
}

/// A callback to be made, in a slot that is to be given back by [`Sessions::end_call`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackCall {
    /// In which session.
    pub session: SessionId,
    /// In which of its slots.
    pub slot: u32,
    /// The slot's sequence number.
    pub sequence: u32,
    /// Over which connection.
    pub connection: u64,
    /// The client's callback program.
    pub program: u32,
    /// How the server says who it is.
    pub cred: CallbackCred,
    /// The session's minor version.
    pub minor: u32,
}

/// What became of a callback's place in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackOutcome {
    /// The client took it: the next call has the next number.
    Taken,
    /// The client did not execute it: the next call has the same number.
    NotTaken,
    /// No answer came; the connection is bound no more.
    Lost,
}

impl Session {
    /// Whether the client can be called back in this session.
    pub fn can_call(&self) -> bool {
        self.callback_cred.is_some() && self.back_connections.iter().any(|c| c.has_answered)
    }

    /// Whether the client ever made a backchannel of this session.
    pub fn had_backchannel(&self) -> bool {
        self.had_backchannel
    }

    /// Whether a connection serves the backchannel, or is about to.
    pub fn has_backchannel(&self) -> bool {
        !self.back_connections.is_empty()
    }

    /// Whether the client made a backchannel, and no connection serves it any more.
    pub fn lost_backchannel(&self) -> bool {
        self.had_backchannel && self.back_connections.is_empty()
    }

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
    by_client: HashMap<ClientId, Vec<SessionId>>,
    /// Sessions whose backchannel a connection serves.
    by_connection: HashMap<u64, Vec<SessionId>>,
    ids: Ids,
    made: u64,
    kept_bytes: u64,
    max_kept_bytes: u64,
    max: usize,
}

impl Sessions {
    /// No sessions; `max` at most, which keep replies of `max_kept_bytes` together.
    pub fn new(ids: Ids, max: usize, max_kept_bytes: u64) -> Self {
        let (by_client, by_connection) = (HashMap::new(), HashMap::new());
        let (by_id, made, kept_bytes) = (HashMap::new(), 0, 0);
        Self { by_id, by_client, by_connection, ids, made, kept_bytes, max_kept_bytes, max }
    }

    /// Makes a session.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub fn create(
        &mut self,
        client: ClientId,
        mut fore: Channel,
        mut back: Channel,
        minor: u32,
    ) -> Result<&mut Session, StateError> {
        if self.by_id.len() >= self.max {
            return Err(StateError::TooMany);
        }
        let left = self.max_kept_bytes.saturating_sub(self.kept_bytes);
        let fitting = left / u64::from(fore.max_cached.max(1));
        fore.slots = fore.slots.min(u32::try_from(fitting).unwrap_or(u32::MAX)).max(1);
        self.kept_bytes += fore.kept_bytes();
        self.made += 1;
        let id = self.ids.session(self.made);
        let slots = vec![Slot::new(1); fore.slots as usize];
        back.slots = back.slots.clamp(1, MAX_BACK_SLOTS);
        let session = Session {
            id,
            client,
            fore,
            back,
            callback_program: 0,
            callback_cred: None,
            minor,
            slots,
            back_connections: Vec::new(),
            had_backchannel: false,
            back_slots: vec![BackSlot { next: 1, is_busy: false }; back.slots as usize],
        };
        self.by_client.entry(client).or_default().push(id);
        Ok(self.by_id.entry(id).or_insert(session))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// A session by name.
    ///
    /// # Errors
    /// [`StateError::BadSession`].
    pub fn get(&self, id: SessionId) -> Result<&Session, StateError> {
        self.by_id.get(&id).ok_or(StateError::BadSession)
    }

    /// A session by name, to change.
    ///
    /// # Errors
    /// [`StateError::BadSession`].
    pub fn get_mut(&mut self, id: SessionId) -> Result<&mut Session, StateError> {
        self.by_id.get_mut(&id).ok_or(StateError::BadSession)
    }

    /// Takes a slot for a request; `digest` tells it from others of the same number.
    ///
    /// # Errors
    /// No such session or slot, or the slot cannot take it.
    pub fn begin(
        &mut self,
        id: SessionId,
        slot: u32,
        sequence: u32,
        digest: u64,
    ) -> Result<Sequenced, StateError> {
        let session = self.by_id.get_mut(&id).ok_or(StateError::BadSession)?;
        let slot = session.slots.get_mut(slot as usize).ok_or(StateError::BadSlot)?;
        match slot.begin(sequence, digest) {
            Ok(Begin::Execute) => {
                Ok(Sequenced::Execute { client: session.client, fore: session.fore })
            }
            Ok(Begin::Replay(reply)) => Ok(Sequenced::Replay(reply)),
            Err(SlotError::Misordered) => Err(StateError::Misordered),
            Err(SlotError::Uncached) => Err(StateError::Uncached),
            Err(SlotError::FalseRetry) => Err(StateError::FalseRetry),
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
        forget(&mut self.by_client, session.client, id);
        for connection in &session.back_connections {
            forget(&mut self.by_connection, connection.id, id);
        }
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
        let ids = self.by_client.get(&client).map_or(&[][..], |ids| ids);
        ids.iter().filter_map(|id| self.by_id.get(id))
    }

    /// Lets a connection serve a session's backchannel, once it has answered
    /// ([`answered`](Self::answered)). Says whether it does; the oldest makes room if there are too
    /// many.
    ///
    /// # Errors
    /// [`StateError::BadSession`].
    pub fn bind_back(&mut self, id: SessionId, connection: u64) -> Result<(), StateError> {
        let session = self.by_id.get_mut(&id).ok_or(StateError::BadSession)?;
        session.had_backchannel = true;
        if session.back_connections.iter().any(|c| c.id == connection) {
            return Ok(());
        }
        if session.back_connections.len() >= MAX_BACK_CONNECTIONS {
            let oldest = session.back_connections.remove(0);
            forget(&mut self.by_connection, oldest.id, id);
        }
        session.back_connections.push(BackConnection { id: connection, has_answered: false });
        self.by_connection.entry(connection).or_default().push(id);
        Ok(())
    }

    /// Notes that a connection answers calls.
    pub fn answered(&mut self, connection: u64) {
        for id in self.by_connection.get(&connection).into_iter().flatten() {
            let connections = self.by_id.get_mut(id).map(|s| &mut s.back_connections);
            for c in connections.into_iter().flatten().filter(|c| c.id == connection) {
                c.has_answered = true;
            }
        }
    }

    /// Forgets a connection, which is gone or does not answer.
    pub fn unbind(&mut self, connection: u64) {
        for id in self.by_connection.remove(&connection).unwrap_or_default() {
            if let Some(session) = self.by_id.get_mut(&id) {
                session.back_connections.retain(|c| c.id != connection);
            }
        }
    }

    /// Whether a client can be called back in one of its sessions.
    pub fn can_call(&self, client: ClientId) -> bool {
        self.of(client).any(Session::can_call)
    }

    /// Takes a slot of a client's backchannel for a callback; `None` when it has no backchannel, or
    /// all slots are busy.
    pub fn begin_call(&mut self, client: ClientId) -> Option<BackCall> {
        let free = |session: &Session| session.back_slots.iter().position(|slot| !slot.is_busy);
        let found = self.of(client).find_map(|s| (s.can_call()).then_some((s.id, free(s)?)));
        let (id, slot) = found?;
        let session = self.by_id.get_mut(&id)?;
        let connection = session.back_connections.iter().rfind(|c| c.has_answered)?.id;
        let back_slot = session.back_slots.get_mut(slot)?;
        back_slot.is_busy = true;
        Some(BackCall {
            session: id,
            slot: slot as u32,
            sequence: back_slot.next,
            connection,
            program: session.callback_program,
            cred: session.callback_cred.clone()?,
            minor: session.minor,
        })
    }

    /// Gives a callback's slot back. The session may be gone.
    pub fn end_call(&mut self, call: &BackCall, outcome: BackOutcome) {
        if let Some(session) = self.by_id.get_mut(&call.session)
            && let Some(slot) = session.back_slots.get_mut(call.slot as usize)
        {
            slot.is_busy = false;
            if outcome == BackOutcome::Taken {
                slot.next = slot.next.wrapping_add(1);
            }
        }
        if outcome == BackOutcome::Lost {
            self.unbind(call.connection);
        }
    }
}

fn forget<K: Copy + Eq + std::hash::Hash>(
    index: &mut HashMap<K, Vec<SessionId>>,
    key: K,
    id: SessionId,
) {
    if let Some(ids) = index.get_mut(&key) {
        ids.retain(|other| *other != id);
        if ids.is_empty() {
            index.remove(&key);
        }
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
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 10, 6 * 1024);
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
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 1, 1 << 20);
        let id = sessions.create(ClientId(5), CHANNEL, CHANNEL, 0).unwrap().id;
        assert_eq!(
            sessions.begin(id, 0, 1, 7),
            Ok(Sequenced::Execute { client: ClientId(5), fore: CHANNEL })
        );
        assert!(sessions.get(id).unwrap().is_busy(None));
        assert!(!sessions.get(id).unwrap().is_busy(Some(0)));
        assert_eq!(sessions.begin(id, 4, 1, 7), Err(StateError::BadSlot));
        assert_eq!(sessions.begin(SessionId([0; 16]), 0, 1, 7), Err(StateError::BadSession));
        assert_eq!(
            sessions.create(ClientId(6), CHANNEL, CHANNEL, 0).unwrap_err(),
            StateError::TooMany
        );
        sessions.remove_of(ClientId(5));
        sessions.finish(id, 0, None);
        assert_eq!(sessions.begin(id, 0, 2, 7), Err(StateError::BadSession));
    }

    #[test]
    fn callbacks_go_over_connections_that_answer() {
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 2, 1 << 20);
        let client = ClientId(5);
        let session = sessions.create(client, CHANNEL, CHANNEL, 1).unwrap();
        session.callback_cred = Some(CallbackCred::AuthNone);
        let id = session.id;
        assert_eq!(sessions.begin_call(client), None);
        assert!(!sessions.get(id).unwrap().lost_backchannel(), "it never had one");
        sessions.bind_back(id, 70).unwrap();
        assert_eq!(sessions.begin_call(client), None, "it has not answered yet");
        sessions.answered(70);
        let first = sessions.begin_call(client).unwrap();
        assert_eq!((first.session, first.slot, first.sequence, first.connection), (id, 0, 1, 70));
        let second = sessions.begin_call(client).unwrap();
        assert_eq!((second.slot, second.sequence), (1, 1));
        sessions.end_call(&first, BackOutcome::Taken);
        sessions.end_call(&second, BackOutcome::NotTaken);
        assert_eq!(sessions.begin_call(client).unwrap().sequence, 2);
        let again = sessions.begin_call(client).unwrap();
        assert_eq!((again.slot, again.sequence), (1, 1));
        for _ in 2..CHANNEL.slots {
            sessions.begin_call(client).unwrap();
        }
        assert_eq!(sessions.begin_call(client), None, "all slots are busy");

        sessions.end_call(&again, BackOutcome::Lost);
        assert!(sessions.get(id).unwrap().lost_backchannel());
        assert_eq!(sessions.begin_call(client), None);
        sessions.bind_back(id, 71).unwrap();
        sessions.answered(71);
        assert_eq!(sessions.begin_call(client).unwrap().connection, 71);
        sessions.remove(id);
        assert!(sessions.by_connection.is_empty() && sessions.by_client.is_empty());
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
