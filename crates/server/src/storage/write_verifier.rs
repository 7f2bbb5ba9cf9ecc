//! The write verifier, by which clients notice that unstable data may be lost.
//!
//! 1. The verifier changes with each mount of an export's store, and so with each run of the server; and with each
//!    failed sync, whichever call requested it (COMMIT, a stable WRITE, a change of names). A client that compares
//!    verifiers then rewrites what it has not committed. The verifier also changes when the cache loses data of the
//!    file outside any sync: another client may have received that error, or the file may have left the cache since.
//!    No verifier is given twice for different losses: also not after an export was removed and added again, or after
//!    an older state directory was restored ([`File::loss_epoch`]).
//! 2. WRITE returns the verifier from before its write, COMMIT the one from after its sync. So they
//!    differ if data was lost in between.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_pagecache::File;

/// What the write verifiers of all files have in common: the number of failed syncs.
#[derive(Debug, Default)]
pub struct WriteVerifier(AtomicU64);

impl WriteVerifier {
    /// The verifier for a reply about `file`. WRITE must take it before it writes, so that later
    /// losses change it.
    pub fn get(&self, file: &File) -> [u8; 8] {
        let syncs = self.0.load(Ordering::Acquire);
        syncs.wrapping_add(file.loss_epoch()).to_be_bytes()
    }

    /// The part that does not depend on a file.
    #[cfg(test)]
    pub(crate) fn of_syncs(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Makes writes of `count` bytes (0: to the end) at `offset` durable, and returns the verifier
    /// from after the sync. An earlier loss may have been reported to another call; then this sync
    /// has nothing left to write and succeeds, and only the verifier shows the loss.
    ///
    /// # Errors
    /// Data may be lost; the verifier has changed.
    pub async fn commit(&self, file: &File, offset: u64, count: u32) -> weir_vfs::Result<[u8; 8]> {
        let end = if count == 0 { u64::MAX } else { offset.saturating_add(count.into()) };
        self.sync(file, file.write_errors(), offset..end, false).await?;
        Ok(self.get(file))
    }

    /// Makes writes of a range durable, with attributes unless `data_only`. `since` is the file's
    /// error count from before the writes.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub async fn sync(
        &self,
        file: &File,
        since: u64,
        range: Range<u64>,
        data_only: bool,
    ) -> weir_vfs::Result<()> {
        let synced = file.sync_since_async(since, range, data_only).await;
        if synced.is_err() {
            self.data_may_be_lost();
        }
        synced
    }

    /// Changes the verifier, because uncommitted data may be lost.
    pub(crate) fn data_may_be_lost(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}
