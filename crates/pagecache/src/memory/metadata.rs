//! Memory for metadata of files: mappings, and the nodes of their indexes. `memory/shrinker.rs`
//! bounds it.

use std::sync::{Arc, Weak};
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A mounted store, as the shrinker sees it.
pub(crate) trait Shrinkable: Send + Sync {
    /// The time of the least recent close among the idle files, by [`Metadata::tick`].
    fn oldest_idle(&self) -> Option<u64>;

    /// Drops the mapping of the least recently closed file, with its pages. Returns whether it did;
    /// a busy file becomes the last to go.
    fn drop_oldest_idle(&self) -> bool;

    /// Whether the store has such a backlog of work that none may be added to make room for other
    /// stores.
    fn is_behind(&self) -> bool;

    /// Drops a reference. The last one may block, so the store's own thread drops it.
    fn release(self: Arc<Self>);
}

/// Metadata in use.
#[derive(Default)]
pub(crate) struct Metadata {
    /// Memory of mappings without their indexes, in bytes.
    pub(crate) files: AtomicUsize,
    /// Memory of index nodes, in bytes.
    pub(crate) nodes: AtomicUsize,
    /// Where the next scan for holes to forget continues. The thread that shrinks holds the lock.
    pub(super) cursor: Mutex<Cursor>,
    /// The stores mounted through this cache.
    pub(crate) stores: Mutex<Vec<Weak<dyn Shrinkable>>>,
    ticks: AtomicU64,
}

/// A page of the file with this number.
#[derive(Default)]
pub(super) struct Cursor {
    pub(super) owner: u32,
    pub(super) page: u64,
}

impl Metadata {
    /// All metadata in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.files.load(Ordering::Relaxed) + self.nodes.load(Ordering::Relaxed)
    }

    /// The next tick, which orders the closes of files.
    pub(crate) fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::Relaxed)
    }

    /// The mounted stores.
    pub(super) fn stores(&self) -> Vec<Arc<dyn Shrinkable>> {
        let mut used = Vec::new();
        self.stores.lock().retain(|store| {
            used.extend(store.upgrade());
            store.strong_count() > 0
        });
        used
    }
}
