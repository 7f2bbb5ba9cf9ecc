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

pub(crate) mod attribute_change;
pub(crate) mod attribute_overlay;
pub(crate) mod closed_file;
pub(crate) mod dirty;
pub(crate) mod early_eof;
pub(crate) mod edit;
pub(crate) mod fill;
pub(crate) mod index;
pub(crate) mod invalidate_lock;
pub(crate) mod owner;
pub(crate) mod prune;
pub(crate) mod revalidate;
pub(crate) mod seqcount;
pub(crate) mod snapshot;
pub(crate) mod sync;
pub(crate) mod truncate;
pub(crate) mod writeback;
mod writeback_wait;

use crate::cache_policy::CachePolicy;
use crate::mapping::attribute_overlay::AttributeOverlay;
use crate::mapping::fill::Fill;
use crate::mapping::index::{Index, Slot};
use crate::memory::Memory;
use crate::memory::arena::flag;
use crate::memory::frame_no::FrameNo;
use crate::memory::owner::FrameOwner;
use crate::ranges::RangeSet;
use crate::stats::{Count, FileCounters};
use crate::wait::WaitQueue;
use crate::writeback::durability::Durability;
use crate::writeback::errseq::WriteErrors;
use crate::writeback::failing::Failing;
use crate::writeback::flusher::Listed;
use crate::writeback::outage::Outage;
use crate::writeback::syncs::Syncs;
use crate::writeback::throttle::{FileDirty, StoreWriteback};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Instant;
use weir_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use weir_base::sync::{Mutex, RwLock};
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
    /// The store has opened it for who executes it, which grants no right to read it. Changes under the lock of `file`.
    only_to_execute: AtomicBool,
    pub(crate) state: Mutex<State>,
    /// A fill, writeback or sync ended, or writes are no longer excluded.
    pub(crate) changed: WaitQueue,
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
    /// The first page that the flusher has not looked at since the pages were old: it writes the ones from there
    /// on.
    pub(crate) sweep: Option<u64>,
    /// When all dirty pages but the half-written one are due, if that is before they are old.
    pub(crate) urgent_at: Option<Instant>,
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
    /// No write has succeeded since one failed.
    pub(crate) outage: Option<Outage>,
    /// No retry before this time.
    pub(crate) retry_at: Option<Instant>,
    pub(crate) failures: u32,
    pub(crate) errors: WriteErrors,
    /// A lower bound of the length of the store's file, in bytes. If the store reports an earlier
    /// end, another program has truncated the file.
    pub(crate) stored_size: u64,
    /// A change of the whole file holds the invalidate lock, or waits for writeback to end.
    pub(crate) invalidating: bool,
    /// How many operations exclude writes until all is written back.
    pub(crate) holds_of_writers: usize,
    pub(crate) overlay: AttributeOverlay,
    /// A task that settles the times is queued and has not started.
    pub(crate) settle_queued: bool,
    /// Tasks that settle the times, queued ones too.
    pub(crate) settling: usize,
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

/// What a store's file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Access(Access),
    /// Reading by who executes it, and need not have the right to read it.
    Execution,
}

impl Purpose {
    pub(crate) fn access(self) -> Access {
        match self {
            Self::Access(access) => access,
            Self::Execution => Access::READ,
        }
    }
}

/// Opens a store's file, at least for reading, as the program itself; if the store refuses that, as `caller`: servers
/// map the superuser to a user who may not open the files of others. All who open the file use what is opened, so
/// each is checked before.
///
/// # Errors
/// Those of the store.
pub(crate) async fn open_stored(
    store: &Arc<dyn FileSystem>,
    caller: &Caller,
    id: FileId,
    purpose: Purpose,
) -> Result<Arc<dyn OpenFile>> {
    match open_as(store, &Caller::Own, id, purpose).await {
        Err(Error::AccessDenied) if *caller != Caller::Own => {
            open_as(store, caller, id, purpose).await
        }
        opened => opened,
    }
}

async fn open_as(
    store: &Arc<dyn FileSystem>,
    caller: &Caller,
    id: FileId,
    purpose: Purpose,
) -> Result<Arc<dyn OpenFile>> {
    match purpose {
        Purpose::Access(access) => store.open(caller, id, access | Access::READ).await,
        Purpose::Execution => store.open_to_execute(caller, id).await,
    }
}

impl Mapping {
    /// Opens a file of `store` for `caller`, who has been checked ([`open_stored`]).
    ///
    /// # Errors
    /// Those of the store; [`Error::IsDirectory`] and [`Error::Invalid`] for other kinds of files.
    pub(crate) async fn open(
        memory: &Arc<Memory>,
        store: &Arc<dyn FileSystem>,
        dirty: &Arc<StoreWriteback>,
        caller: &Caller,
        (id, purpose): (FileId, Purpose),
        change_lead: u64,
    ) -> Result<Arc<Self>> {
        let file = open_stored(store, caller, id, purpose).await?;
        let mapping = Self::of_open(memory, store, dirty, id, file, change_lead).await?;
        mapping.only_to_execute.store(purpose == Purpose::Execution, Ordering::Relaxed);
        Ok(mapping)
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
        let mut overlay = AttributeOverlay::new(&attr, change_lead, others);
        if store.names_change_here() {
            overlay.show_stamps(&attr);
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
            only_to_execute: AtomicBool::new(false),
            state: Mutex::new(State {
                next_fill: 1,
                fills: Vec::new(),
                dirty: RangeSet::default(),
                dirty_since: None,
                sweep: None,
                urgent_at: None,
                half_written: None,
                listed: None,
                next_write: 1,
                writeback: BTreeMap::new(),
                failing: Failing::default(),
                outage: None,
                retry_at: None,
                failures: 0,
                errors: WriteErrors::default(),
                stored_size: attr.size,
                invalidating: false,
                holds_of_writers: 0,
                overlay,
                settle_queued: false,
                settling: 0,
                durability: Durability::default(),
                syncs: Syncs::default(),
            }),
            changed: WaitQueue::default(),
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

    /// Marks pages as dirty.
    pub(crate) fn mark_dirty(&self, state: &mut State, pages: Range<u64>) {
        if state.is_clean() {
            state.dirty_since = Some(self.memory.now());
            state.sweep = None;
            state.outage = None;
        } else if let Some(outage) = &mut state.outage {
            outage.dirtied(&state.dirty, pages.clone());
        }
        let new = state.dirty.insert(pages);
        self.dirty.add(new);
    }

    /// Marks pages that are being removed as no longer dirty.
    pub(crate) fn forget_dirty(&self, state: &mut State, pages: Range<u64>) {
        let gone = state.dirty.remove(pages.clone());
        state.no_longer_failing(pages);
        if state.failing.is_empty() {
            // Nothing has failed of what is left.
            state.outage = None;
        }
        self.dirty.sub(gone);
        if gone > 0 {
            state.relax();
            self.note_progress(state);
            self.lane().kick();
            self.writeback().cleaned.notify();
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

/// Memory of a mapping without its index: the struct, and its entries in the tables of files (a
/// half-full hash table, two ordered ones, the registry).
const OWN_BYTES: usize = size_of::<Mapping>() + 192;

/// Flags that make a read leave the fast path.
#[inline]
pub(crate) const fn stops_of(policy: CachePolicy) -> u16 {
    if policy.is_uncached() { flag::READAHEAD | flag::UNCACHED } else { flag::READAHEAD }
}
