//! Random requests in sessions; and what they use without the state's lock, which agrees with the state.

use super::World;
use crate::state::{CallbackCred, Channel, ClientId, SequenceArgs, Sequenced, StateError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl World {
    /// Adds a session in which the client can be called back.
    pub(super) fn add_session(&mut self, id: ClientId) {
        const CHANNEL: Channel = Channel {
            max_request: 4096,
            max_response: 4096,
            max_cached: 512,
            max_operations: 8,
            slots: 2,
        };
        let session = self.state.create_session(id, CHANNEL, CHANNEL, 2).unwrap();
        session.callback_cred = Some(CallbackCred::AuthNone);
        let session = session.id;
        self.state.sessions.bind_back(session, id.0).unwrap();
        self.state.sessions.answered(id.0);
    }

    /// Begins a request in a session, or ends one, or destroys a session.
    pub(super) fn request(&mut self) {
        let now = self.now;
        match self.below(8) {
            0..4 => {
                let client = self.client();
                let sessions: Vec<_> =
                    self.state.sessions.of(client).map(|s| s.slots.clone()).collect();
                let Some(table) = sessions.first() else { return };
                let slot = self.below(2) as u32;
                let is_right = self.below(4) > 0;
                let sequence =
                    if is_right { table.next_sequence(slot) } else { self.below(6) as u32 };
                let request =
                    SequenceArgs { slot, sequence, highest_slot: 1, digest: 0, keep: self.coin() };
                if let Ok(Sequenced::Execute { .. }) = table.begin(request, now) {
                    self.requests.push((table.clone(), request.slot));
                    self.executed += 1;
                }
            }
            4..7 => {
                if self.requests.is_empty() {
                    return;
                }
                let any = self.below(self.requests.len());
                let (table, slot) = self.requests.swap_remove(any);
                let reply = self.coin().then(|| vec![0; self.below(512)].into());
                table.finish(slot, reply, now);
            }
            _ => {
                let client = self.client();
                let found = self.state.sessions.of(client).next().map(|s| (s.id, s.slots.clone()));
                let Some((id, table)) = found else { return };
                if self.coin() {
                    self.state.sessions.unbind(client.0);
                    return;
                }
                let is_busy = self.requests.iter().any(|(other, _)| Arc::ptr_eq(other, &table));
                let destroyed = self.state.destroy_session(id, None);
                assert_eq!(destroyed, if is_busy { Err(StateError::Busy) } else { Ok(()) });
            }
        }
    }

    /// What requests use without the state's lock is what the state knows.
    pub(super) fn check_sessions(&self) {
        assert_eq!(self.state.records_due().load(Ordering::Acquire), self.state.has_unwritten());
        let sessions = &self.state.sessions;
        let (mut count, mut bytes) = (0, 0);
        for client in self.state.clients.iter() {
            assert!(!client.shared.lease.has_ended());
            if client.owner.sessions {
                let calls = self.requests.iter().filter(|(table, _)| table.is_of(&client.shared));
                assert_eq!(client.shared.lease.calls(), calls.count() as u64);
            }
            assert_eq!(client.shared.has_revoked(), client.has_revoked_delegation());
            assert_eq!(client.shared.sessions(), sessions.of(client.id).count());
            for session in sessions.of(client.id) {
                let table = sessions.slot_tables().get(session.id).unwrap();
                assert!(Arc::ptr_eq(&table, &session.slots));
                let (kept, is_its) = table.checked(&client.shared);
                assert!(is_its && table.client() == client.id);
                let has_status = session.lost_backchannel() || client.has_revoked_delegation();
                assert_eq!(table.has_status(), has_status);
                count += 1;
                bytes += kept;
            }
        }
        assert_eq!(sessions.slot_tables().len(), count);
        assert_eq!(sessions.kept().used, bytes as u64);
    }

    /// The requests in progress end, after their sessions. Returns how many were executed.
    pub(super) fn end_requests(self) -> usize {
        for (table, slot) in self.requests {
            table.finish(slot, Some(vec![0; 100].into()), self.now);
        }
        assert_eq!(self.state.sessions.kept().used, 0);
        self.executed
    }
}
