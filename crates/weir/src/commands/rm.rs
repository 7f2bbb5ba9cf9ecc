//! `weir rm`: removes files and trees.

use super::{each, with_mounts};
use crate::arguments::{MountArgs, location};
use crate::ended::Ended;
use crate::output::complain;
use std::collections::HashSet;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Place};
use weir_vfs::{Attr, Caller, Error, FileKind};

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
                    left |= !remove(place, attr).await;
                    Ok(())
                }
            }
        })
        .await;
        Ok(if left { Ended::Failed } else { ended })
    })
}

/// Removes a file or tree; it visits each directory twice, before and after its entries. Returns
/// false if it could not remove, and reported, some files; it removes all others.
async fn remove(place: Place, attr: Attr) -> bool {
    let mut all = true;
    let mut ahead = vec![(place, attr, false)];
    // Directories with an entry that stays, which therefore stay, too.
    let mut kept = HashSet::new();
    while let Some((place, attr, emptied)) = ahead.pop() {
        let name = place.name.as_deref().unwrap_or_default();
        let removed = match (attr.kind, emptied) {
            (FileKind::Directory, false) => {
                match place.children(attr.id).await {
                    Ok(children) => {
                        ahead.push((place, attr, true));
                        ahead.extend(children.into_iter().map(|(p, attr)| (p, attr, false)));
                    }
                    // An unreadable directory can still be removed if it is empty.
                    Err(failure) => match place.fs.rmdir(&Caller::Own, place.dir, name).await {
                        Ok(()) | Err(Error::NotFound) => {}
                        Err(_) => {
                            complain(&failure);
                            kept.insert(place.dir);
                            all = false;
                        }
                    },
                }
                continue;
            }
            (FileKind::Directory, true) if kept.contains(&attr.id) => {
                kept.insert(place.dir);
                continue;
            }
            (FileKind::Directory, true) => place.fs.rmdir(&Caller::Own, place.dir, name).await,
            _ => place.fs.unlink(&Caller::Own, place.dir, name).await,
        };
        match removed {
            // Another process removed it meanwhile.
            Ok(()) | Err(Error::NotFound) => {}
            Err(error) => {
                complain(&Failure::of(format!("remove {}", place.shown), error));
                kept.insert(place.dir);
                all = false;
            }
        }
    }
    all
}
