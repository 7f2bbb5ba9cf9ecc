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
                _ => is_changed |= self.remove(place, there, path).await?,
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

    /// Removes a file or tree, except for what is protected. Returns whether anything was removed.
    async fn remove(&self, place: Place, attr: Attr, path: Vec<u8>) -> Result<bool> {
        if is_same(&attr, self.top) {
            let failure = Failure::new(format!("remove {}", place.shown), "it is the source");
            return Err(failure.advice("choose a destination that does not contain the source"));
        }
        let holds_protected = attr.kind == FileKind::Directory
            && !self.deletes_excluded
            && !self.mirror.filter.is_empty();
        if holds_protected {
            let mut is_changed = false;
            let mut is_empty = true;
            for (child, attr) in place.children(attr.id).await? {
                let path = below(&path, child.name.as_deref().unwrap_or_default());
                if self.is_protected(&path, &attr) {
                    is_empty = false;
                    continue;
                }
                let is_directory = attr.kind == FileKind::Directory;
                let id = attr.id;
                is_changed |= Box::pin(self.remove(child.clone(), attr, path)).await?;
                if is_directory && !self.copier.options.dry_run {
                    let name = child.name.as_deref().unwrap_or_default();
                    let left = child.fs.lookup(&Caller::Own, child.dir.entry(name)).await;
                    is_empty &= !left.is_ok_and(|left| left.id == id);
                }
            }
            if !is_empty {
                return Ok(is_changed);
            }
        }
        self.remove_all(place, attr).await;
        Ok(true)
    }

    /// Removes a file or tree.
    async fn remove_all(&self, place: Place, attr: Attr) {
        let copier = self.copier;
        if copier.options.dry_run {
            return copier.removed(&place.shown);
        }
        remove(place, attr, |event| match event {
            Event::Removed(place) => copier.removed(&place.shown),
            Event::Failed(failure) => copier.fail(failure),
        })
        .await;
    }
}
