//! `weir mkdir`: creates directories.

use super::{Report, with_mounts};
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::ended::Ended;
use crate::output::umask;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mode::ModeChange;
use weir_tools::mounts::{Links, Mounts};
use weir_vfs::{Caller, Error, FileKind, SetAttr};

/// Create directories
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir mkdir nfs://filer/images/new
  weir mkdir -p nfs://filer/images/a/b/c          with missing parents; succeeds if it exists
  weir mkdir -m 700 nfs://filer/images/private")]
pub(crate) struct Args {
    /// The directories
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    /// Create missing parents, and accept existing directories
    #[arg(short, long)]
    parents: bool,
    /// The permission bits of the new directories, as for `weir chmod`; parents get the usual ones
    #[arg(short, long, value_name = "MODE", allow_hyphen_values = true)]
    mode: Option<ModeChange>,
    /// Print a line for each directory
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let mut report = Report::new(&args.json, args.verbose);
        for location in &args.locations {
            let made = make(mounts, location, &args, &mut report).await;
            report.take(made);
        }
        report.end()
    })
}

async fn make(
    mounts: &mut Mounts,
    location: &Location,
    args: &Args,
    report: &mut Report,
) -> Result<()> {
    if !args.parents {
        return mkdir(mounts, location, args, false, report).await;
    }
    // Create from the innermost existing directory inwards.
    let mut missing = vec![location.clone()];
    while let Some(above) = missing.last().and_then(Location::parent) {
        match mounts.place(&above, Links::Follow).await {
            Ok(place) if place.attr.is_some() => break,
            _ => missing.push(above),
        }
    }
    for location in missing.iter().rev() {
        mkdir(mounts, location, args, true, report).await?;
    }
    Ok(())
}

async fn mkdir(
    mounts: &mut Mounts,
    location: &Location,
    args: &Args,
    may_exist: bool,
    report: &mut Report,
) -> Result<()> {
    let make = || format!("create the directory {location}");
    let place = mounts.place(location, Links::Follow).await?;
    let name = match (&place.attr, &place.name) {
        (Some(attr), _) if may_exist && attr.kind == FileKind::Directory => return Ok(()),
        (None, Some(name)) => name,
        _ => return Err(Failure::new(make(), "the name is taken")),
    };
    let usual = 0o777 & !umask();
    // The parents have to be usable for what is made in them.
    let is_last = args.locations.contains(location);
    let wanted = args.mode.as_ref().filter(|_| is_last).map(|m| m.apply(0o777, true, umask()));
    let first = wanted.map_or(usual, |mode| mode & 0o777);
    let set = SetAttr { mode: Some(first), ..SetAttr::default() };
    let made = match place.fs.mkdir(&Caller::Own, place.dir.entry(name).with(&set)).await {
        // Another process created it meanwhile.
        Err(Error::Exists) if may_exist => return Ok(()),
        made => made.asked(make)?,
    };
    // Special bits, and those that a directory's default list took away.
    if let Some(mode) = wanted
        && made.mode & !0o2000 != mode & !0o2000
    {
        let set = SetAttr { mode: Some(mode | made.mode & 0o2000), ..SetAttr::default() };
        place.fs.setattr(&Caller::Own, made.id, &set).await.asked(make)?;
    }
    report.done(|| location.bytes(), || format!("created the directory {location}"));
    Ok(())
}
