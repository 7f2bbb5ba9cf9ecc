//! `weir du`: shows the space that trees use.

use super::{each, with_mounts};
use crate::arguments::{MountArgs, location};
use crate::ended::Ended;
use crate::output::{complain, number, print, print_json};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt::Write;
use weir_tools::failure::Result;
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Place};
use weir_tools::text::size_text;
use weir_vfs::{Attr, FileKind};

/// Show the space that files and trees use, and their size
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir du nfs://filer/images          space of sparse files, and their size with holes
  weir du --json . | jq '.[].allocated_bytes'

A file with several names counts once.")]
pub(crate) struct Args {
    /// Files and directories
    #[arg(value_name = "LOCATION", default_value = ".", value_parser = location())]
    locations: Vec<Location>,
    /// Print an array of sums as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    mount: MountArgs,
}

#[derive(Default, Serialize)]
struct Sum {
    path: String,
    #[serde(serialize_with = "number")]
    allocated_bytes: u128,
    /// Sizes include holes, so that their sum may exceed 64 bits.
    #[serde(serialize_with = "number")]
    size_bytes: u128,
    files: u64,
    directories: u64,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let mut sums = Vec::new();
        let mut seen = HashSet::new();
        let mut unread = false;
        let ended = each(&args.locations, async |location| {
            let place = mounts.place(location, Links::Stay).await?;
            let attr = place.existing("measure")?.clone();
            let mut sum = Sum { path: location.to_string(), ..Sum::default() };
            unread |= !measure(place, attr, &mut sum, &mut seen).await;
            sums.push(sum);
            Ok(())
        })
        .await;
        match args.json {
            true => print_json(&sums)?,
            false => print(table(&sums).as_bytes())?,
        };
        Ok(if unread { Ended::Failed } else { ended })
    })
}

/// Adds a file or tree to `sum`. Returns false if it could not read, and reported, some of it.
async fn measure(place: Place, attr: Attr, sum: &mut Sum, seen: &mut HashSet<(u64, u64)>) -> bool {
    let mut all = true;
    let mut ahead = vec![(place, attr)];
    while let Some((place, attr)) = ahead.pop() {
        let directory = attr.kind == FileKind::Directory;
        if !directory && attr.nlink > 1 && !seen.insert((attr.fsid, attr.id.ino)) {
            continue;
        }
        sum.allocated_bytes += u128::from(attr.allocated);
        match directory {
            true => {
                sum.directories += 1;
                match place.children(attr.id).await {
                    Ok(children) => ahead.extend(children),
                    Err(failure) => {
                        complain(&failure);
                        all = false;
                    }
                }
            }
            false => {
                sum.size_bytes += u128::from(attr.size);
                sum.files += 1;
            }
        }
    }
    all
}

fn table(sums: &[Sum]) -> String {
    let mut out = format!("{:>12} {:>12} {:>10}  {}\n", "Space", "Size", "Files", "Location");
    for sum in sums {
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{:>12} {:>12} {:>10}  {}",
            total_text(sum.allocated_bytes),
            total_text(sum.size_bytes),
            sum.files,
            sum.path
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
