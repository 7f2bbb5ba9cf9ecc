//! `weir rm`: removes files and trees.

use super::{each, with_mounts};
use crate::arguments::{MountArgs, location};
use crate::ended::Ended;
use crate::output::complain;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Place};
use weir_tools::remove::remove;
use weir_vfs::{Caller, Error, FileKind};

/// Remove files and trees
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir rm nfs://filer/images/old.img
  weir rm -r nfs://filer/images/old
  weir rm -f nfs://filer/images/perhaps.img       succeeds if it does not exist")]
pub(crate) struct Args {
    /// The files
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    /// Remove directories with their content
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Ignore missing files
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    mount: MountArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let mut left = false;
        let ended = each(&args.locations, async |location| {
            // A directory is removed by its name in its parent.
            let place = match (location.parent(), location.name()) {
                (Some(above), Some(name)) => {
                    let above = mounts.place(&above, Links::Follow).await?;
                    let id = above.existing("find")?.id;
                    let attr = above.fs.lookup(&Caller::Own, id, &name).await;
                    let place = above.child(id, &name, None);
                    match attr {
                        Ok(attr) => Place { attr: Some(attr), ..place },
                        Err(Error::NotFound) => place,
                        Err(error) => return Err(error).asked(|| format!("remove {location}")),
                    }
                }
                _ => {
                    let failure = Failure::new(format!("remove {location}"), "it has no name");
                    return Err(failure.advice("name the files in it"));
                }
            };
            match place.attr.clone() {
                None if args.force => Ok(()),
                None => place.existing("remove").map(drop),
                Some(attr) if attr.kind == FileKind::Directory && !args.recursive => {
                    let failure = Failure::new(format!("remove {location}"), "it is a directory");
                    Err(failure.advice("use -r to remove it with its content"))
                }
                Some(attr) => {
                    left |= !remove(place, attr, |failure| complain(&failure)).await;
                    Ok(())
                }
            }
        })
        .await;
        Ok(if left { Ended::Failed } else { ended })
    })
}
