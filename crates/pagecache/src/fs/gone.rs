//! Drops mappings: the least recently closed ones, and those of files without a name.
//!
//! 1. A mapping is dropped only while nothing is dirty, except that of a file without a name, and not
//!    while a task is about to set the store's modification time: the file may have another mapping by
//!    then, with a later time.
//! 2. Three things outlive it: the lead of its change attribute, an error that no open file got,
//!    and the note that its data in the store is not synced.
//! 3. A removal runs to its end even if the caller goes away: the store may carry it out nevertheless.
//! 4. The store's own tasks close the store's file, whichever store the room is made for. An open of
//!    the same store waits for them while they have fallen behind and there is no room.

use super::{CachedFs, Entry, FsShared};
use crate::fs::deferred_close::Idle;
use crate::mapping::sync::sync_node;
use crate::memory::metadata::Shrinkable;
use crate::writeback::node_syncs::SyncBy;
use std::sync::Arc;
use weir_base::sync::atomic::Ordering;
use weir_vfs::{Error, FileId, Result, Unnamed};

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
            let is_to_settle = state.listed.is_some() || state.settling > 0;
            // The error of a sync that runs is to be kept.
            !state.is_clean()
                || state.invalidating
                || state.syncs.is_running()
                || (is_to_settle && state.overlay.pending().is_some())
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
            let mut state = mapping.state.lock();
            state.overlay.abandon();
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

impl CachedFs {
    /// Runs an operation of the store that may remove the last name of a file, whose pages then go.
    ///
    /// # Errors
    /// Those of the operation.
    pub(super) async fn removing(
        &self,
        operation: impl Future<Output = Result<Option<Unnamed>>> + Send + 'static,
    ) -> Result<()> {
        let shared = self.shared.clone();
        let work = async move {
            shared.lost_name(operation.await?);
            Ok(())
        };
        crate::tasks::finish(&self.shared.dirty.lane.tasks, work).await
    }
}

impl FsShared {
    /// Makes room for the metadata of one more file.
    pub(super) async fn make_room(&self) {
        let memory = self.cache.memory();
        memory.shrink_metadata();
        if memory.metadata_is_large() && self.is_behind() {
            self.dirty.lane.catch_up().await;
            memory.shrink_metadata();
        }
    }

    /// Has the store sync what it has of a directory or file.
    ///
    /// # Errors
    /// Those of the store. They are kept for files that are open or opened later: the store tells each
    /// only once, and this caller may be gone, or not the one whose data was lost.
    pub(super) async fn sync_stored(self: Arc<Self>, id: FileId) -> Result<()> {
        // Before the sync: the file may be opened, written to and closed during it.
        let kept = self.table.lock().unsynced.forget(id);
        let sync = async {
            let synced = sync_node(&*self.store, id).await;
            // Before another sync begins.
            match synced {
                // The store has not tried.
                Ok(()) | Err(Error::WouldBlock | Error::TooManyOpen | Error::OutOfMemory) => {}
                Err(error) => self.note_failed_sync(id, kept, error),
            }
            synced
        };
        let synced = self.dirty.node_syncs.run(id, SyncBy::Id, sync).await;
        if kept && synced.is_err() {
            self.table.lock().unsynced.put_back(id);
        }
        synced
    }

    /// Keeps the error of a sync; of a file that is not in the cache only if it `was_unsynced`: nothing else of it can
    /// be lost.
    fn note_failed_sync(&self, id: FileId, was_unsynced: bool, error: Error) {
        let mut table = self.table.lock();
        match table.mappings.get(&id).map(|entry| entry.mapping.clone()) {
            Some(mapping) => mapping.note_error(&mut mapping.state.lock(), error),
            None if !was_unsynced => {}
            None => {
                self.dirty.errors.fetch_add(1, Ordering::SeqCst);
                table.untold.note(id, error);
            }
        }
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::memory::metadata::Shrinkable;
    use crate::testing::{Rig, poll_once};
    use std::pin::Pin;
    use std::thread::yield_now;
    use weir_stores::fault::{Call, What};
    use weir_vfs::{Caller, IoFlags, RenameFlags, Result};

    #[test]
    fn a_mapping_whose_time_is_still_to_be_set_stays() {
        let rig = Rig::new();
        let file = rig.create("f");
        let id = file.id();
        let go_on = rig.hang_tasks();
        file.write_at(&[1], 0, IoFlags::empty()).unwrap();
        pollster::block_on(file.write_back_async()).unwrap();
        drop(file);
        assert!(!rig.fs.shared.drop_oldest_idle());
        // What it would set later is older than this.
        let file = rig.open(id);
        file.write_at(&[2], 0, IoFlags::empty()).unwrap();
        let mtime = || pollster::block_on(rig.fs.getattr(id)).unwrap().mtime;
        let written = mtime();
        pollster::block_on(file.write_back_async()).unwrap();
        drop((file, go_on));
        while !rig.fs.shared.drop_oldest_idle() {
            yield_now();
        }
        assert_eq!(mtime(), written);
    }

    #[test]
    fn a_removal_whose_caller_goes_away_drops_the_files_pages() {
        for call in [Call::Unlink, Call::Rename] {
            let rig = Rig::new();
            let (file, _other) = (rig.create("f"), rig.make("g"));
            file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
            let id = file.id();
            drop(file);
            rig.always(call, What::Hold);
            let (f, g) = (rig.fs.root().entry(b"f"), rig.fs.root().entry(b"g"));
            let mut removal: Pin<Box<dyn Future<Output = Result<()>>>> = match call {
                Call::Unlink => Box::pin(rig.fs.unlink(&Caller::Own, f)),
                _ => Box::pin(rig.fs.rename(&Caller::Own, g, f, RenameFlags::Replace)),
            };
            assert!(poll_once(&mut removal).is_pending());
            drop(removal);
            rig.store.clear();
            rig.store.release();
            while rig.fs.residency(id).is_some() {
                yield_now();
            }
            rig.until_clean();
            assert!(pollster::block_on(rig.fs.getattr(id)).is_err(), "the store has removed it");
        }
    }
}
