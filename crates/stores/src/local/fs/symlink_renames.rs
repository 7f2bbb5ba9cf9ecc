//! Renames of symbolic links that a sync of their directories does not make durable.
//!
//! On btrfs (Linux 6.12), fsync(2) of the directories leaves out the rename of a symbolic link that the file
//! system's log already has: after a power failure the link has its old name, and a file that it replaced is
//! gone. A link cannot be synced by itself, so the next sync of a directory syncs the whole file system.

use rustix::fs::fstatfs;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

const BTRFS: u64 = 0x9123_683e;

/// Counts renames of symbolic links, on a file system where that matters.
#[derive(Debug)]
pub(super) struct SymlinkRenames {
    matters: bool,
    made: AtomicU64,
    durable: AtomicU64,
}

impl SymlinkRenames {
    /// None so far, in the file system of `root`.
    pub(super) fn of(root: BorrowedFd<'_>) -> Self {
        let matters = fstatfs(root).is_ok_and(|fs| fs.f_type as u64 & 0xffff_ffff == BTRFS);
        Self { matters, made: AtomicU64::new(0), durable: AtomicU64::new(0) }
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

    /// As many as [`due`](Self::due) told are durable.
    pub(super) fn synced(&self, made: u64) {
        self.durable.fetch_max(made, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_that_began_before_a_rename_does_not_cover_it() {
        let renames =
            SymlinkRenames { matters: true, made: AtomicU64::new(0), durable: AtomicU64::new(0) };
        assert_eq!(renames.due(), None);
        renames.note();
        let begun = renames.due().unwrap();
        renames.note();
        renames.synced(begun);
        assert_eq!(renames.due(), Some(2));
        renames.synced(2);
        assert_eq!(renames.due(), None);
    }
}
