//! A mapping as memory management sees it (see [`FrameOwner`]).

use crate::mapping::index::{self, Found};
use crate::mapping::{Mapping, closed_file};
use crate::memory::arena::flag;
use crate::memory::frame_no::FrameNo;
use crate::memory::owner::FrameOwner;
use std::ops::ControlFlow;
use std::sync::Arc;
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::Ordering;

impl FrameOwner for Mapping {
    fn evict(
        &self,
        pages: &mut dyn Iterator<Item = (u64, FrameNo)>,
        may_go: &mut dyn FnMut(usize, u64) -> bool,
    ) -> usize {
        let mut state = self.state.lock();
        let mut edit = self.edit(&mut state);
        let mut evicted = 0;
        for (index, (page, frame)) in pages.enumerate() {
            if edit.frame_at(page) == Some(frame) && may_go(index, self.key(page)) {
                edit.evict(page);
                evicted += 1;
            }
        }
        edit.finish();
        evicted
    }

    fn move_pages(&self, from: &[FrameNo]) {
        let arena = &self.memory.arena;
        let Some(mut to) = arena.take(from.len(), 1) else { return };
        let mut state = self.state.lock();
        let mut edit = self.edit(&mut state);
        for (index, &old) in from.iter().take(to.len()).enumerate() {
            let meta = arena.meta(old);
            let page = meta.page.load(Ordering::Relaxed);
            // A write that ends drops its pins before it takes the lock: until then, the flag alone
            // tells that the frame is its own, and a copy would count as clean if the write failed.
            let written = meta.has(flag::WRITEBACK);
            if edit.frame_at(page) != Some(old) || written || arena.is_pinned(old) {
                continue;
            }
            // SAFETY: the frame is in its slot while we hold the lock, and bytes past the mark are
            // written under that lock only.
            to.write(index, 0, unsafe { arena.bytes(old, 0, PAGE_SIZE) });
            let flags = meta.flags() & (flag::DIRTY | flag::UNCACHED | flag::READAHEAD);
            let new = to.publish(index, flags, meta.mark());
            edit.put(page, new);
        }
        edit.finish();
    }

    /// A fill finds a hole past the end of the store's file by that end alone.
    fn forget_holes(&self, mut page: u64, looks: &mut usize) -> ControlFlow<u64> {
        let mut state = self.state.lock();
        if state.invalidating {
            return ControlFlow::Continue(());
        }
        let mut edit = self.edit(&mut state);
        while *looks > 0 && page < u64::MAX {
            *looks -= 1;
            let (end, holes) = match edit.lookup(page) {
                Found::Empty(end) => (end, false),
                Found::Hole(end) => (end, true),
                Found::Leaf(leaf) => (leaf.end(page), leaf.holds_no_page()),
            };
            if holes {
                edit.replace(page..end, index::Replacement::Empty);
            }
            page = end;
        }
        edit.finish();
        if page < u64::MAX { ControlFlow::Break(page) } else { ControlFlow::Continue(()) }
    }

    /// Frees the pages at once; only closing the store's file, and possibly dropping the store, may
    /// block, and so is left to the store's tasks.
    fn release(self: Arc<Self>) {
        if let Some(mapping) = Arc::into_inner(self) {
            let tasks = mapping.lane().tasks.clone();
            let file = std::mem::replace(&mut *mapping.file.write(), closed_file::shared());
            let store = mapping.store.clone();
            drop(mapping);
            tasks.spawn(async move { drop((file, store)) });
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::testing::Rig;
    use std::thread::yield_now;
    use weir_vfs::IoFlags;

    #[test]
    fn a_page_whose_write_is_ending_is_not_moved() {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
        let mapping = &file.open.mapping;
        let frame = || mapping.edit(&mut mapping.state.lock()).frame_at(0).unwrap();
        let old = frame();
        let meta = mapping.memory.arena.meta(old);
        // As after the end of a write dropped its pins.
        meta.clear(flag::DIRTY);
        meta.set(flag::WRITEBACK);
        mapping.move_pages(&[old]);
        assert_eq!(frame(), old);
        meta.clear(flag::WRITEBACK);
        meta.set(flag::DIRTY);
        mapping.move_pages(&[old]);
        assert_ne!(frame(), old);
        file.sync(true).unwrap();
    }

    #[test]
    fn pages_of_a_removed_file_are_free_although_the_store_hangs() {
        let rig = Rig::new();
        let file = rig.create("f");
        file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
        file.sync(true).unwrap();
        let (mapping, cache) = (file.open.mapping.clone(), rig.fs.cache().clone());
        drop(file);
        rig.fs.shared.table.lock().mappings.clear();
        // The flusher keeps it in its list until its next look.
        while Arc::strong_count(&mapping) > 1 {
            mapping.lane().kick();
            yield_now();
        }
        assert_eq!(cache.used_bytes(), 4096);
        let go_on = rig.hang_tasks();
        FrameOwner::release(mapping);
        // A thread of the cache may keep the frame's epoch for a moment.
        while cache.used_bytes() > 0 {
            cache.memory().collect();
            yield_now();
        }
        drop(go_on);
    }
}
