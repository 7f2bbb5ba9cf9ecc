//! `weir bench uncached`: streams of several times the budget, through the cache and past it.

use super::running::Teller;
use crate::arguments::one_of;
use crate::ended::Ended;
use crate::output::{print, print_json, write_file};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weir_bench::uncached::{self, Options, Part, Where};
use weir_tools::failure::Result;
use weir_tools::size::Size;

/// Streams of several times the budget: cached, uncached, and by the kernel's methods
#[derive(clap::Args)]
#[command(after_long_help = "\
Creates files of --data bytes in total in --dir (or on a new file system, --loop), and streams \
over them repeatedly for --seconds: through the cache, uncached, and by the kernel: buffered (in \
a control group with the same memory, if permitted), RWF_DONTCACHE, and O_DIRECT with io_uring. \
Then reads a hot set of half the budget at random next to a stream of ten times the budget.

Takes 10 runs of --seconds for each of --rounds, plus the time for the hot set: five to six \
minutes, or half a minute with --quick.

Examples:
  weir bench uncached --quick
  weir bench uncached --loop /dev/shm --svg curves.svg
  weir bench uncached --dir /mnt/disk --streams 4 --json | jq .targets")]
pub(super) struct Args {
    /// Directory for the files
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Create a file system in a file in this directory, and measure there (root only)
    #[arg(long = "loop", value_name = "DIR", conflicts_with = "dir")]
    on_loop: Option<PathBuf>,
    /// Type of that file system
    #[arg(long, value_name = "ext4|xfs", default_value = "ext4", requires = "on_loop")]
    fs: String,
    /// Number of concurrent streams, each over its own file
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// Bytes per call
    #[arg(long, value_name = "SIZE", default_value = "64K")]
    block: Size,
    /// Budget of the page cache, and of the kernel's
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    budget: Size,
    /// Total bytes of the files [default: five times the budget]
    #[arg(long, value_name = "SIZE")]
    data: Option<Size>,
    /// Operations in flight with O_DIRECT
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: u32,
    /// Seconds of each run [default: 8, quick: 2]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Number of rounds [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Reads per second of the hot set
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    hot_rate: u32,
    /// Measure one part only
    #[arg(long, value_name = "PART", value_parser = one_of(PARTS))]
    only: Option<Part>,
    /// Write a picture of the speed by second (SVG) to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Use short runs: half a minute in total
    #[arg(long)]
    quick: bool,
    /// Print a report as JSON
    #[arg(long)]
    json: bool,
}

const PARTS: &[(&str, &str, Part)] =
    &[("reads", "", Part::Reads), ("writes", "", Part::Writes), ("hot", "", Part::Hot)];

pub(super) fn run(args: &Args) -> Result<Ended> {
    let place = match &args.on_loop {
        Some(parent) => Where::Loop { parent: parent.clone(), kind: args.fs.clone() },
        None => Where::Dir(args.dir.clone()),
    };
    let seconds = args.seconds.unwrap_or(if args.quick { 2 } else { 8 });
    let options = Options {
        place,
        streams: args.streams,
        block_bytes: args.block.of(0),
        budget_bytes: args.budget.of(0),
        data_bytes: args.data.map(|data| data.of(0)),
        depth: args.depth,
        time: Duration::from_secs(seconds.into()),
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
        hot_reads_per_s: args.hot_rate,
        only: args.only,
    };
    let report = uncached::run(&options, Arc::new(Teller { is_quiet: args.json }))?;
    if let Some(path) = &args.svg {
        write_file(path, report.svg())?;
    }
    if args.json { print_json(&report) } else { print(report.text().as_bytes()) }
}
