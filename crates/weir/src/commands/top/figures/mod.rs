//! The figures of an interval, from what a process said at its two ends; no I/O.
//!
//! 1. The process's own uptime measures the interval, so that a slow answer does not change a rate.
//! 2. A counter that is smaller than before began again: all of it belongs to the interval.
//! 3. A process without an earlier sample, and one that started in the meantime, has the figures since
//!    its start.

pub(super) mod latency;
pub(super) mod sort;
#[cfg(test)]
mod tests;

use latency::Latency;
use std::collections::HashMap;
use weir_control::{Connection, Export, FileStatus, Operation, Status};

/// Bytes of a page of the cache.
const PAGE_BYTES: u64 = 4096;

/// What a process said at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    pub(super) status: Status,
    /// The files with the most bytes in its cache.
    pub(super) files: Vec<FileStatus>,
}

/// What a process did in an interval.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) pid: u32,
    pub(super) command: String,
    pub(super) what: String,
    pub(super) version: String,
    pub(super) uptime_ms: u64,
    /// The length of the interval.
    pub(super) seconds: f64,
    /// The interval began when the process started.
    pub(super) since_start: bool,
    pub(super) data: Data,
    /// What users moved since the process started.
    pub(super) total: Data,
    pub(super) cache: CacheFigures,
    pub(super) operations: Vec<OperationFigures>,
    pub(super) connections: Vec<ConnectionFigures>,
    pub(super) files: Vec<FileStatus>,
}

/// What users moved, through all exports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    /// Holes that READ_PLUS described: zeros that were not sent.
    pub(super) hole_bytes: u64,
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
}

/// A page cache, now and in the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CacheFigures {
    pub(super) budget_bytes: u64,
    pub(super) used_bytes: u64,
    pub(super) dirty_bytes: u64,
    /// Share of reads that the cache answered without waiting; `None` without reads.
    pub(super) hit_rate: Option<f64>,
    /// What uncached operations brought in, and then dropped.
    pub(super) uncached_bytes: u64,
    pub(super) pruned_bytes: u64,
    /// Of these, what a cached access claimed, and what cost cached pages their place.
    pub(super) claimed_bytes: u64,
    pub(super) lost_bytes: u64,
}

/// An operation in the interval.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OperationFigures {
    pub(super) protocol: String,
    pub(super) name: String,
    pub(super) count: u64,
    pub(super) failed: u64,
    pub(super) nanos: u64,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
    pub(super) latency: Latency,
}

/// A connection in the interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConnectionFigures {
    pub(super) id: u64,
    pub(super) address: String,
    pub(super) calls: u64,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
}

impl Figures {
    /// The figures between two samples. Without the first, those since the start.
    pub(super) fn between(before: Option<&Sample>, now: &Sample) -> Self {
        let status = &now.status;
        let before = before.map(|sample| &sample.status).filter(|old| is_same(old, status));
        let began_ms = before.map_or(0, |old| old.uptime_ms);
        let none = Status::default();
        let old = before.unwrap_or(&none);
        Self {
            pid: status.pid,
            command: status.command.clone(),
            what: status.what.clone(),
            version: status.version.clone(),
            uptime_ms: status.uptime_ms,
            seconds: (status.uptime_ms - began_ms) as f64 / 1000.0,
            since_start: before.is_none(),
            data: data_between(&old.exports, &status.exports),
            total: data_between(&[], &status.exports),
            cache: cache_between(old, status),
            operations: operations_between(old, status),
            connections: connections_between(&old.connections, &status.connections),
            files: now.files.clone(),
        }
    }

    /// A number of the interval for each second.
    pub(super) fn per_second(&self, number: u64) -> f64 {
        if self.seconds > 0.0 { number as f64 / self.seconds } else { 0.0 }
    }
}

impl Data {
    /// The share of the bytes that readers got which were holes, and not sent; `None` without any.
    pub(super) fn saved_share(&self) -> Option<f64> {
        let all = self.hole_bytes.saturating_add(self.read_bytes);
        (self.hole_bytes > 0).then(|| self.hole_bytes as f64 / all as f64)
    }
}

/// Whether the earlier status is one of the same run of the same process.
fn is_same(old: &Status, new: &Status) -> bool {
    old.pid == new.pid && old.uptime_ms <= new.uptime_ms
}

/// How much a counter grew.
fn grown(old: u64, new: u64) -> u64 {
    new.checked_sub(old).unwrap_or(new)
}

fn data_between(old: &[Export], new: &[Export]) -> Data {
    let known: HashMap<_, _> =
        old.iter().map(|export| ((&export.name, &export.path), export)).collect();
    let mut sum = Data::default();
    for export in new {
        let before = known.get(&(&export.name, &export.path));
        let part = |of: fn(&Export) -> u64| grown(before.map_or(0, |old| of(old)), of(export));
        sum.reads += part(|export| export.reads);
        sum.read_bytes += part(|export| export.read_bytes);
        sum.hole_bytes += part(|export| export.hole_bytes);
        sum.writes += part(|export| export.writes);
        sum.written_bytes += part(|export| export.written_bytes);
    }
    sum
}

fn cache_between(old: &Status, new: &Status) -> CacheFigures {
    let count = |name: &str| {
        let of = |status: &Status| status.cache.counters.get(name).copied().unwrap_or(0);
        grown(of(old), of(new))
    };
    let pages = |name: &str| count(name).saturating_mul(PAGE_BYTES);
    let hits = count("fast_reads");
    let reads = hits + count("fallback_missing");
    CacheFigures {
        budget_bytes: new.cache.budget_bytes,
        used_bytes: new.cache.used_bytes,
        dirty_bytes: new.cache.dirty_bytes,
        hit_rate: (reads > 0).then(|| hits as f64 / reads as f64),
        uncached_bytes: pages("uncached_pages"),
        pruned_bytes: pages("pruned_pages"),
        claimed_bytes: pages("claimed_pages"),
        lost_bytes: pages("lost_pages"),
    }
}

/// The operations that were executed in the interval.
fn operations_between(old: &Status, new: &Status) -> Vec<OperationFigures> {
    let name = |one: &Operation| (one.protocol.clone(), one.name.clone());
    let known: HashMap<_, _> = old.operations.iter().map(|one| (name(one), one)).collect();
    let figures = new.operations.iter().map(|one| {
        let before = known.get(&name(one)).filter(|old| old.count <= one.count);
        let part = |of: fn(&Operation) -> u64| grown(before.map_or(0, |old| of(old)), of(one));
        let buckets = one.by_duration.iter().enumerate().map(|(at, &count)| {
            let old = before.and_then(|old| old.by_duration.get(at)).copied();
            grown(old.unwrap_or(0), count)
        });
        OperationFigures {
            protocol: one.protocol.clone(),
            name: one.name.clone(),
            count: part(|one| one.count),
            failed: part(|one| one.failed),
            nanos: part(|one| one.nanos),
            received_bytes: part(|one| one.received_bytes),
            sent_bytes: part(|one| one.sent_bytes),
            latency: Latency::of(&buckets.collect::<Vec<_>>(), &new.bounds_us),
        }
    });
    figures.filter(|one| one.count > 0).collect()
}

/// All open connections.
fn connections_between(old: &[Connection], new: &[Connection]) -> Vec<ConnectionFigures> {
    let known: HashMap<_, _> = old.iter().map(|one| (one.id, one)).collect();
    let figures = new.iter().map(|one| {
        let before = known.get(&one.id);
        let part = |of: fn(&Connection) -> u64| grown(before.map_or(0, |old| of(old)), of(one));
        ConnectionFigures {
            id: one.id,
            address: one.address.clone(),
            calls: part(|one| one.calls),
            received_bytes: part(|one| one.received_bytes),
            sent_bytes: part(|one| one.sent_bytes),
        }
    });
    figures.collect()
}
