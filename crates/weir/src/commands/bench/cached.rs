//! `weir bench cached`: reads of what is in memory.
//!
//! Every figure is the median of rounds; in each round every way of reading gets its turn, so that
//! what disturbs one disturbs the others, and ratios are medians of pairs from the same round.

use super::measure::{Walk, median, nanos_per_op, paired};
use super::report::{Target, block_name, nanos, table, targets};
use super::scratch::Scratch;
use super::text;
use crate::ended::Ended;
use crate::output::{print, print_json};
use serde::Serialize;
use std::fs::File as KernelFile;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use weir_pagecache::{Cache, Config, File};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::size::Size;
use weir_tools::text::size_text;
use weir_vfs::{Access, Caller, FileSystem, IoFlags};

const BLOCKS: [u64; 4] = [512, 4 << 10, 64 << 10, 1 << 20];
const HOT_BYTES: u64 = 1 << 20;
/// More than a processor's own caches hold.
const WARM_BYTES: u64 = 256 << 20;
const HOT: &str = "hot 1 MiB";
const WARM: &str = "random, 256 MiB";
const WHOLE: &str = "whole file";

/// Reads of resident data: the fast path on and off, lent pages, the kernel's pread, bare memcpy
#[derive(clap::Args)]
#[command(after_long_help = "\
Makes a file of --size bytes in --dir, reads it into the page cache and into the kernel's, and
measures reads of 512 B to 1 MiB: of a hot part of 1 MiB and of 256 MiB in no order, and of the
whole file from front to back. Then times 512-byte reads of the whole file, first from the device and then twice
from the cache, with the fast path off and on.

Needs twice the file's size in memory, and once more for memcpy.

Examples:
  weir bench cached --quick
  weir bench cached --json | jq .targets")]
pub(super) struct Args {
    /// Where to make the file
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Size of the file [default: 2.5G, quick: 256M]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Rounds of each figure [default: 21, quick: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// One part only
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// A smaller file and fewer rounds: some seconds instead of a minute
    #[arg(long)]
    quick: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Reads of each size in each order
    Reads,
    /// Two threads beside one
    Threads,
    /// Passes over the file, off and on
    Passes,
}

/// What a run finds.
#[derive(Serialize)]
struct Report {
    file_bytes: u64,
    rounds: u32,
    /// Bytes of the page cache's memory that the kernel gave in huge pages.
    huge_page_bytes: u64,
    reads: Vec<Reads>,
    two_threads: Option<TwoThreads>,
    text: Vec<text::Pass>,
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
    /// Each in a MiB of its own.
    apart: Pair,
    /// Both in the same MiB: the same lines in two processors' caches, which costs a bare memcpy, too.
    together: Pair,
}

/// Two threads beside one.
#[derive(Serialize)]
struct Pair {
    two: f64,
    ratio: f64,
    /// The same for memcpy: what two threads of this machine can do at all.
    memcpy_ratio: f64,
}

pub(super) fn run(args: &Args) -> Result<Ended> {
    let size = args.size.map_or(if args.quick { 256 << 20 } else { 5 << 29 }, |s| s.of(0));
    if size < 16 << 20 {
        return Err(Failure::new("measure", "the file must have 16M at least"));
    }
    let rounds = args.rounds.unwrap_or(if args.quick { 5 } else { 21 });
    let slice = Duration::from_millis(if args.quick { 4 } else { 10 });
    let scratch = Scratch::within(&args.dir)?;
    let path = scratch.file("data", size)?;
    let cache = new_cache(size)?;
    let file = open(&cache, &path)?;
    let kernel = KernelFile::open(&path).asked(|| format!("open {}", path.display()))?;
    warm(&file, &kernel, size)?;

    // Nothing else here asks for huge pages.
    let huge_page_bytes = huge_page_bytes();
    let memory: Vec<u8> = (0..size).map(|i| i as u8).collect();
    let mut reads = Vec::new();
    let wanted = |part| args.only.is_none_or(|only| only == part);
    for span in [HOT, WARM, WHOLE].into_iter().filter(|_| wanted(Part::Reads)) {
        for block in BLOCKS {
            let bench = Bench { cache: &cache, file: &file, kernel: &kernel, memory: &memory };
            reads.push(bench.reads(span, block, rounds, slice));
        }
    }
    let two_threads = wanted(Part::Threads).then(|| two_threads(&file, &memory, rounds, slice * 5));
    drop((file, memory));
    drop(cache);
    let text = if wanted(Part::Passes) { text::run(&path, size)? } else { Vec::new() };
    let targets = judge(&reads, two_threads.as_ref(), size);
    let report =
        Report { file_bytes: size, rounds, huge_page_bytes, reads, two_threads, text, targets };
    if args.json { print_json(&report) } else { print(report.text().as_bytes()) }
}

/// A cache that holds a file of this size with room to spare.
pub(super) fn new_cache(size: u64) -> Result<Cache> {
    let config = Config { budget_bytes: size + size / 8 + (64 << 20), ..Config::default() };
    Cache::new(config).asked(|| format!("set up a page cache for {}", size_text(size)))
}

/// Opens a file of a directory through a cache.
pub(super) fn open(cache: &Cache, path: &Path) -> Result<File> {
    open_for(cache, path, Access::READ)
}

/// Opens a file of a directory through a cache for this access.
pub(super) fn open_for(cache: &Cache, path: &Path, access: Access) -> Result<File> {
    let (dir, name) = match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) => (dir, name.as_encoded_bytes()),
        _ => return Err(Failure::new("open a file", "it has no name")),
    };
    let asked = || format!("open {}", path.display());
    let store = LocalFs::open(dir, LocalOptions::default()).asked(asked)?;
    let root = store.root();
    let fs = cache.mount(store);
    let open = async {
        let id = fs.lookup(&Caller::Own, root, name).await?.id;
        fs.open(&Caller::Own, id, access).await
    };
    futures_util::FutureExt::now_or_never(open).unwrap_or(Err(weir_vfs::Error::Io)).asked(asked)
}

/// Memory of this process in huge pages.
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
            // Far apart, or whoever comes second finds in the processor's cache what the first read.
            _ => Walk::sequential(size, block, size / 5 * way as u64),
        });
        let mut buf = vec![0; block as usize];
        let mut times: [Vec<f64>; 5] = Default::default();
        for round in 0..rounds as usize {
            // Nobody always comes after the same neighbour.
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
                // The first round warms up.
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

/// Millions of 512-byte reads a second by so many threads together, in one hot MiB or each in its own.
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
    let whole = format!("whole {}", size_text(size));
    if let (Some(hot), Some(all)) = (find(HOT, 512), find(WHOLE, 512)) {
        let over = |r: &Reads| r.fast_ns - r.memcpy_ns;
        list.push(Target::at_most("512 B, hot: ns more than memcpy", over(hot), 15.0));
        list.push(Target::at_most(format!("512 B, {whole}: ns more than memcpy"), over(all), 15.0));
        list.push(Target::at_least("512 B, hot: pread to fast read", hot.pread_to_fast, 10.0));
        list.push(Target::at_least(
            format!("512 B, {whole}: pread to fast"),
            all.pread_to_fast,
            5.0,
        ));
        list.push(Target::at_least("512 B, hot: fast read off to on", hot.slow_to_fast, 1.6));
    }
    if let Some(warm) = find(WARM, 512) {
        list.push(Target::at_least(
            format!("512 B, {WARM}: pread to fast"),
            warm.pread_to_fast,
            5.0,
        ));
    }
    if let (Some(hot), Some(all)) = (find(HOT, 4096), find(WHOLE, 4096)) {
        list.push(Target::at_least("4 KiB, hot: pread to fast read", hot.pread_to_fast, 3.0));
        list.push(Target::at_least(
            format!("4 KiB, {whole}: pread to fast"),
            all.pread_to_fast,
            2.0,
        ));
    }
    if let Some(hot) = find(HOT, 1 << 20) {
        list.push(Target::at_least("1 MiB, hot: pread to segments", hot.pread_to_segments, 20.0));
    }
    if let Some(least) = reads.iter().map(|r| r.slow_to_fast).min_by(f64::total_cmp) {
        // Where all of the time is a copy, on and off differ by chance alone.
        list.push(Target::at_least("any size, any order: fast read off to on", least, 0.97));
    }
    if let Some(two) = two {
        list.push(Target::at_least("512 B: two threads to one", two.apart.ratio, 1.9));
    }
    list
}

impl Report {
    fn text(&self) -> String {
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
            let passes = text::table_of(&self.text);
            text.push_str(&format!("\n512-byte reads from front to back:\n{passes}"));
        }
        if !self.targets.is_empty() {
            text.push_str(&format!("\nTargets:\n{}", targets(&self.targets)));
        }
        text
    }
}
