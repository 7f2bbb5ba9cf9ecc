//! Counters per operation: number, latency, outcome and bytes.
//!
//! 1. The rows and labels come from the protocols' operation tables, so an operation added there is
//!    counted.
//! 2. Counting takes no lock ([`weir_base::counters`]). Only failures, which are counted by status,
//!    use lines that threads share.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use weir_base::counters::OperationCounters;
pub(crate) use weir_base::counters::{
    BOUNDS_US, DataCounters as ExportCounts, DataSums as ExportSums, OperationSums as Sums,
};
use weir_nfs::v4::OpCode;
use weir_nfs::{nfsacl, v3, v4};

/// Rows: the operations of NFSv4 by number (the last for illegal ones), the procedures of NFSv3,
/// and those of NFSACL.
const OF_V4: usize = 0;
const V4_ROWS: usize = 80;
const ILLEGAL: usize = V4_ROWS - 1;
const OF_V3: usize = V4_ROWS;
const V3_ROWS: usize = v3::Procedure::ALL.len();
const OF_ACL: usize = OF_V3 + V3_ROWS;
const ROWS: usize = OF_ACL + 3;
/// Maximum number of error statuses of one protocol.
const STATUSES: usize = if v4::Error::ALL.len() > v3::Error::ALL.len() {
    v4::Error::ALL.len()
} else {
    v3::Error::ALL.len()
};

// Every operation number has a row.
const _: () = {
    let mut i = 0;
    while i < OpCode::ALL.len() {
        assert!((OpCode::ALL[i] as usize) < ILLEGAL);
        i += 1;
    }
};

/// An operation of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    /// An NFSv4 operation; `None` for an illegal one.
    V4(Option<OpCode>),
    V3(v3::Procedure),
    Acl(nfsacl::Procedure),
}

impl Row {
    const fn index(self) -> usize {
        match self {
            Self::V4(Some(code)) => OF_V4 + code as usize,
            Self::V4(None) => ILLEGAL,
            Self::V3(procedure) => OF_V3 + procedure as usize,
            Self::Acl(procedure) => OF_ACL + procedure as usize,
        }
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        OpCode::ALL
            .iter()
            .map(|&code| Self::V4(Some(code)))
            .chain([Self::V4(None)])
            .chain(v3::Procedure::ALL.iter().map(|&procedure| Self::V3(procedure)))
            .chain(nfsacl::Procedure::ALL.iter().map(|&procedure| Self::Acl(procedure)))
    }

    /// The labels: protocol and operation.
    pub(crate) fn labels(self) -> [(&'static str, &'static str); 2] {
        let (protocol, operation) = match self {
            Self::V4(Some(code)) => ("nfs4", code.name()),
            Self::V4(None) => ("nfs4", "illegal"),
            Self::V3(procedure) => ("nfs3", procedure.name()),
            Self::Acl(procedure) => ("nfsacl3", procedure.name()),
        };
        [("protocol", protocol), ("operation", operation)]
    }

    fn status_name(self, status: usize) -> Option<&'static str> {
        match self {
            Self::V4(_) => v4::Error::ALL.get(status).map(|error| error.name()),
            Self::V3(_) | Self::Acl(_) => v3::Error::ALL.get(status).map(|error| error.name()),
        }
    }
}

/// The outcome of an operation: the protocol's error, if it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    V3(v3::Error),
    V4(v4::Error),
}

impl From<v4::types::Status> for Outcome {
    fn from(status: v4::types::Status) -> Self {
        status.map_or_else(Self::V4, |()| Self::Done)
    }
}

/// An executed operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Executed {
    pub(crate) row: Row,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    /// Bytes of the arguments; `sent` counts those of the results.
    pub(crate) received: usize,
    pub(crate) sent: usize,
}

/// Counters of all operations.
pub(crate) struct Metrics {
    executed: OperationCounters,
    failed: Vec<AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            executed: OperationCounters::new(ROWS),
            failed: (0..ROWS * STATUSES).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Metrics {
    /// Counts an operation.
    pub(crate) fn count(&self, executed: &Executed) {
        let row = executed.row.index();
        self.executed.count(row, executed.took, executed.received, executed.sent);
        let status = match executed.outcome {
            Outcome::Done => None,
            Outcome::V3(error) => v3::Error::ALL.iter().position(|&e| e == error),
            Outcome::V4(error) => v4::Error::ALL.iter().position(|&e| e == error),
        };
        if let Some(status) = status {
            self.failed[row * STATUSES + status].fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn sums(&self, row: Row) -> Sums {
        self.executed.sums(row.index())
    }

    /// The statuses of a row's failures, with their counts.
    pub(crate) fn failures(&self, row: Row) -> impl Iterator<Item = (&'static str, u64)> {
        let first = row.index() * STATUSES;
        let counts = self.failed[first..first + STATUSES].iter().enumerate();
        counts.filter_map(move |(status, count)| {
            let count = count.load(Relaxed);
            (count > 0).then_some((row.status_name(status)?, count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executed(row: Row, outcome: Outcome, took_us: u64) -> Executed {
        Executed { row, outcome, took: Duration::from_micros(took_us), received: 40, sent: 100 }
    }

    #[test]
    fn operations_are_counted_by_row_and_failures_by_status() {
        let metrics = Metrics::default();
        let row = Row::V4(Some(OpCode::Read));
        for _ in 0..20 {
            metrics.count(&executed(row, Outcome::Done, 10));
        }
        metrics.count(&executed(row, Outcome::V4(v4::Error::Stale), 2_000_000));
        metrics.count(&executed(Row::V3(v3::Procedure::Read), Outcome::V3(v3::Error::Stale), 11));
        let sums = metrics.sums(row);
        assert_eq!((sums.count(), sums.received), (21, 840));
        assert_eq!((sums.took[0], sums.took[BOUNDS_US.len()]), (20, 1), "bounds are inclusive");
        assert_eq!(metrics.failures(row).collect::<Vec<_>>(), [("NFS4ERR_STALE", 1)]);
        let v3 = Row::V3(v3::Procedure::Read);
        assert_eq!(metrics.failures(v3).collect::<Vec<_>>(), [("NFS3ERR_STALE", 1)]);
        assert_eq!(metrics.sums(v3).took[1], 1);
    }

    #[test]
    fn every_table_row_has_its_own_index_and_name() {
        let mut places: Vec<usize> = Row::all().map(Row::index).collect();
        let mut names: Vec<_> = Row::all().map(Row::labels).collect();
        let rows = places.len();
        places.sort_unstable();
        places.dedup();
        names.sort_unstable();
        names.dedup();
        assert_eq!((places.len(), names.len()), (rows, rows));
        assert!(places.iter().all(|&place| place < ROWS));
    }
}
