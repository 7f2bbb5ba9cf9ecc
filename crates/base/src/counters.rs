//! Counters of operations and of data, for the server and for mounts.
//!
//! 1. Counting takes no lock. Each of the first `SHARDS` threads counts in a shard of its own, so that
//!    threads do not contend for cache lines.
//! 2. A sum is not a snapshot: operations that are counted meanwhile may be in it or not.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

const SHARDS: usize = 16;

/// Upper bounds of the latency histogram, in microseconds. One more bucket counts slower
/// operations.
pub const BOUNDS_US: [u64; 15] = [
    10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000,
    1_000_000,
];

/// Buckets of the latency histogram.
pub const BUCKETS: usize = BOUNDS_US.len() + 1;

/// The shard of the next thread.
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = NEXT.fetch_add(1, Relaxed) % SHARDS;
}

/// This thread's shard.
fn shard() -> usize {
    SHARD.try_with(|shard| *shard).unwrap_or(0)
}

/// Number, latency and bytes of operations; each kind of operation has a row.
#[derive(Debug)]
pub struct OperationCounters {
    shards: Vec<Vec<Operation>>,
}

#[derive(Debug, Default)]
struct Operation {
    nanos: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    /// Number of operations by latency bucket.
    took: [AtomicU64; BUCKETS],
}

/// The totals of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationSums {
    /// How long all operations took together, in nanoseconds.
    pub nanos: u64,
    /// Bytes of their arguments.
    pub received: u64,
    /// Bytes of their results.
    pub sent: u64,
    /// Number of operations by duration: those up to each of [`BOUNDS_US`] and above the one before;
    /// the last element counts the slower ones.
    pub took: [u64; BUCKETS],
}

impl OperationSums {
    /// Number of operations.
    pub fn count(&self) -> u64 {
        self.took.iter().sum()
    }
}

impl OperationCounters {
    /// Counters for `rows` kinds of operations.
    pub fn new(rows: usize) -> Self {
        let shard = || (0..rows).map(|_| Operation::default()).collect();
        Self { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    /// Counts an operation, with the bytes of its arguments and of its result.
    ///
    /// # Panics
    /// There is no such row.
    pub fn count(&self, row: usize, took: Duration, received: usize, sent: usize) {
        let counts = &self.shards[shard()][row];
        let took_us = took.as_micros() as u64;
        let bucket = BOUNDS_US.partition_point(|&bound| bound < took_us);
        counts.took[bucket].fetch_add(1, Relaxed);
        counts.nanos.fetch_add(took.as_nanos() as u64, Relaxed);
        counts.received.fetch_add(received as u64, Relaxed);
        counts.sent.fetch_add(sent as u64, Relaxed);
    }

    /// The totals of a row.
    ///
    /// # Panics
    /// There is no such row.
    pub fn sums(&self, row: usize) -> OperationSums {
        let mut sums = OperationSums::default();
        for shard in &self.shards {
            let counts = &shard[row];
            sums.nanos += counts.nanos.load(Relaxed);
            sums.received += counts.received.load(Relaxed);
            sums.sent += counts.sent.load(Relaxed);
            for (sum, took) in sums.took.iter_mut().zip(&counts.took) {
                *sum += took.load(Relaxed);
            }
        }
        sums
    }
}

/// What users read and wrote.
#[derive(Debug, Default)]
pub struct DataCounters {
    shards: [Data; SHARDS],
}

/// The counters of some threads, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Data {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    hole_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

/// The totals of [`DataCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataSums {
    /// Reads.
    pub reads: u64,
    /// Bytes of data that they returned.
    pub read_bytes: u64,
    /// Bytes of holes that they described instead of sending zeros (READ_PLUS).
    pub hole_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes that they carried.
    pub written_bytes: u64,
}

impl DataCounters {
    /// Counts a read that returned `bytes` of data.
    pub fn read(&self, bytes: usize) {
        let shard = &self.shards[shard()];
        shard.reads.fetch_add(1, Relaxed);
        shard.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts `bytes` of holes that a read described instead of sending zeros.
    pub fn hole(&self, bytes: u64) {
        self.shards[shard()].hole_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts a write of `bytes`.
    pub fn written(&self, bytes: usize) {
        let shard = &self.shards[shard()];
        shard.writes.fetch_add(1, Relaxed);
        shard.written_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// The totals.
    pub fn sums(&self) -> DataSums {
        self.shards.iter().fold(DataSums::default(), |sums, shard| DataSums {
            reads: sums.reads + shard.reads.load(Relaxed),
            read_bytes: sums.read_bytes + shard.read_bytes.load(Relaxed),
            hole_bytes: sums.hole_bytes + shard.hole_bytes.load(Relaxed),
            writes: sums.writes + shard.writes.load(Relaxed),
            written_bytes: sums.written_bytes + shard.written_bytes.load(Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_are_summed() {
        let (operations, data) = (OperationCounters::new(2), DataCounters::default());
        std::thread::scope(|scope| {
            for _ in 0..SHARDS + 4 {
                scope.spawn(|| {
                    operations.count(1, Duration::from_micros(10), 40, 100);
                    data.read(7);
                    data.hole(9);
                    data.written(5);
                });
            }
        });
        operations.count(1, Duration::from_secs(2), 1, 1);
        let sums = operations.sums(1);
        assert_eq!((sums.count(), sums.received, sums.sent), (21, 801, 2001));
        assert_eq!((sums.took[0], sums.took[BUCKETS - 1]), (20, 1), "bounds are inclusive");
        assert_eq!(operations.sums(0), OperationSums::default());
        let wanted = DataSums {
            reads: 20,
            read_bytes: 140,
            hole_bytes: 180,
            writes: 20,
            written_bytes: 100,
        };
        assert_eq!(data.sums(), wanted);
    }
}
