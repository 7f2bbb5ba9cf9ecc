//! `weir bench readplus`: measures the benefit of READ_PLUS, as a table and as a page.

use super::running::{Teller, with_interrupts};
use crate::arguments::one_of;
use crate::ended::Ended;
use crate::output::{print, print_json, write_file};
use std::path::PathBuf;
use std::sync::Arc;
use weir_bench::readplus::{self, ClientKind, FileSystemKind, Kind, Options, Rate};
use weir_bench::{Wanted, version};
use weir_client::Version;
use weir_tools::failure::Result;
use weir_tools::size::Size;

/// The table of READ_PLUS: sparse files read with every version, uncached and cached at the server
#[derive(clap::Args)]
#[command(after_long_help = "\
Measures for each file system, file (all data, all hole, or alternating blocks of 4 to 32 KiB \
that begin with data or with a hole) and version, with the file in the server's cache and \
without, how long a client without cached data takes to read the file, and how many bytes it \
receives.

As root, creates file systems in files in --dir and mounts them on loop devices, and builds the \
link from two network namespaces and tbf; removes everything afterwards. As another user, or with \
`--fs own`, creates the files in --dir itself.

The server is `weir` or `ganesha`, started for the run; `knfsd`, the kernel's, in a guest; or a \
URL, which must export --dir. The client is `weir`, or `linux`: the kernel's, in a guest \
(`linux-direct`: with O_DIRECT, so that its page cache's zeros are not in the figures). For \
guests, WEIR_LINUX names the directory of a guest runner.

Examples:
  weir bench readplus --quick
  weir bench readplus --html table.html --json > table.json      takes more than an hour
  weir bench readplus --fs xfs --file hole,mixed-4d --vers 4.1,4.2 --size 256M --link 10gbit
  WEIR_LINUX=/opt/guest weir bench readplus --quick --server knfsd")]
pub(super) struct Args {
    /// weir, ganesha, knfsd, or a server's `nfs://HOST[:PORT]/PATH`
    #[arg(long, value_name = "SERVER", default_value = "weir")]
    server: Wanted,
    /// The client that reads
    #[arg(long, value_parser = one_of(CLIENTS), value_name = "CLIENT", default_value = "weir")]
    client: ClientKind,
    /// File systems: ext4, xfs, btrfs, ext3, or own for that of --dir [default: those that can be
    /// created here, or own]
    #[arg(long = "fs", value_name = "NAMES", value_delimiter = ',', value_parser = one_of(FILE_SYSTEMS))]
    file_systems: Vec<FileSystemKind>,
    /// Files: data, hole, mixed-4d, mixed-8d and so on [default: all ten]
    #[arg(long = "file", value_name = "NAMES", value_delimiter = ',')]
    files: Vec<Kind>,
    /// Versions: 3, 4.0, 4.1, 4.2 [default: all of them]
    #[arg(long = "vers", value_name = "VERSIONS", value_delimiter = ',', value_parser = version)]
    versions: Vec<Version>,
    /// Size of each file, in whole 64K [default: 2G, quick: 64M]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Rate of the link: 1gbit, 100mbit, or unlimited [default: 1gbit for root, else unlimited]
    #[arg(long, value_name = "RATE")]
    link: Option<Rate>,
    /// Number of measurements of each figure; the median counts
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Directory for files or file systems: needs room for about six times the size
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Use files of 64M: minutes instead of an hour
    #[arg(long)]
    quick: bool,
    /// Write a page for a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print a report as JSON
    #[arg(long)]
    json: bool,
}

const CLIENTS: &[(&str, &str, ClientKind)] = &[
    ("weir", "This program, through its page cache", ClientKind::Weir),
    ("linux", "The Linux kernel, in a guest, through its page cache", ClientKind::Linux),
    (
        "linux-direct",
        "The Linux kernel, in a guest, past its page cache (O_DIRECT)",
        ClientKind::LinuxDirect,
    ),
];

const FILE_SYSTEMS: &[(&str, &str, FileSystemKind)] = &[
    ("ext4", "Made for the run", FileSystemKind::Ext4),
    ("xfs", "Made for the run", FileSystemKind::Xfs),
    ("btrfs", "Made for the run", FileSystemKind::Btrfs),
    ("ext3", "Made for the run", FileSystemKind::Ext3),
    ("own", "That of --dir", FileSystemKind::Own),
];

pub(super) fn run(args: &Args) -> Result<Ended> {
    let default_bytes = if args.quick { 64 << 20 } else { 2 << 30 };
    let options = Options {
        server: args.server.clone(),
        client: args.client,
        file_systems: args.file_systems.clone(),
        files: args.files.clone(),
        versions: args.versions.clone(),
        file_bytes: args.size.map_or(default_bytes, |size| size.of(0)),
        link: args.link,
        rounds: args.rounds,
        dir: args.dir.clone(),
    };
    with_interrupts(|| {
        let report = readplus::run(&options, Arc::new(Teller { is_quiet: args.json }))?;
        if let Some(path) = &args.html {
            write_file(path, report.page())?;
        }
        if args.json { print_json(&report) } else { print(report.text().as_bytes()) }
    })
}
