//! Removal of what the source lacks.

use crate::copy::source::is_same;
use crate::copy::{Copier, Mirror, below};
use crate::failure::{Asked, Failure, Result};
use crate::mounts::Place;
use crate::remove::{Event, remove};
use std::collections::{HashMap, HashSet};
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
}

/// What became of a file or tree.
struct Removed {
    /// Something was removed.
    is_changed: bool,
    /// Nothing is left.
    is_gone: bool,
}

/// Removes from the directory `to` what `from` does not have.
///
/// # Errors
/// A directory cannot be listed: nothing more is removed then.
pub(super) async fn extraneous(
    copier: &Copier,
    mirror: &Mirror,
    from: &Place,
    to: &Place,
    deletes_excluded: bool,
) -> Result<()> {
    let (top, there) = (from.existing("read")?.clone(), to.existing("read")?.clone());
    let deletion = Deletion { copier, mirror, deletes_excluded, top: &top };
    let first =
        Pair { from: (from.clone(), top.clone()), to: (to.clone(), there), path: Vec::new() };
    let mut ahead = vec![first];
    while let Some(pair) = ahead.pop() {
        deletion.directory(pair, &mut ahead).await?;
    }
    Ok(())
}

impl Deletion<'_> {
    /// Whether the filter protects a name.
    fn is_protected(&self, path: &[u8], attr: &Attr) -> bool {
        !self.deletes_excluded && self.is_excluded(path, attr)
    }

    fn is_excluded(&self, path: &[u8], attr: &Attr) -> bool {
        self.mirror.filter.excludes(path, attr.kind == FileKind::Directory)
    }

    async fn directory(&self, pair: Pair, ahead: &mut Vec<Pair>) -> Result<()> {
        let Pair { from: (from, attr), to: (to, there), path } = pair;
        let wanted = from.children(attr.id).await?;
        let wanted = wanted.into_iter().filter(|(place, attr)| {
            let name = place.name.as_deref().unwrap_or_default();
            !self.is_excluded(&below(&path, name), attr)
        });
        let mut wanted: HashMap<Vec<u8>, (Place, Attr)> = wanted
            .map(|(place, attr)| (place.name.clone().unwrap_or_default(), (place, attr)))
            .collect();
        let found = to.children(there.id).await?;
        let same = self.under_other_names(&wanted, &found, &to, &there).await?;
        let mut is_changed = false;
        for (place, there) in found {
            let name = place.name.clone().unwrap_or_default();
            let path = below(&path, &name);
            if same.contains(&there.id) || self.is_protected(&path, &there) {
                continue;
            }
            match wanted.remove(&name) {
                Some((source, attr)) if attr.kind == FileKind::Directory => {
                    if there.kind == FileKind::Directory {
                        ahead.push(Pair { from: (source, attr), to: (place, there), path });
                    }
                }
                // A directory in the way of a file.
                Some(_) if there.kind != FileKind::Directory => {}
                _ => is_changed |= self.remove(place, there, path).await?.is_changed,
            }
        }
        if is_changed && !self.copier.options.dry_run && self.copier.options.preserve {
            let mtime = Some(SetTime::To(attr.mtime));
            let set = SetAttr { mtime, ..SetAttr::default() };
            let set = to.fs.setattr(&Caller::Own, there.id, &set).await;
            set.asked(|| format!("set the time of {}", to.shown))?;
        }
        Ok(())
    }

    /// The files that have names of the source which the listing does not show: the file system takes
    /// other names for them (by folding case, say).
    async fn under_other_names(
        &self,
        wanted: &HashMap<Vec<u8>, (Place, Attr)>,
        found: &[(Place, Attr)],
        to: &Place,
        there: &Attr,
    ) -> Result<HashSet<FileId>> {
        let listed: HashSet<&[u8]> =
            found.iter().filter_map(|(place, _)| place.name.as_deref()).collect();
        let mut same = HashSet::new();
        for name in wanted.keys().filter(|name| !listed.contains(&name[..])) {
            match to.fs.lookup(&Caller::Own, there.id.entry(name)).await {
                Ok(attr) => drop(same.insert(attr.id)),
                Err(Error::NotFound) => {}
                Err(error) => return Err(error).asked(|| format!("find a file in {}", to.shown)),
            }
        }
        Ok(same)
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
            for (child, attr) in place.children(attr.id).await? {
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
