//! Sessions and their slots. [`backchannel`](super::backchannel) has the server's calls to clients.
//!
//! 1. The cached replies of all sessions share a limit in bytes, and the actual size of each reply
//!    counts. A request whose reply is to be cached begins only if the largest reply that its
//!    session caches fits the client's share ([`Tally`]); otherwise the client has to retry
//!    later. For a slot that already holds a reply, the share is computed from twice the limit. The
//!    first slot of a session is exempt, so that every session makes progress.
//! 2. The server asks a client with a small share to use fewer slots ([`target_slots`]). It drops
//!    the replies in the higher slots once the client can no longer ask for them
//!    ([`Sessions::retire`]).
//! 3. A busy slot is freed however its request ends.
//! 4. A slot takes memory from its first request on: most clients use few of those that they are
//!    granted.

use crate::admission::LimitUse;
use crate::state::backchannel::{Backchannel, CallbackCred};
use crate::state::channel::Channel;
use crate::state::client::ClientId;
use crate::state::error::StateError;
use crate::state::ids::Ids;
use crate::state::slot::{Begin, Slot, SlotError};
use crate::state::tally::{Account, Removable, Tally};
use bytes::Bytes;
use std::collections::HashMap;

/// A session ID; it cannot be guessed ([`Ids`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(pub [u8; 16]);

/// One session.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Its ID.
    pub(crate) id: SessionId,
    /// The client that created it.
    pub(crate) client: ClientId,
    /// The channel for the client's requests.
    pub(crate) fore: Channel,
    /// The channel for the server's callbacks.
    pub(crate) back: Channel,
    /// The program number of the client's callback service.
    pub(crate) callback_program: u32,
    /// The credential of callbacks; `None` if the client accepts no flavor that the server
    /// supports.
    pub(crate) callback_cred: Option<CallbackCred>,
    /// The minor version of the request that created it.
    pub(crate) minor: u32,
    /// Those up to the highest one that was used.
    slots: Vec<Slot>,
    /// Bytes of the replies in `slots`, including those reserved for requests in progress.
    kept_bytes: usize,
    /// A slot, and how many requests in a row reported that no slot from this one on is in use.
    unused_from: (u32, u32),
    pub(super) backchannel: Backchannel,
}

impl Session {
    /// Whether a slot other than `but` is busy.
    pub(crate) fn is_busy(&self, but: Option<u32>) -> bool {
        self.slots.iter().enumerate().any(|(i, slot)| slot.is_busy() && Some(i as u32) != but)
    }

    /// The slot with this number.
    fn slot_mut(&mut self, number: u32) -> Option<&mut Slot> {
        if number >= self.fore.slots {
            return None;
        }
        let index = number as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, Slot::new(1));
        }
        self.slots.get_mut(index)
    }
}

/// The arguments of SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SequenceArgs {
    /// The slot.
    pub(crate) slot: u32,
    /// The sequence number.
    pub(crate) sequence: u32,
    /// The highest slot that the client has in use.
    pub(crate) highest_slot: u32,
    /// Distinguishes requests with the same sequence number.
    pub(crate) digest: u64,
    /// Whether to cache the reply.
    pub(crate) keep: bool,
}

/// How to handle a request after SEQUENCE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sequenced {
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
pub(crate) struct Sessions {
    pub(super) by_id: HashMap<SessionId, Session>,
    by_client: HashMap<ClientId, OfClient>,
    /// The sessions to whose backchannel a connection is bound.
    pub(super) by_connection: HashMap<u64, Vec<SessionId>>,
    ids: Ids,
    made: u64,
    /// The sessions of each client.
    counts: Tally,
    kept: Tally,
    max_kept_bytes: usize,
    /// How many requests were refused because of `max_kept_bytes`.
    delayed: u64,
    max: usize,
}

/// The sessions of a client.
#[derive(Debug)]
struct OfClient {
    account: Account,
    ids: Vec<SessionId>,
}

impl Sessions {
    /// An empty table for at most `max` sessions, with a limit of `max_kept_bytes` on cached
    /// replies.
    pub(crate) fn new(ids: Ids, max: usize, max_kept_bytes: u64) -> Self {
        let (by_client, by_connection) = (HashMap::new(), HashMap::new());
        let max_kept_bytes = usize::try_from(max_kept_bytes).unwrap_or(usize::MAX);
        let (by_id, made, delayed) = (HashMap::new(), 0, 0);
        Self {
            by_id,
            by_client,
            by_connection,
            ids,
            made,
            counts: Tally::default(),
            kept: Tally::default(),
            max_kept_bytes,
            delayed,
            max,
        }
    }

    /// Creates a session.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub(crate) fn create(
        &mut self,
        account: Account,
        fore: Channel,
        mut back: Channel,
        minor: u32,
    ) -> Result<&mut Session, StateError> {
        let client = account.client;
        if self.by_id.len() >= self.max {
            return Err(StateError::TooMany);
        }
        self.made += 1;
        let id = self.ids.session(self.made);
        let backchannel = Backchannel::new(&mut back);
        let session = Session {
            id,
            client,
            fore,
            back,
            callback_program: 0,
            callback_cred: None,
            minor,
            slots: Vec::new(),
            kept_bytes: 0,
            unused_from: (0, 0),
            backchannel,
        };
        let of_client = OfClient { account, ids: Vec::new() };
        let of_client = self.by_client.entry(client).or_insert(of_client);
        of_client.ids.push(id);
        self.counts.add(of_client.account, 1);
        Ok(self.by_id.entry(id).or_insert(session))
    }

    /// The numbers of sessions of clients and addresses.
    pub(super) fn counts(&self) -> &Tally {
        &self.counts
    }

    /// The session with this ID.
    ///
    /// # Errors
    /// [`StateError::BadSession`].
    pub(crate) fn get(&self, id: SessionId) -> Result<&Session, StateError> {
        self.by_id.get(&id).ok_or(StateError::BadSession)
    }

    /// The session with this ID, mutable.
    ///
    /// # Errors
    /// [`StateError::BadSession`].
    pub(crate) fn get_mut(&mut self, id: SessionId) -> Result<&mut Session, StateError> {
        self.by_id.get_mut(&id).ok_or(StateError::BadSession)
    }

    /// Begins a request in its slot.
    ///
    /// # Errors
    /// [`StateError::BadSession`] or [`StateError::BadSlot`] if there is no such session or slot;
    /// [`StateError::TooMany`] if the cached replies of the client have reached its share; the
    /// error of the slot if it does not accept the sequence number.
    pub(crate) fn begin(
        &mut self,
        id: SessionId,
        request: SequenceArgs,
    ) -> Result<Sequenced, StateError> {
        let SequenceArgs { sequence, digest, keep, .. } = request;
        let session = self.by_id.get_mut(&id).ok_or(StateError::BadSession)?;
        let (client, fore) = (session.client, session.fore);
        let slot = session.slot_mut(request.slot).ok_or(StateError::BadSlot)?;
        let of_client = self.by_client.get(&client).ok_or(StateError::BadSession)?;
        let account = of_client.account;
        let twice = self.max_kept_bytes.saturating_mul(2);
        let limit = if slot.kept_bytes() > 0 { twice } else { self.max_kept_bytes };
        let allowed = self.kept.allowance(limit, account, &Removable::default());
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
                let share = self.kept.fair_share(self.max_kept_bytes, account);
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
    pub(crate) fn finish(&mut self, id: SessionId, slot: u32, reply: Option<Bytes>) {
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
        let Some(of_client) = self.by_client.get(&session.client) else { return };
        session.kept_bytes = session.kept_bytes + after - before;
        self.kept.add(of_client.account, after.saturating_sub(before));
        self.kept.subtract(session.client, before.saturating_sub(after));
    }

    /// Drops the replies in slots above the target once the client is known to have received them.
    ///
    /// Each request states the highest slot in use, and a slot is in use until its reply arrives.
    /// Requests may overtake each other, but only one per slot can be in flight. So if more
    /// requests in a row than there are slots report no slot above the target, at least one of them
    /// was sent after the last reply from such a slot had arrived.
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
            used: self.kept.total() as u64,
            refused: self.delayed,
        }
    }

    /// Removes a session.
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Session> {
        let session = self.by_id.remove(&id)?;
        self.kept.subtract(session.client, session.kept_bytes);
        self.counts.subtract(session.client, 1);
        if let Some(of_client) = self.by_client.get_mut(&session.client) {
            of_client.ids.retain(|other| *other != id);
            if of_client.ids.is_empty() {
                self.by_client.remove(&session.client);
            }
        }
        self.unbind_all(&session);
        Some(session)
    }

    /// Removes all sessions of a client.
    pub(crate) fn remove_of(&mut self, client: ClientId) {
        let ids: Vec<SessionId> = self.of(client).map(|s| s.id).collect();
        for id in ids {
            self.remove(id);
        }
    }

    /// The sessions of a client.
    pub(crate) fn of(&self, client: ClientId) -> impl Iterator<Item = &Session> {
        let ids = self.by_client.get(&client).map_or(&[][..], |of_client| &of_client.ids);
        ids.iter().filter_map(|id| self.by_id.get(id))
    }
}

/// How many of the largest cached replies fit `bytes`; at least one slot, at most all.
fn target_slots(fore: Channel, bytes: usize) -> u32 {
    let fitting = bytes / fore.max_cached.max(1) as usize;
    u32::try_from(fitting).unwrap_or(u32::MAX).clamp(1, fore.slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::channel::tests::CHANNEL;

    fn request(slot: u32, sequence: u32) -> SequenceArgs {
        SequenceArgs { slot, sequence, highest_slot: slot, digest: 7, keep: true }
    }

    /// Executes a request with a reply of `bytes`. Returns the target number of slots.
    fn run(sessions: &mut Sessions, id: SessionId, request: SequenceArgs, bytes: usize) -> u32 {
        let Ok(Sequenced::Execute { target_slots, .. }) = sessions.begin(id, request) else {
            panic!("{request:?} is not executed")
        };
        sessions.finish(id, request.slot, Some(vec![0; bytes].into()));
        target_slots
    }

    #[test]
    fn slots_are_granted_as_requested_and_kept_replies_counted() {
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 1000, 128 << 10);
        // The largest replies of all their slots would fill the limit 31 times over.
        for i in 0..1000 {
            let session =
                sessions.create(Account::alone(ClientId(i)), CHANNEL, CHANNEL, 0).unwrap();
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
    fn a_client_with_large_kept_replies_gets_a_lower_target_slot() {
        let many = Channel { slots: 64, ..CHANNEL };
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 10, 32 * 1024);
        let greedy = sessions.create(Account::alone(ClientId(1)), many, many, 0).unwrap().id;
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
        let modest = sessions.create(Account::alone(ClientId(2)), many, many, 0).unwrap().id;
        assert_eq!(run(&mut sessions, modest, request(0, 1), 1024), 8);
        // A reply that replaces another one fits, and so does a request whose reply is not cached.
        run(&mut sessions, greedy, request(3, 2), 1024);
        let unkept = SequenceArgs { keep: false, ..request(40, 1) };
        assert!(sessions.begin(greedy, unkept).is_ok());
        assert_eq!(sessions.kept().refused, 1);
    }

    #[test]
    fn replies_above_the_target_slot_are_dropped_once_acknowledged() {
        let many = Channel { slots: 8, ..CHANNEL };
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 10, 8 * 1024);
        let id = sessions.create(Account::alone(ClientId(1)), many, many, 0).unwrap().id;
        for slot in 0..4 {
            run(&mut sessions, id, request(slot, 1), 1024);
        }
        let low = |sequence| SequenceArgs { highest_slot: 1, ..request(0, sequence) };
        for sequence in 2..12 {
            assert!(sessions.begin(id, request(3, 1)).is_ok(), "its reply is still cached");
            assert_eq!(run(&mut sessions, id, low(sequence), 1024), 4);
        }
        let other = sessions.create(Account::alone(ClientId(2)), many, many, 0).unwrap().id;
        run(&mut sessions, other, request(0, 1), 1024);
        for sequence in 12..20 {
            assert_eq!(run(&mut sessions, id, low(sequence), 1024), 3);
            assert!(sessions.begin(id, request(3, 1)).is_ok(), "the client may still ask for it");
        }
        run(&mut sessions, id, low(20), 1024);
        assert_eq!(sessions.begin(id, request(3, 1)), Err(StateError::Uncached));
        let next = SequenceArgs { keep: false, ..request(3, 2) };
        assert!(sessions.begin(id, next).is_ok(), "the slot is still usable");
    }

    #[test]
    fn slots_take_memory_when_they_are_used() {
        let many = Channel { slots: 64, ..CHANNEL };
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 1, 1 << 20);
        let id = sessions.create(Account::alone(ClientId(5)), many, many, 0).unwrap().id;
        for (slot, used) in [(0, 1), (0, 1), (2, 3)] {
            let before = sessions.get(id).unwrap().slots.get(slot as usize).is_some();
            run(&mut sessions, id, request(slot, if before { 2 } else { 1 }), 10);
            assert_eq!(sessions.get(id).unwrap().slots.len(), used);
        }
        run(&mut sessions, id, request(1, 1), 10);
        assert_eq!(sessions.begin(id, request(64, 1)), Err(StateError::BadSlot));
        assert_eq!(sessions.get(id).unwrap().slots.len(), 3);
    }

    #[test]
    fn sequence_selects_its_slot() {
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 1, 1 << 20);
        let id = sessions.create(Account::alone(ClientId(5)), CHANNEL, CHANNEL, 0).unwrap().id;
        assert_eq!(
            sessions.begin(id, request(0, 1)),
            Ok(Sequenced::Execute { client: ClientId(5), fore: CHANNEL, target_slots: 4 })
        );
        assert!(sessions.get(id).unwrap().is_busy(None));
        assert!(!sessions.get(id).unwrap().is_busy(Some(0)));
        assert_eq!(sessions.begin(id, request(4, 1)), Err(StateError::BadSlot));
        assert_eq!(sessions.begin(SessionId([0; 16]), request(0, 1)), Err(StateError::BadSession));
        assert_eq!(
            sessions.create(Account::alone(ClientId(6)), CHANNEL, CHANNEL, 0).unwrap_err(),
            StateError::TooMany
        );
        sessions.remove_of(ClientId(5));
        sessions.finish(id, 0, None);
        assert_eq!(sessions.begin(id, request(0, 2)), Err(StateError::BadSession));
    }
}
