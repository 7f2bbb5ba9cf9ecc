//! Counts what clients read and wrote in each export. Exports usually share one page cache, whose
//! counters do not distinguish them.

use super::shard::{SHARDS, shard};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one export.
#[derive(Debug, Default)]
pub(crate) struct ExportCounts {
    shards: [Shard; SHARDS],
}

/// The counters of some threads, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

/// The totals of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExportSums {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
}

impl ExportCounts {
    /// Counts a READ or READ_PLUS that returned `bytes` of data.
    pub(crate) fn read(&self, bytes: usize) {
        let shard = &self.shards[shard()];
        shard.reads.fetch_add(1, Relaxed);
        shard.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a WRITE of `bytes`.
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
