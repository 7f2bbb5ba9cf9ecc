//! Byte-range locks of NFSv4: lock owners and their stateids over [`RangeLocks`](super::RangeLocks).
//!
//! 1. Each file has one table of ranges. The locks of NFSv3 ([`super::nlm`]) are in the same table,
//!    so the protocols exclude each other's locks.
//! 2. A transition that frees ranges calls [`State::grant_waiting`] before it ends.

use crate::handle::Node;
use crate::state::client::{ClientId, OwnerName, Principal};
use crate::state::error::StateError;
use crate::state::room::{Asker, Limited};
use crate::state::stateid::{StateId, StateKey, check_seq, next_seq};
use crate::state::table::State;
use crate::state::tables::lock::{
    Holder, LockError, LockOwner, LockRequest, LockState, LockTarget,
};
use crate::state::tables::lock_waiters::{Wait, Wanted};
use std::time::Duration;
use weir_vfs::{Access, LockConflict as Conflict, LockRange as Range, RangeLocks};

impl<F: Clone> State<F> {
    /// LOCK.
    ///
    /// # Errors
    /// The stateid is wrong, the grace period forbids it, or the lock is denied or would deadlock.
    pub fn lock(&mut self, request: LockRequest, now: Duration) -> Result<StateId, LockError> {
        let LockRequest { client, target, node, range, exclusive, reclaim, wait, listens } =
            request;
        self.check_grace(client, reclaim, now)?;
        let (open, owner, known) = match target {
            LockTarget::Open(id, name) => {
                let open = self.open_for_locks(client, id, node, now)?;
                // Copied, because the decoded name keeps the buffer of the whole request alive.
                let owner = LockOwner { client, name: OwnerName::copy_from_slice(&name) };
                let known = self.lock_state_of(node, &owner);
                (open, owner, known)
            }
            LockTarget::Locks(id) => {
                let state = self.lock_state_mut(client, id, node)?;
                (state.open, state.owner.clone(), Some(id.key))
            }
        };
        let needed = if exclusive { Access::WRITE } else { Access::READ };
        if !self.opens.get(&open).is_some_and(|o| o.share.access.intersects(needed)) {
            return Err(StateError::OpenMode.into());
        }
        let asker = Asker::of(client, reclaim);
        if known.is_none() {
            self.make_room(Limited::LockState, asker, now)?;
        }
        let holder = Holder::V4(owner.clone());
        let wanted = Wanted { node, range, exclusive };
        let waited = self.lock_waiters.asks(&owner);
        let taken = self.take_range(node, &holder, (range, exclusive), asker, now);
        if wait && matches!(taken, Err(LockError::Denied(_))) {
            if self.would_deadlock(&holder, wanted, now) {
                return Err(LockError::Deadlock);
            }
            let waits = Wait::new(wanted, open, listens, now).again(waited.as_ref());
            self.lock_waiters.wait(owner.clone(), waits, listens);
            self.opens.get_mut(&open).ok_or(StateError::BadStateId)?.waits = true;
        }
        taken?;
        self.lock_waiters.leave(&owner, wanted);
        let key = match known {
            Some(key) => key,
            None => {
                let key = self.new_key();
                self.locks.insert(key, LockState { owner, node, open, seq: 0 });
                self.files.entry(node).or_default().lock_states.push(key);
                let client = self.clients.get_mut(client)?;
                client.states.insert(key);
                client.lock_states += 1;
                key
            }
        };
        let state = self.locks.get_mut(&key).ok_or(StateError::BadStateId)?;
        state.seq = next_seq(state.seq);
        // Locks of a delegation that has ended may be under another open of the client.
        state.open = open;
        let id = StateId { seq: state.seq, key };
        // The request may have downgraded an exclusive lock to a shared one.
        self.grant_waiting(node);
        Ok(id)
    }

    /// LOCKT. Returns a conflicting lock.
    ///
    /// # Errors
    /// [`StateError::Grace`].
    pub fn test_lock(
        &mut self,
        owner: &LockOwner,
        node: Node,
        range: Range,
        exclusive: bool,
        now: Duration,
    ) -> Result<Option<Conflict<Holder>>, StateError> {
        self.check_grace(owner.client, false, now)?;
        self.lock_waiters.asks(owner);
        Ok(self.conflict(node, &Holder::V4(owner.clone()), range, exclusive, now))
    }

    /// LOCKU.
    ///
    /// # Errors
    /// The stateid is wrong.
    pub fn unlock(
        &mut self,
        client: ClientId,
        id: StateId,
        node: Node,
        range: Range,
    ) -> Result<StateId, StateError> {
        let state = self.lock_state_mut(client, id, node)?;
        state.seq = next_seq(state.seq);
        let (seq, owner) = (state.seq, state.owner.clone());
        self.lock_waiters.asks(&owner);
        self.free_range(node, &Holder::V4(owner), range);
        Ok(StateId { seq, key: id.key })
    }

    /// FREE_STATEID: forgets a lock state without locks, or acknowledges a revoked state.
    ///
    /// # Errors
    /// The stateid is wrong, or [`StateError::LocksHeld`].
    pub fn free_stateid(&mut self, client: ClientId, id: StateId) -> Result<(), StateError> {
        if let Some(freed) = self.free_revoked(client, id.key) {
            return freed;
        }
        if self.delegations.client_of(id.key) == Some(client) {
            return Err(StateError::LocksHeld);
        }
        let (owner, newest) = self.newest(id.key).ok_or_else(|| self.missing(id.key))?;
        if owner != client {
            return Err(StateError::BadStateId);
        }
        check_seq(id.seq, newest.seq, true)?;
        let state = self.locks.get(&id.key).ok_or(StateError::LocksHeld)?;
        if self.holds(state.node, &state.owner) {
            return Err(StateError::LocksHeld);
        }
        self.drop_lock_state(id.key);
        Ok(())
    }

    /// TEST_STATEID.
    ///
    /// # Errors
    /// The reason why the stateid is not valid.
    pub fn test_stateid(&self, client: ClientId, id: StateId) -> Result<(), StateError> {
        if let Some(tested) = self.test_delegation(client, id) {
            return tested;
        }
        match self.newest(id.key) {
            Some((owner, newest)) if owner == client => check_seq(id.seq, newest.seq, true),
            Some(_) => Err(StateError::BadStateId),
            None if self.revoked.get(&id.key).is_some_and(|(owner, _)| *owner != client) => {
                Err(StateError::BadStateId)
            }
            None => Err(self.missing(id.key)),
        }
    }

    /// The owner of a lock state (minor version 0), if `principal` may change it.
    ///
    /// # Errors
    /// There is no such state, or [`StateError::NotTheOpener`].
    pub fn owner_of_lock(
        &self,
        key: StateKey,
        principal: &Principal,
    ) -> Result<LockOwner, StateError> {
        self.client_of_own(key, principal)?;
        self.locks.get(&key).map(|l| l.owner.clone()).ok_or(StateError::BadStateId)
    }

    /// RELEASE_LOCKOWNER: forgets an owner that holds no locks.
    ///
    /// # Errors
    /// [`StateError::LocksHeld`].
    pub fn release_lock_owner(&mut self, owner: &LockOwner) -> Result<(), StateError> {
        self.lock_waiters.asks(owner);
        let client = self.clients.get(owner.client)?;
        let keys = client.states.iter().copied();
        let keys: Vec<StateKey> =
            keys.filter(|key| self.locks.get(key).is_some_and(|l| l.owner == *owner)).collect();
        let holds = |key: &StateKey| self.locks.get(key).is_some_and(|l| self.holds(l.node, owner));
        if keys.iter().any(holds) {
            return Err(StateError::LocksHeld);
        }
        for key in keys {
            self.drop_lock_state(key);
        }
        Ok(())
    }

    /// The end of the locked range in which `owner` holds the byte at `offset`, if it holds it.
    pub fn own_lock_end(&self, node: Node, owner: &LockOwner, offset: u64) -> Option<u64> {
        self.files.get(&node)?.ranges.covered_to(&Holder::V4(owner.clone()), offset)
    }

    /// The names of a client's lock owners that have lock state.
    pub fn lock_owners(&self, client: ClientId) -> impl Iterator<Item = &OwnerName> {
        self.states_of(client).filter_map(|key| self.locks.get(key)).map(|lock| &lock.owner.name)
    }

    fn holds(&self, node: Node, owner: &LockOwner) -> bool {
        self.files.get(&node).is_some_and(|f| f.ranges.holds(&Holder::V4(owner.clone())))
    }

    pub(super) fn lock_state_of(&self, node: Node, owner: &LockOwner) -> Option<StateKey> {
        let states = self.files.get(&node)?.lock_states.iter().copied();
        states.into_iter().find(|key| self.locks.get(key).is_some_and(|l| l.owner == *owner))
    }

    fn lock_state_mut(
        &mut self,
        client: ClientId,
        id: StateId,
        node: Node,
    ) -> Result<&mut LockState, StateError> {
        let missing = self.missing(id.key);
        let zero_is_newest = self.clients.get(client)?.owner.sessions;
        let state = self.locks.get_mut(&id.key).ok_or(missing)?;
        if state.owner.client != client || state.node != node {
            return Err(StateError::BadStateId);
        }
        check_seq(id.seq, state.seq, zero_is_newest)?;
        Ok(state)
    }

    /// A conflicting lock. Revokes conflicting locks of clients whose lease has expired.
    pub(super) fn conflict(
        &mut self,
        node: Node,
        holder: &Holder,
        range: Range,
        exclusive: bool,
        now: Duration,
    ) -> Option<Conflict<Holder>> {
        loop {
            let of_clients = self.files.get(&node)?.ranges.conflict(holder, range, exclusive);
            let Some(conflict) = of_clients else {
                return self.machine_conflict(node, range, exclusive);
            };
            match &conflict.owner {
                Holder::V4(owner) if self.revoke_locks_if_expired(owner, node, now) => {}
                _ => return Some(conflict),
            }
        }
    }

    /// Locks a range, for a holder of any kind.
    pub(super) fn take_range(
        &mut self,
        node: Node,
        holder: &Holder,
        (range, exclusive): (Range, bool),
        asker: Asker,
        now: Duration,
    ) -> Result<(), LockError> {
        if let Some(conflict) = self.conflict(node, holder, range, exclusive, now) {
            return Err(LockError::Denied(conflict));
        }
        self.make_room(Limited::Range, asker, now)?;
        self.machine_take(node, range, exclusive).map_err(LockError::Denied)?;
        let locked = self.change_ranges_of(node, range, client_of(holder), |ranges| {
            ranges.lock(holder, range, exclusive)
        });
        locked.map_err(LockError::Denied)
    }

    /// Unlocks a range.
    pub(super) fn free_range(&mut self, node: Node, holder: &Holder, range: Range) {
        let client = client_of(holder);
        self.change_ranges_of(node, range, client, |ranges| ranges.unlock(holder, range));
        self.grant_waiting(node);
    }

    /// Like [`change_ranges`](Self::change_ranges), and counts the ranges of the holder's client.
    fn change_ranges_of<T>(
        &mut self,
        node: Node,
        range: Range,
        client: Option<ClientId>,
        change: impl FnOnce(&mut RangeLocks<Holder>) -> T,
    ) -> T {
        let before = self.held;
        let changed = self.change_ranges(node, range, change);
        if let Some(client) = client.and_then(|id| self.clients.get_mut(id).ok()) {
            // A change of one owner's ranges does not change those of another.
            client.ranges = (client.ranges + self.held).saturating_sub(before);
        }
        changed
    }

    /// Changes a file's ranges within `range`, and counts them. Unlocks in the store what no owner
    /// holds any longer.
    pub(super) fn change_ranges<T>(
        &mut self,
        node: Node,
        range: Range,
        change: impl FnOnce(&mut RangeLocks<Holder>) -> T,
    ) -> T {
        let file = self.files.entry(node).or_default();
        let before = file.ranges.len();
        let changed = change(&mut file.ranges);
        self.held = self.held + file.ranges.len() - before;
        if let Some(machine) = file.machine.as_ref().filter(|_| before > 0) {
            machine.give_back(file.ranges.gaps(range));
        }
        changed
    }

    /// Removes an owner's locks on a file, and its lock state, from every table.
    pub(super) fn drop_lock_state(&mut self, key: StateKey) {
        let Some(state) = self.locks.remove(&key) else { return };
        let LockState { owner, node, .. } = state;
        self.lock_waiters.asks(&owner);
        if let Some(file) = self.files.get_mut(&node) {
            file.lock_states.retain(|k| *k != key);
        }
        if let Ok(client) = self.clients.get_mut(owner.client) {
            client.states.remove(&key);
            client.lock_states -= 1;
        }
        let client = Some(owner.client);
        let release = |ranges: &mut RangeLocks<_>| ranges.release(&Holder::V4(owner));
        self.change_ranges_of(node, Range::ALL, client, release);
        self.grant_waiting(node);
        self.drop_idle(node);
    }
}

/// The client of a holder, if it is an NFSv4 owner.
fn client_of(holder: &Holder) -> Option<ClientId> {
    match holder {
        Holder::V4(owner) => Some(owner.client),
        Holder::Nlm(_) | Holder::Machine => None,
    }
}
