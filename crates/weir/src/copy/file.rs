//! One regular file: under a temporary name, synced, renamed.

use super::temporary::Temporary;
use super::{Copier, add, data};
use crate::failure::{Asked, Failure, Result};
use crate::mounts::Place;
use crate::output::kind_name;
use weir_pagecache::File;
use weir_vfs::{Access, Attr, Caller, Error, FileId, FileKind, SetAttr, SetTime};

/// Copies the regular file at `from`, whose attributes are `source`, to `to`; returns the copy.
pub(super) async fn copy(
    copier: &Copier,
    from: &Place,
    source: &Attr,
    to: &Place,
) -> Result<FileId> {
    let write = || format!("write {}", to.shown);
    let name = to.name.as_deref().ok_or(Error::IsDirectory).asked(write)?;
    refuse_special(to)?;
    let opened = from.fs.open(&Caller::Own, source.id, Access::READ).await;
    let opened = opened.asked(|| format!("read {}", from.shown))?;
    let temporary = match Temporary::begin(copier, to, source).await {
        Ok(temporary) => temporary,
        Err(Error::AccessDenied | Error::NotPermitted) if to.attr.is_some() => {
            return in_place(copier, from, &opened, source, to).await;
        }
        Err(error) => return Err(error).asked(write),
    };
    let done = async {
        let id = temporary.id();
        let file = to.fs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.asked(write)?;
        fill(copier, from, &opened, to, &file, Some(&temporary)).await?;
        set_attributes(copier, source, to, id).await.asked(write)?;
        file.sync_async(false).await.asked(write)?;
        temporary.rename(name).await.asked(write)?;
        copier.report(from, to, &opened, &file);
        Ok(id)
    };
    match done.await {
        Ok(id) => {
            temporary.forget();
            copier.changed.lock().insert(to.dir);
            add(&copier.tally.files, 1);
            Ok(id)
        }
        Err(failure) => {
            temporary.abandon().await;
            Err(failure)
        }
    }
}

/// Whether there is a copy already that looks like the source, for `--continue`.
pub(super) fn is_done(copier: &Copier, source: &Attr, to: &Place) -> bool {
    let same = |there: &Attr| {
        there.kind == FileKind::Regular && (there.size, there.mtime) == (source.size, source.mtime)
    };
    copier.options.resume_bytes.is_some() && to.attr.as_ref().is_some_and(same)
}

/// A device or pipe is no place for a copy of a file.
fn refuse_special(to: &Place) -> Result<()> {
    match to.attr.as_ref().map(|a| a.kind) {
        None | Some(FileKind::Regular | FileKind::Symlink) => Ok(()),
        Some(kind) => {
            let failed = format!("it is a {}", kind_name(kind));
            let failure = Failure::new(format!("write a file to {}", to.shown), failed);
            Err(match kind {
                FileKind::Directory => failure.advice("remove it, or choose another name"),
                _ => failure.advice("use `weir cat` with its output redirected there"),
            })
        }
    }
}

/// Writes over a file in a directory that cannot be written to.
async fn in_place(
    copier: &Copier,
    from: &Place,
    opened: &File,
    source: &Attr,
    to: &Place,
) -> Result<FileId> {
    let write = || format!("write {}", to.shown);
    let id = to.existing("write")?.id;
    let file = to.fs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.asked(write)?;
    let done = async {
        file.truncate_async(0).await.asked(write)?;
        fill(copier, from, opened, to, &file, None).await?;
        if copier.options.preserve {
            set_attributes(copier, source, to, id).await.asked(write)?;
        }
        file.sync_async(false).await.asked(write)
    };
    match done.await {
        Ok(()) => {
            add(&copier.tally.files, 1);
            Ok(id)
        }
        Err(failure) => {
            let incomplete = format!("{} was written in place and is incomplete now", to.shown);
            Err(failure.advice(incomplete))
        }
    }
}

async fn fill(
    copier: &Copier,
    from: &Place,
    opened: &File,
    to: &Place,
    file: &File,
    temporary: Option<&Temporary<'_>>,
) -> Result<()> {
    let pair = data::Pair {
        from: opened,
        to: file,
        from_shown: &from.shown,
        to_shown: &to.shown,
        temporary,
    };
    let size = data::copy(copier, &pair).await?;
    add(&copier.tally.size_bytes, size);
    Ok(())
}

/// Gives the copy its mode, and with `--preserve` owner and times; a file that is replaced keeps
/// its mode and owner otherwise.
async fn set_attributes(
    copier: &Copier,
    source: &Attr,
    to: &Place,
    id: FileId,
) -> weir_vfs::Result<()> {
    let replaced = to.attr.as_ref().filter(|a| a.kind == FileKind::Regular);
    match replaced {
        Some(replaced) if !copier.options.preserve => {
            apply(to, id, replaced, replaced.mode, false).await
        }
        _ => apply_of(copier, source, to, id).await,
    }
}

/// Gives the new file `id` the attributes of `source` as far as the options want.
pub(super) async fn apply_of(
    copier: &Copier,
    source: &Attr,
    to: &Place,
    id: FileId,
) -> weir_vfs::Result<()> {
    match copier.options.preserve {
        true => apply(to, id, source, source.mode, true).await,
        false => {
            let mode = source.mode & 0o777 & !copier.options.umask;
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            to.fs.setattr(&Caller::Own, id, &set).await.map(drop)
        }
    }
}

/// Owner, then mode (which a change of owner may have cut), then times.
async fn apply(
    to: &Place,
    id: FileId,
    like: &Attr,
    mode: u32,
    times: bool,
) -> weir_vfs::Result<()> {
    let now = to.fs.getattr(id).await?;
    let mut mode = mode;
    if (now.uid, now.gid) != (like.uid, like.gid) {
        let own = SetAttr { uid: Some(like.uid), gid: Some(like.gid), ..SetAttr::default() };
        match to.fs.setattr(&Caller::Own, id, &own).await {
            Ok(_) => {}
            // Only root may give files away; then nobody may run it as its new owner either.
            Err(Error::NotPermitted | Error::AccessDenied) => mode &= !0o6000,
            Err(error) => return Err(error),
        }
    }
    let mut set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    if times {
        set.atime = Some(SetTime::To(like.atime));
        set.mtime = Some(SetTime::To(like.mtime));
    }
    to.fs.setattr(&Caller::Own, id, &set).await.map(drop)
}
