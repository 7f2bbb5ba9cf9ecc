//! Reads of resident data.
//!
//! Every figure is the median of rounds. Each round measures every method once, so that
//! disturbances affect all of them, and ratios are medians of pairs from the same round.

mod passes;

use crate::cache::{new_cache, open};
use crate::measure::{Walk, median, nanos_per_op, paired};
use crate::report::{Target, block_name, nanos, table, targets};
use crate::scratch::Scratch;
use crate::targets::target;
use serde::Serialize;
use std::fs::File as KernelFile;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use weir_pagecache::{Cache, File};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::text::size_text;
use weir_vfs::IoFlags;

const BLOCKS: [u64; 4] = [512, 4 << 10, 64 << 10, 1 << 20];
const HOT_BYTES: u64 = 1 << 20;
/// More than fits in a processor's own caches.
const WARM_BYTES: u64 = 256 << 20;
const HOT: &str = "hot 1 MiB";
const WARM: &str = "random, 256 MiB";
const WHOLE: &str = "whole file";

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Reads of each size in each order.
    Reads,
    /// Two threads compared with one.
    Threads,
    /// Passes over the file, with the fast path off and on.
    Passes,
}

/// Options of the benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory for the file.
    pub dir: PathBuf,
    /// Size of the file: at least 16 MiB. The run needs twice that in memory, plus the same for
    /// memcpy.
    pub file_bytes: u64,
    /// Rounds of each figure.
    pub rounds: u32,
    /// Time to measure one method in one round.
    pub slice: Duration,
    /// One part only.
    pub only: Option<Part>,
}

/// What a run finds.
#[derive(Serialize)]
pub struct Report {
    file_bytes: u64,
    rounds: u32,
    /// Bytes of the page cache's memory in huge pages.
    huge_page_bytes: u64,
    reads: Vec<Reads>,
    two_threads: Option<TwoThreads>,
    text: Vec<passes::Pass>,
    targets: Vec<Target>,
}

/// Reads of one size in one order, in nanoseconds each.
#[derive(Serialize)]
struct Reads {
    span: &'static str,
    block_bytes: u64,
    memcpy_ns: f64,
    fast_ns: f64,
    slow_ns: f64,
    segments_ns: f64,
    pread_ns: f64,
    /// Medians of pairs.
    pread_to_fast: f64,
    slow_to_fast: f64,
    pread_to_segments: f64,
}

/// 512-byte reads of one file by one thread and by two, in millions a second.
#[derive(Serialize)]
struct TwoThreads {
    one: f64,
    /// Each in its own MiB.
    apart: Pair,
    /// Both in the same MiB: the same lines in two processors' caches, which slows a bare memcpy,
    /// too.
    together: Pair,
}

/// Two threads compared with one.
#[derive(Serialize)]
struct Pair {
    two: f64,
    ratio: f64,
    /// The same for memcpy: the limit of two threads on this machine.
    memcpy_ratio: f64,
}

/// Creates a file, reads it into the page cache and into the kernel's, and measures reads of it.
///
/// # Errors
/// The file is too small, cannot be created, or does not stay in memory.
pub fn run(options: &Options) -> Result<Report> {
    let (size, rounds, slice) = (options.file_bytes, options.rounds, options.slice);
    if size < 16 << 20 {
        return Err(Failure::new("measure", "the file must have 16M at least"));
    }
    let scratch = Scratch::within(&options.dir)?;
    let path = scratch.file("data", size)?;
    let cache = new_cache(size)?;
    let file = open(&cache, &path)?;
    let kernel = KernelFile::open(&path).asked(|| format!("open {}", path.display()))?;
    warm(&file, &kernel, size)?;

    // Nothing else here asks for huge pages.
    let huge_page_bytes = huge_page_bytes();
    let memory: Vec<u8> = (0..size).map(|i| i as u8).collect();
    let mut reads = Vec::new();
    let wanted = |part| options.only.is_none_or(|only| only == part);
    for span in [HOT, WARM, WHOLE].into_iter().filter(|_| wanted(Part::Reads)) {
        for block in BLOCKS {
            let bench = Bench { cache: &cache, file: &file, kernel: &kernel, memory: &memory };
            reads.push(bench.reads(span, block, rounds, slice));
        }
    }
    let two_threads = wanted(Part::Threads).then(|| two_threads(&file, &memory, rounds, slice * 5));
    drop((file, memory));
    drop(cache);
    let text = if wanted(Part::Passes) { passes::run(&path, size)? } else { Vec::new() };
    let targets = judge(&reads, two_threads.as_ref(), size);
    Ok(Report { file_bytes: size, rounds, huge_page_bytes, reads, two_threads, text, targets })
}

/// This process's memory in huge pages.
fn huge_page_bytes() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = maps.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Reads the file into both caches.
fn warm(file: &File, kernel: &KernelFile, size: u64) -> Result<()> {
    let mut buf = vec![0; 1 << 20];
    for _ in 0..2 {
        let mut at = 0;
        while at < size {
            at += file.read_at(&mut buf, at, IoFlags::empty()).asked(|| "read".into())? as u64;
        }
        let mut at = 0;
        while at < size {
            at += kernel.read_at(&mut buf, at).asked(|| "read".into())? as u64;
        }
    }
    let resident: u64 = file.resident().iter().map(|r| r.end - r.start).sum();
    if resident < size {
        let held = format!("only {} of {} stay", size_text(resident), size_text(size));
        return Err(Failure::new("hold the file in the page cache", held));
    }
    Ok(())
}

/// What is measured.
struct Bench<'a> {
    cache: &'a Cache,
    file: &'a File,
    kernel: &'a KernelFile,
    memory: &'a [u8],
}

impl Bench<'_> {
    fn reads(&self, span: &'static str, block: u64, rounds: u32, slice: Duration) -> Reads {
        let size = self.memory.len() as u64;
        let mut walks: [Walk; 5] = std::array::from_fn(|way| match span {
            HOT => Walk::random(HOT_BYTES, block, block),
            WARM => Walk::scattered(WARM_BYTES.min(size), block, way as u64),
            // Far apart, so that the second method does not find the first one's data in the
            // processor's cache.
            _ => Walk::sequential(size, block, size / 5 * way as u64),
        });
        let mut buf = vec![0; block as usize];
        let mut times: [Vec<f64>; 5] = Default::default();
        for round in 0..rounds as usize {
            // No method always follows the same other method.
            for way in (0..5).map(|i| (i + round) % 5) {
                let walk = &mut walks[way];
                self.cache.set_fast_read(way != SLOW);
                let time = match way {
                    MEMCPY => nanos_per_op(walk, slice, |at| {
                        buf.copy_from_slice(&self.memory[at as usize..][..block as usize]);
                        black_box(&mut buf);
                    }),
                    PREAD => nanos_per_op(walk, slice, |at| {
                        black_box(self.kernel.read_at(&mut buf, at).is_ok());
                    }),
                    SEGMENTS => nanos_per_op(walk, slice, |at| {
                        let lent = self.file.read_segments(at, block as usize, IoFlags::empty());
                        black_box(lent.is_ok());
                    }),
                    _ => nanos_per_op(walk, slice, |at| {
                        black_box(self.file.read_at(&mut buf, at, IoFlags::empty()).is_ok());
                    }),
                };
                // The first round is a warm-up.
                if round > 0 || rounds == 1 {
                    times[way].push(time);
                }
            }
        }
        self.cache.set_fast_read(true);
        Reads {
            span,
            block_bytes: block,
            memcpy_ns: median(&times[MEMCPY]),
            fast_ns: median(&times[FAST]),
            slow_ns: median(&times[SLOW]),
            segments_ns: median(&times[SEGMENTS]),
            pread_ns: median(&times[PREAD]),
            pread_to_fast: paired(&times[PREAD], &times[FAST]),
            slow_to_fast: paired(&times[SLOW], &times[FAST]),
            pread_to_segments: paired(&times[PREAD], &times[SEGMENTS]),
        }
    }
}

const MEMCPY: usize = 0;
const FAST: usize = 1;
const SLOW: usize = 2;
const SEGMENTS: usize = 3;
const PREAD: usize = 4;

fn two_threads(file: &File, memory: &[u8], rounds: u32, slice: Duration) -> TwoThreads {
    let read = |buf: &mut [u8; 512], at: u64| {
        black_box(file.read_at(buf, at, IoFlags::empty()).is_ok());
    };
    let copy = |buf: &mut [u8; 512], at: u64| {
        buf.copy_from_slice(&memory[at as usize..][..512]);
        black_box(buf);
    };
    let mut one = Vec::new();
    let mut pair = |apart| {
        let (mut two, mut ratios, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let alone = rate(1, apart, slice, read);
            let both = rate(2, apart, slice, read);
            one.push(alone);
            two.push(both);
            ratios.push(both / alone);
            copies.push(rate(2, apart, slice, copy) / rate(1, apart, slice, copy));
        }
        Pair { two: median(&two), ratio: median(&ratios), memcpy_ratio: median(&copies) }
    };
    let (apart, together) = (pair(true), pair(false));
    TwoThreads { one: median(&one), apart, together }
}

/// Millions of 512-byte reads per second by all threads, in one hot MiB or each in its own.
fn rate(
    threads: usize,
    apart: bool,
    time: Duration,
    read: impl Fn(&mut [u8; 512], u64) + Sync,
) -> f64 {
    let (stop, total, start) =
        (AtomicBool::new(false), AtomicU64::new(0), Barrier::new(threads + 1));
    let mut seconds = 0.0;
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let (stop, total, start, read) = (&stop, &total, &start, &read);
            let base = if apart { thread * HOT_BYTES } else { 0 };
            scope.spawn(move || {
                let (mut walk, mut buf) = (Walk::random(HOT_BYTES, 512, thread), [0; 512]);
                start.wait();
                let mut reads = 0;
                while !stop.load(Relaxed) {
                    for _ in 0..256 {
                        read(&mut buf, base + walk.step());
                    }
                    reads += 256;
                }
                total.fetch_add(reads, Relaxed);
            });
        }
        start.wait();
        let begun = Instant::now();
        std::thread::sleep(time);
        stop.store(true, Relaxed);
        seconds = begun.elapsed().as_secs_f64();
    });
    total.load(Relaxed) as f64 / seconds / 1e6
}

fn judge(reads: &[Reads], two: Option<&TwoThreads>, size: u64) -> Vec<Target> {
    let mut list = Vec::new();
    let find = |span: &str, block| reads.iter().find(|r| r.span == span && r.block_bytes == block);
    let size = size_text(size);
    let mut add = |name, got| list.push(target("cached", name, &size, got));
    if let (Some(hot), Some(all)) = (find(HOT, 512), find(WHOLE, 512)) {
        let over = |r: &Reads| r.fast_ns - r.memcpy_ns;
        add("hot-512-over-memcpy", over(hot));
        add("whole-512-over-memcpy", over(all));
        add("hot-512-pread", hot.pread_to_fast);
        add("whole-512-pread", all.pread_to_fast);
        add("hot-512-off-to-on", hot.slow_to_fast);
    }
    if let Some(warm) = find(WARM, 512) {
        add("warm-512-pread", warm.pread_to_fast);
    }
    if let (Some(hot), Some(all)) = (find(HOT, 4096), find(WHOLE, 4096)) {
        add("hot-4k-pread", hot.pread_to_fast);
        add("whole-4k-pread", all.pread_to_fast);
    }
    if let Some(hot) = find(HOT, 1 << 20) {
        add("hot-1m-segments", hot.pread_to_segments);
    }
    if let Some(least) = reads.iter().map(|r| r.slow_to_fast).min_by(f64::total_cmp) {
        add("least-off-to-on", least);
    }
    if let Some(two) = two {
        add("two-threads", two.apart.ratio);
    }
    list
}

impl Report {
    /// Tables for people.
    pub fn text(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .reads
            .iter()
            .map(|r| {
                vec![
                    format!("{}, {}", r.span, block_name(r.block_bytes)),
                    nanos(r.memcpy_ns),
                    nanos(r.fast_ns),
                    nanos(r.slow_ns),
                    nanos(r.segments_ns),
                    nanos(r.pread_ns),
                    format!("{:.1}", r.pread_to_fast),
                    format!("{:.2}", r.slow_to_fast),
                ]
            })
            .collect();
        let head =
            ["reads", "memcpy", "fast on", "fast off", "segments", "pread", "pread/fast", "off/on"];
        let mut text = format!(
            "A file of {}, all of it resident, {} in huge pages; medians of {} rounds.\n",
            size_text(self.file_bytes),
            size_text(self.huge_page_bytes),
            self.rounds,
        );
        if !rows.is_empty() {
            text.push_str(&format!("\n{}", table(&head, &rows)));
        }
        if let Some(two) = &self.two_threads {
            text.push_str(&format!("\n512 B by one thread: {:.1} M/s\n", two.one));
            for (which, pair) in
                [("each in its own MiB", &two.apart), ("both in the same MiB", &two.together)]
            {
                text.push_str(&format!(
                    "512 B by two, {which}: {:.1} M/s, {:.2} times (memcpy {:.2} times)\n",
                    pair.two, pair.ratio, pair.memcpy_ratio,
                ));
            }
        }
        if !self.text.is_empty() {
            let passes = passes::table_of(&self.text);
            text.push_str(&format!("\n512-byte reads from front to back:\n{passes}"));
        }
        if !self.targets.is_empty() {
            text.push_str(&format!("\nTargets:\n{}", targets(&self.targets)));
        }
        text
    }
}
