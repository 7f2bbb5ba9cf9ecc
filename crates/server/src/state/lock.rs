//! Byte-range locks in the protocol's terms: lock owners and their stateids over [`RangeLocks`].

use super::{
    ClientId, Conflict, OwnerName, Range, RangeLocks, State, StateError, StateId, StateKey,
    check_seq, next_seq,
};
use crate::handle::Node;
use std::time::Duration;
use weir_vfs::Access;

/// Who holds locks: an owner of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockOwner {
    /// The client.
    pub client: ClientId,
    /// The client's name for the owner.
    pub name: OwnerName,
}

/// The locks of one owner on one file.
#[derive(Clone, Debug)]
pub(super) struct LockState {
    pub(super) owner: LockOwner,
    pub(super) node: Node,
    pub(super) open: StateKey,
    pub(super) seq: u32,
}

/// Under which stateid a lock is asked for.
#[derive(Clone, Debug)]
pub enum LockTarget {
    /// Under an open: the owner's first lock on the file.
    Open(StateId, OwnerName),
    /// Under the stateid of earlier locks.
    Locks(StateId),
}

/// A lock to be taken.
#[derive(Clone, Debug)]
pub struct LockRequest {
    /// Whose.
    pub client: ClientId,
    /// Under which stateid.
    pub target: LockTarget,
    /// The file.
    pub node: Node,
    /// The bytes.
    pub range: Range,
    /// Whether it excludes readers as well.
    pub exclusive: bool,
    /// It was held before the server restarted.
    pub reclaim: bool,
}

/// Why a lock is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockError {
    /// Something is wrong.
    State(StateError),
    /// Somebody holds a lock that is in the way.
    Denied(Conflict<LockOwner>),
}

impl From<StateError> for LockError {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl<F: Clone> State<F> {
    /// LOCK.
    ///
    /// # Errors
    /// The stateid is wrong, it is not the time, or the lock is denied.
    pub fn lock(&mut self, request: LockRequest, now: Duration) -> Result<StateId, LockError> {
        let LockRequest { client, target, node, range, exclusive, reclaim } = request;
        self.check_grace(client, reclaim, now)?;
        let (open, owner, known) = match target {
            LockTarget::Open(id, name) => {
                self.open_mut(client, id, node)?;
                let owner = LockOwner { client, name };
                let known = self.lock_state_of(node, &owner);
                (id.key, owner, known)
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
        if known.is_none() && self.locks.len() >= self.limits.locks {
            return Err(StateError::TooMany.into());
        }
        self.evict_conflicting(node, &owner, range, exclusive, now);
        let most = self.limits.locks;
        let ranges = &mut self.files.entry(node).or_default().ranges;
        if ranges.len() >= most {
            return Err(StateError::TooMany.into());
        }
        ranges.lock(&owner, range, exclusive).map_err(LockError::Denied)?;
        let key = match known {
            Some(key) => key,
            None => {
                let key = self.new_key();
                self.locks.insert(key, LockState { owner, node, open, seq: 0 });
                self.files.entry(node).or_default().lock_states.push(key);
                self.clients.get_mut(client)?.states.insert(key);
                key
            }
        };
        let state = self.locks.get_mut(&key).ok_or(StateError::BadStateId)?;
        state.seq = next_seq(state.seq);
        Ok(StateId { seq: state.seq, key })
    }

    /// LOCKT: the lock that is in the way.
    ///
    /// # Errors
    /// It is not the time.
    pub fn test_lock(
        &mut self,
        owner: &LockOwner,
        node: Node,
        range: Range,
        exclusive: bool,
        now: Duration,
    ) -> Result<Option<Conflict<LockOwner>>, StateError> {
        self.check_grace(owner.client, false, now)?;
        self.evict_conflicting(node, owner, range, exclusive, now);
        Ok(self.files.get(&node).and_then(|f| f.ranges.conflict(owner, range, exclusive)))
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
        if let Some(file) = self.files.get_mut(&node) {
            file.ranges.unlock(&owner, range);
        }
        Ok(StateId { seq, key: id.key })
    }

    /// FREE_STATEID: forgets a lock state without locks.
    ///
    /// # Errors
    /// The stateid is wrong, or [`StateError::LocksHeld`].
    pub fn free_stateid(&mut self, client: ClientId, id: StateId) -> Result<(), StateError> {
        let (owner, newest) = self.newest(id.key).ok_or_else(|| self.missing(id.key))?;
        if owner != client {
            return Err(StateError::BadStateId);
        }
        check_seq(id.seq, newest.seq, true)?;
        let state = self.locks.get(&id.key).ok_or(StateError::LocksHeld)?;
        if self.files.get(&state.node).is_some_and(|f| f.ranges.holds(&state.owner)) {
            return Err(StateError::LocksHeld);
        }
        self.drop_lock_state(id.key);
        Ok(())
    }

    /// TEST_STATEID.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn test_stateid(&self, client: ClientId, id: StateId) -> Result<(), StateError> {
        match self.newest(id.key) {
            Some((owner, newest)) if owner == client => check_seq(id.seq, newest.seq, true),
            Some(_) => Err(StateError::BadStateId),
            None => Err(self.missing(id.key)),
        }
    }

    /// The owner of locks.
    ///
    /// # Errors
    /// There is no such state.
    pub fn owner_of_lock(&self, key: StateKey) -> Result<LockOwner, StateError> {
        self.locks.get(&key).map(|l| l.owner.clone()).ok_or_else(|| self.missing(key))
    }

    /// RELEASE_LOCKOWNER: forgets an owner that holds nothing.
    ///
    /// # Errors
    /// [`StateError::LocksHeld`].
    pub fn release_lock_owner(&mut self, owner: &LockOwner) -> Result<(), StateError> {
        let client = self.clients.get(owner.client)?;
        let keys = client.states.iter().copied();
        let keys: Vec<StateKey> =
            keys.filter(|key| self.locks.get(key).is_some_and(|l| l.owner == *owner)).collect();
        let holds = |key: &StateKey| {
            let node = self.locks.get(key).map(|l| l.node);
            node.and_then(|n| self.files.get(&n)).is_some_and(|f| f.ranges.holds(owner))
        };
        if keys.iter().any(holds) {
            return Err(StateError::LocksHeld);
        }
        for key in keys {
            self.drop_lock_state(key);
        }
        Ok(())
    }

    /// The locks of a file.
    pub fn ranges(&self, node: Node) -> Option<&RangeLocks<LockOwner>> {
        self.files.get(&node).map(|f| &f.ranges)
    }

    fn lock_state_of(&self, node: Node, owner: &LockOwner) -> Option<StateKey> {
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

    /// Takes the locks that are in the way from clients that have gone silent.
    fn evict_conflicting(
        &mut self,
        node: Node,
        owner: &LockOwner,
        range: Range,
        exclusive: bool,
        now: Duration,
    ) {
        while let Some(conflict) =
            self.files.get(&node).and_then(|f| f.ranges.conflict(owner, range, exclusive))
        {
            if !self.evict_if_expired(conflict.owner.client, now) {
                break;
            }
        }
    }

    /// Removes an owner's locks on a file, and their state, from every table.
    pub(super) fn drop_lock_state(&mut self, key: StateKey) {
        let Some(state) = self.locks.remove(&key) else { return };
        if let Some(file) = self.files.get_mut(&state.node) {
            file.lock_states.retain(|k| *k != key);
            file.ranges.release(&state.owner);
        }
        if let Ok(client) = self.clients.get_mut(state.owner.client) {
            client.states.remove(&key);
        }
        self.drop_idle(state.node);
    }
}
