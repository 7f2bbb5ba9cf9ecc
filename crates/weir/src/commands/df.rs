//! `weir df`: shows the space on file systems.

use super::{each, with_mounts};
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::ended::Ended;
use crate::output::{print, print_json, text_and_hex};
use serde::Serialize;
use std::fmt::Write;
use weir_tools::failure::{Asked, Result};
use weir_tools::location::Location;
use weir_tools::mounts::Links;
use weir_tools::text::size_text;

/// Show the space on local and NFS file systems
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
#[command(after_long_help = "\
Examples:
  weir df nfs://filer/images
  weir df -b .                        exact numbers of bytes
  weir df --json . nfs://filer/ | jq '.[].available_bytes'")]
pub(crate) struct Args {
    /// Files or directories on the file systems
    #[arg(value_name = "LOCATION", default_value = ".", value_parser = location())]
    locations: Vec<Location>,
    /// Print sizes like 1.50 GiB, which is the default
    #[arg(short = 'h', long)]
    human: bool,
    /// Print exact sizes in bytes
    #[arg(short, long, conflicts_with = "human")]
    bytes: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
}

#[derive(Serialize)]
struct Space {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    /// The path for people.
    #[serde(skip)]
    shown: String,
    total_bytes: u64,
    used_bytes: u64,
    available_bytes: u64,
    total_files: u64,
    free_files: u64,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let mut spaces = Vec::new();
        let ended = each(&args.locations, async |location| {
            let place = mounts.place(location, Links::Follow).await?;
            let asked = || format!("find the space at {location}");
            place.existing("find the space at")?;
            let stat = place.fs.statfs().await.asked(asked)?;
            let (path, path_hex) = text_and_hex(&location.bytes());
            spaces.push(Space {
                path,
                path_hex,
                shown: location.to_string(),
                total_bytes: stat.total_bytes,
                used_bytes: stat.total_bytes.saturating_sub(stat.free_bytes),
                available_bytes: stat.available_bytes,
                total_files: stat.total_files,
                free_files: stat.free_files,
            });
            Ok(())
        })
        .await;
        match args.json.wanted() {
            true => print_json(&spaces)?,
            false => print(table(&spaces, args.bytes).as_bytes())?,
        };
        Ok(ended)
    })
}

fn table(spaces: &[Space], exact: bool) -> String {
    let text = |bytes: u64| if exact { bytes.to_string() } else { size_text(bytes) };
    let mut out =
        format!("{:>12} {:>12} {:>12} {:>5}  {}\n", "Size", "Used", "Available", "Use", "Location");
    for space in spaces {
        // As in df(1): space reserved for root counts as neither.
        let reachable = space.used_bytes + space.available_bytes;
        let share = space.used_bytes as f64 * 100.0 / reachable.max(1) as f64;
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{:>12} {:>12} {:>12} {:>4.0}%  {}",
            text(space.total_bytes),
            text(space.used_bytes),
            text(space.available_bytes),
            share.ceil(),
            space.shown
        );
    }
    out
}
