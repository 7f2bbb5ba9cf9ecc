//! Directories that are made and listed before their turn comes.

use super::copier::{Copier, add};
use super::source;
use crate::chain::Chain;
use crate::failure::{Asked, Failure, Result};
use crate::listing::Listing;
use crate::mounts::Place;
use std::collections::HashMap;
use std::time::Duration;
use weir_pagecache::CachedFs;
use weir_vfs::{Attr, Caller, DirEntry, Error, FileId, FileKind, SetAttr};

/// Pages of entries of each that are read ahead.
const PAGES_AHEAD: usize = 2;
/// Most entries of an existing directory of the destination that are in memory.
const MOST_EXISTING: usize = 16 << 10;

/// A directory to copy.
pub(super) struct Ahead {
    pub(super) from: Place,
    pub(super) attr: Attr,
    pub(super) to: Place,
    /// Another source may have been copied into the same directory.
    pub(super) may_merge: bool,
    pub(super) level: Level,
}

/// Where a file is in a tree.
#[derive(Clone)]
pub(super) struct Level {
    /// Number of directories above it that are copied as well.
    pub(super) depth: usize,
    /// The file system of the top.
    pub(super) top_fsid: u64,
    /// If links are followed: the directories above it that are copied as well.
    pub(super) above: Chain<Attr>,
}

/// A directory of the destination, and its source.
pub(super) struct Made {
    pub(super) from: Place,
    pub(super) attr: Attr,
    pub(super) to: Place,
    /// The copy, as it was made or found.
    pub(super) now: Attr,
    pub(super) level: Level,
}

/// A directory that exists at the destination, and the beginning of its source's entries.
pub(super) struct Opened {
    pub(super) made: Made,
    pub(super) is_new: bool,
    pub(super) may_merge: bool,
    pub(super) entries: Vec<DirEntry>,
    pub(super) rest: Listing,
    /// Whether all of `entries` could be listed.
    pub(super) listed: Result<()>,
    pub(super) there: Existing,
}

/// The entries of a directory of the destination, or the first of them.
#[derive(Default)]
pub(super) struct Existing {
    pub(super) found: HashMap<Vec<u8>, Attr>,
    pub(super) is_complete: bool,
}

/// Makes the directory at the destination if necessary, and begins to list its source and, if it
/// existed, itself. In a synchronization, it replaces a file, once its source can be listed.
pub(super) async fn open(
    copier: &Copier,
    into: &[(CachedFs, Attr)],
    next: Ahead,
) -> Result<Opened> {
    let Ahead { from, attr, mut to, may_merge, level } = next;
    if is_target(into, &from, &attr).await {
        let asked = format!("copy the directory {}", from.shown);
        let failure = Failure::new(asked, "the copy would be inside of it");
        return Err(failure.advice("copy it to a place outside of it"));
    }
    let stays_out = copier.options.one_file_system && attr.fsid != level.top_fsid;
    let mut rest = match stays_out {
        true => Listing::nothing(&from, attr.id),
        false => Listing::at(&from, attr.id),
    };
    let list = || format!("list {}", from.shown);
    let mut entries = Vec::new();
    let is_file = to.attr.as_ref().is_some_and(|there| there.kind != FileKind::Directory);
    if copier.options.mirror.is_some() && is_file {
        entries = rest.next().await.asked(list)?.unwrap_or_default();
        remove_file(copier, &to).await?;
        to.attr = None;
    }
    let (now, is_new) = make(copier, (&from, &attr), &to).await?;
    let mut there = Existing { found: HashMap::new(), is_complete: is_new };
    if !is_new {
        there.read(&to, now.id).await;
    }
    let mut listed = Ok(());
    for _ in 0..PAGES_AHEAD {
        match rest.next().await.asked(list) {
            Ok(Some(page)) => entries.extend(page),
            Ok(None) => break,
            Err(failure) => {
                listed = Err(failure);
                break;
            }
        }
    }
    let made = Made { from, attr, to, now, level };
    Ok(Opened { made, is_new, may_merge, entries, rest, listed, there })
}

/// Removes the file in the place of a directory to be made.
async fn remove_file(copier: &Copier, to: &Place) -> Result<()> {
    let Some(name) = to.name.as_deref().filter(|_| !copier.options.dry_run) else { return Ok(()) };
    match to.with_directory(|| to.fs.unlink(&Caller::Own, to.dir.entry(name))).await {
        // Another program has removed it, or replaced it by a directory.
        Ok(()) | Err(Error::NotFound | Error::IsDirectory) => Ok(()),
        Err(error) => Err(error).asked(|| format!("make the directory {}", to.shown)),
    }
}

/// The directory at `to`, which this makes if there is none, and whether it is new.
async fn make(copier: &Copier, (from, attr): (&Place, &Attr), to: &Place) -> Result<(Attr, bool)> {
    let make = || format!("make the directory {}", to.shown);
    match (&to.attr, &to.name) {
        (Some(there), _) if there.kind == FileKind::Directory => Ok((there.clone(), false)),
        (None, Some(_)) if copier.options.dry_run => {
            copier.progress.made(&from.shown, &to.shown);
            // No call is made with it: it is taken for empty, and nothing is written.
            Ok((attr.clone(), true))
        }
        (None, Some(name)) => {
            // A protected directory is protected from the start; any other gets its final mode
            // at once, so that an interrupted run leaves no directory that other users cannot
            // enter.
            let usual = attr.mode & 0o777 & !copier.options.umask;
            let first = if copier.options.preserve { 0o700 } else { usual | 0o700 };
            let set = SetAttr { mode: Some(first), ..SetAttr::default() };
            let made = || to.fs.mkdir(&Caller::Own, to.dir.entry(name).with(&set));
            match to.with_directory(made).await {
                Ok(made) => {
                    copier.note_changed(&to.fs, to.dir);
                    add(&copier.tally.directories, 1);
                    copier.progress.made(&from.shown, &to.shown);
                    Ok((made, true))
                }
                // The listing does not have the name, but the file system takes another one for it
                // (by folding case, say), or it was made meanwhile.
                Err(Error::Exists) => match lookup(to, name).await? {
                    Some(there) if there.kind == FileKind::Directory => Ok((there, false)),
                    _ => Err(Error::Exists).asked(make),
                },
                Err(error) => Err(error).asked(make),
            }
        }
        _ => Err(Error::NotDirectory).asked(make),
    }
}

impl Existing {
    /// Reads the entries of the directory at `place`, as many as fit. Names that this does not find
    /// are looked up: the caller may be allowed to search a directory and not to list it.
    async fn read(&mut self, place: &Place, id: FileId) {
        let mut listing = Listing::at(place, id);
        while self.found.len() < MOST_EXISTING {
            let page = match listing.next().await {
                Ok(Some(page)) => page,
                Ok(None) => {
                    self.is_complete = true;
                    return;
                }
                Err(_) => return,
            };
            for entry in page {
                match entry.attr {
                    Some(attr) => drop(self.found.insert(entry.name, attr)),
                    // The name exists, but not what it is: it has to be looked up.
                    None => return,
                }
            }
        }
    }
}

/// Whether a directory of the source is a destination.
pub(super) async fn is_target(into: &[(CachedFs, Attr)], from: &Place, attr: &Attr) -> bool {
    for (fs, into) in into {
        if !source::may_be_same(into, attr) {
            continue;
        }
        if is_one_directory((fs, into), (&from.fs, attr)).await {
            return true;
        }
    }
    false
}

/// Whether two directories with the same inode number are the same. Different views of a directory
/// are compared by its times, which change whenever a file is copied into it: so one view counts
/// only if the other shows the same before and after.
async fn is_one_directory(
    (fs, into): (&CachedFs, &Attr),
    (other, attr): (&CachedFs, &Attr),
) -> bool {
    const LOOKS: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(20);
    if source::is_one_file_system(into, attr) {
        return true;
    }
    for _ in 0..LOOKS {
        let before = fs.getattr(into.id).await;
        let (seen, after) = (other.getattr(attr.id).await, fs.getattr(into.id).await);
        let (Ok(before), Ok(seen), Ok(after)) = (before, seen, after) else { return false };
        if source::is_same(&before, &seen) || source::is_same(&after, &seen) {
            return true;
        }
        if (before.mtime, before.ctime) == (after.mtime, after.ctime) {
            return false;
        }
        tokio::time::sleep(PAUSE).await;
    }
    // It never stops changing: copying it into itself would not end, refusing costs a message.
    true
}

pub(super) async fn lookup(place: &Place, name: &[u8]) -> Result<Option<Attr>> {
    let look_up = || place.fs.lookup(&Caller::Own, place.dir.entry(name));
    match place.with_directory(look_up).await {
        Ok(attr) => Ok(Some(attr)),
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(error).asked(|| format!("find {}", place.shown)),
    }
}
