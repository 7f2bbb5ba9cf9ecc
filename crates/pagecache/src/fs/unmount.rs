//! The end of a store's use through the cache.
//!
//! 1. Before the store is unmounted, all written data is in the store and synced, or the caller
//!    gets an error; also for data lost earlier, if no open file got that error.
//! 2. This includes data that the flusher wrote and no caller synced, even if the store's file is
//!    closed or the mapping dropped (for as many files as
//!    [`Unsynced`](crate::writeback::durability::Unsynced) keeps).

use crate::fs::CachedFs;
use weir_vfs::Result;

impl CachedFs {
    /// Writes back all dirty data of the store's files, and ends the use of the store
    /// ([`FileSystem::unmount`](weir_vfs::FileSystem::unmount)).
    ///
    /// # Errors The first error of writing back or syncing a file, an earlier write error that no
    /// open file got, or that of the store; the store is unmounted nevertheless.
    pub async fn unmount(&self) -> Result<()> {
        let mappings: Vec<_> = {
            let table = self.shared.table.lock();
            table.mappings.values().map(|entry| entry.mapping.clone()).collect()
        };
        let mut result = Ok(());
        for mapping in mappings {
            let unsynced = {
                let state = mapping.state.lock();
                let is_synced = state.is_clean() && state.durability.is_synced();
                (!is_synced).then(|| state.errors.count())
            };
            if let Some(since) = unsynced {
                // Even if some data is lost, the rest is written and synced.
                let written = mapping.write_or_lose(0..u64::MAX).await;
                let synced = mapping.make_durable(since, false).await;
                result = result.and(written).and(synced);
            }
            // Checked last: a write may fail after the checks for dirty files.
            let untold = mapping.state.lock().errors.untold();
            result = result.and(untold.map_or(Ok(()), Err));
        }
        let unsynced = self.shared.table.lock().unsynced.take();
        for id in unsynced {
            result = result.and(self.sync_stored(id).await);
        }
        let untold = self.shared.table.lock().untold.take();
        result = result.and(untold.map_or(Ok(()), Err));
        let unmounted = self.store().unmount().await;
        result.and(unmounted)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::memory::metadata::Shrinkable;
    use crate::testing::{Rig, poll_once};
    use std::pin::pin;
    use std::thread::yield_now;
    use weir_stores::fault::{Call, What};
    use weir_vfs::{Error, IoFlags};

    #[test]
    fn unmount_syncs_a_file_that_is_closed_meanwhile() {
        let rig = Rig::new();
        let file = rig.create("f");
        rig.always(Call::Write, What::Hold);
        file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
        let mapping = file.open.mapping.clone();
        drop(file);
        let mut unmount = pin!(rig.fs.unmount());
        assert!(poll_once(unmount.as_mut()).is_pending());
        rig.store.release();
        // As the flusher does with a file that has been idle long enough.
        while mapping.take_file().is_none() {
            yield_now();
        }
        pollster::block_on(unmount).unwrap();
    }

    #[test]
    fn unmount_reports_a_write_that_fails_meanwhile() {
        let rig = Rig::new();
        let file = rig.create("f");
        rig.always(Call::Sync, What::Hold);
        file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
        let mut unmount = pin!(rig.fs.unmount());
        while rig.store.held() == 0 {
            assert!(poll_once(unmount.as_mut()).is_pending());
        }
        rig.always(Call::Write, What::Fail(Error::Quota));
        file.write_at(&[2; 4096], 0, IoFlags::UNCACHED).unwrap();
        rig.until_clean();
        rig.store.clear();
        rig.store.release();
        assert_eq!(pollster::block_on(unmount), Err(Error::Quota));
    }

    #[test]
    fn unmount_syncs_what_the_flusher_wrote() {
        let written = || {
            let rig = Rig::new();
            let file = rig.create("f");
            file.write_at(&[1; 4096], 0, IoFlags::UNCACHED).unwrap();
            rig.until_clean();
            (rig, file)
        };
        let unmount = |rig: &Rig, call| {
            rig.always(call, What::Fail(Error::Quota));
            pollster::block_on(rig.fs.unmount())
        };
        let (rig, open) = written();
        assert_eq!(unmount(&rig, Call::Sync), Err(Error::Quota));
        rig.store.clear();
        assert_eq!(open.sync(true), Err(Error::Quota), "the open file is told, too");
        assert_eq!(unmount(&rig, Call::Sync), Ok(()), "synced since");

        let (rig, file) = written();
        let mapping = file.open.mapping.clone();
        drop(file);
        while mapping.take_file().is_none() {
            yield_now();
        }
        assert_eq!(unmount(&rig, Call::SyncNode), Err(Error::Quota), "its file is closed");

        for forget in [false, true] {
            let (rig, file) = written();
            let id = file.id();
            drop(file);
            while !rig.fs.shared.drop_oldest_idle() {
                yield_now();
            }
            match forget {
                false => {
                    assert_eq!(unmount(&rig, Call::SyncNode), Err(Error::Quota), "no mapping")
                }
                true => {
                    pollster::block_on(rig.fs.sync_node(id)).unwrap();
                    assert_eq!(unmount(&rig, Call::SyncNode), Ok(()), "synced without a mapping");
                }
            }
        }
    }

    #[test]
    fn an_error_outlives_its_mapping_until_it_is_reported() {
        let rig = Rig::new();
        let lose = |name: &str| {
            let file = rig.create(name);
            rig.always(Call::Write, What::Fail(Error::Quota));
            file.write_at(&[1; 4096], 0, IoFlags::UNCACHED).unwrap();
            rig.until_clean();
            let id = file.id();
            drop(file);
            rig.store.clear();
            while !rig.fs.shared.drop_oldest_idle() {
                yield_now();
            }
            id
        };
        let id = lose("f");
        let (one, two) = (rig.open(id), rig.open(id));
        assert_eq!((one.sync(true), two.sync(true)), (Err(Error::Quota), Err(Error::Quota)));
        drop((one, two));
        while !rig.fs.shared.drop_oldest_idle() {
            yield_now();
        }
        assert_eq!(rig.open(id).sync(true), Ok(()), "told already");
        lose("g");
        assert_eq!(pollster::block_on(rig.fs.unmount()), Err(Error::Quota));
    }
}
