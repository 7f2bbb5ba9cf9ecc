//! `weir ln`: gives files further names, and makes symbolic links.

use super::{Report, with_mounts};
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::ended::Ended;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts, Place};
use weir_tools::text::shown;
use weir_vfs::{Caller, Error, FileKind, RenameFlags, SetAttr};

/// Give a file another name, or make a symbolic link
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir ln -s ../images/disk.img nfs://filer/latest/disk.img
  weir ln nfs://filer/images/disk.img nfs://filer/images/same.img     a hard link
  weir ln -sf disk-2.img nfs://filer/images/current

With -s, TARGET is the text of the link, which is used as it is written; it need not exist. \
Without, it is a file of the same file system or server. An existing directory LINK gets a \
link with the target's name in it, unless -T is given.")]
pub(crate) struct Args {
    /// What the link refers to
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The new name, or the directory to make it in
    #[arg(value_name = "LINK", value_parser = location())]
    link: Location,
    /// Make a symbolic link
    #[arg(short, long)]
    symbolic: bool,
    /// Replace an existing file
    #[arg(short, long)]
    force: bool,
    /// Never take LINK for a directory to make the link in
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Print a line for the link
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
        let made = make(mounts, &args).await;
        if let Ok(link) = &made {
            let target = shown(args.target.as_bytes());
            report.done(|| link.bytes(), || format!("{} -> {target}", link.shown));
        }
        report.take(made.map(drop));
        report.end()
    })
}

async fn make(mounts: &mut Mounts, args: &Args) -> Result<Place> {
    let asked = || format!("make the link {}", args.link);
    let source = if args.symbolic {
        None
    } else {
        let source = Location::parse(args.target.clone())
            .map_err(|error| Failure::new(asked(), error.to_string()))?;
        mounts.share(&[&source, &args.link]).await;
        Some((mounts.place(&source, Links::Stay).await?, source))
    };
    let mut place = mounts.place(&args.link, Links::Stay).await?;
    let mut above = args.link.parent();
    if !args.no_target_directory
        && let Ok(into) = mounts.place(&args.link, Links::Follow).await
        && let Some(dir) = into.attr.clone().filter(|attr| attr.kind == FileKind::Directory)
    {
        let name = match &source {
            Some((_, source)) => source.name(),
            None => args
                .target
                .as_bytes()
                .rsplit(|b| *b == b'/')
                .find(|n| !n.is_empty())
                .map(<[u8]>::to_vec),
        };
        let name = name.ok_or(Error::Exists).asked(asked)?;
        above = Some(args.link.clone());
        place = into.child(dir.id, &name, None);
        place.attr = match place.fs.lookup(&Caller::Own, dir.id.entry(&name)).await {
            Ok(attr) => Some(attr),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error).asked(asked),
        };
    }
    let name = place.name.clone().ok_or(Error::Exists).asked(asked)?;
    // Before anything is changed.
    let linked = match &source {
        None => None,
        Some((from, _)) => Some((from, from.existing("link")?)),
    };
    let is_replaced = place.attr.is_some();
    match &place.attr {
        Some(there) if there.kind == FileKind::Directory => {
            return Err(Error::IsDirectory).asked(asked);
        }
        Some(there) => {
            if !args.force {
                let failure = Failure::of(asked(), Error::Exists);
                return Err(failure.advice("use -f to replace it"));
            }
            let same = |from: &Place| from.attr.as_ref().is_some_and(|attr| attr.id == there.id);
            if let Some((from, _)) = &source
                && same(from)
            {
                return Err(Failure::new(asked(), "both are the same file"));
            }
            if source.is_none()
                && let Some(led) = above.and_then(|above| led(&above, &args.target))
                && mounts.is_target(&led, &place).await
            {
                return Err(Failure::new(asked(), "it would replace the file that it refers to"));
            }
        }
        None => {}
    }
    // A link that replaces a file is made under another name first, so that the file stays if the link
    // cannot be made.
    let made_as = match is_replaced {
        true => format!(".weir-ln-{:016x}", RandomState::new().hash_one(&name)).into_bytes(),
        false => name.clone(),
    };
    match linked {
        None => {
            let (target, set) = (args.target.as_bytes(), SetAttr::default());
            let made = place.dir.entry(&made_as);
            place.fs.symlink(&Caller::Own, made.with(&set), target).await.map(drop).asked(asked)?;
        }
        Some((from, _)) if !Arc::ptr_eq(from.fs.store(), place.fs.store()) => {
            link_locally(args, &made_as).asked(asked)?;
        }
        Some((_, attr)) => {
            let made = place.dir.entry(&made_as);
            place.fs.link(&Caller::Own, attr.id, made).await.map(drop).asked(asked)?;
        }
    }
    if is_replaced {
        let (made, to) = (place.dir.entry(&made_as), place.dir.entry(&name));
        let renamed = place.fs.rename(&Caller::Own, made, to, RenameFlags::Replace).await;
        if renamed.is_err() {
            // What failed first is reported.
            let _ = place.fs.unlink(&Caller::Own, place.dir.entry(&made_as)).await;
        }
        renamed.asked(asked)?;
    }
    Ok(place)
}

/// Where a symbolic link of this text in the directory `above` leads, if it means the same on all machines.
fn led(above: &Location, text: &OsStr) -> Option<Location> {
    match above {
        Location::Local(above) => Some(Location::Local(above.join(text))),
        Location::Nfs(_) if text.as_bytes().starts_with(b"/") => None,
        Location::Nfs(_) => {
            let names = text.as_bytes().split(|&b| b == b'/');
            let names = names.filter(|name| !name.is_empty() && *name != b".");
            Some(above.below(&names.map(<[u8]>::to_vec).collect::<Vec<_>>()))
        }
    }
}

/// The kernel links local files of different directories; the new link is called `name`.
fn link_locally(args: &Args, name: &[u8]) -> io::Result<()> {
    match &args.link {
        Location::Local(link) => {
            let dir = match link.is_dir() && !args.no_target_directory {
                true => link.as_path(),
                false => link.parent().unwrap_or(Path::new("/")),
            };
            // A relative name without a directory is in the current one.
            let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            std::fs::hard_link(&args.target, dir.join(OsStr::from_bytes(name)))
        }
        Location::Nfs(_) => Err(rustix::io::Errno::XDEV.into()),
    }
}
