//! Limits on dirty pages, for the cache, each store and each file.
//!
//! 1. Every dirty page, and every page under writeback, counts for the cache, for its store and for
//!    its file.
//! 2. A writer waits while the cache is at its limit of dirty pages. But a store that hangs does
//!    not stop the writers of others: each store may then still have its equal part, among the
//!    stores with dirty pages, of a reserve half as large again. Nor does a file that hangs stop
//!    the writers of others in its store: each file may then still have a sixteenth of that part,
//!    all of them half a part, and all stores together no more than the reserve and that. So with
//!    one store at most seven tenths of the budget are ever dirty, and hardly more with several.
//! 3. Below that limit, a writer pauses only for writes of its own file.

use crate::memory::Flushers;
use crate::memory::budget::Limits;
use crate::thread::Background;
use crate::wait::WaitQueue;
use crate::writeback::lane::Lane;
use crate::writeback::node_syncs::NodeSyncs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;
use weir_base::sync::RwLock;
use weir_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A cache's writeback: its count of dirty pages, and the lanes of its stores.
pub(crate) struct Writeback {
    pages: AtomicU64,
    /// Number of stores with dirty pages.
    stores: AtomicUsize,
    /// Notified when writeback has made progress, or has failed.
    pub(crate) cleaned: WaitQueue,
    /// See [`Config::write_patience`](crate::Config).
    pub(crate) patience: Duration,
    pub(super) background: Background,
    /// Lanes of the mounted stores, and of unmounted stores with dirty files.
    pub(super) lanes: RwLock<Vec<Weak<Lane>>>,
}

impl Writeback {
    pub(crate) fn new(patience: Duration, background: Background) -> Self {
        Self {
            pages: AtomicU64::new(0),
            stores: AtomicUsize::new(0),
            cleaned: WaitQueue::default(),
            patience,
            background,
            lanes: RwLock::default(),
        }
    }

    /// Pages dirty or under writeback.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::SeqCst)
    }

    /// The lanes of the stores that are mounted, or have dirty files.
    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        self.lanes.read().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Flushers for Writeback {
    fn kick(&self) {
        for lane in self.lanes() {
            lane.kick();
        }
    }
}

/// One store's writeback: its count of dirty pages, and its lane.
pub(crate) struct StoreWriteback {
    pub(crate) cache: Arc<Writeback>,
    pages: AtomicU64,
    pub(crate) lane: Arc<Lane>,
    /// Permanent failures of writes and syncs of its files.
    pub(crate) errors: AtomicU64,
    /// What [`File::loss_epoch`](crate::File::loss_epoch) begins at: random.
    pub(crate) first_epoch: u64,
    pub(crate) node_syncs: NodeSyncs,
}

impl StoreWriteback {
    pub(crate) fn new(cache: Arc<Writeback>, lane: Arc<Lane>) -> Self {
        let (pages, errors) = (AtomicU64::new(0), AtomicU64::new(0));
        // Its keys are random.
        let first_epoch = RandomState::new().build_hasher().finish();
        Self { cache, pages, lane, errors, first_epoch, node_syncs: NodeSyncs::default() }
    }

    /// Whether anything of the store is dirty.
    pub(crate) fn is_dirty(&self) -> bool {
        self.pages.load(Ordering::SeqCst) > 0
    }
}

/// A file's count of dirty pages, and its store's writeback.
pub(crate) struct FileDirty {
    pages: AtomicU64,
    pub(crate) store: Arc<StoreWriteback>,
}

impl FileDirty {
    pub(crate) fn new(store: Arc<StoreWriteback>) -> Self {
        Self { pages: AtomicU64::new(0), store }
    }

    /// The file's dirty pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::SeqCst)
    }

    /// Counts `pages` of the file that have become dirty.
    pub(crate) fn add(&self, pages: u64) {
        if pages == 0 {
            return;
        }
        let all = &self.store.cache;
        self.pages.fetch_add(pages, Ordering::SeqCst);
        if self.store.pages.fetch_add(pages, Ordering::SeqCst) == 0 {
            all.stores.fetch_add(1, Ordering::SeqCst);
        }
        all.pages.fetch_add(pages, Ordering::SeqCst);
    }

    /// Counts `pages` that are no longer dirty.
    pub(crate) fn sub(&self, pages: u64) {
        if pages == 0 {
            return;
        }
        let all = &self.store.cache;
        self.pages.fetch_sub(pages, Ordering::SeqCst);
        if self.store.pages.fetch_sub(pages, Ordering::SeqCst) == pages {
            all.stores.fetch_sub(1, Ordering::SeqCst);
        }
        all.pages.fetch_sub(pages, Ordering::SeqCst);
    }

    /// Whether a writer of the file pauses until one write of it to the store ends.
    pub(crate) fn is_to_pause(&self, limits: &Limits) -> bool {
        let (background, hard) = (limits.dirty_background, limits.dirty_hard);
        let middle = background + (hard - background.min(hard)) / 2;
        self.store.cache.pages() > middle && self.pages.load(Ordering::SeqCst) > 0
    }

    /// Whether a writer of the file waits until less is dirty.
    pub(crate) fn is_over_its_share(&self, limits: &Limits) -> bool {
        let hard = limits.dirty_hard;
        let all = &self.store.cache;
        if all.pages() < hard {
            return false;
        }
        let store = self.store.pages.load(Ordering::SeqCst);
        // This store counts, too, though it may have nothing dirty yet.
        let others = all.stores.load(Ordering::SeqCst).saturating_sub(usize::from(store > 0));
        let reserve = hard / 2;
        let part = reserve / (others as u64 + 1);
        let file = self.pages.load(Ordering::SeqCst);
        // Without this bound each of several stores could have as much dirty as a single one, and
        // nothing would stay clean.
        let most = store >= hard + part / 2 || all.pages() >= hard + reserve + part / 2;
        store >= part.max(1) && (file >= (part / 16).max(1) || most)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Cache, Config};
    use weir_stores::memory::MemoryFs;

    const LIMITS: Limits = Limits {
        dirty_background: 20,
        dirty_hard: 100,
        free_low: 0,
        free_high: 0,
        step: 1,
        reserve: 0,
        piece: 1,
        index_bytes: 0,
        correlated: 0,
    };

    #[test]
    fn each_store_and_each_file_has_its_part() {
        let cache = Cache::new(Config::default()).unwrap();
        let [fs, of_other_store] = [(); 2].map(|()| cache.mount(MemoryFs::new()));
        let file = |fs: &crate::CachedFs| FileDirty::new(fs.shared.dirty.clone());
        let (file, neighbour, other) = (file(&fs), file(&fs), file(&of_other_store));
        let over = || [&file, &neighbour, &other].map(|file| file.is_over_its_share(&LIMITS));
        file.add(99);
        assert_eq!(over(), [false; 3], "below the limit");
        file.add(1);
        assert_eq!(over(), [true, false, false]);
        // A sixteenth of the store's part of the reserve, which is 50.
        neighbour.add(2);
        assert_eq!(over(), [true, false, false]);
        neighbour.add(1);
        assert_eq!(over(), [true, true, false]);
        neighbour.sub(3);
        // With another store the part is 25.
        other.add(1);
        assert_eq!(over(), [true, false, false]);
        other.add(23);
        assert_eq!(over(), [true, false, false]);
        other.add(1);
        assert_eq!(over(), [true, false, true]);
        other.sub(25);
        neighbour.add(1);
        assert_eq!(over(), [true, false, false], "the other store is clean");
        neighbour.sub(1);
        file.add(24);
        assert_eq!(over(), [true, false, false]);
        file.add(1);
        assert_eq!(over(), [true, true, false], "all files of the store together");
        file.sub(125);
        assert_eq!((over(), cache.dirty_bytes()), ([false; 3], 0));
    }

    #[test]
    fn a_writer_pauses_half_way_to_the_limit_for_writes_of_its_own_file() {
        let cache = Cache::new(Config::default()).unwrap();
        let fs = cache.mount(MemoryFs::new());
        let [file, clean] = [(); 2].map(|()| FileDirty::new(fs.shared.dirty.clone()));
        let pauses = || [&file, &clean].map(|file| file.is_to_pause(&LIMITS));
        file.add(60);
        assert_eq!(pauses(), [false; 2]);
        file.add(1);
        assert_eq!(pauses(), [true, false]);
        file.sub(61);
    }
}
