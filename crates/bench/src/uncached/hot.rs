//! A hot set next to a stream: the stream's cost for users of cached data.

use crate::cache::open;
use crate::measure::histogram;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use weir_pagecache::{Cache, Config};
use weir_stores::random::Random;
use weir_tools::failure::{Asked, Result};
use weir_vfs::IoFlags;

/// Number of reads in one burst on the hot set.
const BURST: u32 = 32;
const PAGE: u64 = 4096;

/// Random 4 KiB reads of a hot set, with or without a stream next to them.
#[derive(Serialize)]
pub(crate) struct Hot {
    pub(crate) beside: &'static str,
    pub(crate) reads: u64,
    /// In hundredths.
    pub(crate) hit_percent: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// Bytes that the stream has read meanwhile.
    pub(crate) stream_bytes: u64,
    pub(crate) stream_mb_per_s: f64,
    /// Pages of other users that uncached reads evicted.
    pub(crate) lost_pages: u64,
}

/// Setup of the experiment.
pub(crate) struct Setup<'a> {
    pub(crate) budget_bytes: u64,
    /// Half of the budget.
    pub(crate) hot: &'a Path,
    /// Several times the budget.
    pub(crate) cold: &'a Path,
    pub(crate) block: usize,
    pub(crate) reads_per_s: u32,
}

/// Without a stream, with a cached one, and with an uncached one.
pub(crate) fn run(setup: &Setup<'_>) -> Result<Vec<Hot>> {
    let beside = [
        ("nothing", None),
        ("a cached stream", Some(IoFlags::empty())),
        ("an uncached stream", Some(IoFlags::UNCACHED)),
    ];
    beside.into_iter().map(|(name, flags)| one(setup, name, flags)).collect()
}

fn one(setup: &Setup<'_>, beside: &'static str, flags: Option<IoFlags>) -> Result<Hot> {
    let config = Config { budget_bytes: setup.budget_bytes, ..Config::default() };
    let cache = Cache::new(config).asked(|| "set up a page cache".into())?;
    let hot = open(&cache, setup.hot)?;
    let cold = open(&cache, setup.cold)?;
    let pages = hot.size() / PAGE;
    let mut buf = vec![0; 1 << 20];
    // Used twice, some time apart, like hot data.
    for _ in 0..3 {
        let mut at = 0;
        while at < hot.size() {
            at += hot.read_at(&mut buf, at, IoFlags::empty()).asked(|| "read".into())? as u64;
        }
    }
    let lost = cache.stats().lost_pages;
    let (stop, streamed) = (AtomicBool::new(false), AtomicU64::new(0));
    let enough = 10 * setup.budget_bytes;
    let start = Instant::now();
    let (calls, reads, hits) = std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().name("hot".into()).spawn_scoped(scope, || {
            let (mut calls, mut random, mut hits, mut reads) = (histogram(), Random::new(1), 0, 0);
            let (mut buf, begun) = ([0; PAGE as usize], Instant::now());
            while !stop.load(Relaxed) {
                for _ in 0..BURST {
                    let at = random.below(pages) * PAGE;
                    let call = Instant::now();
                    if hot.read_resident(&mut buf, at) == Some(buf.len()) {
                        hits += 1;
                    } else if hot.read_at(&mut buf, at, IoFlags::empty()).is_err() {
                        break;
                    }
                    calls.saturating_record((call.elapsed().as_nanos() as u64).max(1));
                    reads += 1;
                }
                let due = Duration::from_secs_f64(reads as f64 / f64::from(setup.reads_per_s));
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
            }
            (calls, reads, hits)
        });
        let mut buf = vec![0; setup.block];
        let mut at = 0;
        while let Some(flags) = flags
            && streamed.load(Relaxed) < enough
        {
            match cold.read_at(&mut buf, at, flags) {
                Ok(0) | Err(_) => at = 0,
                Ok(read) => {
                    at += read as u64;
                    streamed.fetch_add(read as u64, Relaxed);
                }
            }
        }
        if flags.is_none() {
            std::thread::sleep(Duration::from_secs(2));
        }
        stop.store(true, Relaxed);
        reader.ok().and_then(|r| r.join().ok()).unwrap_or_else(|| (histogram(), 0, 0))
    });
    let seconds = start.elapsed().as_secs_f64();
    let quantile = |q| calls.value_at_quantile(q) as f64 / 1e3;
    let stream_bytes = streamed.load(Relaxed);
    Ok(Hot {
        beside,
        reads,
        hit_percent: 100.0 * hits as f64 / reads.max(1) as f64,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
        stream_bytes,
        stream_mb_per_s: stream_bytes as f64 / 1e6 / seconds,
        lost_pages: cache.stats().lost_pages - lost,
    })
}
