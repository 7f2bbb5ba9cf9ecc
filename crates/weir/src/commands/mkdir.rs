//! `weir mkdir`: creates directories.

use super::{each, with_mounts};
use crate::arguments::{MountArgs, location};
use crate::ended::Ended;
use crate::output::umask;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_vfs::{Caller, Error, FileKind, SetAttr};

/// Create directories
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir mkdir nfs://filer/images/new
  weir mkdir -p nfs://filer/images/a/b/c          with missing parents; succeeds if it exists")]
pub(crate) struct Args {
    /// The directories
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    /// Create missing parents, and accept existing directories
    #[arg(short, long)]
    parents: bool,
    #[command(flatten)]
    mount: MountArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let ended = each(&args.locations, async |location| {
            if !args.parents {
                return mkdir(mounts, location, false).await;
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
                mkdir(mounts, location, true).await?;
            }
            Ok(())
        });
        Ok(ended.await)
    })
}

async fn mkdir(mounts: &mut Mounts, location: &Location, may_exist: bool) -> Result<()> {
    let make = || format!("create the directory {location}");
    let place = mounts.place(location, Links::Follow).await?;
    let name = match (&place.attr, &place.name) {
        (Some(attr), _) if may_exist && attr.kind == FileKind::Directory => return Ok(()),
        (None, Some(name)) => name,
        _ => return Err(Failure::new(make(), "the name is taken")),
    };
    let set = SetAttr { mode: Some(0o777 & !umask()), ..SetAttr::default() };
    match place.fs.mkdir(&Caller::Own, place.dir, name, &set).await {
        // Another process created it meanwhile.
        Err(Error::Exists) if may_exist => Ok(()),
        made => made.map(drop).asked(make),
    }
}
