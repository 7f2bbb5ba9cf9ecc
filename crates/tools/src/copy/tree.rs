//! A tree: walks directories in order, and copies regular files concurrently.
//!
//! 1. Two sources never write to one name: the second one fails.
//! 2. A directory is not copied into itself, regardless of the paths used.

use super::attributes::{self, Like};
use super::copier::{Copier, add};
use super::{file, source};
use crate::failure::{Asked, Failure, Result};
use crate::listing::Listing;
use crate::mounts::Place;
use crate::text::kind_name;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};
use weir_pagecache::CachedFs;
use weir_vfs::{Attr, Caller, Error, FileId, FileKind, RenameFlags, SetAttr, SpecialFile};
use xxhash_rust::xxh3::xxh3_128;

/// The copy of a file with several names, once it exists.
type Copied = Arc<OnceLock<FileId>>;

/// The walk's state.
struct Walk<'a> {
    copier: &'a Arc<Copier>,
    files: JoinSet<()>,
    /// Directories to read, and their destinations.
    ahead: Vec<(Place, Attr, Place)>,
    /// Directories whose attributes are set after their files exist: source and copy.
    made: Vec<(Place, Attr, Place, FileId)>,
    /// Files that have more than one name.
    linked: HashMap<(u64, FileId), Copied>,
    /// Further names, linked once the files exist.
    links: Vec<(Copied, Place)>,
    /// Destination directories, which must not be copied themselves.
    into: Vec<(CachedFs, Attr)>,
    /// Names already used as destinations, by directory and hash, if there are several sources.
    taken: Option<HashSet<(FileId, u128)>>,
    /// Whether the current pair has created no directory yet.
    topmost: bool,
}

/// Copies each first place to its second, until all is done or interrupted.
pub(crate) async fn copy(copier: &Arc<Copier>, pairs: Vec<(Place, Place)>) {
    let mut walk = Walk {
        copier,
        files: JoinSet::new(),
        ahead: Vec::new(),
        made: Vec::new(),
        linked: HashMap::new(),
        links: Vec::new(),
        into: Vec::new(),
        taken: (pairs.len() > 1).then(HashSet::new),
        topmost: true,
    };
    tokio::select! {
        () = walk.all(pairs) => walk.finish().await,
        // The tasks see it, too; none may still write when temporary files are removed.
        () = copier.interrupted() => while walk.files.join_next().await.is_some() {},
    }
}

impl Walk<'_> {
    async fn all(&mut self, pairs: Vec<(Place, Place)>) {
        for (from, to) in pairs {
            self.topmost = true;
            if let Err(failure) = self.pair(from, to).await {
                self.copier.fail(failure);
            }
            while let Some((from, attr, to)) = self.ahead.pop() {
                if let Err(failure) = self.directory(&from, &attr, &to).await {
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
        self.entry(from, attr, to).await;
        Ok(())
    }

    /// Makes sure that a task that panicked does not look like a file that was copied.
    fn joined(&self, joined: Result<(), JoinError>) {
        if let Err(error) = joined {
            self.copier.fail(Failure::new("copy a file", format!("a fault in weir: {error}")));
        }
    }

    /// Copies one entry, or queues it.
    async fn entry(&mut self, from: Place, attr: Attr, to: Place) {
        if attr.kind != FileKind::Directory
            && let Some(taken) = &mut self.taken
            && let Some(name) = &to.name
            && !taken.insert((to.dir, xxh3_128(name)))
        {
            let asked = format!("copy {} to {}", from.shown, to.shown);
            let failure = Failure::new(asked, "another source was just copied to that name");
            return self.copier.fail(failure.advice("copy them to different directories"));
        }
        let result = match attr.kind {
            FileKind::Regular => {
                self.regular(from, attr, to).await;
                Ok(())
            }
            _ if !self.copier.options.recursive => Err(Failure::new(
                format!("copy {}", from.shown),
                format!("it is a {}", kind_name(attr.kind)),
            )
            .advice("use -r to copy directories and special files")),
            FileKind::Directory => {
                self.ahead.push((from, attr, to));
                Ok(())
            }
            FileKind::Symlink => self.symlink(&from, &attr, &to).await,
            _ => self.special(&from, &attr, &to).await,
        };
        if let Err(failure) = result {
            self.copier.fail(failure);
        }
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
                let _ = copied.set(there.id);
            }
            return;
        }
        while self.files.len() >= self.copier.options.jobs {
            if let Some(joined) = self.files.join_next().await {
                self.joined(joined);
            }
        }
        let copier = Arc::clone(self.copier);
        self.files.spawn(async move {
            let done = tokio::select! {
                done = file::copy(&copier, &from, attr.id, &to) => done,
                () = copier.interrupted() => return,
            };
            match (done, copied) {
                (Ok(id), Some(copied)) => drop(copied.set(id)),
                (Ok(_), None) => {}
                (Err(failure), _) => copier.fail(failure),
            }
        });
    }

    /// Creates the directory at `to` if necessary, and copies the content of `from`.
    async fn directory(&mut self, from: &Place, attr: &Attr, to: &Place) -> Result<()> {
        if self.is_target(from, attr).await {
            let asked = format!("copy the directory {}", from.shown);
            let failure = Failure::new(asked, "the copy would be inside of it");
            return Err(failure.advice("copy it to a place outside of it"));
        }
        let preserve = self.copier.options.preserve;
        let make = || format!("make the directory {}", to.shown);
        let (id, fresh) = match (&to.attr, &to.name) {
            (Some(there), _) if there.kind == FileKind::Directory => {
                // An earlier run may have ended before it set them.
                if preserve {
                    self.made.push((from.clone(), attr.clone(), to.clone(), there.id));
                }
                (there.id, false)
            }
            (None, Some(name)) => {
                // A protected directory is protected from the start; any other gets its final mode
                // at once, so that an interrupted run leaves no directory that other users cannot
                // enter.
                let usual = attr.mode & 0o777 & !self.copier.options.umask;
                let first = if preserve { 0o700 } else { usual | 0o700 };
                let set = SetAttr { mode: Some(first), ..SetAttr::default() };
                let made = to.fs.mkdir(&Caller::Own, to.dir, name, &set).await.asked(make)?;
                self.copier.changed.lock().insert(to.dir);
                self.made.push((from.clone(), attr.clone(), to.clone(), made.id));
                // If the topmost directory were inside the source, it would be found there and
                // copied into itself, forever.
                if std::mem::take(&mut self.topmost) {
                    self.into.push((to.fs.clone(), made.clone()));
                }
                add(&self.copier.tally.directories, 1);
                (made.id, true)
            }
            _ => return Err(Error::NotDirectory).asked(make),
        };
        let mut listing = Listing::at(from, attr.id);
        while let Some(entries) = listing.next().await.asked(|| format!("list {}", from.shown))? {
            for entry in entries {
                let source = from.child(attr.id, &entry.name, None);
                let found = match entry.attr {
                    Some(attr) => Some(attr),
                    None => lookup(&source, &entry.name).await?,
                };
                // Skip an entry that vanished meanwhile.
                let Some(found) = found else { continue };
                let mut target = to.child(id, &entry.name, None);
                if !fresh {
                    target.attr = lookup(&target, &entry.name).await?;
                }
                self.entry(source, found, target).await;
            }
        }
        Ok(())
    }

    /// Whether a directory of the source is a destination.
    async fn is_target(&self, from: &Place, attr: &Attr) -> bool {
        for (fs, into) in &self.into {
            if into.id.ino != attr.id.ino {
                continue;
            }
            if is_one_directory((fs, into), (&from.fs, attr)).await {
                return true;
            }
        }
        false
    }

    async fn symlink(&self, from: &Place, attr: &Attr, to: &Place) -> Result<()> {
        let write = || format!("make the symbolic link {}", to.shown);
        let name = to.name.as_deref().ok_or(Error::Exists).asked(write)?;
        let read = || from.fs.readlink(&Caller::Own, attr.id);
        let target = from.found_again(attr.id, read).await;
        let target = target.asked(|| format!("read the symbolic link {}", from.shown))?;
        self.clear(to).await.asked(write)?;
        let set = SetAttr::default();
        let made = to.fs.symlink(&Caller::Own, to.dir, name, &target, &set).await.asked(write)?;
        self.copier.changed.lock().insert(to.dir);
        if self.copier.options.preserve {
            let source = Like { place: from, attr };
            attributes::set_of_link(self.copier, source, to, &made).await.asked(write)?;
        }
        add(&self.copier.tally.symlinks, 1);
        Ok(())
    }

    async fn special(&self, from: &Place, attr: &Attr, to: &Place) -> Result<()> {
        let write = || format!("make the {} {}", kind_name(attr.kind), to.shown);
        let name = to.name.as_deref().ok_or(Error::Exists).asked(write)?;
        let node = SpecialFile::of(attr).ok_or(Error::Invalid).asked(write)?;
        self.clear(to).await.asked(write)?;
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let made = to.fs.mknod(&Caller::Own, to.dir, name, node, &set);
        let made = made.await.asked(write)?;
        self.copier.changed.lock().insert(to.dir);
        attributes::set(self.copier, Like { place: from, attr }, to, made.id).await.asked(write)?;
        add(&self.copier.tally.special_files, 1);
        Ok(())
    }

    /// Removes an existing entry in the place of a link or special file; never a directory.
    async fn clear(&self, to: &Place) -> weir_vfs::Result<()> {
        match (&to.attr, &to.name) {
            (Some(attr), _) if attr.kind == FileKind::Directory => Err(Error::IsDirectory),
            (Some(_), Some(name)) => to.fs.unlink(&Caller::Own, to.dir, name).await,
            _ => Ok(()),
        }
    }

    /// After the files exist: creates further names and sets the attributes of directories, the
    /// innermost first.
    async fn finish(&mut self) {
        for (copied, to) in std::mem::take(&mut self.links) {
            if let Err(failure) = self.link(&copied, &to).await {
                self.copier.fail(failure);
            }
        }
        for (place, attr, to, id) in self.made.iter().rev() {
            let set = || attributes::set(self.copier, Like { place, attr }, to, *id);
            let set = to.found_again(*id, || place.found_again(attr.id, set)).await;
            match set.asked(|| format!("set the attributes of {}", to.shown)) {
                Ok(()) => {
                    self.copier.changed.lock().insert(*id);
                }
                Err(failure) => self.copier.fail(failure),
            }
        }
    }

    async fn link(&self, copied: &Copied, to: &Place) -> Result<()> {
        let write = || format!("make the hard link {}", to.shown);
        let name = to.name.as_deref().ok_or(Error::Exists).asked(write)?;
        let Some(id) = copied.get() else {
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
        let linked = to.fs.link(&Caller::Own, *id, to.dir, name).await;
        match linked {
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
        to.fs.link(&Caller::Own, id, to.dir, &temporary).await?;
        let replace = RenameFlags::Replace;
        let renamed =
            to.fs.rename(&Caller::Own, to.dir.entry(&temporary), to.dir.entry(name), replace).await;
        // If both names already refer to one file, rename(2) does nothing.
        match to.fs.unlink(&Caller::Own, to.dir, &temporary).await {
            Ok(()) | Err(Error::NotFound) => renamed,
            Err(error) => renamed.and(Err(error)),
        }
    }
}

async fn lookup(place: &Place, name: &[u8]) -> Result<Option<Attr>> {
    match place.fs.lookup(&Caller::Own, place.dir, name).await {
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
