//! Streams of several times the budget, through the cache and past it.
//!
//! A round runs every method once, one after the other, over the same files; the report has each
//! method's round of median speed, and ratios are medians over rounds.

mod hot;
pub(crate) mod kernel;
pub(crate) mod streams;

use crate::cache::open_for;
use crate::measure::{median, paired};
use crate::observer::Observer;
use crate::process::PathBytes;
use crate::report::{Target, block_name, table, targets};
use crate::scratch::{Scratch, forget};
use crate::svg;
use crate::targets::target;
use hot::Hot;
use kernel::How;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use streams::{Meter, Outcome};
use weir_pagecache::{Cache, Config, File};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::text::size_text;
use weir_vfs::{Access, IoFlags};

/// The device itself must be this steady for the target of steadiness to count.
const STEADY: f64 = 0.9;
/// Memory that a process needs in addition to the kernel's cache for it, in bytes.
const PROCESS_BYTES: u64 = 48 << 20;

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Reading, every way.
    Reads,
    /// Writing, every way.
    Writes,
    /// A hot set next to a stream.
    Hot,
}

/// Where the files are made.
#[derive(Clone, Debug)]
pub enum Where {
    /// In this directory.
    Dir(PathBuf),
    /// On a file system created in a file in a directory, which needs root.
    Loop {
        /// The directory.
        parent: PathBuf,
        /// Its kind: ext4, xfs.
        kind: String,
    },
}

/// Options of the benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the files are made.
    pub place: Where,
    /// Concurrent streams, each over its own file.
    pub streams: u32,
    /// Bytes of a call.
    pub block_bytes: u64,
    /// Budget of the page cache, and of the kernel's; at least 16 MiB.
    pub budget_bytes: u64,
    /// Total bytes of the files; five times the budget if not given.
    pub data_bytes: Option<u64>,
    /// Operations in flight together, with O_DIRECT.
    pub depth: u32,
    /// Duration of each run.
    pub time: Duration,
    /// Rounds of all runs.
    pub rounds: u32,
    /// Reads of the hot set per second.
    pub hot_reads_per_s: u32,
    /// One part only.
    pub only: Option<Part>,
}

/// What a run finds.
#[derive(Serialize)]
pub struct Report {
    budget_bytes: u64,
    data_bytes: u64,
    streams: u32,
    block_bytes: u64,
    depth: u32,
    rounds: u32,
    /// Whether the kernel's buffered streams were limited to the budget's memory.
    kernel_limited: bool,
    reads: Vec<Way>,
    writes: Vec<Way>,
    hot: Vec<Hot>,
    targets: Vec<Target>,
}

/// A way of streaming.
#[derive(Serialize)]
struct Way {
    name: &'static str,
    /// MB/s of every round.
    rounds_mb_per_s: Vec<f64>,
    /// Passes of reclaim, for Weir's methods.
    reclaim_passes: u64,
    lost_pages: u64,
    /// The round of median speed.
    #[serde(flatten)]
    outcome: Outcome,
}

const WAYS: [&str; 5] =
    ["Weir cached", "Weir uncached", "kernel buffered", "kernel DONTCACHE", "raw O_DIRECT"];
const CACHED: usize = 0;
const UNCACHED: usize = 1;
const BUFFERED: usize = 2;
const DONTCACHE: usize = 3;
const DIRECT: usize = 4;

/// A run as resolved from the arguments.
struct Bench<'a> {
    files: Vec<PathBuf>,
    block: usize,
    budget: u64,
    depth: u32,
    time: Duration,
    rounds: usize,
    observer: &'a dyn Observer,
}

/// Streams over files of several times the budget, with every method in every round; then reads a
/// hot set next to streams.
///
/// # Errors
/// Blocks and files do not match, or the files cannot be created, read or written.
pub fn run(options: &Options, observer: Arc<dyn Observer>) -> Result<Report> {
    let budget = options.budget_bytes.max(16 << 20);
    let data = options.data_bytes.unwrap_or(5 * budget);
    let streams = u64::from(options.streams);
    let (each, block) = (data / streams / (1 << 20) * (1 << 20), options.block_bytes);
    if !(512..=64 << 20).contains(&block) || each < block {
        return Err(Failure::new("measure", "blocks are of 512 bytes to 64M, and below --data"));
    }
    let scratch = match &options.place {
        Where::Loop { parent, kind } => {
            Scratch::on_loop(parent, data + budget + (512 << 20), kind, &observer)?
        }
        Where::Dir(dir) => Scratch::within(dir)?,
    };
    let files = (0..streams).map(|i| scratch.file(&format!("stream{i}"), each));
    let bench = Bench {
        files: files.collect::<Result<_>>()?,
        block: block as usize,
        budget,
        depth: options.depth.div_ceil(options.streams),
        time: options.time,
        rounds: options.rounds as usize,
        observer: &*observer,
    };
    let wanted = |part| options.only.is_none_or(|only| only == part);
    let mut limited = true;
    let mut part = |part, write| match wanted(part) {
        true => bench.all_ways(write, &mut limited),
        false => Ok(Vec::new()),
    };
    let (reads, writes) = (part(Part::Reads, false)?, part(Part::Writes, true)?);
    let hot = match wanted(Part::Hot) {
        true => {
            let hot_file = scratch.file("hot", budget / 2)?;
            let cold =
                if streams == 1 { bench.files[0].clone() } else { scratch.file("cold", data)? };
            let reads_per_s = options.hot_reads_per_s;
            let (hot, cold) = (&*hot_file, &*cold);
            hot::run(&hot::Setup {
                budget_bytes: budget,
                hot,
                cold,
                block: bench.block,
                reads_per_s,
            })?
        }
        false => Vec::new(),
    };
    let targets = judge(&reads, &writes, &hot);
    Ok(Report {
        budget_bytes: budget,
        data_bytes: each * streams,
        streams: options.streams,
        block_bytes: block,
        depth: options.depth,
        rounds: bench.rounds as u32,
        kernel_limited: limited,
        reads,
        writes,
        hot,
        targets,
    })
}

impl Bench<'_> {
    /// Runs every method in every round.
    fn all_ways(&self, write: bool, limited: &mut bool) -> Result<Vec<Way>> {
        let mut found: [Vec<(Outcome, u64, u64)>; 5] = Default::default();
        for round in 0..self.rounds {
            for way in (0..5).map(|i| (i + round) % 5) {
                for file in &self.files {
                    forget(file)?;
                }
                let verb = if write { "Writing" } else { "Reading" };
                self.observer.progress(&format!("{verb} bs {}, {}\n", self.block, WAYS[way]));
                let result = match way {
                    CACHED | UNCACHED => self.weir(write, way == UNCACHED)?,
                    _ => {
                        let (outcome, was_limited) = self.kernel(write, way)?;
                        *limited &= was_limited || way == DIRECT;
                        (outcome, 0, 0)
                    }
                };
                if let Some(error) = &result.0.error {
                    self.observer.progress(&format!("   failed: {error}\n"));
                }
                found[way].push(result);
            }
        }
        Ok(found.into_iter().zip(WAYS).map(|(outcomes, name)| Way::of(name, outcomes)).collect())
    }

    fn weir(&self, write: bool, uncached: bool) -> Result<(Outcome, u64, u64)> {
        let config = Config { budget_bytes: self.budget, ..Config::default() };
        let cache = Cache::new(config).asked(|| "set up a page cache".into())?;
        let access = if write { Access::READ | Access::WRITE } else { Access::READ };
        let files: Vec<File> =
            self.files.iter().map(|path| open_for(&cache, path, access)).collect::<Result<_>>()?;
        let flags = if uncached { IoFlags::UNCACHED } else { IoFlags::empty() };
        let outcome = streams::run(
            files.len(),
            self.time,
            |i, meter| {
                if let Err(error) = self.stream(&files[i], write, flags, meter) {
                    meter.failed(error);
                }
            },
            self.each_second(),
            || {
                for file in files.iter().filter(|_| write) {
                    // An error would have occurred in a stream.
                    let _ = file.sync(true);
                }
            },
        );
        let stats = cache.stats();
        let reclaim = stats.reclaim_background + stats.reclaim_direct;
        Ok((outcome, reclaim, stats.lost_pages))
    }

    fn stream(
        &self,
        file: &File,
        write: bool,
        flags: IoFlags,
        meter: &mut Meter<'_>,
    ) -> weir_vfs::Result<()> {
        let (mut buf, mut at, size) = (vec![0x5A; self.block], 0, file.size());
        while !meter.stopped() {
            let start = Instant::now();
            let moved = match write {
                true => file.write_at(&buf, at, flags)?,
                false => file.read_at(&mut buf, at, flags)?,
            };
            meter.moved(moved, start.elapsed());
            at += self.block as u64;
            if at + self.block as u64 > size {
                at = 0;
            }
        }
        Ok(())
    }

    fn kernel(&self, write: bool, way: usize) -> Result<(Outcome, bool)> {
        let how = match way {
            BUFFERED => How::Buffered,
            DONTCACHE => How::Dontcache,
            _ => How::Direct,
        };
        let args = kernel::Streams {
            how,
            write,
            block: self.block,
            depth: self.depth as usize,
            millis: self.time.as_millis() as u64,
            files: self.files.iter().cloned().map(PathBytes::from).collect(),
        };
        let limit = (how != How::Direct).then_some(self.budget + PROCESS_BYTES);
        kernel::in_a_process(&args, limit, self.each_second())
    }

    fn each_second(&self) -> impl FnMut(f64) {
        let mut second = 0;
        move |mb| {
            second += 1;
            self.observer.progress(&format!("{second:4}s: {mb:.0}MB/sec\n"));
        }
    }
}

impl Way {
    fn of(name: &'static str, mut outcomes: Vec<(Outcome, u64, u64)>) -> Self {
        let rounds_mb_per_s = outcomes.iter().map(|(o, ..)| o.mb_per_s).collect();
        outcomes.sort_by(|a, b| a.0.mb_per_s.total_cmp(&b.0.mb_per_s));
        let middle = outcomes.len() / 2;
        let reclaim_passes = outcomes.iter().map(|(_, reclaim, _)| *reclaim).max().unwrap_or(0);
        let lost_pages = outcomes.iter().map(|(.., lost)| *lost).sum();
        let outcome = outcomes.into_iter().nth(middle).map(|(o, ..)| o).unwrap_or_default();
        Self { name, rounds_mb_per_s, reclaim_passes, lost_pages, outcome }
    }
}

fn judge(reads: &[Way], writes: &[Way], hot: &[Hot]) -> Vec<Target> {
    let mut list = Vec::new();
    for (verb, ways) in [("reads", reads), ("writes", writes)] {
        let [cached, uncached, buffered, _, direct] = ways else { continue };
        let ratio = |other: &Way| paired(&uncached.rounds_mb_per_s, &other.rounds_mb_per_s);
        let mut add = |name, got| list.push(target("uncached", name, verb, got));
        add("to-direct", ratio(direct));
        add("to-buffered", ratio(buffered));
        add("cpu-over-direct", uncached.outcome.cpu_per_gb() - direct.outcome.cpu_per_gb());
        if direct.outcome.steadiness() >= STEADY {
            add("steadiness", uncached.outcome.steadiness());
        }
        if verb == "reads" {
            add("reclaim", uncached.reclaim_passes as f64);
        } else {
            add("call-time", uncached.outcome.p999_us / cached.outcome.p999_us.max(0.001));
        }
        add("lost-pages", uncached.lost_pages as f64);
    }
    if let [alone, cached, uncached] = hot {
        let lost = |with: &Hot| alone.hit_percent - with.hit_percent;
        let mut add = |name, got| list.push(target("uncached", name, "", got));
        add("hot-beside-uncached", lost(uncached));
        add("hot-beside-cached", lost(cached));
        add("hot-lost-pages", uncached.lost_pages as f64);
    }
    list
}

impl Report {
    /// MB/s by second of every method, as SVG.
    pub fn svg(&self) -> String {
        let (streams, block) = (self.streams, self.block_bytes);
        let panels: Vec<_> = [("Reading", &self.reads), ("Writing", &self.writes)]
            .into_iter()
            .filter(|(_, ways)| !ways.is_empty())
            .map(|(what, ways)| {
                let curves = ways.iter().map(|w| (w.name.into(), w.outcome.per_second_mb.clone()));
                (format!("{what}, {streams} stream(s), blocks of {block} bytes"), curves.collect())
            })
            .collect();
        svg::picture(&panels)
    }

    /// Tables for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "\n{} stream(s) over {}, blocks of {}, budget {}, O_DIRECT depth {}{}\n",
            self.streams,
            size_text(self.data_bytes),
            block_name(self.block_bytes),
            size_text(self.budget_bytes),
            self.depth,
            if self.kernel_limited { "" } else { "; the kernel's memory could NOT be limited" },
        );
        for (verb, ways) in [("reads", &self.reads), ("writes", &self.writes)] {
            if !ways.is_empty() {
                text.push('\n');
                text.push_str(&table_of(verb, ways));
            }
        }
        if !self.hot.is_empty() {
            let head = ["hot set beside", "hits %", "p50 us", "p99 us", "p99.9 us", "stream MB/s"];
            let rows: Vec<Vec<String>> = self
                .hot
                .iter()
                .map(|h| {
                    let mut row = vec![h.beside.to_owned(), format!("{:.2}", h.hit_percent)];
                    row.extend([h.p50_us, h.p99_us, h.p999_us].map(|v| format!("{v:.2}")));
                    row.push(format!("{:.0}", h.stream_mb_per_s));
                    row
                })
                .collect();
            text.push('\n');
            text.push_str(&table(&head, &rows));
        }
        text.push_str("\nTargets:\n");
        text.push_str(&targets(&self.targets));
        text
    }
}

fn table_of(verb: &str, ways: &[Way]) -> String {
    let head = [verb, "MB/s", "slowest s", "CPU s/GB", "p50 us", "p99 us", "p99.9 us", "by role"];
    let rows: Vec<Vec<String>> = ways
        .iter()
        .map(|way| {
            let o = &way.outcome;
            let slowest = o.per_second_mb.iter().copied().fold(f64::INFINITY, f64::min);
            let roles = o.cpu_s.iter().filter(|(_, s)| **s >= 0.005);
            let roles: Vec<String> = roles.map(|(role, s)| format!("{role} {s:.2}")).collect();
            vec![
                way.name.into(),
                format!("{:.0}", median(&way.rounds_mb_per_s)),
                format!("{slowest:.0}"),
                format!("{:.3}", o.cpu_per_gb()),
                format!("{:.1}", o.p50_us),
                format!("{:.1}", o.p99_us),
                format!("{:.1}", o.p999_us),
                roles.join(", "),
            ]
        })
        .collect();
    table(&head, &rows)
}
