//! Drops mappings: the least recently closed ones, and those of files without a name.
//!
//! 1. A mapping is dropped only while nothing is dirty, except that of a file without a name.
//! 2. Three things outlive it: the lead of its change attribute, an error that no open file got,
//!    and the note that its data in the store is not synced.
//! 3. The store's own tasks close the store's file, whichever store the room is made for.

use super::{Entry, FsShared};
use crate::fs::deferred_close::Idle;
use crate::mapping::sync::sync_node;
use crate::memory::metadata::Shrinkable;
use crate::writeback::node_syncs::SyncBy;
use std::sync::Arc;
use weir_base::sync::atomic::Ordering;
use weir_vfs::{FileId, Result, Unnamed};

impl Shrinkable for FsShared {
    fn oldest_idle(&self) -> Option<u64> {
        self.table.lock().idle.keys().next().copied()
    }

    fn drop_oldest_idle(&self) -> bool {
        let mut table = self.table.lock();
        let Some(id) = table.idle.values().next().copied() else { return false };
        table.leave_idle(id);
        let busy = table.mappings.get(&id).is_some_and(|e| {
            let state = e.mapping.state.lock();
            // The error of a sync that runs is to be kept.
            !state.is_clean() || state.invalidating || state.syncs.is_running()
        });
        if busy {
            table.enter_idle(
                id,
                self.cache.memory().metadata.tick(),
                Idle::new(self.cache.memory().now()),
            );
            return false;
        }
        let Some(Entry { mapping, .. }) = table.mappings.remove(&id) else { return false };
        {
            let state = mapping.state.lock();
            self.lead.fetch_max(state.overlay.lead(), Ordering::Relaxed);
            table.untold.keep(id, &state.errors);
            table.unsynced.keep(id, &state.durability);
        }
        drop(table);
        // The caller may work for a store other than the one that closes the file.
        let tasks = &self.dirty.lane.tasks;
        match mapping.take_file() {
            Some(file) if file.access().is_empty() => {}
            Some(file) => tasks.spawn(async move { drop(file) }),
            // A read of the file is in flight.
            None => tasks.spawn(async move { drop(mapping) }),
        }
        true
    }

    fn is_behind(&self) -> bool {
        self.dirty.lane.is_behind()
    }

    fn release(self: Arc<Self>) {
        if let Some(fs) = Arc::into_inner(self) {
            let tasks = fs.dirty.lane.tasks.clone();
            tasks.spawn(async move { drop(fs) });
        }
    }
}

impl FsShared {
    /// Has the store sync what it has of a directory or file.
    ///
    /// # Errors
    /// Those of the store. A file's mapping keeps them for its open files.
    pub(super) async fn sync_stored(self: Arc<Self>, id: FileId) -> Result<()> {
        // Before the sync: the file may be opened, written to and closed during it.
        let kept = self.table.lock().unsynced.forget(id);
        let sync = async {
            let synced = sync_node(&*self.store, id).await;
            // Before another sync begins.
            if let Err(error) = synced
                && let Some(mapping) = self.live(id)
            {
                mapping.note_error(&mut mapping.state.lock(), error);
            }
            synced
        };
        let synced = self.dirty.node_syncs.run(id, SyncBy::Id, sync).await;
        if kept && synced.is_err() {
            self.table.lock().unsynced.put_back(id);
        }
        synced
    }

    /// A file has lost a name; if it was the last, and no program has the file open, its pages are
    /// dropped. A file without a name cannot get one again.
    pub(super) fn lost_name(&self, unnamed: Option<Unnamed>) {
        let Some(Unnamed { id, .. }) = unnamed.filter(|unnamed| unnamed.nlink == 0) else {
            return;
        };
        let mut table = self.table.lock();
        table.untold.forget(id);
        table.unsynced.forget(id);
        let Some(entry) = table.mappings.get(&id) else { return };
        entry.mapping.unlinked.store(true, Ordering::Relaxed);
        if entry.idle_since.is_none() {
            return;
        }
        table.leave_idle(id);
        let mapping = table.mappings.remove(&id).map(|e| e.mapping);
        drop(table);
        if let Some(mapping) = mapping {
            mapping.discard();
        }
    }
}
