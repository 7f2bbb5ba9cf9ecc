//! Locks against programs on the server's own machine: the server also locks in the store what NFS
//! clients have locked, once on behalf of all of them.
//!
//! 1. The table of ranges decides between NFS clients. A range is locked in the store before it is
//!    entered in the table, and unlocked in the same transition in which the last client frees it.
//! 2. A file stays open for locking only while a range of it is locked or waited for (or while a
//!    call runs), so that programs can unmount and execute files without locks. The caller opens it
//!    before the transition ([`crate::locks`]).
//! 3. A store does not report when a program frees a lock, so every sweep retries waiting locks.

use crate::admission;
use crate::handle::Node;
use crate::state::quota::Requester;
use crate::state::refused::Resource;
use crate::state::table::State;
use crate::state::tables::lock::Holder;
use crate::state::tables::store_locks::{OpenedStoreLocks, StoreLocks, with_program};
use std::net::IpAddr;
use std::sync::Arc;
use weir_vfs::{Lock, LockConflict as Conflict, LockRange as Range};

impl<F: Clone> State<F> {
    /// The locks of a file in its store, if it is open there for locking.
    pub(crate) fn store_locks_of(&self, node: Node) -> Option<Arc<dyn StoreLocks>> {
        self.files.get(&node)?.store_locks.clone()
    }

    /// Whether a peer at an address may have one more file opened in its store for locking.
    pub(crate) fn may_lock_in_store(&mut self, by: Option<IpAddr>) -> bool {
        let requester = by.map_or(Requester::Newcomer, Requester::Host);
        self.check_share(1, Resource::StoreLock, requester).is_ok()
    }

    /// Runs a transition that locks ranges of a file, while the file is open in its store.
    pub(crate) fn with_store_locks<T>(
        &mut self,
        node: Node,
        opened: Option<OpenedStoreLocks>,
        transition: impl FnOnce(&mut Self) -> T,
    ) -> T {
        if let Some(opened) = opened {
            self.attach(node, opened);
        }
        let done = transition(self);
        self.detach_unlocked(node);
        done
    }

    fn attach(&mut self, node: Node, OpenedStoreLocks { locks, by }: OpenedStoreLocks) {
        let file = self.files.entry(node).or_default();
        if file.store_locks.is_none() {
            // Ranges that were granted while the file was not open in its store.
            for (_, lock) in file.ranges.all() {
                _ = locks.lock(lock);
            }
            file.store_locks = Some(locks);
        }
        self.locked_in_store.entry(node).or_insert_with(|| {
            let by = by.map(admission::host);
            self.tallies.store_locks.add_unowned(by, 1);
            by
        });
    }

    /// Closes a file in its store if no range of it is locked or waited for.
    pub(super) fn detach_unlocked(&mut self, node: Node) {
        let Some(file) = self.files.get_mut(&node) else {
            self.forget_locked_in_store(node);
            return;
        };
        if file.ranges.is_empty() && file.waiting.is_empty() && !self.lock_waiters.waits_for(node) {
            file.store_locks = None;
            self.forget_locked_in_store(node);
            self.drop_idle(node);
        }
    }

    fn forget_locked_in_store(&mut self, node: Node) {
        if let Some(by) = self.locked_in_store.remove(&node) {
            self.tallies.store_locks.subtract_unowned(by, 1);
        }
    }

    /// Does the same for all files.
    pub(super) fn detach_all_unlocked(&mut self) {
        for node in self.locked_in_store.keys().copied().collect::<Vec<_>>() {
            self.detach_unlocked(node);
        }
    }

    /// The conflicting lock of a local program, if there is one.
    pub(super) fn program_conflict(
        &self,
        node: Node,
        range: Range,
        exclusive: bool,
    ) -> Option<Conflict<Holder>> {
        let locks = self.files.get(&node)?.store_locks.as_ref()?;
        locks.conflict(Lock { range, exclusive }).map(with_program)
    }

    /// Locks a range in the store on which no other client holds a conflicting lock.
    ///
    /// # Errors
    /// The conflicting lock of a local program.
    pub(super) fn lock_in_store(
        &self,
        node: Node,
        range: Range,
        exclusive: bool,
    ) -> Result<(), Conflict<Holder>> {
        match self.files.get(&node).and_then(|file| file.store_locks.as_ref()) {
            Some(locks) => locks.lock(Lock { range, exclusive }).map_err(with_program),
            None => Ok(()),
        }
    }
}
