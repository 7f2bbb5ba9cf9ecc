//! Removal of what the source lacks.
//!
//! 1. All directories are listed before anything is removed. Another program may have moved a file in the source since
//!    its new directory was copied, and before its old one was: what the source seems to lack may be the only copy
//!    here. So nothing is removed if the source has a name that was not copied, or if a directory of it changes while
//!    they are listed.

use crate::copy::source::{changed_directories, is_same, is_settled, settled};
use crate::copy::{Copier, Mirror, below};
use crate::failure::{Asked, Failure, Result};
use crate::mounts::Place;
use crate::remove::{Event, is_there, remove};
use futures_util::future::join;
use std::collections::{HashMap, HashSet};
use std::time::SystemTime;
use weir_vfs::{Attr, Caller, Error, FileId, FileKind, SetAttr, SetTime};

/// A directory of the source, and the one of its mirror.
struct Pair {
    from: (Place, Attr),
    to: (Place, Attr),
    path: Vec<u8>,
}

struct Deletion<'a> {
    copier: &'a Copier,
    mirror: &'a Mirror,
    deletes_excluded: bool,
    /// The top of the source, which must not be removed.
    top: &'a Attr,
    /// Directories of the source, as they were before they were listed.
    read: Vec<(Place, Attr)>,
    extraneous: Vec<Extraneous>,
    /// A failure for each file of the source that the mirror lacks.
    lacking: Vec<Failure>,
}

/// What the source lacks in a directory of its mirror.
struct Extraneous {
    to: Place,
    id: FileId,
    /// The time of the directory in the source.
    mtime: SystemTime,
    files: Vec<File>,
}

/// A file of the mirror, and its path in it.
struct File {
    place: Place,
    attr: Attr,
    path: Vec<u8>,
}

/// What a directory of the source has, and its mirror does not.
struct Others {
    /// The files of the mirror that have names of the source which its listing does not show: the file system takes
    /// other names for them (by folding case, say).
    same: HashSet<FileId>,
    /// Names that the mirror lacks.
    missing: HashSet<Vec<u8>>,
}

/// What became of a file or tree.
struct Removed {
    /// Something was removed.
    is_changed: bool,
    /// Nothing is left.
    is_gone: bool,
}

/// Removes from the directory `to` what `from` does not have. Returns what has changed in the source since it was
/// copied, if so: nothing is removed then, because what seems to be gone may have been moved.
///
/// # Errors
/// A directory cannot be listed: nothing is removed.
pub(super) async fn extraneous(
    copier: &Copier,
    mirror: &Mirror,
    from: &Place,
    to: &Place,
    deletes_excluded: bool,
) -> Result<Vec<Failure>> {
    let (top, there) = (from.existing("read")?.clone(), to.existing("read")?.clone());
    let (read, extraneous, lacking) = (Vec::new(), Vec::new(), Vec::new());
    let mut deletion =
        Deletion { copier, mirror, deletes_excluded, top: &top, read, extraneous, lacking };
    let mut ahead =
        vec![Pair { from: (from.clone(), top.clone()), to: (to.clone(), there), path: Vec::new() }];
    while let Some(pair) = ahead.pop() {
        deletion.list(pair, &mut ahead).await?;
    }
    if deletion.extraneous.is_empty() {
        return Ok(Vec::new());
    }
    if !copier.options.dry_run {
        let read = deletion.read.iter().map(|(place, attr)| (place, attr));
        let mut changed = std::mem::take(&mut deletion.lacking);
        changed.extend(changed_directories(read).await);
        if !changed.is_empty() {
            return Ok(changed);
        }
    }
    for extraneous in std::mem::take(&mut deletion.extraneous) {
        deletion.remove_from(extraneous).await?;
    }
    Ok(Vec::new())
}

/// The failure of a removal that was not begun after failures.
pub(super) fn nothing_removed(to: &Place) -> Failure {
    let failed = "not everything could be read or written, so nothing was removed";
    of_removal(to, failed).advice("repeat the command when that is repaired")
}

/// The same because the source changed each time.
pub(super) fn kept_changing(to: &Place) -> Failure {
    let failed = "the source kept changing, so nothing was removed";
    of_removal(to, failed).advice("repeat the command when nothing is moved or created in it")
}

fn of_removal(to: &Place, failed: &str) -> Failure {
    Failure::new(format!("remove files from {}", to.shown), failed)
}

impl Deletion<'_> {
    /// Whether the filter protects a name.
    fn is_protected(&self, path: &[u8], attr: &Attr) -> bool {
        !self.deletes_excluded && self.is_excluded(path, attr)
    }

    fn is_excluded(&self, path: &[u8], attr: &Attr) -> bool {
        self.mirror.filter.excludes(path, attr.kind == FileKind::Directory)
    }

    /// Lists a directory and its mirror: notes what the source lacks, and reports what the mirror lacks.
    async fn list(&mut self, pair: Pair, ahead: &mut Vec<Pair>) -> Result<()> {
        let Pair { from: (from, attr), to: (to, there), path } = pair;
        // A change after this look shows, also one in the same tick.
        let attr = match is_settled(&attr, SystemTime::now()) {
            true => attr,
            false => {
                let (fs, id) = (&from.fs, attr.id);
                let look = || from.found_again(id, move || fs.getattr(id));
                settled(look).await.asked(|| format!("read {}", from.shown))?
            }
        };
        let wanted = from.children(attr.id).await?;
        let wanted = wanted.into_iter().filter(|(place, attr)| {
            let name = place.name.as_deref().unwrap_or_default();
            !self.is_excluded(&below(&path, name), attr)
        });
        let mut wanted: HashMap<Vec<u8>, (Place, Attr)> = wanted
            .map(|(place, attr)| (place.name.clone().unwrap_or_default(), (place, attr)))
            .collect();
        let found = to.children(there.id).await?;
        let Others { same, missing } = self.others(&wanted, &found, &to, &there).await?;
        for (place, _) in missing.iter().filter_map(|name| wanted.get(name)) {
            self.lack(place);
        }
        let mut files = Vec::new();
        for (place, there) in found {
            let name = place.name.clone().unwrap_or_default();
            let path = below(&path, &name);
            if same.contains(&there.id) || self.is_protected(&path, &there) {
                continue;
            }
            match wanted.remove(&name) {
                Some((source, attr)) if attr.kind == FileKind::Directory => {
                    match there.kind == FileKind::Directory {
                        true => ahead.push(Pair { from: (source, attr), to: (place, there), path }),
                        false => self.lack(&source),
                    }
                }
                // A directory in the way of a file.
                Some(_) if there.kind != FileKind::Directory => {}
                _ => files.push(File { place, attr: there, path }),
            }
        }
        if !files.is_empty() {
            let (id, mtime) = (there.id, attr.mtime);
            self.extraneous.push(Extraneous { to, id, mtime, files });
        }
        self.read.push((from, attr));
        Ok(())
    }

    /// Notes a file of the source that the mirror lacks.
    fn lack(&mut self, source: &Place) {
        let asked = format!("copy {}", source.shown);
        let failure = Failure::new(asked, "it was not there when its directory was copied");
        self.lacking.push(failure.advice("repeat the command to copy it"));
    }

    /// Removes what the source lacks in a directory.
    async fn remove_from(&self, extraneous: Extraneous) -> Result<()> {
        let Extraneous { to, id, mtime, files } = extraneous;
        // All directories were listed before: another program may have moved this one since.
        if !is_there(&to, id).await? {
            return Ok(());
        }
        let mut is_changed = false;
        for File { place, attr, path } in files {
            is_changed |= self.remove(place, attr, path).await?.is_changed;
        }
        if is_changed && !self.copier.options.dry_run && self.copier.options.preserve {
            let set = SetAttr { mtime: Some(SetTime::To(mtime)), ..SetAttr::default() };
            let set = to.fs.setattr(&Caller::Own, id, &set).await;
            set.asked(|| format!("set the time of {}", to.shown))?;
        }
        Ok(())
    }

    /// Looks up the names of the source that the mirror's listing does not show.
    async fn others(
        &self,
        wanted: &HashMap<Vec<u8>, (Place, Attr)>,
        found: &[(Place, Attr)],
        to: &Place,
        there: &Attr,
    ) -> Result<Others> {
        let listed: HashSet<&[u8]> =
            found.iter().filter_map(|(place, _)| place.name.as_deref()).collect();
        let mut others = Others { same: HashSet::new(), missing: HashSet::new() };
        for name in wanted.keys().filter(|name| !listed.contains(&name[..])) {
            match to.fs.lookup(&Caller::Own, there.id.entry(name)).await {
                Ok(attr) => drop(others.same.insert(attr.id)),
                Err(Error::NotFound) => drop(others.missing.insert(name.clone())),
                Err(error) => return Err(error).asked(|| format!("find a file in {}", to.shown)),
            }
        }
        Ok(others)
    }

    /// Removes a file or tree, except for what is protected.
    async fn remove(&self, place: Place, attr: Attr, path: Vec<u8>) -> Result<Removed> {
        if is_same(&attr, self.top) {
            let failure = Failure::new(format!("remove {}", place.shown), "it is the source");
            return Err(failure.advice("choose a destination that does not contain the source"));
        }
        let holds_protected = attr.kind == FileKind::Directory
            && !self.deletes_excluded
            && !self.mirror.filter.is_empty();
        if holds_protected {
            let mut all = Removed { is_changed: false, is_gone: true };
            let (there, children) = join(is_there(&place, attr.id), place.children(attr.id)).await;
            if !there? {
                return Ok(all);
            }
            for (child, attr) in children? {
                let path = below(&path, child.name.as_deref().unwrap_or_default());
                if self.is_protected(&path, &attr) {
                    all.is_gone = false;
                    continue;
                }
                let removed = Box::pin(self.remove(child, attr, path)).await?;
                all.is_changed |= removed.is_changed;
                all.is_gone &= removed.is_gone;
            }
            if all.is_gone {
                // What others have put there since it was listed may be protected: it stays.
                all.is_gone = self.remove_directory(&place).await;
                all.is_changed |= all.is_gone;
            }
            return Ok(all);
        }
        let is_gone = self.remove_all(place, attr).await;
        Ok(Removed { is_changed: true, is_gone })
    }

    /// Removes an empty directory; returns whether it is gone.
    async fn remove_directory(&self, place: &Place) -> bool {
        let name = place.name.as_deref().unwrap_or_default();
        if !self.copier.options.dry_run {
            match place.fs.rmdir(&Caller::Own, place.dir.entry(name)).await {
                Ok(()) | Err(Error::NotFound) => {}
                Err(error) => {
                    self.copier.fail(Failure::of(format!("remove {}", place.shown), error));
                    return false;
                }
            }
        }
        self.copier.removed(&place.shown);
        true
    }

    /// Removes a file or tree; returns whether nothing of it is left.
    async fn remove_all(&self, place: Place, attr: Attr) -> bool {
        let copier = self.copier;
        if copier.options.dry_run {
            copier.removed(&place.shown);
            return true;
        }
        remove(place, attr, |event| match event {
            Event::Removed(place) => copier.removed(&place.shown),
            Event::Failed(failure) => copier.fail(failure),
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::{Filter, Options};
    use crate::sync::tests::root;
    use std::sync::Arc;
    use std::time::Duration;
    use weir_pagecache::{Cache, Config};
    use weir_stores::memory::MemoryFs;
    use weir_stores::testing::Moving;
    use weir_vfs::{CreateMode, FileSystem};

    /// Another program moves `a` to `kept` when `a` and `b` have been listed, by the copy and then to remove what the
    /// source lacks.
    #[tokio::test]
    async fn a_directory_that_is_moved_out_of_the_mirror_keeps_its_files() {
        let cache = Cache::new(Config { budget_bytes: 32 << 20, ..Config::default() }).unwrap();
        let (from, store) = (MemoryFs::new(), MemoryFs::new());
        let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        let mut dirs = Vec::new();
        for name in [b"a", b"b"] {
            from.mkdir(&Caller::Own, from.root().entry(name).with(&set)).await.unwrap();
            let made = store.mkdir(&Caller::Own, store.root().entry(name).with(&set)).await;
            let dir = made.unwrap().id;
            let new = dir.entry(b"f").with(&set);
            store.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
            dirs.push(dir);
        }
        let top = store.root();
        let moving =
            Moving::new(store.clone(), top.entry(b"a"), top.entry(b"kept"), (dirs.clone(), 3));
        let (from, to) = (cache.mount(from), cache.mount(Arc::new(moving)));
        let mirror = Some(Arc::new(Mirror::new(Filter::new([], []).unwrap(), true)));
        let options = Options { recursive: true, preserve: true, mirror, ..Options::default() };
        let copier = Arc::new(Copier::new(options, 32 << 20, ()));
        crate::sync::sync(&copier, &root(&from).await, &root(&to).await, false).await;
        let summary = copier.summary(Duration::ZERO, 0);
        assert_eq!((&summary.failures, summary.removed), (&Vec::new(), 1), "{summary:?}");
        let f = |dir: FileId| store.lookup(&Caller::Own, dir.entry(b"f"));
        assert!(store.lookup(&Caller::Own, store.root().entry(b"kept")).await.is_ok());
        assert!(f(dirs[0]).await.is_ok(), "the only copy is lost");
        assert!(f(dirs[1]).await.is_err());
    }
}
