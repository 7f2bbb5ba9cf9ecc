//! `weir stat`: shows all attributes of a file.

use super::ls::Names;
use super::with_mounts;
use crate::arguments::{MountArgs, location};
use crate::ended::Ended;
use crate::output::{FileJson, complain, local_time, mode_text, print, print_json};
use std::fmt::Write;
use weir_tools::failure::{Asked, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_tools::text::{kind_name, shown, size_text};
use weir_vfs::{Attr, Caller, FileKind};

/// Show all attributes of files
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir stat disk.img nfs://filer/images/disk.img
  weir stat --json nfs://filer/images/disk.img | jq .allocated_bytes")]
pub(crate) struct Args {
    /// The files
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    /// Show the target of a symbolic link, not the link
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print an array of files as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    mount: MountArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let links = if args.dereference { Links::Follow } else { Links::Stay };
    with_mounts(&args.mount, async |mounts| {
        let mut names = Names::default();
        let mut failed = false;
        let mut found = Vec::new();
        let mut text = String::new();
        for location in &args.locations {
            match stat(mounts, location, links).await {
                Ok((attr, target)) if args.json => {
                    found.push(FileJson::new(&location.bytes(), &attr, target.as_deref()));
                }
                Ok((attr, target)) => {
                    describe(&mut text, location, &attr, target.as_deref(), &mut names);
                }
                Err(failure) => {
                    complain(&failure);
                    failed = true;
                }
            }
        }
        match args.json {
            true => print_json(&found)?,
            false => print(text.as_bytes())?,
        };
        Ok(if failed { Ended::Failed } else { Ended::Done })
    })
}

async fn stat(
    mounts: &mut Mounts,
    location: &Location,
    links: Links,
) -> Result<(Attr, Option<Vec<u8>>)> {
    let place = mounts.place(location, links).await?;
    let attr = place.existing("stat")?.clone();
    let target = match attr.kind {
        FileKind::Symlink => {
            let target = place.fs.readlink(&Caller::Own, attr.id).await;
            Some(target.asked(|| format!("read the symbolic link {}", place.shown))?)
        }
        _ => None,
    };
    Ok((attr, target))
}

fn describe(
    out: &mut String,
    location: &Location,
    attr: &Attr,
    target: Option<&[u8]>,
    names: &mut Names,
) {
    let arrow = target.map(|t| format!(" -> {}", shown(t))).unwrap_or_default();
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name:>10}  {value}");
    };
    line("file", format!("{location}{arrow}"));
    line("type", kind_name(attr.kind).into());
    line("size", format!("{} bytes ({})", attr.size, size_text(attr.size)));
    line(
        "space",
        format!("{} bytes ({}){}", attr.allocated, size_text(attr.allocated), share(attr)),
    );
    line("mode", format!("{:04o} ({})", attr.mode, mode_text(attr.kind, attr.mode)));
    line("owner", format!("{} ({})", attr.uid, names.user(attr.uid)));
    line("group", format!("{} ({})", attr.gid, names.group(attr.gid)));
    line("links", attr.nlink.to_string());
    if matches!(attr.kind, FileKind::Block | FileKind::Char) {
        line("device", format!("{}, {}", attr.rdev.0, attr.rdev.1));
    }
    line("inode", format!("{} generation {} on {:x}", attr.id.ino, attr.id.generation, attr.fsid));
    line("change", attr.change.to_string());
    line("accessed", local_time(attr.atime, true));
    line("modified", local_time(attr.mtime, true));
    line("changed", local_time(attr.ctime, true));
    if let Some(created) = attr.btime {
        line("created", local_time(created, true));
    }
}

/// The share of a regular file's size that is allocated.
fn share(attr: &Attr) -> String {
    if attr.kind != FileKind::Regular || attr.allocated >= attr.size {
        return String::new();
    }
    format!(", {:.1}% of the size", attr.allocated as f64 * 100.0 / attr.size as f64)
}
