//! Sessions: their slots, sizes and connections.
//!
//! 1. The cached replies of all sessions share a limit in bytes, and the actual size of each reply
//!    counts. A request whose reply is to be cached begins only if the largest reply that its
//!    session caches fits the client's share ([`allowance`]); otherwise the client has to retry
//!    later. For a slot that already holds a reply, the share is computed from twice the limit. The
//!    first slot of a session is exempt, so that every session makes progress.
//! 2. The server asks a client with a small share to use fewer slots ([`target_slots`]). It drops
//!    the replies in the higher slots once the client can no longer ask for them
//!    ([`Sessions::retire`]).
//! 3. A busy slot is freed however its request ends.
//! 4. Callbacks use connections that the client bound to the backchannel and that have answered a
//!    call. A connection that does not answer is unbound.

use crate::admission::{LimitUse, allowance, fair_share};
use crate::state::client::ClientId;
use crate::state::error::StateError;
use crate::state::ids::Ids;
use crate::state::slot::{Begin, Slot, SlotError};
use bytes::Bytes;
use std::collections::HashMap;

/// Maximum number of connections bound to the backchannel of a session.
const MAX_BACK_CONNECTIONS: usize = 16;
/// Maximum number of concurrent callbacks in a session.
const MAX_BACK_SLOTS: u32 = 16;

/// Size of a request that consists of SEQUENCE: RPC header without credential (40), COMPOUND header
/// without tag (12), and the operation (36).
const LEAST_REQUEST_BYTES: u32 = 88;
/// Size of its reply: RPC header (24), COMPOUND header (12), and the result (44).
const LEAST_RESPONSE_BYTES: u32 = 80;

/// A session ID; it cannot be guessed ([`Ids`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 16]);

/// Attributes of one channel of a session (RFC 8881 section 18.36: `channel_attrs4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Largest request, RPC header included, in bytes.
    pub max_request: u32,
    /// Largest reply, RPC header included, in bytes.
    pub max_response: u32,
    /// Largest reply that is cached, in bytes.
    pub max_cached: u32,
    /// Maximum number of operations in a request.
    pub max_operations: u32,
    /// Number of slots.
    pub slots: u32,
}

impl Channel {
    /// The attributes to grant: the lesser of what the client asks for and what `self` offers.
    ///
    /// # Errors
    /// [`StateError::TooSmall`] if the granted sizes fit no request or no reply.
    pub fn grant(self, asked: Self) -> Result<Self, StateError> {
        let granted = Self {
            max_request: self.max_request.min(asked.max_request),
            max_response: self.max_response.min(asked.max_response),
            max_cached: self.max_cached.min(asked.max_cached),
            max_operations: self.max_operations.min(asked.max_operations),
            slots: self.slots.min(asked.slots).max(1),
        };
        let useful = granted.max_request >= LEAST_REQUEST_BYTES
            && granted.max_response >= LEAST_RESPONSE_BYTES
            && granted.max_operations > 0;
        if useful { Ok(granted) } else { Err(StateError::TooSmall) }
    }
}

/// One session.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its ID.
    pub id: SessionId,
    /// The client that created it.
    pub client: ClientId,
    /// The channel for the client's requests.
    pub fore: Channel,
    /// The channel for the server's callbacks.
    pub back: Channel,
    /// The program number of the client's callback service.
    pub callback_program: u32,
    /// The credential of callbacks; `None` if the client accepts no flavor that the server supports.
    pub callback_cred: Option<CallbackCred>,
    /// The minor version of the request that created it.
    pub minor: u32,
    slots: Vec<Slot>,
    /// Bytes of the replies in `slots`, including those reserved for requests in progress.
    kept_bytes: usize,
    /// A slot, and how many requests in a row reported that no slot from this one on is in use.
    unused_from: (u32, u32),
    /// Connections bound to the backchannel, oldest first.
    back_connections: Vec<BackConnection>,
    /// Whether a connection was ever bound to the backchannel.
    had_backchannel: bool,
    back_slots: Vec<BackSlot>,
}

/// The credential that the server sends in callbacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallbackCred {
    /// AUTH_NONE.
    AuthNone,
    /// AUTH_SYS, with this credential body.
    Sys(Bytes),
}

#[derive(Clone, Copy, Debug)]
struct BackConnection {
    id: u64,
    has_answered: bool,
}

#[derive(Clone, Copy, Debug)]
struct BackSlot {
    /// The sequence number of its next callback.
    next: u32,
    is_busy: bool,
}

/// A callback to send. [`Sessions::end_call`] frees its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackCall {
    /// The session.
    pub session: SessionId,
    /// The slot of the session's backchannel.
    pub slot: u32,
    /// The slot's sequence number.
    pub sequence: u32,
    /// The connection to send it over.
    pub connection: u64,
    /// The client's callback program.
    pub program: u32,
    /// The credential to send.
    pub cred: CallbackCred,
    /// The session's minor version.
    pub minor: u32,
}

/// How a callback ended, which decides the slot's next sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackOutcome {
    /// The client executed it: the sequence number advances.
    Taken,
    /// The client did not execute it: the next callback uses the same sequence number.
    NotTaken,
    /// No reply arrived: the connection is unbound.
    Lost,
}

impl Session {
    /// Whether the server can send callbacks in this session.
    pub fn can_call(&self) -> bool {
        self.callback_cred.is_some() && self.back_connections.iter().any(|c| c.has_answered)
    }

    /// Whether the session ever had a backchannel.
    pub fn had_backchannel(&self) -> bool {
        self.had_backchannel
    }

    /// Whether a connection is bound to the backchannel; it may not have answered a call yet.
    pub fn has_backchannel(&self) -> bool {
        !self.back_connections.is_empty()
    }

    /// Whether the session had a backchannel, and no connection is bound to it any more.
    pub fn lost_backchannel(&self) -> bool {
        self.had_backchannel && self.back_connections.is_empty()
    }

    /// Whether a slot other than `but` is busy.
    pub fn is_busy(&self, but: Option<u32>) -> bool {
        self.slots.iter().enumerate().any(|(i, slot)| slot.is_busy() && Some(i as u32) != but)
    }
}

/// The arguments of SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The slot.
    pub slot: u32,
    /// The sequence number.
    pub sequence: u32,
    /// The highest slot that the client has in use.
    pub highest_slot: u32,
    /// Distinguishes requests with the same sequence number.
    pub digest: u64,
    /// Whether to cache the reply.
    pub keep: bool,
}

/// How to handle a request after SEQUENCE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sequenced {
    /// Execute the request, then call [`Sessions::finish`].
    Execute {
        /// The client of the session.
        client: ClientId,
        /// The session's fore channel.
        fore: Channel,
        /// How many slots the client should use.
        target_slots: u32,
    },
    /// The request was executed before: send this cached reply.
    Replay(Bytes),
}

/// The sessions of all clients.
#[derive(Debug)]
pub struct Sessions {
    by_id: HashMap<SessionId, Session>,
    by_client: HashMap<ClientId, OfClient>,
    /// The sessions to whose backchannel a connection is bound.
    by_connection: HashMap<u64, Vec<SessionId>>,
    ids: Ids,
    made: u64,
    kept_bytes: usize,
    max_kept_bytes: usize,
    /// How many requests were refused because of `max_kept_bytes`.
    delayed: u64,
    max: usize,
}

/// The sessions of a client, and the bytes of their cached replies.
#[derive(Debug, Default)]
struct OfClient {
    ids: Vec<SessionId>,
    kept_bytes: usize,
}

impl Sessions {
    /// An empty table for at most `max` sessions, with a limit of `max_kept_bytes` on cached replies.
    pub fn new(ids: Ids, max: usize, max_kept_bytes: u64) -> Self {
        let (by_client, by_connection) = (HashMap::new(), HashMap::new());
        let max_kept_bytes = usize::try_from(max_kept_bytes).unwrap_or(usize::MAX);
        let (by_id, made, kept_bytes, delayed) = (HashMap::new(), 0, 0, 0);
        Self {
            by_id,
            by_client,
            by_connection,
            ids,
            made,
            kept_bytes,
            max_kept_bytes,
            delayed,
            max,
        }
    }

    /// Creates a session.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub fn create(
        &mut self,
        client: ClientId,
        fore: Channel,
        mut back: Channel,
        minor: u32,
    ) -> Result<&mut Session, StateError> {
        if self.by_id.len() >= self.max {
            return Err(StateError::TooMany);
        }
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
            kept_bytes: 0,
            unused_from: (0, 0),
            back_connections: Vec::new(),
            had_backchannel: false,
            back_slots: vec![BackSlot { next: 1, is_busy: false }; back.slots as usize],
        };
        self.by_client.entry(client).or_default().ids.push(id);
        Ok(self.by_id.entry(id).or_insert(session))
    }

    /// The number of sessions.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The session with this ID.
    ///
    /// # Errors
    /// [`StateError::BadSession`].
    pub fn get(&self, id: SessionId) -> Result<&Session, StateError> {
        self.by_id.get(&id).ok_or(StateError::BadSession)
    }

    /// The session with this ID, mutable.
    ///
    /// # Errors
    /// [`StateError::BadSession`].
    pub fn get_mut(&mut self, id: SessionId) -> Result<&mut Session, StateError> {
        self.by_id.get_mut(&id).ok_or(StateError::BadSession)
    }

    /// Begins a request in its slot.
    ///
    /// # Errors
    /// [`StateError::BadSession`] or [`StateError::BadSlot`] if there is no such session or slot;
    /// [`StateError::TooMany`] if the cached replies of the client have reached its share; the error
    /// of the slot if it does not accept the sequence number.
    pub fn begin(&mut self, id: SessionId, request: Request) -> Result<Sequenced, StateError> {
        let Request { sequence, digest, keep, .. } = request;
        let session = self.by_id.get_mut(&id).ok_or(StateError::BadSession)?;
        let (client, fore) = (session.client, session.fore);
        let slot = session.slots.get_mut(request.slot as usize).ok_or(StateError::BadSlot)?;
        let of_client = self.by_client.entry(client).or_default();
        let twice = self.max_kept_bytes.saturating_mul(2);
        let limit = if slot.kept_bytes() > 0 { twice } else { self.max_kept_bytes };
        let allowed = allowance(limit, self.kept_bytes, of_client.kept_bytes);
        let may_keep = if keep { fore.max_cached as usize } else { 0 };
        let fits = request.slot == 0 || may_keep <= allowed + slot.kept_bytes();
        if slot.is_next(sequence) && !fits {
            self.delayed += 1;
            return Err(StateError::TooMany);
        }
        let before = slot.kept_bytes();
        match slot.begin(sequence, digest, may_keep) {
            Ok(Begin::Execute) => {
                let after = slot.kept_bytes();
                let own = of_client.kept_bytes;
                let share = fair_share(self.max_kept_bytes, self.kept_bytes, own);
                let sessions = of_client.ids.len();
                self.keeps(id, before, after);
                let target_slots = target_slots(fore, share / sessions.max(1));
                self.retire(id, request.highest_slot, target_slots);
                Ok(Sequenced::Execute { client, fore, target_slots })
            }
            Ok(Begin::Replay(reply)) => Ok(Sequenced::Replay(reply)),
            Err(SlotError::Misordered) => Err(StateError::Misordered),
            Err(SlotError::Uncached) => Err(StateError::Uncached),
            Err(SlotError::FalseRetry) => Err(StateError::FalseRetry),
            Err(SlotError::Busy) => Err(StateError::Busy),
        }
    }

    /// Ends a request, and caches its reply if there is one to cache. The session may be gone.
    pub fn finish(&mut self, id: SessionId, slot: u32, reply: Option<Bytes>) {
        if let Some(session) = self.by_id.get_mut(&id)
            && let Some(slot) = session.slots.get_mut(slot as usize)
        {
            let before = slot.kept_bytes();
            slot.finish(reply);
            let after = slot.kept_bytes();
            self.keeps(id, before, after);
        }
    }

    /// Adjusts the byte counts: a session now caches `after` bytes where it cached `before`.
    fn keeps(&mut self, id: SessionId, before: usize, after: usize) {
        let Some(session) = self.by_id.get_mut(&id) else { return };
        let of_client = self.by_client.entry(session.client).or_default();
        for kept in [&mut session.kept_bytes, &mut of_client.kept_bytes, &mut self.kept_bytes] {
            *kept = *kept + after - before;
        }
    }

    /// Drops the replies in slots above the target once the client is known to have received them.
    ///
    /// Each request states the highest slot in use, and a slot is in use until its reply arrives.
    /// Requests may overtake each other, but only one per slot can be in flight. So if more requests
    /// in a row than there are slots report no slot above the target, at least one of them was sent
    /// after the last reply from such a slot had arrived.
    fn retire(&mut self, id: SessionId, highest_slot: u32, target_slots: u32) {
        let Some(session) = self.by_id.get_mut(&id) else { return };
        let (from, times) = session.unused_from;
        session.unused_from = match highest_slot < target_slots {
            true if from == target_slots => (from, times.saturating_add(1)),
            true => (target_slots, 1),
            false => (target_slots, 0),
        };
        if session.unused_from.1 != session.fore.slots + 1 {
            return;
        }
        let retired = session.slots.iter_mut().skip(target_slots as usize);
        let dropped = retired.map(Slot::forget_reply).sum();
        self.keeps(id, dropped, 0);
    }

    /// The use of the limit on cached replies, in bytes.
    pub(super) fn kept(&self) -> LimitUse {
        LimitUse {
            name: "kept_reply_bytes",
            limit: self.max_kept_bytes as u64,
            used: self.kept_bytes as u64,
            refused: self.delayed,
        }
    }

    /// Removes a session.
    pub fn remove(&mut self, id: SessionId) -> Option<Session> {
        let session = self.by_id.remove(&id)?;
        self.kept_bytes -= session.kept_bytes;
        if let Some(of_client) = self.by_client.get_mut(&session.client) {
            of_client.kept_bytes -= session.kept_bytes;
            of_client.ids.retain(|other| *other != id);
            if of_client.ids.is_empty() {
                self.by_client.remove(&session.client);
            }
        }
        for connection in &session.back_connections {
            forget(&mut self.by_connection, connection.id, id);
        }
        Some(session)
    }

    /// Removes all sessions of a client.
    pub fn remove_of(&mut self, client: ClientId) {
        let ids: Vec<SessionId> = self.of(client).map(|s| s.id).collect();
        for id in ids {
            self.remove(id);
        }
    }

    /// The sessions of a client.
    pub fn of(&self, client: ClientId) -> impl Iterator<Item = &Session> {
        let ids = self.by_client.get(&client).map_or(&[][..], |of_client| &of_client.ids);
        ids.iter().filter_map(|id| self.by_id.get(id))
    }

    /// Binds a connection to a session's backchannel. Callbacks use it once it has answered a call
    /// ([`answered`](Self::answered)). If the maximum is reached, the oldest connection is unbound.
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

    /// Notes that a connection has answered a call.
    pub fn answered(&mut self, connection: u64) {
        for id in self.by_connection.get(&connection).into_iter().flatten() {
            let connections = self.by_id.get_mut(id).map(|s| &mut s.back_connections);
            for c in connections.into_iter().flatten().filter(|c| c.id == connection) {
                c.has_answered = true;
            }
        }
    }

    /// Whether a connection is bound to the backchannel of any session.
    pub fn is_bound(&self, connection: u64) -> bool {
        self.by_connection.contains_key(&connection)
    }

    /// Unbinds a connection, which is closed or does not answer, from all sessions.
    pub fn unbind(&mut self, connection: u64) {
        for id in self.by_connection.remove(&connection).unwrap_or_default() {
            if let Some(session) = self.by_id.get_mut(&id) {
                session.back_connections.retain(|c| c.id != connection);
            }
        }
    }

    /// Whether the server can send callbacks to a client in one of its sessions.
    pub fn can_call(&self, client: ClientId) -> bool {
        self.of(client).any(Session::can_call)
    }

    /// Takes a backchannel slot of a client for a callback; `None` if the client has no usable
    /// backchannel or all slots are busy.
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

    /// Frees the slot of a callback. The session may be gone.
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

/// How many of the largest cached replies fit `bytes`; at least one slot, at most all.
fn target_slots(fore: Channel, bytes: usize) -> u32 {
    let fitting = bytes / fore.max_cached.max(1) as usize;
    u32::try_from(fitting).unwrap_or(u32::MAX).clamp(1, fore.slots)
}

fn forget(index: &mut HashMap<u64, Vec<SessionId>>, key: u64, id: SessionId) {
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

    fn request(slot: u32, sequence: u32) -> Request {
        Request { slot, sequence, highest_slot: slot, digest: 7, keep: true }
    }

    /// Executes a request with a reply of `bytes`. Returns the target number of slots.
    fn run(sessions: &mut Sessions, id: SessionId, request: Request, bytes: usize) -> u32 {
        let Ok(Sequenced::Execute { target_slots, .. }) = sessions.begin(id, request) else {
            panic!("{request:?} is not executed")
        };
        sessions.finish(id, request.slot, Some(vec![0; bytes].into()));
        target_slots
    }

    #[test]
    fn slots_are_as_many_as_asked_for_and_replies_are_measured_as_they_are_kept() {
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 1000, 128 << 10);
        // The largest replies of all their slots would fill the limit 31 times over.
        for i in 0..1000 {
            let session = sessions.create(ClientId(i), CHANNEL, CHANNEL, 0).unwrap();
            assert_eq!(session.fore.slots, 4);
            let id = session.id;
            run(&mut sessions, id, request(0, 1), 100);
        }
        assert_eq!(sessions.kept().used, 100_000);
        sessions.remove_of(ClientId(0));
        assert_eq!(sessions.kept().used, 99_900);
        (1..1000).for_each(|i| sessions.remove_of(ClientId(i)));
        assert_eq!((sessions.kept().used, sessions.kept().refused), (0, 0));
    }

    #[test]
    fn a_client_that_keeps_much_leaves_room_for_others_and_is_told_to_use_fewer_slots() {
        let many = Channel { slots: 64, ..CHANNEL };
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 10, 32 * 1024);
        let greedy = sessions.create(ClientId(1), many, many, 0).unwrap().id;
        let mut targets = Vec::new();
        let full = (0..64).find(|&slot| {
            match sessions.begin(greedy, request(slot, 1)) {
                Ok(Sequenced::Execute { target_slots, .. }) => targets.push(target_slots),
                other => {
                    assert_eq!(other, Err(StateError::TooMany));
                    return true;
                }
            }
            sessions.finish(greedy, slot, Some(vec![0; 1024].into()));
            false
        });
        assert_eq!(full, Some(16), "half of the limit");
        assert_eq!((targets[0], targets[15]), (16, 16));
        let modest = sessions.create(ClientId(2), many, many, 0).unwrap().id;
        assert_eq!(run(&mut sessions, modest, request(0, 1), 1024), 8);
        // A reply that replaces another one fits, and so does a request whose reply is not cached.
        run(&mut sessions, greedy, request(3, 2), 1024);
        let unkept = Request { keep: false, ..request(40, 1) };
        assert!(sessions.begin(greedy, unkept).is_ok());
        assert_eq!(sessions.kept().refused, 1);
    }

    #[test]
    fn replies_above_the_target_are_dropped_once_the_client_is_known_to_have_them() {
        let many = Channel { slots: 8, ..CHANNEL };
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 10, 8 * 1024);
        let id = sessions.create(ClientId(1), many, many, 0).unwrap().id;
        for slot in 0..4 {
            run(&mut sessions, id, request(slot, 1), 1024);
        }
        let low = |sequence| Request { highest_slot: 1, ..request(0, sequence) };
        for sequence in 2..12 {
            assert!(sessions.begin(id, request(3, 1)).is_ok(), "its reply is still cached");
            assert_eq!(run(&mut sessions, id, low(sequence), 1024), 4);
        }
        let other = sessions.create(ClientId(2), many, many, 0).unwrap().id;
        run(&mut sessions, other, request(0, 1), 1024);
        for sequence in 12..20 {
            assert_eq!(run(&mut sessions, id, low(sequence), 1024), 3);
            assert!(sessions.begin(id, request(3, 1)).is_ok(), "the client may still ask for it");
        }
        run(&mut sessions, id, low(20), 1024);
        assert_eq!(sessions.begin(id, request(3, 1)), Err(StateError::Uncached));
        let next = Request { keep: false, ..request(3, 2) };
        assert!(sessions.begin(id, next).is_ok(), "the slot is still usable");
    }

    #[test]
    fn requests_find_their_slot() {
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 1, 1 << 20);
        let id = sessions.create(ClientId(5), CHANNEL, CHANNEL, 0).unwrap().id;
        assert_eq!(
            sessions.begin(id, request(0, 1)),
            Ok(Sequenced::Execute { client: ClientId(5), fore: CHANNEL, target_slots: 4 })
        );
        assert!(sessions.get(id).unwrap().is_busy(None));
        assert!(!sessions.get(id).unwrap().is_busy(Some(0)));
        assert_eq!(sessions.begin(id, request(4, 1)), Err(StateError::BadSlot));
        assert_eq!(sessions.begin(SessionId([0; 16]), request(0, 1)), Err(StateError::BadSession));
        assert_eq!(
            sessions.create(ClientId(6), CHANNEL, CHANNEL, 0).unwrap_err(),
            StateError::TooMany
        );
        sessions.remove_of(ClientId(5));
        sessions.finish(id, 0, None);
        assert_eq!(sessions.begin(id, request(0, 2)), Err(StateError::BadSession));
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
        let with = |max_response| CHANNEL.grant(Channel { max_response, ..CHANNEL });
        assert_eq!(with(LEAST_RESPONSE_BYTES - 1), Err(StateError::TooSmall));
        assert!(with(LEAST_RESPONSE_BYTES).is_ok());
    }
}
