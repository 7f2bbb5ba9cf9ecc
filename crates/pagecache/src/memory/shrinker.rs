//! The shrinker: bounds the memory for mappings and for the nodes of their indexes.
//!
//! 1. Metadata has a share of its own in addition to the budget. Above it, the shrinker first drops
//!    the least recently closed files with their pages. Then it forgets holes, as the store can be
//!    asked for them again. If that frees nothing, pages are so scattered that their index nodes
//!    take more memory than they do: it reclaims some pages, and writers wait until dirty ones are
//!    written.
//! 2. Open files are not bounded. Index nodes compensate for them only down to a quarter of the
//!    share; otherwise a cache with many open files would keep no pages at all.
//! 3. A store's tasks close the files that are dropped. Callers that open files of a store faster than
//!    that wait for these tasks while there is no room (`FsShared::make_room`).
//! 4. A call does a bounded amount of work, since an operation waits for it; the next call
//!    continues.

use crate::memory::Memory;
use crate::memory::metadata::{Cursor, Shrinkable};
use crate::reclaim::{Effort, Reach};
use std::ops::ControlFlow;
use weir_base::sync::atomic::Ordering;

/// Most mappings dropped, or pages reclaimed, in one call.
const BATCH: usize = 64;
/// Most index entries visited in one call.
const LOOKS: usize = 1024;

impl Memory {
    /// Whether the share is exceeded, and index nodes contribute to that.
    pub(crate) fn index_is_large(&self) -> bool {
        let share = self.limits().index_bytes;
        self.metadata.nodes.load(Ordering::Relaxed) > share / 4 && self.metadata.bytes() > share
    }

    /// Whether the share is exceeded.
    pub(crate) fn metadata_is_large(&self) -> bool {
        self.metadata.bytes() > self.limits().index_bytes
    }

    /// Frees memory if the share is exceeded. The caller holds no lock.
    pub(crate) fn shrink_metadata(&self) {
        if !self.metadata_is_large() {
            return;
        }
        let Some(mut cursor) = self.metadata.cursor.try_lock() else { return };
        let stores = self.metadata.stores();
        let mut dropped = false;
        for _ in 0..BATCH {
            // Closing files of a store that hangs would only lengthen its backlog.
            let able = stores.iter().filter(|store| !store.is_behind());
            let oldest = able.filter_map(|store| Some((store.oldest_idle()?, store)));
            let Some((_, store)) = oldest.min_by_key(|&(tick, _)| tick) else { break };
            if !self.metadata_is_large() {
                break;
            }
            dropped |= store.drop_oldest_idle();
        }
        if !dropped && self.index_is_large() {
            let before = self.metadata.nodes.load(Ordering::Relaxed);
            self.forget_holes(&mut cursor);
            if self.metadata.nodes.load(Ordering::Relaxed) >= before {
                self.reclaim(BATCH, Reach::All, Effort::Foreground);
            }
        }
        stores.into_iter().for_each(Shrinkable::release);
        self.collect();
    }

    /// Forgets holes, file by file.
    fn forget_holes(&self, cursor: &mut Cursor) {
        let end = self.owners.end();
        let mut looks = LOOKS;
        for _ in 0..end {
            if let Some(owner) = self.owners.get(cursor.owner)
                && let ControlFlow::Break(page) = owner.forget_holes(cursor.page, &mut looks)
            {
                cursor.page = page;
                return;
            }
            *cursor = Cursor { owner: (cursor.owner + 1) % end, page: 0 };
            looks = looks.saturating_sub(1);
            if looks == 0 {
                return;
            }
        }
    }
}
