//! What the cache holds of files, for people who look.

use super::CachedFs;
use crate::mapping::Mapping;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::Ordering;
use weir_vfs::FileId;

/// What the cache holds of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Residency {
    /// The file.
    pub id: FileId,
    /// Its size in bytes, as callers see it.
    pub size: u64,
    /// Bytes of its pages in memory, whole pages; holes have none.
    pub resident_bytes: u64,
    /// Bytes of its dirty pages, whole pages.
    pub dirty_bytes: u64,
}

impl Residency {
    fn of(mapping: &Mapping) -> Self {
        let mut pages = 0;
        mapping.edit(&mut mapping.state.lock()).visit(0..u64::MAX, &mut |_, _| pages += 1);
        Self {
            id: mapping.id,
            size: mapping.size.load(Ordering::Relaxed),
            resident_bytes: pages * PAGE_SIZE as u64,
            dirty_bytes: mapping.dirty.pages() * PAGE_SIZE as u64,
        }
    }
}

impl CachedFs {
    /// What the cache holds of a file; `None` if it knows nothing of the file. Opens nothing, and does
    /// not count as a use of the file.
    pub fn residency(&self, id: FileId) -> Option<Residency> {
        self.shared.live(id).map(|mapping| Residency::of(&mapping))
    }

    /// The files with the most bytes in memory, at most `most` of them, the largest first. Takes time
    /// in proportion to the pages in memory.
    pub fn most_resident(&self, most: usize) -> Vec<Residency> {
        let mappings: Vec<Arc<Mapping>> = {
            let table = self.shared.table.lock();
            table.mappings.values().map(|entry| entry.mapping.clone()).collect()
        };
        // The smallest of those kept so far is on top.
        let mut kept = BinaryHeap::new();
        for file in mappings.iter().map(|mapping| Residency::of(mapping)) {
            if file.resident_bytes > 0 {
                kept.push((Reverse(file.resident_bytes), file.id, file));
                if kept.len() > most {
                    kept.pop();
                }
            }
        }
        kept.into_sorted_vec().into_iter().map(|(_, _, file)| file).collect()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::testing::Rig;
    use weir_base::PAGE_SIZE;
    use weir_vfs::{Advice, IoFlags};

    const PAGE: u64 = PAGE_SIZE as u64;

    #[test]
    fn residency_counts_pages_in_memory_and_dirty_ones() {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        assert_eq!(rig.fs.residency(file.id()).map(|found| found.resident_bytes), Some(0));
        file.write_at(&[1; 3 * PAGE_SIZE], 0, IoFlags::empty()).unwrap();
        let found = rig.fs.residency(file.id()).unwrap();
        assert_eq!((found.size, found.resident_bytes), (3 * PAGE, 3 * PAGE));
        assert_eq!(found.dirty_bytes, 3 * PAGE);
        file.sync(true).unwrap();
        file.advise(0, PAGE, Advice::DontNeed).unwrap();
        let found = rig.fs.residency(file.id()).unwrap();
        assert_eq!((found.resident_bytes, found.dirty_bytes), (2 * PAGE, 0));
        let id = file.id();
        let unknown = weir_vfs::FileId { ino: id.ino + 1000, ..id };
        assert_eq!(rig.fs.residency(unknown), None);
    }

    #[test]
    fn files_with_the_most_pages_come_first() {
        let rig = Rig::new();
        for (name, pages) in [("a", 2), ("b", 0), ("c", 5), ("d", 1), ("e", 4)] {
            let file = rig.create(name);
            file.write_at(&vec![1; pages * PAGE_SIZE], 0, IoFlags::empty()).unwrap();
        }
        let pages = |most| -> Vec<u64> {
            rig.fs.most_resident(most).iter().map(|file| file.resident_bytes / PAGE).collect()
        };
        assert_eq!(pages(3), [5, 4, 2]);
        assert_eq!(pages(100), [5, 4, 2, 1]);
        assert_eq!(pages(0), [0; 0]);
    }
}
