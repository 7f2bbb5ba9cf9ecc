//! The end of a store's use through the cache.
//!
//! 1. What was written is at the store before the store is unmounted, or the caller is told; also of
//!    what was lost before, if no open file has been told.

use crate::fs::CachedFs;
use weir_vfs::Result;

impl CachedFs {
    /// Writes back everything that was written to the store's files, and ends the use of the store
    /// ([`FileSystem::unmount`](weir_vfs::FileSystem::unmount)).
    ///
    /// # Errors
    /// The first error of writing back or syncing a file, one of earlier writes that no open file has
    /// been told of, or that of the store; it is unmounted all the same.
    pub async fn unmount(&self) -> Result<()> {
        let mappings: Vec<_> = {
            let table = self.shared.table.lock();
            table.mappings.values().map(|entry| entry.mapping.clone()).collect()
        };
        let mut result = Ok(());
        for mapping in mappings {
            let dirty = {
                let state = mapping.state.lock();
                // Once it is clean, it may be closed if it is idle: it is kept for the sync.
                (!state.is_clean()).then(|| mapping.file())
            };
            if let Some(file) = dirty {
                let written = mapping.write_back(0..u64::MAX).await;
                let synced = match written {
                    Ok(()) => file.sync(false).await,
                    Err(error) => Err(error),
                };
                result = result.and(synced);
            }
            // Looked at last: a write may fail between the looks at what is dirty.
            let untold = mapping.state.lock().errors.untold();
            result = result.and(untold.map_or(Ok(()), Err));
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
    use crate::{Cache, Config};
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::thread::yield_now;
    use weir_stores::fault::{Call, Fault, Rule, What, When};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{Access, Caller, Error, IoFlags, SetAttr};

    #[test]
    fn unmount_syncs_a_file_that_is_closed_meanwhile() {
        let store = Fault::over(MemoryFs::new(), 1);
        let cache = Cache::new(Config::default()).unwrap();
        let fs = cache.mount(store.clone());
        let file = pollster::block_on(async {
            let set = SetAttr::default();
            let made = fs.create(&Caller::Own, fs.root(), b"f", &set, true).await.unwrap();
            fs.open(&Caller::Own, made.attr.id, Access::WRITE).await.unwrap()
        });
        store.add(Rule { call: Call::Write, when: When::Always, what: What::Hold });
        file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
        let mapping = file.open.mapping.clone();
        drop(file);
        let mut unmount = pin!(fs.unmount());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(unmount.as_mut().poll(&mut cx).is_pending());
        store.release();
        // As the flusher does, when it has been idle for long enough.
        while mapping.take_file().is_none() {
            yield_now();
        }
        pollster::block_on(unmount).unwrap();
    }

    #[test]
    fn unmount_tells_of_a_write_that_fails_meanwhile() {
        let store = Fault::over(MemoryFs::new(), 1);
        let cache = Cache::new(Config::default()).unwrap();
        let fs = cache.mount(store.clone());
        let file = pollster::block_on(async {
            let set = SetAttr::default();
            let made = fs.create(&Caller::Own, fs.root(), b"f", &set, true).await.unwrap();
            fs.open(&Caller::Own, made.attr.id, Access::WRITE).await.unwrap()
        });
        store.add(Rule { call: Call::Sync, when: When::Always, what: What::Hold });
        file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
        let mut unmount = pin!(fs.unmount());
        let mut cx = Context::from_waker(Waker::noop());
        while store.held() == 0 {
            assert!(unmount.as_mut().poll(&mut cx).is_pending());
        }
        store.add(Rule { call: Call::Write, when: When::Always, what: What::Fail(Error::Quota) });
        file.write_at(&[2; 4096], 0, IoFlags::UNCACHED).unwrap();
        while cache.dirty_bytes() > 0 {
            yield_now();
        }
        store.clear();
        store.release();
        assert_eq!(pollster::block_on(unmount), Err(Error::Quota));
    }

    #[test]
    fn an_error_outlives_its_mapping_until_an_open_file_is_told() {
        let store = Fault::over(MemoryFs::new(), 1);
        let fs = Cache::new(Config::default()).unwrap().mount(store.clone());
        let access = Access::READ | Access::WRITE;
        let lose = |name: &[u8]| {
            pollster::block_on(async {
                let set = SetAttr::default();
                let made = fs.create(&Caller::Own, fs.root(), name, &set, true).await.unwrap();
                let id = made.attr.id;
                let file = fs.open(&Caller::Own, id, access).await.unwrap();
                store.add(Rule {
                    call: Call::Write,
                    when: When::Always,
                    what: What::Fail(Error::Quota),
                });
                file.write_at(&[1; 4096], 0, IoFlags::UNCACHED).unwrap();
                while fs.cache().dirty_bytes() > 0 {
                    yield_now();
                }
                drop(file);
                store.clear();
                while !fs.shared.drop_oldest_idle() {
                    yield_now();
                }
                id
            })
        };
        let id = lose(b"f");
        let open = || pollster::block_on(fs.open(&Caller::Own, id, access)).unwrap();
        let (one, two) = (open(), open());
        assert_eq!((one.sync(true), two.sync(true)), (Err(Error::Quota), Err(Error::Quota)));
        drop((one, two));
        while !fs.shared.drop_oldest_idle() {
            yield_now();
        }
        assert_eq!(open().sync(true), Ok(()), "told already");
        lose(b"g");
        assert_eq!(pollster::block_on(fs.unmount()), Err(Error::Quota));
    }
}
