//! Byte-range locks of NFSv4: lock owners and their stateids over
//! [`RangeLocks`](super::RangeLocks).
//!
//! 1. Each file has one table of ranges. The locks of NFSv3 ([`super::nlm`]) are in the same table,
//!    so the protocols exclude each other's locks.
//! 2. A transition that frees ranges calls [`State::grant_waiting`] before it ends.
//! 3. A reclaim changes no mode that its owner has already reclaimed.

use crate::admission;
use crate::handle::Node;
use crate::state::client::{ClientId, OwnerName, Principal};
use crate::state::error::StateError;
use crate::state::quota::Requester;
use crate::state::refused::Resource;
use crate::state::stateid::{StateId, StateKey, check_seq, next_seq};
use crate::state::table::State;
use crate::state::tables::lock::{
    Holder, LockError, LockOwner, LockRequest, LockState, LockTarget,
};
use crate::state::tables::lock_waiters::{Wait, WantedLock};
use crate::state::tables::ranges::merged;
use std::collections::HashMap;
use std::time::Duration;
use weir_vfs::{Access, Lock, LockConflict as Conflict, LockRange as Range, RangeLocks};

impl<F: Clone> State<F> {
    /// LOCK.
    ///
    /// # Errors
    /// The stateid is wrong, the grace period forbids it, or the lock is denied or would deadlock;
    /// [`StateError::ReclaimDenied`] or [`StateError::Unsettled`].
    pub(crate) fn lock(
        &mut self,
        request: LockRequest,
        now: Duration,
    ) -> Result<StateId, LockError> {
        let LockRequest { client, target, node, range, exclusive, reclaim, wait, listens } =
            request;
        self.check_grace(client, reclaim)?;
        let (open, owner, known) = match target {
            LockTarget::Open(id, name) => {
                let open = self.open_for_locks(client, id, node, now)?;
                // Copied, because the decoded name keeps the buffer of the whole request alive.
                let owner = LockOwner { client, name: OwnerName::copy_from_slice(&name) };
                let known = self.locks.of_owner(&owner, node);
                (open, owner, known)
            }
            LockTarget::Locks(id) => {
                let state = self.lock_state(client, id, node)?;
                (state.open, state.owner.clone(), Some(id.key))
            }
        };
        let needed = if exclusive { Access::WRITE } else { Access::READ };
        if !self.opens.get(open).is_some_and(|o| o.share.access.intersects(needed)) {
            return Err(StateError::OpenMode.into());
        }
        let holder = Holder::V4(owner.clone());
        if reclaim && self.holds_otherwise(node, &holder, Lock { range, exclusive }) {
            return Err(StateError::ReclaimDenied.into());
        }
        let requester = Requester::of(client, reclaim);
        if known.is_none() {
            self.check_quota(Resource::LockState, requester, now)?;
        }
        let wanted = WantedLock { node, range, exclusive };
        let waited = self.lock_waiters.asks(&owner);
        let taken = self.take_range(node, &holder, (range, exclusive), requester, now);
        if wait && matches!(taken, Err(LockError::Denied(_))) {
            if self.would_deadlock(&holder, wanted, now) {
                return Err(LockError::Deadlock);
            }
            let waits = Wait::new(wanted, open, listens, now).again(waited.as_ref());
            self.lock_waiters.wait(owner.clone(), waits, listens);
            self.opens.change(open, |open| open.waits = true).ok_or(StateError::BadStateId)?;
        }
        taken?;
        self.lock_waiters.leave(&owner, wanted);
        let key = match known {
            Some(key) => key,
            None => {
                let key = self.new_key();
                self.locks.insert(key, LockState { owner, node, open, seq: 0 });
                let account = self.account(client);
                self.tallies.lock_states.add(account, 1);
                self.clients.get_mut(client)?.states.insert(key);
                key
            }
        };
        let changed = self.locks.change(key, |state| {
            state.seq = next_seq(state.seq);
            // Locks of a delegation that has ended may be under another open of the client.
            state.open = open;
            StateId { seq: state.seq, key }
        });
        let id = changed.ok_or(StateError::BadStateId)?;
        // The request may have downgraded an exclusive lock to a shared one.
        self.grant_waiting(node);
        Ok(id)
    }

    /// LOCKT. Returns a conflicting lock.
    ///
    /// # Errors
    /// [`StateError::Grace`].
    pub(crate) fn test_lock(
        &mut self,
        owner: &LockOwner,
        node: Node,
        range: Range,
        exclusive: bool,
        now: Duration,
    ) -> Result<Option<Conflict<Holder>>, StateError> {
        self.check_grace(owner.client, false)?;
        self.lock_waiters.asks(owner);
        Ok(self.conflict(node, &Holder::V4(owner.clone()), range, exclusive, now))
    }

    /// LOCKU.
    ///
    /// # Errors
    /// The stateid is wrong, or [`StateError::TooMany`] if it would split a range and the client
    /// may not have one more.
    pub(crate) fn unlock(
        &mut self,
        client: ClientId,
        id: StateId,
        node: Node,
        range: Range,
    ) -> Result<StateId, StateError> {
        let owner = self.lock_state(client, id, node)?.owner.clone();
        self.lock_waiters.asks(&owner);
        let holder = Holder::V4(owner);
        self.check_unlock(node, &holder, range)?;
        let changed = self.locks.change(id.key, |state| {
            state.seq = next_seq(state.seq);
            StateId { seq: state.seq, key: id.key }
        });
        let id = changed.ok_or(StateError::BadStateId)?;
        self.free_range(node, &holder, range);
        Ok(id)
    }

    /// FREE_STATEID: forgets a lock state without locks, or acknowledges a revoked state.
    ///
    /// # Errors
    /// The stateid is wrong, or [`StateError::LocksHeld`].
    pub(crate) fn free_stateid(&mut self, client: ClientId, id: StateId) -> Result<(), StateError> {
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
        let state = self.locks.get(id.key).ok_or(StateError::LocksHeld)?;
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
    pub(crate) fn test_stateid(&self, client: ClientId, id: StateId) -> Result<(), StateError> {
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
    pub(crate) fn owner_of_lock(
        &self,
        key: StateKey,
        principal: &Principal,
    ) -> Result<LockOwner, StateError> {
        self.client_of_own(key, principal)?;
        self.locks.get(key).map(|l| l.owner.clone()).ok_or(StateError::BadStateId)
    }

    /// RELEASE_LOCKOWNER: forgets an owner that holds no locks.
    ///
    /// # Errors
    /// [`StateError::LocksHeld`].
    pub(crate) fn release_lock_owner(&mut self, owner: &LockOwner) -> Result<(), StateError> {
        self.lock_waiters.asks(owner);
        self.clients.get(owner.client)?;
        let keys = self.locks.all_of_owner(owner);
        let holds =
            |key: &StateKey| self.locks.get(*key).is_some_and(|l| self.holds(l.node, owner));
        if keys.iter().any(holds) {
            return Err(StateError::LocksHeld);
        }
        for key in keys {
            self.drop_lock_state(key);
        }
        Ok(())
    }

    /// The end of the locked range in which `owner` holds the byte at `offset`, if it holds it.
    pub(crate) fn own_lock_end(&self, node: Node, owner: &LockOwner, offset: u64) -> Option<u64> {
        self.files.get(&node)?.ranges.covered_to(&Holder::V4(owner.clone()), offset)
    }

    /// The names of a client's lock owners that have lock state.
    pub(crate) fn lock_owners(&self, client: ClientId) -> impl Iterator<Item = &OwnerName> {
        self.states_of(client).filter_map(|key| self.locks.get(*key)).map(|lock| &lock.owner.name)
    }

    /// Whether an owner holds a part of a range in the other mode.
    pub(super) fn holds_otherwise(&self, node: Node, holder: &Holder, lock: Lock) -> bool {
        let ranges = self.files.get(&node).map(|file| &file.ranges);
        let held = ranges.map_or(Vec::new(), |ranges| ranges.within(holder, lock.range));
        held.iter().any(|held| held.exclusive != lock.exclusive)
    }

    fn holds(&self, node: Node, owner: &LockOwner) -> bool {
        self.files.get(&node).is_some_and(|f| f.ranges.holds(&Holder::V4(owner.clone())))
    }

    fn lock_state(
        &self,
        client: ClientId,
        id: StateId,
        node: Node,
    ) -> Result<&LockState, StateError> {
        let zero_is_newest = self.clients.get(client)?.owner.sessions;
        let state = self.locks.get(id.key).ok_or_else(|| self.missing(id.key))?;
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
                return self.program_conflict(node, range, exclusive);
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
        requester: Requester,
        now: Duration,
    ) -> Result<(), LockError> {
        if let Some(conflict) = self.conflict(node, holder, range, exclusive, now) {
            return Err(LockError::Denied(conflict));
        }
        let growth = self.growth(node, holder, range, Some(exclusive));
        self.check_quota_for(growth, Resource::Range, requester, now)?;
        // A host that waited for a client which was removed just now may have got a lock.
        if let Some(conflict) = self.conflict(node, holder, range, exclusive, now) {
            return Err(LockError::Denied(conflict));
        }
        self.check_settled()?;
        self.lock_in_store(node, range, exclusive).map_err(LockError::Denied)?;
        let locked =
            self.change_ranges(node, range, holder, |ranges| ranges.lock(holder, range, exclusive));
        locked.map_err(LockError::Denied)
    }

    /// Unlocks a range.
    pub(super) fn free_range(&mut self, node: Node, holder: &Holder, range: Range) {
        self.change_ranges(node, range, holder, |ranges| ranges.unlock(holder, range));
        self.grant_waiting(node);
    }

    /// Unlocks all that holders have locked of a file.
    pub(super) fn release_ranges(&mut self, node: Node, holders: &[Holder]) {
        let Some(file) = self.files.get_mut(&node) else { return };
        let (mut released, mut counts) = (Vec::new(), Vec::new());
        for holder in holders {
            let before = file.ranges.len();
            if file.store_locks.is_some() {
                released.extend(file.ranges.of(holder).map(|lock| lock.range));
            }
            file.ranges.release(holder);
            file.count_nlm(holder, before);
            counts.push((holder, before, file.ranges.len()));
        }
        if let Some(locks) = &file.store_locks {
            // Ranges of different owners may overlap: each gap is unlocked once.
            let gaps = merged(released).into_iter().flat_map(|range| file.ranges.gaps(range));
            gaps.for_each(|gap| locks.unlock(gap));
        }
        for (holder, before, after) in counts {
            self.count_ranges(holder, before, after);
        }
    }

    /// Checks that the holder may have the ranges that unlocking a part of one leaves.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub(super) fn check_unlock(
        &mut self,
        node: Node,
        holder: &Holder,
        range: Range,
    ) -> Result<(), StateError> {
        let growth = self.growth(node, holder, range, None);
        self.check_share(growth, Resource::Range, Requester::of_holder(holder, false))
    }

    /// How many more ranges a holder has after it locked a range, or unlocked it (`None`).
    pub(super) fn growth(
        &self,
        node: Node,
        holder: &Holder,
        range: Range,
        exclusive: Option<bool>,
    ) -> usize {
        let ranges = self.files.get(&node).map(|file| &file.ranges);
        let new = usize::from(exclusive.is_some());
        ranges.map_or(new, |ranges| ranges.growth(holder, range, exclusive))
    }

    /// Changes the ranges of one holder of a file within `range`, and counts them. Unlocks in the
    /// store what no owner holds any longer.
    pub(super) fn change_ranges<T>(
        &mut self,
        node: Node,
        range: Range,
        holder: &Holder,
        change: impl FnOnce(&mut RangeLocks<Holder>) -> T,
    ) -> T {
        let file = self.files.entry(node).or_default();
        let before = file.ranges.len();
        let changed = change(&mut file.ranges);
        let after = file.ranges.len();
        file.count_nlm(holder, before);
        if let Some(locks) = file.store_locks.as_ref().filter(|_| before > 0) {
            file.ranges.gaps(range).into_iter().for_each(|gap| locks.unlock(gap));
        }
        self.count_ranges(holder, before, after);
        changed
    }

    /// Counts that a holder, which had `before` ranges of some, now has `after`.
    pub(super) fn count_ranges(&mut self, holder: &Holder, before: usize, after: usize) {
        let (more, less) = (after.saturating_sub(before), before.saturating_sub(after));
        match holder {
            Holder::V4(owner) => {
                let account = self.account(owner.client);
                self.tallies.ranges.add(account, more);
                self.tallies.ranges.subtract(owner.client, less);
            }
            Holder::Nlm(owner) => {
                let address = admission::host(owner.host);
                self.tallies.ranges.add_at(address, more);
                self.tallies.ranges.subtract_at(address, less);
            }
            // It is never in the table.
            Holder::LocalProgram => {}
        }
    }

    /// Removes an owner's locks on a file, and its lock state, from every table.
    pub(super) fn drop_lock_state(&mut self, key: StateKey) {
        self.drop_lock_states([key]);
    }

    /// Removes those of these states that are lock states, as
    /// [`drop_lock_state`](Self::drop_lock_state) does. Grants waiting locks of each file once: a
    /// client may have very many lock-owners with locks on one file.
    pub(super) fn drop_lock_states(&mut self, keys: impl IntoIterator<Item = StateKey>) {
        let mut files: HashMap<Node, Vec<Holder>> = HashMap::new();
        for key in keys {
            let Some(LockState { owner, node, .. }) = self.locks.remove(key) else { continue };
            self.lock_waiters.asks(&owner);
            if let Ok(client) = self.clients.get_mut(owner.client) {
                client.states.remove(&key);
            }
            self.tallies.lock_states.subtract(owner.client, 1);
            files.entry(node).or_default().push(Holder::V4(owner));
        }
        for (node, holders) in files {
            self.release_ranges(node, &holders);
            self.grant_waiting(node);
            self.drop_idle(node);
        }
    }
}
