//! `weir ln`: gives files further names, and makes symbolic links.

use super::{Report, with_mounts};
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::ended::Ended;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts, Place};
use weir_tools::text::shown;
use weir_vfs::{Caller, Error, FileKind, SetAttr};

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
            report.done(link.shown.clone(), || format!("{} -> {target}", link.shown));
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
        place = into.child(dir.id, &name, None);
        place.attr = match place.fs.lookup(&Caller::Own, dir.id.entry(&name)).await {
            Ok(attr) => Some(attr),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error).asked(asked),
        };
    }
    let name = place.name.clone().ok_or(Error::Exists).asked(asked)?;
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
            place.fs.unlink(&Caller::Own, place.dir.entry(&name)).await.asked(asked)?;
        }
        None => {}
    }
    let made = match &source {
        None => {
            let (target, set) = (args.target.as_bytes(), SetAttr::default());
            place.fs.symlink(&Caller::Own, place.dir.entry(&name).with(&set), target).await
        }
        Some((from, _)) => {
            let attr = from.existing("link")?;
            if !std::sync::Arc::ptr_eq(from.fs.store(), place.fs.store()) {
                link_locally(args).asked(asked)?;
                return Ok(place);
            }
            place.fs.link(&Caller::Own, attr.id, place.dir.entry(&name)).await
        }
    };
    made.map(drop).asked(asked)?;
    Ok(place)
}

/// The kernel links local files of different directories.
fn link_locally(args: &Args) -> std::io::Result<()> {
    match &args.link {
        Location::Local(link) => {
            let into = |link: &std::path::Path| match std::path::Path::new(&args.target).file_name()
            {
                Some(name) if !args.no_target_directory && link.is_dir() => link.join(name),
                _ => link.to_path_buf(),
            };
            std::fs::hard_link(&args.target, into(link))
        }
        Location::Nfs(_) => Err(rustix::io::Errno::XDEV.into()),
    }
}
