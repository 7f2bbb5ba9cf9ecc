//! Serializes changes of a directory, so that the attributes from before and after a change that a
//! reply carries (NFSv3's `wcc_data`, NFSv4's `change_info4`) enclose this change only.
//!
//! 1. A handler that changes a directory's entries and reports these attributes holds the
//!    directory's lock from before it reads the first until after it has read the second.
//! 2. Two directories are always locked in the same order.
//! 3. Each directory has its own lock, so a store that hangs during a change delays changes of that
//!    directory only. The lock exists while a call holds it or waits for it.

use crate::handle::Node;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

/// The locks of the directories that are being changed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    locks: Mutex<HashMap<Node, DirectoryLock>>,
}

#[derive(Debug, Default)]
struct DirectoryLock {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// Calls that hold the lock or wait for it.
    users: usize,
}

/// Proof that one or two directories are locked against other changes.
#[derive(Debug)]
pub(crate) struct DirectoryGuard<'a> {
    _one: Locked<'a>,
    _other: Option<Locked<'a>>,
}

/// One locked directory.
#[derive(Debug)]
struct Locked<'a> {
    // Dropped before the use, which may remove the lock.
    _guard: OwnedMutexGuard<()>,
    _use: LockUse<'a>,
}

/// A call that holds a directory's lock or waits for it.
#[derive(Debug)]
struct LockUse<'a> {
    changes: &'a Changes,
    dir: Node,
}

impl Changes {
    /// Locks a directory.
    pub(crate) async fn lock(&self, dir: Node) -> DirectoryGuard<'_> {
        DirectoryGuard { _one: self.lock_one(dir).await, _other: None }
    }

    /// Locks two directories.
    pub(crate) async fn lock_both(&self, a: Node, b: Node) -> DirectoryGuard<'_> {
        let first = self.lock_one(a.min(b)).await;
        let second = if a == b { None } else { Some(self.lock_one(a.max(b)).await) };
        DirectoryGuard { _one: first, _other: second }
    }

    async fn lock_one(&self, dir: Node) -> Locked<'_> {
        let (lock, of_call) = self.start_use(dir);
        Locked { _guard: lock.lock_owned().await, _use: of_call }
    }

    fn start_use(&self, dir: Node) -> (Arc<tokio::sync::Mutex<()>>, LockUse<'_>) {
        let mut locks = self.locks.lock();
        let entry = locks.entry(dir).or_default();
        entry.users += 1;
        (entry.lock.clone(), LockUse { changes: self, dir })
    }
}

impl Drop for LockUse<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.changes.locks.lock().entry(self.dir) {
            entry.get_mut().users -= 1;
            if entry.get().users == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use weir_vfs::FileId;

    fn node(export: u16, ino: u64) -> Node {
        Node { export, id: FileId { ino, generation: 1 } }
    }

    #[tokio::test]
    async fn changes_are_exclusive_and_lock_two_directories_without_deadlock() {
        let changes = Changes::default();
        let (one, other) = (node(0, 1), node(0, 2));
        let held = changes.lock_both(one, one).await;
        assert!(changes.lock(one).now_or_never().is_none());
        drop(held);
        let held = changes.lock(one).await;
        assert!(changes.lock(other).now_or_never().is_some());
        assert!(changes.lock_both(other, one).now_or_never().is_none());
        drop(held);
        changes.lock_both(other, one).await;
    }

    #[tokio::test]
    async fn a_change_that_hangs_delays_no_change_of_another_directory() {
        let changes = Changes::default();
        let hangs = changes.lock(node(1, 1)).await;
        for ino in 0..2000 {
            assert!(changes.lock(node(2, ino)).now_or_never().is_some(), "{ino}");
            // Tokio lets a task do this only so often without a pause.
            tokio::task::yield_now().await;
        }
        assert!(changes.lock(node(1, 2)).now_or_never().is_some());
        assert_eq!(changes.locks.lock().len(), 1, "unused locks are removed");
        // A call that waits keeps the lock when its holder is done.
        let mut waits = Box::pin(changes.lock(node(1, 1)));
        assert!((&mut waits).now_or_never().is_none());
        let gives_up = changes.lock(node(1, 1)).now_or_never();
        assert!(gives_up.is_none());
        drop(hangs);
        let held = waits.now_or_never().expect("it is free");
        assert!(changes.lock(node(1, 1)).now_or_never().is_none());
        drop(held);
        assert!(changes.locks.lock().is_empty());
    }
}
