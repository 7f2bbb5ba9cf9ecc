//! Counts the kernel's requests, and the data that they move.

use crate::wire::abi::opcode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use weir_base::counters::{BOUNDS_US, DataCounters, DataSums, OperationCounters};

/// Kinds of requests that have a name, by the number of the kind; 0 stands for all others.
const ROWS: usize = opcode::COPY_FILE_RANGE_64 as usize + 1;

/// Counters of a mounted file system, which outlive it.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    requests: OperationCounters,
    failed: Vec<AtomicU64>,
    data: DataCounters,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            requests: OperationCounters::new(ROWS),
            failed: (0..ROWS).map(|_| AtomicU64::new(0)).collect(),
            data: DataCounters::default(),
        }
    }
}

/// Counters of one kind of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCounts {
    /// Its name, as in `linux/fuse.h` without the prefix.
    pub name: &'static str,
    /// How often the kernel made it.
    pub count: u64,
    /// How often it failed.
    pub failed: u64,
    /// How long all requests together took, in nanoseconds.
    pub nanos: u64,
    /// Bytes of all requests, headers included.
    pub received_bytes: u64,
    /// Bytes of all replies, without headers.
    pub sent_bytes: u64,
    /// Requests by duration: those up to each of [`Counters::bounds_us`] and above the one before;
    /// the last element counts the slower ones.
    pub by_duration: Vec<u64>,
}

/// A request that is being carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) opcode: u32,
    /// Its bytes.
    pub(crate) received: usize,
    pub(crate) at: Instant,
}

impl Counters {
    /// The upper bounds of [`RequestCounts::by_duration`], in microseconds.
    pub fn bounds_us() -> &'static [u64] {
        &BOUNDS_US
    }

    /// The kinds of requests that the kernel has made.
    pub fn requests(&self) -> Vec<RequestCounts> {
        let counts = |row: usize| {
            let sums = self.0.requests.sums(row);
            RequestCounts {
                name: opcode::name(row as u32).unwrap_or("unknown"),
                count: sums.count(),
                failed: self.0.failed[row].load(Relaxed),
                nanos: sums.nanos,
                received_bytes: sums.received,
                sent_bytes: sums.sent,
                by_duration: sums.took.to_vec(),
            }
        };
        (0..ROWS).map(counts).filter(|counts| counts.count > 0).collect()
    }

    /// What programs read and wrote. Reads that the kernel's page cache answers are not requests.
    pub fn data(&self) -> DataSums {
        self.0.data.sums()
    }

    /// Counts data.
    pub(crate) fn moved(&self) -> &DataCounters {
        &self.0.data
    }

    /// Counts a request that was answered with `sent` bytes.
    pub(crate) fn done(&self, begun: &Begun, sent: usize) {
        let Begun { opcode, received, at } = *begun;
        self.0.requests.count(row(opcode), at.elapsed(), received, sent);
    }

    /// Counts a request that failed.
    pub(crate) fn failed(&self, begun: &Begun) {
        self.0.failed[row(begun.opcode)].fetch_add(1, Relaxed);
        self.done(begun, 0);
    }
}

fn row(opcode: u32) -> usize {
    opcode::name(opcode).map_or(0, |_| opcode as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_their_kind() {
        let counters = Counters::default();
        let begun = |opcode| Begun { opcode, received: 80, at: Instant::now() };
        counters.done(&begun(opcode::READ), 4096);
        counters.failed(&begun(opcode::READ));
        counters.failed(&begun(4000));
        counters.done(&begun(opcode::COPY_FILE_RANGE_64), 8);
        let requests = counters.requests();
        let names: Vec<_> = requests.iter().map(|one| (one.name, one.count, one.failed)).collect();
        assert_eq!(names, [("unknown", 1, 1), ("read", 2, 1), ("copy_file_range_64", 1, 0)]);
        assert_eq!((requests[1].received_bytes, requests[1].sent_bytes), (160, 4096));
        assert_eq!(requests[1].by_duration.iter().sum::<u64>(), 2);
    }
}
