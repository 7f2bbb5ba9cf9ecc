//! Counters as text.

use crate::admission::{LimitUse, Refusals};
use crate::export::Exports;
use crate::metrics::{BOUNDS_US, ExportSums, Metrics, Row, Sums};
use crate::transport::OpenConnections;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;
use weir_pagecache::Cache;

/// A view of a server's counters.
#[derive(Clone)]
pub struct Report {
    pub(super) metrics: Arc<Metrics>,
    pub(super) exports: Arc<Exports>,
    pub(super) limits: LimitUses,
    pub(super) connections: Arc<OpenConnections>,
}

/// Returns the state of the limits that peers share.
pub(crate) type LimitUses = Arc<dyn Fn() -> LimitsReport + Send + Sync>;

/// The state of the limits that peers share.
#[derive(Debug)]
pub(crate) struct LimitsReport {
    pub(crate) uses: Vec<LimitUse>,
    pub(crate) refusals: Vec<Refusals>,
}

/// Most refusals by address that are told, so that peers with many addresses do not make the text
/// long.
const MOST_REFUSALS: usize = 64;

impl Report {
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        exports: Arc<Exports>,
        limits: LimitUses,
        connections: Arc<OpenConnections>,
    ) -> Self {
        Self { metrics, exports, limits, connections }
    }

    /// The counters in the OpenMetrics text format, which Prometheus reads.
    pub fn open_metrics(&self) -> String {
        let mut registry = Registry::with_prefix("weir");
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }

    /// A summary for people: a line for each executed operation, the most frequent first.
    pub fn summary(&self) -> String {
        summary(&self.metrics)
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report").finish_non_exhaustive()
    }
}

impl Collector for Report {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = &self.metrics;
        let executed = executed(metrics);

        let help = "How long operations took";
        let unit = Unit::Seconds;
        let mut family =
            encoder.encode_descriptor("operation", help, Some(&unit), MetricType::Histogram)?;
        for (row, sums) in &executed {
            let bounds = BOUNDS_US.iter().map(|&us| us as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(sums.took).collect();
            let labels = row.labels();
            let mut one = family.encode_family(&labels)?;
            let seconds = sums.nanos as f64 / 1e9;
            one.encode_histogram::<NoLabelSet>(seconds, sums.count(), &buckets, None)?;
        }

        type Part = fn(&Sums) -> u64;
        let bytes: [(_, _, Part); 2] = [
            ("received", "Bytes of operations' arguments", |sums| sums.received),
            ("sent", "Bytes of operations' results", |sums| sums.sent),
        ];
        for (name, help, of) in bytes {
            let unit = Unit::Bytes;
            let mut family =
                encoder.encode_descriptor(name, help, Some(&unit), MetricType::Counter)?;
            for (row, sums) in &executed {
                ConstCounter::new(of(sums)).encode(family.encode_family(&row.labels())?)?;
            }
        }

        let help = "Operations that failed, by status";
        let mut family = encoder.encode_descriptor("failed", help, None, MetricType::Counter)?;
        for (row, _) in &executed {
            for (status, count) in metrics.failures(*row) {
                let [protocol, operation] = row.labels();
                let labels = [protocol, operation, ("status", status)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        self.encode_limits(&mut encoder)?;
        self.encode_exports(&mut encoder)?;
        self.encode_caches(encoder)
    }
}

impl Report {
    /// The use of the limits that peers share.
    fn encode_limits(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let LimitsReport { uses, mut refusals } = (self.limits)();
        type Part = fn(&LimitUse) -> u64;
        let gauges: [(_, _, Part); 2] = [
            ("limit", "Upper limit for all peers together", |limit| limit.limit),
            ("limit_used", "Amount that all peers together hold", |limit| limit.used),
        ];
        for (name, help, of) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for one in &uses {
                let gauge = ConstGauge::new(i64::try_from(of(one)).unwrap_or(i64::MAX));
                gauge.encode(family.encode_family(&[("limit", one.name)])?)?;
            }
        }
        let help = "How often a peer had to wait or was refused";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("limit_refused", help, None, kind)?;
        for one in &uses {
            ConstCounter::new(one.refused).encode(family.encode_family(&[("limit", one.name)])?)?;
        }
        refusals.sort_unstable_by_key(|one| (std::cmp::Reverse(one.count), one.address, one.limit));
        let help = "The addresses that waited or were refused most often, while they are in use";
        let mut family = encoder.encode_descriptor("address_refused", help, None, kind)?;
        for one in refusals.iter().take(MOST_REFUSALS) {
            let address = one.address.to_string();
            let labels = [("limit", one.limit), ("address", &*address)];
            ConstCounter::new(one.count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// The bytes read and written in each export, by its path.
    fn encode_exports(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let table = self.exports.table();
        let sums: Vec<_> = table.all().map(|e| (&*e.export.path, e.counts.sums())).collect();
        type Part = fn(&ExportSums) -> u64;
        let parts: [(_, _, _, Part); 5] = [
            ("export_reads", "READs and READ_PLUSes", None, |sums| sums.reads),
            ("export_read", "Data that was read", Some(Unit::Bytes), |sums| sums.read_bytes),
            ("export_hole", "Holes that READ_PLUS described", Some(Unit::Bytes), |s| s.hole_bytes),
            ("export_writes", "WRITEs", None, |sums| sums.writes),
            ("export_written", "Data that was written", Some(Unit::Bytes), |s| s.written_bytes),
        ];
        for (name, help, unit, of) in parts {
            let kind = MetricType::Counter;
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for (path, sums) in &sums {
                ConstCounter::new(of(sums)).encode(family.encode_family(&[("export", *path)])?)?;
            }
        }
        Ok(())
    }

    /// The counters of each page cache, labelled with the path of the first export that uses it.
    /// Usually there is only one.
    fn encode_caches(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let table = self.exports.table();
        let mut caches: Vec<(&str, &Cache)> = Vec::new();
        for export in table.all() {
            let cache = export.fs().cache();
            if caches.iter().all(|(_, other)| !other.is(cache)) {
                caches.push((&export.export.path, cache));
            }
        }
        let stats: Vec<_> = caches.iter().map(|(path, cache)| (*path, cache.stats())).collect();
        let Some((_, first)) = stats.first() else { return Ok(()) };
        for (at, (name, _)) in first.iter().enumerate() {
            let name = format!("cache_{name}");
            let kind = MetricType::Counter;
            let mut family = encoder.encode_descriptor(&name, "Page cache", None, kind)?;
            for (path, stats) in &stats {
                let value = stats.iter().nth(at).map_or(0, |(_, value)| value);
                ConstCounter::new(value).encode(family.encode_family(&[("cache", *path)])?)?;
            }
        }
        type Gauge = fn(&Cache) -> u64;
        let gauges: [(_, _, Gauge); 3] = [
            ("cache_budget", "Memory that the page cache may use", Cache::budget_bytes),
            ("cache_used", "Memory that the page cache uses", Cache::used_bytes),
            ("cache_dirty", "Data that is not written back yet", Cache::dirty_bytes),
        ];
        for (name, help, value) in gauges {
            let (unit, kind) = (Unit::Bytes, MetricType::Gauge);
            let mut family = encoder.encode_descriptor(name, help, Some(&unit), kind)?;
            for (path, cache) in &caches {
                let gauge = ConstGauge::new(i64::try_from(value(cache)).unwrap_or(i64::MAX));
                gauge.encode(family.encode_family(&[("cache", *path)])?)?;
            }
        }
        Ok(())
    }
}

fn summary(metrics: &Metrics) -> String {
    let mut rows = executed(metrics);
    rows.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.count()));
    let mut text = format!(
        "{:8} {:22} {:>10} {:>10} {:>10} {:>12} {:>12}  failed\n",
        "protocol", "operation", "count", "mean", "99% under", "received", "sent"
    );
    for (row, sums) in rows {
        let [(_, protocol), (_, operation)] = row.labels();
        let count = sums.count();
        let mean = Duration::from_nanos(sums.nanos / count);
        let failed: Vec<String> =
            metrics.failures(row).map(|(status, n)| format!("{status}: {n}")).collect();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{protocol:8} {operation:22} {count:>10} {:>10} {:>10} {:>12} {:>12}  {}",
            format!("{mean:.1?}"),
            under(&sums),
            sums.received,
            sums.sent,
            failed.join(", ")
        );
    }
    text
}

/// The operations that were executed at least once.
fn executed(metrics: &Metrics) -> Vec<(Row, Sums)> {
    let rows = Row::all().map(|row| (row, metrics.sums(row)));
    rows.filter(|(_, sums)| sums.count() > 0).collect()
}

/// The upper bound of the bucket that contains the 99th percentile.
fn under(sums: &Sums) -> String {
    let enough = sums.count() - sums.count() / 100;
    let mut so_far = 0;
    for (bound, took) in BOUNDS_US.iter().zip(sums.took) {
        so_far += took;
        if so_far >= enough {
            return format!("{:?}", Duration::from_micros(*bound));
        }
    }
    "more".into()
}
