//! `weir bench run`: commands under `weir run` and with other means, beside a neighbour.

use super::running::{Teller, with_interrupts};
use crate::ended::Ended;
use crate::output::{print, print_json};
use std::path::PathBuf;
use std::time::Duration;
use weir_bench::run::{self, Options};
use weir_tools::failure::Result;
use weir_tools::size::Size;

/// Commands under `weir run`, beside a neighbour whose data is in the kernel's cache
#[derive(clap::Args)]
#[command(after_long_help = "\
Creates files in --dir, three times as many bytes as --memory, and runs each COMMAND on them: as it \
is, under `weir run`, with nocache(1) if installed, with dd's own nocache flags, and in a control group \
with an eighth of the memory (systemd-run -p MemoryMax). Beside it a process reads a hot file, a quarter of \
the memory, from the kernel's cache. Both are in a control group with --memory, which needs root or a \
delegated group.

The time of a command includes syncfs(2) of what it wrote. CPU time is that of the command and of `weir \
run`. The neighbour's figures stand beside those of a time in which it was alone.

COMMAND is some of tar, cp, dd, rsync, restic, sqlite3, grep, sha256sum, python3; all that are installed by \
default.

Examples:
  weir bench run --quick
  weir bench run tar restic --dir /mnt/disk --json")]
pub(super) struct Args {
    /// The commands
    #[arg(value_name = "COMMAND")]
    commands: Vec<String>,
    /// Memory that a command and its neighbour share [default: 1G, quick: 256M]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// The neighbour's reads per second
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    reads: u32,
    /// Number of rounds [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Directory for the files
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Run one round with little data
    #[arg(long)]
    quick: bool,
    /// Print a report as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<Ended> {
    let default_bytes = if args.quick { 256 << 20 } else { 1 << 30 };
    let options = Options {
        memory: args.memory.map_or(default_bytes, |size| size.of(0)),
        reads_per_s: args.reads,
        alone: Duration::from_millis(if args.quick { 300 } else { 3000 }),
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
        commands: args.commands.clone(),
        dir: args.dir.clone(),
    };
    with_interrupts(|| {
        let report = run::run(&options, &Teller { is_quiet: args.json })?;
        if args.json { print_json(&report) } else { print(report.text().as_bytes()) }
    })
}
