//! A lock-free filter that tells whether a file may be delegated.
//!
//! Most files are not delegated, and NFSv3 reads and writes should not take the state's lock to
//! find that out. Files are hashed to shared counters, so the answer is "no" or "perhaps".
//!
//! 1. A call that changes a file without an open first counts itself, then looks for delegations. A
//!    call that grants a delegation first counts the delegation, then looks for changes. All
//!    accesses are sequentially consistent, so at least one of the two calls sees the other.

use crate::handle::Node;
use crate::state::tables::delegation::{DelegationKind, Touch};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicUsize};

/// Counters per kind, which files share by hash.
const BUCKETS: usize = 2048;

/// Counts the delegations, and the changes without an open, of the files in each bucket.
#[derive(Debug)]
pub(crate) struct Filter {
    read: Vec<AtomicU32>,
    write: Vec<AtomicU32>,
    changing: Vec<AtomicU32>,
    all: AtomicUsize,
}

impl Default for Filter {
    fn default() -> Self {
        let counters = || (0..BUCKETS).map(|_| AtomicU32::new(0)).collect();
        Self { read: counters(), write: counters(), changing: counters(), all: 0.into() }
    }
}

/// Counts a change without an open while it lives. The server does not delegate the file meanwhile.
#[derive(Debug)]
pub(crate) struct ChangeGuard {
    filter: Arc<Filter>,
    bucket: usize,
}

impl Drop for ChangeGuard {
    fn drop(&mut self) {
        self.filter.changing[self.bucket].fetch_sub(1, SeqCst);
    }
}

impl Filter {
    /// Whether any file is delegated.
    pub(crate) fn any(&self) -> bool {
        self.all.load(SeqCst) != 0
    }

    /// Whether there may be a delegation of `node` that conflicts with `touch`.
    pub(crate) fn may_conflict(&self, node: Node, touch: Touch) -> bool {
        let bucket = bucket(node);
        let change = touch == Touch::Change;
        self.write[bucket].load(SeqCst) != 0 || (change && self.read[bucket].load(SeqCst) != 0)
    }

    /// Prevents new delegations of `node` while the returned guard lives.
    pub(crate) fn begin_change(self: &Arc<Self>, node: Node) -> ChangeGuard {
        let bucket = bucket(node);
        self.changing[bucket].fetch_add(1, SeqCst);
        ChangeGuard { filter: self.clone(), bucket }
    }

    /// Counts a delegation. Returns whether no call is changing the file.
    pub(in crate::state) fn count(&self, node: Node, kind: DelegationKind) -> bool {
        let bucket = bucket(node);
        self.counters(kind)[bucket].fetch_add(1, SeqCst);
        self.all.fetch_add(1, SeqCst);
        self.changing[bucket].load(SeqCst) == 0
    }

    /// Counts a delegation, unless a call is changing the file. Returns whether it did.
    pub(in crate::state) fn add(&self, node: Node, kind: DelegationKind) -> bool {
        let free = self.count(node, kind);
        if !free {
            self.remove(node, kind);
        }
        free
    }

    /// Uncounts a delegation.
    pub(in crate::state) fn remove(&self, node: Node, kind: DelegationKind) {
        self.counters(kind)[bucket(node)].fetch_sub(1, SeqCst);
        self.all.fetch_sub(1, SeqCst);
    }

    fn counters(&self, kind: DelegationKind) -> &[AtomicU32] {
        match kind {
            DelegationKind::Read => &self.read,
            DelegationKind::Write => &self.write,
        }
    }
}

fn bucket(node: Node) -> usize {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(node);
    (hash % BUCKETS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_vfs::FileId;

    #[test]
    fn a_file_is_never_changed_and_delegated_at_once() {
        let filter = Arc::new(Filter::default());
        let node = Node { export: 0, id: FileId { ino: 1, generation: 0 } };
        let changing = filter.begin_change(node);
        assert!(!filter.add(node, DelegationKind::Read));
        assert!(!filter.any() && !filter.may_conflict(node, Touch::Change));
        drop(changing);
        assert!(filter.add(node, DelegationKind::Read));
        assert!(filter.any() && filter.may_conflict(node, Touch::Change));
        assert!(!filter.may_conflict(node, Touch::Read));
        assert!(filter.add(node, DelegationKind::Write));
        assert!(filter.may_conflict(node, Touch::Read));
        filter.remove(node, DelegationKind::Read);
        filter.remove(node, DelegationKind::Write);
        assert!(!filter.any());
    }
}
