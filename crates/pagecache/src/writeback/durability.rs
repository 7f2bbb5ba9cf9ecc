//! Which data a store has of a file but has not synced.
//!
//! 1. A sync covers the changes that had ended when it began; a change that ends during a sync is
//!    left for the next.

use std::collections::HashSet;
use weir_vfs::FileId;

/// Most files without a mapping that are known to be unsynced: less than a megabyte.
const UNSYNCED_FILES: usize = 16 << 10;

/// Whether a file's data in the store is synced.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    /// Number of our changes of the data in the store that have ended.
    changes: u64,
    /// How many of them a sync has covered.
    synced: u64,
}

/// The changes that a sync covers, by their number when it began.
#[derive(Clone, Copy)]
pub(crate) struct Covered(u64);

impl Durability {
    /// A change of the store's data has ended.
    pub(crate) fn changed(&mut self) {
        self.changes += 1;
    }

    /// A sync begins.
    pub(crate) fn begin(&self) -> Covered {
        Covered(self.changes)
    }

    /// It has succeeded.
    pub(crate) fn synced(&mut self, covered: Covered) {
        self.synced = self.synced.max(covered.0);
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.synced == self.changes
    }
}

/// Files without a mapping that are not synced.
#[derive(Default)]
pub(crate) struct Unsynced {
    files: HashSet<FileId>,
}

impl Unsynced {
    /// The file's mapping is about to be dropped. If there are too many files, the fact is lost.
    pub(crate) fn keep(&mut self, id: FileId, durability: &Durability) {
        if !durability.is_synced() && self.files.len() < UNSYNCED_FILES {
            self.files.insert(id);
        }
    }

    /// The file has a mapping again.
    pub(crate) fn pass_on(&mut self, id: FileId, durability: &mut Durability) {
        if self.files.remove(&id) {
            durability.changed();
        }
    }

    /// The file is gone, or is being synced. Returns whether it was kept.
    pub(crate) fn forget(&mut self, id: FileId) -> bool {
        self.files.remove(&id)
    }

    /// A sync of the file has failed.
    pub(crate) fn put_back(&mut self, id: FileId) {
        self.files.insert(id);
    }

    /// Takes out all files.
    pub(crate) fn take(&mut self) -> HashSet<FileId> {
        std::mem::take(&mut self.files)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_sync_covers_writes_that_completed_before_it_began() {
        let mut durability = Durability::default();
        assert!(durability.is_synced());
        durability.changed();
        let (first, second) = (durability.begin(), durability.begin());
        durability.changed();
        durability.synced(first);
        assert!(!durability.is_synced(), "the second change ended during the sync");
        let third = durability.begin();
        durability.synced(third);
        durability.synced(second);
        assert!(durability.is_synced(), "a sync that ends late takes nothing back");
    }

    #[test]
    fn a_file_without_a_mapping_is_unsynced_until_it_is_synced() {
        let id = |ino| FileId { ino, generation: 1 };
        let (mut unsynced, mut changed) = (Unsynced::default(), Durability::default());
        unsynced.keep(id(1), &changed);
        assert!(!unsynced.forget(id(1)), "nothing to sync");
        changed.changed();
        unsynced.keep(id(1), &changed);
        let mut again = Durability::default();
        unsynced.pass_on(id(2), &mut again);
        assert!(again.is_synced(), "another file");
        unsynced.pass_on(id(1), &mut again);
        assert!(!again.is_synced() && !unsynced.forget(id(1)), "its new mapping knows");
        unsynced.keep(id(1), &changed);
        assert!(unsynced.forget(id(1)), "a sync begins");
        unsynced.put_back(id(1));
        assert_eq!(unsynced.take(), HashSet::from([id(1)]), "it has failed");
        assert!(unsynced.take().is_empty());
    }
}
