//! The end of a store's use through the cache.
//!
//! 1. What was written is at the store before the store is unmounted, or the caller is told.

use crate::fs::CachedFs;
use weir_vfs::Result;

impl CachedFs {
    /// Writes back everything that was written to the store's files, and ends the use of the store
    /// ([`FileSystem::unmount`](weir_vfs::FileSystem::unmount)).
    ///
    /// # Errors
    /// The first error of writing back or syncing a file, or that of the store; it is unmounted all
    /// the same.
    pub async fn unmount(&self) -> Result<()> {
        let mappings: Vec<_> = {
            let table = self.shared.table.lock();
            table.mappings.values().map(|entry| entry.mapping.clone()).collect()
        };
        let mut result = Ok(());
        for mapping in mappings {
            if mapping.state.lock().is_clean() {
                continue;
            }
            let written = mapping.write_back(0..u64::MAX).await;
            let synced = match written {
                Ok(()) => mapping.file().sync(false).await,
                Err(error) => Err(error),
            };
            result = result.and(synced);
        }
        let unmounted = self.store().unmount().await;
        result.and(unmounted)
    }
}
