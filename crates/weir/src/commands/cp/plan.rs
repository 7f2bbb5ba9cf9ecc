//! Sources and destinations of `weir cp` and `weir mv`: from locations to pairs of places.

use crate::output::complain;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use weir_tools::copy::Options;
use weir_tools::copy::source::{is_same, is_shown_as};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts, Place};
use weir_vfs::{Attr, Caller, Capabilities, Error, FileKind, IoFlags};

/// What the destination stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A directory to copy into if there is one, or else the name of the copy.
    Either,
    /// A directory to copy into.
    Directory,
    /// The name of the copy, also of a directory's.
    Name,
}

/// The locations of a command line.
pub(crate) struct Ends<'a> {
    pub(crate) sources: &'a [Location],
    pub(crate) to: &'a Location,
    pub(crate) target: Target,
}

impl<'a> Ends<'a> {
    /// Sorts out the locations of a command line; `directory` is that of `-t`, `is_name` that of `-T`.
    /// `None` if there are too few.
    pub(crate) fn new(
        locations: &'a [Location],
        directory: Option<&'a Location>,
        is_name: bool,
    ) -> Option<Self> {
        match (directory, locations) {
            (Some(to), sources) => Some(Self { sources, to, target: Target::Directory }),
            (None, [sources @ .., to]) if !sources.is_empty() => {
                let target = if is_name { Target::Name } else { Target::Either };
                Some(Self { sources, to, target })
            }
            _ => None,
        }
    }
}

/// Pairs of source and destination. The second value has a failure for each source that cannot be copied.
pub(crate) async fn plan(
    mounts: &mut Mounts,
    ends: &Ends<'_>,
    options: &Options,
) -> Result<(Vec<(Place, Place)>, Vec<Failure>)> {
    let &Ends { sources, to: last, target } = ends;
    mounts.share(&sources.iter().chain([last]).collect::<Vec<_>>()).await;
    let to = mounts.place(last, Links::Follow).await?;
    let into = to.attr.clone().filter(|a| a.kind == FileKind::Directory);
    if into.is_none() && target == Target::Directory {
        let failure = Failure::new(format!("copy to {last}"), "there is no such directory");
        return Err(failure.advice("make it first"));
    }
    let into = into.filter(|_| target != Target::Name);
    if into.is_none() && sources.len() > 1 {
        let failed = "it is not a directory, and there are several sources";
        return Err(Failure::new(format!("copy to {last}"), failed).advice("make it first"));
    }
    check_uncached(&to, options)?;
    let mut pairs = Vec::new();
    let mut failures = Vec::new();
    if into.is_none() && last.ends_in_slash() {
        // A directory that the copy creates may be written with a slash.
        let source = mounts.place(&sources[0], Links::Stay).await?;
        let kind = source.existing("copy")?.kind;
        if kind != FileKind::Directory {
            let failure = Failure::new(format!("copy to {last}"), "there is no such directory");
            return Err(failure.advice("make it first"));
        }
    }
    for source in sources {
        match pair(mounts, source, last, &to, into.as_ref(), options).await {
            Ok(pair) => pairs.push(pair),
            Err(failure) => {
                complain(&failure);
                failures.push(failure);
            }
        }
    }
    Ok((pairs, failures))
}

pub(crate) async fn pair(
    mounts: &mut Mounts,
    source: &Location,
    last: &Location,
    to: &Place,
    into: Option<&Attr>,
    options: &Options,
) -> Result<(Place, Place)> {
    let stays = options.recursive && !options.dereference;
    let links = if stays { Links::Stay } else { Links::Follow };
    let from = mounts.place(source, links).await?;
    let attr = from.existing("copy")?;
    check_uncached(&from, options)?;
    let to = match (into, source.name()) {
        (Some(dir), Some(name)) => {
            let mut to = to.child(dir.id, &name, None);
            to.attr = match to.fs.lookup(&Caller::Own, dir.id.entry(&name)).await {
                Ok(attr) => Some(attr),
                Err(Error::NotFound) => None,
                Err(error) => return Err(error).asked(|| format!("find {}", to.shown)),
            };
            led(mounts, last, to, options).await?
        }
        // A root or `.` has no name: its content goes into the directory itself.
        (Some(_), None) => to.clone(),
        (None, _) => to.clone(),
    };
    let same = |there: &Attr| there.fsid == attr.fsid && is_same(there, attr);
    if to.attr.as_ref().is_some_and(same) {
        let asked = format!("copy {source} to {}", to.shown);
        return Err(Failure::new(asked, "they are the same file"));
    }
    if attr.kind == FileKind::Directory && options.recursive {
        let inside = is_inside(&to, attr).await.asked(|| format!("find {last}"))?;
        if inside || is_inside_locally(last, attr) {
            let asked = format!("copy the directory {source} to {}", to.shown);
            let failure = Failure::new(asked, "that is inside of it");
            return Err(failure.advice("copy it to a place outside of it"));
        }
    }
    Ok((from, to))
}

/// The place that is written to for a name in a directory, `to`. As for cp(1), a link there stands for the file
/// that it leads to, if there is one, unless links are copied as such.
async fn led(mounts: &mut Mounts, last: &Location, to: Place, options: &Options) -> Result<Place> {
    let is_link = to.attr.as_ref().is_some_and(|attr| attr.kind == FileKind::Symlink);
    let Some(name) = to.name.clone().filter(|_| is_link && !options.recursive) else {
        return Ok(to);
    };
    match mounts.place(&last.below(&[name]), Links::Follow).await {
        Ok(led) if led.attr.is_some() => {
            check_uncached(&led, options)?;
            Ok(led)
        }
        Ok(_) => Ok(to),
        Err(failure) if failure.is_of(Error::NotFound) => Ok(to),
        Err(failure) => Err(failure),
    }
}

/// Whether a place is inside a directory, as far as its store knows the parents.
pub(crate) async fn is_inside(place: &Place, dir: &Attr) -> weir_vfs::Result<bool> {
    let mut at = place.fs.getattr(place.dir).await?;
    loop {
        if is_same(&at, dir) {
            return Ok(true);
        }
        let above = place.fs.parent(at.id).await?;
        if above.id == at.id {
            return Ok(false);
        }
        at = above;
    }
}

/// The same above the directory that was opened as a store, for a local location.
pub(crate) fn is_inside_locally(location: &Location, dir: &Attr) -> bool {
    let Location::Local(path) = location else { return false };
    let there = |path: &Path| -> Option<PathBuf> { path.canonicalize().ok() };
    let above = path
        .parent()
        .map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above });
    let Some(real) = there(path).or_else(|| there(above?)) else { return false };
    real.ancestors().any(|above| {
        let Ok(found) = above.metadata() else { return false };
        let time = |time: std::io::Result<SystemTime>| time.ok();
        let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::new(
            u64::try_from(found.ctime()).unwrap_or_default(),
            u32::try_from(found.ctime_nsec()).unwrap_or_default(),
        ));
        let times = (time(found.modified()), changed);
        is_shown_as(dir, found.ino()) && times == (Some(dir.mtime), Some(dir.ctime))
    })
}

fn check_uncached(place: &Place, options: &Options) -> Result<()> {
    let able = place.fs.store().capabilities().contains(Capabilities::UNCACHED);
    if options.flags.contains(IoFlags::UNCACHED) && !able {
        let asked = format!("copy {} uncached", place.shown);
        return Err(
            Failure::new(asked, "its store does not support it").advice("leave out --uncached")
        );
    }
    Ok(())
}
