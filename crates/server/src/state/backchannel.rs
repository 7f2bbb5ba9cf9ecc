//! The backchannels of sessions: their connections and slots, and callbacks in them.
//!
//! Callbacks use connections that the client bound to the backchannel and that have answered a
//! call. A connection that does not answer is unbound from all sessions; one whose client does not know the
//! session, because it has replaced it, from that session only.

use crate::state::channel::Channel;
use crate::state::client::ClientId;
use crate::state::error::StateError;
use crate::state::ids::SessionId;
use crate::state::session::{Session, Sessions};
use bytes::Bytes;
use std::collections::HashMap;

/// Maximum number of connections bound to the backchannel of a session.
const MAX_BACK_CONNECTIONS: usize = 16;
/// Maximum number of concurrent callbacks in a session.
const MAX_BACK_SLOTS: u32 = 16;

/// The credential that the server sends in callbacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallbackCred {
    /// AUTH_NONE.
    AuthNone,
    /// AUTH_SYS, with this credential body.
    Sys(Bytes),
}

/// The connections and slots of a session's backchannel.
#[derive(Clone, Debug)]
pub(in crate::state) struct Backchannel {
    /// Connections bound to it, oldest first.
    connections: Vec<BackConnection>,
    /// Whether a connection was ever bound to it.
    was_bound: bool,
    slots: Vec<BackSlot>,
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
    /// The client may have used that number up: the answer to a callback was lost.
    is_unsure: bool,
}

/// A callback to send. [`Sessions::end_call`] frees its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackCall {
    /// The session.
    pub(crate) session: SessionId,
    /// The slot of the session's backchannel.
    pub(crate) slot: u32,
    /// The slot's sequence number.
    pub(crate) sequence: u32,
    /// The client may have used the number up for another callback. The caller sends CB_SEQUENCE
    /// alone, and takes the slot again for what it has to send.
    pub(crate) is_unsure: bool,
    /// The connection to send it over.
    pub(crate) connection: u64,
    /// The client's callback program.
    pub(crate) program: u32,
    /// The credential to send.
    pub(crate) cred: CallbackCred,
    /// The session's minor version.
    pub(crate) minor: u32,
}

/// How a callback ended, which decides the slot's next sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackOutcome {
    /// The client executed it, or has used the sequence number up before: the number advances.
    Taken,
    /// The client did not execute it: the next callback uses the same sequence number.
    NotTaken,
    /// The client does not have the session, or not on this connection: the connection is unbound from it.
    NoSession,
    /// No reply arrived: the connection is unbound, and it is unknown whether the client has used
    /// the sequence number up.
    Lost,
}

impl Backchannel {
    /// A backchannel without connections. Limits the slots of `channel`.
    pub(in crate::state) fn new(channel: &mut Channel) -> Self {
        channel.slots = channel.slots.clamp(1, MAX_BACK_SLOTS);
        let slots =
            vec![BackSlot { next: 1, is_busy: false, is_unsure: false }; channel.slots as usize];
        Self { connections: Vec::new(), was_bound: false, slots }
    }
}

impl Session {
    /// Whether the server can send callbacks in this session.
    pub(crate) fn can_call(&self) -> bool {
        self.callback_cred.is_some() && self.backchannel.connections.iter().any(|c| c.has_answered)
    }

    /// Whether the session ever had a backchannel.
    pub(crate) fn had_backchannel(&self) -> bool {
        self.backchannel.was_bound
    }

    /// Whether a connection is bound to the backchannel; it may not have answered a call yet.
    pub(crate) fn has_backchannel(&self) -> bool {
        !self.backchannel.connections.is_empty()
    }

    /// Whether the session had a backchannel, and no connection is bound to it any more.
    pub(crate) fn lost_backchannel(&self) -> bool {
        self.backchannel.was_bound && self.backchannel.connections.is_empty()
    }

    fn forget_connection(&mut self, connection: u64) {
        self.backchannel.connections.retain(|c| c.id != connection);
        self.slots.set_lost_backchannel(self.lost_backchannel());
    }
}

impl Sessions {
    /// Binds a connection to a session's backchannel. Callbacks use it once it has answered a call
    /// ([`answered`](Self::answered)). If the maximum is reached, the oldest connection is unbound.
    ///
    /// # Errors
    /// [`StateError::BadSession`].
    pub(crate) fn bind_back(&mut self, id: SessionId, connection: u64) -> Result<(), StateError> {
        let session = self.by_id.get_mut(&id).ok_or(StateError::BadSession)?;
        session.backchannel.was_bound = true;
        session.slots.set_lost_backchannel(false);
        if session.backchannel.connections.iter().any(|c| c.id == connection) {
            return Ok(());
        }
        if session.backchannel.connections.len() >= MAX_BACK_CONNECTIONS {
            let oldest = session.backchannel.connections.remove(0);
            forget(&mut self.by_connection, oldest.id, id);
        }
        session
            .backchannel
            .connections
            .push(BackConnection { id: connection, has_answered: false });
        self.by_connection.entry(connection).or_default().push(id);
        Ok(())
    }

    /// Notes that a connection has answered a call.
    pub(crate) fn answered(&mut self, connection: u64) {
        for id in self.by_connection.get(&connection).into_iter().flatten() {
            let connections = self.by_id.get_mut(id).map(|s| &mut s.backchannel.connections);
            for c in connections.into_iter().flatten().filter(|c| c.id == connection) {
                c.has_answered = true;
            }
        }
    }

    /// Whether a connection is bound to the backchannel of any session.
    pub(crate) fn is_bound(&self, connection: u64) -> bool {
        self.by_connection.contains_key(&connection)
    }

    /// Unbinds a connection, which is closed or does not answer, from all sessions.
    pub(crate) fn unbind(&mut self, connection: u64) {
        for id in self.by_connection.remove(&connection).unwrap_or_default() {
            if let Some(session) = self.by_id.get_mut(&id) {
                session.forget_connection(connection);
            }
        }
    }

    /// Whether the server can send callbacks to a client in one of its sessions.
    pub(crate) fn can_call(&self, client: ClientId) -> bool {
        self.of(client).any(Session::can_call)
    }

    /// Takes a backchannel slot of a client for a callback; `None` if the client has no usable
    /// backchannel or all slots are busy. Of several sessions the oldest is used: a client that replaces
    /// its session may not know the new one yet.
    pub(crate) fn begin_call(&mut self, client: ClientId) -> Option<BackCall> {
        let free = |session: &Session| {
            let slots = &session.backchannel.slots;
            let sure = slots.iter().position(|slot| !slot.is_busy && !slot.is_unsure);
            sure.or_else(|| slots.iter().position(|slot| !slot.is_busy))
        };
        let found = self.of(client).find_map(|s| (s.can_call()).then_some((s.id, free(s)?)));
        let (id, slot) = found?;
        let session = self.by_id.get_mut(&id)?;
        let connection = session.backchannel.connections.iter().rfind(|c| c.has_answered)?.id;
        let back_slot = session.backchannel.slots.get_mut(slot)?;
        back_slot.is_busy = true;
        Some(BackCall {
            session: id,
            slot: slot as u32,
            sequence: back_slot.next,
            is_unsure: back_slot.is_unsure,
            connection,
            program: session.callback_program,
            cred: session.callback_cred.clone()?,
            minor: session.minor,
        })
    }

    /// Frees the slot of a callback. The session may be gone.
    pub(crate) fn end_call(&mut self, call: &BackCall, outcome: BackOutcome) {
        if let Some(session) = self.by_id.get_mut(&call.session)
            && let Some(slot) = session.backchannel.slots.get_mut(call.slot as usize)
        {
            slot.is_busy = false;
            match outcome {
                BackOutcome::Taken => {
                    (slot.next, slot.is_unsure) = (slot.next.wrapping_add(1), false);
                }
                BackOutcome::NotTaken | BackOutcome::NoSession => {}
                BackOutcome::Lost => slot.is_unsure = true,
            }
        }
        match outcome {
            BackOutcome::Taken | BackOutcome::NotTaken => {}
            BackOutcome::NoSession => self.unbind_from(call.session, call.connection),
            BackOutcome::Lost => self.unbind(call.connection),
        }
    }

    /// Unbinds a connection from one session.
    fn unbind_from(&mut self, id: SessionId, connection: u64) {
        forget(&mut self.by_connection, connection, id);
        if let Some(session) = self.by_id.get_mut(&id) {
            session.forget_connection(connection);
        }
    }

    /// Unbinds all connections from the backchannel of a session that was removed.
    pub(in crate::state) fn unbind_all(&mut self, session: &Session) {
        for connection in &session.backchannel.connections {
            forget(&mut self.by_connection, connection.id, session.id);
        }
    }
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
    use crate::state::channel::tests::CHANNEL;
    use crate::state::ids::Ids;

    #[test]
    fn callbacks_use_connections_that_answer() {
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 2, 1 << 20);
        let client = ClientId(5);
        let session = sessions.create_alone(client.0, CHANNEL).unwrap();
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
        assert!(sessions.get(id).unwrap().slots.has_status());
        assert_eq!(sessions.begin_call(client), None);
        sessions.bind_back(id, 71).unwrap();
        sessions.answered(71);
        assert!(!sessions.get(id).unwrap().slots.has_status());
        let settles = sessions.begin_call(client).unwrap();
        assert_eq!((settles.connection, settles.slot, settles.sequence), (71, 1, 1));
        assert!(settles.is_unsure, "the client may have executed the lost one");
        sessions.end_call(&settles, BackOutcome::NotTaken);
        assert!(sessions.begin_call(client).unwrap().is_unsure);
        sessions.end_call(&settles, BackOutcome::Taken);
        let sure = sessions.begin_call(client).unwrap();
        assert_eq!((sure.slot, sure.sequence, sure.is_unsure), (1, 2, false));
        // A slot whose number is sure comes first.
        sessions.end_call(&first, BackOutcome::Lost);
        sessions.end_call(&sure, BackOutcome::Taken);
        assert_eq!(sessions.begin_call(client).unwrap().slot, 1);
        sessions.remove(id);
        assert!(sessions.by_connection.is_empty() && sessions.of(client).next().is_none());
    }
}
