//! Locks against programs of the server's own machine: each file that clients have locked is locked in its
//! store as well, once for all of them.
//!
//! 1. The table of ranges is the truth among clients. A range is taken in the store before it is entered in the
//!    table, and given back when no client holds it any more, in the same transition.
//! 2. A file is held for this only while something of it is locked or waited for (or for the length of a call),
//!    so that programs may unlink, unmount and execute files without locks.
//! 3. At most a quarter of the descriptors that the process may have are used for this; files that are locked
//!    beyond are locked among clients only.
//! 4. Stores tell of no lock that others free: who waits is tried anew at every sweep.

use crate::handle::Node;
use crate::state::table::State;
use crate::state::tables::lock::Holder;
use crate::state::tables::store_locks::Machine;
use parking_lot::Mutex;
use weir_pagecache::CachedFs;
use weir_vfs::{Access, Caller, LockConflict as Conflict, LockRange as Range};

/// A file as its store has it open for locks, unless no other program uses the store.
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
        // It may be let go of before the transition, which takes it back then.
        return held;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_some_and(|limit| files as u64 >= limit / 4) {
        tracing::debug!(files, "no descriptor is left to keep programs out of a locked file");
        return None;
    }
    match store.open(&Caller::Own, node.id, Access::READ | Access::WRITE).await {
        Ok(file) => Some(Machine(file)),
        Err(_) => store.open(&Caller::Own, node.id, Access::READ).await.ok().map(Machine),
    }
}

impl<F: Clone> State<F> {
    /// Makes a transition that asks for locks of a file, with the file held in its store.
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
            // Those that were granted while the store could not be asked.
            for (_, lock) in file.ranges.all() {
                drop(machine.take(lock.range, lock.exclusive));
            }
            file.machine = Some(machine);
        }
        self.machines.insert(node);
    }

    /// Lets go of a file of which nothing is locked or waited for.
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

    /// The same of all files.
    pub(super) fn detach_all_unlocked(&mut self) {
        for node in self.machines.iter().copied().collect::<Vec<_>>() {
            self.detach_unlocked(node);
        }
    }

    /// A program's lock that is in the way.
    pub(super) fn machine_conflict(
        &self,
        node: Node,
        range: Range,
        exclusive: bool,
    ) -> Option<Conflict<Holder>> {
        self.files.get(&node)?.machine.as_ref()?.conflict(range, exclusive)
    }

    /// Takes a range that no client has, or no other one.
    ///
    /// # Errors
    /// A program's lock that is in the way.
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
