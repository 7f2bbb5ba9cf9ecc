//! Memory for what is known of files besides their pages: mappings, and the nodes of their indexes.
//! `memory/shrinker.rs` bounds it.

use std::sync::{Arc, Weak};
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A mounted store, as the shrinker sees it.
pub(crate) trait Shrinkable: Send + Sync {
    /// When the file that was closed longest ago was closed, by [`Metadata::tick`].
    fn oldest_idle(&self) -> Option<u64>;

    /// Drops the mapping of the file that was closed longest ago, with its pages. Says whether it
    /// did; a file that is busy becomes the last to go.
    fn drop_oldest_idle(&self) -> bool;

    /// Whether so much work is queued for the store that no more is to be added for other stores'
    /// sake.
    fn is_behind(&self) -> bool;

    /// Drops a reference. The last use of a store may block, so the store's own thread does it.
    fn release(self: Arc<Self>);
}

/// What is in use.
#[derive(Default)]
pub(crate) struct Metadata {
    /// By mappings without their indexes, in bytes.
    pub(crate) files: AtomicUsize,
    /// By index nodes, in bytes.
    pub(crate) nodes: AtomicUsize,
    /// Where the next scan for holes to forget continues. The thread that shrinks holds the lock.
    pub(super) cursor: Mutex<Cursor>,
    /// The stores mounted through this cache.
    pub(crate) stores: Mutex<Vec<Weak<dyn Shrinkable>>>,
    ticks: AtomicU64,
}

/// A page of the file of this number.
#[derive(Default)]
pub(super) struct Cursor {
    pub(super) owner: u32,
    pub(super) page: u64,
}

impl Metadata {
    /// All that is in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.files.load(Ordering::Relaxed) + self.nodes.load(Ordering::Relaxed)
    }

    /// The next moment, for the order in which files were closed.
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
