//! Renames of symbolic links that a sync of their directories does not make durable.
//!
//! On btrfs (Linux 6.12), fsync(2) of the directories leaves out the rename of a symbolic link that the file
//! system's log already has: after a power failure the link has its old name, and a file that it replaced is
//! gone. A link cannot be synced by itself, so the next sync of a directory first syncs the whole file system.
//!
//! 1. One such sync runs at a time. Calls that wait for it share the next one.
//! 2. syncfs(2) reports errors of all files of the file system since its descriptor was opened, and does not
//!    tell which. A call fails with them, and with those of a sync that it waited for: an error without a
//!    loss is better than a loss without an error. The directory's own fsync(2) follows.

use parking_lot::Mutex;
use rustix::fs::fstatfs;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_vfs::{Error, Result};

const BTRFS: u64 = 0x9123_683e;

/// Counts renames of symbolic links, on a file system where that matters.
#[derive(Debug)]
pub(super) struct SymlinkRenames {
    matters: bool,
    made: AtomicU64,
    durable: AtomicU64,
    /// Held during a sync of the file system.
    turn: tokio::sync::Mutex<()>,
    /// Number of these syncs that have failed, and the error of the last one.
    failed: Mutex<(u64, Error)>,
}

impl SymlinkRenames {
    /// None so far, in the file system of `root`.
    pub(super) fn of(root: BorrowedFd<'_>) -> Self {
        let magic = fstatfs(root).map(|fs| fs.f_type as u64 & 0xffff_ffff);
        Self::none(magic == Ok(BTRFS))
    }

    fn none(matters: bool) -> Self {
        Self {
            matters,
            made: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            turn: tokio::sync::Mutex::default(),
            failed: Mutex::new((0, Error::Io)),
        }
    }

    /// Whether renames have to be noted.
    pub(super) fn matter(&self) -> bool {
        self.matters
    }

    /// A symbolic link has been renamed.
    pub(super) fn note(&self) {
        if self.matters {
            self.made.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// How many were made, if some may not be durable: the file system is to be synced.
    pub(super) fn due(&self) -> Option<u64> {
        let made = self.made.load(Ordering::Acquire);
        (made > self.durable.load(Ordering::Acquire)).then_some(made)
    }

    /// Makes as many renames durable as [`due`](Self::due) told, by `sync_all`, which syncs the file
    /// system, unless another call's sync covers them.
    ///
    /// # Errors
    /// Those of `sync_all`, or of another call's that failed while this call waited.
    pub(super) async fn sync(
        &self,
        due: u64,
        sync_all: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let (failures, _) = *self.failed.lock();
        let _turn = self.turn.lock().await;
        let (failed, error) = *self.failed.lock();
        if failed != failures {
            return Err(error);
        }
        if self.durable.load(Ordering::Acquire) >= due {
            return Ok(());
        }
        let made = self.made.load(Ordering::Acquire);
        let synced = sync_all.await;
        match synced {
            Ok(()) => _ = self.durable.fetch_max(made, Ordering::AcqRel),
            Err(error) => *self.failed.lock() = (failed + 1, error),
        }
        synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Poll, Waker};
    use tokio::sync::oneshot;

    fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn a_sync_that_began_before_a_rename_does_not_cover_it() {
        let renames = SymlinkRenames::none(true);
        assert_eq!(renames.due(), None);
        renames.note();
        let renamed_meanwhile = async {
            renames.note();
            Ok(())
        };
        renames.sync(renames.due().unwrap(), renamed_meanwhile).await.unwrap();
        assert_eq!(renames.due(), Some(2));
        renames.sync(2, async { Ok(()) }).await.unwrap();
        assert_eq!(renames.due(), None);
    }

    #[tokio::test]
    async fn calls_that_wait_share_the_next_sync_and_the_error_of_the_one_before() {
        for before in [Ok(()), Err(Error::NoSpace)] {
            let renames = SymlinkRenames::none(true);
            let (go_on, held) = oneshot::channel();
            renames.note();
            let first = async { held.await.unwrap() };
            let mut first = pin!(renames.sync(1, first));
            assert!(poll_once(first.as_mut()).is_pending());
            renames.note();
            let syncs = AtomicUsize::new(0);
            let sync_all = || async {
                syncs.fetch_add(1, Ordering::SeqCst);
                Ok(())
            };
            let mut second = pin!(renames.sync(2, sync_all()));
            let mut third = pin!(renames.sync(2, sync_all()));
            assert!(poll_once(second.as_mut()).is_pending());
            assert!(poll_once(third.as_mut()).is_pending());
            assert_eq!(syncs.load(Ordering::SeqCst), 0, "one at a time");
            go_on.send(before).unwrap();
            assert_eq!((first.await, second.await, third.await), (before, before, before));
            assert_eq!(syncs.load(Ordering::SeqCst), before.is_ok() as usize);
            assert_eq!(renames.sync(2, sync_all()).await, Ok(()));
            assert_eq!((syncs.load(Ordering::SeqCst), renames.due()), (1, None));
        }
    }
}
