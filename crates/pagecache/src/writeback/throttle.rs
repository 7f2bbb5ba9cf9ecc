//! How much may be dirty, and whose it is.
//!
//! 1. Every dirty page, and every page under writeback, counts for the cache, for its store and for
//!    its file.
//! 2. A writer waits while as much is dirty as the cache allows. But a store that hangs does not stop
//!    the writers of others: a store may then still have its equal part, among the stores with dirty
//!    pages, of a reserve half as large again. Nor does a file that hangs stop the writers of others
//!    in its store: each may then still have a sixteenth of that part, half a part for all of them,
//!    and all stores together no more than the reserve and that.
//!    So with one store no more than seven tenths of the budget is ever dirty, and hardly more with
//!    several.
//! 3. Before that, a writer pauses for writes of its own file only.

use crate::mapping::Mapping;
use crate::writeback::lane::Lane;
use std::sync::Arc;
use weir_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What is dirty of one store, what became of it, and who writes it.
pub(crate) struct StoreDirty {
    pages: AtomicU64,
    pub(crate) lane: Arc<Lane>,
    /// Times that writes or syncs of its files failed for good.
    pub(crate) errors: AtomicU64,
}

impl StoreDirty {
    pub(crate) fn new(lane: Arc<Lane>) -> Self {
        Self { pages: AtomicU64::new(0), lane, errors: AtomicU64::new(0) }
    }
}

/// What is dirty in a cache.
#[derive(Default)]
pub(crate) struct Dirty {
    pages: AtomicU64,
    /// Stores with dirty pages.
    stores: AtomicUsize,
}

impl Dirty {
    /// Pages dirty or under writeback.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::SeqCst)
    }
}

/// What a file has dirty, and its store.
pub(crate) struct FileDirty {
    pages: AtomicU64,
    pub(crate) store: Arc<StoreDirty>,
}

impl FileDirty {
    pub(crate) fn new(store: Arc<StoreDirty>) -> Self {
        Self { pages: AtomicU64::new(0), store }
    }
}

impl Mapping {
    /// So many of the file's pages are dirty that were not.
    pub(crate) fn add_dirty(&self, pages: u64) {
        if pages == 0 {
            return;
        }
        let all = &self.shared.dirty;
        self.dirty.pages.fetch_add(pages, Ordering::SeqCst);
        if self.dirty.store.pages.fetch_add(pages, Ordering::SeqCst) == 0 {
            all.stores.fetch_add(1, Ordering::SeqCst);
        }
        all.pages.fetch_add(pages, Ordering::SeqCst);
    }

    /// So many are not any more.
    pub(crate) fn sub_dirty(&self, pages: u64) {
        if pages == 0 {
            return;
        }
        let all = &self.shared.dirty;
        self.dirty.pages.fetch_sub(pages, Ordering::SeqCst);
        if self.dirty.store.pages.fetch_sub(pages, Ordering::SeqCst) == pages {
            all.stores.fetch_sub(1, Ordering::SeqCst);
        }
        all.pages.fetch_sub(pages, Ordering::SeqCst);
    }

    /// Whether anything of the file's store is dirty.
    pub(crate) fn store_is_dirty(&self) -> bool {
        self.dirty.store.pages.load(Ordering::SeqCst) > 0
    }

    /// Whether a writer of the file is to wait for one write of it to end, as much is dirty in all.
    pub(crate) fn is_to_pause(&self) -> bool {
        let limits = self.shared.limits();
        let (background, hard) = (limits.dirty_background, limits.dirty_hard);
        let middle = background + (hard - background.min(hard)) / 2;
        self.shared.dirty.pages() > middle && self.dirty.pages.load(Ordering::SeqCst) > 0
    }

    /// Whether a writer of the file is to wait until less is dirty.
    pub(crate) fn is_over_its_share(&self) -> bool {
        let hard = self.shared.limits().dirty_hard;
        let all = &self.shared.dirty;
        if all.pages() < hard {
            return false;
        }
        let store = self.dirty.store.pages.load(Ordering::SeqCst);
        // This one counts, too, though it may have nothing dirty yet.
        let others = all.stores.load(Ordering::SeqCst).saturating_sub(usize::from(store > 0));
        let reserve = hard / 2;
        let part = reserve / (others as u64 + 1);
        let file = self.dirty.pages.load(Ordering::SeqCst);
        // Else each of several stores could have as much as one alone, and nothing would stay clean.
        let most = store >= hard + part / 2 || all.pages() >= hard + reserve + part / 2;
        store >= part.max(1) && (file >= (part / 16).max(1) || most)
    }
}
