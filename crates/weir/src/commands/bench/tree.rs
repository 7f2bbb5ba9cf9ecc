//! `weir bench tree`: a tree of small files, copied, continued and removed.

use super::running::{Teller, with_interrupts};
use crate::ended::Ended;
use crate::output::{print, print_json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weir_bench::tree::{self, Options};
use weir_bench::{Observer, Wanted, version};
use weir_client::Version;
use weir_tools::failure::Result;

/// Trees of small files: copied to a server and back, continued, and removed
#[derive(clap::Args)]
#[command(after_long_help = "\
Creates a tree of files with the sizes of a Linux source tree in --dir, and a server beside it, \
and copies the tree to the server (cp -rp), back, again with nothing left to do (cp -rp \
--continue), and removes it (rm -r). SERVER is `weir`, `weir-relaxed`, `ganesha` (needs root), or \
a URL of a directory, in which a directory is created and removed; for version 3 it names MOUNT's \
port (?mountport=PORT).

Clients reach the server through relays that add the delay of a round trip and counts calls. \
Beside this program run cp, rsync and rm, on a mount of the kernel where that is possible (root, \
and NFS in the kernel), and without a server. CPU time is that of the client's processes; for \
mounts of the kernel, its threads are not in it.

Examples:
  weir bench tree --quick
  weir bench tree --vers 4.2 --delay 0 --delay 1 --files 20000
  weir bench tree ganesha --vers 4.2 --json")]
pub(super) struct Args {
    /// The server
    #[arg(value_name = "SERVER", default_value = "weir")]
    server: Wanted,
    /// Versions: 3, 4.0, 4.1, 4.2 [default: 3 and 4.2]
    #[arg(long = "vers", value_name = "VERSION", value_parser = version)]
    versions: Vec<Version>,
    /// Number of files [default: 100000, quick: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    files: Option<u32>,
    /// Delay of a round trip in milliseconds; may be repeated [default: 0 and 1]
    #[arg(long = "delay", value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=1000))]
    delays: Vec<u32>,
    /// Number of rounds [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Directory for the trees
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Run one round with few files
    #[arg(long)]
    quick: bool,
    /// Print a report as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<Ended> {
    let or = |given: &[u32], usual: &[u32]| match given {
        [] => usual.to_vec(),
        given => given.to_vec(),
    };
    let delays = or(&args.delays, &[0, 1]);
    let versions = match &args.versions[..] {
        [] => vec![Version::V3, Version::V4_2],
        given => given.to_vec(),
    };
    let options = Options {
        server: args.server.clone(),
        versions,
        files: args.files.unwrap_or(if args.quick { 1000 } else { 100_000 }),
        delays: delays.into_iter().map(|ms| Duration::from_millis(ms.into())).collect(),
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
        dir: args.dir.clone(),
    };
    with_interrupts(|| {
        let observer: Arc<dyn Observer> = Arc::new(Teller { is_quiet: args.json });
        let report = tree::run(&options, &observer)?;
        if args.json { print_json(&report) } else { print(report.text().as_bytes()) }
    })
}
