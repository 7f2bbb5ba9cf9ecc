//! The slots of sessions, which have a lock of their own: SEQUENCE and the end of a compound do not take the state's
//! lock.
//!
//! 1. A session's slots are in the index ([`SlotTables`]) from the creation of the session to its removal. Both happen
//!    under the state's lock.
//! 2. A table closes once, under its lock, when its session is removed. Then no request begins in it, and it counts no
//!    bytes. Requests in progress end in the closed table, which lives as long as they do.
//! 3. A request begins only while its table is open and the lease of its client lasts ([`Lease`](weir_base::Lease)). So
//!    DESTROY_SESSION finds either a busy slot or a table in which no request will begin, and a client is not removed
//!    for its silence while one of its requests is in progress.
//! 4. A busy slot is freed however its request ends.
//! 5. The server drops the replies in slots above the target once the client can no longer ask for them
//!    ([`Slots::retire`]).
//! 6. A slot takes memory from its first request on: most clients use few of those that they are granted.

use crate::state::channel::Channel;
use crate::state::client::ClientId;
use crate::state::error::StateError;
use crate::state::ids::SessionId;
use crate::state::kept_replies::KeptReplies;
use crate::state::shared_client::SharedClient;
use crate::state::slot::{Begin, Slot, SlotError};
use crate::state::tables::calls::CallUses;
use crate::state::tally::Account;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Shards of the index.
const SHARDS: usize = 64;

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
    /// Execute the request, then call [`SlotTable::finish`].
    Execute {
        /// How many slots the client should use.
        target_slots: u32,
    },
    /// The request was executed before: send this cached reply.
    Replay(Bytes),
}

/// The slot tables of all sessions, by session.
#[derive(Debug)]
pub(crate) struct SlotTables {
    shards: [Shard; SHARDS],
}

/// In cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(RwLock<HashMap<SessionId, Arc<SlotTable>>>);

impl Default for SlotTables {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Shard::default()) }
    }
}

impl SlotTables {
    /// The slots of a session.
    ///
    /// # Errors
    /// [`StateError::BadSession`].
    pub(crate) fn get(&self, id: SessionId) -> Result<Arc<SlotTable>, StateError> {
        self.shard(id).read().get(&id).cloned().ok_or(StateError::BadSession)
    }

    pub(in crate::state) fn insert(&self, id: SessionId, table: Arc<SlotTable>) {
        self.shard(id).write().insert(id, table);
    }

    pub(in crate::state) fn remove(&self, id: SessionId) {
        self.shard(id).write().remove(&id);
    }

    /// Number of sessions.
    #[cfg(test)]
    pub(in crate::state) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.read().len()).sum()
    }

    /// The IDs of sessions are hashes, so any of their bytes spreads them evenly.
    fn shard(&self, id: SessionId) -> &RwLock<HashMap<SessionId, Arc<SlotTable>>> {
        &self.shards[usize::from(id.0[0]) % SHARDS].0
    }
}

/// The slots of a session.
#[derive(Debug)]
pub(crate) struct SlotTable {
    /// The channel for the client's requests.
    pub(crate) fore: Channel,
    account: Account,
    client: Arc<SharedClient>,
    kept: Arc<KeptReplies>,
    /// Whether the session had a backchannel and no connection is bound to it any more; changes under the state's lock.
    lost_backchannel: AtomicBool,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    is_closed: bool,
    /// Those up to the highest one that was used.
    used: Vec<Slot>,
    /// Bytes of the replies in `used`, including those reserved for requests in progress.
    kept_bytes: usize,
    /// A slot, and how many requests in a row reported that no slot from this one on is in use.
    unused_from: (u32, u32),
}

impl SlotTable {
    /// The slots of a new session.
    pub(in crate::state) fn new(
        fore: Channel,
        account: Account,
        client: Arc<SharedClient>,
        kept: Arc<KeptReplies>,
    ) -> Self {
        let (lost_backchannel, slots) = (AtomicBool::new(false), Mutex::default());
        Self { fore, account, client, kept, lost_backchannel, slots }
    }

    /// The client of the session.
    pub(crate) fn client(&self) -> ClientId {
        self.account.client
    }

    /// What the request of the caller, which has begun, notes of the exports that it uses.
    pub(crate) fn uses(&self) -> CallUses {
        CallUses::of(self.client.in_use.clone())
    }

    /// Begins a request in its slot, and renews the client's lease until [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`StateError::BadSession`] or [`StateError::BadSlot`] if there is no such session or slot any more;
    /// [`StateError::TooMany`] if the cached replies of the client have reached its share; the error of the slot if it
    /// does not accept the sequence number.
    pub(crate) fn begin(
        &self,
        request: SequenceArgs,
        now: Duration,
    ) -> Result<Sequenced, StateError> {
        let SequenceArgs { sequence, digest, keep, .. } = request;
        let mut slots = self.slots.lock();
        if slots.is_closed {
            return Err(StateError::BadSession);
        }
        let slot = slots.slot_mut(request.slot, self.fore).ok_or(StateError::BadSlot)?;
        let before = slot.kept_bytes();
        let may_keep = if keep { self.fore.max_cached as usize } else { 0 };
        let is_next = slot.is_next(sequence);
        if is_next {
            self.kept.reserve(self.account, before, may_keep, request.slot == 0)?;
            if !self.client.lease.begin_call(now) {
                // The client is being removed, and this session with it.
                self.kept.replace(self.account, may_keep, before);
                return Err(StateError::BadSession);
            }
        }
        match slot.begin(sequence, digest, may_keep) {
            Ok(Begin::Execute) => {
                slots.kept_bytes = slots.kept_bytes + may_keep - before;
                let sessions = self.client.sessions();
                let target_slots = self.kept.target_slots(self.account, self.fore, sessions);
                let dropped = slots.retire(request.highest_slot, target_slots, self.fore);
                self.kept.replace(self.account, dropped, 0);
                Ok(Sequenced::Execute { target_slots })
            }
            Ok(Begin::Replay(reply)) => Ok(Sequenced::Replay(reply)),
            Err(SlotError::Misordered) => Err(StateError::Misordered),
            Err(SlotError::Uncached) => Err(StateError::Uncached),
            Err(SlotError::FalseRetry) => Err(StateError::FalseRetry),
            Err(SlotError::Busy) => Err(StateError::Busy),
        }
    }

    /// Ends a request, caches its reply if there is one to cache, and renews the client's lease a last time. The
    /// session may be gone.
    pub(crate) fn finish(&self, slot: u32, reply: Option<Bytes>, now: Duration) {
        {
            let mut slots = self.slots.lock();
            if let Some(slot) = slots.used.get_mut(slot as usize) {
                let before = slot.kept_bytes();
                slot.finish(reply);
                let after = slot.kept_bytes();
                slots.kept_bytes = slots.kept_bytes + after - before;
                self.kept.replace(self.account, before, after);
            }
        }
        self.client.lease.end_call(now);
    }

    /// Whether SEQUENCE has something to report in its status flags, which the state knows.
    pub(crate) fn has_status(&self) -> bool {
        self.lost_backchannel.load(Ordering::Acquire) || self.client.has_revoked()
    }

    pub(in crate::state) fn set_lost_backchannel(&self, lost: bool) {
        self.lost_backchannel.store(lost, Ordering::Release);
    }

    /// Whether a slot that the client has used is not busy, so that the client could send a request.
    pub(in crate::state) fn has_idle(&self) -> bool {
        self.slots.lock().used.iter().any(|slot| !slot.is_busy())
    }

    /// Closes it, unless a slot other than `but` is busy.
    ///
    /// # Errors
    /// [`StateError::Busy`].
    pub(in crate::state) fn close_idle(&self, but: Option<u32>) -> Result<(), StateError> {
        let mut slots = self.slots.lock();
        let mut used = slots.used.iter().enumerate();
        if used.any(|(i, slot)| slot.is_busy() && Some(i as u32) != but) {
            return Err(StateError::Busy);
        }
        self.close_locked(&mut slots);
        Ok(())
    }

    /// Closes it: no request begins in it any more.
    pub(in crate::state) fn close(&self) {
        self.close_locked(&mut self.slots.lock());
    }

    fn close_locked(&self, slots: &mut Slots) {
        self.kept.replace(self.account, slots.kept_bytes, 0);
        *slots = Slots { is_closed: true, ..Slots::default() };
    }

    /// Whether `client` is its client.
    #[cfg(test)]
    pub(in crate::state) fn is_of(&self, client: &Arc<SharedClient>) -> bool {
        Arc::ptr_eq(&self.client, client)
    }

    /// The number of the next request in a slot.
    #[cfg(test)]
    pub(in crate::state) fn next_sequence(&self, slot: u32) -> u32 {
        let slots = self.slots.lock();
        slots.used.get(slot as usize).map_or(1, |slot| slot.last().wrapping_add(1))
    }

    /// Bytes of its replies, including those reserved; and whether `client` is its client, and the session is there.
    #[cfg(test)]
    pub(in crate::state) fn checked(&self, client: &Arc<SharedClient>) -> (usize, bool) {
        let slots = self.slots.lock();
        let bytes = slots.used.iter().map(Slot::kept_bytes).sum();
        assert_eq!(slots.kept_bytes, bytes);
        (bytes, self.is_of(client) && !slots.is_closed)
    }
}

impl Slots {
    /// The slot with this number.
    fn slot_mut(&mut self, number: u32, fore: Channel) -> Option<&mut Slot> {
        if number >= fore.slots {
            return None;
        }
        let index = number as usize;
        if index >= self.used.len() {
            self.used.resize(index + 1, Slot::new(1));
        }
        self.used.get_mut(index)
    }

    /// Drops the replies in slots above the target once the client is known to have received them. Returns their bytes.
    ///
    /// Each request states the highest slot in use, and a slot is in use until its reply arrives.
    /// Requests may overtake each other, but only one per slot can be in flight. So if more
    /// requests in a row than there are slots report no slot above the target, at least one of them
    /// was sent after the last reply from such a slot had arrived.
    fn retire(&mut self, highest_slot: u32, target_slots: u32, fore: Channel) -> usize {
        let (from, times) = self.unused_from;
        self.unused_from = match highest_slot < target_slots {
            true if from == target_slots => (from, times.saturating_add(1)),
            true => (target_slots, 1),
            false => (target_slots, 0),
        };
        if self.unused_from.1 != fore.slots + 1 {
            return 0;
        }
        let retired = self.used.iter_mut().skip(target_slots as usize);
        let dropped = retired.map(Slot::forget_reply).sum();
        self.kept_bytes -= dropped;
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::channel::tests::CHANNEL;
    use crate::state::ids::Ids;
    use crate::state::session::Sessions;

    const T0: Duration = Duration::ZERO;

    fn request(slot: u32, sequence: u32) -> SequenceArgs {
        SequenceArgs { slot, sequence, highest_slot: slot, digest: 7, keep: true }
    }

    /// The slots of a new session of a client.
    fn new_table(sessions: &mut Sessions, client: u64, fore: Channel) -> Arc<SlotTable> {
        sessions.create_alone(client, fore).unwrap().slots.clone()
    }

    /// Executes a request with a reply of `bytes`. Returns the target number of slots.
    fn run(table: &SlotTable, request: SequenceArgs, bytes: usize) -> u32 {
        let Ok(Sequenced::Execute { target_slots }) = table.begin(request, T0) else {
            panic!("{request:?} is not executed")
        };
        table.finish(request.slot, Some(vec![0; bytes].into()), T0);
        target_slots
    }

    #[test]
    fn slots_are_granted_as_requested_and_kept_replies_counted() {
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 1000, 128 << 10);
        // The largest replies of all their slots would fill the limit 31 times over.
        for i in 0..1000 {
            let table = new_table(&mut sessions, i, CHANNEL);
            assert_eq!(table.fore.slots, 4);
            run(&table, request(0, 1), 100);
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
        let greedy = new_table(&mut sessions, 1, many);
        let mut targets = Vec::new();
        let full = (0..64).find(|&slot| {
            match greedy.begin(request(slot, 1), T0) {
                Ok(Sequenced::Execute { target_slots }) => targets.push(target_slots),
                other => {
                    assert_eq!(other, Err(StateError::TooMany));
                    return true;
                }
            }
            greedy.finish(slot, Some(vec![0; 1024].into()), T0);
            false
        });
        assert_eq!(full, Some(16), "half of the limit");
        assert_eq!((targets[0], targets[15]), (16, 16));
        let modest = new_table(&mut sessions, 2, many);
        assert_eq!(run(&modest, request(0, 1), 1024), 8);
        // A reply that replaces another one fits, and so does a request whose reply is not cached.
        run(&greedy, request(3, 2), 1024);
        let unkept = SequenceArgs { keep: false, ..request(40, 1) };
        assert!(greedy.begin(unkept, T0).is_ok());
        assert_eq!(sessions.kept().refused, 1);
    }

    #[test]
    fn replies_above_the_target_slot_are_dropped_once_acknowledged() {
        let many = Channel { slots: 8, ..CHANNEL };
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 10, 8 * 1024);
        let table = new_table(&mut sessions, 1, many);
        for slot in 0..4 {
            run(&table, request(slot, 1), 1024);
        }
        let low = |sequence| SequenceArgs { highest_slot: 1, ..request(0, sequence) };
        for sequence in 2..12 {
            assert!(table.begin(request(3, 1), T0).is_ok(), "its reply is still cached");
            assert_eq!(run(&table, low(sequence), 1024), 4);
        }
        let other = new_table(&mut sessions, 2, many);
        run(&other, request(0, 1), 1024);
        for sequence in 12..20 {
            assert_eq!(run(&table, low(sequence), 1024), 3);
            assert!(table.begin(request(3, 1), T0).is_ok(), "the client may still ask for it");
        }
        run(&table, low(20), 1024);
        assert_eq!(table.begin(request(3, 1), T0), Err(StateError::Uncached));
        let next = SequenceArgs { keep: false, ..request(3, 2) };
        assert!(table.begin(next, T0).is_ok(), "the slot is still usable");
    }

    #[test]
    fn slots_take_memory_when_they_are_used() {
        let many = Channel { slots: 64, ..CHANNEL };
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 1, 1 << 20);
        let table = new_table(&mut sessions, 5, many);
        for (slot, used) in [(0, 1), (0, 1), (2, 3)] {
            let before = table.slots.lock().used.get(slot as usize).is_some();
            run(&table, request(slot, if before { 2 } else { 1 }), 10);
            assert_eq!(table.slots.lock().used.len(), used);
        }
        run(&table, request(1, 1), 10);
        assert_eq!(table.begin(request(64, 1), T0), Err(StateError::BadSlot));
        assert_eq!(table.slots.lock().used.len(), 3);
    }

    #[test]
    fn sequence_selects_its_slot() {
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 1, 1 << 20);
        let id = sessions.create_alone(5, CHANNEL).unwrap().id;
        let tables = sessions.slot_tables().clone();
        let table = tables.get(id).unwrap();
        assert_eq!(table.begin(request(0, 1), T0), Ok(Sequenced::Execute { target_slots: 4 }));
        assert_eq!(table.client(), ClientId(5));
        assert_eq!(table.begin(request(4, 1), T0), Err(StateError::BadSlot));
        assert_eq!(tables.get(SessionId([0; 16])).unwrap_err(), StateError::BadSession);
        assert_eq!(sessions.create_alone(6, CHANNEL).unwrap_err(), StateError::TooMany);
        sessions.remove_of(ClientId(5));
        table.finish(0, None, T0);
        assert_eq!(tables.get(id).unwrap_err(), StateError::BadSession);
    }

    /// A request that found its session before that was destroyed, but took no slot yet.
    #[test]
    fn no_request_begins_in_a_session_that_is_destroyed() {
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 1, 1 << 20);
        let id = sessions.create_alone(5, CHANNEL).unwrap().id;
        let table = sessions.slot_tables().get(id).unwrap();
        run(&table, request(1, 1), 100);
        assert!(table.begin(request(0, 1), T0).is_ok());
        assert_eq!(sessions.remove_idle(id, None).unwrap_err(), StateError::Busy);
        assert_eq!(sessions.remove_idle(id, Some(1)).unwrap_err(), StateError::Busy);
        assert_eq!(table.begin(request(1, 2), T0), Ok(Sequenced::Execute { target_slots: 4 }));
        table.finish(1, None, T0);
        // A request may destroy the session that it is in.
        sessions.remove_idle(id, Some(0)).unwrap();
        assert_eq!(sessions.remove_idle(id, Some(0)).unwrap_err(), StateError::BadSession);
        for next in [request(0, 1), request(1, 3), request(2, 1)] {
            assert_eq!(table.begin(next, T0), Err(StateError::BadSession));
        }
        table.finish(0, Some(vec![0; 100].into()), T0);
        assert_eq!(sessions.kept().used, 0);
        assert!(table.client.lease.is_silent(T0 + Duration::from_millis(1), T0), "no call is left");
    }

    #[test]
    fn no_request_begins_once_the_lease_has_ended() {
        let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 1, 1 << 20);
        let table = new_table(&mut sessions, 5, CHANNEL);
        run(&table, request(0, 1), 100);
        assert!(table.begin(request(1, 1), T0).is_ok());
        assert_eq!(sessions.kept().used, 100 + CHANNEL.max_cached as u64);
        // The client is being removed, and its session is not closed yet.
        table.client.lease.end();
        assert_eq!(table.begin(request(0, 2), T0), Err(StateError::BadSession));
        assert_eq!(table.begin(request(2, 1), T0), Err(StateError::BadSession));
        let replay = Ok(Sequenced::Replay(vec![0; 100].into()));
        assert_eq!(table.begin(request(0, 1), T0), replay, "the slot has not changed");
        table.finish(1, Some(vec![0; 50].into()), T0);
        assert_eq!(sessions.kept().used, 150);
        sessions.remove_of(ClientId(5));
        assert_eq!(sessions.kept().used, 0);
    }

    /// Threads begin and end requests while another one destroys the session: each request that began is seen by that
    /// one, or came before it.
    #[test]
    fn a_session_is_destroyed_between_requests() {
        const THREADS: u32 = 2;
        for _ in 0..200 {
            let mut sessions = Sessions::new(Ids::new(1, [7; 32]), 1, 1 << 20);
            let id = sessions.create_alone(5, CHANNEL).unwrap().id;
            let table = sessions.slot_tables().get(id).unwrap();
            let is_destroyed = AtomicBool::new(false);
            let requests = |slot: u32| {
                for sequence in 1.. {
                    let began = table.begin(request(slot, sequence), T0);
                    if let Err(error) = began {
                        assert_eq!(error, StateError::BadSession);
                        return;
                    }
                    assert!(!is_destroyed.load(Ordering::SeqCst), "it is in progress");
                    table.finish(slot, Some(vec![0; 10].into()), T0);
                }
            };
            std::thread::scope(|scope| {
                for slot in 0..THREADS {
                    scope.spawn(move || requests(slot));
                }
                while sessions.remove_idle(id, None).is_err() {
                    std::thread::yield_now();
                }
                is_destroyed.store(true, Ordering::SeqCst);
            });
            assert_eq!(sessions.kept().used, 0);
        }
    }
}
