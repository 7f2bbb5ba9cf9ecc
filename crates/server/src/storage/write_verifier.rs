//! The write verifier: how clients notice that unstable data may be lost.
//!
//! 1. It differs in each run of the server, and from one failed sync to the next, whichever call
//!    asked for it (COMMIT, a stable WRITE, a change of names): a client that compares it writes
//!    again what it has not committed.
//!    So it does after data of the file's store was lost that no call asked to sync: another client may
//!    have been told of that, or the file have left the cache since.
//! 2. WRITE tells the verifier from before it wrote, COMMIT the one from after it synced: data that
//!    is lost in between makes them differ.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_pagecache::File;

/// The verifier of this run.
#[derive(Debug)]
pub struct WriteVerifier(AtomicU64);

impl WriteVerifier {
    /// The verifier of the server's `run`.
    pub fn new(run: u32) -> Self {
        Self(AtomicU64::new(u64::from(run) << 32))
    }

    /// As it goes with a reply about `file`. Taken before the write, so that data lost after it is
    /// noticed.
    pub fn get(&self, file: &File) -> [u8; 8] {
        let syncs = self.0.load(Ordering::Acquire);
        syncs.wrapping_add(file.store_write_errors()).to_be_bytes()
    }

    /// What it is without any file.
    #[cfg(test)]
    pub(crate) fn of_syncs(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Makes writes of `count` bytes (0: to the end) at `offset` durable for a client; the verifier
    /// that says so. It is taken after the sync: what was lost before, another call may have
    /// been told of it, and this one's sync have nothing left to write.
    ///
    /// # Errors
    /// What could not be written may be lost; the verifier is another one from then on.
    pub async fn commit(&self, file: &File, offset: u64, count: u32) -> weir_vfs::Result<[u8; 8]> {
        let end = if count == 0 { u64::MAX } else { offset.saturating_add(count.into()) };
        self.sync(file, file.write_errors(), offset..end, false).await?;
        Ok(self.get(file))
    }

    /// Makes writes of a range durable, with attributes unless `data_only`; `since` is the count of the
    /// file's errors before they were made.
    ///
    /// # Errors
    /// As [`commit`](Self::commit)'s.
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

    /// Data that is not committed may be lost: the verifier is another one from now on.
    pub(crate) fn data_may_be_lost(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}
