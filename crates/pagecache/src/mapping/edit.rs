//! Changes of a mapping's slots.
//!
//! 1. An [`Edit`] borrows the state through the guard of the mapping's lock, so it cannot outlive
//!    the lock.
//! 2. Frames and nodes that a change takes out are retired when it is finished: readers may still
//!    use them. If a panic ends it, the nodes are retired, and the frames are never free again.

use super::{Mapping, State};
use crate::mapping::index::{self, Found, Garbage, Slot};
use crate::memory::Memory;
use crate::memory::arena::flag;
use crate::memory::epoch::Guard;
use crate::memory::frame_no::FrameNo;
use smallvec::SmallVec;
use std::ops::Range;
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::Ordering;

/// No file has more pages.
const PAGES: u64 = u64::MAX >> 1;
/// Most frames that are taken out of reclaim's queues under one hold of their lock.
const QUEUE_BATCH: usize = 512;

/// A change of slots. [Finish](Edit::finish) it before the lock is released.
pub(crate) struct Edit<'a> {
    mapping: &'a Mapping,
    /// Proves that the lock is held: a state is only reachable through its guard.
    pub(crate) state: &'a mut State,
    guard: Guard,
    /// The index's memory before the change.
    bytes: usize,
    /// Frames taken out of slots; they stay in reclaim's queues until the change is finished.
    frames: Vec<FrameNo>,
    unlinked: Unlinked<'a>,
    entered: SmallVec<[(FrameNo, u64); 8]>,
}

/// Nodes that a change has taken out of the index.
struct Unlinked<'a> {
    memory: &'a Memory,
    nodes: Vec<Garbage>,
}

impl Unlinked<'_> {
    fn take(&mut self) -> Option<Box<dyn Send>> {
        let nodes = std::mem::take(&mut self.nodes);
        (!nodes.is_empty()).then(|| Box::new(nodes) as Box<dyn Send>)
    }
}

impl Drop for Unlinked<'_> {
    fn drop(&mut self) {
        // None are left, unless a panic ended the change.
        if let Some(nodes) = self.take() {
            self.memory.retire(Vec::new(), Some(nodes));
        }
    }
}

impl<'a> Edit<'a> {
    /// The location of a page's slot.
    pub(crate) fn lookup(&self, page: u64) -> Found<'_> {
        self.mapping.index.lookup(page, &self.guard)
    }

    /// The slot of a page.
    pub(crate) fn slot(&self, page: u64) -> Slot {
        self.mapping.index.get(page, &self.guard)
    }

    /// Calls `visit` with every page of a range that has a frame, and its frame.
    pub(crate) fn visit(&self, pages: Range<u64>, visit: &mut dyn FnMut(u64, FrameNo)) {
        let pages = pages.start..pages.end.min(PAGES);
        self.mapping.index.visit(pages, &self.guard, &mut |page, slot| {
            if let Slot::Frame(frame) = slot {
                visit(page, frame);
            }
        });
    }

    /// The frame of a page, if it has one.
    pub(crate) fn frame_at(&self, page: u64) -> Option<FrameNo> {
        match self.slot(page) {
            Slot::Frame(frame) => Some(frame),
            _ => None,
        }
    }

    /// Stores a frame at a page. If it replaces another, it takes over that one's place in
    /// reclaim's queue.
    pub(crate) fn put(&mut self, page: u64, frame: FrameNo) {
        let memory = &self.mapping.memory;
        let meta = memory.arena.meta(frame);
        meta.mapping.store(self.mapping.number.load(Ordering::Relaxed), Ordering::Relaxed);
        meta.page.store(page, Ordering::Relaxed);
        match self.mapping.index.set(page, Slot::Frame(frame), &mut self.unlinked.nodes) {
            Slot::Frame(old) => {
                memory.queues.lock().replace(&memory.arena, old, frame, &memory.clock);
                self.frames.push(old);
            }
            _ => self.entered.push((frame, page)),
        }
    }

    /// Stores something other than a frame at a page.
    pub(crate) fn set(&mut self, page: u64, slot: Slot) {
        if let Slot::Frame(old) = self.mapping.index.set(page, slot, &mut self.unlinked.nodes) {
            self.frames.push(old);
        }
    }

    /// Empties the slot of a page.
    pub(crate) fn evict(&mut self, page: u64) {
        self.set(page, Slot::Empty);
    }

    /// Replaces a whole range.
    pub(crate) fn replace(&mut self, pages: Range<u64>, with: index::Replacement) {
        let frames = &mut self.frames;
        self.mapping.index.replace(
            pages,
            with,
            &mut |_, slot| {
                if let Slot::Frame(frame) = slot {
                    frames.push(frame);
                }
            },
            &mut self.unlinked.nodes,
        );
    }

    /// Reports new and removed pages to reclaim, and retires what was unlinked.
    pub(crate) fn finish(mut self) -> &'a mut State {
        let memory = &self.mapping.memory;
        // The difference wraps if the index has shrunk, and so does the sum.
        let grown = self.mapping.index.bytes().wrapping_sub(self.bytes);
        memory.metadata.nodes.fetch_add(grown, Ordering::Relaxed);
        if !self.entered.is_empty() {
            let mut queues = memory.queues.lock();
            for &(frame, page) in &self.entered {
                queues.insert(&memory.arena, frame, self.mapping.key(page), &memory.clock);
            }
        }
        // All files of the cache share this lock, and a change may take out a whole file.
        for frames in self.frames.chunks(QUEUE_BATCH) {
            let mut queues = memory.queues.lock();
            for &frame in frames {
                queues.remove(&memory.arena, frame);
            }
        }
        let nodes = self.unlinked.take();
        if !self.frames.is_empty() || nodes.is_some() {
            memory.retire(self.frames, nodes);
        }
        self.state
    }
}

impl Mapping {
    /// Starts look-ups and changes of slots.
    pub(crate) fn edit<'a>(&'a self, state: &'a mut State) -> Edit<'a> {
        Edit {
            mapping: self,
            state,
            guard: self.memory.epoch.enter(),
            bytes: self.index.bytes(),
            frames: Vec::new(),
            unlinked: Unlinked { memory: &self.memory, nodes: Vec::new() },
            entered: SmallVec::new(),
        }
    }

    /// Raises the high-water mark of the page at the end of file when the end moves from `old` to
    /// `new`: the zeros there become visible.
    pub(crate) fn raise_mark(&self, edit: &Edit<'_>, old: u64, new: u64) {
        if new <= old || old.is_multiple_of(PAGE_SIZE as u64) {
            return;
        }
        let page = old / PAGE_SIZE as u64;
        if let Some(frame) = edit.frame_at(page) {
            let meta = self.memory.arena.meta(frame);
            let visible = (new - page * PAGE_SIZE as u64).min(PAGE_SIZE as u64) as usize;
            meta.set_mark(visible.max(meta.mark()));
        }
    }

    /// Drops the clean pages of a range.
    pub(crate) fn drop_clean(&self, pages: Range<u64>) {
        let mut state = self.state.lock();
        let mut edit = self.edit(&mut state);
        self.evict_clean(&mut edit, pages);
        edit.finish();
        drop(state);
        self.memory.collect_some();
    }

    /// [`drop_clean`](Self::drop_clean) as part of a change.
    pub(crate) fn evict_clean(&self, edit: &mut Edit<'_>, pages: Range<u64>) {
        let mut clean = Vec::new();
        edit.visit(pages, &mut |page, frame| {
            if !self.memory.arena.meta(frame).has(flag::DIRTY | flag::WRITEBACK) {
                clean.push(page);
            }
        });
        for page in clean {
            edit.evict(page);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::{Found, Slot};
    use crate::testing::Rig;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use weir_vfs::{Advice, IoFlags};

    #[test]
    fn a_visit_sees_the_pages_of_its_range_only() {
        let rig = Rig::new();
        let file = rig.create("f");
        file.write_at(&[1; 9 * 4096], 0, IoFlags::empty()).unwrap();
        let mapping = &file.open.mapping;
        for (pages, expected) in [(2..4, vec![2, 3]), (7..u64::MAX, vec![7, 8]), (9..20, vec![])] {
            let mut seen = Vec::new();
            mapping.edit(&mut mapping.state.lock()).visit(pages, &mut |page, _| seen.push(page));
            assert_eq!(seen, expected);
        }
        file.sync(true).unwrap();
        file.advise(2 * 4096, 2 * 4096, Advice::DontNeed).unwrap();
        assert_eq!(file.resident(), [0..2 * 4096, 4 * 4096..9 * 4096]);
    }

    #[test]
    fn a_panic_in_a_change_frees_no_node_that_a_reader_may_use() {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
        file.sync(true).unwrap();
        let mapping = &file.open.mapping;
        let guard = mapping.memory.epoch.enter();
        let Found::Leaf(leaf) = mapping.index.lookup(0, &guard) else { panic!("it has a page") };
        let changed = catch_unwind(AssertUnwindSafe(|| {
            let mut state = mapping.state.lock();
            let mut edit = mapping.edit(&mut state);
            edit.evict(0);
            assert!(edit.unlinked.nodes.is_empty(), "the leaf is unlinked");
        }));
        assert!(changed.is_err());
        // Miri would report the use of a node that was freed.
        assert_eq!(leaf.slot(0), Slot::Empty);
    }

    #[test]
    fn a_change_of_many_pages_leaves_none_in_the_queues() {
        const PAGES: usize = 3 * super::QUEUE_BATCH + 5;
        let rig = Rig::without_threads();
        let file = rig.create("f");
        file.write_at(&vec![1; PAGES * 4096], 0, IoFlags::empty()).unwrap();
        let memory = &file.open.mapping.memory;
        assert_eq!(memory.queues.lock().len(), PAGES);
        file.sync(true).unwrap();
        let used = rig.fs.cache().used_bytes();
        file.truncate(0).unwrap();
        assert_eq!(memory.queues.lock().len(), 0);
        memory.collect();
        assert_eq!(used - rig.fs.cache().used_bytes(), (PAGES * 4096) as u64);
    }
}
