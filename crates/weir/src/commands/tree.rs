//! `weir tree`: draws a tree of files.

use super::{each, with_mounts};
use crate::arguments::{MountArgs, location};
use crate::ended::Ended;
use crate::output::{complain, print};
use weir_tools::beyond::Child;
use weir_tools::failure::{Asked, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts, Place};
use weir_tools::text::{shown, size_text};
use weir_vfs::{Attr, FileKind};

/// Draw a tree of files with their sizes
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir tree nfs://filer/images
  weir tree -L 2 .")]
pub(crate) struct Args {
    /// The directories
    #[arg(value_name = "LOCATION", default_value = ".", value_parser = location())]
    locations: Vec<Location>,
    /// Number of levels to descend
    #[arg(short = 'L', long, value_name = "N", default_value = "255")]
    levels: usize,
    /// Include names that begin with a dot
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    mount: MountArgs,
}

/// A line to draw, with the text before its name and before the names below it.
struct Line {
    name: Vec<u8>,
    place: Place,
    attr: Attr,
    before: String,
    below: String,
    level: usize,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let mut unread = false;
        let ended = each(&args.locations, async |location| {
            let place = mounts.place(location, Links::Follow).await?;
            let attr = place.existing("draw")?.clone();
            print(format!("{location}\n").as_bytes())?;
            unread |= !draw(mounts, place, attr, &args).await?;
            Ok(())
        })
        .await;
        Ok(if unread { Ended::Failed } else { ended })
    })
}

/// Draws a directory's entries. Returns false if it could not read, and reported, some of them.
async fn draw(mounts: &mut Mounts, place: Place, attr: Attr, args: &Args) -> Result<bool> {
    let top = Line {
        name: Vec::new(),
        place,
        attr,
        before: String::new(),
        below: String::new(),
        level: 0,
    };
    let (mut ahead, mut all) = below(mounts, &top, args).await?;
    while let Some(line) = ahead.pop() {
        let name = shown(&line.name);
        let about = match line.attr.kind {
            FileKind::Regular => format!("  ({})", size_text(line.attr.size)),
            FileKind::Symlink => {
                let target = line.place.link_target(line.attr.id).await;
                match target.asked(|| format!("read {}", line.place.shown)) {
                    Ok(target) => format!(" -> {}", shown(&target)),
                    Err(failure) => {
                        complain(&failure);
                        all = false;
                        " -> ?".into()
                    }
                }
            }
            FileKind::Directory => "/".into(),
            _ => String::new(),
        };
        print(format!("{}{name}{about}\n", line.before).as_bytes())?;
        match below(mounts, &line, args).await {
            Ok((lines, all_found)) => {
                all &= all_found;
                ahead.extend(lines);
            }
            Err(failure) => {
                complain(&failure);
                all = false;
            }
        }
    }
    Ok(all)
}

/// The lines of a directory's entries, in reverse order, and whether all could be looked up.
async fn below(mounts: &mut Mounts, line: &Line, args: &Args) -> Result<(Vec<Line>, bool)> {
    let Line { place, attr, below: before, level, .. } = line;
    if attr.kind != FileKind::Directory || *level >= args.levels {
        return Ok((Vec::new(), true));
    }
    let (mut children, failures) = mounts.children(place, attr.id).await?;
    failures.iter().for_each(complain);
    children.retain(|child| args.all || !child.name.starts_with(b"."));
    let lines = children.into_iter().rev().enumerate().map(|(from_last, child)| {
        let Child { name, place, attr } = child;
        let (branch, trunk) =
            if from_last == 0 { ("└── ", "    ") } else { ("├── ", "│   ") };
        Line {
            name,
            place,
            attr,
            before: format!("{before}{branch}"),
            below: format!("{before}{trunk}"),
            level: level + 1,
        }
    });
    Ok((lines.collect(), failures.is_empty()))
}
