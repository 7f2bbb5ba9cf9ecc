//! An interval as JSON: docs/JSON.md describes the fields.

use super::figures::{CacheFigures, Data, Figures};
use super::reader::Readings;
use crate::output::{text_and_hex, utc};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

/// One interval of all processes.
#[derive(Serialize)]
pub(super) struct IntervalJson<'a> {
    time: String,
    processes: Vec<ProcessJson<'a>>,
    failures: &'a [String],
}

#[derive(Serialize)]
struct ProcessJson<'a> {
    pid: u32,
    command: &'a str,
    what: &'a str,
    version: &'a str,
    uptime_ms: u64,
    seconds: f64,
    since_start: bool,
    reads: u64,
    read_bytes: u64,
    read_bytes_per_s: f64,
    hole_bytes: u64,
    hole_bytes_per_s: f64,
    writes: u64,
    written_bytes: u64,
    written_bytes_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    hit_rate: Option<f64>,
    cache: CacheJson,
    total: TotalJson,
    operations: Vec<OperationJson<'a>>,
    connections: Vec<ConnectionJson<'a>>,
    files: Vec<FileJson>,
}

#[derive(Serialize)]
struct CacheJson {
    budget_bytes: u64,
    used_bytes: u64,
    dirty_bytes: u64,
    uncached_bytes: u64,
    pruned_bytes: u64,
    claimed_bytes: u64,
    lost_bytes: u64,
}

#[derive(Serialize)]
struct TotalJson {
    reads: u64,
    read_bytes: u64,
    hole_bytes: u64,
    writes: u64,
    written_bytes: u64,
}

#[derive(Serialize)]
struct OperationJson<'a> {
    protocol: &'a str,
    name: &'a str,
    count: u64,
    count_per_s: f64,
    failed: u64,
    nanos: u64,
    received_bytes: u64,
    sent_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_us: Option<u64>,
}

#[derive(Serialize)]
struct ConnectionJson<'a> {
    id: u64,
    address: &'a str,
    calls: u64,
    received_bytes: u64,
    sent_bytes: u64,
}

#[derive(Serialize)]
struct FileJson {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    size_bytes: u64,
    resident_bytes: u64,
    dirty_bytes: u64,
}

impl<'a> IntervalJson<'a> {
    pub(super) fn new(all: &'a [Figures], readings: &'a Readings) -> Self {
        let time = utc(SystemTime::now());
        Self { time, processes: all.iter().map(process).collect(), failures: &readings.failures }
    }
}

fn process(figures: &Figures) -> ProcessJson<'_> {
    let Data { reads, read_bytes, hole_bytes, writes, written_bytes } = figures.data;
    ProcessJson {
        pid: figures.pid,
        command: &figures.command,
        what: &figures.what,
        version: &figures.version,
        uptime_ms: figures.uptime_ms,
        seconds: figures.seconds,
        since_start: figures.since_start,
        reads,
        read_bytes,
        read_bytes_per_s: figures.per_second(read_bytes),
        hole_bytes,
        hole_bytes_per_s: figures.per_second(hole_bytes),
        writes,
        written_bytes,
        written_bytes_per_s: figures.per_second(written_bytes),
        hit_rate: figures.cache.hit_rate,
        cache: cache(&figures.cache),
        total: total(&figures.total),
        operations: operations(figures),
        connections: connections(figures),
        files: files(figures),
    }
}

fn cache(cache: &CacheFigures) -> CacheJson {
    let CacheFigures { budget_bytes, used_bytes, dirty_bytes, uncached_bytes, .. } = *cache;
    let CacheFigures { pruned_bytes, claimed_bytes, lost_bytes, .. } = *cache;
    CacheJson {
        budget_bytes,
        used_bytes,
        dirty_bytes,
        uncached_bytes,
        pruned_bytes,
        claimed_bytes,
        lost_bytes,
    }
}

fn total(total: &Data) -> TotalJson {
    let Data { reads, read_bytes, hole_bytes, writes, written_bytes } = *total;
    TotalJson { reads, read_bytes, hole_bytes, writes, written_bytes }
}

fn operations(figures: &Figures) -> Vec<OperationJson<'_>> {
    let one = figures.operations.iter().map(|one| OperationJson {
        protocol: &one.protocol,
        name: &one.name,
        count: one.count,
        count_per_s: figures.per_second(one.count),
        failed: one.failed,
        nanos: one.nanos,
        received_bytes: one.received_bytes,
        sent_bytes: one.sent_bytes,
        p50_us: one.latency.p50.up_to_us(),
        p99_us: one.latency.p99.up_to_us(),
    });
    one.collect()
}

fn connections(figures: &Figures) -> Vec<ConnectionJson<'_>> {
    let one = figures.connections.iter().map(|one| ConnectionJson {
        id: one.id,
        address: &one.address,
        calls: one.calls,
        received_bytes: one.received_bytes,
        sent_bytes: one.sent_bytes,
    });
    one.collect()
}

fn files(figures: &Figures) -> Vec<FileJson> {
    let one = figures.files.iter().map(|file| {
        let (path, path_hex) = text_and_hex(file.path.as_bytes());
        let (size_bytes, resident_bytes) = (file.size_bytes, file.resident_bytes);
        FileJson { path, path_hex, size_bytes, resident_bytes, dirty_bytes: file.dirty_bytes }
    });
    one.collect()
}
