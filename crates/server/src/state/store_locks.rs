//! Locks against programs on the server's own machine: the server also locks in the store what NFS
//! clients have locked, once on behalf of all of them.
//!
//! 1. The table of ranges decides between NFS clients. A range is locked in the store before it is
//!    entered in the table, and unlocked in the same transition in which the last client frees it.
//! 2. A file stays open for locking only while a range of it is locked or waited for (or while a
//!    call runs), so that programs can unmount and execute files without locks.
//! 3. At most a quarter of the process's descriptor limit is used for this. Files beyond that are
//!    locked between NFS clients only.
//! 4. A store does not report when a program frees a lock, so every sweep retries waiting locks.

use crate::handle::Node;
use crate::state::table::State;
use crate::state::tables::lock::Holder;
use crate::state::tables::store_locks::Machine;
use parking_lot::Mutex;
use weir_pagecache::CachedFs;
use weir_vfs::{Access, Caller, LockConflict as Conflict, LockRange as Range};

/// Opens a file in its store for locking. `None` if local programs do not lock files of this store,
/// or the file cannot be opened.
pub(crate) async fn machine_of<F: Clone>(
    state: &Mutex<State<F>>,
    fs: &CachedFs,
    node: Node,
) -> Option<Machine> {
    let store = fs.store();
    if !store.is_locked_by_programs() {
        return None;
    }
    let (held, files) = {
        let state = state.lock();
        (state.files.get(&node).and_then(|file| file.machine.clone()), state.machines.len())
    };
    if held.is_some() {
        // Another transition may detach it before ours, which attaches it again.
        return held;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_some_and(|limit| files as u64 >= limit / 4) {
        tracing::debug!(files, "too few descriptors to lock a file against local programs");
        return None;
    }
    match store.open(&Caller::Own, node.id, Access::READ | Access::WRITE).await {
        Ok(file) => Some(Machine(file)),
        Err(_) => store.open(&Caller::Own, node.id, Access::READ).await.ok().map(Machine),
    }
}

impl<F: Clone> State<F> {
    /// Runs a transition that locks ranges of a file, while the file is open in its store.
    pub(crate) fn with_machine<T>(
        &mut self,
        node: Node,
        machine: Option<Machine>,
        transition: impl FnOnce(&mut Self) -> T,
    ) -> T {
        if let Some(machine) = machine {
            self.attach(node, machine);
        }
        let done = transition(self);
        self.detach_unlocked(node);
        done
    }

    fn attach(&mut self, node: Node, machine: Machine) {
        let file = self.files.entry(node).or_default();
        if file.machine.is_none() {
            // Ranges that were granted while the file was not open in its store.
            for (_, lock) in file.ranges.all() {
                drop(machine.take(lock.range, lock.exclusive));
            }
            file.machine = Some(machine);
        }
        self.machines.insert(node);
    }

    /// Closes a file in its store if no range of it is locked or waited for.
    pub(super) fn detach_unlocked(&mut self, node: Node) {
        let Some(file) = self.files.get_mut(&node) else {
            self.machines.remove(&node);
            return;
        };
        if file.ranges.is_empty() && file.waiting.is_empty() && !self.lock_waiters.waits_for(node) {
            file.machine = None;
            self.machines.remove(&node);
            self.drop_idle(node);
        }
    }

    /// Does the same for all files.
    pub(super) fn detach_all_unlocked(&mut self) {
        for node in self.machines.iter().copied().collect::<Vec<_>>() {
            self.detach_unlocked(node);
        }
    }

    /// The conflicting lock of a local program, if there is one.
    pub(super) fn machine_conflict(
        &self,
        node: Node,
        range: Range,
        exclusive: bool,
    ) -> Option<Conflict<Holder>> {
        self.files.get(&node)?.machine.as_ref()?.conflict(range, exclusive)
    }

    /// Locks a range in the store on which no other client holds a conflicting lock.
    ///
    /// # Errors
    /// The conflicting lock of a local program.
    pub(super) fn machine_take(
        &self,
        node: Node,
        range: Range,
        exclusive: bool,
    ) -> Result<(), Conflict<Holder>> {
        match self.files.get(&node).and_then(|file| file.machine.as_ref()) {
            Some(machine) => machine.take(range, exclusive),
            None => Ok(()),
        }
    }
}
