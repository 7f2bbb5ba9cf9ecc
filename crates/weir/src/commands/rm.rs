//! `weir rm`: removes files and trees.

use super::{Report, with_mounts};
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::ended::Ended;
use crate::output::confirm;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts, Place};
use weir_tools::remove::{Event, remove};
use weir_tools::text::kind_name;
use weir_vfs::{Attr, Caller, Error, FileKind};

/// Remove files and trees
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir rm nfs://filer/images/old.img
  weir rm -r nfs://filer/images/old
  weir rm -f nfs://filer/images/perhaps.img       succeeds if it does not exist
  weir rm -ri nfs://filer/images/old              asks before each removal")]
pub(crate) struct Args {
    /// The files
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    /// Remove directories with their content
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Ignore missing files, and ask nothing
    #[arg(short, long, overrides_with = "interactive")]
    force: bool,
    /// Ask before each removal
    #[arg(short, long, overrides_with = "force")]
    interactive: bool,
    /// Print a line for each file
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
            let found = find(mounts, location, &args).await;
            match found {
                Ok(Some((place, attr))) if args.interactive => {
                    ask_and_remove(place, attr, &mut report).await;
                }
                Ok(Some((place, attr))) => {
                    remove(place, attr, |event| tell(&mut report, event)).await;
                }
                Ok(None) => {}
                Err(failure) => report.failed(&failure),
            }
        }
        report.end()
    })
}

fn tell(report: &mut Report, event: Event<'_>) {
    match event {
        Event::Removed(place) => {
            report.done(|| place.bytes(), || format!("removed {}", place.shown));
        }
        Event::Failed(failure) => report.failed(&failure),
    }
}

/// The file to remove, unless it is missing and may be.
async fn find(
    mounts: &mut Mounts,
    location: &Location,
    args: &Args,
) -> Result<Option<(Place, Attr)>> {
    // A directory is removed by its name in its parent.
    let (Some(above), Some(name)) = (location.parent(), location.name()) else {
        let failure = Failure::new(format!("remove {location}"), "it has no name");
        return Err(failure.advice("name the files in it"));
    };
    let above = mounts.place(&above, Links::Follow).await?;
    let id = above.existing("find")?.id;
    let place = above.child(id, &name, None);
    match above.fs.lookup(&Caller::Own, id.entry(&name)).await {
        Ok(attr) if attr.kind == FileKind::Directory && !args.recursive => {
            let failure = Failure::new(format!("remove {location}"), "it is a directory");
            Err(failure.advice("use -r to remove it with its content"))
        }
        // A link with a slash behind it is not removed, as with unlink(2).
        Ok(attr) if attr.kind != FileKind::Directory && location.ends_in_slash() => {
            Err(Error::NotDirectory).asked(|| format!("remove {location}"))
        }
        Ok(attr) => Ok(Some((Place { attr: Some(attr.clone()), ..place }, attr))),
        Err(Error::NotFound) if args.force => Ok(None),
        Err(Error::NotFound) => place.existing("remove").map(|_| None),
        Err(error) => Err(error).asked(|| format!("remove {location}")),
    }
}

/// Removes a file or tree, one by one, and asks before each. Returns whether it is gone.
async fn ask_and_remove(place: Place, attr: Attr, report: &mut Report) -> bool {
    let shown = place.shown.clone();
    if attr.kind == FileKind::Directory {
        let children = match place.children(attr.id).await {
            Ok(children) => children,
            Err(failure) => {
                report.failed(&failure);
                return false;
            }
        };
        if !children.is_empty() && !confirm(&format!("descend into the directory {shown}?")) {
            return false;
        }
        let mut all = true;
        for (child, attr) in children {
            all &= Box::pin(ask_and_remove(child, attr, report)).await;
        }
        if !all {
            return false;
        }
    }
    if !confirm(&format!("remove the {} {shown}?", kind_name(attr.kind))) {
        return false;
    }
    remove(place, attr, |event| tell(report, event)).await
}
