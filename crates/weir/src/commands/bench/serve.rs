//! `weir bench serve`: one load on several servers, for comparison.

use super::running::{Teller, with_interrupts};
use crate::arguments::one_of;
use crate::ended::Ended;
use crate::output::{print, print_json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weir_bench::serve::{self, Amount, Options, Work};
use weir_bench::{Wanted, version};
use weir_client::Version;
use weir_tools::failure::{Failure, Result};
use weir_tools::size::Size;

/// Reads, writes and metadata over NFS, on one server or several in comparison
#[derive(clap::Args)]
#[command(after_long_help = "\
A SERVER is a URL, nfs://HOST[:PORT]/PATH[?OPTIONS]; or `weir`, `weir-relaxed` (with --durability \
relaxed) or `ganesha`, which the run starts on a new directory in --dir and ends afterwards \
(ganesha needs root, and rpcbind for version 3). The report says how durable a change of names is \
when each server replies: compare servers that promise the same. The load creates its own \
directory on each server, with a file that is in the server's cache when it is read, and removes \
it at the end.

CPU time is that of this process as the client, and of the server if the run starts it or \
--server-pid gives its process: per gigabyte for large transfers, per operation for small ones.

Examples:
  weir bench serve --quick
  weir bench serve weir weir-relaxed --only create --only deep-create --vers 4.2
  weir bench serve weir ganesha --vers 3 --vers 4.2
  weir bench serve --only single-reads --only reads --vers 4.2
  weir bench serve nfs://filer/scratch --server-pid 4711 --json")]
pub(super) struct Args {
    /// Servers; ratios are to the first one
    #[arg(value_name = "SERVER", default_value = "weir")]
    servers: Vec<Wanted>,
    /// Versions: 3, 4.0, 4.1, 4.2 [default: all of them]
    #[arg(long = "vers", value_name = "VERSION", value_parser = version)]
    versions: Vec<Version>,
    /// Processes of the servers given by URLs, in the order of the URLs, for their CPU time
    #[arg(long = "server-pid", value_name = "PID")]
    processes: Vec<u32>,
    /// Directory for the files of servers that the run starts
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Size of the file [default: 256M, quick: 64M]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Small files [default: 10000, quick: 500]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: Option<u32>,
    /// Small reads in flight
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Measure this work only; may be repeated [default: all]
    #[arg(long, value_name = "WORK", value_parser = one_of(WORK))]
    only: Vec<Work>,
    /// Number of rounds [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seconds for each kind of read and write in a round [default: 2, quick: 0.3]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Run one short round
    #[arg(long)]
    quick: bool,
    /// Print a report as JSON
    #[arg(long)]
    json: bool,
}

const WORK: &[(&str, &str, Work)] = &[
    ("small-reads", "Random 4 KiB reads, one at a time", Work::SmallReads),
    ("blocking-reads", "Random 4 KiB reads by a thread that waits for each", Work::BlockingReads),
    ("deep-reads", "Random 4 KiB reads, many in flight", Work::DeepReads),
    ("single-reads", "Sequential 1 MiB reads, one at a time", Work::SingleReads),
    ("reads", "Sequential 1 MiB reads, several in flight", Work::Reads),
    ("writes", "Sequential 1 MiB writes, several in flight, committed", Work::Writes),
    ("create", "Creations of empty files", Work::Create),
    ("stat", "Lookups of these files", Work::Stat),
    ("rename", "Renames of these files and back: two renames are one operation", Work::Rename),
    ("remove", "Removals of these files", Work::Remove),
    ("deep-create", "Creations of empty files, many in flight", Work::DeepCreate),
    ("deep-rename", "Renames, many in flight", Work::DeepRename),
    ("deep-remove", "Removals, many in flight", Work::DeepRemove),
];

pub(super) fn run(args: &Args) -> Result<Ended> {
    let seconds = args.seconds.unwrap_or(if args.quick { 0.3 } else { 2.0 });
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(Failure::new("measure", "--seconds must be more than 0, and at most 3600"));
    }
    let default_bytes = if args.quick { 64 << 20 } else { 256 << 20 };
    let options = Options {
        servers: args.servers.clone(),
        versions: args.versions.clone(),
        processes: args.processes.clone(),
        dir: args.dir.clone(),
        amount: Amount {
            file_bytes: args.size.map_or(default_bytes, |size| size.of(0)),
            time: Duration::from_secs_f64(seconds),
            depth: args.depth.into(),
            files: args.files.unwrap_or(if args.quick { 500 } else { 10_000 }),
        },
        only: args.only.clone(),
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
    };
    with_interrupts(|| {
        let report = serve::run(&options, Arc::new(Teller { is_quiet: args.json }))?;
        if args.json { print_json(&report) } else { print(report.text().as_bytes()) }
    })
}
