//! A tree: walks directories in order, and copies regular files concurrently.
//!
//! 1. Two sources never write to one name: the second one fails.
//! 2. A directory is not copied into itself, regardless of the paths used.
//! 3. Directories are made and listed ahead, several at a time: the beginning of each is in memory
//!    ([`PAGES_AHEAD`]), the rest is read when its turn comes. A directory exists before its entries
//!    are copied.

use super::attributes::{self, Like};
use super::copier::{Copier, add};
use super::options::Overwrite;
use super::{entry, file, source};
use crate::beyond::may_be_mount_point;
use crate::chain::Chain;
use crate::failure::{Asked, Failure, Result};
use crate::listing::Listing;
use crate::mounts::{Mounts, Place};
use crate::text::kind_name;
use futures_util::{StreamExt, stream};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};
use weir_pagecache::CachedFs;
use weir_vfs::{
    Attr, Caller, DirEntry, Error, FileId, FileKind, RenameFlags, SetAttr, SpecialFile,
};
use xxhash_rust::xxh3::xxh3_128;

/// The copy of a file with several names, once it exists, and its place.
type Copied = Arc<OnceLock<(FileId, Place)>>;

/// The walk's state.
struct Walk<'a> {
    copier: &'a Arc<Copier>,
    /// Finds what links and mount points lead to.
    mounts: Option<&'a mut Mounts>,
    files: JoinSet<()>,
    /// Directories to read, and their destinations.
    ahead: Vec<Ahead>,
    /// Directories that are being made and listed.
    opening: JoinSet<Result<Opened>>,
    /// Directories whose attributes are set after their files exist.
    made: Vec<Made>,
    /// Files that have more than one name.
    linked: HashMap<(u64, FileId), Copied>,
    /// Further names, linked once the files exist.
    links: Vec<(Copied, Place)>,
    /// Destination directories, which must not be copied themselves.
    into: Vec<(CachedFs, Attr)>,
    /// Names already used as destinations, by directory and hash, if there are several sources.
    taken: Option<HashSet<(FileId, u128)>>,
}

/// A directory to copy.
struct Ahead {
    from: Place,
    attr: Attr,
    to: Place,
    level: Level,
}

/// Where a file is in a tree.
#[derive(Clone)]
struct Level {
    /// Number of directories above it that are copied as well.
    depth: usize,
    /// The file system of the top.
    top_fsid: u64,
    /// If links are followed: the directories above it that are copied as well.
    above: Chain<Attr>,
}

/// An entry of a directory, what was found there, and its destination.
type Target = (Place, weir_vfs::Result<Attr>, Place);

/// A directory of the destination, and its source.
struct Made {
    from: Place,
    attr: Attr,
    to: Place,
    /// The copy, as it was made or found.
    now: Attr,
    level: Level,
}

/// A directory that exists at the destination, and the beginning of its source's entries.
struct Opened {
    made: Made,
    is_new: bool,
    entries: Vec<DirEntry>,
    rest: Listing,
    /// Whether all of `entries` could be listed.
    listed: Result<()>,
    there: Existing,
}

/// The entries of a directory of the destination, or the first of them.
#[derive(Default)]
struct Existing {
    found: HashMap<Vec<u8>, Attr>,
    is_complete: bool,
}

/// Directories that are made and listed at a time.
const OPENED_AT_ONCE: usize = 8;
/// Pages of entries of each that are read ahead.
const PAGES_AHEAD: usize = 2;
/// Most entries of an existing directory of the destination that are in memory.
const MOST_EXISTING: usize = 16 << 10;
/// Calls in flight at a time for names that are not, and for attributes of directories.
const CALLS_AT_ONCE: usize = 32;

/// Copies each first place to its second, until all is done or interrupted.
pub(crate) async fn copy(
    copier: &Arc<Copier>,
    pairs: Vec<(Place, Place)>,
    mounts: Option<&mut Mounts>,
) {
    let mut walk = Walk {
        copier,
        mounts,
        files: JoinSet::new(),
        ahead: Vec::new(),
        opening: JoinSet::new(),
        made: Vec::new(),
        linked: HashMap::new(),
        links: Vec::new(),
        into: Vec::new(),
        taken: (pairs.len() > 1).then(HashSet::new),
    };
    tokio::select! {
        () = walk.all(pairs) => walk.finish().await,
        // The tasks see it, too; none may still write when temporary files are removed.
        () = copier.interrupted() => {
            walk.opening.shutdown().await;
            while walk.files.join_next().await.is_some() {}
        }
    }
}

impl Walk<'_> {
    async fn all(&mut self, pairs: Vec<(Place, Place)>) {
        for (from, to) in pairs {
            if let Err(failure) = self.pair(from, to).await {
                self.copier.fail(failure);
            }
            loop {
                while self.opening.len() < OPENED_AT_ONCE
                    && let Some(next) = self.ahead.pop()
                {
                    let (copier, into) = (Arc::clone(self.copier), self.into.clone());
                    self.opening.spawn(async move { open(&copier, &into, next).await });
                }
                let Some(opened) = self.opening.join_next().await else { break };
                let copied = match opened {
                    Ok(Ok(opened)) => self.directory(opened).await,
                    Ok(Err(failure)) => Err(failure),
                    Err(error) => Err(panicked(&error)),
                };
                if let Err(failure) = copied {
                    self.copier.fail(failure);
                }
            }
        }
        while let Some(joined) = self.files.join_next().await {
            self.joined(joined);
        }
    }

    async fn pair(&mut self, from: Place, mut to: Place) -> Result<()> {
        let attr = from.existing("copy")?.clone();
        // An earlier source may have created it.
        if let (Some(_), Some(name)) = (&self.taken, &to.name) {
            to.attr = lookup(&to, name).await?;
        }
        if let Some(into) = to.attr.as_ref().filter(|a| a.kind == FileKind::Directory) {
            self.into.push((to.fs.clone(), into.clone()));
        }
        let level = Level { depth: 0, top_fsid: attr.fsid, above: Chain::default() };
        self.entry(from, attr, to, level).await;
        Ok(())
    }

    /// Makes sure that a task that panicked does not look like a file that was copied.
    fn joined(&self, joined: Result<(), JoinError>) {
        if let Err(error) = joined {
            self.copier.fail(panicked(&error));
        }
    }

    /// Copies one entry, or queues it.
    async fn entry(&mut self, from: Place, attr: Attr, mut to: Place, level: Level) {
        match entry::prepare(self.copier, &from, &attr, &mut to).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(failure) => return self.copier.fail(failure),
        }
        if attr.kind != FileKind::Directory
            && let Some(taken) = &mut self.taken
            && let Some(name) = &to.name
            && !taken.insert((to.dir, xxh3_128(name)))
        {
            let asked = format!("copy {} to {}", from.shown, to.shown);
            let failure = Failure::new(asked, "another source was just copied to that name");
            return self.copier.fail(failure.advice("copy them to different directories"));
        }
        if attr.kind != FileKind::Directory && self.is_kept(&attr, &to) {
            add(&self.copier.tally.kept, 1);
            return;
        }
        match attr.kind {
            FileKind::Regular => self.regular(from, attr, to).await,
            _ if !self.copier.options.recursive => {
                let failed = format!("it is a {}", kind_name(attr.kind));
                let failure = Failure::new(format!("copy {}", from.shown), failed);
                let advice = "use -r to copy directories and special files";
                self.copier.fail(failure.advice(advice));
            }
            FileKind::Directory => self.ahead.push(Ahead { from, attr, to, level }),
            _ if self.copier.options.dry_run => self.copier.progress.made(&from.shown, &to.shown),
            _ => {
                let copier = Arc::clone(self.copier);
                self.spawn(async move {
                    let make = async {
                        match attr.kind {
                            FileKind::Symlink => symlink(&copier, &from, &attr, &to).await,
                            _ => special(&copier, &from, &attr, &to).await,
                        }
                    };
                    let made = tokio::select! {
                        made = make => made,
                        () = copier.interrupted() => return,
                    };
                    match made {
                        Ok(()) => copier.progress.made(&from.shown, &to.shown),
                        Err(failure) => copier.fail(failure),
                    }
                })
                .await;
            }
        }
    }

    /// Whether a file that exists stays.
    fn is_kept(&self, attr: &Attr, to: &Place) -> bool {
        let Some(there) = &to.attr else { return false };
        let options = &self.copier.options;
        let stays = match options.overwrite {
            Overwrite::Replace => false,
            Overwrite::Keep => true,
            Overwrite::Update => there.mtime >= attr.mtime,
        };
        stays || options.asks && !self.copier.progress.may_replace(&to.shown)
    }

    /// Runs a task, beside as many as the options allow.
    async fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.files.len() >= self.copier.options.jobs {
            if let Some(joined) = self.files.join_next().await {
                self.joined(joined);
            }
        }
        self.files.spawn(task);
    }

    async fn regular(&mut self, from: Place, attr: Attr, to: Place) {
        let mut copied = None;
        if self.copier.options.preserve && attr.nlink > 1 {
            let first = self.linked.get(&(attr.fsid, attr.id)).cloned();
            if let Some(first) = first {
                self.links.push((first, to));
                return;
            }
            copied = Some(Copied::default());
            self.linked.extend(copied.clone().map(|c| ((attr.fsid, attr.id), c)));
        }
        self.copier.progress.found(attr.size);
        if file::is_done(self.copier, &attr, &to) {
            self.copier.progress.copied(attr.size);
            add(&self.copier.tally.up_to_date, 1);
            if let (Some(copied), Some(there)) = (copied, &to.attr) {
                // Set once, as only a file's first name gets here.
                let _ = copied.set((there.id, to.clone()));
            }
            return;
        }
        if self.copier.options.dry_run {
            self.copier.progress.made(&from.shown, &to.shown);
            return;
        }
        let copier = Arc::clone(self.copier);
        self.spawn(async move {
            let done = tokio::select! {
                done = file::copy_found_again(&copier, &from, &attr, &to) => done,
                () = copier.interrupted() => return,
            };
            match done {
                Ok(id) => {
                    copier.progress.made(&from.shown, &to.shown);
                    if let Some(copied) = copied {
                        // Set once, by the task that copies its first name.
                        let _ = copied.set((id, to));
                    }
                }
                // It appeared meanwhile.
                Err(failure)
                    if copier.options.overwrite == Overwrite::Keep
                        && failure.is_of(Error::Exists) =>
                {
                    add(&copier.tally.kept, 1);
                }
                Err(failure) => copier.fail(failure),
            }
        })
        .await;
    }

    /// Copies the content of a directory whose copy exists.
    async fn directory(&mut self, opened: Opened) -> Result<()> {
        let Opened { made, is_new, entries, mut rest, listed, there } = opened;
        let Made { from, to, attr, now, level } = &made;
        let (from, to, attr, level) = (from.clone(), to.clone(), attr.clone(), level.clone());
        let id = now.id;
        // If the topmost directory were inside the source, it would be found there and copied into
        // itself, forever.
        if is_new && level.depth == 0 && !self.copier.options.dry_run {
            self.into.push((to.fs.clone(), now.clone()));
        }
        // An earlier run may have ended before it set them.
        if (is_new || self.copier.options.preserve) && !self.copier.options.dry_run {
            self.made.push(made);
        }
        let above = match self.copier.options.dereference {
            true => level.above.with(attr.clone()),
            false => Chain::default(),
        };
        let level = Level { depth: level.depth + 1, above, ..level };
        let mut page = Some(entries);
        while let Some(entries) = page {
            for target in targets((&from, attr.id), (&to, id), &there, entries).await {
                let found = match target {
                    Ok((source, found, target)) => {
                        let led = self.lead(source, found, &level).await;
                        led.map(|(source, found)| (source, found, target))
                    }
                    Err(failure) => Err(failure),
                };
                match found {
                    Ok((source, attr, to)) => self.entry(source, attr, to, level.clone()).await,
                    Err(failure) => self.copier.fail(failure),
                }
            }
            if listed.is_err() {
                break;
            }
            page = rest.next().await.asked(|| format!("list {}", from.shown))?;
        }
        listed
    }

    /// The file to copy for an entry: where links are followed, or a file system is mounted, another one.
    async fn lead(
        &mut self,
        source: Place,
        found: weir_vfs::Result<Attr>,
        level: &Level,
    ) -> Result<(Place, Attr)> {
        let follows = self.copier.options.dereference;
        let is_link = match &found {
            Ok(attr) if follows && attr.kind == FileKind::Symlink => true,
            Err(error) if may_be_mount_point(*error) && self.mounts.is_some() => false,
            _ => {
                let attr = found.asked(|| format!("find {}", source.shown))?;
                return Ok((source, attr));
            }
        };
        let Some(mounts) = &mut self.mounts else {
            let asked = format!("follow the symbolic link {}", source.shown);
            return Err(Failure::new(asked, "this copy cannot leave its tree"));
        };
        let (led, attr) = mounts.beyond(&source).await?;
        let is_above = |above: &Attr| source::is_same(above, &attr);
        if is_link && attr.kind == FileKind::Directory && level.above.iter().any(is_above) {
            let asked = format!("copy the symbolic link {}", source.shown);
            let failure = Failure::new(asked, "it leads to a directory that it is in");
            return Err(failure.advice("leave out -L to copy the link itself"));
        }
        Ok((led, attr))
    }

    /// After the files exist: creates further names and sets the attributes of directories, the
    /// innermost first.
    async fn finish(&mut self) {
        for (copied, to) in std::mem::take(&mut self.links) {
            if self.copier.options.dry_run {
                continue;
            }
            if let Err(failure) = self.link(&copied, &to).await {
                self.copier.fail(failure);
            }
        }
        let mut made = std::mem::take(&mut self.made);
        // Of several sources that were copied into one directory, the first one counts.
        let mut copies = HashSet::new();
        made.retain(|made| copies.insert(made.now.id));
        made.sort_by_key(|made| std::cmp::Reverse(made.level.depth));
        for level in made.chunk_by(|a, b| a.level.depth == b.level.depth) {
            let set = stream::iter(level).map(|made| self.set(made));
            set.buffer_unordered(CALLS_AT_ONCE).collect::<()>().await;
        }
    }

    /// Sets the attributes of a directory.
    async fn set(&self, made: &Made) {
        let Made { from, attr, to, now, .. } = made;
        let set = || attributes::set_from(self.copier, Like::new(from, attr), to, now);
        let set = to.found_again(now.id, || from.found_again(attr.id, set)).await;
        match set.asked(|| format!("set the attributes of {}", to.shown)) {
            Ok(()) => drop(self.copier.changed.lock().insert(now.id)),
            Err(failure) => self.copier.fail(failure),
        }
    }

    async fn link(&self, copied: &Copied, to: &Place) -> Result<()> {
        let write = || format!("make the hard link {}", to.shown);
        let name = to.name.as_deref().ok_or(Error::Exists).asked(write)?;
        let Some((id, copy)) = copied.get() else {
            return Err(Failure::new(write(), "the file itself was not copied"));
        };
        match &to.attr {
            Some(there) if there.id == *id => {
                add(&self.copier.tally.up_to_date, 1);
                return Ok(());
            }
            Some(there) if there.kind == FileKind::Directory => {
                return Err(Error::IsDirectory).asked(write);
            }
            _ => {}
        }
        let link = || to.fs.link(&Caller::Own, *id, to.dir.entry(name));
        let linked = to.with_directory(|| copy.found_again(*id, link)).await;
        match linked {
            // It appeared since the directory was listed.
            Err(Error::Exists) if self.copier.options.overwrite == Overwrite::Keep => {
                add(&self.copier.tally.kept, 1);
                return Ok(());
            }
            Err(Error::Exists) => self.relink(*id, to, name).await.asked(write)?,
            linked => linked.map(drop).asked(write)?,
        }
        self.copier.changed.lock().insert(to.dir);
        add(&self.copier.tally.hard_links, 1);
        Ok(())
    }
}

impl Walk<'_> {
    /// Replaces the entry by a link; the old entry exists until then.
    async fn relink(&self, id: FileId, to: &Place, name: &[u8]) -> weir_vfs::Result<()> {
        let temporary = self.copier.link_name();
        to.fs.link(&Caller::Own, id, to.dir.entry(&temporary)).await?;
        let replace = RenameFlags::Replace;
        let renamed =
            to.fs.rename(&Caller::Own, to.dir.entry(&temporary), to.dir.entry(name), replace).await;
        // If both names already refer to one file, rename(2) does nothing.
        match to.fs.unlink(&Caller::Own, to.dir.entry(&temporary)).await {
            Ok(()) | Err(Error::NotFound) => renamed,
            Err(error) => renamed.and(Err(error)),
        }
    }
}

fn panicked(error: &JoinError) -> Failure {
    Failure::new("copy a file", format!("a fault in weir: {error}"))
}

/// Makes the directory at the destination if necessary, and begins to list its source and, if it
/// existed, itself.
async fn open(copier: &Copier, into: &[(CachedFs, Attr)], next: Ahead) -> Result<Opened> {
    let Ahead { from, attr, to, level } = next;
    if is_target(into, &from, &attr).await {
        let asked = format!("copy the directory {}", from.shown);
        let failure = Failure::new(asked, "the copy would be inside of it");
        return Err(failure.advice("copy it to a place outside of it"));
    }
    let make = || format!("make the directory {}", to.shown);
    let (now, is_new) = match (&to.attr, &to.name) {
        (Some(there), _) if there.kind == FileKind::Directory => (there.clone(), false),
        (None, Some(_)) if copier.options.dry_run => {
            copier.progress.made(&from.shown, &to.shown);
            // No call is made with it: it is taken for empty, and nothing is written.
            (attr.clone(), true)
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
                    copier.changed.lock().insert(to.dir);
                    add(&copier.tally.directories, 1);
                    copier.progress.made(&from.shown, &to.shown);
                    (made, true)
                }
                // The listing does not have the name, but the file system takes another one for it
                // (by folding case, say), or it was made meanwhile.
                Err(Error::Exists) => match lookup(&to, name).await? {
                    Some(there) if there.kind == FileKind::Directory => (there, false),
                    _ => return Err(Error::Exists).asked(make),
                },
                Err(error) => return Err(error).asked(make),
            }
        }
        _ => return Err(Error::NotDirectory).asked(make),
    };
    let mut there = Existing { found: HashMap::new(), is_complete: is_new };
    if !is_new {
        there.read(&to, now.id).await;
    }
    let stays_out = copier.options.one_file_system && attr.fsid != level.top_fsid;
    let mut rest = match stays_out {
        true => Listing::nothing(&from, attr.id),
        false => Listing::at(&from, attr.id),
    };
    let mut entries = Vec::new();
    let mut listed = Ok(());
    for _ in 0..PAGES_AHEAD {
        match rest.next().await.asked(|| format!("list {}", from.shown)) {
            Ok(Some(page)) => entries.extend(page),
            Ok(None) => break,
            Err(failure) => {
                listed = Err(failure);
                break;
            }
        }
    }
    Ok(Opened { made: Made { from, attr, to, now, level }, is_new, entries, rest, listed, there })
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

/// The entries of a directory with their destinations, without those that vanished.
async fn targets(
    (from, id): (&Place, FileId),
    (to, made): (&Place, FileId),
    there: &Existing,
    entries: Vec<DirEntry>,
) -> Vec<Result<Target>> {
    let (from, to) = (&from.inside(id), &to.inside(made));
    let pairs = stream::iter(entries).map(|entry| async move {
        let source = from.child(&entry.name, None);
        let mut target = to.child(&entry.name, None);
        let look_up = || source.fs.lookup(&Caller::Own, source.dir.entry(&entry.name));
        let attr = match entry.attr {
            Some(attr) => Some(Ok(attr)),
            None => match source.with_directory(look_up).await {
                Err(Error::NotFound) => None,
                found => Some(found),
            },
        };
        target.attr = match there.found.get(&entry.name) {
            Some(found) => Some(found.clone()),
            None if there.is_complete || attr.is_none() => None,
            None => lookup(&target, &entry.name).await?,
        };
        Ok(attr.map(|attr| (source, attr, target)))
    });
    let pairs: Vec<Result<Option<_>>> = pairs.buffered(CALLS_AT_ONCE).collect().await;
    pairs.into_iter().filter_map(Result::transpose).collect()
}

/// Whether a directory of the source is a destination.
async fn is_target(into: &[(CachedFs, Attr)], from: &Place, attr: &Attr) -> bool {
    for (fs, into) in into {
        if into.id.ino != attr.id.ino {
            continue;
        }
        if is_one_directory((fs, into), (&from.fs, attr)).await {
            return true;
        }
    }
    false
}

async fn symlink(copier: &Copier, from: &Place, attr: &Attr, to: &Place) -> Result<()> {
    let write = || format!("make the symbolic link {}", to.shown);
    let name = to.name.as_deref().ok_or(Error::Exists).asked(write)?;
    let read = || from.fs.readlink(&Caller::Own, attr.id);
    let target = from.found_again(attr.id, read).await;
    let target = target.asked(|| format!("read the symbolic link {}", from.shown))?;
    clear(to).await.asked(write)?;
    let set = SetAttr::default();
    let make = || to.fs.symlink(&Caller::Own, to.dir.entry(name).with(&set), &target);
    let made = to.with_directory(make).await.asked(write)?;
    copier.changed.lock().insert(to.dir);
    if copier.options.preserve {
        attributes::set_of_link(copier, Like::new(from, attr), to, &made).await.asked(write)?;
    }
    add(&copier.tally.symlinks, 1);
    Ok(())
}

async fn special(copier: &Copier, from: &Place, attr: &Attr, to: &Place) -> Result<()> {
    let write = || format!("make the {} {}", kind_name(attr.kind), to.shown);
    let name = to.name.as_deref().ok_or(Error::Exists).asked(write)?;
    let node = SpecialFile::of(attr).ok_or(Error::Invalid).asked(write)?;
    clear(to).await.asked(write)?;
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let make = || to.fs.mknod(&Caller::Own, to.dir.entry(name).with(&set), node);
    let made = to.with_directory(make).await.asked(write)?;
    copier.changed.lock().insert(to.dir);
    attributes::set(copier, Like::new(from, attr), to, made.id).await.asked(write)?;
    add(&copier.tally.special_files, 1);
    Ok(())
}

/// Removes an existing entry in the place of a link or special file; never a directory.
async fn clear(to: &Place) -> weir_vfs::Result<()> {
    match (&to.attr, &to.name) {
        (Some(attr), _) if attr.kind == FileKind::Directory => Err(Error::IsDirectory),
        (Some(_), Some(name)) => {
            let unlink = || to.fs.unlink(&Caller::Own, to.dir.entry(name));
            to.with_directory(unlink).await
        }
        _ => Ok(()),
    }
}

async fn lookup(place: &Place, name: &[u8]) -> Result<Option<Attr>> {
    let look_up = || place.fs.lookup(&Caller::Own, place.dir.entry(name));
    match place.with_directory(look_up).await {
        Ok(attr) => Ok(Some(attr)),
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(error).asked(|| format!("find {}", place.shown)),
    }
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
    if into.fsid == attr.fsid {
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
