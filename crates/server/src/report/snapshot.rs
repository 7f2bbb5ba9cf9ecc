//! The counters as values, for programs that show them.

use super::Report;
use crate::metrics::{BOUNDS_US, Row};
use crate::transport::ConnectionCounts;
use std::path::PathBuf;
use weir_pagecache::CachedFs;

/// Counters of one operation since the server started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationCounts {
    /// The protocol, like `nfs4`.
    pub protocol: &'static str,
    /// The operation's name.
    pub operation: &'static str,
    /// How often it was executed.
    pub count: u64,
    /// How often it failed.
    pub failed: u64,
    /// How long all executions together took, in nanoseconds.
    pub nanos: u64,
    /// Bytes of all arguments.
    pub received_bytes: u64,
    /// Bytes of all results.
    pub sent_bytes: u64,
    /// Executions by duration: those up to each of [`bounds_us`] and above the one before; the last
    /// element counts the slower ones.
    pub by_duration: Vec<u64>,
}

/// Counters of one export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportCounts {
    /// The path that clients mount.
    pub path: String,
    /// The exported directory.
    pub source: PathBuf,
    /// READs and READ_PLUSes.
    pub reads: u64,
    /// Bytes that they returned.
    pub read_bytes: u64,
    /// Bytes of holes that READ_PLUSes described instead of sending zeros.
    pub hole_bytes: u64,
    /// WRITEs.
    pub writes: u64,
    /// Bytes that they carried.
    pub written_bytes: u64,
}

/// The use of a limit that peers share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitCounts {
    /// Its name, as in the metrics.
    pub name: &'static str,
    /// The limit.
    pub limit: u64,
    /// What all peers together hold.
    pub used: u64,
    /// How often a peer had to wait or was refused.
    pub refused: u64,
}

/// The upper bounds of [`OperationCounts::by_duration`], in microseconds.
pub fn bounds_us() -> &'static [u64] {
    &BOUNDS_US
}

impl Report {
    /// The operations that were executed at least once.
    pub fn operations(&self) -> Vec<OperationCounts> {
        let counts = |row: Row| {
            let sums = self.metrics.sums(row);
            let [(_, protocol), (_, operation)] = row.labels();
            OperationCounts {
                protocol,
                operation,
                count: sums.count(),
                failed: self.metrics.failures(row).map(|(_, count)| count).sum(),
                nanos: sums.nanos,
                received_bytes: sums.received,
                sent_bytes: sums.sent,
                by_duration: sums.took.to_vec(),
            }
        };
        Row::all().map(counts).filter(|counts| counts.count > 0).collect()
    }

    /// The exports.
    pub fn exports(&self) -> Vec<ExportCounts> {
        let table = self.exports.table();
        let counts = table.all().map(|served| {
            let sums = served.counts.sums();
            ExportCounts {
                path: served.export.path.clone(),
                source: served.export.source.clone(),
                reads: sums.reads,
                read_bytes: sums.read_bytes,
                hole_bytes: sums.hole_bytes,
                writes: sums.writes,
                written_bytes: sums.written_bytes,
            }
        });
        counts.collect()
    }

    /// The exported directories, and their files as clients see them.
    pub fn file_systems(&self) -> Vec<(PathBuf, CachedFs)> {
        let table = self.exports.table();
        table.all().map(|served| (served.export.source.clone(), served.fs().clone())).collect()
    }

    /// The open connections that have carried the most bytes, at most `most` of them.
    pub fn connections(&self, most: usize) -> Vec<ConnectionCounts> {
        self.connections.busiest(most)
    }

    /// The limits that peers share.
    pub fn limits(&self) -> Vec<LimitCounts> {
        let counts = (self.limits)().uses.into_iter().map(|one| LimitCounts {
            name: one.name,
            limit: one.limit,
            used: one.used,
            refused: one.refused,
        });
        counts.collect()
    }
}
