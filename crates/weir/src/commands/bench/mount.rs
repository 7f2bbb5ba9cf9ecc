//! `weir bench mount`: mounts beside the directory itself and other FUSE file systems.

use super::running::{Teller, with_interrupts};
use crate::ended::Ended;
use crate::output::{print, print_json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weir_bench::Observer;
use weir_bench::mount::{self, Options};
use weir_tools::failure::{Failure, Result};
use weir_tools::size::Size;

/// Files used through a mount, beside other FUSE file systems and the kernel's NFS client
#[derive(clap::Args)]
#[command(after_long_help = "\
Creates files in --dir, and uses them in several ways: as they are, by `weir mount` with either \
--cache, and by bindfs and rclone mount, if installed. Then it does the same with a server: `weir \
mount` of its URL, and the kernel's NFS client where that is possible (root, and NFS in the \
kernel). Each way in turn reads a large file with cold and warm caches, by read(2) and by a \
mapping, reads parts of it at random with 1 and 32 threads, writes one, and creates, looks at, \
reads and removes small files.

CPU time is that of this process, and of the process that serves the mount. rclone gives data to \
its source only some seconds after fsync, so its writes promise less.

Examples:
  weir bench mount --quick
  weir bench mount --size 4G --dir /mnt/disk --json")]
pub(super) struct Args {
    /// Size of the large file [default: 1G, quick: 64M]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Number of small files [default: 2000, quick: 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: Option<u32>,
    /// Seconds of each work with random reads [default: 2, quick: 0.2]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Number of rounds [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Directory for the files
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Run one round with little work
    #[arg(long)]
    quick: bool,
    /// Print a report as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<Ended> {
    let seconds = args.seconds.unwrap_or(if args.quick { 0.2 } else { 2.0 });
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(Failure::new("measure", "--seconds must be more than 0, and at most 3600"));
    }
    let default_bytes = if args.quick { 64 << 20 } else { 1 << 30 };
    let options = Options {
        size: args.size.map_or(default_bytes, |size| size.of(0)),
        files: args.files.unwrap_or(if args.quick { 200 } else { 2000 }),
        time: Duration::from_secs_f64(seconds),
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
        dir: args.dir.clone(),
    };
    with_interrupts(|| {
        let observer: Arc<dyn Observer> = Arc::new(Teller { is_quiet: args.json });
        let report = mount::run(&options, &observer)?;
        if args.json { print_json(&report) } else { print(report.text().as_bytes()) }
    })
}
