//! Serializes changes of a directory, so that the attributes from before and after a change that a
//! reply carries (NFSv3's `wcc_data`, NFSv4's `change_info4`) enclose this change only.
//!
//! 1. A handler that changes a directory's entries and reports these attributes holds the
//!    directory's lock from before it reads the first until after it has read the second.
//! 2. Two directories are always locked in the same order.

use crate::handle::Node;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use tokio::sync::{Mutex, MutexGuard};

/// Number of locks that all directories share.
const SHARDS: usize = 256;

/// The locks of all directories.
#[derive(Debug)]
pub(crate) struct Changes {
    shards: Vec<Mutex<()>>,
}

/// Proof that one or two directories are locked against other changes.
#[derive(Debug)]
pub(crate) struct DirectoryGuard<'a> {
    _one: MutexGuard<'a, ()>,
    _other: Option<MutexGuard<'a, ()>>,
}

impl Default for Changes {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Changes {
    /// Locks a directory.
    pub(crate) async fn lock(&self, dir: Node) -> DirectoryGuard<'_> {
        DirectoryGuard { _one: self.shards[shard(dir)].lock().await, _other: None }
    }

    /// Locks two directories.
    pub(crate) async fn lock_both(&self, a: Node, b: Node) -> DirectoryGuard<'_> {
        let (a, b) = (shard(a), shard(b));
        let first = self.shards[a.min(b)].lock().await;
        let second = if a == b { None } else { Some(self.shards[a.max(b)].lock().await) };
        DirectoryGuard { _one: first, _other: second }
    }
}

fn shard(dir: Node) -> usize {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(dir);
    (hash % SHARDS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use weir_vfs::FileId;

    fn node(ino: u64) -> Node {
        Node { export: 0, id: FileId { ino, generation: 1 } }
    }

    #[tokio::test]
    async fn changes_are_exclusive_and_lock_two_directories_without_deadlock() {
        let changes = Changes::default();
        let held = changes.lock_both(node(1), node(1)).await;
        assert!(changes.lock(node(1)).now_or_never().is_none());
        drop(held);
        let other = (2..).find(|&ino| shard(node(ino)) != shard(node(1))).unwrap();
        let held = changes.lock(node(1)).await;
        assert!(changes.lock(node(other)).now_or_never().is_some());
        assert!(changes.lock_both(node(other), node(1)).now_or_never().is_none());
        drop(held);
        changes.lock_both(node(other), node(1)).await;
    }
}
