//! Uncached operations: they use the cache, and leave it as it was.
//!
//! 1. Only pages that uncached operations brought in carry the mark, and only those are pruned; a
//!    cached access clears the mark (I1, I2, I4).
//! 2. A dirty page or one under writeback stays, with its mark, until it is clean (I3). A pinned
//!    one stays until reclaim finds it.
//! 3. The page in the middle of which an uncached read ended stays until the open file's next
//!    uncached read or its close: otherwise a stream of misaligned reads would read it again each
//!    time. This is one page per open file.
//! 4. Pruning never waits: if the file is busy, it is left to reclaim (which takes such pages
//!    first).
//! 5. Uncached operations use the reserve of free frames, and so evict no pages of other users: a
//!    long call runs in pieces that fit in the reserve, each pruned before the next. If the reserve
//!    is used up, an operation waits for other uncached ones, and evicts pages of other users only
//!    if none of these makes progress.

use crate::mapping::Mapping;
use crate::mapping::edit::Edit;
use crate::mapping::index::Slot;
use crate::memory::arena::flag;
use crate::ranges::RangeSet;
use crate::stats::Count;
use weir_base::sync::atomic::Ordering;

impl Mapping {
    /// Drops the given pages where an uncached operation brought them in.
    pub(crate) fn prune(&self, pages: &RangeSet) {
        let Some(mut state) = self.state.try_lock() else {
            self.count(Count::PruneSkips, 1);
            return;
        };
        let mut edit = self.edit(&mut state);
        let pruned =
            pages.iter().flatten().filter(|&page| self.prune_page(page, &mut edit)).count();
        edit.finish();
        drop(state);
        self.note_pruned(pruned);
        self.memory.collect();
    }

    /// Drops the page if it carries the mark and is not in use; returns whether it did, which the
    /// caller counts.
    pub(crate) fn prune_page(&self, page: u64, edit: &mut Edit<'_>) -> bool {
        let Slot::Frame(frame) = edit.slot(page) else { return false };
        let meta = self.memory.arena.meta(frame);
        // A cached reader claims the page by clearing the mark, without the lock: whichever thread
        // clears it decides.
        let done_with = meta.flags() & (flag::UNCACHED | flag::DIRTY | flag::WRITEBACK)
            == flag::UNCACHED
            && !self.memory.arena.is_pinned(frame)
            && meta.clear(flag::UNCACHED) != 0;
        if done_with {
            edit.evict(page);
        }
        done_with
    }

    /// Counts pages that were pruned.
    pub(crate) fn note_pruned(&self, pages: usize) {
        if pages > 0 {
            self.count(Count::PrunedPages, pages as u64);
        }
    }

    /// On the last close, drops the unused pages that read-ahead for uncached reads brought in.
    pub(crate) fn prune_left(&self) {
        if !self.marks_left.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        let mut marked = Vec::new();
        let mut edit = self.edit(&mut state);
        edit.visit(0..u64::MAX, &mut |page, frame| {
            if self.memory.arena.meta(frame).has(flag::UNCACHED) {
                marked.push(page);
            }
        });
        let pruned = marked.into_iter().filter(|&page| self.prune_page(page, &mut edit)).count();
        edit.finish();
        self.note_pruned(pruned);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::mapping::writeback::Ask;
    use crate::testing::Rig;
    use weir_stores::fault::{Call, What};
    use weir_vfs::IoFlags;

    #[test]
    fn only_a_clean_page_that_no_reader_has_is_pruned() {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        let mapping = &file.open.mapping;
        let mut page = RangeSet::default();
        page.insert(0..1);
        let stays = |why| {
            mapping.prune(&page);
            assert_eq!(file.resident(), [0..4096], "{why}");
        };
        rig.always(Call::Write, What::Hold);
        file.write_at(&[1; 4096], 0, IoFlags::UNCACHED).unwrap();
        stays("dirty");
        mapping.start_writeback(0..u64::MAX, Ask::Now, &mut RangeSet::default());
        assert_eq!(rig.store.held(), 1);
        stays("under writeback");
        rig.store.release();
        assert_eq!(file.resident(), [], "written");
        let lent = file.read_segments(0, 4096, IoFlags::UNCACHED).unwrap();
        stays("lent");
        drop(lent);
        mapping.prune(&page);
        assert_eq!(file.resident(), []);
    }
}
