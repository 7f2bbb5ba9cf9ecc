//! `weir mv`: renames files within one file system or server.

use super::with_mounts;
use crate::arguments::{MountArgs, location, written};
use crate::ended::Ended;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use weir_client::NfsUrl;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::{Location, Written};
use weir_tools::mounts::{Links, Mounts};
use weir_vfs::{Caller, Error, FileKind, RenameFlags};

/// Rename or move a file or directory within one file system
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir mv nfs://filer/images/new.img nfs://filer/images/disk.img
  weir mv nfs://filer/images/disk.img nfs://filer/old/          into a directory
  weir mv -n a b                                  never replaces an existing file")]
pub(crate) struct Args {
    /// The file or directory to move
    #[arg(value_name = "FROM", value_parser = location())]
    from: Location,
    /// The destination: a directory, or the new name
    #[arg(value_name = "TO", value_parser = written())]
    to: Written,
    /// Do not replace an existing file
    #[arg(short, long)]
    no_clobber: bool,
    #[command(flatten)]
    mount: MountArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    match (&args.from, &args.to.location) {
        (Location::Local(from), Location::Local(to)) => local(from, to, &args)?,
        (Location::Nfs(from), Location::Nfs(to)) if from.host == to.host => {
            with_mounts(&args.mount, async |mounts| remote(mounts, from, to, &args).await)?;
        }
        _ => return Err(elsewhere(&args)),
    }
    Ok(Ended::Done)
}

fn asked(args: &Args) -> String {
    format!("move {} to {}", args.from, args.to.location)
}

fn elsewhere(args: &Args) -> Failure {
    Failure::new(asked(args), "they are on different file systems")
        .advice("copy it with `weir cp -rp`, then remove it with `weir rm -r`")
}

/// The kernel renames local files.
fn local(from: &Path, to: &Path, args: &Args) -> Result<()> {
    let to = match from.file_name() {
        Some(name) if to.is_dir() => to.join(name),
        _ => to.to_path_buf(),
    };
    let flags = match args.no_clobber {
        true => rustix::fs::RenameFlags::NOREPLACE,
        false => rustix::fs::RenameFlags::empty(),
    };
    fs::symlink_metadata(from).asked(|| asked(args))?;
    match rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, &to, flags) {
        Err(rustix::io::Errno::XDEV) => Err(elsewhere(args)),
        renamed => renamed.map_err(std::io::Error::from).asked(|| asked(args)),
    }
}

async fn remote(mounts: &mut Mounts, from: &NfsUrl, to: &NfsUrl, args: &Args) -> Result<()> {
    // One mount has to reach both ends: that of the directory above both.
    let shared = from.path.iter().zip(&to.path).take_while(|(a, b)| a == b).count();
    let shared = shared.min(from.path.len().saturating_sub(1)).min(to.path.len());
    let root = NfsUrl { path: from.path[..shared].to_vec(), ..from.clone() };
    mounts.place(&Location::Nfs(root), Links::Follow).await?;
    let source = mounts.place(&args.from, Links::Stay).await?;
    let kind = source.existing("move")?.kind;
    // A link to a directory stands for the directory, as in mv(1); any other link is replaced itself.
    let led = mounts.place(&args.to.location, Links::Follow).await;
    if let Err(failure) = &led
        && !failure.is_of(Error::NotFound)
        && let Ok(there) = mounts.place(&args.to.location, Links::Stay).await
        && there.attr.is_some()
    {
        // The link's target may be a directory.
        return Err(failure.clone());
    }
    let into = led.ok().filter(|p| p.attr.as_ref().is_some_and(|a| a.kind == FileKind::Directory));
    let target = match into {
        Some(into) => {
            let name = source.name.as_deref().ok_or(Error::Invalid).asked(|| asked(args))?;
            into.child(into.existing("find")?.id, name, None)
        }
        None if args.to.ends_in_slash && kind != FileKind::Directory => {
            let failure = Failure::new(asked(args), "there is no such directory");
            return Err(failure.advice("make it first"));
        }
        None => mounts.place(&args.to.location, Links::Stay).await?,
    };
    if !Arc::ptr_eq(source.fs.store(), target.fs.store()) {
        return Err(elsewhere(args));
    }
    let (Some(old), Some(new)) = (&source.name, &target.name) else {
        return Err(Failure::new(asked(args), "a root cannot be moved"));
    };
    let flags = if args.no_clobber { RenameFlags::NoReplace } else { RenameFlags::Replace };
    let renamed =
        source.fs.rename(&Caller::Own, source.dir.entry(old), target.dir.entry(new), flags);
    renamed.await.asked(|| asked(args))
}
