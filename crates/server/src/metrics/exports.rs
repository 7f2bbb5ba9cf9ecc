//! What clients read and wrote of each export. Exports mostly share one page cache, whose counters
//! do not tell them apart.

use super::shard::{SHARDS, shard};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one export.
#[derive(Debug, Default)]
pub(crate) struct ExportCounts {
    shards: [Shard; SHARDS],
}

/// Those of some threads, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

/// The sums of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExportSums {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
}

impl ExportCounts {
    /// A READ or READ_PLUS was answered with so many bytes of data.
    pub(crate) fn read(&self, bytes: usize) {
        let shard = &self.shards[shard()];
        shard.reads.fetch_add(1, Relaxed);
        shard.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// A WRITE of so many bytes was done.
    pub(crate) fn written(&self, bytes: usize) {
        let shard = &self.shards[shard()];
        shard.writes.fetch_add(1, Relaxed);
        shard.written_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn sums(&self) -> ExportSums {
        self.shards.iter().fold(ExportSums::default(), |sums, shard| ExportSums {
            reads: sums.reads + shard.reads.load(Relaxed),
            read_bytes: sums.read_bytes + shard.read_bytes.load(Relaxed),
            writes: sums.writes + shard.writes.load(Relaxed),
            written_bytes: sums.written_bytes + shard.written_bytes.load(Relaxed),
        })
    }
}
