//! `weir du`: shows the space that trees use.

use super::{each, with_mounts};
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::ended::Ended;
use crate::output::{complain, number, print, print_json, text_and_hex};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt::Write;
use weir_tools::failure::Result;
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts, Place};
use weir_tools::text::size_text;
use weir_tools::walk::Walk;
use weir_vfs::{Attr, FileKind};

/// Show the space that files and trees use, and their size
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
#[command(after_long_help = "\
Examples:
  weir du nfs://filer/images          space of sparse files, and their size with holes
  weir du -d 1 nfs://filer/home       each directory in it, then the sum
  weir du -ab . | sort -n             every file, in bytes
  weir du --json . | jq '.[].allocated_bytes'

A file with several names counts once. Without -a and -d, only the sums of the arguments are \
shown, as with -s of du(1).")]
pub(crate) struct Args {
    /// Files and directories
    #[arg(value_name = "LOCATION", default_value = ".", value_parser = location())]
    locations: Vec<Location>,
    /// Show only the sum of each argument, which is the default
    #[arg(short, long, conflicts_with_all = ["max_depth", "all"])]
    summarize: bool,
    /// Show the sums of directories, too, down to so many levels below the arguments
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// Show all files, not only directories
    #[arg(short, long)]
    all: bool,
    /// Print sizes like 1.50 GiB, which is the default
    #[arg(short = 'h', long)]
    human: bool,
    /// Print exact sizes in bytes
    #[arg(short, long, conflicts_with = "human")]
    bytes: bool,
    /// Do not enter other file systems
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
}

impl Args {
    /// The deepest level that is shown.
    fn deepest(&self) -> usize {
        match self.max_depth {
            Some(most) => most,
            None if self.all => usize::MAX,
            None => 0,
        }
    }
}

#[derive(Default, Serialize)]
struct Sum {
    path: String,
    /// The bytes of `path` in hexadecimal, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    /// The path as people read it.
    #[serde(skip)]
    shown: String,
    #[serde(serialize_with = "number")]
    allocated_bytes: u128,
    /// Sizes include holes, so that their sum may exceed 64 bits.
    #[serde(serialize_with = "number")]
    size_bytes: u128,
    files: u64,
    directories: u64,
}

impl Sum {
    fn of(location: &Location, attr: &Attr) -> Self {
        let is_directory = attr.kind == FileKind::Directory;
        let (path, path_hex) = text_and_hex(&location.bytes());
        Self {
            path,
            path_hex,
            shown: location.to_string(),
            allocated_bytes: attr.allocated.into(),
            size_bytes: if is_directory { 0 } else { attr.size.into() },
            files: u64::from(!is_directory),
            directories: u64::from(is_directory),
        }
    }

    fn add(&mut self, other: &Self) {
        self.allocated_bytes += other.allocated_bytes;
        self.size_bytes += other.size_bytes;
        self.files += other.files;
        self.directories += other.directories;
    }
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let mut count = Count { args: &args, seen: HashSet::new(), sums: Vec::new(), all: true };
        let ended = each(&args.locations, async |location| {
            let place = mounts.place(location, Links::Stay).await?;
            let attr = place.existing("measure")?.clone();
            count.tree(mounts, location, place, attr).await;
            Ok(())
        })
        .await;
        match args.json.wanted() {
            true => print_json(&count.sums)?,
            false => print(table(&count.sums, args.bytes).as_bytes())?,
        };
        Ok(if count.all { ended } else { Ended::Failed })
    })
}

/// Measures trees.
struct Count<'a> {
    args: &'a Args,
    /// Files with several names, by their servers.
    seen: HashSet<(Option<String>, u64, u64)>,
    /// What is shown.
    sums: Vec<Sum>,
    /// Whether all could be read.
    all: bool,
}

impl Count<'_> {
    /// Measures a file or tree: a directory after what is in it.
    async fn tree(&mut self, mounts: &mut Mounts, location: &Location, place: Place, attr: Attr) {
        let (args, top_fsid) = (self.args, attr.fsid);
        // The numbers of file systems are those of one machine.
        let server = match location {
            Location::Nfs(url) => Some(format!("{}:{:?}", url.host, url.port)),
            Location::Local(_) => None,
        };
        let mut walk = Walk::new(place, attr, args.one_file_system);
        // The directories on the way down, and their sums so far.
        let mut above: Vec<Sum> = Vec::new();
        while let Some(visited) = walk.next() {
            let depth = visited.names.len();
            while above.len() > depth {
                self.leave(&mut above);
            }
            let attr = &visited.attr;
            let is_directory = attr.kind == FileKind::Directory;
            if args.one_file_system && attr.fsid != top_fsid {
                continue;
            }
            let is_again = !is_directory
                && attr.nlink > 1
                && !self.seen.insert((server.clone(), attr.fsid, attr.id.ino));
            if is_again && depth > 0 {
                continue;
            }
            let mut sum = Sum::of(&location.below(&visited.names), attr);
            if is_again {
                let Sum { path, path_hex, shown, .. } = sum;
                sum = Sum { path, path_hex, shown, ..Sum::default() };
            }
            above.push(sum);
            if !is_directory {
                let is_shown = depth == 0 || args.all && depth <= args.deepest();
                self.leave_shown(&mut above, is_shown);
                continue;
            }
            for failure in walk.enter(&visited, Some(&mut *mounts)).await {
                complain(&failure);
                self.all = false;
            }
        }
        while !above.is_empty() {
            self.leave(&mut above);
        }
    }

    /// A directory is complete.
    fn leave(&mut self, above: &mut Vec<Sum>) {
        let is_shown = above.len() <= self.args.deepest().saturating_add(1);
        self.leave_shown(above, is_shown);
    }

    /// The innermost file is complete: it counts for the directory above it.
    fn leave_shown(&mut self, above: &mut Vec<Sum>, is_shown: bool) {
        let Some(sum) = above.pop() else { return };
        if let Some(outer) = above.last_mut() {
            outer.add(&sum);
        }
        if is_shown {
            self.sums.push(sum);
        }
    }
}

fn table(sums: &[Sum], exact: bool) -> String {
    let text = |bytes: u128| if exact { bytes.to_string() } else { total_text(bytes) };
    let mut out = format!("{:>12} {:>12} {:>10}  {}\n", "Space", "Size", "Files", "Location");
    for sum in sums {
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{:>12} {:>12} {:>10}  {}",
            text(sum.allocated_bytes),
            text(sum.size_bytes),
            sum.files,
            sum.shown
        );
    }
    out
}

/// A sum as text; `size_text` ends at 16 EiB.
fn total_text(bytes: u128) -> String {
    match u64::try_from(bytes) {
        Ok(bytes) => size_text(bytes),
        Err(_) => format!("{:.2} EiB", bytes as f64 / (1_u64 << 60) as f64),
    }
}
