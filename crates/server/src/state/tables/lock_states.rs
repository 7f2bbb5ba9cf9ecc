//! The lock states of all clients: an owner has one for each file on which it has, or had, locks.
//!
//! 1. `by_owner` and `by_open` have each lock state of `by_key` once, and nothing else. Therefore lock states change
//!    only in [`LockStates::change`].
//! 2. `by_owner` is ordered by the owner first: RELEASE_LOCKOWNER names an owner, and no file.
//! 3. `by_open` has the open under which an owner took its locks: CLOSE names only that.

use crate::handle::Node;
use crate::state::stateid::StateKey;
use crate::state::tables::lock::{LockOwner, LockState};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use weir_vfs::FileId;

/// The lock states of all clients.
#[derive(Debug, Default)]
pub(in crate::state) struct LockStates {
    by_key: HashMap<StateKey, LockState>,
    by_owner: BTreeMap<(LockOwner, Node), StateKey>,
    by_open: BTreeSet<(StateKey, StateKey)>,
}

impl LockStates {
    pub(in crate::state) fn get(&self, key: StateKey) -> Option<&LockState> {
        self.by_key.get(&key)
    }

    pub(in crate::state) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Adds a lock state of an owner that has none of the file.
    pub(in crate::state) fn insert(&mut self, key: StateKey, state: LockState) {
        self.by_owner.insert((state.owner.clone(), state.node), key);
        self.by_open.insert((state.open, key));
        self.by_key.insert(key, state);
    }

    /// Changes a lock state; not its file or owner. Returns `None` if there is none.
    pub(in crate::state) fn change<T>(
        &mut self,
        key: StateKey,
        change: impl FnOnce(&mut LockState) -> T,
    ) -> Option<T> {
        let state = self.by_key.get_mut(&key)?;
        let before = state.open;
        let changed = change(state);
        if state.open != before {
            self.by_open.remove(&(before, key));
            self.by_open.insert((state.open, key));
        }
        Some(changed)
    }

    /// Removes a lock state.
    pub(in crate::state) fn remove(&mut self, key: StateKey) -> Option<LockState> {
        let state = self.by_key.remove(&key)?;
        self.by_open.remove(&(state.open, key));
        let LockState { owner, node, open, seq } = state;
        let name = (owner, node);
        self.by_owner.remove(&name);
        let (owner, node) = name;
        Some(LockState { owner, node, open, seq })
    }

    /// An owner's lock state of a file.
    pub(in crate::state) fn of_owner(&self, owner: &LockOwner, node: Node) -> Option<StateKey> {
        self.by_owner.get(&(owner.clone(), node)).copied()
    }

    /// An owner's lock states of all files.
    pub(in crate::state) fn all_of_owner(&self, owner: &LockOwner) -> Vec<StateKey> {
        let first = Node { export: 0, id: FileId { ino: 0, generation: 0 } };
        let states = self.by_owner.range((owner.clone(), first)..);
        states.take_while(|((other, _), _)| other == owner).map(|(_, &key)| key).collect()
    }

    /// The lock states under an open.
    pub(in crate::state) fn under(&self, open: StateKey) -> Vec<StateKey> {
        let states = self.by_open.range((open, StateKey { run: 0, number: 0 })..);
        states.take_while(|(other, _)| *other == open).map(|&(_, key)| key).collect()
    }
}

#[cfg(test)]
impl LockStates {
    pub(in crate::state) fn iter(&self) -> impl Iterator<Item = (&StateKey, &LockState)> {
        self.by_key.iter()
    }

    /// Computes the indices again, and compares.
    ///
    /// # Panics
    /// They differ.
    pub(in crate::state) fn check(&self) {
        let mut owners = BTreeMap::new();
        for (key, state) in self.iter() {
            let name = (state.owner.clone(), state.node);
            assert_eq!(owners.insert(name, *key), None, "an owner has two lock states of a file");
        }
        assert_eq!(self.by_owner, owners);
        assert_eq!(self.by_open, self.iter().map(|(key, state)| (state.open, *key)).collect());
    }
}
