//! What a synchronization does before an entry is copied.

use super::attributes::Like;
use super::copier::{Copier, add};
use super::mend::mend;
use super::mirror;
use crate::failure::{Asked, Failure, Result};
use crate::mounts::Place;
use crate::text::kind_name;
use std::sync::atomic::Ordering;
use weir_vfs::{Access, Attr, Caller, FileKind};

/// Whether an entry takes part.
pub(crate) fn takes(copier: &Copier, from: &Place, attr: &Attr) -> bool {
    copier.options.mirror.as_ref().is_none_or(|mirror| mirror.takes(from, attr))
}

/// Decides about an entry that takes part: whether the copy continues with it.
pub(crate) async fn prepare(
    copier: &Copier,
    from: &Place,
    attr: &Attr,
    to: &mut Place,
) -> Result<bool> {
    let Some(mirror) = &copier.options.mirror else { return Ok(true) };
    let Some(there) = &to.attr else { return Ok(true) };
    match (attr.kind, there.kind) {
        // A file in its place is removed when it can be listed.
        (FileKind::Directory, _) => Ok(true),
        (_, FileKind::Directory) if mirror.deletes && copier.options.dry_run => {
            to.attr = None;
            Ok(true)
        }
        (kind, FileKind::Directory) if mirror.is_removed.load(Ordering::Relaxed) => {
            let asked = format!("write the {} {}", kind_name(kind), to.shown);
            let failed = "it is a directory that holds excluded files";
            let advice = "move them away, or use --delete-excluded";
            Err(Failure::new(asked, failed).advice(advice))
        }
        (_, FileKind::Directory) if mirror.deletes => {
            // Before the directory is removed for it.
            check_readable(from, attr).await?;
            mirror.is_blocked.store(true, Ordering::Relaxed);
            Ok(false)
        }
        (kind, FileKind::Directory) => {
            let asked = format!("write the {} {}", kind_name(kind), to.shown);
            let failure = Failure::new(asked, "it is a directory");
            Err(failure.advice("use --delete to replace it, with its content"))
        }
        (FileKind::Regular, FileKind::Regular) => Ok(true),
        (FileKind::Regular, FileKind::Symlink) => Ok(true),
        // The copy replaces it when it is complete.
        (FileKind::Regular, _) => {
            to.attr = None;
            Ok(true)
        }
        (kind, other) => {
            let is_same = kind == other && is_like((from, attr), (to, there)).await?;
            if is_same {
                let mended = mend(copier, Like::new(from, attr), to, there).await;
                let mended = mended.asked(|| format!("set the attributes of {}", to.shown))?;
                if mended && copier.options.dry_run {
                    copier.progress.made(&from.shown, &to.shown);
                }
                add(&copier.tally.up_to_date, 1);
            }
            Ok(!is_same)
        }
    }
}

/// Fails if the content of a file, or the target of a link, cannot be read.
async fn check_readable(from: &Place, attr: &Attr) -> Result<()> {
    let open = || from.fs.open(&Caller::Own, attr.id, Access::READ);
    let read = match attr.kind {
        FileKind::Regular => from.found_again(attr.id, open).await.map(drop),
        FileKind::Symlink => from.link_target(attr.id).await.map(drop),
        _ => Ok(()),
    };
    read.asked(|| format!("read {}", from.shown))
}

/// Whether a link or special file is up to date, but for attributes that can be set.
async fn is_like((from, attr): (&Place, &Attr), (to, there): (&Place, &Attr)) -> Result<bool> {
    if attr.kind != FileKind::Symlink {
        let state = |attr: &Attr| (attr.rdev, attr.mode, attr.uid, attr.gid);
        return Ok(state(attr) == state(there));
    }
    if attr.size != there.size || !mirror::is_kept_as(attr.mtime, there) {
        return Ok(false);
    }
    let read = async |place: &Place, id| {
        let target = place.link_target(id).await;
        target.asked(|| format!("read the symbolic link {}", place.shown))
    };
    Ok(read(from, attr.id).await? == read(to, there.id).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::tests::root;
    use std::time::{Duration, UNIX_EPOCH};
    use weir_pagecache::{Cache, Config};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::SetAttr;

    #[tokio::test]
    async fn a_link_is_like_one_whose_time_is_kept_in_larger_steps() {
        let cache = Cache::new(Config { budget_bytes: 32 << 20, ..Config::default() }).unwrap();
        let (fs, set) = (cache.mount(MemoryFs::new()), SetAttr::default());
        let mut links = Vec::new();
        for (name, target) in [(b"a", b"target"), (b"b", b"target"), (b"c", b"others")] {
            let new = fs.root().entry(name).with(&set);
            links.push(fs.symlink(&Caller::Own, new, target).await.unwrap());
        }
        let root = root(&fs).await;
        let at = |link: &Attr, nanos| {
            let time = UNIX_EPOCH + Duration::from_nanos(nanos);
            Attr { mtime: time, ctime: time, ..link.clone() }
        };
        let from = at(&links[0], 1_700_000_001_234_567_891);
        for (there, nanos, expected) in [
            (1, 1_700_000_001_234_567_891, true),
            (1, 1_700_000_001_000_000_000, true),
            (1, 1_700_000_003_000_000_000, false),
            (2, 1_700_000_001_000_000_000, false),
        ] {
            let there = at(&links[there], nanos);
            assert_eq!(
                is_like((&root, &from), (&root, &there)).await.unwrap(),
                expected,
                "{nanos}"
            );
        }
    }
}
