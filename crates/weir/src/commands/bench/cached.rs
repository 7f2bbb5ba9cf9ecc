//! `weir bench cached`: reads of resident data.

use crate::arguments::one_of;
use crate::ended::Ended;
use crate::output::{print, print_json};
use std::path::PathBuf;
use std::time::Duration;
use weir_bench::cached::{self, Options, Part};
use weir_tools::failure::Result;
use weir_tools::size::Size;

/// Reads of resident data: the fast path on and off, lent pages, the kernel's pread, bare memcpy
#[derive(clap::Args)]
#[command(after_long_help = "\
Creates a file of --size bytes in --dir, reads it into the page cache and into the kernel's, and \
measures reads of 512 B to 1 MiB: random reads of a hot part of 1 MiB and of 256 MiB, and \
sequential reads of the whole file. Then times 512-byte reads of the whole file, first from the \
device and then twice from the cache, with the fast path off and on.

Needs twice the file's size in memory, plus the same for memcpy.

Examples:
  weir bench cached --quick
  weir bench cached --json | jq .targets")]
pub(super) struct Args {
    /// Directory for the file
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Size of the file [default: 2.5G, quick: 256M]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Number of rounds [default: 21, quick: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Measure one part only
    #[arg(long, value_name = "PART", value_parser = one_of(PARTS))]
    only: Option<Part>,
    /// Use a smaller file and fewer rounds: some seconds instead of a minute
    #[arg(long)]
    quick: bool,
    /// Print a report as JSON
    #[arg(long)]
    json: bool,
}

const PARTS: &[(&str, &str, Part)] = &[
    ("reads", "Reads of each size in each order", Part::Reads),
    ("threads", "Two threads beside one", Part::Threads),
    ("passes", "Passes over the file, off and on", Part::Passes),
];

pub(super) fn run(args: &Args) -> Result<Ended> {
    let report = cached::run(&Options {
        dir: args.dir.clone(),
        file_bytes: args.size.map_or(if args.quick { 256 << 20 } else { 5 << 29 }, |s| s.of(0)),
        rounds: args.rounds.unwrap_or(if args.quick { 5 } else { 21 }),
        slice: Duration::from_millis(if args.quick { 4 } else { 10 }),
        only: args.only,
    })?;
    if args.json { print_json(&report) } else { print(report.text().as_bytes()) }
}
