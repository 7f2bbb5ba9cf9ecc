//! A file in the cache: its size, its pages, and the operations in progress on them.
//!
//! 1. `state` is held for short steps only: never across I/O, a wait, or a copy of more than the
//!    edges of a write. Slots, size and high-water marks change only under it.
//! 2. `sequence` is odd while slots or size change in a way that a reader must not see half of. A
//!    reader that collects its slots and the size between two equal even values has a snapshot
//!    (I5). The bytes need no such check: the bytes of a published frame below the end of file do
//!    not change, and the reader's epoch keeps the frame.
//! 3. Bytes of a published frame at or past its high-water mark are zero, and so are those of the
//!    last page past the end of file.
//! 4. A fill publishes into a slot only if the slot still has the fill's number. Every change of a
//!    page, or its removal, replaces that number, so a late fill cannot bring back old bytes.
//! 5. While `invalidating` is set (truncate, hole punch, ...) no fill, writeback or write begins;
//!    it is set only with no writeback in flight.
//! 6. Zeros shown past the store's end of file were never written (`mapping/early_eof.rs`).
//! 7. The store never has two writes of the same page in flight.

pub(crate) mod attribute_overlay;
pub(crate) mod closed_file;
pub(crate) mod dirty;
pub(crate) mod early_eof;
pub(crate) mod fill;
pub(crate) mod index;
pub(crate) mod invalidate_lock;
pub(crate) mod owner;
pub(crate) mod prune;
pub(crate) mod revalidate;
pub(crate) mod sync;
pub(crate) mod truncate;
pub(crate) mod writeback;

use crate::cache_policy::CachePolicy;
use crate::mapping::attribute_overlay::AttributeOverlay;
use crate::mapping::fill::Fill;
use crate::mapping::index::{Found, Garbage, Index, LEAF_SLOTS, Leaf, Slot};
use crate::memory::Memory;
use crate::memory::arena::flag;
use crate::memory::epoch::Guard;
use crate::memory::frame_no::FrameNo;
use crate::memory::owner::FrameOwner;
use crate::ranges::RangeSet;
use crate::stats::{Count, FileCounters};
use crate::wait::WaitQueue;
use crate::writeback::durability::Durability;
use crate::writeback::errseq::WriteErrors;
use crate::writeback::failing::Failing;
use crate::writeback::flusher::Listed;
use crate::writeback::syncs::Syncs;
use crate::writeback::throttle::{FileDirty, StoreWriteback};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Instant;
use weir_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use weir_base::sync::{Mutex, MutexGuard, RwLock};
use weir_base::{PAGE_SIZE, pages_spanning};
use weir_vfs::{Access, Caller, Capabilities, Error, FileId, FileSystem, OpenFile, Result};

/// Largest size of a file, in bytes: the kernel's limit.
pub(crate) const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// Represents a hole in a [`FrameList`].
pub(crate) const HOLE: FrameNo = FrameNo::NONE;

/// Frames of consecutive pages, with [`HOLE`] for holes.
pub(crate) type FrameList = SmallVec<[FrameNo; 264]>;

/// A file in the cache.
pub(crate) struct Mapping {
    pub(crate) memory: Arc<Memory>,
    pub(crate) store: Arc<dyn FileSystem>,
    pub(crate) id: FileId,
    number: AtomicU32,
    /// Whether the store lets cached reads take the fast path.
    pub(crate) fast: bool,
    /// The file is marked as uncached.
    pub(crate) uncached: AtomicBool,
    pub(crate) sequence: AtomicU64,
    pub(crate) size: AtomicU64,
    pub(crate) index: Index,
    pub(crate) file: RwLock<Arc<dyn OpenFile>>,
    pub(crate) state: Mutex<State>,
    /// A fill or writeback ended, or `invalidating` was cleared.
    pub(crate) changed: WaitQueue,
    /// A sync of the file ended.
    pub(crate) synced: WaitQueue,
    /// Open [`File`](crate::File)s, and how many of them may write.
    pub(crate) opens: AtomicUsize,
    pub(crate) writers: AtomicUsize,
    /// Its last name is gone.
    pub(crate) unlinked: AtomicBool,
    /// The count of its dirty pages, and that of its store.
    pub(crate) dirty: FileDirty,
    pub(crate) counters: FileCounters,
    /// Uncached reads may have left unused pages behind.
    pub(crate) marks_left: AtomicBool,
}

impl Mapping {
    /// Largest possible size of the file, in bytes.
    pub(crate) fn max_size(&self) -> u64 {
        self.store.max_file_size().min(MAX_FILE_BYTES)
    }
}

/// State under the mapping's lock.
pub(crate) struct State {
    pub(crate) next_fill: u64,
    pub(crate) fills: Vec<Arc<Fill>>,
    /// Dirty pages whose current bytes are not yet in a write to the store.
    pub(crate) dirty: RangeSet,
    /// When the file last turned from clean to dirty.
    pub(crate) dirty_since: Option<Instant>,
    /// An uncached write or a sync wants dirty pages written now.
    pub(crate) urgent: bool,
    /// The page in the middle of which the last uncached write ended. The next one probably
    /// continues there, so uncached writes alone do not cause its writeback.
    pub(crate) half_written: Option<u64>,
    /// Its place in the flusher's list.
    pub(crate) listed: Option<Listed>,
    pub(crate) next_write: u64,
    /// Writes in flight: their pages by number.
    pub(crate) writeback: BTreeMap<u64, Range<u64>>,
    /// Pages whose last write failed and is retried.
    pub(crate) failing: Failing,
    /// No retry before this time.
    pub(crate) retry_at: Option<Instant>,
    pub(crate) failures: u32,
    pub(crate) errors: WriteErrors,
    /// A lower bound of the length of the store's file, in bytes. If the store reports an earlier
    /// end, another program has truncated the file.
    pub(crate) stored_size: u64,
    /// A change of the whole file holds the invalidate lock, or waits for writeback to end.
    pub(crate) invalidating: bool,
    pub(crate) overlay: AttributeOverlay,
    /// A task that settles the times is queued and has not started.
    pub(crate) settle_queued: bool,
    pub(crate) durability: Durability,
    pub(crate) syncs: Syncs,
}

impl State {
    /// Whether nothing is dirty or under writeback.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.writeback.is_empty()
    }

    /// A write in flight that overlaps `pages`.
    pub(crate) fn writeback_of(&self, pages: &Range<u64>) -> Option<Range<u64>> {
        self.writeback
            .values()
            .filter(|r| r.start < pages.end && pages.start < r.end)
            .min_by_key(|r| r.start)
            .cloned()
    }
}

/// Why a walk over slots stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It reached the end of the request or of the file.
    Complete,
    /// At a page that is not present.
    Missing,
    /// At a page that this fill will publish.
    InFlight(u64),
    /// At a page with one of the flags to stop at.
    Marked,
}

/// Slots of consecutive pages at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot {
    pub(crate) sequence: u64,
    pub(crate) size: u64,
    /// Bytes from the request's offset on that the pages cover, clipped at the end of file.
    pub(crate) len: usize,
    pub(crate) stop: Stop,
}

/// A page with a frame, at one moment.
pub(crate) struct PageNow<'g> {
    pub(crate) frame: FrameNo,
    pub(crate) flags: u16,
    leaf: &'g Leaf,
    index: usize,
}

impl PageNow<'_> {
    /// The next page's frame, if it is in the same leaf.
    #[inline]
    pub(crate) fn next(&self) -> Option<FrameNo> {
        match self.leaf.slot(self.index + 1) {
            Slot::Frame(frame) if self.index + 1 < LEAF_SLOTS => Some(frame),
            _ => None,
        }
    }
}

impl Mapping {
    /// Opens a file of `store` as the program itself.
    ///
    /// # Errors
    /// Those of the store; [`Error::IsDirectory`] and [`Error::Invalid`] for other kinds of files.
    pub(crate) async fn open(
        memory: &Arc<Memory>,
        store: &Arc<dyn FileSystem>,
        dirty: &Arc<StoreWriteback>,
        id: FileId,
        access: Access,
        change_lead: u64,
    ) -> Result<Arc<Self>> {
        let file = store.open(&Caller::Own, id, access | Access::READ).await?;
        Self::of_open(memory, store, dirty, id, file, change_lead).await
    }

    /// The mapping of a file that the store has open, at least for reading.
    pub(crate) async fn of_open(
        memory: &Arc<Memory>,
        store: &Arc<dyn FileSystem>,
        dirty: &Arc<StoreWriteback>,
        id: FileId,
        file: Arc<dyn OpenFile>,
        change_lead: u64,
    ) -> Result<Arc<Self>> {
        // Read first: later changes by others advance the count.
        let others = file.changes_by_others();
        let attr = file.getattr().await?;
        match attr.kind {
            weir_vfs::FileKind::Regular => {}
            weir_vfs::FileKind::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid),
        }
        let mapping = Arc::new(Self {
            memory: memory.clone(),
            store: store.clone(),
            id,
            number: AtomicU32::new(0),
            fast: store.capabilities().contains(Capabilities::FAST_READ),
            uncached: AtomicBool::new(file.is_marked_uncached()),
            sequence: AtomicU64::new(0),
            size: AtomicU64::new(attr.size),
            index: Index::default(),
            file: RwLock::new(file),
            state: Mutex::new(State {
                next_fill: 1,
                fills: Vec::new(),
                dirty: RangeSet::default(),
                dirty_since: None,
                urgent: false,
                half_written: None,
                listed: None,
                next_write: 1,
                writeback: BTreeMap::new(),
                failing: Failing::default(),
                retry_at: None,
                failures: 0,
                errors: WriteErrors::default(),
                stored_size: attr.size,
                invalidating: false,
                overlay: AttributeOverlay::new(&attr, change_lead, others),
                settle_queued: false,
                durability: Durability::default(),
                syncs: Syncs::default(),
            }),
            changed: WaitQueue::default(),
            synced: WaitQueue::default(),
            opens: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            unlinked: AtomicBool::new(attr.nlink == 0),
            dirty: FileDirty::new(dirty.clone()),
            counters: FileCounters::default(),
            marks_left: AtomicBool::new(false),
        });
        let number = memory.owners.register(Arc::downgrade(&mapping) as Weak<dyn FrameOwner>);
        mapping.number.store(number, Ordering::Relaxed);
        memory.metadata.files.fetch_add(OWN_BYTES, Ordering::Relaxed);
        Ok(mapping)
    }

    /// The store's open file. It is open while a program has the file open or pages are dirty.
    pub(crate) fn file(&self) -> Arc<dyn OpenFile> {
        self.file.read().clone()
    }

    /// Size in bytes.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// The current sequence number, odd or even.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Identity of a page for reclaim's ghosts.
    pub(crate) fn key(&self, page: u64) -> u64 {
        let mixed = self.id.ino ^ self.id.generation.rotate_left(32) ^ page.rotate_left(20);
        (mixed ^ mixed >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Adds to the counter of the cache and of the file.
    pub(crate) fn count(&self, count: Count, n: u64) {
        if n > 0 {
            self.memory.stats.add(count, n);
            self.counters.add(count, n);
        }
    }

    /// Collects the slots of the resident prefix of a range, without a lock. `None` if a write
    /// intervened.
    #[inline]
    pub(crate) fn snapshot(
        &self,
        guard: &Guard,
        offset: u64,
        len: usize,
        stop_at: u16,
        frames: &mut FrameList,
    ) -> Option<Snapshot> {
        for _ in 0..4 {
            let sequence = self.sequence.load(Ordering::Acquire);
            if sequence & 1 == 1 {
                std::hint::spin_loop();
                continue;
            }
            // The size is read within the read section, so it matches the slots.
            let size = self.size.load(Ordering::Relaxed);
            frames.clear();
            let (len, stop) = self.walk(guard, offset, len, size, stop_at, frames);
            fence(Ordering::Acquire);
            if self.sequence.load(Ordering::Relaxed) == sequence {
                return Some(Snapshot { sequence, size, len, stop });
            }
        }
        None
    }

    /// The page with the `len` bytes at `offset`, which lie within one page, if it is resident, all
    /// of them are below the end of file, and it has none of the flags `stop_at`. Also a snapshot
    /// without a lock.
    #[inline]
    pub(crate) fn page_now<'g>(
        &self,
        guard: &'g Guard,
        offset: u64,
        len: usize,
        stop_at: u16,
    ) -> Option<PageNow<'g>> {
        let sequence = self.sequence.load(Ordering::Acquire);
        // The size is read within the read section, so it matches the slot.
        let size = self.size.load(Ordering::Relaxed);
        let page = offset / PAGE_SIZE as u64;
        let Found::Leaf(leaf) = self.index.lookup(page, guard) else { return None };
        let index = page as usize & (LEAF_SLOTS - 1);
        let Slot::Frame(frame) = leaf.slot(index) else { return None };
        let flags = self.memory.arena.flags(frame);
        fence(Ordering::Acquire);
        let steady = sequence & 1 == 0 && self.sequence.load(Ordering::Relaxed) == sequence;
        let whole = size >= len as u64 && offset <= size - len as u64;
        (steady && whole && flags & stop_at == 0).then_some(PageNow { frame, flags, leaf, index })
    }

    /// [`snapshot`](Self::snapshot) with the lock held.
    pub(crate) fn snapshot_locked(
        &self,
        _state: &mut MutexGuard<'_, State>,
        guard: &Guard,
        offset: u64,
        len: usize,
        stop_at: u16,
        frames: &mut FrameList,
    ) -> Snapshot {
        let size = self.size();
        frames.clear();
        let (len, stop) = self.walk(guard, offset, len, size, stop_at, frames);
        Snapshot { sequence: self.sequence(), size, len, stop }
    }

    #[inline]
    fn walk(
        &self,
        guard: &Guard,
        offset: u64,
        len: usize,
        size: u64,
        stop_at: u16,
        frames: &mut FrameList,
    ) -> (usize, Stop) {
        if offset >= size {
            return (0, Stop::Complete);
        }
        let len = (len as u64).min(size - offset);
        let pages = pages_spanning(offset, len);
        let mut page = pages.start;
        let mut stop = Stop::Complete;
        'walk: while page < pages.end {
            match self.index.lookup(page, guard) {
                Found::Empty(_) => {
                    stop = Stop::Missing;
                    break;
                }
                Found::Hole(until) => {
                    let until = until.min(pages.end);
                    frames.resize(frames.len() + (until - page) as usize, HOLE);
                    page = until;
                }
                Found::Leaf(leaf) => {
                    let leaf_end = leaf.end(page).min(pages.end);
                    while page < leaf_end {
                        match leaf.slot(page as usize & (LEAF_SLOTS - 1)) {
                            Slot::Frame(frame) => {
                                if stop_at != 0 && self.memory.arena.flags(frame) & stop_at != 0 {
                                    stop = Stop::Marked;
                                    break 'walk;
                                }
                                frames.push(frame);
                            }
                            Slot::Hole => frames.push(HOLE),
                            Slot::Empty => {
                                stop = Stop::Missing;
                                break 'walk;
                            }
                            Slot::InFlight(fill) => {
                                stop = Stop::InFlight(fill);
                                break 'walk;
                            }
                        }
                        page += 1;
                    }
                }
            }
        }
        if page == pages.end {
            return (len as usize, stop);
        }
        // Up to the page at which the walk stopped; 0 if that is the first.
        ((page * PAGE_SIZE as u64).saturating_sub(offset).min(len) as usize, stop)
    }

    /// Starts look-ups and changes of slots. `_locked` proves that the caller holds the lock: a
    /// state is only reachable through its guard.
    pub(crate) fn edit(&self, _locked: &State) -> Edit<'_> {
        Edit {
            mapping: self,
            guard: self.memory.epoch.enter(),
            bytes: self.index.bytes(),
            frames: Vec::new(),
            garbage: Vec::new(),
            entered: SmallVec::new(),
        }
    }

    /// Raises the high-water mark of the page at the end of file when the end moves from `old` to
    /// `new`: the zeros there become visible. The lock is held.
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

    /// Marks pages as dirty. The lock is held.
    pub(crate) fn mark_dirty(&self, state: &mut State, pages: Range<u64>) {
        if state.is_clean() {
            state.dirty_since = Some(self.memory.now());
        }
        let new = state.dirty.insert(pages);
        self.dirty.add(new);
    }

    /// Marks pages that are being removed as no longer dirty. The lock is held.
    pub(crate) fn forget_dirty(&self, state: &mut State, pages: Range<u64>) {
        let gone = state.dirty.remove(pages.clone());
        state.no_longer_failing(pages);
        self.dirty.sub(gone);
        if gone > 0 {
            self.note_progress(state);
            self.lane().kick();
            self.writeback().cleaned.notify();
        }
    }

    /// Drops the clean pages of a range.
    pub(crate) fn drop_clean(&self, pages: Range<u64>) {
        let mut state = self.state.lock();
        let mut edit = self.edit(&state);
        self.evict_clean(&mut edit, pages);
        edit.finish(&mut state);
        drop(state);
        self.memory.collect_some();
    }

    /// [`drop_clean`](Self::drop_clean) as part of a change. The lock is held.
    pub(crate) fn evict_clean(&self, edit: &mut Edit<'_>, pages: Range<u64>) {
        let mut clean = Vec::new();
        edit.visit(&mut |page, frame| {
            let busy = self.memory.arena.meta(frame).has(flag::DIRTY | flag::WRITEBACK);
            if pages.contains(&page) && !busy {
                clean.push(page);
            }
        });
        for page in clean {
            edit.evict(page);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // No reader is left, so frames need no epoch; pins keep theirs.
        let mut frames = Vec::new();
        let guard = self.memory.epoch.enter();
        self.index.visit(0..u64::MAX >> 1, &guard, &mut |_, slot| {
            if let Slot::Frame(frame) = slot {
                frames.push(frame);
            }
        });
        drop(guard);
        let memory = &self.memory;
        {
            let mut queues = memory.queues.lock();
            for &frame in &frames {
                queues.remove(&memory.arena, frame);
            }
        }
        let state = self.state.lock();
        // Dirty pages remain only if the file itself is gone.
        self.dirty.sub(state.dirty.len());
        drop(state);
        memory.unpin(frames.into_iter());
        memory.owners.unregister(self.number.load(Ordering::Relaxed));
        memory.metadata.files.fetch_sub(OWN_BYTES, Ordering::Relaxed);
        memory.metadata.nodes.fetch_sub(self.index.bytes(), Ordering::Relaxed);
    }
}

/// A change of slots. [Finish](Edit::finish) it before the lock is released.
pub(crate) struct Edit<'a> {
    mapping: &'a Mapping,
    guard: Guard,
    /// The index's memory before the change.
    bytes: usize,
    /// Frames taken out of slots; they stay in reclaim's queues until the change is finished.
    frames: Vec<FrameNo>,
    garbage: Vec<Garbage>,
    entered: SmallVec<[(FrameNo, u64); 8]>,
}

impl Edit<'_> {
    /// The location of a page's slot.
    pub(crate) fn lookup(&self, page: u64) -> Found<'_> {
        self.mapping.index.lookup(page, &self.guard)
    }

    /// The slot of a page.
    pub(crate) fn slot(&self, page: u64) -> Slot {
        self.mapping.index.get(page, &self.guard)
    }

    /// Calls `visit` with every page that has a frame, and its frame.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(u64, FrameNo)) {
        self.mapping.index.visit(0..u64::MAX >> 1, &self.guard, &mut |page, slot| {
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
        match self.mapping.index.set(page, Slot::Frame(frame), &mut self.garbage) {
            Slot::Frame(old) => {
                memory.queues.lock().replace(&memory.arena, old, frame, &memory.clock);
                self.frames.push(old);
            }
            _ => self.entered.push((frame, page)),
        }
    }

    /// Stores something other than a frame at a page.
    pub(crate) fn set(&mut self, page: u64, slot: Slot) {
        if let Slot::Frame(old) = self.mapping.index.set(page, slot, &mut self.garbage) {
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
            &mut self.garbage,
        );
    }

    /// Reports new and removed pages to reclaim, and retires what was unlinked.
    pub(crate) fn finish(self, _state: &mut State) {
        let memory = &self.mapping.memory;
        // The difference wraps if the index has shrunk, and so does the sum.
        let grown = self.mapping.index.bytes().wrapping_sub(self.bytes);
        memory.metadata.nodes.fetch_add(grown, Ordering::Relaxed);
        if !self.entered.is_empty() || !self.frames.is_empty() {
            let mut queues = memory.queues.lock();
            for &(frame, page) in &self.entered {
                queues.insert(&memory.arena, frame, self.mapping.key(page), &memory.clock);
            }
            for &frame in &self.frames {
                queues.remove(&memory.arena, frame);
            }
        }
        if !self.frames.is_empty() || !self.garbage.is_empty() {
            let nodes = (!self.garbage.is_empty()).then(|| Box::new(self.garbage) as Box<dyn Send>);
            memory.retire(self.frames, nodes);
        }
    }
}

/// Memory of a mapping without its index: the struct, and its entries in the tables of files (a
/// half-full hash table, two ordered ones, the registry).
const OWN_BYTES: usize = size_of::<Mapping>() + 192;

/// Flags that make a read leave the fast path.
#[inline]
pub(crate) const fn stops_of(policy: CachePolicy) -> u16 {
    if policy.is_uncached() { flag::READAHEAD | flag::UNCACHED } else { flag::READAHEAD }
}
