//! `weir bench uncached`: streams of several times the budget, through the cache and past it.
//!
//! Within a round, every way runs once, one after the other, over the same files; what is reported
//! of a way is its round of median speed, and ratios are medians over rounds.

use super::cached::open_for;
use super::hot::{self, Hot};
use super::kernel::{self, How};
use super::measure::{median, paired};
use super::report::{Target, block_name, table, targets};
use super::scratch::{Scratch, forget};
use super::streams::{self, Meter, Outcome};
use super::svg;
use crate::ended::Ended;
use crate::output::{print, print_json};
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weir_pagecache::{Cache, Config, File};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::size::Size;
use weir_tools::text::size_text;
use weir_vfs::{Access, IoFlags};

/// Memory that a process needs besides the kernel's cache for it, in bytes.
const PROCESS_BYTES: u64 = 48 << 20;

/// Streams of several times the budget: cached, uncached, and the kernel's ways beside them
#[derive(clap::Args)]
#[command(after_long_help = "\
Makes files of --data bytes together in --dir (or on a file system of its own, --loop), and streams
over them, again and again for --seconds: through the cache, uncached, and by the kernel: buffered
(in a control group of the same memory, where that is allowed), RWF_DONTCACHE, and O_DIRECT with
io_uring. Then reads a hot set of half the budget at random beside a stream of ten times the budget.

Takes 10 runs of --seconds for each of --rounds, and what the hot set takes: five to six minutes, or
half a minute with --quick.

Examples:
  weir bench uncached --quick
  weir bench uncached --loop /dev/shm --svg curves.svg
  weir bench uncached --dir /mnt/disk --streams 4 --json | jq .targets")]
pub(super) struct Args {
    /// Where to make the files
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Make a file system in a file in this directory, and measure there (root only)
    #[arg(long = "loop", value_name = "DIR", conflicts_with = "dir")]
    on_loop: Option<PathBuf>,
    /// Its kind
    #[arg(long, value_name = "ext4|xfs", default_value = "ext4", requires = "on_loop")]
    fs: String,
    /// Streams at once, each over a file of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// Bytes of a call
    #[arg(long, value_name = "SIZE", default_value = "64K")]
    block: Size,
    /// Budget of the page cache, and of the kernel's
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    budget: Size,
    /// Bytes of the files together [default: five times the budget]
    #[arg(long, value_name = "SIZE")]
    data: Option<Size>,
    /// Operations in flight together, with O_DIRECT
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: u32,
    /// Seconds of each run [default: 8, quick: 2]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Rounds of all runs [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Reads of the hot set per second
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    hot_rate: u32,
    /// One part only
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// Draw the speeds by second to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Short runs: half a minute in all
    #[arg(long)]
    quick: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Reads,
    Writes,
    Hot,
}

#[derive(Serialize)]
struct Report {
    budget_bytes: u64,
    data_bytes: u64,
    streams: u32,
    block_bytes: u64,
    depth: u32,
    rounds: u32,
    /// The kernel's buffered streams had no more memory than the budget.
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
    /// Passes of reclaim, for Weir's ways.
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
struct Bench {
    files: Vec<PathBuf>,
    block: usize,
    budget: u64,
    depth: u32,
    time: Duration,
    rounds: usize,
    quiet: bool,
}

pub(super) fn run(args: &Args) -> Result<Ended> {
    let budget = args.budget.of(0).max(16 << 20);
    let data = args.data.map_or(5 * budget, |data| data.of(0));
    let streams = u64::from(args.streams);
    let (each, block) = (data / streams / (1 << 20) * (1 << 20), args.block.of(0));
    if !(512..=64 << 20).contains(&block) || each < block {
        return Err(Failure::new("measure", "blocks are of 512 bytes to 64M, and below --data"));
    }
    let scratch = match &args.on_loop {
        Some(parent) => Scratch::on_loop(parent, data + budget + (512 << 20), &args.fs)?,
        None => Scratch::within(&args.dir)?,
    };
    let files = (0..streams).map(|i| scratch.file(&format!("stream{i}"), each));
    let bench = Bench {
        files: files.collect::<Result<_>>()?,
        block: block as usize,
        budget,
        depth: args.depth.div_ceil(args.streams),
        time: Duration::from_secs(args.seconds.unwrap_or(if args.quick { 2 } else { 8 }).into()),
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }) as usize,
        quiet: args.json,
    };
    let wanted = |part| args.only.is_none_or(|only| only == part);
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
            let reads_per_s = args.hot_rate;
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
    if let Some(path) = &args.svg {
        let panels: Vec<_> = [("Reading", &reads), ("Writing", &writes)]
            .into_iter()
            .filter(|(_, ways)| !ways.is_empty())
            .map(|(what, ways)| {
                let curves = ways.iter().map(|w| (w.name.into(), w.outcome.per_second_mb.clone()));
                (format!("{what}, {streams} stream(s), blocks of {block} bytes"), curves.collect())
            })
            .collect();
        fs::write(path, svg::picture(&panels)).asked(|| format!("write {}", path.display()))?;
    }
    let report = Report {
        budget_bytes: budget,
        data_bytes: each * streams,
        streams: args.streams,
        block_bytes: block,
        depth: args.depth,
        rounds: bench.rounds as u32,
        kernel_limited: limited,
        reads,
        writes,
        hot,
        targets,
    };
    if args.json { print_json(&report) } else { print(report.text().as_bytes()) }
}

impl Bench {
    /// Every way in every round.
    fn all_ways(&self, write: bool, limited: &mut bool) -> Result<Vec<Way>> {
        let mut found: [Vec<(Outcome, u64, u64)>; 5] = Default::default();
        for round in 0..self.rounds {
            for way in (0..5).map(|i| (i + round) % 5) {
                for file in &self.files {
                    forget(file)?;
                }
                let verb = if write { "Writing" } else { "Reading" };
                self.say(&format!("{verb} bs {}, {}\n", self.block, WAYS[way]));
                let result = match way {
                    CACHED | UNCACHED => self.weir(write, way == UNCACHED)?,
                    _ => {
                        let (outcome, was_limited) = self.kernel(write, way)?;
                        *limited &= was_limited || way == DIRECT;
                        (outcome, 0, 0)
                    }
                };
                if let Some(error) = &result.0.error {
                    self.say(&format!("   failed: {error}\n"));
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
                    // An error would have come up in a stream.
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
        let args = kernel::Args {
            how,
            write,
            block: self.block,
            depth: self.depth as usize,
            millis: self.time.as_millis() as u64,
            files: self.files.clone(),
        };
        let limit = (how != How::Direct).then_some(self.budget + PROCESS_BYTES);
        kernel::in_a_process(&args, limit, self.each_second())
    }

    fn each_second(&self) -> impl FnMut(f64) {
        let mut second = 0;
        move |mb| {
            second += 1;
            self.say(&format!("{second:4}s: {mb:.0}MB/sec\n"));
        }
    }

    /// Tells people how it goes.
    fn say(&self, text: &str) {
        if !self.quiet {
            // Whoever does not listen gets the report all the same.
            let _ = print(text.as_bytes());
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
        list.push(Target::at_least(
            format!("{verb}: uncached to raw O_DIRECT"),
            ratio(direct),
            0.95,
        ));
        let least = format!("{verb}: uncached to kernel buffered");
        list.push(Target::at_least(least, ratio(buffered), 1.65));
        let more = uncached.outcome.cpu_per_gb() - direct.outcome.cpu_per_gb();
        // One memcpy of what is not in the processor's caches: 0.1 to 0.15 s/GB on such machines.
        list.push(Target::at_most(format!("{verb}: CPU s/GB more than O_DIRECT"), more, 0.15));
        let steady = uncached.outcome.steadiness();
        if direct.outcome.steadiness() >= 0.9 {
            list.push(Target::at_least(format!("{verb}: slowest second to median"), steady, 0.9));
        }
        if verb == "reads" {
            let passes = uncached.reclaim_passes as f64;
            list.push(Target::at_most("reads: passes of reclaim, uncached", passes, 0.0));
        } else {
            let calls = uncached.outcome.p999_us / cached.outcome.p999_us.max(0.001);
            list.push(Target::at_most("writes: p99.9 of uncached calls to cached", calls, 1.0));
        }
        list.push(Target::at_most(
            format!("{verb}: pages of others lost"),
            uncached.lost_pages as f64,
            0.0,
        ));
    }
    if let [alone, cached, uncached] = hot {
        let lost = |with: &Hot| alone.hit_percent - with.hit_percent;
        list.push(Target::at_most("hot set: points lost, uncached stream", lost(uncached), 0.5));
        list.push(Target::at_most("hot set: points lost, cached stream", lost(cached), 5.0));
        let lost_pages = uncached.lost_pages as f64;
        list.push(Target::at_most("hot set: pages of others lost", lost_pages, 0.0));
    }
    list
}

impl Report {
    fn text(&self) -> String {
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
