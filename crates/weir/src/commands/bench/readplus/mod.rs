//! `weir bench readplus`: what READ_PLUS is worth, file system by file system, file by file, with
//! every version, with the file in the server's cache and without.
//!
//! 1. Before each read the server's cache is brought into the state that the column is about, and
//!    looked at: a figure is never under the wrong heading.
//! 2. Each read is by a client that has nothing cached.
//! 3. What is made (images, mounts, namespaces, servers, guests) is gone when the run ends, also
//!    when it is interrupted.

mod files;
mod guest;
mod network;
mod original;
mod page;
pub(super) mod reader;
mod side;
mod table;

use super::interrupt::with_interrupts;
use super::measure::median;
use super::peers::Wanted;
use super::report::{Target, targets};
use super::scratch::{Image, Scratch};
use super::serve::{version, versions};
use crate::ended::Ended;
use crate::output::{print, print_json, say};
use files::Kind;
use network::Rate;
use serde::Serialize;
use side::{ClientKind, Sides, State};
use std::path::{Path, PathBuf};
use weir_client::Version;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::size::Size;
use weir_tools::text::size_text;

/// The table of READ_PLUS: sparse files read with every version, uncached and cached at the server
#[derive(clap::Args)]
#[command(after_long_help = "\
For each file system, for each file (all data, all hole, or both in turn, in blocks of 4 to 32 KiB
beginning with data or with a hole), for each version, with the file out of the server's cache and
in it: how long a client that has nothing cached reads, and how many bytes it receives.

As root, file systems are made in files in --dir and mounted on loop devices, and the link is made
of two network namespaces and tbf; all of it is gone afterwards. As anybody else, or with `--fs
own`, the files are made in --dir itself.

The server is `weir` or `ganesha`, started for the run; `knfsd`, the kernel's, in a guest; or a URL,
which must export --dir. The client is `weir`, or `linux`: the kernel's, in a guest (`linux-direct`:
with O_DIRECT, so that its page cache's zeros are not in the figures). For guests WEIR_LINUX names
the directory of a guest runner.

Examples:
  weir bench readplus --quick
  weir bench readplus --html table.html --json > table.json      an hour and more
  weir bench readplus --fs xfs --file hole,mixed-4d --vers 4.1,4.2 --size 256M --link 10gbit
  WEIR_LINUX=/opt/guest weir bench readplus --quick --server knfsd")]
pub(super) struct Args {
    /// weir, ganesha, knfsd, or a server's `nfs://HOST[:PORT]/PATH`
    #[arg(long, value_name = "SERVER", default_value = "weir")]
    server: Wanted,
    /// Who reads
    #[arg(long, value_enum, value_name = "CLIENT", default_value = "weir")]
    client: ClientKind,
    /// File systems: ext4, xfs, btrfs, ext3, or own for that of --dir [default: those that can be
    /// made here, or own]
    #[arg(long = "fs", value_name = "NAMES", value_delimiter = ',')]
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
    /// How often each figure is measured; the median counts
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Where to make files or file systems: about six times the size has to fit
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Files of 64M: minutes instead of an hour
    #[arg(long)]
    quick: bool,
    /// Write a page for a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// A file system to have the files on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FileSystemKind {
    /// Made for the run
    Ext4,
    /// Made for the run
    Xfs,
    /// Made for the run
    Btrfs,
    /// Made for the run
    Ext3,
    /// That of --dir
    Own,
}

impl FileSystemKind {
    const MADE: [Self; 4] = [Self::Ext4, Self::Xfs, Self::Btrfs, Self::Ext3];

    fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Ext3 => "ext3",
            Self::Own => "own",
        }
    }
}

/// What a run finds.
#[derive(Serialize)]
struct Report {
    server: String,
    client: String,
    link: String,
    file_bytes: u64,
    rounds: u32,
    file_systems: Vec<FileSystem>,
    targets: Vec<Target>,
}

/// The files on one file system.
#[derive(Serialize)]
struct FileSystem {
    name: String,
    files: Vec<File>,
}

/// One row of the table.
#[derive(Serialize)]
struct File {
    name: String,
    data_bytes: u64,
    cells: Vec<Cell>,
}

/// A file with one version; a state that the server cannot be brought into has no figure.
#[derive(Serialize)]
struct Cell {
    #[serde(serialize_with = "version_text")]
    version: Version,
    uncached: Option<Reading>,
    cached: Option<Reading>,
}

fn version_text<S: serde::Serializer>(version: &Version, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(version)
}

/// What it took to read a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Reading {
    seconds: f64,
    received_bytes: u64,
    client_cpu_s: Option<f64>,
    server_cpu_s: Option<f64>,
}

pub(super) fn run(args: &Args) -> Result<Ended> {
    with_interrupts(|| bench(args))
}

fn bench(args: &Args) -> Result<Ended> {
    let default = if args.quick { 64 << 20 } else { 2 << 30 };
    let size = args.size.map_or(default, |size| size.of(0));
    if size == 0 || !size.is_multiple_of(64 << 10) {
        return Err(Failure::new("measure", "the size must be a multiple of 64K"));
    }
    let root = rustix::process::geteuid().is_root();
    let rate = args.link.unwrap_or(match (&args.server, root) {
        (Wanted::Url(_), _) | (_, false) => Rate::Unlimited,
        _ => Rate::Limited(1_000_000_000),
    });
    let kinds = if args.files.is_empty() { Kind::all() } else { args.files.clone() };
    let run = Run { args, size, rate, kinds };
    let mut file_systems = Vec::new();
    for kind in wanted_file_systems(args, root)? {
        file_systems.push(run.file_system(kind)?);
    }
    let limited = rate != Rate::Unlimited;
    let report = Report {
        server: side::name_of(&args.server),
        client: args.client.name().into(),
        link: rate.to_string(),
        file_bytes: size,
        rounds: args.rounds,
        targets: judge(&file_systems, limited),
        file_systems,
    };
    if let Some(path) = &args.html {
        std::fs::write(path, page::page(&report)).asked(|| format!("write {}", path.display()))?;
    }
    if args.json { print_json(&report) } else { print(report.text().as_bytes()) }
}

fn wanted_file_systems(args: &Args, root: bool) -> Result<Vec<FileSystemKind>> {
    let url = matches!(args.server, Wanted::Url(_));
    if !args.file_systems.is_empty() {
        if url && args.file_systems != [FileSystemKind::Own] {
            let failure = Failure::new("make a file system", "the server is named by a URL");
            return Err(failure.advice("use --fs own, and --dir for what it exports"));
        }
        return Ok(args.file_systems.clone());
    }
    if url || !root {
        return Ok(vec![FileSystemKind::Own]);
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let (made, left): (Vec<_>, Vec<_>) = FileSystemKind::MADE.into_iter().partition(|kind| {
        let mkfs = ["/usr/sbin", "/sbin", "/usr/bin"]
            .map(|d| Path::new(d).join(format!("mkfs.{}", kind.name())));
        mkfs.iter().any(|p| p.exists()) && known.lines().any(|l| l.trim() == kind.name())
    });
    for kind in left {
        say(format_args!("weir: {} is left out: it cannot be made or mounted here", kind.name()));
    }
    Ok(made)
}

/// What is the same for every file system.
struct Run<'a> {
    args: &'a Args,
    size: u64,
    rate: Rate,
    kinds: Vec<Kind>,
}

impl Run<'_> {
    /// All rows for one file system.
    fn file_system(&self, kind: FileSystemKind) -> Result<FileSystem> {
        // In the order in which they are let go of: servers and clients before what they stand on.
        let mut image = None;
        let (scratch, name) = match kind {
            FileSystemKind::Own => {
                let scratch = Scratch::within(&self.args.dir)?;
                (scratch, side::file_system_name(&self.args.dir))
            }
            _ => {
                // Data, eight times half of it, and room for what the file system needs itself.
                let bytes = 6 * self.size + (1 << 30);
                let made = Image::make(&self.args.dir, bytes, kind.name())?;
                made.read_directly();
                let scratch = Scratch::within(made.mount_point())?;
                image = Some(made);
                (scratch, kind.name().into())
            }
        };
        let dir = scratch.dir("files")?;
        for kind in &self.kinds {
            kind.make(&dir.join(kind.name()), self.size)?;
        }
        let mut sides = Sides::start(self, &dir, &mut image)?;
        let mut files = Vec::new();
        for kind in &self.kinds {
            let mut cells = Vec::new();
            for version in versions(&self.args.versions) {
                cells.push(self.cell(&mut sides, *kind, version)?);
            }
            let data_bytes = kind.data_bytes(self.size);
            // Room for the next one.
            sides.bring_into(State::Uncached, &kind.name(), data_bytes)?;
            files.push(File { name: kind.name(), data_bytes, cells });
        }
        drop(sides);
        drop(scratch);
        drop(image);
        Ok(FileSystem { name, files })
    }

    fn cell(&self, sides: &mut Sides, kind: Kind, version: Version) -> Result<Cell> {
        let mut readings: [Vec<Reading>; 2] = Default::default();
        if sides.speaks(version) {
            for _ in 0..self.args.rounds {
                for (state, readings) in
                    [State::Uncached, State::Cached].into_iter().zip(&mut readings)
                {
                    sides.bring_into(state, &kind.name(), kind.data_bytes(self.size))?;
                    readings.push(sides.read(&kind.name(), version, self.size)?);
                }
            }
        }
        let [uncached, cached] = readings.map(|readings| middle(&readings));
        Ok(Cell { version, uncached, cached })
    }
}

/// Medians of what was read.
fn middle(readings: &[Reading]) -> Option<Reading> {
    let of =
        |value: &dyn Fn(&Reading) -> f64| median(&readings.iter().map(value).collect::<Vec<_>>());
    let known = |value: &dyn Fn(&Reading) -> Option<f64>| {
        readings.iter().all(|r| value(r).is_some()).then(|| of(&|r| value(r).unwrap_or_default()))
    };
    (!readings.is_empty()).then(|| Reading {
        seconds: of(&|r| r.seconds),
        received_bytes: of(&|r| r.received_bytes as f64) as u64,
        client_cpu_s: known(&|r| r.client_cpu_s),
        server_cpu_s: known(&|r| r.server_cpu_s),
    })
}

impl File {
    /// How many times as fast as `than` a version reads this file, uncached and cached.
    fn speedup(&self, version: Version, than: Version) -> [Option<f64>; 2] {
        let cell = |version| self.cells.iter().find(|cell| cell.version == version);
        let ratio = |state: fn(&Cell) -> Option<&Reading>| {
            Some(state(cell(than)?)?.seconds / state(cell(version)?)?.seconds)
        };
        [ratio(|cell| cell.uncached.as_ref()), ratio(|cell| cell.cached.as_ref())]
    }
}

/// What version 4.2 is to reach.
fn judge(file_systems: &[FileSystem], limited: bool) -> Vec<Target> {
    let files =
        || file_systems.iter().flat_map(|f| f.files.iter().map(move |file| (&f.name, file)));
    // The least speedup of some files in some states, and where it was.
    let least = |which: &dyn Fn(&File) -> bool, than, states: &[usize]| {
        let found = files().filter(|(_, file)| which(file)).flat_map(|(name, file)| {
            let speedup = file.speedup(Version::V4_2, than);
            states.iter().filter_map(move |&state| {
                let state_name = ["uncached", "cached"][state];
                Some((speedup[state]?, format!("{name} {}, {state_name}", file.name)))
            })
        });
        found.min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let every = if limited { 0.98 } else { 0.95 };
    let mut wanted = vec![least(&|_| true, Version::V4_1, &[0, 1]).map(|(got, at)| {
        Target::at_least(format!("every file: v4.2 to v4.1, least ({at})"), got, every)
    })];
    if limited {
        wanted.push(least(&|f| f.name == "hole", Version::V3, &[0, 1]).map(|(got, at)| {
            Target::at_least(format!("hole: v4.2 to v3, least ({at})"), got, 100.0)
        }));
        wanted.push(least(&|f| f.name.starts_with("mixed"), Version::V4_1, &[1]).map(
            |(got, at)| {
                Target::at_least(format!("mixed, cached: v4.2 to v4.1, least ({at})"), got, 1.95)
            },
        ));
        wanted.push(least(&|f| f.name == "data", Version::V4_1, &[0, 1]).map(|(got, at)| {
            Target::at_least(format!("data: v4.2 to v4.1, least ({at})"), got, 0.98)
        }));
    }
    wanted.into_iter().flatten().collect()
}

impl Report {
    fn text(&self) -> String {
        let mut text = format!(
            "Files of {}, read by {} from {}, link {}; seconds, uncached : cached at the server.\n\n",
            size_text(self.file_bytes),
            self.client,
            self.server,
            self.link
        );
        for found in &self.file_systems {
            text.push_str(&table::seconds(found));
            text.push('\n');
        }
        text.push_str("MiB received:\n\n");
        for found in &self.file_systems {
            text.push_str(&table::received(found));
            text.push('\n');
        }
        if !self.targets.is_empty() {
            text.push_str(&format!("Times as fast:\n{}", targets(&self.targets)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of the text.
    pub(super) fn example() -> FileSystem {
        let reading = |seconds| {
            let received_bytes = if seconds > 1.0 { 2 << 30 } else { 4096 };
            Some(Reading { seconds, received_bytes, client_cpu_s: None, server_cpu_s: Some(0.5) })
        };
        let cell = |version, uncached, cached| Cell {
            version,
            uncached: reading(uncached),
            cached: reading(cached),
        };
        let file = |name: &str, cells| File { name: name.into(), data_bytes: 0, cells };
        let mut mixed = vec![
            cell(Version::V3, 28.261, 18.253),
            cell(Version::V4_1, 28.341, 18.252),
            cell(Version::V4_2, 24.508, 9.150),
        ];
        mixed[2].uncached = None;
        let hole = vec![
            cell(Version::V3, 18.256, 18.253),
            cell(Version::V4_1, 18.256, 18.253),
            cell(Version::V4_2, 0.708, 0.709),
        ];
        FileSystem { name: "ext4".into(), files: vec![file("hole", hole), file("mixed-4d", mixed)] }
    }

    pub(super) fn report() -> Report {
        let file_systems = vec![example()];
        Report {
            server: "weir".into(),
            client: "weir".into(),
            link: "1000 Mbit/s".into(),
            file_bytes: 2 << 30,
            rounds: 1,
            targets: judge(&file_systems, true),
            file_systems,
        }
    }

    #[test]
    fn the_least_cell_decides() {
        let targets = serde_json::to_value(judge(&[example()], true)).unwrap();
        let target = |what: &str| {
            let all = targets.as_array().unwrap();
            all.iter().find(|t| t["what"].as_str().unwrap().starts_with(what)).unwrap().clone()
        };
        let hole = target("hole");
        assert!(hole["what"].as_str().unwrap().contains("ext4 hole, cached"), "{hole}");
        assert_eq!((&hole["reached"], hole["got"].as_f64().unwrap() as u32), (&false.into(), 25));
        assert_eq!(target("mixed")["reached"], true);
        assert_eq!(target("every")["reached"], true);
    }

    #[test]
    fn medians_leave_out_what_is_unknown() {
        let reading = |seconds, client_cpu_s| Reading {
            seconds,
            received_bytes: 7,
            client_cpu_s,
            server_cpu_s: None,
        };
        let found =
            middle(&[reading(1.0, Some(1.0)), reading(9.0, Some(3.0)), reading(2.0, Some(2.0))]);
        assert_eq!(found, Some(reading(2.0, Some(2.0))));
        assert_eq!(
            middle(&[reading(1.0, Some(1.0)), reading(1.0, None)]),
            Some(reading(1.0, None))
        );
        assert_eq!(middle(&[]), None);
    }
}
