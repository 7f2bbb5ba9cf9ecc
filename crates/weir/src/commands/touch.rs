//! `weir touch`: creates empty files, or sets the times of existing ones to now.

use super::{each, with_mounts};
use crate::arguments::{MountArgs, location};
use crate::ended::Ended;
use crate::output::umask;
use weir_tools::failure::{Asked, Result};
use weir_tools::location::Location;
use weir_tools::mounts::Links;
use weir_vfs::{Caller, Error, SetAttr, SetTime};

/// Set the times of files to now, and create missing files
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir touch nfs://filer/images/.stamp
  weir touch --no-create nfs://filer/images/disk.img")]
pub(crate) struct Args {
    /// The files
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    /// Do not create files
    #[arg(short = 'c', long)]
    no_create: bool,
    #[command(flatten)]
    mount: MountArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let ended = each(&args.locations, async |location| {
            let touch = || format!("touch {location}");
            let place = mounts.place(location, Links::Follow).await?;
            let done = match (&place.attr, &place.name) {
                (Some(attr), _) => {
                    let now = Some(SetTime::Now);
                    let set = SetAttr { atime: now, mtime: now, ..SetAttr::default() };
                    place.fs.setattr(&Caller::Own, attr.id, &set).await.map(drop)
                }
                (None, _) if args.no_create => Ok(()),
                (None, Some(name)) => {
                    let set = SetAttr { mode: Some(0o666 & !umask()), ..SetAttr::default() };
                    place.fs.create(&Caller::Own, place.dir, name, &set, false).await.map(drop)
                }
                (None, None) => Err(Error::NotFound),
            };
            done.asked(touch)
        });
        Ok(ended.await)
    })
}
